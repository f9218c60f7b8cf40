"""Rows that several blocks hold (benchmarks/programs/wide_rows.py): what is proved of them without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
from benchmarks.programs import wide_rows
from tiledsl.kernels.kernel import Kernel

NAMES = ["softmax", "softmax_gradient", "rms_norm", "layer_norm", "rms_norm_gradient", "layer_norm_gradient"]


def kernel(name: str, M: int, N: int, **config: Any) -> Kernel:
    program = getattr(wide_rows, name)
    function = tiledsl.jit(**{**program.options, "target": "cuda:90"})(program.function)
    if name == "softmax":
        config = {"parts": 1, **{each: value for each, value in config.items() if each not in ("block_M", "lag")}}
    return function.kernel_for({"M": M, "N": N}, config)


@pytest.mark.parametrize("name", NAMES)
def test_bounds_races_and_reads_are_proved(name: str) -> None:
    """All but whether each pass keeps the meaning: the executor runs one block after the other, and these wait."""
    if name == "softmax":
        made = kernel(name, 16, 2048, parts=2, block_N=256, blocks=4, threads=32)
    else:
        made = kernel(name, 2048, 65536, block_M=2, block_N=4096, blocks=264)
    checks = made.verify(seconds=20).checks
    assert {"bounds", "race", "read"} == {each.kind for each in checks if each.status == "proved"}
    assert {(each.status, each.subject) for each in checks if each.status != "proved"} == {("unknown", "elaborate")}


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_one_piece_keep_their_meaning(name: str) -> None:
    checks = kernel(name, 7, 200, block_M=2, block_N=256, blocks=2, threads=32).verify(seconds=20).checks
    assert {each.status for each in checks} == {"proved", "tested"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("M", "N", "lag"), [(2048, 65536, 2), (512, 262144, 1)])
def test_pieces_stay_in_shared_memory(name: str, M: int, N: int, lag: int) -> None:
    if name == "softmax":
        source = kernel(name, M, N, block_N=2048, parts=8, blocks=264, late=lag, num_stages=4, threads=128).source
        assert f"[{3 + lag + N // 16384}, 256, 8]" in source
        return
    made = kernel(name, M, N, block_M=4, block_N=2048, blocks=264, lag=lag, num_stages=4)
    tensors = 2 if "gradient" in name else 1
    assert made.source.count("gl.allocate_shared_memory") == tensors
    assert made.source.count(f"[{4 + lag}, 4, 2048]") == tensors


def test_warps_have_the_words_of_their_own_rows() -> None:
    configs = {"hold-tiles.along_rows": True}
    source = kernel(
        "rms_norm", 2048, 65536, block_M=8, block_N=1024, blocks=264, threads=128, pass_configs=configs
    ).source
    assert "_of_8x1024 = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))" in source
    assert "_of_8x64 = gl.constexpr(gl.BlockedLayout([2, 1], [1, 32], [4, 1], [1, 0]))" in source
    assert source.count("gl.convert_layout(gl.arange") == 1


def test_sums_of_a_gradient_are_exchanged_at_once() -> None:
    source = kernel("layer_norm_gradient", 2048, 65536, block_M=2, block_N=2048, blocks=528, threads=128).source
    assert source.count("total, turned = gl.reduce((") == 2


def test_groups_and_turns() -> None:
    assert wide_rows.walk(2048, 65536, 1, 4096, 528, 2) == (16, 33, 63, 33, 66)
    assert wide_rows.walk(11, 2500, 2, 1024, 6, 1) == (3, 2, 3, 4, 4)
    assert wide_rows.walk(11, 2500, 2, 1024, 1, 3) == (3, 1, 6, 2, 6)  # a group at least
