"""Functions that get to other processes, and one that does not."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from tiledsl.autotuner import tune_function

TIMER = "tests.autotune.fake_timers:by_way"
WAYS = [{"way": way} for way in ("plain", "crashes", "hangs", "raises", "wrong", "exits", "fast")]


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@tune_function(WAYS, ref_prog=twice, timer=TIMER, run_timeout=2.0)
def double(x: torch.Tensor, way: str = "") -> torch.Tensor:
    if way == "crashes":
        os.abort()
    if way == "hangs":
        time.sleep(600)
    if way == "raises":
        raise ValueError("not this way")
    if way == "exits":
        os._exit(3)
    return x * 3 if way == "wrong" else x + x


@tune_function(
    [{"way": "plain"}, {"way": "fast"}], ref_prog=lambda x, y, sizes: y.copy_(x * len((*sizes[1:], 0))), timer=TIMER
)
def double_into(x: torch.Tensor, y: torch.Tensor, sizes: tuple[int, ...] = (1,), way: str = "") -> None:
    assert sizes == (1, 2) and y.stride() == (1, 4)
    y.copy_(x * 2)


state: list[Any] = []


@tune_function([{"way": "plain"}, {"way": "fast"}], timer=TIMER)
def of_state(x: torch.Tensor, way: str = "") -> torch.Tensor:
    return x * len(state)
