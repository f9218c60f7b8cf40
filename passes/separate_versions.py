"""Versions of a tile that loops carry, picked by an index, become values of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.dependence import handed_on, is_made_in, reached
from tiledsl.analysis.linear import LinearForm, constant_form, single_form
from tiledsl.analysis.picks import Pick, pick_of, place_of
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, scf, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import Type, is_float, with_shape
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.index_arithmetic import materialize
from tiledsl.passes.tile_values import compared, iota, reshaped, selected

MOST = 4  # versions


@dataclass(frozen=True)
class SeparateVersions(Pass):
    """Carry each version of a tile as a value of its own, where all that is done with it is to replace and pick one.

    Before:  %hit = arith.cmp %lanes, %i {predicate = "eq"}      After:  %first = arith.cmp %i, %c0 {predicate = "eq"}
             %k1 = arith.select %hit, %x, %k                              %a1 = arith.select %first, %x, %a
             %at = arith.select %hit2, %k1, %zero                         %b1 = arith.select %first, %b, %x
             %y = tensor.reduce %at {kind = "sum", axis = 0}              %y = arith.select %first2, %a1, %b1

    The scalar replacement of aggregates: a tile in registers has no index, so that a version costs an operation for
    each element of all, and a sum. What was put where it is picked is taken as it is. Indices must be known to be those
    of versions. A loop that replaces them in turn (`i % n` in turn i) and picks those of t < n turns ago carries the t
    tiles that were put there last, and chooses nothing; behind it, where it may not have run, a branch picks.
    Needs:   promote-buffers; cse, for equal places to be one value.
    """

    name = "separate-versions"
    enabled: bool = True

    def run(self, program: Program) -> None:
        if not self.enabled:
            return
        found = _webs(program.root)
        rings = [ring for web in found for ring in web.rings()]
        for ring in rings:
            ring.hold()
        if rings:
            canonicalize(program.root, CANONICAL_PATTERNS)
            found = _webs(program.root)
        for web in found:
            web.separate()
        if found:
            canonicalize(program.root, CANONICAL_PATTERNS)


def _webs(root: Operation) -> list[_Web]:
    ranges = Ranges(root)
    carried = [arg for loop in of_kinds(root.walk(), scf.ForOp) for arg in loop.iter_args]
    found: list[_Web] = []
    for arg in carried:
        if len(arg.shape) > 1 and arg.shape[0] <= MOST and not any(arg in web.members for web in found):
            web = _Web(arg, ranges)
            found += [web] if web.is_whole() else []
    return found


def _replaced_in(value: Value) -> Value | None:
    """The place of the version that a value has anew."""
    op = value.op
    if not isinstance(op, arith.SelectOp) or op.on_true.shape != (1, *value.shape[1:]):
        return None
    return place_of(op.condition, 0)


@dataclass
class _Web:
    """Values that hold the versions of one tile: what is carried, handed on, and made by replacing one version."""

    start: Value
    ranges: Ranges
    members: dict[Value, None] = field(default_factory=dict)
    picks: dict[Pick, None] = field(default_factory=dict)
    parts: dict[Value, list[Value]] = field(default_factory=dict)

    def is_whole(self) -> bool:
        """Whether nothing else is done with the versions."""
        for value in reached([self.start], self._connected):
            self.members[value] = None
            if constant_of(value) is None and not (self._is_made(value) and all(map(self._may_use(value), value.uses))):
                return False
        return all(self._is_version(pick.place) for pick in self.picks)

    def _connected(self, value: Value) -> list[Value]:
        """What a value is made of, and what is made of it."""
        if constant_of(value) is not None:
            return []
        found = handed_on(value)
        if isinstance(value.op, arith.SelectOp):
            found.append(value.op.on_false)
        for user in value.uses:
            around, handed = user.parent_op, user.operands
            if isinstance(user, scf.ForOp):
                around, handed = user, user.inits
            if isinstance(user, arith.SelectOp) and user.on_false is value:
                found.append(user.out)
            elif isinstance(user, (scf.ForOp, scf.YieldOp)) and isinstance(around, (scf.ForOp, scf.IfOp)):
                numbers = [number for number, each in enumerate(handed) if each is value]
                found += [around.results[number] for number in numbers]
                found += [around.iter_args[number] for number in numbers if isinstance(around, scf.ForOp)]
        return found

    def _is_made(self, value: Value) -> bool:
        """Whether each version of a value is known."""
        place = _replaced_in(value)
        return bool(handed_on(value)) if place is None else self._is_version(place)

    def _may_use(self, value: Value) -> Callable[[Operation], bool]:
        """Whether an operation hands a value on, replaces a version of it, or picks one."""

        def may(user: Operation) -> bool:
            if isinstance(user, arith.SelectOp) and user.on_true is value:
                picks = [pick_of(each) for each in user.out.uses if isinstance(each, tensor.ReduceOp) and not each.axis]
                self.picks |= dict.fromkeys(pick for pick in picks if pick is not None)
                return len(picks) == len(user.out.uses) and None not in picks
            if isinstance(user, arith.SelectOp):
                return user.on_false is value and _replaced_in(user.out) is not None
            handed_on = isinstance(user, scf.YieldOp) and isinstance(user.parent_op, (scf.ForOp, scf.IfOp))
            return handed_on or isinstance(user, scf.ForOp)

        return may

    def _is_version(self, place: Value) -> bool:
        found = self.ranges.of(place)
        return found.lo >= 0 and found.hi < self.start.shape[0]

    def rings(self) -> list[_Ring]:
        """The loops that replace the versions in turn."""
        loops = {value.owner.parent: value for value in self.members if isinstance(value.owner, Region)}
        rings = [_Ring(loop, arg, self.picks) for loop, arg in loops.items() if isinstance(loop, scf.ForOp)]
        return [ring for ring in rings if ring.is_in_turn()]

    # Rewriting

    def separate(self) -> None:
        """Give each version a value."""
        numbers: dict[Operation, list[int]] = {}
        for value in self.members:
            if isinstance(value.op, (scf.ForOp, scf.IfOp)):
                numbers.setdefault(value.op, []).append(value.op.results.index(value))
        for op, mine in numbers.items():
            for number in mine:
                self._name(op.results[number], [Value(self._type, op) for _ in self._versions])
                op.results += self.parts[op.results[number]]
                if isinstance(op, scf.ForOp):
                    self._name(op.iter_args[number], [op.body.add_arg(self._type) for _ in self._versions])
        for value in self.members:
            element = constant_of(value)
            if element is not None:
                assert value.op is not None
                self._name(value, [Builder.at(value.op).constant(element, self._type)] * len(self._versions))
        made = [value for value in self.members if isinstance(value.op, arith.SelectOp)]
        while made:
            made = [value for value in made if not self._replace(value)]
        for op, mine in numbers.items():
            for region in op.regions:
                values = region.terminator.operands
                region.terminator.set_field("values", [*values, *self._parts_of([values[number] for number in mine])])
            if isinstance(op, scf.ForOp):
                op.set_field("inits", [*op.inits, *self._parts_of([op.inits[number] for number in mine])])
        for pick in self.picks:
            self._pick(pick)

    @property
    def _type(self) -> Type:
        return with_shape(self.start.shape[1:], self.start.dtype)

    @property
    def _versions(self) -> range:
        return range(self.start.shape[0])

    def _name(self, value: Value, parts: list[Value]) -> None:
        self.parts[value] = parts
        for part in parts:
            part.name = part.name or value.name

    def _parts_of(self, values: Sequence[Value]) -> list[Value]:
        return [part for value in values for part in self.parts[value]]

    def _replace(self, value: Value) -> bool:
        """Replace the version that a value has anew, if what it is made of has its parts."""
        op, place = value.op, _replaced_in(value)
        assert isinstance(op, arith.SelectOp) and place is not None, "is_whole has looked"
        if op.on_false not in self.parts:
            return False
        at = Builder.at(op)
        new = reshaped(at, op.on_true, value.shape[1:])
        hits = [compared(at, place, "eq", at.constant(number, place.type)) for number in self._versions]
        olds = self.parts[op.on_false]
        self._name(value, [selected(at, hit, new, old) for hit, old in zip(hits, olds, strict=True)])
        return True

    def _pick(self, pick: Pick) -> None:
        """What stands in a version: what it has been replaced by, or what was there before another one was."""
        at, value = Builder.at(pick.reduction), pick.tile
        while (place := _replaced_in(value)) is not None and _differ(place, pick.place):
            value = value.op.operands[-1]  # type: ignore[union-attr]
        if place is pick.place:
            found = reshaped(at, value.op.operands[1], value.shape[1:])  # type: ignore[union-attr]
        else:
            *others, found = self.parts[value]
            for number, each in reversed([*enumerate(others)]):
                hit = compared(at, pick.place, "eq", at.constant(number, pick.place.type))
                found = selected(at, hit, each, found)
        pick.reduction.out.replace_with(found)


@dataclass
class _Ring:
    """A loop that replaces one version in each turn, each after the one before, and picks those of some turns ago."""

    loop: scf.ForOp
    arg: Value  # the versions in its body
    picks: Iterable[Pick]
    ages: dict[Pick, int] = field(default_factory=dict)  # how many turns ago what is picked was put there
    form: LinearForm = field(default_factory=LinearForm)  # whose remainder is the place that is replaced

    def is_in_turn(self) -> bool:
        """Whether it does so, and nothing else is done with the versions there or behind it."""
        loop, arg, new, out = self.loop, self.arg, self._new, self._out
        place, first = _replaced_in(new), constant_of(loop.lower)
        if place is None or not isinstance(new.op, arith.SelectOp) or new.op.on_false is not arg:
            return False
        if new.op.parent is not loop.body or constant_of(loop.step) != 1 or not isinstance(first, int) or first < 0:
            return False
        form = _remainder_of(place, self._count)
        values = [] if form is None else [value for factors in form.terms for value in factors]
        if form is None or any(is_made_in(value, loop) for value in values if value is not loop.index):
            return False
        self.form = form
        behind = form.substituted(loop.index, linear_form(loop.upper, through_names=True).plus(constant_form(-1)))
        for tile, at, since in ((arg, form, 1), (new, form, 0), (out, behind, 0)):
            picks = [pick for pick in self.picks if pick.tile is tile]
            if len(tile.uses) != len(picks) + (tile is not out):
                return False
            for pick in picks:
                age = self._age(pick, at, since)
                if age is None:
                    return False
                self.ages[pick] = age
        return max(self._held, default=0) < self._count and bool(self.ages)

    def _age(self, pick: Pick, at: LinearForm, since: int) -> int | None:
        """How many turns ago a version was put where it is picked, `since` at least, if `at` has the place of now."""
        form, step = _remainder_of(pick.place, self._count), self.form.coefficient(self.loop.index)
        between = None if form is None else at.plus(form, -1)
        if between is None or not between.is_constant:
            return None
        ages = range(since, since + self._count)
        return next((age for age in ages if (between.constant - age * step) % self._count == 0), None)

    @property
    def _held(self) -> list[int]:
        """For how many turns each is held that a turn puts there; what is picked behind the loop a turn longer."""
        return [age + (pick.tile is self._out) for pick, age in self.ages.items()]

    def hold(self) -> None:
        """Carry what the last turns have put there, as many as are picked, in place of the versions."""
        loop, out, new = self.loop, self._out, self._new.op
        before, init = Builder.at(loop), loop.inits[loop.iter_args.index(self.arg)]
        assert isinstance(new, arith.SelectOp), "is_in_turn has looked"
        type = with_shape(init.shape[1:], init.dtype)
        put = reshaped(Builder.at(new), new.on_true, type.shape)
        held, inits, kept = [put], [], []
        for age in range(1, max(self._held) + 1):
            at = self.form.substituted(loop.index, single_form(loop.lower).plus(constant_form(-age)))
            inits.append(_picked(before, init, self._place(before, at)))
            held.append(loop.body.add_arg(type, self.arg.name))
            kept.append(Value(type, loop, out.name))
        loop.set_field("inits", [*loop.inits, *inits])
        loop.body.terminator.set_field("values", [*loop.yielded, *held[: len(inits)]])
        loop.results += kept
        for pick, age in self.ages.items():
            found = held[age]
            if pick.tile is out:
                here = Builder.at(pick.reduction)
                then, orelse = Region(), Region()
                then.insert(scf.YieldOp([kept[age]]))
                inside = Builder(orelse, None, pick.reduction.loc)
                inside.insert(scf.YieldOp([_picked(inside, init, pick.place)]))
                runs = compared(here, loop.lower, "lt", loop.upper)
                made = scf.IfOp(runs, regions=[then, orelse], result_types=[type], names=[pick.reduction.out.name])
                found = here.insert(made).result
            pick.reduction.out.replace_with(found)

    def _place(self, at: Builder, form: LinearForm) -> Value:
        value = materialize(at, form, self.loop.index.dtype)
        return at.insert(arith.FloorModOp(value, at.constant(self._count, value.type))).result

    @property
    def _new(self) -> Value:
        return self.loop.yielded[self.loop.iter_args.index(self.arg)]

    @property
    def _out(self) -> Value:
        return self.loop.results[self.loop.iter_args.index(self.arg)]

    @property
    def _count(self) -> int:
        return self.arg.shape[0]


def _remainder_of(place: Value, count: int) -> LinearForm | None:
    """The sum of which a place is the remainder by the number of versions."""
    number = constant_of(place)
    if number is not None:
        return constant_form(int(number))
    op = place.op
    is_remainder = isinstance(op, arith.FloorModOp) and constant_of(op.rhs) == count
    return linear_form(op.operands[0], through_names=True) if op is not None and is_remainder else None


def _picked(at: Builder, tile: Value, place: Value) -> Value:
    """The version of a tile at a place: what it was replaced by, if that is known."""
    type, number, replaced = with_shape(tile.shape[1:], tile.dtype), constant_of(tile), _replaced_in(tile)
    if number is not None:
        return at.constant(number, type)
    if replaced is not None and replaced.type == place.type and isinstance(tile.op, arith.SelectOp):
        new, old = reshaped(at, tile.op.on_true, type.shape), _picked(at, tile.op.on_false, place)
        return selected(at, compared(at, place, "eq", replaced), new, old)
    rank, none = len(tile.shape), -0.0 if is_float(tile.dtype) else arith.as_constant(0, tile.dtype)
    hit = compared(at, iota(at, rank, 0, tile.shape[0], place.dtype), "eq", place)
    chosen = selected(at, hit, tile, at.constant(none, with_shape((), tile.dtype)))
    return at.insert(tensor.ReduceOp(chosen, kind="or" if tile.dtype == "bool" else "sum", axis=0)).out


def _differ(one: Value, other: Value) -> bool:
    """Whether two remainders of a division are never the same."""
    a, b = one.op, other.op
    if not isinstance(a, arith.FloorModOp) or not isinstance(b, arith.FloorModOp):
        return False
    by = constant_of(a.rhs)
    between = linear_form(a.lhs, through_names=True).plus(linear_form(b.lhs, through_names=True), -1)
    return by is not None and by == constant_of(b.rhs) and between.is_constant and bool(between.constant % by)
