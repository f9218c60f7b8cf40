"""Stream-K: as many programs as run concurrently share the iterations of all blocks evenly. Part of split-k.

The scheme, which computes whole blocks beside shared ones, and its name are from Osama, Merrill, Cecka, Garland and
Owens, "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.index_arithmetic import IndexArithmetic
from tiledsl.passes.map_grid import STREAMS, fold_grid, swizzle_of
from tiledsl.passes.split_k.partial_sums import (
    NotSplit,
    add_partials,
    allocate_partials,
    clone_for_sums,
    erase_after,
    load_partial,
    ops_after,
    store_partial,
)

_LIMIT = 1 << 31


@dataclass(frozen=True)
class Shares:
    """Which iterations each program computes.

    The first `shared` blocks have `steps` = shared * trips iterations in a row, of which program p computes those from
    p * steps // programs to (p + 1) * steps // programs. After them, it computes `whole` blocks more, on its own.
    """

    programs: int
    trips: int  # iterations of a block
    shared: int
    whole: int

    @staticmethod
    def of(blocks: int, trips: int, programs: int) -> Shares:
        """Each program shares one to two blocks, or less, where there are not as many. Raises NotSplit."""
        programs = min(programs, blocks * trips)
        if programs < 2:
            raise NotSplit("it has less than two iterations" if blocks * trips < 2 else "one program would compute all")
        whole = max(blocks // programs - 1, 0)
        shares = Shares(programs, trips, blocks - whole * programs, whole)
        if max(blocks * trips, (shares.steps + 1) * programs) >= _LIMIT:
            raise NotSplit(f"{programs} programs and {blocks} blocks of {trips} iterations are too many")
        if not any(shares.is_divided(block) for block in range(shares.shared)):
            raise NotSplit(f"{programs} programs share its {blocks} blocks evenly as they are")
        return shares

    @property
    def steps(self) -> int:
        return self.shared * self.trips

    @property
    def has_undivided(self) -> bool:
        """Whether one of the shared blocks falls to one program all the same."""
        return not all(self.is_divided(block) for block in range(self.shared))

    def is_divided(self, block: int) -> bool:
        return self.program(block * self.trips) < self.program((block + 1) * self.trips - 1)

    def program(self, step: int) -> int:
        """The program p of an iteration, the greatest with p * steps // programs <= step."""
        return ((step + 1) * self.programs - 1) // self.steps


def stream(kernel: tile.KernelOp, loop: scf.ForOp, blocks: int, trips: int, programs: int) -> None:
    """Have `programs` programs share the `trips` iterations of a kernel's loop, all `blocks` in a row.

    Before:  tile.kernel [%gx, %gy] (%bx, %by) { %sum = scf.for %zero, %trips, ... ; epilogue of %sum }
    After:   %parts = tile.alloc : buffer<33792*256*float32, global>
             tile.kernel [%programs] (%program) {
               scf.for %first_block, %end_block, %one (%block) {
                 %sum = scf.for %first, %end, ...
                 scf.if %whole { epilogue of %sum } { tile.store %sum, %parts[...] }
               }
             }
             tile.kernel [%blocks] (%block) {
               %first = the program that begins the block; %last = the one that ends it
               scf.if %first < %last {
                 %begun = tile.load %parts[...]
                 %sum = scf.for %first + 1, %last + 1, ... [%begun] { tile.load %parts[...] ... }; epilogue of %sum
               } {}
             }

    Blocks come in the order of T.use_swizzle. A program leaves two parts at most: one of a block that another program
    begins (tile %program of the workspace), and one of a block that another one ends (tile %programs + %program).
    Raises NotSplit, with nothing changed.
    """
    shares = Shares.of(blocks, trips, programs)
    if len(kernel.grid) > 1:
        fold_grid(kernel, swizzle_of(kernel), fold_z=False)
    kernel.set_option("swizzle", None)
    kernel.set_option(STREAMS, shares.programs)
    sums = loop.result
    partials = allocate_partials(kernel, sums, 2 * shares.programs)
    mapping: dict[Value, Value] = {}
    second = clone_for_sums(kernel, mapping)
    copy = mapping[sums].op
    assert isinstance(copy, scf.ForOp)
    _add_shared(second, copy, partials, shares)
    _walk_share(kernel, loop, partials, shares)


def _walk_share(kernel: tile.KernelOp, loop: scf.ForOp, partials: Value, shares: Shares) -> None:
    """Make each program compute its iterations, and store what it has of blocks that it does not compute alone."""
    body = _take(list(kernel.body))
    kernel.set_field("grid", [Builder.at(kernel).constant(shares.programs, INT32)])
    (block,) = kernel.body.args
    program = Value(INT32, kernel.body, "program")
    kernel.body.set_args([program])
    # Before the terminator, if there is one.
    start = _Steps(Builder(kernel.body, kernel.body.first, kernel.loc), shares)
    first_step, end_step = start.first(program, 0, "first_step"), start.first(program, 1, "end_step")
    first_block = start.apply(arith.TruncDivOp, first_step, start.constant(shares.trips), "first_block")
    last_step = start.apply(arith.AddOp, end_step, start.constant(shares.trips - 1))
    end_block = start.apply(arith.TruncDivOp, last_step, start.constant(shares.trips), "end_block")
    end_turn = start.apply(arith.AddOp, end_block, start.constant(shares.whole))
    turn = body.add_arg(INT32, "turn" if shares.whole else block.name or "block")
    start.at.insert(scf.ForOp(first_block, end_turn, start.constant(1), [], regions=[body]))

    inside = _Steps(Builder(body, body.first, kernel.loc), shares)
    here, streamed = turn, None
    if shares.whole:
        streamed = inside.compare(turn, "lt", end_block)
        later = inside.apply(arith.MulOp, inside.apply(arith.SubOp, turn, end_block), inside.constant(shares.programs))
        later = inside.apply(arith.AddOp, inside.apply(arith.AddOp, later, program), inside.constant(shares.shared))
        here = inside.select(streamed, turn, later, block.name or "block")
    block.replace_with(here)
    origin = inside.apply(arith.MulOp, here, inside.constant(shares.trips))
    zero, trips = inside.constant(0), inside.constant(shares.trips)
    first = inside.apply(arith.MaxOp, inside.apply(arith.SubOp, first_step, origin), zero, "first")
    end = inside.apply(arith.MinOp, inside.apply(arith.SubOp, end_step, origin), trips, "end")
    if streamed is not None:
        end = inside.select(streamed, end, trips, "end")
    loop.set_field("lower", [first])
    loop.set_field("upper", [end])

    if shares.whole or shares.has_undivided:
        finish, keep = _take(ops_after(loop)), _take(())
        check = _Steps(Builder(body, body.last, loop.loc), shares)
        whole = check.compare(check.apply(arith.SubOp, end, first), "eq", trips)
        check.at.insert(scf.IfOp(whole, regions=[finish, keep]))
    else:
        erase_after(loop)
        keep = body
    after = _Steps(Builder(keep, keep.last, loop.loc), shares)
    begins = after.select(after.compare(first, "eq", zero), after.constant(shares.programs), zero, "begins")
    store_partial(after.at, loop.result, partials, after.apply(arith.AddOp, begins, program))


def _add_shared(kernel: tile.KernelOp, loop: scf.ForOp, partials: Value, shares: Shares) -> None:
    """Make the kernel finish the blocks that several programs share, from their parts."""
    kernel.set_field("grid", [Builder.at(kernel).constant(shares.shared, INT32)])
    at = _Steps(Builder(kernel.body, kernel.body.first, kernel.loc), shares)
    (block,) = kernel.body.args
    step = at.apply(arith.MulOp, block, at.constant(shares.trips))
    first = at.program(at.apply(arith.AddOp, step, at.constant(1)), "first")
    last = at.program(at.apply(arith.AddOp, step, at.constant(shares.trips)), "last")
    one = at.constant(1)
    begun = at.apply(arith.AddOp, first, at.constant(shares.programs))
    bounds = (at.apply(arith.AddOp, first, one), at.apply(arith.AddOp, last, one))
    if shares.has_undivided:
        divided = at.compare(first, "lt", last)
        assert divided.op is not None
        body = _take(ops_after(divided.op))
        end = Builder(kernel.body, divided.op.next, kernel.loc)
        end.insert(scf.IfOp(divided, regions=[body, _take(())]))
    sums = loop.result
    init = load_partial(Builder.at(loop), sums, partials, begun)
    add_partials(loop, [init], bounds, lambda inner, part: [load_partial(inner, sums, partials, part)])


class _Steps(IndexArithmetic):
    """Arithmetic of a program's share."""

    def __init__(self, at: Builder, shares: Shares) -> None:
        super().__init__(at)
        self.shares = shares

    def first(self, program: Value, later: int, name: str) -> Value:
        """The first iteration of `program`, or of one `later`."""
        number = self.apply(arith.AddOp, program, self.constant(later))
        product = self.apply(arith.MulOp, number, self.constant(self.shares.steps))
        return self.apply(arith.TruncDivOp, product, self.constant(self.shares.programs), name)

    def program(self, step_after: Value, name: str) -> Value:
        """The program of the iteration before `step_after`; see Shares.program."""
        product = self.apply(arith.MulOp, step_after, self.constant(self.shares.programs))
        last = self.apply(arith.SubOp, product, self.constant(1))
        return self.apply(arith.TruncDivOp, last, self.constant(self.shares.steps), name)

    def compare(self, lhs: Value, predicate: str, rhs: Value) -> Value:
        return self.at.insert(arith.CmpOp(lhs, rhs, predicate=predicate)).out

    def select(self, condition: Value, on_true: Value, on_false: Value, name: str) -> Value:
        return self.at.insert(arith.SelectOp(condition, on_true, on_false, names=[name])).out


def _take(ops: Sequence[Operation]) -> Region:
    """A region of these operations, taken from where they stand; it ends in scf.yield."""
    region = Region()
    for op in ops:
        if not op.is_terminator:
            op.detach()
            region.insert(op)
    return scf.yielding(region)
