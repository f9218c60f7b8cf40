"""Reading the text form of the IR (tiledsl.ir.printer describes it)."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tiledsl.errors import TileError, register_source
from tiledsl.ir.core import OPERATIONS, Operation, Region, Value
from tiledsl.ir.fields import operand, operands, optional
from tiledsl.ir.types import ELEMENTS, BufferType, Dim, ScalarType, TensorType, Type
from tiledsl.ir.verifier import VerifyError, verify
from tiledsl.location import UNKNOWN, Loc

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

    TOKEN: ClassVar[re.Pattern[str]] = _TOKEN

    def __init__(self, text: str, file: str) -> None:
        register_source(file, text)
        self.text, self.file = text, file
        self.tokens = [match for match in self.TOKEN.finditer(text) if match.lastgroup != "space"]
        self.index = 0
        self.values: dict[str, Value] = {}
        self.starts: dict[Operation, re.Match[str]] = {}  # where each operation begins
        for token in self.tokens:
            if token.lastgroup == "wrong":
                raise self.error(f"unexpected character {token.group()!r}", token)

    def error(self, message: str, token: re.Match[str] | None = None) -> TileError:
        return TileError(message, self.place(token or self.tokens[self.index]))

    def place(self, token: re.Match[str]) -> Loc:
        """Where a token begins in the text."""
        position = token.start()
        line = self.text.count("\n", 0, position) + 1
        column = position - self.text.rfind("\n", 0, position)
        return Loc(self.file, line, column, line, column + 1)

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

    def items(self, close: str, what: str = "','") -> Iterator[None]:
        """One step for each item of a list that commas part and `close` ends. what: is expected after an item."""
        while not self.accept(close):
            yield
            if self.peek() != close and not self.accept(","):
                raise self.wanted(what)

    def read(self) -> Operation:
        """The operation that the text describes. Raises TileError with the place of a mistake."""
        try:
            op = self.whole()
        except (ValueError, TypeError, LookupError, AssertionError, RecursionError) as error:
            raise self.error(f"{type(error).__name__}: {error}") from None
        if self.kind() != "end":
            raise self.wanted("the end")
        return op

    def verified(self) -> Operation:
        """The same, of valid IR alone. A mistake stands at the operation's own place, or else at that in the text."""
        root = self.read()
        try:
            verify(root)
        except VerifyError as error:
            loc = error.op.loc
            raise TileError(str(error), self.place(self.starts[error.op]) if loc is UNKNOWN else loc) from None
        return root

    def whole(self) -> Operation:
        """The operation that is all of the text."""
        return self.operation()

    def operation(self) -> Operation:
        results = "',' or '=' after a result (lists of operands are written [%a, %b])"
        names = [self.take("value", "a value") for _ in self.items("=", results)] if self.kind() == "value" else []
        start = self.tokens[self.index]
        name = self.take("word", "an operation")
        op_type = self.known(name, start)
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
        self.require(op_type, attributes, start)
        types: list[Type] = []
        while self.accept("," if types else ":"):
            types.append(self.type())
        if len(types) != len(names):
            raise self.error(f"{name} gives names to {len(names)} results and types to {len(types)}", start)
        regions = [self.region() for _ in op_type.region_fields]
        op = op_type(*groups, result_types=types, regions=regions, loc=self.location(), **attributes)
        self.starts[op] = start
        for text, value in zip(names, op.results, strict=True):
            self.define(text, value)
        return op

    def known(self, name: str, start: re.Match[str]) -> type[Operation]:
        """The operation of a name."""
        if name not in OPERATIONS:
            importlib.import_module("tiledsl.dialects")  # they build on this: named here, not imported
        if name not in OPERATIONS:
            raise self.error(f"no operation is named {name!r}", start)
        return OPERATIONS[name]

    def require(self, op_type: type[Operation], attributes: Mapping[str, Any], start: re.Match[str]) -> None:
        for key in op_type.required:
            if key not in attributes:
                raise self.error(f"{op_type.name} needs the attribute {key!r}", start)

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
        region = Region()
        if self.accept("("):
            for _ in self.items(")"):
                text = self.take("value", "an argument")
                self.expect(":")
                self.define(text, region.add_arg(self.type()))
        self.expect("{")
        while not self.accept("}"):
            region.insert(self.operation())
        return region

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
            return parse_type(self.take("word|type", "a type"))
        except ValueError as error:
            raise self.error(str(error), token) from None


def parse_type(text: str) -> Type:
    """The type of a text. Raises ValueError."""
    kind, _, inner = text.removesuffix(">").partition("<")
    match = _BUFFER.fullmatch(inner)
    type: Type
    if not inner:
        type = ScalarType(text)
    elif kind == "tensor":
        *sizes, dtype = inner.split("x")
        type = TensorType(tuple(map(int, sizes)), dtype)
    elif match is not None:
        shape, dtype, scope, strides = match.groups()
        steps = None if strides is None else _dims(strides.split(", "))
        type = BufferType(_dims(shape.split("*")[:-1]), dtype, scope, steps)
    else:
        raise ValueError(f"{text!r} is not a buffer type")
    if type.dtype.lstrip("*") not in ELEMENTS:
        raise ValueError(f"no element type is named {type.dtype!r}")
    return type


def _dims(texts: list[str]) -> tuple[Dim, ...]:
    return tuple(int(text) if text.isdigit() else text for text in texts)


def parse_op(text: str, file: str = "<ir>") -> Operation:
    """The operation that a text describes. Raises TileError with the place of a mistake."""
    return Parser(text, file).read()
