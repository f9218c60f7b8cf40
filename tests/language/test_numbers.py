"""Functions of Python numbers: exact on integers of any size, and refused where they are not defined."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, trunc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

INTEGERS = st.integers() | st.integers(-(2**70), 2**70) | st.integers(-20, 20)


@given(INTEGERS, INTEGERS.filter(bool))
def test_divisions_are_exact(a: int, b: int) -> None:
    quotient = Fraction(a, b)
    expected = {
        T.truncdiv: trunc(quotient), T.truncmod: a - trunc(quotient) * b, T.div: trunc(quotient),
        T.floordiv: floor(quotient), T.floormod: a - floor(quotient) * b,
        T.ceildiv: ceil(quotient), T.align_up: ceil(quotient) * b,
    }  # fmt: skip
    for function, wanted in expected.items():
        made = function(a, b)
        assert type(made) is int and made == wanted, function.__name__


@given(INTEGERS, st.integers(0, 100))
def test_shifts_and_powers_are_exact(a: int, n: int) -> None:
    expected = {T.shift_left: a * 2**n, T.shift_right: floor(Fraction(a, 2**n)), T.power: a**n, T.pow: a**n}
    for function, wanted in expected.items():
        made = function(a, n)
        assert type(made) is int and made == wanted, function.__name__


@given(INTEGERS, INTEGERS, INTEGERS)
def test_other_functions_of_integers_are_exact(a: int, b: int, c: int) -> None:
    for function in (T.floor, T.ceil, T.trunc, T.round, T.rint, T.nearbyint):
        assert function(a) == a and type(function(a)) is int
    assert T.round(a, "ties-away-from-zero") == a
    assert T.fma(a, b, c) == a * b + c
    assert (T.max(a, b), T.min(a, b), T.abs(a)) == (max(a, b), min(a, b), abs(a))
    assert (T.bitwise_and(a, b), T.bitwise_or(a, b), T.bitwise_xor(a, b)) == (a & b, a | b, a ^ b)
    assert T.bitwise_not(a) == -a - 1


def test_bits_of_integers_are_those_of_32_or_64() -> None:
    assert (T.popcount(255), T.popcount(-1), T.popcount(-(1 << 40)), T.popcount(2**64 - 1)) == (8, 32, 24, 64)
    assert (T.clz(0), T.clz(1), T.clz(-1), T.clz(1 << 40)) == (32, 31, 0, 23)


@pytest.mark.parametrize(
    "call",
    [
        lambda: T.truncdiv(1, 0), lambda: T.truncmod(1, 0), lambda: T.floordiv(1, 0), lambda: T.floormod(1.0, 0.0),
        lambda: T.truncmod(1.0, 0.0), lambda: T.div(1.0, 0.0), lambda: T.shift_left(1, -1), lambda: T.clz(1.5),
        lambda: T.shift_right(1, -1), lambda: T.shift_left(1.5, 1),
        lambda: T.bitwise_and(1.5, 1), lambda: T.bitwise_not(1.5), lambda: T.power(0, -1),
        lambda: T.power(-8, 1 / 3), lambda: T.power(2.0, 10000), lambda: T.sqrt(-1), lambda: T.log(0),
        lambda: T.exp(10000), lambda: T.floor(float("inf")), lambda: T.int32(float("nan")), lambda: T.popcount(1.5),
        lambda: T.popcount(1 << 64), lambda: T.clz(-(1 << 63) - 1),
    ],
)  # fmt: skip
def test_what_is_not_defined_is_refused(call: Any) -> None:
    with pytest.raises(TileError):
        call()


def test_a_negated_bool_is_a_number() -> None:
    """Of an element, negated or not, stored, counted, compared and carried by a loop."""

    @T.prim_func
    def negated(M: T.Tensor((4,), "bool"), R: T.Tensor((8,), "int32"), B: T.Tensor((4,), "bool")):
        with T.Kernel(1, threads=32):
            R[0] = T.cast(not M[0], "int32") + 1
            R[1] = (not M[1]) + (not M[0])
            flag = not M[2]
            R[2] = T.cast(flag, "int32") * 5
            R[3] = T.cast((not M[0]) == (not M[1]), "int32") + 3
            R[4] = T.if_then_else(not M[3], 7, 9)
            count = T.alloc_var("int32", 0)
            for i in range(4):
                count += T.cast(not M[i], "int32")
            R[5] = count
            R[6] = T.cast(not (not M[1]), "int32") - 2  # noqa: SIM208
            if not M[0]:
                R[7] = T.max(not M[0], M[1])
            for i in T.Parallel(4):
                B[i] = not M[i]

    for bits in range(16):
        given = [bool(bits >> i & 1) for i in range(4)]
        no = [int(not each) for each in given]
        result, inverse = torch.full((8,), -1, dtype=torch.int32), torch.zeros(4, dtype=torch.bool)
        tiledsl.compile(negated, target="interpret")(torch.tensor(given), result, inverse)
        wanted = [
            no[0] + 1, no[1] + no[0], no[2] * 5, (no[0] == no[1]) + 3, 7 if no[3] else 9, sum(no), 1 - no[1] - 2,
            1 if no[0] else -1,
        ]  # fmt: skip
        assert result.tolist() == wanted and inverse.tolist() == [not each for each in given]


def test_counts_of_bits_have_the_operands_type() -> None:
    @T.prim_func
    def shifted(X: T.Tensor((4,), "int64"), R: T.Tensor((4,), "int64")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                R[i] = (T.popcount(X[i]) << 40) + T.clz(X[i])

    values = torch.tensor([0, 1, -1, 1 << 40])
    result = torch.zeros(4, dtype=torch.int64)
    tiledsl.compile(shifted, target="interpret")(values, result)
    assert result.tolist() == [64, (1 << 40) + 63, 64 << 40, (1 << 40) + 23]
    assert "libdevice.popc(X_tile).to(tl.int64)" in tiledsl.compile(shifted, target="cuda:90").source


LARGE = 3_000_000_000


@pytest.mark.parametrize(
    ("made", "dtype", "wanted"),
    [
        (lambda x: x < LARGE, "int32", [1, 1, 1]),
        (lambda x: x > -LARGE, "int32", [1, 1, 1]),
        (lambda x: T.max(x, LARGE), "int32", [LARGE] * 3),
        (lambda x: LARGE // T.max(x, 2), "int32", [LARGE // 2, LARGE // 2, LARGE // 5]),
        (lambda x: x + LARGE, "int8", [LARGE - 1, LARGE, LARGE + 5]),
        (lambda x: T.if_then_else(x > 0, x, LARGE), "int32", [LARGE, LARGE, 5]),
        (lambda x: T.if_then_else(x > 0, 1 << 40, 2), "int32", [2, 2, 1 << 40]),
        (lambda x: T.if_then_else(x > 0, 2, 1 << 40), "int32", [1 << 40, 1 << 40, 2]),
        (lambda x: (x & 0xFFFFFFFF) >> 28, "int32", [15, 0, 0]),
        (lambda x: (x * 0x9E3779B9) >> 28, "uint32", [6, 0, 1]),  # which it fits
        (lambda x: (x + (1 << 31)) >> 31, "uint32", [0, 1, 1]),
        (lambda x: x // (1 << 63), "uint64", [1, 0, 0]),
    ],
)
def test_an_integer_that_32_bits_do_not_hold_keeps_its_value(made: Any, dtype: str, wanted: list[int]) -> None:
    @T.prim_func
    def main(X: T.Tensor((3,), dtype), Y: T.Tensor((3,), "int64")):
        with T.Kernel(1):
            for i in T.Parallel(3):
                Y[i] = made(X[i])

    x = torch.tensor([-1, 0, 5]).to(getattr(torch, dtype))
    assert tiledsl.compile(main, out_idx=-1, target="interpret")(x).tolist() == wanted


@pytest.mark.parametrize("made", [lambda x: x < 1 << 64, lambda x: T.if_then_else(x > 0, 1 << 64, 0)])
def test_an_integer_that_64_bits_do_not_hold_is_refused(made: Any) -> None:
    @T.prim_func
    def main(X: T.Tensor((3,), "int32"), Y: T.Tensor((3,), "int64")):
        with T.Kernel(1):
            Y[0] = made(X[0])

    with pytest.raises(TileError, match="the integer 18446744073709551616 does not fit in 64 bits"):
        tiledsl.compile(main, target="interpret")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_integer_beside_a_float_is_one_of_any_size(dtype: str) -> None:
    @T.prim_func
    def main(X: T.Tensor((4,), dtype), Y: T.Tensor((4, 4), dtype)):
        with T.Kernel(1):
            for i in T.Parallel(4):
                Y[0, i] = X[i] / 2**64
                Y[1, i] = -(2**70) * X[i] + T.cast(2**65, dtype)
                Y[2, i] = T.if_then_else(X[i] < 2**66, 3**50, X[i])
                Y[3, i] = T.max(X[i], 2**63)

    x = torch.tensor([1.5, -3.0, 2.0**67, 0.0], dtype=getattr(torch, dtype))
    wanted = [x / 2.0**64, x * -(2.0**70) + 2.0**65, torch.where(x < 2.0**66, float(3**50), x), x.clamp(min=2.0**63)]
    assert torch.equal(tiledsl.compile(main, out_idx=-1, target="interpret")(x), torch.stack(wanted))

    @T.prim_func
    def larger(X: T.Tensor((4,), dtype)):
        with T.Kernel(1):
            X[0] = X[0] * 10**400

    with pytest.raises(TileError, match=f"an integer of 1329 bits does not fit in {dtype}"):
        tiledsl.compile(larger, target="interpret")


def test_a_scalar_that_no_float_holds_is_refused() -> None:
    @T.prim_func
    def main(X: T.Tensor((1,), "float32"), s: T.float32):
        with T.Kernel(1):
            X[0] = s

    with pytest.raises(TileError, match="s is an integer of 1329 bits, which float32 does not hold"):
        tiledsl.compile(main, target="interpret")(torch.zeros(1), 10**400)


def test_indices_that_int32_does_not_hold_keep_their_value() -> None:
    @T.prim_func
    def main(X: T.Tensor((6,), "int32"), U: T.Tensor((1,), "uint32"), Y: T.Tensor((4, 4), "int64")):
        with T.Kernel(1):
            tile = T.alloc_fragment((4,), "int64")
            T.copy(X[U[0]], tile)  # behind the end, not at -2
            T.copy(tile, Y[0, 0])
            for i in T.Parallel(4):
                Y[1, i] = X[U[0] + i]  # wraps
            for i in T.serial(LARGE, LARGE + 2):
                Y[2, 0] += i
            for i in range(-LARGE, 2 - LARGE):
                Y[2, 1] += i
            for i in T.serial(0, 2 * LARGE, LARGE):
                Y[2, 2] += i
            for i in T.unroll(LARGE, LARGE + 1):
                Y[2, 3] += i
            for i in T.serial(U[0], U[0] + 3):  # wraps, so that the loop has no turn
                Y[3, 0] += i

    x, u, y = (
        torch.arange(1, 7, dtype=torch.int32),
        torch.tensor([2**32 - 2]).to(torch.uint32),
        torch.zeros(4, 4).long(),
    )
    tiledsl.compile(main, target="interpret")(x, u, y)
    assert y.tolist() == [[0] * 4, [0, 0, 1, 2], [2 * LARGE + 1, 1 - 2 * LARGE, LARGE, LARGE], [0] * 4]


def test_a_place_in_a_large_tensor_is_a_wide_number() -> None:
    @T.prim_func
    def main(X: T.Tensor((1 << 32,), "int8"), I: T.Tensor((1,), "uint8"), Y: T.Tensor((8,), "int8")):
        with T.Kernel(1):
            T.copy(X[LARGE : LARGE + 4], Y[0:4])
            Y[4] = X[LARGE + 7]
            Y[5] = Y[I[0]]

    text = tiledsl.compile(main, target="interpret").ir(after="elaborate")
    assert f"{{value = {LARGE}}} : int64" in text and f"{{value = {LARGE + 7}}} : int64" in text
    assert text.count("arith.cast") == 1 and ": int32" in text.split("arith.cast")[1].splitlines()[0]  # of I[0]
