"""The same program under tiledsl and under TileLang: its own example scripts, kernel by kernel, as `tiledsl beside`.

    python -m benchmarks.same_program FOLDER [--only PATTERN] [--seconds S] [--workers N] [--all]
        [--verify] [--out FILE]

FOLDER is a copy of TileLang's repository, or its examples/. The scripts are those that tests/conformance/scripts.py
lists, at their own sizes; with --all all others too. FILE is written after each script; the same command goes on there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conformance.run import is_missing
from tests.conformance.scripts import SCRIPTS
from tiledsl.commands.beside import Job, Plan, check_installed, jobs_in, matching, run_jobs, show
from tiledsl.errors import TileError

CONFORMANCE = Path(__file__).resolve().parents[1] / "tests" / "conformance"


def jobs_of(examples: Path, unlisted: bool) -> Iterator[Job]:
    """The scripts of TileLang's examples that can run here: those whose packages are installed."""
    listed = {script.path: script for script in SCRIPTS}
    for path, script in listed.items():
        absent = [need for need in script.needs if is_missing(need)]
        if absent:
            print(f"{path} needs {', '.join(absent)}", file=sys.stderr)
        elif (examples / path).is_file():
            yield Job(path, examples / path, entry=script.entry or None, paths=(str(CONFORMANCE),))
    if unlisted:
        yield from (job for job in jobs_in(examples) if job.name not in listed)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path, help="a copy of TileLang's repository")
    parser.add_argument("--only", default="", metavar="PATTERN", help="scripts whose path matches this pattern")
    parser.add_argument("--all", action="store_true", help="scripts that are not listed, too")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time, two for a script (default 2)")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for a script under one compiler")
    parser.add_argument("--seconds", type=float, help="leave what is not done after so many")
    parser.add_argument("--verify", action="store_true", help="a certificate for each kernel")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep results here, and go on there")
    options: Any = parser.parse_args(arguments)
    examples = options.folder / "examples" if (options.folder / "examples").is_dir() else options.folder
    try:
        check_installed()
        jobs = matching(list(jobs_of(examples, options.all)), options.only)
        scripts = run_jobs(
            jobs, Plan(options.workers, options.timeout, verify=options.verify), options.out, options.seconds
        )
    except TileError as error:
        print(error, file=sys.stderr)
        return 1
    show(scripts)
    print(f"{len(scripts)} of {len(jobs)} scripts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
