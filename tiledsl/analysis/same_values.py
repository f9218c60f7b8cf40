"""Whether values that are computed twice are the same, and what operations may change of what is in memory."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.analysis.dependence import ancestors
from tiledsl.dialects import arith, tile
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.types import BufferType


class Written:
    """What an operation and those in it may change. Global buffers may overlap, on-chip ones do not."""

    def __init__(self, op: Operation) -> None:
        self.buffers: set[Value] = set()
        self.anything = False  # it writes through pointers, or waits for another block
        for inner in op.walk():
            if Effect.WRITE in inner.effects:
                named = [value for value in inner.operands if isinstance(value.type, BufferType)]
                self.buffers.update(named)
                self.anything |= not named
            elif Effect.ORDERED in inner.effects and inner.regions and not isinstance(inner, tile.ParallelOp):
                self.anything = True  # a while loop may wait for another block
        self.some_global = any(map(_is_global, self.buffers))

    def __contains__(self, source: Value) -> bool:
        """Whether what a buffer or pointer leads to may be another afterwards."""
        return self.anything or source in self.buffers or (self.some_global and _is_global(source))


def _is_global(source: Value) -> bool:
    return not isinstance(source.type, BufferType) or source.type.scope == "global"


def same_value(a: Value, b: Value) -> bool:
    """Whether two values are computed in the same way from the same elements, read while those do not change."""
    return _Comparison().equal(a, b)


def same_place(one: tile.LoadOp | tile.StoreOp, other: tile.LoadOp | tile.StoreOp) -> bool:
    """Whether two accesses are to the same elements of one buffer, in the same order."""
    if one.buffer is not other.buffer:
        return False
    pairs = zip(one.indices, other.indices, strict=True)
    return all(same_value(a, b) or arith.constant_of(a) == arith.constant_of(b) is not None for a, b in pairs)


class _Comparison:
    def __init__(self) -> None:
        self.found: dict[tuple[Value, Value], bool] = {}

    def equal(self, a: Value, b: Value) -> bool:
        if a is b:
            return True
        if (a, b) not in self.found:
            self.found[a, b] = a.op is not None and b.op is not None and self._alike(a.op, b.op)
        return self.found[a, b]

    def _alike(self, a: Operation, b: Operation) -> bool:
        if a.signature != b.signature or a.regions or len(a.results) != 1:
            return False
        if a.has_effects and not (isinstance(a, tile.LoadOp) and _unchanged(a, b)):
            return False
        return self._pairwise(a.operands, b.operands) or (
            isinstance(a, arith.BinaryOp) and a.commutes and self._pairwise(a.operands, b.operands[::-1])
        )

    def _pairwise(self, ones: Sequence[Value], others: Sequence[Value]) -> bool:
        return all(self.equal(one, other) for one, other in zip(ones, others, strict=True))


def _unchanged(a: Operation, b: Operation) -> bool:
    """Whether nothing writes what `a` and `b` read from the first of them to the other, in its region or one inside."""
    for one, other in ((a, b), (b, a)):
        around = next((each for each in (other, *ancestors(other)) if each.parent is one.parent), None)
        if around is None or around.order < one.order:
            continue
        assert one.parent is not None, "operations of one program"
        between = [op for op in one.parent if one.order < op.order < around.order]
        if around is not other:
            between.append(around)  # as a whole: it may be a loop
        return not any(one.operands[0] in Written(op) for op in between)
    return False
