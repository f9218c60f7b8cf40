"""delay-loads: tiles that are loaded in front of reductions and used behind them, and what keeps them there."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import after, filecheck, kernel, program, stays_in_gluon
from tests.support.programs import check_pass
from tiledsl.passes.delay_loads import DelayLoads

PARAMETERS = "A: 64*96*float32, W: 4096*float32, V: 4096*float32, Y: 4096*float32, Z: 64*int32"
HEAD = """
    %rows = tensor.iota {axis = 0} : tensor<64x1xint32>
    %columns = tensor.iota {axis = 1} : tensor<1x96xint32>
    %i = tensor.iota {axis = 0} : tensor<4096xint32>
    %x = tile.load %A[%rows, %columns] {guarded = true} : tensor<64x96xfloat32>"""
WEIGHTS = """
    %w = tile.load %W[%i] {guarded = true} : tensor<4096xfloat32>
    %v = tile.load %V[%i] {guarded = true} : tensor<4096xfloat32>"""
REDUCED = """
    %m = tensor.reduce %x {kind = "max", axis = 1} : tensor<64xfloat32>
    %s = tensor.reduce %m {kind = "sum", axis = 0} : float32"""
STORED = """
    %y = arith.mul %w, %s : tensor<4096xfloat32>
    %z = arith.add %y, %v : tensor<4096xfloat32>
    tile.store %z, %Y[%i] {guarded = true}"""


def lines(body: str) -> list[str]:
    return after(DelayLoads(), body, parameters=PARAMETERS)


def unchanged(body: str) -> bool:
    return after([], body, parameters=PARAMETERS) == lines(body)


def computes_the_same(body: str) -> None:
    generator = np.random.default_rng(0)
    given = [generator.integers(-4, 5, size).astype(np.float32) for size in ((64, 96), 4096, 4096)]
    check_pass(DelayLoads(), kernel(PARAMETERS, body), [*given, np.zeros(4096, np.float32), np.zeros(64, np.int32)])


def test_tiles_are_loaded_behind_the_last_reduction_before_they_are_used() -> None:
    body = HEAD + WEIGHTS + REDUCED + STORED
    filecheck(
        lines(body),
        """
        CHECK: %x = tile.load %A
        CHECK: %m = tensor.reduce
        CHECK: %s = tensor.reduce
        CHECK: %w = tile.load %W
        CHECK: %v = tile.load %V
        CHECK: %y = arith.mul
        """,
    )
    computes_the_same(body)


def test_what_is_used_between_two_reductions_is_loaded_there() -> None:
    used = '\n    %t = tensor.reduce %w {kind = "sum", axis = 0} : float32'
    found = "\n".join(lines(HEAD + WEIGHTS + REDUCED + used + STORED.replace("%w, %s", "%w, %t")))
    assert found.index("%s = ") < found.index("%w = tile.load") < found.index("%t = ") < found.index("%v = tile.load")


def test_a_use_in_a_branch_is_one() -> None:
    branch = """
    %c = arith.cmp %bx, %c2 {predicate = "lt"} : bool
    scf.if %c {
      tile.store %w, %Y[%i] {guarded = true}
      scf.yield
    } {
      scf.yield
    }"""
    later = (
        '\n    %t = tensor.reduce %v {kind = "sum", axis = 0} : float32\n    tile.store %t, %Y[%c0] {guarded = true}'
    )
    found = "\n".join(lines(HEAD + WEIGHTS + REDUCED + branch + later))
    assert found.index("%s = ") < found.index("%w = tile.load") < found.index("scf.if")


def test_tiles_of_few_bytes_a_thread_stay() -> None:
    few = (HEAD + WEIGHTS + REDUCED + STORED).replace("tensor<4096x", "tensor<512x")
    assert unchanged(few)


@pytest.mark.parametrize(
    "between",
    [
        "tile.store %x, %A[%rows, %columns] {guarded = true}",  # which may be %W
        "scf.for %c0, %c4, %c1 (%k: int32) {\n tile.store %x, %A[%rows, %columns] {guarded = true}\n scf.yield\n }",
        '%o = tile.atomic %c0, %Z[%c0] {kind = "load", semantics = "acquire", guarded = true} : int32',
        "thread.barrier",
    ],
)
def test_no_load_passes_what_writes_or_has_a_fixed_place(between: str) -> None:
    assert unchanged(HEAD + WEIGHTS + "\n    " + between + REDUCED + STORED)


def test_loops_and_kernels_with_products_stay_as_they_are() -> None:
    body = HEAD + WEIGHTS + REDUCED + STORED
    assert unchanged(f"scf.for %c0, %c4, %c1 (%n: int32) {{{body}\n      scf.yield\n    }}")
    product = """
    %cs = tensor.iota {axis = 1} : tensor<1x64xint32>
    %a = tile.load %A[%rows, %cs] {guarded = true} : tensor<64x64xfloat32>
    %d = tensor.dot %a, %a, %a : tensor<64x64xfloat32>
    tile.store %d, %A[%rows, %cs] {guarded = true}"""
    assert unchanged(body + product)
    assert not unchanged(body) and stays_in_gluon(DelayLoads(), program(body, parameters=PARAMETERS))


def test_the_option_turns_it_off() -> None:
    body = HEAD + WEIGHTS + REDUCED + STORED
    assert after(DelayLoads(enabled=False), body, parameters=PARAMETERS) == after([], body, parameters=PARAMETERS)
