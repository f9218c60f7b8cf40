"""What each rule of schedules refuses, and what stands beside it and is accepted: texts with one thing changed."""

from __future__ import annotations

import functools

import pytest

from tests.passes.gluon.test_checks import compiled
from tiledsl.analysis.gluon.checks import RULES, checked
from tiledsl.dialects import triton
from tiledsl.errors import TileError
from tiledsl.ir.parser import parse_op


@functools.cache
def text_of(name: str) -> str:
    return compiled(name).ir("triton")


def said(name: str, *changes: tuple[str, str]) -> str:
    """The rule that a changed schedule breaks, and what is said of it; nothing if it is accepted."""
    text = text_of(name)
    for before, after in changes:
        text = changed(text, before, after)
    (launch,) = [op for op in parse_op(text).walk() if isinstance(op, triton.LaunchOp)]
    try:
        checked(launch)
    except TileError as error:
        rules = [rule for rule in RULES for note in error.notes if f"the rule {rule!r} of schedules" in note]
        return f"{'+'.join(rules)}: {error.message}"
    return ""


def changed(text: str, before: str, after: str) -> str:
    """`after` instead of `before`; with ">> LINE", the line that begins with `before` goes before that LINE."""
    lines = text.splitlines()
    if after.startswith(">> "):
        (moved,) = [line for line in lines if line.strip().startswith(before)]
        lines.remove(moved)
        at = [number for number, line in enumerate(lines) if line.strip().startswith(after[3:])]
        assert len(at) == 1, after
        return "\n".join([*lines[: at[0]], moved, *lines[at[0] :]])
    assert before in text, before
    return text.replace(before, after)


PRODUCT, PAIRS, ATTENTION, LATENT = "product", "pairs of products", "attention", "attention with one tile"
SHARED, SUMS, SCAN, TWICE = (
    "attention with one tile, rows shared",
    "two sums",
    "chunk scan",
    "tiles held differently long",
)
GRADIENTS, NESTED, DECAYED = "causal gradients", "loop in a loop", "decayed state"
TILE, HALF = "tensor<64x64xfloat32>", "tensor<64x64xfloat16>"
TOKENS = "tokens: scf.for: a place of ring {} is released {} turns after its tile's own"
LATE, ELSEWHERE = "a turn late, when the next turn", "which another stage of the turn computes"
SKEWED, LAST = (
    ("{stage = 1, slot = 1}", "{stage = 1, slot = 3}"),
    ("gluon.cluster\n      %12", "gluon.cluster {slot = 2}\n %12"),
)


def loaded(name: str, ring: str, rest: str = "%12, %5") -> str:
    return f'%{name} = triton.load_block %V_tiles_1[{rest}] {{axes = (0, 1), ring = "{ring}"}} : {HALF}\n'


def before(line: str, text: str) -> tuple[str, str]:
    return line, f"{text}\n{line}"


ROW_LATER = [("%ds, %d ", "%ds, %lse "), before("%ds_half_t = ", "%e = arith.neg %d : tensor<1x64xfloat32>")]
AGAIN = loaded("q2", "more", "%6, %5").replace("V_", "A_")
Q2 = ("dot %q, %v_t", "dot %q2, %v_t")


@pytest.mark.parametrize(
    ("name", "changes", "broken"),
    [
        (TWICE, [("= 2} : " + TILE + " (%t_1", "= 3} : " + TILE + " (%t_1")], "share rings are [2, 3] deep"),
        (TWICE, [("runs = (false, false), in_flight = ((), (0,))", "runs = (false,)")],
         "turns: gluon.schedule: runs has 1"),
        (TWICE, [("runs = (false, false)", "runs = (false, true)")], "turns: gluon.schedule: value 1 of runs"),
        (TWICE, [("runs = (false, false)", "runs = (true, false)")], "turns: gluon.schedule: value 0 of runs"),
        (SCAN, [("%8 = arith.constant {value = 4}", "%8 = arith.constant {value = 0}")], "it may have none"),
        (PRODUCT, [("((0,),)", "((1,),)")], "in flight: gluon.schedule: value 1 of those"),
        (PRODUCT, [("((0,),)", "((-1,),)")], "in flight: gluon.schedule: value -1 of those"),
        (ATTENTION, [("(false,)", "(false,), in_flight = ((0,),)")],
         "value 0 of those that a loop carries is no product"),
        # rings
        (PRODUCT, [before("%b_t = ", loaded("u", "a", "%9, %10").replace("V_", "A_"))], "nothing reads the tile"),
        (ATTENTION, [('"item"', '"k"')], "ring 'k' holds 64x64 float16 elsewhere, not 64x64 float16"),
        (TWICE, [before("%v_1 = ", loaded("w", "k", "%17, %5").replace("V_", "B_")
                        + f"%x = tensor.dot %q, %w, %acc : {TILE}")],
         "ring 'k' holds 64x64 float16 elsewhere, not 64x64 float16 and 64x64 float16"),
        (SCAN, [before("%13 = ", '%is = arith.cmp %t, %5 {predicate = "lt"} : bool '
                       f'%m = scf.if %is : {HALF} {{ {loaded("w", "w")}'
                       "scf.yield [%w] } { scf.yield [%q] }")], "the tile is loaded inside of a branch"),
        (TWICE, [before("%total = scf", AGAIN), Q2], "a tile for all turns is loaded behind a loop"),
        (TWICE, [('"k"} : tensor<64x64xfloat16>\n      %v_t', '"v"} : tensor<64x64xfloat16>\n %v_t')],
         "it reads ring 'v' in the stages [0], and another loop in [1]"),
        (SCAN, [before("%13 = ", loaded("w", "w") + f"%x = arith.neg %w : {HALF}")],
         "no product reads a tile of the ring"),
        (SCAN, [before("%13 = ", f"%x = arith.neg %k_t : {HALF}")],
         "it reads a tile that only products can read transposed"),
        (ATTENTION, [("%22, %5", "%2, %5"), ("%v = ", ">> %k = "), before("%k = ", f"%x = arith.neg %v : {HALF}")],
         "something else reads the tile after the last product of its ring, or in a stage before the first's"),
        (GRADIENTS, [*ROW_LATER, ("%d = ", ">> %e = ")], "after the last product of its ring"),
        # order
        (ATTENTION, [SKEWED, ("{stage = 1, slot = 3}", "{slot = 1}")], "it reads %weights, which a later cluster"),
        (ATTENTION, [("gluon.cluster\n      %12", "gluon.cluster {stage = 1}\n %12")],
         "it reads %s, which a later cluster"),
        (ATTENTION, [("{slot = 3}", "{stage = 1, slot = 3}")], "it reads %acc_3, which a later cluster"),
        (SCAN, [SKEWED, ('"num_warps", 4', '"num_warps", 8')], f"it reads %weights {LATE}"),  # through shared memory
        (SCAN, [SKEWED, before("%acc_3 = ", f"%x = arith.neg %14 : {TILE}")], f"a value of arith.select {LATE}"),
        (SCAN, [SKEWED, before("%13 = ", "%x = arith.neg %11 : float32"),
                 before("%acc_3 = ", "%y = arith.neg %x : float32")],
         f"it reads %x {LATE}"),
        (ATTENTION, [("{slot = 3}", "{slot = 0}")], f"it reads %acc_2, {ELSEWHERE}"),
        (SCAN, [("{slot = 2}", "{slot = 0}"), before("%13 = ", f"%x = arith.neg %acc_2 : {TILE}")], ELSEWHERE),
        (SCAN, [before("%13 = ", f"%x = arith.neg %acc_2 : {TILE}"),
                 before("scf.yield [%acc_4]", f"%y = arith.neg %acc_4 : {TILE}"),
                ("[%acc_4]", "[%y]")], ELSEWHERE),  # what is no product
        (GRADIENTS, [(", add = true", "")], "what it writes would be written a turn late"),
        # several turns at a time
        (PAIRS, [("gluon.cluster\n      %12", "gluon.cluster {stage = 1}\n %12")],
         "several at a time hold nothing back"),
        (PAIRS, [("gluon.cluster\n      %12", "%12")], "order: arith.mul: of turns taken several at a time"),
        (PAIRS, [LAST, before("%10 = ", f"gluon.cluster {{slot = 1}} %x = tensor.dot %a, %b_t, %total : {TILE}")],
         "order: tensor.dot: of turns taken several at a time"),
        (DECAYED, [("{num_stages = 2}", "{unroll = 4, num_stages = 2}")],
         "order: arith.cast: of turns taken several at a time"),
        (PAIRS, [("(true,)", "(true,), in_flight = ((0,),)"), ("[%total_3]", "[%part_1]")],
         "at a time, awaits all its products"),
        (SHARED, [("unroll = 2", "unroll = 3")], "order: scf.for: 3 turns are taken at a time"),
        (SHARED, [("unroll = 2", "unroll = 4")], "order: tensor.dot: of turns taken several at a time"),
        (SHARED, [("%q, %k_t, %acc", "%q, %k_t, %acc_2")], "order: tensor.dot: of turns taken several at a time"),
        (SHARED, [before("gluon.cluster\n      %highest_3", f"%s2 = tensor.dot %q, %k_t, %s : {TILE}")],
         "order: tensor.dot: of turns taken several at a time"),
        (SHARED, [("gluon.cluster\n      %highest_3", "%highest_3")], "order: tensor.reduce: of turns taken several"),
        # in flight
        (ATTENTION, [("(false,)", "(false,), in_flight = ((2,),)")], "in flight: tensor.dot: a loop of two stages"),
        (SUMS, [("((0, 1),)", "((1, 0),)")], "in flight: scf.for: products end in their order"),
        (SUMS, [("((0, 1),)", "((0,),)")], "in flight: scf.for: products end in their order"),
        (SUMS, [before("scf.yield", f"%x = arith.neg %other_2 : {TILE}")],
         "%other_2 is read in the turn that issues it"),
        (SHARED, [(", unroll = 2", ""), ("(false,)", "(false,), in_flight = ((2,),)"),
                  ('"num_warps", 8', '"num_warps", 4')],
         "its operand %weights is in registers that the next turn takes"),
        # tokens
        (PRODUCT, [("num_stages = 2", "num_stages = 0")], TOKENS.format("'a'", 1)),
        (PRODUCT, [("num_stages = 2", "num_stages = 1")], TOKENS.format("'a'", 1)),
        (PAIRS, [("num_stages = 3", "num_stages = 1")], TOKENS.format("'a'", 0)),
        (SUMS, [("num_stages = 2", "num_stages = 1")], TOKENS.format("'x'", 1)),
        (LATENT, [("num_stages = 2", "num_stages = 1")], TOKENS.format("'k'", 1)),
        (GRADIENTS, [("num_stages = 2", "num_stages = 1")], TOKENS.format("'q'", 1)),
        (ATTENTION, [("num_stages = 2", "num_stages = 1"), ("%22, %5", "%2, %5"), ("%v = ", ">> %k = ")],
         TOKENS.format("'v'", 1)),
        # results
        (SCAN, [('"results"', '"item"} triton.store_block %acc_5, %O_tiles_1[%6, %5] {axes = (0, 1), ring = "item"')],
         "64x64 float16 has no place among none that are loaded once"),
        (ATTENTION, [('"results"', '"item"')], "64x64 float32 has no place among 64x64 float16"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_rule_refuses(name: str, changes: list[tuple[str, str]], broken: str) -> None:
    assert broken in said(name, *changes)


CARRIED = [
    (f"[%acc] {{num_stages = 2}} : {TILE} (%t: int32, ",
             f"[%acc, %11] {{num_stages = 2}} : {TILE}, float32 (%t: int32, "),
    ("%acc_1 = scf", "%acc_1, %same = scf"), (f"%acc_2: {TILE})", f"%acc_2: {TILE}, %held: float32)"),
]  # fmt: skip
READ_LATE = before("%acc_3 = ", "%x = arith.neg %held : float32")


@pytest.mark.parametrize(
    ("handed_on", "read", "broken"),
    [
        ("%held", READ_LATE, ""),  # which never changes
        ("%more", READ_LATE, ELSEWHERE),
        ("%7", READ_LATE, ELSEWHERE),
        ("%7", before("%13 = ", "%x = arith.neg %held : float32"), ""),
        ("%more", before("%13 = ", "%x = arith.neg %held : float32"), ""),
    ],
)
def test_what_a_turn_reads_of_the_one_before(handed_on: str, read: tuple[str, str], broken: str) -> None:
    more = before("%13 = ", "%more = arith.add %held, %11 : float32")
    assert broken in said(SCAN, *CARRIED, more, ("[%acc_4]", f"[%acc_4, {handed_on}]"), read)
    assert broken or not said(SCAN, *CARRIED, more, ("[%acc_4]", f"[%acc_4, {handed_on}]"), read)


def test_what_is_held_back_reads_no_product_of_the_turn_before() -> None:
    tiles = [(old, new.replace("float32,", f"{TILE},").replace(": float32", f": {TILE}")) for old, new in CARRIED]
    tiles = [(old, new.replace("%acc, %11]", "%acc, %acc]").replace(f"{TILE}, float32", f"{TILE}, {TILE}"))
             for old, new in tiles]  # fmt: skip
    late = before("%acc_3 = ", f"%x = arith.neg %held : {TILE}")
    assert ELSEWHERE in said(SCAN, *tiles, ("[%acc_4]", "[%acc_4, %s]"), late)
    assert said(SCAN, *tiles, ("[%acc_4]", "[%acc_4, %acc_3]"), late) == ""


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, []) for name in (PRODUCT, PAIRS, ATTENTION, LATENT, SHARED, SUMS, SCAN, TWICE)),
        *((name, []) for name in (GRADIENTS, NESTED, DECAYED)),
        (SCAN, [("(true,)", "(false,)"), ("%8 = arith.constant {value = 4}", "%8 = arith.constant {value = 0}")]),
        (TWICE, [before("%acc_1 = scf", AGAIN), Q2]),
        (TWICE, [('"k"} : tensor<64x64xfloat16>\n      %v_t', '"other"} : tensor<64x64xfloat16>\n %v_t')]),
        (SCAN, [before("%13 = ", f"%x = arith.neg %k : {HALF}")]),
        (GRADIENTS, [("%lse = ", ">> %ds = ")]),
        (GRADIENTS, [("%d = ", ">> %seen = ")]),
        (GRADIENTS, [*ROW_LATER, ("%d = ", ">> %dk_5 = ")]),
        (GRADIENTS, [before("%19 = ", "%x = tensor.dot %p_half, %q, %dk : tensor<128x64xfloat32>")]),
        # order
        (SCAN, [SKEWED, before("%v = ", "%x = arith.add %12, %2 : int32"), ("V_tiles_1[%12", "V_tiles_1[%x")]),
        (PAIRS, [LAST]),
        (SHARED, [("%s = ", f"%part = tensor.dot %q, %k_t, %acc : {TILE}\n%s = "),
                  (f"%q, %k_t, %acc : {TILE}\n      gluon", f"%q, %k_t, %part : {TILE}\n gluon")]),
        (SCAN, [SKEWED]),
        (SCAN, [before("%acc_3 = ", f"%x = arith.neg %14 : {TILE}")]),
        (SCAN, [SKEWED, before("%13 = ", f"%x = arith.constant {{value = 1.0}} : {TILE}"),
                before("%acc_3 = ", f"%y = arith.neg %x : {TILE}")]),
        (SCAN, [before("%13 = ", f"%x = arith.neg %acc_2 : {TILE}")]),
        (ATTENTION, [("{slot = 3}", "{stage = 1, slot = 0}")]),
        # in flight, tokens, results
        (SUMS, [("((0, 1),)", "((1,),)")]),
        (PRODUCT, [(", in_flight = ((0,),)", ""), ("num_stages = 2", "num_stages = 1")]),
        (ATTENTION, [("num_stages = 2", "num_stages = 1")]),
        (SCAN, [("num_stages = 2", "num_stages = 1")]),
        (PAIRS, [("num_stages = 3", "num_stages = 2")]),
        (ATTENTION, [("%22, %5", "%2, %5"), ("%v = ", ">> %k = ")]),
        (SCAN, [('"results"', '"item"')]),
    ],
    ids=str,
)  # fmt: skip
def test_what_stands_beside_and_is_accepted(name: str, changes: list[tuple[str, str]]) -> None:
    assert said(name, *changes) == ""


LOAD, AGAIN_LOADED = "%x = triton.load %at : int32", "%y = triton.load %at : int32"
STORE, ADD = "triton.store %6, %at", '%z = triton.atomic %at, %6 {kind = "add"} : int32'


@pytest.mark.parametrize(
    ("first", "second", "in_order"),
    [
        (LOAD, STORE, False),
        (STORE, LOAD, False),
        (STORE, STORE, False),
        (LOAD, AGAIN_LOADED, True),
        (STORE, ADD, True),
        (LOAD, ADD, True),
    ],
)
def test_accesses_of_memory_stay_in_their_order(first: str, second: str, in_order: bool) -> None:
    """But for those that only read, and additions."""

    def of_slots(one: int, other: int) -> str:
        text = f"%at = triton.addptr %lengths_1, %t : *int32 gluon.cluster {{slot = {one}}} {first}"
        text += f" gluon.cluster {{slot = {other}}} {second} gluon.cluster\n      %10"
        return said(PRODUCT, ("gluon.cluster\n      %10", text))

    assert of_slots(0, 1) == of_slots(1, 1) == ""
    assert (of_slots(1, 0) == "") is in_order
    assert in_order or "slots bring accesses of memory out of their order" in of_slots(1, 0)
