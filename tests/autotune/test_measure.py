"""Pieces of measuring that need no process: tensors on their way, statistics, who wins, options."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiledsl
from tiledsl.autotuner import selection
from tiledsl.autotuner.measuring import wire
from tiledsl.autotuner.measuring.bench import Bench
from tiledsl.autotuner.measuring.inputs import changed, copies, stand_ins
from tiledsl.autotuner.measuring.jobs import Policy
from tiledsl.autotuner.measuring.scratch import Scratch
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.trial import Trial
from tiledsl.autotuner.verifying.reference import Expected
from tiledsl.autotuner.verifying.tolerance import Tolerance
from tiledsl.runtime import timing
from tiledsl.runtime.timing import Stopwatch, longest_in_graph, summarize

VALUES = [
    torch.arange(6, dtype=torch.float16).reshape(2, 3),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.arange(20.0)[::2],
    torch.tensor(3, dtype=torch.int64),
    torch.empty(0, 4),
    torch.tensor([True, False]),
    torch.tensor([1.0, math.nan, math.inf]).to(torch.bfloat16),
    torch.ones(3).to(torch.float8_e4m3fn),
    torch.ones(2, dtype=torch.complex64).conj(),
    torch.ones(1, 4).expand(3, 4),
    7,
    2.5,
    math.inf,
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_values_survive_the_way(value: Any, tmp_path: Path) -> None:
    back = wire.load(wire.store(value, tmp_path, "x"), "cpu")
    if not isinstance(value, torch.Tensor):
        assert back == value and type(back) is type(value)
        return
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert not changed(back, value) and not changed(copies([value])[0], value)
    if 0 not in value.stride():
        assert back.stride() == value.stride() == copies([value])[0].stride() == stand_ins([value])[0].stride()


def test_nan_does_not_count_as_a_change() -> None:
    for nan in (torch.tensor([1.0, math.nan]), torch.tensor([1.0, complex(0.0, math.nan)])):
        assert not changed(nan.clone(), nan) and changed(torch.tensor([1.0, 2.0]), nan)


def test_median_and_spread() -> None:
    found = summarize([1.0, 2.0, 3.0, 4.0, 100.0], "events")
    assert (found.median, found.spread) == (3.0, 2.0)
    assert (summarize([5.0], "graph").median, summarize([5.0], "graph").spread) == (5.0, 0.0)


def trials(*latencies: float | None, **fields: Any) -> list[Trial]:
    made = []
    for index, latency in enumerate(latencies):
        status = "mismatch" if latency is None else "ok"
        made.append(Trial(index, {"n": index}, status, latency=latency, **fields))  # type: ignore[arg-type]
    return made


def test_finalists_are_the_best_few_and_the_default() -> None:
    found = selection.finalists(trials(9.0, 1.2, 1.0, None, 1.1, 1.01, 1.02, 1.03, 1.04))
    assert [trial.index for trial in found] == [0, 2, 5, 6, 7, 8]  # in the order in which ties are decided
    assert selection.finalists(trials(1.0, None)) == []
    assert [trial.index for trial in selection.finalists(trials(1.0, 1.2))] == []
    assert [trial.index for trial in selection.finalists(trials(1.1, 1.0))] == [0, 1]


def test_the_fastest_wins_and_ties_go_to_fewer_resources() -> None:
    assert selection.winner(trials(None, None)) is None
    tried = trials(1.2, 1.0, 1.003, 1.02, spread=0.1)
    for trial, shared in zip(tried, (1, 900, 100, 1)):
        trial.resources = {"spills": 0, "shared_bytes": shared, "registers": 64}
    assert selection.winner(tried).index == 2  # type: ignore[union-attr]
    tried[2].resources = tried[1].resources
    assert selection.winner(tried).index == 1  # type: ignore[union-attr]


def test_the_winner_is_not_slower_than_the_default_beyond_the_noise() -> None:
    tried = trials(1.0, 1.02, 1.004, spread=0.1)
    for trial, shared in zip(tried, (3, 1, 2)):
        trial.resources = {"shared_bytes": shared}
    assert selection.winner(tried).index == 2  # type: ignore[union-attr]
    assert selection.winner(tried, incumbent=1, min_improvement=0.03).index == 2  # type: ignore[union-attr]


def test_ties_do_not_depend_on_any_order() -> None:
    """Of equals the first by its values wins, whatever the order of configurations or of measurements."""
    configs = [{"block": 128, "threads": 64}, {"block": 64, "threads": 128}, {"block": 64, "threads": 64}]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        for latencies in ((1.0, 1.001, 1.004), (1.004, 1.0, 1.001), (1.003, 1.004, 1.0)):
            tried = trials(*latencies, spread=0.01)
            for trial, place in zip(tried, order):
                trial.config = configs[place]
            assert selection.winner(tried).config == configs[2]  # type: ignore[union-attr]


def test_what_ties_depends_on_how_much_rounds_differ() -> None:
    tried = trials(1.0, 1.008, spread=0.01)
    tried[1].resources, tried[0].resources = {"shared_bytes": 1}, {"shared_bytes": 2}
    assert selection.winner(tried).index == 0  # type: ignore[union-attr]
    for trial in tried:
        trial.noise = 0.04  # differences of two percent tie where they vary so much
    assert selection.winner(tried).index == 1  # type: ignore[union-attr]


def test_the_earlier_winner_stays_where_none_is_better() -> None:
    tried = trials(2.0, 1.0, 1.002, 1.02, 2.5, spread=0.01)
    tried[2].resources = {"shared_bytes": 1}

    def place(**earlier: Any) -> int:
        found = selection.winner(tried, **earlier)
        assert found is not None
        return found.index

    tried[1].resources = {"shared_bytes": 0}
    assert place() == 1
    assert place(incumbent=2) == 2  # as good
    assert place(incumbent=3) == 1
    assert place(incumbent=3, min_improvement=0.03) == 3
    assert place(incumbent=4, min_improvement=1.0) == 1  # slower than the default
    assert tried[4] in selection.finalists(tried, incumbent=4) and tried[4] not in selection.finalists(tried)


def test_only_those_in_the_final_round_are_compared() -> None:
    tried = trials(2.0, 1.05, 1.1, 0.99)
    selection.record_final(
        tried, {"rounds": {"0": [[2.0]], "1": [[1.2, 1.2]], "2": [[1.0], [1.1, 1.1]]}, "failures": {}}
    )
    assert [trial.rounds for trial in tried] == [1, 1, 2, 0] and tried[2].latency == 1.1
    assert selection.winner(tried).index == 3  # type: ignore[union-attr]  # far below all of them
    tried[3].latency = 1.08
    assert selection.winner(tried).index == 2  # type: ignore[union-attr]


def test_a_clock_that_falls_does_not_make_early_losers_win() -> None:
    """Those that are out after two rounds ran at the higher clock of the beginning."""
    tried = trials(1.7, 1.5, 1.52)
    clock = [1.0, 0.95, 0.85, 0.84, 0.84, 0.84]
    final = {"0": [[1.46 / each] * 5 for each in clock], "1": [[1.53 / each] * 5 for each in clock[:2]],
             "2": [[1.47 / each] * 5 for each in clock]}  # fmt: skip
    selection.record_final(tried, {"rounds": final, "failures": {}})
    assert selection.winner(tried).index == 0  # type: ignore[union-attr]
    assert tried[1].latency == pytest.approx(1.53 / 1.46 * tried[0].latency)  # type: ignore[operator]
    assert [trial.rounds for trial in tried] == [6, 2, 6]
    assert [trial.alone for trial in tried] == [1.7, 1.5, 1.52]


def test_a_clock_that_falls_does_not_make_those_win_that_were_not_in_the_final() -> None:
    tried = trials(1.5, 1.6)
    selection.record_final(tried, {"rounds": {"0": [[1.8] * 5] * 4}, "failures": {}})
    assert selection.winner(tried).index == 0  # type: ignore[union-attr]


def test_a_failure_in_the_final_round_counts() -> None:
    tried = trials(1.0, 1.1)
    failures = {"0": {"status": "crash", "message": "gone"}, "1": {"status": "out_of_resources", "message": "full"}}
    selection.record_final(tried, {"rounds": {}, "failures": failures})
    assert (tried[0].status, tried[0].message) == ("crash", "in the final round: gone")
    assert tried[1].ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget is 0; it must be a number of seconds"),
        ({"run_timeout": "long"}, "run_timeout is 'long'"),
        ({"timeout": float("inf")}, "timeout is inf; it must be a number of seconds"),
        ({"warmup": float("nan")}, "warmup is nan; it must be a number, at least 0"),
        ({"rep": 0}, "rep is 0; it must be a number of milliseconds, more than 0"),
        ({"max_trials": 0}, "max_trials is 0; it must be a whole number, at least 1"),
        ({"cache": "folder"}, "cache is 'folder'; it must be True or False"),
        ({"store": ""}, "store is ''; it must be a folder"),
        ({"timer": "clock"}, "timer is 'clock'; it must be module:function"),
        ({"seed_configs": {"block": 1}}, "seed_configs is {'block': 1}; it must be a list of dicts"),
        ({"seed_configs": 3}, "it must be a list of dicts"),
        ({"verify_at": "M"}, "verify_at is 'M'; it must be a dict of arguments"),
        ({"do_not_specialize": 3}, "do_not_specialize is 3; it must be names of parameters"),
        ({"devices": 0}, "devices is 0; it must be a list of GPU numbers"),
        ({"devices": []}, "it must be a list of GPU numbers"),
        ({"devices": [-1]}, "it must be a list of GPU numbers"),
        ({"backend": "cupti"}, "backend is 'cupti'; it must be 'event' or 'cudagraph'"),
        ({"prune": 3}, "it must be a bool or a function of a configuration"),
        ({"min_improvement": 3}, "min_improvement is 3; it must be from 0 to 1"),
        ({"max_mismatched_ratio": "few"}, "max_mismatched_ratio is 'few'; it must be from 0 to 1"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tiledsl.TileError) as caught:
        TuneOptions(**options)
    assert message in str(caught.value)


def test_folders_that_killed_processes_left_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tiledsl.autotuner.measuring.scratch._ENOUGH", 1 << 60)  # not in /dev/shm, where others' are
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tiledsl.autotuner.measuring.scratch._SETTLED", 0.0)
    left = tmp_path / "tiledsl-scratch-left"
    left.mkdir()
    (left / "owner").touch()
    mine = Scratch()
    other = Scratch()
    assert not left.exists() and mine.path.exists()
    mine.close()
    other.close()
    assert not any(tmp_path.iterdir())


class NoGpu(Stopwatch):
    """The stopwatch's choice of a way to time, without a GPU to time on."""

    def __init__(self, backend: str | None) -> None:
        self._longest_in_graph = longest_in_graph(backend)
        self._cache_bytes = 1 << 20
        self._torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))


@pytest.mark.parametrize(
    ("backend", "milliseconds", "reset", "capturable", "expected"),
    [
        (None, 0.01, None, True, "graph"),
        (None, 0.1, None, True, "events"),
        (None, 0.01, print, True, "events"),  # what a call changes is restored before the next
        (None, 0.01, None, False, "events"),
        ("event", 0.01, None, True, "events"),
        ("cudagraph", 10.0, None, True, "graph"),
    ],
)
def test_how_calls_are_timed(
    backend: str | None, milliseconds: float, reset: Any, capturable: bool, expected: str, monkeypatch: Any
) -> None:
    captured: list[int] = []

    def capture(calls: Any, rounds: int) -> Any:
        if not capturable:
            raise RuntimeError("operation not permitted when stream is capturing")
        captured.append(len(calls) * rounds)
        return SimpleNamespace(replay=None)

    monkeypatch.setattr(timing, "capture", capture)
    watch = NoGpu(backend)
    prepared = watch.prepare(lambda count: [print] * count, 1 << 20, milliseconds, reset)
    assert prepared.method == expected
    if expected == "graph":
        assert captured == [prepared.size]
        assert prepared.size % 3 == 0  # copies of the inputs: twice the cache, and one more


def test_warming_up_leaves_inputs_and_references_alone(tmp_path: Path) -> None:
    policy = Policy(1.0, 5.0, Tolerance(1e-2, 1e-2, 0.0), False, None, "tests.autotune.fake_timers:constant", "")
    inputs, returned = [torch.arange(8.0), 3], [torch.arange(8.0) * 2]
    for references in ([], [Expected(returned, [None])]):
        bench = Bench("cpu", policy, inputs, references, tmp_path)
        bench.warm_up()
        assert bench.inputs[0].tolist() == list(range(8)) and returned[0].tolist() == [2.0 * n for n in range(8)]
        assert bench._watch is None


def test_warming_up_that_fails_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[bool] = []
    monkeypatch.setattr(Bench, "_free", lambda bench: freed.append(True))
    policy = Policy(1.0, 5.0, Tolerance(1e-2, 1e-2, 0.0), False, None, None, "")
    monkeypatch.setattr("tiledsl.autotuner.measuring.bench.clock", lambda *_: 1 / 0)
    Bench("cpu", policy, [torch.ones(2)], [], tmp_path).warm_up()
    assert freed == [True]


class Samples:
    """A call that takes so many milliseconds, as Prepared; `asked` is for how many of them it was sampled."""

    method = "fake"

    def __init__(self, *samples: float) -> None:
        self.samples = samples
        self.asked: list[float] = []

    def warm(self, milliseconds: float) -> None:
        pass

    def sample(self, milliseconds: float, quick: float) -> list[float]:
        self.asked.append(round(milliseconds, 6))
        return [self.samples[min(len(self.asked), len(self.samples)) - 1]] * 5


@pytest.mark.parametrize(
    ("quick", "samples", "best", "asked"),
    [
        (1.0, (1.0, 1.0), None, [5, 20]),  # the first
        (1.0, (1.1, 1.1), 1.0, [5, 20]),  # may become a finalist
        (1.25, (1.25, 1.1), 1.0, [5]),  # too slow by the estimate and after a few samples
        (1.0, (1.25, 1.25), 1.0, [5, 5]),  # after a few samples and as many again, though not by the estimate
        (1.0, (1.25, 1.1), 1.0, [5, 5, 20]),  # the first samples were unlucky
        (2.5, (2.5, 2.5), 1.0, [5]),  # hopeless by the estimate
    ],
)
def test_what_is_too_slow_for_the_final_round_is_sampled_less(
    quick: float, samples: tuple[float, ...], best: float | None, asked: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = Samples(*samples)
    monkeypatch.setattr(Bench, "_prepare", lambda *_: (quick, prepared))
    policy = Policy(25.0, 100.0, Tolerance(1e-2, 1e-2, 0.0), False, None, None, "")
    job: Any = SimpleNamespace(share=0.25)
    ran: Any = None
    found = Bench("cpu", policy, [], [], Path())._time(job, print, [], ran, best)
    assert prepared.asked == asked and found["status"] == "ok"
    assert found["latency"] == (samples[0] if len(asked) == 1 else pytest.approx(sum(samples) / 2, rel=0.1))
