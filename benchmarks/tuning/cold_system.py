"""One system tunes the 40 GEMM configurations in a fresh process: `python -m benchmarks.tuning.cold_system SYSTEM`.

Imports, the CUDA context and the inputs come before the clock starts; what a system sets up for compiling and
measuring counts. The time is that from the call to the first product that the chosen kernel has computed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.tuning import cases
from benchmarks.tuning.report import Report, machine
from benchmarks.tuning.stages import EventLog, StageWatch, host_counters

SYSTEMS = ("tiledsl", "triton", "tilelang")
Tune = Callable[[Any, Any], dict[str, Any]]


def tiledsl_system(small: bool) -> Tune:
    """tiledsl.autotune with its defaults and a reference: every configuration that is timed was checked."""
    import tiledsl

    tuned = tiledsl.autotune(
        configs=cases.gemm_configs(small), ref_prog=cases.gemm_reference, **cases.tune_options(small)
    )(cases.gemm())

    def tune(a: Any, b: Any) -> dict[str, Any]:
        before = host_counters()
        with StageWatch() as watch, EventLog() as log:
            result = tuned(M=a.shape[0], N=b.shape[0], K=a.shape[1])
        after = host_counters()
        result(a, b)
        compiled = [trial.compile_seconds for trial in result.trials if trial.compile_seconds is not None]
        statuses = [trial.status for trial in result.trials]
        return {
            "config": result.config,
            "run": lambda: result(a, b),
            "tuner_ms": result.latency,
            "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
            "stages_s": watch.seconds,
            "timeline": watch.timeline,
            "events": log.events,
            "host_s": {name: round(after[name] - before[name], 2) for name in after.keys() & before.keys()},
            "events_summary": log.summary(),
            "compilations": len(compiled),
            "compile_sum_s": round(sum(compiled), 3),
            "compile_longest_s": round(max(compiled, default=0.0), 3),
        }

    return tune


def triton_system(small: bool) -> Tune:
    """triton.autotune with its defaults. It checks nothing."""
    if small and not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    from benchmarks.tuning import gemm_triton, stand_ins

    kernel = gemm_triton.tuned_kernel(cases.gemm_configs(small), stand_ins.once if small else None)

    def tune(a: Any, b: Any) -> dict[str, Any]:
        gemm_triton.launch(kernel, a, b)
        config = getattr(kernel, "best_config", None)
        return {"config": str(config), "run": lambda: gemm_triton.launch(kernel, a, b)}

    return tune


def tilelang_system(small: bool) -> Tune:
    """tilelang.autotune with its defaults, without a check."""
    from benchmarks.tuning import gemm_tilelang

    builder = gemm_tilelang.tuned_builder(cases.gemm_configs(small))

    def tune(a: Any, b: Any) -> dict[str, Any]:
        kernel = builder(M=a.shape[0], N=b.shape[0], K=a.shape[1])
        kernel(a, b)
        return {"config": str(getattr(kernel, "config", None)), "run": lambda: kernel(a, b)}

    return tune


def measure(system: str, small: bool, report: Report) -> None:
    """Tune for each shape, one after the other, and put a row for each into the report."""
    import tiledsl

    device = "cuda" if torch.cuda.is_available() else "cpu"
    make = {"tiledsl": tiledsl_system, "triton": triton_system, "tilelang": tilelang_system}[system]
    tune = make(small)
    report.put("machine", machine())
    rows: list[dict[str, Any]] = []
    for M, N, K in cases.shapes(small):
        a = torch.randn(M, K, dtype=torch.float16, device=device)
        b = torch.randn(N, K, dtype=torch.float16, device=device)
        expected = cases.gemm_reference(a, b)  # cuBLAS is set up, too
        synchronize()
        start = time.perf_counter()
        found = tune(a, b)
        synchronize()
        row: dict[str, Any] = {"shape": [M, N, K], "seconds": round(time.perf_counter() - start, 3)}
        run = found.pop("run")
        torch.testing.assert_close(run(), expected, rtol=1e-2, atol=0.5)
        row.update(found, ms=float(tiledsl.do_bench(run, warmup=100, rep=200)))
        rows.append(row)
        report.put("rows", rows)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--out", required=True)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    measure(arguments.system, arguments.small, Report(arguments.out))


if __name__ == "__main__":
    main()
