"""Compilers that are wrong on purpose, which the fuzzer must find: how far the random programs reach.

`python -m tests.fuzz.wrong_compilers` looks for the first seed that shows each.
"""

# ruff: noqa: E501
from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tests.fuzz.execution import attempt
from tests.fuzz.generator import generate


@dataclass(frozen=True)
class Mistake:
    """In a function (`module:qualified name`), one text in place of another."""

    where: str
    right: str
    wrong: str

    def function(self) -> FunctionType:
        module, _, path = self.where.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = inspect.getattr_static(found, name)
        for inner in ("func", "function", "__func__", "__wrapped__"):
            found = getattr(found, inner, found)
        assert isinstance(found, FunctionType), f"{self.where} is no function"
        return found

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        function = self.function()
        text = textwrap.dedent(inspect.getsource(function))
        assert text.count(self.right) == 1, f"{self.where} does not have {self.right!r} once"
        lines = text.replace(self.right, self.wrong).splitlines(True)
        while not lines[0].startswith("def "):  # decorators
            lines.pop(0)
        space = dict(function.__globals__)
        exec(compile("from __future__ import annotations\n" + "".join(lines), self.where, "exec"), space)
        before = function.__code__
        function.__code__ = space[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = before


_GUARD = "tiledsl.passes.guard_accesses:_Guard"
_RANGES = "tiledsl.analysis.ranges:Ranges"
MISTAKES = {
    "a store under a condition loses its mask": Mistake(
        f"{_GUARD}.access", "conditions if op.mask is None else [op.mask, *conditions]", "conditions"
    ),
    "no mask at the lower end": Mistake(f"{_GUARD}.access", "not self.ranges.is_nonnegative(index) and", "False and"),
    "a mask at the upper end is off by one": Mistake(f"{_GUARD}._is_below", ".hi < bound", ".hi <= bound"),
    "padding of a product's right side stays": Mistake(
        "tiledsl.passes.pad_tiles:_Padder._dot", "b = self._filled(op, op.b, [0], arith.as_constant(0, op.b.dtype))", "b = op.b"
    ),
    "an assumption <= is taken for <": Mistake(
        f"{_RANGES}._assumed", 'number if predicate in ("le", "eq") else', 'number - 1 if predicate in ("le", "eq") else'
    ),
    "a load survives a store through an alias": Mistake(
        "tiledsl.analysis.same_values:Written.__contains__", "(self.some_global and _is_global(source))", "False"
    ),
    "a load leaves a loop that writes": Mistake(
        "tiledsl.passes.licm:_is_unobserved", "not any(op.effects", "True or any(op.effects"
    ),
    "floor division of negative numbers truncates": Mistake(
        "tiledsl.passes.legalize_arith:truncate_division", "ranges.is_nonnegative(op.lhs)", "True"
    ),
    "the padding of a tile is not masked": Mistake(
        "tiledsl.passes.pad_tiles:_Padder._filled", "if axis not in axes:", "if True:"
    ),
    "the else branch has the mask of the other": Mistake(
        "tiledsl.passes.vectorize_parallel:_Vectorizer._if", "builder.insert(arith.NotOp(condition)).result", "condition"
    ),
}  # fmt: skip


def first_seed(name: str, seeds: range) -> int | None:
    """The first seed whose program is wrong under a mistake, and right without."""
    for seed in seeds:
        case = generate(seed)
        with MISTAKES[name].made():
            found = attempt(case)
        if found.status not in ("right", "discarded") and attempt(case).status == "right":
            return seed
    return None


def main() -> int:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    missed = 0
    for name in MISTAKES:
        seed = first_seed(name, range(most))
        missed += seed is None
        print(f"{seed if seed is not None else 'not found':>9}  {name}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main())
