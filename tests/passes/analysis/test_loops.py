from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.loops import trip_count
from tiledsl.dialects import scf


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("%c0, %c5, %c2", 3),
        ("%c-3, %c0, %c1", 3),
        ("%c2, %c2, %c1", 0),
        ("%c5, %c0, %c1", 0),
        ("%c5, %c0, %c-2", 3),
        ("%c0, %m, %c1", None),
        ("%m, %c5, %c1", None),
        ("%c0, %c5, %m", None),
        ("%c0, %c5, %c0", None),
    ],
)
def test_trip_count(bounds: str, expected: int | None) -> None:
    body = f"%y = scf.for {bounds}[%c9] : int32 (%i: int32, %x: int32) {{ scf.yield [%x] }}\ntile.store %y, %N[%bx]"
    (loop,) = [op for op in kernel_of(program(body)).walk() if isinstance(op, scf.ForOp)]
    assert trip_count(loop) == expected
