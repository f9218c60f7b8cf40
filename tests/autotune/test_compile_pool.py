"""Compiling in other processes: what comes back, and what a compiler that fails costs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiledsl
from tests.autotune.programs import scale_builder
from tiledsl.autotuner.compile_pool import CompileTask, compile_all, task_for

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
print("top")
import tiledsl
from tests.autotune.programs import scale_builder, twice
configs = [{"block": 32}, {"block": 16}, {"block": 64, "factor": 3.0}, {"block": None}]
f = tiledsl.autotune(configs=configs, ref_prog=twice, target="cuda:86", jobs=1)(tiledsl.jit(out_idx=-1)(scale_builder))
result = f()
print([t.status for t in result.trials], [t.verified for t in result.trials], result.latency_kind, result.target)
print(result.best.resources["registers"] == result.resources.registers, result.best.compile_seconds > 0)
"""


def test_tuning_for_a_gpu_that_is_not_here(tmp_path: Path, cache_dir: Path) -> None:
    script = tmp_path / "user_script.py"  # without a __main__ guard: it must not be run again in the workers
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = "['ok', 'ok', 'mismatch', 'compile_error'] [True, True, False, False] estimated cuda:86"
    assert done.stdout.splitlines() == ["top", expected, "True True"]
