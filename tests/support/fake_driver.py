"""Stands for Triton's driver of a GPU, where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeDriver:
    """Says that there is one GPU of compute capability `arch` / 10, whose current stream is 7."""

    def __init__(self, arch: int = 90) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)


@contextmanager
def active(driver: FakeDriver) -> Iterator[FakeDriver]:
    """Inside, Triton has this driver."""
    from triton.runtime.driver import driver as holder

    before = holder._active
    holder.set_active(driver)
    yield driver
    holder._active = before
