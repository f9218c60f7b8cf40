"""Loops that load tiles and multiply them, and do little else: the core of a GEMM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeGuard

from tiledsl.analysis.hardware import ASYNCHRONOUS_ROWS
from tiledsl.dialects import scf, tensor, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import ELEMENTS

Load = tile.LoadOp | tile.LoadBlockOp


@dataclass(frozen=True)
class Operand:
    """One side of a product: the load that it comes from, and the axis of the loaded tile that the product sums
    over."""

    load: Load
    summed: int


@dataclass(frozen=True)
class ProductLoop:
    """An innermost loop whose products take both operands, unchanged, from loads of the same iteration."""

    op: scf.ForOp
    dots: tuple[tensor.DotOp, ...]
    operands: tuple[Operand, ...]

    @property
    def loads(self) -> list[Load]:
        """Each load once, in order."""
        return list(dict.fromkeys(operand.load for operand in self.operands))

    @property
    def is_asynchronous(self) -> bool:
        """Whether the products are large enough for instructions that read shared memory (wgmma, tcgen05)."""
        return all(is_asynchronous(dot) and ELEMENTS[dot.a.dtype].bits <= 16 for dot in self.dots)

    @property
    def adds_products(self) -> bool:
        """Whether an iteration adds one of its products to another."""
        return any(dot.accumulator.op in self.dots for dot in self.dots)


def product_loops(kernel: tile.KernelOp) -> list[ProductLoop]:
    """The loops of this form, in order. A loop that also multiplies what it computed, as attention does, is not one."""
    loops = map(_product_loop, of_kinds(kernel.walk(), scf.ForOp))
    return [loop for loop in loops if loop is not None]


def _product_loop(loop: scf.ForOp) -> ProductLoop | None:
    inside = list(loop.body.walk())
    dots = tuple(of_kinds(inside, tensor.DotOp))
    if not dots or of_kinds(loop.body.walk(), scf.ForOp, scf.WhileOp):
        return None
    operands = []
    for dot in dots:
        for value, summed in ((dot.a, 1), (dot.b, 0)):
            operand = _loaded(value, summed)
            if operand is None or operand.load not in inside:
                return None
            operands.append(operand)
    return ProductLoop(loop, dots, tuple(operands))


def _loaded(value: Value, summed: int) -> Operand | None:
    op = value.op
    if isinstance(op, tensor.TransposeOp):
        summed = op.permutation[summed]
        op = op.source.op
    if not isinstance(op, (tile.LoadOp, tile.LoadBlockOp)) or not all(map(is_only_multiplied, op.out.uses)):
        return None
    return Operand(op, summed)


def _readers(user: Operation) -> list[Operation]:
    """What reads what an operation takes: itself, or what takes the tile that it transposes."""
    return list(user.out.uses) if isinstance(user, tensor.TransposeOp) else [user]


def is_only_multiplied(user: Operation) -> bool:
    """Whether only products read what an operation takes."""
    return all(isinstance(each, tensor.DotOp) for each in _readers(user))


def is_read_in_place(user: Operation) -> bool:
    """Whether only large products read what an operation takes: asynchronous ones read it in shared memory."""
    return all(map(is_asynchronous, _readers(user)))


def is_read_both_ways(load: Load) -> bool:
    """Whether large products read a tile in shared memory, and something else has it in registers."""
    return len({is_asynchronous(each) for user in load.out.uses for each in _readers(user)}) > 1


def outlasts_iteration(load: Load, loop: scf.ForOp) -> bool:
    """Whether a large product of a loop may still read a loaded tile when the next iteration has begun: nothing in the
    loop waits for its result, which is only added to."""
    readers = [each for user in load.out.uses for each in _readers(user)]
    return any(is_asynchronous(each) and _only_adds(each, loop) for each in readers)


def is_asynchronous(op: Operation) -> TypeGuard[tensor.DotOp]:
    """Whether an operation is a product that reads shared memory while other instructions run (wgmma)."""
    return isinstance(op, tensor.DotOp) and op.a.shape[0] >= ASYNCHRONOUS_ROWS and op.b.shape[1] >= 8


def _only_adds(dot: tensor.DotOp, loop: scf.ForOp) -> bool:
    """Whether no other operation of the loop's own body takes the result, or that of the products that add to it."""
    users = [user for user in dot.out.uses if user.parent is loop.body]
    adding = [user for user in users if isinstance(user, tensor.DotOp) and user.accumulator is dot.out]
    rest = [user for user in users if user not in adding and not isinstance(user, scf.YieldOp)]
    return not rest and all(_only_adds(each, loop) for each in adding)


def tensor_bytes(value: Value) -> int:
    """The size of a tensor in bytes."""
    return math.prod(value.shape) * ELEMENTS[value.dtype].bits // 8
