"""Softmax, layer norm, RMS norm and X * Y + row in Triton by hand, tuned by their own tuner: yardsticks.

A program holds ROWS whole rows in registers, padded to a power of two; the elementwise one a flat block.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from benchmarks.handwritten.variants import Variant, by_hand
from benchmarks.row import Candidate


@triton.jit
def _tile(M, N, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    return rows.to(tl.int64)[:, None] * N + columns[None, :], (rows < M)[:, None] & (columns < N)[None, :], columns


@triton.jit
def softmax_kernel(X, Y, M, N, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    place, inside, _ = _tile(M, N, ROWS, WIDTH)
    x = tl.load(X + place, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.math.exp2((x - tl.max(x, 1)[:, None]) * 1.4426950408889634)
    tl.store(Y + place, (x / tl.sum(x, 1)[:, None]).to(Y.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_kernel(X, weight, bias, Y, M, N, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    place, inside, columns = _tile(M, N, ROWS, WIDTH)
    x = tl.load(X + place, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(inside, x - (tl.sum(x, 1) / N)[:, None], 0.0)
    deviation = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
    w = tl.load(weight + columns, mask=columns < N, other=0.0).to(tl.float32)
    b = tl.load(bias + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(Y + place, (x * deviation[:, None] * w[None, :] + b[None, :]).to(Y.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_kernel(X, weight, Y, M, N, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    place, inside, columns = _tile(M, N, ROWS, WIDTH)
    x = tl.load(X + place, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + columns, mask=columns < N, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
    tl.store(Y + place, (x * scale[:, None] * w[None, :]).to(Y.dtype.element_ty), mask=inside)


@triton.jit
def multiply_add_kernel(X, Y, row, out, N, size, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    x = tl.load(X + place, mask=inside).to(tl.float32)
    y = tl.load(Y + place, mask=inside).to(tl.float32)
    r = tl.load(row + place % N, mask=inside).to(tl.float32)
    tl.store(out + place, (x * y + r).to(out.dtype.element_ty), mask=inside)


_ROWS = [triton.Config({"ROWS": rows}, num_warps=warps) for rows in (1, 2, 4) for warps in (4, 8, 16)]
_FLAT = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (1024, 2048, 4096, 8192) for warps in (4, 8)]


def _on_rows(name: str, kernel: Any, *more: Any) -> Candidate:
    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        M, N = inputs[0].shape
        grid = lambda meta: (triton.cdiv(M, meta["ROWS"]),)  # noqa: E731
        tuned[grid](*inputs, outputs[0], M, N, *more, WIDTH=triton.next_power_of_2(N))

    return by_hand([Variant(name, kernel, _ROWS, ["M", "N"], launch)])


def softmax_by_hand() -> Candidate:
    """Softmax along the rows of X."""
    return _on_rows("softmax", softmax_kernel)


def layer_norm_by_hand(eps: float) -> Candidate:
    """Layer norm of the rows of X with weight and bias."""
    return _on_rows("layer norm", layer_norm_kernel, eps)


def rms_norm_by_hand(eps: float) -> Candidate:
    """RMS norm of the rows of X with a weight."""
    return _on_rows("rms norm", rms_norm_kernel, eps)


def multiply_add_by_hand() -> Candidate:
    """X * Y + row."""

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        x, y, row = inputs
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
        tuned[grid](x, y, row, outputs[0], x.shape[1], x.numel())

    return by_hand([Variant("flat", multiply_add_kernel, _FLAT, ["N", "size"], launch)])
