"""What iterations of a loop hand on to later ones through global memory."""

from __future__ import annotations

from tiledsl.analysis.block_access import root_buffer
from tiledsl.dialects import scf, tile
from tiledsl.ir.core import Effect, Value
from tiledsl.ir.types import BufferType


def rewritten_buffers(loop: scf.ForOp) -> list[Value]:
    """The global buffers that a loop both loads from and writes to; a view counts as the buffer that it is of.

    What is loaded ahead of time there lacks what the iterations between write. Different parameters count as different
    memory. Atomic operations only write: none is done ahead of time.
    """
    loaded: set[Value] = set()
    written: dict[Value, None] = {}
    for op in loop.body.walk():
        for value in op.operands:
            if isinstance(value.type, BufferType) and value.type.scope == "global":
                if isinstance(op, (tile.LoadOp, tile.LoadBlockOp)):
                    loaded.add(root_buffer(value))
                elif Effect.WRITE in op.effects:
                    written[root_buffer(value)] = None
    return [memory for memory in written if memory in loaded]
