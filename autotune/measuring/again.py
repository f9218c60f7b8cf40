"""Inputs to check a configuration on a second time, made from those of the tuning.

A kernel may be right on the inputs of the tuning and on no others: it was written for their size, their values are all
alike, or a Python function has kept what it returned for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.measuring.inputs import copies, nbytes
from tiledsl.autotuner.verifying.bits import adversarial_inputs, of_rows
from tiledsl.autotuner.verifying.reference import Expected, Reference
from tiledsl.errors import TileError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiledsl.kernels.kernel import Kernel

_MOST_BYTES = 256 << 20  # of inputs: beyond, a second reference takes too long beside the tuning


@dataclass
class Further:
    """Further inputs with what is right for them. name: which they are, in words."""

    name: str
    inputs: list[Any]
    candidates: list[Expected] = field(default_factory=list)


def further_inputs(
    kernel: Kernel, inputs: Sequence[Any], ref_prog: Callable[..., Any], is_drawn: bool
) -> list[Further]:
    """Inputs whose terms cancel, if the tuning's were drawn and may be exchanged, and inputs of another size, if the
    kernel takes any. ref_prog need not be able to compute them: then there are none."""
    if nbytes(inputs) > _MOST_BYTES:
        return []
    further = []
    cancelling = next(adversarial_inputs(inputs), None) if is_drawn else None
    if cancelling is not None:
        further.append(Further("inputs that cancel", cancelling))
    smaller = _of_another_size(kernel, inputs)
    if smaller is not None:
        further.append(smaller)
    checked = []
    for case in further:
        try:
            case.candidates = Reference(ref_prog, copies(case.inputs)).candidates
        except TileError:
            continue
        checked.append(case)
    return checked


def _of_another_size(kernel: Kernel, inputs: Sequence[Any]) -> Further | None:
    """The first parts of the inputs, some two thirds along each dynamic dimension. None where that might be no inputs
    for the kernel: scalars may be sizes, and whole numbers may be places beyond them."""
    params = [param for param in kernel.params if not param.is_output]
    names = sorted({size for param in params for size in param.shape if isinstance(size, str)})
    if not names or not all(param.is_tensor and item.dtype.is_floating_point for param, item in zip(params, inputs)):
        return None
    sizes: dict[str, int] = {}
    for param, item in zip(params, inputs):
        sizes.update((name, size) for name, size in zip(param.shape, item.shape) if isinstance(name, str))
        if not item.is_contiguous():
            return None
    smaller = {name: _ragged(size) for name, size in sizes.items()}
    if smaller == sizes:
        return None
    shapes = [[smaller[size] if isinstance(size, str) else size for size in param.shape] for param in params]
    shown = ", ".join(f"{name} = {size}" for name, size in smaller.items() if size != sizes[name])
    try:
        cut = of_rows(inputs, shapes)
        kernel.check(params, cut)
    except Exception:  # a size that the program does not take
        return None
    return Further(f"another size ({shown})", cut)


def _ragged(size: int) -> int:
    """Two thirds of a size, a multiple of 16 or of what power of two divides it: programs may assume as much."""
    step = math.gcd(size, 16)
    return max(step, size * 2 // 3 // step * step) if size else 0


def varied(tensor: Any, turn: int) -> Any:
    """Other values of the same signs, none larger: floats times random numbers from a half to one. Zeros stay, unless
    there is nothing else; what is no tensor of floats stays as it is.

    Whatever else held for the values, such as their order or what they were computed from, may hold no longer; that a
    configuration is wrong on them counts if another one is right. turn: another number gives other values.
    """
    import torch

    if not tensor.dtype.is_floating_point or not tensor.numel():
        return tensor.clone()
    generator = torch.Generator(device=tensor.device).manual_seed(turn)
    chance = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float64)
    wide = tensor.detach().double()
    made = (
        (chance + 1) / 64 if not bool(wide.any()) else torch.where(torch.isfinite(wide), wide * (1 + chance) / 2, wide)
    )
    return made.to(tensor.dtype)
