"""A benchmark process as the tuner sees it: started, asked, killed; kept for the next run."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from tiledsl.autotuner.measuring.wire import Channel
from tiledsl.child_processes import end_of, kill_group, last_words, python_environment, python_module

_ENTRY_POINT = "tiledsl.autotuner.measuring.bench_worker"
START_SECONDS = 180.0  # to import torch on a busy machine


class WorkerEnded(Exception):
    """The benchmark process is gone; the text says how, with the end of what it printed."""


def visible_devices(device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a benchmark process's environment says of GPUs: it sees its own alone, as number 0.

    device: "cpu", or the GPU's number in this process, which counts among those that CUDA_VISIBLE_DEVICES lists.
    """
    if device == "cpu":
        return {}
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": device if listed is None else listed.split(",")[int(device)].strip()}


class Worker:
    """A benchmark process: its own session, so that all its processes can be killed together."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.visible = visible_devices(device, os.environ)
        self.owner = os.getpid()  # a fork of this process must leave it alone
        self._ready = False
        self._log = tempfile.TemporaryFile(prefix="tiledsl-bench-")  # noqa: SIM115
        mine, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        kind = "cpu" if device == "cpu" else "cuda"
        command = python_module(_ENTRY_POINT, str(theirs.fileno()), str(lifeline), kind)
        own = {**self.visible, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # the latter: other devices' packages
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, cwd="/", start_new_session=True,
            pass_fds=(theirs.fileno(), lifeline), env=python_environment(**own),
        )  # fmt: skip
        self._channel = Channel(mine)
        theirs.close()
        os.close(lifeline)

    def ask(self, message: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The answer. Raises Silence after `timeout` seconds (not counting its start), WorkerEnded if it ends."""
        if not self._ready:
            self.listen(START_SECONDS)
            self._ready = True
        self.tell(message)
        return self.listen(timeout)

    def tell(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except OSError:
            raise WorkerEnded(self._obituary()) from None

    def listen(self, timeout: float) -> dict[str, Any]:
        """The next answer, of which there may be several to a message. Raises as `ask` does."""
        answer = self._channel.receive(timeout)
        if answer is None:
            raise WorkerEnded(self._obituary())
        return answer

    def _obituary(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.poll()
        end = "does not answer" if code is None else f"ended with {end_of(code)}"
        return "\n".join([f"the benchmark process {end}", *last_words(self._log)])

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """End its whole process group now."""
        kill_group(self.process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the driver may take long to end a kernel
            self.process.wait(30)

    def close(self) -> None:
        """Kill it and release what belongs to it here."""
        self.kill()
        self._channel.close()
        self._log.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


_idle: list[Worker] = []  # of earlier runs; they end after two minutes, or with this process
_idle_lock = threading.Lock()


def take(device: str) -> Worker:
    """A process for a device: one that an earlier run has left, or a new one. OSError if it cannot be started."""
    wanted = (device, visible_devices(device, os.environ), os.getpid())
    with _idle_lock:
        for worker in [each for each in _idle if (each.device, each.visible, each.owner) == wanted]:
            _idle.remove(worker)
            if worker.is_alive:
                return worker
            worker.close()
    return Worker(device)


@atexit.register
def close_idle() -> None:
    """End the processes that wait for a next run."""
    with _idle_lock:
        while _idle:
            worker = _idle.pop()
            if worker.owner == os.getpid():
                worker.close()


def keep(worker: Worker) -> None:
    """Leave a process to the next run. It forgets this one's tensors."""
    try:
        worker.tell({"do": "end"})
    except WorkerEnded:
        worker.close()
        return
    with _idle_lock:
        _idle.append(worker)
