"""A search strategy on what a tuning has measured before: how it would have done, without a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.search import make_strategy
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.autotuner.results.tried import Tried


@dataclass(frozen=True)
class Simulation:
    """What a strategy asked for, in order. bests: the least so far, after each trial, of what was minimised; infinite
    where none has worked yet. least: the least of all that the result has."""

    tried: tuple[Trial, ...]
    bests: tuple[float, ...]
    least: float

    @property
    def best(self) -> Trial:
        """What the strategy would have chosen. TileError if nothing that it tried works."""
        found = min(self.tried, key=lambda trial: trial.cost if trial.ok else math.inf, default=None)
        if found is None or not found.ok:
            raise TileError(f"none of the {len(self.tried)} configurations that the search tried works")
        return found

    def trials_to(self, value: float) -> int | None:
        """After how many trials the best one has at most this value, such as 1.05 * least; None: never."""
        return next((number for number, each in enumerate(self.bests, 1) if each <= value), None)


def simulate(
    result: Tried,
    search: Any,
    max_trials: int | None = None,
    seed: int = 0,
    at_once: int = 1,
    order: Sequence[int] | None = None,
) -> Simulation:
    """Run a search over the trials of a result, just tuned or from a file, which are told in place of measurements.

    search: as the option `search` of @tiledsl.autotune takes it. at_once: how many configurations are asked for at a
    time, as the tuner's processes do. order: the indices as a cost model would have them; by default that of the space,
    without those that were pruned. What the tuning left out by a budget or by its own search is unknown and not asked
    for: tune with search="exhaustive" to have all. TileError for a result without a configuration that works.
    """
    trials = {trial.index: trial for trial in result.trials}
    indices = [index for index, trial in trials.items() if trial.status != "pruned"]
    costs = {index: trials[index].cost for index in indices if trials[index].ok and math.isfinite(trials[index].cost)}
    if not costs:
        raise TileError(f"{result.subject}: no configuration of this result has a time, so nothing can be simulated")
    wanted = indices if order is None else [index for index in order if index in indices]
    configs = [trials[index].config for index in sorted(trials)]
    strategy = make_strategy(search, len(configs), wanted, max_trials, seed, configs)
    best = math.inf
    tried: dict[int, Trial] = {}
    bests: list[float] = []
    while not strategy.done:
        asked = strategy.ask(at_once)
        if not asked:
            break
        for index in asked:
            cost = costs.get(index)
            if index not in tried:
                tried[index] = trials[index]
                best = min(best, math.inf if cost is None else cost)
                bests.append(best)
            strategy.tell(index, cost)
    return Simulation(tuple(tried.values()), tuple(bests), min(costs.values()))
