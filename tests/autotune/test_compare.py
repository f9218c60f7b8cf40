"""Comparing outputs as a whole: against plain Python, element by element; what is compared with what; and how a
reference is run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.autotuner.verifying import compare
from tiledsl.autotuner.verifying.compare import TensorDifference, difference, rms
from tiledsl.autotuner.verifying.reference import Expected, Reference, unread
from tiledsl.autotuner.verifying.tolerance import LOOSEST, TF32, Limits, Tolerance, roundings, unit_roundoff
from tiledsl.autotuner.verifying.verify import KernelOutputs, check_outputs
from tiledsl.errors import TileError

NAN, INF = math.nan, math.inf
STEPS = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1.5, -2.0, 3.0, 4.0, NAN, INF, -INF])
LIMITS = st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([0.0, 0.5, 1.0]))


def apart(got: Any, want: Any) -> float:
    """Infinite where there is no distance."""
    if got != got or want != want:
        return 0.0 if got != got and want != want else INF
    return 0.0 if got == want else float(abs(got - want))


def plain(
    got: list[Any], want: list[Any], rtol: float, atol: float, cap: tuple[float, float] | None
) -> TensorDifference:
    finite = [abs(each) for each in want if math.isfinite(abs(each))]
    scale = math.sqrt(sum(each * each for each in finite) / len(finite)) if finite else 0.0
    scale = scale or 1.0
    errors = [apart(*pair) for pair in zip(got, want)]

    def off(error: float, wanted: Any, rtol: float, atol: float) -> bool:
        return error > 0 and not (error < INF and error <= atol * scale + rtol * abs(wanted))

    bad = [off(error, wanted, rtol, atol) for error, wanted in zip(errors, want)]
    beyond = [is_bad and cap is not None and off(error, w, *cap) for is_bad, error, w in zip(bad, errors, want)]
    wrong = [error if is_bad else -1.0 for is_bad, error in zip(bad, errors)]
    # between infinities there is no distance
    known = [e for e, g, w in zip(errors, got, want) if e < INF and math.isfinite(abs(g)) and math.isfinite(abs(w))]
    return TensorDifference(
        sum(bad),
        len(want),
        max(known, default=0.0),
        math.fsum(known) / max(1, len(known)),
        not any(is_bad and math.isfinite(abs(w)) and not math.isfinite(abs(g)) for is_bad, g, w in zip(bad, got, want)),
        atol * scale,
        sum(w != w and g == g for g, w in zip(got, want)),
        bad.index(True) if any(bad) else -1,
        wrong.index(max(wrong)) if any(bad) else -1,
        sum(beyond),
    )


@settings(max_examples=60)
@given(st.lists(st.tuples(STEPS, STEPS), max_size=7), LIMITS, st.none() | LIMITS, st.sampled_from([1, 2, 1 << 20]))
def test_differences_are_those_of_plain_python(
    pairs: list[tuple[float, float]], limits: tuple[float, float], cap: tuple[float, float] | None, chunk: int
) -> None:
    got, want = [one for one, _ in pairs], [other for _, other in pairs]
    whole, compare._CHUNK = compare._CHUNK, chunk
    try:
        for dtype in (torch.float16, torch.complex64):
            found = difference(torch.tensor(got, dtype=dtype), torch.tensor(want, dtype=dtype), *limits, cap)
            assert found == plain(got, want, *limits, cap)
        assert rms(torch.tensor(want)) == pytest.approx(plain(want, want, 0.0, 1.0, None).atol if any(
            math.isfinite(each) and each for each in want) else 0.0)  # fmt: skip
    finally:
        compare._CHUNK = whole
    assert found.ratio == found.mismatched / (len(want) or 1)


WHOLE = {"bool": 1, "int8": 2**7 - 1, "int32": 2**31 - 1, "uint32": 2**32 - 1, "int64": 2**63 - 1, "uint64": 2**64 - 1}


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_differ_in_their_last_bit(dtype: str) -> None:
    """float64 does not have it where there are 64 of them."""
    most = WHOLE[dtype]
    least = -most - 1 if dtype.startswith("i") else 0
    values = sorted({least, least + 1, most // 2, most - 1, most, 0, min(most, 2**32), min(most, 2**31)})
    pairs = list(itertools.product(values, values))
    tensors = [torch.tensor(each, dtype=getattr(torch, dtype)) for each in zip(*pairs)]
    found = difference(*tensors, 0.0, 0.0)
    wrong = [one != other for one, other in pairs]
    assert (found.mismatched, found.first, found.finite) == (sum(wrong), wrong.index(True), True)
    assert found.max_error == float(most - least) and difference(*tensors, 1.0, 1.0).mismatched < found.mismatched
    for one, other in pairs:
        tensors = [torch.tensor([each], dtype=getattr(torch, dtype)) for each in (one, other)]
        assert difference(*tensors, 0.0, 0.0).max_error == float(abs(one - other))


def test_outputs_and_references_of_other_types() -> None:
    numbers = torch.tensor([2**53 + 1, 2**53])
    assert difference(numbers, numbers.double(), 0.0, 0.0).mismatched == 0  # as float64 has them
    assert difference(numbers, torch.tensor([2**53 + 2, 2**53], dtype=torch.uint64), 0.0, 0.0).max_error == 1
    found = difference(torch.tensor([1.0, 2.0]), torch.tensor([1 + 1j, 2]), 0.0, 0.0)
    assert (found.mismatched, found.max_error, found.worst) == (1, 1.0, 0)
    found = difference(torch.tensor([1 + 1j, 2]), torch.tensor([1.0, 2.0]), 0.0, 0.0)
    assert (found.mismatched, found.max_error, found.worst) == (1, 1.0, 0)
    assert difference(torch.empty(0), torch.empty(0), 0.0, 0.0).max_error == 0.0
    assert rms(torch.tensor([math.nan, math.inf])) == 0.0 and rms(torch.tensor([math.inf, 2.0])) == 2.0
    assert rms(torch.tensor([3 + 4j, 0])) == pytest.approx(math.sqrt(12.5))


# What is compared with what

X, Y, Z = (torch.full((2,), each) for each in (1.0, 2.0, 3.0))


def compared(outputs: list[Any], after: list[Any], changed: list[int], expected: Expected) -> dict[str, Any]:
    return check_outputs(KernelOutputs("ABC", outputs, after, changed), [expected], Tolerance(0.0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("outputs", "after", "changed", "expected", "message"),
    [
        ([], [X], [], Expected([], []), "there is nothing to compare"),
        ([X], [Y], [], Expected([X], [None]), ""),
        ([X, Y], [Z], [], Expected([X, Y], [None, None]), ""),
        ([X, Y], [Z], [], Expected([Y, X], [None, None]), "output 0 is wrong in 2 of 2"),
        ([X, Y], [Z], [], Expected([X, Z], [None, None]), "output 1 is wrong in 2 of 2"),
        ([X, Y], [Z], [], Expected([X], [None]), "the kernel gives 2 tensors and ref_prog 1"),
        ([X], [Z], [0], Expected([X], [None], {0: Z}), ""),  # an output, and an input in place
        ([X], [Z], [0], Expected([X], [None], {0: Y}), "A, which it writes into, is wrong in 2 of 2"),
        ([X], [Z], [], Expected([X], [0], {0: X}), ""),  # computed in the input, which the kernel leaves alone
        ([X], [Z], [], Expected([Y], [0], {0: Y}), "the output is wrong in 2 of 2"),
        ([X], [Z], [], Expected([], [], {0: X}), ""),  # outputs are the inputs that a reference changes
        ([X], [Z], [], Expected([], [], {0: Y}), "the output is wrong in 2 of 2"),
        ([X], [Z, Z], [], Expected([], [], {0: X, 1: X}), "the kernel gives 1 tensors and ref_prog 0"),
        ([], [X, Y], [0], Expected([], [], {0: X}), ""),
        ([], [X, Y], [], Expected([], [], {1: X}), "B, which it writes into, is wrong in 2 of 2"),
        ([], [X, Y], [], Expected([Z], [None]), "the kernel writes nothing: it has no outputs and changes no input"),
        ([], [X, Y], [1], Expected([Y], [None]), ""),  # a tensor stands for the one that is changed
        ([], [X, Y], [1], Expected([X], [None]), "B, which it writes into, is wrong in 2 of 2"),
        ([], [X, Y], [1], Expected([X], [0]), ""),  # or for the input that it is
        ([], [X, Y], [1], Expected([Y], [0]), "A, which it writes into, is wrong in 2 of 2"),
        ([], [X, Y], [0, 1], Expected([Y], [1], {0: X}), ""),
        ([], [X, Y, Z], [0, 2], Expected([X, Z], [None, None]), ""),
        ([], [X, Y, Z], [0, 2], Expected([Z, X], [2, None]), ""),
        (
            [],
            [X, Y, Z],
            [0, 1, 2],
            Expected([X, Z], [None, None]),
            "the kernel changes 3 inputs and ref_prog returns 2 tensors",
        ),
        (
            [],
            [X, Y, Z],
            [1],
            Expected([X], [None], {1: Y}),
            "the kernel changes 0 inputs and ref_prog returns 1 tensors",
        ),
        ([X[:1]], [Z], [], Expected([X], [None]), "the output has shape (1,), ref_prog's (2,)"),
    ],
)
def test_what_is_compared_with_what(
    outputs: list[Any], after: list[Any], changed: list[int], expected: Expected, message: str
) -> None:
    verdict = compared(outputs, after, changed, expected)
    assert verdict.get("status", "ok") == ("mismatch" if message else "ok")
    assert verdict.get("message", "").startswith(message)


def test_a_verdict_has_the_most_of_all_outputs() -> None:
    tolerance = Tolerance(0.0, 1.0, 0.5)
    first, second = torch.tensor([1.0, 1.0, 1.5, 3.5]), torch.tensor([1.0, 1.25, 1.0, 1.0])
    ones, names = torch.ones(4), {"max_error": 2.5, "mean_error": 0.75, "mismatched_ratio": 0.25}
    for outputs in ([first, second], [second, first]):
        ran = KernelOutputs("A", outputs, [ones], [])
        assert check_outputs(ran, [Expected([ones, ones], [None, None])], tolerance) == {**names, "verified": True}
    ran = KernelOutputs("A", [first, -second * 9], [ones], [])
    found = check_outputs(ran, [Expected([ones, ones], [None, None])], tolerance)
    assert found == {
        "max_error": 12.25,
        "mean_error": 10.5625,
        "mismatched_ratio": 1.0,
        "status": "mismatch",
        "at": {"name": "output 1", "first": [0], "worst": [1]},
        "message": "output 1 is wrong in 4 of 4 elements (100.00%), by 12.25 at most (rtol=0, atol=1); "
        "first at [0], -9 for 1, worst at [1], -11.25 for 1",
    }


def test_an_output_may_be_empty() -> None:
    none = torch.zeros(0, 4)
    assert compared([none, X], [X], [], Expected([none, X], [None, None]))["verified"]
    assert compared([none, X], [X], [], Expected([none, Y], [None, None]))["status"] == "mismatch"


def test_of_several_candidates_one_has_to_agree_and_the_first_is_named() -> None:
    ran = KernelOutputs("A", [X], [X], [])
    one, other, right = (Expected([each], [None]) for each in (Y, Z, X))
    assert check_outputs(ran, [one, right], Tolerance(0.0, 0.0, 0.0))["verified"]
    found = check_outputs(ran, [one, other], Tolerance(0.0, 0.0, 0.0))
    assert "verified" not in found and "1 for 2, worst" in found["message"]


@pytest.mark.parametrize(
    ("off", "ratio", "status"),
    [(16.0, 0.25, "ok"), (17.0, 0.25, "mismatch"), (1.5, 0.2, "mismatch"), (1.0, 0.0, "ok"), (99.0, 1.0, "ok")],
)
def test_how_many_may_be_off_and_how_far(off: float, ratio: float, status: str) -> None:
    got = torch.tensor([1.0, 1.0, 1.0, 1.0 + off])
    ran = KernelOutputs("A", [got], [got], [])
    found = check_outputs(ran, [Expected([torch.ones(4)], [None])], Tolerance(0.0, 1.0, ratio))
    assert found.get("status", "ok") == status
    assert ("so few may be off" in found.get("message", "")) == (off == 17.0)


def test_what_is_true_or_false_is_never_far_off() -> None:
    want = torch.tensor([True] * 8)
    got = want.clone()
    got[3] = False
    assert compared([got], [X], [], Expected([want], [None]))["at"] == {
        "name": "the output",
        "first": [3],
        "worst": [3],
    }
    ran = KernelOutputs("A", [got], [want], [])
    assert "verified" in check_outputs(ran, [Expected([want], [None])], Tolerance(None, None, 0.2))
    numbers = KernelOutputs("A", [got.int()], [want], [])
    assert "verified" not in check_outputs(numbers, [Expected([want.int()], [None])], Tolerance(None, None, 0.2))


def test_what_is_not_finite_and_where() -> None:
    want = torch.arange(6.0).reshape(2, 3)
    got = want.clone()
    got[1, 0], got[1, 2] = NAN, 7
    assert compared([got], [want], [], Expected([want], [None])) == {
        "max_error": 2.0,
        "mean_error": 0.4,
        "mismatched_ratio": 2 / 6,
        "status": "nonfinite",
        "at": {"name": "the output", "first": [1, 0], "worst": [1, 0]},
        "message": "the output is NaN or infinite where the reference is not, or not written; wrong in 2 of 6 elements "
        "(33.33%); first at [1, 0], nan for 3, worst at [1, 0], nan for 3",
    }


# How far a right kernel may be off


def of(dtype: Any, *shape: int) -> Any:
    return torch.zeros(shape, dtype=dtype)


F, D, I, H = torch.float32, torch.float64, torch.int32, torch.bfloat16
EIGHT = torch.float8_e5m2


@pytest.mark.parametrize(
    ("out", "inputs", "options", "expected"),
    [
        (of(I, 4), [of(I, 4), 3], {}, (0.0, 0.0)),
        (of(torch.bool, 4), [of(I, 4), 3, True], {}, (0.0, 0.0)),
        (of(I, 4), [of(F, 4)], {}, (LOOSEST, LOOSEST)),
        (of(I, 4), [of(torch.complex64, 4)], {}, (LOOSEST, LOOSEST)),
        (of(I, 4), [of(I, 4), 0.5], {}, (LOOSEST, LOOSEST)),
        (of(I, 4), [of(I, 4)], {"roundoff": TF32}, (LOOSEST, LOOSEST)),
        (of(F, 4), [of(I, 4)], {}, (2 * 2.0**-16, 8 * (2.0**-16 + 2 * 2.0**-24))),
        (of(D, 4), [of(D, 4)], {}, (2 * 2.0**-40, 8 * (2.0**-40 + 2 * 2.0**-53))),
        (of(torch.complex128, 4), [of(D, 9)], {}, (2 * 2.0**-40, 8 * (2.0**-40 + 3 * 2.0**-53))),
        (of(torch.complex64, 1), [of(torch.complex64, 9)], {}, (2 * 2.0**-16, 8 * (2.0**-16 + 3 * 2.0**-24))),
        (of(F, 4), [of(D, 4)], {}, (2 * 2.0**-16, 8 * (2.0**-16 + 2 * 2.0**-24))),
        (of(D, 4), [of(F, 4)], {}, (2 * 2.0**-16, 8 * (2.0**-16 + 2 * 2.0**-24))),
        (of(D, 4), [of(D, 4)], {"roundoff": 2.0**-53}, (2 * 2.0**-40, 8 * (2.0**-40 + 2 * 2.0**-53))),
        (of(D, 4), [of(D, 4)], {"roundoff": 2.0**-24}, (2 * 2.0**-16, 8 * (2.0**-16 + 2 * 2.0**-24))),
        (of(F, 2, 2), [of(F, 8, 8)], {}, (2 * 2.0**-16, 8 * (2.0**-16 + 4 * 2.0**-24))),  # 16 elements to one
        (of(F, 0), [of(F, 3, 3)], {}, (2 * 2.0**-16, 8 * (2.0**-16 + 3 * 2.0**-24))),
        (of(F), [5], {}, (2 * 2.0**-16, 8 * (2.0**-16 + 2.0**-24))),
        (of(F, 4), [of(H, 4)], {}, (LOOSEST, LOOSEST)),
        (of(H, 4), [of(F, 4)], {}, (LOOSEST, LOOSEST)),
        (of(EIGHT, 4), [of(F, 4)], {}, (0.25, LOOSEST)),
        (of(F, 4), [of(EIGHT, 4)], {}, (LOOSEST, LOOSEST)),
        (of(F, 4), [of(F, 4)], {"is_narrow": True}, (LOOSEST, LOOSEST)),
        (of(F, 4), [of(F, 1 << 28)[:0], of(F, 4)], {"roundoff": 0.01}, (LOOSEST, LOOSEST)),
        (of(F, 4), [of(F, 4)], {"unsure": 2.0**-11}, (2 * 2.0**-16, 8 * 2.0**-11)),
        (of(F, 4), [of(F, 4)], {"unsure": 2.0**-30}, (2 * 2.0**-16, 8 * (2.0**-16 + 2 * 2.0**-24))),
        (of(F, 4), [of(F, 4)], {"unsure": 0.5}, (2 * 2.0**-16, LOOSEST)),
    ],
)
def test_what_is_derived(out: Any, inputs: list[Any], options: dict[str, Any], expected: tuple[float, float]) -> None:
    options = dict(options)
    unsure = options.pop("unsure", 0.0)
    found = Tolerance(None, None, 0.01, **options).of(out, inputs, unsure)
    assert found == Limits(*expected, *expected)
    assert Tolerance(0.5, 0.0, 0.01, **options).of(out, inputs, unsure) == Limits(0.5, 0.0, 0.5, expected[1])


def test_unit_roundoffs() -> None:
    found = {str(each)[6:]: unit_roundoff(each) for each in (F, D, torch.float16, H, EIGHT, torch.complex64)}
    assert found == {
        "float32": 2.0**-24,
        "float64": 2.0**-53,
        "float16": 2.0**-11,
        "bfloat16": 2.0**-8,
        "float8_e5m2": 2.0**-3,
        "complex64": 2.0**-24,
    }


def test_pieces_are_compared_where_the_reference_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_CHUNK", 3)
    pieces = list(compare._chunks(torch.ones(2, 2), torch.ones(2, 2, device="meta")))
    assert [[(each.device.type, each.numel()) for each in piece] for piece in pieces] == [
        [("meta", 3), ("meta", 3)], [("meta", 1), ("meta", 1)]
    ]  # fmt: skip


# References


def doubled(A: Any, B: Any) -> Any:
    return A * 2 + B


@pytest.mark.parametrize(
    ("given", "reference", "types", "changed"),
    [
        ([X, 3], doubled, [F, F], []),  # float64 inside, kept as float32
        ([X.double(), 3], doubled, [D], []),
        ([X.int(), 3], doubled, [I], []),
        ([X.half(), 3], doubled, [F, torch.float16], []),
        ([X.half(), 3], lambda A, B: A.double(), [D, D], []),
        ([X.half(), Y], lambda A, B: A @ X.half(), [torch.float16], []),  # no two types
        ([X.half(), Y.half()], lambda A, B: A + B if A.dtype != D else 1 / 0, [F, torch.float16], []),
        ([X.half(), 3], lambda A, B: A if A.dtype == torch.float16 else A[:1], [torch.float16], []),
        ([X, 3], lambda A, B: A.add_(B), [F, F], [0]),
        ([X, 3], lambda A, B: None if A.add_(B) is A else A, [F, F], [0]),
    ],
)
def test_a_reference_is_run_in_more_precision(given: list[Any], reference: Any, types: list[Any], changed: Any) -> None:
    before = [each.clone() if hasattr(each, "data_ptr") else each for each in given]
    made = Reference(reference, given)
    tensors = [(each.returned or list(each.changed.values()))[0] for each in made.candidates]
    assert [each.dtype for each in tensors] == types
    assert made.as_written[0] is tensors[-1] and all(list(each.changed) == changed for each in made.candidates)
    assert all(value.dtype == dtype for each, dtype in zip(made.candidates, types) for value in each.changed.values())
    assert all(one is two or one.equal(two) for one, two in zip(given, before))


def test_what_is_returned_may_be_an_input() -> None:
    made = Reference(lambda A, B: (B, A + B, A, A[:1]), [X, Y]).candidates[-1]
    assert made.aliases == [1, None, 0, None] and made.changed == {}


def test_what_a_reference_loses_is_a_share_of_its_size() -> None:
    made = Reference(lambda A: A * 2, [torch.full((4,), 3.0).double()])  # in the most precise type at once
    assert [each.unsure for each in made.candidates] == [0.0]
    made = Reference(lambda A: A * 0 if A.dtype == F else A * 1, [torch.full((4,), 3.0)])
    assert [each.unsure for each in made.candidates] == [1.0, 1.0]
    made = Reference(lambda A: A * 1 if A.dtype == F else A * 0, [torch.full((4,), 3.0)])
    assert [each.unsure for each in made.candidates] == [3.0, 3.0]  # of nothing there is no share
    made = Reference(
        lambda A: (A.int() * (1 if A.dtype == F else 2), A[:0], A + (1 if A.dtype == F else 0)), [torch.full((4,), 4.0)]
    )
    assert [each.unsure for each in made.candidates] == [0.25, 0.25]

    def in_place(A: Any) -> None:
        A.mul_(2 if A.dtype == F else 4)

    made = Reference(in_place, [torch.full((4,), 4.0)])
    assert [each.unsure for each in made.candidates] == [0.5, 0.5]


def test_a_reference_that_gives_nothing_or_raises() -> None:
    wanted = "^autotune: ref_prog returns no tensor and changes no input, so there is nothing to compare"
    with pytest.raises(TileError, match=wanted) as caught:
        Reference(lambda A: 5, [X])
    assert caught.value.notes == ["return the right outputs, or pass skip_check=True"]
    with pytest.raises(TileError, match="ref_prog"):
        Reference(lambda A: 1 / 0, [X])


def filled(A: Any, B: Any, n: Any) -> Any:
    A.fill_(float(n))
    return A


def zeroed(A: Any, B: Any, n: Any) -> None:
    A.copy_(B)


@pytest.mark.parametrize(
    ("reference", "given", "expected"),
    [
        (lambda A, B, n: A + n, [X, Y, 2], [1]),
        (lambda A, B, n: A + B, [X, Y, 2], []),
        (lambda A, B, n: A.shape, [X, Y, 2], [0, 1]),
        (filled, [X, Y, 2], [0, 1]),
        (zeroed, [X, Y, 2], [0]),
        (lambda A, B, n: A.add_(B), [X, Y, 2], []),
        (lambda A, B, n: A[0] + n, [X, torch.zeros(0), 2], []),  # nothing to read
        (lambda A, B, n: 1 / 0, [X, Y, 2], []),
        (lambda A, B, n: exit(), [X, Y, 2], []),
        (lambda A, B, n: [A] if A.isnan().any() else [A, A], [X, Y, 2], [1]),
        (lambda A, B, n: A * 0 if not B.isnan().any() else (A * 0)[:1], [X, Y, 2], []),
        (lambda A, B, n: B if not A.isnan().any() else B.double(), [X, Y, 2], []),
        (lambda A, B, n: A.zero_(), [torch.zeros(2), Y, 2], [0, 1]),
    ],
)
def test_what_a_reference_does_not_read(reference: Callable[..., Any], given: list[Any], expected: list[int]) -> None:
    assert unread(reference, given) == expected


def test_roundings_of_a_program() -> None:
    from tests.autotune.kernels import gemm
    from tests.passes.ir_cases import program

    def product(dtype: str, out: str) -> Any:
        return roundings(gemm.kernel_for(gemm._bind((), {
            "M": 64, "N": 64, "K": 64, "block_M": 32, "block_N": 32, "block_K": 32, "num_stages": 2, "threads": 128,
            "dtype": dtype, "out": out}), {})._build())  # fmt: skip

    assert product("float16", "float32") == (0.0, True)
    assert product("float32", "float32") == (2.0**-11, False)
    assert product("float32", "bfloat16") == (2.0**-11, True)
    assert product("int8", "int32") == (0.0, False)
    assert roundings(program("%x = arith.add %f, %f : float32", parameters="f: float32").root) == (0.0, False)
    tiles = "%a = tile.alloc : buffer<16*16*{}, shared> %c = tile.alloc : buffer<16*16*float32, fragment>"
    for dtype, precision, coarsest in (
        ("float32", "tf32", 2.0**-11), ("float32", "tf32x3", 2.0**-11),
        ("float32", "ieee", 0.0), ("float64", "tf32", 0.0),
    ):  # fmt: skip
        text = f'{tiles.format(dtype)} tile.gemm %a, %a, %c {{precision = "{precision}"}}'
        assert roundings(program(text, parameters="f: float32").root) == (coarsest, False)
