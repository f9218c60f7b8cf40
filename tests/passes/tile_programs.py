"""One-kernel programs written as the text of the kernel's body, for the tests of the passes on tile level."""

from __future__ import annotations

import re

import numpy as np

from tests.support.programs import check_pass, inputs_for
from tiledsl.dialects.tile import FuncOp
from tiledsl.ir.pass_manager import PassManager, parse_program
from tiledsl.ir.text import print_op
from tiledsl.passes.lower_tile_ops import LowerTileOps
from tiledsl.passes.promote_buffers import PromoteBuffers
from tiledsl.passes.unroll_loops import UnrollLoops
from tiledsl.passes.vectorize_parallel import VectorizeParallel

TO_VALUES = [UnrollLoops(), LowerTileOps(), VectorizeParallel(), PromoteBuffers()]


def kernel(parameters: str, body: str) -> FuncOp:
    """A program of one kernel over a grid of 2.

    `parameters` reads `A: 4*6*float32, I: 4*int32`; in the body, `#3` is the int32 constant 3 and `#0.5` a float32 one.
    """
    names = [each.split(":")[0].strip() for each in parameters.split(", ")]
    types = [each.split(":")[1].strip() for each in parameters.split(", ")]
    arguments = ", ".join(f"%{name}: buffer<{type}, global>" for name, type in zip(names, types, strict=True))
    constants: dict[str, str] = {}

    def constant(match: re.Match[str]) -> str:
        text = match[1]
        dtype = "float32" if "." in text else "int32"
        name = "%c" + re.sub(r"\W", lambda mark: {"-": "m", ".": "p"}[mark[0]], text)
        constants[name] = f"{name} = arith.constant {{value = {text}}} : {dtype}"
        return name

    body = re.sub(r"#(-?[\d.]+)", constant, body)
    quoted = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
    text = f"""tile.func {{sym_name = "test", parameters = ({quoted})}} ({arguments}) {{
      %grid = arith.constant {{value = 2}} : int32
      {" ".join(constants.values())}
      tile.kernel [%grid] (%bx: int32) {{ {body} }}
    }}"""
    func = parse_program(text.replace("(" + quoted + ")", f"({quoted.rstrip(',')})")).root
    assert isinstance(func, FuncOp)
    return func


def to_values(func: FuncOp, *, inputs: list[np.ndarray] | None = None, seed: int = 0) -> str:
    """The text after the four passes; after each the program still means the same."""
    return print_op(check_pass(TO_VALUES, func, inputs_for(func, seed) if inputs is None else inputs, tolerance=1e-6))


def after(func: FuncOp, *passes: type) -> str:
    """The text after these passes, without running the program."""
    from tiledsl.ir.pass_manager import Program

    program = Program(func)
    PassManager([each() for each in passes]).run(program)
    return print_op(program.root)
