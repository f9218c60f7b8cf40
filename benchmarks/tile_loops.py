"""How many loops of tiles of TileLang's examples are scheduled in Gluon, and how they compare; needs no GPU.

    python -m benchmarks.tile_loops FOLDER [--only PATTERN] [--results FILE]

FOLDER is a copy of TileLang's repository, or its examples/. The scripts are those that tests/conformance/scripts.py
lists, at sizes for the interpreter; their kernels are lowered for cuda:90 and not run. A loop of tiles multiplies some
in its own body. "by default": the compiler's choice; "asked for": with select-emitter.backend = "gluon". FILE has
times of the scripts at their own sizes, as benchmarks.same_program leaves them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tuning.report import table
from benchmarks.verify import outputs
from tests.conformance.run import command_of, is_missing
from tests.conformance.scripts import SCRIPTS
from tiledsl.commands.beside.hooks import watch
from tiledsl.commands.beside.recording import Recorder
from tiledsl.dialects import scf, tensor, triton
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.parser import parse_op
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.launch import Launcher
from tiledsl.runtime.target import Target

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "same-program-nvidia-h200.json"
BACKENDS = {"loops": "triton", "by default": "auto", "asked for": "gluon"}
MARK = "tile loops: "  # before the line of a script's own process
SECONDS = 300


def loops_of(kernel: Kernel, backend: str) -> int:
    """Loops of tiles of a kernel: all with "triton", else those that are written in Gluon."""
    passes = {**kernel.pass_configs, "select-emitter.backend": backend, "peel-loops.mode": "off"}
    root = parse_op(Kernel(kernel.program_root, Target("cuda", 90), passes).ir("triton"))
    launches = [op for op in root.walk() if isinstance(op, triton.LaunchOp)]
    return sum(
        any(isinstance(op, tensor.DotOp) for op in loop.body)
        for launch in launches
        if backend == "triton" or targets_gluon(launch)
        for loop in launch.walk()
        if isinstance(loop, scf.ForOp)
    )


def of_kernels(calls: Sequence[Any]) -> list[dict[str, Any]]:
    """A row for each kernel that has loops of tiles."""
    rows = []
    for call in calls:
        if isinstance(call.kernel, Kernel):
            found = {name: loops_of(call.kernel, backend) for name, backend in BACKENDS.items()}
            rows += [{"kernel": call.name, **found}] if found["loops"] else []
    return rows


def in_this_process(arguments: Sequence[str]) -> None:
    """Run a script whose kernels do nothing, and print what its kernels have."""
    import torch

    from tests.conformance import one_script

    def run(self: Launcher, *given: Any) -> Any:
        converted = self._converted(given)
        return self.returned(converted) if self.outputs else outputs(self.kernel, given, "cpu")

    Launcher.run = run  # type: ignore[method-assign]
    torch.testing.assert_close = lambda *_, **__: None  # type: ignore[assignment]
    torch.allclose = lambda *_, **__: True
    recorder = Recorder()
    watch("tiledsl", recorder)
    sys.argv = ["one_script.py", *arguments]
    one_script.main()
    print(f"\n{MARK}{json.dumps(of_kernels(recorder.calls))}", flush=True)


def of_script(script: Any, examples: Path) -> list[dict[str, Any]] | None:
    """Rows of a script's kernels, found in a process of its own; None if that ends without."""
    command = command_of(script, examples, gpu=False, verify=False)
    command = [command[0], "-m", "benchmarks.tile_loops", "--in-this-process", *command[2:]]
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "conformance"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return None
    said = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return json.loads(said[-1].removeprefix(MARK)) if said else None


def ratios(path: Path) -> dict[tuple[str, str], float]:
    """TileLang's time over ours, by script and kernel, of the first call that was timed."""
    found: dict[tuple[str, str], float] = {}
    for script in json.loads(path.read_text(encoding="utf-8"))["scripts"]:
        for kernel in script["kernels"]:
            if kernel["ratio"]:
                found.setdefault((script["script"], kernel["kernel"]), kernel["ratio"])
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Shares, and geometric means of kernels whose loops are all scheduled by default, could be, or are not."""
    total = sum(row["loops"] for row in rows)
    lines = [f"{total} loops of tiles in {len(rows)} kernels"]
    for name in ("by default", "asked for"):
        lines.append(f"in Gluon {name}: {sum(row[name] for row in rows) / total:.1%}" if total else "")
    kinds = {
        "of all": rows,
        "in Gluon by default": [row for row in rows if row["by default"]],
        "in Gluon only if asked for": [row for row in rows if row["asked for"] and not row["by default"]],
        "others": [row for row in rows if not row["asked for"] and not row["by default"]],
    }
    for name, kind in kinds.items():
        timed = [row["ratio"] for row in kind if row.get("ratio")]
        if timed:
            mean, least = statistics.geometric_mean(timed), min(timed)
            lines.append(
                f"TileLang's time over ours, {name}: {mean:.2f} of {len(timed)} timed kernels, least {least:.2f}"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["--in-this-process"]:
        in_this_process(given[1:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="a copy of TileLang's repository")
    parser.add_argument("--only", default="", metavar="PATTERN", help="scripts whose path matches this pattern")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="times of the same scripts")
    options: Any = parser.parse_args(given)
    examples = options.folder / "examples" if (options.folder / "examples").is_dir() else options.folder
    timed, rows = ratios(options.results), []
    for script in SCRIPTS:
        absent = any(map(is_missing, script.needs)) or not (examples / script.path).is_file()
        if absent or not re.search(options.only, script.path):
            continue
        found = of_script(script, examples)
        if found is None:
            print(f"{script.path}: no kernel was found", file=sys.stderr, flush=True)
        for row in found or []:
            rows.append({"script": script.path, **row, "ratio": timed.get((script.path, row["kernel"]))})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    shown = [{**row, "ratio": f"{row['ratio']:.2f}" if row["ratio"] else ""} for row in rows]
    print(f"{table(shown)}\n{summary(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
