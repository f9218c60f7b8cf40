"""promote-buffers: on-chip buffers become SSA values, carried through loops and branches where necessary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiledsl.analysis.affine import bounds
from tiledsl.analysis.strided_access import replaces_all
from tiledsl.dialects import arith, scf, tile
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Pass, Program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import BufferType, Type, with_shape
from tiledsl.logs import warn_once
from tiledsl.passes.promote_buffers.access import load, replace, store
from tiledsl.passes.tile_values import zero


@dataclass(frozen=True)
class PromoteBuffers(Pass):
    """Replace every on-chip buffer by the values that it holds (mem2reg for structured control flow).

    A loop carries the buffers that it writes and that are read, later or in a next iteration, before they are written
    completely. An element that is read before it is written is 0.

    Before:  %acc = tile.alloc                          After:  %acc = scf.for %lo, %hi, %step[%zero] (%k, %acc_1) {
             tile.write %zero, %acc                               %d = tensor.dot %a, %b, %acc_1
             scf.for %lo, %hi, %step (%k: int32) {                scf.yield [%d]
               %c = tile.read %acc                              }
               %d = tensor.dot %a, %b, %c
               tile.write %d, %acc
               scf.yield
             }
    Needs:   lower-tile-ops and vectorize-parallel. Leaves no on-chip tile.alloc, and only global tile.load and store.
    """

    name = "promote-buffers"

    def run(self, program: Program) -> None:
        for region in program.root.regions:
            for op in region:
                if isinstance(op, tile.KernelOp):
                    _Promoter().kernel(op)


# Where operations have their buffer among their operands.
_ACCESSES: dict[type[Operation], int] = {tile.ReadOp: 0, tile.LoadOp: 0, tile.WriteOp: 1, tile.StoreOp: 1}


Buffers = dict[Value, None]  # an ordered set


@dataclass
class _Summary:
    """What a region does to buffers: needs (reads before writing), kills (overwrites completely), writes (at all)."""

    needs: Buffers = field(default_factory=dict)
    kills: Buffers = field(default_factory=dict)
    writes: Buffers = field(default_factory=dict)


def _union(*sets: Iterable[Value]) -> Buffers:
    return {value: None for each in sets for value in each}


class _Promoter:
    def __init__(self) -> None:
        self.summaries: dict[Region, _Summary] = {}
        # Of each region the operations that have regions, and those on an on-chip buffer, with the buffer.
        self.relevant: dict[Region, list[tuple[Operation, Value | None]]] = {}
        self.live_after: dict[Operation, Buffers] = {}
        self.current: dict[Value, Value] = {}
        self.whole: set[Operation] = set()  # stores and writes of all of a buffer
        self.undefined: dict[Value, Value] = {}  # buffers without a value before a loop, by the loop's argument for it

    def kernel(self, op: tile.KernelOp) -> None:
        ops = list(op.body.walk())
        for atomic in of_kinds(ops, tile.AtomicOp):
            if tile.is_on_chip(atomic.buffer):
                what = f"an atomic operation on {_name(atomic.buffer)}, which is not a global buffer"
                raise TileError(what, atomic.loc)
        allocs = [alloc for alloc in of_kinds(ops, tile.AllocOp) if tile.is_on_chip(alloc.out)]
        _trim(allocs)
        self._find(op.body)
        self._summarise(op.body)
        self._liveness(op.body, {})
        self._region(op.body)
        for alloc in allocs:
            users = [user.name for user in alloc.out.uses]
            assert not users, f"{alloc!r} is still used by {users}: run lower-tile-ops and vectorize-parallel first"
            alloc.erase()

    # Which buffers each region needs and writes; which are live behind each operation with regions

    def _find(self, region: Region) -> None:
        relevant = self.relevant[region] = []
        for op in of_kinds(region, *_ACCESSES, *map(type, region.nested)):
            if op.regions:
                relevant.append((op, None))
                for inner in op.regions:
                    self._find(inner)
            elif tile.is_on_chip(buffer := op.operands[_ACCESSES[type(op)]]):
                relevant.append((op, buffer))

    def _summarise(self, region: Region) -> _Summary:
        total = self.summaries[region] = _Summary()
        for op, accessed in self.relevant[region]:
            if accessed is None:
                needs, kills, writes = self._effect(op, [self._summarise(inner) for inner in op.regions])
            else:
                one: Buffers = {accessed: None}
                if isinstance(op, (tile.ReadOp, tile.LoadOp)):
                    needs, kills, writes = one, {}, {}
                elif replaces_all(op):
                    needs, kills, writes = {}, one, one
                    self.whole.add(op)
                else:
                    needs, kills, writes = one, {}, one
            for buffer in needs:
                if buffer not in total.kills:
                    total.needs[buffer] = None
            total.kills.update(kills)
            total.writes.update(writes)
        return total

    def _effect(self, op: Operation, inner: list[_Summary]) -> tuple[Buffers, Buffers, Buffers]:
        writes = _union(*(each.writes for each in inner))
        if isinstance(op, scf.IfOp):
            then, orelse = inner
            kills = {buffer: None for buffer in then.kills if buffer in orelse.kills}
            return then.needs | orelse.needs, kills, writes
        if isinstance(op, scf.WhileOp):
            before, after = inner
            later = {buffer: None for buffer in after.needs if buffer not in before.kills}
            return before.needs | later, before.kills, writes
        return _union(*(each.needs for each in inner)), {}, writes

    def _liveness(self, region: Region, live_out: Buffers) -> None:
        live = dict(live_out)
        for op, accessed in reversed(self.relevant[region]):
            if accessed is None:
                self.live_after[op] = dict(live)
                inner = [self.summaries[each] for each in op.regions]
                needs, kills, _ = self._effect(op, inner)
                looped = isinstance(op, (scf.ForOp, scf.WhileOp))
                behind = _union(live, *(each.needs for each in inner)) if looped else live
                for each in op.regions:
                    self._liveness(each, behind)
            elif isinstance(op, (tile.ReadOp, tile.LoadOp)):
                live[accessed] = None
                continue
            else:
                # A write adds nothing to what is live: a partial one needs the old value only if the new one is live.
                if op in self.whole:
                    live.pop(accessed, None)
                continue
            for buffer in kills:
                live.pop(buffer, None)
            live.update(needs)

    # Rewriting, front to back; `current` has the value of each buffer, or none while it is undefined

    def _region(self, region: Region) -> None:
        for op, accessed in self.relevant[region]:
            if accessed is not None:
                self._access(op, accessed)
            elif isinstance(op, scf.ForOp):
                self._for(op)
            elif isinstance(op, scf.IfOp):
                self._if(op)
            else:
                assert isinstance(op, scf.WhileOp), f"{op.name} in a kernel of tiles"
                self._while(op)

    def _access(self, op: Operation, buffer: Value) -> None:
        if isinstance(op, (tile.ReadOp, tile.LoadOp)):
            self._check_defined(op, buffer)
            builder = Builder.at(op)
            out = self._value(buffer, builder)
            if isinstance(op, tile.LoadOp):
                out = load(builder, out, op.indices, op.mask, op.other)
            assert out.type == op.out.type, f"{op!r} became {out!r}"
            op.out.replace_with(out)
        else:
            replacement = op.operands[0]
            if isinstance(op, tile.StoreOp):
                replacement = self._stored(op, buffer, Builder.at(op))
            if not replacement.name:
                replacement.name = buffer.name
            self.current[buffer] = replacement
        op.erase()

    def _check_defined(self, op: tile.ReadOp | tile.LoadOp, buffer: Value) -> None:
        """Warn of a read of a buffer that was never written: before its loop, and in the loop's first iteration."""
        if not self._is_undefined(buffer, op):
            return
        # A masked read, and one that a condition chooses or leaves, may never see what is undefined.
        chosen = all(isinstance(user, arith.SelectOp) for user in op.result.uses)
        if chosen or isinstance(op, tile.LoadOp) and op.mask is not None:
            return
        warn_once(f"{op.loc}: {_name(buffer)} is read before anything is written to it; it reads as 0")

    def _is_undefined(self, buffer: Value, op: Operation) -> bool:
        """Whether nothing was written before `op`, at least in the first iteration of the innermost loop around it."""
        value = self.current.get(buffer)
        return value is None or self.undefined.get(value) is buffer and value.owner is op.parent

    def _stored(self, op: tile.StoreOp, buffer: Value, builder: Builder) -> Value:
        if op in self.whole:
            return replace(builder, op.value, op.indices, tile.buffer_type(buffer).static_shape)
        return store(builder, self._value(buffer, builder), op.value, op.indices, op.mask)

    def _value(self, buffer: Value, builder: Builder) -> Value:
        value = self.current.get(buffer)
        if value is None:
            type = tile.buffer_type(buffer)
            value = zero(builder, type.static_shape, type.dtype)
            value.name = buffer.name
        return value

    def _for(self, op: scf.ForOp) -> None:
        summary, live = self.summaries[op.body], self.live_after[op]
        promoted = [buffer for buffer in summary.writes if buffer in summary.needs or buffer in live]
        inits = self._values(promoted, Builder.at(op))
        before = self._saved(summary.writes)
        op.set_field("inits", [*op.inits, *inits])
        undefined = [buffer for buffer in promoted if self._is_undefined(buffer, op)]
        self._enter(op.body, promoted)
        self.undefined.update({self.current[buffer]: buffer for buffer in undefined})
        self._region(op.body)
        self._leave(op.body.terminator, promoted)
        self._restore(before)
        self._define(op, promoted)

    def _if(self, op: scf.IfOp) -> None:
        writes = _union(*(self.summaries[region].writes for region in op.regions))
        live = self.live_after[op]
        promoted = [buffer for buffer in writes if buffer in live]
        for region in op.regions:
            before = self._saved(writes)
            self._region(region)
            self._leave(region.terminator, promoted)
            self._restore(before)
        self._define(op, promoted)

    def _while(self, op: scf.WhileOp) -> None:
        first, second = self.summaries[op.before], self.summaries[op.after]
        writes = first.writes | second.writes
        read = first.needs | second.needs | self.live_after[op]
        promoted = [buffer for buffer in writes if buffer in read]
        inits = self._values(promoted, Builder.at(op))
        before = self._saved(writes)
        op.set_field("inits", [*op.inits, *inits])
        for region in op.regions:
            self._enter(region, promoted)
            self._region(region)
            self._leave(region.terminator, promoted)
            self._restore(before)
        self._define(op, promoted)

    def _values(self, buffers: list[Value], builder: Builder) -> list[Value]:
        return [self._value(buffer, builder) for buffer in buffers]

    def _saved(self, buffers: Iterable[Value]) -> dict[Value, Value | None]:
        return {buffer: self.current.get(buffer) for buffer in buffers}

    def _restore(self, saved: dict[Value, Value | None]) -> None:
        for buffer, value in saved.items():
            if value is None:
                self.current.pop(buffer, None)
            else:
                self.current[buffer] = value

    def _enter(self, region: Region, promoted: list[Value]) -> None:
        for buffer in promoted:
            self.current[buffer] = region.add_arg(_held(buffer), buffer.name)

    def _leave(self, terminator: Operation, promoted: list[Value]) -> None:
        values = self._values(promoted, Builder.at(terminator))
        terminator.set_field("values", [*terminator.operand_fields[-1].values(terminator), *values])

    def _define(self, op: Operation, promoted: list[Value]) -> None:
        """Record the new results of an operation with regions as the contents of the buffers."""
        for buffer in promoted:
            made = Value(_held(buffer), op, buffer.name)
            op.results.append(made)
            self.current[buffer] = made


def _trim(allocs: Iterable[tile.AllocOp]) -> None:
    """Cut off the ends of buffer dimensions that no access reaches, such as columns added against bank conflicts."""
    for op in allocs:
        reached = [0] * len(tile.buffer_type(op.out).shape)
        for user in op.out.uses:
            ends = (
                [bounds(index) for index in user.indices] if isinstance(user, (tile.LoadOp, tile.StoreOp)) else [None]
            )
            if None in ends:
                break
            reached = [max(end[1] + 1, size) for end, size in zip(ends, reached, strict=True) if end is not None]
        else:
            type = tile.buffer_type(op.out)
            # Tiles are padded to powers of two: cutting off less than that only spoils regular walks.
            shape = tuple(
                size if size > 0 and (size - 1).bit_length() < (dim - 1).bit_length() else dim
                for size, dim in zip(reached, type.static_shape, strict=True)
            )
            if shape != type.shape:
                op.out.set_type(BufferType(shape, type.dtype, type.scope))


def _held(buffer: Value) -> Type:
    type = tile.buffer_type(buffer)
    return with_shape(type.static_shape, type.dtype)


def _name(buffer: Value) -> str:
    return buffer.name or "an on-chip buffer"
