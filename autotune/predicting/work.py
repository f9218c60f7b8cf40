"""What a program does, read from its tile IR before anything is lowered: products, traffic, tiles, pipelined loops.

The pruner and the model ask for it once for each configuration, so it costs less than elaborating the program.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tiledsl.analysis.affine import divisor
from tiledsl.analysis.block_access import strides_of
from tiledsl.analysis.dependence import ancestors, depends_on
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.analysis.tile_parts import LEAST_ROWS, LEAST_SUMMED, divided, padded
from tiledsl.autotuner.predicting.index_values import constant, grid_axes, is_data_dependent, trip_counts
from tiledsl.autotuner.predicting.liveness import live_bytes
from tiledsl.autotuner.predicting.work_types import Dot, Loop, Reduction, Traffic, Work
from tiledsl.dialects import arith, scf, tile
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS, BufferType
from tiledsl.kernels.kernel import Kernel
from tiledsl.launch_options import LAUNCH_OPTIONS
from tiledsl.math_functions import MATH_FUNCTIONS


def work_of(kernel: Kernel) -> tuple[Work, ...]:
    """The launches of a kernel, read once; none of a kernel of Triton."""
    build = kernel._build  # which makes a kernel that is not built yet
    known: tuple[Work, ...] | None = kernel.__dict__.get("_work")
    if known is None:
        known = kernel.__dict__["_work"] = tuple(read(build(), kernel.pass_configs))
    return known


def read(root: Operation, pass_configs: Mapping[str, Any] | None = None) -> list[Work]:
    """The launches of a program as the front-end elaborated it."""
    return [launch.under(pass_configs or {}) for launch in launches(root)]


def launches(root: Operation) -> list[KernelLaunch]:
    """The launches of a program, to be read under one set of the compiler's options after another."""
    return [KernelLaunch(op) for op in root.walk() if isinstance(op, tile.KernelOp)]


class KernelLaunch:
    """One launch of a program. What does not depend on the compiler's options is read once."""

    def __init__(self, kernel: tile.KernelOp) -> None:
        self._kernel = kernel
        self._read: dict[Any, Work] = {}  # by the depth of loops that do not say theirs

    def under(self, pass_configs: Mapping[str, Any]) -> Work:
        """What the launch does under these options. Launches read before share what they have in common: not to be
        changed."""
        kernel = self._kernel
        options = {name: value for name, value in kernel.options if name != "swizzle"}
        for name in LAUNCH_OPTIONS:
            options[name] = pass_configs.get(f"lower-to-triton.{name}") or options.get(name)
        depth = options.get("num_stages")
        if depth not in self._read:
            grid = tuple(None if (n := constant(each)) is None else int(n) for each in kernel.grid)
            work = Work(kernel.sym_name, grid, kernel.threads, options, is_static=None not in grid)
            _Reader(kernel, work).run()
            self._read[depth] = work
        hint = kernel.option("swizzle")
        panel = int(pass_configs.get("map-grid.group_m") or (hint[0] if isinstance(hint, tuple) else 0))
        persistent = int(pass_configs.get("map-grid.persistent") or 0)
        return replace(
            self._read[depth], options=options, panel=panel, persistent=persistent,
            emitter=str(pass_configs.get("select-emitter.backend", "auto")),
            is_skewed=bool(pass_configs.get("schedule-loops.skew", True)),
            has_one_group=pass_configs.get("select-emitter.consumers") == "one",
        )  # fmt: skip


class _Reader:
    def __init__(self, kernel: tile.KernelOp, work: Work) -> None:
        self.kernel, self.work = kernel, work
        self.axes = {value: axis for axis, value in enumerate(kernel.body.args)}
        self.writers: dict[Value, list[Operation]] = {}
        self.numbers: dict[Operation, int] = {}  # of products
        self.threads = 1  # that run the body; what the whole block does in it
        self.apart: frozenset[Operation] = frozenset()

    def run(self) -> None:
        for op in self.kernel.walk():
            if isinstance(op, (tile.AllocOp, tile.ViewOp)):
                self.note_tile(op.results[0])
            elif isinstance(op, tile.GemmOp):
                self.numbers[op] = len(self.numbers)
            for written in _written(op):
                self.writers.setdefault(written, []).append(op)
        self.walk(self.kernel.body, 1.0, 1.0, ())
        self.work.live_bytes = live_bytes(self.kernel)

    def note_tile(self, value: Value) -> None:
        type = tile.buffer_type(value)
        self.work.dtypes.add(value.dtype)
        if type.scope in ("shared", "fragment") and type.is_static:
            elements = math.prod(padded(each) for each in type.static_shape)
            if elements > self.work.largest_tile:
                self.work.largest_tile, self.work.largest_name = elements, value.name or "a tile"

    def walk(self, ops: Iterable[Operation], times: float, most: float, points: tuple[Value, ...]) -> None:
        """`points`: the indices of enclosing T.Parallel loops. `times` counts all iterations of a block on average,
        `most` those of the block with most, over the average."""
        for op in ops:
            inner, inside, inner_most = times, points, most
            if isinstance(op, tile.GemmOp):
                self.dot(op, times / self.threads)
            elif isinstance(op, tile.CopyOp):
                self.copy(op, times / self.threads, most)
            elif isinstance(op, (tile.LoadOp, tile.StoreOp, tile.AtomicOp)):
                self.access(op, times, most, points)
            elif isinstance(op, arith.MathOp):
                if MATH_FUNCTIONS[op.function].is_cheap:
                    self.work.elementwise += times
                else:
                    self.work.special += times
            elif isinstance(op, arith.Elementwise) and op.result.dtype.startswith(("float", "bfloat")):
                self.work.elementwise += times
            elif isinstance(op, tile.ReduceOp):
                self.reduction(op, times / self.threads)
            elif isinstance(op, scf.ForOp):
                counted = trip_counts(op, self.axes, self.work.grid)
                if counted is None:
                    self.work.is_static = False
                trips, longest = counted or (1.0, 1.0)
                inner_most *= longest / trips if trips else 1.0
                self.work.longest = max(self.work.longest, inner_most)
                self.pipeline(op, trips, times)
                inner *= trips
            elif isinstance(op, scf.WhileOp):
                self.work.is_static = False
            elif isinstance(op, tile.ParallelOp):
                if op.lockstep:
                    self.threads, self.apart = math.prod(op.extents), Variance(op).apart
                inner *= math.prod(op.extents) / (self.threads if op in self.apart else 1)
                inside = (*(() if op in self.apart else points), *op.body.args)
            for region in op.regions:
                self.walk(region, inner, inner_most, inside)

    def dot(self, op: tile.GemmOp, times: float) -> None:
        writers = self.writers.get(op.a, [])
        is_loaded = all(isinstance(each, tile.CopyOp) and _is_global(each.source) for each in writers)
        self.work.dots.append(replace(self.dot_of(op, times), is_computed=bool(writers) and not is_loaded))

    def reduction(self, op: tile.ReduceOp, times: float) -> None:
        type = tile.buffer_type(op.source)
        elements = type.numel() or 1
        self.work.elementwise += times * elements
        length = type.static_shape[op.axis] if type.is_static else 1
        of_sums = any(isinstance(each, tile.GemmOp) for each in self.writers.get(op.source, []))
        self.work.reductions.append(Reduction(elements // max(1, length), length, times, of_sums))

    def copy(self, op: tile.CopyOp, times: float, most: float) -> None:
        elements = math.prod(op.shape)
        for side, offsets, is_store in (
            (op.source, op.source_offsets, False),
            (op.target, op.target_offsets, True),
        ):
            if _is_global(side):
                self.touch(side, offsets, elements * times, most, is_store)

    def access(
        self, op: tile.LoadOp | tile.StoreOp | tile.AtomicOp, times: float, most: float, points: tuple[Value, ...]
    ) -> None:
        if tile.buffer_type(op.buffer).scope != "global":
            return
        unused = {point for point in points if not any(depends_on(index, [point]) for index in op.indices)}
        for point in unused:  # every iteration along this index touches the same element
            owner = point.owner
            parallel = next(p for p in ancestors(op) if isinstance(p, tile.ParallelOp) and p.body is owner)
            times /= parallel.extents[parallel.body.args.index(point)]
        self.touch(op.buffer, op.indices, times, most, not isinstance(op, tile.LoadOp))

    def touch(self, buffer: Value, indices: Iterable[Value], elements: float, most: float, is_store: bool) -> None:
        type = tile.buffer_type(buffer)
        width = ELEMENTS[buffer.dtype].bits / 8
        self.work.dtypes.add(buffer.dtype)
        elements_there = type.numel()
        size = None if elements_there is None else int(elements_there * width)
        indices = list(indices)
        axes = frozenset(axis for index in indices for axis in grid_axes(index, self.axes))
        scattered = any(is_data_dependent(index) for index in indices)
        name = buffer.name or "a buffer"
        amount = elements * width
        self.work.traffic.append(Traffic(name, amount, amount * most, size, axes, is_store, scattered))
        if size is None:
            self.work.is_static = False

    # Pipelining

    def pipeline(self, loop: scf.ForOp, trips: float, times: float) -> None:
        """Note a loop that loads, and what Triton will keep in shared memory for it. Innermost loops without branches
        are pipelined."""
        stages = loop.num_stages or int(self.work.options.get("num_stages") or 1)
        children = list(loop.body)
        nested = any(isinstance(op, (scf.ForOp, scf.IfOp, scf.WhileOp)) for op in loop.body.walk())
        if nested or loop.unroll or trips <= 1 or stages > 64:
            stages = 1
        work_of_loop = Loop(max(1, stages), trips, times=times)
        for op in children:
            if isinstance(op, tile.GemmOp):
                dot = self.dot_of(op, times * trips)
                self.operand(op.a, dot, loop, work_of_loop, is_turned=op.trans_a)
                self.operand(op.b, dot, loop, work_of_loop, is_turned=False)
        if work_of_loop.staged or work_of_loop.held or stages > 1 or trips > 1 and any(map(_loads, children)):
            self.work.loops.append(work_of_loop)

    def dot_of(self, op: tile.GemmOp, times: float) -> Dot:
        m, n = tile.buffer_type(op.c).static_shape[-2:]
        k = tile.buffer_type(op.a).static_shape[-2 if op.trans_a else -1]
        return Dot(
            divided(m, LEAST_ROWS), divided(n), divided(k, LEAST_SUMMED), op.a.dtype, times,
            not op.trans_a and op.trans_b, op.precision,
            2.0 * m * n * k, _name(op.c), self.numbers[op],
        )  # fmt: skip

    def operand(self, buffer: Value, dot: Dot, loop: scf.ForOp, work: Loop, is_turned: bool) -> None:
        writers = self.writers.get(buffer, [])
        if len(writers) != 1 or not isinstance(writers[0], tile.CopyOp):
            return
        copy = writers[0]
        whole = math.prod(copy.shape) == tile.buffer_type(buffer).numel()
        if tile.buffer_type(copy.source).scope != "global" or copy.source.dtype != buffer.dtype or not whole:
            return
        bytes = math.prod(map(divided, copy.shape)) * ELEMENTS[buffer.dtype].bits // 8
        inside = copy.parent is loop.body
        if inside and vectorizes(copy):
            work.staged[_name(buffer)] = (bytes, dot)
            if is_turned:
                work.turned.add(_name(buffer))
        elif not inside and copy.parent is self.kernel.body:
            work.held[_name(buffer)] = (bytes, dot)


def vectorizes(copy: tile.CopyOp) -> bool:
    """Whether Triton can copy four bytes or more at once, without which it does not copy asynchronously."""
    type = tile.buffer_type(copy.source)
    if not isinstance(type, BufferType) or not type.is_static or copy.source_axes[-1] != len(type.shape) - 1:
        return False
    if tuple(copy.source_axes) != tuple(copy.target_axes) and len(copy.shape) == len(type.shape):
        return False
    step = max(1, 4 // max(1, ELEMENTS[copy.source.dtype].bits // 8))
    strides = [stride for stride in strides_of(type) if isinstance(stride, int)]
    if len(strides) != len(type.shape) or strides[-1] != 1:
        return False
    if any(stride % step for stride in strides[:-1]) or type.static_shape[-1] % step or copy.shape[-1] % step:
        return False
    return not copy.source_offsets or divisor(copy.source_offsets[-1]) % step == 0


def _is_global(value: Value) -> bool:
    return tile.buffer_type(value).scope == "global"


def _loads(op: Operation) -> bool:
    """Whether an operation of a loop's body, or one in a T.Parallel there, loads from global memory."""
    if isinstance(op, tile.ParallelOp):
        return any(isinstance(each, tile.LoadOp) and _is_global(each.buffer) for each in op.walk())
    return isinstance(op, tile.CopyOp) and _is_global(op.source)


def _name(value: Value) -> str:
    return value.name or f"buffer {id(value):x}"


def _written(op: Operation) -> list[Value]:
    if isinstance(op, (tile.CopyOp, tile.ReduceOp, tile.ScanOp)):
        return [op.target]
    if isinstance(op, tile.GemmOp):
        return [op.c]
    if isinstance(op, tile.FillOp):
        return [op.operands[-1]]
    if isinstance(op, (tile.StoreOp, tile.AtomicOp, tile.WriteOp)):
        return [op.buffer]
    if isinstance(op, tile.ViewOp):  # written through the view, perhaps
        return [op.source, op.result]
    return []
