"""`tiledsl doctor`: what is installed, what works on this machine, and what does not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import tiledsl.language as T
from tiledsl.commands.report import give
from tiledsl.errors import TileError
from tiledsl.files import make_private
from tiledsl.kernels.jit import compile as compile_program
from tiledsl.runtime.lowering import check_print_after
from tiledsl.runtime.target import Target
from tiledsl.settings import PREFIX, current, default, given_variables, override, unknown_variables, wrong_variables
from tiledsl.version import __version__


@dataclass(frozen=True)
class Finding:
    """One line of the report. `good` is None for a fact that nothing depends on here."""

    what: str
    good: bool | None
    detail: str


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
    yield Finding("python", (3, 10) <= version < (3, 14), f"{platform.python_version()} ({sys.executable})")
    yield Finding("tiledsl", True, __version__)
    for package, least in (("torch", (2, 6)), ("triton", (3, 6))):
        yield _version(package, least)
    for message in wrong.values():
        yield Finding("setting", False, message)
    for message in unknown_variables().values():
        yield Finding("setting", False, message)
    if not wrong:
        given = (f"{PREFIX}{name.upper()}={value}" for name, value in given_variables().items())
        yield Finding("settings", True, " ".join(given) or "the defaults")
    live = Target.parse("auto")
    has_gpu = live.kind != "interpret"
    yield Finding("GPU", True if has_gpu else None, _gpu_name(live) if has_gpu else "none: kernels are interpreted")
    yield _cache()
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    missing = "none; Triton builds its launcher with one" + ("" if has_gpu else ", on machines with a GPU")
    yield Finding("C compiler", compiler is not None if has_gpu else None, compiler or missing)
    yield _tried("interpret a kernel", lambda: _run("interpret", "cpu"))
    yield _tried("compile for cuda:90", _compile)
    if has_gpu:
        yield _tried(f"launch on {live}", lambda: _run(str(live), "cuda"))
    else:
        yield Finding("launch on a GPU", None, "not tried: there is none")


def _version(package: str, least: tuple[int, int]) -> Finding:
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return Finding(package, False, f"missing: pip install {package}")
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit())
    old = numbers < least
    return Finding(package, not old, found + (f", older than {least[0]}.{least[1]}" if old else ""))


def _gpu_name(target: Target) -> str:
    import torch

    return f"{torch.cuda.get_device_name()} ({target}, {target.sm_count} multiprocessors)"


def _cache() -> Finding:
    folder = current().cache_dir
    try:
        make_private(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("cache folder", False, f"{folder} cannot be written: {error.strerror}; set TILEDSL_CACHE_DIR")
    return Finding("cache folder", True, str(folder))


def _tried(what: str, attempt: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, attempt())
    except TileError as error:
        return Finding(what, False, error.message)
    except Exception as error:  # whatever is broken here is what the report is for
        return Finding(what, False, f"{type(error).__name__}: {error}".splitlines()[0])


def _run(target: str, device: str) -> str:
    import torch

    kernel = compile_program(doubled, out_idx=[1], target=target)
    x = torch.arange(64, dtype=torch.float32, device=device)
    if not torch.equal(kernel(x), x * 2):
        raise TileError("the result is wrong")
    return "matches torch"


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
        failed |= finding.good is False
    return int(failed)
