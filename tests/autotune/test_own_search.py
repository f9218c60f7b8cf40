"""Search strategies of users: what they are asked and told, what is wrong with one, and one inside of a tuning."""

from __future__ import annotations

import math
import random
import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiledsl
from tests.autotune.programs import scale_program, twice
from tests.autotune.test_search import RECORDINGS, Recording
from tests.support.load_file import load_file
from tiledsl.autotuner import AutotuneResult, SearchSpace, Trial, register_search, simulate
from tiledsl.autotuner import search as searching
from tiledsl.autotuner.engine import TuningProblem
from tiledsl.autotuner.search import STRATEGIES, make_strategy
from tiledsl.errors import TileError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "tuning" / "optuna_search.py"
TUNING = ROOT / "docs" / "tuning.md"


@pytest.fixture(autouse=True)
def _none_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_registered", {})


class Climb:
    """Neighbours of the best one by index, else a random one."""

    def __init__(self, space: SearchSpace) -> None:
        self.space, self.random = space, random.Random(space.seed)
        self.told: list[tuple[int, float | None]] = []

    def ask(self, n: int) -> list[int]:
        working = [(value, index) for index, value in self.told if value is not None]
        if working and self.random.random() < 0.5:
            return [min(len(self.space.configs) - 1, min(working)[1] + 1)]
        return [self.random.choice(self.space.order)]

    def tell(self, index: int, value: float | None) -> None:
        self.told.append((index, value))


class Listed(Climb):
    """Asks for what a test says."""

    answers: list[Any] = []

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space)
        self.answers = list(type(self).answers)

    def ask(self, n: int) -> Any:
        return self.answers.pop(0) if self.answers else []


def listed(*answers: Any) -> Any:
    return type("Listed", (Listed,), {"answers": list(answers)})


def test_a_strategy_is_asked_for_each_configuration_once() -> None:
    recording = Recording.read(RECORDINGS[0])
    strategies: list[Climb] = []
    make = lambda space: strategies.append(Climb(space)) or strategies[-1]
    strategy = make_strategy(make, len(recording.configs), recording.order, 30, 5, recording.configs, 9.0)
    tried = recording.replay(strategy)
    assert len(tried) == len(set(tried)) == 30 and set(tried) <= set(recording.order)
    space = strategies[0].space
    assert (space.configs, space.order, space.max_trials, space.seconds, space.seed) == (
        recording.configs, tuple(recording.order), 30, 9.0, 5,
    )  # fmt: skip
    assert {index for index, _ in strategies[0].told} >= set(tried)
    known = dict(enumerate(recording.latency))
    assert all(value == (known[index] if index in tried else None) for index, value in strategies[0].told)


def test_what_was_asked_for_before_is_told_again_and_not_run() -> None:
    strategies: list[Listed] = []
    kind = listed([2], [2, 3], [2], [0], [3, 4])
    strategy = make_strategy(lambda space: strategies.append(kind(space)) or strategies[-1], 6, [2, 3, 4, 5])
    assert strategy.ask(4) == [2] and strategy.ask(4) == [3] and strategy.ask(4) == []
    strategy.tell(2, 1.5)
    assert strategies[0].told == [(2, 1.5)] * 3
    assert strategy.ask(4) == [] and strategies[0].told[3:] == [(0, None)]  # which is pruned: told at once
    assert strategy.ask(4) == [4]
    strategy.tell(3, None)
    strategy.tell(4, 2.5)
    assert strategies[0].told[4:] == [(3, None), (3, None), (4, 2.5)]
    assert strategy.ask(4) == [] and strategy.done


def test_what_nobody_asked_for_is_told_when_it_is_asked_for() -> None:
    """As the default is, which is always measured."""
    strategies: list[Listed] = []
    kind = listed([0, 1])
    strategy = make_strategy(lambda space: strategies.append(kind(space)) or strategies[-1], 3, range(3))
    strategy.tell(0, 2.0)
    assert strategies[0].told == []
    assert strategy.ask(2) == [1] and strategies[0].told == [(0, 2.0)]


def test_no_more_than_n_are_unknown_at_a_time() -> None:
    strategy = make_strategy(listed([0, 1, 2], [3, 4, 5], [3]), 6, range(6))
    assert strategy.ask(2) == [0, 1] and strategy.ask(2) == [] and not strategy.done
    strategy.tell(0, 1.0)
    assert strategy.ask(2) == [3]


def test_a_strategy_ends_itself_or_is_ended() -> None:
    done = make_strategy(type("Done", (Climb,), {"done": True}), 4, range(4))
    assert done.done and done.ask(4) == []
    stuck = make_strategy(type("Stuck", (Climb,), {"ask": lambda self, n: [1]}), 4, range(4))
    assert stuck.ask(4) == [1]
    stuck.tell(1, 1.0)
    assert stuck.ask(4) == [] and stuck.done
    silent = make_strategy(listed(), 4, range(4))
    assert silent.ask(4) == [] and silent.done


@pytest.mark.parametrize("answer", [[4], [-1], ["0"], [True], [1.0], 0, "01", None])
def test_an_answer_is_a_list_of_indices(answer: Any) -> None:
    strategy = make_strategy(listed(answer), 4, range(4))
    with pytest.raises(
        TileError, match=r"the search Listed: ask\(2\) gives .*; it must give a list of indices below 4"
    ):
        strategy.ask(2)


def _raising(*_: Any) -> Any:
    raise KeyError("x")


@pytest.mark.parametrize("method", ["ask", "tell", "__init__"])
def test_what_a_strategy_raises_names_it(method: str) -> None:
    register_search("mine", type("Mine", (Climb,), {method: _raising}))
    with pytest.raises(TileError, match=r"autotune: the search mine.* raises KeyError: 'x'"):
        strategy = make_strategy("mine", 4, range(4))
        strategy.tell(strategy.ask(1)[0], 1.0)


def test_a_strategy_asks_and_is_told() -> None:
    with pytest.raises(TileError, match="gives int, which has no method ask"):
        make_strategy(lambda space: 3, 4, range(4))


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("my search", Climb, "'my search' is no name"),
        ("model", Climb, "'model' is a strategy of tiledsl's"),
        ("mine", 3, "mine is 3; it must be a function of a SearchSpace"),
    ],
)
def test_what_cannot_be_registered(name: str, make: Any, said: str) -> None:
    with pytest.raises(TileError, match=said):
        register_search(name, make)


def test_names_that_are_registered_are_listed() -> None:
    register_search("mine", Climb)
    with pytest.raises(TileError, match=rf"no search 'yours'\n  note: there are {', '.join(STRATEGIES)}, mine$"):
        make_strategy("yours", 4, range(4))


def test_the_manual_has_the_strategies() -> None:
    rows = re.findall(r'^\| `"(\w+)"` \|', TUNING.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [*STRATEGIES], "docs/tuning.md: the table of `search=` has a row for each of STRATEGIES, in order"


def problem(search: Any) -> TuningProblem:
    options = tiledsl.autotuner.TuneOptions(search=search)
    build: Any = None
    return TuningProblem("f", scale, build, None, {}, [{"block": 16}], tiledsl.Target("interpret"), options)


def scale(size: int, block: int | None = None) -> Any:
    return scale_program(size, block)


def test_the_code_behind_a_name_decides_what_is_remembered() -> None:
    register_search("mine", Climb)
    first = problem("mine").limits
    assert first == problem(Climb).limits != problem("auto").limits
    register_search("mine", listed([0]))
    assert problem("mine").limits != first


def test_a_tuning_asks_it(timer: Any) -> None:
    timed = timer(lambda config: abs(config["block"] - 32) + 1.0)
    strategies: list[Climb] = []
    register_search("mine", lambda space: strategies.append(Climb(space)) or strategies[-1])
    configs = [{"block": block} for block in (8, 16, 32, 64, 128)]
    tune = tiledsl.autotune(configs=configs, ref_prog=twice, search="mine", max_trials=3, isolate=False, progress=False)
    result = tune(tiledsl.jit(out_idx=-1)(scale))(64)
    told = {index: value for index, value in strategies[0].told if value is not None}
    tried = {index for index, trial in enumerate(result.trials) if trial.ok}
    assert len(told) == 3 and tried == {0, *told} and {configs.index(each) for each in timed} == tried
    assert result.config == min((configs[index] for index in tried), key=lambda config: abs(config["block"] - 32))
    untried = [trial.message for trial in result.trials if not trial.ok]
    assert untried and set(untried) == {"not tried: the search chose others"}


def test_what_ran_before_it_was_asked_for_is_told(timer: Any) -> None:
    """The default runs in any case; a strategy that comes to it later goes on all the same."""
    timer(lambda config: float(config["block"]))

    class InTurn(Climb):
        """Asks for the next one once it was told of the one before."""

        def __init__(self, space: SearchSpace) -> None:
            super().__init__(space)
            self.left = [1, 0, 2]

        def ask(self, n: int) -> list[int]:
            return [self.left.pop(0)] if self.left and len(self.left) + len(self.told) == 3 else []

    strategies: list[InTurn] = []
    tune = tiledsl.autotune(
        configs=[{"block": block} for block in (16, 32, 64)],
        ref_prog=twice,
        search=lambda space: strategies.append(InTurn(space)) or strategies[-1],
        isolate=False,
        progress=False,
    )
    result = tune(tiledsl.jit(out_idx=-1)(scale))(64)
    assert strategies[0].told == [(1, 32.0), (0, 16.0), (2, 64.0)]
    assert [trial.status for trial in result.trials] == ["ok"] * 3


class FakeTrial:
    def __init__(self, values: dict[str, str] | None, chance: random.Random) -> None:
        self.values, self.chance = values, chance

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        return self.chance.choice(choices) if self.values is None else self.values[name]


class FakeStudy:
    """What the example uses of optuna's study."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.queue: list[dict[str, str]] = []
        self.chance = random.Random(0)

    def enqueue_trial(self, values: dict[str, str]) -> None:
        self.queue.append(values)

    def ask(self) -> FakeTrial:
        return FakeTrial(self.queue.pop() if self.queue else None, self.chance)

    def tell(self, trial: FakeTrial, value: float | None = None, state: str | None = None) -> None:
        assert (value is None) != (state is None)
        self.told.append(state if value is None else value)


def fake_optuna(study: FakeStudy) -> types.ModuleType:
    optuna: Any = types.ModuleType("optuna")
    optuna.logging = types.SimpleNamespace(set_verbosity=lambda level: None, WARNING=30)
    optuna.samplers = types.SimpleNamespace(TPESampler=lambda seed: seed)
    optuna.trial = types.SimpleNamespace(TrialState=types.SimpleNamespace(PRUNED="pruned", FAIL="fail"))
    optuna.create_study = lambda sampler: study
    return optuna  # type: ignore[no-any-return]


def test_the_adapter_to_optuna(monkeypatch: pytest.MonkeyPatch, timer: Any) -> None:
    timer(lambda config: 1000.0 / (config["block_M"] * config["block_N"]))
    study = FakeStudy()
    monkeypatch.setitem(sys.modules, "optuna", fake_optuna(study))
    example: Any = load_file(EXAMPLE)
    example.add = example.add.with_options(isolate=False, progress=False)
    result = example.main(M=20, N=20)
    times = [each for each in study.told if isinstance(each, float)]
    assert len(times) == 6 and min(times) == min(result.latency, *times)
    space = SearchSpace([{"a": 1}, {"a": {"x": 2}}, {"a": None}], (2, 1))
    assert (space.max_trials, space.seconds, space.seed) == (None, None, 0)
    search = example.OptunaSearch(space)
    assert sorted(search.ask(5)) == [1, 2] and search.ask(5) == []
    search.tell(2, None)
    search.tell(1, 3.5)
    assert study.told[-2:] == ["fail", 3.5]


def result_with(costs: list[float | None]) -> AutotuneResult:
    """A result of which the trials have these milliseconds; None: it does not work."""
    trials = [
        Trial(index, {"block": index}, "crash" if cost is None else "ok", latency=cost)
        for index, cost in enumerate(costs)
    ]
    trials.append(Trial(len(trials), {"block": -1}, "pruned", "too large"))
    return AutotuneResult(None, {"block": 0}, 1.0, None, tuple(trials), "measured")  # type: ignore[arg-type]


def test_a_search_is_simulated_on_what_was_measured() -> None:
    result = result_with([3.0, None, 2.0, 1.0])
    found = simulate(result, "exhaustive")
    assert [trial.index for trial in found.tried] == [0, 1, 2, 3] and found.bests == (3.0, 3.0, 2.0, 1.0)
    assert (found.least, found.best.config, found.trials_to(2.5), found.trials_to(0.5)) == (1.0, {"block": 3}, 3, None)
    screened = replace(result.trials[0], status="screened", latency=0.5)  # measured a few times only
    never = replace(result.trials[1], status="ok", objective=math.inf)
    other = simulate(replace(result, trials=(screened, never, *result.trials[2:])), "exhaustive")
    assert (other.least, other.bests) == (1.0, (math.inf, math.inf, 2.0, 1.0))
    few = simulate(result, "exhaustive", max_trials=2, order=[4, 1, 3, 0])
    assert [trial.index for trial in few.tried] == [1, 3] and few.bests == (math.inf, 1.0)
    told: list[Any] = []

    class Twice:
        def __init__(self, space: Any) -> None:
            assert space.order == (0, 1, 2, 3) and len(space.configs) == 5

        def ask(self, n: int) -> list[int]:
            return [2, 2] if len(told) < 2 else []

        def tell(self, index: int, value: float | None) -> None:
            told.append((index, value))

    assert simulate(result, Twice, at_once=2).bests == (2.0,) and told == [(2, 2.0)] * 2
    assert simulate(result, "random", seed=1).best.config == {"block": 3}
    with pytest.raises(TileError, match="none of the 1 configurations that the search tried works"):
        _ = simulate(result, "exhaustive", max_trials=1, order=[1]).best
    with pytest.raises(TileError, match="no configuration of this result has a time"):
        simulate(replace(result, trials=result.trials[1:2], kernel=SimpleNamespace(name="k")), "exhaustive")


def test_a_search_is_simulated_as_it_would_run() -> None:
    result = result_with([3.0, None, 2.0, 1.0, math.inf])
    spaces: list[SearchSpace] = []
    sizes: list[int] = []

    class All(Climb):
        def __init__(self, space: SearchSpace) -> None:
            super().__init__(space)
            spaces.append(space)

        def ask(self, n: int) -> list[int]:
            sizes.append(n)
            return [index for index in (3, 1, 4, 0) if index not in dict(self.told)][:n]

    found = simulate(result, All)
    assert sizes[0] == 1 and [trial.index for trial in found.tried] == [3, 1, 4, 0]
    assert (found.bests, found.least, found.best.index) == ((1.0,) * 4, 1.0, 3)
    assert [each.config for each in result.trials] == list(spaces[0].configs) and spaces[0].order == (0, 1, 2, 3, 4)
    assert (spaces[0].seed, spaces[0].max_trials, spaces[0].seconds) == (0, None, None)
    simulate(result, All, 2, 7, 3, [4, 5, 0])
    assert sizes[-1] <= 3 and (spaces[1].order, spaces[1].seed, spaces[1].max_trials) == ((4, 0), 7, 2)
    assert found.trials_to(1.0) == 1 and found.trials_to(0.99) is None
    with pytest.raises(TileError, match="none of the 0 configurations that the search tried works"):
        _ = replace(found, tried=()).best


def test_room_is_what_is_not_outstanding_and_what_is_left() -> None:
    asked: list[int] = []

    class Counting(Climb):
        def ask(self, n: int) -> list[int]:
            asked.append(n)
            return [index for index in range(6) if index not in dict(self.told)][len(waiting) : len(waiting) + n]

    waiting: list[int] = []
    strategy = make_strategy(Counting, 6, range(6), 5)
    for n, room in ((2, 2), (5, 3), (5, None)):
        before = len(asked)
        waiting += strategy.ask(n)
        assert asked[before:] == ([room] if room else [])
    assert waiting == [0, 1, 2, 3, 4] and not strategy.done and strategy.ask(9) == [] and strategy.share(0) == 1.0
    for index in waiting:
        strategy.tell(index, 1.0)
    assert strategy.done


def test_a_strategy_of_which_nothing_new_comes_has_a_hundred_answers() -> None:
    for idle, expected in ((99, [1]), (100, [])):
        strategy = make_strategy(listed(*[[0]] * idle, [1]), 2, [1])  # the first is pruned
        assert strategy.ask(1) == expected and strategy.done == (not expected)


def test_done_is_asked_only_where_nothing_is_outstanding() -> None:
    class Ending(Climb):
        done = False

    made: list[Ending] = []
    strategy = make_strategy(lambda space: made.append(Ending(space)) or made[-1], 3, range(3))
    (index,) = strategy.ask(1)
    made[0].done = True
    assert strategy.ask(2) == [] and not strategy.done
    strategy.tell(index, None)
    assert strategy.done
    Ending.done = property(_raising)  # type: ignore[assignment]
    with pytest.raises(TileError, match="the search <lambda>: done raises KeyError"):
        _ = make_strategy(lambda space: Ending(space), 3, range(3)).done


@pytest.mark.parametrize("search", [3, None, "auto", Climb, "mine"])
def test_what_makes_a_strategy(search: Any) -> None:
    register_search("mine", Climb)
    assert searching.factory_of(search) is (Climb if search in (Climb, "mine") else None)
    assert list(searching._registered) == ["mine"]
    with pytest.raises(TileError, match="an object with ask"):
        make_strategy(lambda space: SimpleNamespace(ask=len), 1, [0])
