"""Time the best few configurations against each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ROUNDS, _LEAST_ROUNDS = 8, 4  # for those that stay in it to the end
_APART = 0.02  # of the latency: what is further behind the fastest than it, and the noise, is out of the final
_SETTLED = 0.005  # of the latency: a difference that stays the same within it is known
_TIES = (0.005, 0.02, 0.08)  # of the latency: what counts as no difference, in steps, lest chance sets the limit
_SURE = 3.0  # times its uncertainty is a difference away from a limit that it is surely above or below
_ERROR = 1.093  # times the standard deviation over the root of their number is the error of a mean of the middle half
_FEW = 8  # rounds; of as many the spread is known to a factor of two
_SHORTER = 20  # turns of further rounds in the time for one: what disturbs turns as a whole, many turns even out
_SETTLE, _SETTLE_ELSEWHERE = 150.0, 10.0  # times the time for one, for further rounds at most, on and off the GPU
_LOADED_MS = 60.0  # a power-capped H200 takes 40 to 80 ms to settle on the clock that a kernel's power allows
_LASTING_MS = 20.0  # of samples after it: between them caches are overwritten, which draws less power
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
    racers: Sequence[Racer],
    rep: float,
    begins: Callable[[str], None],
    on_gpu: bool = True,
    settle: float | None = None,
) -> tuple[Rounds, Rounds]:
    """Samples in milliseconds by name and round, of short rounds and of lasting ones; see `selection.record_final`.

    The racers come in the order in which ties are decided. Short rounds share `rep` milliseconds for each. They go in
    alternating order; those that are clearly slower than the fastest take part no longer, until it is decided. Further
    rounds follow of those on which it depends which is the first that ties with the fastest, until that is known or
    `settle` milliseconds have passed, so that the next run finds the same one. At so short turns all run at one clock,
    whatever power each draws. Where lasting load lowers the clock, those close to the leader go on with turns that
    begin with calls in a row, long enough for it to settle for each. `begins` is told what runs.
    """
    milliseconds_left = settle if settle is not None else rep * (_SETTLE if on_gpu else _SETTLE_ELSEWHERE)
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
                into[racer.name].append(_turn(racer, milliseconds, begins, loaded=into is lasting))

    turns(racers, _ROUNDS, rep / _ROUNDS, rounds)
    found = compare(rounds) if on_gpu else None
    close = [] if found is None else [racer for racer in racers if found.ratios[racer.name] <= _WITHIN]
    leader = next((racer for racer in close if found is not None and racer.name == found.leader), None)
    close = close if leader is not None and len(close) > 1 and _slows_down(leader, begins) else []
    lasting.update({racer.name: [] for racer in close})
    turns(close, _LASTING_ROUNDS, _LASTING_MS, lasting)
    if close:
        _settle_ties(close, lasting, _LASTING_MS, begins, milliseconds_left, loaded=True)
    else:
        _settle_ties(racers, rounds, rep / _SHORTER, begins, milliseconds_left)
    return rounds, lasting


def _settle_ties(
    racers: Sequence[Racer],
    rounds: Rounds,
    milliseconds: float,
    begins: Callable[[str], None],
    milliseconds_left: float,
    loaded: bool = False,
) -> None:
    """Further rounds of those on which it depends which of the racers is the first that ties with the fastest, until
    that is known or no time is `milliseconds_left`."""
    by_name, number = {racer.name: racer for racer in racers}, 0
    takes = milliseconds + (_LOADED_MS if loaded else 0.0)
    while milliseconds_left > 0:
        racing = open_ties(list(by_name), rounds, _LASTING_ROUNDS if loaded else _ROUNDS)
        if not racing:
            return
        for _ in range(2 + number // 4 * 2):  # in both orders; looking at the results seldom keeps chance out
            for name in racing if number % 2 == 0 else racing[::-1]:
                rounds[name].append(_turn(by_name[name], milliseconds, begins, loaded))
                milliseconds_left -= takes
            number += 1
            if milliseconds_left <= 0:
                break


def open_ties(order: Sequence[str], rounds: Taken, least: int = _ROUNDS) -> list[str]:
    """Of those with most rounds, the fastest, and those on which it depends which one in `order` is the first that ties
    with it; none where that is known."""
    comparison = compare(rounds)
    if comparison is None:
        return []
    within, most = 1 + tie(comparison.noise), comparison.rounds[comparison.leader]
    stayed = [name for name in order if comparison.rounds.get(name) == most]
    off = {
        name: comparison.unsure(name) if most >= least else max(comparison.unsure(name), within - 1) for name in stayed
    }
    low = min(comparison.ratios[name] - off[name] for name in stayed)
    waiting = []
    for name in stayed:
        if comparison.ratios[name] + off[name] <= within * low:
            break
        if comparison.ratios[name] - off[name] <= within:
            waiting.append(name)
    fastest = [name for name in stayed if comparison.ratios[name] - off[name] < 1]
    racing = {comparison.leader, *waiting, *fastest} if waiting else set()
    return [name for name in stayed if name in racing] if len(racing) > 1 else []


@dataclass(frozen=True)
class Compared:
    """leader: the fastest; ratios: latencies over its own, of each; noise: how much these vary from round to round, a
    standard deviation; rounds: that each took part in."""

    leader: str
    ratios: dict[str, float]
    noise: float
    rounds: dict[str, int]

    def unsure(self, name: str) -> float:
        """By how much a ratio may be off; few rounds do not tell how much they vary."""
        count = self.rounds[name]
        return 0.0 if name == self.leader else open_by(self.noise, count) * (1 + _FEW / count)


def compare(rounds: Taken) -> Compared | None:
    """Configurations by the rounds that each had with the fastest of those with most rounds. None if there is none."""
    typical = {name: [midmean(each) for each in found] for name, found in rounds.items() if found}
    most = max(map(len, typical.values()), default=0)
    stayed = [name for name, own in typical.items() if len(own) == most]
    if not stayed:
        return None
    leader = stayed[0]
    for _ in range(2):  # against the fastest as it seems, then against the fastest by that
        leader = min(stayed, key=lambda name: behind(typical[name], typical[leader]))
    ratios = {name: behind(own, typical[leader]) for name, own in typical.items()}
    return Compared(leader, ratios, unrest(typical, leader), {name: len(own) for name, own in typical.items()})


def midmean(values: Sequence[float]) -> float:
    """The mean of the middle half: as safe as the median from what disturbs single values, and nearer to the mean of
    what disturbs all."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def tie(spread: float) -> float:
    """The largest difference, a share of the latency, that counts as none on a machine where differences vary so much
    from round to round."""
    return next((limit for limit in _TIES if limit >= spread / 4), _TIES[-1])


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
    round is not slower than the worst round of the one that leads, by more than two hundredths."""
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
    return midmean([mine / best for mine, best in zip(own, leader)])


def _turn(racer: Racer, milliseconds: float, begins: Callable[[str], None], loaded: bool) -> list[float]:
    """Samples; with `loaded` at the clock that calls in a row leave."""
    begins(racer.name)
    if loaded:
        racer.prepared.warm(_LOADED_MS)
    samples: list[float] = racer.prepared.sample(milliseconds, racer.quick)
    return samples


def _slows_down(racer: Racer, begins: Callable[[str], None]) -> bool:
    """Whether lasting load makes it slower than it is after a pause: the GPU lowered its clock."""
    racer.prepared.rest(_REST_MS)
    rested, loaded = (statistics.median(_turn(racer, _LASTING_MS, begins, each)) for each in (False, True))
    return loaded > rested * _CAPPED
