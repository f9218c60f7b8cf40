"""Part `space`: 3456 configurations enumerated, pruned and ordered on two cores, and the memory that takes.

Then `trials` configurations of the same space are tuned, and four times as many, each in a process of its own: what
the process holds at most must not grow with the compiled artifacts that are kept.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tiledsl
from benchmarks.tuning import cases, processes
from benchmarks.tuning.cold import environment
from benchmarks.tuning.report import Report, machine, read_json, table, write_json
from tiledsl import Target
from tiledsl.autotuner.predicting import rank

GOAL_SECONDS = 10.0
TARGET = "cuda:90"
_CORES = 2


def peak_mib() -> float:
    """The most memory this process has held, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def held_mib() -> float:
    """The memory this process holds now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def order() -> dict[str, Any]:
    """Enumerate, prune and order, in this process, bound to two cores. Orders of blocks (pass_configs) count fastest:
    configurations that differ in nothing else are elaborated once."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
    builder = cases.split_k_gemm()
    size, target = cases.LARGE_SPACE_SIZE, Target.parse(TARGET)
    before = held_mib()
    start = time.perf_counter()
    configs = list(cases.large_space())
    enumerated = time.perf_counter()
    ranking = rank.rank(lambda config: builder.program_for(size, config), configs, target)
    ended = time.perf_counter()
    return {
        "configurations": len(configs),
        "enumerate_s": round(enumerated - start, 3),
        "prune_and_order_s": round(ended - enumerated, 3),
        "seconds": round(ended - start, 3),
        "kept": len(ranking.order),
        "pruned": len(ranking.pruned),
        "failed": len(ranking.failed),
        "first": configs[ranking.order[0]] if ranking.order else None,
        "peak_mib": round(peak_mib(), 1),
        "more_held_mib": round(held_mib() - before, 1),
        "cores": len(os.sched_getaffinity(0)),
    }


def keep_artifacts(trials: int) -> dict[str, Any]:
    """Tune so many configurations of the space and hold on to the result."""
    tuned = tiledsl.autotune(
        configs=cases.large_space(), search="model", max_trials=trials, target=TARGET, warmup=1, rep=5, progress=False
    )(cases.split_k_gemm())
    start = time.perf_counter()
    result = tuned(**cases.LARGE_SPACE_SIZE)
    compiled = [trial for trial in result.trials if trial.resources is not None]
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    return {
        "trials": trials,
        "compiled": len(compiled),
        "artifacts_mib": round(sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) / 2**20, 2),
        "peak_mib": round(peak_mib(), 1),
        "seconds": round(time.perf_counter() - start, 2),
    }


def _in_a_process(*arguments: str, seconds: float = 300.0) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tuning-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "benchmarks.tuning.large_space", *arguments, "--out", str(folder / "out.json")]
        error = processes.run(command, environment(folder), processes.ROOT, seconds)
        if error:
            raise RuntimeError(f"{' '.join(arguments)}: {error}")
        return read_json(folder / "out.json")


def run(report: Report, trials: int = 16) -> None:
    """Measure; entries are put into the report after each step."""
    report.put("machine", machine())
    found = _in_a_process("--order")
    report.put("order", found)
    word = "reached" if found["seconds"] < GOAL_SECONDS else "MISSED"
    lines = [
        f"space: {found['configurations']} configurations in {found['seconds']} s on {found['cores']} cores "
        f"(goal {GOAL_SECONDS:g} s): {word}; {found['more_held_mib']} MiB more than before, {found['peak_mib']} at most"
    ]
    report.put("verdicts", lines)
    if not trials:
        return
    kept = [_in_a_process("--keep", str(count)) for count in (trials, 4 * trials)]
    report.put("keep", kept)
    few, many = kept
    report.put("verdicts", [
        *lines,
        f"space: {many['compiled']} compiled instead of {few['compiled']} ({many['artifacts_mib']} MiB of artifacts "
        f"instead of {few['artifacts_mib']}): {many['peak_mib']} MiB instead of {few['peak_mib']}",
    ])  # fmt: skip


def show(entries: dict[str, Any]) -> str:
    """Tables of what `run` found."""
    plain = {name: value for name, value in entries.get("order", {}).items() if name != "first"}
    return f"{table([plain])}\n{table(entries.get('keep', []))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", action="store_true")
    parser.add_argument("--keep", type=int)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    write_json(Path(arguments.out), order() if arguments.order else keep_artifacts(arguments.keep))


if __name__ == "__main__":
    main()
