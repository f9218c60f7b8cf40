"""Random programs for one thread: emitted Triton, and the meaning after each pass, against threads one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiledsl
from tests.support.executor import run
from tests.support.programs import check_pass
from tests.support.thread_programs import BLOCKS, ROWS, Program
from tiledsl.passes import default_pipeline
from tiledsl.runtime.target import Target


def given(seed: int, threads: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, (BLOCKS, threads), np.int32)


@pytest.mark.parametrize("seed", range(24))
def test_results_are_those_of_single_threads(seed: int) -> None:
    program = Program(seed)
    a = given(seed, program.threads)
    kernel = tiledsl.compile(tiledsl.parse(program.source), out_idx=[-1], target="interpret")
    made = kernel(torch.from_numpy(a)).numpy()
    assert np.array_equal(made, program.outputs(a)), program.source


@pytest.mark.parametrize("seed", [7, 8, 13, 18, 23])
def test_each_pass_keeps_the_meaning(seed: int) -> None:
    program = Program(seed)
    func = tiledsl.parse(program.source).build(())
    inputs = [given(seed, program.threads), np.zeros((BLOCKS, ROWS, program.threads), np.int32)]
    for each in default_pipeline():
        func = check_pass(each, func, inputs, target=Target.parse("cuda:90"), uninitialised="zero")
    run(func, inputs)
    assert np.array_equal(inputs[1], program.outputs(inputs[0])), program.source
