"""What happens at the same time: starting processes, reading configurations, compiling, measuring."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.autotune.programs import scale_builder
from tiledsl.autotuner import run
from tiledsl.autotuner.compiling import compile_pool
from tiledsl.autotuner.compiling.compile_pool import (
    CompilePool,
    compile_all,
    known_library_key,
    task_for,
    warm_up_all,
)
from tiledsl.autotuner.compiling.compile_worker import CompileOutcome, CompileTask, compile_task, warm_up
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.predicting import rank
from tiledsl.autotuner.run import TuningRun
from tiledsl.runtime.launch_triton import library_key
from tiledsl.runtime.target import Target

BLOCKS = (8, 16, 32, 64, 128)


class SlowPool:
    """Compiles nothing, in a fifth of a second each, all at once; `log` is what happened, in order."""

    log: list[Any] = []

    def __init__(self, jobs: int, events: Any, expected: int = 0) -> None:
        self._events = events
        self.log.append(("starts", expected))

    def submit(self, tasks: Sequence[CompileTask]) -> None:
        for task in tasks:
            self.log.append(("submitted", task.index))
            threading.Timer(0.2, self._end, (task.index,)).start()

    def _end(self, index: int) -> None:
        self.log.append(("compiled", index))
        self._events.put(("compiled", index, CompileOutcome(index, "ok", binary_hash=str(index))))

    def skip(self, index: int) -> bool:
        return False

    def close(self) -> None:
        self.log.append(("closed", 0))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(run, "CompilePool", SlowPool)
    monkeypatch.setattr(SlowPool, "log", [])
    original = rank.rank

    def noted(*arguments: Any, **keywords: Any) -> Any:
        SlowPool.log.append(("ordering", 0))
        found = original(*arguments, **keywords)
        SlowPool.log.append(("ordered", 0))
        return found

    monkeypatch.setattr(rank, "rank", noted)
    return SlowPool.log


def tune(cache_dir: Any, **options: Any) -> Any:
    configs = [{"block": block} for block in BLOCKS]
    return tiledsl.autotune(configs=configs, target="cuda:90", **options)(tiledsl.jit(out_idx=-1)(scale_builder))()


def test_all_are_handed_over_before_one_has_compiled(log: list[Any], cache_dir: Any) -> None:
    result = tune(cache_dir)
    assert [trial.status for trial in result.trials] == ["ok"] * len(BLOCKS)
    submitted = [index for kind, index in log if kind == "submitted"]
    assert sorted(submitted) == [0, 1, 2, 3, 4] and submitted[0] == 0  # the default before all
    kinds = [kind for kind, _ in log]
    assert kinds.index("compiled") > max(at for at, kind in enumerate(kinds) if kind == "submitted")


def test_processes_start_while_forks_read_the_configurations(log: list[Any], cache_dir: Any) -> None:
    tune(cache_dir)
    assert log[:3] == [("ordering", 0), ("starts", len(BLOCKS)), ("ordered", 0)] and log[-1] == ("closed", 0)


@pytest.mark.parametrize("options", [{"prune": lambda config: 1 / 0}, {"prune": lambda config: True}])
def test_no_process_is_left_where_nothing_is_tried(log: list[Any], cache_dir: Any, options: Any) -> None:
    with pytest.raises(tiledsl.TileError):
        tune(cache_dir, **options)
    kinds = [kind for kind, _ in log]
    assert kinds.count("starts") == kinds.count("closed") == 0 or kinds[-1] == "closed"


def workers() -> set[int]:
    from joblib.externals.loky import get_reusable_executor

    return set(get_reusable_executor(reuse=True)._processes)


def test_processes_stay_whatever_number_works(cache_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of many cores, where joblib would give fewer processes more threads each."""
    monkeypatch.setattr("joblib._parallel_backends.cpu_count", lambda *_, **__: 16)
    monkeypatch.setattr(compile_pool, "_size", 0)
    kernel = tiledsl.compile(scale_builder(32), out_idx=-1, target="cuda:90")
    assert isinstance(kernel, tiledsl.Kernel)
    warm_up_all(2, 3)
    first = workers()
    assert len(first) == 2
    tasks = [task_for(index, kernel, 100) for index in range(3)]
    assert [outcome.status for outcome in compile_all(tasks[:1], 3)] == ["ok"]
    assert workers() == first
    assert [outcome.status for outcome in compile_all(tasks, 3)] == ["ok"] * 3
    assert workers() > first and len(workers()) == 3


def test_one_process_hashes_tritons_library_for_all(
    cache_dir: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is compiled with its hash is found by processes that make their own."""
    folder = tmp_path / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    monkeypatch.setattr(compile_pool, "_library_key", None)
    warm_up_all(2, 2)
    assert known_library_key() == library_key() is not None
    kernel = tiledsl.compile(scale_builder(32), out_idx=-1, target="cuda:90")
    assert isinstance(kernel, tiledsl.Kernel)
    assert [outcome.status for outcome in compile_all([task_for(0, kernel, 100)], 2)] == ["ok"]
    entries = set(folder.iterdir())
    assert entries and kernel.asm["ptx"] and set(folder.iterdir()) == entries


TAKES_KEY = """
from tiledsl.runtime.launch_triton import LibraryKey, library_key, use_library_key
import triton.runtime.cache as cache
use_library_key(LibraryKey("/another/triton/runtime/cache.py", "another's"))
assert hasattr(cache.triton_key, "cache_info")
use_library_key(LibraryKey(cache.__file__, "given"))
print(library_key().text)
"""


def test_a_hash_is_taken_for_the_same_library_alone() -> None:
    done = subprocess.run([sys.executable, "-c", TAKES_KEY], text=True, capture_output=True, timeout=120)
    assert (done.stdout, done.stderr) == ("given\n", "")


def test_launchers_are_compiled_beside_after_the_outcome(
    cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up(hashes=False)
    made = tmp_path / "made"

    def launcher(source: Any, metadata: Any) -> None:
        time.sleep(0.5)
        made.write_text(" ".join(source.signature.values()))

    fake: Any = types.ModuleType("triton.backends.nvidia.driver")
    fake.CudaLauncher = launcher
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    kernel = tiledsl.compile(scale_builder(32), out_idx=-1, target="cuda:90")
    assert isinstance(kernel, tiledsl.Kernel)
    assert compile_task(task_for(0, kernel, 100, makes_launchers=True)).status == "ok"
    assert not made.exists()
    deadline = time.monotonic() + 30
    while not made.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert made.read_text() == " ".join(kernel.module.kernels[0].signature.values())


def test_kernels_that_differ_in_sizes_share_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(**signature: str) -> Any:
        emitted = types.SimpleNamespace(signature=signature, constexprs={})
        return types.SimpleNamespace(module=types.SimpleNamespace(kernels=[emitted]))

    monkeypatch.setattr("tiledsl.autotuner.measuring.measure.can_measure", lambda target: True)
    options = TuneOptions(cache=False)
    problem: Any = types.SimpleNamespace(options=options, target=Target.parse("cuda:90"), started=None)
    run = TuningRun(problem, [], None, lambda _: None, Alone())
    asked = [
        kernel(A="tensordesc<fp16[128, 64]>", n="i32"),
        kernel(A="tensordesc<fp16[64, 32]>", n="i32"),
        kernel(A="tensordesc<fp16[64]>", n="i32"),
        kernel(A="tensordesc<fp16[64, 32]>", n="i64"),
        kernel(A="tensordesc<bf16[8, 8]>", n="i64"),
    ]
    assert [run._needs_launcher(each) for each in asked] == [True, False, True, True, True]
    run.target = Target.parse("hip:gfx942")
    assert not run._needs_launcher(kernel(A="*fp32", n="i32"))
    run.target = Target.parse("cuda:90")
    monkeypatch.setattr("tiledsl.autotuner.measuring.measure.can_measure", lambda target: False)
    assert not run._needs_launcher(kernel(A="*fp32", n="i32"))


@pytest.mark.parametrize(("target", "measures"), [("cuda:90", False), ("interpret", True), ("hip:gfx942", True)])
def test_no_launcher_is_compiled_for_kernels_that_are_not_launched_here(
    target: str, measures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiledsl.autotuner.measuring.measure.can_measure", lambda target: measures)
    problem: Any = types.SimpleNamespace(options=TuneOptions(cache=False), target=Target.parse(target), started=None)
    run = TuningRun(problem, [], None, lambda _: None, Alone())
    emitted = types.SimpleNamespace(signature={"n": "i32"}, constexprs={})
    kernel: Any = types.SimpleNamespace(module=types.SimpleNamespace(kernels=[emitted]))
    assert not run._needs_launcher(kernel)


def test_what_was_submitted_meanwhile_compiles_together(cache_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not batch after batch: the last of one would keep the next waiting."""
    import queue

    batches: list[list[int]] = []
    warm = threading.Event()
    monkeypatch.setattr(compile_pool, "warm_up_all", lambda *_: warm.wait(10))

    def compile_nothing(tasks: Sequence[CompileTask], *_: Any) -> Any:
        batches.append([task.index for task in tasks])
        for task in tasks:
            yield CompileOutcome(task.index, "ok")

    monkeypatch.setattr(compile_pool, "compile_all", compile_nothing)
    kernel = tiledsl.compile(scale_builder(32), out_idx=-1, target="cuda:90")
    assert isinstance(kernel, tiledsl.Kernel)
    events: queue.Queue[Any] = queue.Queue()
    pool = CompilePool(2, events, 4)
    tasks = [task_for(index, kernel, 100) for index in range(4)]
    pool.submit(tasks[:1])
    pool.submit(tasks[1:])
    warm.set()
    assert [events.get(timeout=10)[1] for _ in tasks] == [0, 1, 2, 3]
    pool.close()
    assert batches == [[0, 1, 2, 3]]


def test_a_pool_that_is_still_starting_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    import queue

    go_on = threading.Event()
    monkeypatch.setattr(compile_pool, "warm_up_all", lambda *_: go_on.wait(20))
    pool = CompilePool(2, queue.Queue(), 4)
    start = time.monotonic()
    pool.close()
    assert time.monotonic() - start < 5
    go_on.set()


READS_AHEAD = """
from tiledsl.runtime.launch_triton import read_ahead
reading = read_ahead()
import torch
reading.join()
from triton.runtime.cache import triton_key
print(triton_key.cache_info().currsize)
"""


def test_the_hash_of_tritons_library_is_made_beside_the_import_of_torch() -> None:
    done = subprocess.run([sys.executable, "-c", READS_AHEAD], text=True, capture_output=True, timeout=120)
    assert (done.stdout, done.stderr) == ("1\n", "")
