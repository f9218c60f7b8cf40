"""Picking operations by class."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import TypeVar

from tiledsl.ir.core import Operation

Op = TypeVar("Op", bound=Operation)


def of_kinds(ops: Iterable[Operation], *kinds: type[Op]) -> list[Op]:
    """Those of exactly these classes (not of derived ones), in order."""
    every = list(ops)
    # No bytecode runs for each operation: most of those that a pass walks over are none that it is for.
    return list(compress(every, map(frozenset(kinds).__contains__, map(type, every))))  # type: ignore[arg-type]
