"""Configurations that go wrong, in real processes: each costs only itself, and nothing is left running."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.autotune.faults import broken_sources, commands_with
from tests.autotune.programs import gemm_builder, scale_builder, twice
from tiledsl.ir.printer import print_op

assert broken_sources  # a fixture

ROOT = Path(__file__).resolve().parents[2]
BY_BLOCK = "tests.autotune.fake_timers:by_block"
RIGHT = {"block": 16}


def tuned(*configs: dict[str, Any], **options: Any) -> Any:
    options = {"ref_prog": twice, "timer": BY_BLOCK, "run_timeout": 2, **options}
    return tiledsl.autotune(configs=configs, **options)(tiledsl.jit(out_idx=-1)(scale_builder))()


def faulty(*variants: str) -> list[dict[str, Any]]:
    return [{"block": 32, "variant": variant} for variant in variants]


@pytest.mark.slow
@pytest.mark.usefixtures("broken_sources")
def test_what_happens_when_a_configuration_runs() -> None:
    expected = {
        "segfault": ("crash", "the benchmark process ended with SIGSEGV"),
        "hang": ("hang", "still running after 2 s; killed"),
        "sticky": ("crash", "RuntimeError: CUDA error: an illegal memory access was encountered"),
        "raise": ("launch_error", "ValueError: no launch today"),
        "resources": ("out_of_resources", "out of resource: shared memory"),
        "nan": ("nonfinite", "wrong in 1 of 64 elements"),
        "wrong": ("mismatch", "wrong in"),
        "nothing": ("nonfinite", "not written; wrong in 64 of 64"),
        "mutates": ("ok", "changes its input A"),
    }
    result = tuned(*faulty(*expected), RIGHT, {"block": 64})
    for trial, (status, message) in zip(result.trials, expected.values()):
        assert (trial.status, message in trial.message) == (status, True), trial
        assert trial.verified == trial.ok and (trial.latency is None) != trial.ok
    assert [trial.status for trial in result.trials[-2:]] == ["ok", "ok"]
    assert result.config == {"block": 64} and result.latency == 1.0 and result.latency_kind == "measured"
    assert "Fatal Python error" in result.trials[0].message  # what the process said at its end
    assert not commands_with("sleep 4713")


@pytest.mark.usefixtures("broken_sources")
def test_what_happens_when_a_configuration_compiles() -> None:
    expected = {
        "import hangs": ("compile_timeout", "still compiling after 4 s"),
        "import aborts": ("crash", "the compiler process ended with SIGABRT"),
        "import raises": ("compile_error", "LookupError: not here"),
        "triton refuses": ("compile_error", "scale_kernel"),
    }
    configs = [*faulty(*expected), {"block": None}, {"block": 32}, *faulty("same binary"), RIGHT]
    result = tuned(*configs, target="cuda:90", timer=None, timeout=4, jobs=2)
    for trial, (status, message) in zip(result.trials, expected.values()):
        assert (trial.status, message in trial.message) == (status, True), trial
    assert [trial.status for trial in result.trials[4:]] == ["compile_error", "ok", "ok", "ok"]
    first, second = sorted(result.trials[5:7], key=lambda trial: trial.same_as is not None)
    assert second.same_as == first.index and second.binary_hash == first.binary_hash != ""
    assert result.trials[7].binary_hash not in ("", first.binary_hash)
    assert result.latency_kind == "estimated" and all(trial.verified for trial in result.trials[5:])
    assert not commands_with("sleep 4714")


def test_too_much_shared_memory() -> None:
    configs = [{"block": 64, "stages": 2}, {"block": 128, "stages": 8}]
    for prune, status in ((True, "pruned"), (False, "out_of_resources")):
        result = tiledsl.autotune(configs=configs, target="cuda:90", prune=prune, cache=False)(
            tiledsl.jit(out_idx=-1)(gemm_builder)
        )()
        assert [trial.status for trial in result.trials] == ["ok", status]
        assert "shared memory" in result.trials[1].message and "232448" in result.trials[1].message
    assert result.trials[0].resources["shared_bytes"] > 0


def test_a_reference_that_raises_ends_the_run_at_once() -> None:
    start = time.monotonic()
    with pytest.raises(tiledsl.TileError, match="ref_prog raises ZeroDivisionError"):
        tuned(RIGHT, ref_prog=lambda A: A * (1 // 0))
    with pytest.raises(tiledsl.TileError, match="returns no tensor and changes no input"):
        tuned(RIGHT, ref_prog=lambda A: None)
    assert time.monotonic() - start < 30


SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # which children of a shell's background jobs ignore
import tiledsl
from tests.autotune import faults
from tests.autotune.programs import scale_builder, twice

faults.install(setattr)
configs = [{"block": 64}, {"block": 32, "variant": "hang"}]
f = tiledsl.autotune(configs=configs, ref_prog=twice, timer="tests.autotune.fake_timers:by_block", run_timeout=300)
result = f(tiledsl.jit(out_idx=-1)(scale_builder))()
print(result.complete, result.config, [trial.status for trial in result.trials])
"""


def start(cache: Path) -> subprocess.Popen[str]:
    """A script that tunes and is now inside a configuration that hangs."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TILEDSL_CACHE_DIR": str(cache)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not commands_with("sleep 4713") and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process.poll() is None and commands_with("sleep 4713")
    time.sleep(0.5)
    return process


def gone(text: str) -> bool:
    deadline = time.monotonic() + 10
    while commands_with(text) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not commands_with(text)


def test_interrupting_gives_the_best_so_far(cache_dir: Path) -> None:
    process = start(cache_dir)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out == "False {'block': 64} ['ok', 'new']\n"
    assert "interrupted; the result is the best of those tried so far" in err
    assert gone("sleep 4713")
    assert not list(cache_dir.rglob("best.json")) and len(list(cache_dir.rglob("trials.jsonl"))) == 1


def test_killing_the_tuner_leaves_no_process(cache_dir: Path) -> None:
    process = start(cache_dir)
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], text=True, capture_output=True).stdout.split()
    assert workers
    process.kill()
    process.communicate(timeout=60)
    assert gone("sleep 4713")
    deadline = time.monotonic() + 10
    while any(Path("/proc", worker, "exe").exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path("/proc", worker, "exe").exists() for worker in workers)


def faulty_builder(block: int, fault: str = "") -> Any:
    if fault == "exits":
        os._exit(3)
    if fault == "sys.exit":
        sys.exit("no such block")
    if fault == "segfault":
        ctypes.string_at(0)
    while fault == "hangs":
        time.sleep(1)
    return scale_builder(block)


FAULTS = {
    "exits": ("crash", "building it ended the process with exit status 3"),
    "segfault": ("crash", "building it ended the process with SIGSEGV\nFatal Python error: Segmentation fault"),
    "hangs": ("compile_timeout", "still being built after 2 s"),
    "sys.exit": ("compile_error", "SystemExit: no such block"),
}


@pytest.mark.parametrize("search", ["auto", "random"])
def test_a_builder_that_ends_or_hangs_costs_its_configuration(search: str) -> None:
    configs = [{"block": 64}, *({"block": 32, "fault": fault} for fault in FAULTS), RIGHT]
    options = {"ref_prog": twice, "timer": BY_BLOCK, "timeout": 2, "search": search}
    result = tiledsl.autotune(configs=configs, **options)(tiledsl.jit(out_idx=-1)(faulty_builder))()
    for trial, (status, message) in zip(result.trials[1:], FAULTS.values()):
        assert (trial.status, trial.message.startswith(message)) == (status, True), trial
    assert result.trials[-1].ok and result.config == {"block": 64}
    again = tiledsl.autotune(configs=configs, **options)(tiledsl.jit(out_idx=-1)(faulty_builder))()
    for found in (result, again):
        with pytest.raises(tiledsl.TileError, match="fault=exits is not built in this process: building it ended"):
            _ = found.trials[1].source
    assert again.from_cache == "disk"


def test_lowering_that_ends_or_hangs_costs_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.passes.licm import Licm

    def run(self: Any, program: Any, before: Any = Licm.run) -> None:
        text = print_op(program.root)
        if "<32x" in text:
            os.kill(os.getpid(), signal.SIGSEGV)
        while "<128x" in text:
            time.sleep(1)
        before(self, program)

    monkeypatch.setattr(Licm, "run", run)
    result = tuned({"block": 64}, {"block": 32}, {"block": 128}, RIGHT, timeout=2)
    assert [trial.status for trial in result.trials] == ["ok", "crash", "compile_timeout", "ok"]


def test_all_configurations_end_their_process() -> None:
    configs = [{"block": block, "fault": "exits"} for block in (16, 32)]
    with pytest.raises(tiledsl.TileError, match="none of 2 configurations") as caught:
        tiledsl.autotune(configs=configs, ref_prog=twice)(tiledsl.jit(out_idx=-1)(faulty_builder))()
    assert "crash: 2" in str(caught.value)


ENDING = """
import os
import tiledsl
from tests.autotune.programs import scale_builder

def ends(*_):
    {how}

by_block = "tests.autotune.fake_timers:by_block"
options = {{"ref_prog": lambda A: A * 2, "timer": by_block, "isolate": False, {option!r}: ends}}
tiledsl.autotune(configs=[{{"block": 64}}], **options)(tiledsl.jit(out_idx=-1)(scale_builder))()
"""


@pytest.mark.parametrize(
    "option, how",
    [
        ("ref_prog", "os._exit(5)"),
        ("ref_prog", "os.kill(os.getpid(), 9)"),
        ("supply_prog", "os._exit(5)"),
        ("manual_check_prog", "os._exit(5)"),
    ],
)
def test_a_function_of_the_users_that_ends_the_process_is_named(cache_dir: Path, option: str, how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING.format(how=how, option=option)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TILEDSL_CACHE_DIR": str(cache_dir)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode != 0
    assert f"the process ended inside {option}: it crashed, was killed, or called os._exit" in ended.stderr


def test_a_function_of_the_users_that_exits_ends_the_run() -> None:
    with pytest.raises(tiledsl.TileError, match="autotune: ref_prog raises SystemExit: 5"):
        tuned(RIGHT, ref_prog=lambda A: sys.exit(5))


@pytest.mark.usefixtures("broken_sources")
def test_failed_compilations_leave_nothing(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those that are killed; and what tuning makes in the cache is the user's alone."""
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("tiledsl.autotuner.measuring.scratch._ENOUGH", 1 << 60)  # not in /dev/shm, where others' are
    configs = [{"block": 16}, *faulty("import hangs", "import aborts", "import raises", "triton refuses")]
    result = tuned(*configs, target="cuda:90", timer=None, timeout=4)
    assert [trial.status for trial in result.trials] == [
        "ok", "compile_timeout", "crash", "compile_error", "compile_error",
    ]  # fmt: skip
    assert [path for path in tmp_path.rglob("*") if "joblib" not in str(path) and "loky" not in str(path)] == []
    folders = [path for path in (cache_dir, *cache_dir.rglob("*")) if path.is_dir()]
    made = [path for path in folders if "triton" not in path.parts]
    assert made and {oct(path.stat().st_mode & 0o777) for path in made} == {oct(0o700)}
