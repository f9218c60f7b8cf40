"""Autotuned functions named on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.commands.lower import import_file, split_function
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction


def find_autotuned(program: str) -> AutotunedFunction:
    """The autotuned function that FILE or FILE:FUNCTION names. TileError if the file has none or several such."""
    from tiledsl.autotuner.decorator import AutotunedFunction

    file, function = split_function(program)
    if not file.is_file():
        raise TileError(f"there is no file {file}")
    module = import_file(file)
    found = {name: value for name, value in vars(module).items() if isinstance(value, AutotunedFunction)}
    if function:
        found = {name: value for name, value in found.items() if name == function}
    if len(found) != 1:
        raise TileError(
            f"{file} has {len(found)} autotuned functions{f' {function}' if function else ''}; name one: FILE:FUNCTION"
        )
    (wanted,) = found.values()
    return wanted
