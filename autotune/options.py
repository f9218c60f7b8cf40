"""Options of a tuning run: measurement, verification, limits. Names and defaults are TileLang's where it has the
option."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tiledsl.autotuner.call_flags import KeyOf, LeftOutBy
from tiledsl.autotuner.group.ranks import check_group
from tiledsl.autotuner.measuring.metrics import LATENCY, check_metrics
from tiledsl.autotuner.option import (
    as_tuple,
    check_options,
    described,
    is_count,
    is_number,
    is_path,
    of_type,
    one_of,
    option,
)
from tiledsl.errors import TileError
from tiledsl.runtime.supply import TensorSupplyType

Numerics = Literal["same-bits", "batch-invariant"]
Folder = str | os.PathLike[str]

FLAG = of_type(bool, "True or False")
FUNCTION = ("a function", callable)
SECONDS = ("a number of seconds, more than 0", lambda value: is_number(value) and value > 0)
MILLISECONDS = ("a number of milliseconds, more than 0", SECONDS[1])
NOT_NEGATIVE = ("a number, at least 0", lambda value: is_number(value, 0))
SHARE = ("from 0 to 1", lambda value: is_number(value, 0) and value <= 1)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TaskOptions:
    """What every tuning task has, whatever runs its configurations; see SharedOptions and ContextOptions."""

    # fmt: off
    timer: str | None = option(
        "Measuring", None, ("module:function", lambda value: re.fullmatch(r"[\w.]+:\w+", str(value))),
        "`module:function` that replaces the clock, for tests; see runtime/timing.py.",
    )
    group: Any = option(
        "Measuring", None, None,
        """True, a torch.distributed.ProcessGroup, or a function of the call's arguments by name that returns one: all
        its ranks tune together, each on its current GPU, and end with the same winner; a configuration's latency is the
        largest over the ranks.""",
    )
    group_timeout: float = option(
        "Measuring", 300, None, "seconds for which a rank waits for the others before it raises."
    )
    cache: bool = option("Remembering", True, FLAG, "whether results are stored on disk.")
    store: Folder | None = option(
        "Remembering", None, ("a folder", lambda value: is_path(value) and os.fspath(value)),
        "a folder that replaces the setting cache_dir.",
    )
    # fmt: on

    def __post_init__(self) -> None:
        check_group(self.group, self.group_timeout)
        check_options(self)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SharedOptions(TaskOptions):
    """What kernels and Python functions are both tuned with; see TuneOptions and FunctionOptions."""

    # fmt: off
    warmup: float = option("Measuring", 25, NOT_NEGATIVE, "milliseconds spent warming up a configuration.")
    rep: float = option("Measuring", 100, MILLISECONDS, "milliseconds spent timing a configuration.")
    wait_for_clock: float = option(
        "Measuring", 0, NOT_NEGATIVE,
        "seconds at most to wait, under load, until the GPU runs at its highest clock, before anything is timed.",
    )
    isolate: bool = option(
        "Measuring", True, FLAG,
        """check and time in processes of their own; without, a configuration that crashes or hangs takes the program
        with it. A Python function gets there if its module defines it, and its arguments are tensors and plain values;
        configurations of others are tried in this process, and the result says so.""",
    )
    devices: Sequence[int] | None = option(
        "Measuring", None,
        (
            "a list of GPU numbers, such as [0, 1]",
            lambda value: isinstance(value, tuple) and value and all(is_count(number, 0) for number in value),
        ),
        "numbers of the GPUs that measure, with a process on each (None: all of the current one's model).", as_tuple,
    )
    run_timeout: float | None = option(
        "Measuring", None, SECONDS,
        """seconds in which a configuration must be checked and timed in its process (None: 30 for a kernel, `timeout`
        in the interpreter, and 600 for a Python function).""",
    )
    ref_prog: Callable[..., Any] | None = option(
        "Checking", None, FUNCTION,
        """takes the inputs and returns the right outputs, or None if it writes them into its inputs as the kernel
        does.""",
    )
    rtol: float | None = option("Checking", None, NOT_NEGATIVE, "see verify.compare (None: as for atol).")
    atol: float | None = option(
        "Checking", None, NOT_NEGATIVE,
        """in units of the reference's root mean square (None: as the rounding of the program's types makes them, at
        most 1e-2; see verifying/tolerance.py).""",
    )
    max_mismatched_ratio: float = option(
        "Checking", 0.01, SHARE,
        """the share of elements that may be off by more, but not by more than 16 times as much. 1: no
        limit at all.""",
    )
    numerics: Numerics | None = option(
        "Numbers that do not depend on luck", None, one_of("same-bits", "batch-invariant"),
        """"same-bits": only configurations can win whose results have the bits of the reference configuration.
        "batch-invariant": moreover, a row's bits do not depend on how many rows there are. See bit_class for what is
        proved and what is tried.""",
    )
    reference_config: Mapping[str, Any] | None = option(
        "Numbers that do not depend on luck", None, of_type(Mapping, "a dict such as {'block_M': 64}"),
        """tunables with their values: the first configuration that has them is the reference (None: the first
        configuration).""",
    )
    budget: float | None = option(
        "Searching", None, SECONDS,
        "seconds after which no further configuration is tried, once one works, and of a kernel the default was tried.",
    )
    key: Callable[..., Any] | None = option(
        "Remembering", None, FUNCTION,
        "takes the call's arguments by name and returns what else a stored result depends on.",
    )
    key_fn: Callable[..., Any] | None = option(
        "Remembering", None, FUNCTION,
        "as `key`, but it takes the call's arguments as the function does, under names of its own.",
    )
    prune_fn: Callable[..., Any] | None = option(
        "Searching", None, FUNCTION,
        """takes a configuration, and the call's arguments that it names (or all of them, under names of its own), and
        returns whether to keep it: the opposite of what a function given as `prune` says.""",
    )
    config_callback: Callable[..., Any] | None = option(
        "Searching", None, FUNCTION,
        "is called with each configuration before anything else, and may change it or return another one.",
    )
    progress: bool | None = option(
        "Remembering", None, FLAG, "show a progress bar (None: if stderr is a terminal, else a line now and then)."
    )
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_fn is not None:
            if self.key is not None and self.key != KeyOf(self.key_fn):
                raise TileError("autotune: key and key_fn say the same in two ways; pass one of them")
            object.__setattr__(self, "key", KeyOf(self.key_fn))
        if self.numerics is None and self.reference_config is not None:
            raise TileError(_WITHOUT_NUMERICS.format("reference_config"))


_WITHOUT_NUMERICS = "autotune: {} says something of numerics: pass numerics='same-bits' or 'batch-invariant'"


@described
@dataclass(frozen=True, kw_only=True)
class TuneOptions(SharedOptions):
    """Options of one tuning run."""

    # fmt: off
    backend: Literal["event", "cudagraph"] | None = option(
        "Measuring", None, one_of("event", "cudagraph"),
        """"event" times each call between two CUDA events, "cudagraph" many calls in a graph (None: the latter for
        short calls).""",
    )
    metrics: Mapping[str, str | Callable[..., Any]] | None = option(
        "Measuring", None,
        ("a dict of names and functions, or of 'module:function'", lambda value: _are_metrics(value)),
        """numbers to be known of each configuration besides its latency, by name: functions of a
        measuring.metrics.Measurement that return a number, called in the process that measures.""",
    )
    objective: str | Callable[..., Any] | None = option(
        "Measuring", None,
        ("the name of a metric, or a function", lambda value: isinstance(value, str) or callable(value)),
        """what is minimised: "latency" (None), the name of a metric, or a function of a dict of all of them, "latency"
        in milliseconds among them, that returns a number.""",
    )
    early_stop: bool = option(
        "Measuring", False, FLAG,
        "leave out a configuration whose first calls take early_stop_factor times the best one's time.",
    )
    early_stop_factor: float = option(
        "Measuring", 2.0, ("a number, at least 1", lambda value: is_number(value, 1)), "see early_stop."
    )
    shape_grouped: bool = option(
        "Measuring", False, FLAG,
        """measure all configurations of a call on one GPU, so that differences between GPUs do not count; the other
        GPUs serve the other calls of tune_all.""",
    )
    skip_check: bool = option("Checking", False, FLAG, "do not compare outputs.")
    manual_check_prog: Callable[..., Any] | None = option(
        "Checking", None, FUNCTION,
        "takes the lists of the kernel's and the reference's outputs and raises if they differ.",
    )
    supply_prog: Callable[..., Any] | None = option(
        "Checking", None, FUNCTION,
        "takes the kernel's input parameters and returns the inputs; without it, supply_type draws them.",
    )
    supply_type: TensorSupplyType | str = option("Checking", TensorSupplyType.Auto, None, "see supply_prog.")
    cache_input_tensors: bool = option(
        "Checking", False, FLAG,
        "accepted; all configurations of a run share their inputs, and the reference is computed once.",
    )
    verify_at: Mapping[str, Any] | None = option(
        "Checking", None, of_type(Mapping, "a dict of arguments such as {'M': 100}"),
        """arguments of the builder, such as a smaller shape, at which the program is checked in the interpreter if the
        target is a GPU that is not here.""",
    )
    verify: bool = option(
        "Checking", False, FLAG,
        """the winner's certificate (Kernel.verify, docs/verify.md) has no failed check: a configuration that has one is
        out. It is stored with the result. Each is made in a process of its own, which is ended after `timeout`; what it
        has not found then is unknown.""",
    )
    rows: str | None = option(
        "Numbers that do not depend on luck", None, of_type(str, "the name of an argument or a size"),
        """for "batch-invariant": the argument, or the dynamic size, that counts rows (None: what `bucket` names, else
        "M").""",
    )
    named_by_config: bool = option(
        "Remembering", False, FLAG,
        "GPU kernels get names that carry their configuration, so that a profile tells them apart.",
    )
    max_trials: int | None = option(
        "Searching", None, ("a whole number, at least 1", lambda value: is_count(value, 1)),
        "how many are tried (None: all, unless the search decides otherwise).",
    )
    prune: bool | Callable[..., Any] = option(
        "Searching", True,
        ("a bool or a function of a configuration", lambda value: isinstance(value, bool) or callable(value)),
        """leave out what the target's limits rule out. A function takes a configuration as a dict, and by name what it
        wants of the call's arguments, and returns a reason to leave it out as well (None or False: keep it).""",
    )
    search: str | Callable[..., Any] = option(
        "Searching", "auto",
        ("a name, or a function of a SearchSpace", lambda value: isinstance(value, str) or callable(value)),
        """how configurations are chosen: the name of a strategy ("auto", or another of docs/tuning.md), one that
        register_search was given, or a function as it takes one.""",
    )
    seed_configs: Sequence[Mapping[str, Any]] = option(
        "Searching", (), of_type(tuple, "a list of dicts such as {'block_M': 64}"),
        "configurations, of the list or others, that are tried first.", as_tuple,
    )
    jobs: int | None = option(
        "Searching", None, ("a whole number, or 0 for all cores", lambda value: is_count(value, 0)),
        "number of compilation processes (0 or None: the setting).",
    )
    timeout: float = option("Searching", 100, SECONDS, "seconds for the compilation of one configuration.")
    target: Any = option("Searching", None, None, "what to tune for, in place of @tiledsl.jit's.")
    do_not_specialize: Sequence[str] = option(
        "Remembering", (), of_type(tuple, "names of parameters"),
        "names of arguments whose values share one tuning.", lambda value: as_tuple(value, str),
    )
    keep_all: bool = option(
        "Remembering", False, FLAG,
        "store source, stages and binary of every configuration that works, not only of the winner.",
    )
    min_improvement: float = option(
        "Remembering", 0.0, SHARE,
        """when tuning again, the earlier winner stays unless another configuration is faster by this share of its
        time; they are measured against each other.""",
    )
    tuned: Folder | Sequence[Folder] = option(
        "Tuned-config files", (),
        (
            "a folder, or a list of folders",
            lambda value: isinstance(value, tuple) and all(map(is_path, value)),
        ),
        """a folder of tuned-config files, or several, that are searched before anything is tuned, besides those of the
        setting tuned_configs; a relative one is beside the function's file.""",
        lambda value: as_tuple(value, (str, os.PathLike)),
    )
    bucket: str | None = option(
        "Tuned-config files", None, of_type(str, "the name of an argument"),
        """see lookup.candidates for the entry that serves a call: one for its arguments, else with bucket="M" one that
        differs only in M, else the nearest in log space.""",
    )
    nearest: bool = option(
        "Tuned-config files", True, FLAG, "see bucket; False: neither the nearest nor the file's default."
    )
    on_miss: Literal["tune", "first", "error"] = option(
        "Tuned-config files", "tune", one_of("tune", "first", "error"),
        """what to do if no entry serves: "tune", "first" (run the first configuration) or "error".""",
    )
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        TensorSupplyType.parse(self.supply_type)
        if self.shape_grouped and self.group not in (None, False):
            raise TileError("autotune: shape_grouped gives calls to GPUs of one process; with group, each rank has one")
        if self.manual_check_prog is not None and self.ref_prog is None:
            raise TileError("autotune: manual_check_prog compares with the reference, and there is no ref_prog")
        if self.numerics is None and self.rows is not None:
            raise TileError(_WITHOUT_NUMERICS.format("rows"))
        check_metrics(self)

    @property
    def checks(self) -> bool:
        """Whether outputs are compared with a reference."""
        return self.ref_prog is not None and not self.skip_check


def _are_metrics(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and name.isidentifier() and name != LATENCY
        and (callable(each) or isinstance(each, str) and re.fullmatch(r"[\w.]+:[\w.]+", each))
        for name, each in value.items()
    )  # fmt: skip


def conditions(options: Any) -> list[Callable[..., Any]]:
    """The functions of `prune` and `prune_fn`: each returns a reason to leave a configuration out."""
    found = [options.prune] if callable(options.prune) else []
    return found if options.prune_fn is None else [*found, LeftOutBy(options.prune_fn)]
