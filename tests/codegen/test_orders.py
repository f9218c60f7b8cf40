"""Sorts as Triton compiles them, and subscripts that insert dimensions of 1."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.codegen.expressions import _inserted


def rows(M: int, N: int, threads: int, target: str) -> tiledsl.Kernel:
    @T.prim_func
    def main(X: T.Tensor((M, N), "int32"), Y: T.Tensor((M, N), "int32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((M, N), "int32")
            T.copy(X, x)
            T.sort(x, dim=1)
            T.copy(x, Y)

    return tiledsl.compile(main, target=target)


@pytest.mark.parametrize("M", [1, 2])
def test_a_warp_sorts_by_shuffles(M: int) -> None:
    kernel = rows(M, 256, 32, "cuda:90")
    assert "gather" not in kernel.source and "_second" not in kernel.source
    assert "shfl.sync" in kernel.asm["ptx"] and "bar.sync" not in kernel.asm["ptx"]
    assert kernel.resources.shared_bytes == 0
    x, y = torch.randint(-(2**31), 2**31 - 1, (M, 256), dtype=torch.int32), torch.zeros(M, 256, dtype=torch.int32)
    rows(M, 256, 32, "interpret")(x, y)
    assert torch.equal(y, x.sort(dim=1).values)


@pytest.mark.parametrize(
    ("source", "shape", "subscript"),
    [
        ((4, 8), (4, 1, 8), [":", "None", ":"]),
        ((8,), (1, 8, 1), ["None", ":", "None"]),
        ((1,), (1, 1), ["None", ":"]),
        ((1, 512, 1), (1, 512, 1, 1), [":", ":", "None", ":"]),
        ((4, 8), (4, 8), None),
        ((4, 8), (8, 4, 1), None),
        ((4, 8), (4, 2, 4), None),
    ],
)
def test_dimensions_of_one_are_inserted(source: tuple[int, ...], shape: tuple[int, ...], subscript: list[str]) -> None:
    assert _inserted(source, shape) == subscript
