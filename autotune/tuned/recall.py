"""Tuned-config files at run time: what there is for a function, and the kernel of what serves a call."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tiledsl.autotuner.engine import BoundCall, TuningProblem
from tiledsl.autotuner.results.result import AutotuneResult
from tiledsl.autotuner.space import given_tunables
from tiledsl.autotuner.trial import Trial
from tiledsl.autotuner.tuned import arguments as of_calls
from tiledsl.autotuner.tuned import misses
from tiledsl.autotuner.tuned.entry import TunedEntry, arguments_text, as_text
from tiledsl.autotuner.tuned.file import Default, TunedFile, path_of, read
from tiledsl.autotuner.tuned.lookup import Gpu, LookupRow, TunedMatch, candidates
from tiledsl.digests import source_digest
from tiledsl.errors import TileError
from tiledsl.logs import warn_once
from tiledsl.runtime.target import Target
from tiledsl.settings import current

if TYPE_CHECKING:
    from tiledsl.autotuner.decorator import AutotunedFunction
    from tiledsl.autotuner.results.result import AutotuneResult
    from tiledsl.kernels.kernel import Kernel

_log = logging.getLogger("tiledsl")
_lock = threading.Lock()
_read: dict[Path, tuple[Any, TunedFile | None]] = {}  # what files said, and what they were like then


def _tell(message: str) -> None:
    """Say something once a process."""
    warn_once(f"autotune: {message}")


def load(path: Path) -> TunedFile | None:
    """The file at `path`, read again if it has changed; None if there is none or it makes no sense, which is told."""
    try:
        found = path.stat()
    except OSError:
        return None
    like = (found.st_mtime_ns, found.st_size, found.st_ino)
    with _lock:
        known = _read.get(path)
    if known is not None and known[0] == like:
        return known[1]
    file = None
    try:
        file = read(path)
    except (OSError, ValueError) as error:
        _tell(f"{path} is not used: {error}")
    else:
        if file.problems:
            _tell(f"{path} is used in part: {'; '.join(file.problems[:3])}")
    with _lock:
        _read[path] = (like, file)
    return file


def _why_not_there(path: Path) -> str:
    """Why `load` has nothing for a path."""
    if path.parent.is_file():
        return f"{path.parent} is a file, where the folder of files is to be named"
    return f"{path} makes no sense" if path.exists() else f"there is no {path}"


@dataclass(frozen=True)
class Usable:
    """An entry or default that fits the function. names: its tunables; arguments: with the function's defaults."""

    entry: TunedEntry | None
    default: Default | None
    path: Path
    config: Mapping[str, Any]
    names: frozenset[str]
    arguments: Mapping[str, Any]


class TunedConfigs:
    """The tuned configurations of one function."""

    def __init__(self, function: AutotunedFunction) -> None:
        self._function = function
        self._sources: dict[frozenset[str], str] = {}
        self._defaults: dict[str, Any] | None = None
        self._mismatches: dict[frozenset[str], str] = {}  # by the names that a configuration sets
        self._last: tuple[list[tuple[Path, TunedFile]], list[Usable]] = ([], [])  # files, and what of them is usable

    def folders(self) -> tuple[Path, ...]:
        """The decorator's, a relative one from where the function's file lies, and the setting's."""
        code = getattr(self._function.jit.function, "__code__", None)
        home = Path("" if code is None else os.path.dirname(code.co_filename))
        folders: Any = self._function.options.tuned  # a tuple, since it was checked
        own = tuple(home / each for each in folders)
        return tuple(dict.fromkeys([*own, *current().tuned_folders]))

    def match(self, call: BoundCall) -> TunedMatch:
        """What would serve a call, if its kernel can be built; see candidates."""
        folders = self.folders()
        if not folders:
            return TunedMatch("none", "no folder of tuned configurations is named")
        first = next(self.matches(call), None)
        if first is not None:
            return first
        there = self._files(call.target)
        if not there:
            paths = [path_of(folder, self._function.name, call.target) for folder in folders]
            return TunedMatch("none", "; ".join(map(_why_not_there, paths)))
        refused = [
            self.mismatch_reason(entry.config, entry.source) or self.without_class(file, entry)
            for _, file in there
            for entry in file.entries
        ]
        why = next(filter(None, refused), "")
        shown = f"no entry of {', '.join(str(path) for path, _ in there)} serves it"
        return TunedMatch("none", f"{shown}; {sum(map(bool, refused))} are not used: {why}" if why else shown)

    def _files(self, target: Target) -> list[tuple[Path, TunedFile]]:
        paths = (path_of(folder, self._function.name, target) for folder in self.folders())
        return [(path, file) for path in paths if (file := load(path)) is not None]

    def matches(self, call: BoundCall) -> Iterator[TunedMatch]:
        """What may serve a call, the best first."""
        rows, defaults = [], []
        wanted: dict[frozenset[str], dict[str, Any]] = {}
        for file in self._usable(call.target):
            if file.names not in wanted:
                try:
                    wanted[file.names] = of_calls.given_arguments(self._function, call.values, file.names)
                except TileError as error:
                    _tell(f"no tuned configuration is looked up for {self._function.name}: {error.message}")
                    return
            fixed = given_tunables(call.given, file.names)
            if any(as_text(of_calls.as_json(value)) != as_text(file.config[name]) for name, value in fixed.items()):
                continue
            if file.default is not None:
                defaults.append((file.default, file.path))
            elif file.entry is not None:
                rows.append(LookupRow(file.entry, file.path, file.arguments, wanted[file.names]))
        options = self._function.options
        if options.bucket is not None and rows and options.bucket not in rows[0].wanted:
            known = ", ".join(rows[0].wanted)
            _tell(f"the bucket of {self._function.name} is {options.bucket}, which is no argument; there are {known}")
        found = candidates(rows, defaults, bucket=options.bucket, nearest=options.nearest, gpu=_gpu(call.target))
        for match in found:
            config = of_calls.restored(match.config or {}, self._function.configs)
            yield replace(match, config=copy.deepcopy(config), entry=copy.deepcopy(match.entry))

    def result(self, call: BoundCall) -> AutotuneResult | None:
        """The kernel of what serves a call; None if nothing does. Nothing is measured."""
        for match in self.matches(call):
            kernel = self._built(match, call.values, call.target)
            if kernel is not None:
                _log.info("autotune: %s takes %s", self._function.name, match)
                if match.kind == "default":
                    self.miss(call)
                entry = match.entry if match.kind == "exact" else None
                return first_config(kernel, match.config or {}, str(match), entry, "tuned")
        _log.info("autotune: %s: no tuned configuration serves this call", self._function.name)
        self.miss(call)
        return None

    def miss(self, call: BoundCall) -> None:
        """Collect a call that has no entry of its own or of its bucket, where the setting tuned_configs says so."""
        if current().tuned_misses is not None and (wrong := misses.collect(self._function, call)):
            _tell(wrong)

    def _built(self, match: TunedMatch, values: Mapping[str, Any], target: Target) -> Kernel | None:
        """The kernel, lowered; None if that fails, which is told: the configuration may be another shape's."""
        try:
            kernel = self._function.kernel_for(values, match.config or {}, target)
            _ = kernel.source
            if match.kind != "exact":
                from tiledsl.autotuner.predicting.prune import SoftPruneReason, prune_reason

                reason = prune_reason(kernel, target)
                if reason is not None and not isinstance(reason, SoftPruneReason):
                    raise TileError(reason)
        except Exception as error:  # whatever the builder raises for a configuration that it was not written for
            shown = str(error).splitlines()[0] if str(error) else type(error).__name__
            _tell(f"{self._function.name} cannot be built as tuned, {match}: {shown}")
            return None
        return kernel

    def _usable(self, target: Target) -> list[Usable]:
        """The entries and defaults that fit the function. The others are told, each file's for a reason at once."""
        files = self._files(target)
        known, usable = self._last
        same = len(known) == len(files) and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(known, files))
        if not same:
            usable = [each for path, file in files for each in self._usable_of(path, file)]
            self._last = (files, usable)
        return usable

    def _usable_of(self, path: Path, file: TunedFile) -> Iterator[Usable]:
        refused: dict[str, int] = {}
        for entry in file.entries:
            reason = self.mismatch_reason(entry.config, entry.source) or self.without_class(file, entry)
            if reason:
                refused[reason] = refused.get(reason, 0) + 1
            else:
                names = frozenset(entry.config)
                yield Usable(entry, None, path, entry.config, names, {**self.defaults(names), **entry.arguments})
        for reason, count in refused.items():
            _tell(f"{count} of {len(file.entries)} entries of {path} are not used: {reason}")
        default = file.default
        fits = default is not None and not self.mismatch_reason(default.config, default.source)
        if default is not None and fits and self.keeps_bits(file, default):
            yield Usable(None, default, path, default.config, frozenset(default.config), {})

    def without_class(self, file: TunedFile, entry: TunedEntry) -> str:
        """Why an entry does not do for a function with `numerics`; "" if it does."""
        mode = self._function.options.numerics
        if mode is not None and not entry.bit_class:
            return f"they were tuned without numerics={mode!r}"
        if mode == "batch-invariant":
            alike = [each for each in file.entries if each.gpu == entry.gpu and each.source == entry.source]
            classes = {each.bit_class for each in alike if each.bit_class}
            if len(classes) > 1:
                return f"their results are of {len(classes)} classes of bits, and numerics={mode!r} wants one"
        return ""

    def keeps_bits(self, file: TunedFile, default: Default) -> bool:
        """Whether a file's default does for the function: with `numerics`, it is the configuration of an entry that
        does."""
        text = as_text(default.config)
        return self._function.options.numerics is None or any(
            as_text(entry.config) == text and not self.without_class(file, entry) for entry in file.entries
        )

    def mismatch_reason(self, config: Mapping[str, Any], source: str) -> str:
        """Why the function does not take a configuration that was tuned for a source; "" if it does."""
        names = frozenset(config)
        if names not in self._mismatches:
            self._mismatches[names] = of_calls.mismatch_reason(self._function, config)
        if self._mismatches[names]:
            return f"{self._function.name} does not take the configuration: it {self._mismatches[names]}"
        own = self.source(names)
        if source != own:
            return f"{self._function.name} has changed since (source {source[:8]}, now {own[:8]}); tune it again"
        return ""

    def source(self, tuned: frozenset[str]) -> str:
        """The function's hash as an entry that sets these tunables has it."""
        if tuned not in self._sources:
            self._sources[tuned] = of_calls.source_of(self._function, tuned)
        return self._sources[tuned]

    def defaults(self, tuned: frozenset[str]) -> dict[str, Any]:
        """The function's defaults as JSON, but of tunables."""
        if self._defaults is None:
            self._defaults = of_calls.defaults(self._function)
        left_out = {*tuned, *self._function.options.do_not_specialize}
        return {name: value for name, value in self._defaults.items() if name not in left_out}


def first_config(
    kernel: Kernel, config: Mapping[str, Any], why: str, entry: TunedEntry | None, origin: Literal["", "tuned"]
) -> AutotuneResult:
    """A result of one configuration that nothing was measured for; its latency is the entry's, if there is one."""
    latency = None if entry is None or entry.latency_kind == "unknown" else entry.latency_ms
    reference = None if entry is None else entry.reference_ms
    kind: Any = "estimated" if entry is None or latency is None else entry.latency_kind
    kernel.config, kernel.latency, kernel.ref_latency = dict(config), latency, reference
    if entry is not None and entry.certificate:
        from tiledsl.autotuner.verifying.certified import attach

        attach(kernel, entry.certificate, source_digest(kernel.source))
    trial = Trial(0, dict(config), "ok", why, latency=latency, build=lambda: kernel)
    return AutotuneResult(kernel, dict(config), latency, reference, (trial,), kind, origin)


def _gpu(target: Target) -> Gpu:
    """The current GPU, if the target is for it."""
    if target.kind == "interpret" or not target.runs_here:
        return Gpu()
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(str(found.name), int(found.multi_processor_count))


def of_empty_tensors(problem: TuningProblem) -> AutotuneResult:
    """The first configuration, for a call with a tensor of no elements: there is nothing to measure."""
    config = problem.configs[0]
    return first_config(problem.build(config, problem.target), config, "the first one: a tensor is empty", None, "")


def missed(function: AutotunedFunction, problem: TuningProblem) -> AutotuneResult:
    """What on_miss="first" and "error" do: the first configuration, or a TileError."""
    why = function.tuned_configs.match(BoundCall((), {}, dict(problem.values), {}, problem.target)).why
    if problem.options.on_miss == "first":
        from tiledsl.autotuner.numerics import reference_index

        config = problem.configs[reference_index(problem.configs, problem.options.reference_config)]
        _tell(f"{function.name} is not tuned for some calls and runs its first configuration: {why}")
        return first_config(problem.build(config, problem.target), config, f"the first one: {why}", None, "")
    raise TileError(
        f"{function.name} is not tuned for {_call_text(function, problem)}: {why}",
        notes=[f"tune it: {function.name}.tune_into(folder, [...]), or say on_miss='tune' or 'first'"],
        code="not-tuned",
    )


def _call_text(function: AutotunedFunction, problem: TuningProblem) -> str:
    names = {name for config in problem.configs for name in config}
    try:
        found = of_calls.given_arguments(function, problem.values, names)
    except TileError as error:
        return f"this call ({error.message})"
    return arguments_text(of_calls.without_defaults(found, function.tuned_configs.defaults(frozenset(names))))
