"""Executing statements: what depends on Python values runs now, what depends on device values becomes operations."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from tiledsl.dialects import scf, tile
from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.expressions import DEVICE_LOOPS, MAX_HOST_ITERATIONS, Expressions, snapshot
from tiledsl.frontend.names import Names
from tiledsl.ir.core import Region
from tiledsl.ir.types import INT32, BufferType, ScalarType
from tiledsl.language.buffer import Buffer, Reference, TensorSpec, Var
from tiledsl.language.context import Context, TileLoop
from tiledsl.language.dtypes import DType
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_bool,
    as_value,
    binary,
    cast,
    compare,
    describe,
    is_number,
    logical,
    unary,
)
from tiledsl.language.loops import LoopNest, ParallelLoop, PersistentLoop, SerialLoop
from tiledsl.language.maths import ceildiv
from tiledsl.language.maths import min as minimum
from tiledsl.language.operations import copy
from tiledsl.language.program import BranchFrame, KernelFrame

_MAX_CALL_DEPTH = 32
_CHANGING = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}
)


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class Returned(Exception):
    """A return statement was reached."""

    def __init__(self, value: Any, loc: Any) -> None:
        super().__init__()
        self.value = value
        self.loc = loc


class _Jumps:
    """The flags of a device loop whose body has break or continue."""

    def __init__(self, ctx: Context, stops: bool) -> None:
        self.skip = Var(ctx.alloc(BufferType((), "bool", "local"), "a loop", name="skip"))
        self.stop = Var(ctx.alloc(BufferType((), "bool", "local"), "a loop", name="stop")) if stops else None


class Statements(Expressions):
    """Executes statements in a context, with names."""

    methods: ClassVar[Mapping[type[syntax.Node], str]] = {
        **Expressions.methods,
        syntax.Assign: "_assign",
        syntax.AugmentedAssign: "_augmented",
        syntax.AnnotatedAssign: "annotated",
        syntax.ExpressionStatement: "_expression",
        syntax.If: "_if",
        syntax.For: "_for",
        syntax.While: "_while",
        syntax.With: "_with",
        syntax.Return: "_return",
        syntax.Raise: "_raise",
        syntax.Assert: "_assert",
        syntax.Import: "_import",
        syntax.Pass: "_pass",
        syntax.Break: "_break",
        syntax.Continue: "_continue",
        syntax.Function: "_function",
        syntax.Nonlocal: "_nonlocal",
    }

    def __init__(self, ctx: Context, names: Names) -> None:
        super().__init__(ctx, names)
        self._device_depth = 0
        # The loops around, innermost last: the flags of device loops (None without jumps), the depth of host loops.
        self._jumps: list[_Jumps | int | None] = []

    def execute(self, node: syntax.Statement) -> None:
        """Run one statement. Errors get its place, where they have none."""
        self.ctx.builder.loc = node.loc
        try:
            self.handlers[type(node)](self, node)
        except TileError as error:
            if error.loc is None:
                error.loc = node.loc
            raise

    def block(self, statements: Sequence[syntax.Statement]) -> None:
        """Run statements in order. After one that may jump out of a device loop, the rest is guarded."""
        for number, statement in enumerate(statements):
            self.execute(statement)
            jumps = self._jumps[-1] if self._jumps else None
            if not isinstance(jumps, _Jumps):
                continue
            if isinstance(statement, syntax.If) and _jumping((statement,)):
                rest = statements[number + 1 :]
                if rest:
                    go_on = unary("not", Scalar(jumps.skip.value()))
                    self._branch(as_value(go_on), rest, (), statement.loc)
                return
            if isinstance(statement, (syntax.Break, syntax.Continue)):
                return

    def _pass(self, node: syntax.Pass) -> None:
        pass

    # Assignment

    def _expression(self, statement: syntax.ExpressionStatement) -> None:
        node = statement.value
        if (
            isinstance(node, syntax.Call)
            and isinstance(node.function, syntax.Attribute)
            and node.function.attr == "loop_break"
        ):
            self._break(node)
            return
        value = self.evaluate(node)
        if isinstance(node, (syntax.Name, syntax.Attribute)) and callable(value) and not isinstance(value, Expr):
            raise TileError(f"this names {getattr(value, '__name__', 'a function')} but does not call it", node.loc)

    def _assign(self, node: syntax.Assign) -> None:
        value = _held(node.value, self.evaluate(node.value))
        for target in node.targets:
            self.assign(target, value)

    def assign(self, target: syntax.Expression, value: Any) -> None:
        self.ctx.builder.loc = target.loc
        if isinstance(target, syntax.Name):
            self._assign_name(target, value)
        elif isinstance(target, syntax.Subscript):
            self._assign_element(target, value)
        elif isinstance(target, (syntax.Tuple, syntax.List)):
            self._assign_several(target, value)
        else:
            raise TileError("this cannot be assigned to in the tile language", target.loc)

    def _assign_name(self, target: syntax.Name, value: Any) -> None:
        old = self.names.local.get(target.id)
        if isinstance(old, Var) and not isinstance(value, Var):
            if not isinstance(value, Expr) and not is_number(value):
                raise TileError(
                    f"{target.id} is a variable of type {old.dtype}; {describe(value)} cannot be stored in it"
                )
            old.store(value)
            return
        if isinstance(old, Buffer) and old.scope() != "global" and (isinstance(value, Expr) or is_number(value)):
            raise TileError(
                f"{target.id} is a buffer, and this would only give its name to {describe(value)}",
                target.loc,
                [f"store in it: T.fill({target.id}, value), or {target.id}[...] = value in a T.Parallel loop"],
            )
        held = value.value if isinstance(value, Buffer) else value.buffer if isinstance(value, Var) else None
        if isinstance(value, Scalar):
            held = value.value()
        if held is not None and not held.name:
            held.name = target.id
        self.names.set(target.id, value)

    def _assign_element(self, target: syntax.Subscript, value: Any) -> None:
        container, index = self.evaluate(target.value), self.evaluate(target.index)
        if isinstance(container, (list, dict)) and not isinstance(index, Expr):
            self._changes(container, target)
            self._host(target, container.__setitem__, index, value)
            return
        if not isinstance(container, (Buffer, Reference, Var)):
            raise TileError(f"{describe(container)} cannot be assigned to by index", target.loc)
        place = self.item(target, container, index)
        if isinstance(place, (Reference, Var)):
            if isinstance(place, Reference) and place.is_region and isinstance(value, (Buffer, Reference)):
                copy(value, place)
            else:
                place.store(value)

    def _changes(self, container: Any, node: syntax.Node) -> None:
        """Refuse to change a host list in device code, which would happen once and not at each iteration."""
        if self._device_depth and self.names.is_older(container):
            raise TileError(
                f"a Python {type(container).__name__} from outside this device loop or branch cannot be changed in it: "
                "that would happen once, while the program is built",
                node.loc,
                ["keep the values in a buffer: T.alloc_local, T.alloc_fragment or T.alloc_var"],
            )

    def callee(self, node: syntax.Call, function: Any, arguments: list[Any]) -> Any:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, (list, dict, set)) and getattr(function, "__name__", "") in _CHANGING:
            self._changes(owner, node)
        return super().callee(node, function, arguments)

    def _assign_several(self, target: syntax.Tuple | syntax.List, value: Any) -> None:
        if isinstance(value, (Expr, Buffer)):
            what = f"the buffer {value.name}" if isinstance(value, Buffer) else "one value"
            raise TileError(f"{what} cannot be unpacked into {len(target.elements)} names", target.loc)
        items = list(self._iterate(target, value))
        starred = [n for n, element in enumerate(target.elements) if isinstance(element, syntax.Starred)]
        if starred:
            at, after = starred[0], len(target.elements) - starred[0] - 1
            if len(items) >= len(target.elements) - 1:
                items = [*items[:at], items[at : len(items) - after], *items[len(items) - after :]]
        if len(items) != len(target.elements):
            values = "1 value" if len(items) == 1 else f"{len(items)} values"
            raise TileError(f"{values} for {len(target.elements)} names", target.loc)
        for element, item in zip(target.elements, items, strict=True):
            self.assign(element.value if isinstance(element, syntax.Starred) else element, item)

    def _augmented(self, node: syntax.AugmentedAssign) -> None:
        old = self.evaluate(node.target)
        if isinstance(old, Reference) and old.is_region or isinstance(old, Buffer):
            raise TileError(f"{node.op}= on a whole tile; write a T.Parallel loop over its elements", node.loc)
        # The target's indices are evaluated once: the place is read and written through `old`.
        value = self._arithmetic(node, node.op, old, self.evaluate(node.value), (node.target, node.value))
        if isinstance(old, (Reference, Var)):
            old.store(value)
        else:
            self.assign(node.target, value)

    def annotated(self, node: syntax.AnnotatedAssign) -> None:
        """`name: annotation [= value]`. The eager style declares its parameters in this way."""
        annotation = self.evaluate(node.annotation)
        if node.value is None:
            if isinstance(annotation, TensorSpec):
                raise TileError("only the parameters of an eager function are declared by an annotation", node.loc)
            return
        value = self.evaluate(node.value)
        if (
            isinstance(annotation, DType)
            and (isinstance(value, Expr) or is_number(value))
            and self.ctx.kernel is not None
        ):
            value = cast(value, annotation)
        self.assign(node.target, snapshot(value) if not isinstance(value, Var) else value)

    # Branches

    def _if(self, node: syntax.If) -> None:
        test = self.evaluate(node.test)
        if not isinstance(test, Expr):
            self.block(node.body if self._host(node, bool, test) else node.orelse)
            return
        self._need_kernel("if", node)
        self.ctx.builder.loc = node.test.loc
        self._branch(as_value(as_bool(test)), node.body, node.orelse, node.loc)

    def _branch(
        self, condition: Any, body: Sequence[syntax.Statement], orelse: Sequence[syntax.Statement], loc: Any
    ) -> None:
        self.ctx.builder.loc = loc
        regions = [Region(), Region()]
        self._device_depth += 1
        for region, statements in zip(regions, (body, orelse), strict=True):
            with self.ctx.inside(region), self.names.device_region(loc, repeats=False):
                self.block(statements)
            scf.yielding(region)
        self._device_depth -= 1
        self.ctx.builder.insert(scf.IfOp(condition, result_types=[], regions=regions, loc=loc))

    def _need_kernel(self, what: str, node: syntax.Node) -> None:
        if self.ctx.kernel is None:
            raise TileError(
                f"`{what}` on a device value stands outside of T.Kernel, where nothing runs on the device", node.loc
            )

    # Loops

    def _for(self, node: syntax.For) -> None:
        iterable = self.evaluate(node.iterable)
        if isinstance(iterable, DEVICE_LOOPS):
            self._need_kernel("for", node)
            if node.orelse:
                raise TileError("a device loop has no else", node.orelse[0].loc)
            if isinstance(iterable, SerialLoop):
                self._serial(node, iterable)
            elif isinstance(iterable, LoopNest):
                self._nest(node, iterable)
            elif isinstance(iterable, ParallelLoop):
                self._parallel(node, iterable)
            else:
                self._persistent(node, iterable)
            return
        if isinstance(iterable, (Expr, Buffer)):
            raise TileError(
                f"a loop needs T.serial, T.Parallel, ... or a Python sequence, not {describe(iterable)}", node.loc
            )
        self._jumps.append(self._device_depth)
        try:
            for item in self._iterate(node.iterable, iterable):
                self.assign(node.target, item)
                try:
                    self.block(node.body)
                except _Continue:
                    continue
            self.block(node.orelse)
        except _Break:
            pass
        finally:
            self._jumps.pop()

    def _serial(self, node: syntax.For, loop: SerialLoop) -> None:
        bounds = [loop.start, loop.stop, loop.step]
        wide = any(isinstance(bound, Expr) and bound.dtype in ("int64", "uint64", "uint32") for bound in bounds)
        dtype = "int64" if wide else "int32"
        self.ctx.builder.loc = node.loc
        values = [as_value(bound, dtype) for bound in bounds]
        region = Region([ScalarType(dtype)])

        def body() -> None:
            self.assign(node.target, Scalar(region.args[0]))
            self.ctx.builder.loc = node.loc
            self._guarded(node, node.body)

        self._device_loop(node, [region], body)
        scf.yielding(region)
        stages, unroll = loop.num_stages, loop.unroll
        self.ctx.builder.insert(
            scf.ForOp(*values, [], num_stages=stages, unroll=unroll, regions=[region], loc=node.loc)
        )

    def _device_loop(
        self,
        node: syntax.For | syntax.While,
        regions: list[Region],
        body: Callable[[], None],
        tile_loop: TileLoop | None = None,
    ) -> None:
        """Run `body` into the last region, with the loop's names and its jump flags around it."""
        breaks = _jumping(node.body)
        jumps = None
        if breaks:
            jumps = _Jumps(self.ctx, "break" in breaks)
            if jumps.stop is not None:
                jumps.stop.store(False)
        self._jumps.append(jumps)
        self.ctx.loops.append(tile_loop)
        self._device_depth += 1
        try:
            with self.ctx.inside(regions[-1]), self.names.device_region(node.loc, repeats=True):
                body()
        finally:
            self._device_depth -= 1
            self.ctx.loops.pop()
            self._jumps.pop()

    def _guarded(self, node: syntax.Node, statements: Sequence[syntax.Statement], condition: Any = None) -> None:
        """A loop's body, where a condition holds and the loop has not ended."""
        jumps = self._jumps[-1]
        if isinstance(jumps, _Jumps):
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
        if len(loops) == 1 and not _is_tuple(node.target):
            self._serial(node, loops[0])
            return
        targets = node.target.elements if isinstance(node.target, (syntax.Tuple, syntax.List)) else ()
        if len(targets) != len(loops):
            raise TileError(f"T.grid of {len(loops)} extents needs as many names", node.target.loc)
        if len(loops) > 1 and "break" in _jumping(node.body):
            raise TileError(
                "break in T.grid: it would end the innermost loop only; write the loops one by one", node.loc
            )
        inner = node
        for target, loop in reversed(list(zip(targets, loops, strict=True))[1:]):
            made = replace(inner, target=target, iterable=syntax.Constant(node.iterable.loc, loop))
            inner = replace(node, body=(made,))
        self._serial(replace(inner, target=targets[0]), loops[0])

    def _parallel(self, node: syntax.For, loop: ParallelLoop) -> None:
        if "break" in _jumping(node.body):
            raise TileError("the iterations of T.Parallel are independent: there is no break", node.loc)
        self._chunks(node, loop, loop.chunked, {})

    def _chunks(self, node: syntax.For, loop: ParallelLoop, axes: Sequence[int], starts: dict[int, Any]) -> None:
        """Serial loops over the tiles along `axes`, and in them the iterations of a tile from `starts`."""
        if not axes:
            self._tile(node, loop, starts)
            return
        size = loop.extents[axes[0]]
        stop = as_value(ceildiv(loop.limits[axes[0]], size), "int32")
        region = Region([INT32])
        (index,) = region.args
        bounds = [as_value(0, "int32"), stop, as_value(1, "int32")]
        self._device_depth += 1
        with self.ctx.inside(region), self.names.device_region(node.loc, repeats=True):
            start = binary("mul", Scalar(index), size)
            self._chunks(node, loop, axes[1:], {**starts, axes[0]: start})
        self._device_depth -= 1
        scf.yielding(region)
        self.ctx.builder.insert(scf.ForOp(*bounds, [], regions=[region], loc=node.loc))

    def _tile(self, node: syntax.For, loop: ParallelLoop, starts: dict[int, Any]) -> None:
        region = Region([INT32] * len(loop.extents))

        def body() -> None:
            indices: list[Any] = [Scalar(arg) for arg in region.args]
            for axis, start in starts.items():
                indices[axis] = start + indices[axis]
            self.assign(node.target, tuple(indices) if len(indices) > 1 or _is_tuple(node.target) else indices[0])
            self.ctx.builder.loc = node.loc
            inside = None
            for index, limit in zip(indices, loop.limits, strict=False):
                if limit is not None:
                    below = compare("lt", index, limit)
                    inside = below if inside is None else logical("and", inside, below)
            self._guarded(node, node.body, inside)

        made = TileLoop(self.ctx.builder, [Scalar(arg) for arg in region.args], loop.extents)
        self._device_loop(node, [region], body, made)
        self.ctx.builder.insert(tile.ParallelOp(extents=loop.extents, regions=[region], loc=node.loc))

    def _persistent(self, node: syntax.For, loop: PersistentLoop) -> None:
        """Block `index` of `wave_size` takes the tiles index, index + wave_size, ... of the domain.

        The first dimension is walked in groups of `group_size`, for locality.
        """
        *outer, rows, columns = (1, *loop.domain) if len(loop.domain) == 1 else loop.domain
        total: Any = rows * columns
        for size in outer:
            total = total * size
        region = Region([INT32])

        def body() -> None:
            tile_id: Any = Scalar(region.args[0])
            rest, number = tile_id // (rows * columns), tile_id % (rows * columns)
            width = loop.group_size * columns
            group = number // width
            height = minimum(rows - group * loop.group_size, loop.group_size)
            row = group * loop.group_size + number % width % height
            indices: list[Any] = [row, number % width // height]
            for size in reversed(outer):
                indices.insert(0, rest % size)
                rest = rest // size
            indices = indices[-len(loop.domain) :]
            self.assign(node.target, tuple(map(snapshot, indices)) if len(indices) > 1 else indices[0])
            self._guarded(node, node.body)

        values = [as_value(x, "int32") for x in (loop.index, total, loop.wave_size)]
        self._device_loop(node, [region], body)
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
        stop: list[Var | None] = [None]

        def body() -> None:
            jumps = self._jumps[-1]
            stop[0] = jumps.stop if isinstance(jumps, _Jumps) else None
            self._guarded(node, node.body)

        self._device_loop(node, [after], body)
        with self.ctx.inside(before):
            go_on = as_bool(test)
            if stop[0] is not None:
                go_on = logical("and", go_on, unary("not", Scalar(stop[0].value())))
            before.insert(scf.ConditionOp(as_value(go_on), [], loc=node.loc))
        scf.yielding(after)
        self.ctx.builder.insert(scf.WhileOp([], result_types=[], regions=[before, after], loc=node.loc))

    def _host_while(self, node: syntax.While, test: Any) -> None:
        self._jumps.append(self._device_depth)
        try:
            for _ in range(MAX_HOST_ITERATIONS):
                if not test:
                    self.block(node.orelse)
                    return
                self._check_length(node)
                with contextlib.suppress(_Continue):
                    self.block(node.body)
                test = self.evaluate(node.test)
            raise TileError(
                f"this loop, which runs while the program is built, does not end after {MAX_HOST_ITERATIONS} rounds",
                node.loc,
            )
        except _Break:
            pass
        finally:
            self._jumps.pop()

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

    def _loop_flags(self, what: str, node: syntax.Node) -> _Jumps | None:
        """The flags of the innermost loop; None for a loop that runs while the program is built."""
        if not self._jumps:
            raise TileError(f"`{what}` outside of a loop", node.loc)
        jumps = self._jumps[-1]
        if isinstance(jumps, int) and jumps != self._device_depth:
            raise TileError(
                f"`{what}` of a loop that runs while the program is built depends on a value known only on the device",
                node.loc,
                ["make it a device loop: for i in T.serial(n)"],
            )
        return jumps if isinstance(jumps, _Jumps) else None

    # Kernels, functions, the rest

    def _with(self, node: syntax.With) -> None:
        if len(node.items) > 1:  # `with a, b:` is `with a: with b:`
            node = replace(node, items=node.items[:1], body=(replace(node, items=node.items[1:]),))
        (expression, target) = node.items[0]
        frame = self.evaluate(expression)
        if isinstance(frame, BranchFrame):
            self._with_if(node, frame)
            return
        if not isinstance(frame, KernelFrame):
            raise TileError("the only `with` of the tile language is `with T.Kernel(...)`", expression.loc)
        if self.ctx.kernel is not None:
            raise TileError("a T.Kernel inside another one", node.loc)
        if self._device_depth:
            raise TileError("a T.Kernel inside of device code", node.loc)
        self._kernel(node, frame, target)

    def _with_if(self, node: syntax.With, frame: BranchFrame) -> None:
        """`with T.If(c):` around `with T.Then():` and `with T.Else():`."""
        if frame.keyword != "If":
            raise TileError(f"T.{frame.keyword} stands directly in a `with T.If(condition):`", node.loc)
        blocks: dict[str, Sequence[syntax.Statement]] = {}
        for statement in node.body:
            inner = self.evaluate(statement.items[0][0]) if isinstance(statement, syntax.With) else None
            keyword = inner.keyword if isinstance(inner, BranchFrame) else "If"
            if not isinstance(statement, syntax.With) or keyword == "If" or keyword in blocks:
                raise TileError("a T.If has one `with T.Then():` and at most one `with T.Else():`", statement.loc)
            rest = statement.items[1:]
            blocks[keyword] = (replace(statement, items=rest),) if rest else statement.body
        then, orelse = blocks.get("Then", ()), blocks.get("Else", ())
        if not isinstance(frame.condition, Expr):
            self.block(then if frame.condition else orelse)
            return
        self._need_kernel("T.If", node)
        self.ctx.builder.loc = node.items[0][0].loc
        self._branch(as_value(as_bool(frame.condition)), then, orelse, node.loc)

    def _kernel(self, node: syntax.With, frame: KernelFrame, target: syntax.Expression | None) -> None:
        ctx = self.ctx
        grid = [as_value(extent, "int32") for extent in frame.grid]
        region = Region([INT32] * len(grid), ["bx", "by", "bz"][: len(grid)])
        op = tile.KernelOp(grid, threads=frame.threads, regions=[region], loc=node.loc)
        ctx.builder.insert(op)
        ctx.begin_kernel(op, frame.options)
        safe_values = dict(ctx.safe_values)
        try:
            with ctx.inside(region, isolated=True), self.names.device_region(node.loc, False, in_kernel=True):
                if target is not None:
                    indices = tuple(Scalar(arg) for arg in region.args)
                    self._rename(target, region)
                    self.assign(target, indices if len(indices) > 1 or _is_tuple(target) else indices[0])
                self.block(node.body)
            op.set_attribute("options", tuple(ctx.kernel_options.items()))
        finally:
            ctx.kernel = None
            ctx.safe_values = safe_values  # what a kernel annotates holds in that kernel

    def _rename(self, target: syntax.Expression, region: Region) -> None:
        """Block indices carry the user's names."""
        targets = target.elements if isinstance(target, (syntax.Tuple, syntax.List)) else (target,)
        for each, arg in zip(targets, region.args, strict=False):
            if isinstance(each, syntax.Name):
                arg.name = each.id

    def _return(self, node: syntax.Return) -> None:
        if self._device_depth or self.ctx.kernel is not None and not self._in_function:
            raise TileError("return inside of device code; guard the rest with `if` instead", node.loc)
        raise Returned(None if node.value is None else self.evaluate(node.value), node.loc)

    _in_function = False

    def _raise(self, node: syntax.Raise) -> None:
        value = self.evaluate(node.value) if node.value is not None else "raise"
        raise TileError(f"{type(value).__name__}: {value}" if isinstance(value, Exception) else str(value), node.loc)

    def _assert(self, node: syntax.Assert) -> None:
        test = self.evaluate(node.test)
        message = str(self.evaluate(node.message)) if node.message is not None else ""
        if isinstance(test, Expr):
            self._need_kernel("assert", node)
            self.ctx.builder.insert(tile.AssertOp(as_value(as_bool(test)), message=message))
        elif not test:
            raise TileError("assertion failed" + (f": {message}" if message else ""), node.loc)

    def _nonlocal(self, node: syntax.Nonlocal) -> None:
        raise TileError(
            f"`{node.keyword} {node.names[0]}`: a tile program cannot rebind a name outside of it",
            node.loc,
            [
                "keep the value in a variable: T.alloc_var(dtype, init); a @T.macro changes one through a T.Ref "
                "parameter"
            ],
        )

    def _import(self, node: syntax.Import) -> None:
        for module, name, bound in node.names:
            imported = self._host(node, importlib.import_module, module)
            if name is not None:
                imported = self._host(node, getattr, imported, name)
            elif bound == module.split(".")[0]:
                imported = importlib.import_module(bound)
            self.names.set(bound, imported)

    def _function(self, node: syntax.Function) -> None:
        """A nested function: expanded where it is called, like a macro, with the names of here."""
        for decorator in node.decorators:
            value = self.evaluate(decorator)
            if getattr(value, "__name__", "") != "macro":
                raise TileError("functions inside a tile program can be @T.macro or plain", decorator.loc)

        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.call_function(node, self.names.local, self.names.outer, arguments, keywords)

        call.__name__ = node.name
        self.names.set(node.name, call)

    def call_function(
        self, node: syntax.Function, local: dict[str, Any], outer: Callable[[str], Any], arguments: Any, keywords: Any
    ) -> Any:
        """Run a function's body here with its parameters bound; the value that it returns."""
        inner = self.nested(outer)
        inner.names.local = dict(local)
        inner._in_function = True
        inner.names.body = node.body
        loc = self.ctx.builder.loc
        if self.ctx.calls.count(node) or len(self.ctx.calls) >= _MAX_CALL_DEPTH:
            raise TileError(
                f"{node.name} calls itself; a macro is expanded where it is called, so that would never end",
                notes=[("it is defined", node.loc), "use a loop"],
            )
        for name, value in bind(node, arguments, keywords, inner).items():
            inner.names.local[name] = value
        self.ctx.calls.append(node)
        try:
            inner.block(node.body)
        except Returned as returned:
            return snapshot(returned.value)
        except TileError as error:
            error.notes.append((f"in {node.name}, called", loc))
            raise
        finally:
            self.ctx.calls.pop()
            self.ctx.builder.loc = loc
        return None

    def nested(self, outer: Callable[[str], Any]) -> Statements:
        """Statements of a function that is expanded here."""
        return type(self)(self.ctx, Names(outer))


def bind(
    node: syntax.Function, arguments: Sequence[Any], keywords: dict[str, Any], scope: Statements
) -> dict[str, Any]:
    """Parameters and their values for a call. Values of variables are read, unless the parameter is a T.Ref."""
    bound: dict[str, Any] = {}
    rest = list(arguments)
    left = dict(keywords)
    for parameter in node.parameters:
        if parameter.kind == "*":
            bound[parameter.name], rest = tuple(rest), []
        elif parameter.kind == "**":
            bound[parameter.name], left = left, {}
        elif rest and parameter.kind != "kw":
            bound[parameter.name] = rest.pop(0)
        elif parameter.name in left and parameter.kind != "/":
            bound[parameter.name] = left.pop(parameter.name)
        elif parameter.default is not None:
            bound[parameter.name] = scope.evaluate(parameter.default)
        else:
            raise TileError(f"{node.name} is called without {parameter.name}")
        value = bound[parameter.name]
        if not _is_reference(parameter.annotation):
            bound[parameter.name] = snapshot(value) if isinstance(value, Var) else value
        elif not isinstance(value, (Var, Reference, Buffer)):
            raise TileError(
                f"{node.name}: {parameter.name} is passed by reference, so it is a variable or a place, not "
                f"{describe(value)}",
                notes=["make a variable: T.alloc_var(dtype, init)"],
            )
    if rest or left:
        extra = (
            f"{len(rest)} argument{'s' * (len(rest) > 1)} too many"
            if rest
            else f"the unknown argument {next(iter(left))}"
        )
        raise TileError(f"{node.name} is called with {extra}")
    return bound


def _is_reference(annotation: syntax.Expression | None) -> bool:
    """Whether a parameter's annotation is T.Ref, or T.Var, its older name."""
    if isinstance(annotation, syntax.Subscript):
        annotation = annotation.value
    return (
        isinstance(annotation, syntax.Attribute)
        and annotation.attr in ("Ref", "Var")
        or (isinstance(annotation, syntax.Name) and annotation.id in ("Ref", "Var"))
    )


def _held(node: syntax.Expression, value: Any) -> Any:
    """What an assignment binds: the values of variables and places, but a variable itself where it is made."""
    if isinstance(value, Var) and isinstance(node, syntax.Call):
        return value
    if type(value) is tuple and isinstance(node, syntax.Tuple) and len(value) == len(node.elements):
        return tuple(_held(*each) for each in zip(node.elements, value, strict=True))
    return snapshot(value)


def _is_tuple(target: syntax.Expression) -> bool:
    return isinstance(target, (syntax.Tuple, syntax.List))


@lru_cache(maxsize=1024)
def _jumping(statements: tuple[syntax.Statement, ...]) -> frozenset[str]:
    """Which of break and continue belong to the loop whose body this is."""
    found: set[str] = set()
    for statement in statements:
        if isinstance(statement, syntax.Break):
            found.add("break")
        elif isinstance(statement, syntax.Continue):
            found.add("continue")
        elif isinstance(statement, syntax.If):
            found |= _jumping(statement.body) | _jumping(statement.orelse)
        elif isinstance(statement, syntax.ExpressionStatement) and isinstance(statement.value, syntax.Call):
            function = statement.value.function
            if isinstance(function, syntax.Attribute) and function.attr == "loop_break":
                found.add("break")
    return frozenset(found)
