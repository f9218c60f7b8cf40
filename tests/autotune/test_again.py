"""Further inputs: terms that cancel, other sizes, other values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.autotuner.measuring.again import varied
from tiledsl.autotuner.measuring.inputs import set_autotune_inputs


@tiledsl.jit(out_idx=-1)
def shifted(block=16, variant="right"):
    N = T.dynamic("N")

    @T.prim_func
    def shifted(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.Parallel(block):
                if variant == "for one size":
                    B[bx * block + i] = A[bx * block + i] + T.if_then_else(N == 96, 1.0, 2.0)
                elif variant == "of a constant":
                    B[bx * block + i] = 1.0
                else:
                    B[bx * block + i] = A[bx * block + i] + 1

    return shifted


def plus_one(A: Any) -> Any:
    return A + 1


def tuned(*variants: str, **options: Any) -> Any:
    configs = [{"variant": variant, "block": 16 + 16 * n} for n, variant in enumerate(variants)]
    return tiledsl.autotune(configs=configs, cache=False, **{"ref_prog": plus_one, **options})(shifted)


def test_a_kernel_that_knows_its_size_is_found(timer: Any) -> None:
    timer(lambda config: 1.0 if config["variant"] == "right" else 0.1)
    with set_autotune_inputs(torch.rand(96)):
        result = tuned("right", "for one size")()
    assert [trial.status for trial in result.trials] == ["ok", "mismatch"]
    message = result.trials[1].message
    assert message.startswith("on another size (N = 64): the output is wrong in 64 of 64 elements")


def test_inputs_on_which_no_configuration_is_right_do_not_count(timer: Any) -> None:
    timer(lambda config: 1.0)
    with set_autotune_inputs(torch.rand(96)):
        result = tuned("for one size", "for one size")()
    assert all(trial.ok and trial.doubts for trial in result.trials)


@tiledsl.jit(out_idx=-1)
def product(K, variant="right", block_K=16):
    @T.prim_func
    def product(A: T.Tensor((16, K), "float32"), B: T.Tensor((K, 16), "float32"), C: T.Tensor((16, 16), "float32")):
        with T.Kernel(1):
            A_s = T.alloc_shared((16, block_K), "float32")
            B_s = T.alloc_shared((block_K, 16), "float32")
            acc = T.alloc_fragment((16, 16), "float32")
            T.clear(acc)
            for k in T.serial(T.ceildiv(K, block_K)):
                T.copy(A[0, k * block_K], A_s)
                T.copy(B[k * block_K, 0], B_s)
                if variant == "sizes only":
                    for i, j in T.Parallel(16, block_K):
                        A_s[i, j] = T.abs(A_s[i, j])
                T.gemm(A_s, B_s, acc)
            T.copy(acc, C[0, 0])

    return product


def test_inputs_that_cancel_show_what_positive_ones_do_not(timer: Any) -> None:
    """A kernel that drops signs is right on positive inputs; those that are drawn instead of them are of both signs."""
    timer(lambda config: 1.0)
    configs = [{"variant": "right"}, {"variant": "sizes only"}]
    options = {"ref_prog": lambda A, B: A @ B, "cache": False}
    positive = tiledsl.autotune(configs=configs, supply_type="one", **options)(product)(64)
    assert [trial.status for trial in positive.trials] == ["ok", "ok"]  # constants say little; see the next ones
    drawn = tiledsl.autotune(configs=configs, **options)(product)(64)
    assert [trial.status for trial in drawn.trials] == ["ok", "mismatch"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_varied_values_keep_signs_and_sizes(dtype: Any) -> None:
    values = torch.cat([torch.randn(100), torch.tensor([0.0, float("nan")])]).to(dtype)
    tensors = [varied(values, turn).double() for turn in range(2)]
    wide = values.double()
    for each in tensors:
        assert (each[:100].abs() <= wide[:100].abs()).all() and (each[:100] * wide[:100] >= 0).all()
        assert each[100] == 0 and each[101].isnan()
        assert ((each - wide)[:100].abs() > wide[:100].abs() / 16).double().mean() > 0.5
    assert not torch.equal(tensors[0][:100], tensors[1][:100])
    assert torch.equal(varied(torch.arange(5), 1), torch.arange(5))


def test_constants_become_values_of_their_own() -> None:
    assert varied(torch.ones(64), 0).unique().numel() > 32
    assert (varied(torch.zeros(64), 0) > 0).all()
