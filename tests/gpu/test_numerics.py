"""Bits on a GPU: one class of configurations, rows that keep theirs, ten tunings with one result."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.kernels import gemm
from tiledsl.autotuner.verifying.bits import adversarial_inputs, fingerprint

pytestmark = pytest.mark.gpu
TILES = [(64, 64, 32, 3, 128), (128, 128, 64, 4, 256), (64, 128, 64, 3, 128), (128, 64, 32, 4, 128)]
CONFIGS = [dict(zip(("block_M", "block_N", "block_K", "num_stages", "threads"), tile)) for tile in TILES]


def times(A: Any, B: Any) -> Any:
    return A @ B


def tuned(**options: Any) -> Any:
    given = {"configs": CONFIGS, "ref_prog": times, "cache": False, "target": "auto", "progress": False, **options}
    return tiledsl.autotune(**given)(gemm)


def test_tiles_of_a_product_have_the_same_bits() -> None:
    """What the static class says, on 100 inputs: tiles, depths and warps do not show."""
    result = tuned(numerics="same-bits")(512, 512, 1024)
    kernels = [trial.kernel for trial in result.trials if trial.ok]
    assert len(kernels) >= 2
    for seed in range(25):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        plain = [
            torch.rand(size, generator=generator, device="cuda").mul(2).sub(1).half()
            for size in ((512, 1024), (1024, 512))
        ]
        for inputs in (plain, *adversarial_inputs(plain)):
            assert len({fingerprint([kernel(*inputs)]) for kernel in kernels}) == 1


def test_split_k_is_told_apart() -> None:
    split = [{**CONFIGS[0], "pass_configs": {"split-k.splits": 4}}]
    result = tuned(configs=[CONFIGS[0], *split], numerics="same-bits")(128, 128, 4096)
    assert [trial.status for trial in result.trials] == ["ok", "other_bits"]
    inputs = [torch.rand(128, 4096, device="cuda").half() - 0.5, torch.rand(4096, 128, device="cuda").half() - 0.5]
    one, other = (trial.kernel(*inputs) for trial in result.trials)
    assert fingerprint([one]) != fingerprint([other])


def test_ten_tunings_have_one_result() -> None:
    inputs = [torch.rand(1024, 1024, device="cuda").half() - 0.5 for _ in range(2)]
    found = {fingerprint([tuned(numerics="same-bits")(1024, 1024, 1024)(*inputs)]) for _ in range(10)}
    assert len(found) == 1


def test_rows_keep_their_bits() -> None:
    whole = torch.rand(2048, 512, device="cuda").half() - 0.5
    B = torch.rand(512, 256, device="cuda").half() - 0.5
    expected = tuned(numerics="batch-invariant")(2048, 256, 512)(whole, B)
    for rows in (1, 17, 100, 512):
        out = tuned(numerics="batch-invariant")(rows, 256, 512)(whole[:rows].contiguous(), B)
        assert fingerprint([out]) == fingerprint([expected[:rows].contiguous()])


@tiledsl.jit(out_idx=-1)
def sums(M, N, threads=128):
    @T.prim_func
    def sums(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as bx:
            row = T.alloc_fragment((1, N), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(A[bx, 0], row)
            T.reduce_sum(row, total, dim=1)
            T.copy(total, B[bx])

    return sums


def test_warps_that_share_a_sum_are_told_apart() -> None:
    configs = [{"threads": threads} for threads in (32, 128, 256)]
    options = {"configs": configs, "numerics": "same-bits", "ref_prog": lambda A: A.sum(1), "cache": False}
    result = tiledsl.autotune(**options)(sums)(256, 4096)
    assert [trial.status for trial in result.trials] == ["ok", "other_bits", "other_bits"]
    kernels = [trial.kernel for trial in result.trials]
    inputs = next(adversarial_inputs([torch.rand(256, 4096, device="cuda") - 0.5]))
    assert len({fingerprint([kernel(*inputs)]) for kernel in kernels}) > 1
