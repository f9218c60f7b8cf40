"""Modules that move blocks through descriptors and share a persistent grid: text, compilers, results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support.example_modules import load_example
from tiledsl.kernels.kernel import Kernel

TMA = {"select-access.mode": "tma"}
PERSISTENT = {**TMA, "map-grid.persistent": 1}


def gemm(M: Any, N: int, K: int, block_M: int, block_N: int, block_K: int, transposed: bool = False) -> T.PrimFunc:
    B_shape, B_tile = ((N, K), (block_N, block_K)) if transposed else ((K, N), (block_K, block_N))

    @T.prim_func
    def gemm(A: T.Tensor((M, K), "float16"), B: T.Tensor(B_shape, "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=256) as (bx, by):
            a = T.alloc_shared((block_M, block_K), "float16")
            b = T.alloc_shared(B_tile, "float16")
            total = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(4)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, k * block_K], a)
                if transposed:
                    T.copy(B[bx * block_N, k * block_K], b)
                else:
                    T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, total, transpose_B=transposed)
            T.copy(total, C[by * block_M, bx * block_N])

    return gemm


def batched(batch: int, M: int, N: int, K: int) -> T.PrimFunc:
    @T.prim_func
    def batched(
        A: T.Tensor((batch, M, K), "float16"),
        B: T.Tensor((K, batch, N), "float16"),
        C: T.Tensor((batch, M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, 16), T.ceildiv(M, 32), batch, threads=128) as (bx, by, bz):
            a = T.alloc_shared((32, 16), "float16")
            b = T.alloc_shared((16, 16), "float16")
            total = T.alloc_fragment((32, 16), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
                T.copy(A[bz, by * 32, k * 16], a)
                T.copy(B[k * 16 : k * 16 + 16, bz, bx * 16 : bx * 16 + 16], b)
                T.gemm(a, b, total)
            T.copy(total, C[bz, by * 32, bx * 16])

    return batched


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half()


def interpreted(program: T.PrimFunc, options: Mapping[str, Any]) -> Kernel:
    kernel = tiledsl.compile(program, out_idx=-1, target="interpret", pass_configs=dict(options))
    assert "_descriptor(" in kernel.source
    return kernel


@pytest.mark.parametrize("options", [TMA, PERSISTENT, {**PERSISTENT, "map-grid.persistent": 2}], ids=["flat", "1", "2"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [(96, 64, 64), (70, 56, 40), (16, 24, 64)], ids=str)
def test_gemm(size: tuple[int, int, int], transposed: bool, options: Mapping[str, Any]) -> None:
    M, N, K = size
    a, b = half(M, K), half(*((N, K) if transposed else (K, N)))
    made = interpreted(gemm(M, N, K, 32, 16, 16, transposed), options)(a, b)
    expected = a.float() @ (b.T if transposed else b).float()
    torch.testing.assert_close(made.float(), expected, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("options", [TMA, PERSISTENT], ids=["flat", "persistent"])
def test_batch_indices_outside_and_between(options: Mapping[str, Any]) -> None:
    a, b = half(3, 40, 24), half(24, 3, 32)
    made = interpreted(batched(3, 40, 32, 24), options)(a, b)
    torch.testing.assert_close(made, torch.einsum("bmk,kbn->bmn", a.float(), b.float()), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("rows", [1, 31, 64, 100])
def test_dynamic_rows(rows: int) -> None:
    kernel = interpreted(gemm(T.dynamic("rows"), 32, 48, 32, 16, 16), PERSISTENT)
    a, b = half(rows, 48), half(48, 32)
    torch.testing.assert_close(kernel(a, b).float(), a.float() @ b.float(), rtol=1e-2, atol=2e-2)


def test_tensors_that_do_not_begin_at_a_multiple_of_16_bytes() -> None:
    kernel = tiledsl.compile(gemm(48, 32, 32, 32, 16, 16), target="interpret", pass_configs=PERSISTENT)
    a, b = half(48 * 32 + 3)[3:].view(48, 32), half(32, 32)
    around = torch.full((48 * 32 + 2,), 7.0).half()
    c = around[1:-1].view(48, 32)
    assert a.data_ptr() % 16 and c.data_ptr() % 16
    kernel(a, b, c)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=1e-2, atol=2e-2)
    assert around[0] == around[-1] == 7


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    attention = load_example("attention").attention
    arguments = {"causal": causal, "block_M": 32, "block_N": 16, "threads": 128, "num_stages": 2}
    sizes = (1, 2, 2, 48, 48, 16)
    bound = attention._bind(sizes, arguments)
    kernel = attention.kernel_for(bound, {"pass_configs": TMA, "target": "interpret"})
    assert "_descriptor(" in kernel.source
    q, k, v = (half(1, 2, 48, 16 + n)[..., :16].contiguous() for n in range(3))
    made = kernel(q, k, v)[0]
    expected = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal)
    torch.testing.assert_close(made.float(), expected, rtol=1e-2, atol=1e-2)


# Compiled for sm_90


LARGE = (4096, 4096, 4096, 128, 256, 64)


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    kernels = {
        "large": gemm(*LARGE),
        "ragged": gemm(4091, 5120, 1024, 128, 128, 64, transposed=True),
        "few_blocks": gemm(256, 512, 4096, 128, 256, 64),
        "batched": batched(3, 40, 32, 24),
    }
    options = {"batched": PERSISTENT}
    return {
        name: tiledsl.compile(each, out_idx=-1, target="cuda:90", pass_configs=options.get(name)).module
        for name, each in kernels.items()
    }


def test_persistent_gemm_reads_well(modules: dict[str, Any]) -> None:
    source = modules["large"].source
    lines = source[source.index("@triton.jit(") : source.index("def gemm_into")].rstrip().splitlines()
    assert [line for line in lines if "# " not in line] == [
        '@triton.jit(do_not_specialize=["programs"])',
        "def gemm_kernel(programs, A_block, B_block, C_block):",
        "    program = tl.program_id(0)",
        "    for block in tl.range(program, 512, programs, flatten=True):",
        "        panel = block // 64",
        "        first = panel * 4",
        "        within = block % 64",
        "        by = first + within % 4",
        "        bx = within // 4",
        "        A_C_start = by * 128",
        "        B_C_start = bx * 256",
        "        total = tl.zeros((128, 256), tl.float32)",
        "        for k in tl.range(64, num_stages=3):",
        "            A_B_start = k * 64",
        "            a = A_block.load([A_C_start, A_B_start])",
        "            b = B_block.load([A_B_start, B_C_start])",
        "            total = tl.dot(a, b, total)",
        "        C_block.store([A_C_start, B_C_start], total.to(tl.float16))",
    ]
    assert "A_block = _descriptor(A, (4096, 4096), (4096, 1), (128, 64))" in source
    assert "programs = min(_multiprocessors(A.device), 512)" in source


def test_only_large_tiles_on_long_grids_are_persistent(modules: dict[str, Any]) -> None:
    assert {name for name, module in modules.items() if "flatten=True" in module.source} == {"large", "batched"}
    assert all(".load([" in module.source for module in modules.values())


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_blocks_are_copied_by_the_tma(
    modules: dict[str, Any], compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    made = {name: (error, ttgir) for name, error, ttgir in compile_modules(modules, **options)}
    assert not any(error for error, _ in made.values()), made
    for _, ttgir in made.values():
        assert "async_tma_copy_global_to_local" in ttgir and "async_tma_copy_local_to_global" in ttgir
        assert "async_copy_global_to_local" not in ttgir.replace("async_tma_copy", "")
