"""Operations as Triton expressions, with no more parentheses than needed, in exactly the IR's element types.

Triton gives a Python number the element type of the tensor beside it; alone, an int is int32 and a float is float32.
So a constant is written bare beside another operand and as `tl.full` where nothing else says its type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from tiledsl.analysis.affine import bounds
from tiledsl.codegen.functions import TRITON_TYPES, field_function, literal
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import arith, tensor, triton
from tiledsl.dialects.arith import constant_of, rounded
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, broadcast_shapes, is_float
from tiledsl.math_functions import MATH_FUNCTIONS

# Precedence of Python's operators.
COMPARE, OR, XOR, AND, SHIFT, ADD, MULTIPLY, UNARY, ATOM = range(9)

BINARY: dict[type[Operation], tuple[str, int]] = {
    arith.AddOp: ("+", ADD), arith.SubOp: ("-", ADD), arith.MulOp: ("*", MULTIPLY), arith.DivOp: ("/", MULTIPLY),
    arith.TruncDivOp: ("//", MULTIPLY), arith.TruncModOp: ("%", MULTIPLY), arith.AndOp: ("&", AND),
    arith.OrOp: ("|", OR), arith.XorOp: ("^", XOR), arith.ShlOp: ("<<", SHIFT), arith.ShrOp: (">>", SHIFT),
    arith.FloorDivOp: ("//", MULTIPLY), arith.FloorModOp: ("%", MULTIPLY),
}  # fmt: skip
PREDICATES = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


class Expression(NamedTuple):
    """Text with the precedence of its outermost operator."""

    text: str
    precedence: int = ATOM

    def at(self, precedence: int) -> str:
        """The text as an operand of an operator of this precedence."""
        return self.text if self.precedence >= precedence else f"({self.text})"


def shape_text(shape: tuple[int, ...]) -> str:
    return f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"


@dataclass
class Expressions:
    """Writes expressions over the variables of one kernel; remembers what the module must define for them."""

    variables: Variables
    combine_functions: set[str] = field(default_factory=set)
    field_functions: dict[str, str] = field(default_factory=dict)  # texts by name
    uses_libdevice: bool = False

    # Values

    def value(self, value: Value) -> Expression:
        """A value of exactly its type."""
        op = value.op
        if op is None or op not in self.variables.inlined:
            return Expression(self.variables.name(value))
        number = constant_of(value)
        if number is None:
            return self.operation(op)
        if not value.shape and value.dtype in ("int32", "float32", "bool"):
            return self.number(number, value.dtype)
        text = literal(number, value.dtype)
        if _is_made_wide(number, value.dtype):
            return Expression(f"{self.full(value.shape, text, 'float32').text}.to({TRITON_TYPES[value.dtype]})")
        return self.full(value.shape, text, value.dtype)

    def beside(self, value: Value, *others: Value, converts: bool = False) -> Expression:
        """A value as an operand beside others of its element type: a constant needs no type of its own there.

        converts: in an operation that makes tensors of numbers before it looks at the other operand.
        """
        number = constant_of(value)
        if number is not None:
            rest = [each.shape for each in others if constant_of(each) is None]
            shape = broadcast_shapes(*rest) if rest else None
            if (
                not _is_made_wide(number, value.dtype)
                and shape is not None
                and broadcast_shapes(shape, value.shape) == shape
            ):
                return self.converted_number(number, value.dtype) if converts else self.number(number, value.dtype)
        return self.value(value)

    def operand_pair(self, op: arith.BinaryOp | arith.CmpOp) -> tuple[Expression, Expression]:
        """Both operands. int32 beside int64 becomes int64 by itself, so one of two widening casts is enough."""
        lhs, rhs = op.lhs, op.rhs
        if rhs.dtype == "int64" and constant_of(lhs) is None and constant_of(rhs) is None:
            narrow = [self._before_widening(each) for each in (lhs, rhs)]
            if narrow[1] is not None:
                return self.value(lhs), self.value(narrow[1])
            if narrow[0] is not None:
                return self.value(narrow[0]), self.value(rhs)
        converts = isinstance(op, arith.CmpOp)  # in Triton 3.6
        return self.beside(lhs, rhs, converts=converts), self.beside(rhs, lhs, converts=converts)

    def _before_widening(self, value: Value) -> Value | None:
        """The int32 value of which this is the int64 cast, written in place."""
        op = value.op
        inlined = isinstance(op, arith.CastOp) and op in self.variables.inlined and op.source.dtype == "int32"
        return op.operands[0] if inlined and op is not None else None

    def number(self, number: bool | int | float, dtype: str) -> Expression:
        text = literal(number, dtype)
        if text == "-0.0":
            return self.full((), text, dtype)
        return Expression(text, UNARY if text.startswith("-") else ATOM)

    def converted_number(self, number: bool | int | float, dtype: str) -> Expression:
        """A number where Triton converts it to `dtype`: a bare one is float32 first, which not all of float64 are."""
        bare = self.number(number, dtype)
        if dtype == "float64" and number == number and rounded(number, "float32") != number:
            return self.full((), bare.text, dtype)
        return bare

    def full(self, shape: tuple[int, ...], text: str, dtype: str) -> Expression:
        if shape and text in ("0", "0.0"):
            return Expression(f"tl.zeros({shape_text(shape)}, {TRITON_TYPES[dtype]})")
        if text == "-0.0" and not dtype.endswith("fnuz"):  # a 0.0 in Triton 3.6, but not if it is made from its bits
            bits = ELEMENTS[dtype].bits
            lowest = self.full(shape, str(-(1 << bits - 1)), f"int{bits}").text
            return Expression(f"{lowest}.to({TRITON_TYPES[dtype]}, bitcast=True)")
        return Expression(f"tl.full({shape_text(shape) if shape else '()'}, {text}, {TRITON_TYPES[dtype]})")

    def text(self, value: Value) -> str:
        return self.value(value).text

    def copied(self, value: Value) -> str:
        """A value for which Triton makes an operation that later passes fold away."""
        inner, dtype = self.value(value), value.dtype
        if dtype == "bool":
            return f"{inner.at(OR)} | False"
        if dtype not in ELEMENTS or not is_float(dtype):
            return f"{inner.at(ADD)} + 0"
        return (
            f"{inner.at(ATOM)}.to(tl.int{ELEMENTS[dtype].bits}, bitcast=True).to({TRITON_TYPES[dtype]}, bitcast=True)"
        )

    def may_be_python(self, value: Value) -> bool:
        """Whether Triton may see a Python number: it makes an integer argument that is 1 a compile-time constant."""
        owner = value.owner
        if value.shape or is_float(value.dtype):
            return False
        if isinstance(owner, Region):
            return owner is self.variables.body and value.dtype == "int32"
        if owner not in self.variables.inlined or isinstance(owner, _NUMBERS):
            return isinstance(owner, arith.ConstantOp)
        return all(self.may_be_python(each) for each in owner.operands)

    # Operations

    def operation(self, op: Operation) -> Expression:
        """The expression for a pure operation of one result."""
        if type(op) in BINARY:
            assert isinstance(op, arith.BinaryOp)
            return self.binary(op)
        handler = _HANDLERS.get(type(op))
        assert handler is not None, f"no Triton expression for {op!r}"
        return handler(self, op)

    def binary(self, op: arith.BinaryOp) -> Expression:
        symbol, precedence = BINARY[type(op)]
        lhs, rhs = self.operand_pair(op)
        if isinstance(op, (arith.FloorDivOp, arith.FloorModOp)):
            ends = [bounds(each) for each in op.operands]
            unsigned = ELEMENTS[op.out.dtype].kind == "uint"
            assert unsigned or all(each and each[0] >= 0 for each in ends), f"legalize-arith left {op!r}"
        if symbol in ("//", "%") and self.may_be_python(op.lhs) and lhs.precedence < ATOM:
            lhs = Expression(f"tl.cast({lhs.text}, {TRITON_TYPES[op.lhs.dtype]})")  # Python would round down
        if precedence < ADD:
            # Python's rules for bits beside arithmetic are known to few: only a & b & c goes without parentheses.
            again = type(op.lhs.op) is type(op) and op.lhs.op in self.variables.inlined and op.commutes
            return Expression(f"{lhs.at(precedence if again else ATOM)} {symbol} {rhs.at(ATOM)}", precedence)
        text = f"{lhs.at(precedence)} {symbol} {rhs.at(precedence + 1)}"
        if symbol == "/" and ELEMENTS[op.out.dtype].bits < 32:
            return Expression(f"({text}).to({TRITON_TYPES[op.out.dtype]})")  # Triton divides halves in float32
        return Expression(text, precedence)

    def extremum(self, op: arith.BinaryOp) -> Expression:
        name = "tl.maximum" if isinstance(op, arith.MaxOp) else "tl.minimum"
        dtype = op.out.dtype
        if dtype == "bool":
            symbol, precedence = ("|", OR) if isinstance(op, arith.MaxOp) else ("&", AND)
            lhs, rhs = self.operand_pair(op)
            return Expression(f"{lhs.at(precedence)} {symbol} {rhs.at(precedence + 1)}", precedence)
        operands = ", ".join(self.argument(each, op.operands) for each in op.operands)
        return self.narrowed(f"{name}({operands})", dtype, dtype == "bfloat16")

    def argument(self, value: Value, others: list[Value]) -> str:
        """An argument of a function that makes tensors of numbers by itself: float32 and int32 may stand bare."""
        number = constant_of(value)
        if number is not None and value.dtype in ("float32", "int32"):
            return self.beside(value, *(each for each in others if each is not value)).text
        return self.text(value)

    def narrowed(self, text: str, dtype: str, needed: bool) -> Expression:
        return Expression(f"{text}.to({TRITON_TYPES[dtype]})" if needed else text)

    def compare(self, op: arith.CmpOp) -> Expression:
        lhs, rhs = self.operand_pair(op)
        return Expression(f"{lhs.at(OR)} {PREDICATES[op.predicate]} {rhs.at(OR)}", COMPARE)

    def select(self, op: arith.SelectOp) -> Expression:
        a, b = op.on_true, op.on_false
        numbers = (constant_of(a), constant_of(b))
        if None not in numbers and op.out.dtype in ("float32", "int32", "bool") and op.condition.shape == op.out.shape:
            texts = [self.number(each, op.out.dtype).text for each in numbers if each is not None]
        else:
            first = self.beside(a, op.condition, b, converts=True) if constant_of(b) is None else self.value(a)
            texts = [first.text, self.beside(b, op.condition, a, converts=True).text]
            if None not in numbers:
                texts[1] = self.text(b)
        return Expression(f"tl.where({self.text(op.condition)}, {texts[0]}, {texts[1]})")

    def cast(self, op: arith.CastOp) -> Expression:
        source, dtype = op.source, op.out.dtype
        inner = self.value(source)
        if dtype == "bool":
            return Expression(f"{inner.at(OR)} != 0", COMPARE)
        if self.may_be_python(source) or constant_of(source) is not None:
            return Expression(f"tl.cast({inner.text}, {TRITON_TYPES[dtype]})")
        return Expression(f"{inner.at(ATOM)}.to({TRITON_TYPES[dtype]})")

    def bitcast(self, op: arith.BitcastOp) -> Expression:
        inner = self.value(op.source)
        if self.may_be_python(op.source) or constant_of(op.source) is not None:
            return Expression(f"tl.cast({inner.text}, {TRITON_TYPES[op.out.dtype]}, bitcast=True)")
        return Expression(f"{inner.at(ATOM)}.to({TRITON_TYPES[op.out.dtype]}, bitcast=True)")

    def field(self, op: arith.FieldOp) -> Expression:
        name, text = field_function(op.source.dtype, op.out.dtype, op.shift, op.mask, op.bits)
        self.field_functions[name] = text
        return Expression(f"{name}({self.text(op.source)})")

    def negate(self, op: arith.NegOp) -> Expression:
        return Expression(f"-{self.value(op.source).at(UNARY)}", UNARY)

    def invert(self, op: arith.NotOp) -> Expression:
        inner = self.value(op.source)
        if op.out.dtype == "bool" and not op.out.shape:
            return Expression(f"{inner.at(OR)} == 0", COMPARE)  # `not` gives no tensor, but a Python bool
        return Expression(f"~{inner.at(UNARY)}", UNARY)

    def math(self, op: arith.MathOp) -> Expression:
        function, dtype = op.function, op.operands[0].dtype
        arguments = ", ".join(self.argument(each, op.operands) for each in op.operands)
        if function == "isfinite":
            inner = self.text(op.operands[0])
            return Expression(f'tl.abs({inner}) < float("inf")', COMPARE)
        if function == "clamp" and not (is_float(dtype) and dtype != "bfloat16"):
            x, low, high = (self.argument(each, op.operands) for each in op.operands)
            return self.narrowed(f"tl.minimum(tl.maximum({x}, {low}), {high})", dtype, dtype == "bfloat16")
        if function == "sqrt" and dtype == "float64":
            return Expression(f"tl.sqrt({arguments})")  # correctly rounded there; tl.sqrt_rn takes float32 alone
        record = MATH_FUNCTIONS[function]
        name = record.spelling
        if name.startswith("tl."):
            return Expression(f"{name}({arguments})")
        self.uses_libdevice = True
        if op.out.dtype == "bool":
            return Expression(f"{name}({arguments}) != 0", COMPARE)
        return self.narrowed(f"{name}({arguments})", dtype, record.takes == "bits" and dtype == "int64")

    def iota(self, op: tensor.IotaOp) -> Expression:
        text = f"tl.arange(0, {op.extent})"
        if op.out.dtype != "int32":
            text += f".to({TRITON_TYPES[op.out.dtype]})"
        rank = len(op.out.shape)
        if rank > 1:
            text += f"[{', '.join(':' if axis == op.axis else 'None' for axis in range(rank))}]"
        return Expression(text)

    def broadcast(self, op: tensor.BroadcastOp) -> Expression:
        inner, dtype = self.text(op.source), op.out.dtype
        if op.source.shape or dtype.startswith("*"):
            return Expression(f"tl.broadcast_to({inner}, {shape_text(op.out.shape)})")
        return Expression(f"tl.full({shape_text(op.out.shape)}, {inner}, {TRITON_TYPES[dtype]})")

    def reshape(self, op: tensor.ReshapeOp) -> Expression:
        source, shape = op.source, op.out.shape
        inner = self.value(source)
        if not source.shape:
            return Expression(f"tl.full({shape_text(shape)}, {inner.text}, {TRITON_TYPES[op.out.dtype]})")
        if not shape:
            if source.dtype == "bool":
                return Expression(f"tl.max({inner.at(ATOM)}.to(tl.int32)) != 0", COMPARE)
            if len(source.shape) > 1:
                inner = Expression(f"tl.reshape({inner.text}, (1,))")
            return self.narrowed(f"tl.sum({inner.text}, axis=0)", source.dtype, ELEMENTS[source.dtype].bits < 32)
        places = _inserted(source.shape, shape)
        if places is not None:
            return Expression(f"{inner.at(ATOM)}[{', '.join(places)}]")
        return Expression(f"tl.reshape({inner.text}, {shape_text(shape)})")

    def transpose(self, op: tensor.TransposeOp) -> Expression:
        inner = self.text(op.source)
        if op.permutation == (1, 0):
            return Expression(f"tl.trans({inner})")
        return Expression(f"tl.permute({inner}, {shape_text(op.permutation)})")

    def reduce(self, op: tensor.ReduceOp) -> Expression:
        kind, dtype, source = op.kind, op.source.dtype, self.relaid(op)
        narrow = ELEMENTS[dtype].bits < 32
        if kind in ("abssum", "absmax"):
            kind, source = kind[3:], f"tl.abs({source})"
        if dtype == "bool":
            combine = {"max": "_or", "or": "_or", "min": "_and", "and": "_and"}.get(kind)
            if combine is None:
                raise TileError(f"a {kind} of bool is not defined", op.loc)
            return self.combined("tl.reduce", combine, f"{source}, {op.axis}")
        if kind in ("max", "min") and op.propagate_nan and is_float(dtype):
            name = "_maximum_or_nan" if kind == "max" else "_minimum_or_nan"
            return self.narrowed(
                self.combined("tl.reduce", name, f"{source}, {op.axis}").text, dtype, dtype == "bfloat16"
            )
        if kind in ("sum", "max", "min", "xor"):
            name = "tl.xor_sum" if kind == "xor" else f"tl.{kind}"
            return self.narrowed(f"{name}({source}, axis={op.axis})", dtype, narrow)
        return self.combined(
            "tl.reduce", {"prod": "_multiply", "and": "_and", "or": "_or"}[kind], f"{source}, {op.axis}"
        )

    def relaid(self, op: tensor.ReduceOp | tensor.ScanOp, given: Value | None = None) -> str:
        """The source, or another operand of its shape. Through a scan, here one that gives its elements as they are,
        Triton hands no layout on but plain ones, and of a single dimension there is but one."""
        text, shape = self.text(op.source if given is None else given), op.source.shape
        if not op.relaid:
            return text
        flat = text if len(shape) == 1 else f"tl.reshape({text}, ({prod(shape)},))"
        made = self.combined("tl.associative_scan", "_second", f"{flat}, 0").text
        return made if len(shape) == 1 else f"tl.reshape({made}, {shape_text(shape)})"

    def combined(self, function: str, combine: str, arguments: str) -> Expression:
        self.combine_functions.add(combine)
        return Expression(f"{function}({arguments}, {combine})")

    def scan(self, op: tensor.ScanOp) -> Expression:
        source, dtype = self.relaid(op), op.out.dtype
        if op.factors is not None:
            pair = f"({self.relaid(op, op.factors)}, {source}), {op.axis}"
            return Expression(f"{self.combined('tl.associative_scan', '_linear', pair).text}[1]")
        if op.kind in ("sum", "prod"):
            reverse = ", reverse=True" if op.reverse else ""
            text = f"tl.cum{op.kind}({source}, axis={op.axis}{reverse})"
            return self.narrowed(text, dtype, ELEMENTS[dtype].bits < 32)
        name = "_maximum" if op.kind == "max" else "_minimum"
        self.combine_functions.add(name)
        reverse = ", reverse=True" if op.reverse else ""
        return self.narrowed(f"tl.associative_scan({source}, {op.axis}, {name}{reverse})", dtype, dtype == "bfloat16")

    def dot(self, op: tensor.DotOp) -> Expression:
        a, b, dtype = self.text(op.a), self.text(op.b), op.out.dtype
        number = constant_of(op.accumulator)
        arguments = [a, b] if number == 0 else [a, b, self.text(op.accumulator)]
        if op.precision != "default" and op.a.dtype == "float32":
            arguments.append(f'input_precision="{op.precision}"')
        if dtype != "float32":  # Triton 3.6 takes float32 for the default, whatever the accumulator is
            arguments.append(f"out_dtype={TRITON_TYPES[dtype]}")
        return Expression(f"tl.dot({', '.join(arguments)})")

    def gather(self, op: tensor.GatherOp) -> Expression:
        return Expression(f"tl.gather({self.text(op.source)}, {self.text(op.indices)}, axis={op.axis})")

    def histogram(self, op: tensor.HistogramOp) -> Expression:
        mask = "" if constant_of(op.mask) else f", mask={self.text(op.mask)}"
        return Expression(f"tl.histogram({self.text(op.source)}, {op.out.shape[0]}{mask})")

    def add_pointer(self, op: triton.AddPtrOp) -> Expression:
        # A scalar pointer may be moved term by term: (A + x) + y is A + (x + y).
        plain = not op.offset.shape and isinstance(op.offset.op, arith.AddOp)
        offset = self.value(op.offset)
        text = offset.text if plain and offset.precedence >= ADD else offset.at(MULTIPLY)
        return Expression(f"{self.value(op.pointer).at(ADD)} + {text}", ADD)

    def program_id(self, op: triton.ProgramIdOp) -> Expression:
        return Expression(f"tl.program_id({op.axis})")

    def num_programs(self, op: triton.NumProgramsOp) -> Expression:
        return Expression(f"tl.num_programs({op.axis})")


_NUMBERS = (triton.ProgramIdOp, triton.NumProgramsOp, arith.CastOp)  # never Python's


def _is_made_wide(number: bool | int | float, dtype: str) -> bool:
    """Whether a number is made in float32: up to 3.6, Triton makes of float8 itself only zeros."""
    return dtype.startswith("float8") and number != 0


def _inserted(source: tuple[int, ...], shape: tuple[int, ...]) -> list[str] | None:
    """The subscript that turns one shape into the other by inserting dimensions of 1, as early as can be, or None."""
    return _subscript(source, shape) if len(shape) > len(source) else None


def _subscript(source: tuple[int, ...], shape: tuple[int, ...]) -> list[str] | None:
    if len(source) > len(shape):
        return None
    if not shape:
        return []
    if shape[0] == 1 and len(shape) > len(source) and (rest := _subscript(source, shape[1:])) is not None:
        return ["None", *rest]
    if source and source[0] == shape[0] and (rest := _subscript(source[1:], shape[1:])) is not None:
        return [":", *rest]
    return None


_HANDLERS: dict[type[Operation], Callable[..., Expression]] = {
    arith.MaxOp: Expressions.extremum,
    arith.MinOp: Expressions.extremum,
    arith.CmpOp: Expressions.compare,
    arith.SelectOp: Expressions.select,
    arith.CastOp: Expressions.cast,
    arith.BitcastOp: Expressions.bitcast,
    arith.FieldOp: Expressions.field,
    arith.NegOp: Expressions.negate,
    arith.NotOp: Expressions.invert,
    arith.MathOp: Expressions.math,
    tensor.IotaOp: Expressions.iota,
    tensor.BroadcastOp: Expressions.broadcast,
    tensor.ReshapeOp: Expressions.reshape,
    tensor.TransposeOp: Expressions.transpose,
    tensor.ReduceOp: Expressions.reduce,
    tensor.ScanOp: Expressions.scan,
    tensor.DotOp: Expressions.dot,
    tensor.GatherOp: Expressions.gather,
    tensor.HistogramOp: Expressions.histogram,
    triton.AddPtrOp: Expressions.add_pointer,
    triton.ProgramIdOp: Expressions.program_id,
    triton.NumProgramsOp: Expressions.num_programs,
}
