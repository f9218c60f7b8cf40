"""Small integers that become 16-bit floats by their bits: what emitted text gives for every word, and what compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support import gluon_machine
from tests.support.example_modules import load_example


def converted(words: str, dtype: str, shift: int, mask: int, count: int) -> Any:
    @T.prim_func
    def converted(W: T.Tensor((count,), words), Y: T.Tensor((count,), dtype)):
        with T.Kernel(count // 256, threads=64) as bx:
            for i in T.Parallel(256):
                Y[bx * 256 + i] = T.cast((W[bx * 256 + i] >> shift) & mask, dtype) - 8

    return converted


@pytest.mark.parametrize(("words", "dtype", "shift", "mask"), [
    ("uint16", "float16", 0, 15), ("uint16", "float16", 4, 15), ("uint16", "float16", 12, 15),
    ("uint16", "float16", 3, 1023), ("uint8", "float16", 4, 15), ("uint8", "float16", 0, 255),
    ("uint8", "float16", 1, 3),
])  # fmt: skip
def test_every_word(words: str, dtype: str, shift: int, mask: int) -> None:
    bits = 16 if words == "uint16" else 8
    every = torch.arange(1 << bits, dtype=torch.int32)
    source = tiledsl.compile(converted(words, dtype, shift, mask, 1 << bits), target="cuda:90").source
    assert "_field_" in source and ".to(tl.float16)" not in source
    given, out = every.to(getattr(torch, words)), torch.full((1 << bits,), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(source, "converted", given, out)
    assert torch.equal(out, ((every >> shift & mask) - 8).half())


@pytest.mark.parametrize(
    "change", [("0xf000f0", "0xf000f1"), ("0x64006400", "0x64016401"), ("shr.b32 t, $1, 8", "shr.b32 t, $1, 7")]
)
def test_a_mistake_in_the_text(change: tuple[str, str]) -> None:
    source = tiledsl.compile(converted("uint16", "float16", 12, 15, 1 << 16), target="cuda:90").source
    assert change[0] in source
    every = torch.arange(1 << 16, dtype=torch.int32)
    out = torch.zeros(1 << 16, dtype=torch.float16)
    gluon_machine.run_gluon(source.replace(*change), "converted", every.to(torch.uint16), out)
    assert not torch.equal(out, ((every >> 12) - 8).half())


def test_no_conversion_is_left_in_the_machine_code() -> None:
    example = load_example("gemm_int4")
    kernel = tiledsl.jit(example.matmul_int4.function, target="cuda:90").compile(16, 64, 1024)
    assert "I2F" not in kernel.asm["sass"] and kernel.asm["ptx"].count("lop3.b32") >= 64
    assert kernel.resources.spills == 0


def many(*shape: int, **options: Any) -> tiledsl.Kernel:
    function = load_example("gemm_int4").matmul_int4_many.function
    return tiledsl.jit(function, target="cuda:90").compile(*shape, **options)


def test_gluon_where_it_is_known_to_be_faster() -> None:
    assert "@gluon.jit" in many(512, 256, 1024).source and "@gluon.jit" in many(512, 256, 1024, block_M=128).source
    kernel = many(512, 256, 1024, block_M=64)
    assert "@gluon.jit" not in kernel.source and "128 or 256 columns of 16 bits" in "\n".join(map(str, kernel.remarks))
    assert "@gluon.jit" not in many(512, 256, 1024, block_N=64).source


def test_registers_feed_the_products() -> None:
    kernel = many(512, 256, 1024)
    assert "gl.inline_asm_elementwise" in kernel.source and "tl." not in kernel.source.split("@gluon.jit", 1)[1]
    assert "I2F" not in kernel.asm["sass"] and kernel.resources.spills == 0
    assert kernel.asm["sass"].count("HGMMA.64x256x16.F32 R") == 2 * 4 * 2  # consumers, fields, steps of 16 of 32


@pytest.mark.parametrize("options", [{}, {"block_M": 128, "depth": 64, "num_stages": 3}], ids=str)
def test_many_rows(options: dict[str, int]) -> None:
    example = load_example("gemm_int4")
    torch.manual_seed(0)
    a, (q, scales) = torch.randn(300, 1024).half(), example.random_weights(384, 1024)
    out = torch.full((300, 384), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(many(300, 384, 1024, **options).source, "matmul_int4_many", a, example.pack(q), scales, out)
    wide = (q.half() - 8) * scales.repeat_interleave(example.GROUP, 0).T
    torch.testing.assert_close(out.float(), a.float() @ wide.float().T, rtol=2e-3, atol=4e-3)


def test_certificate() -> None:
    example = load_example("gemm_int4")
    kernel = tiledsl.jit(example.matmul_int4.function, target="cuda:90").compile(16, 64, 512)
    assert not kernel.verify().failed
    assert not many(512, 256, 512).verify().failed
