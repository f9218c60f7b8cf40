"""How far a right kernel may be from the reference, by the rounding of the types that its values pass through.

A sum of K terms in a type of unit roundoff u is off by at most K u / (1 - K u) of the sum of the terms' sizes, and
rarely by more than a small multiple of sqrt(K) u of it (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
ed., section 3.1 and equation 3.5; Higham and Mary, SIAM J. Sci. Comput. 41, 2019, theorem 3.1). Of terms of one sign
the sizes' sum is the result; of terms of either sign, as random ones have, partial sums stay as small as the result is
(Higham and Mary, SIAM J. Sci. Comput. 42, 2020): so it is sqrt(K) u of the results' root mean square that is to be
expected. Beside that, each value that is rounded to a coarser type on its way is off by that type's u.

    atol = 8 (u + sqrt(K) u_sum)    of the root mean square of the reference
    rtol = 2 max(u, u_out)          of each element

u is the coarsest unit roundoff on the way, u_out that of the output, u_sum that of sums, float32's, or float64's where
all is float64. 8 makes six standard deviations of errors that are spread evenly: of a thousand million elements none is
beyond. Elementary functions of GPUs are good to a few units, more where their arguments are large, so u is at least
2^-16 for float32 and 2^-40 for float64. Values of 16 bits and less may be rounded as often as a program's author likes,
and they were compared with 1e-2 from the first: they still are, and nothing is ever compared more loosely than that,
but for outputs whose own steps are larger.

Where the reference itself loses more than this in the kernel's types (it is run in float64 too), eight times what it
loses counts. Whole numbers that come of whole numbers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.ir.types import ELEMENTS

LOOSEST = 1e-2  # TileLang's rtol and atol
_SAFETY = 8.0
_LEAST = {4: 2.0**-16, 8: 2.0**-40}  # by bytes of the type
_SUMS = {4: 2.0**-24, 8: 2.0**-53}
TF32 = 2.0**-11


@dataclass(frozen=True)
class Limits:
    """rtol and atol as asked for or derived; most_rtol and most_atol: the larger of both, which the cap is made of."""

    rtol: float
    atol: float
    most_rtol: float
    most_atol: float


@dataclass(frozen=True)
class Tolerance:
    """When outputs count as equal; see TuneOptions. rtol, atol: None to derive them. roundoff: the coarsest unit
    roundoff on a value's way, where that is known of a program, beside the types of inputs and outputs; is_narrow:
    whether there are values of 16 bits or less on it."""

    rtol: float | None
    atol: float | None
    max_mismatched_ratio: float
    roundoff: float = 0.0
    is_narrow: bool = False

    def of(self, actual: Any, inputs: Sequence[Any], unsure: float) -> Limits:
        """The limits for one output. inputs: tensors and scalars; unsure: what the reference loses in the kernel's
        types, a share of its root mean square."""
        rtol, atol = self._derived(actual, inputs, unsure)
        wanted = rtol if self.rtol is None else self.rtol, atol if self.atol is None else self.atol
        return Limits(*wanted, max(rtol, wanted[0]), max(atol, wanted[1]))

    def _derived(self, actual: Any, inputs: Sequence[Any], unsure: float) -> tuple[float, float]:
        tensors = [each for each in inputs if hasattr(each, "data_ptr")]
        floats = [each for each in tensors if _is_float(each)]
        if not _is_float(actual):
            is_exact = not floats and not self.roundoff and not any(isinstance(each, float) for each in inputs)
            return (0.0, 0.0) if is_exact else (LOOSEST, LOOSEST)
        known = [unit_roundoff(each.dtype) for each in (actual, *floats)]
        own = unit_roundoff(actual.dtype)
        if self.is_narrow or any(_width(each) <= 2 for each in (actual, *floats)):
            return max(LOOSEST, 2 * own), LOOSEST
        width = 4 if self.roundoff > _SUMS[8] or any(_width(each) < 8 for each in (actual, *floats)) else 8
        coarsest = max(self.roundoff, _LEAST[width], *known)
        terms = _terms(actual, tensors)
        atol = max(_SAFETY * (coarsest + math.sqrt(terms) * _SUMS[width]), _SAFETY * unsure)
        return min(LOOSEST, 2 * coarsest), min(LOOSEST, atol)


def roundings_of(kernel: Any) -> tuple[float, bool]:
    """As `roundings`, of a kernel; one of Triton says them itself."""
    build = kernel._build
    known: tuple[float, bool] | None = vars(kernel).get("roundings")
    return roundings(build()) if known is None else known


def roundings(root: Any) -> tuple[float, bool]:
    """Of a program as elaborated: the coarsest unit roundoff of products whose operands are rounded to tf32, or 0; and
    whether it has values of 16 bits or less."""
    from tiledsl.dialects.tile import GemmOp

    coarsest, is_narrow = 0.0, False
    for op in root.walk():
        for value in (*op.results, *op.operands):
            known = ELEMENTS.get(value.dtype.removeprefix("*"))
            is_narrow = is_narrow or (known is not None and known.kind == "float" and known.bits <= 16)
        if isinstance(op, GemmOp) and op.a.dtype == "float32" and op.precision != "ieee":
            coarsest = TF32
    return coarsest, is_narrow


def _is_float(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _width(tensor: Any) -> int:
    """Bytes of a real number."""
    return int(tensor.element_size()) // (2 if tensor.dtype.is_complex else 1)


def _terms(output: Any, inputs: Sequence[Any]) -> int:
    """The most terms that an element of the output may be a sum of: a dimension of an input, or all of its elements
    that come to one of the output."""
    sizes = [size for each in inputs for size in each.shape]
    shares = [each.numel() // max(1, output.numel()) for each in inputs]
    return int(max([1, *sizes, *shares]))


def unit_roundoff(dtype: Any) -> float:
    """Half the distance from 1 to the next number: 2^-24 for float32, 2^-11 for float16, 2^-8 for bfloat16."""
    import torch

    return float(torch.finfo(dtype).eps) / 2
