"""Block-scaled float8 and grouped matrix products in Triton by hand, tuned by their own tuner: yardsticks."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from benchmarks.handwritten.variants import Variant, by_hand
from benchmarks.row import Candidate


@triton.jit
def block_scaled_kernel(
    X, W, x_scale, w_scale, Y, M, N, K, groups,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A step along K is one block of 128 with its own scales; N and K are multiples of 128."""
    tile = tl.program_id(0)
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = tile // (GROUP * blocks_n) * GROUP
    size = tl.minimum(blocks_m - first, GROUP)
    block_m, block_n = first + tile % (GROUP * blocks_n) % size, tile % (GROUP * blocks_n) // size
    offs_m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, 128)
    x_ptrs = X + (offs_m % M)[:, None].to(tl.int64) * K + offs_k[None, :]
    w_ptrs = W + (offs_n % N)[None, :].to(tl.int64) * K + offs_k[:, None]
    xs_ptrs = x_scale + (offs_m % M) * groups
    ws_ptr = w_scale + block_n * BLOCK_N // 128 * groups
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, groups, num_stages=STAGES):
        x, w = tl.load(x_ptrs + k * 128), tl.load(w_ptrs + k * 128)
        scales = tl.load(xs_ptrs + k) * tl.load(ws_ptr + k)
        acc += tl.dot(x, w) * scales[:, None]
    inside = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    place = offs_m[:, None].to(tl.int64) * N + offs_n[None, :]
    tl.store(Y + place, acc.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def grouped_kernel(
    A, B, offsets, C, total, N, K, groups,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Each program finds its group by walking over the offsets. K is a multiple of BLOCK_K."""
    block_n, tile = tl.program_id(0), tl.program_id(1)
    group, first, start, end = -1, 0, 0, 0
    passed = 0
    low = tl.load(offsets)
    for g in range(groups):
        high = tl.load(offsets + g + 1)
        tiles = tl.cdiv(high - low, BLOCK_M)
        here = (tile >= passed) & (tile < passed + tiles)
        group = tl.where(here, g, group)
        first = tl.where(here, passed, first)
        start = tl.where(here, low, start)
        end = tl.where(here, high, end)
        passed += tiles
        low = high
    if group >= 0:
        offs_m = start + (tile - first) * BLOCK_M + tl.arange(0, BLOCK_M)
        offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
        offs_k = tl.arange(0, BLOCK_K)
        a_ptrs = A + (offs_m % total)[:, None].to(tl.int64) * K + offs_k[None, :]
        b_ptrs = B + group.to(tl.int64) * N * K + (offs_n % N)[None, :].to(tl.int64) * K + offs_k[:, None]
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
            acc = tl.dot(tl.load(a_ptrs + k), tl.load(b_ptrs + k), acc)
        inside = (offs_m[:, None] < end) & (offs_n[None, :] < N)
        place = offs_m[:, None].to(tl.int64) * N + offs_n[None, :]
        tl.store(C + place, acc.to(C.dtype.element_ty), mask=inside)


_SCALED = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "GROUP": 8, "STAGES": stages}, num_warps=warps)
    for m, n, stages, warps in (
        (128, 128, 3, 8), (128, 128, 4, 8), (64, 128, 4, 4), (128, 128, 3, 4), (64, 128, 3, 4), (64, 64, 5, 4),
        (16, 128, 4, 4), (16, 64, 5, 4),
    )
]  # fmt: skip
_GROUPED = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "STAGES": stages}, num_warps=warps)
    for m, n, k, stages, warps in (
        (128, 128, 64, 3, 4), (128, 256, 64, 3, 8), (64, 128, 64, 4, 4), (128, 128, 64, 4, 8), (64, 256, 64, 4, 4),
        (16, 128, 128, 4, 4),
    )
]  # fmt: skip


def block_scaled_by_hand() -> Candidate:
    """A candidate for Y from (X, W, x_scale, w_scale)."""

    def launch(kernel: Any, inputs: Any, outputs: Any) -> None:
        x, w, x_scale, w_scale = inputs
        (M, K), N = x.shape, w.shape[0]
        kernel[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)](
            x, w, x_scale, w_scale, outputs[0], M, N, K, x_scale.shape[1]
        )

    def takes(inputs: Any) -> bool:
        return inputs[0].shape[1] % 128 == 0 and inputs[1].shape[0] % 128 == 0

    return by_hand([Variant("pointers", block_scaled_kernel, _SCALED, ["M", "N", "K"], launch, takes)])


def grouped_by_hand() -> Candidate:
    """A candidate for C from (A, B, offsets)."""

    def launch(kernel: Any, inputs: Any, outputs: Any) -> None:
        a, b, offsets = inputs
        (total, K), (groups, N, _) = a.shape, b.shape
        kernel[lambda meta: (triton.cdiv(N, meta["BLOCK_N"]), triton.cdiv(total, meta["BLOCK_M"]) + groups - 1)](
            a, b, offsets, outputs[0], total, N, K, groups
        )

    def takes(inputs: Any) -> bool:
        return inputs[0].shape[1] % 128 == 0

    return by_hand([Variant("pointers", grouped_kernel, _GROUPED, ["total", "N", "K", "groups"], launch, takes)])
