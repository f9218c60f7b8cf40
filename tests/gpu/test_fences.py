"""Attention of many blocks with few turns: the producer waits for the place of the next queries as they are read."""

from __future__ import annotations

import pytest
import torch

import tiledsl
from tests.support.ragged_attention import expected, ragged_attention, starts

pytestmark = pytest.mark.gpu

HEADS, KV_HEADS, QUERIES, KEYS = 64, 4, 16319, 16268
LENGTHS = {
    "much": ([100, 4000, 1500, 2500, 600, 3400, 2100, 2119], [100, 4000, 1500, 2500, 600, 3400, 2100, 2068]),
    "little": ([2039] * 7 + [2046], [2033] * 7 + [2037]),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_queries_are_not_overtaken_by_those_of_the_next_block(name: str) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel is for Hopper GPUs")
    lengths, keys = LENGTHS[name]
    program = ragged_attention(QUERIES, KEYS, len(lengths), HEADS, KV_HEADS, max(lengths))
    kernel = tiledsl.compile(program, target="cuda", pass_configs={"select-emitter.backend": "gluon"})
    assert "@gluon.jit" in kernel.source
    torch.manual_seed(0)
    shapes = ((QUERIES, HEADS, 128), (KEYS, KV_HEADS, 128), (KEYS, KV_HEADS, 128))
    q, k, v = (torch.randn(shape, device="cuda").half() for shape in shapes)
    sinks = torch.randn(HEADS, device="cuda")
    given = (q, k, v, starts(lengths, "cuda"), starts(keys, "cuda"), sinks)
    out, again = torch.empty_like(q), torch.empty_like(q)
    kernel(*given, out)
    torch.testing.assert_close(out.float(), expected(q, k, v, lengths, keys, sinks), rtol=0, atol=4e-3)
    for _ in range(20):
        again.fill_(float("nan"))
        kernel(*given, again)
        torch.testing.assert_close(again, out, rtol=0, atol=0)
