"""Which values are computed from which, and what operations are nested in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from tiledsl.dialects import scf
from tiledsl.ir.core import Operation, Region, Value

_Node = TypeVar("_Node")


def reached(start: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> Iterator[_Node]:
    """What can be reached from `start` by steps to what is `following`, `start` included: each once, depth first, the
    last of what follows before the others. `following` is asked when the next one is wanted."""
    seen: set[_Node] = set()
    pending = list(start)
    while pending:
        node = pending.pop()
        if node not in seen:
            seen.add(node)
            yield node
            pending += following(node)


def operands_of(value: Value) -> list[Value]:
    """The values that one is computed from by the operation that gives it, into which this does not look."""
    return [] if value.op is None else list(value.op.operands)


def read_by(op: Operation) -> list[Value]:
    """What an operation reads, in its regions too."""
    return [value for inner in op.walk() for value in inner.operands]


def stripped(value: Value, *kinds: type[Operation]) -> Value:
    """The value that operations of these kinds, one after the other, take first: what is reshaped, cast, moved."""
    while isinstance(value.op, kinds):
        value = value.op.operands[0]
    return value


def depends_on(value: Value, sources: Collection[Value]) -> bool:
    """Whether a value is one of `sources`, or computed from one by operations, loops and branches not looked into."""
    return any(operand in sources for operand in reached([value], operands_of))


def ancestors(op: Operation) -> Iterator[Operation]:
    """The operations that one is nested in, the innermost first."""
    parent = op.parent_op
    while parent is not None:
        yield parent
        parent = parent.parent_op


def is_made_in(value: Value, op: Operation) -> bool:
    """Whether a value is an argument of the regions of an operation, or is made there."""
    owner = value.owner.parent if isinstance(value.owner, Region) else value.owner.parent_op
    return owner is op or owner is not None and op in ancestors(owner)


def handed_on(value: Value) -> list[Value]:
    """What a result of a branch or a loop, or a value that a loop carries, may be; nothing of other values."""
    owner, op = value.owner, value.op
    if isinstance(op, scf.IfOp):
        return [region.terminator.operands[op.results.index(value)] for region in op.regions]
    loop = owner.parent if isinstance(owner, Region) else owner
    if isinstance(loop, scf.ForOp) and value is not loop.index:
        number = (loop.iter_args if op is None else loop.results).index(value)
        return [loop.inits[number], loop.yielded[number]]
    if isinstance(loop, scf.WhileOp) and owner is loop.before:
        number = loop.iter_args.index(value)
        return [loop.inits[number], loop.yielded[number]]
    if isinstance(loop, scf.WhileOp):
        condition = loop.before.terminator
        assert isinstance(condition, scf.ConditionOp)
        return [condition.values[(loop.after.args if op is None else loop.results).index(value)]]
    return []
