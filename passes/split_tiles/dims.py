"""Which dimensions of tiles are divided together, and into which parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.disjoint_sets import DisjointSets
from tiledsl.analysis.tile_parts import LEAST_COLUMNS, LEAST_ROWS, LEAST_SUMMED, gains, parts_of
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS, BufferType, Shape, is_float
from tiledsl.passes.pad_tiles.reshape import groups

Node = Value | Operation
Dim = tuple[Node, int]
Span = tuple[int, int]  # where a part begins, and its size
Spans = tuple[Span, ...]  # one for each dimension of a tile


class Kept(NamedTuple):
    """Why dimensions stay as they are, and the operation because of which they do."""

    reason: str
    op: Operation


class Dims(DisjointSets[Dim]):
    """The classes of dimensions that are divided together or not at all.

    A node is a value, or an operation for the common shape of what it combines; a product is one for its rows, columns
    and what it sums over. Dimensions of 1 are in no class, for their element goes with all parts. Free values are not
    either: computed from positions and numbers alone, their parts are computed wherever they are asked for.
    """

    def __init__(
        self, kernel: tile.KernelOp, *, every: bool = False, whole_rows: bool = False, halved: Iterable[Value] = ()
    ) -> None:
        super().__init__()
        self.whole_rows = whole_rows
        self.halved = tuple(halved)  # tiles of which the columns are divided into halves
        self.sizes: dict[Dim, int] = {}
        self.kept: dict[Dim, Kept] = {}
        self.least: dict[Dim, int] = {}  # the least part of a dimension of a product
        self.free: set[Value] = set()
        self.slices: dict[tensor.GatherOp, int] = {}  # gathers of neighbours, and of the first of these
        self.cuts: dict[tuple[Dim, int], tuple[Span, ...]] = {}  # by the class's root and the size of the dimension
        self.ops = list(kernel.body.walk())
        for op in self.ops:
            self._note(op)
        # The largest size of each class of a product that would be divided but for something, and that.
        self.staying = self._decide(every)

    def relate(self, node: Node, axis: int, value: Value, place: int, size: int = 0) -> None:
        """Divide a dimension of a node as that of a value, which may have another size than it."""
        extent = value.shape[place]
        if extent == 1:
            return
        self.sizes[node, axis] = size or extent
        if value not in self.free:
            self.sizes[value, place] = extent
            self.unite((node, axis), (value, place))

    def keep(self, node: Node, axis: int, op: Operation, reason: str) -> None:
        self.kept.setdefault((node, axis), Kept(reason, op))

    def alike(self, node: Node, values: Iterable[Value]) -> None:
        """Values that are broadcast to each other, and what stands for their common shape."""
        for value in values:
            for axis in range(len(value.shape)):
                self.relate(node, axis, value, axis)

    def _note(self, op: Operation) -> None:
        """Note what an operation asks of the dimensions of what it takes and gives."""
        if _is_free(op, self.free):
            self.free.update(op.results)
            return
        tiles = [value for value in (*op.operands, *op.results) if value.shape and type(value.type) is not BufferType]
        match op:
            case scf.YieldOp() | scf.ConditionOp():
                pass
            case arith.Elementwise() | tensor.BroadcastOp() | tile.LoadOp() | tile.StoreOp() | tile.AtomicOp():
                self.alike(op, tiles)
            case tile.AssertOp():
                self.alike(op, tiles)
            case tensor.ReduceOp():
                for place, axis in enumerate(_others(op.source.shape, op.axis)):
                    self.relate(op, axis, op.source, axis)
                    self.relate(op, axis, op.out, place)
            case tensor.ScanOp() | tensor.SortOp():
                self.alike(op, tiles)
                self.keep(op, op.axis, op, f"{op.name} goes along them")
            case tensor.TransposeOp():
                for place, axis in enumerate(op.permutation):
                    self.relate(op, place, op.source, axis)
                    self.relate(op, place, op.out, place)
            case tensor.ReshapeOp():
                self._reshape(op)
            case tensor.DotOp():
                self._dot(op)
            case tensor.GatherOp():
                self._gather(op)
            case scf.ForOp():
                for place, iter_arg in enumerate(op.iter_args):
                    self.alike(iter_arg, [op.results[place], op.inits[place], op.yielded[place]])
            case scf.IfOp():
                for place, result in enumerate(op.results):
                    self.alike(result, [region.terminator.operands[place] for region in op.regions])
            case scf.WhileOp():
                condition = op.before.terminator
                assert isinstance(condition, scf.ConditionOp)
                for place, iter_arg in enumerate(op.iter_args):
                    self.alike(iter_arg, [op.inits[place], op.yielded[place]])
                for place, handed in enumerate(op.after.args):
                    self.alike(handed, [op.results[place], condition.values[place]])
            case _:
                for value in tiles:
                    for axis in range(len(value.shape)):
                        self.keep(value, axis, op, f"{op.name} takes whole tiles")

    def _reshape(self, op: tensor.ReshapeOp) -> None:
        for left, right in matched(op):
            if [op.source.shape[axis] for axis in left] == [op.out.shape[axis] for axis in right]:
                pairs = list(zip(left, right, strict=True))
            else:  # parts of the outermost are neighbours in memory
                (outer, *_), (place, *_) = left, right
                pairs = [(outer, place)]
                if op.source in self.free:  # no part of it lies between its elements of the outermost dimension
                    inner = (op, ~outer)
                    self.sizes[inner] = op.source.shape[outer]
                    self.unite(inner, (op, place))
                for value, axes in ((op.source, left), (op.out, right)):
                    for axis in axes[1:]:
                        self.keep(value, axis, op, "a reshape divides them in another way")
            for axis, place in pairs:
                self.relate(op, place, op.out, place)
                self.relate(op, place, op.source, axis, op.out.shape[place])

    def _dot(self, op: tensor.DotOp) -> None:
        uses = ((op.a, 0, 2), (op.b, 2, 1), (op.accumulator, 0, 1), (op.out, 0, 1))
        narrow = any(not is_float(value.dtype) or ELEMENTS[value.dtype].bits == 8 for value in (op.a, op.b))
        for value, first, second in uses:
            self.relate(op, first, value, 0)
            self.relate(op, second, value, 1)
        if self.whole_rows:
            self.keep(op, 0, op, "they are rows of products")
        self.least |= {(op, 0): LEAST_ROWS, (op, 1): LEAST_COLUMNS, (op, 2): LEAST_SUMMED << narrow}

    def _gather(self, op: tensor.GatherOp) -> None:
        self.alike(op, [op.out, op.indices])
        for axis in _others(op.source.shape, op.axis):
            self.relate(op, axis, op.source, axis)
        first = first_of_slice(op)
        if first is None:
            self.keep(op.source, op.axis, op, "a gather picks elements of them")
        else:
            self.slices[op] = first

    def _decide(self, every: bool) -> list[tuple[int, Kept]]:
        """Choose the parts of each class that is worth it, or of `every` one."""
        sizes: dict[Dim, set[int]] = {}
        for dim, size in self.sizes.items():
            sizes.setdefault(self.root(dim), set()).add(size)
        least: dict[Dim, dict[int, int]] = {self.root((op.source, op.axis)): {} for op in self.slices}
        for dim, number in self.least.items():
            if dim in self.sizes:
                of_class, size = least.setdefault(self.root(dim), {}), self.sizes[dim]
                of_class[size] = max(number, of_class.get(size, number))
        if every:
            class_parts = {root: _parts(each) for root, each in sizes.items()}
        else:
            chosen = {root: sizes[root] for root in least if root in sizes and gains(max(sizes[root]))}
            class_parts = {root: _parts(each, least[root]) for root, each in chosen.items()}
        for root in {self.root((value, 1)) for value in self.halved}:
            class_parts[root] = {size: ((0, size // 2), (size // 2, size // 2)) for size in sizes[root]}
        kept = {self.root(dim): why for dim, why in reversed(self.kept.items())}
        stay = {root: kept[root] for root, parts in class_parts.items() if parts and root in kept}
        for root, parts in class_parts.items():
            if root not in kept:
                self.cuts |= {(root, size): spans for size, spans in parts.items()}
        while across := next((op for op in self.slices if not self._takes_parts(op)), None):
            root = self.root((across.source, across.axis))
            stay[root] = Kept("a part of the tile is taken that lies in two of theirs", across)
            for size in sizes[root]:
                del self.cuts[root, size]
        return [(max(sizes[root]), why) for root, why in stay.items() if least.get(root)]

    def _takes_parts(self, op: tensor.GatherOp) -> bool:
        """Whether each part of what a gather of neighbours gives lies in one part of its source."""
        return all(self.part_of(op, span) is not None for span in self.cut(op, op.axis, op.out.shape[op.axis]))

    def part_of(self, op: tensor.GatherOp, span: Span) -> Span | None:
        """The part of the source in which these elements of a gather's result lie; None if there is no such one."""
        parts = self.cut(op.source, op.axis, op.source.shape[op.axis])
        if len(parts) == 1:
            return parts[0]
        first, size = self.slices[op] + span[0], span[1]
        return next((each for each in parts if each[0] <= first and first + size <= sum(each)), None)

    def cut(self, node: Node, axis: int, size: int) -> tuple[Span, ...]:
        """The parts of a dimension of this size."""
        return self.cuts.get((self.root((node, axis)), size), ((0, size),))

    def parts(self, node: Node, shape: Shape) -> list[Spans]:
        """The parts of a tile, in row-major order."""
        return list(product(*(self.cut(node, axis, size) for axis, size in enumerate(shape))))

    @property
    def divides_sums(self) -> bool:
        """Whether sums of floats are added up in parts."""
        dots = (op for op in self.ops if isinstance(op, tensor.DotOp) and is_float(op.out.dtype))
        if any(len(self.cut(op, 2, op.a.shape[1])) > 1 for op in dots):
            return True
        reductions = (op for op in self.ops if isinstance(op, tensor.ReduceOp) and is_float(op.source.dtype))
        return any(len(self.cut(op.source, op.axis, op.source.shape[op.axis])) > 1 for op in reductions)


def matched(op: tensor.ReshapeOp) -> list[tuple[list[int], list[int]]]:
    """The dimensions of source and result that belong together, without those of 1, in the smallest groups."""
    axes = [iter([axis for axis, size in enumerate(v.shape) if size != 1]) for v in (op.source, op.out)]
    sizes = [[size for size in v.shape if size != 1] for v in (op.source, op.out)]
    return [tuple([next(each) for _ in group] for each, group in zip(axes, pair)) for pair in groups(*sizes)]  # type: ignore[misc]


def _others(shape: Shape, axis: int) -> list[int]:
    return [each for each in range(len(shape)) if each != axis]


def _is_free(op: Operation, free: set[Value]) -> bool:
    """Whether an operation computes a tile from positions and numbers, so that any part of it can be computed alone."""
    if isinstance(op, (arith.ConstantOp, tensor.IotaOp)):
        return True
    if isinstance(op, tensor.ReshapeOp) and any(
        [op.source.shape[axis] for axis in left] != [op.out.shape[axis] for axis in right]
        for left, right in matched(op)
    ):
        return False
    if not isinstance(op, (arith.Elementwise, tensor.BroadcastOp, tensor.TransposeOp, tensor.ReshapeOp)):
        return False
    return bool(op.result.shape) and all(value in free or not value.shape for value in op.operands)


def first_of_slice(op: tensor.GatherOp) -> int | None:
    """The first of the neighbours along its axis that a gather takes; None if it takes others."""
    terms = dict(linear_form(op.indices).terms)
    first = terms.pop((), 0)
    match [*terms.items()]:
        case [((Value(op=tensor.IotaOp(axis=op.axis)),), 1)]:
            return first
    return None


def _parts(sizes: set[int], least: Mapping[int, int] = MappingProxyType({})) -> dict[int, Spans]:
    """The parts of dimensions that are divided together, by their size; nothing if they have no such parts."""
    smallest = min(sizes)
    numbers = parts_of(smallest)
    if not numbers:
        return {}
    spans: dict[int, Spans] = {}
    for size in sizes:
        ratio, rest = divmod(size, smallest)
        if rest or ratio & (ratio - 1) or numbers[-1] * ratio < least.get(size, 1):
            return {}
        spans[size] = tuple((ratio * sum(numbers[:place]), ratio * number) for place, number in enumerate(numbers))
    return spans
