"""Emitted Gluon gives what NumPy gives, and no partition waits for ever: on the CPU, by a model of the machine."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gemm import matmul
from tests.support import gluon_machine
from tests.support.example_modules import load_example
from tests.support.gluon_kernels import compile_kernels
from tiledsl.certificate.algebra import ExecutorError

CASES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "queries": 384, "keys": 384},  # an odd number of blocks: the middle one has no partner
    {"causal": True, "queries": 200, "keys": 200},
    {"causal": True, "queries": 128, "keys": 512, "configs": {"select-emitter.persistent": False}},
    {"causal": True, "queries": 300, "keys": 100},
    {"causal": True, "window": 150, "queries": 512, "keys": 512},
    {"queries": 128, "keys": 128},  # one tile
    {"dim": 128, "causal": True},
    {"dim": 192, "block_N": 64, "causal": True},  # two products into scores, and two sums
    {"dim": 96, "block_N": 96, "keys": 288},  # keys in parts, too
    {"dim": 256, "block_N": 64},  # results lie where queries were
    {"block_M": 192, "causal": True, "queries": 384, "keys": 384},
    {"num_stages": 3, "keys": 640},
]


def compiled(sizes: dict[str, Any], configs: dict[str, Any]) -> tiledsl.Kernel:
    passes = {"select-emitter.backend": "gluon", **configs}
    function = load_example("attention").attention.function
    return tiledsl.jit(function, target="cuda:90", pass_configs=passes).compile(**sizes)


@pytest.mark.parametrize("rescale", ["each", "late", "lazy"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: dict[str, Any], rescale: str) -> None:
    example = load_example("attention")
    shape = {name: value for name, value in case.items() if name != "configs"}
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 256, "keys": 256, "dim": 64, **shape}
    kernel = compiled(sizes, {**case.get("configs", {}), "select-emitter.rescale": rescale})
    assert "@gluon.jit" in kernel.source and ("_rescaled_" in kernel.source) == (rescale == "lazy")
    torch.manual_seed(0)
    q = torch.randn(1, 2, sizes["queries"], sizes["dim"], dtype=torch.float16)
    q *= 1 + 15 * (torch.arange(sizes["queries"]) % 3)[:, None]  # maxima of some rows rise by far, of others by little
    k, v = (torch.randn(1, 1, sizes["keys"], sizes["dim"], dtype=torch.float16) for _ in range(2))
    out, lse = torch.full_like(q, float("nan")), torch.full(q.shape[:3], float("nan"))
    gluon_machine.run_gluon(kernel.source, "attention_forward", q, k, v, out, lse)
    want = example.reference(q.float(), k.float(), v.float(), sizes.get("causal", False), sizes.get("window", 0))
    seen = ~torch.isnan(want)
    assert float((out.float()[seen] - want[seen]).norm() / want[seen].norm()) < 1e-3
    assert not bool(torch.isnan(lse).any())


@pytest.mark.parametrize("block_M", [128, 192])
def test_lengths_that_the_call_gives(block_M: int) -> None:
    """The same kernel for each; blocks are balanced as for constant lengths."""
    example = load_example("attention")
    length = T.dynamic("S")
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": length, "keys": length, "dim": 64, "block_M": block_M}
    source = compiled({**sizes, "causal": True}, {}).source
    assert "_balanced(row, " in source
    assert "_descriptor(Q, (1, 2, S, 64), (2 * S * 64, S * 64, 64, 1), " in source
    assert "_descriptor(K, (1, 1, S, 64), (S * 64, S * 64, 64, 1), " in source
    for given in (64, 128, 640, 1000):
        torch.manual_seed(given)
        q = torch.randn(1, 2, given, 64, dtype=torch.float16)
        k, v = (torch.randn(1, 1, given, 64, dtype=torch.float16) for _ in range(2))
        out, lse = torch.full_like(q, float("nan")), torch.full(q.shape[:3], float("nan"))
        gluon_machine.run_gluon(source, "attention_forward", q, k, v, out, lse)
        want = example.reference(q.float(), k.float(), v.float(), True, 0)
        assert float((out.float() - want).norm() / want.norm()) < 1e-3 and not bool(torch.isnan(lse).any())


def attention_by_hand(kind: str, keys: int = 512) -> Any:
    """Attention as other programs write it: several loops, factors that are used or changed elsewhere, no maximum."""
    slope = 0.01 if kind in ("decay", "index") else 0.25  # small, so that no maximum is needed

    @T.prim_func
    def attention_by_hand(
        Q: T.Tensor((256, 64), "float16"),
        K: T.Tensor((keys, 64), "float16"),
        V: T.Tensor((keys, 64), "float16"),
        decay: T.Tensor((256,), "float32"),
        O: T.Tensor((256, 64), "float32"),
        maxima: T.Tensor((256,), "float32"),
    ):
        with T.Kernel(2, threads=256) as bx:
            q = T.alloc_shared((128, 64), "float16")
            k = T.alloc_shared((64, 64), "float16")
            v = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((128, 64), "float32")
            weights = T.alloc_fragment((128, 64), "float16")
            acc = T.alloc_fragment((128, 64), "float32")
            highest = T.alloc_fragment((128,), "float32")
            previous = T.alloc_fragment((128,), "float32")
            rescale = T.alloc_fragment((128,), "float32")
            fixed = T.alloc_fragment((128,), "float32")
            total = T.alloc_fragment((128,), "float32")
            more = T.alloc_fragment((128,), "float32")

            @T.macro
            def visit(t, second):
                T.copy(K[t * 64, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                if second:
                    for i, j in T.Parallel(128, 64):
                        s[i, j] = T.abs(s[i, j]) * 0.5
                T.copy(highest, previous)
                T.reduce_max(s, highest, dim=1)
                for i in T.Parallel(128):
                    highest[i] = T.max(previous[i], highest[i])
                    rescale[i] = T.exp2(previous[i] * 0.25 - highest[i] * 0.25)
                    if kind == "decay":
                        highest[i] = 0
                        rescale[i] = fixed[i]
                    if kind == "index":
                        highest[i] = 0
                        rescale[i] = fixed[i] * decay[t]
                for i, j in T.Parallel(128, 64):
                    s[i, j] = T.exp2(s[i, j] * slope - highest[i] * 0.25)
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(128):
                    total[i] = total[i] * rescale[i] + more[i]
                for i, j in T.Parallel(128, 64):
                    acc[i, j] *= rescale[i]
                if kind == "changed":
                    for i in T.Parallel(128):
                        rescale[i] = more[i] * 0.5
                        total[i] = total[i] + rescale[i]
                T.copy(s, weights)
                T.copy(V[t * 64, 0], v)
                T.gemm(weights, v, acc)

            T.copy(Q[bx * 128, 0], q)
            T.copy(decay[bx * 128], fixed)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -T.infinity("float32"))
            for t in T.Pipelined(bx * 2, num_stages=2):
                visit(t, False)
            for t in T.Pipelined(bx * 2, keys // 64, num_stages=2):
                visit(t, kind == "loops differ")
            for i, j in T.Parallel(128, 64):
                acc[i, j] /= total[i]
            T.copy(acc, O[bx * 128, 0])
            T.copy(highest, maxima[bx * 128])

    return attention_by_hand


@pytest.mark.parametrize("rescale", ["each", "late", "lazy"])
@pytest.mark.parametrize("kind", ["plain", "loops differ", "changed", "decay", "index"])
def test_what_waits_for_the_next_turn(kind: str, rescale: str) -> None:
    """Gluon gives what Triton's interpreter gives, also where a variable is used again or loops follow each other."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(rows, 64, dtype=torch.float16) for rows in (256, 512, 512))
    q *= 1 + torch.arange(256)[:, None] % 3 * 2
    decay = torch.rand(256)
    want = torch.full((256, 64), float("nan")), torch.full((256,), float("nan"))
    tiledsl.compile(attention_by_hand(kind), target="interpret")(q, k, v, decay, *want)
    passes = {"select-emitter.backend": "gluon", "select-emitter.rescale": rescale}
    kernel = tiledsl.compile(attention_by_hand(kind), target="cuda:90", pass_configs=passes)
    consumer = kernel.source[kernel.source.index("_consumer(") :]
    assert ("_rescaled_" in consumer) == (rescale == "lazy" and kind not in ("decay", "index"))
    got = tuple(torch.full_like(each, float("nan")) for each in want)
    gluon_machine.run_gluon(kernel.source, "attention_by_hand", q, k, v, decay, *got)
    assert float((got[0] - want[0]).norm() / want[0].norm()) < 1e-3
    assert torch.allclose(got[1], want[1], rtol=1e-5)


def packed_attention(batch: int, tokens: int) -> Any:
    """Sequences of any lengths, one after the other: a row of a block is stored only where its sequence has it."""

    @T.prim_func
    def packed_attention(
        Q: T.Tensor((tokens, 64), "float16"),
        K: T.Tensor((tokens, 64), "float16"),
        V: T.Tensor((tokens, 64), "float16"),
        starts: T.Tensor((batch + 1,), "int32"),
        longest: T.int32,
        O: T.Tensor((tokens, 64), "float16"),
    ):
        with T.Kernel(T.ceildiv(longest, 128), batch, threads=256) as (bx, by):
            q, out = T.alloc_shared((128, 64), "float16"), T.alloc_shared((128, 64), "float16")
            k, v = T.alloc_shared((128, 64), "float16"), T.alloc_shared((128, 64), "float16")
            s, acc = T.alloc_fragment((128, 128), "float32"), T.alloc_fragment((128, 64), "float32")
            weights = T.alloc_fragment((128, 128), "float16")
            highest, previous = T.alloc_fragment((128,), "float32"), T.alloc_fragment((128,), "float32")
            total, more = T.alloc_fragment((128,), "float32"), T.alloc_fragment((128,), "float32")
            start, length = starts[by], starts[by + 1] - starts[by]
            T.copy(Q[start + bx * 128 : start + (bx + 1) * 128, :], q)
            T.clear(acc)
            T.clear(total)
            T.fill(highest, -T.infinity("float32"))
            for t in T.Pipelined(T.ceildiv(length, 128), num_stages=2):
                T.copy(K[start + t * 128 : start + (t + 1) * 128, :], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(128, 128):
                    s[i, j] = T.if_then_else(
                        t * 128 + j < length, s[i, j] * 0.125 * 1.4426950408889634, -T.infinity("float32")
                    )
                T.copy(highest, previous)
                T.reduce_max(s, highest, dim=1, clear=False)
                for i, j in T.Parallel(128, 128):
                    s[i, j] = T.exp2(s[i, j] - highest[i])
                T.reduce_sum(s, more, dim=1)
                for i in T.Parallel(128):
                    total[i] = total[i] * T.exp2(previous[i] - highest[i]) + more[i]
                for i, j in T.Parallel(128, 64):
                    acc[i, j] *= T.exp2(previous[i] - highest[i])
                T.copy(s, weights)
                T.copy(V[start + t * 128 : start + (t + 1) * 128, :], v)
                T.gemm(weights, v, acc)
            for i, j in T.Parallel(128, 64):
                acc[i, j] = T.if_then_else(total[i] > 0, acc[i, j] / total[i], 0.0)
            T.copy(acc, out)
            for i, j in T.Parallel(128, 64):
                if bx * 128 + i < length:
                    O[start + bx * 128 + i, j] = out[i, j]

    return packed_attention


def test_rows_stored_where_a_sequence_has_them(tmp_path: Path) -> None:
    """The mask has one column and the layout of the stored rows, not that of the wider scores. Most turns have none."""
    ends = [0, 70, 270, 400]
    kernel = tiledsl.compile(
        packed_attention(3, 400), target="cuda:90", pass_configs={"select-emitter.backend": "gluon"}
    )
    assert "@gluon.jit" in kernel.source
    assert kernel.source.count("if t >= full:") == 2
    compile_kernels({"packed": kernel}, sys.executable, tmp_path)
    torch.manual_seed(0)
    q, k, v = (torch.randn(400, 64, dtype=torch.float16) for _ in range(3))
    out = torch.full_like(q, float("nan"))
    gluon_machine.run_gluon(kernel.source, "packed_attention", q, k, v, torch.tensor(ends, dtype=torch.int32), 200, out)
    for a, b in pairwise(ends):
        want = torch.softmax(q[a:b].float() @ k[a:b].float().T * 0.125, -1) @ v[a:b].float()
        assert float((out[a:b].float() - want).norm() / want.norm()) < 2e-3


PRODUCTS: list[dict[str, Any]] = [
    {},
    {"K": 512, "num_stages": 2},
    {"M": 200, "N": 136, "K": 200},
    {"block_M": 64, "M": 192},
    {"block_M": 192, "M": 384},
    {"num_stages": 2, "configs": {"select-emitter.persistent": False}},
]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products(case: dict[str, Any]) -> None:
    shape = {name: value for name, value in case.items() if name != "configs"}
    sizes = {"M": 256, "N": 256, "K": 320, "block_M": 128, "block_N": 64, "block_K": 64, "num_stages": 3, **shape}
    passes = {"select-emitter.backend": "gluon", **case.get("configs", {})}
    kernel = tiledsl.jit(matmul.function, target="cuda:90", pass_configs=passes).compile(**sizes)
    assert "@gluon.jit" in kernel.source
    torch.manual_seed(0)
    a, b = (torch.randn(sizes[rows], sizes["K"], dtype=torch.float16) for rows in "MN")
    out = torch.full((sizes["M"], sizes["N"]), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(kernel.source, "matmul", a, b, out)
    want = a.float() @ b.float().T
    assert float((out.float() - want).norm() / want.norm()) < 1e-3


def scaled(M: int, K: int, block_M: int, num_stages: int) -> Any:
    """Each step's product is scaled by row and step, and added."""
    steps = -(-K // 64)

    @T.prim_func
    def scaled(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((128, K), "float16"),
        scale: T.Tensor((M, steps), "float32"),
        C: T.Tensor((M, 128), "float32"),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=256) as bx:
            a = T.alloc_shared((block_M, 64), "float16")
            b = T.alloc_shared((128, 64), "float16")
            product = T.alloc_fragment((block_M, 128), "float32")
            total = T.alloc_fragment((block_M, 128), "float32")
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=num_stages):
                T.copy(A[bx * block_M, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, product, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, 128):
                    total[i, j] += product[i, j] * scale[bx * block_M + i, k]
            T.copy(total, C[bx * block_M, 0])

    return scaled


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("M", "K", "block_M", "num_stages"),
    [(256, 320, 128, 3), (200, 384, 128, 2), (128, 128, 128, 2), (300, 200, 64, 4), (384, 320, 192, 2)],
)
def test_scaled_products(M: int, K: int, block_M: int, num_stages: int, overlap: bool) -> None:
    passes = {"select-emitter.backend": "gluon", "select-emitter.overlap": overlap}
    kernel = tiledsl.compile(scaled(M, K, block_M, num_stages), target="cuda:90", pass_configs=passes)
    assert ("product_1" in kernel.source) == (overlap and block_M < 192) and "@gluon.jit" in kernel.source
    torch.manual_seed(0)
    a, b = (torch.randn(rows, K, dtype=torch.float16) for rows in (M, 128))
    scale, out = torch.rand(M, -(-K // 64)), torch.full((M, 128), float("nan"))
    gluon_machine.run_gluon(kernel.source, "scaled", a, b, scale, out)
    want = (a.float() * scale.repeat_interleave(64, 1)[:, :K]) @ b.float().T
    assert float((out - want).norm() / want.norm()) < 1e-5


WRONG = {
    "used before it is waited for": ("wait(1, deps=[scores", "wait(2, deps=[scores"),
    "deadlock": ("mbarrier.arrive(v_empty.index(v_stage), count=1)", "pass"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_model_sees_what_is_wrong(name: str) -> None:
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 128, "keys": 512, "dim": 64}
    source = compiled(sizes, {}).source
    assert WRONG[name][0] in source
    q, k, v = (torch.ones(1, 1, sizes[each], 64, dtype=torch.float16) for each in ("queries", "keys", "keys"))
    with pytest.raises(ExecutorError, match=name):
        gluon_machine.run_gluon(
            source.replace(*WRONG[name]), "attention_forward", q, k, v, torch.empty_like(q), torch.empty(1, 1, 128)
        )


@T.prim_func
def decayed(
    A: T.Tensor((128, 512), "float16"),
    B: T.Tensor((64, 512), "float16"),
    S: T.Tensor((8,), "float32"),
    C: T.Tensor((128, 64), "float32"),
):
    with T.Kernel(1, threads=128) as _:
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        total = T.alloc_fragment((128, 64), "float32")
        weight = T.alloc_fragment((128,), "float32")
        T.clear(total)
        T.clear(weight)
        for k in T.Pipelined(8, num_stages=3):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, total, transpose_B=True)
            for i in T.Parallel(128):
                weight[i] = weight[i] * 0.5 + S[k]
        for i, j in T.Parallel(128, 64):
            total[i, j] += weight[i]
        T.copy(total, C)


def test_what_a_loop_carries_beside_its_sum() -> None:
    kernel = tiledsl.compile(decayed, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    torch.manual_seed(1)
    a, b = (torch.randn(rows, 512).half() for rows in (128, 64))
    s, c = torch.randn(8), torch.full((128, 64), float("nan"))
    gluon_machine.run_gluon(kernel.source, "decayed", a, b, s, c)
    weight = sum(float(s[k]) * 0.5 ** (7 - k) for k in range(8))
    torch.testing.assert_close(c, a.float() @ b.float().T + weight, rtol=1e-4, atol=1e-3)
