"""Tuning many calls of a function into a tuned-config file, which grows with each call that is done."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.option import is_number
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.space import given_tunables, tunables
from tiledsl.autotuner.storage.key import environment
from tiledsl.autotuner.trial import config_text
from tiledsl.autotuner.tune_all import Call, split_calls, tune_all
from tiledsl.autotuner.tuned import arguments as of_calls
from tiledsl.autotuner.tuned import trials
from tiledsl.autotuner.tuned.entry import TunedEntry, arguments_text, as_text
from tiledsl.autotuner.tuned.file import (
    BY_HAND,
    TunedFile,
    architecture,
    change,
    locked,
    path_of,
    read_or_new,
    trials_path,
)
from tiledsl.autotuner.tuned.report import Outcome, TuneReport
from tiledsl.errors import TileError
from tiledsl.files import writing
from tiledsl.kernels.jit import resolve_target
from tiledsl.report.page import check_installed
from tiledsl.settings import override

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction

_LONGEST_NOTE = 200  # characters of a failure's reason
_LONGEST_NAME = 120  # of a page's file
_VERSIONS = ("tiledsl", "compiler", "triton", "driver")


@dataclass
class _Call:
    """One call on its way. values: its arguments by name; key: equal for equal ones."""

    keywords: Mapping[str, Any]
    positional: Sequence[Any]
    text: str
    key: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    configurations: int = 0
    outcome: Outcome | None = None


def tune_into(
    function: AutotunedFunction,
    folder: str | os.PathLike[str],
    calls: Iterable[Sequence[Any] | Mapping[str, Any]],
    *,
    retune: bool = False,
    min_improvement: float = 0.03,
    dry_run: bool = False,
    keep_trials: bool = True,
    report: Callable[[str], None] | None = None,
    reports: str | os.PathLike[str] | None = None,
    **options: Any,
) -> TuneReport:
    """Tune calls of a function and keep the best configuration of each in the tuned-config file of a folder.

    calls: the arguments of each, by position or by name; of an eager function, values of T.const will do. Calls that
    the file has for this GPU, source and kind of latency are skipped, so that a run which was interrupted or killed
    goes on where it was. The file is written, whole, after each call; several processes may do so at once. A call that
    cannot be tuned costs only itself: see `failed` of the report. Where there are several GPUs, and calls for all of
    them, each call is tuned on one of them; a single call on all.

    retune: tune all calls again, ignoring what is remembered. An entry's other configuration then stays unless the new
    one is faster by `min_improvement`, a share of its time, or the old one no longer works. dry_run: only say what
    would be done. keep_trials: write every configuration that was tried to `...trials.jsonl` as well; see trials.
    report: is told a line for each call. reports: a folder for a page about each call that is tuned, which is made; see
    AutotuneResult.report. options: TuneOptions in place of the function's, such as target or budget
    (seconds for each call).

    Raises TileError for a file that makes no sense or a folder that cannot be written; KeyboardInterrupt never: the
    report says it.
    """
    if not is_number(min_improvement, 0) or min_improvement >= 1:
        raise TileError(f"min_improvement is {min_improvement!r}; it is a share, such as 0.03")
    if not isinstance(folder, (str, os.PathLike)):
        raise TileError(f"tune_into: the folder is {folder!r}; it is a path")
    split = split_calls(calls, f"tune_into of {function.name}")
    job = _Job(function.with_options(tuned=(), **options), Path(folder), retune, min_improvement, keep_trials, report)
    if reports is not None and not dry_run:
        job.reports = _folder_of_pages(reports)
    return job.run(split, dry_run)


class _Job:
    """One run of tune_into."""

    def __init__(
        self,
        function: AutotunedFunction,
        folder: Path,
        retune: bool,
        min_improvement: float,
        keep_trials: bool,
        report: Callable[[str], None] | None,
    ) -> None:
        from tiledsl.autotuner.measuring.measure import can_measure, is_measured

        self.function, self.retune, self.min_improvement = function, retune, min_improvement
        self.keep_trials, self.report = keep_trials, report
        self.target = resolve_target(function._target)
        self.path = path_of(folder, function.name, self.target)
        self.architecture = architecture(self.target)
        self.measures = is_measured(self.target, function.options)
        devices = function.options.devices
        here = environment(self.target, can_measure(self.target), devices[0] if devices else None)
        self.gpu, self.sm_count = here["gpu"], here["sm_count"]
        self.versions = {name: here[name] for name in _VERSIONS if here[name]}
        self.calls: list[_Call] = []
        self.told = 0
        self.reports: Path | None = None

    def run(self, calls: Sequence[Call], dry_run: bool) -> TuneReport:
        """Tune the calls that are not yet."""
        file = read_or_new(self.path, self.function.name, self.architecture)
        for positional, keywords in calls:
            self.calls.append(self.prepared(positional, keywords))
        todo = []
        for call in self.calls:
            reason = "" if call.outcome is not None else self.why_tune(file, call)
            if call.outcome is None and reason and not dry_run:
                todo.append(call)
                continue
            if call.outcome is None:
                text = f"{reason}, {call.configurations} configurations" if reason else "tuned before"
                call.outcome = Outcome(call.text, "planned" if reason else "skipped", text)
            self.done(call, call.outcome)
        if todo:
            with locked(self.path):  # what cannot be written is said before anything is tuned
                pass
        interrupted = bool(todo) and self.tune(todo)
        for call in self.calls:
            if call.outcome is None:
                call.outcome = Outcome(call.text, "left", "interrupted before")
        return TuneReport(self.path, tuple(c.outcome for c in self.calls if c.outcome is not None), interrupted)

    def prepared(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> _Call:
        """A call with what an entry says of it; failed where that cannot be told."""
        shown = [*map(str, positional), *(f"{name}={value}" for name, value in keywords.items())]
        call = _Call(keywords, positional, " ".join(shown) or "(no arguments)")
        try:
            bound = self.function._call(positional, keywords)
            problem = self.function._problem(bound)
            fixed = given_tunables(bound.given, tunables(problem.configs))
            if fixed:
                name = next(iter(fixed))
                raise TileError(f"{name} is a tunable, which is chosen for the other arguments: leave it out")
            call.values, call.configurations = bound.values, len(problem.configs)
            found = self.arguments(call, frozenset(problem.configs[0]))
            call.text, call.key = arguments_text(found), as_text(found)
            if any(each.key == call.key for each in self.calls):
                call.outcome = Outcome(call.text, "skipped", "it is given twice")
        except Exception as error:  # whatever a function of configurations or a builder raises
            call.outcome = Outcome(call.text, "failed", _reason(error))
        return call

    def arguments(self, call: _Call, names: frozenset[str]) -> dict[str, Any]:
        """A call's arguments as an entry has them whose configuration sets these tunables."""
        found = of_calls.given_arguments(self.function, call.values, names)
        return of_calls.without_defaults(found, self.function.tuned_configs.defaults(names))

    def why_tune(self, file: TunedFile, call: _Call) -> str:
        """Why a call is to be tuned; "" if it need not be."""
        old = self.entry_of(file, call)
        if old is None:
            return "not tuned yet"
        reason = self.unusable(old)
        return reason or ("tuned again" if self.retune else "")

    def unusable(self, old: TunedEntry) -> str:
        """Why an entry does not count as tuned; "" if it does."""
        if self.measures and not old.measured:
            return "was estimated only"
        if self.function.options.numerics is not None and not old.bit_class:
            return f"was tuned without numerics={self.function.options.numerics!r}"
        return self.function.tuned_configs.mismatch_reason(old.config, old.source)

    def entry_of(self, file: TunedFile, call: _Call) -> TunedEntry | None:
        """The entry for a call's arguments and this GPU; where nothing is measured, any GPU's."""
        texts: dict[frozenset[str], str] = {}
        matching = []
        for entry in file.entries:
            names = frozenset(entry.config)
            if names not in texts:
                texts[names] = as_text(self.arguments(call, names))
            if as_text(entry.arguments) == texts[names]:
                matching.append(entry)
        if not self.measures:
            return min(matching, key=lambda entry: (not entry.measured, entry.latency_ms), default=None)
        return next((entry for entry in matching if entry.gpu in (self.gpu, "")), None)

    def tune(self, todo: Sequence[_Call]) -> bool:
        """Tune and save call by call. Returns whether that was interrupted."""
        from tiledsl.autotuner.measuring.measure import device_numbers

        options = self.function.options
        several = len(device_numbers(self.target, options))
        options = replace(options, shape_grouped=options.shape_grouped or 1 < several <= len(todo))
        stopped = False
        settings = {"tuned_configs": (), **({"always_tune": True} if self.retune else {})}
        with override(**settings):
            try:
                # What fails is recorded, call by call.
                with contextlib.suppress(TileError):
                    tune_all(self.tune_one, [((call,), {}) for call in todo], self.target, options)
            except KeyboardInterrupt:
                stopped = True
        return stopped or any(call.outcome is None for call in todo)

    def tune_one(
        self,
        arguments: tuple[_Call],
        keywords: Mapping[str, Any],
        options: Any,
        started: Callable[[Any], None] | None = None,
    ) -> AutotuneResult:
        """Tune one call and save it, as several.tune_all asks for it."""
        (call,) = arguments
        start = time.perf_counter()
        try:
            old = self.entry_of(read_or_new(self.path, self.function.name, self.architecture), call)
            if old is not None:
                options = replace(options, seed_configs=(*options.seed_configs, *self.seeds(old)))
            result = self.function._compile(call.positional, call.keywords, options, started)
            if result.complete:
                outcome = self.saved(call, result)
                self.done(call, replace(outcome, seconds=time.perf_counter() - start))
            self.write_page(call, result)
            return result
        except Exception as error:  # of any kind: the other calls are tuned all the same
            self.done(call, Outcome(call.text, "failed", _reason(error), seconds=time.perf_counter() - start))
            raise error if isinstance(error, TileError) else TileError(_reason(error)) from error

    def write_page(self, call: _Call, result: AutotuneResult) -> None:
        """Write the page of a call, if asked for; where that fails, it is told, and what was tuned stays."""
        if self.reports is None:
            return
        name = re.sub(r"[^\w.=-]+", "_", f"{self.path.stem} {call.text}")
        name = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}-{sha256(call.text.encode()).hexdigest()[:8]}"  # fmt: skip # noqa: E501
        try:
            result.report(self.reports / f"{name}.html")
        except Exception as error:
            if self.report is not None:
                self.report(f"no report of {call.text}: {_reason(error)}")

    def seeds(self, old: TunedEntry) -> list[dict[str, Any]]:
        """The configuration of an entry, to be measured beside the others, if the function still takes it."""
        if of_calls.mismatch_reason(self.function, old.config):
            return []
        return [of_calls.restored(old.config, self.function.configs)]

    def saved(self, call: _Call, result: AutotuneResult) -> Outcome:
        """Put a result in the file, unless what is there is as good."""
        new = self.entry(call, result)
        outcome = Outcome(call.text, "tuned", entry=new)

        def edit(file: TunedFile) -> TunedFile:
            nonlocal outcome
            self.check_class(file, new)
            old = self.entry_of(file, call)
            why = "" if old is None else self.why_kept(old, new, result)
            if why:
                outcome = Outcome(call.text, "kept", why, old)
                return file
            if old is not None and as_text(old.config) != as_text(new.config):
                outcome = Outcome(call.text, "replaced", f"was {config_text(old.config)}", new)
            if old is not None and old.identity != new.identity:  # an estimate, now measured
                file = replace(file, entries=tuple(each for each in file.entries if each is not old))
            if self.keep_trials:
                trials.record(trials_path(self.path), new, result.trials)
            file = file.with_entry(new)
            by_hand = file.default is not None and file.default.why == BY_HAND
            known = trials.read(trials_path(self.path))
            return file if by_hand else replace(file, default=trials.choose_default(file, known))

        change(self.path, self.function.name, self.architecture, edit)
        return outcome

    def check_class(self, file: TunedFile, new: TunedEntry) -> None:
        """TileError where a file for rows that keep their bits would get an entry of another class."""
        if self.function.options.numerics != "batch-invariant":
            return
        for entry in file.entries:
            if entry.gpu == new.gpu and entry.source == new.source and entry.bit_class != new.bit_class:
                raise TileError(
                    f"the bits of {config_text(new.config)} are of class {new.bit_class}, and those of the entry for "
                    f"{arguments_text(entry.arguments)} of {entry.bit_class or 'none that is known'}: with "
                    "numerics='batch-invariant' a file has one class",
                    notes=["tune the other entries again with retune=True, or into another folder"],
                )

    def why_kept(self, old: TunedEntry, new: TunedEntry, result: AutotuneResult) -> str:
        """Why an entry stays although its call was tuned again; "" if the new one replaces it. Both configurations'
        times are of this run, where the old one's is known."""
        if self.unusable(old) or as_text(old.config) == as_text(new.config):
            return ""
        own = [trial for trial in result.trials if as_text(_written(trial.config)) == as_text(old.config)]
        if own and not own[0].ok and own[0].status not in ("screened", "pruned"):
            return ""
        before = own[0].latency if own and own[0].latency is not None else old.latency_ms
        gain = 1 - new.latency_ms / before
        if gain >= self.min_improvement:
            return ""
        return f"{config_text(new.config)} would save {max(0.0, gain):.1%}, less than {self.min_improvement:.1%}"

    def entry(self, call: _Call, result: AutotuneResult) -> TunedEntry:
        """The entry of a result. TileError for what cannot be in a file."""
        if result.latency is None or result.latency <= 0:
            raise TileError(f"the latency is {result.latency!r}")
        seconds = result.latency * 1e-3
        flops, moved = result.flops, result.bytes_moved
        return TunedEntry(
            arguments=self.arguments(call, frozenset(result.config)),
            config=of_calls.in_file(result.config, self.function.configs),
            latency_ms=_rounded(result.latency),
            latency_kind=result.latency_kind,
            source=self.function.tuned_configs.source(frozenset(result.config)),
            tuned_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            reference_ms=None if not result.ref_latency else _rounded(result.ref_latency),
            tflops=None if not flops else _rounded(flops / seconds / 1e12),
            gb_per_s=None if not moved else _rounded(moved / seconds / 1e9),
            gpu=self.gpu,
            sm_count=self.sm_count,
            versions=self.versions,
            bit_class=result.bit_class,
            certificate=result.best.certificate or {},
        )

    def done(self, call: _Call, outcome: Outcome) -> None:
        """Record what became of a call, and tell it."""
        call.outcome = outcome
        self.told += 1
        if self.report is not None:
            self.report(f"[{self.told}/{len(self.calls)}] {outcome.line()}")


def _folder_of_pages(path: str | os.PathLike[str]) -> Path:
    """A folder, made if need be. TileError where it cannot be, or what draws pages is not installed: before anything
    is tuned."""
    check_installed()
    with writing(path):
        Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)


def _written(config: Mapping[str, Any]) -> dict[str, Any]:
    with contextlib.suppress(TileError):
        return {name: of_calls.as_json(value) for name, value in config.items()}
    return {}


def _rounded(value: float) -> float:
    """Five digits: what is beyond is noise, and would be a difference."""
    return float(f"{value:.5g}")


def _reason(error: BaseException) -> str:
    """An error on one line, with the first of its notes, which says what happened to configurations."""
    shown = (str(error).strip().splitlines() or [""])[0]
    if not isinstance(error, TileError):
        return f"{type(error).__name__}: {shown}"
    note = next((" ".join(each.split()) for each in error.notes if isinstance(each, str)), "")
    return f"{shown} ({note[:_LONGEST_NOTE]})" if note else shown
