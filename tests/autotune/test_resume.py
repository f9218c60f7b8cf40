"""Tuning runs that are killed and go on, and several processes that tune the same; with a loop like the engine's."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.autotune.programs import scale_builder, twice
from tests.support.children import start
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.key import Key
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial

KEY = Key("saxpy", {"program": "1", "gpu": "a stopwatch"}, False)
CONFIGS = [{"block": 1 << (i % 6), "stages": i // 6} for i in range(30)]
BEST = 17


def milliseconds(index: int) -> float:
    return 1.0 + abs(index - BEST)


def tune(root: Path, log: Path, delay: float, timeout: float = 60) -> CachedResult:
    """A tuning run with an injected, slow measurement, which writes to the log what it does."""
    store = Store(root, KEY)
    known = store.load(CONFIGS)
    if known is not None:
        return known
    with store.lock(timeout):
        known = store.load(CONFIGS)
        if known is not None:
            return known
        done = store.finished()
        trials = []
        for index, config in enumerate(CONFIGS):
            trial = store.restore(index, config, done)
            if trial is None:
                note(log, f"measure {index}")
                time.sleep(delay)
                trial = Trial(index, config, "mismatch" if index % 7 == 6 else "ok", latency=milliseconds(index))
                store.append(trial)
            trials.append(trial)
        outcome = CachedResult(trials, "measured", None)
        store.finish(outcome)
        note(log, "finish")
    return outcome


def note(log: Path, text: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, text.encode() + b"\n")
    os.close(descriptor)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_run_that_is_killed_twenty_times_goes_on_where_it_was(tmp_path: Path) -> None:
    root, log, rng = tmp_path / "cache", tmp_path / "log", random.Random(0)
    store = Store(root, KEY)
    kills = 0
    while kills < 20:
        child = start(lambda: tune(root, log, delay=0.004))
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        keys = [json.loads(line)["key"] for line in lines(store.trials_path)]
        assert len(keys) == len(set(keys))  # each finished trial is there, once
        if store.best_path.exists():  # it was faster than we: start again
            os.rename(store.folder, tmp_path / f"finished-{len(list(tmp_path.glob('finished-*')))}")
            log.unlink(missing_ok=True)
    outcome = tune(root, log, delay=0.0)
    keys = [json.loads(line)["key"] for line in lines(store.trials_path)]
    assert len(keys) == len(set(keys)) == len(CONFIGS)
    measured = Counter(line for line in lines(log) if line.startswith("measure"))
    assert len(measured) == len(CONFIGS) and measured.total() <= len(CONFIGS) + kills
    again = Store(root, KEY).load(CONFIGS)
    assert again is not None and again.best == BEST and again.trials == outcome.trials
    assert not list(store.folder.glob(".*.tmp"))


@pytest.mark.parametrize("count", [2, 8])
def test_one_of_several_processes_tunes_and_the_others_use_it(count: int, tmp_path: Path) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"

    def work() -> None:
        outcome = tune(root, log, delay=0.002)
        assert min((t for t in outcome.trials if t.ok), key=lambda t: t.latency or 0.0).index == BEST

    children = [start(work) for _ in range(count)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * count
    assert Counter(lines(log)).total() == len(CONFIGS) + 1


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", KEY)
    store.folder.mkdir(parents=True)
    (store.folder / ".key.json-0123abcd.tmp").write_bytes(b"{")
    with store.lock():
        assert {path.name for path in store.folder.iterdir()} == {"key.json", "lock"}


def test_the_lock_of_a_process_that_dies_is_free(tmp_path: Path) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"
    holder = start(lambda: tune(root, log, delay=0.2))
    while len(lines(log)) < 2:
        time.sleep(0.005)
    waiter = start(lambda: tune(root, log, delay=0.0))
    time.sleep(0.1)
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    assert os.waitpid(waiter, 0)[1] == 0
    measured = Counter(line for line in lines(log) if line.startswith("measure"))
    assert len(measured) == len(CONFIGS) and measured["measure 0"] == 1 and lines(log)[-1] == "finish"


# The same with the engine. What it needs is loaded before the forks; its clock and its kernels run in these processes.

BLOCKS = [{"block": 1 << i, "factor": 2.0 + factor} for i in range(7) for factor in range(8)]


@pytest.fixture
def engine(timer: Any, cache_dir: Path, tmp_path: Path) -> Callable[[], Any]:
    """Tunes with a slow clock that writes to tmp_path / "log"."""

    def clock(config: dict[str, Any]) -> float:
        note(tmp_path / "log", f"{config['block']} {config['factor']}")
        time.sleep(0.005)
        return 64.0 / config["block"]

    def run() -> Any:
        return tiledsl.autotune(configs=BLOCKS, ref_prog=twice)(tiledsl.jit(out_idx=-1)(scale_builder))()

    timer(clock)
    with tiledsl.settings(cache_dir=tmp_path / "another"):
        run()
    (tmp_path / "log").unlink()
    return run


def recorded(cache_dir: Path) -> Counter[str]:
    (best,) = cache_dir.rglob("best.json")
    return Counter(json.loads(line)["key"] for line in lines(best.parent / "trials.jsonl"))


@pytest.mark.slow
def test_the_engine_is_killed_eight_times_and_goes_on_where_it_was(
    engine: Any, cache_dir: Path, tmp_path: Path
) -> None:
    log, rng = tmp_path / "log", random.Random(1)
    deadline = time.monotonic() + 60
    kills = 0
    while kills < 8:
        assert not list(cache_dir.rglob("best.json")), f"finished after {kills} kills"
        child = start(engine)
        before = len(lines(log))
        while len(lines(log)) == before and time.monotonic() < deadline:
            time.sleep(0.002)  # until it measures
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    result = engine()
    assert result.config == {"block": 64, "factor": 2.0}
    assert len(recorded(cache_dir)) == len(BLOCKS) and engine().from_cache == "disk"
    final_round = sum(trial.rounds > 0 for trial in result.trials)
    working = sum(trial.ok for trial in result.trials)
    assert len(lines(log)) <= working + kills + final_round  # what a kill hit ran again, and nothing else


def test_one_of_eight_engines_tunes(engine: Any, cache_dir: Path, tmp_path: Path) -> None:
    def work() -> None:
        result = engine()
        assert result.config == {"block": 64, "factor": 2.0}
        note(tmp_path / "results", result.from_cache or "tuned")

    children = [start(work) for _ in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert Counter(lines(tmp_path / "results")) == {"tuned": 1, "disk": 7}
    assert len(recorded(cache_dir)) == len(BLOCKS)
