"""Kernels tuned in context on a real GPU, and by processes on several."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.autotuner import Autotuner

import tiledsl
from tests.autotune.programs import gemm_builder
from tests.examples.test_collectives import EXPECTED, lines_of
from tests.gpu import rank_jobs
from tests.gpu.triton_kernels import CONFIGS, add_one
from tiledsl.autotuner import tune_function, tune_in_context

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tuned_on_gpu")]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def test_in_context() -> None:
    """A kernel of tiledsl, one of Triton that works in place, and a function; what lies around keeps its values."""
    add_one.kernel.cache.clear()
    gemm = tiledsl.autotune(configs=[{"block": 64}, {"block": 128}])(tiledsl.jit(out_idx=-1)(gemm_builder))

    @tune_function([{"in_place": True}, {"in_place": False}])
    def activate(A: Any, in_place: bool = False) -> Any:
        return A.relu_() if in_place else A.relu()

    runs, original = [], Autotuner.run
    total = torch.zeros(1024 * 1024, device="cuda")

    @tune_in_context(n_warmup=2, n_repeat=5)
    def step(A: Any, B: Any) -> Any:
        runs.append(1)
        add_one(total)
        return activate(gemm(size=1024)(A, B))

    A, B = (torch.randn(1024, 1024, dtype=torch.float16, device="cuda") for _ in range(2))
    torch.testing.assert_close(step(A, B), torch.relu(A @ B), rtol=1e-2, atol=0.5)
    assert len(runs) == len(CONFIGS) * 7 + 1
    assert Autotuner.run is original
    assert torch.equal(total, torch.full_like(total, float(len(runs) - len(CONFIGS) * 7)))  # tries are undone
    trials = gemm(size=1024).trials
    assert all(trial.ok and trial.latency > 0 and trial.timing == "events in context" for trial in trials), trials
    step(A, B)
    assert len(runs) == len(CONFIGS) * 7 + 2


def run(job: Any, folder: Path, ranks: int = 2) -> list[Any]:
    """What each rank returned."""
    command = [sys.executable, rank_jobs.__file__, job.__name__, str(ranks), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    answers = [folder / f"{rank}.json" for rank in range(ranks)]
    found = [json.loads(file.read_text()) if file.exists() else done.stderr for file in answers]
    assert all("value" in each for each in found), (found, done.stderr[-4000:])
    return [each["value"] for each in found]


@two_gpus
def test_a_function_with_a_collective(tmp_path: Path) -> None:
    found = run(rank_jobs.gathered, tmp_path)
    assert found[0] == found[1]
    first, again = found[0]
    assert first[2:] == ["memory", ["ok"] * 3] and first[1] > 0
    assert again == [first[0], first[1], "disk", ["ok"] * 3]


@two_gpus
def test_kernels_on_two_gpus(tmp_path: Path) -> None:
    found = run(rank_jobs.kernels, tmp_path)
    assert found[0] == found[1] and found[0][1] > 0 and found[0][3] == ["ok"] * 4


@two_gpus
def test_in_context_on_two_gpus(tmp_path: Path) -> None:
    found = run(rank_jobs.in_context, tmp_path)
    assert found[0] == found[1]
    assert found[0][2:] == [len(CONFIGS) * 5 + 1, len(CONFIGS) * 5 + 2]


@two_gpus
def test_products_around_collectives_on_two_gpus() -> None:
    assert lines_of("M=2048", "N=1024", "K=512", "experts=8", "top_k=2") == EXPECTED
