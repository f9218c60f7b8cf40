"""split-last-wave: whole waves, parts of what is left and their sum mean what the grid meant; which kernels stay, and
why."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from benchmarks.programs import example
from benchmarks.programs.gemm import matmul
from tests.passes.ir_cases import filecheck
from tests.passes.ir_cases import program as ir_program
from tests.passes.test_block_programs import count, lowered
from tests.passes.test_split_k import rows_with_epilogue
from tests.support.programs import NAMED, gemm, inputs_for
from tiledsl.dialects import arith, tile, triton
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes import default_pipeline
from tiledsl.passes.split_k.last_wave import SplitLastWave
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


def gradients(
    semantics: str = "relaxed", reads: bool = False, before: bool = False, start: float = 0, prints: bool = False
) -> T.PrimFunc:
    """Two sums of a block, and a third product that each iteration adds to memory, on a grid of three dimensions."""

    @T.prim_func
    def gradients(
        A: T.Tensor((2, 3, 48, 16), "float16"),
        B: T.Tensor((2, 3, 32, 16), "float16"),
        S: T.Tensor((2, 3, 48, 16), "float32"),
        P: T.Tensor((2, 3, 32, 16), "float16"),
        R: T.Tensor((2, 3, 32, 16), "float16"),
    ):
        with T.Kernel(2, 3, 2, threads=128) as (bx, by, bz):
            a = T.alloc_shared((16, 16), "float16")
            b = T.alloc_shared((16, 16), "float16")
            p = T.alloc_fragment((16, 16), "float32")
            r = T.alloc_fragment((16, 16), "float32")
            s = T.alloc_fragment((16, 16), "float32")
            T.clear(p)
            T.fill(r, start)
            T.copy(B[bz, by, bx * 16, 0], b)
            if before:
                T.atomic_add(S[0, 0, 0, 0], 1.0)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[bz, by, k * 16, 0], a)
                T.gemm(b, a, p)
                T.gemm(b, a, r, transpose_B=True)
                T.gemm(a, b, s, clear_accum=True)
                if prints:
                    T.print(k)
                for i, j in T.Parallel(16, 16):
                    if reads:
                        s[i, j] += S[bz, by, k * 16 + i, j]
                    T.atomic_add(S[bz, by, k * 16 + i, j], s[i, j], memory_order=semantics)
            T.copy(p, P[bz, by, bx * 16, 0])
            T.copy(r, R[bz, by, bx * 16, 0])

    return gradients


def test_several_sums_and_what_is_added_to_memory_beside_them() -> None:
    """Twelve blocks of three iterations: a wave of ten, and two blocks in three parts each."""
    kernel = tiledsl.compile(gradients(), target="interpret", out_idx=[-2, -1], pass_configs={PROGRAMS: 10})
    assert kernel.remarks == ()
    names = ["gradients_kernel", "gradients_parts", "gradients_sum"]
    assert re.findall(r"^def (gradients_\w+)\(", kernel.source, re.M)[:3] == names
    torch.manual_seed(0)
    a, b, s = torch.randn(2, 3, 48, 16).half(), torch.randn(2, 3, 32, 16).half(), torch.ones(2, 3, 48, 16)
    p, r = kernel(a, b, s)
    tiles, blocks = a.float().unflatten(2, (3, 16)), b.float().unflatten(2, (2, 16))
    wide = {"rtol": 1e-3, "atol": 2e-2}
    torch.testing.assert_close(p.float(), b.float() @ tiles.sum(2), **wide)
    torch.testing.assert_close(r.float(), b.float() @ tiles.sum(2).transpose(-1, -2), **wide)
    torch.testing.assert_close(s, 1 + a.float() @ blocks.sum(2), **wide)


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        ({"semantics": "acq_rel"}, "the kernel has atomics, prints or assertions"),
        ({"reads": True}, "the kernel has atomics, prints or assertions"),
        ({"before": True}, "the kernel has atomics, prints or assertions"),
        ({"prints": True}, "the kernel has atomics, prints or assertions"),
        ({"start": 1.0}, "the sum does not begin as zeros"),
    ],
)
def test_additions_that_others_may_see_are_not_divided(refused: dict[str, Any], reason: str) -> None:
    kernel = tiledsl.compile(gradients(**refused), target="interpret", pass_configs={PROGRAMS: 10})
    assert f"the last wave of blocks is not split, because {reason}" in kernel.remarks
    assert "gradients_parts" not in kernel.source


@pytest.mark.parametrize(
    ("func", "programs", "reason"),
    [
        (gemm(32, 64, 64), 4, "its 8 blocks fill waves of 4"),
        (gemm(32, 64, 64), 5, "waves of 5 leave 3 of its 8 blocks"),
        (gemm(32, 64, 64), 9, "waves of 9 leave 8 of its 8 blocks"),
        (gemm(16, 16, 16), 4, "the kernel has no loop"),
        (NAMED["dynamic_gemm"](), 4, "its grid is not static, of one, two or three dimensions"),
        (NAMED["attention"](), 4, "the loop does more than to add to tiles"),
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


BLOCKS = """
%r = tensor.iota {axis = 0} : tensor<NUMx1xint32>
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%zero = arith.constant {value = 0.0} : tensor<NUMx16xfloat32>
%first = arith.mul %bx, %c16 : int32
%rows = arith.add %first, %r : tensor<NUMx1xint32>
%sum = scf.for %c0, %c5, %c1[%zero] {num_stages = 2} : tensor<NUMx16xfloat32> (%k: int32, %acc: tensor<NUMx16xfloat32>) {
  %ks = arith.mul %k, %c16 : int32
  %ka = arith.add %ks, %j : tensor<1x16xint32>
  %kb = arith.add %ks, %i : tensor<16x1xint32>
  %a = tile.load %A[%rows, %ka] {guarded = true} : tensor<NUMx16xfloat16>
  %b = tile.load %B[%kb, %j] {guarded = true} : tensor<16x16xfloat16>
  %d = tensor.dot %a, %b, %acc : tensor<NUMx16xfloat32>
  scf.yield [%d]
}
%h = arith.cast %sum : tensor<NUMx16xfloat16>
tile.store %h, %C[%rows, %j] {guarded = true}"""  # noqa: E501
ROWS = BLOCKS.replace("NUM", "16")


def split(body: str = ROWS, blocks: int = 7, programs: int = 5) -> list[list[str]]:
    """The lines of the kernels, constants by their numbers."""
    made = ir_program(body, parameters="A: 112*80*float16, B: 80*16*float16, C: 112*16*float16", grid=(blocks,))
    SplitLastWave(programs=programs).run(made)
    verify(made.root)
    for op in made.root.walk():
        if isinstance(op, arith.ConstantOp):
            op.result.name = "c" + str(op.value).replace(".", "p")
    kernels: list[list[str]] = []
    for line in print_op(made.root).splitlines():
        line = re.sub(r"%(c\d+(?:p\d+)?)_\d+", r"%\1", line.strip())
        if line.startswith("tile.kernel"):
            kernels.append([])
        if kernels and " = arith.constant" not in line:
            kernels[-1].append(line)
    return kernels


def test_the_kernels_of_whole_waves_of_parts_and_of_sums() -> None:
    """Two of seven blocks are left of a wave of five, and each is computed by two programs, of three steps and two."""
    whole, parts, sums = split()
    assert whole == ["tile.kernel [%c5] (%bx: int32) {", *split(blocks=5)[0][1:-2]]
    filecheck(
        [line for line in parts if "_1 =" not in line or "bx" in line or "sum" in line],
        """
        tile.kernel {{.}}%c4] {sym_name = "test_parts"} (%program: int32) {
        %0 = arith.truncmod %program, %c2 : int32
        %bx_1 = arith.add %0, %c5 : int32
        %part = arith.truncdiv %program, %c2 : int32
        %first_step = arith.mul %part, %c3 : int32
        %1 = arith.add %first_step, %c3 : int32
        %end_step = arith.min %1, %c5 : int32
        %first_1 = arith.mul %bx_1, %c16 : int32
        %sum_1 = scf.for %first_step, %end_step, %c1{{.*}}
        scf.yield {{.}}%d_1]
        }
        %2 = tensor.iota {axis = 0} : tensor<16x1xint32>
        %3 = tensor.iota {axis = 1} : tensor<1x16xint32>
        %4 = arith.mul %program, %c16 : int32
        %5 = arith.add %4, %2 : tensor<16x1xint32>
        tile.store %sum_1, %sum_parts{{.}}%5, %3] {guarded = true}
        scf.yield
        }
        """,
    )
    filecheck(
        sums,
        """
        tile.kernel {{.}}%c4] {sym_name = "test_sum"} (%program_1: int32) {
        %left = arith.truncdiv %program_1, %c2 : int32
        %piece = arith.truncmod %program_1, %c2 : int32
        %first_row = arith.mul %piece, %c8 : int32
        %bx_2 = arith.add %left, %c5 : int32
        %r_2 = tensor.iota {axis = 0} : tensor<8x1xint32>
        %r_3 = arith.add %first_row, %r_2 : tensor<8x1xint32>
        %j_2 = tensor.iota {axis = 1} : tensor<1x16xint32>
        %first_2 = arith.mul %bx_2, %c16 : int32
        %rows_2 = arith.add %first_2, %r_3 : tensor<8x1xint32>
        %sum_2 = scf.for %c0, %c2, %c1{{.}}%c0p0] {unroll = 1} : tensor<8x16xfloat32> (%part_1: int32, {{.*}}) {
        %6 = arith.mul %part_1, %c2 : int32
        %7 = arith.add %6, %left : int32
        %8 = tensor.iota {axis = 0} : tensor<8x1xint32>
        %9 = arith.add %first_row, %8 : tensor<8x1xint32>
        %10 = tensor.iota {axis = 1} : tensor<1x16xint32>
        %11 = arith.mul %7, %c16 : int32
        %12 = arith.add %11, %9 : tensor<8x1xint32>
        %13 = tile.load %sum_parts{{.}}%12, %10] {guarded = true} : tensor<8x16xfloat32>
        %14 = arith.add %sum_3, %13 : tensor<8x16xfloat32>
        scf.yield {{.}}%14]
        }
        %h_1 = arith.cast %sum_2 : tensor<8x16xfloat16>
        tile.store %h_1, %C{{.}}%rows_2, %j_2] {guarded = true}
        scf.yield
        }
        scf.yield
        }
        """,
    )


def test_steps_that_divide_evenly_end_by_themselves() -> None:
    """And with one block left there is none to choose."""
    _, parts, _ = split(ROWS.replace("%c5, %c1[", "%c4, %c1["), blocks=6)
    assert parts[1] == "%end_step = arith.add %program, %c1 : int32"
    assert next(line for line in parts if "scf.for" in line).startswith("%sum_1 = scf.for %program, %end_step, %c1")


TOGETHER = """
%m = tensor.reduce %sum {kind = "max", axis = 0} : tensor<16xfloat32>
%n = arith.cast %m : tensor<16xfloat16>
%l = tensor.iota {axis = 0} : tensor<16xint32>
tile.store %n, %C[%bx, %l] {guarded = true}"""


@pytest.mark.parametrize(
    ("rows", "more", "pieces"), [(16, "", 2), (24, "", 3), (8, "", 1), (20, "", 1), (16, TOGETHER, 1)]
)
def test_programs_finish_eight_rows_of_a_block_each(rows: int, more: str, pieces: int) -> None:
    """Where rows have nothing to do with each other."""
    _, _, sums = split(BLOCKS.replace("NUM", str(rows)) + more)
    assert sums[0].startswith(f"tile.kernel [%c{2 * pieces}]")
    assert any(f"tensor<{rows if pieces == 1 else 8}x16xfloat32>" in line for line in sums)
    counted = [line for line in sums if line.startswith("%r_") and "arith.add" in line]
    assert len(counted) == (pieces > 1)  # from the first row of the piece on, where there are several


@pytest.mark.parametrize(("rows", "pieces"), [(16, 2), (24, 1)])
def test_sums_of_unlike_rows_are_finished_whole(rows: int, pieces: int) -> None:
    body = f"""
    %none = arith.constant {{value = 0.0}} : tensor<{rows}x16xfloat32>
    %q = tensor.iota {{axis = 0}} : tensor<{rows}x1xint32>
    {ROWS}"""
    for before, after in (
        ("%sum = scf.for %c0, %c5, %c1[%zero]", "%sum, %more = scf.for %c0, %c5, %c1[%zero, %none]"),
        ("tensor<16x16xfloat32> (%k: int32, %acc: tensor<16x16xfloat32>)",
         f"tensor<16x16xfloat32>, tensor<{rows}x16xfloat32>"
         f" (%k: int32, %acc: tensor<16x16xfloat32>, %old: tensor<{rows}x16xfloat32>)"),
        ("scf.yield [%d]",
         f"%e = tile.load %A[%q, %ka] {{guarded = true}} : tensor<{rows}x16xfloat16>\n"
         f"%f = tensor.dot %e, %b, %old : tensor<{rows}x16xfloat32>\nscf.yield [%d, %f]"),
    ):  # fmt: skip
        assert body.count(before) == 1
        body = body.replace(before, after)
    stored = f"%g = arith.cast %more : tensor<{rows}x16xfloat16>\ntile.store %g, %C[%q, %j] {{guarded = true}}"
    _, parts, sums = split(f"{body}\n{stored}")
    assert [line.split("%")[1].split(",")[0] for line in parts if line.startswith("tile.store")] == ["sum_1", "more_1"]
    assert sums[0].startswith(f"tile.kernel [%c{2 * pieces}]")
    assert sum(line.startswith("%") and "tile.load" in line for line in sums) == 2


def test_gradients_of_attention_are_written_in_gluon() -> None:
    """4096 blocks of keys on 132 multiprocessors: 31 waves, and 4 blocks in 8 parts each."""
    program = example("attention_backward").gradients_at_once
    function = tiledsl.jit(**{**program.options, "target": "cuda:90"})(program.function)
    sizes = {"batch": 4, "heads": 32, "kv_heads": 32, "queries": 4096, "keys": 4096, "dim": 64}
    kernel = function.kernel_for(sizes, {"pass_configs": {"select-emitter.backend": "gluon", PROGRAMS: -1}})
    assert kernel.source.count("gl.warp_specialize(") == 2 and kernel.remarks == ()
    assert ", 4092, gl.num_programs" in kernel.source and ", 32, gl.num_programs" in kernel.source
    assert "attention_gradients_sum[(64,)](" in kernel.source


def test_kernels_without_products_are_not_asked() -> None:
    made = ir_program("%x = tile.load %C[%bx, %c0] : float16\ntile.store %x, %C[%bx, %c1]", grid=(7,),
                      parameters="C: 112*16*float16")  # fmt: skip
    before = print_op(made.root)
    SplitLastWave(programs=5).run(made)
    assert print_op(made.root) == before
