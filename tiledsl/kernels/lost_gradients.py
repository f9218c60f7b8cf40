"""Calls of what has no backward, with tensors that require gradients: a warning, or in a backward function an error for
whoever differentiates again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tiledsl.errors import TileError, user_loc
from tiledsl.runtime.launch_triton import constant_when_traced, takes_gradients

_warned: dict[Any, int] = {}


class _OfThread(threading.local):
    names: list[str] | None = None  # of kernels that the backward function which runs has called; None: none runs


_of_thread = _OfThread()


def without_gradients(name: str, arguments: Sequence[Any]) -> Sequence[Any]:
    """The arguments of what has no backward, which torch would else refuse to trace. Losing gradients is told."""
    import torch

    if not torch.is_grad_enabled():
        return arguments
    needs_them = [isinstance(each, torch.Tensor) and each.requires_grad for each in arguments]
    if True not in needs_them:
        return arguments
    note_lost_gradients(name)
    return [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]


@constant_when_traced
def note_lost_gradients(name: str) -> None:
    """Warn, once for each line of the user's, that a result is cut off from the autograd graph. In a backward function
    this matters only to those who differentiate again: see `once_differentiable`."""
    if _of_thread.names is not None:
        _of_thread.names.append(name)
        return
    loc = user_loc()
    warnings.warn_explicit(
        f"{name} has no backward: gradients end here. Give it one with register_backward, or call it under "
        "torch.no_grad() or with detached tensors",
        UserWarning,
        "tiledsl" if loc is None else loc.file,
        0 if loc is None else loc.line,
        registry=_warned,
    )


@constant_when_traced
def refuse_gradients_of_torch_func(name: str) -> None:
    """TileError where torch.compile traces a transformation of torch.func that takes gradients, which torch has for no
    custom operator."""
    if takes_gradients():
        raise TileError(
            f"{name}: torch.compile takes no gradients of torch.func through custom operators",
            user_loc(),
            ["compile what is inside: torch.func.grad(torch.compile(f)), or take gradients with torch.autograd.grad"],
        )


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward function whose gradients refuse to be differentiated where they come from a kernel without a backward,
    which torch would take for constants. One that calls no such kernel stays as it is."""

    def called(ctx: Any, *gradients: Any) -> Any:
        outer, _of_thread.names = _of_thread.names, []
        try:
            found = backward(ctx, *gradients)
            names = _of_thread.names
        finally:
            _of_thread.names = outer
        return _refusing(names[0], found, (*ctx.saved_tensors, *gradients)) if names else found

    return called


def _refusing(name: str, computed: Any, sources: Sequence[Any]) -> Any:
    """The same gradients, of which torch thinks that they depend on `sources`."""
    import torch

    class Refusing(torch.autograd.Function):  # type: ignore[misc]
        """(gradients, sources) to gradients."""

        @staticmethod
        def forward(*given: Any) -> Any:
            return tuple(each.view_as(each) for each in given[:count])

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise TileError(
                f"these gradients come from {name}, which has no backward: they cannot be differentiated again",
                user_loc(),
                [f"give it one with {name}.register_backward, or take the first gradients without create_graph"],
            )

        @staticmethod
        def vmap(info: Any, in_dims: Any, *given: Any) -> Any:
            return Refusing.apply(*given), tuple(in_dims[:count])

    parts = computed if isinstance(computed, (list, tuple)) else (computed,)
    places = [number for number, each in enumerate(parts) if isinstance(each, torch.Tensor)]
    count = len(places)
    refusing = iter(Refusing.apply(*(parts[each] for each in places), *(s for s in sources if s is not None)))
    return tuple(next(refusing) if number in places else each for number, each in enumerate(parts))
