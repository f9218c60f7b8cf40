"""Search strategies, replayed on recordings: what they ask for, and how close to the best they come."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledsl
from tiledsl.autotuner.search import Strategy, make_strategy
from tiledsl.autotuner.search.model_order import Neighbours

RECORDINGS = sorted(Path(__file__).with_name("recordings").glob("search_*.json"))


@dataclass
class Recording:
    """A tuned space: configurations, their latencies (None: does not work) and what the model said."""

    configs: list[dict[str, Any]]
    latency: list[float | None]
    order: list[int]

    @classmethod
    def read(cls, path: Path) -> Recording:
        data = json.loads(path.read_text())
        configs = [dict(zip(data["space"], each)) for each in itertools.product(*data["space"].values())]
        predicted = data["predicted"]
        known = [index for index in range(len(configs)) if predicted[index] is not None]
        return cls(configs, data["latency"], sorted(known, key=lambda index: (predicted[index], index)))

    @property
    def best(self) -> float:
        return min(each for each in self.latency if each is not None)

    def replay(self, strategy: Strategy, batch: int = 4) -> list[int]:
        """The trials that a strategy makes, in order, told in batches as a compile pool would."""
        tried: list[int] = []
        while not strategy.done:
            asked = strategy.ask(batch)
            assert asked, "nothing asked, nothing outstanding, and not done"
            for index in asked:
                strategy.tell(index, self.latency[index])
            tried += asked
        return tried

    def found(self, tried: list[int]) -> float:
        return min(latency for index in tried if (latency := self.latency[index]) is not None)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_model_search_comes_within_two_percent_in_an_eighth_of_the_trials(path: Path) -> None:
    recording = Recording.read(path)
    budget = max(32, len(recording.order) // 8)
    for seed in range(5):
        strategy = make_strategy("model", len(recording.configs), recording.order, budget, seed, recording.configs)
        tried = recording.replay(strategy)
        assert len(tried) == len(set(tried)) == budget
        assert recording.found(tried) <= 1.02 * recording.best


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_model_search_beats_a_random_sample(path: Path) -> None:
    recording = Recording.read(path)
    size, budget = len(recording.configs), 32

    def mean(name: str) -> float:
        runs = [make_strategy(name, size, recording.order, budget, seed, recording.configs) for seed in range(8)]
        return sum(recording.found(recording.replay(run)) for run in runs) / 8

    assert mean("model") < mean("random")


def test_a_run_is_the_same_for_the_same_seed() -> None:
    recording = Recording.read(RECORDINGS[0])
    size = len(recording.configs)

    def run(name: str, seed: int) -> list[int]:
        return recording.replay(make_strategy(name, size, recording.order, 40, seed, recording.configs))

    for name in ("model", "random"):
        assert run(name, 1) == run(name, 1) != run(name, 2)


def test_without_neighbours_the_model_search_follows_the_order() -> None:
    assert make_strategy("model", 10, [5, 3, 9, 1], 3).ask(10)[:2] == [5, 3]
    assert make_strategy("exhaustive", 10, [5, 3, 9, 1]).ask(10) == [5, 3, 9, 1]
    assert make_strategy("exhaustive", 10, [5, 3, 9, 1], budget=2).ask(10) == [5, 3]


def test_auto_is_exhaustive_for_small_spaces() -> None:
    kind: Callable[..., str] = lambda size, **options: (
        type(make_strategy("auto", size, range(size), **options)).__name__
    )
    assert (kind(256), kind(257), kind(100, budget=50)) == ("Exhaustive", "ModelOrder", "ModelOrder")
    assert kind(100, budget=100) == "Exhaustive"


def test_a_round_waits_for_its_answers() -> None:
    configs = [{"x": x} for x in range(20)]
    strategy = make_strategy("model", 20, range(20), 12, configs=configs)
    first = strategy.ask(20)
    assert len(first) == 6 and strategy.ask(1) == [] and not strategy.done
    for index in first:
        strategy.tell(index, 1.0 + abs(index - 9))
    assert strategy.ask(1) == [min(i for i in range(20) if i not in first)]


def test_if_nothing_works_the_search_goes_on_along_the_order() -> None:
    strategy = make_strategy("model", 8, range(8), 8, configs=[{"x": x} for x in range(8)])
    tried: list[int] = []
    while not strategy.done:
        for index in strategy.ask(3):
            tried.append(index)
            strategy.tell(index, None)
    assert sorted(tried) == list(range(8))


@given(st.data())
def test_no_configuration_is_asked_for_twice(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    order = data.draw(st.permutations(range(size)))[: data.draw(st.integers(1, size))]
    name = data.draw(st.sampled_from(["auto", "exhaustive", "model", "random"]))
    budget = data.draw(st.none() | st.integers(1, 50))
    configs = [{"x": index % 7, "y": index // 7} for index in range(size)]
    strategy = make_strategy(name, size, order, budget, 0, configs)
    tried: list[int] = []
    waiting: list[int] = []
    for _ in range(1000):
        if strategy.done and not waiting:
            break
        asked = strategy.ask(data.draw(st.integers(1, 8)))
        tried += asked
        waiting += asked
        if waiting and (not asked or data.draw(st.booleans())):
            strategy.tell(waiting.pop(), data.draw(st.none() | st.floats(0.1, 10)))
    assert strategy.done and not waiting
    assert len(tried) == len(set(tried)) and set(tried) <= set(order)
    assert len(tried) == min(len(order), budget or (64 if name == "model" else len(order)))


def test_neighbours_move_one_tunable_by_one_step() -> None:
    configs = [{"m": m, "kind": kind} for m in (128, 32, 64) for kind in ("a", "b", "c")]
    near = Neighbours(configs, range(9))
    shown = [configs[index] for index in near.of(configs.index({"m": 32, "kind": "a"}))]
    assert shown == [{"m": 64, "kind": "a"}, {"m": 32, "kind": "b"}, {"m": 32, "kind": "c"}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("simulated annealing", 3, [0]), "there is no search 'simulated annealing'"),
        (("random", 3, [0], 0), "budget is 0"),
    ],
)
def test_bad_requests(arguments: Any, message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=message):
        make_strategy(*arguments)
