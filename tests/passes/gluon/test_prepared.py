"""Left operands that are made in registers of tiles which are loaded for them: words that hold small integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
from tests.support import gluon_machine, turn_programs
from tiledsl.errors import TileError

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
    assert lines[read - 1 : read + 2] == [
        "mbarrier.wait(words_full.index(stage), phase)",
        f"words = words_ring.index(stage * 2 + consumer).load(OPERAND_64_{columns})",
        "mbarrier.arrive(words_empty.index(stage), count=1)",
    ]
    assert f"words_ring = gl.allocate_shared_memory(gl.uint16, [{2 * depth}, 64, 32], W_tiles.layout)" in lines
    assert "C_buffer.index(consumer).permute((1, 0)).store(rounded)" in lines
    given = inputs(**{name: value for name, value in options.items() if name != "depth"})
    out = torch.full((columns, 128 * len(LENGTHS)), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(kernel.source, "from_words", *given, out)
    assert torch.equal(out, turn_programs.words_expected(*given))


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
