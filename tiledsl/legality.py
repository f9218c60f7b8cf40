"""Which operation is there for which element types, by target and version of Triton: one table, and how to ask it.

The language refuses by it, legalize-arith rewrites and refuses by it, the target's element types come from it, and
`make types` compiles the smallest program of every entry with every Triton that is installed. An operation is named as
in the IR, with the attribute that decides: "add", "cmp.lt", "exp", "reduce.sum", "atomic.load.acquire", "dot". Its
element types are those of its operands; one alone where all have the same, source and target of a cast, both operands
and the accumulator of a dot. The first row that fits counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tiledsl.errors import TileError
from tiledsl.ir.types import ELEMENTS
from tiledsl.math_functions import MATH_FUNCTIONS, names

# What a rewrite does, and where.
REWRITES = {
    "promote": "the language converts the operands; the result has that type (language/expression.py)",
    "widen": "the operands are converted, and the result back (dtypes.compute_wider)",
    "bits": "the bits, with zeros before them, are computed on as int32 or int64 (dtypes.compute_on_bits)",
    "logic": "or, and, on bools (legalize-arith)",
    "spell out": "in terms of other operations (legalize-arith)",
    "identity": "the operand itself (legalize-arith); the language converts to a type that is named first",
    "by steps": "through that type in two casts, neither of which can round twice (dtypes.cast_by_steps)",
    "common type": "both operands of a dot are converted to that type (dtypes.give_dot_one_dtype)",
    "parts": "a dot of integers as dots of their digits of 7 bits, which are int8 (dtypes.multiply_by_parts)",
    "add after": "a dot is accumulated in that type, converted, and added (dtypes.give_dot_one_dtype)",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Native; or legal after a rewrite, which computes in `dtype` where it names one; or refused for a reason.

    `way_out` is what to write instead. In both texts {0}, {1} and {2} are the element types.
    """

    rewrite: str = ""
    dtype: str = ""
    reason: str = ""
    way_out: str = ""

    @property
    def is_native(self) -> bool:
        return not self.rewrite and not self.reason

    @property
    def is_refused(self) -> bool:
        return bool(self.reason)

    def notes(self, types: Sequence[str]) -> list[str]:
        """The way out, for a message about operands of these types."""
        return [self.way_out.format(*types)] if self.way_out else []


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds of some operations (names between spaces) on some element types (one set for each operand).

    `where` limits it: "cuda", "hip", "interpret", "gfx942", "cuda<89", "triton<3.7", all of several words. `source` is
    where the fact is from; facts without one were found by compiling (`make types`).
    """

    operations: str
    types: tuple[frozenset[str], ...]
    verdict: Verdict
    where: str = ""
    source: str = ""

    def fits(self, types: tuple[str, ...], kind: str, arch: int | str | None, triton: str) -> bool:
        """Whether it speaks of these element types on a target with a version of Triton; see `verdict`."""
        allowed = self.types if len(self.types) == len(types) else self.types * len(types)
        return all(map(frozenset.__contains__, allowed, types)) and _is_there(self.where, kind, arch, triton)


def _named(names: str) -> frozenset[str]:
    return frozenset(names.split())


BOOL = _named("bool")
SIGNED, UNSIGNED = _named("int8 int16 int32 int64"), _named("uint8 uint16 uint32 uint64")
INTEGERS = SIGNED | UNSIGNED
SHORT = _named("int8 int16 uint8 uint16")
OCP8, FNUZ8 = _named("float8_e4m3fn float8_e5m2"), _named("float8_e4m3fnuz float8_e5m2fnuz")
FLOAT8, HALVES, FULL = OCP8 | FNUZ8, _named("float16 bfloat16"), _named("float32 float64")
FLOATS = FLOAT8 | HALVES | FULL
BFLOAT16 = _named("bfloat16")
EVERY = frozenset(ELEMENTS)
INT8, FLOAT64 = _named("int8"), _named("float64")
_NATIVELY = {  # by what a function of math_functions.py takes
    "floats": FULL, "rounding": FULL, "wide floats": FULL, "bits": _named("int32 int64"), "wide ints": INTEGERS - SHORT,
}  # fmt: skip
_PARTED = BOOL | INTEGERS - _named("int64 uint64")  # those of 64 bits would take more than fifty products of parts

NATIVE = Verdict()
_FLOAT32 = Verdict("widen", "float32")
_SPELT = Verdict("spell out")
_SAME = Verdict("identity")


def _refused(reason: str, way_out: str = "") -> Verdict:
    return Verdict(reason=reason, way_out=way_out)


_ONE_KIND = _refused("both must be floats or both integers", "T.copy to a tile of another element type converts")
_NO_FLOAT64 = _refused(
    "Triton before 3.9 ends itself on products of float64", "use float32, or multiply in T.Parallel and T.reduce_sum"
)

_AS_INTEGER = "T.reinterpret gives a float's bits as an integer, T.cast its value"
_LIBDEVICE = "CUDA libdevice user's guide, ROCm device libraries: each function has a form for float and for double"
_HIP = "triton.language.extra.hip.libdevice lacks it"
_ATOMS = "triton.language.semantic: 8 bits are refused, and 16 bits but for adding float16 and bfloat16"
_SWAPS = "triton.language.semantic: atomic_cas only supports elements with width {16, 32, 64}"
_CDNA3 = "CDNA3 instruction set guide"
_CVT = "PTX ISA, cvt"
_ODD = "Boldo, Melquiond: Emulation of FMA and correctly rounded sums, IEEE Transactions on Computers 57(4), 2008"

_ARITHMETIC = "add sub mul neg"
_DIVISIONS = "truncdiv truncmod"
_ORDERS = "cmp.lt cmp.le cmp.gt cmp.ge"
_COMPARISONS = f"cmp.eq cmp.ne {_ORDERS}"
_TESTS, _ROUNDINGS = " ".join(names("test")), " ".join(names("rounding"))
_FUNCTIONS = " ".join(names("floats", "rounding"))
_SPELT_OUT = " ".join(name for name in names("floats") if MATH_FUNCTIONS[name].spelt_out)
_COUNTS, _WIDE_FLOATS, _WIDE_INTS = (" ".join(names(each)) for each in ("bits", "wide floats", "wide ints"))
_FOLDS = "reduce.sum reduce.prod reduce.max reduce.min scan.sum scan.prod scan.max scan.min"
_BITS = "reduce.and reduce.or reduce.xor"
_SCATTERS = "scatter.add scatter.max scatter.min scatter.and scatter.or scatter.xor"
_MOVES = "constant select load store reshape transpose broadcast gather"


def _atomics(kinds: str, orders: str = "relaxed acquire release acq_rel") -> str:
    """Names of atomics of these kinds with these orders."""
    return " ".join(f"atomic.{kind}.{order}" for kind in kinds.split() for order in orders.split())


_ORDERED_READS, _ORDERED_WRITES = _atomics("load", "acquire acq_rel"), _atomics("store", "release acq_rel")
_ORDERED = f"{_ORDERED_READS} {_ORDERED_WRITES}"

TABLE: tuple[Rule, ...] = (
    # Element types that a target lacks
    Rule("value", (FNUZ8,), _refused("{0} is AMD's, of CDNA3", "use float8_e4m3fn or float8_e5m2"), "cuda", _CDNA3),
    Rule("value", (FNUZ8,), NATIVE, "gfx942", _CDNA3),
    Rule("value", (FNUZ8,), _refused("{0} is of CDNA3 (gfx942) alone"), "hip", _CDNA3),
    Rule("value", (OCP8,), _refused("{0} is there from sm_89 on"), "cuda<89", _CVT),
    Rule("value", (BFLOAT16,), _refused("{0} is there from sm_80 on"), "cuda<80", _CVT),
    Rule("value", (OCP8,), NATIVE, "gfx950", "CDNA4 instruction set guide"),
    Rule("value", (OCP8,), NATIVE, "gfx942", "Triton's AMD compiler converts what CDNA3 lacks, by its bits"),
    Rule("value", (OCP8,), _refused("its float8 is fnuz, if it has any"), "hip", _CDNA3),
    Rule("value", (EVERY,), NATIVE),

    # The interpreter holds bfloat16 as raw bits
    Rule(f"{_ARITHMETIC} div max min abs {_COMPARISONS}", (BFLOAT16,), _FLOAT32, "interpret"),

    # Arithmetic
    Rule(_ARITHMETIC, (INTEGERS | HALVES | FULL,), NATIVE),
    Rule(_ARITHMETIC, (FLOAT8,), _FLOAT32),
    Rule("div", (FULL,), NATIVE),
    Rule("div", (HALVES | FLOAT8,), _FLOAT32, source="triton.language.semantic.truediv divides halves in float32"),
    Rule("div", (INTEGERS | BOOL,), _refused(
        "two integers have no quotient of their type",
        "write // for a whole number, or convert one side with T.cast(x, 'float32')")),
    Rule(f"{_ARITHMETIC} {_DIVISIONS} floordiv floormod shl shr", (BOOL,), Verdict("promote", "int32")),
    Rule(_DIVISIONS, (INTEGERS,), NATIVE),
    Rule("floordiv floormod", (INTEGERS,), _SPELT, source="Triton's // and % round towards zero, as C's"),
    Rule("floordiv floormod", (FLOATS,), Verdict("promote"), source="floor(x / y) and fmod(x, y)"),
    Rule("truncdiv", (FLOATS,), _refused("it is not defined on {0}", "write T.trunc(x / y)")),
    Rule("truncmod", (FLOATS,), _refused("it is not defined on {0}", "write T.fmod(x, y)")),
    Rule("and or xor not", (INTEGERS | BOOL,), NATIVE),
    Rule("shl shr", (INTEGERS,), NATIVE),
    Rule("and or xor not shl shr", (FLOATS,), _refused("it is not defined on {0}", _AS_INTEGER)),
    Rule("max min", (INTEGERS | FULL | _named("float16"),), NATIVE),
    Rule("max min", (BFLOAT16 | FLOAT8,), _FLOAT32, source="tl.maximum gives float32 back for bfloat16"),
    Rule("max min", (BOOL,), Verdict("logic")),
    Rule("clamp", (EVERY,), _SPELT),
    Rule("abs", (SIGNED | HALVES | FULL,), NATIVE),
    Rule("abs", (FLOAT8,), _FLOAT32),
    Rule("abs", (UNSIGNED | BOOL,), _SAME),
    Rule(_COMPARISONS, (INTEGERS | HALVES | FULL,), NATIVE),
    Rule(_COMPARISONS, (FLOAT8,), _FLOAT32),
    Rule(_ORDERS, (BOOL,), Verdict("widen", "int32")),
    Rule(_COMPARISONS, (BOOL,), NATIVE),

    # Functions
    *(
        Rule(each.name, (_NATIVELY[each.takes],), _SPELT if each.instead else _refused(_HIP), each.lacking,
            f"{_HIP}: {each.instead}")
        for each in MATH_FUNCTIONS.values() if each.lacking
    ),
    Rule(_SPELT_OUT, (FULL,), _SPELT),
    Rule(_TESTS, (FLOATS,), _SPELT),
    Rule(_FUNCTIONS, (FULL,), NATIVE, source=_LIBDEVICE),
    Rule(_FUNCTIONS, (HALVES | FLOAT8,), _FLOAT32),
    Rule(_ROUNDINGS, (INTEGERS,), Verdict("identity", "float32"), source="whole numbers are floats in the language"),
    Rule(f"{_TESTS} {_FUNCTIONS}", (INTEGERS | BOOL,), Verdict("promote", "float32")),
    Rule(_COUNTS, (_named("int32 int64"),), NATIVE, source="libdevice: __nv_popc, __nv_popcll, __nv_clz, ..."),
    Rule(_COUNTS, (SHORT | _named("uint32"),), Verdict("bits", "int32")),
    Rule(_COUNTS, (_named("uint64"),), Verdict("bits", "int64")),
    Rule(_COUNTS, (FLOATS,), _refused("it counts bits of integers, not of {0}", _AS_INTEGER)),
    Rule(_COUNTS, (BOOL,), _refused("it counts bits of integers, not of bool", "write T.cast(x, 'int32')")),
    Rule(_WIDE_FLOATS, (FULL,), NATIVE, source=_LIBDEVICE),
    Rule(_WIDE_FLOATS, (EVERY,), _refused("it is for float32 and float64, not {0}")),
    Rule(_WIDE_INTS, (INTEGERS - SHORT,), NATIVE, source="libdevice: __nv_mulhi, __nv_umulhi, __nv_mul64hi, ..."),
    Rule(_WIDE_INTS, (EVERY,), _refused("it is for integers of 32 and 64 bits, not {0}")),

    # Conversions
    Rule("cast", (FLOAT8, FLOAT8), Verdict("by steps", "float32")),
    Rule("cast", (FLOAT64, FLOAT8), Verdict("by steps", "float32"), source=f"rounded to odd first: {_ODD}"),
    Rule("cast", (FLOAT8, INTEGERS | FLOAT64), Verdict("by steps", "float32")),
    Rule("cast", (INTEGERS | BOOL, FLOAT8), Verdict("by steps", "float32"), source="float8 saturates before 2**24"),
    Rule("cast", (INTEGERS | FLOATS, BOOL), _SPELT, source="x != 0"),
    Rule("cast", (EVERY, EVERY), NATIVE),
    Rule("bitcast", (BOOL, BOOL), NATIVE),
    Rule("bitcast", (BOOL, EVERY), _refused("a bool is one bit in Triton and 8 in memory", "write T.cast(x, '{1}')")),
    Rule("bitcast", (EVERY, BOOL), _refused("a bool is one bit in Triton and 8 in memory", "write x != 0")),
    Rule("bitcast", (EVERY, EVERY), NATIVE),
    Rule(_MOVES, (EVERY,), NATIVE),

    # Reductions and scans
    Rule("reduce.abssum reduce.absmax", (EVERY,), _SPELT),
    Rule(f"{_FOLDS} {_BITS}", (BOOL,), Verdict("logic", "int32")),
    Rule(_FOLDS, (SHORT & SIGNED,), Verdict("widen", "int32"), source="tl.sum and tl.max give 32 bits back"),
    Rule(_FOLDS, (SHORT & UNSIGNED,), Verdict("widen", "uint32")),
    Rule(_FOLDS, (HALVES | FLOAT8,), _FLOAT32),
    Rule(_FOLDS, (FULL | INTEGERS,), NATIVE),
    Rule("scan.linear", (FULL | INTEGERS - SHORT,), NATIVE),
    Rule("scan.linear", (EVERY,), _refused("it is for elements of 32 and 64 bits, not {0}", "convert them first")),
    Rule(_BITS, (INTEGERS,), NATIVE),
    Rule(_BITS, (FLOATS,), _refused("it combines bits of integers, not of {0}", _AS_INTEGER)),

    # Products; what tl.dot takes is in triton.language.semantic.dot
    Rule("dot", (EVERY, EVERY, BOOL), _refused("products are not added up in bool", "use int32, and compare with 0")),
    Rule("dot", (FLOATS, INTEGERS | BOOL, EVERY), _ONE_KIND),
    Rule("dot", (INTEGERS | BOOL, FLOATS, EVERY), _ONE_KIND),
    Rule("dot", (INT8, INT8, _named("int32")), NATIVE, source="PTX ISA, mma and wgmma: s8 by s8"),
    Rule("dot", (INT8, INT8, INTEGERS | FLOATS), Verdict("add after", "int32")),
    Rule("dot", (_PARTED, _PARTED, INTEGERS | FLOATS), Verdict("parts", "int8"), source="tl.dot: only int8 supported"),
    Rule("dot", (INTEGERS | BOOL, INTEGERS | BOOL, EVERY), _refused(
        "64-bit integers are not multiplied as tiles",
        "convert both to int32, where the values fit, or multiply in T.Parallel and use T.reduce_sum")),
    Rule("dot", (FLOAT64, FLOATS, EVERY), _NO_FLOAT64, "gfx942 triton<3.9", "an assertion fails in its MFMA.cpp"),
    Rule("dot", (FLOATS, FLOAT64, EVERY), _NO_FLOAT64, "gfx942 triton<3.9", "an assertion fails in its MFMA.cpp"),
    Rule("dot", (FLOATS, FLOATS, FLOATS | INTEGERS), Verdict("common type"), source="dot_dtype below"),

    # Scatters: atomics on the chip
    Rule("scatter.and scatter.or scatter.xor", (FLOATS,), _refused(
        "it needs integers, not {0}", "T.reinterpret gives a float's bits as an integer")),
    Rule("scatter.cas", (BOOL,), _refused("it is not defined on bool", "use an int32")),
    Rule("scatter.cas", (EVERY,), NATIVE),  # bits are compared, and moved
    Rule("scatter.add", (BOOL,), _refused("it is not defined on bool", "use T.atomic_or, or an int32")),
    Rule(_SCATTERS, (INTEGERS - SHORT | FULL,), NATIVE),
    Rule(_SCATTERS, (SHORT | BOOL,), Verdict("widen", "int32")),
    Rule(_SCATTERS, (HALVES | FLOAT8,), _FLOAT32),

    # Atomics
    Rule(_atomics("and or xor"), (FLOATS,), _refused("it needs integers, not {0}", "T.view gives a buffer's bits")),
    Rule(f"{_atomics('add')} {_ORDERED_READS}", (HALVES,), NATIVE, source=_ATOMS),
    Rule(f"{_atomics('add max min exchange')} {_ORDERED}", (FULL | INTEGERS - SHORT,), NATIVE, source=_ATOMS),
    Rule(_atomics("and or xor"), (INTEGERS - SHORT,), NATIVE, source=_ATOMS),
    Rule(_atomics("cas"), (FULL | HALVES | INTEGERS - INT8 - _named("uint8"),), NATIVE, source=_SWAPS),
    Rule(_atomics("cas"), (EVERY,), _refused(
        "Triton compares and swaps 16, 32 or 64 bits, and {0} has 8", "use an element type of int32")),
    Rule(_atomics("load store", "relaxed"), (EVERY,), NATIVE),
    Rule("atomic.exchange.tile atomic.store.tile", (INTEGERS - SHORT | _named("float32"),), _refused(
        "Triton before 3.9 does not compile this of a tile for AMD", "store single elements, in T.serial"),
        "hip triton<3.9", "LLVM lacks an intrinsic that Triton 3.6 asks for"),
    Rule("atomic.exchange.tile atomic.store.tile", (EVERY,), NATIVE),
    Rule(_ORDERED, (EVERY,), _refused("of {0} it can only be relaxed", "or use a 32-bit element type")),
    Rule(_atomics("add max min and or xor exchange"), (EVERY,), _refused(
        "Triton has no such atomic for {0}", "keep it in a 32-bit element type, and convert it in the end")),
)  # fmt: skip


def dot_dtype(a: str, b: str) -> str:
    """The element type to which both operands of a product of floats are converted: the least that holds both."""
    if a == b:
        return a
    if a in FLOAT8 and b in FLOAT8:
        return "float16"  # which holds all values of both formats
    if "float64" in (a, b):
        return "float64"
    if "float32" in (a, b) or {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return b if a in FLOAT8 else a


@cache
def verdict(
    operation: str, types: tuple[str, ...], kind: str = "", arch: int | str | None = None, triton: str = ""
) -> Verdict:
    """What holds of an operation on these element types.

    `kind` and `arch` are a target's; without a kind, rows of some target alone do not count. Without a version of
    Triton ("3.6"), rows of some version do: what is emitted works with all. An assertion fails for what the table does
    not have.
    """
    for row in _rows(operation):
        if row.fits(types, kind, arch, triton):
            return row.verdict
    raise AssertionError(f"the table of element types has no row for {operation} of {', '.join(types)}")


def permitted(what: str, operation: str, *types: str) -> Verdict:
    """The verdict on an operation of the language, on any target. Raises TileError where it is refused."""
    found = verdict(operation, types)
    if found.is_refused:
        raise TileError(f"{what}: {found.reason.format(*types)}", notes=found.notes(types), code="element-type")
    return found


@cache
def _rows(operation: str) -> tuple[Rule, ...]:
    return tuple(row for row in TABLE if operation in row.operations.split())


def _is_there(where: str, kind: str, arch: int | str | None, triton: str) -> bool:
    for word in where.split():
        name, least, bound = word.partition("<")
        if name == "triton":
            if triton and _version(triton) >= _version(bound):
                return False
        elif least:
            if name != kind or not isinstance(arch, int) or arch >= int(bound):
                return False
        elif name not in (kind, arch):
            return False
    return True


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:2]))


def operations() -> list[str]:
    """Every operation of the table, in its order."""
    return list(dict.fromkeys(name for row in TABLE for name in row.operations.split()))
