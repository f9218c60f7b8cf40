"""Statements in short forms, `%x = %a + 3`, as the body of a kernel, for tests of parts of merge-roles."""

from __future__ import annotations

import re

from tests.passes.ir_cases import body_lines, kernel_of, program
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify

KINDS = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "floormod"}
COMPARED = {"<": "lt", ">": "gt", "==": "eq", "!=": "ne", ">=": "ge"}


def spelled(text: str) -> str:
    """Statements `%x = %a + 3`, `%b = %a < 3`, one a line or separated by `;`, as IR."""
    made = []
    for line in map(str.strip, re.split(r"[;\n]", text)):
        found = re.fullmatch(r"(%\w+) = (%\w+) ([-+*/%<>=!]+) (%?\w+)", line)
        if found:
            name, lhs, kind, rhs = found.groups()
            rhs = rhs if rhs.startswith("%") else f"%c{rhs}"
            if kind in KINDS:
                line = f"{name} = arith.{KINDS[kind]} {lhs}, {rhs} : int32"
            else:
                line = f'{name} = arith.cmp {lhs}, {rhs} {{predicate = "{COMPARED[kind]}"}} : bool'
        made.append(line)
    return "\n".join(made)


def whole(body: str, parameters: str) -> Program:
    made = program(spelled(body), parameters=parameters, grid=(1,))
    end = kernel_of(made).regions[0].last
    assert end is not None
    end.erase()
    return made


def lines_of(made: Program) -> list[str]:
    """The lines of the kernel but for constants, which are named by their value."""
    verify(made.root)
    body_lines(made)  # names constants
    found = [line.strip() for line in print_op(kernel_of(made)).splitlines()[1:-1]]
    return [re.sub(r"%(c\w+?)_\d+\b", r"%\1", line) for line in found if "= arith.constant" not in line]


def allocated(lines: list[str]) -> tuple[list[str], list[str]]:
    """The tiles with their sizes, and the other lines."""
    tiles = [line.replace(" = tile.alloc", "") for line in lines if "tile.alloc" in line]
    return tiles, [line for line in lines if "tile.alloc" not in line]


def around(*lines: str, threads: int = 32) -> list[str]:
    return [f"tile.parallel {{extents = ({threads},), lockstep = true}} (%t: int32) {{", *lines, "}"]
