"""Arithmetic on single values and element types."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.dialects import arith, tile
from tiledsl.ir.verifier import verify
from tiledsl.math_functions import MATH_FUNCTIONS

F, I = "float32", "int32"


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_division_rounds_down(run: Any, dtype: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((9,), dtype), B: T.Tensor((9,), dtype), C: T.Tensor((9, 8), "int64")):
        with T.Kernel(1):
            for i in T.Parallel(9):
                C[i, 0] = A[i] // B[i]
                C[i, 1] = A[i] % B[i]
                C[i, 2] = A[i] // 3
                C[i, 3] = A[i] % -3
                C[i, 4] = T.truncdiv(A[i], B[i])
                C[i, 5] = T.truncmod(A[i], B[i])
                C[i, 6] = T.ceildiv(A[i], 4)
                C[i, 7] = T.floormod(-A[i], 5)

    a = torch.tensor([7, -7, 7, -7, 0, 6, -6, 127, -128]).to(getattr(torch, dtype))
    b = torch.tensor([2, 2, -2, -2, 3, 3, 3, -10, 10]).to(getattr(torch, dtype))
    c = run(main, a, b)
    for got, x, y in zip(c.tolist(), a.tolist(), b.tolist()):
        quotient = abs(x) // abs(y) * (1 if x * y >= 0 else -1)
        want = [x // y, x % y, x // 3, x % -3, quotient, x - quotient * y, -(-x // 4)]
        assert got[:7] == want
        if dtype != "int8" or x != -128:
            assert got[7] == -x % 5


def test_shifts_and_bits(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), "uint8"), B: T.Tensor((4,), I), C: T.Tensor((4, 8), I)):
        with T.Kernel(1):
            for i in T.Parallel(4):
                C[i, 0] = A[i] >> 4
                C[i, 1] = A[i] & 0x0F
                C[i, 2] = (A[i] << 4) + 1  # a Python integer makes it int32
                C[i, 3] = B[i] >> 1
                C[i, 4] = ~B[i] ^ 5
                C[i, 5] = B[i] | 1
                C[i, 6] = T.popcount(B[i])
                C[i, 7] = T.cast(A[i], "int8")

    a, b = torch.tensor([0, 200, 255, 17], dtype=torch.uint8), torch.tensor([-5, 0, 12, 1 << 30], dtype=torch.int32)
    c = run(main, a, b).tolist()
    for got, x, y in zip(c, a.tolist(), b.tolist()):
        want = [
            x >> 4,
            x & 15,
            (x << 4) + 1,
            y >> 1,
            ~y ^ 5,
            y | 1,
            bin(y & 0xFFFFFFFF).count("1"),
            (x + 128) % 256 - 128,
        ]
        assert got == want


CAST_TYPES = [
    "float16",
    "bfloat16",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "int8",
    "int16",
    "int64",
    "uint8",
    "bool",
]


@pytest.mark.parametrize("dtype", CAST_TYPES)
def test_casts(run: Any, dtype: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), F), B: T.Tensor((8,), dtype), C: T.Tensor((8,), F), D: T.Tensor((8,), dtype)):
        with T.Kernel(1):
            x = T.alloc_fragment((8,), dtype)
            for i in T.Parallel(8):
                B[i] = T.cast(A[i], dtype)
                C[i] = T.Cast(F, B[i])
                x[i] = getattr(T, dtype)(A[i])
            T.copy(x, D)

    a = torch.tensor([0.0, 1.0, 1.5, 2.7, 100.3, 0.3, 17.0, 3e-3])
    if dtype.startswith(("float", "bfloat", "int")):
        a[1:5] = -a[1:5]
    b, c, d = run(main, a, out_idx=(1, 2, 3))
    want = a.to(getattr(torch, dtype))
    assert (
        torch.equal(b.float(), want.float()) and torch.equal(c, want.float()) and torch.equal(d.float(), want.float())
    )


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float16", "bfloat16", "float32", "float64"])
def test_infinity_is_kept(run: Any, dtype: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((4, 4), dtype)):
        with T.Kernel(1):
            x = T.alloc_fragment((4,), dtype)
            T.fill(x, T.infinity(dtype))
            T.copy(x, A[0, :])
            for i in T.Parallel(4):
                A[1, i] = -T.infinity(dtype)
                A[2, i] = T.if_then_else(i < 2, x[i], T.cast(1.0, dtype))
                A[3, i] = T.max(T.cast(-T.infinity(dtype), dtype), i)

    inf = float("inf")
    assert run(main).float().tolist() == [[inf] * 4, [-inf] * 4, [inf, inf, 1, 1], [0, 1, 2, 3]]


def test_reinterpret(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), F), B: T.Tensor((4,), I), C: T.Tensor((4,), F), D: T.Tensor((4,), "bfloat16")):
        with T.Kernel(1):
            for i in T.Parallel(4):
                B[i] = T.reinterpret(A[i], I)
                C[i] = T.reinterpret(F, T.reinterpret(A[i], "uint32") & 0x7FFFFFFF)
                D[i] = T.reinterpret(T.cast(T.reinterpret(A[i], "uint32") >> 16, "uint16"), "bfloat16")

    a = torch.tensor([1.0, -2.5, 0.0, -1e30])
    b, c, d = run(main, a, out_idx=(1, 2, 3))
    assert torch.equal(b, a.view(torch.int32)) and torch.equal(c, a.abs())
    assert torch.equal(d, (a.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16))


def test_promotion(run: Any) -> None:
    @T.prim_func
    def main(
        h: T.Tensor((4,), "float16"),
        b: T.Tensor((4,), "bfloat16"),
        i: T.Tensor((4,), "int8"),
        w: T.Tensor((4,), "int64"),
        u: T.Tensor((4,), "uint32"),
        C: T.Tensor((11, 4), "float64"),
    ):
        with T.Kernel(1):
            for n in T.Parallel(4):
                C[0, n] = h[n] + b[n]  # float32
                C[1, n] = h[n] * i[n]  # float16
                C[2, n] = i[n] + w[n]  # int64
                C[3, n] = i[n] * 100  # int32
                C[4, n] = i[n] * 0.5  # float32
                C[5, n] = T.cast(i[n], "float64") / 3  # float64
                C[6, n] = h[n] * 0.1  # float32: a Python float is
                C[7, n] = T.exp(b[n] + 0.3)  # float32
                C[8, n] = h[n] * 3  # float16: a Python integer adapts
                C[9, n] = T.cast(i[n], I) - u[n]  # uint32
                C[10, n] = h[n] * T.float16(0.1)  # float16

    h, b = torch.randn(4).half(), torch.randn(4).bfloat16()
    i, w = torch.tensor([100, -100, 3, 0]).to(torch.int8), torch.tensor([1 << 40, 5, -1, 7])
    u = torch.tensor([1, 2, 3, 4]).to(torch.uint32)
    c = run(main, h, b, i, w, u)
    want = [h.float() + b.float(), h * i, i + w, i.int() * 100, i.float() * 0.5, i.double() / 3]
    want += [h.float() * 0.1, (b.float() + 0.3).exp(), h * 3, (i.long() - u.long()) % 2**32]
    want += [h * torch.tensor(0.1, dtype=torch.float16)]
    torch.testing.assert_close(c, torch.stack([each.double() for each in want]))


def test_large_integers(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), I), B: T.Tensor((4,), "int64")):
        with T.Kernel(1):
            for i in T.Parallel(4):
                B[i] = A[i] * 4294967296 + 10000000000

    a = torch.tensor([0, 1, -3, 1 << 20], dtype=torch.int32)
    assert torch.equal(run(main, a), a.long() * (1 << 32) + 10**10)


def test_extremes_and_nan(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((5,), F), B: T.Tensor((10, 5), F)):
        with T.Kernel(1):
            for i in T.Parallel(5):
                B[0, i] = T.max(A[i], 0.0)  # a NaN is dropped
                B[1, i] = T.min(A[i], 0.0)
                B[2, i] = T.clamp(A[i], -1.0, 1.0)
                B[3, i] = -T.infinity(F)
                B[4, i] = T.max(A[i], -T.infinity(F))
                B[5, i] = T.isnan(A[i])
                B[6, i] = T.max_value("float16")
                B[7, i] = T.min_value("int32")
                B[8, i] = T.abs(A[i])
                B[9, i] = max(A[i], 2.0, i)

    inf, nan = float("inf"), float("nan")
    a = torch.tensor([-3.0, 0.5, inf, -inf, nan])
    b = run(main, a)
    assert b[0].tolist() == [0, 0.5, inf, 0, 0]
    assert b[1].tolist() == [-3, 0, 0, -inf, 0]
    assert b[2, :4].tolist() == [-1, 0.5, 1, -1]
    assert b[3].tolist() == [-inf] * 5 and b[4].tolist() == [-3, 0.5, inf, -inf, -inf]
    assert b[5].tolist() == [0, 0, 0, 0, 1]
    assert b[6, 0] == 65504 and b[7, 0] == -(2**31)
    assert b[8, :4].tolist() == [3, 0.5, inf, inf]
    assert b[9].tolist() == [2, 2, inf, 3, 4]


# Every function of one float whose name torch has, too, and two others.
FUNCTIONS = {"abs": torch.abs, "nearbyint": torch.round}
FUNCTIONS |= {
    name: getattr(torch, name)
    for name, record in MATH_FUNCTIONS.items()
    if record.takes in ("floats", "rounding") and record.arity == 1 and hasattr(torch, name)
}


@pytest.mark.parametrize("dtype", [F, "float64"])
def test_functions(run: Any, dtype: str) -> None:
    names = list(FUNCTIONS)

    @T.prim_func
    def main(A: T.Tensor((8,), dtype), B: T.Tensor((len(names), 8), dtype)):
        with T.Kernel(1):
            for number, name in enumerate(names):
                for j in T.Parallel(8):
                    B[number, j] = getattr(T, name)(A[j])

    a = torch.tensor([-2.5, -0.3, 0.0, 0.1, 0.5, 0.9, 1.5, 2.5], dtype=getattr(torch, dtype))
    expected = torch.stack([function(a) for function in FUNCTIONS.values()])
    torch.testing.assert_close(run(main, a), expected, equal_nan=True)
    assert tiledsl.compile(main, out_idx=[1], target="cuda:90").resources.registers > 0


def test_powers(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), F), B: T.Tensor((5, 4), F)):
        with T.Kernel(1):
            for j in T.Parallel(4):
                B[0, j] = A[j] ** 2
                B[1, j] = A[j] ** 0.5
                B[2, j] = T.pow(2.0, A[j])
                B[3, j] = A[j] ** 0
                B[4, j] = A[j] ** -1

    a = torch.rand(4) + 0.5
    torch.testing.assert_close(run(main, a), torch.stack([a**2, a**0.5, 2**a, a**0, a**-1]))


def test_small_arrays_of_each_iteration(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "uint8"), B: T.Tensor((8, 2), F)):
        with T.Kernel(1):
            for i in T.Parallel(8):
                value = T.alloc_local((1,), F)
                value[0] = A[i] & 15
                B[i, 0] = value[0]
                value[0] = A[i] >> 4
                B[i, 1] = value[0] * 0.5

    a = torch.randint(0, 256, (8,)).to(torch.uint8)
    torch.testing.assert_close(run(main, a), torch.stack([(a & 15).float(), (a >> 4).float() * 0.5], 1))


def test_what_is_visible_is_not_made_again() -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), F), B: T.Tensor((64,), F), n: T.int32):
        with T.Kernel(T.ceildiv(n, 8), 8) as (bx, by):
            here = bx * 8
            again = bx * 8
            for k in T.serial(8):
                A[here + k] = 0.0
                B[again + k] = -0.0
            if by > 3:
                A[here * 3] = 1
            else:
                A[here * 3] = True

    func = main.func
    (kernel,) = [op for op in func.walk() if isinstance(op, tile.KernelOp)]
    inside = list(kernel.body.walk())
    products = [op for op in inside if isinstance(op, arith.MulOp)]
    constants = [repr(op.value) for op in inside if isinstance(op, arith.ConstantOp)]
    # Branches do not see each other, and a kernel does not see the host's 8.
    assert len(products) == 3 and products[1].lhs is products[2].lhs is products[0].out
    assert sorted(constants) == sorted(["8", "0", "1", "0.0", "-0.0", "3", "1.0", "1.0"])
    assert sum(isinstance(op, arith.ConstantOp) and op.value == 8 for op in func.body) == 1
    verify(func)


def test_float64_numbers_are_stored_with_all_their_digits(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((3,), "float64"), B: T.Tensor((2, 4), "float64")):
        with T.Kernel(1) as bx:
            x = T.alloc_fragment((4,), "float64")
            for i in T.Parallel(4):
                B[0, i] = 0.1
            T.annotate_safe_value({A: 0.3})
            T.copy(A[bx], x)
            T.copy(x, B[1, 0])

    b = torch.zeros(2, 4, dtype=torch.float64)
    run(main, torch.ones(3, dtype=torch.float64), b, out_idx=())
    assert b.tolist() == [[0.1] * 4, [1, 1, 1, 0.3]]
