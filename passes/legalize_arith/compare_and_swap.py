"""tile.atomic cas in the form that Triton has: operands of one shape, and no mask."""

from __future__ import annotations

from tiledsl.dialects import scf, tile
from tiledsl.ir.core import Region, Value
from tiledsl.ir.rewrite import Builder, Rewriter, pattern
from tiledsl.passes.tile_values import broadcast, reduced, selected, zero


@pattern(tile.AtomicOp)
def unmask_cas(op: tile.AtomicOp, rw: Rewriter) -> bool:
    # %old = atomic cas %x, %A[%i] mask=%m compare=%c  ==>  if any of %m: %i is 0 where not %m, and %x is %c there, so
    # that the element at 0 stays what it is; %old is 0 there
    if op.kind != "cas":
        return False
    shape, mask = op.out.shape, op.mask
    operands = [op.value, op.compare]
    if mask is None:
        if all(each is not None and each.shape == shape for each in operands):
            return False
        rw.replace(op, [_cas(rw, op, list(op.indices), operands, shape)])
        return True
    any_of = mask
    while any_of.shape:
        any_of = reduced(rw, any_of, "or", len(any_of.shape) - 1)
    inside, outside = Region(), Region()
    at = Builder(inside, None, op.loc)
    value, compare = op.value, op.compare
    assert compare is not None, "a cas compares"
    if shape:
        indices = [selected(at, mask, each, zero(at, (), each.dtype)) for each in op.indices]
        old = _cas(at, op, indices, [selected(at, mask, value, compare), compare], shape)
        old = selected(at, mask, old, zero(at, (), old.dtype))
    else:
        old = _cas(at, op, list(op.indices), operands, shape)
    at.insert(scf.YieldOp([old]))
    at = Builder(outside, None, op.loc)
    at.insert(scf.YieldOp([zero(at, shape, op.out.dtype)]))
    rw.replace(op, rw.insert(scf.IfOp(any_of, regions=[inside, outside], result_types=[op.out.type])).results)
    return True


def _cas(
    at: Builder, op: tile.AtomicOp, indices: list[Value], operands: list[Value | None], shape: tuple[int, ...]
) -> Value:
    value, compare = (broadcast(at, each, shape) for each in operands if each is not None)
    return at.insert(
        tile.AtomicOp(value, op.buffer, indices, None, compare, names=[op.out.name], **op.attributes)
    ).result
