"""Compile sources in joblib's processes. They receive text and options, and answer with what the binary costs.

Each compilation runs in a fork of its worker: a compiler that hangs or crashes takes nothing with it, and its whole
process group, ptxas included, can be killed. Compiled kernels come back through Triton's cache folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.machinery
import json
import multiprocessing
import os
import queue
import select
import signal
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tiledsl.autotuner import carry
from tiledsl.autotuner.binary import binary_hash
from tiledsl.autotuner.trial import Status
from tiledsl.runtime.kernel import Kernel

_TRIES = 3  # times that a pool may break before what it has not compiled counts as failed


@dataclass(frozen=True)
class CompileTask:
    """A module to compile for a target. `kernels` are the fields of EmittedKernel; `timeout` is in seconds. `carries`:
    it compiles on another machine, perhaps, and the outcome brings Triton's cache entries along."""

    index: int
    name: str
    source: str
    kernels: tuple[dict[str, Any], ...]
    target: str
    timeout: float
    cache_dir: str
    triton_cache_dir: str | None
    carries: bool = False


@dataclass(frozen=True)
class CompileOutcome:
    """What became of a task. `resources`: of the kernel that uses most shared memory; None unless status is "ok".
    `binary_hash`: equal where the machine code and how it is launched are. `files`: see carry.pack."""

    index: int
    status: Status
    message: str = ""
    resources: dict[str, Any] | None = None
    seconds: float = 0.0
    binary_hash: str = ""
    files: dict[str, str] = field(default_factory=dict, repr=False)


def task_for(index: int, kernel: Kernel, timeout: float) -> CompileTask:
    """The task that compiles a kernel's source."""
    from tiledsl.settings import current

    return CompileTask(
        index,
        kernel.name,
        kernel.source,
        tuple(asdict(each) for each in kernel.module.kernels),
        str(kernel.target),
        timeout,
        str(current().cache_dir),
        os.environ.get("TRITON_CACHE_DIR"),
    )


class CompilePool:
    """Compiles in the background; outcomes are put in `events` as ("compiled", index, outcome), in order of completion.

    A backend that `joblib.parallel_config` has set, such as dask, is used; else joblib's own processes.
    """

    def __init__(self, jobs: int, events: queue.Queue[Any]) -> None:
        from joblib.parallel import get_active_backend

        self._jobs = jobs
        self._events = events
        self._backend: Any = get_active_backend()[0]  # of this thread: the other one would not see it
        self._batches: queue.Queue[list[CompileTask]] = queue.Queue()
        self._stopping = False
        self._busy = False
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
        if self._busy:
            _kill_processes()
        self._thread.join(10)

    kill = close

    def _work(self) -> None:
        while not self._stopping:
            left = {task.index: task for task in self._batches.get()}
            self._busy = True
            reason = ""
            for _ in range(_TRIES):
                if self._stopping or not left:
                    break
                try:
                    for outcome in compile_all(list(left.values()), self._jobs, self._backend):
                        del left[outcome.index]
                        self._events.put(("compiled", outcome.index, outcome))
                except (
                    BaseException
                ) as error:  # the pool broke: the system killed a process for its memory, or Ctrl-C all
                    reason = f"{type(error).__name__}: {error}"
            self._busy = False
            if not self._stopping:
                for index in left:
                    self._events.put(("compiled", index, CompileOutcome(index, "crash", reason)))


def compile_all(tasks: Sequence[CompileTask], jobs: int, backend: Any = None) -> Iterator[CompileOutcome]:
    """Outcomes in the order of their completion; `jobs` run at once.

    The processes stay for the next call. Since joblib turns a single job into a call in this process, two workers are
    there even then, of which one has work.
    """
    from joblib import Parallel, delayed

    if not tasks:
        return
    jobs = max(1, min(jobs, len(tasks)))
    if backend is None or type(backend).__name__ in ("LokyBackend", "ThreadingBackend", "SequentialBackend"):
        pool = Parallel(max(2, jobs), "loky", "generator_unordered", pre_dispatch=jobs, batch_size=1)
        yield from pool(delayed(compile_task)(task) for task in tasks)
        return
    from joblib import parallel_config

    with parallel_config(backend=backend):
        pool = Parallel(-1, return_as="generator_unordered", pre_dispatch="all", batch_size=1)
        for outcome in pool(delayed(compile_task)(replace(task, carries=True)) for task in tasks):
            carry.unpack(outcome.files, carry.local_folder(tasks[0].triton_cache_dir))
            yield replace(outcome, files={})


def _kill_processes() -> None:
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def compile_task(task: CompileTask) -> CompileOutcome:
    """Compile one task in a fork of this process. Never raises for what the compilation does."""
    _warm_up()
    start = time.monotonic()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; the fork needs none of them
        child = os.fork()
    if child == 0:
        _child(task, read, write)
    os.close(write)
    answer = _read_all(read, start + task.timeout)
    os.close(read)
    if answer is None:
        _kill_group(child)
        os.waitpid(child, 0)
        message = f"still compiling after {task.timeout:g} s"
        return CompileOutcome(task.index, "compile_timeout", message, seconds=time.monotonic() - start)
    _, code = os.waitpid(child, 0)
    seconds = time.monotonic() - start
    if not answer:
        end = signal.Signals(os.WTERMSIG(code)).name if os.WIFSIGNALED(code) else f"exit status {code >> 8}"
        return CompileOutcome(task.index, "crash", f"the compiler process ended with {end}", seconds=seconds)
    return CompileOutcome(task.index, seconds=seconds, **json.loads(answer))


@functools.cache
def _warm_up() -> None:
    """What a worker does once, and its forks not again: imports, and Triton's hash of its own library (a second)."""
    import triton.compiler.code_generator  # noqa: F401

    import tiledsl.codegen.triton_source
    import tiledsl.runtime.compile
    import tiledsl.runtime.module  # noqa: F401

    with contextlib.suppress(ImportError, AttributeError):  # no public name; without it the forks take longer
        importlib.import_module("triton.runtime.cache").triton_key()
    if multiprocessing.current_process().name.startswith("LokyProcess"):
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent does, which joblib's processes notice only after minutes."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _child(task: CompileTask, read: int, write: int) -> None:
    """What the fork does. It ends the process whatever happens."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: when the worker is killed
        os.close(read)
        answer = json.dumps(_compile(task)).encode()
        while answer:
            answer = answer[os.write(write, answer) :]
    finally:
        os._exit(0)


def _compile(task: CompileTask) -> dict[str, Any]:
    from tiledsl.codegen.triton_source import EmittedKernel
    from tiledsl.runtime.compile import CompileError, compile_kernel
    from tiledsl.runtime.module import load_module
    from tiledsl.runtime.target import Target

    if "torch" not in sys.modules:  # only launching needs it, and to load it takes longer than to compile
        sys.modules["torch"] = stand_in = types.ModuleType("torch")
        stand_in.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    if task.carries:
        with tempfile.TemporaryDirectory(prefix="tiledsl-") as folder:
            answer = _compile(replace(task, carries=False, cache_dir=folder, triton_cache_dir=f"{folder}/triton"))
            return {**answer, "files": carry.pack(Path(folder, "triton"))}
    os.environ["TILEDSL_CACHE_DIR"] = task.cache_dir
    if task.triton_cache_dir is not None:
        os.environ["TRITON_CACHE_DIR"] = task.triton_cache_dir
    try:
        module = load_module(task.name, task.source, interpret=False, cache_dir=task.cache_dir)
        target = Target.parse(task.target)
        found, compiled_kernels = [], []
        for fields in task.kernels:
            each = EmittedKernel(**fields)
            compiled = compile_kernel(
                getattr(module, each.name), each.signature, each.constexprs, target, each.num_warps, each.num_stages,
                attrs=each.divisible_by_16, **each.options,
            )  # fmt: skip
            found.append(compiled.resources)
            compiled_kernels.append(compiled)
    except CompileError as error:
        return {"status": "out_of_resources" if error.stage == "resources" else "compile_error", "message": str(error)}
    except Exception as error:
        return {"status": "compile_error", "message": f"{type(error).__name__}: {error}"}
    binary = binary_hash(task.source, compiled_kernels)
    largest = max(found, key=lambda resources: resources.shared_bytes)
    return {"status": "ok", "resources": asdict(largest), "binary_hash": binary}


def _read_all(file: int, deadline: float) -> bytes | None:
    """Everything until the other end closes; None if that takes too long."""
    chunks: list[bytes] = []
    while True:
        ready, _, _ = select.select([file], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(file, 1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def _kill_group(child: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except OSError:  # it has not made its group yet, or is gone
            continue
