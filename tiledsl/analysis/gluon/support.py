"""Which versions of Triton have the Gluon that is emitted, and what its copies ask of boxes. Imports no Triton."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from importlib import metadata

from tiledsl.ir.types import ELEMENTS

OLDEST, NEWEST = (3, 6), (3, 9)  # what this has been compiled with


@functools.cache
def version() -> tuple[int, int] | None:
    """Major and minor version of the installed Triton; None without one."""
    try:
        found = re.match(r"(\d+)\.(\d+)", metadata.version("triton"))
    except metadata.PackageNotFoundError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def missing() -> str:
    """Why Gluon cannot be written for the installed Triton; empty where it can."""
    triton = version()
    if triton is None:
        return "Triton is not installed"
    if triton < OLDEST:
        return f"Triton {triton[0]}.{triton[1]} has no Gluon for this, {OLDEST[0]}.{OLDEST[1]} has"
    if triton > NEWEST:
        return f"Gluon of Triton {triton[0]}.{triton[1]} is not known here, that of {NEWEST[0]}.{NEWEST[1]} is"
    return ""


def swizzle(box: Sequence[int], dtype: str) -> int:
    """The widest swizzle that the rows of a box allow, in bytes; 16 is none, which a single row has."""
    if all(extent == 1 for extent in box[:-1]):
        return 16
    return next(each for each in (128, 64, 32) if box[-1] * ELEMENTS[dtype].bits // 8 % each == 0)
