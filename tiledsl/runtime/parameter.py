"""Parameters of programs, as calls see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Parameter:
    """A parameter of a program. A dynamic dimension of its shape is a name."""

    def __init__(
        self,
        name: str,
        dtype: str,
        is_output: bool,
        shape: tuple[int | str, ...] | None = None,
        strides: tuple[int | str, ...] | None = None,
        formulas: Mapping[str, Any] | None = None,
        is_used: bool = True,
        is_packed: bool = False,
    ) -> None:
        """`shape` is None for a scalar. `formulas` are what names in `shape` must be, by them (tiledsl/formulas.py).
        In place of a tensor that is not used (`is_used`), calls take None. `is_packed`: it holds two elements of
        float4_e2m1fn in each uint8, and calls take other types of such bytes, too."""
        self.name = name
        self.dtype = dtype
        self.is_output = is_output
        self.is_tensor = shape is not None
        self.shape = shape or ()
        self.strides = strides
        self.formulas = dict(formulas or {})
        self.is_used = is_used
        self.is_packed = is_packed

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape) if self.is_tensor else ''}"
