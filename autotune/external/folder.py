"""Lookups straight from files of other projects, without a conversion."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tiledsl.autotuner.external import aiter, moe, t4
from tiledsl.autotuner.external.model import ExternalFile, Format, matching
from tiledsl.errors import TileError

FORMATS: dict[str, Format] = {each.name: each for each in (moe.MOE, t4.T4, aiter.JSON, aiter.CSV)}


@dataclass(frozen=True)
class ExternalMatch:
    """What serves a problem. config: the holder's own; path: the file; rule: as an entry's; is_tuned: whether the entry
    is for such numbers, not for any."""

    config: dict[str, Any]
    path: Path
    rule: str
    latency_ms: float | None

    @property
    def is_tuned(self) -> bool:
        return self.rule != "any"


def format_of(path: Path, name: str | None = None) -> Format:
    """The format of a file, by its name unless it is given. TileError if there is none."""
    if name is not None:
        if name not in FORMATS:
            raise TileError(f"there is no format {name!r}", notes=[f"there are {', '.join(FORMATS)}"])
        return FORMATS[name]
    found = next((each for each in FORMATS.values() if each.owns(path)), None)
    if found is None:
        raise TileError(f"{path} has the name of no known format", notes=[f"say which: {', '.join(FORMATS)}"])
    return found


def read_external(path: str | os.PathLike[str], format: str | None = None) -> ExternalFile:
    """A file of another project: aiter's JSON ("aiter") or CSV ("aiter-csv"), fused MoE of vLLM and SGLang ("moe"), or
    T4 ("t4"); by default its name says which. TileError for one that is damaged, with the key."""
    return format_of(Path(path), format).read(Path(path))


class ExternalConfigs:
    """The files of a folder. They are read once, all of one format or each of that which its name says.

    Example: `ExternalConfigs("configs").lookup("GEMM-A8W8", M=17, N=1024, K=512)`
    """

    def __init__(self, folder: str | os.PathLike[str], format: str | None = None) -> None:
        """TileError for what is no folder."""
        self.folder, self.format = Path(folder), format
        if not self.folder.is_dir():
            raise TileError(f"there is no folder {folder}")
        if format is not None:
            format_of(self.folder, format)

    @cached_property
    def files(self) -> dict[Path, ExternalFile]:
        """The files by their paths. TileError if one is damaged."""
        formats = FORMATS.values() if self.format is None else [FORMATS[self.format]]
        by_path = {}
        for path in sorted(self.folder.iterdir()):
            owner = next((each for each in formats if path.is_file() and each.owns(path)), None)
            if owner is not None:
                by_path[path] = owner.read(path)
        return by_path

    def lookup(self, kernel: str | None = None, target: str | None = None, **arguments: Any) -> ExternalMatch | None:
        """What the files' own project would run for these arguments; None if there is nothing.

        kernel, target: as the files' names say them; None: of any. Files that say more of the arguments come first, and
        what is for such numbers before what is for any.
        """
        best: tuple[tuple[bool, int], ExternalMatch] | None = None
        for path, file in self.files.items():
            if (kernel is not None and file.kernel != kernel) or (
                target is not None and not _same(file.target, target)
            ):
                continue
            entry = matching(file.entries, file.bucket, arguments)
            if entry is None:
                continue
            merit = (entry.rule != "any", sum(name in arguments for name in entry.arguments))
            if best is None or merit > best[0]:
                match = ExternalMatch(copy.deepcopy(entry.config), path, entry.rule, entry.latency_ms)
                best = (merit, match)
        return None if best is None else best[1]


def _same(one: str, other: str) -> bool:
    return one.replace(" ", "_") == other.replace(" ", "_")


def renamed(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Values under other names. TileError if two would have one name."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        new = names.get(name, name)
        if new in values:
            raise TileError(f"two values would be named {new!r}")
        values[new] = value
    return values
