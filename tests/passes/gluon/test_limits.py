"""What Gluon's consumers can hold and compute: rows, registers, and slices of a body by its uses."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.gluon import plan
from tiledsl.analysis.gluon.plan import (
    CONSUMER_REGISTERS,
    ENTRY_REGISTERS,
    PRODUCER_REGISTERS,
    Plan,
    fits_registers,
    make_plan,
    products_in_flight,
    rescaling,
    unmeasured,
)
from tiledsl.analysis.gluon.schedule import ALWAYS, operand_places
from tiledsl.analysis.gluon.slices import dependents
from tiledsl.analysis.gluon.tile_loops import (
    NotRecognised,
    TileLoop,
    TileLoops,
    check_rows,
    live_registers,
    tile_loops,
)
from tiledsl.ir.core import Region, Value
from tiledsl.ir.types import ScalarType


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ("64", True), ("64x1", True), ("1x32", True), ("64x32", True),
        ("32", False), ("32x1", False), ("32x32", False), ("64x1x1", False), ("1x64x32", False),
    ],
)  # fmt: skip
def test_tiles_of_the_rows_of_a_block(shape: str, fits: bool) -> None:
    body = kernel_of(program(f"%x = tensor.broadcast %f : tensor<{shape}xfloat32>")).regions[0]
    if fits:
        check_rows(body, [(64, 32)], set())
    else:
        with pytest.raises(NotRecognised, match=f"tensor<{shape}xfloat32> is not a tile of the block's 64 rows"):
            check_rows(body, [(64, 32)], set())


W, V, COLUMN = "tensor<64x32xfloat32>", "tensor<64xfloat32>", "tensor<64x1xfloat32>"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("%y = tensor.broadcast %f : tensor<64x16xfloat32>", "tensor<64x16xfloat32> has the columns of no product"),
        ("%y = tensor.broadcast %f : tensor<1x16xfloat32>", "tensor<1x16xfloat32> has the columns of no product"),
        ("%y = tensor.broadcast %f : tensor<64x8xfloat32>", "tensor<64x8xfloat32> has the columns of no product"),
        ("%y = tensor.broadcast %f : tensor<128x8xfloat32>", ""),
        ("%y = tensor.broadcast %f : tensor<128x1xfloat32>", ""),
        ("%y = tensor.broadcast %f : tensor<1x8xfloat32>", ""),
        ("%y = tensor.broadcast %f : tensor<32x8xfloat32>", "is not a tile of the block's 64 or 128 rows"),
        (f'%y = tensor.reduce %x {{kind = "sum", axis = 1}} : {V}', ""),
        (f'%y = tensor.reduce %x {{kind = "max", axis = 1}} : {V}', ""),
        (f'%y = tensor.reduce %x {{kind = "min", axis = 1}} : {V}', ""),
        (f'%y = tensor.reduce %x {{kind = "prod", axis = 1}} : {V}', "a reduction by prod of float32"),
        (f'%y = tensor.reduce %x {{kind = "max", axis = 1, propagate_nan = true}} : {V}', "a reduction by max"),
        ('%y = tensor.reduce %x {kind = "sum", axis = 0} : tensor<32xfloat32>', "is not a tile of the block's"),
        ('%z = tensor.broadcast %f : tensor<64x1xfloat32> %y = tensor.reduce %z {kind = "sum", axis = 0} : '
         "tensor<1xfloat32>", "is not a tile of the block's"),
        ('%z = arith.cast %x : tensor<64x32xfloat16> %y = tensor.reduce %z {kind = "sum", axis = 1} : '
         "tensor<64xfloat16>", "a reduction by sum of float16"),
        (f'%z = tensor.broadcast %f : {V} %y = tensor.reduce %z {{kind = "sum", axis = 0}} : float32', "over rows"),
        ('%z = tensor.broadcast %f : tensor<1x32xfloat32> %y = tensor.reduce %z {kind = "sum", axis = 1} : '
         "tensor<1xfloat32>", "is not a tile of the block's"),
        (f"%z = tensor.broadcast %f : {V} %y = tensor.reshape %z : {COLUMN}", ""),
        (f"%z = tensor.broadcast %f : {COLUMN} %y = tensor.reshape %z : {V}", ""),
        ("%y = tensor.reshape %f : tensor<1x1xfloat32>", "a reshape of float32 to tensor<1x1xfloat32>"),
        ("%y = tensor.iota {axis = 1} : tensor<1x32xint64>", "indices of int64"),
        ("%y = tensor.iota {axis = 1} : tensor<1x32xint32>", ""),
        (f'%y = arith.math [%x] {{function = "exp"}} : {W}', ""),
        (f'%y = arith.math [%x] {{function = "tan"}} : {W}', "the function tan"),
        ("%z = tensor.broadcast %f : tensor<1x1xfloat32> %y = tensor.transpose %z {permutation = (1, 0)} : "
         "tensor<1x1xfloat32>", "a transpose"),
    ],
)  # fmt: skip
def test_operations_on_rows(body: str, reason: str) -> None:
    """Beside products of 64 x 32 and 128 x 8."""
    made = kernel_of(program(f"%x = tensor.broadcast %f : {W} {body}")).regions[0]
    if not reason:
        check_rows(made, [(64, 32), (128, 8)], set())
        return
    with pytest.raises(NotRecognised, match=reason):
        check_rows(made, [(64, 32), (128, 8)], set())
    check_rows(made, [(64, 32), (128, 8)], {op for op in made if op.results and op.results[0].name == "y"})


def loops(
    text: str = "attention",
    columns: int = 64,
    depth: int = 64,
    width: int = 64,
    rows: int = 128,
    dtype: str = "float16",
    end: str = "%c4",
) -> TileLoops:
    """The loops of attention, of which the first asks for 3 stages, or of a product, `added` or `fresh`."""
    wide, sums = f"tensor<{rows}x{columns}xfloat32>", f"tensor<{rows}x{width}xfloat32>"
    left, right = f"tensor<{rows}x{depth}x{dtype}>", f"tensor<{columns}x{depth}x{dtype}>"
    body = f"""
    %zero = arith.constant {{value = 0.0}} : {wide}
    %none = arith.constant {{value = 0.0}} : {sums}
    %q = tile.load_block %X[%c0, %c0] {{axes = (0, 1)}} : {left}
    %r = scf.for %c0, {end}, %c1[%none] {{num_stages = 3}} : {sums} (%k: int32, %acc: {sums}) {{
      %b = tile.load_block %X[%k, %c0] {{axes = (0, 1)}} : {right}
      %bt = tensor.transpose %b {{permutation = (1, 0)}} : tensor<{depth}x{columns}x{dtype}>
      %s = tensor.dot %q, %bt, %zero : {wide}
      %w = arith.cast %s : tensor<{rows}x{columns}x{dtype}>
      %v = tile.load_block %Y[%k, %c0] {{axes = (0, 1)}} : tensor<{columns}x{width}x{dtype}>
      %o = tensor.dot %w, %v, %acc : {sums}
      scf.yield [%o]
    }}"""
    if text != "attention":
        body = f"""
        %zero = arith.constant {{value = 0.0}} : {wide}
        %r = scf.for %c0, %c4, %c1[%zero] {{num_stages = 3}} : {wide} (%k: int32, %acc: {wide}) {{
          %a = tile.load_block %X[%c0, %k] {{axes = (0, 1)}} : {left}
          %b = tile.load_block %Y[%c0, %k] {{axes = (0, 1)}} : {right}
          %bt = tensor.transpose %b {{permutation = (1, 0)}} : tensor<{depth}x{columns}x{dtype}>
          %d = tensor.dot %a, %bt, {"%acc" if text == "added" else "%zero"} : {wide}
          %e = arith.{"neg %d" if text == "added" else "add %acc, %d"} : {wide}
          scf.yield [{"%d" if text == "added" else "%e"}]
        }}""".replace("%e = arith.neg %d", "%e = arith.neg %zero")
    parameters = f"X: 2048*2048*{dtype}, Y: 2048*2048*{dtype}"
    return tile_loops(kernel_of(program(body, parameters=parameters)).body)


PLENTY = 1 << 30


@pytest.mark.parametrize(
    ("columns", "depth", "width", "groups", "stays"),
    [
        (128, 128, 128, 2, True),  # 160 + 32 of 200
        (64, 192, 208, 1, True),  # 152 + 48 of 200, all of them
        (64, 192, 210, 1, False),  # 153 + 48
        (128, 192, 128, 1, False),  # 160 + 48 would fit into all that a thread has, and are spilled
        (64, 64, 64, 3, False),  # three consumers never have the room
    ],
)
def test_left_operands_stay_in_registers_with_a_sixth_to_spare(
    columns: int, depth: int, width: int, groups: int, stays: bool
) -> None:
    (loop,) = loops(columns=columns, depth=depth, width=width, rows=64).loops
    assert fits_registers(loop, groups) is stays
    loaded = replace(loop, loads=(*loop.loads, loop.products[0].a.op))  # what each turn loads does not stay
    assert fits_registers(loaded, groups) is (groups < 3)


def test_left_operands_stay_beside_one_sum() -> None:
    wide, half = "tensor<64x64xfloat32>", "{axes = (0, 1)} : tensor<64x64xfloat16>"

    def stays(second: str) -> bool:
        body = f"""
        %zero = arith.constant {{value = 0.0}} : {wide}
        %q = tile.load_block %X[%c0, %c0] {half}
        %r, %r2 = scf.for %c0, %c4, %c1[%zero, %zero] : {wide}, {wide} (%k: int32, %acc: {wide}, %two: {wide}) {{
          %b = tile.load_block %X[%k, %c0] {half}
          %s = tensor.dot %q, %b, %zero : {wide}
          %w = arith.cast %s : tensor<64x64xfloat16>
          %o = tensor.dot %w, %b, %acc : {wide}
          {second}
          scf.yield [%o, {"%o2" if second else "%two"}] }}"""
        (loop,) = tile_loops(kernel_of(program(body, parameters="X: 2048*2048*float16")).body).loops
        return fits_registers(loop, 1)

    assert stays("") and not stays(f"%o2 = tensor.dot %w, %b, %two : {wide}")


@pytest.mark.parametrize("groups", CONSUMER_REGISTERS)
def test_consumers_and_the_loader_share_the_registers_of_a_multiprocessor(groups: int) -> None:
    """65536, which each of the 128 threads of a warp group gets eight by eight, up to 256."""
    each = CONSUMER_REGISTERS[groups]
    assert each % 8 == PRODUCER_REGISTERS % 8 == 0 and each <= 256
    assert 128 * (groups * each + PRODUCER_REGISTERS) <= 65536
    entry = ENTRY_REGISTERS[groups]
    assert entry % 8 == 0 and 128 * (groups + 1) * entry <= 65536
    assert make_plan(loops("added", columns=128, rows=64 * groups), groups, 4, 0, PLENTY).stages == 3


@pytest.mark.parametrize(
    ("text", "sizes", "groups", "reason"),
    [
        ("attention", {"columns": 128, "width": 128}, 2, ""),  # sums of 128 columns and weights: 160 of 210
        ("attention", {"columns": 256, "width": 36}, 2, ""),  # 210, all of them
        ("attention", {"columns": 256, "width": 38}, 2, "tiles need 211 registers a thread of 210"),
        ("attention", {"columns": 128, "width": 88, "rows": 192}, 3, ""),  # 140
        ("attention", {"columns": 128, "width": 64, "rows": 192}, 3, ""),  # 128 of 140
        ("attention", {"columns": 128, "width": 128, "rows": 192}, 3, "tiles need 160 registers a thread of 140"),
        ("fresh", {"columns": 128}, 2, ""),
        ("fresh", {"columns": 256}, 2, "tiles need 256 registers a thread of 210"),
        ("added", {"columns": 256}, 2, ""),
        ("added", {"columns": 204, "rows": 192}, 3, ""),  # 102 and 26 of 128
        ("added", {"columns": 206, "rows": 192}, 3, "an instruction of 206 columns does not fit 3 consumers"),
        ("added", {"rows": 128}, 1, "128 rows are more than those of an instruction of 4 warps"),
        ("added", {"rows": 64}, 1, ""),
    ],
    ids=str,
)
def test_sums_fit_seven_eighths_of_the_registers(text: str, sizes: dict[str, int], groups: int, reason: str) -> None:
    found = loops(text, **sizes)
    if reason:
        with pytest.raises(NotRecognised, match=reason):
            make_plan(found, groups, 4, 0, PLENTY)
    else:
        assert make_plan(found, groups, 4, 0, PLENTY).stages == 3


@pytest.mark.parametrize(
    ("rows", "groups", "warps", "threads", "everywhere"),
    [(128, 2, 4, 8, False), (64, 1, 4, 4, False), (64, 1, 8, 8, True)],
)
def test_of_which_registers_a_plan_asks(
    rows: int, groups: int, warps: int, threads: int, everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all tiles, where warps run their loops together."""
    asked = []
    monkeypatch.setattr(plan, "live_registers", lambda loop, warps, where: asked.append((warps, where)) or 0)
    make_plan(loops(rows=rows), groups, warps, 0, PLENTY)
    assert asked == [(threads, everywhere)]


def held_differently_long(rows: int) -> TileLoops:
    """Attention, and behind it a loop that reads its values at once."""
    wide, left = f"tensor<{rows}x64xfloat32>", f"tensor<{rows}x64xfloat16>"
    tile = "{axes = (0, 1)} : tensor<64x64xfloat16>"
    body = f"""
    %zero = arith.constant {{value = 0.0}} : {wide}
    %q = tile.load_block %X[%c0, %c0] {{axes = (0, 1)}} : {left}
    %r = scf.for %c0, %c4, %c1[%zero] {{num_stages = 4}} : {wide} (%k: int32, %acc: {wide}) {{
      %b = tile.load_block %X[%k, %c0] {tile}
      %s = tensor.dot %q, %b, %zero : {wide}
      %w = arith.cast %s : {left}
      %v = tile.load_block %Y[%k, %c0] {tile}
      %o = tensor.dot %w, %v, %acc : {wide}
      scf.yield [%o] }}
    %r2 = scf.for %c0, %c4, %c1[%r] {{num_stages = 3}} : {wide} (%k2: int32, %acc2: {wide}) {{
      %v2 = tile.load_block %Y[%k2, %c0] {tile}
      %o2 = tensor.dot %q, %v2, %acc2 : {wide}
      scf.yield [%o2] }}"""
    return tile_loops(kernel_of(program(body, parameters="X: 2048*2048*float16, Y: 2048*2048*float16")).body)


@pytest.mark.parametrize(
    ("rows", "groups", "warps", "once", "stage"),
    [
        (128, 2, 4, 2, 3),  # of tiles: the queries; keys, and values once for each loop
        (64, 1, 4, 1, 3),
        (64, 1, 8, 2, 2),  # queries and weights; nothing waits, so that both loops' values have one place
    ],
)
def test_tiles_that_wait_have_places_of_their_own(rows: int, groups: int, warps: int, once: int, stage: int) -> None:
    found = held_differently_long(rows)
    made = make_plan(found, groups, warps, 0, PLENTY)
    assert made.least == 1024 + (once + 2 * stage) * 8192 and made.stages == 4  # as the deepest loop asks
    assert make_plan(found, groups, warps, 0, made.least) == replace(made, stages=2, left=0)
    with pytest.raises(NotRecognised, match="two stages need") as raised:
        make_plan(found, groups, warps, 0, made.least - 1, places=2 if warps > 4 else 1)
    assert raised.value.op is found.loops[0].op


def test_one_group_of_warps_has_one_stage_where_there_is_no_room_for_two() -> None:
    found, kib = held_differently_long(64), 1024
    least = kib + 4 * 8 * kib  # queries, weights, keys and values
    made = make_plan(found, 1, 8, 0, least)
    assert (made.stages, made.left, made.least) == (1, 0, least)
    assert make_plan(found, 1, 8, 3, least + 16 * kib - 1) == replace(made, left=16 * kib - 1)
    assert make_plan(found, 1, 8, 0, least + 16 * kib).stages == 2
    with pytest.raises(NotRecognised, match=f"a stage needs {least} bytes of shared memory of {least - 1}$"):
        make_plan(found, 1, 8, 0, least - 1)


def test_loops_of_one_stage_are_taken_for_two_products_of_tiles() -> None:
    alone = "loops of one stage are known to be faster if a turn begins with 2 products of tiles"
    assert unmeasured(loops(), 0, 1) == unmeasured(TileLoops((*scores(2).loops, *loops().loops), ()), 0, 1) == alone
    assert unmeasured(loops(), 0, 2) == unmeasured(scores(2), 0, 1) == unmeasured(scores(3), 0, 1) == ""


def scores(number: int) -> TileLoops:
    """A loop of so many products of tiles."""
    wide, half = "tensor<64x64xfloat32>", "{axes = (0, 1)} : tensor<64x64xfloat16>"
    products = "".join(
        f"""
        %b{n} = tile.load_block %X[%k, %c{n}] {half}
        %s{n} = tensor.dot %q, %b{n}, %zero : {wide}
        %t{n} = arith.add %t{n - 1}, %s{n} : {wide}"""
        for n in range(1, number + 1)
    )
    body = f"""
    %zero = arith.constant {{value = 0.0}} : {wide}
    %q = tile.load_block %X[%c0, %c0] {half}
    %r = scf.for %c0, %c4, %c1[%zero] : {wide} (%k: int32, %t0: {wide}) {{
      {products}
      scf.yield [%t{number}] }}"""
    return tile_loops(kernel_of(program(body, parameters="X: 2048*2048*float16")).body)


def test_computed_operands_take_places_that_no_product_reads_any_more() -> None:
    a, b, c, d, e = (Value(ScalarType(dtype), Region()) for dtype in ("int32", "int32", "int32", "int8", "int32"))
    turn = {a: (0, 1), b: (1, 2), c: (2, 3), d: (4, 5), e: (4, 5)}
    assert operand_places([turn]) == {a: a, b: b, c: a, d: d, e: a}
    assert operand_places([dict.fromkeys(turn, ALWAYS)]) == {a: a, b: b, c: c, d: d, e: e}
    assert operand_places([{a: ALWAYS}, {b: (0, 1), c: (1, 2)}, {e: ALWAYS}]) == {a: a, b: a, c: c, e: a}
    assert operand_places([{a: (0, 1), b: (1, 1), c: (2, 2)}]) == {a: a, b: b, c: a}


class _Store(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def a_store(rows: int, columns: int, dtype: str = "float16", axes: tuple[int, ...] = (0, 1)) -> Any:
    value = SimpleNamespace(shape=(rows, columns), dtype=dtype)
    return _Store(starts=(0, 0), axes=axes, value=value, results=[], operands=[value], pieces=())


def test_stages_fill_shared_memory() -> None:
    """128 queries and as many results of 64 halves are 16 KiB each; keys and values of a stage 16 KiB together."""
    kib, result, found = 1024, a_store(128, 64), loops()

    def planned(asked: int, stages: int, *stored: Any, short: int = 0) -> Plan:
        bytes_ = 1024 + (16 + 16 * len(stored) + 16 * stages) * kib - short
        return make_plan(found, 2, 4, asked, bytes_, stored)

    assert [planned(asked, 5, result).stages for asked in (0, 1, 2, 4, 5, 6)] == [3, 2, 2, 4, 5, 5]
    assert (planned(9, 3, result).stages, planned(9, 3, result, short=1).stages) == (3, 2)
    assert (planned(2, 3, result).left, planned(2, 2, result).in_item) == (16 * kib, None)
    assert planned(2, 2, result, short=1).in_item is planned(2, 1, result).in_item is result  # in the queries' place
    with pytest.raises(NotRecognised, match="two stages need 50176 bytes of shared memory"):
        planned(2, 1, result, short=1)
    for other in (a_store(64, 128), a_store(128, 64, "bfloat16"), a_store(128, 64, axes=(1, 0))):
        with pytest.raises(NotRecognised, match="two stages need 66560 bytes of shared memory"):
            planned(2, 1, other)
        assert planned(2, 1, other, result).in_item is result
    assert make_plan(loops("added"), 2, 4, 0, 1024 + 2 * 24 * kib).stages == 2
    with pytest.raises(NotRecognised, match="two stages need 50176 bytes of shared memory of 50175"):
        make_plan(loops("added"), 2, 4, 0, 1024 + 2 * 24 * kib - 1)


def test_what_depends_on_one_operand_of_several() -> None:
    body = """
    %start = arith.add %s, %c1 : int32
    %both = arith.mul %start, %bx : int32
    %later = arith.sub %c1, %both : int32
    %other = arith.mul %bx, %s : int32"""
    ops = {result.name: op for op in kernel_of(program(body)).walk() for result in op.results}
    among = {op for name, op in ops.items() if name != "start"}
    assert dependents([ops["start"]], among) == {ops["both"], ops["later"]}


def test_registers_that_are_live_at_one_time() -> None:
    """Of random bodies: what is made before a place, or outside, and used behind it; no columns and no constants."""
    tile = "tensor<64x64xfloat32>"  # 32 registers of a thread of 4 warps
    for seed in range(60):
        rng = random.Random(seed)
        names, lines = ["%x", "%y", "%p", "%q"], []
        for number in range(6):
            a, b = rng.choice(names), rng.choice(names)
            lines.append(f"%v{number} = arith.add {a}, {b} : {tile}")
            names.append(f"%v{number}")
            lines.append(f'%r{number} = tensor.reduce {a} {{kind = "sum", axis = 1}} : tensor<64xfloat32>')
            lines.append(f"%c{number} = tensor.reshape %r{number} : tensor<64x1xfloat32>")
            lines.append(f"%w{number} = arith.max %v{number}, %c{rng.randint(0, number)} : {tile}")
            names.append(rng.choice([f"%w{number}", "%none"]))
        first, second = rng.choice(names), rng.choice(names)
        body = f"""
        %x = tensor.broadcast %f : {tile}
        %none = arith.constant {{value = 0.0}} : {tile}
        %y = arith.neg %x : {tile}
        %one, %two = scf.for %c0, %s, %c1[%x, %y] : {tile}, {tile} (%k: int32, %p: {tile}, %q: {tile}) {{
          {chr(10).join(lines)}
          scf.yield [{first}, {second}]
        }}"""
        (loop,) = [op for op in kernel_of(program(body)).walk() if op.name == "scf.for"]
        ops = [*loop.regions[0]]
        uses = [set(op.operands) for op in ops]
        made = {value: place for place, op in enumerate(ops) for value in op.results} | dict.fromkeys(
            loop.regions[0].args, -1
        )
        tiles = {value for each in uses for value in each if value.shape == (64, 64) and value.name != "none"}
        most = max(
            sum(
                value not in made or made[value] < place and any(value in each for each in uses[place:])
                for value in tiles
            )
            for place in range(len(ops) + 1)
        )
        found: Any = TileLoop(loop, (), ())  # type: ignore[arg-type]
        assert (live_registers(found, 4, True), live_registers(found, 8, True)) == (32 * most, 16 * most), seed


def test_rows_take_no_registers_but_tiles_do() -> None:
    """Of 64 x 64 numbers that four warps have, 32 are in a thread; eight values for each row do not count."""
    tile = "tensor<64x64xfloat32>"
    rows = [f'%r{number} = tensor.reduce %p {{kind = "sum", axis = 1}} : tensor<64xfloat32>' for number in range(8)]
    sums = [f"%s{number} = arith.add %r{number}, %r{number - 1} : tensor<64xfloat32>" for number in range(1, 8)]
    body = f"""
    %x = tensor.broadcast %f : {tile}
    %one = scf.for %c0, %s, %c1[%x] : {tile} (%k: int32, %p: {tile}) {{
      {chr(10).join(rows + sums)}
      scf.yield [%p]
    }}"""
    (loop,) = [op for op in kernel_of(program(body)).walk() if op.name == "scf.for"]
    assert live_registers(TileLoop(loop, (), ()), 4, True) == 32  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("width", "groups", "fast_math", "chosen"),
    [
        (128, 2, True, "lazy"), (128, 3, True, "lazy"), (128, 2, False, "late"), (128, 3, False, "late"),
        (64, 3, True, "lazy"), (64, 3, False, "each"), (64, 2, True, "each"), (256, 2, True, "lazy"),
        (96, 2, True, "lazy"), (94, 2, True, "each"),
        (64, 0, True, "lazy"), (128, 0, False, "each"),
    ],
)  # fmt: skip
def test_when_sums_are_rescaled(width: int, groups: int, fast_math: bool, chosen: str) -> None:
    found, narrow = loops(width=width), loops(width=32)
    assert rescaling(found, groups, fast_math) == chosen
    assert rescaling(TileLoops((*found.loops, *narrow.loops), ()), groups, fast_math) == chosen  # as the first loop


@pytest.mark.parametrize(
    ("width", "dtype", "end", "chosen"),
    [
        (128, "float8_e4m3fn", "%bx", "late"),
        (128, "float8_e4m3fn", "%c4", "lazy"),
        (128, "float16", "%bx", "lazy"),
        (64, "float8_e4m3fn", "%bx", "each"),
    ],
)
def test_sums_of_float8_are_rescaled_late_where_a_loop_may_have_one_turn(
    width: int, dtype: str, end: str, chosen: str
) -> None:
    assert rescaling(loops(width=width, dtype=dtype, end=end), 2, True) == chosen


@pytest.mark.parametrize(
    ("columns", "groups", "flying"),
    [(128, 2, 2), (144, 2, 2), (146, 2, 1), (256, 2, 1), (64, 3, 2), (96, 3, 2), (98, 3, 1), (128, 3, 1)],
)
def test_two_products_from_zero_fly_where_registers_allow(columns: int, groups: int, flying: int) -> None:
    """Three tiles of sums: 192 of 216 registers; 96 of 144 for three consumers."""
    (loop,) = loops("fresh", columns, rows=64).loops
    assert products_in_flight(loop, groups) == flying
    (added,) = loops("added", columns, rows=64).loops
    assert products_in_flight(added, groups) == 1


@pytest.mark.parametrize(
    ("beside", "handed_on", "end", "flying"),
    [
        ("%e = arith.add %k, %c1 : int32", "%n", "%c4", 2),
        ("%e = arith.add %n, %c1 : int32", "%n", "%c4", 1),  # needs what the last step has handed on
        ("%e = arith.add %k, %c1 : int32", "%e", "%c4", 1),  # hands on what the next one needs
        ("%e = arith.add %k, %c1 : int32", "%n", "%c2", 2),
        ("%e = arith.add %k, %c1 : int32", "%n", "%c1", 1),
        ("%e = arith.add %k, %c1 : int32", "%n", "%s", 1),  # which may be 1
    ],
)
def test_a_product_is_issued_early_where_no_step_waits_for_the_last_one(
    beside: str, handed_on: str, end: str, flying: int
) -> None:
    tile, half = "tensor<64x64xfloat32>", "{axes = (0, 1)} : tensor<64x64xfloat16>"
    body = f"""
    %zero = arith.constant {{value = 0.0}} : {tile}
    %r, %q = scf.for %c0, {end}, %c1[%zero, %c0] : {tile}, int32 (%k: int32, %acc: {tile}, %n: int32) {{
      %a = tile.load_block %X[%c0, %k] {half}
      %b = tile.load_block %X[%k, %c0] {half}
      %d = tensor.dot %a, %b, %zero : {tile}
      {beside}
      %sum = arith.add %acc, %d : {tile}
      scf.yield [%sum, {handed_on}] }}"""
    (loop,) = tile_loops(kernel_of(program(body, parameters="X: 64*64*float16, s: int32")).body).loops
    assert products_in_flight(loop, 2) == flying


def test_masks_and_places_take_no_registers() -> None:
    """They are computed where they are needed."""
    text = """
    %zero = arith.constant {value = 0.0} : tensor<64x64xfloat32>
    %r = scf.for %c0, %c4, %c1[%zero] : tensor<64x64xfloat32> (%k: int32, %acc: tensor<64x64xfloat32>) {
      %i = tensor.iota {axis = 0} : tensor<64x1xint32>
      %j = tensor.iota {axis = 1} : tensor<1x64xint32>
      %d = arith.sub %i, %j : tensor<64x64xint32>
      %m = arith.cmp %d, %k {predicate = "gt"} : tensor<64x64xbool>
      %s = arith.select %m, %acc, %zero : tensor<64x64xfloat32>
      scf.yield [%s]
    }"""
    (loop,) = [op for op in kernel_of(program(text)).walk() if op.name == "scf.for"]
    assert live_registers(TileLoop(loop, (), ()), 4, True) == 32  # type: ignore[arg-type]
