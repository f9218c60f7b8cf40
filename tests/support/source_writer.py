"""What writers of random programs share: draws from a seed, names, and lines at the depth where they stand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any


class SourceWriter:
    """Lines of a program, which are indented by `depth`, and names that are in use once."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.depth, self.count = 1, 0

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randrange(len(options))]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def write(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)
