"""A small language model whose norm, attention and SwiGLU are tiledsl's: it is trained, compiled by torch, and serves.

The three are operators of torch, and kernels compute their gradients, too: each takes the inputs, the output and its
gradient. The model learns to continue the digits 0 1 2 ... 7 0 1 ..., from any digit on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from _check_and_time import DEVICE, run_script

import tiledsl
import tiledsl.language as T

SMALL = {"steps": 30, "batch": 2}
DIGITS, WIDTH, LENGTH = 8, 16, 16


@tiledsl.jit
def rms_norm(X, block=16):
    rows = T.const("rows")
    X: T.Tensor((rows, WIDTH), "float32")
    Y = T.empty((rows, WIDTH), "float32")
    with T.Kernel(T.ceildiv(rows, block), threads=128) as b:
        x = T.alloc_fragment((block, WIDTH), "float32")
        squares = T.alloc_fragment((block, WIDTH), "float32")
        total = T.alloc_fragment((block,), "float32")
        T.copy(X[b * block, 0], x)
        for i, j in T.Parallel(block, WIDTH):
            squares[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(squares, total, dim=1)
        for i, j in T.Parallel(block, WIDTH):
            x[i, j] *= T.rsqrt(total[i] / WIDTH + 1e-6)
        T.copy(x, Y[b * block, 0])
    return Y


@tiledsl.jit
def rms_norm_gradient(X, Y, dY, block=16):
    """With y = x r: dx = r (dy - y mean(dy y))."""
    rows = T.const("rows")
    X: T.Tensor((rows, WIDTH), "float32")
    Y: T.Tensor((rows, WIDTH), "float32")
    dY: T.Tensor((rows, WIDTH), "float32")
    dX = T.empty((rows, WIDTH), "float32")
    with T.Kernel(T.ceildiv(rows, block), threads=128) as b:
        x = T.alloc_fragment((block, WIDTH), "float32")
        y = T.alloc_fragment((block, WIDTH), "float32")
        dy = T.alloc_fragment((block, WIDTH), "float32")
        products = T.alloc_fragment((block, WIDTH), "float32")
        squares = T.alloc_fragment((block,), "float32")
        shared = T.alloc_fragment((block,), "float32")
        T.copy(X[b * block, 0], x)
        T.copy(Y[b * block, 0], y)
        T.copy(dY[b * block, 0], dy)
        for i, j in T.Parallel(block, WIDTH):
            products[i, j] = dy[i, j] * y[i, j]
        T.reduce_sum(products, shared, dim=1)
        for i, j in T.Parallel(block, WIDTH):
            products[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(products, squares, dim=1)
        for i, j in T.Parallel(block, WIDTH):
            x[i, j] = (dy[i, j] - y[i, j] * shared[i] / WIDTH) * T.rsqrt(squares[i] / WIDTH + 1e-6)
        T.copy(x, dX[b * block, 0])
    return dX


@T.macro
def causal_softmax(q, k, scores):
    """scores = softmax(q k^T / sqrt(WIDTH)), where a row sees no later one."""
    highest = T.alloc_fragment((LENGTH,), "float32")
    total = T.alloc_fragment((LENGTH,), "float32")
    T.clear(scores)
    T.gemm(q, k, scores, transpose_B=True)
    for i, j in T.Parallel(LENGTH, LENGTH):
        scores[i, j] = T.if_then_else(j <= i, scores[i, j] * WIDTH**-0.5, -1e30)
    T.reduce_max(scores, highest, dim=1)
    for i, j in T.Parallel(LENGTH, LENGTH):
        scores[i, j] = T.exp(scores[i, j] - highest[i])
    T.reduce_sum(scores, total, dim=1)
    for i, j in T.Parallel(LENGTH, LENGTH):
        scores[i, j] = scores[i, j] / total[i]


@tiledsl.jit
def attention(Q, K, V):
    """Causal, for sequences of LENGTH that fit on the chip."""
    batch = T.const("batch")
    Q: T.Tensor((batch, LENGTH, WIDTH), "float32")
    K: T.Tensor((batch, LENGTH, WIDTH), "float32")
    V: T.Tensor((batch, LENGTH, WIDTH), "float32")
    O = T.empty((batch, LENGTH, WIDTH), "float32")
    with T.Kernel(batch, threads=128) as b:
        q = T.alloc_shared((LENGTH, WIDTH), "float32")
        k = T.alloc_shared((LENGTH, WIDTH), "float32")
        v = T.alloc_shared((LENGTH, WIDTH), "float32")
        scores = T.alloc_fragment((LENGTH, LENGTH), "float32")
        out = T.alloc_fragment((LENGTH, WIDTH), "float32")
        T.copy(Q[b, 0, 0], q)
        T.copy(K[b, 0, 0], k)
        T.copy(V[b, 0, 0], v)
        causal_softmax(q, k, scores)
        T.clear(out)
        T.gemm(scores, v, out)
        T.copy(out, O[b, 0, 0])
    return O


@tiledsl.jit
def attention_gradient(Q, K, V, O, dO):
    """With P the softmax and D = rowsum(dO O): dV = P^T dO, dS = P (dO V^T - D) / sqrt(WIDTH), dQ = dS K, dK = dS^T Q.

    P is computed again; see attention_backward.py for sequences that do not fit on the chip.
    """
    batch = T.const("batch")
    Q: T.Tensor((batch, LENGTH, WIDTH), "float32")
    K: T.Tensor((batch, LENGTH, WIDTH), "float32")
    V: T.Tensor((batch, LENGTH, WIDTH), "float32")
    O: T.Tensor((batch, LENGTH, WIDTH), "float32")
    dO: T.Tensor((batch, LENGTH, WIDTH), "float32")
    dQ = T.empty((batch, LENGTH, WIDTH), "float32")
    dK = T.empty((batch, LENGTH, WIDTH), "float32")
    dV = T.empty((batch, LENGTH, WIDTH), "float32")
    with T.Kernel(batch, threads=128) as b:
        q = T.alloc_shared((LENGTH, WIDTH), "float32")
        k = T.alloc_shared((LENGTH, WIDTH), "float32")
        v = T.alloc_shared((LENGTH, WIDTH), "float32")
        do = T.alloc_shared((LENGTH, WIDTH), "float32")
        o = T.alloc_fragment((LENGTH, WIDTH), "float32")
        d = T.alloc_fragment((LENGTH,), "float32")
        p = T.alloc_fragment((LENGTH, LENGTH), "float32")
        ds = T.alloc_fragment((LENGTH, LENGTH), "float32")
        out = T.alloc_fragment((LENGTH, WIDTH), "float32")
        T.copy(Q[b, 0, 0], q)
        T.copy(K[b, 0, 0], k)
        T.copy(V[b, 0, 0], v)
        T.copy(O[b, 0, 0], o)
        T.copy(dO[b, 0, 0], do)
        for i, j in T.Parallel(LENGTH, WIDTH):
            o[i, j] *= do[i, j]
        T.reduce_sum(o, d, dim=1)
        causal_softmax(q, k, p)
        T.gemm(p, do, out, transpose_A=True, clear_accum=True)
        T.copy(out, dV[b, 0, 0])
        T.gemm(do, v, ds, transpose_B=True, clear_accum=True)
        for i, j in T.Parallel(LENGTH, LENGTH):
            ds[i, j] = p[i, j] * (ds[i, j] - d[i]) * WIDTH**-0.5
        T.gemm(ds, k, out, clear_accum=True)
        T.copy(out, dQ[b, 0, 0])
        T.gemm(ds, q, out, transpose_A=True, clear_accum=True)
        T.copy(out, dK[b, 0, 0])
    return dQ, dK, dV


@tiledsl.jit
def swiglu(gate, up, block=16):
    rows = T.const("rows")
    gate: T.Tensor((rows, WIDTH), "float32")
    up: T.Tensor((rows, WIDTH), "float32")
    out = T.empty((rows, WIDTH), "float32")
    with T.Kernel(T.ceildiv(rows, block), threads=128) as b:
        for i, j in T.Parallel(block, WIDTH):
            g = gate[b * block + i, j]
            out[b * block + i, j] = g / (1 + T.exp(-g)) * up[b * block + i, j]
    return out


@tiledsl.jit
def swiglu_gradient(gate, up, out, dOut, block=16):
    rows = T.const("rows")
    gate: T.Tensor((rows, WIDTH), "float32")
    up: T.Tensor((rows, WIDTH), "float32")
    out: T.Tensor((rows, WIDTH), "float32")
    dOut: T.Tensor((rows, WIDTH), "float32")
    dGate = T.empty((rows, WIDTH), "float32")
    dUp = T.empty((rows, WIDTH), "float32")
    with T.Kernel(T.ceildiv(rows, block), threads=128) as b:
        for i, j in T.Parallel(block, WIDTH):
            row = b * block + i
            g = gate[row, j]
            sigmoid = 1 / (1 + T.exp(-g))
            dUp[row, j] = dOut[row, j] * g * sigmoid
            dGate[row, j] = dOut[row, j] * up[row, j] * sigmoid * (1 + g * (1 - sigmoid))
    return dGate, dUp


rms_norm.register_backward(rms_norm_gradient)
attention.register_backward(attention_gradient)
swiglu.register_backward(swiglu_gradient)

# What torch makes of the same, to compare with.
REFERENCES = {
    rms_norm: lambda x: F.rms_norm(x, (WIDTH,), eps=1e-6),
    attention: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    swiglu: lambda gate, up: F.silu(gate) * up,
}


class Model(torch.nn.Module):
    """One layer, between an embedding with positions and the digits' scores."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(DIGITS, WIDTH)
        self.positions = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.gate_up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(WIDTH, WIDTH)
        self.scores = torch.nn.Linear(WIDTH, DIGITS)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions
        normed = rms_norm(x.flatten(0, 1)).view_as(x)
        q, k, v = (each.contiguous() for each in self.qkv(normed).chunk(3, -1))
        x = x + attention(q, k, v)
        gate, up = (each.contiguous() for each in self.gate_up(rms_norm(x.flatten(0, 1))).chunk(2, -1))
        x = x + self.down(swiglu(gate, up)).view_as(x)
        return self.scores(rms_norm(x.flatten(0, 1)).view_as(x))


def sequences(batch):
    """Digits that count on from a random one, and those that follow."""
    start = torch.randint(DIGITS, (batch, 1), device=DEVICE)
    digits = (start + torch.arange(LENGTH + 1, device=DEVICE)) % DIGITS
    return digits[:, :-1], digits[:, 1:]


def main(*, steps=60, batch=8):
    torch.manual_seed(0)
    for function, shapes in (
        (rms_norm, [(40, WIDTH)]),
        (attention, [(3, LENGTH, WIDTH)] * 3),
        (swiglu, [(40, WIDTH)] * 2),
    ):
        given = [torch.randn(shape, device=DEVICE, requires_grad=True) for shape in shapes]
        ours, wanted = function(*given), REFERENCES[function](*given)
        torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-2)
        gradient = torch.randn_like(wanted)
        ours, wanted = (torch.autograd.grad(each, given, gradient) for each in (ours, wanted))
        torch.testing.assert_close(ours, wanted, rtol=1e-2, atol=1e-2)

    model = Model().to(DEVICE)
    trained = torch.compile(model, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(steps):
        tokens, following = sequences(batch)
        loss = F.cross_entropy(trained(tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"trained {steps} steps: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    assert losses[-1] < losses[0] / 4

    with torch.no_grad():
        served = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
        for size in (1, 5):
            tokens, following = sequences(size)
            right = (served(tokens).argmax(-1) == following).float().mean().item()
            print(f"served {size} sequences: {right:.0%} of the digits right")
            assert right > 0.9


if __name__ == "__main__":
    run_script(main, SMALL)
