"""The tile language: `import tiledsl.language as T`. Names and meanings are those of TileLang's surface."""

from __future__ import annotations

import difflib
from types import ModuleType
from typing import Any

from tiledsl.errors import TileError
from tiledsl.language import dtypes as _dtypes
from tiledsl.language.atomics import atomic_add, atomic_addx2, atomic_addx4, atomic_load, atomic_max, atomic_min, atomic_or, atomic_store  # noqa: E501
from tiledsl.language.buffer import Buffer, FragmentBuffer, LocalBuffer, SharedBuffer, StridedTensor, Tensor
from tiledsl.language.dtypes import DType as dtype
from tiledsl.language.expression import Expr as PrimExpr
from tiledsl.language.expression import Symbol, cast
from tiledsl.language.hints import *  # noqa: F403
from tiledsl.language.hints import __all__ as _hints
from tiledsl.language.loops import Parallel, Persistent, Pipelined, Serial, Unroll, Vectorized, grid, parallel, serial, unroll, vectorized  # noqa: E501
from tiledsl.language.maths import And, Cast, Not, Or, Select, abs, acos, acosh, all, all_of, any, any_of, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_not, bitwise_or, bitwise_xor, cdiv, ceil, ceildiv, clamp, clz, copysign, cos, cosh, div, erf, exp, exp2, exp10, expm1, floor, floordiv, floormod, fma, fmod, hypot, if_then_else, infinity, isfinite, isinf, isnan, log, log1p, log2, log10, max, max_value, min, min_value, nearbyint, popcount, pow, power, reinterpret, rint, round, rsqrt, shift_left, shift_right, sigmoid, sin, sinh, sqrt, tan, tanh, trunc, truncdiv, truncmod  # noqa: A004, E501
from tiledsl.language.operations import GemmWarpPolicy, alloc_buffer, alloc_fragment, alloc_global, alloc_local, alloc_shared, alloc_var, annotate_safe_value, clear, copy, cummax, cumsum, fill, gemm, reduce, reduce_absmax, reduce_abssum, reduce_bitand, reduce_bitor, reduce_bitxor, reduce_max, reduce_min, reduce_sum, reshape, transpose, view  # noqa: E501
from tiledsl.language.program import Kernel, Macro, PrimFunc, Ref, assume, comment, const, device_assert, dyn, dynamic, empty, get_block_binding, get_block_bindings, import_source, inline, macro, prim_func, print, symbolic, use_swizzle  # noqa: A004, E501

float64, float32, float16, bfloat16 = (_dtypes.DTYPES[name] for name in ("float64", "float32", "float16", "bfloat16"))
float8_e4m3fn, float8_e5m2 = _dtypes.DTYPES["float8_e4m3fn"], _dtypes.DTYPES["float8_e5m2"]
int8, int16, int32, int64 = (_dtypes.DTYPES[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_dtypes.DTYPES[f"uint{bits}"] for bits in (8, 16, 32, 64))
bool, float, int, uint = (_dtypes.canonical(name) for name in ("bool", "float", "int", "uint"))  # noqa: A001
float8_e4m3, half, double, tfloat32 = (_dtypes.canonical(name) for name in ("float8_e4m3", "half", "double", "tfloat32"))
reduce_and, reduce_or = reduce_bitand, reduce_bitor

__all__ = [
    name
    for name, value in list(globals().items())
    if not name.startswith("_") and name not in ("annotations", "Any", "ModuleType", "TileError") and not isinstance(value, ModuleType)
]
__all__ += [name for name in _hints if name not in __all__]

_THREADS = "thread-level code has no Triton form; write the loop over the tile with T.Parallel"
_BARRIERS = "explicit barriers and asynchronous copies have no Triton form; use T.copy inside T.Pipelined, which overlaps them"
_BLACKWELL = "Blackwell's tensor memory has no Triton form here; use T.alloc_fragment and T.gemm"
_SHUFFLE = "warp-level communication has no Triton form; use T.reduce_sum, T.reduce_max or T.cumsum on a fragment"
REFUSED = {
    **dict.fromkeys("get_thread_binding get_thread_bindings thread_binding get_thread_extent get_thread_extents get_lane_idx get_warp_idx get_warp_idx_sync get_warp_group_idx shuffle_elect access_ptr address_of".split(), _THREADS),  # noqa: E501
    **dict.fromkeys("alloc_barrier alloc_cluster_barrier mbarrier_arrive mbarrier_wait_parity mbarrier_expect_tx mbarrier_arrive_expect_tx barrier_arrive barrier_wait tma_copy tma_gather4 tma_scatter4 async_copy copy_cluster ptx_cp_async ptx_commit_group ptx_wait_group cp_async_barrier_noinc fence_proxy_async fence_proxy_async_generic ws WSID WSPipeline WSRole WSSchedule WSScope WSSync ws_op annotate_ws_schedule ClusterKernel cluster_sync block_rank_in_cluster set_max_nreg wgmma_gemm wait_wgmma warpgroup_arrive warpgroup_commit_batch warpgroup_wait warpgroup_fence_operand clc_try_cancel_multicast clc_is_canceled clc_get_first_ctaid_x pdl_trigger pdl_sync create_tma_descriptor alloc_descriptor alloc_wgmma_desc".split(), _BARRIERS),  # noqa: E501
    **dict.fromkeys("alloc_tmem tcgen05_gemm tcgen05_gemm_blockscaled tcgen05_mma_arrive tcgen05_cp_warpx4 tcgen05_sf_warp_transpose mma_gemm_blockscaled gemm_sp".split(), _BLACKWELL),  # noqa: E501
    **dict.fromkeys("shfl_sync shfl_up shfl_down shfl_xor tvm_warp_shuffle warp_reduce_sum warp_reduce_max warp_reduce_min warp_reduce_bitand warp_reduce_bitor tvm_thread_allreduce comm_reducer any_sync all_sync ballot ballot_sync activemask match_any_sync syncthreads_and syncthreads_or syncthreads_count alloc_reducer reducer_init reducer_update finalize_reducer".split(), _SHUFFLE),  # noqa: E501
    **dict.fromkeys("call_extern call_intrin call_pure_extern evaluate attr dp4a pragma_import_c CUDASourceCodeKernel tvm_mfma tvm_mfma_store ptx_mma ptx_ldmatrix mma_store".split(), "C code and intrinsics have no Triton form; write the arithmetic in the tile language"),  # noqa: E501
    **dict.fromkeys("sync_grid sync_global".split(), "blocks of one launch cannot wait for each other in Triton; write two T.Kernel blocks, which run in order"),  # noqa: E501
    **dict.fromkeys("rng_init rng_rand rng_rand_float".split(), "random numbers in a kernel are not part of the tile language; pass a tensor of them"),  # noqa: E501
    **dict.fromkeys(sorted(_dtypes.UNSUPPORTED), _dtypes.NO_FORM),
    **dict.fromkeys("ptr make_tensor make_tensor_from_addr".split(), "tensors made from raw addresses are not part of the tile language; pass one tensor and index it"),  # noqa: E501
    **dict.fromkeys("handle Var call_packed block evaluate_block alloc_smem".split(), "this is not part of the tile language"),
}


class Refused:
    """A name of TileLang without a Triton form: using it is an error that says what to write instead."""

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


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in REFUSED:
        return Refused(name, REFUSED[name])
    near = difflib.get_close_matches(name, __all__, 1)
    raise AttributeError(f"T.{name} is not part of the tile language" + (f"; did you mean T.{near[0]}?" if near else ""))


def __dir__() -> list[str]:
    return sorted(__all__)
