"""Selecting operations by class."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tiledsl.ir.core import Operation

Op = TypeVar("Op", bound=Operation)


def of_kinds(ops: Iterable[Operation | None], *kinds: type[Op]) -> list[Op]:
    """The operations of exactly these classes (not of derived ones), in order; what is none is left out."""
    wanted = frozenset(kinds)
    return [op for op in ops if type(op) in wanted]  # type: ignore[misc]
