"""The matrix product with an epilogue fits in shared memory at its real shape."""

from __future__ import annotations

import torch

import tiledsl
from tests.support.example_modules import load_example


def test_an_epilogue_that_reads_a_tile_leaves_the_grid_flat() -> None:
    example = load_example("gemm_epilogue")
    tensors = [torch.empty(sizes, dtype=torch.bfloat16) for sizes in ((8192, 256), (8192, 256), (8192,), (8192, 8192))]
    linear = tiledsl.jit(example.linear.function, target="cuda:90")
    kernel = linear.compile(*tensors, activation=example.gelu, block_M=128, block_N=256, block_K=64)
    assert "flatten" not in kernel.source
    assert kernel.resources.shared_bytes <= kernel.target.max_shared_bytes
