"""release-operands: products in front of pipelined loops stand in branches, and what stays where it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.test_schedule_loops import HALF, SCORES, launch
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.passes.release_operands import ReleaseOperands
from tiledsl.runtime.target import Target


def program(rows: int = 64, stages: int = 3, scaled: bool = True, joined: bool = True) -> T.PrimFunc:
    @T.prim_func
    def products(
        A: T.Tensor((rows, 128), "float16"), B: T.Tensor((128, 64), "float16"), C: T.Tensor((rows, 512), "float16"),
        D: T.Tensor((512, 64), "float16"), E: T.Tensor((rows, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((rows, 128), "float16"), T.alloc_shared((128, 64), "float16")
            c, d = T.alloc_shared((rows, 64), "float16"), T.alloc_shared((64, 64), "float16")
            e = T.alloc_fragment((rows, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            f = T.alloc_fragment((rows, 64), "float32")
            T.clear(e)
            if joined:
                T.gemm(a, b, e)
            else:
                T.gemm(a, b, f, clear_accum=True)
            if scaled:
                for i, j in T.Parallel(rows, 64):
                    e[i, j] = e[i, j] * 0.5
            for k in T.Pipelined(8, num_stages=stages):
                T.copy(C[0, k * 64], c)
                T.copy(D[k * 64, 0], d)
                T.gemm(c, d, e)
            if not joined:
                for i, j in T.Parallel(rows, 64):
                    e[i, j] = e[i, j] + f[i, j]
            T.copy(e, E)

    return products


BRANCH = "if tl.num_programs(0) > 0:"


def source(made: T.PrimFunc, target: str = "cuda:90", **options: Any) -> str:
    return tiledsl.compile(made, target=target, pass_configs=options).source


@pytest.mark.parametrize("scaled", [True, False])
def test_a_product_whose_result_a_pipelined_loop_takes_stands_in_a_branch(scaled: bool) -> None:
    text = source(program(scaled=scaled))
    before, branch, behind = text.partition(BRANCH)
    assert branch and "tl.dot" not in before and behind.index("tl.dot") < behind.index("for k in tl.range")
    assert text.count(BRANCH) == 1


@pytest.mark.parametrize(
    ("made", "target", "options"),
    [
        (program(rows=32), "cuda:90", {}),  # products that do not read shared memory while others run
        (program(stages=1), "cuda:90", {"pipeline-loops.deepen": False}),
        (program(joined=False), "cuda:90", {}),  # the loop does not go on with the result
        (program(), "cuda:80", {}),
        (program(), "cuda:100", {}),
        (program(), "hip:gfx942", {}),
        (program(), "cuda:90", {"release-operands.enabled": False}),
    ],
)
def test_what_stays(made: T.PrimFunc, target: str, options: dict[str, Any]) -> None:
    assert BRANCH not in source(made, target, **options)


def test_the_operands_of_the_product_no_longer_take_shared_memory_beside_the_loops() -> None:
    """32 KiB of operands, three tiles of 16 KiB."""
    on, off = (
        tiledsl.compile(program(), target="cuda:90", pass_configs={"release-operands.enabled": each}).resources
        for each in (True, False)
    )
    assert off.shared_bytes - on.shared_bytes >= 32 * 1024 - 2048


def test_results() -> None:
    generator = np.random.default_rng(0)
    shapes = [(64, 128), (128, 64), (64, 512), (512, 64)]
    a, b, c, d = (generator.integers(-4, 5, shape).astype(np.float16) for shape in shapes)
    made = tiledsl.compile(program(), target="interpret", out_idx=-1)(*map(torch.from_numpy, (a, b, c, d)))
    a, b, c, d = (each.astype(np.float32) for each in (a, b, c, d))
    np.testing.assert_array_equal(made.numpy(), a @ b * np.float32(0.5) + c @ d)
    assert tiledsl.compile(program(), target="cuda:90").verify().ok


@pytest.mark.parametrize(
    ("stages", "depth", "released"),
    [(0, 0, False), (0, 1, False), (0, 2, True), (1, 2, False), (2, 1, True), (3, 0, True)],
)
@pytest.mark.parametrize("arch", [90, 80])
def test_loops_of_two_stages_and_more_are_pipelined(stages: int, depth: int, released: bool, arch: int) -> None:
    """The launch's number is that of loops without one."""
    load = f"triton.load_block %Q[%c0, %c0] {{axes = (0, 1)}} : {HALF}"
    body = f"""%a = {load}
    %first = tensor.dot %a, %a, %zero : {SCORES}
    %r = scf.for %c0, %c8, %c1[%first] {{num_stages = {stages}}} : {SCORES} (%i: int32, %acc: {SCORES}) {{
      %b = {load}
      %sum = tensor.dot %a, %b, %acc : {SCORES}
      scf.yield [%sum]
    }}"""
    root = launch(body.replace(" {num_stages = 0}", ""), f'(("num_stages", {depth}),)' if depth else "()")
    ReleaseOperands().run(Program(root, Target("cuda", arch)))
    assert ("scf.if" in print_op(root)) is (released and arch == 90)
