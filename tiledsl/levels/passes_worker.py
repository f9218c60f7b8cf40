"""The process that mlir_passes starts: it compiles one kernel, and MLIR prints to stderr meanwhile."""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
import types
from typing import Any

from tiledsl.errors import TileError
from tiledsl.runtime.compile import compile_kernel
from tiledsl.runtime.module import load_module
from tiledsl.runtime.target import Target


def main() -> None:
    """Compile what stdin describes; stdout gets the reason where that fails."""
    asked: dict[str, Any] = json.load(sys.stdin)
    sys.modules["torch"] = stand_in = types.ModuleType("torch")  # only launching needs it
    stand_in.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    fields = asked["kernel"]
    module = load_module(asked["name"], asked["source"], interpret=False, cache_dir=asked["folder"])
    try:
        compile_kernel(
            getattr(module, fields["name"]), fields["signature"], fields["constexprs"], Target.parse(asked["target"]),
            fields["num_warps"], fields["num_stages"], attrs=fields["divisible_by_16"], **fields["options"],
        )  # fmt: skip
    except TileError as error:
        print(error.message, flush=True)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
