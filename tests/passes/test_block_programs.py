"""Programs with block accesses and persistent grids mean what they meant: at each level, and interpreted by Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tests.support.executor import run
from tests.support.programs import copy_arguments, gemm, inputs_for, same_array, split_k
from tiledsl.dialects import scf, tile, triton
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.verifier import verify
from tiledsl.passes import default_pipeline
from tiledsl.runtime.target import Target

TMA = {"select-access.mode": "tma"}
CASES: dict[str, Callable[[], tile.FuncOp]] = {
    "gemm": lambda: gemm(64, 48, 32, 16, 16, 16),
    "ragged": lambda: gemm(37, 24, 40, 16, 16, 16),
    "transposed": lambda: gemm(40, 24, 48, 16, 16, 16, trans_a=True, trans_b=True),
    "one_tile": lambda: gemm(16, 16, 64, 16, 16, 16),
    "wide_tile": lambda: gemm(20, 40, 48, 16, 32, 16, num_stages=3),
}


def lowered(func: Operation, options: Mapping[str, Any], inputs: list[Any]) -> Program:
    """The program through the pipeline, compared with itself after each pass."""
    expected = copy_arguments(inputs)
    run(func, expected, uninitialised="zero")
    program = Program(func.clone({}), Target("interpret"))
    for step in default_pipeline(options):
        step.run(program)
        verify(program.root)
        if step.name not in ("select-access", "map-grid", "lower-to-triton", "dce"):
            continue
        actual = copy_arguments(inputs)
        run(program.root, actual, uninitialised="zero")
        for name, old, new in zip(func.attributes["parameters"], expected, actual, strict=True):
            if isinstance(old, np.ndarray):
                same_array(old, new, 2e-2, f"{name} after {step.spec}:", program.root)
    return program


def count(program: Program, kind: type[Operation]) -> int:
    return sum(isinstance(op, kind) for op in program.root.walk())


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("programs", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_blocks_and_persistent_grids(case: str, programs: int, flatten: bool) -> None:
    func = CASES[case]()
    options = {**TMA, "map-grid.persistent": programs, "map-grid.flatten": flatten, "map-grid.group_m": 2}
    made = lowered(func, options, inputs_for(func, 0))
    assert count(made, triton.LoadBlockOp) == 2 and count(made, triton.StoreBlockOp) == 1
    assert count(made, scf.ForOp) == (2 if programs else 1)


def test_dynamic_rows() -> None:
    func = gemm(bm=16, bn=16, bk=16, dynamic=True)
    made = lowered(func, {**TMA, "map-grid.persistent": 1}, inputs_for(func, 0, {"M": 70, "N": 24, "K": 40}))
    remarks = next(op for op in made.root.walk() if isinstance(op, triton.LaunchOp)).remarks
    assert sum("its stride in dimension 0 is known only at run time" in each for each in remarks) == 3


def test_atomic_sums_stay_right_in_a_persistent_grid() -> None:
    func = split_k(20, 24, 104)
    made = lowered(func, {**TMA, "map-grid.persistent": 1}, inputs_for(func, 0))
    assert count(made, triton.LoadBlockOp) == 2 and count(made, triton.AtomicOp) == 1
