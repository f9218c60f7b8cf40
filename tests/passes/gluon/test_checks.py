"""Schedules that somebody has edited: each is refused with the rule that it breaks, or does what the first one did."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
from tests.support import gluon_machine, tile_loops, turn_programs
from tests.support.example_modules import load_example
from tests.support.schedule_edits import edits
from tiledsl.analysis.gluon.checks import RULES
from tiledsl.errors import TileError

LENGTHS = [2, 0, 1, 3, 5, 1, 0, 4]
PROGRAMS: dict[str, Callable[[], Any]] = {
    "product": lambda: turn_programs.product(8, 5, 2),
    "pairs of products": lambda: turn_programs.scaled(8, 5, 3, 128, 5),
    "attention": lambda: turn_programs.weighted(8, 5, 2),
    "attention, three deep": lambda: turn_programs.weighted(8, 5, 3, 64),
    "attention with one tile": lambda: turn_programs.latent(8, 5, 2),
    "attention with one tile, rows shared": lambda: turn_programs.latent(8, 5, 2, 64),
    "attention in parts": lambda: turn_programs.in_parts(8, 5, 2),
    "two sums": tile_loops.summed,
    "groups take turns": lambda: turn_programs.weighted(8, 5, 2, 64, width=128),
    "groups take turns, one tile": lambda: turn_programs.latent(8, 5, 2, 64),
    "gathered rows": lambda: turn_programs.gathered(8, 5, 2),
    "gathered rows, groups take turns": lambda: turn_programs.gathered(8, 5, 2, 64),
    "chunk scan": tile_loops.scan,
    "loop in a loop": tile_loops.grouped,
    "carried state": tile_loops.carried,
    "decayed state": tile_loops.decayed,
    "chunk scans of any lengths": lambda: turn_programs.scan(8, 5, 2),
    "loops of any lengths in a loop": lambda: turn_programs.nested(8, 5, 2),
    "tiles held differently long": lambda: turn_programs.twice(8, 5, 2),
    "gradients": lambda: gradients(False),
    "causal gradients": lambda: gradients(True),
}


def gradients(causal: bool) -> Any:
    return load_example("attention_backward").gradients_at_once.function(1, 2, 1, 192, 256, 64, causal)


def compiled(name: str) -> tiledsl.Kernel:
    consumers = "alternate" if "take turns" in name else "auto"
    configs = {"select-emitter.backend": "gluon", "select-emitter.consumers": consumers}
    kernel = tiledsl.compile(PROGRAMS[name](), target="cuda:90", pass_configs=configs)
    assert "@gluon.jit" in kernel.source
    return kernel


def resumed(ir: str) -> tiledsl.Kernel:
    return tiledsl.resume(ir, "schedule-loops", target="cuda:90")


def results(kernel: tiledsl.Kernel) -> list[torch.Tensor]:
    """What a kernel leaves in its tensors."""
    torch.manual_seed(0)
    given = [
        torch.tensor(LENGTHS, dtype=torch.int32)
        if each.dtype == "int32"
        else torch.randn(tuple(map(int, each.shape))).to(getattr(torch, each.dtype))
        for each in kernel.params
    ]
    gluon_machine.run_gluon(kernel.source, kernel.name, *given)
    return given


def refused_or_right(name: str, every: int) -> tuple[int, Counter[str]]:
    """Of every so-many-th edit: how many are accepted, and do what the schedule did; and the rules of the others."""
    kernel = compiled(name)
    wanted = results(kernel)
    rules: Counter[str] = Counter()
    accepted = 0
    for what, ir in list(edits(kernel.ir("triton")))[::every]:
        try:
            edited = resumed(ir)
            edited.source
        except TileError as error:
            rules.update(rule for rule in RULES for note in error.notes if f"the rule {rule!r} of schedules" in note)
            continue
        accepted += 1
        for got, want in zip(results(edited), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2, equal_nan=True, msg=what)
    return accepted, rules


@pytest.mark.parametrize("name", ["product", "pairs of products", "attention", "two sums", "groups take turns"])
def test_what_is_not_refused_is_right(name: str) -> None:
    accepted, rules = refused_or_right(name, 2)
    assert accepted >= 5 and len(rules) >= 3, rules


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_not_refused_of_all_edits_is_right(name: str) -> None:
    accepted, rules = refused_or_right(name, 1)
    assert accepted >= 9 and len(rules) >= 3 and rules["rings"], rules


@pytest.mark.parametrize("name", ["attention", "attention in parts", "tiles held differently long"])
def test_turns_of_any_number(name: str) -> None:
    kernel = compiled(name)
    edited = resumed(kernel.ir("triton").replace("gluon.schedule {", "gluon.schedule {in_turns = true, "))
    assert "mbarrier.arrive(order" in edited.source and "order" not in kernel.source
    for got, want in zip(results(edited), results(kernel), strict=True):
        assert torch.equal(got.nan_to_num(), want.nan_to_num())


LATE = "a turn late, when the next turn has computed its own"
BROKEN: dict[str, tuple[str, str, str, str, str]] = {
    "turns": ("attention", "runs = (false,)", "runs = (true,)", "it may have none", "write false"),
    "a loop more": ("attention", "runs = (false,)", "runs = (true, true)", "2 values, and there are 1 loops", ""),
    "turns of one": (
        "attention with one tile, rows shared",
        "runs = (false,)}",
        "runs = (false,), in_turns = true}",
        "there are no consumers that have the same turns",
        "write in_turns = false",
    ),
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


SUMS = "alternate = ((2,), (3,))"
ONE_GROUPS = "it is computed of a tile that one group alone has, and both need it"
NOT_ALTERNATING: dict[str, tuple[str, str, str]] = {
    "turns one by one": (", unroll = 2", "", "where there are 2 and loops have unroll = 2: 2 groups, 0"),
    "nobody's sums": (f", {SUMS}", "", "groups alternate where there are 2 and loops have unroll = 2: 2 groups, 2"),
    "one sum for both": (SUMS, "alternate = ((2,), (2,))", "need sums of their own, and have [[2], [2]]"),
    "a group without sums": (SUMS, "alternate = ((2, 3), ())", "need sums of their own, and have [[2, 3], []]"),
    "three groups": (SUMS, "alternate = ((2,), (3,), (0,))", "need sums of their own, and have [[2], [3], [0]]"),
    "no sum": (SUMS, "alternate = ((0,), (3,))", "value 0 of those that the loop carries is no sum of products"),
    "no value": (SUMS, "alternate = ((2,), (9,))", "value 9 of those that the loop carries is no sum of products"),
    "weights in a sum": ("gluon.rescale %acc_1, %19 {skip = true}", "arith.mul %acc_1, %s_1", ONE_GROUPS),
    "scores in a sum": ("gluon.rescale %acc_1, %19 {skip = true}", "arith.mul %acc_1, %s", ONE_GROUPS),
    "the other's sum": ("gluon.rescale %acc_1,", "gluon.rescale %acc_64_1,", "of a sum that one group alone has"),
    "both sums": ("arith.mul %acc_64, %inverse_1", "arith.mul %acc_64, %acc", "computed of the sums of both groups"),
    "no first product": ("tensor.dot %q, %k_t, %5", "tensor.dot %q, %k_t, %acc_1", "a turn begins with no product"),
    "a first product of carried rows": (
        "%s = tensor.dot %q, %k_t, %5",
        "%h = tensor.reshape %highest_2 : tensor<64x1xfloat32>\n%b = tensor.broadcast %h : tensor<64x64xfloat32>\n"
        "%s = tensor.dot %q, %k_t, %b",
        "a turn begins with no product that needs nothing of other turns",
    ),
    "transposed weights": (
        "%acc_3 = tensor.dot %weights,",
        "%w = tensor.transpose %weights {permutation = (1, 0)} : tensor<64x64xfloat16>\n%acc_3 = tensor.dot %w,",
        "a product's left operand does not tell that the first products of its turn are done",
    ),
    "one ring for both": ('ring = "v_64"', 'ring = "v"', "a tile is read for the sums of both groups"),
    "a tile read by threads": (
        "%top_2 =", "%v_2 = arith.add %v, %v : tensor<64x64xfloat16>\n%top_2 =", "by something else than products"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_ALTERNATING)
def test_groups_that_cannot_take_turns(case: str) -> None:
    old, new, said = NOT_ALTERNATING[case]
    ir = compiled("groups take turns").ir("triton")
    assert old in ir
    with pytest.raises(TileError, match=re.escape(said)) as raised:
        resumed(ir.replace(old, new)).source
    assert "the rule 'alternate' of schedules" in str(raised.value.notes[0])
