"""Triton's cache entries as text, to bring them from a machine that compiled to the one that tunes."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

from tiledsl.files import write_file

_ENTRY = re.compile(r"[A-Za-z0-9_-]+/[A-Za-z0-9_.-]+")  # <key>/<file>
_GROUP = "__grp__"  # files that name the others of an entry, with their whole paths


def pack(folder: Path) -> dict[str, str]:
    """The files of a Triton cache folder: contents in base64, by `<key>/<file>`."""
    files = [path for path in sorted(folder.glob("*/*")) if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode() for path in files}


def unpack(files: dict[str, str], folder: Path) -> None:
    """Put packed files into a Triton cache folder, each in one step. ValueError for a name that leads elsewhere."""
    for name in sorted(files, key=lambda name: _GROUP in name):  # what names the others comes when they are there
        if not _ENTRY.fullmatch(name) or ".." in name:
            raise ValueError(f"{name!r} is not a file of a Triton cache")
        path, data = folder / name, base64.b64decode(files[name])
        if path.name.startswith(_GROUP):
            children = json.loads(data)["child_paths"]
            here = {Path(each).name: str(path.parent / Path(each).name) for each in children}
            data = json.dumps({"child_paths": here}).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)


def local_folder(triton_cache_dir: str | None) -> Path:
    """Triton's cache folder in this process."""
    if triton_cache_dir is not None:
        return Path(triton_cache_dir)
    from triton import knobs

    return Path(knobs.cache.dir)
