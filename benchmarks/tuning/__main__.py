"""What the autotuner takes and gives: the evidence for its promises, measured.

    python -m benchmarks.tuning [PART ...] [--out FILE]

    cold     wall time to tune 40 GEMM configurations with empty caches, against triton.autotune (and TileLang)
    winner   ten tunings: is the winner within 2% of the exhaustive best, and its latency stable
    model    the cost model's order against measured times of GEMM, attention and softmax
    space    3456 configurations enumerated, pruned and ordered on two cores; memory
    numerics bits of results with numerics="same-bits" and "batch-invariant", and what they cost
    ties     simulated, without a GPU: do ten tunings choose one winner

Each part runs in a process of its own, and what it found is in the JSON file even if it fails later on. `--small` tries
the programs without a GPU: tiny sizes, and times that are made up. `--replay` compares the model with recordings,
`--suite` with the winners of the suite's rows.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tuning import processes
from benchmarks.tuning.processes import ROOT
from benchmarks.tuning.report import Report, read_json

PARTS = ("cold", "winner", "model", "space", "numerics", "ties")
DEFAULT_OUT = ROOT / "benchmarks" / "results" / "h200-tuning.json"


def part_file(out: Path, part: str) -> Path:
    """Where a part writes what it finds, until all of it is put together."""
    return out.with_name(f"{out.stem}-{part}{out.suffix}")


def run_part(part: str, arguments: argparse.Namespace) -> None:
    """One part, in this process."""
    report = Report(part_file(arguments.out, part))
    if part == "cold":
        from benchmarks.tuning import cold

        cold.run(report, arguments.small, arguments.systems)
    elif part == "winner":
        from benchmarks.tuning import winner

        winner.run(report, arguments.small, arguments.times)
    elif part == "model":
        from benchmarks.tuning import model_check

        model_check.run(report, arguments.small, arguments.cases, arguments.recordings)
    elif part == "numerics":
        from benchmarks.tuning import numerics

        numerics.run(report, arguments.small, arguments.times)
    elif part == "ties":
        from benchmarks.tuning import ties

        ties.run(report, arguments.small)
    else:
        from benchmarks.tuning import large_space

        large_space.run(report, 0 if arguments.small else arguments.trials)


def show_part(part: str, entries: dict[str, Any]) -> str:
    """A part's tables."""
    from benchmarks.tuning import cold, large_space, model_check, numerics, ties, winner

    shown = {
        "cold": cold.show, "winner": winner.show, "model": model_check.show, "space": large_space.show,
        "numerics": numerics.show, "ties": ties.show,
    }  # fmt: skip
    return shown[part](entries)


def run_all(parts: Sequence[str], given: Sequence[str], out: Path, seconds: float) -> int:
    """Every part, whatever becomes of the others; their entries in one file; tables last. Returns the exit status."""
    whole = Report(out)
    for part in parts:
        part_file(out, part).unlink(missing_ok=True)
        start = time.monotonic()
        print(f"{part} ...", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks.tuning", part, *given, "--in-this-process"]
        error = processes.run(command, os.environ, ROOT, seconds)
        found = read_json(part_file(out, part))
        found["part_seconds"] = round(time.monotonic() - start, 1)
        if error:
            found["error"] = error
        whole.put(part, found)
        part_file(out, part).unlink(missing_ok=True)
        print(f"{part}: {found['part_seconds']} s{', failed' if error else ''}", file=sys.stderr, flush=True)
    for part in parts:
        print(f"\n== {part} ({whole.entries[part]['part_seconds']} s)")
        try:
            print(show_part(part, whole.entries[part]))
        except Exception:  # the numbers are in the file
            traceback.print_exc(file=sys.stdout)
    failed = [part for part in parts if "error" in whole.entries[part]]
    for part in failed:
        print(f"\n{part} failed:\n{whole.entries[part]['error']}")
    print()
    for part in parts:
        for line in whole.entries[part].get("verdicts", [f"{part}: nothing to say"]):
            print(line)
    print(f"written: {out}")
    return 1 if failed else 0


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _path(text: str) -> Path:
    return Path(text).resolve()


def forwarded(arguments: argparse.Namespace) -> list[str]:
    """The options of a part's own process."""
    given = [
        f"--out={arguments.out}",
        f"--systems={','.join(arguments.systems)}",
        f"--times={arguments.times}",
        f"--cases={','.join(arguments.cases)}",
        f"--trials={arguments.trials}",
    ]
    given += [f"--recordings={arguments.recordings}"] if arguments.recordings else []
    return given + (["--small"] if arguments.small else [])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tuning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them by default")
    parser.add_argument("--out", type=_path, default=DEFAULT_OUT, help="the JSON file")
    parser.add_argument("--small", action="store_true", help="tiny sizes and made-up times, without a GPU")
    parser.add_argument("--part-seconds", type=float, default=400.0, help="after which a part is stopped")
    parser.add_argument("--systems", type=_names, default=_names("tiledsl,triton,tilelang"), help="of part cold")
    parser.add_argument("--times", type=int, default=10, help="tunings of parts winner and numerics")
    parser.add_argument("--cases", type=_names, default=_names("gemm,attention,softmax"),
                        help="of part model; also gemm-few-rows and attention-causal")  # fmt: skip
    parser.add_argument("--recordings", type=_path, help="where part model leaves its recordings; beside the JSON file")
    parser.add_argument("--trials", type=int, default=16, help="of part space that are compiled; 0: none")
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="recordings to compare the model with")
    parser.add_argument("--suite", type=Path, metavar="FILE", help="rows of the suite to compare the model with")
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return arguments


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.replay:
        from benchmarks.tuning import model_check

        for path, row in zip(arguments.replay, model_check.replay(arguments.replay), strict=True):
            print(f"{path}\n{model_check.detail(read_json(path))}\n{model_check.show({'cases': [row]})}\n")
        return 0
    if arguments.suite:
        from benchmarks.tuning import suite_check

        print(suite_check.show(list(suite_check.replay(arguments.suite))))
        return 0
    if arguments.in_this_process:
        run_part(arguments.parts[0], arguments)
        return 0
    parts = arguments.parts or list(PARTS)
    return run_all(parts, forwarded(arguments), arguments.out, arguments.part_seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
