"""What Gluon's consumers can hold and compute: rows, registers, and slices of a body by its uses."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.gluon.ordered_loops import OrderedLoop, live_registers
from tiledsl.analysis.gluon.plan import (
    BARRIER_BYTES,
    CONSUMER_REGISTERS,
    ENTRY_REGISTERS,
    PRODUCER_REGISTERS,
    OrderedPlan,
    Plan,
    drawback,
    make_plan,
    ordered_drawback,
    product_stages,
    query_in_registers,
    rescaling,
)
from tiledsl.analysis.gluon.slices import dependents
from tiledsl.analysis.gluon.softmax_loops import NotRecognised, check_rows


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


@pytest.mark.parametrize(
    ("columns", "depth", "width", "parts", "stays"),
    [
        (128, 128, 128, 2, True),  # 160 + 32 of 216
        (64, 256, 208, 1, True),  # 152 + 64 of 216, all of them
        (64, 256, 210, 1, False),  # 153 + 64
        (128, 256, 128, 1, False),  # 160 + 64 would fit into all that a thread has
        (64, 64, 64, 3, False),  # three consumers never have the room
        (64, 64, 192, 3, False),  # 144, nine tenths of what three have
    ],
)
def test_queries_stay_in_registers_with_a_tenth_to_spare(
    columns: int, depth: int, width: int, parts: int, stays: bool
) -> None:
    assert query_in_registers(columns, depth, width, parts) is stays


@pytest.mark.parametrize("parts", CONSUMER_REGISTERS)
def test_consumers_and_the_loader_share_the_registers_of_a_multiprocessor(parts: int) -> None:
    """65536, which each of the 128 threads of a warp group gets eight by eight, up to 256."""
    each = CONSUMER_REGISTERS[parts]
    assert each % 8 == PRODUCER_REGISTERS % 8 == 0 and each <= 256
    assert 128 * (parts * each + PRODUCER_REGISTERS) <= 65536
    entry = ENTRY_REGISTERS[parts]
    assert entry % 8 == 0 and 128 * (parts + 1) * entry <= 65536
    assert product_stages(a_product(columns=128), parts, 0, 1 << 30, ()) == 3


def test_tiles_that_need_more_than_nine_tenths_of_the_registers() -> None:
    with pytest.raises(NotRecognised, match="tiles of 128 and 256 columns need 224 registers a thread of 216"):
        query_in_registers(128, 64, 256, 1)
    with pytest.raises(NotRecognised, match="tiles of 256 and 64 columns need 224 registers a thread of 216"):
        make_plan(attention(columns=256, depth=16), 1, 0, 1 << 30, ())
    assert not make_plan(attention(depth=256, width=256), 1, 0, 1 << 30, ()).query_in_registers  # 176 + 64


def a_product(dtype: str = "float16", columns: int = 64, depth: int = 64, acc_position: int | None = 0) -> Any:
    """One whose loop asks for 3 stages."""
    left = SimpleNamespace(out=SimpleNamespace(dtype=dtype))
    op = SimpleNamespace(num_stages=3)
    return SimpleNamespace(left=left, columns=columns, depth=depth, acc_position=acc_position, op=op, product=None)


@pytest.mark.parametrize(("dtype", "least"), [("float8_e4m3fn", 32), ("float16", 16)], ids=["float8", "float16"])
def test_extents_of_the_tiles_of_a_product(dtype: str, least: int) -> None:
    """Powers of two, of at least the 32 bytes that an instruction takes and at most 256."""
    plenty = 1 << 30
    for depth in (least, 2 * least, 256):
        assert product_stages(a_product(dtype, depth=depth), 2, 0, plenty, ()) == 3
    for depth in (least // 2, least + 1, 3 * least, 512):
        with pytest.raises(NotRecognised, match=f"extent {depth} is not a power of two from {least} to 256"):
            product_stages(a_product(dtype, depth=depth), 2, 0, plenty, ())
    for columns in (16, 128):
        assert product_stages(a_product(columns=columns), 2, 0, plenty, ()) == 3
    for columns in (8, 24, 512):
        with pytest.raises(NotRecognised, match=f"extent {columns} is not a power of two from 16 to 256"):
            product_stages(a_product(columns=columns), 2, 0, plenty, ())


def test_stages_of_a_product_fill_shared_memory() -> None:
    """Two consumers take 2 * 64 rows of the left tile, and 64 of the right one: 24 KiB; 16 KiB are stored."""
    stored: Any = [SimpleNamespace(value=SimpleNamespace(dtype="float16"))]
    stages = lambda asked, fit, short=0: product_stages(
        a_product(), 2, asked, BARRIER_BYTES + 16 * 1024 + fit * 24 * 1024 - short, stored
    )
    assert [stages(asked, 5) for asked in (0, 1, 2, 4, 5, 6)] == [3, 2, 2, 4, 5, 5]
    assert (stages(9, 3), stages(9, 3, short=1)) == (3, 2)
    with pytest.raises(NotRecognised, match="two stages need 65536 bytes of shared memory"):
        stages(0, 2, short=1)


def test_sums_of_a_product_fit_the_registers() -> None:
    """Columns / 2 of a thread, twice where each product starts from zero: nine tenths of 240, 216, are enough."""
    assert product_stages(a_product(columns=128, acc_position=None), 2, 0, 1 << 30, ()) == 3
    with pytest.raises(NotRecognised, match="sums of 256 columns need 256 registers a thread of 216"):
        product_stages(a_product(columns=256, acc_position=None), 2, 0, 1 << 30, ())
    assert product_stages(a_product(columns=256), 2, 0, 1 << 30, ()) == 3
    with pytest.raises(NotRecognised, match="an instruction of 256 columns does not fit 3 consumers"):
        product_stages(a_product(columns=256), 3, 0, 1 << 30, ())


def test_what_depends_on_one_operand_of_several() -> None:
    body = """
    %start = arith.add %s, %c1 : int32
    %both = arith.mul %start, %bx : int32
    %later = arith.sub %c1, %both : int32
    %other = arith.mul %bx, %s : int32"""
    ops = {result.name: op for op in kernel_of(program(body)).walk() for result in op.results}
    among = {op for name, op in ops.items() if name != "start"}
    assert dependents([ops["start"]], among) == {ops["both"], ops["later"]}


def a_block(rows: int, columns: int, dtype: str = "float16", loads: bool = True, axes: tuple[int, ...] = (0, 1)) -> Any:
    value = SimpleNamespace(shape=(rows, columns), dtype=dtype)
    each = SimpleNamespace(starts=(0, 0), axes=axes, value=value, out=value)
    return SimpleNamespace(**vars(each), results=[value] * loads, operands=[value])


def attention(columns: int = 64, depth: int = 64, width: int = 64) -> Any:
    """Two loops, which ask for 3 stages and 2."""
    loops = [SimpleNamespace(op=SimpleNamespace(num_stages=stages)) for stages in (3, 2)]
    return SimpleNamespace(columns=columns, depth=depth, width=width, query=a_block(128, depth), loops=loops)


@pytest.mark.parametrize("name", ["columns", "depth", "width"])
def test_extents_of_the_tiles_of_attention(name: str) -> None:
    for extent in (16, 32, 64, 128):
        assert make_plan(attention(**{name: extent}), 2, 0, 1 << 30, ()) == Plan(3, True)
    for extent in (8, 15, 24, 512):
        with pytest.raises(NotRecognised, match=f"extent {extent} is not a power of two from 16 to 256"):
            make_plan(attention(**{name: extent}), 2, 0, 1 << 30, ())


def test_stages_of_attention_fill_shared_memory() -> None:
    """128 queries and as many results of 64 halves are 16 KiB each; keys and values of a stage 16 KiB together."""
    kib, result = 1024, a_block(128, 64, loads=False)

    def plan(asked: int, stages: int, *stored: Any, short: int = 0) -> Plan:
        return make_plan(
            attention(), 2, asked, BARRIER_BYTES + (16 + 16 * len(stored) + 16 * stages) * kib - short, stored
        )

    assert [plan(asked, 5, result).stages for asked in (0, 1, 2, 4, 5, 6)] == [3, 1, 2, 4, 5, 5]
    assert (plan(9, 3, result).stages, plan(9, 3, result, short=1).stages) == (3, 2)
    assert plan(2, 2, result).in_query is None
    assert plan(2, 2, result, short=1) == plan(2, 1, result) == Plan(2, True, result)  # in the queries' place
    with pytest.raises(NotRecognised, match="two stages need 49152 bytes of shared memory"):
        plan(2, 1, result, short=1)
    other_box, other_type = a_block(64, 128, loads=False), a_block(128, 64, "bfloat16", loads=False)
    for other in (other_box, other_type, a_block(128, 64, loads=False, axes=(1, 0))):
        with pytest.raises(NotRecognised, match="two stages need 65536 bytes of shared memory"):
            plan(2, 1, other)
        assert plan(2, 1, other, result).in_query is result
    with pytest.raises(NotRecognised, match="two stages need 49152 bytes of shared memory"):
        plan(2, 2, short=1)


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
        found: Any = OrderedLoop(loop, (), ())  # type: ignore[arg-type]
        assert (live_registers(found, 4), live_registers(found, 8)) == (32 * most, 16 * most), seed


@pytest.mark.parametrize(
    ("width", "parts", "fast_math", "chosen"),
    [
        (128, 2, True, "lazy"), (128, 3, True, "lazy"), (128, 2, False, "late"), (128, 3, False, "late"),
        (64, 3, True, "lazy"), (64, 3, False, "each"), (64, 2, True, "each"), (256, 2, True, "each"),
    ],
)  # fmt: skip
def test_when_sums_are_rescaled(width: int, parts: int, fast_math: bool, chosen: str) -> None:
    assert rescaling(attention(width=width), parts, fast_math) == chosen


def test_attention_that_gluon_is_known_to_compute_faster() -> None:
    found = SimpleNamespace(**vars(attention()), rows=64)
    assert drawback(found, 1).startswith("blocks of 64 rows leave one consumer alone")  # type: ignore[arg-type]
    for name in ("columns", "depth", "width"):
        said = {extent: drawback(attention(**{name: extent}), 2) for extent in (32, 64, 128, 256)}
        assert (said[64], said[128], drawback(attention(**{name: 128}), 3)) == ("", "", "")
        assert said[32] == "a tile's extent 32 is not from 64 to 128"
        assert said[256] == "a tile's extent 256 is not from 64 to 128"


def test_loops_in_order_fill_a_multiprocessor_alone() -> None:
    assert ordered_drawback(OrderedPlan(2, 0, 1000), 1999) == ""
    assert ordered_drawback(OrderedPlan(2, 0, 1000), 2000) == "of blocks of 1000 bytes several run on a multiprocessor"
