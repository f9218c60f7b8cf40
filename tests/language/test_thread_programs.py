"""Random programs for one thread: emitted Triton, and the meaning after each pass, against threads one by one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
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


def product_of_register_tiles() -> Any:
    """Threads fill tiles in turns of a loop, and each multiplies rows and columns of its own."""
    threads, size, depth, own = 64, 32, 8, 4

    @T.prim_func
    def product(A: T.Tensor((size, 16), "float32"), B: T.Tensor((16, size), "float32"), C: T.Tensor((size, size), "float32")):  # fmt: skip # noqa: E501
        with T.Kernel(1, threads=(8, 8)):
            a_tile = T.alloc_shared((size, depth), "float32")
            b_tile = T.alloc_shared((depth, size), "float32")
            total = T.alloc_local((own, own), "float32")
            row = T.alloc_local((own,), "float32")
            column = T.alloc_local((own,), "float32")
            tx, ty = T.get_thread_binding(0), T.get_thread_binding(1)
            for i, j in T.grid(own, own):
                total[i, j] = 0.0
            for step in T.serial(16 // depth):
                for turn in T.serial(size * depth // threads):
                    place = ty * 8 + tx + turn * threads
                    a_tile[place // depth, place % depth] = A[place // depth, step * depth + place % depth]
                    b_tile[place // size, place % size] = B[step * depth + place // size, place % size]
                T.sync_threads()
                for k in T.serial(depth):
                    for i in T.serial(own):
                        row[i] = a_tile[ty * own + i, k]
                        column[i] = b_tile[k, tx * own + i]
                    for i, j in T.grid(own, own):
                        total[i, j] += row[i] * column[j]
                T.sync_threads()
            for i, j in T.grid(own, own):
                C[ty * own + i, tx * own + j] = total[i, j]

    return product


def test_a_product_of_register_tiles() -> None:
    product = product_of_register_tiles()
    a, b = torch.randn(32, 16), torch.randn(16, 32)
    kernel = tiledsl.compile(product, out_idx=-1, target="interpret")
    torch.testing.assert_close(kernel(a, b), a @ b)
    compiled = tiledsl.compile(product, out_idx=-1, target="cuda:90")
    # Blocks of the tiles are written, and elements gathered: nothing is searched for, and nothing leaves the registers.
    assert not {"tl.max(", "tl.sum(", "tl.associative_scan("} & set(re.findall(r"tl\.\w+\(", compiled.source))
    assert compiled.resources.spills == 0
