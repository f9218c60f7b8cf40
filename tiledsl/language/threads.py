"""Code for one thread: its index, its warp, and what threads exchange.

The threads of a block run in step: each statement is done by all of them before the next one. Arrays of T.alloc_local
and variables are each thread's own; operations on whole tiles are done once, by all. A warp has 32 threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tiledsl.analysis.hardware import WARP
from tiledsl.dialects import arith, thread
from tiledsl.errors import TileError
from tiledsl.language.allocation import alloc_fragment
from tiledsl.language.buffer import Reference, Var
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_value,
    binary,
    cast,
    compare,
    context,
    describe,
    is_number,
    plain,
    select,
)
from tiledsl.language.reductions import reduce
from tiledsl.language.thread_block import Frame, ThreadBlock
from tiledsl.legality import permitted

__all__ = [
    "attr", "comm_reducer", "evaluate", "get_lane_idx",
    "get_thread_binding", "get_thread_bindings", "get_thread_extent", "get_thread_extents", "get_warp_group_idx",
    "get_warp_idx", "get_warp_idx_sync", "shfl_down", "shfl_sync", "shfl_up", "shfl_xor", "shuffle_elect",
    "thread_binding", "tvm_thread_allreduce", "tvm_warp_shuffle", "tvm_warp_shuffle_down",
    "tvm_warp_shuffle_up", "warp_reduce_bitand", "warp_reduce_bitor", "warp_reduce_max", "warp_reduce_min",
    "warp_reduce_sum",
]  # fmt: skip


def threads_of(what: str) -> ThreadBlock:
    ctx = context(what)
    if ctx.kernel is None or ctx.threads is None:
        raise TileError(f"{what}: threads are those of a kernel; use it inside `with T.Kernel(...)`")
    return ctx.threads


def _dimension(what: str, dim: Any) -> tuple[ThreadBlock, int]:
    block, dim = threads_of(what), plain(dim)
    if isinstance(dim, bool) or not isinstance(dim, int) or not 0 <= dim < max(3, len(block.extents)):
        raise TileError(f"{what}: dim is {describe(dim)}; it is 0 (x), 1 (y) or 2 (z)")
    return block, dim


def get_thread_binding(dim: int = 0) -> Any:
    """The index of the thread along dimension `dim` (0: x, 1: y, 2: z) of T.Kernel's threads, an int32 scalar.

    Raises TileError for another dimension, and outside of T.Kernel.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = 2 * tx
        # Y = 2 * arange(32)
    """
    block, dim = _dimension("T.get_thread_binding", dim)
    return Scalar(block.index(dim)) if dim < len(block.extents) else 0


def get_thread_bindings() -> list[Any]:
    """The indices of the thread along x, y and z, int32 scalars. Raises TileError outside of T.Kernel.

    Example:
        with T.Kernel(1, threads=(16, 2)):
            tx, ty, tz = T.get_thread_bindings()
            Y[ty, tx] = 16 * ty + tx
        # Y = arange(32).reshape(2, 16)
    """
    return [get_thread_binding(dim) for dim in range(3)]


def get_thread_extent(dim: int = 0) -> int:
    """The number of threads along dimension `dim` (0: x, 1: y, 2: z) of a block.

    Raises TileError for another dimension, and outside of T.Kernel.

    Example:
        with T.Kernel(1, threads=(16, 2)):
            Y[0] = T.get_thread_extent(1)
        # Y = [2]
    """
    block, dim = _dimension("T.get_thread_extent", dim)
    return block.extents[dim] if dim < len(block.extents) else 1


def get_thread_extents() -> list[int]:
    """The numbers of threads along x, y and z of a block. Raises TileError outside of T.Kernel.

    Example:
        with T.Kernel(1, threads=(16, 2)):
            nx, ny, nz = T.get_thread_extents()
            Y[0] = nx * ny * nz
        # Y = [32]
    """
    return [get_thread_extent(dim) for dim in range(3)]


class ThreadIndex(Scalar):
    """The thread's index along one axis; a `for` statement over it runs once, for the own index."""

    __slots__ = ()


def thread_binding(begin: Any, end: Any = None, thread: str = "threadIdx.x", *, annotations: Any = None) -> Any:
    """`tx = T.thread_binding(0, 128, thread="threadIdx.x")`: the thread's index along x, y or z, an int32 scalar.

    `for tx in T.thread_binding(128, thread="threadIdx.x")` gives the same name to it. `begin` to `end` are 0 and the
    number of threads there, or that number alone; annotations have no effect. Raises TileError for other numbers and
    names, and outside of T.Kernel.

    Example:
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            Y[tx] = tx
        # Y = arange(32)
    """
    if isinstance(end, str):
        end, thread = None, end
    begin, end = (0, plain(begin)) if end is None else (plain(begin), plain(end))
    axis = ("threadIdx.x", "threadIdx.y", "threadIdx.z").index(thread) if thread.startswith("threadIdx.") else None
    if axis is None:
        raise TileError(f"T.thread_binding: {thread!r} is no index of a thread; there are threadIdx.x, .y and .z")
    count = get_thread_extent(axis)
    if begin != 0 or isinstance(begin, Expr) or isinstance(end, Expr) or end != count:
        raise TileError(
            f"T.thread_binding: {thread} goes from {describe(begin)} to {describe(end)}, but T.Kernel has {count} "
            "threads there",
            notes=["give T.Kernel(..., threads=...) that number"],
        )
    return ThreadIndex(as_value(get_thread_binding(axis), "int32"))


def thread_number(what: str) -> Any:
    """The number of the thread in its block: x is fastest."""
    block = threads_of(what)
    number: Any = 0
    for axis in reversed(range(len(block.extents))):
        number = number * block.extents[axis] + Scalar(block.index(axis))
    return number


def _size(what: str, name: str, size: Any, default: int) -> int:
    size = default if size is None else plain(size)
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise TileError(f"{what}: {name} is {describe(size)}; it is a number of at least 1")
    return size


def get_lane_idx(warp_size: int | None = None) -> Any:
    """The thread's index in its warp of `warp_size` threads (32 if left out), an int32 scalar.

    Raises TileError for a size that is no number, and outside of T.Kernel.

    Example:
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            Y[tx] = T.get_lane_idx()
        # Y = arange(64) % 32
    """
    return thread_number("T.get_lane_idx") % _size("T.get_lane_idx", "warp_size", warp_size, WARP)


def get_warp_idx(warp_size: int | None = None) -> Any:
    """The index of the thread's warp of `warp_size` threads (32 if left out), an int32 scalar.

    Raises TileError for a size that is no number, and outside of T.Kernel.

    Example:
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            Y[tx] = T.get_warp_idx()
        # Y = arange(64) // 32
    """
    return thread_number("T.get_warp_idx") // _size("T.get_warp_idx", "warp_size", warp_size, WARP)


get_warp_idx_sync = get_warp_idx


def get_warp_group_idx(warp_size: int | None = None, warps_per_group: int | None = None) -> Any:
    """The index of the thread's group of `warps_per_group` warps (4 if left out) of `warp_size` threads (32), an int32.

    Raises TileError for sizes that are no numbers, and outside of T.Kernel.

    Example:
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            Y[tx] = T.get_warp_group_idx()
        # Y = arange(256) // 128
    """
    what = "T.get_warp_group_idx"
    size = _size(what, "warp_size", warp_size, WARP) * _size(what, "warps_per_group", warps_per_group, 4)
    return thread_number(what) // size


def shuffle_elect(thread_extent: int) -> Any:
    """Whether the thread is the first one of its group of `thread_extent` threads (0: of the block), a bool scalar.

    Raises TileError for an extent that is no number, and outside of T.Kernel.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.shuffle_elect(16)
        # Y = arange(32) % 16 == 0
    """
    what = "T.shuffle_elect"
    extent = plain(thread_extent)
    if isinstance(extent, int) and not isinstance(extent, bool) and extent == 0:
        return compare("eq", thread_number(what), 0)
    return compare("eq", thread_number(what) % _size(what, "thread_extent", extent, 0), 0)


# Exchange in a warp


def lanes(what: str) -> int:
    """The number of threads in each warp of the block."""
    count = math.prod(threads_of(what).extents)
    if count > WARP and count % WARP:
        raise TileError(
            f"{what}: T.Kernel has {count} threads, so that the last warp has {count % WARP} and the others 32",
            notes=["make the number of threads a multiple of 32"],
        )
    return min(WARP, count)


def exchanged(what: str, value: Any) -> Any:
    if not isinstance(value, Expr) and not is_number(value):
        raise TileError(f"{what} needs a value, not {describe(value)}")
    return Scalar(as_value(value))


def members_of(what: str, mask: Any, size: int) -> Any:
    """A mask of the threads that take part, a uint32; None where it has the bits of all `size` threads of the warp."""
    mask, everyone = plain(mask), (1 << size) - 1
    if is_number(mask) and type(mask) is int:
        if not -(1 << 31) <= mask < 1 << 32:
            raise TileError(f"{what}: mask {mask} has more than 32 bits")
        return None if mask & everyone == everyone else cast(mask & everyone, "uint32")
    if not isinstance(mask, Expr) or mask.dtype.is_float():
        raise TileError(f"{what}: the mask is {describe(mask)}; it is an integer with a bit for each thread of a warp")
    known = arith.constant_of(mask.value())
    return cast(mask, "uint32") if known is None else members_of(what, int(known), size)


def _shuffled(what: str, value: Any, kind: str, delta: Any, width: Any, mask: Any) -> Any:
    """The value of another thread of the warp. The own value where a shift leaves the thread's own `width` threads, and
    where the mask leaves the other one out."""
    size = lanes(what)
    members, own = members_of(what, mask, size), value
    if members is not None:
        taken = _shuffled(what, value, kind, delta, width, -1)
        lane = cast(_shuffled(what, thread_number(what) % size, kind, delta, width, -1), "uint32")
        bit = binary("and", binary("shr", members, lane), 1)
        return select(compare("ne", bit, 0), taken, exchanged(what, own))
    width = plain(width)
    if isinstance(width, bool) or not isinstance(width, int) or width not in (1, 2, 4, 8, 16, 32):
        raise TileError(f"{what}: width is {describe(width)}; it is 1, 2, 4, 8, 16 or 32")
    value = exchanged(what, value)
    if not isinstance(plain(delta), int) and not (isinstance(delta, Expr) and not delta.dtype.is_float()):
        raise TileError(f"{what}: {describe(delta)} is no number of threads")
    delta = Scalar(as_value(delta, "int32"))
    lane = thread_number(what) % size if size > 1 else binary("mul", thread_number(what), 0)
    width = min(width, 1 << (size - 1).bit_length())
    first = lane - lane % width
    if kind == "index":
        return shuffled_from(value, first + binary("floormod", delta, width), size)
    if kind == "up":
        source: Any = lane - delta
        inside = compare("ge", source, first)
    elif kind == "down":
        source = lane + delta
        inside = compare("lt", source, first + width)
    else:
        source = binary("xor", lane, delta)
        inside = compare("lt", source, first + width)
        if width == size and (known := arith.constant_of(delta.value())) is not None and 0 <= known < width:
            return shuffled_from(value, source, size)
    return shuffled_from(value, select(inside, source, lane), size)


def shuffled_from(value: Any, source: Any, group: int) -> Any:
    """A value as the thread `source` of the `group` threads around has it."""
    builder = context("a shuffle").builder
    return Scalar(builder.insert(thread.ShuffleOp(as_value(value), as_value(source, "int32"), group=group)).result)


def shfl_sync(value: Any, srcLane: Any, width: Any = WARP, mask: Any = 0xFFFFFFFF) -> Any:
    """The `value`, a scalar, of thread `srcLane` of the thread's `width` neighbours: a power of 2 up to a warp's 32.

    `mask`, an integer, says who takes part: the value of a thread whose bit is 0 is not read, and the own one taken.
    Raises TileError for other widths and masks, for blocks whose last warp is not full, and outside of T.Kernel.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.shfl_sync(tx, 5)
        # Y = full((32,), 5)
    """
    return _shuffled("T.shfl_sync", value, "index", srcLane, width, mask)


def shfl_xor(value: Any, delta: Any, width: Any = WARP, mask: Any = 0xFFFFFFFF) -> Any:
    """The `value`, a scalar, of the thread whose place in the warp is the own one xor `delta`.

    A thread keeps its own value where that one lies behind its `width` neighbours. `width`, `mask` and errors are
    T.shfl_sync's: TileError is raised as there.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.shfl_xor(tx, 1)
        # Y = arange(32) ^ 1
    """
    return _shuffled("T.shfl_xor", value, "xor", delta, width, mask)


def shfl_down(value: Any, delta: Any, width: Any = WARP, mask: Any = 0xFFFFFFFF) -> Any:
    """The `value`, a scalar, of the thread that is `delta` places ahead among `width` neighbours; else the own value.

    `width`, `mask` and errors are T.shfl_sync's: TileError is raised as there.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.shfl_down(tx, 1)
        # Y = (arange(32) + 1).clamp(max=31)
    """
    return _shuffled("T.shfl_down", value, "down", delta, width, mask)


def shfl_up(value: Any, delta: Any, width: Any = WARP, mask: Any = 0xFFFFFFFF) -> Any:
    """The `value`, a scalar, of the thread that is `delta` places back among `width` neighbours; else the own value.

    `width`, `mask` and errors are T.shfl_sync's: TileError is raised as there.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.shfl_up(tx, 1)
        # Y = (arange(32) - 1).clamp(min=0)
    """
    return _shuffled("T.shfl_up", value, "up", delta, width, mask)


def tvm_warp_shuffle(mask: Any, value: Any, warp_id: Any, width: Any = WARP, warp_size: Any = WARP) -> Any:
    """T.shfl_sync of `value`, a scalar, and thread `warp_id`: other names and order. Raises TileError as it does.

    `mask` is as there; `warp_size` has no effect.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.tvm_warp_shuffle(-1, tx, 5)
        # Y = full((32,), 5)
    """
    return _shuffled("T.tvm_warp_shuffle", value, "index", warp_id, width, mask)


def tvm_warp_shuffle_up(mask: Any, value: Any, offset: Any, width: Any = WARP, warp_size: Any = WARP) -> Any:
    """T.shfl_up of `value`, a scalar, by `offset`: other names and order. Raises TileError as it does.

    `mask` is as there; `warp_size` has no effect.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.tvm_warp_shuffle_up(-1, tx, 1)
        # Y = (arange(32) - 1).clamp(min=0)
    """
    return _shuffled("T.tvm_warp_shuffle_up", value, "up", offset, width, mask)


def tvm_warp_shuffle_down(mask: Any, value: Any, offset: Any, width: Any = WARP, warp_size: Any = WARP) -> Any:
    """T.shfl_down of `value`, a scalar, by `offset`: other names and order. Raises TileError as it does.

    `mask` is as there; `warp_size` has no effect.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.tvm_warp_shuffle_down(-1, tx, 1)
        # Y = (arange(32) + 1).clamp(max=31)
    """
    return _shuffled("T.tvm_warp_shuffle_down", value, "down", offset, width, mask)


def reduced(what: str, value: Any, kind: str, group: int) -> Any:
    value = exchanged(what, value)
    permitted(what, f"reduce.{kind}", value.dtype.name)
    builder = context(what).builder
    return Scalar(builder.insert(thread.ReduceOp(as_value(value), kind=kind, group=group)).result)


_OF_LANES = {"sum": 496, "max": 31, "min": 0, "and": 0, "or": 31}  # of 0 to 31, for examples


def _warp_reduction(name: str, kind: str, types: str) -> Any:
    def function(value: Any) -> Any:
        return reduced(f"T.{name}", value, kind, lanes(f"T.{name}"))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {kind} of a warp's `value`s, a scalar of {types}; all its threads get it.

    Raises TileError for other types, for blocks whose last warp is not full, and outside of T.Kernel.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.{name}(tx)
        # Y = full((32,), {_OF_LANES[kind]})
    """
    return function


warp_reduce_sum, warp_reduce_max, warp_reduce_min = (
    _warp_reduction(f"warp_reduce_{kind}", kind, "any element type") for kind in ("sum", "max", "min")
)
warp_reduce_bitand, warp_reduce_bitor = (
    _warp_reduction(f"warp_reduce_bit{kind}", kind, "an integer type") for kind in ("and", "or")
)


# Reduction over the whole block, or along some of its axes


@dataclass(frozen=True)
class ThreadReducer:
    """What T.comm_reducer makes: how the values of threads are combined."""

    kind: str


@dataclass(frozen=True)
class AttrFrame(Frame):
    """`with T.attr(node, key, value):`; the node is a ThreadReducer, or means nothing."""

    opens = "T.attr opens a block"
    node: Any


def comm_reducer(fcombine: Any, identity: Any = None, name: str = "reduce") -> ThreadReducer:
    """How T.tvm_thread_allreduce combines: `fcombine` of two scalars is their sum, product, max or min.

    `identity` and `name` have no effect. Raises TileError for other functions.

    Example:
        tx = T.get_thread_binding()
        total = T.alloc_var("int32")
        with T.attr(T.comm_reducer(lambda x, y: x + y, [0]), "reduce_scope", 0):
            T.tvm_thread_allreduce(1, tx, True, total, tx)
        Y[tx] = total
        # Y = full((32,), 496)
    """
    kinds = {8: "sum", 15: "prod", 5: "max", 3: "min"}
    made = plain(fcombine(3, 5)) if callable(fcombine) else None
    if not isinstance(made, int) or made not in kinds or plain(fcombine(5, 3)) != made:
        raise TileError("T.comm_reducer: the function is none of x + y, x * y, T.max(x, y) and T.min(x, y)")
    return ThreadReducer(kinds[made])


def attr(node: Any, attr_key: Any = None, value: Any = None) -> AttrFrame:
    """`with T.attr(T.comm_reducer(...), "reduce_scope", ...):` says how a T.tvm_thread_allreduce in it combines.

    `attr_key` (a string) and `value` (a number, say) have no effect. Raises TileError for another `node`.

    Example:
        tx = T.get_thread_binding()
        total = T.alloc_var("int32")
        with T.attr(T.comm_reducer(lambda x, y: x + y, [0]), "reduce_scope", 0):
            T.tvm_thread_allreduce(1, tx, True, total, tx)
        Y[tx] = total
        # Y = full((32,), 496)
    """
    if not isinstance(node, ThreadReducer):
        raise TileError(f"T.attr: {describe(node)} is no T.comm_reducer; other attributes have no Triton form")
    return AttrFrame(node)


def evaluate(value: Any) -> None:
    """Evaluate `value`, a scalar or None, for its effects alone, which happen where it stands. Never a TileError.

    Example:
        Y[0] = 1
        T.evaluate(0)
        # Y = [1]
    """


def tvm_thread_allreduce(*freduce_args: Any, dtype: Any = "handle") -> None:
    """Combine the values of threads, as the T.attr around says; each thread gets the result.

    `freduce_args` are the number of values (1), the value, a scalar, a condition (True), the element or variable that
    gets the result, and the thread's indices along those axes of the block over which values are combined. `dtype` has
    no effect. Raises TileError for other arguments, and outside of a T.attr with a T.comm_reducer.

    Example:
        tx = T.get_thread_binding()
        total = T.alloc_var("int32")
        with T.attr(T.comm_reducer(lambda x, y: x + y, [0]), "reduce_scope", 0):
            T.tvm_thread_allreduce(1, tx, True, total, tx)
        Y[tx] = total
        # Y = full((32,), 496)
    """
    what = "T.tvm_thread_allreduce"
    block = threads_of(what)
    if not isinstance(block.reducer, ThreadReducer):
        raise TileError(f"{what} stands in a block `with T.attr(T.comm_reducer(...), 'reduce_scope', ...):`")
    if len(freduce_args) < 5 or not isinstance(freduce_args[3], (Reference, Var)):
        raise TileError(f"{what} takes 1, a value, True, the place for the result, and indices of the thread")
    size, value, condition, out, *indices = freduce_args
    known = [arith.constant_of(as_value(each)) for each in (size, condition)]
    if known[0] != 1 or not known[1]:
        raise TileError(f"{what}: only one value of all threads can be reduced; the others would be conditions")
    bindings = [block.index(axis) for axis in range(len(block.extents))]
    axes = []
    for index in indices:
        if not isinstance(index, Expr) and plain(index) == 0:
            continue  # along an axis of one thread
        if not isinstance(index, Scalar) or index.value() not in bindings:
            raise TileError(f"{what}: {describe(index)} is no index of the thread (T.get_thread_binding)")
        axes.append(bindings.index(index.value()))
    shape = block.extents[::-1]
    values = alloc_fragment(shape, out.dtype if isinstance(out, Var) else out.buffer.dtype)
    place: tuple[Any, ...] = tuple(Scalar(each) for each in reversed(bindings))
    values[place].store(value)
    for axis in axes:
        at = len(shape) - 1 - axis
        shape = (*shape[:at], 1, *shape[at + 1 :])
        combined = alloc_fragment(shape, values.dtype)
        reduce(values, combined, block.reducer.kind, at)
        values, place = combined, (*place[:at], 0, *place[at + 1 :])
    out.store(values[place])
