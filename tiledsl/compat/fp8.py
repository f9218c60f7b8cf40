"""`tilelang.language.fp8`: the 8-bit float types of this machine's GPU."""

from __future__ import annotations

from typing import Any

from tiledsl.errors import TileError
from tiledsl.language.dtypes import DType, canonical
from tiledsl.runtime.target import Target

__all__ = ["determine_fp8_type", "determine_torch_fp8_type"]


def determine_fp8_type(fp8_format: str = "e4m3") -> DType:
    """float8_e4m3fn or float8_e5m2, or their fnuz variants where the target has those alone (gfx940, for one)."""
    names = {"e4m3": ("float8_e4m3fn", "float8_e4m3fnuz"), "e5m2": ("float8_e5m2", "float8_e5m2fnuz")}
    if fp8_format not in names:
        raise TileError(f"unknown fp8 format {fp8_format!r}; it must be e4m3 or e5m2")
    usual, fnuz = names[fp8_format]
    target = Target.parse("auto")
    return canonical(usual if target.supports(usual) else fnuz)


def determine_torch_fp8_type(fp8_format: str = "e4m3") -> Any:
    """The torch dtype of `determine_fp8_type`."""
    return determine_fp8_type(fp8_format).as_torch()
