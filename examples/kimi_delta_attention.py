"""Kimi delta attention (KDA), forward: the gated delta rule with a gate for each channel of a key.

Each head has a state S of dim x value_dim, zero in the beginning. For each token t:
    S = diag(exp(G[t])) S;  S += beta[t] k[t] (v[t] - S^T k[t])^T;  O[t] = dim^-0.5 S^T q[t]
(Kimi Team, 2025, "Kimi Linear"). Keys are expected to have length 1 at most, G <= 0 and 0 <= beta <= 1. Tokens are
taken in chunks. With g the sum of G from the chunk's first token on, S the state before the chunk, and
A[t, s] = beta[t] (sum over d of k[t, d] k[s, d] exp(g[t, d] - g[s, d])) for s < t, what the tokens of a chunk write is
    U = M V - W S,  M = (1 + A)^-1 diag(beta),  W = M (K * exp(g)).
The first launch computes M, W and what else is made of Q and K, of all chunks at once: A by halves, as in
gated_linear_attention.py, and its inverse as in gated_delta_net.py. The second walks through the chunks, with the state
in registers, transposed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, print_speed, rms_error, run_script
from gated_delta_net import invert
from gated_linear_attention import load_gates, score_chunk, sum_gates

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 2, "length": 100, "dim": 32, "value_dim": 48, "chunk": 32}


@tiledsl.jit(out_idx=[-1])
def kimi_delta_attention(
    batch, heads, length, dim, value_dim,
    chunk=64, block_D=128, block_V=128, num_stages=2, threads=256, dtype="bfloat16",
):  # fmt: skip
    chunks = -(-length // chunk)
    keys, values = (batch, length, heads, dim), (batch, length, heads, value_dim)

    @T.prim_func
    def kimi_delta_attention(
        Q: T.Tensor(keys, dtype),
        K: T.Tensor(keys, dtype),
        V: T.Tensor(values, dtype),
        G: T.Tensor(keys, "float32"),
        beta: T.Tensor((batch, length, heads), "float32"),
        O: T.Tensor(values, dtype),
    ):
        scores = T.alloc_global((batch, heads, chunks, chunk, chunk), dtype)
        inverses = T.alloc_global((batch, heads, chunks, chunk, chunk), dtype)
        queries = T.alloc_global((batch, heads, chunks, chunk, dim), dtype)
        known = T.alloc_global((batch, heads, chunks, chunk, dim), dtype)
        kept = T.alloc_global((batch, heads, chunks, chunk, dim), dtype)
        decays = T.alloc_global((batch, heads, chunks, dim), "float32")

        with T.Kernel(chunks, heads, batch, threads=128) as (c, h, b):
            strength = T.alloc_fragment((chunk,), "float32")
            score = T.alloc_fragment((chunk, chunk), "float32")
            similar = T.alloc_fragment((chunk, chunk), "float32")
            inverse = T.alloc_fragment((chunk, chunk), "float32")
            inverse_half = T.alloc_shared((chunk, chunk), dtype)
            K_tile = T.alloc_shared((chunk, block_D), dtype)
            gates = T.alloc_shared((chunk, block_D), "float16")
            sums = T.alloc_fragment((chunk, block_D), "float32")
            end = T.alloc_fragment((block_D,), "float32")
            known_tile = T.alloc_fragment((chunk, block_D), "float32")

            score_chunk(Q, K, G, b, c, h, block_D, queries, kept, decays, score, similar)
            T.copy(score, scores[b, h, c, :, :])
            for t in T.Parallel(chunk):
                strength[t] = beta[b, c * chunk + t, h]
            for t, s in T.Parallel(chunk, chunk):
                similar[t, s] *= strength[t]
            invert(similar, chunk, inverse)
            for t, s in T.Parallel(chunk, chunk):
                inverse[t, s] *= strength[s]
            T.copy(inverse, inverse_half)
            T.copy(inverse_half, inverses[b, h, c, :, :])
            for piece in T.serial(T.ceildiv(dim, block_D)):
                T.copy(K[b, c * chunk : (c + 1) * chunk, h, piece * block_D : (piece + 1) * block_D], K_tile)
                load_gates(G, b, c, h, piece, gates)
                T.reduce_sum(gates, end, dim=0)
                sum_gates(gates, chunk.bit_length() - 1, sums)
                for t, d in T.Parallel(chunk, block_D):
                    K_tile[t, d] = -K_tile[t, d] * T.exp2(end[d] - sums[t, d])
                T.gemm(inverse_half, K_tile, known_tile, clear_accum=True)
                T.copy(known_tile, known[b, h, c, :, piece * block_D : (piece + 1) * block_D])

        with T.Kernel(T.ceildiv(value_dim, block_V), heads, batch, threads=threads) as (bv, h, b):
            Q_tile = T.alloc_shared((chunk, dim), dtype)
            K_tile = T.alloc_shared((chunk, dim), dtype)
            known_tile = T.alloc_shared((chunk, dim), dtype)
            V_tile = T.alloc_shared((chunk, block_V), dtype)
            inverse_tile = T.alloc_shared((chunk, chunk), dtype)
            score_tile = T.alloc_shared((chunk, chunk), dtype)
            decay = T.alloc_fragment((dim,), "float32")
            state = T.alloc_fragment((block_V, dim), "float32")
            state_half = T.alloc_fragment((block_V, dim), dtype)
            update = T.alloc_fragment((block_V, chunk), "float32")
            update_half = T.alloc_fragment((block_V, chunk), dtype)
            out = T.alloc_fragment((block_V, chunk), "float32")

            T.clear(state)
            for c in T.Pipelined(chunks, num_stages=num_stages):
                T.copy(V[b, c * chunk : (c + 1) * chunk, h, bv * block_V : (bv + 1) * block_V], V_tile)
                T.copy(inverses[b, h, c, :, :], inverse_tile)
                T.copy(known[b, h, c, :, :], known_tile)
                T.copy(queries[b, h, c, :, :], Q_tile)
                T.copy(scores[b, h, c, :, :], score_tile)
                T.copy(kept[b, h, c, :, :], K_tile)
                T.copy(decays[b, h, c, :], decay)

                T.copy(state, state_half)
                T.gemm(V_tile, inverse_tile, update, transpose_A=True, transpose_B=True, clear_accum=True)
                T.gemm(state_half, known_tile, update, transpose_B=True)
                T.gemm(state_half, Q_tile, out, transpose_B=True, clear_accum=True)
                T.copy(update, update_half)
                T.gemm(update_half, score_tile, out, transpose_B=True)
                for v, d in T.Parallel(block_V, dim):
                    state[v, d] *= decay[d]
                T.gemm(update_half, K_tile, state)
                for v, t in T.Parallel(block_V, chunk):
                    O[b, c * chunk + t, h, bv * block_V + v] = out[v, t] * dim**-0.5

    return kimi_delta_attention


def reference(q, k, v, g, beta):
    """Token by token. O, of the type of the arguments, which is that of the state."""
    batch, length, heads, dim = q.shape
    state = q.new_zeros(batch, heads, dim, v.shape[-1])
    out = torch.empty_like(v)
    for t in range(length):
        state = state * g[:, t, :, :, None].exp()
        known = torch.einsum("bhd,bhdv->bhv", k[:, t], state)
        state = state + torch.einsum("bhd,bhv->bhdv", k[:, t], beta[:, t, :, None] * (v[:, t] - known))
        out[:, t] = torch.einsum("bhd,bhdv->bhv", q[:, t], state) * dim**-0.5
    return out


def inputs(batch, heads, length, dim, value_dim, device):
    """Random q and k of length 1, v, beta between 0 and 1, and gates: most keep all, and some forget all."""
    q, k = (F.normalize(torch.randn(batch, length, heads, dim, device=device), dim=-1).bfloat16() for _ in range(2))
    v = torch.randn(batch, length, heads, value_dim, dtype=torch.bfloat16, device=device)
    g = -64 * torch.rand(batch, length, heads, dim, device=device) ** 256
    return q, k, v, g, torch.rand(batch, length, heads, device=device)


def main(*, batch=2, heads=32, length=4096, dim=128, value_dim=128, chunk=64):
    kernel = kimi_delta_attention(batch, heads, length, dim, value_dim, chunk)
    torch.manual_seed(0)
    arguments = inputs(batch, heads, length, dim, value_dim, DEVICE)

    expected = reference(*(each.double() for each in arguments))
    error = rms_error(kernel(*arguments), expected, rms=2**-7, largest=2**-3)
    print_speed(
        f"Kimi delta attention, batch {batch}, {heads} heads, length {length}",
        lambda: kernel(*arguments),
        lambda: reference(*(each.float() for each in arguments)),
        bytes_moved=2 * batch * length * heads * (4 * dim + 2 * value_dim),
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
