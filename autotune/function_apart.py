"""Configurations of a Python function tried in benchmark processes, which may crash or hang: see InProcesses."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.function_run import Call, settle
from tiledsl.autotuner.function_server import OPTIONS, OUTCOME, answered
from tiledsl.autotuner.measuring.bench_process import Worker, WorkerEnded, keep, take
from tiledsl.autotuner.measuring.measure import device_numbers
from tiledsl.autotuner.measuring.scratch import Scratch
from tiledsl.autotuner.measuring.wire import Silence
from tiledsl.autotuner.reachable import Unreachable, packed, place_of
from tiledsl.autotuner.trial import NOT_TRIED, Trial
from tiledsl.child_processes import import_path
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target

_log = logging.getLogger("tiledsl")
_RUN_SECONDS = 600.0  # for a configuration: kernels inside of it may be tuned when it first runs


class Apart:
    """One function and one call of it, in a process for each device. Raises Unreachable where they cannot get there."""

    def __init__(self, call: Call, trials: Sequence[Trial], options: FunctionOptions, ended: Callable[[Trial], None]) -> None:  # fmt: skip # noqa: E501
        import torch

        self._options, self._trials, self._ended = options, trials, ended
        self._timeout = options.run_timeout or _RUN_SECONDS
        if options.as_is:
            raise Unreachable(f"{options.as_is[0]} is to be passed as it is")
        place = place_of(call.function)
        self._devices = ["cpu"]
        if call.on_gpu:
            self._devices = [str(number) for number in device_numbers(Target.parse("cuda"), options)]
        self._scratch = Scratch()
        self._calls = threading.Lock()  # of ref_prog and of `ended`
        try:
            folder = self._scratch.path
            self._message = {
                "do": "begin function",
                "place": place,
                "path": import_path(),
                "values": {name: packed(name, each, folder) for name, each in call.values.items()},
                "configs": [{n: packed(n, v, folder) for n, v in trial.config.items()} for trial in trials],
                "options": {name: packed(name, getattr(options, name), folder) for name in OPTIONS},
                "has_reference": options.ref_prog is not None,
                "folder": str(folder),
                "cwd": os.getcwd(),
                "threads": torch.get_num_threads(),
                "triton_cache_dir": os.environ.get("TRITON_CACHE_DIR"),
            }
            self._workers = {self._devices[0]: self._started(self._devices[0])}
        except BaseException:
            self._scratch.close()
            raise

    def run(self) -> None:
        """Try every trial that is new, then the final round."""
        waiting: queue.SimpleQueue[Trial] = queue.SimpleQueue()
        for trial in self._trials:
            if trial.status == "new":
                waiting.put(trial)
        self._start = time.monotonic()
        failures: list[BaseException] = []
        try:
            others = [
                threading.Thread(target=self._serve, args=(each, waiting, failures), daemon=True)
                for each in self._devices[1:]
            ]
            for each in others:
                each.start()
            self._serve(self._devices[0], waiting, failures)
            for each in others:
                each.join()
            if failures:
                raise failures[0]
            settle(self._trials, self._options)
            self._final()
        except BaseException:
            for worker in self._workers.values():
                worker.close()
            self._workers = {}
            raise
        finally:
            for worker in self._workers.values():
                keep(worker)
            self._scratch.close()

    def _serve(self, device: str, waiting: queue.SimpleQueue[Trial], failures: list[BaseException]) -> None:
        try:
            while not failures:
                try:
                    trial = waiting.get_nowait()
                except queue.Empty:
                    return
                if self._is_late():
                    trial.fail("pruned", f"{NOT_TRIED}the budget of {self._options.budget} s was used up")
                else:
                    self._try(device, trial)
                with self._calls:
                    self._ended(trial)
        except BaseException as error:
            failures.append(error)

    def _is_late(self) -> bool:
        budget = self._options.budget
        used = budget is not None and time.monotonic() - self._start >= budget
        return used and any(trial.ok for trial in self._trials)

    def _try(self, device: str, trial: Trial) -> None:
        try:
            answer = self._asked(device, {"do": "run function", "index": trial.index})
        except Unreachable as reason:  # it was reachable before
            trial.fail("crash", str(reason))
        except Silence:
            self._drop(device)
            trial.fail("hang", f"still running after {self._timeout:g} s")
        except WorkerEnded as end:
            self._drop(device)
            trial.fail("crash", str(end))
        else:
            for name, value in answer.items():
                setattr(trial, name, value)
            if trial.status == "crash":  # what it did to the GPU's context stays
                self._drop(device)

    def _final(self) -> None:
        finalists = selection.finalists(self._trials)
        if not finalists:
            return
        known = {str(trial.index): {name: getattr(trial, name) for name in OUTCOME} for trial in self._trials}
        try:
            found = self._asked(self._devices[0], {"do": "final function", "known": known}, len(finalists))
        except (Silence, WorkerEnded, Unreachable) as error:
            self._drop(self._devices[0])
            _log.warning("autotune: the final round ended early (%s); first measurements count", error or "no answer")
            return
        for index, fields in found.items():
            for name, value in fields.items():
                setattr(self._trials[int(index)], name, value)

    def _asked(self, device: str, message: Mapping[str, Any], times: int = 1) -> dict[str, Any]:
        """What a process answers in the end; references that it asks for are computed meanwhile."""
        if device not in self._workers:
            self._workers[device] = self._started(device)
        worker = self._workers[device]
        answer = worker.ask(dict(message), self._timeout * times)
        while "reference" in answer:
            assert self._options.ref_prog is not None
            with self._calls:
                worker.tell(answered(self._options.ref_prog, answer, self._scratch.path))
            answer = worker.listen(self._timeout * times)
        if "fatal" in answer:
            raise TileError(answer["fatal"])
        return dict(answer["outcome"])

    def _started(self, device: str) -> Worker:
        worker = take(device)
        try:
            answer = worker.ask(self._message, self._timeout)
        except (WorkerEnded, Silence) as end:
            worker.close()
            raise Unreachable(f"loading its module ends the process: {end or 'no answer'}") from None
        except BaseException:
            worker.close()
            raise
        if "failure" in answer:
            keep(worker)
            raise Unreachable(answer["failure"])
        return worker

    def _drop(self, device: str) -> None:
        worker = self._workers.pop(device, None)
        with contextlib.suppress(OSError):
            if worker is not None:
                worker.close()
