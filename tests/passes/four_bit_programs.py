"""Programs over 4-bit integers: every small expression, in every place where ranges know something of its operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tests.support.all_values import SIGNED, UNSIGNED, values_of
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.parser import parse_op
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BOOL, ELEMENTS, ScalarType, TensorType, with_shape

BINARY: tuple[type[arith.BinaryOp], ...] = (
    arith.AddOp, arith.SubOp, arith.MulOp, arith.FloorDivOp, arith.FloorModOp, arith.TruncDivOp, arith.TruncModOp,
    arith.MinOp, arith.MaxOp, arith.AndOp, arith.OrOp, arith.XorOp, arith.ShlOp, arith.ShrOp,
)  # fmt: skip
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")
CASTS = ("bool", SIGNED, UNSIGNED, "int8", "uint8", "int32", "int64", "uint32")
NUMBERS = {SIGNED: (-8, -7, -2, -1, 0, 1, 2, 3, 4, 7), UNSIGNED: (0, 1, 2, 3, 4, 7, 8, 15)}


class Author:
    """Writes one program with parameters such as x and y and dynamic dimensions such as n, all of one type."""

    def __init__(self, dtype: str, parameters: Sequence[str] = ("x", "y"), symbols: Sequence[str] = ("n",)) -> None:
        self.dtype, self.type = dtype, ScalarType(dtype)
        self.parameters, self.symbols = tuple(parameters), tuple(symbols)
        body = Region([self.type] * len([*parameters, *symbols]), [*parameters, *symbols])
        self.x, self.y = body.args[0], body.args[len(parameters) - 1]
        self.sizes = body.args[len(parameters) :]
        self.body = self.at = Builder(body)
        self.numbers: dict[tuple[int, str], Value] = {}
        self.prints = 0

    def number(self, number: int, dtype: str = "") -> Value:
        key = (number, dtype or self.dtype)
        if key not in self.numbers:
            made = arith.ConstantOp(value=number, result_types=[ScalarType(key[1])])
            region = self.body.region
            self.numbers[key] = Builder(region, region.first).insert(made).result
        return self.numbers[key]

    def leaves(self, numbers: Iterable[int]) -> list[Value]:
        return [self.x, self.y, *self.sizes, *map(self.number, numbers)]

    def make(self, op: type[Operation], *operands: Any, **attributes: Any) -> Value:
        return self.at.insert(op(*operands, **attributes)).result

    def cast(self, value: Value, dtype: str) -> Value:
        return self.make(arith.CastOp, value, result_types=[with_shape(value.shape, dtype)])

    def assume(self, condition: Value) -> None:
        self.at.insert(tile.AssumeOp(condition))

    def print(self, values: Sequence[Value]) -> None:
        for at in range(0, len(values), 64):
            self.at.insert(tile.PrintOp(list(values[at : at + 64]), message=f"values {self.prints}"))
            self.prints += 1

    def finish(self) -> tile.FuncOp:
        self.body.insert(scf.YieldOp([]))
        return tile.FuncOp(
            sym_name="f",
            parameters=self.parameters,
            symbols=self.symbols,
            symbol_sources=("x.0",) * len(self.symbols),
            regions=[self.body.region],
        )


Maker = Callable[[Author, Value, Value], Value]


def _binary(op: type[arith.BinaryOp]) -> Maker:
    return lambda author, a, b: author.make(op, a, b)


def _chosen(predicate: str) -> Maker:
    return lambda author, a, b: author.make(arith.SelectOp, author.make(arith.CmpOp, a, b, predicate=predicate), a, b)


def _there_and_back(dtype: str) -> Maker:
    return lambda author, a, b: author.make(arith.AddOp, author.cast(author.cast(a, dtype), author.dtype), b)


def _among(dtype: str) -> Maker:
    """Computed in another type."""

    def made(author: Author, a: Value, b: Value) -> Value:
        return author.cast(author.make(arith.SubOp, author.cast(a, dtype), author.cast(b, dtype)), author.dtype)

    return made


def _function(name: str) -> Maker:
    return lambda author, a, b: author.make(arith.MathOp, [a, b, b] if name == "clamp" else [a], function=name)


MAKERS: dict[str, Maker] = {
    **{op.name: _binary(op) for op in BINARY},
    **{f"select {predicate}": _chosen(predicate) for predicate in ("lt", "le")},
    **{f"cast {dtype}": _there_and_back(dtype) for dtype in ("bool", "int8", "uint8")},
    **{f"sub in {dtype}": _among(dtype) for dtype in ("int8", "uint8")},
    "neg": lambda author, a, b: author.make(arith.NegOp, a),
    "not": lambda author, a, b: author.make(arith.NotOp, a),
    "abs": _function("abs"),
    "clamp": _function("clamp"),
}
ONE_OPERAND = ("cast bool", "neg", "not", "abs")


def pairs(name: str, leaves: Sequence[Value]) -> Iterator[tuple[Value, Value]]:
    """The operands that make different expressions."""
    return ((a, leaves[0]) for a in leaves) if name in ONE_OPERAND else itertools.product(leaves, leaves)


def expressions(dtype: str, numbers: Sequence[int], inner: Sequence[str] = tuple(MAKERS), step: int = 1, start: int = 0) -> Iterator[tile.FuncOp]:  # fmt: skip  # noqa: E501
    """For each expression of one operation, a program that prints every expression of two operations around it.

    `step` takes every so-manieth, from `start`.
    """
    inside = Author(dtype)
    count = len(inside.leaves(numbers))
    made = ((name, at) for name in inner for at in range(count if name in ONE_OPERAND else count * count))
    for name, at in itertools.islice(made, start, None, step):
        author = Author(dtype)
        leaves = author.leaves(numbers)
        a, b = next(itertools.islice(pairs(name, leaves), at, None))
        first = MAKERS[name](author, a, b)
        values = [first]
        for outer, maker in MAKERS.items():
            if outer in ONE_OPERAND:
                values.append(maker(author, first, first))
            else:
                values += [maker(author, first, leaf) for leaf in leaves]
                values += [maker(author, leaf, first) for leaf in leaves]
                values.append(maker(author, first, first))
        author.print(values)
        yield author.finish()


def comparisons(dtype: str, numbers: Sequence[int], step: int = 1, start: int = 0) -> Iterator[tile.FuncOp]:
    """Comparisons of expressions of one operation with leaves, in both orders. `step` as in `expressions`."""
    for name, maker in itertools.islice(MAKERS.items(), start, None, step):
        author = Author(dtype)
        leaves = author.leaves((numbers[0], numbers[-1], 0, 1, 3))
        values = []
        for a, b in pairs(name, [author.x, *author.sizes, *map(author.number, (1, 3))]):
            made = maker(author, a, b)
            values += [
                author.make(arith.CmpOp, *operands, predicate=predicate)
                for leaf in leaves
                for operands in ((made, leaf), (leaf, made))
                for predicate in PREDICATES
            ]
        author.print(values)
        yield author.finish()


def chains(dtype: str, numbers: Sequence[int]) -> Iterator[tile.FuncOp]:
    """What patterns look for that two operations are too few for: numbers apart, and sums that are divided."""
    for first in numbers:
        author = Author(dtype, symbols=())
        number, x = author.number(first), author.x
        negative = author.make(arith.NegOp, author.y)
        values: list[Value] = [author.make(arith.NegOp, negative)]
        for op in (arith.AddOp, arith.SubOp):
            values += [author.make(op, x, negative), author.make(op, negative, x)]
        small = [x, *(author.make(arith.AndOp, x, author.number(most)) for most in (1, 3))]
        rests = [author.y, *(author.make(arith.AndOp, author.y, author.number(most)) for most in (1, 3))]
        for op in (*BINARY[:7], *BINARY[7:12]):
            inner = [author.make(op, x, number), author.make(op, number, x)]
            values += [
                author.make(outer, each, author.number(second))
                for outer in {op, arith.AddOp, arith.SubOp, arith.FloorModOp, arith.TruncModOp}
                for each in inner
                for second in numbers
            ]
            values += [author.make(arith.SubOp, author.number(second), each) for each in inner for second in numbers]
        for value, second in itertools.product(small, numbers):
            product = author.make(arith.MulOp, value, number)
            rest = [author.make(arith.AddOp, product, each) for each in rests]
            rest += [author.make(arith.AddOp, rests[-1], product), author.make(arith.SubOp, product, rests[-1])]
            least = author.make(arith.MaxOp, author.y, author.number(0))  # up to the divisor itself, and just below it
            most = [number for number in (second, second - 1) if number > 0]
            rest += [
                author.make(arith.AddOp, product, author.make(arith.MinOp, least, author.number(each))) for each in most
            ]
            for op in (arith.FloorDivOp, arith.FloorModOp, arith.TruncDivOp, arith.TruncModOp):
                values += [author.make(op, each, author.number(second)) for each in (product, *rest)]
        author.print(values)
        yield author.finish()


def conditions(dtype: str) -> Iterator[tile.FuncOp]:
    """Everything that is done with bools."""
    author = Author(dtype)
    first = author.make(arith.CmpOp, author.x, author.y, predicate="lt")
    second = author.make(arith.CmpOp, author.x, author.number(3), predicate="eq")
    true, false = (author.at.constant(known, BOOL) for known in (True, False))
    leaves = [first, second, author.make(arith.NotOp, first), true, false]
    values: list[Value] = []
    for op in (arith.AndOp, arith.OrOp, arith.XorOp, arith.MinOp, arith.MaxOp):
        made = [author.make(op, a, b) for a, b in itertools.product(leaves, leaves)]
        values += made + [author.make(op, a, b) for a, b in itertools.product(made, leaves)]
        values += [author.make(op, b, a) for a, b in itertools.product(made, leaves)]
    for predicate in PREDICATES:
        values += [author.make(arith.CmpOp, a, b, predicate=predicate) for a, b in itertools.product(leaves, leaves)]
    values += [author.make(arith.SelectOp, a, b, c) for a, b, c in itertools.product(leaves, leaves, leaves)]
    values += [author.make(arith.SelectOp, each, author.x, author.y) for each in leaves]
    values += [author.make(arith.NotOp, author.make(arith.NotOp, each)) for each in leaves]
    author.print(values)
    yield author.finish()


def casts(dtype: str) -> Iterator[tile.FuncOp]:
    """Chains of casts, and what is computed and compared between them."""
    for start in ("x", "low", "number"):
        author = Author(dtype)
        low = author.make(arith.AndOp, author.x, author.number(3))
        begin = {"x": author.x, "low": low, "number": author.number(7)}[start]
        values: list[Value] = []
        for first, second in itertools.product(CASTS, CASTS):
            one = author.cast(begin, first)
            two = author.cast(one, second)
            values += [one, two, author.cast(two, dtype), author.cast(two, first)]
            if first != "bool":
                for number in {1, min(5, int(ELEMENTS[first].high))}:
                    made = author.make(arith.SubOp, one, author.number(number, first))
                    values += [made, author.cast(made, second)]
                values += [
                    author.make(arith.CmpOp, one, author.cast(each, first), predicate=predicate)
                    for each in (author.y, *author.sizes)
                    for predicate in PREDICATES
                ]
        author.print(values)
        yield author.finish()


def assumptions(dtype: str, numbers: Sequence[int]) -> Iterator[tile.FuncOp]:
    """Assumptions about x at every boundary, and what they decide."""
    edges = [number for number in numbers if number in values_of(dtype)]
    for predicate, edge, mirrored in itertools.product(PREDICATES, edges, (False, True)):
        author = Author(dtype)
        number = author.number(edge)
        operands = (number, author.x) if mirrored else (author.x, number)
        condition = author.make(arith.CmpOp, *operands, predicate=predicate)
        least = author.make(arith.CmpOp, author.y, author.number(1), predicate="ge")
        author.assume(author.make(arith.AndOp, condition, least))
        near = [author.number(each) for each in range(edge - 1, edge + 2) if each in values_of(dtype)]
        values: list[Value] = [condition, least]
        for op in (arith.AddOp, arith.SubOp, arith.FloorDivOp, arith.FloorModOp, arith.TruncModOp, arith.MinOp):
            values += [author.make(op, a, b) for a in (author.x, author.y) for b in (*near, author.y, author.x)]
        values += [
            author.make(arith.CmpOp, a, b, predicate=each)
            for a in (author.x, author.y)
            for b in near
            for each in PREDICATES
        ]
        author.print(values)
        yield author.finish()


def loops(dtype: str) -> Iterator[tile.FuncOp]:
    """The index of a loop in expressions, and loops around the limits of what runs."""
    bounds = ["x", "n", "last", 0, 1, 5]
    steps = [1, "few", 2, 7, *([-1, -3, "back", "y"] if dtype == SIGNED else [])]
    for lower, upper, step in itertools.product(bounds, bounds, steps):
        author = Author(dtype)
        (size,) = author.sizes
        named: dict[Any, Value] = {"x": author.x, "n": size}
        named["last"] = author.make(arith.SubOp, size, author.number(1))
        ends = [named[each] if each in named else author.number(each) for each in (lower, upper)]
        few = author.make(arith.AndOp, author.y, author.number(1))
        steps_by = {"few": few, "back": author.make(arith.NegOp, few), "y": author.y}
        body = Region([author.type] * 3, ["i", "carried", "kept"])
        by = steps_by[step] if isinstance(step, str) else author.number(step)
        loop = scf.ForOp(*ends, by, [author.y, author.x], regions=[body])
        author.at.insert(loop)
        author.at = Builder(body)
        index, carried, kept = body.args
        others = [*named.values(), *ends, author.number(1), author.number(3)]
        values: list[Value] = [index, kept]
        for op in (arith.SubOp, arith.AddOp, arith.FloorDivOp, arith.FloorModOp, arith.MinOp, arith.MaxOp):
            made = [author.make(op, a, b) for each in others for a, b in ((index, each), (each, index))]
            values += made
        values += [author.make(arith.SubOp, named["last"], value) for value in values[:8]]
        values += [author.make(arith.CmpOp, value, each, predicate="lt") for value in values[:20] for each in others]
        author.print(values)
        body.insert(scf.YieldOp([author.make(arith.AddOp, carried, index), kept]))
        author.at = author.body
        author.print(loop.results)
        yield author.finish()


def grids(dtype: str) -> Iterator[tile.FuncOp]:
    """Block indices, whose grid has as many blocks as a dimension has elements, rows or tiles."""
    for extent, launch in itertools.product(("n", "half", "less", "least", 3), (False, True)):
        author = Author(dtype, ("x",), ("n", "m"))
        size, other = author.sizes
        blocks = {
            "n": lambda: size,
            "half": lambda: author.make(arith.FloorDivOp, size, author.number(2)),
            "less": lambda: author.make(arith.SubOp, size, author.number(1)),
            "least": lambda: author.make(arith.MinOp, size, other),
            3: lambda: author.number(3),
        }[extent]()
        text = _LAUNCH if launch else _KERNEL
        func = author.finish()
        outer = Builder(func.body, func.body.terminator)
        kernel = parse_kernel(text, dtype, func, [author.x, size, other, blocks])
        outer.insert(kernel)
        yield func


_BODY = """
    %one = arith.constant {value = 1} : T
    %three = arith.constant {value = 3} : T
    %last = arith.sub %n, %one : T
    %back = arith.sub %last, %b : T
    %beyond = arith.sub %n, %b : T
    %above = arith.add %b, %one : T
    %most = arith.min %b, %x : T
    %a = arith.cmp %b, %n {predicate = "lt"} : bool
    %c = arith.cmp %back, %n {predicate = "lt"} : bool
    %d = arith.cmp %above, %n {predicate = "le"} : bool
    %e = arith.cmp %most, %m {predicate = "lt"} : bool
    %g = arith.cmp %back, %b {predicate = "ge"} : bool
    %h = arith.floormod %b, %n : T
    %i = arith.floordiv %b, %n : T
    %j = arith.floormod %b, %three : T
    %k = arith.max %back, %b : T
    tile.print [%back, %beyond, %above, %most, %a, %c, %d, %e, %g, %h, %i, %j, %k] {message = "block"}
    scf.yield"""
_KERNEL = "tile.kernel [%blocks] (%b: T) {" + _BODY + "\n}"
_LAUNCH = (
    """triton.launch [%blocks], [%x_outside, %n_outside, %m_outside] {sym_name = "k"} (%x: T, %n: T, %m: T) {
    %b = triton.program_id {axis = 0} : T"""
    + _BODY
    + "\n}"
)


def parse_kernel(text: str, dtype: str, func: tile.FuncOp, values: Sequence[Value]) -> Operation:
    """A kernel written as text, for a program that has the values x, n, m and the number of blocks."""
    names = ("x", "n", "m", "blocks")
    inside = "_outside" if "_outside" in text else ""
    arguments = ", ".join(f"%{name}{inside if name != 'blocks' else ''}: {dtype}" for name in names)
    whole = parse_op(
        f"""tile.func {{sym_name = "g", parameters = {names}}} ({arguments}) {{
        {text.replace(": T", f": {dtype}")}
        scf.yield
    }}""".replace("'", '"')
    )
    kernel = whole.regions[0].ops[0].detach()
    for arg, value in zip(whole.regions[0].args, values, strict=True):
        arg.replace_with(value)
    return kernel


def tensors(dtype: str) -> Iterator[tile.FuncOp]:
    """Small tensors of what lanes hold: what changes places must not be compared with what stood there before."""
    for number in (0, 1, 3):
        author = Author(dtype)
        row = author.make(tensor.IotaOp, axis=1, result_types=[TensorType((1, 4), dtype)])
        column = author.make(tensor.IotaOp, axis=0, result_types=[TensorType((2, 1), dtype)])
        (size,) = author.sizes
        square = author.make(arith.AddOp, author.make(arith.XorOp, author.x, row), column)
        less = author.make(arith.SubOp, author.make(arith.MaxOp, square, author.number(1)), author.number(number))
        turned = author.make(tensor.TransposeOp, less, permutation=(1, 0))
        flat = author.make(tensor.ReshapeOp, turned, result_types=[TensorType((2, 4), dtype)])
        again = author.make(tensor.TransposeOp, turned, permutation=(1, 0))
        splat = author.at.constant(3, TensorType((2, 4), dtype))
        wide = author.make(tensor.BroadcastOp, author.x, result_types=[TensorType((1, 4), dtype)])
        wider = author.make(tensor.BroadcastOp, wide, result_types=[TensorType((2, 4), dtype)])
        long = author.make(tensor.ReshapeOp, wider, result_types=[TensorType((4, 2), dtype)])
        lone = author.make(tensor.IotaOp, axis=0, result_types=[TensorType((1, 1), dtype)])
        moved = author.make(tensor.ReshapeOp, row, result_types=[TensorType((4, 1), dtype)])
        along = author.make(tensor.TransposeOp, row, permutation=(1, 0))
        inside = author.make(arith.FloorModOp, square, author.number(2))
        picked = author.make(tensor.GatherOp, square, inside, axis=0)
        values = [square, less, turned, flat, again, wider, long, lone, moved, along, picked, inside]
        values += [author.make(arith.AddOp, square, each) for each in (splat, wider, row, lone)]
        values += [author.make(arith.MaxOp, splat, square), author.make(arith.AddOp, moved, along)]
        values += [
            author.make(op, each, axis=axis, kind=kind)
            for each in (square, row, inside)
            for axis in (0, 1)
            for op, kinds in (
                (tensor.ReduceOp, tuple(tensor.REDUCTIONS)),
                (tensor.ScanOp, ("sum", "max", "min", "prod")),
            )
            for kind in kinds
            if kind not in ("abssum", "absmax") or ELEMENTS[dtype].kind == "int"
        ]
        bools = [author.make(arith.CmpOp, each, author.y, predicate="lt") for each in (square, row)]
        values += [
            author.make(tensor.ReduceOp, each, kind=kind, axis=1)
            for each in bools
            for kind in ("and", "or", "xor", "sum", "prod", "max", "min")
        ]
        values += [author.make(tensor.ScanOp, bools[0], kind=kind, axis=1) for kind in ("max", "min", "sum", "prod")]
        values += [
            author.make(arith.CmpOp, a, b, predicate=predicate)
            for a, b in itertools.permutations((square, less, flat, again, splat, size, author.x), 2)
            for predicate in ("lt", "ge", "eq")
        ]
        author.print(values)
        yield author.finish()


CONTROL = """
tile.func {sym_name = "f", parameters = ("x", "y")} (%x: T, %y: T) {
  %c0 = arith.constant {value = 0} : T
  %c1 = arith.constant {value = 1} : T
  %c2 = arith.constant {value = 2} : T
  %c3 = arith.constant {value = 3} : T
  %yes = arith.constant {value = true} : bool
  %no = arith.constant {value = false} : bool
  %less = arith.cmp %x, %y {predicate = "lt"} : bool
  %more = arith.not %less : bool
  BODY
  scf.yield
}"""
BODIES = (
    # branches: known, without work, with one value on both sides, empty first, inverted
    "%a = scf.if %yes : T { scf.yield [%x] } { scf.yield [%y] }\ntile.print [%a]",
    "%a = scf.if %no : T { scf.yield [%x] } { tile.print [%y]\nscf.yield [%y] }\ntile.print [%a]",
    "%a = scf.if %less : T { scf.yield [%x] } { scf.yield [%y] }\ntile.print [%a]",
    "%a, %b = scf.if %less : T, T { tile.print [%x]\nscf.yield [%x, %c1] } { scf.yield [%x, %y] }\ntile.print [%a]",
    "%a, %b = scf.if %less : T, T { tile.print [%x]\nscf.yield [%y, %c1] } { scf.yield [%x, %c3] }\ntile.print [%b]",
    "scf.if %less { scf.yield } { tile.print [%x]\nscf.yield }",
    "scf.if %more { tile.print [%x]\nscf.yield } { tile.print [%y]\nscf.yield }",
    "%a = scf.if %more : T { tile.print [%x]\nscf.yield [%y] } { scf.yield [%c1] }\ntile.print [%a]",
    # loops: never, once, in both directions, with values that stay, return or are not used
    "%a = scf.for %c1, %c1, %c1[%x] : T (%i: T, %k: T) { tile.print [%i]\nscf.yield [%i] }\ntile.print [%a]",
    "%a = scf.for %c1, %c2, %c1[%x] : T (%i: T, %k: T) { tile.print [%i]\nscf.yield [%i] }\ntile.print [%a]",
    "%a = scf.for %c1, %c3, %c2[%x] : T (%i: T, %k: T) { tile.print [%i]\nscf.yield [%k] }\ntile.print [%a]",
    "%a = scf.for %c0, %c3, %c2[%x] : T (%i: T, %k: T) { tile.print [%k]\nscf.yield [%i] }\ntile.print [%a]",
    "%a = scf.for %x, %y, %c2[%x] : T (%i: T, %k: T) { tile.print [%k]\nscf.yield [%x] }\ntile.print [%a]",
    "%a = scf.for %x, %y, %c1[%x] : T (%i: T, %k: T) { %n = arith.add %k, %i : T\nscf.yield [%n] }",
    "%a = scf.for %x, %y, %c1[%x] : T (%i: T, %k: T) { tile.print [%i]\n%n = arith.add %k, %i : T\nscf.yield [%n] }",
    "%a, %b = scf.for %x, %y, %c1[%x, %y] : T, T (%i: T, %k: T, %l: T) {"
    " %n = arith.add %k, %l : T\nscf.yield [%n, %k] }\ntile.print [%b]",
    "%a, %b = scf.for %x, %y, %c1[%x, %y] : T, T (%i: T, %k: T, %l: T) {"
    " %n = arith.add %k, %i : T\nscf.yield [%k, %n] }\ntile.print [%a]",
    "%a, %b = scf.for %c0, %c2, %c1[%x, %c1] : T, T (%i: T, %k: T, %l: T) {"
    " %n = arith.add %k, %l : T\nscf.yield [%n, %l] }\ntile.print [%a]",
    "%m = arith.min %x, %c1 : T\n%l = arith.max %y, %c1 : T\n%a = scf.for %l, %m, %c1[%x] : T (%i: T, %k: T) {"
    " tile.print [%i]\nscf.yield [%i] }\ntile.print [%a]",
    "%m = arith.min %x, %c2 : T\n%l = arith.max %y, %c1 : T\n%a = scf.for %l, %m, %c1[%x] : T (%i: T, %k: T) {"
    " tile.print [%i]\nscf.yield [%i] }\ntile.print [%a]",
    "scf.for %c0, %c2, %c1 (%i: T) { scf.for %c0, %c1, %c1 (%j: T) { tile.print [%i, %j]\nscf.yield }\nscf.yield }",
    # while: never, with values that stay, come from outside, or are not used
    "%a = scf.while [%x] : T (%k: T) { tile.print [%k]\nscf.condition %no[%k] } (%k2: T) { scf.yield [%y] }\n"
    "tile.print [%a]",
    "%a = scf.while [%x] : T (%k: T) { %g = arith.cmp %k, %y {predicate = \"lt\"} : bool\nscf.condition %g[%k] }"
    " (%k2: T) { %n = arith.add %k2, %c1 : T\nscf.yield [%n] }\ntile.print [%a]",
    "%a, %b = scf.while [%x, %y] : T, T (%k: T, %l: T) { %g = arith.cmp %k, %l {predicate = \"lt\"} : bool\n"
    "scf.condition %g[%k, %l] } (%k2: T, %l2: T) { %n = arith.add %k2, %c1 : T\nscf.yield [%n, %l2] }\n"
    "tile.print [%a, %b]",
    "%a, %b = scf.while [%x, %y] : T, T (%k: T, %l: T) { %g = arith.cmp %k, %y {predicate = \"lt\"} : bool\n"
    "scf.condition %g[%k, %c3] } (%k2: T, %l2: T) { %n = arith.add %k2, %c1 : T\ntile.print [%l2]\n"
    "scf.yield [%n, %y] }\ntile.print [%a, %b]",
    "%a, %b = scf.while [%x, %y] : T, T (%k: T, %l: T) { %g = arith.cmp %k, %y {predicate = \"lt\"} : bool\n"
    "scf.condition %g[%l, %k] } (%k2: T, %l2: T) { %n = arith.add %l2, %c1 : T\nscf.yield [%n, %k2] }\n"
    "tile.print [%a, %b]",
)  # fmt: skip


def control_flow(dtype: str) -> Iterator[tile.FuncOp]:
    """Branches and loops, each printing what happens in it."""
    for body in BODIES:
        text = CONTROL.replace("BODY", body).replace(": T", f": {dtype}").replace(", T", f", {dtype}")
        parts = text.split("tile.print [")
        numbered = "".join(
            part if not at else f"tile.print [{part.replace(']', f'] {{message = {chr(34)}p{at}{chr(34)}}}', 1)}"
            for at, part in enumerate(parts)
        )
        made = parse_op(numbered)
        assert isinstance(made, tile.FuncOp)
        yield made
