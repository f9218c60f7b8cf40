"""Attention in float32, piece by piece, so that no matrix of all scores exists: what rows are checked with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

_CHUNK = 2048  # queries at once
_LOG2E = math.log2(math.e)


def visible(queries: int, keys: int, causal: bool, window: int, start: int, stop: int, device: Any) -> Any:
    """Which keys queries start .. stop - 1 see, or None for all. The last query sees the last key."""
    if not causal:
        return None
    position = torch.arange(start, stop, device=device)[:, None] + keys - queries
    key = torch.arange(keys, device=device)[None, :]
    seen = key <= position
    return seen & (key > position - window) if window else seen


def pieces(q: Any, k: Any) -> Iterator[tuple[int, int, int, int, int]]:
    """Batch, head, its K/V head, and a range of queries."""
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for head in range(q.shape[1]):
            for start in range(0, q.shape[2], _CHUNK):
                yield b, head, head // group, start, min(start + _CHUNK, q.shape[2])


def forward(q: Any, k: Any, v: Any, causal: bool, sinks: Any = None, window: int = 0) -> tuple[Any, Any]:
    """softmax(Q K^T / sqrt(dim)) V in float32, and each row's logarithm to base 2 of its sum of exponentials."""
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=torch.float32, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for b, head, kv, start, stop in pieces(q, k):
        scores = q[b, head, start:stop].float() @ k[b, kv].float().T * (q.shape[3] ** -0.5)
        seen = visible(q.shape[2], k.shape[2], causal, window, start, stop, q.device)
        if seen is not None:
            scores.masked_fill_(~seen, -math.inf)
        total = torch.logsumexp(scores, 1)
        if sinks is not None:
            total = torch.logaddexp(total, sinks[head].float())
        out[b, head, start:stop] = torch.exp(scores - total[:, None]) @ v[b, kv].float()
        lse[b, head, start:stop] = total * _LOG2E
    return out, lse


def backward(q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, causal: bool) -> tuple[Any, Any, Any]:
    """dQ, dK and dV in float32, from what the forward pass left."""
    dq, dk, dv = (torch.zeros(each.shape, dtype=torch.float32, device=q.device) for each in (q, k, v))
    root = q.shape[3] ** -0.5
    for b, head, kv, start, stop in pieces(q, k):
        rows = (b, head, slice(start, stop))
        part, grad, keys, values = q[rows].float(), dout[rows].float(), k[b, kv].float(), v[b, kv].float()
        p = torch.exp2(part @ keys.T * (root * _LOG2E) - lse[rows].float()[:, None])
        seen = visible(q.shape[2], k.shape[2], causal, 0, start, stop, q.device)
        if seen is not None:
            p.masked_fill_(~seen, 0.0)
        ds = p * (grad @ values.T - (grad * out[rows].float()).sum(1, keepdim=True))
        dq[rows] = ds @ keys * root
        dk[b, kv] += ds.T @ part * root
        dv[b, kv] += p.T @ grad
    return dq, dk, dv


def seen_pairs(queries: int, keys: int, causal: bool, window: int = 0) -> int:
    """How many (query, key) pairs count: 4 * dim operations each, forward."""
    if not causal:
        return queries * keys
    last = [min(keys, i + keys - queries + 1) for i in range(queries)]
    return sum(max(0, min(each, window) if window else each) for each in last)
