"""Why the winner won against the runner-up, in words: what differs between the two, and what the model makes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.predicting import model
from tiledsl.autotuner.predicting.work import work_of
from tiledsl.autotuner.predicting.work_types import Work
from tiledsl.autotuner.trial import Trial, config_text
from tiledsl.runtime.target import Target

if TYPE_CHECKING:
    from tiledsl.autotuner.results.tried import Tried


def explain(result: Tried) -> str:
    """A paragraph of lines; see Tried.explain."""
    order = sorted(result.ranks, key=lambda index: result.ranks[index])
    trials = {trial.index: trial for trial in result.trials}
    first = result.best
    second = next((t for i in order if (t := trials[i]).index != first.index and t.same_as is None), None)
    lines = [f"{config_text(first.config)} takes {_ms(first)}, {result.latency_kind}."]
    if result.minimised != "latency":
        shown = ", ".join(f"{name} {value:.4g}" for name, value in (first.metrics or {}).items())
        lines.append(f"It has the least {result.minimised}, {first.cost:.4g}{f' ({shown})' if shown else ''}.")
    if second is None:
        nothing = "No other configuration works, so there is nothing to compare it with."
        return "\n".join([*lines, nothing, *_other_bits(result)])
    how_much = _how_much(first, second) if result.minimised == "latency" else f" and {second.cost:.4g}"
    lines.append(f"Next is {config_text(second.config)} with {_ms(second)}{how_much}.")
    changed = [name for name in {**first.config, **second.config} if first.config.get(name) != second.config.get(name)]
    lines.append(f"They differ in {', '.join(changed) or 'nothing that has a name'}.")
    facts = [fact for fact in (_resources(first, second), *_launches(result, first, second)) if fact]
    return "\n".join([*lines, *facts, *_others(result, trials, order), *_other_bits(result)])


def _ms(trial: Trial) -> str:
    return "an unknown time" if trial.latency is None else f"{trial.latency:.4f} ms"


def _how_much(first: Trial, second: Trial) -> str:
    if not first.latency or second.latency is None:
        return ""
    percent = (second.latency / first.latency - 1) * 100
    spread = max((s for t in (first, second) if (s := getattr(t, "spread", None)) is not None), default=0.0)
    if percent <= 0:
        return ", not slower: a tie, which the rule for ties decided"
    within = " (less than the spread of the measurements)" if second.latency - first.latency < spread else ""
    return f", {percent:.1f}% more{within}"


def _resources(first: Trial, second: Trial) -> str:
    one, other = first.resources, second.resources
    if not one or not other:
        return ""
    parts = []
    names = {"shared_bytes": "bytes of shared memory a block", "registers": "registers a thread", "spills": "bytes of spills a thread"}  # fmt: skip # noqa: E501
    for name, words in names.items():
        if one.get(name) is not None and one.get(name) != other.get(name):
            parts.append(f"{one[name]} {words} against {other.get(name)}")
    limits = [each.get("occupancy_limit") for each in (one, other)]
    if all(limits):
        here, there = (
            f"{limit[0]} block{'s' * (limit[0] != 1)} a multiprocessor (bounded by {limit[1]})"
            for limit in limits
            if limit
        )
        parts.append(f"{here} against {there}" if limits[0] != limits[1] else f"both run {here}")
    return f"The winner has {'; '.join(parts)}." if parts else ""


def _launches(result: Tried, first: Trial, second: Trial) -> list[str]:
    """Waves and bytes, from the programs; nothing where a program cannot be built again."""
    try:
        works = [work_of(trial.kernel) for trial in (first, second)]
    except Exception:  # a loaded result has the winner's program only
        return []
    target = result.tuned_on
    target = Target("cuda", 90) if target is None or target.kind == "interpret" else target
    lines = []
    for one, other in zip(*works):
        if not (one.is_static and other.is_static):
            lines.append(f"{one.name}: grid or loops depend on run-time sizes, so waves and bytes are not known.")
            continue
        prefix = f"{one.name}: " if len(works[0]) > 1 else ""
        shown = [_waves(work, target, trial.resources) for work, trial in ((one, first), (other, second))]
        lines.append(f"{prefix}Waves: {shown[0]}; the other {shown[1]}.")
        requested = [work.blocks * sum(each.bytes for each in work.traffic) / 1e6 for work in (one, other)]
        if requested[0] != requested[1]:
            lines.append(f"{prefix}Blocks ask for {requested[0]:.1f} MB in all, the other's for {requested[1]:.1f} MB.")
        stages = [max((loop.stages for loop in work.loops), default=1) for work in (one, other)]
        if stages[0] != stages[1]:
            lines.append(f"{prefix}Loads run {stages[0] - 1} iterations ahead, the other's {stages[1] - 1}.")
    guesses = [model.predict_works(each, target, trial.resources) for each, trial in zip(works, (first, second))]
    agrees = "agrees" if guesses[0] <= guesses[1] else "has them the other way round"
    lines.append(f"The model {agrees}: {guesses[0]:.4f} ms and {guesses[1]:.4f} ms.")
    return lines


def _waves(work: Work, target: Target, resources: Mapping[str, Any] | None) -> str:
    held = target.sm_count * model.occupancy(work, target, resources)
    waves = max(1, math.ceil(work.blocks / held))
    full = work.blocks / (waves * held) * 100
    return f"{work.blocks} blocks in {waves} of {held}, {full:.0f}% full"


def _other_bits(result: Tried) -> list[str]:
    """How many configurations could not win because their results have other bits."""
    out = [trial for trial in result.trials if trial.status == "other_bits"]
    if not out:
        return []
    first = f"{config_text(out[0].config)}: {out[0].message.strip()}"
    return [f"{len(out)} could not win, for their results have other bits; the first is {first}."]


def _others(result: Tried, trials: Mapping[int, Trial], order: list[int]) -> list[str]:
    failed = len(result.trials) - len(order)
    if len(order) > 2:
        slowest = trials[order[-1]]
        return [f"Of {len(order)} that work, the slowest takes {_ms(slowest)}; {failed} do not work or were left out."]
    return [f"Of {len(result.trials)} configurations, {failed} do not work or were left out."] if failed else []
