"""Entries and files for tests of tuned configurations."""

from __future__ import annotations

from typing import Any

from tiledsl.autotuner.tuned.entry import TunedEntry
from tiledsl.autotuner.tuned.file import TunedFile, most_common


def entry(
    config: dict[str, Any] | int = 64, latency: float = 1.0, kind: str = "measured", **arguments: Any
) -> TunedEntry:
    """An entry for arguments; a config that is a number is that of a block."""
    chosen = {"block": config} if isinstance(config, int) else config
    return TunedEntry(arguments, chosen, latency, kind, "0123456789abcdef", "2026-01-02T03:04:05Z")


def file_of(*entries: TunedEntry, name: str = "scale", target: str = "interpret") -> TunedFile:
    file = TunedFile(name, target, entries)
    return TunedFile(name, target, entries, most_common(file))
