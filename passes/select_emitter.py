"""The language of each kernel: Triton, or Gluon for the loops at which it is much faster."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tiledsl.analysis.affine import linear_form
from tiledsl.analysis.block_access import NoBlock, start_and_walk
from tiledsl.analysis.gluon import support
from tiledsl.analysis.gluon.alternation import GROUPS
from tiledsl.analysis.gluon.estimate import LEAST_GAIN, Launch, gain
from tiledsl.analysis.gluon.gathers import GATHERED, has_whole_rows
from tiledsl.analysis.gluon.plan import loads_beside, make_plan, products_in_flight, rescaling, unmeasured
from tiledsl.analysis.gluon.schedule import AT_ONCE, PLACES, hands_on, other_readers, prepared
from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.analysis.gluon.tile_loops import (
    ITEM,
    WARPS,
    NotRecognised,
    TileLoop,
    TileLoops,
    consumers,
    find_tile_loops,
    is_addition,
    is_computed_twice,
    tile_loops,
)
from tiledsl.analysis.hardware import WARP
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, gluon, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import has_gluon, targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, TensorType, with_shape
from tiledsl.location import UNKNOWN
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.carry_loads import load_ahead
from tiledsl.passes.dce import erase_unused, is_removable
from tiledsl.passes.divide_rows import divide_rows
from tiledsl.passes.fit_warps import fitting_threads
from tiledsl.passes.gluon.alternate_turns import alternate_turns, halved_sums, is_wide
from tiledsl.passes.gluon.groups_apart import divide_among_groups
from tiledsl.passes.gluon.guard_masks import guard_masks
from tiledsl.passes.gluon.lazy_rescale import name_rescaling, rescale_lazily
from tiledsl.passes.gluon.mask_loads import mask_loads
from tiledsl.passes.gluon.merge_softmax_loops import merge_softmax_loops
from tiledsl.passes.gluon.open_branch import open_branch
from tiledsl.passes.gluon.row_arithmetic import (
    compare_columns,
    divide_rows_once,
    mask_after_products,
    masked_products,
    merge_limits,
    multiply_rows_once,
)
from tiledsl.passes.gluon.tiled_products import widen_columns
from tiledsl.passes.index_arithmetic import materialize
from tiledsl.passes.specs import check_choice
from tiledsl.passes.split_tiles import divide_columns, sums_in_parts
from tiledsl.passes.unused_options import changed, remark_unused

_log = logging.getLogger("tiledsl")
BACKENDS = ("auto", "triton", "gluon")
RESCALINGS = ("auto", "each", "late", "lazy")
CONSUMERS = ("auto", "rows", "one", "apart", "alternate")


@dataclass(frozen=True)
class SelectEmitter(Pass):
    """Prepare kernels of a suitable form for the Gluon emitter; for all others, log why they stay in Triton.

    Before:  tile.kernel ... { %q = tile.load %Q[%b, %rows, %columns] : tensor<128x64xfloat16> ... }
    After:   tile.kernel ... {options = (("emitter", "gluon"), ...)} {
                 %part = gluon.warp_group_id {parts = 2}
                 %q = tile.load_block %Q[%b, %row, %zero] {axes = (1, 2)} : tensor<64x64xfloat16> ... }

    Columns that are sums of powers of two are divided into these (split_tiles), so that each part has a product. The
    block's rows are divided among consumers of 64 rows each. Operands of products are loaded by TMA, and results
    are stored by TMA where their indices allow it. Suitable loops are those of attention and those that accumulate
    products, or add something computed from each product (gluon/tiled_products.py). Other loops of several products are
    run in order by one group of all warps, which has no parts; it divides the columns of products that have too few
    rows, and stores results of each turn.

    backend:   "triton", "gluon" (wherever possible), or "auto": Gluon where it is estimated to gain a tenth or more
               (analysis/gluon/estimate.py). The reason why a kernel stays in Triton is logged and, on a device that
               supports Gluon, among the kernel's remarks: with "gluon", for kernels with any product, else where Gluon
               might gain something.
    stages:    the number of tiles in flight of each operand that a loop loads (0: T.Pipelined's, at least 2, as far as
               shared memory allows).
    persistent: whether one program on each multiprocessor takes one block after another.
    overlap:   issue two products before the first is used, where products start from zero and registers suffice.
    fast_math: allow what may change the last bit of a result: dividing a row by multiplying with its inverse, and
               replacing scores by -inf instead of adding a mask of 0 and -inf to them.
    consumers: "rows", each with rows of its own, "one" group of all warps, "apart": two groups of four warps that run
               the loops of one and exchange what each computes of products' operands (gluon/groups_apart.py),
               "alternate": two groups that take turns in turn, and each add to half of the columns of sums
               (gluon/alternate_turns.py); or "auto": what is possible, rows first, unless warps would compute the
               same rows twice or products are added to memory; then "alternate" first, for sums of 512 columns.
    rescale:   when attention multiplies its accumulator: in "each" step at once; "late", when the next product is about
               to be issued; "lazy", late and only where a maximum rose by much (gluon/lazy_rescale.py); or "auto".
    additions: how many additions of a tile to memory may be on their way, 1 or, where shared memory has the places, 2.

    Needs:   promote-buffers. Runs before guard-accesses, since TMA itself reads 0 outside of a buffer.
    """

    name = "select-emitter"
    backend: str = "auto"
    stages: int = 0
    persistent: bool = True
    fast_math: bool = True
    overlap: bool = True
    rescale: str = "auto"
    consumers: str = "auto"
    additions: int = 1

    def run(self, program: Program) -> None:
        func = program.root
        assert isinstance(func, tile.FuncOp), func.name
        check_choice(self, "backend", BACKENDS)
        check_choice(self, "rescale", RESCALINGS)
        check_choice(self, "consumers", CONSUMERS)
        if self.additions not in (1, 2):
            raise TileError(f"select-emitter.additions is {self.additions}; it must be 1 or 2")
        if self.stages < 0:
            raise TileError(
                f"select-emitter.stages is {self.stages}; it must be a number of tiles, or 0 for the program's own"
            )
        kernels = [op for op in func.body if isinstance(op, tile.KernelOp)]
        for kernel in filter(self._is_wanted, kernels):
            try:
                if self.backend == "auto" and len(kernels) > 1:
                    raise NotRecognised("the program has several kernels")
                self._convert(program, kernel)
            except NotRecognised as reason:
                self._explain(func, kernel, reason, has_gluon(program.target))
        if has_gluon(program.target):
            self._remark(func)
        _inline_single_tiles(func)

    def allowances(self, program: Program) -> frozenset[str]:
        if not has_gluon(program.target) or self.backend == "triton":
            return frozenset()
        masks = any(True for _ in masked_products(program.root.walk()))
        names = {
            "reciprocal": self.fast_math,
            "rescaling": self.rescale in ("auto", "lazy"),
            "masking": self.fast_math and masks,
            "reassociation": any(
                sums_in_parts(kernel, halved_sums(kernel.body) if "alternate" in self._ways(kernel) else ())
                for kernel in of_kinds(program.root.nests(), tile.KernelOp)
            ),
        }
        return frozenset(name for name, may in names.items() if may)

    def _remark(self, func: tile.FuncOp) -> None:
        """Say which options have no effect on what the kernels have become."""
        unused = changed(self, "stages", "rescale")
        if self.rescale == "each":  # as in Triton
            unused.pop("select-emitter.rescale")
        for kernel in [op for op in func.body if isinstance(op, tile.KernelOp)]:
            if not targets_gluon(kernel) and _has_products(kernel):
                remark_unused(kernel, unused, in_gluon=False)
            elif targets_gluon(kernel) and "select-emitter.rescale" in unused and not _has_several(kernel.body):
                remark_unused(kernel, {"select-emitter.rescale": self.rescale})

    def _is_wanted(self, kernel: tile.KernelOp) -> bool:
        """Whether to try Gluon, or at least to say why it is not used."""
        if self.backend == "auto":
            return any(map(_may_gain, of_kinds(kernel.nests(), scf.ForOp)))
        return self.backend == "gluon" and _has_products(kernel)

    def _explain(self, func: tile.FuncOp, kernel: tile.KernelOp, reason: NotRecognised, could_be: bool) -> None:
        place = reason.op.loc if reason.op is not None else kernel.loc
        where = "" if place is UNKNOWN else f" ({os.path.basename(place.file)}:{place.line})"
        remark = f"{func.sym_name}: written in Triton, not in Gluon: {reason}{where}"
        _log.log(logging.WARNING if self.backend == "gluon" else logging.DEBUG, "%s", remark)
        if could_be:
            kernel.add_remark(remark)

    def _convert(self, program: Program, kernel: tile.KernelOp) -> None:
        """Put a prepared copy of a kernel in its place. Raises NotRecognised, and then leaves it."""
        target = program.target
        if not has_gluon(target):
            raise NotRecognised(f"it is compiled for {target}")
        missing = support.missing()
        if missing:
            raise NotRecognised(missing)
        reasons: dict[bool, NotRecognised] = {}  # of consumers with rows of their own, and of others
        for way in self._ways(kernel):
            try:
                twin = self._prepared(kernel, way, target)
                break
            except NotRecognised as reason:
                reasons[way == "rows"] = reason
        else:
            first, other = reasons.get(True) or reasons[False], reasons.get(False)
            if other is None or str(other) == str(first):
                raise first
            raise NotRecognised(f"{first}; nor by one group of warps: {other}", other.op or first.op)
        options = {**dict(kernel.options), "emitter": "gluon", "persistent": self.persistent}
        if way in ("apart", "alternate"):
            options["groups"] = GROUPS
        twin.set_attribute("options", tuple(options.items()))
        kernel.erase()

    def _ways(self, kernel: tile.KernelOp) -> tuple[str, ...]:
        """Which consumers to try, the fastest first."""
        if self.consumers != "auto":
            return (self.consumers,)
        twice, wide = is_computed_twice(kernel.body, kernel.threads // 32), is_wide(kernel.body)
        adds = any(loop.adds for loop in tile_loops(kernel.body).loops)
        if twice or adds or wide:
            return (*(("alternate",) if wide else ()), "one", "rows")
        return ("rows", "one") if self.backend == "gluon" else ("rows",)

    def _prepared(self, kernel: tile.KernelOp, way: str, target: Any) -> tile.KernelOp:
        """A prepared copy of a kernel, beside it. Raises NotRecognised, and then leaves none."""
        twin = kernel.clone({})
        assert isinstance(twin, tile.KernelOp)
        assert kernel.parent is not None
        kernel.parent.insert(twin, kernel)
        if way != "rows" and is_wide(kernel.body):
            twin.set_attribute("threads", max(kernel.threads, 32 * WARPS[-1]))  # fewer have no registers for such sums
        try:
            open_branch(twin.body)
            divide_columns(twin)
            if way == "alternate":
                divide_columns(twin, halved_sums(twin.body))
            mask_loads(twin.body)
            _load_boxes(twin)
            self._prepare(twin, way, _in_triton(kernel, target), target)
        except NotRecognised:
            twin.erase()
            raise
        return twin

    def _prepare(self, kernel: tile.KernelOp, way: str, launch: Launch, target: Any) -> None:
        """Divide the rows of a kernel's products among consumers, or have one group of all warps run its loops. Raises
        NotRecognised."""
        by_rows, apart = way == "rows", way == "apart"
        body, warps = kernel.body, 4 if by_rows else kernel.threads // 32
        if warps not in WARPS:
            raise NotRecognised(f"{kernel.threads} threads are not 128 or 256")
        if self.fast_math and (by_rows or way == "alternate"):
            mask_after_products(kernel.walk())
        widen_columns(body)
        stored = _store_turned(body) if by_rows else []
        erase_unused(body, lambda op: op.is_pure)
        found = find_tile_loops(body, 0 if by_rows else warps)
        groups = consumers(found) if by_rows else 0
        if _has_several(body):
            self._choose_rescaling(body, groups)
        found = tile_loops(body)
        stored += _store_boxes(_after(body, found)) if by_rows else []
        places = PLACES if apart else 1
        plan = make_plan(found, groups or 1, warps, self.stages, target.max_shared_bytes, stored, places)
        if self.backend == "auto" and (slower := unmeasured(found, groups, plan.stages)):
            raise NotRecognised(slower, found.products[0])
        if self.backend == "auto" and not prepared(found.products):
            faster = gain(found, groups, warps, plan.stages, launch, target)
            estimate = f"its loops are estimated to run at {faster:.3f} of Triton's speed"
            if faster < LEAST_GAIN:
                raise NotRecognised(f"{estimate}, less than {LEAST_GAIN}", found.products[0])
            assert isinstance(kernel.parent_op, tile.FuncOp)
            kernel.add_remark(f"{kernel.parent_op.sym_name}: written in Gluon: {estimate}")
        if plan.in_item:
            plan.in_item.set_attribute("ring", ITEM)
        for loop in found.loops:
            loop.op.set_attribute("num_stages", plan.stages)
        if not by_rows:
            left, free = plan.left, [(gluon.box(load), load.out.dtype) for load in found.kept]
            for loop in found.loops if way != "alternate" else ():
                left = _load_rows_by_box(loop, plan.stages, left)
            added: list[tile.StoreBlockOp] = []
            for op in [op for op in of_kinds(body.walk(), tile.AtomicOp) if op.value.shape in found.tiles]:
                left = _add_by_box(op, added, left)
            if self.additions > 1:
                left = _add_in_turn(added, left)
            if apart:
                divide_among_groups(body, found, warps)
                return
            if way == "alternate":
                left = alternate_turns(found, warps, left)
            for loop in found.loops:
                for store in of_kinds(loop.op.body, tile.StoreOp):
                    if _walks_on(store, loop.op):
                        left = _store_beside(store, [], left)
            for store in [op for op in body if isinstance(op, tile.StoreOp) and op.value.shape in found.tiles]:
                left = _store_beside(store, free, left)
            return
        if prepared(found.products):
            for loop in found.loops:
                load_ahead(loop.op, [op for op in loads_beside(loop) if op.results[0].shape != ()])
        elif len(found.products) == 1:
            (loop,) = found.loops
            if self.overlap and products_in_flight(loop, groups) == 2:
                loop.op.set_attribute("unroll", AT_ONCE)
            else:
                load_ahead(loop.op, loads_beside(loop))
        _divide_rows(kernel, found.products[0].out.shape[0], groups, found.undivided)

    def _choose_rescaling(self, body: Region, groups: int) -> None:
        """Merge loops that are alike, and rescale sums as requested; loops without a softmax can only do so late."""
        found = tile_loops(body)
        skewed = groups > 0 and all(loop.late for loop in found.loops)
        if skewed and merge_softmax_loops([loop.op for loop in found.loops]):
            found = tile_loops(body)
        if skewed:
            merge_limits(op for loop in found.loops for op in loop.op.walk())
            compare_columns(op for loop in found.loops for op in loop.op.walk())
        chosen = rescaling(found, groups, self.fast_math) if self.rescale == "auto" else self.rescale
        loops = [loop.op for loop in found.loops]
        lazy = chosen == "lazy" and all(map(hands_on, loops, loops[1:])) and rescale_lazily(loops)
        if lazy or skewed and chosen != "each":
            loops = [loop.op for loop in tile_loops(body).loops]
            name_rescaling(loops, skip=lazy)
        if skewed:
            for loop in tile_loops(body).loops:
                guard_masks(loop.op)
        if self.fast_math:
            divide_rows_once(_after(body, tile_loops(body)))
            multiply_rows_once(_after(body, tile_loops(body)))


def _has_several(body: Region) -> bool:
    """Whether some loop has more than one product."""
    return any(len(loop.products) > 1 for loop in tile_loops(body).loops)


def _after(body: Region, found: TileLoops) -> list[Operation]:
    """What follows the last loop."""
    ops = list(body)
    return ops[max(n for n, op in enumerate(ops) if found.loops[-1].op in op.nests()) + 1 :]


def _in_triton(kernel: tile.KernelOp, target: Any) -> Launch:
    """How a kernel would be launched if it stayed in Triton."""
    warps = fitting_threads(kernel, target.arch) // WARP
    extents = [constant_of(extent) for extent in kernel.grid]
    blocks = None if None in extents else math.prod(map(int, extents))  # type: ignore[arg-type]
    return Launch(1 << warps.bit_length() - 1, blocks)


def _may_gain(loop: scf.ForOp) -> bool:
    """Whether Gluon may be faster for a loop: it does more than add up one product, which Triton does as well."""
    dots = of_kinds(loop.body, tensor.DotOp)
    return len(dots) > 1 or bool(prepared(dots)) or any(constant_of(op.accumulator) == 0 for op in dots)


def _has_products(kernel: tile.KernelOp) -> bool:
    return any(isinstance(op, tensor.DotOp) for op in kernel.walk())


def _store_boxes(ops: Iterable[Operation]) -> list[tile.StoreBlockOp]:
    """Turn stores of whole tiles into boxes where possible."""
    return [box for box in map(_store_box, of_kinds(ops, tile.StoreOp)) if box is not None]


def _store_turned(body: Region) -> list[tile.StoreBlockOp]:
    """Turn stores of whole tiles that are transposed, and perhaps rounded then, into boxes where possible: the tile is
    transposed on its way through shared memory."""
    boxes = []
    for store in of_kinds(body, tile.StoreOp):
        rounded = store.value.op
        turned = rounded.source.op if isinstance(rounded, arith.CastOp) else rounded
        if not isinstance(turned, tensor.TransposeOp):
            continue
        at = Builder.at(store)
        value = turned.source
        if isinstance(rounded, arith.CastOp):
            value = at.insert(arith.CastOp(value, result_types=[with_shape(value.shape, rounded.out.dtype)])).result
        store.set_operands(
            [at.insert(tensor.TransposeOp(value, permutation=turned.permutation)).result, *store.operands[1:]]
        )
        if (box := _store_box(store)) is not None:
            boxes.append(box)
    return boxes


def _inline_single_tiles(func: tile.FuncOp) -> None:
    """Inline loops of one tile, which canonicalize kept for this pass, in kernels that stay in Triton."""
    kernels = [op for op in func.body if isinstance(op, tile.KernelOp) and not targets_gluon(op)]
    loops = [op for kernel in kernels for op in kernel.nests() if isinstance(op, scf.ForOp)]
    single = [op for op in loops if op.num_stages and trip_count(op) == 1]
    for op in single:
        op.set_attribute("num_stages", 0)
    if single:
        canonicalize(func, CANONICAL_PATTERNS)


def _load_boxes(kernel: tile.KernelOp) -> None:
    """Turn loads that only products use into boxes."""
    loads: dict[tile.LoadOp, None] = {}
    for dot in kernel.walk():
        if isinstance(dot, tensor.DotOp):
            for value in (dot.a, dot.b):
                op = value.op.source.op if isinstance(value.op, tensor.TransposeOp) else value.op
                if isinstance(op, tile.LoadOp):
                    loads[op] = None
    products = of_kinds(kernel.walk(), tensor.DotOp)
    for_registers = prepared(products)
    loads |= dict.fromkeys(op for op in of_kinds(kernel.walk(), tile.LoadOp) if op in for_registers)
    ranges = Ranges.around(kernel)
    for load in loads:
        if not for_registers.issuperset(other_readers(load)):
            raise NotRecognised("a product's operand is used for something else", load)
        try:
            if load.mask is not None or (load.other is not None and constant_of(load.other) != 0):
                raise NotRecognised("a product's operand is loaded with a condition", load)
            offsets, axes = _box_of(load, load.out.type)
        except NotRecognised:
            if load in for_registers or not has_whole_rows(load, ranges):
                raise
            load.set_attribute("ring", GATHERED)
            _separate_rows(load, kernel)
            continue
        made = Builder.at(load).insert(
            tile.LoadBlockOp(load.buffer, offsets, axes=axes, result_types=[load.out.type], names=[load.out.name])
        )
        load.out.replace_with(made.out)
        load.erase()
    erase_unused(kernel.body, is_removable)


def _separate_rows(load: tile.LoadOp, kernel: tile.KernelOp) -> None:
    """Have a gathered tile compute its rows by itself: they are others than those of the tiles beside it."""
    needed, own = needed_for(load.operands), dict[Value, Value]()
    for op in [op for op in kernel.walk() if op in needed]:
        if any(isinstance(value.type, TensorType) for value in op.results):
            assert op.parent is not None
            op.parent.insert(op.clone(own), op)
    load.set_operands([own.get(value, value) for value in load.operands])


def _load_rows_by_box(loop: TileLoop, stages: int, left: int) -> int:
    """Turn loads of one row, a value for each column of a tile, into boxes, so that they are there in time; return what
    is left of so many bytes then."""
    for op in [op for op in loop.op.body if isinstance(op, tile.LoadOp) and op.out.shape[:-1] == (1,)]:
        size = stages * tensor_bytes(op.out)
        if op.mask is not None or op.other is not None or size > left:
            continue
        if len(loop.of_tiles) < 2 and not loop.has_place(op):
            continue
        try:
            offsets, axes = _box_of(op, op.out.type)
        except NotRecognised:
            continue
        box = tile.LoadBlockOp(op.buffer, offsets, axes=axes, result_types=[op.out.type], names=[op.out.name])
        op.out.replace_with(Builder.at(op).insert(box).out)
        op.erase()
        left -= size
    return left


def _add_by_box(op: tile.AtomicOp, added: list[tile.StoreBlockOp], left: int) -> int:
    """Turn an addition of a whole tile to memory into that of a box, where so many bytes are left for it and nothing
    else is done with the buffer, since copies end later; return what is left then. Boxes of several loops that are
    alike share a place."""
    size = _own_bytes(op, added)
    if op.mask is not None or size > left or not all(map(is_addition, op.buffer.uses)):
        return left
    try:
        offsets, axes = _box_of(op, op.value.type)
    except NotRecognised:
        return left
    added.append(Builder.at(op).insert(tile.StoreBlockOp(op.value, op.buffer, offsets, axes=axes, add=True)))
    op.erase()
    return left - size


def _own_bytes(op: tile.AtomicOp | tile.StoreBlockOp, others: Iterable[tile.StoreBlockOp]) -> int:
    """What the place of an addition takes beside those of others."""
    alike = (each for each in others if each.buffer is op.buffer and each.value.type == op.value.type)
    return 0 if any(each.parent is not op.parent for each in alike) else tensor_bytes(op.value)


def _add_in_turn(added: Sequence[tile.StoreBlockOp], left: int) -> int:
    """Give each addition a second place, where so many bytes are left for all; return what is left then."""
    size = sum(_own_bytes(op, added[:number]) for number, op in enumerate(added))
    if size > left:
        return left
    for op in added:
        op.set_attribute("places", 2)
    return left - size


def _store_beside(store: tile.StoreOp, free: list[tuple[tuple[int, ...], str]], left: int) -> int:
    """Turn the store of a whole tile into a box where so many bytes are left for it, or it has the place of a `free`
    box, which is not needed any more; return what is left then."""
    made = _store_box(store, keep=True)
    if made is None:
        return left
    size, place = tensor_bytes(store.value), (gluon.box(made), store.value.dtype)
    if size > left and place not in free:
        made.erase()
        return left
    if size > left:
        free.remove(place)
        made.set_attribute("ring", ITEM)
    store.erase()
    return left if made.ring else left - size


def _walks_on(store: tile.StoreOp, loop: scf.ForOp) -> bool:
    """Whether each turn of a loop stores to a place of its own: boxes may arrive in any order."""
    if isinstance(loop.parent_op, scf.ForOp):
        return False
    for index in store.indices:
        form, extent = linear_form(index, through_names=True), max(index.shape, default=1)
        others = {value for factors in form.terms if factors != (loop.index,) for value in factors if not value.shape}
        changing = any(value in loop.body.args or getattr(value.op, "parent", None) is loop.body for value in others)
        if abs(form.coefficient(loop.index)) >= extent and not changing:
            return True
    return False


def _store_box(store: tile.StoreOp, keep: bool = False) -> tile.StoreBlockOp | None:
    """Turn the store of a whole tile into a box if its indices allow it; else return None. `keep`: put it before."""
    if store.mask is not None or len(store.value.shape) != 2:
        return None
    at, value, turned = Builder.at(store), store.value, False
    try:
        offsets, axes = _box_of(store, value.type)
    except NotRecognised:
        try:
            turned = keep
            offsets, axes = _box_of(store, TensorType(value.shape[::-1], value.dtype), turned)
        except NotRecognised:
            return None
    if turned:
        value = at.insert(tensor.TransposeOp(value, permutation=(1, 0))).result
    made = at.insert(tile.StoreBlockOp(value, store.buffer, offsets, axes=axes))
    if not keep:
        store.erase()
    return made


def _box_of(
    op: tile.LoadOp | tile.StoreOp | tile.AtomicOp, tile_type: object, turned: bool = False
) -> tuple[list[Value], tuple[int, ...]]:
    """The offsets of a box, which may be the transposed tile's (`turned`), and the dimensions along which it extends.
    Raises NotRecognised for what TMA cannot move."""
    buffer = tile.buffer_type(op.buffer)
    if not isinstance(tile_type, TensorType) or len(tile_type.shape) != 2:
        raise NotRecognised(f"{tile_type} is not a box for TMA", op)
    bits = ELEMENTS[buffer.dtype].bits
    last = buffer.shape[-1]
    if buffer.scope != "global" or not 2 <= len(buffer.shape) <= 5:
        raise NotRecognised(f"{tile_type} of {buffer} is not a box for TMA", op)
    if buffer.strides is not None or not isinstance(last, int) or last * bits % 128:
        raise NotRecognised(f"the rows of {buffer} are not contiguous multiples of 16 bytes", op)
    at = Builder.at(op)
    offsets: list[Value] = []
    axes: list[int] = []
    for axis, index in enumerate(op.indices):
        try:
            start, iota = start_and_walk(index)
        except NoBlock as reason:
            raise NotRecognised(f"it is no block: {reason}", op) from None
        if iota is not None:
            place = 1 - iota.axis if turned else iota.axis
            if len(axes) < place and tile_type.shape[0] == 1:
                axes.append(-1)
            if place != len(axes) or iota.out.shape[iota.axis] != tile_type.shape[place]:
                raise NotRecognised("a tile's dimensions are in another order than its buffer's", op)
            axes.append(axis)
        offsets.append(materialize(at, start))
    if axes[1:] != [len(buffer.shape) - 1]:
        raise NotRecognised("a tile does not walk along the last dimension of its buffer", op)
    return offsets, tuple(axes)


def _divide_rows(kernel: tile.KernelOp, all_rows: int, warp_groups: int, undivided: set[Operation]) -> None:
    """Give each consumer its share of the block's rows."""
    rows = all_rows // warp_groups
    at = Builder(kernel.body, kernel.body.first, kernel.loc)
    part = at.insert(gluon.WarpGroupIdOp(parts=warp_groups, names=["part"])).result
    first = at.insert(arith.MulOp(part, at.constant(rows, INT32), names=["first_row"])).result
    divide_rows(kernel, first, all_rows, rows, undivided)
