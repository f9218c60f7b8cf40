"""examples/small_model.py: three operators match torch, the compiled model learns, and serves other batch sizes."""

from __future__ import annotations

import pytest
import torch

import tiledsl
from tests.support.example_modules import load_example


@pytest.mark.slow
def test_the_small_model_trains_and_serves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # asked when an example is loaded
    torch._dynamo.reset()
    with tiledsl.settings(target="interpret"):
        example = load_example("small_model")
        example.main(**example.SMALL)
    assert "served 5 sequences: 100% of the digits right" in capsys.readouterr().out
