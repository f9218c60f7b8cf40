"""Ten published ways in which code looks faster than it is (wafer.ai, "A Field Guide to Reward Hacking in AI Kernel
Generation", 2026), and some that are near them: none wins a tuning.

Functions can do all of it. A kernel of tiledsl holds no Python, keeps nothing between calls and starts no stream, so
that of the ten only what its results show is left: identity, no work, too little memory, less precision.
"""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.kernels import gemm
from tiledsl.autotuner import tune_function
from tiledsl.autotuner.measuring.watched import Guard, is_late, joined
from tiledsl.autotuner.trial import Trial

SIZE = 160
A = torch.rand(SIZE, SIZE) * 2 - 1
B = torch.rand(SIZE, SIZE) * 2 - 1
_kept: dict[Any, Any] = {}
_OLD = "gives the results of other values: it keeps them, or does not write|on other values: the output is wrong"


def honest(A: Any, B: Any) -> Any:
    time.sleep(2e-3)  # so that whatever does less is faster
    return A @ B


def trial_of(cheat: Callable[..., Any], *values: Any, ref_prog: Any = torch.matmul, **options: Any) -> Trial:
    """What becomes of a function as a configuration beside an honest one."""

    @tune_function([{"way": "honest"}, {"way": "cheat"}], ref_prog=ref_prog, warmup=1, rep=20, cache=False, **options)
    def product(A: Any, B: Any, way: str) -> Any:
        return honest(A, B) if way == "honest" else cheat(A, B)

    _kept.clear()
    result = product.tune(*(values or (A, B)))
    assert result.config == {"way": "honest"}, result.table()
    return result.trials[1]


def caught(cheat: Callable[..., Any], message: str, *values: Any, **options: Any) -> None:
    trial = trial_of(cheat, *values, **options)
    assert not trial.ok and re.search(message, trial.message), trial


# Timing: 1 another stream (on a GPU: tests/gpu/test_cheats.py), 2 another thread, 3 lazy values, 4 another clock


def test_1_a_stream_of_its_own() -> None:
    assert is_late(1.0, 0.5) and "1 ms on another stream" in is_late(1.0, 0.5)
    assert not is_late(0.02, 0.001) and not is_late(0.4, 10.0)


def test_2_a_thread_of_its_own() -> None:
    def cheat(A: Any, B: Any) -> Any:
        out = torch.zeros(SIZE, SIZE)
        threading.Thread(target=lambda: (time.sleep(0.05), out.copy_(A @ B))).start()
        return out

    caught(cheat, "changes its results after it has returned")


def test_2_threads_that_somebody_else_is_just_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """threading.enumerate names them already, and they cannot be joined."""
    listed, real = list[threading.Thread](), threading.enumerate
    monkeypatch.setattr(threading, "enumerate", lambda: [*real(), *listed])
    monkeypatch.setattr(threading, "active_count", lambda: len(real()) + len(listed))

    def call() -> str:
        listed.append(threading.Thread(target=time.sleep, args=(0.05,)))
        threading.Timer(0.02, listed[0].start).start()
        return "done"

    assert joined(call)() == "done"
    assert listed[0].ident and not listed[0].is_alive()


def test_2_a_thread_that_waits_for_work() -> None:
    import queue

    work: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        while True:
            out, A, B = work.get()
            time.sleep(0.05)
            out.copy_(A @ B)

    def cheat(A: Any, B: Any) -> Any:
        if "thread" not in _kept:
            _kept["thread"] = threading.Thread(target=serve, daemon=True)
            _kept["thread"].start()
        out = torch.zeros(SIZE, SIZE)
        work.put((out, A.clone(), B.clone()))
        return out

    caught(cheat, "changes its results after|wrong in")


class Lazy(torch.Tensor):
    """Computes when it is looked at."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [each._made() if isinstance(each, Lazy) else each for each in args]
        return function(*plain, **(kwargs or {}))

    def _made(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return self.A @ self.B  # type: ignore[attr-defined]


def test_3_a_value_that_is_computed_when_it_is_looked_at() -> None:
    def cheat(A: Any, B: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = torch.empty(SIZE, SIZE).as_subclass(Lazy)
        made.A, made.B = A, B
        return made

    caught(cheat, r"returns .*Lazy, which is no plain torch.Tensor")


@pytest.mark.parametrize("name", ["perf_counter", "monotonic"])
def test_4_a_clock_of_its_own(name: str) -> None:
    original = getattr(time, name)

    def cheat(A: Any, B: Any) -> Any:
        setattr(time, name, lambda: 0.0)
        return A @ B

    caught(cheat, rf"replaces time\.{name}, by which it is measured and checked")
    assert getattr(time, name) is original


@pytest.mark.parametrize(
    "owner", ["torch.isclose", "torch.Tensor.clone", "verify.check_outputs", "timing.WallClock.time"]
)
def test_4_checks_of_its_own(owner: str) -> None:
    from tiledsl.autotuner.verifying import verify
    from tiledsl.runtime import timing

    place, _, name = owner.rpartition(".")
    holder = eval(place, {"torch": torch, "verify": verify, "timing": timing})
    original = vars(holder).get(name)

    def cheat(A: Any, B: Any) -> Any:
        if name == "clone":
            setattr(holder, name, lambda tensor, **_: tensor)
        else:
            setattr(
                holder,
                name,
                original
                if name == "isclose"
                else lambda *_: {"verified": True} if name == "check_outputs" else (None, 1e-6),
            )
            if name == "isclose":
                setattr(holder, name, lambda one, *_, **__: torch.ones_like(one, dtype=torch.bool))
        return torch.zeros(SIZE, SIZE) if name != "time" else A @ B

    trial = trial_of(cheat)
    assert "replaces" in trial.message
    assert vars(holder).get(name) is original
    assert not Guard().meddled()


# Semantics: 5 identity, 6 no work, 7 too little memory, 8 less precision, 9 results that are kept


def test_5_identity() -> None:
    eye = torch.eye(SIZE)
    caught(lambda A, B: A, "wrong in")
    caught(lambda A, B: B, _OLD, torch.ones(SIZE, SIZE) / SIZE, torch.ones(SIZE, SIZE))  # fmt: skip
    del eye


def test_6_no_work() -> None:
    def cheat(A: Any, B: Any) -> Any:
        return torch.empty(SIZE, SIZE)

    for _ in range(8):  # memory that held the right result is free
        torch.matmul(A, B)
    caught(cheat, "NaN or infinite where the reference is not, or not written|wrong in")


def test_6_a_result_that_is_left_from_before() -> None:
    out = torch.empty(SIZE, SIZE)
    calls = []

    def cheat(A: Any, B: Any) -> Any:
        calls.append(None)
        return torch.mm(A, B, out=out) if len(calls) < 3 else out

    caught(cheat, _OLD)


@tiledsl.jit(out_idx=-1)
def kernel(N, variant="right", block=16):
    @T.prim_func
    def kernel(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.Parallel(block):
                if variant == "identity":
                    B[bx * block + i] = A[bx * block + i]
                elif variant == "no work":
                    if bx > N:
                        B[bx * block + i] = 0.0
                elif variant == "half of it":
                    if i < block // 2:
                        B[bx * block + i] = A[bx * block + i] * 3
                elif variant == "constant":
                    B[bx * block + i] = 3.0
                elif variant == "bfloat16":
                    B[bx * block + i] = T.cast(T.cast(A[bx * block + i], "bfloat16"), "float32") * 3
                elif variant == "float16":
                    B[bx * block + i] = T.cast(T.cast(A[bx * block + i], "float16") * 3, "float32")
                else:
                    B[bx * block + i] = A[bx * block + i] * 3

    return kernel


@pytest.mark.parametrize(
    ("variant", "message", "supply"),
    [
        ("identity", "wrong in", "auto"),
        ("identity", "on inputs that cancel: the output is wrong", "zero"),
        ("no work", "not written; wrong in 256 of 256", "auto"),
        ("half of it", "not written; wrong in 128 of 256", "auto"),
        ("constant", "on inputs that cancel: the output is wrong", "one"),
        ("bfloat16", "wrong in", "auto"),
        ("float16", "wrong in", "auto"),
    ],
)
def test_5_6_8_of_kernels(variant: str, message: str, supply: str, timer: Any) -> None:
    timer(lambda config: 1.0 if config["variant"] == "right" else 0.1)
    configs = [{"variant": "right"}, {"variant": variant}]
    tuned = tiledsl.autotune(configs=configs, ref_prog=lambda A: A * 3, supply_type=supply, cache=False)(kernel)
    result = tuned(256)
    assert result.config == {"variant": "right"}
    assert message in result.trials[1].message


def test_7_more_shared_memory_than_there_is() -> None:
    """Known before it is compiled; what Triton needs beyond that is known before it is launched."""
    configs = [{"block_M": 256, "block_N": 256, "block_K": 256 * n, "num_stages": 3, "threads": 256} for n in (1, 2)]
    tuned = tiledsl.autotune(configs=configs, cache=False, skip_check=True, progress=False)(gemm)
    with pytest.raises(tiledsl.TileError, match=r"(?s)none of 2 configurations.*bytes of shared memory"):
        tuned(1024, 1024, 1024)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_8_less_precision(dtype: Any) -> None:
    caught(lambda A, B: (A.to(dtype) @ B.to(dtype)).float(), r"wrong in \d+ of 25600 elements")


def _by_address(A: Any, B: Any) -> Any:
    return A.data_ptr(), B.data_ptr()


def _by_object(A: Any, B: Any) -> Any:
    return id(A), id(B)


def _by_shape(A: Any, B: Any) -> Any:
    return A.shape, B.shape


@pytest.mark.parametrize("key", [_by_address, _by_object, _by_shape])
def test_9_results_that_are_kept(key: Callable[..., Any]) -> None:
    def cheat(A: Any, B: Any) -> Any:
        found = key(A, B)
        if found not in _kept:
            _kept[found] = A @ B
        return _kept[found].clone()

    caught(cheat, _OLD)


def _by_all_values(A: Any, B: Any) -> Any:
    return A.numpy().tobytes(), B.numpy().tobytes()


def _by_a_few_values(A: Any, B: Any) -> Any:
    return tuple(round(float(each.view(-1)[at]), 4) for each in (A, B) for at in (11, 4711))


@pytest.mark.parametrize("key", [_by_all_values, _by_a_few_values])
def test_9_results_that_are_kept_by_values_gain_nothing(key: Callable[..., Any]) -> None:
    """They are computed in each call, since the values are others in each: to look for them only takes time."""
    calls = []

    def cheat(A: Any, B: Any) -> Any:
        found = key(A, B)
        calls.append(found)
        if found not in _kept:
            _kept[found] = honest(A, B)
        return _kept[found].clone()

    @tune_function([{"way": "honest"}, {"way": "cheat"}], ref_prog=torch.matmul, warmup=1, rep=20, cache=False)
    def product(A: Any, B: Any, way: str) -> Any:
        return honest(A, B) if way == "honest" else cheat(A, B)

    _kept.clear()
    trials = product.tune(A, B).trials
    assert len(set(calls)) > 0.9 * len(calls) > 5
    assert trials[1].latency is not None and trials[1].latency > 1.9


# 10 what is not meant: the reference itself, or what it has computed


def test_10_the_result_of_the_reference() -> None:
    """It is found in this process, but it is not that of the values that come after the measurement."""
    results: list[Any] = []

    def reference(A: Any, B: Any) -> Any:
        results.append(A @ B)
        return results[-1]

    def cheat(A: Any, B: Any) -> Any:
        return next(each for each in results if each.dtype is torch.float32).clone()

    caught(cheat, _OLD, ref_prog=reference)


def test_10_what_is_found_in_the_process() -> None:
    def cheat(A: Any, B: Any) -> Any:
        for each in gc.get_objects():
            if type(each).__name__ == "Expected" and each.returned[0].shape == (SIZE, SIZE):
                return each.returned[0].float().clone()
        return A @ B

    caught(cheat, _OLD)


def test_10_inputs_that_it_changes() -> None:
    """The reference works on copies of its own."""

    def cheat(A: Any, B: Any) -> Any:
        A.zero_(), B.zero_()
        return torch.zeros(SIZE, SIZE)

    caught(cheat, "wrong in")


def test_10_what_the_reference_uses() -> None:
    original = torch.isfinite

    def cheat(A: Any, B: Any) -> Any:
        torch.isfinite = lambda tensor: torch.zeros_like(tensor, dtype=torch.bool)  # type: ignore[assignment]
        return torch.full((SIZE, SIZE), torch.nan)

    try:
        assert not trial_of(cheat).ok
    finally:
        assert torch.isfinite is original


def test_shapes_that_are_recognised() -> None:
    """What was computed for a shape before it is tuned."""
    known = {(SIZE, SIZE): A @ B}
    caught(lambda A, B: known[tuple(A.shape)].clone(), _OLD)


def test_honest_functions_are_not_suspected() -> None:
    """Threads that end, outputs that are views, results in place, streams of other libraries: all of it is right."""

    def in_threads(A: Any, B: Any) -> Any:
        out = torch.empty(SIZE, SIZE)
        half = SIZE // 2
        parts = [slice(0, half), slice(half, SIZE)]
        threads = [threading.Thread(target=lambda rows=rows: out[rows].copy_(A[rows] @ B)) for rows in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return out

    for way in (in_threads, lambda A, B: (B.t() @ A.t()).t(), lambda A, B: torch.addmm(torch.zeros(()), A, B)):

        @tune_function([{"n": 0}, {"n": 1}], ref_prog=torch.matmul, warmup=1, rep=10, cache=False)
        def product(A: Any, B: Any, n: int, way: Any = way) -> Any:
            return way(A, B)

        assert [trial.status for trial in product.tune(A, B).trials] == ["ok", "ok"]
