"""Tuning on a real GPU: compiled elsewhere, checked and timed in processes that faulty configurations may take down."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import gemm_builder, scale_builder, twice
from tiledsl.autotuner import set_autotune_inputs
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.profiler import do_bench

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tuned_on_gpu")]


def product(A: Any, B: Any) -> Any:
    return A @ B


def described(binary: Path) -> str:
    """A compiled kernel in Triton's cache: where it lies, when it was written, and what it was compiled with."""
    with_what = binary.with_suffix(".json")
    return f"{binary} {binary.stat().st_mtime_ns} {with_what.read_text() if with_what.exists() else 'unfinished'}"


GEMMS = [{"block": block, "stages": stages} for block in (64, 32, 128) for stages in (2, 3)]


def test_a_real_run(tmp_path: Path) -> None:
    tuned = tiledsl.autotune(configs=GEMMS, ref_prog=product, warmup=5, rep=40)(tiledsl.jit(out_idx=-1)(gemm_builder))
    result = tuned(size=2048)
    print(result.table())
    assert result.latency_kind == "measured" and result.ref_latency > 0
    assert all(trial.ok and trial.verified and trial.latency > 0 for trial in result.trials)
    assert all(trial.timing in ("events", "graph") for trial in result.trials)
    assert result.best.rounds > 0 and result.trials[0].rounds > 0
    assert result.latency <= result.trials[0].latency * 1.005  # what may count as noise
    binaries = {trial.binary_hash for trial in result.trials}
    compiled = list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))
    # The benchmark process found what was compiled, and compiled nothing.
    assert len(binaries) <= len(compiled) <= len(GEMMS), "\n".join(map(described, compiled))
    A, B = (torch.randn(2048, 2048, dtype=torch.float16, device="cuda") for _ in range(2))
    torch.testing.assert_close(result(A, B), A @ B, rtol=1e-2, atol=0.5)
    chosen, default = (do_bench(lambda k=k: k(A, B), rep=200) for k in (result.kernel, result.trials[0].kernel))
    assert chosen < default * 1.05
    assert (
        tiledsl.autotune(configs=GEMMS, ref_prog=product, warmup=5, rep=40)(tiledsl.jit(out_idx=-1)(gemm_builder))(
            size=2048
        ).from_cache
        == "disk"
    )


FAULTS = {
    "illegal": ("tl.load(A + ", "tl.load(A + 1099511627776 + "),
    "endless": (
        "    bx = tl.program_id(0)",
        "    bx = tl.program_id(0)\n    while tl.load(A, volatile=True) > -1e30:\n        tl.store(B, 1.0)",
    ),
    "wrong": ("* 2.0", "* 2.5"),
}


def test_faulty_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Kernel.source.fget
    assert original is not None

    def source(self: Kernel) -> str:
        old, new = FAULTS.get((self.config or {}).get("variant", ""), ("", ""))
        text = original(self)
        assert old in text
        return text.replace(old, new) if old else text

    monkeypatch.setattr(Kernel, "source", property(source))
    configs: list[dict[str, Any]] = [{"block": 32, "variant": name} for name in ("illegal", "endless", "wrong")]
    configs += [{"block": 32, "variant": "half"}, {"block": 32}, {"block": 16}]
    result = tiledsl.autotune(configs=configs, ref_prog=twice, run_timeout=5, warmup=1, rep=10)(
        tiledsl.jit(out_idx=-1)(scale_builder)
    )()
    print(result.table())
    assert [t.status for t in result.trials] == ["crash", "hang", "mismatch", "nonfinite", "ok", "ok"]
    assert "illegal memory access" in result.trials[0].message
    A = torch.randn(64, device="cuda")  # this process's context is as good as before
    torch.testing.assert_close(result(A), A * 2)


def test_short_kernels_are_timed_in_graphs() -> None:
    result = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}], ref_prog=twice, warmup=1, rep=10)(
        tiledsl.jit(out_idx=-1)(scale_builder)
    )(size=4096)
    assert {trial.timing for trial in result.trials} == {"graph"}
    assert all(0.0005 < trial.latency < 0.02 and trial.spread < trial.latency for trial in result.trials)


def test_hopeless_configurations_are_stopped_early() -> None:
    configs = [{"block": 128, "stages": 3}, {"block": 16, "stages": 2}]
    # On one GPU, so that the first is known when the second is timed.
    options: dict[str, Any] = {
        "early_stop": True,
        "early_stop_factor": 1.5,
        "jobs": 1,
        "warmup": 1,
        "rep": 10,
        "devices": [0],
    }
    result = tiledsl.autotune(configs=configs, ref_prog=product, **options)(tiledsl.jit(out_idx=-1)(gemm_builder))(
        size=4096
    )
    assert [trial.status for trial in result.trials] == ["ok", "screened"]


def accumulate(block: int = 32) -> Any:
    @T.prim_func
    def add_into(A: T.Tensor((4096,), "float32"), total: T.Tensor((4096,), "float32")):
        with T.Kernel(4096 // block, threads=128) as bx:
            x = T.alloc_fragment((block,), "float32")
            y = T.alloc_fragment((block,), "float32")
            T.copy(A[bx * block], x)
            T.copy(total[bx * block], y)
            for i in T.Parallel(block):
                y[i] = y[i] + x[i]
            T.copy(y, total[bx * block])

    return add_into


@pytest.mark.parametrize("isolate", [True, False])
def test_a_kernel_that_changes_its_input(isolate: bool) -> None:
    given = [torch.randn(4096, device="cuda") for _ in range(2)]
    kept = [each.clone() for each in given]
    with set_autotune_inputs(*given):
        result = tiledsl.autotune(
            configs=[{"block": 32}, {"block": 128}],
            ref_prog=lambda A, total: total.add_(A),
            isolate=isolate,
            warmup=1,
            rep=5,
        )(tiledsl.jit(accumulate))()
    assert all(trial.ok and trial.verified and trial.timing == "events" for trial in result.trials)
    assert all(torch.equal(now, old) for now, old in zip(given, kept))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices() -> None:
    tuned = tiledsl.autotune(configs=GEMMS, ref_prog=product, devices=[0, 1], warmup=5, rep=20)(
        tiledsl.jit(out_idx=-1)(gemm_builder)
    )
    assert all(trial.ok for trial in tuned(size=1024).trials)


@pytest.mark.parametrize(("backend", "timing"), [("event", "events"), ("cudagraph", "graph")])
def test_the_backend_says_how_calls_are_timed(backend: str, timing: str) -> None:
    options: dict[str, Any] = {"configs": GEMMS[:2], "ref_prog": product, "backend": backend, "warmup": 1, "rep": 10}
    result = tiledsl.autotune(**options)(tiledsl.jit(out_idx=-1)(gemm_builder))(size=1024)
    assert {trial.timing for trial in result.trials} == {timing}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("grouped", [False, True])
def test_several_shapes_on_two_devices(grouped: bool) -> None:
    options: dict[str, Any] = {"devices": [0, 1], "shape_grouped": grouped, "warmup": 5, "rep": 20}
    tuned = tiledsl.autotune(configs=GEMMS, ref_prog=product, **options)(tiledsl.jit(out_idx=-1)(gemm_builder))
    sizes = (512, 1024, 2048)
    results = tuned.tune_all([{"size": size} for size in sizes])
    for size, result in zip(sizes, results):
        assert all(trial.ok and trial.verified for trial in result.trials) and result.best.rounds
        for device in (0, 1):
            A, B = (torch.randn(size, size, dtype=torch.float16, device=f"cuda:{device}") for _ in range(2))
            with torch.cuda.device(device):
                torch.testing.assert_close(result(A, B), A @ B, rtol=1e-2, atol=0.5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tuning_while_the_second_device_is_the_current_one() -> None:
    with torch.cuda.device(1):
        tuned = tiledsl.autotune(configs=GEMMS[:2], ref_prog=product, warmup=1, rep=10, devices=[1])(
            tiledsl.jit(out_idx=-1)(gemm_builder)
        )
        result = tuned(size=1024)
        assert result.ref_latency > 0 and all(trial.verified for trial in result.trials)


def test_a_function_of_several_kernels() -> None:
    from tiledsl.autotuner import tune_function

    inner = tiledsl.autotune(configs=GEMMS[:2], ref_prog=product, warmup=1, rep=10)(
        tiledsl.jit(out_idx=-1)(gemm_builder)
    )

    @tune_function([{"ours": True}, {"ours": False}], ref_prog=lambda A, B: torch.relu(A @ B), warmup=1, rep=10)
    def product_and_relu(A: Any, B: Any, ours: bool = True) -> Any:
        return torch.relu(inner(size=A.shape[0])(A, B) if ours else A @ B)

    A, B = (torch.randn(1024, 1024, dtype=torch.float16, device="cuda") for _ in range(2))
    torch.testing.assert_close(product_and_relu(A, B), torch.relu(A @ B), rtol=1e-2, atol=0.5)
    result = product_and_relu.tune(A, B)
    print(result.table())
    assert all(trial.ok and trial.verified and trial.timing == "events" for trial in result.trials)
    assert inner(size=1024).latency <= result.trials[0].latency * 1.1
