"""A matrix product in Triton as most people write it, sizes and strides at run time, under triton.autotune."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_relu_kernel(
    A, B, C, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    blocks_m = tl.cdiv(M, BLOCK_M)
    blocks_n = tl.cdiv(N, BLOCK_N)
    group = pid // (GROUP * blocks_n)
    first = group * GROUP
    size = min(blocks_m - first, GROUP)
    block_m = first + pid % (GROUP * blocks_n) % size
    block_n = pid % (GROUP * blocks_n) // size

    offs_m = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_n = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = A + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    b_ptrs = B + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    acc = tl.maximum(acc, 0.0)
    rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = C + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_ptrs, acc.to(C.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))


def tuned_kernel(configs: Sequence[dict[str, Any]], do_bench: Any = None) -> Any:
    """The kernel under triton.autotune with tiledsl's configurations; tuned anew for each M, N, K. `do_bench`
    stands in for Triton's."""
    choices = [
        triton.Config(
            {"BLOCK_M": each["block_M"], "BLOCK_N": each["block_N"], "BLOCK_K": each["block_K"], "GROUP": 8},
            num_warps=each["threads"] // 32,
            num_stages=each["num_stages"],
        )
        for each in configs
    ]
    return triton.autotune(configs=choices, key=["M", "N", "K"], do_bench=do_bench)(matmul_relu_kernel)


def launch(kernel: Any, a: Any, b: Any) -> Any:
    """relu(a[M, K] @ b[N, K].T) by a kernel of tuned_kernel."""
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), dtype=a.dtype, device=a.device)

    def grid(chosen: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(M, chosen["BLOCK_M"]) * triton.cdiv(N, chosen["BLOCK_N"]),)

    kernel[grid](a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(1), b.stride(0), c.stride(0), c.stride(1))
    return c
