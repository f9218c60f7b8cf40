"""A kernel from the text of its IR: edited by hand, by another program, or by passes of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiledsl.dialects.tile import FuncOp
from tiledsl.errors import TileError, ends_tracebacks
from tiledsl.interchange.parser import is_generic, read_program
from tiledsl.kernels.jit import resolve_target
from tiledsl.kernels.kernel import Kernel
from tiledsl.kernels.pass_choice import chosen_passes


@ends_tracebacks
def resume(
    ir: str | os.PathLike[str],
    after: str,
    target: Any = None,
    pass_configs: Mapping[str, Any] | None = None,
    passes: Mapping[str, Any] | None = None,
) -> Kernel:
    """The kernel that a program becomes from a stage on.

    ir: the text of the IR, as `Kernel.ir`, `tiledsl lower --after` and `tiledsl opt` give it, or a file with it.
    after: the pass that it comes after (the last run of it), where the pipeline goes on; "elaborate" is its beginning.
    target, pass_configs, passes: see `compile`; options of passes that have run already change nothing. Raises
    TileError for text that is no valid IR, and for a pass that the pipeline does not have.
    """
    name, text = _text(ir)
    options = chosen_passes(pass_configs, passes)
    return Kernel(lambda: _parsed(text, name), resolve_target(target), options, resumed_after=after)


def _parsed(text: str, name: str) -> FuncOp:
    root = read_program(text, None, name).root
    if not isinstance(root, FuncOp):
        raise TileError(f"the IR is {root.name}, not {FuncOp.name}", root.loc)
    return root


def _text(ir: str | os.PathLike[str]) -> tuple[str, str]:
    """A name for errors, and the text."""
    if isinstance(ir, str) and ("\n" in ir or ir.lstrip().startswith("tile.func") or is_generic(ir)):
        return "<ir>", ir
    if not isinstance(ir, (str, os.PathLike)):
        raise TileError(f"the IR is {type(ir).__name__}; it is a text, or the path of a file with it")
    try:
        return os.fspath(ir), Path(ir).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TileError(
            f"{os.fspath(ir) or 'an empty path'} cannot be read: {error}",
            notes=["the IR is a text, or the path of a file"],
        ) from None
