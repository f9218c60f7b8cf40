"""Functions with gradients in kernels, and a module that uses them, as users of torch write them; for other processes,
too."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import tiledsl
import tiledsl.language as T


@tiledsl.jit(target="interpret")
def swiglu(gate: Any, up: Any, block: int = 64) -> Any:
    n, m = T.const("n, m")
    gate: T.Tensor((n, m), "float32")
    up: T.Tensor((n, m), "float32")
    out = T.empty((n, m), "float32")
    with T.Kernel(T.ceildiv(n * m, block), threads=128) as b:
        for i in T.Parallel(block):
            at = b * block + i
            if at < n * m:
                g = gate[at // m, at % m]
                out[at // m, at % m] = g / (1 + T.exp(-g)) * up[at // m, at % m]
    return out


@tiledsl.jit(target="interpret")
def swiglu_gradient(gate: Any, up: Any, out: Any, grad: Any, block: int = 64) -> Any:
    n, m = T.const("n, m")
    gate: T.Tensor((n, m), "float32")
    up: T.Tensor((n, m), "float32")
    out: T.Tensor((n, m), "float32")
    grad: T.Tensor((n, m), "float32")
    of_gate = T.empty((n, m), "float32")
    of_up = T.empty((n, m), "float32")
    with T.Kernel(T.ceildiv(n * m, block), threads=128) as b:
        for i in T.Parallel(block):
            at = b * block + i
            if at < n * m:
                row, column = at // m, at % m
                g = gate[row, column]
                sigmoid = 1 / (1 + T.exp(-g))
                of_gate[row, column] = grad[row, column] * up[row, column] * sigmoid * (1 + g * (1 - sigmoid))
                of_up[row, column] = grad[row, column] * g * sigmoid
    return of_gate, of_up


swiglu.register_backward(swiglu_gradient)


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


class Mlp(torch.nn.Module):
    """Two projections, what is between them, and one back. activation: a function of two tensors (rows, width)."""

    def __init__(self, activation: Any, width: int = 8) -> None:
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(width, width) for _ in range(3))
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.activation(self.gate(x), self.up(x)))


class Rows(torch.utils.data.Dataset):
    """Item n: what each of some functions makes of rows of n."""

    def __init__(self, functions: Any) -> None:
        self.functions = list(functions)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> torch.Tensor:
        x = torch.full((3, 8), float(number))
        return torch.stack([each(x, x) for each in self.functions])
