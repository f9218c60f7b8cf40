"""Attention of float8 in Gluon: operands in registers lie in words, and lanes exchange the weights' columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
from tests.support import gluon_machine
from tests.support.example_modules import load_example

E4M3 = torch.float8_e4m3fn
SIZES = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 256, "keys": 256, "dim": 64}


def compiled(**sizes: Any) -> tiledsl.Kernel:
    function = load_example("attention_fp8").attention_fp8.function
    passes = {"select-emitter.backend": "gluon"}
    return tiledsl.jit(function, target="cuda:90", pass_configs=passes).compile(**{**SIZES, **sizes})


@pytest.mark.parametrize(
    "sizes",
    [{}, {"causal": True}, {"keys": 128}, {"dim": 128, "num_stages": 3}, {"queries": 100, "keys": 400}],
    ids=str,
)
def test_attention(sizes: dict[str, Any]) -> None:
    example = load_example("attention_fp8")
    source = compiled(**sizes).source
    assert "_exchanged(_words(scores))" in source and "deps=[scores, q]" in source
    chosen = {**SIZES, **sizes}
    torch.manual_seed(0)
    q = torch.randn(1, 2, chosen["queries"], chosen["dim"]).to(E4M3)
    k = torch.randn(1, 1, chosen["keys"], chosen["dim"]).to(E4M3)
    v = torch.randn(1, 1, chosen["dim"], chosen["keys"]).to(E4M3)
    scales = [torch.tensor([[0.7, 1.1]]), torch.tensor([[1.3]]), torch.tensor([[0.2]])]
    out = torch.full(q.shape, float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(source, "attention_fp8", q, k, v, *scales, out)
    want = example.reference(q, k, v, *scales, causal=chosen.get("causal", False))
    assert float((out.double() - want).norm() / want.norm()) < 0.03  # weights of 4 bits
