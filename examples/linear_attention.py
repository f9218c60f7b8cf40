"""Linear attention with a gate for each token and head, forward: retention, and the scan of Mamba-2, are of this form.

Each head has a state S of dim x value_dim, zero in the beginning. For each token t:
    S = exp(G[t]) S + k[t] v[t]^T;  O[t] = scale S^T q[t]
With G[t] = log(gamma[h]) this is retention; with q = C, k = B, v = dt x, G = dt A and scale = 1 it is Mamba-2's scan
(Dao and Gu, 2024, "Transformers are SSMs"), where heads share B and C: `groups` of them have their own q and k. Tokens
are taken in chunks: with g the sum of G from the chunk's first token on, two products are added up,
    O = diag(exp(g)) Q S + (Q K^T * exp(g[t] - g[s]) for s <= t) V,
with S the state before the chunk. A block walks through the chunks of a head, or of a part of its values, with the
state in registers.
"""

from __future__ import annotations

import math

import torch
from _check_and_time import DEVICE, largest_error, print_speed, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"batch": 1, "heads": 2, "groups": 1, "length": 100, "dim": 32, "value_dim": 48, "chunk": 32}


@tiledsl.jit(out_idx=[-1])
def linear_attention(
    batch, heads, groups, length, dim, value_dim, scale=None, chunk=64, block_V=64, num_stages=2, threads=128,
    dtype="bfloat16",
):  # fmt: skip
    scale = dim**-0.5 if scale is None else scale

    @T.prim_func
    def linear_attention(
        Q: T.Tensor((batch, length, groups, dim), dtype),
        K: T.Tensor((batch, length, groups, dim), dtype),
        V: T.Tensor((batch, length, heads, value_dim), dtype),
        G: T.Tensor((batch, length, heads), "float32"),
        O: T.Tensor((batch, length, heads, value_dim), dtype),
    ):
        with T.Kernel(T.ceildiv(value_dim, block_V), heads, batch, threads=threads) as (bv, h, b):
            Q_tile = T.alloc_shared((chunk, dim), dtype)
            K_tile = T.alloc_shared((chunk, dim), dtype)
            V_tile = T.alloc_shared((chunk, block_V), dtype)
            V_kept = T.alloc_shared((chunk, block_V), dtype)
            gate = T.alloc_fragment((chunk,), "float32")
            end = T.alloc_fragment((1,), "float32")
            scores = T.alloc_fragment((chunk, chunk), "float32")
            weights = T.alloc_fragment((chunk, chunk), dtype)
            state = T.alloc_fragment((dim, block_V), "float32")
            state_half = T.alloc_shared((dim, block_V), dtype)
            out = T.alloc_fragment((chunk, block_V), "float32")

            group = h // (heads // groups)
            T.clear(state)
            for c in T.Pipelined(T.ceildiv(length, chunk), num_stages=num_stages):
                T.copy(Q[b, c * chunk : (c + 1) * chunk, group, :], Q_tile)
                T.copy(K[b, c * chunk : (c + 1) * chunk, group, :], K_tile)
                T.copy(V[b, c * chunk : (c + 1) * chunk, h, bv * block_V : (bv + 1) * block_V], V_tile)
                for t in T.Parallel(chunk):
                    gate[t] = G[b, c * chunk + t, h] * math.log2(math.e)
                T.reduce_sum(gate, end)
                T.cumsum(gate)

                T.gemm(Q_tile, K_tile, scores, transpose_B=True, clear_accum=True)
                for t, s in T.Parallel(chunk, chunk):
                    weights[t, s] = T.if_then_else(t >= s, scores[t, s] * T.exp2(gate[t] - gate[s]), 0.0)
                T.copy(state, state_half)
                T.gemm(Q_tile, state_half, out, clear_accum=True)
                for t, v in T.Parallel(chunk, block_V):
                    out[t, v] *= T.exp2(gate[t])
                T.gemm(weights, V_tile, out)

                for t, v in T.Parallel(chunk, block_V):
                    V_kept[t, v] = V_tile[t, v] * T.exp2(end[0] - gate[t])
                for d, v in T.Parallel(dim, block_V):
                    state[d, v] *= T.exp2(end[0])
                T.gemm(K_tile, V_kept, state, transpose_A=True)
                for t, v in T.Parallel(chunk, block_V):
                    O[b, c * chunk + t, h, bv * block_V + v] = out[t, v] * scale

    return linear_attention


def reference(q, k, v, g, scale=None):
    """Token by token. O, of the type of the arguments, which is that of the state."""
    batch, length, heads, value_dim = v.shape
    dim = q.shape[-1]
    q, k = (each.repeat_interleave(heads // each.shape[2], dim=2) for each in (q, k))
    state, out = q.new_zeros(batch, heads, dim, value_dim), torch.empty_like(v)
    for t in range(length):
        state = state * g[:, t, :, None, None].exp() + k[:, t, :, :, None] * v[:, t, :, None, :]
        out[:, t] = torch.einsum("bhd,bhdv->bhv", q[:, t], state)
    return out * (dim**-0.5 if scale is None else scale)


def inputs(batch, heads, groups, length, dim, value_dim, device):
    """Random q, k and v, and gates between exp(-1) and 1."""
    q, k = (torch.randn(batch, length, groups, dim, dtype=torch.bfloat16, device=device) for _ in range(2))
    v = torch.randn(batch, length, heads, value_dim, dtype=torch.bfloat16, device=device)
    return q, k, v, -(torch.rand(batch, length, heads, device=device) ** 4)


def main(*, batch=2, heads=32, groups=32, length=4096, dim=128, value_dim=128, chunk=64):
    kernel = linear_attention(batch, heads, groups, length, dim, value_dim, chunk=chunk)
    torch.manual_seed(0)
    arguments = inputs(batch, heads, groups, length, dim, value_dim, DEVICE)

    expected = reference(*(each.double() for each in arguments))
    size = expected.std()
    error = largest_error(kernel(*arguments) / size, expected / size, rtol=2e-2, atol=2e-2)
    print_speed(
        f"linear attention, batch {batch}, {heads} heads, length {length}",
        lambda: kernel(*arguments),
        lambda: reference(*(each.float() for each in arguments)),
        bytes_moved=2 * batch * length * 2 * (groups * dim + heads * value_dim),
    )
    return error


if __name__ == "__main__":
    run_script(main, SMALL)
