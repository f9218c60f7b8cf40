"""Where a tuning run's wall time goes, by looking at what the tuning thread does every few milliseconds."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from tiledsl.autotuner.compiling.compile_worker import CompileOutcome
from tiledsl.autotuner.run import TuningRun
from tiledsl.autotuner.trial import Trial

_logger = logging.getLogger("tiledsl")
_INTERVAL = 0.005
_STEP = 0.5  # seconds between entries of the timeline
# Functions of the engine, by name; the innermost one on the stack counts. Others count as "other".
_STAGES = {
    "restore": "reading what is known",
    "prune_and_order": "elaborating, pruning, ordering",
    "_lower": "lowering to Triton source",
    "_hand_over_inputs": "inputs and reference",
    "_final_round": "final round",
    "_prepare": "starting processes",
    "_close": "closing",
    "finish": "writing the result",
    "save": "writing the result",
    "key": "computing the key",
}
_WAITING = "_loop"


class StageWatch:
    """Samples the stack of the thread that enters it.

    `seconds`: by stage. `timeline`: while results are waited for, from time to time: seconds from the start, and how
    many configurations are being compiled or wait for it, and how many are compiled and not yet measured. `total`.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.timeline: list[tuple[float, int, int]] = []
        self.total = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> StageWatch:
        self._watched = threading.get_ident()
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.total = time.perf_counter() - self._start
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        seconds: dict[str, float] = {}
        last = self._start
        while not self._stop.wait(_INTERVAL):
            frame = sys._current_frames().get(self._watched)
            now = time.perf_counter()
            stage, compiling, running = stage_of(frame)
            seconds[stage] = seconds.get(stage, 0.0) + now - last
            last = now
            if compiling or running:
                self._note(round(now - self._start, 2), compiling, running)
        self.seconds = {name: round(seconds[name], 3) for name in sorted(seconds, key=lambda name: -seconds[name])}

    def _note(self, after: float, compiling: int, running: int) -> None:
        if not self.timeline or after >= self.timeline[-1][0] + _STEP or (not compiling and self.timeline[-1][1]):
            self.timeline.append((after, compiling, running))


class EventLog:
    """Notes what the engine's loop is told, and when: of each configuration that it was compiled, and that it ran.

    `events`: seconds from the start, "compiled" or "ran", the configuration's number, and for compilations the seconds
    that it took and those of a processor. `processes`: what the tuner logs of how benchmark processes started.
    """

    def __init__(self) -> None:
        self.events: list[tuple[float, str, int, float, float]] = []
        self.processes: list[str] = []

    def __enter__(self) -> EventLog:
        self._start = time.perf_counter()
        self._handler = logging.Handler(logging.DEBUG)
        self._handler.emit = self._read  # type: ignore[method-assign]
        self._level = _logger.level
        _logger.addHandler(self._handler)
        _logger.setLevel(logging.DEBUG)
        self._compiled, self._ran = TuningRun._compiled, TuningRun._ran
        log = self

        def compiled(run: TuningRun, trial: Trial, outcome: CompileOutcome) -> None:
            log._note("compiled", trial.index, outcome.seconds, outcome.cpu_seconds)
            log._compiled(run, trial, outcome)

        def ran(run: TuningRun, trial: Trial, outcome: Mapping[str, Any]) -> None:
            log._note("ran", trial.index, 0.0, 0.0)
            log._ran(run, trial, outcome)

        TuningRun._compiled, TuningRun._ran = compiled, ran  # type: ignore[method-assign]
        return self

    def _read(self, record: logging.LogRecord) -> None:
        if "benchmark process" in record.getMessage():
            self.processes.append(record.getMessage())

    def _note(self, kind: str, index: int, seconds: float, cpu_seconds: float) -> None:
        after = time.perf_counter() - self._start
        self.events.append((round(after, 3), kind, index, round(seconds, 3), round(cpu_seconds, 3)))

    def __exit__(self, *_: object) -> None:
        TuningRun._compiled, TuningRun._ran = self._compiled, self._ran  # type: ignore[method-assign]
        _logger.removeHandler(self._handler)
        _logger.setLevel(self._level)

    def summary(self) -> dict[str, Any]:
        """When the first and the last were compiled and measured, seconds; the slowest compilations; the steps between
        measured ones, sorted, in milliseconds."""
        times = {kind: [event[0] for event in self.events if event[1] == kind] for kind in ("compiled", "ran")}
        slowest = sorted((event for event in self.events if event[1] == "compiled"), key=lambda event: -event[3])
        steps = sorted(round(1e3 * (now - before)) for before, now in pairwise(times["ran"]))
        return {
            **{f"{kind}_s": [each[0], each[-1]] for kind, each in times.items() if each},
            "slowest": [[index, seconds, cpu] for _, _, index, seconds, cpu in slowest[:6]],
            "cpu_s": round(sum(event[4] for event in self.events), 3),
            "steps_ms": steps,
            "processes": self.processes,
        }


def host_counters() -> dict[str, float]:
    """Seconds that this machine's processors have spent so far, by kind, and that some process waited for a processor,
    the disk or memory; what of that the system tells."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        kinds = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        numbers = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        ticks = os.sysconf("SC_CLK_TCK")
        found.update((f"cpu_{kind}", int(number) / ticks) for kind, number in zip(kinds, numbers))
    for resource in ("cpu", "io", "memory"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            line = Path("/proc/pressure", resource).read_text().splitlines()[0]
            found[f"waited_{resource}"] = int(line.rpartition("total=")[2]) / 1e6
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/sys/fs/cgroup/cpu.stat").read_text().splitlines():
            if line.startswith("throttled_usec"):
                found["throttled"] = int(line.split()[1]) / 1e6
    return found


def stage_of(frame: FrameType | None) -> tuple[str, int, int]:
    """What a stack is busy with; how many configurations are to be compiled, and how many to be measured, if it waits.

    The engine's loop over results keeps a set of each.
    """
    while frame is not None:
        name = frame.f_code.co_name
        if "autotune" in frame.f_code.co_filename:
            if name in _STAGES:
                return _STAGES[name], 0, 0
            if name == _WAITING:
                run = frame.f_locals.get("self")
                compiling, running = (len(getattr(run, each, ())) for each in ("_compiling", "_running"))
                busy = [text for text, count in (("compiling", compiling), ("measuring", running)) if count]
                return f"waiting: {' and '.join(busy) or 'nothing'}", compiling, running
        frame = frame.f_back
    return "other", 0, 0
