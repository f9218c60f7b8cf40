"""`tiledsl doctor`: what is installed, what works on this machine, and what does not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import tiledsl.language as T
from tiledsl.autotuner.measuring.gpu_clock import reader
from tiledsl.commands import findings
from tiledsl.commands.findings import Finding
from tiledsl.commands.report import give
from tiledsl.errors import TileError
from tiledsl.kernels.jit import compile as compile_program
from tiledsl.runtime.lowering import check_print_after
from tiledsl.runtime.target import Target
from tiledsl.settings import PREFIX, current, default, given_variables, override, unknown_variables, wrong_variables
from tiledsl.version import __version__

AGAIN = "repeat with TILEDSL_FULL_TRACEBACKS=1; fix what is wrong above first"
SETTINGS = "unset the variable, or see docs/settings.md"


@T.prim_func
def doubled(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):  # type: ignore[no-untyped-def, valid-type]
    with T.Kernel(1, threads=32) as _:
        for i in T.Parallel(64):
            Y[i] = X[i] * 2.0


def examine() -> Iterator[Finding]:
    """The report, line by line. Where a setting is wrong, the rest goes on with its default."""
    wrong = wrong_variables()
    with override(**{name: default(name) for name in wrong}):
        for name, check in (("target", Target.parse), ("print_after", check_print_after)):
            value = getattr(current(), name)
            try:
                check(value)  # what its form does not tell
            except TileError as error:
                wrong[name] = f"{PREFIX}{name.upper()}={value}: {error.message}"
    with override(**{name: default(name) for name in wrong}):
        yield from _examine(wrong)


def _examine(wrong: Mapping[str, str]) -> Iterator[Finding]:
    version = sys.version_info
    right = (3, 10) <= version < (3, 14)
    do = "" if right else "make an environment with Python 3.10 to 3.13"
    yield Finding("python", right, f"{platform.python_version()} ({sys.executable})", do)
    yield Finding("tiledsl", True, __version__)
    libraries = [*findings.packages()]
    yield from libraries
    yield from findings.extras()
    yield from findings.mistakes()
    for message in wrong.values():
        yield Finding("setting", False, message, SETTINGS)
    for message in unknown_variables().values():
        yield Finding("setting", False, message, SETTINGS)
    if not wrong:
        given = (f"{PREFIX}{name.upper()}={value}" for name, value in given_variables().items())
        yield Finding("settings", True, " ".join(given) or "the defaults")
    yield from findings.folders()
    missing = [each.what for each in libraries if each.detail == "missing"]
    if missing:
        yield Finding("kernels", None, f"not tried: {', '.join(missing)} is missing")
        return
    live = Target.parse("auto")
    has_gpu = live.kind != "interpret"
    yield Finding("GPU", True, _gpu_name(live)) if has_gpu else findings.missing_gpu()
    yield findings.ptxas(has_gpu)
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    absent = "none; Triton builds its launcher with one" + ("" if has_gpu else ", on machines with a GPU")
    do = "" if compiler else "install gcc, or set CC"
    yield Finding("C compiler", compiler is not None if has_gpu else None, compiler or absent, do)
    yield _tried("interpret a kernel", lambda: _run("interpret", "cpu"))
    yield _tried("compile for cuda:90", _compile)
    if has_gpu:
        yield _tried(f"launch on {live}", lambda: _run(str(live), "cuda"))
        yield findings.clock(reader(), _load())
    else:
        yield Finding("launch on a GPU", None, "not tried: there is none")


def _gpu_name(target: Target) -> str:
    import torch

    return f"{torch.cuda.get_device_name()} ({target}, {target.sm_count} multiprocessors)"


def _tried(what: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, attempt())
    except TileError as error:
        return Finding(what, False, error.message, "; ".join(str(note) for note in error.notes) or AGAIN)
    except Exception as error:  # whatever is broken here is what the report is for
        return Finding(what, False, f"{type(error).__name__}: {error}".splitlines()[0], AGAIN)


def _run(target: str, device: str) -> str:
    import torch

    kernel = compile_program(doubled, out_idx=[1], target=target)
    x = torch.arange(64, dtype=torch.float32, device=device)
    if not torch.equal(kernel(x), x * 2):
        raise TileError("the result is wrong")
    return "matches torch"


def _load() -> Callable[[], object]:
    """Work of some ten milliseconds for the GPU."""
    import torch

    a = torch.randn(8192, 8192, dtype=torch.float16, device="cuda")
    return lambda: (a @ a, torch.cuda.synchronize())


def _compile() -> str:
    asm: Any = compile_program(doubled, out_idx=[1], target="cuda:90").asm
    missing = "; no SASS, as nvdisasm is missing" if asm["sass"] is None else ""
    return f"{len(asm['ptx'].splitlines())} lines of PTX{missing}"


def doctor() -> int:
    """Print the report; 0 if nothing that this machine needs is broken."""
    failed = False
    for finding in examine():
        give(findings=[asdict(finding)])
        mark = {True: "ok", False: "FAILED", None: "-"}[finding.good]
        print(f"{finding.what:22}{mark:8}{finding.detail}", flush=True)
        if finding.do:
            print(f"{'':30}-> {finding.do}", flush=True)
        failed |= finding.good is False
    return int(failed)
