"""Tiles that a loop loads again some turns later stay in shared memory until then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import Any

from tiledsl.analysis.affine import form_interval, linear_form
from tiledsl.analysis.dependence import operands_of, reached, stripped
from tiledsl.analysis.gluon import support
from tiledsl.analysis.hardware import WARP
from tiledsl.analysis.linear import LinearForm, constant_form
from tiledsl.analysis.product_loops import tensor_bytes
from tiledsl.analysis.ranges import Interval, Ranges, dtype_interval
from tiledsl.dialects import arith, scf, tensor, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.dialects.gluon import has_gluon, targets_gluon
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.math_functions import MATH_FUNCTIONS

_RESERVED = 4096  # bytes of shared memory for exchanges between threads
_KNOWN = (
    arith.BinaryOp, arith.CmpOp, arith.SelectOp, arith.CastOp, arith.BitcastOp, arith.NegOp, arith.NotOp, arith.MathOp,
    arith.ConstantOp, tensor.IotaOp, tensor.ReduceOp, tensor.ScanOp, tensor.ReshapeOp, tensor.BroadcastOp,
    triton.AddPtrOp, triton.LoadOp, triton.StoreOp, triton.AtomicOp, triton.ProgramIdOp, scf.ForOp, scf.WhileOp,
    scf.IfOp, scf.YieldOp, scf.ConditionOp,
)  # fmt: skip


@dataclass(frozen=True)
class HoldTiles(Pass):
    """Keep the tiles of a pipelined loop in rings of shared memory, if it loads some of them again in later turns.

    Before:  scf.for %c0, %n, %c1 {num_stages = 4} (%turn) {     After:  ... {ring = "new", behind = 0}
               %new = triton.load %p mask=%m                             ... {ring = "new", behind = 2}
               %held = triton.load %q mask=%o                            options = (("emitter", "rings"), ...)

    where %q is what %p was two turns before, which may be told by a quotient and a remainder of the turn: a piece of a
    row. Triton would load the tile once more, from the second-level cache, or the program would carry it in registers.
    A ring, which Gluon writes, has places for the tiles of num_stages - 1 later turns that are on their way, for that
    of the turn, and for those of the turns in between. The loop's other tiles that move with it get rings, too. Only
    where the mask says that the turn in which a tile was loaded was one, and that it was not masked off then; where
    nothing is written through the tile's pointer; on Hopper. A kernel that begins while the one before ends
    (launch_pdl) asks for its first tiles before it waits, if that one has nothing but workspaces of the program.
    along_rows: each warp has whole rows of a tile, if it has as many rows as there are warps, so that sums of rows
    cross none; values for each column are in all of them then.
    Needs:   lower-to-triton. Runs last: what is left is written as it stands.
    """

    name = "hold-tiles"
    enabled: bool = True
    along_rows: bool = False

    def run(self, program: Program) -> None:
        if not self.enabled or not has_gluon(program.target) or support.missing():
            return
        for launch in of_kinds(program.root.nests(), triton.LaunchOp):
            if not targets_gluon(launch):
                _hold(
                    launch, program.target.max_shared_bytes - _RESERVED, (("along", "rows"),) if self.along_rows else ()
                )


def _hold(launch: triton.LaunchOp, most: int, more: Sequence[tuple[str, str]]) -> None:
    ops = list(launch.body.walk())
    loops = [op for op in of_kinds(ops, scf.ForOp) if op.num_stages > 1]
    if len(loops) != 1 or not all(map(_is_known, ops)) or not _are_apart(ops):
        return
    (loop,) = loops
    if (constant_of(loop.lower), constant_of(loop.step)) != (0, 1):
        return
    writes: list[triton.StoreOp | triton.AtomicOp] = of_kinds(ops, triton.StoreOp, triton.AtomicOp)
    written = {_root(op) for op in writes}
    loads = [op for op in of_kinds(loop.body, triton.LoadOp) if prod(op.out.shape) >= launch.warps * WARP]
    tiles = [_Tile(op, loop, launch) for op in loads if _root(op) not in written]
    moving = [each for each in tiles if each.step]
    leading = [each for each in moving if not any(map(each.turns_behind, moving))]
    rings = {each: (each, 0) for each in moving}
    for each in moving:
        first = max(leading, key=each.turns_behind, default=each)
        if behind := each.turns_behind(first):
            rings[each] = first, behind
    size = 0
    for ring in {first for first, _ in rings.values()}:
        places = loop.num_stages + max(behind for first, behind in rings.values() if first is ring)
        size += places * tensor_bytes(ring.op.out)
    if all(behind == 0 for _, behind in rings.values()):
        return
    if size > most:
        launch.set_attribute("remarks", (*launch.remarks, f"rings of {size} bytes do not fit in shared memory"))
        return
    for each, (first, behind) in rings.items():
        each.op.set_attribute("ring", f"{first.op.out.name or 'tiles'}_{moving.index(first)}")
        each.op.set_attribute("behind", behind)
        each.op.set_attribute("whole", _only_stored(each.op))
    late = [("awaits", "loop")] if _begins_apart(launch, loop) else []
    launch.set_attribute("options", (*launch.options, ("emitter", "rings"), *late, *more))


def _begins_apart(launch: triton.LaunchOp, loop: scf.ForOp) -> bool:
    """Whether the kernel before has nothing but workspaces, and what is done up to the first turn is to read others."""
    assert launch.parent is not None
    *_, before = [None, *takewhile(lambda op: op is not launch, of_kinds(launch.parent, triton.LaunchOp))]
    if before is None or not all(isinstance(each.op, tile.AllocOp) for each in before.arguments):
        return False
    first = [*takewhile(lambda op: op is not loop, launch.body), *(op for op in loop.body if getattr(op, "ring", ""))]
    read = {_root(op) for op in of_kinds(first, triton.LoadOp)}
    given = {inner for inner, outer in zip(launch.body.args, launch.arguments) if outer in before.arguments}
    return not read & given and not of_kinds(first, triton.StoreOp, triton.AtomicOp, scf.ForOp, scf.WhileOp, scf.IfOp)


def _only_stored(load: triton.LoadOp) -> bool:
    """Whether what the mask leaves out goes nowhere: into stores that leave it out, too."""
    masked = set() if load.mask is None else set(map(_key, _conditions(load.mask)))
    users: list[Operation] = [load]
    for user in users:
        if isinstance(user, triton.StoreOp):
            if user.mask is None or not masked <= set(map(_key, _conditions(user.mask))):
                return False
        elif isinstance(user, (triton.LoadOp, arith.Elementwise)):
            users += [each for each in user.result.uses if each not in users]
        else:
            return False
    return True


def _is_known(op: Operation) -> bool:
    """Whether Gluon has the operation for such tiles."""
    if isinstance(op, arith.MathOp):
        return MATH_FUNCTIONS[op.function].spelling.startswith("tl.")
    if isinstance(op, tensor.BroadcastOp):
        return len(op.source.shape) != 1
    return isinstance(op, _KNOWN) and (not isinstance(op, tensor.ScanOp) or (op.kind, len(op.out.shape)) == ("sum", 1))


def _are_apart(ops: Sequence[Operation]) -> bool:
    """Whether the sizes of tiles of at most two dimensions say what of them are rows, and what are columns."""
    shapes = {value.shape for op in ops for value in (*op.operands, *op.results)}
    flat = [shape for shape in shapes if len(shape) == 2]
    whole = [shape for shape in flat if 1 not in shape]
    rows, columns = ({shape[axis] for shape in whole} for axis in (0, 1))
    parts = all(shape[0] in (1, *rows) and shape[1] in (1, *columns) for shape in flat)
    return max(map(len, shapes)) <= 2 and parts and not rows & columns and len(columns) == len(whole)


def _root(op: triton.LoadOp | triton.StoreOp | triton.AtomicOp) -> Value:
    return stripped(op.pointer, triton.AddPtrOp)


class _Tile:
    """A tile that a loop loads: what it is loaded through, as a sum, and how far that moves in a period of turns, by
    which the turn is divided there; in a turn, if it is not."""

    def __init__(self, op: triton.LoadOp, loop: scf.ForOp, launch: triton.LaunchOp) -> None:
        self.op, self.loop = op, loop
        self.ranges = Ranges.around(launch)
        self.offset = LinearForm()
        pointer = op.pointer
        while isinstance(pointer.op, triton.AddPtrOp):
            self.offset = self.offset.plus(linear_form(pointer.op.offset, through_names=True))
            pointer = pointer.op.pointer
        self.rests: dict[tuple[int, int], Value] = {}
        self.quotient, self.period, self.late = loop.index, 1, 0
        for value in reached([op.pointer, *self._masks()], operands_of):
            self._read(value)
        self.step = self.offset.coefficient(self.quotient) if self._is_computed() else 0
        if self.period > 1:
            self.step += self.period * self.offset.coefficient(loop.index)

    def _read(self, value: Value) -> None:
        """Take note of a quotient or a remainder of the turn, to which a number is added."""
        op = value.op
        if not isinstance(op, (arith.FloorDivOp, arith.TruncDivOp, arith.FloorModOp, arith.TruncModOp)):
            return
        added = linear_form(op.lhs, through_names=True).plus(LinearForm({(self.loop.index,): 1}), -1)
        number = constant_of(op.rhs)
        if not added.is_constant or added.constant < 0 or not isinstance(number, int) or number <= 0:
            return
        if isinstance(op, (arith.FloorModOp, arith.TruncModOp)):
            self.rests[number, added.constant % number] = value
        elif self.offset.coefficient(value):
            self.quotient, self.period, self.late = value, number, added.constant

    def _masks(self) -> list[Value]:
        return [] if self.op.mask is None else [self.op.mask]

    def _is_computed(self) -> bool:
        """Whether pointer and mask can be computed in an earlier turn."""
        inside = set(self.loop.body.walk())
        carried = set(self.loop.iter_args)
        found = reached([self.op.pointer, *self._masks()], operands_of)
        return not carried.intersection(found) and all(
            value.op not in inside
            or isinstance(value.op, (arith.Elementwise, arith.ConstantOp, tensor.IotaOp, triton.AddPtrOp))
            for value in found
        )

    def turns_behind(self, other: _Tile) -> int:
        """How many turns before the other one had what this one loads; 0 if it is not known to have."""
        if _root(self.op) is not _root(other.op) or self.op.out.type != other.op.out.type:
            return 0
        now = self._moved(other, other.offset, 0)
        apart = None if self.period != other.period or now is None else now.plus(self.offset, -1)
        if apart is None or not apart.is_constant or self.op.mask is None or apart.constant % other.step:
            return 0
        periods = apart.constant // other.step
        turns = self._turns(other, periods)
        own = set(map(_key, _conditions(self.op.mask)))
        needed = [] if other.op.mask is None else list(_conditions(other.op.mask))
        held = all(self._held(other, each, periods, own) for each in needed)
        began = any(self._fails_before(each, turns) for each in _conditions(self.op.mask))
        return max(turns, 0) if held and began else 0

    def _turns(self, other: _Tile, periods: int) -> int:
        return periods * self.period + other.late - self.late

    def _moved(self, other: _Tile, form: LinearForm, periods: int) -> LinearForm | None:
        """What a sum of the other tile was that many periods ago, by quotients and remainders of this one; None if
        there is more of the turn in it."""
        turns, out = self._turns(other, periods), LinearForm(slack=form.slack)
        for factors, number in form.terms.items():
            value = factors[0] if len(factors) == 1 else None
            if value is self.loop.index:
                out.add(factors, number)
                out.add((), -turns * number)
            elif value is not None and value is other.quotient:
                out.add((self.quotient,), number)
                out.add((), -periods * number)
            elif not any(self.loop.index in reached([each], operands_of) for each in factors):
                out.add(factors, number)
            else:
                size, late = next((key for key, each in other.rests.items() if each is value), (0, 0))
                rest = self.rests.get((size, (late - turns) % size)) if size and not self.period % size else None
                if rest is None:
                    return None
                out.add((rest,), number)
        return out

    def _held(self, other: _Tile, condition: Value, periods: int, own: Set[Any]) -> bool:
        """Whether a condition of the other tile held so many periods ago, of which there are some that hold now."""
        op = condition.op
        if not isinstance(op, arith.CmpOp):
            return condition in own and self.loop.index not in reached([condition], operands_of)
        before = self._moved(other, _difference(op), periods)
        return before is not None and (_said(op, before) in own or op.predicate == "lt" and self._ends(before).hi < 0)

    def _ends(self, form: LinearForm) -> Interval:
        return form_interval(form, self.ranges, Interval(*dtype_interval("int64")), _nowhere)

    def _fails_before(self, condition: Value, turn: int) -> bool:
        """Whether a condition holds in no turn before this one."""
        op = condition.op
        if not isinstance(op, arith.CmpOp) or op.predicate != "ge":
            return False
        last = form = _difference(op)
        for value, most in {self.loop.index: turn - 1, self.quotient: (turn - 1 + self.late) // self.period}.items():
            if form.coefficient(value) < 0:
                return False
            last = last.substituted(value, constant_form(most))
        return self._ends(last).hi < 0


def _nowhere(*_: Any) -> bool:
    return False


def _conditions(mask: Value) -> Iterator[Value]:
    if isinstance(mask.op, arith.AndOp):
        for each in mask.op.operands:
            yield from _conditions(each)
    else:
        yield mask


def _difference(op: arith.CmpOp) -> LinearForm:
    return linear_form(op.lhs, through_names=True).plus(linear_form(op.rhs, through_names=True), -1)


def _key(condition: Value) -> Any:
    """What a condition says, of the sum that is compared with 0."""
    op = condition.op
    return _said(op, _difference(op)) if isinstance(op, arith.CmpOp) else condition


def _said(op: arith.CmpOp, form: LinearForm) -> Any:
    return op.predicate, form.slack, frozenset(form.terms.items())
