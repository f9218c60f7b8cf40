"""The top of the model's order, then the neighbours of what measured best; in the end successive halving."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_FIRST_SHARE = 0.5  # of the trials: the top of the model's order
_SURPRISES = 0.1  # of the first share: drawn from the rest of the order, where the model may be wrong
_FIRST_PARENTS = 8
_KEPT = 4  # one in so many goes on to the next round of halving, which measures for so many times as long
_FIRST_SHARE_OF_TIME = 1 / 16
_ENOUGH = 5  # the final measurement takes as many
_FAR = 1.25  # times the best latency: slower ones are out at once


class ModelOrder:
    """Four phases, the first three within `max_trials` trials.

    1. The top of the model's order, with one in ten drawn from the rest by `seed`.
    2. Rounds around the best measured: the neighbours (one tunable moved to its next value) of the best 8, then of the
       best 4, 2, 1, and of each new best after that, until the best has no untried neighbour.
    3. What is left of the trials goes on along the model's order.
    4. Successive halving (Jamieson and Talwalkar, 2016): up to here each was measured for a sixteenth of the time. The
       best quarter is measured again for four times as long, then the best quarter of those, until few are left.

    pace: the trials by which the phases are sized; fewer than max_trials where seconds limit the search.
    """

    def __init__(
        self,
        order: Sequence[int],
        max_trials: int,
        pace: int,
        seed: int,
        configs: Sequence[Mapping[str, Any]],
    ) -> None:
        self._rank = {index: position for position, index in enumerate(order)}
        self._max_trials = min(max_trials, len(order))
        self._pace = min(self._max_trials, pace)
        self._neighbours = Neighbours([configs[index] for index in order], order)
        self._times: Counter[int] = Counter()  # asked for
        self._open: set[int] = set()
        self._latency: dict[int, float] = {}
        self._parents = _FIRST_PARENTS
        self._survivors: list[int] | None = None  # of the last round of halving
        self._finished = False
        self._queue = self._first(list(order), seed)

    def _first(self, order: list[int], seed: int) -> list[int]:
        count = max(1, round(self._pace * _FIRST_SHARE))
        surprises = int(count * _SURPRISES)
        top, rest = order[: count - surprises], order[count - surprises :]
        return top + random.Random(seed).sample(rest, min(surprises, len(rest)))

    @property
    def done(self) -> bool:
        if not self._queue:
            self._refill()
        return self._finished

    def ask(self, n: int) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < n and not self.done and self._queue:
            index = self._queue.pop(0)
            chosen.append(index)
            self._open.add(index)
            self._times[index] += 1
        return chosen

    def share(self, index: int) -> float:
        return min(1.0, _FIRST_SHARE_OF_TIME * float(_KEPT ** (self._times[index] - 1)))

    def tell(self, index: int, latency: float | None) -> None:
        self._open.discard(index)
        self._latency.pop(index, None)
        if latency is not None:
            self._latency[index] = latency

    def _refill(self) -> None:
        """Choose the next round, unless answers are missing that it depends on."""
        if self._open:
            return
        left = self._max_trials - len(self._times)
        self._queue = self._next_round()[:left] if left > 0 else self._halve()
        self._finished = not self._queue

    def _next_round(self) -> list[int]:
        while self._latency:
            parents = self._best()[: self._parents]
            found = {i for parent in parents for i in self._neighbours.of(parent) if i not in self._times}
            if found:
                self._parents = max(1, self._parents // 2)
                return sorted(found, key=self._rank.__getitem__)[: self._round_size()]
            if self._parents == 1:
                break
            self._parents //= 2
        return [index for index in self._rank if index not in self._times][: self._round_size()]

    def _halve(self) -> list[int]:
        """Those that stay in the race; none if the final measurement can take them all."""
        racing = self._best()
        if self._survivors is not None:
            racing = [index for index in racing if index in self._survivors and self.share(index) < 1.0]
        near = [index for index in racing if self._latency[index] <= _FAR * self._latency[racing[0]]]
        self._survivors = near[: -(-len(racing) // _KEPT)]
        return list(self._survivors) if len(self._survivors) > _ENOUGH else []

    def _best(self) -> list[int]:
        return sorted(self._latency, key=lambda index: (self._latency[index], self._rank.get(index, len(self._rank))))

    def _round_size(self) -> int:
        return max(4, self._pace // 8)


class Neighbours:
    """Configurations that differ in one tunable, by one step of its values (numbers in order, others any)."""

    def __init__(self, configs: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> None:
        names = list(dict.fromkeys(name for config in configs for name in config))
        self._values: list[list[str]] = []
        self._ordered: list[bool] = []
        for name in names:
            given: dict[str, Any] = {repr(config.get(name)): config.get(name) for config in configs}
            numbers = all(isinstance(value, (int, float)) for value in given.values())
            keys = sorted(given, key=given.__getitem__) if numbers else sorted(given)
            self._values.append(keys)
            self._ordered.append(numbers)
        self._point = {
            index: tuple(keys.index(repr(config.get(name))) for name, keys in zip(names, self._values))
            for index, config in zip(indices, configs)
        }
        self._index = {point: index for index, point in self._point.items()}

    def of(self, index: int) -> list[int]:
        """Indices of the neighbours, in a fixed order."""
        point = self._point.get(index, ())
        near_ones = []
        for axis, position in enumerate(point):
            count = len(self._values[axis])
            others = (position - 1, position + 1) if self._ordered[axis] else range(count)
            for other in others:
                if other != position:
                    near = self._index.get((*point[:axis], other, *point[axis + 1 :]))
                    if near is not None:
                        near_ones.append(near)
        return near_ones
