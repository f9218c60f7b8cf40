"""Emitted Gluon gives what NumPy gives, and no partition waits for ever: on the CPU, by a model of the machine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
from tests.support import gluon_machine
from tests.support.example_modules import load_example

CASES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "queries": 384, "keys": 384},  # an odd number of blocks: the middle one has no partner
    {"causal": True, "queries": 200, "keys": 200},
    {"causal": True, "queries": 128, "keys": 512, "configs": {"select-emitter.persistent": False}},
    {"causal": True, "queries": 300, "keys": 100},
    {"causal": True, "window": 150, "queries": 512, "keys": 512},
    {"queries": 128, "keys": 128},  # one tile
    {"dim": 128, "causal": True},
    {"dim": 256, "block_N": 64},  # results lie where queries were
    {"block_M": 192, "causal": True, "queries": 384, "keys": 384},
    {"num_stages": 3, "keys": 640},
]


def compiled(sizes: dict[str, Any], configs: dict[str, Any]) -> tiledsl.Kernel:
    passes = {"select-emitter.backend": "gluon", **configs}
    function = load_example("attention").attention.function
    return tiledsl.jit(function, target="cuda:90", pass_configs=passes).compile(**sizes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: dict[str, Any]) -> None:
    example = load_example("attention")
    shape = {name: value for name, value in case.items() if name != "configs"}
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "queries": 256, "keys": 256, "dim": 64, **shape}
    kernel = compiled(sizes, case.get("configs", {}))
    assert "@gluon.jit" in kernel.source
    torch.manual_seed(0)
    q = torch.randn(1, 2, sizes["queries"], sizes["dim"], dtype=torch.float16)
    k, v = (torch.randn(1, 1, sizes["keys"], sizes["dim"], dtype=torch.float16) for _ in range(2))
    out, lse = torch.full_like(q, float("nan")), torch.full(q.shape[:3], float("nan"))
    gluon_machine.run_gluon(kernel.source, "attention_forward", q, k, v, out, lse)
    want = example.reference(q.float(), k.float(), v.float(), sizes.get("causal", False), sizes.get("window", 0))
    seen = ~torch.isnan(want)
    assert float((out.float()[seen] - want[seen]).norm() / want[seen].norm()) < 1e-3
    assert not bool(torch.isnan(lse).any())


WRONG = {
    "used before it is waited for": ("wait(1, deps=[scores", "wait(2, deps=[scores"),
    "deadlock": ("mbarrier.arrive(v_empty.index(v_stage), count=1)", "pass"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_model_sees_what_is_wrong(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gluon_machine, "SECONDS", 0.5)
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 128, "keys": 512, "dim": 64}
    source = compiled(sizes, {}).source
    assert WRONG[name][0] in source
    q, k, v = (torch.ones(1, 1, sizes[each], 64, dtype=torch.float16) for each in ("queries", "keys", "keys"))
    with pytest.raises((TimeoutError, TypeError), match=name):
        gluon_machine.run_gluon(
            source.replace(*WRONG[name]), "attention_forward", q, k, v, torch.empty_like(q), torch.empty(1, 1, 128)
        )
