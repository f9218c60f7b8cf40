"""Any Python function tuned: several kernels in one, ways to do something, tuned functions inside tuned functions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tiledsl
from tests.autotune import fake_timers
from tests.autotune.programs import scale_builder, twice
from tiledsl.autotuner import tune_function

BY_FIXTURE = f"{fake_timers.__name__}:by_fixture"
WAYS = [{"way": way} for way in ("slow", "fast", "raises", "wrong", "oom")]
FACTORS = {"slow": 2.0, "fast": 2.0, "wrong": 3.0}
TIMES = {"slow": 2.0, "fast": 1.0, "wrong": 0.1}

scale = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}], ref_prog=twice)(tiledsl.jit(out_idx=-1)(scale_builder))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The configurations that the clock was asked about."""
    asked: list[str] = []

    def clock(config: dict[str, Any]) -> float:
        asked.append(config["way"])
        return TIMES[config["way"]]

    monkeypatch.setattr(fake_timers, "installed", [clock])
    return asked


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """A file with a line for each call of `double`: a list would be among what the key depends on."""
    (tmp_path / "calls").touch()
    return tmp_path / "calls"


def make(calls: Path, configs: Any = WAYS, **options: Any) -> Any:
    log = str(calls)

    @tune_function(configs, **{"ref_prog": twice, "timer": BY_FIXTURE, **options})
    def double(A: Any, way: str = "") -> Any:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{way}\n")
        if way == "raises":
            raise ValueError("not this way")
        if way == "oom":
            raise RuntimeError("CUDA out of memory")
        return A * FACTORS[way]

    return double


def test_the_fastest_right_way_wins_and_failures_are_recorded(timed: list[str], calls: Path) -> None:
    double = make(calls)
    A = torch.randn(8)
    torch.testing.assert_close(double(A), A * 2)
    result = double.tune(A)
    assert (result.config, result.latency, result.from_cache) == ({"way": "fast"}, 1.0, "memory")
    assert [t.status for t in result.trials] == ["ok", "ok", "launch_error", "mismatch", "out_of_resources"]
    assert "wrong" not in timed and "ValueError: not this way" in result.table() and result.best.verified
    calls.write_text("")
    double(A)
    assert calls.read_text() == "fast\n"


def test_what_asks_for_a_tuning_of_its_own(timed: list[str], calls: Path) -> None:
    double = make(calls)
    double(torch.randn(4, 4))
    assert double.tune(torch.randn(4, 4)).from_cache == "memory"
    assert double.tune(torch.randn(4, 4).T).from_cache == ""  # other strides
    assert double.tune(torch.randn(4, 4, dtype=torch.float64)).from_cache == ""
    assert make(calls).tune(torch.randn(4, 4)).from_cache == "disk"
    assert make(calls, rep=7).tune(torch.randn(4, 4)).from_cache == ""
    with tiledsl.settings(always_tune=True):
        assert make(calls).tune(torch.randn(4, 4)).from_cache == ""
    by_rows = make(calls, key=lambda A: A.shape[0])
    by_rows(torch.randn(4, 4))
    assert by_rows.tune(torch.randn(4, 9)).from_cache == "memory"


def test_a_tunable_that_a_call_passes_is_fixed(timed: list[str], calls: Path) -> None:
    assert make(calls).tune(torch.randn(8), way="slow").config == {"way": "slow"}
    assert set(timed) == {"slow"}


def test_pruning(timed: list[str], calls: Path) -> None:
    result = make(calls, prune=lambda config: config["way"] not in ("slow", "fast") and "hopeless").tune(torch.ones(3))
    assert [t.status for t in result.trials] == ["ok", "ok", *["pruned"] * 3] and "raises" not in calls.read_text()
    assert result.trials[2].message == "hopeless"
    with pytest.raises(tiledsl.TileError, match="none of 5 configurations of double works"):
        make(calls, prune=lambda config: "no").tune(torch.ones(3))


def test_pruning_by_arguments(timed: list[str], calls: Path) -> None:
    seen: list[Any] = []

    def prune(config: dict[str, Any], A: Any, **others: Any) -> str | None:
        seen.append((config["way"], A.numel(), others))
        return "too long" if config["way"] != "slow" and A.numel() > 3 else None

    assert make(calls, prune=prune).tune(torch.ones(4)).config == {"way": "slow"}
    assert seen == [(config["way"], 4, {}) for config in WAYS]
    assert make(calls, prune=prune).tune(torch.ones(3)).config == {"way": "fast"}


def test_untuned(timed: list[str], calls: Path, cache_dir: Path) -> None:
    double = make(calls)
    torch.testing.assert_close(double.untuned(torch.ones(3)), torch.full((3,), 2.0))
    torch.testing.assert_close(double.untuned(torch.ones(3), way="wrong"), torch.full((3,), 3.0))
    assert calls.read_text() == "slow\nwrong\n" and timed == [] and not list(cache_dir.rglob("key.json"))


def test_timings_are_logged(timed: list[str], calls: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tiledsl.settings(log_level="info"), caplog.at_level("INFO", "tiledsl"):
        make(calls, WAYS[:2]).tune(torch.ones(3))
    assert "autotune: tuning double: 1 ok; way=fast; 1.0000 ms" in caplog.text


def tritons(block: int, **options: Any) -> Any:
    return triton.Config({"BLOCK": block}, **options)


def test_configurations_of_triton(calls: Path, cache_dir: Path) -> None:
    """As values; a function that changes the one that it gets changes no other call's."""
    configs = [{"config": tritons(16)}, {"config": tritons(32)}, {"config": tritons(16, num_warps=8)}]
    log = str(calls)

    def make_one() -> Any:
        @tune_function(configs, timer=f"{__name__}:by_config")
        def run(A: Any, config: Any = None) -> Any:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{config.kwargs['BLOCK']} {config.num_warps}\n")
            config.kwargs["BLOCK"], config.num_warps = 1, 1
            return A

        return run

    run = make_one()
    run(torch.ones(3))
    assert run.tune(torch.ones(3)).config == {"config": tritons(32)}
    assert set(calls.read_text().split("\n")) == {"16 4", "32 4", "16 8", ""}
    assert make_one().tune(torch.ones(3)).from_cache == "disk"
    (best,) = cache_dir.rglob("best.json")
    shown = [record["config"]["config"] for record in json.loads(best.read_text())["trials"]]
    assert all(text.startswith("BLOCK: ") for text in shown), shown


def by_config(config: dict[str, Any], call: Any) -> float:
    call()
    return 8.0 / config["config"].num_warps if config["config"].kwargs["BLOCK"] == 16 else 0.5


def test_arguments_as_they_are(timed: list[str], calls: Path) -> None:
    addresses: set[int] = set()

    def run(A: Any, B: Any, way: str = "") -> None:
        addresses.update((A.data_ptr(), -B.data_ptr()))

    A, B = torch.ones(3), torch.ones(3)
    tune_function(WAYS[:2], timer=BY_FIXTURE, as_is="B", cache=False)(run).tune(A, B)
    assert A.data_ptr() not in addresses and -B.data_ptr() in addresses and len(addresses) > 2


def test_if_none_works_nothing_is_remembered(timed: list[str], calls: Path, cache_dir: Path) -> None:
    double = make(calls, [{"way": "raises"}])
    with pytest.raises(tiledsl.TileError, match="not this way"):
        double(torch.ones(3))
    assert not list(cache_dir.rglob("best.json"))


def test_the_result_is_plain_json_with_all_timings(timed: list[str], calls: Path, cache_dir: Path) -> None:
    make(calls)(torch.ones(3))
    (best,) = cache_dir.rglob("best.json")
    data = json.loads(best.read_text(), parse_constant=pytest.fail)
    assert [record["latency"] for record in data["trials"]] == [2.0, 1.0, None, None, None]
    (log,) = cache_dir.rglob("tuning.log")
    assert "not this way" in log.read_text()


def test_arguments_are_not_changed_while_tuning() -> None:
    """Many runs of a function with a side effect leave its arguments as they were; the call changes them once."""

    @tune_function([{"step": 1}, {"step": 2}], ref_prog=lambda total: total.add_(1), rep=1, warmup=0)
    def count(total: Any, step: int = 1) -> None:
        for _ in range(step):
            total.add_(1 / step)

    total = torch.zeros(5)
    assert [trial.status for trial in count.tune(total).trials] == ["ok", "ok"]
    assert not total.any()
    count(total)
    torch.testing.assert_close(total, torch.ones(5))


def test_without_a_gpu_the_clock_on_the_wall_counts() -> None:
    @tune_function([{"seconds": 0.004}, {"seconds": 0.0}], warmup=1, rep=8, cache=False)
    def wait(seconds: float = 0.0) -> None:
        time.sleep(seconds)

    result = wait.tune()
    assert result.config == {"seconds": 0.0} and 4.0 <= result.trials[0].latency < 400
    assert {trial.timing for trial in result.trials} == {"wall clock"}


@pytest.mark.slow
def test_tuned_functions_inside() -> None:
    """The kernel inside is tuned when a configuration first calls it, before that is timed; on disk for itself."""
    events: list[str] = []

    @tune_function([{"times": 1}, {"times": 2}], ref_prog=lambda A: A * 4, rep=1, warmup=0)
    def quadruple(A: Any, times: int = 1) -> Any:
        start = time.perf_counter()
        for _ in range(2):
            A = scale(size=A.shape[0])(A)
        events.append(f"{times} {time.perf_counter() - start:.3f}")
        return A

    A = torch.randn(64)
    torch.testing.assert_close(quadruple(A), A * 4)
    result = quadruple.tune(A)
    assert all(trial.ok and trial.verified for trial in result.trials)
    assert scale(size=64).from_cache == "memory"
    slowest = float(events[0].split()[1])  # the first call tuned
    assert all(trial.latency < slowest * 1e3 for trial in result.trials)


def test_methods() -> None:
    class Model:
        factor = 2.0

        @tune_function([{"way": 1}, {"way": 2}], key=lambda self, A: A.shape, rep=1, warmup=0)
        def forward(self, A: Any, way: int = 1) -> Any:
            return A * self.factor

    torch.testing.assert_close(Model().forward(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tune_function([{"b": 1}])(lambda a: a), "sets 'b', which is not a parameter"),
        (lambda: tune_function([])(lambda a: a), "no configuration"),
        (lambda: tune_function([{"a": 1}])(scale), "stands above a function"),
        (lambda: tune_function([{"a": 1}], key=3), "key is 3; it must be a function"),
        (lambda: tune_function([{"a": 1}], prune=3), "prune is 3"),
        (lambda: tune_function([{"a": 1}], rep=-1), "rep is -1; it must be a number of milliseconds, more than 0"),
        (lambda: tune_function([{"a": 1}], warmup=float("inf")), "warmup is inf"),
        (lambda: tune_function([{"a": 1}], key=lambda y: y)(lambda x, a: a)(x=2), "key raises TypeError: .*'x'"),
        (lambda: tune_function([{"a": 1}])(lambda x, a: a)(), "is called without 'x', which is not a tunable"),
        (lambda: tune_function([{"a": 1}])(lambda x, a: a)(1, 2, 3), "too many positional arguments"),
    ],
)
def test_mistakes(wrong: Any, message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=message):
        wrong()
