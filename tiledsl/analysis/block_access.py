"""Accesses to global memory that move one rectangular block, which hardware can copy in one piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, BufferType

MAX_RANK = 5
MAX_ROWS = 256  # along every dimension but the contiguous one, which is split into pieces
ALIGNMENT = 16  # bytes, of addresses, strides, and of the width of a block

Access = tile.LoadOp | tile.StoreOp


class NoBlock(Exception):
    """Why hardware cannot copy an access as a block: a clause that continues "because"."""


@dataclass(frozen=True)
class Block:
    """Where a block begins, and along which dimensions it extends.

    summands: for each dimension of the buffer, the (value, sign) pairs whose sum is the start. axes: as in
    `tile.load_block`. shape: the tile's.
    """

    summands: tuple[tuple[tuple[Value, int], ...], ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def starts(self, at: Builder) -> list[Value]:
        """The sums as operations, one for each dimension of the buffer."""
        return [_sum(at, each) for each in self.summands]


def block_of(op: Access, func: tile.FuncOp) -> Block:
    """The block that a load or store moves. Raises NoBlock, with the reason, if it moves none or an unaligned one."""
    type = tile.buffer_type(op.buffer)
    _check_buffer(type)
    shape = tile.access_shape(op) or ()
    if len(shape) < 2:
        raise NoBlock("rows are as fast through pointers" if shape else "it is accessed one element at a time")
    summands, axes = [], [-1] * len(shape)
    for dim, index in enumerate(op.indices):
        terms, iota = _parts(index)
        summands.append(tuple(terms))
        if iota is not None and iota.extent > 1:
            if axes[iota.axis] >= 0:
                raise NoBlock("one dimension of the tile walks along two of the buffer")
            axes[iota.axis] = dim
    for axis, size in zip(axes, shape):
        if size > 1 and axis < 0:
            raise NoBlock("the tile repeats elements of the buffer")
        if size > MAX_ROWS and axis != len(type.shape) - 1:
            raise NoBlock(f"its block is {size} long, and a descriptor's at most {MAX_ROWS}")
    _check_width(type, axes, shape)
    wanted = ALIGNMENT * 8 // ELEMENTS[type.dtype].bits
    if not all(is_multiple(value, wanted) for value, _ in summands[-1]):
        raise NoBlock(f"its blocks may begin at other columns than multiples of {wanted}")
    _check_mask(op, type, func)
    if isinstance(op, tile.StoreOp):
        _check_rows(type)
    return Block(tuple(summands), tuple(axes), shape)


def _check_buffer(type: BufferType) -> None:
    rank = len(type.shape)
    if not 2 <= rank <= MAX_RANK:
        raise NoBlock(f"it has {rank} dimension{'s' * (rank != 1)}, and a descriptor 2 to {MAX_RANK}")
    bits = ELEMENTS[type.dtype].bits
    if type.dtype == "bool" or bits > 32:
        raise NoBlock(f"descriptors of {type.dtype} are not used")
    strides = strides_of(type)
    if strides[-1] != 1:
        raise NoBlock(f"neighbours in its last dimension are {strides[-1]} elements apart")
    for axis, stride in enumerate(strides[:-1]):
        if stride is None or isinstance(stride, str):
            raise NoBlock(f"its stride in dimension {axis} is known only at run time")
        if stride <= 0 or stride * bits % (8 * ALIGNMENT):
            raise NoBlock(
                f"its stride in dimension {axis} is {stride * bits // 8} bytes, not a multiple of {ALIGNMENT}"
            )


def strides_of(type: BufferType) -> list[int | str | None]:
    """The distance between neighbours along each dimension, in elements; None where it follows from a dynamic size."""
    if type.strides is not None:
        return list(type.strides)
    strides: list[int | str | None] = [1]
    for dim in reversed(type.shape[1:]):
        last = strides[-1]
        strides.append(last * dim if isinstance(last, int) and isinstance(dim, int) else None)
    return strides[::-1]


def _check_width(type: BufferType, axes: Iterable[int], shape: Iterable[int]) -> None:
    last = len(type.shape) - 1
    width = next((size for axis, size in zip(axes, shape) if axis == last), 1)
    if width * ELEMENTS[type.dtype].bits < ALIGNMENT * 8:
        raise NoBlock(f"its blocks are {width} elements wide, less than {ALIGNMENT} bytes")


def _check_rows(type: BufferType) -> None:
    """What lies behind a row that ends within 16 bytes was written by such stores on an H200."""
    extent, bits = type.shape[-1], ELEMENTS[type.dtype].bits
    if isinstance(extent, int) and extent * bits % (ALIGNMENT * 8):
        raise NoBlock(f"its rows have {extent * bits // 8} bytes, not a multiple of {ALIGNMENT}")


def _parts(index: Value) -> tuple[list[tuple[Value, int]], tensor.IotaOp | None]:
    """An index as a sum of signed scalars and at most one iota."""
    terms: list[tuple[Value, int]] = []
    iota: tensor.IotaOp | None = None
    pending = [(index, 1)]
    while pending:
        value, sign = pending.pop()
        op, type = value.op, value.type
        if type.dtype != "int32":
            raise NoBlock(f"an index is {type.dtype}")
        if not type.shape or isinstance(op, arith.ConstantOp):
            terms.append((value, sign))
        elif isinstance(op, (arith.AddOp, arith.SubOp)):
            pending += [(op.rhs, sign if isinstance(op, arith.AddOp) else -sign), (op.lhs, sign)]
        elif isinstance(op, tensor.IotaOp) and sign > 0 and iota is None:
            iota = op
        elif isinstance(op, tensor.BroadcastOp) or (isinstance(op, tensor.ReshapeOp) and not op.source.shape):
            pending.append((op.source, sign))
        else:
            raise NoBlock("its elements are not neighbours in memory")
    return terms, iota


def _sum(at: Builder, terms: tuple[tuple[Value, int], ...]) -> Value:
    total: Value | None = None
    for value, sign in sorted(terms, key=lambda term: -term[1]):
        number = constant_of(value)
        if value.shape and number is not None:
            value = at.constant(number, INT32)
        if total is None and sign < 0:
            total = at.constant(0, INT32)
        if total is not None:
            value = at.insert((arith.AddOp if sign > 0 else arith.SubOp)(total, value)).result
        total = value
    return at.constant(0, INT32) if total is None else total


def is_multiple(value: Value, number: int) -> bool:
    """Whether an integer is provably a multiple of `number`, a power of two (so that wrapping does not matter)."""
    known = constant_of(value)
    if known is not None:
        return int(known) % number == 0
    op = value.op
    if op is None:
        return _is_index_of_multiples(value, number)
    if isinstance(op, arith.MulOp):
        return _multiplies(op.lhs, op.rhs, number) or _multiplies(op.rhs, op.lhs, number)
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.MinOp, arith.MaxOp)):
        return is_multiple(op.lhs, number) and is_multiple(op.rhs, number)
    if isinstance(op, arith.SelectOp):
        return is_multiple(op.on_true, number) and is_multiple(op.on_false, number)
    return False


def _multiplies(value: Value, factor: Value, number: int) -> bool:
    """Whether value * factor is a multiple of `number`, given what a constant factor contributes."""
    known = constant_of(factor)
    if known is None:
        return is_multiple(factor, number)
    rest = number // gcd(number, int(known))
    return rest == 1 or is_multiple(value, rest)


def _is_index_of_multiples(value: Value, number: int) -> bool:
    region = value.owner
    loop = region.parent if isinstance(region, Region) else None
    if not isinstance(loop, scf.ForOp) or value is not loop.index:
        return False
    return is_multiple(loop.lower, number) and is_multiple(loop.step, number)


def _check_mask(op: Access, type: BufferType, func: tile.FuncOp) -> None:
    """Raise NoBlock unless the mask is the buffer's bounds, which is all that hardware checks; it reads 0 outside."""
    if isinstance(op, tile.LoadOp) and op.other is not None and op.mask is not None and constant_of(op.other) != 0:
        raise NoBlock("what lies outside does not read 0")
    pending = [] if op.mask is None else [op.mask]
    while pending:
        condition = pending.pop().op
        if isinstance(condition, tensor.BroadcastOp):
            pending.append(condition.source)
        elif isinstance(condition, arith.AndOp):
            pending += [condition.lhs, condition.rhs]
        elif not isinstance(condition, arith.CmpOp) or not _is_bound(condition, op, type, func):
            raise NoBlock("its mask is more than the buffer's bounds")
        elif isinstance(op, tile.StoreOp) and condition.predicate in ("ge", "gt"):
            raise NoBlock("its blocks may begin before the tensor")  # an illegal instruction on an H200; loads read 0


def _is_bound(condition: arith.CmpOp, op: Access, type: BufferType, func: tile.FuncOp) -> bool:
    for index, dim in zip(op.indices, type.shape):
        if condition.lhs is not index and condition.lhs is not _unbroadcast(index):
            continue
        number = constant_of(condition.rhs)
        if (condition.predicate, number) in (("ge", 0), ("gt", -1)):
            return True
        bound = condition.rhs.op
        limit = bound.source if isinstance(bound, arith.CastOp | tensor.BroadcastOp) else condition.rhs
        wanted = dim if isinstance(dim, int) else func.symbol(dim)
        if condition.predicate == "lt" and (number == wanted if isinstance(wanted, int) else limit is wanted):
            return True
        if condition.predicate == "le" and isinstance(wanted, int) and number == wanted - 1:
            return True
    return False


def _unbroadcast(index: Value) -> Value:
    return index.op.source if isinstance(index.op, tensor.BroadcastOp) else index


def root_buffer(buffer: Value) -> Value:
    """The buffer behind a chain of views."""
    while isinstance(buffer.op, tile.ViewOp):
        buffer = buffer.op.source
    return buffer
