"""The names of the tile language, from where each is defined."""

from __future__ import annotations

import tiledsl.language.dtypes as _dtypes
import tiledsl.language.maths as _maths
from tiledsl.frontend.program import Macro, PrimFunc, inline, macro, prim_func
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
    atomic_load,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_store,
)
from tiledsl.language.buffer import Buffer, FragmentBuffer, LocalBuffer, SharedBuffer, StridedTensor, Tensor
from tiledsl.language.dtypes import DType as dtype
from tiledsl.language.expression import Expr as PrimExpr
from tiledsl.language.expression import Symbol, cast
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
    func_attr,
    no_set_max_nreg,
    pdl_trigger,
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
    import_source,
    let,
    pdl_sync,
    print,
    symbolic,
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
HIDDEN = ("__exp", "__exp10", "__log", "__log2", "__log10", "__sin", "__cos", "__tan")  # beside those of __all__
reduce_and, reduce_or = reduce_bitand, reduce_bitor

__all__ = [
    "And", "Buffer", "Cast", "Else", "Fragment", "FragmentBuffer", "GemmWarpPolicy", "If", "Kernel", "Layout",
    "LocalBuffer", "Macro", "Not", "Or", "Parallel", "Persistent", "Pipelined", "PrimExpr", "PrimFunc", "Ref",
    "Select", "Serial", "SharedBuffer", "StridedTensor", "Symbol", "Tensor", "Then", "Unroll", "Var", "Vectorized",
    "abs", "acos", "acosh", "align_up", "all", "all_of", "alloc_buffer", "alloc_fragment", "alloc_global",
    "alloc_local", "alloc_reducer", "alloc_shared", "alloc_var", "annotate_compile_flags",
    "annotate_consumer_reg_alloc", "annotate_l2_hit_ratio", "annotate_layout", "annotate_min_blocks_per_sm",
    "annotate_pass_configs", "annotate_producer_reg_dealloc", "annotate_restrict_buffers", "annotate_safe_value", "any",
    "any_of", "asin", "asinh", "assume", "async_copy", "atan", "atan2", "atanh", "atomic_add", "atomic_addx2",
    "atomic_addx4", "atomic_load", "atomic_max", "atomic_min", "atomic_or", "atomic_store", "bfloat16", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "bool", "c2d_im2col", "cast", "cdiv", "ceil", "ceildiv", "clamp",
    "clear", "clz", "comment", "const", "copy", "copysign", "cos", "cosh", "cummax", "cumsum", "device_assert",
    "disable_warp_group_reg_alloc", "div", "double", "dtype", "dyn", "dynamic", "empty", "erf", "exp", "exp10", "exp2",
    "expm1", "fill", "finalize_reducer", "float", "float16", "float32", "float64", "float8_e4m3", "float8_e4m3fn",
    "float8_e5m2", "floor", "floordiv", "floormod", "fma", "fmod", "func_attr", "gemm", "get_block_binding",
    "get_block_bindings", "grid", "half", "hypot", "if_then_else", "im2col", "import_source", "infinity", "inline",
    "int", "int16", "int32", "int64", "int8", "isfinite", "isinf", "isnan", "let", "likely", "log", "log10", "log1p",
    "log2", "long", "macro", "max", "max_value", "min", "min_value", "nearbyint", "no_set_max_nreg", "parallel",
    "pdl_sync", "pdl_trigger", "popcount", "pow", "power", "prim_func", "print", "ptx_commit_group", "ptx_wait_group",
    "reduce", "reduce_absmax", "reduce_abssum", "reduce_and", "reduce_bitand", "reduce_bitor", "reduce_bitxor",
    "reduce_max", "reduce_min", "reduce_or", "reduce_sum", "reducer_init", "reducer_update", "reinterpret", "reshape",
    "rint", "rng_init", "rng_rand", "rng_rand_float",
    "round", "rsqrt", "serial", "shift_left", "shift_right", "short", "sigmoid", "sin", "sinh", "sqrt",
    "symbolic", "sync_threads", "sync_warp", "syncthreads", "tan", "tanh", "tfloat32", "transpose", "trunc", "truncdiv",
    "truncmod", "uint", "uint16", "uint32", "uint64", "uint8", "unroll", "use_swizzle", "vectorized", "view",
    "all_sync", "any_sync", "attr", "ballot", "ballot_sync", "comm_reducer", "evaluate", "get_lane_idx",
    "get_thread_binding", "get_thread_bindings", "tvm_thread_allreduce",
    "get_thread_extent", "get_thread_extents", "get_warp_group_idx", "get_warp_idx", "get_warp_idx_sync", "shfl_down",
    "shfl_sync", "shfl_up", "shfl_xor", "shuffle_elect", "syncthreads_and", "syncthreads_count", "syncthreads_or",
    "thread_binding", "tvm_warp_shuffle", "tvm_warp_shuffle_down", "tvm_warp_shuffle_up", "warp_reduce_bitand",
    "warp_reduce_bitor", "warp_reduce_max", "warp_reduce_min", "warp_reduce_sum",
    "wait_wgmma", "warpgroup_arrive", "warpgroup_commit_batch", "warpgroup_fence_operand", "warpgroup_wait",
    "wgmma_gemm",
]  # fmt: skip
