"""Functions that get to the processes that measure."""

from __future__ import annotations

from typing import Any

import torch

from tiledsl.autotuner import tune_function


@tune_function([{"way": way} for way in ("slow", "dies", "fast")], ref_prog=torch.matmul, warmup=1, rep=10, cache=False)
def product(A: Any, B: Any, way: str = "") -> Any:
    if way == "dies":
        return A[:, torch.full((1,), 1 << 30, device="cuda")]  # an assertion on the device ends the context
    parts = 16 if way == "slow" else 1
    return torch.cat([piece @ B for piece in A.chunk(parts)])
