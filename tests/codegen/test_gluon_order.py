"""Whatever the order of producer and consumers, emitted Gluon ends, and does the same; mistakes in it do not pass."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
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
    "product of two places": (turn_programs.of_two_places, 128, {}),
    "product in a branch": (turn_programs.in_a_branch, 128, {}),
    "scaled": (turn_programs.scaled, 128, {"select-emitter.overlap": False}),
    "attention": (turn_programs.weighted, 128, {}),
    "attention of one consumer": (turn_programs.weighted, 64, {}),
    "attention of one group": (turn_programs.weighted, 128, {"select-emitter.consumers": "one"}),
    "attention with one tile": (turn_programs.latent, 128, {}),
    "attention with one tile, rows shared": (turn_programs.latent, 64, {}),
    "attention in parts": (turn_programs.in_parts, 128, {}),
    "attention in parts with one tile, rows shared": (turn_programs.latent_in_parts, 64, {}),
    "two products into a sum": (turn_programs.scan, 128, {}),
    "tiles held differently long": (turn_programs.twice, 128, {}),
    "a loop in a loop": (turn_programs.nested, 128, {}),
    "product, nothing in flight": (turn_programs.product, 128, {"schedule-loops.in_flight": 0}),
    "attention, not skewed": (turn_programs.weighted, 128, {"schedule-loops.skew": False}),
    "attention by one group": (turn_programs.weighted, 128, {"select-emitter.consumers": "one"}),
    "attention by groups apart": (turn_programs.weighted, 128, {"select-emitter.consumers": "apart"}),
    "two products into a sum, apart": (turn_programs.scan, 128, {"select-emitter.consumers": "apart"}),
    "attention, groups take turns": (turn_programs.weighted, 64, {"select-emitter.consumers": "alternate"}),
    "attention with one tile, groups take turns": (turn_programs.latent, 64, {"select-emitter.consumers": "alternate"}),
    "gathered rows, groups take turns": (turn_programs.gathered, 64, {"select-emitter.consumers": "alternate"}),
    "two products into a sum, not skewed": (turn_programs.scan, 128, {"schedule-loops.skew": False}),
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


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 6, 9])
def test_two_products_in_flight(turns: int) -> None:
    """A loop whose turns are known takes four at a time, and at last those that are left."""
    program = turn_programs.scaled(4, turns, 3, 128, turns)
    made = tiledsl.compile(program, target="cuda:90", pass_configs=GLUON)
    assert ("for four in" in made.source) == (turns >= 4) and ("_1 = warpgroup_mma(" in made.source) == (turns > 1)
    *given, out = turn_programs.inputs(turn_programs.scaled, [turns] * 4, turns)
    run = made.source, made.name, given, out
    assert torch.equal(result(run), turn_programs.want(turn_programs.scaled, *given))
    assert torch.equal(result(run, seed=turns), result(run))


# What hung or raced in public: a program, how many turns each block has, and the depth that is asked for.
PUBLIC: dict[str, tuple[str, list[int], int]] = {
    "tilelang#2566: a loop of one turn, pipelined": ("product", [1] * 7, 3),
    "tilelang#2566: a loop of one turn, not pipelined": ("attention", [1] * 7, 1),
    "tilelang#2613: a tile for both groups, not pipelined": ("product", [4, 7, 3], 1),
    "tilelang#2674: turns that do not fill the ring, block after block": ("attention", [3, 5, 1, 2, 3, 7, 1], 2),
}


@pytest.mark.parametrize("case", PUBLIC)
def test_what_hung_or_raced_in_public(case: str) -> None:
    name, lengths, depth = PUBLIC[case]
    run = turns_of(name, lengths, depth)
    wanted = turn_programs.want(PROGRAMS[name][0], *run[2])
    for seed in (None, 0, 1, 2):
        assert torch.allclose(result(run, seed=seed), wanted, rtol=1e-3, atol=1e-3)


@T.prim_func
def matrix_times_vector(
    X: T.Tensor((64,), "float16"), W: T.Tensor((64, 512), "float16"), Y: T.Tensor((512,), "float32")
):
    """tilelang#2566 as it was found in a program: one turn, a tile by TMA and a row by threads, no product of tiles."""
    with T.Kernel(2, threads=256) as bx:
        w, x = T.alloc_shared((64, 256), "float16"), T.alloc_shared((64,), "float16")
        parts, total = T.alloc_fragment((64, 256), "float32"), T.alloc_fragment((256,), "float32")
        for k in T.Pipelined(1, num_stages=1):
            T.copy(W[k * 64, bx * 256], w)
            T.copy(X[k * 64], x)
            for i, j in T.Parallel(64, 256):
                parts[i, j] = T.cast(w[i, j], "float32") * T.cast(x[i], "float32")
            T.reduce_sum(parts, total, dim=0)
        T.copy(total, Y[bx * 256])


def rows_and_columns(rows: int) -> Any:
    """tilelang#2567: as in attention's backward, sums that threads load in each turn, of lengths that are no multiple
    of anything."""

    @T.prim_func
    def rows_and_columns(
        Q: T.Tensor((rows, 64), "float16"),
        K: T.Tensor((128, 64), "float16"),
        lse: T.Tensor((rows,), "float32"),
        delta: T.Tensor((rows,), "float32"),
        D: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(2, threads=256) as bx:
            q, k = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
            s, acc = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
            weights = T.alloc_fragment((64, 64), "float16")
            T.copy(K[bx * 64, 0], k)
            T.clear(acc)
            for t in T.Pipelined(T.ceildiv(rows, 64), num_stages=2):
                T.copy(Q[t * 64, 0], q)
                T.gemm(k, q, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    s[i, j] = T.if_then_else(
                        t * 64 + j < rows, T.exp2(s[i, j] * 0.125 - lse[t * 64 + j]) - delta[t * 64 + j], 0.0
                    )
                T.copy(s, weights)
                T.gemm(weights, q, acc)
            T.copy(acc, D[bx * 64, 0])

    return rows_and_columns


@pytest.mark.parametrize("rows", [250, 252, 1, 64])
def test_loads_of_threads_beside_tiles(rows: int) -> None:
    made = tiledsl.compile(rows_and_columns(rows), target="cuda:90", pass_configs=GLUON)
    assert "@gluon.jit" in made.source, made.remarks
    torch.manual_seed(0)
    q, k = torch.randn(rows, 64).half(), torch.randn(128, 64).half()
    lse, delta, out = torch.rand(rows), torch.rand(rows), torch.full((128, 64), float("nan"))
    run = made.source, made.name, [q, k, lse, delta], out
    weights = torch.exp2(k.float() @ q.float().T * 0.125 - lse) - delta
    wanted = weights.half().float() @ q.float()
    for seed in (None, 0):
        assert float((result(run, seed=seed) - wanted).norm() / wanted.norm()) < 2e-3


def test_one_turn_without_a_product() -> None:
    x, w, y = torch.randn(64).half(), torch.randn(64, 512).half(), torch.full((512,), float("nan"))
    tiledsl.compile(matrix_times_vector, target="interpret")(x, w, y)
    torch.testing.assert_close(y, x.float() @ w.float(), rtol=1e-3, atol=1e-3)
    assert (
        "mbarrier" not in tiledsl.compile(matrix_times_vector, target="cuda:90").source
    )  # one role, which cannot hang


FATAL = re.compile(
    r"lost: (mbarrier\.arrive|mbarrier\.expect|mbarrier\.wait\(\w*full|_load_box|async_copy|fence|.*_advance\()"
)


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


OPTIONS = {
    "select-emitter.stages": (2, 3, 4),
    "select-emitter.rescale": ("each", "late", "lazy"),
    "select-emitter.overlap": (True, False),
    "select-emitter.persistent": (True, False),
    "select-emitter.consumers": ("auto", "one", "apart"),
    "schedule-loops.skew": (True, False),
    "schedule-loops.in_flight": (0, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [64, 128, 192])
@pytest.mark.parametrize("name", ["product", "scaled", "scaled, 5 turns", "attention", "attention with one tile"])
def test_every_schedule_that_options_ask_for(name: str, rows: int) -> None:
    """Each text that a program becomes, with no turn and with more than its rings are deep."""
    program = PROGRAMS[name.partition(",")[0]][0]
    is_constant = "5 turns" in name
    lengths = [5] * 4 if is_constant else [2, 0, 1, 3, 5, 1, 0, 6]
    *given, out = turn_programs.inputs(program, lengths, max(lengths), rows)
    wanted = turn_programs.want(program, *given)
    function = program(len(lengths), max(lengths), 2, rows, *([5] if is_constant else []))
    done: set[str] = set()
    for values in itertools.product(*OPTIONS.values()):
        configs = dict(zip(OPTIONS, values, strict=True))
        made = tiledsl.compile(function, target="cuda:90", pass_configs={**GLUON, **configs})
        if "@gluon.jit" in made.source and made.source not in done:
            done.add(made.source)
            assert torch.allclose(result((made.source, made.name, given, out)), wanted, rtol=1e-3, atol=1e-3), configs
    assert len(done) >= 4
