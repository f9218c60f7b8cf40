"""Executes the text of a program in plain Python, in several orders of blocks and iterations.

The text is rewritten a little, for what Python's own statements cannot mean: `with T.Kernel` becomes a loop over
blocks, `and`, `or`, `not` and choices become functions of both sides, assignments to variables and elements become
stores. The element types, arithmetic and memory are those of `numbers`, `memory` and `language`.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fuzz import dtypes, language, memory, numbers, threads
from tests.fuzz.dtypes import Discard
from tests.fuzz.language import Language, Symbol, TensorSpec, size_of
from tests.fuzz.memory import Buffer, Memory, Region
from tests.fuzz.numbers import Number

_BOTH = ("copy", "transpose", "cumsum", "cummax", "reduce")
_PLACES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_BOTH, (0, 1)), "gemm": (0, 1, 2), "fill": (0,), "clear": (0,), "reducer_update": (0,),
    "sort": (0, 1), "topk": (0, 1, 2), "argmax": (0, 1), "argmin": (0, 1), "histogram": (0, 1),
    **{f"atomic_{kind}": (0,) for kind in ("add", "max", "min", "or")}, "any_of": (0,), "all_of": (0,),
}  # fmt: skip
_PLACE_KEYWORDS = ("src", "dst", "out", "buffer", "values", "indices")


def _name_of(call: ast.expr) -> str:
    """`copy` of `T.copy(...)`."""
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
        return call.func.attr if call.func.value.id == "T" else ""
    return ""


_COMBINING = {ast.Add: "+", ast.Sub: "-", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^"}


def _combined(target: ast.expr, value: ast.expr) -> tuple[str, ast.expr] | None:
    """The operator and the other operand, where a value is the target's own, combined with one other."""
    own = ast.unparse(target)
    if isinstance(value, ast.BinOp) and type(value.op) in _COMBINING:
        sign, sides = _COMBINING[type(value.op)], [value.left, value.right]
    elif _name_of(value) in ("max", "min"):
        assert isinstance(value, ast.Call)
        sign, sides = _name_of(value), value.args
    else:
        return None
    if ast.unparse(sides[0]) == own:
        return sign, sides[1]
    return (sign, sides[0]) if sign != "-" and ast.unparse(sides[1]) == own else None


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(arguments), keywords=[])


def _has_slice(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) and any(
        isinstance(each, ast.Slice) or (isinstance(each, ast.Constant) and each.value is Ellipsis)
        for each in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])
    )


class _Rewriter(ast.NodeTransformer):
    def __init__(self, tree: ast.Module) -> None:
        self.sites = 0
        self.variables: set[str] = set()
        self.references: dict[str, list[bool]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and _name_of(node.value) == "alloc_var":
                self.variables |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            if isinstance(node, ast.FunctionDef):
                refs = [ast.unparse(arg.annotation) == "T.Ref" if arg.annotation else False for arg in node.args.args]
                self.references[node.name] = refs
                self.variables |= {arg.arg for arg, ref in zip(node.args.args, refs) if ref}

    # Places and values

    def site(self) -> ast.expr:
        """The number of one more place in the text, before those within its indices."""
        self.sites += 1
        return ast.Constant(self.sites)

    def indices(self, node: ast.Subscript) -> ast.expr:
        elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        made: list[ast.expr] = []
        for each in elements:
            if isinstance(each, ast.Slice):
                bounds = [self.visit(bound) if bound else ast.Constant(None) for bound in (each.lower, each.upper)]
                made.append(_call("__slice", *bounds))
            else:
                made.append(self.visit(each))
        return ast.Tuple(elts=made, ctx=ast.Load())

    def place(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Subscript):
            return _call("__region", node.value, self.site(), self.indices(node))
        return node if isinstance(node, ast.Name) else self.visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if not isinstance(node.value, ast.Name):  # shape[0]
            return self.generic_visit(node)
        if _has_slice(node):
            return _call("__region", node.value, ast.Constant(0), self.indices(node))
        return _call("__load", node.value, self.site(), self.indices(node))

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id in self.variables and isinstance(node.ctx, ast.Load):
            return ast.Call(func=ast.Attribute(value=node, attr="load", ctx=ast.Load()), args=[], keywords=[])
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        name = _name_of(node)
        places = _PLACES.get(name, (0, 1) if name.startswith("reduce_") else ())
        if isinstance(node.func, ast.Name):  # a macro
            places = tuple(n for n, ref in enumerate(self.references.get(node.func.id, ())) if ref)
        arguments = [self.place(each) if n in places else self.visit(each) for n, each in enumerate(node.args)]
        keywords = [
            ast.keyword(each.arg, self.place(each.value) if each.arg in _PLACE_KEYWORDS else self.visit(each.value))
            for each in node.keywords
        ]
        if name in threads.EXCHANGES or name == threads.BARRIER:
            return ast.Yield(ast.Tuple([ast.Constant(name), *arguments], ast.Load()))
        return ast.Call(func=node.func, args=arguments, keywords=keywords)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        name = "__and" if isinstance(node.op, ast.And) else "__or"
        return _call(name, *[self.visit(value) for value in node.values])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return _call("__not", self.visit(node.operand))
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return _call("__choose", self.visit(node.test), self.visit(node.body), self.visit(node.orelse))

    def visit_Compare(self, node: ast.Compare) -> Any:
        values = [self.visit(each) for each in (node.left, *node.comparators)]
        parts = [
            ast.Compare(left=left, ops=[op], comparators=[right])
            for left, op, right in zip(values, node.ops, values[1:])
        ]
        return parts[0] if len(parts) == 1 else _call("__and", *parts)

    # Statements

    def _store(self, target: ast.expr, value: ast.expr) -> ast.stmt:
        if isinstance(target, ast.Subscript):
            if _has_slice(target):
                return ast.Expr(_call("__fill", self.place(target), value))
            return ast.Expr(_call("__store", target.value, self.site(), self.indices(target), value))
        assert isinstance(target, ast.Name)
        return ast.Expr(
            ast.Call(
                func=ast.Attribute(value=ast.Name(id=target.id, ctx=ast.Load()), attr="store", ctx=ast.Load()),
                args=[value],
                keywords=[],
            )
        )

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        is_variable = isinstance(target, ast.Name) and target.id in self.variables
        if isinstance(target, ast.Subscript) and not _has_slice(target) and (found := _combined(target, node.value)):
            sign, other = found
            return ast.Expr(
                _call("__update", target.value, self.site(), self.indices(target), ast.Constant(sign),
                      self.visit(other))
            )  # fmt: skip
        if isinstance(target, ast.Subscript) or (is_variable and _name_of(node.value) != "alloc_var"):
            return self._store(target, self.visit(node.value))
        node.value = self.visit(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        old: ast.expr = (
            ast.Subscript(value=node.target.value, slice=node.target.slice, ctx=ast.Load())
            if isinstance(node.target, ast.Subscript)
            else ast.Name(id=node.target.id, ctx=ast.Load())  # type: ignore[union-attr]
        )
        return self.visit_Assign(
            ast.Assign(targets=[node.target], value=ast.BinOp(left=old, op=node.op, right=node.value))
        )

    def visit_While(self, node: ast.While) -> Any:
        return ast.While(test=_call("__continue", self.visit(node.test)), body=self.body(node.body), orelse=[])

    def visit_If(self, node: ast.If) -> Any:
        return ast.If(test=_call("__truth", self.visit(node.test)), body=self.body(node.body),
                      orelse=self.body(node.orelse) if node.orelse else [])  # fmt: skip

    def body(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            found = self.visit(statement)
            made += found if isinstance(found, list) else [found]
        return made

    def visit_With(self, node: ast.With) -> Any:
        item = node.items[0]
        name = _name_of(item.context_expr)
        if name == "Kernel" and any(_name_of(each) == "get_thread_binding" for each in ast.walk(node)):
            given = item.optional_vars
            names = [each.id for each in ast.walk(given) if isinstance(each, ast.Name)] if given else ["_"]
            body = ast.parse(f"def __block({', '.join(names)}):\n    yield from ()").body
            assert isinstance(body[0], ast.FunctionDef)
            body[0].body += self.body(node.body)
            return [*body, ast.Expr(_call("__threads", ast.Name("__block", ast.Load()), self.visit(item.context_expr)))]
        if name == "Kernel":
            target = item.optional_vars or ast.Name(id="_", ctx=ast.Store())
            return ast.For(target=target, iter=_call("__blocks", self.visit(item.context_expr)),
                           body=self.body(node.body), orelse=[])  # fmt: skip
        if name == "If":
            assert isinstance(item.context_expr, ast.Call)
            parts = {_name_of(each.items[0].context_expr): each.body for each in node.body}  # type: ignore[attr-defined]
            return ast.If(test=_call("__truth", self.visit(item.context_expr.args[0])), body=self.body(parts["Then"]),
                          orelse=self.body(parts.get("Else", [])))  # fmt: skip
        raise Discard(f"with T.{name}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.body = self.body(node.body)
        return node


def _continue(condition: Any) -> bool:
    memory.machine.step()
    return numbers.truth(condition)


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "max": numbers.maximum, "min": numbers.minimum,
}  # fmt: skip


def _update(buffer: Buffer, site: int, indices: Sequence[Any], sign: str, value: Any) -> None:
    """`buffer[indices] = buffer[indices] <sign> value`. Iterations of a T.Parallel may share an on-chip element."""
    combine = _OPERATORS[sign]
    at = buffer.position(indices, site)
    if not memory.machine.loop_start or buffer.scope == "global" or at is None or at < 0:
        buffer.store(indices, combine(buffer.load(indices, site), value), site)
        return
    memory.machine.step()
    kind = f"update {'+' if sign == '-' else sign}"
    buffer.write(at, combine(buffer.held(at), value), kind)


_INTRINSICS: dict[str, Callable[..., Any]] = {
    "__slice": slice, "__and": numbers.logical_and, "__or": numbers.logical_or,
    "__not": numbers.logical_not, "__choose": numbers.select, "__fill": language.fill, "__blocks": language.blocks,
    "__region": lambda buffer, site, indices: Region(buffer, indices, site),
    "__load": lambda buffer, site, indices: buffer.load(indices, site),
    "__store": lambda buffer, site, indices, value: buffer.store(indices, value, site),
    "__update": _update, "__continue": _continue, "__truth": numbers.truth, "range": language.serial,
    "__threads": threads.blocks,
}  # fmt: skip


@functools.lru_cache(maxsize=64)
def _code(text: str) -> Any:
    tree = ast.parse(text)
    made = _Rewriter(tree).visit(tree)
    ast.fix_missing_locations(made)
    return compile(made, "<oracle>", "exec", dont_inherit=True)


@dataclass
class Argument:
    """A tensor (`cells` of a whole allocation, and where the tensor lies in it) or a scalar, `value`."""

    memory: int = 0
    offset: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    value: Any = None


def run_once(text: str, memories: Sequence[list[Number]], arguments: Sequence[Argument], order: int) -> list[Memory]:
    """The memories after one run of `main`; Discard if it has no defined meaning."""
    space: dict[str, Any] = {"T": Language(), **_INTRINSICS}
    now = memory.begin(order)
    held = [Memory(list(cells), True) for cells in memories]
    try:
        exec(_code(text), space)
        _call_main(space, held, arguments)
    except (KeyError, AttributeError, TypeError, UnboundLocalError, NameError, IndexError, ValueError,
            OverflowError, RecursionError, SyntaxError, AssertionError, StopIteration) as error:  # fmt: skip
        raise Discard(f"the oracle cannot run it: {type(error).__name__}: {error}") from error
    now.check_signs()
    return held


def _call_main(space: dict[str, Any], held: Sequence[Memory], arguments: Sequence[Argument]) -> None:
    """Bind the dynamic dimensions, and run."""
    main = space["main"]
    given: list[Any] = []
    sizes: dict[str, int] = {}
    annotations = list(main.__annotations__.values())
    if len(annotations) != len(arguments):
        raise Discard("another number of arguments")
    for spec, argument in zip(annotations, arguments):
        if isinstance(spec, TensorSpec):
            for dim, size in zip([*spec.shape, *(spec.strides or ())], [*argument.shape, *argument.strides]):
                if isinstance(dim, Symbol) and dim.name:
                    sizes[dim.name] = size
    places = [argument.memory for spec, argument in zip(annotations, arguments) if isinstance(spec, TensorSpec)]
    for place in {each for each in places if places.count(each) > 1}:
        held[place].named = {}
    for name, spec, argument in zip(main.__annotations__, annotations, arguments):
        if isinstance(spec, TensorSpec):
            dims = tuple(size_of(dim, sizes) for dim in spec.shape)
            if dims != argument.shape:
                raise Discard("a tensor of another shape")
            made = Buffer(held[argument.memory], dims, spec.dtype, "global", argument.offset, argument.strides)
            made.name = name
            made.shape = tuple(
                Number(dtypes.INT32, size) if isinstance(dim, Symbol) else size for dim, size in zip(spec.shape, dims)
            )
            given.append(made)
        else:
            given.append(numbers.cast(argument.value, spec))
    for name, value in list(space.items()):
        if isinstance(value, Symbol):
            space[name] = Number(dtypes.INT32, sizes[value.name])
    main(*given)


def expected(
    text: str, memories: Sequence[list[Number]], arguments: Sequence[Argument], orders: int = 3
) -> list[list[Number]]:
    """What the memories hold after the program, the same in so many orders of blocks and iterations; else Discard."""
    first = run_once(text, memories, arguments, 0)
    for before, after in zip(memories, first):
        if any(new.value is None and old.value is not None for old, new in zip(before, after.cells)):
            raise Discard("a result is undefined")
    for order in range(1, orders):
        other = run_once(text, memories, arguments, order)
        for one, two in zip(first, other):
            for n, (a, b) in enumerate(zip(one.cells, two.cells)):
                if a is not b and not (a.value == b.value or (a.value != a.value and b.value != b.value)):
                    if not (a.error and b.error):
                        raise Discard("the order of blocks or iterations matters")
                    # Sums in another order: within both bounds.
                    one.cells[n] = Number(a.dtype, a.value, max(a.error, b.error) + abs(a.value - b.value))
    return [each.cells for each in first]
