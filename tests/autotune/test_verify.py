"""What counts as right: tolerances, in-place outputs, inputs that change, what is never written."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tiledsl.autotuner.measuring.inputs import changed
from tiledsl.autotuner.verifying.compare import difference
from tiledsl.autotuner.verifying.named import watched
from tiledsl.autotuner.verifying.reference import Reference
from tiledsl.autotuner.verifying.tolerance import TF32, Tolerance
from tiledsl.autotuner.verifying.verify import KernelOutputs, check_outputs

TOLERANCE = Tolerance(1e-2, 1e-2, 0.01)
DERIVED = Tolerance(None, None, 0.01)
A, B = torch.linspace(-1, 1, 1000), torch.linspace(5, 6, 1000)


def verdict(*args: Any, **options: Any) -> tuple[str, str]:
    """The status and message of `fields`."""
    found = fields(*args, **options)
    return found.get("status", "ok"), found.get("message", "")


def fields(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    has_outputs: bool = True,
    inputs: Any = (A, B),
    tolerance: Tolerance = TOLERANCE,
) -> dict[str, Any]:
    """What checking finds of a kernel, as a function that returns its outputs or changes its inputs."""
    after = [each.clone() for each in inputs]
    outputs = kernel(*after)
    touched = [at for at, (now, old) in enumerate(zip(after, inputs)) if changed(now, old)]
    ran = KernelOutputs("ABCD"[: len(after)], [outputs] if has_outputs else [], after, touched)
    found = check_outputs(ran, Reference(reference, inputs).candidates, tolerance)
    assert found.get("verified", False) == ("status" not in found)
    return found


def test_returned_outputs() -> None:
    assert verdict(lambda A, B: A + B, lambda A, B: A + B)[0] == "ok"
    assert verdict(lambda A, B: A - B, lambda A, B: A + B)[0] == "mismatch"
    assert verdict(lambda A, B: A[:5], lambda A, B: A + B)[1].startswith(
        "the output has shape (5,), ref_prog's (1000,)"
    )
    other = fields(lambda A, B: A[:5], lambda A, B: A + B)
    assert [other[name] for name in ("max_error", "mean_error", "mismatched_ratio")] == [0.0, 0.0, 0.0]
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
        "B, which it writes into, is wrong in 1000 of 1000 elements (100.00%), by 6 at most (rtol=0.01, atol=0.11); "
        "first at [0], 5 for 10, worst at [999], 6 for 12",
    )


def test_values_that_are_not_finite() -> None:
    def holed(A: Any, B: Any) -> Any:
        return torch.where(A > 0.99, math.nan, A)

    assert verdict(holed, lambda A, B: A)[0] == "nonfinite"
    assert verdict(holed, holed)[0] == "ok"


def test_atol_scales_with_the_reference() -> None:
    noise = 0.005 * torch.sin(torch.arange(1000.0))
    for scale in (1e-6, 1.0, 1e6):
        assert difference(A * scale + noise * scale, A * scale, 0.0, 1e-2).mismatched == 0
        assert difference(A * scale + 10 * noise * scale, A * scale, 0.0, 1e-2).mismatched > 500


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_comparing_in_pieces_changes_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiledsl.autotuner.verifying.compare._CHUNK", chunk)
    got, want = torch.tensor([[1.0, 2.0], [3.0, math.nan]]).t(), torch.tensor([[1.0, 3.5], [2.0, 4.0]])
    found = difference(got, want, 0.0, 0.01)
    assert (found.mismatched, found.elements, found.finite, found.max_error) == (2, 4, False, 0.5)


# A cap on single mismatches, and where they are


def test_few_elements_that_are_far_off_are_wrong() -> None:
    """Of 4096 elements 40 are less than a hundredth: TileLang's ratio lets them pass, however far off they are."""
    given = (torch.rand(64, 64) + 1, torch.rand(64, 64))

    def off(by: float) -> Any:
        def kernel(A: Any, B: Any) -> Any:
            made = A + B
            made.view(-1)[100:2100:50] += by
            return made

        return verdict(kernel, lambda A, B: A + B, inputs=given)

    status, message = off(999)
    assert status == "mismatch"
    assert "wrong in 40 of 4096 elements (0.98%), by 999 at most" in message
    assert "first at [1, 36], " in message and ", worst at [" in message
    assert message.endswith("; so few may be off, but none by more than 16 times the tolerance, and 40 are")
    assert off(1e-2)[0] == "ok"  # so far off, so few may be


def test_a_ratio_of_one_lets_everything_pass() -> None:
    ran = KernelOutputs("A", [torch.full((8,), 999.0)], [torch.ones(8)], [])
    candidates = Reference(lambda A: A, [torch.ones(8)]).candidates
    assert "status" not in check_outputs(ran, candidates, Tolerance(None, None, 1.0))
    assert check_outputs(ran, candidates, Tolerance(None, None, 0.99))["status"] == "mismatch"


def test_tolerances_of_the_user_count() -> None:
    wanted = torch.ones(1000)
    ran = KernelOutputs("A", [wanted + 1e-3], [wanted], [])
    candidates = Reference(lambda A: A, [wanted]).candidates
    assert check_outputs(ran, candidates, Tolerance(None, None, 0.01))["status"] == "mismatch"
    assert "status" not in check_outputs(ran, candidates, Tolerance(None, 1e-2, 0.01))
    assert "status" not in check_outputs(ran, candidates, Tolerance(1e-2, None, 0.01))


def test_the_cap_is_made_of_the_larger_of_what_is_wanted_and_derived() -> None:
    out = torch.ones(8)
    derived = DERIVED.of(out, [out], 0.0)
    assert (derived.most_rtol, derived.most_atol) == (derived.rtol, derived.atol)
    rough = Tolerance(0.3, 0.2, 0.01).of(out, [out], 0.0)
    assert (rough.rtol, rough.atol, rough.most_rtol, rough.most_atol) == (0.3, 0.2, 0.3, 0.2)
    fine = Tolerance(0.0, 0.0, 0.01).of(out, [out], 0.0)
    assert (fine.rtol, fine.atol, fine.most_rtol, fine.most_atol) == (0.0, 0.0, derived.rtol, derived.atol)


@pytest.mark.parametrize(
    ("dtype", "roundoff", "narrow", "expected"),
    [
        (torch.float32, 0.0, False, (2 * 2.0**-16, 8 * (2.0**-16 + 64 * 2.0**-24))),
        (torch.float32, TF32, False, (2 * 2.0**-11, 8 * (2.0**-11 + 64 * 2.0**-24))),
        (torch.float32, 0.0, True, (1e-2, 1e-2)),
        (torch.float64, 0.0, False, (2 * 2.0**-40, 8 * (2.0**-40 + 64 * 2.0**-53))),
        (torch.float16, 0.0, False, (1e-2, 1e-2)),
        (torch.float8_e5m2, 0.0, False, (0.25, 1e-2)),
    ],
)
def test_derived_tolerances(dtype: Any, roundoff: float, narrow: bool, expected: Any) -> None:
    A, B = torch.zeros(32, 4096, dtype=dtype), torch.zeros(4096, 8, dtype=dtype)
    out = torch.zeros(32, 8, dtype=dtype)
    limits = Tolerance(None, None, 0.01, roundoff, narrow).of(out, [A, B], 0.0)
    assert (limits.rtol, limits.atol) == pytest.approx(expected)


@pytest.mark.parametrize("terms", [64, 1024, 16384])
def test_right_sums_pass_and_sums_of_rounded_terms_do_not(terms: int) -> None:
    """float32 sums in several orders against float64, and sums of terms that were rounded to 16 bits before."""
    generator = torch.Generator().manual_seed(0)
    given = tuple(torch.rand(size, generator=generator) * 2 - 1 for size in ((128, terms), (terms, 128)))
    half = terms // 2
    right = [lambda A, B: A @ B, lambda A, B: A[:, :half] @ B[:half] + A[:, half:] @ B[half:]]
    wrong = [
        lambda A, B, dtype=dtype: A.to(dtype).float() @ B.to(dtype).float() for dtype in (torch.bfloat16, torch.float16)
    ]
    for kernel in right:
        assert verdict(kernel, lambda A, B: A @ B, inputs=given, tolerance=DERIVED)[0] == "ok"
    for kernel in wrong:
        assert verdict(kernel, lambda A, B: A @ B, inputs=given, tolerance=DERIVED)[0] == "mismatch"


def test_an_ill_conditioned_reference_loosens_the_tolerance() -> None:
    """float32 loses what is left of a large difference, in the reference as in a kernel."""
    given = (torch.rand(1000) + 1000, torch.rand(1000) * 1e-3)
    reference = lambda A, B: ((A + B) - A) * 1e3
    candidates = Reference(reference, list(given)).candidates
    assert candidates[0].unsure > 1e-2
    loose = Tolerance(None, None, 0.01).of(given[0], given, candidates[0].unsure)
    assert loose.atol == 1e-2


def test_a_reference_of_zeros_loses_nothing() -> None:
    precise, written = Reference(lambda A: A * 0, [A]).candidates
    assert precise.unsure == written.unsure == 0.0


def test_what_watches_the_users_code_is_told_that_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bytes] = []
    watch = SimpleNamespace(communicate=told.append)
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: watch)
    with pytest.raises(KeyError), watched("ref_prog"):
        assert not told
        raise KeyError
    assert told == [b"\n"]
