"""The kernels of examples/ and of the benchmark suite, at their real shapes, lowered for a target and never run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import torch

import tiledsl
from benchmarks import ours
from benchmarks.row import Context, Row
from benchmarks.rows import backward
from tests.support.example_modules import EXAMPLES, load_example
from tiledsl.runtime.kernel import Kernel

DTYPES = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}


class _Found(Exception):
    """Raised where a row would begin to tune."""


def example_names() -> list[str]:
    """Every example but the quickstart, which tunes."""
    return [path.stem for path in sorted(EXAMPLES.glob("[a-z]*.py")) if path.stem != "quickstart"]


def of_example(name: str, target: str = "cuda:90", small: bool = False) -> list[Kernel]:
    """The kernels that an example runs, each once."""
    found: dict[str, Kernel] = {}

    def called(self: Kernel, *arguments: Any, **keywords: Any) -> Any:
        found.setdefault(self.source, self)
        given = [*arguments, *keywords.values()]
        return _outputs(self, given)

    module = load_example(name)
    with ExitStack() as stack:
        stack.enter_context(tiledsl.settings(target=target))
        stack.enter_context(patch.object(Kernel, "__call__", called))
        stack.enter_context(patch.multiple(module, largest_error=lambda *_, **__: 0.0, print_speed=_nothing))
        for each in (module, sys.modules.get("attention")):
            if hasattr(each, "DEVICE"):
                stack.enter_context(patch.object(each, "DEVICE", "meta"))
        stack.enter_context(suppress(RuntimeError))  # comparing results, of which there are none
        module.main(**(module.SMALL if small else {}))
    assert found, f"{name} ran no kernel"
    return list(found.values())


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _outputs(kernel: Kernel, given: Sequence[Any]) -> Any:
    inputs = [p for p in kernel.params if not p.is_output]
    if len(given) == len(kernel.params):
        return None
    sizes: dict[str, int] = {}
    for param, tensor in zip(inputs, given):
        sizes |= {dim: size for dim, size in zip(param.shape, getattr(tensor, "shape", ())) if isinstance(dim, str)}
    device = next((each.device for each in given if isinstance(each, torch.Tensor)), "cpu")
    made = [
        torch.zeros([sizes[dim] if isinstance(dim, str) else dim for dim in p.shape], device=device).to(_dtype(p.dtype))
        for p in kernel.params
        if p.is_output
    ]
    return made[0] if len(made) == 1 else made


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found


def of_row(row: Row, target: str = "cuda:90", every: bool = False) -> Iterator[Kernel]:
    """The suite's kernel for a row: of the first configuration, or of `every` one."""
    (candidate,) = [each for each in row.candidates if each.kind == "tiledsl"]
    asked: list[Any] = []

    def tune(*arguments: Any) -> Any:
        asked.extend(arguments)
        raise _Found

    inputs = row.inputs("meta")
    with patch.object(ours, "tune", tune), patch.object(backward, "tune", tune), suppress(_Found):
        candidate.prepare(Context(device="cpu", tune=False), row, inputs)
    _, jit, arguments, configs, given, _ = asked
    for config in configs if every else configs[:1]:
        function = tiledsl.jit(**{**jit.options, "target": target})(jit.function)
        values = () if arguments or not jit.is_eager else tuple(given)
        if jit.is_eager:
            yield function.compile(*values, **config)
        else:
            yield function.kernel_for(arguments, dict(config))
