"""Python's own `ast` and our syntax trees as nested tuples that can be compared, positions included."""

from __future__ import annotations

import ast
from typing import Any

from tiledsl.frontend import syntax

OPERATORS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**",
    "LShift": "<<", "RShift": ">>", "BitOr": "|", "BitXor": "^", "BitAnd": "&", "MatMult": "@",
    "UAdd": "+", "USub": "-", "Invert": "~", "Not": "not", "Lt": "<",
    "LtE": "<=", "Gt": ">", "GtE": ">=", "Eq": "==", "NotEq": "!=", "In": "in", "NotIn": "not in", "Is": "is",
    "IsNot": "is not", "And": "and", "Or": "or",
}  # fmt: skip


class FromAst:
    """`convert` gives (kind, position, fields...); positions count characters from 1 and are None inside f-strings."""

    def __init__(self, text: str) -> None:
        self.lines = [line.encode() for line in text.split("\n")]
        self.formatting = 0

    def position(self, node: Any) -> tuple[int, int, int, int] | None:
        if self.formatting:
            return None
        begin = len(self.lines[node.lineno - 1][: node.col_offset].decode()) + 1
        end = len(self.lines[node.end_lineno - 1][: node.end_col_offset].decode()) + 1
        return node.lineno, begin, node.end_lineno, end

    def many(self, nodes: list[Any]) -> tuple[Any, ...]:
        return tuple(self.convert(node) for node in nodes)

    def parts(self, values: list[Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        for value in values:
            if isinstance(value, ast.Constant):
                found.append(value.value)
            else:
                spec = None if value.format_spec is None else self.parts(value.format_spec.values)
                conversion = "" if value.conversion < 0 else chr(value.conversion)
                found.append((self.convert(value.value), conversion, spec))
        return join_text(found)

    def parameters(self, a: ast.arguments) -> tuple[Any, ...]:
        plain = [(p, "/") for p in a.posonlyargs] + [(p, "") for p in a.args]
        defaults = [None] * (len(plain) - len(a.defaults)) + list(a.defaults)
        found = [(p, kind, d) for (p, kind), d in zip(plain, defaults, strict=True)]
        found += [(a.vararg, "*", None)] if a.vararg else []
        found += [(p, "kw", d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
        found += [(a.kwarg, "**", None)] if a.kwarg else []
        return tuple((p.arg, self.position(p), self.convert(p.annotation), self.convert(d), k) for p, k, d in found)

    def clauses(self, generators: list[Any]) -> tuple[Any, ...]:
        return tuple((self.convert(g.target), self.convert(g.iter), self.many(g.ifs)) for g in generators)

    def convert(self, n: Any) -> Any:
        if n is None:
            return None
        kind = type(n).__name__
        convert, many = self.convert, self.many
        if kind == "JoinedStr":
            position = self.position(n)
            self.formatting += 1
            parts = self.parts(n.values)
            self.formatting -= 1
            return "JoinedString", position, parts
        if kind == "Module":
            return "Module", many(n.body)
        at = self.position(n)
        match kind:
            case "Name":
                return kind, at, n.id
            case "Constant":
                return kind, at, type(n.value).__name__, repr(n.value)
            case "Attribute":
                return kind, at, convert(n.value), n.attr
            case "Subscript":
                return kind, at, convert(n.value), convert(n.slice)
            case "Slice":
                return kind, at, convert(n.lower), convert(n.upper), convert(n.step)
            case "Tuple" | "List" | "Set":
                return kind, at, many(n.elts)
            case "Dict":
                return kind, at, tuple((convert(k), convert(v)) for k, v in zip(n.keys, n.values, strict=True))
            case "Starred" | "Expr" | "Return":
                return kind, at, convert(n.value)
            case "Call":
                return kind, at, convert(n.func), many(n.args), tuple((k.arg, convert(k.value)) for k in n.keywords)
            case "BinOp":
                return kind, at, OPERATORS[type(n.op).__name__], convert(n.left), convert(n.right)
            case "UnaryOp":
                return kind, at, OPERATORS[type(n.op).__name__], convert(n.operand)
            case "BoolOp":
                return kind, at, OPERATORS[type(n.op).__name__], many(n.values)
            case "Compare":
                return kind, at, convert(n.left), tuple(OPERATORS[type(o).__name__] for o in n.ops), many(n.comparators)
            case "IfExp":
                return kind, at, convert(n.test), convert(n.body), convert(n.orelse)
            case "Lambda":
                return kind, at, self.parameters(n.args), convert(n.body)
            case "NamedExpr":
                return kind, at, n.target.id, convert(n.value)
            case "ListComp" | "SetComp" | "GeneratorExp":
                return kind, at, (convert(n.elt),), self.clauses(n.generators)
            case "DictComp":
                return kind, at, (convert(n.key), convert(n.value)), self.clauses(n.generators)
            case "Assign":
                return kind, at, many(n.targets), convert(n.value)
            case "AugAssign":
                return kind, at, convert(n.target), OPERATORS[type(n.op).__name__], convert(n.value)
            case "AnnAssign":
                return kind, at, convert(n.target), convert(n.annotation), convert(n.value)
            case "If" | "While":
                return kind, at, convert(n.test), many(n.body), many(n.orelse)
            case "For":
                return kind, at, convert(n.target), convert(n.iter), many(n.body), many(n.orelse)
            case "With":
                items = tuple((convert(i.context_expr), convert(i.optional_vars)) for i in n.items)
                return kind, at, items, many(n.body)
            case "Raise":
                return kind, at, convert(n.exc)
            case "Assert":
                return kind, at, convert(n.test), convert(n.msg)
            case "Import":
                return "Import", at, tuple((a.name, None, a.asname or a.name.split(".")[0]) for a in n.names)
            case "ImportFrom":
                module = "." * n.level + (n.module or "")
                return "Import", at, tuple((module, a.name, a.asname or a.name) for a in n.names)
            case "Global" | "Nonlocal":
                return "Nonlocal", at, kind.lower(), tuple(n.names)
            case "Pass" | "Break" | "Continue":
                return kind, at
            case "FunctionDef":
                return (
                    kind, at, n.name, self.parameters(n.args), many(n.body), many(n.decorator_list), convert(n.returns)
                )  # fmt: skip
        raise NotImplementedError(kind)


NAMES = {
    "ExpressionStatement": "Expr", "Binary": "BinOp", "Unary": "UnaryOp", "Boolean": "BoolOp", "Conditional": "IfExp",
    "NamedExpression": "NamedExpr", "AugmentedAssign": "AugAssign", "AnnotatedAssign": "AnnAssign",
    "Function": "FunctionDef",
}  # fmt: skip
COMPREHENSIONS = {"list": "ListComp", "set": "SetComp", "generator": "GeneratorExp", "dict": "DictComp"}


class FromSyntax:
    """The same tuples from our nodes."""

    def __init__(self) -> None:
        self.formatting = 0

    def position(self, node: syntax.Node) -> tuple[int, int, int, int] | None:
        loc = node.loc
        return None if self.formatting else (loc.line, loc.column, loc.end_line, loc.end_column)

    def parts(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        found: list[Any] = []
        for p in parts:
            if isinstance(p, str):
                found.append(p)
            else:
                spec = None if p.format is None else self.parts(p.format.parts)
                found.append((self.convert(p.value), p.conversion, spec))
        return join_text(found)

    def convert(self, n: Any) -> Any:
        if n is None or isinstance(n, str):
            return n
        if isinstance(n, tuple):
            return tuple(self.convert(item) for item in n)
        kind = NAMES.get(type(n).__name__, type(n).__name__)
        if isinstance(n, syntax.Module):
            return "Module", self.convert(n.body)
        at = self.position(n)
        if isinstance(n, syntax.JoinedString):
            self.formatting += 1
            parts = self.parts(n.parts)
            self.formatting -= 1
            return kind, at, parts
        if isinstance(n, syntax.Constant):
            return kind, at, type(n.value).__name__, repr(n.value)
        if isinstance(n, syntax.Parameter):
            return n.name, at, self.convert(n.annotation), self.convert(n.default), n.kind
        if isinstance(n, syntax.Clause):
            return self.convert(n.target), self.convert(n.iterable), self.convert(n.conditions)
        if isinstance(n, syntax.Comprehension):
            element = n.element.elements if n.kind == "dict" else (n.element,)  # type: ignore[attr-defined]
            return COMPREHENSIONS[n.kind], at, self.convert(element), self.convert(n.clauses)
        fields = [name for name in type(n).__dataclass_fields__ if name != "loc"]
        return kind, at, *(self.convert(getattr(n, name)) for name in fields)


def join_text(parts: list[Any]) -> tuple[Any, ...]:
    """Join neighbouring strings: where an f-string's text is split is of no meaning."""
    found: list[Any] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        elif part != "":
            found.append(part)
    return tuple(found)


def from_python(text: str) -> Any:
    return FromAst(text).convert(ast.parse(text))


def from_tiledsl(module: syntax.Node) -> Any:
    return FromSyntax().convert(module)
