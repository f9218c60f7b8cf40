"""The language of each kernel: Triton, or Gluon for the loops at which it is much faster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tiledsl.analysis.block_access import NoBlock, start_and_walk
from tiledsl.analysis.gluon import support
from tiledsl.analysis.gluon.ordered_loops import ITEM, TURNS, WARPS, find_ordered_loops, is_computed_twice
from tiledsl.analysis.gluon.plan import (
    drawback,
    make_plan,
    ordered_drawback,
    ordered_plan,
    product_drawback,
    product_stages,
    products_in_flight,
    rescaling,
)
from tiledsl.analysis.gluon.schedule import ROWS_OF_WARPS, hands_on
from tiledsl.analysis.gluon.softmax_loops import (
    NotRecognised,
    SoftmaxLoops,
    check_rows,
    find_softmax_loops,
)
from tiledsl.analysis.gluon.tiled_products import BYTES, find_tiled_product, is_softmax
from tiledsl.analysis.loops import trip_count
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.dialects import arith, gluon, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, BufferType, TensorType
from tiledsl.location import UNKNOWN
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize
from tiledsl.passes.dce import erase_unused
from tiledsl.passes.gluon.lazy_rescale import name_rescaling, rescale_lazily
from tiledsl.passes.gluon.merge_softmax_loops import merge_softmax_loops
from tiledsl.passes.gluon.row_arithmetic import (
    compare_columns,
    divide_rows_once,
    mask_after_products,
    masked_products,
    multiply_rows_once,
)
from tiledsl.passes.gluon.tiled_products import load_ahead, widen_columns
from tiledsl.passes.index_arithmetic import materialize
from tiledsl.passes.specs import check_choice
from tiledsl.passes.unused_options import changed, remark_unused

_log = logging.getLogger("tiledsl")
BACKENDS = ("auto", "triton", "gluon")
RESCALINGS = ("auto", "each", "late", "lazy")
GLUON_ARCH = 90


@dataclass(frozen=True)
class SelectEmitter(Pass):
    """Prepare kernels of a suitable form for the Gluon emitter; for all others, log why they stay in Triton.

    Before:  tile.kernel ... { %q = tile.load %Q[%b, %rows, %columns] : tensor<128x64xfloat16> ... }
    After:   tile.kernel ... {options = (("emitter", "gluon"), ...)} {
                 %part = gluon.warp_group_id {parts = 2}
                 %q = tile.load_block %Q[%b, %row, %zero] {axes = (1, 2)} : tensor<64x64xfloat16> ... }

    The block's rows are divided among consumers of 64 rows each. Operands of products are loaded by TMA, and results
    are stored by TMA where their indices allow it. Suitable loops are those of attention (gluon/softmax_loops.py), and
    those that accumulate products, or add something computed from each product (gluon/tiled_products.py). Other loops
    of several products are run in order by one group of all warps (gluon/ordered_loops.py), which has no parts; it
    divides the columns of products that have too few rows.

    backend:   "triton", "gluon" (wherever possible), or "auto": Gluon where it is faster, as gluon/plan.py decides. The
               reason why a kernel stays in Triton is logged and, on a device that supports Gluon, among the kernel's
               remarks: for kernels with two products in a loop and, with "gluon", for kernels with any product.
    stages:    the number of tiles in flight of each operand that a loop loads (0: T.Pipelined's, at least 2, as far as
               shared memory allows).
    persistent: whether one program on each multiprocessor takes one block after another.
    overlap:   issue two products before the first is used, where products start from zero and registers suffice.
    fast_math: allow what may change the last bit of a result: dividing a row by multiplying with its inverse, and
               replacing scores by -inf instead of adding a mask of 0 and -inf to them.
    rescale:   when attention multiplies its accumulator: in "each" step at once; "late", when the next product is about
               to be issued; "lazy", late and only where a maximum rose by much (gluon/lazy_rescale.py); or "auto".

    Needs:   promote-buffers. Runs before guard-accesses, since TMA itself reads 0 outside of a buffer.
    """

    name = "select-emitter"
    backend: str = "auto"
    stages: int = 0
    persistent: bool = True
    fast_math: bool = True
    overlap: bool = True
    rescale: str = "auto"

    def run(self, program: Program) -> None:
        func = program.root
        assert isinstance(func, tile.FuncOp), func.name
        check_choice(self, "backend", BACKENDS)
        check_choice(self, "rescale", RESCALINGS)
        if self.stages < 0:
            raise TileError(
                f"select-emitter.stages is {self.stages}; it must be a number of tiles, or 0 for the program's own"
            )
        kernels = [op for op in func.body if isinstance(op, tile.KernelOp)]
        for kernel in kernels:
            if self._is_wanted(kernel):
                try:
                    others = [op for op in kernels if op is not kernel]
                    if others and (self.backend == "auto" or any(map(_has_products, others))):
                        # One beside a kernel with descriptors of Triton's failed on an H200.
                        raise NotRecognised("the program has several kernels")
                    self._convert(program, kernel)
                except NotRecognised as reason:
                    self._explain(func, kernel, reason, _has_gluon(program.target))
        if _has_gluon(program.target):
            self._remark(func)
        _inline_single_tiles(func)

    def allowances(self, program: Program) -> frozenset[str]:
        if not _has_gluon(program.target) or self.backend == "triton":
            return frozenset()
        masks = any(True for _ in masked_products(program.root.walk()))
        names = {
            "reciprocal": self.fast_math,
            "rescaling": self.rescale in ("auto", "lazy"),
            "masking": self.fast_math and masks,
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
            elif targets_gluon(kernel) and "select-emitter.rescale" in unused and not is_softmax(kernel.body):
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
        target = program.target
        if not _has_gluon(target):
            raise NotRecognised(f"it is compiled for {target}")
        missing = support.missing()
        if missing:
            raise NotRecognised(missing)
        several = sum(isinstance(op, tensor.DotOp) for op in kernel.walk()) > 1
        by_columns = several if self.backend == "gluon" else is_computed_twice(kernel.body, kernel.threads // 32)
        try:
            prepare = self._prepare_softmax if is_softmax(kernel.body) else self._prepare_product
            twin = _prepared(kernel, prepare, target.max_shared_bytes)
        except NotRecognised as reason:
            if not by_columns:
                raise
            try:
                twin = _prepared(kernel, self._prepare_ordered, target.max_shared_bytes)
            except NotRecognised as other:
                if str(other) == str(reason):
                    raise
                raise NotRecognised(f"{reason}; nor by one group of warps: {other}", other.op or reason.op) from None
        options = {**dict(kernel.options), "emitter": "gluon", "persistent": self.persistent}
        twin.set_attribute("options", tuple(options.items()))
        kernel.erase()

    def _prepare_softmax(self, kernel: tile.KernelOp, shared_bytes: int) -> None:
        """Divide the rows of attention and similar kernels. Raises NotRecognised."""
        if self.fast_math:
            mask_after_products(kernel.walk())
        softmax = find_softmax_loops(kernel.body)
        tiles = [(softmax.rows, columns) for columns in (softmax.columns, softmax.width)]
        check_rows(kernel.body, tiles, {softmax.query, *softmax.undivided})
        if merge_softmax_loops([loop.op for loop in softmax.loops]):
            softmax = find_softmax_loops(kernel.body)
        compare_columns(op for loop in softmax.loops for op in loop.op.walk())
        warp_groups = _consumers(softmax.rows, softmax.query)
        softmax = self._choose_rescaling(kernel, softmax, warp_groups)
        if self.fast_math:
            divide_rows_once(softmax.after)
            multiply_rows_once(find_softmax_loops(kernel.body).after)
        softmax = find_softmax_loops(kernel.body)
        plan = make_plan(softmax, warp_groups, self.stages, shared_bytes, _store_boxes(softmax.after))
        if self.backend == "auto" and (slower := drawback(softmax, warp_groups)):
            raise NotRecognised(slower, softmax.query)
        if plan.in_query:
            plan.in_query.set_attribute("ring", ITEM)
        _divide_rows(kernel, softmax.rows, warp_groups, softmax.undivided)
        for loop in softmax.loops:
            loop.op.set_attribute("num_stages", plan.stages)

    def _prepare_ordered(self, kernel: tile.KernelOp, shared_bytes: int) -> None:
        """Have one group of all warps run loops of products in order. Raises NotRecognised."""
        warps = kernel.threads // 32
        if warps not in WARPS:
            raise NotRecognised(f"{kernel.threads} threads are not 128 or 256")
        widen_columns(kernel.body)
        erase_unused(kernel.body, lambda op: op.is_pure)
        loops = [loop.op for loop in find_ordered_loops(kernel.body).loops]
        lazy = self.rescale == "lazy" or (self.rescale == "auto" and self.fast_math)
        if lazy and all(map(hands_on, loops, loops[1:])) and rescale_lazily(loops):
            loops = [op for op in kernel.body if isinstance(op, scf.ForOp)]
            sums = {value.type for value in loops[0].yielded if isinstance(value.op, tensor.DotOp)}
            name_rescaling(loops, skip=len(sums) == 1)  # the text has one function for it
        if self.fast_math:
            for once in (divide_rows_once, multiply_rows_once):
                ops = list(kernel.body)
                once(ops[ops.index(loops[-1]) + 1 :])
        ordered = find_ordered_loops(kernel.body)
        plan = ordered_plan(ordered, warps, self.stages, shared_bytes)
        if self.backend == "auto" and (slower := ordered_drawback(plan, shared_bytes)):
            raise NotRecognised(slower, ordered.loops[0].op)
        for loop in ordered.loops:
            loop.op.set_attribute("num_stages", plan.stages)
            for load in loop.loads:
                load.set_attribute("ring", TURNS)
        for load in ordered.kept:
            load.set_attribute("ring", ITEM)
        left = plan.left
        free = [(gluon.box(load), load.out.dtype) for load in ordered.kept]
        for store in [op for op in kernel.body if isinstance(op, tile.StoreOp) and op.value.shape in ordered.tiles]:
            left = _store_beside(store, free, left)

    def _choose_rescaling(self, kernel: tile.KernelOp, softmax: SoftmaxLoops, warp_groups: int) -> SoftmaxLoops:
        """The loops, rescaling as requested; loops without a softmax can only rescale late."""
        chosen = rescaling(softmax, warp_groups, self.fast_math) if self.rescale == "auto" else self.rescale
        if chosen == "each":
            return softmax
        lazy = chosen == "lazy" and rescale_lazily([loop.op for loop in softmax.loops])
        name_rescaling([loop.op for loop in find_softmax_loops(kernel.body).loops], skip=lazy)
        return find_softmax_loops(kernel.body)

    def _prepare_product(self, kernel: tile.KernelOp, shared_bytes: int) -> None:
        """Divide the rows of a matrix product. Raises NotRecognised."""
        widen_columns(kernel.body)
        erase_unused(kernel.body, lambda op: op.is_pure)
        product = find_tiled_product(kernel.body)
        check_rows(kernel.body, [(product.rows, product.columns)], {product.left, *product.undivided})
        warp_groups = _consumers(product.rows, product.product)
        stages = product_stages(product, warp_groups, self.stages, shared_bytes, _store_boxes(product.after))
        if self.backend == "auto" and (slower := product_drawback(product, warp_groups, stages)):
            raise NotRecognised(slower, product.product)
        if self.overlap and products_in_flight(product, warp_groups) == 2:
            product.op.set_attribute("unroll", 2)
        else:
            load_ahead(product)
        _divide_rows(kernel, product.rows, warp_groups, product.undivided)
        product.op.set_attribute("num_stages", stages)


def _prepared(kernel: tile.KernelOp, prepare: Callable[[tile.KernelOp, int], None], shared_bytes: int) -> tile.KernelOp:
    """A prepared copy of a kernel, beside it. Raises NotRecognised, and then leaves none."""
    twin = kernel.clone({})
    assert isinstance(twin, tile.KernelOp)
    assert kernel.parent is not None
    kernel.parent.insert(twin, kernel)
    try:
        _load_boxes(twin)
        prepare(twin, shared_bytes)
    except NotRecognised:
        twin.erase()
        raise
    return twin


def _may_gain(loop: scf.ForOp) -> bool:
    """Whether Gluon may be faster for a loop: it has several products, or a float8 product that starts from zero."""
    dots = [op for op in loop.body if isinstance(op, tensor.DotOp)]
    return len(dots) > 1 or any(constant_of(op.accumulator) == 0 and op.a.dtype in BYTES for op in dots)


def _has_products(kernel: tile.KernelOp) -> bool:
    return any(isinstance(op, tensor.DotOp) for op in kernel.walk())


def _consumers(rows: int, op: Operation) -> int:
    """The number of consumers that share a block's rows. Raises NotRecognised."""
    warp_groups, rest = divmod(rows, ROWS_OF_WARPS)
    if rest or not 1 <= warp_groups <= 3:
        raise NotRecognised(f"{rows} rows are not 64, 128 or 192", op)
    return warp_groups


def _store_boxes(ops: Iterable[Operation]) -> list[tile.StoreBlockOp]:
    """Turn stores of whole tiles into boxes where possible."""
    stores = [op for op in ops if isinstance(op, tile.StoreOp) and len(op.value.shape) == 2]
    return [box for box in map(_store_box, stores) if box is not None]


def _has_gluon(target: Any) -> bool:
    return getattr(target, "kind", None) == "cuda" and target.arch == GLUON_ARCH


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
    for load in loads:
        if load.mask is not None or (load.other is not None and constant_of(load.other) != 0):
            raise NotRecognised("a product's operand is loaded with a condition", load)
        if any(not isinstance(user, (tensor.DotOp, tensor.TransposeOp)) for user in load.out.uses):
            raise NotRecognised("a product's operand is used for something else", load)
        offsets, axes = _box_of(load, load.out.type)
        made = Builder.at(load).insert(
            tile.LoadBlockOp(load.buffer, offsets, axes=axes, result_types=[load.out.type], names=[load.out.name])
        )
        load.out.replace_with(made.out)
        load.erase()
    erase_unused(kernel.body, lambda op: op.is_pure)


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


def _store_box(store: tile.StoreOp, keep: bool = False) -> tile.StoreBlockOp | None:
    """Turn the store of a whole tile into a box if its indices allow it; else return None. `keep`: put it before."""
    if store.mask is not None:
        return None
    try:
        offsets, axes = _box_of(store, store.value.type)
    except NotRecognised:
        return None
    made = Builder.at(store).insert(tile.StoreBlockOp(store.value, store.buffer, offsets, axes=axes))
    if not keep:
        store.erase()
    return made


def _box_of(op: tile.LoadOp | tile.StoreOp, tile_type: object) -> tuple[list[Value], tuple[int, ...]]:
    """The offsets of a box and the dimensions along which it extends. Raises NotRecognised for what TMA cannot move."""
    buffer = tile.buffer_type(op.buffer)
    assert isinstance(tile_type, TensorType)
    bits = ELEMENTS[buffer.dtype].bits
    last = buffer.shape[-1]
    if buffer.scope != "global" or not 2 <= len(buffer.shape) <= 5 or len(tile_type.shape) != 2:
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
            if iota.axis != len(axes) or iota.out.shape[iota.axis] != tile_type.shape[iota.axis]:
                raise NotRecognised("a tile's dimensions are in another order than its buffer's", op)
            axes.append(axis)
        offsets.append(materialize(at, start))
    if len(axes) != 2 or axes[-1] != len(buffer.shape) - 1:
        raise NotRecognised("a tile does not walk along the last dimension of its buffer", op)
    return offsets, tuple(axes)


def _divide_rows(kernel: tile.KernelOp, all_rows: int, warp_groups: int, undivided: set[Operation]) -> None:
    """Give each consumer its share of the block's rows, in every type and in everything that counts rows."""
    rows = all_rows // warp_groups
    at = Builder(kernel.body, kernel.body.first, kernel.loc)
    part = at.insert(gluon.WarpGroupIdOp(parts=warp_groups, names=["part"])).result
    first = at.insert(arith.MulOp(part, at.constant(rows, INT32), names=["first_row"])).result
    for op in list(kernel.walk()):
        if op in undivided:
            continue
        for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
            _narrow(value, all_rows, rows)
        if isinstance(op, tensor.IotaOp) and op.out.shape[0] == rows:
            moved = arith.AddOp(first, op.out)
            assert op.parent is not None
            op.parent.insert(moved, op.next)
            moved.loc = op.loc
            op.out.replace_with(moved.result)
            moved.set_operands([first, op.out])
        if isinstance(op, (tile.LoadBlockOp, tile.StoreBlockOp)):
            here = Builder.at(op)
            starts = list(op.starts)
            axis = op.axes[0]
            starts[axis] = here.insert(arith.AddOp(starts[axis], first)).result
            op.set_field("starts", starts)


def _narrow(value: Value, before: int, after: int) -> None:
    shape = value.shape if not isinstance(value.type, BufferType) else ()
    if shape and shape[0] == before:
        value.set_type(TensorType((after, *shape[1:]), value.dtype))
