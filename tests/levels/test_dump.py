"""A value of Triton's IR stored into a tensor: what is written into the text, and that it compiles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.levels.conftest import SCALE
from tiledsl.errors import TileError
from tiledsl.runtime.module import load_module

PRODUCT = """
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for start in range(0, n, B):
        k = start + tl.arange(0, B)
        total = tl.dot(tl.load(a + i[:, None] * n + k[None, :]), tl.load(b + k[:, None] * B + tl.arange(0, B)), total)
    top = tl.max(total, axis=1)
    tl.store(c + i[:, None] * B + tl.arange(0, B)[None, :], tl.where(total > top[:, None] * 0.5, total, 0.0))
"""
TARGETS = ("cuda:90", "hip:gfx942")


@pytest.fixture(scope="module", params=TARGETS)
def saved(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("product")
    product = load_module("product", PRODUCT, interpret=False).product
    types = ("*fp16:16", "*fp16:16", "*fp32:16", "i32:16")
    tiledsl.triton_kernel(product).save_levels(folder, *types, B=32, num_warps=4, target=request.param)
    return folder


def text_of(kernel: Any) -> str:
    return str(kernel.artifact.file.content)


def added(kernel: Any, value: str, block: Any) -> list[str]:
    """The lines of the text with the dump that the text without it does not have."""
    before = {line.strip() for line in text_of(kernel).split("\n")}
    text = text_of(kernel.dump(value, block=block))
    return [line.strip() for line in text.split("\n") if line.strip() not in before]


def test_the_text_of_a_dump(saved: Path) -> None:
    kernel = tiledsl.triton_kernel(saved, "ttir")
    (result,) = re.findall(r"(%\w+)(?::\d+)? = scf\.for", text_of(kernel))
    tile, pointers = "tensor<32x32xi32>", "tensor<32x32x!tt.ptr<f32>>"
    head, *lines = added(kernel, result, (2, 1))
    assert re.search(r"%n: i32 [^)]*.*, %dump: !tt\.ptr<f32>\) attributes", head)
    assert [re.sub(r"%dump_(\d+)", r"%\1", line) for line in lines] == [
        f"%0 = arith.constant dense<0> : {tile}",
        "%1 = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>",
        "%2 = tt.expand_dims %1 {axis = 1 : i32} : tensor<32xi32> -> tensor<32x1xi32>",
        f"%3 = tt.broadcast %2 : tensor<32x1xi32> -> {tile}",
        f"%4 = arith.constant dense<32> : {tile}",
        f"%5 = arith.muli %3, %4 : {tile}",
        f"%6 = arith.addi %0, %5 : {tile}",
        "%7 = tt.make_range {end = 32 : i32, start = 0 : i32} : tensor<32xi32>",
        "%8 = tt.expand_dims %7 {axis = 0 : i32} : tensor<32xi32> -> tensor<1x32xi32>",
        f"%9 = tt.broadcast %8 : tensor<1x32xi32> -> {tile}",
        f"%10 = arith.constant dense<1> : {tile}",
        f"%11 = arith.muli %9, %10 : {tile}",
        f"%12 = arith.addi %6, %11 : {tile}",
        f"%13 = tt.splat %dump : !tt.ptr<f32> -> {pointers}",
        f"%14 = tt.addptr %13, %12 : {pointers}, {tile}",
        "%15 = arith.constant 2 : i32",
        "%16 = tt.get_program_id x : i32",
        "%17 = arith.cmpi eq, %16, %15 : i32",
        "%18 = arith.constant 1 : i32",
        "%19 = tt.get_program_id y : i32",
        "%20 = arith.cmpi eq, %19, %18 : i32",
        "%21 = arith.andi %17, %20 : i1",
        "%22 = arith.constant 0 : i32",
        "%23 = tt.get_program_id z : i32",
        "%24 = arith.cmpi eq, %23, %22 : i32",
        "%25 = arith.andi %21, %24 : i1",
        "scf.if %25 {",
        f"tt.store %14, {result} : {pointers}",
        "}",
    ]


def test_values_of_all_blocks_follow_each_other(saved: Path) -> None:
    lines = added(tiledsl.triton_kernel(saved, "ttir"), "%n", None)[1:]
    assert [re.sub(r"%dump_(\d+)", r"%\1", line) for line in lines] == [
        "%0 = tt.get_program_id z : i32",
        "%1 = tt.get_program_id y : i32",
        "%2 = tt.get_num_programs y : i32",
        "%3 = arith.muli %0, %2 : i32",
        "%4 = arith.addi %3, %1 : i32",
        "%5 = tt.get_program_id x : i32",
        "%6 = tt.get_num_programs x : i32",
        "%7 = arith.muli %4, %6 : i32",
        "%8 = arith.addi %7, %5 : i32",
        "%9 = arith.constant 1 : i32",
        "%10 = arith.muli %8, %9 : i32",
        "%11 = tt.addptr %dump, %10 : !tt.ptr<i32>, i32",
        "tt.store %11, %n : !tt.ptr<i32>",
    ]


@pytest.mark.parametrize("level", ["ttir", "ttgir"])
def test_tiles_of_every_layout_compile(saved: Path, level: str) -> None:
    """The operands and the sum of a product, in the layouts of matrix cores, and a comparison and a row of them."""
    kernel = tiledsl.triton_kernel(saved, level)
    text = text_of(kernel)
    dot = next(line for line in text.split("\n") if "tt.dot" in line)
    sums, operands = dot.split()[0], re.findall(r"%\w+", dot)[1:3]
    compared = next(line.split()[0] for line in text.split("\n") if "arith.cmpf" in line and "x32xf32" in line)
    (top,) = re.findall(r'(%\w+) = "tt.reduce"', text)
    kinds = [(sums, "fp32", "32, 32"), *((each, "fp16", "32, 32") for each in operands), (compared, "i8", "32, 32")]
    for value, kind, shape in [*kinds, (top, "fp32", "32")][: 1 if level == "ttir" else None]:
        made = kernel.dump(value)
        assert made.remarks[-1].endswith(f"gets {value} of {saved / f'product.{level}'}: {kind} of ({shape})")
        assert str(made.arguments[-1]) == f"dump: *{kind}"
        assert made.resources.spills == 0 and made.name == "product"


def test_a_dump_is_refused(saved: Path) -> None:
    kernel = tiledsl.triton_kernel(saved, "ttir")
    text = text_of(kernel)
    pointer = next(line.split()[0] for line in text.split("\n") if "tt.splat %a" in line)
    inner = next(line.split()[0] for line in text.split("\n") if "arith.maxnum" in line)
    where = re.escape(str(saved / "product.ttir"))
    for value, block, message in (
        ("total", (0,), "'total' is no name of a value"),
        ("%totl", (0,), f"{where} has no value %totl"),
        (pointer, (0,), rf"{pointer} of {where} is a tensor<.*!tt.ptr<f16>>, not a number or a tile of numbers"),
        (inner, (0,), rf"{inner} of {where} is computed for two elements at a time, inside of a tt.reduce"),
        ("%n", (0, -1), r"block=\(0, -1\) is no place in a grid"),
        ("%n", (0, 0, 0, 0), "is no place in a grid, which has up to three numbers"),
    ):
        with pytest.raises(TileError, match=message):
            kernel.dump(value, block=block)
    with pytest.raises(TileError, match=r"product\.llir, which names no values"):
        tiledsl.triton_kernel(saved, "llir").dump("%n")
    with pytest.raises(TileError, match="runs from its source, which names no values"):
        tiledsl.triton_kernel(load_module("scale", SCALE, interpret=False).scale).dump("%n")


def test_a_second_dump_has_a_name_of_its_own(saved: Path) -> None:
    twice = tiledsl.triton_kernel(saved, "ttir").dump("%n").dump("%n", block=None)
    assert [each.name for each in twice.arguments][-2:] == ["dump", "dump2"]
    assert twice.resources.registers
