"""What spaces are made of: tiles, launch options and choices of the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AUTO: Mapping[str, Any] = {}  # the compiler's own choice
TMA = {"select-access.mode": "tma", "map-grid.persistent": 0}
PERSISTENT = {"select-access.mode": "tma", "map-grid.persistent": 1}
GLUON = {"select-emitter.backend": "gluon"}
LAST_WAVE = {**GLUON, "split-last-wave.programs": -1}
GLUON_LAZY = {**GLUON, "select-emitter.rescale": "lazy"}
GLUON_EACH = {**GLUON, "select-emitter.rescale": "each"}
APART = {"select-emitter.consumers": "apart"}
IN_TURN = {"select-emitter.additions": 2}
TRITON = {"select-emitter.backend": "triton"}
TRITON_TMA = {**TRITON, **TMA}


def product(
    m: int, n: int, k: int, stages: int, warps: int, passes: Mapping[str, Any] = AUTO, **more: Any
) -> dict[str, Any]:
    """A configuration of a tiled product."""
    tiles = {"block_M": m, "block_N": n, "block_K": k, "num_stages": stages, "threads": 32 * warps, **more}
    return {**tiles, **_choices(passes)}


def walk(m: int, n: int, stages: int, warps: int, passes: Mapping[str, Any] = AUTO) -> dict[str, Any]:
    """A configuration of attention, or of a product whose depth of a tile is given."""
    return {"block_M": m, "block_N": n, "num_stages": stages, "threads": 32 * warps, **_choices(passes)}


def _choices(passes: Mapping[str, Any]) -> dict[str, Any]:
    return {"pass_configs": dict(passes)} if passes else {}
