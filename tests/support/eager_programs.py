"""Programs in the eager style, to be jitted for a target by tests."""

from __future__ import annotations

from typing import Any

import tiledsl.language as T


def eager_sum(A: Any, B: Any, block: int = 16) -> Any:
    rows = T.const("rows")
    A: T.Tensor((rows, 8), "float32")
    B: T.Tensor((rows, 8), "float32")
    C = T.empty((rows, 8), "float32")
    with T.Kernel(T.ceildiv(rows, block), threads=128) as by:
        for i, j in T.Parallel(block, 8):
            C[by * block + i, j] = A[by * block + i, j] + B[by * block + i, j]
    return C
