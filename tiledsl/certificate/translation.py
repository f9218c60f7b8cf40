"""Translation validation of a kernel's own lowering: each pass, and the emitted text, mean what the program meant.

The program is executed before and after every pass in exact algebra (certificate/exact.py) on random inputs, and all
memory of its parameters is compared. A pass must keep every rounded operation and its order, unless it names what it
allows (`Pass.allowances`); then both programs are compared in the algebra in which that makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledsl.certificate.check import Check
from tiledsl.certificate.exact import CLOSE, EXACT, ExactAlgebra, rounded, unknowns
from tiledsl.certificate.executor import Executor, ExecutorError
from tiledsl.certificate.reduction import reduced
from tiledsl.certificate.source.module import SourceError, SourceModule
from tiledsl.codegen.emitted import EmittedModule
from tiledsl.codegen.triton_source import emit
from tiledsl.dialects.tile import FuncOp
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation
from tiledsl.ir.location import UNKNOWN
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.text import print_op
from tiledsl.ir.types import ELEMENTS, BufferType
from tiledsl.passes import default_pipeline
from tiledsl.runtime.kernel import Kernel
from tiledsl.runtime.lowering import rest_of

MOST_ITERATIONS = 10_000


def check_passes(kernel: Kernel, *, seed: int = 0) -> list[Check]:
    """One Check of kind "pass" for each pass that changes the program: "tested", "failed" or, where a program cannot be
    executed here, "unknown". A failed one names the pass, the parameter, the first element that differs and its line.
    """
    try:
        return _Levels(kernel, seed).checks()
    except ExecutorError as error:
        return [Check("pass", "elaborate", "unknown", _sentence(error), _place(error.op))]


def check_source(kernel: Kernel, *, seed: int = 0) -> list[Check]:
    """One Check of kind "source": the text of kernel.source does what the lowered program does, operation by operation.

    The text is executed, host launcher included, with stand-ins for torch and triton, every program of every grid.
    """
    try:
        return _Levels(kernel, seed).source_checks()
    except ExecutorError as error:
        return [Check("source", kernel.name, "unknown", _sentence(error), _place(error.op))]


@dataclass
class _Run:
    """What a program left in the memory of its parameters, in one algebra."""

    arrays: list[Any]
    error: ExecutorError | None = None


class _Levels:
    """The levels of a kernel's lowering, executed one after the other."""

    def __init__(self, kernel: Kernel, seed: int) -> None:
        self.kernel = kernel
        whole = kernel._build()
        smaller = reduced(whole)
        self.is_reduced = smaller is not None
        self.program = Program(smaller or whole, kernel.target)
        self.passes = rest_of(default_pipeline(kernel.pass_configs), kernel._resumed_after)
        assert isinstance(self.program.root, FuncOp)
        self.arguments = arguments_for(self.program.root, seed)
        self.names = self.program.root.parameters
        self.rounds32 = any(value.dtype == "float64" for op in self.program.root.walk() for value in op.results)

    def checks(self) -> list[Check]:
        made: list[Check] = []
        before = self.run(self.program.root)
        if before.error is not None:
            raise before.error
        text = print_op(self.program.root)
        for each in self.passes:
            allowed = each.allowances(self.program)
            root = self.program.root.clone({}) if allowed else self.program.root
            each.run(self.program)
            was, text = text, print_op(self.program.root)
            if text == was:
                continue
            after = self.run(self.program.root)
            made.append(self.compared(each, before, after, root, allowed))
            before = after if after.error is None else before
        return made

    def source_checks(self) -> list[Check]:
        for each in self.passes:
            each.run(self.program)
        before = self.run(self.program.root)
        if before.error is not None:
            raise before.error
        module = emit(self.program.root) if self.is_reduced else self.kernel.module
        return [self.compared_source(before, self.run_source(module))]

    def run_source(self, module: EmittedModule) -> _Run:
        arrays = [each.copy() if isinstance(each, np.ndarray) else each for each in self.arguments]
        try:
            loaded = SourceModule(module.source, ExactAlgebra(rounds32=self.rounds32))
            loaded.call(module.into, arrays, [each.dtype for each in self.kernel.params])
        except ExecutorError as error:
            return _Run(arrays, error)
        return _Run(arrays)

    def compared_source(self, before: _Run, after: _Run) -> Check:
        name = self.kernel.name
        if after.error is not None:
            line = f"line {after.error.line}: " if isinstance(after.error, SourceError) else ""
            origin = after.error.origin if isinstance(after.error, SourceError) else ""
            return Check("source", name, "failed", line + _sentence(after.error), origin)
        found = self.difference(before, after)
        if found is not None:
            return Check("source", name, "failed", *found)
        return Check("source", name, "tested", "equal to the lowered program, operation by operation")

    def difference(
        self, before: _Run, after: _Run, allowed: frozenset[str] = frozenset()
    ) -> tuple[str, str] | None:
        """What differs first, and the place of what wrote it."""
        for name, old, new in zip(self.names, before.arrays, after.arrays, strict=True):
            found = first_difference(old, new, "rescaling" in allowed)
            if found is not None:
                detail, element = found
                return f"{name}{list(element)} {detail}", _place(_writer(self.program.root, name))
        return None

    def run(self, root: Operation, allowed: frozenset[str] = frozenset()) -> _Run:
        executor = Executor(ExactAlgebra(allowed, rounds32=self.rounds32))
        executor.zero, executor.in_lanes, executor.limit = True, True, MOST_ITERATIONS
        arrays = [each.copy() if isinstance(each, np.ndarray) else each for each in self.arguments]
        try:
            executor.run(root, arrays)
        except ExecutorError as error:
            return _Run(arrays, error)
        return _Run(arrays)

    def compared(self, each: Pass, before: _Run, after: _Run, root: Operation, allowed: frozenset[str]) -> Check:
        """What came out of a pass. `root` is the program before it, if the pass names what it allows."""
        if after.error is not None:
            return Check("pass", each.spec, "failed", _sentence(after.error), _place(after.error.op))
        found = self.difference(before, after)
        if found is None:
            return Check("pass", each.spec, "tested", "equal, operation by operation")
        for names in sorted({*((name,) for name in allowed), *([tuple(sorted(allowed))] if allowed else [])}, key=len):
            weak = frozenset(names)
            found = self.difference(self.run(root, weak), self.run(self.program.root, weak), weak)
            if found is None:
                return Check("pass", each.spec, "tested", f"equal but for {', '.join(names)}")
        return Check("pass", each.spec, "failed", *found)


def first_difference(old: Any, new: Any, by_value: bool = False) -> tuple[str, tuple[int, ...]] | None:
    """What differs first, and where; None if nothing does. `by_value`: floats that are close to each other do not."""
    if not isinstance(old, np.ndarray):
        return None
    exact = old.dtype == EXACT
    if exact and by_value:
        a, b = old["value"], new["value"]
        scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
        unlike = ~((np.abs(a - b) <= CLOSE * scale) | (a == b) | (np.isnan(a) & np.isnan(b)))
    else:
        unlike = old["print"] != new["print"] if exact else old != new
    if not unlike.any():
        return None
    element = tuple(int(index) for index in np.argwhere(unlike)[0])
    a, b = (each[element]["value"] if exact else each[element] for each in (old, new))
    count = f"{int(unlike.sum())} of {old.size} elements differ"
    what = f"is {b} instead of {a}"
    if exact and (by_value or abs(a - b) <= 1e-3 * abs(a)):
        what = f"is another expression, of value {b} instead of {a}"
    return f"{what}; {count}", element


def arguments_for(func: FuncOp, seed: int) -> list[Any]:
    """Random arguments for all parameters, outputs included."""
    generator = np.random.default_rng(seed)
    dims = {str(name): 5 + 2 * number for number, name in enumerate(func.symbols)}
    made: list[Any] = []
    for name, value in zip(func.parameters, func.body.args, strict=False):
        shape: Sequence[int] = ()
        if isinstance(value.type, BufferType):
            shape = [dims[dim] if isinstance(dim, str) else dim for dim in value.type.shape]
        kind = ELEMENTS[value.dtype].kind
        if kind == "float":
            numbers = rounded(generator.normal(size=shape), value.dtype)
            made.append(unknowns(numbers, f"{name} {seed}"))
        elif kind == "bool":
            made.append(np.asarray(generator.integers(0, 2, shape)).astype(bool)[()])
        else:
            made.append(np.asarray(generator.integers(0, 7, shape)).astype(value.dtype)[()])
    return made


def _writer(root: Operation, name: str) -> Operation | None:
    """The last operation that writes a parameter of this name."""
    found = None
    for op in root.walk():
        if op.name.rpartition(".")[2].startswith(("store", "atomic", "copy")):
            found = op if any(value.name.startswith(name) for value in op.operands) else found or op
    return found


def _place(op: Any) -> str:
    return "" if op is None or op.loc is UNKNOWN else f"{op.loc.file}:{op.loc.line}:{op.loc.column}"


def _sentence(error: ExecutorError | TileError) -> str:
    return str(error).splitlines()[0]
