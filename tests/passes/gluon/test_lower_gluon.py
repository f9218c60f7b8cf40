"""What a kernel for Gluon makes of its grid: persistent programs that take blocks, or a block for each program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.passes.ir_cases import filecheck, kernel_of, program
from tests.support.executor import run
from tiledsl.certificate.executor.blocks import MULTIPROCESSORS
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


SHRINKING = "%left = arith.sub %t, %by : int32\nscf.for %c0, %left, %c1 (%k: int32) { scf.yield }"


def test_a_program_for_each_block() -> None:
    """In panels of so many rows that two blocks come for each multiprocessor, the longest of each first."""
    found = lowered(("%s", "%t", 4), GROWING, persistent=False)
    filecheck(
        found,
        """
        CHECK: [[ROWS:%[0-9]+]] = arith.mul %s, %grid2 : int32
        CHECK: [[TWICE:%[0-9]+]] = arith.mul %multiprocessors, %{{[0-9]+}} : int32
        CHECK-NEXT: [[ONE:%[0-9]+]] = arith.constant {value = 1} : int32
        CHECK-NEXT: [[EXTENT:%[0-9]+]] = arith.max %t, [[ONE]] : int32
        CHECK-NEXT: [[HEIGHT:%[0-9]+]] = arith.floordiv [[TWICE]], [[EXTENT]] : int32
        CHECK: %panel_rows = arith.max [[HEIGHT]], %{{[0-9]+}} : int32
        CHECK-NEXT: %panel_blocks = arith.mul %panel_rows, %t : int32
        CHECK-NEXT: %blocks = arith.mul %t, [[ROWS]] : int32
        CHECK-NEXT: triton.launch [%blocks]
        CHECK: %block = triton.program_id {axis = 0} : int32
        CHECK: [[LAST:%[0-9]+]] = arith.sub %t_1, %{{[0-9]+}} : int32
        CHECK-NEXT: %by_1 = arith.sub [[LAST]], %by : int32
        CHECK: scf.for %c0, %by_1, %c1
        """,
    )


@pytest.mark.parametrize(("body", "last"), [(GROWING, True), (SHRINKING, False)])
@pytest.mark.parametrize(("first", "extent", "third"), [(3, 2, 2), (5, 4, 1), (2, 9, 2)])
def test_panels_have_all_blocks_once_and_the_longest_first(
    body: str, last: bool, first: int, extent: int, third: int
) -> None:
    """Of a few multiprocessors; a block notes as what it came."""
    noted = '%n = tile.atomic %one, %N[%c0] {kind = "add"} : int32\ntile.store %n, %A[%bx, %by, %bz] {guarded = true}'
    made = program(
        f"{body}\n%one = arith.constant {{value = 1}} : int32\n{noted}", grid=(first, "%t", third),
        parameters=f"A: {first}*{extent}*{third}*int32, N: 1*int32, t: int32",
    )  # fmt: skip
    kernel = kernel_of(made)
    assert isinstance(kernel, KernelOp)
    kernel.set_option("emitter", "gluon")
    kernel.set_option("persistent", not last)
    LowerToTriton().run(made)
    found = np.full((first, extent, third), -1, np.int32)
    run(made.root, [found, np.zeros(1, np.int32), extent])
    rows = [(x, z) for z in range(third) for x in range(first)]
    height = max(1, 2 * MULTIPROCESSORS // extent)
    panels = [rows[start : start + height] for start in range(0, len(rows), height)]
    order = [(x, y, z) for panel in panels for y in range(extent) for x, z in panel]
    expected = np.empty_like(found)
    for number, (x, y, z) in enumerate(order):
        expected[x, extent - 1 - y if last else y, z] = number
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("extent", [1, 2])
def test_a_single_block_has_no_order(extent: int, persistent: bool) -> None:
    found = lowered(("%s", extent), GROWING, persistent)
    assert ("gluon.longest_first" in found) == (extent > 1 and persistent)
    assert ("arith.sub" in found) == (extent > 1 and not persistent)


def test_blocks_that_are_all_as_long_stay_in_the_order_of_the_grid() -> None:
    found = lowered(("%s", "%t"), persistent=False)
    filecheck(
        found,
        """
        CHECK: triton.launch [%s, %t]
        CHECK-NEXT: %bx = triton.program_id {axis = 0} : int32
        CHECK-NEXT: %by = triton.program_id {axis = 1} : int32
        """,
    )
    assert "triton.multiprocessors" not in found


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
    found = lowered(("%s", "%t"), SHRINKING)
    assert "%block = triton.program_id {axis = 0}" in found and "gluon.work_item_id" not in found
    assert "gluon.work_item_id" in lowered(("%s", "%t"), SHRINKING.replace("sub %t, %by", "sub %t, %s"))
    assert "triton.multiprocessors" not in lowered((1, "%t"), SHRINKING)
