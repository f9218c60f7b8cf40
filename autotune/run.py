"""The middle of a tuning: compile, check and time configurations, and handle each result as it arrives."""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.compiling.compile_pool import CompilePool, task_for
from tiledsl.autotuner.compiling.compile_worker import CompileOutcome
from tiledsl.autotuner.compiling.duplicates import Duplicates
from tiledsl.autotuner.forks import Ended, Forked
from tiledsl.autotuner.group.ranks import Ranks
from tiledsl.autotuner.group.trials import InStep, agree_on_trials, in_common
from tiledsl.autotuner.left_out import prune_and_order
from tiledsl.autotuner.measuring import measure
from tiledsl.autotuner.measuring.jobs import Job
from tiledsl.autotuner.measuring.metrics import objective_of
from tiledsl.autotuner.measuring.runnable import runner
from tiledsl.autotuner.numerics import Bits, settle_doubts
from tiledsl.autotuner.predicting import model, prune
from tiledsl.autotuner.predicting.work import work_of
from tiledsl.autotuner.search import Strategy, make_strategy
from tiledsl.autotuner.search.exhaustive import Exhaustive
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.trial import NOT_TRIED, Trial, config_text
from tiledsl.autotuner.verifying.certified import certified
from tiledsl.autotuner.waiting import WAKE_SECONDS, Budget
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime import launch_triton
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.engine import TuningProblem
    from tiledsl.autotuner.storage.store import Store

_log = logging.getLogger("tiledsl")
_LONG = 60.0  # seconds that checks in the interpreter may take before verify_at is suggested
_SMALL = 256  # a size that the interpreter takes seconds for
_SHARE_OF_DEFAULT = 0.25  # of the measuring time, where the search does not ask for the default


class TuningRun:
    """Kernels are compiled, checked and timed in processes, while a search goes on: until its strategy has no more, or
    the budget is used up.

    The default, which is the first configuration, is always tried. A trial that fails costs nothing but itself; an
    error in ref_prog or in making the inputs ends the run, and so does Ctrl-C. A single kernel waits for no other rank,
    so ranks need not time a configuration at the same moment; what each finds is brought together before the search
    goes on, before the final round and after it. See task.Execution for the methods.
    """

    def __init__(
        self,
        problem: TuningProblem,
        trials: Sequence[Trial],
        store: Store | None,
        ended: Callable[[Trial], None],
        ranks: Ranks,
    ) -> None:
        self.problem = problem
        self.options, self.target = problem.options, problem.target
        self.trials = trials
        self.kernels: dict[int, Kernel] = {}  # of the trials that are not ended before
        self.ended = ended
        self._ranks = ranks  # that run the same
        before = ranks.exchange("the last winner", None if store is None else store.previous_winner())[0]
        self.incumbent = next((trial.index for trial in trials if config_key(trial.config) == before), None)
        self.measured = measure.is_measured(self.target, self.options)
        self.ref_latency: float | None = None
        self._order: list[int] = []  # in which the search takes configurations, if the model knows nothing better
        self._events: queue.Queue[Any] = queue.Queue()
        self._compiling: set[int] = set()
        self._running: set[int] = set()
        self._places: dict[int, int] = {}  # in the order of asking
        self._given: Any = None
        self._budget = Budget(self.options.budget)
        self._stopped = False
        self._is_ready = False  # the inputs are made
        self._ready_at = 0.0
        self._checked = 0  # in the interpreter
        self._has_suggested = False
        self._is_final = False  # the best few are timed against each other
        self._shares: dict[int, float] = {}  # of the measuring time, of those that were asked for
        self._duplicates = Duplicates(trials)
        self._launchers: set[str] = set()  # kinds of parameters
        self._compiler: CompilePool | None = None
        self._rig: measure.MeasurementBackend | None = None
        self._bits: Bits | None = None
        self._reading: threading.Thread | None = None
        self._loading: threading.Thread | None = None
        if self.options.metrics and not self.measured:
            raise TileError(
                f"autotune of {problem.name}: metrics are measured, and nothing is on {self.target} here",
                notes=["leave out metrics and objective for this target, or tune on the GPU"],
            )
        if problem.started is not None:
            problem.started(self)

    def prune(self) -> None:
        """The processes start meanwhile, once the forks are made that look at configurations: a fork of a process that
        has just started threads may wait for a lock that one of them held."""
        try:
            self._order = prune_and_order(self.trials, self.problem, self._prepare)
        except BaseException:
            self._close()
            raise
        if self._ranks.size > 1:
            self._order = in_common(self._ranks, self.trials, self._order)

    def run(self) -> None:
        order, options, configs = self._order, self.options, self.problem.configs
        lacks_final_round = self.measured and selection.lacks_final_round(self.trials)
        if not order and not lacks_final_round and options.numerics is None:
            self._close()
            return
        count = len(self.trials)
        self._go(make_strategy(options.search, count, order, options.max_trials, 0, configs, options.budget))

    def choose(self) -> CachedResult:
        for trial in self.trials:
            if trial.same_as is not None:
                trial.share(self.trials[trial.same_as])

        def winner() -> Trial | None:
            found = selection.winner(self.trials, self.incumbent, self.options.min_improvement)
            return None if found is None else self.trials[self._ranks.exchange("the winner", found.index)[0]]

        options = self.options
        best = certified(self.trials, winner, options.timeout, self._ranks) if options.verify else winner()
        kind = "measured" if self.measured else "estimated"
        return CachedResult(list(self.trials), kind, self.ref_latency, None if best is None else best.index)

    def _prepare(self) -> None:
        """Have the processes start: they take longer than it takes to know the first configurations. `_go` or `_close`
        comes next."""
        if self._rig is None and (self.measured or self.options.checks):
            self._rig = measure.MeasurementBackend(self.target, self.options, self._events)
        if self._compiler is None and self.target.kind != "interpret":
            expected = sum(trial.status == "new" for trial in self.trials)
            self._compiler = CompilePool(current(jobs=self.options.jobs).workers, self._events, expected)

    def _go(self, strategy: Strategy) -> None:
        """Run to the end. The processes are kept for the next run, or killed if this one is interrupted."""
        self._budget = Budget(self.options.budget)
        if self._ranks.size > 1:
            strategy = InStep(strategy, self._ranks, self.trials, lambda: self._budget.is_used, self.ended)
        try:
            self._prepare()
            ahead = [0] if self.trials[0].status == "new" else []
            if self.options.numerics is not None:
                self._bits = Bits(self.problem, self.trials)
                ahead += [self._bits.index] if self._bits.reference.status == "new" else []
            self._ask(strategy, list(dict.fromkeys(ahead)))
            if self._compiler is not None and measure.can_measure(self.target):
                self._reading = launch_triton.read_ahead()
            if self._rig is not None:
                self._hand_over_inputs(self._rig)
            else:
                self._begin()
            self._loop(strategy)
            settle_doubts(self.trials, self.problem.name)
            self._settle_bits()
            self._agree()
            self._final_round()
            why = self._budget.reason if self._stopped else f"{NOT_TRIED}the search chose others"
            for trial in self.trials:
                if trial.status == "new" and trial.same_as is None:
                    trial.fail("pruned", why)
        except BaseException:
            self._close(kill=self._given is not None)  # before that, no process does anything
            raise
        self._close()
        if self._loading is not None:  # it and the first call would both set up Triton
            self._loading.join()

    def _settle_bits(self) -> None:
        """Take out configurations with other bits than the reference's, and see that a row's bits stay its own."""
        if self._bits is None:
            return
        self._bits.settle()
        kernel = self._runner(self._bits.index)
        if self.options.numerics != "batch-invariant" or self._rig is None or kernel is None:
            return
        if not self._bits.runs_here:
            return
        for count, *jobs in self._bits.row_jobs(kernel):
            self._bits.check_rows(count, *map(self._outcome, jobs))

    def _outcome(self, job: Job) -> Mapping[str, Any]:
        """What becomes of one job, where no other runs."""
        assert self._rig is not None
        self._rig.pool.submit(job, 0)
        return dict(self._wait_for("ran"))

    def _next_event(self, seconds: float) -> tuple[str, int, Any]:
        """Raises queue.Empty where none comes in time, and KeyboardInterrupt where that is what comes."""
        event: tuple[str, int, Any] = self._events.get(timeout=seconds)
        if event[0] == "interrupt":
            raise KeyboardInterrupt
        return event

    def _wait_for(self, wanted: str) -> Any:
        """The outcome of the next event of a kind; compilations that were given up may still be reported."""
        while True:
            with contextlib.suppress(queue.Empty):
                kind, _, outcome = self._next_event(WAKE_SECONDS)
                if kind == wanted:
                    return outcome

    def _agree(self) -> None:
        if self._ranks.size > 1:
            agree_on_trials(self._ranks, self.trials, range(len(self.trials)))

    def phase(self) -> str:
        """What is being done now: `3 to compile, 1 to measure`."""
        if self._is_final:
            return "final round"
        if self._rig is not None and not self._is_ready:
            return "inputs and reference"
        doing = "measure" if self.measured else "check"
        counts = (len(self._compiling), "compile"), (len(self._running), doing)
        return ", ".join(f"{count} to {what}" for count, what in counts if count) or "lowering"

    def interrupt(self) -> None:
        """As Ctrl-C does, from another thread."""
        self._events.put(("interrupt", 0, None))

    def _close(self, *, kill: bool = False) -> None:
        """Let go of the processes."""
        if self._compiler is not None:
            self._compiler.close()
        if self._rig is not None:
            self._rig.close(kill=kill)

    # Stages

    def _ask(self, strategy: Strategy, ahead: Sequence[int] = ()) -> None:
        """Start what the strategy wants next, if there is nothing to compile left; before that what is `ahead`."""
        while not strategy.done and not self._compiling and not self._is_late():
            batch = max(16, 4 * current(jobs=self.options.jobs).workers)
            wanted = strategy.ask(len(self.trials) if isinstance(strategy, Exhaustive) else batch)
            if not wanted:
                break
            again = [index for index in wanted if index in self._shares]
            self._shares.update((index, strategy.share(index)) for index in wanted)
            for index in wanted:
                if self.trials[index].status != "new" and not (index in again and self._time_again(index)):
                    self._tell(strategy, self.trials[index])
            self._start_all([each for each in dict.fromkeys((*ahead, *wanted)) if each not in self._places])
            ahead = ()
        self._start_all(ahead)

    def _time_again(self, index: int) -> bool:
        """Time a configuration for longer, if it was timed; False where that tells nothing new."""
        trial = self.trials[index]
        can_be = self.measured and self._is_ready and trial.ok and trial.same_as is None
        kernel = self._runner(index) if can_be else None
        if kernel is None or self._rig is None:
            return False
        self._running.add(index)
        place = self._places.setdefault(index, len(self._places))
        self._rig.pool.submit(Job.of(index, kernel, True, self._shares[index], checked=True), place)
        return True

    def _start_all(self, wanted: Sequence[int]) -> None:
        tasks = []
        rehearsed = wanted if self.options.isolate and self.problem.program is not None else ()
        with Forked(self._rehearse, rehearsed, self.options.timeout) as forked:
            for index, answer in zip_longest(wanted, forked):
                self._places[index] = len(self._places)
                if isinstance(answer, Ended):
                    self.trials[index].fail(answer.status, answer.message)
                    self._announce(self.trials[index])
                    continue
                kernel = self._lower(self.trials[index])
                if kernel is None:
                    continue
                self.kernels[index] = kernel
                if self._compiler is None:
                    self._running.add(index)
                    if self._is_ready:
                        self._measure(index)
                else:
                    self._compiling.add(index)
                    tasks.append(task_for(index, kernel, self.options.timeout, self._needs_launcher(kernel)))
        if self._compiler is not None:
            first = len(tasks) * self._ranks.rank // self._ranks.size  # what another rank has compiled is in the cache
            self._compiler.submit([*tasks[first:], *tasks[:first]])

    def _needs_launcher(self, kernel: Kernel) -> bool:
        """Whether what launches kernels with these parameters is not compiled for another one. Sizes do not matter."""
        if self.target.kind != "cuda" or not measure.can_measure(self.target):
            return False
        signatures = [(str(each.signature), sorted(each.constexprs)) for each in kernel.module.kernels]
        kinds = re.sub(r"\d+(?=[,\]])", "", str(signatures))
        new = kinds not in self._launchers
        self._launchers.add(kinds)
        return new

    def _rehearse(self, index: int) -> None:
        """What `_lower` and `_measure` do of the user's and the compiler's, in a fork which that may end or hang."""
        kernel = self.trials[index].kernel
        if self.measured or self.options.checks:
            runner(self.problem, self.trials[index], kernel)

    def _lower(self, trial: Trial) -> Kernel | None:
        """The trial's kernel; None if it cannot be built, or an earlier one has the same source."""
        try:
            kernel = trial.kernel
        except (Exception, SystemExit) as error:  # the builder is the user's code
            trial.fail("compile_error", error)
            self._announce(trial)
            return None
        trial.source_hash = source_digest(kernel.source)
        first = self._duplicates.by_source(trial)
        if first is not None:
            self._follow(trial, first)
            return None
        if self._bits is not None:
            try:
                self._bits.lowered(trial, kernel)
            except Exception as error:
                trial.fail("compile_error", error)
            if trial.status != "new":
                self._announce(trial)
                return None
        return kernel

    def _follow(self, trial: Trial, first: Trial) -> None:
        self._duplicates.follow(trial, first)
        if trial.status != "new":
            self._announce(trial)

    def _announce(self, trial: Trial) -> None:
        """A trial that has ended without running is handled when its turn comes, like the others."""
        self._running.add(trial.index)
        self._events.put(("ran", trial.index, {}))

    def _hand_over_inputs(self, rig: measure.MeasurementBackend) -> None:
        """Make the inputs and run ref_prog, while others compile."""
        kernel = None
        restored = [trial.index for trial in self.trials if trial.ok]
        for index in (*self.kernels, *restored):
            with contextlib.suppress(Exception):  # comes again when it is this configuration's turn
                kernel = kernel or self._runner(index)
        if kernel is None:
            self._begin()
            return
        self._given = measure.Given.make(kernel, self.options, self.problem.call_inputs, self.measured)
        self.ref_latency = self._given.ref_latency
        rig.begin(self._given)
        self._begin()

    def _begin(self) -> None:
        """Measure what needs no compiling."""
        self._is_ready, self._ready_at = True, time.monotonic()
        for index in sorted(self._running, key=self._places.__getitem__):
            if self.trials[index].status == "new":
                self._measure(index)

    def _loop(self, strategy: Strategy) -> None:
        while self._compiling or self._running:
            if self._is_late() and not self._stopped:
                self._stop_early()
                continue
            try:
                kind, index, outcome = self._next_event(self._seconds_to_wait())
            except queue.Empty:
                continue
            if kind == "compiled" and self._stopped:
                continue
            trial = self.trials[index]
            if kind == "compiled":
                self._compiling.discard(index)
                self._compiled(trial, outcome)
            else:
                self._ran(trial, outcome)
            if trial.status != "new":
                self._end(strategy, trial)
            self._ask(strategy)

    def _compiled(self, trial: Trial, outcome: CompileOutcome) -> None:
        trial.compile_seconds, trial.resources = outcome.seconds, outcome.resources
        trial.binary_hash = outcome.binary_hash
        if outcome.status != "ok":
            trial.fail(outcome.status, outcome.message)
            if outcome.status == "out_of_resources" and self.options.prune:
                self._leave_out_larger(trial)
            return
        first = self._duplicates.by_binary(trial)
        if first is not None:
            self._follow(trial, first)
            return
        if self._bits is not None:
            self._bits.compiled(trial, outcome.orders)
            if trial.status != "new":
                return
        limit = None if trial.index == 0 else prune.HEAVY_SPILLS  # the default is always measured
        reason = prune.prune_compiled(outcome.resources or {}, self.target, limit) if self.options.prune else None
        if reason is not None:
            trial.fail("pruned", reason)
            return
        self._measure(trial.index)
        if self._reading is not None:
            ahead = (self._reading, self.kernels[trial.index])
            self._loading, self._reading = threading.Thread(target=_load_ahead, args=ahead, daemon=True), None
            self._loading.start()

    def _leave_out_larger(self, failed: Trial) -> None:
        """Configurations that wait to be compiled, and need no less than one that needed too much."""
        assert self._compiler is not None
        least = work_of(self.kernels[failed.index])
        has_programs = self.problem.program is not None
        why = f"needs no less than {config_text(failed.config)}: {failed.message.splitlines()[0]}"
        for index in sorted(self._compiling):
            needs = (
                prune.needs_as_much(work_of(self.kernels[index]), least, self.target)
                if has_programs
                else prune.is_at_least(self.trials[index].config, failed.config)
            )
            if needs and self._compiler.skip(index):
                self._compiling.discard(index)
                self.trials[index].fail("pruned", why)
                self._announce(self.trials[index])

    def _measure(self, index: int) -> None:
        """Check and time a configuration where that is wanted and possible; else estimate its time."""
        trial = self.trials[index]
        try:
            kernel = self._runner(index) if self._rig is not None else None
            if kernel is not None:
                kernel.check([param for param in kernel.params if not param.is_output], self._given.stand_ins)
        except Exception as error:
            trial.fail("launch_error", error)
            kernel = None
        if kernel is not None:
            assert self._rig is not None
            self._running.add(index)
            bits = self._bits is not None and self._bits.runs_here
            job = Job.of(index, kernel, self.measured, self._shares.get(index, _SHARE_OF_DEFAULT), bits=bits)
            self._rig.pool.submit(job, self._places[index])
            return
        if trial.status == "new":
            self._estimate(trial)
        if index in self._running:
            self._announce(trial)

    def _ran(self, trial: Trial, outcome: Mapping[str, Any]) -> None:
        self._running.discard(trial.index)
        trial.record(outcome)
        if outcome and not self.measured:
            self._suggest_smaller()
        if "at" in outcome and not trial.ok:
            trial.message += self._in_tiles(trial, outcome["at"])
        if "outputs" in outcome and trial.ok:
            self._check_by_hand(trial, outcome["outputs"])
        if trial.ok and not self.measured and trial.latency is None:
            self._estimate(trial)
        if trial.ok:
            trial.objective = objective_of(self.options, trial)
        if self._bits is not None:
            self._bits.ran(trial)
        if self._rig is not None and trial.ok and not trial.doubts:
            pool, best = self._rig.pool, trial.milliseconds
            pool.best = best if pool.best is None else min(pool.best, best)

    def _suggest_smaller(self) -> None:
        """Say once what makes checks in the interpreter quicker, where those that are left will take long."""
        self._checked += 1
        open_trials = sum(trial.status == "new" for trial in self.trials)
        seconds = (time.monotonic() - self._ready_at) / self._checked
        if self._has_suggested or self.options.verify_at is not None or seconds * open_trials < _LONG:
            return
        self._has_suggested = True
        names = set().union(*self.problem.configs)
        sizes = {
            name: _SMALL
            for name, value in self.problem.values.items()
            if type(value) is int and value > _SMALL and name not in names
        }
        way_out = f"verify_at={sizes or '{...}'} checks them at a smaller size"
        if self.target.runs_here:
            way_out = f"for a GPU, as with target='cuda:90', {way_out}"
        _log.warning(
            "autotune: %s: the interpreter takes %.1f s for a configuration, about %.0f s for the %d that are left; %s",
            self.problem.name, seconds, seconds * open_trials, open_trials, way_out,
        )  # fmt: skip

    def _in_tiles(self, trial: Trial, at: Mapping[str, Any]) -> str:
        """In which tiles the mismatches are that a check names; "" where that cannot be told."""
        kernel = self.kernels.get(trial.index)
        outputs = [] if kernel is None else [kernel.params[place].name for place in kernel.outputs]
        name = str(at["name"]).removeprefix("the output").removeprefix("output ").partition(",")[0]
        if outputs and (name == "" or name.isdigit()):
            name = outputs[int(name or 0)]
        with contextlib.suppress(Exception):  # it only adds to a message
            from tiledsl.autotuner.verifying.where import in_tiles

            return "" if kernel is None else in_tiles(kernel, name, at["first"], at["worst"])
        return ""

    def _check_by_hand(self, trial: Trial, described: Sequence[dict[str, Any]]) -> None:
        assert self._rig is not None and self.options.manual_check_prog is not None
        error = self._given.disagreement(
            self.options.manual_check_prog, self._rig.outputs(described, self._given.device)
        )
        trial.verified = error is None
        if error is not None:
            trial.fail("mismatch", error)

    def _estimate(self, trial: Trial) -> None:
        try:
            trial.latency = model.predict(self.kernels[trial.index], self.target, trial.resources)
            trial.status = "ok"
        except Exception as error:
            trial.fail("launch_error", error)

    def _final_round(self) -> None:
        """Time the best few and the default against each other."""
        best = selection.finalists(self.trials, self.incumbent) if self.measured else []
        if not best or self._rig is None:
            return
        self._is_final = True
        kernels = [(trial.index, self._runner(trial.index)) for trial in best]
        self._rig.pool.submit_final([Job.of(index, kernel, True) for index, kernel in kernels if kernel is not None])
        selection.record_final(self.trials, self._wait_for("final"))
        self._agree()
        for trial in best:
            self.ended(trial)

    # Pieces

    def _runner(self, index: int) -> Kernel | None:
        trial = self.trials[index]
        kernel = self.kernels.get(index)
        return runner(self.problem, trial, trial.kernel if kernel is None else kernel)

    def _end(self, strategy: Strategy, trial: Trial) -> None:
        self._tell(strategy, trial)
        if self._ranks.size == 1:
            self.ended(trial)
        for each in self._duplicates.followers(trial):
            self._end(strategy, each)

    def _tell(self, strategy: Strategy, trial: Trial) -> None:
        if trial.index in self._shares:
            works = trial.ok and not trial.doubts and trial.latency is not None
            strategy.tell(trial.index, trial.cost if works else None)

    def _seconds_to_wait(self) -> float:
        """For the next event, or until the budget is used up."""
        if self._stopped:
            return WAKE_SECONDS
        left = self._budget.left
        return min(left, WAKE_SECONDS) if left > 0 else 0.01 if self._is_late() else WAKE_SECONDS

    def _is_late(self) -> bool:
        """Whether the budget is used up. There is a result in any case: the default is waited for, and what works."""
        if self._ranks.size > 1:  # ranks stop together; see InStep
            return False
        return self.trials[0].status != "new" and self._budget.is_over(self.trials)

    def _stop_early(self) -> None:
        """The budget is used up: what runs may end, the rest is not tried."""
        self._stopped = True
        if self._compiler is not None:
            self._compiler.close()
        waiting = self._compiling | set(self._rig.pool.cancel() if self._rig is not None else [])
        self._compiling.clear()
        self._running -= waiting


def _load_ahead(reading: threading.Thread, kernel: Kernel) -> None:
    """What the winner's binary and its first call will need of Triton, while this process waits for others."""
    reading.join()
    with contextlib.suppress(Exception):  # comes again when it matters
        for each in kernel.compiled.values():
            launch_triton.make_launcher(each.triton)
