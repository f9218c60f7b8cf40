"""Parameters of programs, as calls see them."""

from __future__ import annotations


class Parameter:
    """A parameter of a program. A dynamic dimension of its shape is a name."""

    def __init__(
        self,
        name: str,
        dtype: str,
        is_output: bool,
        shape: tuple[int | str, ...] | None = None,
        strides: tuple[int | str, ...] | None = None,
    ) -> None:
        """`shape` is None for a scalar."""
        self.name = name
        self.dtype = dtype
        self.is_output = is_output
        self.is_tensor = shape is not None
        self.shape = shape or ()
        self.strides = strides

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape) if self.is_tensor else ''}"
