"""Peeled loops on a GPU: attention whose program masks every tile, and products whose last tile is not full."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tiledsl
from tests.codegen.test_block_modules import gemm
from tests.passes.test_peel_loops import POINTERS
from tests.passes.test_peeled_programs import forward, in_window, run_head

pytestmark = pytest.mark.gpu
PEELED = {**POINTERS, "peel-loops.mode": "all"}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16, device="cuda")


@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("tiles", [(128, 128), (128, 64), (64, 128)], ids=str)
@pytest.mark.parametrize("length", [100, 1000])
@pytest.mark.parametrize("dim", [64, 128])
def test_causal_attention(dim: int, length: int, tiles: tuple[int, int], persistent: int) -> None:
    options = {**PEELED, "map-grid.persistent": persistent}
    kernel = tiledsl.compile(forward(length, dim, *tiles, 256), out_idx=-1, target="cuda", pass_configs=options)
    if length > 128:
        assert sum(line.lstrip().startswith("for tile ") for line in kernel.source.splitlines()) == 2
    q, k, v = (random(length, dim) for _ in range(3))
    expected = F.scaled_dot_product_attention(*(each[None].float() for each in (q, k, v)), is_causal=True)[0]
    for _ in range(2):
        torch.testing.assert_close(run_head(kernel, q, k, v).float(), expected, rtol=1e-2, atol=4e-3)


@pytest.mark.parametrize("mode", ["off", "auto", "causal"])
@pytest.mark.parametrize("tiles", [(128, 128, 256), (128, 64, 128)], ids=str)
@pytest.mark.parametrize("dim", [64, 128])
def test_window(dim: int, tiles: tuple[int, int, int], mode: str) -> None:
    """Rows that see nothing of their block's first tile: exp2(m * scale - m * scale), fused, is infinite at dim 64."""
    options = {**POINTERS, "peel-loops.mode": mode}
    program = forward(2000, dim, *tiles, window=900)
    kernel = tiledsl.compile(program, out_idx=-1, target="cuda", pass_configs=options)
    q, k, v = (random(2000, dim) for _ in range(3))
    torch.testing.assert_close(run_head(kernel, q, k, v).float(), in_window(q, k, v, 900), rtol=1e-2, atol=4e-3)


@pytest.mark.parametrize("more", [{}, {"split-k.splits": 3}], ids=["", "split"])
@pytest.mark.parametrize("depth", [4100, 1000, 70, 33])
def test_ragged_depth(depth: int, more: dict[str, int]) -> None:
    program = gemm(520, 1000, depth, 128, 128, 64)
    kernel = tiledsl.compile(program, target="cuda", pass_configs={**PEELED, **more})
    a, b, c = random(520, depth), random(depth, 1000), random(520, 1000).fill_(float("nan"))
    kernel(a, b, c)
    expected = a.float() @ b.float()
    assert (c.float() - expected).norm() / expected.norm() < 2e-3
