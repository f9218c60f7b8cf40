"""Passes as a user's module defines them, for tests/passes/test_user_passes.py and the tuner's."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tiledsl.dialects.arith import AddOp, SubOp
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Patterns, Rewriter, apply_patterns, pattern


@pattern(AddOp)
def subtract(op: AddOp, rw: Rewriter) -> bool:
    # a + b  ==>  a - b, which is wrong
    if not op.result.dtype.startswith("float"):
        return False
    rw.replace(op, [rw.insert(SubOp(op.lhs, op.rhs)).result])
    return True


@dataclass(frozen=True)
class Subtract(Pass):
    """Make differences of sums."""

    name = "users-subtract"
    enabled: bool = True

    def run(self, program: Program) -> None:
        if self.enabled:
            apply_patterns(program.root, Patterns([subtract]))


@dataclass(frozen=True)
class Nothing(Pass):
    """Change nothing."""

    name = "users-nothing"
    note: str = ""
    times: int = 1

    def run(self, program: Program) -> None:
        pass


@dataclass(frozen=True)
class Raise(Pass):
    """Raise from a given run on, in a library that it calls."""

    name = "users-raise"
    first: int = 0

    def run(self, program: Program) -> None:
        RUNS.append(1)
        if len(RUNS) > self.first:
            Fraction(1, 0)


RUNS: list[int] = []
