"""A mixture of experts: routing, two products by expert, and the weighted sum, with nothing but ids in between.

    weights, chosen = top-k of softmax(X @ router), and each token's weights sum up to 1
    Y[t] = sum over its k experts e of weights[t, e] * (silu(X[t] @ gate[e].T) * (X[t] @ up[e].T)) @ down[e].T

`sorted_by_expert` puts the k * M pairs of token and expert in order, filled up to whole blocks for each expert, so
that a block of rows has one expert. The first kernel gathers tokens and writes rows of pairs; the second one reads
these and writes weighted rows, which are summed over each token's pairs.
"""

from __future__ import annotations

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"M": 13, "D": 32, "F": 48, "experts": 4, "top_k": 2, "block_M": 16, "block_N": 32, "block_K": 32}


def route(x, router, top_k):
    weights, chosen = (x.float() @ router).softmax(dim=-1).topk(top_k, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True), chosen


def sorted_by_expert(chosen, experts, block_M):
    """Of chosen[M, top_k]: pairs[blocks * block_M], the places in `chosen.flatten()`, -1 where there is none, and the
    expert of each block, -1 of one that is not used: there are as many as there may ever be."""
    flat = chosen.flatten()
    counts = (flat[:, None] == torch.arange(experts, device=flat.device)).sum(dim=0)
    padded = (counts + block_M - 1) // block_M * block_M
    blocks = -(-(len(flat) + experts * (block_M - 1)) // block_M)
    order = flat.argsort(stable=True)
    within = torch.arange(len(flat), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    pairs = torch.full((blocks * block_M,), -1, dtype=torch.int32, device=flat.device)
    pairs[(padded.cumsum(0) - padded)[flat[order]] + within] = order.int()
    first = torch.arange(blocks, device=flat.device) * block_M
    of_block = (first[:, None] >= padded.cumsum(0)).sum(dim=1).int()
    return pairs, torch.where(of_block < experts, of_block, -1)


@tiledsl.jit(out_idx=[-1])
def expand(M, D, F, experts, top_k, blocks, block_M, block_N, block_K, num_stages=3, threads=128, dtype="bfloat16"):
    @T.prim_func
    def expand(
        X: T.Tensor((M, D), dtype),
        gate: T.Tensor((experts, F, D), dtype),
        up: T.Tensor((experts, F, D), dtype),
        pairs: T.Tensor((blocks * block_M,), "int32"),
        of_block: T.Tensor((blocks,), "int32"),
        inner: T.Tensor((M * top_k, F), dtype),
    ):
        with T.Kernel(T.ceildiv(F, block_N), blocks, threads=threads) as (bx, by):
            x = T.alloc_shared((block_M, block_K), dtype)
            w = T.alloc_shared((block_N, block_K), dtype)
            v = T.alloc_shared((block_N, block_K), dtype)
            g = T.alloc_fragment((block_M, block_N), "float32")
            u = T.alloc_fragment((block_M, block_N), "float32")
            if of_block[by] >= 0:
                T.clear(g)
                T.clear(u)
                for k in T.Pipelined(T.ceildiv(D, block_K), num_stages=num_stages):
                    for i, j in T.Parallel(block_M, block_K):
                        x[i, j] = X[T.max(pairs[by * block_M + i], 0) // top_k, k * block_K + j]
                    T.copy(gate[of_block[by], bx * block_N, k * block_K], w)
                    T.copy(up[of_block[by], bx * block_N, k * block_K], v)
                    T.gemm(x, w, g, transpose_B=True)
                    T.gemm(x, v, u, transpose_B=True)
                for i, j in T.Parallel(block_M, block_N):
                    if pairs[by * block_M + i] >= 0:
                        inner[pairs[by * block_M + i], bx * block_N + j] = g[i, j] * T.sigmoid(g[i, j]) * u[i, j]

    return expand


@tiledsl.jit(out_idx=[-1])
def contract(M, D, F, experts, top_k, blocks, block_M, block_N, block_K, num_stages=3, threads=128, dtype="bfloat16"):
    @T.prim_func
    def contract(
        inner: T.Tensor((M * top_k, F), dtype),
        down: T.Tensor((experts, D, F), dtype),
        weights: T.Tensor((M * top_k,), "float32"),
        pairs: T.Tensor((blocks * block_M,), "int32"),
        of_block: T.Tensor((blocks,), "int32"),
        out: T.Tensor((M * top_k, D), "float32"),
    ):
        with T.Kernel(T.ceildiv(D, block_N), blocks, threads=threads) as (bx, by):
            x = T.alloc_shared((block_M, block_K), dtype)
            w = T.alloc_shared((block_N, block_K), dtype)
            sums = T.alloc_fragment((block_M, block_N), "float32")
            if of_block[by] >= 0:
                T.clear(sums)
                for k in T.Pipelined(T.ceildiv(F, block_K), num_stages=num_stages):
                    for i, j in T.Parallel(block_M, block_K):
                        x[i, j] = inner[T.max(pairs[by * block_M + i], 0), k * block_K + j]
                    T.copy(down[of_block[by], bx * block_N, k * block_K], w)
                    T.gemm(x, w, sums, transpose_B=True)
                for i, j in T.Parallel(block_M, block_N):
                    if pairs[by * block_M + i] >= 0:
                        row = pairs[by * block_M + i]
                        out[row, bx * block_N + j] = sums[i, j] * weights[row]

    return contract


def fused_moe(x, router, gate, up, down, top_k, block_M, block_N, block_K):
    (M, D), (experts, F, _) = x.shape, gate.shape
    weights, chosen = route(x, router, top_k)
    pairs, of_block = sorted_by_expert(chosen, experts, block_M)
    sizes = M, D, F, experts, top_k, len(of_block), block_M, block_N, block_K
    inner = expand(*sizes)(x, gate, up, pairs, of_block)
    rows = contract(*sizes)(inner, down, weights.flatten(), pairs, of_block)
    return rows.view(M, top_k, D).sum(dim=1).to(x.dtype)


def reference(x, router, gate, up, down, top_k):
    weights, chosen = route(x, router, top_k)
    out = torch.zeros(x.shape, device=x.device)
    for expert in range(len(gate)):
        token, place = (chosen == expert).nonzero(as_tuple=True)
        rows = x[token]
        inner = torch.nn.functional.silu((rows @ gate[expert].T).float()) * (rows @ up[expert].T).float()
        outer = (inner.to(x.dtype) @ down[expert].T).float() * weights[token, place, None]
        out.index_add_(0, token, outer)
    return out.to(x.dtype)


def main(*, M=4096, D=2048, F=1024, experts=32, top_k=4, block_M=64, block_N=128, block_K=64):
    torch.manual_seed(0)
    x = torch.randn(M, D, dtype=torch.bfloat16, device=DEVICE)
    router = torch.randn(D, experts, device=DEVICE) / D**0.5
    gate, up = (torch.randn(experts, F, D, dtype=torch.bfloat16, device=DEVICE) / D**0.5 for _ in range(2))
    down = torch.randn(experts, D, F, dtype=torch.bfloat16, device=DEVICE) / F**0.5
    blocks = block_M, block_N, block_K

    # Both round products to bfloat16 in between, torch two more of them.
    actual, expected = fused_moe(x, router, gate, up, down, top_k, *blocks), reference(x, router, gate, up, down, top_k)
    error = largest_error(actual, expected, rtol=3e-2, atol=3e-2)
    print_speed(
        f"mixture of {experts} experts, top {top_k}, {M} tokens of {D}, {F} inside",
        lambda: fused_moe(x, router, gate, up, down, top_k, *blocks),
        lambda: reference(x, router, gate, up, down, top_k),
        operations=6 * M * top_k * D * F,
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
