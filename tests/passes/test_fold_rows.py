"""fold-rows: rows in pieces that threads combine first, what they mean, and which kernels stay as they are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.passes.ir_cases import after, body_lines, filecheck, kernel, kernel_of, program
from tests.support.programs import check_pass
from tiledsl.passes.fold_rows import FoldRows
from tiledsl.runtime.target import Target

PARAMETERS = "X: 64*256*bfloat16, W: 256*float32, S: 64*float32, Y: 64*256*bfloat16, A: 16*256*float32, K: 64*int32"
HEAD = """
    %i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x256xint32>
    %c = tensor.iota {axis = 0} : tensor<256xint32>
    %r = tensor.iota {axis = 0} : tensor<16xint32>
    %g = tile.load %X[%i, %j] {guarded = true} : tensor<16x256xbfloat16>
    %x = arith.cast %g : tensor<16x256xfloat32>"""
WORDS = """
    %i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x256xint32>
    %r = tensor.iota {axis = 0} : tensor<16xint32>
    %x = tile.load %A[%i, %j] {guarded = true} : tensor<16x256xfloat32>"""
SUM = """
    %s = tensor.reduce %x {kind = "sum", axis = 1} : tensor<16xfloat32>
    tile.store %s, %S[%r] {guarded = true}"""
NORM = (
    HEAD
    + SUM
    + """
    %t = tensor.reshape %s : tensor<16x1xfloat32>
    %w = tile.load %W[%c] {guarded = true} : tensor<256xfloat32>
    %v = tensor.reshape %w : tensor<1x256xfloat32>
    %m = arith.cmp %j, %c200 {predicate = "lt"} : tensor<1x256xbool>
    %z = arith.sub %x, %t : tensor<16x256xfloat32>
    %y = arith.mul %z, %v : tensor<16x256xfloat32>
    %o = arith.cast %y : tensor<16x256xbfloat16>
    tile.store %o, %Y[%i, %j] mask=%m {guarded = true}"""
)
CARRIED = (
    HEAD
    + """
    %zero = arith.constant {value = 0.0} : tensor<16x256xfloat32>
    %wide = tensor.broadcast %j : tensor<16x256xint32>
    %sums = scf.for %c0, %c3, %c1[%zero] : tensor<16x256xfloat32> (%k: int32, %a: tensor<16x256xfloat32>) {
      %n = arith.add %a, %x : tensor<16x256xfloat32>
      scf.yield [%n]
    }
    %h = tensor.reduce %sums {kind = "max", axis = 1} : tensor<16xfloat32>
    %w = tile.load %W[%c] {guarded = true} : tensor<256xfloat32>
    %all = tensor.reduce %w {kind = "sum", axis = 0} : float32
    %o = arith.add %h, %all : tensor<16xfloat32>
    tile.store %o, %S[%r] {guarded = true}
    %f = arith.cast %wide : tensor<16x256xbfloat16>
    tile.store %f, %Y[%i, %j] {guarded = true}"""
)


def lines(body: str, warps: int = 1, **options: object) -> list[str]:
    made = program(body, parameters=PARAMETERS, **options)  # type: ignore[arg-type]
    kernel_of(made).set_attribute("options", (("num_warps", warps),))
    FoldRows().run(made)
    return body_lines(made)


def stays(body: str, warps: int = 1, **options: object) -> bool:
    return lines(body, warps, **options) == after([], body, parameters=PARAMETERS)


def computes_the_same(body: str) -> None:
    generator = np.random.default_rng(0)
    sizes = ((64, 256), 256, 64, (64, 256), (16, 256))
    given = [generator.integers(-4, 5, size).astype(np.float32) for size in sizes]
    given[0], given[3] = (given[n].astype(ml_dtypes.bfloat16) for n in (0, 3))
    func = kernel(PARAMETERS, body)
    next(op for op in func.walk() if op.name == "tile.kernel").set_attribute("options", (("num_warps", 1),))
    check_pass(FoldRows(), func, [*given, np.zeros(64, np.int32)])


def test_a_rows_pieces_are_combined_before_its_threads_meet() -> None:
    filecheck(
        lines(NORM),
        """
        CHECK: [[PIECE:%[a-z0-9_]+]] = tensor.iota {axis = 1} : tensor<1x4x1xint32>
        CHECK: [[PLACE:%[a-z0-9_]+]] = tensor.iota {axis = 2} : tensor<1x1x64xint32>
        CHECK: [[FIRST:%[a-z0-9_]+]] = arith.mul [[PIECE]], %c64 : tensor<1x4x1xint32>
        CHECK: %j = arith.add [[FIRST]], [[PLACE]] : tensor<1x4x64xint32>
        CHECK: %g = tile.load %X[%i, %j] {guarded = true} : tensor<16x4x64xbfloat16>
        CHECK: [[PART:%[a-z0-9_]+]] = tensor.reduce %x {kind = "sum", axis = 1} : tensor<16x64xfloat32>
        CHECK: %s = tensor.reduce [[PART]] {kind = "sum", axis = 1} : tensor<16xfloat32>
        CHECK: %t = tensor.reshape %s : tensor<16x1x1xfloat32>
        CHECK: %w = tile.load %W[%c] {guarded = true} : tensor<4x64xfloat32>
        CHECK: %v = tensor.reshape %w : tensor<1x4x64xfloat32>
        """,
    )
    computes_the_same(NORM)


def test_carried_tiles_and_reductions_of_one_row_are_folded_too() -> None:
    filecheck(
        lines(CARRIED),
        """
        CHECK: (%k: int32, %a: tensor<16x4x64xfloat32>)
        CHECK: [[PART:%[a-z0-9_]+]] = tensor.reduce %sums {kind = "max", axis = 1} : tensor<16x64xfloat32>
        CHECK: %h = tensor.reduce [[PART]] {kind = "max", axis = 1} : tensor<16xfloat32>
        CHECK: [[SOME:%[a-z0-9_]+]] = tensor.reduce %w {kind = "sum", axis = 0} : tensor<64xfloat32>
        CHECK: %all = tensor.reduce [[SOME]] {kind = "sum", axis = 0} : float32
        """,
    )
    computes_the_same(CARRIED)


@pytest.mark.parametrize(
    ("warps", "rows", "shape"),
    [
        (1, 16, "16x4x64"),  # the 8 threads of a line, of 2 that there are for a row
        (4, 16, "16x4x64"),  # 8 there are
        (8, 16, "16x2x128"),  # 16 threads for a row
    ],
)
def test_a_row_has_the_threads_that_there_are_for_it(warps: int, rows: int, shape: str) -> None:
    assert f"tensor<{shape}xbfloat16>" in next(line for line in lines(NORM, warps) if "%g" in line)


def test_rows_that_have_no_more_threads_than_there_are_for_them_stay() -> None:
    assert stays(NORM, 16)
    assert not stays(NORM, 8)


def test_the_threads_of_a_warp_are_the_targets() -> None:
    assert stays(NORM, 8, target=Target.parse("hip:gfx942"))
    assert "tensor<16x2x128x" in next(
        line for line in lines(NORM, 4, target=Target.parse("hip:gfx942")) if "%g" in line
    )


def test_without_num_warps_the_kernels_threads_count() -> None:
    text = after(FoldRows(), NORM, parameters=PARAMETERS)
    assert "tensor<16x4x64xbfloat16>" in next(line for line in text if "%g" in line)


def test_the_width_of_elements_says_how_many_threads_lie_along_a_row() -> None:
    assert "tensor<16x8x32xfloat32>" in next(line for line in lines(WORDS + SUM) if "%x =" in line)
    store = "tile.store %x, %A[%i, %j] {guarded = true}"
    assert "tensor<16x8x32xfloat32>" in next(line for line in lines(WORDS + SUM + store) if "%x =" in line)


@pytest.mark.parametrize(
    "more",
    [
        "%k = tile.load %X[%i, %j] {guarded = true} : tensor<16x256xbfloat16>",
        "%k = arith.cast %x : tensor<16x256xbfloat16> tile.store %k, %Y[%i, %j] {guarded = true}",
    ],
)
def test_rows_of_elements_of_two_widths_stay(more: str) -> None:
    assert stays(WORDS + SUM + more) and not stays(WORDS + SUM)


@pytest.mark.parametrize(
    "body",
    [
        HEAD + SUM + """%d = tensor.reduce %x {kind = "sum", axis = 0} : tensor<256xfloat32>
            tile.store %d, %W[%c] {guarded = true}""",
        HEAD + """%d = tensor.reduce %x {kind = "sum", axis = 0} : tensor<256xfloat32>
            tile.store %d, %W[%c] {guarded = true}""",
        HEAD + SUM + """%q = tensor.scan %x {kind = "sum", axis = 1} : tensor<16x256xfloat32>
            tile.store %q, %A[%i, %j] {guarded = true}""",
        HEAD + SUM + """%q = tensor.reshape %x : tensor<4096xfloat32>
            %n = tensor.iota {axis = 0} : tensor<4096xint32>
            tile.store %q, %W[%n]""",
        HEAD + SUM + """%k = tensor.iota {axis = 1} : tensor<1x32xint32>
            %e = tile.load %X[%i, %k] {guarded = true} : tensor<16x32xbfloat16>
            %f = tensor.reduce %e {kind = "max", axis = 1} : tensor<16xbfloat16>
            tile.store %f, %X[%r, %r]""",
        HEAD + SUM + """%k = tensor.iota {axis = 1} : tensor<1x32xint32>
            %e = tile.load %X[%i, %k] {guarded = true} : tensor<16x32xbfloat16>
            tile.store %e, %X[%i, %k] {guarded = true}""",
        HEAD + SUM + """%o = tensor.reshape %c : tensor<256x1xint32>
            %e = tile.load %X[%o, %c0] : tensor<256x1xbfloat16>
            tile.store %e, %X[%o, %c1]""",
        HEAD.replace("16", "256").replace("bfloat256", "bfloat16").replace("float256", "float16") + """
            %s = tensor.reduce %x {kind = "sum", axis = 1} : tensor<256xfloat32>
            tile.store %s, %W[%c] {guarded = true}""",
        """%i = tensor.iota {axis = 0} : tensor<16x1xint32> %j = tensor.iota {axis = 1} : tensor<1x256xint32>
            %r = tensor.iota {axis = 0} : tensor<16xint32> %b = arith.add %i, %j : tensor<16x256xint32>
            %s = tensor.reduce %b {kind = "sum", axis = 1} : tensor<16xint32>
            tile.store %s, %K[%r] {guarded = true}""",
        HEAD + "tile.store %x, %A[%i, %j] {guarded = true}",
    ],
    ids=["both", "columns", "scan", "flat", "two widths", "another width", "turned", "square", "computed", "nothing"],
)  # fmt: skip
def test_other_kernels_stay(body: str) -> None:
    made, before = (program(body, parameters=PARAMETERS) for _ in range(2))
    for each in (made, before):
        kernel_of(each).set_attribute("options", (("num_warps", 1),))
    FoldRows().run(made)
    assert body_lines(made) == body_lines(before)


def test_it_can_be_turned_off() -> None:
    assert after(FoldRows(enabled=False), NORM, parameters=PARAMETERS) == after([], NORM, parameters=PARAMETERS)


@pytest.mark.parametrize(
    ("body", "allowed"),
    [
        (NORM, {"reassociation"}),
        (NORM.replace('"sum"', '"max"'), set()),
        (NORM.replace('"sum"', '"abssum"'), {"reassociation"}),
        (NORM.replace('"sum"', '"prod"'), {"reassociation"}),
        (HEAD + "tile.store %x, %A[%i, %j] {guarded = true}", set()),
    ],
)
def test_sums_of_floats_are_added_in_another_order(body: str, allowed: set[str]) -> None:
    made = program(body, parameters=PARAMETERS)
    before = body_lines(made)
    assert FoldRows().allowances(made) == allowed
    assert body_lines(made) == before


def test_sums_of_integers_are_not() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x256xint32>
    %r = tensor.iota {axis = 0} : tensor<16xint32>
    %x = tile.load %A[%i, %j] {guarded = true} : tensor<16x256xfloat32>
    %n = arith.cast %x : tensor<16x256xint32>
    %s = tensor.reduce %n {kind = "sum", axis = 1} : tensor<16xint32>
    tile.store %s, %K[%r] {guarded = true}"""
    assert not stays(body)
    assert FoldRows().allowances(program(body, parameters=PARAMETERS)) == set()
