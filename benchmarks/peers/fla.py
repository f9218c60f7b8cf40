"""flash-linear-attention as a candidate: Triton by hand, whose own tuner tunes its kernels at the first call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.row import Call, Candidate, Context, Ready, Row, Tensors, Unavailable


def flash_linear_attention(function: str, arguments: Callable[[Tensors], dict[str, Any]]) -> Candidate:
    """A function of fla.ops, by "module.name", that returns outputs and states. `arguments`: of the row's inputs."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        if context.device == "cpu":
            raise Unavailable("for GPUs only")
        module, _, name = function.rpartition(".")
        try:
            called = getattr(importlib.import_module(f"fla.ops.{module}"), name)
        except Exception as error:  # not there, or it does not load with this torch or Triton
            raise Unavailable(f"not installed ({type(error).__name__}: {error})") from error

        def bind(given: Tensors, outputs: Tensors) -> Call:
            named = arguments(given)

            def call() -> Any:
                with torch.no_grad():
                    return called(**named)[0]

            return call

        bind(inputs, ())()  # tunes
        return Ready(bind, own_outputs=True)

    return Candidate("triton", "flash-linear-attention", prepare)
