"""Which values share a variable where loops hold operations back for a turn, or take several turns at a time."""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import pairwise

from tiledsl.analysis.gluon.schedule import PAIR, Schedule, block, ending_in, in_order
from tiledsl.codegen.names import PythonNames
from tiledsl.codegen.variables import Variables
from tiledsl.ir.core import Operation, Region, Value


class LoopVariables(Variables):
    """The variables of a scheduled launch.

    Computed operands, and what groups of warps tell each other (`told`), have variables: they are stored or converted
    as soon as they are there. What a turn computes for the next one has a variable that nothing else has, unless it is
    what a product is added to; nor do values of one stage share one with values of the other. Loops of a chain share
    what they carry and hand on. Where several turns are taken at a time, each has variables of its own up to its
    products: `copy` says which turn is meant. Of values that differ `by_consumer` the producer may have one for each:
    `consumer` says for which.
    """

    def __init__(self, body: Region, names: PythonNames, plan: Schedule, told: Iterable[Operation] = ()) -> None:
        self._plan = plan
        self.copy = self.consumer = 0
        self.by_consumer: Set[Value] = frozenset()
        self.late: dict[Value, str] = {}  # names of indices in what waits for the next turn
        self._copies: dict[tuple[int, int], str] = {}
        operands = (in_order(product.a).op for product in plan.products if block(product.a) is None)
        self._stored = {*operands, *told}
        self._held = [value for loop in plan.loops for value in loop.held]
        self._accumulators = {product.accumulator for product in plan.products}
        self._alone = {value for value in self._held if value not in self._accumulators}
        self._stage: dict[Value, int] = {}
        for loop in plan.loops:
            if loop.is_skewed:
                stage = loop.stage
                self._stage.update({value: stage[op] for op in stage for value in op.results})
                carried = zip(loop.op.iter_args, loop.op.yielded)
                self._stage.update({a: stage.get(b.op, 0) if b.op else 0 for a, b in carried})
                self._stage.update({value: 1 for value in loop.held if value in self._accumulators})
        several = [loop for loop in plan.loops if loop.at_once > 1]
        for loop in several:
            self._stage.update(dict.fromkeys(loop.op.iter_args, 1))
            early = (op for each in loop.clusters[: loop.first_products + 1] for op in each.ops)
            self._stage.update({value: 0 for op in early for value in op.results})
        super().__init__(body, names)
        first = [op for loop in several for each in loop.clusters[: loop.first_products + 1] for op in each.ops]
        own = [*(loop.op.index for loop in several), *(value for op in first for value in op.results)]
        self._own = {id(self.members(value)) for value in own}

    def name(self, value: Value) -> str:
        if value in self.late:
            return self.late[value]
        name = super().name(value)
        group = id(self.members(value))
        copy = self.copy if group in self._own else self.consumer if value in self.by_consumer else 0
        if not copy:
            return name
        if (group, copy) not in self._copies:
            self._copies[group, copy] = self.names.claim(f"{name}_{copy}")
        return self._copies[group, copy]

    def _choose_inlined(self, region: Region, length: dict[Value, int]) -> None:
        super()._choose_inlined(region, length)
        self.inlined.difference_update(op for op in self._stored if op is not None)
        self.inlined.difference_update(value.op for value in self._alone if value.op is not None)

    def _join(self, a: Value, b: Value, always: bool = False) -> bool:
        members = (*self.members(a), *self.members(b))
        apart = not self._alone.isdisjoint(members) or len({self._stage[v] for v in members if v in self._stage}) > 1
        return (always or not apart) and super()._join(a, b, always)

    def _coalesce(self, body: Region) -> None:
        for chain in self._plan.chains():
            first = chain[0]
            for loop in chain:
                for one, other in zip(first.held, loop.held, strict=True):
                    if one in self._alone:
                        self._join(one, other, always=True)
                for number, (argument, value) in enumerate(zip(loop.op.iter_args, loop.op.yielded)):
                    for product in ending_in(value):
                        if loop.stage[product] or number in loop.in_flight or loop.at_once == PAIR:
                            self._join(argument, product.out, always=True)
                            if product.accumulator in loop.held:
                                self._join(argument, product.accumulator, always=True)
            for one_loop, following in pairwise(chain):
                for result, argument in zip(one_loop.op.results, following.op.iter_args, strict=True):
                    self._join(result, argument, always=True)
        super()._coalesce(body)
