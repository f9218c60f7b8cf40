"""Buffers, places in them, and how they are declared."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

from tiledsl.dialects import tile
from tiledsl.errors import TileError, user_loc
from tiledsl.ir.core import Value
from tiledsl.ir.types import BufferType
from tiledsl.language.dtypes import DTYPES, DType, of_elements
from tiledsl.language.expression import (
    Expr,
    Scalar,
    Symbol,
    active,
    as_index,
    as_value,
    context,
    describe,
    is_number,
    plain,
)
from tiledsl.language.linear import difference
from tiledsl.location import Loc

__all__ = ["Buffer", "FragmentBuffer", "LocalBuffer", "SharedBuffer", "StridedTensor", "Tensor"]


class _BufferClass(type):
    """`T.Buffer(shape, dtype)` declares a parameter, as T.Tensor does; buffers themselves are made from IR values."""

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if arguments and isinstance(arguments[0], Value):
            return super().__call__(*arguments, **keywords)
        return TensorSpec(*arguments, **keywords)


class Buffer(metaclass=_BufferClass):
    """Memory of a program: a parameter, a workspace, or an on-chip buffer. `buffer[i, j]` is a place in it.

    Indices are integers, scalars and slices with a step of 1; `shape`, `dtype`, `ndim` and `scope()` describe it.
    `T.Buffer(shape, dtype)` is the declaration of a parameter, another name for `T.Tensor(shape, dtype)`. Raises
    TileError for more indices than dimensions, and for an index that is a float.

    Example:
        @T.prim_func
        def facts(X: T.Buffer((2, 3), "float16"), Y: T.Buffer((2,), "int32")):
            with T.Kernel(1):
                Y[0] = X.shape[1]
                Y[1] = X.dtype.bits

        x = torch.zeros(2, 3, dtype=torch.float16)
        assert tiledsl.compile(facts, out_idx=-1, target="interpret")(x).tolist() == [3, 16]
    """

    __slots__ = ("_value", "data_of")

    def __init__(self, value: Value) -> None:
        self._value = value

    @property
    def value(self) -> Value:
        return self._value

    @property
    def described(self) -> str:
        """What it is, for a message about a wrong argument."""
        return f"the whole buffer {self.name} (index it: {self.name}[...])"

    @property
    def type(self) -> BufferType:
        return self._value.type  # type: ignore[return-value]

    @property
    def name(self) -> str:
        return self._value.name or "buffer"

    @property
    def shape(self) -> tuple[Any, ...]:
        """Ints, and symbols for dynamic dimensions."""
        dims = self.type.shape
        return tuple(Symbol(dim) if isinstance(dim, str) else dim for dim in dims) if str in map(type, dims) else dims

    @property
    def dtype(self) -> DType:
        return DTYPES[self._value.type.dtype]

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def data(self) -> Buffer:
        """What `T.Tensor(shape, dtype, buffer.data)` takes to see the same memory in another shape."""
        return self

    def scope(self) -> str:
        return self.type.scope

    def __getitem__(self, index: Any) -> Reference:
        return Reference(self, index if isinstance(index, tuple) else (index,))

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].store(value)

    def __len__(self) -> int:
        raise TileError(f"len({self.name}): write {self.name}.shape[0]")

    def __iter__(self) -> Any:
        raise TileError(f"{self.name} cannot be iterated; loop over T.serial({self.name}.shape[0]) and index it")

    def __bool__(self) -> bool:
        raise TileError(f"the truth value of buffer {self.name} is not defined; index one element", code="whole-tile")

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type}>"


class Reference(Expr):
    """`buffer[indices]`: one element, or a region where an index is a slice. As a number it is loaded."""

    __slots__ = ("buffer", "ends", "extents", "given", "offsets")

    def __init__(self, buffer: Buffer, indices: tuple[Any, ...]) -> None:
        shape = buffer.shape
        kinds = tuple(map(type, indices))
        if EllipsisType in kinds:
            at = kinds.index(EllipsisType)
            fill = len(shape) - len(indices) + 1
            indices = (*indices[:at], *[slice(None)] * fill, *indices[at + 1 :])
        if len(indices) > len(shape):
            raise TileError(
                f"{len(indices)} indices for {buffer.name}, which has {len(shape)} dimensions: {buffer.type}"
            )
        self.buffer = buffer
        self.given = len(indices)  # how many dimensions have one; the others are whole
        self.offsets: list[Any] = []
        # For each dimension: None at a single index, else the slice's extent (an int, or -1 where it is dynamic).
        self.extents: list[int | None] = []
        self.ends: list[Any] = []  # where slices end
        for axis, dim in enumerate(shape):
            index = plain(indices[axis]) if axis < len(indices) else slice(None)
            if type(index) is slice:
                self._slice(axis, index, dim)
            else:
                self._element(axis, index, dim)

    def _element(self, axis: int, index: Any, dim: Any) -> None:
        self._check_integer("index", axis, index)
        if isinstance(index, int):
            index = index if index >= 0 else dim + index
            if isinstance(index, int) and isinstance(dim, int) and not 0 <= index < dim:
                raise TileError(
                    f"index {index} is outside dimension {axis} of {self.buffer.name}, which has {dim}",
                    code="index-outside",
                )
        self.offsets.append(index)
        self.extents.append(None)
        self.ends.append(None)

    def _check_integer(self, what: str, axis: int, index: Any) -> None:
        if isinstance(index, Expr):
            if index.dtype.is_float():
                raise TileError(
                    f"{what} {axis} of {self.buffer.name} is {index.dtype}; convert it with T.cast(x, 'int32')"
                )
        elif isinstance(index, bool) or not isinstance(index, int):
            raise TileError(f"{what} {axis} of {self.buffer.name} is {describe(index)}, not an integer")

    def _slice(self, axis: int, index: slice, dim: Any) -> None:
        if plain(index.step) not in (None, 1):
            raise TileError(f"slices of {self.buffer.name} have step 1; a strided access goes in a T.Parallel loop")
        lower, upper = plain(index.start), plain(index.stop)
        lower = 0 if lower is None else lower
        upper = dim if upper is None else upper
        self._check_integer("the start of slice", axis, lower)
        self._check_integer("the end of slice", axis, upper)
        if isinstance(lower, (Var, Reference)):  # read once: the slice stays where it is when the variable changes
            lower = Scalar(lower.value())
        lower = dim + lower if isinstance(lower, int) and lower < 0 else lower
        upper = dim + upper if isinstance(upper, int) and upper < 0 else upper
        extent = difference(upper, lower)
        if extent is not None and extent < 0:
            raise TileError(f"slice {axis} of {self.buffer.name} has the extent {extent}")
        on_chip = self.buffer.scope() != "global"
        if extent is not None and isinstance(dim, int) and isinstance(lower, int) and on_chip and lower + extent > dim:
            raise TileError(
                f"slice {lower}:{lower + extent} exceeds dimension {axis} of {self.buffer.name}, which has {dim}",
                code="index-outside",
            )
        self.offsets.append(lower)
        self.extents.append(-1 if extent is None else extent)
        self.ends.append(upper)

    @property
    def is_region(self) -> bool:
        return self.extents.count(None) < len(self.extents)

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def name(self) -> str:
        return self.buffer.name

    def indices(self) -> list[Value]:
        """The offsets as IR values, int32 or int64."""
        return [as_index(offset) for offset in self.offsets]

    def value(self) -> Value:
        if self.is_region:
            raise TileError(
                f"a slice of {self.buffer.name} is used as a number; index one element, or T.copy the slice to a "
                "fragment"
            )
        ctx = context("a load")
        outside = ctx.safe_value(self.buffer)
        other = as_value(outside, str(self.buffer.dtype)) if outside else None
        op = ctx.builder.insert(tile.LoadOp(self.buffer.value, self.indices(), None, other))
        return op.result

    def store(self, value: Any) -> None:
        """`buffer[indices] = value`, converted to the buffer's element type; on a region, every element."""
        builder = context("a store").builder
        if self.is_region:
            context("a store").fill(self, value)
            return
        if isinstance(value, Buffer):
            raise TileError(
                f"a whole buffer cannot be stored in an element of {self.buffer.name}; use T.copy", code="whole-tile"
            )
        stored = as_value(value, self.buffer.dtype)
        context("a store").note_truncation(value, stored, self.buffer)
        builder.insert(tile.StoreOp(stored, self.buffer.value, self.indices()))

    def __repr__(self) -> str:
        return f"<{self.buffer.name}[{', '.join(map(str, self.offsets))}]>"


class Var(Expr):
    """A mutable scalar (T.alloc_var): assigning to its name stores, reading it loads."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Value) -> None:
        self.buffer = buffer

    @property
    def dtype(self) -> DType:
        return DTYPES[self.buffer.type.dtype]

    def value(self) -> Value:
        return context("a variable").builder.insert(tile.LoadOp(self.buffer, [])).result

    def store(self, value: Any) -> None:
        context("a variable").builder.insert(tile.StoreOp(as_value(value, self.dtype), self.buffer, []))

    def __getitem__(self, index: Any) -> Var:
        if plain(index) != 0:
            raise TileError(f"{self.buffer.name} is a scalar variable; its only index is 0")
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].store(value)

    def __repr__(self) -> str:
        return f"<variable {self.buffer.name}: {self.buffer.dtype}>"


class TensorSpec:
    """The declaration of a tensor parameter: shape (ints, symbols and arithmetic on them), dtype, strides."""

    __slots__ = ("dtype", "scope", "shape", "strides")

    def __init__(self, shape: Any, dtype: Any = "float32", strides: Any = None, scope: str = "global") -> None:
        shape = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
        self.shape = tuple(map(_dimension, map(plain, shape), range(len(shape))))
        try:
            self.dtype = of_elements(dtype)
        except TileError as error:
            error.loc = error.loc or _caller()
            raise
        self.strides = None if strides is None else tuple(plain(stride) for stride in strides)
        for axis, stride in enumerate(self.strides or ()):
            if isinstance(stride, int) and stride < 0:
                message = f"stride {axis} of a tensor is {stride}; torch's tensors have none below 0"
                raise TileError(message, _caller())
        self.scope = scope

    def __repr__(self) -> str:
        return f"T.Tensor(({', '.join(map(str, self.shape))}), {str(self.dtype)!r})"


def _caller() -> Loc | None:
    """The user's line, for errors in a declaration that Python evaluates; inside a program its tree has a place."""
    return user_loc() if active.get() is None else None


def _dimension(dim: Any, axis: int) -> Any:
    if type(dim) is int and dim >= 0:
        return dim
    if isinstance(dim, float) and dim.is_integer():
        dim = int(dim)
    if isinstance(dim, str):
        dim = Symbol(dim)
    if isinstance(dim, bool) or not isinstance(dim, (int, Expr)):
        raise TileError(
            f"dimension {axis} of a tensor is {describe(dim)}, not an integer or a T.dynamic symbol", _caller()
        )
    if isinstance(dim, int) and dim < 0:
        raise TileError(f"dimension {axis} of a tensor is {dim}; dimensions are at least 0", _caller())
    return dim


class _TensorMaker:
    """A parameter that is a tensor: `T.Tensor(shape, dtype)`, also in square brackets.

    Dimensions are integers of at least 0, T.dynamic symbols and arithmetic on them; `dtype` is any element type,
    float32 if left out. Each call checks shape, type and strides of what it gets. T.SharedBuffer, T.FragmentBuffer and
    T.LocalBuffer annotate a macro's parameters. In a program `T.Tensor(shape, dtype, buffer.data)` is T.view of a
    buffer. Raises TileError for other dimensions and types.

    Example:
        M = T.dynamic("M")

        @T.prim_func
        def doubled(X: T.Tensor((M, 4), "float32"), Y: T.Tensor((M, 4), "float32")):
            with T.Kernel(M) as row:
                for i in T.Parallel(4):
                    Y[row, i] = 2 * X[row, i]

        assert tiledsl.compile(doubled, out_idx=-1, target="interpret")(torch.ones(3, 4)).sum() == 24
    """

    def __init__(self, scope: str = "global") -> None:
        self.scope = scope

    def __call__(self, shape: Any, dtype: Any = "float32", data: Any = None, scope: str | None = None) -> Any:
        if data is not None:
            return context("T.Tensor").view(data, shape, dtype)
        return TensorSpec(shape, dtype, scope=scope or self.scope)

    def __getitem__(self, key: Any) -> TensorSpec:
        key = key if isinstance(key, tuple) else (key,)
        if len(key) == 2 and isinstance(key[0], (tuple, list)):
            return TensorSpec(key[0], key[1], scope=self.scope)
        if not is_number(key[-1]) and not isinstance(key[-1], Expr):
            return TensorSpec(key[:-1], key[-1], scope=self.scope)
        return TensorSpec(key, scope=self.scope)


if TYPE_CHECKING:  # annotations of parameters, of which type checkers then ask nothing

    class Tensor(Any):  # type: ignore[misc]
        def __new__(cls, shape: Any, dtype: Any = "float32", data: Any = None, scope: str | None = None) -> Any: ...
        def __class_getitem__(cls, key: Any) -> Any: ...

    class SharedBuffer(Tensor): ...

    class FragmentBuffer(Tensor): ...

    class LocalBuffer(Tensor): ...

else:
    Tensor = _TensorMaker()
    SharedBuffer = _TensorMaker("shared")
    FragmentBuffer = _TensorMaker("fragment")
    LocalBuffer = _TensorMaker("local")


class _StridedTensorMaker:
    """A parameter with strides: `T.StridedTensor(shape, strides, dtype)`, also in square brackets.

    Strides are integers, T.dynamic symbols and arithmetic on them, in elements, outermost first; shape and dtype are
    T.Tensor's. Raises TileError for a stride below 0, and where T.Tensor does.

    Example:
        @T.prim_func
        def column(X: T.StridedTensor((4,), (3,), "int32"), Y: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                T.copy(X, Y)

        x = torch.arange(12, dtype=torch.int32).reshape(4, 3)
        assert tiledsl.compile(column, out_idx=-1, target="interpret")(x[:, 0]).tolist() == [0, 3, 6, 9]
    """

    def __call__(self, shape: Any, strides: Any, dtype: Any = "float32") -> TensorSpec:
        return TensorSpec(shape, dtype, strides)

    def __getitem__(self, key: Any) -> TensorSpec:
        if not isinstance(key, tuple) or len(key) not in (2, 3):
            raise TileError("T.StridedTensor[shape, strides, dtype] takes a shape, strides and a dtype", _caller())
        return self(*key)


StridedTensor = _StridedTensorMaker()
