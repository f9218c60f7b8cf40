"""The programs of examples/ (without attention) match torch at small ragged shapes, in the interpreter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.support import forked
from tests.support.example_modules import BASIC, EXAMPLES, load_example

# A second shape for each program: the smallest ones, or one that the tiles divide, so that masks vanish.
OTHER_SHAPES: dict[str, dict[str, Any]] = {
    "cast_fp8_per_token": {"M": 16, "N": 128, "block_M": 8},
    "cross_entropy": {"M": 4, "N": 128, "block_M": 2, "block_N": 64},
    "elementwise": {"M": 1, "N": 1, "block_M": 2, "block_N": 32},
    "fused_moe": {
        "M": 16,
        "D": 32,
        "F": 32,
        "experts": 2,
        "top_k": 1,
        "block_M": 16,
        "block_N": 32,
        "block_K": 32,
    },
    "gated_delta_net": {"batch": 2, "heads": 1, "length": 64, "dim": 16, "value_dim": 32, "chunk": 64},
    "gated_linear_attention": {"batch": 2, "heads": 1, "length": 64, "dim": 64, "value_dim": 32, "chunk": 64},
    "gemm_dynamic": {"N": 64, "K": 64, "block_M": 32, "block_N": 32, "block_K": 32, "rows": (32,)},
    "gemm_epilogue": {"M": 32, "N": 64, "K": 32, "block_M": 32, "block_N": 64, "block_K": 32},
    "gemm_fp4": {"M": 32, "N": 32, "K": 64, "block_M": 32, "block_N": 32, "block_K": 64},
    "gemm_fp8": {"M": 32, "N": 32, "K": 64, "block_M": 32, "block_N": 32, "block_K": 64},
    "gemm_fp8_blockscale": {"M": 32, "N": 128, "K": 256, "block_M": 32, "block_N": 128},
    "gemm_int4": {"M": 16, "N": 32, "K": 1024, "block_N": 32, "splits": 2},
    "gemm_int8_preshuffled": {"M": 16, "N": 32, "K": 32, "block_M": 16, "block_N": 16, "block_K": 32},
    "gemm_lazy": {"M": 64, "N": 32, "K": 64, "block_M": 32, "block_N": 32, "block_K": 32},
    "gemm_split_k": {"M": 32, "N": 32, "K": 128, "block_M": 32, "block_N": 32, "block_K": 32, "splits": 2},
    "gemm_w4a8": {"M": 20, "N": 16, "K": 256, "block_M": 32},
    "grouped_gemm": {"groups": 5, "total": 7, "N": 32, "K": 32, "block_M": 16, "block_N": 32, "block_K": 32},
    "histogram": {"N": 1024, "bins": 16, "block": 256},
    "kda_gate": {"tokens": 8, "heads": 1, "dim": 16, "block_T": 8},
    "kimi_delta_attention": {"batch": 2, "heads": 1, "length": 64, "dim": 64, "value_dim": 32, "chunk": 64},
    "layer_norm": {"M": 2, "N": 64, "block_M": 1},
    "linear_attention": {
        "batch": 2,
        "heads": 2,
        "groups": 2,
        "length": 64,
        "dim": 16,
        "value_dim": 16,
        "chunk": 32,
    },
    "linear_cross_entropy": {"M": 32, "N": 64, "K": 32, "block_M": 32, "block_N": 32, "block_K": 32},
    "online_softmax": {"M": 2, "N": 128, "block_M": 1, "block_N": 64},
    "radix_sort": {"M": 1, "N": 64, "bits": 4},
    "retention": {"batch": 2, "heads": 1, "length": 64, "dim": 16, "value_dim": 16, "block_M": 32, "block_N": 16},
    "rms_norm": {"M": 2, "N": 64, "block_M": 1},
    "rms_norm_threads": {"M": 2, "N": 256, "threads": 32},
    "rope": {"batch": 1, "length": 8, "heads": 4, "dim": 32, "block_S": 4, "block_H": 4},
    "route_top_1": {"M": 16, "N": 16, "K": 32, "block_M": 16, "block_K": 32},
    "softmax": {"M": 3, "N": 1, "block_M": 2},
    "swiglu": {"M": 4, "N": 128, "block_M": 2, "block_N": 64},
    "top_k": {"M": 8, "N": 8, "k": 8, "block_M": 8},
    "weight_dequant": {"M": 32, "N": 64, "block": 32},
}


def test_every_program_is_tested() -> None:
    programs = {path.stem for path in EXAMPLES.glob("[a-z]*.py")}
    others = {name for name in programs if name.startswith(("attention", "collectives", "quickstart", "small_model"))}
    assert programs - others == set(BASIC) == set(OTHER_SHAPES)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """These tests interpret, on machines with a GPU too; tests/gpu runs the programs there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # asked when an example is loaded
    with tiledsl.settings(target="interpret"):
        yield


@pytest.mark.parametrize("name", BASIC)
def test_matches_torch_at_a_ragged_shape(name: str) -> None:
    example = load_example(name)
    assert 0 <= example.main(**example.SMALL) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", BASIC)
def test_matches_torch_at_another_shape(name: str) -> None:
    assert 0 <= load_example(name).main(**OTHER_SHAPES[name]) < 0.1


@pytest.mark.parametrize("name", ["gemm_lazy", "grouped_gemm", "softmax", "layer_norm", "retention", "kda_gate"])
def test_one_wrong_element_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_example(name)
    right = example.reference

    def wrong(*arguments: Any) -> torch.Tensor:
        result: torch.Tensor = right(*arguments)
        result.view(-1)[-1] += 0.5  # the corner where ragged tiles end
        return result

    monkeypatch.setattr(example, "reference", wrong)
    with pytest.raises(AssertionError, match="1 / "):
        example.main(**OTHER_SHAPES[name])


def test_runs_as_a_script_from_any_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "CUDA_VISIBLE_DEVICES": ""}
    done = forked.run([EXAMPLES / "softmax.py", "M=5"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "softmax, 5 x 229: matches torch; interpreted on the CPU" in done.stdout
    assert not list(tmp_path.iterdir())


def test_arguments_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_example("gemm_dynamic")
    taken = []

    def main(*, N: int = 1, rows: tuple[int, ...] = (2,)) -> None:
        taken.append((N, rows))

    for arguments in ([], ["rows=7"], ["rows=7,8", "N=5"]):
        monkeypatch.setattr(sys, "argv", ["example.py", *arguments])
        example.run_script(main, {"N": 3})
    assert taken == [(3, (2,)), (3, (7,)), (5, (7, 8))]


@pytest.mark.parametrize("argument", ["width=5", "M=many", "M", "M=1,2", "M=-1"])
def test_an_unknown_argument_is_explained(argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_example("softmax")
    monkeypatch.setattr(sys, "argv", ["softmax.py", argument])
    with pytest.raises(SystemExit, match="where NAME is one of M, N, block_M"):
        example.run_script(example.main, example.SMALL)
