"""Dimensions of extent one leave tiles of three and more dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiledsl.analysis.disjoint_sets import DisjointSets
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType, is_float, with_shape
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize

LEAST_RANK = 3  # Triton lays out tiles of one row as those of one dimension
DEPTH = 50  # of the operations that compute an index
Node = Value | Operation
Dim = tuple[Node, int]


@dataclass(frozen=True)
class FoldUnitDims(Pass):
    """Fold the dimensions that have the extent one in all tiles that are computed with each other.

    Before:  %y = arith.mul %x, %w : tensor<64x1x128xfloat32>     After:  %y = arith.mul %x, %w : tensor<64x128xfloat32>
             %s = tensor.reduce %y {kind = "sum", axis = 2}               %s = tensor.reduce %y {kind = "sum", axis = 1}

    Dimensions belong together where elements are combined one by one, in accesses, in what loops and branches carry,
    and in what a reduction leaves of its source; a reshape adds and removes those of one as it likes, and to reduce
    along one gives what is there. A dimension stays if one of these tiles is longer in it, if something is done along
    it, or if no tile has `least_rank` dimensions. The name is that of MLIR's linalg-fold-unit-extent-dims.
    Needs:   promote-buffers. Runs before whatever chooses how tiles are accessed and laid out.
    """

    name = "fold-unit-dims"
    least_rank: int = LEAST_RANK

    def run(self, program: Program) -> None:
        kernels = tile.kernels(program.root)
        folded = [_fold(kernel, self.least_rank) for kernel in kernels]
        if any(folded):
            canonicalize(program.root, CANONICAL_PATTERNS)


def _fold(kernel: tile.KernelOp, least_rank: int) -> bool:
    if not any(len(value.shape) >= least_rank for value in _tiles(kernel)):
        return False
    for each in of_kinds(kernel.walk(), tensor.ReduceOp):
        if each.source.shape[each.axis] == 1 and each.kind not in ("abssum", "absmax"):
            same = tensor.ReshapeOp(each.source, result_types=[each.out.type], names=[each.out.name])
            each.out.replace_with(Builder.at(each).insert(same).out)
            each.erase()
    ops, values = list(kernel.walk()), _tiles(kernel)
    dims = _Dims()
    for op in ops:
        dims.note_index(op)  # of all first: loops and branches stand before what they hold
    for op in ops:
        dims.relate(op)
    dims.decide(values, least_rank)
    if not dims.folded:
        return False
    made: dict[tuple[Value, tuple[int, ...]], Value] = {}
    for op, position, node in dims.uses:
        operands = op.operands
        index = _folded(operands[position], tuple(dims.axes(node)), made)
        op.set_operands([index if place == position else value for place, value in enumerate(operands)])
    gone = {value: axes for value in values if value not in dims.indices and (axes := dims.axes(value))}
    for value, axes in gone.items():
        value.set_type(with_shape(_left(value.shape, axes), value.dtype))
    for op in ops:
        _renumber(op, gone)
    return True


def _tiles(kernel: tile.KernelOp) -> list[Value]:
    values = [
        value for op in kernel.walk() for value in (*op.results, *(arg for each in op.regions for arg in each.args))
    ]
    return [value for value in values if value.shape and type(value.type) is not BufferType]


def _left(sizes: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for axis, size in enumerate(sizes) if axis not in axes)


def _folded(value: Value, axes: tuple[int, ...], folded: dict[tuple[Value, tuple[int, ...]], Value]) -> Value:
    """An index without these of its dimensions, computed once more behind it; `folded` has those that were."""
    op = value.op
    if not axes or not value.shape or op is None:
        return value
    if (value, axes) not in folded:
        type = with_shape(_left(value.shape, axes), value.dtype)
        if isinstance(op, tensor.IotaOp) and op.axis not in axes:
            copy: Operation = tensor.IotaOp(axis=_place(op.axis, axes), result_types=[type], names=[value.name])
        elif isinstance(op, tensor.IotaOp):
            copy = tensor.ReshapeOp(value, result_types=[type])
        else:
            copy = op.clone({each: _folded(each, axes, folded) for each in op.operands})
            copy.result.set_type(type)
        assert op.parent is not None
        op.parent.insert(copy, op.next)
        folded[value, axes] = copy.result
    return folded[value, axes]


def _place(axis: int, axes: Sequence[int]) -> int:
    """The number of a dimension without these."""
    return axis - sum(each < axis for each in axes)


class _Dims(DisjointSets[Dim]):
    """The classes of dimensions that are folded together or not at all.

    A node is a value, or an operation for the common shape of what it combines. Indices, computed from positions along
    one dimension, are in no class: where they are used with what is folded they are computed once more. Otherwise
    all tiles that have rows would be kept as they are by those that have columns too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[Dim] = set()
        self.ranks: dict[Operation, int] = {}
        self.folded: set[Dim] = set()  # the roots of the classes that are
        self.indices: dict[Value, int] = {}  # and how many operations deep they are computed
        self.uses: list[tuple[Operation, int, Node]] = []  # of indices

    def keep(self, value: Value) -> None:
        self.kept.update((value, axis) for axis in range(len(value.shape)))

    def alike(self, node: Node, values: Iterable[Value]) -> None:
        """Values that are broadcast to each other, and what stands for their common shape."""
        for value in values:
            if value in self.indices:
                self.kept.update((node, axis) for axis, size in enumerate(value.shape) if size > 1)
            else:
                for axis in range(len(value.shape)):
                    self.unite((node, axis), (value, axis))
            if isinstance(node, Operation):
                self.ranks[node] = len(value.shape)

    def handed(self, node: Value, *givers: tuple[Operation, int]) -> None:
        """A value that takes what operands of these operations give."""
        for op, position in givers:
            self.alike(node, [op.operands[position]])
            if op.operands[position] in self.indices:
                self.uses.append((op, position, node))

    def note_index(self, op: Operation) -> None:
        if isinstance(op, (arith.Elementwise, tensor.IotaOp)) and _is_index(op, self.indices):
            self.indices[op.result] = 1 + max((self.indices[each] for each in op.operands if each.shape), default=0)

    def relate(self, op: Operation) -> None:
        """Join and keep dimensions of what an operation takes and gives."""
        tiles = [value for value in (*op.operands, *op.results) if value.shape and type(value.type) is not BufferType]
        match op:
            case arith.Elementwise() | tensor.IotaOp() if op.result in self.indices:
                pass
            case arith.ConstantOp() | tensor.ReshapeOp() | scf.YieldOp() | scf.ConditionOp():
                pass
            case arith.Elementwise() | tensor.BroadcastOp() | tile.LoadOp() | tile.StoreOp() | tile.AtomicOp():
                self.alike(op, tiles)
                found = [place for place, value in enumerate(op.operands) if value in self.indices]
                self.uses += [(op, place, op) for place in found]
            case tensor.ReduceOp() | tensor.ScanOp() | tensor.SortOp() | tensor.TransposeOp() if any(
                value in self.indices for value in op.operands
            ):
                for value in tiles:
                    self.keep(value)
            case tensor.ReduceOp():
                self.kept.add((op.source, op.axis))
                for place, axis in enumerate(_left(range(len(op.source.shape)), [op.axis])):
                    self.unite((op.source, axis), (op.out, place))
            case tensor.ScanOp() | tensor.SortOp():
                self.alike(op, tiles)
                self.kept.add((op.source, op.axis))
            case tensor.TransposeOp():
                for place, axis in enumerate(op.permutation):
                    self.unite((op.source, axis), (op.out, place))
            case scf.ForOp():
                for place, (iter_arg, result) in enumerate(zip(op.iter_args, op.results, strict=True)):
                    self.alike(iter_arg, [result])
                    self.handed(iter_arg, (op, place + 3), (op.body.terminator, place))
            case scf.IfOp():
                for place, result in enumerate(op.results):
                    self.handed(result, *((region.terminator, place) for region in op.regions))
            case scf.WhileOp():
                for place, iter_arg in enumerate(op.iter_args):
                    self.handed(iter_arg, (op, place), (op.after.terminator, place))
                for place, (argument, result) in enumerate(zip(op.after.args, op.results, strict=True)):
                    self.alike(argument, [result])
                    self.handed(argument, (op.before.terminator, place + 1))
            case _:
                for value in tiles:
                    self.keep(value)

    def decide(self, values: Iterable[Value], least_rank: int) -> None:
        """Find the classes that are folded, of all values."""
        every = {(value, axis): size for value in values for axis, size in enumerate(value.shape)}
        every = {dim: size for dim, size in every.items() if dim[0] not in self.indices}
        ranks = {value: len(value.shape) for value, _ in every} | self.ranks
        large = {self.root((node, axis)) for node, rank in ranks.items() if rank >= least_rank for axis in range(rank)}
        long = {self.root(dim) for dim, size in every.items() if size != 1}
        self.folded = large - long - {self.root(dim) for dim in self.kept}

    def axes(self, node: Node) -> list[int]:
        """The dimensions of a value, or of what an operation combines, that go."""
        rank = len(node.shape) if isinstance(node, Value) else self.ranks.get(node, 0)
        return [axis for axis in range(rank) if self.root((node, axis)) in self.folded]


def _is_index(op: Operation, indices: dict[Value, int]) -> bool:
    """Whether an operation gives integers or conditions of the position along one dimension."""
    out = op.result
    if is_float(out.dtype) or sum(size > 1 for size in out.shape) > 1 or not out.shape:
        return False
    return all(indices.get(value, DEPTH) < DEPTH or not value.shape for value in op.operands)


def _renumber(op: Operation, gone: dict[Value, list[int]]) -> None:
    """Make the dimensions that an operation names those that are left."""
    match op:
        case tensor.IotaOp():
            op.set_attribute("axis", _place(op.axis, gone.get(op.out, ())))
        case tensor.ReduceOp() | tensor.ScanOp() | tensor.SortOp():
            op.set_attribute("axis", _place(op.axis, gone.get(op.source, ())))
        case tensor.TransposeOp():
            axes = [axis for axis in op.permutation if axis not in gone.get(op.source, ())]
            op.set_attribute("permutation", tuple(sorted(axes).index(axis) for axis in axes))
        case _:
            pass
