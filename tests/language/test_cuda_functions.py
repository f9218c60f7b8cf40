"""Arithmetic and conversions with a rounding of their own, and functions by CUDA C's names, against exact fractions."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

FORMATS = {  # digits of the significand, the least exponent of a normal number, the greatest finite value
    "float16": (11, -14, 65504.0), "bfloat16": (8, -126, 3.3895313892515355e38),
    "float32": (24, -126, 3.4028234663852886e38),
    "float64": (53, -1022, 1.7976931348623157e308), "float8_e4m3fn": (4, -6, 448.0), "float8_e5m2": (3, -14, 57344.0),
}  # fmt: skip
N = 64


def rounded(exact: Fraction, dtype: str, mode: str) -> float:
    """A fraction in an element type: the multiple of the unit in the last place that the mode says."""
    digits, least, greatest = FORMATS[dtype]
    if exact == 0:
        return 0.0
    exponent = least
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - digits + 1)
    quotient = exact / unit
    down = math.floor(quotient)
    if down == quotient:
        multiple = down
    elif mode == "rn":
        multiple = round(quotient)  # halves to even
    else:
        multiple = down if mode == "rd" or (mode == "rz" and exact > 0) else down + 1
    value = multiple * unit
    if abs(value) <= Fraction(greatest):
        return float(value)
    inwards = mode == "rz" or (mode == "rd") == (exact > 0) and mode != "rn"
    return math.copysign(greatest if inwards or dtype.startswith("float8") else math.inf, exact)


def operands(count: int, dtype: str) -> torch.Tensor:
    """Numbers whose sums, products and quotients lie between floats: near each other, far apart, small and large."""
    generator = np.random.default_rng(7)
    scales = np.exp2(generator.integers(-30, 31, (count, N)))
    found = (generator.standard_normal((count, N)) * scales).astype(np.float32)
    found[0, :6] = [1.0, 1.0, -1.0, 3.0, 3e38, -3e38]
    if count > 1:
        found[1, :6] = [2.0**-40, -(2.0**-40), 2.0**-40, 3.0, 3e38, 3e38]
    return torch.from_numpy(found).to(getattr(torch, dtype))


EXACT = {
    "ieee_add": lambda x, y: x + y, "ieee_sub": lambda x, y: x - y, "ieee_mul": lambda x, y: x * y,
    "ieee_fdiv": lambda x, y: x / y, "ieee_fmaf": lambda x, y, z: x * y + z, "ieee_frcp": lambda x: 1 / x,
}  # fmt: skip


def elementwise(compute: Callable[..., Any], count: int, source: str, target: str) -> Any:
    """Y[i] = compute(X[0, i], ...)."""

    @T.prim_func
    def program(X: T.Tensor((count, N), source), Y: T.Tensor((N,), target)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(N):
                Y[i] = compute(*[X[row, i] for row in range(count)])

    return program


def differences(found: torch.Tensor, wanted: list[float]) -> list[tuple[int, float, float]]:
    values = found.to(torch.float64).tolist()
    return [(at, *pair) for at, pair in enumerate(zip(values, wanted, strict=True)) if pair[0] != pair[1]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
def test_arithmetic_is_rounded_as_the_mode_says(run: Callable[..., Any], mode: str, dtype: str) -> None:
    for name, exact in EXACT.items():
        count = 3 if name == "ieee_fmaf" else 1 if name == "ieee_frcp" else 2
        x = operands(count, dtype)
        given = [[Fraction(each) for each in row] for row in x.double().tolist()]
        wanted = [rounded(exact(*numbers), dtype, mode) for numbers in zip(*given, strict=True)]
        if name == "ieee_fmaf" and mode == "rn":
            continue  # T.fma, whose interpreter rounds twice
        found = run(elementwise(lambda *a, name=name: getattr(T, name)(*a, mode), count, dtype, dtype), x)
        assert not differences(found, wanted), name


@pytest.mark.parametrize("mode", ["rn", "rz", "ru", "rd"])
def test_square_roots(run: Callable[..., Any], mode: str) -> None:
    x = operands(1, "float32").abs()
    found = run(elementwise(lambda a: T.ieee_fsqrt(a, mode), 1, "float32", "float32"), x).double().tolist()
    for root, square in zip(found, x[0].double().tolist(), strict=True):
        below, above = (Fraction(float(np.nextafter(np.float32(root), np.float32(end)))) for end in (0, math.inf))
        exact, value = Fraction(square), Fraction(root)
        assert {
            "rn": ((below + value) / 2) ** 2 <= exact <= ((above + value) / 2) ** 2,
            "rz": value**2 <= exact < above**2, "rd": value**2 <= exact < above**2, "ru": below**2 < exact <= value**2,
        }[mode], (root, square)  # fmt: skip


SPECIAL = [
    0.0,
    -0.0,
    1e-42,
    -1e-42,
    1e-60,
    -1e-60,
    1e5,
    -1e5,
    1e300,
    -1e300,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    3.0,
    0.1,
]


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("mode", ["rz", "ru", "rd"])
def test_conversions_are_rounded_as_the_mode_says(run: Callable[..., Any], mode: str, target: str) -> None:
    x = operands(1, "float64")
    x[0, : len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.float64)
    y = run(elementwise(lambda a: T.cast(a, target, round=mode), 1, "float64", "float64"), x)
    for number, found in zip(x[0].tolist(), y.tolist(), strict=True):
        if math.isnan(number):
            assert math.isnan(found)
        elif math.isinf(number):
            greatest = FORMATS[target][2]
            assert found == (math.copysign(greatest, number) if target.startswith("float8") else number)
        else:
            assert found == rounded(Fraction(number), target, mode), (number, found)


def test_a_number_is_rounded_once(run: Callable[..., Any]) -> None:
    number = 1 + 2.0**-10 - 2.0**-40  # in float32, and from there in float16, it is 1 + 2^-10
    found = run(
        elementwise(lambda x: x + T.cast(number, "float16", round="rz"), 1, "float16", "float16"),
        torch.zeros(1, N, dtype=torch.float16),
    )
    assert set(found.tolist()) == {1.0}


def test_conversions_between_integers_and_floats(run: Callable[..., Any]) -> None:
    x = torch.tensor([[2.5, -2.5, 3.5, 0.0, -0.5, 7.0, 1e6 + 0.5, -1e6 - 0.25] * 8])
    for name, whole in (("rn", torch.round), ("rz", torch.trunc), ("ru", torch.ceil), ("rd", torch.floor)):
        found = run(
            elementwise(lambda a, n=name: T.call_extern("int32", f"__float2int_{n}", a), 1, "float32", "int32"), x
        )
        assert found.tolist() == whole(x[0]).int().tolist()
    n = torch.tensor([[(1 << 30) + 1, -(1 << 30) - 1, (1 << 31) - 1, 5] * 16], dtype=torch.int32)
    for name in ("rn", "rz", "ru", "rd"):
        found = run(
            elementwise(lambda a, n=name: T.call_extern("float32", f"__int2float_{n}", a), 1, "int32", "float32"), n
        )
        assert not differences(found, [rounded(Fraction(each), "float32", name) for each in n[0].tolist()])


def first_bit_of_64_times(x: torch.Tensor) -> torch.Tensor:
    return (x * 64).int().apply_(lambda n: (n & -n).bit_length()).float()


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda x: T.call_extern("float32", "expf", x), torch.exp),
        (lambda x: T.call_extern("float32", "__fdividef", x, 3.0), lambda x: x / 3),
        (lambda x: T.call_extern("float32", "fmaxf", x, 0.5), lambda x: x.clamp(min=0.5)),
        (lambda x: T.call_extern("float16", "__float2half_rz", x), lambda x: (x * 4096).trunc() / 4096),
        (lambda x: T.call_extern("int32", "__float_as_int", x), lambda x: x.view(torch.int32).float()),
        (lambda x: T.call_extern("__saturatef", x * 3), lambda x: (x * 3).clamp(0, 1)),
        (lambda x: T.fast_rcp(x), lambda x: 1 / x),
        (lambda x: T.ieee_frsqrt(x), lambda x: (1 / x.double().sqrt()).float()),
        (lambda x: T.ldexp(x, 3), lambda x: x * 8),
        (lambda x: T.nextafter(x, 9.0), lambda x: torch.nextafter(x, torch.tensor(9.0))),
        (lambda x: T.call_extern("int32", "__ffs", T.cast(x * 64, "int32")), first_bit_of_64_times),
    ],
)  # fmt: skip
def test_functions_by_name(run: Callable[..., Any], call: Callable[..., Any], wanted: Callable[..., Any]) -> None:
    x = 0.25 + torch.rand(1, N) / 4  # a unit in the last place of float16 is 2^-12
    torch.testing.assert_close(run(elementwise(call, 1, "float32", "float32"), x), wanted(x[0]), rtol=2e-7, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: T.ieee_add(x, x, "up"), "T.ieee_add: rounding_mode is str 'up'; there are 'rn' (to the nearest"),
        (lambda x: T.ieee_mul(T.cast(x, "float16"), T.cast(x, "float16")), "T.mul_rn: it is for float32 "),
        (lambda x: T.call_extern("handle", "my_function", x), "T.call_extern: 'my_function' is C code"),
        (lambda x: T.call_extern("float32", "expff", x), "Did you mean 'expf'?"),
        (lambda x: T.call_extern("float32", "__fadd_rz", x), "__fadd_rz is not a function of 1 operands"),
        (lambda x: T.cast(x, "float16", round="rs"), "T.cast: round='rs': there are rp, rm, rn, rz, ru, rd"),
        (lambda x: T.cast(T.cast(x, "int64"), "float32", round="rz"), "its integers are rounded to the nearest alone"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(TileError, match=re.escape(message)):
        tiledsl.compile(elementwise(call, 1, "float32", "float32"), target="interpret")


def test_directed_arithmetic_is_for_nvidias_gpus() -> None:
    program = elementwise(lambda x: T.ieee_mul(x, x, "rz"), 1, "float32", "float32")
    assert "libdevice.mul_rz(" in tiledsl.compile(program, target="cuda:90").source
    with pytest.raises(TileError, match="mul_rz"):
        tiledsl.compile(program, target="hip:gfx942")


def test_an_assertion_stops_a_kernel() -> None:
    @T.prim_func
    def program(X: T.Tensor((5,), "int32"), Y: T.Tensor((5,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(5):
                T.device_assert(X[i] > 0, "positive")
                Y[i] = X[i] * (1 << 20)

    x, y = torch.tensor([1, 2, 3, 4, 5000], dtype=torch.int32), torch.zeros(5, dtype=torch.int32)
    kernel = tiledsl.compile(program, target="interpret")
    kernel(x, y)  # 5000 << 20 wraps, which is no failure
    assert y[4] == (5000 << 20) - (1 << 32)
    with pytest.raises(TileError, match="AssertionError: positive"):
        kernel(-x, y)
    for target, level, stop in (("cuda:90", "ptx", "__assertfail"), ("hip:gfx942", "amdgcn", "s_trap")):
        compiled = tiledsl.compile(program, target=target)
        assert str(compiled.asm[level]).count(stop) >= 1
        assert "debug=True, sanitize_overflow=False" in compiled.source
