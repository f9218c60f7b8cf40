"""Whether a candidate's results are right. Outputs are poisoned first, so that what is not written is noticed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.row import Ready, Row

_CHUNK = 1 << 26  # elements compared at once: float64 copies of whole outputs would not fit beside everything
_ELEMENT = 6.0  # an element may be off by this many times the allowed relative error of the whole, see `compare`


class Wrong(Exception):
    """A candidate's result differs from the reference."""


def poison(tensor: Any) -> None:
    """Fill with NaN; integers with their least value."""
    if tensor.dtype.is_floating_point and tensor.element_size() == 1:
        tensor.view(torch.uint8).fill_(0x7F)  # NaN in e4m3 and e5m2
    elif tensor.dtype.is_floating_point:
        tensor.fill_(math.nan)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def compare(name: str, got: Any, want: Any, allowed: float) -> float:
    """||got - want|| / ||want||. Wrong if it exceeds `allowed`, or if one element is off by more than 6 * allowed *
    (root mean square of want, or of its row if that is more, + |its value|): a single wrong element hardly changes the
    norm. Rows may differ by much: the first ones of causal attention are means of a few values, the others of many."""
    if tuple(got.shape) != tuple(want.shape):
        raise Wrong(f"{name} has shape {tuple(got.shape)}, not {tuple(want.shape)}")
    width = max(1, want.shape[-1]) if want.dim() > 1 else 1
    got, want = got.detach().reshape(-1, width), want.detach().reshape(-1, width)
    rows = max(1, _CHUNK // width)
    squares = sum(float(part.double().square().sum()) for part in want.split(rows))
    rms = math.sqrt(squares / max(1, want.numel()))
    errors, off, unwritten = 0.0, 0, 0
    for part, wanted in zip(got.split(rows), want.split(rows), strict=True):
        wanted = wanted.double()
        difference = (part.double() - wanted).abs()
        unwritten += int(difference.isnan().sum())
        size = wanted.square().mean(1, keepdim=True).sqrt().clamp(min=rms) if width > 1 else rms
        off += int((difference > _ELEMENT * allowed * (size + wanted.abs())).sum())
        errors += float(difference.square().sum())
    if unwritten:
        raise Wrong(f"{unwritten} of {want.numel()} elements of {name} are NaN or not written")
    relative = math.sqrt(errors / squares) if squares else math.sqrt(errors)
    if relative > allowed or off:
        raise Wrong(f"{name} is off by {relative:.2e} of its norm ({allowed:g} allowed), {off} elements by much")
    return relative


def check(row: Row, ready: Ready, inputs: Sequence[Any], expected: Sequence[Any]) -> float:
    """Run a candidate once on poisoned outputs and compare: the largest relative error. Raises Wrong."""
    device = str(inputs[0].device)
    outputs = row.empty_outputs(device)
    for each in outputs:
        poison(each)
    call = ready.bind(inputs, outputs)
    if ready.own_outputs:
        # What it allocates is likely to be the memory that these give back.
        spoiled = row.empty_outputs(device)
        for each in spoiled:
            poison(each)
        del spoiled
    returned = call()
    if ready.own_outputs:
        outputs = [returned] if isinstance(returned, torch.Tensor) else list(returned)
    if len(outputs) < row.required:
        raise Wrong(f"gives {len(outputs)} of {row.required} outputs")
    pairs = zip(outputs, expected, row.outputs, strict=False)
    errors = []
    for number, (got, want, (shape, dtype)) in enumerate(pairs):
        name = f"output {number}" if row.required > 1 else "the output"
        if got.dtype != dtype or tuple(got.shape) != tuple(shape):
            raise Wrong(f"{name} is {tuple(got.shape)} of {got.dtype}, not {tuple(shape)} of {dtype}")
        errors.append(compare(name, got, want, row.error))
    return max(errors)
