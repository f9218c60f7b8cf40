"""Python's cyclic garbage collector, held off while a program is lowered."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No collection inside.

    Operations, regions and values refer to each other and live until lowering ends: a collector that starts every few
    hundred allocations walks them all and frees nothing.

    Within a pause, or where the user has switched collection off, nothing changes.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
