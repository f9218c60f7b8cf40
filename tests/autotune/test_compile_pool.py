"""Compiling in other processes: what comes back, and what a compiler that fails costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.autotune.programs import gemm_builder, scale_builder
from tests.support.example_modules import load_example
from tiledsl.autotuner.compiling.compile_pool import compile_all, task_for
from tiledsl.autotuner.compiling.compile_worker import CompileTask

ROOT = Path(__file__).resolve().parents[2]
HANGS = "import subprocess\nsubprocess.run(['sleep', '4711'])\n"
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
RAISES = "raise LookupError('not here')\n"


@pytest.fixture(scope="module")
def program() -> tiledsl.Kernel:
    kernel = tiledsl.compile(scale_builder(32), out_idx=-1, target="cuda:90")
    assert isinstance(kernel, tiledsl.Kernel)
    return kernel


def task(index: int, program: tiledsl.Kernel, source: str, timeout: float = 100) -> CompileTask:
    from dataclasses import replace

    return replace(task_for(index, program, timeout), source=source)


@pytest.mark.slow
def test_both_languages_of_attention() -> None:
    sources = []
    for backend in ("gluon", "triton"):
        options = {"target": "cuda:90", "pass_configs": {"select-emitter.backend": backend}}
        sources.append(
            tiledsl.jit(load_example("attention").attention.function, **options).compile(1, 2, 2, 512, 512, 64)
        )
    assert ["@gluon.jit" in kernel.source for kernel in sources] == [True, False]
    tasks = [task_for(number, kernel, 200) for number, kernel in enumerate(sources)]
    gluon, triton = sorted(compile_all(tasks, jobs=2), key=lambda outcome: outcome.index)
    assert gluon.status == triton.status == "ok", (gluon.message, triton.message)
    assert gluon.resources is not None and gluon.resources["num_warps"] == 12
    assert triton.resources is not None and triton.resources["num_warps"] == 8
    assert gluon.binary_hash != triton.binary_hash


def test_one_bad_compilation_costs_only_itself(program: tiledsl.Kernel, cache_dir: Path) -> None:
    fails = program.source.replace("tl.load(", "tl.load(1.5, ")
    assert fails != program.source
    tasks = [
        task(0, program, DIES),
        task(1, program, HANGS, timeout=0.5),
        task(2, program, RAISES),
        task(3, program, fails),
        task_for(4, program, 100),
    ]
    start = time.monotonic()
    outcomes = list(compile_all(tasks, jobs=2))
    outcomes.sort(key=lambda outcome: outcome.index)
    assert [outcome.index for outcome in outcomes] == [0, 1, 2, 3, 4]
    statuses = [outcome.status for outcome in outcomes]
    assert statuses == ["crash", "compile_timeout", "compile_error", "compile_error", "ok"]
    assert "SIGSEGV" in outcomes[0].message and "0.5 s" in outcomes[1].message
    assert outcomes[2].message == "LookupError: not here"
    assert "scale_kernel" in outcomes[3].message
    resources = outcomes[4].resources
    assert resources is not None and resources["registers"] > 0 and resources["spills"] == 0
    assert "sleep\x004711" not in "".join(
        path.read_text() for path in Path("/proc").glob("[0-9]*/cmdline") if _alive(path)
    )
    assert time.monotonic() - start < 60


def _alive(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True


SCRIPT = """
import sys
print("top", flush=True)
with open(sys.argv[1], "a") as file:
    file.write("run\\n")
import tiledsl
from tests.autotune.programs import scale_builder, twice
configs = [{"block": 32}, {"block": 16}, {"block": 64, "factor": 3.0}, {"block": None}]
tuned = tiledsl.autotune(configs=configs, ref_prog=twice, target="cuda:86", jobs=2, progress=False)
f = tuned(tiledsl.jit(out_idx=-1)(scale_builder))
result = f()
print([t.status for t in result.trials], [t.verified for t in result.trials], result.latency_kind, result.target)
print(result.best.resources["registers"] == result.resources.registers, result.best.compile_seconds > 0)
"""


def test_a_script_without_main_guard_tunes_for_a_gpu_that_is_not_here(tmp_path: Path, cache_dir: Path) -> None:
    script = tmp_path / "user_script.py"  # without a __main__ guard: it must not be run again in the workers
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, tmp_path / "runs"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = "['ok', 'ok', 'mismatch', 'compile_error'] [True, True, False, False] estimated cuda:86"
    assert done.stdout.splitlines() == ["top", expected, "True True"]
    assert (tmp_path / "runs").read_text() == "run\n"


def test_no_compiled_artifact_is_kept_in_memory(cache_dir: Path) -> None:
    jit = tiledsl.jit(out_idx=-1)(scale_builder)
    blocks = [{"block": block} for block in (8, 16, 32, 64)]
    result = tiledsl.autotune(configs=blocks, target="cuda:90")(jit)()
    assert all(trial.ok and trial.resources for trial in result.trials)
    holding = [trial.config for trial in result.trials if "compiled" in vars(trial.kernel)]
    assert holding in ([], [result.config])  # the winner's is read to be put beside the result


def test_what_needs_more_than_one_that_needed_too_much_is_not_compiled(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the estimate before compiling lets them through; the first to fail takes the others along."""
    monkeypatch.setattr("tiledsl.autotuner.predicting.prune._shared", lambda work, target: None)
    configs = [{"block": 64, "stages": 2}, *({"block": 128, "stages": stages} for stages in (8, 9, 10, 11, 12, 2))]
    options: dict[str, Any] = {"target": "cuda:90", "jobs": 1, "seed_configs": [configs[1]]}  # which comes first
    result = tiledsl.autotune(configs=configs, **options)(tiledsl.jit(out_idx=-1)(gemm_builder))(size=4096)
    statuses = [trial.status for trial in result.trials]
    assert statuses[0] == statuses[-1] == "ok" and 1 <= statuses.count("out_of_resources") < 5
    left_out = [trial for trial in result.trials if trial.status == "pruned"]
    assert len(left_out) == 5 - statuses.count("out_of_resources")
    failed = next(trial for trial in result.trials if trial.status == "out_of_resources")
    start = f"needs no less than block=128 stages={failed.config['stages']}: "
    assert all(trial.message.startswith(start) and "232448" in trial.message for trial in left_out)


def test_compile_processes_give_way(cache_dir: Path, program: tiledsl.Kernel) -> None:
    """To what measures and to the tuner's own thread, which keep their priority."""
    import queue

    from joblib.externals.loky import get_reusable_executor

    from tiledsl.autotuner.compiling import compile_pool

    compile_pool._kill_processes()
    before = os.getpriority(os.PRIO_PROCESS, 0)
    events: queue.Queue[Any] = queue.Queue()
    pool = compile_pool.CompilePool(2, events, 2)
    pool.submit([task_for(0, program, 100)])
    assert events.get(timeout=60)[2].status == "ok"
    priorities = {os.getpriority(os.PRIO_PROCESS, each) for each in get_reusable_executor(reuse=True)._processes}
    pool.close()
    assert priorities == {max(before, 10)} and os.getpriority(os.PRIO_PROCESS, 0) == before


EXITS = """
import queue, threading, time
from joblib.externals.loky.backend import fork_exec
from tiledsl.autotuner.compiling.compile_pool import CompilePool
started, start = threading.Event(), fork_exec.fork_exec
def slowly(*arguments, **keywords):
    found = start(*arguments, **keywords)
    started.set()
    time.sleep(0.5)  # the process waits for what it is to do
    return found
fork_exec.fork_exec = slowly
pool = CompilePool(2, queue.Queue(), 2)
assert started.wait(60)
pool.close()
"""


def test_a_program_that_ends_while_processes_start_ends_quietly(cache_dir: Path) -> None:
    done = subprocess.run([sys.executable, "-c", EXITS], capture_output=True, text=True, timeout=100, cwd=ROOT)
    time.sleep(0.5)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
