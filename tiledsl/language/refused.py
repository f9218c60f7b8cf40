"""Names of TileLang that Triton cannot express: using one is an error that suggests what to write instead."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import TileError

# The reason, and the names that it holds for.
_REASONS = {
    "addresses have no Triton form; index the buffer": """
        access_ptr tvm_access_ptr address_of type_annotation
    """,
    (
        "explicit barriers and asynchronous copies have no Triton form; use T.copy inside T.Pipelined, which "
        "overlaps them"
    ): """
        alloc_barrier alloc_cluster_barrier mbarrier_arrive mbarrier_wait_parity mbarrier_expect_tx
        mbarrier_arrive_expect_tx barrier_arrive barrier_wait tma_copy tma_gather4 tma_scatter4
        copy_cluster ptx_cp_async cp_async_barrier_noinc fence_proxy_async
        fence_proxy_async_generic ws WSID WSPipeline WSRole WSSchedule WSScope WSSync ws_op
        annotate_ws_schedule ClusterKernel cluster_sync block_rank_in_cluster set_max_nreg
        inc_max_nreg dec_max_nreg named_barrier_arrive named_barrier_sync
        clc_try_cancel_multicast clc_is_canceled clc_get_first_ctaid_x
        create_tma_descriptor alloc_descriptor alloc_wgmma_desc
    """,
    "Blackwell's tensor memory has no Triton form here; use T.alloc_fragment and T.gemm": """
        alloc_tmem tcgen05_gemm tcgen05_gemm_blockscaled tcgen05_mma_arrive tcgen05_cp_warpx4
        tcgen05_sf_warp_transpose mma_gemm_blockscaled gemm_sp
    """,
    ("warp-level communication has no Triton form; use T.reduce_sum, T.reduce_max or T.cumsum on a fragment"): """
        activemask match_any_sync
    """,
    "C code and intrinsics have no Triton form; write the arithmetic in the tile language": """
        call_extern call_intrin call_pure_extern dp4a pragma_import_c CUDASourceCodeKernel
        tvm_mfma tvm_mfma_store ptx_mma ptx_ldmatrix mma_store
    """,
    ("blocks of one launch cannot wait for each other in Triton; write two T.Kernel blocks, which run in order"): """
        sync_grid sync_global
    """,
    "Triton has no such element type; keep the packed bytes in uint8 and unpack them in T.Parallel": """
        float4_e2m1_unpacked float6_e2m3fn float6_e3m2fn float8_e8m0fnu int2 int4 uint4
    """,
    "tensors made from raw addresses are not part of the tile language; pass one tensor and index it": """
        ptr make_tensor make_tensor_from_addr
    """,
    "this is not part of the tile language": """
        handle call_packed block evaluate_block alloc_smem
    """,
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}


class Refused:
    """A name that raises an error as soon as it is used."""

    def __init__(self, name: str, why: str) -> None:
        self.error = f"T.{name}: {why}"

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TileError(self.error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TileError(self.error)

    __getitem__ = __enter__ = __iter__ = __bool__ = __call__

    def __exit__(self, *_: object) -> None:
        pass
