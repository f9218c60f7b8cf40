"""Programs that come as text: `tiledsl.parse(text, **parameters)` and `.tile` files. They cannot reach host Python.

A text holds functions and constants at its top level:

    block = 128                                  # a default, which a parameter of the same name replaces

    @T.macro
    def double(x): return x * 2

    @T.prim_func
    def scale(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx: ...

Only the names of T, parameters, what the text itself defines and a few functions of numbers resolve. Attributes are
those of an allow-list for each kind of value, only known functions are called, and the work done while the program is
built is bounded. So a text from anywhere can be built; it may still ask for a slow kernel.
"""

from __future__ import annotations

import builtins
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import tiledsl.language as language
from tiledsl.dialects import tile
from tiledsl.errors import TileError, ends_tracebacks, register_source, value_options, way_out
from tiledsl.files import read_text
from tiledsl.frontend import syntax
from tiledsl.frontend.elaborate import elaborate_tree
from tiledsl.frontend.names import Scope, targets, unknown_name
from tiledsl.frontend.parser import parse_module
from tiledsl.frontend.statements import Statements
from tiledsl.language.buffer import Buffer, Reference, TensorSpec, Var
from tiledsl.language.context import Context
from tiledsl.language.dtypes import DType, canonical
from tiledsl.language.expression import Expr, describe
from tiledsl.language.loops import ParallelLoop, PersistentLoop, SerialLoop
from tiledsl.language.operations import GemmWarpPolicy
from tiledsl.language.program import KernelFrame, Ref
from tiledsl.language.refused import Refused, refusal, unknown
from tiledsl.location import Loc

MAX_STEPS = 100_000
"""Evaluated expressions, statements and items of sequences while one program is built."""
_MAX_ITEMS = 100_000  # characters of a string; numbers and strings in a container, nested ones included
_MAX_BITS = 4096
_MAX_TEXT = 1_000_000  # characters of a program

_EXCLUDED = frozenset(
    {"Any", "Buffer", "Macro", "PrimExpr", "PrimFunc", "Symbol", "dtype", "inline", "macro", "prim_func"}
)
_BUILTINS: dict[str, Any] = {
    name: getattr(builtins, name)
    for name in ("abs", "bool", "float", "int", "len", "list", "max", "min", "range", "round", "sum", "tuple")
}
_ATTRIBUTES: tuple[tuple[type, frozenset[str]], ...] = (
    (Buffer, frozenset({"data", "dtype", "name", "ndim", "scope", "shape"})),
    (Reference, frozenset({"astype", "dtype"})),
    (Var, frozenset({"astype", "dtype"})),
    (TensorSpec, frozenset({"dtype", "shape"})),
    (DType, frozenset({"bits", "bytes", "is_float", "itemsize"})),
    (GemmWarpPolicy, frozenset({"is_square"})),
    (Expr, frozenset({"astype", "dtype"})),
)
_CONTAINERS = (tuple, list, set, dict)
_TILE_VALUES = (Expr, Buffer, TensorSpec, SerialLoop, ParallelLoop, PersistentLoop, KernelFrame, GemmWarpPolicy, DType)
_FORMAT = re.compile(r"[<>=^]?[-+ ]?#?0?\d{0,2}[,_]?(\.\d{1,2})?[bcdeEfFgGnosxX%]?")


class _Marker:
    """A decorator's or namespace's name; not a value that a program could use otherwise."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __repr__(self) -> str:
        return f"T.{self.__name__}"


_DECORATORS = {name: _Marker(name) for name in ("prim_func", "macro", "inline")}
_DECORATORS["inline"] = _DECORATORS["macro"]


class _Language:
    """T, as texts see it: the public names of the language and nothing else."""

    def __init__(self) -> None:
        self.language = language
        self.values: dict[str, Any] = {
            name: value
            for name in language.__all__
            if name not in _EXCLUDED and not isinstance(value := getattr(language, name), ModuleType)
        }
        self.values.update(_DECORATORS)
        self.values["dtype"] = canonical
        self.functions = {id(value) for value in self.values.values() if callable(value)}

    def get(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        if refusal(name):
            return getattr(self.language, name)  # using it is an error that says what to write instead
        raise TileError(unknown(name, self.values), code="not-in-language")

    def __repr__(self) -> str:
        return "T"


class _Function:
    """A function or lambda of the text."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.__name__ = name
        self._call = call
        self.expands: tuple[syntax.Function, dict[str, Any], Callable[[str], Any]] | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._call(*arguments, **keywords)

    def __repr__(self) -> str:
        return f"<function {self.__name__}>"


class TextStatements(Statements):
    """Statements of a text: everything that could reach Python or run without end is refused."""

    def __init__(self, ctx: Context, names: Scope, language: _Language, steps: list[int]) -> None:
        super().__init__(ctx, names)
        self.language = language
        self.steps = steps  # one number, shared with the functions that are expanded

    def nested(self, outer: Callable[[str], Any]) -> Statements:
        return TextStatements(self.ctx, Scope(outer), self.language, self.steps)

    # Bounded work

    def spend(self, steps: int) -> None:
        self.steps[0] -= steps
        if self.steps[0] < 0:
            raise TileError(f"building this program takes more than {MAX_STEPS} steps")

    def evaluate(self, node: syntax.Expression) -> Any:
        self.spend(1)
        value = super().evaluate(node)
        if type(value) is str or isinstance(value, (int, range, *_CONTAINERS)):
            try:
                self._limit(value)
            except TileError as error:
                error.loc = node.loc
                raise
        return value

    def execute(self, node: syntax.Statement) -> None:
        self.spend(1)
        super().execute(node)

    def _limit(self, value: Any) -> None:
        """Refuse numbers, strings and containers that are too large. Shared parts count each time they appear."""
        if isinstance(value, int):
            if value.bit_length() > _MAX_BITS:
                raise TileError(
                    f"an integer of {value.bit_length()} bits; at most {_MAX_BITS} are possible in a text program"
                )
            return
        pending, count = [value], 0
        while pending:
            part = pending.pop()
            if isinstance(part, range):  # whose len() has a limit of its own
                count += max(0, (part.stop - part.start) // part.step)
            else:
                count += len(part) if isinstance(part, (str, *_CONTAINERS)) else 1
            if count > _MAX_ITEMS:
                raise TileError(
                    f"a {type(value).__name__} of more than {_MAX_ITEMS} items is not possible in a text program"
                )
            if isinstance(part, dict):
                pending.extend((*part, *part.values()))
            elif isinstance(part, (tuple, list, set)):
                pending.extend(part)
        self.spend(count)

    # Attributes, items and calls

    def _attribute(self, node: syntax.Attribute) -> Any:
        value = self.evaluate(node.value)
        if isinstance(value, _Language):
            return value.get(node.attr)
        if isinstance(value, type) and issubclass(value, GemmWarpPolicy) and node.attr in GemmWarpPolicy.__members__:
            return GemmWarpPolicy[node.attr]
        for kind, allowed in _ATTRIBUTES:
            if isinstance(value, kind):
                if node.attr in allowed:
                    return getattr(value, node.attr)
                near = difflib.get_close_matches(node.attr, allowed)
                hint = (
                    f"; did you mean .{near[0]}?"
                    if near
                    else f"; there are {', '.join(f'.{each}' for each in sorted(allowed))}"
                )
                raise TileError(f"{_kind(value)} has no attribute {node.attr!r} in a text program{hint}", node.loc)
        if isinstance(value, Refused):
            raise TileError(value.error, node.loc)
        raise TileError(f"{_kind(value)} has no attributes in a text program", node.loc)

    def item(self, node: syntax.Subscript, value: Any, index: Any) -> Any:
        names = ("dyn", "Tensor", "SharedBuffer", "FragmentBuffer", "LocalBuffer")
        makers = [self.language.values[name] for name in names if name in self.language.values]
        if isinstance(value, (Buffer, Reference, Var, tuple, list, dict, range)) or type(value) is str:
            return super().item(node, value, index)
        if value is Ref or any(value is each for each in makers) or isinstance(value, Refused):
            return super().item(node, value, index)
        raise TileError(f"{_kind(value)} cannot be indexed in a text program", node.loc)

    def invoke(self, node: syntax.Call, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        self.spend(len([*arguments, *keywords]))
        if isinstance(function, (_Function, DType, Refused)):
            return super().invoke(node, function, arguments, keywords)
        if isinstance(function, _Marker):
            raise TileError(f"{function!r} can only stand before a function, as a decorator", node.loc)
        if any(function is each for each in _BUILTINS.values()):
            if function is round and any(
                isinstance(x, int) and abs(x) > 400 for x in (*arguments[1:], *keywords.values())
            ):
                raise TileError("round: too many digits", node.loc)
            if function is sum and any(
                isinstance(x, (str, *_CONTAINERS)) for x in (*arguments[1:], *keywords.values())
            ):
                raise TileError("sum adds numbers", node.loc)
            if keywords.keys() - {"default", "ndigits", "start"}:
                raise TileError(
                    f"{function.__name__} takes no argument {next(iter(keywords))!r} in a text program", node.loc
                )
            return super().invoke(node, function, arguments, keywords)
        bound = getattr(function, "__self__", None)
        if id(function) in self.language.functions or isinstance(bound, _TILE_VALUES):  # a method in _ATTRIBUTES
            for value in (*arguments, *keywords.values()):
                if callable(value) and not isinstance(value, (DType, Refused, _Function)):
                    raise TileError(f"{_kind(value)} cannot be an argument of a tile function", node.loc)
            return super().invoke(node, function, arguments, keywords)
        raise TileError(f"{_kind(function)} cannot be called in a text program", node.loc)

    def _arithmetic(
        self,
        node: syntax.Node,
        op: str,
        left: Any,
        right: Any,
        parts: tuple[syntax.Expression, ...],
        in_place: bool = False,
    ) -> Any:
        for value in (left, right):
            if op in ("%", "@", "|", "&", "^", "-", "/", "//", "**", "<<", ">>") and isinstance(
                value, (str, *_CONTAINERS, range)
            ):
                raise TileError(f"{op} is not defined on {_kind(value)} in a text program", node.loc)
        return super()._arithmetic(node, op, left, right, parts, in_place)

    def formatted(self, node: syntax.FormattedValue, value: Any, spec: str) -> str:
        if not spec:
            return str(value)
        if not isinstance(value, (bool, int, float, str)) or not _FORMAT.fullmatch(spec):
            raise TileError(f"the format {spec!r} is not possible for {_kind(value)} in a text program", node.loc)
        return super().formatted(node, value, spec)

    def _lambda(self, node: syntax.Lambda) -> Any:
        return _Function("<lambda>", super()._lambda(node))

    # Statements

    def _function(self, node: syntax.Function) -> None:
        for decorator in node.decorators:
            if self.evaluate(decorator) is not _DECORATORS["macro"]:
                raise TileError("functions inside a tile program can be @T.macro or plain", decorator.loc)
        local, outer = self.names.local, self.names.outer
        self.names.set(node.name, self.defined(node, local, outer, self.defaults(node.parameters)))

    def defined(
        self,
        node: syntax.Function,
        local: dict[str, Any],
        outer: Callable[[str], Any],
        defaults: Mapping[str, Any] | None = None,
    ) -> _Function:
        """A function of the text, expanded where it is called."""
        made = _Function(
            node.name, lambda *values, **keywords: self.call_function(node, local, outer, values, keywords, defaults)
        )
        made.expands = (node, local, outer)
        return made

    def _import(self, node: syntax.Import) -> None:
        raise TileError("a text program imports nothing: T, the parameters and numbers are all there is", node.loc)

    def _raise(self, node: syntax.Raise) -> None:
        value = self.evaluate(node.value) if node.value is not None else "raise"
        raise TileError(value if isinstance(value, str) else f"raised {_kind(value)}", node.loc)


class TextProgram:
    """A program from a text, with its parameters. `tiledsl.compile` takes it like a @T.prim_func."""

    def __init__(
        self, text: str, module: syntax.Module, function: syntax.Function, parameters: Mapping[str, Any]
    ) -> None:
        self.text = text
        self.module = module
        self.function = function
        self.parameters = dict(parameters)

    @property
    def name(self) -> str:
        return self.function.name

    def build(self, out_idx: Sequence[int] = ()) -> tile.FuncOp:
        """Elaborate the program. `out_idx` are positions of parameters that the runtime allocates. Raises TileError."""
        register_source(self.module.loc.file, self.text)  # another text may have come by this name since
        language, steps = _Language(), [MAX_STEPS]
        visible: dict[str, Any] = {"T": language, **_BUILTINS}

        def look(name: str) -> Any:
            if name in visible:
                return visible[name]
            raise unknown_name(name, visible)

        def make(ctx: Context, names: Scope) -> Statements:
            scope = TextStatements(ctx, names, language, steps)
            _define(self.module, self.parameters, scope, visible, look)
            return scope

        function = self.function
        for decorator in function.decorators:
            if not _is_prim_func(decorator):
                raise TileError("a program has no decorator but @T.prim_func", decorator.loc)
        return elaborate_tree(function, look, out_idx, statements=make)

    def __repr__(self) -> str:
        return f"<tiledsl program {self.name} of {self.function.loc.file}>"


def _define(
    module: syntax.Module,
    parameters: Mapping[str, Any],
    scope: TextStatements,
    visible: dict[str, Any],
    look: Callable[[str], Any],
) -> None:
    """Put the text's functions, its constants and the parameters among the known names."""
    visible.update(parameters)
    with scope.ctx.activate():
        for statement in module.body:
            if isinstance(statement, syntax.Function):
                visible[statement.name] = scope.defined(statement, {}, look)
            elif isinstance(statement, (syntax.Assign, syntax.AnnotatedAssign)):
                scope.execute(statement)
                # A parameter replaces the text's own value, which is its default.
                scope.names.local = {name: value for name, value in scope.names.local.items() if name not in parameters}
                visible.update(scope.names.local)
        scope.names.local.clear()


@ends_tracebacks
def parse(text: str, file: str = "<text>", *, name: str | None = None, **parameters: Any) -> TextProgram:
    """The program in a text, with values for the names that it leaves open.

    name: which function, if the text holds several. parameters: numbers, strings, bools, None, dtypes, and tuples or
    lists of them. Raises TileError for syntax errors, and for missing or unknown parameters.
    """
    if not isinstance(text, str):
        raise TileError(f"tiledsl.parse takes a text, not {type(text).__name__}")
    if len(text) > _MAX_TEXT:
        raise TileError(f"the text has {len(text)} characters; at most {_MAX_TEXT} are possible")
    module = parse_module(text, file)
    function = _choose(module, name, file)
    values = {key: _parameter(key, value) for key, value in parameters.items()}
    try:
        _check_parameters(module, function, values)
    except RecursionError:
        raise TileError("the program is nested too deep", function.loc) from None
    return TextProgram(text, module, function, values)


@ends_tracebacks
def parse_file(path: str | Path, *, name: str | None = None, **parameters: Any) -> TextProgram:
    """The program in a `.tile` file; see parse."""
    return parse(read_text(path), str(path), name=name, **parameters)


def _choose(module: syntax.Module, name: str | None, file: str) -> syntax.Function:
    functions: dict[str, syntax.Function] = {}
    for statement in module.body:
        if isinstance(statement, syntax.Function):
            if statement.name in functions:
                raise TileError(f"two functions are called {statement.name}", statement.loc)
            functions[statement.name] = statement
        elif not isinstance(statement, (syntax.Assign, syntax.AnnotatedAssign)) and not _is_text(statement):
            what = (
                "imports nothing: T is there already"
                if isinstance(statement, syntax.Import)
                else "holds functions and constants"
            )
            raise TileError(f"a text program {what}", statement.loc)
    programs = {
        program.name: program
        for program in functions.values()
        if any(map(_is_prim_func, program.decorators)) or (not program.decorators and _opens_kernel(program.body))
    }
    if name is not None:
        if name not in programs:
            near = difflib.get_close_matches(name, list(programs))
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(programs) or 'none'}"
            raise TileError(f"{file} has no program {name!r}; {hint}")
        return programs[name]
    if len(programs) != 1:
        content = f"holds {len(programs)} programs: {', '.join(programs)}" if programs else "holds no program"
        hint = (
            "choose one with name=..."
            if programs
            else "write `@T.prim_func` before a function with `with T.Kernel(...)`"
        )
        raise TileError(f"{file} {content}", Loc(file, 1, 1, 1, 1) if not programs else None, [hint])
    return next(iter(programs.values()))


def _is_text(statement: syntax.Statement) -> bool:
    value = statement.value if isinstance(statement, syntax.ExpressionStatement) else None
    return isinstance(statement, syntax.Pass) or isinstance(value, syntax.Constant)


def _is_prim_func(node: syntax.Expression) -> bool:
    if isinstance(node, syntax.Call) and not node.arguments:
        node = node.function
    return (
        isinstance(node, syntax.Attribute)
        and node.attr == "prim_func"
        and isinstance(node.value, syntax.Name)
        and node.value.id == "T"
    )


def _opens_kernel(statements: Sequence[syntax.Statement]) -> bool:
    for statement in statements:
        if isinstance(statement, syntax.With):
            return True
        if isinstance(statement, (syntax.If, syntax.For, syntax.While)) and _opens_kernel(
            (*statement.body, *statement.orelse)
        ):
            return True
    return False


def _parameter(name: str, value: Any) -> Any:
    """A parameter's value as a text may see it."""
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, DType) or type(value) in (bool, int, float, str, type(None)):
        return value
    if isinstance(value, (tuple, list)):
        return (list if isinstance(value, list) else tuple)(_parameter(name, each) for each in value)
    try:
        return canonical(value)
    except TileError:
        raise TileError(
            f"the parameter {name} is {describe(value)}; parameters are numbers, strings, element types and tuples of "
            "them"
        ) from None


def _check_parameters(module: syntax.Module, function: syntax.Function, values: Mapping[str, Any]) -> None:
    """Every name that the program leaves open has a value, and every value has a name that uses it."""
    constants = targets([s for s in module.body if isinstance(s, (syntax.Assign, syntax.AnnotatedAssign))])
    functions = {s.name: s for s in module.body if isinstance(s, syntax.Function)}
    free: dict[str, Loc] = {}
    for statement in module.body:
        for name, loc in _free([statement], set()).items():
            free.setdefault(name, loc)
    fixed = {"T", *_BUILTINS, *functions}
    open_names = [name for name in free if name not in fixed and name not in constants]
    for name in values:
        if name in fixed:
            raise TileError(f"the parameter {name} has the name of something else in the text", functions[name].loc if name in functions else None)  # fmt: skip # noqa: E501
        if name not in open_names and name not in constants:
            near = difflib.get_close_matches(name, [*open_names, *constants])
            known = ", ".join([*open_names, *sorted(constants)]) or "none"
            raise TileError(
                f"{function.name} has no parameter {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
                function.loc,
                [f"its parameters are: {known}"],
            )
    used, pending = {function.name}, [function]
    while pending:
        for name in _free([pending.pop()], set()):
            if name in functions and name not in used:
                used.add(name)
                pending.append(functions[name])
    needed: dict[str, Loc] = {}
    for statement in module.body:
        if not isinstance(statement, syntax.Function) or statement.name in used:
            for name, loc in _free([statement], set()).items():
                if name in open_names and name not in values:
                    needed.setdefault(name, loc)
    if needed:
        name, loc = next(iter(needed.items()))
        near = difflib.get_close_matches(name, [*fixed, *constants, *values, *targets(function.body)], cutoff=0.8)
        several = f" (and {', '.join(list(needed)[1:])})" if len(needed) > 1 else ""
        given = ", ".join(f"{each}=..." for each in needed)
        hint = [way_out(f"pass it: tiledsl.parse(text, {given})", f"give it: {value_options(needed)}")]
        if near:
            hint.append(f"or did you mean {near[0]}?")
        raise TileError(
            f"{name}{several} has no value: it is neither in the text nor a parameter that was given", loc, hint
        )


def _free(nodes: Iterable[Any], bound: set[str]) -> dict[str, Loc]:
    """Names that are read in these trees and bound nowhere in them, with the place of the first."""
    free: dict[str, Loc] = {}

    def walk(node: Any, bound: set[str]) -> None:
        if isinstance(node, (tuple, list)):
            for each in node:
                walk(each, bound)
        elif isinstance(node, syntax.Name):
            if node.id not in bound:
                free.setdefault(node.id, node.loc)
        elif isinstance(node, syntax.Function):
            walk(node.decorators, bound)
            for parameter in node.parameters:
                walk((parameter.annotation, parameter.default), bound)
            inner = bound | {parameter.name for parameter in node.parameters} | _bound_in(node.body)
            walk(node.body, inner)
        elif isinstance(node, syntax.Lambda):
            for parameter in node.parameters:
                walk(parameter.default, bound)
            walk(node.body, bound | {parameter.name for parameter in node.parameters})
        elif isinstance(node, syntax.Comprehension):
            inner = bound | targets([clause.target for clause in node.clauses])
            for clause in node.clauses:
                walk((clause.iterable, clause.conditions), inner)
            walk(node.element, inner)
        elif isinstance(node, (syntax.Assign, syntax.AnnotatedAssign)):
            walk((node.value, getattr(node, "annotation", None)), bound)
            places = node.targets if isinstance(node, syntax.Assign) else (node.target,)
            walk([place for place in places if not isinstance(place, syntax.Name)], bound | targets(node))
        elif isinstance(node, syntax.Node):
            walk(syntax.parts(node), bound)

    walk(list(nodes), bound)
    return free


def _bound_in(body: Sequence[syntax.Statement]) -> set[str]:
    """Names that a function's body binds, those of `:=` included."""
    names = targets(body)

    def walk(node: Any) -> None:
        if isinstance(node, (tuple, list)):
            for each in node:
                walk(each)
        elif isinstance(node, syntax.Node) and not isinstance(node, (syntax.Function, syntax.Lambda)):
            if isinstance(node, syntax.NamedExpression):
                names.add(node.name)
            walk(syntax.parts(node))

    walk(body)
    return names


def _kind(value: Any) -> str:
    """What a value is, for a message; never its contents, which may be large."""
    if isinstance(value, Buffer):
        return f"the buffer {value.name}"
    if isinstance(value, _Function):
        return f"the function {value.__name__}"
    if isinstance(value, (_Language, _Marker)):
        return repr(value)
    if isinstance(value, Expr):
        return "a value"
    if isinstance(value, DType):
        return f"the element type {value!s}"
    name = type(value).__name__
    return "None" if value is None else f"a{'n' * (name[0] in 'aeiou')} {name}"
