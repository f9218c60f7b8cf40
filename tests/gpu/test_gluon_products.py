"""Matrix products written in Gluon give what torch gives, on a Hopper GPU."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
from benchmarks.programs.gemm import matmul
from tests.support.example_modules import load_example

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def compiled(function: Any, sizes: dict[str, Any], options: dict[str, Any] | None = None) -> tiledsl.Kernel:
    configs = {"select-emitter.backend": "gluon", **(options or {})}
    kernel = tiledsl.jit(function, pass_configs=configs).compile(**sizes)
    assert "@gluon.jit" in kernel.source, kernel.remarks
    return kernel


def check(out: Any, want: Any, bound: float) -> None:
    assert float((out.float() - want).norm() / want.norm()) < bound  # NaN fails, too


PLAIN: list[dict[str, Any]] = [
    {},
    {"num_stages": 2},
    {"M": 1000, "N": 1032, "K": 1000},  # all ragged
    {"M": 128, "N": 7168, "K": 2048, "block_K": 128, "num_stages": 4},
    {"M": 128, "N": 2048, "K": 4096, "splits": 4},
    {"block_M": 64, "block_N": 256},
    {"block_M": 192, "M": 1000, "block_N": 128, "num_stages": 4},
    {"block_N": 256, "num_stages": 3, "M": 4096, "N": 4096},  # several items for each program
    {"K": 128},  # two steps
    {"dtype": "float16"},
]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_products_match_torch(case: dict[str, Any], persistent: bool) -> None:
    import torch

    tiles = {"block_M": 128, "block_N": 64, "block_K": 64, "num_stages": 6, "dtype": "bfloat16"}
    sizes = {"M": 512, "N": 1024, "K": 1024, **tiles, **case}
    kernel = compiled(matmul.function, sizes, {"select-emitter.persistent": persistent})
    dtype = getattr(torch, sizes["dtype"])
    torch.manual_seed(0)
    a = torch.randn(sizes["M"], sizes["K"], device="cuda").to(dtype)
    b = torch.randn(sizes["N"], sizes["K"], device="cuda").to(dtype)
    for _ in range(3):
        out = torch.full((sizes["M"], sizes["N"]), float("nan"), dtype=dtype, device="cuda")
        kernel(a, b, out)
        check(out, a.float() @ b.float().T, 5e-3)


SCALED: list[dict[str, Any]] = [
    {},
    {"M": 1000, "N": 1000, "K": 1920},  # an odd number of steps, the last rows and columns ragged
    {"M": 1000, "N": 200, "K": 400},  # the last scale block ragged
    {"block_M": 192, "num_stages": 4},
    {"block_M": 64, "block_N": 64},
    {"K": 256, "num_stages": 2},
    {"M": 4096, "N": 4096, "K": 512},
]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("case", SCALED, ids=str)
def test_scaled_blocks_match_torch(case: dict[str, Any], overlap: bool) -> None:
    import torch

    example = load_example("gemm_fp8_blockscale")
    sizes = {"M": 512, "N": 1024, "K": 2048, "block_M": 128, "block_N": 128, "num_stages": 5, **case}
    kernel = compiled(example.matmul_blockscale.function, sizes, {"select-emitter.overlap": overlap})
    M, N, K = (sizes[name] for name in "MNK")
    torch.manual_seed(0)
    x, w = (torch.randn(rows, K, device="cuda").to(torch.float8_e4m3fn) for rows in (M, N))
    x_scale = torch.rand(M, -(-K // 128), device="cuda") + 0.5
    w_scale = torch.rand(-(-N // 128), -(-K // 128), device="cuda") + 0.5
    want = example.reference(x.double(), w.double(), x_scale.double(), w_scale.double()).float()
    for _ in range(3):
        out = torch.full((M, N), float("nan"), dtype=torch.bfloat16, device="cuda")
        kernel(x, w, x_scale, w_scale, out)
        check(out, want, 5e-3)


@pytest.mark.parametrize(("block_M", "block_N"), [(128, 128), (64, 128), (128, 256)])
def test_an_epilogue_with_bias_and_residual(block_M: int, block_N: int) -> None:
    import torch

    example = load_example("gemm_epilogue")
    M, N, K = 1000, 776, 520
    kernel = compiled(example.linear.function, {"M": M, "N": N, "K": K, "block_M": block_M, "block_N": block_N})
    torch.manual_seed(0)
    x, w, bias, r = (torch.randn(*shape, device="cuda").to(torch.bfloat16) for shape in ((M, K), (N, K), (N,), (M, N)))
    want = r.float() + torch.nn.functional.gelu(x.float() @ w.float().T + bias.float(), approximate="tanh")
    check(kernel(x, w, bias, r), want, 5e-3)
