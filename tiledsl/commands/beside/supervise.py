"""Scripts under both compilers: many processes run them, and one pair at a time is compared and timed.

The two sides of a script are processes. When both have run it, all others are stopped, and the two are asked in turns,
so that both meet the same clocks: nothing else runs on the GPU, or on the host, while a kernel is timed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiledsl.commands.beside.process import SIDES, Job, SideProcess, outside

_POLL = 0.05
_DRAIN = 0.1  # seconds for what a stopped process has launched


@dataclass(frozen=True)
class Plan:
    """workers: processes at a time, two for a script. timeout: seconds for a script under one compiler, and for an
    answer. warmup, window: milliseconds before a kernel's samples, and of each round of them. verify: whether kernels
    get certificates."""

    workers: int = 2
    timeout: float = 300.0
    warmup: float = 50.0
    window: float = 50.0
    rounds: int = 3
    verify: bool = False


def compared(jobs: Sequence[Job], plan: Plan, deadline: float | None = None) -> Generator[dict[str, Any], None, None]:
    """What became of each script, as they come. At the deadline (of time.monotonic) what is not done is given up."""
    waiting, running = list(jobs), list[_Pair]()
    with tempfile.TemporaryDirectory(prefix="tiledsl-beside-") as name:
        folder = Path(name)
        try:
            while waiting or running:
                if deadline is not None and time.monotonic() >= deadline:
                    return
                while waiting and 2 * len(running) + 2 <= max(2, plan.workers):
                    running.append(_Pair(waiting.pop(0), folder, plan.verify))
                for pair in running:
                    pair.poll(plan.timeout)
                for pair in [each for each in running if each.settled]:
                    with _alone(pair, running):
                        found = pair.result(plan, folder)
                    running.remove(pair)
                    yield found
                time.sleep(_POLL)
        finally:
            for pair in running:
                pair.end()


class _Pair:
    """The two sides of a script."""

    def __init__(self, job: Job, folder: Path, verify: bool) -> None:
        self.job = job
        self.sides = [SideProcess(job, side, folder, verify) for side in SIDES]

    def poll(self, limit: float) -> None:
        for side in self.sides:
            side.poll(limit)

    @property
    def settled(self) -> bool:
        return all(side.settled for side in self.sides)

    def end(self) -> None:
        for side in self.sides:
            side.end()

    def result(self, plan: Plan, folder: Path) -> dict[str, Any]:
        """A script's row for each kernel, and why a side did not run to its end."""
        failures = {side.side: side.failure() or None for side in self.sides}
        about: dict[str, str] = {}
        for side in self.sides:
            about |= (side.told or {}).get("about", {})
        rows = []
        for first, second in matched(self.sides[0].calls, self.sides[1].calls):
            rows.append(_row(self.sides, (first, second), failures, plan, folder))
        seconds = {side.side: round(outside(side.started, time.monotonic(), side.pauses), 1) for side in self.sides}
        self.end()
        number: dict[str, int] = {}
        for row in rows:
            number[row["kernel"]] = number.get(row["kernel"], 0) + 1
            row["number"] = number[row["kernel"]]
        return {"script": self.job.name, "failures": failures, "seconds": seconds, "about": about, "kernels": rows}


@contextmanager
def _alone(pair: _Pair, running: Sequence[_Pair]) -> Iterator[None]:
    """While this lasts, the other pairs do nothing."""
    others = [side for each in running if each is not pair for side in each.sides if not side.settled]
    for side in others:
        side.pause()
    if others:
        time.sleep(_DRAIN)
    try:
        yield
    finally:
        for side in others:
            side.go_on()


def matched(
    ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]
) -> list[tuple[int | None, int | None]]:
    """Which calls belong together, by their numbers: those of one name on tensors of the same sizes, in order; then
    failures with what the other side has of that name; then what is left on tensors of the same sizes, whatever its
    name. None stands for a call that the other side lacks."""

    def failed(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
        return first["name"] == second["name"] and bool(first["error"] or second["error"])

    mates: dict[int, int] = {}
    for alike in (
        lambda first, second: (first["name"], first["shapes"]) == (second["name"], second["shapes"]),
        failed,
        lambda first, second: first["shapes"] == second["shapes"] and not first["error"] and not second["error"],
    ):
        left = [at for at in range(len(theirs)) if at not in mates.values()]
        for first, call in enumerate(ours):
            mate = None if first in mates else next((at for at in left if alike(call, theirs[at])), None)
            if mate is not None:
                mates[first] = mate
                left.remove(mate)
    pairs = [(first, mates.get(first)) for first in range(len(ours))]
    return [*pairs, *((None, at) for at in range(len(theirs)) if at not in mates.values())]


def _row(
    sides: Sequence[SideProcess],
    numbers: tuple[int | None, int | None],
    failures: Mapping[str, str | None],
    plan: Plan,
    folder: Path,
) -> dict[str, Any]:
    """What is known of a kernel. Milliseconds and seconds are by side; reasons say what a side lacks and why."""
    calls = [None if at is None else side.calls[at] for side, at in zip(sides, numbers)]
    known = max((call for call in calls if call is not None), key=lambda call: bool(call["shapes"]))  # not a failure
    reasons: dict[str, str | None] = {}
    for side, call in zip(sides, calls):
        if call is None:
            reasons[side.side] = "not run, for the script had failed" if failures[side.side] else "not run"
        else:
            reasons[side.side] = call["error"] or None
    row: dict[str, Any] = {
        "kernel": known["name"],
        "shapes": known["shapes"],
        "ms": dict.fromkeys(SIDES),
        "spread_ms": dict.fromkeys(SIDES),
        "ratio": None,
        "method": None,
        "compile_s": {side.side: _compile_seconds(side, call) for side, call in zip(sides, calls)},
        "same_inputs": None,
        "difference": None,
        "reasons": reasons,
        "remarks": calls[0]["remarks"] if calls[0] is not None else [],
        "certificate": calls[0]["certificate"] if calls[0] is not None else None,
    }
    if any(reasons.values()):
        return row
    at = dict(zip(SIDES, (number for number in numbers if number is not None)))
    _compare(sides, at, row, plan, folder)
    _time(sides, at, row, plan)
    return row


def _compile_seconds(side: SideProcess, call: Mapping[str, Any] | None) -> float | None:
    """From the program to its first result. None where that was not seen, as of what a tuner has made."""
    if call is None or not call["spans"]:
        return None
    return round(sum(outside(start, end, side.pauses) for start, end in call["spans"]), 3)


def _compare(
    sides: Sequence[SideProcess], at: Mapping[str, int], row: dict[str, Any], plan: Plan, folder: Path
) -> None:
    """Whether both give the same; where their inputs were others, the second side takes the first one's."""
    ours, theirs = sides
    same = ours.calls[at[ours.side]]["digest"] == theirs.calls[at[theirs.side]]["digest"]
    file = folder / "outputs.pt"
    try:
        saved = ours.ask(plan.timeout, do="save", call=at[ours.side], file=str(file), inputs=not same)
        if "error" in saved:
            row["reasons"][ours.side] = saved["error"]
            return
        found = theirs.ask(plan.timeout, do="compare", call=at[theirs.side], file=str(file))
        if "error" in found:
            row["reasons"][theirs.side] = found["error"]
            return
        row["same_inputs"], row["difference"] = same, found["difference"]
    finally:
        file.unlink(missing_ok=True)


def _time(sides: Sequence[SideProcess], at: Mapping[str, int], row: dict[str, Any], plan: Plan) -> None:
    """Time both in turns, in the same way: where one can be timed in a CUDA graph alone, both lie between events."""
    for backend in (None, "event"):
        methods = {}
        for side in sides:
            ready = side.ask(plan.timeout, do="prepare", call=at[side.side], warmup=plan.warmup, backend=backend)
            if "error" in ready:
                row["reasons"][side.side] = ready["error"]
                return
            methods[side.side] = ready["method"]
        if len(set(methods.values())) == 1:
            break
    samples: dict[str, list[float]] = {side.side: [] for side in sides}
    for number in range(plan.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            found = side.ask(plan.timeout, do="sample", milliseconds=plan.window)
            if "error" in found:
                row["reasons"][side.side] = found["error"]
                return
            samples[side.side] += found["samples"]
    row["method"] = "/".join(dict.fromkeys(methods.values()))
    for name, taken in samples.items():
        low, _, high = statistics.quantiles(taken, n=4, method="inclusive")
        row["ms"][name], row["spread_ms"][name] = statistics.median(taken), high - low
    row["ratio"] = row["ms"][SIDES[1]] / row["ms"][SIDES[0]]
