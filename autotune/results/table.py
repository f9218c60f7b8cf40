"""The trials of a result as rows: text for people, CSV for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiledsl.autotuner.trial import NOT_TRIED, Trial, config_text
from tiledsl.errors import TileError
from tiledsl.tables import aligned, csv_text

if TYPE_CHECKING:
    from tiledsl.autotuner.results.tried import Tried


@dataclass(frozen=True)
class Column:
    """A column of the table: a heading, what stands in a row, and how."""

    head: str
    value: Callable[[Tried, Trial], Any]
    form: str = ""  # of numbers; "" for words, which stand left

    def text(self, result: Tried, trial: Trial) -> str:
        value = self.value(result, trial)
        if value is None:
            return "-" if self.form else ""
        return format(value, self.form) if self.form else str(value)


def _resource(name: str) -> Callable[[Tried, Trial], Any]:
    return lambda result, trial: (trial.resources or {}).get(name)


def _per_second(amount: str, scale: float) -> Callable[[Tried, Trial], float | None]:
    def rate(result: Tried, trial: Trial) -> float | None:
        total = getattr(result, amount)
        return total / (trial.latency * 1e-3) / scale if total is not None and trial.ok and trial.latency else None

    return rate


def _status(result: Tried, trial: Trial) -> str:
    return trial.status + (f" (as {trial.same_as})" if trial.same_as is not None else "")


COLUMNS: dict[str, Column] = {
    "rank": Column("rank", lambda result, trial: result.ranks.get(trial.index), "d"),
    "index": Column("trial", lambda result, trial: trial.index, "d"),
    "config": Column("configuration", lambda result, trial: config_text(trial.config)),
    "status": Column("status", _status),
    "latency": Column("ms", lambda result, trial: trial.latency, ".4f"),
    "spread": Column("spread", lambda result, trial: getattr(trial, "spread", None), ".4f"),
    "tflops": Column("TFLOPS", _per_second("flops", 1e12), ".1f"),
    "gbps": Column("GB/s", _per_second("bytes_moved", 1e9), ".0f"),
    "shared_bytes": Column("shared", _resource("shared_bytes"), "d"),
    "registers": Column("registers", _resource("registers"), "d"),
    "spills": Column("spills", _resource("spills"), "d"),
    "error": Column("max error", lambda result, trial: trial.max_error, ".2g"),
}


def _metric(name: str) -> Column:
    return Column(name, lambda result, trial: (trial.metrics or {}).get(name), ".4g")


def columns_of(result: Tried) -> dict[str, Column]:
    """The columns of a result: behind the latency's, those of its metrics and of the objective that is a function."""
    names = dict.fromkeys(name for trial in result.trials for name in trial.metrics or {})
    columns = {f"metric {name}" if name in COLUMNS else name: _metric(name) for name in names}
    if result.minimised not in ("latency", *names):
        columns[result.minimised] = Column(result.minimised, lambda _, trial: trial.objective, ".4g")
    own = list(COLUMNS.items())
    place = [name for name, _ in own].index("spread")
    return dict([*own[:place], *columns.items(), *own[place:]])


_OPTIONAL = ("spread", "tflops", "gbps", "shared_bytes", "registers", "spills")  # left out where no trial has them
_DESCENDING = ("tflops", "gbps")


def sorted_trials(result: Tried, sort: str) -> list[Trial]:
    """The trials by a column; those without a value come last, in order. By latency, those that work come first."""
    columns = columns_of(result)
    column = columns.get(sort)
    if column is None:
        raise TileError(f"the table has no column {sort!r}; it has {', '.join(columns)}")
    if sort == "latency":
        ranks = result.ranks
        return sorted(result.trials, key=lambda trial: (trial.index not in ranks, ranks.get(trial.index, trial.index)))
    values = {trial.index: column.value(result, trial) for trial in result.trials}
    known = [trial for trial in result.trials if values[trial.index] is not None]
    known.sort(key=lambda trial: values[trial.index], reverse=sort in _DESCENDING)
    return known + [trial for trial in result.trials if values[trial.index] is None]


def as_text(result: Tried, sort: str = "latency") -> str:
    """Aligned columns, the winner starred; then a line for each trial that has something to say. Trials that were not
    tried have no row: there may be hundreds. They are counted at the end."""
    everything = sorted_trials(result, sort)
    untried = Counter(trial.message.strip() for trial in everything if trial.message.startswith(NOT_TRIED))
    trials = [trial for trial in everything if not trial.message.startswith(NOT_TRIED)]
    columns = {
        name: column
        for name, column in columns_of(result).items()
        if name not in _OPTIONAL or any(column.value(result, trial) is not None for trial in trials)
    }
    heads = [f"{result.latency_kind} {c.head}" if name == "latency" else c.head for name, c in columns.items()]
    rows = [["", *heads]]
    for trial in trials:
        rows.append(["*" if result.is_winner(trial) else "", *(c.text(result, trial) for c in columns.values())])
    sides = "l" + "".join("r" if column.form else "l" for column in columns.values())
    notes = [f"  {config_text(t.config)}: {t.message.strip().splitlines()[0]}" for t in trials if t.message.strip()]
    notes += [f"  {count} more: {message}" for message, count in untried.items()]
    return "\n".join([*aligned(rows, sides), *notes])


def as_csv(result: Tried) -> str:
    """All trials in order, a column for each tunable and each number, and the message; numbers in full."""
    names = list(dict.fromkeys(name for trial in result.trials for name in trial.config))
    columns = columns_of(result)
    fixed = [name for name in columns if name != "config"]
    rows: list[list[Any]] = [[*names, *fixed, "verified", "compile_seconds", "message"]]
    for trial in result.trials:
        values = [trial.status if name == "status" else columns[name].value(result, trial) for name in fixed]
        tunables = map(trial.config.get, names)
        rows.append([*tunables, *values, trial.verified, trial.compile_seconds, trial.message])
    return csv_text(rows)
