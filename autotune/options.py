"""What a tuning run is told: measurement, verification, limits. Names and defaults are TileLang's."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tiledsl.errors import TileError
from tiledsl.runtime.supply import TensorSupplyType

_FLAGS = (
    "skip_check",
    "cache_input_tensors",
    "early_stop",
    "cache",
    "isolate",
    "progress",
    "shape_grouped",
    "keep_all",
)
# Of options that are numbers: what is allowed, in words and as a check of finite numbers.
_NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(("warmup", "rtol", "atol"), ("a number, at least 0", lambda number: number >= 0)),
    "rep": ("milliseconds, more than 0", lambda number: number > 0),
    "timeout": ("seconds, more than 0", lambda number: number > 0),
    "run_timeout": ("seconds, more than 0", lambda number: number > 0),
    "budget": ("seconds, more than 0", lambda number: number > 0),
    "early_stop_factor": ("a number, at least 1", lambda number: number >= 1),
    **dict.fromkeys(("max_mismatched_ratio", "min_improvement"), ("0 to 1", lambda number: 0 <= number <= 1)),
}


def _check_numbers(options: TuneOptions) -> None:
    """TileError for an option that should be a number and is none, or not one that means something."""
    for name, (allowed, is_right) in _NUMBERS.items():
        value: Any = getattr(options, name)
        if value is None and name in ("run_timeout", "budget"):
            continue
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not is_right(value):
            raise TileError(f"autotune: {name} is {value!r}; it is {allowed}")


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
    devices: numbers of the GPUs that measure, a process on each (None: all that are like the current one). isolate:
    check and time in processes of their own; without, a configuration that crashes or hangs takes the program with it.
    run_timeout: seconds a configuration may take to be checked and timed (None: 30, and `timeout` in the interpreter).
    budget: seconds after which no further configuration is tried, if the default has been and one works. max_trials:
    how many are tried (None: all, unless the search says otherwise). prune: leave out what the target's limits rule
    out; or a function that takes a configuration as a dict and returns why that is to be left out, too (None or False:
    it is not). search: how configurations are chosen; see search.make_strategy. seed_configs: some of the
    configurations, or further ones, to be tried first.
    progress: show a bar (None: if stderr is a terminal). store: a folder in place of the setting cache_dir. key: takes
    the call's arguments by name and returns what else a remembered result depends on.
    shape_grouped: measure all configurations of a call on one GPU, so that no difference between GPUs counts; the
    others are for the other calls of tune_all.
    backend: "event" times each call between two events, "cudagraph" many in a graph (None: the latter for short ones).
    verify_at: arguments of the builder for which the program is checked in the interpreter, in place of the call's,
    where the target is a GPU that is not here; such as a smaller shape. keep_all: keep the source, stages and binary of
    every configuration that works beside the result, not just the winner's. min_improvement: when tuning again, the
    remembered winner stays unless another is faster by this share of its time; they are measured against each other.
    timer: `module:function` in place of the clock, for tests; see timing.
    tuned: a folder of tuned-config files, or several, that are looked into before anything is tuned, beside those of
    the setting tuned_configs; a relative one lies beside the function's file. See lookup.candidates for what serves a
    call: an entry for its arguments, else with bucket="M" one that differs in M only, else the nearest in log space
    (nearest=False: neither that nor the file's default). on_miss: what is done where none serves: "tune", "first" (run
    the first configuration) or "error".
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
    devices: tuple[int, ...] | None = None
    isolate: bool = True
    run_timeout: float | None = None
    budget: float | None = None
    prune: bool | Callable[[dict[str, Any]], Any] = True
    search: str = "auto"
    progress: bool | None = None
    timer: str | None = None
    max_trials: int | None = None
    seed_configs: tuple[Mapping[str, Any], ...] = ()
    store: str | os.PathLike[str] | None = None
    key: Callable[..., Any] | None = None
    shape_grouped: bool = False
    backend: Literal["event", "cudagraph"] | None = None
    verify_at: Mapping[str, Any] | None = None
    keep_all: bool = False
    min_improvement: float = 0.0
    tuned: tuple[str | os.PathLike[str], ...] = ()
    bucket: str | None = None
    nearest: bool = True
    on_miss: Literal["tune", "first", "error"] = "tune"

    def __post_init__(self) -> None:
        TensorSupplyType.parse(self.supply_type)
        for name in ("ref_prog", "supply_prog", "manual_check_prog", "key"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TileError(f"autotune: {name} is a function, not {value!r}")
        _check_numbers(self)
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool) and (name != "progress" or value is not None):
                raise TileError(f"autotune: {name} is {value!r}; it is True or False")
        if self.jobs is not None and (isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs < 0):
            raise TileError(f"autotune: jobs is {self.jobs!r}; it is a whole number, 0 for all cores")
        most = self.max_trials
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise TileError(f"autotune: max_trials is {most!r}; it is a whole number, at least 1")
        if self.timer is not None and not re.fullmatch(r"[\w.]+:\w+", str(self.timer)):
            raise TileError(f"autotune: timer is {self.timer!r}; it is module:function")
        if self.store is not None and (not isinstance(self.store, (str, os.PathLike)) or not os.fspath(self.store)):
            raise TileError(f"autotune: store is {self.store!r}; it is a folder")
        if self.backend not in (None, "event", "cudagraph"):
            raise TileError(f"autotune: the backend is {self.backend!r}; the tuner times by 'event' or 'cudagraph'")
        if not isinstance(self.prune, bool) and not callable(self.prune):
            raise TileError(f"autotune: prune is {self.prune!r}; it is a bool or a function of a configuration")
        if self.devices is not None:
            if not isinstance(self.devices, Iterable) or isinstance(self.devices, str):
                raise TileError(f"autotune: devices is {self.devices!r}; it is numbers of GPUs, such as [0, 1]")
            object.__setattr__(self, "devices", tuple(self.devices))
            if not self.devices or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in self.devices):
                raise TileError(f"autotune: devices is {list(self.devices)!r}; it is numbers of GPUs, such as [0, 1]")
        if self.manual_check_prog is not None and self.ref_prog is None:
            raise TileError("autotune: manual_check_prog compares with the reference, and there is no ref_prog")
        if self.on_miss not in ("tune", "first", "error"):
            raise TileError(f"autotune: on_miss is {self.on_miss!r}; it is 'tune', 'first' or 'error'")
        if self.bucket is not None and not isinstance(self.bucket, str):
            raise TileError(f"autotune: bucket is {self.bucket!r}; it is the name of an argument")
        folders = (self.tuned,) if isinstance(self.tuned, (str, os.PathLike)) else self.tuned or ()
        if not isinstance(folders, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in folders):
            raise TileError(f"autotune: tuned is {self.tuned!r}; it is a folder, or a list of folders")
        object.__setattr__(self, "tuned", tuple(folders))
        names = self.do_not_specialize or ()
        if not isinstance(names, Iterable):
            raise TileError(f"autotune: do_not_specialize is {names!r}; it is names of parameters")
        object.__setattr__(self, "do_not_specialize", (names,) if isinstance(names, str) else tuple(names))
        seeds = self.seed_configs or ()
        if not isinstance(seeds, Iterable) or isinstance(seeds, (str, Mapping)):
            raise TileError(f"autotune: seed_configs is {seeds!r}; it is a list of dicts such as {{'block_M': 64}}")
        object.__setattr__(self, "seed_configs", tuple(seeds))
        if self.verify_at is not None and not isinstance(self.verify_at, Mapping):
            raise TileError(
                f"autotune: verify_at is {self.verify_at!r}; it is a dict of arguments such as {{'M': 100}}"
            )

    @property
    def checks(self) -> bool:
        """Whether outputs are compared with a reference."""
        return self.ref_prog is not None and not self.skip_check
