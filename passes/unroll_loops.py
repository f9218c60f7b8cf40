"""unroll-loops: copies of the bodies of loops that are to be unrolled completely."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.dependence import reached
from tiledsl.analysis.loops import indices_of
from tiledsl.dialects import tile
from tiledsl.dialects.arith import ConstantOp
from tiledsl.dialects.scf import ForOp
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.parallelize_loops.of_threads import updates_of_thread


@dataclass(frozen=True)
class UnrollLoops(Pass):
    """Replace loops marked `unroll = 1` by copies of their bodies, outer loops first.

    Before:  scf.for %c0, %c2, %c1 {unroll = 1} (%i: int32) {    After:  tile.store %v, %x[%c0]
               tile.store %v, %x[%i]                                     tile.store %v, %x[%c1]
               scf.yield
             }
    Needs:   constant bounds. Loops without, and loops that would add more than `limit` operations in total, are left
             alone. Keeps: loops with `unroll` above 1, which is a hint for the code generator.

    In code for one thread, short loops whose index picks elements of a local array are unrolled, too: then the elements
    have names of their own, and no tile has to be searched for them. What parallelize-loops makes reductions stays.
    They come before loops around them that are marked and index no local array.
    """

    name = "unroll-loops"
    limit: int = 4096

    def run(self, program: Program) -> None:
        if self.limit < 0:
            raise TileError(
                f"unroll-loops.limit is {self.limit}; it must be a number of operations, or 0 to unroll nothing"
            )
        nests = program.root.nests()
        wanted: set[Operation] = {op for op in nests if isinstance(op, ForOp) and op.attributes["unroll"] == 1}
        for threads in nests:
            if isinstance(threads, tile.ParallelOp) and threads.lockstep:
                for op in reversed(threads.nests()):  # inner loops first: an outer one has what they become
                    if isinstance(op, ForOp) and _picks_elements(op) and _size(op, {*wanted, op}) <= _MOST_OPERATIONS:
                        wanted.add(op)
                for op in threads.nests():  # outer loops first
                    if op in wanted and _size(threads, wanted) > self.limit and _takes_room(op, wanted):
                        wanted.remove(op)
        if not wanted:
            return
        allowance = self.limit
        pending = [op for region in reversed(program.root.regions) for op in reversed(region)]
        while pending:
            op = pending.pop()
            if (
                isinstance(op, ForOp)
                and op in wanted
                and (indices := indices_of(op)) is not None
                and (size := len(indices) * sum(1 for _ in op.body.walk())) <= allowance
            ):
                allowance -= size
                pending.extend(reversed(unroll(op, indices, wanted)))
            else:
                pending.extend(inner for region in reversed(op.regions) for inner in reversed(region))


# Of a loop that is unrolled without being asked for.
_MOST_TURNS = 16
_MOST_OPERATIONS = 1024  # that it becomes


def _size(op: Operation, unrolled: set[Operation]) -> int:
    """How many operations an operation becomes with those in it, if these loops are unrolled."""
    inside = sum(_size(inner, unrolled) for region in op.regions for inner in region)
    indices = indices_of(op) if isinstance(op, ForOp) and op in unrolled else None
    return 1 + inside if indices is None else len(indices) * inside


def _picks_elements(loop: ForOp) -> bool:
    """Whether a short loop's index is part of an index into a local array."""
    indices = indices_of(loop)
    if loop.attributes["unroll"] or loop.vectorized or loop.num_stages or indices is None or len(indices) > _MOST_TURNS:
        return False
    return _indexes_array(loop) and updates_of_thread(loop) is None


def _takes_room(loop: Operation, wanted: set[Operation]) -> bool:
    """Whether a loop that indexes no local array is around one that does, which is to be unrolled before it."""
    inside = [op for op in loop.nests() if isinstance(op, ForOp) and op in wanted and op is not loop]
    return isinstance(loop, ForOp) and not _indexes_array(loop) and any(map(_indexes_array, inside))


def _indexes_array(loop: ForOp) -> bool:
    accesses = (op for op in loop.body.walk() if isinstance(op, (tile.LoadOp, tile.StoreOp)))
    indices = [value for op in accesses if tile.buffer_type(op.buffer).scope == "local" for value in op.indices]
    return loop.index in reached(indices, _pure_operands)


def _pure_operands(value: Value) -> list[Value]:
    return list(value.op.operands) if value.op is not None and value.op.is_pure else []


def unroll(op: ForOp, indices: range, wanted: set[Operation]) -> list[Operation]:
    """Replace the loop by its copies; return the copies that have regions. Copies of wanted loops are wanted."""
    builder = Builder.at(op)
    values: list[Value] = list(op.inits)
    nested: list[Operation] = []
    for number in indices:
        mapping: dict[Value, Value] = {op.index: builder.constant(number, op.index.type)}
        mapping.update(zip(op.iter_args, values, strict=True))
        for inner in op.body:
            if inner is op.body.last:
                values = [mapping.get(value, value) for value in inner.operands]
                break
            copy = builder.insert(inner.clone(mapping))
            if copy.regions:
                nested.append(copy)
                wanted.update(new for old, new in zip(inner.nests(), copy.nests(), strict=True) if old in wanted)
                for region in copy.regions:
                    _fold_constants(region)
            else:
                mapping.update(zip(inner.results, _fold(copy), strict=True))
    for old, new in zip(op.results, values, strict=True):
        old.replace_with(new)
    op.erase()
    return nested


def _fold(copy: Operation) -> list[Value]:
    """Replace a copy that the loop index made constant, so that inner loops get constant bounds; its results then."""
    if not copy.results or isinstance(copy, ConstantOp):
        return copy.results
    if not copy.is_pure or not all(isinstance(value.op, ConstantOp) for value in copy.operands):
        return copy.results
    folded = copy.fold()
    if folded is None:
        return copy.results
    builder = Builder.at(copy)
    values: list[Value] = []
    for old, new in zip(copy.results, folded, strict=True):
        values.append(new if isinstance(new, Value) else builder.constant(new, old.type))
        old.replace_with(values[-1])
    copy.erase()
    return values


def _fold_constants(region: Region) -> None:
    for op in region:
        for inner in op.regions:
            _fold_constants(inner)
        _fold(op)
