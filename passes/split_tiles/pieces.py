"""Rewriting of operations on tiles that are divided: one for each part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, BufferType, Shape, is_float, with_shape
from tiledsl.passes.simplify_ranges import decide, extremum
from tiledsl.passes.split_tiles.dims import Dims, Spans, first_of_slice, matched
from tiledsl.passes.tile_values import combined, converted, iota, reshaped

_OF_ONE = ("sum", "max", "min", "prod", "and", "or", "xor")  # reductions that leave a single element as it is


class Pieces:
    """The parts of tiles, and the operations that compute them."""

    def __init__(self, dims: Dims) -> None:
        self.dims = dims
        self.pieces: dict[tuple[Value, Spans], Value] = {}
        self.ranges = Ranges()
        self.replaced: list[Operation] = []
        self._handed_on: dict[Operation, Sequence[Value]] = {}  # what a terminator's values become

    def run(self) -> None:
        for op in self.dims.ops:
            if self.dims.free.isdisjoint(op.results):
                self._operation(op)
        for op in reversed(self.replaced):
            op.erase()

    def _operation(self, op: Operation) -> None:
        """Replace an operation by those on parts, if something that it combines is divided."""
        match op:
            case tile.LoadOp() | tile.StoreOp() | tile.AtomicOp():
                self._each(op, tile.access_shape(op) or ())
            case tile.AssertOp():
                self._each(op, op.condition.shape)
            case tensor.ReduceOp():
                self._reduce(op)
            case tensor.DotOp():
                self._dot(op)
            case tensor.GatherOp():
                self._gather(op)
            case (
                arith.Elementwise()
                | tensor.BroadcastOp()
                | tensor.ScanOp()
                | tensor.SortOp()
                | tensor.TransposeOp()
                | tensor.ReshapeOp()
            ):
                self._each(op, op.results[0].shape)
            case scf.ForOp():
                self._handed_on[op.body.terminator] = op.iter_args
                self._carry(op)
                op.body.set_args([op.index, *self._divided(op.iter_args)])
            case scf.IfOp():
                self._handed_on |= {region.terminator: op.results for region in op.regions}
                op.results = self._divided(op.results)
            case scf.WhileOp():
                self._handed_on |= {op.before.terminator: op.after.args, op.after.terminator: op.iter_args}
                self._carry(op)
                for region in op.regions:
                    region.set_args(self._divided(region.args))
            case scf.YieldOp() | scf.ConditionOp() if op in self._handed_on:
                op.set_field("values", self._handed(self._handed_on[op], op.values))
            case _:
                pass

    def piece(self, value: Value, spans: Spans) -> Value:
        """A part of a tile; along its dimensions of 1 nothing is divided."""
        if not value.shape:
            return value
        spans = tuple((0, 1) if size == 1 else span for size, span in zip(value.shape, spans, strict=True))
        if _shape(spans) == value.shape:
            return value
        if (value, spans) not in self.pieces:
            op = value.op
            assert op is not None and value in self.dims.free, f"{value} has no part {spans}"
            self.pieces[value, spans] = self._computed(op, spans)
        return self.pieces[value, spans]

    def _computed(self, op: Operation, spans: Spans) -> Value:
        """A part of a free value, computed where all of it is."""
        at = Builder.at(op)
        if isinstance(op, arith.ConstantOp):
            return at.constant(op.value, with_shape(_shape(spans), op.out.dtype))
        if isinstance(op, tensor.IotaOp):
            first, size = spans[op.axis]
            place = iota(at, len(spans), op.axis, size, op.out.dtype)
            return _moved(at, place, first)
        (piece,) = self._copied(at, op, spans)
        return piece

    def _each(self, op: Operation, shape: Shape) -> None:
        """An operation on each part of the tile that it gives or moves."""
        parts = self.dims.parts(op, shape)
        if len(parts) > 1:
            for spans in parts:
                for old, new in zip(op.results, self._copied(Builder.at(op), op, spans), strict=True):
                    self.pieces[old, spans] = new
            self.replaced.append(op)

    def _copied(self, at: Builder, op: Operation, spans: Spans) -> list[Value]:
        """The operation on a part of what it gives or moves."""
        source = _source(op, spans)
        tiles = [value for value in op.operands if type(value.type) is not BufferType]
        copy = op.clone({value: self.piece(value, source) for value in tiles})
        for value in copy.results:
            value.set_type(with_shape(_shape(spans), value.dtype))
            value.name = _named(value.name, spans)
        at.insert(copy)
        return self._folded(at, copy)

    def _folded(self, at: Builder, op: Operation) -> list[Value]:
        """What an operation that was just inserted gives, if that is known without it; then it is erased."""
        folded = op.fold()
        if isinstance(op, arith.CmpOp) and folded is None:
            outcome = decide(self.ranges, op.predicate, op.lhs, op.rhs)
            folded = None if outcome is None else [outcome]
        elif isinstance(op, (arith.MinOp, arith.MaxOp)) and folded is None:
            chosen = extremum(self.ranges, op)
            folded = None if chosen is None or chosen.type != op.out.type else [chosen]
        if folded is None:
            return op.results
        types = [value.type for value in op.results]
        op.erase()
        return [
            new if isinstance(new, Value) else at.constant(new, type) for new, type in zip(folded, types, strict=True)
        ]

    def _reduce(self, op: tensor.ReduceOp) -> None:
        shape = op.source.shape
        along = self.dims.cut(op.source, op.axis, shape[op.axis])
        others = [self.dims.cut(op, axis, size) for axis, size in enumerate(shape) if axis != op.axis]
        parts = {spans: [(*spans[: op.axis], part, *spans[op.axis :]) for part in along] for spans in product(*others)}
        if len(parts) * len(along) > 1:
            at = Builder.at(op)
            self._replace(op, {spans: self._reduced(at, op, spans, sources) for spans, sources in parts.items()})

    def _reduced(self, at: Builder, op: tensor.ReduceOp, spans: Spans, parts: list[Spans]) -> Value:
        """The reduction of these parts of the source together."""
        pieces = [self.piece(op.source, part) for part in parts]
        counted = [value for value in pieces if not _is_nothing(op.kind, value)] or pieces[:1]
        # Sums of fewer than 32 bits are rounded once, behind all parts.
        rounds = len(counted) > 1 and is_float(op.out.dtype) and op.kind in ("sum", "prod", "abssum")
        wide = "float32" if rounds and ELEMENTS[op.out.dtype].bits < 32 else op.out.dtype
        total: Value | None = None
        for value in counted:
            value = converted(at, value, wide)
            if value.shape[op.axis] == 1 and op.kind in _OF_ONE:
                partial = reshaped(at, value, _shape(spans))
            else:
                partial = at.insert(op.clone({op.source: value})).result
                partial.set_type(with_shape(_shape(spans), wide))
            if total is not None:
                partial = combined(at, op.kind, total, partial, propagate_nan=op.propagate_nan)
            total = partial
            total.name = _named(op.out.name, spans)
        assert total is not None
        return converted(at, total, op.out.dtype)

    def _dot(self, op: tensor.DotOp) -> None:
        (rows, columns), inner = op.out.shape, op.a.shape[1]
        summed = self.dims.cut(op, 2, inner)
        parts = self.dims.parts(op, (rows, columns))
        if len(parts) * len(summed) == 1:
            return
        at = Builder.at(op)
        totals: dict[Spans, Value] = {}
        for row, column in parts:
            total = self.piece(op.accumulator, (row, column))
            for span in summed:
                a, b = self.piece(op.a, (row, span)), self.piece(op.b, (span, column))
                total = at.insert(tensor.DotOp(a, b, total, precision=op.precision)).result
                total.name = _named(op.out.name, (row, column))
            totals[row, column] = total
        self._replace(op, totals)

    def _gather(self, op: tensor.GatherOp) -> None:
        parts, extent = self.dims.parts(op, op.out.shape), op.source.shape[op.axis]
        if len(parts) == 1 and len(self.dims.cut(op.source, op.axis, extent)) == 1:
            return
        at = Builder.at(op)
        gathered: dict[Spans, Value] = {}
        for spans in parts:
            part = self.dims.part_of(op, spans[op.axis])
            assert part is not None
            source = self.piece(op.source, (*spans[: op.axis], part, *spans[op.axis + 1 :]))
            indices = _moved(at, self.piece(op.indices, spans), -part[0])
            gather = at.insert(tensor.GatherOp(source, indices, axis=op.axis, names=[_named(op.out.name, spans)]))
            gathered[spans] = gather.out
            if source.shape == indices.shape and first_of_slice(gather) == 0:
                gathered[spans] = source
                gather.erase()
        self._replace(op, gathered)

    def _replace(self, op: Operation, pieces: dict[Spans, Value]) -> None:
        """Make these the parts of the only result of an operation, or the result if it is not divided."""
        for spans, value in pieces.items():
            if len(pieces) == 1:
                op.result.replace_with(value)
            self.pieces[op.result, spans] = value
        self.replaced.append(op)

    def _carry(self, op: scf.ForOp | scf.WhileOp) -> None:
        """Divide what a loop is given, what it gives, and the groups of what may change places in it."""
        parts = [tuple(self.dims.parts(value, value.shape)) for value in op.iter_args]
        first = [sum(map(len, parts[:place])) for place in range(len(parts))]
        alike = []
        for group in op.alike:
            for each in dict.fromkeys(parts[place] for place in group):  # a constant may be divided in several ways
                same = [first[place] for place in group if parts[place] == each]
                alike += [tuple(place + number for place in same) for number in range(len(each)) if len(same) > 1]
        op.set_attribute("alike", tuple(alike))
        op.set_field("inits", self._handed(op.iter_args, op.inits))
        op.results = self._divided(op.results)

    def _handed(self, targets: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        """The parts of values that become these, which are carried, handed on or given."""
        pairs = zip(targets, values, strict=True)
        return [self.piece(value, spans) for to, value in pairs for spans in self.dims.parts(to, to.shape)]

    def _divided(self, values: Sequence[Value]) -> list[Value]:
        """Values of the same owner for all parts of these; what is not divided stays."""
        pieces: list[Value] = []
        for value in values:
            parts = self.dims.parts(value, value.shape)
            for spans in parts if len(parts) > 1 else ():
                part = Value(with_shape(_shape(spans), value.dtype), value.owner, _named(value.name, spans))
                self.pieces[value, spans] = part
                pieces.append(part)
            pieces += [value] * (len(parts) == 1)
        return pieces


def _shape(spans: Spans) -> Shape:
    return tuple(size for _, size in spans)


def _named(name: str, spans: Spans) -> str:
    """The name of a part: where it begins stands behind that of the whole."""
    return "_".join([name, *(str(first) for first, _ in spans if first)]) if name else ""


def _moved(at: Builder, index: Value, distance: int) -> Value:
    """The index and a number."""
    if not distance:
        return index
    return at.insert(arith.AddOp(index, at.constant(distance, with_shape((), index.dtype)))).result


def _is_nothing(kind: str, value: Value) -> bool:
    """Whether a tile changes nothing of what it is added to."""
    number = constant_of(value)
    if kind != "sum" or number != 0:
        return False
    return not is_float(value.dtype) or math.copysign(1, number) < 0


def _source(op: Operation, spans: Spans) -> Spans:
    """The part of its operands from which an operation makes this part of what it gives or moves."""
    if isinstance(op, tensor.TransposeOp):
        return tuple(spans[op.permutation.index(axis)] for axis in range(len(spans)))
    if not isinstance(op, tensor.ReshapeOp):
        return spans
    source = [(0, size) for size in op.source.shape]
    for left, right in matched(op):
        for axis, place in zip(left, right, strict=False):  # equal ones, or only the outermost are divided
            first, size = spans[place]
            if size < op.out.shape[place]:
                unit = op.out.shape[place]
                source[axis] = first * op.source.shape[axis] // unit, size * op.source.shape[axis] // unit
    return tuple(source)
