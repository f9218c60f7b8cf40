"""One order of what the roles do: their loops of one iteration space become one loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.passes.merge_roles.roles import Guard, Loop, Node, Role, Step, is_variable, steps_of


@dataclass(eq=False)
class Fused:
    """Loops of several roles that run as one."""

    loops: list[Loop]
    body: list[Item] = field(default_factory=list)

    @property
    def roles(self) -> list[int]:
        return [each.role for each in self.loops]

    @property
    def first(self) -> Loop:
        """The loop of its first role; the others have its bounds and guards."""
        first, *_ = self.loops
        return first

    @property
    def guards(self) -> tuple[Guard, ...]:
        return self.first.guards


Item = Step | Fused


class Keys:
    """Names of values that are equal for values that are computed alike, of elements that do not change."""

    def __init__(self, written: set[Value]) -> None:
        self.written = written  # buffers that the kernel changes
        self.same: dict[Value, object] = {}  # what stands for the indices of loops that have become one
        self.sizes: dict[object, dict[Any, list[int]]] = {}  # which make a loop's bound which number
        self._known: dict[Value, object] = {}

    def of(self, value: Value) -> object:
        if value in self.same:
            return self.same[value]
        if value not in self._known:
            self._known[value] = self._made(value)
        return self._known[value]

    def _made(self, value: Value) -> object:
        op = value.op
        if isinstance(op, tile.LoadOp) and (store := last_store(op)) is not None:
            return self.of(store.value)
        if op is None or op.has_effects and not self._is_fixed(op):
            return value
        signature = op.signature
        return (signature, op.results.index(value), *(self.of(each) for each in op.operands))

    def _is_fixed(self, op: Operation) -> bool:
        return isinstance(op, tile.LoadOp) and op.buffer not in self.written


def _stores(item: Item, buffer: Value) -> bool:
    """Whether a step may change a variable."""
    steps = [item] if isinstance(item, Step) else [step for loop in item.loops for step in steps_of([loop])]
    inner = (each for step in steps if buffer in _used(step) for each in step.op.walk())
    return any(buffer in each.operands and not isinstance(each, tile.LoadOp) for each in inner)


def _used(step: Step) -> set[Value]:
    return {value for inner in step.op.walk() for value in inner.operands}


def last_store(load: tile.LoadOp) -> tile.StoreOp | None:
    """What a variable that is loaded was given last, where that is the same in all turns of the loops around."""
    if tile.buffer_type(load.buffer).scope != "local" or load.indices:
        return None
    stores = [user for user in load.buffer.uses if not isinstance(user, tile.LoadOp)]
    regions = {each.parent for each in stores if isinstance(each, tile.StoreOp)}
    if len(regions) != 1 or not all(isinstance(each, tile.StoreOp) for each in stores):
        return None
    (region,) = regions
    place = next((each for each in (load, *ancestors(load)) if each.parent is region), None)
    last = max(stores, key=lambda each: each.order)
    return last if place is not None and last.order < place.order else None  # type: ignore[return-value]


def resolved(value: Value) -> Value:
    """What a variable was given."""
    op = value.op
    if isinstance(op, tile.LoadOp) and (store := last_store(op)) is not None:
        return resolved(store.value)
    return value


@dataclass
class _Level:
    """What the roles do outside of all loops, or in loops that are one: what comes before what, whatever the order."""

    chains: dict[int, list[Item]]
    inside: dict[Step, Item]  # of which item of these a step is a part
    needs: dict[Item, set[Item]]
    loops: list[tuple[Fused, _Level]]


class Merger:
    """Puts the programs of roles in one order. `edges` are pairs of steps of which the first must come first."""

    def __init__(self, roles: Sequence[Role], keys: Keys, priority: Sequence[int]) -> None:
        self.keys, self.priority = keys, priority
        self.edges: list[tuple[Step, Step]] = []
        self._whole = self._level({role.number: role.program for role in roles})

    def merge(self) -> list[Item]:
        return self._merged(self._whole)

    def _merged(self, level: _Level) -> list[Item]:
        for fused, inner in level.loops:
            fused.body = self._merged(inner)
        before: dict[Item, dict[Item, tuple[Step, Step]]] = {}
        for first, last in self.edges:
            one, other = level.inside.get(first), level.inside.get(last)
            if one is not None and other is not None and one is not other:
                before.setdefault(other, {})[one] = (first, last)
        return self._sorted(level, before)

    def _level(self, programs: Mapping[int, Sequence[Node]]) -> _Level:
        groups = self._fused(programs)
        loops = [
            (fused, self._level({loop.role: loop.body for loop in fused.loops}))
            for fused in dict.fromkeys(groups.values())
        ]
        chains: dict[int, list[Item]] = {}
        for role, program in programs.items():
            chains[role] = [node if isinstance(node, Step) else groups[node] for node in program]
        inside: dict[Step, Item] = {}
        for role, program in programs.items():
            for node, item in zip(program, chains[role], strict=True):
                inside.update((step, item) for step in steps_of([node]))
        needs: dict[Item, set[Item]] = {}
        for chain in chains.values():
            for item, earlier in self._needs(chain):
                needs.setdefault(item, set()).update(earlier)
        return _Level(chains, inside, needs, loops)

    def _fused(self, programs: Mapping[int, Sequence[Node]]) -> dict[Loop, Fused]:
        """The loops of the roles with one iteration space, the first with the first, the second with the second."""
        found: dict[object, Fused] = {}
        of: dict[Loop, Fused] = {}
        for program in programs.values():
            counts = Counter[object]()
            for node in program:
                if isinstance(node, Loop):
                    bounds = [self.keys.of(each) for each in (node.op.lower, node.op.upper, node.op.step)]
                    guards = [(self.keys.of(value), holds) for value, holds in node.guards]
                    key: object = (*bounds, *guards)
                    counts[key] += 1
                    of[node] = found.setdefault((key, counts[key]), Fused([]))
                    of[node].loops.append(node)
        for each in found.values():
            for loop in each.loops:
                self.keys.same[loop.op.index] = each.first.op.index
        return of

    def _sorted(self, level: _Level, before: Mapping[Item, Mapping[Item, tuple[Step, Step]]]) -> list[Item]:
        needs = level.needs
        done: dict[Item, None] = {}
        left = {role: dict.fromkeys(chain) for role, chain in level.chains.items()}
        while any(left.values()):
            blocked: dict[int, Item] = {}
            for role in self.priority:
                found = self._next(left.get(role, {}), needs, before, done, blocked, role)
                if found is not None:
                    done[found] = None
                    for each in left.values():
                        each.pop(found, None)
                    break
            else:
                raise self._circle(blocked, before, done) if blocked else _crossing(left)
        return list(done)

    def _next(
        self,
        chain: Mapping[Item, None],
        needs: Mapping[Item, set[Item]],
        before: Mapping[Item, Mapping[Item, tuple[Step, Step]]],
        done: Mapping[Item, None],
        blocked: dict[int, Item],
        role: int,
    ) -> Item | None:
        """The first step of a role that may come now."""
        for item in chain:
            if not needs[item] <= done.keys():
                continue
            if all(each in done for each in before.get(item, ())):
                return item
            blocked.setdefault(role, item)
        return None

    def _needs(self, chain: Sequence[Item]) -> Iterator[tuple[Item, list[Item]]]:
        """What a role does before each step: all that it does before in its text, but for the other side of a branch,
        and arithmetic that it does not need."""
        makers: dict[Value, Item] = {}
        doing: list[tuple[Item, dict[object, bool]]] = []
        reading: list[Step] = []  # variables
        for item in chain:
            steps = [item] if isinstance(item, Step) else [step for loop in item.loops for step in steps_of([loop])]
            values = [value for step in steps for inner in step.op.walk() for value in inner.operands]
            loops: list[Loop] = [] if isinstance(item, Step) else item.loops
            guards = [guard for each in steps for guard in each.guards] + [
                guard for each in loops for guard in each.guards
            ]
            values += [value for value, _ in guards] + [each for loop in loops for each in loop.op.operands]
            found = [makers[value] for value in dict.fromkeys(values) if value in makers]
            if isinstance(item, Step) and is_variable(item.op):
                found += [each for each, _ in doing if _stores(each, item.op.operands[0])]
                reading.append(item)
            elif isinstance(item, Fused) or item.op.has_effects:
                found += [each for each in reading if _stores(item, each.op.operands[0])]
                mine = {self.keys.of(value): holds for value, holds in item.guards}
                found += [
                    each
                    for each, theirs in doing
                    if all(theirs.get(key, holds) is holds for key, holds in mine.items())
                ]
                doing.append((item, mine))
            makers.update((value, item) for step in steps for value in step.op.results)
            yield item, [each for each in found if each is not item]

    def _circle(
        self,
        blocked: Mapping[int, Item],
        before: Mapping[Item, Mapping[Item, tuple[Step, Step]]],
        done: Mapping[Item, None],
    ) -> TileError:
        """The error about roles that wait for each other."""
        pairs = [pair for item in blocked.values() for one, pair in before.get(item, {}).items() if one not in done]
        (first, last), *rest = pairs
        return TileError(
            "the roles wait for each other here: no order of what they do, the same in all turns of their loops, lets "
            "this go on",
            last.op.loc,
            [("this comes first", first.op.loc), *(("another one waits here", each[1].op.loc) for each in rest)],
            code="warp-roles",
        )


def _crossing(left: Mapping[int, Mapping[Item, None]]) -> TileError:
    """The error about loops of which one role does one first, and another role another one."""
    loops = next(item.loops for chain in left.values() for item in chain if isinstance(item, Fused))
    (first, *rest) = [loop.op.loc for loop in loops]
    return TileError(
        "the loops of the roles do not come in one order",
        first,
        [("this is to become one with it", each) for each in rest],
        code="warp-roles",
    )


def region_of(kernel: tile.KernelOp) -> Region:
    """What the threads of a kernel do: its body, or that of the T.Parallel over them."""
    for op in kernel.body:
        if isinstance(op, tile.ParallelOp) and op.lockstep:
            return op.body
    return kernel.body
