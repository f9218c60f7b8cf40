"""Random programs for one thread give on the GPU what threads give that run one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiledsl
from tests.language.test_thread_programs import given, product_of_register_tiles
from tests.support.thread_programs import Program

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(40))
def test_results_are_those_of_single_threads(seed: int) -> None:
    program = Program(seed)
    a = given(seed, program.threads)
    made = tiledsl.compile(tiledsl.parse(program.source), out_idx=[-1])(torch.from_numpy(a).cuda())
    assert np.array_equal(made.cpu().numpy(), program.outputs(a)), program.source


def test_threads_exchange_through_global_memory() -> None:
    text = """@T.prim_func
def main(A: T.Tensor((64, 1024), "int32"), B: T.Tensor((64, 1024), "int32"), C: T.Tensor((64, 1024), "int32")):
    with T.Kernel(64, threads=1024) as p:
        tx = T.get_thread_binding()
        B[p, tx] = A[p, tx]
        for k in T.serial(8):
            T.sync_threads()
            x = T.alloc_var("int32", B[p, (tx * 37 + k) % 1024])
            T.sync_threads()
            B[p, tx] = x + 1
        C[p, tx] = B[p, tx]
"""
    a = torch.randint(0, 1000, (64, 1024), dtype=torch.int32, device="cuda")
    _, made = tiledsl.compile(tiledsl.parse(text), out_idx=[1, 2])(a)
    expected, places = a, torch.arange(1024, device="cuda") * 37
    for k in range(8):
        expected = expected[:, (places + k) % 1024] + 1
    assert torch.equal(made, expected)


def test_a_product_of_register_tiles() -> None:
    a, b = torch.randn(32, 16, device="cuda"), torch.randn(16, 32, device="cuda")
    kernel = tiledsl.compile(product_of_register_tiles(), out_idx=-1)
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
