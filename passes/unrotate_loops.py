"""What a turn of a loop computes for the next one, as in pipelines by hand, is computed in the turn that uses it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiledsl.analysis.affine import INDEX_DTYPES, form_interval, linear_form
from tiledsl.analysis.dependence import ancestors, handed_on, is_made_in, reached, read_by
from tiledsl.analysis.implications import Known
from tiledsl.analysis.linear import LinearForm, Reader, constant_form, single_form
from tiledsl.analysis.picks import pick_of
from tiledsl.analysis.ranges import Ranges, dtype_interval
from tiledsl.analysis.same_values import Written
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import with_shape
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.dce import erase_unused, is_removable
from tiledsl.passes.index_arithmetic import materialize

DEPTH = 2  # of a loop that loads a turn's tiles in the one before


@dataclass(frozen=True)
class UnrotateLoops(Pass):
    """Compute in each turn what the turn before has prepared for it, and drop what prepares the first one.

    Before:  %a0 = tile.load %A[%rows]                      After:  scf.for %c0, %n, %c1 (%k) {num_stages = 2} {
             %s0 = tensor.dot %q, %a0, %zero                          %start = arith.mul %k, %c64
             scf.for %c0, %n, %c1[%a0, %s0] (%k, %a, %s) {            %p = arith.add %start, %rows
               use(%a, %s)                                            %a = tile.load %A[%p]
               %more = arith.cmp %k, %n_minus_1                       %s = tensor.dot %q, %a, %zero
               %a1, %s1 = scf.if %more {                              use(%a, %s)
                 %a2 = tile.load %A[(%k + 1) * 64 + %rows]          }
                 %s2 = tensor.dot %q, %a2, %zero
                 scf.yield [%a2, %s2]
               } { scf.yield [%a, %s] }
               scf.yield [%a1, %s1]
             }

    The inverse of software pipelining. A carried tile is taken for one of the turn if its next value is computed from
    the loop's index alone, in all turns that another one follows, and its first value as that of a turn before the
    first. The same operations run on the same values; Triton's pipeliner and `schedule-loops` choose what is loaded and
    multiplied ahead. Loops without products are left alone, for nothing else would pipeline them, and so are loops that
    write, that use such a tile behind their last turn, or that would load one twice.

    A tile that a loop loads in each n-th turn, and only keeps for what follows, is loaded behind it: where it is used.
    Needs:   promote-buffers; cse, for equal conditions to be one value.
    """

    name = "unrotate-loops"
    enabled: bool = True

    def run(self, program: Program) -> None:
        loops = of_kinds(program.root.walk(), scf.ForOp) if self.enabled else []
        ranges = Ranges(program.root)
        loops = [loop for loop in loops if of_kinds(loop.body.walk(), tensor.DotOp)]
        done = [_unrotate(loop, ranges) for loop in loops]
        kept = [each for loop in loops for each in _only_kept(loop, ranges)]
        for each in kept:
            each.load_behind()
        if any(done) or kept:
            canonicalize(program.root, CANONICAL_PATTERNS)
            for kernel in tile.kernels(program.root):
                erase_unused(kernel.body, is_removable)


def _unrotate(loop: scf.ForOp, ranges: Ranges) -> bool:
    """Whether there was something to move, tiles that are loaded among it."""
    step = constant_of(loop.step)
    if not isinstance(step, int) or step < 1 or any(map(_writes, loop.body.walk())):
        return False
    turn = _Turn(loop, step, Known.of_distance(loop.index, loop.upper, step + 1, ranges))
    prepared: dict[Value, Value] = {}
    others: list[Value] = []
    for arg, init, after, out in zip(loop.iter_args, loop.inits, loop.yielded, loop.results, strict=True):
        if arg.shape and turn.name(init) == turn.name(after) and (not out.uses or turn.is_made_behind(after, out)):
            prepared[arg] = turn.source(after)
        else:
            others.append(after)
    sources = turn.made_from(prepared.values())
    tiles = of_kinds(sources, tile.LoadOp)
    if not tiles or any(op in tiles for op in turn.made_from(others)):
        return False
    at = Builder(loop.body, loop.body.first, loop.loc)
    made = {loop.index: at.insert(arith.SubOp(loop.index, loop.step)).result}
    for op in sources:
        copy = at.insert(op.clone({each: made.get(turn.source(each), turn.source(each)) for each in op.operands}))
        made.update(zip(op.results, copy.results, strict=True))
    for arg, after in prepared.items():
        out = loop.results[loop.iter_args.index(arg)]
        if out.uses:
            behind = _where_used(out, loop)
            last = behind.insert(arith.MaxOp(loop.upper, loop.lower)).result
            copies = {loop.index: behind.insert(arith.SubOp(last, loop.step)).result}
            for op in turn.made_from([after]):
                behind.insert(op.clone(copies))
            out.replace_with(copies[after])
        arg.replace_with(made[after])
    loop.set_attribute("num_stages", max(loop.num_stages, DEPTH))
    return True


@dataclass
class _Kept:
    """What a loop loads for what follows alone, in turns whose index has a remainder: `sum` % `count` == `number`."""

    turn: _Turn
    arg: Value
    loaded: Value
    sources: list[Operation]  # that compute it, of a turn's index alone
    sum: LinearForm
    count: int
    number: int

    def load_behind(self) -> None:
        loop, place = self.turn.loop, self.turn.loop.iter_args.index(self.arg)
        out, init = loop.results[place], loop.inits[place]
        at, dtype = _where_used(out, loop), loop.index.dtype
        last = single_form(loop.upper).plus(constant_form(-1))
        since = materialize(at, self.sum.substituted(loop.index, last).plus(constant_form(-self.number)), dtype)
        turns = at.insert(arith.FloorModOp(since, at.constant(self.count, since.type))).result
        index = at.insert(arith.SubOp(materialize(at, last, dtype), turns)).result
        runs = at.insert(arith.CmpOp(loop.lower, loop.upper, predicate="lt")).result
        is_one = at.insert(arith.CmpOp(loop.lower, index, predicate="le")).result
        then, orelse = Region(), Region()
        copies: dict[Value, Value] = {loop.index: index}
        for op in self.sources:
            then.insert(op.clone(copies))
        then.insert(scf.YieldOp([copies[self.loaded]]))
        orelse.insert(scf.YieldOp([init]))
        condition = at.insert(arith.AndOp(runs, is_one)).result
        made = scf.IfOp(condition, regions=[then, orelse], result_types=[out.type], names=[out.name])
        out.replace_with(at.insert(made).result)


def _only_kept(loop: scf.ForOp, ranges: Ranges) -> list[_Kept]:
    first = constant_of(loop.lower)
    if constant_of(loop.step) != 1 or not isinstance(first, int) or first < 0 or any(map(_writes, loop.body.walk())):
        return []
    turn, found = _Turn(loop, 1, Known(ranges)), []
    for arg, new, out in zip(loop.iter_args, loop.yielded, loop.results, strict=True):
        op = new.op
        if not out.uses or not isinstance(op, arith.SelectOp) or op.on_false is not arg or op.parent is not loop.body:
            continue
        kept = _kept_in(turn, arg, op)
        if kept is not None and list(arg.uses) == [op] and sum(new.uses.values()) == 1 and _may_load_behind(kept, out):
            found.append(kept)
    return found


def _kept_in(turn: _Turn, arg: Value, op: arith.SelectOp) -> _Kept | None:
    """What a select keeps in turns whose index has a remainder."""
    hit = op.condition.op
    remainder = hit.lhs.op if isinstance(hit, arith.CmpOp) and hit.predicate == "eq" else None
    if not isinstance(hit, arith.CmpOp) or not isinstance(remainder, arith.FloorModOp):
        return None
    count, number = constant_of(remainder.rhs), constant_of(hit.rhs)
    sum, index = linear_form(remainder.lhs, through_names=True), turn.loop.index
    if not isinstance(count, int) or not isinstance(number, int) or not 0 <= number < count:
        return None
    values = [value for factors in sum.terms for value in factors if value is not index]
    if sum.coefficient(index) != 1 or any(is_made_in(value, turn.loop) for value in values):
        return None
    return _Kept(turn, arg, op.on_true, turn.made_from([op.on_true]), sum, count, number)


def _may_load_behind(kept: _Kept, out: Value) -> bool:
    """Whether it is loaded, of the index alone, and memory is the same where it is used."""
    return any(load.out.shape for load in of_kinds(kept.sources, tile.LoadOp)) and kept.turn.is_made_behind(
        kept.loaded, out
    )


def _reads_the_same(sources: Iterable[Operation], loop: scf.ForOp, out: Value) -> bool:
    """Whether nothing writes what operations of a loop read, from its end to where one of its results is used."""
    between = [Written(each) for each in _between(loop, _where_used(out, loop))]
    return not any(load.buffer in written for load in of_kinds(sources, tile.LoadOp) for written in between)


def _where_used(value: Value, behind: Operation) -> Builder:
    """The place behind an operation, as deep in branches as it can be, that comes before all uses of a value."""
    region = behind.parent
    while True:
        assert region is not None, "uses stand behind it"
        around = {each for user in value.uses for each in (user, *ancestors(user)) if each.parent is region}
        first = min(around, key=lambda each: each.order)
        sides = {each.parent for user in value.uses for each in (user, *ancestors(user)) if each.parent_op is first}
        if len(around) > 1 or not isinstance(first, scf.IfOp) or len(sides) != 1:
            return Builder.at(first)
        (region,) = sides


def _between(behind: Operation, place: Builder) -> list[Operation]:
    """What runs from behind an operation to a place there."""
    found: list[Operation] = []
    region, end = place.region, place.before
    while region is not behind.parent:
        found += [each for each in region if end is None or each.order < end.order]
        end, around = region.parent, region.parent
        assert around is not None and around.parent is not None, "the place stands in branches behind it"
        region = around.parent
    return found + [each for each in region if behind.order < each.order and (end is None or each.order < end.order)]


def _numbers(op: tensor.ReduceOp) -> Value:
    """The number of each element."""
    return tensor.IotaOp(axis=0, result_types=[with_shape(op.out.shape, "int32")]).out


def _part_of(op: tensor.ReduceOp) -> tuple[Value, LinearForm] | None:
    """Of a row that is picked of a reshaped vector: the vector, and which of its elements they are."""
    pick = pick_of(op) if op.axis == 0 and len(op.source.shape) == 2 else None
    row = None if pick is None else constant_of(pick.place)
    whole = None if pick is None else pick.tile.op
    if not isinstance(whole, tensor.ReshapeOp) or len(whole.source.shape) != 1 or not isinstance(row, int):
        return None
    rows, columns = op.source.shape
    if not 0 <= row < rows:
        return None
    return whole.source, LinearForm({(_numbers(op),): 1}).plus(constant_form(row * columns))


def _writes(op: Operation) -> bool:
    return bool(op.effects & (Effect.WRITE | Effect.ORDERED))


@dataclass
class _Turn:
    """What values are in a turn that another one follows, and, by their names, in the one before the first."""

    loop: scf.ForOp
    step: int
    follows: Known
    names: dict[Value, int] = field(default_factory=dict)
    numbers: dict[object, int] = field(default_factory=dict)

    def source(self, value: Value) -> Value:
        """What a value is, of the branches that are taken."""
        while isinstance(value.op, scf.IfOp) and self._is_inside(value.op) and self.follows.implies(value.op.condition):
            value = value.op.then.terminator.operands[value.op.results.index(value)]
        return value

    def made_from(self, values: Iterable[Value]) -> list[Operation]:
        """The operations of the loop that compute values, in order."""

        def operands(value: Value) -> Iterable[Value]:
            op = value.op
            if op is None or not self._is_inside(op):
                return []
            if isinstance(op, scf.IfOp):
                return [op.condition, *map(self.source, handed_on(value))]
            return [*map(self.source, read_by(op))]

        found = {value.op for value in reached(values, operands)}
        return [op for op in self.loop.body.walk() if op in found]

    def is_made_behind(self, value: Value, out: Value) -> bool:
        """Whether a value of the last turn can be made behind the loop, where it is used: it is made in all turns in
        one way, and memory is the same there."""
        sources = self.made_from([value])
        given = {each for op in sources for each in op.operands}
        return (
            self.step == 1
            and given.isdisjoint(self.loop.iter_args)
            and all(op.parent is self.loop.body and not op.regions for op in sources)
            and _reads_the_same(sources, self.loop, out)
        )

    def name(self, value: Value) -> int:
        """Equal for values that are computed alike."""
        value = self.source(value)
        if value not in self.names:
            self.names[value] = self._number(self._sum(value) if value.dtype in INDEX_DTYPES else self._term(value))
        return self.names[value]

    def _number(self, computed: object) -> int:
        return self.numbers.setdefault(computed, len(self.numbers))

    def _sum(self, value: Value) -> object:
        """An integer by its terms: of the index, a step before the first."""
        form = Reader().read(value)
        assert form is not None, "what is no sum is a term"
        before = single_form(self.loop.lower).plus(constant_form(-self.step))
        return value.type, self._terms(self._decided(form.substituted(self.loop.index, before)))

    def _terms(self, form: LinearForm) -> object:
        return frozenset(((*map(self._term, factors),), number) for factors, number in form.terms.items())

    def _decided(self, form: LinearForm) -> LinearForm:
        """A sum of one minimum with a number, as of what is less in the turn before the first."""
        ((factors, number), *others) = form.terms.items() or [((), 0)]
        op = factors[0].op if len(factors) == 1 else None
        most = constant_of(op.rhs) if isinstance(op, arith.MinOp) else None
        if others or number != 1 or not isinstance(op, arith.MinOp) or not isinstance(most, int):
            return form
        less, limits = Reader().read(op.lhs), dtype_interval(op.lhs.dtype)
        assert less is not None, "what is no sum is a term"
        less = less.substituted(self.loop.index, single_form(self.loop.lower).plus(constant_form(-self.step)))
        ends = form_interval(less, self.follows.ranges, limits, lambda factors, number: False)
        return less if limits.lo <= ends.lo and ends.hi <= most else form

    def _term(self, value: Value) -> object:
        """How a value is computed; the value itself where nothing is known of that."""
        op = value.op
        if op is None or op.regions:
            return value
        if op.has_effects and not (isinstance(op, tile.LoadOp) and self._reads_the_same(op)):
            return value
        if isinstance(op, tensor.GatherOp) and len(op.source.shape) == 1:
            return tensor.GatherOp, self.name(op.source), self.name(op.indices)
        if isinstance(op, tensor.ReduceOp) and (part := _part_of(op)) is not None:
            source, form = part
            return tensor.GatherOp, self.name(source), self._number((_numbers(op).type, self._terms(form)))
        return (op.signature, op.results.index(value), *map(self.name, op.operands))

    def _reads_the_same(self, op: tile.LoadOp) -> bool:
        """Whether nothing writes what is loaded from there to the end of the loop, which writes nothing."""
        if self._is_inside(op):
            return True
        region = self.loop.parent
        assert region is not None, "a loop of a kernel"
        between = [each for each in region if op.order < each.order < self.loop.order]
        return op.parent is region and not any(op.buffer in Written(each) for each in between)

    def _is_inside(self, op: Operation) -> bool:
        return self.loop in ancestors(op)
