"""Time the best few configurations against each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ROUNDS, _LEAST_ROUNDS = 8, 4  # for those that stay in it to the end
_APART = 0.01  # of the latency: what is further behind the fastest than it, and the noise, is out of the final
_SETTLED = 0.005  # of the latency: a difference that stays the same within it is known
_TIES = (0.005, 0.01, 0.02, 0.04)  # of the latency: what the noise leaves open, in steps, lest chance sets the limit
_SURE = 3.0  # times its uncertainty is a difference away from a limit that it is surely above or below
_ERROR = 1.2533  # times the standard deviation over the root of their number is the error of a median
_FURTHER_ROUNDS = 48  # for those of which it is not known whether they tie
_LASTING_MS = 80.0  # a power-capped H200 takes 40 to 80 ms to settle on the clock that a kernel's power allows
_LASTING_ROUNDS = 4
_REST_MS = 100.0  # after which its clock is as high as before any load
_CAPPED = 1.03  # times the latency after a rest, under load: the clock was lowered
_WITHIN = 1.08  # times the leader's latency: power decides over no more (4% seen: benchmarks/choices.py --only 8192)

Rounds = dict[str, list[list[float]]]
Taken = Mapping[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Racer:
    """A configuration that is ready to be timed: its name, what takes samples, milliseconds as first estimated."""

    name: str
    prepared: Any
    quick: float


def race(
    racers: Sequence[Racer], rep: float, begins: Callable[[str], None], on_gpu: bool = True
) -> tuple[Rounds, Rounds]:
    """Samples in milliseconds by name and round, of short rounds and of lasting ones; see `selection.record_final`.

    Short rounds share `rep` milliseconds for each configuration. They go in alternating order; those that are clearly
    slower than the fastest take part no longer, until it is decided. Those of which it is open whether they tie with
    the fastest have further rounds with it, so that the next run finds the same ones to tie. At so short turns all run
    at one clock, whatever power each draws. Where lasting load lowers the clock, those close to the leader go on with
    turns that are long
    enough for it to settle for each, of which only the second halves count. `begins` is told what runs.
    """
    rounds: Rounds = {racer.name: [] for racer in racers}
    lasting: Rounds = {}

    def turns(taking_part: Sequence[Racer], most: int, milliseconds: float, into: Rounds) -> None:
        for number in range(most):
            if number and number % 2 == 0:  # each order has had its turn
                racing = still_racing(into)
                taking_part = [racer for racer in taking_part if racer.name in racing]
            if number and (len(taking_part) < 2 or (number % 2 == 0 and is_decided(into))):
                return
            for racer in taking_part if number % 2 == 0 else taking_part[::-1]:
                begins(racer.name)
                samples = racer.prepared.sample(milliseconds, racer.quick)
                into[racer.name].append(samples[len(samples) // 2 :] if into is lasting else samples)

    turns(racers, _ROUNDS, rep / _ROUNDS, rounds)
    _settle_ties(racers, rounds, rep / _ROUNDS, begins)
    close = _close(racers, rounds) if on_gpu else []
    if close:
        begins(close[0].name)
        close = close if _slows_down(close[0]) else []
    lasting.update({racer.name: [] for racer in close})
    turns(close, _LASTING_ROUNDS, _LASTING_MS, lasting)
    if lasting:
        _settle_ties(close, lasting, _LASTING_MS, begins, _LASTING_ROUNDS, half=True)
    return rounds, lasting


def _settle_ties(
    racers: Sequence[Racer],
    rounds: Rounds,
    milliseconds: float,
    begins: Callable[[str], None],
    most: int | None = None,
    half: bool = False,
) -> None:
    """Further rounds of the leader and those that may or may not tie with it, until that is known."""
    by_name = {racer.name: racer for racer in racers}
    for number in range(_FURTHER_ROUNDS if most is None else most):
        leader, *others = open_ties(rounds, 0 if half else _ROUNDS) or [""]
        if not others:
            return
        for name in (leader, *others) if number % 2 == 0 else (*others[::-1], leader):
            begins(name)
            samples = by_name[name].prepared.sample(milliseconds, by_name[name].quick)
            rounds[name].append(samples[len(samples) // 2 :] if half else samples)


def open_ties(rounds: Taken, least: int = _ROUNDS) -> list[str]:
    """The leader, then those with as many rounds of which it is not known whether they tie with it, by name; none where
    all is known. In fewer rounds than `least` a difference may stay the same by chance."""
    medians = {name: [statistics.median(each) for each in found] for name, found in rounds.items() if found}
    most = max(map(len, medians.values()), default=0)
    stayed = {name: own for name, own in medians.items() if len(own) == most}
    leader = min(stayed, key=lambda name: statistics.median(stayed[name]), default="")
    spread = unrest(medians, leader)
    unsure, limit = open_by(spread, most), tie(spread)
    if most < least:
        unsure = max(unsure, limit)
    others = [name for name in stayed if name != leader]
    found = [name for name in others if abs(behind(stayed[name], stayed[leader]) - 1 - limit) <= unsure]
    return [leader, *found] if found else []


def tie(spread: float) -> float:
    """The largest difference, a share of the latency, that counts as none on a machine where differences vary so much
    from round to round: what all rounds that there may be leave open."""
    unsure = open_by(spread, _ROUNDS + _FURTHER_ROUNDS)
    return next((limit for limit in _TIES if limit >= unsure), _TIES[-1])


def open_by(spread: float, rounds: int) -> float:
    """By how much a difference may be off that so many rounds have shown."""
    return _SURE * _ERROR * spread / math.sqrt(max(1, rounds))


def unrest(medians: Mapping[str, Sequence[float]], leader: str) -> float:
    """The standard deviation of latencies over the leader's from round to round, as a share: 1.4826 times the median
    absolute deviation, of all that took part in enough rounds."""
    ratios = {name: [mine / best for mine, best in zip(own, medians[leader])] for name, own in medians.items()}
    others = [each for name, each in ratios.items() if name != leader and len(each) >= _LEAST_ROUNDS]
    deviations = [abs(ratio - statistics.median(each)) for each in others for ratio in each]
    return 1.4826 * statistics.median(deviations) if deviations else 0.0


def still_racing(rounds: Taken) -> list[str]:
    """Of the configurations with most rounds, by name, those that may still turn out to be the fastest: their best
    round is not slower than the worst round of the one that leads, by more than a hundredth."""
    most = max(map(len, rounds.values()), default=0)
    medians = {name: [statistics.median(each) for each in rounds[name]] for name in rounds if len(rounds[name]) == most}
    leader = min(medians.values(), key=statistics.median, default=[])
    return [name for name, each in medians.items() if min(each) <= max(leader) * (1 + _APART)]


def is_decided(rounds: Taken) -> bool:
    """Whether further rounds would not tell more, by pairs of rounds that followed each other, of the leader and of
    each other configuration with most rounds: the leader was faster in all, or they differ by the same within half a
    hundredth of the latency. In fewer than four rounds chance decides too often."""
    most = max(map(len, rounds.values()), default=0)
    if most < _LEAST_ROUNDS:
        return False
    medians = [[statistics.median(each) for each in found] for found in rounds.values() if len(found) == most]
    leader = min(medians, key=statistics.median)
    for other in medians:
        apart = [(theirs - own) / own for theirs, own in zip(other, leader)]
        if other is not leader and min(apart) <= 0 and max(apart) - min(apart) > _SETTLED:
            return False
    return True


def behind(own: Sequence[float], leader: Sequence[float]) -> float:
    """Times the leader's latency, by the rounds that both were in: clocks change from round to round."""
    return statistics.median(mine / best for mine, best in zip(own, leader))


def _close(racers: Sequence[Racer], rounds: Taken) -> list[Racer]:
    """The leader, which is the first, and those that are close to it; none where there is no other."""
    medians = {name: [statistics.median(each) for each in found] for name, found in rounds.items()}
    most = max(map(len, medians.values()), default=0)
    stayed = [racer for racer in racers if most and len(medians[racer.name]) == most]
    leader = min(stayed, key=lambda racer: statistics.median(medians[racer.name]), default=None)
    if leader is None:
        return []
    by = {racer.name: behind(medians[racer.name], medians[leader.name]) for racer in racers}
    others = [racer for racer in racers if racer is not leader and by[racer.name] <= _WITHIN]
    return [leader, *others] if others else []


def _slows_down(racer: Racer) -> bool:
    """Whether lasting load makes it slower than it is after a pause: the GPU lowered its clock."""
    racer.prepared.rest(_REST_MS)
    samples: list[float] = racer.prepared.sample(_LASTING_MS, racer.quick)
    part = -(-len(samples) // 4)
    return statistics.median(samples[-part:]) > statistics.median(samples[:part]) * _CAPPED
