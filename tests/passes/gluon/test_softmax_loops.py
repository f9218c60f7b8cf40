"""What is asked of the loops that attention is recognised by, and of what stands around them."""

from __future__ import annotations

import re

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.gluon.softmax_loops import (
    NotRecognised,
    SoftmaxLoops,
    dependent_on,
    find_softmax_loops,
    operations_around,
)
from tiledsl.dialects import scf


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


LOOPS = """
%first = scf.for %c0, %c4, %c1[%c9] : int32 (%i: int32, %x: int32) {{ scf.yield [%x] }}
{between}
%last = scf.for %c0, %c4, %c1[%first] : int32 (%j: int32, %y: int32) {{ scf.yield [%y] }}
%after = arith.add %last, %c1 : int32
tile.store %after, %N[%bx]
"""


@pytest.mark.parametrize(
    ("between", "fits"),
    [
        ("%t = arith.add %s, %c1 : int32", True),
        ("%t = arith.add %first, %c1 : int32", False),
        ("tile.store %s, %N[%bx]", False),
        ("tile.store %first, %N[%bx]", False),
    ],
)
def test_what_stands_between_loops(between: str, fits: bool) -> None:
    body = kernel_of(program(LOOPS.format(between=between))).body
    loops = [op for op in body if isinstance(op, scf.ForOp)]
    if fits:
        before, after = operations_around(body, loops)
        assert [op.results[0].name for op in before if op.results][-1] == "t"
        assert [op.name for op in after][:2] == ["arith.add", "tile.store"]
        return
    with pytest.raises(NotRecognised, match="memory is written, or results are used, before the last loop"):
        operations_around(body, loops)


@pytest.mark.parametrize("bounds", ["%first, %c4, %c1", "%c0, %first, %c1", "%c0, %c4, %first"])
def test_bounds_that_an_earlier_loop_makes(bounds: str) -> None:
    body = kernel_of(program(LOOPS.format(between="").replace("%c0, %c4, %c1[%first]", f"{bounds}[%c9]"))).body
    with pytest.raises(NotRecognised, match="a loop's bounds depend on an earlier loop"):
        operations_around(body, [op for op in body if isinstance(op, scf.ForOp)])


def test_a_loop_counts_by_ones() -> None:
    body = """
    scf.for %c0, %c4, %c2 (%k: int32) {
      %x = tile.load_block %A[%c0, %c0] {axes = (0, 1)} : tensor<16x16xfloat32>
      %y = tensor.dot %x, %x, %x {precision = "ieee"} : tensor<16x16xfloat32>
      %z = tensor.dot %x, %y, %x {precision = "ieee"} : tensor<16x16xfloat32>
      scf.yield }"""
    with pytest.raises(NotRecognised, match="a loop's step is not 1"):
        find_softmax_loops(kernel_of(program(body)).body)


TILE = "tensor<16x16xfloat32>"
BRANCH = "%y = scf.if %b : tensor<16x16xfloat32> {{ {} scf.yield [%z] }} {{ scf.yield [%z] }}"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("tile.print [%s]", "tile.print is not supported"),
        ("scf.for %c0, %c4, %c1 (%k: int32) { scf.for %c0, %c4, %c1 (%j: int32) { scf.yield } scf.yield }",
         "a loop inside of a loop"),
        (BRANCH.format("tile.store %s, %N[%bx]"), "a branch with effects"),
        (BRANCH.format(f"%d = tensor.dot %z, %z, %z : {TILE}"), "a product in a branch"),
        (BRANCH.format(f"%d = arith.add %z, %z : {TILE}"), "no loop with two products"),
    ],
)  # fmt: skip
def test_what_no_kernel_is_written_with(body: str, reason: str) -> None:
    with pytest.raises(NotRecognised, match=reason):
        find_softmax_loops(kernel_of(program(f"%z = arith.constant {{value = 0.0}} : {TILE}\n{body}")).body)


HALF = "tensor<16x16xfloat16>"
ATTENTION = f"""
%zero = arith.constant {{value = 0.0}} : {TILE}
%one = arith.constant {{value = 1.0}} : {TILE}
%q = tile.load_block %Q[%c0, %c0] {{axes = (0, 1)}} : {HALF}
%wide = arith.cast %q : {TILE}
%r, %last, %rest = scf.for %c0, %c4, %c1[%zero, %zero, %one] : {TILE}, {TILE}, {TILE}
    (%k: int32, %acc: {TILE}, %old: {TILE}, %plain: {TILE}) {{
  %keys = tile.load_block %K[%k, %c0] {{axes = (0, 1)}} : {HALF}
  %kt = tensor.transpose %keys {{permutation = (1, 0)}} : {HALF}
  %scores = tensor.dot %q, %kt, %zero : {TILE}
  %p = arith.cast %scores : {HALF}
  %v = tile.load_block %V[%k, %c0] {{axes = (0, 1)}} : {HALF}
  %scaled = arith.mul %acc, %old : {TILE}
  %o = tensor.dot %p, %v, %scaled : {TILE}
  %next = arith.add %old, %scores : {TILE}
  %also = arith.add %plain, %scores : {TILE}
  scf.yield [%o, %next, %also]
}}
tile.store_block %r, %O[%c0, %c0] {{axes = (0, 1)}}
"""
OPERANDS = "Q: 64*16*float16, K: 64*16*float16, V: 64*16*float16, O: 16*16*float32, b: bool"


PLACE = f"%at = arith.cast %{{}} : tensor<16x16xint32> %read = tile.load %O[%at, %at] {{{{guarded = true}}}} : {TILE}"


def recognised(*changes: tuple[str, str]) -> SoftmaxLoops:
    text, parameters = ATTENTION, OPERANDS
    for before, after in changes:
        assert before in text or before in parameters
        text, parameters = text.replace(before, after), parameters.replace(before, after)
    return find_softmax_loops(kernel_of(program(text, parameters=parameters)).body)


def test_a_loop_of_attention() -> None:
    found = recognised()
    (loop,) = found.loops
    names = [[op.results[0].name for op in ops] for ops in (loop.update, loop.rescale)]
    assert names == [["p", "next", "also"], ["scaled"]]
    assert [loop.keys.out.name, loop.scores.out.name, loop.values.out.name, loop.product.out.name] == [
        "keys", "scores", "v", "o"
    ]  # fmt: skip
    assert (loop.acc_position, found.query.out.name, [op.name for op in found.after]) == (
        0, "q", ["tile.store_block", "scf.yield"]
    )  # fmt: skip


def test_a_loop_may_load_more() -> None:
    (loop,) = recognised(
        ("%next = arith.add %old, %scores", f"{PLACE.format('old')} %next = arith.add %old, %read")
    ).loops
    assert [op.results[0].name for op in loop.update] == ["p", "at", "read", "next", "also"]


def test_the_accumulator_may_be_any_of_what_a_loop_carries() -> None:
    order = [("%acc: ", "%first: "), ("%old: ", "%acc: "), ("%first: ", "%old: "), ("%o, %next", "%next, %o")]
    (loop,) = recognised(*order).loops
    assert (loop.acc_position, [op.results[0].name for op in loop.rescale]) == (1, ["scaled"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([("%o = tensor.dot %p, %v, %scaled", "%o = arith.add %scaled, %scaled")],
         "a loop has 1 products instead of 2"),
        ([("%q, %kt", "%p0, %kt"), ("%scores =", f"%p0 = arith.cast %old : {HALF}\n%scores =")],
         "the first product's left operand is not a tile loaded before the loop"),
        ([("%q, %kt", "%q2, %kt"),
          ("%scores =", f"%q2 = tile.load_block %Q[%c0, %c0] {{axes = (0, 1)}} : {HALF}\n%scores =")],
         "the first product's left operand is not a tile loaded before the loop"),
        ([("%q, %kt", "%q, %keys")], "the first product's right operand is not a transposed tile loaded in the loop"),
        ([("(1, 0)", "(0, 1)")], "the first product's right operand is not a transposed tile loaded in the loop"),
        ([("transpose %keys", "transpose %q")], "the first product's right operand is not a transposed tile loaded in"),
        ([("%p, %v", "%p, %q")], "the second product's right operand is not a tile loaded in the loop"),
        ([("%p, %v", "%p, %p")], "the second product's right operand is not a tile loaded in the loop"),
        ([("%kt, %zero", "%kt, %one")], "the first does not start from 0"),
        ([("%kt, %zero", "%kt, %old")], "the first does not start from 0"),
        ([("%kt, %zero : tensor<16x16xfloat32>", "%kt, %few : tensor<16x16xfloat16>"),
          ("add %old, %scores", "add %old, %old"), ("add %plain, %scores", "add %plain, %old"),
          ("%q =", f"%few = arith.constant {{value = 0.0}} : {HALF}\n%q =")], "not accumulated in float32"),
        ([(f"%one] : {TILE}, {TILE}, {TILE}", f"%one] : {HALF}, {TILE}, {TILE}"), (f"%acc: {TILE}", f"%acc: {HALF}"),
          ("[%zero, ", "[%few, "), (f"mul %acc, %old : {TILE}", f"mul %acc, %acc : {HALF}"),
          (f"%scaled : {TILE}", f"%scaled : {HALF}"), ("tile.store_block %r, %O[%c0, %c0] {axes = (0, 1)}", ""),
          ("%q =", f"%few = arith.constant {{value = 0.0}} : {HALF}\n%q =")], "not accumulated in float32"),
        ([("float16", "float32")], "a product of float32 and float32"),
        ([("%p, %v", "%scores, %v")], "a product of float32 and float16"),
        ([("add %old, %scores", "add %old, %acc")], "the accumulator is used for more than the second product"),
        ([("add %old, %scores", "add %old, %o")], "the second product is used in the loop"),
        ([("[%o, %next, ", "[%o, %o, ")], "the second product is used in the loop"),
        ([("mul %acc, %old", "mul %old, %old")], "the accumulator is used for more than the second product"),
        ([("%v = tile.load_block %V[%k, %c0] {axes = (0, 1)} : tensor<16x16xfloat16>",
           "%v = tile.load_block %V[%k, %c0] {axes = (0, 1)} : tensor<16x16xbfloat16>"),
          ("V: 64*16*float16", "V: 64*16*bfloat16")], "a product of float16 and bfloat16"),
        ([("cast %scores", "cast %acc")], "a product's operand depends on the accumulator"),
        ([("[%o, %next, ", "[%o, %acc, ")], "the accumulator is handed on unchanged"),
        ([("%next =", "tile.store_block %old, %O[%c0, %c0] {axes = (0, 1)}\n%next =")], "tile.store_block in the loop"),
        ([("%scaled =", f"{PLACE.format('acc')} %scaled ="), ("mul %acc, %old", "mul %acc, %read")],
         "tile.load in the loop"),
    ],
)  # fmt: skip
def test_what_is_no_loop_of_attention(changes: list[tuple[str, str]], reason: str) -> None:
    with pytest.raises(NotRecognised, match=reason):
        recognised(*changes)


def second(text: str) -> str:
    """The loop of attention behind itself, with what it has left."""
    start, end = text.index("%r, %last"), text.index("tile.store_block %r")
    loop = text[start:end].replace("[%zero, %zero, %one]", "[%r, %last, %rest]")
    loop = loop.replace("%r, %last, %rest =", "%r2, %last2, %rest2 =").replace("%k", "%j")
    for name in ("acc", "old", "plain", "scores", "p", "v", "scaled", "o", "next", "also"):
        loop = re.sub(rf"%{name}\b", f"%{name}2", loop)
    return text[:end] + loop + text[end:].replace("%r,", "%r2,")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([], ""),
        ([("[%r, %last, %rest]", "[%r, %rest, %last]")], "a loop does not just hand its values to the next"),
        ([("[%r, %last, %rest]", "[%r, %last, %one]")], "a loop does not just hand its values to the next"),
        ([("tile.store_block %r2", "%x = arith.neg %last : TILE tile.store_block %r2")],
         "a loop does not just hand its values to the next"),
        ([("%K[%j, %c0]", "%V[%j, %c0]")], "the loops read different buffers"),
        ([("%V[%j, %c0]", "%K[%j, %c0]")], "the loops read different buffers"),
        ([("dot %q, %jt", "dot %q2, %jt"), ("%q =", "%q2 = tile.load_block %Q[%c1, %c0] {axes = (0, 1)} : HALF %q =")],
         "the loops differ in their operands"),
        ([("%acc2: ", "%first: "), ("%old2: ", "%acc2: "), ("%first: ", "%old2: "), ("%o2, %next2", "%next2, %o2")],
         "the loops differ in their operands"),
        ([("%v2 = tile.load_block %V[%j, %c0] {axes = (0, 1)} : HALF",
           "%v2 = tile.load_block %V[%j, %c0] {axes = (1, 0)} : HALF")], ""),
    ],
)  # fmt: skip
def test_several_loops(changes: list[tuple[str, str]], reason: str) -> None:
    text = second(ATTENTION)
    for before, after in ((a.replace("TILE", TILE).replace("HALF", HALF), b) for a, b in changes):
        assert before in text, before
        text = text.replace(before, after.replace("TILE", TILE).replace("HALF", HALF), 1)
    kernel = kernel_of(program(text, parameters=OPERANDS))
    if reason:
        with pytest.raises(NotRecognised, match=reason):
            find_softmax_loops(kernel.body)
        return
    found = find_softmax_loops(kernel.body)
    assert [loop.product.out.name for loop in found.loops] == ["o", "o2"] and found.query.out.name == "q"
    assert (found.rows, found.columns, found.depth, found.width) == (16, 16, 16, 16)
    assert [op.results[0].name for op in found.undivided] and len(found.undivided) == 6
