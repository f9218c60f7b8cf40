"""Run one row: prepare its candidates, check them, time those that are right. No failure gets out of here."""

from __future__ import annotations

import datetime
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.check import Wrong, check
from benchmarks.row import YARDSTICKS, Context, Ready, Row, Unavailable
from benchmarks.timing import REGIMES, Clock, Plan, Prepared, measure, prepare, ratios, summary

_ROTATED_BYTES = 1 << 30  # copies of the inputs take no more
_MOST_COPIES = 16
_SEED = 0


class DeviceLost(Exception):
    """The device answers nothing any more."""


class Slow(Exception):
    """Preparing a candidate took longer than allowed."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise Slow in the main thread after so many seconds; no limit in other threads, or with 0."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise Slow(f"not ready after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # and again: what runs inside may catch the first one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_row(
    row: Row, context: Context, clock: Clock, plan: Plan, *, cache_bytes: int = 0, prepare_seconds: float = 0.0
) -> dict[str, Any]:
    """The row's result as JSON has it. prepare_seconds: the longest that preparing a candidate may take.

    cache_bytes: of the second-level cache; inputs smaller than that are rotated, so that they are read from memory as
    they are in a model. Where a candidate has broken the device, the result says "device_lost".
    """
    result: dict[str, Any] = {
        "family": row.family, "case": row.case, "tags": sorted(row.tags), "unit": row.unit,
        "operations": row.operations, "bytes": row.bytes_moved, "date": _now(), "candidates": [], "ratios": {},
    }  # fmt: skip
    prepared: dict[str, Prepared] = {}
    try:
        _prepare_all(row, result, prepared, context, clock, plan, cache_bytes, prepare_seconds)
        _time(result, prepared, clock, plan)
        _synchronize(context)
    except DeviceLost as error:
        result |= {"error": str(error), "device_lost": True}
    except Exception as error:
        result["error"] = _text(error)
    return result


def _prepare_all(
    row: Row, result: dict[str, Any], prepared: dict[str, Prepared], context: Context, clock: Clock, plan: Plan,
    cache_bytes: int, prepare_seconds: float,
) -> None:  # fmt: skip
    """Fill in the result's candidates, and `prepared` with those that are right."""
    torch.manual_seed(_SEED)
    inputs = row.inputs(context.device)
    expected = list(row.reference(*inputs))
    for candidate in row.candidates:
        entry = {"kind": candidate.kind, "name": candidate.name}
        result["candidates"].append(entry)
        try:
            with at_most(prepare_seconds):
                ready = candidate.prepare(context, row, inputs)
            entry |= _described(ready)
            if candidate.kind not in YARDSTICKS:
                entry["error"] = check(row, ready, inputs, expected)
            calls = _bound(row, ready, inputs, context, cache_bytes)
            prepared[candidate.kind] = prepare(calls, clock, plan, ready.graph)
            entry |= {"status": "ok", "launched": getattr(prepared[candidate.kind].steady, "how", "")}
            if candidate.kind not in YARDSTICKS:  # once more, now as it is timed: warm, and after other launches
                check(row, ready, inputs, expected)
        except Wrong as error:
            prepared.pop(candidate.kind, None)
            entry |= {"status": "wrong", "why": str(error)}
        except (Unavailable, Slow, ImportError) as error:
            entry |= {"status": "missing", "why": str(error)}
        except Exception as error:
            prepared.pop(candidate.kind, None)
            entry |= {"status": "failed", "why": _text(error)}
        _synchronize(context)


def _time(result: dict[str, Any], prepared: Mapping[str, Prepared], clock: Clock, plan: Plan) -> None:
    if not prepared:
        return
    found = measure(prepared, clock, plan)
    for entry in result["candidates"]:
        for regime in REGIMES if entry["kind"] in found else ():
            entry[regime] = summary(found[entry["kind"]][regime])
    if "tiledsl" in found:
        ours = found["tiledsl"]
        result["ratios"] = {
            regime: {kind: ratios(ours[regime], times[regime]) for kind, times in found.items() if kind != "tiledsl"}
            for regime in REGIMES
        }


def _described(ready: Ready) -> dict[str, Any]:
    described: dict[str, Any] = {"config": dict(ready.config)}
    if ready.tuning_seconds is not None:
        described["tuning_seconds"] = round(ready.tuning_seconds, 2)
    if ready.rivals:
        described["rivals"] = [dict(each) for each in ready.rivals]
    if ready.note:
        described["note"] = ready.note
    return described


def _bound(
    row: Row, ready: Ready, inputs: Sequence[Any], context: Context, cache_bytes: int
) -> list[Callable[[], Any]]:
    """Calls on copies of the inputs that together exceed the cache; one, if they do so themselves."""
    size = sum(each.numel() * each.element_size() for each in inputs)
    copies = 1
    if cache_bytes and size < 2 * cache_bytes:
        copies = max(1, min(_MOST_COPIES, 1 + 2 * cache_bytes // max(1, size), _ROTATED_BYTES // max(1, size)))
    sets = [list(inputs), *([each.clone() for each in inputs] for _ in range(copies - 1))]
    return [ready.bind(each, row.empty_outputs(context.device)) for each in sets]


def _synchronize(context: Context) -> None:
    if context.device == "cuda":
        try:
            torch.cuda.synchronize()
        except Exception as error:
            raise DeviceLost(_text(error)) from error


def _text(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({where[-1].filename.rsplit('/', 1)[-1]}:{where[-1].lineno})" if where else ""
    return f"{type(error).__name__}: {str(error).strip()[:600]}{place}"


def _now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
