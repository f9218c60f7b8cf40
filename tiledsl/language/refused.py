"""Names of TileLang that Triton cannot express: using one is an error that suggests what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from tiledsl.errors import TileError

# The reason, and the names that it holds for: a name with * or [] in it is a pattern.
_REASONS = {
    "addresses have no Triton form; index the buffer": """
        tvm_access_ptr address_of
    """,
    (
        "a thread's vectors have no Triton form; write the loop over their elements, with T.Parallel or, in code for "
        "one thread, T.vectorized"
    ): """
        *float*x[0-9]* *int*x[0-9]* boolx[0-9]* add2 sub2 mul2 fma2 max2 min2 abs2 ldg[0-9]* lds[0-9]* stg[0-9]*
        sts[0-9]* Ramp Broadcast Shuffle extract_lane vectorlow vectorhigh vectorcombine vscale ds_read_*
    """,
    (
        "clusters, barriers by number and schedules by hand have no Triton form; write T.alloc_barrier and roles "
        "(T.ws), or T.copy inside T.Pipelined"
    ): """
        alloc_cluster_barrier tma_gather4 tma_scatter4
        copy_cluster WSID WSPipeline WSRole WSSchedule WSScope WSSync ws_op
        annotate_ws_schedule ClusterKernel cluster_sync block_rank_in_cluster
        named_barrier_arrive named_barrier_sync
        clc_* create_tma_descriptor alloc_descriptor alloc_wgmma_desc create_barriers cluster_arrive*
        cluster_wait WSInstr WSOpRef WSSyncKind WarpSpecialize WarpSpecializeFrame tma_* ptx_cp_async_* ptx_arrive_*
        ptx_init_barrier_thread_count ptx_wait_barrier initialize_*_descriptor increase_descriptor_offset
        WGMMADescriptorParams compute_*_descriptor
    """,
    "Blackwell's tensor memory has no Triton form here; use T.alloc_fragment and T.gemm": """
        alloc_tmem tcgen05_gemm tcgen05_gemm_blockscaled tcgen05_mma_arrive tcgen05_cp_warpx4
        tcgen05_sf_warp_transpose mma_gemm_blockscaled alloc_tcgen05_* deallocate_tmem tcgen05_* TCGEN05*
        make_blockscaled_gemm_layout ptx_tcgen05_* lookup_param
    """,
    (
        "products of 2:4 sparse tiles need the sparse tensor cores, for which Triton has no operation; keep the tile "
        "dense (its zeros written out in T.Parallel, by the metadata), and use T.gemm"
    ): """
        gemm_sp wgmma_gemm_sp tcgen05_gemm_sp ptx_mma_sp ptx_wgmma_sp_* *SparseTensorCoreIntrinEmitter
    """,
    ("warp-level communication has no Triton form; use T.reduce_sum, T.reduce_max or T.cumsum on a fragment"): """
        launch_thread env_thread tvm_thread_invariant
    """,
    (
        "which threads of a warp a GPU runs together under a condition is not defined; write T.ballot(condition) "
        "before the `if`, or 0xFFFFFFFF where there is no condition"
    ): """
        activemask tvm_warp_activemask
    """,
    "C code and intrinsics have no Triton form; write the arithmetic in the tile language": """
        call_* dp4a pragma_import_c CUDASourceCodeKernel __fns q_multiply_shift*
    """,
    "the instructions of tensor cores are Triton's choice; write the product with T.gemm": """
        tvm_mfma tvm_mfma_store ptx_mma ptx_mma_* ptx_ldmatrix* mma_* mfma* wgmma_mma ptx_wgmma_*
        *TensorCoreIntrinEmitter* simdgroup_*
        make_filled_simdgroup_matrix tvm_rdna_* tvm_bmma_sync tvm_fill_fragment tvm_load_matrix_sync
        tvm_mma_sync tvm_store_matrix_sync get_ldmatrix_offset get_mma_micro_size get_swizzle_layout
        make_mma_swizzle_layout validate_gemm_ab_dtypes
    """,
    ("blocks of one launch cannot wait for each other in Triton; write two T.Kernel blocks, which run in order"): """
        sync_global
    """,
    "Triton has no such element type; use T.float8_e4m3fn or T.float8_e5m2, on gfx942 their fnuz forms": """
        float8_*
    """,
    "Triton has no such element type; keep the packed bytes in uint8 and unpack them in T.Parallel": """
        float4_e2m1_unpacked float6_e2m3fn float6_e3m2fn float8_e8m0fnu int2 int4 uint4
    """,
    "tensors made from raw addresses are not part of the tile language; pass one tensor and index it": """
        ptr make_tensor make_tensor_from_addr
    """,
    "classes whose methods assign to variables of the kernel are not part of the tile language; write T.Persistent": """
        meta_class BaseTileScheduler PersistentTileScheduler
    """,
    "TVM's loops and blocks are not part of the tile language; write the loop with T.serial or T.Parallel": """
        sblock sblock_* block block_attr reads writes bind decl_buffer match_buffer buffer_store region While Assert
        thread_axis evaluate_block launch target vectorize pipelined Pipeline realize
    """,
    "TVM's runtime is not part of the tile language": """
        tvm_stack_* tvm_struct_* tvm_throw_last_error tvm_tuple tvm_call_* TVMBackend* anylist_* handle
        handle_add_byte_offset isnullptr start_profile_intrinsic end_profile_intrinsic ret undef has_let_value
        get_let_value KernelLaunchFrame JITFunc AnyDType get_tvm_dtype IntImm StringImm Any alloc_smem
    """,
}
# Words of Triton, NumPy and torch, and what says the same here.
_ELSEWHERE = {
    "T.if_then_else, or `if`": "where",
    "T.alloc_fragment, then T.clear": "zeros zeros_like empty_like",
    "T.alloc_fragment, then T.fill": "full full_like ones ones_like",
    "T.copy into a tile, or an element, A[i, j]": "load",
    "T.copy from a tile, or A[i, j] = value": "store",
    "T.gemm": "dot dot_scaled matmul mm bmm",
    "T.abs": "absolute fabs",
    "T.atan": "arctan",
    "T.atan2": "arctan2",
    "T.asin": "arcsin",
    "T.acos": "arccos",
    "T.clamp": "clip",
    "T.reduce_sum": "sum",
    "T.reduce_max": "amax",
    "T.reduce_min": "amin",
    "T.reduce_sum, divided by the number of elements": "mean reduce_mean",
    "the variable of a T.Parallel loop": "arange",
    "an index, A[i, j], in a T.Parallel loop": (
        "expand_dims broadcast broadcast_to permute gather scatter flip roll cat concat stack squeeze unsqueeze repeat"
    ),
    "T.transpose": "trans",
    "the names of `with T.Kernel(...) as (bx, by)`": "program_id block_idx blockIdx",
    "the extents of T.Kernel": "num_programs grid_dim gridDim",
    "T.get_thread_binding()": "thread_idx threadIdx tid",
    "an argument of the function that makes the program": "constexpr",
    "T.unroll": "static_range",
    "range or T.serial": "range",
    "its formula, in a T.Parallel loop": (
        "softmax gelu silu swish softplus leaky_relu layer_norm rms_norm var std norm cross_entropy"
    ),
    "T.max": "maximum fmax",
    "T.max(x, 0)": "relu",
    "T.min": "minimum fmin",
}
ELSEWHERE = {name: instead for instead, names in _ELSEWHERE.items() for name in names.split()}
_NAMES = {name: reason for reason, names in _REASONS.items() for name in names.split()}
REFUSED = {name: reason for name, reason in _NAMES.items() if not set("*[") & set(name)}
PATTERNS = {name: reason for name, reason in _NAMES.items() if name not in REFUSED}


@cache
def refusal(name: str) -> str:
    """Why `T.name` is refused, and what to write instead; "" if it is no name of TileLang's language."""
    matching = (reason for pattern, reason in PATTERNS.items() if fnmatchcase(name, pattern))
    return REFUSED.get(name) or next(matching, "")


def unknown(name: str, known: Iterable[str]) -> str:
    """The message about a name that the language has not: what to write instead, as far as it is known."""
    near = difflib.get_close_matches(name, list(known), 1)
    instead = f"; write {ELSEWHERE[name]}" if name in ELSEWHERE else f"; did you mean T.{near[0]}?" if near else ""
    return f"T.{name} is not part of the tile language{instead}"


class Refused:
    """A name that raises an error as soon as it is used."""

    def __init__(self, name: str, why: str) -> None:
        self.error = f"T.{name}: {why}"

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TileError(self.error, code="no-triton-form")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TileError(self.error, code="no-triton-form")

    __getitem__ = __enter__ = __iter__ = __bool__ = __call__

    def __exit__(self, *_: object) -> None:
        pass
