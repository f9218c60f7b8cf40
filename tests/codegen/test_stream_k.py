"""Modules whose programs share the iterations of all blocks (split-k.streams): text, compilers, results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
from tests.codegen.test_block_modules import gemm, half

SIZES = {
    "some_whole": (3072, 3072, 1024, 128, 256, 64),  # 288 blocks: one for each of 132 programs, and 156 shared
    "all_shared": (1024, 1024, 4096, 128, 128, 64),  # 64 blocks: none is computed by one program
}


@pytest.fixture(scope="module")
def modules() -> dict[str, Any]:
    options = {"split-k.streams": -1}
    return {
        name: tiledsl.compile(gemm(*size), out_idx=-1, target="cuda:90", pass_configs=options).module
        for name, size in SIZES.items()
    }


def kernel_lines(source: str, name: str) -> list[str]:
    text = source[source.index(f"def {name}(") :].split("\n\n\n")[0]
    return [line for line in text.splitlines() if "# " not in line]


def test_reads_well(modules: dict[str, Any]) -> None:
    source = modules["all_shared"].source
    assert "total_parts = torch.empty((33792, 128), dtype=torch.float32, device=A.device)" in source
    assert kernel_lines(source, "gemm_kernel") == [
        "def gemm_kernel(A_block, B_block, total_parts):",
        "    program = tl.program_id(0)",
        "    index = program * 4096",
        "    first_step = index // 132",
        "    end_step = (program + 1) * 4096 // 132",
        "    first_block = index // 8448",
        "    end_block = (end_step + 63) // 64",
        "    total_parts_start = program * 16384",
        "    total_parts_offsets = tl.arange(0, 128)[:, None] * 128 + tl.arange(0, 128)[None, :]",
        "    for block in range(first_block, end_block):",
        "        index_1 = block * 64",
        "        first = tl.maximum(first_step - index_1, 0)",
        "        end = tl.minimum(end_step - index_1, 64)",
        "        panel = block // 32",
        "        first_1 = panel * 4",
        "        within = block % 32",
        "        by = first_1 + within % 4",
        "        bx = within // 4",
        "        A_start = by * 128",
        "        B_start = bx * 128",
        "        total = tl.zeros((128, 128), tl.float32)",
        "        for k in tl.range(first, end, num_stages=3):",
        "            A_B_start = k * 64",
        "            a = A_block.load([A_start, A_B_start])",
        "            b = B_block.load([A_B_start, B_start])",
        "            total = tl.dot(a, b, total)",
        "        begins = tl.where(first == 0, 132, 0)",
        "        total_parts_pointers = total_parts + begins * 16384 + total_parts_start + total_parts_offsets",
        "        tl.store(total_parts_pointers, total)",
    ]
    added = kernel_lines(source, "gemm_sum")
    assert "        total = total + total_parts_tile" in added and not any(" if " in line for line in added)


def test_whole_blocks_are_finished_at_once(modules: dict[str, Any]) -> None:
    source = modules["some_whole"].source
    first, second = kernel_lines(source, "gemm_kernel"), kernel_lines(source, "gemm_sum")
    assert "    for turn in range(first_block, end_block + 1):" in first
    assert "            C_block.store([A_C_start, B_C_start], total.to(tl.float16))" in first
    assert "    if first < last:" in second and "gemm_sum[(156,)](" in source
    assert "atomic" not in source


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_compiles_with_its_pipeline(
    modules: dict[str, Any], compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    made = compile_modules(modules, **options)
    assert len(made) == 4 and not any(error for _, error, _ in made), made
    shared = [ttgir for _, _, ttgir in made if "ttng.warp_group_dot" in ttgir]
    assert len(shared) == 2  # of each module, one kernel multiplies
    for ttgir in shared:
        assert "async_tma_copy_global_to_local" in ttgir and "ttg.local_alloc : () -> !ttg.memdesc<3x" in ttgir
        assert ttgir.count(" ttg.convert_layout ") == 1  # of the parts, where they are stored


@pytest.mark.parametrize("options", [{}, {"select-access.mode": "tma"}], ids=["plain", "blocks"])
@pytest.mark.parametrize("streams", [3, 5, 8])
@pytest.mark.parametrize("size", [(96, 64, 64), (70, 56, 88), (40, 24, 160)], ids=str)
def test_results(size: tuple[int, int, int], streams: int, options: dict[str, Any]) -> None:
    M, N, K = size
    options = {**options, "split-k.streams": streams}
    kernel = tiledsl.compile(gemm(M, N, K, 32, 16, 16), out_idx=-1, target="interpret", pass_configs=options)
    assert "gemm_sum" in kernel.source or "evenly" in kernel.remarks[0]
    a, b = half(M, K), half(K, N)
    made = kernel(a, b)
    torch.testing.assert_close(made.float(), a.float() @ b.float(), rtol=1e-2, atol=2e-2)
    assert torch.equal(made, kernel(a, b))
