"""Versions of what a kernel's code depends on: the compiler, Triton, ptxas and the driver."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
from collections.abc import Sequence
from pathlib import Path

_COMPILER = ("language", "frontend", "ir", "dialects", "analysis", "passes", "codegen", "legality.py")


@functools.cache
def triton_version() -> str:
    """The version of the Triton that is installed; nothing is imported."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # a build that was put on the path by hand
        import triton

        return str(triton.__version__)


def ptxas() -> str:
    """ "" for the ptxas that comes with Triton, whose version is Triton's; else which file stands in for it."""
    given = [os.environ.get(name, "") for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")]
    shown = []
    for path in filter(None, given):
        try:
            found = os.stat(path)
        except OSError:
            continue
        shown.append(f"{path}, {found.st_size} bytes, {found.st_mtime_ns}")
    return "; ".join(shown)


@functools.cache
def driver_version() -> str:
    """The GPU driver's version as the kernel module tells it; "" where it does not."""
    for path, pattern in (
        ("/proc/driver/nvidia/version", r"\s(\d+\.[\d.]+)\s"),
        ("/sys/module/amdgpu/version", r"(\S+)"),
    ):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = re.search(pattern, text)
        if found:
            return found[1]
    return ""


@functools.cache
def compiler_hash() -> str:
    """16 hexadecimal digits that stand for the compiler, from a program to its Triton source.

    In a checkout this is a hash of the compiler's sources, so that whoever works on a pass tunes again; of a wheel it
    is "", since there the version is enough.
    """
    package = Path(__file__).resolve().parent.parent.parent
    checkout = package if (package / "pyproject.toml").is_file() else package.parent
    if not (checkout / "pyproject.toml").is_file():
        return ""
    return hash_of_sources(checkout / "tiledsl", _COMPILER)


def hash_of_sources(root: Path, names: Sequence[str]) -> str:
    """16 hexadecimal digits for the names and contents of these files, and of all sources in these folders, subfolders
    included."""
    whole = hashlib.sha256()
    for name in names:
        inside = (os.path.join(at, file) for at, _, files in os.walk(os.path.join(root, name)) for file in files)
        for path in sorted(inside) or [os.path.join(root, name)]:
            if path.endswith((".py", ".lark")):
                whole.update(f"\0{os.path.relpath(path, root)}\0".encode())
                with open(path, "rb", buffering=0) as source:
                    whole.update(source.read())
    return whole.hexdigest()[:16]
