"""The few names of `tvm` that tile programs use in host helpers: element types, constants, casts."""

from __future__ import annotations

from typing import Any

from tiledsl.frontend.program import PrimFunc
from tiledsl.language.dtypes import canonical as DataType
from tiledsl.language.expression import Expr as PrimExpr
from tiledsl.language.expression import Expr as Var
from tiledsl.language.maths import Cast, Select, all, any, floordiv, floormod, if_then_else, reinterpret

__all__ = [
    "Cast", "DataType", "PrimExpr", "PrimFunc", "Select", "Var", "all", "any", "const", "floordiv", "floormod",
    "if_then_else", "reinterpret",
]  # fmt: skip


def const(value: Any, dtype: Any = "int32") -> Any:
    """A constant of an element type."""
    return DataType(dtype)(value)
