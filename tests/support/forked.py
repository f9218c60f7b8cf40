"""Python processes that begin with torch imported: forks of one that has done it and waits, instead of seconds each.

For tests of what a process of its own does after it has torch. Nothing else is imported there: neither tiledsl nor
triton. This file is also the program that waits.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_MESSAGE_BYTES = 1 << 18


class Process:
    """As `python arguments...` with an empty input, in a session of its own; as subprocess.Popen, what is needed of it.

    `arguments` begin with "-c", "-m" or a file's name. One runs at a time. stderr goes to stdout with `together`.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        together: bool = False,
    ) -> None:
        self.returncode: int | None = None
        self._server = _server()
        self._printed = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]  # noqa: SIM115
        request = {
            "arguments": list(map(str, arguments)),
            "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
        }
        files = [self._printed[0].fileno(), self._printed[0 if together else 1].fileno()]
        socket.send_fds(self._server, [json.dumps(request).encode()], files)
        answer = self._server.recv(_MESSAGE_BYTES)
        assert answer, "the process that waits with torch has ended; what it printed says why"
        self.pid = int(answer)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed, once it has ended; subprocess.TimeoutExpired if it has not after `timeout` seconds."""
        self._server.settimeout(timeout)
        try:
            self.returncode = int(self._server.recv(_MESSAGE_BYTES))
        except TimeoutError:
            raise subprocess.TimeoutExpired(["python"], timeout or 0.0) from None
        finally:
            self._server.settimeout(None)
        texts = []
        for file in self._printed:
            file.seek(0)
            texts.append(file.read())
            file.close()
        return texts[0], texts[1]


def run(
    arguments: Sequence[str | Path],
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, *arguments], ..., capture_output=True, text=True)."""
    process = Process(arguments, cwd, env)
    try:
        stdout, stderr = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(list(arguments), process.returncode or 0, stdout, stderr)


@functools.cache
def _server() -> socket.socket:
    """The connection to the process that waits. It ends when this one does."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(
        command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
    )
    theirs.close()
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:
            mine.close()
            process.wait(10)

    atexit.register(end)
    return mine


def _serve(connection: socket.socket) -> list[str]:
    """Fork for each request. Returns in a fork, with its arguments."""
    import gc

    import torch  # noqa: F401

    gc.collect()
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads; those of libraries
            child = os.fork()
        if child == 0:
            connection.close()
            return _begin(json.loads(message), files)
        for file in files:
            os.close(file)
        connection.send(str(child).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _begin(request: dict[str, Any], files: list[int]) -> list[str]:
    """Make of this process the one that was asked for."""
    os.setsid()
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.pycache_prefix = os.environ.get("PYTHONPYCACHEPREFIX") or None
    kind, *rest = arguments = request["arguments"]
    first = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.abspath(kind)))
    searched = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [first, *searched]  # this file's folder was the first
    sys.argv = ["-c", *rest[1:]] if kind == "-c" else rest if kind == "-m" else arguments
    return list(arguments)


def _run(program: str, *operands: str) -> None:
    if program == "-c":
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(operands[0], "<string>", "exec"), main.__dict__)
    elif program == "-m":
        runpy.run_module(operands[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")


def _exit_status(arguments: list[str]) -> int:
    try:
        _run(*arguments)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    status = _exit_status(_serve(socket.socket(fileno=int(sys.argv[1]))))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to take all of torch apart takes 0.3 s
