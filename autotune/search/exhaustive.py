"""Every configuration, the most promising first."""

from __future__ import annotations

from collections.abc import Sequence


class Exhaustive:
    """Asks for all configurations in the given order, or for the first `max_trials` of them."""

    def __init__(self, order: Sequence[int], max_trials: int | None = None) -> None:
        self._left = list(order if max_trials is None else order[:max_trials])[::-1]

    @property
    def done(self) -> bool:
        return not self._left

    def ask(self, n: int) -> list[int]:
        return [self._left.pop() for _ in range(min(n, len(self._left)))]

    def share(self, index: int) -> float:
        return 0.25

    def tell(self, index: int, latency: float | None) -> None:
        """Nothing depends on it."""
