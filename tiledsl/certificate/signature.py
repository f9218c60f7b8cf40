"""What decides about the bits of a kernel's results, as one number: configurations with equal ones give equal bits."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledsl.certificate.exact import EXACT, ExactAlgebra, fingerprints
from tiledsl.certificate.executor import ExecutorError
from tiledsl.certificate.source.module import SourceModule
from tiledsl.certificate.translation import _Levels, _passes
from tiledsl.codegen.triton_source import emit
from tiledsl.dialects.tile import FuncOp
from tiledsl.ir.pass_manager import PassManager

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

# Bytes of the inner dimension that one matrix instruction of NVIDIA's adds up: 16 of float16, 32 of float8, 8 of tf32.
INSTRUCTION_DEPTH = 32
UNIT = 256  # what sizes are reduced to, whatever the tiles are
_SAMPLE = 2  # elements along each axis that are looked at: they lie in the first tile of every configuration


def strict_signature(kernel: Kernel, *, seed: int = 0) -> str:
    """A hash of how the emitted source rounds: operations and their order, splits, casts, reciprocals, contraction.

    The source is executed in exact algebra, with sizes reduced alike for all tiles, and the fingerprints of the first
    elements of every parameter are hashed: two configurations of one problem with different tiles have one signature if
    each of these elements is computed by the same rounded operations in the same order. Inputs depend on the seed and
    on an element's indices alone.

    What the hardware decides is not in the text, so what it depends on is in the signature as it stands: of a product,
    sums of 32 bytes along the inner dimension at once, one after the other, and whether warps or groups of warps do it;
    of a sum or scan of floats, its shape, its axis and the number of warps, which decide about its tree; that there are
    atomic sums, which have no order; the target. Equal signatures are a claim to be confirmed on the device; unequal
    ones may still give equal bits. Raises ExecutorError for a program that cannot be executed.
    """
    levels = _Levels(kernel, seed, UNIT)
    levels.first()
    PassManager(_passes(kernel), verify_each=False).run(levels.program)
    root = levels.program.root
    assert isinstance(root, FuncOp)
    module = emit(root) if levels.is_reduced else kernel.module
    arrays = levels.fresh()
    loaded = SourceModule(module.source, ExactAlgebra(rounds32=levels.rounds32, depth=INSTRUCTION_DEPTH))
    loaded.call(module.into, arrays, [each.dtype for each in kernel.params])
    made = hashlib.sha256(str(kernel.target).encode())
    made.update(repr(sorted(loaded.language.orders)).encode())
    for array in arrays:
        if isinstance(array, np.ndarray):
            made.update(_sample(array))
    return made.hexdigest()


def _sample(array: np.ndarray) -> bytes:
    first: Any = array[tuple(slice(_SAMPLE) for _ in array.shape)]
    return np.ascontiguousarray(fingerprints(first) if array.dtype == EXACT else first).tobytes()


__all__ = ["ExecutorError", "strict_signature"]
