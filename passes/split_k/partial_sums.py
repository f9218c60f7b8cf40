"""Partial sums of a loop in a workspace: kernels store them, and a second kernel adds them. Part of split-k."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32, BufferType, TensorType


class NotSplit(Exception):
    """Why a kernel is not split: a clause that continues "because"."""


def allocate_partials(kernel: tile.KernelOp, sums: Value, count: int) -> Value:
    """A workspace for `count` tiles of the shape of `sums`, allocated by the host before the kernel.

    The tiles are stacked along the first dimension: storing blocks of a buffer with more dimensions would change their
    layout.
    """
    type = BufferType((count * sums.shape[0], *sums.shape[1:]), sums.dtype, "global")
    names = [f"{sums.name or 'sum'}_parts"]
    return Builder.at(kernel).insert(tile.AllocOp(result_types=[type], names=names)).out


def clone_for_sums(kernel: tile.KernelOp, mapping: dict[Value, Value]) -> tile.KernelOp:
    """A copy that runs after the kernel; `mapping` receives the copies of the kernel's values."""
    second = kernel.clone(mapping)
    assert isinstance(second, tile.KernelOp) and kernel.parent is not None
    kernel.parent.insert(second, kernel.next)
    owner = kernel.parent_op
    assert isinstance(owner, tile.FuncOp), "a kernel stands in a program"
    base = owner.sym_name if kernel.sym_name == "kernel" else kernel.sym_name
    second.set_attribute("sym_name", f"{base}_sum")
    second.set_attribute("remarks", ())
    return second


def store_partial(at: Builder, sums: Value, partials: Value, number: Value) -> None:
    """Store `sums` as tile `number` of the workspace."""
    at.insert(tile.StoreOp(sums, partials, _elements(at, sums.shape, number), guarded=True))


def load_partial(at: Builder, sums: Value, partials: Value, number: Value) -> Value:
    """Tile `number` of the workspace, in the shape of `sums`."""
    return at.insert(tile.LoadOp(partials, _elements(at, sums.shape, number), guarded=True)).out


def add_partials(
    loop: scf.ForOp,
    inits: Sequence[Value],
    bounds: tuple[Value, Value],
    load: Callable[[Builder, Value], Sequence[Value]],
    *,
    unroll: int = 0,
) -> None:
    """Replace a loop's sums by `inits` plus the parts with numbers within `bounds`, added in this order.

    `load` loads the part of each with a given number. What only the loop used is erased.
    """
    sums, at = loop.results, Builder.at(loop)
    names = [each.name for each in sums]
    body = Region([INT32, *(each.type for each in sums)], ["part", *names])
    part, *totals = body.args
    inside = Builder(body, None, loop.loc)
    added = [arith.AddOp(total, one) for total, one in zip(totals, load(inside, part), strict=True)]
    inside.insert(scf.YieldOp([inside.insert(each).result for each in added]))
    adding = scf.ForOp(*bounds, at.constant(1, INT32), inits, unroll=unroll, regions=[body], names=names)
    at.insert(adding)
    for before, after in zip(sums, adding.results, strict=True):
        before.replace_with(after)
    region = loop.parent
    loop.erase()
    assert region is not None
    _erase_unused(region)


def ops_after(op: Operation) -> list[Operation]:
    """The operations that follow in the same region, without the terminator."""
    assert op.parent is not None
    behind = op.parent.ops[op.parent.index(op) + 1 :]
    return [after for after in behind if not after.is_terminator]


def erase_after(op: Operation) -> None:
    for after in reversed(ops_after(op)):
        after.erase()


def _elements(at: Builder, shape: tuple[int, ...], number: Value) -> list[Value]:
    """The indices of the elements of one tile of the workspace."""
    types = [
        TensorType(tuple(size if each == axis else 1 for each in range(len(shape))), "int32")
        for axis, size in enumerate(shape)
    ]
    first, *others = [at.insert(tensor.IotaOp(axis=axis, result_types=[type])).out for axis, type in enumerate(types)]
    above = at.insert(arith.MulOp(number, at.constant(shape[0], INT32))).result
    return [at.insert(arith.AddOp(above, first)).result, *others]


def _erase_unused(region: Region) -> None:
    """Erase what only the loop used; loads too, since nothing else writes what the kernel reads."""
    for op in reversed(region):
        if (op.is_pure or isinstance(op, tile.LoadOp)) and not op.is_used and not op.is_terminator:
            op.erase()
