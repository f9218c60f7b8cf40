"""merge-roles: kernels whose warps were given roles by hand become programs of one block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from tiledsl.analysis.block_access import root_buffer
from tiledsl.analysis.dependence import ancestors
from tiledsl.analysis.loops import indices_of
from tiledsl.dialects import scf, thread, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.types import BufferType
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.merge_roles.accesses import accesses_of
from tiledsl.passes.merge_roles.emit import Emitter
from tiledsl.passes.merge_roles.order import Item, Keys, Merger, region_of
from tiledsl.passes.merge_roles.parts import divide_tiles, multiplies_parts, takes_parts
from tiledsl.passes.merge_roles.roles import BARRIER_OPS, Role, Threads, find_roles, steps_of
from tiledsl.passes.merge_roles.shares import dissolve, fill_together
from tiledsl.passes.merge_roles.simulate import Before, Reads, Undefined, World
from tiledsl.passes.merge_roles.turns import take_last_turns
from tiledsl.passes.merge_roles.versions import drop_versions, versions
from tiledsl.passes.unroll_loops import unroll

_MOST_EDGES = 500
_ROOM = 232448  # bytes of shared memory where no target says it: Hopper's


@dataclass(frozen=True)
class MergeRoles(Pass):
    """Put what the roles of a kernel do in one order that their barriers imply, and drop barriers and roles.

    A role is what whole warps do under a condition on the thread's index. Roles run at once and wait for each other by
    barriers (thread.arrive, thread.wait). Loops of one iteration space become one loop. In its body each role goes on
    until it waits for what another one does later in the same turn; then that one is first. The order is run with
    numbers, for several trip counts where these are not known, with vector clocks: each wait must let through where it
    stands, whatever the roles' speeds, and accesses to one tile of which one writes must be ordered by the barriers.

    Versions of a tile that only take turns become one tile, and the loop a pipelined one of as many stages. What
    threads of a role copy each for themselves becomes a T.Parallel over the tile (shares.py), columns or rows of a tile
    that are always taken in the same parts tiles of their own (parts.py), and the last turn that a role does behind its
    loop one of the loop's (turns.py).

    Before:  scf.for ... {                                     After:  scf.for ... {num_stages = 2} {
               scf.if %is_producer {                                     tile.copy %A[%i], %s
                 thread.wait %empty, %c0, %odd                         tile.gemm %s, ...
                 thread.async [%full], [%c0] { tile.copy %A[%i], %s }    }
                 thread.arrive %full, %c0
               } { }
               scf.if %is_consumer {
                 thread.wait %full, %c0, %even
                 tile.gemm %s, ...
                 thread.arrive %empty, %c0
               } { }
             }
    Errors:  a wait that is not implied, roles that wait for each other, a wait that is missing between two accesses.
    """

    name = "merge-roles"

    def allowances(self, program: Program) -> frozenset[str]:
        """Products of neighbouring parts along K become one, whose sums are of all of them."""
        kernels = [
            each for each in tile.kernels(program.root) if any(isinstance(op, BARRIER_OPS) for op in each.walk())
        ]
        products = [op for kernel in kernels for op in of_kinds(kernel.walk(), tile.GemmOp)]
        return frozenset({"reassociation"} if any(map(multiplies_parts, products)) else ())

    def run(self, program: Program) -> None:
        for kernel in tile.kernels(program.root):
            if any(isinstance(op, BARRIER_OPS) for op in kernel.walk()):
                _merge(kernel, program.target)


def _merge(kernel: tile.KernelOp, target: Any) -> None:
    region = region_of(kernel)
    if region is not kernel.body and len(region.args) > 1:
        raise TileError("threads along several axes, and barriers: give T.Kernel one number of threads", kernel.loc)
    _own_arrays(kernel, Threads(region, kernel.threads))
    while True:
        threads = Threads(region, kernel.threads)
        try:
            order = _order(kernel, find_roles(region, threads))
            break
        except TileError:
            if not _unroll(region, threads) and not take_last_turns(region, threads):
                raise
    for read, write in order.reads.late.items():
        kernel.add_remark(
            f"merge-roles: nothing orders the read at {read.op.loc} after the write at {write.op.loc}, which is "
            "the only one; it comes after it"
        )
    computing = sum(len(role.threads) for role in order.roles if _computes(role))
    room = target.max_shared_bytes if target is not None and target.kind == "cuda" else _ROOM
    Emitter(order.roles, order.keys, kernel, region, room).emit(order.items)
    kernel.set_attribute("threads", computing or kernel.threads)
    for loop in [op for op in of_kinds(kernel.walk(), scf.ForOp) if op.unroll == 1 and takes_parts(op)]:
        if (indices := indices_of(loop)) is not None:
            unroll(loop, indices, set())
    canonicalize(kernel, CANONICAL_PATTERNS)
    for op in of_kinds(kernel.nests(), tile.ParallelOp):
        if op.lockstep:
            fill_together(op)
            dissolve(op)
    drop_versions(order.versions)
    divide_tiles(kernel)
    for alloc in of_kinds(kernel.body, tile.AllocOp):
        if not alloc.is_used:
            alloc.erase()


@dataclass
class _Order:
    """An order of what roles do, and which tiles' versions take turns in it."""

    roles: Sequence[Role]
    items: list[Item]
    versions: dict[Value, bool]
    reads: Reads
    keys: Keys


def _order(kernel: tile.KernelOp, roles: Sequence[Role]) -> _Order:
    """The order in which most versions take turns, of those that let each role in turn go first."""
    changed = {buffer for op in kernel.walk() for buffer, _, writes in accesses_of(op) if writes}
    written = {value for op in kernel.walk() for value in op.operands if root_buffer(value) in changed}
    best: _Order | None = None
    failure: TileError | None = None
    for priority in _priorities(roles):
        keys, reads = Keys(written), Reads()
        try:
            items, world = _ordered(roles, kernel, keys, reads, priority)
        except TileError as error:
            failure = failure or error
            continue
        found = versions(kernel, world.events)
        if best is None or sum(found.values()) > sum(best.versions.values()):
            best = _Order(roles, items, found, reads, keys)
        if all(found.values()):
            break  # no other order can be better
    if best is None:
        assert failure is not None, "there is an order that was tried"
        raise failure
    return best


def _own_arrays(kernel: tile.KernelOp, threads: Threads) -> None:
    """A fragment of which each thread reads and writes elements outside of every T.Parallel is an array of its own."""
    for op in of_kinds(kernel.walk(), tile.AllocOp):
        type, users = tile.buffer_type(op.out), list(op.out.uses)
        if type.scope != "fragment" or not all(isinstance(user, (tile.LoadOp, tile.StoreOp)) for user in users):
            continue
        around = [each for user in users for each in ancestors(user) if isinstance(each, tile.ParallelOp)]
        stored = [value for user in users if isinstance(user, tile.StoreOp) for value in user.operands]
        if all(each.lockstep for each in around) and any(map(threads.depends, stored)):
            op.out.set_type(BufferType(type.shape, type.dtype, "local"))


def _unroll(region: Region, threads: Threads) -> bool:
    """Copies of loops that are to be unrolled and in which roles part, for barriers with numbers. Whether there are."""
    done = False
    while True:
        loops = [
            (op, indices)
            for op in of_kinds(region.walk(), scf.ForOp)
            if op.unroll == 1 and threads.divides(op) and (indices := indices_of(op)) is not None
        ]
        if not loops:
            return done
        unroll(*loops[0], set())
        done = True


def _priorities(roles: Sequence[Role]) -> list[tuple[int, ...]]:
    """Which role goes on where several could: those that compute first, so that others do what these need, and when."""
    numbers = sorted(range(len(roles)), key=lambda number: not _computes(roles[number]))
    return list(permutations(numbers)) if len(numbers) <= 3 else [tuple(numbers)]


def _computes(role: Role) -> bool:
    kinds = (tile.GemmOp, tile.ReduceOp, tile.ScanOp, tile.SortOp, tile.ParallelOp, tile.FillOp)
    return any(
        isinstance(inner, kinds)
        for step in steps_of(role.program)
        if len(step.roles) == 1
        for inner in _not_started(step.op)
    )


def _not_started(op: Operation) -> Iterator[Operation]:
    """An operation and those in it, without copies that are started."""
    if not isinstance(op, thread.AsyncOp):
        yield op
        for region in op.regions:
            for inner in region:
                yield from _not_started(inner)


def _ordered(
    roles: Sequence[Role], kernel: tile.KernelOp, keys: Keys, reads: Reads, priority: Sequence[int]
) -> tuple[list[Item], World]:
    """An order that every run agrees with, and the first run."""
    merger = Merger(roles, keys, priority)
    for _ in range(_MOST_EDGES):
        items = merger.merge()
        try:
            first = World(roles, kernel, keys, reads, 6, 0)
            first.run(items)
            if not first.is_certain:
                for trips, seed in _RUNS if first.asks_trips else [(6, seed) for seed in (1, 2, 3)]:
                    World(roles, kernel, keys, reads, trips, seed).run(items)
            return items, first
        except Before as found:
            assert found.pair not in merger.edges, "the order has what was asked for"
            merger.edges.append(found.pair)
        except Undefined as found:
            reads.undefined.add(found.step)
    raise TileError("the roles of this kernel wait too often to be put in one order", kernel.loc, code="warp-roles")


# Trip counts of loops whose bounds are not known, and choices of other numbers.
_RUNS = (*((trips, seed) for trips in (0, 1, 2, 3, 4, 5, 7) for seed in (0, 1)), (34, 0), (3, 2), (6, 3))
