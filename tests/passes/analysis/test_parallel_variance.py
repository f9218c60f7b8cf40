"""Along which threads and points a local buffer's values vary."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.dialects import tile

EACH = "tile.parallel {extents = (4,)} (%j: int32) {"


@pytest.mark.parametrize(
    ("body", "varies"),
    [
        (f"{EACH} tile.store %c1.0, %a[%j] }}", False),
        (f"{EACH} %x = tile.load %A[%j, %j] : float32 tile.store %x, %a[%j] }}", False),
        (f"{EACH} %x = tile.load %A[%tx, %j] : float32 tile.store %x, %a[%j] }}", True),
        ("tile.store %c1.0, %a[%c2]", False),
        ("%x = tile.load %A[%tx, %c2] : float32 tile.store %x, %a[%c2]", True),
        ("%i = arith.floormod %tx, %c4 : int32 tile.store %c1.0, %a[%i]", True),  # each writes another one of its own
        # what was stored before stays, where points store the same in all threads
        (f"%x = tile.load %A[%tx, %c2] : float32 tile.store %x, %a[%c2] {EACH} tile.store %c1.0, %a[%j] }}", True),
        (f"{EACH} tile.store %c1.0, %a[%j] }} %x = tile.load %A[%tx, %c2] : float32 tile.store %x, %a[%c2]", True),
        ("%o = tile.atomic %c1.0, %a[%c2] {kind = \"add\"} : float32", True),
    ],
)  # fmt: skip
def test_of_the_array_of_a_thread(body: str, varies: bool) -> None:
    text = f"""%a = tile.alloc : buffer<4*float32, local>
        tile.parallel {{extents = (8,), lockstep = true}} (%tx: int32) {{ {body}
          %y = tile.load %a[%c0] : float32 tile.store %y, %B[%tx, %c0] }}"""
    ops = list(kernel_of(program(text)).walk())
    (buffer,) = [op.out for op in ops if isinstance(op, tile.AllocOp)]
    variance = Variance(next(op for op in ops if isinstance(op, tile.ParallelOp)))
    assert bool(variance.of(buffer) & variance.threads) is varies
    (read,) = [op.out for op in ops if isinstance(op, tile.LoadOp) and op.out.name == "y"]
    assert bool(variance.of(read) & variance.threads) is varies
