"""Ranks of a torch.distributed job that tune together: processes over gloo, and the exchange alone."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

import tiledsl
from tests.autotune import rank_jobs
from tests.autotune.test_prune_and_order import problem_of
from tests.support import forked
from tiledsl.autotuner import TuneOptions, tune_function
from tiledsl.autotuner.group.agree import merged
from tiledsl.autotuner.group.clock import AgreedPrepared
from tiledsl.autotuner.group.ranks import RankSession, RanksFailed
from tiledsl.autotuner.group.trials import InStep, agree_on_trials
from tiledsl.autotuner.run import TuningRun
from tiledsl.autotuner.search.exhaustive import Exhaustive
from tiledsl.autotuner.trial import Trial


def run(job: Any, ranks: int, folder: Path) -> list[Any]:
    """What each rank returned or raised; None for one that left nothing."""
    done = forked.run([rank_jobs.__file__, job.__name__, str(ranks), folder], cwd=Path.cwd(), timeout=60)
    assert done.returncode == 0, done.stderr
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) if file.exists() else None for file in files]


def values(job: Any, ranks: int, folder: Path) -> list[Any]:
    found = run(job, ranks, folder)
    assert all("value" in each for each in found), found
    return [each["value"] for each in found]


def test_the_slowest_rank_counts_and_all_choose_the_same(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.minima, 3, tmp_path)
    trials = [["ok", 9.0, ""], ["ok", 3.0, ""], ["ok", 4.0, ""]]
    assert [each[0] for each in found] == [["b", "memory", trials]] * 3
    assert [each[1] for each in found] == [[6.0] * 4] * 3  # collectives inside the function
    assert [each[2] for each in found] == ["memory"] * 3
    assert [each[3] for each in found] == [["b", "disk", trials]] * 3


def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.one_fails, 2, tmp_path)
    failed = ["launch_error", None, "on rank 1: ValueError: not here"]
    assert found == [["c", "", [["ok", 9.0, ""], failed, ["ok", 4.0, ""]]]] * 2


def test_a_failure_before_a_collective_leaves_an_error(tmp_path: Path, cache_dir: Path) -> None:
    waiting, failed = run(rank_jobs.one_fails_early, 2, tmp_path)
    assert "rank 0 did not come to 'configuration 1' within 0.5 s" in failed["error"]
    assert "here it failed: ValueError: not here; others may wait in a collective" in failed["error"]
    assert "error" in waiting and waiting["seconds"] < 30


def test_subgroups_tune_at_the_same_time(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.subgroups, 4, tmp_path)
    assert [each[0][0] for each in found] == ["b", "b", "c", "c"]
    assert [each[1] for each in found] == [[2.0] * 4] * 2 + [[2.0] * 5] * 2


def test_ranks_outside_of_a_group_have_the_same_program(tmp_path: Path, cache_dir: Path) -> None:
    *members, other = values(rank_jobs.not_a_member, 3, tmp_path)
    assert members == [[2.0, 2.0], [2.0, 2.0]]
    assert other[0].endswith("of which this process is no member") and other[1].endswith("raises LookupError: none")


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (rank_jobs.other_configs, "only rank 0 has way=c\n  note: only rank 1 has way=d"),
        (rank_jobs.other_shapes, "arguments.A: tensor:(3,):(1,):torch.float32:cpu on rank 0, tensor:(4,)"),
    ],
)
def test_ranks_that_disagree_are_told_in_what(job: Any, message: str, tmp_path: Path, cache_dir: Path) -> None:
    found = run(job, 2, tmp_path)
    assert all("ranks 0 and 1 disagree about what is tuned" in each["error"] for each in found), found
    assert all(message in each["error"] for each in found), found


def test_a_rank_that_dies_leaves_an_error(tmp_path: Path, cache_dir: Path) -> None:
    survivor, dead = run(rank_jobs.dies, 2, tmp_path)
    assert dead is None
    assert "rank 1 did not come to 'pruning' within 0.5 s" in survivor["error"] and survivor["seconds"] < 15


def test_a_rank_that_gives_up_tells_the_others(tmp_path: Path, cache_dir: Path) -> None:
    other, own = run(rank_jobs.gives_up, 2, tmp_path)
    assert own["error"].startswith("KeyboardInterrupt")
    assert "rank 1 has ended it: KeyboardInterrupt" in other["error"] and other["seconds"] < 15


def test_what_one_rank_leaves_out_is_left_out(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.pruning, 2, tmp_path)
    assert [[trial[0] for trial in each[2]] for each in found] == [["pruned", "pruned", "ok"]] * 2
    assert found[0][2][0][2] == found[1][2][0][2] == "on 3"


def test_tunings_inside_tunings(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.nested, 2, tmp_path)
    assert found[0] == found[1]
    value, (way, _, trials), inner = found[0]
    assert value == [4.0] * 3 and way == "b" and inner[:2] == ["b", "memory"]
    assert trials[0][0] == "launch_error" and "none of 2 configurations of total works" in trials[0][2]


def test_one_process_of_a_machine_writes_and_all_must_remember(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.two_places, 4, tmp_path)
    assert [each[:3] for each in found] == [["", "disk", ""]] * 4
    assert ["best.json" in each[3] for each in found] == [True, False, True, False]
    assert found[1][3] == found[3][3] == []


def test_kernels(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.kernels, 2, tmp_path)
    trials = [["pruned", None, "on rank 1: not for 64"], ["ok", 9.0, ""], ["ok", 3.0, ""], ["ok", 4.0, ""]]
    assert found == [[[32, "", trials], [32, "disk", trials], "memory"]] * 2
    assert len(list(cache_dir.rglob("best.json"))) == 1


def test_kernels_in_context(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.in_context, 2, tmp_path)
    a, b, c = ["ok", 9.0, ""], ["ok", 3.0, ""], ["ok", 4.0, ""]
    assert found == [[[5.0] * 3, 10, 1, ["b", "memory", [a, b]], ["b", "memory", [a, b, c]]]] * 2
    assert len(list(cache_dir.rglob("best.json"))) == 2


def test_a_failure_in_context_counts_for_all(tmp_path: Path, cache_dir: Path) -> None:
    found = values(rank_jobs.in_context_one_fails, 2, tmp_path)
    failed = ["launch_error", None, "on rank 1: ValueError: not here"]
    assert [each[0] for each in found] == [[5.0] * 3] * 2 and found[0][1] == found[1][1]
    assert [each[4] for each in found] == [["c", "memory", [["ok", 9.0, ""], failed, ["ok", 4.0, ""]]]] * 2


def test_ranks_that_disagree_in_context(tmp_path: Path, cache_dir: Path) -> None:
    found = run(rank_jobs.in_context_uneven, 2, tmp_path)
    assert all("arguments.A: tensor:(3,):(1,):torch.float32:cpu on rank 0" in each["error"] for each in found), found


def sessions(count: int, timeout: float = 5.0) -> list[RankSession]:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=1))
    return [RankSession(store, "test", rank, count, timeout, "a test") for rank in range(count)]


def on_all(ranks: list[RankSession], what: Any) -> list[Any]:
    """What a function of a rank returns or raises, on a thread for each."""
    values: list[Any] = [None] * len(ranks)

    def one(rank: RankSession) -> None:
        try:
            values[rank.rank] = what(rank)
        except Exception as error:
            values[rank.rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return values


def test_exchange() -> None:
    ranks = sessions(3)
    for each in range(4):
        assert (
            on_all(ranks, lambda rank: rank.exchange("numbers", rank.rank + each)) == [[each, each + 1, each + 2]] * 3
        )


def test_ranks_at_different_places() -> None:
    found = on_all(sessions(2), lambda rank: rank.exchange("the end" if rank.rank else "timing", None))
    assert all("rank 0 is at 'timing', and rank 1 at 'the end'" in str(each) for each in found)


def test_together() -> None:
    def fail(rank: RankSession) -> Any:
        def call() -> int:
            if rank.rank != 1:
                raise MemoryError("CUDA out of memory")
            return 1

        return rank.together("work", call)

    ranks = sessions(3)
    found = on_all(ranks, fail)
    assert all(isinstance(each, RanksFailed) and each.status == "out_of_resources" for each in found)
    assert str(found[1]) == "on rank 0, 2: MemoryError: CUDA out of memory"
    assert on_all(ranks, lambda rank: rank.together("work", lambda: rank.rank)) == [[0, 1, 2]] * 3


def test_merged() -> None:
    ok = {"status": "ok", "message": "", "latency": 2.0, "rounds": 3, "verified": True, "max_error": None}
    assert merged([ok, {**ok, "latency": 3.0, "rounds": 1}]) == {**ok, "latency": 3.0, "rounds": 1}
    wrong = {**ok, "status": "mismatch", "message": "C differs", "verified": False}
    assert merged([ok, wrong])["message"] == "on rank 1: C differs" and merged([ok, wrong])["status"] == "mismatch"
    assert merged([wrong, wrong])["message"] == "C differs"


def test_a_search_in_step() -> None:
    """Ranks ask for the same, and tell the search the slowest times; a budget that is used up on one ends it on all."""
    times = [[1.0, 5.0, 1.0, 1.0], [3.0, 2.0, None, 1.0]]

    def search(rank: RankSession) -> Any:
        trials = [Trial(index, {"block": index}) for index in range(4)]
        ended: list[int] = []
        inner = Told()
        asked = []
        is_late = lambda: rank.rank == 1 and len(asked) == 2
        strategy = InStep(inner, rank, trials, is_late, lambda trial: ended.append(trial.index))
        while not strategy.done:
            wanted = strategy.ask(2)
            asked.append(wanted)
            for index in wanted:
                assert strategy.ask(2) == []
                trials[index].status, trials[index].latency = "ok", times[rank.rank][index]
                if trials[index].latency is None:
                    trials[index].fail("crash", "gone")
                strategy.tell(index, trials[index].latency)
        return asked, inner.told, ended, trials[2].message

    told = [(0, 3.0), (1, 5.0), (2, None), (3, 1.0)]
    expected = ([[0, 1], [2, 3], []], told, [0, 1, 2, 3], "on rank 1: gone")
    assert on_all(sessions(2), search) == [expected] * 2


def test_ranks_take_configurations_in_one_order() -> None:
    configs = [{"block": 16}, {"block": 32}, {"block": 64}]

    def order(rank: RankSession) -> list[int]:
        problem = problem_of(*configs, isolate=False, seed_configs=[configs[rank.rank + 1]])
        run = TuningRun(problem, problem.restore(None, {}), None, lambda trial: None, rank)
        run.prune()
        return run._order

    first, second = on_all(sessions(2), order)
    assert first == second and first[0] == 1 and sorted(first) == [0, 1, 2]


class Told(Exhaustive):
    """Six configurations to ask for; keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(range(6))
        self.told: list[tuple[int, float | None]] = []

    def tell(self, index: int, latency: float | None) -> None:
        self.told.append((index, latency))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "all"}, "group is 'all'; it is True, a ProcessGroup"),
        ({"group": True, "group_timeout": 0}, "group_timeout is 0; it is seconds"),
    ],
)
@pytest.mark.parametrize("tune", [lambda **o: tune_function([{"way": 1}], **o), lambda **o: TuneOptions(**o)])
def test_mistakes(tune: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=message):
        tune(**options)


def test_a_group_has_one_gpu_a_rank() -> None:
    with pytest.raises(tiledsl.TileError, match="shape_grouped gives calls to GPUs"):
        TuneOptions(group=True, shape_grouped=True)


def test_without_a_job() -> None:
    tuned = tune_function([{"way": 1}, {"way": 2}], group=True)(lambda A, way=0: A)
    with pytest.raises(tiledsl.TileError, match=r"call torch.distributed.init_process_group first"):
        tuned(1)


def test_the_times_of_each_rank_are_kept() -> None:
    """The latency is the largest; of trials that failed somewhere there are none."""
    trials = [Trial(0, {"a": 1}, "ok", latency=1.0), Trial(1, {"a": 2}, "ok", latency=5.0)]
    theirs = [[0, {"status": "ok", "message": "", "latency": 3.0}], [1, {"status": "crash", "message": "gone"}]]
    ranks: Any = SimpleNamespace(size=2, rank=0, exchange=lambda kind, own: [own, theirs])
    agree_on_trials(ranks, trials, [0, 1])
    assert (trials[0].latency, trials[0].by_rank) == (3.0, [1.0, 3.0])
    assert (trials[1].status, trials[1].by_rank) == ("crash", None)
    inner = SimpleNamespace(sample=lambda milliseconds, quick: [1.0, 2.0, 4.0], method="a clock")
    prepared = AgreedPrepared(inner, lambda call: [call(), [3.0, 1.0, 1.0]], 1.0, True)
    assert prepared.sample(1.0, 1.0) == [3.0, 2.0, 4.0] and prepared.by_rank == [2.0, 1.0]
