"""What a kernel for Gluon makes of its grid: persistent programs that take blocks, or a block for each program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.passes.ir_cases import filecheck, kernel_of, program
from tiledsl.dialects.tile import KernelOp
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.lower_to_triton import LowerToTriton

GROWING = "scf.for %c0, %by, %c1 (%k: int32) { scf.yield }"


def lowered(grid: Sequence[int | str], body: str = "", persistent: bool = True) -> str:
    """The program after lower-to-triton; its kernel uses all indices."""
    stores = [f"tile.store %f, %A[{name}, %c0] {{guarded = true}}" for name in ("%bx", "%by", "%bz")[: len(grid)]]
    made = program("\n".join([body, *stores]), grid=grid, parameters="A: 64*96*float32, f: float32, s: int32, t: int32")
    kernel = kernel_of(made)
    assert isinstance(kernel, KernelOp)
    kernel.set_option("emitter", "gluon")
    if not persistent:
        kernel.set_option("persistent", False)
    LowerToTriton().run(made)
    verify(made.root)
    return print_op(made.root)


@pytest.mark.parametrize(
    ("grid", "body", "expected"),
    [
        (("%s",), "", """
            CHECK: %programs = arith.min %s, %multiprocessors : int32
            CHECK: triton.launch [%programs]
            CHECK: %item = gluon.work_item_id %s_1 : int32
            CHECK-NOT: arith.trunc"""),
        ((3, "%t"), "", """
            CHECK: [[BLOCKS:%[0-9]+]] = arith.mul %{{[0-9]+}}, %t : int32
            CHECK: %programs = arith.min [[BLOCKS]], %multiprocessors : int32
            CHECK: %item = gluon.work_item_id
            CHECK-NEXT: %bx = arith.truncmod %item, %grid0_1 : int32
            CHECK-NEXT: %by = arith.truncdiv %item, %grid0_1 : int32"""),
        (("%s", "%t", 4), "", """
            CHECK: %item = gluon.work_item_id
            CHECK-NEXT: %bx = arith.truncmod %item, %s_1 : int32
            CHECK-NEXT: [[REST:%[0-9]+]] = arith.truncdiv %item, %s_1 : int32
            CHECK-NEXT: %by = arith.truncmod [[REST]], %t_1 : int32
            CHECK-NEXT: %bz = arith.truncdiv [[REST]], %t_1 : int32"""),
        (("%s", "%t", 4), GROWING, """
            CHECK: [[OTHERS:%[0-9]+]] = arith.mul %s, %grid2 : int32
            CHECK-NEXT: [[BLOCKS:%[0-9]+]] = arith.mul %t, [[OTHERS]] : int32
            CHECK-NEXT: %programs = arith.min [[BLOCKS]], %multiprocessors : int32
            CHECK: %by, %rest = gluon.longest_first %t_1, %{{[0-9]+}} : int32, int32
            CHECK-NEXT: %bx = arith.truncmod %rest, %s_1 : int32
            CHECK-NEXT: %bz = arith.truncdiv %rest, %s_1 : int32"""),
        (("%s", "%t"), GROWING, """
            CHECK: %by, %rest = gluon.longest_first %t_1, %s_1 : int32, int32
            CHECK-NOT: arith.trunc
            CHECK: arith.mul %rest,"""),
    ],
)  # fmt: skip
def test_persistent_programs_take_one_block_after_the_other(
    grid: Sequence[int | str], body: str, expected: str
) -> None:
    """The first index changes fastest, or the one with which loops get longer; indices keep their names."""
    filecheck(lowered(grid, body), expected)


@pytest.mark.parametrize(
    ("place", "in_loop", "first"), [("%bx", True, "by"), ("%by", True, "bx"), ("%bx", False, "bx")]
)
def test_programs_that_run_at_the_same_time_load_the_same_tiles(place: str, in_loop: bool, first: str) -> None:
    """What loops load does not depend on the index that changes fastest, if there is such an index."""
    load = f"%z = tile.load_block %A[{place}, %c0] {{axes = (0, 1)}} : tensor<16x32xfloat32>"
    load = f"scf.for %c0, %c4, %c1 (%k: int32) {{ {load} scf.yield }}" if in_loop else load
    filecheck(
        lowered(("%s", "%t"), load), f"CHECK: %item = gluon.work_item_id\nCHECK: %{first} = arith.truncmod %item,"
    )


def test_a_program_for_each_block() -> None:
    """The longest blocks come first."""
    filecheck(
        lowered(("%s", "%t", 4), GROWING, persistent=False),
        """
        CHECK: triton.launch [%s, %t, %grid2]
        CHECK: %bx = triton.program_id {axis = 0} : int32
        CHECK-NEXT: %by = triton.program_id {axis = 1} : int32
        CHECK: [[LAST:%[0-9]+]] = arith.sub %t_1, %{{[0-9]+}} : int32
        CHECK-NEXT: %by_1 = arith.sub [[LAST]], %by : int32
        CHECK-NEXT: %bz = triton.program_id {axis = 2} : int32
        CHECK: scf.for %c0, %by_1, %c1
        """,
    )


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("extent", [1, 2])
def test_a_single_block_has_no_order(extent: int, persistent: bool) -> None:
    found = lowered(("%s", extent), GROWING, persistent)
    assert ("gluon.longest_first" in found) == (extent > 1 and persistent)
    assert ("arith.sub" in found) == (extent > 1 and not persistent)


def test_blocks_from_the_last_to_the_first() -> None:
    filecheck(
        lowered(("%s", 6), GROWING, persistent=False),
        """
        CHECK: [[LAST:%[0-9]+]] = arith.constant {value = 5} : int32
        CHECK-NEXT: %by_1 = arith.sub [[LAST]], %by : int32
        """,
    )


@pytest.mark.parametrize(
    ("end", "grows"),
    [
        ("arith.shr %three, %c7", True),  # how ceildiv of what may be negative is written
        ("arith.shr %three, %by", False),
        ("arith.shr %s, %c7", False),
        ("arith.shl %three, %c7", False),
    ],
)
def test_lengths_that_are_shifted_grow_with_what_they_are_of(end: str, grows: bool) -> None:
    body = f"""
    %scaled = arith.mul %by, %c3 : int32
    %three = arith.add %scaled, %s : int32
    %end = {end} : int32
    scf.for %c0, %end, %c1 (%k: int32) {{ scf.yield }}"""
    assert ("gluon.longest_first" in lowered((4, "%t"), body)) == grows


def test_loops_that_get_shorter_with_one_of_several_indices_have_a_program_for_each_block() -> None:
    shorter = "%left = arith.sub %t, %by : int32\nscf.for %c0, %left, %c1 (%k: int32) { scf.yield }"
    found = lowered(("%s", "%t"), shorter)
    assert "triton.program_id {axis = 1}" in found and "gluon.work_item_id" not in found
    assert "gluon.work_item_id" in lowered(("%s", "%t"), shorter.replace("sub %t, %by", "sub %t, %s"))
