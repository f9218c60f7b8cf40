"""Random programs from source text to results: the reference meaning, and emitted Triton in the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
from tests.support.executor import run
from tests.support.programs import copy_arguments, inputs_for, same_array
from tests.support.random_sources import random_source
from tiledsl.ir.parser import parse_op
from tiledsl.ir.printer import print_op

BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8"}  # what NumPy passes on to torch


def to_torch(array: np.ndarray) -> torch.Tensor:
    name = array.dtype.name
    made = torch.from_numpy(array.copy().view(BITS.get(name, name)))
    return made.view(getattr(torch, name))


def to_numpy(tensor: torch.Tensor, dtype: np.dtype[Any]) -> np.ndarray:
    plain = tensor.view(getattr(torch, BITS[dtype.name])) if dtype.name in BITS else tensor
    return plain.numpy().view(dtype)


@pytest.mark.parametrize("seed", range(16))
def test_results_are_those_of_the_executor(seed: int) -> None:
    source, options = random_source(seed)
    program = tiledsl.parse(source)
    func = program.build(())
    text = print_op(func)
    assert print_op(parse_op(text)) == text
    inputs = inputs_for(func, seed, {"M": 11})
    expected = copy_arguments(inputs)
    run(func, expected)
    tensors = [to_torch(each) for each in inputs]
    kernel = tiledsl.compile(program, target="interpret", pass_configs=options)
    kernel(*tensors)
    for name, want, got in zip(func.parameters, expected, tensors, strict=True):
        same_array(want, to_numpy(got, want.dtype), 0.0, f"{name} of seed {seed} with {options}:", source)
