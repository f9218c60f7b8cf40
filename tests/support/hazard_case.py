"""A program that a hazard (tiledsl/runtime/hazards.py) is about, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class HazardProgram:
    """`expected` takes the inputs, multiples of 1/4, and gives what the last parameter holds afterwards."""

    hazard: str
    program: Any
    expected: Callable[..., np.ndarray]
    options: Mapping[str, Any] = field(default_factory=dict)

    def inputs(self, shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Arrays of float64, multiples of 1/4."""
        rng = np.random.default_rng(7)
        return [rng.integers(-6, 7, list(shape)) / 4.0 for shape in shapes]


PROGRAMS: dict[str, HazardProgram] = {}


def case(hazard: str, expected: Callable[..., np.ndarray], **options: Any) -> Callable[[Any], Any]:
    def add(program: Any) -> Any:
        names = {}
        for key, value in options.items():
            each, _, option = key.partition("__")
            names[f"{each.replace('_', '-')}.{option}"] = value
        PROGRAMS[program.name] = HazardProgram(hazard, program, expected, names)
        return program

    return add
