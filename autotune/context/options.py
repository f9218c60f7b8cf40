"""Options of @tune_in_context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiledsl.autotuner.option import as_tuple, described, is_count, option
from tiledsl.autotuner.options import TaskOptions


@described
@dataclass(frozen=True, kw_only=True)
class ContextOptions(TaskOptions):
    """Options of tuning the kernels inside a function in their places."""

    # fmt: off
    n_warmup: int = option(
        "Measuring", 3, ("a whole number, at least 0", lambda value: is_count(value, 0)),
        "launches of a configuration that are not timed; the first one compiles it.",
    )
    n_repeat: int = option(
        "Measuring", 5, ("a whole number, at least 1", lambda value: is_count(value, 1)),
        "launches of a configuration that are timed; their median counts.",
    )
    restore_value: Iterable[str] = option(
        "Measuring", (), None,
        """names of tensors among the function's parameters, which get their values from before the call before each
        further run.""",
        lambda value: as_tuple(value, str),
    )
    reset_to_zero: Iterable[str] = option(
        "Measuring", (), None, "names of parameters that are tensors and are set to zero before each further run.",
        lambda value: as_tuple(value, str),
    )
    # fmt: on
