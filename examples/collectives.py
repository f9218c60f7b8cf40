"""Products around collectives, as layers that are spread over the ranks of a job have them.

    torchrun --nproc-per-node 2 examples/collectives.py

    all-gather, product       each rank has rows of A and columns of B: all rows of A times its columns
    product, reduce-scatter   each has columns of A and rows of B: its rows of the sum over the ranks
    product, all-reduce       the same, and each gets all rows
    all-gather, experts       tokens of all ranks times the matrices of their top-k experts; each rank has some columns
    experts, reduce-scatter   back to the tokens, weighted and summed over experts and ranks; each rank gets its tokens

The first three are cut into `parts`: the collective of one runs beside the product of another. Into how many, and the
product's tile, all ranks choose together (`group=True`): the slowest rank's time counts, and all get the same winner.
NCCL on GPUs; gloo and the interpreter without.
"""

from __future__ import annotations

import os

import quickstart
import torch
import torch.distributed as dist
from _check_and_time import DEVICE, largest_error, run_script
from grouped_gemm import grouped_matmul

import tiledsl
from tiledsl.autotuner import tune_function

SMALL = {"M": 12, "N": 32, "K": 32, "experts": 3, "top_k": 2}
TILES = [{"block_M": 16, "block_N": 32}] if DEVICE == "cpu" else [{"block_M": m, "block_N": 128} for m in (64, 128)]
CUT = [{"parts": parts, **tile} for parts in (1, 2) for tile in TILES]
TUNING = {"group": True, "warmup": 1, "rep": 1 if DEVICE == "cpu" else 50}


matmul = tiledsl.jit(out_idx=[-1])(quickstart.matmul)


def product(A, B, block_M, block_N):
    return matmul(A.shape[0], B.shape[1], A.shape[1], block_M, block_N, block_K=32, num_stages=3)(A, B)


@tune_function(CUT, **TUNING)
def gather_and_multiply(A, B, parts, block_M, block_N):
    """A[rows, K] of each rank, B[K, columns]: [ranks * rows, columns]."""
    gathered = []
    for piece in A.chunk(parts):
        whole = piece.new_empty(dist.get_world_size() * len(piece), A.shape[1])
        gathered.append((whole, dist.all_gather_into_tensor(whole, piece, async_op=True)))
    out = []
    for whole, work in gathered:
        work.wait()
        out.append(product(whole, B, block_M, block_N).view(dist.get_world_size(), -1, B.shape[1]))
    return torch.cat(out, dim=1).flatten(0, 1)


@tune_function(CUT, **TUNING)
def multiply_and_scatter(A, B, parts, block_M, block_N):
    """A[ranks * rows, some of K], B[some of K, N]: this rank's rows of the sum, [rows, N]."""
    out = []
    for piece in A.view(dist.get_world_size(), -1, A.shape[1]).chunk(parts, dim=1):
        partial = product(piece.flatten(0, 1), B, block_M, block_N)
        mine = partial.new_empty(piece.shape[1], B.shape[1])
        out.append((mine, dist.reduce_scatter_tensor(mine, partial, async_op=True), partial))
    for _, work, _ in out:
        work.wait()
    return torch.cat([mine for mine, _, _ in out])


@tune_function(CUT, **TUNING)
def multiply_and_sum(A, B, parts, block_M, block_N):
    """A[rows, some of K], B[some of K, N]: all of the sum, [rows, N]."""
    out = [product(piece, B, block_M, block_N) for piece in A.chunk(parts)]
    for work in [dist.all_reduce(partial, async_op=True) for partial in out]:
        work.wait()
    return torch.cat(out)


def by_expert(chosen, experts):
    """Of chosen[tokens, top_k]: the places of `chosen.flatten()`, sorted by expert, and where each expert's begin."""
    counts = torch.bincount(chosen.flatten(), minlength=experts)
    return chosen.flatten().argsort(stable=True), torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()


@tune_function(TILES, **TUNING)
def gather_to_experts(tokens, chosen, matrices, block_M, block_N):
    """tokens[mine, K], chosen[mine, top_k], matrices[experts, some of N, K]: [all * top_k, some of N], by expert."""
    ranks, top_k = dist.get_world_size(), chosen.shape[1]
    all_tokens, all_chosen = (x.new_empty(ranks * len(x), x.shape[1]) for x in (tokens, chosen))
    dist.all_gather_into_tensor(all_chosen, chosen)
    dist.all_gather_into_tensor(all_tokens, tokens)
    order, offsets = by_expert(all_chosen, len(matrices))
    rows = all_tokens[order // top_k]
    kernel = grouped_matmul(*matrices.shape[:1], len(rows), *matrices.shape[1:], block_M, block_N, 32, dtype="float16")
    return kernel(rows, matrices, offsets)


@tune_function(TILES, **TUNING)
def scatter_from_experts(rows, chosen, weights, matrices, block_M, block_N):
    """rows[all * top_k, some of N] by expert, chosen and weights[all, top_k], matrices[experts, K, some of N]: rows
    of this rank, [mine, K]."""
    order, offsets = by_expert(chosen, len(matrices))
    kernel = grouped_matmul(*matrices.shape[:1], len(rows), *matrices.shape[1:], block_M, block_N, 32, dtype="float16")
    weighted = kernel(rows, matrices, offsets).float() * weights.flatten()[order, None]
    partial = weighted.new_zeros(len(chosen), matrices.shape[1]).index_add_(0, order // chosen.shape[1], weighted)
    mine = partial.new_empty(len(chosen) // dist.get_world_size(), matrices.shape[1])
    dist.reduce_scatter_tensor(mine, partial)
    return mine


def main(*, M=8192, N=4096, K=4096, experts=16, top_k=4):
    """All of it on `M` rows, which the number of ranks divides, as N and K. Returns the largest error."""
    if "RANK" not in os.environ:  # not under torchrun: a job of one process
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29519"}
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    try:
        return max(products(M, N, K), mixture(M, N, K, experts, top_k))
    finally:
        dist.destroy_process_group()


def products(M, N, K):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # all ranks make the same matrices, and take their parts
    A = torch.randn(M, K, dtype=torch.float16, device=DEVICE)
    B = torch.randn(K, N, dtype=torch.float16, device=DEVICE) / K**0.5
    expected = A.float() @ B.float()
    rows, columns = A.chunk(ranks)[rank], B.chunk(ranks, dim=1)[rank].contiguous()
    part_A, part_B = A.chunk(ranks, dim=1)[rank].contiguous(), B.chunk(ranks)[rank]
    return max(
        check("all-gather, product", gather_and_multiply, (rows, columns), expected.chunk(ranks, dim=1)[rank]),
        check("product, reduce-scatter", multiply_and_scatter, (part_A, part_B), expected.chunk(ranks)[rank]),
        check("product, all-reduce", multiply_and_sum, (part_A, part_B), expected),
    )


def mixture(M, N, K, experts, top_k):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    tokens = torch.randn(M, K, dtype=torch.float16, device=DEVICE)
    weights, chosen = torch.randn(M, experts, device=DEVICE).softmax(-1).topk(top_k)
    up = torch.randn(experts, N, K, dtype=torch.float16, device=DEVICE) / K**0.5
    down = torch.randn(experts, K, N, dtype=torch.float16, device=DEVICE) / N**0.5
    order, offsets = by_expert(chosen, experts)
    rows = tokens[order // top_k].split(offsets.diff().tolist())
    inner = torch.cat([some.float() @ matrix.float().T for some, matrix in zip(rows, up)]).half()
    outer = [some.float() @ matrix.float().T for some, matrix in zip(inner.split(offsets.diff().tolist()), down)]
    outer = torch.cat(outer) * weights.flatten()[order, None]
    expected = torch.zeros(M, K, device=DEVICE).index_add_(0, order // top_k, outer)

    def columns(x, dim):
        return x.chunk(ranks, dim=dim)[rank].contiguous()

    given = tokens.chunk(ranks)[rank], chosen.chunk(ranks)[rank], columns(up, 1)
    back = columns(inner, 1), chosen, weights, columns(down, 2)
    return max(
        check("all-gather, experts", gather_to_experts, given, columns(inner, 1)),
        check("experts, reduce-scatter", scatter_from_experts, back, expected.chunk(ranks)[rank]),
    )


def check(title, function, arguments, expected):
    """Two roundings to float16, and sums of as many as there are ranks."""
    error = largest_error(function(*arguments), expected, rtol=2e-2, atol=2e-2)
    if dist.get_rank() == 0:
        print(f"{title} on {dist.get_world_size()} ranks: matches torch; {function.tune(*arguments).config}")
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
