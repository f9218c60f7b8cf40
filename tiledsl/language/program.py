"""What programs consist of: kernels, functions, macros, parameters, symbols and hints."""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import math
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tiledsl.errors import TileError, user_loc
from tiledsl.ir.types import BufferType
from tiledsl.language.buffer import Buffer, TensorSpec, Var
from tiledsl.language.dtypes import DType, canonical
from tiledsl.language.expression import Expr, Symbol, active, as_value, context, describe, is_number, plain
from tiledsl.language.launch_options import LAUNCH_OPTIONS, check_launch_option

if TYPE_CHECKING:
    from tiledsl.dialects.tile import FuncOp


@dataclass
class KernelFrame:
    """`with T.Kernel(gx, gy, threads=128) as (bx, by):`"""

    grid: tuple[Any, ...]
    threads: int
    options: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Any:
        raise TileError("T.Kernel opens a kernel only as a `with` statement of a tile program")

    def __exit__(self, *_: object) -> None:
        pass


def Kernel(*blocks: Any, threads: Any = 128, is_cpu: bool = False, prelude: Any = None, cluster_dims: Any = None, **options: Any) -> KernelFrame:  # fmt: skip # noqa: E501
    """A launch over a grid of up to three dimensions, ints or integer expressions; without any, of one block.

    `threads` (default 128) is a number from 1 to 1024 or a tuple whose product is one; the warps, of 32 threads, are
    the largest power of two that it holds. `options` are num_warps, num_stages, num_ctas, maxnreg and launch_pdl;
    is_cpu and cluster_dims have no effect. Raises TileError for extents below 1, other threads and options, and a
    prelude (C code).
    """
    if len(blocks) > 3:
        raise TileError(f"T.Kernel takes one to three grid dimensions, not {len(blocks)}")
    blocks = blocks or (1,)
    for axis, extent in enumerate(map(plain, blocks)):
        if isinstance(extent, bool) or not isinstance(extent, (int, Expr)):
            raise TileError(f"T.Kernel: grid dimension {axis} is {describe(extent)}, not an integer")
        if isinstance(extent, int) and extent <= 0:
            raise TileError(f"T.Kernel: grid dimension {axis} is {extent}; is a dimension of a tensor 0?")
    parts = [plain(each) for each in (threads if isinstance(threads, (tuple, list)) else (threads,))]
    wrong = [each for each in parts if isinstance(each, bool) or not isinstance(each, int)]
    if wrong:
        raise TileError(
            f"T.Kernel: threads is {describe(wrong[0])}; it must be a number from 1 to 1024 (128 if left out)"
        )
    count = math.prod(parts)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024:
        raise TileError(f"T.Kernel: threads is {count}; it must be a number from 1 to 1024")
    unknown = set(options) - set(LAUNCH_OPTIONS)
    if unknown:
        raise TileError(f"T.Kernel has no option {sorted(unknown)[0]!r}")
    options = {name: plain(value) for name, value in options.items() if value is not None}
    for name, value in options.items():
        check_launch_option(f"T.Kernel: {name}", name, value)
    if prelude is not None:
        raise TileError("T.Kernel: prelude is C code, which has no Triton form; write it in the tile language")
    return KernelFrame(tuple(map(plain, blocks)), count, options)


@dataclass(frozen=True)
class BranchFrame:
    """`with T.If(condition):`, around `with T.Then():` and `with T.Else():`; a condition for T.If only."""

    keyword: str
    condition: Any = None

    def __enter__(self) -> Any:
        raise TileError(f"T.{self.keyword} is only a `with` statement of a tile program")

    def __exit__(self, *_: object) -> None:
        pass


def If(condition: Any) -> BranchFrame:
    """`if condition`, spelt as blocks: `with T.If(c): with T.Then(): ...`, and `with T.Else(): ...` beside T.Then.

    `condition` is a scalar or Python's bool. Entering it raises TileError outside of a tile program.
    """
    return BranchFrame("If", condition)


def Then() -> BranchFrame:
    """The block of a T.If that runs if its condition, a scalar, holds."""
    return BranchFrame("Then")


def Else() -> BranchFrame:
    """The block of a T.If that runs if its condition, a scalar, does not hold."""
    return BranchFrame("Else")


def _check_function(what: str, function: Any) -> None:
    if not isinstance(inspect.unwrap(function) if callable(function) else function, FunctionType):
        raise TileError(f"@{what} stands before a function; this is {describe(function)}", user_loc())


@dataclass(frozen=True)
class ProgramParameter:
    """A parameter of a program: a tensor (`PrimFunc.buffer_map` has its shape) or a scalar."""

    name: str
    dtype: DType


class Program:
    """What can be asked of a tile program before it is compiled."""

    name: str

    @property
    def func(self) -> FuncOp:
        """The IR before any pass."""
        raise NotImplementedError

    def script(self, *_: Any, **__: Any) -> str:
        """The program as text: the IR before any pass."""
        from tiledsl.ir.text import print_op

        return print_op(self.func)

    @property
    def params(self) -> tuple[ProgramParameter, ...]:
        """The parameters in order; `buffer_map` describes those that are tensors."""
        values = self.func.body.args[: len(self.func.parameters)]
        return tuple(ProgramParameter(value.name, canonical(value.dtype)) for value in values)

    @property
    def buffer_map(self) -> dict[ProgramParameter, Buffer]:
        """Shape, dtype and name of each parameter that is a tensor."""
        values = zip(self.params, self.func.body.args, strict=False)
        return {parameter: Buffer(value) for parameter, value in values if isinstance(value.type, BufferType)}


class PrimFunc(Program):
    """A tile program: a function whose body is read as source text and never run by Python."""

    def __init__(self, function: Callable[..., Any], frame_locals: Mapping[str, Any]) -> None:
        _check_function("T.prim_func", function)
        functools.update_wrapper(self, function)
        self.function = function
        self.frame_locals = frame_locals

        self.name = str(self.function.__name__)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TileError(
            f"{self.name} is a tile program and cannot be called directly",
            None if is_active() else user_loc(),
            notes=["compile it: kernel = tiledsl.compile(program); or return it from a function under @tiledsl.jit"],
        )

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self

    def with_attr(self, *_: Any, **__: Any) -> PrimFunc:
        """Accepted for other compilers; has no effect."""
        return self

    @functools.cached_property
    def func(self) -> FuncOp:
        """The IR before any pass."""
        from tiledsl.frontend.elaborate import elaborate

        return elaborate(self)


class EagerProgram(Program):
    """The program of an eager function for the tensors of one call; tiledsl.compile takes it."""

    def __init__(self, name: str, make: Callable[[], FuncOp]) -> None:
        self.name = name
        self._make = make

    @functools.cached_property
    def func(self) -> FuncOp:
        """The IR before any pass."""
        return self._make()

    def build(self, out_idx: Sequence[int] = ()) -> FuncOp:
        """The IR before any pass, elaborated again. Raises TileError for `out_idx`: its outputs are what it returns."""
        if out_idx:
            raise TileError(f"{self.name}: out_idx belongs to the lazy style; an eager function returns its outputs")
        return self._make()


def prim_func(function: Callable[..., Any] | None = None, private: bool = False, is_private: bool = False, check_well_formed: bool = True) -> Any:  # fmt: skip # noqa: E501
    """Mark a function as a tile program; its parameters are annotated with T.Tensor(shape, dtype) or a scalar's dtype.

    The keywords are hints for other compilers without effect. Raises TileError for what is no Python function.
    """
    frame = sys._getframe(1)
    locals_ = dict(frame.f_locals)
    if function is None:
        return lambda inner: PrimFunc(inner, locals_)
    return PrimFunc(function, locals_)


class Macro:
    """A function that is expanded where a tile program, or a helper called by one, calls it."""

    def __init__(self, function: FunctionType, frame_locals: Mapping[str, Any]) -> None:
        _check_function("T.macro", function)
        functools.update_wrapper(self, function)
        self.function = function
        self.frame_locals = frame_locals

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from tiledsl.frontend.elaborate import call_macro

        return call_macro(self, arguments, keywords)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else functools.partial(self, instance)


def macro(function: Any = None, hygienic: bool = True) -> Any:
    """Mark a function to be expanded where it is called. Arguments are values; annotate T.Ref to pass by reference.

    Arguments may be buffers of any shape, scalars and Python values; it may return such. `hygienic` has no effect.
    Raises TileError for what is no Python function.
    """
    locals_ = dict(sys._getframe(1).f_locals)
    if function is None:
        return lambda inner: Macro(inner, locals_)
    return Macro(function, locals_)


inline = macro


class Ref:
    """Annotation of a macro's parameter that is passed by reference: assignments reach the caller's variable."""

    def __class_getitem__(cls, _: Any) -> type[Ref]:
        return cls


def _names(text: Any) -> list[str]:
    if not isinstance(text, str):
        raise TileError(f"a symbol needs a name, not {describe(text)}")
    names = unicodedata.normalize("NFKC", text.replace(",", " ")).split()  # as Python reads names
    if not names or not all(name.isidentifier() for name in names):
        raise TileError(f"{text!r} is not a list of names")
    return names


def dynamic(name: str, dtype: Any = "int32") -> Any:
    """Dynamic dimensions, known at each call: `M = T.dynamic("M")`, `M, N = T.dynamic("M, N")`.

    They are int32 scalars whatever `dtype` says, and take part in shapes, strides and bounds. A `name` that Python
    could not have raises TileError.
    """
    symbols = [Symbol(each, "int32") for each in _names(name)]
    return symbols[0] if len(symbols) == 1 else tuple(symbols)


symbolic = dynamic


def unnamed(dtype: Any) -> Any:
    """A new variable (`T.int32()`): in a kernel one that can be assigned to, outside a dynamic dimension with its own
    name."""
    from tiledsl.language.operations import alloc_var

    found = active.get()
    if found is not None and found.kernel is not None:
        return alloc_var(dtype)
    if str(dtype) not in ("int32", "int64", "uint32", "uint64"):
        raise TileError(f"T.{dtype!s}() outside of a kernel stands for a dimension, which is an integer", user_loc())
    return Symbol(f"unnamed_{next(_unnamed)}", "int32")


_unnamed = itertools.count()


def let(variable: Any, value: Any) -> None:
    """`variable = value`, for a scalar `variable` made by `T.int32()` or T.alloc_var; `value` is converted to its type.

    Raises TileError for any other variable.
    """
    if not isinstance(variable, Var):
        raise TileError(f"T.let gives a variable its value, not {describe(variable)}; write name = value")
    variable.store(value)


class _Dyn:
    """`T.dyn["M"]` is T.dynamic("M")."""

    def __getitem__(self, name: Any) -> Any:
        return dynamic(name) if isinstance(name, str) else tuple(dynamic(each) for each in name)


dyn = _Dyn()


def const(name: str) -> Any:
    """Dimensions known when an eager function is called: `M, N = T.const("M, N")`. Each value is compiled
    separately.

    Each `name` is a Python integer in the program, taken from a T.Tensor that has it as a dimension. Raises TileError
    where none has, and outside of eager functions.
    """
    from tiledsl.frontend.elaborate import EagerContext

    ctx = context("T.const")
    if not isinstance(ctx, EagerContext):
        raise TileError(
            "T.const belongs to the eager style: use it in the function under @tiledsl.jit that has T.Kernel"
        )
    values = [ctx.const(each) for each in _names(name)]
    return values[0] if len(values) == 1 else tuple(values)


def empty(*sizes: Any, dtype: Any = "float32") -> Any:
    """An output of an eager function, of a shape and an element type: allocated at each call and returned.

    `T.empty((M, N), dtype)` or `T.empty(M, N, dtype=...)`; dimensions are integers, T.const or T.dynamic. Raises
    TileError outside of eager functions, and for other dimensions.
    """
    from tiledsl.frontend.elaborate import EagerContext

    given = list(sizes)
    if len(given) == 2 and isinstance(given[0], (tuple, list)):
        dtype = given.pop()
    dims = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    ctx = context("T.empty")
    if not isinstance(ctx, EagerContext):
        raise TileError("T.empty belongs to the eager style; in a @T.prim_func use out_idx, or T.alloc_global")
    return ctx.empty(TensorSpec(dims, dtype))


# Hints and small parts


def use_swizzle(panel_size: int = 10, order: str = "row", enable: Any = True) -> None:
    """Walk the grid's first two dimensions in panels of `panel_size` (an integer), for locality in the L2 cache.

    `order` is "row" or "column"; with `enable` false nothing happens. Raises TileError for a panel_size below 1.
    """
    ctx = context("T.use_swizzle")
    if enable:
        if not is_number(plain(panel_size)) or plain(panel_size) < 1:
            raise TileError(f"T.use_swizzle: panel_size is {describe(panel_size)}; it must be at least 1")
        ctx.kernel_options["swizzle"] = (int(plain(panel_size)), str(order))


def pdl_sync() -> None:
    """Start while the previous kernel finishes, and wait for its results; like `launch_pdl` of T.Kernel.

    The wait is at the start of the kernel, wherever this call is; it takes no operands, so no shapes or types. Raises
    TileError outside of a tile program.
    """
    context("T.pdl_sync").kernel_options["launch_pdl"] = True


def assume(condition: Any) -> None:
    """A promise to the compiler that `condition`, a scalar of type bool, holds. It is believed, not checked.

    A Python value has no effect. Raises TileError outside of a tile program for what depends on the device.
    """
    from tiledsl.dialects.tile import AssumeOp

    if isinstance(condition, Expr):
        context("T.assume").builder.insert(AssumeOp(as_value(condition, "bool")))


def print(*values: Any, msg: str = "", **options: Any) -> None:
    """Print scalars, on-chip tiles of any shape and strings from the device; `msg` comes first.

    Outside of a tile program it is Python's print, which a star import would hide. Raises TileError for other values in
    a program, and TypeError for Python's keywords.
    """
    if active.get() is None:
        builtins.print(*([msg] if msg else []), *values, **options)
        return
    if options:
        raise TypeError(f"print() got an unexpected keyword argument {next(iter(options))!r}")
    from tiledsl.dialects.tile import PrintOp, ReadOp

    ctx = context("T.print")
    texts = [value for value in values if isinstance(value, str)]
    shown = []
    for value in values:
        if isinstance(value, Buffer) and value.scope() != "global":
            shown.append(ctx.builder.insert(ReadOp(value.value)).result)
        elif not isinstance(value, str):
            shown.append(as_value(value))
    ctx.builder.insert(PrintOp(shown, message=" ".join([msg, *texts]).strip()))


def device_assert(condition: Any, msg: str = "", no_stack_info: bool = False) -> None:
    """Stop the kernel if `condition`, a scalar of type bool, is false, with the message `msg`.

    A Python value that is false raises TileError when the program is built. no_stack_info has no effect.
    """
    from tiledsl.dialects.tile import AssertOp

    if isinstance(condition, Expr):
        context("T.device_assert").builder.insert(AssertOp(as_value(condition, "bool"), message=str(msg)))
    elif not condition:
        raise TileError(f"T.device_assert is false: {msg}")


def get_block_binding(dim: int = 0) -> Any:
    """The block's index along grid dimension `dim`, an int32 scalar. Raises TileError where the grid lacks it."""
    from tiledsl.language.expression import Scalar

    kernel = context("T.get_block_binding").kernel
    if kernel is None or not 0 <= dim < len(kernel.body.args):
        raise TileError(f"T.get_block_binding: the kernel has no grid dimension {dim}")
    return Scalar(kernel.body.args[dim])


def get_block_bindings() -> Any:
    """All block indices of the kernel, a list of int32 scalars. Raises TileError outside of a tile program."""
    kernel = context("T.get_block_bindings").kernel
    return [get_block_binding(axis) for axis in range(len(kernel.body.args) if kernel else 0)]


def comment(text: str) -> None:
    """Accepted; has no effect. `text` is any string."""


def import_source(source: Any = None) -> None:
    """C code for other compilers: a `source` other than None (a string, say) raises TileError."""
    if source is not None:
        raise TileError("T.import_source: C code has no Triton form; write it in the tile language")


def is_active() -> bool:
    """Whether a tile program is being built."""
    return active.get() is not None
