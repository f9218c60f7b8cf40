"""From functions and their arguments to tile programs: both styles, macros, and what every program must satisfy."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from tiledsl.dialects import tile
from tiledsl.errors import TileError, brief, way_out
from tiledsl.frontend import syntax
from tiledsl.frontend.names import Scope, outer_names, targets
from tiledsl.frontend.parser import parse_function
from tiledsl.frontend.statements import Returned, Statements
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import BufferType
from tiledsl.language.buffer import Buffer, TensorSpec
from tiledsl.language.context import Context, EagerContext
from tiledsl.language.dtypes import DType, canonical
from tiledsl.language.expression import Symbol, context, describe, plain
from tiledsl.language.refused import Refused
from tiledsl.logs import warn_once


class Arguments:
    """Shapes, strides and dtypes of the tensors that an eager function is called with."""

    def __init__(self, shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> None:
        self.shape = tuple(shape)
        self.dtype = dtype
        self.strides = None if strides is None else tuple(strides)


def elaborate(
    function: Callable[..., Any], frame_locals: Mapping[str, Any] | None = None, out_idx: Sequence[int] = ()
) -> tile.FuncOp:
    """The program of a function under @T.prim_func, with the names around it. `out_idx` are positions of parameters
    (negative ones from the end) that the runtime allocates and returns. Raises TileError."""
    outer = outer_names(function, frame_locals or {})
    return elaborate_tree(parse_function(function), outer, out_idx, getattr(function, "__annotations__", {}))


def elaborate_tree(
    tree: syntax.Function,
    outer: Callable[[str], Any],
    out_idx: Sequence[int] = (),
    annotations: Mapping[str, Any] | None = None,
    statements: Callable[[Context, Scope], Statements] = Statements,
) -> tile.FuncOp:
    """The program of a parsed function. `annotations` are the parameters' types where they are known already."""
    ctx = Context(tree.name)
    ctx.loc = tree.loc
    names = Scope(outer)
    scope = statements(ctx, names)
    with ctx.activate():
        for parameter in tree.parameters:
            names.local[parameter.name] = _declare(ctx, scope, parameter, (annotations or {}).get(parameter.name))
        names.assigned = targets(tree.body)
        with contextlib.suppress(Returned):
            scope.block(tree.body)
    outputs = _positions(out_idx, len(ctx.parameters), tree)
    func = ctx.finish(returns_list=True, outputs=outputs)
    _check_written(func, [ctx.parameters[position][1] for position in outputs], tree)
    return func


def _declare(ctx: Context, scope: Statements, parameter: syntax.Parameter, annotation: Any) -> Any:
    if parameter.kind in ("*", "**"):
        raise TileError(
            f"{parameter.kind}{parameter.name}: a tile program has a fixed number of parameters", parameter.loc
        )
    if annotation is None or isinstance(annotation, str):
        if parameter.annotation is None and parameter.name == "self":
            raise TileError(
                "a tile program cannot be a method", parameter.loc, ["write it inside of the method that returns it"]
            )
        if parameter.annotation is None:
            raise TileError(
                f"parameter {parameter.name} has no type; write {parameter.name}: T.Tensor((M, N), dtype)",
                parameter.loc,
            )
        annotation = scope.evaluate(parameter.annotation)
    return _parameter(ctx, parameter, annotation)


def _parameter(ctx: Context, parameter: syntax.Parameter, annotation: Any) -> Any:
    if not isinstance(annotation, TensorSpec):
        if isinstance(annotation, Refused):
            raise TileError(annotation.error, parameter.loc)
        try:
            annotation = canonical(annotation)
        except TileError:
            raise TileError(
                f"parameter {parameter.name} is {annotation!r}, neither a T.Tensor nor an element type", parameter.loc
            ) from None
    return ctx.parameter(parameter.name, annotation)


def _positions(out_idx: Sequence[int], count: int, tree: syntax.Function) -> tuple[int, ...]:
    positions = []
    for index in out_idx:
        if not -count <= index < count:
            raise TileError(f"out_idx {index}, but {tree.name} has {count} parameters", tree.loc)
        positions.append(index % count)
    if len(set(positions)) != len(positions):
        raise TileError(f"out_idx names a parameter of {tree.name} twice: {list(out_idx)}", tree.loc)
    return tuple(positions)


def _check_written(func: tile.FuncOp, outputs: Sequence[Value], tree: syntax.Function) -> None:
    """An output must be written, the program must write, print or check something. An output that is not written beside
    one that is, or in this configuration, is returned as zeros, and a remark says so."""
    kernels = tile.kernels(func)
    if not kernels:
        raise TileError(f"{tree.name} has no `with T.Kernel(...)`, so nothing would run", tree.loc)
    written = {value for value in func.body.args if isinstance(value.type, BufferType) and _is_written(value)}
    for value in outputs:
        if not isinstance(value.type, BufferType):
            raise TileError(f"out_idx names {value.name} of {tree.name}, which is not a tensor", tree.loc)
    for value in outputs:
        if value in written:
            continue
        message = f"the output {value.name} of {tree.name} is never written"
        if written.isdisjoint(outputs) and not _in_a_branch(tree.body, value.name):
            raise TileError(message, tree.loc)
        kernels[0].add_remark(f"{message}: it is returned as zeros")
        warn_once(f"{tree.name}: this configuration writes nothing to the output {value.name}")
    if not written and not of_kinds(func.walk(), tile.PrintOp, tile.AssertOp):
        raise TileError(f"{tree.name} writes none of its tensors", tree.loc)


def _in_a_branch(node: Any, name: str, inside: bool = False) -> bool:
    """Whether the code under some `if` names a variable: an output may be written in some configurations only."""
    if isinstance(node, tuple):
        return any(_in_a_branch(item, name, inside) for item in node)
    if not isinstance(node, syntax.Node):
        return False
    if isinstance(node, syntax.Name):
        return inside and node.id == name
    inside = inside or isinstance(node, syntax.If)
    return any(_in_a_branch(getattr(node, field.name), name, inside) for field in fields(node))


def _is_written(value: Value) -> bool:
    for op in value.uses:
        if isinstance(op, tile.ViewOp) and _is_written(op.out):
            return True
        if isinstance(op, tile.CopyOp) and op.target is value:
            return True
        if isinstance(op, (tile.StoreOp, tile.AtomicOp)) and op.buffer is value:
            return True
    return False


class EagerStatements(Statements):
    """Statements of an eager function, whose annotations declare the tensor parameters."""

    pending: Mapping[str, Any] = {}
    ctx: EagerContext

    def annotated(self, node: syntax.AnnotatedAssign) -> None:
        name = node.target.id if isinstance(node.target, syntax.Name) else ""
        if node.value is not None or name not in self.pending:
            super().annotated(node)
            return
        self.declare(name, self.evaluate(node.annotation), node)

    def declare(self, name: str, annotation: Any, node: syntax.Node) -> None:
        """Bind a parameter to what its annotation says; in the dry run, learn the T.const values from the call."""
        if not isinstance(annotation, (TensorSpec, DType)):
            return
        argument = self.pending[name]
        if self.ctx.dry:
            if isinstance(annotation, TensorSpec) and isinstance(argument, Arguments):
                self._unify(name, annotation, argument, node)
            elif isinstance(annotation, TensorSpec) and argument is not None:
                raise TileError(
                    f"{name} is a tensor, but the call gives {describe(argument)}",
                    node.loc,
                    [way_out("pass a torch.Tensor", f"leave out -D {name}=..., and give sizes")],
                )
            return
        if isinstance(annotation, TensorSpec) and isinstance(argument, Arguments):
            annotation = TensorSpec(annotation.shape, annotation.dtype, annotation.strides)
        self.names.local[name] = self.ctx.parameter(name, annotation)

    def _unify(self, name: str, spec: TensorSpec, given: Arguments, node: syntax.Node) -> None:
        if len(spec.shape) != len(given.shape):
            raise TileError(
                f"{name} has {len(given.shape)} dimensions {given.shape}, but is declared as {spec!r}", node.loc
            )
        for axis, (dim, size) in enumerate(zip(spec.shape, given.shape, strict=True)):
            self._learn(dim, size, f"dimension {axis} of {name}", node)
        for axis, (dim, size) in enumerate(zip(spec.strides or (), given.strides or (), strict=False)):
            self._learn(dim, size, f"the stride of dimension {axis} of {name}", node)

    def _learn(self, dim: Any, size: int, what: str, node: syntax.Node) -> None:
        """A T.const symbol that stands by itself takes the tensor's size; a second one must agree."""
        if isinstance(dim, Symbol) and dim.name in self.ctx.consts:
            known = self.ctx.values.setdefault(dim.name, size)
            if known != size:
                raise TileError(f"{what} is {size}, but {dim.name} is {known}", node.loc)


def elaborate_eager(
    function: Any,
    arguments: Mapping[str, Any],
    frame_locals: Mapping[str, Any] | None = None,
    dynamic: bool = False,
) -> tile.FuncOp:
    """The program of an eager function for one call.

    `arguments` gives each parameter's value: Arguments for tensors, None for tensors of a compile() without them, other
    values as they are; further names are values of T.const symbols. dynamic: T.const symbols that nothing gives a value
    are dynamic dimensions. Raises TileError.
    """
    tree = parse_function(function)
    parameters = {parameter.name: parameter for parameter in tree.parameters}
    sizes = {name: _size(tree.name, name, value) for name, value in arguments.items() if name not in parameters}
    outer, values = outer_names(function, frame_locals or {}), dict(sizes)
    for dry in (True, False):
        ctx = EagerContext(tree.name, values, dry, dynamic)
        returned = _run_in(ctx, tree, function, arguments, outer)
    for name in sizes:
        if name not in ctx.consts:
            known = [f"its parameters are {', '.join(parameters)}", f"its T.const symbols {', '.join(ctx.consts)}"]
            raise TileError(
                f"{tree.name} has no parameter and no T.const {name!r}", notes=known[: 1 + bool(ctx.consts)]
            )
    return _finish_eager(ctx, tree, returned)


def eager_sizes(
    function: Any, arguments: Mapping[str, Any], frame_locals: Mapping[str, Any] | None = None
) -> dict[str, int]:
    """The T.const symbols of an eager function that the arguments of a call tell, with their values; arguments as in
    elaborate_eager. Nothing of the program is elaborated. Raises TileError for tensors that contradict each other."""
    tree = parse_function(function)
    parameters = {parameter.name for parameter in tree.parameters}
    values = {name: _size(tree.name, name, value) for name, value in arguments.items() if name not in parameters}
    ctx = EagerContext(tree.name, values, dry=True)
    _run_in(ctx, tree, function, arguments, outer_names(function, frame_locals or {}))
    return {name: values[name] for name in ctx.consts if name in values}


def _size(function: str, name: str, value: Any) -> int:
    """The value of a T.const symbol."""
    number = plain(value)
    try:
        return operator.index(int(number) if isinstance(number, float) and number.is_integer() else number)
    except TypeError:
        message = f"{function}: {name} is {brief(value)}; it is not a parameter, and a T.const is an integer"
        raise TileError(message) from None


def _run_in(
    ctx: EagerContext, tree: syntax.Function, function: Any, arguments: Mapping[str, Any], outer: Any
) -> Returned | None:
    ctx.loc = tree.loc
    scope = EagerStatements(ctx, Scope(outer))
    scope.pending = {parameter.name: arguments.get(parameter.name) for parameter in tree.parameters}
    with ctx.activate():
        _bind_parameters(scope, tree, function)
        return _run(scope, tree, ctx.dry)


def _bind_parameters(scope: EagerStatements, tree: syntax.Function, function: Any) -> None:
    annotations = getattr(function, "__annotations__", {})
    declared = _declared(tree)
    for parameter in tree.parameters:
        value, annotation = scope.pending[parameter.name], annotations.get(parameter.name)
        if isinstance(annotation, str) and is_tensor_annotation(parameter.annotation):
            assert parameter.annotation is not None
            annotation = scope.evaluate(parameter.annotation)
        if isinstance(annotation, TensorSpec) and parameter.name not in declared:
            scope.declare(parameter.name, annotation, parameter)
        elif not isinstance(value, Arguments) and not (value is None and parameter.name in declared):
            scope.names.local[parameter.name] = value


def declared_parameters(function: Any) -> list[str]:
    """The parameters of an eager function that its kernels have, too: tensors, and scalars that it declares."""
    tree, annotations = parse_function(function), getattr(function, "__annotations__", {})
    declared = _declared(tree)
    return [
        parameter.name
        for parameter in tree.parameters
        if parameter.name in declared
        or isinstance(annotations.get(parameter.name), TensorSpec)
        or is_tensor_annotation(parameter.annotation)
    ]


def _declared(tree: syntax.Function) -> set[str]:
    """The names that stand in a statement with a type."""
    return {
        s.target.id for s in tree.body if isinstance(s, syntax.AnnotatedAssign) and isinstance(s.target, syntax.Name)
    }


def is_tensor_annotation(node: syntax.Expression | None) -> bool:
    """Whether an annotation reads T.Tensor(...), T.Tensor[...] or the same with T.StridedTensor."""
    called = (
        node.function if isinstance(node, syntax.Call) else node.value if isinstance(node, syntax.Subscript) else None
    )
    name = called.attr if isinstance(called, syntax.Attribute) else getattr(called, "id", "")
    return name in ("Tensor", "StridedTensor")


def _run(scope: EagerStatements, tree: syntax.Function, dry: bool) -> Returned | None:
    scope.names.assigned = targets(tree.body)
    for statement in tree.body:
        if dry and isinstance(statement, syntax.With):
            break
        try:
            scope.execute(statement)
        except Returned as returned:
            return returned
        except TileError:
            # The dry run only learns sizes from declarations; statements that need them fail and run later.
            if not dry or isinstance(statement, syntax.AnnotatedAssign):
                raise
    return None


def _finish_eager(ctx: EagerContext, tree: syntax.Function, returned: Returned | None) -> tile.FuncOp:
    value, loc = (None, tree.loc) if returned is None else (returned.value, returned.loc)
    results = () if value is None else value if isinstance(value, (tuple, list)) else (value,)
    order = []
    for result in results:
        if not isinstance(result, Buffer) or result.value not in ctx.outputs:
            what = result.name if isinstance(result, Buffer) else describe(result)
            raise TileError(
                f"{tree.name} returns {what}, which is not from T.empty",
                loc,
                ["return only what T.empty made; tensors that are parameters are written in place"],
            )
        order.append(len(ctx.parameters) + ctx.outputs.index(result.value))
    for number, value in enumerate(ctx.outputs):
        value.name = value.name or f"output_{number}"
        if len(ctx.parameters) + number not in order:
            raise TileError(f"{value.name} comes from T.empty but is not returned by {tree.name}", tree.loc)
    func = ctx.finish(returns_list=False, outputs=order)
    _check_written(func, ctx.outputs, tree)
    return func


def macro_tree(
    function: Callable[..., Any], frame_locals: Mapping[str, Any]
) -> tuple[syntax.Function, dict[str, Any], Callable[[str], Any]]:
    """The tree of a function under @T.macro, the names of a program that it sees (none), and those around it."""
    return parse_function(function), {}, outer_names(function, frame_locals)


def call_macro(
    function: Callable[..., Any], frame_locals: Mapping[str, Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Expand a function under @T.macro at the active program's insertion point; the value that it returns."""
    ctx = context(f"the macro {function.__name__}")
    tree, local, outer = macro_tree(function, frame_locals)
    scope = EagerStatements(ctx, Scope(outer)) if isinstance(ctx, EagerContext) else Statements(ctx, Scope(outer))
    return scope.call_function(tree, local, outer, arguments, dict(keywords))
