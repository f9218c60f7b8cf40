"""The mathematical functions: one record for each, which all who know functions by name read.

They are the operation (dialects/arith.py), `T` (language/maths.py), the table of element types (legality.py), emission
(codegen), the interpreter's libdevice, the executor (certificate), the tuner's cost model and the tests. A function
that is written in terms of others has a rule in passes/legalize_arith besides. NumPy is not imported here: what needs
it is given the module.
"""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tiledsl.directed_rounding import MODES, rounded

# Which element types a function takes:
# floats       float32 and float64; narrower floats are computed in float32, integers and bool become float32
# rounding     as floats, but that an integer is its own result
# test         as floats, and the result is a bool
# bits         int32 and int64; other integers are computed on as bits in these
# wide floats  float32 and float64 alone
# wide ints    integers of 32 and 64 bits alone
# numbers      what legality.py says in rows of its own
Takes = Literal["floats", "rounding", "test", "bits", "wide floats", "wide ints", "numbers"]


@dataclass(frozen=True, eq=False, kw_only=True)
class MathFunction:
    """A function of arith.math.

    meaning: for its docstring in `T`.
    host: what it gives of Python numbers; it may raise ArithmeticError or ValueError. None where `T` has none.
    numpy: what it gives of NumPy arrays: the name of NumPy's function, or a function of the module numpy and of arrays
        that are float64, if they are floats, but for "wide floats". "": what `host` gives, for each element.
    triton: how emitted source spells it; "tl." and "libdevice." are followed by its name.
    arity: the number of its arguments.
    lacking: where Triton has no such function, as in legality.Rule.where; `instead`: what is written there.
    spelt_out: it is always written in terms of other operations.
    folds: of a constant it is computed at once. Others may differ in the last place from what a GPU gives.
    exact_at: arguments for which every implementation gives exactly this.
    base: it is base ** x.
    is_cheap: the arithmetic units compute it, not those for special functions.
    """

    name: str
    meaning: str = ""
    host: Callable[..., Any] | None = None
    numpy: str | Callable[..., Any] = ""
    triton: str = "libdevice."
    arity: int = 1
    takes: Takes = "floats"
    lacking: str = ""
    instead: str = ""
    spelt_out: bool = False
    folds: bool = False
    exact_at: Mapping[float, float] = field(default_factory=dict)
    base: float | None = None
    is_cheap: bool = False

    @property
    def spelling(self) -> str:
        """Its name in emitted source; "" if there is none."""
        return self.triton + self.name if self.triton.endswith(".") else self.triton

    @property
    def library_name(self) -> str:
        """Its name in libdevice, if it is there."""
        return self.spelling[10:] if self.spelling.startswith("libdevice.") else self.name

    @property
    def keeps_type(self) -> bool:
        """Whether `on_arrays` takes arrays of the element type itself: NumPy's function, or one that rounds by it."""
        return self.takes == "wide floats" or isinstance(self.numpy, str) and self.numpy != ""

    @functools.cached_property
    def on_arrays(self) -> Callable[..., Any]:
        """What it gives of NumPy arrays; of floats in float64, unless NumPy has a function of its own for it."""
        import numpy

        if callable(self.numpy):
            return functools.partial(self.numpy, numpy)
        return getattr(numpy, self.numpy) if self.numpy else numpy.vectorize(self._guarded, otypes=[numpy.float64])

    def _guarded(self, *numbers: float) -> float:
        assert self.host is not None
        try:
            return float(self.host(*numbers))
        except OverflowError:
            return math.inf
        except (ValueError, ZeroDivisionError):
            return math.nan


def _bits_of(x: Any) -> tuple[int, int]:
    """The bits of a Python integer, as a number, and how many it has: 32, or 64 where it needs them."""
    if not isinstance(x, int):
        raise TypeError("it counts bits of integers")
    width = 32 if -(1 << 31) <= x < 1 << 32 else 64
    if not -(1 << 63) <= x < 1 << 64:
        raise ValueError("it has more than 64 bits")
    return x & (1 << width) - 1, width


def _bits_set(np: Any, x: Any) -> Any:
    octets = np.ascontiguousarray(np.asarray(x)[..., None]).view(np.uint8)
    return np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.int32)


def _leading_zeros(np: Any, x: Any) -> Any:
    unsigned = np.asarray(x).view(f"u{np.asarray(x).itemsize}")
    shifts = map(unsigned.dtype.type, range(8 * unsigned.itemsize))
    return sum((unsigned >> shift == 0).astype(np.int32) for shift in shifts)


def _high_half(np: Any, x: Any, y: Any) -> Any:
    x, y = np.asarray(x), np.asarray(y)
    return np.asarray(x.astype(object) * y.astype(object) >> 8 * x.itemsize).astype(x.dtype)


def _round_half_away(np: Any, x: Any) -> Any:
    whole = np.trunc(x)
    return np.copysign(whole + (np.abs(x - whole) >= 0.5) * np.sign(x), x)


_INF = math.inf
_ZERO = {0.0: 0.0}
_EVEN = "The nearest whole number; halves go to the even one"
_F = MathFunction

MATH_FUNCTIONS: dict[str, MathFunction] = {record.name: record for record in (
    _F(name="exp", meaning="e ** x", host=math.exp, numpy="exp", triton="tl.", folds=True, base=math.e,
       exact_at={-_INF: 0.0, 0.0: 1.0}),
    _F(name="exp2", meaning="2 ** x", host=lambda x: 2.0**x, numpy="exp2", triton="tl.", folds=True, base=2.0,
       exact_at={-_INF: 0.0, 0.0: 1.0}),
    _F(name="exp10", meaning="10 ** x", host=lambda x: 10.0**x, numpy=lambda np, x: np.power(10.0, x), base=10.0,
       lacking="hip", instead="pow(10, x)", exact_at={-_INF: 0.0, 0.0: 1.0}),
    _F(name="expm1", meaning="e ** x - 1, exact near 0", host=math.expm1, numpy="expm1", exact_at=_ZERO),
    _F(name="log", meaning="The natural logarithm", host=math.log, numpy="log", triton="tl.", folds=True),
    _F(name="log2", meaning="The logarithm to base 2", host=math.log2, numpy="log2", triton="tl.", folds=True),
    _F(name="log10", meaning="The logarithm to base 10", host=math.log10, numpy="log10"),
    _F(name="log1p", meaning="log(1 + x), exact near 0", host=math.log1p, numpy="log1p", exact_at=_ZERO),
    _F(name="sqrt", meaning="The square root", host=math.sqrt, numpy="sqrt", triton="tl.sqrt_rn", folds=True,
       exact_at=_ZERO),
    _F(name="rsqrt", meaning="1 / sqrt(x)", host=lambda x: 1 / math.sqrt(x), numpy=lambda np, x: 1 / np.sqrt(x),
       triton="tl.", folds=True),
    _F(name="sin", host=math.sin, numpy="sin", triton="tl.", exact_at=_ZERO),
    _F(name="cos", host=math.cos, numpy="cos", triton="tl.", exact_at={0.0: 1.0}),
    _F(name="tan", host=math.tan, numpy="tan"),
    _F(name="asin", host=math.asin, numpy="arcsin"),
    _F(name="acos", host=math.acos, numpy="arccos"),
    _F(name="atan", host=math.atan, numpy="arctan"),
    _F(name="sinh", host=math.sinh, numpy="sinh"),
    _F(name="cosh", host=math.cosh, numpy="cosh"),
    _F(name="tanh", host=math.tanh, numpy="tanh", exact_at=_ZERO),
    _F(name="asinh", host=math.asinh, numpy="arcsinh"),
    _F(name="acosh", host=math.acosh, numpy="arccosh"),
    _F(name="atanh", host=math.atanh, numpy="arctanh"),
    _F(name="erf", meaning="The error function", host=math.erf, triton="tl.", exact_at=_ZERO),
    _F(name="sigmoid", meaning="1 / (1 + exp(-x))", host=lambda x: 1 / (1 + math.exp(-x)),
       numpy=lambda np, x: 1 / (1 + np.exp(-x)), triton="tl.", spelt_out=True),

    _F(name="floor", meaning="The greatest whole number that is not above x", host=math.floor, numpy="floor",
       triton="tl.", takes="rounding", exact_at=_ZERO, is_cheap=True),
    _F(name="ceil", meaning="The least whole number that is not below x", host=math.ceil, numpy="ceil", triton="tl.",
       takes="rounding", exact_at=_ZERO, is_cheap=True),
    _F(name="trunc", meaning="The whole number next to x towards 0", host=math.trunc, numpy="trunc", takes="rounding",
       exact_at=_ZERO, is_cheap=True),
    _F(name="rint", meaning=_EVEN, host=builtins.round, numpy="rint", takes="rounding", lacking="hip triton<3.7",
       instead="nearbyint, which rounds alike", exact_at=_ZERO, is_cheap=True),
    _F(name="nearbyint", meaning=_EVEN, host=builtins.round, numpy="rint", takes="rounding", is_cheap=True),
    _F(name="round", meaning="The nearest whole number; halves go away from 0",
       host=lambda x: x if isinstance(x, int) else math.copysign(math.floor(abs(x) + 0.5), x), numpy=_round_half_away,
       takes="rounding", exact_at=_ZERO, is_cheap=True),

    _F(name="popcount", meaning="The number of bits that are 1", host=lambda x: bin(_bits_of(x)[0]).count("1"),
       numpy=_bits_set, triton="libdevice.popc", takes="bits", lacking="hip triton<3.9", instead="shifts and sums"),
    _F(name="clz", meaning="The number of bits that are 0 before the first 1", numpy=_leading_zeros, takes="bits",
       host=lambda x: _bits_of(x)[1] - _bits_of(x)[0].bit_length(), lacking="hip triton<3.9",
       instead="shifts and sums"),
    _F(name="isnan", meaning="Whether x is a NaN", host=math.isnan, numpy="isnan", takes="test", spelt_out=True,
       is_cheap=True),
    _F(name="isinf", meaning="Whether x is infinite", host=math.isinf, numpy="isinf", takes="test", spelt_out=True,
       is_cheap=True),
    _F(name="isfinite", meaning="Whether x is neither infinite nor a NaN", host=math.isfinite, numpy="isfinite",
       triton="", takes="test", spelt_out=True, is_cheap=True),

    _F(name="atan2", meaning="The angle of the point (x, y), of atan2(y, x)", host=math.atan2, numpy="arctan2",
       arity=2),
    _F(name="fmod", meaning="The remainder of x / y, with the sign of x", host=math.fmod, numpy="fmod", arity=2),
    _F(name="hypot", meaning="sqrt(x * x + y * y)", host=math.hypot, numpy="hypot", arity=2),
    _F(name="copysign", meaning="The magnitude of x with the sign of y", host=math.copysign, numpy="copysign", arity=2,
       is_cheap=True),
    _F(name="pow", host=builtins.pow, numpy="power", arity=2),
    _F(name="fma", meaning="a * b + c, rounded once on a GPU", host=lambda a, b, c: a * b + c,
       numpy=lambda np, a, b, c: a * b + c, triton="tl.", arity=3, is_cheap=True),

    _F(name="nextafter", numpy="nextafter", arity=2, takes="wide floats"),
    _F(name="ldexp", numpy=lambda np, x, n: np.ldexp(x, np.asarray(n).astype(np.int32)), arity=2, takes="wide floats"),
    *(_F(name=f"{kind}_{mode}", meaning=f"{text}, rounded {rounding}, and never a part of a fused operation",
         numpy=rounded(kind, mode), arity=arity, takes="wide floats", lacking="hip", is_cheap=kind in "add sub mul")
      for kind, arity, text in (("add", 2, "x + y"), ("sub", 2, "x - y"), ("mul", 2, "x * y"), ("div", 2, "x / y"),
                                ("rcp", 1, "1 / x"), ("sqrt", 1, "sqrt(x)"), ("fma", 3, "x * y + z"))
      for mode, rounding in MODES.items() if (kind, mode) not in (("sqrt", "rn"), ("fma", "rn"))),
    _F(name="mulhi", numpy=_high_half, arity=2, takes="wide ints", lacking="hip"),
    _F(name="abs", host=abs, numpy="abs", triton="tl.", takes="numbers", folds=True,
       exact_at={0.0: 0.0, -_INF: _INF}, is_cheap=True),
    _F(name="clamp", numpy=lambda np, x, low, high: np.fmin(np.fmax(x, low), high), triton="tl.", arity=3,
       takes="numbers", spelt_out=True, is_cheap=True),
)}  # fmt: skip


def names(*takes: Takes) -> tuple[str, ...]:
    """The functions that take these."""
    return tuple(each.name for each in MATH_FUNCTIONS.values() if each.takes in takes)
