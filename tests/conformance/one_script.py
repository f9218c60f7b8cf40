"""Run one example script, its sizes changed: a process of its own for each, started by run.py."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from tiledsl.commands.run import run_script
from tiledsl.errors import TileError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", action="append", nargs=2, default=[], metavar=("PATTERN", "TEXT"))
    parser.add_argument("--entry", default=None)
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
    try:
        return run_script(script, options.arguments, text=text, entry=options.entry)
    except TileError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
