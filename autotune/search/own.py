"""Search strategies of users: asked for configurations and told what became of them, in any order they like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.autotuner.user_functions import errors_of
from tiledsl.errors import TileError

_IDLE = 100  # answers in a row without a new configuration, after which a search has no more


@dataclass(frozen=True)
class SearchSpace:
    """What a search strategy of a user is made for.

    configs: all configurations; a strategy names them by index. order: the indices of those that the target's limits
    leave, the most promising first as the cost model predicts. max_trials: how many may be tried; None: all.
    seconds: after which no more is asked; None: no limit. seed: for random numbers, so that runs are alike.
    """

    configs: Sequence[Mapping[str, Any]]
    order: tuple[int, ...]
    max_trials: int | None = None
    seconds: float | None = None
    seed: int = 0


Factory = Callable[[SearchSpace], Any]


class OwnSearch:
    """A user's strategy as the tuner asks it: only configurations that can be tried, each once, within max_trials.

    What the user's code raises, and indices that there are not, become TileErrors that name the strategy.
    """

    def __init__(self, make: Factory, space: SearchSpace, name: str = "") -> None:
        self._name = f"autotune: the search {name or getattr(make, '__name__', repr(make))}"
        self._space = space
        self._left = set(space.order)
        self._count = len(space.order) if space.max_trials is None else min(space.max_trials, len(space.order))
        self._waiting: dict[int, int] = {}  # how often each was asked for whose outcome is not known
        self._known: dict[int, float | None] = dict.fromkeys(range(len(space.configs)))
        for index in space.order:
            del self._known[index]
        self._ended = False
        with errors_of(self._name, "it is called with a SearchSpace"):
            self._inner = make(space)
        for method in ("ask", "tell"):
            if not callable(getattr(self._inner, method, None)):
                raise TileError(
                    f"{self._name} gives {type(self._inner).__name__}, which has no method {method}",
                    notes=["it must give an object with ask(n) and tell(index, value); see register_search"],
                )

    @property
    def done(self) -> bool:
        return not self._waiting and (self._ended or self._count <= 0 or self._says_done())

    def ask(self, n: int) -> list[int]:
        """Up to n indices that were not asked for before, no more than n of them unknown at a time."""
        fresh: list[int] = []
        for _ in range(_IDLE):
            room = min(n - len(self._waiting), self._count)
            if room <= 0 or self._ended or self._says_done():
                return fresh
            with errors_of(f"{self._name}: ask"):
                answer = self._inner.ask(room)
            wanted = self._checked(answer, room)
            if not wanted:
                self._ended = not self._waiting
                return fresh
            for index in wanted:
                if index in self._known:
                    self._say(index, self._known[index])
                elif index in self._waiting:
                    self._waiting[index] += 1
                else:
                    self._waiting[index] = 1
                    self._count -= 1
                    fresh.append(index)
            if fresh:
                return fresh
            if self._waiting:  # what it asks for again will be known
                return fresh
        self._ended = True
        return fresh

    def share(self, index: int) -> float:
        return 1.0

    def tell(self, index: int, latency: float | None) -> None:
        self._known[index] = latency
        for _ in range(self._waiting.pop(index, 0)):
            self._say(index, latency)

    def _say(self, index: int, value: float | None) -> None:
        with errors_of(f"{self._name}: tell"):
            self._inner.tell(index, value)

    def _says_done(self) -> bool:
        with errors_of(f"{self._name}: done"):
            return bool(getattr(self._inner, "done", False))

    def _checked(self, answer: Any, most: int) -> list[int]:
        wanted = list(answer) if isinstance(answer, Sequence) else None
        size = len(self._space.configs)
        if wanted is None or any(type(index) is not int or not 0 <= index < size for index in wanted):
            raise TileError(f"{self._name}: ask({most}) gives {answer!r}; it must give a list of indices below {size}")
        return wanted[:most]
