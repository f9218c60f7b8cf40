"""Pausing Python's cyclic garbage collector while a program is lowered."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Run the block without garbage collection.

    Operations, regions and values refer to each other and live until lowering ends: a collector that starts every few
    hundred allocations would walk them all and free nothing. Nested pauses, and a collector that the user has disabled,
    are left alone.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
