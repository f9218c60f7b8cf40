"""The branch that a block's work may stand in, as where a block may lie behind its sequence, is opened."""

from __future__ import annotations

from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Region
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.predicate_loads import is_movable
from tiledsl.passes.tile_values import both


def open_branch(body: Region) -> None:
    """Let a branch at the end of a kernel that only it writes in run always: without a turn of its loops, and with its
    writes under a mask, where it is not taken. What lies outside of a buffer may be loaded: it reads 0.

    Before:  scf.if %c {                                 After:  %end = arith.select %c, %n, %c0
               %r = scf.for %c0, %n, %c1[...] { ... }            %r = scf.for %c0, %end, %c1[...] { ... }
               tile.store %r, %C[%rows, %columns]                tile.store %r, %C[%rows, %columns] mask=%c
             } {}
    """
    branch = next((op for op in reversed(body) if not op.is_terminator), None)
    if not isinstance(branch, scf.IfOp) or len(branch.orelse.ops) > 1:
        return
    ops = branch.then.ops[:-1]
    if not all(isinstance(op, (scf.ForOp, tile.StoreOp, tile.AtomicOp)) or is_movable(op) for op in ops):
        return
    for op in ops:
        op.move_before(branch)
        at = Builder.at(op)
        if isinstance(op, scf.ForOp):
            op.set_field("upper", [at.insert(arith.SelectOp(branch.condition, op.upper, op.lower)).result])
        elif isinstance(op, (tile.StoreOp, tile.AtomicOp)):
            mask = both(at, op.mask, branch.condition)
            assert mask is not None
            op.set_field("mask", [mask])
    branch.erase()
