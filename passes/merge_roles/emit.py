"""Writes an order of the roles' steps as operations, without barriers and roles."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tiledsl.analysis.dependence import read_by
from tiledsl.analysis.loops import trip_count
from tiledsl.dialects import arith, scf, thread, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32
from tiledsl.passes.merge_roles.accesses import accesses_of
from tiledsl.passes.merge_roles.order import Fused, Item, Keys
from tiledsl.passes.merge_roles.roles import BARRIER_OPS, Role, Step, steps_of
from tiledsl.passes.tile_values import both

_REGISTERS = ("local", "fragment")


class Emitter:
    """`maps` has, for each role, what stands for the values of the old body."""

    def __init__(self, roles: Sequence[Role], keys: Keys, kernel: tile.KernelOp, old: Region, room: int) -> None:
        self.room = room  # bytes of shared memory
        self.roles, self.keys, self.kernel = roles, keys, kernel
        self.old = old
        self.maps: list[dict[Value, Value]] = [{} for _ in roles]
        self.inside: dict[Value, Operation] = {}  # values of branches, and the branch
        self.width = 0  # of the threads that do what differs from thread to thread
        self.masked: dict[tuple[int, ...], Value] = {}  # of roles, whether a thread is one of theirs
        self.of_all: set[Operation] = set()  # what all threads do

    def emit(self, items: Sequence[Item]) -> None:
        """Replace the body of the kernel."""
        self._private_copies()
        of_threads = self.old is not self.kernel.body
        region = Region([INT32], ["tx"]) if of_threads else Region()
        if of_threads:
            (index,), (made,) = self.old.args, region.args
            self._number_threads(index, made, Builder(region, loc=self.kernel.loc))
        self._items(items, region)
        for op in reversed(list(self.old)):
            if not isinstance(op, tile.AllocOp):
                op.erase()
        if any(map(self._is_used, region.args)):
            together = tile.ParallelOp(extents=(self.width,), lockstep=True, regions=[region], loc=self.kernel.loc)
            self.kernel.body.insert(together)
            return
        for op in list(region):
            if isinstance(op, thread.BarrierOp):
                op.erase()
            else:
                self.kernel.body.insert(op.detach())

    def _is_used(self, value: Value) -> bool:
        """Whether a value is used by what is used: dead arithmetic on it goes."""
        for user in list(value.uses):
            if not user.has_effects and not self._is_used(user.result):
                user.erase()
        return bool(value.uses)

    # Threads

    def _number_threads(self, index: Value, made: Value, builder: Builder) -> None:
        users = [role for role in self.roles if _uses(role, index, shared=False)]
        if any(_uses(role, index, shared=True) for role in self.roles):
            self.width = sum(len(role.threads) for role in self.roles)
            for mapping in self.maps:
                mapping[index] = made
            some = [step.roles for role in self.roles for step in steps_of(role.program) if len(step.roles) > 1]
            for group in dict.fromkeys([*((role.number,) for role in users), *map(tuple, some)]):
                if len(group) < len(self.roles):
                    threads = [thread for number in group for thread in self.roles[number].threads]
                    self.masked[group] = _among(builder, made, sorted(threads))
            doers: dict[Operation, set[int]] = {}
            for role in self.roles:
                for step in steps_of(role.program):
                    doers.setdefault(step.op, set()).add(role.number)
            self.of_all = {op for op, numbers in doers.items() if len(numbers) == len(self.roles)}
            return
        self.width = max((len(role.threads) for role in users), default=1)
        for role in self.roles:
            first, *_ = role.threads
            if role.threads != tuple(range(first, first + len(role.threads))):
                raise TileError("the threads of a role do not follow each other", self.kernel.loc)
            offset = builder.constant(first, INT32)
            self.maps[role.number][index] = builder.insert(arith.AddOp(made, offset)).result if first else made
            if len(role.threads) < self.width:
                limit = builder.constant(len(role.threads), INT32)
                self.masked[(role.number,)] = builder.insert(arith.CmpOp(made, limit, predicate="lt")).result

    # Buffers

    def _private_copies(self) -> None:
        """Registers are each thread's own: those that several roles use become a buffer of each."""
        used: dict[Value, dict[int, bool]] = {}
        together: set[Value] = set()
        writers: dict[Value, dict[Operation, set[int]]] = {}
        for role in self.roles:
            for step in steps_of(role.program):
                if len(step.roles) > 1:
                    together.update(buffer for op in _makers(step.op) for buffer, *_ in accesses_of(op, *_REGISTERS))
                    continue
                for inner in step.op.walk():
                    for buffer, _, writes in accesses_of(inner, *_REGISTERS):
                        mine = used.setdefault(buffer, {})
                        mine[role.number] = mine.get(role.number, False) or writes
                        if writes:
                            writers.setdefault(buffer, {}).setdefault(inner, set()).add(role.number)
        for buffer, roles in used.items():
            if len(roles) < 2 or not any(roles.values()):
                continue  # what the block wrote together is the same for all who only read it
            assert isinstance(buffer.op, tile.AllocOp), "registers are allocated in the kernel"
            alike = all(each >= roles.keys() for each in writers.get(buffer, {}).values())
            if (buffer in together or not all(roles.values())) and not alike:
                readers = [self.roles[number] for number, writes in roles.items() if not writes]
                who = str(readers[0]) if readers else "the block together"
                raise TileError(
                    f"{buffer.name or 'a fragment'} is in registers, which are each thread's own, but {who} would need "
                    f"what other warps have there",
                    buffer.op.loc,
                    ["hand it over in a tile of T.alloc_shared"],
                    code="warp-roles",
                )
            for number in list(roles)[1:]:
                copy = tile.AllocOp(result_types=[buffer.type], names=[buffer.name], loc=buffer.op.loc)
                assert buffer.op.parent is not None
                buffer.op.parent.insert(copy, buffer.op)
                self.maps[number][buffer] = copy.result

    # Steps

    def _items(self, items: Sequence[Item], region: Region) -> None:
        branches: list[tuple[object, bool, scf.IfOp]] = []
        for item in items:
            role, *_ = item.roles
            mapping = self.maps[role]
            if isinstance(item, Step) and _is_barrier(item.op):
                continue
            if isinstance(item, Step) and not item.op.has_effects:
                self._pure(item, mapping, region, branches)
                continue
            place = self._branch(item.guards, mapping, region, branches)
            if isinstance(item, Step):
                self._step(item, mapping, place, branches)
            else:
                self._loop(item, place)
        if branches:
            _close(branches[0][2])

    def _pure(
        self, item: Step, mapping: dict[Value, Value], region: Region, branches: list[tuple[object, bool, scf.IfOp]]
    ) -> None:
        homes = [self.inside[mapping[each]] for each in item.op.operands if mapping.get(each) in self.inside]
        op = item.op.clone(mapping)
        for _, holds, branch in reversed(branches):
            if branch in homes:
                branch.regions[0 if holds else 1].insert(op)
                self.inside.update((value, branch) for value in op.results)
                return
        region.insert(op, branches[0][2] if branches else None)

    def _branch(
        self,
        guards: Sequence[tuple[Value, bool]],
        mapping: dict[Value, Value],
        region: Region,
        branches: list[tuple[object, bool, scf.IfOp]],
    ) -> Region:
        """Where a step under guards goes: into the branches that are open, as far as they are its own."""
        wanted = [(self.keys.of(value), holds, value) for value, holds in guards]
        same = 0
        while same < min(len(wanted), len(branches)) and branches[same][:2] == wanted[same][:2]:
            same += 1
        if branches and same == 0:
            _close(branches[0][2])
        del branches[same:]
        place = region if not branches else branches[-1][2].regions[0 if branches[-1][1] else 1]
        for key, holds, value in wanted[same:]:
            made = scf.IfOp(mapping.get(value, value), regions=[Region(), Region()], loc=self.kernel.loc)
            place.insert(made)
            branches.append((key, holds, made))
            place = made.regions[0 if holds else 1]
        return place

    def _step(
        self, item: Step, mapping: dict[Value, Value], place: Region, branches: list[tuple[object, bool, scf.IfOp]]
    ) -> None:
        for inner in item.op.walk():
            for value in inner.operands:
                home = self.inside.get(mapping.get(value, value))
                if home is not None and all(each[2] is not home for each in branches):
                    raise TileError(
                        "this needs a value that was read under a condition, before the role waited", item.op.loc,
                        ["read it into T.alloc_var"], code="warp-roles",
                    )  # fmt: skip
        ops = list(item.op.regions[0]) if isinstance(item.op, thread.AsyncOp) else [item.op]
        ops = [op for op in ops if not op.is_terminator]
        masked = None if item.op in self.of_all else self.masked.get(tuple(item.roles))
        for op in ops:
            made = op.clone(mapping)
            if masked is not None and op.has_effects and _touches(op, self.old.args[0]):
                made = _where(masked, made, place)
            place.insert(made)
            _finish_copies(made)
            if branches:
                self.inside.update((value, branches[-1][2]) for value in made.results)
        for role in item.roles[1:]:
            self.maps[role].update((value, mapping[value]) for value in item.op.results)

    def _loop(self, item: Fused, place: Region) -> None:
        """A loop; one whose turns are those of a loop of a constant number in it becomes one with it."""
        inner = _only_loop(item)
        first = item.first
        mapping = self.maps[first.role]
        lower, upper, step = (mapping.get(each, each) for each in (first.op.lower, first.op.upper, first.op.step))
        body = Region([first.op.index.type], [first.op.index.name])
        (index,), builder = body.args, Builder(body, loc=first.op.loc)
        if inner is not None:
            before, count = Builder(place, loc=first.op.loc), trip_count(inner.first.op)
            assert count is not None, "_only_loop has looked"
            number = before.constant(count, INT32)
            upper = before.insert(arith.MulOp(upper, number)).result
            size = builder.constant(count, INT32)
            turn = builder.insert(arith.FloorModOp(index, size)).result
            index = builder.insert(arith.FloorDivOp(index, size)).result
            for loop in inner.loops:
                self.maps[loop.role][loop.op.index] = turn
        for loop in item.loops:
            self.maps[loop.role][loop.op.index] = index
        self._items(item.body if inner is None else _in_line(item, inner), body)
        scf.yielding(body)
        items = item.body if inner is None else inner.body
        steps = [each for each in items if isinstance(each, Step)]
        attributes = dict(first.op.attributes)
        attributes["num_stages"] = max(2 * self._loads_ahead(steps), *(loop.op.num_stages for loop in item.loops))
        place.insert(scf.ForOp(lower, upper, step, [], regions=[body], loc=first.op.loc, **attributes))

    def _loads_ahead(self, steps: Sequence[Step]) -> bool:
        """Whether copies are started in a loop's turns, of tiles of which a second version has room beside all."""
        copies = [each for step in steps for each in step.op.walk() if isinstance(each, thread.AsyncOp)]
        accesses = [access for copy in copies for inner in copy.walk() for access in accesses_of(inner, "shared")]
        filled = {buffer for buffer, _, writes in accesses if writes}
        tiles = [op.out for op in of_kinds(self.kernel.walk(), tile.AllocOp)]
        shared = [value for value in tiles if tile.buffer_type(value).scope == "shared"]
        return bool(copies) and sum(map(_bytes, [*shared, *filled])) <= self.room


def _bytes(buffer: Value) -> int:
    type = tile.buffer_type(buffer)
    return prod(type.static_shape) * ELEMENTS[type.dtype].bits // 8


def _only_loop(item: Fused) -> Fused | None:
    """The loop in a loop that is all that it does, but for arithmetic; of plain bounds, and a number of turns."""
    loops = [each for each in item.body if isinstance(each, Fused)]
    steps = [each for each in item.body if isinstance(each, Step)]
    if len(loops) != 1 or any(each.op.has_effects for each in steps):
        return None
    (found,) = loops
    op, outer = found.first.op, item.first.op
    plain = all(constant_of(each.lower) == 0 and constant_of(each.step) == 1 for each in (op, outer))
    same = len(found.loops) == len(item.loops) and trip_count(op) is not None
    return found if plain and same and not found.guards and op.index.dtype == "int32" == outer.index.dtype else None


def _in_line(item: Fused, inner: Fused) -> list[Item]:
    return [each for one in item.body for each in (inner.body if one is inner else [one])]


def _finish_copies(op: Operation) -> None:
    """Copies that are started in an operation are done where they stand."""
    for copy in [each for each in op.nests() if isinstance(each, thread.AsyncOp)]:
        assert copy.parent is not None, "it stands in a region"
        for inner in list(copy.body):
            inner.move_before(copy)
        copy.erase()


def _close(branch: scf.IfOp) -> None:
    """End the regions of a branch and of those that were opened in it."""
    for op in branch.nests():
        if isinstance(op, scf.IfOp):
            for region in op.regions:
                if region.last is None or not region.last.is_terminator:
                    scf.yielding(region)


def _among(builder: Builder, index: Value, threads: Sequence[int]) -> Value:
    """Whether a thread is one of these, which are sorted."""
    found: Value | None = None
    starts = [each for each in threads if each - 1 not in threads]
    ends = [each for each in threads if each + 1 not in threads]
    for start, end in zip(starts, ends, strict=True):
        first, last = builder.constant(start, INT32), builder.constant(end, INT32)
        low = builder.insert(arith.CmpOp(index, first, predicate="ge")).result
        high = builder.insert(arith.CmpOp(index, last, predicate="le")).result
        inside = builder.insert(arith.AndOp(low, high)).result
        found = inside if found is None else builder.insert(arith.OrOp(found, inside)).result
    assert found is not None, "a role has threads"
    return found


def _where(masked: Value, made: Operation, place: Region) -> Operation:
    """An operation that is done where a condition holds: a load, whose value is used behind it, has it as its mask."""
    if isinstance(made, tile.LoadOp):
        made.set_field("mask", [both(Builder(place), made.mask, masked)])
        return made
    branch = scf.IfOp(masked, regions=[Region(), Region()], loc=made.loc)
    branch.regions[0].insert(made)
    for each in branch.regions:
        scf.yielding(each)
    return branch


def _uses(role: Role, index: Value, shared: bool) -> bool:
    """Whether a role's own steps (or those that it shares with others) differ from thread to thread."""
    return any(
        _touches(step.op, index)
        for step in steps_of(role.program)
        if step.op.has_effects and (len(step.roles) > 1) is shared
    )


def _is_barrier(op: Operation) -> bool:
    return isinstance(op, BARRIER_OPS) and not isinstance(op, thread.AsyncOp)


def _makers(op: Operation) -> set[Operation]:
    """An operation, those in it, and those that compute what they take."""
    found: set[Operation] = set()
    left = [op]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += [inner for region in each.regions for inner in region]
            left += [value.op for value in each.operands if value.op is not None]
    return found


def _touches(op: Operation, index: Value) -> bool:
    """Whether an operation, or one in it, takes a value that is computed from the thread's index, or a variable that
    was given one."""
    seen: dict[Value, bool] = {}

    def depends(value: Value) -> bool:
        if value not in seen:
            seen[value] = False  # of a variable that is computed from itself
            made = value.op
            seen[value] = value is index or made is not None and (any(map(depends, made.operands)) or given(made))
        return seen[value]

    def given(made: Operation) -> bool:
        """Whether it loads what a store has put there that differs from thread to thread."""
        if not isinstance(made, tile.LoadOp) or tile.buffer_type(made.buffer).scope != "local":
            return False
        return any(isinstance(user, tile.StoreOp) and any(map(depends, user.operands)) for user in made.buffer.uses)

    return any(map(depends, read_by(op)))
