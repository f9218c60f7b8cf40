"""Emitted Gluon on CPU tensors, by the machine that certificates run it on: see certificate/source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tiledsl.certificate.algebra import Algebra
from tiledsl.certificate.source.module import SourceModule

_HEADER = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
"""


def functions(source: str, program: int, programs: int) -> dict[str, Any]:
    """The functions of a text, as one of so many programs calls them."""
    module = SourceModule(_HEADER + source, Algebra())
    module.language.grid, module.language.program = (programs, 1, 1), (program, 0, 0)
    return module.namespace


def run_gluon(source: str, entry: str, *arguments: Any, choose: Callable[[Sequence[int]], int] | None = None) -> None:
    """Call the host function of an emitted module on CPU tensors and whole numbers; results are written into them.
    choose: which partition is next, see certificate/source/gluon.py."""
    tensors = [isinstance(value, torch.Tensor) for value in arguments]
    arrays = [value.numpy() if is_one else value for value, is_one in zip(arguments, tensors, strict=True)]
    dtypes = [str(value.dtype) if is_one else "int32" for value, is_one in zip(arrays, tensors, strict=True)]
    module = SourceModule(source, Algebra())
    module.language.turns.choose = choose
    module.call(entry, arrays, dtypes)
