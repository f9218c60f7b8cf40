"""PassConfigKey: names of TileLang's compiler options. Nearly all mean nothing here and are noted in the log."""

from __future__ import annotations

from typing import Any

__all__ = ["PassConfigKey", "get_pass_context", "simplify_prim_func"]

_PREFIXES = {"TL_": "tl.", "TIR_": "tir.", "CUDA_": "cuda."}


class _Keys(type):
    """Any name of the form TL_X, TIR_X or CUDA_X is the option of that name."""

    def __getattr__(cls, name: str) -> PassConfigKey:
        for prefix, group in _PREFIXES.items():
            if name.startswith(prefix):
                made: PassConfigKey = cls(group + name.removeprefix(prefix).lower())
                return made
        raise AttributeError(f"PassConfigKey has no {name!r}: names are TL_..., TIR_... or CUDA_...")

    __getitem__ = __getattr__


class PassConfigKey(str, metaclass=_Keys):
    """`PassConfigKey.TL_ENABLE_FAST_MATH` is "tl.enable_fast_math", and so is its `value`."""

    __slots__ = ()

    @property
    def value(self) -> str:
        return str(self)


def simplify_prim_func(function: Any) -> Any:
    """Accepted; programs are simplified by the pipeline."""
    return function


def get_pass_context() -> dict[str, Any]:
    """The options in force around a compilation: none, as they belong to each call here."""
    return {}
