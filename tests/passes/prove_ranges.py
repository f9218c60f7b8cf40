"""Holds the rules about integers against all values of 4-bit types. `make prove-ranges` tries every program.

Two things are proved of a program: that what `Ranges` claims of its values is so in every lane, and that canonicalize,
simplify-ranges and legalize-arith print the same as before wherever that was defined.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import numpy as np

from tests.passes import four_bit_programs as programs
from tests.support.all_values import SIGNED, UNSIGNED, AllValues, Lanes, Memo, changed_lanes, four_bits, is_number, wrap
from tiledsl.analysis import affine
from tiledsl.analysis.affine import bounds, linear_form
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, tile, triton
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.printer import print_op
from tiledsl.ir.rewrite import Pattern, Patterns, Rewriter, apply_patterns
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.legalize_arith import _patterns as legal_patterns
from tiledsl.passes.simplify_ranges import RANGE_PATTERNS

BOUNDS = 8  # with how many of the values around it each value is compared


class Refuted(AssertionError):
    """A claim or a rewrite that is wrong for some values."""


def prove_claims(func: tile.FuncOp, memo: Memo) -> Counter[str]:
    """Check everything that ranges say about the values of a program; how many claims of each kind there were."""
    alive = AllValues(func, memo).alive
    ranges, claims = Ranges(func), Counter[str]()
    made: dict[Region, tuple[list[Value], list[Value]]] = {}

    def check(region: Region, env: dict[Value, Lanes], active: np.ndarray) -> None:
        if region not in made:
            made[region] = _values(region)
        values, limits = made[region]
        for value in values:
            _check_value(value, env, active, ranges, claims)
            for bound in limits:
                _check_pair(value, bound, env, active, ranges, claims)
                _check_pair(bound, value, env, active, ranges, claims)

    AllValues(func, memo, alive=alive, observe=check)
    return claims


def _values(region: Region) -> tuple[list[Value], list[Value]]:
    values = [value for value in region.args if is_number(value)]
    values += [value for op in region for value in op.results if is_number(value)]
    around = region.parent.parent if region.parent is not None else None
    outside: list[Value] = []
    while around is not None and not isinstance(region.parent, triton.LaunchOp):
        outside += [value for value in around.args if is_number(value)]
        around = around.parent.parent if around.parent is not None else None
    limits = [value for value in (*outside, *values) if value.dtype != "bool"]
    return values, limits[:BOUNDS]


def _refuse(claim: str, value: Value, wrong: np.ndarray, env: dict[Value, Lanes]) -> None:
    lane = int(np.flatnonzero(wrong)[0])
    inputs = {
        each.name: env[each].number[lane] for each in env if each.op is None and each.name in ("x", "y", "n", "m")
    }
    source = value.op if value.op is not None else value
    operands = [(each.op or each, env[each].number[lane].tolist()) for each in getattr(source, "operands", ())]
    raise Refuted(f"{claim}: {source} is {env[value].number[lane].tolist()} for {inputs}, from {operands}")


def _check_value(
    value: Value, env: dict[Value, Lanes], active: np.ndarray, ranges: Ranges, claims: Counter[str]
) -> None:
    number, good = env[value]
    counted = good & active.reshape((-1,) + (1,) * (good.ndim - 1))
    low, high = ranges.of(value)
    claims["interval"] += 1
    if value.dtype in (SIGNED, UNSIGNED):
        claims["numbers in intervals"] += int(high) - int(low) + 1
    wrong = counted & ((number < low) | (number > high))
    if wrong.any():
        _refuse(f"from {low} to {high}", value, _any(wrong), env)
    if ranges.is_nonnegative(value):
        claims["at least 0"] += 1
        if (counted & (number < 0)).any():
            _refuse("at least 0", value, _any(counted & (number < 0)), env)
    op = value.op
    if isinstance(op, (arith.AddOp, arith.SubOp, arith.MulOp)) and ranges.never_wraps(op):
        claims["no wrap"] += 1
        (a, good_a), (b, good_b) = (env[each].with_rank(number.ndim - 1) for each in op.operands)
        sign = {arith.AddOp: a + b, arith.SubOp: a - b, arith.MulOp: a * b}[type(op)]
        wrong = counted & good_a & good_b & (sign != number)
        if wrong.any():
            _refuse("never wraps", value, _any(wrong), env)
    ends = bounds(value)
    if ends is not None:
        claims["bounds"] += 1
        wrong = counted & ((number < ends[0]) | (number > ends[1]))
        if wrong.any():
            _refuse(f"bounds {ends}", value, _any(wrong), env)
    if value.dtype in affine.INDEX_DTYPES:
        claims["sums"] += 1
        _check_sum(value, counted, env, ranges)


def _check_sum(value: Value, counted: np.ndarray, env: dict[Value, Lanes], ranges: Ranges) -> None:
    """A value's sum is the value itself where that is not negative; that of the wide type, modulo its size."""
    number, form = env[value].number, linear_form(value, through_names=True, ranges=ranges)
    total: np.ndarray = np.zeros_like(number)
    for factors, coefficient in form.terms.items():
        product = np.full_like(number, coefficient)
        for each in factors:
            factor, good = env[each].with_rank(number.ndim - 1)
            product, counted = product * factor, counted & good
        total = total + product
    if value.dtype == affine.INDEX_DTYPES[1]:
        total = wrap(total, value.dtype)
    wrong = counted & (number >= 0) & (total != number)
    if wrong.any():
        _refuse(f"the sum {form}", value, _any(wrong), env)


def _any(wrong: np.ndarray) -> np.ndarray:
    return wrong.reshape(len(wrong), -1).any(axis=1)


def _check_pair(
    value: Value, bound: Value, env: dict[Value, Lanes], active: np.ndarray, ranges: Ranges, claims: Counter[str]
) -> None:
    if value is bound or not _go_together(value, bound) or bound not in env or not ranges.below(value, bound):
        return
    claims["below"] += 1
    rank = max(len(value.shape), len(bound.shape))
    (a, good_a), (b, good_b) = env[value].with_rank(rank), env[bound].with_rank(rank)
    wrong = good_a & good_b & active.reshape((-1,) + (1,) * rank) & (a >= b)
    if wrong.any():
        lane = int(np.flatnonzero(_any(wrong))[0])
        _refuse(f"below {bound.op or bound}, which is {b[lane].tolist()}", value, _any(wrong), env)


def _go_together(value: Value, bound: Value) -> bool:
    if "bool" in (value.dtype, bound.dtype):
        return False
    return not (value.shape and bound.shape) or value.shape == bound.shape


# Rewrites


def counting(patterns: Patterns, fired: Counter[str]) -> Patterns:
    """The same patterns, which count how often they fire."""

    def counted(each: Pattern) -> Pattern:
        def apply(op: Operation, rw: Rewriter) -> bool:
            done = each(op, rw)
            fired[each.__name__] += done  # type: ignore[attr-defined]
            return done

        apply.op_types = each.op_types  # type: ignore[attr-defined]
        apply.__name__ = each.__name__  # type: ignore[attr-defined]
        return apply

    return Patterns(map(counted, patterns.every))


def rewrites(fired: Counter[str]) -> dict[str, Callable[[Operation], object]]:
    """What each of the three passes does."""
    canonical, ranged, legal = (
        counting(each, fired) for each in (CANONICAL_PATTERNS, RANGE_PATTERNS, legal_patterns("cuda", 90))
    )
    return {
        "canonicalize": lambda root: canonicalize(root, canonical),
        "simplify-ranges": lambda root: canonicalize(root, ranged, Ranges(root)),
        "legalize-arith": lambda root: apply_patterns(root, legal, analysis=Ranges(root)),
    }


def prove_rewrites(func: tile.FuncOp, passes: dict[str, Callable[[Operation], object]], memo: Memo) -> None:
    """Check that each pass keeps what the program prints."""
    before = AllValues(func, memo)
    for name, run in passes.items():
        after = func.clone({})
        assert isinstance(after, tile.FuncOp)
        run(after)
        wrong = changed_lanes(before, AllValues(after, memo))
        if wrong:
            (message, position), lanes = next(iter(wrong.items()))
            inputs = [value.number[lanes[0]] for value in list(before.env.values())[: len(func.body.args)]]
            old, new = (_printed(each, message, position) for each in (func, after))
            raise Refuted(f"{name}: for {inputs}\n{old}\nbecomes\n{new}")


def _printed(func: tile.FuncOp, message: str, position: int) -> str:
    """The expression that is printed at a place, as far as its operations reach."""
    op = next((op for op in func.walk() if isinstance(op, tile.PrintOp) and op.message == message), None)
    if op is None:
        return "nothing"
    lines: dict[Operation, None] = {}
    pending = [op.values[position]]
    while pending:
        value = pending.pop()
        if value.op is not None and not value.op.regions:
            lines.pop(value.op, None)
            lines[value.op] = None
            pending += value.op.operands
    return "\n".join(print_op(each) for each in reversed(lines)) or repr(op.values[position])


def every_program(dtype: str, share: int) -> Iterator[tile.FuncOp]:
    """All kinds of programs; of those that are many, every `share`-th, or a part of that."""
    numbers = programs.NUMBERS[dtype]
    yield from programs.conditions(dtype)
    yield from programs.casts(dtype)
    yield from programs.tensors(dtype)
    yield from programs.grids(dtype)
    yield from programs.control_flow(dtype)
    yield from programs.chains(dtype, numbers if share == 1 else (numbers[0], numbers[-1], 2, 4))
    yield from programs.assumptions(dtype, numbers if share == 1 else (numbers[0], 3))
    yield from itertools.islice(programs.loops(dtype), 0, None, min(share, 29))
    yield from programs.comparisons(dtype, numbers, step=min(share, 13))
    yield from programs.expressions(dtype, numbers, step=share)


def prove(dtypes: Sequence[str], share: int) -> tuple[int, Counter[str], Counter[str]]:
    """Prove all programs of these types; the numbers of expressions, of claims and of rewrites by pattern."""
    fired, claims, count = Counter[str](), Counter[str](), 0
    passes = rewrites(fired)
    if share > 1:
        del passes["canonicalize"]  # simplify-ranges has its patterns too
    # Indices are of 4 bits and pointers of 8; no sum is a position, of which it is assumed that it stays inside.
    with mock.patch.multiple(affine, INDEX_DTYPES=(SIGNED, "int8"), is_position=lambda value: False):
        for dtype in dtypes:
            for func in every_program(dtype, share):
                count += sum(len(op.values) for op in func.walk() if isinstance(op, tile.PrintOp))
                memo = Memo()
                claims += prove_claims(func, memo)
                prove_rewrites(func, passes, memo)
    return count, claims, fired


def main(share: int = 1) -> None:
    start = time.perf_counter()
    with four_bits():
        count, claims, fired = prove((SIGNED, UNSIGNED), share)
    seconds = time.perf_counter() - start
    made = ", ".join(f"{number} of {kind}" for kind, number in claims.items())
    print(f"{count} expressions, claims: {made}, {sum(fired.values())} rewrites hold for all values: {seconds:.0f} s")
    for name, number in sorted(fired.items(), key=lambda item: item[1]):
        print(f"{number:9} {name}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
