"""Rows and columns of loaded tiles are loaded where loops pick them, instead of being picked by a mask."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.dependence import ancestors, stripped
from tiledsl.analysis.picks import Pick, pick_of
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType, broadcast_shapes, with_shape
from tiledsl.passes.dce import erase_sources
from tiledsl.passes.tile_values import broadcast, converted, inside_of, reshaped

FEWEST = 4  # rows: of fewer a mask costs less than the way to the cache
LARGE = 1024  # elements of a tile that are worth a remark


@dataclass(frozen=True)
class ReloadRows(Pass):
    """Load a row or a column again where a loop picks it from a tile that was loaded.

    Before:  %a = tile.load %A[%rows, %columns]             After:  scf.for %c0, %c64, %c1 (%i: int32) {
             scf.for %c0, %c64, %c1 (%i: int32) {                     %row = tile.load %A[%i, %columns]
               %hit = arith.cmp %rows, %i {predicate = "eq"}
               %x = arith.select %hit, %a, %zero
               %row = tensor.reduce %x {kind = "sum", axis = 0}

    A tile is in the registers of all threads, so that one of its rows costs an operation for each of its elements, and
    an exchange between threads; memory that was just read is in a cache. The row takes the load's indices, mask and
    casts, at its place. It stays picked if anything may have written the memory in between: the buffer itself, or,
    since parameters may overlap where each element is read and written at the same place (docs/language.md), any other
    one but behind the pick, in the single loop whose variable is the row's place. What stays picked from a large tile
    in a loop is a remark.
    Needs:   promote-buffers. Runs before guard-accesses, which masks the new loads.
    """

    name = "reload-rows"
    enabled: bool = True

    def run(self, program: Program) -> None:
        for kernel in tile.kernels(program.root):
            for reduction in of_kinds(kernel.walk(), tensor.ReduceOp):
                pick = pick_of(reduction) if list(_loops_around(reduction, kernel.body)) else None
                if pick is not None and not (self.enabled and _reload(pick)):
                    _remark(kernel, pick)


def _loops_around(op: Operation, region: Region | None) -> Iterator[Operation]:
    """The loops inside of a region that an operation is nested in."""
    for each in ancestors(op):
        if isinstance(each, (scf.ForOp, scf.WhileOp)):
            yield each
        if each.parent is region:
            return


def _reload(pick: Pick) -> bool:
    """Replace a pick by a load, if its tile was loaded before and is in memory still."""
    chain = _computed_from(pick.tile)
    load = chain[0]
    reduction, extent = pick.reduction, pick.tile.shape[pick.reduction.axis]
    if not isinstance(load, tile.LoadOp) or load.out.shape != pick.tile.shape or extent < FEWEST:
        return False
    if tile.buffer_type(load.buffer).scope != "global" or not _is_worth_it(load, pick) or not _is_unchanged(load, pick):
        return False
    builder = Builder.at(reduction)
    if load.other is not None and inside_of(builder, [pick.place], (extent,), None) is not None:
        return False
    parts = _Parts(builder, reduction.axis, pick.place)
    indices = [index for each in load.indices if (index := parts.at(each)) is not None]
    mask = None if load.mask is None else parts.at(load.mask)
    if len(indices) < len(load.indices) or (mask is None) != (load.mask is None):
        return False
    if load.other is None:
        mask = inside_of(builder, [pick.place], (extent,), mask)
    row = builder.insert(
        tile.LoadOp(
            load.buffer, indices, mask, load.other, loc=reduction.loc, names=[reduction.out.name], **load.attributes
        )
    ).result
    for cast in (each for each in chain if isinstance(each, arith.CastOp)):
        row = parts.copied(cast, row)
    kept = tuple(1 if axis == reduction.axis else size for axis, size in enumerate(load.out.shape))
    row = reshaped(builder, broadcast(builder, converted(builder, row, reduction.out.dtype), kept), reduction.out.shape)
    reduction.out.replace_with(row)
    erase_sources([reduction.out])
    return True


def _computed_from(value: Value) -> list[Operation | None]:
    """The operations behind a tile with the elements of another one, converted: that one's first."""
    chain: list[Operation | None] = [value.op]
    while isinstance(chain[0], (arith.CastOp, tensor.ReshapeOp)):
        chain.insert(0, chain[0].operands[0].op)
    return chain


def _is_worth_it(load: tile.LoadOp, pick: Pick) -> bool:
    """Whether the tile is loaded less often than it is picked from, or for the pick alone."""
    loops = list(_loops_around(pick.reduction, load.parent))
    return bool(loops) or all(sum(op.result.uses.values()) == 1 for op in _computed_from(pick.tile) if op is not None)


def _is_unchanged(load: tile.LoadOp, pick: Pick) -> bool:
    """Whether memory holds at a pick what a load of it read, for any overlap of parameters that the language allows."""
    holders = [pick.reduction, *ancestors(pick.reduction)]
    holder = next(op for op in holders if op.parent is load.parent)
    between = load.next
    while between is not None and between is not holder:
        if any(map(_may_write, between.walk())):
            return False
        between = between.next
    loops = list(_loops_around(pick.reduction, load.parent))
    writes = [op for op in holder.walk() if _may_write(op)]
    if not writes:
        return True
    loop = loops.pop() if len(loops) == 1 else None
    if not isinstance(loop, scf.ForOp) or stripped(pick.place, arith.CastOp) is not loop.index:
        return False
    here = next(op for op in holders if op.parent is loop.body)
    return all(
        isinstance(op, tile.StoreOp)
        and root_buffer(op.buffer) is not root_buffer(load.buffer)
        and any(each.parent is loop.body and each.order > here.order for each in (op, *ancestors(op)))
        for op in writes
    )


def _may_write(op: Operation) -> bool:
    """Whether an operation writes global memory, or waits for others that do."""
    if isinstance(op, scf.WhileOp):
        return True
    buffers = [each.type for each in op.operands if isinstance(each.type, BufferType)]
    return Effect.WRITE in op.effects and any(each.scope == "global" for each in buffers)


class _Parts:
    """What indices and masks are at one place along an axis."""

    def __init__(self, builder: Builder, axis: int, place: Value) -> None:
        self.builder, self.axis, self.place = builder, axis, place
        self.made: dict[Value, Value | None] = {}

    def at(self, value: Value) -> Value | None:
        """A value at the place, with one element along the axis or without it; None for what is not computed here."""
        if not value.shape or value.shape[self.axis] == 1:
            return value
        if value not in self.made:
            self.made[value] = self._computed(value)
        return self.made[value]

    def _computed(self, value: Value) -> Value | None:
        op = value.op
        if isinstance(op, tensor.IotaOp):
            return converted(self.builder, self.place, value.dtype)
        if not isinstance(op, arith.Elementwise):
            return None
        operands = {each: self.at(each) for each in op.operands}
        if None in operands.values():
            return None
        return self.copied(op, *(operands[each] for each in op.operands))  # type: ignore[arg-type]

    def copied(self, op: Operation, *operands: Value) -> Value:
        """An elementwise operation on other operands."""
        copy = op.clone(dict(zip(op.operands, operands, strict=True)))
        shape = broadcast_shapes(*(each.shape for each in operands)) or ()
        copy.result.set_type(with_shape(shape, copy.result.dtype))
        return self.builder.insert(copy).result


def _remark(kernel: tile.KernelOp, pick: Pick) -> None:
    elements, loc = prod(pick.tile.shape), pick.reduction.loc
    if elements < LARGE:
        return
    line = f"the loop around line {loc.line}" if loc else "a loop"
    of, few = " x ".join(map(str, pick.tile.shape)), prod(pick.reduction.out.shape)
    remark = f"{line} goes through all {of} elements of a tile, each time, for {few} of them"
    if remark not in kernel.remarks:
        kernel.add_remark(remark)
