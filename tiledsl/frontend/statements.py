"""Executing statements: what depends on Python values runs now, what depends on device values becomes operations."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tiledsl.dialects import tile
from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.calls import bind
from tiledsl.frontend.expressions import Expressions, snapshot
from tiledsl.frontend.jumps import JUMPS, Jumps, called, jumping
from tiledsl.frontend.loops import Loops
from tiledsl.frontend.names import Scope, targets
from tiledsl.ir.core import Region
from tiledsl.ir.types import INT32
from tiledsl.language.barriers import GROUP, RoleFrame
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_bool,
    as_value,
    compare,
    logical,
)
from tiledsl.language.grid_barriers import split_at_grid_barriers
from tiledsl.language.program import BranchFrame, KernelFrame
from tiledsl.language.threads import AttrFrame, thread_number, threads_of

_MAX_CALL_DEPTH = 32


class Returned(Exception):
    """A return statement was reached."""

    def __init__(self, value: Any, loc: Any) -> None:
        super().__init__()
        self.value = value
        self.loc = loc


class Statements(Loops):
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

    def _pass(self, node: syntax.Pass) -> None:
        pass

    # Kernels, functions, the rest

    def _expression(self, statement: syntax.ExpressionStatement) -> None:
        node = statement.value
        jump = called(statement)
        if jump in JUMPS:
            (self._break if jump == "loop_break" else self._thread_return)(node)
            return
        value = self.evaluate(node)
        if isinstance(node, (syntax.Name, syntax.Attribute)) and callable(value):
            raise TileError(f"this names {getattr(value, '__name__', 'a function')} but does not call it", node.loc)

    def _with(self, node: syntax.With) -> None:
        if len(node.items) > 1:  # `with a, b:` is `with a: with b:`
            node = replace(node, items=node.items[:1], body=(replace(node, items=node.items[1:]),))
        ((expression, target),) = node.items
        frame = self.evaluate(expression)
        if isinstance(frame, BranchFrame):
            self._with_if(node, frame)
            return
        if isinstance(frame, RoleFrame):
            self._role(node, frame)
            return
        if isinstance(frame, AttrFrame) and self.ctx.threads is not None:
            outer, self.ctx.threads.reducer = self.ctx.threads.reducer, frame.node
            self.block(node.body)
            self.ctx.threads.reducer = outer
            return
        if not isinstance(frame, KernelFrame):
            raise TileError("the only `with` of the tile language is `with T.Kernel(...)`", expression.loc)
        if self.ctx.kernel is not None:
            raise TileError("a T.Kernel inside another one", node.loc)
        self._kernel(node, frame, target)

    def _role(self, node: syntax.With, frame: RoleFrame) -> None:
        """`with T.ws(0):` is a branch on the thread's number."""
        self._need_kernel("T.ws", node)
        number, count = thread_number("T.ws"), threads_of("T.ws").count
        if max(frame.groups) * GROUP >= count:
            raise TileError(
                f"T.ws: T.Kernel has {count} threads, so that there is no warp group {max(frame.groups)}",
                notes=[f"a warp group has {GROUP} threads; the first one is 0"],
            )
        taken: Any = False
        for group in frame.groups:
            inside = logical("and", compare("ge", number, group * GROUP), compare("lt", number, (group + 1) * GROUP))
            taken = inside if taken is False else logical("or", taken, inside)
        self._branch(as_value(taken), node.body, (), node.loc)

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
        ((condition, _),) = node.items
        self.ctx.builder.loc = condition.loc
        self._branch(as_value(as_bool(frame.condition)), then, orelse, node.loc)

    def _kernel(self, node: syntax.With, frame: KernelFrame, target: syntax.Expression | None) -> None:
        ctx = self.ctx
        grid = [as_value(extent, "int32") for extent in frame.grid]
        region = Region([INT32] * len(grid), ["bx", "by", "bz"][: len(grid)])
        op = tile.KernelOp(grid, threads=frame.threads, regions=[region], loc=node.loc)
        ctx.builder.insert(op)
        ctx.begin_kernel(op, frame.options, frame.thread_extents)
        safe_values = dict(ctx.safe_values)
        try:
            with ctx.inside(region, isolated=True), self.names.device_region(node.loc, False, in_kernel=True):
                if target is not None:
                    indices = tuple(Scalar(arg) for arg in region.args)
                    self._rename(target, region)
                    self.assign_indices(target, indices)
                leaves = Jumps(ctx, stops=False) if "return" in jumping(node.body, self.names) else None
                if leaves is not None:
                    leaves.skip.store(False)
                    self.ctx.jumps.append(leaves)
                self.block(node.body)
                if leaves is not None:
                    self.ctx.jumps.pop()
            assert ctx.threads is not None, "begin_kernel makes them"
            ctx.threads.enclose(op)
            op.set_attribute("options", tuple(ctx.kernel_options.items()))
            for launch in split_at_grid_barriers(op, ctx.threads.grid_barriers, ctx.of_tiles):
                ctx.builder.insert(launch)
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
        if isinstance(value, type) and issubclass(value, Exception):
            value = value.__name__
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

        defaults = self.defaults(node.parameters)

        def call(*arguments: Any, **keywords: Any) -> Any:
            return self.call_function(node, self.names.local, self.names.outer, arguments, keywords, defaults)

        call.__name__ = node.name
        call.expands = (node, self.names.local, self.names.outer)  # type: ignore[attr-defined]
        self.names.set(node.name, call)

    def call_function(
        self,
        node: syntax.Function,
        local: dict[str, Any],
        outer: Callable[[str], Any],
        arguments: Any,
        keywords: Any,
        defaults: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function's body here with its parameters bound; the value that it returns. Without `defaults`, those of
        parameters are evaluated now, where the function stands."""
        jumps = list(self.ctx.jumps)
        if not self.ctx.may_jump:
            self.ctx.jumps.append(None)
        inner = self.nested(outer)
        inner.names.local = dict(local)
        inner._in_function = True
        loc = self.ctx.builder.loc
        if self.ctx.calls.count(node) or len(self.ctx.calls) >= _MAX_CALL_DEPTH:
            raise TileError(
                f"{node.name} calls itself; a macro is expanded where it is called, so that would never end",
                notes=[("it is defined", node.loc), "use a loop"],
            )
        if defaults is None:
            defaults = inner.defaults(node.parameters)
        inner.names.local |= bind(node.name, node.parameters, arguments, keywords, defaults)
        inner.names.assigned = targets(node.body)
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
            self.ctx.jumps = jumps
            self.ctx.builder.loc = loc
        return None

    def nested(self, outer: Callable[[str], Any]) -> Statements:
        """Statements of a function that is expanded here."""
        return type(self)(self.ctx, Scope(outer))
