"""What counts as right: tolerances, in-place outputs, inputs that change, what is never written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tiledsl.autotuner.measuring.inputs import changed
from tiledsl.autotuner.verifying.reference import Reference
from tiledsl.autotuner.verifying.tolerance import Tolerance
from tiledsl.autotuner.verifying.verify import Ran, compare, judge

TOLERANCE = Tolerance(1e-2, 1e-2, 0.01)
A, B = torch.linspace(-1, 1, 1000), torch.linspace(5, 6, 1000)


def verdict(
    kernel: Callable[..., Any], reference: Callable[..., Any], has_outputs: bool = True, inputs: Any = (A, B)
) -> tuple[str, str]:
    """The status and message for a kernel, as a function that returns its outputs or changes its inputs."""
    after = [each.clone() for each in inputs]
    outputs = kernel(*after)
    touched = [at for at, (now, old) in enumerate(zip(after, inputs)) if changed(now, old)]
    ran = Ran("ABCD"[: len(after)], [outputs] if has_outputs else [], after, touched)
    found = judge(ran, Reference(reference, inputs).candidates, TOLERANCE)
    assert found.get("verified", False) == ("status" not in found)
    return found.get("status", "ok"), found.get("message", "")


def test_returned_outputs() -> None:
    assert verdict(lambda A, B: A + B, lambda A, B: A + B)[0] == "ok"
    assert verdict(lambda A, B: A - B, lambda A, B: A + B)[0] == "mismatch"
    assert verdict(lambda A, B: A[:5], lambda A, B: A + B)[1].startswith(
        "the output has shape (5,), ref_prog's (1000,)"
    )
    assert verdict(lambda A, B: A, lambda A, B: (A, B))[1] == "the kernel gives 1 tensors and ref_prog 2"


def test_a_reference_that_gives_nan_is_named() -> None:
    status, message = verdict(lambda A, B: A, lambda A, B: torch.where(A > 0, math.nan, A))
    assert status == "mismatch" and "; ref_prog gives NaN in 500 of them, where the kernel gives a number" in message
    assert "ref_prog gives" not in verdict(lambda A, B: A * 2, lambda A, B: A)[1]


def test_a_reference_may_compute_in_its_inputs_and_return_them() -> None:
    assert verdict(lambda A, B: A + B, lambda A, B: A.add_(B))[0] == "ok"


def test_a_kernel_that_writes_into_its_inputs() -> None:
    def scaled(A: Any, B: Any) -> None:
        B.copy_(A * 3)

    assert verdict(lambda A, B: B.copy_(A * 3), scaled, False)[0] == "ok"
    assert verdict(lambda A, B: B.copy_(A * 3), lambda A, B: A * 3, False)[0] == "ok"
    assert verdict(lambda A, B: B.copy_(A * 3), lambda A, B: B.copy_(A * 3), False)[0] == "ok"
    status, message = verdict(lambda A, B: B[:500].copy_(A[:500] * 3), scaled, False)
    assert status == "mismatch" and message.startswith("B, which it writes into, is wrong in 500 of 1000")
    assert verdict(lambda A, B: None, scaled, False)[0] == "mismatch"
    status, message = verdict(lambda A, B: None, lambda A, B: A * 3, False)
    assert (status, message) == ("mismatch", "the kernel writes nothing: it has no outputs and changes no input")
    assert verdict(lambda A, B: (A.add_(1), B.add_(1)), lambda A, B: A * 3, False)[0] == "mismatch"


def test_inputs_that_the_reference_changes_are_outputs_too() -> None:
    def reference(A: Any, B: Any) -> Any:
        B.mul_(2)
        return A + 1

    def right(A: Any, B: Any) -> Any:
        B.mul_(2)
        return A + 1

    assert verdict(right, reference)[0] == "ok"
    assert verdict(lambda A, B: A + 1, reference) == (
        "mismatch",
        "B, which it writes into, is wrong in 1000 of 1000 elements (100.00%), by 6 at most (rtol=0.01, atol=0.11); first at [0], "
        "5 for 10, worst at [999], 6 for 12",
    )


def test_values_that_are_not_finite() -> None:
    def holed(A: Any, B: Any) -> Any:
        return torch.where(A > 0.99, math.nan, A)

    assert verdict(holed, lambda A, B: A)[0] == "nonfinite"
    assert verdict(holed, holed)[0] == "ok"


def test_atol_scales_with_the_reference() -> None:
    noise = 0.005 * torch.sin(torch.arange(1000.0))
    for scale in (1e-6, 1.0, 1e6):
        assert compare(A * scale + noise * scale, A * scale, 0.0, 1e-2).mismatched == 0
        assert compare(A * scale + 10 * noise * scale, A * scale, 0.0, 1e-2).mismatched > 500


def test_errors_are_recorded() -> None:
    found = compare(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), 0.0, 0.0)
    assert (found.max_error, found.mean_error, found.mismatched, found.finite) == (0.5, 0.25, 1, True)


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_comparing_in_pieces_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiledsl.autotuner.verifying.verify._CHUNK", chunk)
    got, want = torch.tensor([[1.0, 2.0], [3.0, math.nan]]).t(), torch.tensor([[1.0, 3.5], [2.0, 4.0]])
    found = compare(got, want, 0.0, 0.01)
    assert (found.mismatched, found.elements, found.finite, found.max_error) == (2, 4, False, 0.5)
