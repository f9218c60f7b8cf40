"""Another tool that reads MLIR: xDSL, with the standard dialects registered and verified, and ours not."""

from __future__ import annotations

import io

from xdsl.context import Context
from xdsl.dialects import arith, builtin, func, linalg, math, memref, scf, tensor, vector
from xdsl.ir import Operation
from xdsl.parser import Parser
from xdsl.printer import Printer

DIALECTS = (
    builtin.Builtin, arith.Arith, func.Func, linalg.Linalg, math.Math, memref.MemRef, scf.Scf, tensor.Tensor,
    vector.Vector,
)  # fmt: skip


def read(text: str) -> Operation:
    """What xDSL reads, verified, as by `xdsl-opt --allow-unregistered-dialect`. Raises what xDSL raises."""
    context = Context(allow_unregistered=True)
    for dialect in DIALECTS:
        context.load_dialect(dialect)
    module = Parser(context, text).parse_module()
    module.verify()
    return module


def names(module: Operation) -> list[str]:
    """The names of the operations, in order."""
    return [op.attributes["op_name__"].data if "op_name__" in op.attributes else op.name for op in module.walk()][1:]  # type: ignore[attr-defined]


def text_of(module: Operation) -> str:
    """The generic form, as xDSL writes it. Values are numbered: xDSL 0.74 gives two of a block one name, `%in_3`, where
    names end in numbers."""
    for op in module.walk():
        for value in [*op.results, *(arg for region in op.regions for block in region.blocks for arg in block.args)]:
            value.name_hint = None
    out = io.StringIO()
    Printer(out, print_generic_format=True).print_op(module)
    return out.getvalue()
