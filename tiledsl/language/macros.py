"""Macros. To mark a function, as modules do when they are imported, loads neither the frontend nor the IR."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from tiledsl.errors import TileError, user_loc

__all__ = ["Macro", "inline", "macro"]


class Macro:
    """A function that is expanded where a tile program, or a helper called by one, calls it; T.macro makes it.

    It takes and returns what the function does: buffers of any shape, scalars, Python values. Calling it outside of a
    program raises TileError.

    Example:
        @T.macro
        def scaled(x, factor):
            return x * factor

        @T.prim_func
        def tripled(X: T.Tensor((2,), "float32"), Y: T.Tensor((2,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(2):
                    Y[i] = scaled(X[i], 3)

        assert isinstance(scaled, T.Macro)
        assert tiledsl.compile(tripled, out_idx=-1, target="interpret")(torch.ones(2)).tolist() == [3, 3]
    """

    def __init__(self, function: Callable[..., Any], frame_locals: Mapping[str, Any]) -> None:
        if not isinstance(inspect.unwrap(function) if callable(function) else function, FunctionType):
            raise TileError(
                f"@T.macro stands before a function; this is {type(function).__name__} {function!r}", user_loc()
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.frame_locals = frame_locals

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        from tiledsl.frontend.elaborate import call_macro

        return call_macro(self.function, self.frame_locals, arguments, keywords)

    @property
    def expands(self) -> tuple[Any, dict[str, Any], Any]:
        """The function's tree, no names of a program, and the names around it: what stands for a call of it."""
        from tiledsl.frontend.elaborate import macro_tree

        return macro_tree(self.function, self.frame_locals)

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self if instance is None else functools.partial(self, instance)


def macro(function: Any = None, hygienic: bool = True) -> Any:
    """Mark a function to be expanded where it is called. Arguments are values; annotate T.Ref to pass by reference.

    Arguments may be buffers of any shape, scalars and Python values; it may return such. `hygienic` has no effect.
    Raises TileError for what is no Python function.

    Example:
        @T.macro
        def add_into(total: T.Ref, x):
            total += x

        @T.prim_func
        def summed(X: T.Tensor((4,), "int32"), Y: T.Tensor((1,), "int32")):
            with T.Kernel(1):
                total = T.alloc_var("int32", 0)
                for i in T.serial(4):
                    add_into(total, X[i])
                Y[0] = total

        x = torch.arange(4, dtype=torch.int32)
        assert tiledsl.compile(summed, out_idx=-1, target="interpret")(x).tolist() == [6]
    """
    locals_ = dict(sys._getframe(1).f_locals)
    if function is None:
        return lambda inner: Macro(inner, locals_)
    return Macro(function, locals_)


inline = macro
