"""What files say of themselves, and what must not be launched with what: by hand, no compiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiledsl.errors import TileError
from tiledsl.levels.metadata import expected_bytes, expected_types, read, same_parameters
from tiledsl.levels.record import Argument, encoded, parsed, refusal

TTGIR = """module attributes {"ttg.num-warps" = 8 : i32, ttg.target = "cuda:90"} {
  tt.func public @both(%x: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("x"(#loc)), %d: !tt.tensordesc<64xf16, #a>
      loc("d, (e)"(#loc)), %n: i32) attributes {noinline = false} {
  tt.func private @other(%a: i32)
"""
LLIR = """
define ptx_kernel void @both(ptr addrspace(1) %0, ptr byval([128 x i8]) align 64 "x" %1, i1 %2, half %3, i64 %4) #0 {
attributes #0 = { "nvvm.reqntid"="64,1,1" }"""
PTX = """.target sm_100a
.visible .entry both(
	.param .u64 .ptr .global .align 1 both_param_0,
	.param .align 64 .b8 both_param_1[128],
	.param .b16 both_param_2
)
.reqntid 96
	.file	1 "/cache/modules/0123456789abcdef/both.py"
"""


def test_what_texts_say() -> None:
    facts = read("ttgir", TTGIR)
    assert (facts.name, facts.warps, facts.target) == ("both", 8, "cuda:90")
    assert facts.types == ("!tt.ptr<f32>", "!tt.tensordesc<64xf16, #a>", "i32")
    assert facts.attributes == {0: {"tt.divisibility": 16}, 1: {}, 2: {}} and facts.parameter_bytes is None
    facts = read("llir", LLIR)
    assert (facts.name, facts.warps, facts.parameter_bytes, facts.types) == ("both", 2, (8, 128, 1, 2, 8), None)
    facts = read("ptx", PTX)
    assert (facts.name, facts.warps, facts.target, facts.parameter_bytes) == ("both", 3, "cuda:100", (8, 128, 2))
    assert facts.sources == {"0123456789abcdef"}
    with pytest.raises(ValueError, match="it has 2 kernels, not one"):
        read("ptx", PTX + PTX)


def test_what_a_cubin_says(saved: Path) -> None:
    binary = (saved / "scaled_kernel.cubin").read_bytes()
    found = read("cubin", binary)
    assert (found.name, found.warps, found.target) == ("scaled_kernel", 4, "cuda:90")
    assert found.parameter_bytes == read("ptx", (saved / "scaled_kernel.ptx").read_text()).parameter_bytes
    assert found.sources == read("ttir", (saved / "scaled_kernel.ttir").read_text()).sources
    for torn in (binary[:40], binary[: len(binary) // 2], b"\x7fELF" + bytes(100), b""):
        with pytest.raises(ValueError, match="it is"):
            read("cubin", torn)


def test_what_is_expected() -> None:
    arguments = [
        Argument("x", "*bf16"),
        Argument("B", "constexpr", 3),
        Argument("d", "tensordesc<fp16[64, 32]>"),
        Argument("u", "u8"),
    ]
    types = ["!tt.ptr<bf16", "!tt.tensordesc<", "i32", "i32", "i64", "i64", "i8"]
    assert expected_types(arguments) == list(zip([0, 2, 2, 2, 2, 2, 3], types))
    assert expected_bytes(arguments) is None and expected_bytes([*arguments[:2], arguments[3]]) == (8, 1)
    assert same_parameters((8, 4, 8, 8), (8, 4)) and same_parameters((8, 4), (8, 4))
    for found in ((8, 4, 8, 8, 8), (8, 8), (8,), (8, 4, 4)):
        assert not same_parameters(found, (8, 4))


@pytest.mark.parametrize(
    ("recorded", "launched", "reason"),
    [
        (Argument("n", "i32"), Argument("n", "i32", None, {"tt.divisibility": 16}), ""),
        (Argument("n", "i64"), Argument("n", "i32"), ""),
        (Argument("n", "i32"), Argument("n", "constexpr", 1), ""),
        (Argument("n", "constexpr", 1), Argument("n", "constexpr", 1), ""),
        (Argument("n", "i32"), Argument("n", "i64"), "type i32, and the call has i64"),
        (Argument("n", "i32"), Argument("n", "constexpr", 2), "the constant 2"),
        (Argument("n", "i32"), Argument("n", "constexpr", True), "the constant True"),
        (Argument("n", "fp32"), Argument("n", "constexpr", 1), "the constant 1"),
        (Argument("n", "constexpr", 1), Argument("n", "i32"), "n=1, and the call has an argument of type i32"),
        (Argument("n", "constexpr", True), Argument("n", "constexpr", 1), "n=True, and the call has 1"),
        (Argument("n", "i32", None, {"tt.divisibility": 16}), Argument("n", "constexpr", 1), "a multiple of 16"),
        (Argument("x", "*fp32", None, {"tt.pointer_range": 32}), Argument("x", "*fp32"), "with tt.pointer_range = 32"),
        (Argument("x", "*fp32"), Argument("y", "*fp32"), "the arguments x, and the call has y"),
    ],
)
def test_refusals(recorded: Argument, launched: Argument, reason: str) -> None:
    found = refusal([recorded], [launched])
    assert found == reason if not reason else reason in found


def test_constants_as_json() -> None:
    values = {"plain": 1, "list": [1.5, None, (True, "a")], "nan": float("nan"), "infinity": float("-inf")}
    for value in values.values():
        assert json.loads(json.dumps(encoded(value), allow_nan=False)) == encoded(value)
    assert encoded(float("-inf")) == {"float": "-inf"} and encoded((True, "a")) == [True, "a"]


def test_records_that_make_no_sense() -> None:
    good = {"name": "k", "target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "arguments": []}
    assert parsed(json.dumps(good), "file").arguments == () and parsed('{"name": "k"}', "file").arguments is None
    record = parsed(json.dumps({**good, "shared": 5, "files": {"ptx": "00"}}), "file")
    assert parsed(record.text(), "file").text() == record.text() and record.metadata["shared"] == 5
    for wrong in (
        "[]", "{", "{}", '{"name": "../k"}',
        '{"name": "k", "arguments": [1]}', '{"name": "k", "arguments": [{"name": 1, "type": "i32"}]}',
        '{"name": "k", "kernel_signature": "((("}', '{"name": "k", "kernel_signature": "((1, 2, 3),)"}',
        '{"name": "k", "parameter_bytes": ["x"]}', '{"name": "k", "target": {"backend": "cuda"}}',
        '{"name": "k", "kernel_signature": "((\'x\', \'i32\', \'Z\'),)"}', '{"name": "k", "files": 3}',
    ):  # fmt: skip
        with pytest.raises(TileError, match="file does not describe a kernel"):
            parsed(wrong, "file")
