"""The benchmark process: `python -m tiledsl.autotuner.measuring.bench_worker CHANNEL LIFELINE cpu|cuda`.

It is started by bench_process and serves one device, the only GPU that it sees, if any. It loads inputs and references
from files, then runs what comes through the channel. It knows nothing of the user's script. When the tuner's process
ends, in whatever way, the kernel closes the lifeline and sends this process's group SIGIO, which ends it even inside a
call that never returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

_IDLE_SECONDS = 120.0  # without a run to work for


def _serve(channel: Any, device: str) -> None:
    from tiledsl.runtime import launch_triton

    ahead = []
    if device != "cpu":  # beside the import of torch
        ahead = [threading.Thread(target=_open_device, daemon=True), launch_triton.make_loader()]
        ahead[0].start()
    seconds = {"python": _age()}
    import torch

    seconds["torch"] = _age()

    from tiledsl.autotuner.measuring import bench, jobs, wire

    if device != "cpu":
        torch.zeros(1, device=device)
    else:
        torch.set_num_threads(1)
    seconds["device"] = _age()
    channel.send({"ready": os.getpid()})
    current: bench.Bench | None = None
    served: Any = None
    while True:
        try:
            message = channel.receive(None if current is not None or served is not None else _IDLE_SECONDS)
        except wire.Silence:
            return
        if message is None:
            return
        if message.get("library_key") is not None:
            launch_triton.use_library_key(launch_triton.LibraryKey(**message["library_key"]))
        match message["do"]:
            case "begin":
                current = None
                bench.set_folders(message["triton_cache_dir"])
                sys.path[:] = dict.fromkeys([*message["path"], *sys.path])
                try:
                    current = bench.Bench.of_message(message, device)
                except Exception as error:  # the device has no room, above all
                    channel.send({"failure": f"{type(error).__name__}: {error}"})
                    continue
                if "inputs" not in seconds:
                    seconds["inputs"] = _age()
                    if device != "cpu":
                        current.warm_up()
                    seconds["warm"] = _age()
                    for each in ahead:
                        each.join()
                    seconds["loader"] = _age()
                    gc.freeze()  # it stays; and to look through it in the middle of a measurement takes long
                    gc.enable()
                channel.send({"seconds": seconds})
            case "run":
                assert current is not None
                channel.send(current.run(jobs.Job(**message["job"]), message["best"]))
            case "final":
                assert current is not None
                wanted = [jobs.Job(**each) for each in message["jobs"]]
                channel.send(current.final(wanted, lambda job: channel.send({"begins": job.index})))
            case "begin function" | "run function" | "final function":
                if message["do"] == "begin function":
                    bench.set_folders(message["triton_cache_dir"])
                    sys.path[:] = dict.fromkeys([*message["path"], *sys.path])
                    gc.enable()
                from tiledsl.autotuner import function_server

                served = function_server.serve(message, channel, served)
            case "end":
                current = served = None
                if device == "cpu":
                    torch.set_num_threads(1)
                if device != "cpu":
                    torch.cuda.empty_cache()


def _age() -> float:
    """Seconds since this process started."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return round(time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"), 2)
    return 0.0


def _open_device() -> None:
    """Make the context of the only GPU there is, which torch finds then."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does
    with contextlib.suppress(OSError, AttributeError):  # no CUDA; torch sees to it
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) == 0:
            cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)


def main() -> None:
    """Serve until the channel is closed."""
    channel_number, lifeline, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    faulthandler.enable()
    gc.disable()  # while so much is imported, and all of it stays
    from tiledsl.autotuner.measuring.wire import Channel

    _serve(Channel(socket.socket(fileno=channel_number)), device)
    os._exit(0)  # CUDA's and Triton's own clean-up can hang after a failure


if __name__ == "__main__":
    main()
