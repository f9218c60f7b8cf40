"""What several tests on a GPU need."""

from __future__ import annotations

import pytest


@pytest.fixture
def hopper() -> None:
    """Skips where the GPU is no sm_90, which descriptors and the emitted Gluon are for."""
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
