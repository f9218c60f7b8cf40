"""The attention programs of examples/ match torch at real shapes, and are no slower than eager torch, on a GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.example_modules import load_example

pytestmark = pytest.mark.gpu

REAL: list[tuple[str, dict[str, Any]]] = [
    ("attention", {}),
    ("attention", {"causal": 1}),
    ("attention", {"causal": 1, "kv_heads": 8}),
    ("attention", {"causal": 1, "window": 1024, "kv_heads": 8}),
    ("attention", {"causal": 1, "queries": 2000, "keys": 4057, "batch": 2}),
    ("attention", {"dim": 64, "block_N": 64}),
    ("attention_sink", {}),
    ("attention_sink", {"window": 0}),
    ("attention_sink", {"window": 0, "queries": 1000, "keys": 3001}),
    ("attention_backward", {}),
    ("attention_backward", {"causal": 1}),
    ("attention_backward", {"at_once": 1}),
    ("attention_backward", {"at_once": 1, "causal": 1, "kv_heads": 8, "queries": 2000, "keys": 2057}),
    ("attention_backward", {"causal": 1, "kv_heads": 8, "queries": 2000, "keys": 2057}),
]


@pytest.mark.parametrize(("name", "options"), REAL, ids=[f"{name} {options}" for name, options in REAL])
def test_matches_torch_and_is_no_slower(name: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    error = load_example(name).main(**options)
    said = capsys.readouterr().out
    with capsys.disabled():
        print(f"\n{said.strip()} (largest error {error:.3g})")
    ratio = re.search(r"([\d.]+)x the speed of eager torch", said)
    assert ratio is not None and float(ratio[1]) >= 1


@pytest.mark.parametrize("name", ["attention", "attention_sink", "attention_backward"])
def test_matches_torch_at_a_ragged_shape(name: str) -> None:
    example = load_example(name)
    assert 0 <= example.main(**example.SMALL) < 0.05


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": 1}, {"block_N": 96}, {"causal": 1, "block_N": 96}, {"keys": 4080}, {"queries": 500, "keys": 3000}],
    ids=str,
)
def test_float8_behind_the_last_key(options: dict[str, Any]) -> None:
    assert load_example("attention_fp8").main(**{"batch": 1, "heads": 8, "kv_heads": 8, **options}) < 0.03


def test_gradients_are_the_same_on_every_run() -> None:
    import torch

    example = load_example("attention_backward")
    inputs = example.random_inputs(1, 8, 2, 500, 700, 128)
    grad = torch.randn_like(inputs[0])

    def run(q: Any, k: Any, v: Any) -> Any:
        return example.Attention.apply(q, k, v, True)

    first = example.gradients(run, inputs, grad)
    for _ in range(5):
        for one, other in zip(example.gradients(run, inputs, grad), first):
            assert torch.equal(one, other)
