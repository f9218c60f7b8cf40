"""Bytes that a launch moves across DRAM: at the least, and as its blocks come and go in waves."""

from __future__ import annotations

import math

from tiledsl.autotuner.predicting.work_types import Traffic, Work


def compulsory_bytes(work: Work) -> dict[tuple[str, bool], float]:
    """Bytes of each buffer and direction that are touched at all."""
    touched: dict[tuple[str, bool], float] = {}
    for each in work.traffic:
        key = (each.buffer, each.is_store)
        along = math.prod((work.grid[axis] or 1) for axis in each.axes)
        touched[key] = min(touched.get(key, 0.0) + each.reach * along, each.size or math.inf)
    return touched


def dram_bytes(work: Work, per_wave: int, cache_bytes: float) -> float:
    """Bytes from and to DRAM: each wave of blocks fetches what they touch, once, unless everything stays in the
    second-level cache."""
    compulsory = sum(compulsory_bytes(work).values())
    if compulsory < 0.5 * cache_bytes:
        return compulsory
    waves = max(1.0, work.blocks / per_wave)
    spans = _spans(work, min(per_wave, work.blocks))
    total = 0.0
    for each in work.traffic:
        distinct = math.prod(spans[axis] for axis in each.axes)
        total += moved_bytes(each, work) * distinct * waves
    return max(total, compulsory)


def moved_bytes(each: Traffic, work: Work) -> float:
    """Bytes that a block touches on average of what there is: tiles reach beyond the ends of a buffer."""
    reached = each.reach * math.prod((work.grid[axis] or 1) for axis in each.axes)
    return each.bytes * min(1.0, (each.size or math.inf) / reached) if reached else each.bytes


def _spans(work: Work, running: int) -> list[float]:
    """How many different indices along each grid dimension run at once: the first dimension counts up fastest, or
    `panel` rows of blocks are walked together."""
    sizes = [each or 1 for each in work.grid]
    if work.panel and len(sizes) > 1:
        rows = min(work.panel, sizes[1], running)
        across = min(sizes[0], max(1.0, running / rows))
        further = max(1.0, running / (rows * across))
        return [float(across), min(float(sizes[1]), rows * further), *(1.0 for _ in sizes[2:])]
    spans = []
    left = float(running)
    for size in sizes:
        spans.append(min(float(size), max(1.0, left)))
        left /= size
    return spans
