"""What a run measures with: its devices, its inputs and reference, and processes or this one to run kernels in."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.measuring import wire
from tiledsl.autotuner.measuring.again import Further, further_inputs
from tiledsl.autotuner.measuring.bench import Bench
from tiledsl.autotuner.measuring.bench_pool import BenchPool, WorkerSession, faster
from tiledsl.autotuner.measuring.inputs import are_drawn, copies, kernel_inputs, stand_ins, with_poison
from tiledsl.autotuner.measuring.jobs import Job, Policy
from tiledsl.autotuner.measuring.metrics import by_latency, name_of
from tiledsl.autotuner.measuring.scratch import Scratch
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.verifying.named import watched
from tiledsl.autotuner.verifying.reference import Reference, unread
from tiledsl.autotuner.verifying.tolerance import Tolerance, roundings_of
from tiledsl.child_processes import search_path
from tiledsl.errors import TileError
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.module import writable_folder
from tiledsl.runtime.profiler import do_bench
from tiledsl.runtime.target import Target
from tiledsl.settings import current

_RUN_SECONDS = 30.0  # for a configuration on a GPU
_SETTLE = 100.0  # milliseconds for each second of the budget, to find out what ties with the fastest


def can_measure(target: Target) -> bool:
    """Whether times taken here say anything about the target."""
    return target.kind != "interpret" and target.runs_here


def is_measured(target: Target, options: TuneOptions) -> bool:
    """Whether this run's latencies are measured; by `options.timer` they are, in a way."""
    return can_measure(target) or options.timer is not None


def policy_of(options: TuneOptions) -> Policy:
    """How configurations are checked and timed, as the processes are told."""
    return Policy(
        warmup=options.warmup,
        rep=options.rep,
        tolerance=Tolerance(options.rtol, options.atol, options.max_mismatched_ratio),
        keep_outputs=options.checks and options.manual_check_prog is not None,
        early_stop_factor=options.early_stop_factor if options.early_stop else None,
        timer=options.timer,
        backend=options.backend,
        wait_for_clock=options.wait_for_clock,
        settle=None if options.budget is None else options.budget * _SETTLE,
        metrics={name: name_of(each) if options.isolate else each for name, each in (options.metrics or {}).items()},
        by_latency=by_latency(options),
        cache_dir=str(writable_folder(current().cache_dir)),
    )


def time_reference(ref_prog: Callable[..., Any], inputs: Sequence[Any], options: TuneOptions) -> float | None:
    """ref_prog's milliseconds, in this process; None on the CPU. It may write into `inputs`."""
    place = next((item.device for item in inputs if getattr(item, "is_cuda", False)), None)
    if place is None:
        return None
    import torch

    with torch.cuda.device(place):
        return float(do_bench(lambda: ref_prog(*inputs), warmup=options.warmup, rep=options.rep, return_mode="median"))


@dataclass
class Given:
    """What configurations are run on and compared with. stand_ins: the inputs without elements, to check parameters;
    written: what ref_prog returned, for manual_check_prog; device: the inputs' ("cpu", "cuda:0"); roundings: see
    tolerance.py."""

    inputs: list[Any]
    reference: Reference | None
    stand_ins: list[Any]
    written: list[Any]
    device: str
    ref_latency: float | None = None
    roundings: tuple[float, bool] = (0.0, False)
    further: list[Further] = field(default_factory=list)

    @staticmethod
    def make(kernel: Kernel, options: TuneOptions, call_inputs: dict[str, Any] | None, measured: bool) -> Given:
        """Make the inputs for a kernel and run ref_prog on them. TileError if either fails."""
        inputs = kernel_inputs(kernel, options, call_inputs)
        device = next((str(item.device) for item in inputs if hasattr(item, "data_ptr")), "cpu")
        given = Given(inputs, None, stand_ins(inputs), [], device)
        if options.checks:
            assert options.ref_prog is not None
            if getattr(kernel, "overwrites", False):  # its outputs are among them, and may hold what is right already
                inputs = given.inputs = with_poison(inputs, unread(options.ref_prog, inputs))
            given.reference = Reference(options.ref_prog, inputs)
            given.roundings = roundings_of(kernel)
            if options.manual_check_prog is None:
                is_drawn = are_drawn(kernel, options, call_inputs)
                given.further = further_inputs(kernel, inputs, options.ref_prog, is_drawn)
            if options.manual_check_prog is not None:
                given.written = given.reference.as_written
            if measured:
                with watched("ref_prog"):
                    given.ref_latency = time_reference(options.ref_prog, copies(inputs), options)
        return given

    def disagreement(self, manual_check_prog: Callable[..., Any], outputs: list[Any]) -> BaseException | None:
        """What the user's check raises for a configuration's outputs."""
        try:
            with watched("manual_check_prog"):
                manual_check_prog(list(outputs), list(self.written))
        except (Exception, SystemExit) as error:
            return error
        return None


class MeasurementBackend:
    """Runs jobs in its `pool`; see BenchPool for what that puts in `events`."""

    def __init__(self, target: Target, options: TuneOptions, events: queue.Queue[Any]) -> None:
        self.policy = policy_of(options)
        self.timeout = options.run_timeout or (_RUN_SECONDS if can_measure(target) else options.timeout)
        self._scratch = Scratch()
        self.folder = self._scratch.path
        self.pool: Any = None
        if options.isolate:
            self.pool = BenchPool(devices(target, options), events)
        else:
            self.pool = InProcess("cpu" if not can_measure(target) else "cuda", events)

    def begin(self, given: Given) -> None:
        """Hand over the inputs and the reference's outputs. Jobs run from here on."""
        candidates = [] if given.reference is None else given.reference.candidates
        roundoff, is_narrow = given.roundings
        tolerance = replace(self.policy.tolerance, roundoff=roundoff, is_narrow=is_narrow)
        self.policy = replace(self.policy, tolerance=tolerance)
        if isinstance(self.pool, InProcess):
            bench = Bench(self.pool.device, self.policy, given.inputs, candidates, self.folder, given.further)
            self.pool.bench = bench
            return
        message = {
            "do": "begin",
            "policy": asdict(self.policy),
            "given": wire.store([given.inputs, candidates, given.further], self.folder, "given"),
            "folder": str(self.folder),
            "path": search_path() if self.policy.metrics else [],
            "triton_cache_dir": os.environ.get("TRITON_CACHE_DIR"),
        }
        del candidates
        self.pool.begin(WorkerSession(message, self.timeout))
        given.inputs, given.reference, given.further = [], None, []
        if given.device != "cpu":
            import torch

            torch.cuda.empty_cache()  # the processes need the room

    def outputs(self, described: Sequence[dict[str, Any]], device: str) -> list[Any]:
        """The tensors that a job left, on `device`; their files are gone then."""
        values: list[Any] = wire.load(described, device)
        for each in described:
            with contextlib.suppress(OSError):
                (self.folder / each["file"]).unlink()
        return values

    def close(self, *, kill: bool = False) -> None:
        """End the run: the processes stay for the next one, or are killed."""
        try:
            if kill:
                self.pool.kill()
            else:
                self.pool.close()
        finally:
            self._scratch.close()


class InProcess:
    """BenchPool's interface without processes: a job has run when `submit` returns."""

    def __init__(self, device: str, events: queue.Queue[Any]) -> None:
        self.device = device
        self.bench: Bench | None = None
        self.best: float | None = None
        self._events = events

    def submit(self, job: Job, place: int) -> None:
        assert self.bench is not None
        outcome = self.bench.run(job, self.best)
        outcome.pop("sticky", None)
        self.best = faster(self.best, outcome)
        self._events.put(("ran", job.index, outcome))

    def submit_final(self, jobs: Sequence[Job]) -> None:
        assert self.bench is not None
        self._events.put(("final", 0, self.bench.final(jobs, lambda job: None)))

    def cancel(self) -> list[int]:
        return []

    def close(self) -> None:
        self.bench = None

    kill = close


def devices(target: Target, options: TuneOptions) -> list[str]:
    """A name for each process that measures: the GPU's number, or "cpu"."""
    numbers = device_numbers(target, options)
    if options.shape_grouped:  # the others are for other shapes; see several.tune_all
        numbers = numbers[:1]
    return [str(number) if can_measure(target) else "cpu" for number in numbers]


def device_numbers(target: Target, options: TuneOptions | FunctionOptions) -> list[int]:
    """The GPUs that may measure: those given, else all that are like the current one, which comes first. TileError for
    given ones that are not there, or of different models, whose times do not compare."""
    if not can_measure(target):
        return list(options.devices or (0,))
    import torch

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    if options.devices is None:
        here = torch.cuda.current_device()
        alike = [number for number, name in enumerate(names) if name == names[here]]
        return sorted(alike, key=lambda number: (number != here, number))
    missing = [number for number in options.devices if number >= len(names)]
    if missing:
        raise TileError(f"autotune: devices names GPU {missing[0]}; there are {len(names)}, from 0 on")
    models = sorted({names[number] for number in options.devices})
    if len(models) > 1:
        raise TileError(f"autotune: devices are of different models ({', '.join(models)}): their times do not compare")
    return list(options.devices)
