"""The files of compiled kernels, wherever they are kept: `<name>.<level>` for each level, and a JSON file about them.

What the JSON file says is for those who keep them: `levels/record` what running a level needs, `launch_stored` which
launch takes a binary, the tuner's `storage/artifacts` what a winner became. Each says the digests of the levels by
name, is written when they are there, and counts for nothing where they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tiledsl.digests import digest
from tiledsl.files import read_file, write_file

LEVELS = ("ttir", "ttgir", "llir", "ptx", "cubin", "amdgcn", "hsaco")
BINARIES = ("cubin", "hsaco")


def contents(compiled: Any, levels: Iterable[str] = LEVELS) -> dict[str, bytes]:
    """The levels that a compiled kernel has (Triton's or a CompiledKernel), in their order, as files hold them."""
    texts = {level: compiled.asm[level] for level in levels if level in compiled.asm}
    return {level: bytes(text) if level in BINARIES else str(text).encode() for level, text in texts.items()}


def digests(files: Mapping[str, bytes]) -> dict[str, str]:
    """The SHA-256 of each, as JSON files say them."""
    return {suffix: digest(data) for suffix, data in files.items()}


def write(folder: Path, name: str, files: Mapping[str, bytes], described: bytes | None = None) -> list[Path]:
    """Write files by their suffixes, what describes them last; the paths. Raises OSError."""
    whole = {**files, **({} if described is None else {"json": described})}
    paths = [folder / f"{name}.{suffix}" for suffix in whole]
    for path, data in zip(paths, whole.values(), strict=True):
        write_file(path, data)
    return paths


def read(folder: Path, name: str, expected: Mapping[str, str]) -> dict[str, tuple[Path, bytes]]:
    """Files by their suffixes, which only the user (or root) may have written. OSError if one is missing, ValueError if
    its digest is not the expected one."""
    files = {}
    for suffix, wanted in expected.items():
        path = folder / f"{name}.{suffix}"
        data = read_file(path, own=True)
        if digest(data) != wanted:
            raise ValueError(f"{path} has been changed")
        files[suffix] = path, data
    return files
