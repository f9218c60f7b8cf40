"""What the launches of a program do with its parameters."""

from __future__ import annotations

from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.dependence import stripped
from tiledsl.dialects import gluon, tensor, tile, triton
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds


def needs_alignment(func: tile.FuncOp) -> list[Value]:
    """Parameters that descriptors show, or whose rows are gathered: their first element must lie at a multiple of 16
    bytes."""
    parameters = func.body.args[: len(func.parameters)]
    shown = {root_buffer(op.buffer) for op in func.body if isinstance(op, triton.DescriptorOp)}
    for launch in (op for op in func.body if isinstance(op, triton.LaunchOp) and gluon.targets_gluon(op)):
        outside = dict(zip(launch.body.args, launch.arguments, strict=True))
        gathered = [op for op in of_kinds(launch.body.walk(), triton.LoadOp) if op.ring]
        pointers = [stripped(op.pointer, triton.AddPtrOp, tensor.BroadcastOp) for op in gathered]
        shown.update(_shown(outside[pointer]) for pointer in pointers)
    return [value for value in parameters if value in shown]


def written_parameters(func: tile.FuncOp) -> list[Value]:
    """Parameters that some kernel writes."""
    written: set[Value] = set()
    for launch in (op for op in func.body if isinstance(op, triton.LaunchOp)):
        outside = dict(zip(launch.body.args, launch.arguments, strict=True))
        ops = list(launch.body.walk())
        through_pointers: list[triton.StoreOp | triton.AtomicOp] = of_kinds(ops, triton.StoreOp, triton.AtomicOp)
        pointers = [stripped(op.pointer, triton.AddPtrOp, tensor.BroadcastOp) for op in through_pointers]
        written.update(_shown(outside[pointer]) for pointer in pointers)
        written.update(_shown(outside[op.descriptor]) for op in of_kinds(ops, triton.StoreBlockOp))
    return [value for value in func.body.args[: len(func.parameters)] if value in written]


def _shown(argument: Value) -> Value:
    return root_buffer(argument.op.buffer if isinstance(argument.op, triton.DescriptorOp) else argument)
