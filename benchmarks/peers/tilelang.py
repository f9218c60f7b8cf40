"""TileLang as a candidate: the row's own program, its imports of tiledsl replaced by those of TileLang."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.programs import EXAMPLES
from benchmarks.row import Candidate, Context, Ready, Row, Tensors, Unavailable

_IMPORTS = {
    "import tiledsl\n": "import tilelang as tiledsl\n",
    "import tiledsl.language as T\n": "import tilelang.language as T\n",
}


@cache
def translated(program: str) -> ModuleType:
    """A program (a module's name, or a file) as TileLang's. Its text lies in a file, where TileLang looks for it."""
    if program.endswith(".py"):
        path = Path(program)
    else:
        spec = importlib.util.find_spec(program)
        assert spec is not None and spec.origin is not None
        path = Path(spec.origin)
    text = path.read_text(encoding="utf-8")
    for ours, theirs in _IMPORTS.items():
        text = text.replace(ours, theirs)
    folder = Path(tempfile.mkdtemp(prefix="tilelang-programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    name = f"tilelang_{path.stem}"
    copy = folder / f"{name}.py"
    copy.write_text(text, encoding="utf-8")
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    made = importlib.util.spec_from_file_location(name, copy)
    assert made is not None and made.loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules[name] = module
    made.loader.exec_module(module)
    return module


def tilelang_candidate(
    program: str, function: str, arguments: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
) -> Candidate:
    """The fastest of a few configurations. (TileLang's own tuner compiles one after another, for minutes a row.)"""

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        try:
            import tilelang  # noqa: F401
        except Exception as error:  # not there, or its libraries do not load
            raise Unavailable(f"not installed ({type(error).__name__}: {error})") from error
        start = time.perf_counter()
        best: tuple[float, Any, Mapping[str, Any]] | None = None
        failures = []
        for config in context.some(configs):
            try:
                kernel = getattr(translated(program), function)(**arguments, **config)
                kernel(*inputs)
                took = _timed(lambda kernel=kernel: kernel(*inputs)) if context.tune else 0.0
            except Exception as error:
                failures.append(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}")
                continue
            if best is None or took < best[0]:
                best = (took, kernel, config)
        if best is None:
            raise Unavailable("no configuration works: " + failures[0])
        _, chosen, config = best
        seconds = time.perf_counter() - start
        return Ready(lambda given, outputs: lambda: chosen(*given), dict(config), seconds, own_outputs=True)

    return Candidate("tilelang", "TileLang", prepare)


def _timed(call: Any) -> float:
    import triton

    return float(triton.testing.do_bench(call, warmup=5, rep=25))
