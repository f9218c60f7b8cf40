"""Benchmark processes: kept from run to run, several at once, a budget, and what happens if they cannot start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.autotune.programs import scale_builder, twice
from tiledsl.autotuner.measuring import bench_process

NOTED = "tests.autotune.fake_timers:slow_and_noted"
BLOCKS = (64, 32, 16, 8, 4, 2)


def tune(file: Path, blocks: tuple[int, ...] = BLOCKS, **options: Any) -> tuple[tiledsl.AutotuneResult, list[str]]:
    """A tuning with a slow clock, and the processes that timed, in order."""
    configs = [{"block": block, "variant": str(file)} for block in blocks]
    options = {"ref_prog": twice, "timer": NOTED, "cache": False, **options}
    result = tiledsl.autotune(configs=configs, **options)(tiledsl.jit(out_idx=-1)(scale_builder))()
    return result, file.read_text().split()


def test_a_process_stays_for_the_next_run(tmp_path: Path) -> None:
    seen = {process for name in "ab" for process in tune(tmp_path / name, (64, 32))[1]}
    assert len(seen) == 1
    bench_process.close_idle()
    assert not Path("/proc", seen.pop(), "exe").exists()


def test_devices_share_the_work(tmp_path: Path) -> None:
    result, processes = tune(tmp_path / "seen", devices=[0, 1])
    first_round = processes[: len(BLOCKS)]
    assert len(set(first_round)) == 2 and result.config["block"] == 64
    assert all(trial.ok for trial in result.trials)


def test_a_budget_ends_the_search(tmp_path: Path) -> None:
    tune(tmp_path / "warm", (64,))
    result, _ = tune(tmp_path / "seen", budget=1.2)
    assert result.complete and result.trials[0].ok and result.config["block"] == 64
    left = [trial for trial in result.trials if trial.status == "pruned"]
    assert 2 <= len(left) < len(BLOCKS)
    assert {trial.message for trial in left} == {"not tried: the budget of 1.2 s was used up"}


def test_the_default_is_always_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiledsl.autotuner.run.make_strategy", lambda *_, **__: One())
    result, _ = tune(tmp_path / "seen", (4, 64, 32))
    assert [trial.status for trial in result.trials] == ["ok", "pruned", "ok"]
    assert result.trials[1].message == "not tried: the search chose others"
    assert result.config["block"] == 32


class One:
    """A strategy that wants only the last of three."""

    done = False

    def ask(self, n: int) -> list[int]:
        self.done = True
        return [2]

    def share(self, index: int) -> float:
        return 0.25

    def tell(self, index: int, latency: float | None) -> None:
        assert index == 2 and latency == 2.0


def test_processes_that_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench_process.close_idle()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    (tmp_path / "seen").touch()
    with pytest.raises(tiledsl.TileError) as caught:
        tune(tmp_path / "seen", (64, 32))
    assert "crash: 2" in str(caught.value)
    assert "no benchmark process can be started; the benchmark process ended with exit status 1" in str(caught.value)


def test_a_run_that_ended_before_its_final_round_makes_up_for_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cache": True, "store": tmp_path / "store"}
    tune(tmp_path / "seen", (32, 64), **options)
    (best,) = (tmp_path / "store").rglob("best.json")
    best.unlink()
    journal = best.with_name("trials.jsonl")
    journal.write_text(journal.read_text().replace('"rounds":2', '"rounds":0'))
    result, processes = tune(tmp_path / "seen", (32, 64), **options)
    assert result.from_cache == "" and [trial.rounds for trial in result.trials] == [2, 2]
    assert len(processes) == 6  # two first measurements, and two final rounds
    assert tune(tmp_path / "seen", (32, 64), **options)[0].from_cache == "disk"


def test_a_budget_that_is_too_small_still_gives_a_result(tmp_path: Path) -> None:
    """The default is waited for, and where that does not work one that does."""
    for blocks in ((64, 32, 16), (0, 32, 16)):
        result, _ = tune(tmp_path / str(blocks[0]), blocks, budget=0.001)
        assert result.complete and result.trials[0].status != "new" and result.best.ok
        assert result.config["block"] == (blocks[0] or 32)
