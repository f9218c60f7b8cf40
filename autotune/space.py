"""The search space: configurations checked, and those of one call."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tiledsl.autotuner.fingerprint import canonical
from tiledsl.autotuner.trial import config_text
from tiledsl.errors import TileError

RESERVED = ("pass_configs",)  # keys of a configuration that are not parameters of the builder


def check_configs(configs: Any, signature: inspect.Signature, name: str) -> list[dict[str, Any]]:
    """The configurations as a list. TileError if it is empty, or one is no dict, has an unknown key or comes twice."""
    where = f"autotune of {name}"
    if isinstance(configs, (str, Mapping)) or not hasattr(configs, "__iter__"):
        raise TileError(
            f"{where}: configs is {configs!r}",
            notes=["it is a list of dicts such as {'block_M': 64}, or a function that returns one"],
        )
    checked: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    known = [*signature.parameters, *RESERVED]
    for index, config in enumerate(configs):
        if not isinstance(config, Mapping):
            raise TileError(f"{where}: configuration {index} is {config!r}, not a dict")
        for key in config:
            if not isinstance(key, str) or (key not in known and not takes_any):
                near = difflib.get_close_matches(str(key), known, n=1)
                advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(signature.parameters)}"
                raise TileError(f"{where}: configuration {index} sets {key!r}, which is no parameter", notes=[advice])
        first = seen.setdefault(config_key(config), index)
        if first != index:
            raise TileError(f"{where}: configurations {first} and {index} are the same: {config_text(config)}")
        checked.append(dict(config))
    if not checked:
        raise TileError(f"{where}: there is no configuration to try")
    return checked


def config_key(config: Mapping[str, Any]) -> str:
    """The same text for equal configurations, whatever the order of their keys; equal in other processes, too."""
    return canonical(dict(sorted(config.items())))


def tunables(configs: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The names that configurations set, in order of appearance."""
    return tuple(dict.fromkeys(key for config in configs for key in config if key not in RESERVED))


def call_configs(
    function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any], values: Mapping[str, Any]
) -> Any:
    """What a configs function returns for a call: it gets the call's arguments if they fit, else those it names."""
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError:
        wanted = [p for p in signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        missing = [p.name for p in wanted if p.default is p.empty and p.name not in values]
        if missing:
            raise TileError(
                f"autotune: configs wants an argument {missing[0]!r}, which the call does not give"
            ) from None
        named = {p.name: values[p.name] for p in wanted if p.name in values and p.kind is not p.POSITIONAL_ONLY}
        return function(**named)
    return function(*arguments, **keywords)


def fix(configs: Sequence[dict[str, Any]], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configurations with tunables that the call gives set to its values, and without repetitions."""
    unique: dict[str, dict[str, Any]] = {}
    for config in configs:
        chosen = {**config, **{name: value for name, value in fixed.items() if name in config}}
        unique.setdefault(config_key(chosen), chosen)
    return list(unique.values())


def given_tunables(explicit: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Tunables that a call passes itself; None stands for "not given"."""
    return {name: value for name, value in explicit.items() if name in names and value is not None}
