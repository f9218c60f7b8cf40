"""Operations as Gluon expressions: Triton's, with a layout wherever a tensor is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tiledsl.codegen.expressions import COMPARE, MULTIPLY, Expression, Expressions, shape_text
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import gluon, tensor
from tiledsl.ir.core import Operation, Value


@dataclass(frozen=True)
class Layouts:
    """Names of a kernel's layouts. `scores` and `out` are those of the two products (one, if they are as wide), `rows`
    that of a value for each row; `columns` and `width` are the products' columns."""

    scores: str
    out: str
    rows: str
    columns: int
    width: int

    def of(self, shape: tuple[int, ...]) -> str:
        """The layout of a tensor; one value for each row lies as the scores do."""
        if len(shape) == 1:
            return self.rows
        return self.out if shape[1] == self.width and shape[1] != self.columns else self.scores


class GluonExpressions(Expressions):
    """Expressions over the variables of one kernel. Names of triton.language stand for those of Gluon's language."""

    def __init__(self, variables: Variables, layouts: Layouts) -> None:
        super().__init__(variables)
        self.layouts = layouts
        self._wanted = layouts.scores  # the layout of the operation whose operands are being written

    def value(self, value: Value) -> Expression:
        text = super().value(value)
        if len(value.shape) == 2 and value.shape[1] == 1 and self._wanted != self.layouts.scores:
            return Expression(f"gl.convert_layout({text.text}, {self._wanted})")
        return text

    def operation(self, op: Operation) -> Expression:
        with self.operands_of(op):
            handler = _HANDLERS.get(type(op))
            return super().operation(op) if handler is None else handler(self, op)

    @contextmanager
    def operands_of(self, op: Operation) -> Iterator[None]:
        """Inside, values for each row are written in the layout that the operation's wider tensors have."""
        before = self._wanted
        shapes = [value.shape for value in (*op.results, *op.operands) if len(value.shape) == 2]
        scores = self.layouts.scores
        self._wanted = next((name for name in map(self.layouts.of, shapes) if name != scores), scores)
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
            return Expression(f"gl.zeros({shape_text(shape)}, {TRITON_TYPES[dtype]}, {layout})")
        return Expression(f"gl.full({shape_text(shape)}, {text}, {TRITON_TYPES[dtype]}, {layout})")

    def iota(self, op: tensor.IotaOp) -> Expression:
        shape = op.out.shape
        if len(shape) == 1 or op.axis == 0:
            text = f"gl.arange(0, {op.extent}, layout={self.layouts.rows})"
            return Expression(text if len(shape) == 1 else f"{text}[:, None]")
        parent = self.layouts.of(shape)
        return Expression(f"gl.arange(0, {op.extent}, layout=gl.SliceLayout(0, {parent}))[None, :]")

    def broadcast(self, op: tensor.BroadcastOp) -> Expression:
        inner, shape = self.value(op.source), op.out.shape
        if op.source.shape:
            return Expression(f"{inner.at(8)}.broadcast_to({shape_text(shape)})")
        if op.out.dtype.startswith("*"):
            return Expression(f"({inner.text} + {self.full(shape, '0', 'int32').text})")
        return Expression(
            f"gl.full({shape_text(shape)}, {inner.text}, {TRITON_TYPES[op.out.dtype]}, {self.layouts.of(shape)})"
        )

    def reshape(self, op: tensor.ReshapeOp) -> Expression:
        if len(op.source.shape) == 1:
            return Expression(f"{self.value(op.source).at(8)}[:, None]")
        if op.source.dtype == "bool":
            return Expression(f"gl.max({self.text(op.source)}.to(gl.int32), axis=1) != 0", COMPARE)
        return Expression(f"gl.max({self.text(op.source)}, axis=1)")  # of one element

    def reduce(self, op: tensor.ReduceOp) -> Expression:
        text = super().reduce(op)
        if self.layouts.of(op.source.shape) != self.layouts.scores:
            return Expression(f"gl.convert_layout({text.text}, {self.layouts.rows})")
        return text

    def rescale(self, op: gluon.RescaleOp) -> Expression:
        acc, factor = self.value(op.accumulator), self.value(op.factor)
        if len(op.factor.shape) == 1:
            factor = Expression(f"{factor.at(8)}[:, None]")
            if self._wanted != self.layouts.scores:
                factor = Expression(f"gl.convert_layout({factor.text}, {self._wanted})")
        if op.skip:
            return Expression(f"_rescaled({acc.text}, {factor.text})")
        return Expression(f"{acc.at(MULTIPLY)} * {factor.at(MULTIPLY)}", MULTIPLY)


_HANDLERS: dict[type[Operation], Callable[..., Expression]] = {
    tensor.IotaOp: GluonExpressions.iota,
    tensor.BroadcastOp: GluonExpressions.broadcast,
    tensor.ReshapeOp: GluonExpressions.reshape,
    tensor.ReduceOp: GluonExpressions.reduce,
    gluon.RescaleOp: GluonExpressions.rescale,
}
