"""The program being built: where operations go, and what tile functions may ask of it."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import tiledsl.language.operations as operations
from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.linear import constant_form
from tiledsl.dialects import scf, tile
from tiledsl.dialects.arith import CastOp, as_constant, constant_of
from tiledsl.errors import TileError, value_options, way_out
from tiledsl.formulas import is_operation, names_in, polynomial, text_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import ELEMENTS, INT32, BufferType, ScalarType, is_float, is_integer
from tiledsl.language.buffer import Buffer, Reference, TensorSpec
from tiledsl.language.dtypes import FLOAT4, canonical, of_elements
from tiledsl.language.expression import Expr, Scalar, Symbol, Symbolic, active, as_value, describe, plain
from tiledsl.language.float4 import Float4Buffer, packed_shape, packed_strides
from tiledsl.language.linear import linear
from tiledsl.language.negative_indices import count_from_the_end
from tiledsl.language.outside import refuse_accesses_outside
from tiledsl.language.thread_block import ThreadBlock
from tiledsl.location import UNKNOWN, Loc
from tiledsl.math_functions import MATH_FUNCTIONS

if TYPE_CHECKING:
    from tiledsl.language.random_numbers import Generator

log = logging.getLogger("tiledsl")


class RegionBuilder(Builder):
    """Inserts at the end of a region. What is there, or around it, already is not made again."""

    def __init__(self, region: Region, loc: Loc = UNKNOWN, outer: RegionBuilder | None = None) -> None:
        super().__init__(region, loc=loc)
        # Numbers and pure operations that are visible in the region.
        self.known: dict[tuple[object, ...], Value] = {} if outer is None else outer.known.copy()

    def number(self, number: bool | int | float, dtype: str) -> Value:
        """A Python number as a constant of an element type."""
        key = (dtype, repr(number))  # the text tells 1, 1.0 and True apart, and 0.0 and -0.0
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.constant(fitting(number, dtype), ScalarType(dtype))
        return found

    def pure(self, kind: type[Operation], *operands: Value, **attributes: Any) -> Value:
        """The result of an operation without effects."""
        key = (kind, *operands, *attributes.items())
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.insert(kind(*operands, **attributes)).results[0]
        return found


def fitting(number: bool | int | float, dtype: str) -> bool | int | float:
    """A Python number as an element type holds it; integers wrap. Raises TileError for what has no value there."""
    if isinstance(number, int):
        fits = abs(number) < 1 << 1023 if is_float(dtype) else -(1 << 63) <= number < 1 << 64
        if not fits:
            raise TileError(f"an integer of {number.bit_length()} bits does not fit in {dtype}")
    elif not is_float(dtype) and not math.isfinite(number):
        raise TileError(f"{number} cannot be converted to {dtype}")
    return as_constant(number, dtype)


class TileLoop(NamedTuple):
    """A T.Parallel loop that is being built: where to emit what goes before it, iterations, what to emit after it."""

    before: RegionBuilder
    indices: Sequence[Scalar]
    extents: Sequence[int]
    after: list[Callable[[], None]]


class Context:
    """Builds one `tile.func`. Parameters come in order; symbols are found in the shapes of tensor parameters."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.body = Region()
        self.builder = RegionBuilder(self.body)
        self.parameters: list[tuple[str, Value]] = []
        self.outputs: list[Value] = []
        self._packed: list[Value] = []  # parameters and outputs of float4_e2m1fn
        self.symbols: dict[str, Value] = {}
        self.symbol_sources: dict[str, str] = {}
        self._told: dict[str, list[str]] = {}  # all dimensions that tell a symbol
        self._of_outputs: dict[str, tuple[Value, int]] = {}  # symbols computed for a dimension of an output
        self._symbol_locs: dict[str, Loc] = {}
        self._solved: dict[str, str] = {}  # sources of symbols that are known only from arithmetic on them
        self.formulas: dict[str, Any] = {}  # what symbols that are computed from others must be
        self.safe_values: dict[Value, float] = {}
        self.of_tiles: set[Operation | None] = set()  # accesses to the elements of a tile that begins at an index
        self.kernel: tile.KernelOp | None = None
        self.kernel_options: dict[str, Any] = {}
        self.threads: ThreadBlock | None = None  # of the kernel
        self._last_alloc: tile.AllocOp | None = None
        self.loc: Loc = UNKNOWN
        self.loops: list[TileLoop | None] = []  # that are being built, outermost first; None for serial ones
        self.random: tuple[tile.KernelOp, Generator] | None = None  # what T.rng_init made last, and for which kernel
        self.calls: list[Any] = []  # functions that are being expanded, innermost last
        # The loops around, innermost last: the flags of device loops (None without jumps), the depth of host loops;
        # also None for a function whose call is not known to jump.
        self.jumps: list[Any] = []
        self.may_jump = False  # whether what comes after the statement that is being executed is under such flags

    @contextmanager
    def activate(self) -> Iterator[Context]:
        """Make this the program that expressions emit into."""
        token = active.set(self)
        try:
            yield self
        finally:
            active.reset(token)

    def note_truncation(self, value: Any, stored: Value, buffer: Buffer) -> None:
        """A remark on the kernel where a store takes the fraction off a float that nothing has rounded."""
        number = plain(value)
        is_fraction = not number.is_integer() if isinstance(number, float) else False
        if self.kernel is None or not is_integer(stored.dtype):
            return
        if isinstance(value, Expr) and is_float(value.dtype):
            cast = stored.owner
            made = cast.operands[0].owner if isinstance(cast, CastOp) else None
            record = MATH_FUNCTIONS.get(getattr(made, "function", ""))
            is_fraction = record is None or record.takes != "rounding"
        if is_fraction:
            what = f"a {value.dtype}" if isinstance(value, Expr) else f"{number}"
            where = f"line {self.builder.loc.line} stores {what} in {buffer.name}"
            remark = f"{where}, whose elements are {buffer.dtype}: the fraction is cut off"
            if remark not in self.kernel.remarks:
                self.kernel.add_remark(remark)

    # Parameters and symbols

    def parameter(self, name: str, spec: Any) -> Any:
        """Declare the next parameter: a Buffer for a TensorSpec, a Scalar for a dtype."""
        if isinstance(spec, TensorSpec):
            value = self.body.add_arg(self._buffer_type(name, spec), name)
            self.parameters.append((name, value))
            return self._buffer_of(value, spec)
        value = self.body.add_arg(ScalarType(canonical(spec).name), name)
        self.parameters.append((name, value))
        return Scalar(value)

    def output(self, name: str, spec: TensorSpec) -> Any:
        """Declare a tensor that the runtime allocates and returns."""
        type = self._buffer_type(name, spec, is_output=True)
        value = self.body.add_arg(type, name)
        self.outputs.append(value)
        for axis, dim in enumerate(type.shape):
            if isinstance(dim, str) and dim in self.formulas and not self.symbol_sources[dim]:
                self._of_outputs.setdefault(dim, (value, axis))
        return self._buffer_of(value, spec)

    def _buffer_of(self, value: Value, spec: TensorSpec) -> Any:
        if spec.dtype is not FLOAT4:
            return Buffer(value)
        self._packed.append(value)
        return Float4Buffer(Buffer(value))

    def _buffer_type(self, name: str, spec: TensorSpec, is_output: bool = False) -> BufferType:
        def dims(items: Sequence[Any], source: str) -> tuple[int | str, ...]:
            return tuple(
                item if isinstance(item, int) else self._dimension(item, "" if is_output else f"{name}.{source}{axis}")
                for axis, item in enumerate(items)
            )

        strides = None if spec.strides is None else dims(spec.strides, "stride")
        if spec.dtype is FLOAT4:
            shape = dims(packed_shape(name, spec.shape), "")
            return BufferType(shape, "uint8", "global", strides and packed_strides(name, strides))
        return BufferType(dims(spec.shape, ""), str(spec.dtype), "global", strides)

    def _dimension(self, dim: Any, source: str) -> str:
        """The name of a dynamic dimension; one that is computed from others gets a name of its own.

        `source` is "" for an output's, which tells nothing: it is allocated for the sizes of others.
        """
        if isinstance(dim, Symbol):
            if dim.name not in self.symbols:
                self.symbols[dim.name] = Value(INT32, self.body, dim.name)
            if self.symbol_sources.get(dim.name) in (None, ""):
                self.symbol_sources[dim.name] = source
            self._told.setdefault(dim.name, []).append(source)
            return dim.name
        if isinstance(dim, (Symbolic, Scalar)):
            name = source.replace(".", "_") or f"size_{len(self.symbols)}"
            value = as_value(dim)
            formula = self._formula(value)
            if not source and formula is None:
                raise TileError("T.empty: this dimension cannot be computed before the kernel runs")
            self.symbols[name] = Value(INT32, self.body, name)
            self.symbol_sources[name] = source
            if source:
                self._solve(Scalar(value), source)
            if formula is not None:
                self.formulas[name] = formula
            return name
        raise TileError(f"dimension {source} is neither an integer nor a symbol")

    def _formula(self, value: Value) -> Any:
        """How a dimension is computed from symbols and scalar parameters; None where that is not to be said."""
        if value.op is None:
            return value.name if value in (*self.symbols.values(), *(each for _, each in self.parameters)) else None
        number = constant_of(value)
        if number is not None:
            return int(number)
        kind = value.op.name.removeprefix("arith.")
        if not is_operation(kind):
            return None
        parts = [self._formula(each) for each in value.op.operands]
        return None if None in parts else (kind, *parts)

    def _solve(self, dim: Scalar, source: str) -> None:
        """A dimension that is a symbol times a constant plus a constant tells the symbol, if none by itself does."""
        form = linear(dim)
        number = form.constant
        terms = form.plus(constant_form(-number)).terms
        if len(terms) != 1:
            return
        (((value,), coefficient),) = terms.items()
        if coefficient > 0 and value.name in self.symbols and self.symbols[value.name] is value:
            known = f"{source}{-number:+d}" if number else source
            self._solved.setdefault(value.name, known if coefficient == 1 else f"{known}//{coefficient}")

    def symbol(self, symbol: Symbol) -> Value:
        """The value of a dynamic dimension. Its place in a tensor's shape may be declared later."""
        if symbol.name not in self.symbols:
            self.symbols[symbol.name] = Value(INT32, self.body, symbol.name)
            self.symbol_sources[symbol.name] = ""
            self._symbol_locs[symbol.name] = self.builder.loc
        return self.symbols[symbol.name]

    def finish(self, returns_list: bool, outputs: Sequence[int] = ()) -> tile.FuncOp:
        """The finished program."""
        for name, (value, axis) in self._of_outputs.items():
            self.symbol_sources[name] = f"{value.name}.{axis}"
        made = {value.name for number, (_, value) in enumerate(self.parameters) if number in outputs}
        idle = {value.name for _, value in self.parameters if not value.uses}
        for name, told in self._told.items():  # a tensor that is made tells nothing where one that is passed in does
            told = [each for each in (*told, self._solved.get(name, "")) if each.rpartition(".")[0] not in {*made, ""}]
            if told and self.symbol_sources[name].rpartition(".")[0] in made:
                self.symbol_sources[name] = told[0]
            unused = self.symbol_sources[name].rpartition(".")[0] in idle  # calls may have None for it
            self.symbol_sources[name] = next(
                (each for each in told if unused and each.rpartition(".")[0] not in idle), self.symbol_sources[name]
            )
        self.symbol_sources = {name: at or self._solved.get(name, "") for name, at in self.symbol_sources.items()}
        missing = [name for name, source in self.symbol_sources.items() if not source]
        if missing:
            raise TileError(
                f"the dynamic dimension {missing[0]} is used, but no tensor parameter's dimension tells it",
                self._symbol_locs.get(missing[0], self.loc),
                [f"declare a parameter such as T.Tensor(({missing[0]}, ...), dtype)"],
            )
        values = [value for _, value in self.parameters] + self.outputs
        positions = tuple(outputs) or tuple(range(len(self.parameters), len(values)))
        self.body.args = [*values, *self.symbols.values()]
        func = tile.FuncOp(
            sym_name=self.name,
            parameters=tuple(value.name for value in values),
            symbols=tuple(self.symbols),
            symbol_sources=tuple(self.symbol_sources[name] for name in self.symbols),
            formulas=tuple(self.formulas.items()),
            outputs=positions,
            packed=tuple(number for number, value in enumerate(values) if value in self._packed),
            returns_list=returns_list,
            regions=[self.body],
            loc=self.loc,
        )
        count_from_the_end(func, self.of_tiles)
        refuse_accesses_outside(func, self.of_tiles)
        return func

    # Buffers

    def begin_kernel(self, kernel: tile.KernelOp, options: dict[str, Any], threads: Sequence[int]) -> None:
        """On-chip buffers, hints and threads (their numbers along x, y, z) belong to this kernel from now on."""
        self.kernel, self.kernel_options, self._last_alloc = kernel, dict(options), None
        self.threads = ThreadBlock(threads)

    def is_of_thread(self, *buffers: Buffer) -> bool:
        """Whether one of the buffers is an array that each thread has for itself, in a body that threads run."""
        has_threads = self.threads is not None and self.threads.body is not None
        return has_threads and any(buffer.scope() == "local" for buffer in buffers)

    def alloc(self, type: BufferType, what: str, name: str = "") -> Value:
        """An on-chip buffer. It is visible in the whole kernel, wherever it is allocated."""
        if self.kernel is None:
            raise TileError(f"{what}: on-chip buffers are allocated inside `with T.Kernel(...)`")
        region = self.kernel.body
        op = tile.AllocOp(result_types=[type], loc=self.builder.loc, names=[name])
        before = region.first if self._last_alloc is None else self._last_alloc.next
        region.insert(op, before)
        self._last_alloc = op
        return op.result

    def workspace(self, shape: Any, dtype: Any) -> Buffer:
        if self.kernel is not None:
            raise TileError("T.alloc_global: workspaces are allocated outside of T.Kernel")
        dims = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        for axis, dim in enumerate(dims):
            if not isinstance(dim, Expr) and (
                isinstance(dim, bool) or not isinstance(plain(dim), int) or plain(dim) < 0
            ):
                raise TileError(
                    f"T.alloc_global: dimension {axis} is {describe(dim)}; dimensions are integers of at least 0"
                )
        type = BufferType(tuple(self._static(plain(dim)) for dim in dims), canonical(dtype).name, "global")
        return Buffer(self.builder.insert(tile.AllocOp(result_types=[type])).result)

    def _static(self, dim: Any, what: str = "T.alloc_global") -> int | str:
        if isinstance(dim, Expr):
            if isinstance(dim, Symbol):
                self.symbol(dim)
                return dim.name
            constant = self.constant(dim)
            return self._computed(dim, what) if constant is None else constant
        return int(dim)

    def _computed(self, dim: Expr, what: str) -> str:
        """The name of a dimension that the host computes from others."""
        formula = self._formula(as_value(dim))
        if formula is None:
            raise TileError(
                f"{what}: a dimension is known only on the device: {describe(dim)}",
                notes=[
                    "write it with integers, T.dynamic symbols that a tensor has, scalar parameters, +, -, *, //, %"
                ],
                code="device-value",
            )
        found = next((name for name, known in self.formulas.items() if known == formula), "")
        if not found:
            taken = {*self.symbols, *(name for name, _ in self.parameters)}
            found = next(name for number in itertools.count() if (name := f"size_{number}") not in taken)
            self.symbols[found] = Value(INT32, self.body, found)
            self.symbol_sources[found], self.formulas[found] = tile.COMPUTED, formula
        return found

    def view(self, source: Any, shape: Any, dtype: Any) -> Any:
        """The same memory in another shape or element type; None: its own."""
        if isinstance(source, Float4Buffer) or dtype is not None and of_elements(dtype) is FLOAT4:
            return self._view_float4(source, shape, dtype)
        if not isinstance(source, Buffer):
            raise TileError(f"T.view needs a buffer, not {describe(source)}")
        dtype = source.dtype if dtype is None else canonical(dtype)
        shape = source.type.shape if shape is None else shape if isinstance(shape, Sequence) else (shape,)
        shape = [plain(dim) for dim in shape]
        for axis, dim in enumerate(shape):
            if isinstance(dim, bool) or not isinstance(dim, (int, Expr)) and dim not in source.type.shape:
                raise TileError(f"T.view: dimension {axis} is {describe(dim)}, not an integer")
        dims = tuple(self._static(dim, "T.view") for dim in shape)
        type = BufferType(dims, str(dtype), source.scope())
        if type.dtype != source.type.dtype and type.scope != "global" and "bool" in (type.dtype, source.type.dtype):
            raise TileError(
                f"{source.name} is {source.type.dtype} and on chip, where it cannot be viewed as {type.dtype}: "
                "a bool has no bits that are defined",
                notes=["convert it in T.Parallel: T.cast(x, 'uint8'), or x != 0"],
            )
        if type.is_static and source.type.is_static:
            have, want = source.dtype.bits, dtype.bits
            old, new = math.prod(source.type.static_shape), math.prod(type.static_shape)
            if old * have != new * want:
                of_old, of_new = ("", "") if have == want else (f" of {have} bits", f" of {want} bits")
                raise TileError(f"{source.name} has {old} elements{of_old}, the shape {dims} has {new}{of_new}")
        else:
            self._check_bytes(source, type)
        op = self.builder.insert(tile.ViewOp(source.value, result_types=[type], names=[source.name]))
        return Buffer(op.result)

    def _check_bytes(self, source: Buffer, type: BufferType) -> None:
        """Refuse a view whose dynamic shape never has as many bytes as what it is of."""
        sizes: list[Any] = []
        for each in (source.type, type):
            sizes.append(ELEMENTS[each.dtype].bits)
            for dim in each.shape:
                sizes[-1] = ("mul", sizes[-1], dim)
        more = polynomial(("sub", *sizes), self.formulas)
        if more and (min(more.values()) > 0 or max(more.values()) < 0):  # for sizes of at least 1
            shape = f"({', '.join(map(str, type.shape))}{',' * (len(type.shape) == 1)})"
            made = [(name, self.formulas[name]) for name in type.shape if name in self.formulas]
            raise TileError(
                f"{source.name} is {source.type}, which never has as many bytes as the shape {shape} of {type.dtype}",
                notes=[f"{name} is {text_of(each, {part: part for part in names_in(each)})}" for name, each in made],
            )

    def _view_float4(self, source: Any, shape: Any, dtype: Any) -> Any:
        held = source.held if isinstance(source, Float4Buffer) else source
        to_4 = dtype is None or of_elements(dtype) is FLOAT4
        if held.scope() != "global" and not (to_4 and held is not source):
            raise TileError(
                "T.view: a tile of float4_e2m1fn on the chip has one element in each byte, and no other form",
                notes=["view the global buffer that it is copied from"],
            )
        shape = source.shape if shape is None else tuple(shape) if isinstance(shape, Sequence) else (shape,)
        if not to_4:
            return self.view(held, shape, dtype)
        if held.scope() == "global":
            shape = packed_shape("T.view", [plain(dim) for dim in shape])
        return Float4Buffer(self.view(held, shape, "uint8"))

    def fill(self, target: Reference, value: Any) -> None:
        """Every element of a part of a buffer becomes `value`."""
        operations.fill(target, value)

    def safe_value(self, buffer: Buffer) -> float:
        """The number that was annotated, converted by value to the element type of this view."""
        number, dtype = self.safe_values.get(stripped(buffer.value, tile.ViewOp), 0.0), buffer.type.dtype
        if not math.isfinite(number) and not is_float(dtype):
            raise TileError(
                f"{buffer.name} has {dtype} elements, and T.annotate_safe_value gives {number} for its memory, which "
                f"none of them can be; annotate a finite number"
            )
        return float(as_constant(number, dtype))

    def set_safe_value(self, buffer: Buffer, number: float) -> None:
        """What elements outside of a buffer, and of other views of its memory, read as in this kernel."""
        self.safe_values[stripped(buffer.value, tile.ViewOp)] = number

    def constant(self, x: Any) -> int | None:
        """An expression's value where it is constant."""
        form = linear(x)
        return form.constant if form.is_constant else None

    def most(self, x: Any) -> int:
        """The most that an integer expression in a kernel can be, as far as its operations tell."""
        from tiledsl.analysis.ranges import Ranges

        assert self.kernel is not None, "outside of a kernel nothing is bounded"
        return int(Ranges(self.kernel).of(as_value(x)).hi)

    # Regions

    @contextmanager
    def inside(self, region: Region, *, isolated: bool = False) -> Iterator[None]:
        """Emit at the end of another region, which sees the values of this one unless it is `isolated`."""
        previous = self.builder
        self.builder = RegionBuilder(region, previous.loc, None if isolated else previous)
        try:
            yield
        finally:
            loc = self.builder.loc
            self.builder = previous
            self.builder.loc = loc

    def parallel(self, extents: Sequence[int], body: Callable[[list[Any]], None]) -> None:
        """A `tile.parallel` whose body a function emits from its indices."""
        if not extents:
            body([])
            return
        region = Region([INT32] * len(extents), ["i", "j", "k", "l"][: len(extents)])
        with self.inside(region):
            body([Scalar(arg) for arg in region.args])
        self.builder.insert(tile.ParallelOp(extents=tuple(extents), regions=[region]))

    def elementwise(self, source: Buffer, target: Buffer, function: Callable[[Any], Any]) -> None:
        """target[i, ...] = function(source[i, ...])."""

        def body(indices: list[Any]) -> None:
            target[tuple(indices)].store(function(source[tuple(indices)]))

        self.parallel(source.type.static_shape, body)

    def branch(self, condition: Value, then: Callable[[], None], orelse: Callable[[], None] | None = None) -> None:
        """A `scf.if` without results."""
        regions = [Region(), Region()]
        for region, emit in zip(regions, (then, orelse), strict=True):
            with self.inside(region):
                if emit is not None:
                    emit()
            scf.yielding(region)
        self.builder.insert(scf.IfOp(condition, regions=regions))


class EagerContext(Context):
    """The context of an eager function: T.const symbols take their values from the tensors of the call."""

    def __init__(self, name: str, values: dict[str, int], dry: bool, dynamic: bool = False) -> None:
        """dynamic: those without a value are dynamic dimensions."""
        super().__init__(name)
        self.values = values
        self.dry = dry
        self.dynamic = dynamic
        self.consts: list[str] = []

    def const(self, name: str) -> Any:
        if name not in self.consts:
            self.consts.append(name)
        if name in self.values:
            return self.values[name]
        if self.dry or self.dynamic:
            return Symbol(name)
        given = way_out(f"pass {name}=... to compile", f"give it: {value_options([name])}")
        raise TileError(
            f"T.const {name!r} has no value: it is not a dimension of a tensor of the call",
            notes=[f"use {name} by itself as a dimension of a T.Tensor, or {given}"],
        )

    def empty(self, spec: TensorSpec) -> Any:
        return self.output("", spec)
