"""Functions on values: arithmetic, exponentials, rounding, comparisons. On Python numbers they compute at once."""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

from tiledsl.errors import TileError, user_loc
from tiledsl.ir.types import is_float
from tiledsl.language.buffer import Buffer
from tiledsl.language.dtypes import canonical, of_elements
from tiledsl.language.expression import (
    Expr,
    active,
    binary,
    bitcast,
    call,
    cast,
    describe,
    is_number,
    logical,
    on_host,
    plain,
    select,
    unary,
)
from tiledsl.math_functions import MATH_FUNCTIONS, MathFunction

__all__ = [
    "And",
    "Cast",
    "Not",
    "Or",
    "Select",
    "abs",
    "align_up",
    "all",
    "any",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cdiv",
    "ceildiv",
    "clamp",
    "div",
    "floordiv",
    "floormod",
    "if_then_else",
    "index_to_coordinates",
    "infinity",
    "likely",
    "max",
    "max_value",
    "min",
    "min_value",
    "pow",
    "power",
    "reinterpret",
    "round",
    "shift_left",
    "shift_right",
    "truncdiv",
    "truncmod",
]


def math_function(name: str) -> Callable[..., Any]:
    """The function of `T` for a record of math_functions.py."""
    record = MATH_FUNCTIONS[name]
    host = record.host
    assert host is not None

    def function(*arguments: Any) -> Any:
        numbers = [plain(x) for x in arguments]
        if builtins.all(is_number(x) for x in numbers):
            return on_host(f"T.{name}", host, *numbers)
        return call(name, *numbers)

    function.__name__ = function.__qualname__ = name
    function.__module__ = "tiledsl.language"
    positional = inspect.Parameter.POSITIONAL_ONLY
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, positional) for each in _parameters(record)]
    )
    function.__doc__ = f"{record.meaning or f'{name}(x)'}. {_GIVES.get(record.takes, _FLOATS)}\n{_example(record)}"
    return function


def _parameters(record: MathFunction) -> str:
    """The names of its parameters: a letter each, as `meaning` has them."""
    return {"atan2": "yx", "fma": "abc"}.get(record.name, "xyz"[: record.arity])


def _example(record: MathFunction) -> str:
    """The example of a docstring, with what the function gives of the first numbers for which it is defined."""
    names = "XYZ"[: record.arity]
    host = record.host
    assert host is not None
    for pair in _PAIRS[record.takes]:
        given = [pair, (2.0, 3.0), (0.5, 1.0)][: record.arity]
        try:
            results = [_shown(host(*numbers), record.takes) for numbers in zip(*given)]
        except ValueError:
            continue
        before = [f"# {name} = [{', '.join(map(_literal, numbers))}]" for name, numbers in zip(names, given)]
        call = f"T.{record.name}({', '.join(f'{name}[i]' for name in names)})"
        lines = [
            *before,
            "for i in T.Parallel(2):",
            f"    R[i] = {call}",
            f"# R = [{', '.join(map(_literal, results))}]",
        ]
        break
    return "\n".join(["", "Example:", *(f"    {line}" for line in lines)])


def _shown(result: Any, takes: str) -> Any:
    return float(f"{result:.7g}") if takes in ("floats", "rounding") else result


def _literal(number: Any) -> str:
    return str(number) if math.isfinite(number) else f"float('{number}')"


# Numbers for examples, by what a function takes: the first pair that it is defined for.
_PAIRS: dict[str, list[tuple[Any, Any]]] = {
    "floats": [(0.5, -0.25), (0.5, 0.25), (1.5, 2.0)], "rounding": [(1.5, -2.5)], "test": [(1.0, math.nan), (1.0, 2.0)],
    "bits": [(5, 8)],
}  # fmt: skip


_FLOATS = (
    "Takes scalars or numbers. The result has their common float type; integers and bool become float32.\n\n"
    "Raises TileError for what is no value, and for Python numbers of which it is not defined."
)
_TESTS = "Takes a scalar or number of any type, and gives a bool. Raises TileError for what is no value."
_COUNTS = "Takes an integer, a scalar or number, and gives one of its type. Raises TileError for floats and bool."
_GIVES = {"test": _TESTS, "bits": _COUNTS}
_ROUND = {"ties-to-even": math_function("rint"), "ties-away-from-zero": math_function("round")}


def round(x: Any, rounding_mode: str = "ties-to-even") -> Any:
    """The integer nearest to `x`, as a float; halves go to the even one, or with "ties-away-from-zero" away from 0.

    `x` is a scalar of any type; integers become float32. Raises TileError for another rounding_mode.

    Example:
        # X = [0.5, 1.5]
        for i in T.Parallel(2):
            Y[i] = T.round(X[i])
        # Y = [0.0, 2.0]
    """
    if rounding_mode not in _ROUND:
        raise TileError(f"T.round: rounding_mode is {describe(rounding_mode)}; there are {', '.join(_ROUND)}")
    return _ROUND[rounding_mode](x)


def power(x: Any, y: Any) -> Any:
    """x ** y, of scalars or numbers. `y` from 1 to 8 multiplies, in x's type; else floats, or float32 of integers.

    Raises TileError for operands that are no values, and for numbers whose power is not real or too large.

    Example:
        # X = [2.0, 3.0]
        for i in T.Parallel(2):
            Y[i] = T.pow(X[i], 3)
        # Y = [8.0, 27.0]
    """
    return binary("pow", x, y)


pow = power


def _fold(kind: str, values: tuple[Any, ...]) -> Any:
    if len(values) == 1 and isinstance(values[0], (tuple, list)):
        values = tuple(values[0])
    if not values:
        raise TileError(f"T.{kind} needs at least one value")
    result = values[0]
    for value in values[1:]:
        result = binary(kind, result, value)
    return result


def max(*values: Any) -> Any:
    """The greatest of scalars or numbers, in their common type; a NaN is dropped. A list or tuple counts as its values.

    Raises TileError without values, and for operands that are none.

    Example:
        # X = [-3, 2]
        for i in T.Parallel(2):
            Y[i] = T.max(X[i], 0)
        # Y = [0, 2]
    """
    return _fold("max", values)


def min(*values: Any) -> Any:
    """The least of scalars or numbers, in their common type; a NaN is dropped. A list or tuple counts as its values.

    Raises TileError without values, and for operands that are none.

    Example:
        # X = [-3, 2]
        for i in T.Parallel(2):
            Y[i] = T.min(X[i], 0)
        # Y = [-3, 0]
    """
    return _fold("min", values)


def abs(x: Any) -> Any:
    """The absolute value of `x`, a scalar or number of any type, in its type. Raises TileError for anything else.

    Example:
        # X = [-3, 2]
        for i in T.Parallel(2):
            Y[i] = T.abs(X[i])
        # Y = [3, 2]
    """
    return unary("abs", x)


def clamp(x: Any, min_val: Any, max_val: Any) -> Any:
    """`x` limited to `min_val` .. `max_val`, scalars or numbers, in their common type.

    Raises TileError for operands that are no values.

    Example:
        # X = [-3.0, 0.5, 2.0]
        for i in T.Parallel(3):
            Y[i] = T.clamp(X[i], 0, 1)
        # Y = [0.0, 0.5, 1.0]
    """
    return min(max(x, min_val), max_val)


def ceildiv(a: Any, b: Any) -> Any:
    """The least integer not below a / b, of integers: Python's, or scalars and dimensions.

    Raises TileError for other operands, and for a `b` of 0.

    Example:
        assert T.ceildiv(7, 2) == 4
    """
    if type(a) is type(b) is int and b:  # as nearly always
        return -(-a // b)
    a, b = plain(a), plain(b)
    for x in (a, b):
        if x is None or not (is_number(x) or isinstance(x, Expr)):
            raise TileError(f"T.ceildiv needs integers, not {describe(x)}", None if active.get() else user_loc())
    if is_number(b) and b == 0:
        raise TileError("T.ceildiv: division by 0", None if active.get() else user_loc())
    if is_number(a) and is_number(b):
        return -(-a // b)
    return binary("floordiv", binary("sub", binary("add", a, b), 1), b)


cdiv = ceildiv


def align_up(a: Any, b: Any) -> Any:
    """The least multiple of `b` that is not below `a`, of integers as in T.ceildiv, and with its TileError.

    Example:
        assert T.align_up(7, 4) == 8
    """
    return binary("mul", ceildiv(a, b), b)


def index_to_coordinates(index: Any, shape: Any) -> list[Any]:
    """The position of flat `index` in a row-major tensor of `shape`: a list of integers, one for each dimension.

    They are scalars or numbers, as `index` and the dimensions are. Raises TileError for operands that are no integers.

    Example:
        assert T.index_to_coordinates(7, (2, 3, 2)) == [1, 0, 1]
    """
    if not isinstance(shape, (tuple, list)):
        raise TileError(f"T.index_to_coordinates: shape is {describe(shape)}, not a list of dimensions")
    coordinates: list[Any] = []
    for extent in reversed(shape):
        coordinates.insert(0, floormod(index, extent))
        index = floordiv(index, extent)
    return coordinates


def floordiv(a: Any, b: Any) -> Any:
    """`a` / `b` rounded down, of scalars or numbers: an integer of integers, a float of floats.

    Raises TileError for a division by 0 that is known, and for operands that are no values.

    Example:
        # X = [-7, 7]
        for i in T.Parallel(2):
            Y[i] = T.floordiv(X[i], 2)
        # Y = [-4, 3]
    """
    return binary("floordiv", a, b)


def floormod(a: Any, b: Any) -> Any:
    """a - floordiv(a, b) * b of integers (scalars or numbers); of scalars that are floats fmod, with the sign of `a`.

    Raises TileError for a division by 0 that is known, and for operands that are no values.

    Example:
        # X = [-7, 7]
        for i in T.Parallel(2):
            Y[i] = T.floormod(X[i], 4)
        # Y = [1, 3]
    """
    return binary("floormod", a, b)


def truncdiv(a: Any, b: Any) -> Any:
    """`a` / `b` of integers (scalars or numbers), rounded towards zero.

    Raises TileError for scalars that are floats, for a division by 0 that is known, and for what is no value.

    Example:
        # X = [-7, 7]
        for i in T.Parallel(2):
            Y[i] = T.truncdiv(X[i], 2)
        # Y = [-3, 3]
    """
    return binary("truncdiv", a, b)


def truncmod(a: Any, b: Any) -> Any:
    """a - truncdiv(a, b) * b of integers (scalars or numbers); its sign is that of `a`.

    Raises TileError for scalars that are floats, for a division by 0 that is known, and for what is no value.

    Example:
        # X = [-7, 7]
        for i in T.Parallel(2):
            Y[i] = T.truncmod(X[i], 4)
        # Y = [-3, 3]
    """
    return binary("truncmod", a, b)


def div(a: Any, b: Any) -> Any:
    """`a` / `b` of scalars or numbers: a float if one is, on integers rounded towards zero.

    Raises TileError for integers divided by a 0 that is known, and for operands that are no values.

    Example:
        # X = [-7, 7]
        for i in T.Parallel(2):
            Y[i] = T.div(X[i], 2)
        # Y = [-3, 3]
    """
    floats = [x for x in (a, b) if isinstance(plain(x), float) or (isinstance(x, Expr) and is_float(x.dtype))]
    return binary("div" if floats else "truncdiv", a, b)


def _operator(name: str, kind: str, sign: str, results: list[int]) -> Callable[[Any, Any], Any]:
    def function(a: Any, b: Any) -> Any:
        return binary(kind, a, b)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""`a` {sign} `b` of integers (scalars or numbers), in their common type.

    Raises TileError for floats and what is no value.

    Example:
        # X = [12, 5]
        for i in T.Parallel(2):
            Y[i] = T.{name}(X[i], 3)
        # Y = {results}
    """
    return function


shift_left = _operator("shift_left", "shl", "<<", [96, 40])
shift_right = _operator("shift_right", "shr", ">>", [1, 0])
bitwise_and = _operator("bitwise_and", "and", "&", [0, 1])
bitwise_or = _operator("bitwise_or", "or", "|", [15, 7])
bitwise_xor = _operator("bitwise_xor", "xor", "^", [15, 6])


def bitwise_not(x: Any) -> Any:
    """~x, of an integer (a scalar or number); of a bool its opposite. Raises TileError for floats.

    Example:
        # X = [0, 5]
        for i in T.Parallel(2):
            Y[i] = T.bitwise_not(X[i])
        # Y = [-1, -6]
    """
    return unary("not", x)


def likely(condition: Any, *_: Any) -> Any:
    """`condition`, a scalar or Python's bool, as it is; that it mostly holds is a hint without effect.

    Example:
        # X = [-3, 2]
        for i in T.Parallel(2):
            Y[i] = T.if_then_else(T.likely(X[i] > 0), X[i], 0)
        # Y = [0, 2]
    """
    return condition


def if_then_else(condition: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true if condition else on_false`. A load that is out of bounds in the side not taken is harmless.

    `condition` is a scalar; the two values, scalars or numbers, are converted to their common type. A Python condition
    chooses at once, between values of any kind. Raises TileError where a scalar chooses between what are no values.

    Example:
        # X = [-3, 2]
        for i in T.Parallel(2):
            Y[i] = T.if_then_else(X[i] > 0, X[i], 0)
        # Y = [0, 2]
    """
    return select(condition, on_true, on_false)


Select = if_then_else


def And(*values: Any) -> Any:
    """Logical and of scalars (bool, or `!= 0`) or Python values; of none but Python values, Python's `and`.

    Example:
        # X = [-1, 2]
        for i in T.Parallel(2):
            Y[i] = T.And(X[i] > 0, X[i] < 3)
        # Y = [False, True]
    """
    return logical("and", *values)


def Or(*values: Any) -> Any:
    """Logical or of scalars (bool, or `!= 0`) or Python values; of none but Python values, Python's `or`.

    Example:
        # X = [-1, 2]
        for i in T.Parallel(2):
            Y[i] = T.Or(X[i] < 0, X[i] > 3)
        # Y = [True, False]
    """
    return logical("or", *values)


def Not(value: Any) -> Any:
    """Logical not of `value`: a scalar (bool, or `!= 0`) or a Python value.

    Example:
        # X = [-1, 2]
        for i in T.Parallel(2):
            Y[i] = T.Not(X[i] > 0)
        # Y = [True, False]
    """
    return logical("not", value)


def all(*values: Any) -> Any:
    """Whether all values (scalars, bool or `!= 0`) are true; of one iterable, its values, as Python's, which a star
    import hides.

    Example:
        # X = [-1, 2]
        for i in T.Parallel(2):
            Y[i] = T.all(X[i] > 0, X[i] < 3)
        # Y = [False, True]
    """
    return logical("and", True, *_conditions(values))


def any(*values: Any) -> Any:
    """Whether any value (a scalar, bool or `!= 0`) is true; of one iterable, of its values, as Python's, which a star
    import hides.

    Example:
        # X = [-1, 2]
        for i in T.Parallel(2):
            Y[i] = T.any(X[i] < 0, X[i] > 3)
        # Y = [True, False]
    """
    return logical("or", False, *_conditions(values))


def _conditions(values: tuple[Any, ...]) -> Iterable[Any]:
    is_many = len(values) == 1 and isinstance(values[0], Iterable) and not isinstance(values[0], (Expr, Buffer))
    return values[0] if is_many else values


def infinity(dtype: Any = "float32") -> float:
    """Positive infinity of a float type. Raises TileError for integers, and for what is no element type (`dtype`).

    Example:
        assert T.infinity("float16") == float("inf")
    """
    if not is_float(canonical(dtype)):
        raise TileError(f"T.infinity: {dtype} has no infinity; use T.max_value({str(dtype)!r})")
    return math.inf


def max_value(dtype: Any) -> Any:
    """The greatest finite value of an element type `dtype`, a Python number. Raises TileError for what is none.

    Example:
        assert T.max_value("float16") == 65504 and T.max_value("int8") == 127
    """
    info = of_elements(dtype).info
    return info.high if info.kind == "float" else int(info.high)


def min_value(dtype: Any) -> Any:
    """The least finite value of an element type `dtype`, a Python number. Raises TileError for what is none.

    Example:
        assert T.min_value("float16") == -65504 and T.min_value("int8") == -128
    """
    info = of_elements(dtype).info
    return info.low if info.kind == "float" else int(info.low)


def Cast(dtype: Any, value: Any) -> Any:
    """`value` converted, a scalar or number; the `dtype` comes first. T.cast takes them the other way round.

    Raises TileError as T.cast does.

    Example:
        # X = [1.75, -2.5]
        for i in T.Parallel(2):
            Y[i] = T.Cast("int32", X[i])
        # Y = [1, -2]
    """
    return cast(value, dtype)


def reinterpret(value: Any, dtype: Any) -> Any:
    """The bits of `value`, a scalar, as another element type of that width. The two may come in either order.

    With the dtype "handle" it is None, a pointer to nothing. Raises TileError for a `dtype` of another width, and for
    bool.

    Example:
        # X = [1.0, -2.0]
        for i in T.Parallel(2):
            Y[i] = T.reinterpret(X[i], "int32")
        # Y = [1065353216, -1073741824]
    """
    if "handle" in (value, dtype) if isinstance(value, str) else dtype == "handle":
        return None
    if not isinstance(value, Expr) and not is_number(value):
        value, dtype = dtype, value
    return bitcast(value, dtype)
