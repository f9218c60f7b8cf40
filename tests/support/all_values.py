"""Runs a program on all values of its parameters at once, which their types of 4 bits make few.

`int4` and `uint4` exist inside of `four_bits()` only: the compiler's rules take widths from the table of element types,
so they are the rules of production that run. A lane is one choice of values for all parameters. Integers wrap. What has
no defined value (a quotient by zero, a shift by the width, ...) is poison and spreads to what is computed from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from tiledsl.dialects import arith, scf, tensor, tile, triton
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, BufferType, ElementInfo
from tiledsl.legality import Rule

SIGNED, UNSIGNED = "int4", "uint4"
LONGEST_LOOP = 64


@contextmanager
def four_bits() -> Iterator[None]:
    """Adds int4 and uint4 to the element types."""
    ELEMENTS[SIGNED] = ElementInfo("int", 4, -8, 7)
    ELEMENTS[UNSIGNED] = ElementInfo("uint", 4, 0, 15)
    fits = Rule.fits
    as_there = {SIGNED: "int32", UNSIGNED: "uint32"}  # whose rows of the table of element types hold for them
    Rule.fits = lambda row, types, *on: fits(row, tuple(as_there.get(each, each) for each in types), *on)  # type: ignore
    try:
        yield
    finally:
        Rule.fits = fits  # type: ignore[method-assign]
        del ELEMENTS[SIGNED], ELEMENTS[UNSIGNED]


def values_of(dtype: str) -> range:
    """All values of an integer type."""
    return range(int(ELEMENTS[dtype].low), int(ELEMENTS[dtype].high) + 1)


def wrap(number: Any, dtype: str) -> Any:
    """Integers as `dtype` stores them."""
    info = ELEMENTS[dtype]
    if info.kind == "bool":
        return (number != 0).astype(np.int64)
    if info.bits == 64:
        return number
    half = (1 << info.bits - 1) if info.kind == "int" else 0
    return ((number + half) & ((1 << info.bits) - 1)) - half


class Lanes(NamedTuple):
    """The value of every lane, and where it is defined; of tensors, the lanes are the first dimension."""

    number: np.ndarray
    good: np.ndarray

    def with_rank(self, rank: int) -> Lanes:
        """Both, with dimensions of 1 where a scalar goes with a tensor."""
        missing = (1,) * (rank + 1 - self.number.ndim)
        return self if not missing else Lanes(*(x.reshape(x.shape + missing) for x in self))


class Memo(dict["tuple[object, ...]", Lanes]):
    """What was computed before: programs that differ little share most of it. Keys have the identities of operands."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[Sequence[Lanes]] = []  # kept, so that nothing else gets their identities


# What is told after each time that a region ran: the region, the values so far, and the lanes that took part.
Observer = Callable[[Region, "dict[Value, Lanes]", np.ndarray], None]


class Printed(NamedTuple):
    """What one `tile.print` printed at once, and the lanes that came there."""

    values: list[Lanes]
    active: np.ndarray


class AllValues:
    """One run of a `tile.func` whose parameters are integers.

    `printed` has, for each message of `tile.print`, what was printed, in order. `alive` are the lanes in which
    nothing undefined happened beside poison: a loop without a step, a false assumption, a poisoned condition.
    """

    def __init__(
        self,
        func: tile.FuncOp,
        memo: Memo | None = None,
        *,
        alive: np.ndarray | None = None,
        observe: Observer | None = None,
    ) -> None:
        args = func.body.args
        domains: list[Sequence[int]] = [values_of(arg.dtype) for arg in args]
        for position in range(len(func.parameters), len(args)):
            domains[position] = range(1, domains[position][-1] + 1)  # a dynamic dimension
        lanes = np.array(list(itertools.product(*domains)), np.int64).reshape(-1, len(args))
        self.count = len(lanes)
        self.alive = np.ones(self.count, bool) if alive is None else alive.copy()
        self.memo = Memo() if memo is None else memo
        self.everywhere = np.ones(self.count, bool)
        self.env = {
            arg: self.memo.setdefault(
                ("parameter", at, arg.dtype), Lanes(np.ascontiguousarray(lanes[:, at]), self.everywhere)
            )
            for at, arg in enumerate(args)
        }
        self.printed: dict[str, list[Printed]] = {}
        self.observe = observe
        self.blocks: list[list[Lanes]] = []  # the indices of the blocks that run
        self.region(func.body, self.alive)

    def region(self, region: Region, active: np.ndarray) -> list[Lanes]:
        """Run the operations; the values that the terminator has."""
        for op in region:
            if op.is_terminator:
                if self.observe is not None:
                    self.observe(region, self.env, active & self.alive)
                return [self.env[value] for value in op.operands]
            statement = _STATEMENTS.get(type(op))
            if statement is not None:
                statement(self, op, active & self.alive)
            else:
                self.env[op.result] = self.expression(op)
        raise AssertionError("a region without terminator")

    def expression(self, op: Operation) -> Lanes:
        rank = len(op.result.shape)
        inputs = [self.env[value] for value in op.operands]
        key = (op.signature, *map(id, inputs))
        if key in self.memo:
            return self.memo[key]
        self.memo.operands.append(inputs)
        if isinstance(op, (tensor.BroadcastOp, arith.Elementwise)):
            inputs = [each.with_rank(rank) for each in inputs]
        kind = next(kind for kind in type(op).__mro__ if kind in _EXPRESSIONS)
        number, good = _EXPRESSIONS[kind](op, *inputs)
        shape = (self.count, *op.result.shape)
        made = Lanes(_spread(wrap(number, op.result.dtype), shape), _spread(good, shape))
        self.memo[key] = made
        return made

    def undefined(self, lanes: np.ndarray) -> None:
        """Forget what these lanes do."""
        self.alive &= ~lanes

    def splat(self, number: int) -> Lanes:
        """One number in every lane."""
        return self.memo.setdefault(("number", number), Lanes(np.full(self.count, number), self.everywhere))

    # Statements

    def print(self, op: tile.PrintOp, active: np.ndarray) -> None:
        if active.any():
            self.printed.setdefault(op.message, []).append(Printed([self.env[each] for each in op.values], active))

    def assume(self, op: tile.AssumeOp, active: np.ndarray) -> None:
        number, good = self.env[op.condition]
        self.undefined(active & ~(good & (number != 0)))

    def branch(self, op: scf.IfOp, active: np.ndarray) -> None:
        number, good = self.env[op.condition]
        self.undefined(active & ~good)
        then = self.region(op.then, active & (number != 0))
        orelse = self.region(op.orelse, active & (number == 0))
        for result, a, b in zip(op.results, then, orelse, strict=True):
            self.env[result] = _chosen(number != 0, a, b)

    def loop(self, op: scf.ForOp, active: np.ndarray) -> None:
        ends = [self.env[value] for value in op.operands[:3]]
        (lower, good), (upper, good_upper), (step, good_step) = ends
        self.memo.operands.append(ends)
        self.undefined(active & ~(good & good_upper & good_step & (step != 0)))
        active = active & self.alive
        iter_args = [self.env[value] for value in op.inits]
        for count in range(LONGEST_LOOP):
            index = lower + count * step
            going = active & np.where(step > 0, index < upper, index > upper)
            if not going.any():
                break
            key = ("index", count, *map(id, ends))
            self.env[op.index] = self.memo.setdefault(key, Lanes(index, self.everywhere))
            self.env.update(zip(op.body.args[1:], iter_args, strict=True))
            made = self.region(op.body, going)
            iter_args = [_chosen(going, new, old) for new, old in zip(made, iter_args, strict=True)]
        else:
            raise AssertionError("a loop without end")
        self.env.update(zip(op.results, iter_args, strict=True))

    def repeat(self, op: scf.WhileOp, active: np.ndarray) -> None:
        values = [self.env[value] for value in op.inits]
        results: list[Lanes] | None = None
        going = active
        for _ in range(LONGEST_LOOP):
            self.env.update(zip(op.before.args, values, strict=True))
            (number, good), *handed = self.region(op.before, going)
            self.undefined(going & ~good)
            results = handed if results is None else [_chosen(going, new, old) for new, old in zip(handed, results)]
            going = going & (number != 0) & self.alive
            if not going.any():
                break
            self.env.update(zip(op.after.args, handed, strict=True))
            made = self.region(op.after, going)
            values = [_chosen(going, new, old) for new, old in zip(made, values, strict=True)]
        self.undefined(going)  # without end
        self.env.update(zip(op.results, results or [], strict=True))

    def grid(self, op: tile.KernelOp | triton.LaunchOp, active: np.ndarray) -> None:
        extents = [self.env[value].number for value in op.grid]
        if isinstance(op, triton.LaunchOp):
            self.env.update((arg, self.env[value]) for arg, value in zip(op.body.args, op.arguments, strict=True))
        for block in itertools.product(*(range(int(each.max(initial=0))) for each in extents)):
            inside = active.copy()
            for at, extent in zip(block, extents, strict=True):
                inside &= at < extent
            indices = list(map(self.splat, block))
            if isinstance(op, tile.KernelOp):
                self.env.update(zip(op.body.args, indices, strict=True))
            self.blocks.append(indices)
            self.region(op.body, inside)
            self.blocks.pop()

    def program_id(self, op: triton.ProgramIdOp, active: np.ndarray) -> None:
        self.env[op.out] = self.blocks[-1][op.axis]

    def points(self, op: tile.ParallelOp, active: np.ndarray) -> None:
        for point in itertools.product(*map(range, op.extents)):
            for arg, at in zip(op.body.args, point, strict=True):
                self.env[arg] = self.splat(at)
            self.region(op.body, active)


_STATEMENTS: dict[type[Operation], Callable[[AllValues, Any, np.ndarray], None]] = {
    tile.PrintOp: AllValues.print,
    tile.AssumeOp: AllValues.assume,
    scf.IfOp: AllValues.branch,
    scf.ForOp: AllValues.loop,
    scf.WhileOp: AllValues.repeat,
    tile.KernelOp: AllValues.grid,
    triton.LaunchOp: AllValues.grid,
    triton.ProgramIdOp: AllValues.program_id,
    tile.ParallelOp: AllValues.points,
}


def _chosen(condition: np.ndarray, a: Lanes, b: Lanes) -> Lanes:
    condition = condition.reshape(condition.shape + (1,) * (a.number.ndim - condition.ndim))
    return Lanes(np.where(condition, a.number, b.number), np.where(condition, a.good, b.good))


def _spread(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return values if values.shape == shape else np.broadcast_to(values, shape)


# The meaning of expressions: from the lanes of the operands, numbers (which are wrapped afterwards) and where they are
# defined. Written from the definitions of the operations, not from their `compute`.


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    def meaning(op: Operation, *operands: Lanes) -> Any:
        good = operands[0].good
        for each in operands[1:]:
            good = good & each.good
        return function(*(each.number for each in operands)), good

    return meaning


def _division(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def meaning(op: Operation, a: Lanes, b: Lanes) -> Any:
        info = ELEMENTS[op.result.dtype]
        bad = (b.number == 0) | ((info.kind == "int") & (a.number == info.low) & (b.number == -1))
        return function(a.number, np.where(b.number == 0, 1, b.number)), a.good & b.good & ~bad

    return meaning


def _shift(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def meaning(op: Operation, a: Lanes, b: Lanes) -> Any:
        inside = (b.number >= 0) & (b.number < ELEMENTS[op.result.dtype].bits)
        return function(a.number, np.where(inside, b.number, 0)), a.good & b.good & inside

    return meaning


def _truncated(a: Any, b: Any) -> Any:
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _compare(op: arith.CmpOp, a: Lanes, b: Lanes) -> Any:
    x, y = a.number, b.number
    tests = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    return tests[op.predicate], a.good & b.good


def _select(op: arith.SelectOp, condition: Lanes, a: Lanes, b: Lanes) -> Any:
    chosen = condition.number != 0
    return np.where(chosen, a.number, b.number), condition.good & np.where(chosen, a.good, b.good)


def _function(op: arith.MathOp, *operands: Lanes) -> Any:
    functions: dict[str, Callable[..., Any]] = {
        "abs": np.abs,
        "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
        **dict.fromkeys(("floor", "ceil", "trunc", "round", "rint", "nearbyint"), lambda x: x),
    }
    return _plain(functions[op.function])(op, *operands)


def _by_shape(function: Callable[[Any, np.ndarray], np.ndarray]) -> Callable[..., Any]:
    return lambda op, source: (function(op, source.number), function(op, source.good))


def _reduced(op: tensor.ReduceOp, source: Lanes) -> Any:
    kinds = {"sum": "add", "max": "maximum", "min": "minimum", "and": "bitwise_and", "or": "bitwise_or",
             "xor": "bitwise_xor", "prod": "multiply"}  # fmt: skip
    number = wrap(np.abs(source.number), op.source.dtype) if op.kind.startswith("abs") else source.number
    combine = getattr(np, kinds[op.kind.removeprefix("abs")])
    return combine.reduce(number, axis=1 + op.axis), source.good.all(axis=1 + op.axis)


def _scanned(op: tensor.ScanOp, source: Lanes) -> Any:  # linear ones are of floats
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op.kind]
    number = np.flip(source.number, 1 + op.axis) if op.reverse else source.number
    made = combine.accumulate(number, axis=1 + op.axis)
    return np.flip(made, 1 + op.axis) if op.reverse else made, source.good.all(axis=1 + op.axis, keepdims=True)


def _gathered(op: tensor.GatherOp, source: Lanes, indices: Lanes) -> Any:
    inside = (indices.number >= 0) & (indices.number < op.source.shape[op.axis])
    at = np.where(inside, indices.number, 0)
    good = np.take_along_axis(source.good, at, 1 + op.axis)
    return np.take_along_axis(source.number, at, 1 + op.axis), good & inside & indices.good


def _iota(op: tensor.IotaOp) -> Any:
    return np.arange(op.extent).reshape((1, *op.out.shape)), np.True_


_EXPRESSIONS: dict[type[Operation], Callable[..., Any]] = {
    arith.ConstantOp: lambda op: (np.asarray(op.value).astype(np.int64), np.True_),
    arith.AddOp: _plain(np.add),
    arith.SubOp: _plain(np.subtract),
    arith.MulOp: _plain(np.multiply),
    arith.FloorDivOp: _division(np.floor_divide),
    arith.FloorModOp: _division(np.remainder),
    arith.TruncDivOp: _division(_truncated),
    arith.TruncModOp: _division(lambda a, b: a - _truncated(a, b) * b),
    arith.MinOp: _plain(np.minimum),
    arith.MaxOp: _plain(np.maximum),
    arith.AndOp: _plain(np.bitwise_and),
    arith.OrOp: _plain(np.bitwise_or),
    arith.XorOp: _plain(np.bitwise_xor),
    arith.ShlOp: _shift(np.left_shift),
    arith.ShrOp: _shift(np.right_shift),
    arith.NegOp: _plain(np.negative),
    arith.NotOp: lambda op, a: (1 - a.number if op.out.dtype == "bool" else ~a.number, a.good),
    arith.CmpOp: _compare,
    arith.SelectOp: _select,
    arith.CastOp: _plain(lambda a: a),
    arith.BitcastOp: _plain(lambda a: a),
    arith.MathOp: _function,
    tensor.IotaOp: _iota,
    tensor.BroadcastOp: _by_shape(lambda op, x: np.broadcast_to(x, (len(x), *op.out.shape))),
    tensor.ReshapeOp: _by_shape(lambda op, x: x.reshape((len(x), *op.out.shape))),
    tensor.TransposeOp: _by_shape(lambda op, x: np.transpose(x, (0, *(1 + axis for axis in op.permutation)))),
    tensor.ReduceOp: _reduced,
    tensor.ScanOp: _scanned,
    tensor.GatherOp: _gathered,
}


def changed_lanes(before: AllValues, after: AllValues) -> dict[tuple[str, int], np.ndarray]:
    """For each message and position in it, the lanes in which what was printed was defined and is another now."""
    found: dict[tuple[str, int], np.ndarray] = {}
    for message in {**before.printed, **after.printed}:
        old, new = before.printed.get(message, []), after.printed.get(message, [])
        for at in range(len((old or new)[0].values)):
            wrong = _differ([(x.values[at], x.active) for x in old], [(x.values[at], x.active) for x in new], after)
            if (wrong & before.alive).any():
                found[message, at] = np.flatnonzero(wrong & before.alive)
    return found


def _differ(old: list[tuple[Lanes, np.ndarray]], new: list[tuple[Lanes, np.ndarray]], after: AllValues) -> np.ndarray:
    if len(old) == len(new) and all(a is b and (c is d or (c == d).all()) for (a, c), (b, d) in zip(old, new)):
        return ~after.alive
    if len(old) == len(new) == 1 and old[0][0].number.ndim == new[0][0].number.ndim == 1:
        ((a, good), active), ((b, fine), still_active) = old[0], new[0]
        same = np.where(active, still_active & fine & (a == b), ~still_active)
        return (good | ~active) & ~(same & after.alive)
    (digest, good), (now, still) = (_digest(each, after.count) for each in (old, new))
    return good & ~((digest == now) & still & after.alive)


def _digest(events: list[tuple[Lanes, np.ndarray]], count: int) -> tuple[np.ndarray, np.ndarray]:
    """A number for the values that each lane printed in order, and whether all of them were defined."""
    digest, all_good = np.zeros(count, np.int64), np.ones(count, bool)
    for (number, good), active in events:
        axes = tuple(range(1, number.ndim))
        weights = np.arange(1, 1 + number[0].size).reshape(number.shape[1:])
        folded = (number * weights).sum(axis=axes) if axes else number
        digest = np.where(active, (digest * 1_000_003 + folded + 12_345) % (2**40), digest)
        all_good &= ~active | (good.all(axis=axes) if axes else good)
    return digest, all_good


def is_number(value: Value) -> bool:
    """Whether a value is of integers or bools, scalar or tensor."""
    info = ELEMENTS.get(value.dtype)
    return info is not None and info.kind != "float" and not isinstance(value.type, BufferType)
