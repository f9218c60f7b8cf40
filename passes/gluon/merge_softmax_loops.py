"""Adjacent loops over parts of one range, equal but for one value, become one loop. Part of select-emitter.

    for t in [a, b): ... scores ...                    for t in [0, (b - a) + (d - c)):
    for t in [c, d): ... mask(scores) ...      ==>         x = mask(scores) if t >= b - a else scores
                                                           ... x ...

The skewed loop of the Gluon emitter appears twice in a kernel, for the first tile and for the others. With one loop
instead of several, the kernel is shorter and needs fewer registers for values passed from loop to loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.analysis.dependence import reached
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, scf
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.index_arithmetic import insert_or_fold
from tiledsl.passes.tile_values import both


@dataclass(frozen=True)
class _Difference:
    """Where two bodies differ: the plain one's value, the other's, and the operands of the plain one that use it."""

    plain: Value
    other: Value
    places: frozenset[tuple[Operation, int]]


class _Comparison:
    """Two bodies side by side: which values correspond, and the one place where they differ."""

    def __init__(self, plain: scf.ForOp, other: scf.ForOp) -> None:
        self.plain, self.other = plain, other
        self.alike: dict[tuple[Value, Value], bool] = {}
        self.pairs: dict[Value, Value] = {}  # value of the other body -> what is alike in the plain one
        self.found: set[tuple[Value, Value]] = set()
        self.places: set[tuple[Operation, int]] = set()
        self.pairs.update(zip(other.body.args, plain.body.args, strict=True))
        for b in other.body:
            for a in plain.body:  # the first of several that are alike
                for x, y in zip(a.results, b.results):
                    self._is_alike(x, y)
        list(reached([(plain.body.terminator, other.body.terminator)], self._compare))

    def difference(self) -> _Difference | None:
        """None if the bodies are equal. Raises ValueError if they differ in more than one value."""
        if not self.found:
            return None
        if len(self.found) > 1:
            raise ValueError("the bodies differ in more than one value")
        ((plain, other),) = self.found
        return _Difference(plain, other, frozenset(self.places))

    def _is_alike(self, a: Value, b: Value) -> bool:
        key = (a, b)
        if key not in self.alike:
            self.alike[key] = self._equal(a, b)
            if self.alike[key]:
                self.pairs.setdefault(b, a)
        return self.alike[key]

    def _equal(self, a: Value, b: Value) -> bool:
        if a is b:
            return True
        if a.owner is self.plain.body and b.owner is self.other.body:
            return self.plain.body.args.index(a) == self.other.body.args.index(b)
        if a.op is None or b.op is None or not _same_kind(a.op, b.op, self.plain, self.other):
            return False
        return all(self._is_alike(x, y) for x, y in zip(a.op.operands, b.op.operands, strict=True))

    def _compare(self, pair: tuple[Operation, Operation]) -> list[tuple[Operation, Operation]]:
        """Note where operands of two operations differ; those that compute such operands, to be compared too."""
        a, b = pair
        makers: list[tuple[Operation, Operation]] = []
        for place, (x, y) in enumerate(zip(a.operands, b.operands, strict=True)):
            if self._is_alike(x, y):
                continue
            if x.op is not None and y.op is not None and _same_kind(x.op, y.op, self.plain, self.other):
                makers.append((x.op, y.op))
            else:
                self.found.add((x, y))
                self.places.add((a, place))
        return makers


def _same_kind(a: Operation, b: Operation, plain: scf.ForOp, other: scf.ForOp) -> bool:
    """Whether two operations differ at most in their operands; operands from outside of the bodies must be equal
    constants."""
    if a.signature != b.signature or a.regions:
        return False
    return (a.parent is plain.body and b.parent is other.body) or isinstance(a, arith.ConstantOp)


def merge_softmax_loops(loops: Sequence[scf.ForOp]) -> bool:
    """Replace loops, each of which passes its values to the next, by one loop; return whether that was possible."""
    plan = next(filter(None, (_plan(loops, plain) for plain in loops)), None)
    if plan is None:
        return False
    _Merge(loops, *plan).run()
    return True


_Plan = tuple[scf.ForOp, _Comparison, _Difference, frozenset[int]]


def _plan(loops: Sequence[scf.ForOp], plain: scf.ForOp) -> _Plan | None:
    """Which loops equal the plain one, and how the others, all alike, differ from it."""
    chosen: tuple[_Comparison, _Difference] | None = None
    others: set[int] = set()
    for number, loop in enumerate(loops):
        try:
            comparison = _Comparison(plain, loop)
            difference = comparison.difference()
            if difference is None:
                continue
            if chosen is None:
                chosen = comparison, difference
            elif _Comparison(chosen[0].other, loop).difference() is not None:
                return None
        except ValueError:
            return None
        others.add(number)
    if chosen is None or not _can_choose(*chosen):
        return None
    return plain, *chosen, frozenset(others)


def _can_choose(comparison: _Comparison, difference: _Difference) -> bool:
    """Whether both bodies compute the plain value, and can compute what the other one needs before its first use."""
    plain, users = difference.plain, [op for op, _ in difference.places]
    if plain.type != difference.other.type or plain.op is None or plain not in comparison.pairs.values():
        return False
    order = {op: number for number, op in enumerate(plain.op.parent or ())}
    first = min(order.get(user, -1) for user in users)
    needed = [comparison.pairs[value] for op in _own(comparison, difference.other) for value in op.operands
              if value in comparison.pairs]  # fmt: skip
    return all(order.get(value.op, -1) < first for value in (*needed, plain) if value.op is not None)


def _own(comparison: _Comparison, value: Value) -> list[Operation]:
    """The operations of the other body, in order, that compute a value and have no counterpart in the plain one."""
    body = comparison.other.body

    def computed_by(value: Value) -> list[Operation]:
        op = value.op
        return [op] if op is not None and op.parent is body and value not in comparison.pairs else []

    own = set(reached(computed_by(value), lambda op: [one for operand in op.operands for one in computed_by(operand)]))
    return [op for op in body if op in own]


class _Merge:
    """One merge: the plain loop's body, over the tiles of all loops."""

    def __init__(
        self, loops: Sequence[scf.ForOp], plain: scf.ForOp, comparison: _Comparison, difference: _Difference,
        others: frozenset[int],
    ) -> None:  # fmt: skip
        self.loops, self.plain = loops, plain
        self.comparison, self.difference, self.others = comparison, difference, others

    def run(self) -> None:
        first, last = self.loops[0], self.loops[-1]
        at = Builder.at(last)
        ends, total = self._ends(at)
        body = Region([INT32, *(value.type for value in first.inits)], [arg.name for arg in self.plain.body.args])
        merged = scf.ForOp(
            at.constant(0, INT32), total, at.constant(1, INT32), list(first.inits),
            num_stages=max(loop.num_stages for loop in self.loops), regions=[body],
            names=[value.name for value in last.results], loc=self.plain.loc,
        )  # fmt: skip
        self._fill(body, ends)
        at.insert(merged)
        for old, new in zip(last.results, merged.results, strict=True):
            old.replace_with(new)
        for loop in reversed(self.loops):
            loop.erase()

    def _ends(self, at: Builder) -> tuple[list[Value], Value]:
        """For each loop, the number of tiles up to its end; the last is the total."""
        ranges = Ranges.around(self.loops[0])
        zero = at.constant(0, INT32)
        ends: list[Value] = []
        for before, loop in zip((None, *self.loops), self.loops):
            if before is not None and loop.lower is before.upper and ends[-1] is before.upper:
                ends.append(insert_or_fold(at, arith.MaxOp(ends[-1], loop.upper)))
                continue
            count = insert_or_fold(at, arith.SubOp(loop.upper, loop.lower))
            if not (_is_zero(loop.lower) and ranges.of(loop.upper).lo >= 0):
                count = insert_or_fold(at, arith.MaxOp(count, zero))
            ends.append(insert_or_fold(at, arith.AddOp(ends[-1], count)) if ends else count)
        return ends, ends[-1]

    def _fill(self, body: Region, ends: Sequence[Value]) -> None:
        inside = Builder(body, None, self.plain.loc)
        turn = body.args[0]
        reached = [insert_or_fold(inside, arith.CmpOp(turn, end, predicate="ge")) for end in ends[:-1]]
        mapping = dict(
            zip(self.plain.body.args, [self._tile(inside, turn, ends, reached), *body.args[1:]], strict=True)
        )
        chosen: Value | None = None
        for op in self.plain.body:
            places = [place for user, place in self.difference.places if user is op]
            if places and chosen is None:
                chosen = self._choose(inside, mapping, self._is_other(inside, reached))
            copy = inside.insert(op.clone(mapping))
            copy.loc = op.loc
            if places:
                assert chosen is not None
                copy.set_operands([chosen if n in places else value for n, value in enumerate(copy.operands)])

    def _tile(self, at: Builder, turn: Value, ends: Sequence[Value], reached: Sequence[Value]) -> Value:
        """The tile of an iteration: each loop starts at its own lower bound."""
        tile = insert_or_fold(at, arith.AddOp(turn, self.loops[0].lower))
        for loop, end, before, now in zip(self.loops[1:], ends, self.loops, reached):
            if loop.lower is before.upper and end is before.upper:
                continue  # it goes on where the one before ends, which counts from 0
            moved = insert_or_fold(at, arith.AddOp(turn, insert_or_fold(at, arith.SubOp(loop.lower, end))))
            tile = at.insert(arith.SelectOp(now, moved, tile)).result
        return tile

    def _is_other(self, at: Builder, reached: Sequence[Value]) -> Value:
        """Whether an iteration belongs to a loop that differs from the plain one."""
        condition: Value | None = None
        for number in sorted(self.others):
            inside = reached[number - 1] if number else None
            if number < len(reached):
                before = at.insert(arith.NotOp(reached[number])).result
                inside = both(at, inside, before)
            assert inside is not None
            condition = inside if condition is None else at.insert(arith.OrOp(condition, inside)).result
        assert condition is not None
        return condition

    def _choose(self, at: Builder, mapping: dict[Value, Value], condition: Value) -> Value:
        """The differing value, as the loop to which the iteration belongs computes it."""
        then, orelse = Region(), Region()
        copied = {other: mapping.get(plain, plain) for other, plain in self.comparison.pairs.items()}
        for op in _own(self.comparison, self.difference.other):
            copy = op.clone(copied)
            copy.loc = op.loc
            then.insert(copy)
        other = self.difference.other  # not copied, if it is computed outside of the loop
        then.insert(scf.YieldOp([copied.get(other, other)]))
        plain = self.difference.plain
        orelse.insert(scf.YieldOp([mapping[plain]]))
        made = scf.IfOp(condition, regions=[then, orelse], result_types=[plain.type], names=[plain.name])
        return at.insert(made).result


def _is_zero(value: Value) -> bool:
    return constant_of(value) == 0
