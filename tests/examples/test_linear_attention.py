"""Linear attention with gates for each channel: gates that forget all, and the programs as cases of each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tiledsl
from tests.support.example_modules import load_example

LENGTH, DIM, CHUNK = 40, 32, 16
NAMES = ("gated_linear_attention", "kimi_delta_attention")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # asked when an example is loaded
    with tiledsl.settings(target="interpret"):
        yield


def results(name: str, gates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the program computes with these gates, and what the recurrence does in float64."""
    example = load_example(name)
    torch.manual_seed(1)
    q, k, v, _, *beta = example.inputs(1, 2, LENGTH, DIM, DIM, "cpu")
    arguments = [q, k, v, gates, *beta]
    kernel = getattr(example, name)(1, 2, LENGTH, DIM, DIM, CHUNK, block_D=16, block_V=16)
    expected = example.reference(*(each.double() for each in arguments))
    return kernel(*arguments).double(), expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kept", "strongest"), [(1.0, 0.0), (0.5, 30.0)])
def test_gates_may_be_anything_from_0_to_1(name: str, kept: float, strongest: float) -> None:
    torch.manual_seed(2)
    gates = -strongest * torch.rand(1, LENGTH, 2, DIM)
    gates = gates.masked_fill(torch.rand(gates.shape) >= kept, float("-inf"))
    actual, expected = results(name, gates)
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=3e-2 * float(expected.std()))


@pytest.mark.parametrize("name", NAMES)
def test_a_gate_counts_from_its_token_on(name: str) -> None:
    gates = torch.zeros(1, LENGTH, 2, DIM)
    before, _ = results(name, gates)
    gates[:, 21, 1] = float("-inf")  # in the midst of a chunk
    after, _ = results(name, gates)
    torch.testing.assert_close(after[:, :21], before[:, :21], rtol=2e-2, atol=1e-3)
    torch.testing.assert_close(after[:, :, 0], before[:, :, 0], rtol=0, atol=0)
    assert (after[:, 21:, 1] - before[:, 21:, 1]).abs().max() > 0.1
