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
from typing import Any

from tiledsl.errors import TileError
from tiledsl.ir.core import OPERATIONS, Operation, Region, Value, attr, operand, operands
from tiledsl.ir.location import UNKNOWN, Loc
from tiledsl.ir.types import ELEMENTS, BufferType, ScalarType, TensorType, Type


class _Names:
    """Gives each value a unique printable name, its own where possible."""

    def __init__(self) -> None:
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}

    def __getitem__(self, value: Value) -> str:
        name = self._names.get(value)
        if name is None:
            wanted = re.sub(r"\W", "_", value.name)
            name = wanted or "0"
            if not wanted or name in self._taken:
                number = self._next.get(wanted, 0 if not wanted else 1)
                while (name := f"{wanted}_{number}" if wanted else str(number)) in self._taken:
                    number += 1
                self._next[wanted] = number + 1
            self._taken.add(name)
            self._names[value] = name
        return "%" + name


def print_op(op: Operation, *, locations: bool = False, limit: int | None = None) -> str:
    """The text of an operation and all inside; `limit` cuts after so many lines (for messages)."""
    lines: list[str] = []
    names = _Names()
    for line in _lines(op, names, "", locations):
        lines.append(line)
        if limit is not None and len(lines) > limit:
            lines[-1] = "..."
            break
    return "\n".join(lines)


def _lines(op: Operation, names: _Names, indent: str, locations: bool) -> Iterator[str]:
    text = op.name + _operand_text(op, names)
    shown = {
        key: value
        for key, value in op.attributes.items()
        if key not in op.attr_fields or not same_attribute(op.attr_fields[key].default, value)
    }
    if shown:
        text += " {" + ", ".join(f"{key} = {attribute_text(value)}" for key, value in shown.items()) + "}"
    if op.results:
        text = ", ".join(names[value] for value in op.results) + " = " + text
        text += " : " + ", ".join(str(value.type) for value in op.results)
    where = ""
    if locations and op.loc is not UNKNOWN:
        loc = op.loc
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
    for field in op.operand_fields:
        values = field.values(op)
        if type(field) is operand:
            parts.append(names[values[0]] if values else "%?")
        elif type(field) is operands:
            group = "[" + ", ".join(names[value] for value in values) + "]"
            lists = sum(type(each) is operands for each in op.operand_fields)
            if lists == len(op.operand_fields) > 1:  # nothing but lists: each is shown, to tell them apart
                parts.append(group)
            elif parts:
                parts[-1] += group if values else ""
            elif values:
                parts.append(group)
        elif values:
            named += f" {field.name}={names[values[0]]}"
    return (" " + ", ".join(parts) if parts else "") + named


def same_attribute(a: Any, b: Any) -> bool:
    """Equality that tells 1, 1.0 and true apart, and 0.0 from -0.0."""
    return type(a) is type(b) and (a == b or a != a and b != b) and (type(a) is not float or repr(a) == repr(b))


def attribute_text(value: Any) -> str:
    """An attribute as text: true, 3, 0.5, inf, "text", none, (1, 2)."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return repr(value)
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
    |(?P<mark>[][(){},:=])""",
    re.VERBOSE,
)


class _Parser:
    """Recursive descent over the tokens of a text."""

    def __init__(self, text: str, file: str) -> None:
        self.text, self.file = text, file
        self.tokens: list[tuple[str, str, int]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self.error(f"unexpected character {text[position]!r}", position)
            if match.lastgroup != "space":
                self.tokens.append((match.lastgroup or "", match.group(), position))
            position = match.end()
        self.tokens.append(("end", "", len(text)))
        self.index = 0
        self.values: dict[str, Value] = {}

    def error(self, message: str, position: int | None = None) -> TileError:
        if position is None:
            position = self.tokens[self.index][2]
        line = self.text.count("\n", 0, position) + 1
        column = position - (self.text.rfind("\n", 0, position) + 1) + 1
        return TileError(message, Loc(self.file, line, column, line, column + 1))

    def peek(self) -> str:
        return self.tokens[self.index][1]

    def kind(self) -> str:
        return self.tokens[self.index][0]

    def accept(self, text: str) -> bool:
        if self.peek() == text:
            self.index += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"expected {text!r} but found {self.peek() or 'the end'!r}")

    def take(self, kind: str, what: str) -> str:
        if self.kind() != kind:
            raise self.error(f"expected {what} but found {self.peek() or 'the end'!r}")
        self.index += 1
        return self.tokens[self.index - 1][1]

    def operation(self) -> Operation:
        names: list[str] = []
        while self.kind() == "value":
            names.append(self.take("value", "a value"))
            if not self.accept(","):
                break
        if names:
            self.expect("=")
        position = self.tokens[self.index][2]
        name = self.take("word", "an operation")
        if name not in OPERATIONS:
            raise self.error(f"no operation is named {name!r}", position)
        op_type = OPERATIONS[name]
        groups: list[Value | list[Value]] = []
        for field in op_type.operand_fields:
            if type(field) is operand:
                if groups and any(groups):
                    self.accept(",")
                groups.append(self.use())
            elif type(field) is operands:
                if groups and type(op_type.operand_fields[len(groups) - 1]) is operands:
                    self.accept(",")
                groups.append(self.use_list() if self.peek() == "[" else [])
            elif self.kind() == "word" and self.peek() == field.name:
                self.index += 1
                self.expect("=")
                groups.append([self.use()])
            else:
                groups.append([])
        attributes: dict[str, Any] = {}
        if self.peek() == "{" and self.tokens[self.index + 1][0] == "word" and self.tokens[self.index + 2][1] == "=":
            self.index += 1
            while not self.accept("}"):
                key = self.take("word", "an attribute's name")
                self.expect("=")
                attributes[key] = self.attribute()
                if self.peek() != "}":
                    self.expect(",")
        for key, declared in op_type.attr_fields.items():
            if key not in attributes and declared.default is attr.REQUIRED:
                raise self.error(f"{name} needs the attribute {key!r}", position)
        types: list[Type] = []
        if self.accept(":"):
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
        if len(types) != len(names):
            raise self.error(f"{name} gives names to {len(names)} results and types to {len(types)}", position)
        regions = [self.region() for _ in op_type.region_fields]
        op = op_type(*groups, result_types=types, regions=regions, loc=self.location(), **attributes)
        for text, value in zip(names, op.results, strict=True):
            self.define(text, value)
        return op

    def define(self, text: str, value: Value) -> None:
        value.name = "" if text[1:].isdigit() else text[1:]
        self.values[text] = value

    def use(self) -> Value:
        text = self.take("value", "a value")
        if text not in self.values:
            self.index -= 1
            raise self.error(f"{text} is not defined here")
        return self.values[text]

    def use_list(self) -> list[Value]:
        self.expect("[")
        values: list[Value] = []
        while not self.accept("]"):
            values.append(self.use())
            if self.peek() != "]":
                self.expect(",")
        return values

    def region(self) -> Region:
        made = Region()
        if self.accept("("):
            while not self.accept(")"):
                text = self.take("value", "an argument")
                self.expect(":")
                self.define(text, made.add_arg(self.type()))
                if self.peek() != ")":
                    self.expect(",")
        self.expect("{")
        while not self.accept("}"):
            made.insert(self.operation())
        return made

    def location(self) -> Loc:
        if not (self.peek() == "loc" and self.tokens[self.index + 1][1] == "("):
            return UNKNOWN
        self.index += 2
        file = json.loads(self.take("string", "a file name"))
        numbers = [int(self.take("number", "a number")) for _ in range(4)]
        self.expect(")")
        return Loc(file, *numbers)

    def attribute(self) -> Any:
        kind, text, position = self.tokens[self.index]
        self.index += 1
        if kind == "string":
            return json.loads(text)
        if kind == "number":
            return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
        if text in ("true", "false", "none"):
            return {"true": True, "false": False, "none": None}[text]
        if text == "(":
            items: list[Any] = []
            while not self.accept(")"):
                items.append(self.attribute())
                if self.peek() != ")":
                    self.expect(",")
            return tuple(items)
        raise self.error(f"expected an attribute but found {text!r}", position)

    def type(self) -> Type:
        kind, text, position = self.tokens[self.index]
        self.index += 1
        try:
            if kind == "word":
                return ScalarType(_dtype(text))
            if kind == "type":
                return _shaped(text)
        except ValueError as error:
            raise self.error(str(error), position) from None
        raise self.error(f"expected a type but found {text!r}", position)


def _dtype(text: str) -> str:
    if text.lstrip("*") not in ELEMENTS:
        raise ValueError(f"no element type is named {text!r}")
    return text


def _shaped(text: str) -> Type:
    kind, inner = text[:-1].split("<", 1)
    if kind == "tensor":
        *dims, dtype = inner.split("x")
        return TensorType(tuple(map(int, dims)), _dtype(dtype))
    match = re.fullmatch(r"((?:\w+\*)*)(\*?\w+), (\w+)(?:, strides\(([^)]*)\))?", inner)
    if match is None:
        raise ValueError(f"{text!r} is not a buffer type")
    shape, dtype, scope, strides = match.groups()
    return BufferType(
        tuple(int(dim) if dim.isdigit() else dim for dim in shape.split("*")[:-1]),
        _dtype(dtype),
        scope,
        None if strides is None else tuple(int(s) if s.isdigit() else s for s in strides.split(", ")),
    )


def parse_op(text: str, file: str = "<ir>") -> Operation:
    """The operation that a text describes. Raises TileError with the place of a mistake."""
    import tiledsl.dialects  # noqa: F401  (registers the operations)
    from tiledsl.errors import register_source

    register_source(file, text)
    parser = _Parser(text, file)
    try:
        op = parser.operation()
    except (ValueError, TypeError, LookupError, AssertionError, RecursionError) as error:
        raise parser.error(f"{type(error).__name__}: {error}") from None
    if parser.kind() != "end":
        raise parser.error(f"expected the end but found {parser.peek()!r}")
    return op


def parse_attribute(text: str) -> Any:
    """The attribute that a text describes. Raises TileError where it is none."""
    parser = _Parser(text, "<attribute>")
    value = parser.attribute()
    if parser.kind() != "end":
        raise parser.error(f"expected the end but found {parser.peek()!r}")
    return value


def print_generic(op: Operation) -> str:
    """The program in MLIR's generic form, with `unregistered` types spelt as !tile.*: for other MLIR tools."""
    return "\n".join(_generic(op, _Names(), ""))


def _generic(op: Operation, names: _Names, indent: str) -> Iterator[str]:
    results = ", ".join(names[value] for value in op.results)
    args = ", ".join(names[value] for value in op.operands)
    text = f'{indent}{results + " = " if results else ""}"{op.name}"({args})'
    attributes = {**op.attributes, "operandSegmentSizes": op.segments} if op.segments else op.attributes
    body = ", ".join(f"{key} = {_generic_attribute(value)}" for key, value in attributes.items() if value is not None)
    ins = ", ".join(_generic_type(value.type) for value in op.operands)
    outs = ", ".join(_generic_type(value.type) for value in op.results)
    tail = (f" {{{body}}}" if body else "") + f" : ({ins}) -> ({outs})"
    if not op.regions:
        yield text + tail
        return
    yield text + " ({"
    for number, region in enumerate(op.regions):
        if number:
            yield indent + "}, {"
        block = ", ".join(f"{names[arg]} : {_generic_type(arg.type)}" for arg in region.args)
        if block:
            yield f"{indent}^bb0({block}):"
        for inner in region:
            yield from _generic(inner, names, indent + "  ")
    yield indent + "})" + tail


def _generic_attribute(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_generic_attribute, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value} : i64"
    if isinstance(value, float) and math.isfinite(value):
        text = repr(value)
        return f"{text if '.' in text else text.replace('e', '.0e')} : f64"
    return _generic_string(str(value).lower() if value is None else str(value))


def _generic_string(text: str) -> str:
    plain = (chr(byte) if 31 < byte < 127 and byte not in b'"\\' else f"\\{byte:02X}" for byte in text.encode())
    return '"' + "".join(plain) + '"'


def _generic_type(type: Type) -> str:
    return f"!tile.t<{_generic_string(str(type))}>"
