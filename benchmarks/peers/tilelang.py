"""TileLang as a candidate: a program in the surface that both share, its imports replaced by those of TileLang."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.row import Candidate, Context, Ready, Row, Tensors, Unavailable

_REPLACED = {
    "from __future__ import annotations\n": "",  # TileLang could not see the names that only they mention
    "import tiledsl\n": "import tilelang as tiledsl\n",
    "import tiledsl.language as T\n": "import tilelang.language as T\n",
}
_SECONDS = 60.0  # that compiling a row's configurations may take where the context says nothing


@cache
def translated(program: str) -> ModuleType:
    """A program (a module's name) as TileLang's. Its text lies in a file, where TileLang looks for it."""
    spec = importlib.util.find_spec(program)
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin)
    text = path.read_text(encoding="utf-8")
    for ours, theirs in _REPLACED.items():
        text = text.replace(ours, theirs)
    folder = Path(tempfile.mkdtemp(prefix="tilelang-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    name = f"tilelang_{path.stem}"
    copy = folder / f"{name}.py"
    copy.write_text(text, encoding="utf-8")
    made = importlib.util.spec_from_file_location(name, copy)
    assert made is not None and made.loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules[name] = module
    made.loader.exec_module(module)
    return module


def tilelang_candidate(
    program: str, function: str, arguments: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
) -> Candidate:
    """The fastest of a few configurations. (TileLang's own tuner checks and times each for longer, minutes a row.)"""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        limit = context.seconds or _SECONDS
        os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
        os.environ.setdefault("TILELANG_COMPILE_TIMEOUT_SECONDS", f"{limit:g}")  # of one nvcc, which would go on
        try:
            import tilelang  # noqa: F401
        except Exception as error:  # not there, or its libraries do not load
            raise Unavailable(f"not installed ({type(error).__name__}: {error})") from error
        start = time.perf_counter()
        chosen = context.some(configs)
        builder = getattr(translated(program), function)
        working: list[tuple[float, Any, Mapping[str, Any]]] = []
        rivals: list[dict[str, Any]] = []
        for config, kernel in zip(chosen, compiled(builder, arguments, chosen, limit), strict=True):
            try:
                if isinstance(kernel, Exception):
                    raise kernel
                kernel(*inputs)
                took = _timed(lambda kernel=kernel: kernel(*inputs)) if context.tune else 0.0
            except Exception as error:
                why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
                rivals.append({"config": dict(config), "status": "failed", "why": why})
                continue
            working.append((took, kernel, config))
        if not working:
            raise Unavailable(f"no configuration works: {rivals[0]['why']}")
        working.sort(key=lambda each: each[0])
        rivals[:0] = [{"config": dict(config), "ms": round(took, 6)} for took, _, config in working]
        _, best, config = working[0]
        seconds = time.perf_counter() - start
        return Ready(lambda given, outputs: lambda: best(*given), dict(config), seconds, rivals, own_outputs=True)

    return Candidate("tilelang", "TileLang", prepare)


def compiled(
    builder: Any, arguments: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], seconds: float
) -> list[Any]:
    """Each configuration's kernel, or the exception that stands for it, in order; all are compiled at the same time.

    Threads do: most of the time goes into a compiler that runs as a process of its own. After so many seconds those
    that are not done are left to themselves.
    """
    pool = ThreadPoolExecutor(len(configs), "tilelang-compile")
    try:
        futures = [pool.submit(builder.compile, **arguments, **config) for config in configs]
        wait(futures, seconds)
        return [
            (each.exception() or each.result()) if each.done() else TimeoutError(f"not compiled after {seconds:g} s")
            for each in futures
        ]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _timed(call: Any) -> float:
    import triton

    return float(triton.testing.do_bench(call, warmup=5, rep=25))
