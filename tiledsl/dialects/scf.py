"""Structured control flow. Every region ends in its terminator, also where nothing is yielded."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.ir.core import Effect, Operation, Region, Value
from tiledsl.ir.fields import attr, operand, operands, region
from tiledsl.ir.types import ScalarType, Type


class YieldOp(Operation):
    """Ends a region and hands values to the operation around it. Example: `scf.yield [%a, %b]`"""

    name = "scf.yield"
    effects = Effect.TERMINATE
    values = operands()


class ForOp(Operation):
    """`for i in range(lower, upper, step)`, with values carried from iteration to iteration.

    The body's arguments are the index and the carried values; the results are the carried values after the last
    iteration. `step` may be negative but not 0. num_stages: software pipelining depth asked for (0: not asked).
    unroll: 0 no, 1 completely (constant bounds), n > 1 by that factor as a hint. flatten: make one loop of this one and
    the loop inside, so that the pipeline of the inner loop does not run dry between two iterations of this one.
    vectorized: the iterations are computed together (parallelize-loops) where nobody can tell. alike: groups of carried
    values, by their numbers, that begin as one value and may take each other's places.

    Example: `%r = scf.for %lo, %hi, %step[%init] {num_stages = 3} : tensor<64x64xfloat32> (%i: int32, %acc: tensor<64x64xfloat32>) { ... }`
    """  # noqa: E501

    name = "scf.for"
    effects = Effect.REGION
    variadic_results = True
    lower = operand(ScalarType)
    upper = operand(ScalarType)
    step = operand(ScalarType)
    inits = operands()
    num_stages = attr(int, 0)
    unroll = attr(int, 0)
    flatten = attr(bool, False)
    vectorized = attr(bool, False)
    alike = attr(tuple, ())
    body = region()

    def infer(self) -> Sequence[Type]:
        return [value.type for value in self.inits]

    @property
    def index(self) -> Value:
        return self.body.args[0]

    @property
    def iter_args(self) -> list[Value]:
        """The carried values in the body."""
        return self.body.args[1:]

    @property
    def yielded(self) -> list[Value]:
        """The carried values of the next iteration."""
        return self.body.terminator.operands

    def verify(self) -> None:
        _same_types("bounds", [self.lower, self.upper, self.step], self.body.args[:1] * 3)
        _same_types("carried values", self.inits, self.body.args[1:])
        _same_types("yielded values", self.body.terminator.operands, self.body.args[1:])
        _same_types("results", self.results, self.body.args[1:])


class IfOp(Operation):
    """Runs one of two regions; the results are what it yields.

    Example: `%r = scf.if %c : int32 { ... } { ... }`
    """

    name = "scf.if"
    effects = Effect.REGION
    variadic_results = True
    condition = operand(ScalarType)
    then = region()
    orelse = region()

    def verify(self) -> None:
        if self.condition.dtype != "bool":
            raise ValueError(f"the condition is {self.condition.dtype}")
        for inner in self.regions:
            _same_types("yielded values", inner.terminator.operands, self.results)


class ConditionOp(Operation):
    """Ends a while's `before` region: go on with `values` while the condition holds. Example: `scf.condition %c[%a]`"""

    name = "scf.condition"
    effects = Effect.TERMINATE
    condition = operand(ScalarType)
    values = operands()


class WhileOp(Operation):
    """`before` computes the condition from the carried values, `after` is the body and yields the next ones.

    Both regions have the carried values as arguments; the results are the values that `before` last handed on.
    alike: as in `scf.for`.

    Example: `%r = scf.while [%init] : int32 (%a: int32) { ... } (%b: int32) { ... }`
    """

    name = "scf.while"
    effects = Effect.REGION | Effect.ORDERED  # it may not end, so it is never dropped or moved
    variadic_results = True
    inits = operands()
    alike = attr(tuple, ())
    before = region()
    after = region()

    def infer(self) -> Sequence[Type]:
        return [value.type for value in self.inits]

    @property
    def iter_args(self) -> list[Value]:
        """The carried values before the condition is computed."""
        return self.before.args

    @property
    def yielded(self) -> list[Value]:
        """The carried values of the next iteration."""
        return self.after.terminator.operands

    def verify(self) -> None:
        condition = self.before.terminator
        if not isinstance(condition, ConditionOp):
            raise ValueError("the first region does not end in scf.condition")
        _same_types("carried values", self.inits, self.before.args)
        _same_types("handed on values", condition.values, self.after.args)
        _same_types("yielded values", self.after.terminator.operands, self.before.args)
        _same_types("results", self.results, self.after.args)


def _same_types(what: str, values: Sequence[Value], expected: Sequence[Value]) -> None:
    if [value.type for value in values] != [value.type for value in expected]:
        raise ValueError(
            f"{what}: {', '.join(str(value.type) for value in values)} instead of "
            f"{', '.join(str(value.type) for value in expected)}"
        )


def yielding(inner: Region, values: Sequence[Value] = ()) -> Region:
    """End a region that has no terminator yet."""
    inner.insert(YieldOp(list(values)))
    return inner
