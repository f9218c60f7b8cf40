"""Attention of float8 in Gluon: operands in registers lie in words, and lanes exchange the weights' columns."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from unittest.mock import patch

import pytest
import torch

import tiledsl
from tests.support import gluon_machine
from tests.support.example_modules import load_example
from tiledsl.certificate import translation

E4M3 = torch.float8_e4m3fn
SIZES = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 256, "keys": 256, "dim": 64}


def compiled(rescale: str, passes: dict[str, Any] | None = None, **sizes: Any) -> tiledsl.Kernel:
    function = load_example("attention_fp8").attention_fp8.function
    asked = {"schedule-loops.turns": True} if passes is None else passes
    passes = {"select-emitter.backend": "gluon", "select-emitter.rescale": rescale, **asked}
    return tiledsl.jit(function, target="cuda:90", pass_configs=passes).compile(**{**SIZES, **sizes})


def test_turns() -> None:
    source = compiled("lazy").source
    loop = source[source.index("for tile in range(start") :]
    wait, products, arrival = (
        loop.index(text) for text in ("mbarrier.wait(order", "acc = warpgroup_mma(", "arrive(order")
    )
    assert wait < loop.index("scores = warpgroup_mma(") < products < arrival < loop.index("warpgroup_mma_wait(")
    assert "order = _barriers(2, 1)" in source and "order.index((consumer + 1) % 2)" in source
    assert "order" not in compiled("lazy", passes={}).source
    three = compiled("lazy", queries=192, block_M=192, threads=384, block_N=64, keys=256).source
    assert "order = _barriers(3, 1)" in three and "order.index((consumer + 1) % 3)" in three


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"causal": True},
        {"keys": 128},
        {"queries": 384, "block_M": 192, "threads": 384, "block_N": 64},
        {"dim": 128, "num_stages": 3},
        {"queries": 100, "keys": 400},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("rescale", "asked"), [("each", None), ("lazy", None), ("lazy", {"schedule-loops.fours": False})]
)
def test_attention(sizes: dict[str, Any], rescale: str, asked: dict[str, Any] | None) -> None:
    example = load_example("attention_fp8")
    source = compiled(rescale, asked, **sizes).source
    assert ("_rescaled_" in source) == (rescale == "lazy")
    assert ("weights = _words(scores" in source) == (asked is None) != ("_exchanged(_words(scores" in source)
    assert ("deps=[scores, q]" in source) == ("block_M" not in sizes)  # of three consumers registers have no room for q
    chosen = {**SIZES, **sizes}
    torch.manual_seed(0)
    q = torch.randn(1, 2, chosen["queries"], chosen["dim"])
    q = (q * (1 + 3 * (torch.arange(chosen["queries"]) % 3)[:, None])).to(E4M3)  # maxima of some rows rise by far
    k = torch.randn(1, 1, chosen["keys"], chosen["dim"]).to(E4M3)
    v = torch.randn(1, 1, chosen["dim"], chosen["keys"]).to(E4M3)
    scales = [torch.tensor([[0.7, 1.1]]), torch.tensor([[1.3]]), torch.tensor([[0.2]])]
    out = torch.full(q.shape, float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(source, "attention_fp8", q, k, v, *scales, out)
    want = example.reference(q, k, v, *scales, causal=chosen.get("causal", False))
    assert float((out.double() - want).norm() / want.norm()) < 0.03  # weights of 4 bits


@pytest.mark.parametrize(
    ("sizes", "apart"),
    [
        ({"keys": 256, "block_N": 96}, {"weights_64_1"}),  # all of 32 columns lie behind the last key
        ({"keys": 400}, {"weights"}),
        ({"causal": True}, set()),  # which columns count depends on the block
    ],
    ids=str,
)
def test_pairs_that_a_mask_makes_alike_are_packed_by_a_shift(sizes: dict[str, Any], apart: set[str]) -> None:
    """ptxas 12.8 merges a conversion whose two pairs are the same with any register."""
    words = re.findall(r"(weights\w*) = _words\(\w+, (\w+)\)", compiled("each", **sizes).source)
    assert words and {name for name, rounding in words if rounding == "_ROUND_APART"} == apart


def test_columns_in_fours_have_a_certificate() -> None:
    kernel = compiled("each", {}, batch=1, heads=1, queries=128, keys=256, dim=128)
    assert "weights = _words(scores, _ROUND)" in kernel.source
    (check, *_) = translation.check_translation(kernel, passes=False)
    assert check.status == "tested" and "operation by operation" in check.detail, check
    emitted, order = translation._Levels.module, "[first, second, third, fourth]"

    def wrong(levels: translation._Levels) -> Any:
        module = emitted(levels)
        assert order in module.source
        return dataclasses.replace(module, source=module.source.replace(order, "[second, first, third, fourth]"))

    with patch.object(translation._Levels, "module", wrong):
        (check, *_) = translation.check_translation(kernel, passes=False)
    assert check.status == "failed" and "instead of" in check.detail, check


def test_weights_of_four_bits() -> None:
    example = load_example("gemm_w4a8")
    passes = {"select-emitter.backend": "gluon"}
    kernel = tiledsl.jit(example.matmul_w4a8.function, target="cuda:90", pass_configs=passes).compile(200, 160, 768)
    assert "_seen_as(codes_ring" in kernel.source and "_exchanged" not in kernel.source
    torch.manual_seed(0)
    given = example.random_inputs(200, 160, 768)
    out = torch.full((200, 160), float("nan"), dtype=torch.float16)
    gluon_machine.run_gluon(kernel.source, "matmul_w4a8", *given, out)
    a, packed, scales, a_scale = given
    wide = example.dequantised(example.unpack(packed), scales)
    torch.testing.assert_close(out.float(), (a.float() * a_scale[:, None]) @ wide.T, rtol=2e-3, atol=2e-3)
    assert not kernel.verify().failed
