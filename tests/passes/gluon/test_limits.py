"""What Gluon's consumers can hold and compute: rows, registers, and slices of a body by its uses."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.gluon.plan import CONSUMER_REGISTERS, PRODUCER_REGISTERS, query_in_registers
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
        check_rows(body, 64, (32,), set())
    else:
        with pytest.raises(NotRecognised, match=f"tensor<{shape}xfloat32> is not a tile of the block's 64 rows"):
            check_rows(body, 64, (32,), set())


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


def test_tiles_that_need_more_than_nine_tenths_of_the_registers() -> None:
    with pytest.raises(NotRecognised, match="tiles of 128 and 256 columns need 224 registers a thread of 216"):
        query_in_registers(128, 64, 256, 1)


def test_what_depends_on_one_operand_of_several() -> None:
    body = """
    %start = arith.add %s, %c1 : int32
    %both = arith.mul %start, %bx : int32
    %later = arith.sub %c1, %both : int32
    %other = arith.mul %bx, %s : int32"""
    ops = {result.name: op for op in kernel_of(program(body)).walk() for result in op.results}
    among = {op for name, op in ops.items() if name != "start"}
    assert dependents([ops["start"]], among) == {ops["both"], ops["later"]}
