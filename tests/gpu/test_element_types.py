"""What is rewritten for an element type gives on the GPU what exact arithmetic gives; see tests/legality."""

from __future__ import annotations

import pytest

from tests.legality import test_numerics
from tests.legality.entries import ALL

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_numerics, "TARGET", "auto")
    monkeypatch.setattr(test_numerics, "BLOCKS", 64)  # Triton takes minutes for tiles of 65536 elements
    monkeypatch.setattr(test_numerics, "UNITS", 256)  # float32 functions are approximated in hardware


@pytest.mark.parametrize("dtype", ALL)
def test_elementwise(dtype: str) -> None:
    test_numerics.test_elementwise(dtype)


@pytest.mark.parametrize("dtype", ALL)
def test_casts(dtype: str) -> None:
    test_numerics.test_casts(dtype)


@pytest.mark.parametrize("dtype", ALL)
def test_reductions_and_scans(dtype: str) -> None:
    test_numerics.test_reductions_and_scans(dtype)


def test_products() -> None:
    test_numerics.test_products()
