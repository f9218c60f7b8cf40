"""Writes tile programs operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import BufferType, Dim, ScalarType, Type
from tiledsl.ir.verifier import verify

Index = Value | int


class Author:
    """Writes a program operation by operation. Ints stand for int32 constants where a scalar is expected."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.body = self.region = Region()
        self.parameters: list[str] = []
        self.symbols: list[str] = []
        self.symbol_sources: list[str] = []
        self.outputs: list[int] = []

    # The program

    def parameter(self, name: str, shape: Sequence[Dim], dtype: str, *, output: bool = False) -> Value:
        """A global buffer."""
        return self._parameter(name, BufferType(tuple(shape), dtype, "global"), output)

    def scalar(self, name: str, dtype: str = "int32") -> Value:
        return self._parameter(name, ScalarType(dtype), False)

    def _parameter(self, name: str, type: Type, output: bool) -> Value:
        assert not self.symbols, "parameters come before symbols"
        if output:
            self.outputs.append(len(self.parameters))
        self.parameters.append(name)
        return self.body.add_arg(type, name)

    def symbol(self, name: str, source: str) -> Value:
        """A dynamic dimension; `source` is parameter.axis."""
        self.symbols.append(name)
        self.symbol_sources.append(source)
        return self.body.add_arg(ScalarType("int32"), name)

    def finish(self) -> tile.FuncOp:
        """The verified program."""
        scf.yielding(self.body)
        func = tile.FuncOp(
            sym_name=self.name,
            parameters=tuple(self.parameters),
            symbols=tuple(self.symbols),
            symbol_sources=tuple(self.symbol_sources),
            outputs=tuple(self.outputs),
            regions=[self.body],
        )
        verify(func)
        return func

    @contextmanager
    def _inside(self, region: Region) -> Iterator[None]:
        outer, self.region = self.region, region
        yield
        self.region = outer

    @contextmanager
    def kernel(self, *grid: Index, **attributes: Any) -> Iterator[list[Value]]:
        sizes = [self.value(size) for size in grid]
        region = Region([ScalarType("int32")] * len(grid), ["bx", "by", "bz"])
        with self._inside(region):
            yield region.args
        self.emit(tile.KernelOp(sizes, regions=[scf.yielding(region)], **attributes))

    @contextmanager
    def parallel(self, *extents: int) -> Iterator[list[Value]]:
        region = Region([ScalarType("int32")] * len(extents), ["i", "j", "k", "l"])
        with self._inside(region):
            yield region.args
        self.emit(tile.ParallelOp(extents=tuple(extents), regions=[scf.yielding(region)]))

    @contextmanager
    def loop(self, lower: Index, upper: Index, step: Index = 1, **attributes: Any) -> Iterator[Value]:
        bounds = [self.value(bound) for bound in (lower, upper, step)]
        region = Region([bounds[0].type], ["k"])
        with self._inside(region):
            yield region.args[0]
        self.emit(scf.ForOp(*bounds, regions=[scf.yielding(region)], **attributes))

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        then, orelse = Region(), Region()
        with self._inside(then):
            yield
        regions = [scf.yielding(then), scf.yielding(orelse)]
        self.emit(scf.IfOp(condition, result_types=[], regions=regions))

    def choose(self, condition: Value, then: Callable[[], Value], orelse: Callable[[], Value]) -> Value:
        """A lazy `then if condition else orelse`."""
        regions = []
        for branch in (then, orelse):
            region = Region()
            with self._inside(region):
                scf.yielding(region, [branch()])
            regions.append(region)
        assert regions[0].last is not None
        return self.emit(scf.IfOp(condition, result_types=[regions[0].last.operands[0].type], regions=regions)).result

    # Operations

    def emit(self, op: Operation) -> Operation:
        self.region.insert(op)
        return op

    def value(self, value: Index) -> Value:
        return value if isinstance(value, Value) else self.constant(value)

    def constant(self, number: Any, dtype: str = "int32") -> Value:
        number = arith.as_constant(number, dtype)
        return self.emit(arith.ConstantOp(value=number, result_types=[ScalarType(dtype)])).result

    def binary(self, op_type: type[arith.BinaryOp], lhs: Index, rhs: Index) -> Value:
        return self.emit(op_type(self.value(lhs), self.value(rhs))).result

    def add(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.AddOp, lhs, rhs)

    def mul(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.MulOp, lhs, rhs)

    def sub(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.SubOp, lhs, rhs)

    def floordiv(self, lhs: Index, rhs: Index) -> Value:
        return self.binary(arith.FloorDivOp, lhs, rhs)

    def ceildiv(self, lhs: Index, rhs: int) -> Value:
        return self.floordiv(self.add(lhs, rhs - 1), rhs)

    def cmp(self, predicate: str, lhs: Index, rhs: Index) -> Value:
        return self.emit(arith.CmpOp(self.value(lhs), self.value(rhs), predicate=predicate)).result

    def math(self, function: str, *arguments: Value) -> Value:
        return self.emit(arith.MathOp(list(arguments), function=function)).result

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self.emit(arith.CastOp(value, result_types=[ScalarType(dtype)])).result

    def alloc(self, shape: Sequence[Dim], dtype: str, scope: str = "fragment", name: str = "") -> Value:
        type = BufferType(tuple(shape), dtype, scope)
        return self.emit(tile.AllocOp(result_types=[type], names=[name])).result

    def fill(self, target: Value, number: Any) -> None:
        self.emit(tile.FillOp(self.constant(number, target.dtype), target))

    def filled(self, number: Any, shape: Sequence[int], dtype: str, scope: str = "fragment", name: str = "") -> Value:
        made = self.alloc(shape, dtype, scope, name)
        self.fill(made, number)
        return made

    def load(self, buffer: Value, *indices: Index) -> Value:
        return self.emit(tile.LoadOp(buffer, [self.value(index) for index in indices])).result

    def store(self, value: Value, buffer: Value, *indices: Index) -> None:
        self.emit(tile.StoreOp(value, buffer, [self.value(index) for index in indices]))

    def atomic(self, kind: str, value: Value, buffer: Value, *indices: Index) -> Value:
        return self.emit(tile.AtomicOp(value, buffer, [self.value(index) for index in indices], kind=kind)).result

    def copy(
        self,
        source: Value,
        target: Value,
        *,
        at: Sequence[Index] = (),
        to: Sequence[Index] = (),
        shape: Sequence[int] | None = None,
        source_axes: Sequence[int] | None = None,
        target_axes: Sequence[int] | None = None,
        safe_value: float = 0.0,
    ) -> None:
        """A copy from offsets `at` to offsets `to`; the tile is the on-chip side's shape unless given."""
        if shape is None:
            inner = target if target.type.scope != "global" else source
            shape = inner.type.static_shape
        axes = tuple(range(len(shape)))
        self.emit(
            tile.CopyOp(
                source,
                [self.value(offset) for offset in at],
                target,
                [self.value(offset) for offset in to],
                shape=tuple(shape),
                source_axes=axes if source_axes is None else tuple(source_axes),
                target_axes=axes if target_axes is None else tuple(target_axes),
                safe_value=safe_value,
            )
        )

    def gemm(self, a: Value, b: Value, c: Value, **attributes: Any) -> None:
        self.emit(tile.GemmOp(a, b, c, **attributes))

    def reduce(self, source: Value, target: Value, kind: str, axis: int, **attributes: Any) -> None:
        self.emit(tile.ReduceOp(source, target, kind=kind, axis=axis, **attributes))
