"""Reads the generic form of MLIR: what the printer writes, and what other tools write of that."""

from __future__ import annotations

import re
import struct
from typing import Any, ClassVar

from tiledsl.dialects import arith
from tiledsl.interchange.standard import (
    BINARY,
    CASTS,
    ELEMENTS_NAMED,
    OURS,
    PREDICATES,
    PROMISES,
    SHARED,
    STANDARD,
    cast_name,
    kind_of,
    type_text,
)
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.fields import operand
from tiledsl.ir.parser import Parser, parse_type
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.types import ELEMENTS, ScalarType, TensorType, Type
from tiledsl.location import UNKNOWN, Loc

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TYPE = rf"![\w.]+<{_STRING}>|tensor<(?:\d+x)*(?:\w+|![\w.]+<{_STRING}>)>"
_BITS = {16: "e", 32: "f", 64: "d"}


class GenericParser(Parser):
    """Recursive descent, as its base. An operation is checked against what its standard name promises."""

    TOKEN: ClassVar[re.Pattern[str]] = re.compile(
        rf"""(?P<space>\s+|//[^\n]*)
        |(?P<value>%(?:\d+|[A-Za-z$._-][\w$.-]*)(?:[#:]\d+)?)
        |(?P<type>{_TYPE})
        |(?P<string>{_STRING})
        |(?P<number>0x[0-9a-fA-F]+|-?\d+(?:\.\d*(?:[eE][+-]?\d+)?)?)
        |(?P<flags>\#[\w.]+<[\w,\s]*>)
        |(?P<label>\^\w+)
        |(?P<arrow>->)
        |(?P<word>[A-Za-z_][\w.$]*)
        |(?P<mark>[][(){{}},:=<>])
        |(?P<end>\Z)
        |(?P<wrong>.)""",
        re.VERBOSE | re.ASCII,
    )

    def whole(self) -> Operation:
        if self.peek() != '"builtin.module"':
            return self.operation()
        self.index += 1
        for mark in "()({":
            self.expect(mark)
        if self.kind() == "label":
            self._label(Region())
        op = self.operation()
        for mark in "}":
            self.expect(mark)
        self.expect(")")
        if self.peek() == "{":
            self._attributes("}")
        self.expect(":")
        for mark in ("(", ")", "->", "(", ")"):
            self.expect(mark)
        self.location()
        return op

    def operation(self) -> Operation:
        names = self._results()
        start = self.tokens[self.index]
        if self.kind() != "string":
            hint = "an operation's name in quotes, as --mlir-print-op-generic and --print-op-generic write it"
            raise self.wanted(hint)
        claimed = self.string()
        self.expect("(")
        operands = [self.use() for _ in self.items(")")]
        attributes: dict[str, Any] = {}
        if self.accept("<"):
            self.expect("{")
            attributes |= self._attributes("}")
            self.expect(">")
        regions = []
        if self.accept("("):
            regions = [self.region() for _ in self.items(")")]
        if self.accept("{"):
            attributes |= self._attributes("}")
        self.expect(":")
        ins, outs = self._signature()
        loc = self.location()
        if len(outs) != len(names):
            raise self.error(f"{claimed} gives names to {len(names)} results and types to {len(outs)}", start)
        for value, type in zip(operands, ins, strict=False):
            if value.type is not type:
                raise self.error(f"{claimed}: an operand is {type_text(value.type)}, not {type_text(type)}", start)
        if len(ins) != len(operands):
            raise self.error(f"{claimed} has {len(operands)} operands and types for {len(ins)}", start)
        segments = attributes.pop("operandSegmentSizes", None)
        name = claimed
        if claimed in STANDARD:
            name, attributes = self._standard(claimed, start, operands, attributes, outs)
        elif claimed.startswith(OURS) and "." in claimed.removeprefix(OURS):
            name = claimed.removeprefix(OURS)
        elif claimed.partition(".")[0] in SHARED:
            raise self.error(f"{claimed} has no counterpart", start)
        op_type = self.known(name, start)
        self.require(op_type, attributes, start)
        if len(regions) != len(op_type.region_fields):
            raise self.error(f"{claimed} has {len(op_type.region_fields)} regions, not {len(regions)}", start)
        groups = self._groups(op_type, operands, segments, start)
        op = op_type(*groups, result_types=outs, regions=regions, loc=loc, **attributes)
        self.starts[op] = start
        for text, value in zip(names, op.results, strict=True):
            self.define(text, value)
        return op

    def _groups(self, op_type: type[Operation], values: list[Value], segments: Any, start: re.Match[str]) -> list[Any]:
        """The operands of each field."""
        fields = op_type.operand_fields
        several = [field for field in fields if type(field) is not operand]
        if segments is None:
            if len(several) > 1:
                raise self.error(f"{op_type.name} needs operandSegmentSizes", start)
            rest = len(values) - len(fields) + len(several)
            segments = tuple(1 if type(field) is operand else rest for field in fields)
        fits = isinstance(segments, tuple) and all(type(each) is int and each >= 0 for each in segments)
        if not fits or len(segments) != len(fields) or sum(segments) != len(values):
            raise self.error(f"{op_type.name} has {len(fields)} operand fields, not {len(values)} operands", start)
        groups: list[Any] = []
        for field, size in zip(fields, segments, strict=True):
            group, values = values[:size], values[size:]
            if type(field) is operand and size != 1:
                raise self.error(f"{op_type.name} has one operand {field.name!r}, not {size}", start)
            groups.append(group[0] if type(field) is operand else group)
        return groups

    def _standard(
        self, claimed: str, start: re.Match[str], operands: list[Value], attributes: dict[str, Any], outs: list[Type]
    ) -> tuple[str, dict[str, Any]]:
        """Our name of a standard operation, and the attributes; refused where it has a meaning that ours lacks."""
        kept = {key.removeprefix(OURS): value for key, value in attributes.items() if key.startswith(OURS)}
        left = {key: value for key, value in attributes.items() if not key.startswith(OURS) and key not in PROMISES}
        kind = kind_of(operands[0].dtype) if operands else ""
        name = claimed
        if claimed == "arith.constant" and "value" in left:
            value = self._constant(left.pop("value"), outs, start)
            exact = kept.get("value")  # the number before it was rounded, if `value` is still that
            if type(exact) is not float or arith.rounded(exact, outs[0].dtype) != arith.rounded(value, outs[0].dtype):
                kept["value"] = value
        elif claimed in ("arith.cmpi", "arith.cmpf"):
            number = left.pop("predicate", None)
            found = PREDICATES.get((claimed, kind), {}).get(number)
            if found is None:
                raise self.error(f"{claimed} of {_types(operands)} with predicate {number!r} has no counterpart", start)
            name, kept["predicate"] = "arith.cmp", found[-2:]
        elif claimed in CASTS:
            if left.get("roundingmode") not in (None, 0):
                raise self.error(f"{claimed}: numbers are rounded to the nearest only", start)
            left.pop("roundingmode", None)
            if len(operands) != 1 or len(outs) != 1 or cast_name(operands[0].dtype, outs[0].dtype) != claimed:
                raise self.error(
                    f"{claimed} from {_types(operands)} to {', '.join(map(type_text, outs))} is none", start
                )
            name = "arith.cast"
        elif claimed in BINARY:
            name = BINARY[claimed].ours
            if kind not in BINARY[claimed].kinds:
                raise self.error(f"{claimed} does not take {_types(operands)}", start)
        for key in left:
            raise self.error(f"{claimed} has no attribute {key!r} here", start)
        return name, kept

    def _constant(self, value: Any, outs: list[Type], start: re.Match[str]) -> Any:
        """A number as the type has it. Bits of floats come as integers that `attribute` has marked."""
        dtype = outs[0].dtype if outs else ""
        kind = kind_of(dtype)
        if isinstance(value, _Bits):
            if kind == "float":
                return value.float(dtype)
            value = value.number
        if kind == "float" and type(value) is int:
            raise self.error(f"the constant of {dtype} is {value}, without a point", start)
        if kind == "bool" and type(value) is int and value in (0, 1, -1):
            return bool(value)
        return value

    # What stands around operations

    def _results(self) -> list[str]:
        """The names of results; `%r:2` stands for `%r#0` and `%r#1`."""
        if self.kind() != "value":
            return []
        names: list[str] = []
        for _ in self.items("="):
            token = self.tokens[self.index]
            name, mark, count = re.fullmatch(r"(.[^#:]*)([#:]?)(\d*)", self.take("value", "a value")).groups()  # type: ignore[union-attr]
            if mark == "#" or (mark and not 0 < int(count) <= 10_000):
                raise self.error("expected a name", token)
            names += [f"{name}#{number}" for number in range(int(count))] if mark else [name]
        return names

    def define(self, text: str, value: Value) -> None:
        own = re.sub(r"\$([0-9a-f]{1,6})\.", lambda found: chr(int(found[1], 16)), text[1:].replace("#", "_"))
        value.name = "" if re.fullmatch(r"[0-9][0-9_]*", own) else own
        if text in self.values:
            raise self.error(f"{text} is defined twice")
        self.values[text] = value

    def use(self) -> Value:
        token = self.tokens[self.index]
        if self.kind() == "value" and ":" in token.group():
            raise self.error("expected a value", token)
        return super().use()

    def region(self) -> Region:
        region = Region()
        seen = len(self.values)
        self.expect("{")
        if self.kind() == "label":
            self._label(region)
        while not self.accept("}"):
            if self.kind() == "label":
                raise self.error("a region has one block here: branches are scf.if, scf.for and scf.while")
            region.insert(self.operation())
        while len(self.values) > seen:  # names are free again after their region
            self.values.popitem()
        return region

    def _label(self, region: Region) -> None:
        self.index += 1
        if self.accept("("):
            for _ in self.items(")"):
                text = self.take("value", "an argument")
                self.expect(":")
                self.define(text, region.add_arg(self.type()))
                self.location()
        self.expect(":")

    def _signature(self) -> tuple[list[Type], list[Type]]:
        self.expect("(")
        ins = [self.type() for _ in self.items(")")]
        self.expect("->")
        if self.accept("("):
            return ins, [self.type() for _ in self.items(")")]
        return ins, [self.type()]

    def location(self) -> Loc:
        """`loc(...)`: of a place, or of a range as the fusion of its two ends."""
        if not self.accept("loc"):
            return UNKNOWN
        self.expect("(")
        if self.accept("unknown"):
            self.expect(")")
            return UNKNOWN
        places = []
        if self.accept("fused"):
            self.expect("[")
            places = [self._place() for _ in self.items("]")]
        else:
            places = [self._place()]
        self.expect(")")
        if not places:
            return UNKNOWN
        (file, line, column), (_, end_line, end_column) = places[0], places[-1]
        return Loc(file, line, column, end_line, end_column if len(places) > 1 else end_column + 1)

    def _place(self) -> tuple[str, int, int]:
        file = self.string()
        numbers = []
        for _ in range(2):
            self.expect(":")
            numbers.append(int(self.take("number", "a number")))
        return file, numbers[0], numbers[1]

    def _attributes(self, close: str) -> dict[str, Any]:
        found = {}
        for _ in self.items(close):
            key = self.string() if self.kind() == "string" else self.take("word", "an attribute's name")
            found[key] = self.attribute() if self.accept("=") else None
        return found

    def attribute(self) -> Any:
        token = self.tokens[self.index]
        text, kind = token.group(), token.lastgroup
        if kind == "string":
            return self.string()
        self.index += 1
        if kind == "number":
            return self._number(text, token)
        if kind == "flags":
            return text
        if text in ("true", "false", "unit"):
            return {"true": True, "false": False, "unit": None}[text]
        if text == "[":
            return tuple([self.attribute() for _ in self.items("]")])
        if text == "dense":
            self.expect("<")
            elements = _flat(self.attribute())
            value = elements[0] if elements else None
            if any(repr(each) != repr(value) for each in elements):
                raise self.error("the elements of a tile's constant differ", token)
            if isinstance(value, str):  # the bytes of one element, the least first
                value = _Bits(int.from_bytes(bytes.fromhex(value.removeprefix("0x")), "little"))
            self.expect(">")
            self.expect(":")
            self.type()
            return value
        if text == "array":
            self.expect("<")
            self.take("word", "a type")
            if not self.accept(":"):
                self.expect(">")
                return ()
            return tuple([self.attribute() for _ in self.items(">")])
        raise self.error(f"expected an attribute but found {text or 'the end'!r}", token)

    def _number(self, text: str, token: re.Match[str]) -> Any:
        element = None
        if self.accept(":"):
            element = self.take("word", "a type of a number")
        dtype = ELEMENTS_NAMED.get(element or "", "")
        if text.startswith("0x"):
            bits = _Bits(int(text, 16))
            return bits.float(dtype) if kind_of(dtype) == "float" else bits.number if element else bits
        if "." in text:
            return float(text)
        if element is not None and element.startswith(("f", "b")):
            raise self.error(f"{text} of {element} is written with a point", token)
        return int(text)

    def string(self) -> str:
        """A string in quotes, its escapes resolved."""
        text = self.take("string", "a string")[1:-1]

        def byte(found: re.Match[bytes]) -> bytes:
            plain = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}.get(found[1])
            return bytes([int(found[1], 16)]) if plain is None else plain

        raw = re.sub(rb'\\([0-9A-Fa-f]{2}|[nt"\\])', byte, text.encode("utf-8", "surrogatepass"))
        return raw.decode("utf-8", "surrogatepass")

    def type(self) -> Type:
        token = self.tokens[self.index]
        text = self.take("word|type", "a type")
        try:
            return self._type_of(text)
        except ValueError as error:
            raise self.error(str(error), token) from None

    def _type_of(self, text: str) -> Type:
        if not text.startswith("tensor<"):
            return ScalarType(ELEMENTS_NAMED[text]) if text in ELEMENTS_NAMED else self._opaque(text)
        sizes = re.match(r"(?:\d+x)*", text[7:])[0]  # type: ignore[index]
        element = self._type_of(text[7 + len(sizes) : -1])
        if not isinstance(element, ScalarType) or not sizes:
            raise ValueError(f"{text} is no tile")
        return TensorType(tuple(map(int, sizes.split("x")[:-1])), element.dtype)

    def _opaque(self, text: str) -> Type:
        found = re.fullmatch(rf'!{re.escape(OURS)}t<"((?:[^"\\]|\\[0-9A-Fa-f]{{2}})*)">', text)
        if found is None:
            raise ValueError(f"there is no type {text}")
        raw = re.sub(rb"\\(..)", lambda each: bytes([int(each[1], 16)]), found[1].encode())
        return parse_type(raw.decode())


class _Bits:
    """A hexadecimal number whose type comes later."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"0x{self.number:X}"

    def float(self, dtype: str) -> float:
        """The float of a type that these are the bits of."""
        width, bits = ELEMENTS[dtype].bits, self.number
        if bits >> width:
            raise ValueError(f"0x{bits:X} has more than {width} bits")
        if dtype == "bfloat16":
            width, bits = 32, bits << 16
        (value,) = struct.unpack(f"<{_BITS[width]}", bits.to_bytes(width // 8, "little"))
        return float(value)


def _flat(value: Any) -> list[Any]:
    """The elements of nested lists."""
    return [inner for each in value for inner in _flat(each)] if isinstance(value, tuple) else [value]


def _types(values: list[Value]) -> str:
    return ", ".join(type_text(value.type) for value in values) or "nothing"


def is_generic(text: str) -> bool:
    """Whether a text is in the generic form: then it begins with the name of an operation in quotes."""
    return re.match(r'(?:\s|//[^\n]*(?:\n|\Z))*"', text) is not None


def read_program(text: str, target: Any = None, file: str = "<ir>") -> Program:
    """A program from its text in either form, verified. Raises TileError for text that is not valid IR."""
    return Program((GenericParser if is_generic(text) else Parser)(text, file).verified(), target)
