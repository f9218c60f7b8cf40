"""Softmax, norms, cross-entropy and their gradients for rows of any width in Triton by hand, tuned by their own tuner.

A program takes ROWS rows in pieces of BLOCK columns; one piece if the row is no wider. A second pass reads them again,
backwards, since the end of a row is what the caches still have.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.handwritten.variants import Variant, by_hand
from benchmarks.row import Candidate

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _piece(P, start, rows, M, N, BLOCK: tl.constexpr, other: tl.constexpr = 0.0):
    columns = start + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    return tl.load(P + rows.to(tl.int64)[:, None] * N + columns[None, :], mask=inside, other=other).to(tl.float32)


@triton.jit
def _put(P, value, start, rows, M, N, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    tl.store(P + rows.to(tl.int64)[:, None] * N + columns[None, :], value.to(P.dtype.element_ty), mask=inside)


@triton.jit
def _column(P, start, N, BLOCK: tl.constexpr):
    columns = start + tl.arange(0, BLOCK)
    return tl.load(P + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _top_and_total(X, rows, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, N, BLOCK):
        x = _piece(X, start, rows, M, N, BLOCK, float("-inf"))
        new = tl.maximum(top, tl.max(x, 1))
        total = total * tl.exp2((top - new) * _LOG2_E) + tl.sum(tl.exp2((x - new[:, None]) * _LOG2_E), 1)
        top = new
    return top, total


@triton.jit
def softmax_kernel(X, Y, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    top, total = _top_and_total(X, rows, M, N, ROWS, BLOCK)
    scale = 1.0 / total
    for back in range(0, N, BLOCK):
        start = (N - 1) // BLOCK * BLOCK - back
        x = _piece(X, start, rows, M, N, BLOCK, float("-inf"))
        _put(Y, tl.exp2((x - top[:, None]) * _LOG2_E) * scale[:, None], start, rows, M, N, BLOCK)


@triton.jit
def softmax_gradient_kernel(Y, dY, dX, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, N, BLOCK):
        total += tl.sum(_piece(Y, start, rows, M, N, BLOCK) * _piece(dY, start, rows, M, N, BLOCK), 1)
    for back in range(0, N, BLOCK):
        start = (N - 1) // BLOCK * BLOCK - back
        y, dy = _piece(Y, start, rows, M, N, BLOCK), _piece(dY, start, rows, M, N, BLOCK)
        _put(dX, y * (dy - total[:, None]), start, rows, M, N, BLOCK)


@triton.jit
def rms_norm_kernel(X, weight, Y, M, N, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, N, BLOCK):
        x = _piece(X, start, rows, M, N, BLOCK)
        total += tl.sum(x * x, 1)
    scale = tl.rsqrt(total / N + eps)
    for back in range(0, N, BLOCK):
        start = (N - 1) // BLOCK * BLOCK - back
        x = _piece(X, start, rows, M, N, BLOCK)
        _put(Y, x * scale[:, None] * _column(weight, start, N, BLOCK), start, rows, M, N, BLOCK)


@triton.jit
def layer_norm_kernel(X, weight, bias, Y, M, N, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mean = tl.zeros((ROWS,), tl.float32)
    squares = tl.zeros((ROWS,), tl.float32)
    for start in range(0, N, BLOCK):
        x = _piece(X, start, rows, M, N, BLOCK)
        count = tl.minimum(BLOCK, N - start)
        here = tl.sum(x, 1) / count
        off = tl.where((start + tl.arange(0, BLOCK) < N)[None, :], x - here[:, None], 0.0)
        step = here - mean
        squares += tl.sum(off * off, 1) + step * step * (1.0 * start * count / (start + count))
        mean += step * count / (start + count)
    scale = tl.rsqrt(squares / N + eps)
    for back in range(0, N, BLOCK):
        start = (N - 1) // BLOCK * BLOCK - back
        x = (_piece(X, start, rows, M, N, BLOCK) - mean[:, None]) * scale[:, None]
        y = x * _column(weight, start, N, BLOCK) + _column(bias, start, N, BLOCK)
        _put(Y, y, start, rows, M, N, BLOCK)


@triton.jit
def cross_entropy_kernel(X, targets, losses, lse, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    top, total = _top_and_total(X, rows, M, N, ROWS, BLOCK)
    found = top + tl.log(total)
    chosen = tl.load(targets + rows, mask=rows < M, other=0)
    x = tl.load(X + rows.to(tl.int64) * N + chosen, mask=rows < M, other=0.0).to(tl.float32)
    tl.store(losses + rows, found - x, mask=rows < M)
    tl.store(lse + rows, found, mask=rows < M)


@triton.jit
def cross_entropy_gradient_kernel(X, targets, lse, scale, dX, M, N, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(1) * BLOCK
    chosen = tl.load(targets + rows, mask=rows < M, other=0)
    total = tl.load(lse + rows, mask=rows < M, other=0.0)
    factor = tl.load(scale + rows, mask=rows < M, other=0.0)
    share = tl.exp2((_piece(X, start, rows, M, N, BLOCK) - total[:, None]) * _LOG2_E)
    hit = (start + tl.arange(0, BLOCK))[None, :] == chosen[:, None]
    _put(dX, (share - tl.where(hit, 1.0, 0.0)) * factor[:, None], start, rows, M, N, BLOCK)


@triton.jit
def norm_gradient_kernel(
    X, weight, mean, r, dY, dX, partial_weight, partial_bias, M, N,
    CENTRED: tl.constexpr, BLOCKS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Whole rows; each program has its own sums of the gradients of weight and bias."""
    w = _column(weight, 0, N, BLOCK)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for first in range(tl.program_id(0) * ROWS, M, BLOCKS * ROWS):
        rows = first + tl.arange(0, ROWS)
        x, dy = _piece(X, 0, rows, M, N, BLOCK), _piece(dY, 0, rows, M, N, BLOCK)
        scale = tl.load(r + rows, mask=rows < M, other=0.0)[:, None]
        if CENTRED:
            x -= tl.load(mean + rows, mask=rows < M, other=0.0)[:, None]
            db += tl.sum(dy, 0)
        x *= scale
        dw += tl.sum(dy * x, 0)
        h = dy * w
        dx = h - x * (tl.sum(h * x, 1) / N)[:, None]
        if CENTRED:
            dx -= (tl.sum(h, 1) / N)[:, None]
        _put(dX, dx * scale, 0, rows, M, N, BLOCK)
    columns = tl.arange(0, BLOCK)
    place = tl.program_id(0) * N + columns
    tl.store(partial_weight + place, dw, mask=columns < N)
    if CENTRED:
        tl.store(partial_bias + place, db, mask=columns < N)


@triton.jit
def norm_gradient_in_pieces_kernel(
    X, weight, mean, r, dY, dX, M, N, CENTRED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    scale = tl.load(r + rows, mask=rows < M, other=0.0)[:, None]
    centre = tl.load(mean + rows, mask=rows < M, other=0.0)[:, None] if CENTRED else 0.0
    total = tl.zeros((ROWS,), tl.float32)
    product = tl.zeros((ROWS,), tl.float32)
    for start in range(0, N, BLOCK):
        h = _piece(dY, start, rows, M, N, BLOCK) * _column(weight, start, N, BLOCK)
        product += tl.sum(h * (_piece(X, start, rows, M, N, BLOCK) - centre) * scale, 1)
        total += tl.sum(h, 1)
    for back in range(0, N, BLOCK):
        start = (N - 1) // BLOCK * BLOCK - back
        h = _piece(dY, start, rows, M, N, BLOCK) * _column(weight, start, N, BLOCK)
        dx = h - (_piece(X, start, rows, M, N, BLOCK) - centre) * scale * (product / N)[:, None]
        if CENTRED:
            dx -= (total / N)[:, None]
        _put(dX, dx * scale, start, rows, M, N, BLOCK)


@triton.jit
def column_gradients_kernel(
    X, mean, r, dY, dweight, dbias, M, N, CENTRED: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):
    start = tl.program_id(0) * WIDTH
    dw = tl.zeros((WIDTH,), tl.float32)
    db = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, M, HEIGHT):
        rows = first + tl.arange(0, HEIGHT)
        x, dy = _piece(X, start, rows, M, N, WIDTH), _piece(dY, start, rows, M, N, WIDTH)
        if CENTRED:
            x -= tl.load(mean + rows, mask=rows < M, other=0.0)[:, None]
            db += tl.sum(dy, 0)
        dw += tl.sum(dy * x * tl.load(r + rows, mask=rows < M, other=0.0)[:, None], 0)
    columns = start + tl.arange(0, WIDTH)
    tl.store(dweight + columns, dw.to(dweight.dtype.element_ty), mask=columns < N)
    if CENTRED:
        tl.store(dbias + columns, db.to(dbias.dtype.element_ty), mask=columns < N)


@triton.jit
def column_sums_kernel(partial, out, groups, N, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.float32)
    for first in range(0, groups, HEIGHT):
        rows = first + tl.arange(0, HEIGHT)
        inside = (rows < groups)[:, None] & (columns < N)[None, :]
        total += tl.sum(tl.load(partial + rows[:, None] * N + columns[None, :], mask=inside, other=0.0), 0)
    tl.store(out + columns, total.to(out.dtype.element_ty), mask=columns < N)


def _config(rows: int, block: int, warps: int) -> Any:
    return triton.Config({"ROWS": rows, "BLOCK": block}, num_warps=warps)


def _configs(N: int) -> list[Any]:
    """Whole rows where they fit, several of them where they are short, else pieces."""
    width = triton.next_power_of_2(N)
    if width > 16384:
        sizes = ((8192, 8), (8192, 16), (16384, 16), (4096, 8), (16384, 32))
        return [_config(1, block, warps) for block, warps in sizes]
    rows = [each for each in (1, 2, 4, 8, 16) if each * width <= 8192 or each == 1][-2:]
    return [_config(each, width, warps) for each in rows for warps in (4, 8, 16) if each * width >= 64 * warps]


def _launched(name: str, kernel: Any, N: int, outputs: int, *more: Any) -> Candidate:
    """A kernel of whole rows or pieces of them, on the row's inputs and so many outputs."""

    def launch(tuned: Any, inputs: Any, given: Any) -> None:
        M = inputs[0].shape[0]
        tuned[lambda meta: (triton.cdiv(M, meta["ROWS"]),)](*inputs, *given[:outputs], M, N, *more)

    return by_hand([Variant(name, kernel, _configs(N), ["M", "N"], launch)])


def softmax_by_hand(N: int) -> Candidate:
    """Softmax along the rows of X."""
    return _launched("in pieces", softmax_kernel, N, 1)


def softmax_gradient_by_hand(N: int) -> Candidate:
    """Its gradient, of Y and dY."""
    return _launched("in pieces", softmax_gradient_kernel, N, 1)


def rms_norm_by_hand(N: int, eps: float) -> Candidate:
    """RMS norm of rows."""
    return _launched("in pieces", rms_norm_kernel, N, 1, eps)


def layer_norm_by_hand(N: int, eps: float) -> Candidate:
    """Layer norm of rows."""
    return _launched("in pieces", layer_norm_kernel, N, 1, eps)


def cross_entropy_by_hand(N: int) -> Candidate:
    """Losses and log-sum-exps of rows of logits."""
    return _launched("in pieces", cross_entropy_kernel, N, 2)


def cross_entropy_gradient_by_hand(N: int) -> Candidate:
    """The logits' gradient, of logits, targets, log-sum-exps and the losses' gradients."""

    def launch(tuned: Any, inputs: Any, outputs: Any) -> None:
        M = inputs[0].shape[0]
        grid = lambda meta: (triton.cdiv(M, meta["ROWS"]), triton.cdiv(N, meta["BLOCK"]))  # noqa: E731
        tuned[grid](*inputs, outputs[0], M, N)

    width = triton.next_power_of_2(N)
    sizes = ((1, 2048, 4), (1, 4096, 4), (1, 8192, 8), (4, 1024, 4), (4, 2048, 8))
    configs = [_config(max(1, rows * block // width) if block > width else rows, min(block, width), warps)
               for rows, block, warps in sizes]  # fmt: skip
    return by_hand([Variant("tiles", cross_entropy_gradient_kernel, configs, ["M", "N"], launch)])


def norm_gradient_by_hand(N: int, centred: bool) -> Candidate:
    """dX, dweight and, of a layer norm (centred), dbias. Rows of more than 16384 columns go in pieces; the gradients of
    weight and bias then read X and dY once more."""

    def parts(inputs: Any, outputs: Any) -> tuple[Any, ...]:
        x, weight, *statistics, dy = inputs
        mean, r = statistics if centred else (statistics[0], statistics[0])
        dweight, dbias = outputs[1], outputs[2] if centred else outputs[1]
        return x, weight, mean, r, dy, dweight, dbias

    def whole(tuned: Any, inputs: Any, outputs: Any) -> None:
        x, weight, mean, r, dy, dweight, dbias = parts(inputs, outputs)
        M, blocks = x.shape[0], 528
        partial = torch.empty((2 if centred else 1, blocks, N), dtype=torch.float32, device=x.device)
        tuned[(blocks,)](x, weight, mean, r, dy, outputs[0], partial[0], partial[-1], M, N, centred, blocks)
        for each, out in zip(partial, (dweight, dbias), strict=False):
            column_sums_kernel[(triton.cdiv(N, 32),)](each, out, blocks, N, 64, 32)

    def pieces(tuned: Any, inputs: Any, outputs: Any) -> None:
        x, weight, mean, r, dy, dweight, dbias = parts(inputs, outputs)
        M = x.shape[0]
        grid = lambda meta: (triton.cdiv(M, meta["ROWS"]),)  # noqa: E731
        tuned[grid](x, weight, mean, r, dy, outputs[0], M, N, centred)
        column_gradients_kernel[(triton.cdiv(N, 256),)](x, mean, r, dy, dweight, dbias, M, N, centred, 16, 256)

    key = ["M", "N", "CENTRED"]
    in_pieces = Variant("in pieces", norm_gradient_in_pieces_kernel, _configs(N), key, pieces)
    if N > 16384:
        return by_hand([in_pieces])
    return by_hand([Variant("whole rows", norm_gradient_kernel, _configs(N), key, whole), in_pieces])
