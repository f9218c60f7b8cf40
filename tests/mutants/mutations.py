"""Small changes of behaviour in a Python file: a boundary, an operator, a dropped statement, swapped arguments."""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace

COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is",
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"), ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"),
}  # fmt: skip
COMMUTE = {
    "min", "max", "gcd", "same_value", "same_place", "dot_dtype", "isclose", "suppress", "broadcast_shapes", "both",
    "unite",
    "AddOp", "MulOp", "AndOp", "OrOp", "XorOp", "MinOp", "MaxOp",
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
MESSAGES = {"debug", "info", "warning", "warn", "log", "remark", "note", "print"}  # what only says something
# What only says something, names a value, or asserts, as zip's strict does.
MESSAGE_ARGUMENTS = {"loc", "note", "notes", "hint", "message", "help", "name", "names", "strict"}


@dataclass(frozen=True)
class Mutant:
    file: str
    function: str  # its qualified name; "" at the top of the file
    start: int  # bytes of the file that `text` replaces
    end: int
    text: bytes
    covered_by: Collection[int]  # a test that runs one of these lines may notice
    before: str = ""  # the changed lines, spaces normalised
    after: str = ""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the mutant also after edits elsewhere in the file."""
        return self.file, self.function, self.before, self.after

    def rank(self, seed: int) -> str:
        """A place in a random order that edits of other lines do not change."""
        return hashlib.sha256(repr((seed, *self.key)).encode()).hexdigest()

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text + source[self.end :]


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file once. Some of them are no Python: `compiles` tells."""
    tree = ast.parse(source)
    finder = _Finder(file, source, _readers(tree))
    finder.visit(tree)
    made = {}
    for mutant in finder.found:
        described = _described(mutant, source)
        if described.before != described.after:
            made.setdefault(described.key, described)
    return list(made.values())


def _readers(tree: ast.Module) -> dict[str, set[int]]:
    """The lines of functions that read a name, by the name."""
    found: dict[str, set[int]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in (node for statement in function.body for node in ast.walk(statement)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    found.setdefault(node.id, set()).add(node.lineno)
    return found


def compiles(mutant: Mutant, source: bytes) -> bool:
    try:
        return ast.dump(ast.parse(mutant.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False


def _described(mutant: Mutant, source: bytes) -> Mutant:
    first = source.rfind(b"\n", 0, mutant.start) + 1
    last = source.find(b"\n", mutant.end)
    last = len(source) if last < 0 else last
    before = source[first:last]
    after = source[first : mutant.start] + mutant.text + source[mutant.end : last]
    return replace(mutant, before=" ".join(before.decode().split()), after=" ".join(after.decode().split()))


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: bytes, readers: dict[str, set[int]]) -> None:
        self.file, self.source, self.readers = file, source, readers
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutant] = []
        self.scope: list[str] = []
        self.functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
        self.lines: Collection[int] = range(0)

    # Places in the text

    def start(self, node: ast.AST) -> int:
        return self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        return self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def text(self, node: ast.AST) -> bytes:
        return self.source[self.start(node) : self.end(node)]

    def add(self, start: int, end: int, text: bytes) -> None:
        self.found.append(Mutant(self.file, ".".join(self.scope), start, end, text, self.lines))

    def add_between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """Another operator between two operands."""
        start = self.end(left)
        pattern = rb"\s+".join(map(re.escape, old.encode().split()))
        if match := re.search(pattern, self.source[start : self.start(right)]):
            self.add(start + match.start(), start + match.end(), new.encode())

    # What is visited

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self._statement(node)
        else:
            super().visit(node)

    def _statement(self, node: ast.stmt) -> None:
        outer = self.lines
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        self.lines = range(node.lineno, max(node.lineno, last) + 1)
        if self.functions == [] or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.lines = self._whole(node, outer)
        if not _is_silent(node):
            super().visit(node)
        self.lines = outer

    def _whole(self, node: ast.stmt, outer: Collection[int]) -> Collection[int]:
        """Lines that run with a definition, which itself runs at import: those that read a constant, if any do; in a
        class all of it."""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and not self.scope:
            return self.readers.get(node.targets[0].id) or range(1, len(self.starts))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        return outer if self.scope else range(1, len(self.starts))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.scope.append(node.name)
        outer, self.functions, lines = self.functions, [], self.lines
        has_methods = any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
        if has_methods:  # else those of the file run with it
            self.lines = range(node.lineno + 1, (node.end_lineno or node.lineno) + 1)
        for each in node.body:
            self.visit(each)
        self.functions, self.lines = outer, lines
        self.scope.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.scope.append(node.name)
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self.visit(default)
        self.functions.append(node)
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if body and len(body) > 1 and _returns(node) == "None":
            self.lines = range(body[0].lineno, (body[0].end_lineno or 0) + 1)
            self.add(self.start(body[0]), self.end(body[0]), b"return")
        for each in body:
            self.visit(each)
        self.functions.pop()
        self.scope.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts; and the places of what is inside are wrong before Python 3.12."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.drop(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.drop(node)

    def visit_Break(self, node: ast.Break) -> None:
        self.drop(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.drop(node)
        symbol, other = ARITHMETIC.get(type(node.op), ("", ""))
        if symbol:
            self.add_between(node.target, node.value, symbol, other)
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Attribute | ast.Subscript) and getattr(target, "attr", "") not in MESSAGE_ARGUMENTS:
            self.drop(node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.drop(node)
        self.generic_visit(node)

    def drop(self, node: ast.stmt) -> None:
        self.add(self.start(node), self.end(node), b"pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            return
        if self.functions and _returns(self.functions[-1]) == "bool" and not isinstance(node.value, ast.Constant):
            self.negate(node.value)
        elif not isinstance(node.value, ast.Constant):
            self.add(self.start(node), self.end(node), b"return None")
        self.visit(node.value)

    def negate(self, node: ast.expr) -> None:
        simple = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.Is)
        if not simple and not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
            self.add(self.start(node), self.end(node), b"not (" + self.text(node) + b")")

    def visit_condition(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = visit_condition

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.negate(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for left, right, op in zip(operands, operands[1:], node.ops):
            symbol = _symbol(op)
            self.add_between(left, right, symbol, COMPARISONS[symbol])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        symbol, other = ARITHMETIC.get(type(node.op), ("", ""))
        texts = any(isinstance(each, ast.JoinedStr) or _is_text(each) for each in (node.left, node.right))
        if symbol and not texts and (self.functions or not isinstance(node.op, ast.BitOr)):
            self.add_between(node.left, node.right, symbol, other)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            self.add_between(left, right, old, new)
            self.add(self.end(left), self.end(right), b"")
        self.add(self.start(node.values[0]), self.start(node.values[1]), b"")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        token = {ast.Not: 3, ast.USub: 1, ast.Invert: 1}.get(type(node.op), 0)
        if token:
            start = self.start(node)
            while self.source[start + token : start + token + 1] == b" ":
                token += 1
            self.add(start, start + token, b"")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(self.start(node), self.end(node), str(not value).encode())
        elif isinstance(value, int | float):
            for other in (value + 1, value - 1):
                self.add(self.start(node), self.end(node), (repr(other) if other >= 0 else f"({other})").encode())

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name.endswith("Error") or name in MESSAGES or name in ("cast", "TypeVar"):
            return
        if isinstance(node.func, ast.Name) and name in FUNCTIONS:
            self.add(self.start(node.func), self.end(node.func), FUNCTIONS[name].encode())
        applied = (
            getattr(node.args[0], "attr", "") if name in ("apply", "made") and node.args else name
        )  # apply(arith.AddOp, a, b)
        commutes = applied in COMMUTE or any(
            each.arg == "predicate" and _is_equality(each.value) for each in node.keywords
        )
        if not commutes and name not in ("isinstance", "issubclass", "getattr", "hasattr", "field"):
            for left, right in zip(node.args, node.args[1:]):
                starred = any(isinstance(each, ast.Starred | ast.GeneratorExp) for each in (left, right))
                if not starred and not (_is_operation(left) and _is_operation(right)):
                    between = self.source[self.end(left) : self.start(right)]
                    self.add(self.start(left), self.end(right), self.text(right) + between + self.text(left))
        arguments = sorted([*node.args, *node.keywords], key=self.start)
        for previous, argument in zip([node.func, *arguments], arguments):
            if isinstance(argument, ast.keyword) and argument.arg not in {None, *MESSAGE_ARGUMENTS}:
                if previous is not node.func:
                    self.add(self.end(previous), self.end(argument), b"")
                else:
                    following = arguments[1:2]
                    end = self.start(following[0]) if following else self.end(argument)
                    self.add(self.start(argument), end, b"")
        if name in ("isinstance", "issubclass"):
            self.visit(node.args[0])
        else:
            self.visit(node.func)
            for argument in arguments:
                if not (isinstance(argument, ast.keyword) and argument.arg in MESSAGE_ARGUMENTS):
                    self.visit(argument)


def _returns(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.unparse(node.returns) if node.returns is not None else ""


def _is_operation(node: ast.AST) -> bool:
    """Whether it names a class of operations: what takes several looks them up."""
    return isinstance(node, ast.Attribute | ast.Name) and getattr(node, "attr", getattr(node, "id", "")).endswith("Op")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_equality(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("eq", "ne")


def _symbol(op: ast.cmpop) -> str:
    return next(symbol for symbol in COMPARISONS if type(op) is type(_parsed(symbol)))


@functools.cache
def _parsed(symbol: str) -> ast.cmpop:
    compare = ast.parse(f"a {symbol} b", mode="eval").body
    assert isinstance(compare, ast.Compare)
    return compare.ops[0]


def _is_silent(node: ast.stmt) -> bool:
    """Statements whose change is no change of behaviour, or one that no input shows: assertions state what holds."""
    match node:
        case ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name))):
            return name in MESSAGES
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def strata(mutants: Iterable[Mutant], stratum: Callable[[str], str]) -> dict[str, list[Mutant]]:
    folders: dict[str, list[Mutant]] = {}
    for mutant in mutants:
        folders.setdefault(stratum(mutant.file), []).append(mutant)
    return folders


def sample(folders: dict[str, list[Mutant]], count: int, seed: int, sources: dict[str, bytes]) -> Iterator[Mutant]:
    """`count` mutants, from each folder its share, the same ones for the same seed."""
    total = sum(map(len, folders.values()))
    exact = {folder: count * len(mutants) / total for folder, mutants in folders.items()}
    shares = {folder: int(share) for folder, share in exact.items()}
    for folder in sorted(exact, key=lambda each: shares[each] - exact[each])[
        : min(count, total) - sum(shares.values())
    ]:
        shares[folder] += 1
    for folder, mutants in folders.items():
        taken = 0
        for mutant in sorted(mutants, key=lambda each: each.rank(seed)):
            if taken == shares[folder]:
                break
            if compiles(mutant, sources[mutant.file]):
                taken += 1
                yield mutant
