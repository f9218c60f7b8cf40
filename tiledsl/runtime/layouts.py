"""Layouts in the text of Triton's GPU dialect: along which dimensions the lanes of a warp lie. Part of hazards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

Bases = list[tuple[int, ...]]  # for each bit of a number: how far it moves along each dimension

_ALIAS = re.compile(r"^(#\w+) = (#ttg\.\w+<\{.*\}>)", re.MULTILINE)
_MOVES = re.compile(r'"tt\.(reduce|scan)"\(.*?<\{axis = (\d+)', re.DOTALL)
_TYPE = re.compile(r"^\s*\}\) : \((tensor<[^()]*?>)[,)]", re.MULTILINE)


@dataclass(frozen=True)
class Movement:
    """A reduction ("reduce") or scan along `axis` of a tile, whose elements lie in these lanes and in these registers
    of a thread; `order` has its dimensions, the fastest first."""

    kind: str
    axis: int
    type: str
    lanes: Bases
    registers: Bases
    order: tuple[int, ...]


def movements(ttgir: str) -> Iterator[Movement]:
    """The reductions and scans of a module whose layouts are understood; those of matrix products are not."""
    aliases = dict(_ALIAS.findall(ttgir))
    for move in _MOVES.finditer(ttgir):
        ending = _TYPE.search(ttgir, move.end())
        if ending is None:
            continue
        sizes, _, layout = ending[1].removeprefix("tensor<").removesuffix(">").partition(", ")
        shape = tuple(int(size) for size in sizes.split("x")[:-1])
        read = _read(layout, aliases, shape)
        if read is not None:
            yield Movement(move[1], int(move[2]), ending[1], *read)


def _read(layout: str, aliases: dict[str, str], shape: Sequence[int]) -> tuple[Bases, Bases, tuple[int, ...]] | None:
    layout = aliases.get(layout, layout)
    if layout.startswith("#ttg.blocked"):
        names = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
        per_thread, threads, warps, order = (_numbers(layout, name) for name in names)
        lanes: Bases = []
        registers: Bases = []
        for dim in order:
            lanes += _steps(dim, per_thread[dim], per_thread[dim] * threads[dim], shape)
            registers += _steps(dim, 1, per_thread[dim], shape)
            registers += _steps(dim, per_thread[dim] * threads[dim] * warps[dim], shape[dim], shape)
        return lanes, registers, tuple(order)
    if layout.startswith("#ttg.linear"):
        return _field(layout, "lane"), _field(layout, "register"), tuple(range(len(shape)))[::-1]
    if layout.startswith("#ttg.slice"):
        dim, parent = re.findall(r"dim = (\d+), parent = (.*)\}>$", layout)[0]
        inner = _read(parent, aliases, (*shape[: int(dim)], 1, *shape[int(dim) :]))
        if inner is None:
            return None
        kept = [each for each in range(len(shape) + 1) if each != int(dim)]
        lanes, registers = ([tuple(base[each] for each in kept) for base in bases] for bases in inner[:2])
        return lanes, registers, tuple(kept.index(each) for each in inner[2] if each != int(dim))
    return None


def _numbers(layout: str, name: str) -> list[int]:
    return [int(each) for each in re.findall(rf"{name} = \[([\d, ]+)\]", layout)[0].split(",")]


def _steps(dim: int, first: int, end: int, shape: Sequence[int]) -> Bases:
    """How the bits of a number move along one dimension, that go from `first` elements to less than `end`. Those that
    leave the shape move to copies."""
    moves = [first << bit for bit in range((end // first).bit_length() - 1)] if end > first else []
    return [tuple(move * (each == dim and move < shape[dim]) for each in range(len(shape))) for move in moves]


def _field(layout: str, name: str) -> Bases:
    """The list of lists of this name in a linear layout."""
    found = re.search(rf"\b{name} = \[((?:\[[\d, ]+\](?:, )?)*)\]", layout)
    assert found is not None, layout
    return [tuple(map(int, each.split(","))) for each in re.findall(r"\[([\d, ]+)\]", found[1])]


def lanes_are_scattered(movement: Movement) -> bool:
    """Whether lanes that differ along the axis are no neighbours: a reduction by exchanges between lanes at distances
    that double takes the wrong ones."""
    bits = [bit for bit, lane in enumerate(movement.lanes) if lane[movement.axis]]
    return bool(bits) and bits != list(range(bits[0], bits[0] + len(bits)))


def stride_is_misjudged(movement: Movement) -> bool:
    """Whether the distance between lanes along the axis is not what the extents of the faster dimensions say, when
    lanes that hold copies are counted with the dimension before, and with the first where there is none."""
    counts = [1] * len(movement.order)
    last, distance = 0, 0
    for bit, lane in enumerate(movement.lanes):
        last = next((dim for dim, moved in enumerate(lane) if moved), last)
        counts[last] *= 2
        if lane[movement.axis] and not distance:
            distance = 1 << bit
    faster = movement.order[: movement.order.index(movement.axis)]
    return bool(distance) and distance != prod(counts[dim] for dim in faster)


def last_lane_is_misjudged(movement: Movement) -> bool:
    """Whether a scan goes on in another register of the same lanes, for which it takes the sum of those before from
    the last lane along the axis, and lanes that hold copies lie before that: the last one is counted without them."""
    steps = [lane[movement.axis] for lane in movement.lanes]
    along = [bit for bit, step in enumerate(steps) if step]
    if not along or not any(base[movement.axis] > steps[along[0]] for base in movement.registers):
        return False
    return any(not any(lane) for lane in movement.lanes[: along[-1]])
