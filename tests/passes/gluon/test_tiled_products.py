"""Which kernels are one product in one loop, for Gluon."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, filecheck, kernel_of, program
from tiledsl.analysis.gluon.plan import product_drawback, product_stages, products_in_flight
from tiledsl.analysis.gluon.softmax_loops import NotRecognised
from tiledsl.analysis.gluon.tiled_products import TiledProduct, find_tiled_product
from tiledsl.ir.verifier import verify
from tiledsl.passes.gluon.tiled_products import widen_columns

TILES = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>
%a = tile.load %A[%i, %j] {guarded = true} : tensor<16x16xfloat32>
"""
DOT = "%d = tensor.dot %a, %a, %acc : tensor<16x16xfloat32>\n"
LOOP = "%r = scf.for %c0, %c4, %c1[%zero] : tensor<16x16xfloat32> (%k: int32, %acc: tensor<16x16xfloat32>) {"
STORE = "\nscf.yield [%d] }\ntile.store %r, %A[%i, %j] {guarded = true}"


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        (LOOP + "%d = arith.neg %acc : tensor<16x16xfloat32>", "0 products and 1 loops"),
        (LOOP + DOT.replace("%d", "%e") + DOT.replace("%acc", "%e"), "2 products and 1 loops"),
        ("%p = tensor.dot %a, %a, %zero : tensor<16x16xfloat32>\n" + LOOP + "%d = arith.add %acc, %p : "
         "tensor<16x16xfloat32>", "1 products and 1 loops"),
    ],
)  # fmt: skip
def test_what_is_not_one_product_in_one_loop(loop: str, found: str) -> None:
    kernel = kernel_of(program(TILES + loop + STORE))
    with pytest.raises(NotRecognised, match=f"{found} are not one product in one loop"):
        find_tiled_product(kernel.body)


FLIES: dict[str, Any] = {
    "beside": "%e = arith.add %k, %c1 : int32", "handed_on": "%n", "end": "%c4", "columns": 128, "consumers": 2,
    "acc_position": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 2),
        ({"beside": "%e = arith.add %n, %c1 : int32"}, 1),  # needs what the last step has handed on
        ({"handed_on": "%e"}, 1),  # hands on what the next one needs
        ({"acc_position": 0}, 1),
        ({"end": "%c2"}, 2),
        ({"end": "%c1"}, 1),
        ({"end": "%s"}, 1),  # which may be 1
        ({"columns": 144}, 2),  # 216 registers, nine tenths of 240
        ({"columns": 146}, 1),
        ({"columns": 96, "consumers": 3}, 2),  # 144, nine tenths of 160
        ({"columns": 98, "consumers": 3}, 1),
    ],
    ids=str,
)
def test_a_product_is_issued_early_where_no_step_waits_for_the_last_one(change: dict[str, Any], expected: int) -> None:
    tile, case = "tensor<16x16xfloat32>", FLIES | change
    loop = f"""
    %r, %q = scf.for %c0, {case["end"]}, %c1[%zero, %c0] : {tile}, int32 (%k: int32, %acc: {tile}, %n: int32) {{
      %d = tensor.dot %a, %a, %zero : {tile}
      {case["beside"]}
      %sum = arith.add %acc, %d : {tile}
      scf.yield [%sum, {case["handed_on"]}] }}"""
    made = {op.results[0].name: op for op in kernel_of(program(TILES + loop)).walk() if op.results}
    left = SimpleNamespace(out=SimpleNamespace(dtype="float8_e5m2"))
    parts = {"op": made["r"], "beside": (made["e"],), "rows": 128, "depth": 128, "left": left}
    found: Any = SimpleNamespace(**parts, columns=case["columns"], acc_position=case["acc_position"])
    assert products_in_flight(found, case["consumers"]) == expected
    if case["columns"] == 128 and case["acc_position"] is None:
        reason = "" if expected == 2 else "a second product cannot be issued before the first is used"
        assert product_drawback(found, 2, 4) == reason


@pytest.mark.parametrize(
    ("dtype", "acc_position", "tile", "stages", "reason"),
    [
        ("float16", None, (128, 128, 128), 4, "only those of float8 that start from zero"),
        ("float8_e5m2", 0, (128, 128, 128), 4, "only those of float8 that start from zero"),
        ("float8_e5m2", None, (64, 128, 128), 4, "tiles of 64 x 128 x 128 are not known to be faster"),
        ("float8_e4m3fn", None, (128, 64, 128), 4, "tiles of 128 x 64 x 128 are not known to be faster"),
        ("float8_e4m3fn", None, (128, 128, 64), 4, "tiles of 128 x 128 x 64 are not known to be faster"),
        ("float8_e4m3fn", None, (128, 128, 128), 3, "3 stages are not known to be faster, 4 are"),
    ],
)
def test_products_that_triton_computes_faster(
    dtype: str, acc_position: int | None, tile: tuple[int, int, int], stages: int, reason: str
) -> None:
    left, (rows, columns, depth) = SimpleNamespace(out=SimpleNamespace(dtype=dtype)), tile
    found: Any = SimpleNamespace(left=left, acc_position=acc_position, rows=rows, columns=columns, depth=depth)
    assert reason in product_drawback(found, 2, stages)


@pytest.mark.parametrize(
    ("made", "row"),
    [
        ("%y = tensor.reshape %x : tensor<1x16xfloat32>", True),
        ("%y = tensor.reshape %x : tensor<16x1xfloat32>", False),
        ("%y = tensor.reshape %x : tensor<1x4x4xfloat32>", False),
        ("%y = tensor.reshape %x : tensor<4x4xfloat32>", False),
        ("%y = tensor.reshape %f : tensor<1xfloat32>", False), ("%y = tensor.reshape %f : tensor<1x1xfloat32>", False),
        ("%w = tile.load %A[%i, %j] : tensor<16x16xfloat32>\n%y = tensor.reshape %w : tensor<1x256xfloat32>", False),
    ],
)  # fmt: skip
def test_rows_of_columns_have_two_dimensions_from_the_start(made: str, row: bool) -> None:
    """And nothing else is given another shape."""
    head = """%n = tensor.iota {axis = 0} : tensor<16xint32>
      %m = arith.add %n, %bx : tensor<16xint32>
      %p = tile.load %A[%c3, %m] : tensor<16xfloat32>
      %x = arith.mul %p, %f : tensor<16xfloat32>\n"""
    made_of = program(TILES + head + made + "\ntile.print [%y]")
    before = body_lines(made_of)
    widen_columns(kernel_of(made_of).regions[0])
    verify(made_of.root)
    found = body_lines(made_of)
    if not row:
        assert found == before
        return
    filecheck(
        found[-5:],
        """
        %n = tensor.iota {axis = 1} : tensor<1x16xint32>
        %m = arith.add %n, %bx : tensor<1x16xint32>
        %p = tile.load %A[%c3, %m] : tensor<1x16xfloat32>
        %x = arith.mul %p, %f : tensor<1x16xfloat32>
        tile.print [%x]
        """,
    )


@pytest.mark.parametrize(
    ("dtype", "columns", "depth", "wrong"),
    [
        ("float8_e5m2", 16, 32, ""), ("float8_e5m2", 16, 16, "extent 16 is not a power of two from 32 to 256"),
        ("float8_e5m2", 16, 96, "extent 96 is not"), ("float8_e5m2", 8, 32, "extent 8 is not a power of two from 16"),
        ("float8_e5m2", 48, 32, "extent 48 is not"), ("float8_e5m2", 256, 256, ""),
        ("float8_e5m2", 16, 512, "extent 512 is not"),
        ("float16", 16, 16, ""), ("float16", 16, 8, "extent 8 is not a power of two from 16 to 256"),
    ],
)  # fmt: skip
def test_tiles_that_gluon_multiplies(dtype: str, columns: int, depth: int, wrong: str) -> None:
    body = f"""
    %a = arith.constant {{value = 0.0}} : tensor<64x{depth}x{dtype}>
    %b = arith.constant {{value = 0.0}} : tensor<{depth}x{columns}x{dtype}>
    %zero = arith.constant {{value = 0.0}} : tensor<64x{columns}xfloat32>
    %r = scf.for %c0, %c4, %c1[%zero] {{num_stages = 3}} : tensor<64x{columns}xfloat32>
        (%k: int32, %acc: tensor<64x{columns}xfloat32>) {{
      %d = tensor.dot %a, %b, %acc : tensor<64x{columns}xfloat32>
      scf.yield [%d] }}"""
    made: Any = {op.results[0].name: op for op in kernel_of(program(body)).walk() if op.results}
    found = TiledProduct(made["r"], made["a"], made["b"], made["d"], 0, (), (), (), ())
    if wrong:
        with pytest.raises(NotRecognised, match=f"a tile's {wrong}"):
            product_stages(found, 1, 0, 1 << 20, [])
    else:
        assert product_stages(found, 1, 0, 1 << 20, []) == 3


WIDE, HALF = "tensor<16x16xfloat32>", "tensor<16x16xfloat16>"
A, B = (f"%{at} tile.load_block %{at[0].upper()}[%k, %c0] {{axes = (0, 1)}} : {HALF}\n" for at in ("a =", "b ="))
ADDED = f"""
%zero = arith.constant {{value = 0.0}} : {WIDE}
%one = arith.constant {{value = 1.0}} : {WIDE}
%r, %q = scf.for %c0, %c4, %c1[%zero, %one] : {WIDE}, {WIDE} (%k: int32, %acc: {WIDE}, %old: {WIDE}) {{
  {A} {B}
  %d = tensor.dot %a, %b, %acc : {WIDE}
  %more = arith.add %old, %one : {WIDE}
  scf.yield [%d, %more]
}}
tile.store_block %r, %O[%c0, %c0] {{axes = (0, 1)}}
"""
TURNED = [("%d =", f"%t = tensor.transpose %b {{permutation = (1, 0)}} : {HALF} %d ="), ("%a, %b,", "%a, %t,")]
FROM_ZERO = [("%b, %acc", "%b, %zero"), ("%more =", f"%sum = arith.add %acc, %d : {WIDE} %more ="), ("[%d,", "[%sum,")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([], ""),
        (TURNED, ""),
        (FROM_ZERO, ""),
        ([("%c4, %c1[", "%c4, %c2[")], "a loop's step is not 1"),
        ([("%d =", f"%t = tensor.transpose %a {{permutation = (1, 0)}} : {HALF} %d ="), ("%a, %b,", "%t, %b,")],
         "the product's left operand is transposed"),
        ([("%d =", f"%t = arith.neg %a : {HALF} %d ="), ("%a, %b,", "%t, %b,")], "operand is not a tile loaded in the"),
        ([("%d =", f"%t = arith.neg %b : {HALF} %d ="), ("%a, %b,", "%a, %t,")], "operand is not a tile loaded in the"),
        ([(A, ""), ("%r, %q =", A.replace("%k", "%bx") + "%r, %q =")], "operand is not a tile loaded in the loop"),
        ([(B, ""), ("%r, %q =", B.replace("%k", "%bx") + "%r, %q =")], "operand is not a tile loaded in the loop"),
        ([("%a, %b,", "%a, %a,")], "a tile is multiplied by itself"),
        ([("float16", "float64")], "a product of float64 and float64 added up in float32"),
        ([(B, B.replace("float16", "bfloat16")), ("B: 64*16*float16", "B: 64*16*bfloat16")],
         "a product of float16 and bfloat16 added up in float32"),
        ([("float32", "float16")], "a product of float16 and float16 added up in float16"),
        ([("float16", "float8_e5m2")], "the columns of a right operand of float8_e5m2 are not contiguous"),
        ([*TURNED, ("float16", "float8_e5m2")], ""),
        ([("%b, %acc", "%b, %one")], "the product neither starts from zero nor is added to what the loop carries"),
        ([("[%d, %more]", "[%more, %d]")], "the accumulator is used for more than the product"),
        ([("add %old, %one", "add %old, %acc")], "the accumulator is used for more than the product"),
        ([("add %old, %one", "add %old, %d")], "the sum of products is used in the loop"),
        ([("[%d, %more]", "[%d, %d]")], "the sum of products is used in the loop"),
        ([("%more =", "tile.store_block %old, %O[%c0, %c0] {axes = (0, 1)} %more =")], "tile.store_block in the loop"),
        ([*FROM_ZERO, ("%more =", "tile.store_block %d, %O[%c0, %c0] {axes = (0, 1)} %more =")],
         "tile.store_block in the loop"),
    ],
)  # fmt: skip
def test_what_is_a_product_in_a_loop(changes: list[tuple[str, str]], reason: str) -> None:
    text, operands = ADDED, "A: 64*16*float16, B: 64*16*float16, O: 16*16*float32"
    for before, after in changes:
        assert before in text + operands, before
        text, operands = text.replace(before, after), operands.replace(before, after)
    body = kernel_of(program(text, parameters=operands)).body
    if reason:
        with pytest.raises(NotRecognised, match=reason):
            find_tiled_product(body)
        return
    found = find_tiled_product(body)
    from_zero = changes == FROM_ZERO
    assert (found.left.out.name, found.right.out.name, found.product.out.name) == ("a", "b", "d")
    assert found.acc_position == (None if from_zero else 0) and (found.rows, found.columns, found.depth) == (16, 16, 16)
    names = [[op.results[0].name for op in ops if op.results] for ops in (found.beside, found.update)]
    assert names == [["more"], ["sum"] * from_zero]
    assert len(found.undivided) == 1 + (changes[: len(TURNED)] == TURNED)
    assert [op.name for op in found.after] == ["tile.store_block", "scf.yield"]
