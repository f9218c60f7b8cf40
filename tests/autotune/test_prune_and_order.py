"""Which configurations end before they run, with what reason, and in what order the others run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.autotuner.compiling.compile_worker import CompileOutcome
from tiledsl.autotuner.engine import TuningProblem
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.left_out import _raise_shared, prune_and_order
from tiledsl.autotuner.predicting import prune
from tiledsl.autotuner.predicting.prune import SoftPruneReason
from tiledsl.autotuner.run import TuningRun
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError


@tiledsl.jit(target="interpret")
def doubled(N: int, block: int = 16, broken: int = 0) -> Any:
    @T.prim_func
    def doubled(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            tile = T.alloc_fragment((block,), "float32")
            T.copy(A[bx * block], tile)
            if broken:
                T.copy(tile, B[0, 0])
            for i in T.Parallel(block):
                tile[i] = tile[i] * 2
            T.copy(tile, B[bx * block])

    return doubled


def problem_of(*configs: dict[str, Any], **options: Any) -> TuningProblem:
    tuned = tiledsl.autotune(configs=list(configs), cache=False, **options)(doubled)
    return tuned._problem(tuned._call((256,), {}))


def ordered(problem: TuningProblem) -> tuple[list[tuple[str, str]], list[int]]:
    """The status and the message of each configuration, and the order of those that are left."""
    trials = [
        Trial(index, config, build=partial(problem.build, config, problem.target))
        for index, config in enumerate(problem.configs)
    ]
    order = prune_and_order(trials, problem)
    return [(trial.status, trial.message.partition("\n")[0]) for trial in trials], order


NEW = ("new", "")


def test_what_the_user_leaves_out() -> None:
    found = ordered(problem_of({"block": 16}, {"block": 32}, prune=lambda c: "too wide" if c["block"] > 16 else None))
    assert found == ([NEW, ("pruned", "too wide")], [0])
    found = ordered(problem_of({"block": 16}, {"block": 32}, prune=lambda c: "all"))
    assert found == ([("pruned", "all"), ("pruned", "all")], [])


def test_what_cannot_be_built() -> None:
    statuses, order = ordered(problem_of({"broken": 1}, {"broken": 0}))
    assert [status for status, _ in statuses] == ["compile_error", "new"] and order == [1]
    assert "B" in statuses[0][1]
    with pytest.raises(TileError) as shared:  # a mistake of the program
        ordered(problem_of({"broken": 1, "block": 16}, {"broken": 1, "block": 32}))
    assert shared.value.notes[-1] == "so in all 2 configurations"


def test_files_that_are_not_there() -> None:
    problem = problem_of({"block": 16}, {"block": 32})
    absent = {"block": 32, "from_level": ("ttir", "/nowhere/at all", "")}
    found = ordered(replace(problem, configs=[{"block": 16}, absent]))
    assert found == ([NEW, ("pruned", "there is no /nowhere/at all")], [0])


def test_seeds_come_first() -> None:
    configs = [{"block": 16}, {"block": 32}, {"block": 64}]
    plain = ordered(problem_of(*configs))[1]
    assert sorted(plain) == [0, 1, 2]
    last = plain[-1]
    seeded = ordered(problem_of(*configs, seed_configs=[configs[last]]))
    assert seeded == ([NEW] * 3, [last, *plain[:-1]])


def test_a_seed_is_not_left_out_for_being_slow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has chosen is measured, whatever the model thinks of it; what cannot work is left out."""
    configs = [{"block": 16}, {"block": 32}, {"block": 64}]

    def reason(works: Any, target: Any) -> str | None:
        kinds = {16: SoftPruneReason("slow"), 32: SoftPruneReason("slow, too")}
        return kinds.get(works[0].largest_tile)

    monkeypatch.setattr(prune, "reason", reason)
    slow = [NEW, ("pruned", "slow, too"), NEW]
    assert ordered(problem_of(*configs, seed_configs=[configs[0]])) == (slow, [0, 2])
    assert ordered(problem_of(*configs)) == ([("pruned", "slow"), *slow[1:]], [2])
    monkeypatch.setattr(prune, "reason", lambda works, target: "too wide" if works[0].largest_tile == 16 else None)
    statuses, order = ordered(problem_of(*configs, seed_configs=[configs[0]]))
    assert statuses[0] == ("pruned", "too wide") and 0 not in order


@pytest.mark.parametrize(
    ("options", "counted"),
    [({}, None), ({"rows": "N"}, "N"), ({"bucket": "N"}, "N"), ({"rows": "block", "bucket": "N"}, "block")],
    ids=str,
)
def test_what_counts_rows_is_in_the_key(options: dict[str, str], counted: str | None) -> None:
    asked = {"numerics": "batch-invariant", "ref_prog": lambda a: a * 2, "cache": True}
    tuned = tiledsl.autotune(configs=[{"block": 16}], **asked, **options)(doubled)
    policy = tuned.key(256).fields["policy"]
    assert policy["numerics"] == ["batch-invariant", config_key({"block": 16}), counted]


def test_an_error_that_all_configurations_have_is_the_programs() -> None:
    _raise_shared([TileError("too wide")])  # of one configuration nobody knows whose it is
    _raise_shared([TileError("too wide"), TileError("too narrow")])
    _raise_shared([ValueError("odd"), ValueError("odd")])
    with pytest.raises(TileError, match=r"too wide\n.*so in all 2 configurations"):
        _raise_shared([TileError("too wide"), TileError("too wide")])


def test_what_has_ended_before_keeps_its_outcome() -> None:
    problem = problem_of({"broken": 1, "block": 16}, {"broken": 0}, {"broken": 1, "block": 32})
    trials = [
        Trial(index, config, build=partial(problem.build, config, problem.target))
        for index, config in enumerate(problem.configs)
    ]
    trials[0].fail("timeout", "it took too long")
    assert prune_and_order(trials, problem) == [1]
    assert [(trial.status, trial.message[:7]) for trial in trials[:2]] == [("timeout", "it took"), ("new", "")]
    assert trials[2].status == "compile_error"


def test_what_spills_much_is_left_out_after_it_was_compiled() -> None:
    """All but the first configuration, which is always measured."""
    problem = problem_of({"block": 16}, {"block": 32}, {"block": 64}, target="cuda:90")
    run = TuningRun(problem, problem.restore(None, {}), None, lambda _: None, Alone())
    measured: list[int] = []
    run._measure = measured.append  # type: ignore[method-assign]
    for trial, spills in zip(run.trials, (513, 513, 512)):
        run._compiled(trial, CompileOutcome(trial.index, "ok", resources={"spills": spills}))
    assert [trial.status for trial in run.trials] == ["new", "pruned", "new"] and measured == [0, 2]
    assert run.trials[1].message == ("spills 513 bytes of each thread's registers to memory; more than 512 is hopeless")
