"""Attention written in Gluon gives what torch gives, on a Hopper GPU."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tiledsl
from tests.support.example_modules import load_example

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

SHAPES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "queries": 640, "keys": 640},  # an odd number of blocks: the middle one has no partner
    {"causal": True, "queries": 384, "keys": 384, "heads": 67, "kv_heads": 67},  # some programs have more items
    {"causal": True, "queries": 128, "keys": 1024},
    {"causal": True, "queries": 1000, "keys": 1000, "kv_heads": 1},
    {"causal": True, "queries": 1024, "keys": 512},
    {"causal": True, "window": 300, "queries": 2048, "keys": 2048},
    {"dim": 64, "block_M": 192, "causal": True, "queries": 1536, "keys": 1536},
    {"dim": 64, "dtype": "bfloat16"},
    {"causal": True, "queries": 300, "keys": 100},  # one tile of keys
    {"queries": 1000, "keys": 1000},  # the last tile alone is masked
    {"dim": 256, "block_N": 64, "heads": 70, "kv_heads": 70, "causal": True},  # results lie where queries were
]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_matches_torch(shape: dict[str, Any], persistent: bool) -> None:
    import torch

    example = load_example("attention")
    sizes = {"batch": 2, "heads": 4, "kv_heads": 4, "queries": 1024, "keys": 1024, "dim": 128, **shape}
    configs = {"select-emitter.backend": "gluon", "select-emitter.persistent": persistent}
    kernel = tiledsl.jit(example.attention.function, out_idx=[3, 4], pass_configs=configs).compile(**sizes)
    assert "@gluon.jit" in kernel.source
    dtype = getattr(torch, sizes.get("dtype", "float16"))
    torch.manual_seed(0)
    q = torch.randn(sizes["batch"], sizes["heads"], sizes["queries"], sizes["dim"], dtype=dtype, device="cuda")
    k, v = (
        torch.randn(sizes["batch"], sizes["kv_heads"], sizes["keys"], sizes["dim"], dtype=dtype, device="cuda")
        for _ in range(2)
    )
    want = example.reference(q.float(), k.float(), v.float(), sizes.get("causal", False), sizes.get("window", 0))
    for _ in range(3):
        out, lse = kernel(q, k, v)
        seen = ~torch.isnan(want)
        error = (out.float()[seen] - want[seen]).norm() / want[seen].norm()
        assert float(error) < (1e-2 if dtype == torch.bfloat16 else 3e-3)
        assert not bool(torch.isnan(lse).any())


@pytest.mark.parametrize("rescale", ["each", "late", "lazy"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"causal": True}, {"dim": 64}, {"dim": 64, "block_M": 192, "queries": 1536}, {"dim": 256, "block_N": 64}],
    ids=str,
)
def test_maxima_that_rise_by_little_and_by_far(shape: dict[str, Any], rescale: str) -> None:
    import torch

    example = load_example("attention")
    sizes = {"batch": 2, "heads": 4, "kv_heads": 4, "queries": 1024, "keys": 1024, "dim": 128, **shape}
    configs = {"select-emitter.backend": "gluon", "select-emitter.rescale": rescale}
    kernel = tiledsl.jit(example.attention.function, out_idx=[3, 4], pass_configs=configs).compile(**sizes)
    assert ("_rescaled_" in kernel.source) == (rescale == "lazy")
    torch.manual_seed(0)
    q = torch.randn(2, 4, sizes["queries"], sizes["dim"], dtype=torch.float16, device="cuda")
    q *= 1 + 15 * (torch.arange(sizes["queries"], device="cuda") % 3)[:, None]
    k, v = (torch.randn(2, 4, 1024, sizes["dim"], dtype=torch.float16, device="cuda") for _ in range(2))
    scores = q.double() @ k.double().mT * sizes["dim"] ** -0.5
    if sizes.get("causal"):
        scores += torch.full_like(scores, float("-inf")).triu(1)
    want = torch.softmax(scores, -1) @ v.double()
    out, lse = kernel(q, k, v)
    assert float((out - want).norm() / want.norm()) < 3e-3
    torch.testing.assert_close(lse.double(), torch.logsumexp(scores, -1) * math.log2(math.e), rtol=1e-4, atol=1e-3)
