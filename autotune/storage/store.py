"""One key's memory on disk: which trials have finished, the result, and the lock that lets one process tune.

    <cache folder>/autotune/<kernel>/<key>/
        key.json                what the result depends on, field by field
        trials.jsonl            a line for each finished trial, written as it finishes
        best.json               the result; best.<time>.json are the ones before it
        artifacts/              the winner's source, stages and binary
        lock

How a tuning run uses it:

    store = Store(settings.current().cache_dir, key)
    known = store.load(configs)                     # all of them remembered, with a result: done
    with store.lock(timeout):                       # waits while another process tunes the same
        known = store.load(configs)                 # what that process found
        done = store.finished()                     # trials of earlier runs, killed ones included
        for index, config in enumerate(configs):
            trial = store.restore(index, config, done) or Trial(index, config)
            ...                                     # store.append(trial) after each one that ends
        store.finish(CachedResult(trials, kind, ref_latency, best))   # before raising where none works

No method raises for what is on the disk or cannot be put there: it warns, once, and the tuning goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiledsl import strict_json
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage import artifacts, cache, journal
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.fingerprint import OPAQUE
from tiledsl.autotuner.storage.journal import SCHEMA, Record
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.trial import Trial
from tiledsl.digests import digest
from tiledsl.files import make_private, read_file, write_file
from tiledsl.settings import current
from tiledsl.strict_json import NONSENSE

_HISTORY = 3  # results before the last that are kept
_SYNC_SECONDS = 1.0  # trials of the last second may be lost when the power fails; none is when a process is killed
_log = logging.getLogger("tiledsl")


class Store:
    """What is remembered for one key. See the module for how it is used."""

    def __init__(self, root: Path, key: Key, limits: str = "") -> None:
        """Touches nothing. root: a cache folder; limits: a text for what decides which configurations are left out;
        what was left out under other limits counts as not known."""
        self.root, self.key, self.limits = root, key, limits
        self.folder = key.folder(root)
        self.writing = True  # until a lock or folder cannot be had
        self._locked = False
        self._mend = False  # whether the journal has lines that make no sense
        self._warned: set[str] = set()
        self._synced = 0.0

    @property
    def trials_path(self) -> Path:
        """The journal."""
        return self.folder / "trials.jsonl"

    @property
    def best_path(self) -> Path:
        """The result."""
        return self.folder / "best.json"

    def _warn(self, kind: str, message: str, *arguments: Any) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("autotune: " + message, *arguments)

    # Reading

    def load(self, configs: Sequence[dict[str, Any]]) -> CachedResult | None:
        """The result for these configurations; None unless one is stored that knows all of them."""
        result = self._load(self.folder, self.key.digest, configs)
        if result is None and not current().strict_versions:
            result = self._load_other_versions(configs)
        if result is None and _log.isEnabledFor(logging.INFO):
            _log.info("autotune: %s", cache.why_missing(self.root, self.key, configs))
        return result

    def _load(self, folder: Path, wanted: str, configs: Sequence[dict[str, Any]]) -> CachedResult | None:
        data = self._read_best(folder, wanted)
        try:
            return None if data is None else cache.read_result(data, configs, self.limits)
        except NONSENSE as error:
            self._nonsense(folder / "best.json", error)
            return None

    def _read_best(self, folder: Path, wanted: str) -> dict[str, Any] | None:
        """best.json with its outer fields checked."""
        path = folder / "best.json"
        try:
            content = read_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self._warn(str(path), "cannot read %s (%s); tuning again", path, error)
            return None
        try:
            data = cache.parse_best(content)
            if data["key"] != wanted:
                raise ValueError("the result of another key")
            return data
        except NONSENSE as error:
            self._nonsense(path, error)
            return None

    def _nonsense(self, path: Path, error: Exception) -> None:
        self._warn(str(path), "%s makes no sense (%s: %s); tuning again", path, type(error).__name__, error)

    def _load_other_versions(self, configs: Sequence[dict[str, Any]]) -> CachedResult | None:
        for other, changed in cache.other_versions(self.root, self.key):
            result = self._load(self.folder.parent / other, other, configs)
            if result is not None:
                what = "; ".join(changed)
                _log.warning("autotune: using a result of %s from other versions (%s)", self.key.kernel, what)
                result.other_versions = True
                return result
        return None

    def finished(self) -> dict[str, Record]:
        """The trials that have finished, killed runs' included, by canonical configuration; the last of each counts.

        Lines that make no sense are left out, with one warning; a journal that cannot be read is put aside.
        """
        best = self._read_best(self.folder, self.key.digest)
        same = best is not None and best.get("limits", "") == self.limits
        written: dict[str, Record] = {}
        wrong = 0
        try:
            written, wrong = journal.read_journal(self.trials_path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, ValueError) as error:
            self._warn("journal", "cannot read %s (%s); its trials run again", self.trials_path, error)
            with contextlib.suppress(OSError):
                os.replace(self.trials_path, self.folder / f"trials.refused.{_timestamp(time.time())}")
        if wrong:
            self._mend = True
            self._warn("journal", "%d lines of %s make no sense; their trials run again", wrong, self.trials_path)
        if same or best is None:
            return cache.merge(best, written)
        left = [record for record in best["trials"] if not _is_left_out(record)]  # the journal may know what it took
        known = cache.merge({**best, "trials": left}, written)
        return {key: record for key, record in known.items() if not _is_left_out(record)}

    def previous_winner(self) -> str | None:
        """The canonical text of the configuration that won last; None if there is no result."""
        best = self._read_best(self.folder, self.key.digest)
        return None if best is None else str(best["best"])

    def restore(self, index: int, config: dict[str, Any], done: Mapping[str, Record]) -> Trial | None:
        """The trial of a configuration among those that have finished."""
        record = done.get(config_key(config))
        return None if record is None else journal.decode(index, config, record)

    # Writing

    @contextmanager
    def lock(self, timeout: float = -1) -> Iterator[bool]:
        """Keep other processes from tuning this key meanwhile; they wait. The lock of a process that dies is free.

        timeout: seconds to wait for the one that has it; -1: for ever. Where the time is up, or the folder cannot be
        written, the block runs without the lock, and nothing is remembered. Yields whether the lock is held.
        """
        from filelock import FileLock, Timeout

        lock = None
        try:
            make_private(self.folder)
            lock = FileLock(self.folder / "lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                _log.info("autotune: waiting for another process that tunes %s", self.key.kernel)
                lock.acquire(timeout=timeout)
            self._locked = True
            for left in self.folder.glob(".key.json-*.tmp"):  # by one that was killed while it wrote
                left.unlink(missing_ok=True)
            self._write_key()
        except Timeout:
            self._stop(
                "another process has been tuning %s for %g s; tuning without remembering", self.key.kernel, timeout
            )
        except (OSError, NotImplementedError) as error:
            self._stop("the result cannot be kept in %s (%s)", self.folder, error)
        try:
            yield self.writing
        finally:
            self._locked = False
            if lock is not None:
                lock.release()

    def _stop(self, message: str, *arguments: Any) -> None:
        self._warn("writing", message, *arguments)
        self.writing = False

    def _write_key(self) -> None:
        path = self.folder / "key.json"
        if not path.exists():
            journal.write_json(path, {"schema": SCHEMA, "kernel": self.key.kernel, "fields": self.key.fields})

    def append(self, trial: Trial) -> None:
        """Remember a trial that has ended. A disk that is full costs a warning."""
        if not self.writing or trial.status == "new" or OPAQUE in config_key(trial.config):
            return
        line = journal.line_of(journal.encode(trial))
        now = time.monotonic()
        sync = now - self._synced > _SYNC_SECONDS
        try:
            try:
                journal.append(self.trials_path, line, sync)
            except FileNotFoundError:  # not locked, or someone has cleared the cache
                make_private(self.folder)
                self._write_key()
                journal.append(self.trials_path, line, sync)
        except OSError as error:
            self._warn("append", "trials cannot be kept in %s (%s)", self.trials_path, error)
        if sync:
            self._synced = now

    def finish(self, outcome: CachedResult, keep_all: bool = False) -> None:
        """Remember a result, and what the winner became; with keep_all, what every working trial became.

        Where no trial works, nothing is remembered: these trials run again next time.
        """
        if not self.writing or any(OPAQUE in config_key(trial.config) for trial in outcome.trials):
            return
        records = {record["key"]: record for record in map(journal.encode, outcome.trials)}
        others = [record for key, record in self.finished().items() if key not in records]
        try:
            make_private(self.folder)
            self._write_key()
            working = [trial for trial in outcome.trials if trial.ok]
            if not working:
                journal.write_journal(self.trials_path, others)
                return
            winner = (
                outcome.trials[outcome.best]
                if outcome.best is not None
                else min(working, key=lambda trial: (trial.milliseconds, trial.index))
            )
            if self._mend and self._locked:  # no other process adds lines meanwhile
                journal.write_journal(self.trials_path, [*others, *records.values()])
            self._keep_history()
            best = {
                "schema": SCHEMA,
                "key": self.key.digest,
                "time": time.time(),
                "limits": self.limits,
                "latency_kind": outcome.latency_kind,
                "ref_latency": strict_json.plain(outcome.ref_latency),
                "best": config_key(winner.config),
                "tried": len(records),
                "trials": [*records.values(), *others],
            }
            journal.write_json(self.best_path, best)
            self._keep_artifacts(winner, [trial for trial in working if keep_all and trial is not winner])
        except OSError as error:
            self._warn("writing", "the result cannot be kept in %s (%s)", self.folder, error)

    def _keep_history(self) -> None:
        """A result that is about to be replaced stays under the time it was written; the oldest ones go."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            written = self.best_path.stat().st_mtime
            content = read_file(self.best_path)
            write_file(self.folder / f"best.{_timestamp(written)}.json", content)
        for old in sorted(self.folder.glob("best.*.json"))[:-_HISTORY]:
            old.unlink(missing_ok=True)

    def _keep_artifacts(self, winner: Trial, others: Sequence[Trial]) -> None:
        for trial in (winner, *others):
            if trial.build is not None:
                folder = self.folder / "artifacts"
                artifacts.save(folder if trial is winner else folder / digest(config_key(trial.config))[:12], trial)


def _is_left_out(record: Any) -> bool:
    return isinstance(record, Mapping) and record.get("status") in ("pruned", "screened")


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds)) + f".{int(seconds * 1e6) % 10**6:06d}Z"
