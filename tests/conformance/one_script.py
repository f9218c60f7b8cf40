"""Run one example script, its sizes changed: a process of its own for each, started by run.py.

With --verify each kernel that it called gets a certificate afterwards, for cuda:90 where no GPU is.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tiledsl.commands.run import run_script
from tiledsl.errors import TileError
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.launch import Launcher
from tiledsl.runtime.target import Target


def called_kernels() -> dict[str, Kernel]:
    """The kernels that are called from now on, by their source."""
    called: dict[str, Kernel] = {}
    find = Launcher.find

    def found(self: Launcher, *arguments: Any) -> Any:  # every first call with a signature comes here
        called.setdefault(self.kernel.source, self.kernel)
        return find(self, *arguments)

    Launcher.find = found  # type: ignore[method-assign]
    return called


def verified(kernels: Iterable[Kernel]) -> bool:
    """Print the certificates of kernels in short; whether nothing is wrong with them."""
    right = True
    for kernel in kernels:
        if kernel.target.kind == "interpret":
            kernel = Kernel(kernel.program_root, Target("cuda", 90), kernel.pass_configs)
        made = kernel.verify()
        right &= made.ok
        print(f"certificate of {kernel.name}, {made.seconds:.2f} s: {made.summary}")
        for each in (*made.of("unknown"), *made.failed):
            print(f"  certificate: {each.status}: {each.place}: {each.subject}: {each.detail}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="append", nargs=2, default=[], metavar=("PATTERN", "TEXT"))
    parser.add_argument("--entry", default=None)
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    text = options.script.read_text(encoding="utf-8")
    for pattern, replacement in options.size:
        text, count = re.subn(pattern, replacement, text)
        if count == 0 and not pattern.startswith(r"\bS=") and not pattern.startswith(r"\bH="):
            print(f"{options.script}: {pattern!r} is nowhere in the script", file=sys.stderr)
            return 2
    script = options.script.resolve()
    os.chdir(script.parent)
    kernels = called_kernels() if options.verify else {}
    try:
        status = run_script(script, options.arguments, text=text, entry=options.entry)
        return status or int(not verified(kernels.values()))
    except TileError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
