"""Runs programs of the language tests: built here, interpreted on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl


@pytest.fixture
def run() -> Callable[..., Any]:
    """Compile a @T.prim_func for the interpreter and call it; `out_idx` are the outputs, the last one unless given."""

    def call(program: Any, *inputs: Any, out_idx: Any = (-1,)) -> Any:
        torch.manual_seed(0)
        return tiledsl.compile(program, out_idx=list(out_idx) if out_idx else None, target="interpret")(*inputs)

    return call
