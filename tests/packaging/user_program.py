# pyright: reportInvalidTypeForm=false
# mypy: disable-error-code="valid-type, no-untyped-def"
"""A user's file, for type checkers alone (make editors): with the two comments above, nothing in it is a mistake."""

from __future__ import annotations

from typing import Any

import torch
from typing_extensions import assert_type

import tiledsl
import tiledsl.language as T
from tiledsl import AutotuneResult, Kernel, TileError
from tiledsl.kernels.jit import JitFunction


@tiledsl.jit
def scaled(X: T.Tensor, factor: float = 2.0, block: int = 64) -> Any:
    n = X.shape[0]
    Y = T.empty((n,), T.float32)
    with T.Kernel(T.ceildiv(n, block), threads=128) as bx:
        for i in T.Parallel(block):
            Y[bx * block + i] = X[bx * block + i] * factor
    return Y


def build(n: int) -> Kernel:
    @T.prim_func
    def doubled(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32"), k: T.int32):
        with T.Kernel(T.ceildiv(n, 64), 1, threads=64) as (bx, _):
            s = T.alloc_shared((64,), "float32")
            t = T.alloc_fragment((64,), T.float32)
            T.copy(X[bx * 64], s)
            for i in T.Parallel(64):
                t[i] = T.exp2(s[i]) * 2.0
                if t[i] > 3:
                    t[i] = t[i] + k
            for j in T.serial(4):
                t[j] += j
            for k0 in T.Pipelined(4, num_stages=2):
                t[k0] = T.max(t[k0], 0)
            T.copy(t, Y[bx * 64])

    return tiledsl.compile(doubled, out_idx=[1], target="interpret")


@tiledsl.autotune(configs=[{"block": 32}], warmup=3)
@tiledsl.jit(out_idx=[-1])
def tuned(n: int, block: int = 64) -> Any:
    return build(n)


def use() -> str:
    kernel = build(128)
    y: torch.Tensor = kernel(torch.ones(128))
    result: AutotuneResult = tuned(64)
    assert_type(scaled, JitFunction)
    assert_type(result.config, dict[str, Any])
    assert_type(result.latency, float | None)
    assert_type(result.kernel, Kernel)
    assert_type(kernel.source, str)
    assert_type(kernel.ir(after="cse", generic=True), str)
    try:
        return result.source + str(y) + tiledsl.__version__
    except TileError as error:
        return error.message


def mistakes() -> None:
    """Each of these is noticed: else the comment that expects it is one too many."""
    tiledsl.compile(build(3), out_idx="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tiledsl.jit(out_index=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    build(3).sources  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
