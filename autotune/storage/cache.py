"""Tuning results on disk: read one, list all, compare their keys, clear them. `store` writes them.

Nothing read here is executed, becomes a path, or a value of a configuration: a file names configurations of the running
program by their text, and gives numbers and messages for them. What is run of a result is for `artifacts` to check.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl import strict_json
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage import journal
from tiledsl.autotuner.storage.fingerprint import OPAQUE
from tiledsl.autotuner.storage.journal import SCHEMA
from tiledsl.autotuner.storage.key import VERSION_FIELDS, Key, difference_lines, differences, folder_name
from tiledsl.autotuner.trial import Trial
from tiledsl.files import read_file
from tiledsl.strict_json import NONSENSE

_MOST_KEYS = 500  # of one kernel, the newest, that are compared
_log = logging.getLogger("tiledsl")


@dataclass
class CachedResult:
    """A tuning's outcome. best: the winner's place in `trials`, where it was chosen among just these or more; else
    None. other_versions: the result is another Triton's or tiledsl's, which counts with strict_versions off."""

    trials: list[Trial]
    latency_kind: str
    ref_latency: float | None
    best: int | None = None
    other_versions: bool = False


def parse_best(content: bytes) -> dict[str, Any]:
    """A best.json with its outer fields checked; its trials are not. Raises one of NONSENSE."""
    data = strict_json.parse(content)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"not schema {SCHEMA}")
    if data["latency_kind"] not in ("measured", "estimated") or not isinstance(data["trials"], list):
        raise ValueError("unknown latency_kind, or no list of trials")
    if type(data["tried"]) is not int or not isinstance(data["key"], str) or not isinstance(data["best"], str):
        raise ValueError("wrong types")
    if not isinstance(data.get("limits", ""), str):
        raise ValueError("limits is no text")
    journal.number(data["ref_latency"])
    return data


def read_result(data: Mapping[str, Any], configs: Sequence[dict[str, Any]], limits: str = "") -> CachedResult | None:
    """What a best.json says about configurations; None unless it knows all of them, under the same limits. Raises one
    of NONSENSE."""
    if data.get("limits", "") != limits:
        return None
    records = {record["key"]: record for record in data["trials"]}
    chosen_from = {record["key"] for record in data["trials"][: data["tried"]]}
    keys = [config_key(config) for config in configs]
    if not all(key in records and OPAQUE not in key for key in keys):
        return None
    trials = [journal.decode(i, config, records[key]) for i, (config, key) in enumerate(zip(configs, keys))]
    best = keys.index(data["best"]) if data["best"] in keys and chosen_from.issuperset(keys) else None
    if best is not None and not trials[best].ok:
        raise ValueError("the best trial is not ok")
    first: dict[str, int] = {}
    for trial in trials:  # of identical sources or binaries, the first was run
        hashes = [each for each in (trial.source_hash, trial.binary_hash) if each]
        earlier = min((first.setdefault(each, trial.index) for each in hashes), default=trial.index)
        trial.same_as = earlier if earlier != trial.index else None
    return CachedResult(trials, data["latency_kind"], journal.number(data["ref_latency"]), best)


@dataclass(frozen=True)
class CacheEntry:
    """One key's folder. `fields` is empty where key.json makes no sense."""

    folder: Path
    kernel: str
    digest: str
    fields: dict[str, Any]
    modified: float

    def best(self) -> dict[str, Any] | None:
        """best.json; None if there is none that makes sense."""
        try:
            return parse_best(read_file(self.folder / "best.json"))
        except (OSError, *NONSENSE):
            return None

    def trials(self) -> dict[str, journal.Record]:
        """The trials of the result and the journal, by canonical configuration; empty if neither can be read."""
        with contextlib.suppress(OSError, ValueError):
            return merge(self.best(), journal.read_journal(self.folder / "trials.jsonl")[0])
        return merge(self.best(), {})

    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.lstat().st_size for file in self.folder.rglob("*") if file.is_file())


def entries(root: Path, kernel: str | None = None) -> list[CacheEntry]:
    """The keys of a kernel, or of all, the newest first. Only folders that the tuner names so are looked into."""
    listed = []
    for folder in _subfolders(root / "autotune", r"\w{1,80}"):
        if kernel is None or folder.name == folder_name(kernel):
            listed += [_entry(each) for each in _subfolders(folder, r"[0-9a-f]{24}")]
    return sorted(listed, key=lambda entry: (-entry.modified, entry.kernel, entry.digest))


def _subfolders(folder: Path, pattern: str) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            if re.fullmatch(pattern, item.name, re.ASCII) and item.is_dir(follow_symlinks=False):
                yield Path(item.path)


def _entry(folder: Path) -> CacheEntry:
    modified = 0.0
    for name in ("best.json", "trials.jsonl", "key.json"):
        with contextlib.suppress(OSError):
            modified = max(modified, (folder / name).stat().st_mtime)
    fields: dict[str, Any] = {}
    with contextlib.suppress(OSError, *NONSENSE):
        data = strict_json.parse(read_file(folder / "key.json"))
        if data["schema"] == SCHEMA and isinstance(data["fields"], dict) and isinstance(data["kernel"], str):
            fields = data["fields"]
    return CacheEntry(folder, folder.parent.name, folder.name, fields, modified)


def clear(chosen: Sequence[CacheEntry]) -> int:
    """Delete the folders of entries, and kernels' folders that get empty. Returns how many entries are gone."""
    gone = 0
    for entry in chosen:
        try:
            shutil.rmtree(entry.folder)
        except OSError as error:
            _log.warning("cannot delete %s (%s)", entry.folder, error)
            continue
        gone += 1
        with contextlib.suppress(OSError):
            entry.folder.parent.rmdir()
    return gone


def nearest(root: Path, key: Key) -> list[tuple[CacheEntry, dict[str, tuple[Any, Any]]]]:
    """The stored keys of a kernel with the fields in which they differ from a wanted one, the nearest first."""
    others = [entry for entry in entries(root, key.kernel)[:_MOST_KEYS] if entry.fields]
    compared = [(entry, differences(entry.fields, key.fields)) for entry in others if entry.digest != key.digest]
    return sorted(compared, key=lambda pair: len(pair[1]))


def other_versions(root: Path, key: Key) -> list[tuple[str, list[str]]]:
    """Stored keys that differ from a wanted one in versions only, the newest first, with what differs."""
    matching = []
    for entry in entries(root, key.kernel)[:_MOST_KEYS]:
        changed = differences(entry.fields, key.fields)
        if entry.fields and entry.digest != key.digest and set(changed) <= set(VERSION_FIELDS):
            matching.append((entry.digest, difference_lines(entry.fields, key.fields)))
    return matching


def explain(root: Path, key: Key, most: int = 5) -> str:
    """Whether the wanted key is stored, and which fields differ in the kernel's other keys, the nearest first."""
    stored = {entry.digest: entry for entry in entries(root, key.kernel)}
    lines = [f"{key.kernel}/{key.digest}"]
    if key.digest in stored:
        best, count = stored[key.digest].best(), len(stored[key.digest].trials())
        lines.append(
            f"  stored: {count} trials, " + ("with a result" if best else "without a result: it is not finished")
        )
    else:
        lines.append("  not stored" + ("" if stored else "; nothing is stored for this kernel"))
    others = nearest(root, key)
    for entry, changed in others[:most]:
        lines.append(f"  {entry.digest} differs in {', '.join(changed) or 'nothing that it names'}")
        lines += [f"    {line}" for line in difference_lines(entry.fields, key.fields)]
    if len(others) > most:
        lines.append(f"  and {len(others) - most} more keys")
    return "\n".join(lines)


def why_missing(root: Path, key: Key, configs: Sequence[dict[str, Any]]) -> str:
    """A line for the log: why there is no result for these configurations."""
    records = next((entry.trials() for entry in entries(root, key.kernel) if entry.digest == key.digest), {})
    known = sum(config_key(config) in records for config in configs)
    if records:
        return f"{key.kernel}: {known} of {len(configs)} configurations are known"
    others = nearest(root, key)
    if not others:
        return f"{key.kernel}: nothing is remembered"
    entry, _ = others[0]
    lines = difference_lines(entry.fields, key.fields)
    return f"{key.kernel}: not tuned for this; the nearest result, {entry.digest}, differs in {'; '.join(lines)}"


def merge(best: Mapping[str, Any] | None, written: Mapping[str, journal.Record]) -> dict[str, journal.Record]:
    """The trials of a best.json and a journal, the later of each."""
    records: dict[str, journal.Record] = {}
    for record in best["trials"] if best else ():
        with contextlib.suppress(*NONSENSE):
            journal.decode(0, {}, record)
            records[record["key"]] = record
    for key, record in written.items():
        if key not in records or record["time"] >= records[key]["time"]:
            records[key] = record
    return records
