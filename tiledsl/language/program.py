"""What programs consist of: kernels, branches, symbols, variables and hints."""

from __future__ import annotations

import builtins
import itertools
import math
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from tiledsl.dialects import tile
from tiledsl.errors import TileError, user_loc
from tiledsl.language.allocation import alloc_var
from tiledsl.language.buffer import Buffer, TensorSpec, Var
from tiledsl.language.context import EagerContext
from tiledsl.language.dtypes import on_call
from tiledsl.language.expression import (
    Expr,
    Scalar,
    Symbol,
    active,
    as_value,
    cast,
    context,
    describe,
    is_number,
    plain,
)
from tiledsl.language.thread_block import Frame
from tiledsl.launch_options import LAUNCH_OPTIONS, check_launch_option

__all__ = [
    "Else", "If", "Kernel", "Ref", "Then", "assume", "comment", "const", "device_assert", "dyn", "dynamic", "empty",
    "get_block_binding", "get_block_bindings", "get_block_extent", "get_block_extents", "import_source", "let",
    "loop_break", "pdl_sync", "pdl_trigger", "print", "symbolic", "thread_return", "use_swizzle",
]  # fmt: skip


@dataclass
class KernelFrame(Frame):
    """`with T.Kernel(gx, gy, threads=128) as (bx, by):`"""

    opens = "T.Kernel opens a kernel"
    grid: tuple[Any, ...]
    threads: int
    options: dict[str, Any] = field(default_factory=dict)
    thread_extents: tuple[int, ...] = ()  # the threads along x, y and z


def Kernel(*blocks: Any, threads: Any = 128, is_cpu: bool = False, prelude: Any = None, cluster_dims: Any = None, **options: Any) -> KernelFrame:  # fmt: skip # noqa: E501
    """A launch over a grid of up to three dimensions, ints or integer expressions; without any, of one block.

    `threads` (default 128) is a number from 1 to 1024 or a tuple whose product is one; the warps, of 32 threads, are
    the largest power of two that it holds. `options` are num_warps, num_stages, num_ctas, maxnreg and launch_pdl;
    is_cpu and cluster_dims have no effect. Raises TileError for extents below 0, other threads and options, and a
    prelude (C code).

    Example:
        with T.Kernel(3, 2, threads=64) as (bx, by):
            Y[by, bx] = 10 * by + bx
        # Y = [[0, 1, 2], [10, 11, 12]]
    """
    if len(blocks) > 3:
        raise TileError(f"T.Kernel takes one to three grid dimensions, not {len(blocks)}")
    blocks = blocks or (1,)
    for axis, extent in enumerate(map(plain, blocks)):
        if isinstance(extent, bool) or not isinstance(extent, (int, Expr)):
            raise TileError(f"T.Kernel: grid dimension {axis} is {describe(extent)}, not an integer")
        if isinstance(extent, int) and not 0 <= extent < 1 << 31:
            raise TileError(f"T.Kernel: grid dimension {axis} is {extent}; it must be at least 0, and below 2^31")
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
    return KernelFrame(tuple(map(plain, blocks)), count, options, tuple(parts))


@dataclass(frozen=True)
class BranchFrame(Frame):
    """`with T.If(condition):`, around `with T.Then():` and `with T.Else():`; a condition for T.If only."""

    keyword: str
    condition: Any = None

    def __enter__(self) -> Any:
        raise TileError(f"T.{self.keyword} is only a `with` statement of a tile program")


def If(condition: Any) -> BranchFrame:
    """`if condition`, spelt as blocks: `with T.If(c): with T.Then(): ...`, and `with T.Else(): ...` beside T.Then.

    `condition` is a scalar or Python's bool. Entering it raises TileError outside of a tile program.

    Example:
        # X = [-3, 2]
        for i in T.serial(2):
            with T.If(X[i] > 0):
                with T.Then():
                    Y[i] = X[i]
                with T.Else():
                    Y[i] = 0
        # Y = [0, 2]
    """
    return BranchFrame("If", condition)


def Then() -> BranchFrame:
    """The block of a T.If that runs if its condition, a scalar, holds.

    Example:
        # X = [-3, 2]
        for i in T.serial(2):
            with T.If(X[i] > 0):
                with T.Then():
                    Y[i] = X[i]
                with T.Else():
                    Y[i] = 0
        # Y = [0, 2]
    """
    return BranchFrame("Then")


def Else() -> BranchFrame:
    """The block of a T.If that runs if its condition, a scalar, does not hold.

    Example:
        # X = [-3, 2]
        for i in T.serial(2):
            with T.If(X[i] > 0):
                with T.Then():
                    Y[i] = X[i]
                with T.Else():
                    Y[i] = 0
        # Y = [0, 2]
    """
    return BranchFrame("Else")


class Ref:
    """Annotation of a macro's parameter that is passed by reference: assignments reach the caller's variable.

    What is passed is a variable of T.alloc_var, or an element of a buffer, of any element type.

    Example:
        @T.macro
        def swap(a: T.Ref, b: T.Ref):
            old = T.alloc_var("int32", a)
            a = b
            b = old

        @T.prim_func
        def program(Y: T.Tensor((2,), "int32")):
            with T.Kernel(1):
                x, y = T.alloc_var("int32", 1), T.alloc_var("int32", 2)
                swap(x, y)
                Y[0] = x
                Y[1] = y

        assert tiledsl.compile(program, out_idx=-1, target="interpret")().tolist() == [2, 1]
    """

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

    Example:
        M, N = T.dynamic("M, N")

        @T.prim_func
        def sizes(X: T.Tensor((M, N), "float32"), Y: T.Tensor((2,), "int32")):
            with T.Kernel(1):
                Y[0] = M
                Y[1] = N

        assert tiledsl.compile(sizes, out_idx=-1, target="interpret")(torch.ones(3, 4)).tolist() == [3, 4]
    """
    symbols = [Symbol(each, "int32") for each in _names(name)]
    return symbols[0] if len(symbols) == 1 else tuple(symbols)


symbolic = dynamic


def unnamed(dtype: Any) -> Any:
    """A new variable (`T.int32()`): in a kernel one that can be assigned to, outside a dynamic dimension with its own
    name."""
    found = active.get()
    if found is not None and found.kernel is not None:
        return alloc_var(dtype)
    if str(dtype) not in ("int32", "int64", "uint32", "uint64"):
        raise TileError(f"T.{dtype!s}() outside of a kernel stands for a dimension, which is an integer", user_loc())
    return Symbol(f"unnamed_{next(_unnamed)}", "int32")


_unnamed = itertools.count()
on_call(lambda dtype, *values: cast(values[0], dtype) if values else unnamed(dtype))


def let(variable: Any, value: Any) -> None:
    """`variable = value`, for a scalar `variable` made by `T.int32()` or T.alloc_var; `value` is converted to its type.

    Raises TileError for any other variable.

    Example:
        x = T.alloc_var("int32", 1)
        T.let(x, x + 4)
        Y[0] = x
        # Y = [5]
    """
    if not isinstance(variable, Var):
        raise TileError(f"T.let gives a variable its value, not {describe(variable)}; write name = value")
    variable.store(value)


class _Dyn:
    """`T.dyn["M"]` is T.dynamic("M"): a dimension, an int32 scalar; of several names a tuple. Raises TileError as that.

    Example:
        M, N = T.dyn["M", "N"]
        assert str(M) == "M" and str(N) == "N"
    """

    def __getitem__(self, name: Any) -> Any:
        return tuple(map(dynamic, name)) if isinstance(name, (tuple, list)) else dynamic(name)


dyn = _Dyn()


def const(name: str) -> Any:
    """Dimensions known when an eager function is called: `M, N = T.const("M, N")`. Each value is compiled
    separately.

    Each `name` is a Python integer in the program, taken from a T.Tensor that has it as a dimension. Raises TileError
    where none has, and outside of eager functions.

    Example:
        @tiledsl.jit(target="interpret")
        def doubled(X):
            N = T.const("N")
            X: T.Tensor((N,), "float32")
            Y = T.empty((N,), "float32")
            with T.Kernel(1):
                for i in T.Parallel(N):
                    Y[i] = 2 * X[i]
            return Y

        assert doubled(torch.ones(3)).tolist() == [2, 2, 2]
    """
    ctx = context("T.const")
    if not isinstance(ctx, EagerContext):
        raise TileError(
            "T.const belongs to the eager style: use it in the function under @tiledsl.jit that has T.Kernel",
            code="two-styles",
        )
    values = [ctx.const(each) for each in _names(name)]
    return values[0] if len(values) == 1 else tuple(values)


def empty(*sizes: Any, dtype: Any = "float32") -> Any:
    """An output of an eager function, of a shape and an element type: allocated at each call and returned.

    `T.empty((M, N), dtype)` or `T.empty(M, N, dtype=...)`; dimensions are integers, T.const or T.dynamic. Raises
    TileError outside of eager functions, and for other dimensions.

    Example:
        @tiledsl.jit(target="interpret")
        def counted():
            Y = T.empty(4, dtype="int32")
            with T.Kernel(1):
                for i in T.Parallel(4):
                    Y[i] = i
            return Y

        assert counted().tolist() == [0, 1, 2, 3]
    """
    given = list(sizes)
    if len(given) == 2 and isinstance(given[0], (tuple, list)):
        dtype = given.pop()
    dims = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    ctx = context("T.empty")
    if not isinstance(ctx, EagerContext):
        raise TileError(
            "T.empty belongs to the eager style; in a @T.prim_func use out_idx, or T.alloc_global", code="two-styles"
        )
    return ctx.empty(TensorSpec(dims, dtype))


# Hints and small parts


def use_swizzle(panel_size: int = 10, order: str = "row", enable: Any = True) -> None:
    """Walk the grid's first two dimensions in panels of `panel_size` (an integer), for locality in the L2 cache.

    `order` is "row", "column" or "mlx", which is taken as "row"; with `enable` false nothing happens. Raises TileError
    for a panel_size below 1 and for other orders.

    Example:
        with T.Kernel(2, 2) as (bx, by):
            T.use_swizzle(2)
            Y[by, bx] = 10 * by + bx
        # Y = [[0, 1], [10, 11]]
    """
    ctx = context("T.use_swizzle")
    if enable:
        if not is_number(plain(panel_size)) or plain(panel_size) < 1:
            raise TileError(f"T.use_swizzle: panel_size is {describe(panel_size)}; it must be at least 1")
        if order not in ("row", "column", "mlx"):
            raise TileError(f"T.use_swizzle: order is {describe(order)}; it is 'row', 'column' or 'mlx'")
        ctx.kernel_options["swizzle"] = (int(plain(panel_size)), "column" if order == "column" else "row")


def pdl_sync() -> None:
    """Start while the previous kernel finishes, and wait for its results; like `launch_pdl` of T.Kernel.

    The wait is at the start of the kernel, wherever this call is; it takes no operands, so no shapes or types. Raises
    TileError outside of a tile program.

    Example:
        # X = [1, 2]
        T.pdl_sync()
        T.copy(X, Y)
        # Y = [1, 2]
    """
    context("T.pdl_sync").kernel_options["launch_pdl"] = True


def pdl_trigger() -> None:
    """Let the next kernel begin, if it waits for this one (`T.pdl_sync`), as soon as all blocks of this one run.

    The trigger is at the start of the kernel, behind its own wait, wherever this call is; it takes no operands, so no
    shapes or types. Raises TileError outside of a tile program.

    Example:
        # X = [1, 2]
        T.pdl_trigger()
        T.copy(X, Y)
        # Y = [1, 2]
    """
    context("T.pdl_trigger").kernel_options["pdl_trigger"] = True


def assume(condition: Any) -> None:
    """A promise to the compiler that `condition`, a scalar of type bool, holds. It is believed, not checked.

    A Python value has no effect. Raises TileError outside of a tile program for what depends on the device.

    Example:
        # X = [1, 2]
        T.assume(X[0] > 0)
        Y[0] = X[0] // 2
        # Y = [0]
    """
    if isinstance(condition, Expr):
        context("T.assume").builder.insert(tile.AssumeOp(as_value(condition, "bool")))


def print(*values: Any, msg: str = "", **options: Any) -> None:
    """Print scalars, on-chip tiles of any shape and strings from the device; `msg` comes first.

    Outside of a tile program it is Python's print, which a star import would hide. Raises TileError for other values in
    a program, and TypeError for Python's keywords.

    Example:
        T.print(6 * T.int32(7), msg="the answer:")
        Y[0] = 1
        # Y = [1]
    """
    if active.get() is None:
        builtins.print(*([msg] if msg else []), *values, **options)
        return
    if options:
        raise TypeError(f"print() got an unexpected keyword argument {next(iter(options))!r}")
    ctx = context("T.print")
    texts = [value for value in values if isinstance(value, str)]
    shown = []
    for value in values:
        if isinstance(value, Buffer) and value.scope() != "global":
            shown.append(ctx.builder.insert(tile.ReadOp(value.value)).result)
        elif not isinstance(value, str):
            shown.append(as_value(value))
    ctx.builder.insert(tile.PrintOp(shown, message=" ".join([msg, *texts]).strip()))


def device_assert(condition: Any, msg: str = "", no_stack_info: bool = False) -> None:
    """Stop the kernel if `condition`, a scalar of type bool, is false, with the message `msg`.

    A Python value that is false raises TileError when the program is built. no_stack_info has no effect.

    Example:
        # X = [1, 2]
        T.device_assert(X[0] > 0, "the first element is positive")
        T.copy(X, Y)
        # Y = [1, 2]
    """
    if isinstance(condition, Expr):
        context("T.device_assert").builder.insert(tile.AssertOp(as_value(condition, "bool"), message=str(msg)))
    elif not condition:
        raise TileError(f"T.device_assert is false: {msg}")


def get_block_binding(dim: int = 0) -> Any:
    """The block's index along grid dimension `dim`, an int32 scalar. Raises TileError where the grid lacks it.

    Example:
        with T.Kernel(2, 2):
            Y[T.get_block_binding(1), T.get_block_binding(0)] = T.get_block_binding(0)
        # Y = [[0, 1], [0, 1]]
    """
    kernel = context("T.get_block_binding").kernel
    if kernel is None or not 0 <= dim < len(kernel.body.args):
        raise TileError(f"T.get_block_binding: the kernel has no grid dimension {dim}")
    return Scalar(kernel.body.args[dim])


def get_block_bindings() -> Any:
    """All block indices of the kernel, a list of int32 scalars. Raises TileError outside of a tile program.

    Example:
        with T.Kernel(2, 2):
            bx, by = T.get_block_bindings()
            Y[by, bx] = 10 * by + bx
        # Y = [[0, 1], [10, 11]]
    """
    kernel = context("T.get_block_bindings").kernel
    return [get_block_binding(axis) for axis in range(len(kernel.body.args) if kernel else 0)]


def get_block_extent(dim: int = 0) -> Any:
    """The number of blocks along grid dimension `dim`, an int32 scalar. Raises TileError where the grid lacks it.

    Example:
        with T.Kernel(3, 2) as (bx, by):
            Y[by, bx] = T.get_block_extent(0)
        # Y = [[3, 3, 3], [3, 3, 3]]
    """
    kernel = context("T.get_block_extent").kernel
    if kernel is None or not 0 <= dim < len(kernel.grid):
        raise TileError(f"T.get_block_extent: the kernel has no grid dimension {dim}")
    return Scalar(kernel.grid[dim])


def get_block_extents() -> Any:
    """The extents of the kernel's grid, a list of int32 scalars. Raises TileError outside of a tile program.

    Example:
        with T.Kernel(3, 2) as (bx, by):
            gx, gy = T.get_block_extents()
            Y[by, bx] = gx * gy
        # Y = [[6, 6, 6], [6, 6, 6]]
    """
    kernel = context("T.get_block_extents").kernel
    return [get_block_extent(axis) for axis in range(len(kernel.grid) if kernel else 0)]


def loop_break() -> None:
    """End the innermost loop, as `break` does: a statement, of no shape or type; elsewhere it raises TileError.

    Example:
        # X = [1, 2, 0, 4]
        total = T.alloc_var("int32", 0)
        for i in T.serial(4):
            if X[i] == 0:
                T.loop_break()
            total += X[i]
        Y[0] = total
        # Y = [3]
    """
    raise TileError("T.loop_break() is a statement of its own, in a loop of a tile program; `break` is the same")


def thread_return() -> None:
    """Leave the kernel: what comes after is not done. It is a statement, of no shape or type.

    Under a condition on threads, these alone leave. A macro with it is called as a statement of its own, or for a value
    that gets a name. In T.Parallel and outside of kernels it raises TileError.

    Example:
        # Y = [0, 0]
        with T.Kernel(2) as block:
            if block == 0:
                T.thread_return()
            Y[block] = 1
        # Y = [0, 1]
    """
    raise TileError("T.thread_return() is a statement of its own, in a kernel of a tile program")


def comment(text: str) -> None:
    """Accepted; has no effect. `text` is any string.

    Example:
        T.comment("one element")
        Y[0] = 1
        # Y = [1]
    """


def import_source(source: Any = None) -> None:
    """C code for other compilers: a `source` other than None (a string, say) raises TileError.

    Example:
        T.import_source(None)
        Y[0] = 1
        # Y = [1]
    """
    if source is not None:
        raise TileError("T.import_source: C code has no Triton form; write it in the tile language")


def is_active() -> bool:
    """Whether a tile program is being built."""
    return active.get() is not None
