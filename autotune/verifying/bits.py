"""The bits of what a kernel computes, on inputs whose sums show in which order they were added. Runs where kernels do.

A sum of floats depends on the order where terms cancel or differ much in size. So beside the inputs of the tuning
there are three made from them, with the same shapes, largest sizes, and sign where all have one: terms that alternate
and nearly cancel their neighbours, terms that cancel others half a dimension away, and terms of very different
exponents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tiledsl.autotuner.measuring.wire import with_strides

_CHUNK = 1 << 24  # elements at once
_SEED = 20_250_607
_EXPONENTS = 20.0  # powers of two between the largest and the smallest terms
VARIES = "varies"  # in place of bits that were not the same twice


def fingerprint(tensors: Sequence[Any]) -> str:
    """128 bits of all elements' bits and their places, as text. Equal tensors give equal ones, on any device."""
    import torch

    texts = []
    for tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1)
        if flat.dtype.is_complex:
            flat = torch.view_as_real(flat).reshape(-1)
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
        words = flat.view(width)
        sums = [0, 0]
        for start in range(0, words.numel(), _CHUNK):
            part = words[start : start + _CHUNK].to(torch.int64)
            place = torch.arange(start, start + part.numel(), dtype=torch.int64, device=part.device)
            for number, odd in enumerate((0x1E3779B97F4A7C15, 0x42B2AE3D27D4EB4F)):
                weight = _mixed(place * 2 + number, odd)
                sums[number] += int((_mixed(part ^ weight, odd)).sum().item())
        texts.append(":".join(f"{each % (1 << 64):016x}" for each in sums) + f"/{words.numel()}")
    return " ".join(texts)


def _mixed(words: Any, odd: int) -> Any:
    """A bijection of 64-bit words after which each bit depends on all; multiplication wraps."""
    words = (words ^ (words >> 31)) * odd
    return words ^ (words >> 29)


def adversarial_inputs(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Three sets of inputs; what is no tensor of floats stays. No value is larger than the largest given one, and where
    none is negative, or none positive, none becomes so."""
    if any(_is_float(tensor) and tensor.numel() for tensor in inputs):
        for kind in (_alternating, _distant, _of_all_sizes):
            place = 0
            changed = []
            for tensor in inputs:
                if _is_float(tensor) and tensor.numel():
                    changed.append(_like(tensor, kind, place))
                    place += 1
                else:
                    changed.append(tensor.clone() if hasattr(tensor, "data_ptr") else tensor)
            yield changed


def _is_float(value: Any) -> bool:
    return hasattr(value, "data_ptr") and value.dtype.is_floating_point


def _like(tensor: Any, kind: Any, place: int) -> Any:
    """A tensor of the same shape, strides and type, with values of the given one's sign, up to its largest size."""
    import torch

    wide = tensor.detach().float()
    wide = torch.where(torch.isfinite(wide), wide, 0)
    largest, least, most = float(wide.abs().max()), float(wide.min()), float(wide.max())
    generator = torch.Generator(device=wide.device).manual_seed(_SEED + place)
    numbers, signs = (torch.rand(tensor.shape, generator=generator, device=wide.device) for _ in range(2))
    values = kind(numbers, signs < 0.5, place)
    if least >= 0 or most <= 0:
        values = values.abs() if least >= 0 else -values.abs()
    made = (values * (largest or 1.0)).to(tensor.dtype)
    return with_strides(made, tensor.stride())


def _places(numbers: Any) -> Any:
    """The sum of an element's indices."""
    import torch

    total: Any = 0
    for axis, size in enumerate(numbers.shape):
        shape = [1] * numbers.dim()
        shape[axis] = size
        total = total + torch.arange(size, device=numbers.device).reshape(shape)
    return total


def _alternating(numbers: Any, signs: Any, place: int) -> Any:
    """The first input changes its sign from element to element along each dimension; the others are all near one."""
    values = 1 - numbers / 16
    return values * (1 - 2 * (_places(numbers) % 2)) if place == 0 else values


def _distant(numbers: Any, signs: Any, place: int) -> Any:
    """The second half of the first input's last dimension is the first half's negative, nearly; and so that of its
    first dimension."""
    values = numbers * signs + numbers / 2 + 0.25
    if place == 0 and numbers.dim():
        for axis in {0, numbers.dim() - 1}:
            half = numbers.shape[axis] // 2
            if half:
                values.narrow(axis, half, half).copy_(-values.narrow(axis, 0, half) * (1 - 2.0**-9))
    return values / 1.75


def _of_all_sizes(numbers: Any, signs: Any, place: int) -> Any:
    """Random signs, and exponents over a wide range."""
    import torch

    exponents = torch.floor((numbers * 977) % 1 * _EXPONENTS)
    return (0.5 + numbers / 2) * torch.exp2(-exponents) * torch.where(signs, -1.0, 1.0)


def of_rows(inputs: Sequence[Any], shapes: Sequence[Sequence[int] | None]) -> list[Any]:
    """Inputs with more or fewer rows: `shapes` are the wanted ones (None: as it is). Rows beyond the last come again
    from the first."""
    import torch

    resized: list[Any] = []
    for tensor, shape in zip(inputs, shapes, strict=True):
        if shape is not None:
            for axis, (size, wanted) in enumerate(zip(tensor.shape, shape, strict=True)):
                if size != wanted and size:
                    index = torch.arange(wanted, device=tensor.device) % size
                    tensor = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
                    tensor = tensor.index_select(axis, index).view(inputs[len(resized)].dtype)
        resized.append(tensor)
    return resized


def first_rows(tensors: Sequence[Any], dims: Sequence[int | None], count: int) -> list[Any]:
    """The first rows of outputs, by which dimension counts them; an output without rows whole."""
    return [each if axis is None else each.narrow(axis, 0, count) for each, axis in zip(tensors, dims, strict=True)]


def rows_of(shapes: Mapping[str, Sequence[Any]], others: Mapping[str, Sequence[Any]]) -> dict[str, int]:
    """The dimension of each parameter that counts rows: the first in which its shapes at two numbers differ."""
    dims = {}
    for name, shape in shapes.items():
        differ = [axis for axis, (one, other) in enumerate(zip(shape, others[name])) if one != other]
        if differ:
            dims[name] = differ[0]
    return dims
