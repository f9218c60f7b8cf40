"""Divisions of a product's inner dimension."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledsl
from tiledsl.autotuner import split_k


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ((384, 4, 128), (2, 256, 128)),
        ((1000, 3, 128), (3, 384, 128)),
        ((4096, 4, 64), (4, 1024, 64)),
        ((48, 1, 128), (1, 64, 32)),
        ((8, 4, 64), (1, 16, 16)),
    ],
)
def test_known_divisions(request_: Any, expected: Any) -> None:
    assert split_k(*request_) == expected


@given(st.integers(1, 20000), st.integers(1, 64), st.sampled_from([16, 32, 64, 128, 256]))
def test_every_division_is_legal(K: int, splits: int, block_K: int) -> None:
    found = split_k(K, splits, block_K)
    assert found.splits * found.part >= K > (found.splits - 1) * found.part  # all of it, and no part is empty
    assert found.part % found.block_K == 0 and 16 <= found.block_K <= block_K
    assert split_k(K, found.splits, found.block_K) == found  # a legal one stays as it is


@pytest.mark.parametrize("wrong", [(0, 1, 16), (64, 0, 16), (64, 1, 48), (64, 1.5, 16)])
def test_mistakes(wrong: Any) -> None:
    with pytest.raises(tiledsl.TileError, match="split_k: "):
        split_k(*wrong)
