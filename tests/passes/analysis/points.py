"""Runs the body of a T.Parallel for one point after the other, in plain Python."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tiledsl.dialects import arith, scf, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    arith.AddOp: operator.add,
    arith.AndOp: operator.and_,
    arith.MaxOp: max,
}
Place = tuple[tuple[int, int], ...]  # numbered dimensions, and where along each


class Points:
    """`env` has the values of one point. `seen` is told of each value that is computed: the value, its number, where
    the point is, and which iterations of the loops around it."""

    def __init__(
        self,
        env: Mapping[Value, Any],
        dims: Mapping[Operation, list[int]],
        seen: Callable[[Value, Any, Place, tuple[int, ...]], None],
        place: Place = (),
    ) -> None:
        self.env, self.dims, self.seen, self.place = dict(env), dims, seen, place
        self.turns: tuple[int, ...] = ()

    def of(self, value: Value) -> Any:
        number = constant_of(value)
        return self.env[value] if number is None else number

    def set(self, value: Value, number: Any) -> None:
        self.env[value] = number
        self.seen(value, number, self.place, self.turns)

    def bind(self, region: Region, numbers: Iterable[Any]) -> None:
        for arg, number in zip(region.args, numbers, strict=True):
            self.set(arg, number)

    def run(self, region: Region) -> list[Any]:
        """What the region yields."""
        for op in region:
            self._op(op)
        ends = [op for op in region if op.is_terminator]
        return [self.of(value) for op in ends for value in op.operands]

    def _op(self, op: Operation) -> None:
        if op.is_terminator or isinstance(op, (arith.ConstantOp, tile.AllocOp)):
            return
        if isinstance(op, arith.BinaryOp):
            self.set(op.result, BINARY[type(op)](self.of(op.lhs), self.of(op.rhs)))
        elif isinstance(op, arith.CmpOp):
            self.set(op.out, arith.PREDICATES[op.predicate](self.of(op.lhs), self.of(op.rhs)))
        elif isinstance(op, tile.LoadOp):
            local = tile.buffer_type(op.buffer).scope == "local"
            self.set(op.out, self.env[op.buffer] if local else hash(tuple(map(self.of, op.indices))) % 7)
        elif isinstance(op, tile.StoreOp):
            self.env[op.buffer] = self.of(op.value)
        elif isinstance(op, scf.IfOp):
            for result, number in zip(op.results, self.run(op.then if self.of(op.condition) else op.orelse)):
                self.set(result, number)
        elif isinstance(op, scf.ForOp):
            self._for(op)
        elif isinstance(op, scf.WhileOp):
            self._while(op)
        else:
            assert isinstance(op, tile.ParallelOp), op.name
            self.parallel(op)

    def _for(self, op: scf.ForOp) -> None:
        carried, around = list(map(self.of, op.inits)), self.turns
        for turn in range(*map(self.of, op.operands[:3])):
            self.turns = (*around, turn)
            self.bind(op.body, (turn, *carried))
            carried = self.run(op.body)
        self.turns = around
        for result, number in zip(op.results, carried, strict=True):
            self.set(result, number)

    def _while(self, op: scf.WhileOp) -> None:
        carried, around = list(map(self.of, op.inits)), self.turns
        for turn in itertools.count():
            self.turns = (*around, turn)
            self.bind(op.before, carried)
            goes_on, *carried = self.run(op.before)
            if not goes_on:
                break
            self.bind(op.after, carried)
            carried = self.run(op.after)
        self.turns = around
        for result, number in zip(op.results, carried, strict=True):
            self.set(result, number)

    def parallel(self, op: tile.ParallelOp) -> None:
        """Each point on its own."""
        for place in itertools.product(*map(range, op.extents)):
            inner = Points(self.env, self.dims, self.seen, (*self.place, *zip(self.dims[op], place, strict=True)))
            inner.turns = self.turns
            inner.bind(op.body, place)
            inner.run(op.body)
