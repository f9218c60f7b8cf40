"""Attention backward rows: the gradients alone, with what the forward pass leaves given."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.handwritten.tuned_backward import backward_by_hand
from benchmarks.ours import Tuned, kernel_call, tune
from benchmarks.peers.library import fused_attention_backward
from benchmarks.programs import example
from benchmarks.row import Call, Candidate, Context, Ready, Row, Tensors
from benchmarks.rows.attention_math import backward, forward, seen_pairs
from benchmarks.rows.spaces import APART, GLUON, IN_TURN, LAST_WAVE, TRITON, TRITON_TMA, walk

SPACE = [
    walk(64, 128, 2, 8), walk(128, 128, 2, 8), walk(64, 128, 2, 8, TRITON), walk(64, 128, 2, 8, TRITON_TMA),
    walk(64, 64, 2, 4), walk(32, 128, 2, 4), walk(64, 64, 2, 8, GLUON),
    *(walk(rows, 128, 2, 8, each) for rows in (64, 128) for each in (IN_TURN, APART)),
]  # fmt: skip
KEY_VALUES = [walk(64, 64, 2, 8, GLUON), walk(64, 128, 2, 8), walk(64, 128, 3, 8, TRITON_TMA), walk(64, 64, 2, 4)]
QUERIES = [walk(128, 64, 2, 8, GLUON), walk(128, 64, 2, 8), walk(128, 64, 3, 8, TRITON_TMA), walk(64, 64, 2, 4)]
FULL_SPACE = [*SPACE, *(walk(rows, 128, 2, 8, {**LAST_WAVE, **each}) for rows in (64, 128) for each in ({}, APART))]
FULL_KEY_VALUES = [*KEY_VALUES, walk(64, 64, 2, 8, LAST_WAVE)]
FULL_QUERIES = [*QUERIES, walk(128, 64, 2, 8, LAST_WAVE)]
ROWS = [{"block_M": rows, "threads": 128} for rows in (16, 32, 64)]


def _milliseconds(tuned: Tuned) -> float:
    """What the tuner measured of its winner."""
    return min((each["ms"] for each in tuned.rivals if "ms" in each), default=0.0)


def _ours(sizes: dict[str, int], causal: bool) -> Candidate:
    """The kernels of examples/attention_backward.py, tuned: the faster of two ways, all gradients at once, or dK and dV
    by one kernel and dQ by another."""
    module = example("attention_backward")
    rows, dim = sizes["batch"] * sizes["heads"] * sizes["queries"], sizes["dim"]
    root = dim**-0.5

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        q, k, v, out, dout, lse = inputs
        d, dq = (out.float() * dout.float()).sum(-1), torch.zeros_like(q, dtype=torch.float32)
        flat = {"rows": rows, "dim": dim}
        begin = tune(
            context, module.begin, flat, ROWS, (out.view(rows, -1), dout.view(rows, -1)),
            lambda o, do: ((o.float() * do.float()).sum(-1), torch.zeros_like(o, dtype=torch.float32)),
        )  # fmt: skip
        finish = tune(context, module.finish, flat, ROWS, (dq.view(rows, -1),), lambda x: x * root)
        sized = {**sizes, "causal": causal}
        found = tune(
            context, module.gradients_at_once, sized, SPACE if causal else FULL_SPACE, (q, k, v, dout, lse, d, dq),
            lambda q, k, v, dout, lse, d, dq: backward(q, k, v, out, dout, lse, causal)[1:],
        )  # fmt: skip
        ways = [(begin, found, finish)]
        if context.tune:
            products = tune(
                context, module.row_products, flat, ROWS, (out.view(rows, -1), dout.view(rows, -1)),
                lambda o, do: (o.float() * do.float()).sum(-1),
            )  # fmt: skip
            key_values = tune(
                context, module.key_value_gradients, sized, KEY_VALUES if causal else FULL_KEY_VALUES,
                (q, k, v, dout, lse, d),
                lambda q, k, v, dout, lse, d: backward(q, k, v, out, dout, lse, causal)[1:],
            )  # fmt: skip
            query = tune(
                context, module.query_gradient, sized, QUERIES if causal else FULL_QUERIES, (q, k, v, dout, lse, d),
                lambda q, k, v, dout, lse, d: backward(q, k, v, out, dout, lse, causal)[0],
            )  # fmt: skip
            ways.append((products, key_values, query))
        first, second, third = min(ways, key=lambda way: sum(map(_milliseconds, way)))

        def bind(given: Tensors, outputs: Tensors) -> Call:
            q, k, v, out, dout, lse = given
            d, dq = torch.empty_like(lse), torch.empty_like(q, dtype=torch.float32)
            flat = [each.view(rows, -1) for each in (out, dout, dq, outputs[0])]
            if third is finish:
                calls = (
                    kernel_call(first.kernel, flat[:2], [d.view(-1), flat[2]]),
                    kernel_call(second.kernel, (q, k, v, dout, lse, d, dq), outputs[1:]),
                    kernel_call(third.kernel, flat[2:3], flat[3:]),
                )
            else:
                calls = (
                    kernel_call(first.kernel, flat[:2], [d.view(-1)]),
                    kernel_call(second.kernel, (q, k, v, dout, lse, d), outputs[1:]),
                    kernel_call(third.kernel, (q, k, v, dout, lse, d), outputs[:1]),
                )

            def call() -> None:
                for each in calls:
                    each()

            return call

        return Ready(bind, second.config, second.seconds, second.rivals)

    return Candidate("tiledsl", "tiledsl", prepare)


def backward_row(batch: int, heads: int, length: int, dim: int, causal: bool, quick: bool = False) -> Row:
    """dQ, dK, dV of float16 attention with as many K/V heads."""
    shape = (batch, heads, length, dim)
    sizes = {
        "batch": batch, "heads": heads, "kv_heads": heads, "queries": length, "keys": length, "dim": dim
    }  # fmt: skip

    def inputs(device: str) -> list[Any]:
        q, k, v, dout = (torch.randn(shape, device=device).half() for _ in range(4))
        out, lse = forward(q, k, v, causal)
        return [q, k, v, out.half(), dout, lse]

    return Row(
        family="attention backward",
        case=f"fp16 {'causal' if causal else 'full'} B{batch} H{heads} S{length} D{dim}",
        inputs=inputs,
        reference=lambda q, k, v, out, dout, lse: list(backward(q, k, v, out, dout, lse, causal)),
        outputs=((shape, torch.float16),) * 3,
        candidates=(_ours(sizes, causal), fused_attention_backward(causal), backward_by_hand(causal)),
        operations=10.0 * batch * heads * seen_pairs(length, length, causal) * dim,
        bytes_moved=2.0 * 8 * batch * heads * length * dim,
        required=3,
        tags=frozenset({"causal" if causal else "full", f"D{dim}"}),
        quick=quick,
    )


def rows() -> list[Row]:
    """Three widths, two lengths."""
    return [
        backward_row(4, 32, 4096, 128, False),
        backward_row(4, 32, 4096, 128, True, quick=True),
        backward_row(4, 32, 4096, 64, False),
        backward_row(4, 32, 4096, 64, True),
        backward_row(1, 32, 16384, 128, True),
        backward_row(4, 32, 4096, 192, False),
        backward_row(4, 32, 4096, 192, True),
    ]
