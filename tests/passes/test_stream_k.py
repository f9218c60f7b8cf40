"""split-k.streams: programs that share all iterations mean what blocks meant; shares, order of sums, what stays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
from tests.passes.test_block_programs import count, lowered
from tests.passes.test_split_k import rows_with_epilogue
from tests.support.executor import run
from tests.support.programs import NAMED, copy_arguments, gemm, inputs_for
from tiledsl.dialects import scf, tile, triton
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.passes import default_pipeline
from tiledsl.passes.split_k.partial_sums import NotSplit
from tiledsl.passes.split_k.stream_k import Shares
from tiledsl.runtime.target import Target

TMA = {"select-access.mode": "tma", "map-grid.persistent": 1}


@pytest.mark.parametrize(
    ("blocks", "trips", "fits"),
    [
        (3, 357913940, True),  # of 3 blocks all iterations are shared: 2 * (3 * trips + 1) is less than 2**31
        (3, 357913941, False),
        (715827881, 3, True),  # as are all iterations
        (715827883, 3, False),
    ],
)
def test_numbers_of_iterations_that_int32_holds(blocks: int, trips: int, fits: bool) -> None:
    assert Shares.of(3, 178956970, 4).steps == 3 * 178956970  # 4 * (steps + 1) is 2**31 - 4
    if fits:
        assert Shares.of(blocks, trips, 2) == Shares(2, trips, 3, blocks // 2 - 1)
        return
    with pytest.raises(NotSplit) as refused:
        Shares.of(blocks, trips, 2)
    assert str(refused.value) == f"2 programs and {blocks} blocks of {trips} iterations are too many"


@pytest.mark.parametrize("trips", [1, 2, 5, 8])
def test_every_iteration_once(trips: int) -> None:
    shared = 0
    for blocks in range(1, 30):
        for programs in range(1, 14):
            try:
                shares = Shares.of(blocks, trips, programs)
            except NotSplit as reason:
                assert min(programs, blocks * trips) < 2 or "evenly" in str(reason)
                assert programs < 2 or blocks * trips < 2 or blocks % programs == 0 or trips == 1
                continue
            shared += 1
            bounds = [program * shares.steps // shares.programs for program in range(shares.programs + 1)]
            assert {b - a for a, b in itertools.pairwise(bounds)} <= {bounds[1], bounds[1] + 1}  # evenly
            assert shares.shared + shares.whole * shares.programs == blocks
            parts: dict[int, list[int]] = {}
            for program, (first, end) in enumerate(itertools.pairwise(bounds)):
                touched = range(first // trips, (end - 1) // trips + 1)
                divided = [block for block in touched if block * trips < first or (block + 1) * trips > end]
                assert set(divided) == set(filter(shares.is_divided, touched))
                assert sum(block * trips >= first for block in divided) <= 1  # one place for a part that begins a block
                assert sum(block * trips < first for block in divided) <= 1  # and one for a part that another begins
                assert all(shares.program(step) == program for step in range(first, end))
                for block in divided:
                    parts.setdefault(block, []).append(program)
            for programs_of_block in parts.values():  # those between the first and the last, in order
                assert programs_of_block == list(range(programs_of_block[0], programs_of_block[-1] + 1))
    assert shared > 100 or trips == 1


def launches(program: Program) -> list[triton.LaunchOp]:
    return [op for op in program.root.walk() if isinstance(op, triton.LaunchOp)]


# Size -> blocks, each of 7 iterations (ragged in all sizes), 4, 6, 5, 3
SIZES = {(37, 24, 104): 6, (16, 48, 64): 3, (20, 16, 88): 2, (16, 16, 80): 1, (40, 72, 48): 15}


@pytest.mark.parametrize("more", [{}, TMA], ids=["plain", "blocks"])
@pytest.mark.parametrize("streams", [2, 4, 5, 7, 100])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_shared_blocks(sizes: tuple[int, int, int], streams: int, more: dict[str, Any]) -> None:
    func = gemm(*sizes, 16, 16, 16)
    root = lowered(func, {"split-k.streams": streams, **more}, inputs_for(func, 0))
    if SIZES[sizes] % streams == 0:
        assert [op.sym_name for op in launches(root)] == ["gemm_kernel"]
        return
    first, second = launches(root)
    assert (first.sym_name, second.sym_name) == ("gemm_kernel", "gemm_sum")
    assert first.remarks == second.remarks == () and count(root, tile.AllocOp) == 1
    assert count(root, triton.AtomicOp) == 0 and sum(isinstance(op, scf.ForOp) for op in first.body.walk()) == 2
    loads = [op for op in second.body.walk() if isinstance(op, (triton.LoadOp, triton.LoadBlockOp))]
    assert len(loads) == 2  # the part that begins a block, and the others: nothing of A and B is read again


@pytest.mark.parametrize("streams", [7, 8])
@pytest.mark.parametrize(
    "case", [{"bm": 24, "bn": 40}, {"trans_a": True, "trans_b": True}], ids=["padded", "transposed"]
)
def test_tiles_of_other_forms(case: dict[str, Any], streams: int) -> None:
    func = gemm(56, 72, 104, **case)
    made = lowered(func, {"split-k.streams": streams, **TMA}, inputs_for(func, 0))
    assert len(launches(made)) == 2


@pytest.mark.parametrize("order", ["row", "column"])
def test_blocks_in_panels(order: str) -> None:
    func = gemm(70, 40, 80, 16, 16, 16)
    kernel = next(op for op in func.walk() if isinstance(op, tile.KernelOp))
    kernel.set_attribute("options", (("swizzle", (2, order)),))
    made = lowered(func, {"split-k.streams": 4}, inputs_for(func, 0))
    assert len(launches(made)) == 2


def test_the_same_bits_in_any_order_of_programs() -> None:
    func = gemm(37, 56, 208, 16, 16, 16)
    program = Program(func.clone({}), Target("interpret"))
    PassManager(default_pipeline({"split-k.streams": 7})).run(program)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(each.shape).astype(each.dtype) for each in inputs_for(func, 0)]
    made = []
    for reverse in (False, True):
        arguments = copy_arguments(inputs)
        run(program.root, arguments, reverse_grid=reverse)
        made.append(arguments[2])
    np.testing.assert_array_equal(made[0].view("uint16"), made[1].view("uint16"))


@pytest.mark.parametrize(("rows", "streams"), [(1, 2), (5, 4), (16, 7), (16, 21)])
def test_epilogue(rows: int, streams: int) -> None:
    """Three blocks of seven iterations: of whole blocks and of sums from two to seven parts."""
    options = {"out_idx": [-2, -1], "target": "interpret", "pass_configs": {"split-k.streams": streams}}
    kernel = tiledsl.compile(rows_with_epilogue(rows, 48, 112), **options)
    assert "rows_with_epilogue_sum" in kernel.source and kernel.remarks == () and "atomic" not in kernel.source
    torch.manual_seed(0)
    a, b, bias = torch.randn(rows, 112).half(), torch.randn(112, 48).half(), torch.randn(48)
    made, top = kernel(a, b, bias)
    torch.testing.assert_close(made, torch.relu(a.float() @ b.float() + bias), rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(top, made.view(rows, 3, 16).amax(2).T)
    assert all(torch.equal(*pair) for pair in zip(kernel(a, b, bias), (made, top)))


def remarks(func: Operation, streams: int = 4) -> list[str]:
    program = Program(func.clone({}), Target("interpret"))
    PassManager(default_pipeline({"split-k.streams": streams})).run(program)
    (launch,) = launches(program)
    return [each for each in launch.remarks if "split" in each]


@pytest.mark.parametrize(
    ("func", "streams", "reason"),
    [
        (gemm(32, 64, 64), 4, "4 programs share its 8 blocks evenly as they are"),
        (gemm(32, 64, 64), 1, "one program would compute all"),
        (gemm(16, 16, 16), 4, "the kernel has no loop"),
        (NAMED["dynamic_gemm"](), 4, "its grid is not static, of one or two dimensions"),
        (NAMED["attention"](), 4, "the loop does more than to add to one tile"),
    ],
)
def test_others_stay_with_a_reason(func: Operation, streams: int, reason: str) -> None:
    assert remarks(func, streams) == [f"the loop along K is not split, because {reason}"]


def test_programs_on_each_multiprocessor() -> None:
    for streams, programs in ((-1, 132), (-2, 264)):
        program = Program(gemm(256, 256, 64).clone({}), Target.parse("cuda:90"))
        PassManager(default_pipeline({"split-k.streams": streams})).run(program)
        (alloc,) = [op for op in program.root.walk() if isinstance(op, tile.AllocOp)]
        assert tile.buffer_type(alloc.out).shape == (2 * programs * 16, 16)


def test_options_that_mean_nothing() -> None:
    def run_with(options: dict[str, int], target: Target | None) -> None:
        PassManager(default_pipeline(options)).run(Program(gemm().clone({}), target))

    with pytest.raises(TileError, match=r"split-k\.splits is 2 and split-k\.streams 4; set one of them"):
        run_with({"split-k.splits": 2, "split-k.streams": 4}, Target("interpret"))
    with pytest.raises(
        TileError, match=r"split-k\.streams is -1, programs on each multiprocessor, and no target is given"
    ):
        run_with({"split-k.streams": -1}, None)
