"""tiledsl beside cuBLAS, cuDNN, torch.compile, hand-written Triton and TileLang, on this machine's GPU.

    python -m benchmarks [--only TEXT ...] [--quick] [--budget SECONDS] [--resume] [--json FILE] [--picture FILE]

Each row is one problem: every candidate is tuned, checked against a float32 reference on outputs full of NaN, and timed
in turns with the others, steady and in bursts (see timing.py). Results are printed, merged into benchmarks/results/
suite-<GPU>.json and drawn beside it. --only takes families, or texts that are part of a
row's "family: case". --generated measures tiledsl alone: what tuning over the space takes that tiledsl proposes, and
how near it comes to the row's own list.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.records import load, merge, merge_file, name_of, path_for, save
from benchmarks.supervise import Limits, supervise, worker_command

_QUICK_SECONDS = 210.0


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="families, or parts of rows' names")
    parser.add_argument("--quick", action="store_true", help="a few rows, small spaces, short rounds: some 4 minutes")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no row after that (quick: 210)")
    parser.add_argument("--resume", action="store_true", help="leave out rows that the results have already")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="results, in place of the GPU's in benchmarks/results"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="an SVG, in place of the one beside the results")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write a table of all rows")
    parser.add_argument("--keep-caches", action="store_true", help="compile into the user's caches: tuning is not cold")
    parser.add_argument("--generated", action="store_true", help="tune over tiledsl.spaces.for_program; no peers")
    parser.add_argument("--list", action="store_true", help="print the rows' names")
    parser.add_argument("--report", action="store_true", help="print and draw the results again; measures nothing")
    parser.add_argument(
        "--merge", nargs="+", type=Path, default=[], metavar="FILE", help="with --report: add these results"
    )
    parser.add_argument("--worker", nargs=2, type=Path, help=argparse.SUPPRESS)
    return parser


def work(names: Sequence[str], to: Path, quick: bool, device: str = "cuda", generated: bool = False) -> int:
    """Measure rows in this process and append a line for each to a file; see --generated."""
    import torch

    from benchmarks import timing
    from benchmarks.ceilings import ceilings
    from benchmarks.execute import run_row
    from benchmarks.gpu import CudaClock, describe
    from benchmarks.ours import with_generated_space
    from benchmarks.row import Context
    from benchmarks.rows import all_rows
    from tiledsl.runtime.timing import cache_bytes

    def tell(message: Any) -> None:
        with to.open("a", encoding="utf-8") as file:
            file.write(json.dumps(message, default=str) + "\n")

    clock, plan = CudaClock(), timing.QUICK if quick else timing.Plan()
    allowed = 40.0 if quick else 90.0
    context = Context(device, tune=True, quick=quick, seconds=allowed / 2)
    tell({"about": {**describe(), "quick": quick, "ceilings": ceilings(clock, plan)}})
    rows = {row.name: with_generated_space(row) if generated else row for row in all_rows()}
    for name in names:
        start = time.perf_counter()
        result = run_row(rows[name], context, clock, plan, cache_bytes=cache_bytes(), prepare_seconds=allowed)
        lost = result.pop("device_lost", False)
        tell({"row": {**result, "seconds": round(time.perf_counter() - start, 1)}})
        if lost:
            return 3
        torch.cuda.empty_cache()
    return 0


def lost_row(name: str, why: str) -> dict[str, Any]:
    """A result for a row whose process died."""
    from benchmarks.rows import all_rows

    row = next(each for each in all_rows() if each.name == name)
    return {
        "family": row.family, "case": row.case, "tags": sorted(row.tags), "unit": row.unit,
        "operations": row.operations, "bytes": row.bytes_moved, "date": "", "candidates": [], "ratios": {},
        "error": why,
    }  # fmt: skip


def results_file(options: argparse.Namespace, gpu: str) -> Path:
    """Where the results go, and those of before lie."""
    return options.json or path_for(gpu, "generated" if options.generated else "suite")


def measure(options: argparse.Namespace, gpu: str, names: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Measure these rows as the options ask, print each and save after it; the results, and this run's rows."""
    path = results_file(options, gpu)
    data = load(path)
    if options.resume:
        known = {name_of(row) for row in data["rows"] if "error" not in row}
        names = [name for name in names if name not in known]
    budget = options.budget or (_QUICK_SECONDS if options.quick else None)
    deadline = None if budget is None else time.monotonic() + budget
    run, about, done = "", {}, []
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        if not options.keep_caches:
            for variable in ("TRITON_CACHE_DIR", "TILEDSL_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TILELANG_CACHE_DIR"):
                os.environ[variable] = str(Path(folder, variable.lower()))
        command = worker_command([f"--{name}" for name in ("quick", "generated") if getattr(options, name)])
        for message in supervise(names, command, Path(folder), Limits(), deadline):
            if "about" in message:
                run = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                about = {**message["about"], "date": run}
                print(_heading(about), flush=True)
                continue
            if "skipped" in message:
                print(f"{message['skipped']}: no time left", flush=True)
                continue
            row = message["row"] if "row" in message else lost_row(message["lost"], message["why"])
            if not run:
                run = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                about = {"gpu": gpu, "date": run, "ceilings": {}}
            done.append(name_of(row))
            merge(data, run, about, [row])
            save(path, data)
            print(report.row_text(row, about["ceilings"]), flush=True)
    return data, done


def _heading(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items() if version)
    lines = [f"{about['gpu']}, driver {about['driver']}; {versions}"]
    for regime, found in about["ceilings"].items():
        rates = ", ".join(
            f"{name} {value * 1e-12:.2f} {'TB/s' if name == 'copy' else 'TFLOP/s'}" for name, value in found.items()
        )
        lines.append(f"ceilings, {regime}: {rates}")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """0 if every row asked for was measured; 1 if a row failed or tiledsl has no time in it."""
    parser = arguments()
    options = parser.parse_args(given)
    if options.worker:
        names = json.loads(options.worker[0].read_text(encoding="utf-8"))
        return work(names, options.worker[1], options.quick, generated=options.generated)
    names = []
    if not options.report:
        from benchmarks.rows import all_rows, select

        try:
            names = [row.name for row in select(all_rows(), options.only, options.quick)]
        except ValueError as error:
            parser.error(f"--only: {error}")
    if options.list:
        print("\n".join(names))
        return 0
    needs_gpu = not (options.report and options.json)
    gpu = gpu_name() if needs_gpu else None
    if gpu is None and needs_gpu:
        print("python -m benchmarks needs a CUDA device, and torch finds none (--report --json FILE needs none)")
        return 2
    path = results_file(options, gpu or "")
    if options.report:
        data = load(path)
        for each in options.merge:
            merge_file(data, each)
        if options.merge:
            save(path, data)
        done = [name_of(row) for row in data["rows"]]
    else:
        data, done = measure(options, gpu or "", names)
    rows = [row for row in data["rows"] if name_of(row) in done]
    print(report.summary(rows))
    _draw(data, options.picture or path.with_suffix(".svg"), options.markdown)
    return 1 if any(not row["ratios"] for row in rows) else 0


def _draw(data: dict[str, Any], picture: Path, markdown: Path | None) -> None:
    from benchmarks.picture import svg

    picture.write_text(svg(data["rows"], data["runs"]), encoding="utf-8")
    if markdown is not None:
        markdown.write_text(report.markdown(data["rows"]), encoding="utf-8")


def gpu_name() -> str | None:
    """The current GPU's name, asked in another process: this one holds no memory on it."""
    import subprocess

    text = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    shown = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    return shown.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
