"""Gated delta net, forward: linear attention whose state forgets by a gate and corrects what it says of a key.

Each head has a state S of dim x value_dim, zero in the beginning. For each token t, with alpha = exp(G[t]):
    S = alpha S;  S += beta[t] k[t] (v[t] - S^T k[t])^T;  O[t] = dim^-0.5 S^T q[t]
(Yang, Kautz and Hatamizadeh, 2024, "Gated Delta Networks"). Keys are expected to have length 1 at most, G <= 0 and
0 <= beta <= 1. Tokens are taken in chunks. With g the sum of G from the chunk's first token on, and
A[t, s] = beta[t] (k[t] . k[s]) exp(g[t] - g[s]) for s < t, what the tokens of a chunk write is
    U = (1 + A)^-1 diag(beta) (V - diag(exp(g)) K S),
with S the state before the chunk. The first launch inverts the matrices of all chunks at once; the second walks
through the chunks, with the state in registers, transposed: all that is computed from it is then a left operand of
the next product.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, print_speed, rms_error, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 2, "length": 100, "dim": 32, "value_dim": 64, "chunk": 32}


@T.macro
def invert(below, chunk, inverse):
    """inverse = (1 + below)^-1, where below is 0 on its diagonal and above it. chunk: rows, a power of two."""
    A = T.alloc_shared((chunk, chunk), "float16")
    inverse_half = T.alloc_shared((chunk, chunk), "float16")
    between = T.alloc_fragment((chunk, chunk), "float32")
    between_half = T.alloc_shared((chunk, chunk), "float16")

    # Blocks of two: the inverse of [[1, 0], [a, 1]] is [[1, 0], [-a, 1]].
    for t, s in T.Parallel(chunk, chunk):
        inverse[t, s] = T.if_then_else(t == s, 1.0, T.if_then_else((t // 2 == s // 2) & (t > s), -below[t, s], 0.0))

    # Blocks of twice the size: [[X, 0], [-Y A X, Y]], where X and Y are the inverses of the halves.
    T.copy(below, A)
    for level in T.unroll(1, chunk.bit_length() - 1):
        T.copy(inverse, inverse_half)
        T.gemm(inverse_half, A, between, clear_accum=True)
        for t, s in T.Parallel(chunk, chunk):
            in_lower_left = ((t >> level) & 1 == 1) & ((s >> level) == (t >> level) - 1)
            between_half[t, s] = T.if_then_else(in_lower_left, -between[t, s], 0.0)
        T.gemm(between_half, inverse_half, inverse)


@tiledsl.jit(out_idx=[-1])
def gated_delta_net(
    batch, heads, length, dim, value_dim, chunk=64, block_V=64, num_stages=2, threads=128, dtype="bfloat16"
):
    chunks = -(-length // chunk)
    values, tokens = (batch, length, heads, value_dim), (batch, length, heads)

    @T.prim_func
    def gated_delta_net(
        Q: T.Tensor((batch, length, heads, dim), dtype),
        K: T.Tensor((batch, length, heads, dim), dtype),
        V: T.Tensor(values, dtype),
        G: T.Tensor(tokens, "float32"),
        beta: T.Tensor(tokens, "float32"),
        O: T.Tensor(values, dtype),
    ):
        gates = T.alloc_global((batch, heads, chunks, chunk), "float32")
        inverses = T.alloc_global((batch, heads, chunks, chunk, chunk), dtype)
        scores = T.alloc_global((batch, heads, chunks, chunk, chunk), dtype)

        with T.Kernel(chunks, heads, batch, threads=128) as (c, h, b):
            Q_tile = T.alloc_shared((chunk, dim), dtype)
            K_tile = T.alloc_shared((chunk, dim), dtype)
            gate = T.alloc_fragment((chunk,), "float32")
            strength = T.alloc_fragment((chunk,), "float32")
            score = T.alloc_fragment((chunk, chunk), "float32")
            similar = T.alloc_fragment((chunk, chunk), "float32")
            inverse = T.alloc_fragment((chunk, chunk), "float32")

            T.copy(Q[b, c * chunk : (c + 1) * chunk, h, :], Q_tile)
            T.copy(K[b, c * chunk : (c + 1) * chunk, h, :], K_tile)
            for t in T.Parallel(chunk):
                gate[t] = G[b, c * chunk + t, h] * math.log2(math.e)
                strength[t] = beta[b, c * chunk + t, h]
            T.cumsum(gate)
            T.copy(gate, gates[b, h, c, :])

            T.gemm(Q_tile, K_tile, score, transpose_B=True, clear_accum=True)
            T.gemm(K_tile, K_tile, similar, transpose_B=True, clear_accum=True)
            for t, s in T.Parallel(chunk, chunk):
                score[t, s] = T.if_then_else(t >= s, score[t, s] * (T.exp2(gate[t] - gate[s]) * dim**-0.5), 0.0)
                similar[t, s] = T.if_then_else(t > s, similar[t, s] * (T.exp2(gate[t] - gate[s]) * strength[t]), 0.0)
            T.copy(score, scores[b, h, c, :, :])

            invert(similar, chunk, inverse)
            for t, s in T.Parallel(chunk, chunk):
                inverse[t, s] *= strength[s]
            T.copy(inverse, inverses[b, h, c, :, :])

        with T.Kernel(T.ceildiv(value_dim, block_V), heads, batch, threads=threads) as (bv, h, b):
            Q_tile = T.alloc_shared((chunk, dim), dtype)
            K_tile = T.alloc_shared((chunk, dim), dtype)
            V_tile = T.alloc_shared((chunk, block_V), dtype)
            inverse_tile = T.alloc_shared((chunk, chunk), dtype)
            score_tile = T.alloc_shared((chunk, chunk), dtype)
            gate = T.alloc_fragment((chunk,), "float32")
            state = T.alloc_fragment((block_V, dim), "float32")
            state_half = T.alloc_fragment((block_V, dim), dtype)
            known = T.alloc_fragment((block_V, chunk), "float32")
            known_half = T.alloc_fragment((block_V, chunk), dtype)
            update = T.alloc_fragment((block_V, chunk), "float32")
            update_half = T.alloc_fragment((block_V, chunk), dtype)
            kept_half = T.alloc_fragment((block_V, chunk), dtype)
            out = T.alloc_fragment((block_V, chunk), "float32")

            T.clear(state)
            for c in T.Pipelined(chunks, num_stages=num_stages):
                T.copy(K[b, c * chunk : (c + 1) * chunk, h, :], K_tile)
                T.copy(inverses[b, h, c, :, :], inverse_tile)
                T.copy(V[b, c * chunk : (c + 1) * chunk, h, bv * block_V : (bv + 1) * block_V], V_tile)
                T.copy(Q[b, c * chunk : (c + 1) * chunk, h, :], Q_tile)
                T.copy(scores[b, h, c, :, :], score_tile)
                T.copy(gates[b, h, c, :], gate)
                end = gates[b, h, c, chunk - 1]

                T.copy(state, state_half)
                T.gemm(state_half, K_tile, known, transpose_B=True, clear_accum=True)
                for v, t in T.Parallel(block_V, chunk):
                    known_half[v, t] = -known[v, t] * T.exp2(gate[t])
                T.gemm(V_tile, inverse_tile, update, transpose_A=True, transpose_B=True, clear_accum=True)
                T.gemm(known_half, inverse_tile, update, transpose_B=True)

                T.gemm(state_half, Q_tile, out, transpose_B=True, clear_accum=True)
                for v, t in T.Parallel(block_V, chunk):
                    out[v, t] *= T.exp2(gate[t]) * dim**-0.5
                T.copy(update, update_half)
                T.gemm(update_half, score_tile, out, transpose_B=True)

                for v, t in T.Parallel(block_V, chunk):
                    kept_half[v, t] = update[v, t] * T.exp2(end - gate[t])
                for v, d in T.Parallel(block_V, dim):
                    state[v, d] *= T.exp2(end)
                T.gemm(kept_half, K_tile, state)
                for v, t in T.Parallel(block_V, chunk):
                    O[b, c * chunk + t, h, bv * block_V + v] = out[v, t]

    return gated_delta_net


def reference(q, k, v, g, beta):
    """Token by token. O, of the type of the arguments, which is that of the state."""
    batch, length, heads, dim = q.shape
    state = q.new_zeros(batch, heads, dim, v.shape[-1])
    out = torch.empty_like(v)
    for t in range(length):
        state = state * g[:, t, :, None, None].exp()
        known = torch.einsum("bhd,bhdv->bhv", k[:, t], state)
        state = state + torch.einsum("bhd,bhv->bhdv", k[:, t], beta[:, t, :, None] * (v[:, t] - known))
        out[:, t] = torch.einsum("bhd,bhdv->bhv", q[:, t], state) * dim**-0.5
    return out


def inputs(batch, heads, length, dim, value_dim, device):
    """Random q and k of length 1, v, gates between exp(-1) and 1, and beta between 0 and 1."""
    q, k = (F.normalize(torch.randn(batch, length, heads, dim, device=device), dim=-1).bfloat16() for _ in range(2))
    v = torch.randn(batch, length, heads, value_dim, dtype=torch.bfloat16, device=device)
    g, beta = (torch.rand(batch, length, heads, device=device) for _ in range(2))
    return q, k, v, -(g**4), beta


def main(*, batch=2, heads=32, length=4096, dim=128, value_dim=128, chunk=64):
    kernel = gated_delta_net(batch, heads, length, dim, value_dim, chunk)
    torch.manual_seed(0)
    arguments = inputs(batch, heads, length, dim, value_dim, DEVICE)

    expected = reference(*(each.double() for each in arguments))
    error = rms_error(kernel(*arguments), expected, rms=2**-7, largest=2**-3)
    print_speed(
        f"gated delta net, batch {batch}, {heads} heads, length {length}",
        lambda: kernel(*arguments),
        lambda: reference(*(each.float() for each in arguments)),
        bytes_moved=2 * batch * length * heads * 2 * (dim + value_dim),
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
