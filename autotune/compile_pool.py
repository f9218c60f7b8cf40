"""Compile sources in joblib's processes. They receive text and options, and answer with what the binary costs.

Each compilation runs in a fork of its worker: a compiler that hangs or crashes takes nothing with it, and its whole
process group, ptxas included, can be killed. Compiled kernels come back through Triton's cache folder.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import json
import os
import select
import signal
import sys
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tiledsl.autotuner.trial import Status
from tiledsl.runtime.kernel import Kernel


@dataclass(frozen=True)
class CompileTask:
    """A module to compile for a target. `kernels` are the fields of EmittedKernel; `timeout` is in seconds."""

    index: int
    name: str
    source: str
    kernels: tuple[dict[str, Any], ...]
    target: str
    timeout: float
    cache_dir: str
    triton_cache_dir: str | None


@dataclass(frozen=True)
class CompileOutcome:
    """What became of a task. `resources`: of the kernel that uses most shared memory; None unless status is "ok"."""

    index: int
    status: Status
    message: str = ""
    resources: dict[str, Any] | None = None
    seconds: float = 0.0


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


def compile_all(tasks: Sequence[CompileTask], jobs: int) -> Iterator[CompileOutcome]:
    """Outcomes in the tasks' order, each as soon as it and those before it are there; `jobs` run at once.

    The processes stay for the next call. Since joblib turns a single job into a call in this process, two workers are
    there even then, of which one has work.
    """
    from joblib import Parallel, delayed

    if not tasks:
        return
    jobs = max(1, min(jobs, len(tasks)))
    pool = Parallel(n_jobs=max(2, jobs), pre_dispatch=jobs, batch_size=1, return_as="generator", backend="loky")
    yield from pool(delayed(compile_task)(task) for task in tasks)


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


def _child(task: CompileTask, read: int, write: int) -> None:
    """What the fork does. It ends the process whatever happens."""
    try:
        os.setsid()
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
    os.environ["TILEDSL_CACHE_DIR"] = task.cache_dir
    if task.triton_cache_dir is not None:
        os.environ["TRITON_CACHE_DIR"] = task.triton_cache_dir
    try:
        module = load_module(task.name, task.source, interpret=False, cache_dir=task.cache_dir)
        target = Target.parse(task.target)
        found = []
        for fields in task.kernels:
            each = EmittedKernel(**fields)
            compiled = compile_kernel(
                getattr(module, each.name), each.signature, each.constexprs, target, each.num_warps, each.num_stages,
                attrs=each.divisible_by_16, **each.options,
            )  # fmt: skip
            found.append(compiled.resources)
    except CompileError as error:
        return {"status": "out_of_resources" if error.stage == "resources" else "compile_error", "message": str(error)}
    except Exception as error:
        return {"status": "compile_error", "message": f"{type(error).__name__}: {error}"}
    largest = max(found, key=lambda resources: resources.shared_bytes)
    return {"status": "ok", "resources": asdict(largest)}


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
