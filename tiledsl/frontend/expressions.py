"""Evaluating expressions: Python values stay Python, expressions of the tile language emit operations."""

from __future__ import annotations

import builtins
import difflib
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ClassVar

import tiledsl.language.maths as maths
from tiledsl.errors import TileError
from tiledsl.frontend import syntax
from tiledsl.frontend.calls import bind
from tiledsl.frontend.names import Scope
from tiledsl.language.buffer import Buffer, Reference, Var
from tiledsl.language.context import Context
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_bool,
    cast,
    check_size,
    compare,
    describe,
    is_number,
    logical,
    plain,
    select,
)
from tiledsl.language.float4 import Float4Buffer
from tiledsl.language.loops import DeviceLoop, serial
from tiledsl.language.refused import ELSEWHERE
from tiledsl.math_functions import MATH_FUNCTIONS

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "<<": operator.lshift, ">>": operator.rshift, "&": operator.and_,
    "|": operator.or_, "^": operator.xor, "@": operator.matmul,
}  # fmt: skip
_IN_PLACE = {op: getattr(operator, "i" + function.__name__.rstrip("_")) for op, function in _BINARY.items()}
_UNARY: dict[str, Callable[[Any], Any]] = {"+": operator.pos, "-": operator.neg, "~": operator.invert}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "is": operator.is_, "is not": operator.is_not,
    "in": lambda a, b: a in b, "not in": lambda a, b: a not in b,
}  # fmt: skip
_CONVERSIONS: dict[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}
_PREDICATES = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_BUILTINS: dict[Any, Callable[..., Any]] = {
    builtins.min: maths.min, builtins.max: maths.max, builtins.abs: maths.abs, builtins.pow: maths.pow,
    builtins.round: maths.round, builtins.int: lambda x: cast(x, "int32"), builtins.float: lambda x: cast(x, "float32"),
    builtins.bool: as_bool,
}  # fmt: skip

MAX_HOST_ITERATIONS = 100_000
MAX_OPERATIONS = 20_000  # in one region, as loops that run while the program is built write it out


def snapshot(value: Any) -> Any:
    """What a name is bound to: a place or variable is loaded now; regions and buffers stay what they are."""
    if isinstance(value, Var) or (isinstance(value, Reference) and not value.is_region):
        return Scalar(value.value())
    if type(value) is tuple:
        return tuple(snapshot(item) for item in value)
    return value


class Expressions:
    """Evaluates syntax trees in a context, with names."""

    # Names of the methods for the kinds of nodes. A kind without one is refused.
    methods: ClassVar[Mapping[type[syntax.Node], str]] = {
        syntax.Name: "_name",
        syntax.Constant: "_constant",
        syntax.Attribute: "_attribute",
        syntax.Subscript: "_subscript",
        syntax.Tuple: "_tuple",
        syntax.List: "_list",
        syntax.Set: "_set",
        syntax.Dict: "_dict",
        syntax.Call: "_call",
        syntax.Binary: "_binary",
        syntax.Unary: "_unary",
        syntax.Boolean: "_boolean",
        syntax.Compare: "_compare",
        syntax.Conditional: "_conditional",
        syntax.JoinedString: "_joined",
        syntax.Lambda: "_lambda",
        syntax.NamedExpression: "_named",
        syntax.Comprehension: "_comprehension",
        syntax.Slice: "_slice",
    }
    handlers: Mapping[type[syntax.Node], Callable[[Any, Any], Any]]  # the methods themselves

    def __init_subclass__(cls) -> None:
        kinds = syntax.Expression.__subclasses__() + syntax.Statement.__subclasses__()
        cls.handlers = {kind: getattr(cls, cls.methods.get(kind, "_refuse")) for kind in kinds}

    def __init__(self, ctx: Context, names: Scope) -> None:
        self.ctx = ctx
        self.names = names
        self._host_ranges = False
        self.handlers = self.handlers  # found sooner here than in the class

    def _refuse(self, node: syntax.Node) -> Any:
        raise TileError("this is not part of the tile language", node.loc, code="not-in-language")

    def evaluate(self, node: syntax.Expression) -> Any:
        """The value of an expression. Errors get its place, where they have none."""
        try:
            return self.handlers[type(node)](self, node)
        except TileError as error:
            if error.loc is None:
                error.loc = node.loc
            raise
        except RecursionError:
            raise TileError("the expression is nested too deep", node.loc) from None

    def _host(self, node: syntax.Node, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run host code; whatever goes wrong in it is an error at the node."""
        self.ctx.builder.loc = node.loc
        try:
            return function(*arguments, **keywords)
        except TileError:
            raise
        except RecursionError:
            raise TileError("too deep a recursion", node.loc) from None
        except Exception as error:
            raise _host_failure(node, function, error) from error

    def _iterate(self, node: syntax.Node, iterable: Any) -> Iterator[Any]:
        """The items of a host sequence; too many are an error, so that a program is always built in finite time."""
        if isinstance(iterable, DeviceLoop):
            raise TileError("a device loop can only be written as a `for` statement", node.loc)
        items = self._host(node, iter, iterable)
        for rounds in itertools.count():
            item = self._host(node, next, items, _END)
            if item is _END:
                return
            self._check_round(node, rounds)
            yield item

    def _check_round(self, node: syntax.Node, rounds: int) -> None:
        """That the loop at `node`, after so many rounds, may go on: with an end, and a program that can be compiled."""
        if rounds == MAX_HOST_ITERATIONS:
            raise TileError(
                f"this loop, which runs while the program is built, does not end after {MAX_HOST_ITERATIONS} rounds",
                node.loc,
                code="endless-build",
            )
        last = self.ctx.builder.region.last
        if last is not None and last.order > MAX_OPERATIONS:
            raise TileError(
                f"this loop, which runs while the program is built, has written out more than {MAX_OPERATIONS} "
                "operations",
                node.loc,
                ["a loop over T.serial runs on the device"],
                code="endless-build",
            )

    def _items(self, nodes: tuple[syntax.Expression, ...]) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if type(node) is syntax.Starred:
                value = self.evaluate(node.value)
                if isinstance(value, (Expr, Buffer)):
                    raise TileError(f"* needs a sequence, not {describe(value)}", node.loc)
                items.extend(self._iterate(node, value))
            else:
                items.append(self.evaluate(node))
        return items

    def _name(self, node: syntax.Name) -> Any:
        names, name = self.names, node.id
        return names.read(name) if name in names.local else names.read_outer(name)

    def _constant(self, node: syntax.Constant) -> Any:
        return node.value

    def _tuple(self, node: syntax.Tuple) -> tuple[Any, ...]:
        return tuple(self._items(node.elements))

    def _list(self, node: syntax.List) -> list[Any]:
        return self._items(node.elements)

    def _set(self, node: syntax.Set) -> Any:
        return self._host(node, set, self._items(node.elements))

    def _attribute(self, node: syntax.Attribute) -> Any:
        value = self.evaluate(node.value)
        self.ctx.builder.loc = node.loc
        try:
            return getattr(value, node.attr)
        except AttributeError as error:
            text = str(error)
            if value is None:
                text = f"{named(node.value)} is None and has no attribute {node.attr!r}; was a tunable left None?"
            elif isinstance(value, Buffer):
                what = f"the buffer {value.name} has no attribute {node.attr!r}"
                text = f"{what}; it has shape, dtype, ndim, scope() and data"
            elif isinstance(value, Expr):
                what = f"an element or part of {value.name}" if isinstance(value, Reference) else "a value"
                text = f"{what} has no attribute {node.attr!r}; it has dtype and astype(dtype)"
            is_language = getattr(value, "__name__", "") == "tiledsl.language"
            raise TileError(text, node.loc, code="not-in-language" if is_language else "") from None
        except TileError:
            raise
        except Exception as error:
            raise _host_failure(node, getattr, error) from error

    def _subscript(self, node: syntax.Subscript) -> Any:
        return self.item(node, self.evaluate(node.value), self.evaluate(node.index))

    def item(self, node: syntax.Subscript, value: Any, index: Any) -> Any:
        """`value[index]`: a place in a buffer, or an item of a Python sequence."""
        if isinstance(value, (Buffer, Var, Float4Buffer)):
            self.ctx.builder.loc = node.loc
            return value[index]
        if isinstance(index, tuple):
            index = tuple(map(plain, index))
        if isinstance(value, Reference):
            return self._part(value, index)
        if isinstance(index, Expr) and isinstance(value, (list, tuple, dict, range)):
            raise TileError(
                f"a Python {type(value).__name__} cannot be indexed by a value known only on the device",
                node.loc,
                ["loop over the sequence itself, `for k, x in enumerate(table)`; indices of T.unroll are the device's"],
                code="device-value",
            )
        return self._host(node, operator.getitem, value, index)

    def _part(self, value: Reference, index: Any) -> Reference:
        """Indexing a region: its own dimensions are those that are slices."""
        index = list(index if isinstance(index, tuple) else (index,))
        full: list[Any] = []
        for offset, extent in zip(value.offsets, value.extents, strict=True):
            if extent is None or not index:
                full.append(offset if extent is None else slice(offset, offset + extent))
                continue
            own = index.pop(0)
            is_slice = isinstance(own, slice)
            lower = 0 if is_slice and own.start is None else own.start if is_slice else own
            upper = extent if not is_slice or own.stop is None else own.stop
            for number in (lower, upper):
                if isinstance(number, bool) or not isinstance(number, (int, Expr)):
                    what = f"index {len(full)} of a part of {value.buffer.name}"
                    raise TileError(f"{what} is {describe(number)}, not an integer")
            full.append(slice(offset + lower, offset + upper, own.step) if is_slice else offset + lower)
        if index:
            raise TileError(f"too many indices for a part of {value.buffer.name}")
        return value.buffer[tuple(full)]

    def _slice(self, node: syntax.Slice) -> slice:
        return slice(
            *(None if part is None else snapshot(self.evaluate(part)) for part in (node.lower, node.upper, node.step))
        )

    def _dict(self, node: syntax.Dict) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        for key, value in node.items:
            if key is None:
                self._host(value, entries.update, self.evaluate(value))
            else:
                self._host(key, entries.__setitem__, self.evaluate(key), self.evaluate(value))
        return entries

    def _call(self, node: syntax.Call) -> Any:
        function = self.evaluate(node.function)
        arguments = self._items(node.arguments)
        keywords: dict[str, Any] = {}
        for key, value in node.keywords:
            if key is None:
                self._host(value, keywords.update, self.evaluate(value))
            else:
                keywords[key] = self.evaluate(value)
        return self.invoke(node, function, arguments, keywords)

    def invoke(self, node: syntax.Call, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Call a function with evaluated arguments."""
        if type(function) is not FunctionType:
            function = self.callee(node, function, arguments)
        self.ctx.builder.loc = node.loc
        try:
            return function(*arguments, **keywords)
        except RecursionError:
            raise TileError("too deep a recursion", node.loc) from None
        except Exception as error:
            if _is_of_values(function) and any(isinstance(each, (Expr, Buffer)) for each in arguments):
                raise _of_values(node, function) from None
            if isinstance(error, TileError):
                raise
            if isinstance(error, TypeError) and _is_ours(function):
                raise TileError(_call_mistake(function, error), node.loc) from None
            raise _host_failure(node, function, error) from error

    def callee(self, node: syntax.Call, function: Any, arguments: list[Any]) -> Any:
        """What a call really calls: Python's range, min, max, ... also take device values."""
        dynamic = any(isinstance(x, Expr) for x in arguments)
        if function is builtins.range and (dynamic or (self.ctx.kernel is not None and not self._host_ranges)):
            return serial
        if dynamic and _is_builtin(function):
            return _BUILTINS[function]
        if function is builtins.print and any(isinstance(x, (Expr, Buffer)) for x in arguments):
            raise TileError(
                "print shows values while the program is built; use T.print for values on the device", node.loc
            )
        if not callable(function):
            raise TileError(f"{describe(function)} cannot be called", node.loc)
        return function

    def _binary(self, node: syntax.Binary) -> Any:
        return self._arithmetic(
            node, node.op, self.evaluate(node.left), self.evaluate(node.right), (node.left, node.right)
        )

    def _arithmetic(
        self,
        node: syntax.Node,
        op: str,
        left: Any,
        right: Any,
        parts: tuple[syntax.Expression, ...],
        in_place: bool = False,
    ) -> Any:
        """`left op right`, or `left op= right`; `parts` are the operands' trees, which errors name."""
        for value in (left, right):
            if isinstance(value, Buffer):
                raise TileError(
                    f"{op} on the whole buffer {value.name}; write a T.Parallel loop over its elements",
                    node.loc,
                    code="whole-tile",
                )
        if left is None or right is None:
            part = parts[0 if left is None else 1]
            raise TileError(f"{op} with {named(part)}, which is None; was a tunable left None?", node.loc)
        check_size(op, left, right)
        self.ctx.builder.loc = node.loc
        try:
            return (_IN_PLACE if in_place else _BINARY)[op](left, right)
        except TileError:
            raise
        except ZeroDivisionError:
            raise TileError(f"{op}: division by 0", node.loc) from None
        except Exception as error:
            raise TileError(f"{op}: {_first_line(error)}", node.loc) from error

    def _unary(self, node: syntax.Unary) -> Any:
        value = self.evaluate(node.operand)
        self.ctx.builder.loc = node.loc
        if isinstance(value, Buffer):
            raise TileError(
                f"{node.op} on the whole buffer {value.name}; write a T.Parallel loop over its elements",
                node.loc,
                code="whole-tile",
            )
        if node.op == "not":
            return logical("not", value)
        if value is None:
            raise TileError(f"{node.op} with {named(node.operand)}, which is None; was a tunable left None?", node.loc)
        return self._host(node, _UNARY[node.op], value)

    def _boolean(self, node: syntax.Boolean) -> Any:
        result = self.evaluate(node.values[0])
        for value in node.values[1:]:
            if not isinstance(result, Expr) and bool(result) != (node.op == "and"):
                return result
            right = self.evaluate(value)
            self.ctx.builder.loc = node.loc
            result = logical(node.op, result, right)
        return result

    def _compare(self, node: syntax.Compare) -> Any:
        left = self.evaluate(node.left)
        result: Any = True
        for op, comparator in zip(node.ops, node.comparators, strict=True):
            if not isinstance(result, Expr) and not result:
                break
            right = self.evaluate(comparator)
            if op in _PREDICATES and left is not None and right is not None:
                for buffer in (left, right):
                    if isinstance(buffer, Buffer):
                        raise TileError(
                            f"{op} on the whole buffer {buffer.name}; compare its elements in a T.Parallel loop",
                            node.loc,
                            code="whole-tile",
                        )
            if op in ("<", "<=", ">", ">=") and (left is None or right is None):
                tree = comparator if right is None else node.left
                raise TileError(f"{op} with {named(tree)}, which is None; was a tunable left None?", node.loc)
            sides = (left, right)
            numbers = all(isinstance(side, Expr) or is_number(side) for side in sides)
            if op in ("is", "is not") and numbers and any(isinstance(side, Expr) for side in sides):
                raise TileError(
                    f"`{op}` compares Python's objects, not values on the device; write {'==' if op == 'is' else '!='}",
                    node.loc,
                    code="device-value",
                )
            if isinstance(left, Expr) and op in _PREDICATES:
                self.ctx.builder.loc = node.loc
                part = compare(_PREDICATES[op], left, right)
            elif isinstance(right, Expr) and op in _PREDICATES and is_number(plain(left)):
                self.ctx.builder.loc = node.loc
                part = _COMPARE[op](left, right)
            else:
                part = self._host(node, _COMPARE[op], left, right)
            result = logical("and", result, part)
            left = right
        return result

    def _conditional(self, node: syntax.Conditional) -> Any:
        test = self.evaluate(node.test)
        if not isinstance(test, Expr):
            return self.evaluate(node.body if test else node.orelse)
        on_true, on_false = self.evaluate(node.body), self.evaluate(node.orelse)
        self.ctx.builder.loc = node.loc
        return select(test, on_true, on_false)

    def _joined(self, node: syntax.JoinedString) -> str:
        parts = []
        for part in node.parts:
            if isinstance(part, str):
                parts.append(part)
                continue
            value = self.evaluate(part.value)
            if part.conversion:
                value = self._host(part, _CONVERSIONS[part.conversion], value)
            parts.append(self.formatted(part, value, self.evaluate(part.format) if part.format is not None else ""))
        return "".join(parts)

    def formatted(self, node: syntax.FormattedValue, value: Any, spec: str) -> str:
        """One replaced field of an f-string."""
        return str(self._host(node, format, value, spec))

    def _lambda(self, node: syntax.Lambda) -> Callable[..., Any]:
        defaults = self.defaults(node.parameters)

        def function(*arguments: Any, **keywords: Any) -> Any:
            with self._bound(bind("the lambda", node.parameters, arguments, keywords, defaults)):
                return self.evaluate(node.body)

        return function

    def defaults(self, parameters: Iterable[syntax.Parameter]) -> dict[str, Any]:
        """The values of parameters that a call may leave out."""
        return {each.name: self.evaluate(each.default) for each in parameters if each.default is not None}

    def _bound(self, bound: dict[str, Any]) -> Any:
        @contextmanager
        def scope() -> Iterator[None]:
            outer = self.names.local
            self.names.local = {**outer, **bound}
            try:
                yield
            finally:
                self.names.local = outer

        return scope()

    def _named(self, node: syntax.NamedExpression) -> Any:
        value = snapshot(self.evaluate(node.value))
        self.names.set(node.name, value)
        return value

    def _comprehension(self, node: syntax.Comprehension) -> Any:
        elements: list[Any] = []

        def clause(number: int) -> None:
            if number == len(node.clauses):
                elements.append(self.evaluate(node.element))
                return
            inner = node.clauses[number]
            self._host_ranges, previous = True, self._host_ranges
            try:
                iterable = self.evaluate(inner.iterable)
            finally:
                self._host_ranges = previous
            if isinstance(iterable, DeviceLoop):
                raise TileError("a comprehension runs while the program is built; loop over a Python range", inner.loc)
            if isinstance(iterable, (Expr, Buffer)):
                raise TileError(f"a comprehension needs a Python sequence, not {describe(iterable)}", inner.loc)
            for item in self._iterate(inner, iterable):
                self.assign(inner.target, item)
                if all(self._host_condition(condition) for condition in inner.conditions):
                    clause(number + 1)

        with self._bound({}):
            clause(0)
        kinds: dict[str, Callable[[Any], Any]] = {"dict": dict, "list": list, "set": set, "generator": iter}
        made = kinds[node.kind]
        return self._host(node, made, elements)

    def _host_condition(self, node: syntax.Expression) -> bool:
        value = self.evaluate(node)
        if isinstance(value, Expr):
            raise TileError(
                "this condition decides while the program is built, but is known only on the device",
                node.loc,
                code="device-value",
            )
        return bool(value)

    def assign(self, target: syntax.Expression, value: Any) -> None:
        """Bind a target of an assignment; the statements part implements it."""
        raise NotImplementedError


_END = object()


def named(node: syntax.Expression) -> str:
    """How a message calls an expression: by its name, if it has one."""
    parts: list[str] = []
    while isinstance(node, syntax.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *parts]) if isinstance(node, syntax.Name) else "an operand"


def _host_failure(node: syntax.Node, function: Callable[..., Any], error: Exception) -> TileError:
    name = getattr(function, "__name__", "") or type(function).__name__
    what = "" if name.startswith("__") or name == "getitem" else f"{name} failed: "
    return TileError(f"{what}{type(error).__name__}: {_first_line(error)}", node.loc)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:200]


_LIBRARIES = ("torch", "numpy", "math", "cmath", "scipy")


def _is_of_values(function: Any) -> bool:
    """Whether a function is of a library that computes while the program is built."""
    kind = type(function) if isinstance(getattr(function, "__name__", None), str) else function
    module = getattr(function, "__module__", None) or getattr(kind, "__module__", None)
    return str(module).partition(".")[0].removeprefix("_") in _LIBRARIES or type(function).__module__ == "numpy"


def _of_values(node: syntax.Call, function: Any) -> TileError:
    """A function of torch, numpy or math that is called with a value of the device."""
    name = str(getattr(function, "__name__", ""))
    there = ELSEWHERE.get(name) or (f"T.{name}" if name in maths.__all__ or name in MATH_FUNCTIONS else "")
    text = f"{named(node.function)} runs while the program is built, and takes no values of the device"
    way_out = f"write {there}" if there else "write it with the functions of tiledsl.language (T.exp, T.max, ...)"
    return TileError(text, node.loc, [way_out], code="device-value")


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("tiledsl.language")


def _call_mistake(function: Any, error: Exception) -> str:
    """A TypeError of a call of a tile function, with the function under the user's name for it."""
    name = str(getattr(function, "__name__", function))
    text = _first_line(error)
    unknown = re.search(r"unexpected keyword argument '(\w+)'", text)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.kind not in kinds]
    if unknown:
        known = [each.name for each in parameters]
        near = [each for each in known if unknown[1] in each] or difflib.get_close_matches(unknown[1], known)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
        return f"T.{name} has no argument {unknown[1]!r}; {hint}"
    text = text.removeprefix(getattr(function, "__qualname__", name) + "() ")
    if " positional argument" in text:
        wanted = [each.name for each in parameters if each.default is each.empty]
        text += f"; write T.{name}({', '.join([*wanted, *['...'] * (len(wanted) < len(parameters))])})"
    return f"T.{name}: {text}"


def _is_builtin(function: Any) -> bool:
    try:
        return function in _BUILTINS
    except TypeError:
        return False
