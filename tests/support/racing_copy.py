"""A copy by blocks of 32 elements; of more `rows`, blocks write elements twice, the same numbers: outputs are right."""

from __future__ import annotations

import tiledsl
import tiledsl.language as T


def copied_builder(M, rows=32):
    @T.prim_func
    def copied(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, 32), threads=32) as bx:
            for i in T.Parallel(rows):
                B[bx * 32 + i] = A[bx * 32 + i]

    return copied


copied = tiledsl.jit(out_idx=[-1])(copied_builder)
