"""split-k: parts and their sum mean what the whole loop meant; which kernels stay, and why."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes import ir_cases
from tests.passes.test_block_programs import count, lowered
from tests.support.example_modules import load_example
from tests.support.programs import NAMED, check_pass, gemm, inputs_for
from tiledsl.dialects import tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import Pass, PassManager, Program
from tiledsl.ir.verifier import verify
from tiledsl.passes import default_pipeline
from tiledsl.passes.split_k import SplitK
from tiledsl.passes.split_k.last_wave import SplitLastWave
from tiledsl.runtime.target import Target


@pytest.mark.parametrize("more", [{}, {"select-access.mode": "tma", "map-grid.persistent": 1}], ids=["plain", "blocks"])
@pytest.mark.parametrize("splits", [2, 3, 4, 7])
@pytest.mark.parametrize("sizes", [(37, 24, 112), (16, 48, 64), (20, 16, 88)], ids=str)
def test_parts_add_up(sizes: tuple[int, int, int], splits: int, more: dict[str, Any]) -> None:
    func = gemm(*sizes, 16, 16, 16)
    made = lowered(func, {"split-k.splits": splits, "map-grid.group_m": 2, **more}, inputs_for(func, 0))
    launches = [op for op in made.root.walk() if isinstance(op, triton.LaunchOp)]
    assert [op.sym_name for op in launches] == ["gemm_kernel", "gemm_sum"]
    assert all(op.remarks == () for op in launches) and count(made, tile.AllocOp) == 1
    loads = [op for op in launches[1].body.walk() if isinstance(op, (triton.LoadOp, triton.LoadBlockOp))]
    assert len(loads) == 1  # nothing of A and B is read again


def sums_while() -> T.PrimFunc:
    @T.prim_func
    def sums_while(
        A: T.Tensor((16, 64), "float32"), B: T.Tensor((64, 16), "float32"), C: T.Tensor((16, 16), "float32")
    ):
        with T.Kernel(1):
            a, b = T.alloc_shared((16, 16), "float32"), T.alloc_shared((16, 16), "float32")
            total = T.alloc_fragment((16, 16), "float32")
            T.clear(total)
            k = T.alloc_var("int32", 0)
            while k < 64:
                T.copy(A[0, k], a)
                T.copy(B[k, 0], b)
                T.gemm(a, b, total)
                k += 16
            T.copy(total, C)

    return sums_while


def rows_with_epilogue(rows: int, columns: int, depth: int) -> T.PrimFunc:
    """One row of blocks, on a grid of one dimension: relu(A @ B + bias), and the greatest of each row of a block."""

    @T.prim_func
    def rows_with_epilogue(
        A: T.Tensor((rows, depth), "float16"),
        B: T.Tensor((depth, columns), "float16"),
        bias: T.Tensor((columns,), "float32"),
        C: T.Tensor((rows, columns), "float32"),
        top: T.Tensor((columns // 16, rows), "float32"),
    ):
        with T.Kernel(T.ceildiv(columns, 16), threads=128) as bx:
            a = T.alloc_shared((16, 16), "float16")
            b = T.alloc_shared((16, 16), "float16")
            total = T.alloc_fragment((16, 16), "float32")
            greatest = T.alloc_fragment((16,), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(depth, 16), num_stages=2):
                T.copy(A[0, k * 16], a)
                T.copy(B[k * 16, bx * 16], b)
                T.gemm(a, b, total)
            for i, j in T.Parallel(16, 16):
                total[i, j] = T.max(total[i, j] + bias[bx * 16 + j], 0.0)
            T.reduce_max(total, greatest, dim=1)
            T.copy(total, C[0, bx * 16])
            T.copy(greatest, top[bx, 0])

    return rows_with_epilogue


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_epilogue_of_the_whole_sum(rows: int) -> None:
    options = {"out_idx": [-2, -1], "target": "interpret", "pass_configs": {"split-k.splits": 3}}
    kernel = tiledsl.compile(rows_with_epilogue(rows, 48, 112), **options)
    assert "rows_with_epilogue_sum" in kernel.source and kernel.remarks == ()
    torch.manual_seed(0)
    a, b, bias = torch.randn(rows, 112).half(), torch.randn(112, 48).half(), torch.randn(48)
    made, top = kernel(a, b, bias)
    expected = torch.relu(a.float() @ b.float() + bias)
    torch.testing.assert_close(made, expected, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(top, made.view(rows, 3, 16).amax(2).T)


def remarks(func: Operation, splits: int = 4) -> list[str]:
    program = Program(func.clone({}), Target("interpret"))
    PassManager(default_pipeline({"split-k.splits": splits})).run(program)
    verify(program.root)
    launches = [op for op in program.root.walk() if isinstance(op, triton.LaunchOp)]
    assert len(launches) == 1
    return [each for each in launches[0].remarks if "split" in each]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dynamic_gemm", "its grid is not static, of one or two dimensions"),
        ("split_k", "its grid is not static, of one or two dimensions"),
        ("attention", "the loop does more than to add to one tile"),
    ],
)
def test_others_stay_with_a_reason(name: str, reason: str) -> None:
    assert remarks(NAMED[name]()) == [f"the loop along K is not split, because {reason}"]


SUM = """
%i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
%start = arith.constant {{value = {start}}} : tensor<16x16xfloat32>
{before}
%r = scf.for {bounds}[%start] : tensor<16x16xfloat32> (%k: int32, %acc: tensor<16x16xfloat32>) {{
  %o = arith.mul %k, %c16 : int32
  %kj = arith.add %j, %o : tensor<1x16xint32>
  %ki = arith.add %i, %o : tensor<16x1xint32>
  %a = tile.load %A[%i, %kj] {{guarded = true}} : tensor<16x16xfloat32>
  %b0 = tile.load %B[%ki, %j] {{guarded = true}} : tensor<16x16xfloat32>
  {body}
  scf.yield [%d]
}}
tile.store %r, %A[%i, %j] {{guarded = true}}
{after}
"""
DOT = "%d = tensor.dot %a, %b0, %acc : tensor<16x16xfloat32>"
TWO = (
    "%zero = arith.constant {value = 0.0} : tensor<16x16xfloat32>\n"
    "%p = tensor.dot %a, %b0, %zero : tensor<16x16xfloat32>\n"
)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"body": TWO + "%d = arith.add %acc, %p : tensor<16x16xfloat32>"}, ""),
        ({"body": TWO + "%d = arith.add %p, %acc : tensor<16x16xfloat32>"}, ""),
        ({"bounds": "%c0, %c2, %c1"}, ""),
        ({"bounds": "%c0, %c1, %c1"}, "it has less than two iterations"),
        ({"bounds": "%c0, %s, %c1"}, "the number of its iterations is known only at run time"),
        ({"bounds": "%c1, %c6, %c1"}, "the number of its iterations is known only at run time"),
        ({"bounds": "%c0, %c6, %c2"}, "the number of its iterations is known only at run time"),
        ({"start": "1.0"}, "the sum does not begin as zeros"),
        ({"before": "tile.store %f, %D[%c0]"}, "something is stored before the sum is complete"),
        ({"body": DOT + "\ntile.store %f, %D[%k]"}, "something is stored before the sum is complete"),
        (
            {"before": "scf.if %b { tile.store %f, %D[%c0] scf.yield } { scf.yield }"},
            "something is stored before the sum is complete",
        ),
        (
            {"body": DOT + "\nscf.if %b { tile.store %f, %D[%k] scf.yield } { scf.yield }"},
            "something is stored before the sum is complete",
        ),
        ({"before": "scf.if %b {", "after": "scf.yield } { scf.yield }"}, "the kernel has other loops"),
        ({"before": 'tile.print [%s] {message = ""}'}, "the kernel has atomics, prints or assertions"),
        ({"before": "tile.assert %b"}, "the kernel has atomics, prints or assertions"),
        (
            {"before": '%old = tile.atomic %f, %D[%c0] {kind = "add"} : float32'},
            "the kernel has atomics, prints or assertions",
        ),
        ({"before": "scf.for %c0, %c3, %c1 (%q: int32) { scf.yield }"}, "the kernel has other loops"),
        (
            {"body": TWO + "%d = arith.sub %acc, %p : tensor<16x16xfloat32>"},
            "the loop does more than to add to one tile",
        ),
        (
            {"body": TWO + "%d = arith.mul %acc, %p : tensor<16x16xfloat32>"},
            "the loop does more than to add to one tile",
        ),
        (
            {"body": TWO + "%e = arith.add %acc, %acc : tensor<16x16xfloat32>\n"
             "%d = arith.add %e, %p : tensor<16x16xfloat32>"},
            "the loop does more than to add to one tile",
        ),
        (
            {"body": TWO + "%e = arith.add %acc, %p : tensor<16x16xfloat32>\n"
             "%d = arith.add %e, %acc : tensor<16x16xfloat32>"},
            "the loop does more than to add to one tile",
        ),
        (
            {"body": "%d = tensor.dot %acc, %b0, %acc : tensor<16x16xfloat32>"},
            "the loop does more than to add to one tile",
        ),
    ],
)  # fmt: skip
def test_which_sums_are_divided(changes: dict[str, str], reason: str) -> None:
    parts = {"start": "0.0", "before": "", "bounds": "%c0, %c6, %c1", "body": DOT, "after": "", **changes}
    made = ir_cases.program(SUM.format(**parts), grid=(4,))
    SplitK(splits=4).run(made)
    verify(made.root)
    kernels = [op for op in made.root.walk() if isinstance(op, tile.KernelOp)]
    assert [len(kernels), *kernels[0].remarks] == (
        [1, f"the loop along K is not split, because {reason}"] if reason else [2]
    )


OF_BLOCKS = (
    SUM.replace("tile.store %r, %A[%i, %j]", "tile.store %r, %C[%rows, %j]").replace("%A[%i, %kj]", "%A[%rows, %kj]")
).replace("{before}", "%first = arith.mul ROW, %c16 : int32 %rows = arith.add %i, %first : tensor<16x1xint32> {before}")


@pytest.mark.parametrize("grid", [(1,), (3,), (2, 2), (3, 2)])
@pytest.mark.parametrize(
    "options", [{"splits": 2}, {"splits": 3}, {"splits": 7}, {"streams": 2}, {"streams": 3}, {"streams": 7}], ids=str
)
def test_every_block_has_the_whole_sum(grid: tuple[int, ...], options: dict[str, int]) -> None:
    """Of any number of iterations, on grids of one and two dimensions; splits are the last dimension of three."""
    columns = "%y = arith.mul %by, %c3 : int32 %row = arith.add %y, %bx : int32" if len(grid) > 1 else ""
    for trips in (1, 2, 5, 6):
        body = OF_BLOCKS.replace("ROW", "%row" if columns else "%bx").format(
            start="0.0", before="", bounds=f"%c0, %c{trips}, %c1", body=DOT, after=""
        )
        root = ir_cases.program(
            f"{columns} {body}", grid=grid, parameters="A: 96*96*float32, B: 96*16*float32, C: 96*16*float32"
        ).root
        made = check_pass(SplitK(**options), root, inputs_for(root, 0))
        kernels = [op for op in made.walk() if isinstance(op, tile.KernelOp)]
        blocks, parts = math.prod(grid), options.get("splits", 0)
        if min(parts, trips) > 1:
            assert [constant_of(each) for each in kernels[0].grid] == [*(*grid, 1)[:2], min(parts, trips)]
            assert [each.sym_name for each in kernels] == ["kernel", "test_sum"]
            (space,) = [tile.buffer_type(op.out).shape for op in made.walk() if isinstance(op, tile.AllocOp)]
            assert space == (16 * blocks * min(parts, trips), 16)
        elif parts or trips == 1 or blocks % min(options["streams"], blocks * trips) == 0:
            assert len(kernels) == 1 and kernels[0].remarks
        else:
            assert [each.sym_name for each in kernels] == ["kernel", "test_sum"]
            assert [constant_of(each) for each in kernels[0].grid] == [min(options["streams"], blocks * trips)]


def test_a_while_loop_stays() -> None:
    kernel = tiledsl.compile(sums_while(), target="cuda:90", pass_configs={"split-k.splits": 4})
    assert "the loop along K is not split, because the kernel has other loops" in kernel.remarks


def test_what_is_written_in_gluon_stays_with_a_reason() -> None:
    options = {"select-emitter.backend": "gluon", "split-k.splits": 4}
    builder = load_example("gemm_lazy").matmul_relu
    kernel = tiledsl.jit(builder.function, target="cuda:90", pass_configs=options).compile(
        M=4096, N=4096, K=4096, block_M=128, block_N=256, block_K=64
    )
    assert len(kernel.remarks) == 1 and "not split, because it is written in Gluon" in kernel.remarks[0]


def test_short_loops_and_kernels_without_products_stay() -> None:
    assert remarks(gemm(16, 16, 16, 16, 16, 16)) == ["the loop along K is not split, because the kernel has no loop"]
    assert remarks(NAMED["layer_norm"]()) == []


def test_splits_must_be_positive() -> None:
    with pytest.raises(TileError, match=r"split-k\.splits is 0"):
        remarks(gemm(), 0)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (SplitK(), False), (SplitK(splits=2), True), (SplitK(streams=1), True), (SplitK(streams=-1), True),
        (SplitLastWave(), False), (SplitLastWave(programs=1), True), (SplitLastWave(programs=-1), True),
    ],
)  # fmt: skip
def test_another_order_of_additions_is_named(made: Pass, named: bool) -> None:
    assert made.allowances(Program(gemm())) == ({"reassociation"} if named else set())
