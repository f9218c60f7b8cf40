"""`tilelang.utils.tensor`: inputs for kernels, and comparison of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl.language.dtypes import canonical
from tiledsl.runtime.profiler import assert_close
from tiledsl.runtime.supply import ParamInfo, TensorSupplyType, make_inputs

__all__ = ["TensorSupplyType", "get_tensor_supply", "map_torch_type", "torch_assert_close"]


def get_tensor_supply(supply_type: Any = TensorSupplyType.Auto) -> Callable[[Any], Any]:
    """A function that makes a tensor for a parameter (anything with `shape` and `dtype`)."""

    def supply(param: Any, **_: Any) -> Any:
        import torch

        info = ParamInfo(getattr(param, "name", ""), tuple(param.shape), str(param.dtype).removeprefix("torch."))
        return make_inputs([info], supply_type, "cuda" if torch.cuda.is_available() else "cpu")[0]

    return supply


def map_torch_type(name: str) -> Any:
    """The torch dtype of an element type's name."""
    return canonical(name).as_torch()


def torch_assert_close(
    tensor_a: Any,
    tensor_b: Any,
    rtol: float = 1e-2,
    atol: float = 1e-3,
    max_mismatched_ratio: float = 0.001,
    verbose: bool = False,
    equal_nan: bool = True,
    base_name: str = "the output",
    ref_name: str = "the reference",
    **_: Any,
) -> bool:
    """MismatchError (an AssertionError to scripts) unless nearly all elements are close; True if they are."""
    assert_close(tensor_a, tensor_b, rtol=rtol, atol=atol, max_mismatched_ratio=max_mismatched_ratio, name=base_name)
    return True
