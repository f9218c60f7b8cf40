"""What a tuning run does with what comes back, with stand-ins for pools, kernels and the search: events and time."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.autotune.run_harness import Asked, events, ok
from tiledsl.autotuner import run as module
from tiledsl.autotuner.compiling.compile_worker import CompileOutcome
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.run import _load_ahead
from tiledsl.runtime.parameter import Parameter

Log = list[tuple[Any, ...]]


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
