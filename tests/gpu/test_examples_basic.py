"""The programs of examples/ (without attention) match torch at real shapes, on a GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.example_modules import BASIC, load_example

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def float8_where_needed(name: str) -> None:
    if "fp8" in name and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("float8 needs compute capability 8.9")


@pytest.mark.parametrize("name", BASIC)
def test_matches_torch_at_its_real_shape(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = load_example(name).main()
    said = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{said.strip()} (largest error {error:.3g})")
    assert 0 <= error < 1
    assert "the speed of eager torch" in said


@pytest.mark.parametrize("name", BASIC)
def test_matches_torch_at_a_ragged_shape(name: str) -> None:
    example = load_example(name)
    assert 0 <= example.main(**example.SMALL) < 0.1
