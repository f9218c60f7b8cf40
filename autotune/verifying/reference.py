"""The reference's outputs, computed once for each set of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledsl.autotuner.measuring.inputs import changed, copies, poison
from tiledsl.autotuner.verifying.compare import difference, rms
from tiledsl.autotuner.verifying.named import named
from tiledsl.errors import TileError
from tiledsl.runtime.profiler import tensors


@dataclass
class Expected:
    """What a right kernel gives: the returned tensors, and the inputs that are changed, by position.

    aliases: for each returned tensor, the position of the input that it is; None for a tensor of its own. unsure: how
    much the reference loses in the inputs' own types, the most of a tensor's root mean square; see tolerance.py.
    """

    returned: list[Any]
    aliases: list[int | None]
    changed: dict[int, Any] = field(default_factory=dict)
    unsure: float = 0.0


class Reference:
    """The reference's outputs for one set of inputs: in higher precision where ref_prog allows it, and as written.

    A configuration is right if it agrees with either: some references depend on their inputs' dtype, and then only the
    one as written is meant. ref_prog works on copies of the inputs. TileError if it raises or gives nothing to compare.
    """

    def __init__(self, ref_prog: Callable[..., Any], inputs: Sequence[Any]) -> None:
        with named("ref_prog"):
            written = _run(ref_prog, copies(inputs))
        if not written.returned and not written.changed:
            raise TileError(
                "autotune: ref_prog returns no tensor and changes no input, so there is nothing to compare",
                notes=["return the right outputs, or pass skip_check=True"],
            )
        self.candidates = [written]
        for bits in (64, 32):  # the former may need too much memory, or not be known to an operation
            widened = [_widened(item, bits) for item in inputs]
            if all(wide is item for wide, item in zip(widened, inputs)):
                return
            try:
                with named("ref_prog"):
                    precise = _run(ref_prog, copies(widened))
            except TileError:  # a reference that casts or mixes dtypes itself
                continue
            if _outline(precise) == _outline(written):
                self.candidates.insert(0, precise)
                precise.unsure = written.unsure = _apart(written, precise)
                precise.returned = [_no_wider(*pair) for pair in zip(precise.returned, written.returned)]
                precise.changed = {at: _no_wider(value, written.changed[at]) for at, value in precise.changed.items()}
                return

    @property
    def as_written(self) -> list[Any]:
        """The tensors that ref_prog returned for the inputs as they are; those it changed, if it returned none."""
        written = self.candidates[-1]
        return written.returned or list(written.changed.values())


def unread(ref_prog: Callable[..., Any], inputs: Sequence[Any]) -> list[int]:
    """The positions of tensors whose values ref_prog does not depend on, such as those that it overwrites: what they
    hold before may be anything. An exception of ref_prog comes again where it matters."""
    tensors_at = [at for at, item in enumerate(inputs) if hasattr(item, "data_ptr") and item.numel()]
    positions = []
    try:
        plain = _results(ref_prog, copies(inputs))
        for at in tensors_at:
            given = copies(inputs)
            poison(given[at])
            before = copies([given[at]])[0]
            again = _results(ref_prog, given)
            same = len(again) == len(plain) and all(
                one.shape == other.shape and one.dtype == other.dtype and not changed(one, other)
                for place, (one, other) in enumerate(zip(again, plain)) if place != at
            )  # fmt: skip
            if same and (not changed(again[at], plain[at]) or not changed(again[at], before)):
                positions.append(at)
    except (Exception, SystemExit):
        return []
    return positions


def _results(ref_prog: Callable[..., Any], given: list[Any]) -> list[Any]:
    """The arguments after a call, scalars as they are, and behind them what it returned."""
    import torch

    returned = copies(tensors(ref_prog(*given)))
    return [item if hasattr(item, "data_ptr") else torch.zeros(()) for item in given] + returned


def _run(ref_prog: Callable[..., Any], inputs: list[Any]) -> Expected:
    before = copies(inputs)
    returned = tensors(ref_prog(*inputs))
    aliases = [next((i for i, item in enumerate(inputs) if _is_same(tensor, item)), None) for tensor in returned]
    return Expected(
        returned, aliases, {i: now for i, (now, old) in enumerate(zip(inputs, before)) if changed(now, old)}
    )


def _is_same(tensor: Any, item: Any) -> bool:
    return hasattr(item, "data_ptr") and bool(tensor.data_ptr() == item.data_ptr() and tensor.shape == item.shape)


def _outline(expected: Expected) -> Any:
    return [each.shape for each in expected.returned], expected.aliases, list(expected.changed)


def _widened(item: Any, bits: int) -> Any:
    """Floats in a type of so many bits, if that is wider: the reference's own rounding no longer counts."""
    import torch

    if not isinstance(item, torch.Tensor) or not item.dtype.is_floating_point or item.element_size() * 8 >= bits:
        return item
    return item.to(torch.float64 if bits == 64 else torch.float32)


def _no_wider(tensor: Any, written: Any) -> Any:
    """Float64 for references that are meant in it; float32 is exact enough for others, and half as large."""
    import torch

    return tensor.float() if tensor.dtype is torch.float64 and written.dtype is not torch.float64 else tensor


def _apart(written: Expected, precise: Expected) -> float:
    """The largest difference of two references, a share of the root mean square of the tensor that it is in."""
    most = 0.0
    pairs = [*zip(written.returned, precise.returned)]
    pairs += [(value, precise.changed[at]) for at, value in written.changed.items()]
    for one, other in pairs:
        if one.dtype.is_floating_point and one.numel():
            most = max(most, difference(one, other, 0.0, 0.0).max_error / (rms(other) or 1.0))
    return most
