"""The top of the model's order, then the neighbours of what measured best."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

_FIRST_SHARE = 0.5  # of the budget: the top of the model's order
_SURPRISES = 0.1  # of the first share: drawn from the rest of the order, where the model may be wrong
_FIRST_PARENTS = 8


class ModelOrder:
    """Three phases within `budget` trials.

    1. The top of the model's order, with one in ten drawn from the rest by `seed`.
    2. Rounds around the best measured: the neighbours (one tunable moved to its next value) of the best 8, then of the
       best 4, 2, 1, and of each new best after that, until the best has no untried neighbour.
    3. What is left of the budget goes on along the model's order.
    """

    def __init__(
        self, order: Sequence[int], budget: int, seed: int = 0, configs: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        self._rank = {index: position for position, index in enumerate(order)}
        self._budget = min(budget, len(order))
        self._neighbours = Neighbours([configs[index] for index in order], list(order)) if configs is not None else None
        self._asked: set[int] = set()
        self._open: set[int] = set()
        self._latency: dict[int, float] = {}
        self._parents = _FIRST_PARENTS
        self._queue = self._first(list(order), seed)

    def _first(self, order: list[int], seed: int) -> list[int]:
        count = max(1, round(self._budget * _FIRST_SHARE)) if self._neighbours is not None else self._budget
        surprises = int(count * _SURPRISES)
        top, rest = order[: count - surprises], order[count - surprises :]
        return top + random.Random(seed).sample(rest, min(surprises, len(rest)))

    @property
    def done(self) -> bool:
        return len(self._asked) >= self._budget

    def ask(self, n: int) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < n and not self.done:
            if not self._queue and not self._refill():
                break
            index = self._queue.pop(0)
            if index not in self._asked:
                self._asked.add(index)
                self._open.add(index)
                chosen.append(index)
        return chosen

    def tell(self, index: int, latency: float | None) -> None:
        self._open.discard(index)
        if latency is not None:
            self._latency[index] = latency

    def _refill(self) -> bool:
        """Choose the next round; False while answers are missing that it depends on."""
        if self._open:
            return False
        best = sorted(self._latency, key=lambda index: (self._latency[index], self._rank.get(index, 0)))
        while self._neighbours is not None and best:
            parents = best[: self._parents]
            found = [i for parent in parents for i in self._neighbours.of(parent) if i not in self._asked]
            if found:
                self._queue = sorted(set(found), key=self._rank.__getitem__)[: self._round_size()]
                self._parents = max(1, self._parents // 2)
                return True
            if self._parents == 1:
                break
            self._parents //= 2
        self._queue = [index for index in self._rank if index not in self._asked][: self._round_size()]
        return bool(self._queue)

    def _round_size(self) -> int:
        return max(4, self._budget // 8)


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
        found = []
        for axis, position in enumerate(point):
            count = len(self._values[axis])
            others = (position - 1, position + 1) if self._ordered[axis] else range(count)
            for other in others:
                if other != position and 0 <= other < count:
                    near = self._index.get((*point[:axis], other, *point[axis + 1 :]))
                    if near is not None:
                        found.append(near)
        return found
