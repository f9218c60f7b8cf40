"""`tiledsl cache`: list, show, compare, explain and clear what the autotuner remembers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tiledsl.commands.report import give, gives, in_json
from tiledsl.commands.table import print_table, printable
from tiledsl.errors import TileError
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.storage.cache import CacheEntry
    from tiledsl.autotuner.storage.comparison import ComparedConfig, ConfigComparison

_MOST_TRIALS = 50


@click.group()
def cache() -> None:
    """List, show, compare, explain and clear what the autotuner remembers."""


@gives("entries")
@cache.command("list")
@click.argument("kernel", required=False)
def list_(kernel: str | None) -> None:
    """List what is remembered, of KERNEL or of all, the newest first."""
    found = _entries(None) if kernel is None else _chosen(kernel)
    rows = []
    for entry in found:
        best = entry.best()
        winner = _winner(best)
        tried = len(entry.trials())
        about = {"kernel": entry.kernel, "key": entry.digest, "folder": entry.folder, "trials": tried}
        about |= {"latency_kind": None if best is None else best["latency_kind"], "modified": entry.modified}
        give(entries=[{**about, "bytes": entry.size(), "best": winner}])
        rows.append(
            [
                entry.kernel,
                entry.digest[:12],
                str(tried),
                _config(winner) if winner else "not finished" if best is None else "?",
                _milliseconds(winner, best),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.modified)),
                _size(entry.size()),
            ]
        )
    if rows:
        print_table(["kernel", "key", "configs", "best", "ms", "date", "size"], rows, "llrlrlr")
    else:
        click.echo(f"nothing is remembered in {current().cache_dir / 'autotune'}")


@gives("kernel", "key", "folder", "fields", "result", "trials")
@cache.command()
@click.argument("name", metavar="KERNEL[/KEY]")
@click.option("--all", "everything", is_flag=True, help=f"Every trial, not just the first {_MOST_TRIALS}.")
def show(name: str, everything: bool) -> None:
    """Show a result's key, trials and files; of the newest key if none is named. The first digits of a key will do."""
    entry = _chosen(name)[0]
    best = entry.best()
    kind = best["latency_kind"] if best else "not finished"
    click.echo(f"{entry.kernel}/{entry.digest} ({kind})\n{printable(str(entry.folder))}")
    for field, value in entry.fields.items():
        items = value.items() if isinstance(value, Mapping) else ()
        text = ", ".join(f"{n}={_text(v)}" for n, v in items) if isinstance(value, Mapping) else _text(value)
        click.echo(f"  {printable(str(field))}: {text}")
    winner = _winner(best)
    trials = sorted(
        entry.trials().values(), key=lambda record: (record["status"] != "ok", record.get("latency") or 0.0)
    )
    give(kernel=entry.kernel, key=entry.digest, folder=entry.folder, fields=entry.fields or None)
    give(result=None if best is None else {"latency_kind": kind, "best": winner}, trials=trials)
    rows = []
    for record in trials if everything else trials[:_MOST_TRIALS]:
        mark = "*" if winner is not None and record["key"] == winner["key"] else ""
        message = (str(record.get("message") or "").strip().splitlines() or [""])[0]
        rows.append([mark, _config(record), record["status"], _milliseconds(record, best), printable(message)[:80]])
    if rows:
        print_table(["", "configuration", "status", "ms", "message"], rows, "lllrl")
    if len(rows) < len(trials):
        click.echo(f"and {len(trials) - len(rows)} more; --all shows them")


@gives("problems", "rows")
@cache.command()
@click.argument("kernel")
@click.option("--csv", "path", type=click.Path(dir_okay=False), metavar="FILE", help="Write all rows there, in ms.")
@click.option("--all", "everything", is_flag=True, help=f"Every configuration, not just the first {_MOST_TRIALS}.")
def table(kernel: str, path: str | None, everything: bool) -> None:
    """Compare configurations over all problems that KERNEL was tuned for: which one is good everywhere.

    Cells are times the best time of the problem; mean is geometric. Configurations known for most problems come first.
    """
    from tiledsl.autotuner.storage.comparison import compare_entries

    comparison = compare_entries(_chosen(kernel))
    if not comparison.rows:
        raise TileError(f"no configuration of {kernel!r} has a time")
    of_problems = [{"problem": name, "best": best} for name, best in zip(comparison.problems, comparison.best)]
    give(problems=of_problems)
    give(rows=[{**asdict(row), "mean": row.mean, "worst": row.worst} for row in comparison.rows])
    for number, (problem, best) in enumerate(zip(comparison.problems, comparison.best), 1):
        click.echo(f"{number}: {printable(problem)}, best {best:.4f} ms")
    rows = []
    for row in comparison.rows if everything else comparison.rows[:_MOST_TRIALS]:
        rows.append([_config({"config": row.config}), f"{row.mean:.3f}", f"{row.worst:.3f}", *row.cells(3)])
    numbers = [str(number) for number in range(1, len(comparison.problems) + 1)]
    print_table(["configuration", "mean", "worst", *numbers], rows, "l" + "r" * (len(numbers) + 2))
    if len(rows) < len(comparison.rows):
        click.echo(f"and {len(comparison.rows) - len(rows)} more; --all shows them")
    if path is not None:
        _write_csv(comparison, path)


def _write_csv(found: ConfigComparison, path: str) -> None:
    def cells(row: ComparedConfig) -> list[str]:
        times = ["" if each is None else f"{each:.6f}" for each in row.milliseconds]
        return [f"{row.mean:.4f}", f"{row.worst:.4f}", *times]

    try:
        with open(path, "w", encoding="utf-8", newline="\r\n") as file:
            file.write(found.as_csv(["mean", "worst", *(f"ms: {problem}" for problem in found.problems)], cells))
    except OSError as error:
        raise TileError(f"cannot write {path} ({error})") from None


@cache.command()
@click.argument("program", metavar="KERNEL[/KEY] | FILE:FUNCTION")
@click.option("-D", "values", multiple=True, metavar="NAME=VALUE", help="An argument of the call; repeat for more.")
def explain(program: str, values: tuple[str, ...]) -> None:
    """Say which fields of the key keep a result from being used.

    \b
    FILE:FUNCTION  the key of a call of an autotuned function with the -D arguments, against those stored
    KERNEL[/KEY]   the stored keys of a kernel, against this machine and the newest of them
    """
    from tiledsl.autotuner.storage.cache import explain as explain_key
    from tiledsl.commands.autotuned import find_autotuned
    from tiledsl.commands.lower import parse_value, split_function

    file, function = split_function(program)
    if not (file.suffix or function or file.is_file()):
        _say(_explain_stored(_chosen(program)))
        return
    key = find_autotuned(program).key(**dict(map(parse_value, values)))
    if key is None:
        _say("this call is not remembered: caching is off, or an argument has no text that tells it from others")
    else:
        _say(explain_key(current().cache_dir, key))


def _say(text: str) -> None:
    give(text=text)
    click.echo(printable(text, keep="\n"))


@gives("deleted")
@cache.command()
@click.argument("name", metavar="[KERNEL[/KEY]]", required=False)
@click.option(
    "--older-than", type=click.FloatRange(min=0), metavar="DAYS", help="Only what has not been written since."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(name: str | None, older_than: float | None, yes: bool) -> None:
    """Delete what is remembered: of KERNEL, one key, or all."""
    from tiledsl.autotuner.storage.cache import clear as delete

    results = _entries(None) if name is None else _chosen(name)
    if older_than is not None:
        results = [entry for entry in results if entry.modified < time.time() - older_than * 86400]
    if not results:
        give(deleted=0)
        click.echo("nothing to delete")
        return
    size = sum(entry.size() for entry in results)
    if in_json() and not yes:
        raise TileError("--json asks nothing: add --yes to delete")
    if not yes:
        click.confirm(f"delete {len(results)} results ({_size(size)})?", abort=True)
    count = delete(results)
    give(deleted=count)
    click.echo(f"deleted {count} results")


def _entries(kernel: str | None) -> list[CacheEntry]:
    from tiledsl.autotuner.storage.cache import entries

    return entries(current().cache_dir, kernel)


def _chosen(name: str) -> list[CacheEntry]:
    """The entries that KERNEL or KERNEL/KEY names. TileError if there are none."""
    kernel, _, digits = name.partition("/")
    found = [entry for entry in _entries(kernel) if entry.digest.startswith(digits)] if kernel else []
    if not found:
        known = sorted({entry.kernel for entry in _entries(None)})
        raise TileError(f"nothing is remembered for {name!r}", notes=["there is " + (", ".join(known) or "nothing")])
    return found


def _explain_stored(found: Sequence[CacheEntry]) -> str:
    """How a kernel's keys differ from the newest, and that from this machine."""
    from tiledsl.autotuner.storage.key import difference_lines, environment
    from tiledsl.runtime.target import Target

    newest, *others = [entry for entry in found if entry.fields] or [found[0]]
    lines = [f"{newest.kernel}/{newest.digest}, the newest"]
    if not newest.fields:
        return f"{lines[0]}: its key.json makes no sense"
    try:
        target = Target.parse(str(newest.fields.get("target")))
        here = environment(target, measured=target.kind != "interpret" and target.runs_here)
    except TileError:
        here = {}
    changed = difference_lines({name: newest.fields.get(name) for name in here}, here)
    if newest.best() is None:
        lines.append("  not finished; a call that is tuned anew goes on from its trials")
    lines += [f"  {line}" for line in changed] or ["  nothing of this machine keeps it from being used"]
    for entry in others[:10]:
        differing = difference_lines(entry.fields, newest.fields)
        lines += [f"{entry.kernel}/{entry.digest} differs from it in", *(f"  {line}" for line in differing)]
    return "\n".join(lines)


def _winner(best: Mapping[str, Any] | None) -> dict[str, Any] | None:
    for record in best["trials"] if best else ():
        if isinstance(record, dict) and best is not None and record.get("key") == best["best"]:
            return record
    return None


def _config(record: Mapping[str, Any]) -> str:
    config = record.get("config")
    items = config.items() if isinstance(config, Mapping) else ()
    return " ".join(f"{printable(str(name))}={_text(value)}" for name, value in items)


def _milliseconds(record: Mapping[str, Any] | None, best: Mapping[str, Any] | None) -> str:
    latency = record.get("latency") if record else None
    if isinstance(latency, bool) or not isinstance(latency, (int, float)):
        return "-"
    return f"{latency:.4f}" + (" (estimated)" if best and best["latency_kind"] == "estimated" else "")


def _text(value: Any) -> str:
    text = printable(value if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
