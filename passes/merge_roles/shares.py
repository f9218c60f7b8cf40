"""Code for one thread that fills its share of a tile: all shares together are a T.Parallel over the tile.

The place of an element that thread t writes in turns r, u, ... is a sum of digits of these numbers, such as row
r * 16 + t // 8 and column u * 64 + t % 8 * 8 + i. Where all places of a box are met once (or by threads that write the
same), the digits are those of the place, and what is written is said by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.dependence import ancestors
from tiledsl.analysis.loops import indices_of
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.merge_roles.accesses import accesses_of

_MOST_POINTS = 1 << 20


@dataclass(frozen=True)
class _Digit:
    """A part of a variable: `weight` times what it counts, from 0 to below `size`, is in the variable."""

    variable: Value
    weight: int
    size: int


@dataclass(frozen=True)
class _Place:
    """Which digits, the least significant first, make an index; one without is the same everywhere."""

    digits: tuple[_Digit, ...]
    base: int = 0

    @property
    def extent(self) -> int:
        return prod(each.size for each in self.digits)


def fill_together(threads: tile.ParallelOp) -> None:
    """Rewrite what threads do each for themselves in the body of a T.Parallel over them, where it fills tiles."""
    pending = [threads.body]
    while pending:
        for op in pending.pop():
            if isinstance(op, (scf.ForOp, scf.IfOp, tile.StoreOp)):
                made = _Nest(op, threads).made()
                if made is not None:
                    op.erase()
                    continue
            if not isinstance(op, tile.ParallelOp):
                pending += op.regions


class _Nest:
    """One statement, with the loops and branches in it."""

    def __init__(self, op: Operation, threads: tile.ParallelOp) -> None:
        self.op, self.threads = op, threads
        self.sizes: dict[Value, int] = dict(zip(threads.body.args, threads.extents, strict=True))
        self.inside = set(op.walk())
        self.last: dict[Value, tile.StoreOp] = {}
        self.stores: list[tuple[tile.StoreOp, tuple[tuple[Value, bool], ...]]] = []

    def made(self) -> list[Operation] | None:
        """The T.Parallels, inserted before the statement; None where it is not of this form."""
        if not self._walk([self.op], ()) or not any(map(self._is_of_tile, [store for store, _ in self.stores])):
            return None
        region = Region()
        builder = Builder(region, loc=self.op.loc)
        written = [store.buffer for store, _ in self.stores]
        for store, guards in self.stores:
            if not self._is_of_tile(store):
                if any(user not in self.inside for user in store.buffer.uses) or store.indices:
                    return None  # what it holds is used behind
                continue
            if written.count(store.buffer) > 1:
                return None
            places = [self._place(index) for index in store.indices]
            if any(each is None for each in places):
                return None
            if not self._emit(store, guards, [each for each in places if each is not None], builder):
                return None
        made = list(region)
        for op in made:
            op.detach()
            assert self.op.parent is not None, "the statement stands in the body"
            self.op.parent.insert(op, self.op)
        return made

    def _is_of_tile(self, store: tile.StoreOp) -> bool:
        return tile.buffer_type(store.buffer).scope == "shared" and any(
            self._varies(index, set(self.threads.body.args)) for index in store.indices
        )

    def may_load_again(self, load: tile.LoadOp) -> bool:
        """Whether a load gives the same where the statement stands: nothing in between writes what it reads."""
        if load in self.inside:
            return True
        here = next(each for each in (self.op, *ancestors(self.op)) if each.parent is load.parent)
        between = [op for op in here.parent or () if load.order < op.order <= here.order]
        found = [each for op in between for inner in op.walk() for each in accesses_of(inner)]
        outside = tile.buffer_type(load.buffer).scope == "global"  # a tensor may have several names
        return not any(
            writes and (each is root_buffer(load.buffer) or outside and tile.buffer_type(each).scope == "global")
            for each, _, writes in found
        )

    def _walk(self, ops: Sequence[Operation], guards: tuple[tuple[Value, bool], ...]) -> bool:
        """Note stores; whether there is nothing else but loads and what has no effects."""
        for op in ops:
            if isinstance(op, scf.ForOp):
                indices = indices_of(op)
                if indices is None or op.inits or indices.start != 0 or indices.step != 1 or not len(indices):
                    return False
                self.sizes[op.index] = len(indices)
                if not self._walk(list(op.body), guards):
                    return False
            elif isinstance(op, tile.ParallelOp):
                self.sizes.update(zip(op.body.args, op.extents, strict=True))
                if not self._walk(list(op.body), guards):
                    return False
            elif isinstance(op, scf.IfOp):
                if op.results or not self._walk(list(op.then), (*guards, (op.condition, True))):
                    return False
                if not self._walk(list(op.orelse), (*guards, (op.condition, False))):
                    return False
            elif isinstance(op, tile.StoreOp):
                if op.mask is not None:
                    return False
                self.stores.append((op, guards))
            elif not (isinstance(op, tile.LoadOp) and op.mask is None or op.is_pure or op.is_terminator):
                return False
        return True

    # Where

    def _varies(self, value: Value, on: set[Value]) -> bool:
        """Whether a value depends on variables, or on what each thread has for itself."""
        if value in on or isinstance(value.op, tile.LoadOp) and tile.buffer_type(value.op.buffer).scope == "local":
            return True
        return value.op is not None and any(self._varies(each, on) for each in value.op.operands)

    def _place(self, index: Value) -> _Place | None:
        """The digits of an index."""
        variables = [each for each in self.sizes if self._varies(index, {each})]
        if not variables:
            return _Place(())
        digits = [digit for each in variables for digit in _digits(each, self.sizes[each])]
        if prod(self.sizes[each] for each in variables) > _MOST_POINTS:
            return None
        zeros: dict[Value, int] = dict.fromkeys(variables, 0)
        if _number(index, zeros) != 0:
            return None
        steps: list[tuple[int, _Digit]] = []
        for digit in digits:
            one = _number(index, {**zeros, digit.variable: digit.weight})
            if one is None:
                return None
            if one != 0:
                steps.append((one, digit))
        steps.sort(key=lambda each: each[0])
        unit = 1
        for step, digit in steps:
            if step != unit:
                return None
            unit *= digit.size
        if not self._adds_up(index, variables, {digit: step for step, digit in steps}):
            return None
        return _Place(tuple(digit for _, digit in steps))

    def _adds_up(self, index: Value, variables: Sequence[Value], steps: Mapping[_Digit, int]) -> bool:
        """Whether the index is the sum of its digits' steps, at every point."""
        for point in product(*(range(self.sizes[each]) for each in variables)):
            at = dict(zip(variables, point, strict=True))
            sum_ = sum(step * (at[digit.variable] // digit.weight % digit.size) for digit, step in steps.items())
            if _number(index, at) != sum_:
                return False
        return True

    # What

    def _emit(
        self, store: tile.StoreOp, guards: Sequence[tuple[Value, bool]], places: Sequence[_Place], builder: Builder
    ) -> bool:
        """A T.Parallel over what a store writes; whether all that it needs is said by the place."""
        axes = [number for number, each in enumerate(places) if each.digits]
        known: dict[tuple[Value, int], tuple[int, int]] = {}
        for axis in axes:
            unit = 1
            for digit in places[axis].digits:
                if (digit.variable, digit.weight) in known:
                    return False
                known[digit.variable, digit.weight] = (axis, unit)
                unit *= digit.size
        extents = tuple(places[axis].extent for axis in axes)
        region = Region([INT32] * len(axes), ["i", "j", "k", "l"][: len(axes)])
        inner = _Body(self, Builder(region, loc=store.loc), known, dict(zip(axes, region.args, strict=True)))
        indices = []
        for number, (place, index) in enumerate(zip(places, store.indices, strict=True)):
            made = inner.args[number] if place.digits else inner.value(index, store)
            if made is None:
                return False
            indices.append(made)
        for condition, holds in guards:
            made = inner.value(condition, store)
            if made is None:
                return False
            if not holds:
                made = inner.builder.insert(arith.NotOp(made)).result
            branch = inner.builder.insert(scf.IfOp(made, regions=[Region(), scf.yielding(Region())], loc=store.loc))
            inner.open.append(branch)
            inner.builder = Builder(branch.then, loc=store.loc)
        value = inner.value(store.value, store)
        if value is None:
            return False
        inner.builder.insert(tile.StoreOp(value, store.buffer, indices, loc=store.loc))
        for branch in inner.open:
            scf.yielding(branch.then)
        builder.insert(tile.ParallelOp(extents=extents, regions=[region], loc=store.loc))
        return True


class _Body:
    """The body of a T.Parallel over a tile, in which variables are said by the place."""

    def __init__(
        self,
        nest: _Nest,
        builder: Builder,
        known: Mapping[tuple[Value, int], tuple[int, int]],
        args: Mapping[int, Value],
    ) -> None:
        self.nest, self.builder, self.known, self.args = nest, builder, known, args
        self.made: dict[Value, Value] = {}
        self.open: list[scf.IfOp] = []

    def value(self, value: Value, at: Operation) -> Value | None:
        """What a value is at a place, for a statement of the nest; None where the place does not say it."""
        if value in self.made:
            return self.made[value]
        made = self._new(value, at)
        if made is not None:
            self.made[value] = made
        return made

    def _new(self, value: Value, at: Operation) -> Value | None:
        if value in self.nest.sizes:
            return self._variable(value)
        op = value.op
        varies = self.nest._varies(value, set(self.nest.sizes))
        if op is None or not varies and op not in self.nest.inside:
            return value
        if isinstance(op, tile.LoadOp):
            stored = [store for store, _ in self.nest.stores if store.buffer is op.buffer]
            if stored:
                return self._forwarded(op, stored)
            if tile.buffer_type(op.buffer).scope == "local" or not self.nest.may_load_again(op):
                return None
        elif op.has_effects:
            return None
        short = self._quotient(op) or self._sum(value, at)
        if short is not None:
            return short
        operands = [self.value(each, at) if not hasattr(each.type, "scope") else each for each in op.operands]
        if any(each is None for each in operands):
            return None
        copy = op.clone(dict(zip(op.operands, [each for each in operands if each is not None], strict=True)))
        return self.builder.insert(copy).results[op.results.index(value)]

    def _forwarded(self, load: tile.LoadOp, stored: Sequence[tile.StoreOp]) -> Value | None:
        """What was stored just before in the place that is loaded."""
        (store, *more) = stored
        if more or not _comes_before(store, load):
            return None
        return self.value(store.value, store) if _alike(store.indices, load.indices) else None

    def _variable(self, variable: Value) -> Value | None:
        """A variable by the place: the sum of its digits."""
        total: Value | None = None
        for weight, part in self._digits(variable, 1, self.nest.sizes[variable]):
            if part is None:
                return None
            scaled = self._times(part, weight)
            total = scaled if total is None else self.builder.insert(arith.AddOp(total, scaled)).result
        return total

    def _quotient(self, op: Operation) -> Value | None:
        """A quotient or a remainder of a variable, of which only some digits are needed."""
        if not isinstance(op, (arith.FloorDivOp, arith.FloorModOp)) or op.lhs not in self.nest.sizes:
            return None
        number, size = arith.constant_of(op.rhs), self.nest.sizes[op.lhs]
        if not isinstance(number, int) or number < 1 or size % number:
            return None
        low, high = (number, size) if isinstance(op, arith.FloorDivOp) else (1, number)
        total: Value | None = None
        for weight, part in self._digits(op.lhs, low, high):
            if part is None:
                return None
            scaled = self._times(part, weight // low)
            total = scaled if total is None else self.builder.insert(arith.AddOp(total, scaled)).result
        return total

    def _sum(self, value: Value, at: Operation) -> Value | None:
        """A sum in which digits count as much for it as for the place, times a number: that of the index there."""
        if not isinstance(value.op, (arith.AddOp, arith.SubOp)) or value.dtype != "int32":
            return None
        terms = list(_terms(value, 1))
        varying = [each for each in terms if self.nest._varies(each[0], set(self.nest.sizes))]
        variables = [each for each in self.nest.sizes if any(self.nest._varies(term, {each}) for term, _ in varying)]
        zeros: dict[Value, int] = dict.fromkeys(variables, 0)

        def number(at: Mapping[Value, int]) -> int | None:
            numbers = [_number(term, at) for term, _ in varying]
            if None in numbers:
                return None
            return sum(sign * each for (_, sign), each in zip(varying, numbers, strict=True) if each is not None)

        base, factors, steps = number(zeros), dict[int, int](), dict[_Digit, int]()
        if base is None or len(varying) < 2 or prod(self.nest.sizes[each] for each in variables) > _MOST_POINTS:
            return None
        for digit in [digit for each in variables for digit in _digits(each, self.nest.sizes[each])]:
            one, found = number({**zeros, digit.variable: digit.weight}), self.known.get((digit.variable, digit.weight))
            if one is None or one == base:
                continue
            if (
                found is None
                or (one - base) % found[1]
                or factors.setdefault(found[0], (one - base) // found[1]) * found[1] != one - base
            ):
                return None
            steps[digit] = one - base
        for axis in factors:  # all digits of the axis
            wanted = {key for key, (where, _) in self.known.items() if where == axis}
            if not wanted <= {(digit.variable, digit.weight) for digit in steps}:
                return None
        for point in product(*(range(self.nest.sizes[each]) for each in variables)):
            here = dict(zip(variables, point, strict=True))
            sum_ = sum(step * (here[digit.variable] // digit.weight % digit.size) for digit, step in steps.items())
            if number(here) != base + sum_:
                return None
        made = self.builder.constant(base, INT32)
        for term, sign in terms:
            if (term, sign) not in varying:
                other = self.value(term, at)
                if other is None:
                    return None
                kind = arith.AddOp if sign > 0 else arith.SubOp
                made = self.builder.insert(kind(made, other)).result
        for axis, factor in factors.items():
            made = self.builder.insert(arith.AddOp(made, self._times(self.args[axis], factor))).result
        return made

    def _digits(self, variable: Value, low: int, high: int) -> list[tuple[int, Value | None]]:
        """The digits from weight `low` to below `high`, with neighbours that are so in the place, too, as one."""
        runs: list[list[int]] = []  # weight, axis, unit, size
        for digit in _digits(variable, self.nest.sizes[variable]):
            if not low <= digit.weight < high:
                continue
            found = self.known.get((variable, digit.weight))
            if found is None:
                return [(1, None)]
            axis, unit = found
            if runs and runs[-1][1] == axis and runs[-1][2] * runs[-1][3] == unit:
                runs[-1][3] *= digit.size
            else:
                runs.append([digit.weight, axis, unit, digit.size])
        made: list[tuple[int, Value | None]] = []
        for weight, axis, unit, size in runs:
            part = self.args[axis]
            if unit > 1:
                part = self.builder.insert(arith.FloorDivOp(part, self.builder.constant(unit, INT32))).result
            part = self.builder.insert(arith.FloorModOp(part, self.builder.constant(size, INT32))).result
            made.append((weight, part))
        return made or [(1, self.builder.constant(0, INT32))]

    def _times(self, value: Value, factor: int) -> Value:
        if factor == 1:
            return value
        return self.builder.insert(arith.MulOp(value, self.builder.constant(factor, INT32))).result


def _terms(value: Value, sign: int) -> Iterator[tuple[Value, int]]:
    """The terms of a sum, each with its sign."""
    if isinstance(value.op, (arith.AddOp, arith.SubOp)):
        yield from _terms(value.op.lhs, sign)
        yield from _terms(value.op.rhs, sign if isinstance(value.op, arith.AddOp) else -sign)
    else:
        yield value, sign


def _digits(variable: Value, size: int) -> list[_Digit]:
    """Bits, as far as the size has them as factors, and the rest."""
    made, weight = [], 1
    while size % 2 == 0 and size > 1:
        made.append(_Digit(variable, weight, 2))
        weight, size = 2 * weight, size // 2
    return [*made, _Digit(variable, weight, size)] if size > 1 else made


def _comes_before(store: tile.StoreOp, load: Operation) -> bool:
    """Whether a store stands before a load in its own region or one around that."""
    around: Operation | None = load
    while around is not None and around.parent is not store.parent:
        around = around.parent_op
    return around is not None and store.order < around.order


def _alike(one: Sequence[Value], other: Sequence[Value]) -> bool:
    return all(_key(a) == _key(b) for a, b in zip(one, other, strict=True))


def _key(value: Value) -> object:
    op = value.op
    return value if op is None or op.has_effects else (op.signature, *map(_key, op.operands))


def _number(value: Value, known: Mapping[Value, int]) -> int | None:
    """An index at a point."""
    if value in known:
        return known[value]
    number = arith.constant_of(value)
    if number is not None:
        return int(number)
    op = value.op
    if not isinstance(op, arith.BinaryOp) or value.shape:
        return None
    numbers = [_number(each, known) for each in op.operands]
    if None in numbers:
        return None
    try:
        return int(op.compute(*numbers))
    except ArithmeticError:
        return None


def dissolve(threads: tile.ParallelOp) -> None:
    """Put the body of a T.Parallel over threads in its place, if nothing in it differs from thread to thread."""
    for arg in threads.body.args:
        for user in list(arg.uses):
            _erase_dead(user)
    kinds = {op.name for op in threads.body.walk()}
    if any(arg.uses for arg in threads.body.args) or any(name.startswith("thread.") for name in kinds):
        return
    for op in list(threads.body):
        if not op.is_terminator:
            op.move_before(threads)
    threads.erase()


def _erase_dead(op: Operation) -> None:
    if not op.has_effects and op.parent is not None:
        for value in op.results:
            for user in list(value.uses):
                _erase_dead(user)
        if not op.is_used:
            op.erase()
