"""From grammar rules to syntax nodes: one method a rule of grammar.lark, called by the parser as it reduces.

A method gets the rule's children: nodes for rules, tokens for terminals that the grammar names, None for an absent
`[optional]`.
What a grammar that stays LALR(1) cannot say (what may be assigned to, the order of parameters) is checked here.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from lark import Token, Transformer

from tiledsl.errors import TileError
from tiledsl.frontend import literals, syntax
from tiledsl.frontend.checks import check_plain, check_target, ordered_parameters
from tiledsl.frontend.syntax import Expression, Node, Statement
from tiledsl.location import Loc

Children = list[Any]

_PRECEDENCE = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "@": 6}
_CONSTANTS: dict[str, object] = {"True": True, "False": False, "None": None, "...": ...}
_ONE_WORD = {"pass": syntax.Pass, "break": syntax.Break, "continue": syntax.Continue}
_NOT_ITEMS = (syntax.Starred, syntax.NamedExpression)


class TreeBuilder(Transformer[Token, Any]):
    """Makes the nodes. `file` is set before each parse; `parse_inner` reads the expressions inside f-strings."""

    def __init__(self, parse_inner: literals.ParseInner) -> None:
        super().__init__()
        self.file = "<text>"
        self.parse_inner = parse_inner
        # Ranges of `(a)` with its parentheses: not the node's own, but the nodes around it start or end there.
        self.groups: dict[Node, Loc] = {}
        self.with_groups: dict[Node, Children] = {}

    def reset(self, file: str) -> None:
        self.file = file
        self.groups.clear()
        self.with_groups.clear()

    def span(self, first: Token | Node, last: Token | Node) -> Loc:
        """From the start of one child to the end of another."""
        start: Any = first if isinstance(first, Token) else self.groups.get(first, first.loc)
        end: Any = last if isinstance(last, Token) else self.groups.get(last, last.loc)
        return Loc(self.file, start.line, start.column, end.end_line, end.end_column)

    # Statements

    def module(self, c: Children) -> syntax.Module:
        loc = self.span(c[0], c[-1]) if c else Loc(self.file, 1, 1, 1, 1)
        return syntax.Module(loc, tuple(s for s in c if isinstance(s, Statement)))

    def suite(self, c: Children) -> tuple[Statement, ...]:
        return tuple(s for s in c if isinstance(s, Statement))

    def expression_statement(self, c: Children) -> Statement:
        (value,) = c
        check_plain(value)
        return syntax.ExpressionStatement(self.span(value, value), value)

    def assign(self, c: Children) -> Statement:
        for target in c[:-1]:
            check_target(target)
        check_plain(c[-1])
        return syntax.Assign(self.span(c[0], c[-1]), tuple(c[:-1]), c[-1])

    def augmented_assign(self, c: Children) -> Statement:
        target, op, value = c
        check_target(target, single=True)
        check_plain(value)
        return syntax.AugmentedAssign(self.span(target, value), target, str(op[:-1]), value)

    def annotated_assign(self, c: Children) -> Statement:
        target, annotation, value = c
        check_target(target, single=True)
        check_plain(value)
        return syntax.AnnotatedAssign(self.span(target, value or annotation), target, annotation, value)

    def return_statement(self, c: Children) -> Statement:
        check_plain(c[1])
        return syntax.Return(self.span(c[0], c[1] or c[0]), c[1])

    def raise_statement(self, c: Children) -> Statement:
        return syntax.Raise(self.span(c[0], c[1] or c[0]), c[1])

    def assert_statement(self, c: Children) -> Statement:
        return syntax.Assert(self.span(c[0], c[2] or c[1]), c[1], c[2])

    def name_declaration(self, c: Children) -> Statement:
        return syntax.Nonlocal(self.span(c[0], c[-1]), str(c[0]), tuple(self.identifier(t) for t in c[1:]))

    def one_word(self, c: Children) -> Statement:
        (word,) = c
        return _ONE_WORD[word](self.span(word, word))

    pass_statement = break_statement = continue_statement = one_word

    def import_statement(self, c: Children) -> Statement:
        return syntax.Import(self.span(c[0], c[-1][1]), tuple(name for name, _ in c[1:]))

    def import_name(self, c: Children) -> tuple[tuple[str, None, str], Token]:
        path, alias = c
        dotted = ".".join(self.identifier(t) for t in path)
        return (dotted, None, self.identifier(alias or path[0])), alias or path[-1]

    def import_from(self, c: Children) -> Statement:
        closing = c[-1] if isinstance(c[-1], Token) else c[-1][1]
        names = tuple((c[1], name, bound) for (name, bound), _ in (item for item in c[2:] if item is not closing))
        return syntax.Import(self.span(c[0], closing), names)

    def import_module(self, c: Children) -> str:
        return "".join(str(t) if isinstance(t, Token) else ".".join(map(self.identifier, t)) for t in c)

    def imported(self, c: Children) -> tuple[tuple[str, str], Token]:
        name, alias = c
        return (self.identifier(name), self.identifier(alias or name)), alias or name

    def if_statement(self, c: Children) -> Statement:
        orelse: tuple[Statement, ...] = c.pop() or ()
        for keyword, test, body in zip(c[-3::-3], c[-2::-3], c[-1::-3], strict=True):
            orelse = (syntax.If(self.span(keyword, (orelse or body)[-1]), test, body, orelse),)
        return orelse[0]

    def for_statement(self, c: Children) -> Statement:
        keyword, target, iterable, body, orelse = c
        check_target(target)
        check_plain(iterable)
        return syntax.For(self.span(keyword, (orelse or body)[-1]), target, iterable, body, orelse or ())

    def while_statement(self, c: Children) -> Statement:
        keyword, test, body, orelse = c
        return syntax.While(self.span(keyword, (orelse or body)[-1]), test, body, orelse or ())

    def with_statement(self, c: Children) -> Statement:
        items, body = c[1:-1], c[-1]
        match items:
            case [(context, None)]:
                items = self.with_groups.pop(context, []) or self.split_items(context)
        return syntax.With(self.span(c[0], body[-1]), tuple(items), body)

    def split_items(self, context: Expression) -> Children:
        """`with (a, b):` has two items, not one tuple, unless something in it cannot be an item."""
        if not isinstance(context, syntax.Tuple) or not context.elements or context in self.groups:
            return [(context, None)]
        if any(isinstance(e, _NOT_ITEMS) and e not in self.groups for e in context.elements):
            return [(context, None)]
        return [(item, None) for item in context.elements]

    def with_item(self, c: Children) -> tuple[Expression, Expression | None]:
        if c[1] is not None:
            check_target(c[1])
        return c[0], c[1]

    as_item = with_item

    def with_group(self, c: Children) -> Expression:
        node = syntax.Tuple(self.span(c[0], c[-1]), ())
        items = [item if isinstance(item, tuple) else (item, None) for item in c[1:-1]]
        for context, _ in items:
            check_plain(context)
        self.with_groups[node] = items
        return node

    def decorated(self, c: Children) -> Statement:
        function: syntax.Function = c[-1]
        return syntax.Function(
            function.loc, function.name, function.parameters, function.body, tuple(c[:-1]), function.returns
        )

    def function(self, c: Children) -> Statement:
        keyword, name, parameters, returns, body = c
        return syntax.Function(self.span(keyword, body[-1]), self.identifier(name), parameters or (), body, (), returns)

    def only(self, c: Children) -> Any:
        (child,) = c
        return child

    def children(self, c: Children) -> Children:
        return c

    decorator = bare_star = slash = only
    dotted_name = children

    # Parameters: a bare '*' or '/' comes as its token

    def parameters(self, c: Children) -> tuple[syntax.Parameter, ...]:
        return ordered_parameters(c, self.file)

    def make_parameter(self, name: Token, annotation: Expression | None, default: Expression | None, kind: str) -> Node:
        return syntax.Parameter(self.span(name, annotation or name), self.identifier(name), annotation, default, kind)

    def parameter(self, c: Children) -> Node:
        return self.make_parameter(c[0], c[1], c[2], "")

    def star_parameter(self, c: Children) -> Node:
        return self.make_parameter(c[0], c[1] if len(c) > 1 else None, None, "*")

    def star_star_parameter(self, c: Children) -> Node:
        return self.make_parameter(c[0], c[1] if len(c) > 1 else None, None, "**")

    lambda_star, lambda_star_star = star_parameter, star_star_parameter

    def lambda_parameter(self, c: Children) -> Node:
        return self.make_parameter(c[0], None, c[1], "")

    # Expressions

    def bare_tuple(self, c: Children) -> Expression:
        elements = c[:-1] if c[-1] is None or isinstance(c[-1], Token) else c
        last = c[-1] if c[-1] is not None else c[-2]
        return syntax.Tuple(self.span(c[0], last), tuple(elements))

    def starred(self, c: Children) -> Expression:
        return syntax.Starred(self.span(c[0], c[1]), c[1])

    def named_expression(self, c: Children) -> Expression:
        return syntax.NamedExpression(self.span(c[0], c[1]), self.identifier(c[0]), c[1])

    def conditional(self, c: Children) -> Expression:
        body, test, orelse = c
        return syntax.Conditional(self.span(body, orelse), test, body, orelse)

    def lambda_expression(self, c: Children) -> Expression:
        return syntax.Lambda(self.span(c[0], c[2]), c[1] or (), c[2])

    def disjunction(self, c: Children, op: str = "or") -> Expression:
        return syntax.Boolean(self.span(c[0], c[-1]), op, tuple(c))

    def conjunction(self, c: Children) -> Expression:
        return self.disjunction(c, "and")

    def unary(self, c: Children) -> Expression:
        return syntax.Unary(self.span(c[0], c[1]), str(c[0]), c[1])

    def comparison(self, c: Children) -> Expression:
        return syntax.Compare(self.span(c[0], c[-1]), c[0], tuple(c[1::2]), tuple(c[2::2]))

    def comparison_operator(self, c: Children) -> str:
        return " ".join(c)

    def operation(self, c: Children) -> Expression:
        """Apply the precedence of `a + b * c ...`; every operator here associates to the left."""
        operands: list[Expression] = [c[0]]
        ops: list[str] = []
        for at in range(1, len(c), 2):
            op = str(c[at])
            while ops and _PRECEDENCE[ops[-1]] >= _PRECEDENCE[op]:
                self.fold(operands, ops)
            ops.append(op)
            operands.append(c[at + 1])
        while ops:
            self.fold(operands, ops)
        return operands.pop()

    def fold(self, operands: list[Expression], ops: list[str]) -> None:
        right, left = operands.pop(), operands.pop()
        operands.append(syntax.Binary(self.span(left, right), ops.pop(), left, right))

    def power_of(self, c: Children) -> Expression:
        return syntax.Binary(self.span(c[0], c[1]), "**", c[0], c[1])

    def attribute(self, c: Children) -> Expression:
        return syntax.Attribute(self.span(c[0], c[1]), c[0], self.identifier(c[1]))

    def subscription(self, c: Children) -> Expression:
        value, index, closing = c
        if isinstance(index, syntax.Starred):
            index = syntax.Tuple(index.loc, (index,))
        return syntax.Subscript(self.span(value, closing), value, index)

    def slice(self, c: Children) -> Expression:
        lower, colon, upper, second_colon, step = c
        last = step or second_colon or upper or colon
        return syntax.Slice(self.span(lower or colon, last), lower, upper, step)

    def call(self, c: Children) -> Expression:
        function, _, arguments, closing = c
        positional, keywords = arguments or ((), ())
        return syntax.Call(self.span(function, closing), function, positional, keywords)

    def generator_call(self, c: Children) -> Expression:
        argument = self.generator(c[1:])
        return syntax.Call(self.span(c[0], c[-1]), c[0], (argument,), ())

    def arguments(self, c: Children) -> tuple[tuple[Expression, ...], tuple[tuple[str | None, Expression], ...]]:
        positional: list[Expression] = []
        keywords: list[tuple[str | None, Expression]] = []
        for item in c:
            if isinstance(item, tuple):
                token, value = item
                name = None if token == "**" else self.identifier(token)
                if name is not None and any(name == other for other, _ in keywords):
                    raise TileError(f"the keyword argument {name!r} is given twice", self.span(token, value))
                keywords.append((name, value))
            elif keywords and (not isinstance(item, syntax.Starred) or any(name is None for name, _ in keywords)):
                raise TileError("a positional argument cannot follow keyword arguments", item.loc)
            else:
                positional.append(item)
        return tuple(positional), tuple(keywords)

    def keyword_argument(self, c: Children) -> tuple[Token, Expression]:
        return c[0], c[1]

    star_star_argument = keyword_argument

    # Atoms

    def identifier(self, token: Token) -> str:
        """A name's text in the form that Python compares names in."""
        if token.isascii():
            return str(token)
        if not token.isidentifier():
            raise TileError(f"{str(token)!r} is not a valid name", self.span(token, token))
        return unicodedata.normalize("NFKC", str(token))

    def name(self, c: Children) -> Expression:
        (word,) = c
        return syntax.Name(self.span(word, word), self.identifier(word))

    def number(self, c: Children) -> Expression:
        (word,) = c
        loc = self.span(word, word)
        return syntax.Constant(loc, literals.number(str(word), loc))

    def constant(self, c: Children) -> Expression:
        (word,) = c
        return syntax.Constant(self.span(word, word), _CONSTANTS[word])

    def strings(self, c: Children) -> Expression:
        loc = self.span(c[0], c[-1])
        parts: list[str | bytes | syntax.FormattedValue] = []
        for token in c:
            here = self.span(token, token)
            if token.type == "STRING":
                parts.append(literals.string(str(token), here))
            else:
                parts.extend(literals.formatted_parts(str(token), here, self.parse_inner))
        formatted = any(token.type == "FSTRING" for token in c)
        binary = {isinstance(part, bytes) for part in parts}
        if True in binary and (formatted or False in binary):
            raise TileError("bytes and text cannot be joined by writing them side by side", loc)
        if not formatted:
            return syntax.Constant(loc, b"".join(parts) if True in binary else "".join(parts))  # type: ignore[arg-type]
        return syntax.JoinedString(loc, tuple(part for part in parts if part and not isinstance(part, bytes)))

    def group(self, c: Children) -> Expression:
        node: Expression = c[1]
        self.groups[node] = self.span(c[0], c[2])
        return node

    def starred_group(self, c: Children) -> Expression:
        raise TileError("a starred expression in parentheses needs a comma after it", self.span(c[1], c[1]))

    def paren_tuple(self, c: Children) -> Expression:
        elements = tuple(item for item in c if isinstance(item, Expression))
        return syntax.Tuple(self.span(c[0], c[-1]), elements)

    def elements(self, c: Children) -> tuple[Expression, ...]:
        return tuple(c)

    pairs = elements

    def list_display(self, c: Children) -> Expression:
        return syntax.List(self.span(c[0], c[-1]), c[1] or ())

    def set_display(self, c: Children) -> Expression:
        return syntax.Set(self.span(c[0], c[-1]), c[1])

    def dict_display(self, c: Children) -> Expression:
        items = tuple((None if isinstance(key, Token) else key, value) for key, value in c[1] or ())
        return syntax.Dict(self.span(c[0], c[-1]), items)

    def pair(self, c: Children) -> tuple[Expression, Expression]:
        return c[0], c[1]

    def generator(self, c: Children, kind: str = "generator") -> Expression:
        return syntax.Comprehension(self.span(c[0], c[-1]), kind, c[1], tuple(c[2:-1]))

    def list_comprehension(self, c: Children) -> Expression:
        return self.generator(c, "list")

    def set_comprehension(self, c: Children) -> Expression:
        return self.generator(c, "set")

    def dict_comprehension(self, c: Children) -> Expression:
        element = syntax.Tuple(self.span(c[1], c[2]), (c[1], c[2]))
        return self.generator([c[0], element, *c[3:]], "dict")

    def clause(self, c: Children) -> Node:
        keyword, target, iterable = c[:3]
        check_target(target)
        return syntax.Clause(self.span(keyword, c[-1]), target, iterable, tuple(c[3:]))
