"""Inputs for checks and measurements: tensors made from a kernel's parameters."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import TileError


class TensorSupplyType(enum.Enum):
    """How random inputs are drawn; the names and meanings are TileLang's.

    Auto: floats as Uniform, integers as Integer. Integer: signed from -2 to 2, unsigned from 0 to 2. Uniform: floats in
    [-1, 1). Normal: mean -1, deviation 1. Randn: mean 0, deviation 1. Zero, One: constant. bool is drawn from both
    values, and fp8 under Auto from the integers -2 to 2, which it holds exactly.
    """

    Auto = "auto"
    Integer = "integer"
    Uniform = "uniform"
    Normal = "normal"
    Randn = "randn"
    Zero = "zero"
    One = "one"

    @classmethod
    def parse(cls, spec: TensorSupplyType | str) -> TensorSupplyType:
        """The member of that name, in any case; TileError with the names otherwise."""
        if isinstance(spec, cls):
            return spec
        try:
            return cls(str(spec).rsplit(".", 1)[-1].lower())
        except ValueError:
            names = ", ".join(member.value for member in cls)
            raise TileError(f"unknown tensor supply {spec!r}", notes=[f"it is one of {names}"]) from None


@dataclass(frozen=True)
class ParamInfo:
    """One parameter of a kernel: a tensor, or a scalar where `shape` is None. `dtype` is torch's name ("float16")."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    is_output: bool = False


def make_inputs(
    params: Sequence[ParamInfo],
    supply: TensorSupplyType | str = TensorSupplyType.Auto,
    device: str = "cpu",
    seed: int | None = None,
) -> list[Any]:
    """Tensors for the parameters that are not outputs, in order. The same seed gives the same values."""
    import torch

    kind = TensorSupplyType.parse(supply)
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return [_make(param, kind, device, generator) for param in params if not param.is_output]


def _make(param: ParamInfo, kind: TensorSupplyType, device: str, generator: Any) -> Any:
    import torch

    if param.shape is None:
        raise TileError(
            f"no value for the scalar parameter {param.name!r}", notes=["pass input_tensors=, or supply_prog="]
        )
    if not all(isinstance(size, int) for size in param.shape):
        raise TileError(
            f"no size for parameter {param.name!r} of shape {param.shape}",
            notes=["pass input_tensors=, or dynamic_symbolic_constraints={name: size}, for dynamic shapes"],
        )
    dtype = getattr(torch, param.dtype)
    shape = tuple(param.shape)
    if kind in (TensorSupplyType.Zero, TensorSupplyType.One):
        return torch.full(shape, float(kind is TensorSupplyType.One), device=device).to(dtype)
    fp8 = param.dtype.startswith("float8")
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, device=device, generator=generator).to(dtype)
    if not dtype.is_floating_point or kind is TensorSupplyType.Integer or (fp8 and kind is TensorSupplyType.Auto):
        low = 0 if param.dtype.startswith("uint") else -2
        return torch.randint(low, 3, shape, device=device, generator=generator).to(dtype)
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    if kind in (TensorSupplyType.Normal, TensorSupplyType.Randn):
        mean = -1.0 if kind is TensorSupplyType.Normal else 0.0  # TileLang's, which tolerances of its programs fit
        return (torch.randn(shape, dtype=compute, device=device, generator=generator) + mean).to(dtype)
    return (torch.rand(shape, dtype=compute, device=device, generator=generator) * 2 - 1).to(dtype)
