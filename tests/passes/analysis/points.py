"""Runs the body of a kernel for one element or one point after the other, as plain Python has it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value

BINARY: dict[type, Callable[[Any, Any], Any]] = {
    arith.AddOp: operator.add, arith.SubOp: operator.sub, arith.MulOp: operator.mul, arith.AndOp: operator.and_,
    arith.OrOp: operator.or_, arith.MinOp: min, arith.MaxOp: max,
}  # fmt: skip
Place = tuple[tuple[int, int], ...]  # numbered dimensions, and where along each


def wrapped(number: Any, dtype: str) -> Any:
    bits = {"int32": 32, "int64": 64}.get(dtype)
    return number if bits is None else (number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


class Points:
    """`env` has the values of one point. `seen` is told of each value that is computed: the value, its number, where
    the point is, and which iterations of the loops around it."""

    def __init__(
        self,
        env: Mapping[Value, Any],
        place: Place = (),
        dims: Mapping[Operation, list[int]] | None = None,
        seen: Callable[[Value, Any, Place, tuple[int, ...]], None] | None = None,
    ) -> None:
        self.env, self.place, self.dims, self.seen = dict(env), place, dims or {}, seen
        self.turns: tuple[int, ...] = ()

    def of(self, value: Value) -> Any:
        number = constant_of(value)
        return self.env[value] if number is None else number

    def set(self, value: Value, number: Any) -> None:
        self.env[value] = number = wrapped(number, value.dtype)
        if self.seen:
            self.seen(value, number, self.place, self.turns)

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
        elif isinstance(op, arith.NotOp):
            self.set(op.out, not self.of(op.source))
        elif isinstance(op, arith.NegOp):
            self.set(op.out, -self.of(op.source))
        elif isinstance(op, arith.SelectOp):
            self.set(op.out, self.of(op.operands[1 if self.of(op.condition) else 2]))
        elif isinstance(op, (tensor.BroadcastOp, arith.CastOp)):
            self.set(op.out, self.of(op.source))
        elif isinstance(op, tensor.IotaOp):
            self.set(op.out, dict(self.place)[op.axis])
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
            for arg, number in zip(op.body.args, (turn, *carried), strict=True):
                self.set(arg, number)
            carried = self.run(op.body)
        self.turns = around
        for result, number in zip(op.results, carried, strict=True):
            self.set(result, number)

    def _while(self, op: scf.WhileOp) -> None:
        carried, around = list(map(self.of, op.inits)), self.turns
        for turn in itertools.count():
            self.turns = (*around, turn)
            for arg, number in zip(op.before.args, carried, strict=True):
                self.set(arg, number)
            goes_on, *carried = self.run(op.before)
            if not goes_on:
                break
            for arg, number in zip(op.after.args, carried, strict=True):
                self.set(arg, number)
            carried = self.run(op.after)
        self.turns = around
        for result, number in zip(op.results, carried, strict=True):
            self.set(result, number)

    def parallel(self, op: tile.ParallelOp) -> None:
        """Each point on its own."""
        for place in _places(op):
            inner = Points(self.env, (*self.place, *zip(self.dims[op], place, strict=True)), self.dims, self.seen)
            inner.turns = self.turns
            for arg, number in zip(op.body.args, place, strict=True):
                inner.set(arg, number)
            inner.run(op.body)


def _places(op: tile.ParallelOp) -> Iterator[tuple[int, ...]]:
    return itertools.product(*map(range, op.extents))
