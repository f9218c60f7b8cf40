"""Products with block loads, persistent grids and split sums on a GPU: results, graphs, misaligned tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.codegen.test_block_modules import batched, gemm

pytestmark = pytest.mark.gpu

OPTIONS: dict[str, Mapping[str, Any]] = {
    "default": {},
    "pointer": {"select-access.mode": "pointer"},
    "tma": {"select-access.mode": "tma", "map-grid.persistent": 0},
    "persistent": {"select-access.mode": "tma", "map-grid.persistent": 1},
    "two programs, not flat": {"select-access.mode": "tma", "map-grid.persistent": 2, "map-grid.flatten": False},
    "split": {"split-k.splits": 3},
    "streams": {"split-k.streams": -1},
    "streams through pointers": {"split-k.streams": -2, "select-access.mode": "pointer"},
    "streams with tma": {"split-k.streams": 100, "select-access.mode": "tma"},
    "split, persistent": {"split-k.splits": 4, "select-access.mode": "tma", "map-grid.persistent": 1},
}
SIZES = [(4096, 4096, 512, 128, 256, 64), (1016, 1048, 520, 128, 128, 64), (77, 264, 4096, 64, 128, 64)]


def random(*shape: int, offset: int = 0) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.randn(count + offset, dtype=torch.float16, device="cuda")[offset:].view(shape)


def needs_tma(options: Mapping[str, Any]) -> None:
    if options.get("select-access.mode") == "tma" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the GPU has no tensor memory accelerator")


def check(made: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    expected = a.float() @ b.float()
    assert (made.float() - expected).norm() / expected.norm() < 2e-3


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_products(name: str, size: tuple[int, ...], transposed: bool, offset: int) -> None:
    needs_tma(OPTIONS[name])
    M, N, K, *_ = size
    kernel = tiledsl.compile(gemm(*size, transposed), target="cuda", pass_configs=OPTIONS[name])
    a, b = random(M, K, offset=offset), random(*((N, K) if transposed else (K, N)))
    results = []
    for _ in range(2):
        c = torch.full_like(random(M, N, offset=offset), float("nan"))
        kernel(a, b, c)
        check(c, a, b.T if transposed else b)
        results.append(c)
    assert torch.equal(*results)  # the order of sums is fixed


@pytest.mark.parametrize("name", ["tma", "persistent"])
def test_batches(name: str) -> None:
    needs_tma(OPTIONS[name])
    kernel = tiledsl.compile(batched(5, 200, 96, 136), out_idx=-1, target="cuda", pass_configs=OPTIONS[name])
    a, b = random(5, 200, 136), random(136, 5, 96)
    torch.testing.assert_close(kernel(a, b), torch.einsum("bmk,kbn->bmn", a.float(), b.float()), rtol=1e-2, atol=5e-2)


@pytest.mark.parametrize("name", ["default", "persistent", "split", "streams"])
def test_in_a_graph(name: str) -> None:
    needs_tma(OPTIONS[name])
    M, N, K, *_ = SIZES[0]
    kernel = tiledsl.compile(gemm(*SIZES[0]), target="cuda", pass_configs=OPTIONS[name])
    a, b, c = random(M, K), random(K, N), random(M, N)
    kernel(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, b, c)
    a.copy_(random(M, K))
    c.fill_(float("nan"))
    graph.replay()
    check(c, a, b)


@pytest.mark.parametrize("columns, width", [(7, 8), (8, 8), (4, 16)])
def test_stores_leave_what_lies_beside_the_rows(columns: int, width: int) -> None:
    needs_tma({"select-access.mode": "tma"})

    @T.prim_func
    def store(A: T.Tensor((12, width), "float32"), O: T.StridedTensor((12, columns), (width, 1), "float32")):
        with T.Kernel(6, threads=32) as bx:
            t = T.alloc_fragment((2, width), "float32")
            T.copy(A[bx * 2, 0], t)
            for i, j in T.Parallel(2, width):
                t[i, j] = t[i, j] * 2
            T.copy(t, O[bx * 2 - 1, 0])

    kernel = tiledsl.compile(store, target="cuda", pass_configs={"select-access.mode": "tma"})
    a, memory = torch.randn(12, width, device="cuda"), torch.full((14, width), -7.0, device="cuda")
    expected = memory.clone()
    expected[1:12, :columns] = 2 * a[1:, :columns]  # the first row lies before the tensor
    kernel(a, memory[1:13, :columns])
    torch.testing.assert_close(memory, expected, rtol=0, atol=0)
