"""The reference's outputs, computed once for each set of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiledsl.autotuner.measuring import wire
from tiledsl.autotuner.measuring.inputs import changed, copies
from tiledsl.autotuner.verifying.named import named
from tiledsl.errors import TileError


@dataclass
class Expected:
    """What a right kernel gives: the returned tensors, and the inputs that are changed, by position.

    aliases: for each returned tensor, the position of the input that it is; None for a tensor of its own.
    """

    returned: list[Any]
    aliases: list[int | None]
    changed: dict[int, Any] = field(default_factory=dict)

    def store(self, folder: Path, prefix: str) -> dict[str, Any]:
        """A description for a message, the elements in files."""
        return {
            "returned": wire.store_values(self.returned, folder, f"{prefix}-returned"),
            "aliases": self.aliases,
            "positions": list(self.changed),
            "changed": wire.store_values(list(self.changed.values()), folder, f"{prefix}-changed"),
        }

    @staticmethod
    def load(described: dict[str, Any], device: str) -> Expected:
        """What `store` described."""
        values = wire.load_values(described["changed"], device)
        returned = wire.load_values(described["returned"], device)
        return Expected(returned, described["aliases"], dict(zip(described["positions"], values)))


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
        widened = [_widened(item) for item in inputs]
        if any(wide is not item for wide, item in zip(widened, inputs)):
            try:
                with named("ref_prog"):
                    precise = _run(ref_prog, copies(widened))
            except TileError:  # a reference that casts or mixes dtypes itself
                return
            if _outline(precise) == _outline(written):
                self.candidates.insert(0, precise)

    @property
    def as_written(self) -> list[Any]:
        """The tensors that ref_prog returned for the inputs as they are; those it changed, if it returned none."""
        written = self.candidates[-1]
        return written.returned or list(written.changed.values())


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


def _widened(item: Any) -> Any:
    """Floats of 16 bits and less in float32, of 32 bits in float64: the reference's own rounding no longer counts."""
    import torch

    if not isinstance(item, torch.Tensor) or not item.dtype.is_floating_point or item.dtype is torch.float64:
        return item
    return item.to(torch.float64 if item.dtype is torch.float32 else torch.float32)


def tensors(value: Any) -> list[Any]:
    """The tensors of what a program returned."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return [item for item in items if hasattr(item, "data_ptr")]
