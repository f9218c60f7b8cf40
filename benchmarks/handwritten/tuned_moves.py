"""Quantisation, RoPE, SwiGLU, hyper-connections and transposes in Triton by hand, tuned by their own tuner."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from benchmarks.handwritten.variants import Variant, by_hand
from benchmarks.row import Candidate


@triton.jit
def quantise_kernel(X, Y, scales, M, N, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    place = rows.to(tl.int64)[:, None] * N + columns[None, :]
    x = tl.load(X + place, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), 1), 1e-4) / 448.0
    x = tl.clamp(x * (1.0 / scale)[:, None], -448.0, 448.0)
    tl.store(Y + place, x.to(Y.dtype.element_ty), mask=inside)
    tl.store(scales + rows, scale, mask=rows < M)


@triton.jit
def rope_kernel(X, cos, sin, Y, heads, length, positions, HALF: tl.constexpr, ROWS: tl.constexpr):
    """ROWS rows, each of one head of one position."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, HALF)
    inside = (rows < positions * heads)[:, None]
    place = rows[:, None] * (2 * HALF) + columns[None, :]
    angle = (rows // heads % length)[:, None] * HALF + columns[None, :]
    c, d = tl.load(cos + angle, mask=inside, other=0.0), tl.load(sin + angle, mask=inside, other=0.0)
    low = tl.load(X + place, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(X + place + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(Y + place, (low * c - high * d).to(Y.dtype.element_ty), mask=inside)
    tl.store(Y + place + HALF, (high * c + low * d).to(Y.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_kernel(X, Y, N, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    gate = tl.load(X + row * 2 * N + columns, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(X + row * 2 * N + N + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(Y + row * N + columns, (gate * tl.sigmoid(gate) * value).to(Y.dtype.element_ty), mask=inside)


@triton.jit
def swiglu_gradient_kernel(X, dY, dX, N, BLOCK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    gate = tl.load(X + row * 2 * N + columns, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(X + row * 2 * N + N + columns, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(dY + row * N + columns, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    dgate = dy * value * share * (1 + gate * (1 - share))
    tl.store(dX + row * 2 * N + columns, dgate.to(dX.dtype.element_ty), mask=inside)
    tl.store(dX + row * 2 * N + N + columns, (dy * gate * share).to(dX.dtype.element_ty), mask=inside)


@triton.jit
def mhc_post_kernel(X, residual, mix, comb, Y, N, STREAMS: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    streams = tl.arange(0, STREAMS)
    x = tl.load(X + token * N + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(mix + token * STREAMS + streams)[:, None] * x[None, :]
    for i in tl.static_range(STREAMS):
        each = tl.load(residual + (token * STREAMS + i) * N + columns, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(comb + (token * STREAMS + i) * STREAMS + streams)[:, None] * each[None, :]
    place = (token * STREAMS + streams)[:, None] * N + columns[None, :]
    tl.store(Y + place, total.to(Y.dtype.element_ty), mask=inside[None, :])


@triton.jit
def heads_first_kernel(X, Y, length, heads, total, DIM: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, DIM)
    inside = (rows < total)[:, None]
    batch, head, position = rows // (length * heads), rows // length % heads, rows % length
    source = ((batch * length + position) * heads + head)[:, None] * DIM + columns[None, :]
    tl.store(Y + rows[:, None] * DIM + columns[None, :], tl.load(X + source, mask=inside), mask=inside)


@triton.jit
def transpose_kernel(X, Y, M, N, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    rows = tl.program_id(1) * HEIGHT + tl.arange(0, HEIGHT)
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    x = tl.load(X + rows.to(tl.int64)[:, None] * N + columns[None, :], mask=inside)
    tl.store(Y + columns.to(tl.int64)[:, None] * M + rows[None, :], tl.trans(x), mask=tl.trans(inside))


def _each(name: str, *values: int, warps: tuple[int, ...] = (4, 8)) -> list[Any]:
    return [triton.Config({name: value}, num_warps=each) for value in values for each in warps]


def quantise_by_hand(N: int) -> Candidate:
    """Rows to float8, a scale each."""

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        M = inputs[0].shape[0]
        grid = lambda meta: (triton.cdiv(M, meta["ROWS"]),)  # noqa: E731
        tuned[grid](inputs[0], *outputs, M, N, WIDTH=triton.next_power_of_2(N))

    rows = (1, 2) if N > 1024 else (16, 32, 64)
    return by_hand([Variant("rows", quantise_kernel, _each("ROWS", *rows), ["M", "N"], launch)])


def rope_by_hand() -> Candidate:
    """X[batch, length, heads, dim] with cosines and sines."""

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        batch, length, heads, dim = inputs[0].shape
        grid = lambda meta: (triton.cdiv(batch * length * heads, meta["ROWS"]),)  # noqa: E731
        tuned[grid](*inputs, outputs[0], heads, length, batch * length, HALF=dim // 2)

    return by_hand([Variant("rows", rope_kernel, _each("ROWS", 16, 32, 64), ["heads", "length"], launch)])


def swiglu_by_hand(gradient: bool) -> Candidate:
    """Gates and values side by side."""
    kernel = swiglu_gradient_kernel if gradient else swiglu_kernel

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        M, N = inputs[0].shape[0], inputs[0].shape[1] // 2
        tuned[lambda meta: (triton.cdiv(N, meta["BLOCK"]), M)](*inputs, outputs[0], N)

    return by_hand([Variant("flat", kernel, _each("BLOCK", 1024, 2048, 4096), ["N"], launch)])


def mhc_post_by_hand() -> Candidate:
    """X, residual, mix and comb as benchmarks/programs/moves.py has them."""

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        tokens, streams, N = inputs[1].shape
        tuned[lambda meta: (triton.cdiv(N, meta["BLOCK"]), tokens)](*inputs, outputs[0], N, STREAMS=streams)

    return by_hand([Variant("flat", mhc_post_kernel, _each("BLOCK", 512, 1024, 2048), ["N"], launch)])


def heads_first_by_hand() -> Candidate:
    """[batch, length, heads, dim] to [batch, heads, length, dim]."""

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        batch, length, heads, dim = inputs[0].shape
        total = batch * length * heads
        grid = lambda meta: (triton.cdiv(total, meta["ROWS"]),)  # noqa: E731
        tuned[grid](inputs[0], outputs[0], length, heads, total, DIM=dim)

    return by_hand([Variant("rows", heads_first_kernel, _each("ROWS", 16, 32, 64), ["length", "heads"], launch)])


def transpose_by_hand() -> Candidate:
    """X.T of a matrix."""

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        M, N = inputs[0].shape
        grid = lambda meta: (triton.cdiv(N, meta["WIDTH"]), triton.cdiv(M, meta["HEIGHT"]))  # noqa: E731
        tuned[grid](inputs[0], outputs[0], M, N)

    configs = [
        triton.Config({"HEIGHT": height, "WIDTH": width}, num_warps=warps)
        for height, width, warps in ((64, 64, 4), (128, 64, 4), (64, 128, 4), (128, 128, 8), (32, 64, 4), (64, 32, 4))
    ]
    return by_hand([Variant("tiles", transpose_kernel, configs, ["M", "N"], launch)])
