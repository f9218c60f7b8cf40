"""Options of a tuning run: measurement, verification, limits. Names and defaults are TileLang's where it has the
option."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tiledsl.autotuner.group.ranks import check_group
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
    "nearest",
    "verify",
)
# Of options that are numbers: what is allowed, in words and as a check of finite numbers.
_NUMBERS: dict[str, tuple[str, Callable[[float], bool]]] = {
    **dict.fromkeys(("warmup", "rtol", "atol"), ("a number, at least 0", lambda number: number >= 0)),
    "rep": ("a number of milliseconds, more than 0", lambda number: number > 0),
    "timeout": ("a number of seconds, more than 0", lambda number: number > 0),
    "run_timeout": ("a number of seconds, more than 0", lambda number: number > 0),
    "budget": ("a number of seconds, more than 0", lambda number: number > 0),
    "early_stop_factor": ("a number, at least 1", lambda number: number >= 1),
    **dict.fromkeys(("max_mismatched_ratio", "min_improvement"), ("from 0 to 1", lambda number: 0 <= number <= 1)),
}


Numerics = Literal["same-bits", "batch-invariant"]


def check_numerics(numerics: Any, reference_config: Any = None, rows: Any = None) -> None:
    """TileError for values of these options that mean nothing."""
    if numerics not in (None, "same-bits", "batch-invariant"):
        raise TileError(f"autotune: numerics is {numerics!r}; it must be 'same-bits' or 'batch-invariant'")
    if numerics is None and (reference_config is not None or rows is not None):
        name = "rows" if reference_config is None else "reference_config"
        raise TileError(f"autotune: {name} says something of numerics: pass numerics='same-bits' or 'batch-invariant'")
    if reference_config is not None and not isinstance(reference_config, Mapping):
        raise TileError(f"autotune: reference_config is {reference_config!r}; it is a dict such as {{'block_M': 64}}")
    if rows is not None and not isinstance(rows, str):
        raise TileError(f"autotune: rows is {rows!r}; it must be the name of an argument or a size")


def _check_numbers(options: TuneOptions) -> None:
    """TileError for an option that should be a number and is none, or not one that means something."""
    for name, (allowed, is_right) in _NUMBERS.items():
        value: Any = getattr(options, name)
        if value is None and name in ("rtol", "atol", "run_timeout", "budget"):
            continue
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or not is_right(value):
            raise TileError(f"autotune: {name} is {value!r}; it must be {allowed}")


@dataclass(frozen=True)
class TuneOptions:
    """Options of one tuning run.

    Measuring
    warmup, rep:        milliseconds spent warming up and timing a configuration.
    backend:            "event" times each call between two CUDA events, "cudagraph" many calls in a graph (None: the
                        latter for short calls).
    devices:            numbers of the GPUs that measure, with a process on each (None: all of the current one's model).
    isolate:            check and time in separate processes; without, a configuration that crashes or hangs takes the
                        program with it.
    run_timeout:        seconds in which a configuration must be checked and timed (None: 30, or `timeout` in the
                        interpreter).
    early_stop:         leave out a configuration whose first calls take early_stop_factor times the best one's time.
    shape_grouped:      measure all configurations of a call on one GPU, so that differences between GPUs do not count;
                        the other GPUs serve the other calls of tune_all.
    timer:              `module:function` that replaces the clock, for tests; see runtime/timing.py.
    group:              True, a torch.distributed.ProcessGroup, or a function of the call's arguments by name that
                        returns one: all its ranks tune together, each on its current GPU, and end with the same winner;
                        a configuration's latency is the largest over the ranks.
    group_timeout:      seconds for which a rank waits for the others before it raises.

    Checking
    ref_prog:           takes the inputs and returns the right outputs, or None if it writes them into its inputs as
                        the kernel does.
    rtol, atol:         see verify.compare; atol is in units of the reference's root mean square (None: as the rounding
                        of the program's types makes them, at most 1e-2; see verifying/tolerance.py).
    max_mismatched_ratio: the share of elements that may be off by more, but not by more than 16 times as much. 1: no
                        limit at all.
    skip_check:         do not compare outputs.
    manual_check_prog:  takes the kernel's and the reference's outputs and raises if they differ, in place of comparing.
    supply_prog:        takes the kernel's input parameters and returns the inputs; without it, supply_type draws them.
    cache_input_tensors: accepted; all configurations of a run share their inputs, and the reference is computed once.
    verify_at:          arguments of the builder, such as a smaller shape, at which the program is checked in the
                        interpreter if the target is a GPU that is not here.
    verify:             the winner's certificate (Kernel.verify, docs/verify.md) has no failed check: a configuration
                        that has one is out. It is stored with the result. Each is made in a process of its own, which
                        is ended after `timeout`; what it has not found then is unknown.

    Numbers that do not depend on luck
    numerics:           "same-bits": only configurations can win whose results have the bits of the reference
                        configuration. "batch-invariant": moreover, a row's bits do not depend on how many rows there
                        are. See bit_class for what is proved and what is tried.
    reference_config:   tunables with their values: the first configuration that has them is the reference (None: the
                        first configuration).
    rows:               for "batch-invariant": the argument, or the dynamic size, that counts rows (None: what `bucket`
                        names, else "M").

    Searching
    budget:             seconds after which no further configuration is tried, once the default was tried and one works.
    max_trials:         how many are tried (None: all, unless the search decides otherwise).
    prune:              leave out what the target's limits rule out. A function takes a configuration as a dict, and by
                        name what it wants of the call's arguments, and returns a reason to leave it out as well (None
                        or False: keep it).
    search:             how configurations are chosen; see search.make_strategy.
    seed_configs:       configurations, of the list or others, that are tried first.
    jobs:               number of compilation processes (0 or None: the setting).
    timeout:            seconds for the compilation of one configuration.
    target:             what to tune for, in place of @tiledsl.jit's.

    Remembering
    cache:              whether results are stored on disk.
    store:              a folder that replaces the setting cache_dir.
    key:                takes the call's arguments by name and returns what else a stored result depends on.
    do_not_specialize:  names of arguments whose values share one tuning.
    keep_all:           store source, stages and binary of every configuration that works, not only of the winner.
    min_improvement:    when tuning again, the earlier winner stays unless another configuration is faster by this share
                        of its time; they are measured against each other.
    progress:           show a progress bar (None: if stderr is a terminal).

    Tuned-config files
    tuned:              a folder of tuned-config files, or several, that are searched before anything is tuned, besides
                        those of the setting tuned_configs; a relative one is beside the function's file.
    bucket, nearest:    see lookup.candidates for the entry that serves a call: one for its arguments, else with
                        bucket="M" one that differs only in M, else the nearest in log space (nearest=False: neither
                        that nor the file's default).
    on_miss:            what to do if no entry serves: "tune", "first" (run the first configuration) or "error".
    """

    warmup: float = 25
    rep: float = 100
    timeout: float = 100
    ref_prog: Callable[..., Any] | None = None
    supply_prog: Callable[..., Any] | None = None
    supply_type: TensorSupplyType | str = TensorSupplyType.Auto
    rtol: float | None = None
    atol: float | None = None
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
    prune: bool | Callable[..., Any] = True
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
    group: Any = None
    group_timeout: float = 300
    numerics: Numerics | None = None
    reference_config: Mapping[str, Any] | None = None
    rows: str | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        TensorSupplyType.parse(self.supply_type)
        check_group(self.group, self.group_timeout)
        if self.shape_grouped and self.group not in (None, False):
            raise TileError("autotune: shape_grouped gives calls to GPUs of one process; with group, each rank has one")
        for name in ("ref_prog", "supply_prog", "manual_check_prog", "key"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise TileError(f"autotune: {name} is a function, not {value!r}")
        _check_numbers(self)
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool) and (name != "progress" or value is not None):
                raise TileError(f"autotune: {name} is {value!r}; it must be True or False")
        if self.jobs is not None and (isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs < 0):
            raise TileError(f"autotune: jobs is {self.jobs!r}; it must be a whole number, or 0 for all cores")
        most = self.max_trials
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise TileError(f"autotune: max_trials is {most!r}; it must be a whole number, at least 1")
        if self.timer is not None and not re.fullmatch(r"[\w.]+:\w+", str(self.timer)):
            raise TileError(f"autotune: timer is {self.timer!r}; it must be module:function")
        if self.store is not None and (not isinstance(self.store, (str, os.PathLike)) or not os.fspath(self.store)):
            raise TileError(f"autotune: store is {self.store!r}; it must be a folder")
        if self.backend not in (None, "event", "cudagraph"):
            raise TileError(f"autotune: the backend is {self.backend!r}; the tuner times by 'event' or 'cudagraph'")
        if not isinstance(self.prune, bool) and not callable(self.prune):
            raise TileError(f"autotune: prune is {self.prune!r}; it must be a bool or a function of a configuration")
        if self.devices is not None:
            if not isinstance(self.devices, Iterable) or isinstance(self.devices, str):
                raise TileError(
                    f"autotune: devices is {self.devices!r}; it must be a list of GPU numbers, such as [0, 1]"
                )
            object.__setattr__(self, "devices", tuple(self.devices))
            if not self.devices or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in self.devices):
                raise TileError(
                    f"autotune: devices is {list(self.devices)!r}; it must be a list of GPU numbers, such as [0, 1]"
                )
        if self.manual_check_prog is not None and self.ref_prog is None:
            raise TileError("autotune: manual_check_prog compares with the reference, and there is no ref_prog")
        if self.on_miss not in ("tune", "first", "error"):
            raise TileError(f"autotune: on_miss is {self.on_miss!r}; it must be 'tune', 'first' or 'error'")
        check_numerics(self.numerics, self.reference_config, self.rows)
        if self.bucket is not None and not isinstance(self.bucket, str):
            raise TileError(f"autotune: bucket is {self.bucket!r}; it must be the name of an argument")
        folders = (self.tuned,) if isinstance(self.tuned, (str, os.PathLike)) else self.tuned or ()
        if not isinstance(folders, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in folders):
            raise TileError(f"autotune: tuned is {self.tuned!r}; it must be a folder, or a list of folders")
        object.__setattr__(self, "tuned", tuple(folders))
        names = self.do_not_specialize or ()
        if not isinstance(names, Iterable):
            raise TileError(f"autotune: do_not_specialize is {names!r}; it must be names of parameters")
        object.__setattr__(self, "do_not_specialize", (names,) if isinstance(names, str) else tuple(names))
        seeds = self.seed_configs or ()
        if not isinstance(seeds, Iterable) or isinstance(seeds, (str, Mapping)):
            raise TileError(
                f"autotune: seed_configs is {seeds!r}; it must be a list of dicts such as {{'block_M': 64}}"
            )
        object.__setattr__(self, "seed_configs", tuple(seeds))
        if self.verify_at is not None and not isinstance(self.verify_at, Mapping):
            raise TileError(
                f"autotune: verify_at is {self.verify_at!r}; it must be a dict of arguments such as {{'M': 100}}"
            )

    @property
    def checks(self) -> bool:
        """Whether outputs are compared with a reference."""
        return self.ref_prog is not None and not self.skip_check
