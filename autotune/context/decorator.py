"""Tune the kernels inside a function together, in their places.

Kernels that pass data on, wait for other ranks or have other effects cannot be called again and again by themselves. So
the function is run again and again, and in each run every kernel that is not tuned yet is launched with the next of its
configurations; those that are tuned use their best one. With two launches a configuration:

    run      kernel a, two configurations    kernel b, three configurations
    1, 2     first                           first
    3, 4     second                          second
    5, 6     best                            third
    7        best                            best
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.context.active import active
from tiledsl.autotuner.context.options import ContextOptions
from tiledsl.autotuner.group.ranks import process_group
from tiledsl.autotuner.option import takes, with_changes
from tiledsl.errors import TileError
from tiledsl.kernels.signatures import check_known

if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class _Arguments(ContextOptions):
        function: Callable[..., Any] | None = field(default=None, kw_only=False)

else:
    _Arguments = ContextOptions


@takes(_Arguments)
def tune_in_context(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: tune in its place what is under @tiledsl.autotune, @tune_function or triton.autotune inside.

    For the options, see ContextOptions.
    A call whose kernels are not all tuned runs the function as often as it takes, and returns the value of a last run
    with the best configurations. Each configuration is launched n_warmup times, the first of which compiles it, and
    n_repeat times more, of which the median counts. One that raises costs only itself: its call goes on with the next.
    A kernel called with several keys is tuned for each. Kernels tuned inside others' configurations come first. Outputs
    are not compared with a ref_prog. A function under tune_in_context inside another one is a part of that.

    The hooks restore_value and reset_to_zero of triton.autotune hold for single kernels. group: all ranks try the same,
    and a configuration that fails on one of them fails for all.

    Example: `@tune_in_context(group=True)` above `def step(A, B)`, which gathers A from all ranks and multiplies
    """
    chosen = with_changes(ContextOptions(), options, "tune_in_context")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isfunction(function):
            raise TileError(f"tune_in_context stands above a function, not {function!r}")
        signature = inspect.signature(function)
        names = (*chosen.restore_value, *chosen.reset_to_zero)
        check_known(f"tune_in_context: {function.__name__}", signature, names)

        @functools.wraps(function)
        def run(*arguments: Any, **keywords: Any) -> Any:
            if active.get() is not None:
                return function(*arguments, **keywords)
            from tiledsl.autotuner.context.session import ContextSession
            from tiledsl.autotuner.context.triton_kernels import intercepted

            values = signature.bind(*arguments, **keywords).arguments
            before = {name: values[name].clone() for name in chosen.restore_value if name in values}
            with contextlib.ExitStack() as scope, intercepted():
                session = ContextSession(function.__qualname__, chosen, process_group(chosen.group, values), scope)
                token = active.set(session)
                try:
                    while True:
                        value = function(*arguments, **keywords)
                        if not session.end_run():
                            return value
                        _reset(values, before, chosen.reset_to_zero)
                finally:
                    active.reset(token)

        return run

    return decorate if function is None else decorate(function)


def _reset(values: Mapping[str, Any], before: Mapping[str, Any], zeroed: Iterable[str]) -> None:
    for name, value in before.items():
        values[name].copy_(value)
    for name in zeroed:
        if name in values:
            values[name].zero_()
