"""A random sample, to compare other strategies with."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tiledsl.autotuner.search.exhaustive import Exhaustive


class RandomOrder(Exhaustive):
    """Asks for `max_trials` configurations in random order. It does not see the model: the sample has no bias."""

    def __init__(self, order: Sequence[int], max_trials: int | None, seed: int) -> None:
        shuffled = sorted(order)
        random.Random(seed).shuffle(shuffled)
        super().__init__(shuffled, max_trials)
