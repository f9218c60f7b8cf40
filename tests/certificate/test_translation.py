"""Translation validation: no false alarm on the examples, and mistakes in passes and in emission are noticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tiledsl
import tiledsl.language as T
from tests.certificate.pass_mutants import INPUTS, meanings, unlike
from tests.support.example_kernels import NAMES, kernels_of
from tests.support.example_modules import load_example
from tests.support.latent_attention import decode, decode_paged
from tests.support.mutated import mutate
from tests.support.random_sources import random_source
from tiledsl.certificate.algebra import Algebra
from tiledsl.certificate.check import Check
from tiledsl.certificate.executor import run
from tiledsl.certificate.reduction import reduced
from tiledsl.certificate.translation import OTHER_INPUTS, arguments_for, check_translation
from tiledsl.codegen.expressions import Expressions
from tiledsl.codegen.kernels import KernelWriter
from tiledsl.dialects import scf
from tiledsl.dialects.arith import constant_of
from tiledsl.passes import (
    guard_accesses,
    lower_tile_ops,
    lower_to_triton,
    map_grid,
    pad_tiles,
    peel_loops,
    split_k,
    vectorize_parallel,
)

FAST = [name for name in NAMES if not name.startswith("attention")]


def kernels(name: str, options: dict[str, Any]) -> list[tiledsl.Kernel]:
    return [product(**options)] if name == "product" else kernels_of(name, "cuda:90", **options)


def bad(checks: list[Check]) -> list[Check]:
    return [each for each in checks if each.status != "tested"]


def product(target: str = "cuda:90", pass_configs: Any = None, **sizes: int) -> tiledsl.Kernel:
    """The quickstart's product."""
    chosen = {"M": 96, "N": 80, "K": 160, "block_M": 64, "block_N": 32, "block_K": 32, **sizes}
    return tiledsl.compile(load_example("quickstart").matmul(**chosen), -1, target, pass_configs)


@pytest.mark.parametrize("name", FAST)
def test_examples(name: str) -> None:
    for kernel in kernels_of(name, "cuda:90"):
        checks = check_translation(kernel)
        assert not bad(checks)
        assert {each.kind for each in checks} == {"pass", "source"}


def test_attention_in_triton_and_in_gluon() -> None:
    (plain,) = kernels_of("attention", "cuda:80", causal=1)
    sizes = {"queries": 128, "keys": 96, "dim": 64, "block_M": 128, "block_N": 64}
    (fast,) = kernels_of("attention", "cuda:90", causal=1, heads=2, kv_heads=1, **sizes)
    assert "@gluon.jit" in fast.source and "@triton.jit" in plain.source
    assert not bad(check_translation(plain))
    checks = check_translation(fast)
    assert not bad(checks)
    (emitter,) = [each for each in checks if each.subject.startswith("select-emitter")]
    assert emitter.detail.startswith("equal but for reciprocal")


def test_a_grid_by_a_number_of_the_call() -> None:
    """Extreme numbers would be millions of blocks: of other inputs they have none to compare."""

    @T.prim_func
    def counted(n: T.int32, A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(n, threads=64) as bx:
            for i in T.Parallel(64):
                if bx == 0:
                    B[i] = A[i] * 2.0

    checks = check_translation(tiledsl.compile(counted, target="cuda:90"))
    assert not bad(checks) and {each.status for each in checks} == {"tested"}


def test_decoding_by_one_group_of_warps() -> None:
    """Lengths come from memory: the first inputs leave loops without a turn, so that others need what passes allow."""
    options = {"select-emitter.backend": "gluon"}
    for program in (decode(), decode_paged(2, 2)):
        kernel = tiledsl.compile(program, target="cuda:90", pass_configs=options)
        assert "_rescaled_" in kernel.source and not bad(check_translation(kernel))


@pytest.mark.parametrize("seed", range(300, 304))
def test_random_programs(seed: int) -> None:
    source, options = random_source(seed)
    kernel = tiledsl.compile(tiledsl.parse(source), target="cuda:90", pass_configs=options)
    assert not bad(check_translation(kernel))


ODD_PROGRAMS = {
    "a variable of each lane": """
@T.prim_func
def main(A: T.Tensor((6, 4), "float32"), B: T.Tensor((6, 4), "float32")):
    with T.Kernel(1, threads=32) as bx:
        for i, j in T.Parallel(6, 4):
            if j < 3:
                if i < 2:
                    continue
                B[i, j] = A[i, j]
""",
    "atomics at one place in many lanes, and an argument that is 1": """
@T.prim_func
def main(A: T.Tensor((9,), "float32"), sx: T.int32):
    with T.Kernel(2, threads=32) as bx:
        for i, j in T.Parallel(4, 9):
            if bx < 2:
                T.atomic_add(A[(bx + j) % 9], T.cast(0.5, "float32"))
""",
    "rows with gaps, a scan from the end, and mixed operands": """
S = T.dynamic("S")
@T.prim_func
def main(A: T.StridedTensor((6, 3), (S, 1), "bfloat16"), B: T.Tensor((6, 3), "float32"), C: T.Tensor((3, 3), "float32"),
         D: T.StridedTensor((1, 9), (11, 1), "float32")):
    with T.Kernel(1, threads=32) as bx:
        a = T.alloc_fragment((6, 3), "bfloat16")
        b = T.alloc_fragment((6, 3), "float32")
        c = T.alloc_fragment((3, 3), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, transpose_A=True, clear_accum=True)
        T.cumsum(b, dim=0, reverse=True)
        T.copy(b, B)
        T.copy(c, C)
        for i in T.Parallel(9):
            D[0, i] = D[0, i] * T.cast(2 + bx, "float32")
""",
}


@pytest.mark.parametrize("name", ODD_PROGRAMS)
def test_odd_programs_are_checked(name: str) -> None:
    assert not bad(check_translation(tiledsl.compile(tiledsl.parse(ODD_PROGRAMS[name]), target="cuda:90")))


def test_a_large_problem_is_reduced_to_a_few_blocks() -> None:
    kernel = product(M=8192, N=8192 + 40, K=4096, block_M=128, block_N=128, block_K=64)
    small = reduced(kernel._build())
    assert small is not None
    shapes = [value.type.static_shape for value in small.body.args]
    assert shapes == [(256, 128), (128, 256 + 40), (256, 256 + 40)]
    assert not bad(check_translation(kernel))


CAUSAL = """
@T.prim_func
def main(A: T.Tensor((8192, 64), "float32"), B: T.Tensor((8192, 64), "float32")):
    with T.Kernel(128, threads=128) as bx:
        a = T.alloc_fragment((64, 64), "float32")
        total = T.alloc_fragment((64, 64), "float32")
        T.clear(total)
        for k in T.serial(bx, 128):
            T.copy(A[k * 64, 0], a)
            for i, j in T.Parallel(64, 64):
                total[i, j] += a[i, j]
        T.copy(total, B[bx * 64, 0])
"""


def test_computed_bounds_of_loops_are_reduced() -> None:
    small = reduced(tiledsl.parse(CAUSAL).build())
    assert small is not None
    (loop,) = [op for op in small.walk() if isinstance(op, scf.ForOp)]
    assert constant_of(loop.lower) is None and constant_of(loop.upper) == 2


DIVIDED = """
@T.prim_func
def main(A: T.Tensor((4001, 64), "float32"), B: T.Tensor((64, 64), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_fragment((64, 64), "float32")
        total = T.alloc_fragment((64, 64), "float32")
        T.clear(total)
        for k in T.serial(0, 62):
            T.copy(A[k * 64, 0], a)
            for i, j in T.Parallel(64, 64):
                total[i, j] += a[i, j]
        for k in T.serial(62, 63):
            T.copy(A[k * 64, 0], a)
            for i, j in T.Parallel(64, 64):
                total[i, j] += a[i, j]
        T.copy(total, B)
"""


def test_the_loop_for_a_remainder_stays_where_it_is() -> None:
    small = reduced(tiledsl.parse(DIVIDED).build())
    assert small is not None
    loops = [op for op in small.walk() if isinstance(op, scf.ForOp)]
    assert [(constant_of(each.lower), constant_of(each.upper)) for each in loops] == [(0, 2), (2, 3)]
    assert small.body.args[0].type.static_shape == (2 * 64 + 33, 64)


def test_a_split_sum_is_allowed_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    make = lambda: product(pass_configs={"split-k.splits": 2})
    (split,) = [each for each in check_translation(make(), source=False) if each.subject.startswith("split-k")]
    assert split.detail == "equal but for reassociation"
    monkeypatch.setattr(split_k.SplitK, "allowances", lambda self, program: frozenset({"reassociation", "rescaling"}))
    (split,) = [each for each in check_translation(make(), source=False) if each.subject.startswith("split-k")]
    assert split.detail == "equal but for reassociation"  # no more than it needs
    monkeypatch.setattr(split_k.SplitK, "allowances", lambda self, program: frozenset())
    (split,) = [each for each in check_translation(make(), source=False) if each.subject.startswith("split-k")]
    assert split.status == "failed" and "another expression" in split.detail and split.place.endswith(":40:13")


PEELED = {"pass_configs": {"peel-loops.mode": "all"}, "target": "cuda:80", "K": 170}
Mutant = tuple[Any, str, str, str, dict[str, Any]]
# A function, a text in it, what stands there by mistake, and the example whose kernel shows it, with its options.
MUTANTS: dict[str, Mutant] = {
    "a mask is lost": (
        guard_accesses._Guard.access, "conditions if op.mask is None else [op.mask, *conditions]", "conditions",
        "grouped_gemm", {},
    ),
    "the padding of a sum counts": (
        pad_tiles._nothing, "tensor.neutral(op.kind, op.source.dtype)", "1.0", "layer_norm", {},
    ),
    "blocks are visited twice": (
        map_grid._panels, "inside.apply(arith.TruncModOp, block, down)", "inside.apply(arith.TruncDivOp, block, down)",
        "gemm_lazy", {},
    ),
    "strides are reversed": (lower_to_triton._KernelLowering.strides, "[::-1] if", " if", "softmax", {}),
    "a reduction loses its old value": (lower_tile_ops._reduce, "if not op.clear:", "if False:", "online_softmax", {}),
    "a product loses its sum": (lower_tile_ops._gemm, "if op.clear:", "if True:", "gemm_epilogue", {}),
    "a loop is split one late": (
        peel_loops._emit, "count.number +", "count.number + count.divisor +", "product", PEELED,
    ),
    "the rest of a loop starts anew": (
        peel_loops._divide, 'rest_loop.set_field("inits", loop.results)', "pass", "product", PEELED,
    ),
    "a store under a condition always happens": (
        vectorize_parallel._Vectorizer._put, "target, indices, mask,", "target, indices, None,", "grouped_gemm", {},
    ),
    "a sum is negated": (
        Expressions.binary, 'symbol, precedence = BINARY[type(op)]',
        'symbol, precedence = BINARY[arith.SubOp if type(op) is arith.AddOp and op.out.dtype != "int32" else type(op)]',
        "layer_norm", {},
    ),
    "masked elements are left as they are": (
        KernelWriter.load_text, "if op.other is not None:", "if False:", "gemm_lazy", {},
    ),
    "a transposition is left out": (Expressions.transpose, '"tl.trans({inner})"', '"({inner})"', "gemm_lazy", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mistakes_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, old, new, example, options = MUTANTS[name]
    mutate(monkeypatch, function, old, new)
    (kernel, *_) = kernels(example, options)
    assert any(each.status == "failed" for each in check_translation(kernel))


# A text of emitted Gluon, and a mistake.
GLUON_MUTANTS: dict[str, tuple[str, str]] = {
    "a tile is released before its product is done": (
        "            acc, weights_operand = warpgroup_mma_wait(0, deps=[acc, weights_operand])\n"
        "            mbarrier.arrive(v_empty.index(v_stage), count=1)\n",
        "            mbarrier.arrive(v_empty.index(v_stage), count=1)\n"
        "            acc, weights_operand = warpgroup_mma_wait(0, deps=[acc, weights_operand])\n",
    ),
    "a tile is never released": ("mbarrier.arrive(k_empty.index(k_stage), count=1)", "pass"),
    "another tile is loaded": ("_load_box(V_tiles, [item, 0, index, 0]", "_load_box(V_tiles, [item, 0, index + 8, 0]"),
    "what is stored is not fenced": ("fence_async_shared()\n", "pass\n"),
    "the last copies are not waited for": ("\n    tma.store_wait(0)", "\n    pass"),
    "a product is used too early": ("scores, q = warpgroup_mma_wait(1, deps=[scores, q])", "pass"),
}


@pytest.mark.parametrize("name", GLUON_MUTANTS)
def test_mistakes_in_gluon_are_noticed(name: str) -> None:
    old, new = GLUON_MUTANTS[name]
    sizes = {"queries": 128, "keys": 320, "dim": 64, "block_M": 128, "block_N": 64, "heads": 1, "kv_heads": 1}
    (kernel,) = kernels_of("attention", "cuda:90", **sizes)
    first, *others = check_translation(kernel, passes=False)
    assert not bad([first, *others]) and "in every order of producer and consumers" in first.detail
    assert old in kernel.source
    kernel.module = replace(kernel.module, source=kernel.source.replace(old, new))
    (check,) = check_translation(kernel, passes=False)
    assert check.status == "failed" and check.kind == "source"


QUARTERS = """
@T.prim_func
def main(A: T.Tensor((64,), "int8"), B: T.Tensor((64,), "int8")):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] // T.cast(4, "int8")
"""
LARGEST = """
@T.prim_func
def main(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = T.max(A[bx * 32 + i], 0.0)
"""
# What random numbers between a few limits do not show: a program, a text of its source, and a mistake.
RARE_MISTAKES: dict[str, tuple[Any, str, str]] = {
    "tensors that begin anywhere": (product, ".data_ptr()) % 16", ".data_ptr()) % 1"),
    "negative integers": (QUARTERS, " >> 2", " // 4"),
    "NaN": (LARGEST, "tl.maximum(A_tile, 0.0)", "tl.where(A_tile < 0.0, 0.0, A_tile)"),
}


@pytest.mark.parametrize("name", RARE_MISTAKES)
def test_rare_mistakes_in_the_source_are_noticed(name: str) -> None:
    program, old, new = RARE_MISTAKES[name]
    kernel = program() if callable(program) else tiledsl.compile(tiledsl.parse(program), target="cuda:90")
    assert old in kernel.source, kernel.source
    kernel.module = replace(kernel.module, source=kernel.source.replace(old, new))
    checks = [each for each in check_translation(kernel, passes=False) if each.status == "failed"]
    assert [each.subject for each in checks] == [f"{kernel.name} with {next(iter(OTHER_INPUTS))}"]


@pytest.mark.parametrize(
    ("new", "fault"),
    [
        ("tl.maximum(A_tile, 0.0) * 1.0", ""),
        ("tl.maximum(A_tile, 0.5)", "elements of B are not those of the text"),
        ("tl.maximum(tl.load(A + 60 + tl.arange(0, 32)), 0.0)", "is accessed"),
    ],
)
def test_equivalent_texts_have_equal_bits(new: str, fault: str) -> None:
    kernel = tiledsl.compile(tiledsl.parse(LARGEST), target="cuda:90")
    expected = meanings(kernel)
    assert len(expected) == len(INPUTS) and "tl.maximum(A_tile, 0.0)" in kernel.source
    kernel.module = replace(kernel.module, source=kernel.source.replace("tl.maximum(A_tile, 0.0)", new))
    found = unlike(kernel, expected)
    assert fault in found if fault else not found


def test_an_error_in_the_source_names_its_line_and_the_users() -> None:
    kernel = product()
    kernel.module = replace(kernel.module, source=kernel.source.replace("[A_C_start, A_B_start]", "[A_C_start]"))
    (check,) = check_translation(kernel, passes=False)
    assert check.status == "failed" and "1 starts for a block" in check.detail and check.detail.startswith("line ")
    assert check.place.startswith("quickstart.py:")


def test_what_the_stand_ins_lack_is_unknown() -> None:
    kernel = product()
    kernel.module = replace(kernel.module, source=kernel.source.replace("tl.dot(", "tl.dot_of_tomorrow("))
    (check,) = check_translation(kernel, passes=False)
    assert check.status == "unknown" and "dot_of_tomorrow" in check.detail


@pytest.mark.parametrize(("begins", "times"), [("", 1), ("B[i, j] = sign", 16)], ids=["written first", "read first"])
def test_variables_of_a_parallel_are_each_lanes_own(begins: str, times: int) -> None:
    """Not one that is read first: it carries what the iteration before left."""
    products = []

    class Counted(Algebra):
        def binary(self, name: str, dtype: str) -> Any:
            compute = super().binary(name, dtype)
            return lambda *values: (products.append(name), compute(*values))[1] if name == "mul" else compute(*values)

    text = f"""
@T.prim_func
def signed(A: T.Tensor((4, 4), "float32"), B: T.Tensor((4, 4), "float32")):
    with T.Kernel(1, threads=32):
        sign = T.alloc_var("float32")
        for i, j in T.Parallel(4, 4):
            {begins or "pass"}
            if A[i, j] > 0:
                sign = 1.0
            else:
                sign = -1.0
            B[i, j] = sign * A[i, j]
"""
    x = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
    (made,) = run(tiledsl.parse(text).build((1,)), [x, None], algebra=Counted(), lanes=True)
    assert (made == np.abs(x)).all() and len(products) == times


def test_a_size_that_blocks_walk_along_one_by_one_is_small() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def rows(A: T.Tensor((n, 512), "float32"), B: T.Tensor((n, 512), "float32")):
        with T.Kernel(n, threads=32) as bx:
            tile = T.alloc_shared((512,), "float32")
            T.copy(A[bx, 0], tile)
            T.copy(tile, B[bx, 0])

    (x, _) = arguments_for(rows.build(), 0, None)
    assert 1 < len(x) < 8


@pytest.mark.parametrize("what", ["sort", "topk", "argmax"])
def test_computed_floats_are_sorted(what: str) -> None:
    """Their bits are exchanged, and they stay the expressions that they are."""

    @T.prim_func
    def ordered(A: T.Tensor((4, 11), "float32"), B: T.Tensor((4, 11), "float32")):
        with T.Kernel(2, threads=32) as block:
            rows = T.alloc_fragment((2, 11), "float32")
            best = T.alloc_fragment((2, 3), "float32")
            places = T.alloc_fragment((2, 3), "int32")
            T.copy(A[block * 2, 0], rows)
            for i, j in T.Parallel(2, 11):
                rows[i, j] = T.if_then_else(j == i, -T.infinity("float32"), rows[i, j] * 3.0 + rows[i, 0])
            if what == "sort":
                T.sort(rows)
            else:
                T.topk(rows, best, places)
                for i, j in T.Parallel(2, 3):
                    rows[i, j] = best[i, j] if what == "topk" else rows[i, places[i, j]]
            T.copy(rows, B[block * 2, 0])

    assert not bad(check_translation(tiledsl.compile(ordered, target="cuda:90")))
