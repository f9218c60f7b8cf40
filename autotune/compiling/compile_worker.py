"""What joblib's processes do: compile a module in a fork, and answer with what the binary costs.

A compiler that hangs or crashes takes nothing but its fork with it, and the fork's whole process group, ptxas included,
can be killed. Compiled kernels come back through Triton's cache folder.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import types
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tiledsl.autotuner.compiling import triton_cache
from tiledsl.autotuner.compiling.binary import binary_hash
from tiledsl.autotuner.forks import Ended, Forked
from tiledsl.autotuner.measuring.scratch import Scratch
from tiledsl.autotuner.trial import Status
from tiledsl.autotuner.verifying.hardware_orders import hardware_orders
from tiledsl.runtime import launch_triton
from tiledsl.runtime.launch_triton import LibraryKey

_LAUNCHER_SECONDS = 20  # for the C compiler


@dataclass(frozen=True)
class CompileTask:
    """A module to compile for a target. `kernels` are the fields of EmittedKernel; `timeout` is in seconds. `carries`:
    it compiles on another machine, perhaps, and the outcome brings Triton's cache entries along. `library_key`: made by
    another process for this one. `makes_launchers`: Triton's C functions that launch the kernels are compiled, too."""

    index: int
    name: str
    source: str
    kernels: tuple[dict[str, Any], ...]
    target: str
    timeout: float
    cache_dir: str
    triton_cache_dir: str | None
    carries: bool = False
    library_key: LibraryKey | None = None
    makes_launchers: bool = False


@dataclass(frozen=True)
class CompileOutcome:
    """What became of a task. `resources`: of the kernel that uses most shared memory; None unless status is "ok".
    `binary_hash`: equal where the machine code and how it is launched are. `orders`: equal where instructions add in
    the same order. `files`: see triton_cache.pack."""

    index: int
    status: Status
    message: str = ""
    resources: dict[str, Any] | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    binary_hash: str = ""
    orders: str = ""
    files: dict[str, str] = field(default_factory=dict, repr=False)


class _Compilation(Forked[CompileTask]):
    late, ended = "still compiling", "the compiler process ended with"
    tries_again = False


def compile_task(task: CompileTask) -> CompileOutcome:
    """Compile one task in a fork of this process. Never raises for what the compilation does."""
    warm_up(hashes=task.library_key is None)
    scratch = Scratch()  # for what compilers leave behind where they fail or are killed
    start = time.monotonic()
    try:
        with _Compilation(lambda each: _in_fork(each, scratch.path), [task], task.timeout) as fork:
            (answer,) = fork
    finally:
        scratch.close()
    seconds = time.monotonic() - start
    assert answer is not None, "what a compilation raises is its outcome"
    if isinstance(answer, Ended):
        return CompileOutcome(task.index, answer.status, answer.message, seconds=seconds)
    return CompileOutcome(task.index, seconds=seconds, **answer)


def warm_up(hashes: bool) -> LibraryKey | None:
    """What a worker does once, and its forks not again: imports, and with `hashes` Triton's hash of its own library."""
    _start_up()
    return launch_triton.library_key() if hashes else None


@functools.cache
def _start_up() -> None:
    import triton.compiler.code_generator  # noqa: F401

    import tiledsl.runtime.compile
    import tiledsl.runtime.module
    import tiledsl.runtime.target  # noqa: F401

    if multiprocessing.current_process().name.startswith("LokyProcess"):
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when its parent does, which joblib's processes notice only after minutes."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _in_fork(task: CompileTask, scratch: Path) -> dict[str, Any]:
    """The fields of the outcome, found in a fork that the caller may kill."""
    os.nice(5)  # the tuner and what measures go first
    tempfile.tempdir = os.environ["TMPDIR"] = str(scratch)
    compiled: list[Any] = []
    answer = _compile(task, compiled)
    if task.makes_launchers and compiled:
        _make_launchers(compiled)
    return {**answer, "cpu_seconds": sum(os.times()[:4])}


def _make_launchers(compiled: list[Any]) -> None:
    """Compile Triton's C functions in a fork of this fork, for which the outcome does not wait."""
    child = os.fork()
    if child:
        os.setpgid(child, 0)  # it is not killed with this one
        return
    scratch = Scratch()
    try:
        tempfile.tempdir = os.environ["TMPDIR"] = str(scratch.path)
        signal.signal(signal.SIGALRM, lambda *_: sys.exit())
        signal.alarm(_LAUNCHER_SECONDS)
        for each in compiled:
            launch_triton.compile_launcher(each.triton)
    finally:
        scratch.close()
        os._exit(0)


def _compile(task: CompileTask, compiled_kernels: list[Any]) -> dict[str, Any]:
    """The fields of the outcome. The CompiledKernels are added to the list."""
    from tiledsl.runtime.compile import CompileError, compile_emitted, without_torch
    from tiledsl.runtime.module import load_module
    from tiledsl.runtime.target import Target

    without_torch()
    if task.carries:
        with tempfile.TemporaryDirectory(prefix="tiledsl-") as folder:
            here = replace(task, carries=False, cache_dir=folder, triton_cache_dir=f"{folder}/triton")
            answer = _compile(here, compiled_kernels)
            return {**answer, "files": triton_cache.pack(Path(folder, "triton"))}
    os.environ["TILEDSL_CACHE_DIR"] = task.cache_dir
    if task.triton_cache_dir is not None:
        os.environ["TRITON_CACHE_DIR"] = task.triton_cache_dir
    if task.library_key is not None:
        launch_triton.use_library_key(task.library_key)
    try:
        module = load_module(task.name, task.source, interpret=False, cache_dir=task.cache_dir)
        target = Target.parse(task.target)
        of_kernels = []
        for fields in task.kernels:
            # not an EmittedKernel, whose module takes long to import
            compiled = compile_emitted(module, types.SimpleNamespace(**fields), target)
            of_kernels.append(compiled.resources)
            compiled_kernels.append(compiled)
    except CompileError as error:
        return {"status": "out_of_resources" if error.stage == "resources" else "compile_error", "message": str(error)}
    except (Exception, SystemExit) as error:
        return {"status": "compile_error", "message": f"{type(error).__name__}: {error}"}
    binary = binary_hash(task.source, compiled_kernels)
    orders = " ".join(hardware_orders(each.asm["ttgir"]) for each in compiled_kernels if "ttgir" in each.asm)
    largest = max(of_kernels, key=lambda resources: resources.shared_bytes)
    return {"status": "ok", "resources": asdict(largest), "binary_hash": binary, "orders": orders}
