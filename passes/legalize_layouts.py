"""Operations that move elements between threads, in forms that every Triton lays out well."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from types import NoneType
from typing import TypeGuard

from tiledsl.analysis.dependence import handed_on, operands_of, reached
from tiledsl.analysis.picks import Pick, pick_of
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.analysis.ranges import Ranges, owner_of
from tiledsl.dialects import arith, scf, tensor, triton
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, ScalarType, Shape, TensorType, broadcast_shapes, is_integer, with_shape
from tiledsl.launch_options import warp_size
from tiledsl.passes.tile_values import broadcast, converted, iota, numbered, reshaped


@dataclass(frozen=True)
class LegalizeLayouts(Pass):
    """Keep gathers, scans, reductions and products of float64 off the layouts that some Tritons or ptxas get wrong.

    Before:  %y = tensor.gather %x, %i {axis = 1} : tensor<8x16xfloat32>    with %x : tensor<8x4xfloat32>, 128 threads
             %c = tensor.scan %t {axis = 0} : tensor<4x1xfloat32>
    After:   %f = tensor.reshape %x : tensor<32xfloat32>                    %s = tensor.reshape %t : tensor<4xfloat32>
             %g = tensor.gather %f, %j : tensor<128xfloat32>                %d = tensor.scan %s : tensor<4xfloat32>
             %y = tensor.reshape %g : tensor<8x16xfloat32>                  %c = tensor.reshape %d : tensor<4x1xfloat32>

    A gather of a tile with fewer elements than threads becomes one of a single dimension, and what is reshaped to one
    dimension and depends on indices alone is computed in it. One place of an axis, picked by a sum behind a reshape, is
    gathered. A scan loses its dimensions
    of 1, and walks forwards through elements that a gather has turned round. One of several dimensions beside tiles of
    larger shapes, and every reduction behind a reshape that does more than split dimensions, is `relaid`: Triton lays
    its operand out anew, through shared memory, where the whole of it needs to fit. An operand of a
    product of float64 that comes from narrower numbers in memory passes through a sum over a dimension of 1. A while
    that a launch with an integer of 1 may show never to run stands in a branch, with which Triton drops it. Why: the
    list in tiledsl/runtime/hazards.py.
    Needs:   lower-to-triton: the number of threads is known. Keeps: all results.
    """

    name = "legalize-layouts"

    def run(self, program: Program) -> None:
        for launch in of_kinds(program.root.nests(), triton.LaunchOp):
            if targets_gluon(launch):
                continue
            ops = list(launch.body.walk())
            threads = launch.warps * warp_size(program.target)
            for view in of_kinds(ops, tensor.ReshapeOp):
                if len(view.out.shape) == 1 and view.source.shape:
                    _compute_flat(view)
            for scan in of_kinds(ops, tensor.ScanOp):
                _legalize_scan(scan)
            for reduction in of_kinds(ops, tensor.ReduceOp):
                reshapes = _reshaped_before(reduction.source)
                pick = pick_of(reduction) if reshapes else None
                if reshapes and not (pick and _gather_pick(pick)) and not all(map(_splits, reshapes)):
                    reduction.set_attribute("relaid", True)
            for gather in of_kinds(ops, tensor.GatherOp):
                if len(gather.source.shape) > 1 and prod(gather.source.shape) < threads:
                    _gather_flat(gather)
            for dot in of_kinds(ops, tensor.DotOp):
                if dot.a.dtype == "float64":
                    _cut_from_memory(dot)
            numbers = {
                each for each in launch.body.args if isinstance(each.type, ScalarType) and is_integer(each.dtype)
            }
            for loop in of_kinds(ops, scf.WhileOp):
                _guard(loop, numbers)


def _compute_flat(op: tensor.ReshapeOp) -> None:
    """reshape(f(iota of an axis)) of one dimension  ==>  f(the digit of an iota): nothing moves between threads."""
    flat = _flattened(Builder.at(op), op.source, op.source.shape, {})
    if flat is not None:
        _replace(op, broadcast(Builder.at(op), flat, op.out.shape))


def _flattened(builder: Builder, value: Value, shape: Shape, known: dict[Value, Value | None]) -> Value | None:
    """A value, broadcast to a shape, in row-major order; None if more than indices are needed to compute it."""
    if value not in known:
        known[value] = _made_flat(builder, value, shape, known)
    return known[value]


def _made_flat(builder: Builder, value: Value, shape: Shape, flattened: dict[Value, Value | None]) -> Value | None:
    op, flat = value.op, (prod(shape),)
    if not value.shape:
        return value
    if isinstance(op, arith.ConstantOp):
        return builder.constant(op.value, ScalarType(value.dtype))
    if isinstance(op, tensor.IotaOp):
        place, dtype = numbered(builder, flat[0], value.dtype), ScalarType(value.dtype)
        for make, number in ((arith.TruncDivOp, prod(shape[op.axis + 1 :])), (arith.TruncModOp, op.extent)):
            place = builder.insert(make(place, builder.constant(number, dtype))).result
        return place
    if not isinstance(op, (arith.Elementwise, tensor.BroadcastOp)):
        return None
    operands = [_flattened(builder, each, shape, flattened) for each in op.operands]
    if None in operands:
        return None
    if isinstance(op, tensor.BroadcastOp):
        return operands[0]
    twin = op.clone(dict(zip(op.operands, operands)))  # type: ignore[arg-type]
    made = broadcast_shapes(*(each.shape for each in operands if each is not None))
    twin.result.set_type(with_shape(made or (), value.dtype))
    builder.insert(twin)
    return twin.result


def _gather_flat(op: tensor.GatherOp) -> None:
    """gather(x, i) of several dimensions  ==>  reshape(gather(flat x, the place in x of each element))"""
    builder, source, shape = Builder.at(op), op.source, op.indices.shape
    place = builder.constant(0, INT32)
    for dim, size in enumerate(source.shape):
        index = op.indices if dim == op.axis else iota(builder, len(shape), dim, size)
        place = builder.insert(arith.MulOp(place, builder.constant(size, INT32))).result
        place = builder.insert(arith.AddOp(place, index)).result
    places = _flattened(builder, place, shape, {})
    if places is None:
        places = reshaped(builder, broadcast(builder, place, shape), (prod(shape),))
    places = broadcast(builder, places, (prod(shape),))
    _replace(op, _looked_up(builder, source, places, shape))


_MOST_GATHERED = 1 << 15  # bytes: the whole of what is gathered from passes through shared memory


def _gather_pick(pick: Pick) -> bool:
    """sum(iota of the axis == place ? x : 0)  ==>  a gather of that place: what is picked, not searched for"""
    op, source, place = pick.reduction, pick.tile, pick.place
    extent, ends = source.shape[op.axis], Ranges().of(place)
    if op.kind != "sum" or ends.lo < 0 or ends.hi >= extent:
        return False
    if tensor_bytes(source) > _MOST_GATHERED:
        return False
    builder, outer, inner = Builder.at(op), source.shape[: op.axis], source.shape[op.axis + 1 :]
    around = tensor.IotaOp(axis=0, extent=prod(outer), result_types=[TensorType((prod(outer), 1), "int32")])
    behind = tensor.IotaOp(axis=1, extent=prod(inner), result_types=[TensorType((1, prod(inner)), "int32")])
    row = builder.insert(arith.MulOp(builder.insert(around).out, builder.constant(extent, INT32))).result
    row = builder.insert(arith.AddOp(row, converted(builder, place, "int32"))).result
    row = builder.insert(arith.MulOp(row, builder.constant(prod(inner), INT32))).result
    index = builder.insert(arith.AddOp(row, builder.insert(behind).out)).result
    flat = _flattened(builder, index, (prod(outer), prod(inner)), {})
    assert flat is not None, "indices alone"
    picked = _looked_up(builder, source, broadcast(builder, flat, (prod(outer + inner),)), (*outer, *inner))
    _replace(op, converted(builder, picked, op.out.dtype))
    return True


def _legalize_scan(op: tensor.ScanOp) -> None:
    builder, source, shape = Builder.at(op), op.source, op.source.shape
    kept = [dim for dim, size in enumerate(shape) if size > 1]
    if op.axis not in kept:
        return _replace(op, source)
    inner, axis = tuple(shape[dim] for dim in kept), kept.index(op.axis)
    relaid = len(inner) > 1 and bool(_reshaped_before(op.out) or _meets_larger(op.out))
    if not op.reverse:
        if inner == shape and not relaid:
            return
        scanned = _scan(builder, op, [reshaped(builder, each, inner) for each in op.operands], axis, relaid)
        return _replace(op, reshaped(builder, scanned, shape))
    # The extents are powers of two: to walk an axis from its end is to invert the bits of its index.
    places = numbered(builder, prod(shape))
    mask = (inner[axis] - 1) * prod(inner[axis + 1 :])
    turned = builder.insert(arith.XorOp(places, builder.constant(mask, ScalarType("int32")))).result
    scanned = _scan(builder, op, [_looked_up(builder, source, turned, inner)], axis, relaid)
    _replace(op, _looked_up(builder, scanned, turned, shape))


def _scan(builder: Builder, op: tensor.ScanOp, values: list[Value], axis: int, relaid: bool) -> Value:
    return builder.insert(tensor.ScanOp(*values, kind=op.kind, axis=axis, relaid=relaid, names=[op.out.name])).result


def _cut_from_memory(op: tensor.DotOp) -> None:
    builder = Builder.at(op)
    operands = []
    for value in (op.a, op.b):
        if _is_loaded_narrow(value):
            wide = reshaped(builder, value, (*value.shape, 1))
            value = builder.insert(tensor.ReduceOp(wide, kind="sum", axis=2, names=[value.name])).result
        operands.append(value)
    op.set_operands([*operands, op.accumulator])


def _is_loaded_narrow(value: Value) -> bool:
    """Whether a tile is computed, without a loop or a product between, from numbers of less than 32 bits in memory."""
    return any(
        isinstance(tile.op, (triton.LoadOp, triton.LoadBlockOp)) and ELEMENTS[tile.dtype].bits < 32
        for tile in reached([value], lambda tile: _tiles(operands_of(tile)))
    )


def _tiles(values: Iterable[Value]) -> list[Value]:
    return [value for value in values if value.shape]


# Layouts


def _reshaped_before(value: Value) -> list[tensor.ReshapeOp]:
    """What gives a tile other dimensions on the way to another tile."""
    views = [tile.op for tile in reached(_tiles([value]), lambda tile: _tiles(_sources(tile)))]
    return [op for op in views if _is_reshape(op) and not _joins_again(op)]


def _is_reshape(op: Operation | None) -> TypeGuard[tensor.ReshapeOp]:
    return isinstance(op, tensor.ReshapeOp) and not _keeps_dimensions(op)


def _joins_again(op: tensor.ReshapeOp) -> bool:
    """Whether the parts of a dimension become one again, computed element by element in between: no lane moves."""
    tiles = list(reached(_tiles([op.source]), lambda tile: [] if _is_reshape(tile.op) else _tiles(_sources(tile))))
    views = [tile.op for tile in tiles if _is_reshape(tile.op)]
    between = (tile.op for tile in tiles if not _is_reshape(tile.op))
    return (
        bool(views)
        and all(isinstance(each, (*_IN_PLACE, NoneType)) for each in between)
        and all(
            _splits(each) and _is_part(each.source.shape, op.out.shape) and _is_part(each.out.shape, op.source.shape)
            for each in views
        )
    )


# What leaves lanes where they are, or is the same wherever it is computed; a reduction does that behind a broadcast.
_IN_PLACE = (
    arith.Elementwise, arith.ConstantOp, tensor.IotaOp, tensor.BroadcastOp, tensor.ReduceOp, tensor.ReshapeOp,
)  # fmt: skip


def _is_part(shape: Shape, whole: Shape) -> bool:
    """Whether a tile of this shape can be broadcast to another one."""
    return len(shape) == len(whole) and all(a in (1, b) for a, b in zip(shape, whole, strict=True))


def _meets_larger(value: Value) -> bool:
    """Whether Triton may give a tile the layout of one that is larger in some dimension: threads then hold copies.

    Layouts spread, in both directions, along all that is computed element by element, gathers, reductions and
    broadcasts.
    """

    def beside(tile: Value) -> list[Value]:
        values = list(tile.op.operands if isinstance(tile.op, tensor.GatherOp) else _sources(tile))
        for user in tile.uses:
            if not user.is_terminator:
                values += [*user.operands, *user.results]
        return _tiles(values)

    return any(not _fits_into(tile.shape, value.shape) for tile in reached(_tiles([value]), beside))


def _fits_into(shape: Shape, limit: Shape) -> bool:
    """Whether a layout for one shape has a thread for each element of the other, but for dimensions that are 1."""
    if len(shape) == len(limit):
        return all(a <= b for a, b in zip(shape, limit))
    return sum(size > 1 for size in shape) <= sum(size > 1 for size in limit)


def _keeps_dimensions(op: tensor.ReshapeOp) -> bool:
    before, after = ([size for size in value.shape if size > 1] for value in (op.source, op.out))
    return before == after


def _splits(op: tensor.ReshapeOp) -> bool:
    """Whether each dimension of the result is a part of one of the source's. Lanes along a dimension are neighbours in
    the layouts that loads and products have, and so they are along a part of it; not along two that become one."""
    parts = {1, *accumulate(op.out.shape[::-1], mul)}
    return parts.issuperset(accumulate(op.source.shape[::-1], mul))


def _sources(value: Value) -> list[Value]:
    """The tiles from which one takes its layout, the result of a while for what its condition hands on included."""
    op, around = value.op, owner_of(value)
    if op is not None and not op.regions:
        return [] if isinstance(op, tensor.GatherOp) else op.operands
    if isinstance(around, scf.WhileOp) and value.owner is around.after:
        return [*handed_on(value), around.results[around.after.args.index(value)]]
    return handed_on(value)


def _guard(loop: scf.WhileOp, numbers: Set[Value]) -> None:
    """while c(%init) { A }  ==>  if c(%init) { while c { A } }, where c(%init) is computed from arguments alone or may
    be known with them. A launch puts 1 in place of an argument that is 1."""
    initial = dict(zip(loop.before.args, loop.inits))
    condition = loop.before.terminator
    assert isinstance(condition, scf.ConditionOp)
    tests = [op for op in loop.before if op is not condition]
    start = initial.get(condition.condition, condition.condition)
    sources = reached([start], lambda value: [initial.get(each, each) for each in operands_of(value)])
    if not all(op.is_pure for op in tests) or numbers.isdisjoint(sources):
        return
    builder = Builder.at(loop)
    for op in tests:
        builder.insert(op.clone(initial))
    first, *handed = [initial.get(value, value) for value in condition.operands]
    guarded, otherwise = Region(), Region()
    branch = builder.insert(
        scf.IfOp(first, result_types=[value.type for value in handed], regions=[guarded, otherwise])
    )
    for value, result in zip(loop.results, branch.results, strict=True):
        result.name = value.name
        value.replace_with(result)
    guarded.insert(loop.detach())
    scf.yielding(guarded, loop.results)
    scf.yielding(otherwise, handed)


def _looked_up(builder: Builder, source: Value, places: Value, shape: Shape) -> Value:
    """The elements of a tile at places in row-major order, in another shape."""
    flat = reshaped(builder, source, (prod(source.shape),))
    found = builder.insert(tensor.GatherOp(flat, places, axis=0, names=[source.name])).result
    return reshaped(builder, found, shape)


def _replace(op: Operation, value: Value) -> None:
    value.name = value.name or op.result.name
    op.result.replace_with(value)
    op.erase()
