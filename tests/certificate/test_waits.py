"""Loops that wait for other blocks: the executor runs blocks in order, and sees when nothing can change any more."""

from __future__ import annotations

import numpy as np
import pytest

import tiledsl
import tiledsl.language as T
from tests.support import executor
from tiledsl.certificate.algebra import ExecutorError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import parse_program


def waiting(last: bool, level: str) -> Operation:
    """Each block says that it is there, and waits for the first or the last one; after a pass, as IR."""

    @T.prim_func
    def main(C: T.Tensor((4,), "int32"), Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=32) as block:
            seen = T.alloc_var("int32", 0)
            turns = T.alloc_var("int32", 0)
            T.atomic_store(C[block], 1)
            while seen == 0:
                seen = T.atomic_load(C[3 if last else 0])
            while turns < 300:
                turns += 2
            Y[block] = turns + seen

    return parse_program(tiledsl.compile(main, target="cuda:90").ir(level)).root


@pytest.mark.parametrize("level", ["", "promote-buffers", "triton"])
def test_blocks_that_wait_for_earlier_ones_run(level: str) -> None:
    root = waiting(False, level)
    counts, made = np.zeros(4, np.int32), np.zeros(4, np.int32)
    executor.run(root, [counts, made])
    assert made.tolist() == [301] * 4


@pytest.mark.parametrize("level", ["", "promote-buffers", "triton"])
def test_a_wait_for_a_later_one_is_seen(level: str) -> None:
    root = waiting(True, level)
    with pytest.raises(ExecutorError, match="a while loop waits for what no program before does"):
        executor.run(root, [np.zeros(4, np.int32), np.zeros(4, np.int32)])
