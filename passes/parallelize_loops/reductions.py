"""Buffers that all iterations of a serial loop only update, at the same places: sums, largest and smallest elements."""

from __future__ import annotations

from tiledsl.analysis.dependence import ancestors, operands_of, reached, read_by
from tiledsl.analysis.parallel_locals import is_in_parallel
from tiledsl.dialects import scf, tile
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, BufferType, is_float
from tiledsl.passes.parallelize_loops.independent import Access
from tiledsl.passes.vectorize_parallel.updates import Update, updates_alone


def updates_of(ops: list[Access], loop: scf.ForOp, defined: set[Value]) -> list[Update] | None:
    """The updates of one kind that all accesses of a buffer are, each at a place that is the same in all iterations.

    None if something else is done to the buffer, and where a sum is rounded to fewer than 32 bits in each iteration.
    """
    (buffer,) = {op.buffer for op in ops}
    own = tile.buffer_type(buffer).scope == "local"
    if own and any(is_in_parallel(op) for op in buffer.uses if isinstance(op, tile.StoreOp)):
        return None  # which each point has for itself
    return only_updates(ops, loop, defined)


def only_updates(ops: list[Access], loop: scf.ForOp, defined: set[Value]) -> list[Update] | None:
    """The same, of a buffer that is one for all iterations."""
    updates = updates_alone(ops)
    if not updates:
        return None
    (type,) = {tile.buffer_type(op.buffer) for op in ops}
    if type.scope == "global" or _is_narrow(type.dtype) and "add" in {each.kind for each in updates}:
        return None
    stays = all(_stays(index, loop, defined) for each in updates for index in each.store.indices)
    return updates if stays else None


def _is_narrow(dtype: str) -> bool:
    return is_float(dtype) and ELEMENTS[dtype].bits < 32


def _stays(index: Value, loop: scf.ForOp, defined: set[Value]) -> bool:
    """Whether an index takes the same values in each iteration."""
    sources = [value for value in reached([index], operands_of) if value in defined]
    return loop.index not in sources and not any(isinstance(value.op, tile.LoadOp) for value in sources)


def make_fragments(updates: list[Update]) -> None:
    """Let what is updated be one buffer for the block, where a T.Parallel would have one for each point."""
    for buffer in {each.store.buffer: None for each in updates}:
        type = tile.buffer_type(buffer)
        if type.scope == "local":
            buffer.set_type(BufferType(type.shape, type.dtype, "fragment"))


def isolated(loop: scf.ForOp, points: range, updates: list[Update], outermost: bool) -> bool:
    """Give the loop a T.Parallel of its own, if the one around it does more to what the loop updates; put it around
    that T.Parallel, if it is to be the `outermost`.

    False where that cannot be done; then nothing has changed.
    """
    around = [op for op in ancestors(loop) if isinstance(op, tile.ParallelOp)]
    if not around or not updates and not outermost:
        return True
    if any(op.lockstep for op in around):
        return False
    updated = {each.store.buffer for each in updates}
    ours = {*loop.body.walk()}
    alone = not any(updated.intersection(op.operands) for op in around[-1].body.walk() if op not in ours)
    if alone and not outermost:
        return True
    parallel, *outer = around
    own = all({*parallel.body.args} <= {*each.store.indices} for each in updates)  # else points wait for one another
    if not own or outer or loop.parent is not parallel.body or not _split(parallel, loop):
        return False
    if outermost:
        _interchange(loop, points)
    return True


def _interchange(loop: scf.ForOp, points: range) -> None:
    """parallel { for { body } }  ==>  for { parallel { body } }, as T.Parallel does it anyway"""
    parallel = loop.parent_op
    assert isinstance(parallel, tile.ParallelOp), "the loop stands in a T.Parallel"
    builder = Builder.at(parallel)
    bounds = (points.start, points.stop, points.step)
    loop.set_operands([builder.constant(number, loop.index.type) for number in bounds])
    builder.insert(loop.detach())
    for op in list(loop.body):
        if not op.is_terminator:
            parallel.body.insert(op.detach())
    loop.body.insert(parallel.detach(), loop.body.terminator)


def _split(parallel: tile.ParallelOp, loop: scf.ForOp) -> bool:
    """parallel { before; loop; after }  ==>  parallel { before } parallel { loop } parallel { after }

    T.Parallel does one statement after the other in all points. What later parts need of the earlier ones is computed
    again, which must give the same.
    """
    ops = list(parallel.body)
    at = ops.index(loop)
    before, after = ops[:at], ops[at + 1 :]
    if any(isinstance(op, tile.AllocOp) for op in ops):
        return False
    stores = [op for op in parallel.body.walk() if isinstance(op, (tile.StoreOp, tile.AtomicOp))]
    written = {op.buffer for op in stores}
    alone: list[Operation] = [loop]
    parts = [part for part in (alone, after) if part]
    needed = [_needed(part, {value: op for op in before for value in op.results}) for part in parts]
    if not all(_gives_the_same(op, written) for each in needed for op in each):
        return False
    end: Operation = parallel
    for part, again in zip(reversed(parts), reversed(needed), strict=True):
        body = Region([arg.type for arg in parallel.body.args], [arg.name for arg in parallel.body.args])
        mapping = dict(zip(parallel.body.args, body.args, strict=True))
        builder = Builder(body, loc=parallel.loc)
        for op in again:
            builder.insert(op.clone(mapping))
        for op in part:
            for inner in op.walk():
                inner.set_operands([mapping.get(value, value) for value in inner.operands])
            op.detach()
            builder.insert(op)
        made = type(parallel)(regions=[body], loc=part[0].loc, **parallel.attributes)
        assert parallel.parent is not None, "a T.Parallel stands in a kernel"
        parallel.parent.insert(made, end.next if end is parallel else end)
        end = made
    if not any(Effect.WRITE in op.effects for op in parallel.body.walk()):
        parallel.erase()
    return True


def _needed(part: list[Operation], makers: dict[Value, Operation]) -> list[Operation]:
    """The operations, in order, that compute what a part takes from `makers`."""
    wanted = reached([value for op in part for value in read_by(op)], operands_of)
    return sorted({makers[value] for value in wanted if value in makers}, key=lambda op: op.order)


def _gives_the_same(op: Operation, written: set[Value]) -> bool:
    if isinstance(op, tile.LoadOp):
        return op.buffer not in written and tile.buffer_type(op.buffer).scope != "global"
    return not op.has_effects
