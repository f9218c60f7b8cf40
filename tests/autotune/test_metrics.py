"""Metrics and objectives of users: who wins, what is kept, what it is remembered by, and what is refused."""

from __future__ import annotations

import ctypes
import types
from pathlib import Path
from typing import Any

import pytest

import tiledsl
from tests.autotune.programs import scale_program, twice
from tests.support.load_file import load_file
from tiledsl.autotuner import AutotuneResult, TuneOptions
from tiledsl.autotuner.measuring.metrics import Measurement, evaluate, name_of
from tiledsl.autotuner.selection import finalists, winner
from tiledsl.autotuner.storage import journal
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tuning" / "nvml_energy.py"
BLOCKS = [{"block": 16}, {"block": 32}, {"block": 64}]
JOULES = {16: 3.0, 32: -1.5, 64: 2.0}
MILLISECONDS = {16: 1.0, 32: 30.0, 64: 0.5}


def joules(measurement: Any) -> float:
    """The block of 32 is slow and takes least."""
    return JOULES[measurement.config["block"]]


def calls(measurement: Any) -> int:
    return measurement.repeat(0.0)[0]  # type: ignore[no-any-return]


def product(metrics: dict[str, float]) -> float:
    return metrics["latency"] * (metrics["joules"] + 2)


def milliseconds(config: dict[str, Any], call: Any) -> float:
    return MILLISECONDS[config["block"]]


def scale(size: int, block: int | None = None) -> Any:
    return scale_program(size, block)


def tuned(configs: Any = BLOCKS, **options: Any) -> Any:
    given = {"ref_prog": twice, "progress": False, "timer": "tests.autotune.test_metrics:milliseconds", **options}
    given.setdefault("isolate", False)
    return tiledsl.autotune(configs=configs, **given)(tiledsl.jit(out_idx=-1)(scale))


def test_the_objective_decides_and_all_metrics_are_kept(tmp_path: Path) -> None:
    result = tuned(metrics={"joules": joules, "calls": calls}, objective="joules")(64)
    assert (result.config, result.minimised, result.latency) == ({"block": 32}, "joules", 30.0)
    assert result.metrics == {"joules": -1.5, "calls": 1.0}  # of 20 ms: a call is said to take 30
    assert [(t.metrics or {})["joules"] for t in result.trials] == [3.0, -1.5, 2.0]
    assert [t.objective for t in result.trials] == [3.0, -1.5, 2.0] and result.ranks == {1: 1, 2: 2, 0: 3}
    assert result.explain().splitlines()[:3] == [
        "block=32 takes 30.0000 ms, measured.",
        "It has the least joules, -1.5 (joules -1.5, calls 1).",
        "Next is block=64 with 0.5000 ms and 2.",
    ]
    lines = result.table(sort="joules").splitlines()
    assert lines[0].split()[:7] == ["rank", "trial", "configuration", "status", "measured", "ms", "joules"]
    assert [line.split()[-1] for line in lines[1:4]] and lines[1].split()[6] == "-1.5"
    assert result.to_csv().splitlines()[1].startswith("16,3,0,ok,1.0,3.0,20.0,")
    again = tuned(metrics={"joules": joules, "calls": calls}, objective="joules")(64)
    assert (again.from_cache, again.config, again.minimised) == ("disk", {"block": 32}, "joules")
    loaded = AutotuneResult.load(result.save(tmp_path / "best.json"))
    assert (loaded.metrics, loaded.minimised) == (result.metrics, "joules")


def test_a_function_of_the_metrics_is_an_objective() -> None:
    result = tuned(metrics={"joules": joules}, objective=product)(64)
    assert [t.objective for t in result.trials] == [5.0, 15.0, 2.0]
    assert (result.config, result.minimised) == ({"block": 64}, "product")
    assert "product" in result.table().splitlines()[0].split()


def slowest(metrics: dict[str, float]) -> float:
    return -metrics["latency"]


def test_an_objective_needs_no_other_metrics() -> None:
    made = tuned(objective=slowest)
    assert made(64).config == {"block": 32} and made(64).from_cache


def test_metrics_alone_change_no_winner() -> None:
    result = tuned(metrics={"joules": joules})(64)
    assert (result.config, result.minimised, result.metrics) == ({"block": 64}, "latency", {"joules": 2.0})
    assert all(trial.objective is None for trial in result.trials)


def test_metrics_are_taken_in_the_process_that_measures() -> None:
    result = tuned(metrics={"joules": joules}, objective="joules", isolate=True)(64)
    assert result.config == {"block": 32} and [t.objective for t in result.trials] == [3.0, -1.5, 2.0]


def test_an_objective_is_part_of_the_key() -> None:
    made: list[dict[str, Any]] = [
        {}, {"objective": "latency"}, {"metrics": {"joules": joules}},
        {"metrics": {"joules": joules}, "objective": "joules"},
        {"metrics": {"joules": calls}, "objective": "joules"}, {"metrics": {"joules": joules}, "objective": product},
    ]  # fmt: skip
    digests = [tuned(**each).key(64).digest for each in made]
    assert digests[0] == digests[1] and len(set(digests)) == 5
    named = tuned(metrics={"joules": "tests.autotune.test_metrics:joules"}, objective="joules")
    assert named.key(64).digest == digests[3]


def _raises(measurement: Any) -> float:
    raise OSError("no counter")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (_raises, "the metric broken raises OSError: no counter"),
        (lambda m: float("nan"), "the metric broken is nan; it must be a finite number"),
        (lambda m: None, "the metric broken is None; it must be a finite number"),
        (lambda m: True, "the metric broken is True; it must be a finite number"),
        ("tests.autotune.test_metrics:nothing", "the metric tests.autotune.test_metrics:nothing is not found"),
    ],
)
def test_a_metric_that_fails_costs_its_configuration(metric: Any, said: str) -> None:
    given = Measurement({"block": 16}, 1.0, 0.0, (1.0,), lambda: None, lambda: None)
    with pytest.raises(TileError, match=said):
        evaluate({"broken": metric}, given)


def test_a_configuration_without_its_metric_does_not_win() -> None:
    def joules_but_32(measurement: Any) -> float:
        if measurement.config["block"] == 32:
            raise OSError("no counter")
        return joules(measurement)

    result = tuned(metrics={"joules": joules_but_32}, objective="joules")(64)
    assert result.config == {"block": 64}
    assert [t.status for t in result.trials] == ["ok", "launch_error", "ok"]
    assert "the metric joules raises OSError: no counter" in result.trials[1].message
    assert result.trials[1].metrics is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metrics": {"latency": joules}}, "metrics is .*; it must be a dict of names and functions"),
        ({"metrics": {"joules": "joules"}}, "metrics is .*; it must be a dict of names and functions"),
        ({"metrics": {"a b": joules}}, "metrics is .*; it must be a dict of names and functions"),
        ({"objective": "joules"}, r"objective is 'joules', which is no metric\n  note: there are latency"),
        ({"objective": 3}, "objective is 3; it must be the name of a metric, or a function"),
        ({"metrics": {"j": lambda m: 1.0}}, "the metric 'j' is a function that another process cannot import"),
        ({"metrics": {"j": joules}, "objective": "j", "early_stop": True}, "early_stop compares latencies"),
        ({"metrics": {"j": joules}, "objective": "j", "group": True}, "the ranks of a group agree on latencies"),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TileError, match=said):
        TuneOptions(**options)


def test_what_is_estimated_has_no_metrics() -> None:
    with pytest.raises(TileError, match="metrics are measured, and nothing is on interpret here"):
        tuned(metrics={"joules": joules}, timer=None)(64)


def test_functions_are_named_where_another_process_finds_them() -> None:
    assert name_of(joules) == "tests.autotune.test_metrics:joules" and name_of("a.b:c") == "a.b:c"
    assert name_of(lambda m: 1.0) == name_of(types.FunctionType(joules.__code__, {}, "joules")) == ""


def _trial(index: int, objective: float, latency: float = 1.0) -> Trial:
    return Trial(index, {"block": index}, "ok", latency=latency, spread=0.1, objective=objective)


def test_the_least_objective_wins_and_the_earlier_winner_stays_close_to_it() -> None:
    trials = [_trial(0, 5.0, 0.1), _trial(1, -2.0, 9.0), _trial(2, -2.0, 8.0), _trial(3, -1.9, 1.0)]
    assert winner(trials) is trials[1] and finalists(trials) == []
    assert winner(trials, 3, 0.1) is trials[3] and winner(trials, 3, 0.05) is trials[1]
    assert winner(trials, 2) is trials[2]


def test_objectives_below_zero_are_read_back() -> None:
    trial = _trial(1, -2.5)
    trial.metrics = {"joules": -2.5}
    again = journal.decode(1, trial.config, journal.encode(trial))
    assert (again.objective, again.metrics) == (-2.5, {"joules": -2.5})
    with pytest.raises(ValueError, match="objective is 'low'"):
        journal.decode(1, trial.config, {**journal.encode(trial), "objective": "low"})


class FakeNvml:
    """Counts 40 millijoules for each call of the kernel."""

    def __init__(self) -> None:
        self.calls = 0

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        assert uuid == b"GPU-1234"
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:
        value._obj.value = 10_000 + 40 * self.calls
        return 0 if self.calls < 10**9 else 3


def test_energy_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    example: Any = load_file(EXAMPLE)
    nvml = FakeNvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    monkeypatch.setattr(example.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(example.torch.cuda, "get_device_properties", lambda n: types.SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(example, "SECONDS", 0.0)

    def call() -> None:
        nvml.calls += 1

    given = Measurement({}, 2.0, 0.1, (2.0,), call, lambda: None)
    assert example.energy(given) == 40.0 and nvml.calls == 10  # 20 ms of calls of 2 ms
    assert example.energy_delay({"energy": 40.0, "latency": 2.0}) == 80.0
    assert example.matmul.options.objective == "energy"
    nvml.calls = 10**9
    with pytest.raises(RuntimeError, match="nvmlDeviceGetTotalEnergyConsumption returns 3"):
        example.energy(given)
