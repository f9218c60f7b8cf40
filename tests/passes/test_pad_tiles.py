from __future__ import annotations

import contextlib
import re
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, body_lines, filecheck, program
from tests.support import executor
from tests.support.programs import attention, check_pass, inputs_for, layer_norm, programs, ragged_gemm, top_k
from tiledsl.dialects import tensor
from tiledsl.errors import TileError
from tiledsl.ir.types import TensorType
from tiledsl.ir.verifier import verify
from tiledsl.passes.guard_accesses import GuardAccesses
from tiledsl.passes.lower_tile_ops import LowerTileOps
from tiledsl.passes.pad_tiles import PadTiles
from tiledsl.passes.pad_tiles.reshape import keeps_order
from tiledsl.passes.promote_buffers import PromoteBuffers
from tiledsl.passes.unroll_loops import UnrollLoops
from tiledsl.passes.vectorize_parallel import VectorizeParallel
from tiledsl.runtime.target import Target

TO_GUARDED = [UnrollLoops(), LowerTileOps(), VectorizeParallel(), PromoteBuffers(), GuardAccesses()]
LOAD = """
%i = tensor.iota {axis = 0} : tensor<5x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x12xint32>
%x = tile.load %A[%i, %j] {guarded = true} : tensor<5x12xfloat32>
"""


def padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def check(body: str) -> None:
    """The pass does not change what the program computes, and leaves powers of two only."""
    made = program(body)
    func = check_pass([GuardAccesses(), PadTiles()], made.root, inputs_for(made.root, 0, {"m": 7}))
    for op in func.walk():
        for value in op.results:
            assert all(padded(size) == size for size in value.shape), op
    again = program(body)
    GuardAccesses().run(again)
    PadTiles().run(again)
    text = body_lines(again)
    PadTiles().run(again)
    verify(again.root)
    assert body_lines(again) == text


def test_powers_of_two_stay_as_they_are() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<16xint32>
    %x = tile.load %N[%i] {guarded = true} : tensor<16xint32>
    %y = tensor.reduce %x {kind = "max", axis = 0} : int32
    tile.store %y, %N[%bx] {guarded = true}"""
    made = program(body)
    before = body_lines(made)
    PadTiles().run(made)
    assert body_lines(made) == before


def test_a_long_row() -> None:
    body = """
    %j = tensor.iota {axis = 0} : tensor<1000xint32>
    %x = tile.load %N[%j] {guarded = true} : tensor<1000xint32>
    %m1 = tensor.reduce %x {kind = "max", axis = 0} : int32
    %s1 = tensor.reduce %x {kind = "sum", axis = 0} : int32
    %d = arith.sub %x, %m1 : tensor<1000xint32>
    %s2 = tensor.reduce %d {kind = "sum", axis = 0} : int32
    tile.store %d, %N[%j] {guarded = true}"""
    filecheck(
        after(PadTiles(), body),
        """
        %0 = tensor.iota {axis = 0} : tensor<1024xint32>
        %in_1000 = arith.cmp %0, %c1000 {predicate = "lt"} : tensor<1024xbool>
        %j = tensor.iota {axis = 0} : tensor<1024xint32>
        %x = tile.load %N[%j] mask=%in_1000 {guarded = true} : tensor<1024xint32>
        %x_1 = arith.select %in_1000, %x, %cm2147483648 : tensor<1024xint32>
        %m1 = tensor.reduce %x_1 {kind = "max", axis = 0} : int32
        %s1 = tensor.reduce %x {kind = "sum", axis = 0} : int32
        %d = arith.sub %x, %m1 : tensor<1024xint32>
        %d_1 = arith.select %in_1000, %d, %c0 : tensor<1024xint32>
        %s2 = tensor.reduce %d_1 {kind = "sum", axis = 0} : int32
        tile.store %d, %N[%j] mask=%in_1000 {guarded = true}
        """,
    )


@pytest.mark.parametrize("kind", tensor.REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions(kind: str, axis: int) -> None:
    check(f"""
    %i = tensor.iota {{axis = 0}} : tensor<5x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x12xint32>
    %k = arith.mul %i, %c12 : tensor<5x1xint32>
    %p = arith.add %k, %j : tensor<5x12xint32>
    %x = tile.load %N[%p] : tensor<5x12xint32>
    %y = arith.sub %x, %c3 : tensor<5x12xint32>
    %r = tensor.reduce %y {{kind = "{kind}", axis = {axis}}} : tensor<{(12, 5)[axis]}xint32>
    %o = tensor.iota {{axis = 0}} : tensor<{(12, 5)[axis]}xint32>
    tile.store %r, %N[%o]""")


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("reverse", ["true", "false"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scans(kind: str, reverse: str, axis: int) -> None:
    scan = f'{{kind = "{kind}", axis = {axis}, reverse = {reverse}}} : tensor<5x12xfloat32>'
    check(
        f"{LOAD}\n%y = arith.sub %x, %f : tensor<5x12xfloat32>\n%r = tensor.scan %y {scan}\ntile.store %r, %B[%i, %j]"
    )


def test_the_inner_dimension_of_a_dot_is_zero_on_both_sides() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<8x1xint32>
    %k = tensor.iota {axis = 1} : tensor<1x24xint32>
    %kt = tensor.iota {axis = 0} : tensor<24x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x8xint32>
    %a = tile.load %A[%i, %k] : tensor<8x24xfloat32>
    %e = arith.math [%a] {function = "exp"} : tensor<8x24xfloat32>
    %b1 = tile.load %B[%kt, %j] : tensor<24x8xfloat32>
    %zero = arith.constant {value = 0.0} : tensor<8x8xfloat32>
    %c = tensor.dot %e, %b1, %zero {precision = "ieee"} : tensor<8x8xfloat32>
    tile.store %c, %B[%i, %j]"""
    lines = after(PadTiles(), body)
    assert len([line for line in lines if "arith.select" in line]) == 1  # %b1 is zero there by its load
    assert "tensor.dot %e_1, %b1, " in "\n".join(lines)


@pytest.mark.parametrize("side", ["a", "b"])
def test_no_infinity_of_the_padding_reaches_a_dot(side: str) -> None:
    """1 / 0 in the padding of one side times the other's 0 would be NaN."""
    body = """
    %i = tensor.iota {axis = 0} : tensor<8x1xint32>
    %k = tensor.iota {axis = 1} : tensor<1x20xint32>
    %kt = tensor.iota {axis = 0} : tensor<20x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x8xint32>
    %a = tile.load %A[%i, %k] : tensor<8x20xfloat32>
    %b0 = tile.load %B[%kt, %j] : tensor<20x8xfloat32>
    %one = arith.constant {value = 1.0} : float32
    %ra = arith.div %one, %a : tensor<8x20xfloat32>
    %rb = arith.div %one, %b0 : tensor<20x8xfloat32>
    %zero = arith.constant {value = 0.0} : tensor<8x8xfloat32>
    %c = tensor.dot %LEFT, %RIGHT, %zero {precision = "ieee"} : tensor<8x8xfloat32>
    tile.store %c, %B[%i, %j]""".replace("%LEFT, %RIGHT", {"a": "%ra, %b0", "b": "%a, %rb"}[side])
    made = program(body, grid=(1,))
    PadTiles().run(made)
    arrays = [np.ones((64, 96), np.float32), np.ones((64, 96), np.float32), np.zeros(1000, np.int32),
              np.zeros(5, np.float32), 1, 1.0, True, 1]  # fmt: skip
    with np.errstate(divide="ignore", invalid="ignore"):
        executor.run(made.root, arrays)
    assert (arrays[1][:8, :8] == 20).all()  # type: ignore[index]


def _dot(inner: int, dtype: str = "float16") -> str:
    return f"""
    %i = tensor.iota {{axis = 0}} : tensor<8x1xint32>
    %k = tensor.iota {{axis = 1}} : tensor<1x{inner}xint32>
    %kt = tensor.iota {{axis = 0}} : tensor<{inner}x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
    %a = tile.load %A[%i, %k] : tensor<8x{inner}xfloat32>
    %b1 = tile.load %B[%kt, %j] : tensor<{inner}x8xfloat32>
    %ah = arith.cast %a : tensor<8x{inner}x{dtype}>
    %bh = arith.cast %b1 : tensor<{inner}x8x{dtype}>
    %acc = tile.load %B[%i, %j] : tensor<8x8xfloat32>
    %c = tensor.dot %ah, %bh, %acc : tensor<8x8xfloat32>
    tile.store %c, %B[%i, %j]"""


@pytest.mark.parametrize("inner", [1, 2, 4, 7, 8, 9, 16, 20])
def test_small_inner_dimensions_of_dots_grow(inner: int) -> None:
    body = _dot(inner)
    check(body)
    lines = after(PadTiles(), body)
    dots = [line for line in lines if "tensor.dot" in line]
    assert len(dots) == (inner > 1)
    if inner > 1:
        assert any(
            f"%kt = tensor.iota {{axis = 0}} : tensor<{max(16, padded(inner))}x1xint32>" in line for line in lines
        )


def test_eight_bit_operands_need_twice_the_inner_dimension() -> None:
    lines = after(PadTiles(), _dot(16, "float8_e5m2"))
    assert any("%kt = tensor.iota {axis = 0} : tensor<32x1xint32>" in line for line in lines)
    assert any("tensor<16x1xint32>" in line for line in after(PadTiles(min_dot=8), _dot(16, "float8_e5m2")))
    for operand in ("%ah = arith.cast %a : tensor<8x16x", "%bh = arith.cast %b1 : tensor<16x8x"):  # one of them is
        mixed = _dot(16).replace(f"{operand}float16>", f"{operand}float8_e5m2>")
        filecheck(after(PadTiles(), mixed), "CHECK: %kt = tensor.iota {axis = 0} : tensor<32x1xint32>")


def test_products_of_single_integers_do_not_wrap_where_their_sum_is_a_float() -> None:
    filecheck(
        after(PadTiles(), _dot(1, "int32")),
        """
        CHECK: [[A:%.+]] = arith.cast %ah : tensor<8x1xint64>
        CHECK-NEXT: [[B:%.+]] = arith.cast %bh : tensor<1x8xint64>
        CHECK-NEXT: [[C:%.+]] = arith.mul [[A]], [[B]] : tensor<8x8xint64>
        CHECK-NEXT: arith.cast [[C]] : tensor<8x8xfloat32>
        """,
    )


@pytest.mark.parametrize("target", [None, "interpret", "hip:gfx942", "cuda:80", "cuda:100"])
def test_products_smaller_than_triton_has_are_refused(target: str | None) -> None:
    made = program(_dot(4), target=target and Target.parse(target))
    refused = pytest.raises(TileError, match=r"^pad-tiles\.min_dot is 8; it must be 16 or more for cuda")
    with refused if target and target.startswith("cuda") else contextlib.nullcontext():
        PadTiles(min_dot=8).run(made)
    PadTiles(min_dot=16).run(program(_dot(4), target=target and Target.parse(target)))


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        ((3, 32), (96,), True),
        ((96,), (3, 32), True),
        ((96, 4, 32), (96, 128), True),
        ((5, 12), (60,), False),
        ((4, 3), (12,), False),
        ((5, 1, 12), (1, 5, 12), True),
        ((12, 5), (5, 12), False),
        ((6, 10), (60, 1), False),
        ((1, 1), (1,), True),
        ((2, 3, 4), (6, 4), False),
        ((3, 2, 4), (3, 8), True),
    ],
)
def test_reshapes(source: tuple[int, ...], target: tuple[int, ...], kept: bool) -> None:
    assert keeps_order(source, target, padded) is kept
    count = prod(source)
    body = f"""
    %n = tensor.iota {{axis = 0}} : tensor<{count}xint32>
    %x = tile.load %N[%n] : tensor<{count}xint32>
    %a = tensor.reshape %x : {TensorType(source, "int32")}
    %y = arith.add %a, %c1 : {TensorType(source, "int32")}
    %z = tensor.reshape %y : {TensorType(target, "int32")}
    %r = tensor.reduce %z {{kind = "min", axis = 0}} : {str(TensorType(target[1:], "int32")) if target[1:] else "int32"}
    %w = tensor.reshape %z : tensor<{count}xint32>
    tile.store %w, %N[%n]"""
    check(body)


def test_gathers_stay_inside() -> None:
    check(
        LOAD
        + """
    %t = tensor.iota {axis = 1} : tensor<1x7xint32>
    %u = arith.sub %c11, %t : tensor<1x7xint32>
    %g = tensor.broadcast %u : tensor<5x7xint32>
    %y = tensor.gather %x, %g {axis = 1} : tensor<5x7xfloat32>
    tile.store %y, %B[%i, %t]"""
    )


def test_a_gather_at_the_end_of_a_tile_from_its_padding_stays_inside() -> None:
    check("""
    %i = tensor.iota {axis = 0} : tensor<5x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x16xint32>
    %x = tile.load %A[%i, %j] : tensor<5x16xfloat32>
    %t = tensor.iota {axis = 1} : tensor<1x7xint32>
    %first = arith.cmp %t, %c7 {predicate = "lt"} : tensor<1x7xbool>
    %u = arith.select %first, %t, %c16 : tensor<1x7xint32>
    %g = tensor.broadcast %u : tensor<5x7xint32>
    %y = tensor.gather %x, %g {axis = 1} : tensor<5x7xfloat32>
    tile.store %y, %B[%i, %t]""")


def test_control_flow_and_atomics() -> None:
    check(
        LOAD
        + """
    %r = scf.for %c0, %c3, %c1[%x] : tensor<5x12xfloat32> (%k: int32, %acc: tensor<5x12xfloat32>) {
      %y = arith.add %acc, %f : tensor<5x12xfloat32>
      %z = scf.if %b : tensor<5x12xfloat32> { scf.yield [%y] } { scf.yield [%x] }
      scf.yield [%z]
    }
    %t = tensor.transpose %r {permutation = (1, 0)} : tensor<12x5xfloat32>
    %sums = tensor.reduce %t {kind = "sum", axis = 0} : tensor<5xfloat32>
    %o = tensor.iota {axis = 0} : tensor<5xint32>
    %old = tile.atomic %sums, %B[%o, %bx] {kind = "add"} : tensor<5xfloat32>"""
    )


def test_a_mask_of_the_program_and_other_values() -> None:
    check(
        LOAD
        + """
    %c = arith.cmp %j, %c10 {predicate = "lt"} : tensor<1x12xbool>
    %h = arith.constant {value = 2.5} : float32
    %y = tile.load %A[%i, %j] mask=%c other=%h : tensor<5x12xfloat32>
    %m1 = tensor.reduce %y {kind = "max", axis = 1} : tensor<5xfloat32>
    %o = tensor.iota {axis = 0} : tensor<5xint32>
    tile.store %m1, %B[%o, %bx]"""
    )


@pytest.mark.parametrize(
    ("mask", "left"),
    [
        ("%c = arith.cmp %j, %c12 {predicate = \"lt\"} : tensor<1x12xbool>", {"in_5"}),
        ("%c = arith.cmp %j, %s {predicate = \"lt\"} : tensor<1x12xbool>", {"in_5", "in_12"}),
        ("%c = arith.cmp %i, %c5 {predicate = \"lt\"} : tensor<5x1xbool>", {"in_12"}),
        ("%c = arith.cmp %s, %c5 {predicate = \"lt\"} : bool", {"in_5", "in_12"}),
        ("%d = arith.cmp %i, %c5 {predicate = \"lt\"} : tensor<5x1xbool>\n"
         "%e = arith.cmp %j, %c12 {predicate = \"lt\"} : tensor<1x12xbool>\n"
         "%c = arith.and %d, %e : tensor<5x12xbool>", set()),
        ("%c = arith.constant {value = false} : tensor<5x12xbool>", set()),
    ],
)  # fmt: skip
def test_masks_that_exclude_the_padding_stay_as_they_are(mask: str, left: set[str]) -> None:
    """Along each dimension by itself."""
    access = f"{mask}\ntile.store %x, %B[%i, %j] mask=%c {{guarded = true}}"
    body = "%i = tensor.iota {axis = 0} : tensor<5x1xint32>\n%j = tensor.iota {axis = 1} : tensor<1x12xint32>\n"
    body += f"%x = arith.constant {{value = 2.0}} : tensor<5x12xfloat32>\n{access}"
    text = "\n".join(after(PadTiles(), body))
    assert set(re.findall(r"in_(?:5|12)\b", text)) == left
    check(body)


def test_assertions_do_not_look_at_padding() -> None:
    body = (
        LOAD
        + """
    %c = arith.cmp %j, %c12 {predicate = "lt"} : tensor<1x12xbool>
    tile.assert %c"""
    )
    check(body)


def test_too_large_a_tile_is_refused_with_its_place() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<600x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x1100xint32>
    %x = arith.add %i, %j : tensor<600x1100xint32>
    tile.print [%x]"""
    made = program(body)
    with pytest.raises(TileError, match="600x1100 elements takes 2097152 when padded"):
        PadTiles().run(made)


def test_padding_of_loads_may_hold_anything_beyond() -> None:
    """The row before the end of A would be read without a mask."""
    body = """
    %j = tensor.iota {axis = 0} : tensor<5xint32>
    %p = arith.add %j, %c995 : tensor<5xint32>
    %x = tile.load %N[%p] : tensor<5xint32>
    tile.store %x, %N[%j]"""
    check(body)


@pytest.mark.parametrize(
    "func",
    [ragged_gemm(), attention(), attention(37, 20, 12, 24), layer_norm(), layer_norm(5, 33, 3), top_k()],
    ids=lambda f: f.sym_name,
)
def test_named_programs_keep_their_meaning(func) -> None:  # type: ignore[no-untyped-def]
    check_pass([*TO_GUARDED, PadTiles()], func, inputs_for(func, 0), tolerance=1e-5)


@settings(max_examples=60)
@given(programs(), st.integers(0, 99))
def test_meaning_stays(func, seed) -> None:  # type: ignore[no-untyped-def]
    check_pass([*TO_GUARDED, PadTiles()], func, inputs_for(func, seed), tolerance=1e-5)


def test_garbage_in_padding_does_not_reach_results() -> None:
    """exp of the padding is infinite here, and 0 * inf would be NaN."""
    body = """
    %i = tensor.iota {axis = 0} : tensor<5x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x12xint32>
    %k = arith.cast %j : tensor<1x12xfloat32>
    %big = arith.constant {value = 200.0} : float32
    %lo = arith.constant {value = 11.0} : float32
    %d = arith.sub %k, %lo : tensor<1x12xfloat32>
    %e = arith.mul %d, %big : tensor<1x12xfloat32>
    %w = arith.math [%e] {function = "exp"} : tensor<1x12xfloat32>
    %x = tile.load %A[%i, %j] : tensor<5x12xfloat32>
    %v = arith.mul %x, %w : tensor<5x12xfloat32>
    %r = tensor.reduce %v {kind = "sum", axis = 1} : tensor<5xfloat32>
    %o = tensor.iota {axis = 0} : tensor<5xint32>
    tile.store %r, %B[%o, %bx]"""
    check(body)
    made = program(body)
    PadTiles().run(made)
    arrays = [np.ones((64, 96), np.float32), np.zeros((64, 96), np.float32), np.zeros(1000, np.int32),
              np.zeros(5, np.float32), 1, 1.0, True, 1]  # fmt: skip
    executor.run(made.root, arrays)
    assert np.isfinite(arrays[1]).all()  # type: ignore[arg-type]


def test_products_with_an_inner_dimension_of_1_may_contract() -> None:
    dot = """%a{0} = arith.constant {{value = 0.5}} : tensor<4x{0}xfloat32>
    %b{0} = arith.constant {{value = 0.5}} : tensor<{0}x4xfloat32>
    %c{0} = arith.constant {{value = 0.5}} : tensor<4x4xfloat32>
    %d{0} = tensor.dot %a{0}, %b{0}, %c{0} : tensor<4x4xfloat32>\n"""
    for inner, allowed in (((1,), {"contraction"}), ((2,), set()), ((2, 1), {"contraction"}), ((), set())):
        assert PadTiles().allowances(program("".join(map(dot.format, inner)))) == allowed


@pytest.mark.parametrize("least", [0, -4, 3, 24])
def test_the_least_inner_dimension_is_a_power_of_two(least: int) -> None:
    with pytest.raises(TileError, match=rf"^pad-tiles\.min_dot is {least}; it must be a power of two$"):
        PadTiles(min_dot=least).run(program(_dot(16)))
