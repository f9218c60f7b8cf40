"""The syntax tree of tile programs: what the parser makes and the elaborator walks.

Nodes follow Python's own `ast` in name and meaning, as far as the subset goes; every node carries the Loc of its text.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.location import Loc


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Base of all nodes."""

    loc: Loc


def parts(node: Node) -> tuple[object, ...]:
    """What a node has but its place."""
    return tuple(getattr(node, field) for field in node.__dataclass_fields__ if field != "loc")


class Expression(Node):
    """Base of nodes that have a value."""

    __slots__ = ()


class Statement(Node):
    """Base of nodes that stand on a line of their own."""

    __slots__ = ()


# Expressions


@dataclass(frozen=True, slots=True, eq=False)
class Name(Expression):
    id: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Expression):
    """A number, string, True, False, None or `...`."""

    value: object


@dataclass(frozen=True, slots=True, eq=False)
class JoinedString(Expression):
    """An f-string: literal text and formatted values in order."""

    parts: tuple[str | FormattedValue, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FormattedValue(Expression):
    """`{value!conversion:format}` of an f-string; `conversion` is 'r', 's', 'a' or ''."""

    value: Expression
    conversion: str
    format: JoinedString | None


@dataclass(frozen=True, slots=True, eq=False)
class Attribute(Expression):
    value: Expression
    attr: str


@dataclass(frozen=True, slots=True, eq=False)
class Subscript(Expression):
    """`value[index]`; several indices are a Tuple."""

    value: Expression
    index: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Slice(Expression):
    """`lower:upper:step`, only as (an element of) a Subscript's index."""

    lower: Expression | None
    upper: Expression | None
    step: Expression | None


@dataclass(frozen=True, slots=True, eq=False)
class Tuple(Expression):
    elements: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class List(Expression):
    elements: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Set(Expression):
    elements: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Dict(Expression):
    """A None key stands for `**value`."""

    items: tuple[tuple[Expression | None, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Starred(Expression):
    """`*value` in a call, a tuple, a list or an assignment target."""

    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Call(Expression):
    """A None keyword stands for `**value`."""

    function: Expression
    arguments: tuple[Expression, ...]
    keywords: tuple[tuple[str | None, Expression], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Binary(Expression):
    """`op` is the text of the operator: + - * / // % ** << >> & | ^ @."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Unary(Expression):
    """`op` is one of + - ~ not."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Boolean(Expression):
    """`op` is 'and' or 'or'; at least two values."""

    op: str
    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Compare(Expression):
    """`left ops[0] comparators[0] ops[1] ...`; ops are < <= > >= == != in, not in, is, is not."""

    left: Expression
    ops: tuple[str, ...]
    comparators: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Conditional(Expression):
    """`body if test else orelse`."""

    test: Expression
    body: Expression
    orelse: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Lambda(Expression):
    parameters: tuple[Parameter, ...]
    body: Expression


@dataclass(frozen=True, slots=True, eq=False)
class NamedExpression(Expression):
    """`name := value`."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Comprehension(Expression):
    """`kind` is 'list', 'set', 'generator' or 'dict' (then `element` is a Tuple of key and value)."""

    kind: str
    element: Expression
    clauses: tuple[Clause, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Clause(Node):
    """`for target in iterable if condition ...` of a comprehension."""

    target: Expression
    iterable: Expression
    conditions: tuple[Expression, ...]


# Statements


@dataclass(frozen=True, slots=True, eq=False)
class Assign(Statement):
    """`targets[0] = targets[1] = value`."""

    targets: tuple[Expression, ...]
    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class AugmentedAssign(Statement):
    """`target op= value`; `op` is without the equals sign."""

    target: Expression
    op: str
    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class AnnotatedAssign(Statement):
    """`target: annotation [= value]`."""

    target: Expression
    annotation: Expression
    value: Expression | None


@dataclass(frozen=True, slots=True, eq=False)
class ExpressionStatement(Statement):
    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class If(Statement):
    """`elif` is an If alone in `orelse`."""

    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class For(Statement):
    target: Expression
    iterable: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class While(Statement):
    test: Expression
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class With(Statement):
    """`with context as target, ...:`; a target is None where there is no `as`."""

    items: tuple[tuple[Expression, Expression | None], ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Return(Statement):
    value: Expression | None


@dataclass(frozen=True, slots=True, eq=False)
class Raise(Statement):
    value: Expression | None


@dataclass(frozen=True, slots=True, eq=False)
class Assert(Statement):
    test: Expression
    message: Expression | None


@dataclass(frozen=True, slots=True, eq=False)
class Import(Statement):
    """`import a.b as c` is ('a.b', None, 'c'); `from a import b as c` is ('a', 'b', 'c'). Names are as bound."""

    names: tuple[tuple[str, str | None, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Nonlocal(Statement):
    """`nonlocal names` or `global names`; `keyword` says which."""

    keyword: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pass(Statement):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Break(Statement):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Continue(Statement):
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Parameter(Node):
    """`kind` is '' (positional or keyword), '/' (positional only), '*' (variadic), 'kw' (keyword only) or '**'."""

    name: str
    annotation: Expression | None
    default: Expression | None
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Function(Statement):
    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    decorators: tuple[Expression, ...]
    returns: Expression | None


@dataclass(frozen=True, slots=True, eq=False)
class Module(Node):
    """A whole text program."""

    body: tuple[Statement, ...]
