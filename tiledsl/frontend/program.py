"""Programs as users hold them: kernels in either style."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import FunctionType
from typing import Any

from tiledsl.dialects.tile import FuncOp
from tiledsl.errors import TileError, ends_tracebacks, user_loc
from tiledsl.frontend.elaborate import elaborate
from tiledsl.ir.printer import print_op
from tiledsl.ir.types import BufferType
from tiledsl.language.buffer import Buffer
from tiledsl.language.dtypes import DType, canonical
from tiledsl.language.expression import describe
from tiledsl.language.program import is_active


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

    def __repr__(self) -> str:
        return f"<tile program {self.name}>"

    @functools.cached_property
    def func(self) -> FuncOp:
        """The IR before any pass."""
        return self.build()

    def build(self, out_idx: Sequence[int] = ()) -> FuncOp:
        """The IR before any pass, elaborated again. out_idx: positions of parameters (negative ones from the end) that
        the runtime allocates and returns. Raises TileError."""
        raise NotImplementedError

    def script(self, *_: Any, **__: Any) -> str:
        """The program as text: the IR before any pass."""
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
    """A tile program: a function whose body is read as source text and never run by Python; T.prim_func makes it.

    `params` are its parameters (tensors and scalars), `buffer_map` the shapes of the tensors, `script()` the IR before
    any pass. tiledsl.compile makes a kernel of it; calling it raises TileError.

    Example:
        @T.prim_func
        def ones(Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                T.fill(Y, 1)

        assert isinstance(ones, T.PrimFunc) and ones.name == "ones"
        assert [each.name for each in ones.params] == ["Y"]
        assert "tile.kernel" in ones.script()  # the IR before any pass
    """

    def __init__(self, function: Callable[..., Any], frame_locals: Mapping[str, Any]) -> None:
        _check_function("T.prim_func", function)
        functools.update_wrapper(self, function)
        self.function = function
        self.frame_locals = frame_locals

        self.name = str(self.function.__name__)

    @ends_tracebacks
    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TileError(
            f"{self.name} is a tile program and cannot be called directly",
            None if is_active() else user_loc(),
            notes=["compile it: kernel = tiledsl.compile(program); or return it from a function under @tiledsl.jit"],
        )

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<T.prim_func {self.name}({', '.join(inspect.signature(self.function).parameters)})>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the function's source, if it can be found."""
        try:
            text = inspect.getsource(self.function)
        except (OSError, TypeError):
            text = repr(self)
        return f"<pre>{escape(text)}</pre>"

    def with_attr(self, *_: Any, **__: Any) -> PrimFunc:
        """Accepted for other compilers; has no effect."""
        return self

    def build(self, out_idx: Sequence[int] = ()) -> FuncOp:
        return elaborate(self.function, self.frame_locals, out_idx)


class EagerProgram(Program):
    """The program of an eager function for the tensors of one call; tiledsl.compile takes it."""

    def __init__(self, name: str, make: Callable[[], FuncOp]) -> None:
        self.name = name
        self._make = make

    def build(self, out_idx: Sequence[int] = ()) -> FuncOp:
        """The IR before any pass, elaborated again. Raises TileError for `out_idx`: its outputs are what it returns."""
        if out_idx:
            raise TileError(
                f"{self.name}: out_idx belongs to the lazy style; an eager function returns its outputs",
                code="two-styles",
            )
        return self._make()


def prim_func(function: Callable[..., Any] | None = None, private: bool = False, is_private: bool = False, check_well_formed: bool = True) -> Any:  # fmt: skip # noqa: E501
    """Mark a function as a tile program; its parameters are annotated with T.Tensor(shape, dtype) or a scalar's dtype.

    The keywords are hints for other compilers without effect. Raises TileError for what is no Python function.

    Example:
        @T.prim_func
        def doubled(X: T.Tensor((4,), "float32"), Y: T.Tensor((4,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(4):
                    Y[i] = 2 * X[i]

        kernel = tiledsl.compile(doubled, out_idx=-1, target="interpret")
        assert kernel(torch.ones(4)).tolist() == [2, 2, 2, 2]
    """
    frame = sys._getframe(1)
    locals_ = dict(frame.f_locals)
    if function is None:
        return lambda inner: PrimFunc(inner, locals_)
    return PrimFunc(function, locals_)
