"""Random tile programs for hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.support.author import Author, Index
from tiledsl.dialects import arith, tile
from tiledsl.ir.core import Value
from tiledsl.ir.types import Dim, is_float, is_integer

# Random programs

SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
FLOATS = ("float16", "float32", "float32", "bfloat16")
DATA_TYPES = (*FLOATS, "int32", "int8")


class _Draw:
    """Writes one kernel. Keeps what tiles there are; every tile is initialised when it is made."""

    def __init__(self, draw: Any, author: Author) -> None:
        self.draw, self.author = draw, author
        self.tiles: list[Value] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.blocks: list[Value] = []
        self.tile_shape: tuple[int, ...] = ()

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.draw(st.integers(0, len(options) - 1))]

    def chance(self) -> bool:
        return bool(self.draw(st.booleans()))

    def offset(self, axis: int, size: int) -> Index:
        """Where this block's tile starts along an axis, now and then shifted out of range."""
        start = self.author.mul(self.blocks[axis % len(self.blocks)], size)
        shift = self.pick([0, 0, 0, 1, -2, 5])
        return self.author.add(start, shift) if shift else start

    def scope(self) -> str:
        return str(self.pick(["fragment", "shared"]))

    def make(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Value:
        """A tile with data: copied in (perhaps transposed) or filled."""
        author = self.author
        shape = shape or self.tile_shape
        dtype = dtype or self.pick(DATA_TYPES)
        made = author.alloc(shape, dtype, self.scope(), f"t{len(self.tiles)}")
        sources = [each for each in self.inputs if len(each.type.shape) == len(shape)]
        kinds = [each for each in sources if is_float(each.dtype) or not is_float(dtype)]
        if kinds and self.chance():
            source = self.pick(kinds)
            axes = list(range(len(shape)))
            if len(shape) == 2 and self.pick([False, False, True]):
                axes.reverse()
            sizes = [shape[axes.index(axis)] for axis in range(len(shape))]
            at = [self.offset(axis, size) for axis, size in enumerate(sizes)]
            safe = self.pick([0.0, 0.0, 1.0])
            author.copy(source, made, at=at, shape=shape, source_axes=axes, safe_value=safe)
        else:
            author.fill(made, self.pick([0, 1, -2, 3]))
        self.tiles.append(made)
        return made

    def any_tile(self, *, rank: int | None = None, dtype: str | None = None) -> Value:
        fitting = [
            each
            for each in self.tiles
            if (rank is None or len(each.type.shape) == rank) and (dtype is None or each.dtype == dtype)
        ]
        if fitting and self.pick([True, True, False]):
            return self.pick(fitting)
        shape = self.tile_shape if rank in (None, len(self.tile_shape)) else self.tile_shape[:1]
        return self.make(dtype, shape)

    def operand(self, shape: tuple[int, ...], indices: list[Value], dtype: str) -> Value:
        """An element for one point of a parallel loop: of a tile, of a global buffer, an index or a number."""
        author = self.author
        choices: list[Callable[[], Value]] = [
            lambda: author.constant(self.pick([1, 2, -1, 3]), dtype),
            lambda: author.cast(self.pick(indices), dtype),
        ]
        for each in self.tiles:
            their = each.type.static_shape
            if their == shape:
                choices += [lambda each=each: author.load(each, *indices)] * 3
            if their == shape[::-1] and len(shape) == 2:
                choices.append(lambda each=each: author.load(each, *reversed(indices)))
            for axis, size in enumerate(shape):
                if their == (size,):
                    choices.append(lambda each=each, axis=axis: author.load(each, indices[axis]))
            if len(their) == len(shape) and their[-1] >= (shape[-1] + 1) // 2 and their[:-1] == shape[:-1]:
                half = lambda each=each: author.load(each, *indices[:-1], author.floordiv(indices[-1], 2))
                choices.append(half)
        for each in self.inputs:
            if len(each.type.shape) == len(shape):
                choices.append(lambda each=each: self.global_element(each, shape, indices))
        return author.cast(self.pick(choices)(), dtype)

    def global_element(self, source: Value, shape: tuple[int, ...], indices: list[Value]) -> Value:
        places = [self.author.add(self.offset(axis, shape[axis]), index) for axis, index in enumerate(indices)]
        numbers = [each for each in self.inputs if each.dtype == "int32" and len(each.type.shape) == 1]
        if numbers and self.chance():
            places[0] = self.author.load(self.pick(numbers), places[0])
        return self.author.load(source, *places)

    def expression(self, shape: tuple[int, ...], indices: list[Value], dtype: str) -> Value:
        value = self.operand(shape, indices, dtype)
        for _ in range(self.draw(st.integers(0, 2))):
            op_type = self.pick([arith.AddOp, arith.SubOp, arith.MulOp, arith.MaxOp, arith.MinOp])
            value = self.author.binary(op_type, value, self.operand(shape, indices, dtype))
        return value

    # Steps

    def elementwise(self) -> None:
        author, target = self.author, self.any_tile()
        shape = target.type.static_shape
        # A new target, so that no iteration reads what another one writes.
        fresh = author.filled(0, shape, target.dtype, self.scope(), f"t{len(self.tiles)}")
        with author.parallel(*shape) as indices:
            form = self.pick(["plain", "plain", "if", "choose"])
            condition = lambda: author.cmp(
                self.pick(["lt", "ge", "ne"]), self.pick(indices), self.pick([1, 2, max(shape) // 2])
            )
            if form == "if":
                with author.when(condition()):
                    author.store(self.expression(shape, indices, target.dtype), fresh, *indices)
            elif form == "choose":
                branch = lambda: self.expression(shape, indices, target.dtype)
                author.store(author.choose(condition(), branch, branch), fresh, *indices)
            else:
                author.store(self.expression(shape, indices, target.dtype), fresh, *indices)
        self.tiles.append(fresh)

    def in_place(self) -> None:
        author, target = self.author, self.any_tile()
        with author.parallel(*target.type.static_shape) as indices:
            other = author.constant(self.pick([1, 2, 3]), target.dtype)
            made = author.binary(self.pick([arith.AddOp, arith.MulOp]), author.load(target, *indices), other)
            author.store(made, target, *indices)

    def reduction(self) -> None:
        author, source = self.author, self.any_tile(rank=2)
        axis = self.pick([0, 1])
        kinds = ["sum", "max", "min", "absmax", "abssum"]
        kind = self.pick([*kinds, "or", "xor"] if is_integer(source.dtype) else kinds)
        shape = source.type.static_shape
        kept = self.chance()
        reduced = tuple(size for dim, size in enumerate(shape) if dim != axis)
        if kept:
            reduced = tuple(1 if dim == axis else size for dim, size in enumerate(shape))
        target = author.filled(self.pick([0, 1]), reduced, source.dtype, name=f"t{len(self.tiles)}")
        author.reduce(source, target, kind, axis, clear=self.chance())
        self.tiles.append(target)

    def scan(self) -> None:
        source = self.any_tile(rank=2)
        kind, axis = self.pick(["sum", "max"]), self.pick([0, 1])
        self.author.emit(tile.ScanOp(source, source, kind=kind, axis=axis, reverse=self.chance()))

    def matmul(self) -> None:
        author = self.author
        m, n = self.tile_shape if len(self.tile_shape) == 2 else (4, 3)
        k, trans_a, trans_b = self.draw(SIZES), self.chance(), self.chance()
        dtype = self.pick(["float16", "float32", "int8"])
        a = self.make(dtype, (k, m) if trans_a else (m, k))
        b = self.make(dtype, (n, k) if trans_b else (k, n))
        c = author.filled(0, (m, n), "int32" if dtype == "int8" else "float32", name=f"t{len(self.tiles)}")
        author.gemm(a, b, c, trans_a=trans_a, trans_b=trans_b, clear=self.chance())
        self.tiles.append(c)

    def loop(self) -> None:
        """Accumulates over tiles copied in, or repeats a step."""
        author, shape = self.author, self.tile_shape
        sources = [each for each in self.inputs if len(each.type.shape) == len(shape)]
        acc = author.filled(0, shape, "float32", name=f"t{len(self.tiles)}")
        bounds = self.pick([(0, 3, 1), (2, -1, -1), (0, 0, 1), (1, 6, 2)])
        known = list(self.tiles)
        with author.loop(*bounds, num_stages=self.pick([0, 2])) as step:
            if sources:
                source = self.pick(sources)
                staged = author.alloc(shape, source.dtype, "shared", "staged")
                at = [self.offset(axis, size) for axis, size in enumerate(shape)]
                at[-1] = author.add(at[-1], author.mul(step, shape[-1]))
                author.copy(source, staged, at=at)
                with author.parallel(*shape) as indices:
                    element = author.cast(author.load(staged, *indices), "float32")
                    author.store(author.add(author.load(acc, *indices), element), acc, *indices)
            else:
                with author.parallel(*shape) as indices:
                    element = author.cast(step, "float32")
                    author.store(author.add(author.load(acc, *indices), element), acc, *indices)
            if self.chance():
                self.step(nested=True)
        self.tiles = [*known, acc]  # what the loop made is not visible behind it

    def local(self) -> None:
        """A mutable scalar, changed under a condition, then used everywhere."""
        author, target = self.author, self.any_tile()
        variable = author.filled(1, (1,), target.dtype, "local", "variable")
        with author.when(author.cmp(self.pick(["eq", "gt"]), self.blocks[0], 0)):
            author.store(author.constant(3, target.dtype), variable, 0)
        with author.parallel(*target.type.static_shape) as indices:
            made = author.add(author.load(target, *indices), author.load(variable, 0))
            author.store(made, target, *indices)

    def step(self, nested: bool = False) -> None:
        steps = [self.elementwise, self.elementwise, self.in_place, self.reduction, self.matmul, self.local, self.make]
        if len(self.tile_shape) == 1:
            steps = [self.elementwise, self.elementwise, self.in_place, self.local, self.make, self.matmul]
        else:
            steps.append(self.scan)
        if not nested:
            steps += [self.loop, self.loop]
        self.pick(steps)()

    def write(self, out: Value) -> None:
        """The last step: a tile to global memory, by a copy, element by element or atomically."""
        author = self.author
        fitting = [each for each in self.tiles if each.type.static_shape == self.tile_shape]
        source = self.pick(fitting) if fitting else self.make()
        at = [self.offset(axis, size) for axis, size in enumerate(self.tile_shape)]
        how = self.pick(["copy", "copy", "store", "atomic"])
        if how == "copy":
            author.copy(source, out, to=at)
            return
        with author.parallel(*self.tile_shape) as indices:
            places = [author.add(start, index) for start, index in zip(at, indices, strict=True)]
            value = author.cast(author.load(source, *indices), out.dtype)
            if how == "store":
                author.store(value, out, *places)
            else:
                author.atomic(self.pick(["add", "max"]), value, out, *places)


@st.composite
def programs(draw: Any, *, max_steps: int = 4) -> tile.FuncOp:
    """Random valid programs of buffer level: one or two kernels, ragged and shifted tiles, dynamic sizes."""
    author = Author("random")
    rank = draw(st.sampled_from([2, 2, 1]))
    tile_shape = tuple(draw(SIZES) for _ in range(rank))
    dynamic = draw(st.booleans())
    sizes: tuple[Dim, ...] = tuple(draw(st.integers(1, 19)) for _ in range(rank))
    names = ("M", "N")[:rank]
    writer = _Draw(draw, author)
    writer.tile_shape = tile_shape
    for number in range(draw(st.integers(1, 3))):
        shape = names if dynamic else sizes
        made = author.parameter(f"A{number}", shape, draw(st.sampled_from(DATA_TYPES)))
        writer.inputs.append(made)
    if draw(st.booleans()):
        writer.inputs.append(author.parameter("I", (draw(st.integers(1, 19)),), "int32"))
    kernels = draw(st.sampled_from([1, 1, 2]))
    for number in range(kernels):
        shape = names if dynamic else sizes
        dtype = draw(st.sampled_from(["float32", "float32", "int32"]))
        writer.outputs.append(author.parameter(f"O{number}", shape, dtype, output=True))
    extents: list[Index] = list(sizes)  # type: ignore[arg-type]
    if dynamic:
        extents = [author.symbol(name, f"A0.{axis}") for axis, name in enumerate(names)]
    for out in writer.outputs:
        grid = [author.ceildiv(extent, size) for extent, size in zip(extents, tile_shape, strict=True)]
        writer.tiles = []
        with author.kernel(*grid) as writer.blocks:
            writer.make()
            for _ in range(draw(st.integers(0, max_steps))):
                writer.step()
            writer.write(out)
        writer.inputs.append(out)  # the next kernel may read it
    return author.finish()
