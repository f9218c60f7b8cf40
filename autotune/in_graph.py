"""Which kernel of a tuned function runs in a graph of torch: what is known, never what would have to be tuned first."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.space import tunables
from tiledsl.autotuner.task import recall
from tiledsl.autotuner.tuned.recall import missed
from tiledsl.errors import TileError, user_loc

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction
    from tiledsl.kernels.kernel import Kernel


def kernel_in_graph(function: AutotunedFunction, values: Mapping[str, Any], on_miss: str) -> Kernel:
    """The kernel for a call's values by name: of a result in memory, in tuned-config files or on disk.

    on_miss: what there is otherwise: the "first" configuration, which is told once; a TileError ("error"); or what is
    tuned now ("tune").
    """
    call = function._call((), values)
    key = function._memory_key(call)
    result = function.known(key, call) or function.from_files(call)
    if result is None and on_miss == "tune":
        return function._compile((), values, function.options).kernel
    if result is None:
        problem = function._problem(call)
        result = recall(problem)[1]
        if result is None:
            miss: Any = on_miss
            return missed(function, replace(problem, options=replace(problem.options, on_miss=miss))).kernel
    if result.complete:
        function.remember(key, result)
    return result.kernel


def sample_kernel(function: AutotunedFunction, values: Mapping[str, Any], dynamic: Sequence[str] | None) -> Kernel:
    """A kernel of the first configuration; see InGraphs.sample_kernel."""
    target = function.target
    symbols: dict[str, Any] = {}
    if dynamic and not function.jit.is_eager:
        from tiledsl.language.program import dynamic as symbol

        symbols = {name: symbol(name) for name in dynamic}
    config = function.first_config({**values, **symbols}, target)
    return function.jit.sample_kernel({**values, **config}, dynamic, target)


def size_names(function: AutotunedFunction, constants: Mapping[str, Any]) -> tuple[str, ...]:
    """The parameters of a builder that stand for sizes: those that neither constants, configurations nor defaults
    give."""
    tuned = () if callable(function.configs) else tunables(function.configs)
    return tuple(name for name in function.jit.size_names(constants) if name not in tuned)


def refuse_while_capturing(name: str, tuning: str) -> None:
    """TileError where a CUDA graph is being captured: what is tuned then would be part of it. tuning: a call that does
    so before."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise TileError(
            f"{name} is not tuned for this call, and a CUDA graph is being captured",
            user_loc(),
            [f"tune before: call {name} once, or {tuning}"],
        )
