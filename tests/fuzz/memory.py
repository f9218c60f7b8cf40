"""Memory of the oracle: buffers, places in them, and who touched which element, to find races."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.fuzz.dtypes import Discard, Dtype
from tests.fuzz.functions import from_bits, to_bits
from tests.fuzz.numbers import Number, cast

MOST_STEPS = 400_000  # elements touched and rounds of loops in one run


class Machine:
    """Where a run stands. Blocks and iterations of T.Parallel count up over the whole run.

    `order` says how blocks and iterations follow each other: 0 as written, 1 backwards, else shuffled by that seed.
    """

    def __init__(self, order: int) -> None:
        self.order, self.tracking, self.steps = order, order == 0, 0
        self.rng = random.Random(order)
        self.count = 1  # the last number given to a block or an iteration
        self.block = self.first_block = 0
        self.iteration = self.loop_start = 0
        self.signs: dict[tuple[int, int], int] = {}  # of the indices at each place of the text: 1 negative, 2 not
        self.safe: dict[int, Number] = {}
        self.threads: Any = None  # of the block, where each runs by itself

    def number(self) -> int:
        self.count += 1
        return self.count

    def step(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise Discard("it takes too long")

    def ordered(self, items: Iterable[Any]) -> list[Any]:
        made = list(items)
        if self.order == 1:
            made.reverse()
        elif self.order:
            self.rng.shuffle(made)
        return made

    def blocks(self, extents: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The blocks of a launch."""
        self.first_block = self.number()
        outside = self.safe
        for point in self.ordered(itertools.product(*map(range, extents))):
            self.block, self.safe = self.number(), dict(outside)
            yield point
        self.safe = outside
        self.first_block = self.block = self.number()

    def iterations(self, points: Iterable[Any]) -> Iterator[Any]:
        """The iterations of a T.Parallel, or of an operation on tiles."""
        if self.loop_start:
            raise Discard("a parallel loop inside another")
        self.loop_start = self.number()
        try:
            for point in self.ordered(points):
                self.iteration = self.number()
                self.step()
                yield point
        finally:
            self.loop_start = 0
            self.iteration = self.number()

    def check_signs(self) -> None:
        """An index that is always negative counts from the end if a compiler can prove that it is."""
        if 1 in self.signs.values():
            raise Discard("an index is negative each time")


machine = Machine(0)


def begin(order: int) -> Machine:
    """A new run."""
    global machine
    machine = Machine(order)
    return machine


class Memory:
    """One allocation: its elements, and who wrote and read each: (block, iteration, kind of the write or whether
    others read it as well)."""

    __slots__ = ("cells", "is_global", "named", "readers", "writers")

    def __init__(self, cells: list[Number], is_global: bool) -> None:
        self.cells, self.is_global = cells, is_global
        self.writers: dict[int, tuple[int, int, str]] = {}
        self.readers: dict[int, tuple[int, int, bool, bool]] = {}
        # Where parameters share it: who touched each element (launch, parameter, iteration, whether it wrote).
        self.named: dict[int, list[tuple[int, str, int, bool]]] | None = None

    def note_name(self, at: int, name: str, writes: bool) -> None:
        """Nothing orders what one parameter leads to and what another does, but within an iteration of T.Parallel."""
        if self.named is None:
            return
        now = machine
        iteration = now.iteration if now.loop_start else 0
        before = [each for each in self.named.get(at, ()) if each[0] == now.first_block]
        for _, other, when, wrote in before:
            if other != name and (writes or wrote) and (when != iteration or not iteration):
                raise Discard("an element is written through one parameter and used through another")
        self.named[at] = [*dict.fromkeys([*before, (now.first_block, name, iteration, writes)])]

    def note_read(self, at: int) -> None:
        now = machine
        block, iteration, loop = now.block, now.iteration, now.loop_start
        wrote = self.writers.get(at)
        if wrote is not None and (
            (self.is_global and wrote[0] != block and wrote[0] >= now.first_block)
            or (loop and wrote[1] != iteration and wrote[1] >= loop)
        ):
            raise Discard("a race: one reads what another writes")
        seen = self.readers.get(at)
        blocks = seen is not None and (seen[2] or seen[0] != block) and seen[0] >= now.first_block
        iterations = seen is not None and loop != 0 and seen[1] >= loop and (seen[3] or seen[1] != iteration)
        self.readers[at] = (block, iteration, blocks, iterations)

    def note_write(self, at: int, kind: str) -> None:
        now = machine
        block, iteration, loop = now.block, now.iteration, now.loop_start
        wrote = self.writers.get(at)
        if (
            wrote is not None
            and not kind == wrote[2] != ""
            and (
                (self.is_global and wrote[0] != block and wrote[0] >= now.first_block)
                or (loop and wrote[1] != iteration and wrote[1] >= loop)
            )
        ):
            raise Discard("a race: two write one element")
        seen = self.readers.get(at)
        if seen is not None and (
            (self.is_global and seen[0] >= now.first_block and (seen[0] != block or seen[2]))
            or (loop and seen[1] >= loop and (seen[1] != iteration or seen[3]))
        ):
            raise Discard("a race: one writes what another reads")
        self.writers[at] = (block, iteration, kind)


def _is_of_block(made_in: int) -> bool:
    """Whether an iteration of a parallel loop has something in hand that was made outside of it."""
    return machine.loop_start != 0 and machine.threads is None and made_in != machine.iteration


INNER = {"global": 0, "shared": 1, "fragment": 2, "local": 2}


class Buffer:
    """A buffer: a strided part of an allocation. `dims` are its sizes; `shape` has those of dynamic dimensions as
    values."""

    def __init__(
        self,
        memory: Memory,
        dims: Sequence[int],
        dtype: Dtype,
        scope: str,
        offset: int = 0,
        strides: Sequence[int] | None = None,
        stored: Dtype | None = None,
    ) -> None:
        """`stored` is the element type of the allocation, where this is a view as another one."""
        self.memory, self.dims, self.dtype, self.scope, self.offset = memory, tuple(dims), dtype, scope, offset
        self.shape: tuple[Any, ...] = self.dims
        self.strides = tuple(strides) if strides is not None else contiguous(self.dims)
        self.stored = stored or dtype
        self.made_in = machine.iteration if machine.loop_start else 0
        self.op = ""  # of a reducer
        self.name = ""  # of the parameter

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def data(self) -> Buffer:
        return self

    def position(self, indices: Sequence[Any], site: int = 0) -> int | None:
        """Where an element lies in the allocation: -1 outside of the buffer, None for an undefined index."""
        if len(indices) != len(self.dims):
            raise Discard("a wrong number of indices")
        at, inside = self.offset, True
        tracking = site and machine.tracking
        for axis, (index, dim, stride) in enumerate(zip(indices, self.dims, self.strides)):
            if type(index) is Number:
                value = index.value
                if value is None:
                    return None
                if index.dtype.kind == "f":
                    raise Discard("an index is a float")
                if index.dtype.name == "uint64" and value >> 63:
                    value -= 1 << 64
                if tracking:
                    key = (site, axis)
                    machine.signs[key] = machine.signs.get(key, 0) | (1 if value < 0 else 2)
            else:
                value = int(index)
                if value < 0 and site:
                    value += dim
            if not 0 <= value < dim:
                inside = False
            at += value * stride
        return at if inside else -1

    def load(self, indices: Sequence[Any], site: int = 0) -> Number:
        machine.step()
        at = self.position(indices, site)
        if at is None:
            return Number(self.dtype, None)
        if at < 0:
            if self.scope != "global":
                return Number(self.dtype, None)
            return cast(machine.safe.get(id(self.memory), 0), self.dtype)
        return self.read(at)

    def read(self, at: int) -> Number:
        if machine.tracking:
            self.memory.note_read(at)
            self.memory.note_name(at, self.name, False)
        return self.held(at)

    def held(self, at: int) -> Number:
        """What lies at a place, without note of a read."""
        cell = self.memory.cells[at]
        return cell if self.stored is self.dtype else from_bits(to_bits(cell), self.dtype)

    def store(self, indices: Sequence[Any], value: Any, site: int = 0, kind: str = "") -> None:
        machine.step()
        at = self.position(indices, site)
        if at is None:
            raise Discard("a store at an undefined index")
        if at < 0:
            if self.scope != "global":
                raise Discard("a store outside of an on-chip buffer")
            return
        self.write(at, value, kind)

    def write(self, at: int, value: Any, kind: str = "") -> None:
        if self.scope == "local" and _is_of_block(self.made_in):
            raise Discard("an array of the block is written in a parallel loop")
        if machine.tracking:
            self.memory.note_write(at, kind)
            self.memory.note_name(at, self.name, True)
        made = cast(value, self.dtype)
        self.memory.cells[at] = made if self.stored is self.dtype else from_bits(to_bits(made), self.stored)

    def points(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*map(range, self.dims))


def contiguous(dims: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for dim in reversed(dims):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


class Region:
    """`buffer[...]` where a place is meant: for each dimension where it starts, and its extent or None at an index."""

    def __init__(self, buffer: Buffer, indices: Sequence[Any], site: int = 0) -> None:
        self.buffer, self.site = buffer, site
        self.starts: list[Any] = []
        self.extents: list[int | None] = []
        indices = list(indices)
        if Ellipsis in [each for each in indices if not isinstance(each, Number)]:
            where = next(n for n, each in enumerate(indices) if each is Ellipsis)
            indices[where : where + 1] = [slice(None)] * (buffer.ndim - len(indices) + 1)
        if len(indices) > buffer.ndim:
            raise Discard("too many indices")
        indices += [slice(None)] * (buffer.ndim - len(indices))
        for index, dim in zip(indices, buffer.dims):
            if isinstance(index, slice):
                start = 0 if index.start is None else index.start
                stop = dim if index.stop is None else index.stop
                start = start + dim if isinstance(start, int) and start < 0 else start
                stop = stop + dim if isinstance(stop, int) and stop < 0 else stop
                self.starts.append(start)
                self.extents.append(int(Number.__index__(stop) if isinstance(stop, Number) else stop) - _int(start))
            else:
                self.starts.append(index + dim if isinstance(index, int) and index < 0 else index)
                self.extents.append(None)

    @property
    def is_element(self) -> bool:
        return all(extent is None for extent in self.extents)

    def at(self, steps: dict[int, int]) -> list[int]:
        """The element that lies that many steps further along each axis."""
        return [_int(start) + steps.get(axis, 0) for axis, start in enumerate(self.starts)]


def _int(x: Any) -> int:
    return x.__index__() if isinstance(x, Number) else int(x)


class Var:
    """A mutable scalar."""

    def __init__(self, dtype: Dtype) -> None:
        self.dtype, self.cell = dtype, Number(dtype, None)
        self.made_in = machine.iteration if machine.loop_start else 0

    def load(self) -> Number:
        machine.step()
        return self.cell

    def store(self, value: Any) -> None:
        if _is_of_block(self.made_in):
            raise Discard("a variable of the block is assigned in a parallel loop")
        self.cell = cast(value, self.dtype)
