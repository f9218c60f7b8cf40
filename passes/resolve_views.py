"""resolve-views: accesses through a view of an on-chip buffer become accesses of the buffer itself."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.strided_access import replaces_all
from tiledsl.dialects import arith, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, Shape, with_shape
from tiledsl.passes.tile_values import bitcast, broadcast, converted, iota, reduced, reshaped


@dataclass(frozen=True)
class ResolveViews(Pass):
    """Remove `tile.view` of on-chip buffers.

    Before:  %v = tile.view %x : buffer<64*fragment>        After:  %t = tile.read %x; %r = tensor.reshape %t
             %y = tile.read %v                                      %y = %r
    An indexed access goes through a buffer of the view's shape, filled from the viewed buffer before the access, unless
    that writes all elements, and copied back after a store; promote-buffers turns all of this into reshapes. A view of
    another element type has the same bits: of wider ones the lower half comes first.
    Needs:   vectorize-parallel, so that only reads, writes, loads and stores of whole tiles are left.
    Keeps:   views of global memory.
    """

    name = "resolve-views"

    def run(self, program: Program) -> None:
        for view in of_kinds(program.root.walk(), tile.ViewOp):
            if tile.buffer_type(view.out).scope != "global":
                _resolve(view)


def _resolve(view: tile.ViewOp) -> None:
    base, out = view.source, view.out
    stand_in = Builder.at(view).insert(tile.AllocOp(result_types=[out.type], names=[out.name])).out
    for op in list(out.uses):
        if isinstance(op, tile.ViewOp):
            op.set_operands([base])
            continue
        if not replaces_all(op):
            _move(base, stand_in, Builder.at(op))
        op.set_operands([stand_in if value is out else value for value in op.operands])
        if not isinstance(op, (tile.ReadOp, tile.LoadOp)):
            assert op.parent is not None
            _move(stand_in, base, Builder(op.parent, op.next, op.loc))
    view.erase()


def _move(source: Value, target: Value, builder: Builder) -> Operation:
    """Copy one buffer to another with as many bytes, in row-major order."""
    value = builder.insert(tile.ReadOp(source)).result
    type = tile.buffer_type(target)
    if value.dtype != type.dtype:
        value = _reinterpreted(builder, value, type.static_shape, type.dtype)
    shaped = builder.insert(tensor.ReshapeOp(value, result_types=[with_shape(type.static_shape, type.dtype)]))
    return builder.insert(tile.WriteOp(shaped.result, target))


def _reinterpreted(builder: Builder, value: Value, shape: Shape, dtype: str) -> Value:
    """The bits of a value as elements of another type; `shape` is what they will have."""
    have, want = ELEMENTS[value.dtype].bits, ELEMENTS[dtype].bits
    bits = bitcast(builder, value, f"uint{have}")
    if have > want:  # each element is several, side by side
        count, rank = have // want, len(value.shape) + 1
        each = broadcast(builder, reshaped(builder, bits, (*value.shape, 1)), (*value.shape, count))
        each = builder.insert(arith.ShrOp(each, _starts(builder, rank, count, want, bits.dtype))).result
        bits = converted(builder, each, f"uint{want}")
    elif have < want:
        count, rank = want // have, len(shape) + 1
        each = converted(builder, reshaped(builder, bits, (*shape, count)), f"uint{want}")
        each = builder.insert(arith.ShlOp(each, _starts(builder, rank, count, have, each.dtype))).result
        bits = reduced(builder, each, "or", rank - 1)
    return bitcast(builder, bits, dtype)


def _starts(builder: Builder, rank: int, count: int, bits: int, dtype: str) -> Value:
    """Where each of `count` parts of an element begins, along the last axis."""
    place = converted(builder, iota(builder, rank, rank - 1, count), dtype)
    return builder.insert(arith.MulOp(place, builder.constant(bits, with_shape((), dtype)))).result
