"""Of benchmarks/split_tiles.py: each kernel is divided, and padded without the pass."""

from __future__ import annotations

import pytest

from benchmarks.split_tiles import CASES, compiled


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_divided_by_the_pass_alone(name: str) -> None:
    case = CASES[name]()
    sources = {way: compiled(case, way, "cuda:90").source for way in ("on", "off")}
    assert {way: "mask=in_" in source for way, source in sources.items()} == {"on": False, "off": True}
