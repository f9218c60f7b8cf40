"""Serial loops that add the outer product of a column and a row of two tiles to a third one: matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tiledsl.analysis.dependence import ancestors, stripped
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import is_float
from tiledsl.passes.vectorize_parallel.updates import update_of

FEWEST = 16  # rows, columns and steps: of fewer, a product is padded
# Multiplications of float32 in a thread, which no tensor core does exactly: Triton writes each of them out, and with
# 2048 of them (64 x 64 x 64 by 128 threads) they have not registers enough.
MOST_EXACT = 1024
# The element types of operands whose products and sums are computed in the type of the result, as a loop does.
_OPERANDS = {"float32": ("float16", "bfloat16", "float32"), "int32": ("int8",)}


@dataclass(frozen=True)
class Product:
    """A loop that is `c += a @ b`, of transposed operands or not."""

    store: tile.StoreOp
    a: Value
    b: Value
    trans_a: bool
    trans_b: bool

    @property
    def reorders(self) -> bool:
        return is_float(self.store.buffer.dtype)

    def insert_before(self, loop: scf.ForOp) -> None:
        """The loop as a T.gemm, whose order of additions is that of the hardware; products of float32 are exact."""
        exact = "ieee" if self.a.dtype == "float32" else "default"
        operands = self.a, self.b, self.store.buffer
        made = tile.GemmOp(*operands, trans_a=self.trans_a, trans_b=self.trans_b, precision=exact)
        Builder.at(loop).insert(made)


def product_of(loop: scf.ForOp, count: int) -> Product | None:
    """The product of whole tiles that a loop of `count` iterations is, with a T.Parallel in or around it; or None."""
    stores = [op for op in loop.body.walk() if not op.is_pure and not isinstance(op, (tile.LoadOp, tile.ParallelOp))]
    store, *others = stores  # the loop's end is among them
    if not isinstance(store, tile.StoreOp) or not all(op.is_terminator for op in others):
        return None
    around = [op for op in ancestors(store) if isinstance(op, tile.ParallelOp)]
    if len(around) != 1 or any(op.lockstep for op in around):
        return None
    (parallel,) = around
    own = set[Operation]()
    update = update_of(store, own)
    if update is None or update.kind != "add" or len(update.terms) != 1 or store.buffer.dtype not in _OPERANDS:
        return None
    ((term, negative),), size = update.terms, dict(zip(parallel.body.args, parallel.extents, strict=True))
    size[loop.index] = count
    product = term.op
    if negative or not isinstance(product, arith.MulOp) or product.out.dtype != store.buffer.dtype:
        return None
    row, column = store.indices if len(store.indices) == 2 else (None, None)
    if {row, column, loop.index} != {*size} or not _is_whole(store, size):
        return None
    loads = of_kinds([stripped(value, arith.CastOp).op for value in product.operands], tile.LoadOp)
    if len(loads) < 2 or not _fit(loads, store.buffer, size, _threads_around(loop)):
        return None
    for a, b in (loads, loads[::-1]):
        if {*a.indices} == {row, loop.index} and {*b.indices} == {loop.index, column}:
            return Product(store, a.buffer, b.buffer, a.indices[0] is loop.index, b.indices[0] is column)
    return None


def _threads_around(loop: scf.ForOp) -> int:
    return next(op.threads for op in ancestors(loop) if isinstance(op, tile.KernelOp))


def _fit(loads: list[tile.LoadOp], c: Value, size: dict[Value, int], threads: int) -> bool:
    """Whether two tiles are read as a whole, and their product is what tensor cores compute, or is small."""
    if not all(_is_whole(load, size) and load.buffer is not c for load in loads) or min(size.values()) < FEWEST:
        return False
    small = prod(size.values()) <= MOST_EXACT * threads
    (dtype, *others) = {load.buffer.dtype for load in loads}
    return not others and dtype in _OPERANDS[c.dtype] and (dtype != "float32" or small)


def _is_whole(access: tile.LoadOp | tile.StoreOp, size: dict[Value, int]) -> bool:
    type = tile.buffer_type(access.buffer)
    walked = tuple(map(size.get, access.indices))
    return type.scope in ("shared", "fragment") and walked == type.static_shape and access.mask is None
