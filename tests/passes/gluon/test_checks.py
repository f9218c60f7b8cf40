"""Schedules that somebody has edited: each is refused with the rule that it breaks, or does what the first one did."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

import tiledsl
from tests.support import gluon_machine, turn_programs
from tests.support.schedule_edits import edits
from tiledsl.analysis.gluon.checks import RULES
from tiledsl.errors import TileError

LENGTHS = [2, 0, 1, 3, 5, 1, 0, 4]
FUNCTIONS = {
    "product": turn_programs.product,
    "scaled": turn_programs.scaled,
    "attention": turn_programs.weighted,
    "one tile": turn_programs.latent,
}


def compiled(name: str, rows: int = 128, lengths: list[int] = LENGTHS, **options: Any) -> tiledsl.Kernel:
    passes = {"select-emitter.backend": "gluon", **options}
    function = FUNCTIONS[name](len(lengths), max(lengths), 2, rows)
    kernel = tiledsl.compile(function, target="cuda:90", pass_configs=passes)
    assert "@gluon.jit" in kernel.source
    return kernel


def in_pairs() -> tiledsl.Kernel:
    program = turn_programs.scaled(4, 5, 3, 128, 5)
    return tiledsl.compile(program, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})


def resumed(ir: str) -> tiledsl.Kernel:
    return tiledsl.resume(ir, "schedule-loops", target="cuda:90")


def result(name: str, kernel: tiledsl.Kernel, lengths: list[int], rows: int) -> torch.Tensor:
    *given, out = turn_programs.inputs(FUNCTIONS[name], lengths, max(lengths), rows)
    gluon_machine.run_gluon(kernel.source, kernel.name, *given, out)
    return out


EDITED: dict[str, tuple[str, tiledsl.Kernel | None, list[int], int]] = {
    "product": ("product", None, LENGTHS, 128),
    "attention": ("attention", None, LENGTHS, 128),
    "one tile": ("one tile", None, LENGTHS, 64),
    "pairs": ("scaled", in_pairs(), [5] * 4, 128),
}


@pytest.mark.parametrize("case", EDITED)
def test_what_is_not_refused_is_right(case: str) -> None:
    name, kernel, lengths, rows = EDITED[case]
    kernel = kernel or compiled(name, rows)
    wanted = result(name, kernel, lengths, rows)
    rules: Counter[str] = Counter()
    accepted = 0
    for what, ir in edits(kernel.ir("triton")):
        try:
            edited = resumed(ir)
            edited.source
        except TileError as error:
            rules.update(rule for rule in RULES for note in error.notes if f"the rule {rule!r} of schedules" in note)
            continue
        accepted += 1
        assert torch.allclose(result(name, edited, lengths, rows), wanted, rtol=1e-3, atol=1e-3), what
    assert accepted >= 8 and len(rules) >= 5 and rules["rings"] > 1 and rules["tokens"], rules


LATE = "a turn late, when the next turn has computed its own"
BROKEN: dict[str, tuple[str, str, str, str, str]] = {
    "turns": ("attention", "runs = (false,)", "runs = (true,)", "it may have none", "write false"),
    "a loop more": ("attention", "runs = (false,)", "runs = (true, true)", "2 values, and there are 1 loops", ""),
    "order": ("attention", "{slot = 2}", "{stage = 1, slot = 0}", LATE, "write a slot for it before"),
    "rings": ("attention", 'ring = "v"', 'ring = "item"', "ring 'item' holds 64x64 float16 elsewhere", ""),
    "no ring": ("attention", ', ring = "v"', "", "the tile has no ring", 'write ring = "NAME"'),
    "tokens": ("product", "num_stages = 2", "num_stages = 1", "it is 1 deep", "write num_stages = 2"),
    "in flight": ("product", "in_flight = ((0,),)", "in_flight = ((1,),)", "value 1 of those that a loop carries", ""),
    "results": ("product", 'ring = "results"', 'ring = "item"', "has no place among none", 'write ring = "results"'),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_said_of_a_broken_rule(case: str) -> None:
    name, old, new, said, instead = BROKEN[case]
    ir = compiled(name).ir("triton")
    assert old in ir
    with pytest.raises(TileError) as raised:
        resumed(ir.replace(old, new)).source
    assert said in raised.value.message and raised.value.message.startswith(("gluon.", "scf.", "tensor.", "triton."))
    assert (new if case != "order" else "tensor.reduce %s") in raised.value.message  # the operation, as the text has it
    assert instead in "\n".join(map(str, raised.value.notes)) and "of schedules: " in str(raised.value.notes[0])
