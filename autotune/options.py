"""What a tuning run is told: measurement, verification, limits. Names and defaults are TileLang's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiledsl.errors import TileError
from tiledsl.runtime.supply import TensorSupplyType


@dataclass(frozen=True)
class TuneOptions:
    """Options of one tuning run.

    warmup, rep: milliseconds spent warming up and timing a configuration. timeout: seconds a configuration may compile.
    ref_prog: takes the inputs and returns the right outputs (None: writes them into its inputs, as the kernel does).
    supply_prog: takes the kernel's input parameters and returns the inputs; without it supply_type draws them.
    rtol, atol, max_mismatched_ratio: see verify.compare; atol counts in units of the reference's root mean square.
    manual_check_prog: takes the kernel's and the reference's outputs and raises if they differ; instead of comparing.
    cache_input_tensors: accepted; all configurations of a run share their inputs: the reference is computed once.
    early_stop: leave out a configuration whose first calls take early_stop_factor times the best one's time.
    do_not_specialize: names of arguments whose value does not ask for a tuning of its own; the configuration is shared.
    jobs: processes that compile at once (0 or None: the setting's). cache: whether results are kept on disk.
    """

    warmup: float = 25
    rep: float = 100
    timeout: float = 100
    ref_prog: Callable[..., Any] | None = None
    supply_prog: Callable[..., Any] | None = None
    supply_type: TensorSupplyType | str = TensorSupplyType.Auto
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False
    manual_check_prog: Callable[..., Any] | None = None
    cache_input_tensors: bool = False
    early_stop: bool = False
    early_stop_factor: float = 2.0
    do_not_specialize: tuple[str, ...] = ()
    jobs: int | None = None
    target: Any = None
    cache: bool = True

    def __post_init__(self) -> None:
        TensorSupplyType.parse(self.supply_type)
        for name in ("ref_prog", "supply_prog", "manual_check_prog"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TileError(f"autotune: {name} is a function, not {value!r}")
        lowest_values = {"warmup": 0, "rep": 0, "timeout": 0, "rtol": 0, "atol": 0, "early_stop_factor": 1}
        for name, lowest in lowest_values.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= lowest:
                raise TileError(f"autotune: {name} is {value!r}; it is a number, at least {lowest}")
        if self.timeout == 0 or self.rep == 0:
            raise TileError(f"autotune: timeout={self.timeout:g} and rep={self.rep:g} must be more than 0")
        if not 0 <= self.max_mismatched_ratio <= 1:
            raise TileError(f"autotune: max_mismatched_ratio is {self.max_mismatched_ratio!r}; it is 0 to 1")
        if self.jobs is not None and (isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs < 0):
            raise TileError(f"autotune: jobs is {self.jobs!r}; it is a whole number, 0 for all cores")
        if self.manual_check_prog is not None and self.ref_prog is None:
            raise TileError("autotune: manual_check_prog compares with the reference, and there is no ref_prog")
        if isinstance(self.do_not_specialize, str):
            object.__setattr__(self, "do_not_specialize", (self.do_not_specialize,))
        object.__setattr__(self, "do_not_specialize", tuple(self.do_not_specialize or ()))

    @property
    def checks(self) -> bool:
        """Whether outputs are compared with a reference."""
        return self.ref_prog is not None and not self.skip_check
