"""How far the cost model holds for kernels that its constants were not fitted to.

    python -m benchmarks.tuning.leave_one_out RECORDING RECORDING ...

For each recording the constants of `Costs` are fitted to the others, from a start that knows none of them, and tried on
the one left out; last they are fitted to all. DRAM's fraction is not fitted: it was measured apart. Needs no GPU.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.tuning import cases
from benchmarks.tuning.model_check import TOPS, spearman
from benchmarks.tuning.report import read_json, table
from tiledsl import Target
from tiledsl.autotuner.predicting import model, prune, work
from tiledsl.autotuner.predicting.machines import COSTS, Costs
from tiledsl.autotuner.predicting.work_types import Work

# What one would put in without any recording: load latency as published for Hopper's DRAM, exchange and barrier some
# hundred and some ten cycles, spills at the second-level cache's rate, the rest plain guesses.
NEUTRAL = Costs(
    tensor=0.8, cache=0.7, overlap=0.5, load=0.6e-6, start=0.5e-6, barrier=30e-9, exchange=0.1e-6, spill=64, sharpness=3
)
# What the square of a constant's logarithm, measured from that start, weighs against a family's mean square error: a
# factor of 2 is as likely as an error of 10% in ten independent configurations. It holds what a fit can not tell.
WEIGHT_OF_START = 0.1**2 / 10 / math.log(2) ** 2
FRACTIONS = ("tensor", "cache", "overlap")  # at most 1
FITTED = (*FRACTIONS, "load", "start", "barrier", "exchange", "spill", "sharpness")


@dataclass(frozen=True)
class Measured:
    """A configuration that works and would not be pruned; milliseconds."""

    works: list[Work]
    ms: float
    resources: Mapping[str, Any] | None

    def estimate(self, costs: Costs, target: Target, compiled: bool) -> float:
        """Milliseconds by the model; `compiled`: which knows the binary's resources."""
        return model.predict_works(self.works, target, self.resources if compiled else None, costs)


@dataclass(frozen=True)
class Family:
    """One recording's configurations."""

    name: str
    target: Target
    rows: list[Measured]

    def estimates(self, costs: Costs, compiled: bool) -> list[float]:
        """Of every configuration, in milliseconds."""
        return [row.estimate(costs, self.target, compiled) for row in self.rows]

    def error(self, costs: Costs) -> float:
        """Mean square of log(estimate / time), before and after compiling."""
        logs = [
            math.log(estimate / row.ms)
            for compiled in (False, True)
            for estimate, row in zip(self.estimates(costs, compiled), self.rows)
        ]
        return sum(each * each for each in logs) / len(logs)

    def judge(self, costs: Costs) -> dict[str, Any]:
        """Of the order before compiling, and Spearman's correlation after."""
        estimates, times = self.estimates(costs, False), [row.ms for row in self.rows]
        order = [ms for _, ms in sorted(zip(estimates, times), key=lambda pair: pair[0])]
        best = min(times)
        found: dict[str, Any] = {
            "spearman": spearman(estimates, times),
            "spearman_compiled": spearman(self.estimates(costs, True), times),
            "rank_of_best": 1 + order.index(best),
            "typical_error": round(math.exp(math.sqrt(self.error(costs))) - 1, 3),
        }
        return found | {f"top{n}": f"+{min(order[:n]) / best - 1:.1%}" for n in TOPS[:3]}


def family(path: Path) -> Family:
    """FileNotFoundError if there is no such recording."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no recording {path}")
    recording = read_json(path)
    builder = cases.example(recording["module"], recording["builder"])
    target = Target.parse(recording["target"])
    rows = []
    for trial in recording["trials"]:
        given = {"pass_configs": recording.get("pass_configs", {}), **trial["config"]}
        works = work.read(*builder.program_for(recording["arguments"], given))
        if trial["status"] == "ok" and prune.reason(works, target) is None:
            rows.append(Measured(works, float(trial["ms"]), trial.get("resources")))
    return Family(recording["case"], target, rows)


def fit(families: Sequence[Family], start: Costs, steps: int) -> Costs:
    """Costs of least error over the families, each of which counts the same, and not too far from the start: random
    steps that grow smaller."""

    def badness(tried: Costs) -> float:
        moved = sum(math.log(getattr(tried, name) / getattr(start, name)) ** 2 for name in FITTED)
        return sum(each.error(tried) for each in families) + WEIGHT_OF_START * moved

    chance = random.Random(0)
    costs, least = start, badness(start)
    size, vain = 0.3, 0
    for _ in range(steps):
        changes = {}
        for name in FITTED:
            if chance.random() < 0.4:
                value = getattr(costs, name) * math.exp(chance.gauss(0, size))
                changes[name] = min(1.0, value) if name in FRACTIONS else value
        tried = replace(costs, **changes)
        found = badness(tried)
        vain += 1
        if found < least:
            costs, least, vain = tried, found, 0
        elif vain > 40:
            size, vain = max(0.02, 0.7 * size), 0
    return costs


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning.leave_one_out", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("recordings", nargs="+", type=Path, metavar="RECORDING")
    parser.add_argument("--steps", type=int, default=700, help="of each fit")
    arguments = parser.parse_args(argv)
    families = [family(path) for path in arguments.recordings]
    everything = fit(families, NEUTRAL, arguments.steps)
    judged, fitted = [], []
    for each in families:
        others = [other for other in families if other is not each]
        costs = fit(others, NEUTRAL, arguments.steps)
        for label, tried in (("nothing", NEUTRAL), ("the others", costs), ("all", everything), ("as shipped", COSTS)):
            judged.append({"case": each.name, "fitted to": label, **each.judge(tried)})
        fitted.append({"fitted to": f"all but {each.name}", **_rounded(costs)})
    print(table(judged), table([*fitted, *({"fitted to": name, **_rounded(costs)} for name, costs in
                                           (("all", everything), ("as shipped", COSTS)))]), sep="\n\n")  # fmt: skip
    return 0


def _rounded(costs: Costs) -> dict[str, str]:
    return {name: f"{value:.3g}" for name, value in asdict(costs).items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
