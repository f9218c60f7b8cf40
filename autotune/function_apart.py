"""Configurations of a Python function tried in benchmark processes, which may crash or hang."""

from __future__ import annotations

import logging
import os
import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.function_run import Call, settle
from tiledsl.autotuner.function_server import OPTIONS, answered
from tiledsl.autotuner.measuring.bench_pool import BenchPool, WorkerSession
from tiledsl.autotuner.measuring.bench_process import WorkerEnded
from tiledsl.autotuner.measuring.measure import device_numbers
from tiledsl.autotuner.measuring.scratch import Scratch
from tiledsl.autotuner.reachable import Unreachable, packed, place_of
from tiledsl.autotuner.trial import OUTCOME, Trial
from tiledsl.autotuner.waiting import WAKE_SECONDS, Budget
from tiledsl.child_processes import search_path
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target

_log = logging.getLogger("tiledsl")
_RUN_SECONDS = 600.0  # for a configuration: kernels inside of it may be tuned when it first runs
Reply = queue.SimpleQueue[dict[str, Any]]


class Apart:
    """One function and one call of it, in a process for each device. Raises Unreachable where they cannot get there.

    A process that needs the reference asks for it: ref_prog runs in this process, and in the thread that tunes.
    """

    def __init__(self, call: Call, trials: Sequence[Trial], options: FunctionOptions, ended: Callable[[Trial], None]) -> None:  # fmt: skip # noqa: E501
        import torch

        self._options, self._trials, self._ended = options, trials, ended
        if options.as_is:
            raise Unreachable(f"{options.as_is[0]} is to be passed as it is")
        place = place_of(call.function)
        self._devices = ["cpu"]
        if call.on_gpu:
            self._devices = [str(number) for number in device_numbers(Target.parse("cuda"), options)]
        self._events: queue.Queue[Any] = queue.Queue()
        self._is_over = False
        self._scratch = Scratch()
        try:
            folder = self._scratch.path
            message = {
                "do": "begin function",
                "place": place,
                "path": search_path(),
                "values": {name: packed(name, each, folder) for name, each in call.values.items()},
                "configs": [{n: packed(n, v, folder) for n, v in trial.config.items()} for trial in trials],
                "options": {name: packed(name, getattr(options, name), folder) for name in OPTIONS},
                "has_reference": options.ref_prog is not None,
                "folder": str(folder),
                "cwd": os.getcwd(),
                "threads": torch.get_num_threads(),
                "triton_cache_dir": os.environ.get("TRITON_CACHE_DIR"),
            }
            self._pool = BenchPool(self._devices, self._events)
            self._begin(message, options.run_timeout or _RUN_SECONDS)
        except BaseException:
            self._scratch.close()
            raise

    def _begin(self, message: dict[str, Any], timeout: float) -> None:
        refusals = ("loading its module ends the process: ", "")
        session = WorkerSession(message, timeout, self._reply, start_timeout=timeout, starts=1, refusals=refusals)
        try:
            self._pool.begin(session, waits=True)
        except WorkerEnded as reason:
            self._pool.close()
            raise Unreachable(str(reason)) from None
        except BaseException:
            self._pool.kill()
            raise

    def run(self) -> None:
        """Try every trial that is new, then the final round."""
        waiting, budget = deque(trial for trial in self._trials if trial.status == "new"), Budget(self._options.budget)
        running = 0
        try:
            while waiting or running:
                while waiting and running < len(self._devices):
                    trial = waiting.popleft()
                    if budget.is_over(self._trials):
                        trial.fail("pruned", budget.reason)
                        self._ended(trial)
                    else:
                        self._pool.ask("ran", trial.index, {"do": "run function", "index": trial.index})
                        running += 1
                if running:
                    index, outcome = self._answer()
                    running -= 1
                    self._trials[index].update(outcome)
                    self._ended(self._trials[index])
            settle(self._trials, self._options)
            self._final()
        except BaseException:
            self._is_over = True
            self._pool.kill()
            raise
        else:
            self._pool.close()
        finally:
            self._scratch.close()

    def _final(self) -> None:
        finalists = selection.finalists(self._trials)
        if not finalists:
            return
        known = {str(trial.index): {name: getattr(trial, name) for name in OUTCOME} for trial in self._trials}
        self._pool.ask("final", 0, {"do": "final function", "known": known}, len(finalists))
        _, outcomes = self._answer()
        if "status" in outcomes:
            _log.warning("autotune: the final round ended early (%s); first measurements count", outcomes["message"])
            return
        for index, fields in outcomes.items():
            self._trials[int(index)].update(fields)

    def _answer(self) -> tuple[int, dict[str, Any]]:
        """The index and the outcome of what ends next. TileError for what is wrong with ref_prog."""
        while True:
            try:
                kind, index, answer = self._events.get(timeout=WAKE_SECONDS)
            except queue.Empty:
                continue
            if kind == "reference":
                asked, reply = answer
                assert self._options.ref_prog is not None
                reply.put(answered(self._options.ref_prog, asked, self._scratch.path))
            elif "fatal" in answer:
                raise TileError(answer["fatal"])
            else:
                return index, answer.get("outcome", answer)

    def _reply(self, answer: dict[str, Any]) -> dict[str, Any] | None:
        """In a device's thread: the reference that a process asks for."""
        if "reference" not in answer:
            return None
        reply: Reply = queue.SimpleQueue()
        self._events.put(("reference", 0, (answer, reply)))
        while not self._is_over:
            try:
                return reply.get(timeout=WAKE_SECONDS)
            except queue.Empty:
                continue
        return {"failure": "the run is over"}
