"""Options of @tune_function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.option import as_tuple, described, option
from tiledsl.autotuner.options import SharedOptions
from tiledsl.errors import TileError


@described
@dataclass(frozen=True, kw_only=True)
class FunctionOptions(SharedOptions):
    """Options of one tuning of a Python function."""

    # fmt: off
    as_is: Sequence[str] = option(
        "Measuring", (), None, "arguments that are passed as they are, not as copies, such as symmetric memory.",
        lambda value: as_tuple(value, str),
    )
    prune: Callable[..., Any] | None = option(
        "Searching", None, ("a function of a configuration", callable),
        """takes a configuration as a dict, and by name what it wants of the call's arguments, and returns a reason to
        leave it out (None or False: keep it).""",
    )
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.numerics == "batch-invariant":
            raise TileError("tune_function: numerics may be 'same-bits'; what counts rows is not known of a function")
