"""Configurations pruned and ordered before any is lowered: each is elaborated and read, a millisecond or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledsl.autotuner import model, prune, work
from tiledsl.dialects.tile import FuncOp
from tiledsl.runtime.target import Target


@dataclass
class Ranking:
    """What is known of configurations, by index. `order`: those worth compiling, the fastest by the model first."""

    order: list[int] = field(default_factory=list)
    predicted: dict[int, float] = field(default_factory=dict)  # milliseconds
    pruned: dict[int, str] = field(default_factory=dict)  # the reason
    failed: dict[int, Exception] = field(default_factory=dict)  # what the builder raised


def rank(
    program_for: Callable[[Mapping[str, Any]], tuple[FuncOp, Mapping[str, Any]]],
    configs: Sequence[Mapping[str, Any]],
    target: Target,
    prunes: bool = True,
) -> Ranking:
    """Prune and order configurations. `program_for` gives a configuration's program as elaborated and its pass_configs
    (see JitFunction.program_for); nothing of it is kept. Of equal predictions the first configuration comes first."""
    found = Ranking()
    slow: dict[int, float] = {}
    for index, config in enumerate(configs):
        try:
            root, pass_configs = program_for(config)
        except Exception as error:  # the builder is the user's code and may raise anything for a bad configuration
            found.failed[index] = error
            continue
        works = work.read(root, pass_configs)
        reason = prune.reason(works, target) if prunes else None
        if reason is not None:
            found.pruned[index] = reason
            if isinstance(reason, prune.Slow):
                slow[index] = model.predict_works(works, target)
        else:
            found.predicted[index] = model.predict_works(works, target)
    if not found.predicted:  # then a slow configuration is better than none
        found.predicted.update(slow)
        found.pruned = {index: reason for index, reason in found.pruned.items() if index not in slow}
    found.order = sorted(found.predicted, key=lambda index: (found.predicted[index], index))
    return found
