"""resolve-views: accesses through a view of an on-chip buffer become accesses of the buffer itself."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dialects import tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import with_shape


@dataclass(frozen=True)
class ResolveViews(Pass):
    """Remove `tile.view` of on-chip buffers.

    Before:  %v = tile.view %x : buffer<64*fragment>        After:  %t = tile.read %x; %r = tensor.reshape %t
             %y = tile.read %v                                      %y = %r
    An indexed access goes through a buffer of the view's shape, filled from the viewed buffer before the access and
    copied back after a store; promote-buffers turns all of this into reshapes.
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
        _move(base, stand_in, Builder.at(op))
        op.set_operands([stand_in if value is out else value for value in op.operands])
        if not isinstance(op, (tile.ReadOp, tile.LoadOp)):
            assert op.parent is not None
            _move(stand_in, base, Builder(op.parent, op.next, op.loc))
    view.erase()


def _move(source: Value, target: Value, builder: Builder) -> Operation:
    """Copy one buffer to another with as many elements, in row-major order."""
    value = builder.insert(tile.ReadOp(source)).result
    type = tile.buffer_type(target)
    shaped = builder.insert(tensor.ReshapeOp(value, result_types=[with_shape(type.static_shape, type.dtype)]))
    return builder.insert(tile.WriteOp(shaped.result, target))
