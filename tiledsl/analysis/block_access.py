"""Accesses to global memory that move one rectangular block, which hardware can copy in one piece."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import NoReturn

from tiledsl.analysis.affine import divisor
from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.linear import LinearForm, Reader
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS, BufferType

MAX_RANK = 5
MAX_ROWS = 256  # along every dimension but the contiguous one, which is split into pieces
ALIGNMENT = 16  # bytes, of addresses, strides, and of the width of a block

Access = tile.LoadOp | tile.StoreOp


class NoBlock(Exception):
    """Why hardware cannot copy an access as a block: a clause that continues "because"."""


@dataclass(frozen=True)
class Block:
    """Where a block begins, and along which dimensions it extends.

    starts: for each dimension of the buffer, a sum. axes: as in `tile.load_block`. shape: the tile's.
    """

    starts: tuple[LinearForm, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]


def block_of(op: Access, func: tile.FuncOp) -> Block:
    """The block that a load or store moves. Raises NoBlock, with the reason, if it moves none or an unaligned one."""
    type = tile.buffer_type(op.buffer)
    _check_buffer(type)
    shape = tile.access_shape(op) or ()
    if len(shape) < 2:
        raise NoBlock("rows are as fast through pointers" if shape else "it is accessed one element at a time")
    starts, axes = [], [-1] * len(shape)
    for dim, index in enumerate(op.indices):
        start, iota = start_and_walk(index)
        starts.append(start)
        if iota is not None:
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
    if any(coefficient * prod(map(divisor, factors)) % wanted for factors, coefficient in starts[-1].terms.items()):
        raise NoBlock(f"its blocks may begin at other columns than multiples of {wanted}")
    _check_mask(op, type, func)
    if isinstance(op, tile.StoreOp):
        _check_rows(type)
    return Block(tuple(starts), tuple(axes), shape)


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
        if not stride or stride * bits % (8 * ALIGNMENT):
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


class _PlaceReader(Reader):
    """Sums of scalars, which stay whole, and of iotas. Raises NoBlock for other indices."""

    def read(self, value: Value) -> LinearForm | None:
        if value.dtype != "int32":
            raise NoBlock(f"an index is {value.dtype}")
        return super().read(value)

    def stops(self, value: Value) -> bool:
        return not value.shape or isinstance(value.op, tensor.IotaOp)

    def looks_through(self, op: Operation) -> bool:
        return isinstance(op, tensor.BroadcastOp) or isinstance(op, tensor.ReshapeOp) and not op.source.shape

    def product(self, lhs: LinearForm, rhs: LinearForm) -> None:
        return None

    def opaque(self, value: Value) -> NoReturn:
        raise NoBlock("its elements are not neighbours in memory")


def start_and_walk(index: Value) -> tuple[LinearForm, tensor.IotaOp | None]:
    """An index as a sum of scalars and at most one iota. Raises NoBlock for others."""
    form = _PlaceReader().read(index)
    assert form is not None
    start, walks = form.split()
    if not walks.terms:
        return start, None
    ((walk, *_), coefficient), *others = walks.terms.items()
    if others or coefficient != 1:
        raise NoBlock("its elements are not neighbours in memory")
    assert isinstance(walk.op, tensor.IotaOp), "the reader stops at scalars and iotas"
    return start, walk.op


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
        if _unbroadcast(condition.lhs) is not _unbroadcast(index):
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
    return stripped(buffer, tile.ViewOp)
