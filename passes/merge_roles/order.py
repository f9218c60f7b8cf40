"""One order of what the roles do: their loops of one iteration space become one loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.passes.merge_roles.roles import Loop, Node, Role, Step, steps_of


@dataclass(eq=False)
class Fused:
    """Loops of several roles that run as one."""

    loops: list[Loop]
    body: list[Item] = field(default_factory=list)

    @property
    def roles(self) -> list[int]:
        return [each.role for each in self.loops]


Item = Step | Fused


class Keys:
    """Names of values that are equal for values that are computed alike, of elements that do not change."""

    def __init__(self, written: set[Value]) -> None:
        self.written = written  # buffers that the kernel changes
        self.same: dict[Value, object] = {}  # what stands for the indices of loops that have become one
        self._known: dict[Value, object] = {}

    def of(self, value: Value) -> object:
        if value in self.same:
            return self.same[value]
        if value not in self._known:
            self._known[value] = self._made(value)
        return self._known[value]

    def _made(self, value: Value) -> object:
        op = value.op
        if isinstance(op, tile.LoadOp) and (store := _last_store(op)) is not None:
            return self.of(store.value)
        if op is None or op.regions or (op.has_effects and not self._is_fixed(op)):
            return value
        signature = op.signature
        return (signature, op.results.index(value), *(self.of(each) for each in op.operands))

    def _is_fixed(self, op: Operation) -> bool:
        return isinstance(op, tile.LoadOp) and op.buffer not in self.written


def _last_store(load: tile.LoadOp) -> tile.StoreOp | None:
    """What a variable that is loaded was given last, where that is the same in all turns of the loops around."""
    if tile.buffer_type(load.buffer).scope != "local" or load.indices:
        return None
    stores = [user for user in load.buffer.uses if not isinstance(user, tile.LoadOp)]
    if not stores or not all(isinstance(each, tile.StoreOp) and each.parent is stores[0].parent for each in stores):
        return None
    region = stores[0].parent
    place = next((each for each in (load, *ancestors(load)) if each.parent is region), None)
    last = max(stores, key=lambda each: each.order)
    return last if place is not None and last.order < place.order else None  # type: ignore[return-value]


class Merger:
    """Puts the programs of roles in one order. `edges` are pairs of steps of which the first must come first."""

    def __init__(self, roles: Sequence[Role], keys: Keys, priority: Sequence[int]) -> None:
        self.roles, self.keys, self.priority = roles, keys, priority
        self.edges: list[tuple[Step, Step]] = []

    def merge(self) -> list[Item]:
        return self._level({role.number: role.program for role in self.roles})

    def _level(self, programs: Mapping[int, Sequence[Node]]) -> list[Item]:
        groups = self._fused(programs)
        chains: dict[int, list[Item]] = {}
        for role, program in programs.items():
            chains[role] = [node if isinstance(node, Step) else groups[node] for node in program]
        inside: dict[Step, Item] = {}
        for role, program in programs.items():
            for node, item in zip(program, chains[role], strict=True):
                inside.update((step, item) for step in steps_of([node]))
        before: dict[Item, dict[Item, tuple[Step, Step]]] = {}
        for first, last in self.edges:
            one, other = inside.get(first), inside.get(last)
            if one is not None and other is not None and one is not other:
                before.setdefault(other, {})[one] = (first, last)
        return self._sorted(chains, before)

    def _fused(self, programs: Mapping[int, Sequence[Node]]) -> dict[Loop, Fused]:
        """The loops of the roles with one iteration space, the first with the first, the second with the second."""
        found: dict[object, Fused] = {}
        of: dict[Loop, Fused] = {}
        for program in programs.values():
            counts: dict[object, int] = {}
            for node in program:
                if isinstance(node, Loop):
                    bounds = [self.keys.of(each) for each in (node.op.lower, node.op.upper, node.op.step)]
                    guards = [(self.keys.of(value), holds) for value, holds in node.guards]
                    key: object = (*bounds, *guards)
                    number = counts[key] = counts.get(key, 0) + 1
                    of[node] = found.setdefault((key, number), Fused([]))
                    of[node].loops.append(node)
        for each in found.values():
            for loop in each.loops:
                self.keys.same[loop.op.index] = each.loops[0].op.index
            each.body = self._level({loop.role: loop.body for loop in each.loops})
        return of

    def _sorted(
        self, chains: Mapping[int, list[Item]], before: Mapping[Item, Mapping[Item, tuple[Step, Step]]]
    ) -> list[Item]:
        done: dict[Item, None] = {}
        places = dict.fromkeys(chains, 0)
        blocked: dict[int, Item] = {}
        while any(place < len(chains[role]) for role, place in places.items()):
            for role in self.priority:
                if role not in chains or places[role] == len(chains[role]):
                    continue
                item = chains[role][places[role]]
                others = [each for each in item.roles if each in chains]
                at_it = all(chains[each][places[each]] is item for each in others if places[each] < len(chains[each]))
                if at_it and all(each in done for each in before.get(item, ())):
                    done[item] = None
                    for each in others:
                        places[each] += 1
                    break
                blocked[role] = item
            else:
                raise self._circle(blocked, before, done)
        return list(done)

    def _circle(
        self,
        blocked: Mapping[int, Item],
        before: Mapping[Item, Mapping[Item, tuple[Step, Step]]],
        done: Mapping[Item, None],
    ) -> TileError:
        """The error about roles that wait for each other."""
        pairs = [
            pair for item in blocked.values() for one, pair in before.get(item, {}).items() if one not in done
        ]
        if not pairs:
            loops = [item for item in blocked.values() if isinstance(item, Fused)]
            place = loops[0].loops[0].op.loc if loops else next(iter(blocked.values())).op.loc  # type: ignore[union-attr]
            return TileError("the loops of the roles do not come in one order", place, code="warp-roles")
        (first, last), *rest = pairs
        return TileError(
            "the roles wait for each other here: no order of what they do, the same in all turns of their loops, lets "
            "this go on",
            last.op.loc,
            [("this comes first", first.op.loc), *(("another one waits here", each[1].op.loc) for each in rest)],
            code="warp-roles",
        )


def region_of(kernel: tile.KernelOp) -> Region:
    """What the threads of a kernel do: its body, or that of the T.Parallel over them."""
    for op in kernel.body:
        if isinstance(op, tile.ParallelOp) and op.lockstep:
            return op.body
    return kernel.body
