"""The tile language: `import tiledsl.language as T`. Names and meanings are those of TileLang's surface."""

from __future__ import annotations

import difflib
from typing import Any

from tiledsl.language import dtypes as _dtypes
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
    sync_threads,
    sync_warp,
    syncthreads,
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
    acos,
    acosh,
    align_up,
    all,
    all_of,
    any,
    any_of,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cdiv,
    ceil,
    ceildiv,
    clamp,
    clz,
    copysign,
    cos,
    cosh,
    div,
    erf,
    exp,
    exp2,
    exp10,
    expm1,
    floor,
    floordiv,
    floormod,
    fma,
    fmod,
    hypot,
    if_then_else,
    infinity,
    isfinite,
    isinf,
    isnan,
    likely,
    log,
    log1p,
    log2,
    log10,
    max,
    max_value,
    min,
    min_value,
    nearbyint,
    popcount,
    pow,
    power,
    reinterpret,
    rint,
    round,
    rsqrt,
    shift_left,
    shift_right,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
)
from tiledsl.language.operations import (
    GemmWarpPolicy,
    alloc_buffer,
    alloc_fragment,
    alloc_global,
    alloc_local,
    alloc_shared,
    alloc_var,
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
    Macro,
    PrimFunc,
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
    inline,
    let,
    macro,
    prim_func,
    print,
    symbolic,
    use_swizzle,
)
from tiledsl.language.refused import REFUSED, Refused

float64, float32, float16, bfloat16 = (_dtypes.DTYPES[name] for name in ("float64", "float32", "float16", "bfloat16"))
float8_e4m3fn, float8_e5m2 = _dtypes.DTYPES["float8_e4m3fn"], _dtypes.DTYPES["float8_e5m2"]
int8, int16, int32, int64 = (_dtypes.DTYPES[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (_dtypes.DTYPES[f"uint{bits}"] for bits in (8, 16, 32, 64))
bool, float, int, uint = (_dtypes.canonical(name) for name in ("bool", "float", "int", "uint"))
float8_e4m3, half, double, tfloat32, short, long = (
    _dtypes.canonical(name) for name in ("float8_e4m3", "half", "double", "tfloat32", "short", "long")
)
__exp, __exp10, __log, __log2, __log10, __sin, __cos, __tan = exp, exp10, log, log2, log10, sin, cos, tan
reduce_and, reduce_or = reduce_bitand, reduce_bitor

__all__ = [
    "And", "Buffer", "Cast", "Else", "Fragment", "FragmentBuffer", "GemmWarpPolicy", "If", "Kernel", "Layout",
    "LocalBuffer", "Macro", "Not", "Or", "Parallel", "Persistent", "Pipelined", "PrimExpr", "PrimFunc", "Ref",
    "Select", "Serial", "SharedBuffer", "StridedTensor", "Symbol", "Tensor", "Then", "Unroll", "Var",
    "Vectorized", "abs", "acos", "acosh", "align_up", "all", "all_of", "alloc_buffer", "alloc_fragment",
    "alloc_global", "alloc_local", "alloc_shared", "alloc_var", "annotate_compile_flags",
    "annotate_consumer_reg_alloc", "annotate_l2_hit_ratio", "annotate_layout", "annotate_min_blocks_per_sm",
    "annotate_pass_configs", "annotate_producer_reg_dealloc", "annotate_restrict_buffers",
    "annotate_safe_value", "any", "any_of", "asin", "asinh", "assume", "atan", "atan2", "atanh", "atomic_add",
    "atomic_addx2", "atomic_addx4", "atomic_load", "atomic_max", "atomic_min", "atomic_or", "atomic_store",
    "bfloat16", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bool", "c2d_im2col", "cast", "cdiv",
    "ceil", "ceildiv", "clamp", "clear", "clz", "comment", "const", "copy", "copysign", "cos", "cosh", "cummax",
    "cumsum", "device_assert", "disable_warp_group_reg_alloc", "div", "double", "dtype", "dyn", "dynamic",
    "empty", "erf", "exp", "exp10", "exp2", "expm1", "fill", "float", "float16", "float32", "float64",
    "float8_e4m3", "float8_e4m3fn", "float8_e5m2", "floor", "floordiv", "floormod", "fma", "fmod", "func_attr",
    "gemm", "get_block_binding", "get_block_bindings", "grid", "half", "hypot", "if_then_else", "im2col",
    "import_source", "infinity", "inline", "int", "int16", "int32", "int64", "int8", "isfinite", "isinf",
    "isnan", "let", "likely", "log", "log10", "log1p", "log2", "long", "macro", "max", "max_value", "min",
    "min_value", "nearbyint", "no_set_max_nreg", "parallel", "popcount", "pow", "power", "prim_func", "print",
    "reduce", "reduce_absmax", "reduce_abssum", "reduce_and", "reduce_bitand", "reduce_bitor", "reduce_bitxor",
    "reduce_max", "reduce_min", "reduce_or", "reduce_sum", "reinterpret", "reshape", "rint", "round", "rsqrt",
    "serial", "shift_left", "shift_right", "short", "sigmoid", "sin", "sinh", "sqrt", "symbolic",
    "sync_threads", "sync_warp", "syncthreads", "tan", "tanh", "tfloat32", "transpose", "trunc", "truncdiv",
    "truncmod", "uint", "uint16", "uint32", "uint64", "uint8", "unroll", "use_swizzle", "vectorized", "view",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in REFUSED:
        return Refused(name, REFUSED[name])
    near = difflib.get_close_matches(name, __all__, 1)
    raise AttributeError(
        f"T.{name} is not part of the tile language" + (f"; did you mean T.{near[0]}?" if near else "")
    )


def __dir__() -> list[str]:
    return sorted(__all__)
