"""What options of passes give each kernel of a script, on a GPU: with and without, in turns, results compared.

    python benchmarks/rules.py SCRIPT --off pipeline-loops.deepen=False --off widen-loops.enabled=False

The script runs once, as under `tiledsl run`; each kernel that the options change is timed with the arguments of its
first call: graphs of ten calls, the median of seven turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.tuning.report import table  # noqa: E402
from tiledsl.commands.beside import tensors  # noqa: E402
from tiledsl.commands.beside.hooks import watch  # noqa: E402
from tiledsl.commands.beside.recording import Call, Recorder  # noqa: E402
from tiledsl.commands.lower import parse_option  # noqa: E402
from tiledsl.commands.run import run_script  # noqa: E402
from tiledsl.kernels.kernel import Kernel  # noqa: E402

CALLS, TURNS, WINDOW_US = 10, 7, 20_000.0


def recorded(script: Path) -> list[Call]:
    """The first call of each kernel of a script."""
    recorder = Recorder()
    watch("tiledsl", recorder)
    torch.manual_seed(0)
    run_script(script)
    recorder.active = False
    return recorder.calls


def without(kernel: Kernel, options: Mapping[str, Any]) -> Kernel:
    """The same program with other options of passes."""
    return Kernel(kernel._build, kernel.target, {**kernel.pass_configs, **options})


def outputs(kernel: Kernel, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """What a call returns, and its arguments after it, as float64."""
    given = tensors.copied(arguments)
    returned = kernel(*given)
    found = [*returned] if isinstance(returned, (list, tuple)) else [returned]
    return [each.double() for each in (*found, *given) if isinstance(each, torch.Tensor)]


def difference(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
    """The largest difference, relative to the largest element; infinite where one alone is not finite."""
    most = 0.0
    for x, y in zip(a, b, strict=True):
        finite = torch.isfinite(x) & torch.isfinite(y)
        if bool((torch.isfinite(x) != torch.isfinite(y)).any()):
            return float("inf")
        if bool(finite.any()):
            most = max(most, float((x - y)[finite].abs().max() / y[finite].abs().max().clamp_min(1e-9)))
    return most


def turns(kernels: Mapping[str, Kernel], arguments: Sequence[Any]) -> dict[str, float]:
    """Microseconds a call of each kernel."""
    given = tensors.copied(arguments)
    graphs: dict[str, Callable[[], Any]] = {}
    for name, kernel in kernels.items():
        kernel(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                kernel(*given)
        graphs[name] = graph.replay
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(TURNS):
        for name, replay in sorted(graphs.items(), reverse=bool(turn % 2)):
            replay()
            count = max(1, min(20, int(WINDOW_US / max(1.0, _timed(replay, 1)))))
            times[name].append(_timed(replay, count) / count / CALLS)
    return {name: statistics.median(each) for name, each in times.items()}


def _timed(replay: Callable[[], Any], count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        replay()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3


def rows(calls: Sequence[Call], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each kernel that the options change."""
    made = []
    for call in calls:
        if call.error or not isinstance(call.kernel, Kernel):
            continue
        kernels = {"on": call.kernel, "off": without(call.kernel, options)}
        if kernels["on"].source == kernels["off"].source:
            continue
        unlike = difference(*(outputs(kernel, call.arguments) for kernel in kernels.values()))
        us = turns(kernels, call.arguments)
        times = {f"{name}, us": round(each, 2) for name, each in us.items()}
        row = {"kernel": call.name, "arguments": tensors.described(call.arguments), **times}
        made.append({**row, "off / on": round(us["off"] / us["on"], 3), "difference": f"{unlike:.1e}"})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("--off", action="append", default=[], metavar="PASS.OPTION=VALUE")
    given = parser.parse_args()
    print(table(rows(recorded(given.script), dict(map(parse_option, given.off)))))


if __name__ == "__main__":
    main()
