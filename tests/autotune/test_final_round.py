"""The final round: who stays in it, when it ends, and what a card does to it that lowers its clock under load."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass, field

import pytest

from tiledsl.autotuner import selection
from tiledsl.autotuner.measuring.final_round import Racer, Rounds, is_decided, open_ties, race, still_racing
from tiledsl.autotuner.trial import Trial


def test_it_goes_on_with_those_that_may_still_win() -> None:
    clear = {"a": [[1.0, 1.1, 1.0], [1.0]], "b": [[1.03], [1.04]], "c": [[1.005], [1.2]], "out": [[0.5]]}
    assert still_racing(clear) == ["a", "c"]
    noisy = {"a": [[1.0], [1.05]], "b": [[1.03], [1.2]]}
    assert still_racing(noisy) == ["a", "b"]
    assert still_racing({}) == []


def test_it_ends_when_it_is_decided() -> None:
    def rounds(*medians: float) -> list[list[float]]:
        return [[each, each, each * 2] for each in medians]

    leader = rounds(1.00, 1.02, 0.99, 1.01)
    assert is_decided({"a": leader, "b": rounds(1.01, 1.03, 1.01, 1.02), "out": rounds(1.2, 1.2)})  # slower each time
    assert not is_decided({"a": leader, "b": rounds(0.99, 1.04, 1.01, 1.02)})  # to and fro
    assert is_decided({"a": leader, "b": rounds(1.001, 1.02, 0.991, 1.009)})  # as good, whatever the clock did
    assert not is_decided({"a": leader[:3], "b": rounds(1.1, 1.1, 1.1)})  # too few
    assert is_decided({"a": leader}) and not is_decided({})


@dataclass
class Card:
    """A GPU whose clock, 1 at first, follows what runs with a delay of 30 ms. flush: milliseconds in which a cache is
    overwritten, at full clock, before each sample."""

    clock: float = 1.0
    flush: float = 0.0

    def run(self, kernel: Kernel) -> float:
        elapsed = kernel.at_full_clock / self.clock
        self.follow(kernel.sustained, elapsed)
        return elapsed

    def follow(self, sustained: float, elapsed: float) -> None:
        self.clock = sustained + (self.clock - sustained) * math.exp(-elapsed / 30)


@dataclass
class Kernel:
    """at_full_clock: milliseconds; sustained: the clock that its power leaves under lasting load."""

    card: Card
    at_full_clock: float
    sustained: float
    asked: list[float] = field(default_factory=list)

    def rest(self, milliseconds: float) -> None:
        self.card.clock = 1.0

    def warm(self, milliseconds: float) -> None:
        while milliseconds > 0:
            milliseconds -= self.card.run(self)

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        self.asked.append(milliseconds)
        return [self._sample() for _ in range(max(5, int(milliseconds / quick)))]

    def _sample(self) -> float:
        self.card.follow(1.0, self.card.flush)
        return self.card.run(self)


def raced(*kernels: tuple[float, float], flush: float = 0.0) -> tuple[list[Trial], list[Kernel], Rounds, Rounds]:
    card = Card(flush=flush)
    timed = [Kernel(card, *kernel) for kernel in kernels]
    told: list[str] = []
    racers = [Racer(str(index), kernel, kernel.at_full_clock) for index, kernel in enumerate(timed)]
    rounds, lasting = race(racers, 100.0, told.append)
    assert len(told) == sum(len(kernel.asked) for kernel in timed)
    trials = [Trial(index, {}, "ok", latency=kernel.at_full_clock) for index, kernel in enumerate(timed)]
    selection.record_final(trials, {"rounds": rounds, "lasting": lasting, "failures": {}})
    return trials, timed, rounds, lasting


def test_a_kernel_that_draws_more_power_does_not_win_at_the_clock_of_the_others() -> None:
    """In short turns the second is faster; under lasting load its clock is lower. The third is far behind, the fourth
    a little."""
    trials, kernels, short, lasting = raced((1.0, 0.92), (0.985, 0.85), (1.13, 0.92), (1.02, 0.92))
    assert statistics.median(map(statistics.median, short["1"])) < statistics.median(map(statistics.median, short["0"]))
    assert set(lasting) == {"0", "1", "3"}
    assert trials[0].latency == pytest.approx(1.0 / 0.92, rel=0.03)
    assert trials[1].latency == pytest.approx(0.985 / 0.85, rel=0.03)
    winner = selection.winner(trials)
    assert winner is not None and winner.index == 0
    assert trials[2].latency == pytest.approx(1.13 * trials[0].latency, rel=0.02)  # type: ignore[operator]
    assert trials[0].rounds > trials[2].rounds == len(kernels[2].asked)


def test_the_clock_under_load_counts_where_samples_leave_pauses() -> None:
    """5120 squares on an H200: of half a millisecond, two tenths pass while caches are overwritten."""
    trials, _, short, lasting = raced((0.400, 0.80), (0.395, 0.76), flush=0.12)
    assert statistics.median(map(statistics.median, short["1"])) < statistics.median(map(statistics.median, short["0"]))
    assert set(lasting) == {"0", "1"}
    assert trials[0].latency == pytest.approx(0.400 / 0.80, rel=0.04)
    winner = selection.winner(trials)
    assert winner is not None and winner.index == 0


def test_a_card_that_keeps_its_clock_needs_no_lasting_rounds() -> None:
    trials, kernels, _, lasting = raced((1.0, 0.99), (0.985, 0.99), (1.02, 0.98))
    assert not lasting
    assert sorted({milliseconds for kernel in kernels for milliseconds in kernel.asked}) == [100 / 8, 20]
    assert [kernel.asked.count(20) for kernel in kernels] == [0, 2, 0]  # the leader, to see whether it slows down
    assert selection.winner(trials) is trials[1]


def test_nothing_is_close_to_the_leader() -> None:
    trials, _, _, lasting = raced((1.0, 0.9), (1.2, 0.9))
    assert not lasting and selection.winner(trials) is trials[0]
    assert race([], 100.0, print) == ({}, {})


def steady(**times: tuple[float, ...]) -> Rounds:
    """Rounds of five equal samples each."""
    return {name: [[each] * 5 for each in found] for name, found in times.items()}


def test_what_is_open_is_measured_again_and_nothing_else() -> None:
    """The order is that of the names. Differences of a half percent are ties, and vary by 0.2% from round to round."""
    still, swinging = (1.0,) * 8, (1.000, 1.004) * 4
    clear = tuple(each * 1.02 for each in swinging)
    edge = tuple(each * 1.0035 for each in swinging)
    assert open_ties("abc", steady(a=clear, b=still, c=still)) == []  # b ties with c, whatever is after it
    assert open_ties("abc", steady(a=edge, b=clear, c=still)) == ["a", "c"]  # is a the first to tie with c?
    assert open_ties("abc", steady(a=still, b=edge, c=clear)) == []  # a is the fastest, and the first
    nearly = tuple(each * 0.9985 for each in swinging)
    assert open_ties("abc", steady(a=edge, b=nearly, c=still)) == ["a", "b", "c"]  # b or c is the fastest
    assert open_ties("abc", steady(a=edge * 200, b=clear, c=still * 200)) == []  # c was there for longer, and a is out


def test_what_waits_for_a_decision_costs_no_more_than_the_time_for_it() -> None:
    """Half a percent apart is at the edge of what ties, whatever the rounds say."""

    @dataclass
    class Noisy:
        latency: float
        chance: random.Random
        turns: int = 0

        def rest(self, milliseconds: float) -> None: ...

        def warm(self, milliseconds: float) -> None: ...

        def sample(self, milliseconds: float, quick: float) -> list[float]:
            self.turns += 1
            return [self.latency * self.chance.gauss(1.0, 0.005)] * 5

    for settle, most in ((100.0, 8 + 2 + 14), (1000.0, 8 + 2 + 126)):  # turns of 4 ms, of two
        both = [Noisy(1.005, random.Random(1)), Noisy(1.0, random.Random(2))]
        racers = [Racer(str(number), each, 1.0) for number, each in enumerate(both)]
        race(racers, 80.0, lambda name: None, settle=settle)
        assert most - 5 < max(each.turns for each in both) <= most
