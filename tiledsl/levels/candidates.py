"""Levels as choices of the tuner: `from_level` in a configuration, and configurations from folders of saved kernels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tiledsl.errors import TileError
from tiledsl.levels.bundle import check_level

KEY = "from_level"


def choice(given: Any) -> list[str]:
    """`from_level` of a configuration, (level, path), with a digest of the files as they are now: a configuration is
    another one when they change. The digest is empty where there is no such level. TileError for what is no pair."""
    is_pair = isinstance(given, Sequence) and not isinstance(given, str) and len(given) in (2, 3)
    if not is_pair or not isinstance(given[0], str) or not isinstance(given[1], (str, os.PathLike)):
        raise TileError(
            f"from_level is {given!r}",
            notes=['it is a level and the path of what save_levels() wrote: ("cubin", "dir")'],
        )
    level, path = check_level(given[0]), Path(given[1]).absolute()
    files = [path] if path.is_file() else sorted(path.glob(f"*.{level}")) if path.is_dir() else []
    if not files:
        return [level, str(path), ""]
    whole = hashlib.sha256()
    for each in files:
        for file in (each, each.with_suffix(".json")):
            whole.update(hashlib.sha256(file.read_bytes() if file.is_file() else b"").digest())
    return [level, str(path), whole.hexdigest()[:16]]


def reason_to_leave_out(config: Mapping[str, Any]) -> str:
    """Why a configuration cannot be tried; "" if it can."""
    if KEY in config and not config[KEY][2]:
        level, path, _ = config[KEY]
        return f"there is no {level} in {path}" if Path(path).exists() else f"there is no {path}"
    return ""


def run_from(kernel: Any, config: Mapping[str, Any]) -> Any:
    """The kernel as a configuration says to run it. Raises TileError for files that do not fit."""
    if KEY not in config or kernel.target.kind == "interpret":
        return kernel
    level, path, *_ = config[KEY]
    made = kernel.from_level(level, path)
    made.config = dict(config)
    return made
