"""tiledsl as a candidate: a program, tuned by its autotuner over a space of configurations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import tiledsl
from benchmarks.row import Call, Candidate, Context, Ready, Row, Tensors, Unavailable
from tiledsl.autotuner import set_autotune_inputs

Configs = Sequence[Mapping[str, Any]]
_DTYPES = {"bool": torch.bool}


def kernel_call(kernel: Any, inputs: Tensors, outputs: Tensors) -> Call:
    """A call of a kernel on its inputs and outputs; outputs that the row does not have are allocated once."""
    params = kernel.params
    given, wanted = iter(inputs), iter(outputs)
    arguments = []
    for param in params:
        if not param.is_output:
            arguments.append(next(given))
            continue
        output = next(wanted, None)
        if output is None:
            dtype = _DTYPES.get(param.dtype) or getattr(torch, param.dtype)
            output = torch.empty(param.shape, dtype=dtype, device=inputs[0].device)
        arguments.append(output)
    return lambda: kernel(*arguments)


@dataclass(frozen=True)
class Tuned:
    """What the tuner chose, after so many seconds, and what Ready.rivals says of the others."""

    kernel: Any
    config: dict[str, Any]
    seconds: float | None = None
    rivals: Sequence[Mapping[str, Any]] = ()


def tune(
    context: Context,
    jit: Any,
    arguments: Mapping[str, Any],
    configs: Configs,
    inputs: Tensors,
    reference: Callable[..., Any],
    tolerance: float | None = None,
) -> Tuned:
    """The best kernel, its configuration, and the seconds that tuning took; without tuning, the first configuration's.

    arguments: the builder's, by name; an eager function's tunables are among the configurations and its tensors are the
    inputs. Raises Unavailable with the tuner's table where no configuration works.
    """
    target = "cuda" if context.device == "cuda" else "interpret"
    chosen = [{**config} for config in context.some(configs)]
    values = () if arguments or not jit.is_eager else tuple(inputs)
    if not context.tune:
        function = tiledsl.jit(**{**jit.options, "target": target})(jit.function)
        if jit.is_eager:
            kernel = function.compile(*values, **chosen[0])
        else:
            kernel = function.kernel_for(arguments, chosen[0])
        return Tuned(kernel, dict(chosen[0]))
    tuner = tiledsl.autotune(
        configs=tiledsl.spaces.for_program if context.generated else chosen,
        ref_prog=reference,
        cache=False,
        progress=False,
        target=target,
        budget=context.seconds,
        rtol=tolerance,
        atol=tolerance,
    )(jit)
    start = time.perf_counter()
    try:
        with set_autotune_inputs(*inputs):
            result = tuner.compile(*values, **arguments)
    except tiledsl.TileError as error:
        raise Unavailable(f"no configuration works: {error}") from error
    return Tuned(result.kernel, dict(result.config), time.perf_counter() - start, rivals_of(result.trials))


def rivals_of(trials: Sequence[Any]) -> list[dict[str, Any]]:
    """The final round's configurations, in milliseconds, and those that failed."""
    final = [
        {"config": trial.config, "ms": round(trial.latency, 6), "spread": trial.spread, "rounds": trial.rounds}
        for trial in sorted((each for each in trials if each.rounds), key=lambda each: each.latency)
    ]
    lost = [trial for trial in trials if not trial.ok and trial.status not in ("new", "pruned", "screened")]
    return final + [{"config": trial.config, "status": trial.status, "why": trial.message[:200]} for trial in lost]


def with_generated_space(row: Row) -> Row:
    """The row with two candidates: tiledsl over the space that it proposes, tuned first, and over the row's own."""
    (own,) = (each for each in row.candidates if each.kind == "tiledsl")

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        return own.prepare(replace(context, generated=True), row, inputs)

    return replace(row, candidates=(Candidate("generated", "generated space", prepare), own))


def tiledsl_candidate(
    jit: Any, arguments: Mapping[str, Any], configs: Configs, name: str = "tiledsl", tolerance: float | None = None
) -> Candidate:
    """A row's program, its builder's arguments, and the configurations to search. tolerance: the tuner's, relative and
    absolute; None: its own for the type of the results, which says nothing of roundings in between."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        found = tune(context, jit, arguments, configs, inputs, row.reference, tolerance)
        return Ready(
            lambda given, outputs: kernel_call(found.kernel, given, outputs), found.config, found.seconds, found.rivals
        )

    return Candidate("tiledsl", name, prepare)
