"""Loops. Each function returns a description that the `for` statement of a tile program turns into operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tiledsl.analysis.hardware import MAX_ELEMENTS
from tiledsl.errors import TileError
from tiledsl.language.expression import Expr, context, describe, is_number, plain
from tiledsl.launch_options import MOST_STAGES

__all__ = [
    "Parallel", "Persistent", "Pipelined", "Serial", "Unroll", "Vectorized", "grid", "parallel", "serial", "unroll",
    "vectorized",
]  # fmt: skip


class DeviceLoop:
    """What a `for` statement of a tile program turns into operations; Python itself cannot loop over it."""

    def __iter__(self) -> Any:
        raise TileError("this loop can only be written as a `for` statement of a tile program (or a @T.macro)")


@dataclass(frozen=True)
class SerialLoop(DeviceLoop):
    """`for i in range(start, stop, step)`. num_stages 0: no pipelining asked for; unroll 1: completely.

    vectorized: the iterations may be computed together where nobody can tell.
    """

    start: Any
    stop: Any
    step: Any = 1
    num_stages: int = 0
    unroll: int = 0
    vectorized: bool = False


@dataclass(frozen=True)
class LoopNest(DeviceLoop):
    """`for i, j in T.grid(m, n)`: serial loops inside each other, the last index fastest."""

    loops: tuple[SerialLoop, ...]


@dataclass(frozen=True)
class ParallelLoop(DeviceLoop):
    """`for i, j in T.Parallel(m, n)`.

    `extents` are the sizes. If an extent is known only at run time, `limits` has it, and `extents` an upper bound; or,
    for the axes in `chunked`, `extents` has the size of a tile, and there are as many tiles as necessary.
    """

    extents: tuple[int, ...] = field(default=())
    limits: tuple[Any, ...] = field(default=())
    chunked: tuple[int, ...] = field(default=())


@dataclass(frozen=True)
class PersistentLoop(DeviceLoop):
    """`for bx, by in T.Persistent([m, n], wave_size, index)`."""

    domain: tuple[Any, ...]
    wave_size: Any
    index: Any
    group_size: int


MAX_UNROLLED = 4096
# Where an extent of T.Parallel is known only at run time: the most elements of one tile, and how many it has instead.
MAX_WHOLE, CHUNK = 1 << 16, 1 << 12


def check_elements(what: str, shape: Sequence[int]) -> None:
    """Refuse a tile that is too large for Triton. Each dimension counts as the next power of two."""
    padded = [1 << (size - 1).bit_length() for size in shape]
    if math.prod(padded) > MAX_ELEMENTS:
        told = "" if list(shape) == padded else f" ({math.prod(padded)} with each dimension padded to a power of two)"
        raise TileError(
            f"{what}: {' x '.join(map(str, shape))} is a tile of {math.prod(shape)} elements{told}; Triton's limit is "
            f"{MAX_ELEMENTS}",
            notes=["use smaller tiles: more blocks in T.Kernel, or a T.serial loop around them"],
        )


def _bound(what: str, x: Any) -> Any:
    if type(x) is int:
        return x
    x = plain(x)
    if isinstance(x, float) and x.is_integer():
        x = int(x)
    if isinstance(x, bool) or not isinstance(x, (int, Expr)):
        raise TileError(f"{what}: a bound is {describe(x)}, not an integer")
    if isinstance(x, Expr) and x.dtype.is_float():
        raise TileError(f"{what}: a bound is {x.dtype}; convert it with T.cast(x, 'int32')")
    return x


def _range(what: str, start: Any, stop: Any, step: Any = None) -> tuple[Any, Any, Any]:
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else _bound(what, step)
    if is_number(step) and step == 0:
        raise TileError(f"{what}: the step is 0")
    return _bound(what, start), _bound(what, stop), step


def Parallel(*extents: Any, coalesced_width: Any = None, loop_layout: Any = None, prefer_async: Any = None, annotations: Any = None) -> ParallelLoop:  # fmt: skip # noqa: E501
    """Independent iterations over a box, executed by all threads of the block.

    Extents are integers of at least 1, or integer expressions known only at run time. The keywords are hints for other
    compilers without effect. Raises TileError for other extents, and for more than 2^20 elements with each dimension
    padded to a power of two.

    Example:
        # X = arange(6.0).reshape(2, 3)
        for i, j in T.Parallel(2, 3):
            Y[j, i] = X[i, j] + 1
        # Y = X.T + 1
    """
    if len(extents) == 1 and isinstance(extents[0], (tuple, list)):
        extents = tuple(extents[0])
    sizes: list[int] = []
    limits: list[Any] = []
    for axis, extent in enumerate(extents):
        size, limit = _bound("T.Parallel", extent), None
        if isinstance(size, Expr):
            size, limit = _most(size)
        if limit is None and size <= 0:
            raise TileError(f"T.Parallel: extent {axis} is {size}; extents are at least 1")
        sizes.append(size)
        limits.append(limit)
    if not sizes:
        raise TileError("T.Parallel needs at least one extent")
    dynamic = [axis for axis, limit in enumerate(limits) if limit is not None]
    chunked = _cut(sizes, dynamic)
    check_elements("T.Parallel", sizes)
    return ParallelLoop(tuple(sizes), tuple(limits) if dynamic else (), chunked)


def _cut(sizes: list[int], axes: Sequence[int]) -> tuple[int, ...]:
    """Shrink a tile that is too large along its largest axis among `axes`; return the axes that were cut."""
    chunked: set[int] = set()
    most = MAX_WHOLE
    while math.prod(sizes) > most and (left := [axis for axis in axes if sizes[axis] > 1]):
        axis = max(left, key=sizes.__getitem__)
        sizes[axis] = 1 << (sizes[axis] - 1).bit_length() - 1
        chunked.add(axis)
        most = CHUNK
    return tuple(sorted(chunked))


def _most(extent: Expr) -> tuple[int, Any]:
    """An upper bound of an extent, and the extent itself unless it is that constant."""
    ctx = context("T.Parallel")
    constant = ctx.constant(extent)
    if constant is not None:
        return constant, None
    return max(1, ctx.most(extent)), extent


def Pipelined(start: Any, stop: Any = None, num_stages: int = 0, order: Any = None, stage: Any = None, sync: Any = None, group: Any = None, annotations: Any = None) -> SerialLoop:  # fmt: skip # noqa: E501
    """A serial loop whose loads run num_stages iterations ahead. order, stage, sync and group have no effect.

    `T.Pipelined(n)` or `T.Pipelined(start, stop)`: integers or integer expressions. Raises TileError for other bounds,
    and unless num_stages is an integer from 0 (a plain loop) to 64.

    Example:
        # A = ones(16, 64).half()
        # B = ones(64, 16).half()
        a, b = T.alloc_shared((16, 16), "float16"), T.alloc_shared((16, 16), "float16")
        c = T.alloc_fragment((16, 16), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 16], a)
            T.copy(B[k * 16, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C)
        # C = full((16, 16), 64.0)
    """
    num_stages = plain(num_stages)
    if not isinstance(num_stages, int) or not 0 <= num_stages <= MOST_STAGES:
        allowed = f"it must be at least 0 (no pipelining) and at most {MOST_STAGES}"
        raise TileError(f"T.Pipelined: num_stages is {describe(num_stages)}; {allowed}")
    return SerialLoop(*_range("T.Pipelined", start, stop), num_stages=num_stages)


def serial(start: Any, stop: Any = None, step: Any = None, *, annotations: Any = None) -> SerialLoop:
    """A plain loop, from `start` (an integer or integer expression) to `stop`, or from 0 to `start`, by `step`.

    Raises TileError for other bounds and for a step of 0.

    Example:
        total = T.alloc_var("int32", 0)
        for i in T.serial(1, 10, 3):
            total += i
        Y[0] = total
        # Y = [12]
    """
    return SerialLoop(*_range("T.serial", start, stop, step))


def unroll(start: Any, stop: Any = None, step: Any = None, *, explicit: bool = False, unroll_factor: int | None = None, annotations: Any = None) -> SerialLoop:  # fmt: skip # noqa: E501
    """A loop that is unrolled, completely or by `unroll_factor`. Bounds are T.serial's: `start`, `stop`, `step`.

    Bounds are integers or integer expressions. Raises TileError for other bounds, a step of 0, and more than 4096
    copies of the body; `explicit` has no effect.

    Example:
        total = T.alloc_var("int32", 0)
        for i in T.unroll(4):
            total += i * i
        Y[0] = total
        # Y = [14]
    """
    loop = SerialLoop(*_range("T.unroll", start, stop, step), unroll=unroll_factor or 1)
    if not unroll_factor and is_number(loop.start) and is_number(loop.stop) and is_number(loop.step):
        rounds = len(range(loop.start, loop.stop, loop.step))
        if rounds > MAX_UNROLLED:
            raise TileError(
                f"T.unroll: {rounds} copies of the body, more than {MAX_UNROLLED}",
                notes=["use T.serial, or unroll in part: T.unroll(n, unroll_factor=4)"],
            )
    return loop


def vectorized(start: Any, stop: Any = None, *, annotations: Any = None) -> SerialLoop:
    """T.serial, whose iterations are computed together, as T.Parallel's, where none needs or overwrites another's.

    `start` and `stop` are integers or integer expressions. Raises TileError as T.serial does.

    Example:
        # X = [1.0, 2.0, 3.0, 4.0]
        for i in T.vectorized(4):
            Y[i] = X[i] * X[i]
        # Y = [1.0, 4.0, 9.0, 16.0]
    """
    return SerialLoop(*_range("T.vectorized", start, stop), vectorized=True)


def grid(*extents: Any) -> LoopNest:
    """A nest of serial loops: `for i, j in T.grid(m, n)`. Extents are integers or integer expressions.

    Raises TileError for other extents, and without any.

    Example:
        count = T.alloc_var("int32", 0)
        for i, j in T.grid(2, 3):
            Y[i, j] = count
            count += 1
        # Y = [[0, 1, 2], [3, 4, 5]]
    """
    if not extents:
        raise TileError("T.grid needs at least one extent")
    return LoopNest(tuple(SerialLoop(*_range("T.grid", 0, extent)) for extent in extents))


def Persistent(domain: Any, wave_size: Any, index: Any, group_size: Any = 8) -> PersistentLoop:
    """The tiles of a grid that block `index` of `wave_size` blocks processes one after the other.

    `domain` is a list of the grid's sizes, each of which may be 0; these, `wave_size` (at least 1) and `index` are
    integers or integer expressions, and tiles come in groups of `group_size` rows. Raises TileError for other values.

    Example:
        with T.Kernel(2) as block:
            for i, j in T.Persistent([3, 2], 2, block):
                Y[i, j] = 10 * i + j
        # Y = [[0, 1], [10, 11], [20, 21]]
    """
    if not isinstance(domain, (tuple, list)) or not domain:
        raise TileError(f"T.Persistent: the domain is a list of sizes, not {describe(domain)}")
    group_size = 8 if group_size is None else plain(group_size)
    if not isinstance(group_size, int) or group_size < 1:
        raise TileError(f"T.Persistent: group_size is {describe(group_size)}; it must be at least 1")
    sizes, wave = [_bound("T.Persistent", size) for size in domain], _bound("T.Persistent", wave_size)
    for what, value, least in (*(("a size of the domain", size, 0) for size in sizes), ("wave_size", wave, 1)):
        if is_number(value) and value < least:
            raise TileError(f"T.Persistent: {what} is {value}; it must be at least {least}")
    return PersistentLoop(tuple(sizes), wave, _bound("T.Persistent", index), group_size)


Serial, Unroll, Vectorized, parallel = serial, unroll, vectorized, Parallel
