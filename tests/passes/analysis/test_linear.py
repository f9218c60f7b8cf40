"""Sums of products: their arithmetic, and what the reader that only wrapping limits makes of values."""

from __future__ import annotations

import itertools

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.affine import _IndexReader, form_interval, is_position, linear_form
from tiledsl.analysis.linear import LinearForm, Reader, constant_form, single_form
from tiledsl.analysis.ranges import Interval, Ranges
from tiledsl.ir.core import Value

BODY = """
%i = tensor.iota {axis = 0} : tensor<4xint32>
%a = arith.add %s, %c3 : int32
%p = arith.mul %a, %c4 : int32
%c = arith.sub %p, %bx : int32
%d = arith.neg %c : int32
%e = arith.mul %c-2, %d : int32
%f1 = arith.mul %s, %bx : int32
%g = arith.sub %f1, %f1 : int32
%h = arith.cast %a : int64
%j = arith.mul %g, %f1 : int32
%t = tensor.broadcast %s : tensor<4xint32>
%b2 = arith.mul %bx, %bx : int32
%bt = tensor.broadcast %bx : tensor<4xint32>
%u = arith.add %bt, %i : tensor<4xint32>
%v = arith.mul %u, %bt : tensor<4xint32>
%w = arith.mul %i, %i : tensor<4xint32>
"""


def named() -> dict[str, Value]:
    made = program(BODY)
    found = {value.name: value for op in kernel_of(made).walk() for value in op.results}
    return found | {arg.name: arg for op in made.root.walk() for region in op.regions for arg in region.args}


VALUES = named()
S, BX, I = VALUES["s"], VALUES["bx"], VALUES["i"]


def test_the_arithmetic_of_sums() -> None:
    one = LinearForm({(S,): 2, (S, BX): 1, (): 3})
    other = LinearForm({(S,): 1, (BX,): 4, (): -1})
    assert one.plus(other) == LinearForm({(S,): 3, (S, BX): 1, (BX,): 4, (): 2})
    assert one.plus(other, -2) == LinearForm({(S, BX): 1, (BX,): -8, (): 5})
    assert one.plus(one, -1) == LinearForm()
    assert other.times(other).terms == {
        (S, S): 1, (S, BX): 4, (S,): -2, (BX, S): 4, (BX, BX): 16, (BX,): -8, (): 1,
    }  # fmt: skip
    assert one.times(constant_form(-2)) == constant_form(-2).times(one) == LinearForm().plus(one, -2)
    assert one.times(constant_form(0)) == LinearForm() == constant_form(0)
    assert (one.constant, one.coefficient(S), one.coefficient(BX)) == (3, 2, 0)
    assert [each.is_constant for each in (one, constant_form(5), LinearForm(), LinearForm({}, 1))] == [
        False, True, True, False,
    ]  # fmt: skip


def test_slack_is_what_differs_by_element() -> None:
    """All numbers between the least and the greatest, against what the sums of two such numbers are."""
    for (a, slack), (b, other), factor in itertools.product([(0, 0), (-2, 3), (5, 1)], [(1, 0), (-4, 2)], (-3, 0, 2)):
        form = LinearForm(constant_form(a).terms, slack).plus(LinearForm(constant_form(b).terms, other), factor)
        all_of_it = {x + factor * y for x in range(a, a + slack + 1) for y in range(b, b + other + 1)}
        assert (form.constant, form.constant + form.slack) == (min(all_of_it), max(all_of_it))
    doubled = LinearForm({(S,): 1, (): 1}, 3).times(constant_form(-2))
    assert doubled == LinearForm({(S,): -2, (): -8}, 6)


def test_a_sum_for_a_term() -> None:
    form = LinearForm({(S,): 2, (BX,): 3, (S, BX): 1}, 4)
    assert form.substituted(S, LinearForm({(BX,): 1, (): 5}, 1)) == LinearForm({(BX,): 5, (S, BX): 1, (): 10}, 6)
    assert form.substituted(I, constant_form(9)) == form
    assert single_form(S) == LinearForm({(S,): 1})
    assert single_form(VALUES["c3"]) == LinearForm({(): 3})


def test_scalars_and_tensors() -> None:
    form = LinearForm({(S,): 2, (I,): 3, (S, I): 1, (): 7})
    assert form.split() == (LinearForm({(S,): 2, (): 7}), LinearForm({(I,): 3, (S, I): 1}))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", {(S,): 1, (): 3}), ("p", {(S,): 4, (): 12}), ("c", {(S,): 4, (BX,): -1, (): 12}),
        ("d", {(S,): -4, (BX,): 1, (): -12}), ("e", {(S,): 8, (BX,): -2, (): 24}), ("f1", {(VALUES["f1"],): 1}),
        ("g", {}), ("h", {(VALUES["h"],): 1}), ("i", {(I,): 1}), ("j", {}), ("t", {(VALUES["t"],): 1}),
    ],
)  # fmt: skip
def test_values_as_sums(name: str, expected: dict[tuple[Value, ...], int]) -> None:
    """Modulo 2**32; a product of two values that are not known, a cast and a broadcast are terms."""
    assert Reader().read(VALUES[name]) == LinearForm(expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("b2", {(VALUES["b2"],): 1}), ("v", {(BX, BX): 1, (I, BX): 1}), ("w", {(VALUES["w"],): 1})],
)
def test_a_product_of_sums_is_multiplied_out_where_that_parts_scalars_from_tiles(
    name: str, expected: dict[tuple[Value, ...], int]
) -> None:
    assert linear_form(VALUES[name], through_names=True) == LinearForm(expected)


def test_products_of_at_most_eight_terms_are_multiplied_out() -> None:
    reader, values = _IndexReader(True, Ranges()), list(VALUES.values())
    sums = [LinearForm({(value,): 1 for value in values[:count]}) for count in (8, 9)]
    assert reader.product(constant_form(3), sums[0]) == sums[0].times(constant_form(3))
    assert reader.product(constant_form(3), sums[1]) is None


@pytest.mark.parametrize(
    ("form", "limits", "expected"),
    [
        # %bx is 0 to 7, and what it is multiplied with is placed; the constant is not
        (LinearForm({(BX,): -1, (): 2}), (-5, 10), (-5, 2)), (LinearForm({(BX,): -1, (): 2}), (-4, 10), (-2, 2)),
        (LinearForm({(BX,): 1, (): -2}), (-10, 5), (-2, 5)), (LinearForm({(BX,): 1, (): -2}), (-10, 4), (-2, 2)),
        (LinearForm({(BX, BX): 2, (): -2}), (0, 90), (-2, 88)), (LinearForm({(BX, BX): -2}), (-9, 0), (-9, 0)),
        # nor is slack, but where it is asked for as one times nothing
        (LinearForm({(BX,): 1}, 9), (0, 16), (0, 16)), (LinearForm({(BX,): 1}, 9), (0, 5), (0, 14)),
        (LinearForm({(BX,): 3}, 9), (0, 5), (0, 5)),
    ],
)  # fmt: skip
def test_intervals_within_limits(form: LinearForm, limits: tuple[int, int], expected: tuple[int, int]) -> None:
    """Those of the sum where it stays within the limits by itself, else what is placed is cut off at them."""
    slack_too = form.coefficient(BX) == 3
    found = form_interval(
        form, Ranges(), Interval(*limits), lambda factors, factor: bool(factors) or slack_too and factor == 1
    )
    assert found == expected


def test_an_empty_form_is_the_number_zero() -> None:
    empty = LinearForm()
    assert empty.is_constant and (empty.constant, empty.slack) == (0, 0) and empty == constant_form(0)


def in_loop(lines: str) -> dict[str, Value]:
    made = program(f"scf.for %c0, %s, %c1 (%k: int32) {{ {lines} scf.yield }}").root
    found = {value.name: value for op in made.walk() for value in op.results}
    return found | {arg.name: arg for op in made.walk() for region in op.regions for arg in region.args}


@pytest.mark.parametrize(
    ("value", "placed"),
    [
        ("arith.mul %k, %c65536", True), ("arith.mul %k, %c65537", False), ("arith.mul %c65536, %k", True),
        ("arith.mul %c65537, %k", False), ("arith.mul %k, %c-65536", True), ("arith.mul %k, %c-65537", False),
        ("arith.add %k, %c65537", True),  # no factor
        ("arith.mul %m, %bx", True), ("arith.add %k, %s", False), ("arith.mul %s, %c2", False),
        ("arith.select %b, %k, %m", True), ("arith.select %b, %k, %s", False), ("arith.select %b, %s, %k", False),
        ("arith.and %k, %c3", True), ("arith.shr %k, %c3", True), ("arith.xor %k, %c3", False),  # as in a hash
        ("tile.load %N[%k]", False),
    ],
)  # fmt: skip
def test_which_integers_are_positions(value: str, placed: bool) -> None:
    assert is_position(in_loop(f"%x = {value} : int32")["x"]) is placed


@pytest.mark.parametrize("lower", ["%c0", "%m", "%s"])
def test_a_loops_index_is_a_position_where_the_loop_starts_at_one(lower: str) -> None:
    made = program(f"scf.for {lower}, %s, %c1 (%k: int32) {{ scf.yield }}").root
    (index,) = [arg for op in made.walk() for region in op.regions for arg in region.args if arg.name == "k"]
    assert is_position(index) is (lower != "%s")


@pytest.mark.parametrize(
    ("lines", "expected"), [("%y = arith.add %l, %l : int64", {"l": 2}), ("%y = arith.add %s, %s : int32", {"y": 1})]
)
def test_sums_as_wide_as_pointers_are_taken_apart_though_they_may_wrap(lines: str, expected: dict[str, int]) -> None:
    """As pointers do. One of int32 that may is a term."""
    form = linear_form(in_loop(lines)["y"], through_names=True)
    assert {factors[0].name: number for factors, number in form.terms.items()} == expected


def test_factors_of_positions_are_strides() -> None:
    """A sum is that of unbounded integers where each position is multiplied with at most 65536, in all."""
    for first, second, is_sum in ((256, -256, True), (256, -257, False), (1, -65536, True), (1, -65537, False)):
        lines = f"%x = arith.mul %k, %c{first} : int32 %y = arith.mul %x, %c{second} : int32"
        made = in_loop(f"{lines} %z = arith.add %y, %c5 : int32 %w = arith.cast %z : int64")
        terms = {factors[0].name: number for factors, number in linear_form(made["w"], True).terms.items() if factors}
        assert terms == ({"k": first * second} if is_sum else {"w": 1})
