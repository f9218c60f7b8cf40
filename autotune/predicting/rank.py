"""Configurations pruned and ordered before any is lowered: each is elaborated and read, a millisecond or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledsl.autotuner.predicting import model, prune, work
from tiledsl.autotuner.predicting.forks import in_processes
from tiledsl.dialects.tile import FuncOp
from tiledsl.runtime.target import Target

FORKS_FROM = 512  # configurations, from which on several processes are worth their forks

ProgramFor = Callable[[Mapping[str, Any]], tuple[FuncOp, Mapping[str, Any]]]


@dataclass
class Ranking:
    """What is known of configurations, by index. `order`: those worth compiling, the fastest by the model first."""

    order: list[int] = field(default_factory=list)
    predicted: dict[int, float] = field(default_factory=dict)  # milliseconds
    pruned: dict[int, str] = field(default_factory=dict)  # the reason
    failed: dict[int, Exception] = field(default_factory=dict)  # what the builder raised

    def of(self, indices: Sequence[int]) -> Ranking:
        """The ranking of configurations that stand at these places of a longer list."""
        places = dict(enumerate(indices))
        return Ranking(
            [places[index] for index in self.order],
            {places[index]: each for index, each in self.predicted.items()},
            {places[index]: each for index, each in self.pruned.items()},
            {places[index]: each for index, each in self.failed.items()},
        )


@dataclass(frozen=True)
class _Outlook:
    """One configuration's: milliseconds by the model (None: it cannot work), and why it is pruned ("": it is not)."""

    predicted: float | None
    reason: str = ""


def rank(
    program_for: ProgramFor,
    configs: Sequence[Mapping[str, Any]],
    target: Target,
    prunes: bool = True,
    processes: int = 1,
) -> Ranking:
    """Prune and order configurations. `program_for` gives a configuration's program as elaborated and its pass_configs
    (see JitFunction.program_for); nothing of it is kept. Of equal predictions the first configuration comes first.

    processes: forks of this one among which a large space is divided. What a fork cannot do is done here.
    """
    found = Ranking()
    slow: dict[int, float] = {}
    _ = target.sm_count  # asks torch, which forks must not do anew
    foreseen: list[_Outlook | None] = [None] * len(configs)
    if processes > 1 and len(configs) >= FORKS_FROM:
        answers = in_processes(lambda part: _look_at_all(program_for, part, target, prunes), configs, processes)
        foreseen = [None if answer is None else _Outlook(*answer) for answer in answers]
    reader = _Reader(program_for, target, prunes)
    for index, (config, known) in enumerate(zip(configs, foreseen)):
        try:
            outlook = known or reader.look(config)
        except Exception as error:  # the builder is the user's code and may raise anything for a bad configuration
            found.failed[index] = error
            continue
        if outlook.reason:
            found.pruned[index] = outlook.reason
            if outlook.predicted is not None:
                slow[index] = outlook.predicted
        elif outlook.predicted is not None:
            found.predicted[index] = outlook.predicted
    if not found.predicted:  # then a slow configuration is better than none
        found.predicted.update(slow)
        found.pruned = {index: reason for index, reason in found.pruned.items() if index not in slow}
    found.order = sorted(found.predicted, key=lambda index: (found.predicted[index], index))
    return found


def _look_at_all(
    program_for: ProgramFor, configs: Sequence[Mapping[str, Any]], target: Target, prunes: bool
) -> list[tuple[float | None, str] | None]:
    """The outlooks as JSON values; None where the builder raises."""
    reader = _Reader(program_for, target, prunes)
    found: list[tuple[float | None, str] | None] = []
    for config in configs:
        try:
            outlook = reader.look(config)
            found.append((outlook.predicted, outlook.reason))
        except Exception:
            found.append(None)
    return found


class _Reader:
    """Looks at configurations one by one. What differs in the compiler's choices alone is read once."""

    def __init__(self, program_for: ProgramFor, target: Target, prunes: bool) -> None:
        self._program_for, self._target, self._prunes = program_for, target, prunes
        self._last: tuple[FuncOp, list[work.Launch]] | None = None

    def look(self, config: Mapping[str, Any]) -> _Outlook:
        """Raises what the builder raises."""
        root, pass_configs = self._program_for(config)
        if self._last is None or self._last[0] is not root:
            self._last = (root, work.launches(root))
        works = [launch.under(pass_configs) for launch in self._last[1]]
        reason = prune.reason(works, self._target) if self._prunes else None
        if reason is not None and not isinstance(reason, prune.Slow):
            return _Outlook(None, reason)
        return _Outlook(model.predict_works(works, self._target), reason or "")
