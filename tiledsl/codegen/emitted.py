"""An emitted module as data, separate from the emitter, whose import is slow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EmittedKernel:
    """One jitted function of the module, with everything that `triton.compile(ASTSource(...))` needs.

    `signature` maps argument names to Triton's types ("*fp16", "i32", "tensordesc<fp16[128, 64]>" for a descriptor of
    blocks of that shape, which the host creates). `divisible_by_16` names the pointers, which torch aligns. `grid` has
    the launch's extents, None for those that the host computes. `options` are further options.
    """

    name: str
    signature: dict[str, str]
    num_warps: int
    num_stages: int
    options: dict[str, Any] = field(default_factory=dict)
    constexprs: dict[str, Any] = field(default_factory=dict)
    divisible_by_16: tuple[str, ...] = ()
    grid: tuple[int | None, ...] = ()

    @property
    def attrs(self) -> dict[tuple[int], list[list[Any]]]:
        """The divisibility facts as ASTSource takes them."""
        return {
            (number,): [["tt.divisibility", 16]]
            for number, name in enumerate(self.signature)
            if name in self.divisible_by_16
        }


@dataclass(frozen=True)
class EmittedModule:
    """A Triton module as text.

    `entry` is the host function that takes the inputs (the parameters that are not outputs, in order) and returns the
    outputs; `into` takes all parameters in order and returns None. In a program without outputs they are the same
    function.
    """

    source: str
    entry: str
    into: str
    kernels: tuple[EmittedKernel, ...]
