"""Short programs as IR text for tests of passes: the body of a kernel in, FileCheck lines on what comes out.

In a body, %c5, %c-5 and %c0.5 are constants (int32, and float32 with a point) wherever they appear.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from tests.support.programs import check_pass, inputs_for
from tiledsl.dialects.tile import FuncOp, KernelOp
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import Pass, PassManager, Program, parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.lower_tile_ops import LowerTileOps
from tiledsl.passes.promote_buffers import PromoteBuffers
from tiledsl.passes.unroll_loops import UnrollLoops
from tiledsl.passes.vectorize_parallel import VectorizeParallel

PARAMETERS = "A: 64*96*float32, B: 64*96*float32, N: 1000*int32, D: m*float32, s: int32, f: float32, b: bool, l: int64"
TO_VALUES = [UnrollLoops(), LowerTileOps(), VectorizeParallel(), PromoteBuffers()]


def program(
    body: str, *, parameters: str = PARAMETERS, grid: Sequence[int | str] = (8,), target: Any = None
) -> Program:
    """A program of one kernel; the parameters and their symbol %m are its names, %bx, %by, %bz the block indices.

    Parameters with sizes, as `A: 4*6*float32`, are global buffers, others scalars; the grid has numbers and names.
    """
    declared = [each.split(": ") for each in parameters.split(", ")]
    names = ["%bx", "%by", "%bz"][: len(grid)]
    numbers = {f"%grid{i}": size for i, size in enumerate(grid) if isinstance(size, int)}
    constants = "\n".join(f"{name} = arith.constant {{value = {size}}} : int32" for name, size in numbers.items())
    grid_text = ", ".join(f"%grid{i}" if isinstance(size, int) else size for i, size in enumerate(grid))
    arguments = [f"%{name}: " + (f"buffer<{type}, global>" if "*" in type else type) for name, type in declared]
    symbols = ""
    for name, type in declared:
        if type.startswith("m*"):
            symbols = f', symbols = ("m",), symbol_sources = ("{name}.0",)'
            arguments.append("%m: int32")
    quoted = ", ".join(f'"{name}"' for name, _ in declared) + ("," if len(declared) == 1 else "")
    text = f"""
    tile.func {{sym_name = "test", parameters = ({quoted}){symbols}}} ({", ".join(arguments)}) {{
      {constants}
      tile.kernel [{grid_text}] ({", ".join(f"{name}: int32" for name in names)}) {{
        {_with_constants(body)}
        scf.yield
      }}
      scf.yield
    }}"""
    return parse_program(text, target)


def kernel(parameters: str, body: str) -> FuncOp:
    """The function of a program over a grid of 2, to run."""
    root = program(body, parameters=parameters, grid=(2,)).root
    assert isinstance(root, FuncOp)
    return root


def _with_constants(body: str) -> str:
    found = sorted(set(re.findall(r"%c(-?\d+(?:\.\d+)?)\b", body)), key=float)
    head = [
        f"{_constant(each)} = arith.constant {{value = {each}}} : {'float32' if '.' in each else 'int32'}"
        for each in found
    ]
    return "\n".join([*head, re.sub(r"%c(-?\d+(?:\.\d+)?)\b", lambda match: _constant(match[1]), body)])


def _constant(number: str) -> str:
    return "%c" + number.replace("-", "m").replace(".", "p")


def kernel_of(program: Program) -> Operation:
    return next(op for op in program.root.walk() if isinstance(op, KernelOp))


def stays_in_gluon(made: Pass, program: Program) -> bool:
    """Whether a pass leaves a kernel alone that the Gluon emitter writes."""
    kernel_of(program).set_attribute("options", (("emitter", "gluon"),))
    before = body_lines(program)
    made.run(program)
    return body_lines(program) == before


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


def text_after(func: FuncOp, *passes: type) -> str:
    """The text after these passes, without running the program."""
    program = Program(func)
    PassManager([each() for each in passes]).run(program)
    return print_op(program.root)


def to_values(func: FuncOp, *, inputs: list[np.ndarray] | None = None, seed: int = 0) -> str:
    """The text after the four passes; after each the program still means the same."""
    return print_op(check_pass(TO_VALUES, func, inputs_for(func, seed) if inputs is None else inputs, tolerance=1e-6))


def filecheck(found: Sequence[str] | str, expected: str) -> None:
    """Compare with FileCheck lines. Lines without a CHECK directive are all that there is, one after the other."""
    text = found if isinstance(found, str) else "\n".join(found)
    wanted = [line.strip() for line in expected.strip().splitlines()]
    if not any(line.startswith("CHECK") for line in wanted):
        wanted = [
            "CHECK: // begin",
            *(f"CHECK-NEXT: {{{{^}}}}{line}{{{{$}}}}" for line in wanted if line),
            "CHECK-NEXT: // end",
        ]
        text = "\n".join(["// begin", *(line.strip() for line in text.splitlines()), "// end"])
    options = Options(match_filename="expected", check_prefixes=["CHECK"])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        matcher = Matcher(
            options,
            FInput("found", text + "\n"),
            Parser(options, io.StringIO("\n".join(wanted) + "\n"), *pattern_for_opts(options)),
        )
        status = matcher.run()
    if status:
        pytest.fail(f"{printed.getvalue()}\nfound:\n{text}", pytrace=False)
