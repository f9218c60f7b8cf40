"""The kernels of examples/ as a program makes them, for checks that do not run them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

import tiledsl
from tests.support.example_modules import BASIC, load_example
from tiledsl.kernels.kernel import Kernel

NAMES = (*BASIC, "attention", "attention_sink", "attention_backward")


def kernels_of(name: str, target: str, **options: Any) -> list[Kernel]:
    """The kernels that examples/<name>.py calls at its small sizes, or as `options` say."""
    with _collected() as found, tiledsl.settings(target=target):
        example = load_example(name)
        with contextlib.suppress(AssertionError):  # results are not computed
            example.main(**{**example.SMALL, **options})
    return list({id(each): each for each in found}.values())


@contextlib.contextmanager
def _collected() -> Iterator[list[Kernel]]:
    """Calls of kernels give zeros; who was called is in the list."""
    kernels: list[Kernel] = []
    call, available = Kernel.__call__, torch.cuda.is_available

    def record(kernel: Kernel, *arguments: Any) -> Any:
        kernels.append(kernel)
        sizes = {}
        tensors = [each for each in kernel.params if not each.is_output]
        for param, value in zip(tensors, arguments, strict=False):
            if param.is_tensor:
                sizes.update({dim: size for dim, size in zip(param.shape, value.shape) if isinstance(dim, str)})
        made = []
        for param in kernel.params:
            if param.is_output:
                shape = [sizes[dim] if isinstance(dim, str) else dim for dim in param.shape]
                made.append(torch.zeros(shape).to(getattr(torch, param.dtype)))
        return made[0] if len(made) == 1 else made

    Kernel.__call__ = record  # type: ignore[method-assign]
    torch.cuda.is_available = lambda: False
    try:
        yield kernels
    finally:
        Kernel.__call__ = call  # type: ignore[method-assign]
        torch.cuda.is_available = available
