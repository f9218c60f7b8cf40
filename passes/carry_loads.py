"""carry-loads: what products of few rows are multiplied by comes a turn ahead, in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tiledsl.analysis.dependence import depends_on
from tiledsl.analysis.hardware import MEASURED_ARCH
from tiledsl.analysis.loop_memory import rewritten_buffers
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import targets_gluon
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32

_ROWS = 16  # of a product whose operands come to registers, and whose warps have columns of their own


@dataclass(frozen=True)
class CarryLoads(Pass):
    """Load rows and columns of values beside products of few rows a turn ahead, and carry them.

    Before:  scf.for %c0, %n, %c1[%zeros] (%k, %total) {         After:  %s0 = tile.load %S[%c0, %j]
               %p = tensor.dot %a, %w, %zero                             scf.for ...[%zeros, %s0] (%k, %total, %s) {
               %s = tile.load %S[%k, %j]                                   %t = tile.load %S[min(%k + 1, %last), %j]
               %q = arith.mul %p, %s                                       %p = tensor.dot %a, %w, %zero
               ... }                                                       %q = arith.mul %p, %s ... }

    Triton copies such values to shared memory a few turns ahead, laid out as the product that they meet: each thread
    copies the four bytes that it needs, though rows of threads need the same.
    On sm_90, in loops that load ahead, and where nothing of what is loaded is written. On request, until it is timed.
    Needs:   promote-buffers. Runs before guard-accesses, which sees the indices of the first turn and of the last.
    """

    name = "carry-loads"
    enabled: bool = False

    def run(self, program: Program) -> None:
        target = program.target
        if not self.enabled or target is None or target.arch != MEASURED_ARCH:
            return
        for kernel in tile.kernels(program.root):
            if not targets_gluon(kernel):
                for loop in of_kinds(list(kernel.walk()), scf.ForOp):
                    if loop.num_stages > 1 and constant_of(loop.step) == 1 and not rewritten_buffers(loop):
                        _carry(loop)


def _carry(loop: scf.ForOp) -> None:
    dots = of_kinds(loop.body, tensor.DotOp)
    if not dots or any(dot.out.shape[0] > _ROWS for dot in dots):
        return
    loads = [op for op in of_kinds(loop.body, tile.LoadOp) if max(op.out.shape, default=1) == prod(op.out.shape) > 1]
    operands = [value for dot in dots for value in (dot.a, dot.b)]
    load_ahead(loop, [op for op in loads if not any(depends_on(value, [op.out]) for value in operands)])


def load_ahead(loop: scf.ForOp, beside: Sequence[Operation]) -> None:
    """Load what is `beside` a product through pointers one iteration ahead, so that it is there when the product is.

    Before:  for %k (%acc) { %s = tile.load %S[%k]; ... }
    After:   %s0 = tile.load %S[lower]; for %k (%acc, %s = %s0) { %next = tile.load %S[min(%k + 1, last)]; ...; yield }

    A loop that has no iterations loads in vain, and what guards need to see of indices, they see.
    """
    arguments = set(loop.iter_args)
    loads = []
    for op in beside:
        if isinstance(op, tile.LoadOp):
            needed = _closure(op, loop.body)
            if not any(value in arguments for each in needed for value in each.operands):
                loads.append((op, needed))
    if not loads:
        return
    at, inside = Builder.at(loop), Builder(loop.body, loop.body.first, loop.loc)
    one = inside.constant(1, INT32)
    last = inside.insert(arith.SubOp(loop.upper, one)).result
    step = inside.insert(arith.MinOp(inside.insert(arith.AddOp(loop.index, one)).result, last, names=["ahead"])).result
    first_values, next_values = {loop.index: loop.lower}, {loop.index: step}
    inits, yielded = list(loop.inits), list(loop.yielded)
    for op, needed in loads:
        for each in needed:
            for place, mapping in ((at, first_values), (inside, next_values)):
                if each.results[0] not in mapping:
                    place.insert(each.clone(mapping))
        inits.append(first_values[op.out])
        yielded.append(next_values[op.out])
    for op, _ in loads:
        op.out.replace_with(loop.body.add_arg(op.out.type, op.out.name or f"{op.buffer.name or 'value'}_now"))
        op.erase()
    loop.body.terminator.set_field("values", yielded)
    added = inits[len(loop.results) :]
    loop.set_field("inits", inits)
    loop.results = [*loop.results, *(Value(value.type, loop, value.name) for value in added)]


def _closure(op: Operation, body: Region) -> list[Operation]:
    """The operation after those of the body that it needs, in order."""
    wanted = {op}
    for each in reversed(list(body)):
        if any(user in wanted for value in each.results for user in value.uses):
            wanted.add(each)
    return [each for each in body if each in wanted]
