"""Part `model`: the cost model's order of configurations against measured times of GEMM, attention and softmax.

All configurations of a case are tuned without pruning, and what became of each is kept in a file, the recording. The
comparison needs nothing but the recording: `python -m benchmarks.tuning --replay FILE ...` repeats it anywhere with
the model as it is then, which elaborates the kernels of examples/ again.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tiledsl
from benchmarks.tuning import cases
from benchmarks.tuning.report import Report, machine, read_json, table, write_json
from tiledsl import Target
from tiledsl.autotuner.predicting import model, rank, work

DEFAULT_CASES = ("gemm", "attention", "softmax")
TOPS = (1, 3, 5, 10)  # of the model's order: how good is the best of so many?
_KEPT = ("shared_bytes", "registers", "spills", "occupancy_limit", "num_warps")


def record(case: cases.Case, small: bool) -> dict[str, Any]:
    """Tune every configuration of a case and keep what came out."""
    builder = cases.example(case.module, case.builder)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tuning-") as store:
        tuned = tiledsl.autotune(
            configs=case.configs, ref_prog=case.reference, prune=False, search="exhaustive", store=store,
            **cases.tune_options(small),
        )(builder)  # fmt: skip
        result = tuned(**case.arguments)
    return {
        "case": case.name,
        "module": case.module,
        "builder": case.builder,
        "arguments": case.arguments,
        "target": str(result.kernel.target),
        "machine": machine(),
        "seconds": round(time.perf_counter() - start, 2),
        "trials": [_trial(trial) for trial in result.trials],
    }


def _trial(trial: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"config": trial.config, "status": trial.status}
    if trial.ok:
        kept.update(ms=_rounded(trial.latency), spread=_rounded(trial.spread), rounds=trial.rounds)
    else:
        kept["message"] = trial.message.strip().splitlines()[0][:200] if trial.message.strip() else ""
    if trial.resources:
        kept["resources"] = {name: trial.resources[name] for name in _KEPT if name in trial.resources}
    return kept


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


# Comparing


def compare(recording: Mapping[str, Any]) -> dict[str, Any]:
    """The model of today against a recording.

    `spearman`: of estimates before compiling, by which the tuner orders, with measured times, over the configurations
    that work and are not pruned; `spearman_compiled`: of estimates that know the binary's resources. `rank_of_best`:
    the place of the fastest in the model's order, from 1 on. `loss_of_top`: by how much the best of the first so many
    is slower than the fastest. `pruned_best`: the least measured time of a pruned one over the fastest kept one's.
    """
    builder = cases.example(recording["module"], recording["builder"])
    arguments = recording["arguments"]
    trials = recording["trials"]
    target = Target.parse("cuda:90" if recording["target"] == "interpret" else recording["target"])

    def program_for(config: Mapping[str, Any]) -> Any:
        return builder.program_for(arguments, {"pass_configs": recording.get("pass_configs", {}), **config})

    ranking = rank.rank(program_for, [trial["config"] for trial in trials], target)
    measured = {at: float(trial["ms"]) for at, trial in enumerate(trials) if trial["status"] == "ok"}
    kept = [at for at in ranking.order if at in measured]
    compiled = {
        at: model.predict_works(work.read(*program_for(trials[at]["config"])), target, trials[at]["resources"])
        for at in kept
        if "resources" in trials[at]
    }
    pruned = [measured[at] for at in ranking.pruned if at in measured]
    fastest = min((measured[at] for at in kept), default=None)
    found: dict[str, Any] = {
        "case": recording["case"],
        "configs": len(trials),
        "work": len(measured),
        "pruned": len(ranking.pruned),
        "compared": len(kept),
        "spearman": spearman([ranking.predicted[at] for at in kept], [measured[at] for at in kept]),
        "spearman_compiled": spearman([*compiled.values()], [measured[at] for at in compiled]),
    }
    if fastest is not None:
        found.update(
            best_ms=fastest,
            best_config=next(trials[at]["config"] for at in kept if measured[at] == fastest),
            rank_of_best=1 + next(place for place, at in enumerate(kept) if measured[at] == fastest),
            loss_of_top={str(n): round(min(measured[at] for at in kept[:n]) / fastest - 1, 4) for n in TOPS},
            estimate_over_time=statistics.median(ranking.predicted[at] / measured[at] for at in kept),
            pruned_best=round(min(pruned) / fastest, 4) if pruned else None,
        )
    return found


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None for fewer than three values or equal ones."""
    if len(left) < 3 or len(set(left)) == 1 or len(set(right)) == 1:
        return None
    return round(statistics.correlation(_ranks(left), _ranks(right)), 4)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: place for place, value in reversed([*enumerate(ordered)])}
    return [first[value] + (ordered.count(value) - 1) / 2 for value in values]


def replay(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """`compare` for each recording. FileNotFoundError if one is not there."""
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"there is no recording {missing[0]}")
    return [compare(read_json(path)) for path in paths]


def detail(recording: Mapping[str, Any]) -> str:
    """Measured and estimated times of every configuration that works, the fastest first."""
    builder = cases.example(recording["module"], recording["builder"])
    arguments = recording["arguments"]
    target = Target.parse("cuda:90" if recording["target"] == "interpret" else recording["target"])
    configs = [trial["config"] for trial in recording["trials"]]
    passes = {"pass_configs": recording.get("pass_configs", {})}
    ranking = rank.rank(lambda config: builder.program_for(arguments, {**passes, **config}), configs, target)
    places = {at: place for place, at in enumerate(ranking.order, 1)}
    rows = [
        {
            **trial["config"],
            "ms": trial["ms"],
            "estimate": ranking.predicted.get(at),
            "place": places.get(at, "pruned"),
            **{name: trial.get("resources", {}).get(name) for name in ("registers", "spills", "shared_bytes")},
        }
        for at, trial in enumerate(recording["trials"])
        if trial["status"] == "ok"
    ]
    return table(sorted(rows, key=lambda row: float(row["ms"])))


def run(report: Report, small: bool = False, names: Sequence[str] = DEFAULT_CASES, folder: Path | None = None) -> None:
    """Record each case in `folder` (beside the report, if it is not given), and compare."""
    report.put("machine", machine())
    known = cases.model_cases(small)
    folder = folder or report.path.parent
    rows: list[dict[str, Any]] = []
    for name in names:
        recording = record(known[name], small)
        path = folder / f"recording-{name}.json"
        write_json(path, recording)
        rows.append({**compare(recording), "seconds": recording["seconds"], "recording": path.name})
        report.put("cases", rows)
    report.put("verdicts", [_verdict(row) for row in rows])


def _verdict(row: Mapping[str, Any]) -> str:
    return (
        f"model: {row['case']}: Spearman {row['spearman']} over {row['compared']} configurations; the fastest is "
        f"number {row.get('rank_of_best')} in the model's order"
    )


def show(entries: Mapping[str, Any]) -> str:
    """A table of comparisons."""
    rows = []
    for case in entries.get("cases", []):
        tops = case.get("loss_of_top", {})
        plain = {name: value for name, value in case.items() if name not in ("loss_of_top", "best_config", "recording")}
        rows.append({**plain, **{f"top{n}": f"+{loss:.1%}" for n, loss in tops.items()}})
    return table(rows)
