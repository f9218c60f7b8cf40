"""The generic form is MLIR that another tool reads: xDSL, with none of our operations registered."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin
from xdsl.parser import Parser

from tests.ir.test_text import TEXTS
from tests.support.programs import NAMED
from tiledsl.dialects import tile
from tiledsl.ir.core import Operation, Region
from tiledsl.ir.parser import parse_op
from tiledsl.ir.printer import print_generic


def read_back(root: Operation) -> list[str]:
    """The names of the operations that xDSL finds, in order."""
    context = Context(allow_unregistered=True)
    context.load_dialect(Builtin)
    module = Parser(context, print_generic(root)).parse_op()
    module.verify()
    return [op.attributes["op_name__"].data if "op_name__" in op.attributes else op.name for op in module.walk()]


@pytest.mark.parametrize("name", NAMED)
def test_named_programs(name: str) -> None:
    root = NAMED[name]()
    assert read_back(root) == [op.name for op in root.walk()]


def test_pointers_launches_and_options() -> None:
    root = parse_op(TEXTS[-1])
    assert read_back(root) == [op.name for op in root.walk()]


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 2**40, True, None, "", 'a "b"\n\\ é', (), (1, ("x", 2.5)),
        0.5, -0.0, 1e30, 1e-30, 2.5e-7, float("inf"), float("nan"),
    ],
)  # fmt: skip
def test_attributes(value: object) -> None:
    root = tile.FuncOp(sym_name="f", parameters=(), regions=[Region()], extra=value)
    assert read_back(root) == ["tile.func"]
