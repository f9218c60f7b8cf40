"""tiledsl as a candidate: a program, tuned by its autotuner over a space of configurations."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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


def tune(
    context: Context,
    jit: Any,
    arguments: Mapping[str, Any],
    configs: Configs,
    inputs: Tensors,
    reference: Callable[..., Any],
) -> tuple[Any, dict[str, Any], float | None]:
    """The best kernel, its configuration, and the seconds that tuning took; without tuning, the first configuration's.

    arguments: the builder's, by name; an eager function's tunables are among the configurations and its tensors are the
    inputs. Raises Unavailable with the tuner's table where no configuration works.
    """
    target = "cuda" if context.device == "cuda" else "interpret"
    chosen = [{**config} for config in context.some(configs)]
    values = () if arguments or not jit.is_eager else tuple(inputs)
    if not context.tune:
        config = dict(chosen[0])
        options = {"pass_configs": config.pop("pass_configs")} if "pass_configs" in config else {}
        function = tiledsl.jit(**{**jit.options, "target": target, **options})(jit.function)
        kernel = function.compile(*values, **config) if jit.is_eager else function(**arguments, **config)
        return kernel, dict(chosen[0]), None
    tuner = tiledsl.autotune(
        configs=chosen, ref_prog=reference, cache=False, progress=False, target=target, budget=context.seconds
    )(jit)
    start = time.perf_counter()
    try:
        with set_autotune_inputs(*inputs):
            result = tuner.compile(*values, **arguments)
    except tiledsl.TileError as error:
        raise Unavailable(f"no configuration works: {error}") from error
    return result.kernel, dict(result.config), time.perf_counter() - start


def tiledsl_candidate(jit: Any, arguments: Mapping[str, Any], configs: Configs, name: str = "tiledsl") -> Candidate:
    """A row's program, its builder's arguments, and the configurations to search."""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        kernel, config, seconds = tune(context, jit, arguments, configs, inputs, row.reference)
        return Ready(lambda given, outputs: kernel_call(kernel, given, outputs), config, seconds)

    return Candidate("tiledsl", name, prepare)
