"""Which values become Python variables, and which of them share one.

A value that is used once, close by, is written inside the expression that uses it; the others get variables. A loop's
initial value, its argument, what it yields and its result share one variable if their lifetimes allow it, and so do
values of the same name that follow each other, so that the source reads `acc = tl.dot(a, b, acc)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tiledsl.analysis.dependence import stripped
from tiledsl.codegen.names import PythonNames
from tiledsl.dialects import arith, scf, tensor, triton
from tiledsl.ir.core import Operation, Region, Value

MAX_INLINE = 56  # estimated characters of an expression that is written inside another one
MAX_STATEMENT = 84  # and of all that stand inside one operation
_FREE = frozenset([arith.ConstantOp, tensor.IotaOp])
_STATEMENTS = frozenset([tensor.DotOp, tensor.ScanOp, tensor.GatherOp, tensor.TransposeOp, tensor.HistogramOp])


def is_free(value: Value) -> bool:
    """Constants and iotas: written wherever they are used."""
    return type(value.op) in _FREE


class Variables:
    """The variables of one kernel body."""

    def __init__(self, body: Region, names: PythonNames) -> None:
        self.body = body
        self.names = names
        self.inlined: set[Operation] = set()
        self._position: dict[Operation, int] = {}
        self._last_use: dict[Value, dict[Region, int]] = {}
        self._class: dict[Value, list[Value]] = {}
        self._name: dict[Value, str] = {}
        self._controls: list[Operation] = []  # loops and branches, outer before inner
        self._choose_inlined(body, {})
        for value in body.args:
            self._name[value] = names.claim(value.name or "argument")
        self._coalesce(body)

    # Looking up

    def members(self, value: Value) -> list[Value]:
        group = self._class.get(value)
        if group is None:
            group = self._class[value] = [value]
        return group

    def same(self, a: Value, b: Value) -> bool:
        return self.members(a) is self.members(b)

    def name(self, value: Value) -> str:
        """The variable of a value; names are given in the order in which they are asked for."""
        name = self._name.get(value)
        if name is None:
            group = self.members(value)
            preferred = group[0]
            if len(group) > 1:
                named = [each for each in group if each.name] or group
                preferred = next((each for each in named if each.op is None), named[0])  # arguments of loops
            name = self.names.claim(preferred.name or _hint(group[0]))
            self._name.update(dict.fromkeys(group, name))
        return name

    # Inlining

    def _choose_inlined(self, region: Region, length: dict[Value, int]) -> None:
        """`length` has the estimated characters of the values that may be written where they are used."""
        for position, op in enumerate(region):
            self._position[op] = position
            if type(op) in _FREE:
                length[op.results[0]] = 24 if op.results[0].shape else 6
                self.inlined.add(op)
                continue
            inside: dict[Value, int] = {}
            total = 0
            for value in op.operands:
                size = length.get(value)
                if size is not None and _fits_into(op, value):
                    inside[value] = size
                    total += size
                else:
                    total += size if size is not None and is_free(value) else 2 + len(value.name or "index")
            while inside and total > MAX_STATEMENT:
                total += 8 - inside.pop(max(inside, key=lambda value: inside[value]))
            self.inlined.update([value.op for value in inside if value.op is not None])
            if op.regions:
                self._controls.append(op)
                for inner in op.regions:
                    self._choose_inlined(inner, length)
            elif _is_expression(op):
                size = total + _overhead(type(op))  # type: ignore[arg-type]
                if size <= MAX_INLINE:
                    length[op.results[0]] = size

    # Lifetimes

    def _root(self, op: Operation) -> Operation:
        """The statement that an operation is written in."""
        while op in self.inlined and op.results[0].uses:
            op = next(iter(op.results[0].uses))
        return op

    def _uses(self, value: Value) -> dict[Region, int]:
        """Where a value is read last, for each region that has a use inside."""
        last = self._last_use.get(value)
        if last is None:
            last = self._last_use[value] = {}
            for user in value.uses:
                root = self._root(user)
                if isinstance(root, scf.ForOp) and (root is not user or value in root.operands[:3]):
                    # The bounds are written behind the initial assignments: count them as part of the body.
                    last[root.body] = max(last.get(root.body, -1), -1)
                at: Operation | None = root
                while at is not None and at.parent is not None:
                    last[at.parent] = max(last.get(at.parent, -1), self._position.get(at, -1))
                    at = at.parent_op if at.parent is not self.body else None
        return last

    def _definition(self, value: Value) -> tuple[Region, int]:
        owner = value.owner
        if isinstance(owner, Region):
            return owner, -1
        assert owner.parent is not None
        return owner.parent, self._position[owner]

    def _live_after(self, value: Value, region: Region, position: int) -> bool:
        uses, home = self._uses(value), self._definition(value)[0]
        while True:
            if uses.get(region, -1) > position:
                return True
            parent = region.parent
            if region is home or region is self.body or parent is None or parent.parent is None:
                return False
            if isinstance(parent, (scf.ForOp, scf.WhileOp)) and any(inner in uses for inner in parent.regions):
                return True
            region, position = parent.parent, self._position[parent]

    def _interfere(self, a: Value, b: Value) -> bool:
        at_a, at_b = self._definition(a), self._definition(b)
        if at_a == at_b:
            return True
        return (self._visible(at_a, at_b) and self._live_after(a, *at_b)) or (
            self._visible(at_b, at_a) and self._live_after(b, *at_a)
        )

    def _visible(self, definition: tuple[Region, int], point: tuple[Region, int]) -> bool:
        """Whether what is defined at `definition` is so before `point`, in a region around it."""
        home, at = definition
        region, position = point
        if region is home:
            return at <= position
        while region is not home:
            parent = region.parent
            if region is self.body or parent is None or parent.parent is None:
                return False
            region, position = parent.parent, self._position[parent]
        return at < position  # what an operation gives does not exist yet inside of it

    # Sharing

    def _join(self, a: Value, b: Value, always: bool = False) -> bool:
        one, other = self.members(a), self.members(b)
        if one is other:
            return True
        if not always:
            fixed = any(is_free(v) or v.owner is self.body or v.op in self.inlined for v in (a, b))
            if fixed or a.type != b.type or any(self._interfere(x, y) for x in one for y in other):
                return False
        one.extend(other)
        for value in other:
            self._class[value] = one
        return True

    def _coalesce(self, body: Region) -> None:
        for op in self._controls:
            if isinstance(op, scf.ForOp):
                pairs = zip(op.iter_args, op.results)
            elif isinstance(op, scf.WhileOp):
                pairs = zip(op.after.args, op.results)
            else:
                continue
            for a, b in pairs:
                self._join(a, b, always=True)
        for op in reversed(self._controls):  # inner before outer
            for a, b in _related(op):
                self._join(a, b)
        self._join_namesakes(body)

    def _join_namesakes(self, region: Region, latest: dict[str, list[Value]] | None = None) -> None:
        """Values of one name and region share a variable where they follow each other; sibling loops share an index.

        The bodies of sibling loops share what is local to each of them, also what has no name of its own: `latest` has
        the values of the bodies before this one.
        """
        is_loop = latest is not None
        latest = {} if latest is None else latest
        in_loops: dict[str, list[Value]] = {}
        for op in region:
            if op in self.inlined:
                continue
            for value in [*op.results, op.index] if isinstance(op, scf.ForOp) else op.results:
                name = value.name or (_hint(value) if is_loop else "")
                if not name:
                    continue
                earlier = latest.setdefault(name, [])
                if not any(self._may_share(each, value) and self._join(each, value) for each in earlier):
                    earlier.append(value)
            for inner in op.regions:
                self._join_namesakes(inner, in_loops if isinstance(op, scf.ForOp) else None)

    def _may_share(self, earlier: Value, value: Value) -> bool:
        """In one region by name. Between loops only what is local to them: Triton would carry others through."""
        if self._scope(earlier) is self._scope(value):
            return bool(earlier.name and value.name)
        members = [*self.members(earlier), *self.members(value)]
        scopes = [self._scope(each) for each in members]
        return all(scope is not None and isinstance(scope.parent, scf.ForOp) for scope in scopes)

    def _scope(self, value: Value) -> Region | None:
        """The region that assigns a value: around its operation, or around the loop it is the index of."""
        loop = value.owner.parent if isinstance(value.owner, Region) else None
        if loop is None:
            return self._definition(value)[0]
        return loop.parent if isinstance(loop, scf.ForOp) and value is loop.index else None


def _related(op: Operation) -> Iterator[tuple[Value, Value]]:
    """Pairs of values that one variable saves a copy for."""
    if isinstance(op, scf.WhileOp):
        condition = op.before.terminator
        assert isinstance(condition, scf.ConditionOp)
        yield from zip(op.after.args, condition.values)
    if isinstance(op, (scf.ForOp, scf.WhileOp)):
        yield from zip(op.iter_args, op.yielded)
        yield from zip(op.iter_args, op.inits)
    else:
        for inner in op.regions:
            yield from zip(op.results, inner.terminator.operands)


def _is_expression(op: Operation) -> bool:
    """Whether an operation may be written in the place of its one use."""
    if op.has_effects or len(op.results) != 1 or type(op) in _STATEMENTS:
        return False
    value = op.results[0]
    return len(value.uses) == 1 and (not value.name or _is_same_thing(op))


def _fits_into(user: Operation, value: Value) -> bool:
    """Whether a value may be written inside of `user`: its only use, in the same region."""
    op = value.op
    if op is None or op.parent is not user.parent or value.uses != {user: 1} or value.name and is_free(value):
        return False
    if isinstance(user, scf.ForOp):
        return value in user.operands[:3]
    if isinstance(user, scf.ConditionOp):
        return value is user.condition
    return not isinstance(user, (scf.YieldOp, scf.WhileOp))


def _is_same_thing(op: Operation) -> bool:
    """Whether an operation only shows its operand in another shape or element type: passes hand its name on."""
    if isinstance(op, (tensor.ReshapeOp, tensor.BroadcastOp, arith.CastOp)):
        return op.source.name == op.out.name
    return False


@cache
def _overhead(kind: type[Operation]) -> int:
    """Characters of an operation of this class beside its operands."""
    if issubclass(kind, (arith.BinaryOp, arith.CmpOp)):
        return 14 if issubclass(kind, (arith.MaxOp, arith.MinOp)) else 5
    if issubclass(kind, (arith.CastOp, arith.BitcastOp)):
        return 16
    return 3 if issubclass(kind, triton.AddPtrOp) else 18


def _hint(value: Value) -> str:
    """A name for a value that has none, from what it is and where it goes."""
    op = value.op
    if isinstance(op, arith.CastOp) and op.source.name and op.out.dtype == "int64":
        return op.source.name + "_64"
    moved = _moved_pointers(value)
    if moved:
        # K_V_start: two pointers move alike. With more, a list of them says less than none.
        return "_".join([*(moved if len(moved) < 3 else []), "offsets" if value.shape else "start"])
    if value.dtype.startswith("*"):
        return _base_name(value) + ("_pointers" if value.shape else "_tile")
    if isinstance(op, triton.LoadOp):
        return _base_name(op.pointer) + "_tile" if value.shape else _base_name(op.pointer) + "_element"
    if value.dtype == "bool":
        return "mask" if value.shape else "condition"
    if isinstance(op, tensor.DotOp):
        return "product"
    if isinstance(op, tensor.ReduceOp):
        return {"sum": "total", "max": "highest", "min": "lowest"}.get(op.kind, "reduced")
    if isinstance(op, triton.AtomicOp):
        return "old"
    if isinstance(op, triton.ProgramIdOp):
        return "pid"
    return "index" if value.dtype in ("int32", "int64") else "x"


def _moved_pointers(value: Value, depth: int = 4) -> list[str]:
    """The names of the pointers that a value, or a sum it is a term of, moves, and of blocks that begin there."""
    names: dict[str, None] = {}
    for user in value.uses:
        if isinstance(user, triton.AddPtrOp) and value is user.offset:
            names[_base_name(user.pointer)] = None
        elif isinstance(user, (triton.LoadBlockOp, triton.StoreBlockOp)) and not user.ring and value in user.starts:
            names[user.descriptor.name.removesuffix("_block")] = None
        elif isinstance(user, (arith.AddOp, arith.SubOp, tensor.BroadcastOp)) and depth:
            names.update(dict.fromkeys(_moved_pointers(user.result, depth - 1)))
    return list(names)


def _base_name(pointer: Value) -> str:
    return stripped(pointer, triton.AddPtrOp, tensor.BroadcastOp).name or "data"
