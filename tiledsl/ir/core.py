"""Values, operations and regions.

Control flow is structured: an operation owns regions, a region is one block of operations with arguments, and a value
is visible after its definition and inside the regions of later operations. An operation class declares its fields with
`operand`, `operands`, `optional`, `attr`, `result`, `results` and `region`; construction, printing, parsing, generic
verification and cloning all work from these declarations.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import Flag, auto
from itertools import chain, repeat
from operator import attrgetter
from types import FunctionType, MappingProxyType
from typing import Any, ClassVar

from tiledsl.ir.fields import Field, OperandField, attr, operand, region, result
from tiledsl.ir.printer import print_op
from tiledsl.ir.types import Type
from tiledsl.location import UNKNOWN, Loc


class Effect(Flag):
    """What an operation does besides computing its results. Generic passes rely on these flags alone."""

    NONE = 0
    READ = auto()
    WRITE = auto()
    ALLOCATE = auto()
    REGION = auto()  # the effects are those of the operations in its regions
    TERMINATE = auto()  # ends a region
    ORDERED = auto()  # must stay where it is and be kept (prints, asserts, launches)


# How many changes were made to any IR so far: while the number stays, so does what was verified.
changes = [0]


class Value:
    """The result of an operation or an argument of a region."""

    __slots__ = ("dtype", "name", "op", "owner", "shape", "type", "uses")

    shape: tuple[int, ...]  # of a scalar: empty

    def __init__(self, type: Type, owner: Operation | Region, name: str = "") -> None:
        self.type, self.shape, self.dtype = type, type.shape, type.dtype  # type: ignore[assignment]
        self.owner, self.name = owner, name
        self.op = None if isinstance(owner, Region) else owner  # that defines the value; None: a region argument
        self.uses: dict[Operation, int] = {}  # operation -> how many of its operands this is

    def set_type(self, type: Type) -> None:
        """Change the type; the operations that define and use the value are verified again."""
        changes[0] += 1
        self.type, self.shape, self.dtype = type, type.shape, type.dtype  # type: ignore[assignment]
        definer = self.owner.parent if isinstance(self.owner, Region) else self.owner
        if definer is not None:
            definer._signature = None
            definer.touch()
        for user in self.uses:
            user.touch()

    def replace_with(self, other: Value) -> None:
        """Make every user of this value use `other`."""
        if other is self:
            return
        other.name = other.name or self.name
        changes[0] += 1
        same_type = other.type is self.type
        for user, count in self.uses.items():
            if not same_type:
                user.touch()
            elif user.parent is not None:
                user.parent.touched.append(user)  # whether it sees the other value; it was right, and is
            user.operands = [other if old is self else old for old in user.operands]
            other.uses[user] = other.uses.get(user, 0) + count
        self.uses = {}

    def __repr__(self) -> str:
        return f"<%{self.name or '?'}: {self.type}>"


_order = attrgetter("order")


class Region:
    """A block of operations with arguments. Change `ops` only through `insert` and the methods of operations."""

    __slots__ = ("args", "near", "nested", "ops", "parent", "touched")

    def __init__(self, arg_types: Sequence[Type] = (), names: Sequence[str] = ()) -> None:
        self.parent: Operation | None = None
        self.ops: list[Operation] = []  # their `order` grows
        self.near = 0  # the place of the operation that was last looked for: the next is often there
        self.nested: dict[Operation, None] = {}  # those that have regions
        self.touched: list[Operation] = []  # since they were last verified
        self.args = list(map(Value, arg_types, repeat(self), chain(names, repeat(""))))

    def add_arg(self, type: Type, name: str = "") -> Value:
        self.args.append(Value(type, self, name))
        return self.args[-1]

    def set_args(self, values: Sequence[Value]) -> None:
        """Keep these arguments, in this order; the others must have no users."""
        for dropped in self.args:
            for user in dropped.uses:
                user.touch()
        self.args = list(values)
        if self.parent is not None:
            self.parent.touch()

    @property
    def first(self) -> Operation | None:
        return self.ops[0] if self.ops else None

    @property
    def last(self) -> Operation | None:
        return self.ops[-1] if self.ops else None

    def __iter__(self) -> Iterator[Operation]:
        """The operations in order, as of now: operations erased meanwhile still come, inserted ones do not."""
        return iter(self.ops.copy())

    def __reversed__(self) -> Iterator[Operation]:
        return reversed(self.ops.copy())

    def walk(self) -> Iterator[Operation]:
        """All nested operations, outer before inner, as of now."""
        found = self.ops.copy()
        for outer in sorted(self.nested, key=_order, reverse=True) if len(self.nested) > 1 else self.nested:
            at = self.index(outer) + 1
            for inner in reversed(outer.regions):
                found[at:at] = inner.walk()
        return iter(found)

    def index(self, op: Operation) -> int:
        """The position of an operation in the region."""
        ops = self.ops
        if self.near >= len(ops) or ops[self.near] is not op:
            self.near = ops.index(op) if len(ops) < 64 else bisect_left(ops, op.order, key=_order)  # the quicker
        return self.near

    def insert(self, op: Operation, before: Operation | None = None) -> None:
        """Insert a detached operation before another one, or at the end."""
        assert op.parent is None, f"{op.name} already stands in a region"
        changes[0] += 1
        op.parent = self
        self.touched.append(op)
        if op.regions:
            self.nested[op] = None
        ops = self.ops
        if before is None:
            if ops and (last := ops[-1]).is_terminator:
                last.touch()  # it should not have been the end
            op.order = last.order + 1 if ops else 0
            ops.append(op)
            if op.is_terminator and self.parent is not None:
                self.parent.touch()
            return
        at = self.index(before)
        low, high = ops[at - 1].order if at else before.order - 1, before.order
        op.order = order = (low + high) / 2
        ops.insert(at, op)
        self.near = at + 1
        if not low < order < high:  # floats are dense, but not without end
            for order, each in enumerate(ops):
                each.order = order

    @property
    def terminator(self) -> Operation:
        assert self.ops and self.ops[-1].is_terminator, "the region has no terminator"
        return self.ops[-1]


def _with_own_code(old: Any) -> Any:
    """A copy with its own code object: CPython's inline caches would otherwise thrash between operation classes."""
    copy = FunctionType(old.__code__.replace(), old.__globals__, None, old.__defaults__, old.__closure__)
    copy.__kwdefaults__ = old.__kwdefaults__
    return copy


OPERATIONS: dict[str, type[Operation]] = {}


class Operation:
    """Base of all operations."""

    __slots__ = (
        "_signature", "attributes", "checked", "loc", "operands", "order", "parent", "regions", "results", "segments",
    )  # fmt: skip

    attributes: MappingProxyType[str, Any]
    name: ClassVar[str] = ""
    effects: ClassVar[Effect] = Effect.NONE
    variadic_results: ClassVar[bool] = False
    operand_fields: ClassVar[tuple[OperandField[Any], ...]] = ()
    attr_fields: ClassVar[dict[str, attr[Any]]] = {}
    result_fields: ClassVar[tuple[result, ...]] = ()
    region_fields: ClassVar[tuple[region, ...]] = ()
    is_terminator: ClassVar[bool] = False
    has_effects: ClassVar[bool] = False
    defaults: ClassVar[MappingProxyType[str, Any]] = MappingProxyType({})  # of attributes, in their order
    required: ClassVar[tuple[str, ...]] = ()  # attributes without a default
    # What a new one needs: how many operand fields there are (-1: one is variadic), one segment each, the last two.
    plan: ClassVar[tuple[int, tuple[int, ...], tuple[str, ...], MappingProxyType[str, Any]]]

    def __init_subclass__(cls) -> None:
        own = [value for value in vars(cls).values() if isinstance(value, Field)]
        cls.operand_fields += tuple(field for field in own if isinstance(field, OperandField))
        cls.result_fields += tuple(field for field in own if isinstance(field, result))
        cls.region_fields += tuple(field for field in own if isinstance(field, region))
        cls.attr_fields = cls.attr_fields | {field.name: field for field in own if isinstance(field, attr)}
        for group in (cls.operand_fields, cls.result_fields, cls.region_fields):
            for position, field in enumerate(group):
                field.position = position
                field.fixed = {*map(type, group[:position])} <= {operand}
        for each in chain(cls.operand_fields, cls.result_fields, cls.region_fields, cls.attr_fields.values()):
            setattr(cls, each.name, property(_with_own_code(each.getter())))
        plain = -1 if {*map(type, cls.operand_fields)} - {operand} else len(cls.operand_fields)
        cls.required = tuple(name for name, field in cls.attr_fields.items() if field.default is attr.REQUIRED)
        cls.defaults = MappingProxyType({name: field.default for name, field in cls.attr_fields.items()})
        cls.plan = plain, (1,) * plain, cls.required, cls.defaults
        cls.is_terminator = Effect.TERMINATE in cls.effects
        cls.has_effects = cls.effects is not Effect.NONE
        for name in ("__init__", "infer", "touch", "set_operands", "detach", "erase"):
            setattr(cls, name, _with_own_code(getattr(cls, name)))
        for name in ("result", "is_used", "signature"):
            setattr(cls, name, property(_with_own_code(getattr(cls, name).fget)))
        if cls.name:
            assert OPERATIONS.get(cls.name, cls).__qualname__ == cls.__qualname__, f"two operations named {cls.name}"
            OPERATIONS[cls.name] = cls

    def __init__(
        self,
        *values: Value | Sequence[Value] | None,
        result_types: Sequence[Type] | None = None,
        regions: Sequence[Region] = (),
        loc: Loc = UNKNOWN,
        names: Sequence[str] = (),
        **attributes: Any,
    ) -> None:
        self.loc = loc
        self.checked = False  # by the verifier, since its place, operands, attributes and types last changed
        self.order: float = 0  # greater than those before it in its region have
        self._signature: tuple[object, ...] | None = None
        self.parent: Region | None = None
        plain, segments, required, defaults = self.plan
        if len(values) == plain:
            self.operands: list[Value] = [*values]  # type: ignore[list-item]
            self.segments = segments
        else:
            self.operands, self.segments = self._flattened(values)
        for value in self.operands:
            uses = value.uses
            uses[self] = uses[self] + 1 if self in uses else 1
        for key in required:
            assert key in attributes, f"{self.name}: attribute {key} is missing"
        self.attributes = MappingProxyType(defaults | attributes) if attributes else defaults
        self.regions = [*regions]
        for inner in regions:
            assert inner.parent is None, f"{self.name}: the region has an owner"
            inner.parent = self
        self.results = []
        for type in self.infer() if result_types is None else result_types:
            self.results.append(Value(type, self))
        for made, name in zip(self.results, names) if names else ():
            made.name = name

    def _flattened(self, values: Sequence[Value | Sequence[Value] | None]) -> tuple[list[Value], tuple[int, ...]]:
        """The values of all operand fields in a row, and how many there are of each."""
        missing = len(self.operand_fields) - len(values)
        assert missing >= 0, f"{self.name}: {len(values)} operand fields given"
        groups = [(value,) if isinstance(value, Value) else value or () for value in values]
        return [*chain.from_iterable(groups)], (*map(len, groups), *[0] * missing)

    def infer(self) -> Sequence[Type]:
        """Result types, from operands and attributes. Without an override they are what the fields are `like`."""
        alike = [field.like for field in self.result_fields]
        assert None not in alike, f"{self.name}: result_types must be given"
        return [self.operands[each.position].type if isinstance(each, operand) else each for each in alike]  # type: ignore[misc]

    def fold(self) -> Sequence[Value | bool | int | float] | None:
        """The replacements of the results: existing values, or numbers (splat, for tensors). None if there are none."""
        return None

    def verify(self) -> None:
        """Check what the declarations cannot express; raise ValueError with one sentence."""

    # Structure

    def touch(self) -> None:
        """Mark the operation for verification, and the enclosing one if this is its terminator."""
        if self.checked:
            self.checked = False
            region = self.parent
            if region is not None:
                region.touched.append(self)
                if self.is_terminator and region.parent is not None:
                    region.parent.touch()

    def set_operands(self, values: Sequence[Value]) -> None:
        """Replace all operands, in the same order of fields."""
        changes[0] += 1
        self.touch()
        for value in self.operands:
            value.uses.pop(self, None)
        self.operands = list(values)
        for value in self.operands:
            value.uses[self] = value.uses.get(self, 0) + 1

    def set_attribute(self, name: str, value: Any) -> None:
        """Change an attribute."""
        changes[0] += 1
        self.touch()
        self._signature = None
        self.attributes = MappingProxyType(self.attributes | {name: value})

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for operations that differ in nothing but their operands and regions."""
        if self._signature is None:
            # The bytes tell 1, 1.0 and true apart, and 0.0 and -0.0. In version 2 nothing but the values counts.
            attributes = marshal.dumps(self.attributes.copy(), 2) if self.attributes else b""
            self._signature = type(self), self.segments, attributes
            for value in self.results:
                self._signature = self._signature, value.type
        return self._signature

    def set_field(self, name: str, values: Sequence[Value]) -> None:
        """Replace the values of one operand field."""
        groups = [values if field.name == name else field.values(self) for field in self.operand_fields]
        operands, self.segments = self._flattened(groups)
        self.set_operands(operands)

    @property
    def result(self) -> Value:
        """The single result."""
        (only,) = self.results
        return only

    @property
    def is_used(self) -> bool:
        """Whether any operation uses a result."""
        return any([value.uses for value in self.results])  # noqa: C419  (a list is quicker)

    @property
    def parent_op(self) -> Operation | None:
        return self.parent.parent if self.parent is not None else None

    @property
    def next(self) -> Operation | None:
        """The operation after this one in its region; None for the last, and for a root."""
        return next(iter(self.parent.ops[self.parent.index(self) + 1 :]), None) if self.parent is not None else None

    def walk(self) -> Iterator[Operation]:
        """This operation and all nested ones, as of now."""
        return chain((self,), *map(Region.walk, self.regions))

    def nests(self) -> list[Operation]:
        """This operation and the nested ones that have regions, outer before inner."""
        found = [self]
        for inner in self.regions:
            for outer in inner.nested:
                found += outer.nests()
        return found

    def detach(self) -> Operation:
        """Remove the operation from its region; it keeps its operands."""
        region = self.parent
        assert region is not None, f"{self.name} stands in no region"
        changes[0] += 1
        self.checked = False
        if self.is_terminator and region.parent is not None:
            region.parent.touch()
        for value in self.results:
            for user in value.uses:  # they may not see it at its new place
                user.touch()
        del region.ops[region.index(self)]
        region.nested.pop(self, None)
        self.parent = None
        return self

    def move_before(self, other: Operation) -> None:
        assert other.parent is not None, f"{other.name} stands in no region"
        self.detach()
        other.parent.insert(self, other)

    def erase(self) -> None:
        """Delete the operation and everything nested in it. Its results must be unused."""
        for value in self.results:
            assert not value.uses, f"{self.name} is erased while its result is used"
        if self.parent is not None:
            self.detach()
        for inner in self.regions:
            for op in reversed(inner.ops):
                op.parent = None
                op.erase()
            inner.parent, inner.ops, inner.nested, inner.args = None, [], {}, []
        for value in self.operands:
            value.uses.pop(self, None)
        self.operands = self.results = []  # no cycle is left that Python's collector would have to find

    def clone(self, mapping: dict[Value, Value]) -> Operation:
        """A detached copy; operands are mapped by `mapping`, which receives the copies of results and arguments."""
        copy = object.__new__(type(self))
        copy.loc, copy.parent, copy.checked, copy.order, copy._signature = self.loc, None, False, 0, None
        copy.segments, copy.attributes = self.segments, self.attributes
        copy.operands = [mapping.get(value, value) for value in self.operands]
        for value in copy.operands:
            value.uses[copy] = value.uses.get(copy, 0) + 1
        copy.results = [Value(value.type, copy, value.name) for value in self.results]
        mapping.update(zip(self.results, copy.results, strict=True))
        copy.regions = []
        for inner in self.regions:
            twin = Region([arg.type for arg in inner.args], [arg.name for arg in inner.args])
            twin.parent = copy
            mapping.update(zip(inner.args, twin.args, strict=True))
            for op in inner:
                twin.insert(op.clone(mapping))
            copy.regions.append(twin)
        return copy

    @property
    def is_pure(self) -> bool:
        """Whether it has no side effects, in its regions either: then it may be moved, and erased when unused."""
        if not self.has_effects:
            return True
        inside = (op for inner in self.regions for op in inner)
        return self.effects == Effect.REGION and all(op.is_pure or op.effects == Effect.TERMINATE for op in inside)

    def __repr__(self) -> str:
        first, *rest = print_op(self).splitlines()
        return "\n".join([first, *rest] if len(rest) < 3 else [first, *rest[:2], "..."])
