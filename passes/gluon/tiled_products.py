"""Rewriting loops over tiles of products. Part of select-emitter."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, TensorType

_ELEMENTWISE = (arith.BinaryOp, arith.CmpOp, arith.SelectOp, arith.CastOp, arith.NegOp, arith.NotOp, arith.MathOp)


def widen_columns(body: Region) -> None:
    """One-dimensional tiles that are seen as one row of columns become that from the start: `bias[None, :]`.

    What is left of one dimension has a value for each row.
    """
    widened: dict[Value, Value] = {}
    for op in list(body.walk()):
        if isinstance(op, tensor.ReshapeOp) and len(op.out.shape) == 2 and op.out.shape == (1, *op.source.shape):
            wide = _as_row(op.source, widened)
            if wide is not None:
                op.out.replace_with(wide)
                op.erase()
    for value in reversed(widened):
        if value.op is not None and not value.op.is_used:
            value.op.erase()


def _as_row(value: Value, rows: dict[Value, Value]) -> Value | None:
    """The value as one row; None where what computes it cannot be."""
    op = value.op
    if value in rows or not value.shape:
        return rows.get(value, value)
    if op is None:
        return None
    at = Builder.at(op)
    shape = (1, *value.shape)
    if isinstance(op, tensor.IotaOp):
        row: Operation = tensor.IotaOp(axis=1, result_types=[TensorType(shape, value.dtype)], names=[value.name])
    elif isinstance(op, arith.ConstantOp):
        rows[value] = at.constant(op.value, TensorType(shape, value.dtype))
        return rows[value]
    elif isinstance(op, (*_ELEMENTWISE, tile.LoadOp)):
        mapping: dict[Value, Value] = {}
        for operand in op.operands:
            wide = operand if isinstance(op, tile.LoadOp) and operand is op.buffer else _as_row(operand, rows)
            if wide is None:
                return None
            mapping[operand] = wide
        row = op.clone(mapping)
        row.result.set_type(TensorType(shape, value.dtype))
    else:
        return None
    op.parent.insert(row, op.next)  # type: ignore[union-attr]
    rows[value] = row.result
    return rows[value]


def load_ahead(loop: scf.ForOp, beside: Sequence[Operation]) -> None:
    """Load what is `beside` a product through pointers one iteration ahead, so that it is there when the product is.

    Before:  for %k (%acc) { %s = tile.load %S[%k]; ... }
    After:   %s0 = tile.load %S[lower]; for %k (%acc, %s = %s0) { %next = tile.load %S[min(%k + 1, last)]; ...; yield }

    A loop that has no iterations loads in vain, and what guards need to see of indices, they see.
    """
    arguments = set(loop.iter_args)
    loads = []
    for op in beside:
        if isinstance(op, tile.LoadOp):
            needed = _closure(op, loop.body)
            if not any(value in arguments for each in needed for value in each.operands):
                loads.append((op, needed))
    if not loads:
        return
    at, inside = Builder.at(loop), Builder(loop.body, loop.body.first, loop.loc)
    one = inside.constant(1, INT32)
    last = inside.insert(arith.SubOp(loop.upper, one)).result
    step = inside.insert(arith.MinOp(inside.insert(arith.AddOp(loop.index, one)).result, last, names=["ahead"])).result
    first_values, next_values = {loop.index: loop.lower}, {loop.index: step}
    inits, yielded = list(loop.inits), list(loop.yielded)
    for op, needed in loads:
        for each in needed:
            for place, mapping in ((at, first_values), (inside, next_values)):
                if each.results[0] not in mapping:
                    place.insert(each.clone(mapping))
        inits.append(first_values[op.out])
        yielded.append(next_values[op.out])
    for op, _ in loads:
        op.out.replace_with(loop.body.add_arg(op.out.type, op.out.name or f"{op.buffer.name or 'value'}_now"))
        op.erase()
    loop.body.terminator.set_field("values", yielded)
    added = inits[len(loop.results) :]
    loop.set_field("inits", inits)
    loop.results = [*loop.results, *(Value(value.type, loop, value.name) for value in added)]


def _closure(op: Operation, body: Region) -> list[Operation]:
    """The operation after those of the body that it needs, in order."""
    wanted = {op}
    for each in reversed(list(body)):
        if any(user in wanted for value in each.results for user in value.uses):
            wanted.add(each)
    return [each for each in body if each in wanted]
