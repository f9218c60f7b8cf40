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
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tiledsl.autotuner.context.active import active
from tiledsl.autotuner.group.ranks import check_group, process_group
from tiledsl.errors import TileError


def tune_in_context(
    function: Callable[..., Any] | None = None,
    *,
    n_warmup: int = 3,
    n_repeat: int = 5,
    restore_value: Iterable[str] = (),
    reset_to_zero: Iterable[str] = (),
    cache: bool = True,
    store: str | os.PathLike[str] | None = None,
    timer: str | None = None,
    group: Any = None,
    group_timeout: float = 300,
) -> Any:
    """Decorator: tune in its place what is under @tiledsl.autotune, @tune_function or triton.autotune inside.

    A call whose kernels are not all tuned runs the function as often as it takes, and returns the value of a last run
    with the best configurations. Each configuration is launched n_warmup times, the first of which compiles it, and
    n_repeat times more, of which the median counts. One that raises costs only itself: its call goes on with the next.
    A kernel called with several keys is tuned for each. Kernels tuned inside others' configurations come first. Outputs
    are not compared with a ref_prog. A function under tune_in_context inside another one is a part of that.

    restore_value, reset_to_zero: tensors among the function's parameters, which are restored to their values before the
    call, or set to zero, before each further run; hooks of triton.autotune of these names hold for single kernels.
    cache, store: whether and where results are kept on disk. group, group_timeout: as for tune_function; all ranks try
    the same, and a configuration that fails on one of them fails for all.

    Example: `@tune_in_context(group=True)` above `def step(A, B)`, which gathers A from all ranks and multiplies
    """
    for name, value, least in (("n_warmup", n_warmup, 0), ("n_repeat", n_repeat, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise TileError(f"tune_in_context: {name} is {value!r}; it is a whole number from {least} on")
    check_group(group, group_timeout)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isfunction(function):
            raise TileError(f"tune_in_context stands above a function, not {function!r}")
        signature = inspect.signature(function)
        restored, zeroed = _names(restore_value), _names(reset_to_zero)
        unknown = [name for name in (*restored, *zeroed) if name not in signature.parameters]
        if unknown:
            raise TileError(f"tune_in_context: {function.__name__} has no parameter {unknown[0]!r}")

        @functools.wraps(function)
        def run(*arguments: Any, **keywords: Any) -> Any:
            if active.get() is not None:
                return function(*arguments, **keywords)
            from tiledsl.autotuner.context.session import ContextSession, Rules
            from tiledsl.autotuner.context.triton_kernels import intercepted

            values = signature.bind(*arguments, **keywords).arguments
            rules = Rules(function.__qualname__, n_warmup, n_repeat, cache, store, timer, group_timeout)
            before = {name: values[name].clone() for name in restored if name in values}
            with contextlib.ExitStack() as scope, intercepted():
                session = ContextSession(rules, process_group(group, values), scope)
                token = active.set(session)
                try:
                    while True:
                        value = function(*arguments, **keywords)
                        if not session.end_run():
                            return value
                        _reset(values, before, zeroed)
                finally:
                    active.reset(token)

        return run

    return decorate if function is None else decorate(function)


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _reset(values: Mapping[str, Any], before: Mapping[str, Any], zeroed: Iterable[str]) -> None:
    for name, value in before.items():
        values[name].copy_(value)
    for name in zeroed:
        if name in values:
            values[name].zero_()
