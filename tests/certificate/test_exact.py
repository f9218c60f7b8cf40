"""Exact algebra: arithmetic modulo 2**61 - 1 against Python's integers, and what strict fingerprints tell apart."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tiledsl.certificate import modular, remembered
from tiledsl.certificate.algebra import Algebra, Unsupported
from tiledsl.certificate.exact import ExactAlgebra, fingerprints, numbers, unknowns
from tiledsl.certificate.formats import decoded, encoded, rounded
from tiledsl.certificate.translation import first_difference
from tiledsl.dialects.arith import FLOAT_FORMATS

P = modular.P
SMALL = {"bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}


@pytest.fixture(autouse=True)
def silent() -> Any:
    with np.errstate(all="ignore"):
        yield


def residues(generator: np.random.Generator, *shape: int) -> np.ndarray:
    made = generator.integers(0, P, shape, dtype=np.uint64)
    made.flat[:3] = 0, 1, P - 1
    return made


def test_modular_arithmetic() -> None:
    generator = np.random.default_rng(0)
    a, b = residues(generator, 9, 700), residues(generator, 700, 8)
    x, y = a[:, :8], b[:9].reshape(9, 8)
    whole = lambda array: array.astype(object)
    assert (whole(modular.multiply(x, y)) == whole(x) * whole(y) % P).all()
    assert (whole(modular.add(x, y)) == (whole(x) + whole(y)) % P).all()
    assert (whole(modular.dot(a, b)) == whole(a) @ whole(b) % P).all()
    assert (whole(modular.sums(a, 1)) == whole(a).sum(1) % P).all()
    some, alike = generator.integers(0, 2, (700, 8)) > 0, np.broadcast_to(np.arange(700)[:, None] % 3 > 0, (700, 8))
    for chosen in (some, alike):
        assert (whole(modular.chosen_sums(a, chosen)) == whole(a) @ whole(chosen.astype(int)) % P).all()
    assert (modular.multiply(x, modular.inverse(x)) == (x != 0)).all()
    assert (whole(modular.shifted(x, -7)) == whole(x) * pow(2, -7, P) % P).all()


@pytest.mark.parametrize("number", [0.1, -3.75, 1e-30, 7.0, -1e20, 0.0, 2.0**-1074])
def test_numbers_are_fractions(number: float) -> None:
    exact = Fraction(number)
    assert int(modular.of_numbers(np.float64(number))) == exact.numerator * pow(exact.denominator, -1, P) % P


@pytest.mark.parametrize("dtype", FLOAT_FORMATS)
def test_rounding_is_that_of_the_type(dtype: str) -> None:
    stored = np.dtype(SMALL.get(dtype, dtype))
    generator = np.random.default_rng(1)
    values = generator.normal(size=4000) * 2.0 ** generator.integers(-20, 18, 4000)
    values = values.astype(np.float32).astype(np.float64)
    expected = values.astype(np.float32).astype(stored)
    np.testing.assert_array_equal(rounded(values, dtype), expected.astype(np.float64))
    finite = np.isfinite(expected.astype(np.float64))
    bits = expected.view(f"u{stored.itemsize}")
    np.testing.assert_array_equal(encoded(expected.astype(np.float64), dtype)[finite], bits[finite])
    np.testing.assert_array_equal(decoded(bits, dtype)[finite], expected.astype(np.float64)[finite])


def elements(name: str, *shape: int) -> np.ndarray:
    return unknowns(np.random.default_rng(len(name)).normal(size=shape), name)


def same(a: Any, b: Any) -> bool:
    return bool((fingerprints(a) == fingerprints(b)).all())


def unlike(a: Any, b: Any) -> bool:
    return bool((fingerprints(a) != fingerprints(b)).all())


@pytest.mark.parametrize("allowed", [[], ["reassociation"]])
def test_what_ieee_arithmetic_promises(allowed: list[str]) -> None:
    algebra = ExactAlgebra(allowed)
    add, sub, mul, div = (algebra.binary(name, "float32") for name in ("add", "sub", "mul", "div"))
    negate, x, y = algebra.negate("float32"), elements("x", 4, 6), elements("yy", 4, 6)
    number = lambda value: algebra.constant(value, "float32")
    assert same(add(x, y), add(y, x)) and same(mul(x, y), mul(y, x))
    assert same(negate(add(x, y)), add(negate(x), negate(y))) and same(sub(x, y), negate(sub(y, x)))
    assert same(mul(negate(x), y), negate(mul(x, y))) and same(negate(negate(x)), x)
    assert same(add(x, number(0)), x) and same(mul(x, number(1)), x) and same(mul(x, number(0)), number(0))
    assert same(mul(x, number(0.5)), div(x, number(2))) and same(sub(x, x), number(0))
    assert same(add(x, x), mul(x, number(2))) and same(add(negate(x), negate(x)), mul(number(-2), x))
    assert same(add(number(0.1), number(0.2)), number(np.float32(0.1) + np.float64(np.float32(0.2))))
    narrow = algebra.cast("float32", "float16")
    assert same(narrow(narrow(x)), narrow(x)) and unlike(narrow(x), x)


def test_strict_fingerprints_tell_orders_apart() -> None:
    strict, field = ExactAlgebra(), ExactAlgebra(["reassociation"])
    x, y, z = (elements(name, 5) for name in ("x", "yy", "zzz"))
    for algebra, equal in ((strict, unlike), (field, same)):
        add, mul = algebra.binary("add", "float32"), algebra.binary("mul", "float32")
        assert equal(add(add(x, y), z), add(x, add(y, z)))
        assert equal(mul(x, add(y, z)), add(mul(x, y), mul(x, z)))
        assert equal(algebra.math("fma", "float32", "float32")(x, y, z), add(mul(x, y), z))
        total = algebra.reduce("sum", 1, "float32")
        line = elements("line", 3, 8)
        assert equal(total(line), total(line[:, ::-1]))
        padded = np.broadcast_to(numbers(0.0), (3, 16)).copy()
        padded[:, :8] = line
        assert same(total(line), total(padded))
        a, b = elements("a", 4, 32), elements("bb", 32, 5)
        dot = algebra.dot("float16", "float16", "float32")
        assert equal(dot(a[:, 16:], b[16:], dot(a[:, :16], b[:16], None)), dot(a, b, None))


@pytest.mark.parametrize("allowed", [[], ["reassociation"]])
def test_a_product_has_a_symbol_for_its_pairs_of_factors(allowed: list[str]) -> None:
    """Whatever stands where the other factor is 0, and from whichever side they come; but for any other change."""
    algebra = ExactAlgebra(allowed)
    dot = algebra.dot("float16", "float16", "float32")
    a, b, c = elements("a", 4, 32), elements("bb", 32, 5), elements("ccc", 4, 5)
    zeros = np.arange(32)[:, None] > 20 + np.arange(5)  # of each column others
    masked, other = np.where(zeros, numbers(0.0), b), a.copy()
    other[:, 22:] = elements("other", 4, 10)
    alike = fingerprints(dot(other, masked, c)) == fingerprints(dot(a, masked, c))
    assert (alike == [True, True, False, False, False]).all()
    assert same(dot(a, b, c), dot(b.T, a.T, c.T).T)
    changed = b.copy()
    changed[3, 2] = a[0, 0]
    assert (fingerprints(dot(a, changed, c)) != fingerprints(dot(a, b, c))).all(0).tolist() == [0, 0, 1, 0, 0]
    assert unlike(dot(a, b, c), dot(a, b, None)) and unlike(dot(a[:, ::-1], b, c), dot(a, b, c))


def test_factors_that_are_known_powers_of_two_move_the_point() -> None:
    """Of a whole array too, in which other numbers are."""
    algebra = ExactAlgebra()
    multiply, divide = algebra.binary("mul", "float32"), algebra.binary("div", "float32")
    given = [0.5, -2.0, 2.0**30, -(2.0**-30), 1.0, -1.0, 0.0, 3.0]
    x, factors = elements("x", 8), numbers(given)
    for at, number in enumerate(given):
        single = algebra.constant(number, "float32")
        assert same(multiply(x, factors)[at], multiply(x[at], single))
        assert not number or same(divide(x, factors)[at], divide(x[at], single))
    assert same(multiply(multiply(x, factors), divide(numbers(1.0), factors))[:6], x[:6])


def test_values_alone_are_those_with_fingerprints() -> None:
    field, alone = ExactAlgebra(["reassociation"]), ExactAlgebra(["rescaling"])
    x, y = elements("x", 8, 8), numbers(np.linspace(0.1, 3, 64).reshape(8, 8))
    for made in (
        lambda algebra: algebra.binary("mul", "float32")(y, algebra.constant(0.1, "float32")),
        lambda algebra: algebra.dot("float32", "float32", "float32")(x, y, None),
        lambda algebra: algebra.reduce("sum", 1, "float32")(algebra.math("exp2", "float32", "float32")(x)),
    ):
        assert (made(alone).real == made(field).real).all()


def test_what_is_the_same_along_an_axis_is_computed_once() -> None:
    add = ExactAlgebra().binary("add", "float32")
    x, y = elements("x", 8, 1), elements("yy", 8, 600)
    wide = np.broadcast_to(x, (8, 600))
    assert same(add(wide, y), add(wide.copy(), y)) and same(add(wide, wide), add(wide.copy(), wide.copy()))
    assert add(wide, wide).shape == (8, 600) and not add(wide, wide).strides[1]


def test_what_is_remembered_is_found_by_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of results too; what was used last is kept, and what is written to is looked at again."""
    monkeypatch.setattr(remembered, "_MOST_BYTES", 3 * (1024 * 8 + 1024))
    known, calls = remembered.Remembered(), []

    def double(x: Any) -> Any:
        calls.append(x)
        return 2 * x

    given = np.arange(1024.0)
    result = known.compute("double", double, (given,))
    assert known.compute("double", double, (given.copy(),)) is result and len(calls) == 1
    views = [known.compute("double", double, (each,)) for each in (result.reshape(32, 32), result.reshape(32, 32).T)]
    assert (views[1] == views[0].T).all() and len(calls) == 3
    assert known.compute("double", double, (given,)) is result and len(calls) == 3
    given[5] = 7
    assert known.compute("double", double, (given,))[5] == 14 and len(calls) == 4  # and the first view is forgotten
    assert known.compute("double", double, (np.arange(1024.0),)) is result and len(calls) == 4
    known.compute("double", double, (result.reshape(32, 32),))
    assert len(calls) == 5 and len(known.contents) == len(known.results) == 3


def test_a_product_of_nothing_but_zeros_is_a_known_zero() -> None:
    """Whether it is added to zeros or to nothing: what is computed of it is the same."""
    dot, exponential = (
        ExactAlgebra().dot("float16", "float16", "float32"),
        ExactAlgebra().math("exp2", *["float32"] * 2),
    )
    a, zeros = elements("a", 4, 32), numbers(np.zeros((32, 5)))
    for made in (dot(a, zeros, None), dot(a, zeros, numbers(np.zeros((4, 5))))):
        assert same(exponential(made), numbers(np.ones((4, 5))))


def test_recurrences_are_compared_where_they_are_finite() -> None:
    old, new = numbers([1.0, 2.0, np.inf]), numbers([1.0, np.nan, 3.0])
    assert first_difference(old, new) is not None
    assert first_difference(old, new, may_overflow=True) is None
    assert first_difference(old, numbers([1.5, np.nan, 3.0]), may_overflow=True) is not None


def test_masks_by_minus_infinity_may_hide_what_they_are_added_to() -> None:
    masks, plain = ExactAlgebra({"masking"}), ExactAlgebra()
    wild, low = numbers([np.nan, np.inf, 1.0]), numbers([-np.inf, -np.inf, -np.inf])
    add = masks.binary("add", "float32")
    assert same(add(wild, low), low) and same(add(low, wild), low)
    assert same(add(wild, wild), plain.binary("add", "float32")(wild, wild))
    assert np.isnan(plain.binary("add", "float32")(wild, low).real[:2]).all()
    row, column, mask = wild.reshape(1, 3), numbers(np.ones((3, 1))), low[:1].reshape(1, 1)
    assert same(masks.dot("float32", "float32", "float32")(row, column, mask), mask)
    assert np.isnan(plain.dot("float32", "float32", "float32")(row, column, mask).real).all()


def test_what_is_remembered_is_of_these_signs() -> None:
    """Of large arrays too, whose contents are summed up."""
    add = ExactAlgebra().binary("add", "float32")
    x = unknowns(np.random.default_rng(0).normal(size=(64, 256)), "x")
    for changed in ([0, 1], [0, 2048], [5, 700, 8000, 9000]):
        other = x.copy()
        other.reshape(-1).real[changed] *= -1
        assert (add(x, x).real == 2 * x.real).all() and (add(other, other).real == 2 * other.real).all()


def test_infinities_and_maxima_go_by_value() -> None:
    algebra = ExactAlgebra()
    low = algebra.constant(-np.inf, "float32")
    x = elements("x", 4)
    assert same(algebra.binary("max", "float32")(x, low), x)
    power = algebra.math("exp2", "float32", "float32")
    assert same(power(algebra.binary("sub", "float32")(low, x)), algebra.constant(0, "float32"))
    assert same(algebra.reduce("max", 0, "float32")(x), x[np.argmax(x.real)])


@pytest.mark.parametrize("algebra", [Algebra(), ExactAlgebra()])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_reductions_keep_the_sign_of_zeros(algebra: Algebra, kind: str) -> None:
    negative = np.full((2, 3), -0.0, np.float32)
    if isinstance(algebra, ExactAlgebra):
        negative = unknowns(negative.astype(np.float64), "x")
    made = algebra.reduce(kind, 1, "float32")(negative)
    value = made.real if isinstance(algebra, ExactAlgebra) else made
    assert value.shape == (2,) and np.signbit(value).all()  # three factors of a product


def test_what_bits_are_taken_of_is_had_back() -> None:
    """Exchanged by xor, as sorts do, and not of other bits; of two expressions of one value nothing is known."""
    algebra = ExactAlgebra()
    to_bits, of_bits = (algebra.bitcast(*types) for types in (("float32", "int32"), ("int32", "float32")))
    x = algebra.binary("add", "float32")(elements("x", 6), elements("yy", 6))
    bits = to_bits(x)
    both = np.bitwise_xor.reduce(bits.reshape(3, 2), 1)[:, None] ^ bits.reshape(3, 2)
    assert same(of_bits(both), x.reshape(3, 2)[:, ::-1])
    assert unlike(of_bits(bits ^ 1), x) and same(of_bits(bits ^ 1), numbers(of_bits(bits ^ 1).real))
    assert unlike(ExactAlgebra().bitcast("int32", "float32")(bits), x)  # another run's
    to_bits(unknowns(x.real[:1], "another"))
    assert same(of_bits(bits[1:]), x[1:])
    with pytest.raises(Unsupported, match="several expressions"):
        of_bits(bits)
