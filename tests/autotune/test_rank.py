"""Large spaces pruned and ordered: how long it takes, what is kept, and the forks that share the work."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.autotune import kernels
from tiledsl.autotuner import forks
from tiledsl.autotuner.predicting import rank, work
from tiledsl.autotuner.space import check_configs
from tiledsl.runtime.target import Target

H100 = Target("cuda", 90)
SIZES = dict.fromkeys("MNK", 4096)
SPACE = tiledsl.space(
    block_M=[16, 32, 64, 128, 256, 512], block_N=[32, 64, 128, 256], block_K=[16, 32, 64, 128],
    num_stages=[1, 2, 3, 4, 5, 6], threads=[64, 128, 256], num_ctas=[1, 2],
)  # fmt: skip


def program_for(config: Mapping[str, Any]) -> Any:
    return kernels.gemm.program_for(SIZES, config)


@pytest.mark.slow
def test_3456_configurations_take_less_than_ten_seconds_of_one_core() -> None:
    start = time.process_time()
    configs = check_configs(SPACE, kernels.gemm.signature, "gemm")
    found = rank.rank(program_for, configs, H100)
    assert time.process_time() - start < 10
    assert len(configs) == 3456 == len(found.order) + len(found.pruned) and not found.failed
    assert 500 < len(found.pruned) < 1500
    assert found.predicted[found.order[0]] < found.predicted[found.order[-1]] / 10


def test_no_program_is_kept() -> None:
    configs = list(SPACE)[::48]
    rank.rank(program_for, configs[:10], H100)
    tracemalloc.start()
    try:
        rank.rank(program_for, configs[:20], H100)
        gc.collect()
        after_few = tracemalloc.get_traced_memory()[0]
        found = rank.rank(program_for, configs, H100)
        gc.collect()
        after_many = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(found.predicted) + len(found.pruned) == len(configs) == 72
    most = len(configs) * 1000  # bytes: a number or a reason each; a program takes 50 times as much
    assert after_many - after_few < most


def test_a_launch_that_was_read_answers_for_other_options() -> None:
    root, _ = program_for({"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256})
    (launch,) = work.launches(root)
    choices: list[dict[str, Any]] = [{}, {"lower-to-triton.num_warps": 16}, {"lower-to-triton.num_stages": 2}]
    choices += [{"map-grid.group_m": 8}, {"lower-to-triton.maxnreg": 96, "lower-to-triton.num_ctas": 2}, {}]
    assert [launch.under(each) for each in choices] == [work.read(root, each)[0] for each in choices]
    found = launch.under({"lower-to-triton.num_warps": 16, "map-grid.group_m": 8})
    assert (found.warps(H100), found.panel, launch.under({}).warps(H100), launch.under({}).panel) == (16, 8, 8, 0)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(rank, "FORKS_FROM", 2)
    return list(SPACE)[::48]


def test_forks_find_the_same(forked: list[dict[str, Any]]) -> None:
    def sometimes(config: Mapping[str, Any]) -> Any:
        if config["block_M"] == 32:
            raise ValueError(f"no {config['block_N']}")
        return program_for(config)

    alone = rank.rank(sometimes, forked, H100)
    for processes in (2, 3):
        shared = rank.rank(sometimes, forked, H100, processes=processes)
        assert (shared.order, shared.predicted, shared.pruned) == (alone.order, alone.predicted, alone.pruned)
        assert {index: str(error) for index, error in shared.failed.items()} == {
            index: str(error) for index, error in alone.failed.items()
        }
    assert alone.failed and alone.pruned and alone.order


def test_what_is_only_slow_stays_slow_in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing but slow configurations is there, they are tried."""
    monkeypatch.setattr(rank, "FORKS_FROM", 2)
    base = {"block_M": 256, "block_N": 256, "block_K": 16, "num_stages": 1, "threads": 64}
    configs = [base, {**base, "block_K": 32}, {**base, "block_M": 512}]
    alone = rank.rank(program_for, configs, H100)
    shared = rank.rank(program_for, configs, H100, processes=3)
    assert shared.order == alone.order and len(alone.order) == 3


def test_a_configuration_that_ends_its_fork_costs_itself_only(forked: list[dict[str, Any]]) -> None:
    def ends(config: Mapping[str, Any]) -> Any:
        if config == forked[1]:
            print("good bye")
            os._exit(7)
        if config == forked[3]:
            os.kill(os.getpid(), signal.SIGTERM)
        if config == forked[4]:
            sys.exit("no")
        return program_for(config)

    alone = rank.rank(program_for, forked, H100, seconds=None)
    for processes in (1, 2):
        ranking = rank.rank(ends, forked, H100, processes=processes)
        assert {index: str(error) for index, error in ranking.failed.items()} == {
            1: str(forks.Ended(False, "building it ended the process with exit status 7\ngood bye")),
            3: str(forks.Ended(False, "building it ended the process with SIGTERM")),
            4: "no",
        }
        assert ranking.order == [index for index in alone.order if index not in (1, 3, 4)]


def test_a_configuration_that_hangs_is_given_up(forked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    fork, children = os.fork, []

    def noted() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", noted)

    def hangs(config: Mapping[str, Any]) -> Any:
        while config == forked[2]:
            time.sleep(1000)
        return program_for(config)

    monkeypatch.setattr(threading, "active_count", lambda: 1)
    found = rank.rank(hangs, forked[:6], H100, seconds=1.0)
    assert found.failed == {2: forks.Ended(True, "still being built after 1 s; given up")}
    assert found.order == [index for index in rank.rank(program_for, forked[:6], H100).order if index != 2]
    assert len(children) == 3 and not any(Path("/proc", str(child)).exists() for child in children)


def test_a_fork_beside_threads_that_hangs_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may have waited for a lock that a thread held."""
    monkeypatch.setattr(threading, "active_count", lambda: 2)

    def hangs_once(item: int) -> int:
        if item == 1 and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            time.sleep(1000)
        return 10 * item

    assert forks.in_forks(hangs_once, [0, 1, 2], 1.0) == [0, 10, 20]


def test_what_raises_in_a_fork_alone_is_done_here(forked: list[dict[str, Any]]) -> None:
    this = os.getpid()

    def only_here(config: Mapping[str, Any]) -> Any:
        if os.getpid() != this:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return program_for(config)

    assert rank.rank(only_here, forked, H100, processes=2).order == rank.rank(program_for, forked, H100).order


def test_a_fork_that_a_library_refuses_for_a_moment_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, refused = os.fork, []

    def refusing() -> int:
        if len(refused) < 3:
            refused.append(1)
            raise RuntimeError("os.fork is unsafe while filelock is changing descriptor ownership")
        return fork()

    monkeypatch.setattr(os, "fork", refusing)
    assert forks.in_forks(lambda item: item + 1, [1, 2], 10.0) == [2, 3] and len(refused) == 3
