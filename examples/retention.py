"""Retention, forward: attention whose weights decay with distance, and which needs no softmax.

O[b, s, h] = sum over t <= s of (Q[b, s, h] . K[b, t, h]) / sqrt(dim) * gamma[h]^(s - t) * V[b, t, h], with
gamma[h] = 1 - 2^(-5 - h) as in RetNet (Sun et al., 2023, "Retentive Network", without its group norm). A block takes
block_M positions of one head and walks over the keys up to its own positions, as flash attention does: scores of a
tile, decay, and product with V, with the S x S matrix never in memory.
"""

from __future__ import annotations

import math

import torch
from _check_and_time import DEVICE, backend, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 2, "length": 100, "dim": 32, "value_dim": 48, "block_M": 32, "block_N": 32}


@tiledsl.jit(out_idx=[-1])
def retention(batch, heads, length, dim, value_dim, block_M, block_N, num_stages=2, threads=256, dtype="bfloat16"):
    @T.prim_func
    def retention(
        Q: T.Tensor((batch, length, heads, dim), dtype),
        K: T.Tensor((batch, length, heads, dim), dtype),
        V: T.Tensor((batch, length, heads, value_dim), dtype),
        log2_gamma: T.Tensor((heads,), "float32"),
        O: T.Tensor((batch, length, heads, value_dim), dtype),
    ):
        with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, h, b):
            Q_tile = T.alloc_shared((block_M, dim), dtype)
            K_tile = T.alloc_shared((block_N, dim), dtype)
            V_tile = T.alloc_shared((block_N, value_dim), dtype)
            scores = T.alloc_fragment((block_M, block_N), "float32")
            weights = T.alloc_fragment((block_M, block_N), dtype)
            total = T.alloc_fragment((block_M, value_dim), "float32")

            decay = log2_gamma[h]
            T.copy(Q[b, bx * block_M : (bx + 1) * block_M, h, :], Q_tile)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv((bx + 1) * block_M, block_N), num_stages=num_stages):
                T.copy(K[b, k * block_N : (k + 1) * block_N, h, :], K_tile)
                T.gemm(Q_tile, K_tile, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    distance = (bx * block_M + i) - (k * block_N + j)
                    weights[i, j] = T.if_then_else(
                        distance >= 0, scores[i, j] * T.exp2(T.cast(distance, "float32") * decay), 0.0
                    )
                T.copy(V[b, k * block_N : (k + 1) * block_N, h, :], V_tile)
                T.gemm(weights, V_tile, total)
            for i, j in T.Parallel(block_M, value_dim):
                total[i, j] *= dim**-0.5
            T.copy(total, O[b, bx * block_M : (bx + 1) * block_M, h, :])

    return retention


def reference(q, k, v, log2_gamma):
    length = q.shape[1]
    place = torch.arange(length, device=q.device)
    distance = (place[:, None] - place[None, :]).float()
    decay = torch.where(distance >= 0, torch.exp2(distance * log2_gamma[:, None, None]), 0.0)
    scores = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhst,bthe->bshe", (scores * decay).to(v.dtype), v)


def main(*, batch=2, heads=8, length=4096, dim=128, value_dim=128, block_M=128, block_N=64):
    kernel = retention(batch, heads, length, dim, value_dim, block_M, block_N)
    torch.manual_seed(0)
    q, k = (torch.randn(batch, length, heads, dim, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    v = torch.randn(batch, length, heads, value_dim, dtype=torch.bfloat16, device=DEVICE)
    log2_gamma = torch.tensor([math.log2(1 - 2.0 ** (-5 - h)) for h in range(heads)], device=DEVICE)

    # The weights are rounded to bfloat16. Results of heads with long memories are larger, and so are their errors.
    expected = reference(q.float(), k.float(), v.float(), log2_gamma)
    size = expected.std(dim=(0, 1, 3), keepdim=True)
    error = largest_error(kernel(q, k, v, log2_gamma) / size, expected / size, rtol=1e-2, atol=2e-2)
    print_speed(
        f"retention, batch {batch}, {heads} heads, length {length}, in {backend(kernel)}",
        lambda: kernel(q, k, v, log2_gamma),
        lambda: reference(q, k, v, log2_gamma),
        operations=batch * heads * length * length * (dim + value_dim),  # half of the S x S matrix
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
