"""Sizes of 0 on a GPU: nothing is launched over an empty grid, sums of nothing are what they start with, and no
descriptor is made of an empty tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gemm import matmul
from tests.runtime.test_empty_tensors import double, eager, first, product, summed, top
from tests.support.example_modules import load_example

pytestmark = pytest.mark.gpu

TMA = {"select-access.mode": "tma"}
ACCESSES: dict[str, dict[str, Any]] = {
    "pointer": {"select-access.mode": "pointer"},
    "tma": TMA,
    "persistent": {**TMA, "map-grid.persistent": 1},
}
M, K = T.dynamic("M, K")
WIDTH = 512


@T.prim_func
def wide_rows(
    A: T.StridedTensor((M, K), (WIDTH, 1), "float16"),
    B: T.StridedTensor((256, K), (WIDTH, 1), "float16"),
    C: T.Tensor((M, 256), "float32"),
):
    """A product whose factors have descriptors for each K, as their rows are apart by a constant."""
    with T.Kernel(4, T.ceildiv(M, 128), threads=256) as (bx, by):
        a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
            T.copy(A[by * 128, k * 64], a)
            T.copy(B[bx * 64, k * 64], b)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 128, bx * 64])


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


def half(*shape: int) -> torch.Tensor:
    return ones(*shape, dtype=torch.float16)


def compiled(program: Any, **options: Any) -> Any:
    return tiledsl.compile(program, out_idx=[-1], target="cuda", pass_configs=options)


def needs_tma(options: dict[str, Any]) -> None:
    if options["select-access.mode"] == "tma" and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the GPU has no tensor memory accelerator")


@pytest.mark.parametrize("warm", [False, True])
def test_empty_grids(warm: bool) -> None:
    """In the first call of a kernel, and in one that the plan of a warm call serves."""
    kernel = compiled(double)
    for shape in [*([(33, 20)] * 4 * warm), (0, 5), (5, 0), (0, 0), (33, 20)]:
        assert torch.equal(kernel(ones(*shape)), 2 * ones(*shape))
        assert torch.equal(kernel.bind(ones(*shape))(), 2 * ones(*shape))
    torch.cuda.synchronize()


@pytest.mark.parametrize("access", ACCESSES)
def test_sums_of_nothing(access: str) -> None:
    needs_tma(ACCESSES[access])
    sums, products = compiled(summed, **ACCESSES[access]), compiled(product, **ACCESSES[access])
    for _ in range(3):
        for rows, columns in ((5, 0), (0, 5), (40, 33)):
            assert sums(ones(rows, columns)).tolist() == [4.0 + columns] * rows
        for m, n, k in ((3, 5, 0), (0, 5, 4), (3, 0, 4), (40, 33, 70)):
            assert torch.equal(products(half(m, k), half(k, n)), torch.full((m, n), float(k), device="cuda"))
    torch.cuda.synchronize()


@pytest.mark.parametrize("access", ACCESSES)
def test_products_along_a_dimension_of_nothing(access: str) -> None:
    needs_tma(ACCESSES[access])
    kernel = compiled(wide_rows, **ACCESSES[access])
    assert ("_descriptor(A, " in kernel.source) == (access != "pointer")
    a, b = half(300, WIDTH), half(256, WIDTH)
    for _ in range(2):
        for rows, depth in ((300, WIDTH), (300, 0), (0, 64), (0, 0), (300, 72)):
            made = kernel(a[:rows, :depth], b[:, :depth])
            assert torch.equal(made, torch.full((rows, 256), float(depth), device="cuda"))
    torch.cuda.synchronize()


@pytest.mark.parametrize("access", ["pointer", "tma"])
def test_blocks_of_an_empty_tensor(access: str) -> None:
    needs_tma(ACCESSES[access])
    kernel = tiledsl.compile(top, target="cuda", pass_configs=ACCESSES[access])
    for rows in (0, 1, 0, 1):
        made, written = ones(16, 32), ones(rows, 32) * 3
        kernel(ones(rows, 32), made, written)
        assert made.sum().item() == 32 * rows and written.sum().item() == 32 * rows
    assert compiled(first)(ones(4, 0)).tolist() == [1.0] * 4


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0), (2, 3)])
def test_sizes_that_are_compiled_for(sizes: tuple[int, int]) -> None:
    function = tiledsl.jit(eager.function, target="cuda")
    assert function(ones(*sizes)).tolist() == [4.0 + sizes[1]] * sizes[0]


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("persistent", [True, False])
def test_products_in_gluon(persistent: bool) -> None:
    options = {"select-emitter.backend": "gluon", "select-emitter.persistent": persistent}
    tiles = {"block_M": 128, "block_N": 64, "block_K": 64, "dtype": "bfloat16"}
    function = tiledsl.jit(matmul.function, out_idx=[-1], target="cuda", pass_configs=options)
    for number, (m, n, k) in enumerate([(0, 256, 256), (128, 0, 256), (128, 256, 0)]):
        kernel = function.compile(M=m, N=n, K=k, **tiles)
        assert ("@gluon.jit" in kernel.source) == (number < 2)  # a loop of no turns is none
        a, b = ones(m, k, dtype=torch.bfloat16), ones(n, k, dtype=torch.bfloat16)
        assert torch.equal(kernel(a, b), torch.zeros(m, n, dtype=torch.bfloat16, device="cuda"))
    kernel = function.compile(M=T.dynamic("M"), N=256, K=256, **tiles)
    assert "@gluon.jit" in kernel.source
    for rows in (0, 300, 0, 300, 0):
        made = kernel(ones(rows, 256, dtype=torch.bfloat16), ones(256, 256, dtype=torch.bfloat16))
        assert torch.equal(made, torch.full((rows, 256), 256.0, dtype=torch.bfloat16, device="cuda"))
    torch.cuda.synchronize()


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("persistent", [True, False])
def test_attention_to_nothing_in_gluon(persistent: bool) -> None:
    """Without keys Gluon's kernel gives what Triton's gives: the pipeline's loop has no turn."""
    example = load_example("attention")
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 256, "keys": T.dynamic("S"), "dim": 64, "causal": True}
    kernels = []
    for backend in ("gluon", "triton"):
        options = {"select-emitter.backend": backend}
        if backend == "gluon":
            options["select-emitter.persistent"] = persistent  # type: ignore[assignment]
        made = tiledsl.jit(example.attention.function, out_idx=[3, 4], target="cuda", pass_configs=options)
        kernels.append(made.compile(**sizes))
        assert ("@gluon.jit" in kernels[-1].source) == (backend == "gluon")
    torch.manual_seed(0)
    q = torch.randn(1, 2, 256, 64, device="cuda").half()
    for keys in (300, 0, 64, 0):
        k, v = (torch.randn(1, 1, keys, 64, device="cuda").half() for _ in range(2))
        ours, theirs = (kernel(q, k, v) for kernel in kernels)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-2, atol=1e-2, equal_nan=True)
    torch.cuda.synchronize()
