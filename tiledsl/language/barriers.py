"""Roles and barriers of programs that divide the warps of a block by hand: some load, others compute.

A branch on the index of the thread that whole warps take, and `with T.ws(i)`, is a role; roles run at once, and wait
for each other by barriers. `merge-roles` gives such a program its meaning: one order of all that the roles do which the
barriers imply. A program of which that cannot be shown is refused.

A barrier has phases: one is complete once its number of arrivals have come. A wait names a phase by its parity, 0 or 1,
and lets through once the phase of that parity is complete; that of parity 1 is so on a new barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.dialects import thread
from tiledsl.errors import TileError
from tiledsl.ir.core import Region, Value
from tiledsl.ir.types import BufferType
from tiledsl.language.buffer import Buffer, Reference
from tiledsl.language.expression import Expr, as_value, context, describe, plain, select
from tiledsl.language.hints import hint
from tiledsl.language.operations import copy
from tiledsl.language.regions import element
from tiledsl.language.thread_block import Frame

__all__ = [
    "access_ptr", "alloc_barrier", "barrier_arrive", "barrier_wait", "cp_async_barrier_noinc", "dec_max_nreg",
    "inc_max_nreg", "mbarrier_arrive", "mbarrier_arrive_expect_tx", "mbarrier_expect_tx", "mbarrier_wait_parity",
    "ptx_cp_async", "set_max_nreg", "tma_copy", "tma_store_arrive", "tma_store_wait", "ws",
]  # fmt: skip

GROUP = 128  # threads of a warp group


@dataclass(frozen=True)
class RoleFrame(Frame):
    """`with T.ws(0):`"""

    opens = "T.ws names warp groups"
    groups: tuple[int, ...]


def ws(*warp_group_idx: Any) -> RoleFrame:
    """`with T.ws(0):`, `with T.ws(1, 2):`: what these warp groups of 128 threads do, which are numbers from 0.

    Other warp groups go on at once. Raises TileError for what is no number, and for groups that T.Kernel has not.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((4,), "float32")
            full = T.alloc_barrier(128)
            with T.ws(1):
                T.fill(tile, 7)
                T.barrier_arrive(full)
            with T.ws(0):
                T.barrier_wait(full, 0)
                T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    groups = [plain(each) for each in warp_group_idx]
    for each in groups:
        if isinstance(each, bool) or not isinstance(each, int) or each < 0:
            raise TileError(f"T.ws: {describe(each)} is no number of a warp group; they are 0, 1, ...")
    if not groups:
        raise TileError("T.ws names no warp group; they are 0, 1, ...")
    return RoleFrame(tuple(groups))


# Barriers


def alloc_barrier(arrive_count: Any) -> Buffer:
    """Barriers in shared memory: one for each number of `arrive_count`, a sequence, or one for a single number.

    The number is that of the arrivals which complete a phase: each thread that comes to T.barrier_arrive is one. Raises
    TileError for numbers below 1, and outside of a kernel.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((4,), "float32")
            full = T.alloc_barrier([128] * 2)
            with T.ws(1):
                T.fill(tile, 7)
                T.barrier_arrive(full[1])
            with T.ws(0):
                T.barrier_wait(full[1], 0)
                T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    what = "T.alloc_barrier"
    arrive_count = plain(arrive_count)
    counts = [plain(each) for each in (arrive_count if isinstance(arrive_count, Sequence) else (arrive_count,))]
    for each in counts:
        if isinstance(each, bool) or not isinstance(each, int) or each < 1:
            raise TileError(f"{what}: {describe(each)} arrivals; a phase ends with a number of them, at least 1")
    if not counts:
        raise TileError(f"{what}: there are no barriers in an empty sequence")
    ctx = context(what)
    made = Buffer(ctx.alloc(BufferType((len(counts),), "uint64", "shared"), what))
    ctx.builder.insert(thread.InitBarriersOp(made.value, counts=tuple(counts)))
    return made


def _barrier(what: str, x: Any) -> tuple[Value, Value]:
    """The barriers that an argument names one of, and the number of that one."""
    if isinstance(x, Reference) and not x.is_region and _is_barriers(x.buffer):
        return x.buffer.value, x.indices()[0]
    if isinstance(x, Buffer) and _is_barriers(x):
        if x.shape != (1,):
            raise TileError(f"{what}: {x.name} has {x.shape[0]} barriers; say which one: {x.name}[0]")
        return x.value, as_value(0, "int32")
    raise TileError(f"{what} needs a barrier of T.alloc_barrier, not {describe(x)}")


def _is_barriers(buffer: Buffer) -> bool:
    return any(isinstance(user, thread.InitBarriersOp) for user in buffer.value.uses)


def mbarrier_arrive(mbarrier: Any, cta_id: Any = None) -> None:
    """Each thread that comes here arrives at a barrier; what it has done before is seen by who waits for the phase.

    `mbarrier` is one of T.alloc_barrier's, such as `full` or `full[k % 2]`. Raises TileError for other values, and for
    `cta_id`: there are no clusters.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((4,), "float32")
            full = T.alloc_barrier(128)
            with T.ws(1):
                T.fill(tile, 7)
                T.mbarrier_arrive(full)
            with T.ws(0):
                T.mbarrier_wait_parity(full, 0)
                T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    if cta_id is not None:
        raise TileError("T.mbarrier_arrive: cta_id names a block of a cluster, and there are no clusters")
    context("T.mbarrier_arrive").builder.insert(thread.ArriveOp(*_barrier("T.mbarrier_arrive", mbarrier)))


def barrier_arrive(mbarrier: Any) -> None:
    """T.mbarrier_arrive by another name, of the barrier `mbarrier`. Raises TileError as it does.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((4,), "float32")
            full = T.alloc_barrier(128)
            with T.ws(1):
                T.fill(tile, 7)
                T.barrier_arrive(full)
            with T.ws(0):
                T.barrier_wait(full, 0)
                T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    mbarrier_arrive(mbarrier)


def mbarrier_arrive_expect_tx(mbarrier: Any, tx: Any) -> None:
    """T.mbarrier_arrive of `mbarrier`; the bytes `tx` are those of copies, which are known.

    Raises TileError as that does.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((4,), "float32")
            full = T.alloc_barrier(128)
            with T.ws(1):
                T.fill(tile, 7)
                T.mbarrier_arrive_expect_tx(full, 16)
            with T.ws(0):
                T.barrier_wait(full, 0)
                T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    mbarrier_arrive(mbarrier)


def mbarrier_wait_parity(mbarrier: Any, parity: Any) -> None:
    """Go on once the phase of this parity, 0 or 1, of a barrier is complete.

    `mbarrier` is one of T.alloc_barrier's, `parity` an integer scalar. Raises TileError for other values. A wait that
    what the roles do does not imply is refused by `merge-roles`.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((4,), "float32")
            full = T.alloc_barrier(128)
            with T.ws(1):
                T.fill(tile, 7)
                T.mbarrier_arrive(full)
            with T.ws(0):
                T.mbarrier_wait_parity(full, 0)
                T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    what = "T.mbarrier_wait_parity"
    parity = plain(parity)
    if isinstance(parity, float) or isinstance(parity, Expr) and parity.dtype.is_float():
        raise TileError(f"{what}: the parity is {describe(parity)}; it is 0 or 1")
    context(what).builder.insert(thread.WaitOp(*_barrier(what, mbarrier), as_value(parity, "int32")))


def barrier_wait(mbarrier: Any, parity: Any = 0) -> None:
    """T.mbarrier_wait_parity by another name, of `mbarrier` and `parity`. Raises TileError as it does.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((4,), "float32")
            full = T.alloc_barrier(128)
            with T.ws(1):
                T.fill(tile, 7)
                T.barrier_arrive(full)
            with T.ws(0):
                T.barrier_wait(full, 0)
                T.copy(tile, Y)
        # Y = [7, 7, 7, 7]
    """
    mbarrier_wait_parity(mbarrier, parity)


# Copies that others wait for


def tma_copy(src: Any, dst: Any, *, barrier: Any = None, eviction_policy: str | None = None, **hints: Any) -> None:
    """T.copy of `src` to `dst` that is over when a phase of `barrier` is; without one, of a tile to memory, at once.

    Shapes, types and eviction_policy are T.copy's; the phase is the one under way, which threads complete by arriving.
    leader_scope_threads and annotations have no effect. Raises TileError as T.copy does, for a load without a barrier,
    and for a cluster_mask.

    Example:
        # A = ones(8, 8)
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((8, 8), "float32")
            full = T.alloc_barrier(128)
            with T.ws(1):
                T.tma_copy(A, tile, barrier=full)
                T.barrier_arrive(full)
            with T.ws(0):
                T.barrier_wait(full, 0)
                T.copy(tile, B)
        # B = ones(8, 8)
    """
    if hints.pop("cluster_mask", None) is not None:
        raise TileError("T.tma_copy: cluster_mask names blocks of a cluster, and there are no clusters")
    if hints.keys() - {"leader_scope_threads", "annotations"}:
        raise TileError(f"T.tma_copy has no option {sorted(hints)[0]!r}")
    if barrier is None:
        target = dst.buffer if isinstance(dst, Reference) else dst
        if isinstance(target, Buffer) and target.scope() != "global":
            raise TileError(
                f"T.tma_copy: nobody could wait for a copy to {target.name} that has no barrier",
                notes=["give it one, barrier=..., or write T.copy"],
            )
        copy(src, dst, eviction_policy=eviction_policy)
        return
    _asynchronous(lambda: copy(src, dst, eviction_policy=eviction_policy), *_barrier("T.tma_copy", barrier))


def _asynchronous(emit: Any, *barrier: Value) -> None:
    ctx, region = context("an asynchronous copy"), Region()
    with ctx.inside(region):
        emit()
    ctx.builder.insert(thread.AsyncOp(barrier[:1], barrier[1:], regions=[region]))


class Pointer:
    """What T.access_ptr gives: `count` elements from a place on, along the last dimension."""

    __slots__ = ("count", "place")

    def __init__(self, place: Reference, count: int) -> None:
        self.place, self.count = place, count

    @property
    def described(self) -> str:
        return f"a pointer to {self.place!r}"


def access_ptr(base: Any, access_type: Any = "r", *extents: Any, **options: Any) -> Pointer:
    """The address of an element of a buffer, `base`, from which on T.ptx_cp_async copies so many elements.

    `access_type` has no effect. Raises TileError for what is no element, and for options.

    Example:
        # A = arange(32.0)
        tx = T.get_thread_binding()
        tile = T.alloc_shared((32,), "float32")
        full = T.alloc_barrier(32)
        T.ptx_cp_async(T.access_ptr(tile[tx], "w", 1), T.access_ptr(A[tx], "r", 1), 1)
        T.cp_async_barrier_noinc(full)
        T.barrier_wait(full, 0)
        T.copy(tile, B)
        # B = arange(32.0)
    """
    counts = [plain(each) for each in extents]
    if not isinstance(base, Reference) or base.is_region or options or len(counts) > 1:
        raise TileError(
            "T.access_ptr: addresses have no Triton form but as arguments of T.ptx_cp_async: "
            "T.access_ptr(A[i, j], 'r', count)"
        )
    return Pointer(base, counts[0] if counts else 1)


def ptx_cp_async(dst: Any, src: Any, num_elems: Any, predicate: Any = None) -> None:
    """The thread copies `num_elems` elements, a number, from `src` to `dst`, two of T.access_ptr, along the last axes.

    Where `predicate`, a bool scalar, does not hold, they become 0. T.cp_async_barrier_noinc says when they are there.
    Raises TileError for other arguments.

    Example:
        # A = arange(32.0)
        tx = T.get_thread_binding()
        tile = T.alloc_shared((32,), "float32")
        full = T.alloc_barrier(32)
        T.ptx_cp_async(T.access_ptr(tile[tx], "w", 1), T.access_ptr(A[tx], "r", 1), 1)
        T.cp_async_barrier_noinc(full)
        T.barrier_wait(full, 0)
        T.copy(tile, B)
        # B = arange(32.0)
    """
    what, count = "T.ptx_cp_async", plain(num_elems)
    for each in (dst, src):
        if not isinstance(each, Pointer):
            raise TileError(f"{what} copies between two T.access_ptr(A[i, j], ...), not {describe(each)}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise TileError(f"{what}: {describe(count)} is no number of elements")
    to, of = (tuple(each.place.offsets) for each in (dst, src))

    def body(index: list[Any]) -> None:
        value: Any = element(src.place.buffer[of], (len(of) - 1,), index)
        if predicate is not None:
            value = select(predicate, value, 0)
        element(dst.place.buffer[to], (len(to) - 1,), index).store(value)

    _asynchronous(lambda: context(what).parallel((count,), body))


def cp_async_barrier_noinc(barrier: Any) -> None:
    """Each thread arrives at `barrier`, one of T.alloc_barrier's, when its T.ptx_cp_async so far are over.

    Raises TileError for other values.

    Example:
        # A = arange(32.0)
        tx = T.get_thread_binding()
        tile = T.alloc_shared((32,), "float32")
        full = T.alloc_barrier(32)
        T.ptx_cp_async(T.access_ptr(tile[tx], "w", 1), T.access_ptr(A[tx], "r", 1), 1)
        T.cp_async_barrier_noinc(full)
        T.barrier_wait(full, 0)
        T.copy(tile, B)
        # B = arange(32.0)
    """
    what = "T.cp_async_barrier_noinc"
    context(what).builder.insert(thread.ArriveOp(*_barrier(what, barrier), copies=True))


# Registers are shared out anew, and stores are over when they return.
set_max_nreg, inc_max_nreg, dec_max_nreg, mbarrier_expect_tx, tma_store_arrive, tma_store_wait = map(
    hint, "set_max_nreg inc_max_nreg dec_max_nreg mbarrier_expect_tx tma_store_arrive tma_store_wait".split()
)
