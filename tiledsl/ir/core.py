"""Values, operations and regions.

Control flow is structured: an operation owns regions, a region is one block of operations with arguments, and a value
is visible after its definition and inside the regions of later operations. An operation class declares its fields with
`operand`, `operands`, `optional`, `attr`, `result`, `results` and `region`; construction, printing, parsing, generic
verification and cloning all work from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Flag, auto
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from tiledsl.ir.location import UNKNOWN, Loc
from tiledsl.ir.types import Type

Attribute: TypeAlias = "int | float | str | bool | None | tuple[Attribute, ...]"
T = TypeVar("T")


class Effect(Flag):
    """What an operation does beside computing its results. Generic passes decide by these alone."""

    NONE = 0
    READ = auto()
    WRITE = auto()
    ALLOCATE = auto()
    REGION = auto()  # the effects are those of the operations in its regions
    TERMINATE = auto()  # ends a region
    ORDERED = auto()  # must stay where it is and be kept (prints, asserts, launches)


class Changes:
    """How many changes were made to any IR so far: while the number stays, so does what was verified."""

    count: ClassVar[int] = 0


class Value:
    """The result of an operation or an argument of a region."""

    __slots__ = ("name", "op", "owner", "type", "uses")

    def __init__(self, type: Type, owner: Operation | Region, name: str = "") -> None:
        self.type = type
        self.owner = owner
        self.op = owner if isinstance(owner, Operation) else None  # that defines the value; None: a region argument
        self.name = name
        self.uses: dict[Operation, int] = {}  # operation -> how many of its operands this is

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a scalar (empty) or a tensor."""
        return self.type.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def set_type(self, type: Type) -> None:
        """Change the type; the operations that define and use the value are verified again."""
        Changes.count += 1
        self.type = type
        for op in (self.owner, *self.uses):
            if isinstance(op, Operation):
                op.checked = False

    def replace_with(self, other: Value) -> None:
        """Make every user of this value use `other`."""
        if other is self:
            return
        if not other.name:
            other.name = self.name
        Changes.count += 1
        for user, count in self.uses.items():
            user.checked = False
            user.operands = [other if old is self else old for old in user.operands]
            other.uses[user] = other.uses.get(user, 0) + count
        self.uses = {}

    def __repr__(self) -> str:
        return f"<%{self.name or '?'}: {self.type}>"


class Region:
    """One block: arguments and a doubly linked list of operations."""

    __slots__ = ("args", "first", "last", "parent")

    def __init__(self, arg_types: Sequence[Type] = (), names: Sequence[str] = ()) -> None:
        self.parent: Operation | None = None
        self.first: Operation | None = None
        self.last: Operation | None = None
        self.args = [Value(type, self) for type in arg_types]
        for value, name in zip(self.args, names, strict=False):
            value.name = name

    def add_arg(self, type: Type, name: str = "") -> Value:
        value = Value(type, self, name)
        self.args.append(value)
        return value

    def __iter__(self) -> Iterator[Operation]:
        """Operations in order; the current one may be erased or moved while iterating."""
        op = self.first
        while op is not None:
            following = op.next
            yield op
            op = following

    def __reversed__(self) -> Iterator[Operation]:
        op = self.last
        while op is not None:
            preceding = op.prev
            yield op
            op = preceding

    def walk(self) -> Iterator[Operation]:
        """All operations inside, outer before inner."""
        op = self.first
        while op is not None:
            following = op.next
            yield op
            for region in op.regions:
                yield from region.walk()
            op = following

    def insert(self, op: Operation, before: Operation | None = None) -> None:
        """Put a detached operation before another one, or at the end."""
        assert op.parent is None, f"{op.name} already stands in a region"
        Changes.count += 1
        op.parent = self
        if before is None:
            op.prev, op.next = self.last, None
        else:
            op.prev, op.next = before.prev, before
            before.prev = op
        if op.prev is None:
            self.first = op
        else:
            op.prev.next = op
        if op.next is None:
            self.last = op

    @property
    def terminator(self) -> Operation:
        assert self.last is not None and self.last.is_terminator, "the region has no terminator"
        return self.last


class Field(Generic[T]):
    """A declared part of an operation; the name comes from the class body. The class gets a property in its place."""

    name: str
    position = 0  # among the fields of its kind

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, op: Operation, owner: type) -> T:
        raise NotImplementedError("for type checkers: operations have a property")

    def getter(self) -> Callable[[Any], Any]:
        """A function that takes the part from an operation; `name` and `position` are known."""
        raise NotImplementedError


class OperandField(Field[T]):
    """Base of the three kinds of operands."""

    def __init__(self, *types: type) -> None:
        self.types = types

    def values(self, op: Operation) -> list[Value]:
        start = sum(op.segments[: self.position])
        return op.operands[start : start + op.segments[self.position]]


class operand(OperandField[Value]):
    """Exactly one operand, of one of the given type classes (any, if none is given)."""

    fixed = False  # no variadic field before it

    def getter(self) -> Callable[[Any], Any]:
        position = self.position
        return (lambda op: op.operands[position]) if self.fixed else (lambda op: self.values(op)[0])


class operands(OperandField[list[Value]]):
    """Any number of operands."""

    def getter(self) -> Callable[[Any], Any]:
        return self.values


class optional(OperandField["Value | None"]):
    """An operand that may be absent; printed as `name=%value`."""

    def getter(self) -> Callable[[Any], Any]:
        return lambda op: next(iter(self.values(op)), None)


class attr(Field[T]):
    """An attribute: an immutable Python value. Without a default it must be given."""

    REQUIRED: ClassVar[object] = object()

    def __init__(self, type: Callable[..., T], default: Any = REQUIRED) -> None:
        self.type = type
        self.default = default

    def getter(self) -> Callable[[Any], Any]:
        name = self.name
        return lambda op: op.attributes[name]


class result(Field[Value]):
    """Exactly one result."""

    def __init__(self, *types: type) -> None:
        self.types = types

    def getter(self) -> Callable[[Any], Any]:
        position = self.position
        return lambda op: op.results[position]


class region(Field[Region]):
    """A region."""

    def getter(self) -> Callable[[Any], Any]:
        position = self.position
        return lambda op: op.regions[position]


_uses = attrgetter("uses")
OPERATIONS: dict[str, type[Operation]] = {}


class Operation:
    """Base of all operations."""

    __slots__ = ("attributes", "checked", "loc", "next", "operands", "parent", "prev", "regions", "results", "segments")

    name: ClassVar[str] = ""
    effects: ClassVar[Effect] = Effect.NONE
    variadic_results: ClassVar[bool] = False
    fields: ClassVar[tuple[Field[Any], ...]] = ()
    operand_fields: ClassVar[tuple[OperandField[Any], ...]] = ()
    attr_fields: ClassVar[dict[str, attr[Any]]] = {}
    result_fields: ClassVar[tuple[result, ...]] = ()
    region_fields: ClassVar[tuple[region, ...]] = ()
    attr_types: ClassVar[tuple[tuple[str, type], ...]] = ()
    is_terminator: ClassVar[bool] = False
    has_effects: ClassVar[bool] = False
    plain_operands: ClassVar[tuple[tuple[type, ...], ...] | None] = ()  # the fields' types, if none is variadic

    def __init_subclass__(cls) -> None:
        own = [value for value in vars(cls).values() if isinstance(value, Field)]
        cls.fields = fields = (*cls.fields, *own)
        cls.operand_fields = tuple(field for field in fields if isinstance(field, OperandField))
        cls.result_fields = tuple(field for field in fields if isinstance(field, result))
        cls.region_fields = tuple(field for field in fields if isinstance(field, region))
        cls.attr_fields = {field.name: field for field in fields if isinstance(field, attr)}
        for group in (cls.operand_fields, cls.result_fields, cls.region_fields):
            for position, field in enumerate(group):
                field.position = position
        for position, field in enumerate(cls.operand_fields):
            if isinstance(field, operand):
                field.fixed = all(type(before) is operand for before in cls.operand_fields[:position])
        for each in own:
            setattr(cls, each.name, property(each.getter()))
        plain = all(type(field) is operand for field in cls.operand_fields)
        cls.plain_operands = tuple(field.types for field in cls.operand_fields) if plain else None
        cls.attr_types = tuple(
            (name, field.type)
            for name, field in cls.attr_fields.items()
            if isinstance(field.type, type) and field.type is not object
        )
        cls.is_terminator = Effect.TERMINATE in cls.effects
        cls.has_effects = cls.effects is not Effect.NONE
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
        self.checked = False  # by the verifier, since its operands, attributes and types last changed
        self.parent: Region | None = None
        self.prev: Operation | None = None
        self.next: Operation | None = None
        assert len(values) <= len(self.operand_fields), f"{self.name}: {len(values)} operand fields given"
        self.operands: list[Value] = []
        segments = [0] * len(self.operand_fields)
        for position, value in enumerate(values):
            if isinstance(value, Value):
                segments[position] = 1
                self.operands.append(value)
            elif value is not None:
                segments[position] = len(value)
                self.operands.extend(value)
        self.segments = tuple(segments)
        for value in self.operands:
            value.uses[self] = value.uses.get(self, 0) + 1
        for key, field in self.attr_fields.items():
            if key not in attributes:
                assert field.default is not attr.REQUIRED, f"{self.name}: attribute {key} is missing"
                attributes[key] = field.default
        self.attributes: Mapping[str, Any] = MappingProxyType(attributes)
        self.regions = list(regions)
        for inner in regions:
            assert inner.parent is None, f"{self.name}: the region has an owner"
            inner.parent = self
        self.results: list[Value] = []
        for type in self.infer() if result_types is None else result_types:
            self.results.append(Value(type, self))
        if names:
            for made, name in zip(self.results, names):
                made.name = name

    def infer(self) -> Sequence[Type]:
        """Result types, from operands and attributes. Operations whose types cannot be inferred are given them."""
        assert not self.result_fields, f"{self.name}: result_types must be given"
        return ()

    def fold(self) -> Sequence[Value | bool | int | float] | None:
        """What replaces the results: existing values, or numbers (splat, for tensors). None: nothing does."""
        return None

    def verify(self) -> None:
        """Check what the declarations cannot say; raise ValueError with one sentence."""

    # Structure

    def set_operands(self, values: Sequence[Value]) -> None:
        """Replace the operands, field by field as before."""
        Changes.count += 1
        self.checked = False
        for value in self.operands:
            count = value.uses[self] - 1
            if count:
                value.uses[self] = count
            else:
                del value.uses[self]
        self.operands = list(values)
        for value in self.operands:
            value.uses[self] = value.uses.get(self, 0) + 1

    def set_attribute(self, name: str, value: Any) -> None:
        """Change an attribute."""
        Changes.count += 1
        self.checked = False
        self.attributes = MappingProxyType({**self.attributes, name: value})

    def set_field(self, name: str, values: Sequence[Value]) -> None:
        """Replace the values of one operand field."""
        groups = [values if field.name == name else field.values(self) for field in self.operand_fields]
        self.segments = tuple(len(group) for group in groups)
        self.set_operands([value for group in groups for value in group])

    @property
    def result(self) -> Value:
        """The single result."""
        assert len(self.results) == 1, f"{self.name} has {len(self.results)} results"
        return self.results[0]

    @property
    def is_used(self) -> bool:
        """Whether any operation uses a result."""
        return any(map(_uses, self.results))

    @property
    def parent_op(self) -> Operation | None:
        return self.parent.parent if self.parent is not None else None

    def walk(self) -> Iterator[Operation]:
        """This operation and all inside."""
        yield self
        for inner in self.regions:
            yield from inner.walk()

    def detach(self) -> Operation:
        """Take the operation out of its region; its uses of others stay."""
        assert self.parent is not None, f"{self.name} stands in no region"
        Changes.count += 1
        if self.prev is None:
            self.parent.first = self.next
        else:
            self.prev.next = self.next
        if self.next is None:
            self.parent.last = self.prev
        else:
            self.next.prev = self.prev
        self.parent = self.prev = self.next = None
        return self

    def move_before(self, other: Operation) -> None:
        assert other.parent is not None, f"{other.name} stands in no region"
        self.detach()
        other.parent.insert(self, other)

    def erase(self) -> None:
        """Remove the operation and all inside for good. Its results must have no users."""
        assert not self.is_used, f"{self.name} is erased while its result is used"
        if self.parent is not None:
            self.detach()
        for inner in self.regions:
            for op in reversed(inner):
                op.erase()
        self.set_operands([])

    def clone(self, mapping: dict[Value, Value]) -> Operation:
        """A detached copy; operands go through `mapping`, which learns the copies of results and arguments."""
        copy = object.__new__(type(self))
        copy.loc, copy.parent, copy.prev, copy.next, copy.checked = self.loc, None, None, None, False
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
        """No effect beside its results: may be dropped when unused, and moved. Looks into regions."""
        if not self.has_effects:
            return True
        return self.effects == Effect.REGION and all(
            op.is_pure or op.effects == Effect.TERMINATE for inner in self.regions for op in inner
        )

    def __repr__(self) -> str:
        from tiledsl.ir.text import print_op

        return print_op(self, limit=3)


class VerifyError(Exception):
    """The IR broke a rule: an internal bug, or IR text that is wrong. `op` is the offender."""

    def __init__(self, op: Operation, message: str) -> None:
        super().__init__(f"{op.name}: {message}\n{op!r}")
        self.op = op


def verify(root: Operation, *, everything: bool = True) -> None:
    """Check declarations, use lists, dominance and each operation's own rules. Raises VerifyError.

    Without `everything`, operations that did not change since they were last verified are checked for dominance only.
    """
    if everything:
        for op in root.walk():
            op.checked = False
    _verify_declared(root)
    visible: set[Value] = set()
    for inner in root.regions:
        _verify_region(root, inner, visible)


def _verify_region(op: Operation, inner: Region, visible: set[Value]) -> None:
    """The operations of a region, where the values in `visible` are defined; the set is left as it was."""
    if inner.parent is not op:
        raise VerifyError(op, "a region does not know its owner")
    defined = list(inner.args)
    visible.update(defined)
    child = inner.first
    while child is not None:
        if child.parent is not inner:
            raise VerifyError(child, "does not know its region")
        for value in child.operands:
            if value not in visible:
                raise VerifyError(child, f"operand {value!r} is used where it is not defined")
        if child.is_terminator and child.next is not None:
            raise VerifyError(child, "stands before the end of its region")
        if not child.checked:
            _verify_declared(child)
            child.checked = not child.regions
            for each in child.regions:
                _verify_region(child, each, visible)
        visible.update(child.results)
        defined += child.results
        child = child.next
    visible.difference_update(defined)


def _verify_declared(op: Operation) -> None:
    plain = op.plain_operands
    if plain is None or len(plain) != len(op.operands):
        _verify_fields(op)
    else:
        for types, value in zip(plain, op.operands):
            if types and type(value.type) not in types:
                _verify_fields(op)
    for value in op.operands:
        if op not in value.uses:
            raise VerifyError(op, f"operand {value!r} does not list its use")
    if len(op.results) != len(op.result_fields) and not op.variadic_results:
        raise VerifyError(op, f"{len(op.results)} results instead of {len(op.result_fields)}")
    for made, value in zip(op.result_fields, op.results):
        if made.types and type(value.type) not in made.types:
            raise VerifyError(op, f"{made.name} is of type {value.type}")
    for key, expected in op.attr_types:
        if not isinstance(op.attributes.get(key), expected):
            raise VerifyError(op, f"{key} is {op.attributes.get(key)!r}")
    if len(op.regions) != len(op.region_fields):
        raise VerifyError(op, f"{len(op.regions)} regions instead of {len(op.region_fields)}")
    try:
        op.verify()
    except (ValueError, TypeError, LookupError, AssertionError) as error:
        raise VerifyError(op, str(error) or type(error).__name__) from error


def _verify_fields(op: Operation) -> None:
    position = 0
    for field, count in zip(op.operand_fields, op.segments, strict=True):
        if (type(field) is operand and count != 1) or (type(field) is optional and count > 1):
            raise VerifyError(op, f"{field.name} has {count} values")
        for value in op.operands[position : position + count]:
            if field.types and type(value.type) not in field.types:
                raise VerifyError(op, f"{field.name} is of type {value.type}")
        position += count
    if position != len(op.operands):
        raise VerifyError(op, f"{len(op.operands)} operands instead of {position}")
