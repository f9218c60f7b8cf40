"""split-last-wave: whole waves, parts of what is left and their sum mean what the grid meant; which kernels stay, and
why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
from benchmarks.programs.gemm import matmul
from tests.passes.test_block_programs import count, lowered
from tests.passes.test_split_k import rows_with_epilogue
from tests.support.programs import NAMED, gemm, inputs_for
from tiledsl.dialects import tile, triton
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.passes import default_pipeline
from tiledsl.runtime.target import Target

PROGRAMS = "split-last-wave.programs"


def launches(program: Program) -> list[triton.LaunchOp]:
    return [op for op in program.root.walk() if isinstance(op, triton.LaunchOp)]


# size -> blocks, each of 7 iterations (ragged in all sizes), 4 and 3
SIZES = {(37, 24, 104): 6, (40, 72, 48): 15, (16, 112, 64): 7}


@pytest.mark.parametrize("more", [{}, {"select-access.mode": "tma", "map-grid.persistent": 1}], ids=["plain", "blocks"])
@pytest.mark.parametrize("programs", [4, 13])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_whole_waves_and_the_rest(sizes: tuple[int, int, int], programs: int, more: dict[str, Any]) -> None:
    func = gemm(*sizes, 16, 16, 16)
    root = lowered(func, {PROGRAMS: programs, "map-grid.group_m": 2, **more}, inputs_for(func, 0))
    blocks = SIZES[sizes]
    if blocks < programs or blocks % programs > programs // 2:
        assert [op.sym_name for op in launches(root)] == ["gemm_kernel"]
        return
    waves, parts, added = launches(root)
    assert [op.sym_name for op in (waves, parts, added)] == ["gemm_kernel", "gemm_parts", "gemm_sum"]
    assert all(op.remarks == () for op in launches(root)) and count(root, tile.AllocOp) == 1
    loads = [op for op in added.body.walk() if isinstance(op, (triton.LoadOp, triton.LoadBlockOp))]
    assert len(loads) == 1  # nothing of A and B is read again


@pytest.mark.parametrize("order", ["row", "column"])
def test_blocks_in_panels(order: str) -> None:
    func = gemm(70, 40, 80, 16, 16, 16)
    kernel = next(op for op in func.walk() if isinstance(op, tile.KernelOp))
    kernel.set_attribute("options", (("swizzle", (2, order)),))
    assert len(launches(lowered(func, {PROGRAMS: 13}, inputs_for(func, 0)))) == 3


def test_epilogue() -> None:
    """Three blocks of seven iterations: two, and one in two parts."""
    options = {"out_idx": [-2, -1], "target": "interpret", "pass_configs": {PROGRAMS: 2}}
    kernel = tiledsl.compile(rows_with_epilogue(5, 48, 112), **options)
    assert "rows_with_epilogue_parts" in kernel.source and kernel.remarks == () and "atomic" not in kernel.source
    torch.manual_seed(0)
    a, b, bias = torch.randn(5, 112).half(), torch.randn(112, 48).half(), torch.randn(48)
    made, top = kernel(a, b, bias)
    torch.testing.assert_close(made, torch.relu(a.float() @ b.float() + bias), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(top, made.view(5, 3, 16).amax(2).T)


@pytest.mark.parametrize(
    ("func", "programs", "reason"),
    [
        (gemm(32, 64, 64), 4, "its 8 blocks fill waves of 4"),
        (gemm(32, 64, 64), 5, "waves of 5 leave 3 of its 8 blocks"),
        (gemm(32, 64, 64), 9, "waves of 9 leave 8 of its 8 blocks"),
        (gemm(16, 16, 16), 4, "the kernel has no loop"),
        (NAMED["dynamic_gemm"](), 4, "its grid is not static, of one or two dimensions"),
        (NAMED["attention"](), 4, "the loop does more than to add to one tile"),
    ],
)
def test_others_stay_with_a_reason(func: Operation, programs: int, reason: str) -> None:
    program = Program(func.clone({}), Target("interpret"))
    PassManager(default_pipeline({PROGRAMS: programs})).run(program)
    (launch,) = launches(program)
    said = [each for each in launch.remarks if "split" in each]
    assert said == [f"the last wave of blocks is not split, because {reason}"]


def test_both_products_are_written_in_gluon() -> None:
    """800 blocks on 132 multiprocessors: 6 waves, and 8 blocks in 8 parts each."""
    options = {"select-emitter.backend": "gluon", PROGRAMS: -1}
    config = {"block_M": 128, "block_N": 256, "block_K": 64, "pass_configs": options}
    function = tiledsl.jit(**{**matmul.options, "target": "cuda:90"})(matmul.function)
    kernel = function.kernel_for({"M": 5120, "N": 5120, "K": 5120}, config)
    assert kernel.source.count("gl.warp_specialize(") == 2 and kernel.remarks == ()
    assert ", 792, gl.num_programs" in kernel.source and ", 64, gl.num_programs" in kernel.source
    assert "matmul_sum[(128,)](" in kernel.source  # 8 rows of a block each


def test_programs_on_each_multiprocessor_need_a_target() -> None:
    with pytest.raises(
        TileError, match=r"split-last-wave\.programs is -1, programs on each multiprocessor, and no target is given"
    ):
        PassManager(default_pipeline({PROGRAMS: -1})).run(Program(gemm().clone({}), None))
