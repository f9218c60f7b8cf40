"""The executor with elements as they are stored: ml_dtypes has those that NumPy lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from tiledsl.certificate.algebra import Algebra
from tiledsl.certificate.executor import MEANINGS, Executor, ExecutorError, Memory
from tiledsl.certificate.executor import run as run_in
from tiledsl.ir.core import Operation
from tiledsl.ir.types import ELEMENTS

__all__ = ["DTYPES", "MEANINGS", "Executor", "ExecutorError", "Memory", "Stored", "run"]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name) if name.startswith(("bfloat", "float8")) else name) for name in ELEMENTS
}


class Stored(Algebra):
    """Every element type."""

    dtypes: ClassVar[dict[str, np.dtype[Any]]] = DTYPES  # type: ignore[misc]


def run(func: Operation, arguments: Sequence[Any], **options: Any) -> list[np.ndarray]:
    """`executor.run` on elements as they are stored."""
    return run_in(func, arguments, algebra=Stored(), **options)
