"""Rows that several blocks hold (wide_rows.py): blocks that run at once wait for each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
from benchmarks.programs import wide_rows
from benchmarks.rows import any_width

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("make", "program"),
    [
        (any_width.softmax_row, wide_rows.softmax),
        (any_width.layer_norm_row, wide_rows.layer_norm),
        (any_width.softmax_backward_row, wide_rows.softmax_gradient),
        (any_width.rms_norm_row, wide_rows.rms_norm),
        (any_width.rms_norm_backward_row, wide_rows.rms_norm_gradient),
        (any_width.layer_norm_backward_row, wide_rows.layer_norm_gradient),
    ],
)
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize(("lag", "blocks"), [(1, 3), (2, 12), (3, 60)])
def test_rows_in_three_pieces(make: Any, program: Any, lag: int, blocks: int, held: bool) -> None:
    M, N = 11, 2500  # the last piece is shorter
    row = make(M, N)
    inputs = row.inputs("cuda")
    function = tiledsl.jit(**{**program.options, "target": "cuda"})(program.function)
    config: dict[str, Any] = {"block_M": 2, "block_N": 1024, "blocks": blocks, "lag": lag, "threads": 128}
    if program is wide_rows.softmax:
        config = {"parts": 3, "block_N": 256, "blocks": blocks, "late": lag, "threads": 32}
    config["pass_configs"] = {"hold-tiles.enabled": held}
    made = function.kernel_for({"M": M, "N": N}, config)(*inputs)
    for found, wanted in zip([made] if torch.is_tensor(made) else made, row.reference(*inputs), strict=True):
        assert float((found.float() - wanted).norm() / wanted.norm()) < row.error
