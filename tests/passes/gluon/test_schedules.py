"""What is read from a launch that schedule-loops has been through: rings, clusters, turns, and the producer's part."""

from __future__ import annotations

import pytest

from tests.passes.gluon.test_schedule_rules import (
    ATTENTION,
    GRADIENTS,
    HALF,
    LATENT,
    PAIRS,
    PRODUCT,
    SCAN,
    SHARED,
    TILE,
    TWICE,
    before,
    changed,
    text_of,
)
from tiledsl.analysis.gluon.schedule import (
    Loop,
    Schedule,
    divided,
    ending_in,
    hands_on,
    in_words,
    instruction_columns,
    is_only_added_to,
    is_stored,
    last_of,
    shared,
)
from tiledsl.analysis.gluon.slices import dependents, only_for_loads
from tiledsl.dialects import scf, triton
from tiledsl.ir.parser import parse_op


def scheduled(name: str, *changes: tuple[str, str]) -> Schedule:
    text = text_of(name)
    for old, new in changes:
        text = changed(text, old, new)
    return Schedule(next(op for op in parse_op(text).walk() if isinstance(op, triton.LaunchOp)))


def kept(row: str) -> tuple[str, str]:
    """One more tile that is loaded with the queries."""
    more = f'%w = triton.load_block %B_tiles_1[{row}, %5] {{axes = (0, 1), ring = "item"}} : {HALF}'
    return before("%acc = ", more)


@pytest.mark.parametrize(
    ("name", "changes", "rings"),
    [
        (PAIRS, [], {"a": (2, 3, False)}),
        (ATTENTION, [], {"item": (1, 1, True), "k": (1, 2, False), "v": (1, 2, False)}),
        (SHARED, [], {"item": (1, 1, False), "k": (1, 2, False)}),  # no consumers with rows of their own
        (TWICE, [kept("%6")], {"item": (2, 1, True), "k": (1, 2, False), "v": (1, 2, False)}),
        (TWICE, [kept("%5")], {"item": (2, 1, False), "k": (1, 2, False), "v": (1, 2, False)}),  # one is everyone's
        (GRADIENTS, [], {"item": (2, 1, False), "q": (2, 2, False), "do": (2, 2, False)}),
    ],
)
def test_tiles_places_and_whether_each_consumer_has_its_own(
    name: str, changes: list[tuple[str, str]], rings: dict[str, tuple[int, int, bool]]
) -> None:
    found = scheduled(name, *changes).rings
    assert {ring: (len(each.tiles), each.depth, each.by_consumer) for ring, each in found.items()} == rings


def test_a_ring_knows_the_last_product_of_each_stage_that_reads_it() -> None:
    made = scheduled(GRADIENTS)
    names = {
        ring: [{stage: op.out.name for stage, op in stages.items()} for stages in each.readers.values()]
        for ring, each in made.rings.items()
    }
    assert names == {
        "item": [],
        "q": [{0: "p", 1: "dk_5"}, {0: "p_3", 1: "dk_8"}],
        "do": [{1: "dv_4"}, {1: "dv_7"}],
    }
    assert {load.out.name: owner.out.name for load, owner in made.owner.items()} == {
        "k": "k", "v": "v", "q": "q", "lse": "lse", "do": "do", "d": "d",
        "q_1": "q", "lse_1": "lse", "do_1": "do", "d_1": "d",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "held", "skewed", "index_late"),
    [
        (ATTENTION, ["", "weights", "acc_3"], True, False),
        (LATENT, ["weights", "k", "acc_3"], True, False),
        (GRADIENTS, ["p", "q"], True, True),
        (PRODUCT, [], False, False),
    ],
)
def test_what_a_turn_holds_back(name: str, held: list[str], skewed: bool, index_late: bool) -> None:
    loop = scheduled(name).loops[0]
    assert [value.name for value in loop.held] == held
    assert (loop.is_skewed, loop.index_late) == (skewed, index_late)


def test_constants_are_not_held() -> None:
    one = before("%13 = ", f"%x = arith.constant {{value = 1.0}} : {TILE}")
    (loop,) = scheduled(SCAN, one, before("%acc_3 = ", f"%y = arith.neg %x : {TILE}")).loops
    assert [value.name for value in loop.held] == ["", "weights"]


@pytest.mark.parametrize(
    ("name", "runs", "in_flight"),
    [(PRODUCT, [False], [(0,)]), (PAIRS, [True], [()]), (TWICE, [False, False], [(), (0,)])],
)
def test_what_is_said_of_each_loop(name: str, runs: list[bool], in_flight: list[tuple[int, ...]]) -> None:
    loops = scheduled(name).loops
    assert [loop.runs for loop in loops] == runs and [loop.in_flight for loop in loops] == in_flight


def test_an_index_is_late_where_more_than_a_load_reads_it_a_turn_later() -> None:
    late = before("%acc_3 = ", "%x = arith.mul %t, %2 : int32")
    assert not scheduled(SCAN).loops[0].index_late
    assert scheduled(SCAN, late).loops[0].index_late
    read = ("%V_tiles_1[%12, %5]", "%V_tiles_1[%x, %5]")  # by a load alone, which the producer does
    assert not scheduled(SCAN, before("%v = ", "%x = arith.mul %t, %2 : int32"), read).loops[0].index_late
    assert not scheduled(SCAN, ("%V_tiles_1[%12, %5]", "%V_tiles_1[%t, %5]")).loops[0].index_late


def test_turns_that_are_taken_at_a_time() -> None:
    """Before a turn's products comes what they need; what uses them, when those of the turn after next are to be
    issued."""
    (loop,) = scheduled(PAIRS, before("%b_t = ", "gluon.cluster {slot = 0}")).loops
    assert loop.first_products == 1 and len(loop.clusters) == 3
    assert loop.steps(3, 1) == [(0, 0), (1, 0), (2, 0)]
    assert loop.steps(3, 4) == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (2, 0), (1, 2), (0, 3), (2, 1), (1, 3), (2, 2), (2, 3),
    ]  # fmt: skip


def chained(*changes: tuple[str, str]) -> list[int]:
    chains: list[list[Loop]] = scheduled(GRADIENTS, *changes).chains()
    return [len(chain) for chain in chains]


def test_loops_between_which_the_pipeline_does_not_run_empty() -> None:
    """They are alike, hand their sums on, and hold nothing back that needs the index of its own turn."""
    early = [(f"%{name} = arith.mul %{index}, %5 : int32", f"%{name} = arith.mul %b, %5 : int32")
             for name, index in (("15", "tile"), ("23", "turn"))]  # fmt: skip
    assert chained() == [1, 1]
    assert chained(*early) == [2]
    assert chained(early[0]) == chained(early[1]) == [1, 1]
    at_once = [("{stage = 1}", ""), ("{stage = 1, slot = 2}", ""), ("{slot = 1}", "")]
    assert chained(*early, *at_once) == [1, 1]  # where nothing is held back, each begins by itself
    last = ("scf.for %full, %8, %9[%dv_2, %dk_3]", "scf.for %full, %8, %9[%dk, %dk_3]")
    assert chained(*early, last) == [1, 1]
    holds_more = before("%do_1 = ", "%x = arith.neg %22 : int32")
    assert chained(*early, holds_more) == [1, 1]
    held_longer = before("%do_1 = ", f"%x = tensor.dot %k, %q_t_1, %dk : {WIDE}")
    assert chained(*early, held_longer) == [1, 1]  # one more product


WIDE = "tensor<128x64xfloat32>"


def named(name: str, *changes: tuple[str, str]) -> set[str]:
    loop = scheduled(name, *changes).loops[0]
    return {op.results[0].name or op.name for op in only_for_loads(loop.op.walk())}


ADDRESS = "%at = triton.addptr %lengths_1, %t : *int32"
ROW = ("%A_tiles_1[%9, %10]", "%A_tiles_1[%9, %z]")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ([], {"arith.mul"}),
        ([before("%a = ", f"{ADDRESS} %z = triton.load %at : int32"), ROW], {"arith.mul", "at", "z"}),
        ([before("%a = ", f'{ADDRESS} %z = triton.atomic %at, %6 {{kind = "add"}} : int32'), ROW], {"arith.mul"}),
        ([before("%a = ", f"{ADDRESS} triton.store %10, %at")], set()),  # which others read, too
        ([before("%a = ", "%z = arith.add %10, %6 : int32"), ROW], {"arith.mul", "z"}),
        ([before("%a = ", "%z = arith.add %10, %6 : int32")], set()),  # which nothing reads
        ([before("%a = ", '%is = arith.cmp %t, %6 {predicate = "lt"} : bool '
                 "%z = scf.if %is : int32 { scf.yield [%t] } { scf.yield [%6] }"), ROW], {"arith.mul"}),
    ],
)  # fmt: skip
def test_what_the_producer_computes_alone(changes: list[tuple[str, str]], found: set[str]) -> None:
    assert named(PRODUCT, *changes) == found


def test_dependents_are_some_of_those_that_are_asked_of() -> None:
    made = scheduled(ATTENTION)
    ops = {op.results[0].name: op for op in made.loops[0].op.body if op.results}
    among = {ops["k"], ops["k_t"], ops["s_1"]}
    assert dependents([ops["k"]], among) == {ops["k"], ops["k_t"]}  # by way of those alone
    assert dependents([ops["weights"]], among) == set() and isinstance(made.loops[0].op, scf.ForOp)


def test_left_operands_that_are_read_to_registers_once() -> None:
    made = scheduled(ATTENTION)
    assert [made.reads_registers(each) for each in made.products] == [True, True]
    in_memory = ("query_in_registers = true", "query_in_registers = false")
    made = scheduled(ATTENTION, in_memory)
    assert [made.reads_registers(each) for each in made.products] == [False, True]
    assert not any(made.in_registers(load) for load in made.loads)
    shared = scheduled(SHARED)  # what is computed passes through shared memory
    assert not any(map(shared.reads_registers, shared.products)) and len(shared.buffers) == 1
    wide = before("%s = ", f"%y = tensor.dot %q, %k_t, %acc : {TILE}")
    made = scheduled(ATTENTION, wide)
    assert [made.reads_registers(each) for each in made.products] == [True, True, True]
    more = (kept("%5")[0], kept("%5")[1].replace("B_tiles", "S_tiles"))
    made = scheduled(SCAN, more, ("tensor.dot %q, %state", "tensor.dot %q, %w"))
    assert [load.out.name for load in made.loads if made.in_registers(load)] == ["q"]  # no right operand
    narrow = """%n = triton.load_block %B_tiles_1[%12, %5] {axes = (0, 1), ring = "n"} : tensor<32x64xfloat16>
      %n_t = tensor.transpose %n {permutation = (1, 0)} : tensor<64x32xfloat16>
      %zeros = arith.constant {value = 0.0} : tensor<64x32xfloat32>
      %y = tensor.dot %q, %n_t, %zeros : tensor<64x32xfloat32>"""
    made = scheduled(ATTENTION, before("%s = ", narrow))
    assert not any(made.in_registers(load) for load in made.loads)  # products of two shapes would read it


@pytest.mark.parametrize(
    ("rows", "warps", "parts"),
    [
        (64, 4, (4, 1)), (128, 4, (4, 1)), (64, 8, (4, 2)), (128, 8, (8, 1)), (192, 8, (4, 2)), (256, 8, (8, 1)),
        (128, 16, (8, 2)), (256, 16, (16, 1)),
    ],
)  # fmt: skip
def test_warps_share_rows_and_then_columns(rows: int, warps: int, parts: tuple[int, int]) -> None:
    """As many as there are rows for, 64 for four warps; the others take columns."""
    assert divided((rows, 64), warps) == parts
    for columns in (16, 64, 256, 512):
        assert instruction_columns((rows, columns), warps) == min(256, columns // parts[1])


def test_things_take_the_places_of_those_alike_of_earlier_loops() -> None:
    loops = [{"a": 1, "b": 1, "c": 2}, {"d": 1, "e": 2, "f": 2}, {"g": 1, "h": 1, "i": 1, "j": 2}]
    assert shared(loops) == {
        "a": "a", "b": "b", "c": "c", "d": "a", "e": "c", "f": "f", "g": "a", "h": "b", "i": "i", "j": "c",
    }  # fmt: skip
    assert shared([{"a": 1}, {"a": 1}]) == {"a": "a"}


def test_products_that_are_added_up() -> None:
    (loop,) = scheduled(SCAN).loops
    (total,), (carried,) = loop.op.yielded, loop.op.iter_args
    assert [op.out.name for op in ending_in(total)] == ["acc_4", "acc_3"]
    assert [is_only_added_to(carried, op) for op in loop.products] == [False, True, False]
    (loop,) = scheduled(SCAN, before("scf.yield", f"%x = arith.neg %acc_3 : {TILE}")).loops
    assert [op.out.name for op in ending_in(loop.op.yielded[0])] == ["acc_4"]  # the other one has another reader
    (loop,) = scheduled(SCAN, before("scf.yield", f"%x = arith.neg %acc_2 : {TILE}")).loops
    assert not any(is_only_added_to(loop.op.iter_args[0], op) for op in loop.products)
    (loop,) = scheduled(PAIRS).loops
    assert ending_in(loop.op.yielded[0]) == []


def test_loops_that_hand_on_their_values() -> None:
    first, second = (loop.op for loop in scheduled(GRADIENTS).loops)
    assert hands_on(first, second) and not hands_on(second, first)
    read = before("%dv_5, %dk_6 = ", f"%x = arith.neg %dv_2 : {WIDE}")
    assert not hands_on(*(loop.op for loop in scheduled(GRADIENTS, read).loops))
    turned = ("scf.for %full, %8, %9[%dv_2, %dk_3]", "scf.for %full, %8, %9[%dk_3, %dv_2]")
    assert not hands_on(*(loop.op for loop in scheduled(GRADIENTS, turned).loops))


def test_the_last_operation_with_a_loop_in_it() -> None:
    made = scheduled(GRADIENTS)
    outer = made.loops[0].op.parent_op
    assert outer is not None and outer.parent is not None
    (body,) = outer.regions
    assert last_of(body, made.loops) is made.loops[1].op and last_of(body, made.loops[:1]) is made.loops[0].op
    assert last_of(outer.parent, made.loops) is outer
    assert last_of(made.loops[0].op.body, made.loops) is None


def test_which_left_operands_pass_through_shared_memory() -> None:
    """Computed ones that are transposed, or whose columns warps share."""
    made = scheduled(GRADIENTS).loops[0].products
    names = lambda warps: [op.out.name for op in made if is_stored(op, warps)]
    assert names(4) == names(8) == ["dq"] and names(16) == ["dv_4", "dk_5", "dq"]


def test_elements_of_a_byte_are_handled_in_words() -> None:
    halves = scheduled(PRODUCT).products
    octets = scheduled(PRODUCT, ("xfloat16", "xfloat8_e5m2"), ("*float16", "*float8_e5m2")).products
    assert [in_words(each) for each in (*halves, *octets)] == [False, True]
