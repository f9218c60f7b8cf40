"""Emitted Gluon on CPU tensors, by the machine that certificates run it on: see certificate/source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tests.support.executor import DTYPES, Stored
from tiledsl.certificate.source.module import SourceModule

_HEADER = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
"""


def functions(source: str, program: int, programs: int) -> dict[str, Any]:
    """The functions of a text, as one of so many programs calls them."""
    module = SourceModule(_HEADER + source, Stored())
    module.language.grid, module.language.program = (programs, 1, 1), (program, 0, 0)
    return module.namespace


def run_gluon(source: str, entry: str, *arguments: Any, choose: Callable[[Sequence[int]], int] | None = None) -> None:
    """Call the host function of an emitted module on CPU tensors and whole numbers; results are written into them.
    choose: which partition is next, see certificate/source/gluon.py."""
    tensors = [isinstance(value, torch.Tensor) for value in arguments]
    arrays = [_array(value) if is_one else value for value, is_one in zip(arguments, tensors, strict=True)]
    dtypes = [str(value.dtype) if is_one else "int32" for value, is_one in zip(arrays, tensors, strict=True)]
    module = SourceModule(source, Stored())
    module.language.turns.choose = choose
    module.call(entry, arrays, dtypes)


def _array(tensor: torch.Tensor) -> np.ndarray:
    """The same memory; NumPy has float8 from ml_dtypes."""
    name = str(tensor.dtype).removeprefix("torch.")
    return tensor.view(torch.uint8).numpy().view(DTYPES[name]) if name.startswith("float8") else tensor.numpy()
