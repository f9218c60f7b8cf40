"""Recognition of loops of the form product, row-wise update, product: for select-emitter and schedule-loops.

`find_softmax_loops` looks at a kernel in which operands of products are loaded as blocks (`tile.load_block`, or
`triton.load_block` once it is a launch). It finds

    for tile in range(lower, upper):                      one loop, or several that pass their values on
        scores = Q @ K[tile].T                            Q is loaded before
        ...                                               row-wise operations on scores and carried values
        acc = f(acc) + g(scores) @ V[tile]                acc is carried; only f(acc) depends on it

in which every operation maps rows to rows, so that the block's rows can be divided among consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tiledsl.analysis.gluon.schedule import LOADS, LoadBlock, hands_on
from tiledsl.dialects import arith, gluon, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.types import ELEMENTS
from tiledsl.math_functions import MATH_FUNCTIONS

HALVES = ("float16", "bfloat16")
EXTENTS = (16, 32, 64, 128, 256)  # of tiles
REDUCTIONS = frozenset({"sum", "max", "min"})
_ALLOWED = (
    arith.ConstantOp, arith.BinaryOp, arith.CmpOp, arith.SelectOp, arith.CastOp, arith.BitcastOp, arith.NegOp,
    arith.NotOp, arith.MathOp, tensor.IotaOp, tensor.ReshapeOp, tensor.ReduceOp, tensor.BroadcastOp,
    tensor.TransposeOp, tensor.DotOp,
    tile.LoadOp, tile.StoreOp, tile.LoadBlockOp, tile.StoreBlockOp, tile.AssumeOp,
    gluon.WarpGroupIdOp, gluon.WorkItemOp, gluon.LongestFirstOp, gluon.RescaleOp,
    scf.ForOp, scf.IfOp, scf.YieldOp,
    triton.ProgramIdOp, triton.AddPtrOp, triton.LoadOp, triton.StoreOp, triton.LoadBlockOp, triton.StoreBlockOp,
)  # fmt: skip


class NotRecognised(Exception):
    """Why a kernel is not of the form; `op` is where."""

    def __init__(self, reason: str, op: Operation | None = None) -> None:
        super().__init__(reason)
        self.op = op


@dataclass(frozen=True)
class SoftmaxLoop:
    """One loop. `acc_position` is the position of the accumulator among its carried values.

    `update` are the body's operations that do not depend on the accumulator, `rescale` those between its old value and
    the second product, in order.
    """

    op: scf.ForOp
    keys: LoadBlock
    scores: tensor.DotOp
    update: tuple[Operation, ...]
    rescale: tuple[Operation, ...]
    values: LoadBlock
    product: tensor.DotOp
    acc_position: int


@dataclass(frozen=True)
class SoftmaxLoops:
    """All of a kernel: Q's load, the loops in order, and the operations before and after them."""

    query: LoadBlock
    loops: tuple[SoftmaxLoop, ...]
    before: tuple[Operation, ...]
    after: tuple[Operation, ...]

    @property
    def rows(self) -> int:
        """Rows of Q's box."""
        return self.query.out.shape[0]

    @property
    def columns(self) -> int:
        """Keys in a tile."""
        return self.loops[0].keys.out.shape[0]

    @property
    def depth(self) -> int:
        """The inner size of the first product."""
        return self.query.out.shape[1]

    @property
    def width(self) -> int:
        """Columns of the accumulator."""
        return self.loops[0].values.out.shape[1]

    @property
    def undivided(self) -> set[Operation]:
        """Operations whose rows are not those of the block."""
        each = [(loop.keys, loop.values, *_transposes(loop.scores.b)) for loop in self.loops]
        return {op for ops in each for op in ops}


def check_extent(extent: int, extents: Sequence[int], op: Operation) -> None:
    """Raises NotRecognised for an extent of a tile that is none of these."""
    if extent not in extents:
        reason = f"a tile's extent {extent} is not a power of two from {extents[0]} to {extents[-1]}"
        raise NotRecognised(reason, op)


def check_supported(body: Region, branches_read: bool = False) -> None:
    """Raises NotRecognised where a kernel has operations that no Gluon kernel is written with. `branches_read`: whether
    branches may load."""
    for op in body.walk():
        if not isinstance(op, _ALLOWED):
            raise NotRecognised(f"{op.name} is not supported", op)
        if isinstance(op, scf.ForOp) and op.parent is not body:
            raise NotRecognised("a loop inside of a loop", op)
        pure = Effect.REGION | Effect.TERMINATE | (Effect.READ if branches_read else Effect.NONE)
        if isinstance(op, scf.IfOp) and any(each.effects & ~pure for each in op.walk()):
            raise NotRecognised("a branch with effects", op)
        if isinstance(op, tensor.DotOp) and isinstance(op.parent_op, scf.IfOp):
            raise NotRecognised("a product in a branch", op)


def find_softmax_loops(body: Region) -> SoftmaxLoops:
    """The structure of a kernel's body. Raises NotRecognised with the reason."""
    check_supported(body)
    fors = [op for op in body if isinstance(op, scf.ForOp)]
    if not fors:
        raise NotRecognised("no loop with two products")
    first, *others = map(_match_loop, fors)
    query = first.scores.a.op
    assert isinstance(query, LOADS)
    for loop in others:
        same = loop.scores.a is query.out and loop.acc_position == first.acc_position
        if not same or (loop.keys.out.type, loop.values.out.type) != (first.keys.out.type, first.values.out.type):
            raise NotRecognised("the loops differ in their operands", loop.op)
        if (loop.keys.operands[0], loop.values.operands[0]) != (first.keys.operands[0], first.values.operands[0]):
            raise NotRecognised("the loops read different buffers", loop.op)
    for one, following in pairwise(fors):
        if not hands_on(one, following):
            raise NotRecognised("a loop does not just hand its values to the next", following)
    before, after = operations_around(body, fors)
    return SoftmaxLoops(query, (first, *others), tuple(before), tuple(after))


def operations_around(body: Region, fors: Sequence[scf.ForOp]) -> tuple[list[Operation], list[Operation]]:
    """Operations that run before the first loop, and those that need the last one's results or have effects."""
    late: set[Operation] = set()
    before: list[Operation] = []
    after: list[Operation] = []
    seen_last = False
    for op in body:
        if isinstance(op, scf.ForOp):
            seen_last = op is fors[-1]
            late.add(op)
            if any(_made_by(value, late) for value in op.operands[:3]):
                raise NotRecognised("a loop's bounds depend on an earlier loop", op)
        elif op.effects & Effect.WRITE or any(_made_by(value, late) for value in op.operands):
            if not seen_last:
                raise NotRecognised("memory is written, or results are used, before the last loop", op)
            late.add(op)
            after.append(op)
        else:
            (after if seen_last else before).append(op)
    return before, after


def _made_by(value: Value, ops: set[Operation]) -> bool:
    return value.op is not None and value.op in ops


def _match_loop(loop: scf.ForOp) -> SoftmaxLoop:
    dots = [op for op in loop.body if isinstance(op, tensor.DotOp)]
    if len(dots) != 2:
        raise NotRecognised(f"a loop has {len(dots)} products instead of 2", loop)
    if constant_of(loop.step) != 1:
        raise NotRecognised("a loop's step is not 1", loop)
    scores, product = dots
    query, keys, values = _box(scores.a), _box(scores.b, transposed=True), _box(product.b)
    if query is None or query.parent is loop.body:
        raise NotRecognised("the first product's left operand is not a tile loaded before the loop", scores)
    if keys is None or keys.parent is not loop.body:
        raise NotRecognised("the first product's right operand is not a transposed tile loaded in the loop", scores)
    if values is None or values.parent is not loop.body:
        raise NotRecognised("the second product's right operand is not a tile loaded in the loop", product)
    if keys is values:
        raise NotRecognised("one tile is the right operand of both products", loop)
    if constant_of(scores.accumulator) != 0 or scores.out.dtype != "float32" or product.out.dtype != "float32":
        raise NotRecognised("a product is not accumulated in float32, or the first does not start from 0", scores)
    for dot in dots:
        if dot.a.dtype not in HALVES or dot.b.dtype != dot.a.dtype:
            raise NotRecognised(f"a product of {dot.a.dtype} and {dot.b.dtype}", dot)
    yielded = loop.yielded
    if set(product.out.uses) != {loop.body.terminator} or yielded.count(product.out) != 1:
        raise NotRecognised("the second product is used in the loop", product)
    acc_position = yielded.index(product.out)
    accumulator = loop.body.args[1 + acc_position]
    moved = {keys, values, scores, product, *_transposes(scores.b)}
    dependent = dependent_on([accumulator], loop.body)
    if product not in dependent or any(value.op in dependent for value in yielded if value is not product.out):
        raise NotRecognised("the accumulator is used for more than the second product", loop)
    if product.a.op in dependent or scores in dependent:
        raise NotRecognised("a product's operand depends on the accumulator", product)
    if any(value is accumulator for value in yielded):
        raise NotRecognised("the accumulator is handed on unchanged", loop)
    inner = [op for op in loop.body if op not in moved and not op.is_terminator]
    for op in inner:
        if op in dependent and op.has_effects or op.effects & Effect.WRITE:
            raise NotRecognised(f"{op.name} in the loop", op)
    return SoftmaxLoop(
        loop, keys, scores, tuple(op for op in inner if op not in dependent),
        tuple(op for op in inner if op in dependent), values, product, acc_position,
    )  # fmt: skip


def _box(value: Value, transposed: bool = False) -> LoadBlock | None:
    op = value.op
    if transposed:
        if not isinstance(op, tensor.TransposeOp) or op.permutation != (1, 0):
            return None
        op = op.source.op
    return op if isinstance(op, LOADS) and len(op.out.shape) == 2 else None


def _transposes(value: Value) -> Iterable[Operation]:
    return [value.op] if isinstance(value.op, tensor.TransposeOp) else []


def dependent_on(start: Sequence[Value], body: Region) -> set[Operation]:
    """The operations of a body that need one of these values."""
    reached, values = set(), set(start)
    for op in body:
        if not op.is_terminator and any(not values.isdisjoint(each.operands) for each in op.walk()):
            reached.add(op)
            values.update(op.results)
    return reached


def check_rows(body: Region, tiles: Sequence[tuple[int, ...]], operands: set[Operation]) -> None:
    """Raises NotRecognised where an operation does not map each row to the same row, or Gluon has no name for it.

    `tiles` are the products' shapes; `operands`, which are loaded for products, may have others.
    """
    rows = list(dict.fromkeys(shape[0] for shape in tiles))
    columns = {shape[1] for shape in tiles}
    for op in body.walk():
        if op in operands:
            continue
        for value in (*op.results, *(arg for region in op.regions for arg in region.args)):
            shape = value.shape
            if (
                len(shape) > 2
                or (len(shape) == 1 and shape[0] not in rows)
                or (len(shape) == 2 and shape[0] not in (1, *rows))
            ):
                raise NotRecognised(f"{value.type} is not a tile of the block's {' or '.join(map(str, rows))} rows", op)
            if len(shape) == 2 and (shape[1] not in (1, *columns) or 1 not in shape and shape not in tiles):
                raise NotRecognised(f"{value.type} has the columns of no product", op)
        if isinstance(op, tensor.ReduceOp):
            narrow = ELEMENTS[op.out.dtype].bits < 32 or op.out.dtype == "bool"
            if op.axis != 1 or len(op.source.shape) != 2 or op.source.shape[0] not in rows:
                raise NotRecognised("a reduction over rows", op)
            if op.kind not in REDUCTIONS or op.propagate_nan or narrow:
                raise NotRecognised(f"a reduction by {op.kind} of {op.out.dtype}", op)
        elif isinstance(op, tensor.ReshapeOp):
            if {op.source.shape, op.out.shape} not in [{(each,), (each, 1)} for each in rows]:
                raise NotRecognised(f"a reshape of {op.source.type} to {op.out.type}", op)
        elif isinstance(op, tensor.IotaOp):
            if op.out.dtype != "int32":
                raise NotRecognised(f"indices of {op.out.dtype}", op)
        elif isinstance(op, arith.MathOp):
            if not MATH_FUNCTIONS[op.function].spelling.startswith("tl."):  # Gluon has the same
                raise NotRecognised(f"the function {op.function}", op)
        elif isinstance(op, tensor.TransposeOp):
            raise NotRecognised("a transpose", op)
