"""What is asked of tensors on both sides: whether inputs are the same, what a call has changed, how far outputs are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# Norm of the difference over the norm of the other result: more than rounding of the type, and of sums in another
# order, makes. What has fewer bits than float16 rounds by up to one part in eight.
_LARGEST = 1e-2
_LARGEST_OF_8_BITS = 6e-2


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch."""
    import torch

    return isinstance(value, torch.Tensor)


def copied(values: Sequence[Any]) -> list[Any]:
    """Tensors as they are now, at addresses of their own, with the same strides; other values as they are."""
    import torch

    def copy(tensor: Any) -> Any:
        if not tensor.numel():
            return tensor.clone()
        span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
        return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride(), 0)

    with torch.no_grad():
        return [copy(value.detach()) if is_tensor(value) else value for value in values]


def signature(values: Sequence[Any]) -> tuple[Any, ...]:
    """What makes two calls of a kernel calls of one kind: types and sizes of tensors, and other values."""
    return tuple(
        (str(value.dtype).removeprefix("torch."), tuple(value.shape)) if is_tensor(value) else repr(value)
        for value in values
    )


def described(values: Sequence[Any]) -> str:
    """`float16[1024, 64] int32[8] 3`: a signature as text."""
    return " ".join(
        each if isinstance(each, str) else f"{each[0]}{list(each[1])}" for each in signature(values)
    )  # fmt: skip


def _words(tensor: Any) -> Any:
    """The bytes of a tensor, as integers of the widest type that its size allows."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 4:
        flat = flat.clone()
    return flat.view(torch.int32 if flat.numel() % 4 == 0 else torch.int16 if flat.numel() % 2 == 0 else torch.uint8)


def digest(values: Sequence[Any]) -> list[str]:
    """A text for each value that is the same where values are: sums over the bits of a tensor, at three strides."""
    import torch

    texts = []
    for value, kind in zip(values, signature(values)):
        if is_tensor(value) and value.numel():
            words = _words(value)
            sums = [int(words[::step].sum(dtype=torch.int64)) for step in (1, 2, 3)]
            texts.append(f"{kind} {sums}")
        else:
            texts.append(str(kind))
    return texts


def same_bits(first: Any, second: Any) -> bool:
    """Whether two tensors of one type and shape have the same bits."""
    import torch

    return not first.numel() or bool(torch.equal(_words(first), _words(second)))


def difference(ours: Any, theirs: Any) -> str:
    """Why two results are not equal but for rounding; "" where they are. The norm of the difference decides; integers
    are to be equal."""
    import torch

    if not is_tensor(ours) or not is_tensor(theirs):
        return "" if ours == theirs else f"{ours!r} and {theirs!r}"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{described([ours])} and {described([theirs])}"
    if not ours.numel() or same_bits(ours, theirs):
        return ""
    if not ours.dtype.is_floating_point:
        return f"{int((_words(ours) != _words(theirs)).sum()):,} of {_words(ours).numel():,} words differ"
    wide = torch.float64 if ours.dtype == torch.float64 else torch.float32
    first, second = ours.to(wide).reshape(-1), theirs.to(wide).reshape(-1)
    finite = first.isfinite()
    odd = int((finite != second.isfinite()).sum())
    if odd:
        return f"{odd:,} of {ours.numel():,} elements are finite on one side alone"
    first, second = first[finite], second[finite]
    size = float(torch.linalg.vector_norm(second, dtype=torch.float64))
    apart = float(torch.linalg.vector_norm(first - second, dtype=torch.float64))
    relative = apart / size if size else math.inf
    if relative <= (_LARGEST if ours.element_size() > 1 else _LARGEST_OF_8_BITS):
        return ""
    return f"relative difference {relative:.2g}"
