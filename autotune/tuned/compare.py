"""Whether a file's latencies still hold: each entry's configuration measured here, beside what the file says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tiledsl.autotuner.decorator import AutotunedFunction
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage.key import environment
from tiledsl.autotuner.tuned.arguments import OWN_KEY, restored
from tiledsl.autotuner.tuned.entry import TunedEntry
from tiledsl.autotuner.tuned.file import TunedFile, architecture
from tiledsl.errors import TileError
from tiledsl.kernels.jit import resolve_target
from tiledsl.settings import override

WARN, FAIL = 1.10, 1.15
Verdict = Literal["ok", "slower", "regressed", "broken", "not compared"]


@dataclass(frozen=True)
class TunedComparison:
    """One entry. ratio: measured over stated latency. verdict: "slower" from the ratio `warn` on, "regressed" from
    `fail` on, "broken" where the configuration no longer works, "not compared" where times would not compare."""

    entry: TunedEntry
    verdict: Verdict
    latency_ms: float | None = None
    message: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.latency_ms is None else self.latency_ms / self.entry.latency_ms

    @property
    def failed(self) -> bool:
        return self.verdict in ("regressed", "broken")


def compare_problem(
    function: AutotunedFunction, file: TunedFile, *, warn: float = WARN, fail: float = FAIL, **options: Any
) -> Iterator[TunedComparison]:
    """Measure each entry's configuration on this machine, checked as in a tuning; where nothing can be measured,
    estimates are compared with estimates. options: TuneOptions in place of the function's.

    Only entries of this GPU and of the same kind of latency are compared. Raises TileError for a file of another
    function or architecture, and for warn and fail that are not 1 <= warn <= fail.
    """
    if not 1 <= warn <= fail < math.inf:
        raise TileError(f"warn={warn:g} and fail={fail:g} are ratios, with 1 <= warn <= fail")
    tuner = function.with_options(tuned=(), cache=False, search="auto", seed_configs=(), **options)
    target = resolve_target(tuner._target)
    if (file.function, file.target) != (function.name, architecture(target)):
        raise TileError(
            f"a file of {file.function} on {file.target} does not compare with {function.name} on {target}",
            notes=["name the function and the target that it is of: target=..., --target"],
        )
    return (_compared(tuner, entry, target, warn, fail) for entry in file.entries)


def _compared(tuner: AutotunedFunction, entry: TunedEntry, target: Any, warn: float, fail: float) -> TunedComparison:
    from tiledsl.autotuner.measuring.measure import can_measure, is_measured

    measures = is_measured(target, tuner.options)
    if measures != entry.measured or entry.latency_kind == "unknown":
        return TunedComparison(entry, "not compared", message=f"the entry is {entry.latency_kind}")
    devices = tuner.options.devices
    gpu = environment(target, can_measure(target), devices[0] if devices else None)["gpu"]
    if measures and gpu != entry.gpu:
        return TunedComparison(entry, "not compared", message=f"measured on {entry.gpu or 'no GPU'}, and this is {gpu}")
    try:
        latency = _latency(tuner, entry)
    except Exception as error:  # whatever a builder raises
        return TunedComparison(entry, "broken", message=str(error).strip().splitlines()[0])
    ratio = latency / entry.latency_ms
    verdict: Verdict = "regressed" if ratio >= fail else "slower" if ratio >= warn else "ok"
    return TunedComparison(entry, verdict, latency)


def _latency(tuner: AutotunedFunction, entry: TunedEntry) -> float:
    """Milliseconds of an entry's configuration. TileError if it does not work.

    It is measured beside another one, the function's first where that is another: a configuration alone has no final
    round, whose lasting load lowers a GPU's clock, and the file's latency comes from one.
    """
    reason = tuner.tuned_configs.mismatch_reason(entry.config, entry.source)
    if reason:
        raise TileError(reason)
    own = restored(entry.config, tuner.configs)
    arguments = {name: value for name, value in entry.arguments.items() if name != OWN_KEY}
    all_configs = tuner._problem(tuner._call((), arguments)).configs
    beside = [config for config in all_configs if config_key(config) != config_key(own)][:1]
    with override(tuned_configs=()):
        result = AutotunedFunction(tuner.jit, [*beside, own], tuner.options).compile(**arguments)
    trial = result.trials[-1]
    if not trial.ok or trial.latency is None:
        raise TileError(f"{trial.status}: {trial.message}")
    return trial.latency


def verdicts(found: Sequence[TunedComparison]) -> tuple[str, bool]:
    """A line about comparisons, and whether they pass: none failed, and something was compared."""
    counts = {each.verdict: sum(e.verdict == each.verdict for e in found) for each in found}
    compared = [each for each in found if each.verdict != "not compared"]
    text = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no entries"
    ratios = [each.ratio for each in compared if each.ratio is not None]
    if ratios:
        text += f"; geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}"
    return text, bool(compared) and not any(each.failed for each in compared)
