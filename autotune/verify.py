"""Check a configuration's outputs against a reference that is computed once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.inputs import copies
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError
from tiledsl.runtime.kernel import Kernel


@dataclass(frozen=True)
class Comparison:
    """How an output differs from a reference. `finite`: no NaN or infinity where the reference has a number."""

    mismatched: int
    elements: int
    max_error: float
    finite: bool
    atol: float

    @property
    def ratio(self) -> float:
        return self.mismatched / max(1, self.elements)


def compare(actual: Any, expected: Any, rtol: float, atol: float) -> Comparison:
    """Elements where |actual - expected| > atol * rms(expected) + rtol * |expected|, in float64.

    Scaling atol by the reference's root mean square keeps one tolerance right for sums of ten and of ten thousand
    products, and for outputs far below 1. NaN equals NaN, an infinity itself.
    """
    import torch

    wide = torch.complex128 if expected.dtype.is_complex else torch.float64
    got, want = actual.detach().to(expected.device, wide), expected.detach().to(wide)
    finite = want[torch.isfinite(want)]
    rms = math.sqrt((finite.abs() ** 2).mean().item()) if finite.numel() else 0.0
    scaled = atol * (rms or 1.0)
    bad = ~torch.isclose(got, want, rtol=rtol, atol=scaled, equal_nan=True)
    error = (got - want).abs()
    error = error[torch.isfinite(error)]
    largest = error.max().item() if error.numel() else 0.0
    stray = bad & torch.isfinite(want) & ~torch.isfinite(got)
    return Comparison(int(bad.sum()), bad.numel(), largest, not bool(stray.any()), scaled)


class Reference:
    """The reference's outputs for one set of inputs: in higher precision where ref_prog allows it, and as written.

    A configuration is right if it agrees with either: some references depend on their inputs' dtype, and then only the
    one as written is meant. Inputs that ref_prog writes into are copies. TileError if ref_prog raises.
    """

    def __init__(self, ref_prog: Callable[..., Any], inputs: Sequence[Any]) -> None:
        try:
            self.candidates = [_reference_outputs(ref_prog, copies(inputs))]
        except Exception as error:
            raise TileError(f"autotune: ref_prog raises {type(error).__name__}: {error}") from error
        widened = [_widened(item) for item in inputs]
        if any(wide is not item for wide, item in zip(widened, inputs)):
            try:
                precise = _reference_outputs(ref_prog, copies(widened))
            except Exception:  # a reference that casts or mixes dtypes itself
                return
            if [each.shape for each in precise] == [each.shape for each in self.candidates[0]]:
                self.candidates.insert(0, precise)


def _reference_outputs(ref_prog: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    before = copies(inputs)
    outputs = tensors(ref_prog(*inputs))
    return outputs or [now for now, old in zip(inputs, before) if _changed(now, old)]


def _widened(item: Any) -> Any:
    """Floats of 16 bits and less in float32, of 32 bits in float64: the reference's own rounding no longer counts."""
    import torch

    if not isinstance(item, torch.Tensor) or not item.dtype.is_floating_point or item.dtype is torch.float64:
        return item
    return item.to(torch.float64 if item.dtype is torch.float32 else torch.float32)


def run_poisoned(kernel: Kernel, inputs: Sequence[Any]) -> list[Any]:
    """The kernel's outputs, from buffers that held NaN (integers: a far-off number) before the call, so that elements
    which are never written show up. A kernel without outputs: the inputs that it changed. The inputs may be changed."""
    outputs = _poisoned_outputs(kernel, inputs)
    before = [] if kernel.outputs else copies(inputs)
    if outputs is None:
        results = tensors(kernel(*inputs))
    else:
        rest = iter(inputs)
        arguments = [outputs[i] if param.is_output else next(rest) for i, param in enumerate(kernel.params)]
        results = tensors(kernel(*arguments)) if kernel.outputs else tensors(kernel(*inputs))
    return results or [now for now, old in zip(inputs, before) if _changed(now, old)]


def _poisoned_outputs(kernel: Kernel, inputs: Sequence[Any]) -> dict[int, Any] | None:
    """A tensor for each output position; None where a size or stride is not known before the call."""
    import torch

    sizes: dict[str, int] = {}
    rest = iter(inputs)
    for param in kernel.params:
        given = None if param.is_output else next(rest)
        if given is not None and param.is_tensor:
            sizes.update((dim, size) for dim, size in zip(param.shape, given.shape) if isinstance(dim, str))
    device = next((item.device for item in inputs if isinstance(item, torch.Tensor)), None)
    poisoned = {}
    for position in kernel.outputs:
        param = kernel.params[position]
        shape = [sizes.get(dim) if isinstance(dim, str) else dim for dim in param.shape]
        if device is None or None in shape or param.strides is not None:
            return None
        dtype = getattr(torch, param.dtype)
        if dtype.is_floating_point:
            poisoned[position] = torch.full(shape, math.nan, device=device).to(dtype)
        else:
            filler = 1 if dtype is torch.bool else torch.iinfo(dtype).max - 5
            poisoned[position] = torch.full(shape, filler, dtype=dtype, device=device)
    return poisoned


def verify(
    trial: Trial, kernel: Kernel, inputs: Sequence[Any], reference: Reference | None, options: TuneOptions
) -> None:
    """Run the kernel once and compare its outputs; on a failure the trial says what is wrong. It gets copies of the
    inputs, so that a kernel that writes into them harms no other."""
    given = copies(inputs)
    names = [param.name for param in kernel.params if not param.is_output]
    try:
        outputs = run_poisoned(kernel, given)
        changed = [name for name, now, old in zip(names, given, inputs) if kernel.outputs and _changed(now, old)]
    except Exception as error:
        trial.fail("out_of_resources" if "out of resource" in str(error).lower() else "launch_error", error)
        return
    if reference is None:
        return
    if changed:
        trial.message = f"changes its input {', '.join(changed)}"
    if options.manual_check_prog is not None:
        written = reference.candidates[-1]
        try:
            options.manual_check_prog(_like_returned(outputs), _like_returned(written))
        except Exception as error:
            trial.fail("mismatch", error)
            return
        trial.verified = True
        return
    _judge(trial, outputs, reference, options)


def _judge(trial: Trial, outputs: list[Any], reference: Reference, options: TuneOptions) -> None:
    failure: tuple[Any, str] | None = None
    for expected in reference.candidates:
        problem = _difference(trial, outputs, expected, options)
        if problem is None:
            trial.verified = True
            return
        failure = failure or problem
    assert failure is not None
    trial.fail(*failure)


def _difference(trial: Trial, outputs: list[Any], expected: list[Any], options: TuneOptions) -> tuple[Any, str] | None:
    """The status and message of a failure, or None. Sets the trial's errors."""
    if len(outputs) != len(expected):
        return "mismatch", f"the kernel gives {len(outputs)} tensors and ref_prog {len(expected)}"
    trial.max_error = trial.mismatched_ratio = 0.0
    for number, (output, wanted) in enumerate(zip(outputs, expected)):
        name = f"output {number}" if len(outputs) > 1 else "the output"
        if tuple(output.shape) != tuple(wanted.shape):
            return "mismatch", f"{name} has shape {tuple(output.shape)}, ref_prog's {tuple(wanted.shape)}"
        found = compare(output, wanted, options.rtol, options.atol)
        trial.max_error = max(trial.max_error, found.max_error)
        trial.mismatched_ratio = max(trial.mismatched_ratio, found.ratio)
        share = f"in {found.mismatched} of {found.elements} elements ({found.ratio:.2%})"
        if not found.finite:
            return "nonfinite", f"{name} is NaN or infinite where the reference is not, or not written; wrong {share}"
        if found.ratio > options.max_mismatched_ratio:
            tolerance = f"rtol={options.rtol:g}, atol={found.atol:.3g}"
            return "mismatch", f"{name} is wrong {share}, by {found.max_error:.4g} at most ({tolerance})"
    return None


def tensors(value: Any) -> list[Any]:
    """The tensors of what a program returned."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if hasattr(item, "data_ptr")]


def _like_returned(outputs: list[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs


def _changed(now: Any, old: Any) -> bool:
    """Whether a tensor's bits differ from those of its copy."""
    import torch

    if not isinstance(now, torch.Tensor):
        return False
    same = now == old
    if now.dtype.is_floating_point:
        same |= now.isnan() & old.isnan()
    return not bool(same.all())
