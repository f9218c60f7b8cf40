"""T.atomic_load gives a block one value: of a load Triton makes several, which may see different ones.

Layer norm of 4 rows by blocks of 4096 columns was wrong by 0.02 on an H200: its tile of 16 words was loaded twice, in
two layouts and both ahead of the turn, and the words that were looked at for zeros were not those that were summed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from benchmarks.programs import wide_rows
from tests.support.gluon_kernels import compile_kernels


def copied(dtype: str, order: str, size: int = 16) -> Any:
    @T.prim_func
    def copied(X: T.Tensor((size,), dtype), Y: T.Tensor((size,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                Y[i] = T.atomic_load(X[i], memory_order=order)

    return copied


@pytest.mark.parametrize(
    ("dtype", "order", "text"),
    [
        ("int32", "relaxed", "tl.atomic_or({}, tl.full((), 0, tl.int32), sem='relaxed')"),
        ("uint64", "acquire", "tl.atomic_or({}, tl.full((), 0, tl.uint64), sem='acquire')"),
        ("float32", "relaxed",
         "tl.atomic_or(tl.cast({}, tl.pointer_type(tl.int32), bitcast=True), tl.full((), 0, tl.int32), sem='relaxed')"
         ".to(tl.float32, bitcast=True)"),
        ("float64", "seq_cst",
         "tl.atomic_or(tl.cast({}, tl.pointer_type(tl.int64), bitcast=True), tl.full((), 0, tl.int64), sem='acq_rel')"
         ".to(tl.float64, bitcast=True)"),
        ("float16", "acquire",
         "tl.atomic_add({}, tl.full((), -32768, tl.int16).to(tl.float16, bitcast=True), sem='acquire')"),
        ("float16", "relaxed", "tl.load({}, volatile=True)"),
        ("int8", "relaxed", "tl.load({}, volatile=True)"),
    ],
)  # fmt: skip
def test_the_text(dtype: str, order: str, text: str) -> None:
    source = tiledsl.compile(copied(dtype, order), target="cuda:90").source
    assert text.format("X + tl.arange(0, 16)") in source.replace('"', "'")


@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "float64", "float16", "int8"])
def test_bits_stay_and_what_lies_outside_is_zero(dtype: str) -> None:
    bits = {"int32": torch.int32, "uint64": torch.int64, "float32": torch.int32, "float64": torch.int64}
    given = torch.tensor([1, 0, -1, -(1 << 30), 3, 1 << 30, 0x7F80_0001, 5, 6, 7, 8, 9, 10], dtype=torch.int64)
    x = given.to(bits.get(dtype, torch.int8 if dtype == "int8" else torch.int16)).view(getattr(torch, dtype))
    kernel = tiledsl.compile(copied(dtype, "relaxed", 13), out_idx=[1], target="interpret")
    before = x.clone()
    y = kernel(x)
    size = x.element_size()
    assert y.view(torch.uint8).tolist() == before.view(torch.uint8).tolist() == x.view(torch.uint8).tolist(), size


def test_masked_elements_are_zero() -> None:
    @T.prim_func
    def program(X: T.Tensor((5,), "int32"), Y: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                Y[i] = T.atomic_load(X[i], memory_order="relaxed") + 1

    kernel = tiledsl.compile(program, out_idx=[1], target="interpret")
    assert re.search(r"tl\.where\(.*, tl\.atomic_or\(.*, mask=.*\), 0\)", kernel.source)
    assert kernel(torch.arange(5, dtype=torch.int32)).tolist() == [1, 2, 3, 4, 5, 1, 1, 1]


@pytest.mark.parametrize("version", ["installed", "3.6"])
def test_triton_reads_a_tile_of_words_where_the_program_does(
    version: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = sys.executable if version == "installed" else request.getfixturevalue("triton36")
    program = wide_rows.layer_norm
    sizes = {"block_M": 4, "block_N": 512, "blocks": 264, "threads": 256, "lag": 1, "num_stages": 2}
    function = tiledsl.jit(**{**program.options, "target": "cuda:90"})(program.function)
    kernel = function.kernel_for({"M": 8192, "N": 2048}, {**sizes, "pass_configs": {"hold-tiles.enabled": False}})
    made = compile_kernels({"norm": kernel}, python, tmp_path, 1)["norm"]
    assert "ld.volatile" not in made["ptx"] and made["ptx"].count("relaxed.or.b64") == 2  # before the loop, and in it
