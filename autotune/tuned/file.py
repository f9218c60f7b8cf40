"""A tuned-config file: strict JSON, a file for each function and GPU architecture, written whole, changed under a lock.

<folder>/matmul_relu-sm_90.json             the entries, sorted, and the default configuration
<folder>/matmul_relu-sm_90.trials.jsonl     every configuration that was tried; not needed at run time, see trials
<folder>/.matmul_relu-sm_90.lock            held while one of them is written
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tiledsl import strict_json
from tiledsl.autotuner.storage.key import folder_name
from tiledsl.autotuner.tuned import entry as entries
from tiledsl.autotuner.tuned.entry import TunedEntry
from tiledsl.errors import TileError
from tiledsl.files import read_file, write_file, writing
from tiledsl.runtime.target import Target

SCHEMA = 1
BY_HAND = "by hand"  # `why` of a default that stays when entries change


@dataclass(frozen=True)
class Default:
    """The configuration for arguments that no entry is near to. why: how it was chosen; source: as an entry's."""

    config: dict[str, Any]
    source: str
    why: str


@dataclass(frozen=True)
class TunedFile:
    """The content of a file. target: the architecture, as in the file's name."""

    function: str
    target: str
    entries: tuple[TunedEntry, ...] = ()
    default: Default | None = None
    problems: tuple[str, ...] = field(default=(), compare=False)  # what reading it found wrong, entry by entry

    @property
    def name(self) -> str:
        """The name that the file should have."""
        return f"{folder_name(self.function)}-{self.target}.json"

    def with_entry(self, entry: TunedEntry) -> TunedFile:
        """The file with an entry in place of those for the same arguments and GPU."""
        others = [each for each in self.entries if each.identity != entry.identity]
        return replace(self, entries=tuple(sorted([*others, entry], key=entries.order_of)))


def architecture(target: Target) -> str:
    """A target as it stands in a file's name: sm_90, gfx942, interpret."""
    return f"sm_{target.arch}" if target.kind == "cuda" else str(target.arch or target.kind)


def path_of(folder: Path, function: str, target: Target) -> Path:
    """The file of a function and a target in a folder."""
    return folder / TunedFile(function, architecture(target)).name


def trials_path(path: Path) -> Path:
    """The file beside a tuned-config file that has every configuration that was tried."""
    return path.with_suffix(".trials.jsonl")


def parse(content: bytes) -> TunedFile:
    """The content of a file; entries that make no sense are left out and told in `problems`. ValueError if nothing of
    it makes sense."""
    try:
        data = strict_json.parse(content)
    except strict_json.NONSENSE as error:
        raise ValueError(f"not strict JSON: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not a tuned-config file of schema {SCHEMA}")
    for name in ("function", "target"):
        if not isinstance(data.get(name), str) or not data[name]:
            raise ValueError(f"{name} is no text")
    if not isinstance(data.get("entries"), list):
        raise ValueError("entries is no list")
    problems: list[str] = []
    unknown = [name for name in data if name not in ("schema", "function", "target", "default", "entries")]
    problems += [f"{name!r} is no field of a file" for name in unknown]
    entries_there: list[TunedEntry] = []
    for place, each in enumerate(data["entries"], 1):
        try:
            entries_there.append(entries.decode(each))
        except ValueError as error:
            problems.append(f"entry {place}: {error}")
    default = None
    if data.get("default") is not None:
        try:
            default = _default(data["default"])
        except ValueError as error:
            problems.append(str(error))
    return TunedFile(data["function"], data["target"], tuple(entries_there), default, tuple(problems))


def _default(data: Any) -> Default:
    if not isinstance(data, dict) or sorted(data) != ["config", "source", "why"]:
        raise ValueError("default has not the fields config, source and why")
    if not isinstance(data["config"], dict) or not all(isinstance(data[name], str) for name in ("source", "why")):
        raise ValueError("default.config is no object, or default.source or default.why no text")
    return Default(**data)


def read(path: Path) -> TunedFile:
    """The content of the file at `path`. OSError, or ValueError if nothing of it makes sense."""
    return parse(read_file(path))


def dump(file: TunedFile) -> bytes:
    """A file's text: an entry after the other, a field a line, so that a changed entry is a small difference."""
    head = {"schema": SCHEMA, "function": file.function, "target": file.target}
    if file.default is not None:
        head["default"] = {"config": file.default.config, "source": file.default.source, "why": file.default.why}
    lines = [f" {_line(name, value)}," for name, value in head.items()]
    shown = [entries.encode(each) for each in sorted(file.entries, key=entries.order_of)]
    texts = ["  {\n" + ",\n".join(f"   {_line(n, e[n])}" for n in entries.ORDER if n in e) + "\n  }" for e in shown]
    listed = "[\n" + ",\n".join(texts) + "\n ]" if texts else "[]"
    return "\n".join(["{", *lines, f' "entries": {listed}', "}\n"]).encode()


def _line(name: str, value: Any) -> str:
    return f"{json.dumps(name)}: {json.dumps(value, allow_nan=False)}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing the file meanwhile. TileError if the folder cannot be written."""
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(f".{path.stem}.lock"))
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TileError(f"{path} cannot be written: {reason}") from error
    try:
        yield
    finally:
        lock.release()


def read_or_new(path: Path, function: str, target: str) -> TunedFile:
    """The file, or an empty one where there is none. TileError for one that must not be written over: it makes no
    sense in places, or is another function's."""
    try:
        stored = read(path)
    except FileNotFoundError:
        return TunedFile(function, target)
    except OSError as error:
        raise TileError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TileError(f"{path} makes no sense: {error}", notes=["correct or delete it"]) from error
    if stored.problems:
        raise TileError(f"{path} makes no sense: {stored.problems[0]}", notes=["correct it; tiledsl tuned check"])
    if (stored.function, stored.target) != (function, target):
        raise TileError(f"{path} is of {stored.function} on {stored.target}, not of {function} on {target}")
    return stored


def change(path: Path, function: str, target: str, edit: Callable[[TunedFile], TunedFile]) -> TunedFile:
    """Replace the file by what `edit` makes of it, in one step. TileError as read_or_new, or if that is impossible."""
    with locked(path):
        before = read_or_new(path, function, target)
        after = edit(before)
        if after != before:
            write(path, after)
    return after


def write(path: Path, file: TunedFile) -> None:
    """Write a file in one step, for all to read. TileError if it cannot be written."""
    with writing(path):
        write_file(path, dump(file), mode=0o644)


def files_in(places: Sequence[Path]) -> list[Path]:
    """The tuned-config files that are named, or lie in folders that are. TileError for what is not there."""
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            files += sorted(each for each in place.glob("*.json") if not each.name.startswith("."))
        elif place.is_file():
            files.append(place)
        else:
            raise TileError(f"there is no file or folder {place}")
    return files


def most_common(file: TunedFile) -> Default | None:
    """The configuration that most entries have; of equally common ones that of the largest arguments."""
    counts: dict[str, list[TunedEntry]] = {}
    for each in sorted(file.entries, key=entries.order_of):
        counts.setdefault(entries.as_text(each.config), []).append(each)
    if not counts:
        return None
    chosen = max(counts.values(), key=lambda same: (len(same), entries.order_of(same[-1])))
    return Default(
        dict(chosen[-1].config), chosen[-1].source, f"most common, of {len(chosen)} of {len(file.entries)} entries"
    )


def merged(files: Sequence[TunedFile]) -> TunedFile:
    """One file with the entries of all: for the same arguments and GPU that of the newer source, or of one source the
    best, see TunedEntry.is_better_than. The first file's default stays if it was chosen by hand. TileError for files of
    different functions or architectures."""
    first = files[0]
    best: dict[tuple[str, str], TunedEntry] = {}
    for file in files:
        if (file.function, file.target) != (first.function, first.target):
            raise TileError(
                f"files of {first.function} on {first.target} and of {file.function} on {file.target} do not merge"
            )
        for each in file.entries:
            known = best.get(each.identity)
            if known is None or _replaces(each, known):
                best[each.identity] = each
    result = replace(first, entries=tuple(sorted(best.values(), key=entries.order_of)), problems=())
    keeps = first.default is not None and first.default.why == BY_HAND
    return result if keeps else replace(result, default=most_common(result))


def _replaces(one: TunedEntry, other: TunedEntry) -> bool:
    return one.is_better_than(other) if one.source == other.source else one.tuned_at > other.tuned_at
