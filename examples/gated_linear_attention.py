"""Gated linear attention, forward: each channel of a key has a gate of its own, for each token and head.

Each head has a state S of dim x value_dim, zero in the beginning. For each token t:
    S = diag(exp(G[t])) S + k[t] v[t]^T;  O[t] = dim^-0.5 S^T q[t]
(Yang, Wang, Shen, Panda and Kim, 2024, "Gated Linear Attention Transformers with Hardware-Efficient Training"), with
G <= 0. Tokens are taken in chunks. With g the sum of G from the chunk's first token on,
    O = (Q * exp(g)) S + P V,  P[t, s] = sum over d of q[t, d] k[s, d] exp(g[t, d] - g[s, d]) for s <= t,
with S the state before the chunk. P is no product of Q * exp(g) and K * exp(-g), whose numbers may overflow. That paper
cuts chunks into smaller ones a second time and takes g from where a smaller one begins, which leaves the products of
the smallest. Here halves are cut into halves: for two tokens in the two halves of a block, g is taken from the border
between these, where no factor is greater than 1. Blocks of 8 tokens are one product: seen from their middle, factors
stay in the range of bfloat16, since gates count as 2^-28 at least.

The first launch computes P and what is made of Q and K, of all chunks at once; the second walks through the chunks,
with the state in registers, transposed: what is computed from it is then a left operand of the next product.
"""

from __future__ import annotations

import math

import torch
from _check_and_time import DEVICE, print_speed, rms_error, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 2, "length": 100, "dim": 32, "value_dim": 48, "chunk": 32}


SMALLEST = 2  # level of the blocks that are not cut any more, of 8 tokens
LOWEST = -28.0  # of a gate's base-2 logarithm: what is left is behind the digits of a float32, and 4 are in its range


@T.macro
def load_gates(G, b, c, h, piece, gates):
    """gates = base-2 logarithms of the gates of a chunk's tokens, of which it takes a piece of the channels."""
    chunk, width = gates.shape
    for t, d in T.Parallel(chunk, width):
        gates[t, d] = T.max(G[b, c * chunk + t, h, piece * width + d] * math.log2(math.e), LOWEST)


@T.macro
def sum_gates(gates, level, out):
    """out[t] = the sum of what lies between token t and the middle of its block of 2 << level tokens: of those behind
    it in the first half, and of those from the middle up to its own in the second.

    A product with ones and zeros: it needs no scan, and no rows of other threads.
    """
    chunk = gates.shape[0]
    between = T.alloc_fragment((chunk, chunk), "float16")
    for t, s in T.Parallel(chunk, chunk):
        behind_middle = s >> level >= (t >> level | 1)
        between[t, s] = T.if_then_else(behind_middle != (s > t), 1.0, 0.0)
    T.gemm(between, gates, out, clear_accum=True)


@T.macro
def add_blocks(lhs, rhs, lowest, highest, out):
    """out += lhs rhs^T where lowest <= t ^ s < highest: in blocks, by the bits in which the tokens' numbers differ."""
    chunk = out.shape[0]
    product = T.alloc_fragment((chunk, chunk), "float32")
    T.gemm(lhs, rhs, product, transpose_B=True, clear_accum=True)
    for t, s in T.Parallel(chunk, chunk):
        out[t, s] += T.if_then_else((t ^ s >= lowest) & (t ^ s < highest), product[t, s], 0.0)


@T.macro
def score_chunk(Q, K, G, b, c, h, block_D, queries, kept, decays, score, similar):
    """score[t, s] and similar[t, s] = the sum over d of q[t, d] k[s, d] exp(g[t, d] - g[s, d]), for s <= t, and of
    k[t, d] k[s, d] exp(g[t, d] - g[s, d]), for s < t; 0 elsewhere. None for similar: it is not computed.

    What the state needs goes to memory: queries = Q * exp(g), kept = K * exp(end - g) and decays = exp(end), where end
    is the last g.
    """
    chunk = score.shape[0]
    Q_tile = T.alloc_shared((chunk, block_D), Q.dtype)
    K_tile = T.alloc_shared((chunk, block_D), Q.dtype)
    Q_factored = T.alloc_shared((chunk, block_D), "bfloat16")
    K_factored = T.alloc_shared((chunk, block_D), "bfloat16")
    K_rows = T.alloc_shared((chunk, block_D), "bfloat16")
    gates = T.alloc_shared((chunk, block_D), "float16")
    sums = T.alloc_fragment((chunk, block_D), "float32")
    factor = T.alloc_fragment((chunk, block_D), "bfloat16")
    inverse = T.alloc_fragment((chunk, block_D), "bfloat16")
    end = T.alloc_fragment((block_D,), "float32")

    T.clear(score)
    if similar is not None:
        T.clear(similar)
    for piece in T.serial(T.ceildiv(Q.shape[3], block_D)):
        T.copy(Q[b, c * chunk : (c + 1) * chunk, h, piece * block_D : (piece + 1) * block_D], Q_tile)
        T.copy(K[b, c * chunk : (c + 1) * chunk, h, piece * block_D : (piece + 1) * block_D], K_tile)
        load_gates(G, b, c, h, piece, gates)
        T.reduce_sum(gates, end, dim=0)
        sum_gates(gates, chunk.bit_length() - 1, sums)
        for d in T.Parallel(block_D):
            decays[b, h, c, piece * block_D + d] = T.exp2(end[d])
        for t, d in T.Parallel(chunk, block_D):
            queries[b, h, c, t, piece * block_D + d] = Q_tile[t, d] * T.exp2(end[d] - sums[t, d])
            kept[b, h, c, t, piece * block_D + d] = K_tile[t, d] * T.exp2(sums[t, d])

        sum_gates(gates, SMALLEST, sums)
        for t, d in T.Parallel(chunk, block_D):
            since_middle = T.if_then_else(t >> SMALLEST & 1 == 1, sums[t, d], -sums[t, d])
            factor[t, d] = T.exp2(since_middle)
            inverse[t, d] = T.exp2(-since_middle)
            Q_factored[t, d] = Q_tile[t, d] * factor[t, d]
            K_factored[t, d] = K_tile[t, d] * inverse[t, d]
            K_rows[t, d] = K_tile[t, d] * factor[t, d]
        add_blocks(Q_factored, K_factored, 0, 2 << SMALLEST, score)
        if similar is not None:
            add_blocks(K_rows, K_factored, 0, 2 << SMALLEST, similar)
        for level in T.serial(SMALLEST + 1, chunk.bit_length() - 1):
            sum_gates(gates, level, sums)
            for t, d in T.Parallel(chunk, block_D):
                factor[t, d] = T.exp2(sums[t, d])
                Q_factored[t, d] = Q_tile[t, d] * factor[t, d]
                K_factored[t, d] = K_tile[t, d] * factor[t, d]
            add_blocks(Q_factored, K_factored, 1 << level, 2 << level, score)
            if similar is not None:
                add_blocks(K_factored, K_factored, 1 << level, 2 << level, similar)
    for t, s in T.Parallel(chunk, chunk):
        score[t, s] = T.if_then_else(t >= s, score[t, s], 0.0)
        if similar is not None:
            similar[t, s] = T.if_then_else(t > s, similar[t, s], 0.0)


@tiledsl.jit(out_idx=[-1])
def gated_linear_attention(
    batch, heads, length, dim, value_dim,
    chunk=64, block_D=128, block_V=128, num_stages=3, threads=256, dtype="bfloat16",
):  # fmt: skip
    chunks = -(-length // chunk)
    keys, values = (batch, length, heads, dim), (batch, length, heads, value_dim)

    @T.prim_func
    def gated_linear_attention(
        Q: T.Tensor(keys, dtype),
        K: T.Tensor(keys, dtype),
        V: T.Tensor(values, dtype),
        G: T.Tensor(keys, "float32"),
        O: T.Tensor(values, dtype),
    ):
        scores = T.alloc_global((batch, heads, chunks, chunk, chunk), dtype)
        queries = T.alloc_global((batch, heads, chunks, chunk, dim), dtype)
        kept = T.alloc_global((batch, heads, chunks, chunk, dim), dtype)
        decays = T.alloc_global((batch, heads, chunks, dim), "float32")

        with T.Kernel(chunks, heads, batch, threads=128) as (c, h, b):
            score = T.alloc_fragment((chunk, chunk), "float32")
            score_chunk(Q, K, G, b, c, h, block_D, queries, kept, decays, score, None)
            T.copy(score, scores[b, h, c, :, :])

        with T.Kernel(T.ceildiv(value_dim, block_V), heads, batch, threads=threads) as (bv, h, b):
            Q_tile = T.alloc_shared((chunk, dim), dtype)
            K_tile = T.alloc_shared((chunk, dim), dtype)
            V_tile = T.alloc_shared((chunk, block_V), dtype)
            score_tile = T.alloc_shared((chunk, chunk), dtype)
            decay = T.alloc_fragment((dim,), "float32")
            state = T.alloc_fragment((block_V, dim), "float32")
            state_half = T.alloc_fragment((block_V, dim), dtype)
            out = T.alloc_fragment((block_V, chunk), "float32")

            T.clear(state)
            for c in T.Pipelined(chunks, num_stages=num_stages):
                T.copy(queries[b, h, c, :, :], Q_tile)
                T.copy(V[b, c * chunk : (c + 1) * chunk, h, bv * block_V : (bv + 1) * block_V], V_tile)
                T.copy(scores[b, h, c, :, :], score_tile)
                T.copy(kept[b, h, c, :, :], K_tile)
                T.copy(decays[b, h, c, :], decay)

                T.copy(state, state_half)
                T.gemm(state_half, Q_tile, out, transpose_B=True, clear_accum=True)
                T.gemm(V_tile, score_tile, out, transpose_A=True, transpose_B=True)
                for v, d in T.Parallel(block_V, dim):
                    state[v, d] *= decay[d]
                T.gemm(V_tile, K_tile, state, transpose_A=True)
                for v, t in T.Parallel(block_V, chunk):
                    O[b, c * chunk + t, h, bv * block_V + v] = out[v, t] * dim**-0.5

    return gated_linear_attention


def reference(q, k, v, g):
    """Token by token. O, of the type of the arguments, which is that of the state."""
    batch, length, heads, dim = q.shape
    state, out = q.new_zeros(batch, heads, dim, v.shape[-1]), torch.empty_like(v)
    for t in range(length):
        state = state * g[:, t, :, :, None].exp() + k[:, t, :, :, None] * v[:, t, :, None, :]
        out[:, t] = torch.einsum("bhd,bhdv->bhv", q[:, t], state)
    return out * dim**-0.5


def inputs(batch, heads, length, dim, value_dim, device):
    """Random q, k and v, and gates: most keep all, some forget all, and their logarithms go to -64."""
    q, k = (torch.randn(batch, length, heads, dim, dtype=torch.bfloat16, device=device) for _ in range(2))
    v = torch.randn(batch, length, heads, value_dim, dtype=torch.bfloat16, device=device)
    return q, k, v, -64 * torch.rand(batch, length, heads, dim, device=device) ** 256


def main(*, batch=2, heads=32, length=4096, dim=128, value_dim=128, chunk=64):
    kernel = gated_linear_attention(batch, heads, length, dim, value_dim, chunk)
    torch.manual_seed(0)
    arguments = inputs(batch, heads, length, dim, value_dim, DEVICE)

    expected = reference(*(each.double() for each in arguments))
    error = rms_error(kernel(*arguments), expected, rms=2**-7, largest=2**-3)
    print_speed(
        f"gated linear attention, batch {batch}, {heads} heads, length {length}",
        lambda: kernel(*arguments),
        lambda: reference(*(each.float() for each in arguments)),
        bytes_moved=2 * batch * length * heads * (4 * dim + 2 * value_dim),
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
