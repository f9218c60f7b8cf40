"""One program to try: its text, what it is called with, and the options of its passes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.dtypes import dtype_of
from tests.fuzz.memory import contiguous
from tests.fuzz.numbers import Number, plain
from tests.fuzz.oracle import Argument, expected


@dataclass
class TensorArgument:
    """A tensor of a call. `offset` are the bytes by which its first element misses a multiple of 16.

    `values` says how its elements are drawn: any, wild (with NaN and infinities), nonzero, index (`low` to `high`,
    which is there), permutation. `same_as` names the tensor whose memory it shares.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] = ()
    same_as: str = ""
    values: str = "any"
    low: int = 0
    high: int = 0
    offset: int = 0

    def __post_init__(self) -> None:
        self.strides = tuple(self.strides) or contiguous(self.shape)
        self.shape = tuple(self.shape)

    @property
    def span(self) -> int:
        """The elements from the first to the last, with gaps."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))


@dataclass
class Case:
    seed: int
    text: str
    tensors: list[TensorArgument]
    scalars: dict[str, tuple[str, Any]]
    options: dict[str, Any]
    inputs: dict[str, list[Any]] = field(default_factory=dict)  # the memory of each tensor that has its own

    @staticmethod
    def make(
        seed: int, text: str, tensors: Sequence[TensorArgument], scalars: Mapping[str, tuple[str, Any]],
        options: Mapping[str, Any],
    ) -> Case:  # fmt: skip
        case = Case(seed, text, list(tensors), dict(scalars), dict(options))
        rng = random.Random(f"inputs {seed}")
        case.inputs = {each.name: _draw(rng, each) for each in tensors if not each.same_as}
        return case

    def expected(self, orders: int = 3) -> dict[str, list[Number]]:
        """What the memory of each tensor holds after the call; Discard if the program has no defined meaning.

        orders: of blocks and iterations, in which it must be the same.
        """
        places: dict[str, int] = {}
        memories: list[list[Number]] = []
        for tensor in self.tensors:
            if not tensor.same_as:
                places[tensor.name] = len(memories)
                dtype = dtype_of(tensor.dtype)
                memories.append([plain(value, dtype) for value in self.inputs[tensor.name]])
        arguments = [
            Argument(places[each.same_as or each.name], 0, each.shape, each.strides) for each in self.tensors
        ] + [Argument(value=value) for _, value in self.scalars.values()]
        held = expected(self.text, memories, arguments, orders)
        return {name: held[place] for name, place in places.items()}


def _draw(rng: random.Random, tensor: TensorArgument) -> list[Any]:
    dtype = dtype_of(tensor.dtype)
    count = tensor.span
    if tensor.values == "permutation":
        return rng.sample(range(count), count)
    if tensor.values == "index":
        made = [rng.choice((tensor.high, rng.randint(tensor.low, tensor.high))) for _ in range(count)]
        made[rng.randrange(count)] = tensor.high
        return made
    if dtype.kind == "b":
        return [rng.randrange(2) for _ in range(count)]
    if dtype.kind == "f":
        if tensor.values == "nonzero":
            return [rng.choice((-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0)) for _ in range(count)]
        limit, step = (4, 0.5) if dtype.bits == 8 else (4, 0.25)
        made = [rng.randrange(-int(limit / step), int(limit / step) + 1) * step for _ in range(count)]
        if tensor.values == "wild":
            special = [math.nan, math.nan, math.inf, -math.inf] if dtype.name != "float8_e4m3fn" else [math.nan]
            made = [rng.choice(special) if rng.random() < 0.25 else value for value in made]
        return made
    small, extreme = rng.random() < 0.5, [dtype.low, dtype.high, dtype.high - 1, dtype.low + 1]
    low, high = (max(dtype.low, -9), 9) if small else (dtype.low, dtype.high)
    return [rng.choice(extreme) if rng.random() < 0.08 else rng.randint(low, high) for _ in range(count)]


def differences(case: Case, wanted: Mapping[str, Sequence[Number]], found: Mapping[str, Sequence[Any]]) -> list[str]:
    """Where results are not what they must be: the same, or within the bound of their rounding."""
    wrong = []
    for name, numbers in wanted.items():
        for place, (number, got) in enumerate(zip(numbers, found[name])):
            want = number.value
            if want is None or got == want or (want != want and got != got):
                continue
            if number.error and abs(got - want) <= number.error:
                continue
            bound = f" within {number.error:.3g}" if number.error else ""
            wrong.append(f"{name}[{place}] is {got!r} instead of {want!r}{bound}")
    return wrong
