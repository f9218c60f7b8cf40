"""What a function's kernels are known by: all that a builder may read of its arguments, as it is at the call."""

from __future__ import annotations

import gc
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.kernels.calls import call_key, value_key

ALIKE = [0, 0.0, -0.0, False, np.float32(0), np.float32(-0.0), np.int64(0), np.int32(0), 0j, "0", None, [0], (0,)]


def test_equal_numbers_of_other_kinds_or_signs_are_other_arguments() -> None:
    for one, other in itertools.combinations(ALIKE, 2):
        assert value_key(one) != value_key(other), (one, other)
        assert value_key({"x": [one]}) != value_key({"x": [other]}), (one, other)
        keys = [call_key("interpret", [each]) for each in (one, other)]
        assert None in keys or keys[0] != keys[1], (one, other)
    for key in (value_key, lambda value: call_key("interpret", [value])):
        assert key(math.nan) == key(float("nan")) and key(1.5) == key(1.5)


@pytest.mark.parametrize("given_by_name", [False, True])
def test_a_zero_keeps_its_sign(given_by_name: bool) -> None:
    @tiledsl.jit(target="interpret")
    def times(X: Any, factor: float) -> Any:
        X: T.Tensor((4,), "float32")
        Y = T.empty((4,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                Y[i] = X[i] * factor
        return Y

    x = torch.ones(4)
    for factor in (0.0, -0.0, 0.0):
        made = times(x, factor=factor) if given_by_name else times(x, factor)
        assert (made.signbit() == (math.copysign(1, factor) < 0)).all()


@dataclass
class Choice:
    factor: int


@pytest.mark.parametrize("make", [Choice, lambda factor: np.array([factor]), lambda factor: {factor}])
def test_arguments_that_change_are_other_arguments(make: Any) -> None:
    @tiledsl.jit(out_idx=-1, target="interpret")
    def times(choice: Any) -> Any:
        factor = choice.factor if isinstance(choice, Choice) else int(next(iter(choice)))

        @T.prim_func
        def main(X: T.Tensor((4,), "int32"), Y: T.Tensor((4,), "int32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(4):
                    Y[i] = X[i] * factor

        return main

    x, choice, other = torch.ones(4, dtype=torch.int32), make(2), make(3)
    first = times(choice)
    assert first is times(make(2)) and (first(x) == 2).all()
    if isinstance(choice, set):
        choice.clear()
        choice |= other
    elif isinstance(choice, Choice):
        choice.factor = 3
    else:
        choice[:] = other
    assert (times(choice)(x) == 3).all() and times(choice) is times(other)


def test_an_object_is_kept_as_long_as_it_is_a_key() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

    keys = set()
    for count in range(1, 20):
        keys.add(value_key(Unhashable()))
        gc.collect()
        assert len(keys) == count
    one = Unhashable()
    assert value_key(one) == value_key(one) and value_key([one]) == value_key([one])
