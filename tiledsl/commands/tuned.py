"""`tiledsl tuned`: list, check, compare and merge tuned-config files."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiledsl.commands.report import give, gives
from tiledsl.commands.table import print_table, printable
from tiledsl.errors import TileError
from tiledsl.files import write_output, writing

if TYPE_CHECKING:
    from tiledsl.autotuner.tuned.file import TunedFile

_PATHS = click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER...", type=click.Path(path_type=Path))
_PROGRAM = click.option("--program", default=None, metavar="FILE.py:FUNCTION", help="The function that it is of.")


@click.group()
def tuned() -> None:
    """List, check, compare and merge files of tuned configurations, which `tiledsl tune` writes."""


@gives("entries")
@tuned.command("list")
@_PATHS
def list_(paths: tuple[Path, ...]) -> None:
    """List the entries of files."""
    from tiledsl.autotuner.trial import config_text
    from tiledsl.autotuner.tuned.entry import arguments_text

    rows = []
    for path, file in _read(paths):
        give(
            entries=[
                {"file": path, "function": file.function, "target": file.target, **asdict(e)} for e in file.entries
            ]
        )
        for each in file.entries:
            where = each.gpu or file.target
            speed = "-" if not each.reference_ms else f"{each.reference_ms / each.latency_ms:.2f}x"
            rate = [f"{rate:.4g} {unit}" for rate, unit in each.rates]
            latency = f"{each.latency_ms:.4g}{'' if each.measured else ' (estimated)'}"
            latency = "-" if each.latency_kind == "unknown" else latency
            cells = [file.function, where, arguments_text(each.arguments), config_text(each.config), latency, speed]
            rows.append([*map(printable, cells), " ".join(rate[:1]), printable(each.tuned_at[:10])])
    heads = ["function", "on", "arguments", "configuration", "ms", "reference", "rate", "date"]
    print_table(heads, rows, "llllrrrl")


@gives("tables")
@tuned.command()
@_PATHS
@click.option("--csv", "csv", type=click.Path(path_type=Path), default=None, help="Write the table here as CSV.")
def table(paths: tuple[Path, ...], csv: Path | None) -> None:
    """Show configurations against shapes, each time relative to the shape's best, the most robust one first.

    The times are of `...trials.jsonl` beside a file; without it only the winners' are known.
    """
    from tiledsl.autotuner.trial import config_text
    from tiledsl.autotuner.tuned import trials
    from tiledsl.autotuner.tuned.file import trials_path

    found = _read(paths)
    if csv is not None and len(found) != 1:
        raise TileError(f"--csv is for one file; there are {len(found)}")
    for path, file in found:
        compared = trials.compared(file, trials.read(trials_path(path)))
        shown = [{**asdict(row), "mean": row.mean, "worst": row.worst} for row in compared.rows]
        about = {"file": path, "function": file.function, "target": file.target}
        give(tables=[{**about, "problems": list(compared.problems), "best": list(compared.best), "rows": shown}])
        total, heads = len(compared.problems), ["mean", "worst", "works", *compared.problems]
        rows = [
            [config_text(row.config), f"{row.mean:.3f}", f"{row.worst:.2f}", f"{row.known}/{total}", *row.cells(2)]
            for row in compared.rows
        ]
        click.echo(f"{path}: {file.function} on {file.target}")
        cells = [[printable(cell) for cell in row] for row in rows]
        print_table([printable(head) for head in ["configuration", *heads]], cells, "l" + "r" * len(heads))
        if csv is not None:
            content = compared.as_csv(heads, lambda row: [row.mean, row.worst, row.known, *row.slowdowns])
            with writing(csv):
                write_output(csv, content.encode())


@gives("files", "problems")
@tuned.command()
@_PATHS
@_PROGRAM
@click.option("--allow-stale", is_flag=True, help="Only warn where every entry is for another source.")
def check(paths: tuple[Path, ...], program: str | None, allow_stale: bool) -> None:
    """Look for what is wrong with files: nonsense, duplicates, no default, and with --program unknown tunables and a
    file whose entries are all for another source of the function.

    Status 1 for errors, not for warnings. --allow-stale is for a change of the source that is tuned later.
    """
    from tiledsl.autotuner.tuned.check import check as check_file
    from tiledsl.autotuner.tuned.file import files_in
    from tiledsl.commands.autotuned import find_autotuned

    function = None if program is None else find_autotuned(program)
    files = files_in(paths)
    if not files:
        raise _no_file_in(paths)
    problems = [problem for path in files for problem in check_file(path, function, allow_stale)]
    give(files=files, problems=[asdict(problem) for problem in problems])
    for problem in problems:
        click.echo(printable(str(problem)))
    errors = sum(problem.severity == "error" for problem in problems)
    click.echo(f"{len(files)} files: {errors} errors, {len(problems) - errors} warnings")
    if errors:
        raise click.exceptions.Exit(1)


@gives("file", "entries", "passes")
@tuned.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--program", required=True, metavar="FILE.py:FUNCTION", help="The function that it is of.")
@click.option("--target", default=None, help="As for tiledsl tune.")
@click.option("--warn", default=None, type=float, metavar="RATIO", help="Measured over stated time (1.10).")
@click.option("--fail", default=None, type=float, metavar="RATIO", help="From here on the status is 1 (1.15).")
def compare(path: Path, program: str, target: str | None, warn: float | None, fail: float | None) -> None:
    """Measure each entry's configuration here and compare it with the time that the file says: a gate for regressions.

    Status 1 if one regressed or no longer works, or if nothing can be compared: entries of another GPU, or estimates
    where times can be measured.
    """
    from tiledsl.autotuner.tuned import compare as comparing
    from tiledsl.autotuner.tuned.entry import arguments_text
    from tiledsl.commands.autotuned import find_autotuned

    if path.is_dir():
        raise TileError(f"{path} is a folder; name a file of it")
    ((_, file),) = _read((path,))
    function = find_autotuned(program)
    options: dict[str, Any] = {} if target is None else {"target": target}
    limits = {"warn": comparing.WARN if warn is None else warn, "fail": comparing.FAIL if fail is None else fail}
    comparisons = []
    for each in comparing.compare_problem(function, file, **limits, **options):
        comparisons.append(each)
        about = {"verdict": each.verdict, "ratio": each.ratio, "latency_ms": each.latency_ms, "message": each.message}
        give(file=path, entries=[{**about, "entry": asdict(each.entry)}])
        parts = [f"stated {each.entry.latency_ms:.4g} ms"]
        if each.latency_ms is not None:
            parts.append(f"now {each.latency_ms:.4g} ms, {each.ratio:.3f}")
        parts += [each.message] if each.message else []
        click.echo(printable(f"{arguments_text(each.entry.arguments)}: {each.verdict}, {', '.join(parts)}"))
    text, passes = comparing.verdicts(comparisons)
    give(file=path, passes=passes)
    click.echo(f"{path}: {text}")
    if not passes:
        raise click.exceptions.Exit(1)


@gives("file", "entries", "read")
@tuned.command()
@click.argument("output", metavar="OUTPUT", type=click.Path(path_type=Path))
@_PATHS
def merge(output: Path, paths: tuple[Path, ...]) -> None:
    """Merge files of one function and architecture: for the same arguments and GPU, the best entry stays.

    OUTPUT is a file, or a folder, in which the file gets the name under which it is found. Times that were measured
    count before estimates, and entries of a newer source of the function before those of an older one. Beside the
    files, all that was tried is put together, too.
    """
    from tiledsl.autotuner.tuned import trials
    from tiledsl.autotuner.tuned.file import locked, merged, trials_path, write

    found = _read(paths)
    result = merged([file for _, file in found])
    into = output if output.suffix == ".json" else output / result.name
    with locked(into):
        write(into, result)
        trials.join([trials_path(path) for path, _ in found], trials_path(into))
    count = sum(len(file.entries) for _, file in found)
    give(file=into, entries=len(result.entries), read=count)
    click.echo(f"{into}: {len(result.entries)} of {count} entries of {len(found)} files")


_FORMAT = click.option("--format", "format", default=None, help="aiter, aiter-csv, moe or t4; by default of the name.")
_RENAME = click.option("--rename", "names", multiple=True, metavar="OLD=NEW", help="Another name of a value.")


@gives("file", "entries", "read")
@tuned.command("import")
@_PATHS
@click.option("--program", required=True, metavar="FILE.py:FUNCTION", help="The function that takes them.")
@click.option("--into", "folder", required=True, type=click.Path(path_type=Path), help="The folder of the file.")
@click.option(
    "--target", default=None, help="The GPU that they are for, cuda:90 or hip:gfx942; by default the one here."
)
@click.option("--set", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument that the files do not say.")
@_FORMAT
@_RENAME
def import_(
    paths: tuple[Path, ...],
    program: str,
    folder: Path,
    target: str | None,
    arguments: tuple[str, ...],
    format: str | None,
    names: tuple[str, ...],
) -> None:
    """Take over configurations from files of other projects: aiter, vLLM and SGLang (fused MoE), T4.

    Entries that are there already stay where they are better. docs/offline.md says what each format carries.
    """
    from tiledsl.autotuner.external.convert import to_tuned
    from tiledsl.autotuner.external.folder import read_external
    from tiledsl.autotuner.tuned.file import BY_HAND, architecture, change, merged, path_of
    from tiledsl.autotuner.tuned.shapes import parse_value
    from tiledsl.commands.autotuned import find_autotuned
    from tiledsl.kernels.jit import resolve_target

    function, where = find_autotuned(program), resolve_target(target)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    further = {name: parse_value(value) for name, value in _pairs("--set", arguments).items()}
    renaming, place = _pairs("--rename", names), architecture(where)
    imported = [
        to_tuned(read_external(path, format), str(path), function, renaming, further, place, now) for path in paths
    ]
    chosen = next((each.default for each in imported if each.default is not None), None)

    def joined(before: TunedFile) -> TunedFile:
        after = merged([before, *imported])
        keeps = chosen is None or (before.default is not None and before.default.why == BY_HAND)
        return after if keeps else replace(after, default=chosen)

    into = path_of(folder, function.name, where)
    after = change(into, function.name, place, joined)
    read = sum(len(each.entries) for each in imported)
    give(file=into, entries=len(after.entries), read=read)
    click.echo(f"{into}: {len(after.entries)} entries, after {read} of {len(paths)} files")


@gives("files")
@tuned.command("export")
@_PATHS
@click.option("--format", "format", required=True, type=click.Choice(["aiter", "aiter-csv", "moe", "t4"]))
@click.option("--into", "folder", required=True, type=click.Path(path_type=Path), help="The folder of the files.")
@click.option("--bucket", default="M", help="The argument, as it is called there, that tells a file's entries apart.")
@_RENAME
def export(paths: tuple[Path, ...], format: str, folder: Path, bucket: str, names: tuple[str, ...]) -> None:
    """Write tuned-config files as another project reads them."""
    from tiledsl.autotuner.external.convert import from_tuned
    from tiledsl.autotuner.external.folder import FORMATS

    kind, renaming = FORMATS[format], _pairs("--rename", names)
    for _, file in _read(paths):
        for each in from_tuned(file, format, renaming, bucket):
            path = folder / kind.name_of(each)
            content = kind.write(each)
            with writing(path):
                folder.mkdir(parents=True, exist_ok=True)
                write_output(path, content)
            give(files=[{"file": path, "entries": len(each.entries)}])
            click.echo(f"{path}: {len(each.entries)} configurations")


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for each in texts:
        name, sign, value = each.partition("=")
        if not sign or not name or not value:
            raise TileError(f"{option} {each}: write it as NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def _read(paths: tuple[Path, ...]) -> list[tuple[Path, TunedFile]]:
    """The files that are named or lie in folders. TileError for those that make no sense, and if there are none."""
    from tiledsl.autotuner.tuned.file import files_in, read

    files = []
    for path in files_in(paths):
        try:
            file = read(path)
        except (OSError, ValueError) as error:
            raise TileError(f"{path}: {error}") from error
        if file.problems:
            raise TileError(f"{path}: {file.problems[0]}", notes=["tiledsl tuned check says all that is wrong"])
        files.append((path, file))
    if not files:
        raise _no_file_in(paths)
    return files


def _no_file_in(paths: Iterable[Path]) -> TileError:
    return TileError(f"there is no tuned-config file in {', '.join(map(str, paths))}")
