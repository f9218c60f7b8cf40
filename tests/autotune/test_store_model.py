"""A key's memory against a plain model: random trials, results, limits, other processes, and a disk that fails."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.test_store import KEY
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage import journal
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial

CONFIGS = [{"block": block} for block in range(5)]
KEYS = [config_key(config) for config in CONFIGS]
LEFT_OUT = ("pruned", "screened")


@contextmanager
def full_disk(patch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "no space left")

    with patch.context() as patched:
        patched.setattr(os, "replace", fail)
        patched.setattr(os, "write", fail)
        yield


@dataclass
class Model:
    """By configuration the last trial of the journal and of the result, each with a number that counts up."""

    written: dict[str, tuple[int, Trial]] = field(default_factory=dict)
    result: dict[str, tuple[int, Trial]] = field(default_factory=dict)
    limits: str = ""
    best: str | None = None
    tried: int = 0

    def finished(self, limits: str) -> dict[str, tuple[int, Trial]]:
        same = self.best is None or limits == self.limits
        base = {key: pair for key, pair in self.result.items() if same or pair[1].status not in LEFT_OUT}
        for key, pair in self.written.items():
            if key not in base or pair[0] >= base[key][0]:
                base[key] = pair
        return {key: pair for key, pair in base.items() if same or pair[1].status not in LEFT_OUT}

    def load(self, indices: list[int], limits: str) -> tuple[list[Trial], int | None] | None:
        keys = [KEYS[index] for index in indices]
        if self.best is None or limits != self.limits or not set(keys) <= set(self.result):
            return None
        among = set(list(self.result)[: self.tried])
        best = keys.index(self.best) if self.best in keys and set(keys) <= among else None
        return [self.result[key][1] for key in keys], best


def outcome(trial: Trial) -> tuple[Any, ...]:
    return trial.config, trial.status, trial.latency, trial.message, trial.source_hash


@pytest.mark.parametrize("seed", range(8))
def test_a_store_remembers_what_a_model_does(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    model, number = Model(), 0
    clock = iter(range(1, 10**6))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    store = Store(tmp_path, KEY, "a")

    def trial(index: int) -> Trial:
        status = draw.choice(["ok", "ok", "pruned", "crash", "screened"])
        latency = float(draw.randint(1, 9)) if status == "ok" else None
        source = draw.choice(["", "x", f"{index}"])
        return Trial(index, CONFIGS[index], status, f"said {number}", latency, source_hash=source)

    for number in range(40):
        act = draw.random()
        if act < 0.2:
            store = Store(tmp_path, KEY, draw.choice(["a", "b"]))
        elif act < 0.6:
            made = trial(draw.randrange(5))
            if draw.random() < 0.2:
                with full_disk(monkeypatch):
                    store.append(made)
            else:
                store.append(made)
                key = KEYS[made.index]
                model.written.pop(key, None)
                model.written[key] = number, made
        else:
            indices = draw.sample(range(5), draw.randint(1, 5))
            made_ones = [trial(index) for index in indices]
            working = [place for place, each in enumerate(made_ones) if each.ok]
            best = draw.choice([None, *working]) if working else None
            held = draw.random() < 0.5
            with store.lock(1) if held else monkeypatch.context():
                if draw.random() < 0.2:
                    with full_disk(monkeypatch):
                        store.finish(CachedResult(made_ones, "measured", 7.0, best))
                else:
                    records = {KEYS[each.index]: (number, each) for each in made_ones}
                    kept = {key: pair for key, pair in model.finished(store.limits).items() if key not in records}
                    store.finish(CachedResult(made_ones, "measured", 7.0, best))
                    if not working:
                        model.written = kept
                    else:
                        chosen = min(working, key=lambda place: (made_ones[place].milliseconds, made_ones[place].index))
                        model.best = KEYS[made_ones[chosen if best is None else best].index]
                        model.result, model.limits, model.tried = {**records, **kept}, store.limits, len(records)
        for limits in ("a", "b"):
            reader = Store(tmp_path, KEY, limits)
            found, expected = reader.finished(), {key: each for key, (_, each) in model.finished(limits).items()}
            assert {key: outcome(journal.decode(0, expected[key].config, each)) for key, each in found.items()} == {
                key: outcome(each) for key, each in expected.items()
            }
            for index, key in enumerate(KEYS):
                again = reader.restore(index, CONFIGS[index], found)
                assert (again is None) == (key not in expected) and (again is None or again.index == index)
            indices = draw.sample(range(5), draw.randint(1, 5))
            loaded, wanted = reader.load([CONFIGS[index] for index in indices]), model.load(indices, limits)
            assert (loaded is None) == (wanted is None)
            if loaded is not None and wanted is not None:
                assert [outcome(each) for each in loaded.trials] == [outcome(each) for each in wanted[0]]
                assert (loaded.best, loaded.latency_kind, loaded.ref_latency) == (wanted[1], "measured", 7.0)
                hashes = [each.source_hash for each in loaded.trials]
                same = [
                    hashes.index(each) if each and hashes.index(each) < at else None for at, each in enumerate(hashes)
                ]
                assert [each.same_as for each in loaded.trials] == same and not loaded.other_versions
            assert reader.previous_winner() == model.best
        assert len(list(store.folder.glob("best.*.json"))) <= 3 and not list(store.folder.glob(".*.tmp"))
