"""Run, check and time configurations of a Python function, in this process."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from tiledsl.autotuner import selection
from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.group.agree import merged
from tiledsl.autotuner.group.clock import AgreedClock
from tiledsl.autotuner.group.ranks import Ranks, RanksLost, failure_status
from tiledsl.autotuner.measuring import watched
from tiledsl.autotuner.measuring.again import varied
from tiledsl.autotuner.measuring.final_round import Racer, race
from tiledsl.autotuner.measuring.gpu_clock import reader, wait_for_clock
from tiledsl.autotuner.measuring.inputs import changed, copies, nbytes
from tiledsl.autotuner.numerics import no_reference, reference_index, settle_doubts
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.autotuner.verifying.bits import adversarial_inputs, fingerprint
from tiledsl.autotuner.verifying.reference import Reference
from tiledsl.autotuner.verifying.tolerance import TF32, Tolerance
from tiledsl.autotuner.verifying.verify import KernelOutputs, check_outputs
from tiledsl.digests import digest
from tiledsl.errors import TileError
from tiledsl.runtime.timing import clock, summarize

_FIRST_PASS = 0.25  # of `rep`, in the first measurement
_LOOKS = 5  # at work on other streams
_STALE = 0.1  # of the elements of a result must change with the values for results that do not to be old ones


class Call:
    """A function with the arguments of one call, tunables left out. as_is: names of tensors that are never copied."""

    def __init__(self, function: Callable[..., Any], values: Mapping[str, Any], as_is: Collection[str] = ()) -> None:
        self.function = function
        self.values = dict(values)
        self.signature = inspect.signature(function)
        self.copied = [name for name in values if name not in as_is]
        tensors = [value for value in values.values() if hasattr(value, "data_ptr")]
        self.on_gpu = any(tensor.is_cuda for tensor in tensors)
        self.nbytes = nbytes(tensors)

    def fresh(self) -> dict[str, Any]:
        """The arguments, with copies of the tensors."""
        return {**self.values, **dict(zip(self.copied, copies([self.values[name] for name in self.copied])))}

    def run(self, values: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
        bound = self.signature.bind_partial()
        bound.arguments.update({**values, **copy_config(config)})
        return self.function(*bound.args, **bound.kwargs)


def copy_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration for a function to keep: one of Triton's in it is a copy, since functions do change them."""
    return {name: copy.deepcopy(value) if hasattr(value, "all_kwargs") else value for name, value in config.items()}


class FunctionRun:
    """Runs, checks and times configurations in this process; together with those of other ranks, if there are any.

    Each is called on copies, and on other values in each call: a function could keep what it returned for the same
    ones. After it was timed it is checked once more, at the same addresses, on values of which there is no reference
    yet.
    """

    def __init__(self, call: Call, trials: Sequence[Trial], options: FunctionOptions, ranks: Ranks) -> None:
        self._call, self._trials, self._options, self._ranks = call, trials, options, ranks
        self._references: list[Any] = []
        if options.ref_prog is not None:
            self._ranks.together("running ref_prog", self._run_reference)
        watch = clock(options.timer, "event", call.on_gpu)
        self._watch = watch if ranks.size == 1 else AgreedClock(watch, ranks)
        self._guard = watched.Guard(sys.modules[__name__], FunctionRun)
        self._generators: dict[Any, Any] = {}
        numerics = options.numerics
        self._has_waited = False
        self._wanted = None if numerics is None else reference_index([t.config for t in trials], options.reference_config)  # fmt: skip # noqa: E501

    def _run_reference(self) -> None:
        assert self._options.ref_prog is not None
        self._references = Reference(self._options.ref_prog, list(self._call.values.values())).candidates

    def first(self, trial: Trial) -> None:
        """Check a configuration and time it. What the function raises ends only this trial."""
        options = self._options
        try:
            arguments, touched, seen = self._try(trial, self._check)
            if trial.status == "new" and self._is_fair(trial):
                quick, prepared = self._prepare(trial, arguments, touched)
                if options.wait_for_clock and self._call.on_gpu and not self._has_waited:
                    work = partial(prepared.sample, options.rep * _FIRST_PASS, quick)
                    if self._ranks.size == 1:  # others would call it more or less often
                        wait_for_clock(options.wait_for_clock, reader(), work)
                    self._has_waited = True
                prepared.warm(options.warmup * _FIRST_PASS)
                samples = prepared.sample(options.rep * _FIRST_PASS, quick)
                self._look_behind(trial, arguments, quick)
                self._try_again(trial, arguments, seen)
                if trial.status == "new":
                    self._record(trial, samples, prepared.method)
                    trial.by_rank = getattr(prepared, "by_rank", None)
        except RanksLost:
            raise
        except Exception as error:  # whatever the function or the driver raises
            trial.fail(failure_status(error), error)
        self._is_fair(trial)

    def _is_fair(self, trial: Trial) -> bool:
        """Whether a configuration has left what measures and checks it as it was; else it fails, and that is put
        back."""
        meddled = self._guard.meddled()
        if meddled:
            trial.fail("mismatch", f"replaces {', '.join(meddled)}, by which it is measured and checked")
        return not meddled

    def _try(
        self, trial: Trial, check: Callable[..., dict[str, Any]] | None
    ) -> tuple[dict[str, Any], list[str], list[Any]]:
        """Run a configuration once; its arguments, the names of those that it changed, and its results, here."""
        arguments: dict[str, Any] = {}
        touched: list[str] = []
        seen: list[Any] = []

        def attempt() -> dict[str, Any]:
            arguments.update(self._call.fresh())
            observed = self._observe(trial, arguments)
            touched.extend(name for name, old in self._call.values.items() if changed(observed.given[name], old))
            seen.extend([*observed.results, *(observed.given[name] for name in touched)])
            if observed.late:
                return {"status": "mismatch", "message": observed.late}
            outcome = {} if check is None else check(observed, touched)
            if check is not None and "status" not in outcome and self._wanted is not None:
                outcome["output_bits"] = self._bits(trial, seen)
            return outcome

        outcomes = self._ranks.together(f"configuration {trial.index}", attempt)
        trial.record(merged(outcomes))
        return arguments, touched, seen

    def _observe(self, trial: Trial, arguments: dict[str, Any]) -> watched.Observed:
        alike = [] if not self._references else self._references[-1].returned
        return watched.observe(lambda: self._call.run(arguments, trial.config), arguments, alike, self._call.on_gpu)

    def _check(self, observed: watched.Observed, touched: Sequence[str], references: Any = None) -> dict[str, Any]:
        references = self._references if references is None else references
        if not references:
            return {}
        names, options = list(observed.given), self._options
        places = [names.index(name) for name in touched]
        ran = KernelOutputs(names, observed.results, list(observed.given.values()), places)
        roundoff = TF32 if self._call.on_gpu else 0.0
        limits = Tolerance(options.rtol, options.atol, options.max_mismatched_ratio, roundoff)
        return check_outputs(ran, references, limits)

    def _look_behind(self, trial: Trial, arguments: dict[str, Any], quick: float) -> None:
        """Fail a configuration that works on where the clock does not see it."""
        if not self._call.on_gpu or self._options.timer is not None:
            return
        why = ""
        for _ in range(_LOOKS):  # what is late once may have waited for another process
            late = self._ranks.together(
                "looking at other streams",
                lambda: watched.late_milliseconds(lambda: self._call.run(arguments, trial.config), None),
            )
            why = watched.is_late(max(late), quick)
            if not why:
                return
        trial.fail("mismatch", why)

    def _try_again(self, trial: Trial, arguments: dict[str, Any], seen: Sequence[Any]) -> None:
        """Check a configuration on new values at the addresses at which it was timed; the reference comes after it."""
        ref_prog = self._options.ref_prog
        if trial.status != "new" or not self._references or ref_prog is None:
            return

        def attempt() -> dict[str, Any]:
            fresh = self._call.fresh()
            for name in self._call.copied:
                if hasattr(fresh[name], "data_ptr"):
                    fresh[name] = varied(fresh[name], trial.index)
                    arguments[name].copy_(fresh[name])
            outcome = self._observe(trial, arguments)
            if outcome.late:
                return {"status": "mismatch", "message": outcome.late}
            try:
                right = Reference(ref_prog, list(fresh.values())).candidates
            except TileError:
                return {}
            touched = [name for name, old in fresh.items() if changed(outcome.given[name], old)]
            results = [*outcome.results, *(outcome.given[name] for name in touched)]
            if self._is_stale(results, seen, right[-1]):
                why = "gives the results of other values: it keeps them, or does not write"
                return {"status": "mismatch", "message": why}
            verdict = self._check(outcome, touched, right)
            return {"doubts": {"other values": verdict["message"]}} if "status" in verdict else {}

        trial.record(merged(self._ranks.together(f"configuration {trial.index} again", attempt)))

    def _is_stale(self, results: Sequence[Any], seen: Sequence[Any], right: Any) -> bool:
        """Whether results did not change with the values, although the reference's did."""
        before = self._references[-1]
        pairs = [*zip(right.returned, before.returned)]
        pairs += [(value, before.changed[at]) for at, value in right.changed.items() if at in before.changed]
        differs = any(_share_that_differs(now, old) > _STALE for now, old in pairs)
        same = len(results) == len(seen) and bool(seen) and all(
            now.shape == old.shape and not changed(now, old) for now, old in zip(results, seen)
        )  # fmt: skip
        return differs and same

    def _bits(self, trial: Trial, seen: Sequence[Any]) -> str:
        """The bits of a configuration's results, on the call's values and on worse ones."""
        names = list(self._call.copied)
        prints = [fingerprint(seen)]
        for values in adversarial_inputs([self._call.values[name] for name in names]):
            arguments = {**self._call.fresh(), **dict(zip(names, values))}
            old = dict(zip(names, copies(values)))
            call = partial(self._call.run, arguments, trial.config)
            results = watched.observe(call, arguments, [], self._call.on_gpu)
            touched = [results.given[name] for name in names if changed(results.given[name], old[name])]
            prints.append(fingerprint([*results.results, *touched]))
        return digest(" ".join(prints))[:32]

    def _prepare(self, trial: Trial, arguments: dict[str, Any], touched: Sequence[str]) -> tuple[float, Any]:
        values = self._call.values
        differing = [name for name in self._call.copied if watched.may_differ(values[name])]
        restored = [name for name in touched if name not in differing]

        def restore() -> None:
            for name in restored:
                arguments[name].copy_(values[name])
            for name in differing:
                arguments[name].copy_(watched.other_bits(values[name], self._generator(values[name].device)))

        reset = restore if differing or restored else None
        restore()
        self._watch.config = trial.config
        call = watched.joined(lambda: self._call.run(arguments, trial.config))
        quick = self._watch.quick(call, reset)
        return quick, self._watch.prepare(lambda count: [call], self._call.nbytes, quick, reset)

    def _generator(self, place: Any) -> Any:
        """Random numbers on a device, which never come again."""
        import torch

        if place not in self._generators:
            self._generators[place] = torch.Generator(device=place).manual_seed(0)
        return self._generators[place]

    def _record(self, trial: Trial, samples: Sequence[float], method: str) -> None:
        timing = summarize(samples, method)
        trial.status, trial.latency = "ok", timing.median
        trial.spread, trial.timing = timing.spread, timing.method

    def final(self) -> None:
        """Time the best few and the default against each other."""
        failures: dict[str, Any] = {}
        racers = []
        for trial in selection.finalists(self._trials):
            try:
                arguments, touched, _ = self._try(trial, None)
                quick, prepared = self._prepare(trial, arguments, touched)
                racers.append(Racer(str(trial.index), prepared, quick))
            except RanksLost:
                raise
            except Exception as error:
                message = str(error) if isinstance(error, TileError) else f"{type(error).__name__}: {error}"
                failures[str(trial.index)] = {"status": failure_status(error), "message": message}
        rounds, lasting = race(racers, self._options.rep, lambda name: None, self._call.on_gpu)
        selection.record_final(self._trials, {"rounds": rounds, "lasting": lasting, "failures": failures})


def settle(trials: Sequence[Trial], options: FunctionOptions) -> None:
    """Take out what is wrong on other values although another one is right on them, and what has other bits than the
    reference configuration. TileError if that does not work."""
    settle_doubts(trials, "the function")
    if options.numerics is None:
        return
    reference = trials[reference_index([trial.config for trial in trials], options.reference_config)]
    if not reference.ok:
        raise no_reference(options.numerics, reference)
    for trial in trials:
        if trial.ok and trial.output_bits != reference.output_bits:
            trial.fail("other_bits", f"other bits than {config_text(reference.config)} ({trial.latency:.4g} ms)")


def _share_that_differs(now: Any, old: Any) -> float:
    if now.shape != old.shape or not now.numel():
        return 0.0
    differ = now != old
    return float((differ & ~(now.isnan() & old.isnan()) if now.dtype.is_floating_point else differ).double().mean())
