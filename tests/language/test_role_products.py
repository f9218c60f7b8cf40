"""Products that a role makes part by part along K, each once its own barrier lets it through, become one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.dialects import scf, tile
from tiledsl.ir.kinds import of_kinds


def product(*, clear: Any = None, pieces: int = 4) -> Any:
    """C = A B^T with K = 16 * pieces, added to ones; B comes piece by piece.

    clear: of the number of a piece, whether its product clears C first.
    """
    clear = clear or (lambda j: j == 0)
    K = 16 * pieces

    @T.prim_func
    def main(A: T.Tensor((64, K), "float16"), B: T.Tensor((64, K), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((64, K), "float16")
            b = T.alloc_shared((64, K), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            ready = T.alloc_barrier([128] * pieces)
            tx = T.get_thread_binding()
            if tx >= 128:
                T.copy(A, a)
                for j in T.unroll(pieces):
                    T.tma_copy(B[:, j * 16 : (j + 1) * 16], b[:, j * 16 : (j + 1) * 16], barrier=ready[j])
                    T.barrier_arrive(ready[j])
            else:
                T.fill(c, 1.0)
                for j in T.unroll(pieces):
                    T.barrier_wait(ready[j], 0)
                    T.wgmma_gemm(
                        a[:, j * 16 : (j + 1) * 16],
                        b[:, j * 16 : (j + 1) * 16],
                        c,
                        transpose_B=True,
                        clear_accum=clear(j),
                    )
                T.wait_wgmma(0)
                T.copy(c, C)

    return main


def merged(program: Any) -> Any:
    from tiledsl.ir.pass_manager import PassManager, Program
    from tiledsl.passes import default_pipeline

    made = Program(program.func)
    PassManager(default_pipeline(), stop_after="merge-roles").run(made)
    return made.root


@pytest.mark.parametrize(
    ("clear", "clears"), [(lambda j: j == 0, True), (lambda j: j > 8, False), (lambda j: False, False)]
)
def test_parts_are_joined(clear: Any, clears: bool) -> None:
    root = merged(product(clear=clear))
    (gemm,) = of_kinds(root.walk(), tile.GemmOp)
    assert gemm.clear is clears
    assert tile.buffer_type(gemm.a).static_shape == tile.buffer_type(gemm.b).static_shape == (64, 64)
    assert not of_kinds(root.walk(), tile.ParallelOp) and not of_kinds(root.walk(), scf.ForOp)


def test_a_later_part_that_clears_begins_anew() -> None:
    root = merged(product(clear=lambda j: j == 2))
    assert [gemm.clear for gemm in of_kinds(root.walk(), tile.GemmOp)] == [False, True]


@pytest.mark.parametrize("first", [-1, 0, 2, 3])
def test_what_parts_compute(run: Any, first: int) -> None:
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    found = run(product(clear=lambda j: j == first), a, b, torch.empty(64, 64))
    start = max(first, 0) * 16
    expected = a[:, start:].float() @ b[:, start:].float().T + (1.0 if first < 0 else 0.0)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("first", [-1, 0, 2])
def test_parts_have_a_certificate(first: int) -> None:
    certificate = tiledsl.compile(product(clear=lambda j: j == first), target="cuda:90").verify()
    assert certificate.ok and not certificate.of("unknown"), str(certificate)
