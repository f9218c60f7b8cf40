"""Autotuned functions named on the command line."""

from __future__ import annotations

from tiledsl.autotuner.decorator import AutotunedFunction
from tiledsl.commands.lower import import_file, split_function
from tiledsl.errors import TileError


def find_autotuned(program: str) -> AutotunedFunction:
    """The autotuned function that FILE or FILE:FUNCTION names. TileError if the file has none or several such."""
    file, function = split_function(program)
    if not file.is_file():
        raise TileError(f"there is no file {file}")
    module = import_file(file)
    found = {name: value for name, value in vars(module).items() if isinstance(value, AutotunedFunction)}
    if function not in found and (function or len(found) != 1):
        what = "no" if function else str(len(found))
        shown = f" {function}" if function else "s; name one: FILE:FUNCTION"
        listed = "there are " + (", ".join(found) or "none under @tiledsl.autotune")
        raise TileError(f"{file} has {what} autotuned function{shown}", notes=[listed])
    return found[function] if function else next(iter(found.values()))
