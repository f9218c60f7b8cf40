"""What a page says of a tuning: which configuration won, by how much, what limits it, and what failed and why."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from tiledsl.autotuner.predicting.machines import machine_of
from tiledsl.autotuner.predicting.model import peak_tera
from tiledsl.autotuner.results.table import COLUMNS, Column, columns_of, sorted_trials
from tiledsl.autotuner.results.unbuilt import is_unbuilt
from tiledsl.autotuner.trial import NOT_TRIED, Trial, config_text, value_text
from tiledsl.errors import TileError
from tiledsl.kernels.report import program_part
from tiledsl.report import notebook
from tiledsl.report.page import Cell, Entry, Fact, Group, Page, TuningPart

if TYPE_CHECKING:
    from tiledsl.autotuner.results.tried import Tried
    from tiledsl.kernels.kernel import Kernel
    from tiledsl.runtime.target import Target


def tuning_page(result: Tried) -> Page:
    """The page of a tuning. Compiles nothing that was compiled before."""
    subtitle = f"{len(result.trials)} configurations, {result.latency_kind}"
    subtitle += f" for {result.estimated_for}" if result.estimated_for else f" on {result.tuned_on or 'the CPU'}"
    subtitle += "" if result.complete else "; the run was interrupted"
    kernel = _kernel(result)
    program = None if kernel is None else program_part(kernel, _winner(result).resources)
    return Page(f"{result.subject}: tuning", subtitle, program, tuning_part(result))


def _kernel(result: Tried) -> Kernel | None:
    """The winner's kernel; None of a Python function."""
    return getattr(result, "kernel", None)


def _winner(result: Tried) -> Trial:
    """The winner's trial; one without a record for what a tuned-config file named."""
    return next((each for each in result.trials if result.is_winner(each)), Trial(0, result.config))


def tuning_part(result: Tried, explains: bool = True) -> TuningPart:
    """What there is to say of a result's trials; with `explains` also of its kernel against the runner-up's."""
    tunables = list(dict.fromkeys(name for trial in result.trials for name in trial.config))
    columns = {**columns_of(result), "occupancy": Column("blocks", _blocks, "d")}
    fixed = {
        name: column
        for name, column in columns.items()
        if name not in ("rank", "index", "config", "status")
        and any(column.value(result, trial) is not None for trial in result.trials)
    }
    roof = _roofline(result)
    heads = ["rank", *tunables, "status", *(column.head for column in fixed.values()), "message"]
    entries = [_entry(result, trial, tunables, fixed) for trial in sorted_trials(result, "latency")]
    numeric = [True, *(_is_numeric(entries, number + 1) for number in range(len(tunables))), False, *[True] * len(fixed), False]  # fmt: skip # noqa: E501
    failed = [trial for trial in result.trials if not trial.ok]
    axes = [*tunables, *(name for name in ("registers", "shared_bytes", "occupancy") if name in fixed)]
    return TuningPart(
        list(_facts(result, roof)),
        result.explain() if explains and any(map(result.is_winner, result.trials)) else "",
        heads,
        numeric,
        entries,
        list(_groups([trial for trial in failed if not trial.message.startswith(NOT_TRIED)])),
        list(_groups([trial for trial in failed if trial.message.startswith(NOT_TRIED)])),
        {
            "axes": ["rank", *(columns[name].head if name in fixed else name for name in axes)],
            "reference": result.ref_latency or None,
            "roofline": roof,
        },
    )


def short_html(result: Tried) -> str:
    """What a notebook shows of a result, which has no libraries to draw with. A kernel that was recalled is not built
    for it: rates, which depend on its program, are shown where they are known."""
    kernel = _kernel(result)
    if kernel is not None and is_unbuilt(kernel):
        amounts = {name: vars(result).get(name) for name in ("flops", "bytes_moved")}
        result = replace(cast(Any, result))  # no copy.copy, which would save and read it
        vars(result).update(amounts)
    part = tuning_part(result, explains=False)
    facts = [(fact.label, fact.value, fact.note) for fact in part.facts]
    best = [[cell.text for cell in entry.cells] for entry in part.entries if entry.status == "ok"][:10]
    failed = [(str(len(g.configs)), g.status, g.message.split("\n")[0]) for g in (*part.failures, *part.untried)]
    shown = notebook.table(("", "", ""), facts) + notebook.table(part.heads, best)
    return shown + (notebook.table(("configurations", "status", "reason"), failed) if failed else "")


def _entry(result: Tried, trial: Trial, tunables: list[str], fixed: dict[str, Column]) -> Entry:
    rank = result.ranks.get(trial.index)
    values = {name: _shown(trial.config[name]) for name in trial.config}
    cells = [Cell("" if rank is None else str(rank), rank)]
    cells += [Cell(values.get(name, ""), _number(trial.config.get(name), values.get(name))) for name in tunables]
    cells += [Cell(COLUMNS["status"].text(result, trial), trial.status)]
    cells += [Cell(column.text(result, trial), column.value(result, trial)) for column in fixed.values()]
    message = trial.message.strip().split("\n")[0]
    cells += [Cell(message, message or None)]
    measured = [name for name in ("registers", "shared_bytes", "occupancy") if name in fixed]
    point = {
        "config": config_text(trial.config),
        "label": "" if trial.latency is None else f"{trial.latency:.4g} ms, rank {rank}",
        "status": trial.status,
        "values": values,
        "wins": result.is_winner(trial),
        "rank": rank,
        "ms": trial.latency if trial.ok else None,
        "tflops": COLUMNS["tflops"].value(result, trial),
        "axes": [
            *(cells[1 + i].key for i in range(len(tunables))),
            *(fixed[name].value(result, trial) for name in measured),
        ],
        "keys": [None if isinstance(cell.key, float) and not math.isfinite(cell.key) else cell.key for cell in cells],
    }
    return Entry(trial.status, result.is_winner(trial), cells, values, point)


def _shown(value: Any) -> str:
    """A tunable's value as the configuration's text has it, without an address."""
    return str(value) if isinstance(value, (str, int, float)) else value_text(value)


def _number(value: Any, text: str | None) -> float | str | None:
    """What a tunable is sorted by, and where it stands on an axis."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else text


def _is_numeric(entries: list[Entry], column: int) -> bool:
    return all(not isinstance(each.cells[column].key, str) for each in entries)


def _blocks(result: Tried, trial: Trial) -> int | None:
    limit = (trial.resources or {}).get("occupancy_limit")
    return limit[0] if limit else None


def _roofline(result: Tried) -> dict[str, Any] | None:
    """The peaks of the GPU and the program's operations per byte; None where a time is none of a GPU, or there are no
    products whose number is known. Williams et al., 2009."""
    flops, moved, kernel = result.flops, result.bytes_moved, _kernel(result)
    if not _is_of_a_gpu(result) or not flops or not moved or kernel is None:
        return None
    try:
        tera = peak_tera(kernel)
    except TileError:  # a stored program that this version cannot lower
        return None
    if tera is None:
        return None
    machine = machine_of(kernel.target)
    note = f"peaks of {machine.name}, from its data sheet; {flops / moved:,.1f} operations per byte"
    return {"tera": tera, "dram": machine.dram, "intensity": flops / moved, "name": machine.name, "note": note}


def _facts(result: Tried, roof: dict[str, Any] | None) -> Iterator[Fact]:
    """The answers to what is asked first."""
    yield Fact("winner", config_text(result.config))
    if result.latency:  # 0 where nothing can be estimated, as of kernels of Triton
        yield Fact("time", f"{result.latency:.4g} ms", _kind(result))
    if result.minimised != "latency":
        yield Fact(result.minimised, f"{_winner(result).cost:.4g}", "what is minimised, and orders the configurations")
    working = sorted((t for t in result.trials if t.ok and t.latency is not None), key=lambda t: result.ranks[t.index])
    second = next((t for t in working if not result.is_winner(t) and t.same_as is None), None)
    least = _winner(result).cost
    if second is not None and least and math.isfinite(least):
        yield Fact("next best", f"{(second.cost / least - 1) * 100:+.1f}%", config_text(second.config))
    if result.latency and result.ref_latency:
        yield Fact("reference", f"{result.ref_latency / result.latency:.2f}×", f"of the winner's time: {result.ref_latency:.4g} ms")  # fmt: skip # noqa: E501
    if result.latency and result.tuned_on is not None and _is_of_a_gpu(result):
        yield from _limits(result, result.tuned_on, result.latency * 1e-3, roof)
    slowest = max((t.latency for t in working if t.latency is not None), default=0.0)
    note = f"the slowest takes {slowest / result.latency:.1f}× as long" if result.latency and slowest else ""
    yield Fact("configurations that work", f"{sum(t.ok for t in result.trials)} of {len(result.trials)}", note)
    if in_process := result.in_process:
        yield Fact("where", "in this process", in_process)


def _kind(result: Tried) -> str:
    if result.tuned_on is None:
        return "measured on the CPU"
    if not _is_of_a_gpu(result):
        return "measured in Triton's interpreter, which says nothing of a GPU"
    return result.latency_kind + (f" for {result.estimated_for}" if result.estimated_for else "")


def _is_of_a_gpu(result: Tried) -> bool:
    target = result.tuned_on
    return target is not None and (target.kind != "interpret" or result.latency_kind == "estimated")


def _limits(result: Tried, target: Target, seconds: float, roof: dict[str, Any] | None) -> Iterator[Fact]:
    """How near the winner comes to the GPU's peaks, and which of them bounds it."""
    machine = machine_of(target)
    memory = None if not result.bytes_moved else result.bytes_moved / seconds / (machine.dram * 1e12)
    if roof is not None and memory is not None and result.flops:
        compute = result.flops / seconds / (roof["tera"] * 1e12)
        bound = "arithmetic" if roof["intensity"] * roof["dram"] >= roof["tera"] else "memory"
        note = f"bounded by {bound}; {compute:.0%} of the peak rate of {machine.name}, {memory:.0%} of its bandwidth"
        yield Fact("of what is attainable", f"{max(compute, memory):.0%}", note)
    elif memory is not None:
        yield Fact("of memory bandwidth", f"{memory:.0%}", f"of {machine.name}'s {machine.dram:g} TB/s")


def _groups(trials: list[Trial]) -> Iterator[Group]:
    """Those that failed alike: messages that differ in numbers alone count as one. The largest group comes first."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        first = trial.message.strip().split("\n")[0].replace(config_text(trial.config), "")
        groups.setdefault((trial.status, re.sub(r"\d+(\.\d+)?", "#", first)), []).append(trial)
    for (status, _), alike in sorted(groups.items(), key=lambda item: -len(item[1])):
        message = alike[0].message.strip()
        yield Group(status, message or "no message", [config_text(trial.config) for trial in alike])
