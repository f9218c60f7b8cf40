"""When Gluon is worth it: what is estimated of a block's loops, in Gluon and in Triton."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import tiledsl
from tests.passes.gluon.test_limits import loops
from tests.passes.gluon.test_ordered_loops import decode
from tests.passes.ir_cases import kernel_of, program
from tests.support import turn_programs
from tests.support.example_modules import load_example
from tiledsl.analysis.gluon.estimate import (
    COSTS,
    Launch,
    blocks_beside,
    gain,
    in_gluon,
    in_triton,
    of_arithmetic,
    of_product,
)
from tiledsl.analysis.gluon.tile_loops import NotRecognised, TileLoops, tile_loops
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import Program
from tiledsl.runtime.target import Target

H200 = Target("cuda", 90)
SHARP = replace(COSTS, sharpness=100, latency=0)  # the longer of two times, and nothing of the other
COPIES = (128 + 64) * 64 * 2 / 64  # of a turn of two tiles of 64 columns
MANY = 10**6  # blocks


def gained(found: TileLoops, groups: int, threads: int = 256, blocks: int | None = None) -> float:
    return gain(found, groups, threads // 32, 2, Launch(threads // 32, blocks), H200)


def loops_of(made: object) -> TileLoops:
    """Of a program, as consumers with rows of their own have them."""
    options = {"select-emitter.backend": "gluon", "select-emitter.rescale": "each"}
    root = parse_op(tiledsl.compile(made, target="cuda:90", pass_configs=options).ir("select-emitter"))
    return tile_loops(kernel_of(Program(root)).body)  # type: ignore[attr-defined]


def test_cycles_of_units() -> None:
    half, byte = loops("added").products[0], loops("added", dtype="float8_e4m3fn").products[0]
    assert of_product(half) == 2 * 128 * 64 * 64 / 4096 == 2 * of_product(byte)
    body = """
    %x = tensor.broadcast %f : tensor<64x32xfloat32>
    %two = arith.mul %x, %x : tensor<64x32xfloat32>
    %e = arith.math [%two] {function = "exp2"} : tensor<64x32xfloat32>
    %most = tensor.reduce %x {kind = "max", axis = 1} : tensor<64xfloat32>
    %one = arith.mul %x, %e : tensor<64x32xfloat32>
    %less = arith.sub %one, %x : tensor<64x32xfloat32>
    %more = arith.add %less, %one : tensor<64x32xfloat32>
    %both = arith.mul %x, %x : tensor<64x32xfloat32>
    %again = arith.add %both, %x : tensor<64x32xfloat32>
    %other = arith.neg %both : tensor<64x32xfloat32>
    %i = arith.mul %c1, %c1 : int32"""
    cycles = {op.results[0].name: of_arithmetic(op) for op in kernel_of(program(body)).body if op.results}
    plain = 64 * 32 / 128
    assert cycles["x"] == cycles["i"] == 0
    assert cycles["two"] == cycles["most"] == plain and cycles["e"] == 64 * 32 / 16
    assert (cycles["one"], cycles["less"], cycles["more"]) == (0, plain, plain)  # a product that only goes into sums
    assert (cycles["both"], cycles["again"]) == (plain, plain)


def test_products_that_are_only_added_up_take_what_their_copies_take() -> None:
    found = loops("added")
    assert in_gluon(found, 2, 4, 9, MANY, SHARP) == pytest.approx(4 * COPIES, rel=0.01)
    assert in_triton(found, 8, 1, SHARP) == pytest.approx(4 * COPIES, rel=0.01)


def test_nothing_hides_the_last_tile_of_one_stage() -> None:
    """Its latency and its share of the copies, of two tiles."""
    slow = replace(SHARP, latency=5000)
    found = loops("added", rows=64, columns=64)
    assert in_gluon(found, 1, 4, 1, MANY, slow) - in_gluon(found, 1, 4, 99, MANY, SHARP) == pytest.approx(
        4 * (5000 + 64 * 64 * 2 / 64), rel=0.01
    )


def test_a_tile_is_there_after_its_way_which_more_tiles_share() -> None:
    """Its way is the latency, and what its copy takes."""
    found, slow = loops("added"), replace(SHARP, latency=6000 - COPIES)
    assert [in_gluon(found, 2, 4, stages, 1, slow) for stages in (2, 3, 5)] == pytest.approx(
        [24000, 12000, 6000], rel=0.01
    )
    ours = [in_triton(found, 8, beside, slow) for beside in (1, 2)]  # of which each has two tiles on their way
    assert ours == pytest.approx([12000, 6000], rel=0.01)


def test_a_tile_that_waits_for_the_next_turn_too_is_held_longer() -> None:
    slow = replace(SHARP, latency=1e6, held=0.5, fill=0)
    times = []
    for made in (turn_programs.weighted, turn_programs.latent):  # two tiles, one that both products read
        found = loops_of(made(8, 5, 2))
        assert found.loops[0].late
        times.append([in_gluon(found, groups, 4, 3, 1, slow) for groups in (2, 0)])
    (apart, alone), (held, shared) = times
    assert held == pytest.approx(apart * 2 / 1.5, rel=0.01) and alone == pytest.approx(shared, rel=0.01)


def test_a_product_that_is_used_at_once_is_waited_for_in_triton() -> None:
    """Its turn: the product, its wait, an addition by all units, and the barrier. Blocks hide some of each other's."""
    found = loops("fresh")
    (product,) = found.products
    turn = COSTS.issue + of_product(product) + COSTS.wait + 128 * 64 / 128 + COSTS.turn
    assert in_triton(found, 8, 1, replace(SHARP, tensor=9)) == pytest.approx(4 * turn, rel=0.01)
    beside = in_triton(found, 8, 4, replace(SHARP, sharpness=1, tensor=9))  # a turn, its copies, and those on their way
    assert beside == pytest.approx(4 * (turn / 2 + COPIES + COPIES / 8), rel=0.01)


def following(uses_between: bool) -> TileLoops:
    """Two products whose results are used behind both, or the first one's before the second."""
    tile = "tensor<64x64xfloat32>"
    use, then = f"%e = arith.neg %d : {tile}", f"%e2 = arith.neg %d2 : {tile}"
    body = f"""
    %zero = arith.constant {{value = 0.0}} : {tile}
    %r = scf.for %c0, %c4, %c1[%zero] : {tile} (%k: int32, %acc: {tile}) {{
      %a = tile.load_block %X[%c0, %k] {{axes = (0, 1)}} : tensor<64x64xfloat16>
      %d = tensor.dot %a, %a, %zero : {tile}
      {use if uses_between else ""}
      %d2 = tensor.dot %a, %a, %zero : {tile}
      {"" if uses_between else use}
      {then}
      %s = arith.max %e, %e2 : {tile}
      scf.yield [%s] }}"""
    return tile_loops(kernel_of(program(body, parameters="X: 2048*2048*float16")).body)


def test_products_that_follow_each_other_are_waited_for_together_in_triton() -> None:
    only_waits = replace(SHARP, wait=1000, fill=0, issue=0)
    together, apart = (in_triton(following(between), 4, 1, only_waits) / 4 for between in (False, True))
    assert apart - together == pytest.approx(1000, rel=0.01) and 1000 < together < 2000


def test_triton_waits_for_the_first_tiles_of_each_block_and_gluon_once() -> None:
    filling = replace(SHARP, fill=1e6)
    found = loops()
    assert [in_triton(found, 8, beside, filling) for beside in (1, 2)] == pytest.approx([1e6, 5e5], rel=0.01)
    assert [in_gluon(found, 2, 4, 2, blocks, filling) for blocks in (1, 4)] == pytest.approx([1e6, 2.5e5], rel=0.02)
    twice = TileLoops((*found.loops, *found.loops), found.kept)
    assert in_triton(twice, 8, 1, filling) == pytest.approx(2e6, rel=0.01)
    for text in ("added", "fresh"):  # one product alone goes on where a block ends
        assert in_triton(loops(text), 8, 1, filling) < 1e5 and in_gluon(loops(text), 2, 4, 2, 1, filling) < 1e5


def test_consumers_hide_each_others_waits() -> None:
    """Twice the rows for two consumers take less than twice the time."""
    for rows, consumers in ((128, 2), (192, 3)):
        few, many = loops(rows=64), loops(rows=rows)
        assert in_gluon(many, consumers, 4, 2, MANY) < 0.9 * consumers * in_gluon(few, 1, 4, 2, MANY)


def test_what_gains() -> None:
    found = loops(columns=128, depth=128, width=128)
    assert gained(found, 2) == pytest.approx(gained(found, 2, blocks=MANY), rel=1e-4)
    assert gained(found, 2) == pytest.approx(1.1777, abs=0.0001)
    one = loops(rows=64)
    assert gained(one, 1, threads=128) == pytest.approx(0.3925, abs=0.0001)  # alone, and several blocks in Triton
    few = gained(one, 1, threads=128, blocks=132)
    assert few > 1.5 * gained(one, 1, threads=128)  # for which there is no second block
    assert few < gained(one, 1, threads=128, blocks=133) * 2
    assert gained(one, 0, threads=128) == pytest.approx(0.3845, abs=0.0001)


def test_tiles_that_do_not_fit_registers_are_spilled() -> None:
    with pytest.raises(NotRecognised, match="tiles and what waits need 320 registers a thread of 210"):
        gained(loops(columns=256, width=256, rows=64), 1, threads=128)
    assert gained(loops(columns=64, width=324, rows=64), 1, threads=128) > 0  # 210
    with pytest.raises(NotRecognised, match="need 211 registers"):
        gained(loops(columns=64, width=326, rows=64), 1, threads=128)


@pytest.mark.parametrize(
    ("threads", "blocks", "sizes", "beside"),
    [
        (256, None, {}, 2),  # 64 registers and 44 for each of 256 threads
        (128, None, {"rows": 64}, 4),
        (128, None, {"columns": 128, "width": 256}, 1),  # 255 registers: two fit these, and one its shared memory
        (256, None, {"columns": 128, "depth": 128, "width": 128}, 1),
        (128, None, {"rows": 64, "width": 128}, 2),  # three stages of 24 KiB each
        (256, 132, {}, 1),
        (256, 133, {}, 2),
    ],
)
def test_blocks_beside_each_other(threads: int, blocks: int | None, sizes: dict[str, int], beside: int) -> None:
    assert blocks_beside(loops(**sizes), Launch(threads // 32, blocks), H200) == beside


LARGE = {"batch": 4, "heads": 32, "kv_heads": 32, "queries": 4096, "keys": 4096}


@pytest.mark.parametrize(
    ("example", "function", "sizes", "speed"),
    [
        ("attention", "attention", {"dim": 128}, 1.369),
        ("attention", "attention", {"dim": 64, "causal": True}, 1.349),  # as many turns as a value says
        ("attention", "attention", {"dim": 192, "block_N": 64}, 1.326),  # in parts of 128 and 64 columns
        ("attention_backward", "gradients_at_once", {"dim": 64}, 1.215),  # products of tiles first
        ("attention_backward", "gradients_at_once", {"dim": 128, "causal": True}, 1.226),
        ("attention_backward", "key_value_gradients", {"dim": 64}, 0.644),  # tiles that two turns read
        ("attention_backward", "query_gradient", {"dim": 64}, 0.565),
    ],
)
def test_what_is_estimated_of_examples(example: str, function: str, sizes: dict[str, Any], speed: float) -> None:
    made = getattr(load_example(example), function).function
    kernel = tiledsl.jit(made, target="cuda:90").compile(**LARGE, **sizes)
    (said,) = re.findall(r"estimated to run at ([\d.]+) of Triton's speed", " ".join(kernel.remarks))
    assert float(said) == speed and ("@gluon.jit" in kernel.source) == (speed >= 1.1)


def test_what_is_estimated_of_one_group_that_divides_columns() -> None:
    """It hands on weights, and what it reduces, through shared memory."""
    wide = tiledsl.compile(decode(dim=512), target="cuda:90")
    assert wide.remarks == ("decode: written in Gluon: its loops are estimated to run at 1.628 of Triton's speed",)


def test_blocks_have_room_for_the_loop_that_needs_most() -> None:
    few, more = loops(rows=64), loops(rows=64, width=128)
    for found in ((*few.loops, *more.loops), (*more.loops, *few.loops)):
        assert blocks_beside(TileLoops(found, few.kept), Launch(4, None), H200) == 2
