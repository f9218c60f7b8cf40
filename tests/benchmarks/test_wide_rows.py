"""Rows that several blocks hold (benchmarks/programs/wide_rows.py): what is proved of them without a GPU."""

from __future__ import annotations

import pytest

import tiledsl
from benchmarks.programs import wide_rows

NAMES = ["softmax", "rms_norm", "layer_norm", "rms_norm_gradient", "layer_norm_gradient"]


@pytest.mark.parametrize("name", NAMES)
def test_bounds_races_and_reads_are_proved(name: str) -> None:
    """All but whether each pass keeps the meaning: the executor runs one block after the other, and these wait."""
    program = getattr(wide_rows, name)
    function = tiledsl.jit(**{**program.options, "target": "cuda:90"})(program.function)
    kernel = function.kernel_for({"M": 2048, "N": 65536}, {"block_M": 2, "block_N": 2048, "blocks": 264})
    checks = kernel.verify(seconds=20).checks
    assert {"bounds", "race", "read"} == {each.kind for each in checks if each.status == "proved"}
    assert {(each.status, each.subject) for each in checks if each.status != "proved"} == {("unknown", "elaborate")}


def test_groups_and_turns() -> None:
    assert wide_rows.walk(2048, 65536, 1, 4096, 528) == (16, 33, 63)
    assert wide_rows.walk(11, 2500, 2, 1024, 3) == (3, 1, 6)
    assert wide_rows.walk(11, 2500, 2, 1024, 1) == (3, 1, 6)  # a group at least
