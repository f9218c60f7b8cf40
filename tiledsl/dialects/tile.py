"""Programs, buffers and memory.

A program is one `tile.func`: its body runs on the host (scalar arithmetic for grids, workspaces) and holds kernels in
launch order. Inside a kernel, buffers on chip (shared, fragment, local) start undefined.

First come operations on whole buffers (copy, fill, gemm, reduce, scan) and `tile.parallel`, whose body is written for
one element. `lower-tile-ops` and `vectorize-parallel` turn them into reads, writes and indexed loads and stores of
whole tiles; `promote-buffers` then removes on-chip buffers, so that only accesses to global buffers are left.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from math import prod
from typing import Any

from tiledsl.dialects.tensor import REDUCTIONS, check_factors
from tiledsl.formulas import checked, names_in
from tiledsl.ir.core import Effect, Operation, Value
from tiledsl.ir.fields import attr, operand, operands, optional, region, result
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.types import ELEMENTS, INT32, BufferType, ScalarType, TensorType, Type, broadcast_shapes, with_shape
from tiledsl.launch_options import LAUNCH_OPTIONS

# What may stand in emitted text as it is: IR can come from a file, and names and words from anywhere.
COMPUTED = "="  # the source of a symbol that only its formula tells
_SOURCE = re.compile(r"(\w+)\.(?:stride)?[0-9]+(?:[+-][0-9]+)?(?://[0-9]+)?")
ATOMIC_KINDS = ("add", "max", "min", "and", "or", "xor", "exchange", "cas", "load", "store")
MEMORY_ORDERS = ("relaxed", "acquire", "release", "acq_rel")
CACHE_HINTS = ("", ".ca", ".cg", ".cs", ".cv", ".wb", ".wt")
# Where blocks lie in shared memory, by what a kernel for Gluon does with them; "" is for other kernels.
EVICTION_HINTS = ("", "evict_first", "evict_last", "evict_normal", "no_allocate")


def check_name(name: Any) -> None:
    """Raise ValueError for what Python would not read as this very name."""
    if not isinstance(name, str) or not name.isidentifier() or unicodedata.normalize("NFKC", name) != name:
        raise ValueError(f"{name!r} is no name")


def check_options(options: Sequence[Any]) -> None:
    """Raise ValueError for options that are not pairs of a name and a value, or of which numbers are none."""
    for pair in options:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(f"{pair!r} is no option with its value")
        check_name(pair[0])
        if pair[0] in LAUNCH_OPTIONS and type(pair[1]) not in (int, bool, type(None)):
            raise ValueError(f"{pair[0]} is {pair[1]!r}")


class FuncOp(Operation):
    """A program. The body's arguments are its parameters (global buffers and scalars), then one int32 for each symbol.

    `symbols` names the dynamic dimensions: a BufferType's dimension may be such a name; `symbol_sources` says for each
    where the host reads it, as "parameter.axis", or COMPUTED, if by its formula. `formulas` says what symbols that are
    computed from others must be, as pairs of a symbol and a formula (formulas.py). `outputs` are the positions of
    parameters that the runtime allocates and returns, in the order returned. `returns_list`: several outputs come as a
    list (else a tuple). `packed` are the positions of parameters of uint8 in whose bytes two elements of float4 lie.

    Example: `tile.func {sym_name = "f", parameters = ("A", "n")} (%A: buffer<64*float16, global>, %n: int32) { ... }`
    """

    name = "tile.func"
    effects = Effect.REGION | Effect.ORDERED
    sym_name = attr(str)
    parameters = attr(tuple)
    symbols = attr(tuple, ())
    symbol_sources = attr(tuple, ())
    formulas = attr(tuple, ())
    outputs = attr(tuple, ())
    returns_list = attr(bool, True)
    packed = attr(tuple, ())
    body = region()

    def verify(self) -> None:
        if len(self.body.args) != len(self.parameters) + len(self.symbols):
            raise ValueError(
                f"{len(self.body.args)} arguments for {len(self.parameters)} parameters and {len(self.symbols)} symbols"
            )
        for name in (self.sym_name, *self.parameters, *self.symbols):
            check_name(name)
        for names in (self.parameters, self.symbols):
            if len(set(names)) < len(names):
                raise ValueError(f"{names} has a name twice")
        if not all(type(each) is int and 0 <= each < len(self.parameters) for each in self.outputs):
            raise ValueError(f"the outputs {self.outputs} are not positions of parameters")
        types = dict(enumerate(each.type for each in self.body.args[: len(self.parameters)]))
        if not all(getattr(types.get(each), "dtype", "") == "uint8" for each in self.packed):
            raise ValueError(f"{self.packed} are not positions of parameters of uint8")
        for name, source in zip(self.symbols, self.symbol_sources):
            if source == COMPUTED and name in dict(self.formulas):
                continue
            match = _SOURCE.fullmatch(source)
            if match is None or match[1] not in self.parameters:
                raise ValueError(f"{name} is read from {source!r}, which is no parameter's dimension")
        for name, formula in self.formulas:
            unknown = {name, *names_in(checked(formula))} - {*self.symbols, *self.parameters}
            if unknown:
                raise ValueError(
                    f"the formula of {name} has {sorted(unknown)[0]!r}, which is neither symbol nor parameter"
                )
        for value in self.body.args:
            dims = (*value.type.shape, *(value.type.strides or ())) if isinstance(value.type, BufferType) else ()
            for dim in dims:
                if isinstance(dim, str) and dim not in self.symbols:
                    raise ValueError(f"{value.type} has the dimension {dim!r}, which is no symbol")

    def symbol(self, name: str) -> Value:
        """The value of a dynamic dimension."""
        return self.body.args[len(self.parameters) + self.symbols.index(name)]


class KernelOp(Operation):
    """One launch over a grid of one to three dimensions; the body's arguments are the block indices, int32.

    Example: `tile.kernel [%gx, %gy] {threads = 256} (%bx: int32, %by: int32) { ... }`
    """

    name = "tile.kernel"
    effects = Effect.REGION | Effect.ORDERED
    grid = operands(ScalarType)
    threads = attr(int, 128)
    sym_name = attr(str, "kernel")
    options = attr(tuple, ())  # (name, value) pairs: hints such as ("swizzle", (10, "row"))
    remarks = attr(tuple, ())  # sentences for people: what a pass was asked for and could not do
    body = region()

    def verify(self) -> None:
        if not 1 <= len(self.grid) <= 3 or len(self.body.args) != len(self.grid):
            raise ValueError(f"{len(self.grid)} grid dimensions and {len(self.body.args)} block indices")
        _check_int32(*self.grid, *self.body.args)
        check_name(self.sym_name)
        check_options(self.options)

    def option(self, name: str) -> object:
        """The value of a hint, or None."""
        return dict(self.options).get(name)

    def set_option(self, name: str, value: object) -> None:
        """Set a hint; None takes it away."""
        options = {**dict(self.options), name: value}
        self.set_attribute("options", tuple(pair for pair in options.items() if pair[1] is not None))

    def add_remark(self, remark: str) -> None:
        """Add a sentence for people."""
        self.set_attribute("remarks", (*self.remarks, remark))


def kernels(root: Operation) -> list[KernelOp]:
    """The kernels of a program."""
    return of_kinds(root.nests(), KernelOp)


class AllocOp(Operation):
    """A new buffer. On the host its scope is global (a workspace), in a kernel shared, fragment or local.

    Example: `%A_shared = tile.alloc : buffer<128*64*float16, shared>`
    """

    name = "tile.alloc"
    effects = Effect.ALLOCATE
    out = result(BufferType)


class ViewOp(Operation):
    """The same memory as another shape, row-major, or as another element type; on chip that is not bool.

    Example: `%flat = tile.view %x : buffer<8192*float32, fragment>`
    """

    name = "tile.view"
    source = operand(BufferType)
    out = result(BufferType)

    def verify(self) -> None:
        a, b = buffer_type(self.source), buffer_type(self.out)
        if a.scope != b.scope or (a.dtype != b.dtype and a.scope != "global" and "bool" in (a.dtype, b.dtype)):
            raise ValueError(f"{a} cannot be seen as {b}")
        sizes = [prod(each.static_shape) * ELEMENTS[each.dtype].bits for each in (a, b) if each.is_static]
        if len(sizes) == 2 and sizes[0] != sizes[1]:
            raise ValueError(f"{a} cannot be seen as {b}")


class CopyOp(Operation):
    """Copies a tile of `shape` from one place to another, converting elements.

    Tile dimension i walks along dimension source_axes[i] of the source from source_offsets, and likewise in the target;
    the other dimensions stay at their offset. Offsets are one for each dimension, or none for all 0. In global buffers,
    what lies outside reads `safe_value` and is not written; on-chip buffers are not checked. `eviction`: of accesses to
    global memory through pointers.

    Example: `tile.copy %A[%m, %k], %A_shared {shape = (128, 64), source_axes = (0, 1), target_axes = (0, 1)}`
    """

    name = "tile.copy"
    effects = Effect.READ | Effect.WRITE
    source = operand(BufferType)
    source_offsets = operands(ScalarType)
    target = operand(BufferType)
    target_offsets = operands(ScalarType)
    shape = attr(tuple)
    source_axes = attr(tuple)
    target_axes = attr(tuple)
    safe_value = attr(float, 0.0)
    eviction = attr(str, "", EVICTION_HINTS)

    def verify(self) -> None:
        _check_extents(self.shape)
        for buffer, offsets, axes in (
            (self.source, self.source_offsets, self.source_axes),
            (self.target, self.target_offsets, self.target_axes),
        ):
            rank = len(buffer_type(buffer).shape)
            if len(axes) != len(self.shape) or len(set(axes)) != len(axes) or not all(0 <= a < rank for a in axes):
                raise ValueError(f"axes {axes} for a tile {self.shape} of {buffer.type}")
            if offsets and len(offsets) != rank:
                raise ValueError(f"{len(offsets)} offsets for {buffer.type}")
            _check_indices(offsets)


class FillOp(Operation):
    """Every element of a buffer becomes `value`. Example: `tile.fill %zero, %acc`"""

    name = "tile.fill"
    effects = Effect.WRITE
    value = operand(ScalarType)
    target = operand(BufferType)

    def verify(self) -> None:
        if self.value.dtype != self.target.dtype:
            raise ValueError(f"{self.value.dtype} into {self.target.type}")


class GemmOp(Operation):
    """`c += op(a) @ op(b)`, accumulated in c's element type; with `clear`, `c = op(a) @ op(b)`. Leading sizes are 1.

    Example: `tile.gemm %A_shared, %B_shared, %C_local {trans_b = true}`
    """

    name = "tile.gemm"
    effects = Effect.READ | Effect.WRITE
    a = operand(BufferType)
    b = operand(BufferType)
    c = operand(BufferType)
    trans_a = attr(bool, False)
    trans_b = attr(bool, False)
    clear = attr(bool, False)
    precision = attr(str, "default")
    policy = attr(str, "Square")

    def verify(self) -> None:
        (m, k), (k2, n) = (buffer_type(value).static_shape[-2:] for value in (self.a, self.b))
        m, k = (k, m) if self.trans_a else (m, k)
        k2, n = (n, k2) if self.trans_b else (k2, n)
        if k != k2 or buffer_type(self.c).static_shape[-2:] != (m, n):
            raise ValueError(f"{self.a.type}, {self.b.type} and {self.c.type} do not fit")


class ReduceOp(Operation):
    """Reduces `source` along `axis` into `target`, whose shape lacks that axis or has 1 there.

    Without `clear` the target's old value takes part.

    Example: `tile.reduce %x, %m {kind = "max", axis = 1}`
    """

    name = "tile.reduce"
    effects = Effect.READ | Effect.WRITE
    source = operand(BufferType)
    target = operand(BufferType)
    kind = attr(str, known=REDUCTIONS)
    axis = attr(int)
    clear = attr(bool, True)
    propagate_nan = attr(bool, False)

    def verify(self) -> None:
        shape, axis = buffer_type(self.source).shape, self.axis
        without, kept = shape[:axis] + shape[axis + 1 :], (*shape[:axis], 1, *shape[axis + 1 :])
        if not 0 <= axis < len(shape) or buffer_type(self.target).shape not in (without, kept, without or (1,)):
            raise ValueError(f"{self.source.type} along axis {axis} into {self.target.type}")


class ScanOp(Operation):
    """Inclusive prefix sum, max, min or prod along one axis, or a linear recurrence, see tensor.scan; `target` may be
    `source`.

    Example: `tile.scan %x, %y {kind = "sum", axis = 0}`
    """

    name = "tile.scan"
    effects = Effect.READ | Effect.WRITE
    source = operand(BufferType)
    target = operand(BufferType)
    factors = optional(BufferType)
    kind = attr(str)
    axis = attr(int)
    reverse = attr(bool, False)

    def verify(self) -> None:
        check_factors(self.kind, self.source, self.factors, self.reverse)
        if buffer_type(self.source).shape != buffer_type(self.target).shape:
            raise ValueError(f"{self.source.type} into {self.target.type}")


class SortOp(Operation):
    """The elements along one axis in order, equal ones as they were, into `target`; where each was into `indices`.

    Example: `tile.sort %x, %y, %i {axis = 0}`
    """

    name = "tile.sort"
    effects = Effect.READ | Effect.WRITE
    source = operand(BufferType)
    target = operand(BufferType)
    indices = operand(BufferType)
    axis = attr(int)
    descending = attr(bool, False)

    def verify(self) -> None:
        source, target, indices = map(buffer_type, self.operands)
        if not 0 <= self.axis < len(source.shape) or source.shape != target.shape or source.dtype != target.dtype:
            raise ValueError(f"{source} along axis {self.axis} into {target}")
        if indices.shape != source.shape or indices.dtype != "int32":
            raise ValueError(f"places of {source} in {indices}")


class ParallelOp(Operation):
    """Independent iterations over a box of constant extents; the body sees one point, as int32 indices.

    With `lockstep`, the points are the threads of the block, and do each operation of the body together. Operations on
    whole buffers are in it done once, by all; local buffers are each thread's own.

    Example: `tile.parallel {extents = (128, 64)} (%i: int32, %j: int32) { ... }`
    """

    name = "tile.parallel"
    effects = Effect.REGION | Effect.ORDERED
    extents = attr(tuple)
    lockstep = attr(bool, False)
    body = region()

    def verify(self) -> None:
        if len(self.body.args) != len(self.extents):
            raise ValueError(f"{len(self.body.args)} indices for extents {self.extents}")
        _check_extents(self.extents)
        _check_int32(*self.body.args)


class ReadOp(Operation):
    """All of an on-chip buffer as a value. Example: `%t = tile.read %A_shared : tensor<128x64xfloat16>`"""

    name = "tile.read"
    effects = Effect.READ
    buffer = operand(BufferType)
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        type = buffer_type(self.operands[0])
        return [with_shape(type.static_shape, type.dtype)]

    def verify(self) -> None:
        _whole(self.buffer, self.out)


class WriteOp(Operation):
    """Replaces all of an on-chip buffer. Example: `tile.write %t, %A_shared`"""

    name = "tile.write"
    effects = Effect.WRITE
    value = operand(ScalarType, TensorType)
    buffer = operand(BufferType)

    def verify(self) -> None:
        _whole(self.buffer, self.value)


class LoadOp(Operation):
    """Elements at indices: `out[p] = buffer[indices[0][p], indices[1][p], ...]`.

    Indices are int32 or int64, scalars or tensors that broadcast to the result's shape; one for each dimension. The
    result's shape is their common one, joined with the mask's. Where `mask` is false, `other` (0 if absent) is the
    value. In global buffers an index outside its dimension gives `other` too, until `guard-accesses` has put that check
    into the mask (`guarded`). On-chip buffers are not checked. `ring`: see load_block; these rows are no block.

    Example: `%x = tile.load %A[%rows, %columns] mask=%m : tensor<128x64xfloat16>`
    """

    name = "tile.load"
    effects = Effect.READ
    buffer = operand(BufferType)
    indices = operands(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    other = optional(ScalarType)
    guarded = attr(bool, False)
    cache = attr(str, "", CACHE_HINTS)
    eviction = attr(str, "", EVICTION_HINTS)
    ring = attr(str, "")
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        return [with_shape(access_shape(self) or (), self.operands[0].dtype)]

    def verify(self) -> None:
        _indexed(self, self.buffer, self.indices)
        if self.out.shape != access_shape(self):
            raise ValueError(f"the result is {self.out.type}, the indices' shape {access_shape(self)}")
        check_elements(self.buffer.dtype, self.mask, self.out, self.other)


class StoreOp(Operation):
    """`buffer[indices[0][p], ...] = value[p]` where the mask holds; see LoadOp for indices and bounds.

    The value broadcasts to the indices' shape. Which of several writes to one element lasts is not defined.

    Example: `tile.store %x, %C[%rows, %columns] mask=%m`
    """

    name = "tile.store"
    effects = Effect.WRITE
    value = operand(ScalarType, TensorType)
    buffer = operand(BufferType)
    indices = operands(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    guarded = attr(bool, False)
    cache = attr(str, "", CACHE_HINTS)
    eviction = attr(str, "", EVICTION_HINTS)

    def verify(self) -> None:
        _indexed(self, self.buffer, self.indices)
        if self.value.dtype != self.buffer.dtype:
            raise ValueError(f"{self.value.dtype} into {self.buffer.type}")
        if access_shape(self) is None:
            raise ValueError(f"value {self.value.type} does not go with the indices")
        check_mask(self.mask)


class LoadBlockOp(Operation):
    """A rectangular block of a global buffer, in one piece; what lies outside the buffer reads 0.

    The block begins at `starts`, one int32 for each dimension of the buffer. Dimension i of the result walks along
    dimension axes[i] of the buffer (-1, where its size is 1: along none); the other dimensions stay at their start.
    `ring`: the shared memory that the block passes through in a kernel for Gluon: blocks of one ring arrive together.

    Example: `%x = tile.load_block %A[%m, %k] {axes = (0, 1)} : tensor<128x64xfloat16>`
    """

    name = "tile.load_block"
    effects = Effect.READ
    buffer = operand(BufferType)
    starts = operands(ScalarType)
    axes = attr(tuple)
    ring = attr(str, "")
    out = result(TensorType)

    def verify(self) -> None:
        _block(self.buffer, self.starts, self.axes, self.out)


class StoreBlockOp(Operation):
    """Writes a rectangular block of a global buffer; what lies outside is not written. See LoadBlockOp.

    `add`: adds to what is there, each element in one step, as tile.atomic does. `pieces`: how many copies move it, of
    equal parts of its rows and of its columns. `places`: in shared memory, which it takes in turn.

    Example: `tile.store_block %x, %C[%m, %n] {axes = (0, 1)}`
    """

    name = "tile.store_block"
    effects = Effect.WRITE
    value = operand(TensorType)
    buffer = operand(BufferType)
    starts = operands(ScalarType)
    axes = attr(tuple)
    ring = attr(str, "")
    add = attr(bool, False)
    pieces = attr(tuple, ())
    places = attr(int, 1)

    def verify(self) -> None:
        _block(self.buffer, self.starts, self.axes, self.value)


class AtomicOp(Operation):
    """Read, combine and write in one step, each element; the result is the old value.

    Kinds: add, max, min, and, or, xor, exchange, cas, load, store. Semantics: relaxed, acquire, release, acq_rel. A cas
    writes where the old value has the bits of `compare`. On on-chip buffers add to xor, and cas; vectorize-parallel
    replaces these.

    Example: `%old = tile.atomic %x, %C[%rows, %columns] {kind = "add"} : tensor<128x64xfloat32>`
    """

    name = "tile.atomic"
    effects = Effect.READ | Effect.WRITE
    value = operand(ScalarType, TensorType)
    buffer = operand(BufferType)
    indices = operands(ScalarType, TensorType)
    mask = optional(ScalarType, TensorType)
    compare = optional(ScalarType, TensorType)
    kind = attr(str, known=ATOMIC_KINDS)
    semantics = attr(str, "relaxed", MEMORY_ORDERS)
    guarded = attr(bool, False)
    out = result(ScalarType, TensorType)

    def infer(self) -> Sequence[Type]:
        return [with_shape(access_shape(self) or (), self.operands[1].dtype)]

    def verify(self) -> None:
        _indexed(self, self.buffer, self.indices)
        if self.value.dtype != self.buffer.dtype:
            raise ValueError(f"{self.value.dtype} into {self.buffer.type}")
        if self.out.shape != access_shape(self):
            raise ValueError(f"the result is {self.out.type}, the indices' shape {access_shape(self)}")
        check_elements(self.buffer.dtype, self.mask, self.out)
        check_compare(self.kind, self.compare, self.value)


def check_mask(mask: Value | None) -> None:
    """ValueError for a mask of anything but bool."""
    if mask is not None and mask.dtype != "bool":
        raise ValueError(f"the mask is {mask.type}")


def check_elements(dtype: str, mask: Value | None, *values: Value | None) -> None:
    """ValueError where what is read or written, or stands for what the mask leaves out, is not of the memory's type."""
    check_mask(mask)
    for value in values:
        if value is not None and value.dtype != dtype:
            raise ValueError(f"{value!r} is no element of {dtype}")


def check_compare(kind: str, compare: Value | None, value: Value) -> None:
    """ValueError unless a cas, and nothing else, has a value to compare with, of the type of what it writes."""
    if (kind == "cas") != (compare is not None) or compare is not None and compare.dtype != value.dtype:
        raise ValueError(f"{kind} of {value.type} compares with {'nothing' if compare is None else compare.type}")


class PrintOp(Operation):
    """Prints values from the device, after `message`. Example: `tile.print [%x] {message = "x = "}`"""

    name = "tile.print"
    effects = Effect.ORDERED
    values = operands(ScalarType, TensorType)
    message = attr(str, "")


class AssertOp(Operation):
    """Stops the kernel where the condition is false. Example: `tile.assert %c {message = "k < n"}`"""

    name = "tile.assert"
    effects = Effect.ORDERED
    condition = operand(ScalarType, TensorType)
    message = attr(str, "")


class AssumeOp(Operation):
    """A promise to the compiler. Example: `tile.assume %c`"""

    name = "tile.assume"
    effects = Effect.ORDERED
    condition = operand(ScalarType)


def buffer_type(value: Value) -> BufferType:
    """The type of a value that is a buffer."""
    type = value.type
    assert isinstance(type, BufferType), f"{value!r} is not a buffer"
    return type


def is_on_chip(value: Value) -> bool:
    """Whether a value is a buffer outside of global memory."""
    return isinstance(value.type, BufferType) and value.type.scope != "global"


def _whole(buffer: Value, value: Value) -> None:
    type = buffer_type(buffer)
    if type.scope == "global":
        raise ValueError("a global buffer is accessed by loads and stores")
    if value.type != with_shape(type.static_shape, type.dtype):
        raise ValueError(f"{value.type} for {type}")


def access_shape(op: LoadOp | StoreOp | AtomicOp) -> tuple[int, ...] | None:
    """The shape of the elements that an access moves; None if its operands do not go together."""
    others = (op.mask,) if isinstance(op, LoadOp) else (op.mask, op.value, getattr(op, "compare", None))
    return broadcast_shapes(*[each.shape for each in (*op.indices, *others) if each is not None])


def _check_int32(*values: Value) -> None:
    for value in values:
        if value.type is not INT32:
            raise ValueError(f"{value!r} is no int32")


def _check_extents(extents: tuple[Any, ...]) -> None:
    if any(type(extent) is not int or extent < 0 for extent in extents):
        raise ValueError(f"extents {extents}")


def _indexed(op: Operation, buffer: Value, indices: Sequence[Value]) -> None:
    if len(indices) != len(buffer_type(buffer).shape):
        raise ValueError(f"{len(indices)} indices for {buffer.type}")
    _check_indices(indices)


def _check_indices(indices: Sequence[Value]) -> None:
    for index in indices:
        if index.dtype not in ("int32", "int64"):
            raise ValueError(f"an index is {index.dtype}")


def _block(buffer: Value, starts: Sequence[Value], axes: tuple[int, ...], tile: Value) -> None:
    rank, walked = len(buffer_type(buffer).shape), [axis for axis in axes if axis >= 0]
    if buffer_type(buffer).scope != "global" or tile.dtype != buffer.dtype:
        raise ValueError(f"a block {tile.type} of {buffer.type}")
    if len(starts) != rank or any(start.dtype != "int32" for start in starts):
        raise ValueError(f"{len(starts)} starts for {buffer.type}; each is an int32")
    if len(axes) != len(tile.shape) or len(set(walked)) != len(walked) or not all(axis < rank for axis in walked):
        raise ValueError(f"axes {axes} for a block {tile.type} of {buffer.type}")
    if any(axis < 0 and size != 1 for axis, size in zip(axes, tile.shape)):
        raise ValueError(f"axes {axes}: {tile.type} has a size other than 1 that walks nowhere")
