"""Bits of outputs, and inputs that show orders of sums: against plain Python, element by element."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from tiledsl.autotuner.verifying import bits
from tiledsl.autotuner.verifying.bits import adversarial_inputs, fingerprint, first_rows, of_rows, rows_of

WORD = 1 << 64
BYTES = {
    "bool uint8 int8 float8_e5m2": 1,
    "int16 bfloat16": 2,
    "int32 float32 complex64": 4,
    "int64 float64 complex128": 8,
}
TYPES = {getattr(torch, name): width for names, width in BYTES.items() for name in names.split()}


def mixed(word: int, odd: int) -> int:
    """On words of 64 bits; shifts keep the sign."""

    def shifted(word: int, by: int) -> int:
        return ((word - WORD if word >> 63 else word) >> by) % WORD

    word = (word ^ shifted(word, 31)) * odd % WORD
    return word ^ shifted(word, 29)


def plain(tensor: Any, width: int) -> str:
    raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
    words = [
        int.from_bytes(raw[at : at + width], "little", signed=width > 1) % WORD for at in range(0, len(raw), width)
    ]
    sums = []
    for number, odd in enumerate((0x1E3779B97F4A7C15, 0x42B2AE3D27D4EB4F)):
        weights = [mixed(place * 2 + number, odd) for place in range(len(words))]
        sums.append(sum(mixed(word ^ weight, odd) for word, weight in zip(words, weights)) % WORD)
    return ":".join(f"{each:016x}" for each in sums) + f"/{len(words)}"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("chunk", [3, 1 << 20])
def test_fingerprints_are_those_of_plain_python(dtype: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    whole = (torch.randn(5, 4, generator=generator) * 100).to(dtype)
    for tensor in (whole, whole.t(), whole[:0], whole[2, 1]):
        assert fingerprint([tensor]) == plain(tensor, TYPES[dtype])
    assert fingerprint([whole, whole.t()]) == f"{plain(whole, TYPES[dtype])} {plain(whole.t(), TYPES[dtype])}"


# Inputs

KINDS = (bits._alternating, bits._distant, bits._of_all_sizes)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (4, 6), (2, 3, 4)])
@pytest.mark.parametrize("place", [0, 1])
def test_values_are_those_of_plain_python(shape: tuple[int, ...], place: int) -> None:
    generator = torch.Generator().manual_seed(1)
    numbers, signs = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    alternating, distant, sizes = (kind(numbers, signs < 0.5, place) for kind in KINDS)
    assert alternating.shape == distant.shape == sizes.shape == shape
    before = torch.where(signs < 0.5, numbers * 1.5 + 0.25, numbers * 0.5 + 0.25)
    if place == 0:
        for axis in dict.fromkeys((0, len(shape) - 1)) if shape else ():
            half = shape[axis] // 2
            for at in itertools.product(*map(range, shape)):
                if half <= at[axis] < 2 * half:
                    other = (*at[:axis], at[axis] - half, *at[axis + 1 :])
                    before[at] = -before[other] * (1 - 2.0**-9)
    for at in itertools.product(*map(range, shape)):
        number, sign = float(numbers[at]), float(signs[at])
        odd = sum(at) % 2 == 1 and place == 0
        assert alternating[at] == (1 - number / 16) * (-1 if odd else 1)
        assert distant[at] == pytest.approx(float(before[at]) / 1.75)
        exponent = math.floor(number * 977 % 1 * 20)
        assert sizes[at] == (0.5 + number / 2) * 2.0**-exponent * (-1 if sign < 0.5 else 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("low", "high"), [(-3, 3), (0, 4), (-4, 0), (1, 2), (-2, -1), (0, 0), (math.nan, 2)])
def test_size_and_sign_of_inputs_are_kept(dtype: Any, low: float, high: float) -> None:
    given = torch.linspace(-1 if math.isnan(low) else low, high, 48).reshape(6, 8).to(dtype).t()
    if math.isnan(low):
        given[0, 0] = low
    index = torch.arange(3)
    sets = list(adversarial_inputs([5, given, index, given]))
    assert len(sets) == 3
    for (number, one, at, other), kind in zip(sets, KINDS):
        largest = float(given.double().abs().nan_to_num().max()) or 1.0
        for place, made in enumerate((one, other)):
            assert (made.dtype, made.shape, made.stride()) == (dtype, given.shape, given.stride())
            wide = made.double()
            assert largest * 0.5 < wide.abs().max() <= largest
            assert not (low >= 0) or wide.min() >= 0
            assert not (high <= 0 and low < 0) or wide.max() <= 0
            generator = torch.Generator().manual_seed(20_250_607 + place)
            numbers, signs = (torch.rand(given.shape, generator=generator) for _ in range(2))
            expected = kind(numbers, signs < 0.5, place)
            expected = expected.abs() if low >= 0 else -expected.abs() if high <= 0 else expected
            assert wide.equal((expected * largest).to(dtype).double())
        assert number == 5 and at.equal(index) and at.data_ptr() != index.data_ptr()


def test_without_floats_there_is_nothing_to_change() -> None:
    assert (
        list(adversarial_inputs([3, 0.5, torch.arange(4), torch.zeros(0), torch.zeros(2, dtype=torch.complex64)])) == []
    )
    assert [len(each[0]) for each in adversarial_inputs([torch.zeros(0), torch.zeros(2)])] == [0, 0, 0]


# Rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2, torch.bool], ids=str)
def test_more_and_fewer_rows(dtype: Any) -> None:
    given = torch.arange(12).reshape(3, 4).to(dtype)
    numbers = given.float().tolist()
    for rows, columns in itertools.product((1, 2, 3, 7), (1, 4, 9)):
        same, made, scalar = of_rows([given, given, 5], [None, (rows, columns), None])
        assert same is given and scalar == 5 and made.dtype == dtype
        assert made.float().tolist() == [[numbers[i % 3][j % 4] for j in range(columns)] for i in range(rows)]
    empty = torch.zeros(0, 2)
    assert of_rows([empty], [(4, 2)])[0] is empty  # no rows, none to repeat
    with pytest.raises(ValueError):
        of_rows([given], [(3,)])
    assert first_rows([given, given, given], [0, 1, None], 2)[2] is given
    assert [each.shape for each in first_rows([given, given], [0, 1], 2)] == [(2, 4), (3, 2)]


def test_which_dimension_counts_rows() -> None:
    one = {"A": (8, 16), "B": (16, 4), "C": (2, 8, 8), "D": (), "E": ("m", 8)}
    other = {"A": (9, 16), "B": (16, 4), "C": (2, 9, 9), "D": (), "E": ("m", 9)}
    assert rows_of(one, other) == {"A": 0, "C": 1, "E": 1}
