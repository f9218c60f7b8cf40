"""Runs the body of a kernel on integers: as Python, with loops of Python's own, and as the IR that it becomes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import tiledsl
from tests.frontend.host import MAX_LINES, traced
from tests.support.executor import ExecutorError, run
from tiledsl.ir.verifier import verify

SHAPES: dict[str, tuple[int, ...]] = {"A": (8,), "B": (8,), "C": (3, 4)}
SCALARS = {"n": 3, "m": -2}
HEAD = (
    "@T.prim_func\ndef main("
    + "".join(f'{name}: T.Tensor({shape}, "int32"), ' for name, shape in SHAPES.items())
    + ", ".join(f"{name}: T.int32" for name in SCALARS)
    + "):\n    with T.Kernel(2) as bx:\n"
)


class Unknown(Exception):
    """What the program does is for nobody to say: it reads or writes outside of a tensor, or overflows."""


class Cells:
    """A tensor of integers."""

    def __init__(self, shape: tuple[int, ...], values: Iterable[int] | None = None) -> None:
        self.shape = shape
        places = itertools.product(*map(range, shape))
        self.values: dict[tuple[int, ...], int] = {} if values is None else dict(zip(places, values, strict=True))

    def place(self, index: Any) -> tuple[int, ...]:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != len(self.shape) or not all(
            isinstance(at, int) and 0 <= at < size for at, size in zip(index, self.shape, strict=True)
        ):
            raise Unknown
        return tuple(map(int, index))

    def __getitem__(self, index: Any) -> int:
        place = self.place(index)
        if place not in self.values:
            raise Unknown
        return self.values[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(value, int) or abs(value) >= 1 << 31:
            raise Unknown
        self.values[self.place(index)] = int(value)


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(-5, 9, shape).astype(np.int32) for name, shape in SHAPES.items()}


class Language:
    """T as Python; `order` goes through the indices of loops whose iterations are independent."""

    float32, int32, bool = float, int, bool
    serial = unroll = vectorized = staticmethod(range)
    if_then_else = staticmethod(lambda test, a, b: a if test else b)
    max, min, abs = staticmethod(max), staticmethod(min), staticmethod(abs)
    ceildiv = staticmethod(lambda a, b: -(-a // b))

    def __init__(self, order: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
        self.order = order

    def grid(self, *extents: int) -> list[Any]:
        return list(range(*extents) if len(extents) == 1 else itertools.product(*map(range, extents)))

    def Parallel(self, *extents: int) -> Iterable[Any]:
        return self.order(self.grid(*extents))

    def alloc_var(self, dtype: str, init: int | None = None) -> int | None:
        return init  # None cannot be calculated with

    def alloc_local(self, shape: tuple[int, ...], dtype: str) -> Cells:
        return Cells(shape)

    def macro(self, function: Any) -> Any:
        return function


def in_python(body: str, order: Callable[[Iterable[Any]], Iterable[Any]]) -> dict[str, list[int]]:
    """What the tensors hold behind the kernel. Raises SyntaxError, TooLong, and whatever the body raises."""
    names: dict[str, Any] = {"T": Language(order)}
    text = f"def main({', '.join([*SHAPES, *SCALARS])}, bx):\n" + "".join(f"    {each}\n" for each in body.split("\n"))
    exec(compile(text, "device", "exec", dont_inherit=True), names)
    cells = {name: Cells(array.shape, array.flatten().tolist()) for name, array in inputs().items()}
    for bx in order(range(2)):
        traced(names["main"], (*cells.values(), *SCALARS.values(), bx))
    return {name: [each.values[at] for at in sorted(each.values)] for name, each in cells.items()}


def on_device(body: str) -> dict[str, list[int]]:
    """The same of the IR; nothing if it does not end. Raises TileError."""
    text = HEAD + "".join(f"        {line}\n" for line in body.split("\n"))
    program = tiledsl.parse(text).build(())
    verify(program)
    arrays = inputs()
    try:
        run(program, [*arrays.values(), *SCALARS.values()], limit=MAX_LINES)
    except ExecutorError:  # a loop without end
        return {}
    return {name: array.flatten().tolist() for name, array in arrays.items()}
