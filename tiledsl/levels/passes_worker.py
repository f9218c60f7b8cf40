"""The process that mlir_passes starts: it compiles one kernel, and MLIR prints to stderr meanwhile."""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

from tiledsl.errors import TileError
from tiledsl.runtime.compile import compile_emitted, without_torch
from tiledsl.runtime.module import load_module
from tiledsl.runtime.target import Target


def main() -> None:
    """Compile what stdin describes; stdout gets the reason where that fails."""
    asked: dict[str, Any] = json.load(sys.stdin)
    without_torch()
    module = load_module(asked["name"], asked["source"], interpret=False, cache_dir=asked["folder"])
    try:
        compile_emitted(module, types.SimpleNamespace(**asked["kernel"]), Target.parse(asked["target"]))
    except TileError as error:
        print(error.message, flush=True)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
