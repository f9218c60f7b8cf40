"""Which options a kernel's emitter does not use, and what is said of them."""

from __future__ import annotations

import logging

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.dialects.tile import KernelOp
from tiledsl.passes.map_grid import MapGrid
from tiledsl.passes.pipeline_loops import PipelineLoops
from tiledsl.passes.unused_options import changed, remark_unused


def test_options_that_differ_from_their_defaults() -> None:
    assert changed(MapGrid(), "persistent", "group_m") == {}
    assert changed(MapGrid(persistent=3, group_m=2), "persistent") == {"map-grid.persistent": 3}
    assert changed(MapGrid(persistent=0, flatten=False), "flatten", "persistent", "group_m") == {
        "map-grid.flatten": False,
        "map-grid.persistent": 0,
    }


@pytest.mark.parametrize(
    ("option", "in_gluon", "remark"),
    [
        (
            "map-grid.persistent", True,
            "map-grid.persistent=7 has no effect in Gluon, where select-emitter.persistent says it; "
            'it needs select-emitter.backend="triton"',
        ),
        (
            "kernel.num_ctas", True,
            "kernel.num_ctas=7 has no effect in Gluon, where blocks form no clusters; "
            'it needs select-emitter.backend="triton"',
        ),
        (
            "select-emitter.rescale", True,
            "select-emitter.rescale=7 has no effect in Gluon, for a loop without a softmax"
        ),
        (
            "select-emitter.rescale", False,
            "select-emitter.rescale=7 has no effect in Triton, where the accumulator is rescaled in each step; "
            'it needs select-emitter.backend="gluon" and a kernel of that form',
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_them(
    option: str, in_gluon: bool, remark: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the kernel, and once in the log."""
    monkeypatch.setattr("tiledsl.logs._noted", set())
    kernel = kernel_of(program(""))
    assert isinstance(kernel, KernelOp)
    with caplog.at_level(logging.INFO, "tiledsl"):
        remark_unused(kernel, {option: 7}, in_gluon)
        remark_unused(kernel, {option: 7}, in_gluon)
    assert set(kernel.remarks) == {remark}
    assert [record.getMessage() for record in caplog.records] == [remark]


def test_gluon_is_what_is_meant_by_itself() -> None:
    kernel = kernel_of(program(""))
    assert isinstance(kernel, KernelOp)
    remark_unused(kernel, changed(PipelineLoops(stages=5), "stages"))
    (remark,) = kernel.remarks
    assert remark.startswith("pipeline-loops.stages=5 has no effect in Gluon, where select-emitter.stages is")
