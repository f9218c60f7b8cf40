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


@pytest.mark.parametrize("kind", ["bias", "hash"])
def test_loops_that_compute_with_integers_for_each_element_stay(kind: str) -> None:
    """Online softmax with either spills 176 to 232 bytes a thread with the limit, and none without (Triton 3.9)."""

    @T.prim_func
    def biased(
        Q: T.Tensor((4096, 64), "float16"),
        K: T.Tensor((4096, 64), "float16"),
        V: T.Tensor((4096, 64), "float16"),
        O: T.Tensor((4096, 64), "float32"),
    ):
        with T.Kernel(32, threads=256) as bx:
            q = T.alloc_shared((128, 64), "float16")
            k = T.alloc_shared((128, 64), "float16")
            v = T.alloc_shared((128, 64), "float16")
            scores = T.alloc_fragment((128, 128), "float32")
            weights = T.alloc_fragment((128, 128), "float16")
            acc = T.alloc_fragment((128, 64), "float32")
            T.copy(Q[bx * 128, 0], q)
            T.clear(acc)
            for t in T.Pipelined(32, num_stages=2):
                T.copy(K[t * 128, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(128, 128):
                    if kind == "bias":
                        scores[i, j] = scores[i, j] + T.cast(t * 128 + j - bx * 128 - i, "float32") * 0.125
                    elif kind == "hash":
                        scores[i, j] = T.if_then_else((t * 7 + i * 3 + j) % 5 == 0, 0.0, scores[i, j])
                T.copy(scores, weights)
                T.copy(V[t * 128, 0], v)
                T.gemm(weights, v, acc)
            T.copy(acc, O[bx * 128, 0])

    assert "maxnreg" not in source(biased)
    kind = "plain"
    assert "maxnreg" in source(biased)


def test_other_targets_products_and_given_numbers_stay() -> None:
    assert "maxnreg" not in source(forward(4096, 64, **BOTH), "cuda:80")
    assert "maxnreg" not in source(gemm(4096, 4096, 4096, 128, 192, 64))
    assert "maxnreg=200" in source(forward(4096, 64, **BOTH), **{"lower-to-triton.maxnreg": 200})
    gluon = tiledsl.compile(forward(4096, 64, **BOTH), target="cuda:90")
    assert "@gluon.jit" in gluon.source and "maxnreg=128" not in gluon.source


@pytest.mark.parametrize(("stages", "limited"), [(3, True), (4, False)])
def test_kernels_whose_shared_memory_leaves_no_room_for_a_second_block_stay(stages: int, limited: bool) -> None:
    """Of 233472 bytes, a stage takes 32768 and the queries 16384."""
    assert ("maxnreg" in source(forward(4096, 64, **BOTH, num_stages=stages))) is limited


def test_other_modes_are_refused() -> None:
    with pytest.raises(TileError, match=r"limit-registers\.mode is 'on'; it must be one of auto, off"):
        source(forward(4096, 64, **BOTH), **{"limit-registers.mode": "on"})
