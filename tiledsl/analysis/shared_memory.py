"""The shared memory that Triton uses for a kernel's tiles."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.hardware import BARRIER_BYTES
from tiledsl.analysis.product_loops import Load, tensor_bytes
from tiledsl.dialects import scf, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds


@dataclass(frozen=True)
class Needs:
    """Bytes of shared memory for a kernel's tiles.

    loop: of the pipelined loop that needs most. stored: of what is stored at once. read: of the largest tile that is
    read outside of such loops.
    """

    loop: int
    stored: int
    read: int

    @staticmethod
    def of(kernel: tile.KernelOp) -> Needs:
        ops = list(kernel.walk())
        stores: list[tile.StoreOp | tile.StoreBlockOp] = of_kinds(ops, tile.StoreOp, tile.StoreBlockOp)
        loops = [loop for loop in of_kinds(ops, scf.ForOp) if is_pipelined(loop)]
        inside = {load for loop in loops for load in _loads(loop)}
        loads: list[Load] = of_kinds(ops, tile.LoadOp, tile.LoadBlockOp)
        sums = sum(tensor_bytes(op.value) for op in stores if bytes_beside(op.value))
        others = max((tensor_bytes(op.value) for op in stores if not bytes_beside(op.value)), default=0)
        return Needs(
            max(map(operand_bytes, loops), default=0),
            sums + others,
            max((tensor_bytes(op.out) for op in loads if op not in inside), default=0),
        )

    @property
    def flattened(self) -> int:
        """Bytes with a persistent grid whose loops are flattened into one.

        One block is stored, and what its epilogue reads passes through shared memory, while the next block is loaded.
        """
        return self.loop + self.stored + self.read + BARRIER_BYTES


def is_pipelined(loop: scf.ForOp) -> bool:
    """Whether a loop has matrix products, itself or in branches, and loads ahead of them."""
    return loop.num_stages > 1 and any(map(_has_products, loop.body))


def operand_bytes(loop: scf.ForOp) -> int:
    """Bytes of the tiles that a pipelined loop keeps in shared memory for its products."""
    return loop.num_stages * sum(tensor_bytes(load.out) for load in loads_ahead(loop))


def loads_ahead(loop: scf.ForOp) -> list[Load]:
    """What a loop's body itself loads, of two and more dimensions."""
    return [load for load in _loads(loop) if len(load.out.shape) > 1]


def bytes_beside(value: Value) -> int:
    """Bytes of operands that are still in shared memory when Triton puts a tile there to store it through a descriptor.

    Triton 3.6 copies the unchanged sums of a pipelined loop as soon as the loop ends (in all blocks, even if they are
    stored in a branch), before it releases the operands' memory. What is computed from the sums reuses that memory.
    """
    loop = stripped(value, *tensor.SHAPES).op
    return operand_bytes(loop) if isinstance(loop, scf.ForOp) and is_pipelined(loop) else 0


def _has_products(op: Operation) -> bool:
    if isinstance(op, scf.IfOp):
        return any(_has_products(each) for region in op.regions for each in region)
    return isinstance(op, tensor.DotOp)


def _loads(loop: scf.ForOp) -> list[Load]:
    found: list[Load] = of_kinds(loop.body, tile.LoadOp, tile.LoadBlockOp)
    return found
