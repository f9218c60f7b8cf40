"""What attention kernels are written with: spellings found in TileLang programs, and the text that comes of them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.support.example_modules import load_example

BATCH, HEADS, LENGTH, DIM = 1, 2, 45, 16
BLOCK = 16
SCALE = 1.44269504 / math.sqrt(DIM)


def attention_with_mask_first(causal: bool, clear: bool, staged: bool) -> Any:
    """[batch, length, heads, dim]; the mask is what the scores start from, and the product is added to it."""
    shape = (BATCH, LENGTH, HEADS, DIM)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        Output: T.Tensor(shape, "float16"),
    ):
        with T.Kernel(T.ceildiv(LENGTH, BLOCK), HEADS, BATCH, threads=128) as (bx, by, bz):
            Q_shared = T.alloc_shared([BLOCK, DIM], "float16")
            K_shared = T.alloc_shared([BLOCK, DIM], "float16")
            V_shared = T.alloc_shared([BLOCK, DIM], "float16")
            O_shared = T.alloc_shared([BLOCK, DIM], "float16")
            acc_s = T.alloc_fragment([BLOCK, BLOCK], "float32")
            acc_s_cast = T.alloc_fragment([BLOCK, BLOCK], "float16")
            acc_o = T.alloc_fragment([BLOCK, DIM], "float32")
            scores_max = T.alloc_fragment([BLOCK], "float32")
            scores_max_prev = T.alloc_fragment([BLOCK], "float32")
            scores_scale = T.alloc_fragment([BLOCK], "float32")
            scores_sum = T.alloc_fragment([BLOCK], "float32")
            logsum = T.alloc_fragment([BLOCK], "float32")

            T.annotate_layout({Q_shared: T.Layout([BLOCK, DIM], lambda i, j: (i, j))})
            T.copy(Q[bz, bx * BLOCK : (bx + 1) * BLOCK, by, :], Q_shared)
            T.fill(acc_o, 0)
            T.fill(logsum, 0)
            T.fill(scores_max, -T.infinity("float32"))
            tiles = T.ceildiv(LENGTH, BLOCK)
            last = T.min(tiles, T.ceildiv((bx + 1) * BLOCK, BLOCK)) if causal else tiles
            for k in T.Pipelined(last, num_stages=1):
                T.copy(K[bz, k * BLOCK : (k + 1) * BLOCK, by, :], K_shared)
                if causal:
                    for i, j in T.Parallel(BLOCK, BLOCK):
                        acc_s[i, j] = T.if_then_else(bx * BLOCK + i >= k * BLOCK + j, 0, -T.infinity(acc_s.dtype))
                else:
                    for i, j in T.Parallel(BLOCK, BLOCK):
                        acc_s[i, j] = T.if_then_else(k * BLOCK + j >= LENGTH, -T.infinity(acc_s.dtype), 0)
                T.gemm(Q_shared, K_shared, acc_s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(scores_max, scores_max_prev)
                if clear:
                    T.fill(scores_max, -T.infinity("float32"))
                T.reduce_max(acc_s, scores_max, dim=1, clear=False)
                for i in T.Parallel(BLOCK):
                    scores_max[i] = T.max(scores_max[i], scores_max_prev[i])
                for i in T.Parallel(BLOCK):
                    scores_scale[i] = T.exp2(scores_max_prev[i] * SCALE - scores_max[i] * SCALE)
                for i, j in T.Parallel(BLOCK, BLOCK):
                    acc_s[i, j] = T.exp2(acc_s[i, j] * SCALE - scores_max[i] * SCALE)
                T.reduce_sum(acc_s, scores_sum, dim=1)
                for i in T.Parallel(BLOCK):
                    logsum[i] = logsum[i] * scores_scale[i] + scores_sum[i]
                T.copy(acc_s, acc_s_cast)
                for i, j in T.Parallel(BLOCK, DIM):
                    acc_o[i, j] *= scores_scale[i]
                T.copy(V[bz, k * BLOCK : (k + 1) * BLOCK, by, :], V_shared)
                T.gemm(acc_s_cast, V_shared, acc_o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(BLOCK, DIM):
                acc_o[i, j] /= logsum[i]
            if staged:
                T.copy(acc_o, O_shared)
                T.copy(O_shared, Output[bz, bx * BLOCK : (bx + 1) * BLOCK, by, :])
            else:
                T.copy(acc_o, Output[bz, bx * BLOCK : (bx + 1) * BLOCK, by, :])

    return main


@pytest.mark.parametrize(("causal", "clear", "staged"), [(False, True, True), (True, False, False)])
def test_mask_in_the_accumulator(causal: bool, clear: bool, staged: bool) -> None:
    kernel = tiledsl.compile(attention_with_mask_first(causal, clear, staged), out_idx=[3], target="interpret")
    torch.manual_seed(0)
    q, k, v = (torch.randn(BATCH, LENGTH, HEADS, DIM, dtype=torch.float16) for _ in range(3))
    wide = (each.transpose(1, 2).float() for each in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal).transpose(1, 2)
    torch.testing.assert_close(kernel(q, k, v).float(), expected, rtol=1e-2, atol=2e-3)


def test_grouped_heads_share_one_block() -> None:
    """Decoding: the query heads of a group are the rows of a tile, padded to what a product needs; several splits."""
    groups, group, keys, splits, rows = 2, 3, 50, 2, 16

    @T.macro
    def copy_rows(source, target, b, kv_head):
        for i, j in T.Parallel(rows, DIM):
            target[i, j] = T.if_then_else(i < group, source[b, kv_head * group + i, j], 0)

    @T.prim_func
    def decode(
        Q: T.Tensor((1, groups * group, DIM), "float16"),
        K: T.Tensor((1, keys, groups, DIM), "float16"),
        V: T.Tensor((1, keys, groups, DIM), "float16"),
        partial: T.Tensor((1, groups * group, splits, DIM), "float32"),
        lse: T.Tensor((1, groups * group, splits), "float32"),
    ):
        with T.Kernel(1, groups, splits, threads=128) as (b, kv_head, split):
            q = T.alloc_shared((rows, DIM), "float16")
            k = T.alloc_shared((BLOCK, DIM), "float16")
            v = T.alloc_shared((BLOCK, DIM), "float16")
            s = T.alloc_fragment((rows, BLOCK), "float32")
            p = T.alloc_shared((rows, BLOCK), "float16")
            o = T.alloc_fragment((rows, DIM), "float32")
            highest = T.alloc_fragment((rows,), "float32")
            before = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            tile_total = T.alloc_fragment((rows,), "float32")
            copy_rows(Q, q, b, kv_head)
            T.clear(o)
            T.clear(total)
            T.fill(highest, -1e30)
            start = split * (keys // splits)
            for tile in T.Pipelined(T.ceildiv(keys // splits, BLOCK), num_stages=2):
                T.copy(K[b, start + tile * BLOCK : start + (tile + 1) * BLOCK, kv_head, :], k)
                T.copy(V[b, start + tile * BLOCK : start + (tile + 1) * BLOCK, kv_head, :], v)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                for i, j in T.Parallel(rows, BLOCK):
                    s[i, j] = T.if_then_else(tile * BLOCK + j < keys // splits, s[i, j] * SCALE, -T.infinity("float32"))
                T.copy(highest, before)
                T.reduce_max(s, highest, dim=1, clear=False)
                for i, j in T.Parallel(rows, BLOCK):
                    s[i, j] = T.exp2(s[i, j] - highest[i])
                T.reduce_sum(s, tile_total, dim=1)
                for i in T.Parallel(rows):
                    total[i] = total[i] * T.exp2(before[i] - highest[i]) + tile_total[i]
                for i, j in T.Parallel(rows, DIM):
                    o[i, j] *= T.exp2(before[i] - highest[i])
                T.copy(s, p)
                T.gemm(p, v, o)
            for i, j in T.Parallel(rows, DIM):
                if i < group:
                    partial[b, kv_head * group + i, split, j] = o[i, j] / total[i]
            for i in T.Parallel(rows):
                if i < group:
                    lse[b, kv_head * group + i, split] = T.log2(total[i]) + highest[i]

    torch.manual_seed(0)
    q = torch.randn(1, groups * group, DIM, dtype=torch.float16)
    k, v = (torch.randn(1, keys, groups, DIM, dtype=torch.float16) for _ in range(2))
    partial, lse = tiledsl.compile(decode, out_idx=[3, 4], target="interpret")(q, k, v)
    out = (torch.softmax(lse * math.log(2), dim=-1)[..., None] * partial).sum(dim=2)
    heads = (each.float().permute(0, 2, 1, 3) for each in (k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q.float()[:, :, None], *heads, enable_gqa=True)
    torch.testing.assert_close(out, expected[:, :, 0], rtol=1e-2, atol=2e-3)


@pytest.fixture(scope="module")
def causal_source() -> str:
    example = load_example("attention")
    kernel = tiledsl.jit(out_idx=[3, 4], target="interpret")(example.attention.function)
    source: str = kernel(2, 4, 4, 512, 512, 64, True).source
    return source[: source.index("def attention_forward_into")]


def test_full_tiles_are_not_masked(causal_source: str) -> None:
    assert "mask" not in causal_source
    assert causal_source.count("tl.where") == 1  # on the diagonal
    assert "for tile in tl.range(bx, num_stages=2)" in causal_source


def test_offsets_are_computed_once_and_outside_of_loops(causal_source: str) -> None:
    before = causal_source[: causal_source.index("for tile")]
    assert len(re.findall(r"offsets\w* = ", causal_source)) == len(re.findall(r"offsets\w* = ", before)) == 1
    loop = causal_source[causal_source.index("for tile") : causal_source.index("for tile in tl.range(bx, end")]
    assert "tl.arange" not in loop
    assert "program_id" not in loop


def test_both_loops_use_the_same_names(causal_source: str) -> None:
    loops = causal_source.split("for tile in ")[1:]
    assigned = [set(re.findall(r"^ {8}(\w+) = ", loop, re.MULTILINE)) for loop in loops]
    assert assigned[0] < assigned[1]
    assert assigned[1] - assigned[0] == {"key", "seen"}
    assert "tile" in re.findall(r"K_V_start = start \+ (\w+) \*", causal_source)


def test_the_main_loop_is_what_one_would_write(causal_source: str) -> None:
    loop = causal_source.split("for tile in ")[1]
    lines = [line.strip() for line in loop.splitlines()[1:] if line.startswith("        ") and "#" not in line]
    assert lines == [
        "K_V_start = start + tile * 8192",
        "k = tl.load(K + K_V_start + offsets)",
        "k_t = tl.trans(k)",
        "scores = tl.dot(q, k_t)",
        "highest_1 = tl.max(scores, axis=1)",
        "highest_1 = tl.maximum(highest, highest_1 * 0.18033688)",
        "rescale = tl.exp2(highest - highest_1)",
        "scores = tl.exp2(scores * 0.18033688 - highest_1[:, None])",
        "tile_total = tl.sum(scores, axis=1)",
        "total = total * rescale + tile_total",
        "acc = acc * rescale[:, None]",
        "weights = scores.to(tl.float16)",
        "v = tl.load(V + K_V_start + offsets)",
        "acc = tl.dot(weights, v, acc)",
        "highest = highest_1",
    ]
