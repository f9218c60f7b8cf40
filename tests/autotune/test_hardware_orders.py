"""What is read of Triton's IR to tell in which order a kernel's instructions add."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tiledsl.autotuner.verifying import hardware_orders as module
from tiledsl.digests import short_digest

LAYOUTS = """
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [2, 16], warpsPerCTA = [8, 1], order = [1, 0]}>
#blocked1 = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [32], warpsPerCTA = [2], order = [0]}>
#blocked2 = #ttg.blocked<{sizePerThread = [1, 2, 4], threadsPerWarp = [2, 4, 4], warpsPerCTA = [8, 2, 1]}>
#linear = #ttg.linear<{register = [[0, 1]], lane = [[1, 0]], warp = [], block = []}>
#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 4], instrShape = [16, 8]}>
#mma1 = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 1, warpsPerCTA = [4, 1], instrShape = [16, 64, 32]}>
#smem = #ttg.shared_memory
"""
BLOCKED = ("ttg.blocked", "{sizePerThread = [1, 4], threadsPerWarp = [2, 16], warpsPerCTA = [8, 1], order = [1, 0]}")
LINEAR = ("ttg.linear", "{register = [[0, 1]], lane = [[1, 0]], warp = [], block = []}")


def orders(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "short_digest", lambda text: text)
    return ast.literal_eval(module.hardware_orders(LAYOUTS + text))


def dot(operation: str, result: str, dtype: str = "f16", flags: str = "") -> str:
    sides = f"tensor<64x64x{dtype}, #blocked> * tensor<64x64x{dtype}, #linear>"
    return f"    %d = {operation} %a, %b, %c{flags} : {sides} -> {result} loc(#loc7)\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (dot("tt.dot", "tensor<64x64xf32, #mma>"), ("tt.dot", [("mma", "2", "0", [])], ["f16", "f32"], [])),
        (
            dot("ttng.warp_group_dot", "tensor<64x64xf32, #mma1>", "bf16"),
            ("ttng.warp_group_dot", [("mma", "3", "1", ["32"])], ["bf16", "f32"], []),
        ),
        (dot("tt.dot", "tensor<64x64xf32, #blocked>"), ("tt.dot", ["ttg.blocked"], ["f16", "f32"], [])),
        (dot("tt.dot", "tensor<64x64xf32, #linear>"), ("tt.dot", [LINEAR], ["f16", "f32"], [])),
        (dot("tt.dot", "tensor<64x64xf32, #unknown>"), ("tt.dot", [], ["f16", "f32"], [])),
        (
            dot("tt.dot", "tensor<64x64xf32, #ttg.slice<{dim = 1, parent = #mma}>>"),
            ("tt.dot", [("mma", "2", "0", [])], ["f16", "f32"], []),
        ),
        (
            dot("tt.dot", "tensor<64x64xf32, #mma>", flags=", inputPrecision = tf32"),
            ("tt.dot", [("mma", "2", "0", [])], ["f16", "f32"], ["inputPrecision = tf32"]),
        ),
        (
            dot("tt.dot", "tensor<64x64xf32, #mma>", flags=" {maxNumImpreciseAcc = 32 : i32}"),
            ("tt.dot", [("mma", "2", "0", [])], ["f16", "f32"], ["maxNumImpreciseAcc = 32"]),
        ),
        (
            dot("tt.dot_scaled", "tensor<64x64xf32, #mma1>"),
            ("tt.dot_scaled", [("mma", "3", "1", ["32"])], ["f16", "f32"], []),
        ),
        (
            "    %d = ttng.tc_gen5_mma %a, %b, %c : !ttg.memdesc<64x64xf16, #shared, #smem>, "
            "!ttg.memdesc<64x64xf32, #linear, #smem> loc(#x)\n",
            ("ttng.tc_gen5_mma", [LINEAR], ["f16", "f32"], []),
        ),
    ],
)
def test_of_products_the_instruction_counts(line: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = orders(line, monkeypatch)
    assert found == [expected]
    assert orders(line + line, monkeypatch) == found  # once
    assert (
        orders(
            line.replace("dot ", "dot_wait ").replace("dot_scaled", "dot_other").replace("mma %", "wait %"), monkeypatch
        )
        == []
    )


def reduce(
    source: str = "tensor<4x512xf32, #blocked>",
    axis: int = 1,
    combine: str = "addf",
    kind: str = "reduce",
    extra: str = "",
) -> str:
    return f"""    %s = "tt.{kind}"(%x) <{{axis = {axis} : i32{extra}}}> ({{
    ^bb0(%p: f32 loc(#l1), %q: f32 loc(#l2)):
      %r = arith.{combine} %p, %q : f32 loc(#l3)
      tt.{kind}.return %r : f32 loc(#l4)
    }}) : ({source}) -> tensor<4xf32, #ttg.slice<{{dim = 1, parent = #blocked}}>> loc(#l5)
"""


@pytest.mark.parametrize(
    ("source", "axis", "where"),
    [
        ("tensor<4x512xf32, #blocked>", 1, ("blocked", 512, "4", "16", "1")),
        ("tensor<4x512xf32, #blocked>", 0, ("blocked", 4, "1", "2", "8")),
        ("tensor<256xf32, #blocked1>", 0, ("blocked", 256, "8", "32", "2")),
        ("tensor<64x32xf32, #mma>", 0, ("mma", 64, ["2"], ["16", "8"], "2")),
        ("tensor<64x32xf32, #mma1>", 1, ("mma", 32, ["3"], ["16", "64", "32"], "1")),
        ("tensor<64x32xf32, #linear>", 1, ("64x32x", *LINEAR)),
        # a slice lacks a dimension, and those behind it are one further
        ("tensor<512xf32, #ttg.slice<{dim = 0, parent = #blocked}>>", 0, ("blocked", 512, "4", "16", "1")),
        ("tensor<4xf32, #ttg.slice<{dim = 1, parent = #blocked}>>", 0, ("blocked", 4, "1", "2", "8")),
        ("tensor<8x16xf32, #ttg.slice<{dim = 0, parent = #blocked2}>>", 0, ("blocked", 8, "2", "4", "2")),
        ("tensor<8x16xf32, #ttg.slice<{dim = 1, parent = #blocked2}>>", 0, ("blocked", 8, "1", "2", "8")),
        (
            "tensor<8xf32, #ttg.slice<{dim = 0, parent = #ttg.slice<{dim = 1, parent = #blocked2}>}>>",
            0,
            ("blocked", 8, "4", "4", "1"),
        ),
        ("tensor<4xf32, #ttg.slice<{dim = 5, parent = #gone}>>", 0, ("4x", "", "#gone")),
    ],
)
def test_of_sums_it_counts_how_a_dimension_lies(
    source: str, axis: int, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert orders(reduce(source, axis), monkeypatch) == [
        ("tt.reduce", f"axis = {axis} : i32", ["arith.addf"], "f32", where)
    ]


def test_scans_and_what_is_exact_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("blocked", 512, "4", "16", "1")
    scan = reduce(kind="scan", combine="maxnumf", extra=", reverse = true")
    expected = ("tt.scan", "axis = 1 : i32, reverse = true", ["arith.maxnumf"], "f32", where)
    assert orders(scan, monkeypatch) == [expected]
    for combine in ("maxnumf", "minimumf", "andi", "ori", "xori", "addi"):
        assert orders(reduce(combine=combine), monkeypatch) == []
    both = reduce().replace("      tt.reduce", "      %t = arith.maxnumf %r, %q : f32 loc(#l6)\n      tt.reduce")
    assert orders(both + scan, monkeypatch) == [
        ("tt.reduce", "axis = 1 : i32", ["arith.addf", "arith.maxnumf"], "f32", where),
        expected,
    ]
    (unknown,) = orders(reduce("!tt.ptr<f32>"), monkeypatch)
    assert unknown[3] == "" and unknown[4].strip().startswith("}) : (!tt.ptr<f32>) -> tensor<4xf32")


def test_orders_are_a_digest() -> None:
    assert module.hardware_orders(LAYOUTS) == short_digest("[]")
