"""Operations as Gluon expressions: Triton's, with a layout wherever a tensor is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tiledsl.codegen.expressions import ATOM, COMPARE, MULTIPLY, Expression, Expressions, shape_text
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import arith, gluon, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Value


@dataclass(frozen=True)
class Layouts:
    """Names of a kernel's layouts: of tiles, by their shape, and of one value for each row, by the number of rows; and
    how many columns of a tile that is rescaled a warp has, by its shape.

    A value for each row, or for each column, lies as the first tile does that has so many. Tiles that left operands are
    made of, by their shape, lie as these do.

    shares: where groups of warps run apart, the shapes of what each has, by those of tiles; rows: of `consumer`.
    """

    tiles: Mapping[tuple[int, ...], str]
    rows: Mapping[int, str]
    widths: Mapping[tuple[int, ...], int]
    operands: Mapping[tuple[int, ...], str]
    shares: Mapping[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def share(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what a group of warps has of a tensor."""
        if shape in self.shares or len(shape) == 2 and shape[1] != 1:
            return self.shares.get(shape, shape)
        rows = next((own[0] for tile, own in self.shares.items() if tile[:1] == shape[:1]), shape[0])
        return (rows, *shape[1:])

    def shape_text(self, shape: tuple[int, ...]) -> str:
        return shape_text(self.share(shape))

    def of(self, shape: tuple[int, ...]) -> str:
        """The layout of a tensor."""
        if len(shape) == 1:
            return self.rows[shape[0]]
        if shape in self.operands:
            return self.operands[shape]
        alike = (tile for tile in self.tiles if all(one in (1, other) for one, other in zip(shape, tile, strict=True)))
        return self.tiles[shape if shape in self.tiles else next(alike)]


class GluonExpressions(Expressions):
    """Expressions over the variables of one kernel. Names of triton.language stand for those of Gluon's language."""

    def __init__(self, variables: Variables, layouts: Layouts) -> None:
        super().__init__(variables)
        self.layouts = layouts
        self.in_words: set[Operation] = set()  # on four bytes at a time
        self._wanted = ""  # the layout of the operation whose operands are being written
        self.consumer = ""  # which group of warps this is

    def value(self, value: Value) -> Expression:
        if isinstance(value.op, tensor.IotaOp) and value.shape[0] == 1 and self._wanted:  # written wherever it is used
            return self._columns(value.op, self._wanted)
        text = super().value(value)
        return self._as_wanted(text, value.shape) if len(value.shape) == 2 and 1 in value.shape else text

    def _as_wanted(self, text: Expression, shape: tuple[int, ...]) -> Expression:
        """A value for each row or column in the layout of the tile beside it."""
        if self._wanted in ("", self.layouts.of(shape)):
            return text
        return Expression(f"gl.convert_layout({text.text}, {self._wanted})")

    def operation(self, op: Operation) -> Expression:
        if op in self.in_words:
            return self._on_bytes(op)
        with self.operands_of(op):
            handler = _HANDLERS.get(type(op))
            return super().operation(op) if handler is None else handler(self, op)

    def _on_bytes(self, op: Operation) -> Expression:
        """An operation on integers, of which the low byte counts, on words of four bytes."""
        first, *others = (self._word(value) for value in op.operands)
        if isinstance(op, (arith.ShlOp, arith.ShrOp)):
            by = int(constant_of(op.rhs))  # type: ignore[arg-type]
            if not by:
                return first
            sign, mask = ("<<", 0xFF << by & 0xFF) if isinstance(op, arith.ShlOp) else (">>", 0xFF >> by)
            return Expression(f"({first.at(ATOM)} {sign} {by}) & {_repeated(mask)}", COMPARE)
        signs: dict[type[Operation], str] = {arith.AndOp: "&", arith.OrOp: "|", arith.XorOp: "^"}
        return Expression(f"({first.text}) {signs[type(op)]} ({others[0].text})", COMPARE) if others else first

    def _word(self, value: Value) -> Expression:
        number = constant_of(value)
        return self.value(value) if number is None else Expression(str(_repeated(int(number))))

    @contextmanager
    def operands_of(self, op: Operation) -> Iterator[None]:
        """Inside, values for each row or column are written in the layout that the operation's tiles have."""
        before = self._wanted
        shapes = [value.shape for value in (*op.results, *op.operands)]
        self._wanted = next((self.layouts.of(each) for each in shapes if len(each) == 2 and 1 not in each), "")
        try:
            yield
        finally:
            self._wanted = before

    def full(self, shape: tuple[int, ...], text: str, dtype: str) -> Expression:
        if text == "-0.0":
            return super().full(shape, text, dtype)
        if not shape:
            return Expression(f"gl.to_tensor({text}).to({TRITON_TYPES[dtype]})")
        layout = self.layouts.of(shape)
        if text in ("0", "0.0"):
            return Expression(f"gl.zeros({self.layouts.shape_text(shape)}, {TRITON_TYPES[dtype]}, {layout})")
        return Expression(f"gl.full({self.layouts.shape_text(shape)}, {text}, {TRITON_TYPES[dtype]}, {layout})")

    def iota(self, op: tensor.IotaOp) -> Expression:
        shape = op.out.shape
        if len(shape) == 1 or op.axis == 0:
            (own,) = self.layouts.share((op.extent,))
            text = f"gl.arange(0, {own}, layout={self.layouts.of((op.extent,))})"
            if own < op.extent:
                text = f"({text} + {self.consumer} * {own})"
            return Expression(text if len(shape) == 1 else f"{text}[:, None]")
        return self._columns(op, self.layouts.of(shape))

    def _columns(self, op: tensor.IotaOp, layout: str) -> Expression:
        text = f"gl.arange(0, {op.extent}, layout=gl.SliceLayout(0, {layout}))"
        return Expression(f"{f'_in_fours({text}, {op.extent})' if op.in_fours else text}[None, :]")

    def broadcast(self, op: tensor.BroadcastOp) -> Expression:
        inner, shape = self.value(op.source), op.out.shape
        if op.source.shape:
            return Expression(f"{inner.at(8)}.broadcast_to({self.layouts.shape_text(shape)})")
        if op.out.dtype.startswith("*"):
            return Expression(f"({inner.text} + {self.full(shape, '0', 'int32').text})")
        return Expression(
            f"gl.full({self.layouts.shape_text(shape)}, {inner.text}, {TRITON_TYPES[op.out.dtype]}, "
            f"{self.layouts.of(shape)})"
        )

    def reshape(self, op: tensor.ReshapeOp) -> Expression:
        if len(op.source.shape) == 1:
            return Expression(f"{self.value(op.source).at(8)}[:, None]")
        if op.source.dtype == "bool":
            return Expression(f"gl.max({self.text(op.source)}.to(gl.int32), axis=1) != 0", COMPARE)
        return Expression(f"gl.max({self.text(op.source)}, axis=1)")  # of one element

    def reduce(self, op: tensor.ReduceOp) -> Expression:
        text = super().reduce(op)
        rows = op.source.shape[0]
        if self.layouts.of(op.source.shape) != self.layouts.of((rows, 1)):
            return Expression(f"gl.convert_layout({text.text}, {self.layouts.of((rows,))})")
        return text

    def field(self, op: arith.FieldOp) -> Expression:
        text = super().field(op)
        name = text.text.partition("(")[0]
        body = self.field_functions.pop(name)
        self.field_functions[f"{name}_gl"] = (
            re.sub(r"\btl\.", "gl.", body).replace("@triton", "@gluon").replace(name, f"{name}_gl")
        )
        return Expression(text.text.replace(name, f"{name}_gl"), text.precedence)

    def rescale(self, op: gluon.RescaleOp) -> Expression:
        acc, factor = self.value(op.accumulator), self.value(op.factor)
        if len(op.factor.shape) == 1:
            factor = self._as_wanted(Expression(f"{factor.at(8)}[:, None]"), (op.out.shape[0], 1))
        if op.skip:
            return Expression(f"_rescaled_{self.layouts.widths[op.out.shape]}({acc.text}, {factor.text})")
        return Expression(f"{acc.at(MULTIPLY)} * {factor.at(MULTIPLY)}", MULTIPLY)


def _repeated(byte: int) -> int:
    """A byte four times, as an int32."""
    word = (byte & 0xFF) * 0x01010101
    return word - (1 << 32) if word >> 31 else word


_HANDLERS: dict[type[Operation], Callable[..., Expression]] = {
    tensor.IotaOp: GluonExpressions.iota,
    tensor.BroadcastOp: GluonExpressions.broadcast,
    tensor.ReshapeOp: GluonExpressions.reshape,
    tensor.ReduceOp: GluonExpressions.reduce,
    gluon.RescaleOp: GluonExpressions.rescale,
    arith.FieldOp: GluonExpressions.field,
}
