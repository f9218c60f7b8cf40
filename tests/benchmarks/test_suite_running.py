"""The suite's running: clocks, checks, failures of candidates and of whole processes. No GPU: the device is faked."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import timing
from benchmarks.check import Wrong, check, compare, poison
from benchmarks.execute import Slow, at_most, run_row
from benchmarks.row import Candidate, Context, Ready
from benchmarks.supervise import Limits, supervise
from tests.benchmarks.suite_fakes import FakeClock, candidate, doubling, refusing, sleeping

CPU = Context("cpu", tune=False)
PLAN = timing.Plan(warm=0.1, lead=0.01, window=0.05, rounds=4, idle=0.05, burst=0.001)


def run(row: Any, clock: FakeClock, **options: Any) -> dict[str, Any]:
    return run_row(row, CPU, clock, PLAN, **options)


def statuses(result: dict[str, Any]) -> dict[str, str]:
    return {entry["kind"]: entry["status"] for entry in result["candidates"]}


# Timing


def test_both_regimes_are_measured_in_turns() -> None:
    clock = FakeClock(slowdown=1.25)
    prepared = {
        name: timing.prepare([clock.takes(name, ms)], clock, PLAN, True) for name, ms in (("ours", 2.0), ("other", 3.0))
    }
    clock.log.clear()
    found = timing.measure(prepared, clock, PLAN)
    assert found["ours"]["steady"] == pytest.approx([2.5] * 4) and found["other"]["steady"] == pytest.approx([3.75] * 4)
    assert found["ours"]["burst"] == pytest.approx([2.0] * 4) and found["other"]["burst"] == pytest.approx([3.0] * 4)
    turns = [name for before, name in zip(["", *clock.log], clock.log, strict=False) if name != before]
    # Warm-up of both; then rounds of a window each and a burst each, the order rotating.
    first, second = ["ours", "other"], ["other", "ours"]
    rounds: list[str] = []
    for order in (first, second, first, second):
        rounds += [*order, "idle", order[0], "idle", order[1]]
    expected = [*first, *rounds]
    assert turns == [name for before, name in zip(["", *expected], expected, strict=False) if name != before]


def test_windows_last_as_planned_whatever_the_call_takes() -> None:
    for ms in (0.01, 0.5, 200.0):
        clock = FakeClock()
        prepared = {"ours": timing.prepare([clock.takes("ours", ms)], clock, PLAN, True)}
        before, calls = clock.now, len(clock.log)
        timing.measure(prepared, clock, timing.Plan(warm=0.0, lead=0.0, window=0.1, rounds=1, idle=0.0, burst=0.001))
        launch = 2.0 + ms  # what is launched at once has at least two milliseconds of work
        burst = max(4 * ms, 1.0 + ms)
        assert 100.0 <= clock.now - before <= 100.0 + 2 * launch + burst + ms
        assert len(clock.log) - calls - 1 == pytest.approx((clock.now - before) / ms)


def test_a_burst_is_four_launches_or_as_long_as_planned() -> None:
    clock = FakeClock()
    assert timing.prepare([clock.takes("slow", 5.0)], clock, PLAN, True).burst.calls == 4
    assert timing.prepare([clock.takes("fast", 0.01)], clock, PLAN, True).burst.calls == 100
    three = [clock.takes(name, 0.01) for name in "abc"]  # a whole number of turns through all copies
    assert timing.prepare(three, clock, PLAN, True).burst.calls == 102


def test_ratios_are_taken_within_a_round() -> None:
    drifting = [1.0, 2.0, 4.0]
    found = timing.ratios(drifting, [1.5 * value for value in drifting])
    assert (found["min"], found["median"], found["max"]) == (1.5, 1.5, 1.5)
    assert timing.ratios([2.0, 1.0], [2.0, 2.0])["rounds"] == [1.0, 2.0]


def test_geometric_mean() -> None:
    assert timing.geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert timing.geometric_mean([2.0, 4.0, 8.0]) == pytest.approx(4.0)


# Checks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int32])
def test_poison_spoils_every_element(dtype: torch.dtype) -> None:
    tensor = torch.zeros(8).to(dtype)
    poison(tensor)
    wide = tensor.double()
    assert bool((wide.isnan() | (wide < -1e9)).all())


def test_compare_sees_one_wrong_element() -> None:
    want = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    got = want.half()
    assert compare("y", got, want, 1e-2) < 1e-3
    got[77] += 1.0
    assert float((got.double() - want.double()).norm() / want.double().norm()) < 1e-2  # the norm alone would not see it
    with pytest.raises(Wrong, match="1 elements by much"):
        compare("y", got, want, 1e-2)


def test_elements_are_held_to_the_size_of_their_rows() -> None:
    """100 rows of 1 and one of 10: there, 0 may be off by six allowed errors of 10, elsewhere by six of the whole."""
    want = torch.ones(101, 100)
    want[7] = 10.0
    want[7, 3] = want[8, 3] = 0.0
    got = want.clone()
    got[7, 3] = 0.59
    assert compare("y", got, want, 1e-2) < 1e-2
    got[7, 3] = 0.61
    with pytest.raises(Wrong, match="1 elements by much"):
        compare("y", got, want, 1e-2)
    got[7, 3], got[8, 3] = 0.0, 0.1
    with pytest.raises(Wrong, match="1 elements by much"):
        compare("y", got, want, 1e-2)
    assert compare("y", got[:0], want[:0], 1e-2) == compare("y", got[:, :0], want[:, :0], 1e-2) == 0.0
    column = want[:, :1]
    with pytest.raises(Wrong, match="1 elements by much"):
        compare("y", column + torch.eye(101)[:, :1] * 0.2, column, 1e-2)


def test_compare_sees_a_small_error_everywhere() -> None:
    want = torch.ones(1000)
    with pytest.raises(Wrong, match=r"off by 2\.00e-02"):
        compare("y", want * 1.02, want, 1e-2)


def test_compare_sees_nan_and_shapes() -> None:
    want = torch.ones(10)
    got = want.clone()
    got[3] = float("nan")
    with pytest.raises(Wrong, match="1 of 10 elements of y are NaN or not written"):
        compare("y", got, want, 1e-2)
    with pytest.raises(Wrong, match="shape"):
        compare("y", want[:5], want, 1e-2)


@pytest.mark.parametrize(
    ("function", "message"),
    [(lambda x: None, "8 of 8 elements"), (lambda x: x * 2 + (x == 8), "off by"), (lambda x: x.new_zeros(8), "off by")],
)
def test_a_wrong_candidate_has_no_time(function: Any, message: str) -> None:
    clock = FakeClock()
    result = run(doubling(candidate(clock, "tiledsl", 1.0, function), candidate(clock, "library", 2.0)), clock)
    wrong, right = result["candidates"]
    assert wrong["status"] == "wrong" and message in wrong["why"] and "steady" not in wrong
    assert right["status"] == "ok" and right["steady"]["median"] == pytest.approx(2.0)
    assert result["ratios"] == {}


def test_a_candidate_that_is_right_only_once_is_wrong() -> None:
    clock, count = FakeClock(), [0]

    def function(x: Any) -> Any:
        count[0] += 1
        return x * 2 if count[0] < 3 else x

    result = run(doubling(candidate(clock, "tiledsl", 1.0, function)), clock)
    assert statuses(result) == {"tiledsl": "wrong"}


def test_own_outputs_are_checked_for_shape_and_dtype() -> None:
    clock = FakeClock()
    row = doubling(candidate(clock, "library", 1.0, lambda x: (x * 2).double(), own_outputs=True))
    ready = row.candidates[0].prepare(CPU, row, ())
    with pytest.raises(Wrong, match="float64, not"):
        check(row, ready, row.inputs("cpu"), [torch.arange(1.0, 9.0) * 2])


# Rows


def test_a_row_has_times_ratios_and_what_was_chosen() -> None:
    clock = FakeClock()
    row = doubling(
        candidate(clock, "tiledsl", 1.0),
        candidate(clock, "library", 1.2, own_outputs=True),
        candidate(clock, "copy", 0.9, lambda x: x * 0),  # a yardstick computes something else
        refusing("tilelang"),
    )
    result = run(row, clock)
    assert statuses(result) == {"tiledsl": "ok", "library": "ok", "copy": "ok", "tilelang": "missing"}
    assert result["ratios"]["steady"]["library"]["median"] == pytest.approx(1.2)
    assert result["ratios"]["burst"]["copy"]["median"] == pytest.approx(0.9)
    ours = result["candidates"][0]
    assert ours["config"] == {"block": 1} and ours["tuning_seconds"] == 1.5 and ours["launched"] == "graph"
    assert len(ours["steady"]["rounds"]) == PLAN.rounds
    json.dumps(result)


@pytest.mark.parametrize("error", [RuntimeError("bad kernel"), ImportError("no library"), AssertionError()])
def test_a_failing_candidate_does_not_end_the_row(error: Exception) -> None:
    clock = FakeClock()
    result = run(doubling(candidate(clock, "tiledsl", 1.0), refusing("triton", error)), clock)
    assert statuses(result)["tiledsl"] == "ok" and statuses(result)["triton"] in ("failed", "missing")
    assert str(error) in result["candidates"][1]["why"]


def test_a_row_without_inputs_says_why() -> None:
    def broken(device: str) -> Any:
        raise RuntimeError("out of memory")

    row = doubling(candidate(FakeClock(), "tiledsl", 1.0))
    result = run(type(row)(**{**vars(row), "inputs": broken}), FakeClock())
    assert "out of memory" in result["error"] and result["candidates"] == []


def test_preparing_is_limited() -> None:
    clock = FakeClock()
    start = time.monotonic()
    result = run(doubling(sleeping("library"), candidate(clock, "tiledsl", 1.0)), clock, prepare_seconds=0.2)
    assert time.monotonic() - start < 20
    assert statuses(result) == {"library": "missing", "tiledsl": "ok"}
    assert "not ready after 0.2 s" in result["candidates"][0]["why"]


def test_a_limit_that_is_swallowed_comes_again() -> None:
    with pytest.raises(Slow), at_most(0.1):
        try:
            time.sleep(30)
        except Slow:
            time.sleep(30)


def test_small_inputs_are_rotated() -> None:
    clock = FakeClock()
    seen: set[int] = set()

    def prepare(context: Context, row: Any, inputs: Any) -> Ready:
        def bind(given: Any, outputs: Any) -> Any:
            def call() -> None:
                seen.add(given[0].data_ptr())
                outputs[0].copy_(given[0] * 2)
                clock.takes("tiledsl", 1.0)()

            return call

        return Ready(bind)

    run(doubling(Candidate("tiledsl", "tiledsl", prepare)), clock, cache_bytes=64)  # the input has 32 bytes
    assert len(seen) == 5


# Processes


WORKER = """
import json, os, sys, time
names, to, behaviour = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
def tell(message):
    with open(to, "a") as file:
        file.write(json.dumps(message) + "\\n")
if behaviour.get("") == "no start":
    sys.exit(9)
tell({"about": {}})
for name in names:
    if behaviour.get(name) == "crash":
        os.abort()
    if behaviour.get(name) == "hang":
        time.sleep(60)
    if behaviour.get(name) == "slow":
        time.sleep(0.5)
    tell({"row": name})
    if behaviour.get(name) == "leave":
        sys.exit(3)
"""


def supervised(tmp_path: Path, behaviour: dict[str, str], deadline: float | None = None) -> list[dict[str, Any]]:
    def command(names: Any, path: Path) -> list[str]:
        return [sys.executable, "-c", WORKER, json.dumps(names), str(path), json.dumps(behaviour)]

    messages = supervise(["a", "b", "c"], command, tmp_path, Limits(row=1.2, start=20.0), deadline)
    return [message for message in messages if "about" not in message]


def test_rows_come_in_order(tmp_path: Path) -> None:
    assert supervised(tmp_path, {}) == [{"row": "a"}, {"row": "b"}, {"row": "c"}]


def test_a_crash_costs_one_row(tmp_path: Path) -> None:
    first, second, third = supervised(tmp_path, {"b": "crash"})
    assert (first, third) == ({"row": "a"}, {"row": "c"})
    assert second["lost"] == "b" and "status -6" in second["why"]


def test_a_hang_costs_one_row(tmp_path: Path) -> None:
    assert [m.get("lost") for m in supervised(tmp_path, {"a": "hang"})] == ["a", None, None]


def test_a_process_that_leaves_is_followed_by_another(tmp_path: Path) -> None:
    assert supervised(tmp_path, {"a": "leave"}) == [{"row": "a"}, {"row": "b"}, {"row": "c"}]


def test_no_start_loses_all_rows_at_once(tmp_path: Path) -> None:
    assert [m["lost"] for m in supervised(tmp_path, {"": "no start"})] == ["a", "b", "c"]


def test_no_row_begins_behind_the_deadline(tmp_path: Path) -> None:
    found = supervised(tmp_path, {"a": "slow", "b": "slow", "c": "slow"}, deadline=time.monotonic() + 0.1)
    assert found == [{"row": "a"}, {"skipped": "b"}, {"skipped": "c"}]
