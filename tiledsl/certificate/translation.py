"""Translation validation of a kernel's own lowering: each pass, and the emitted text, mean what the program meant.

The program is executed before and after every pass in exact algebra (certificate/exact.py) on random inputs, at its own
tile shapes and a few blocks (certificate/reduction.py), and all memory of its parameters is compared. A pass must keep
every rounded operation and its order, unless it names what it allows (`Pass.allowances`), which then makes no
difference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tiledsl.certificate.algebra import Unsupported
from tiledsl.certificate.check import Check, Status
from tiledsl.certificate.exact import (
    ALLOWANCES,
    CLOSE,
    EXACT,
    KEEP_VALUES,
    ExactAlgebra,
    anonymous,
    fingerprints,
    numbers,
    unknowns,
)
from tiledsl.certificate.executor import Executor, ExecutorError
from tiledsl.certificate.executor.memory import message_of
from tiledsl.certificate.formats import rounded
from tiledsl.certificate.reduction import reduced, tiles_along
from tiledsl.certificate.remembered import Remembered
from tiledsl.certificate.source.module import SourceError, SourceModule
from tiledsl.codegen.emitted import EmittedModule
from tiledsl.codegen.names import quoted
from tiledsl.codegen.triton_source import emit
from tiledsl.dialects import tile
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.errors import TileError, users_frame
from tiledsl.formulas import value_of
from tiledsl.ir.core import Operation
from tiledsl.ir.pass_manager import Pass, PassManager, Program, is_ours
from tiledsl.ir.printer import print_op
from tiledsl.ir.types import ELEMENTS, BufferType, ScalarType, is_float
from tiledsl.ir.verifier import VerifyError, verify
from tiledsl.location import UNKNOWN
from tiledsl.pass_promises import run_in_place
from tiledsl.passes import default_pipeline
from tiledsl.runtime.lowering import rest_of

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

MOST_ITERATIONS = 10_000
MOST_ELEMENTS = 1 << 23
# Integers are drawn below these, or (None) from all that the type has: as indices of rows, say, the first may lie
# outside where the second does not.
INTEGERS = (7, 2, 1)
ALL_INTEGERS = (None, *INTEGERS)
SPECIAL = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -1.5, 2.5, 1.0, -1.0, 448.0, 2.0**-20])


_SEED = 0
Sizes = Literal["ragged", "whole", "single"]
# By what they are: the sizes, and what the scalar parameters that are no floats are, None for random numbers.
OTHER_INPUTS: dict[str, tuple[Sizes, int | None]] = {
    "NaN, infinities, zeros, extreme integers, whole tiles, tensors that begin anywhere": ("whole", None),
    "sizes of 1": ("single", None),
    "scalars of 0": ("ragged", 0),
    "negative scalars": ("ragged", -1),
}


def check_translation(kernel: Kernel, *, passes: bool = True, source: bool = True) -> list[Check]:
    """What the levels of a kernel's lowering mean, compared.

    passes: one Check of kind "pass" for each pass that changes the program: "tested", "failed" or, where a program
    cannot be executed here, "unknown". A failed one names the pass, the parameter, the first element that differs and
    its line.

    source: one Check of kind "source": the text of kernel.source does what the lowered program does, operation by
    operation. The text is executed, host launcher included, with stand-ins for torch, triton and gluon, every program
    of every grid. Of a program whose sizes are reduced it is the text emitted for these sizes, which differs in
    numbers. Others compare it on other inputs with the program as it was written.
    """
    return _Levels(kernel).checked(passes=passes, source=source)


@dataclass
class _Run:
    """What a program left in the memory of its parameters, in one algebra. Of prints and assertions the messages, of
    those that it came to and of all that it has."""

    arrays: list[Any]
    error: ExecutorError | None = None
    said: Set[str] = frozenset()
    messages: Set[str] = frozenset()
    strayed: ExecutorError | None = None  # an access outside of on-chip memory


class _Levels:
    """The levels of a kernel's lowering, executed one after the other."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        whole = kernel._build()
        smaller = reduced(whole)
        self.is_reduced = smaller is not None
        self.func = smaller or whole
        original = self.func.clone({})
        assert isinstance(original, tile.FuncOp)
        self.original = original
        self.program = Program(self.func, kernel.target)
        self.names = self.func.parameters
        self.rounds32 = any(value.dtype == "float64" for op in self.func.walk() for value in op.results)
        self.arguments: list[Any] = []
        self.remembered = Remembered()
        self.allowed: frozenset[str] = frozenset()  # what passes needed of what they name
        self.named: frozenset[str] = frozenset()  # what passes name that changed the program

    def checked(self, *, passes: bool, source: bool) -> list[Check]:
        try:
            before = self.first()
        except ExecutorError as error:
            return [Check("pass" if passes else "source", "elaborate", "unknown", _sentence(error), _place(error.op))]
        checks = []
        for check, after in self.lowered(before, compares=passes):
            before = after
            checks += [check] if check is not None else []
            if check is not None and check.subject == "lowering":
                return checks
        if source:
            checks.append(self.source_check(before))
        if source and checks[-1].status == "tested":
            values = self.original.body.args[: len(self.names)]
            has_scalars = any(isinstance(each.type, ScalarType) and not is_float(each.dtype) for each in values)
            for name, (sizes, scalar) in OTHER_INPUTS.items():
                if sizes == "whole" or (has_scalars if scalar is not None else self.func.symbols):
                    checks += self.other_inputs(name, sizes, scalar)
        return checks

    def first(
        self,
        integers: Sequence[int | None] = INTEGERS,
        sizes: Sizes = "ragged",
        special: bool = False,
        scalar: int | None = None,
    ) -> _Run:
        """The program as it was elaborated, with the first arguments for which it has a meaning. Raises
        ExecutorError."""
        error: ExecutorError | None = None
        for below in integers:
            self.arguments = arguments_for(self.original, _SEED, below, sizes, special)
            if scalar is not None:
                self.arguments = [_replaced(each, scalar) for each in self.arguments]
            made = self.run(self.original, self.allowed)
            if made.strayed is not None and self.difference(made, self.run(self.original, self.allowed, filler=1)):
                made.error = made.strayed
            if made.error is None:
                return made
            if isinstance(made.error, Unsupported):
                raise made.error
            error = error or made.error
        assert error is not None
        raise error

    def lowered(self, before: _Run, *, compares: bool) -> Iterator[tuple[Check | None, _Run]]:
        """The passes, with what the program does after each that changed it."""
        text = print_op(self.func)
        passes = _passes(self.kernel)
        for number, current in enumerate(passes):
            try:
                allowed = _allowed(current, self.program) if compares else frozenset()
                root = self.func.clone({}) if allowed else self.func
                run_in_place(current, self.program, is_ours(type(current)))
                verify(self.func)
            except (Exception, VerifyError) as error:
                yield Check("pass", "lowering", "failed", _broken(current, error)), before
                return
            if not compares and number + 1 < len(passes):
                continue
            was, text = text, print_op(self.func)
            if text == was:
                continue
            self.named |= allowed
            after = self.run(self.func)
            yield self.compared(current, before, after, root, allowed) if compares else None, after
            before = after if after.error is None else before

    def run(self, root: Operation, allowed: frozenset[str] = frozenset(), filler: int = 0) -> _Run:
        """filler: what is read outside of on-chip memory, which must make no difference."""
        executor = Executor(self.algebra(allowed))
        executor.filler = filler
        executor.zero, executor.in_lanes, executor.limit = True, True, MOST_ITERATIONS
        arrays = self.fresh()
        try:
            executor.run(root, arrays)
        except ExecutorError as error:
            return _Run(arrays, error)
        return _Run(arrays, None, executor.said, _messages(root), executor.strayed)

    def fresh(self) -> list[Any]:
        return [_copied(each) if isinstance(each, np.ndarray) else each for each in self.arguments]

    def compared(self, lowering: Pass, before: _Run, after: _Run, root: Operation, allowed: frozenset[str]) -> Check:
        """What came out of a pass. `root` is the program before it, if the pass names what it allows."""
        if after.error is not None:
            return Check("pass", lowering.spec, _status(after.error), _sentence(after.error), _place(after.error.op))
        difference = self.difference(before, after)
        if difference is None:
            return Check("pass", lowering.spec, "tested", "equal, operation by operation")
        attempts = [(name,) for name in sorted(allowed)]
        if not self.rounds32 and self.difference(before, after, frozenset({"rescaling"})) is not None:
            attempts.sort(key=lambda names: names[0] in KEEP_VALUES)  # they do not make up for other values
        together = [tuple(sorted(allowed))] if len(allowed) > 1 else []
        for names in [*attempts, *together]:
            weak = frozenset(names)
            difference = self.difference(self.run(root, weak), self.run(self.func, weak), weak)
            if difference is None:
                self.allowed |= weak
                return Check("pass", lowering.spec, "tested", f"equal but for {', '.join(names)}")
        return Check("pass", lowering.spec, "failed", *difference)

    def source_check(self, before: _Run) -> Check:
        """The text against the lowered program, of which `before` is what it does."""
        name = self.kernel.name
        if before.error is not None:
            return Check("source", name, "unknown", _sentence(before.error), _place(before.error.op))
        module, how = self.module(), "equal to the lowered program, operation by operation"
        if any(map(targets_gluon, self.func.walk())):
            how += ", in every order of producer and consumers"
        if self.is_reduced:
            alike = _without_numbers(module.source) == _without_numbers(self.kernel.source)
            how += ", at reduced sizes" + (
                ": the text differs in numbers alone" if alike else ", for which the text differs"
            )
            if self.emitted_again() != self.kernel.source:
                return Check("source", name, "failed", "it is not what the program lowers to")
        return self.source_against(name, before, self.run_source(module), how)

    def source_against(
        self, subject: str, before: _Run, after: _Run, how: str, allowed: frozenset[str] = frozenset()
    ) -> Check:
        """What the text did against what it is to do."""
        if isinstance(after.error, SourceError):
            status: Status = "unknown" if after.error.is_unknown else "failed"
            return Check("source", subject, status, f"line {after.error.line}: {after.error}", after.error.origin)
        found = self.difference(before, after, allowed)
        return Check("source", subject, "tested", how) if found is None else Check("source", subject, "failed", *found)

    def module(self) -> EmittedModule:
        """The text, once the program is lowered; of a program whose sizes are reduced, the text for these."""
        return emit(self.func) if self.is_reduced else self.kernel.module

    def other_inputs(self, name: str, sizes: Sizes, scalar: int | None) -> list[Check]:
        """The text against the program as it was elaborated, on other inputs; nothing if the program has no meaning for
        them. What passes allow makes no difference, if it must not."""
        subject, how = f"{self.kernel.name} with {name}", "equal to the program as it was written"
        made: list[Check] = []
        needed = self.allowed
        for allowed in dict.fromkeys([needed, self.named]):  # other inputs may need more, such as a loop's first turn
            self.allowed = allowed
            try:
                before = self.first(INTEGERS if scalar is not None else ALL_INTEGERS, sizes, sizes == "whole", scalar)
            except ExecutorError:
                break
            after = self.run_source(self.module(), allowed, is_misaligned=sizes == "whole")
            made = [self.source_against(subject, before, after, how, allowed)]
            if made[0].status == "tested":
                break
        self.allowed = needed
        return made

    def emitted_again(self) -> str:
        """The source of the whole program."""
        program = Program(self.kernel._build(), self.kernel.target)
        PassManager(_passes(self.kernel), verify_each=False).run(program)
        return emit(program.root).source

    def algebra(self, allowed: frozenset[str] = frozenset()) -> ExactAlgebra:
        return ExactAlgebra(allowed, rounds32=self.rounds32, remembered=self.remembered)

    def run_source(
        self, module: EmittedModule, allowed: frozenset[str] = frozenset(), is_misaligned: bool = False
    ) -> _Run:
        arrays = self.fresh()
        try:
            loaded = SourceModule(module.source, self.algebra(allowed), is_misaligned)
            loaded.call(module.into, arrays, [each.dtype for each in self.kernel.params])
        except ExecutorError as error:
            return _Run(arrays, error)
        found = {each for each in _messages(self.original) if quoted(each) in module.source}
        return _Run(arrays, None, loaded.language.said, found)

    def difference(self, before: _Run, after: _Run, allowed: frozenset[str] = frozenset()) -> tuple[str, str] | None:
        """What differs first, and the place of what wrote it."""
        for run in (before, after):
            if run.error is not None:
                return _sentence(run.error), _place(run.error.op)
        for name, old, new in zip(self.names, before.arrays, after.arrays, strict=True):
            found = first_difference(old, new, "rescaling" in allowed, "recurrence" in allowed)
            if found is not None:
                detail, element = found
                return f"{name}{list(element)} {detail}", _place(_writer(self.func, name))
        for message in sorted(before.said - after.messages):
            return f"the message {message!r} of a print or an assertion is lost", ""
        return None


def _passes(kernel: Kernel) -> Sequence[Pass]:
    return rest_of(default_pipeline(kernel.pass_configs), kernel._resumed_after)


def _without_numbers(source: str) -> str:
    return re.sub(r"\b\d+\b", "0", source)


def first_difference(
    old: Any, new: Any, by_value: bool = False, may_overflow: bool = False
) -> tuple[str, tuple[int, ...]] | None:
    """What differs first, and where; None if nothing does. `by_value`: floats that are close to each other do not.
    `may_overflow`: nor do those of which one is infinite or NaN."""
    if not isinstance(old, np.ndarray):
        return None
    exact = old.dtype == EXACT
    if exact and by_value:
        a, b = old.real, new.real
        scale = np.abs(a[np.isfinite(a)]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            unlike = ~((np.abs(a - b) <= CLOSE * scale) | (a == b) | (np.isnan(a) & np.isnan(b)))
    else:
        unlike = fingerprints(old) != fingerprints(new) if exact else old != new
    if exact and may_overflow:
        unlike &= np.isfinite(old.real) & np.isfinite(new.real)
    if not unlike.any():
        return None
    element = tuple(int(index) for index in np.argwhere(unlike)[0])
    a, b = (each[element].real if exact else each[element] for each in (old, new))
    count = f"{int(unlike.sum())} of {old.size} elements differ"
    what = f"is {b} instead of {a}"
    if exact and (by_value or abs(a - b) <= 1e-3 * abs(a)):
        what = f"is another expression, of value {b} instead of {a}"
        if a == b:
            what = f"is another expression: {a} here as before, but not known to be equal to the last bit"
    return f"{what}; {count}", element


def arguments_for(
    func: tile.FuncOp, seed: int, integers_below: int | None, sizes: Sizes = "ragged", special: bool = False
) -> list[Any]:
    """Random arguments for all parameters, outputs included. Raises ExecutorError for what is too large."""
    generator = np.random.default_rng(seed)
    dims = _symbols(func, sizes)
    arguments: list[Any] = []
    for name, value in zip(func.parameters, func.body.args, strict=False):
        shape: tuple[int, ...] = ()
        steps = None
        if isinstance(value.type, BufferType):
            shape = tuple(dims[dim] if isinstance(dim, str) else dim for dim in value.type.shape)
            strides = value.type.strides
            steps = None if strides is None else [dims[each] if isinstance(each, str) else each for each in strides]
        length = int(np.prod(shape)) if steps is None else _reach(shape, steps)
        if length > MOST_ELEMENTS:
            raise Unsupported(f"{name} has {length} elements, too many to execute")
        below = integers_below
        if below is not None and not isinstance(value.type, BufferType):
            below = max(below, 2)
        extent = shape if steps is None else (length,)
        drawn = _drawn(generator, f"{name} {seed}", value.dtype, extent, below, special)
        if steps is not None:
            drawn = np.lib.stride_tricks.as_strided(drawn, shape, [step * drawn.itemsize for step in steps])
        arguments.append(drawn if isinstance(value.type, BufferType) else drawn[()])
    return arguments


def _replaced(argument: Any, scalar: int) -> Any:
    """This number for a scalar that is no float, in its type."""
    if isinstance(argument, np.ndarray) or argument.dtype == EXACT:
        return argument
    return np.asarray(scalar).astype(argument.dtype)[()]


def _copied(array: np.ndarray) -> np.ndarray:
    """A copy with the same strides."""
    if array.copy().strides == array.strides or not array.size:
        return array.copy()
    steps = [step // array.itemsize for step in array.strides]
    flat = np.lib.stride_tricks.as_strided(array, (_reach(array.shape, steps),), (array.itemsize,)).copy()
    return np.lib.stride_tricks.as_strided(flat, array.shape, array.strides)


def _reach(shape: tuple[int, ...], steps: Sequence[int]) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


def _drawn(
    generator: np.random.Generator, name: str, dtype: str, shape: tuple[int, ...], below: int | None, special: bool
) -> Any:
    kind = ELEMENTS[dtype].kind
    if kind == "float":
        values = _signed_lines(generator, generator.normal(size=shape), -2 if special and len(shape) > 1 else -1)
        with np.errstate(all="ignore"):
            drawn = np.array(unknowns(rounded(values, dtype), name))
            if special and shape:  # in a few places: a sum with NaN says nothing about its other terms
                count = min(8 + values.size // 64, 64, values.size)
                chosen = anonymous(numbers(rounded(np.resize(SPECIAL, count), dtype)))
                drawn.reshape(-1)[generator.choice(values.size, count, replace=False)] = chosen
        return drawn
    if kind == "bool":
        return np.asarray(generator.integers(0, 2, shape)).astype(bool)
    if below is None:
        limits = np.iinfo(dtype)
        any_of_all = generator.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
        extreme = generator.choice(np.array([limits.min, limits.max, 0, limits.max // 2 + 1], dtype), shape)
        few = generator.integers(0, 7, shape).astype(dtype)
        return np.asarray(np.choose(generator.integers(0, 3, shape), [any_of_all, extreme, few]))
    return np.asarray(generator.integers(0, below, shape)).astype(dtype)


def _signed_lines(generator: np.random.Generator, values: Any, axis: int) -> Any:
    """The numbers, but that a third of the lines along an axis are negative, and a third positive: what a maximum, a
    logarithm, or a power relative to it, makes of padding shows in such alone."""
    if not np.shape(values):
        return values
    lines = [1 if at == axis % values.ndim else size for at, size in enumerate(values.shape)]
    sign = generator.integers(-1, 2, lines)
    return np.where(sign == 0, values, np.abs(values) * sign)


def _symbols(func: tile.FuncOp, sizes: Sizes) -> dict[str, int]:
    """Sizes for the symbols of a program: two tiles and a bit, or a multiple of the tiles where they are assumed, or
    where `sizes` asks for whole tiles; or 1. The tiles are those that walk along the symbol's dimension: of what a
    block takes one element of, few are enough."""
    extents = [size for op in func.walk() if isinstance(op, tile.CopyOp) for size in op.shape]
    assumes = any(isinstance(op, tile.AssumeOp) for op in func.walk())
    along: dict[str, set[int]] = {}
    walked = tiles_along(func)
    for value in () if assumes else func.body.args:
        for axis, dim in enumerate(value.type.shape if isinstance(value.type, BufferType) else ()):
            along.setdefault(str(dim), set()).update(walked.get((value, axis), {1}))
    sizes_of = {}
    for number, (name, source) in enumerate(zip(func.symbols, func.symbol_sources, strict=True)):
        unit = max(along.get(str(name)) or extents, default=8)
        whole = assumes or "//" in str(source) or sizes == "whole"
        ragged = unit + unit // 2 + 1 + 2 * number
        sizes_of[str(name)] = 1 if sizes == "single" else 2 * unit if whole else ragged
    for name, formula in func.formulas:
        if func.symbol_sources[func.symbols.index(name)] == tile.COMPUTED:
            computed = value_of(formula, sizes_of)
            if computed is None:
                raise Unsupported(f"the size {name} depends on a number of the call")
            sizes_of[name] = computed

    def known(dim: int | str) -> int:
        return sizes_of[dim] if isinstance(dim, str) else dim

    for value in func.body.args[: len(func.parameters)]:  # rows must not overlap
        strides = value.type.strides if isinstance(value.type, BufferType) else None
        inner = 1
        for size, step in reversed(list(zip(value.type.shape, strides, strict=True)) if strides else []):
            if isinstance(step, str) and sizes_of[step] < inner:
                sizes_of[step] = -(-inner // 16) * 16 + (sizes == "ragged")
            inner += (known(size) - 1) * known(step)
    return sizes_of


def _messages(root: Operation) -> set[str]:
    return {message_of(op) for op in root.walk() if isinstance(op, (tile.AssertOp, tile.PrintOp))}


def _writer(root: Operation, name: str) -> Operation | None:
    """The last operation that writes a parameter of this name."""
    found = None
    for op in root.walk():
        if op.name.rpartition(".")[2].startswith(("store", "atomic", "copy")):
            found = op if any(value.name.startswith(name) for value in op.operands) else found or op
    return found


def _allowed(current: Pass, program: Program) -> frozenset[str]:
    """What a pass may change of the bits. Raises TileError for anything but names of ALLOWANCES."""
    names = current.allowances(program)
    if not isinstance(names, (frozenset, set)) or not names <= {*ALLOWANCES}:
        raise TileError(
            f"allowances returned {names!r}, where a frozenset of these names is asked: {', '.join(ALLOWANCES)}"
        )
    return frozenset(names)


def _status(error: ExecutorError) -> Status:
    return "unknown" if isinstance(error, Unsupported) else "failed"


def _place(op: Any) -> str:
    return "" if op is None or op.loc is UNKNOWN else str(op.loc)


def _broken(current: Pass, error: Exception) -> str:
    """What a pass raised, and the user's line that did."""
    frame = None if is_ours(type(current)) or isinstance(error, TileError) else users_frame(error)
    if frame is None:
        return f"{current.spec}: {_sentence(error)}"
    return f"{current.spec}: {type(error).__name__}: {error}, at {frame.filename}:{frame.lineno}, in {frame.name}"


def _sentence(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]
