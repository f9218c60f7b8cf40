"""Selects that repeat the mask of a load or of a store disappear."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiledsl.analysis.dependence import stripped
from tiledsl.analysis.implications import Known
from tiledsl.analysis.ranges import Ranges
from tiledsl.dialects import arith, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.canonicalize import CANONICAL_PATTERNS, canonicalize

LONGEST = 64  # computations between a select and its write
# What a select keeps from a divisor, such as 0, must not come to it, even where nothing is written.


@dataclass(frozen=True)
class DropRepeatedMasks(Pass):
    """Drop selects whose condition holds wherever the mask of the load before them, or of the write after them, does.

    Before:  %x = tile.load %A[%rows, %columns] mask=%in      After:  %x = tile.load %A[%rows, %columns] mask=%in
             %y = arith.select %in, %x, %c0                           (%x for %y)

    A load gives 0 where its mask is false, which casts keep, and there the select may give 0 only. What is computed
    element by element for one write alone may be anything where that write's mask is false, unless something is
    divided by it. So may one side of a select be where the other is chosen: of `if c: x = a` and `if not c: x = b` it
    leaves no old x. A condition is known to hold by the comparisons of the mask: the same ones, or of the same sums
    with numbers that are no stricter, where the sums do not wrap.
    Needs:   guard-accesses: it makes most masks. Runs before select-access: blocks have no masks, and products read
             what nothing stands in front of.
    """

    name = "drop-repeated-masks"

    def run(self, program: Program) -> None:
        selects: list[arith.SelectOp] = of_kinds(program.root.walk(), arith.SelectOp)
        if not selects:
            return
        masks = _Masks(Ranges(program.root))
        changed = [masks.drop(op) for op in selects]
        if any(changed):
            canonicalize(program.root, CANONICAL_PATTERNS)  # loops no longer carry what is not read


@dataclass
class _Masks:
    """What is known of the elements of masks."""

    ranges: Ranges
    known: dict[tuple[Value, bool], Known] = field(default_factory=dict)

    def drop(self, op: arith.SelectOp) -> bool:
        """Simplify one select, after those that it is computed from; return whether anything changed."""
        changed = False
        for side, truth in ((1, True), (2, False)):
            chosen = self._chosen(op.operands[side], op.condition, truth)
            if chosen is not None:
                operands = op.operands
                chosen = _shaped(op, chosen, operands[side])
                op.set_operands([chosen if place == side else value for place, value in enumerate(operands)])
                changed = True
        for value, filler, truth in ((op.on_true, op.on_false, True), (op.on_false, op.on_true, False)):
            for mask in (_mask_of_load(value, filler), _mask_of_write(op)):
                if mask is not None and self._of(mask, True).implies(op.condition, truth):
                    op.out.replace_with(_shaped(op, value, op.out))
                    op.erase()
                    return True
        return changed

    def _chosen(self, value: Value, condition: Value, truth: bool) -> Value | None:
        """What a select gives wherever `condition` is `truth`, if that is always one of its sides."""
        inner = value.op
        if isinstance(inner, arith.SelectOp):
            for side, chosen in ((True, inner.on_true), (False, inner.on_false)):
                if self._of(condition, truth).implies(inner.condition, side):
                    return chosen
        return None

    def _of(self, condition: Value, truth: bool) -> Known:
        if (condition, truth) not in self.known:
            self.known[condition, truth] = Known.of(condition, self.ranges, truth)
        return self.known[condition, truth]


def _mask_of_load(value: Value, filler: Value) -> Value | None:
    """The mask of the load that gives a value, if the value is the filler, a positive 0, where the mask is false."""
    load = stripped(value, arith.CastOp, tensor.BroadcastOp).op
    if not isinstance(load, tile.LoadOp) or not _is_zero(filler):
        return None
    return load.mask if load.other is None or _is_zero(load.other) else None


def _is_zero(value: Value) -> bool:
    return repr(constant_of(value)) in ("0", "0.0", "False")


def _mask_of_write(op: arith.SelectOp) -> Value | None:
    """The mask of the only write that a select is computed for, element by element."""
    value: Value = op.out
    for _ in range(LONGEST):
        if len(value.uses) != 1:
            break
        (user,) = value.uses
        if isinstance(user, (tile.StoreOp, tile.AtomicOp)):
            is_written = user.value is value and list(user.operands).count(value) == 1
            return user.mask if is_written and not user.is_used else None
        if not isinstance(user, (arith.Elementwise, tensor.BroadcastOp)) or isinstance(user, arith.DIVISIONS):
            return None
        value = user.result
    return None


def _shaped(op: arith.SelectOp, value: Value, like: Value) -> Value:
    """A value in the type of another, for which it stands in from a select on."""
    if value.type == like.type:
        return value
    return Builder.at(op).insert(tensor.BroadcastOp(value, result_types=[like.type])).out
