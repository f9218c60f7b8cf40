"""When Gluon is worth it: what is estimated of a block's loops, in Gluon and in Triton."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tiledsl
from tests.passes.gluon.test_limits import loops
from tests.passes.ir_cases import kernel_of, program
from tests.support import turn_programs
from tiledsl.analysis.gluon.estimate import (
    COSTS,
    blocks_beside,
    gain,
    in_gluon,
    in_triton,
    of_arithmetic,
    of_product,
)
from tiledsl.analysis.gluon.tile_loops import TileLoops, tile_loops
from tiledsl.dialects import tile
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import Program
from tiledsl.runtime.target import Target

H200 = Target("cuda", 90)
SHARP = replace(COSTS, sharpness=100, latency=0)  # the longer of two times, and nothing of the other
COPIES = (128 + 64) * 64 * 2 / 64  # of a turn of two tiles of 64 columns


def kernel(threads: int, blocks: int | str) -> tile.KernelOp:
    found = kernel_of(program("", grid=(blocks,)))
    assert isinstance(found, tile.KernelOp)
    found.set_attribute("threads", threads)
    return found


def gained(found: TileLoops, groups: int, warps: int = 4, stages: int = 2, threads: int = 256) -> float:
    """On a grid of any size."""
    return gain(found, groups, warps, stages, kernel(threads, "%s"), H200)


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
    %e = arith.math [%x] {function = "exp2"} : tensor<64x32xfloat32>
    %most = tensor.reduce %x {kind = "max", axis = 1} : tensor<64xfloat32>
    %i = arith.mul %c1, %c1 : int32"""
    found = [of_arithmetic(op) for op in kernel_of(program(body)).body if op.results and op.results[0].name != "f"]
    assert found[-5:] == [0, 64 * 32 / 128, 64 * 32 / 16, 64 * 32 / 128, 0]


def test_products_that_are_only_added_up_take_what_their_copies_take() -> None:
    found = loops("added")
    assert in_gluon(found, 2, 4, 3, SHARP) == pytest.approx(4 * COPIES, rel=0.01)
    assert in_triton(found, 8, 1, SHARP) == pytest.approx(4 * COPIES, rel=0.01)


def test_a_tile_is_there_after_its_way_which_more_tiles_share() -> None:
    found, slow = loops("added"), replace(SHARP, latency=6000)
    assert [in_gluon(found, 2, 4, stages, slow) for stages in (2, 3, 5)] == pytest.approx(
        [24000, 12000, 6000], rel=0.01
    )
    ours = [in_triton(found, 8, beside, slow) for beside in (1, 2)]  # of which each has two tiles on their way
    assert ours == pytest.approx([12000, 6000], rel=0.01)


def test_a_tile_that_waits_for_the_next_turn_too_is_held_longer() -> None:
    slow = replace(SHARP, latency=1e6)
    times = []
    for made in (turn_programs.weighted, turn_programs.latent):  # two tiles, one that both products read
        found = loops_of(made(8, 5, 2))
        assert found.loops[0].late
        times.append([in_gluon(found, groups, 4, 3, slow) for groups in (2, 0)])
    (apart, alone), (held, shared) = times
    assert held == pytest.approx(apart * 2 / 1.5, rel=0.01) and alone == pytest.approx(shared, rel=0.01)


def test_a_product_that_is_used_at_once_is_waited_for_in_triton() -> None:
    """Its turn: the product, its wait, an addition by all units, and the barrier. Blocks hide some of each other's."""
    found = loops("fresh")
    (product,) = found.products
    turn = COSTS.issue + of_product(product) + COSTS.wait + 128 * 64 / 128 + COSTS.turn
    assert in_triton(found, 8, 1, SHARP) == pytest.approx(4 * turn, rel=0.01)
    beside = in_triton(found, 8, 4, replace(SHARP, sharpness=1))  # the time of a turn, and that of its copies
    assert beside == pytest.approx(4 * (turn / 2 + COPIES), rel=0.01)


def test_consumers_hide_each_others_waits() -> None:
    """Twice the rows for two consumers take less than twice the time."""
    for rows, consumers in ((128, 2), (192, 3)):
        few, many = loops(rows=64), loops(rows=rows)
        assert in_gluon(many, consumers, 4, 2) < 0.9 * consumers * in_gluon(few, 1, 4, 2)


def test_what_gains() -> None:
    assert gained(loops(columns=128, depth=128, width=128), 2) > 1.2
    assert gained(loops(rows=64), 1, threads=128) < 1  # one consumer alone, and several blocks in Triton
    found, few = loops(rows=64), kernel(128, 132)
    assert gain(found, 1, 4, 2, few, H200) > 1.5 * gained(found, 1, threads=128)  # for which there is no second block


def test_tiles_that_do_not_fit_registers_gain_nothing() -> None:
    assert gained(loops(columns=256, width=256, rows=64), 1, threads=128) == 0  # 128 of scores, 128 of sums, of 210
    assert gained(loops(columns=128, width=256, rows=64), 1, threads=128) > 0


@pytest.mark.parametrize(
    ("threads", "blocks", "sizes", "beside"),
    [
        (256, "%s", {}, 2),  # 64 registers and 44 for each of 256 threads
        (128, "%s", {"rows": 64}, 4),
        (128, "%s", {"columns": 128, "width": 256}, 1),  # 255 registers: two fit these, and one its shared memory
        (256, "%s", {"columns": 128, "depth": 128, "width": 128}, 1),
        (256, 132, {}, 1),
        (256, 133, {}, 2),
    ],
)
def test_blocks_beside_each_other(threads: int, blocks: int | str, sizes: dict[str, int], beside: int) -> None:
    assert blocks_beside(loops(**sizes), kernel(threads, blocks), H200) == beside


def test_loops_in_loops_begin_anew_in_triton() -> None:
    turn = """
      %a = tile.load_block %X[%c0, %k] {axes = (0, 1)} : tensor<128x64xfloat16>
      %b = tile.load_block %X[%k, %c0] {axes = (0, 1)} : tensor<64x64xfloat16>
      %d = tensor.dot %a, %b, %acc : tensor<128x64xfloat32>
      scf.yield [%d]"""
    sums = "tensor<128x64xfloat32>"
    inner = f"%r = scf.for %c0, %c4, %c1[%zero] : {sums} (%k: int32, %acc: {sums}) {{ {turn} }}"
    for body, begins in ((inner, 0), (f"scf.for %c0, %c4, %c1 (%g: int32) {{ {inner}\nscf.yield }}", 1)):
        text = f"%zero = arith.constant {{value = 0.0}} : {sums}\n{body}"
        found = tile_loops(kernel_of(program(text, parameters="X: 2048*2048*float16")).body)
        assert in_triton(found, 8, 2, SHARP) == pytest.approx(4 * COPIES + begins * COSTS.fill / 2, rel=0.01)
