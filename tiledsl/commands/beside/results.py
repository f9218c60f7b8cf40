"""What was found of scripts under both compilers: kept in a file as it comes, summed up, and shown as a table."""

from __future__ import annotations

import contextlib
import datetime
import json
import shlex
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tiledsl.commands.beside.process import SIDES, Job
from tiledsl.commands.beside.supervise import Plan, compared
from tiledsl.commands.report import plain
from tiledsl.commands.table import print_table, printable
from tiledsl.errors import TileError
from tiledsl.files import write_output, writing

SCHEMA = 1
SLOWER = 0.95  # of TileLang's speed: the remarks of slower kernels are shown


def run_jobs(jobs: Sequence[Job], plan: Plan, file: Path | None, seconds: float | None) -> list[dict[str, Any]]:
    """Each script's result, in the order of the jobs. With a file, those that it has are taken from there, and it is
    written after each script, so that a run that was ended goes on. After `seconds` what is not done is left."""
    by_script = {} if file is None else {each["script"]: each for each in _read(file)}
    waiting = [job for job in jobs if job.name not in by_script]
    deadline = None if seconds is None else time.monotonic() + seconds
    done = len(jobs) - len(waiting)
    with _ended_in_order(), contextlib.closing(compared(waiting, plan, deadline)) as results:
        for result in results:
            by_script[result["script"]] = result
            done += 1
            print(f"[{done}/{len(jobs)}] {result['script']}: {_told(result)}", file=sys.stderr, flush=True)
            if file is not None:
                _write(file, list(by_script.values()))
    return [by_script[job.name] for job in jobs if job.name in by_script]


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """While this lasts, SIGTERM raises SystemExit: the processes of both sides, some of them stopped, are ended."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _told(script: Mapping[str, Any]) -> str:
    """A line about a script that has just ended."""
    ratios = [row["ratio"] for row in script["kernels"] if row["ratio"] is not None]
    said = [f"{len(script['kernels'])} kernels"]
    if ratios:
        said.append("TileLang's time over ours " + ", ".join(f"{ratio:.3f}" for ratio in ratios))
    said += [f"{side}: {printable(why)}" for side, why in script["failures"].items() if why]
    return "; ".join(said)


def _read(file: Path) -> list[dict[str, Any]]:
    """The scripts that a file of an earlier run has."""
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']}")
        return list(found["scripts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TileError(
            f"{file} is no file of an earlier run: {error}", notes=["name another file with -o, or remove this one"]
        ) from None


def _write(file: Path, scripts: Sequence[Mapping[str, Any]]) -> None:
    data = {
        "schema": SCHEMA,
        "command": _command(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "summary": summary(scripts),
        "scripts": scripts,
    }
    with writing(file):
        write_output(file, json.dumps(plain(data), indent=1, allow_nan=False).encode())


def _command() -> str:
    """The command line of this process."""
    spec = sys.modules["__main__"].__spec__
    name = Path(sys.argv[0]).name if spec is None else f"python -m {spec.name.removesuffix('.__main__')}"
    return shlex.join([*name.split(), *sys.argv[1:]])


def rows_of(scripts: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every kernel with its script's name."""
    for script in scripts:
        for row in script["kernels"]:
            yield script["script"], row


def summary(scripts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many kernels there are and how many agree; mean and distribution of TileLang's time over ours."""
    rows = [row for _, row in rows_of(scripts)]
    ratios = [row["ratio"] for row in rows if row["ratio"]]
    compared = [row for row in rows if row["difference"] is not None]
    certificates = [row["certificate"] for row in rows if row.get("certificate")]
    return {
        "scripts": len(scripts),
        "failed_scripts": {side: sum(bool(each["failures"][side]) for each in scripts) for side in SIDES},
        "kernels": len(rows),
        "timed": len(ratios),
        "geometric_mean": statistics.geometric_mean(ratios) if ratios else None,
        "median": statistics.median(ratios) if ratios else None,
        "at_least_1": sum(ratio >= 1 for ratio in ratios),
        "under_0.9": sum(ratio < 0.9 for ratio in ratios),
        "under_0.5": sum(ratio < 0.5 for ratio in ratios),
        "compared": len(compared),
        "different": sum(bool(row["difference"]) for row in compared),
        "certificates": len(certificates),
        "failed_certificates": sum(bool(each["failed"]) for each in certificates),
    }


def show(scripts: Sequence[Mapping[str, Any]]) -> None:
    """Print the table, what is to be said of single kernels and scripts, and the summary."""
    several = len(scripts) > 1
    table = []
    for script, row in rows_of(scripts):
        outputs = "" if row["difference"] is None else "differ" if row["difference"] else "agree"
        table.append([
            *([printable(script)] if several else []), _title(row), *(_number(row["ms"][side], 4) for side in SIDES),
            _number(row["ratio"], 3), *(_number(row["compile_s"][side], 1) for side in SIDES), outputs,
        ])  # fmt: skip
    head = ["kernel", "tiledsl ms", "tilelang ms", "ratio", "tiledsl compile s", "tilelang compile s", "outputs"]
    if table:
        print_table(["script", *head] if several else head, table, ("l" if several else "") + "lrrrrrl")
    for line in remarks(scripts):
        click.echo(line)
    found = summary(scripts)
    if found["timed"]:
        click.echo(
            f"tilelang's time over tiledsl's, {found['timed']} kernels: geometric mean {found['geometric_mean']:.3f}, "
            f"median {found['median']:.3f}; {found['at_least_1']} at 1 or more, {found['under_0.9']} under 0.9, "
            f"{found['under_0.5']} under 0.5. Outputs agree for {found['compared'] - found['different']} of "
            f"{found['compared']}."
        )
    else:
        click.echo("no kernel was timed under both")
    if found["certificates"]:
        click.echo(f"{found['certificates']} certificates, {found['failed_certificates']} failed.")
    if any(script["about"].get("device") == "cpu" for script in scripts):
        click.echo("there is no GPU here: the times mean nothing")


def remarks(scripts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What failed and differs, and what the remarks of slower kernels say."""
    for script in scripts:
        rows, failures = script["kernels"], script["failures"]
        for side, why in failures.items():
            if why and not any(row["reasons"][side] == why for row in rows):  # a kernel's line says it
                yield printable(f"{script['script']}: {side} failed: {why}")
        if not rows and not any(failures.values()):
            yield printable(f"{script['script']}: it called no kernel")
        for row in rows:
            said = [f"{side}: {why}" for side, why in row["reasons"].items() if why]
            if row["difference"]:
                said.append(f"outputs differ: {row['difference']}")
            certificate = row.get("certificate") or {}
            said += [f"certificate: failed: {certificate['failed']}"] if certificate.get("failed") else []
            said += [f"certificate: unknown: {text}" for text in certificate.get("unknown", ())]
            if row["method"] and "/" in row["method"]:
                said.append(f"timed in two ways: {row['method']}")
            if row["ratio"] is not None and row["ratio"] < SLOWER and script["about"].get("device") != "cpu":
                said += [f"slower: {text}" for text in row["remarks"] or ["it has no remarks"]]
            yield from (printable(f"{script['script']}: {_title(row)}: {text}") for text in said)


def _title(row: Mapping[str, Any]) -> str:
    """A kernel's name; with a number where the script has several of it."""
    return printable(row["kernel"] or "?") + (f" #{row['number']}" if row["number"] > 1 else "")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
