"""A clock for runs without a GPU; see TuneOptions.timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def by_tile(config: Mapping[str, Any], call: Callable[[], Any]) -> float:
    """Milliseconds that fall with the tile's size: nothing but different for different configurations."""
    tile = config.get("block_M", 1) * config.get("block_N", 1) * config.get("block_K", 1)
    return 1.0 + 0.5 / float(tile) ** 0.25 + float(config.get("threads", 0)) / 1e6


def once(call: Callable[[], Any], quantiles: tuple[float, ...] = ()) -> list[float]:
    """In place of triton.testing.do_bench: the call is made once, and said to take a millisecond."""
    call()
    return [1.0] * len(quantiles)
