"""The search space: `tiledsl.space`, configurations checked, and those of one call."""

from __future__ import annotations

import copy
import difflib
import inspect
import itertools
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tiledsl.autotuner.storage.fingerprint import canonical
from tiledsl.autotuner.trial import config_text
from tiledsl.autotuner.user_functions import errors_of, named_arguments
from tiledsl.errors import TileError, brief, ends_tracebacks
from tiledsl.kernels.pass_choice import chosen_passes
from tiledsl.kernels.signatures import not_given, takes_any
from tiledsl.launch_options import LAUNCH_OPTIONS

# Keys of a configuration that need not be parameters of the builder: choices of the compiler, and of what to run.
RESERVED = ("pass_configs", "from_level")
_MOST = 10_000_000  # combinations of a space, which are gone through one by one


class Config(dict[str, Any]):
    """A configuration as `where` sees it: values as items and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}; it has {', '.join(self)}") from None


class Space:
    """Configurations: all combinations of values, less those that `where` refuses; see `space`.

    Iterates over dicts in a fixed order, the last name counting fastest. `a | b` and `a + b` have the configurations of
    both, each once, those of `a` first; either side may be a plain list of dicts.
    """

    def __init__(self, parts: Sequence[Callable[[], Iterable[dict[str, Any]]]], text: str) -> None:
        self._parts = tuple(parts)
        self._text = text

    @cached_property
    def configs(self) -> tuple[dict[str, Any], ...]:
        """The configurations, without repetitions."""
        if len(self._parts) == 1:
            return tuple(self._parts[0]())
        return tuple(unique(config for part in self._parts for config in part()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (dict(config) for config in self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    def __contains__(self, config: object) -> bool:
        return config in self.configs

    def __or__(self, other: Space | Iterable[Mapping[str, Any]]) -> Space:
        return Space((*self._parts, *_parts(other)), f"{self._text} | {_text(other)}")

    def __ror__(self, other: Iterable[Mapping[str, Any]]) -> Space:
        return Space((*_parts(other), *self._parts), f"{_text(other)} | {self._text}")

    __add__, __radd__ = __or__, __ror__

    def where(self, condition: Callable[[Config], Any]) -> Space:
        """The configurations for which `condition` holds."""
        return Space([lambda: [dict(c) for c in self.configs if _holds(condition, c)]], f"{self._text}.where(...)")

    def __repr__(self) -> str:
        return f"<{self._text}: {len(self)} configurations>"


@ends_tracebacks
def space(*, where: Callable[[Config], Any] | None = None, **values: Any) -> Space:
    """All combinations of the tunables' values, as `configs=` of @tiledsl.autotune.

    A value that is not a list, tuple, range, set, iterator or array stands for itself. `where` is a predicate: only the
    configurations for which it returns true are kept. Besides parameters of the function, tunables may be
    `pass_configs` (dicts of pass options), `passes` (dicts of passes of one's own by their places), `from_level` (a
    pair such as ("cubin", "dir"): files to run from, see Kernel.from_level) and T.Kernel's options for every launch of
    the program: num_warps, num_stages (of loops that give none), num_ctas, maxnreg, launch_pdl.

    Example: `space(block_M=[64, 128], block_N=[64, 128], threads=[128, 256], where=lambda c: c.block_M <= c.block_N)`
    """
    if where is not None and not callable(where):
        raise TileError(f"tiledsl.space: where is {where!r}; it must be a function of a configuration")
    if not values:
        raise TileError("tiledsl.space: there is no tunable; write tiledsl.space(block_M=[64, 128], ...)")
    lists: dict[str, list[Any]] = {}
    for name, given in values.items():
        lists[name] = _listed(given)
        if not lists[name]:
            raise TileError(f"tiledsl.space: {name} has no values")
        texts = [canonical(each) for each in lists[name]]
        twice = next((each for position, each in enumerate(lists[name]) if texts[position] in texts[:position]), None)
        if twice is not None:
            raise TileError(f"tiledsl.space: {name} has {twice!r} twice")

    count = math.prod(map(len, lists.values()))
    if count > _MOST:
        sizes = " * ".join(f"{len(each)} of {name}" for name, each in lists.items())
        raise TileError(
            f"tiledsl.space: {count:,} combinations ({sizes}); {_MOST:,} are the most",
            notes=["say fewer values, or join smaller spaces: tiledsl.space(...) | tiledsl.space(...)"],
        )

    def enumerate_all() -> Iterator[dict[str, Any]]:
        for combination in itertools.product(*lists.values()):
            config = dict(zip(lists, combination))
            if where is None or _holds(where, config):
                yield config

    shown = ", ".join(f"{name}={each}" for name, each in lists.items())
    return Space([enumerate_all], f"space({shown}{', where=...' if where else ''})")


def _listed(given: Any) -> list[Any]:
    """The values of a tunable."""
    if isinstance(given, (set, frozenset)):
        return sorted(given, key=repr)
    if isinstance(given, (list, tuple, range, Iterator)):
        return list(given)
    if hasattr(given, "tolist") and getattr(given, "ndim", 0) == 1:  # an array or a tensor
        return list(given.tolist())
    return [given]


def _holds(condition: Callable[[Config], Any], config: Mapping[str, Any]) -> bool:
    with errors_of("tiledsl.space: where", f"for {config_text(config)}"):
        return bool(condition(Config(config)))


def _parts(other: Space | Iterable[Mapping[str, Any]]) -> tuple[Callable[[], Iterable[dict[str, Any]]], ...]:
    if isinstance(other, Space):
        return other._parts
    if isinstance(other, (str, Mapping)) or not hasattr(other, "__iter__"):
        raise TileError(f"a space is joined with a space or a list of dicts, not with {other!r}")
    configs = list(other)
    for config in configs:
        if not isinstance(config, Mapping):
            raise TileError(f"a space is joined with a list of dicts; {brief(config)} is none")
    return (lambda: [dict(config) for config in configs],)


def _text(other: Any) -> str:
    return other._text if isinstance(other, Space) else "a list"


def check_configs(configs: Any, signature: inspect.Signature, name: str) -> list[dict[str, Any]]:
    """The configurations as a list. TileError if there are none, or one is not a dict, repeated or has unknown keys."""
    where = f"autotune of {name}"
    if isinstance(configs, (str, Mapping)) or not hasattr(configs, "__iter__"):
        raise TileError(
            f"{where}: configs is {configs!r}",
            notes=["it must be a list of dicts such as {'block_M': 64}, or a function that returns one"],
        )
    checked: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    allowed = [*signature.parameters, *RESERVED, "passes", *LAUNCH_OPTIONS]
    for index, config in enumerate(configs):
        if not isinstance(config, Mapping):
            raise TileError(f"{where}: configuration {index} is {brief(config)}, not a dict")
        for key in config:
            if not isinstance(key, str) or (key not in allowed and not takes_any(signature)):
                near = difflib.get_close_matches(str(key), allowed, n=1)
                advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(signature.parameters)}"
                raise TileError(
                    f"{where}: configuration {index} sets {key!r}, which is not a parameter", notes=[advice]
                )
        if "from_level" in config and "from_level" not in signature.parameters:
            from tiledsl.levels.candidates import choice

            config = {**config, "from_level": choice(config["from_level"])}
        try:
            config = with_passes(config, signature)
        except TileError as error:
            message = f"{where}: configuration {index} names passes wrongly: {error.message}"
            raise TileError(message, notes=error.notes) from None
        first = seen.setdefault(config_key(config), index)
        if first != index:
            raise TileError(f"{where}: configurations {first} and {index} are the same: {config_text(config)}")
        checked.append({key: _without_numpy(value) for key, value in config.items()})
    if not checked:
        raise TileError(f"{where}: there is no configuration to try")
    return checked


def with_passes(config: Mapping[str, Any], signature: inspect.Signature) -> Mapping[str, Any]:
    """A configuration with `passes` among its pass_configs, as texts: see kernels/pass_choice.py."""
    names = {"pass_configs", "passes"} - signature.parameters.keys()
    if not names & config.keys():
        return config
    passes = config.get("passes") if "passes" in names else None
    rest = {name: value for name, value in config.items() if name != "passes" or "passes" not in names}
    return {**rest, "pass_configs": chosen_passes(config.get("pass_configs"), passes)}


def _without_numpy(value: Any) -> Any:
    """numpy's numbers as Python's, which can be written down."""
    return value.item() if isinstance(value, numbers.Number) and hasattr(value, "item") else value


def config_key(config: Mapping[str, Any]) -> str:
    """The same text for equal configurations, whatever the order of their keys; equal in other processes, too."""
    return canonical(dict(sorted(config.items())))


def unique(configs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The configurations, of equal ones the first."""
    first: dict[str, dict[str, Any]] = {}
    for config in configs:
        first.setdefault(config_key(config), config)
    return list(first.values())


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
        missing = not_given(signature, values)
        if missing:
            raise TileError(
                f"autotune: configs wants an argument {missing[0]!r}, which the call does not give"
            ) from None
        arguments, keywords = (), named_arguments(function, values)
    with errors_of("autotune: configs"):
        return function(*arguments, **keywords)


def fix(configs: Sequence[dict[str, Any]], fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configurations with tunables that the call gives set to its values, and without repetitions."""
    return unique({name: fixed.get(name, value) for name, value in config.items()} for config in configs)


def given_tunables(explicit: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Tunables that a call passes itself; None stands for "not given"."""
    return {name: value for name, value in explicit.items() if name in names and value is not None}


def with_seeds(
    configs: Sequence[dict[str, Any]], seeds: Sequence[Mapping[str, Any]], signature: inspect.Signature, name: str
) -> list[dict[str, Any]]:
    """The configurations and, behind them, the seeds that are not among them."""
    if not seeds:
        return list(configs)
    known = {config_key(config) for config in configs}
    return [*configs, *(each for each in check_configs(seeds, signature, name) if config_key(each) not in known)]


def called_back(
    configs: Sequence[dict[str, Any]], callback: Callable[..., Any] | None, signature: inspect.Signature
) -> list[dict[str, Any]]:
    """The configurations as `config_callback` leaves or returns them; each once."""
    if callback is None:
        return list(configs)
    changed = []
    for config in configs:
        config_copy = copy.deepcopy(config)
        with errors_of("autotune: config_callback", f"for {config_text(config)}"):
            returned = callback(config_copy)
        config_copy = config_copy if returned is None else returned
        if not isinstance(config_copy, Mapping):
            raise TileError(
                f"autotune: config_callback returns {config_copy!r} for {config_text(config)}, not a dict or None"
            )
        changed.append(dict(with_passes(config_copy, signature)))
    return unique(changed)


def dicts(configs: Any) -> Any:
    """Configurations as dicts, those that are triton.Config objects too. TileError for one with a pre_hook."""
    if callable(configs) or isinstance(configs, (str, Mapping)) or not hasattr(configs, "__iter__"):
        return configs
    plain = []
    for config in configs:
        if hasattr(config, "all_kwargs"):
            if getattr(config, "pre_hook", None) is not None:
                raise TileError(
                    f"the configuration {config} has a pre_hook, which runs in no other process",
                    notes=['if it sets the blocks of descriptors, say descriptors={"a": ("BLOCK_M", "BLOCK_K")}'],
                )
            config = config.all_kwargs()
        plain.append(config)
    return plain
