"""Certificates of programs whose warps have roles: long loops are cut alike in all roles, tiles stay whole."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.certificate.reduction import reduced
from tiledsl.dialects import scf
from tiledsl.dialects.arith import constant_of


def sums(tiles: int, *, piece: int = 2) -> Any:
    """Y is the sum of X's tiles of 16 columns. A role stores them in pieces of columns, from registers."""

    @T.prim_func
    def main(X: T.Tensor((16, tiles * 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((2, 16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            ready, free = T.alloc_barrier([128] * 2), T.alloc_barrier([128] * 2)
            tx = T.get_thread_binding()
            if tx >= 128:
                for k in T.serial(tiles):
                    T.barrier_wait(free[k % 2], (k // 2 + 1) % 2)
                    for p in T.serial(16 // piece):
                        if tx - 128 < 16 * piece:
                            row, column = (tx - 128) // piece, p * piece + (tx - 128) % piece
                            s[k % 2, row, column] = X[row, k * 16 + column]
                    T.barrier_arrive(ready[k % 2])
            else:
                T.clear(total)
                for k in T.serial(tiles):
                    T.barrier_wait(ready[k % 2], k // 2 % 2)
                    for i, j in T.Parallel(16, 16):
                        total[i, j] += s[k % 2, i, j]
                    T.barrier_arrive(free[k % 2])
                T.copy(total, Y)

    return main


def trips(root: Any) -> list[Any]:
    return [constant_of(op.upper) for op in root.walk() if isinstance(op, scf.ForOp)]


def test_roles_are_cut_alike_and_tiles_are_filled() -> None:
    small = reduced(sums(512).func)
    assert small is not None
    outer, pieces, other = trips(small)
    assert outer == other < 512 and pieces == 8


@pytest.mark.parametrize("tiles", [3, 512])
def test_roles_equal_what_they_are_merged_to(tiles: int) -> None:
    certificate = tiledsl.compile(sums(tiles), target="cuda:90").verify()
    assert certificate.ok and not certificate.of("unknown"), str(certificate)
    assert any("merge-roles" in str(check) for check in certificate.checks)


def test_what_is_the_same_in_all_threads_is_done_once() -> None:
    """A tile that is scaled in place by a role would be scaled once by each thread otherwise."""

    @T.prim_func
    def main(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_fragment((16, 16), "float32")
            there = T.alloc_barrier(128)
            s = T.alloc_shared((16, 16), "float32")
            tx = T.get_thread_binding()
            if tx >= 128:
                T.copy(X, s)
                T.barrier_arrive(there)
            else:
                T.barrier_wait(there, 0)
                T.copy(s, tile)
                for i, j in T.Parallel(16, 16):
                    tile[i, j] = tile[i, j] * 3.0 + s[j, i]
                T.copy(tile, Y)

    certificate = tiledsl.compile(main, target="cuda:90").verify()
    assert certificate.ok and not certificate.of("unknown"), str(certificate)


def halves() -> Any:
    """Each role makes half of the columns."""

    @T.prim_func
    def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=256):
            both = T.alloc_shared((16, 32), "float32")
            left = T.alloc_fragment((16, 16), "float32")
            right = T.alloc_fragment((16, 16), "float32")
            T.copy(X, both)
            with T.ws(1):
                T.copy(both[:, :16], left)
                for i, j in T.Parallel(16, 16):
                    left[i, j] *= 2
                T.copy(left, Y[:, :16])
            with T.ws(0):
                T.copy(both[:, 16:], right)
                T.copy(right, Y[:, 16:])

    return main


def test_what_a_role_does_to_tiles_is_done_once() -> None:
    """Without barriers, which would have the roles merged before races are looked for."""
    checks = tiledsl.compile(halves(), target="cuda:90").verify().checks
    assert not [each for each in checks if each.status == "failed"]
