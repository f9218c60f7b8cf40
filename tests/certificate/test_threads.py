"""Certificates of code for one thread: threads run in step, so that what one wrote another one reads."""

from __future__ import annotations

import pytest

import tiledsl
from tests.support.thread_programs import Program

pytest.importorskip("z3")


def findings(text: str, everything: bool = False) -> list[tuple[str, str, str]]:
    """Kind, outcome and what it is about, of all that is not proved or tested, of threads that run a body."""
    head = """@T.prim_func
def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((64,), "int32")
        tx = T.get_thread_binding()
"""
    program = tiledsl.parse(head + "".join(f"        {line}\n" for line in text.strip("\n").split("\n")))
    return told(tiledsl.compile(program, out_idx=[-1], target="cuda:90"), everything)


def told(kernel: tiledsl.Kernel, everything: bool = False) -> list[tuple[str, str, str]]:
    checks = kernel.verify().checks
    assert len(checks) > 3
    hidden = () if everything else ("proved", "tested")
    return [(each.kind, each.status, each.subject) for each in checks if each.status not in hidden]


@pytest.mark.parametrize("seed", [4, 2])
def test_random_programs_are_proved(seed: int) -> None:
    assert told(tiledsl.compile(tiledsl.parse(Program(seed).source), target="cuda:90")) == []


def test_what_another_thread_wrote_is_read() -> None:
    assert findings("s[(tx + 5) % 64] = A[tx]\nB[tx] = s[63 - tx]") == []


def test_what_no_thread_wrote_is_found() -> None:
    assert findings("if tx < 63:\n    s[tx] = A[tx]\nB[tx] = s[63 - tx]") == [("read", "failed", "reads of s")]


def test_a_thread_that_is_not_in_the_loop_writes_nothing() -> None:
    text = "B[tx] = 0\nfor k in T.serial(tx % 8):\n    s[tx] = 1\n    B[tx] = s[(tx + 1) % 64]"
    assert ("read", "proved", "reads of s") not in findings(text, everything=True)
    even = text.replace("tx % 8", "8").replace("B[tx] = s", "B[(tx + 1) % 64] = s")
    assert ("read", "proved", "reads of s") in findings(even, everything=True)


def test_an_array_of_one_thread_is_not_another_ones() -> None:
    text = "own = T.alloc_local((1,), 'int32')\nif tx > 0:\n    own[0] = A[tx]\nB[tx] = own[0]"
    assert findings(text) == [("read", "failed", "reads of own")]


@pytest.mark.parametrize(
    ("dtype", "update", "reorders"),
    [
        ("float32", "own[0] += a[k] * T.cast(tx, 'float32')", True),
        ("float16", "own[0] = own[0] - T.cast(a[k], 'float32')", True),
        ("float16", "own[0] = T.max(own[0], T.cast(a[k], 'float32'))", False),
    ],
)
def test_what_a_thread_adds_up_in_another_order_is_named(dtype: str, update: str, reorders: bool) -> None:
    program = tiledsl.parse(f"""@T.prim_func
def main(A: T.Tensor((128,), "{dtype}"), B: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        a, own = T.alloc_local((4,), "{dtype}"), T.alloc_local((1,), "float32")
        T.clear(own)
        for k in T.vectorized(4):
            a[k] = A[tx * 4 + k]
        for k in T.serial(4):
            {update}
        B[tx] = own[0]
""")
    checks = tiledsl.compile(program, out_idx=[-1], target="cuda:90").verify().checks
    assert {each.status for each in checks} == {"proved", "tested"}
    (made,) = [each.detail for each in checks if each.subject == "parallelize-loops"]
    assert ("reassociation" in made) == reorders


def test_threads_that_write_one_element_in_one_statement_are_found() -> None:
    text = "s[tx] = 0\ns[tx // 2] = A[tx]\nB[tx] = s[tx]"
    assert findings(text) == [("race", "failed", "iterations that write s")]


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("B[tx] = A[tx]\nT.sync_threads()\nB[63 - tx] = B[tx] + 1", False),
        ("B[tx] = A[tx]\nT.sync_threads()\ns[tx] = B[63 - tx]\nT.sync_threads()\nB[tx] = s[tx]", True),
        ("B[tx] = A[tx]\ns[tx] = B[63 - tx]\nT.sync_threads()\nB[tx] = s[tx]", False),
        (
            "B[tx] = A[tx]\nfor k in T.serial(3):\n    T.sync_threads()\n    s[tx] = B[63 - tx]\n    B[tx] = s[tx]",
            False,
        ),
        (
            "B[tx] = A[tx]\nfor k in T.serial(3):\n    T.sync_threads()\n    s[tx] = B[63 - tx]\n    T.sync_threads()\n"
            "    B[tx] = s[tx]",
            True,
        ),
    ],
)
def test_in_global_memory_barriers_make_the_order(body: str, right: bool) -> None:
    races = [each for each in findings(body) if each[0] == "race"]
    assert races == [] if right else races
