"""The steps of a tuning run, each with stand-ins for what it talks to: pools, kernels, the search."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.autotune.run_harness import Asked, Recorder, events, ok
from tiledsl.autotuner import run as module
from tiledsl.autotuner.forks import Ended
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.search import make_strategy
from tiledsl.autotuner.search.exhaustive import Exhaustive
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.trial import Trial
from tiledsl.digests import source_digest
from tiledsl.errors import TileError

Log = list[tuple[Any, ...]]


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


def test_nothing_starts_where_nothing_is_left(harness: Any) -> None:
    made = harness()
    run = made.run()
    for trial in made.trials:
        trial.status = "ok"
    made.patch.setattr(run, "_prepare", lambda: 1 // 0)
    run.prune()
    assert run._order == []


def test_what_is_left_is_put_in_order_while_processes_start(harness: Any) -> None:
    made = harness()
    run = made.run()
    made.patch.setattr(
        module, "prune_and_order", lambda trials, problem, meanwhile: [2, 0] if meanwhile == run._prepare else [1]
    )
    run.prune()
    assert run._order == [2, 0]
    run._ranks = SimpleNamespace(size=2)  # type: ignore[assignment]
    made.patch.setattr(module, "in_common", lambda ranks, trials, order: [*order, 7])
    run.prune()
    assert run._order == [2, 0, 7]
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
    run._budget = None  # type: ignore[assignment]  # which counts from here
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
    made = harness(40, jobs=1)
    run = made.run()
    made.steps(run, "_start_all")
    run._places = {}
    run._ask(Exhaustive(list(range(40)), None))
    assert made.taken()[0] == ("_start_all", list(range(40))) and set(run._shares.values()) == {0.25}
    run._shares, run._places = {}, {}
    run._ask(make_strategy("model", 40, range(40), 40))
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
