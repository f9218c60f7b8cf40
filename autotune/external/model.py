"""What files of tuned configurations have in common, whoever writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tiledsl import strict_json
from tiledsl.errors import TileError
from tiledsl.files import read_file

Rule = Literal["exact", "at most", "at least", "any", "nearest"]
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class ExternalEntry:
    """A configuration and what it is for.

    arguments: of the problem, with the number of the bucket among them. rule: how that number is meant: the wanted one
    is it, at most it, at least it, nearest to it, or any. latency_ms: milliseconds; None where the file has none. rest:
    what only this format has, as it stood.
    """

    arguments: dict[str, Any]
    config: dict[str, Any]
    rule: Rule = "exact"
    latency_ms: float | None = None
    rest: dict[str, Any] = field(default_factory=dict)

    @property
    def works(self) -> bool:
        """Whether it is worth running: files that have times have failures, too."""
        return self.latency_ms is not None or not self.rest.keys() & {"cells", "result"}


@dataclass(frozen=True)
class ExternalFile:
    """A file. kernel: what it is for, as its name says; target: an architecture such as gfx942, or the GPU's name;
    bucket: the argument that an entry's rule is about; rest: as an entry's."""

    format: str
    kernel: str
    target: str
    entries: tuple[ExternalEntry, ...]
    bucket: str = "M"
    rest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """A kind of file. owns: whether a path has the name of one; read: TileError for what is damaged; write: the content
    of a file; name_of: the name under which its readers look for it."""

    name: str
    owns: Callable[[Path], bool]
    read: Callable[[Path], ExternalFile]
    write: Callable[[ExternalFile], bytes]
    name_of: Callable[[ExternalFile], str]


def damaged(path: Path, key: str, what: str) -> TileError:
    """The error for a file that makes no sense at a key."""
    return TileError(f"{path}: {key}: {what}" if key else f"{path}: {what}")


def content_of(path: Path) -> bytes:
    """The bytes of a file. TileError if it cannot be read."""
    try:
        return read_file(path)
    except (OSError, ValueError) as error:
        raise TileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. TileError for anything else, and for a name that comes twice."""
    content = content_of(path)
    try:
        data = strict_json.parse(content)
    except strict_json.NONSENSE as error:
        raise damaged(path, "", f"not strict JSON: {error}") from None
    if not isinstance(data, dict):
        raise damaged(path, "", f"it holds a {type(data).__name__}, not an object")
    repeated = strict_json.repeated_names(content)
    if repeated:
        raise damaged(path, repeated[0], "it comes twice in one object")
    return data


def config_at(path: Path, key: str, value: Any) -> dict[str, Any]:
    """A configuration: an object of plain values, not empty."""
    if not isinstance(value, dict) or not value:
        raise damaged(path, key, f"it is {str(value)[:40]!r}, not an object of tunables")
    strange = [name for name, each in value.items() if not isinstance(each, _PLAIN)]
    if strange:
        raise damaged(path, f"{key}.{strange[0]}", f"it is {str(value[strange[0]])[:40]!r}, no plain value")
    return dict(value)


def whole_number(path: Path, key: str, text: str) -> int:
    """The number that a key names."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise damaged(path, key, f"{text!r} is no whole number from 1 on")
    return int(text)


def matching(entries: Sequence[ExternalEntry], bucket: str, wanted: Mapping[str, Any]) -> ExternalEntry | None:
    """The entry that its own project's lookup takes for these arguments. None if there is none.

    Entries that say other values of arguments than those wanted do not count. Then: the same number; the least "at
    most" that is not below it; the greatest "at least" that is not above it; the nearest, of equally near ones the
    first; any, the fastest where times are known.
    """
    fitting = [
        entry for entry in entries
        if entry.works
        and all(name == bucket or wanted.get(name, value) == value for name, value in entry.arguments.items())
    ]  # fmt: skip
    number = wanted.get(bucket)
    by_rule: dict[str, list[ExternalEntry]] = {}
    for entry in fitting:
        by_rule.setdefault(entry.rule, []).append(entry)
    if number is not None:
        for entry in by_rule.get("exact", []):
            if entry.arguments.get(bucket, number) == number:
                return entry
        above = [entry for entry in by_rule.get("at most", []) if entry.arguments[bucket] >= number]
        if above:
            return min(above, key=lambda entry: entry.arguments[bucket])
        below = [entry for entry in by_rule.get("at least", []) if entry.arguments[bucket] <= number]
        if below:
            return max(below, key=lambda entry: entry.arguments[bucket])
        near = by_rule.get("nearest", [])
        if near:
            return min(near, key=lambda entry: abs(entry.arguments[bucket] - number))
    return min(by_rule.get("any", []), key=lambda entry: entry.latency_ms or 0.0, default=None)
