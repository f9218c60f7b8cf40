"""`tiledsl tune`: tune many shapes of a function into a tuned-config file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tiledsl.commands.report import give, gives
from tiledsl.errors import TileError


@gives("file", "calls", "interrupted")
@click.command()
@click.argument("program", metavar="FILE.py:FUNCTION")
@click.option("--shapes", "files", multiple=True, type=click.Path(path_type=Path), help="Calls, as CSV or JSON.")
@click.option(
    "-D", "ranges", multiple=True, metavar="NAME=VALUES", help="Values of an argument: 16, 16,32, 16:4096:x2, 0:64:+16."
)
@click.option("--into", "folder", required=True, type=click.Path(path_type=Path), help="The folder of the file.")
@click.option("--target", default=None, help="cuda:90, hip:gfx942, interpret, ...; by default the GPU here.")
@click.option("--budget", type=float, default=None, metavar="SECONDS", help="For each shape; see TuneOptions.budget.")
@click.option("--gpus", default=None, metavar="0,1,...", help="Numbers of the GPUs that measure; by default all alike.")
@click.option("--retune", is_flag=True, help="Tune again what is tuned already.")
@click.option(
    "--min-improvement", default="3%", metavar="SHARE", help="By how much faster another configuration must be."
)
@click.option(
    "--numerics",
    type=click.Choice(["same-bits", "batch-invariant"]),
    default=None,
    help="Only configurations with the bits of the first one, or of the first one at any number of rows.",
)
@click.option("--rows", default=None, metavar="NAME", help="The argument that counts rows, for batch-invariant.")
@click.option("--dry-run", is_flag=True, help="Only say what would be tuned, and why.")
@click.option("--trials/--no-trials", "keep_trials", default=True, help="Write all that was tried beside the file.")
@click.option(
    "--reports", type=click.Path(path_type=Path), default=None, metavar="FOLDER", help="A page for each call."
)
def tune(
    program: str,
    files: tuple[Path, ...],
    ranges: tuple[str, ...],
    folder: Path,
    target: str | None,
    budget: float | None,
    gpus: str | None,
    retune: bool,
    min_improvement: str,
    numerics: str | None,
    rows: str | None,
    dry_run: bool,
    keep_trials: bool,
    reports: Path | None,
) -> None:
    """Tune many shapes of an autotuned function into a file that is shipped and looked up at run time.

    Shapes come from files (CSV with the arguments' names in the first line, or a JSON list of objects), each combined
    with all values of -D. What the folder's file has already is skipped, so that a run which was interrupted goes on
    where it was. The file is written after each shape. Status 1 if a shape fails; the failures are listed at the end.

    \b
    tiledsl tune gemm.py:matmul -D M=16:4096:x2 -D N=4096 -D K=4096,11008 --into configs/
    """
    from tiledsl.autotuner.tuned.shapes import check_names, parse_values, product, read_shapes
    from tiledsl.commands.autotuned import find_autotuned

    given_ranges = _ranges(map(parse_values, ranges))
    calls = product([shape for file in files for shape in read_shapes(file)], given_ranges)
    if not files and not ranges:
        raise TileError("tiledsl tune needs shapes: --shapes shapes.csv, or -D M=16:4096:x2")
    options = {"target": target, "budget": budget, "devices": None if gpus is None else _numbers(gpus)}
    options |= {"numerics": numerics, "rows": rows}
    function = find_autotuned(program)
    if not function.jit.is_eager:  # else names of T.const, too, which are known when it is built
        for file in files:
            check_names(file, function.name, function.jit.signature)
        check_names(None, function.name, function.jit.signature, given_ranges)
    report = function.tune_into(
        folder,
        calls,
        retune=retune,
        min_improvement=share(min_improvement),
        dry_run=dry_run,
        keep_trials=keep_trials,
        report=click.echo,
        reports=reports,
        **{name: value for name, value in options.items() if value is not None},
    )
    calls = [
        {"call": e.call, "status": e.status, "message": e.message, "seconds": e.seconds, "entry": _entry(e.entry)}
        for e in report.outcomes
    ]
    give(file=report.path, calls=calls, interrupted=report.interrupted)
    repeats = len(report.failed) < len(report.outcomes)  # else the last lines are the failures
    click.echo(report.summary(repeats), err=bool(report.failed))
    if report.failed or report.interrupted:
        raise click.exceptions.Exit(1)


def _entry(entry: Any) -> dict[str, Any] | None:
    return None if entry is None else asdict(entry)


def _ranges(pairs: Any) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {}
    for name, values in pairs:
        if name in found:
            raise TileError(f"-D names {name} twice; write -D {name}=16,32")
        found[name] = values
    return found


def share(text: str) -> float:
    """`3%` or `0.03`. TileError for what is not from 0 to below 1."""
    matched = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    value = float(matched[1]) / (100 if matched[2] else 1) if matched else 1.0
    if not value < 1:
        raise TileError(f"--min-improvement {text}: it is a share, such as 3% or 0.03")
    return value


def _numbers(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise TileError(f"--gpus {text}: it is numbers of GPUs, such as 0,1")
    return [int(each) for each in text.split(",")]
