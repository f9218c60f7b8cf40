"""The parts of operations, as their classes declare them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from tiledsl.ir.core import Operation, Region, Value  # noqa: F401
    from tiledsl.ir.types import Type

T = TypeVar("T")


class Field(Generic[T]):
    """A declared part of an operation; its name is that in the class body. The class gets a property in its place."""

    name: str
    position = 0  # among the fields of its kind
    fixed = False  # whether each of those before it has exactly one value

    def __init__(self, *types: type, like: operand | Type | None = None) -> None:
        self.types = types  # classes of which a value's type may be; none: any
        self.like = like  # the type that a result gets, or the operand whose type it gets

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, op: Operation, owner: type) -> T:
        raise NotImplementedError("for type checkers: operations have a property")

    def getter(self) -> Callable[[Any], Any]:
        """A function that returns the part of an operation; `name` and `position` are known by then."""
        raise NotImplementedError


class OperandField(Field[T]):
    """Base of the three kinds of operand fields."""

    def values(self, op: Operation) -> list[Value]:
        segments, position = op.segments, self.position
        start = position if self.fixed else sum(segments[:position])
        return op.operands[start : start + segments[position]]


class operand(OperandField["Value"]):
    """Exactly one operand, of one of the given type classes (any, if none is given)."""

    def getter(self) -> Callable[[Any], Any]:
        position = self.position
        return (lambda op: op.operands[position]) if self.fixed else (lambda op: self.values(op)[0])


class operands(OperandField["list[Value]"]):
    """Any number of operands."""

    def getter(self) -> Callable[[Any], Any]:
        at = self.position
        return (lambda op: op.operands[at : at + op.segments[at]]) if self.fixed else lambda op: self.values(op)


class optional(OperandField["Value | None"]):
    """An operand that may be absent; printed as `name=%value`."""

    def getter(self) -> Callable[[Any], Any]:
        return lambda op: next(iter(self.values(op)), None)


class attr(Field[T]):
    """An attribute: an immutable Python value, one of `known` if that is given. Without a default it must be given."""

    REQUIRED: ClassVar[object] = object()

    def __init__(self, type: Callable[..., T], default: Any = REQUIRED, known: Collection[Any] | None = None) -> None:
        self.type, self.default, self.known = type, default, known

    def getter(self) -> Callable[[Any], Any]:
        name = self.name
        return lambda op: op.attributes[name]


class result(Field["Value"]):
    """Exactly one result."""

    def getter(self) -> Callable[[Any], Any]:
        position = self.position
        return lambda op: op.results[position]


class region(Field["Region"]):
    """A region."""

    def getter(self) -> Callable[[Any], Any]:
        position = self.position
        return lambda op: op.regions[position]
