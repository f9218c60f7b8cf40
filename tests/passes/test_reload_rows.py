"""reload-rows: rows and columns that loops pick from tiles are loaded again, where memory still holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import after, filecheck, kernel, kernel_of, program
from tests.support.programs import check_pass
from tiledsl.dialects.tile import KernelOp
from tiledsl.passes.reload_rows import ReloadRows

ROWS, COLUMNS = 6, 10  # of tensors, which end within the tiles
DECAY = np.float32(0.5)
SERIAL = {"parallelize-loops.fast_math": False}  # recurrences stay loops


def picks(program: Any) -> int:
    """The sums over masked tiles in the Triton source."""
    return tiledsl.compile(program, target="cuda:90", pass_configs=SERIAL).source.count("tl.sum(")


def run(program: Any, *arrays: np.ndarray, same: bool = False) -> np.ndarray:
    """What the last parameter holds afterwards; `same`: it is the first one's memory."""
    given = [torch.from_numpy(array.copy()) for array in arrays]
    out = given[0] if same else torch.zeros_like(given[0])
    tiledsl.compile(program, target="interpret", pass_configs=SERIAL)(*given, out)
    return np.asarray(out.numpy())


def tensor(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-8, 9, (ROWS, COLUMNS)).astype(np.float32)


def decayed(rows: np.ndarray) -> np.ndarray:
    """Each row and half of what the rows before it came to."""
    sums = np.zeros_like(rows)
    for row in range(len(rows)):
        sums[row] = rows[row] + (DECAY * sums[row - 1] if row else 0)
    return sums


def recurrence(trip: Any = ROWS, picked: Callable[[Any], Any] = lambda i: i, before: bool = False) -> Any:
    """A state that takes a row of a tile in each iteration; `before`: the result is written before the row is taken."""

    @T.prim_func
    def main(A: T.Tensor((ROWS, COLUMNS), "float32"), O: T.Tensor((ROWS, COLUMNS), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((8, 16), "float32")
            state = T.alloc_fragment((16,), "float32")
            T.copy(A[0, 0], a)
            T.clear(state)
            for i in T.serial(trip):
                if before:
                    T.copy(state, O[i, 0])
                for j in T.Parallel(16):
                    state[j] = state[j] * 0.5 + a[picked(i), j]
                if not before:
                    T.copy(state, O[i, 0])

    return main


def test_rows_of_a_recurrence() -> None:
    assert picks(recurrence()) == 0
    np.testing.assert_array_equal(run(recurrence(), tensor()), decayed(tensor()))


def test_in_place() -> None:
    """Each row is written behind the read of it: the rows after it are as they were."""
    np.testing.assert_array_equal(run(recurrence(), tensor(), same=True), decayed(tensor()))


@pytest.mark.parametrize(
    "program",
    [recurrence(picked=lambda i: 5 - i), recurrence(before=True), recurrence(picked=lambda i: i // 2)],
    ids=["backwards", "written before", "behind"],
)
def test_other_rows_than_those_written_stay_picked(program: Any) -> None:
    assert picks(program) == 1
    apart = run(program, tensor())
    np.testing.assert_array_equal(run(program, tensor(), same=True), apart)


def test_columns_casts_and_outer_products() -> None:
    @T.prim_func
    def main(
        A: T.Tensor((ROWS, COLUMNS), "int8"), B: T.Tensor((COLUMNS, ROWS), "int8"), O: T.Tensor((8, 8), "float32")
    ):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((8, 16), "float32")
            b = T.alloc_shared((16, 8), "float32")
            total = T.alloc_fragment((8, 8), "float32")
            T.copy(A[0, 0], a)
            T.copy(B[0, 0], b)
            T.clear(total)
            for k in T.serial(16):
                for i, j in T.Parallel(8, 8):
                    total[i, j] += a[i, k] * b[k, j]
            T.copy(total, O)

    a, b = tensor().astype(np.int8), tensor(1).T.copy().astype(np.int8)
    out = torch.zeros(8, 8)
    tiledsl.compile(main, target="interpret")(torch.from_numpy(a), torch.from_numpy(b), out)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    assert picks(main) == 0
    np.testing.assert_array_equal(out.numpy()[:ROWS, :ROWS], wanted)
    assert not out[ROWS:].any() and not out[:, ROWS:].any()


def test_single_elements() -> None:
    @T.prim_func
    def main(A: T.Tensor((ROWS, COLUMNS), "float32"), O: T.Tensor((ROWS, COLUMNS), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((8, 16), "float32")
            line = T.alloc_fragment((16,), "float32")
            T.copy(A[0, 0], a)
            T.clear(line)
            for i in T.serial(ROWS):
                for k in T.serial(COLUMNS):
                    for j in T.Parallel(16):
                        line[j] = line[j] * 0.5 + a[i, k]
            T.copy(line, O[0, 0])

    wanted = np.float32(0)
    for value in tensor().ravel():
        wanted = wanted * DECAY + value
    assert picks(main) == 0
    np.testing.assert_array_equal(run(main, tensor())[0], np.full(COLUMNS, wanted))


def test_loops_of_any_length_take_nothing_beyond_the_tile() -> None:
    @T.prim_func
    def main(A: T.Tensor((ROWS, COLUMNS), "float32"), n: T.int32, O: T.Tensor((ROWS, COLUMNS), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((4, 16), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.copy(A[0, 0], a)
            T.clear(total)
            for i in T.serial(n):
                for j in T.Parallel(16):
                    if i < 4:
                        total[j] += a[i, j]
            T.copy(total, O[0, 0])

    out = torch.zeros(ROWS, COLUMNS)
    tiledsl.compile(main, target="interpret")(torch.from_numpy(tensor()), 6, out)
    np.testing.assert_array_equal(out.numpy()[0], tensor()[:4].sum(0))


def test_a_tile_that_is_written_stays() -> None:
    @T.prim_func
    def main(A: T.Tensor((ROWS, COLUMNS), "float32"), O: T.Tensor((ROWS, COLUMNS), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((8, 16), "float32")
            T.copy(A[0, 0], a)
            for i in T.serial(1, ROWS):
                for j in T.Parallel(16):
                    a[i, j] += 0.5 * a[i - 1, j]
            T.copy(a, O[0, 0])

    assert picks(main) >= 1
    np.testing.assert_array_equal(run(main, tensor()), decayed(tensor()))


def test_a_large_tile_that_stays_picked_is_a_remark() -> None:
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float32"), O: T.Tensor((64, 32), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((64, 32), "float32")
            state = T.alloc_fragment((32,), "float32")
            T.copy(A, a)
            T.clear(state)
            for i in T.serial(64):
                for j in T.Parallel(32):
                    state[j] = state[j] * 0.5 + a[63 - i, j]
                T.copy(state, O[i, 0])

    kernel = tiledsl.compile(main, target="cuda:90", pass_configs=SERIAL)
    (remark,) = [each for each in kernel.remarks if "goes through all" in each]
    assert remark.endswith("goes through all 64 x 32 elements of a tile, each time, for 32 of them")


PARAMETERS = "A: 64*96*float32, B: 64*96*float32, I: 64*int32, s: int32, b: bool"
LOOP = """
%rows = tensor.iota {axis = 0} : tensor<16x1xint32>
%columns = tensor.iota {axis = 1} : tensor<1x8xint32>
%start = tensor.iota {axis = 0} : tensor<8xint32>
%zero = arith.constant {value = 0.0} : tensor<8xfloat32>
HEAD
%a = LOAD : tensor<16x8xfloat32>
BETWEEN
%r = scf.for %c0, %c16, %c1[%zero] : tensor<8xfloat32> (%i: int32, %sum: tensor<8xfloat32>) {
  BEFORE
  %hit = arith.cmp %rows, %i {predicate = "eq"} : tensor<16x1xbool>
  %x = arith.select %hit, %a, %c0.0 : tensor<16x8xfloat32>
  %row = tensor.reduce %x {kind = "sum", axis = 0} : tensor<8xfloat32>
  %t = arith.add %sum, %row : tensor<8xfloat32>
  AFTER
  scf.yield [%t]
}
tile.store %r, %B[%c1, %start]
"""
PLAIN = "tile.load %A[%rows, %columns]"


def loop(load: str = PLAIN, head: str = "", between: str = "", before: str = "", behind: str = "") -> str:
    text = LOOP.replace("HEAD", head).replace("LOAD", load).replace("BETWEEN", between)
    return text.replace("BEFORE", before).replace("AFTER", behind)


def body_of_loop(text: str) -> list[str]:
    lines = after(ReloadRows(), text, parameters=PARAMETERS)
    first = next(number for number, line in enumerate(lines) if "scf.for" in line)
    return lines[first + 1 : -2]


def stays(text: str) -> bool:
    return any("tensor.reduce" in line for line in body_of_loop(text))


def meaning_is_kept(text: str) -> None:
    generator = np.random.default_rng(0)
    tiles = [generator.integers(-4, 5, (64, 96)).astype(np.float32) for _ in range(2)]
    places = generator.integers(-3, 70, 64).astype(np.int32)
    for flag in (False, True):
        check_pass(ReloadRows(), kernel(PARAMETERS, text), [*tiles, places, 3, flag])


def test_indices_masks_and_other_values_are_of_the_row() -> None:
    head = """%shift = arith.add %rows, %s : tensor<16x1xint32>
%low = arith.cmp %shift, %c9 {predicate = "lt"} : tensor<16x1xbool>"""
    text = loop("tile.load %A[%shift, %columns] mask=%low other=%c1.0", head)
    filecheck(
        body_of_loop(text),
        """
        %shift_1 = arith.add %i, %s : int32
        %low_1 = arith.cmp %shift_1, %c9 {predicate = "lt"} : bool
        %row = tile.load %A[%shift_1, %columns] mask=%low_1 other=%c1p0 : tensor<1x8xfloat32>
        %row_1 = tensor.reshape %row : tensor<8xfloat32>
        %t = arith.add %sum, %row_1 : tensor<8xfloat32>
        scf.yield [%t]
        """,
    )
    meaning_is_kept(text)


def test_loaded_indices_stay() -> None:
    text = loop("tile.load %A[%at, %columns]", "%at = tile.load %I[%rows] : tensor<16x1xint32>")
    assert stays(text)
    meaning_is_kept(text)


@pytest.mark.parametrize(
    "parts, kept",
    [
        ({"between": "tile.store %zero, %B[%c0, %start]"}, True),
        ({"behind": "tile.store %t, %B[%i, %start]"}, False),
        ({"before": "tile.store %sum, %B[%i, %start]"}, True),
        ({"behind": "tile.store %t, %A[%i, %start]"}, True),
        ({"behind": "tile.store %t, %B[%i, %start] tile.store %t, %A[%i, %start]"}, True),
        ({"behind": "tile.store %t, %B[%i, %start] tile.store %t, %B[%c40, %start]"}, False),
        ({"before": "tile.store %sum, %B[%i, %start]", "behind": "tile.store %t, %B[%i, %start]"}, True),
        ({"behind": '%old = tile.atomic %t, %B[%i, %start] {kind = "add"} : tensor<8xfloat32>'}, True),
    ],
    ids=[
        "before the loop",
        "behind",
        "in front",
        "the same buffer",
        "both",
        "behind twice",
        "on both sides",
        "an atomic",
    ],
)
def test_memory_that_may_have_changed(parts: dict[str, str], kept: bool) -> None:
    assert stays(loop(**parts)) is kept
    meaning_is_kept(loop(**parts))


@pytest.mark.parametrize(
    ("load", "head", "between", "remarks"),
    [
        (PLAIN, "", "", 0),
        ("arith.mul %g, %g", f"%g = {PLAIN} : tensor<16x8xfloat32>", "", 1),
        ("tile.load %A[%at, %columns]", "%at = tile.load %I[%rows] : tensor<16x1xint32>", "", 1),
        (PLAIN, "", "tile.store %zero, %B[%c0, %start]", 1),
    ],
    ids=["loaded again", "computed", "loaded indices", "written in between"],
)
def test_large_tiles_that_stay_picked_are_remarks(load: str, head: str, between: str, remarks: int) -> None:
    text = loop(load, head, between).replace("x8x", "x64x").replace("<8x", "<64x")
    made = program(text, parameters=PARAMETERS)
    ReloadRows().run(made)
    found = kernel_of(made)
    assert isinstance(found, KernelOp) and len(found.remarks) == remarks


def test_it_can_be_switched_off() -> None:
    assert after([], loop(), parameters=PARAMETERS) == after(ReloadRows(enabled=False), loop(), parameters=PARAMETERS)


@pytest.mark.parametrize(("rows", "picked"), [(3, True), (4, False)])
def test_few_rows_stay_picked(rows: int, picked: bool) -> None:
    text = loop().replace("16", str(rows))
    assert stays(text) is picked
    meaning_is_kept(text)


PICKED = """
%rows = tensor.iota {axis = 0} : tensor<8x1xint32>
%columns = tensor.iota {axis = 1} : tensor<1x16xint32>
%none = arith.constant {value = 0.0} : float32
%tile = tile.load %A[%rows, %columns] {guarded = true} : tensor<8x16xfloat32>
%cols = tensor.iota {axis = 0} : tensor<16xint32>
BEFORE
scf.for %c0, %c6, %c1 (%k: int32) {
  FIRST
  %is = arith.cmp %rows, %k {predicate = "eq"} : tensor<8x1xbool>
  %chosen = arith.select %is, %tile, %none : tensor<8x16xfloat32>
  %row = tensor.reduce %chosen {kind = "sum", axis = 0, exact = true} : tensor<16xfloat32>
  tile.store %row, %B[%k, %cols] {guarded = true}
  LAST
  scf.yield
}
"""


@pytest.mark.parametrize(
    ("places", "reloads"),
    [
        ({}, True),
        ({"BEFORE": "tile.store %none, %B[%c0, %c0] {guarded = true}"}, False),  # which may be A
        ({"BEFORE": "scf.if %p { tile.store %none, %B[%c0, %c0] {guarded = true} scf.yield } { scf.yield }"}, False),
        ({"BEFORE": "scf.while { scf.condition %p } { scf.yield }"}, False),  # until another block has written
        ({"FIRST": "tile.store %none, %B[%k, %c0] {guarded = true}"}, False),
        ({"LAST": "tile.store %none, %A[%k, %c0] {guarded = true}"}, False),
        ({"LAST": '%old = tile.atomic %none, %B[%k, %c0] {kind = "add"} : float32'}, False),
        ({"LAST": "%again = tile.load %B[%k, %c0] {guarded = true} : float32"}, True),
    ],
)
def test_rows_are_loaded_again_where_nothing_may_have_changed_them(places: dict[str, str], reloads: bool) -> None:
    text = PICKED
    for place in ("BEFORE", "FIRST", "LAST"):
        text = text.replace(place, places.get(place, ""))
    lines = after(ReloadRows(), text, parameters="A: 6*10*float32, B: 6*16*float32, p: bool")
    assert any(line.startswith("%row = tensor.reduce") for line in lines) is not reloads, lines
