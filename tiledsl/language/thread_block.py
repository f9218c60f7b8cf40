"""The threads of the kernel that is being built, and what becomes of a kernel's body that asks which one it runs in."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

from tiledsl.dialects import thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32

_NAMES = ("tx", "ty", "tz")


class Frame:
    """What stands behind `with` in a tile program; Python itself cannot enter it."""

    opens: ClassVar[str]  # the beginning of the message about that

    def __enter__(self) -> Any:
        raise TileError(f"{self.opens} only as a `with` statement of a tile program")

    def __exit__(self, *_: object) -> None:
        pass


class ThreadBlock:
    """The threads of a kernel: `extents` has their number along x, y and z, as far as T.Kernel gives it.

    Once the index of a thread is asked for, the body of the kernel is what each thread does, in step with all others.
    """

    def __init__(self, extents: Sequence[int]) -> None:
        self.extents = tuple(extents)
        self.body: Region | None = None
        self.grid_barriers: list[Operation] = []  # of T.sync_grid, in their order
        self.reducer: object = None  # what the T.attr around says of reductions over threads

    @property
    def count(self) -> int:
        """The number of threads."""
        return prod(self.extents)

    def index(self, axis: int) -> Value:
        """The index of the thread along an axis: 0 is x."""
        if self.body is None:
            names = _NAMES[: len(self.extents)] if len(self.extents) <= len(_NAMES) else ()
            self.body = Region([INT32] * len(self.extents), names[::-1])
        return self.body.args[len(self.extents) - 1 - axis]

    def enclose(self, kernel: tile.KernelOp) -> None:
        """Put the finished body of the kernel into a tile.parallel over the threads, if it asked for one's index."""
        if self.body is None:
            for barrier in of_kinds(kernel.body.walk(), thread.BarrierOp):
                if barrier not in self.grid_barriers:
                    barrier.erase()
            return
        for op in list(kernel.body):
            if not isinstance(op, tile.AllocOp):
                self.body.insert(op.detach())
        made = tile.ParallelOp(extents=self.extents[::-1], lockstep=True, regions=[self.body], loc=kernel.loc)
        Builder(kernel.body, loc=kernel.loc).insert(made)
