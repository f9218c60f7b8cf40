"""A program at its own tile shapes, but with problem sizes of a few blocks: what can be executed in a moment.

Sizes of global buffers, grids and trip counts of loops over global memory shrink; nothing else changes. What comes out
is a program of its own, with a meaning of its own, which the same passes lower: in a global buffer every access is
checked against the buffer's size until guard-accesses has put that check into masks. Each size keeps its remainder by
the tiles that walk along it, so that what was ragged stays so.
"""

from __future__ import annotations

from math import lcm, prod

from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType
from tiledsl.ir.verifier import VerifyError, verify

ALIGNMENT = 16  # elements: what decides about blocks that hardware copies must not change
FEW_ELEMENTS = 1 << 16
_BLOCKS = 2  # full ones along a size
_TRIPS = 4


def reduced(root: tile.FuncOp) -> tile.FuncOp | None:
    """A smaller program, or None where the program is small or cannot be made so. The program itself is not changed."""
    if all((_elements(value.type) or 0) <= FEW_ELEMENTS for value in root.body.args) and not _many_blocks(root):
        return None
    twin = root.clone({})
    assert isinstance(twin, tile.FuncOp)
    tiles = _tiles(twin)
    sizes = {size: _smaller(size, extents) for size, extents in tiles.items()}
    for op in list(twin.walk()):
        for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
            _shrink_buffer(value, sizes)
    counts = {
        -(-size // extent): -(-sizes[size] // extent)
        for size, extents in tiles.items()
        for extent in extents
        if sizes[size] != size
    }
    for op in list(twin.walk()):
        if isinstance(op, tile.KernelOp):
            op.set_field("grid", [_capped(op, each, counts, 3) for each in op.grid])
        elif isinstance(op, scf.ForOp) and _walks_memory(op):
            _shorten(op, counts)
    try:
        verify(twin)
    except VerifyError:
        return None
    return twin


def _elements(type: object) -> int | None:
    return prod(type.static_shape) if isinstance(type, BufferType) and type.is_static else None


def _many_blocks(root: tile.FuncOp) -> bool:
    grids = [[constant_of(each) for each in op.grid] for op in root.body if isinstance(op, tile.KernelOp)]
    return any(prod(int(each or 1) for each in grid) > 64 for grid in grids)


def _tiles(root: tile.FuncOp) -> dict[int, set[int]]:
    """For each size of a global buffer, the extents of the tiles that walk along it; 1 where a single element is."""
    found: dict[int, set[int]] = {}
    walked: dict[tuple[Value, int], set[int]] = {}
    for op in root.walk():
        if isinstance(op, tile.CopyOp):
            for buffer, axes in ((op.source, op.source_axes), (op.target, op.target_axes)):
                for axis, extent in zip(axes, op.shape, strict=True):
                    walked.setdefault((buffer, axis), set()).add(extent)
        elif isinstance(op, (tile.LoadOp, tile.StoreOp, tile.AtomicOp)):
            around = op.parent_op
            while around is not None and not isinstance(around, (tile.ParallelOp, tile.KernelOp)):
                around = around.parent_op
            extents = around.extents if isinstance(around, tile.ParallelOp) else ()
            for axis, index in enumerate(op.indices):
                for number, extent in enumerate(extents):
                    if isinstance(around, tile.ParallelOp) and _depends(index, around.body.args[number]):
                        walked.setdefault((op.buffer, axis), set()).add(extent)
    for value in (each for op in root.walk() for each in (*op.results, *(a for r in op.regions for a in r.args))):
        if isinstance(value.type, BufferType) and value.type.scope == "global":
            for axis, size in enumerate(value.type.shape):
                if isinstance(size, int):
                    found.setdefault(size, set()).update(walked.get((value, axis), {1}))
    return found


def _depends(value: Value, on: Value) -> bool:
    seen, left = set(), [value]
    while left:
        each = left.pop()
        if each is on:
            return True
        if each not in seen and each.op is not None:
            seen.add(each)
            left += each.op.operands
    return False


def _smaller(size: int, extents: set[int]) -> int:
    unit = lcm(*extents)
    unit = unit if extents == {1} else lcm(unit, ALIGNMENT)
    return size if size <= (_BLOCKS + 1) * unit else _BLOCKS * unit + size % unit


def _shrink_buffer(value: Value, sizes: dict[int, int]) -> None:
    type = value.type
    if isinstance(type, BufferType) and type.scope == "global" and type.strides is None:
        shape = tuple(sizes.get(dim, dim) if isinstance(dim, int) else dim for dim in type.shape)
        if shape != type.shape:
            value.set_type(BufferType(shape, type.dtype, type.scope, type.strides))


def _capped(before: Operation, value: Value, counts: dict[int, int], most: int) -> Value:
    number = constant_of(value)
    if type(number) is not int or number <= 1:
        return value
    return _constant(before, counts.get(number, min(number, most)), value)


def _constant(before: Operation, number: int, like: Value) -> Value:
    return Builder.at(before).constant(number, like.type)


def _walks_memory(loop: scf.ForOp) -> bool:
    for op in loop.walk():
        if isinstance(op, (tile.CopyOp, tile.LoadOp)):
            buffer = op.operands[0].type
            if isinstance(buffer, BufferType) and buffer.scope == "global":
                return True
    return False


def _shorten(loop: scf.ForOp, counts: dict[int, int]) -> None:
    """Fewer iterations of a loop with constant bounds: as many as are left of the size, or the first few."""
    bounds = [constant_of(each) for each in (loop.lower, loop.upper, loop.step)]
    if any(type(each) is not int for each in bounds):
        return
    lower, upper, step = (int(each) for each in bounds if each is not None)
    trips = len(range(lower, upper, step)) if step else 0
    if trips <= _TRIPS and trips not in counts:
        return
    left = min(trips, counts.get(trips, _TRIPS))
    operands = [loop.lower, _constant(loop, lower + left * step, loop.upper), *loop.operands[2:]]
    loop.set_operands(operands)
