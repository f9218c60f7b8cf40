"""Selection of the winner."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tiledsl.autotuner.measuring.final_round import compare, open_by, tie
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.runtime.timing import summarize

FINALISTS, _MOST_FINALISTS = 5, 16
_CLOSE = 1.15  # times the best one's latency: slower ones do not win in the final round
_EQUAL = 1.06  # times the best one's latency: which of these are the best few, chance decides, so all of them go on
_STAYS = 2.0  # times the noise is the earlier winner slower that is still as good: one at the edge stays, too
_FAR = 1.05  # a trial so much faster than every finalist was before the final round should have been in it


def finalists(trials: Sequence[Trial], incumbent: int | None = None) -> list[Trial]:
    """The best few, those that chance may have kept from being of them, the default, which is the first configuration,
    and the winner of an earlier run: worth measuring against each other. In the order in which ties are decided."""
    own = [trial for trial in trials if trial.ok and trial.same_as is None and trial.objective is None]
    ranked = sorted(own, key=_by_latency)
    if not ranked:
        return []
    best = ranked[0].milliseconds
    chosen = [trial for trial in ranked[:FINALISTS] if trial.milliseconds <= best * _CLOSE]
    chosen += [trial for trial in ranked[FINALISTS:_MOST_FINALISTS] if trial.milliseconds <= best * _EQUAL]
    for place in (0, incumbent):
        if place is not None:
            first = trials[place].same_as
            trial = trials[place if first is None else first]
            if trial.ok and trial not in chosen:
                chosen.append(trial)
    chosen.sort(key=lambda trial: (trial.index != incumbent, preferred(trial)))
    return chosen if len(chosen) > 1 else []


def lacks_final_round(trials: Sequence[Trial]) -> bool:
    """Whether measured trials are those of a run that was killed before its final round."""
    return not any(trial.rounds for trial in trials) and bool(finalists(trials))


def record_final(trials: Sequence[Trial], outcome: Mapping[str, Any]) -> None:
    """Put the final round's results in the trials: the median of all samples, and the spread of the rounds' medians.

    A GPU under load lowers its clock, so that later rounds are slower. Where there were lasting rounds, they count. The
    latencies of the others follow from that of the fastest one that stayed to the end, by how they compare in the
    rounds of both.
    """
    for index, failure in outcome["failures"].items():
        if failure["status"] != "out_of_resources":  # so many at once need more memory than each of them
            trials[int(index)].fail(failure["status"], f"in the final round: {failure['message']}")
    rounds = {str(index): found for index, found in outcome["rounds"].items() if found}
    lasting = {str(index): found for index, found in outcome.get("lasting", {}).items() if found}
    counted, short = compare(lasting or rounds), compare(rounds)
    if counted is None or short is None:
        return
    fastest = statistics.median([sample for timed in (lasting or rounds)[counted.leader] for sample in timed])
    for name, timed in rounds.items():
        trial, own = trials[int(name)], lasting.get(name, timed)
        if trial.alone is None:
            trial.alone = trial.latency
        ratio = counted.ratios.get(name, short.ratios[name] / short.ratios[counted.leader])
        trial.latency = ratio * fastest
        if ratio >= _CLOSE and counted.rounds.get(name) == counted.rounds[counted.leader]:
            trial.latency = statistics.median([sample for timed in own for sample in timed])  # rounds say little of it
        trial.noise, trial.rounds = counted.noise, len(timed) + len(lasting.get(name, ()))
        trial.spread = summarize([statistics.median(timed) for timed in own], "").spread


def winner(trials: Sequence[Trial], incumbent: int | None = None, min_improvement: float = 0.0) -> Trial | None:
    """The fastest trial that works, of those in the final round if there was one; None if none works.

    Trials within the noise of it are as good, see `tie`: of those the winner of an earlier run wins, then the one that
    needs fewest resources, then the first in the order of configurations' values. Neither the order of trials nor that
    of measurements counts, so that every run, and every rank, chooses alike. The earlier winner also stays where none
    is faster by more than `min_improvement`, a share of its latency, if it is not slower than the default.
    """
    working = [trial for trial in trials if trial.ok]
    if not working:
        return None
    if any(trial.objective is not None for trial in working):
        return _least(working, incumbent, min_improvement)
    compared = [trial for trial in working if trial.rounds]
    if compared:
        fastest = min(trial.milliseconds if trial.alone is None else trial.alone for trial in compared)
        if all(trial.rounds or trial.milliseconds * _FAR > fastest for trial in working):
            working = compared
    best = min(working, key=_by_latency)
    tied = [trial for trial in working if _is_tied(trial, best)]
    before = next((trial for trial in working if trial.index == incumbent), None)
    if before is not None:
        default = next((trial for trial in working if trial.index == 0), best)
        is_close = best.milliseconds >= before.milliseconds * (1 - min_improvement)
        if _is_tied(before, best, stays=True) or (is_close and before.milliseconds <= default.milliseconds):
            return before
    return min(tied, key=preferred)


def _least(working: Sequence[Trial], incumbent: int | None, min_improvement: float) -> Trial:
    """The trial with the least objective, which is taken once of each: of equals the preferred one, but the earlier
    winner where none is better by more than `min_improvement`."""
    best = min(working, key=lambda trial: (trial.cost, preferred(trial)))
    before = next((trial for trial in working if trial.index == incumbent), None)
    if before is not None and best.cost >= before.cost - min_improvement * abs(before.cost):
        return before
    return best


def _is_tied(trial: Trial, best: Trial, stays: bool = False) -> bool:
    """Whether a trial is not slower than the best one beyond the noise; with `stays` beyond what may count as noise in
    another run, and what its rounds leave open. What was not measured has none."""
    if trial.spread is None or best.spread is None:
        return trial.milliseconds == best.milliseconds
    noise = trial.noise or 0.0
    limit = _STAYS * tie(noise) + open_by(noise, trial.rounds) if stays else tie(noise)
    return trial.milliseconds <= best.milliseconds * (1 + limit)


def config_order(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """An order of configurations: by name and value, numbers by size."""
    items = []
    for name, value in sorted(config.items()):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        items.append((name, not is_number, value if is_number else config_text({name: value})))
    return tuple(items)


def _by_latency(trial: Trial) -> tuple[float, int]:
    return trial.milliseconds, trial.index


def preferred(trial: Trial) -> tuple[Any, ...]:
    """A key that orders trials as ties are decided: by resources, then by configuration."""
    found = trial.resources or {}
    numbers = [found.get(name) for name in ("spills", "num_warps", "shared_bytes", "registers")]
    resources = tuple(number if isinstance(number, (int, float)) else 0 for number in numbers)
    return resources, config_order(trial.config), trial.index
