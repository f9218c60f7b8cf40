"""The interval of each operation, against the results for every number of small intervals."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.ranges import _RULES, EVERYTHING, Interval, _loop_index, _places
from tiledsl.dialects import arith
from tiledsl.ir.core import Operation

SMALL = [Interval(low, high) for low in range(-3, 4) for high in range(low, 4)]
# Of all pairs of small intervals: numbers that a rule allows and no operands give, and pairs that it knows nothing of.
LOOSE: dict[type[arith.BinaryOp], tuple[int, int]] = {
    arith.AddOp: (0, 0), arith.SubOp: (0, 0), arith.MulOp: (0, 0), arith.MinOp: (0, 0), arith.MaxOp: (0, 0),
    arith.FloorDivOp: (0, 280), arith.TruncDivOp: (0, 280), arith.FloorModOp: (32, 532), arith.TruncModOp: (24, 532),
    arith.AndOp: (126, 324), arith.OrOp: (11, 684), arith.XorOp: (85, 684), arith.ShlOp: (0, 504),
    arith.ShrOp: (0, 504), arith.CeilDivOp: (0, 280),
}  # fmt: skip


def results(compute: Callable[..., int], *operands: Interval) -> list[int]:
    computed = []
    for numbers in itertools.product(*(range(int(each.lo), int(each.hi) + 1) for each in operands)):
        try:
            computed.append(compute(*numbers))
        except (ArithmeticError, ValueError):  # undefined
            continue
    return computed


def checked(op: Operation, cases: Iterable[tuple[Interval, ...]], compute: Callable[..., int]) -> tuple[int, int]:
    """How much more than the results a rule allows, and how often it says nothing."""
    loose = unknown = 0
    for operands in cases:
        found, made = _RULES[type(op)](op, *operands), results(compute, *operands)
        if found is None:
            unknown += 1
        elif made:
            assert found.lo <= min(made) and max(made) <= found.hi, (operands, found)
            loose += int(found.hi - found.lo) - (max(made) - min(made))
    return loose, unknown


def operation(text: str) -> Operation:
    (made,) = [op for op in kernel_of(program(text)).walk() for each in op.results if each.name == "y"]
    return made


@pytest.mark.parametrize("op", LOOSE, ids=lambda op: op.name)
def test_two_operands(op: type[arith.BinaryOp]) -> None:
    made = operation(f"%y = {op.name} %s, %bx : int32")
    loose, unknown = checked(made, itertools.product(SMALL, SMALL), op.compute)
    assert loose <= LOOSE[op][0] and unknown <= LOOSE[op][1]


@pytest.mark.parametrize(
    ("text", "compute"),
    [
        ("%y = arith.neg %s : int32", lambda x: -x),
        ('%y = arith.math [%s] {function = "abs"} : int32', abs),
        ("%y = arith.cast %s : int64", lambda x: x),
        ("%y = tensor.broadcast %s : tensor<4xint32>", lambda x: x),
    ],
)
def test_one_operand(text: str, compute: Callable[..., int]) -> None:
    assert checked(operation(text), ((each,) for each in SMALL), compute) == (0, 0)


def test_three_operands() -> None:
    few = [each for each in SMALL if each.lo >= -2 and each.hi <= 1]
    ordered = [each for each in itertools.product(few, few, few) if each[1].hi <= each[2].lo]
    clamp = operation('%y = arith.math [%s, %bx, %m] {function = "clamp"} : int32')
    assert checked(clamp, ordered, lambda x, low, high: min(max(x, low), high)) == (0, 0)
    select = operation("%y = arith.select %b, %s, %bx : int32")
    either = itertools.product([Interval(0, 1)], few, few)
    assert checked(select, either, lambda condition, a, b: a if condition else b) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "compute"),
    [
        ("reduce sum", sum), ("reduce max", max), ("reduce min", min), ("reduce prod", None),
        ("scan max", max), ("scan min", min), ("scan sum", None), ("scan prod", None),
    ],
)  # fmt: skip
def test_elements_together(kind: str, compute: Callable[..., int] | None) -> None:
    name, kind = kind.split()
    out = "tensor<2xint32>" if name == "reduce" else "tensor<3x2xint32>"
    made = operation(
        f'%x = tensor.broadcast %s : tensor<3x2xint32> %y = tensor.{name} %x {{kind = "{kind}", axis = 0}} : {out}'
    )
    for each in SMALL:
        found, numbers = _RULES[type(made)](made, each), range(int(each.lo), int(each.hi) + 1)
        together = [compute(three) for three in itertools.product(numbers, repeat=3)] if compute else []
        assert found == (Interval(min(together), max(together)) if compute else None)


@pytest.mark.parametrize(
    ("text", "operands", "found"),
    [
        ("%y = tensor.iota {axis = 0} : tensor<4x1xint32>", [], Interval(0, 3)),
        ("%y = gluon.warp_group_id {parts = 3} : int32", [], Interval(0, 2)),
        ("%y = gluon.work_item_id %s : int32", [Interval(2, 5)], Interval(0, 4)),
        ("%y, %z = gluon.longest_first %s, %bx : int32, int32", [Interval(2, 5), Interval(1, 7)], Interval(0, 6)),
        ("%y = arith.cast %s : int64", [Interval(2, 5)], Interval(2, 5)),
        ("%y = arith.cast %f : int32", [EVERYTHING], None),
    ],
)
def test_places_and_casts(text: str, operands: list[Interval], found: Interval | None) -> None:
    made = operation(text)
    assert _RULES[type(made)](made, *operands) == found


def test_loops_that_go_up_or_down_for_certain() -> None:
    lower, upper, everything = Interval(2, 3), Interval(6, 9), Interval(-128, 127)
    assert _loop_index(lower, upper, Interval(1, 4), everything) == Interval(2, 8)
    assert _loop_index(lower, Interval(-5, 0), Interval(1, 4), everything) == Interval(2, 2)
    assert _loop_index(upper, lower, Interval(-4, -1), everything) == Interval(3, 9)
    assert _loop_index(upper, Interval(20, 30), Interval(-4, -1), everything) == Interval(9, 9)
    for step in (Interval(0, 2), Interval(-2, 0), Interval(-1, 1)):
        assert _loop_index(lower, upper, step, everything) == everything


def test_places_start_at_zero() -> None:
    assert [_places(5), _places(5, 7), _places(0), _places(-3)] == [(0, 4), (0, 6), (0, 0), (0, 0)]


def test_what_is_not_known() -> None:
    assert checked(operation("%y = arith.cast %s : bool"), [(Interval(0, 1),)], bool) == (0, 1)
    shifted = operation("%y = arith.shl %s, %bx : int32")
    rule = _RULES[type(shifted)]
    assert rule(shifted, Interval(1, 1), Interval(0, 63)) == Interval(1, 1 << 63)
    assert rule(shifted, Interval(1, 1), Interval(0, 64)) is None
    assert rule(shifted, Interval(1, 1), Interval(-1, 1)) is None
