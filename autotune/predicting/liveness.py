"""Bytes of a program's tiles that are in registers at once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tiledsl.analysis.tile_parts import divided, padded
from tiledsl.dialects import scf, tile
from tiledsl.ir.core import Region, Value
from tiledsl.ir.types import ELEMENTS


@dataclass
class _Uses:
    """Where a tile is used: places in the order of the text, each with the loops around it."""

    places: list[tuple[int, tuple[scf.ForOp, ...]]] = field(default_factory=list)
    in_shared_memory: bool = False  # loaded as it is for a product, which reads it there


def live_bytes(kernel: tile.KernelOp) -> int:
    """Bytes of the tiles in use where they are most, counted from each one's first use to its last; what is used before
    or after a loop and in it lives all through it. At least what one T.Parallel loop has at once, of four bytes each.
    """
    uses: dict[Value, _Uses] = {}
    ends: dict[scf.ForOp, tuple[int, int]] = {}
    largest = 0
    place = 0

    def walk(region: Region, loops: tuple[scf.ForOp, ...]) -> None:
        nonlocal place, largest
        for op in region:
            place += 1
            for value in op.operands:
                known = uses.get(value)
                if known is not None:
                    known.places.append((place, loops))
            if isinstance(op, tile.AllocOp):
                type = tile.buffer_type(op.out)
                if type.scope in ("shared", "fragment", "local") and type.is_static:
                    uses[op.out] = _Uses()
            elif isinstance(op, tile.CopyOp) and tile.buffer_type(op.source).scope == "global" and op.target in uses:
                uses[op.target].in_shared_memory = tile.buffer_type(op.target).scope == "shared"
            elif isinstance(op, tile.ParallelOp):
                largest = max(largest, 4 * math.prod(op.extents))
            start = place
            for inner in op.regions:
                walk(inner, (*loops, op) if isinstance(op, scf.ForOp) else loops)
            if isinstance(op, scf.ForOp):
                ends[op] = (start, place)

    walk(kernel.body, ())
    held = divided if any(isinstance(op, tile.GemmOp) for op in kernel.walk()) else padded
    changes: dict[int, int] = {}
    for value, known in uses.items():
        if not known.places or known.in_shared_memory:
            continue
        first, last = _lifetime(known, ends)
        size = math.prod(map(held, tile.buffer_type(value).static_shape)) * ELEMENTS[value.dtype].bits // 8
        changes[first] = changes.get(first, 0) + size
        changes[last + 1] = changes.get(last + 1, 0) - size
    live = most = 0
    for at in sorted(changes):
        live += changes[at]
        most = max(most, live)
    return max(most, largest)


def _lifetime(uses: _Uses, ends: dict[scf.ForOp, tuple[int, int]]) -> tuple[int, int]:
    chains = [loops for _, loops in uses.places]
    shared = 0
    while all(len(loops) > shared and loops[shared] is chains[0][shared] for loops in chains):
        shared += 1
    first, last = uses.places[0][0], uses.places[-1][0]
    for loops in chains:
        if len(loops) > shared:
            start, end = ends[loops[shared]]
            first, last = min(first, start), max(last, end)
    return first, last
