"""Building operations, and pattern rewriting with a worklist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tiledsl.ir.core import OPERATIONS, Effect, Operation, Region, Value
from tiledsl.ir.kinds import Op
from tiledsl.ir.types import Type
from tiledsl.location import UNKNOWN, Loc


class Builder:
    """Inserts operations at a point: before `before`, or at the end of `region`."""

    def __init__(self, region: Region, before: Operation | None = None, loc: Loc = UNKNOWN) -> None:
        self.region = region
        self.before = before
        self.loc = loc

    @classmethod
    def at(cls, op: Operation) -> Builder:
        """A builder that inserts before `op`, with its location."""
        assert op.parent is not None, f"{op.name} stands in no region"
        return cls(op.parent, op, op.loc)

    def insert(self, op: Op) -> Op:
        op.loc = self.loc if op.loc is UNKNOWN else op.loc
        self.region.insert(op, self.before)
        return op

    def constant(self, value: bool | int | float, type: Type) -> Value:
        """A constant; for a tensor type, a splat."""
        return self.insert(OPERATIONS["arith.constant"](value=value, result_types=[type])).results[0]


class Rewriter(Builder):
    """The builder that patterns use; it tells the driver what changed."""

    before: Operation

    def __init__(self, worklist: dict[Operation, None], analysis: Any) -> None:  # the driver says before what
        self._worklist = worklist  # operations still to be looked at, last in first out; some are gone
        self.analysis = analysis  # what the patterns share, as given to apply_patterns

    def insert(self, op: Op) -> Op:
        before = self.before
        assert before.parent is not None, f"{before.name} is gone: nothing can be inserted before it"
        op.loc = before.loc if op.loc is UNKNOWN else op.loc
        self._worklist[op] = None
        for inner in op.regions:
            self._worklist.update(dict.fromkeys(inner.walk()))
        before.parent.insert(op, before)
        return op

    def replace(self, op: Operation, values: Sequence[Value]) -> None:
        """Replace the results of `op` by values and erase it."""
        for old, new in zip(op.results, values, strict=True):
            self._worklist.update(dict.fromkeys(old.uses))
            old.replace_with(new)
        self.erase(op)

    def erase(self, op: Operation) -> None:
        for inner in op.walk() if op.regions else (op,):
            for value in inner.operands:
                if value.op is not None:
                    self._worklist[value.op] = None
        op.erase()

    def changed(self, op: Operation) -> None:
        """Note that another operation was changed in place: it and its users are visited again."""
        self._worklist[op] = None
        for value in op.results:
            self._worklist.update(dict.fromkeys(value.uses))


Pattern = Callable[[Operation, Rewriter], bool]


def pattern(*op_types: type[Operation]) -> Callable[[Callable[[Op, Rewriter], bool]], Pattern]:
    """Mark a function as a rewrite pattern, which returns whether it changed anything: then the operation and its users
    are visited again.

    It applies to operations of these classes and of classes derived from them; without classes, to all operations.
    """

    def mark(function: Callable[[Op, Rewriter], bool]) -> Pattern:
        function.op_types = op_types or (Operation,)  # type: ignore[attr-defined]
        return function  # type: ignore[return-value]

    return mark


class Patterns(dict[type[Operation], tuple[list[Pattern], bool, bool]]):
    """Patterns in the order in which they are tried.

    Maps an operation class to the patterns that apply to it, whether such an operation may be pure, and whether it
    folds.
    """

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        super().__init__()
        self.every = tuple(patterns)

    def __missing__(self, kind: type[Operation]) -> tuple[list[Pattern], bool, bool]:
        fitting = [each for each in self.every if issubclass(kind, getattr(each, "op_types", Operation))]
        maybe_pure = kind.effects in (Effect.NONE, Effect.REGION)
        return self.setdefault(kind, (fitting, maybe_pure, kind.fold is not Operation.fold))


class NoFixpointError(Exception):
    """A set of patterns does not terminate: an internal bug. Names the pattern that fires most often."""


def apply_patterns(root: Operation, patterns: Patterns, *, fold: bool = False, analysis: Any = None) -> int:
    """Rewrite below `root` until nothing changes; return the number of changes. Patterns find `analysis` in `rw`.

    With `fold`, operations are also folded, and dead pure ones are erased. More than 64 changes for each initial
    operation count as divergence.
    """
    start = [op for region in root.regions for op in region.walk()]
    first = start if fold else [op for op in start if patterns[type(op)][0]]
    worklist: dict[Operation, None] = dict.fromkeys(reversed(first))
    rewriter = Rewriter(worklist, analysis)
    changes, limit = 0, 64 * (len(start) + 16)
    fired: list[Pattern] = []
    while worklist:
        op, _ = worklist.popitem()
        fitting, maybe_pure, folds = patterns[type(op)]
        if not (fitting or fold) or op.parent is None:
            continue
        rewriter.before = op
        if fold:
            if maybe_pure and not op.is_used and op.is_pure:
                rewriter.erase(op)
                changes += 1
                continue
            if folds and (folded := op.fold()) is not None:
                both = zip(op.results, folded, strict=True)
                values = [new if isinstance(new, Value) else rewriter.constant(new, old.type) for old, new in both]
                rewriter.replace(op, values)
                changes += 1
                continue
        operands = op.operands
        for rewrite in fitting:
            if rewrite(op, rewriter):
                changes += 1
                unread = [value.op for value in operands if not value.uses and value.op is not None]
                worklist.update(dict.fromkeys(unread))
                fired.append(rewrite)
                if changes > limit:
                    worst, times = Counter(getattr(each, "__name__", "?") for each in fired).most_common(1)[0]
                    raise NoFixpointError(f"no fixpoint after {changes} changes; {worst} fired {times} times")
                if op.parent is not None:
                    rewriter.changed(op)
                break
            assert op.parent is not None, f"{rewrite} erased {op.name} and says that it changed nothing"
    return changes
