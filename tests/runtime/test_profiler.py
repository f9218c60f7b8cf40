"""Inputs, checks and timing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tiledsl.errors import TileError
from tiledsl.runtime.profiler import MismatchError, Profiler, assert_close, do_bench
from tiledsl.runtime.supply import ParamInfo, TensorSupplyType, make_inputs

PARAMS = [
    ParamInfo("a", (8, 16), "float32"),
    ParamInfo("b", (8, 16), "float16"),
    ParamInfo("c", (8, 16), "float32", True),
]


def one(dtype: str, supply: str | TensorSupplyType) -> Any:
    return make_inputs([ParamInfo("x", (1000,), dtype)], supply, "cpu", seed=1)[0]


def test_supplies() -> None:
    values = one("float32", "auto")
    assert values.dtype is torch.float32 and values.min() >= -1 and values.max() < 1 and values.unique().numel() > 500
    assert set(one("int8", "auto").tolist()) == {-2, -1, 0, 1, 2} == set(one("float16", "Integer").tolist())
    assert set(one("uint8", TensorSupplyType.Auto).tolist()) == {0, 1, 2}
    assert set(one("bool", "auto").tolist()) == {False, True}
    assert set(one("float8_e4m3fn", "auto").float().tolist()) == {-2, -1, 0, 1, 2}
    normal, randn = one("bfloat16", "Normal").float(), one("bfloat16", "Randn").float()
    assert 0.8 < normal.std() < 1.2 and -1.2 < normal.mean() < -0.8
    assert 0.8 < randn.std() < 1.2 and -0.2 < randn.mean() < 0.2
    assert one("int32", "zero").sum() == 0 and one("float16", "one").sum() == 1000
    assert torch.equal(one("float32", "randn"), one("float32", "randn"))


def test_supply_errors() -> None:
    with pytest.raises(TileError, match="scalar parameter 'n'"):
        make_inputs([ParamInfo("n", None, "int32")])
    with pytest.raises(TileError, match="unknown tensor supply 'gauss'"):
        TensorSupplyType.parse("gauss")


def add(a: Any, b: Any) -> Any:
    return a + b


def test_profiler_runs_and_checks() -> None:
    profiler = Profiler(add, PARAMS)
    assert [tuple(x.shape) for x in profiler.get_inputs()] == [(8, 16), (8, 16)]
    assert profiler.run_once().shape == (8, 16)
    profiler.assert_allclose(lambda a, b: b + a)
    profiler.assert_allclose(add, rtol=1e-3, atol=1e-3, max_mismatched_ratio=0)
    profiler.assert_consistent(repeat=3)


def test_mismatch_message_has_place_values_and_ratio() -> None:
    def wrong(a: Any, b: Any) -> Any:
        result = a + b
        result[2, 5] = 40.0
        return result

    a, b = torch.ones(8, 16), torch.ones(8, 16)
    profiler = Profiler(wrong, PARAMS)
    profiler.assert_allclose(add, [a, b])  # 1 of 128 is within the default ratio
    with pytest.raises(MismatchError) as caught:
        profiler.assert_allclose(add, [a, b], max_mismatched_ratio=0.0)
    text = str(caught.value)
    assert "1 of 128 elements (0.78%" in text and "(2, 5): 40, the reference has 2" in text
    assert "absolute difference 38, relative 19" in text


def test_nan_is_a_mismatch_unless_expected() -> None:
    nan = torch.full((4,), float("nan"))
    assert_close(nan, nan)
    with pytest.raises(MismatchError):
        assert_close(nan, torch.zeros(4))
    with pytest.raises(MismatchError, match="shape"):
        assert_close(nan, torch.zeros(5))


def test_kernels_that_write_into_their_inputs() -> None:
    def in_place(a: Any, b: Any) -> None:
        a += b

    inputs = [torch.ones(4), torch.ones(4)]
    Profiler(in_place, PARAMS).assert_allclose(in_place, inputs)
    assert inputs[0].sum() == 4
    with pytest.raises(MismatchError):
        Profiler(in_place, PARAMS).assert_allclose(lambda a, b: None, inputs)


def test_inconsistent_kernel() -> None:
    calls: list[int] = []

    def counts(a: Any, b: Any) -> Any:
        calls.append(1)
        return a + len(calls)

    with pytest.raises(MismatchError, match="run 2, against run 1"):
        Profiler(counts, PARAMS, seed=0).assert_consistent()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the wall clock is for machines without a GPU")
def test_timing_without_a_gpu_is_short() -> None:
    calls: list[int] = []
    milliseconds = do_bench(lambda: calls.append(1), warmup=1000, rep=1000)
    assert 0 <= milliseconds < 100 and len(calls) == 4
    low, high = do_bench(lambda: None, quantiles=[0.0, 1.0], _n_warmup=1, _n_repeat=2)
    assert low <= high
    assert Profiler(add, PARAMS).do_bench(warmup=5, rep=5, backend="cupti", input_tensors=[torch.ones(2)] * 2) >= 0
    with pytest.raises(TileError, match="unknown timing backend 'sundial'"):
        do_bench(lambda: None, backend="sundial")  # type: ignore[arg-type]
