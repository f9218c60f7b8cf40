"""Which configurations to try, in which order, and when to stop: a strategy a file, behind one protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tiledsl.autotuner.option import is_count
from tiledsl.autotuner.search.exhaustive import Exhaustive
from tiledsl.autotuner.search.model_order import ModelOrder
from tiledsl.autotuner.search.own import Factory, OwnSearch, SearchSpace
from tiledsl.autotuner.search.random_order import RandomOrder
from tiledsl.errors import TileError

EXHAUSTIVE_UP_TO = 256  # configurations; spaces above this are searched by the model's order
_MODEL_SHARE = 8  # one in so many of a large space is tried, if max_trials does not say otherwise
_LEAST_TRIALS = 64


class Strategy(Protocol):
    """Asked for configurations by index, and told what became of each. Deterministic for one seed and order of answers.

    `ask` returns up to n indices; an empty list while not `done` means: tell me more first. One that comes a second
    time, after its answer, is to be measured again, for longer: `share` says for how much of the time that options.rep
    gives. `tell` takes milliseconds, or None for a configuration that does not work.
    """

    @property
    def done(self) -> bool:
        """Nothing more will be asked."""
        ...

    def ask(self, n: int) -> list[int]: ...

    def share(self, index: int) -> float: ...

    def tell(self, index: int, latency: float | None) -> None: ...


def _auto(space: SearchSpace) -> Strategy:
    """Exhaustive for up to 256 configurations, "model" above."""
    count = len(space.order)
    whole = count <= EXHAUSTIVE_UP_TO and (space.max_trials or count) >= count
    return STRATEGIES["exhaustive" if whole else "model"](space)


def _model(space: SearchSpace) -> Strategy:
    """An eighth of a space, at least 64, if max_trials and seconds do not say otherwise."""
    count = len(space.order)
    pace = max(_LEAST_TRIALS, count // _MODEL_SHARE) if space.max_trials is None else space.max_trials
    trials = count if space.max_trials is None and space.seconds is not None else pace
    return ModelOrder(space.order, trials, pace, space.seed, space.configs)


# What the option `search` may be, besides names of register_search; docs/tuning.md has the same table.
STRATEGIES: dict[str, Callable[[SearchSpace], Strategy]] = {
    "auto": _auto,
    "exhaustive": lambda space: Exhaustive(space.order, space.max_trials),
    "model": _model,
    "random": lambda space: RandomOrder(space.order, space.max_trials, space.seed),
}
_registered: dict[str, Factory] = {}


def register_search(name: str, make: Factory) -> None:
    """Make `search="name"` of @tiledsl.autotune a strategy of one's own; a second one of a name takes its place.

    make: takes a SearchSpace and returns an object with two methods. `ask(n)` returns up to n indices of
    configurations; an empty list means: tell me more first, or no more where nothing is outstanding. `tell(index,
    value)` says what became of one: milliseconds, or what `objective` makes of its metrics, the less the better; None
    for one that does not work or was left out. Of one that was asked for before, what is known is told again. An
    attribute `done`, if there is one, ends the search when it is true.

    TileError for a name that is none, or that a strategy of tiledsl has.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise TileError(f"register_search: {name!r} is no name; use letters, digits and underscores")
    if name in STRATEGIES:
        raise TileError(f"register_search: {name!r} is a strategy of tiledsl's; take another name")
    if not callable(make):
        raise TileError(f"register_search: {name} is {make!r}; it must be a function of a SearchSpace")
    _registered[name] = make


def factory_of(search: Any) -> Factory | None:
    """What makes the strategy that the option `search` names or is; None for one of tiledsl's, and for no strategy."""
    if not isinstance(search, str):
        return search if callable(search) else None
    return _registered.get(search)


def make_strategy(
    name: Any,
    size: int,
    order: Sequence[int],
    max_trials: int | None = None,
    seed: int = 0,
    configs: Sequence[Mapping[str, Any]] | None = None,
    seconds: float | None = None,
) -> Strategy:
    """A strategy over a space of `size` configurations.

    name: one of STRATEGIES, a name of register_search, or what it takes.
    order: the indices that are not pruned, the most promising first. max_trials: how many may be tried; None: all, or
    for "model" an eighth, at least 64. seconds: after which no more is asked, which whoever asks sees to: "model" then
    has all of them to try, the best first. configs: all configurations, for those that look at them.
    """
    if max_trials is not None and not is_count(max_trials, 1):
        raise TileError(f"autotune: max_trials is {max_trials!r}; it must be a positive number of trials")
    wrong = [index for index in order if not 0 <= index < size]
    assert not wrong and len(set(order)) == len(order), f"order names {wrong[:1] or 'a configuration twice'}"
    space = SearchSpace(configs if configs is not None else [{}] * size, tuple(order), max_trials, seconds, seed)
    own = factory_of(name)
    if own is not None:
        return OwnSearch(own, space, name if isinstance(name, str) else "")
    if name not in STRATEGIES:
        known = ", ".join([*STRATEGIES, *_registered])
        raise TileError(f"autotune: there is no search {name!r}", notes=[f"there are {known}"])
    return STRATEGIES[name](space)


__all__ = ["EXHAUSTIVE_UP_TO", "STRATEGIES", "Strategy", "factory_of", "make_strategy", "register_search"]
