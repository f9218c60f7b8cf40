"""Functions and an operator that another process imports, too."""

from __future__ import annotations

from typing import Any

import tiledsl
from tests.support import eager_programs

summed = tiledsl.jit(target="interpret")(eager_programs.eager_sum)
summed.__module__, summed.__qualname__ = __name__, "summed"
operator = summed.as_torch_op("tiledsl_pickled::sum")


def double(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
    return gradient * ctx.scalars[0], None, None
