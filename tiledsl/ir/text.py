"""The text form of the IR: print, parse back, and print as generic MLIR.

One rule serves every operation, from its declared fields:

    %c = tile.load %A[%m, %k] mask=%ok {cached = true} : tensor<128x64xfloat16> (%arg: int32) { ... }

Operands stand in order, separated by commas; a variadic field is a bracketed list right behind; an optional operand is
`name=%value`. Attributes that have their default are left out. Result types follow the colon, then the regions with
their arguments. `// ` starts a comment. With locations on, a line ends in `loc("file" line column line column)`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

from tiledsl.errors import TileError, register_source
from tiledsl.ir.core import OPERATIONS, Operation, Region, Value, attr, operand, operands, optional
from tiledsl.ir.location import UNKNOWN, Loc
from tiledsl.ir.types import ELEMENTS, BufferType, Dim, ScalarType, TensorType, Type


class _Names(dict[Value, str]):
    """Gives each value a unique printable name, its own where possible."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[str] = set()
        self._numbers: dict[str, Iterator[int]] = {}

    def __missing__(self, value: Value) -> str:
        name = wanted = re.sub(r"\W", "_", value.name)
        numbers = self._numbers.setdefault(wanted, count(1 if wanted else 0))
        while not name or name in self._taken:
            name = f"{wanted}_{next(numbers)}" if wanted else str(next(numbers))
        self._taken.add(name)
        return self.setdefault(value, "%" + name)


def print_op(op: Operation, *, locations: bool = False) -> str:
    """The text of an operation and all inside."""
    return "\n".join(_lines(op, _Names(), "", locations))


def _lines(op: Operation, names: _Names, indent: str, locations: bool) -> Iterator[str]:
    text = op.name + _operand_text(op, names)
    shown = [
        f"{key} = {attribute_text(value)}"
        for key, value in op.attributes.items()
        if not same_attribute(op.defaults.get(key, attr.REQUIRED), value)
    ]
    if shown:
        text += " {" + ", ".join(shown) + "}"
    if op.results:
        text = ", ".join(names[value] for value in op.results) + " = " + text
        text += " : " + ", ".join(str(value.type) for value in op.results)
    loc, where = op.loc, ""
    if locations and loc is not UNKNOWN:
        where = f" loc({json.dumps(loc.file)} {loc.line} {loc.column} {loc.end_line} {loc.end_column})"
    for number, region in enumerate(op.regions):
        args = ", ".join(f"{names[arg]}: {arg.type}" for arg in region.args)
        head = text if number == 0 else "}"
        yield f"{indent}{head} ({args}) {{" if args else f"{indent}{head} {{"
        for inner in region:
            yield from _lines(inner, names, indent + "  ", locations)
    yield indent + ("}" if op.regions else text) + where


def _operand_text(op: Operation, names: _Names) -> str:
    parts: list[str] = []
    named = ""
    # Where there are nothing but lists, each is shown, to tell them apart.
    only_lists = len(op.operand_fields) > 1 and {*map(type, op.operand_fields)} == {operands}
    for field in op.operand_fields:
        values = [names[value] for value in field.values(op)]
        if type(field) is operand:
            parts += values or ["%?"]
        elif type(field) is operands:
            group = f"[{', '.join(values)}]"
            if only_lists or (values and not parts):
                parts.append(group)
            elif values:
                parts[-1] += group
        elif values:
            named += f" {field.name}={values[0]}"
    return (" " + ", ".join(parts) if parts else "") + named


def same_attribute(a: Any, b: Any) -> bool:
    """Equality that tells 1, 1.0 and true apart, and 0.0 from -0.0."""
    return type(a) is type(b) and repr(a) == repr(b)


def attribute_text(value: Any) -> str:
    """An attribute as text: true, 3, 0.5, inf, "text", none, (1, 2)."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        inner = ", ".join(map(attribute_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise TypeError(f"{value!r} cannot be an attribute")


_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<value>%\w+)
    |(?P<type>(?:tensor|buffer)<(?:[^<>()]|\([^()]*\))*>)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|inf\b|nan\b))
    |(?P<word>\*?[A-Za-z_][\w.-]*)
    |(?P<mark>[][(){},:=])
    |(?P<end>\Z)
    |(?P<wrong>.)""",
    re.VERBOSE,
)
_BUFFER = re.compile(r"((?:\w+\*)*)(\*?\w+), (\w+)(?:, strides\(([^)]*)\))?")
WORDS = {"true": True, "false": False, "none": None}


class Parser:
    """Recursive descent over the tokens of a text. Its errors are TileErrors with their place in it."""

    def __init__(self, text: str, file: str) -> None:
        register_source(file, text)
        self.text, self.file = text, file
        self.tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup != "space"]
        self.index = 0
        self.values: dict[str, Value] = {}
        for token in self.tokens:
            if token.lastgroup == "wrong":
                raise self.error(f"unexpected character {token.group()!r}", token)

    def error(self, message: str, token: re.Match[str] | None = None) -> TileError:
        position = (token or self.tokens[self.index]).start()
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        return TileError(message, Loc(self.file, line, column, line, column + 1))

    def wanted(self, what: str) -> TileError:
        return self.error(f"expected {what} but found {self.peek() or 'the end'!r}")

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.index + ahead].group()

    def kind(self, ahead: int = 0) -> str | None:
        return self.tokens[self.index + ahead].lastgroup

    def accept(self, text: str) -> bool:
        found = self.peek() == text
        self.index += found
        return found

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.wanted(repr(text))

    def take(self, kind: str, what: str) -> str:
        """The text of the next token, which must be of this kind (or of one of several, with | between)."""
        if self.kind() not in kind.split("|"):
            raise self.wanted(what)
        self.index += 1
        return self.peek(-1)

    def items(self, close: str) -> Iterator[None]:
        """One step for each item of a list that commas part and `close` ends."""
        while not self.accept(close):
            yield
            if self.peek() != close:
                self.expect(",")

    def operation(self) -> Operation:
        names = [self.take("value", "a value") for _ in self.items("=")] if self.kind() == "value" else []
        start = self.tokens[self.index]
        name = self.take("word", "an operation")
        if name not in OPERATIONS:
            raise self.error(f"no operation is named {name!r}", start)
        op_type = OPERATIONS[name]
        groups: list[Value | list[Value]] = []
        for field in op_type.operand_fields:
            if groups:
                self.accept(",")
            if type(field) is operand:
                groups.append(self.use())
            elif type(field) is operands and self.accept("["):
                groups.append([self.use() for _ in self.items("]")])
            elif type(field) is optional and self.accept(field.name):
                self.expect("=")
                groups.append([self.use()])
            else:
                groups.append([])
        attributes: dict[str, Any] = {}
        if self.peek() == "{" and self.kind(1) == "word" and self.peek(2) == "=":  # else a region
            self.index += 1
            for _ in self.items("}"):
                key = self.take("word", "an attribute's name")
                self.expect("=")
                attributes[key] = self.attribute()
        for key in op_type.required:
            if key not in attributes:
                raise self.error(f"{name} needs the attribute {key!r}", start)
        types: list[Type] = []
        while self.accept("," if types else ":"):
            types.append(self.type())
        if len(types) != len(names):
            raise self.error(f"{name} gives names to {len(names)} results and types to {len(types)}", start)
        regions = [self.region() for _ in op_type.region_fields]
        op = op_type(*groups, result_types=types, regions=regions, loc=self.location(), **attributes)
        for text, value in zip(names, op.results, strict=True):
            self.define(text, value)
        return op

    def define(self, text: str, value: Value) -> None:
        value.name = "" if text[1:].isdigit() else text[1:]
        self.values[text] = value

    def use(self) -> Value:
        token = self.tokens[self.index]
        text = self.take("value", "a value")
        if text not in self.values:
            raise self.error(f"{text} is not defined here", token)
        return self.values[text]

    def region(self) -> Region:
        made = Region()
        if self.accept("("):
            for _ in self.items(")"):
                text = self.take("value", "an argument")
                self.expect(":")
                self.define(text, made.add_arg(self.type()))
        self.expect("{")
        while not self.accept("}"):
            made.insert(self.operation())
        return made

    def location(self) -> Loc:
        if not self.accept("loc"):
            return UNKNOWN
        self.expect("(")
        file = json.loads(self.take("string", "a file name"))
        numbers = [int(self.take("number", "a number")) for _ in range(4)]
        self.expect(")")
        return Loc(file, *numbers)

    def attribute(self) -> Any:
        token = self.tokens[self.index]
        text = token.group()
        self.index += 1
        if token.lastgroup == "string":
            return json.loads(text)
        if token.lastgroup == "number":
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
        if text in WORDS:
            return WORDS[text]
        if text == "(":
            return tuple([self.attribute() for _ in self.items(")")])
        raise self.error(f"expected an attribute but found {text!r}", token)

    def type(self) -> Type:
        token = self.tokens[self.index]
        try:
            return _type(self.take("word|type", "a type"))
        except ValueError as error:
            raise self.error(str(error), token) from None


def _type(text: str) -> Type:
    kind, _, inner = text.removesuffix(">").partition("<")
    match = _BUFFER.fullmatch(inner)
    made: Type
    if not inner:
        made = ScalarType(text)
    elif kind == "tensor":
        *sizes, dtype = inner.split("x")
        made = TensorType(tuple(map(int, sizes)), dtype)
    elif match is not None:
        shape, dtype, scope, strides = match.groups()
        steps = None if strides is None else _dims(strides.split(", "))
        made = BufferType(_dims(shape.split("*")[:-1]), dtype, scope, steps)
    else:
        raise ValueError(f"{text!r} is not a buffer type")
    if made.dtype.lstrip("*") not in ELEMENTS:
        raise ValueError(f"no element type is named {made.dtype!r}")
    return made


def _dims(texts: list[str]) -> tuple[Dim, ...]:
    return tuple(int(text) if text.isdigit() else text for text in texts)


def parse_op(text: str, file: str = "<ir>") -> Operation:
    """The operation that a text describes. Raises TileError with the place of a mistake."""
    import tiledsl.dialects  # noqa: F401  (registers the operations)

    parser = Parser(text, file)
    try:
        op = parser.operation()
    except (ValueError, TypeError, LookupError, AssertionError, RecursionError) as error:
        raise parser.error(f"{type(error).__name__}: {error}") from None
    if parser.kind() != "end":
        raise parser.wanted("the end")
    return op


def print_generic(op: Operation) -> str:
    """The program in MLIR's generic form, with `unregistered` types spelt as !tile.*: for other MLIR tools."""
    return "\n".join(_generic(op, _Names(), ""))


def _generic(op: Operation, names: _Names, indent: str) -> Iterator[str]:
    results = ", ".join(names[value] for value in op.results)
    args = ", ".join(names[value] for value in op.operands)
    text = f'{indent}{results + " = " if results else ""}"{op.name}"({args})'
    attributes = {**op.attributes, "operandSegmentSizes": op.segments} if op.segments else op.attributes
    body = ", ".join(f"{key} = {_generic_attribute(value)}" for key, value in attributes.items() if value is not None)
    ins, outs = (", ".join(_generic_type(value.type) for value in values) for values in (op.operands, op.results))
    tail = (f" {{{body}}}" if body else "") + f" : ({ins}) -> ({outs})"
    for number, region in enumerate(op.regions):
        yield indent + "}, {" if number else text + " ({"
        block = ", ".join(f"{names[arg]} : {_generic_type(arg.type)}" for arg in region.args)
        if block:
            yield f"{indent}^bb0({block}):"
        for inner in region:
            yield from _generic(inner, names, indent + "  ")
    yield (indent + "})" if op.regions else text) + tail


def _generic_attribute(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_generic_attribute, value)) + "]"
    if isinstance(value, int):
        return attribute_text(value) + ("" if isinstance(value, bool) else " : i64")
    if isinstance(value, float) and math.isfinite(value):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value)) + " : f64"
    return _generic_string(value if isinstance(value, str) else attribute_text(value))


def _generic_string(text: str) -> str:
    plain = (chr(byte) if 31 < byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in text.encode())
    return '"' + "".join(plain) + '"'


def _generic_type(type: Type) -> str:
    return f"!tile.t<{_generic_string(str(type))}>"
