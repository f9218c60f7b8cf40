"""Reducers, on-chip tiles to which every iteration of a T.Parallel may contribute, and what holds of whole tiles."""

from __future__ import annotations

import math
from typing import Any

from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.language.allocation import alloc_fragment
from tiledsl.language.buffer import Buffer, Reference
from tiledsl.language.expression import Scalar, as_value, compare, context, describe, select
from tiledsl.language.operations import copy, fill, reshape, whole
from tiledsl.language.reductions import reduce
from tiledsl.legality import permitted

__all__ = ["all_of", "alloc_reducer", "any_of", "finalize_reducer", "reducer_init", "reducer_update"]

# How a reducer's contributions are combined: the kind of tile.atomic, of tensor.reduce, and the operator.
_KINDS: dict[str, tuple[str, str, type[arith.BinaryOp]]] = {
    "sum": ("add", "sum", arith.AddOp),
    "max": ("max", "max", arith.MaxOp),
    "min": ("min", "min", arith.MinOp),
    "bitand": ("and", "and", arith.AndOp),
    "bitor": ("or", "or", arith.OrOp),
    "bitxor": ("xor", "xor", arith.XorOp),
}


class Reducer(Buffer):
    """A tile in registers with an operator: `reducer[i] += x` in T.Parallel adds up what all iterations contribute."""

    __slots__ = ("op",)

    def __init__(self, value: Value, op: str) -> None:
        super().__init__(value)
        self.op = op

    def __getitem__(self, index: Any) -> ReducerElement:
        return ReducerElement(self, index if isinstance(index, tuple) else (index,))


class ReducerElement(Reference):
    """`reducer[indices]`. Storing `reducer[indices] <operator> x` in it contributes x; any other store replaces it."""

    __slots__ = ()

    def store(self, value: Any) -> None:
        assert isinstance(self.buffer, Reducer)
        if not self.is_region and isinstance(value, Scalar):
            term = self._contribution(as_value(value))
            if term is not None:
                contribute(self, Scalar(term))
                return
        super().store(value)

    def _contribution(self, value: Value) -> Value | None:
        """x, where the value is `self <operator> x` in any order and nesting; else None."""
        assert isinstance(self.buffer, Reducer)
        op, combine = value.op, _KINDS[self.buffer.op][2]
        if isinstance(op, arith.CastOp) and op.source.dtype != self.buffer.dtype:  # made in a wider type
            return self._contribution(op.source)
        if not isinstance(op, combine):
            return None
        for mine, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if self._is_own(mine):
                return other
            inner = self._contribution(mine)
            if inner is not None:
                return context("a reducer").builder.insert(combine(inner, other)).out
        return None

    def _is_own(self, value: Value) -> bool:
        op = value.op
        if isinstance(op, arith.CastOp):
            op = op.source.op
        return isinstance(op, tile.LoadOp) and op.buffer is self.buffer.value and self._same_place(op)

    def _same_place(self, load: Operation) -> bool:
        assert isinstance(load, tile.LoadOp)
        pairs = zip(load.indices, self.indices(), strict=True)
        return all(one is other or constant_of(one) == constant_of(other) is not None for one, other in pairs)


def contribute(place: ReducerElement, value: Any) -> None:
    """Combine a value with an element of a reducer."""
    assert isinstance(place.buffer, Reducer)
    kind = _KINDS[place.buffer.op][0]
    stored = as_value(value, place.buffer.dtype)
    context("T.reducer_update").builder.insert(
        tile.AtomicOp(stored, place.buffer.value, place.indices(), kind=kind, semantics="relaxed")
    )


def alloc_reducer(shape: Any, dtype: Any, op: str = "sum", replication: Any = None) -> Reducer:
    """A tile whose elements collect contributions with `op`: sum, max, min, bitand, bitor or bitxor (of integers).

    `T.reducer_init` (or T.clear, T.fill) begins, `T.reducer_update(r[i], x)` (or `r[i] += x`, `r[i] = T.max(r[i], x)`)
    contributes, `T.finalize_reducer(r, dst)` ends. `replication` is a hint without effect. `shape` and `dtype` are as
    in T.alloc_fragment. Raises TileError for another `op`, and for bits of floats.

    Example:
        # X = [[1, 2], [3, 4]]
        total = T.alloc_reducer((2,), "int32", op="sum")
        T.reducer_init(total)
        for i, j in T.Parallel(2, 2):
            T.reducer_update(total[i], X[i, j])
        T.finalize_reducer(total, Y)
        # Y = [3, 7]
    """
    if op not in _KINDS:
        raise TileError(f"T.alloc_reducer: no operator {op!r}; there are {', '.join(_KINDS)}")
    made = alloc_fragment(shape, dtype)
    permitted(f"T.alloc_reducer: {op}", f"reduce.{_KINDS[op][1]}", made.dtype.name)
    return Reducer(made.value, op)


def _reducer(what: str, reducer: Any) -> Reducer:
    if not isinstance(reducer, Reducer):
        raise TileError(f"{what} needs what T.alloc_reducer returned, not {describe(reducer)}")
    return reducer


def reducer_init(reducer: Any, init: Any = None) -> None:
    """Begin: every element is `init` (a number, or a tile of the same shape), which is combined once; else nothing.

    Raises TileError unless `reducer` is what T.alloc_reducer returned.

    Example:
        # X = [[1, 2], [3, 4]]
        largest = T.alloc_reducer((2,), "int32", op="max")
        T.reducer_init(largest, 3)
        for i, j in T.Parallel(2, 2):
            T.reducer_update(largest[i], X[i, j])
        T.finalize_reducer(largest, Y)
        # Y = [3, 4]
    """
    target = _reducer("T.reducer_init", reducer)
    if isinstance(init, (Buffer, Reference)) and (isinstance(init, Buffer) or init.is_region):
        copy(init, target)
        return
    fill(target, tensor.neutral(_KINDS[target.op][1], target.type.dtype) if init is None else init)


def reducer_update(target: Any, value: Any) -> None:
    """Contribute a value to `reducer[indices]`: once for each iteration of the T.Parallel and the loops around it.

    `target` is one element, and `value` a scalar that is converted to its type. Raises TileError for another target.

    Example:
        # X = [1, 2, 3]
        squares = T.alloc_reducer((1,), "int32")
        T.reducer_init(squares)
        for i in T.Parallel(3):
            T.reducer_update(squares[0], X[i] * X[i])
        T.finalize_reducer(squares, Y)
        # Y = [14]
    """
    if not isinstance(target, ReducerElement) or target.is_region:
        raise TileError(f"T.reducer_update needs an element of a reducer, reducer[i], not {describe(target)}")
    contribute(target, value)


def finalize_reducer(reducer: Any, dst: Any = None, batch: int = 1, annotations: Any = None) -> None:
    """End: copy the result to `dst`, a place of its shape, if given. The reducer itself may be read, too.

    The rest are hints. Raises TileError unless `reducer` is what T.alloc_reducer returned, and as T.copy does.

    Example:
        # X = [1, 2, 4]
        bits = T.alloc_reducer((1,), "int32", op="bitor")
        T.reducer_init(bits)
        for i in T.Parallel(3):
            T.reducer_update(bits[0], X[i])
        T.finalize_reducer(bits)
        Y[0] = bits[0]
        # Y = [7]
    """
    source = _reducer("T.finalize_reducer", reducer)
    if dst is not None:
        copy(source, dst)


def _reduce_flags(kind: str, x: Any) -> Any:
    """Whether any or all elements of a buffer or slice are true, as a scalar."""
    source, _ = whole(f"T.{kind}_of", x)
    flat = reshape(source, (math.prod(source.type.static_shape),)) if source.ndim != 1 else source
    flags = alloc_fragment(flat.type.shape, "int32")
    context("a reduction").elementwise(flat, flags, lambda value: select(compare("ne", value, 0), 1, 0))
    out = alloc_fragment((1,), "int32")
    reduce(flags, out, "max" if kind == "any" else "min", 0)
    return compare("ne", out[0], 0)


def any_of(buffer: Any) -> Any:
    """True if an element of `buffer`, a buffer or slice of constant shape and any type, is not 0: a bool scalar.

    Raises TileError for anything else.

    Example:
        # X = [[0, 2], [0, 0]]
        for i in T.serial(2):
            Y[i] = T.any_of(X[i, :])
        # Y = [True, False]
    """
    return _reduce_flags("any", buffer)


def all_of(buffer: Any) -> Any:
    """True if no element of `buffer`, a buffer or slice of constant shape and any type, is 0: a bool scalar.

    Raises TileError for anything else.

    Example:
        # X = [[0, 2], [0, 0]]
        for i in T.serial(2):
            Y[i] = T.all_of(X[i, :])
        # Y = [False, False]
    """
    return _reduce_flags("all", buffer)
