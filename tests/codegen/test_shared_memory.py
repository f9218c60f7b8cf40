"""What kernels take of shared memory on sm_90: what is chosen for a program fits, with every option."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.codegen.test_block_modules import gemm
from tests.gpu.test_access import OPTIONS, SIZES
from tiledsl.runtime.target import Target

LIMIT = Target("cuda", 90).max_shared_bytes
PRODUCTS = (
    ("plain", "float32", 128, 256, 64, 3),
    ("plain", "float32", 128, 128, 64, 6),
    ("add", "float32", 128, 256, 64, 3),
    ("two", "float32", 128, 128, 64, 4),
)
SWEPT = ("default", "tma", "split")
FLAT: Mapping[str, Any] = {"map-grid.persistent": 0}


def product(epilogue: str, dtype: str, block_M: int, block_N: int, block_K: int, stages: int) -> T.PrimFunc:
    size = 4096

    @T.prim_func
    def product(
        A: T.Tensor((size, size), "float16"),
        B: T.Tensor((size, size), "float16"),
        C: T.Tensor((size, size), dtype),
        D: T.Tensor((size, size), dtype),
    ):
        with T.Kernel(size // block_N, size // block_M, threads=256) as (bx, by):
            a = T.alloc_shared((block_M, block_K), "float16")
            b = T.alloc_shared((block_K, block_N), "float16")
            total = T.alloc_fragment((block_M, block_N), "float32")
            other = T.alloc_fragment((block_M, block_N), dtype)
            T.clear(total)
            for k in T.Pipelined(size // block_K, num_stages=stages):
                T.copy(A[by * block_M, k * block_K], a)
                T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, total)
            if epilogue == "add":
                T.copy(D[by * block_M, bx * block_N], other)
                for i, j in T.Parallel(block_M, block_N):
                    total[i, j] += other[i, j]
            T.copy(total, C[by * block_M, bx * block_N])
            if epilogue == "two":
                for i, j in T.Parallel(block_M, block_N):
                    total[i, j] *= 2
                T.copy(total, D[by * block_M, bx * block_N])

    return product


def compiled(program: T.PrimFunc, options: Mapping[str, Any]) -> tiledsl.Kernel:
    return tiledsl.compile(program, target="cuda:90", pass_configs=dict(options))


@pytest.mark.parametrize(
    ("version", "swept"),
    [
        ("3.6", SWEPT[:1]),
        pytest.param("3.6", SWEPT[1:], marks=pytest.mark.slow),
        pytest.param("newest", (), marks=pytest.mark.slow),
    ],
)
def test_all_options_fit(
    shared_bytes: Callable[..., dict[str, int]], version: str, swept: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """What tests/gpu/test_access.py runs; with Triton 3.6, which takes most, sums and epilogues too."""
    python = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    names = OPTIONS if python else SWEPT
    modules = {name: compiled(gemm(*SIZES[0]), OPTIONS[name]).module for name in names}
    for arguments, name in itertools.product(PRODUCTS if swept else (), swept):
        modules["_".join(map(str, (*arguments, name)))] = compiled(product(*arguments), OPTIONS[name]).module
    modules = {name.replace(" ", "_").replace(",", ""): module for name, module in modules.items()}
    found = shared_bytes(modules, **python)
    assert len(found) == len(modules) and min(found.values()) > 32 * 1024
    assert {name: number for name, number in found.items() if number > LIMIT} == {}


def test_sums_as_they_are_go_through_pointers() -> None:
    """Triton 3.6 copies them to shared memory before it gives the operands' back."""
    kernel = compiled(product("plain", "float32", 128, 128, 64, 3), {})
    assert kernel.source.count("_block.load(") == 2 and "_block.store(" not in kernel.source
    (reason,) = [each for each in kernel.remarks if each.startswith("C ")]
    assert "because a copy of what a loop leaves takes shared memory beside the loop's operands" in reason
    for options in ({"split-k.splits": 3}, {"split-k.streams": -1}):
        assert "total_parts_block.store(" not in compiled(product("plain", "float16", 128, 128, 64, 3), options).source
    for program in (product("plain", "float16", 128, 256, 64, 3), product("add", "float32", 128, 256, 64, 3)):
        assert "C_block.store(" in compiled(program, FLAT).source  # computed of the sum: in the operands' place


def test_what_does_not_fit_is_stored_through_pointers_in_any_mode() -> None:
    options = {**FLAT, "select-access.mode": "tma"}
    assert "C_block.store(" in compiled(product("plain", "float32", 128, 128, 64, 4), options).source
    kernel = compiled(product("plain", "float32", 128, 256, 64, 3), options)
    assert "C_block.store(" not in kernel.source
    (reason,) = [each for each in kernel.remarks if each.startswith("C ")]
    assert reason.endswith(
        "is accessed through pointers, because a copy of its tile, 131072 bytes, does not fit in shared memory beside"
        " 147456 bytes of the loop's operands; cuda:90 has 232448"
    )


@pytest.mark.parametrize(("stages", "flat"), [(3, False), (4, True)])
def test_loops_over_blocks_are_flattened_where_two_blocks_fit(stages: int, flat: bool) -> None:
    options = {"select-access.mode": "tma", "map-grid.persistent": 1}
    kernel = compiled(product("plain", "float16", 128, 256, 64, stages), options)
    assert ("flatten=True" in kernel.source) is not flat
    assert any("are not flattened, because" in each for each in kernel.remarks) is flat
