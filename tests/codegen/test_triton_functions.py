"""The sources of tuned kernels of Triton: compiled by both Tritons, whatever the kernels refer to."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tests.autotune.triton_programs import scale_rows
from tiledsl.kernels.triton_function import TritonFunction
from tiledsl.kernels.triton_text import NotStandalone, standalone
from tiledsl.runtime.target import Target

KIND = tl.float16
EPS = tl.constexpr(1e-6)


@triton.jit(noinline=True)
def next_one(n):
    return n + 1


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


other = types.ModuleType("other")
other.least = larger  # type: ignore[attr-defined]
other.LIMIT = tl.constexpr(4)  # type: ignore[attr-defined]
alias = larger


@triton.jit(do_not_specialize=["n"])
def everything(x, out, n, scale, mode: tl.constexpr, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = libdevice.rsqrt(tl.load(x + at, at < n).to(tl.float32) + EPS) * scale
    if mode == "abs":
        value = alias(value, -value)
    value = other.least(value, other.LIMIT) * tl.cdiv(next_one(n), 4)
    tl.store(out + at, value.to(KIND), at < n)


def program(**changes: Any) -> Any:
    values = {"x": torch.empty(100, dtype=torch.bfloat16), "out": torch.empty(100, dtype=torch.float16)}
    values |= {"n": 100, "scale": 0.5, "mode": "abs", **changes}
    return TritonFunction(everything, (2,)).kernel_for(values, {"num_warps": 2, "num_stages": 1}, Target("cuda", 90))


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_what_a_kernel_refers_to_comes_along(
    compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    modules = {"everything": program().module, "one": program(n=1, mode="", scale=1e-3).module}
    described = {"a": torch.empty(50, 40), "out": torch.empty(50, 40), "factor": 3.0, "M": 50, "N": 40}
    rows = TritonFunction(scale_rows, (4,), descriptors={"a": (16, "BN"), "out": ("BM", "BN")})
    modules["rows"] = rows.kernel_for(described, {"BM": 16, "BN": 32}, Target("cuda", 90)).module
    for name, error, ttgir in compile_modules(modules, **options):
        assert not error, error
        assert ("ttng.async_tma_copy_local_to_global" if name == "rows" else "tt.store") in ttgir
    first, second, third = (module.kernels[0] for module in modules.values())
    assert third.signature["a"] == third.signature["out"] == "tensordesc<fp32[16, 32]>"
    assert first.signature == {"x": "*bf16", "out": "*fp16", "n": "i32", "scale": "fp32"}
    assert first.constexprs == {"mode": "abs", "BLOCK": 64} and first.divisible_by_16 == ("x", "out")
    assert second.signature["n"] == "i32" and (second.num_warps, second.num_stages) == (2, 1)


def test_the_text_names_each_thing_once() -> None:
    text = standalone(everything)
    lines = ["KIND = _tl.dtype('fp16')", "EPS = _tl.constexpr(1e-06)", "alias = larger", "other.least = larger"]
    assert all(
        text.count(f"{line}\n") == 1
        for line in (*lines, "def larger(a, b):", "@_triton.jit(noinline=True)\ndef next_one(n):")
    )
    assert text.count("@_triton.jit(do_not_specialize=['n'])\ndef everything(") == 1
    assert "import triton.language.extra.libdevice as libdevice\n" in text


def made(factor: Any, helper: Any) -> Any:
    @triton.jit
    def scaled(x):
        tl.store(x, helper(tl.load(x)) * factor)

    return scaled


def helper_of(factor: Any) -> Any:
    @triton.jit
    def helper(x):
        return x * factor

    return helper


def test_a_name_that_means_two_things_is_refused() -> None:
    assert standalone(made(tl.constexpr(2), helper_of(tl.constexpr(2)))).count("factor = ") == 1
    with pytest.raises(NotStandalone, match="factor means different things in the functions that it calls"):
        standalone(made(tl.constexpr(2), helper_of(tl.constexpr(3))))
