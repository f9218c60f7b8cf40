"""Which loops of tiles can be scheduled, and which of their products may wait for the next turn."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.gluon.tile_loops import (
    NotRecognised,
    TileLoops,
    consumers,
    dependent_on,
    find_tile_loops,
    is_addition,
    tile_loops,
)


def test_a_branch_needs_what_an_operation_in_it_needs() -> None:
    body = """
    %x = arith.add %s, %c1 : int32
    %y = scf.if %b : int32 { %u = arith.add %m, %c1 : int32
      %v = arith.add %u, %x : int32
      scf.yield [%v] } { scf.yield [%m] }
    %z = arith.add %y, %c1 : int32
    %w = arith.add %m, %c2 : int32
    tile.store %w, %N[%bx]"""
    kernel = kernel_of(program(body))
    (x,) = [op.results[0] for op in kernel.body if op.results and op.results[0].name == "x"]
    assert [op.results[0].name for op in kernel.body if op in dependent_on([x], kernel.body)] == ["y", "z"]


WIDE, HALF, SQUARE = "tensor<64x64xfloat32>", "tensor<64x64xfloat16>", "{axes = (0, 1)} : tensor<64x64xfloat16>"
LOOP = f"""
%zero = arith.constant {{value = 0.0}} : {WIDE}
%q = tile.load_block %Q[%c0, %c0] {SQUARE}
%r, %n = scf.for %c0, %c4, %c1[%zero, %c0] : {WIDE}, int32 (%k: int32, %acc: {WIDE}, %m: int32) {{
  %b = tile.load_block %K[%k, %c0] {SQUARE}
  %bt = tensor.transpose %b {{permutation = (1, 0)}} : {HALF}
  %s = tensor.dot %q, %bt, %zero : {WIDE}
  %w = arith.cast %s : {HALF}
  %o = tensor.dot %w, %b, %acc : {WIDE}
  %more = tile.load %N[%k] : int32
  scf.yield [%o, %more]
}}
%x = arith.neg %r : {WIDE}
tile.store_block %x, %O[%c0, %c0] {{axes = (0, 1)}}
"""
OPERANDS = "Q: 512*512*float16, K: 512*512*float16, O: 64*64*float32, N: 4*int32"
TURNED_LEFT = [
    ("dot %q, %bt,", "dot %qt, %bt,"),
    ("%s =", f"%qt = tensor.transpose %q {{permutation = (1, 0)}} : {HALF} %s ="),
]


def found(changes: list[tuple[str, str]], warps: int = 8) -> TileLoops:
    """The loops of a changed program, which one group of 8 warps runs, or with 0 consumers with rows of their own."""
    text, operands = LOOP, OPERANDS + ", E: 512*512*bfloat16"
    for before, after in changes:
        assert before in text + operands, before
        text, operands = text.replace(before, after), operands.replace(before, after)
    return find_tile_loops(kernel_of(program(text, parameters=operands)).body, warps)


def test_operands_of_float8_in_registers() -> None:
    """They are rounded where they are put into words; those that pass through shared memory may be anything."""
    changes = [*OF_BYTES, ("dot %w, %b,", "dot %w, %bt,")]
    assert [op.out.name for op in found(changes, 0).products] == ["s", "o"]
    computed = [*changes, ("dot %w,", "dot %u,"), ("%o =", "%u = arith.neg %w : tensor<64x64xfloat8_e5m2> %o =")]
    found(computed, 8)
    with pytest.raises(NotRecognised, match="of float8_e5m2 is no conversion of float32 for it alone"):
        found(computed, 0)
    of_halves = [("dot %w,", "dot %u,"), ("%o =", f"%u = arith.neg %w : {HALF} %o =")]
    assert [op.out.name for op in found(of_halves, 0).products] == ["s", "o"]  # which are in no words


def test_two_products_that_read_one_tile() -> None:
    for warps in (8, 0):
        loops = found([], warps)
        assert [op.out.name for op in loops.kept] == ["q"] and [op.out.name for op in loops.products] == ["s", "o"]
        (loop,) = loops.loops
        assert [load.out.name for load in loop.loads] == ["b"] and loops.tiles == [(64, 64)]
        assert {op.results[0].name for op in loops.undivided} == {"b", "bt"}
        assert [op.out.name for op in loop.late] == ["o"] and loop.summed == () and loop.first_from_zero is None
    assert consumers(loops) == 1


FROM_ZERO = [("%o = tensor.dot %w, %b, %acc", "%o = arith.add %s, %acc")]
OF_BYTES = [("xfloat16", "xfloat8_e5m2"), ("*float16", "*float8_e5m2")]
TURNED = ("%s = tensor.dot %q, %bt, %zero", "%s = tensor.dot %q, %b, %zero")


def test_the_only_product_from_zero() -> None:
    (loop,) = found(FROM_ZERO).loops
    assert loop.first_from_zero is loop.products[0] and not loop.late
    (loop,) = found([*FROM_ZERO, ("%bt, %zero", "%bt, %acc")]).loops
    assert loop.first_from_zero is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("%x = arith.neg %r", "%x = tensor.dot %q, %q, %r")], "a product outside of the loops"),
        ([("%x =", f"%y = tile.load_block %K[%c0, %c1] {SQUARE} %x ="), ("neg %r", "add %r, %r")], "after a loop"),
        ([("%r, %n =", "tile.store_block %zero, %O[%c0, %c0] {axes = (0, 1)} %r, %n =")], "before the last loop"),
        ([("%more =", "tile.store_block %s, %O[%c0, %c0] {axes = (0, 1)} %more =")], "tile.store_block in a loop"),
        ([("%c4, %c1[", "%c4, %c2[")], "a loop's step is not 1"),
        ([("%x =", "scf.for %c0, %c4, %c1 (%j: int32) { scf.yield } %x =")], "a loop without products"),
        ([(f"%b = tile.load_block %K[%k, %c0] {SQUARE}", ""),
          ("%r, %n =", f"%b = tile.load_block %K[%c1, %c0] {SQUARE} %r, %n =")],
         "a loop that loads no operand of a product"),
        ([("K[%k, ", "K[%m, ")], "where a tile is loaded from depends on what is computed"),
        ([("dot %w, %b,", "dot %b, %w,")], "a product's right operand is not a loaded tile"),
        ([*TURNED_LEFT, ("xfloat16", "xfloat8_e5m2"), ("*float16", "*float8_e5m2"), ("dot %w", "dot %q")],
         "a product's left operand is transposed"),
        ([("%more =", "%u = tile.load_block %O[%c0, %c0] {axes = (0, 1)} : tensor<64x64xfloat32> "
           "tile.store_block %u, %O[%c0, %c0] {axes = (0, 1)} %more ="),
          ("tile.store_block %x, %O[%c0, %c0] {axes = (0, 1)}", "")],
         "tile.store_block in a loop"),
        ([("dot %w, %b,", "dot %u, %b,"), ("%r, %n =", f"%u = arith.neg %q : {HALF} %r, %n =")],
         "a product's left operand is not computed beside it"),
        ([("%w = arith.cast %s", "%w = arith.neg %q")], "operand is computed, but the same in each turn"),
        ([(WIDE, "tensor<32x64xfloat32>"), (f"%s : {HALF}", "%s : tensor<32x64xfloat16>"), ("O: 64", "O: 32"),
          ("%Q[%c0, %c0] {axes = (0, 1)} : tensor<64", "%Q[%c0, %c0] {axes = (0, 1)} : tensor<32")],
         "32 rows are not a multiple of 64"),
        ([("*float16", "*float64"), ("xfloat16", "xfloat64")], "a product of float64 and float64 added up in float32"),
        ([("dot %w, %b,", "dot %w, %e,"),
          ("%o =", "%e = tile.load_block %E[%k, %c0] {axes = (0, 1)} : tensor<64x64xbfloat16> %o =")],
         "a product of float16 and bfloat16 added up in float32"),
        ([("float32", "float16")], "a product of float16 and float16 added up in float16"),
        ([("%x = arith", '%y = tensor.reduce %r {kind = "sum", axis = 0} : tensor<64xfloat32> %x = arith')],
         "a reduction over rows"),
        ([*FROM_ZERO, ("%s = tensor.dot %q, %bt, %zero", "%s = arith.neg %acc")],
         "no loop with a product"),
        ([("dot %q, %bt,", "dot %b, %bt,")], "a tile is multiplied by itself"),
        ([("%more =", "tile.print [%k] %more =")], "tile.print is not supported"),
        ([("%more =", "scf.for %c0, %c4, %c1 (%j: int32) { scf.yield } %more =")],
         "a loop inside of a loop with products"),
        ([("%more =", "scf.if %big { tile.store %k, %N[%k] scf.yield } { scf.yield } %more ="),
          ("%r, %n =", '%big = arith.cmp %c4, %c1 {predicate = "lt"} : bool %r, %n =')], "a branch with effects"),
        ([("%o = tensor.dot %w, %b, %acc : " + WIDE,
           f"%o = scf.if %big : {WIDE} {{ %d = tensor.dot %w, %b, %acc : {WIDE} scf.yield [%d] }} "
           "{ scf.yield [%acc] }"),
          ("%r, %n =", '%big = arith.cmp %c4, %c1 {predicate = "lt"} : bool %r, %n =')], "or in a branch"),
        (OF_BYTES, "the columns of a right operand of float8_e5m2 are not contiguous"),
        ([*FROM_ZERO, TURNED, *OF_BYTES],
         "the columns of a right operand of float8_e5m2 are not contiguous"),
        ([("[%zero, %c0]", "[%zero, %h]"), (f"{WIDE}, int32 (", f"{WIDE}, {HALF} ("), ("%m: int32", f"%m: {HALF}"),
          ("%r, %n =", f"%h = arith.neg %q : {HALF} %r, %n ="), ("%more = tile.load %N[%k] : int32", ""),
          ("%more]", "%w]"), ("dot %w, %b,", "dot %m, %b,")], "a product's left operand is not computed beside it"),
    ],
)  # fmt: skip
def test_what_cannot_be_scheduled(changes: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(NotRecognised, match=reason) as raised:
        found(changes)
    assert raised.value.args[0] == str(raised.value) and (raised.value.op is None) is (
        reason == "no loop with a product"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("dot %q, %bt,", "dot %b, %qt,"), ("%bt = tensor.transpose %b", "%qt = tensor.transpose %q")],
         "a tile is a left operand and a right one"),
        ([("dot %w, %b,", "dot %wt, %b,"),
          ("%o =", f"%wt = tensor.transpose %w {{permutation = (1, 0)}} : {HALF} %o =")],
         "a product's left operand is transposed"),
        ([("%s = ", "%t = tensor.dot %p, %bt, %wide : tensor<128x64xfloat32> %s ="),
          ("%r, %n =", "%wide = arith.constant {value = 0.0} : tensor<128x64xfloat32> "
           "%p = tile.load_block %Q[%c0, %c0] {axes = (0, 1)} : tensor<128x64xfloat16> %r, %n =")],
         "products of 64 and 128 rows"),
        (TURNED_LEFT, "a product's left operand is transposed"),
        ([("%more =", "tile.store_block %s, %E[%k, %c0] {axes = (0, 1)} %more ="), ("*bfloat16", "*float32")],
         "tile.store_block in a loop"),
    ],
)  # fmt: skip
def test_what_only_one_group_of_warps_can_run(changes: list[tuple[str, str]], reason: str) -> None:
    assert found(changes, 8)
    with pytest.raises(NotRecognised, match=reason):
        found(changes, 0)


@pytest.mark.parametrize(
    ("extents", "warps", "wrong"),
    [
        ((64, 16, 16), 0, ""), ((192, 16, 16), 0, ""), ((192, 16, 16), 8, "extent 192 is not a power of two from 16"),
        ((64, 8, 16), 0, "extent 8 is not"), ((64, 96, 16), 0, "extent 96 is not"),
        ((64, 16, 24), 0, "extent 24 is not"), ((64, 32, 128), 0, ""), ((128, 128, 32), 8, ""),
        ((64, 512, 64), 0, "extent 512 is not a power of two from 16 to 256"), ((64, 512, 64), 8, ""),
        ((64, 64, 1024), 8, "extent 1024 is not a power of two from"), ((64, 256, 256), 0, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float16", "float8_e5m2"])
def test_tiles_that_are_multiplied(extents: tuple[int, int, int], warps: int, wrong: str, dtype: str) -> None:
    rows, columns, depth = extents
    body = f"""
    %zero = arith.constant {{value = 0.0}} : tensor<{rows}x{columns}xfloat32>
    %r = scf.for %c0, %c4, %c1[%zero] : tensor<{rows}x{columns}xfloat32>
        (%k: int32, %acc: tensor<{rows}x{columns}xfloat32>) {{
      %a = tile.load_block %X[%c0, %k] {{axes = (0, 1)}} : tensor<{rows}x{depth}x{dtype}>
      %b = tile.load_block %Y[%c0, %k] {{axes = (0, 1)}} : tensor<{columns}x{depth}x{dtype}>
      %bt = tensor.transpose %b {{permutation = (1, 0)}} : tensor<{depth}x{columns}x{dtype}>
      %d = tensor.dot %a, %bt, %acc : tensor<{rows}x{columns}xfloat32>
      scf.yield [%d] }}"""
    made = kernel_of(program(body, parameters=f"X: 2048*2048*{dtype}, Y: 2048*2048*{dtype}")).body
    if dtype == "float8_e5m2" and depth == 16 and not wrong:
        wrong = "extent 16 is not a power of two from 32 to"  # bytes
    if wrong:
        with pytest.raises(NotRecognised, match=f"a tile's {wrong}"):
            find_tile_loops(made, warps)
    else:
        assert len(find_tile_loops(made, warps).loops) == 1


@pytest.mark.parametrize(("rows", "groups"), [(64, 1), (128, 2), (192, 3), (256, 0), (32, 0), (96, 0)])
def test_consumers_of_64_rows_each(rows: int, groups: int) -> None:
    text = LOOP.replace("tensor<64x64xfloat32>", f"tensor<{rows}x64xfloat32>")
    text = text.replace(f"%Q[%c0, %c0] {SQUARE}", f"%Q[%c0, %c0] {{axes = (0, 1)}} : tensor<{rows}x64xfloat16>")
    text = text.replace(f"cast %s : {HALF}", f"cast %s : tensor<{rows}x64xfloat16>")
    made = tile_loops(kernel_of(program(text, parameters=OPERANDS.replace("O: 64", f"O: {rows}"))).body)
    if groups:
        assert consumers(made) == groups
    else:
        with pytest.raises(NotRecognised, match=f"{rows} rows are not 64, 128 or 192"):
            consumers(made)


SCALED = (
    "%o = tensor.dot %w, %b, %acc",
    f"%f = arith.neg %s : {WIDE} %m2 = arith.mul %acc, %f : {WIDE} %o = tensor.dot %w, %b, %m2",
)
CARRIED = f"{WIDE}, int32 (%k: int32, %acc: {WIDE}, %m: int32)"


@pytest.mark.parametrize(
    ("changes", "late", "summed"),
    [
        ([SCALED], ["o"], ["m2"]),
        ([("%s = tensor.dot %q", f"%p = arith.neg %b : {HALF} %s = tensor.dot %p")], ["o"], []),
        ([("%more =", f"%u = arith.neg %o : {WIDE} %more ="), ("%x =", "%x =")], [], []),  # the turn uses the sum
        ([("cast %s", "cast %acc")], [], []),  # an operand depends on what is carried
        ([("%w, %b, %acc", "%w, %b, %s")], [], []),  # the sum is not added to what is carried
        ([("%w, %b, %acc : " + WIDE, f"%w, %b, %acc : {WIDE} %o2 = tensor.dot %q, %b, %o : {WIDE}"), ("[%o,", "[%o2,")],
         ["o", "o2"], []),  # a chain waits as a whole
        ([("%w, %b, %acc : " + WIDE,
           f"%w, %b, %acc : {WIDE} %p = arith.cast %o2 : {HALF} %o3 = tensor.dot %p, %b, %o : {WIDE}"),
          ("%w =", f"%o2 = tensor.dot %q, %b, %zero : {WIDE} %w ="), ("[%o,", "[%o3,")], ["o", "o3"], []),
        ([("%w, %b, %acc : " + WIDE,
           f"%w, %b, %zero : {WIDE} %p = arith.cast %o2 : {HALF} %o3 = tensor.dot %p, %b, %acc : {WIDE}"),
          ("%w =", f"%o2 = tensor.dot %q, %b, %zero : {WIDE} %w ="), ("[%o,", "[%o3,")], [], []),  # one is not carried
    ],
)  # fmt: skip
def test_products_that_may_wait_for_the_next_turn(
    changes: list[tuple[str, str]], late: list[str], summed: list[str]
) -> None:
    (loop,) = found(changes).loops
    assert [op.out.name for op in loop.late] == late
    assert [op.results[0].name for op in loop.summed] == summed


@pytest.mark.parametrize(
    ("before", "behind", "second", "late"),
    [
        ("", "", "%two", ["o"]),
        (f"%p = arith.neg %b : {HALF}", f"%o2 = tensor.dot %p, %b, %two : {WIDE}", "%o2", ["o"]),
        (f"%x = arith.neg %acc : {WIDE}", "", "%x", []),  # the next turn needs the sum otherwise
        ("", "", "%acc", []),
        (f"%sum = arith.mul %acc, %two : {WIDE}", "", "%o", []),  # two sums in one
        (f"%x = tensor.dot %q, %bt, %acc : {WIDE}", "", "%two", []),  # another product needs it
        (f"%x = arith.mul %s, %acc : {WIDE} %w2 = arith.cast %x : {HALF}", "", "%two", []),  # and so does an operand
        ("", "tile.store_block %acc, %O[%c0, %c0] {axes = (0, 1), add = true}", "%two", []),
        ("", f"%o2 = tensor.dot %w, %b, %two : {WIDE}", "%o2", ["o", "o2"]),
        ("", f"%o2 = tensor.dot %w, %b, %zero : {WIDE}", "%two", []),  # the turn needs a product of a computed operand
    ],
)  # fmt: skip
def test_sums_of_which_a_turn_needs_nothing(before: str, behind: str, second: str, late: list[str]) -> None:
    left, total = "%w2" if "%w2" in before else "%w", "%sum" if "%sum" in before else "%acc"
    changes = [
        ("%r, %n = scf.for %c0, %c4, %c1[%zero, %c0]", "%r, %n = scf.for %c0, %c4, %c1[%zero, %zero]"),
        (CARRIED, f"{WIDE}, {WIDE} (%k: int32, %acc: {WIDE}, %two: {WIDE})"),
        ("%o = tensor.dot %w, %b, %acc", f"{before} %o = tensor.dot {left}, %b, {total}"),
        ("%more = tile.load %N[%k] : int32", behind),
        ("[%o, %more]", f"[%o, {second}]"),
    ]
    (loop,) = found(changes).loops
    assert [op.out.name for op in loop.late] == late and [op.out.name for op in loop.of_tiles] == ["s"]


ROW_FACTOR = f"%u = arith.mul %s, %row : {WIDE} "
BIAS = (("%s =", f"%bias = arith.add %row, %zero : {WIDE} %s ="), ("%bt, %zero", "%bt, %bias"))


@pytest.mark.parametrize(
    ("changes", "has_place"),
    [
        ([*BIAS], True),  # for the first product, which reads %b
        ([("%w = arith.cast %s", f"{ROW_FACTOR} %w = arith.cast %u")], True),  # for the last one, which reads %v
        ([*BIAS, ("%w = arith.cast %s", f"{ROW_FACTOR} %w = arith.cast %u")], False),
        ([*BIAS, ("%w = arith.cast %s", f"{ROW_FACTOR} %w = arith.cast %u"),
          ("dot %w, %v", "dot %w, %b")], True),  # both read %b
        ([("%more =", f"{ROW_FACTOR} %more =")], False),  # for no product
        ([*BIAS, ("%more =", f"{ROW_FACTOR} %more =")], False),
    ],
)  # fmt: skip
def test_rows_that_arrive_with_a_tile(changes: list[tuple[str, str]], has_place: bool) -> None:
    """One that is awaited no later than they are needed, and released no earlier."""
    text = LOOP.replace("dot %w, %b", "dot %w, %v").replace(
        "%s =",
        f"%v = tile.load_block %K[%k, %c8] {SQUARE} %row = tile.load_block %O[%k, %c0] {{axes = (0, 1)}} : "
        "tensor<1x64xfloat32> %s =",
    )
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    made = tile_loops(kernel_of(program(text, parameters=OPERANDS)).body)
    (loop,) = made.loops
    (row,) = [op for op in loop.op.body if op.results and op.results[0].name == "row"]
    assert loop.has_place(row) is has_place and row not in loop.loads


def test_products_of_tiles_that_start_from_zero() -> None:
    """They keep the tensor cores busy while operands of others are computed."""
    more = ("%more =", f"%t = tensor.dot %q, %b, %zero : {WIDE} %p = arith.neg %b : {HALF} "
            f"%u = tensor.dot %p, %b, %zero : {WIDE} %v = tensor.dot %q, %b, %acc : {WIDE} %more =")  # fmt: skip
    (loop,) = found([more]).loops
    assert [op.out.name for op in loop.products] == ["s", "o", "t", "u", "v"]
    assert [op.out.name for op in loop.of_tiles] == ["s", "t"]


@pytest.mark.parametrize(
    ("behind", "adds"),
    [
        ("tile.store_block %s, %O[%c0, %c0] {axes = (0, 1), add = true}", True),
        ("tile.store_block %zero, %O[%c0, %c0] {axes = (0, 1), add = true}", False),  # no product
        ("", False),
    ],
)
def test_products_that_are_added_to_memory(behind: str, adds: bool) -> None:
    (loop,) = found([("%more =", f"{behind} %more =")]).loops
    assert loop.adds is adds


@pytest.mark.parametrize(
    ("text", "only_adds"),
    [
        ('%x = tile.atomic %f, %D[%c0] {kind = "add"} : float32', True),
        ('%x = tile.atomic %f, %D[%c0] {kind = "max"} : float32', False),
        ('%x = tile.atomic %f, %D[%c0] {kind = "add", semantics = "acquire"} : float32', False),
        ('%x = tile.atomic %f, %D[%c0] {kind = "add"} : float32 tile.store %x, %D[%c1]', False),  # what was there
        ("%x = tensor.broadcast %f : tensor<4x4xfloat32> tile.store_block %x, %A[%c0, %c0] {axes = (0, 1)}", False),
        ("%x = tensor.broadcast %f : tensor<4x4xfloat32> tile.store_block %x, %A[%c0, %c0] {axes = (0, 1), add = true}",
         True),
        ("tile.store %f, %D[%c0]", False),
    ],
)  # fmt: skip
def test_what_only_adds_to_memory(text: str, only_adds: bool) -> None:
    ops = [op for op in kernel_of(program(text)).walk() if op.name.startswith(("tile.atomic", "tile.store"))]
    assert is_addition(ops[0]) is only_adds


@pytest.mark.parametrize(
    ("start", "produced"),
    [
        ("%k", True), ("%c3", True), ("%n", False),  # a loop's result
        ("%start = arith.add %k2, %c1 : int32", True),
        ("%start = arith.add %m2, %c1 : int32", False),  # what it carries
        ("%start = scf.if %is : int32 { scf.yield [%c1] } { scf.yield [%k2] }", False),
        ('%row = tensor.broadcast %k2 : tensor<64xint32> '
         '%start = tensor.reduce %row {kind = "max", axis = 0} : int32', False),
    ],
)  # fmt: skip
def test_where_a_producer_can_load_from(start: str, produced: bool) -> None:
    """By itself: from indices and numbers, not from what loops compute."""
    lines, place = (start, "%start") if "=" in start else ("", start.replace("%k", "%k2"))
    second = f"""
    %is = arith.cmp %c4, %c1 {{predicate = "lt"}} : bool
    %r2, %n2 = scf.for %c0, %c4, %c1[%r, %c0] : {WIDE}, int32 (%k2: int32, %acc2: {WIDE}, %m2: int32) {{
      {lines}
      %f = tile.load_block %K[{place}, %c8] {SQUARE}
      %o2 = tensor.dot %q, %f, %acc2 : {WIDE}
      scf.yield [%o2, %m2]
    }}
    %x ="""
    changes = [("%x =", second), ("neg %r", "neg %r2")]
    if produced:
        assert len(found(changes).loops) == 2
    else:
        with pytest.raises(NotRecognised, match="where a tile is loaded from depends on what is computed"):
            found(changes)


def test_blocks_take_the_places_of_those_alike_of_earlier_loops() -> None:
    second = f"""
    %r2, %n2 = scf.for %c0, %c4, %c1[%r, %c0] : {WIDE}, int32 (%k2: int32, %acc2: {WIDE}, %m2: int32) {{
      %e = tile.load_block %E[%k2, %c0] {SQUARE}
      %f = tile.load_block %K[%k2, %c0] {SQUARE}
      %g = tile.load_block %K[%k2, %c8] {SQUARE}
      %s2 = tensor.dot %q, %e, %zero : {WIDE}
      %w2 = arith.cast %s2 : {HALF}
      %o2 = tensor.dot %w2, %f, %acc2 : {WIDE}
      %p2 = tensor.dot %w2, %g, %o2 : {WIDE}
      scf.yield [%p2, %m2]
    }}
    %x ="""
    text = LOOP.replace("%x =", second).replace("neg %r", "neg %r2")
    made = find_tile_loops(kernel_of(program(text, parameters=OPERANDS + ", E: 512*512*float16")).body, 8)
    assert {one.out.name: other.out.name for one, other in made.rings.items()} == {
        "b": "b", "e": "e", "f": "b", "g": "g",
    }  # fmt: skip
    assert {one.out.name: other.out.name for one, other in made.places(are_late=True).items()} == {
        "b": "b", "e": "e", "f": "f", "g": "g",
    }  # fmt: skip
    for warps, places in ((4, {}), (8, {"w": "w", "w2": "w"})):
        assert {one.name: other.name for one, other in made.buffers(warps, 2).items()} == places
