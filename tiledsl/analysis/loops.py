"""What is known of a loop by itself."""

from __future__ import annotations

from tiledsl.dialects import tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.scf import ForOp


def indices_of(op: ForOp) -> range | None:
    """The index of a loop in each of its iterations, if its bounds are constants; else None."""
    lower, upper, step = (constant_of(bound) for bound in (op.lower, op.upper, op.step))
    return None if lower is None or upper is None or not step else range(int(lower), int(upper), int(step))


def trip_count(op: ForOp) -> int | None:
    """The number of iterations of a loop with constant bounds; else None."""
    indices = indices_of(op)
    return None if indices is None else len(indices)


def products_in(op: ForOp) -> int:
    """The number of matrix products in the body of a loop, not counting those in nested loops and branches."""
    return sum(isinstance(inner, (tensor.DotOp, tile.GemmOp)) for inner in op.body)
