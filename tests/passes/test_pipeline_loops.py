"""pipeline-loops: which tiles are loaded once, and depths of loops."""

from __future__ import annotations

import pytest

from tests.support.programs import gemm
from tiledsl.dialects import scf, triton
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.passes import default_pipeline
from tiledsl.runtime.target import Target

HINTS = {"pipeline-loops.streamed": "evict_first", "pipeline-loops.reused": "evict_last"}


def lowered(rows: int, columns: int, **options: int | str) -> Program:
    program = Program(gemm(rows, columns, 64, 16, 16, 16), Target("cuda", 90))
    PassManager(default_pipeline(options)).run(program)
    return program


def hints(program: Program) -> list[str]:
    return [op.eviction for op in program.root.walk() if isinstance(op, triton.LoadOp)]


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (16, 64, ["evict_last", "evict_first"]),  # one row of blocks: each tile of B is loaded once, A's by all
        (64, 16, ["evict_first", "evict_last"]),
        (64, 64, ["evict_last", "evict_last"]),
        (16, 16, ["evict_first", "evict_first"]),
    ],
)
def test_what_is_loaded_once(rows: int, columns: int, expected: list[str]) -> None:
    assert hints(lowered(rows, columns, **HINTS)) == expected
    assert hints(lowered(rows, columns)) == ["", ""]


def test_one_kind_only() -> None:
    assert hints(lowered(16, 64, **{"pipeline-loops.streamed": "evict_first"})) == ["", "evict_first"]


def test_depth() -> None:
    for stages, expected in ((0, 2), (5, 5)):
        program = lowered(64, 64, **{"pipeline-loops.stages": stages})
        assert [op.num_stages for op in program.root.walk() if isinstance(op, scf.ForOp)] == [expected]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("streamed", "first", "pipeline-loops.streamed is 'first'; it must be '' or 'evict_first' or 'evict_last'"),
        ("stages", -1, "pipeline-loops.stages is -1"),
    ],
)
def test_wrong_options(option: str, value: int | str, message: str) -> None:
    with pytest.raises(TileError) as error:
        lowered(64, 64, **{f"pipeline-loops.{option}": value})
    assert message in str(error.value)
