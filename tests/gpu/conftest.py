"""What several tests on a GPU need."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def hopper() -> None:
    """Skips where the GPU is no sm_90, which descriptors and the emitted Gluon are for."""
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")


@pytest.fixture
def tuned_on_gpu(cache_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is tuned runs on the GPU, and neither tiledsl nor Triton remembers anything."""
    monkeypatch.setenv("TILEDSL_TARGET", "cuda")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
