"""Left operands that are made in registers of tiles which are loaded for them: words that hold small integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import kernel_of, program
from tests.support import gluon_machine, turn_programs
from tiledsl.analysis.gluon.schedule import _is_bitwise
from tiledsl.dialects import arith
from tiledsl.errors import TileError
from tiledsl.ir.kinds import of_kinds

LENGTHS = [2, 0, 1, 3, 5]
GLUON = {"select-emitter.backend": "gluon"}


def compiled(what: str = "", depth: int = 2, **options: Any) -> tiledsl.Kernel:
    program = turn_programs.from_words(len(LENGTHS), 5, depth, what, **options)
    return tiledsl.compile(program, target="cuda:90", pass_configs=GLUON)


def inputs(columns: int = 64, fields: int = 2) -> list[torch.Tensor]:
    """Integers and powers of two, whose products are exact."""
    torch.manual_seed(2)
    rows = 128 * len(LENGTHS)
    words = torch.randint(0, 1 << 16, (rows, 160), dtype=torch.int32).to(torch.uint16)
    tiles = torch.randint(-2, 3, (columns, 160 * fields)).half()
    scales = torch.randint(-1, 3, (5 * fields, rows)).half().exp2()
    return [words, tiles, scales, torch.tensor(LENGTHS, dtype=torch.int32)]


@pytest.mark.parametrize(
    "options", [{}, {"depth": 3}, {"columns": 256, "fields": 4}, {"columns": 128, "fields": 1}], ids=str
)
def test_words(options: dict[str, int]) -> None:
    kernel = compiled(**options)
    lines = [line.strip() for line in kernel.source.splitlines()]
    read = next(n for n, line in enumerate(lines) if line.startswith("words = "))
    columns, depth = options.get("columns", 64), options.get("depth", 2)
    assert lines[read - 1 : read + 3] == [
        "mbarrier.wait(words_full.index(stage), phase)",
        f"words = words_ring.index(stage * 2 + consumer).load(OPERAND_64_{columns})",
        "fence_async_shared()",
        "mbarrier.arrive(words_empty.index(stage), count=1)",
    ]
    assert f"words_ring = gl.allocate_shared_memory(gl.uint16, [{2 * depth}, 64, 32], W_tiles.layout)" in lines
    assert "C_buffer.index(consumer).permute((1, 0)).store(rounded)" in lines
    given = inputs(**{name: value for name, value in options.items() if name != "depth"})
    out = torch.full((columns, 128 * len(LENGTHS)), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(kernel.source, "from_words", *given, out)
    assert torch.equal(out, turn_programs.words_expected(*given))


BYTES: dict[str, Callable[[Any], Any]] = {
    "e2m1": lambda b: ((b << 4) & 0x80) | ((b & 7) << 2),
    "shift": lambda b: ((b >> 3) & 7) ^ 0x55,
    "neighbours": lambda b: (b & 0x70) | ((b & 0xF0) >> 5) | ((b << 7) & 0x80),
    "itself": lambda b: (b ^ (b >> 1)) & 0x77,
    "none": lambda b: (b << 0) & 0xF3,
}


@pytest.mark.parametrize(
    ("cast", "bitwise"),
    [("%s : int8", True), ("%l : int32", True), ("%s : float32", False), ("%f : int32", False), ("%b : int32", False),
     ("%s : bool", False)],
)  # fmt: skip
def test_casts_of_integers_keep_their_low_byte(cast: str, bitwise: bool) -> None:
    (op,) = of_kinds(list(kernel_of(program(f"%x = arith.cast {cast}")).walk()), arith.CastOp)
    assert _is_bitwise(op) is bitwise


def from_bytes(by_bits: Callable[[Any], Any]) -> Any:
    """C = W^T, W the numbers of float8 that have these bits."""

    @T.prim_func
    def from_bytes(
        W: T.Tensor((256, 64), "uint8"), B: T.Tensor((64, 64), "float8_e4m3fn"), C: T.Tensor((64, 256), "float16")
    ):
        with T.Kernel(2, threads=256) as bx:
            codes, weights = T.alloc_shared((128, 32), "uint8"), T.alloc_fragment((128, 32), "float8_e4m3fn")
            b, total = T.alloc_shared((64, 32), "float8_e4m3fn"), T.alloc_fragment((128, 64), "float32")
            T.clear(total)
            for turn in T.Pipelined(2, num_stages=2):
                T.copy(W[bx * 128, turn * 32], codes)
                T.copy(B[0, turn * 32], b)
                for i, j in T.Parallel(128, 32):
                    weights[i, j] = T.reinterpret(T.cast(by_bits(codes[i, j]), "uint8"), "float8_e4m3fn")
                T.gemm(weights, b, total, transpose_B=True)
            for j, i in T.Parallel(64, 128):
                C[j, bx * 128 + i] = total[i, j]

    return from_bytes


@pytest.mark.parametrize("name", BYTES)
def test_bytes(name: str) -> None:
    by_bits = BYTES[name]
    source = tiledsl.compile(from_bytes(by_bits), target="cuda:90", pass_configs=GLUON).source
    assert "_of_words(" in source and "_exchanged" not in source and ".to(gl.float8" not in source
    every = torch.arange(256, dtype=torch.int32)[:, None] + 37 * torch.arange(64, dtype=torch.int32)
    out = torch.full((64, 256), float("nan"), dtype=torch.float16)
    one = torch.eye(64).to(torch.float8_e4m3fn)
    gluon_machine.run_gluon(source, "from_bytes", (every % 256).to(torch.uint8), one, out)
    assert torch.equal(out.T, by_bits(every % 256).to(torch.uint8).view(torch.float8_e4m3fn).half())


@pytest.mark.parametrize(
    "by_bits",
    [lambda b: (b << 4) >> 6, lambda b: b + 1, lambda b: (b & 0x1FF) >> 1, lambda b: b >> 8, lambda b: (b << 8) | b],
)
def test_more_than_bytes(by_bits: Callable[[Any], Any]) -> None:
    kernel = tiledsl.compile(from_bytes(by_bits), target="cuda:90", pass_configs=GLUON)
    assert "@gluon.jit" not in kernel.source
    assert "is no conversion of float32 for it alone" in "\n".join(map(str, kernel.remarks))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("columns", "has the columns of no product"),
        ("elsewhere", "a tile that a left operand is computed from is used for something else"),
    ],
)
def test_refused(what: str, said: str) -> None:
    kernel = compiled(what)
    assert "@gluon.jit" not in kernel.source and said in "\n".join(map(str, kernel.remarks))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('ring = "words"', 'ring = "b"', "a tile that is read to registers shares its ring"),
        ("gluon.cluster\n", "gluon.cluster {stage = 1}\n", "a tile that is read to registers is read a turn late"),
    ],
)
def test_edited(old: str, new: str, said: str) -> None:
    ir = compiled().ir("triton")
    assert old in ir
    with pytest.raises(TileError, match=said):
        _ = tiledsl.resume(ir.replace(old, new, 1), "schedule-loops", target="cuda:90").source
