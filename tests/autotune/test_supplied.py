"""What configurations are run on: scalars and dynamic sizes, from the call or supply_prog; smaller shapes to check."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import gemm_builder, scale_block, scale_builder, twice
from tiledsl.autotuner import set_autotune_inputs

BLOCKS = [{"block": 16}, {"block": 32}]


def scaled(block: int = 16) -> Any:
    N = T.dynamic("N")

    @T.prim_func
    def scale_by(A: T.Tensor((N,), "float32"), factor: T.float32, B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            scale_block(A, B, bx, block, factor)

    return scale_by


def reference(A: Any, factor: float) -> Any:
    return A * factor


def tuned(**options: Any) -> Any:
    options = {"configs": BLOCKS, "ref_prog": reference, **options}
    return tiledsl.autotune(**options)(tiledsl.jit(out_idx=-1)(scaled))


def test_who_gives_an_input_that_does_not_fit_is_named() -> None:
    with pytest.raises(tiledsl.TileError, match="A must be float32, but the tensor is int64") as caught:
        tuned(supply_prog=lambda params: [torch.zeros(64, dtype=torch.int64), 2.0])()
    assert caught.value.notes[-1] == "supply_prog gives it"
    with set_autotune_inputs(torch.zeros(64), "2"), pytest.raises(tiledsl.TileError, match="scalar, not str") as caught:
        tuned()()
    assert caught.value.notes[-1] == "set_autotune_inputs gives it"


def test_a_supply_prog_that_raises() -> None:
    with pytest.raises(tiledsl.TileError, match="supply_prog raises ZeroDivisionError") as caught:
        tuned(supply_prog=lambda params: 1 // 0)()
    assert "A: float32['N'], factor: float32" in str(caught.value)


def test_supply_prog_gives_scalars_and_sizes() -> None:
    asked: list[str] = []

    def supply(params: Any) -> list[Any]:
        asked.extend(param.name for param in params)
        return [torch.randn(50), 3.0]

    result = tuned(supply_prog=supply)()
    assert asked == ["A", "factor"] and all(trial.verified for trial in result.trials)
    A = torch.randn(77)
    torch.testing.assert_close(result(A, 0.5), A * 0.5)


def test_set_autotune_inputs_gives_scalars_and_sizes() -> None:
    with set_autotune_inputs(torch.randn(40), 2.0):
        assert all(trial.verified for trial in tuned()().trials)


def test_without_them_it_says_what_is_missing() -> None:
    with pytest.raises(
        tiledsl.TileError, match=r"takes A: float32\['N'\], of which only a call knows the size"
    ) as caught:
        tuned()()
    assert "supply_prog" in str(caught.value) and "set_autotune_inputs" in str(caught.value)


def test_an_eager_call_gives_its_own() -> None:
    @tiledsl.autotune(configs=BLOCKS, ref_prog=reference)
    @tiledsl.jit
    def scale(A, factor, block=16):
        N = T.dynamic("N")
        A: T.Tensor[[N], T.float32]
        factor: T.float32
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            scale_block(A, B, bx, block, factor)
        return B

    A = torch.randn(50)
    torch.testing.assert_close(scale(A, 1.5), A * 1.5)
    assert all(trial.verified for trial in scale.compile(A, 1.5).trials)


def product(A: Any, B: Any) -> Any:
    return A @ B


def test_a_large_program_is_checked_at_a_smaller_shape() -> None:
    seen: list[Any] = []

    def noted(A: Any, B: Any) -> Any:
        seen.append(tuple(A.shape))
        return A @ B

    def tune(**options: Any) -> Any:
        configs = [{"block": 64}, {"block": 128}]
        options = {"target": "cuda:90", "configs": configs, "ref_prog": noted, "cache": False, **options}
        return tiledsl.autotune(**options)(tiledsl.jit(out_idx=-1)(gemm_builder))(size=8192)

    large = tune()
    assert {trial.message for trial in large.trials} == {
        "not verified: too large for the interpreter; pass verify_at={...} for a smaller shape"
    }
    assert not seen and not any(trial.verified for trial in large.trials)
    small = tune(verify_at={"size": 256})
    assert set(seen) == {(256, 256)} and all(trial.verified and not trial.message for trial in small.trials)
    assert small.latency_kind == "estimated" and small.latency == large.latency  # of the whole size
    assert small.kernel.params[0].shape == (8192, 8192)
    with pytest.raises(tiledsl.TileError, match="verify_at names 'sise', which is not a parameter"):
        tune(verify_at={"sise": 256})


def test_a_wrong_program_is_found_at_the_smaller_shape() -> None:
    configs = [{"block": 32, "variant": "half"}, {"block": 64}]
    options: dict[str, Any] = {"target": "cuda:90", "configs": configs, "ref_prog": twice, "verify_at": {"size": 256}}
    result = tiledsl.autotune(**options)(tiledsl.jit(out_idx=-1)(scale_builder))(size=1 << 24)
    assert [trial.status for trial in result.trials] == ["nonfinite", "ok"] and result.config == {"block": 64}
