"""lower-exchanges: sorts, histograms and scatters of tiles become gathers in loops, scans and Triton's histogram."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, ScalarType, TensorType, is_float
from tiledsl.passes.index_arithmetic import insert_or_fold
from tiledsl.passes.tile_values import (
    bitcast,
    broadcast,
    combine,
    compared,
    converted,
    iota,
    numbered,
    reduced,
    reshaped,
    same_bits,
    selected,
)


@dataclass(frozen=True)
class LowerExchanges(Pass):
    """Express tensor.sort and tensor.scatter with gathers, scans and tensor.histogram.

    Before:  %y, %i = tensor.sort %x {axis = 0}          After:  %y = scf.for ... [2, 1, %x] (%step, %run, %far, %t) {
                                                                   %t1 = scf.if %far == 1 {
                                                                     %h = tensor.reshape %t : tensor<512x2x1xint32>
                                                                     %o = %h ^ tensor.reduce %h {"xor", axis = 1}
                                                                     %z = the lesser or the greater of %h and %o
                                                                     scf.yield (tensor.reshape %z)
                                                                   } { scf.yield %t }
                                                                   %t2 = scf.if %far == 2 { ... } { scf.yield %t1 }
                                                                   ...
                                                                 }
    A sort is a bitonic network (Batcher, Sorting networks and their applications, AFIPS 1968) of which a loop makes one
    step in each iteration, by a branch for each distance: 10 for the 55 steps of 1024 elements, for a network written
    out takes Triton seconds to compile. A scatter of one number, added, is
    that number times a histogram. Otherwise the values are sorted by their places, combined by a scan that starts anew
    at each place, and the last of each place is looked up: nothing depends on which thread comes first.
    Needs:   pad-tiles: all sizes are powers of two. Leaves no tensor.sort and no tensor.scatter.
    """

    name = "lower-exchanges"

    def allowances(self, program: Program) -> frozenset[str]:
        scatters = of_kinds(program.root.walk(), tensor.ScatterOp)
        sums = any(op.kind == "add" and is_float(op.into.dtype) for op in scatters)
        return frozenset({"reassociation"} if sums else ())

    def run(self, program: Program) -> None:
        for kernel in tile.kernels(program.root):
            ops = list(kernel.body.walk())
            for scatter in of_kinds(ops, tensor.ScatterOp):
                if scatter.compare is None:
                    _Scatter(scatter).lower()
                else:
                    _one_after_the_other(scatter, scatter.compare)
                scatter.erase()
            for sort in of_kinds(ops, tensor.SortOp):
                _lower_sort(sort)
                sort.erase()


def _lower_sort(op: tensor.SortOp) -> None:
    builder, source, axis = Builder.at(op), op.source, op.axis
    lane = iota(builder, len(source.shape), axis, source.shape[axis])
    if is_float(source.dtype) or op.indices.uses:
        order = broadcast(builder, lane, source.shape)
        ordered, moved = bitonic(builder, [source, order], axis, lambda at, a, b: _precedes(at, a, b, op.descending))
        op.indices.replace_with(moved)
    else:
        (ordered,) = bitonic(builder, [source], axis, lambda at, a, b: _less(at, a[0], b[0], op.descending))
    ordered.name = ordered.name or op.out.name
    op.out.replace_with(ordered)


def bitonic(
    builder: Builder, tiles: Sequence[Value], axis: int, precedes: Callable[[Builder, list[Value], list[Value]], Value]
) -> list[Value]:
    """Tiles of one shape with their elements moved along an axis, all in the same way, into the order of `precedes`.

    `precedes` says of the elements at one place and those at another whether the former come first; they never both do.
    """
    shape = tiles[0].shape
    extent = shape[axis]
    levels = extent.bit_length() - 1
    if not levels:
        return list(tiles)
    names, types = [each.name for each in tiles], [each.type for each in tiles]
    zero, one, two = (builder.constant(number, INT32) for number in (0, 1, 2))
    lane = iota(builder, len(shape), axis, extent)
    body = Region([INT32, INT32, INT32, *types], ["step", "run", "far", *names])
    _, run, far, *mine = body.args
    at = Builder(body, None, builder.loc)
    for distance in (1 << level for level in range(levels)):
        is_far = compared(at, far, "eq", builder.constant(distance, INT32))
        here, elsewhere = Region(), Region()
        inside = Builder(here, None, builder.loc)

        def split(tile: Value, at: Builder = inside, distance: int = distance) -> Value:
            before, size, behind = tile.shape[:axis], tile.shape[axis], tile.shape[axis + 1 :]
            return reshaped(at, tile, (*before, size // (2 * distance), 2, distance, *behind))

        own = [split(each) for each in mine]
        others = [_partners(inside, each, axis + 1) for each in own]
        place = split(lane)
        # What comes first goes down in runs of even number, up in the others, as their number's last bit says.
        is_upper, falls = (
            compared(inside, inside.insert(arith.AndOp(place, bit)).result, "ne", zero)
            for bit in (inside.constant(distance, INT32), run)
        )
        wants_last = broadcast(inside, inside.insert(arith.XorOp(is_upper, falls)).result, own[0].shape)
        moves = selected(inside, wants_last, precedes(inside, own, others), precedes(inside, others, own))
        made = [selected(inside, moves, other, each) for each, other in zip(own, others, strict=True)]
        scf.yielding(here, [reshaped(inside, each, shape) for each in made])
        scf.yielding(elsewhere, mine)
        mine = at.insert(scf.IfOp(is_far, result_types=types, regions=[here, elsewhere], names=names)).results
    half = at.insert(arith.ShrOp(far, one)).result
    is_over = compared(at, half, "eq", zero)
    longer = at.insert(arith.ShlOp(run, one)).result
    at.insert(scf.YieldOp([selected(at, is_over, longer, run), selected(at, is_over, run, half), *mine]))
    steps = builder.constant(levels * (levels + 1) // 2, INT32)
    loop = scf.ForOp(zero, steps, one, [two, one, *tiles], regions=[body], names=["", "", *names])
    return builder.insert(loop).results[2:]


def _partners(at: Builder, tile: Value, axis: int) -> Value:
    """The elements of the other index along an axis of two: a reduction of them within a warp is a shuffle to Triton,
    where a gather goes through shared memory."""
    bits = bitcast(at, tile, f"int{ELEMENTS[tile.dtype].bits}") if is_float(tile.dtype) else tile
    of_both = broadcast(at, reduced(at, bits, "xor", axis, keep=True), bits.shape)
    return bitcast(at, at.insert(arith.XorOp(bits, of_both)).result, tile.dtype)


def _precedes(at: Builder, a: list[Value], b: list[Value], descending: bool) -> Value:
    """Whether elements come before others: by the first tile, where that is equal by the second."""
    first, second = _less(at, a[0], b[0], descending), _less(at, b[0], a[0], descending)
    earlier = compared(at, a[1], "lt", b[1])
    not_later = at.insert(arith.NotOp(second)).result
    return at.insert(arith.OrOp(first, at.insert(arith.AndOp(not_later, earlier)).result)).result


def _less(at: Builder, a: Value, b: Value, descending: bool) -> Value:
    """a < b, with NaN above all numbers; b < a, if descending."""
    a, b = (b, a) if descending else (a, b)
    less = compared(at, a, "lt", b)
    if not is_float(a.dtype):
        return less
    only_b = at.insert(arith.AndOp(compared(at, a, "eq", a), compared(at, b, "ne", b))).result
    return at.insert(arith.OrOp(less, only_b)).result


def _ascending(at: Builder, a: list[Value], b: list[Value]) -> Value:
    (lhs,), (rhs,) = a, b
    return compared(at, lhs, "lt", rhs)


def _one_after_the_other(op: tensor.ScatterOp, compare: Value) -> None:
    """A cas of each value in turn: what one leaves decides about the next, so that no scan of them is possible."""
    builder, size, count = Builder.at(op), op.into.shape[0], op.values.shape[0]
    zero, one, end = (builder.constant(number, INT32) for number in (0, 1, count))
    elements, points = numbered(builder, size), numbered(builder, count)
    body = Region([INT32, op.into.type, op.values.type], ["point", op.into.name, op.before.name])
    point, held, met = body.args
    at = Builder(body, None, builder.loc)
    here = broadcast(at, point, (1,))
    place, value, wanted = (
        at.insert(tensor.GatherOp(each, here, axis=0)).result for each in (op.places, op.values, compare)
    )
    inside = compared(at, place, "ge", zero)
    inside = at.insert(arith.AndOp(inside, compared(at, place, "lt", builder.constant(size, INT32)))).result
    old = at.insert(tensor.GatherOp(held, selected(at, inside, place, zero), axis=0)).result
    hit = at.insert(arith.AndOp(inside, same_bits(at, old, wanted))).result
    written = at.insert(arith.AndOp(broadcast(at, hit, (size,)), compared(at, elements, "eq", place))).result
    held = selected(at, written, broadcast(at, value, (size,)), held)
    met = selected(at, compared(at, points, "eq", point), broadcast(at, old, (count,)), met)
    at.insert(scf.YieldOp([held, met]))
    loop = scf.ForOp(zero, end, one, [op.into, op.values], regions=[body], names=[op.out.name, op.before.name])
    for result, made in zip(op.results, builder.insert(loop).results, strict=True):
        result.replace_with(made)


class _Scatter:
    """The lowering of one tensor.scatter."""

    def __init__(self, op: tensor.ScatterOp) -> None:
        self.op, self.at = op, Builder.at(op)
        (self.size,), (self.count,) = op.into.shape, op.values.shape
        self.combining = combine(op.kind, op.into.dtype)

    def lower(self) -> None:
        op, at = self.op, self.at
        times = constant_of(op.values) if op.kind == "add" and not is_float(op.into.dtype) else None
        here = compared(at, op.places, "ge", at.constant(0, INT32))
        here = at.insert(arith.AndOp(here, compared(at, op.places, "lt", at.constant(self.size, INT32)))).result
        counts = at.insert(tensor.HistogramOp(op.places, here, result_types=[TensorType((self.size,), "int32")])).result
        if times is not None:
            self._replace(at.insert(arith.AddOp(op.into, self._times(counts, times))).result)
            if not op.before.uses:
                return
        ends = at.insert(tensor.ScanOp(counts, kind="sum", axis=0)).result
        ordered, bits = self._by_place(here)
        scanned = points = self._low_bits(ordered)
        if times is None:
            # Of numbers in order the greatest of a place is its last one.
            if op.kind != "max" or not isinstance(op.values.op, tensor.IotaOp) or op.values.dtype != "int32":
                places = at.insert(arith.ShrOp(ordered, at.constant(bits, _scalar(ordered)))).result
                values = at.insert(tensor.GatherOp(op.values, points, axis=0)).result
                scanned = self._combined_by_place(values, converted(at, places, "int32"))
            last = at.insert(arith.MaxOp(self._minus_one(ends), at.constant(0, INT32))).result
            last_point = at.insert(tensor.GatherOp(scanned, last, axis=0)).result
            written = compared(at, counts, "gt", at.constant(0, INT32))
            self._replace(selected(at, written, at.insert(self.combining(op.into, last_point)).out, op.into))
            if not op.before.uses:
                return
        # Where each value went in the order of places: the order of the values' numbers in that order.
        inverse = self._low_bits(self._sorted(points))
        inside = selected(at, here, op.places, at.constant(0, INT32))
        old = at.insert(tensor.GatherOp(op.into, inside, axis=0)).result
        starts = at.insert(arith.SubOp(ends, counts)).result
        start = at.insert(tensor.GatherOp(starts, inside, axis=0)).result
        if times is not None:
            rank = at.insert(arith.SubOp(inverse, start)).result
            before = at.insert(arith.AddOp(old, self._times(rank, times))).result
        else:
            place = at.insert(arith.MaxOp(self._minus_one(inverse), at.constant(0, INT32))).result
            others = at.insert(tensor.GatherOp(scanned, place, axis=0)).result
            is_first = compared(at, inverse, "eq", start)
            before = selected(at, is_first, old, at.insert(self.combining(old, others)).out)
        op.before.replace_with(before)

    def _replace(self, out: Value) -> None:
        out.name = out.name or self.op.out.name
        self.op.out.replace_with(out)

    def _times(self, counts: Value, number: bool | int | float) -> Value:
        value = converted(self.at, counts, self.op.into.dtype)
        return insert_or_fold(self.at, arith.MulOp(value, self.at.constant(number, _scalar(value))))

    def _minus_one(self, value: Value) -> Value:
        return self.at.insert(arith.SubOp(value, self.at.constant(1, INT32))).result

    def _by_place(self, here: Value) -> tuple[Value, int]:
        """place * count + number of each value, ascending; those without a place last. Also the bits of the number."""
        at, places = self.at, self.op.places
        places = selected(at, here, places, at.constant(self.size, INT32))
        return self._sorted(places), self.count.bit_length() - 1

    def _sorted(self, keys: Value) -> Value:
        """Numbers of up to the size or the count, times the count, plus 0, 1, ..., ascending."""
        at, count = self.at, self.count
        dtype = "int32" if (max(self.size, count) + 1) * count <= 1 << 31 else "int64"
        wide = converted(at, keys, dtype)
        packed = at.insert(arith.MulOp(wide, at.constant(count, _scalar(wide)))).result
        packed = at.insert(arith.AddOp(packed, numbered(at, count, dtype))).result
        (made,) = bitonic(at, [packed], 0, _ascending)
        return made

    def _low_bits(self, ordered: Value) -> Value:
        at = self.at
        return converted(
            at, at.insert(arith.AndOp(ordered, at.constant(self.count - 1, _scalar(ordered)))).result, "int32"
        )

    def _combined_by_place(self, values: Value, places: Value) -> Value:
        """Of values sorted by place: each combined with all before it that have its place.

        After k steps, with the 2^k - 1 before it (Hillis, Steele: Data parallel algorithms, CACM 29(12), 1986).
        """
        builder, steps = self.at, self.count.bit_length() - 1
        if not steps:
            return values
        zero, one = (builder.constant(number, INT32) for number in (0, 1))
        lane = numbered(builder, self.count)
        body = Region([INT32, INT32, values.type], ["step", "far", values.name])
        _, far, mine = body.args
        at = Builder(body, None, builder.loc)
        behind = at.insert(arith.SubOp(lane, far)).result
        source = at.insert(arith.MaxOp(behind, zero)).result
        same = compared(at, at.insert(tensor.GatherOp(places, source, axis=0)).result, "eq", places)
        takes = at.insert(arith.AndOp(same, compared(at, behind, "ge", zero))).result
        other = at.insert(tensor.GatherOp(mine, source, axis=0)).result
        made = selected(at, takes, at.insert(self.combining(other, mine)).out, mine)
        at.insert(scf.YieldOp([at.insert(arith.ShlOp(far, one)).result, made]))
        loop = scf.ForOp(
            zero, builder.constant(steps, INT32), one, [one, values], regions=[body], names=["", values.name]
        )
        return builder.insert(loop).results[1]


def _scalar(value: Value) -> ScalarType:
    return ScalarType(value.dtype)
