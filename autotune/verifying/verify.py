"""Compare a kernel's outputs with the reference's. Runs where the kernels run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.verifying.compare import difference
from tiledsl.autotuner.verifying.reference import Expected
from tiledsl.autotuner.verifying.tolerance import Tolerance

_CAP = 16.0  # times the tolerance, what no single element may be off by, however few are


@dataclass
class KernelOutputs:
    """What a call of the kernel did: tensors returned, and inputs afterwards, with the positions that changed."""

    names: Sequence[str]  # of the inputs
    outputs: Sequence[Any]
    after: Sequence[Any]
    changed: Sequence[int]


def check_outputs(ran: KernelOutputs, candidates: Sequence[Expected], tolerance: Tolerance) -> dict[str, Any]:
    """The fields of a Trial that checking sets: verified, errors, and a status and message if no candidate agrees."""
    first: dict[str, Any] | None = None
    for expected in candidates:
        verdict = _against(ran, expected, tolerance)
        if "status" not in verdict:
            return verdict
        first = first or verdict
    assert first is not None
    return first


def _against(ran: KernelOutputs, expected: Expected, tolerance: Tolerance) -> dict[str, Any]:
    pairs = _pairs(ran, expected)
    if isinstance(pairs, str):
        return {"status": "mismatch", "message": pairs}
    verdict: dict[str, Any] = {"max_error": 0.0, "mean_error": 0.0, "mismatched_ratio": 0.0}
    for name, (actual, reference) in pairs.items():
        if tuple(actual.shape) != tuple(reference.shape):
            shapes = f"{name} has shape {tuple(actual.shape)}, ref_prog's {tuple(reference.shape)}"
            return {**verdict, "status": "mismatch", "message": shapes}
        limits = tolerance.of(actual, ran.after, expected.unsure)
        # What a comparison decides is true or false: there is no being off by much.
        has_cap = tolerance.max_mismatched_ratio < 1 and str(reference.dtype) != "torch.bool"
        cap = (_CAP * limits.most_rtol, _CAP * limits.most_atol) if has_cap else None
        errors = difference(actual, reference, limits.rtol, limits.atol, cap)
        verdict["max_error"] = max(verdict["max_error"], errors.max_error)
        verdict["mean_error"] = max(verdict["mean_error"], errors.mean_error)
        verdict["mismatched_ratio"] = max(verdict["mismatched_ratio"], errors.ratio)
        if errors.finite and errors.ratio <= tolerance.max_mismatched_ratio and not errors.beyond:
            continue
        share = f"in {errors.mismatched} of {errors.elements} elements ({errors.ratio:.2%})"
        where = f"; first {_at(errors.first, actual, reference)}, worst {_at(errors.worst, actual, reference)}"
        places = {
            "at": {"name": name, "first": _place(errors.first, reference), "worst": _place(errors.worst, reference)}
        }
        if not errors.finite:
            why = f"{name} is NaN or infinite where the reference is not, or not written; wrong {share}{where}"
            return {**verdict, **places, "status": "nonfinite", "message": why}
        shown = f"rtol={limits.rtol:.3g}, atol={errors.atol:.3g}"
        why = f"{name} is wrong {share}, by {errors.max_error:.4g} at most ({shown}){where}"
        if errors.ratio <= tolerance.max_mismatched_ratio:
            why += f"; so few may be off, but none by more than {_CAP:g} times the tolerance, and {errors.beyond} are"
        if errors.unknown:
            why += f"; ref_prog gives NaN in {errors.unknown} of them, where the kernel gives a number"
        return {**verdict, **places, "status": "mismatch", "message": why}
    return {**verdict, "verified": True}


def _place(number: int, tensor: Any) -> list[int]:
    """The indices of an element of the flattened tensor."""
    place = []
    for size in reversed(tensor.shape):
        place.append(number % size)
        number //= size
    return place[::-1]


def _at(number: int, got: Any, wanted: Any) -> str:
    place = _place(number, wanted)
    one, other = (value[tuple(place)].item() for value in (got, wanted))
    shown = [f"{each:.6g}" if isinstance(each, float) else str(each) for each in (one, other)]
    return f"at {place}, {shown[0]} for {shown[1]}"


def _pairs(ran: KernelOutputs, expected: Expected) -> Mapping[str, tuple[Any, Any]] | str:
    """What to compare with what, by name; a text where the kernel and the reference do not give the same things.

    Returned tensors are compared in order, and inputs that the reference changes with the kernel's. A kernel without
    outputs writes into its inputs: a tensor that the reference returns stands for the input that it is, or else for
    the next one that the kernel changes.
    """
    pairs: dict[str, tuple[Any, Any]] = {}
    outputs, references = list(ran.outputs), list(expected.returned)
    in_place = dict(expected.changed)
    if not outputs and not references and not in_place:
        return "there is nothing to compare"
    if not outputs and references:
        in_place.update({at: value for at, value in zip(expected.aliases, references) if at is not None})
        references = [value for at, value in zip(expected.aliases, references) if at is None]
        rest = [at for at in ran.changed if at not in in_place]
        if references and not ran.changed:
            return "the kernel writes nothing: it has no outputs and changes no input"
        if references and len(rest) != len(references):
            return f"the kernel changes {len(rest)} inputs and ref_prog returns {len(references)} tensors"
        in_place.update(zip(rest, references))
    elif outputs and not references and len(outputs) == len(in_place):
        references, in_place = list(in_place.values()), {}
    elif len(outputs) != len(references):
        return f"the kernel gives {len(outputs)} tensors and ref_prog {len(references)}"
    if outputs:  # a reference may compute its results in its inputs and return those: they are compared already
        in_place = {at: value for at, value in in_place.items() if at not in expected.aliases}
        for number, pair in enumerate(zip(outputs, references)):
            pairs[f"output {number}" if len(outputs) > 1 else "the output"] = pair
    for at, value in in_place.items():
        pairs[f"{ran.names[at]}, which it writes into,"] = (ran.after[at], value)
    return pairs
