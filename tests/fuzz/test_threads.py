"""The oracle's threads: each runs by itself from barrier to barrier."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.case import Case, TensorArgument
from tests.fuzz.dtypes import Discard


def run(body: str, threads: int = 8) -> list[Any]:
    """What O holds after one block of threads, A being 0, 1, 2, ..."""
    lines = "\n".join("        " + line for line in body.strip().splitlines())
    text = (
        f"@T.prim_func\ndef main(A: T.Tensor(({threads},), 'int32'), O: T.Tensor(({threads},), 'int32')):\n"
        f"    with T.Kernel(1, threads={threads}) as bx:\n        tx = T.get_thread_binding()\n{lines}\n"
    )
    tensors = [TensorArgument("A", (threads,), "int32"), TensorArgument("O", (threads,), "int32")]
    values = {"A": list(range(threads)), "O": [9] * threads}
    return [number.value for number in Case(0, text, tensors, {}, {}, values).expected()["O"]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("T.shfl_xor(tx, 3)", [3, 2, 1, 0, 7, 6, 5, 4]),
        ("T.shfl_xor(tx, 4, 4)", [0, 1, 2, 3, 0, 1, 2, 3]),
        ("T.shfl_down(tx, 1, 4)", [1, 2, 3, 3, 5, 6, 7, 7]),
        ("T.shfl_up(tx, 2, 4)", [0, 1, 0, 1, 4, 5, 4, 5]),
        ("T.shfl_sync(tx * 2, tx + 1, 4)", [2, 4, 6, 0, 10, 12, 14, 8]),
        ("T.warp_reduce_sum(A[tx]) + T.warp_reduce_max(-tx)", [28] * 8),
        ("T.ballot(tx % 3 == 0)", [1 + 8 + 64] * 8),
        ("T.any_sync(tx > 6) + T.all_sync(tx > 6)", [1] * 8),
    ],
)
def test_exchanges(value: str, expected: list[int]) -> None:
    assert run(f"O[tx] = {value}") == expected


def test_each_thread_has_variables_of_its_own_and_all_share_a_tile() -> None:
    body = "s = T.alloc_shared((8,), 'int32')\nx = T.alloc_var('int32', tx)\ns[tx] = x * 2\nBETWEEN\nO[tx] = s[7 - tx]"
    assert run(body.replace("BETWEEN", "T.sync_threads()")) == [14, 12, 10, 8, 6, 4, 2, 0]
    with pytest.raises(Discard, match="a race"):
        run(body.replace("BETWEEN", "x += T.shfl_xor(x, 1)"))  # which is no barrier
    with pytest.raises(Discard, match="threads wait at different places"):
        run("if tx > 3:\n    T.sync_threads()")
