"""Code for one thread: votes of the threads of a warp or of a block, and barriers."""

from __future__ import annotations

import math
from typing import Any

from tiledsl.dialects import thread
from tiledsl.errors import TileError
from tiledsl.language.expression import as_bool, binary, cast, compare, context, select
from tiledsl.language.threads import exchanged, lanes, members_of, reduced, shuffled_from, thread_number, threads_of

__all__ = [
    "all_sync", "any_sync", "ballot", "ballot_sync", "match_all_sync", "match_any_sync", "sync_threads", "sync_warp",
    "syncthreads", "syncthreads_and", "syncthreads_count", "syncthreads_or", "tvm_storage_sync",
]  # fmt: skip


# Votes


def _vote(what: str, predicate: Any) -> Any:
    """1 where the predicate, an integer or a bool, is not 0."""
    predicate = exchanged(what, predicate)
    if predicate.dtype.is_float():
        raise TileError(f"{what}: the predicate is {predicate.dtype}; it is an integer or a bool")
    return cast(as_bool(predicate), "int32")


def any_sync(predicate: Any, mask: Any = 0xFFFFFFFF) -> Any:
    """1, an int32, if the `predicate`, an integer or bool scalar, of any thread of the warp is not 0; else 0.

    Threads whose bit of `mask`, an integer, is 0 have no vote. Raises TileError for floats, for blocks whose last warp
    is not full, and outside of T.Kernel.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.any_sync(tx == 5)
        # Y = ones(32, dtype=int32)
    """
    what = "T.any_sync"
    size = lanes(what)
    members = members_of(what, mask, size)
    if members is None:
        return reduced(what, _vote(what, predicate), "max", size)
    return cast(compare("ne", binary("and", _votes(what, predicate), members), 0), "int32")


def all_sync(predicate: Any, mask: Any = 0xFFFFFFFF) -> Any:
    """1, an int32, if the `predicate`s, integer or bool scalars, of all threads of the warp are not 0; else 0.

    `mask` and errors are T.any_sync's: TileError is raised as there.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.all_sync(tx == 5)
        # Y = zeros(32, dtype=int32)
    """
    what = "T.all_sync"
    size = lanes(what)
    members = members_of(what, mask, size)
    if members is None:
        return reduced(what, _vote(what, predicate), "min", size)
    members = binary("and", members, cast((1 << size) - 1, "uint32"))
    return cast(compare("eq", binary("and", _votes(what, predicate), members), members), "int32")


def _votes(what: str, predicate: Any) -> Any:
    """The bits of the whole warp's votes, a uint32."""
    size = lanes(what)
    bit = binary("shl", cast(_vote(what, predicate), "uint32"), cast(thread_number(what) % size, "uint32"))
    return reduced(what, bit, "sum", size)


def ballot_sync(predicate: Any, mask: Any = 0xFFFFFFFF) -> Any:
    """A uint64 whose bit i says whether the `predicate`, an integer or bool scalar, of the warp's thread i is not 0.

    `mask` and errors are T.any_sync's: TileError is raised as there.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.cast(T.ballot_sync(tx < 4), "int32")
        # Y = full((32,), 15)
    """
    what = "T.ballot"
    members = members_of(what, mask, lanes(what))
    votes = _votes(what, predicate)
    return cast(votes if members is None else binary("and", votes, members), "uint64")


def ballot(predicate: Any) -> Any:
    """T.ballot_sync of the whole warp: a uint64 with a bit for each `predicate`, a scalar. Raises TileError as that.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.cast(T.ballot(tx < 4), "int32")
        # Y = full((32,), 15)
    """
    return ballot_sync(predicate)


def match_any_sync(value: Any, mask: Any = 0xFFFFFFFF) -> Any:
    """A uint32 whose bit i says whether the `value`, an integer or bool scalar, of the warp's thread i is the own one.

    `mask` and errors are T.any_sync's: TileError is raised as there.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.cast(T.match_any_sync(tx // 16), "int32")
        # Y = [65535] * 16 + [-65536] * 16
    """
    return _peers("T.match_any_sync", value, mask)[0]


def match_all_sync(value: Any, mask: Any = 0xFFFFFFFF) -> Any:
    """The bits of the threads that take part, a uint32, if their `value`s, integers or bools, are all the same; else 0.

    `mask` and errors are T.any_sync's: TileError is raised as there.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.cast(T.match_all_sync(tx // 32, 15), "int32")
        # Y = full((32,), 15)
    """
    peers, everyone = _peers("T.match_all_sync", value, mask)
    return select(compare("eq", peers, everyone), everyone, cast(0, "uint32"))


def _peers(what: str, value: Any, mask: Any) -> tuple[Any, Any]:
    """The bits of the threads with the own value, and of all that take part."""
    size, value = lanes(what), exchanged(what, value)
    if value.dtype.is_float():
        raise TileError(
            f"{what}: the value is {value.dtype}; it is an integer or a bool",
            notes=["the bits of a float: T.reinterpret(value, 'int32')"],
        )
    members, peers = members_of(what, mask, size), cast(0, "uint32")
    thread_number(what)  # the body is now what each thread does
    for lane in range(size):
        is_same = compare("eq", shuffled_from(value, lane, size), value)
        peers = binary("or", peers, binary("shl", cast(is_same, "uint32"), cast(lane, "uint32")))
    everyone = cast((1 << size) - 1, "uint32")
    everyone = everyone if members is None else binary("and", members, everyone)
    return binary("and", peers, everyone), everyone


def _of_block(what: str, predicate: Any, kind: str) -> Any:
    count = math.prod(threads_of(what).extents)
    thread_number(what)  # the body is now what each thread does
    sync_threads()
    return reduced(what, _vote(what, predicate), kind, count)


def syncthreads_count(predicate: Any) -> Any:
    """A barrier that gives the number of the block's threads whose `predicate`, an integer or bool scalar, is not 0.

    The result is an int32. Raises TileError for floats, where not all threads of the block come there, and outside of
    T.Kernel.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.syncthreads_count(tx < 4)
        # Y = full((32,), 4)
    """
    return _of_block("T.syncthreads_count", predicate, "sum")


def syncthreads_and(predicate: Any) -> Any:
    """A barrier that gives 1 if the `predicate`s, integer or bool scalars, of all threads of the block are not 0.

    Else it gives 0, an int32. Raises TileError as T.syncthreads_count does.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.syncthreads_and(tx < 4)
        # Y = full((32,), 0)
    """
    return _of_block("T.syncthreads_and", predicate, "min")


def syncthreads_or(predicate: Any) -> Any:
    """A barrier that gives 1 if the `predicate`, an integer or bool scalar, of any thread of the block is not 0.

    Else it gives 0, an int32. Raises TileError as T.syncthreads_count does.

    Example:
        tx = T.get_thread_binding()
        Y[tx] = T.syncthreads_or(tx < 4)
        # Y = full((32,), 1)
    """
    return _of_block("T.syncthreads_or", predicate, "max")


# Barriers


def sync_threads(barrier_id: Any = None, arrive_count: Any = None) -> None:
    """A barrier for all threads of the block, which run in step anyway.

    With `barrier_id` and an `arrive_count` it is one for that many threads, which nothing has to wait for. Raises
    TileError where threads cannot come there because of a condition or of loops that differ from thread to thread, and
    outside of tile programs.

    Example:
        tx = T.get_thread_binding()
        s = T.alloc_shared((32,), "int32")
        s[tx] = tx
        T.sync_threads()
        Y[tx] = s[31 - tx]
        # Y = 31 - arange(32)
    """
    ctx = context("T.sync_threads")
    if arrive_count is None and ctx.kernel is not None:
        ctx.builder.insert(thread.BarrierOp())


syncthreads = sync_threads


def tvm_storage_sync(scope: str = "shared") -> None:
    """T.sync_threads, for the memory named by the string `scope`.

    Raises TileError for "global", as blocks of one launch cannot wait for each other, and where that does.

    Example:
        tx = T.get_thread_binding()
        s = T.alloc_shared((32,), "int32")
        s[tx] = tx
        T.tvm_storage_sync("shared")
        Y[tx] = s[31 - tx]
        # Y = 31 - arange(32)
    """
    if scope == "global":
        raise TileError(
            "T.tvm_storage_sync: blocks of one launch cannot wait for each other; write two T.Kernel blocks, which run "
            "in order"
        )
    sync_threads()


def sync_warp(mask: Any = None) -> None:
    """A barrier for the threads of a warp, which run in step: nothing has to be waited for. `mask` has no effect.

    Raises TileError outside of tile programs.

    Example:
        tx = T.get_thread_binding()
        s = T.alloc_shared((32,), "int32")
        s[tx] = tx
        T.sync_warp()
        Y[tx] = s[31 - tx]
        # Y = 31 - arange(32)
    """
    context("T.sync_warp")
