"""Recognition of loops that multiply tiles and accumulate the products: for select-emitter and schedule-loops.

`find_tiled_product` looks at a kernel in which operands of products are loaded as blocks (`tile.load_block`, or
`triton.load_block` once it is a launch). It finds

    for step in range(lower, upper):
        acc = acc + A[step] @ B[step]                 either
        part = A[step] @ B[step]                      or a product from zero, and row-wise operations on it,
        acc = f(acc, part, ...)                       such as `acc + part * scale`

in which every operation maps rows to rows, so that the block's rows can be divided among consumers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.analysis.gluon.schedule import LOADS, LoadBlock
from tiledsl.analysis.gluon.softmax_loops import (
    HALVES,
    NotRecognised,
    check_supported,
    dependent_on,
    operations_around,
)
from tiledsl.analysis.loops import products_in
from tiledsl.dialects import scf, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Operation, Region

BYTES = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class TiledProduct:
    """A kernel with one such loop.

    `acc_position` is that of the accumulator that the product is added to among the carried values; None where each
    product starts from zero. `beside` are the body's operations that do not depend on the product, `update` those that
    do; `before` and `after` are the operations around the loop.
    """

    op: scf.ForOp
    left: LoadBlock
    right: LoadBlock
    product: tensor.DotOp
    acc_position: int | None
    beside: tuple[Operation, ...]
    update: tuple[Operation, ...]
    before: tuple[Operation, ...]
    after: tuple[Operation, ...]

    @property
    def rows(self) -> int:
        """Rows of the block, or of a consumer once they are divided."""
        return self.product.out.shape[0]

    @property
    def columns(self) -> int:
        """Columns of the product."""
        return self.product.out.shape[1]

    @property
    def depth(self) -> int:
        """The inner size of one product."""
        return self.product.a.shape[1]

    @property
    def undivided(self) -> set[Operation]:
        """Operations whose rows are not those of the block."""
        transposed = self.product.b.op
        return {self.right, transposed} if isinstance(transposed, tensor.TransposeOp) else {self.right}


def is_softmax(body: Region) -> bool:
    """Whether some loop has more than one product; then softmax_loops.py knows the structure."""
    return any(isinstance(op, scf.ForOp) and products_in(op) > 1 for op in body)


def find_tiled_product(body: Region) -> TiledProduct:
    """The structure of a kernel's body. Raises NotRecognised with the reason."""
    check_supported(body)
    fors = [op for op in body if isinstance(op, scf.ForOp)]
    dots = [op for op in body.walk() if isinstance(op, tensor.DotOp)]
    if len(fors) != 1 or [dot.parent for dot in dots] != [loop.body for loop in fors]:
        raise NotRecognised(f"{len(dots)} products and {len(fors)} loops are not one product in one loop")
    (loop,), (dot,) = fors, dots
    if constant_of(loop.step) != 1:
        raise NotRecognised("a loop's step is not 1", loop)
    left, right = dot.a.op, dot.b.op
    if isinstance(left, tensor.TransposeOp):
        raise NotRecognised("the product's left operand is transposed", dot)
    transposed = isinstance(right, tensor.TransposeOp)
    if isinstance(right, tensor.TransposeOp):
        right = right.source.op
    if not isinstance(left, LOADS) or not isinstance(right, LOADS):
        raise NotRecognised("a product's operand is not a tile loaded in the loop", dot)
    if left.parent is not loop.body or right.parent is not loop.body:
        raise NotRecognised("a product's operand is not a tile loaded in the loop", dot)
    if left is right:
        raise NotRecognised("a tile is multiplied by itself", dot)
    if dot.a.dtype not in (*HALVES, *BYTES) or dot.b.dtype != dot.a.dtype or dot.out.dtype != "float32":
        raise NotRecognised(f"a product of {dot.a.dtype} and {dot.b.dtype} added up in {dot.out.dtype}", dot)
    if dot.a.dtype in BYTES and not transposed:
        raise NotRecognised(f"the columns of a right operand of {dot.b.dtype} are not contiguous", dot)
    acc_position = _acc_position(loop, dot)
    moved = {left, right, dot, *([dot.b.op] if transposed else [])}
    inner = [op for op in loop.body if op not in moved and not op.is_terminator]
    for op in inner:
        if op.effects & Effect.WRITE:
            raise NotRecognised(f"{op.name} in the loop", op)
    dependent = dependent_on([dot.out], loop.body)
    before, after = operations_around(body, fors)
    return TiledProduct(
        loop, left, right, dot, acc_position, tuple(op for op in inner if op not in dependent),
        tuple(op for op in inner if op in dependent), tuple(before), tuple(after),
    )  # fmt: skip


def _acc_position(loop: scf.ForOp, dot: tensor.DotOp) -> int | None:
    """Which carried value a product is added to; None if it starts from zero."""
    if constant_of(dot.accumulator) == 0:
        return None
    arguments, yielded = loop.iter_args, loop.yielded
    if dot.accumulator not in arguments:
        raise NotRecognised("the product neither starts from zero nor is added to what the loop carries", dot)
    number = arguments.index(dot.accumulator)
    if yielded[number] is not dot.out or set(dot.accumulator.uses) != {dot}:
        raise NotRecognised("the accumulator is used for more than the product", dot)
    if set(dot.out.uses) != {loop.body.terminator} or yielded.count(dot.out) != 1:
        raise NotRecognised("the sum of products is used in the loop", dot)
    return number
