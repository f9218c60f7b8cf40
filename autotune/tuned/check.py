"""What is wrong with a tuned-config file, for people and for CI."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tiledsl import strict_json
from tiledsl.autotuner.tuned.arguments import mismatch_reason
from tiledsl.autotuner.tuned.entry import arguments_text, as_text, order_of
from tiledsl.autotuner.tuned.file import TunedFile, parse
from tiledsl.files import read_file

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction


@dataclass(frozen=True)
class FileProblem:
    """One thing that is wrong: an "error", which run time would stumble over, or a "warning"."""

    path: Path
    severity: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.severity}: {self.message}"


def check(path: Path, function: AutotunedFunction | None = None, allow_stale: bool = False) -> list[FileProblem]:
    """What is wrong with a file; with the function that it is of also tunables that it does not have, and entries that
    were tuned for another source of it: an error if no other entry is left, unless `allow_stale`."""
    try:
        content = read_file(path)
        repeated = strict_json.repeated_names(content)
        file = parse(content)
    except (OSError, *strict_json.NONSENSE) as error:
        return [FileProblem(path, "error", str(error))]
    problems = [FileProblem(path, "error", f"the name {name!r} comes twice in one object") for name in repeated]
    problems += [FileProblem(path, "error", message) for message in file.problems]
    problems += [FileProblem(path, "error", message) for message in _errors(path, file, function)]
    problems += [FileProblem(path, "warning", message) for message in _warnings(file, function)]
    stale = 0 if function is None else _stale(file, function)
    if stale:
        text = f"{stale} of {len(file.entries)} entries are for another source of {file.function}: they are not used"
        useless = stale == len(file.entries) and not allow_stale
        problems.append(FileProblem(path, "error" if useless else "warning", text))
    return problems


def _stale(file: TunedFile, function: AutotunedFunction) -> int:
    """How many entries were tuned for another source of the function."""
    if function.name != file.function:
        return 0
    return sum(each.source != function.tuned_configs.source(frozenset(each.config)) for each in file.entries)


def _errors(path: Path, file: TunedFile, function: AutotunedFunction | None) -> Iterator[str]:
    if path.name != file.name:
        yield f"the file should be named {file.name}, or it is not found"
    for (arguments, gpu), count in Counter(entry.identity for entry in file.entries).items():
        if count > 1:
            where = f" on {gpu}" if gpu else ""
            yield f"{count} entries are for {arguments_text(json.loads(arguments))}{where}"
    if file.entries and file.default is None:
        yield "there is no default"
    if not file.entries:
        yield "there are no entries"
    if function is None:
        return
    if function.name != file.function:
        yield f"it is of {file.function}, not of {function.name}"
        return
    for entry in file.entries:
        reason = mismatch_reason(function, entry.config)
        if reason:
            yield f"the configuration for {arguments_text(entry.arguments)} {reason}"
        unknown = [name for name in entry.arguments if name in entry.config]
        if unknown:
            yield f"{unknown[0]} is an argument and a tunable of the entry for {arguments_text(entry.arguments)}"
    if file.default is not None and (reason := mismatch_reason(function, file.default.config)):
        yield f"the default {reason}"


def _warnings(file: TunedFile, function: AutotunedFunction | None) -> Iterator[str]:
    if [order_of(entry) for entry in file.entries] != sorted(order_of(entry) for entry in file.entries):
        yield "the entries are not sorted; tiledsl tuned merge writes them so"
    configs = {as_text(entry.config) for entry in file.entries}
    if file.default is not None and file.entries and as_text(file.default.config) not in configs:
        yield "the default is no entry's configuration"
    sources = Counter(entry.source for entry in file.entries)
    if len(sources) > 1 and len({frozenset(entry.config) for entry in file.entries}) == 1:
        yield f"entries are of {len(sources)} sources of {file.function}; those of older ones are not used"
    tunables = Counter(name for entry in file.entries for name in entry.config)
    some = [name for name, count in tunables.items() if count < len(file.entries)]
    if some and function is None:
        yield f"only {tunables[some[0]]} of {len(file.entries)} entries set {some[0]}"
