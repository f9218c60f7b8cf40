"""Emitted modules that go wrong: code behind a configuration's source, chosen by its `variant`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiledsl.kernels.kernel import Kernel

# Run by the benchmark process, in place of `scale_into`.
AT_RUN_TIME = {
    "segfault": "import ctypes\nctypes.string_at(1)",
    "hang": "import subprocess, ctypes\nsubprocess.Popen(['sleep', '4713'])\nctypes.PyDLL(None).sleep(4713)",
    "exit": "import os\nos._exit(3)",
    "sticky": "raise RuntimeError('CUDA error: an illegal memory access was encountered')",
    "raise": "raise ValueError('no launch today')",
    "resources": "raise RuntimeError('out of resource: shared memory, Required: 300000, Hardware limit: 232448')",
    "nan": "B.copy_(A * 2)\nB[3] = float('nan')",
    "wrong": "B.copy_(A * 2.5)",
    "nothing": "print('so much to say, nothing to write')",
    "mutates": "B.copy_(A * 2)\nA.add_(1)",
    "slow": "import time\ntime.sleep(0.5)\nB.copy_(A * 2)",
}
# Run by whoever imports the module: the compile process first.
AT_IMPORT = {
    "import hangs": "import subprocess\nsubprocess.run(['sleep', '4714'])",
    "import aborts": "import os\nos.abort()",
    "import raises": "raise LookupError('not here')",
    "same binary": "# another comment",
}


def break_source(source: str, variant: str) -> str:
    """The source of a configuration with a variant's fault."""
    if variant in AT_RUN_TIME:
        body = AT_RUN_TIME[variant].replace("\n", "\n    ")
        return f"{source}\n\ndef scale_into(A, B):\n    {body}\n"
    if variant == "triton refuses":
        return source.replace("tl.load(", "tl.load(1.5, ")
    return f"{source}\n{AT_IMPORT[variant]}\n" if variant in AT_IMPORT else source


def install(patch: Callable[[Any, str, Any], None]) -> None:
    """Make kernels with a faulty variant have a faulty source. `patch` is setattr, or monkeypatch's."""
    original = Kernel.source.fget
    assert original is not None

    def source(self: Kernel) -> str:
        return break_source(original(self), (self.config or {}).get("variant", ""))

    patch(Kernel, "source", property(source))


@pytest.fixture
def broken_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch.setattr)


def commands_with(text: str) -> list[str]:
    """Command lines of running processes that contain a text."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().replace("\0", " ")
        except OSError:
            continue
        if text in command and path.parent.name != str(os.getpid()):
            commands.append(command)
    return commands
