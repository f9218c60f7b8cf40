"""What a pass promises: its methods, and that it changes the program in place and nothing else."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from tiledsl.errors import TileError

_RETURNS = {"run": "None", "allowances": "frozenset[str]"}


def check_methods(pass_type: type[Any], unset: object) -> None:
    """Raise TileError where `run` or `allowances` of a pass is no method, or `run` is the `unset` one of all passes."""
    for name, returns in _RETURNS.items():
        found = getattr(pass_type, name)
        what = type(found).__name__ if not isinstance(found, FunctionType) else "missing" if found is unset else ""
        if what and (pass_type.name or what != "missing"):  # what has no name is a base of passes
            raise TileError(
                f"{pass_type.__name__}: {name} is {what}, where a method is asked: "
                f"def {name}(self, program: Program) -> {returns}"
            )


def run_in_place(current: Any, program: Any, is_ours: bool) -> None:
    """Run a pass. Raises TypeError if it returns something or sets the program's root or target, RuntimeError if it
    ends the process; a TileError of a user's pass gets a note that names the pass."""
    root, target = program.root, program.target
    try:
        returned = current.run(program)
    except SystemExit as stop:
        raise RuntimeError(f"run ended the process, sys.exit({stop.code})").with_traceback(stop.__traceback__) from stop
    except TileError as error:
        if not is_ours:
            error.notes.append(f"the pass {current.spec} says so, which is from {type(current).__module__}")
        raise
    if returned is not None:
        what = f"run returned a {type(returned).__name__}, where None is asked"
        raise TypeError(f"{what}: it changes the operations in program.root in place")
    if program.root is not root:
        raise TypeError("run has set program.root; it changes the operations in program.root in place")
    if program.target is not target:
        raise TypeError(f"run has set program.target to {program.target}; a pass asks for the target, and leaves it")


def place_of(pass_type: type[Any]) -> str:
    """The module of a pass, and the file and line of its `run`."""
    code = getattr(pass_type.run, "__code__", None)
    return pass_type.__module__ + (f", {code.co_filename}:{code.co_firstlineno}" if code else "")
