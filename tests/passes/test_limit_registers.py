"""limit-registers: which kernels are held to the registers of two blocks, and what Triton makes of it."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.codegen.test_block_modules import gemm
from tests.passes.test_peel_loops import POINTERS, forward
from tiledsl.errors import TileError

BOTH = {"block_M": 128, "block_N": 128, "threads": 256}


def source(program: T.PrimFunc, target: str = "cuda:90", **options: Any) -> str:
    return tiledsl.compile(program, target=target, pass_configs={**POINTERS, **options}).source


def test_two_blocks_of_attention_run_on_a_multiprocessor() -> None:
    kernel = tiledsl.compile(forward(4096, 64, **BOTH), target="cuda:90", pass_configs=POINTERS)
    assert "maxnreg=128" in kernel.source
    found = kernel.resources
    assert found.registers is not None and found.registers <= 128 and found.spills == 0
    other = tiledsl.compile(
        forward(4096, 64, **BOTH), target="cuda:90", pass_configs={**POINTERS, "limit-registers.mode": "off"}
    )
    assert "maxnreg" not in other.source and (other.resources.registers or 0) > 128


@pytest.mark.parametrize(
    ("dim", "tile"),
    [
        (64, (128, 64, 256)),  # takes less anyway
        (64, (128, 128, 128)),  # takes more than two blocks have
        (128, (128, 128, 256)),
        (128, (128, 64, 256)),  # carries more
        (64, (128, 64, 512)),  # would spill
    ],
)
def test_other_kernels_stay(dim: int, tile: tuple[int, int, int]) -> None:
    assert "maxnreg" not in source(forward(4096, dim, *tile))


def test_other_targets_products_and_given_numbers_stay() -> None:
    assert "maxnreg" not in source(forward(4096, 64, **BOTH), "cuda:80")
    assert "maxnreg" not in source(gemm(4096, 4096, 4096, 128, 192, 64))
    assert "maxnreg=200" in source(forward(4096, 64, **BOTH), **{"lower-to-triton.maxnreg": 200})
    gluon = tiledsl.compile(forward(4096, 64, **BOTH), target="cuda:90")
    assert "@gluon.jit" in gluon.source and "maxnreg=128" not in gluon.source


def test_other_modes_are_refused() -> None:
    with pytest.raises(TileError, match=r"limit-registers\.mode is 'on'; it is one of auto, off"):
        source(forward(4096, 64, **BOTH), **{"limit-registers.mode": "on"})
