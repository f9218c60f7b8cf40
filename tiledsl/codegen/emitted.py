"""What an emitted module is, apart from what emits it, which takes long to import."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class EmittedKernel:
    """One jitted function of the module, with all that `triton.compile(ASTSource(...))` needs.

    `signature` maps argument names to Triton's types ("*fp16", "i32", "tensordesc<fp16[128, 64]>" for a descriptor of
    blocks of that shape, which the host makes); `divisible_by_16` names the pointers, which
    torch aligns. `grid` has the launch's extents, None where the host computes them. `options` are further options.
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

    `entry` is the host function that takes the inputs (parameters that are no outputs, in order) and returns the
    outputs; `into` takes all parameters in order, outputs too, and returns None. A program without outputs has one
    function under both names.
    """

    source: str
    entry: str
    into: str
    kernels: tuple[EmittedKernel, ...]
