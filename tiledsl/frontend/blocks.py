"""Blocks of statements: assignments, and branches, which jumps out of device loops make too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tiledsl.dialects import scf
from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.expressions import Expressions, snapshot
from tiledsl.frontend.jumps import JUMPS, Jumps, called, jumping
from tiledsl.frontend.names import Scope
from tiledsl.ir.core import Region
from tiledsl.language.buffer import Buffer, Reference, TensorSpec, Var
from tiledsl.language.context import Context
from tiledsl.language.dtypes import DType
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_bool,
    as_value,
    cast,
    describe,
    is_number,
    unary,
)
from tiledsl.language.float4 import Float4Buffer, Float4Reference
from tiledsl.language.operations import copy
from tiledsl.location import Loc

_CHANGING = frozenset(
    {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}
)


class Blocks(Expressions):
    """Executes blocks of statements in a context, with names. What each kind of statement does, `handlers` says."""

    def __init__(self, ctx: Context, names: Scope) -> None:
        super().__init__(ctx, names)
        self._device_depth = 0
        self._outer_loops = len(ctx.jumps)  # those of the functions that call this one

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
            jumps = self.ctx.jumps[-1] if self.ctx.jumps else None
            if not isinstance(jumps, Jumps):
                self._step(statement, False)
                continue
            always = isinstance(statement, (syntax.Break, syntax.Continue)) or called(statement) in JUMPS
            may_jump = always or bool(jumping((statement,), self.names))
            self._step(statement, may_jump)
            if may_jump:
                following = () if always else statements[number + 1 :]
                # The value of a function is one that is used where nothing has left.
                value = following[-1:] if following and isinstance(following[-1], syntax.Return) else ()
                following = following[: len(following) - len(value)]
                if following:
                    go_on = unary("not", Scalar(jumps.skip.value()))
                    self._branch(as_value(go_on), following, (), statement.loc)
                for each in value:
                    self.execute(each)
                return

    def _step(self, statement: syntax.Statement, may_jump: bool) -> None:
        """Run a statement; functions that are expanded in it know whether what comes after it is guarded."""
        before, self.ctx.may_jump = self.ctx.may_jump, may_jump
        try:
            self.execute(statement)
        finally:
            self.ctx.may_jump = before

    # Assignment

    def _assign(self, node: syntax.Assign) -> None:
        value = self._held(node.value, self.evaluate(node.value))
        for target in node.targets:
            self.assign(target, value)

    def _held(self, node: syntax.Expression, value: Any) -> Any:
        """What an assignment binds: the values of variables and places, but a variable itself where it is made."""
        if isinstance(value, Var) and isinstance(node, syntax.Call):
            return snapshot(value) if any(value is each for each in self.names.local.values()) else value
        if isinstance(node, syntax.Tuple) and len(value) == len(node.elements):
            return tuple(self._held(*each) for each in zip(node.elements, value, strict=True))
        return snapshot(value)

    @contextmanager
    def on_device(self, region: Region, loc: Loc, repeats: bool) -> Iterator[None]:
        """Inside, statements become operations in a region of a loop (`repeats`) or a branch."""
        self._device_depth += 1
        try:
            with self.ctx.inside(region), self.names.device_region(loc, repeats=repeats):
                yield
        finally:
            self._device_depth -= 1

    def assign_indices(self, target: syntax.Expression, indices: Sequence[Any]) -> None:
        """A single index is itself, unless the target is a tuple; several are one."""
        self.assign(target, tuple(indices) if len(indices) > 1 or is_tuple(target) else indices[0])

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
        if isinstance(value, Float4Buffer):
            held = value.held.value
        if held is not None and not held.name:
            held.name = target.id
        self.names.set(target.id, value)

    def _assign_element(self, target: syntax.Subscript, value: Any) -> None:
        container, index = self.evaluate(target.value), self.evaluate(target.index)
        if isinstance(container, (list, dict)) and not isinstance(index, Expr):
            self._changes(container, target)
            self._host(target, container.__setitem__, index, value)
            return
        if not isinstance(container, (Buffer, Reference, Var, Float4Buffer)):
            raise TileError(f"{describe(container)} cannot be assigned to by index", target.loc)
        place = self.item(target, container, index)
        if isinstance(place, (Reference, Var, Float4Reference)):
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
        more = len(items) - len(target.elements)
        for at, element in enumerate(target.elements):
            if isinstance(element, syntax.Starred) and more >= -1:
                items = [*items[:at], items[at : at + more + 1], *items[at + more + 1 :]]
        if len(items) != len(target.elements):
            values = "1 value" if len(items) == 1 else f"{len(items)} values"
            raise TileError(f"{values} for {len(target.elements)} names", target.loc)
        for element, item in zip(target.elements, items, strict=True):
            self.assign(element.value if isinstance(element, syntax.Starred) else element, item)

    def _augmented(self, node: syntax.AugmentedAssign) -> None:
        old = self.evaluate(node.target)
        if isinstance(old, Reference) and old.is_region or isinstance(old, Buffer):
            raise TileError(
                f"{node.op}= on a whole tile; write a T.Parallel loop over its elements", node.loc, code="whole-tile"
            )
        if isinstance(old, (list, dict, set)):
            self._changes(old, node)
        # The target's indices are evaluated once: the place is read and written through `old`.
        value = self._arithmetic(node, node.op, old, self.evaluate(node.value), (node.target, node.value), True)
        if isinstance(old, (Reference, Var, Float4Reference)):
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
        self.assign(node.target, self._held(node.value, value))

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
        for region, statements in zip(regions, (body, orelse), strict=True):
            with self.on_device(region, loc, repeats=False):
                self.block(statements)
            scf.yielding(region)
        self.ctx.builder.insert(scf.IfOp(condition, regions=regions, loc=loc))

    def _need_kernel(self, what: str, node: syntax.Node) -> None:
        if self.ctx.kernel is None:
            raise TileError(
                f"`{what}` on a device value stands outside of T.Kernel, where nothing runs on the device", node.loc
            )


def is_tuple(target: syntax.Expression) -> bool:
    return isinstance(target, (syntax.Tuple, syntax.List))
