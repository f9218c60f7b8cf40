"""Loops: over Python values now, over device values as operations; break and continue as flags."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.blocks import Blocks, is_tuple
from tiledsl.frontend.expressions import snapshot
from tiledsl.frontend.jumps import Jumps, jumping
from tiledsl.ir.core import Region
from tiledsl.ir.types import INT32, ScalarType
from tiledsl.language.buffer import Buffer, Var
from tiledsl.language.context import TileLoop
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_bool,
    as_index,
    as_value,
    binary,
    compare,
    describe,
    logical,
    unary,
)
from tiledsl.language.loops import DeviceLoop, LoopNest, ParallelLoop, PersistentLoop, SerialLoop
from tiledsl.language.maths import ceildiv
from tiledsl.language.maths import min as minimum
from tiledsl.language.threads import ThreadIndex


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class Loops(Blocks):
    """Executes loops."""

    def _for(self, node: syntax.For) -> None:
        iterable = self.evaluate(node.iterable)
        if isinstance(iterable, DeviceLoop):
            self._need_kernel("for", node)
            if node.orelse:
                raise TileError("a device loop has no else", node.orelse[0].loc)
            if isinstance(iterable, SerialLoop):
                self._serial(node, iterable)
            elif isinstance(iterable, LoopNest):
                self._nest(node, iterable)
            elif isinstance(iterable, ParallelLoop):
                self._parallel(node, iterable)
            elif isinstance(iterable, PersistentLoop):
                self._persistent(node, iterable)
            return
        if isinstance(iterable, ThreadIndex):
            iterable = (iterable,)
        if isinstance(iterable, (Expr, Buffer)):
            raise TileError(
                f"a loop needs T.serial, T.Parallel, ... or a Python sequence, not {describe(iterable)}", node.loc
            )
        self.ctx.jumps.append(self._device_depth)
        try:
            for item in self._iterate(node.iterable, iterable):
                self.assign(node.target, item)
                try:
                    self.block(node.body)
                except _Continue:
                    continue
        except _Break:
            return
        finally:
            self.ctx.jumps.pop()
        self.block(node.orelse)

    def _serial(self, node: syntax.For, loop: SerialLoop) -> None:
        bounds = [loop.start, loop.stop, loop.step]
        self.ctx.builder.loc = node.loc
        indices = [as_index(bound) for bound in bounds]
        dtype = "int64" if any(index.dtype == "int64" for index in indices) else "int32"
        values = [as_value(Scalar(index), dtype) for index in indices]
        region = Region([ScalarType(dtype)])
        (index,) = region.args

        def body() -> None:
            if is_tuple(node.target):
                names = len(getattr(node.target, "elements", ()))
                raise TileError(
                    f"this loop gives one index and names {names}",
                    node.target.loc,
                    ["T.grid(a, b) and T.Parallel(a, b) give an index for each extent; T.Parallel's run at once"],
                )
            self.assign(node.target, Scalar(index))
            self.ctx.builder.loc = node.loc
            self._guarded(node, node.body)

        self._device_loop(node, region, body)
        scf.yielding(region)
        hints: dict[str, Any] = {"num_stages": loop.num_stages, "unroll": loop.unroll, "vectorized": loop.vectorized}
        self.ctx.builder.insert(scf.ForOp(*values, [], regions=[region], loc=node.loc, **hints))

    def _device_loop(
        self,
        node: syntax.For | syntax.While,
        region: Region,
        body: Callable[[], None],
        tile_loop: TileLoop | None = None,
    ) -> None:
        """Run `body` into the region, with the loop's names and its jump flags around it."""
        breaks = jumping(node.body, self.names)
        jumps = None
        if breaks:
            jumps = Jumps(self.ctx, bool(breaks & {"break", "return"}))
            if jumps.stop is not None:
                jumps.stop.store(False)
        self.ctx.jumps.append(jumps)
        self.ctx.loops.append(tile_loop)
        try:
            with self.on_device(region, node.loc, repeats=True):
                body()
        finally:
            self.ctx.loops.pop()
            self.ctx.jumps.pop()

    def _guarded(self, node: syntax.Node, statements: Sequence[syntax.Statement], condition: Any = None) -> None:
        """A loop's body, where a condition holds and the loop has not ended."""
        jumps = self.ctx.jumps[-1]
        if isinstance(jumps, Jumps):
            jumps.skip.store(False)
            if jumps.stop is not None:
                go_on = unary("not", Scalar(jumps.stop.value()))
                condition = go_on if condition is None else logical("and", go_on, condition)
        if condition is None:
            self.block(statements)
        else:
            self._branch(as_value(condition), statements, (), node.loc)

    def _nest(self, node: syntax.For, nest: LoopNest) -> None:
        """The loops of T.grid: each but the outermost is the body of the one before."""
        loops = nest.loops
        if len(loops) == 1 and not is_tuple(node.target):
            self._serial(node, loops[0])
            return
        targets = node.target.elements if isinstance(node.target, (syntax.Tuple, syntax.List)) else ()
        if len(targets) != len(loops):
            raise TileError(f"T.grid of {len(loops)} extents needs as many names", node.target.loc)
        if len(loops) > 1 and "break" in jumping(node.body, self.names):
            raise TileError(
                "break in T.grid: it would end the innermost loop only; write the loops one by one", node.loc
            )
        inner = node
        for target, loop in reversed(list(zip(targets, loops, strict=True))[1:]):
            made = replace(inner, target=target, iterable=syntax.Constant(node.iterable.loc, loop))
            inner = replace(node, body=(made,))
        self._serial(replace(inner, target=targets[0]), loops[0])

    def _parallel(self, node: syntax.For, loop: ParallelLoop) -> None:
        if "break" in jumping(node.body, self.names):
            raise TileError("the iterations of T.Parallel are independent: there is no break", node.loc)
        if "return" in jumping(node.body, self.names):
            raise TileError(
                "the iterations of T.Parallel are independent: there is no T.thread_return; write the condition around "
                "what is not to be done",
                node.loc,
            )
        self._chunks(node, loop, loop.chunked, {})

    def _chunks(self, node: syntax.For, loop: ParallelLoop, axes: Sequence[int], starts: dict[int, Any]) -> None:
        """Serial loops over the tiles along `axes`, and in them the iterations of a tile from `starts`."""
        if not axes:
            self._tile(node, loop, starts)
            return
        axis, *others = axes
        size = loop.extents[axis]
        stop = as_value(ceildiv(loop.limits[axis], size), "int32")
        region = Region([INT32])
        (index,) = region.args
        bounds = [as_value(0, "int32"), stop, as_value(1, "int32")]
        with self.on_device(region, node.loc, repeats=True):
            start = binary("mul", Scalar(index), size)
            self._chunks(node, loop, others, {**starts, axis: start})
        scf.yielding(region)
        self.ctx.builder.insert(scf.ForOp(*bounds, [], regions=[region], loc=node.loc))

    def _tile(self, node: syntax.For, loop: ParallelLoop, starts: dict[int, Any]) -> None:
        region = Region([INT32] * len(loop.extents))

        def body() -> None:
            indices: list[Any] = [Scalar(arg) for arg in region.args]
            for axis, start in starts.items():
                indices[axis] = start + indices[axis]
            self.assign_indices(node.target, indices)
            self.ctx.builder.loc = node.loc
            limits = zip(indices, loop.limits, strict=False)
            below = [compare("lt", index, limit) for index, limit in limits if limit is not None]
            self._guarded(
                node, node.body, functools.reduce(functools.partial(logical, "and"), below) if below else None
            )

        made = TileLoop(self.ctx.builder, [Scalar(arg) for arg in region.args], loop.extents, [])
        self._device_loop(node, region, body, made)
        self.ctx.builder.insert(tile.ParallelOp(extents=loop.extents, regions=[region], loc=node.loc))
        for emit in made.after:
            emit()

    def _persistent(self, node: syntax.For, loop: PersistentLoop) -> None:
        """Block `index` of `wave_size` takes the tiles index, index + wave_size, ... of the domain.

        The first dimension is walked in groups of `group_size`, for locality.
        """
        total: Any = 1
        for size in loop.domain:
            total = total * size
        # Of an empty domain nothing is divided, but by what is known when the program is built.
        sizes = [max(1, size) if isinstance(size, int) else size for size in loop.domain]
        *outer, rows, columns = (1, *sizes) if len(sizes) == 1 else sizes
        region = Region([INT32])
        (index,) = region.args

        def body() -> None:
            tile_id: Any = Scalar(index)
            remaining, number = tile_id // (rows * columns), tile_id % (rows * columns)
            width = loop.group_size * columns
            group = number // width
            height = minimum(rows - group * loop.group_size, loop.group_size)
            row = group * loop.group_size + number % width % height
            indices: list[Any] = [row, number % width // height]
            for size in reversed(outer):
                indices.insert(0, remaining % size)
                remaining = remaining // size
            indices = indices[-len(loop.domain) :]
            self.assign_indices(node.target, [*map(snapshot, indices)])
            self._guarded(node, node.body)

        values = [as_value(x, "int32") for x in (loop.index, total, loop.wave_size)]
        self._device_loop(node, region, body)
        scf.yielding(region)
        self.ctx.builder.insert(scf.ForOp(*values, [], regions=[region], loc=node.loc))

    def _while(self, node: syntax.While) -> None:
        before, after = Region(), Region()
        with self.ctx.inside(before):
            test = self.evaluate(node.test)
        if not isinstance(test, Expr):
            for op in reversed(before):
                op.erase()
            self._host_while(node, test)
            return
        self._need_kernel("while", node)
        if node.orelse:
            raise TileError("a device loop has no else", node.orelse[0].loc)
        stop: Var | None = None

        def body() -> None:
            nonlocal stop
            jumps = self.ctx.jumps[-1]
            stop = jumps.stop if isinstance(jumps, Jumps) else None
            self._guarded(node, node.body)

        self._device_loop(node, after, body)
        with self.ctx.inside(before):
            go_on = as_bool(test)
            if stop is not None:
                go_on = logical("and", go_on, unary("not", Scalar(stop.value())))
            before.insert(scf.ConditionOp(as_value(go_on), [], loc=node.loc))
        scf.yielding(after)
        self.ctx.builder.insert(scf.WhileOp([], regions=[before, after], loc=node.loc))

    def _host_while(self, node: syntax.While, test: Any) -> None:
        self.ctx.jumps.append(self._device_depth)
        try:
            for rounds in itertools.count():
                if not test:
                    break
                self._check_round(node, rounds)
                with contextlib.suppress(_Continue):
                    self.block(node.body)
                test = self.evaluate(node.test)
        except _Break:
            return
        finally:
            self.ctx.jumps.pop()
        self.block(node.orelse)

    def _break(self, node: syntax.Node) -> None:
        jumps = self._loop_flags("break", node)
        if jumps is None:
            raise _Break
        if jumps.stop is None:
            raise TileError("T.loop_break outside of a loop that it can end", node.loc)
        jumps.stop.store(True)
        jumps.skip.store(True)

    def _continue(self, node: syntax.Node) -> None:
        jumps = self._loop_flags("continue", node)
        if jumps is None:
            raise _Continue
        jumps.skip.store(True)

    def _thread_return(self, node: syntax.Node) -> None:
        """Leave the kernel: all that is around does nothing more."""
        if self.ctx.kernel is None:
            raise TileError("T.thread_return leaves a kernel: it stands inside of `with T.Kernel(...)`", node.loc)
        for jumps in self.ctx.jumps:
            if isinstance(jumps, int):
                raise TileError(
                    "T.thread_return in a loop that runs while the program is built",
                    node.loc,
                    ["make it a device loop: for i in T.serial(n)"],
                )
            if jumps is None:
                raise TileError(
                    "T.thread_return in a function that is called inside of an expression, or by another name",
                    node.loc,
                    ["call the macro by its name, as a statement of its own: name(...), or value = name(...)"],
                )
            jumps.skip.store(True)
            if jumps.stop is not None:
                jumps.stop.store(True)

    def _loop_flags(self, what: str, node: syntax.Node) -> Jumps | None:
        """The flags of the innermost loop; None for a loop that runs while the program is built."""
        if len(self.ctx.jumps) <= self._outer_loops:
            raise TileError(f"`{what}` outside of a loop", node.loc)
        jumps = self.ctx.jumps[-1]
        if isinstance(jumps, int) and jumps != self._device_depth:
            raise TileError(
                f"`{what}` of a loop that runs while the program is built depends on a value known only on the device",
                node.loc,
                ["make it a device loop: for i in T.serial(n)"],
                code="device-value",
            )
        return jumps if isinstance(jumps, Jumps) else None
