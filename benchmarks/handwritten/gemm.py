"""Matrix product in Triton by hand, the usual way (pointers, grouped order), as in examples/gemm_lazy.py: a yardstick.

matmul(a, b) takes A[M, K] and B[K, N] of one 16-bit type, with any strides (b.T for a weight stored as [N, K]), and
returns C[M, N] of that type, accumulated in float32; with relu=True, max(C, 0).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    A, B, C,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    stride_am: tl.constexpr, stride_ak: tl.constexpr, stride_bk: tl.constexpr, stride_bn: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, STAGES: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    if GROUP > 1:
        group = pid // (GROUP * blocks_n)
        first = group * GROUP
        size = min(blocks_m - first, GROUP)
        block_m = first + pid % (GROUP * blocks_n) % size
        block_n = pid % (GROUP * blocks_n) // size
    else:
        block_m = pid // blocks_n
        block_n = pid % blocks_n

    masked_m: tl.constexpr = M % BLOCK_M != 0
    masked_n: tl.constexpr = N % BLOCK_N != 0
    masked_k: tl.constexpr = K % BLOCK_K != 0
    offs_m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    # Rows and columns past the end wrap around: what they give is not stored.
    rows = offs_m % M if masked_m else offs_m
    columns = offs_n % N if masked_n else offs_n
    a_ptrs = A + rows[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = B + offs_k[:, None] * stride_bk + columns[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if masked_k:
            a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k, other=0.0)
            b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k, other=0.0)
        else:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if RELU:
        acc = tl.maximum(acc, 0.0)
    c_ptrs = C + offs_m[:, None] * N + offs_n[None, :]
    if masked_m or masked_n:
        tl.store(c_ptrs, acc.to(C.dtype.element_ty), mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
    else:
        tl.store(c_ptrs, acc.to(C.dtype.element_ty))


def matmul(a, b, *, relu=False, block_M=128, block_N=256, block_K=64, group=1, num_warps=8, num_stages=3):
    M, K = a.shape
    N = b.shape[1]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)
    matmul_kernel[(triton.cdiv(M, block_M) * triton.cdiv(N, block_N),)](
        a, b, c, M, N, K, *a.stride(), *b.stride(),
        block_M, block_N, block_K, group, num_stages, relu, num_warps=num_warps,
    )  # fmt: skip
    return c
