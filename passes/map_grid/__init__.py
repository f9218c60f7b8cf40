"""The order of blocks: swizzled, folded and persistent grids."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dialects import arith, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32
from tiledsl.passes.index_arithmetic import IndexArithmetic
from tiledsl.passes.map_grid.persistent import gains_by_persistence, make_persistent, may_flatten, may_persist
from tiledsl.passes.unused_options import changed, remark_unused

MAX_YZ = 65535  # CUDA's limit for the second and third grid dimension
STREAMS = "streams"  # the hint of a kernel whose programs share its blocks already (stream_k.py)


@dataclass(frozen=True)
class MapGrid(Pass):
    """Decide in which order blocks run, and how many programs share them.

    Before:  tile.kernel [%gx, %gy] {options = (("swizzle", (4, "row")),)} (%bx, %by)
    After:   tile.kernel [%blocks] (%block)  with  %bx, %by computed from %block: 4 rows at a time, down before across

    A swizzle walks the grid in panels of rows or columns, so that concurrent blocks share operands. `group_m` > 0
    forces panels of that many rows on every grid of two or more dimensions. A y or z extent known to exceed 65535 folds
    the grid into one dimension. `persistent` > 0 launches that many programs on each multiprocessor, which share all
    blocks (persistent.py); with `flatten`, the pipeline of the loop inside runs on from one block to the next, if two
    blocks fit in shared memory. 0 never does this. -1 launches one program on each multiprocessor, for matrix products
    with block loads of which no more would fit, on grids with more blocks than that. A kernel whose blocks may wait for
    each other is left alone, with a remark, and so are programs that already share their blocks (split-k.streams).
    Needs:   select-access.
    """

    name = "map-grid"
    group_m: int = 0
    persistent: int = -1
    flatten: bool = True

    def run(self, program: Program) -> None:
        if self.persistent < -1:
            raise TileError(f"map-grid.persistent is {self.persistent}; it must be a number of programs, 0, or -1")
        if self.group_m < 0:
            raise TileError(
                f"map-grid.group_m is {self.group_m}; it must be a number of rows, or 0 for the program's own"
            )
        for kernel in tile.kernels(program.root):
            swizzle = (self.group_m, "row") if self.group_m > 0 else swizzle_of(kernel)
            if kernel.option("swizzle") is not None:
                kernel.set_option("swizzle", None)
            if targets_gluon(kernel):
                remark_unused(kernel, changed(self, "persistent"))
            programs = self.persistent
            if programs < 0:
                programs = int(self.flatten and gains_by_persistence(kernel, program.target))
            may = programs > 0 and kernel.option(STREAMS) is None and not targets_gluon(kernel)
            persists = may and may_persist(kernel)
            extents = map(constant_of, kernel.grid[1:])
            fold_all = persists or any(extent is not None and extent > MAX_YZ for extent in extents)
            if len(kernel.grid) > 1 and (swizzle is not None or fold_all):
                fold_grid(kernel, swizzle, fold_z=fold_all)
            if persists:
                make_persistent(kernel, programs, self.flatten and may_flatten(kernel, program.target))


def swizzle_of(kernel: tile.KernelOp) -> tuple[int, str] | None:
    hint = kernel.option("swizzle")
    if hint is None:
        return None
    if not isinstance(hint, tuple) or not isinstance(hint[0], int) or hint[0] < 1:
        raise TileError(f"T.use_swizzle: {hint!r} has no positive panel size", kernel.loc)
    return hint[0], "column" if hint[1:2] == ("column",) else "row"


def fold_grid(kernel: tile.KernelOp, swizzle: tuple[int, str] | None, fold_z: bool) -> None:
    """Replace the grid's first two dimensions (all three with `fold_z`) by one, from which the indices are computed."""
    host, inside = (
        IndexArithmetic(Builder.at(kernel)),
        IndexArithmetic(Builder(kernel.body, kernel.body.first, kernel.loc)),
    )
    old, (gx, gy, *gz) = kernel.body.args, kernel.grid
    plane = host.apply(arith.MulOp, gx, gy, "plane")
    block = Value(INT32, kernel.body, "block")
    indices = [block]  # of the plane, and along the third dimension if that is folded
    if gz and fold_z:
        (depth,) = gz
        kernel.set_field("grid", [host.apply(arith.MulOp, plane, depth, "blocks")])
        kernel.body.set_args([block])
        indices = [inside.apply(arith.TruncModOp, block, plane), inside.apply(arith.TruncDivOp, block, plane)]
    else:
        kernel.set_field("grid", [plane, *gz])
        kernel.body.set_args([block, *old[2:]])
    if swizzle is None:
        bx, by = inside.apply(arith.TruncModOp, indices[0], gx), inside.apply(arith.TruncDivOp, indices[0], gx)
    elif swizzle[1] == "row":
        bx, by = _panels(inside, indices[0], gx, gy, swizzle[0])
    else:
        by, bx = _panels(inside, indices[0], gy, gx, swizzle[0])
    for before, after in zip(old, [bx, by, *indices[1:]]):
        after.name = before.name
        before.replace_with(after)


def _panels(inside: IndexArithmetic, block: Value, across: Value, down: Value, size: int) -> tuple[Value, Value]:
    """(index across, index down) of a block, for panels of `size` rows, each walked down first. The last may be
    lower."""
    rows = constant_of(down)
    if rows is not None and rows <= size:
        return inside.apply(arith.TruncDivOp, block, down), inside.apply(arith.TruncModOp, block, down)
    height = inside.constant(size)
    in_panel = inside.apply(arith.MulOp, across, height)
    first = inside.apply(arith.MulOp, inside.apply(arith.TruncDivOp, block, in_panel, "panel"), height, "first")
    within = inside.apply(arith.TruncModOp, block, in_panel, "within")
    if rows is None or rows % size:
        height = inside.apply(arith.MinOp, inside.apply(arith.SubOp, down, first), height, "rows")
    down_index = inside.apply(arith.AddOp, first, inside.apply(arith.TruncModOp, within, height))
    return inside.apply(arith.TruncDivOp, within, height), down_index
