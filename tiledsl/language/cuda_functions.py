"""Functions by the names of CUDA C: arithmetic and conversions with a rounding of their own, and T.call_extern.

A directed conversion is the nearest value, stepped back by one in its bits where it went too far: the bits of floats of
one sign are in the order of their magnitudes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from tiledsl.dialects import arith
from tiledsl.directed_rounding import MODES
from tiledsl.errors import TileError
from tiledsl.ir.types import ELEMENTS, is_float
from tiledsl.language import maths
from tiledsl.language.dtypes import canonical, is_float4_e2m1fn
from tiledsl.language.expression import (
    Scalar,
    Symbolic,
    active,
    as_value,
    binary,
    call,
    context,
    describe,
    is_number,
    plain,
)
from tiledsl.language.expression import cast as nearest
from tiledsl.language.float4 import rounded
from tiledsl.language.votes import sync_threads, sync_warp
from tiledsl.legality import permitted
from tiledsl.math_functions import MATH_FUNCTIONS, names

__all__ = [
    "call_extern", "call_pure_extern", "cast", "fast_rcp", "ieee_add", "ieee_fdiv", "ieee_fmaf", "ieee_frcp",
    "ieee_frsqrt", "ieee_fsqrt", "ieee_mul", "ieee_sub", "ldexp", "nextafter",
]  # fmt: skip

_MODES = {"rp": "ru", "rm": "rd", **{mode: mode for mode in MODES}}  # PTX and CUDA C name them differently


def cast(x: Any, dtype: Any, round: str | None = None, sat: bool = True, rbits: Any = None) -> Any:
    """`x`, a scalar or number, converted to `dtype`: rounded to the nearest, ties to even; float8 saturates.

    `round` is "rn", "rz" (towards 0), "ru" or "rp" (upwards), "rd" or "rm" (downwards); outside of programs, numbers
    are converted as Python does; float4_e2m1fn makes a float16 that such an element is. Raises TileError for random
    rounding ("rs", `rbits`), for a directed one of 64-bit integers and to float4_e2m1fn, for float8 that does not
    saturate (`sat`), and for what is no element type.

    Example:
        # X = [1.25, -1.25]
        for i in T.Parallel(2):
            Y[i] = T.cast(X[i], "int32", round="ru")
        # Y = [2, -1]
    """
    mode, x = _MODES.get(round or "rn"), plain(x)
    if mode is None or rbits is not None:
        raise TileError(f"T.cast: round={round!r}: there are {', '.join(_MODES)}, and no random bits")
    if mode == "rn" and is_float4_e2m1fn(dtype):
        return rounded(x)
    if mode == "rn" or isinstance(x, Symbolic) or (is_number(x) and active.get() is None):
        return nearest(x, dtype, sat)
    dtype, value = canonical(dtype), Scalar(as_value(x, "float64" if isinstance(x, float) else None))
    if not is_float(value.dtype):
        if not is_float(dtype):
            return nearest(value, dtype)
        if ELEMENTS[value.dtype].bits > 32:
            raise TileError(f"T.cast: round={round!r} of {value.dtype}: its integers are rounded to the nearest alone")
        value = nearest(value, "float64")  # which holds them
    if not is_float(dtype):
        whole = {"rz": "trunc", "ru": "ceil", "rd": "floor"}[mode]
        return nearest(call(whole, value), dtype, sat)
    return _directed(value, dtype, mode, sat) if dtype.bits < value.dtype.bits else nearest(value, dtype, sat)


def _directed(x: Any, dtype: Any, mode: str, sat: bool) -> Any:
    near = nearest(x, dtype, sat)
    back, bits = nearest(near, x.dtype), maths.reinterpret(near, f"uint{dtype.bits}")
    inwards, outwards = (nearest(bits + step, bits.dtype) for step in (-1, 1))
    if mode == "rz":
        return maths.if_then_else(maths.abs(back) > maths.abs(x), maths.reinterpret(inwards, dtype), near)
    negative, too_far = bits >> (dtype.bits - 1) != 0, back < x if mode == "ru" else back > x
    if dtype.startswith("float8"):  # which saturates: there is no way further out
        too_far = maths.And(too_far, maths.Or(maths.abs(back) != dtype.info.high, negative == (mode == "ru")))
    steps = (inwards, outwards) if mode == "ru" else (outwards, inwards)
    return maths.if_then_else(
        too_far, maths.reinterpret(maths.if_then_else(negative, *steps), dtype), near
    )  # of a NaN no comparison holds


def _mode(name: str, rounding_mode: Any) -> str:
    if rounding_mode not in MODES:
        known = ", ".join(f"{mode!r} ({text})" for mode, text in MODES.items())
        raise TileError(f"T.{name}: rounding_mode is {describe(rounding_mode)}; there are {known}")
    return str(rounding_mode)


def _rounded(name: str, kind: str, operands: tuple[Any, ...], rounding_mode: Any) -> Any:
    mode = _mode(name, rounding_mode)
    function = kind if (kind, mode) in (("sqrt", "rn"), ("fma", "rn")) else f"{kind}_{mode}"
    return _function(function, *operands)


_TAKES = """\n
    Operands are scalars of float32 or float64, or numbers; the result has their common type. `rounding_mode` is "rn"
    (to the nearest), "rz" (towards 0), "ru" (upwards) or "rd" (downwards). It is for NVIDIA's GPUs, where subnormal
    numbers of float32 become 0, and is never fused with other operations. Raises TileError for other types and modes.
    """


def ieee_add(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x` + `y`, rounded by the mode.

    Example:
        # X = [1.0, 2.0]
        for i in T.Parallel(2):
            Y[i] = T.ieee_add(X[i], 1e-10, "ru")
        # Y = [1.0000001, 2.0000002]
    """
    return _rounded("ieee_add", "add", (x, y), rounding_mode)


def ieee_sub(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x` - `y`, rounded by the mode.

    Example:
        # X = [1.5, 2.0]
        for i in T.Parallel(2):
            Y[i] = T.ieee_sub(X[i], 0.5, "rz")
        # Y = [1.0, 1.5]
    """
    return _rounded("ieee_sub", "sub", (x, y), rounding_mode)


def ieee_mul(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x` * `y`, rounded by the mode.

    Example:
        # X = [1.5, 2.0]
        for i in T.Parallel(2):
            Y[i] = T.ieee_mul(X[i], 0.5, "rd")
        # Y = [0.75, 1.0]
    """
    return _rounded("ieee_mul", "mul", (x, y), rounding_mode)


def ieee_fdiv(x: Any, y: Any, rounding_mode: str = "rn") -> Any:
    """`x` / `y`, rounded by the mode.

    Example:
        # X = [1.0, 2.0]
        for i in T.Parallel(2):
            Y[i] = T.ieee_fdiv(X[i], 4.0, "rn")
        # Y = [0.25, 0.5]
    """
    return _rounded("ieee_fdiv", "div", (x, y), rounding_mode)


def ieee_fmaf(x: Any, y: Any, z: Any, rounding_mode: str = "rn") -> Any:
    """`x` * `y` + `z`, rounded once, by the mode.

    Example:
        # X = [1.0, 2.0]
        for i in T.Parallel(2):
            Y[i] = T.ieee_fmaf(X[i], 2.0, 1.0, "rn")
        # Y = [3.0, 5.0]
    """
    return _rounded("ieee_fmaf", "fma", (x, y, z), rounding_mode)


def ieee_frcp(x: Any, rounding_mode: str = "rn") -> Any:
    """1 / `x`, rounded by the mode.

    Example:
        # X = [2.0, 4.0]
        for i in T.Parallel(2):
            Y[i] = T.ieee_frcp(X[i], "rn")
        # Y = [0.5, 0.25]
    """
    return _rounded("ieee_frcp", "rcp", (x,), rounding_mode)


def ieee_fsqrt(x: Any, rounding_mode: str = "rn") -> Any:
    """The square root of `x`, rounded by the mode.

    Example:
        # X = [4.0, 2.25]
        for i in T.Parallel(2):
            Y[i] = T.ieee_fsqrt(X[i], "rn")
        # Y = [2.0, 1.5]
    """
    return _rounded("ieee_fsqrt", "sqrt", (x,), rounding_mode)


for _each in (ieee_add, ieee_sub, ieee_mul, ieee_fdiv, ieee_fmaf, ieee_frcp, ieee_fsqrt):
    assert _each.__doc__ is not None
    _first, _example = _each.__doc__.split("\n\n", 1)
    _each.__doc__ = f"{_first}{_TAKES}\n{_example}"


def ieee_frsqrt(x: Any) -> Any:
    """1 / sqrt(`x`) of a scalar of float32, within two roundings of float64. Raises TileError for other types.

    Example:
        # X = [4.0, 0.25]
        for i in T.Parallel(2):
            Y[i] = T.ieee_frsqrt(X[i])
        # Y = [0.5, 2.0]
    """
    if str(getattr(plain(x), "dtype", "float32")) != "float32":
        raise TileError(f"T.ieee_frsqrt is for float32, not {describe(x)}")
    return nearest(call("div_rn", 1.0, call("sqrt", nearest(Scalar(as_value(x, "float32")), "float64"))), "float32")


def fast_rcp(x: Any) -> Any:
    """1 / `x`, of a scalar or number, in x's float type or float32. Raises TileError for what is no value.

    Example:
        # X = [2.0, 4.0]
        for i in T.Parallel(2):
            Y[i] = T.fast_rcp(X[i])
        # Y = [0.5, 0.25]
    """
    return binary("div", 1.0, x)


def ldg(value: Any, index: Any = None) -> Any:
    """An element that is read as any other: of `value`, an element or a buffer with the integer `index`."""
    return plain(value if index is None else value[index])


def ffs(x: Any) -> Any:
    """The place of the first bit that is 1, from 1; 0 if there is none. `x` is an integer scalar, as is the result.

    Raises TileError for other types.
    """
    x = Scalar(as_value(x))
    return maths.if_then_else(x == 0, 0, call("popcount", x ^ (x - 1)))


def ldexp(x: Any, n: Any) -> Any:
    """`x` * 2 ** `n`, of a scalar of float32 or float64 and an integer. Raises TileError for other types.

    Example:
        # X = [1.0, 1.5]
        for i in T.Parallel(2):
            Y[i] = T.ldexp(X[i], 3)
        # Y = [8.0, 12.0]
    """
    value, power = Scalar(as_value(x)), as_value(n, "int32")
    permitted("T.ldexp", "ldexp", str(value.dtype))
    return Scalar(context("T.ldexp").builder.insert(arith.MathOp([value.value(), power], function="ldexp")).result)


def nextafter(x: Any, y: Any) -> Any:
    """The float next to `x` on the way to `y`: scalars of float32 or float64. Raises TileError for other types.

    Example:
        # X = [1.0, 2.0]
        for i in T.Parallel(2):
            Y[i] = T.nextafter(X[i], 2.0)
        # Y = nextafter(X, tensor(2.0))
    """
    return call("nextafter", x, y)


# T.call_extern


def _function(name: str, *operands: Any) -> Any:
    if len(operands) != MATH_FUNCTIONS[name].arity:
        raise TypeError
    return call(name, *operands)


_TYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "int": "int32",
    "uint": "uint32", "ll": "int64", "longlong": "int64", "ull": "uint64", "short": "int16", "ushort": "uint16",
    "char": "int8", "schar": "int8", "uchar": "uint8",
}  # fmt: skip
_CONVERSION = re.compile(rf"__({'|'.join(_TYPES)})2({'|'.join(_TYPES)})(?:_(r[nzud]))?")
_BITS = re.compile(rf"__({'|'.join(_TYPES)})_as_({'|'.join(_TYPES)})")
_ARITHMETIC = re.compile(r"__([fd])(add|sub|mul|div|rcp|sqrt)_(r[nzud])|__fma(f?)_(r[nzud])")
_ROOTS = [name for name in (*names("floats", "rounding", "test"), "nextafter") if name != "sigmoid"]
_BY_NAME: dict[str, Callable[..., Any]] = {
    **{name: partial(_function, root) for root in _ROOTS for name in (root, f"{root}f", f"__{root}f", f"h{root}")},
    **dict.fromkeys(("fabs", "fabsf", "abs", "__habs", "llabs"), maths.abs),
    **dict.fromkeys(("fmax", "fmaxf", "max", "umax", "llmax", "__hmax"), maths.max),
    **dict.fromkeys(("fmin", "fminf", "min", "umin", "llmin", "__hmin"), maths.min),
    **dict.fromkeys(("__popc", "__popcll"), partial(_function, "popcount")),
    **dict.fromkeys(("__clz", "__clzll"), partial(_function, "clz")),
    **dict.fromkeys(("__fdividef", "__hdiv"), partial(binary, "div")),
    "__hadd": partial(binary, "add"), "__hsub": partial(binary, "sub"),
    "__hmul": partial(binary, "mul"), "__hfma": partial(_function, "fma"),
    "__hneg": lambda x: -plain(x), "__frsqrt_rn": ieee_frsqrt, "__saturatef": lambda x: maths.clamp(x, 0.0, 1.0),
    "__ldg": ldg, "__ffs": ffs, "__ffsll": ffs, "ldexp": ldexp, "ldexpf": ldexp,
    "__syncthreads": sync_threads, "__syncwarp": sync_warp,
}  # fmt: skip


def call_extern(dtype: Any, function: Any = None, *operands: Any) -> Any:
    """A function of CUDA C by its name, where the tile language has it: `T.call_extern("float32", "expf", x)`.

    These are the mathematical functions ("sinf", "__expf"), arithmetic with a rounding ("__fadd_rz"), conversions
    ("__float2half_rz") and reinterpretations of bits ("__float_as_int"); integers are not saturated. `function` is a
    string, the operands are scalars or numbers, and the result is converted to `dtype`. Raises TileError for any other
    function.

    Example:
        # X = [-1.5, 2.0]
        for i in T.Parallel(2):
            Y[i] = T.call_extern("float32", "fabsf", X[i])
        # Y = [1.5, 2.0]
    """
    if not isinstance(function, str):  # as in T.call_extern("__syncthreads"), of no type
        dtype, function, operands = "", dtype, () if function is None else (function, *operands)
    context("T.call_extern")
    made = _called(str(function), operands)
    if made is None or str(dtype) in ("", "handle", "void"):
        return made
    return nearest(made, dtype)


def _called(name: str, operands: tuple[Any, ...]) -> Any:
    try:
        if name in _BY_NAME:
            return _BY_NAME[name](*operands)
        if match := _CONVERSION.fullmatch(name):
            (operand,), to = operands, _TYPES[match[2]]
            default = "rz" if not is_float(to) else "rn"
            return _converted(nearest(Scalar(as_value(operand)), _TYPES[match[1]]), to, match[3] or default)
        if match := _BITS.fullmatch(name):
            (operand,) = operands
            return maths.reinterpret(nearest(operand, _TYPES[match[1]]), _TYPES[match[2]])
        if match := _ARITHMETIC.fullmatch(name):
            dtype = "float32" if match[1] == "f" or match[4] == "f" else "float64"
            typed = tuple(nearest(Scalar(as_value(each)), dtype) for each in operands)
            return _rounded("call_extern", match[2] or "fma", typed, match[3] or match[5])
    except (TypeError, ValueError):  # not so many operands
        raise TileError(f"T.call_extern: {name} is not a function of {len(operands)} operands") from None
    near = difflib.get_close_matches(name, _BY_NAME, 1)
    raise TileError(
        f"T.call_extern: {name!r} is C code, which has no Triton form; write the arithmetic in the tile language"
        + (f". Did you mean {near[0]!r}?" if near else "")
    )


def _converted(x: Any, to: str, mode: str) -> Any:
    if is_float(x.dtype) and not is_float(to):
        return nearest(call("rint", x), to) if mode == "rn" else cast(x, to, mode)
    return nearest(x, to) if mode == "rn" else cast(x, to, mode)


call_pure_extern = call_extern
