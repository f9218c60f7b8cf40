"""Which configurations to try, in which order, and when to stop: a strategy a file, behind one protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tiledsl.autotuner.option import is_count
from tiledsl.autotuner.search.exhaustive import Exhaustive
from tiledsl.autotuner.search.model_order import ModelOrder
from tiledsl.autotuner.search.own import OwnSearch, SearchSpace, factory_of, registered
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

    name: "exhaustive", "model", "random", or "auto": exhaustive for up to 256 configurations, "model" above; a name of
    register_search, or what it takes.
    order: the indices that are not pruned, the most promising first. max_trials: how many may be tried; None: all, or
    for "model" an eighth, at least 64. seconds: after which no more is asked, which whoever asks sees to: "model" then
    has all of them to try, the best first. configs: all configurations; with them "model" knows the neighbours of the
    best.
    """
    if max_trials is not None and not is_count(max_trials, 1):
        raise TileError(f"autotune: max_trials is {max_trials!r}; it must be a positive number of trials")
    wrong = [index for index in order if not 0 <= index < size]
    assert not wrong and len(set(order)) == len(order), f"order names {wrong[:1] or 'a configuration twice'}"
    own = factory_of(name)
    if own is not None:
        space = SearchSpace(configs if configs is not None else [{}] * size, tuple(order), max_trials, seconds, seed)
        return OwnSearch(own, space, name if isinstance(name, str) else "")
    if name == "auto":
        name = "exhaustive" if len(order) <= EXHAUSTIVE_UP_TO and (max_trials or size) >= len(order) else "model"
    pace = max(_LEAST_TRIALS, len(order) // _MODEL_SHARE) if max_trials is None else max_trials
    trials = len(order) if max_trials is None and seconds is not None else pace
    strategies: dict[str, Callable[[], Strategy]] = {
        "exhaustive": lambda: Exhaustive(order, max_trials),
        "model": lambda: ModelOrder(order, trials, seed, configs, pace),
        "random": lambda: RandomOrder(order, max_trials, seed),
    }
    if name not in strategies:
        known = ", ".join(["auto", *strategies, *registered()])
        raise TileError(f"autotune: there is no search {name!r}", notes=[f"there are {known}"])
    return strategies[name]()


__all__ = ["EXHAUSTIVE_UP_TO", "Strategy", "make_strategy"]
