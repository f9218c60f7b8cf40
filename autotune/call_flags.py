"""Keywords of a call that are for the tuner, under the names that Triton-distributed gives them."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.user_functions import named_arguments
from tiledsl.errors import TileError

_PREFIX = "autotune"
_log = logging.getLogger("tiledsl")


@dataclass(frozen=True)
class CallFlags:
    """autotune: False runs the first configuration, which is tuned by nothing. autotune_verbose: log each time to
    stderr. autotune_pg: the process group that tunes. autotune_allow_arg_overwrite: False refuses a tunable that the
    call gives; else it is fixed."""

    autotune: bool = True
    autotune_verbose: bool = False
    autotune_pg: Any = None
    autotune_allow_arg_overwrite: bool = True

    def check_given(self, given: Collection[str], names: Collection[str], function: str) -> None:
        """TileError for tunables among what a call gives, if it says that there are to be none."""
        fixed = [name for name in given if name in names]
        if fixed and not self.autotune_allow_arg_overwrite:
            raise TileError(
                f"{function} is called with {fixed[0]!r}, which is a tunable",
                notes=["leave it out, or autotune_allow_arg_overwrite=False: then it is fixed, and the others tuned"],
            )


NONE = CallFlags()


def split_flags(keywords: Mapping[str, Any], signature: inspect.Signature) -> tuple[CallFlags, dict[str, Any]]:
    """The tuner's keywords of a call, and the function's. A parameter of such a name is the function's own."""
    if not any(name.startswith(_PREFIX) for name in keywords):
        return NONE, dict(keywords)
    names = [each for each in CallFlags.__dataclass_fields__ if each not in signature.parameters]
    flags = CallFlags(**{name: value for name, value in keywords.items() if name in names})
    return flags, {name: value for name, value in keywords.items() if name not in names}


@contextmanager
def verbose(wanted: bool) -> Iterator[None]:
    """Inside, what is logged at level info goes to stderr."""
    if not wanted:
        yield
        return
    handler, before = logging.StreamHandler(sys.stderr), _log.level
    handler.setFormatter(logging.Formatter("%(message)s"))
    _log.addHandler(handler)
    _log.setLevel(min(before or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        _log.removeHandler(handler)
        _log.setLevel(before)


def by_call(function: Callable[..., Any], values: Mapping[str, Any], *first: Any) -> Any:
    """What a function says of a call, behind `first`: it gets the arguments that it names; all of them, in their order,
    where it has other names for them."""
    parameters = list(inspect.signature(function).parameters.values())[len(first) :]
    needed = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    takes_its_own = any(each.default is each.empty and each.name not in values for each in needed)
    if takes_its_own or (parameters and all(each.kind is each.VAR_POSITIONAL for each in parameters)):
        return function(*first, *values.values())
    return function(*first, **named_arguments(function, values, len(first)))


@dataclass(frozen=True)
class KeyOf:
    """`key` of a `key_fn`, which takes the arguments as the function does."""

    function: Callable[..., Any]

    def __call__(self, **values: Any) -> Any:
        return by_call(self.function, values)


@dataclass(frozen=True)
class LeftOutBy:
    """`prune` of a `prune_fn`, which takes a configuration and the arguments and returns whether to keep it."""

    function: Callable[..., Any]

    def __call__(self, config: dict[str, Any], **values: Any) -> str | None:
        return None if by_call(self.function, values, config) else "left out by prune_fn"
