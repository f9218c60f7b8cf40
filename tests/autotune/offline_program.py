"""An autotuned function for tests of tuning offline, also in processes of their own: `tiledsl tune` imports this file.

Its configurations name the call's size, so that the clock can write down what it measures; see fake_timers.noted.
"""

from __future__ import annotations

import os
from typing import Any

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import scale_block

IMPOSSIBLE = 13  # a size for which no configuration works


def configs(size: int) -> list[dict[str, Any]]:
    return [{"block": block, "tag": size} for block in (16, 32, 64)]


@tiledsl.autotune(
    configs=configs,
    ref_prog=lambda A: A * 2,
    timer="tests.autotune.fake_timers:noted",
    isolate=False,
    progress=False,
    tuned=os.environ.get("TILEDSL_TEST_TUNED", ()),
    nearest=False,
)
@tiledsl.jit(out_idx=-1)
def scale(size, block=None, factor=2.0, tag=0):
    if size == IMPOSSIBLE:
        raise ValueError(f"no {size}")

    @T.prim_func
    def scale(A: T.Tensor((size,), "float32"), B: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, block), threads=128) as bx:
            scale_block(A, B, bx, block, factor)

    return scale
