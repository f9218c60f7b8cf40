"""Miscompiles made by hand, each in one place of a pass or of emission: `verify` names every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tiledsl
from tests.support.example_kernels import kernels_of
from tests.support.example_modules import load_example
from tests.support.mutated import mutate
from tiledsl.analysis.linear import LinearForm
from tiledsl.codegen.kernels import KernelWriter
from tiledsl.passes import (
    canonicalize,
    cse,
    guard_accesses,
    index_arithmetic,
    lower_tile_ops,
    lower_to_triton,
    map_grid,
    pad_tiles,
    peel_loops,
    promote_buffers,
    split_k,
    vectorize_parallel,
)
from tiledsl.passes.map_grid import persistent
from tiledsl.passes.split_k import partial_sums

pytest.importorskip("z3")

PROGRAMS = {
    "rows from the end": """
@T.prim_func
def main(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32")):
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(32):
            if bx * 32 + i < 100:
                B[bx * 32 + i] = A[99 - bx * 32 - i]
""",
    "rows before the first": """
@T.prim_func
def main(A: T.Tensor((100,), "float32"), B: T.Tensor((100,), "float32")):
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(32):
            if bx * 32 + i < 100:
                B[bx * 32 + i] = A[bx * 32 + i - 3]
""",
    "counts": """
@T.prim_func
def main(A: T.Tensor((96,), "int32"), B: T.Tensor((8,), "int32")):
    with T.Kernel(3, threads=32) as bx:
        for i in T.Parallel(32):
            T.atomic_add(B[A[bx * 32 + i] % 8], 1)
""",
    "an assertion": """
@T.prim_func
def main(A: T.Tensor((96,), "float32"), B: T.Tensor((96,), "float32")):
    with T.Kernel(3, threads=32) as bx:
        T.device_assert(bx < 3, "few blocks")
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] * 2
""",
    "a branch writes": """
@T.prim_func
def main(A: T.Tensor((96,), "float32"), B: T.Tensor((96,), "float32"), n: T.int32):
    with T.Kernel(3, threads=32) as bx:
        a = T.alloc_fragment((32,), "float32")
        T.copy(A[bx * 32], a)
        if n > 0:
            T.clear(a)
        T.copy(a, B[bx * 32])
""",
    "rounded twice": """
@T.prim_func
def main(A: T.Tensor((96,), "float32"), B: T.Tensor((96,), "float32")):
    with T.Kernel(3, threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = T.cast(T.cast(A[bx * 32 + i], "float16"), "float32")
""",
    "read, written, read": """
@T.prim_func
def main(A: T.Tensor((96,), "float32"), B: T.Tensor((96,), "float32")):
    with T.Kernel(3, threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] + 1
        for i in T.Parallel(32):
            A[bx * 32 + i] = B[bx * 32 + i] * 2
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i] + 1
""",
    "constants": """
@T.prim_func
def main(A: T.Tensor((106,), "float32"), B: T.Tensor((96,), "float32"), n: T.int32):
    with T.Kernel(3, threads=32) as bx:
        for i in T.Parallel(32):
            B[bx * 32 + i] = A[bx * 32 + i + 10] * T.cast(n + 3 - 5, "float32")
""",
    "more than 2**31 elements": """
@T.prim_func
def main(A: T.Tensor((60000, 50000), "float16"), B: T.Tensor((60000, 50000), "float16")):
    with T.Kernel(391, 938, threads=128) as (bx, by):
        a = T.alloc_fragment((64, 128), "float16")
        T.copy(A[by * 64, bx * 128], a)
        T.copy(a, B[by * 64, bx * 128])
""",
    "lanes choose": """
@T.prim_func
def main(A: T.Tensor((96,), "float32"), B: T.Tensor((96,), "float32")):
    with T.Kernel(3, threads=32) as bx:
        for i in T.Parallel(32):
            if A[bx * 32 + i] < 0:
                B[bx * 32 + i] = A[bx * 32 + i] * 2
            else:
                B[bx * 32 + i] = A[bx * 32 + i] + 1
""",
    "a product of powers": """
@T.prim_func
def main(A: T.Tensor((32, 24), "float16"), B: T.Tensor((24, 32), "float16"), C: T.Tensor((32, 32), "float32")):
    with T.Kernel(1, threads=128) as bx:
        a = T.alloc_fragment((32, 24), "float16")
        b = T.alloc_fragment((24, 32), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.copy(A, a)
        T.copy(B, b)
        for i, j in T.Parallel(32, 24):
            a[i, j] = T.exp(a[i, j])
        for i, j in T.Parallel(24, 32):
            b[i, j] = T.exp(b[i, j])
        T.gemm(a, b, c, clear_accum=True)
        T.copy(c, C)
""",
    "a product of tiles": """
@T.prim_func
def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(2, 2, threads=128) as (bx, by):
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[by * 32, k * 32], a)
            T.copy(B[k * 32, bx * 32], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 32, bx * 32])
""",
}  # fmt: skip
PEELED = {"peel-loops.mode": "all"}


def of(name: str, target: str = "cuda:80", **options: Any) -> Callable[[], tiledsl.Kernel]:
    return lambda: tiledsl.compile(tiledsl.parse(PROGRAMS[name]), target=target, pass_configs=options)


def example(name: str, **options: Any) -> Callable[[], tiledsl.Kernel]:
    return lambda: kernels_of(name, "cuda:90", **options)[0]


def product(target: str = "cuda:80", pass_configs: Any = None, **sizes: int) -> Callable[[], tiledsl.Kernel]:
    chosen = {"M": 96, "N": 80, "K": 170, "block_M": 64, "block_N": 32, "block_K": 32, **sizes}
    return lambda: tiledsl.compile(load_example("quickstart").matmul(**chosen), -1, target, pass_configs)


# A function, a text in it, what stands there by mistake, and a kernel that shows it.
MISCOMPILES: dict[str, tuple[Any, str, str, Callable[[], tiledsl.Kernel]]] = {
    "a mask is dropped where copies become pointers": (
        lower_to_triton._KernelLowering.lower_access, "pointer, op.value, op.mask, cache",
        "pointer, op.value, None, cache",
        product(),
    ),
    "a bound includes its end": (guard_accesses._Guard.access, '"lt", bound))', '"le", bound))', product()),
    "the sign of an index is wrong": (
        index_arithmetic.materialize, "(arith.SubOp if coefficient < 0 else arith.AddOp)", "arith.AddOp",
        of("rows from the end"),
    ),
    "a difference of indices is a sum": (
        LinearForm.plus, "coefficient * factor", "coefficient", of("rows from the end"),
    ),
    "strides of the wrong dimension": (
        lower_to_triton._KernelLowering.strides, "reversed(type.shape[1:])", "reversed(type.shape[:-1])", product(),
    ),
    "a loop needs a mask one iteration longer": (
        peel_loops._Count.of, "start.constant + divisor", "start.constant + 2 * divisor",
        product(pass_configs=PEELED),
    ),
    "every part of a split sum is the first": (
        split_k._store_partial, "arith.MulOp(part, at.constant(each, INT32)", "arith.MulOp(part, at.constant(0, INT32)",
        product(pass_configs={"split-k.splits": 2}),
    ),
    "a part of a split sum is forgotten": (
        split_k._add_partials, "at.constant(splits, INT32)", "at.constant(splits - 1, INT32)",
        product(pass_configs={"split-k.splits": 2}),
    ),
    "split sums start from another part": (
        partial_sums.add_partials, "arith.AddOp(total, one)", "arith.AddOp(one, one)",
        product(pass_configs={"split-k.splits": 2}),
    ),
    "a row of blocks is wider than it is": (
        split_k._block, "grid[0]", "grid[1]", product(pass_configs={"split-k.splits": 2}),
    ),
    "panels are as high as they never are": (
        map_grid._panels, "if rows is None or rows % size:", "if False:", example("gemm_lazy", M=320, N=40, K=40),
    ),
    "a grid's indices are exchanged": (
        map_grid.fold_grid, "bx, by = _panels", "by, bx = _panels", example("gemm_lazy"),
    ),
    "a program takes its neighbour's blocks, too": (
        persistent.make_persistent, "_inside(at, blocks), programs, []",
        "_inside(at, blocks), at.constant(1, INT32), []",
        of("counts", **{"map-grid.persistent": 1}),
    ),
    "the padding of a maximum is 0": (
        pad_tiles._nothing, "tensor.neutral(op.kind, op.source.dtype)",
        "arith.as_constant(0, op.source.dtype)",
        example("softmax"),
    ),
    "the padding of a product's operand is left": (
        pad_tiles._Padder._dot, "op.set_operands([a, b, op.accumulator])", "pass",
        of("a product of powers"),
    ),
    "constants are added that are subtracted": (
        canonicalize.combine_added_constants, "total = -number if isinstance(op, SubOp) else number", "total = number",
        of("constants"),
    ),
    "a comparison is mirrored wrongly": (
        guard_accesses._Guard._compare, "predicate=predicate", 'predicate="lt"', of("rows before the first"),
    ),
    "casts are folded that round": (
        canonicalize.combine_casts, "lossless = large.kind == \"float\" and large.bits > small.bits", "lossless = True",
        of("rounded twice"),
    ),
    "a load is not forgotten that a store changes": (cse._forget, "del loaded[key]", "pass", of("read, written, read")),
    "what a branch writes is lost": (
        promote_buffers._Promoter._if, "for buffer in writes if buffer in live", "for buffer in ()",
        of("a branch writes"),
    ),
    "the else branch is for the same lanes": (
        vectorize_parallel._Vectorizer._if, "arith.NotOp(condition)",
        "arith.NotOp(builder.insert(arith.NotOp(condition)).result)",
        of("lanes choose"),
    ),
    "a sum is added behind a product": (
        lower_tile_ops._gemm, "tensor.DotOp(a, b, accumulator,",
        "tensor.DotOp(a, b, zero(builder, shape[-2:], op.c.dtype),",
        of("a product of tiles"),
    ),
    "an operand is transposed": (
        lower_tile_ops._gemm, "_matrix(builder, op.b, op.trans_b)", "_matrix(builder, op.b, not op.trans_b)",
        of("a product of tiles"),
    ),
    "a store is dropped": (KernelWriter.store, "self.line(", "(lambda text: None)(", of("a branch writes")),
    "an atomic is doubled": (
        KernelWriter.atomic, "text = self.atomic_text(op)",
        "text = self.atomic_text(op); self.line(text)", of("counts"),
    ),
    "an assertion is dropped": (KernelWriter.check, "self.line(", "(lambda text: None)(", of("an assertion")),
    "a kernel does not wait for the one before": (
        KernelWriter.overlap, "for line in self.overlapping:", "for line in ():",
        of("a branch writes", "cuda:90", **{"lower-to-triton.launch_pdl": 1}),
    ),
    "offsets wrap": (
        lower_to_triton._KernelLowering.pointer, "_max_offset(type) < INT32_ELEMENTS", "True",
        of("more than 2**31 elements"),
    ),
}  # fmt: skip


def failures(make: Callable[[], tiledsl.Kernel]) -> list[str]:
    """What is said against a kernel, or against its making."""
    try:
        kernel = make()
    except Exception as error:
        return [f"lowering: {error}"]
    return [f"{each.kind} {each.subject}: {each.detail}" for each in kernel.verify().failed]


@pytest.mark.parametrize("name", MISCOMPILES)
def test_miscompiles_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, old, new, make = MISCOMPILES[name]
    mutate(monkeypatch, function, old, new)
    assert failures(make)


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_a_mistake_nothing_fails(name: str) -> None:
    assert not failures(of(name))
