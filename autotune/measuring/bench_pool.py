"""Benchmark processes, one for each device, fed from one queue. They are killed and replaced; a run goes on."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tiledsl.autotuner.compiling.compile_pool import known_library_key
from tiledsl.autotuner.measuring.bench_process import START_SECONDS, Worker, WorkerEnded, keep, take
from tiledsl.autotuner.measuring.jobs import Job
from tiledsl.autotuner.measuring.wire import Silence

_log = logging.getLogger("tiledsl")
_NOT_YET = {"outputs", "output_bits", "doubts"}  # of an outcome: whether it counts is decided elsewhere


@dataclass
class WorkerSession:
    """What a benchmark process must know before the first job: a message, sent to each.

    timeout: seconds a job may take. reply: what to tell a process that asks for something before its answer is there;
    None: this is the answer. start_timeout, starts: seconds for the message, and processes that may end on it one after
    another. refusals: how it is told that they do, and that one cannot take what is in the message.
    """

    message: dict[str, Any]
    timeout: float
    reply: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda answer: None
    start_timeout: float = START_SECONDS
    starts: int = 3
    refusals: tuple[str, str] = (
        "no benchmark process can be started; ", "the benchmark process cannot take the inputs: "
    )  # fmt: skip


@dataclass(order=True)
class _Task:
    """What to do on a device; its outcome is put in the events under this kind and index."""

    place: int
    kind: str = field(compare=False)
    index: int = field(compare=False)
    do: Callable[[int, str], dict[str, Any]] | None = field(compare=False)  # of the device's number and name


class BenchPool:
    """Runs jobs on the devices, whichever is free; outcomes are put in `events` as ("ran", index, fields of the Trial).

    The outcome of the final round is ("final", 0, {"rounds": ..., "lasting": ..., "failures": ...}).
    """

    def __init__(self, devices: Sequence[str], events: queue.Queue[Any]) -> None:
        self._events, self._devices = events, devices
        self._tasks: queue.PriorityQueue[_Task] = queue.PriorityQueue()
        self._session: WorkerSession | None = None
        self._begun = threading.Event()
        self._stopping = False
        self._lock = threading.Lock()
        self._workers: dict[int, Worker] = {}
        self.best: float | None = None  # latency so far, which early stopping compares with
        for number, device in enumerate(devices):  # not in the threads: it takes longest of all that a run waits for
            with contextlib.suppress(WorkerEnded):
                self._worker(number, device)
        self._threads = [
            threading.Thread(target=self._serve, args=(number, device), daemon=True)
            for number, device in enumerate(devices)
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, session: WorkerSession, waits: bool = False) -> None:
        """Send what jobs need; they run from here on. waits: WorkerEnded if the first process does not take it."""
        self._session = session
        if waits:
            self._prepared(0, self._devices[0])
        self._begun.set()

    def submit(self, job: Job, place: int) -> None:
        """Run a job. Those with lower places go first."""

        def run(number: int, device: str) -> dict[str, Any]:
            message = {"do": "run", "job": asdict(job), "best": self.best, **_for_triton()}
            return self._asked(number, device, message)

        self._tasks.put(_Task(place, "ran", job.index, run))

    def submit_final(self, jobs: Sequence[Job]) -> None:
        """Time jobs against each other on one device."""
        self._tasks.put(_Task(-1, "final", 0, lambda number, device: self._final(number, device, jobs)))

    def ask(self, kind: str, index: int, message: dict[str, Any], times: int = 1) -> None:
        """Send a message of another kind; its answer is put in the events. It may take `times` as long as a job."""
        self._tasks.put(_Task(0, kind, index, lambda number, device: self._asked(number, device, message, times)))

    def cancel(self) -> list[int]:
        """Forget the jobs that do not run yet; returns their indices."""
        cancelled = []
        with contextlib.suppress(queue.Empty):
            while True:
                cancelled.append(self._tasks.get_nowait().index)
        return cancelled

    def close(self) -> None:
        """After the last outcome: keep the processes for the next run."""
        self._stop()
        for thread in self._threads:
            thread.join()
        for worker in self._workers.values():
            keep(worker)
        self._workers.clear()

    def kill(self) -> None:
        """End everything now, with whatever runs."""
        self._stop()
        with self._lock:
            for worker in self._workers.values():
                worker.kill()
        for thread in self._threads:
            thread.join()
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _stop(self) -> None:
        with self._lock:
            self._stopping = True
        self._begun.set()
        for _ in self._threads:
            self._tasks.put(_Task(-2, "", -1, None))

    # In the devices' threads

    def _serve(self, number: int, device: str) -> None:
        self._begun.wait()
        while not self._stopping:
            task = self._tasks.get()
            if task.do is None:
                return
            try:
                outcome = task.do(number, device)
            except Exception as error:  # of ours: a thread that ended would leave the run waiting
                message = f"{type(error).__name__}: {error}"
                outcome = {"status": "crash", "message": message, "rounds": {}, "failures": {}}
            with self._lock:
                self.best = faster(self.best, outcome)
            if not self._stopping:
                self._events.put((task.kind, task.index, outcome))

    def _worker(self, number: int, device: str) -> Worker:
        with self._lock:
            if self._stopping:
                raise WorkerEnded("the run is over")
            if number not in self._workers:
                try:
                    self._workers[number] = take(device)
                except OSError as error:  # no memory, or no process more
                    raise WorkerEnded(f"{type(error).__name__}: {error}") from None
            return self._workers[number]

    def _drop(self, number: int) -> None:
        with self._lock:
            worker = self._workers.pop(number, None)
        if worker is not None:
            worker.close()

    def _prepared(self, number: int, device: str) -> Worker:
        """A process that has the session. Raises WorkerEnded if several in a row end before that."""
        session = self._session
        assert session is not None
        for attempt in range(session.starts):
            try:
                worker = self._worker(number, device)
                if getattr(worker, "session", None) is session:
                    return worker
                answer = worker.ask(session.message, session.start_timeout)
            except (WorkerEnded, Silence) as error:
                self._drop(number)
                if attempt == session.starts - 1 or self._stopping:
                    raise WorkerEnded(f"{session.refusals[0]}{error or 'it does not answer'}") from None
                time.sleep(0.2 * attempt)
                continue
            if "failure" in answer:
                self._drop(number)
                raise WorkerEnded(f"{session.refusals[1]}{answer['failure']}")
            _log.debug("autotune: benchmark process %s, seconds from its start: %s", device, answer.get("seconds"))
            worker.session = session  # type: ignore[attr-defined]
            return worker
        raise AssertionError

    def _asked(self, number: int, device: str, message: dict[str, Any], times: int = 1) -> dict[str, Any]:
        """What a process answers in the end; a trial's status and message where it does not."""
        assert self._session is not None
        seconds = self._session.timeout * times
        try:
            worker = self._prepared(number, device)
            answer = worker.ask(message, seconds)
            while (reply := self._session.reply(answer)) is not None:
                worker.tell(reply)
                answer = worker.listen(seconds)
        except Silence:
            self._drop(number)
            return {"status": "hang", "message": f"still running after {seconds:g} s; killed"}
        except WorkerEnded as error:
            self._drop(number)
            return {"status": "crash", "message": str(error)}
        if answer.pop("sticky", False):
            self._drop(number)
        return answer

    def _final(self, number: int, device: str, jobs: Sequence[Job]) -> dict[str, Any]:
        """The final round. A job that ends the process there is left out, and the round starts again."""
        assert self._session is not None
        failures: dict[str, Any] = {}
        racing = list(jobs)
        while racing:
            running = racing[0].index
            try:
                worker = self._prepared(number, device)
                message = {"do": "final", "jobs": [asdict(job) for job in racing], **_for_triton()}
                answer = worker.ask(message, self._session.timeout)
                while "begins" in answer:
                    running = answer["begins"]
                    answer = worker.listen(self._session.timeout)
            except (Silence, WorkerEnded) as error:
                self._drop(number)
                if self._stopping:
                    break
                status = "hang" if isinstance(error, Silence) else "crash"
                answer = {"rounds": {}, "failures": {str(running): {"status": status, "message": str(error)}}}
            if any(failure.pop("sticky", False) for failure in answer["failures"].values()):
                self._drop(number)
            failures.update(answer["failures"])
            racing = [job for job in racing if str(job.index) not in failures]
            if answer["rounds"] or not answer["failures"]:
                return {**answer, "failures": failures}
        return {"rounds": {}, "failures": failures}


def _for_triton() -> dict[str, Any]:
    """What spares a process the time that Triton takes to hash its own library."""
    key = known_library_key()
    return {"library_key": None if key is None else asdict(key)}


def faster(best: float | None, outcome: Mapping[str, Any]) -> float | None:
    """The better of the best latency so far and a job's, which counts if it was found right there, bits included."""
    latency = outcome.get("latency")
    if outcome.get("status") != "ok" or latency is None or not _NOT_YET.isdisjoint(outcome):
        return best
    return float(latency) if best is None else min(best, float(latency))
