"""select-emitter on matrix products: which go to Gluon, what the others are told, and that they stay as they were."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gemm import matmul
from tests.passes.ir_cases import body_lines, filecheck, kernel_of, program
from tests.support.example_modules import load_example
from tiledsl.dialects import gluon, scf
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.verifier import verify
from tiledsl.passes.select_emitter import SelectEmitter
from tiledsl.runtime.target import Target

GLUON = {"select-emitter.backend": "gluon"}


def is_gluon(kernel: tiledsl.Kernel) -> bool:
    return "@gluon.jit" in kernel.source


def product(passes: dict[str, Any] = GLUON, **options: Any) -> tiledsl.Kernel:
    tiles = {"block_M": 128, "block_N": 64, "block_K": 64, "num_stages": 4}
    sizes = {"M": 512, "N": 512, "K": 512, **tiles, **options}
    return tiledsl.jit(matmul.function, target="cuda:90", pass_configs=passes).compile(**sizes)


def scaled(passes: dict[str, Any] = GLUON, **options: Any) -> tiledsl.Kernel:
    sizes = {"M": 512, "N": 512, "K": 1024, "block_M": 128, "block_N": 128, "num_stages": 4, **options}
    function = load_example("gemm_fp8_blockscale").matmul_blockscale.function
    return tiledsl.jit(function, target="cuda:90", pass_configs=passes).compile(**sizes)


def schedule_of(kernel: tiledsl.Kernel) -> tuple[int, int, int]:
    """How many turns are taken at a time, or 0, the tiles in flight, and how many values the loop carries."""
    ops = list(parse_program(kernel.ir("schedule-loops")).root.walk())
    assert any(isinstance(op, gluon.ScheduleOp) for op in ops)
    (loop,) = [op for op in ops if isinstance(op, scf.ForOp)]
    return loop.unroll, loop.num_stages, len(loop.inits)


@pytest.mark.parametrize(
    "options",
    [{}, {"block_M": 64}, {"block_M": 192, "block_N": 128}, {"block_N": 256, "num_stages": 3}, {"dtype": "bfloat16"},
     {"M": 1000, "N": 1000, "K": 1000}, {"splits": 2}],
    ids=str,
)  # fmt: skip
def test_products_go_to_gluon_where_asked_for(options: dict[str, Any]) -> None:
    assert is_gluon(product(**options))
    assert not is_gluon(product({}, **options))


def test_two_products_from_zero_where_registers_allow() -> None:
    assert schedule_of(scaled()) == (4, 4, 1)
    # One product at a time hands on the scales that it has loaded for the next.
    assert schedule_of(scaled(block_M=192))[::2] == (0, 3)
    assert schedule_of(scaled({**GLUON, "select-emitter.overlap": False})) == (0, 4, 3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, ""),
        ({"M": 1000, "K": 1920}, ""),
        ({"block_M": 192}, ""),
        ({"num_stages": 3}, ""),
        ({"block_M": 64}, "of Triton's speed"),
    ],
    ids=str,
)
def test_the_default_is_gluon_for_scaled_blocks_where_it_is_faster(options: dict[str, Any], reason: str) -> None:
    kernel = scaled({}, **options)
    assert is_gluon(kernel) == (not reason)
    told = [each for each in kernel.remarks if "not in Gluon" in each]
    assert len(told) == bool(reason) and all(reason in each for each in told)
    assert not any("Gluon" in each for each in product({}).remarks)


def test_as_many_stages_as_fit() -> None:
    assert schedule_of(scaled(num_stages=20, block_N=64))[1] == 8
    assert schedule_of(product({**GLUON, "select-emitter.stages": 5})) == (0, 5, 1)
    for one in (product({**GLUON, "select-emitter.stages": 1}), product(num_stages=1)):
        assert schedule_of(one)[1] == 2  # with one, a product would wait for its own release


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"block_M": 256}, "256 rows are not 64, 128 or 192"),
        ({"block_M": 32}, "32 rows are not a multiple of 64"),
        ({"block_N": 512}, "a tile's extent 512 is not a power of two from 16 to 256"),
        ({"block_N": 120}, "a tile's extent 120 is not a power of two from 16 to 256"),
        ({"block_M": 192, "block_N": 256}, "an instruction of 256 columns does not fit 3 consumers"),
        ({"K": 500}, "are not contiguous multiples of 16 bytes"),
        ({"K": 64}, "no loop with a product"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_written_in_triton(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tiledsl"):
        asked = product(**options)
    (told,) = [each.getMessage() for each in caplog.records if "not in Gluon" in each.getMessage()]
    assert reason in told and told in asked.remarks
    assert asked.source == product({"select-emitter.backend": "triton"}, **options).source


def unusual(kind: str) -> Any:
    """A product with something about it that a Gluon consumer cannot do."""
    dtype = "float8_e4m3fn" if kind == "rows of B" else "float16"
    shape = (512, 128) if kind == "A transposed" else (128, 512)

    @T.prim_func
    def program(
        A: T.Tensor(shape, dtype),
        B: T.Tensor((512, 128) if kind == "rows of B" else (128, 512), dtype),
        scale: T.Tensor((8,), "float32"),
        C: T.Tensor((128, 128), "float32"),
        D: T.Tensor((128, 512), "float16"),
    ):
        with T.Kernel(1, threads=256) as _:
            a = T.alloc_shared((64, 128) if kind == "A transposed" else (128, 64), dtype)
            b = T.alloc_shared((64, 128) if kind == "rows of B" else (128, 64), dtype)
            product = T.alloc_fragment((128, 128), "float32")
            total = T.alloc_fragment((128, 128), "float32")
            column = T.alloc_fragment((128,), "float32")
            T.clear(total)
            for k in T.Pipelined(8, num_stages=2):
                if kind == "A transposed":
                    T.copy(A[k * 64, 0], a)
                else:
                    T.copy(A[0, k * 64], a)
                if kind == "rows of B":
                    T.copy(B[k * 64, 0], b)
                else:
                    T.copy(B[0, k * 64], b)
                if kind == "doubled":
                    for i, j in T.Parallel(128, 64):
                        a[i, j] = a[i, j] * 2
                if kind == "stored":
                    T.copy(a, D[0, k * 64])
                if kind == "seen":
                    for i, j in T.Parallel(128, 128):
                        product[i, j] = total[i, j]
                if kind == "named":
                    factor = scale[k]
                    T.gemm(a, b, product, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(128, 128):
                        total[i, j] += product[i, j] * factor
                elif kind == "scaled":
                    T.gemm(a, b, product, transpose_B=True, clear_accum=True)
                    for i, j in T.Parallel(128, 128):
                        total[i, j] += product[i, j] * scale[k]
                elif kind == "squared":
                    T.gemm(a, b, total, transpose_B=True)
                    for i, j in T.Parallel(128, 128):
                        total[i, j] *= total[i, j]
                else:
                    T.gemm(a, b, total, transpose_A=kind == "A transposed", transpose_B=kind != "rows of B")
            if kind == "columns":
                T.reduce_max(total, column, dim=0)
                for i, j in T.Parallel(128, 128):
                    total[i, j] -= column[j]
            if kind == "seen":
                for i, j in T.Parallel(128, 128):
                    total[i, j] += product[i, j]
            T.copy(total, C)

    return program


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("plain", ""),
        ("scaled", ""),
        ("A transposed", ""),
        ("rows of B", "the columns of a right operand of float8_e4m3fn are not contiguous"),
        ("doubled", ""),
        ("stored", "a product's operand is used for something else"),
        ("squared", ""),
        ("seen", ""),
        ("columns", "a reduction over rows"),
    ],
)
def test_what_stands_around_the_product(kind: str, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tiledsl"):
        kernel = tiledsl.compile(unusual(kind), target="cuda:90", pass_configs=GLUON)
        assert is_gluon(kernel) == (not reason)
    messages = [each.getMessage() for each in caplog.records if "not in Gluon" in each.getMessage()]
    assert len(messages) == (1 if reason else 0)
    assert all(reason in each and "test_select_emitter_products.py:" in each for each in messages)


def test_by_default_nothing_is_told_of_a_product_on_a_sum() -> None:
    assert not any("Gluon" in each for each in tiledsl.compile(unusual("rows of B"), target="cuda:90").remarks)


@pytest.mark.parametrize(("kind", "name"), [("scaled", "scale_now"), ("named", "factor")])
def test_what_is_loaded_ahead_keeps_its_name_or_has_that_of_its_tensor(kind: str, name: str) -> None:
    configs = {**GLUON, "select-emitter.overlap": False}
    kernel = tiledsl.compile(unusual(kind), target="cuda:90", pass_configs=configs)
    (loop,) = [op for op in parse_program(kernel.ir("select-emitter")).root.walk() if isinstance(op, scf.ForOp)]
    assert is_gluon(kernel) and loop.body.args[-1].name.startswith(name)


SUM = "tensor<128x64xfloat32>"
PRODUCT = f"""
%i = tensor.iota {{axis = 0}} : tensor<128x1xint32>
%q = tensor.iota {{axis = 1}} : tensor<1x64xint32>
%p = tensor.iota {{axis = 0}} : tensor<64x1xint32>
%j = tensor.iota {{axis = 1}} : tensor<1x64xint32>
%first = arith.mul %bx, %c128 : int32
%rows = arith.add %first, %i : tensor<128x1xint32>
%zero = arith.constant {{value = 0.0}} : {SUM}
%r = scf.for %c0, %c8, %c1[%zero] {{num_stages = 3}} : {SUM} (%k: int32, %acc: {SUM}) {{
  %ks = arith.mul %k, %c64 : int32
  %qs = arith.add %q, %ks : tensor<1x64xint32>
  %ps = arith.add %p, %ks : tensor<64x1xint32>
  %a = tile.load %A[%rows, %qs] : tensor<128x64xfloat16>
  %b = tile.load %B[%ps, %j] : tensor<64x64xfloat16>
  %d = tensor.dot %a, %b, %acc : {SUM}
  scf.yield [%d]
}}
%h = arith.cast %r : tensor<128x64xfloat16>
tile.store %h, %C[%rows, %j]
"""
OPERANDS = "A: 1024*512*float16, B: 512*64*float16, C: 1024*64*float16, D: 64*float32, b: bool, n: int32"


def lowered(changes: list[tuple[str, str]], options: dict[str, Any], target: Target) -> tuple[Any, list[str], bool]:
    """The kernel after the pass, its lines, and whether it stays as it was."""
    text, operands = PRODUCT, OPERANDS
    for before, after in changes:
        assert before in text + operands, before
        text, operands = text.replace(before, after), operands.replace(before, after)
    made = program(text, parameters=operands, target=target)
    before_lines = body_lines(made)
    SelectEmitter(**{"backend": "gluon", **options}).run(made)
    verify(made.root)
    return kernel_of(made), body_lines(made), body_lines(made) == before_lines


def test_a_product_line_by_line() -> None:
    kernel, lines, _ = lowered([], {}, Target("cuda", 90))
    assert kernel.options == (("emitter", "gluon"), ("persistent", True)) and kernel.remarks == ()
    filecheck(
        lines,
        """
        %part = gluon.warp_group_id {parts = 2} : int32
        %first_row = arith.mul %part, %c64 : int32
        %i = tensor.iota {axis = 0} : tensor<64x1xint32>
        %i_1 = arith.add %first_row, %i : tensor<64x1xint32>
        %j = tensor.iota {axis = 1} : tensor<1x64xint32>
        %first = arith.mul %bx, %c128 : int32
        %rows = arith.add %first, %i_1 : tensor<64x1xint32>
        %r = scf.for %c0, %c8, %c1[%c0p0] {num_stages = 3} : tensor<64x64xfloat32> (%k: int32, %acc: tensor<64x64xfloat32>) {
        %ks = arith.mul %k, %c64 : int32
        %0 = arith.add %first, %first_row : int32
        %a = tile.load_block %A[%0, %ks] {axes = (0, 1)} : tensor<64x64xfloat16>
        %b = tile.load_block %B[%ks, %c0] {axes = (0, 1)} : tensor<64x64xfloat16>
        %d = tensor.dot %a, %b, %acc : tensor<64x64xfloat32>
        scf.yield [%d]
        }
        %h = arith.cast %r : tensor<64x64xfloat16>
        %1 = arith.add %first, %first_row : int32
        tile.store_block %h, %C[%1, %c0] {axes = (0, 1)}
        """,  # noqa: E501
    )


BIAS = """%n = tensor.iota {axis = 0} : tensor<64xint32> %bias = tile.load %D[%n] : tensor<64xfloat32>
    %row = tensor.reshape %bias : tensor<1x64xfloat32>"""
MASK = '%mask = arith.cmp %rows, %n {predicate = "lt"} : tensor<128x1xbool>\n'


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ([], {"stages": 5}, "{num_stages = 5}"),
        ([], {"stages": 1}, "{num_stages = 2}"),
        ([], {"stages": 99}, "{num_stages = 8}"),
        ([("num_stages = 3", "num_stages = 1")], {}, "{num_stages = 2}"),
        ([("tile.store %h, %C[%rows, %j]", MASK + "tile.store %h, %C[%rows, %j] mask=%mask")], {},
         "tile.store %h, %C[%rows, %j] mask=%mask"),
        ([("tile.store %h, %C[%rows, %j]", "tile.store %h, %C[%j, %rows]")], {}, "tile.store %h, %C[%j, %rows]"),
        ([("%a = tile.load %A[%rows, %qs] :", "%a = tile.load %A[%rows, %qs] other=%nought :"),
          ("%zero =", "%nought = arith.constant {value = 0.0} : float16 %zero =")], {}, "%a = tile.load_block %A["),
        ([("%b = tile.load %B[%ps, %j]", "%t = tile.load %B[%p, %qs]"), ("B: 512*64", "B: 64*512"),
          ("%d =", "%b = tensor.transpose %t {permutation = (1, 0)} : tensor<64x64xfloat16> %d ="),
          ], {},
         "%t = tile.load_block %B[%c0, %ks] {axes = (0, 1)} : tensor<64x64xfloat16>"),
        ([("%h = arith.cast %r", f"{BIAS} %s = arith.add %r, %row : {SUM} %h = arith.cast %s")], {},
         "%bias = tile.load %D[%n] : tensor<1x64xfloat32>"),
        ([("%zero =", "%dead = arith.constant {value = 0.0} : tensor<4x8xfloat32> %zero =")], {},
         "%a = tile.load_block"),
        ([("%d =", "%dead = arith.neg %a : tensor<128x64xfloat16> %d =")], {}, "%a = tile.load_block"),
        ([("%a = tile.load %A[%rows, %qs]", MASK + "%a = tile.load %A[%rows, %qs] mask=%mask")], {},
         '{ring = "rows"}'),
        ([("%b, %acc", "%b, %zero"), ("scf.yield [%d]", f"%e = arith.add %acc, %d : {SUM} scf.yield [%e]")], {},
         "{num_stages = 3, unroll = 4}"),
        ([("%b, %acc", "%b, %zero"), ("scf.yield [%d]", f"%e = arith.add %acc, %d : {SUM} scf.yield [%e]")],
         {"overlap": False}, "{num_stages = 3}"),
    ],
)  # fmt: skip
def test_a_product_with_a_change(changes: list[tuple[str, str]], options: dict[str, Any], line: str) -> None:
    kernel, lines, _ = lowered(changes, options, Target("cuda", 90))
    assert dict(kernel.options)["emitter"] == "gluon" and any(line in each for each in lines), lines


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ([("%a = tile.load %A[%rows, %qs]", '%mask = arith.cmp %qs, %n {predicate = "lt"} : tensor<1x64xbool>\n'
           "%a = tile.load %A[%rows, %qs] mask=%mask")], {}, "a product's operand is loaded with a condition"),
        ([("%a = tile.load %A[%rows, %qs] :", "%a = tile.load %A[%rows, %qs] other=%one :"),
          ("%zero =", "%one = arith.constant {value = 1.0} : float16 %zero =")], {},
         "a product's operand is loaded with a condition"),
        ([("%d =", "%x = arith.neg %a : tensor<128x64xfloat16>\ntile.store %x, %C[%rows, %j]\n%d =")], {},
         "operand is used for something else"),
        ([("A: 1024*512", "A: 1024*510")], {}, "are not contiguous multiples of 16 bytes"),
        ([("%A[%rows, %qs]", "%A[%qs, %rows]")], {}, "a tile's dimensions are in another order than its buffer's"),
        ([("%qs = arith.add %q, %ks", "%qs = arith.mul %q, %ks")], {}, "it is no block: its elements are not"),
        ([("%r = scf.for", "%x = tensor.dot %g, %g2, %zero : SUM %r = scf.for"), ("%c1[%zero]", "%c1[%x]"),
          ("%zero =", "%g = arith.constant {value = 0.0} : tensor<128x64xfloat16> "
           "%g2 = arith.constant {value = 0.0} : tensor<64x64xfloat16> %zero =")], {}, "product outside of the loops"),
        ([("tensor<128x", "tensor<32x"), ("%c128", "%c32")], {}, "32 rows are not a multiple of 64"),
        ([], {"backend": "triton"}, ""),
        ([], {"backend": "auto"}, ""),
    ],
)  # fmt: skip
def test_a_product_that_stays_in_triton(changes: list[tuple[str, str]], options: dict[str, Any], reason: str) -> None:
    kernel, _, stays = lowered([(a, b.replace("SUM", SUM)) for a, b in changes], options, Target("cuda", 90))
    assert stays and not kernel.options
    assert [reason in each and "written in Triton, not in Gluon" in each for each in kernel.remarks] == [True] * (
        reason != ""
    )


@pytest.mark.parametrize("target", [Target("cuda", 80), Target("cuda", 100), Target("interpret"), None])
def test_other_targets_have_no_gluon(target: Any) -> None:
    kernel, _, stays = lowered([], {}, target)
    assert stays and kernel.remarks == ()
