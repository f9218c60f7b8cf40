"""What the producer of a Gluon kernel computes, and what its consumers need not: slices of a body by its uses."""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.analysis.dependence import operands_of, reached
from tiledsl.dialects import gluon
from tiledsl.ir.core import Effect, Operation, Value


def needed_for(values: Iterable[Value]) -> set[Operation]:
    """The operations that these values are computed by."""
    return {value.op for value in reached(values, operands_of) if value.op is not None}


def dependents(start: Iterable[Operation], among: set[Operation]) -> set[Operation]:
    """Those of `among` that are, or need the results of, some operation of `start`."""
    found = reached(start, lambda op: [user for value in op.results for user in value.uses if user in among])
    return among.intersection(found)


def only_for_loads(ops: Iterable[Operation]) -> set[Operation]:
    """Operations whose results go into the places of loaded tiles alone."""
    sources: set[Operation] = set()
    for op in reversed(list(ops)):
        if gluon.loads_tile(op):
            continue
        pure = not op.effects & (Effect.WRITE | Effect.ORDERED | Effect.TERMINATE) and not op.regions
        if (
            pure
            and op.is_used
            and all(gluon.loads_tile(user) or user in sources for v in op.results for user in v.uses)
        ):
            sources.add(op)
    return sources
