"""Whatever the order of producer and consumers, emitted Gluon ends, and does the same; mistakes in it do not pass."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
from tests.support import gluon_machine, turn_programs
from tests.support.gluon_mutants import mutants
from tiledsl.certificate.algebra import ExecutorError

GLUON = {"select-emitter.backend": "gluon"}
Run = tuple[str, str, list[Any], torch.Tensor]  # a text, its host function, arguments, and the result's place


def turns_of(name: str, lengths: list[int], depth: int) -> Run:
    program, rows, options = PROGRAMS[name]
    turns = max(*lengths, 1)
    made = tiledsl.compile(
        program(len(lengths), turns, depth, rows), target="cuda:90", pass_configs={**GLUON, **options}
    )
    assert "@gluon.jit" in made.source, made.remarks
    *given, out = turn_programs.inputs(program, lengths, turns, rows)
    return made.source, made.name, given, out


def result(run: Run, source: str = "", seed: int | None = None) -> torch.Tensor:
    text, entry, given, out = run
    out = out.clone()
    choose = None if seed is None else random.Random(seed).choice
    gluon_machine.run_gluon(source or text, entry, *given, out, choose=choose)
    return out


PROGRAMS: dict[str, tuple[Callable[..., Any], int, dict[str, Any]]] = {
    "product": (turn_programs.product, 128, {}),
    "product of one consumer": (turn_programs.product, 64, {}),
    "scaled": (turn_programs.scaled, 128, {"select-emitter.overlap": False}),
    "attention": (turn_programs.weighted, 128, {}),
    "attention of one consumer": (turn_programs.weighted, 64, {}),
    "attention with one tile": (turn_programs.latent, 128, {}),
    "attention with one tile, rows shared": (turn_programs.latent, 64, {}),
}


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_turn_one_turn_and_more_than_the_ring_is_deep(name: str, depth: int) -> None:
    """A block of each length, and each after others in a program: one begins where another has left the rings. Public
    reports: hangs at one turn (tilelang#2566), phases that do not go on from block to block (tilelang#2674)."""
    lengths = [*range(depth + 3), 0, *reversed(range(depth + 3)), 1, 1, 0, depth, 0]
    run = turns_of(name, lengths, depth)
    made = result(run)
    assert torch.allclose(made, turn_programs.want(PROGRAMS[name][0], *run[2]), rtol=1e-3, atol=1e-3)
    assert torch.equal(result(run, seed=depth), made)


@pytest.mark.parametrize("turns", [1, 2, 3, 6])
def test_two_products_in_flight(turns: int) -> None:
    """A loop whose turns are known takes them in pairs; the last one may be alone."""
    program = turn_programs.scaled(4, turns, 3, 128, turns)
    made = tiledsl.compile(program, target="cuda:90", pass_configs=GLUON)
    assert ("for pair in" in made.source) == (turns > 1)
    *given, out = turn_programs.inputs(turn_programs.scaled, [turns] * 4, turns)
    run = made.source, made.name, given, out
    assert torch.equal(result(run), turn_programs.want(turn_programs.scaled, *given))
    assert torch.equal(result(run, seed=turns), result(run))


FATAL = re.compile(r"lost: (mbarrier\.arrive|mbarrier\.expect|mbarrier\.wait\(\w*full|_load_box|fence|.*_advance\()")


def outcome(run: Run, source: str, made: torch.Tensor) -> str:
    """What is said of a text: the error, "another result", or nothing."""
    try:
        return "" if torch.equal(result(run, source), made) else "another result"
    except ExecutorError as error:
        return str(error)


def survivors(name: str, every: int) -> tuple[int, list[str]]:
    """How many texts with mistakes there are, and which pass. What passes does the same in any order."""
    run = turns_of(name, [2, 0, 1, 3, 5, 1, 0, 4], 2)
    made = result(run)
    texts = list(mutants(run[0]))[::every]
    passing = [(what, text) for what, text in texts if not outcome(run, text, made)]
    for what, text in passing:
        for seed in range(2):
            assert torch.equal(result(run, text, seed), made), what
    return len(texts), [what for what, _ in passing]


@pytest.mark.parametrize("name", ["product", "attention with one tile, rows shared"])
def test_mistakes_in_the_text_are_found(name: str) -> None:
    number, passing = survivors(name, 3)
    assert number > 20 and len(passing) < number / 8, passing
    assert not [what for what in passing if FATAL.search(what)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_mistakes_in_the_text_are_found(name: str) -> None:
    number, passing = survivors(name, 1)
    assert number > 60 and len(passing) < number / 8, passing
    assert not [what for what in passing if FATAL.search(what)]
