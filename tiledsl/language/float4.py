"""float4_e2m1fn: a sign, two bits of exponent and one of fraction (OCP Microscaling Formats specification, 1.0).

A tensor in global memory has two elements in each uint8, the first of them in the lower bits. A tile on the chip has
one in each uint8. In the IR there are only the uint8; a value of an element is a float16, which holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.analysis.linear import Factors, LinearForm
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.core import Value
from tiledsl.ir.types import BufferType
from tiledsl.language.buffer import Buffer, Reference
from tiledsl.language.dtypes import DTYPES, FLOAT4, DType
from tiledsl.language.expression import (
    Expr,
    Scalar,
    as_value,
    binary,
    bitcast,
    cast,
    compare,
    context,
    describe,
    is_number,
    plain,
    select,
    unary,
)
from tiledsl.language.linear import linear

if TYPE_CHECKING:
    from tiledsl.language.context import TileLoop

_TWICE = 0xC8643210 - (1 << 32)  # four bits for each code without sign: twice its value
# Between neighbours, and whether what lies half way belongs to the upper one, whose fraction is even.
_BOUNDS = ((0.25, "gt"), (0.75, "ge"), (1.25, "gt"), (1.75, "ge"), (2.5, "gt"), (3.5, "ge"), (5.0, "gt"))


def decoded(code: Any) -> Any:
    """The float16 that a code, an integer from 0 to 15, is."""
    bits = cast(code, "int32")
    twice = binary(
        "and", binary("shr", Scalar(as_value(_TWICE, "int32")), binary("mul", binary("and", bits, 7), 4)), 15
    )
    half = select(compare("lt", bits, 8), 0.5, -0.5)
    return binary("mul", cast(twice, "float16"), cast(half, "float16"))


def encoded(x: Any) -> Any:
    """The code, a uint8 from 0 to 15, of the nearest element: of two, the even one; 6 at most, as for NaN."""
    if is_number(x):
        x = float(x)
    number = Scalar(as_value(x, "float32"))
    size = select(compare("lt", number, 0), unary("neg", number), number)
    code: Any = 0
    for bound, predicate in _BOUNDS:
        code = binary("add", code, cast(compare(predicate, size, bound), "int32"))
    sign = binary("and", binary("shr", bitcast(number, "int32"), 28), 8)
    code = select(compare("ne", number, number), 7, binary("or", code, sign))
    return cast(code, "uint8")


def rounded(x: Any) -> Any:
    """A value rounded to an element of this type, as a float16."""
    return decoded(encoded(x))


class Float4Buffer:
    """A buffer of float4_e2m1fn; `held` is the buffer of uint8 that has its elements."""

    __slots__ = ("held",)

    def __init__(self, held: Buffer) -> None:
        self.held = held

    @property
    def is_packed(self) -> bool:
        return self.held.scope() == "global"

    @property
    def shape(self) -> tuple[Any, ...]:
        *outer, last = self.held.shape
        return (*outer, last * 2 if self.is_packed else last)

    @property
    def dtype(self) -> DType:
        return FLOAT4

    @property
    def ndim(self) -> int:
        return self.held.ndim

    @property
    def name(self) -> str:
        return self.held.name

    @property
    def type(self) -> str:
        return f"float4_e2m1fn of shape {self.shape}"

    @property
    def described(self) -> str:
        """What it is, for a message about a wrong argument."""
        return f"{self.name}, a buffer of float4_e2m1fn (T.copy it to a tile of float16)"

    def scope(self) -> str:
        return self.held.scope()

    def __getitem__(self, index: Any) -> Float4Reference:
        return Float4Reference(self, index if isinstance(index, tuple) else (index,))

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].store(value)

    def __bool__(self) -> bool:
        raise TileError(f"the truth value of buffer {self.name} is not defined; index one element", code="whole-tile")

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type}>"


class Float4Reference(Expr):
    """`buffer[indices]`: one element, whose value is a float16, or a region."""

    __slots__ = ("buffer", "places")

    def __init__(self, buffer: Float4Buffer, indices: tuple[Any, ...]) -> None:
        self.buffer = buffer
        self.places = Reference(buffer, indices)  # type: ignore[arg-type]  # asks for shape, name and scope alone

    @property
    def is_region(self) -> bool:
        return self.places.is_region

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def dtype(self) -> DType:
        return DTYPES["float16"]

    def held(self) -> Reference:
        """The same place among the uint8. Raises TileError for half of one."""
        places = self.places
        indices: list[Any] = []
        for axis, (offset, extent, end) in enumerate(zip(places.offsets, places.extents, places.ends, strict=True)):
            if self.buffer.is_packed and axis == self.buffer.ndim - 1:
                offset, end = self._halved(offset), None if extent is None else self._halved(end)
            indices.append(offset if extent is None else slice(offset, end))
        return self.buffer.held[tuple(indices)]

    def _halved(self, index: Any) -> Any:
        if is_number(index):
            half, rest = divmod(int(index), 2)
            if not rest:
                return half
        else:
            form = linear(index)
            if not any(coefficient % 2 for coefficient in form.terms.values()):
                return _total({factors: coefficient // 2 for factors, coefficient in form.terms.items()}, {})
        raise TileError(
            f"{self.name} has two elements of float4_e2m1fn in a byte: a part of it begins and ends at even places",
            notes=["read single elements in T.Parallel"],
        )

    def value(self) -> Value:
        if self.is_region:
            raise TileError(f"a slice of {self.name} is used as a number; index one element, or T.copy it to a tile")
        if not self.buffer.is_packed:
            return as_value(decoded(self.buffer.held[tuple(self.places.offsets)]))
        *outer, last = self.places.offsets
        byte = cast(self.buffer.held[(*outer, last // 2)], "int32")
        return as_value(decoded(binary("and", binary("shr", byte, (last % 2) * 4), 15)))

    def store(self, value: Any) -> None:
        """Store a value, rounded to an element. TileError for half of a byte of a tensor, which no loop completes."""
        if self.is_region:
            fill_float4(self, value)
            return
        if self.buffer.is_packed:
            _store_in_pairs(self, value)
            return
        self.buffer.held[tuple(self.places.offsets)].store(encoded(value))

    def __repr__(self) -> str:
        return f"<{self.name}[{', '.join(map(str, self.places.offsets))}]>"


def is_float4(x: Any) -> bool:
    return isinstance(x, (Float4Buffer, Float4Reference))


def packed_shape(what: str, shape: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of the uint8 that hold a tensor of this shape."""
    *outer, last = shape if shape else (1,)
    if not isinstance(last, int) or last % 2:
        raise TileError(
            f"{what}: the last dimension of a tensor of float4_e2m1fn is {describe(plain(last))}; it is even and "
            "constant, for two elements lie in a byte"
        )
    return (*outer, last // 2)


def packed_strides(what: str, strides: Sequence[int | str]) -> tuple[int | str, ...]:
    """The strides of the uint8 that hold a tensor of these strides; one that is not known counts bytes, as torch does.

    Raises TileError for rows that do not begin with a byte, and for elements that do not follow each other.
    """
    *outer, last = strides
    odd = [each for each in outer if isinstance(each, int) and each % 2]
    if last != 1 or odd:
        raise TileError(
            f"{what}: a tensor of float4_e2m1fn has the strides {tuple(strides)}; the last is 1 and the others are "
            "even, for two elements lie in a byte"
        )
    return (*(each // 2 if isinstance(each, int) else each for each in outer), 1)


def fill_float4(target: Float4Buffer | Float4Reference, value: Any) -> None:
    """Every element of a tile, or of a part of one, becomes `value`."""
    place = target.held if isinstance(target, Float4Buffer) else target.held()
    code = encoded(value)
    number = constant_of(as_value(code))
    if place_scope(target) == "global":
        code = code if number is None else int(number)
        code = binary("or", code, binary("shl", code, 4))
    context("T.fill").fill(place, code)  # type: ignore[arg-type]


def place_scope(x: Any) -> str:
    return str((x.buffer if isinstance(x, (Reference, Float4Reference)) else x).scope())


def copy_float4(src: Any, dst: Any, copy: Callable[..., None]) -> None:
    """T.copy where a side is of float4_e2m1fn; `copy` does so for what is not."""
    from_4, to_4 = is_float4(src), is_float4(dst)
    scopes = place_scope(src), place_scope(dst)
    if from_4 and to_4 and (scopes[0] == "global") == (scopes[1] == "global"):
        copy(_held(src), _held(dst))
    elif from_4 and scopes[0] == "global":
        _unpack(src, dst, copy)
    elif to_4 and scopes[1] == "global":
        _pack(src, dst, copy)
    else:
        _convert(src, dst)


def _held(x: Float4Buffer | Float4Reference) -> Buffer | Reference:
    return x.held if isinstance(x, Float4Buffer) else x.held()


def _shape(what: str, x: Any) -> tuple[int, ...]:
    """The constant shape of a whole tile or of a slice of one."""
    if isinstance(x, (Reference, Float4Reference)):
        extents = (x if isinstance(x, Reference) else x.places).extents
        shape = tuple(each for each in extents if each is not None)
        if not shape or -1 in shape:
            raise TileError(f"{what}: this side is a whole tile on the chip, or a slice of constant extents")
        return shape
    return tuple(x.shape)


def _at(x: Any, point: Sequence[Any]) -> Any:
    """The element of a tile or slice at a point of its shape."""
    if not isinstance(x, (Reference, Float4Reference)):
        return x[tuple(point)]
    places = x if isinstance(x, Reference) else x.places
    rest = iter(point)
    pairs = zip(places.offsets, places.extents, strict=True)
    return x.buffer[tuple(offset if extent is None else next(rest) + offset for offset, extent in pairs)]


def _bytes(name: str, shape: Sequence[int]) -> Buffer:
    """A tile for what the elements of a tile of this shape are in global memory."""
    *outer, last = shape
    if last % 2:
        raise TileError(f"T.copy: the last dimension of {name} is {last}; it is even, for two elements lie in a byte")
    ctx = context("T.copy")
    return Buffer(ctx.alloc(BufferType((*outer, last // 2), "uint8", "fragment"), "T.copy"))


def _unpack(src: Any, dst: Any, copy: Callable[..., None]) -> None:
    """Global memory to a tile: the bytes first, then both elements of each."""
    shape = _shape("T.copy", dst)
    bytes = _bytes(dst.name, shape)
    copy(_held(src), bytes)

    def body(at: list[Any]) -> None:
        *rows, column = at
        byte = cast(bytes[(*rows, column // 2)], "int32")
        code = binary("and", binary("shr", byte, (column % 2) * 4), 15)
        place = _at(dst, at)
        if isinstance(place, Float4Reference):
            place.held().store(cast(code, "uint8"))
        else:
            place.store(decoded(code))

    context("T.copy").parallel(shape, body)


def _pack(src: Any, dst: Any, copy: Callable[..., None]) -> None:
    """A tile to global memory: both elements of each byte are combined."""
    shape = _shape("T.copy", src)
    bytes = _bytes(src.name, shape)
    ctx = context("T.copy")
    bytes[tuple(slice(None) for _ in shape)].store(0)

    def body(at: list[Any]) -> None:
        *rows, column = at
        place = _at(src, at)
        code = cast(place.held() if isinstance(place, Float4Reference) else encoded(place), "int32")
        byte = bytes[(*rows, column // 2)]
        byte.store(binary("or", byte, cast(binary("shl", code, (column % 2) * 4), "uint8")))

    ctx.parallel(shape, body)
    copy(bytes, _held(dst))


def _store_in_pairs(place: Float4Reference, value: Any) -> None:
    """An element of a tensor, written by every iteration of a T.Parallel of which each two next to each other complete
    a byte: the bytes are put together on the chip, and stored behind the loop."""
    ctx = context("a store")
    loop = ctx.loops[-1] if ctx.loops else None
    forms = [linear(each) for each in place.places.offsets]
    axis = None if loop is None or loop.indices[0].value().owner is not ctx.builder.region else _paired(loop, forms)
    if loop is None or axis is None:
        raise TileError(
            f"{place.name} has two elements of float4_e2m1fn in a byte, of which one cannot be written alone",
            notes=[
                "write a tile (T.alloc_fragment or T.alloc_shared), and T.copy it to the tensor",
                "or write two neighbours in one T.Parallel, without a condition, the first of them at an even place",
            ],
        )
    sizes = [size // 2 if number == axis else size for number, size in enumerate(loop.extents)]
    bytes = Buffer(ctx.alloc(BufferType(tuple(sizes), "uint8", "fragment"), "a store"))
    inner, ctx.builder = ctx.builder, loop.before
    bytes[tuple(slice(None) for _ in sizes)].store(0)
    ctx.builder = inner
    at: list[Any] = [index // 2 if number == axis else index for number, index in enumerate(loop.indices)]
    code = binary("shl", cast(encoded(value), "int32"), (loop.indices[axis] % 2) * 4)
    bytes[tuple(at)].store(binary("or", bytes[tuple(at)], cast(code, "uint8")))

    def write(at: list[Any]) -> None:
        taken = {index.value(): each for index, each in zip(loop.indices, at, strict=True)}
        *outer, last = forms
        half = {factors: number if paired in factors else number // 2 for factors, number in last.terms.items()}
        place.buffer.held[(*(_total(form.terms, taken) for form in outer), _total(half, taken))].store(bytes[tuple(at)])

    paired = loop.indices[axis].value()
    loop.after.append(lambda: ctx.parallel(sizes, write))


def _paired(loop: TileLoop, forms: Sequence[LinearForm]) -> int | None:
    """The dimension of a loop whose iterations 2 n and 2 n + 1 write both elements of one byte; None for none."""
    own = [index.value() for index in loop.indices]
    for factor in (each for form in forms for factors in form.terms for each in factors):
        made_here = factor.op is not None and factor.op.parent is own[0].owner
        if made_here or any(form.slack for form in forms):
            return None
    odd = [factors for factors, number in forms[-1].terms.items() if number % 2]
    if len(odd) != 1 or len(odd[0]) != 1 or odd[0][0] not in own or forms[-1].terms[odd[0]] != 1:
        return None
    axis = own.index(odd[0][0])
    alone = all(own[axis] not in factors for form in forms for factors in form.terms if factors is not odd[0])
    return axis if alone and loop.extents[axis] % 2 == 0 else None


def _total(terms: Mapping[Factors, int], taken: Mapping[Value, Any]) -> Any:
    """The sum of these terms, with other values for some."""
    total: Any = 0
    for factors, number in terms.items():
        term: Any = number
        for factor in factors:
            term = taken.get(factor, Scalar(factor)) * term
        total = term + total
    return total


def _convert(src: Any, dst: Any) -> None:
    """Between tiles, or a tile and a tensor of another type."""
    side = src if place_scope(dst) == "global" else dst
    shape = _shape("T.copy", side)
    other = dst if side is src else src
    if isinstance(other, (Buffer, Float4Buffer)) and place_scope(other) != "global" and tuple(other.shape) != shape:
        raise TileError(f"T.copy: {src.name} and {dst.name} have different shapes")
    context("T.copy").parallel(shape, lambda at: _at(dst, at).store(_at(src, at)))
