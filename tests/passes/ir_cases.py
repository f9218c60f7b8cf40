"""Short programs as IR text for tests of one pass: the body of a kernel in, the body of the kernel out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tiledsl.dialects.tile import KernelOp
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import Pass, Program, parse_program
from tiledsl.ir.text import print_op
from tiledsl.ir.verifier import verify

PARAMETERS = (
    "%A: buffer<64*96*float32, global>, %B: buffer<64*96*float32, global>, %N: buffer<1000*int32, global>, "
    "%D: buffer<m*float32, global>, %s: int32, %f: float32, %b: bool, %l: int64"
)


def program(body: str, *, grid: Sequence[int] = (8,), target: Any = None) -> Program:
    """A program of one kernel; PARAMETERS and the symbol %m are its names, %bx, %by the block indices."""
    names = ["%bx", "%by", "%bz"][: len(grid)]
    constants = "\n".join(f"%grid{i} = arith.constant {{value = {size}}} : int32" for i, size in enumerate(grid))
    grid_text = ", ".join(f"%grid{i}" for i in range(len(grid)))
    text = f"""
    tile.func {{sym_name = "test", parameters = ("A", "B", "N", "D", "s", "f", "b", "l"), symbols = ("m",),
                symbol_sources = ("D.0",)}} ({PARAMETERS}, %m: int32) {{
      {constants}
      tile.kernel [{grid_text}] ({", ".join(f"{name}: int32" for name in names)}) {{
        {_with_constants(body)}
        scf.yield
      }}
      scf.yield
    }}"""
    return parse_program(text, target)


def _with_constants(body: str) -> str:
    """%c5 and %c-5 are int32 constants wherever they appear."""
    used = sorted(set(re.findall(r"%c(-?\d+)\b", body)), key=int)
    head = "".join(f"%c{n.replace('-', 'm')} = arith.constant {{value = {n}}} : int32\n" for n in used)
    return head + re.sub(r"%c-(\d+)", r"%cm\1", body)


def kernel_of(program: Program) -> Operation:
    return next(op for op in program.root.walk() if isinstance(op, KernelOp))


def after(passes: Pass | Sequence[Pass], body: str, **options: Any) -> list[str]:
    """The lines of the kernel's body after the passes, without constants, indentation and the last yield.

    Constants are named by their value in the lines: %c5, %c0p5, %ctrue.
    """
    made = program(body, **options)
    for each in [passes] if isinstance(passes, Pass) else passes:
        each.run(made)
        verify(made.root)
    return body_lines(made)


def body_lines(made: Program) -> list[str]:
    kernel = kernel_of(made)
    for op in made.root.walk():
        if op.name == "arith.constant":
            name = str(op.attributes["value"]).lower().replace("-", "m").replace(".", "p")
            op.result.name = "c" + name
    lines = [line.strip() for line in print_op(kernel).splitlines()[1:-1]]
    renamed = [re.sub(r"%(c(?:m?\d+(?:p\d+)?|true|false|inf|minf))_\d+\b", r"%\1", line) for line in lines]
    return [line for line in renamed[:-1] if "= arith.constant" not in line]
