"""Configurations pruned and ordered before any is lowered: each is elaborated and read, a millisecond or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

from tiledsl.autotuner.forks import Ended, in_forks
from tiledsl.autotuner.predicting import model, prune, work
from tiledsl.dialects.tile import FuncOp
from tiledsl.runtime.target import Target

FORKS_FROM = 512  # configurations, from which on several forks are worth their while
SECONDS = 100.0  # for a configuration

ProgramFor = Callable[[Mapping[str, Any]], tuple[FuncOp, Mapping[str, Any]]]


@dataclass
class Ranking:
    """What is known of configurations, by index. `order`: those worth compiling, the fastest by the model first."""

    order: list[int] = field(default_factory=list)
    predicted: dict[int, float] = field(default_factory=dict)  # milliseconds
    pruned: dict[int, str] = field(default_factory=dict)  # the reason
    failed: dict[int, BaseException | Ended] = field(default_factory=dict)  # what the builder raised, or did
    slow: dict[int, float] = field(default_factory=dict)  # milliseconds of what is pruned for being slow alone

    def of(self, indices: Sequence[int]) -> Ranking:
        """The ranking of configurations that stand at these places of a longer list."""
        places = dict(enumerate(indices))
        return Ranking(
            [places[index] for index in self.order],
            {places[index]: each for index, each in self.predicted.items()},
            {places[index]: each for index, each in self.pruned.items()},
            {places[index]: each for index, each in self.failed.items()},
            {places[index]: each for index, each in self.slow.items()},
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
    seconds: float | None = SECONDS,
    meanwhile: Callable[[], None] | None = None,
) -> Ranking:
    """Prune and order configurations. `program_for` gives a configuration's program as elaborated and its pass_configs
    (see JitFunction.program_for); nothing of it is kept. Of equal predictions the first configuration comes first.

    It is called in forks of this process, among which a large space is divided: what ends one, or takes longer than
    `seconds`, has failed. What raises there is called again here, for the exception. seconds=None: all is done here.
    meanwhile: called once, beside the forks.
    """
    ranking = Ranking()
    _ = target.sm_count  # asks torch, which forks must not do anew
    reader = _Reader(program_for, target, prunes)
    foreseen: list[Any] = [None] * len(configs)
    if seconds is not None:
        look = lambda config: astuple(reader.look(config))  # noqa: E731
        foreseen = in_forks(look, configs, seconds, processes if len(configs) >= FORKS_FROM else 1, meanwhile)
    elif meanwhile is not None:
        meanwhile()
    for index, (config, answer) in enumerate(zip(configs, foreseen)):
        if isinstance(answer, Ended):
            ranking.failed[index] = answer
            continue
        try:
            outlook = reader.look(config) if answer is None else _Outlook(*answer)
        except (Exception, SystemExit) as error:  # the builder is the user's code and may raise anything
            ranking.failed[index] = error
            continue
        if outlook.reason:
            ranking.pruned[index] = outlook.reason
            if outlook.predicted is not None:
                ranking.slow[index] = outlook.predicted
        elif outlook.predicted is not None:
            ranking.predicted[index] = outlook.predicted
    if not ranking.predicted:  # then a slow configuration is better than none
        ranking.predicted.update(ranking.slow)
        ranking.pruned = {index: reason for index, reason in ranking.pruned.items() if index not in ranking.slow}
    ranking.order = sorted(ranking.predicted, key=lambda index: (ranking.predicted[index], index))
    return ranking


class _Reader:
    """Looks at configurations one by one. What differs in the compiler's choices alone is read once."""

    def __init__(self, program_for: ProgramFor, target: Target, prunes: bool) -> None:
        self._program_for, self._target, self._prunes = program_for, target, prunes
        self._last: tuple[FuncOp, list[work.KernelLaunch]] | None = None

    def look(self, config: Mapping[str, Any]) -> _Outlook:
        """Raises what the builder raises."""
        root, pass_configs = self._program_for(config)
        if self._last is None or self._last[0] is not root:
            self._last = (root, work.launches(root))
        works = [launch.under(pass_configs) for launch in self._last[1]]
        reason = prune.reason(works, self._target) if self._prunes else None
        if reason is not None and not isinstance(reason, prune.SoftPruneReason):
            return _Outlook(None, reason)
        return _Outlook(model.predict_works(works, self._target), reason or "")
