"""Waiting until a GPU, which slows down while it idles, runs at its highest clock; NVIDIA's management library says."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

_SM = 1  # nvmlClockType_t
_NEAR = 0.97  # of the highest clock; some are never reached under load


def reader(library: Any = None) -> Callable[[], tuple[int, int]] | None:
    """What gives the current GPU's clock and its highest one, in MHz; None where that is not known."""
    import torch

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1") if library is None else library
        uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
        handle = ctypes.c_void_p()
        failed = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
    except (OSError, AttributeError, RuntimeError, AssertionError):
        return None
    if failed:
        return None

    def read() -> tuple[int, int]:
        now, most = ctypes.c_uint(), ctypes.c_uint()
        nvml.nvmlDeviceGetClockInfo(handle, _SM, ctypes.byref(now))
        nvml.nvmlDeviceGetMaxClockInfo(handle, _SM, ctypes.byref(most))
        return now.value, most.value

    return read


def wait_for_clock(seconds: float, read: Callable[[], tuple[int, int]] | None, work: Callable[[], Any]) -> bool:
    """Do `work` again and again until the clock is near its highest, for so many seconds at most; whether it is."""
    end = time.monotonic() + seconds
    while read is not None:
        now, most = read()
        if now >= _NEAR * most:
            return True
        if time.monotonic() >= end:
            return False
        work()
    return False
