"""What the parts find: JSON that is on disk after every step, and plain tables."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Report:
    """A JSON object in a file, written whole whenever an entry is put into it: a crash loses what comes after only."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.entries: dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        """Set an entry and write the file."""
        self.entries[name] = value
        write_json(self.path, self.entries)


def write_json(path: Path, value: Any) -> None:
    """Replace a file in one step; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> dict[str, Any]:
    """A file's object; empty if the file is not there."""
    if not path.is_file():
        return {}
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def machine() -> dict[str, Any]:
    """What was measured on, and with which versions."""
    import torch
    import triton

    import tiledsl

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": str(triton.__version__),
        "tiledsl": tiledsl.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "gpu": "",
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found.update(gpu=properties.name, sm_count=properties.multi_processor_count)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned text; the columns are all names in order of appearance."""
    if not rows:
        return "(nothing)"
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_shown(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.5g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
