"""Bounds checks: every access to a global buffer gets the comparisons that its indices need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.analysis.implications import Known
from tiledsl.analysis.ranges import Ranges, dtype_interval
from tiledsl.dialects import arith, tensor, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ScalarType

Access = tile.LoadOp | tile.StoreOp | tile.AtomicOp
Key = tuple[Region | None, Value, str, object]


class _Guard:
    """Adds masks, and remembers the comparisons, so that a region never gets two equal ones."""

    def __init__(self, func: tile.FuncOp) -> None:
        self.func = func
        self.ranges = Ranges(func)
        self.made: dict[Key, Value] = {}

    def access(self, op: Access) -> None:
        type = tile.buffer_type(op.buffer)
        if type.scope != "global" or op.guarded:
            return
        conditions: list[Value] = []
        in_bounds = Known(self.ranges) if op.mask is None else Known.of(op.mask, self.ranges)
        for index, dim in zip(op.indices, type.shape, strict=True):
            bound = dim if isinstance(dim, int) else self.func.symbol(dim)
            if not self.ranges.is_nonnegative(index) and not in_bounds.is_nonnegative(index):
                conditions.append(self._compare(op, index, "ge", 0))
            if not self._is_below(index, bound) and not in_bounds.is_below(index, bound):
                conditions.append(self._compare(op, index, "lt", bound))
        op.set_attribute("guarded", True)
        if conditions:
            op.set_field("mask", [_all(op, conditions if op.mask is None else [op.mask, *conditions])])

    def _is_below(self, index: Value, bound: int | Value) -> bool:
        if isinstance(bound, int):
            return self.ranges.of(index).hi < bound
        return self.ranges.below(index, bound)

    def _compare(self, op: Operation, index: Value, predicate: str, bound: int | Value) -> Value:
        # Each comparison has the shape of its index alone: (BM, 1), not (BM, BN).
        if isinstance(index.op, tensor.BroadcastOp):
            index = index.op.source
        key = (op.parent, index, predicate, bound)
        if key not in self.made:
            builder = Builder.at(op)
            if isinstance(bound, int):
                low, high = dtype_interval(index.dtype)
                assert low <= bound <= high, f"{bound} is no {index.dtype}"  # else the range decides
                limit = builder.constant(bound, ScalarType(index.dtype))
            elif bound.dtype == index.dtype:
                limit = bound
            else:
                limit = builder.insert(arith.CastOp(bound, result_types=[ScalarType(index.dtype)])).result
            self.made[key] = builder.insert(arith.CmpOp(index, limit, predicate=predicate)).result
        return self.made[key]


def _all(op: Operation, conditions: Sequence[Value]) -> Value:
    """The conjunction: scalars first, then conditions of equal shape, and the broadcast last."""
    builder = Builder.at(op)
    groups: dict[tuple[int, ...], Value] = {}
    for condition in conditions:
        shape = condition.shape
        groups[shape] = builder.insert(arith.AndOp(groups[shape], condition)).result if shape in groups else condition
    result: Value | None = None
    for shape in sorted(groups, key=_elements):
        result = groups[shape] if result is None else builder.insert(arith.AndOp(result, groups[shape])).result
    assert result is not None
    return result


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


@dataclass(frozen=True)
class GuardAccesses(Pass):
    """Mask the indices into global buffers that are not proven to be in bounds; `guarded` marks a checked access.

    Before:  %x = tile.load %A[%rows, %columns]     After:  %ok = arith.cmp %rows, %M {predicate = "lt"}
                                                            %x = tile.load %A[%rows, %columns] mask=%ok {guarded = true}
    Each dimension is compared in its own shape, and only on the sides that neither ranges nor the access's own mask
    prove. enabled=false trusts every access (TileLang's tl.disable_safe_memory_legalize).
    Needs:   promote-buffers. Keeps: the masks and `other` values of the program.
    """

    name = "guard-accesses"
    enabled: bool = True

    def run(self, program: Program) -> None:
        func = program.root
        assert isinstance(func, tile.FuncOp), f"{func.name} is not a program"
        guard = _Guard(func)
        accesses: list[Access] = of_kinds(func.walk(), tile.LoadOp, tile.StoreOp, tile.AtomicOp)
        for op in accesses:
            if self.enabled:
                guard.access(op)
            elif tile.buffer_type(op.buffer).scope == "global":
                op.set_attribute("guarded", True)
