"""Part `winner`: does tuning find the best configuration, and the same quality every time?

All configurations, those that the pruner leaves out included, are compiled once and timed against each other. Then
tuning runs ten times, each with an empty journal, but with Triton's cache of binaries: only measuring and choosing
happen again. At the end the chosen ones and the best are timed against each other once more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tiledsl
from benchmarks.tuning import cases
from benchmarks.tuning.interleaved import WINDOW_MS, Clock, cpu_clock, gpu_clock, interleaved, medians
from benchmarks.tuning.report import Report, machine, table

WITHIN = 0.02  # of the exhaustive best, for each winner
STABLE = 0.015  # by how much the winners' own latencies may differ

Config = dict[str, Any]


def tune(configs: Sequence[Config], store: Path, small: bool, **options: Any) -> Any:
    """One tuning of the first shape; `store` is where its journal goes."""
    M, N, K = cases.shapes(small)[0]
    tuned = tiledsl.autotune(
        configs=list(configs), ref_prog=cases.gemm_reference, store=store, **cases.tune_options(small), **options
    )(cases.gemm())
    return tuned(M=M, N=N, K=K)


def judge(winners: Sequence[str], true_ms: Mapping[str, float]) -> dict[str, Any]:
    """Winners by configuration, with all true latencies: how far each is from the best, and how they vary."""
    best = min(true_ms.values())
    losses = [true_ms[winner] / best - 1 for winner in winners]
    chosen = [true_ms[winner] for winner in winners]
    return {
        "best_ms": best,
        "best": min(true_ms, key=lambda name: true_ms[name]),
        "losses": losses,
        "within": sum(loss <= WITHIN for loss in losses),
        "runs": len(winners),
        "worst_loss": max(losses),
        "variation": max(chosen) / min(chosen) - 1,
    }


def verdicts(found: Mapping[str, Any], manner: str) -> list[str]:
    """The two goals."""
    enough = found["within"] == found["runs"]
    stable = found["variation"] < STABLE
    return [
        f"winner ({manner}): {found['within']} of {found['runs']} within {WITHIN:.0%} of the exhaustive best, worst "
        f"{found['worst_loss']:.2%}: {'reached' if enough else 'MISSED'}",
        f"selection ({manner}): true latency of the chosen varies by {found['variation']:.2%} (goal {STABLE:.1%}): "
        f"{'reached' if stable else 'MISSED'}",
    ]


def name_of(config: Mapping[str, Any]) -> str:
    """`128x256x64 s3 t256`."""
    tile = "x".join(str(config[f"block_{axis}"]) for axis in "MNK")
    return f"{tile} s{config['num_stages']} t{config['threads']}"


class Bench:
    """The kernels of the space on one pair of inputs, and how they are timed."""

    def __init__(self, small: bool) -> None:
        self.small = small
        M, N, K = cases.shapes(small)[0]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.a = torch.rand(M, K, device=device).mul_(2).sub_(1).half()
        self.b = torch.rand(N, K, device=device).mul_(2).sub_(1).half()
        self.clock: Clock = gpu_clock if device == "cuda" else cpu_clock
        self.window = 0.0 if small else WINDOW_MS

    def call(self, kernel: Any) -> Any:
        return lambda: kernel(self.a, self.b)

    def steady(self, kernels: Mapping[str, Any], rounds: int, screen: bool = True) -> dict[str, float]:
        """Milliseconds back to back, by name."""
        calls = {name: self.call(kernel) for name, kernel in kernels.items()}
        return medians(interleaved(calls, rounds, self.clock, window=self.window, screen=screen))

    def flushed(self, kernels: Mapping[str, Any], rounds: int) -> dict[str, float]:
        """Milliseconds with the second-level cache overwritten before each call, as the tuner measures."""
        times: dict[str, list[float]] = {name: [] for name in kernels}
        for number in range(rounds):
            for name in kernels if number % 2 == 0 else [*kernels][::-1]:
                times[name].append(float(tiledsl.do_bench(self.call(kernels[name]), warmup=10, rep=60)))
        return medians(times)


def usable(trials: Sequence[Any], bench: Bench) -> tuple[dict[str, Any], dict[str, str]]:
    """Kernels that run, by name, each binary once; why the others do not, by name."""
    kernels, refused = {}, {}
    for trial in trials:
        name = name_of(trial.config)
        if not trial.ok:
            refused[name] = f"{trial.status}: {trial.message.splitlines()[0] if trial.message else ''}"
        else:
            bench.call(trial.kernel)()
            kernels[name] = trial.kernel
    return kernels, refused


def run(report: Report, small: bool = False, times: int = 10, rounds: int = 6) -> None:
    """Measure; entries are put into the report after each step."""
    report.put("machine", machine())
    configs = cases.gemm_configs(small)
    with tempfile.TemporaryDirectory(prefix="tuning-") as folder:
        every = tune(configs, Path(folder, "every"), small, prune=False)
        bench = Bench(small)
        kernels, refused = usable(every.trials, bench)
        report.put("refused", refused)
        exhaustive = bench.steady(kernels, rounds)
        report.put("exhaustive_ms", dict(sorted(exhaustive.items(), key=lambda item: item[1])))
        report.put("tuner_ms", {name_of(trial.config): trial.latency for trial in every.trials if trial.ok})
        winners: list[str] = []
        for number in range(times):
            result = tune(configs, Path(folder, f"run-{number}"), small)
            winners.append(name_of(result.config))
            kernels.setdefault(winners[-1], result.kernel)
            report.put("winners", winners)
    best = min(exhaustive, key=lambda name: exhaustive[name])
    top = sorted(exhaustive, key=lambda name: exhaustive[name])[:5]
    again = {name: kernels[name] for name in dict.fromkeys([best, *winners, *top])}
    again_ms = bench.steady(again, 2 * rounds, screen=False)
    report.put("again_ms", again_ms)
    flushed_ms = bench.flushed(again, rounds)
    report.put("again_flushed_ms", flushed_ms)
    report.put("steady", judge(winners, again_ms))
    report.put("flushed", judge(winners, flushed_ms))
    lines = verdicts(report.entries["steady"], "steady") + verdicts(report.entries["flushed"], "L2 flushed")
    report.put("verdicts", lines)


def show(entries: dict[str, Any]) -> str:
    """Tables of what `run` found."""
    if "again_ms" not in entries:
        return f"not finished; winners so far: {entries.get('winners', [])}"
    counts = {name: entries["winners"].count(name) for name in entries["again_ms"]}
    rows = [
        {
            "config": name,
            "steady_ms": ms,
            "flushed_ms": entries["again_flushed_ms"][name],
            "all_together_ms": entries["exhaustive_ms"][name],
            "tuner_ms": entries["tuner_ms"].get(name),
            "chosen": counts[name],
        }
        for name, ms in sorted(entries["again_ms"].items(), key=lambda item: item[1])
    ]
    return f"{table(rows)}\nof {len(entries['exhaustive_ms'])} that work; refused: {entries['refused']}"
