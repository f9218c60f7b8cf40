"""The accesses of a program to memory: which element, as a term, in which block and iteration, and when.

One walk serves every level of the IR: operations on whole buffers, indices as scalars in `tile.parallel`, indices as
tiles, and pointers. The variables of an access are the sizes of the program, the block, the iterations of the loops
around it, and the lane: its position in a tile or in a T.Parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tiledsl.analysis.dependence import ancestors, stripped
from tiledsl.certificate import terms
from tiledsl.certificate.access import Access, Unfollowed
from tiledsl.certificate.elements import RULES, Position, described, projected, source_position
from tiledsl.certificate.terms import FALSE, TRUE, Role, Term, Variable, add, both, compare, constant, multiply
from tiledsl.dialects import arith, gluon, scf, tensor, thread, tile, triton
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, BufferType, broadcast_shapes, is_float
from tiledsl.location import UNKNOWN, Loc

Of = Callable[[Position], Term]  # an element of a value, by its position

# Of a dynamic dimension. Larger ones fit in int32 too, but the last block's indices may not.
LARGEST_SIZE = 2**31 - 2**16
MOST_BLOCKS = 2**31 - 1


class Accesses:
    """The accesses of a program, in the order in which they stand, and the terms of its values."""

    def __init__(self, func: tile.FuncOp) -> None:
        self.func = func
        self.all: list[Access] = []
        self.sizes: dict[Value, Variable] = {}
        self._args: dict[Value, Of] = {}
        self._known: dict[tuple[Value, Position], Term] = {}
        self._own: list[Variable] = []
        self._owned: dict[Operation, tuple[Variable, ...]] = {}  # by the operation around
        self._kernel: Operation | None = None
        self.blocks: list[Variable] = []  # of the kernel that is walked
        self._parallel: tuple[Operation, int] | None = None
        self._results: dict[Operation, list[Of]] = {}
        self._parameters()
        self._region(func.body, [])

    def _parameters(self) -> None:
        func = self.func
        count = len(func.parameters)
        for name, arg in zip(func.parameters, func.body.args):
            if not isinstance(arg.type, BufferType) and not is_float(arg.dtype):
                info = ELEMENTS[arg.dtype]
                self.sizes[arg] = Variable(name, "size", int(info.low), int(info.high), func.loc)
        for name, source, arg in zip(func.symbols, func.symbol_sources, func.body.args[count:]):
            if source != tile.COMPUTED:
                self.sizes[arg] = Variable(name, "size", _least(str(source)), LARGEST_SIZE, func.loc)
        for arg, size in self.sizes.items():
            self._args[arg] = _same(size)
        named: dict[str, Term] = {name: self.sizes[arg] for name, arg in self._named() if arg in self.sizes}
        for name, formula in func.formulas:
            if func.symbol_sources[func.symbols.index(name)] == tile.COMPUTED:
                named[name] = _computed(formula, named)
                self._args[func.symbol(name)] = _same(named[name])

    def _named(self) -> Iterator[tuple[str, Value]]:
        return zip((*self.func.parameters, *self.func.symbols), self.func.body.args)

    def extent(self, dim: int | str) -> Term:
        """A size or stride of a buffer."""
        return constant(dim) if isinstance(dim, int) else self.element(self.func.symbol(dim), ())

    # Control flow

    def _region(self, region: Region, when: list[Term]) -> None:
        when = when.copy()
        for op in region:
            if isinstance(op, tile.AssumeOp):
                when.append(self.element(op.condition, ()))
            elif isinstance(op, (tile.KernelOp, triton.LaunchOp)):
                self._launch(op, when)
            elif isinstance(op, scf.ForOp):
                self._for(op, when)
            elif isinstance(op, scf.IfOp):
                self._if(op, when)
            elif isinstance(op, scf.WhileOp):
                self._while(op, when)
            elif isinstance(op, tile.ParallelOp):
                self._each_point(op, when)
            elif isinstance(op, gluon.LongestFirstOp):
                self._balanced(op)
            elif isinstance(op, thread.AsyncOp):
                self._region(op.body, when)
            else:
                assert not op.regions, f"no rule for {op.name}"
                self.all += self._accesses(op, both(*when))

    def _inside(self, region: Region, when: list[Term], *variables: Variable) -> None:
        assert region.parent is not None
        self._owned.setdefault(region.parent, variables)
        self._own += variables
        self._region(region, when)
        if variables:
            del self._own[-len(variables) :]

    def _launch(self, op: tile.KernelOp | triton.LaunchOp, when: list[Term]) -> None:
        grid = [self.element(each, ()) for each in op.grid]
        blocks = [_below(extent, name, "block", op.loc, MOST_BLOCKS) for name, extent in zip(_block_names(op), grid)]
        if isinstance(op, tile.KernelOp):
            for arg, block in zip(op.body.args, blocks):
                self._args[arg] = _same(block)
        else:
            for arg, given in zip(op.body.args, op.arguments):
                if not arg.dtype.startswith("*"):
                    self._args[arg] = self._of(given)
        self._kernel, self.blocks = op, blocks
        filled = [each for block in blocks for each in block.where]  # nothing runs over an empty grid
        self._inside(op.body, [*when, *filled], *blocks)
        self._kernel = None

    def _for(self, op: scf.ForOp, when: list[Term]) -> None:
        lower, upper, step = (self.element(each, ()) for each in (op.lower, op.upper, op.step))
        name = op.index.name or "k"
        if step.number == 1:
            index: Term = Variable(name, "loop", lower.lo, max(lower.lo, upper.hi - 1), op.loc)
            variable, trips = index, terms.subtract(index, lower)
            conditions = [compare("ge", index, lower), compare("lt", index, upper)]
        else:
            reach = max(abs(upper.hi - lower.lo), abs(lower.hi - upper.lo))
            variable = trips = Variable(f"{name}'s iteration", "loop", 0, reach, op.loc)
            index = add(lower, multiply(step, variable))
            up, down = compare("gt", step, FALSE), compare("lt", step, FALSE)
            conditions = [terms.either(both(up, compare("lt", index, upper)), both(down, compare("gt", index, upper)))]
            index = _clamped(index, lower, upper, step)
        assert isinstance(variable, Variable)
        variable.where = tuple(conditions)
        self._args[op.index] = _same(index)
        yielded = op.yielded
        for number, (arg, init, following) in enumerate(zip(op.iter_args, op.inits, yielded)):
            change = _change(arg, following, op)
            if following is arg or following is init:
                self._args[arg] = self._of(init)
                self._result(op, number, self._of(init))
            elif change is not None and not is_float(arg.dtype) and not arg.dtype.startswith("*"):
                sign, amount = change
                self._args[arg] = self._moved(init, sign, amount, trips)
                self._result(op, number, self.opaque(op.results[number], op.loc, "what a loop leaves"))
            else:
                self._args[arg] = self.opaque(arg, op.loc, "what a loop carries")
                self._result(op, number, self.opaque(op.results[number], op.loc, "what a loop leaves"))
        self._inside(op.body, [*when, *conditions], variable)

    def _moved(self, init: Value, sign: int, amount: Value, trips: Term) -> Of:
        def element(position: Position) -> Term:
            step = multiply(self.element(amount, projected(amount, position)), trips)
            start = self.element(init, position)
            return terms.wrap(add(start, step) if sign > 0 else terms.subtract(start, step), init.dtype)

        return element

    def _if(self, op: scf.IfOp, when: list[Term]) -> None:
        condition = self.element(op.condition, ())
        self._inside(op.then, [*when, condition])
        self._inside(op.orelse, [*when, terms.invert(condition)])
        for number, (yes, no) in enumerate(zip(op.then.terminator.operands, op.orelse.terminator.operands)):
            self._result(op, number, self._either(condition, yes, no))

    def _either(self, condition: Term, yes: Value, no: Value) -> Of:
        return lambda position: terms.select(condition, self.element(yes, position), self.element(no, position))

    def _while(self, op: scf.WhileOp, when: list[Term]) -> None:
        for arg in op.before.args:
            self._args[arg] = self.opaque(arg, op.loc, "what a while loop carries")
        self._inside(op.before, when)
        ends = op.before.terminator
        assert isinstance(ends, scf.ConditionOp)
        for number, (arg, value) in enumerate(zip(op.after.args, ends.values)):
            self._args[arg] = self._of(value)
            self._result(op, number, self.opaque(op.results[number], op.loc, "what a while loop leaves"))
        turn = Variable("iteration", "loop", 0, 2**63, op.loc)
        self._inside(op.after, [*when, self.element(ends.condition, ())], turn)

    def _each_point(self, op: tile.ParallelOp, when: list[Term]) -> None:
        lanes = [
            Variable(arg.name or "i", "lane", 0, int(extent) - 1, op.loc)
            for arg, extent in zip(op.body.args, op.extents)
        ]
        for arg, lane in zip(op.body.args, lanes):
            self._args[arg] = _same(lane)
        around = self._parallel
        self._parallel = around or (op, len(self._own))
        self._inside(op.body, when, *lanes)
        self._parallel = around

    def _balanced(self, op: gluon.LongestFirstOp) -> None:
        for number, (name, extent) in enumerate(zip(("block", "rest"), op.operands)):
            made = _below(self.element(extent, ()), op.results[number].name or name, "block", op.loc)
            self._own.append(made)
            self._result(op, number, _same(made))

    def item(self, op: gluon.WorkItemOp) -> Term:
        """The number of a work item, one of as many as the operation says."""
        return _below(self.element(op.items, ()), "item", "block", op.loc)

    def _result(self, op: Operation, number: int, of: Of) -> None:
        self._results.setdefault(op, []).append(of)
        assert len(self._results[op]) == number + 1

    # Values

    def _of(self, value: Value) -> Of:
        return lambda position: self.element(value, position)

    def element(self, value: Value, position: Position) -> Term:
        """One element of an integer or bool value; a scalar's position is empty."""
        key = (value, position)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._element(value, position)
        return found

    def _element(self, value: Value, position: Position) -> Term:
        op = value.op
        if op is None:
            given = self._args.get(value)
            return given(position) if given is not None else self.opaque(value, UNKNOWN, value.name)(position)
        if op in self._results:
            return self._results[op][op.results.index(value)](position)
        rule = RULES.get(type(op))
        if is_float(value.dtype) or value.dtype.startswith("*") or rule is None:
            return self.opaque(value, op.loc, described(op))(position)
        return rule(self, op, position)

    def operands(self, op: Operation, position: Position) -> list[Term]:
        """The elements of an elementwise operation's operands."""
        return [self.element(each, projected(each, position)) for each in op.operands]

    def opaque(self, value: Value, loc: Loc, what: str) -> Of:
        """A variable for each position, of which the type is known."""
        info = ELEMENTS.get(value.dtype)
        lo, hi = (0, 0) if info is None else (int(info.low), int(info.high)) if info.kind != "float" else (0, 0)
        sources = value.op.operands if value.op is not None else []
        of_data = isinstance(value.op, _OF_DATA) or any(is_float(source.dtype) for source in sources[:1])
        role: Role = "data" if of_data else "unknown"
        variables: dict[Position, Variable] = {}

        def element(position: Position) -> Term:
            if position not in variables:
                variables[position] = Variable(what, role, lo, hi, loc)
                variables[position].scope = self._scope(value, position)
            return variables[position]

        return element

    def _scope(self, value: Value, position: Position) -> frozenset[Variable]:
        """The block, iterations and lanes in which an element of a value is computed."""
        around = [variable for op in _around(value) for variable in self._owned.get(op, ())]
        return frozenset([*terms.variables(position), *around])

    def in_kernel(self, op: Operation) -> bool:
        """Whether an operation runs on the device, where integers wrap; the host's are Python's."""
        return op.parent is not self.func.body

    # Accesses

    def _accesses(self, op: Operation, when: Term) -> Iterator[Access]:
        if isinstance(op, (tile.LoadOp, tile.StoreOp, tile.AtomicOp)):
            yield self._indexed(op, when)
        elif isinstance(op, (triton.LoadOp, triton.StoreOp, triton.AtomicOp)):
            yield self._through_pointer(op, when)
        elif isinstance(op, (tile.LoadBlockOp, tile.StoreBlockOp)):
            yield self._box(op, when, op.buffer, op.starts, _moved_value(op), op.axes)
        elif isinstance(op, (triton.LoadBlockOp, triton.StoreBlockOp)):
            axes = op.axes or tuple(range(len(op.starts)))
            yield self._box(op, when, op.descriptor, op.starts, _moved_value(op), axes)
        elif isinstance(op, tile.CopyOp):
            yield from self._copy(op, when)
        elif isinstance(op, (tile.FillOp, tile.WriteOp)):
            buffer = op.target if isinstance(op, tile.FillOp) else op.buffer
            yield self._whole(op, when, buffer, "write")
        elif isinstance(op, tile.ReadOp):
            yield self._whole(op, when, op.buffer, "read")
        elif isinstance(op, tile.GemmOp):
            for buffer in (op.a, op.b, *(() if op.clear else (op.c,))):
                yield self._whole(op, when, buffer, "read")
            yield self._whole(op, when, op.c, "write")
        elif isinstance(op, tile.SortOp):
            yield self._whole(op, when, op.source, "read")
            for buffer in (op.target, op.indices):
                yield self._whole(op, when, buffer, "write")
        elif isinstance(op, (tile.ReduceOp, tile.ScanOp)):
            keeps = isinstance(op, tile.ReduceOp) and not op.clear
            factors = op.factors if isinstance(op, tile.ScanOp) else None
            for buffer in (op.source, *((op.target,) if keeps else ()), *(() if factors is None else (factors,))):
                yield self._whole(op, when, buffer, "read")
            yield self._whole(op, when, op.target, "write")

    def _indexed(self, op: tile.LoadOp | tile.StoreOp | tile.AtomicOp, when: Term) -> Access:
        type = tile.buffer_type(op.buffer)
        value = None if isinstance(op, tile.LoadOp) else op.value
        shape = op.out.shape if not isinstance(op, tile.StoreOp) else _joined(op)
        lanes = self.lanes(shape, op.loc)
        position = tuple(lanes)
        indices = tuple(self.element(each, projected(each, position)) for each in op.indices)
        if op.mask is not None:
            when = both(when, self.element(op.mask, projected(op.mask, position)))
        mode = "read" if value is None else "write" if isinstance(op, tile.StoreOp) else "atomic"
        extents, clipped = map(self.extent, type.shape), type.scope == "global" and not op.guarded
        return self._access(op, mode, op.buffer, indices, extents, when, clipped, lanes)

    def _access(
        self,
        op: Operation,
        mode: str,
        buffer: Value,
        indices: Iterable[Term],
        extents: Iterable[Term],
        when: Term,
        clipped: bool,
        lanes: Iterable[Term],
    ) -> Access:
        own = (*self._own, *(each for each in lanes if isinstance(each, Variable)))
        return Access(op, mode, buffer, (*indices,), (*extents,), when, clipped, own, self._kernel, self._parallel)

    def _through_pointer(self, op: triton.LoadOp | triton.StoreOp | triton.AtomicOp, when: Term) -> Access:
        lanes = self.lanes(op.pointer.shape, op.loc)
        position = tuple(lanes)
        try:
            base, offset = self.address(op.pointer, position)
        except Unfollowed:  # then nothing is known of the buffer, whose type says so
            base, offset = op.pointer, FALSE
        if op.mask is not None:
            when = both(when, self.element(op.mask, projected(op.mask, position)))
        extents = (self._length(base.type),) if isinstance(base.type, BufferType) else ()
        mode = "read" if isinstance(op, triton.LoadOp) else "write" if isinstance(op, triton.StoreOp) else "atomic"
        return self._access(op, mode, base, (offset,), extents, when, False, lanes)

    def address(self, pointer: Value, position: Position) -> tuple[Value, Term]:
        """The buffer that a pointer is into, on the host where it is known, and the distance from its beginning."""
        op = pointer.op
        if isinstance(op, triton.AddPtrOp):
            base, start = self.address(op.pointer, projected(op.pointer, position))
            return base, add(start, self.element(op.offset, projected(op.offset, position)))
        if isinstance(op, tensor.SHAPES):
            return self.address(op.source, source_position(op, position))
        if op is None:
            owner = pointer.owner
            around = owner.parent if isinstance(owner, Region) else None
            if isinstance(around, triton.LaunchOp):
                given = around.arguments[around.body.args.index(pointer)]
                return stripped(given, triton.DescriptorOp), FALSE
        raise Unfollowed(f"a pointer comes from {'a region' if op is None else op.name}")

    def _length(self, type: BufferType) -> Term:
        """How many elements there are from a buffer's first to its last."""
        total = constant(1)
        if type.strides is None:
            for dim in type.shape:
                total = multiply(total, self.extent(dim))
            return total
        for dim, stride in zip(type.shape, type.strides):
            total = add(total, multiply(terms.subtract(self.extent(dim), TRUE), self.extent(stride)))
        return total

    def _box(
        self, op: Operation, when: Term, buffer: Value, starts: Sequence[Value], tile_: Value, axes: Sequence[int]
    ) -> Access:
        descriptor = self._outside(buffer).op
        buffer = stripped(self._outside(buffer), triton.DescriptorOp)
        lanes = self.lanes(tile_.shape, op.loc)
        dims = buffer.type.shape if isinstance(buffer.type, BufferType) else ()
        indices = [self.element(start, ()) for start in starts]
        order = range(len(indices))
        if isinstance(descriptor, triton.DescriptorOp):
            order = descriptor.dims  # type: ignore[assignment]
        for lane, axis in zip(lanes, axes):
            if axis >= 0:
                indices[axis] = add(indices[axis], lane)
        by_dimension = dict(zip(order, indices))
        mode = "read" if op.results else "write"
        found = [by_dimension[dim] for dim in range(len(indices))]
        return self._access(op, mode, buffer, found, map(self.extent, dims), when, True, lanes)

    def _outside(self, value: Value) -> Value:
        """The host's value that a kernel's argument stands for."""
        owner = value.owner
        around = owner.parent if isinstance(owner, Region) else None
        return around.arguments[around.body.args.index(value)] if isinstance(around, triton.LaunchOp) else value

    def _copy(self, op: tile.CopyOp, when: Term) -> Iterator[Access]:
        lanes = self.lanes(op.shape, op.loc)

        def access(mode: str, buffer: Value, offsets: list[Value], axes: Sequence[int], when: Term) -> Access:
            type = tile.buffer_type(buffer)
            indices = [self.element(each, ()) for each in offsets] or [FALSE] * len(type.shape)
            for lane, axis in zip(lanes, axes):
                indices[axis] = add(indices[axis], lane)
            clipped = type.scope == "global"
            return self._access(op, mode, buffer, indices, map(self.extent, type.shape), when, clipped, lanes)

        write = access("write", op.target, op.target_offsets, op.target_axes, when)
        yield access("read", op.source, op.source_offsets, op.source_axes, write.happens)
        yield write

    def _whole(self, op: Operation, when: Term, buffer: Value, mode: str) -> Access:
        type = tile.buffer_type(buffer)
        lanes = []
        extents = tuple(map(self.extent, type.shape))
        for extent in extents:
            lane = Variable("i", "lane", 0, extent.hi - 1, op.loc)
            lane.where = () if extent.number is not None else (compare("lt", lane, extent),)
            lanes.append(lane)
        when = both(when, *(each for lane in lanes for each in lane.where))
        return self._access(op, mode, buffer, lanes, extents, when, False, lanes)

    def lanes(self, shape: Sequence[int], loc: Loc) -> list[Term]:
        return [FALSE if size == 1 else Variable("lane", "lane", 0, size - 1, loc) for size in shape]


def _below(size: Term, name: str, role: Role, loc: Loc, most: int | None = None) -> Variable:
    """A variable from 0 to below a size, which is at most `most`."""
    largest = size.hi if most is None else min(size.hi, most)
    made = Variable(name, role, 0, max(0, largest - 1), loc)
    made.where = (compare("lt", made, size),)
    return made


def _same(term: Term) -> Of:
    return lambda position: term


_OPERATIONS = {
    "add": add, "sub": terms.subtract, "mul": multiply, "floordiv": terms.floor_divide, "floormod": terms.floor_modulo,
    "max": terms.maximum, "min": terms.minimum,
}  # fmt: skip


def _computed(formula: Any, named: Mapping[str, Term]) -> Term:
    """The term of a size that is computed from others."""
    if isinstance(formula, tuple):
        return _OPERATIONS[formula[0]](*(_computed(part, named) for part in formula[1:]))
    return named[formula] if isinstance(formula, str) else constant(formula)


def _least(source: str) -> int:
    """The least value of a dynamic size, by where it is read: dimensions and strides are at least 0.

    "A.0-1//4" is the number of which the dimension is four times as much and one more.
    """
    axis = source.rpartition(".")[2]
    axis, _, factor = axis.partition("//")
    for sign in "+-":
        if sign in axis:
            axis, _, amount = axis.partition(sign)
            change = int(amount) if sign == "+" else -int(amount)
            return max(0, -(-change // int(factor or 1)))
    return 0


def _block_names(op: tile.KernelOp | triton.LaunchOp) -> list[str]:
    names = [f"{axis} of the grid" for axis in "xyz"]
    if isinstance(op, tile.KernelOp):
        found = {axis: arg.name for axis, arg in enumerate(op.body.args)}
    else:
        found = {each.axis: each.out.name for each in op.body if isinstance(each, triton.ProgramIdOp)}
    return [found.get(axis) or name for axis, name in enumerate(names)]


def _change(arg: Value, following: Value, loop: scf.ForOp) -> tuple[int, Value] | None:
    """The sign and amount by which a carried value changes in each iteration, if that is always the same."""
    op = following.op
    if isinstance(op, (arith.AddOp, arith.SubOp)):
        for one, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            if one is arg and not _within(other, loop):
                if isinstance(op, arith.SubOp) and one is op.rhs:
                    return None
                return (1 if isinstance(op, arith.AddOp) else -1), other
    return None


def _within(value: Value, loop: Operation) -> bool:
    return not isinstance(value.op, arith.ConstantOp) and loop in _around(value)


def _around(value: Value) -> list[Operation]:
    """The operations that a value is computed in, the innermost first."""
    if isinstance(value.owner, Region):
        inner = value.owner.parent
        return [] if inner is None else [inner, *ancestors(inner)]
    return [*ancestors(value.owner)]


def _clamped(index: Term, lower: Term, upper: Term, step: Term) -> Term:
    """The same index, in a narrower interval: what a loop runs over."""
    lo, hi = index.lo, index.hi
    if step.lo > 0:
        lo, hi = max(lo, lower.lo), min(hi, max(lower.lo, upper.hi - 1))
    elif step.hi < 0:
        lo, hi = max(lo, min(lower.hi, upper.lo + 1)), min(hi, lower.hi)
    return Term(index.kind, index.args, lo, hi) if index.number is None and lo <= hi else index


def _joined(op: tile.StoreOp) -> tuple[int, ...]:
    values = [*op.indices, op.value, *([] if op.mask is None else [op.mask])]
    return broadcast_shapes(*(each.shape for each in values)) or ()


def _moved_value(op: Operation) -> Value:
    """The tile that a block access reads or writes."""
    return op.results[0] if op.results else op.operands[0]


_OF_DATA = (tile.LoadOp, triton.LoadOp, tile.LoadBlockOp, triton.LoadBlockOp)
