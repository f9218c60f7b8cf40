"""How often ten tunings of one problem choose one winner, and what that costs: simulated, no GPU is needed.

A problem is a number of configurations with true latencies and resources: as the suite's tunings on an H200 left them
(the best few of each, benchmarks/results), or drawn, with more near-equal ones than those have. A tuning takes a first
measurement of each, then the final round as it is, from noisy samples: single calls vary by `sample` of their time, the
clock wanders slowly by `clock` and now and then steps by `step`, each turn of a configuration differs by `turn`, and
its place in memory shifts it by `place` for a whole tuning.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tuning.report import Report
from tiledsl.autotuner import selection
from tiledsl.autotuner.measuring.final_round import Racer, race
from tiledsl.autotuner.trial import Trial

_STEPS = 0.01  # of turns, at which the clock steps
_RECORDED = ("suite-nvidia-h200.json", "generated-nvidia-h200.json")


@dataclass(frozen=True)
class Noise:
    """Shares of the latency, standard deviations."""

    sample: float = 0.01
    clock: float = 0.01
    turn: float = 0.001
    place: float = 0.0
    step: float = 0.01


@dataclass
class Clock:
    """A clock of the machine, 1 on average, that changes from turn to turn by a tenth of how far it wanders."""

    noise: Noise
    chance: random.Random
    now: float = 1.0

    def tick(self) -> float:
        self.now = 1 + 0.995 * (self.now - 1) + 0.0999 * self.chance.gauss(0, self.noise.clock)
        if self.chance.random() < _STEPS:
            self.now += self.chance.choice((-1, 1)) * self.noise.step
        return self.now * self.chance.gauss(1.0, self.noise.turn)


@dataclass
class Simulated:
    """A configuration that is ready to be timed, on a machine whose clock wanders."""

    true: float
    clock: Clock
    taken: list[float] = field(default_factory=list)

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        at_once = max(1, round(1 / quick)) if quick < 0.064 else 1  # a graph's replay lasts a millisecond
        count = min(1000, max(5, int(milliseconds / (quick * at_once))))
        clock, chance = self.clock.tick(), self.clock.chance
        self.taken.append(milliseconds)
        jitter = self.clock.noise.sample / math.sqrt(at_once)
        return [self.true * clock * max(0.5, chance.gauss(1.0, jitter)) for _ in range(count)]

    def rest(self, milliseconds: float) -> None:
        pass

    def warm(self, milliseconds: float) -> None:
        pass


@dataclass(frozen=True)
class SimulatedProblem:
    """True latencies in milliseconds, and bytes of shared memory, of the configurations."""

    latencies: tuple[float, ...]
    resources: tuple[int, ...]

    @staticmethod
    def draw(chance: random.Random) -> SimulatedProblem:
        """Up to 40 configurations; a few are within some percent of the best, as tuned spaces have them."""
        best = math.exp(chance.uniform(math.log(0.01), math.log(5.0)))
        near = [best * (1 + abs(chance.gauss(0, 0.02))) for _ in range(chance.randint(0, 6))]
        far = [best * (1 + chance.expovariate(1 / 0.6)) for _ in range(chance.randint(3, 33))]
        whole = [best, *near, *far]
        chance.shuffle(whole)
        return SimulatedProblem.of(whole, chance)

    @staticmethod
    def of(latencies: Sequence[float], chance: random.Random) -> SimulatedProblem:
        """With resources at random."""
        return SimulatedProblem(tuple(latencies), tuple(chance.choice((32, 64, 96, 128, 192)) << 10 for _ in latencies))


def recorded() -> list[SimulatedProblem]:
    """The latencies of the best few configurations of each tuning of the suite, and ten slower ones. Of equal ones,
    which are of one binary, there is one."""
    found = []
    for name in _RECORDED:
        rows = json.loads((Path(__file__).parent.parent / "results" / name).read_text())["rows"]
        for rivals in (candidate.get("rivals") or [] for row in rows for candidate in row["candidates"]):
            best = sorted({rival["ms"] for rival in rivals if "ms" in rival})  # not of those that do not fit
            if len(best) > 1:
                chance = random.Random(f"{name} {len(found)}")
                slower = [best[-1] * (1.05 + chance.expovariate(1 / 0.6)) for _ in range(10)]
                found.append(SimulatedProblem.of([*best, *slower], chance))
    return found


def drawn(count: int, seed: int = 0) -> list[SimulatedProblem]:
    """Random problems."""
    return [SimulatedProblem.draw(random.Random(f"problem {seed} {number}")) for number in range(count)]


def tune(problem: SimulatedProblem, noise: Noise, seed: str, incumbent: int | None = None) -> tuple[int, float]:
    """The place of the winner of one tuning, and milliseconds that its final round took."""
    chance = random.Random(seed)
    shifted = [true * chance.gauss(1.0, noise.place) for true in problem.latencies]
    trials = []
    for index, (true, shared) in enumerate(zip(shifted, problem.resources)):
        resources = {"spills": 0, "num_warps": 8, "shared_bytes": shared, "registers": 128}
        first = true * chance.gauss(1.0, noise.clock + noise.sample / 5)
        trials.append(Trial(index, {"n": index}, "ok", latency=first, spread=first * noise.sample, resources=resources))
    clock = Clock(noise, chance)
    racing = selection.finalists(trials, incumbent)
    prepared = [Simulated(shifted[trial.index], clock, []) for trial in racing]
    racers = [Racer(str(trial.index), each, trial.latency or 0.0) for trial, each in zip(racing, prepared)]
    rounds, lasting = race(racers, 100.0, lambda name: None)
    selection.record_final(trials, {"rounds": rounds, "lasting": lasting, "failures": {}})
    best = selection.winner(trials, incumbent)
    assert best is not None
    return best.index, sum(sum(each.taken) for each in prepared)


@dataclass
class Outcome:
    """Of so many problems: how many had one winner in all tunings, the share of tunings that agree with the most common
    winner, losses against the best as shares of its latency, and seconds of the final rounds."""

    problems: int = 0
    alike: int = 0
    agreeing: float = 0.0
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def line(self, name: str) -> str:
        ordered = sorted(self.seconds)
        return (
            f"{name}: {self.alike} of {self.problems} problems with one winner ({self.alike / self.problems:.1%}), "
            f"{self.agreeing / self.problems:.2%} of tunings agree; slower than the best by "
            f"{sum(self.losses) / len(self.losses):.2%} on average, {max(self.losses):.2%} at most; final rounds of "
            f"{sum(ordered) / len(ordered):.2f} s on average, {ordered[-1]:.1f} s at most"
        )


def simulate(
    problems: Sequence[SimulatedProblem], noise: Noise, tunings: int = 10, remembers: bool = False, seed: int = 0
) -> Outcome:
    """Tune problems several times each. remembers: each tuning knows the winner of the one before."""
    outcome = Outcome()
    for number, problem in enumerate(problems):
        winners: list[int] = []
        for turn in range(tunings):
            before = winners[-1] if remembers and winners else None
            chosen, milliseconds = tune(problem, noise, f"{seed} {number} {turn}", before)
            winners.append(chosen)
            outcome.losses.append(problem.latencies[chosen] / min(problem.latencies) - 1)
            outcome.seconds.append(milliseconds / 1e3)
        outcome.problems += 1
        outcome.alike += len(set(winners)) == 1
        outcome.agreeing += Counter(winners).most_common(1)[0][1] / tunings
    return outcome


def run(report: Report, small: bool = False) -> None:
    """Simulate; entries are put into the report after each step."""
    count = 5 if small else 100
    pair = SimulatedProblem((0.0277, 0.0275), (64 << 10, 128 << 10))
    winners = Counter(tune(pair, Noise(sample=0.003), f"pair {turn}")[0] for turn in range(count))
    lines = [f"ties: 0.0275 and 0.0277 ms, tuned {count} times: {winners.most_common(1)[0][1]} times one winner"]
    kinds = {"recorded": recorded()[: count if small else None], "drawn": drawn(count)}
    for kind, problems in kinds.items():
        for name, noise in (("quiet", Noise(0.003, turn=0.0003)), ("usual", Noise()), ("loud", Noise(turn=0.005))):
            lines.append("ties: " + simulate(problems, noise).line(f"{kind}, {name}"))
            again = simulate(problems, noise, remembers=True)
            lines.append("ties: " + again.line(f"{kind}, {name}, tuned again and again"))
            report.put("verdicts", lines)


def show(entries: dict[str, Any]) -> str:
    """The verdicts say all."""
    return ""
