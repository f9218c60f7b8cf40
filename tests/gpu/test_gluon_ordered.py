"""Loops that one group of warps runs in order give what torch gives, on a Hopper GPU, for any number of turns."""

from __future__ import annotations

from typing import Any

import pytest

import tiledsl
from tests.codegen.test_gluon_ordered import gated
from tests.support.example_modules import load_example
from tests.support.latent_attention import PAGE, ROPE, decode, decode_paged, inputs, reference

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def compiled(function: Any, **configs: Any) -> tiledsl.Kernel:
    kernel = tiledsl.compile(function, pass_configs={"select-emitter.backend": "gluon", **configs})
    assert "@gluon.jit" in kernel.source, kernel.remarks
    return kernel


@pytest.mark.parametrize(
    "configs",
    [{}, {"select-emitter.persistent": False}, {"select-emitter.rescale": "each"}, {"select-emitter.stages": 3}],
    ids=str,
)
@pytest.mark.parametrize(
    ("sizes", "keys"),
    [
        ({"dim": 512, "batch": 3}, 64),
        ({"dim": 512, "batch": 3}, 128),
        ({"dim": 512, "batch": 200}, 1024),  # more blocks than multiprocessors
        ({"heads": 128, "rows": 128, "batch": 3}, 640),  # rows for all warps: the left operand is in registers
        ({"threads": 128, "batch": 3}, 640),
        ({"dim": 128, "block": 32}, 160),
    ],
    ids=str,
)
def test_decoding(sizes: dict[str, int], keys: int, configs: dict[str, Any]) -> None:
    import torch

    kernel = compiled(decode(keys=keys, **sizes), **configs)
    given = [each.cuda() for each in inputs(sizes.get("batch", 1), sizes.get("heads", 64), keys, sizes.get("dim", 64))]
    want = reference(*given)
    for _ in range(3):
        out = torch.full_like(given[0], float("nan"))
        kernel(*given, out)
        assert float((out.float() - want).norm() / want.norm()) < 2e-3


@pytest.mark.parametrize(("keys", "dim", "stages"), [(64, 64, 2), (192, 64, 3), (640, 128, 4), (1024, 512, 2)], ids=str)
def test_groups_take_turns(keys: int, dim: int, stages: int) -> None:
    import torch

    configs = {"select-emitter.consumers": "alternate", "select-emitter.stages": stages}
    kernel = compiled(decode(batch=200, keys=keys, dim=dim), **configs)
    assert "parity" in kernel.source
    given = [each.cuda() for each in inputs(200, 64, keys, dim)]
    want = reference(*given)
    for _ in range(3):
        out = torch.full_like(given[0], float("nan"))
        kernel(*given, out)
        assert float((out.float() - want).norm() / want.norm()) < 2e-3


@pytest.mark.parametrize("dim", [64, 512])  # of 512 columns, groups take turns
def test_pages_and_no_keys_at_all(dim: int) -> None:
    import torch

    lengths, pages = [0, 1, 64, 65, 200, 1000], 16
    kernel = compiled(decode_paged(len(lengths), pages, dim))
    q, q_rope, kv, k_rope = (each.cuda() for each in inputs(len(lengths), 64, pages * PAGE, dim))
    table = torch.randperm(len(lengths) * pages, device="cuda", dtype=torch.int32).reshape(-1, pages)
    rows_of_kv, rows_of_rope = kv.reshape(-1, dim), k_rope.reshape(-1, ROPE)
    out = torch.full_like(q, float("nan"))
    kernel(q, q_rope, rows_of_kv, rows_of_rope, table, torch.tensor(lengths, device="cuda", dtype=torch.int32), out)
    for number, length in enumerate(lengths):
        rows = (table[number].long()[:, None] * PAGE + torch.arange(PAGE, device="cuda")).reshape(-1)[:length]
        keys = rows_of_kv[rows], rows_of_rope[rows]
        want = reference(q[number], q_rope[number], *keys) if length else torch.zeros_like(out[number]).float()
        assert torch.allclose(out[number].float(), want, atol=2e-3)


@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_blocks_of_64_rows(causal: bool) -> None:
    import torch

    example = load_example("attention")
    sizes = {"batch": 2, "heads": 4, "kv_heads": 4, "queries": 1024, "keys": 1024, "dim": 256, "causal": causal}
    kernel = tiledsl.jit(example.attention.function, out_idx=[3, 4]).compile(**sizes, block_M=64, block_N=64)
    assert "@gluon.jit" in kernel.source, kernel.remarks
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 1024, 256, dtype=torch.float16, device="cuda") for _ in range(3))
    want = example.reference(q.float(), k.float(), v.float(), causal, 0)
    out, _ = kernel(q, k, v)
    assert float((out.float() - want).norm() / want.norm()) < 3e-3


def test_sums_of_any_kind() -> None:
    import torch

    kernel = compiled(gated)
    torch.manual_seed(0)
    shapes = ((128, 64), (512, 64), (64, 128))
    a, b, w = (torch.randn(shape, dtype=torch.float16, device="cuda") for shape in shapes)
    bias = torch.randn(64, device="cuda")
    c, d = torch.empty(128, 128, device="cuda"), torch.empty(128, 64, device="cuda")
    for _ in range(3):
        kernel(a, b, w, bias, c.fill_(float("nan")), d.fill_(float("nan")))
        scores = a.float() @ b.float().T
        want = sum(torch.relu(each + bias).half().float() @ w.float() for each in scores.split(64, dim=1))
        total = sum(scores.split(64, dim=1))
        assert float((c - want).norm() / want.norm()) < 2e-3 and float((d - total).norm() / total.norm()) < 1e-3
