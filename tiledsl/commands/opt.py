"""`tiledsl opt`: run a pipeline over IR text."""

from __future__ import annotations

import sys
from pathlib import Path

from tiledsl.commands.report import give
from tiledsl.errors import TileError
from tiledsl.files import read_text
from tiledsl.interchange.parser import read_program
from tiledsl.interchange.printer import print_generic
from tiledsl.ir.pass_manager import PassManager
from tiledsl.ir.printer import print_op
from tiledsl.passes.specs import parse_pipeline
from tiledsl.runtime.target import Target


def opt(file: Path, spec: str, target: Target | None = None, verify: bool = True, generic: bool = False, timing: bool = False) -> str:  # fmt: skip # noqa: E501
    """The IR of a file ("-" is stdin) after the passes of `spec`. With `timing`, milliseconds per pass go to stderr.

    Raises TileError for text that is no IR and for unknown passes and options.
    """
    try:
        text = sys.stdin.read() if str(file) == "-" else read_text(file)
    except UnicodeDecodeError as error:
        raise TileError(f"stdin cannot be read: {error}") from None
    program = read_program(text, target, "<stdin>" if str(file) == "-" else str(file))
    manager = PassManager(parse_pipeline(spec), verify_each=verify)
    manager.run(program)
    give(milliseconds={stage.spec: stage.milliseconds for stage in manager.stages})
    if timing:
        for stage in manager.stages:
            print(f"{stage.milliseconds:8.2f} ms  {stage.spec}", file=sys.stderr)
        print(f"{sum(stage.milliseconds for stage in manager.stages):8.2f} ms  in all", file=sys.stderr)
    return print_generic(program.root) if generic else print_op(program.root)
