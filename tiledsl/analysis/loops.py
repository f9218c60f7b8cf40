"""What is known of a loop by itself."""

from __future__ import annotations

from tiledsl.dialects import tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.scf import ForOp


def trip_count(op: ForOp) -> int | None:
    """The number of iterations of a loop with constant bounds; else None."""
    bounds = list(map(constant_of, op.operands[:3]))
    if {*map(type, bounds)} != {int} or bounds[2] == 0:
        return None
    return len(range(*bounds))  # type: ignore[arg-type]


def products_in(op: ForOp) -> int:
    """The number of matrix products in the body of a loop, not counting those in nested loops and branches."""
    return sum(isinstance(inner, (tensor.DotOp, tile.GemmOp)) for inner in op.body)
