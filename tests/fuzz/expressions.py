"""Random expressions of the tile language, as text of a known element type.

Float values stay small multiples of powers of two where they can, so that results are exact in any association. NaN
and infinities come from tensors and tiles that are `wild`. Integers are anything, and wrap.
"""
# ruff: noqa: E501

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.support.source_writer import SourceWriter

FLOATS = ("float32", "float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2")
SIGNED = ("int32", "int32", "int8", "int16", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint32", "uint64")
DTYPES = (*FLOATS, *FLOATS, *SIGNED, *SIGNED, *UNSIGNED, "bool")
TAME = {"float8_e4m3fn": 4, "float8_e5m2": 4}  # magnitudes that stay exact; 16 for wider types


def bits_of(dtype: str) -> int:
    return 8 if dtype == "bool" else int("".join(c for c in dtype.split("_")[0] if c.isdigit()))


def is_float(dtype: str) -> bool:
    return "float" in dtype


@dataclass
class Tensor:
    """A parameter. `sizes` are its dimensions, `shape` how they are written."""

    name: str
    shape: list[str]
    sizes: list[int]
    dtype: str
    values: str = "any"  # any, wild (with NaN and infinities), index (see low, high), permutation, zero
    low: int = 0
    high: int = 0
    written: bool = False
    strides: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    same_as: str = ""  # of the tensor whose memory it shares


@dataclass
class Tile:
    name: str
    shape: tuple[int, ...]
    dtype: str
    memory: str  # the tile of which this is a view
    rough: bool = False  # holds results of functions or large sums, which nothing should decide on
    wild: bool = False  # may hold NaN and infinities


@dataclass
class Scalar:
    """A value with a name; `low` and `high` are bounds of an int32, where they are known."""

    name: str
    dtype: str
    low: int | None = None
    high: int | None = None


class Expressions(SourceWriter):
    """Draws values. What there is to read is in `tensors`, `tiles`, `scalars` and `loops` (indices with extents)."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.tensors: list[Tensor] = []
        self.tiles: list[Tile] = []
        self.scalars: list[Scalar] = []
        self.loops: dict[str, int] = {}
        self.locked: set[str] = set()  # memories that a parallel loop writes: reading them would be a race
        self.readable: list[Tensor] = []  # tensors that no block of this kernel writes
        self.rough_allowed = False

    # Integers that serve as indices: int32 of a known range

    def small(self) -> str:
        """An int32 whose size is that of a block's or loop's index."""
        known = [each.name for each in self.scalars if each.low is not None]
        return str(self.pick([*self.loops, *self.loops, *known]))

    def moving(self) -> str:
        """The same, of an index that is not always 0."""
        known = [each.name for each in self.scalars if each.low is not None and (each.high or 0) > 1]
        return str(
            self.pick(
                [*[name for name, extent in self.loops.items() if extent > 1], *known] or [f"({self.small()} + 2)"]
            )
        )

    def inside(self, size: int) -> str:
        """An index of an on-chip dimension, never outside."""
        if size == 1 and self.chance(0.5):
            return "0"
        forms = [str(self.rng.randrange(size)), f"({self.small()}) % {size}", str(-1)]
        for loop, extent in self.loops.items():
            forms += [
                f"({loop} * 3 + 1) % {size}",
                f"T.min({loop} + 1, {size - 1})",
                f"T.clamp({loop} - 2, 0, {size - 1})",
            ]
            if extent <= size:
                forms += [loop] * 6 + [f"{size - 1} - {loop}", f"{loop} // 2"]
                forms += [f"{loop} + {size - extent}"] * (extent < size)
        if self.chance(0.2):
            return f"T.cast({self.integer(self.pick(('int32', 'uint8', 'int64')), 1)}, 'int32') % {size}"
        return str(self.pick(forms))

    def anywhere(self, size: int) -> str:
        """An index of a global dimension, perhaps outside: then the element reads as 0."""
        loop = self.small()
        forms = [
            *[loop] * 3, f"{loop} + {self.rng.randrange(1, 4)}", f"{loop} * 2", f"{self.moving()} * 2 - 1",
            f"{loop} * {self.rng.randrange(1, 5)} + {self.moving()} - 1", f"T.abs({loop} - {self.rng.randrange(1, 5)})",
            f"({loop} + {self.small()}) % {size + self.rng.randrange(2)}", f"T.max({size} - {loop}, 0)",
            f"T.cast({loop}, 'int64')", f"T.cast({loop}, 'uint32') + {self.rng.randrange(4)}", f"({loop} << 1) | 1",
            f"T.min({loop} * 2, {size})", f"{loop} // 2", f"({loop} ^ 1)", f"T.truncmod({loop} - 2, 3) + 2",
        ]  # fmt: skip
        sign = self.rng.random()
        index = [each for each in self.readable if each.values == "index" and len(each.sizes) == 1]
        if index and sign < 0.3:
            tensor = self.pick(index)
            place = self.pick([loop, loop, f"({loop}) % {tensor.sizes[0]}", f"{loop} + 1"])
            value = f"{tensor.name}[{place}]"
            return str(self.pick([value, value, f"{value} + {loop}", f"{value} - 1 + {self.moving()}"]))
        unsigned = [
            each for each in self.readable if each.dtype in ("uint8", "uint16", "uint32") and len(each.sizes) == 1
        ]
        if unsigned and sign < 0.4:
            tensor = self.pick(unsigned)
            read = f"{tensor.name}[({loop}) % {tensor.sizes[0]}]"
            wide = f"T.cast({self.rng.randrange(6)}, '{tensor.dtype}') - {read}"
            modulo = size + self.rng.randrange(2)
            return str(self.pick([wide, f"({wide}) % {modulo}", f"{read} % {modulo}", f"({wide} + {loop}) % {modulo}"]))
        return str(self.pick(forms))

    # Values

    def leaf(self, dtype: str) -> str:
        """A constant, a number in scope, or an element, converted."""
        kind = self.rng.random()
        if kind < 0.15:
            return self.constant(dtype)
        if kind < 0.35:
            return self.from_small(dtype)
        tiles = [
            each for each in self.tiles
            if each.memory not in self.locked and (self.rough_allowed or not (each.rough or each.wild))
        ]  # fmt: skip
        fitting = [each for each in tiles if each.dtype == dtype] or tiles
        if fitting and kind < 0.75:
            tile = self.pick(fitting)
            return self.converted(self.element(tile), tile.dtype, dtype)
        scalars = [each for each in self.scalars if each.low is None]
        if scalars and kind < 0.85:
            scalar = self.pick(scalars)
            return self.converted(scalar.name, scalar.dtype, dtype)
        tensors = [each for each in self.readable if each.values != "wild"]
        same = [each for each in tensors if each.dtype == dtype]
        if tensors:
            tensor = self.pick(same if same and self.chance(0.6) else tensors)
            return self.converted(self.global_element(tensor), tensor.dtype, dtype)
        return self.from_small(dtype)

    def element(self, tile: Tile) -> str:
        return f"{tile.name}[{', '.join(map(self.inside, tile.shape))}]"

    def global_element(self, tensor: Tensor) -> str:
        return f"{tensor.name}[{', '.join(map(self.anywhere, tensor.sizes))}]"

    def constant(self, dtype: str) -> str:
        if is_float(dtype):
            return f"T.cast({self.pick((0.0, 0.5, -1.5, 2.0, 1, -3, 0.25))}, '{dtype}')"
        if dtype == "bool":
            return f"T.cast({self.pick((0, 1))}, 'bool')"
        if self.chance(0.2):
            return f"T.cast({self.pick((f'T.max_value({dtype!r})', f'T.min_value({dtype!r})'))}, '{dtype}')"
        low = 0 if dtype.startswith("u") else -7
        return f"T.cast({self.pick((low, 0, 1, 2, 3, 5, 100))}, '{dtype}')"

    def from_small(self, dtype: str) -> str:
        loop = self.small()
        if is_float(dtype) and bits_of(dtype) == 8:
            return f"T.cast(({loop}) % 4, '{dtype}')"
        if dtype == "bool":
            return f"({loop} {self.pick(('<', '>=', '==', '!='))} {self.rng.randrange(4)})"
        return self.pick([f"T.cast({loop}, '{dtype}')", f"T.{dtype}({loop})"]) if self.chance(0.8) else (
            f"T.Cast('{dtype}', ({loop}) % 7)"
        )  # fmt: skip

    def converted(self, text: str, dtype: str, to: str) -> str:
        """A value of one type as another, kept to what that holds exactly."""
        if dtype == to:
            return text
        if to == "bool":
            return f"({text} != 0)" if dtype != "bool" else text
        if is_float(to):
            limit = TAME.get(to, 16)
            if dtype == "bool":
                return f"T.cast({text}, '{to}')"
            if not is_float(dtype):
                return f"T.cast({text} % {limit + 1}, '{to}')"
            if TAME.get(dtype, 16) > limit:
                return f"T.cast(T.clamp({text}, -{limit}.0, {limit}.0), '{to}')"
            return f"T.cast({text}, '{to}')"
        if is_float(dtype):
            low = 0 if to.startswith("u") else -16
            return f"T.cast(T.clamp({text}, {low}.0, 16.0), '{to}')"
        return f"T.cast({text}, '{to}')"

    def value(self, dtype: str, depth: int = 2) -> str:
        if depth <= 0 or self.chance(0.2):
            return self.leaf(dtype)
        if self.chance(0.15):
            form = self.pick(("T.if_then_else({0}, {1}, {2})", "T.Select({0}, {1}, {2})", "({1} if {0} else {2})"))
            return str(form).format(
                self.condition(depth - 1), self.value(dtype, depth - 1), self.value(dtype, depth - 1)
            )
        if dtype == "bool":
            return self.condition(depth)
        if self.chance(0.12):
            other = self.pick(DTYPES)
            return self.converted(self.value(other, depth - 1), other, dtype)
        return self.real(dtype, depth) if is_float(dtype) else self.integer(dtype, depth)

    def integer(self, dtype: str, depth: int) -> str:
        if depth <= 0:
            return self.leaf(dtype)
        a, b = self.value(dtype, depth - 1), self.value(dtype, depth - 1)
        one, bits = f"T.cast(1, '{dtype}')", bits_of(dtype)
        positive = f"T.max({b}, {one})" if self.chance(0.7) or dtype.startswith("u") else f"({b} | {one})"
        forms = [
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} & {b})", f"({a} | {b})", f"({a} ^ {b})", f"(~{a})",
            f"(-{a})", f"({a} // {positive})", f"({a} % {positive})", f"T.max({a}, {b})", f"T.min({a}, {b})",
            f"T.truncdiv({a}, {positive})", f"T.truncmod({a}, {positive})",
            f"T.clamp({a}, T.cast(1, '{dtype}'), T.cast(50, '{dtype}'))",
            f"T.cast({a} + {self.rng.randrange(1, 9)}, '{dtype}')",
            f"T.cast({a} // {self.pick((1, 2, 3, 4, 7, 8, 16))}, '{dtype}')",
            f"T.cast({a} % {self.pick((1, 2, 3, 4, 7, 8, 16))}, '{dtype}')",
            f"T.cast({self.rng.randrange(1, 9)} - {a}, '{dtype}')",
            f"({a} << ({b} & T.cast({bits - 1}, '{dtype}')))", f"({a} >> ({b} & T.cast({bits - 1}, '{dtype}')))",
            f"T.cast({a} >> {self.rng.randrange(bits)}, '{dtype}')",
        ]  # fmt: skip
        if self.chance(0.12):
            return f"T.{self.pick(('popcount', 'clz'))}({a})"
        if self.chance(0.1):
            other = self.pick([each for each in (*SIGNED, *UNSIGNED) if bits_of(each) == bits])
            return f"T.reinterpret({self.value(other, depth - 1)}, '{dtype}')"
        if self.chance(0.12):  # two types
            other = self.pick((*SIGNED, *UNSIGNED))
            return f"T.cast({a} {self.pick('+-*&|^')} {self.value(other, depth - 1)}, '{dtype}')"
        if self.chance(0.08) and dtype.startswith("int"):
            return f"T.abs({a} // T.cast(2, '{dtype}'))"
        return str(self.pick(forms))

    def real(self, dtype: str, depth: int) -> str:
        limit = TAME.get(dtype, 16)
        work = "float32" if bits_of(dtype) == 8 else dtype
        a, b = (self.converted(self.value(dtype, depth - 1), dtype, work) for _ in "ab")
        clamped = lambda text: f"T.clamp({text}, -{limit}.0, {limit}.0)"
        forms = [
            clamped(f"{a} + {b}"), clamped(f"{a} - {b}"), clamped(f"{a} * {b}"), f"T.max({a}, {b})", f"T.min({a}, {b})",
            f"T.floor({a})", f"T.ceil({a})", f"T.trunc({a})", f"T.rint({a})", f"T.round({a})", f"T.abs({a})", f"(-{a})",
            f"({a} / {self.pick((2.0, 4.0, 0.5, -8.0))})", clamped(f"{a} * 0.5 + {self.small()} % 5"),
            f"T.max({a}, {self.pick((-0.5, 0, 1.5))})", f"T.copysign({a}, {b} + 0.125)",
            clamped(f"T.fma({a}, {b}, T.cast(1, '{work}'))"), f"T.fmod({a}, T.cast(3, '{work}'))",
            f"T.round({a}, 'ties-away-from-zero')",
        ]  # fmt: skip
        text = self.pick(forms)
        return f"T.cast({text}, '{dtype}')"

    def wild(self, dtype: str) -> str:
        """A float that may be NaN or infinite."""
        sources = [f"{each.name}[{', '.join(map(self.anywhere, each.sizes))}]" for each in self.readable
                   if each.values == "wild"]  # fmt: skip
        sources += [
            self.element(each) for each in self.tiles if each.wild and not each.rough and each.memory not in self.locked
        ]
        x = f"T.cast({self.pick(sources)}, 'float32')" if sources else self.value("float32", 1)
        y = self.value("float32", 1)
        text = self.pick([
            x, x, f"({x} - {x})", f"({x} * 0.0)", f"T.max({x}, {y})", f"T.min({x}, {y})", f"({x} + T.infinity('float32'))",
            f"(-T.infinity('float32') + {x})", f"({y} - {y}) / ({y} - {y})", f"T.log({x} * 0.0 - 1.0)",
            f"T.sqrt(-1.0 - T.abs({y}))", f"T.if_then_else({x} < {y}, {x}, {y})", f"T.clamp({x}, -4.0, 4.0)",
            f"T.if_then_else(T.isnan({x}), {y}, {x})", f"T.if_then_else({x} != {x}, {y}, T.infinity('float32'))",
            f"T.if_then_else(T.{self.pick(('isinf', 'isfinite'))}({x}), {y}, 0.5)", f"T.abs({x})",
        ])  # fmt: skip
        return str(text) if dtype == "float32" else f"T.cast({text}, '{dtype}')"

    def rough(self, dtype: str) -> str:
        """A function's value, which implementations round differently."""
        before, self.rough_allowed = self.rough_allowed, False
        x = self.value("float32" if bits_of(dtype) == 8 else dtype, 1)
        self.rough_allowed = before
        forms = [
            f"T.exp(T.min({x}, 4.0))", f"T.exp2(T.clamp({x}, -8.0, 4.0))", f"T.log(T.abs({x}) + 0.5)",
            f"T.log2(T.abs({x}) + 1.5)", f"T.sqrt(T.abs({x}))", f"T.rsqrt(T.abs({x}) + 0.25)", f"T.sin({x})",
            f"T.cos({x})", f"T.tanh({x})", f"T.erf({x})", f"T.sigmoid({x})", f"({x} / (T.abs({x}) + 3.0))",
            f"({x} / 3.0)", f"T.exp(-T.abs({x})) * 0.125", f"T.log1p(T.abs({x}))", f"T.expm1(T.min({x}, 2.0))",
            f"T.exp10(T.clamp({x}, -2.0, 2.0))", f"T.atan({x})", f"T.log10(T.abs({x}) + 2.0)", "0.1", f"({x} + 0.1)",
            f"T.if_then_else({self.condition()}, {x}, 0.7)", f"T.max({x} * 0.3, 0.1)", f"({x} * {x} * {x} + {x})",
        ]  # fmt: skip
        return f"T.cast({self.pick(forms)}, '{dtype}')"

    # Conditions

    def condition(self, depth: int = 1) -> str:
        kind = self.rng.random()
        sign = self.pick(("<", "<=", ">", ">=", "==", "!="))
        if depth > 1 and kind < 0.3:
            word = self.pick((" and ", " or "))
            if self.chance(0.2):
                return f"T.{self.pick(('And', 'Or'))}({self.condition(depth - 1)}, {self.condition(depth - 1)})"
            return f"({self.condition(depth - 1)}{word}{self.condition(depth - 1)})"
        if depth > 1 and kind < 0.38:
            return f"(not {self.condition(depth - 1)})"
        if kind < 0.55:
            low = self.rng.randrange(3)
            return f"({low} <= {self.small()} < {low + self.rng.randrange(1, 6)})"
        if kind < 0.7:
            dtype = self.pick(DTYPES[:-1])
            if is_float(dtype):
                dtype = "float32"
            return f"({self.value(dtype, depth - 1)} {sign} {self.value(dtype, depth - 1)})"
        if kind < 0.8:
            return f"(({self.small()} + {self.small()}) % {self.pick((2, 3))} == {self.rng.randrange(2)})"
        return f"({self.small()} {sign} {self.pick((str(self.rng.randrange(6)), self.small()))})"
