"""`--suite`: the cost model's place for the winner of each row of the suite, of the row's whole space, without a GPU.

The winner is the fastest of the configurations that the tuner timed to the end (`rivals` in the suite's file). Others
stand for it that took as long, as far as its own rounds agree ("alike"). Configurations of one text, which the tuner
tries once, have one place. What the row's space does not have any more does not count.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import ours
from benchmarks.row import Context, Row
from benchmarks.rows import all_rows, backward
from benchmarks.tuning.report import table
from tiledsl import Target
from tiledsl.autotuner.predicting import rank

FIRST = 5
TARGET = Target("cuda", 90)


def asked(row: Row) -> tuple[Any, dict[str, Any], list[Mapping[str, Any]]]:
    """The function, bound arguments and configurations of what a row tunes longest: the last thing that it tunes."""
    found: list[Any] = []

    def tune(_: Context, jit: Any, arguments: Any, configs: Any, inputs: Any, *_reference: Any) -> ours.Tuned:
        values = () if arguments or not jit.is_eager else tuple(inputs)
        found.append((jit, jit._bind(values, arguments, partial=True), list(configs)))
        return ours.Tuned(None, {})

    (candidate,) = (each for each in row.candidates if each.kind == "tiledsl")
    with patch.object(ours, "tune", tune), patch.object(backward, "tune", tune):
        candidate.prepare(Context(device="cpu", tune=False), row, row.inputs("meta"))
    function, bound, configs = found[-1]
    return function, bound, configs


def compare(row: Row, rivals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The winner's place in the model's order, from 1 on (None: it was pruned), the first place of one that is alike,
    and by how much the best of the model's first FIRST that were timed to the end is slower."""
    function, bound, configs = asked(row)
    ranking = rank.rank(lambda config: function.program_for(bound, config), configs, TARGET)
    known = {*map(_key, configs)}
    times = {_key(each["config"]): float(each["ms"]) for each in rivals}
    winner = min((each for each in rivals if _key(each["config"]) in known), key=lambda each: float(each["ms"]))
    best = float(winner["ms"])
    order = [times.get(_key(configs[at]), math.inf) for at in ranking.order]
    first = min(order[:FIRST], default=math.inf)

    def place(most: float) -> int | None:
        found = next((place for place, time in enumerate(order, 1) if time <= most), None)
        if found is None or found <= FIRST:
            return found
        return len({function.kernel_for(bound, dict(configs[at]), TARGET).source for at in ranking.order[:found]})

    return {
        "row": row.name,
        "configs": len(configs),
        "timed": len(times),
        "place": place(best),
        "alike": place(best * (1 + float(winner["spread"] or 0))),
        "loss": None if first == math.inf else first / best - 1,
    }


def replay(path: Path) -> Iterator[dict[str, Any]]:
    """`compare` for each row of a suite's file that has rivals with times in the row's space."""
    rows = {row.name: row for row in all_rows()}
    for result in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        name = f"{result['family']}: {result['case']}"
        timed = [
            each
            for candidate in result["candidates"]
            if candidate["kind"] == "tiledsl"
            for each in candidate.get("rivals") or ()
            if "ms" in each
        ]
        if name not in rows or not timed:
            continue
        space = {*map(_key, asked(rows[name])[-1])}
        if any(_key(each["config"]) in space for each in timed):
            yield compare(rows[name], timed)


def show(found: Sequence[Mapping[str, Any]]) -> str:
    """A table of the rows, and the share of those whose winner is among the first FIRST."""
    rows = [{**each, "loss": "" if each["loss"] is None else f"+{each['loss']:.1%}"} for each in found]
    within = {name: sum((each[name] or math.inf) <= FIRST for each in found) for name in ("place", "alike")}
    return (
        f"{table(rows)}\nthe winner is among the first {FIRST} in {within['place']} of {len(found)} rows, "
        f"it or one that is alike in {within['alike']}"
    )


def _key(config: Mapping[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)
