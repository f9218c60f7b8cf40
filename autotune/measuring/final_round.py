"""Time the best few configurations against each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ROUNDS, _LEAST_ROUNDS = 8, 4  # for those that stay in it to the end
_APART = 0.01  # of the latency: what is further behind the fastest than it, and the noise, is out of the final
_SETTLED = 0.005  # of the latency, as selection._TIE: a difference that stays the same within it is known
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
    slower than the fastest take part no longer, until it is decided. At so short turns all run at one clock, whatever
    power each draws. Where lasting load lowers the clock, those close to the leader go on with turns that are long
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
    close = _close(racers, rounds) if on_gpu else []
    if close:
        begins(close[0].name)
        close = close if _slows_down(close[0]) else []
    lasting.update({racer.name: [] for racer in close})
    turns(close, _LASTING_ROUNDS, _LASTING_MS, lasting)
    return rounds, lasting


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
