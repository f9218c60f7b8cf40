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
    tuned_functions = {name: value for name, value in vars(module).items() if isinstance(value, AutotunedFunction)}
    if function not in tuned_functions and (function or len(tuned_functions) != 1):
        what = "no" if function else str(len(tuned_functions))
        shown = f" {function}" if function else "s; name one: FILE:FUNCTION"
        listed = "there are " + (", ".join(tuned_functions) or "none under @tiledsl.autotune")
        raise TileError(f"{file} has {what} autotuned function{shown}", notes=[listed])
    return tuned_functions[function] if function else next(iter(tuned_functions.values()))
