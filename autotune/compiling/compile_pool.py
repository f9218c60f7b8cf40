"""Compile sources in joblib's processes. They receive text and options, and stay for the next run."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from tiledsl.autotuner.compiling import triton_cache
from tiledsl.autotuner.compiling.compile_worker import CompileOutcome, CompileTask, compile_task, warm_up
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.launch_triton import LibraryKey, library_key
from tiledsl.runtime.module import writable_folder
from tiledsl.runtime.streams import have_streams
from tiledsl.settings import current

_size = 0  # processes of the last call
_library_key: LibraryKey | None = None  # one process makes it for all
_busy: set[CompilePool] = set()  # of all threads: joblib's processes are common to them
_busy_lock = threading.Lock()
_starting = threading.Lock()  # held while processes start: they print a traceback if this one ends meanwhile
atexit.register(_starting.acquire, timeout=10)
_NICE = 10
_TRIES = 3  # times that a pool may break before what it has not compiled counts as failed


def known_library_key() -> LibraryKey | None:
    """What this process knows of Triton's library; the processes that it starts need not find out."""
    return _library_key


def task_for(index: int, kernel: Kernel, timeout: float, makes_launchers: bool = False) -> CompileTask:
    """The task that compiles a kernel's source."""
    return CompileTask(
        index,
        kernel.name,
        kernel.source,
        tuple(asdict(each) for each in kernel.module.kernels),
        str(kernel.target),
        timeout,
        str(writable_folder(current().cache_dir)),
        os.environ.get("TRITON_CACHE_DIR"),
        makes_launchers=makes_launchers,
    )


class CompilePool:
    """Compiles in the background; outcomes are put in `events` as ("compiled", index, outcome), in order of completion.

    A backend that `joblib.parallel_config` has set, such as dask, is used; else joblib's own processes. Of those, as
    many as `expected` tasks need start at once, and import what compiling takes before the first task comes.
    """

    def __init__(self, jobs: int, events: queue.Queue[Any], expected: int = 0) -> None:
        from joblib.parallel import get_active_backend

        self._jobs = jobs
        self._expected = expected
        self._events = events
        self._backend: Any = get_active_backend()[0]  # of this thread: the other one would not see it
        self._batches: queue.Queue[list[CompileTask]] = queue.Queue()
        self._stopping = False
        self._lock = threading.Lock()
        self._started: set[int] = set()
        self._skipped: set[int] = set()
        self._is_warm = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, tasks: Sequence[CompileTask]) -> None:
        """Compile these after those submitted before."""
        if tasks:
            self._batches.put(list(tasks))

    def close(self) -> None:
        """End the thread; the processes stay for the next run. What still compiles is killed."""
        self._stopping = True
        self._batches.put([])
        with _busy_lock:
            alone = _busy == {self}
        if alone:
            _kill_processes()
        if self._is_warm and (self not in _busy or alone):
            self._thread.join(10)

    kill = close

    def skip(self, index: int) -> bool:
        """Leave out a task, of which nothing will be reported. False if it has started: then it is too late."""
        with self._lock:
            if index not in self._started:
                self._skipped.add(index)
        return index in self._skipped

    def _takes(self, task: CompileTask) -> bool:
        with self._lock:
            if self._stopping or task.index in self._skipped:
                return False
            self._started.add(task.index)
            return True

    def _next_batch(self) -> list[CompileTask]:
        """All tasks that wait; at least one, unless the pool is closed."""
        tasks = self._batches.get()
        with contextlib.suppress(queue.Empty):
            while True:
                tasks += self._batches.get_nowait()
        return tasks

    def _work(self) -> None:
        _give_way()
        with contextlib.suppress(Exception):  # a pool that breaks here does so again when it matters
            warm_up_all(min(self._jobs, self._expected), self._jobs, self._backend)
        self._is_warm = True
        while not self._stopping:
            pending = {task.index: task for task in self._next_batch()}
            reason = ""
            with _busy_lock:
                _busy.add(self)
            for _ in range(_TRIES):
                pending = {index: task for index, task in pending.items() if index not in self._skipped}
                if self._stopping or not pending:
                    break
                try:
                    for outcome in compile_all(list(pending.values()), self._jobs, self._backend, self._takes):
                        del pending[outcome.index]
                        self._events.put(("compiled", outcome.index, outcome))
                except (
                    BaseException
                ) as error:  # the pool broke: the system killed a process for its memory, or Ctrl-C all
                    reason = f"{type(error).__name__}: {error}"
            with _busy_lock:
                _busy.discard(self)
            if not self._stopping:
                for index in pending.keys() - self._skipped:
                    self._events.put(("compiled", index, CompileOutcome(index, "crash", reason)))


def _give_way() -> None:
    """Have this thread, and the processes that it starts, wait for the tuner and for what measures."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)  # Linux's are a thread's


def compile_all(
    tasks: Sequence[CompileTask],
    jobs: int,
    backend: Any = None,
    takes: Callable[[CompileTask], bool] = lambda task: True,
) -> Iterator[CompileOutcome]:
    """Outcomes in the order of their completion; `jobs` run at once. `takes` is asked before each starts.

    The processes stay for the next call. Since joblib turns a single job into a call in this process, two workers are
    there even then, of which one has work.
    """
    from joblib import Parallel, delayed, parallel_config

    if not tasks:
        return
    if _is_local(backend):
        pool = _processes(max(1, min(jobs, len(tasks))), jobs)
        known = [replace(task, library_key=_library_key) for task in tasks]
        yield from pool(delayed(compile_task)(task) for task in filter(takes, known))
        return
    with parallel_config(backend=backend):
        # Ray's backend, a pool of multiprocessing's interface, gives nothing before all tasks are done.
        return_as = "generator_unordered" if backend.supports_return_generator else "list"
        pool = Parallel(-1, return_as=return_as, pre_dispatch="all", batch_size=1)
        for outcome in pool(delayed(compile_task)(replace(task, carries=True)) for task in filter(takes, tasks)):
            triton_cache.unpack(outcome.files, triton_cache.local_folder(tasks[0].triton_cache_dir))
            yield replace(outcome, files={})


def warm_up_all(processes: int, most: int, backend: Any = None) -> None:
    """Start so many of joblib's processes, up to `most` with those that are there, and have each do its imports. One of
    them makes Triton's hash of its library, if it is not known."""
    from joblib import delayed

    global _library_key
    if not _is_local(backend):
        _library_key = _library_key or library_key()
    elif processes > 0:
        one_hashes = _library_key is None
        tasks = (delayed(warm_up)(one_hashes and number == 0) for number in range(processes))
        with _starting:
            running = _processes(processes, most)(tasks)
        for found in running:
            _library_key = _library_key or found


def _is_local(backend: Any) -> bool:
    return backend is None or type(backend).__name__ in ("LokyBackend", "ThreadingBackend", "SequentialBackend")


def _processes(at_once: int, most: int) -> Any:
    """joblib's processes, of which so many work at a time."""
    from joblib import Parallel
    from joblib.parallel import LokyBackend

    have_streams()
    # Left to itself joblib gives fewer processes more threads each, and starts all anew when their number changes.
    backend = LokyBackend(inner_max_num_threads=1)
    return Parallel(_pool_size(at_once, most), backend, "generator_unordered", pre_dispatch=at_once, batch_size=1)


def _pool_size(at_once: int, most: int) -> int:
    """Processes to ask joblib for: those that are there stay, also where less runs at once, up to `most`."""
    global _size
    _size = max(2, at_once, min(_size, most))
    return _size


def _kill_processes() -> None:
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)
