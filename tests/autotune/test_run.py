"""The steps of a tuning run, each with stand-ins for what it talks to: pools, kernels, the search."""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tiledsl.autotuner import run as module
from tiledsl.autotuner.compiling.compile_worker import CompileOutcome
from tiledsl.autotuner.forks import Ended
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.run import TuningRun, _load_ahead
from tiledsl.autotuner.search import make_strategy
from tiledsl.autotuner.search.exhaustive import Exhaustive
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.trial import Trial
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.runtime.parameter import Parameter
from tiledsl.runtime.target import Target

Log = list[tuple[Any, ...]]


class Recorder:
    """Notes its calls; `answers` has what they return by name."""

    def __init__(self, log: Log, **answers: Any) -> None:
        self._log, self._answers = log, answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._log.append((name, *arguments, *named.values()))
            answer = self._answers.get(name)
            return answer(*arguments) if callable(answer) else answer

        return call


class Harness:
    """A run of some configurations whose kernels, pools and clock are stand-ins."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int = 3, target: str = "cuda:90", **options: Any) -> None:
        self.log: Log = []
        self.ended: list[int] = []

        def kernel(number: int) -> Any:
            def check(params: Any, given: Any) -> None:
                self.log.append(("check", number, params[0].name, len(params), given))

            params = [Parameter("A", "float32", False, (4,)), Parameter("B", "float32", True, (4,))]
            source = f"source {number}"
            return SimpleNamespace(name="scale", source=source, params=params, outputs=[1], check=check)

        self.kernels = [kernel(number) for number in range(count)]
        configs = [{"block": n} for n in range(count)]
        self.problem: Any = SimpleNamespace(
            options=TuneOptions(cache=False, **options), target=Target.parse(target), configs=configs, name="scale",
            started=None, program=None, values={}, call_inputs=None,
        )  # fmt: skip
        self.trials = [Trial(n, config, build=lambda n=n: self.kernels[n]) for n, config in enumerate(configs)]  # type: ignore[misc]
        job = SimpleNamespace(of=lambda *given, **named: (*given, *sorted(named.items())))
        patch.setattr(module, "Job", job)
        patch.setattr(module, "runner", lambda problem, trial, kernel: kernel)
        patch.setattr(module, "task_for", lambda index, kernel, timeout, launcher: ("task", index, timeout, launcher))
        patch.setattr(module.measure, "is_measured", lambda target, options: target.kind == "cuda")
        patch.setattr(module.measure, "can_measure", lambda target: True)
        patch.setattr(TuningRun, "_needs_launcher", lambda self, kernel: False)
        self.patch = patch

    def run(self, store: Any = None, ranks: Any = None, rig: bool = True, compiler: bool = True) -> TuningRun:
        made = TuningRun(
            self.problem, self.trials, store, lambda trial: self.ended.append(trial.index), ranks or Alone()
        )
        if rig:
            pool = Recorder(self.log, cancel=lambda: [1])
            pool.best = None  # type: ignore[attr-defined]
            made._rig = Recorder(self.log, outputs=lambda described, device: ["outputs", described, device])  # type: ignore[assignment]
            made._rig.pool = pool  # type: ignore[union-attr]
        if compiler:
            made._compiler = Recorder(self.log, skip=lambda index: True)  # type: ignore[assignment]
        made._given = SimpleNamespace(stand_ins="stand-ins", device="cpu", ref_latency=3.0)
        made.kernels = dict(enumerate(self.kernels))  # type: ignore[arg-type]
        made._places = {index: index for index in range(len(self.trials))}
        return made

    def steps(self, run: TuningRun, *names: str) -> None:
        """Have methods of a run note that they are called, and do nothing else."""
        for name in names:
            self.patch.setattr(run, name, getattr(Recorder(self.log), name))

    def choose(self, run: TuningRun, **options: Any) -> None:
        """Have a run other options."""
        self.problem.options = run.options = replace(run.options, **options)

    def taken(self) -> Log:
        """What was noted since."""
        log, self.log[:] = list(self.log), []
        return log


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *given, **named: Harness(monkeypatch, *given, **named)


def ok(trial: Trial, latency: float = 1.0, **fields: Any) -> Trial:
    trial.update({"status": "ok", "latency": latency, "spread": 0.0, **fields})
    return trial


def events(run: TuningRun) -> list[Any]:
    found = []
    while not run._events.empty():
        found.append(run._events.get())
    return found


# Beginning


def test_a_run_knows_the_last_winner_and_whoever_started_it(harness: Any) -> None:
    made = harness()
    started: list[Any] = []
    made.problem.started = started.append
    run = made.run(SimpleNamespace(previous_winner=lambda: config_key({"block": 2})))
    assert run.incumbent == 2 and started == [run] and run.measured
    assert (
        made.run(SimpleNamespace(previous_winner=lambda: "another")).incumbent is None and made.run().incumbent is None
    )
    ranks = Alone()
    ranks.exchange = lambda what, value: [config_key({"block": 1}), value]  # type: ignore[method-assign]
    assert made.run(None, ranks).incumbent == 1  # as the first rank knows it


def test_metrics_are_measured(harness: Any) -> None:
    metrics = {"metrics": {"tflops": lambda given: 1.0}, "isolate": False}
    harness(**metrics).run()
    with pytest.raises(
        TileError, match="autotune of scale: metrics are measured, and nothing is on interpret here"
    ) as caught:
        harness(target="interpret", **metrics).run()
    assert caught.value.notes == ["leave out metrics and objective for this target, or tune on the GPU"]


def test_what_is_left_is_put_in_order_while_processes_start(harness: Any) -> None:
    made = harness()
    run = made.run()
    made.patch.setattr(
        module, "prune_and_order", lambda trials, problem, meanwhile: [2, 0] if meanwhile == run._prepare else [1]
    )
    run.prune()
    assert run._order == [2, 0]
    for trial in made.trials:
        trial.status = "ok"
    run.prune()
    assert run._order == [1]  # nothing to start for
    run._ranks = SimpleNamespace(size=2)  # type: ignore[assignment]
    made.patch.setattr(module, "in_common", lambda ranks, trials, order: [*order, 7])
    run.prune()
    assert run._order == [1, 7]
    made.patch.setattr(module, "prune_and_order", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run.prune()
    assert made.taken() == [("close",), ("close", False)]


@pytest.mark.parametrize(
    ("order", "numerics", "lacking", "target", "goes"),
    [
        ([], None, False, "cuda:90", False), ([1], None, False, "cuda:90", True),
        ([], "same-bits", False, "cuda:90", True),
        ([], None, True, "cuda:90", True), ([], None, True, "interpret", False),
    ],
)  # fmt: skip
def test_when_there_is_something_to_run(
    order: list[int], numerics: Any, lacking: bool, target: str, goes: bool, harness: Any
) -> None:
    made = harness(target=target, numerics=numerics, search="model", max_trials=7, budget=9.0)
    run = made.run()
    run._order = order
    made.steps(run, "_go", "_close")
    made.patch.setattr(module.selection, "lacks_final_round", lambda trials: lacking)
    made.patch.setattr(module, "make_strategy", lambda *given: given)
    run.run()
    assert made.taken() == ([("_go", ("model", 3, order, 7, 0, made.problem.configs, 9.0))] if goes else [("_close",)])


def test_the_outcome_of_a_run(harness: Any) -> None:
    made = harness(min_improvement=0.5)
    run = made.run()
    run.ref_latency = 7.0
    ok(made.trials[0], 2.0)
    ok(made.trials[1], 1.5)
    made.trials[2].same_as = 0
    found = run.choose()
    assert (found.best, found.latency_kind, found.ref_latency) == (1, "measured", 7.0)
    assert made.trials[2].latency == 2.0 and found.trials == made.trials
    run.incumbent, run.measured = 0, False
    found = run.choose()
    assert (found.best, found.latency_kind) == (0, "estimated")  # not better by half
    run._ranks.exchange = lambda what, value: [1, value]  # type: ignore[method-assign]
    assert run.choose().best == 1  # what the first rank has chosen
    run._ranks = Alone()
    made.patch.setattr(
        module,
        "certified",
        lambda trials, choose, timeout, ranks: trials[2] if choose() is trials[0] and timeout == 5.0 else None,
    )
    made.choose(run, verify=True, timeout=5.0)
    assert run.choose().best == 2
    for trial in made.trials:
        trial.update({"status": "crash", "same_as": None})
    made.choose(run, verify=False)
    assert run.choose().best is None


@pytest.mark.parametrize(
    ("target", "checks", "rig", "compiler"),
    [("cuda:90", True, True, True), ("cuda:90", False, True, True),
     ("interpret", True, True, False), ("interpret", False, False, False)],
)  # fmt: skip
def test_which_processes_start(target: str, checks: bool, rig: bool, compiler: bool, harness: Any) -> None:
    made = harness(target=target, ref_prog=(lambda A: A) if checks else None, skip_check=not checks, jobs=2)
    run = made.run(rig=False, compiler=False)
    made.patch.setattr(module.measure, "MeasurementBackend", lambda *given: ("rig", *given))
    made.patch.setattr(module, "CompilePool", lambda *given: ("pool", *given))
    made.trials[1].status = "ok"
    run._prepare()
    first = run._rig, run._compiler
    assert first[0] == (("rig", run.target, run.options, run._events) if rig else None)
    assert first[1] == (("pool", 2, run._events, 2) if compiler else None)
    run._prepare()
    assert run._rig is first[0] and run._compiler is first[1]


# The course


GOES = ("_prepare", "_ask", "_hand_over_inputs", "_begin", "_loop", "_settle_bits", "_agree", "_final_round", "_close")


def test_the_course_of_a_run(harness: Any) -> None:
    made = harness(budget=9.0)
    run = made.run()
    made.steps(run, *GOES)
    reading = threading.Thread(target=lambda: None)
    made.patch.setattr(module.launch_triton, "read_ahead", lambda: reading)
    made.patch.setattr(module, "settle_doubts", lambda trials, name: made.log.append(("settle_doubts", name)))
    made.trials[1].same_as = 0
    ok(made.trials[2])
    run._loading = threading.Thread(target=time.sleep, args=(0.02,))
    run._loading.start()
    run._go("strategy")  # type: ignore[arg-type]
    assert not run._loading.is_alive() and run._reading is reading and run._budget.left <= 9.0
    assert made.taken() == [
        ("_prepare",), ("_ask", "strategy", [0]), ("_hand_over_inputs", run._rig), ("_loop", "strategy"),
        ("settle_doubts", "scale"), ("_settle_bits",), ("_agree",), ("_final_round",), ("_close",),
    ]  # fmt: skip
    assert [trial.status for trial in made.trials] == ["pruned", "new", "ok"]
    assert made.trials[0].message == "not tried: the search chose others"
    made.trials[0].status, run._stopped, run._rig, run._reading = "new", True, None, None
    made.patch.setattr(module.measure, "can_measure", lambda target: False)
    run._go("strategy")  # type: ignore[arg-type]
    assert made.taken()[2] == ("_begin",) and run._reading is None
    assert made.trials[0].message == "not tried: the budget of 9.0 s was used up"


@pytest.mark.parametrize(("given", "kill"), [(None, False), ("inputs", True)])
def test_a_run_that_is_interrupted_kills_what_has_work(given: Any, kill: bool, harness: Any) -> None:
    made = harness()
    run = made.run()
    run._given = given
    made.steps(run, "_close")
    made.patch.setattr(run, "_prepare", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        run._go("strategy")  # type: ignore[arg-type]
    assert made.taken() == [("_close", kill)]


def test_the_reference_of_bits_is_started_ahead(harness: Any) -> None:
    for status, ahead in (("new", [0, 2]), ("ok", [0])):
        made = harness(numerics="same-bits")
        run = made.run()
        made.steps(run, *GOES)
        made.trials[2].status = status
        reference = made.trials[2]
        made.patch.setattr(
            module, "Bits", lambda problem, trials, reference=reference: SimpleNamespace(index=2, reference=reference)
        )
        run._go("strategy")  # type: ignore[arg-type]
        assert made.taken()[1] == ("_ask", "strategy", ahead)
        made.trials[0].status = "ok"
        made.trials[2].status = "new"
        run._go("strategy")  # type: ignore[arg-type]
        assert made.taken()[1] == ("_ask", "strategy", [2])


def test_ranks_go_in_step(harness: Any) -> None:
    made = harness(budget=0.0001)
    run = made.run()
    made.steps(run, *GOES)
    run._ranks = SimpleNamespace(size=2)  # type: ignore[assignment]
    made.patch.setattr(
        module,
        "InStep",
        lambda strategy, ranks, trials, is_used, ended: (
            "in step",
            strategy,
            trials is run.trials,
            time.sleep(0.01),
            is_used(),
            ended is run.ended,
        ),
    )
    run._go("strategy")  # type: ignore[arg-type]
    assert made.taken()[1][1] == ("in step", "strategy", True, None, True, True)


def test_bits_are_settled_with_rows(harness: Any) -> None:
    made = harness(numerics="batch-invariant")
    run = made.run()
    run._settle_bits()  # nothing is known of bits
    bits = Recorder(made.log, row_jobs=lambda kernel: [(1, "a", "b"), (48, "c", "d")])
    bits.index, bits.runs_here = 1, True  # type: ignore[attr-defined]
    run._bits = bits  # type: ignore[assignment]
    for name in ("w", "x", "y", "z"):
        run._events.put(("ran", 0, {"of": name}))
    run._settle_bits()
    assert made.taken() == [
        ("settle",), ("row_jobs", made.kernels[1]), ("submit", "a", 0), ("submit", "b", 0),
        ("check_rows", 1, {"of": "w"}, {"of": "x"}), ("submit", "c", 0), ("submit", "d", 0),
        ("check_rows", 48, {"of": "y"}, {"of": "z"}),
    ]  # fmt: skip
    bits.runs_here = False  # type: ignore[attr-defined]
    run._settle_bits()
    bits.runs_here, run._rig = True, None  # type: ignore[attr-defined]
    run._settle_bits()
    made.choose(run, numerics="same-bits")
    run._rig = run._compiler
    run._settle_bits()
    assert made.taken() == [("settle",)] * 3


def test_events_of_a_kind_are_waited_for(harness: Any) -> None:
    run = harness().run()
    for event in (("compiled", 0, 1), ("ran", 1, {"a": 1}), ("final", 0, "last")):
        run._events.put(event)
    assert run._wait_for("ran") == {"a": 1} and run._wait_for("final") == "last"
    with pytest.raises(queue.Empty):
        run._next_event(0.001)
    threading.Timer(0.3, run.interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run._wait_for("ran")


def test_what_is_being_done(harness: Any) -> None:
    run = harness().run()
    assert run.phase() == "inputs and reference"
    run._is_ready = True
    assert run.phase() == "lowering"
    run._running = {1}
    assert run.phase() == "1 to measure"
    run._compiling, run._is_final = {0, 2}, False
    assert run.phase() == "2 to compile, 1 to measure"
    run._is_final = True
    assert run.phase() == "final round"
    plain = harness(target="interpret").run(rig=False)
    plain._running = {1}
    assert plain.phase() == "1 to check"


def test_processes_are_let_go(harness: Any) -> None:
    made = harness()
    made.run()._close()
    made.run()._close(kill=True)
    assert made.taken() == [("close",), ("close", False), ("close",), ("close", True)]
    made.run(rig=False, compiler=False)._close()
    assert made.taken() == []


# Asking


class Asked:
    """A search that is asked for these, one list after the other."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers, self.told, self.sizes = list(answers), [], []  # type: ignore[var-annotated]

    @property
    def done(self) -> bool:
        return not self.answers

    def ask(self, n: int) -> list[int]:
        self.sizes.append(n)
        return self.answers.pop(0)

    def share(self, index: int) -> float:
        return 0.5 + index

    def tell(self, index: int, cost: float | None) -> None:
        self.told.append((index, cost))


def test_what_the_search_wants_is_started(harness: Any) -> None:
    made = harness(jobs=5)
    run = made.run()
    made.steps(run, "_start_all")
    run._places = {}
    ok(made.trials[1], 4.0)
    search = Asked([1, 2], [])
    run._ask(search, [0, 2])  # type: ignore[arg-type]
    assert made.taken() == [("_start_all", [0, 2, 1]), ("_start_all", ())]
    assert search.told == [(1, 4.0)] and run._shares == {1: 1.5, 2: 2.5} and search.sizes == [20, 20]
    run._places = {0: 0, 2: 1}
    run._ask(Asked([2, 1]), [0])  # type: ignore[arg-type]
    assert made.taken()[0] == ("_start_all", [1])  # the others are under way
    run._compiling = {1}
    run._ask(Asked([0]), [0])  # type: ignore[arg-type]
    assert made.taken() == [("_start_all", [0])]  # first what waits
    run._compiling = set()
    made.patch.setattr(run, "_is_late", lambda: True)
    run._ask(Asked([0]), [])  # type: ignore[arg-type]
    assert made.taken() == [("_start_all", [])]


def test_an_exhaustive_search_is_asked_for_all_at_once(harness: Any) -> None:
    made = harness(30, jobs=1)
    run = made.run()
    made.steps(run, "_start_all")
    run._places = {}
    run._ask(Exhaustive(list(range(30)), None))
    assert made.taken()[0] == ("_start_all", list(range(30))) and set(run._shares.values()) == {0.25}
    run._shares, run._places = {}, {}
    run._ask(make_strategy("model", 30, range(30), 30))
    assert len(made.taken()[0][1]) == 16


def test_what_was_asked_for_before_is_timed_for_longer(harness: Any) -> None:
    made = harness()
    run = made.run()
    run._is_ready = True
    run._shares = {1: 0.5}
    ok(made.trials[1])
    search = Asked([1])
    run._ask(search)  # type: ignore[arg-type]
    again = ("submit", (1, made.kernels[1], True, 1.5, ("checked", True)), 1)
    assert made.taken() == [again, ("submit", []), ("submit", [])]  # and nothing to compile
    assert search.told == [] and run._running == {1}
    run._places = {}
    assert run._time_again(1) and run._places == {1: 0}
    for change in ({"status": "crash"}, {"status": "ok", "same_as": 0}):
        made.trials[1].update(change)
        assert not run._time_again(1)
    made.trials[1].same_as = None
    for name, value in (("_is_ready", False), ("measured", False), ("_rig", None)):
        with made.patch.context() as patch:
            patch.setattr(run, name, value)
            assert not run._time_again(1)
    made.patch.setattr(module, "runner", lambda *_: None)
    assert not run._time_again(1)


class NoForks:
    def __init__(self, rehearse: Any, wanted: Any, timeout: float) -> None:
        self.answers = [self.of(rehearse, index) for index in wanted]

    def of(self, rehearse: Any, index: int) -> Any:
        rehearse(index)
        return Ended(True, "it hung") if index == 1 else None

    def __enter__(self) -> Any:
        return iter(self.answers)

    def __exit__(self, *_: Any) -> None:
        pass


def test_configurations_are_lowered_and_compiled(harness: Any) -> None:
    made = harness(4, timeout=11.0)
    made.problem.program = object()
    made.patch.setattr(module, "Forked", NoForks)
    run = made.run()
    run._places, run.kernels = {}, {}
    made.kernels[3].source = made.kernels[0].source  # the same again
    run._start_all([2, 1, 0, 3])
    assert run._places == {2: 0, 1: 1, 0: 2, 3: 3} and set(run.kernels) == {0, 2} and run._compiling == {0, 2}
    assert (made.trials[1].status, made.trials[1].message) == ("compile_timeout", "it hung") and made.trials[
        3
    ].same_as == 0
    assert made.taken() == [("submit", [("task", 2, 11.0, False), ("task", 0, 11.0, False)])]
    assert events(run) == [("ran", 1, {})] and made.trials[0].source_hash == source_digest("source 0")


def test_ranks_compile_different_ones_first(harness: Any) -> None:
    made = harness(4)
    run = made.run()
    run._ranks = SimpleNamespace(rank=1, size=2)  # type: ignore[assignment]
    run._start_all([0, 1, 2, 3])
    assert [task[1] for task in made.taken()[0][1]] == [2, 3, 0, 1]


def test_without_a_compiler_they_are_checked_as_soon_as_inputs_are_there(harness: Any) -> None:
    made = harness(target="interpret")
    run = made.run(compiler=False)
    made.steps(run, "_measure")
    run._start_all([0, 1])
    assert made.taken() == [] and run._running == {0, 1}
    run._is_ready = True
    run._start_all([2])
    assert made.taken() == [("_measure", 2)]


def test_what_is_rehearsed_in_a_fork(harness: Any) -> None:
    made = harness(target="interpret", skip_check=True)
    ran: list[Any] = []
    made.patch.setattr(module, "runner", lambda problem, trial, kernel: ran.append((trial.index, kernel)))
    run = made.run()
    run._rehearse(1)
    assert ran == []
    run.measured = True
    run._rehearse(1)
    made.problem.options = run.options = TuneOptions(cache=False, ref_prog=lambda A: A)
    run.measured = False
    run._rehearse(2)
    assert ran == [(1, made.kernels[1]), (2, made.kernels[2])]


def test_what_cannot_be_lowered_ends(harness: Any) -> None:
    made = harness(5)
    run = made.run()
    for error in (ValueError("no"), SystemExit(3)):

        def fail(error: Any = error) -> Any:
            raise error

        made.trials[0].build = fail
        assert run._lower(made.trials[0]) is None and made.trials[0].status == "compile_error"
    assert made.trials[0].message.startswith("SystemExit") and events(run) == [("ran", 0, {})] * 2
    assert run._lower(made.trials[1]) is made.kernels[1]
    made.kernels[2].source = made.kernels[1].source
    ok(made.trials[1], 2.0)
    assert run._lower(made.trials[2]) is None and made.trials[2].latency == 2.0 and events(run) == [("ran", 2, {})]
    run._bits = SimpleNamespace(
        lowered=lambda trial, kernel: trial.fail("other_bits", "others") if trial.index == 3 else 1 // 0
    )  # type: ignore[assignment]
    assert run._lower(made.trials[3]) is None and made.trials[3].status == "other_bits"
    assert run._lower(made.trials[4]) is None and made.trials[4].status == "compile_error"
    assert events(run) == [("ran", 3, {}), ("ran", 4, {})] and {3, 4} <= run._running
    made.trials[4].update({"status": "new", "message": ""})
    run._bits = SimpleNamespace(lowered=lambda trial, kernel: None)  # type: ignore[assignment]
    assert run._lower(made.trials[4]) is made.kernels[4] and events(run) == []


def test_inputs_are_made_for_the_first_kernel_that_there_is(harness: Any) -> None:
    made = harness(call := 3)
    run = made.run()
    made.steps(run, "_begin")
    asked: list[Any] = []
    given = SimpleNamespace(ref_latency=4.0)
    made.patch.setattr(module.measure.Given, "make", staticmethod(lambda *of: asked.append(of) or given))

    def runner(problem: Any, trial: Trial, kernel: Any) -> Any:
        return 1 // 0 if trial.index == 1 else kernel

    made.patch.setattr(module, "runner", runner)
    run.kernels = {1: made.kernels[1], 2: made.kernels[2]}
    made.problem.call_inputs = {"A": call}
    run._hand_over_inputs(run._rig)  # type: ignore[arg-type]
    assert asked == [(made.kernels[2], run.options, {"A": 3}, True)] and run.ref_latency == 4.0 and run._given is given
    assert made.taken() == [("begin", given), ("_begin",)]
    run.kernels, run._given = {}, None
    ok(made.trials[0])
    run._hand_over_inputs(run._rig)  # type: ignore[arg-type]
    assert asked[1][0] is made.kernels[0]  # of an earlier run
    made.taken()
    made.trials[0].status = "crash"
    run._given = None
    run._hand_over_inputs(run._rig)  # type: ignore[arg-type]
    assert run._given is None and made.taken() == [("_begin",)]


def test_what_needs_no_compiling_is_measured_in_the_order_of_asking(harness: Any) -> None:
    made = harness()
    run = made.run()
    made.steps(run, "_measure")
    run._running, run._places = {0, 1, 2}, {2: 0, 1: 1, 0: 2}
    ok(made.trials[1])
    run._begin()
    assert made.taken() == [("_measure", 2), ("_measure", 0)] and run._is_ready and time.monotonic() - run._ready_at < 5


# Events


def test_events_are_handled_until_nothing_is_open(harness: Any) -> None:
    made = harness(4)
    run = made.run()
    made.steps(run, "_ask", "_compiled", "_end")
    made.patch.setattr(run, "_ran", lambda trial, outcome: (run._running.discard(trial.index), trial.update(outcome)))
    run._compiling, run._running = {0}, {1, 2}
    for event in (("compiled", 0, "outcome"), ("ran", 1, {"status": "crash"}), ("ran", 2, {}), ("ran", 3, {})):
        run._events.put(event)
    run._loop("search")  # type: ignore[arg-type]
    assert made.taken() == [
        ("_compiled", made.trials[0], "outcome"), ("_ask", "search"), ("_end", "search", made.trials[1]),
        ("_ask", "search"),
        ("_ask", "search"),
    ]  # fmt: skip
    assert not run._compiling and events(run) == [("ran", 3, {})]


def test_a_run_that_is_late_stops_once(harness: Any) -> None:
    made = harness()
    run = made.run()
    made.steps(run, "_ask", "_compiled", "_ran")
    run._running = {1}
    made.patch.setattr(run, "_is_late", lambda: True)
    stops: list[int] = []

    def stop() -> None:
        stops.append(1)
        run._stopped = True
        run._events.put(("compiled", 0, None))  # of one that was given up
        threading.Timer(0.02, lambda: (run._running.clear(), run._events.put(("ran", 1, {})))).start()

    made.patch.setattr(run, "_stop_early", stop)
    run._loop("search")  # type: ignore[arg-type]
    assert stops == [1] and made.taken() == [("_ran", made.trials[1], {}), ("_ask", "search")]


def outcome(status: Any = "ok", **fields: Any) -> CompileOutcome:
    return CompileOutcome(0, status, seconds=2.5, **fields)


def test_what_was_compiled_is_measured_unless_it_need_not_be(harness: Any) -> None:
    made = harness(8)
    run = made.run()
    made.steps(run, "_measure", "_leave_out_larger", "_announce")
    loaded: list[Any] = []
    made.patch.setattr(module, "_load_ahead", lambda *given: loaded.append(given))
    fine = {"shared_bytes": 1000, "spills": 100, "registers": 32, "num_warps": 4}
    run._compiled(made.trials[0], outcome(resources=fine, binary_hash="x"))
    first = made.trials[0]
    assert (first.compile_seconds, first.resources, first.binary_hash) == (2.5, fine, "x")
    assert made.taken() == [("_measure", 0)] and run._loading is None
    run._reading = reading = threading.Thread(target=lambda: None)
    run._compiled(made.trials[1], outcome(resources=fine, binary_hash="y"))
    run._loading.join()  # type: ignore[union-attr]
    assert run._loading.daemon and run._reading is None and loaded == [(reading, made.kernels[1])]  # type: ignore[union-attr]
    made.taken()
    run._compiled(made.trials[2], outcome(binary_hash="x"))
    assert made.trials[2].same_as == 0 and made.taken() == []  # it waits for the first
    run._compiled(made.trials[3], outcome("compile_error", message="bad"))
    assert (made.trials[3].status, made.trials[3].message) == ("compile_error", "bad") and made.taken() == []
    run._compiled(made.trials[4], outcome("out_of_resources", message="large"))
    assert made.taken() == [("_leave_out_larger", made.trials[4])]
    spilling = {"spills": 600}
    run._compiled(made.trials[5], outcome(resources=spilling))
    assert made.trials[5].status == "pruned" and made.trials[5].message.startswith("spills 600 bytes")
    made.trials[0].update({"status": "new", "binary_hash": ""})
    run._compiled(made.trials[0], outcome(resources=spilling))
    assert made.trials[0].status == "new" and made.taken() == [("_measure", 0)]  # the default in any case
    made.choose(run, prune=False)
    run._compiled(made.trials[6], outcome(resources=spilling))
    run._compiled(made.trials[6], outcome("out_of_resources"))
    assert made.taken() == [("_measure", 6)]
    run._bits = SimpleNamespace(compiled=lambda trial, orders: trial.fail("other_bits", orders))  # type: ignore[assignment]
    run._compiled(made.trials[7], outcome(orders="abc"))
    assert (made.trials[7].status, made.trials[7].message) == ("other_bits", "abc") and made.taken() == []
    made.trials[7].status = "new"
    run._bits = SimpleNamespace(compiled=lambda trial, orders: None)  # type: ignore[assignment]
    run._compiled(made.trials[7], outcome(orders="abc"))
    assert made.taken() == [("_measure", 7)]


@pytest.mark.parametrize("has_program", [True, False])
def test_what_needs_no_less_than_one_that_did_not_fit_is_left_out(has_program: bool, harness: Any) -> None:
    made = harness(5)
    made.problem.program = object() if has_program else None
    run = made.run()
    made.patch.setattr(module, "work_of", lambda kernel: int(kernel.source.split()[1]))
    made.patch.setattr(
        module.prune, "needs_as_much", lambda one, other, target: target is run.target and one > other + 1
    )
    made.patch.setattr(run._compiler, "skip", lambda index: index != 4, raising=False)
    failed = made.trials[1]
    failed.fail("out_of_resources", "needs much\nin detail")
    run._compiling = {4, 3, 2, 0}
    run._leave_out_larger(failed)
    left_out = [trial.index for trial in made.trials if trial.status == "pruned"]
    assert left_out == ([3] if has_program else [2, 3]) and run._compiling == {0, 4} | ({2} if has_program else set())
    assert made.trials[3].message == "needs no less than block=1: needs much"
    assert events(run) == [("ran", index, {}) for index in left_out]


def test_a_configuration_is_checked_and_timed_or_estimated(harness: Any) -> None:
    made = harness()
    run = made.run()
    made.steps(run, "_announce", "_estimate")
    run._shares = {1: 0.75}
    run._measure(0)
    run._measure(1)
    job = lambda n, share, bits=False: (n, made.kernels[n], True, share, ("bits", bits))
    check = lambda n: ("check", n, "A", 1, "stand-ins")
    assert made.taken() == [check(0), ("submit", job(0, 0.25), 0), check(1), ("submit", job(1, 0.75), 1)]
    assert run._running == {0, 1}
    run._bits = SimpleNamespace(runs_here=True)  # type: ignore[assignment]
    run._measure(0)
    assert made.taken()[1] == ("submit", job(0, 0.25, True), 0)
    run._bits = SimpleNamespace(runs_here=False)  # type: ignore[assignment]
    run._measure(0)
    assert made.taken()[1] == ("submit", job(0, 0.25), 0)
    made.kernels[2].check = lambda *_: 1 // 0
    run._measure(2)
    assert made.trials[2].status == "launch_error" and made.taken() == []
    made.trials[2].status, run._rig = "new", None
    run._running = {2}
    run._measure(2)
    assert made.taken() == [("_estimate", made.trials[2]), ("_announce", made.trials[2])]


def test_what_has_run_is_recorded(harness: Any) -> None:
    made = harness()
    run = made.run()
    run._running = {0, 1, 2}
    bits: list[int] = []
    run._bits = SimpleNamespace(ran=lambda trial: bits.append(trial.index))  # type: ignore[assignment]
    run._ran(made.trials[0], {"status": "ok", "latency": 2.0})
    assert run._rig.pool.best == 2.0 and run._running == {1, 2} and bits == [0] and run._checked == 0  # type: ignore[union-attr]
    run._ran(made.trials[1], {"status": "ok", "latency": 1.0, "doubts": {"zeros": "wrong"}})
    assert run._rig.pool.best == 2.0  # type: ignore[union-attr]
    run._ran(made.trials[2], {"status": "ok", "latency": 1.5})
    run._ran(made.trials[0], {"status": "ok", "latency": 3.0})
    assert run._rig.pool.best == 1.5 and made.trials[0].latency == 3.0  # type: ignore[union-attr]
    made.patch.setattr(run, "_in_tiles", lambda trial, at: f"; in {at}")
    run._ran(made.trials[2], {"status": "mismatch", "message": "wrong", "at": "tile 3"})
    assert made.trials[2].message == "wrong; in tile 3" and run._rig.pool.best == 1.5  # type: ignore[union-attr]
    made.steps(run, "_check_by_hand")
    run._ran(made.trials[0], {"outputs": "files"})
    run._ran(made.trials[2], {"outputs": "files"})
    assert made.taken() == [("_check_by_hand", made.trials[0], "files")]


def test_where_nothing_is_measured_times_are_estimated(harness: Any) -> None:
    made = harness(target="interpret")
    run = made.run()
    made.steps(run, "_estimate", "_suggest_smaller")
    run._ran(made.trials[0], {"status": "ok"})
    assert made.taken() == [("_suggest_smaller",), ("_estimate", made.trials[0])]
    made.trials[0].latency = 1.0
    run._ran(made.trials[0], {})
    run._ran(made.trials[1], {"status": "crash", "message": ""})
    assert made.taken() == [("_suggest_smaller",)]


def test_what_is_minimised_follows_the_last_measurement(harness: Any) -> None:
    made = harness(metrics={"joules": lambda given: 0.0}, objective="joules", isolate=False)
    run = made.run()
    for joules in (5.0, 4.0):
        run._ran(made.trials[0], {"status": "ok", "latency": 1.0, "metrics": {"joules": joules}})
        assert made.trials[0].objective == joules
    run._ran(made.trials[0], {"status": "crash", "message": "", "metrics": None})
    assert made.trials[0].objective is None


def test_long_checks_suggest_a_smaller_size_once(harness: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = harness(4, target="interpret")
    made.problem.values = {"M": 4096, "N": 256, "flag": True, "block": 512, "name": "x", "K": 257}
    run = made.run()
    run._ready_at = time.monotonic() - 40.0
    ok(made.trials[0])
    caplog.set_level(logging.WARNING, "tiledsl")
    run._checked = 1
    run._suggest_smaller()  # 20 s for each of 3
    assert [record.getMessage() for record in caplog.records] == [
        "autotune: scale: the interpreter takes 20.0 s for a configuration, about 60 s for the 3 that are left; for "
        "a GPU, "
        "as with target='cuda:90', verify_at={'M': 256, 'K': 256} checks them at a smaller size"
    ]
    run._suggest_smaller()
    assert len(caplog.records) == 1 and run._checked == 3
    later = made.run()
    later._ready_at = time.monotonic() - 59.0 / 3  # not a minute in all
    later._suggest_smaller()
    made.choose(later, verify_at={"M": 8})
    later._ready_at -= 100
    later._suggest_smaller()
    assert len(caplog.records) == 1
    other = harness(4, target="cuda:90")
    run = other.run()
    run.target = SimpleNamespace(runs_here=False)  # type: ignore[assignment]
    run._ready_at = time.monotonic() - 40.0
    run._suggest_smaller()
    assert caplog.records[1].getMessage().endswith("the 4 that are left; verify_at={...} checks them at a smaller size")


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("the output", "B"),
        ("output 1", "C"),
        ("output 0", "B"),
        ("A, which it writes into,", "A"),
        ("nothing", "nothing"),
    ],
)
def test_in_which_tiles_a_mismatch_is(name: str, of: str, harness: Any) -> None:
    made = harness()
    run = made.run()
    made.kernels[1].params = [Parameter(each, "float32", False, (4,)) for each in "ABC"]
    made.kernels[1].outputs = [1, 2]
    made.patch.setattr(
        "tiledsl.autotuner.verifying.where.in_tiles",
        lambda kernel, name, first, worst: f"{kernel.source} {name} {first} {worst}",
    )
    at = {"name": name, "first": [0], "worst": [3]}
    assert run._in_tiles(made.trials[1], at) == f"source 1 {of} [0] [3]"
    run.kernels = {}
    assert run._in_tiles(made.trials[1], at) == ""
    made.patch.setattr("tiledsl.autotuner.verifying.where.in_tiles", lambda *_: 1 // 0)
    assert made.run()._in_tiles(made.trials[1], at) == ""


def test_outputs_are_checked_by_the_user(harness: Any) -> None:
    made = harness(manual_check_prog=(check := lambda ours, theirs: None), ref_prog=lambda A: A)
    run = made.run()
    asked: list[Any] = []
    run._given.disagreement = lambda *given: asked.append(given)
    run._check_by_hand(ok(made.trials[0]), ["file"])  # type: ignore[list-item]
    assert made.trials[0].verified and made.trials[0].ok and asked == [(check, ["outputs", ["file"], "cpu"])]
    run._given.disagreement = lambda *_: AssertionError("not alike")
    run._check_by_hand(made.trials[0], ["file"])  # type: ignore[list-item]
    assert (made.trials[0].status, made.trials[0].verified) == ("mismatch", False)
    assert made.trials[0].message == "AssertionError: not alike"


def test_times_are_predicted(harness: Any) -> None:
    made = harness()
    run = made.run()
    made.trials[1].resources = {"registers": 3}
    made.patch.setattr(
        module.model, "predict", lambda kernel, target, resources: resources["registers"] + len(kernel.source)
    )
    run._estimate(made.trials[1])
    assert (made.trials[1].status, made.trials[1].latency) == ("ok", 3 + 8)
    run._estimate(made.trials[2])
    assert made.trials[2].status == "launch_error" and made.trials[2].latency is None


def test_the_final_round_is_of_the_best(harness: Any) -> None:
    made = harness(4)
    run = made.run()
    for index in range(4):
        ok(made.trials[index], 1.0 + index / 100)
    run.incumbent = 3
    recorded: list[Any] = []
    made.patch.setattr(module.selection, "record_final", lambda trials, outcome: recorded.append(outcome))
    made.steps(run, "_agree")
    made.patch.setattr(module, "runner", lambda problem, trial, kernel: None if trial.index == 2 else kernel)
    run._events.put(("final", 0, "rounds"))
    run._final_round()
    jobs = [(index, made.kernels[index], True) for index in (3, 0, 1)]
    assert made.taken() == [("submit_final", jobs), ("_agree",)] and recorded == ["rounds"]
    assert made.ended == [3, 0, 1, 2] and run._is_final
    for name, value in (("measured", False), ("_rig", None)):
        other = made.run()
        setattr(other, name, value)
        other._final_round()
        assert not other._is_final
    for trial in made.trials[1:]:
        trial.status = "crash"
    run = made.run()
    run._final_round()
    assert not run._is_final and made.taken() == []


def test_a_trial_that_ends_is_told_with_those_that_waited_for_it(harness: Any) -> None:
    made = harness(4)
    run = made.run()
    search = Asked()
    run._shares = {0: 1.0, 1: 1.0, 3: 1.0}
    run._duplicates.follow(made.trials[1], made.trials[0])
    run._duplicates.follow(made.trials[2], made.trials[0])
    run._end(search, ok(made.trials[0], 2.0))  # type: ignore[arg-type]
    assert search.told == [(0, 2.0), (1, 2.0)] and made.ended == [0, 1, 2]  # the last was not asked for
    run._ranks = SimpleNamespace(size=2)  # type: ignore[assignment]
    run._end(search, ok(made.trials[3], 2.0, doubts={"zeros": "wrong"}))  # type: ignore[arg-type]
    assert search.told[2:] == [(3, None)] and made.ended == [0, 1, 2]
    for fields, cost in (
        ({"doubts": None, "objective": 7.0}, 7.0),
        ({"latency": None}, None),
        ({"status": "crash", "latency": 1.0}, None),
    ):
        made.trials[3].update(fields)
        run._tell(search, made.trials[3])  # type: ignore[arg-type]
        assert search.told[-1] == (3, cost)


# Time


def test_how_long_an_event_is_waited_for(harness: Any) -> None:
    made = harness(budget=100.0)
    run = made.run()
    late: list[bool] = [False]
    made.patch.setattr(run, "_is_late", lambda: late[0])
    run._budget = SimpleNamespace(left=9.0)  # type: ignore[assignment]
    assert run._seconds_to_wait() == 0.25
    run._budget.left = 0.125  # type: ignore[misc]
    assert run._seconds_to_wait() == 0.125
    run._budget.left = 0.0  # type: ignore[misc]
    assert run._seconds_to_wait() == 0.25  # until the default has ended
    late[0] = True
    assert run._seconds_to_wait() == 0.01
    run._stopped, run._budget.left = True, 0.125  # type: ignore[misc]
    assert run._seconds_to_wait() == 0.25


def test_a_run_is_late_once_the_default_has_ended_and_one_works(harness: Any) -> None:
    made = harness(budget=0.000001)
    run = made.run()
    time.sleep(0.001)
    assert not run._is_late()
    ok(made.trials[1])
    assert not run._is_late()
    made.trials[0].status = "crash"
    assert run._is_late()
    run._ranks = SimpleNamespace(size=2)  # type: ignore[assignment]
    assert not run._is_late()
    made.trials[1].status, run._ranks = "crash", Alone()
    assert not run._is_late()


def test_what_waits_is_given_up_early(harness: Any) -> None:
    made = harness(5)
    run = made.run()
    run._compiling, run._running = {2, 3}, {0, 1, 3}
    run._stop_early()
    assert run._stopped and not run._compiling and run._running == {0} and made.taken() == [("close",), ("cancel",)]
    bare = made.run(rig=False, compiler=False)
    bare._compiling, bare._running = {2}, {0, 2}
    bare._stop_early()
    assert bare._running == {0}


def test_what_the_first_call_needs_is_loaded_ahead(harness: Any) -> None:
    order: list[Any] = []
    made = harness()
    made.patch.setattr(module.launch_triton, "make_launcher", lambda triton: order.append(triton))
    reading = threading.Thread(target=lambda: (time.sleep(0.02), order.append("read")))
    reading.start()
    kernel: Any = SimpleNamespace(compiled={"a": SimpleNamespace(triton="one"), "b": SimpleNamespace(triton="two")})
    _load_ahead(reading, kernel)
    assert order == ["read", "one", "two"]
    _load_ahead(reading, SimpleNamespace())  # type: ignore[arg-type]  # which comes again when it matters
