"""A folder with a kernel's files: `<name>.<level>` for each level, and `<name>.json` with what running them needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.digests import digest
from tiledsl.errors import TileError
from tiledsl.files import writing
from tiledsl.levels import metadata
from tiledsl.levels.record import Argument, Record, parsed
from tiledsl.runtime import kernel_files
from tiledsl.runtime.compile import CompiledKernel
from tiledsl.runtime.kernel_files import BINARIES, LEVELS


@dataclass(frozen=True)
class LevelFile:
    """A kernel at one level. `record` is what its JSON file says, `path` where it lies; None where there is none."""

    level: str
    data: bytes
    record: Record | None = None
    path: Path | None = None

    @property
    def what(self) -> str:
        """Its name in messages."""
        return f"the given {self.level}" if self.path is None else str(self.path)

    @property
    def digest(self) -> str:
        return digest(self.data)

    @property
    def content(self) -> str | bytes:
        return self.data if self.level in BINARIES else self.data.decode(errors="replace")


def save(
    folder: Path, name: str, compiled: CompiledKernel, arguments: Sequence[Argument], language: str, source: str
) -> list[Path]:
    """Write a compiled kernel's levels and, last, its JSON file; the paths. Raises TileError if it cannot."""
    files = kernel_files.contents(compiled)
    record = record_of(compiled, files, arguments, language, source)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return kernel_files.write(folder, name, files, record.text().encode())


def record_of(
    compiled: CompiledKernel, files: Mapping[str, bytes], arguments: Sequence[Argument], language: str, source: str
) -> Record:
    """What is known of a compiled kernel. files: its levels; source: the digest of its module's text."""
    target = compiled.target.triton_target()
    described = {"backend": target.backend, "arch": target.arch, "warp_size": target.warp_size}
    return Record(
        str(compiled.name),
        compiled.target,
        {**compiled.metadata, "target": described},
        compiled.options,
        tuple(arguments),
        metadata.read("cubin", files["cubin"]).parameter_bytes if "cubin" in files else None,
        language,
        source,
        kernel_files.digests(files),
    )


def check_level(level: Any) -> str:
    """The level's name. TileError for what is none."""
    if level not in LEVELS:
        raise TileError(f"there is no level {level!r}", notes=[f"the levels are {', '.join(LEVELS)}"])
    return str(level)


def is_content(given: Any) -> bool:
    """Whether it is a level itself, not a path to one."""
    return isinstance(given, (bytes, bytearray)) or (isinstance(given, str) and "\n" in given)


def folder_path(given: Any) -> Path:
    """The folder that is given. TileError for what names none."""
    if not isinstance(given, (str, os.PathLike)):
        raise TileError(f"a folder is named by a path, not by {type(given).__name__}")
    return Path(given)


def open_level(level: str, given: Any, name: str) -> LevelFile:
    """The file of a kernel at a level, with the JSON file beside it if there is one. TileError if it is missing."""
    if is_content(given):
        return LevelFile(level, given.encode() if isinstance(given, str) else bytes(given))
    if not isinstance(given, (str, os.PathLike)):
        raise TileError(f"{level} of {name} is {type(given).__name__}; it is a path, or the text itself")
    path = Path(given)
    if os.path.isdir(path):  # which takes a name that is too long for one that is not there
        path = path / f"{name}.{level}"
    if not os.path.isfile(path):
        raise TileError(f"there is no file {path}", notes=_there_are(path.parent))
    if path.suffix != f".{level}":
        raise TileError(f"{path} is not named as a {level}", notes=[f"its name ends with .{level}, or say its level"])
    beside = (path.with_suffix(".json"), path.with_name(f"{name}.json"))
    described = next((each for each in beside if each.is_file()), None)
    try:
        data = path.read_bytes()
        record = None if described is None else parsed(described.read_bytes(), str(described))
    except OSError as error:
        raise TileError(f"{error.filename} cannot be read: {error.strerror}") from None
    return LevelFile(level, data, record, path.absolute())


def _there_are(folder: Path) -> list[str]:
    if not os.path.isdir(folder):
        return []
    found = sorted(each.name for each in folder.iterdir() if each.suffix[1:] in (*LEVELS, "json"))
    return [f"{folder} has {', '.join(found[:12]) or 'no level of a kernel'}"]
