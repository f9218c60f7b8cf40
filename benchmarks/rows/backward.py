"""Attention backward rows: the gradients alone, with what the forward pass leaves given."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.handwritten.tuned_backward import backward_by_hand
from benchmarks.ours import kernel_call, tune
from benchmarks.peers.library import fused_attention_backward
from benchmarks.programs import example
from benchmarks.row import Call, Candidate, Context, Ready, Row, Tensors
from benchmarks.rows.attention_math import backward, forward, seen_pairs
from benchmarks.rows.spaces import TMA, walk

KEY_VALUE_SPACE = [
    walk(64, 128, 2, 8), walk(64, 128, 2, 8, TMA), walk(32, 128, 2, 4), walk(64, 64, 2, 4), walk(64, 128, 3, 8, TMA),
    walk(32, 64, 3, 4), walk(128, 128, 2, 8),
]  # fmt: skip
QUERY_SPACE = [
    walk(128, 64, 2, 8), walk(128, 64, 2, 8, TMA), walk(128, 32, 2, 4), walk(64, 64, 2, 4), walk(128, 64, 3, 8, TMA),
    walk(64, 32, 3, 4), walk(128, 128, 2, 8),
]  # fmt: skip


def _ours(sizes: dict[str, int], causal: bool) -> Candidate:
    """The three kernels of examples/attention_backward.py, the two large ones tuned."""
    module = example("attention_backward")
    rows = sizes["batch"] * sizes["heads"] * sizes["queries"]

    def prepare(context: Context, row: Row, inputs: Tensors) -> Ready:
        q, k, v, out, dout, lse = inputs
        d = (out.float() * dout.float()).sum(-1)
        tensors = (q, k, v, dout, lse, d)
        arguments = {**sizes, "causal": causal}
        products = tune(
            context, module.row_products, {"rows": rows, "dim": sizes["dim"]}, [{"block_M": 64, "threads": 128}],
            (out.view(rows, -1), dout.view(rows, -1)), lambda o, do: (o.float() * do.float()).sum(-1),
        )  # fmt: skip

        def gradients(q: Any, k: Any, v: Any, dout: Any, lse: Any, d: Any) -> Any:
            return backward(q, k, v, out, dout, lse, causal)

        key_value = tune(
            context, module.key_value_gradients, arguments, KEY_VALUE_SPACE, tensors, lambda *x: gradients(*x)[1:]
        )
        query = tune(context, module.query_gradient, arguments, QUERY_SPACE, tensors, lambda *x: gradients(*x)[0])

        def bind(given: Tensors, outputs: Tensors) -> Call:
            q, k, v, out, dout, lse = given
            d = torch.empty_like(lse)
            flat = [each.view(rows, -1) for each in (out, dout)]
            calls = (
                kernel_call(products.kernel, flat, [d.view(-1)]),
                kernel_call(key_value.kernel, (q, k, v, dout, lse, d), outputs[1:]),
                kernel_call(query.kernel, (q, k, v, dout, lse, d), outputs[:1]),
            )

            def call() -> None:
                for each in calls:
                    each()

            return call

        both = {"dK, dV": key_value, "dQ": query}
        spent = [each.seconds for each in both.values() if each.seconds is not None]
        rivals = [{"kernel": name, **each} for name, found in both.items() for each in found.rivals]
        return Ready(
            bind, {name: found.config for name, found in both.items()}, sum(spent) if len(spent) == 2 else None, rivals
        )

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
    """Two widths, two lengths."""
    return [
        backward_row(4, 32, 4096, 128, False),
        backward_row(4, 32, 4096, 128, True, quick=True),
        backward_row(4, 32, 4096, 64, True),
        backward_row(1, 32, 16384, 128, True),
    ]
