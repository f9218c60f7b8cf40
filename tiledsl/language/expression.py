"""Expressions of the tile language: Python objects that stand for IR values, with operators that emit operations.

A Scalar holds a value. A Symbol or Symbolic is arithmetic over dynamic dimensions, written where no program is being
built; it becomes values inside one. A Reference is a place in a buffer; used as a number it is loaded.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from tiledsl.dialects import arith
from tiledsl.errors import TileError, brief, user_loc
from tiledsl.ir.core import OPERATIONS, Value
from tiledsl.ir.types import ELEMENTS, ScalarType, is_float
from tiledsl.language.dtypes import DTYPES, DType, canonical
from tiledsl.legality import FLOAT8, permitted, verdict
from tiledsl.location import Loc

if TYPE_CHECKING:
    from tiledsl.language.context import Context

active: ContextVar[Context | None] = ContextVar("tiledsl_active", default=None)


def context(what: str = "this") -> Context:
    """The program being built. Raises TileError outside of one."""
    found = active.get()
    if found is None:
        message = f"{what} is only possible inside a tile program (a @T.prim_func, @T.macro or eager @tiledsl.jit)"
        raise TileError(message, user_loc())
    return found


def _operators(kind: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`self kind other`, and `other kind self`."""
    return lambda self, other: binary(kind, self, other), lambda self, other: binary(kind, other, self)


def _comparison(predicate: str) -> Callable[..., Any]:
    return lambda self, other: compare(predicate, self, other)


class Expr:
    """A scalar that is known on the device: what operators, loads and functions of T give; it has a `dtype`.

    Python's operators give expressions; comparisons too, so `==` does not compare identity. Its truth is asked by `if`
    of a program; elsewhere that raises TileError.

    Example:
        # X = [1.0, 2.0]
        value = X[1] * 3 + 1
        if isinstance(value, T.PrimExpr):
            Y[0] = value
        # Y = [7.0]
    """

    __slots__ = ()
    __array_priority__: ClassVar[float] = 1000  # NumPy scalars leave arithmetic to us

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    def value(self) -> Value:
        """The IR value, in the active program."""
        raise NotImplementedError

    def astype(self, dtype: Any) -> Any:
        """This value converted to another element type."""
        return cast(self, dtype)

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")
    __floordiv__, __rfloordiv__ = _operators("floordiv")
    __mod__, __rmod__ = _operators("floormod")
    __pow__, __rpow__ = _operators("pow")
    __lshift__, __rlshift__ = _operators("shl")
    __rshift__, __rrshift__ = _operators("shr")
    __and__, __rand__ = _operators("and")
    __or__, __ror__ = _operators("or")
    __xor__, __rxor__ = _operators("xor")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = _comparison("eq"), _comparison("ne")
    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return unary("neg", self)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return unary("not", self)

    def __abs__(self) -> Any:
        return unary("abs", self)

    def __bool__(self) -> bool:
        raise TileError(
            "a value known only on the device cannot decide a Python condition here",
            notes=[
                "in a helper function use T.if_then_else, or make the helper a @T.macro, where `if` becomes device code"
            ],
            code="device-value",
        )

    def __index__(self) -> int:
        raise TileError("a value known only at run time cannot be used as a Python integer", code="device-value")

    __int__ = __index__

    def __float__(self) -> float:
        raise TileError(
            "a value known only at run time cannot be used as a Python number; use T.cast(value, 'float32')",
            code="device-value",
        )


class Scalar(Expr):
    """An expression that holds an IR value."""

    __slots__ = ("_value",)

    def __init__(self, value: Value) -> None:
        self._value = value

    @property
    def dtype(self) -> DType:
        return DTYPES[self._value.type.dtype]

    def value(self) -> Value:
        return self._value

    def __repr__(self) -> str:
        return f"<{self._value.name or 'value'}: {self._value.dtype}>"


class Symbolic(Expr):
    """Arithmetic over dynamic dimensions, outside a program."""

    __slots__ = ("_dtype", "arguments", "operation")

    def __init__(self, operation: str, arguments: tuple[Any, ...], dtype: str = "int32") -> None:
        self.operation = operation
        self.arguments = arguments
        self._dtype = canonical(dtype)

    @property
    def dtype(self) -> DType:
        return self._dtype

    def value(self) -> Value:
        return as_value(_REBUILD[self.operation](*self.arguments)) if context("a dynamic dimension") else self.value()

    def __str__(self) -> str:
        return f"{self.operation}({', '.join(map(str, self.arguments))})"

    __repr__ = __str__


class Symbol(Symbolic):
    """A dynamic dimension, an int32 scalar: `M = T.dynamic("M")`. Two symbols of one name are the same dimension.

    Example:
        n = T.dynamic("n")
        assert isinstance(n, T.Symbol) and n.name == "n" and str(n.dtype) == "int32"
    """

    __slots__ = ("name",)

    def __init__(self, name: str, dtype: str = "int32") -> None:
        super().__init__("symbol", (), dtype)
        self.name = name

    def value(self) -> Value:
        return context("a dynamic dimension").symbol(self)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


_HOST: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "floormod": operator.mod, "max": max, "min": min, "and": operator.and_,
    "or": operator.or_, "xor": operator.xor, "shl": operator.lshift, "shr": operator.rshift, "pow": operator.pow,
    "truncdiv": lambda a, b: _truncated(a, b)[0], "truncmod": lambda a, b: _truncated(a, b)[1],
}  # fmt: skip


def _truncated(a: Any, b: Any) -> tuple[Any, Any]:
    """Quotient and remainder of a division rounded towards zero: exact integers of integers, floats of floats."""
    if isinstance(a, float) or isinstance(b, float):
        return math.trunc(a / b), math.fmod(a, b)
    quotient = abs(a) // abs(b)
    quotient = quotient if (a < 0) == (b < 0) else -quotient
    return quotient, a - quotient * b


_RANK = {"float64": 5, "float32": 4, "bfloat16": 3, "float16": 3, **dict.fromkeys(FLOAT8, 2)}

_MAX_BITS = 1 << 14  # of integers that ** and << make while a program is built
_MAX_ITEMS = 1_000_000  # of sequences that * makes


def check_size(op: str, left: Any, right: Any) -> None:
    """Refuse host arithmetic whose result would not fit in memory. Raises TileError."""
    if op in ("**", "<<") and isinstance(left, int) and isinstance(right, int):
        size = left.bit_length() * right if op == "**" else left.bit_length() + right
        if size > _MAX_BITS:
            raise TileError(f"{op} gives an integer of about {size} bits, more than any element type holds")
    elif op == "*":
        for items, count in ((left, right), (right, left)):
            if (
                isinstance(count, int)
                and isinstance(items, (str, bytes, list, tuple))
                and len(items) * count > _MAX_ITEMS
            ):
                raise TileError(
                    f"* gives a {type(items).__name__} of {len(items) * count} items, more than {_MAX_ITEMS}"
                )


NUMBERS = (int, float)  # bool is an int


_PLAIN = frozenset({int, float, bool, str, slice, Scalar})  # what there is most of


@lru_cache(maxsize=256)
def _is_of_numpy(kind: type) -> bool:
    return kind.__module__ == "numpy" and hasattr(kind, "item")


def is_number(x: Any) -> bool:
    """A Python or NumPy number; not an expression."""
    return isinstance(x, NUMBERS) or _is_of_numpy(type(x))  # type: ignore[arg-type]


def plain(x: Any) -> Any:
    """A NumPy scalar as a Python number; everything else as it is."""
    return x if type(x) in _PLAIN or not _is_of_numpy(type(x)) else x.item()  # type: ignore[arg-type]


def as_value(x: Any, dtype: str | None = None) -> Value:
    """The IR value of an expression or number in the active program, converted to `dtype` if one is given.

    A number without a dtype becomes int32 (int64 where it does not fit), float32 or bool.
    """
    if type(dtype) is DType:
        dtype = dtype.name  # the IR's types have names and no DTypes, which compare slowly
    if isinstance(x, Expr):
        value = x.value()
        if dtype is not None and value.dtype != dtype:
            builder = context("a value").builder
            value = builder.insert(arith.CastOp(value, result_types=[ScalarType(dtype)])).result
        return value
    x = plain(x)
    if not isinstance(x, NUMBERS):
        raise TileError(f"a value was expected, not {describe(x)}")
    if dtype is None:
        fits = isinstance(x, float) or -(1 << 31) <= x < 1 << 31
        dtype = "bool" if isinstance(x, bool) else "float32" if isinstance(x, float) else "int32" if fits else "int64"
    return context("a value").builder.number(x, dtype)


def as_index(x: Any) -> Value:
    """The IR value of an integer in the type of indices: int32, and int64 for what that may not hold."""
    value = as_value(x)
    if value.dtype in ("int32", "int64"):
        return value
    return as_value(Scalar(value), "int64" if ELEMENTS[value.dtype].bits >= 32 else "int32")


def describe(x: Any) -> str:
    """What a wrong argument is, for a message."""
    if x is None:
        return "None (was a tunable left None?)"
    if isinstance(x, Expr):
        return f"a value known only at run time ({str(x).strip('<>')[:60]})"
    if not is_number(x) and (text := getattr(x, "described", None) or getattr(x, "error", None)) is not None:
        return str(text)
    return brief(x) if hasattr(x, "shape") else f"{type(x).__name__} {x!r}"[:80]


def promote(a: Any, b: Any) -> str:
    """The common element type of two operands.

    A Python float is float32, and float64 beside a float64; a Python integer adapts to the other side, but has 32 bits
    at least, and 64 where it does not fit. The wider float wins, float over integer, the wider integer, unsigned where
    both are as wide; bfloat16 with float16 is float32.
    """
    if not isinstance(a, Expr):
        if not isinstance(b, Expr):
            if isinstance(a, float) or isinstance(b, float):
                return "float32"
            return _with_integer(_with_integer("int32", a), b)
        return _with_number(b.dtype, a)
    if not isinstance(b, Expr):
        return _with_number(a.dtype, b)
    x, y = a.dtype.name, b.dtype.name
    if x == y:
        return x
    if is_float(x) or is_float(y):
        if is_float(x) and is_float(y) and _RANK[x] == _RANK[y]:
            return "float32" if _RANK[x] == 3 else "float16"
        return max(x, y, key=lambda name: _RANK.get(name, 0))
    if "bool" in (x, y):
        return y if x == "bool" else x
    return _wider(x, y)


def _with_number(dtype: DType, x: Any) -> str:
    """The type of arithmetic between a value and a Python number."""
    if isinstance(x, float):
        return "float64" if dtype.name == "float64" else "float32"
    if dtype.is_float():
        return dtype.name if dtype.bits > 8 else "float32"
    return dtype.name if isinstance(x, bool) else _with_integer(dtype.name, x)


def _with_integer(dtype: str, x: int) -> str:
    """The type of arithmetic between a value of an integer type and a Python integer."""
    dtype = dtype if ELEMENTS[dtype].bits >= 32 else "int32"
    if not isinstance(x, int) or -(1 << 31) <= x < 1 << 31:  # what is no number is refused where it is used
        return dtype
    own = next((each for each in (dtype, "int64", "uint64") if ELEMENTS[each].low <= x <= ELEMENTS[each].high), None)
    if own is None:
        raise TileError(f"the integer {x if abs(x) < 10**30 else 'written here'} does not fit in 64 bits")
    return _wider(dtype, own)


def _wider(x: str, y: str) -> str:
    """Of two integer types the wider one, and the unsigned one where both are as wide."""
    return max(x, y, key=lambda name: (ELEMENTS[name].bits, ELEMENTS[name].kind == "uint"))


def on_host(what: str, function: Callable[..., Any], *numbers: Any) -> Any:
    """A function of Python numbers. Raises TileError where it is not defined on them."""
    try:
        made = function(*numbers)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise TileError(f"{what} of {', '.join(map(describe, numbers))}: {error}", _host_loc()) from None
    if isinstance(made, complex):
        raise TileError(f"{what} of {', '.join(map(describe, numbers))} is no real number", _host_loc())
    return made


def _host_loc() -> Loc | None:
    return None if active.get() else user_loc()


def binary(kind: str, a: Any, b: Any) -> Any:
    """`a kind b`: computed on numbers, emitted on expressions."""
    a, b = plain(a), plain(b)
    if kind in _DIVISIONS:
        _check_divisor(kind, a, b)
    if isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
        check_size(_WORDS.get(kind, kind), a, b)
        return on_host(_WORDS.get(kind, kind), _HOST[kind], a, b)
    for x in (a, b):
        if not isinstance(x, _OPERANDS):
            raise TileError(f"{_WORDS.get(kind, kind)} needs values, not {describe(x)}")
    program = active.get()
    if program is None:
        return Symbolic(kind, (a, b), promote(a, b))
    dtype = promote(a, b)
    if kind == "pow":
        return _power(a, b, dtype)
    legal = verdict(kind, (dtype,))
    if kind == "div" and legal.is_refused:
        raise TileError(f"/ on two integers: {legal.way_out}")
    if legal.is_refused:
        raise TileError(f"{_WORDS.get(kind, kind)} is not defined on {dtype}", notes=legal.notes((dtype,)))
    if legal.rewrite == "promote":
        if kind == "floormod" and is_float(dtype):
            return call("fmod", a, b, dtype=dtype)
        if kind == "floordiv" and is_float(dtype):
            return call("floor", binary("div", a, b))
        dtype = legal.dtype
    return Scalar(program.builder.pure(OPERATIONS[f"arith.{kind}"], as_value(a, dtype), as_value(b, dtype)))


_OPERANDS = (Expr, *NUMBERS)
_DIVISIONS = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})


def _check_divisor(kind: str, a: Any, b: Any) -> None:
    integral = not isinstance(a, float) and not (isinstance(a, Expr) and is_float(a.dtype))
    if isinstance(b, NUMBERS) and b == 0 and integral:
        raise TileError(f"{_WORDS.get(kind, kind)}: division by 0")


_WORDS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%", "shl": "<<", "shr": ">>",
    "pow": "**", "max": "T.max", "min": "T.min", "abs": "T.abs", "neg": "-", "not": "~",
}  # fmt: skip


def _power(a: Any, b: Any, dtype: str) -> Any:
    if isinstance(b, int) and 0 < b <= 8:
        result = a
        for _ in range(b - 1):
            result = binary("mul", result, a)
        return result
    return call("pow", a, b, dtype=dtype if is_float(dtype) else "float32")


def compare(predicate: str, a: Any, b: Any) -> Any:
    """A comparison; also on None and strings, which no expression equals."""
    if not is_number(b) and not isinstance(b, Expr):
        if predicate in ("eq", "ne"):
            return predicate == "ne"
        raise TileError(f"a comparison needs values, not {describe(b)}")
    context = active.get()
    symbols = isinstance(a, Symbol) and isinstance(b, Symbol) and predicate in ("eq", "ne")
    if symbols and (context is None or a.name == b.name):
        return (a.name == b.name) == (predicate == "eq")
    if context is None:
        return Symbolic(predicate, (a, b), "bool")
    dtype = promote(a, b)
    return Scalar(context.builder.pure(arith.CmpOp, as_value(a, dtype), as_value(b, dtype), predicate=predicate))


def unary(kind: str, a: Any) -> Any:
    """neg, not (bitwise; logical on bool) or abs."""
    a = plain(a)
    if is_number(a):
        if kind == "not":
            return not a if isinstance(a, bool) else on_host("~", operator.invert, a)
        return -a if kind == "neg" else abs(a)
    if not isinstance(a, Expr):
        raise TileError(f"{_WORDS.get(kind, kind)} needs a value, not {describe(a)}")
    program = active.get()
    if program is None:
        return Symbolic(kind, (a,), a.dtype)
    if kind == "abs":
        return call("abs", a)
    legal = verdict(kind, (a.dtype.name,))
    if legal.is_refused:
        raise TileError(f"~ is not defined on {a.dtype}", notes=legal.notes((a.dtype,)))
    if kind == "neg":
        return Scalar(
            program.builder.insert(arith.NegOp(as_value(a, legal.dtype if a.dtype == "bool" else None))).result
        )
    return Scalar(program.builder.insert(arith.NotOp(as_value(a))).result)


def logical(kind: str, *values: Any) -> Any:
    """`and`, `or` or `not` as the language has them: on numbers Python's, on expressions bool operations."""
    if kind == "not":
        return not values[0] if not isinstance(values[0], Expr) else unary("not", as_bool(values[0]))
    result = values[0]
    for value in values[1:]:
        if not isinstance(result, Expr):
            result = value if bool(result) == (kind == "and") else result
        elif not isinstance(value, Expr):
            result = result if bool(value) == (kind == "and") else value
        else:
            result = binary(kind, as_bool(result), as_bool(value))
    return result


def as_bool(x: Any) -> Any:
    """An expression as a truth value: itself if bool, else `!= 0`."""
    if not isinstance(x, Expr):
        return bool(x)
    return x if x.dtype == "bool" else compare("ne", x, 0.0 if is_float(x.dtype) else 0)


def select(condition: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true if condition else on_false`."""
    if not isinstance(condition, Expr):
        return on_true if condition else on_false
    for value in (on_true, on_false):
        if not isinstance(value, Expr) and not is_number(value):
            raise TileError(f"a choice that depends on a device value needs values, not {describe(value)}")
    found = active.get()
    if found is None:
        return Symbolic("select", (condition, on_true, on_false), promote(on_true, on_false))
    dtype = promote(on_true, on_false)
    values = as_value(as_bool(condition)), as_value(on_true, dtype), as_value(on_false, dtype)
    return Scalar(found.builder.insert(arith.SelectOp(*values)).result)


def cast(x: Any, dtype: Any, sat: bool = True) -> Any:
    """`x`, a scalar or number, converted to `dtype`: rounded to the nearest, ties to even; float8 saturates."""
    dtype, x = canonical(dtype), plain(x)
    if not isinstance(sat, bool):
        raise TileError(f"T.cast: sat is {describe(sat)}; it is True or False")
    if not sat and dtype.startswith("float8"):
        raise TileError(f"T.cast: sat=False: Triton's conversion to {dtype} saturates at its largest value")
    if active.get() is None:
        if is_number(x):
            return on_host(f"T.{dtype!s}", float if is_float(dtype) else bool if dtype == "bool" else int, x)
        if isinstance(x, Symbolic):
            return Symbolic("cast", (x, dtype), dtype)
        raise TileError(f"{dtype!r} converts values, not {describe(x)}")
    if isinstance(x, str):
        x = float(x)
    return Scalar(as_value(x, dtype))


def bitcast(x: Any, dtype: Any) -> Scalar:
    """The bits of `x` read as another element type of the same width."""
    value, dtype = as_value(x), canonical(dtype)
    permitted("T.reinterpret", "bitcast", value.dtype, dtype.name)
    if ELEMENTS[value.dtype].bits != dtype.bits:
        raise TileError(f"T.reinterpret: {value.dtype} has {ELEMENTS[value.dtype].bits} bits, {dtype} has {dtype.bits}")
    return Scalar(context().builder.insert(arith.BitcastOp(value, result_types=[ScalarType(dtype)])).result)


def call(function: str, *arguments: Any, dtype: str | None = None) -> Any:
    """A function of math_functions.py; integers become float32 first, where it is not defined on them."""
    arguments = tuple(map(plain, arguments))
    if dtype is None:
        dtype = str(arguments[0].dtype) if isinstance(arguments[0], Expr) else "float32"
        for other in arguments[1:]:
            dtype = promote(arguments[0], other)
    legal = permitted(f"T.{function}", function, dtype)
    dtype = legal.dtype if legal.rewrite in ("promote", "identity") and legal.dtype else dtype
    builder = context(f"T.{function}").builder
    return Scalar(builder.insert(arith.MathOp([as_value(x, dtype) for x in arguments], function=function)).result)


_REBUILD: dict[str, Callable[..., Any]] = {
    **{kind: (lambda a, b, kind=kind: binary(kind, a, b)) for kind in _HOST},
    **{kind: (lambda a, b, kind=kind: compare(kind, a, b)) for kind in arith.PREDICATES},
    **{kind: (lambda a, kind=kind: unary(kind, a)) for kind in ("neg", "not", "abs")},
    "select": select,
    "cast": cast,
}
