"""The benchmark process: `python -m tiledsl.autotuner.bench_worker CHANNEL LIFELINE DEVICE`.

It is started by bench_pool and serves one device: it loads inputs and references from files, then runs what comes
through the channel. It knows nothing of the user's script. When the tuner's process ends, in whatever way, the kernel
closes the lifeline and sends this process's group SIGIO, which ends it even inside a call that never returns.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import socket
import sys
from pathlib import Path
from typing import Any

_IDLE_SECONDS = 120.0  # without a run to work for


def _serve(channel: Any, device: str) -> None:
    import torch

    from tiledsl.autotuner import bench, jobs, wire
    from tiledsl.autotuner.reference import Expected

    place = "cpu" if device == "cpu" else "cuda"
    if device != "cpu":
        torch.cuda.set_device(int(device))
        torch.zeros(1, device="cuda")
    else:
        torch.set_num_threads(1)
    channel.send({"ready": os.getpid()})
    current: bench.Bench | None = None
    while True:
        try:
            message = channel.receive(None if current is not None else _IDLE_SECONDS)
        except wire.Silence:
            return
        if message is None:
            return
        match message["do"]:
            case "begin":
                current = None
                bench.set_folders(message["triton_cache_dir"])
                try:
                    current = bench.Bench(
                        device,
                        jobs.Policy.from_message(message["policy"]),
                        wire.load_values(message["inputs"], place),
                        [Expected.load(each, place) for each in message["references"]],
                        Path(message["folder"]),
                    )
                except Exception as error:  # the device has no room, above all
                    channel.send({"failure": f"{type(error).__name__}: {error}"})
                    continue
                channel.send({})
            case "run":
                assert current is not None
                channel.send(current.run(jobs.Job(**message["job"]), message["best"]))
            case "final":
                assert current is not None
                wanted = [jobs.Job(**each) for each in message["jobs"]]
                channel.send(current.final(wanted, lambda job: channel.send({"begins": job.index})))
            case "end":
                current = None
                if device != "cpu":
                    torch.cuda.empty_cache()


def main() -> None:
    """Serve until the channel is closed."""
    channel_number, lifeline, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    faulthandler.enable()
    from tiledsl.autotuner.wire import Channel

    _serve(Channel(socket.socket(fileno=channel_number)), device)
    os._exit(0)  # CUDA's and Triton's own clean-up can hang after a failure


if __name__ == "__main__":
    main()
