"""The names of the tile language, from where each is defined."""

from __future__ import annotations

import tiledsl.language.dtypes as _dtypes
import tiledsl.language.maths as _maths
from tiledsl.frontend.program import PrimFunc, prim_func
from tiledsl.language.allocation import alloc_buffer, alloc_fragment, alloc_global, alloc_local, alloc_shared, alloc_var
from tiledsl.language.asynchronous import (
    async_copy,
    ptx_commit_group,
    ptx_wait_group,
    wait_wgmma,
    warpgroup_arrive,
    warpgroup_commit_batch,
    warpgroup_fence_operand,
    warpgroup_wait,
    wgmma_gemm,
)
from tiledsl.language.atomics import (
    atomic_add,
    atomic_addx2,
    atomic_addx4,
    atomic_cas,
    atomic_load,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_store,
)
from tiledsl.language.buffer import Buffer, FragmentBuffer, LocalBuffer, SharedBuffer, StridedTensor, Tensor
from tiledsl.language.cuda_functions import (
    call_extern,
    call_pure_extern,
    cast,
    fast_rcp,
    ieee_add,
    ieee_fdiv,
    ieee_fmaf,
    ieee_frcp,
    ieee_frsqrt,
    ieee_fsqrt,
    ieee_mul,
    ieee_sub,
    ldexp,
    nextafter,
)
from tiledsl.language.cuda_functions import ffs as __ffs  # noqa: F401
from tiledsl.language.cuda_functions import ldg as __ldg  # noqa: F401
from tiledsl.language.dtypes import DType as dtype
from tiledsl.language.dtypes import canonical as type_annotation
from tiledsl.language.dtypes import is_f8f6f4_family, is_float4, is_float4_e2m1_unpacked, is_float4_e2m1fn
from tiledsl.language.expression import Expr as PrimExpr
from tiledsl.language.expression import Symbol
from tiledsl.language.expression import Symbol as Var
from tiledsl.language.hints import (
    Fragment,
    Layout,
    annotate_compile_flags,
    annotate_consumer_reg_alloc,
    annotate_l2_hit_ratio,
    annotate_layout,
    annotate_min_blocks_per_sm,
    annotate_pass_configs,
    annotate_producer_reg_dealloc,
    annotate_restrict_buffers,
    disable_warp_group_reg_alloc,
    fence_proxy_async,
    fence_proxy_async_generic,
    func_attr,
    no_set_max_nreg,
    pdl_trigger,
    ptx_fence_barrier_init,
)
from tiledsl.language.loops import (
    Parallel,
    Persistent,
    Pipelined,
    Serial,
    Unroll,
    Vectorized,
    grid,
    parallel,
    serial,
    unroll,
    vectorized,
)
from tiledsl.language.macros import Macro, inline, macro
from tiledsl.language.maths import (
    And,
    Cast,
    Not,
    Or,
    Select,
    abs,
    align_up,
    all,
    any,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cdiv,
    ceildiv,
    clamp,
    div,
    floordiv,
    floormod,
    if_then_else,
    index_to_coordinates,
    infinity,
    likely,
    max,
    max_value,
    min,
    min_value,
    pow,
    power,
    reinterpret,
    round,
    shift_left,
    shift_right,
    truncdiv,
    truncmod,
)
from tiledsl.language.operations import (
    GemmWarpPolicy,
    annotate_safe_value,
    c2d_im2col,
    clear,
    copy,
    cummax,
    cumsum,
    fill,
    gemm,
    im2col,
    reduce,
    reduce_absmax,
    reduce_abssum,
    reduce_bitand,
    reduce_bitor,
    reduce_bitxor,
    reduce_max,
    reduce_min,
    reduce_sum,
    reshape,
    transpose,
    view,
)
from tiledsl.language.orders import argmax, argmin, associative_scan, histogram, sort, topk
from tiledsl.language.program import (
    Else,
    If,
    Kernel,
    Ref,
    Then,
    assume,
    comment,
    const,
    device_assert,
    dyn,
    dynamic,
    empty,
    get_block_binding,
    get_block_bindings,
    get_block_extent,
    get_block_extents,
    import_source,
    let,
    loop_break,
    pdl_sync,
    print,
    symbolic,
    thread_return,
    use_swizzle,
)
from tiledsl.language.random_numbers import rng_init, rng_rand, rng_rand_float
from tiledsl.language.reducers import all_of, alloc_reducer, any_of, finalize_reducer, reducer_init, reducer_update
from tiledsl.language.threads import (
    all_sync,
    any_sync,
    attr,
    ballot,
    ballot_sync,
    comm_reducer,
    evaluate,
    get_lane_idx,
    get_thread_binding,
    get_thread_bindings,
    get_thread_extent,
    get_thread_extents,
    get_warp_group_idx,
    get_warp_idx,
    get_warp_idx_sync,
    shfl_down,
    shfl_sync,
    shfl_up,
    shfl_xor,
    shuffle_elect,
    sync_threads,
    sync_warp,
    syncthreads,
    syncthreads_and,
    syncthreads_count,
    syncthreads_or,
    thread_binding,
    tvm_storage_sync,
    tvm_thread_allreduce,
    tvm_warp_shuffle,
    tvm_warp_shuffle_down,
    tvm_warp_shuffle_up,
    warp_reduce_bitand,
    warp_reduce_bitor,
    warp_reduce_max,
    warp_reduce_min,
    warp_reduce_sum,
)

float64, float32, float16, bfloat16 = (_dtypes.DTYPES[name] for name in ("float64", "float32", "float16", "bfloat16"))
float8_e4m3fn, float8_e5m2 = _dtypes.DTYPES["float8_e4m3fn"], _dtypes.DTYPES["float8_e5m2"]
float8_e4m3fnuz, float8_e5m2fnuz = _dtypes.DTYPES["float8_e4m3fnuz"], _dtypes.DTYPES["float8_e5m2fnuz"]
float4_e2m1fn = _dtypes.FLOAT4
int8, int16, int32, int64 = (_dtypes.DTYPES[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_dtypes.DTYPES[f"uint{bits}"] for bits in (8, 16, 32, 64))
bool, float, int, uint = (_dtypes.canonical(name) for name in ("bool", "float", "int", "uint"))
float8_e4m3, half, double, tfloat32, short, long = (
    _dtypes.canonical(name) for name in ("float8_e4m3", "half", "double", "tfloat32", "short", "long")
)
exp, exp2, exp10, expm1, log, log2, log10, log1p = map(
    _maths.math_function, "exp exp2 exp10 expm1 log log2 log10 log1p".split()
)
sqrt, rsqrt, sin, cos, tan, asin, acos, atan = map(
    _maths.math_function, "sqrt rsqrt sin cos tan asin acos atan".split()
)
sinh, cosh, tanh, asinh, acosh, atanh = map(_maths.math_function, "sinh cosh tanh asinh acosh atanh".split())
erf, sigmoid, atan2, fmod, hypot, copysign, fma = map(
    _maths.math_function, "erf sigmoid atan2 fmod hypot copysign fma".split()
)
floor, ceil, trunc, rint, nearbyint = map(_maths.math_function, "floor ceil trunc rint nearbyint".split())
isnan, isinf, isfinite, popcount, clz = map(_maths.math_function, "isnan isinf isfinite popcount clz".split())
__exp, __exp10, __log, __log2, __log10, __sin, __cos, __tan = exp, exp10, log, log2, log10, sin, cos, tan
HIDDEN = (
    "__exp",
    "__exp10",
    "__log",
    "__log2",
    "__log10",
    "__sin",
    "__cos",
    "__tan",
    "__ffs",
    "__ldg",
)  # beside those of __all__
reduce_and, reduce_or = reduce_bitand, reduce_bitor

__all__ = [
    "And", "Buffer", "Cast", "Else", "Fragment", "FragmentBuffer", "GemmWarpPolicy", "If", "Kernel", "Layout",
    "LocalBuffer", "Macro", "Not", "Or", "Parallel", "Persistent", "Pipelined", "PrimExpr", "PrimFunc", "Ref", "Select",
    "Serial", "SharedBuffer", "StridedTensor", "Symbol", "Tensor", "Then", "Unroll", "Var", "Vectorized", "abs", "acos",
    "acosh", "align_up", "all", "all_of", "all_sync", "alloc_buffer", "alloc_fragment", "alloc_global", "alloc_local",
    "alloc_reducer", "alloc_shared", "alloc_var", "annotate_compile_flags", "annotate_consumer_reg_alloc",
    "annotate_l2_hit_ratio", "annotate_layout", "annotate_min_blocks_per_sm", "annotate_pass_configs",
    "annotate_producer_reg_dealloc", "annotate_restrict_buffers", "annotate_safe_value", "any", "any_of", "any_sync",
    "argmax", "argmin", "asin", "asinh", "associative_scan", "assume", "async_copy", "atan", "atan2", "atanh",
    "atomic_add", "atomic_addx2", "atomic_addx4", "atomic_cas", "atomic_load", "atomic_max", "atomic_min", "atomic_or",
    "atomic_store", "attr", "ballot", "ballot_sync", "bfloat16", "bitwise_and", "bitwise_not", "bitwise_or",
    "bitwise_xor", "bool", "c2d_im2col", "call_extern", "call_pure_extern", "cast", "cdiv", "ceil", "ceildiv", "clamp",
    "clear", "clz", "comm_reducer", "comment", "const", "copy", "copysign", "cos", "cosh", "cummax", "cumsum",
    "device_assert", "disable_warp_group_reg_alloc", "div", "double", "dtype", "dyn", "dynamic", "empty", "erf",
    "evaluate", "exp", "exp10", "exp2", "expm1", "fast_rcp", "fence_proxy_async", "fence_proxy_async_generic", "fill",
    "finalize_reducer", "float", "float16", "float32", "float4_e2m1fn", "float64", "float8_e4m3", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "floor", "floordiv", "floormod", "fma", "fmod", "func_attr",
    "gemm", "get_block_binding", "get_block_bindings", "get_block_extent", "get_block_extents", "get_lane_idx",
    "get_thread_binding",
    "get_thread_bindings", "get_thread_extent", "get_thread_extents", "get_warp_group_idx", "get_warp_idx",
    "get_warp_idx_sync", "grid", "half", "histogram", "hypot", "ieee_add", "ieee_fdiv", "ieee_fmaf", "ieee_frcp",
    "ieee_frsqrt", "ieee_fsqrt", "ieee_mul", "ieee_sub", "if_then_else", "im2col", "import_source",
    "index_to_coordinates", "infinity", "inline", "int", "int16", "int32", "int64", "int8", "is_f8f6f4_family",
    "is_float4", "is_float4_e2m1_unpacked", "is_float4_e2m1fn", "isfinite", "isinf", "isnan", "ldexp", "let", "likely",
    "log", "log10", "log1p", "log2", "long", "loop_break", "macro", "max", "max_value", "min", "min_value", "nearbyint",
    "nextafter", "no_set_max_nreg", "parallel", "pdl_sync", "pdl_trigger", "popcount", "pow", "power", "prim_func",
    "print", "ptx_commit_group", "ptx_fence_barrier_init", "ptx_wait_group", "reduce", "reduce_absmax", "reduce_abssum",
    "reduce_and", "reduce_bitand", "reduce_bitor", "reduce_bitxor", "reduce_max", "reduce_min", "reduce_or",
    "reduce_sum", "reducer_init", "reducer_update", "reinterpret", "reshape", "rint", "rng_init", "rng_rand",
    "rng_rand_float", "round", "rsqrt", "serial", "shfl_down", "shfl_sync", "shfl_up", "shfl_xor", "shift_left",
    "shift_right", "short", "shuffle_elect", "sigmoid", "sin", "sinh", "sort", "sqrt", "symbolic", "sync_threads",
    "sync_warp", "syncthreads", "syncthreads_and", "syncthreads_count", "syncthreads_or", "tan", "tanh", "tfloat32",
    "thread_binding", "thread_return", "topk", "transpose", "trunc", "truncdiv", "truncmod", "tvm_storage_sync",
    "tvm_thread_allreduce", "tvm_warp_shuffle", "tvm_warp_shuffle_down", "tvm_warp_shuffle_up", "type_annotation",
    "uint", "uint16", "uint32", "uint64", "uint8", "unroll", "use_swizzle", "vectorized", "view", "wait_wgmma",
    "warp_reduce_bitand", "warp_reduce_bitor", "warp_reduce_max", "warp_reduce_min", "warp_reduce_sum",
    "warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_fence_operand", "warpgroup_wait", "wgmma_gemm",
]  # fmt: skip
