"""The meaning of tile and triton operations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from tiledsl.analysis.dependence import ancestors, depends_on
from tiledsl.analysis.parallel_variance import Variance
from tiledsl.certificate.algebra import Algebra, ExecutorError, scalar
from tiledsl.certificate.executor.machine import (
    Env,
    Executor,
    Point,
    Step,
    fields_of,
    index_lines,
    meaning,
    result_meaning,
    value_meaning,
)
from tiledsl.certificate.executor.parts import is_everywhere, part_at
from tiledsl.certificate.executor.threads import of_threads
from tiledsl.certificate.executor.values import in_order, scan
from tiledsl.codegen.names import printable
from tiledsl.dialects import scf
from tiledsl.dialects.tile import ParallelOp, StoreOp, buffer_type
from tiledsl.errors import TileError
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import BufferType, is_float
from tiledsl.passes.vectorize_parallel.updates import shared_updates

# tile: memory


@result_meaning("tile.alloc")
def _alloc(op: Operation, executor: Executor) -> Any:
    if op.results[0] in executor.private:
        return lambda env: _for_lanes(executor, op.results[0])
    return lambda env: executor.allocate(buffer_type(op.results[0]))


def _for_lanes(executor: Executor, buffer: Value) -> np.ndarray:
    shape = (*executor.extents, *buffer_type(buffer).static_shape)
    return executor.allocate(BufferType(shape, buffer.dtype, "local"))


@result_meaning("tile.view")
def _view(op: Operation, executor: Executor) -> Any:
    source, out = op.operands[0], op.results[0]

    def shown(env: Env) -> np.ndarray:
        array = env[source]
        if not array.flags.c_contiguous:
            raise ExecutorError("a view of a strided buffer")
        shape = [executor.dims[dim] if isinstance(dim, str) else dim for dim in out.type.shape]
        return executor.algebra.view(array.reshape(-1), source.dtype, out.type.dtype).reshape(shape)

    return shown


def _inside(array: np.ndarray, indices: Sequence[Any]) -> Any:
    inside: Any = True
    for index, size in zip(indices, array.shape, strict=True):
        inside = inside & (index >= 0) & (index < size)
    return inside


def _element_inside(
    executor: Executor, buffer: Value, array: np.ndarray, place: tuple[int, ...], guarded: bool
) -> bool:
    """The same as `_active` for one element: parallel bodies run it often."""
    for index, size in zip(place, array.shape, strict=True):
        if not 0 <= index < size:
            return bool(_active(executor, buffer, array, place, None, guarded))
    return True


def _active(
    executor: Executor, buffer: Value, array: np.ndarray, indices: Sequence[Any], mask: Any, guarded: bool,
    atomic: bool = False,
) -> Any:  # fmt: skip
    """Where an access takes place. Raises where one lies outside and nothing makes up for it."""
    inside = _inside(array, indices)
    must_fit = buffer_type(buffer).scope != "global" and not atomic or guarded
    if must_fit and np.any(np.logical_not(inside) if mask is None else mask & np.logical_not(inside)):
        what = "a guarded access" if guarded else "an access"
        ranges = ", ".join(f"{np.min(index)}..{np.max(index)}" for index in indices)
        name = buffer.name or "a buffer"
        error = ExecutorError(f"{what} to {name} of shape {array.shape} lies outside: the indices are {ranges}")
        if guarded or executor.filler is None:
            raise error
        executor.strayed = executor.strayed or error
    return inside if mask is None else mask & inside


def _filled(executor: Executor, buffer: Value, out: Any, active: Any, mask: Any) -> Any:
    """What was read, with the executor's number for what lies outside of on-chip memory and is not masked."""
    if executor.filler is None or buffer_type(buffer).scope == "global":
        return out
    filler = executor.algebra.constant(executor.filler, buffer.dtype)
    return scalar(np.where(np.logical_not(active) if mask is None else mask & np.logical_not(active), filler, out))


def spread(value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """np.broadcast_to, which takes longer than most programs' operations where there is nothing to do."""
    return value if isinstance(value, np.ndarray) and value.shape == shape else np.broadcast_to(value, shape)


def read_elements(array: np.ndarray, indices: Sequence[Any], active: Any, other: Any, shape: tuple[int, ...]) -> Any:
    """Elements at indices where active, `other`, of their type, elsewhere."""
    if not shape:
        return array[tuple(indices)].copy() if active else other
    if array.size == 0:
        return np.full(shape, other, array.dtype)
    safe = tuple(spread(np.where(active, index, 0), shape) for index in indices)
    return np.where(active, array[safe], other)


def write_elements(array: np.ndarray, indices: Sequence[Any], active: Any, value: Any, shape: tuple[int, ...]) -> None:
    """Elements at indices replaced where active; the last of several writes to one place stays."""
    if not shape:
        if active:
            array[tuple(indices)] = value
        return
    active = spread(active, shape)
    places = tuple(spread(index, shape)[active] for index in indices)
    array[places] = spread(value, shape)[active]


def _is_one_place(op: Operation, lanes: Sequence[Value], own: Set[Value]) -> bool:
    """Whether an operation writes one element of on-chip memory in every lane, where each has a value of its own, but
    not one of the buffers `own` to a lane."""
    if op.name != "tile.store":
        return False
    fields = fields_of(op)
    if fields["buffer"] in own:
        return False
    is_global = buffer_type(fields["buffer"]).scope == "global"
    return not is_global and not any(depends_on(index, lanes) for index in fields["indices"])


def _of_each_lane(op: Operation) -> set[Value]:
    """The buffers of which each lane has its own: those that are allocated there, and single elements that nothing else
    uses and that are written before they are read."""
    inside = set(op.walk())
    stored = {inner.buffer for inner in inside if isinstance(inner, StoreOp) and not inner.indices}
    return {inner.results[0] for inner in inside if inner.name == "tile.alloc"} | {
        buffer
        for buffer in stored
        if buffer_type(buffer).scope != "global"
        and inside.issuperset(buffer.uses)
        and _is_written_first(buffer, op.regions[0])
    }


def _is_written_first(buffer: Value, region: Region) -> bool:
    for op in region:
        if isinstance(op, StoreOp) and op.buffer is buffer and op.mask is None:
            return True
        if isinstance(op, scf.IfOp) and all(_is_written_first(buffer, inner) for inner in op.regions):
            return True
        if any(buffer in inner.operands for inner in op.walk()):
            return False
    return False


def _is_by_elements(buffer: Value) -> bool:
    """Whether a buffer is read and written an element at a time."""
    return buffer_type(buffer).is_static and all(
        op.name in ("tile.load", "tile.store", "tile.atomic")
        and not any(value.shape for value in (*op.operands, *op.results) if value is not buffer)
        for op in buffer.uses
    )


def _in_lanes(executor: Executor, mask: Any, of_block: bool = False) -> Any:
    """A mask, or None, for the lanes that are active; an operation on a whole tile is of the block and not of lanes."""
    if executor.lanes is None or executor.lanes is True or of_block:
        return mask
    return executor.lanes if mask is None else mask & executor.lanes


@meaning("tile.load")
def _load(op: Operation, executor: Executor) -> Step:
    fields, out, guarded = fields_of(op), op.results[0], op.attributes["guarded"]
    buffer, mask, other, indices = (fields[key] for key in ("buffer", "mask", "other", "indices"))
    zero = executor.algebra.constant(0, out.dtype)
    one = not out.shape and mask is None
    own = buffer in executor.private

    def step(env: Env) -> None:
        array = env[buffer]
        if one and executor.lanes is None:
            place = tuple([int(env[index]) for index in indices])
            if _element_inside(executor, buffer, array, place, guarded):
                env[out] = array[place].copy()
            else:
                env[out] = _filled(executor, buffer, zero if other is None else env[other], np.False_, None)
            return
        places = [*(executor.lines if own else ()), *(env[index] for index in indices)]
        where = _in_lanes(executor, None if mask is None else env[mask], bool(out.shape))
        shape = out.shape or _shape(*places, where)
        found = part_at(array, places, shape) if is_everywhere(where) else None
        if found is not None:
            env[out] = scalar(found.copy())
            return
        active = _active(executor, buffer, array, places, where, guarded)
        made = read_elements(array, places, active, zero if other is None else env[other], shape)
        env[out] = _filled(executor, buffer, made, active, where)

    return step


def _shape(*values: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(*(np.shape(value) for value in values if value is not None))


@meaning("tile.store")
def _store(op: Operation, executor: Executor) -> Step:
    fields, guarded = fields_of(op), op.attributes["guarded"]
    value, buffer, mask, indices = (fields[key] for key in ("value", "buffer", "mask", "indices"))
    of_block = bool(value.shape) or any(index.shape for index in indices)
    one = mask is None and not of_block
    own = buffer in executor.private

    def step(env: Env) -> None:
        array = env[buffer]
        if one and executor.lanes is None:
            place = tuple([int(env[index]) for index in indices])
            if _element_inside(executor, buffer, array, place, guarded):
                array[place] = env[value]
            return
        places = [*(executor.lines if own else ()), *(env[index] for index in indices)]
        where = _in_lanes(executor, None if mask is None else env[mask], of_block)
        shape = _shape(*places, where, env[value])
        found = part_at(array, places, shape, is_written=True) if is_everywhere(where) else None
        if found is not None:
            found[...] = env[value]
            return
        active = _active(executor, buffer, array, places, where, guarded)
        write_elements(array, places, active, env[value], shape)

    return step


def _combiner(algebra: Algebra, kind: str, dtype: str) -> Any:
    if kind in ("exchange", "store") or kind == "cas" and (not is_float(dtype) or type(algebra) is Algebra):
        return lambda old, new: new
    if kind == "load":
        return lambda old, new: old
    if kind not in ("add", "max", "min", "and", "or", "xor"):
        raise ExecutorError(f"no atomic operation {kind!r}")
    return algebra.atomic(kind, dtype)


def _same_bits(one: Any, other: Any) -> Any:
    """Whether elements of one type have the same bits; floats as these, and not as numbers."""
    one, other = np.asarray(one), np.asarray(other)
    bits = np.dtype(f"u{one.dtype.itemsize}")
    return one.view(bits) == other.astype(one.dtype).view(bits)


def atomically(
    algebra: Algebra, array: np.ndarray, places: Sequence[Any], active: Any, value: Any, kind: str, dtype: str,
    shape: Point, compare: Any = None,
) -> Any:  # fmt: skip
    """One element after another; returns the old values, 0 where not active. A cas compares bits with `compare`."""
    combine, zero = _combiner(algebra, kind, dtype), algebra.constant(0, dtype)
    if not shape:
        if not active:
            return zero
        place = tuple(int(index) for index in places)
        before = array[place].copy()
        if compare is None or _same_bits(before, compare):
            array[place] = combine(before, value)
        return before
    found = part_at(array, places, shape, is_written=True) if is_everywhere(active) else None
    if found is not None:
        before = found.copy()
        new = combine(before, value)
        found[...] = new if compare is None else np.where(_same_bits(before, compare), new, before)
        return before
    active = spread(active, shape)
    chosen = [spread(index, shape)[active] for index in places]
    operands = spread(value, shape)[active]
    wanted = None if compare is None else spread(compare, shape)[active]
    previous = np.full(operands.shape, zero, array.dtype)
    # Each round takes one element of each place, in the order of the elements.
    lines = np.ravel_multi_index(tuple(chosen), array.shape) if operands.size else np.zeros(0, np.int64)
    order = np.argsort(lines, kind="stable")
    ordered = lines[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if ordered.size else np.zeros(0, np.int64)
    turn = np.arange(ordered.size) - np.repeat(starts, np.diff(np.r_[starts, ordered.size]))
    for now in np.split(order[np.argsort(turn, kind="stable")], np.cumsum(np.bincount(turn))[:-1]):
        at = tuple(index[now] for index in chosen)
        before = array[at]
        previous[now] = before
        new = combine(before, operands[now])
        array[at] = new if wanted is None else np.where(_same_bits(before, wanted[now]), new, before)
    old = np.full(shape, zero, array.dtype)
    old[active] = previous
    return old


@meaning("tile.atomic")
def _atomic(op: Operation, executor: Executor) -> Step:
    fields, guarded, kind = fields_of(op), op.attributes["guarded"], op.attributes["kind"]
    value, buffer, mask, indices = (fields[key] for key in ("value", "buffer", "mask", "indices"))
    compare, own = fields["compare"], buffer in executor.private

    def step(env: Env) -> None:
        array, places = env[buffer], [*(executor.lines if own else ()), *(env[index] for index in indices)]
        where = _in_lanes(executor, None if mask is None else env[mask])
        active = _active(executor, buffer, array, places, where, guarded, atomic=True)
        wanted = None if compare is None else env[compare]
        shape = _shape(*places, where, env[value], wanted)
        if executor.lanes is not None:
            shape = np.broadcast_shapes(shape, executor.extents)
        made = atomically(executor.algebra, array, places, active, env[value], kind, value.dtype, shape, wanted)
        env[op.results[0]] = made

    return step


@meaning("tensor.scatter")
def _scatter(op: Operation, executor: Executor) -> Step:
    into, values, places, *compare = op.operands
    kind, (out, before) = op.attributes["kind"], op.results

    def step(env: Env) -> None:
        array, at = np.array(env[into]), env[places]
        inside = (at >= 0) & (at < len(array))
        wanted = env[compare[0]] if compare else None
        env[before] = atomically(executor.algebra, array, [at], inside, env[values], kind, into.dtype, at.shape, wanted)
        env[out] = array

    return step


@result_meaning("tile.read")
def _read(op: Operation, _: Executor) -> Any:
    return lambda env: scalar(env[op.operands[0]].copy())


@meaning("tile.write", "tile.fill")
def _write(op: Operation, executor: Executor) -> Step:
    value, buffer = op.operands
    own = buffer in executor.private

    def step(env: Env) -> None:
        if own:
            array, given, lanes = env[buffer], env[value], spread(executor.lanes, executor.extents)
            rest = (1,) * (array.ndim - lanes.ndim)
            if op.name == "tile.fill" and np.ndim(given):
                given = given.reshape(given.shape + rest)
            array[...] = np.where(lanes.reshape(lanes.shape + rest), given, array)
            return
        env[buffer][...] = env[value]

    return step


@meaning("tile.copy")
def _copy(op: Operation, executor: Executor) -> Step:
    fields, attributes = fields_of(op), op.attributes
    shape = attributes["shape"]
    safe = executor.algebra.constant(attributes["safe_value"], fields["source"].dtype)
    convert = executor.algebra.cast(fields["source"].dtype, fields["target"].dtype)

    def places(env: Env, buffer: Value, offsets: list[Value], axes: tuple[int, ...]) -> list[Any]:
        rank = env[buffer].ndim
        indices: list[Any] = [np.int64(env[offset]) for offset in offsets] if offsets else [np.int64(0)] * rank
        for dimension, (axis, size) in enumerate(zip(axes, shape, strict=True)):
            line = [1] * len(shape)
            line[dimension] = size
            indices[axis] = indices[axis] + np.arange(size).reshape(line)
        return indices

    def part(env: Env, buffer: Value, offsets: list[Value], axes: tuple[int, ...]) -> np.ndarray | None:
        """The elements as a part of the array; None if some are outside."""
        array = env[buffer]
        chosen: list[Any] = [int(env[offset]) for offset in offsets] if offsets else [0] * array.ndim
        inside = all(0 <= start < size for start, size in zip(chosen, array.shape, strict=True))
        for axis, size in zip(axes, shape, strict=True):
            inside = inside and chosen[axis] + size <= array.shape[axis]
            chosen[axis] = slice(chosen[axis], chosen[axis] + size)
        if not inside:
            return None
        found: np.ndarray = array[(*chosen, ...)].transpose([sorted(axes).index(axis) for axis in axes])
        return found

    def step(env: Env) -> None:
        source, target = fields["source"], fields["target"]
        tile: Any = part(env, source, fields["source_offsets"], attributes["source_axes"])
        if tile is None:
            at = places(env, source, fields["source_offsets"], attributes["source_axes"])
            active = _active(executor, source, env[source], at, None, False)
            tile = _filled(executor, source, read_elements(env[source], at, active, safe, shape), active, None)
        elif source is target:
            tile = tile.copy()
        goal = part(env, target, fields["target_offsets"], attributes["target_axes"])
        if goal is not None:
            goal[...] = convert(tile)
            return
        at = places(env, target, fields["target_offsets"], attributes["target_axes"])
        active = _active(executor, target, env[target], at, None, False)
        write_elements(env[target], at, active, convert(tile), shape)

    return step


@meaning("tile.gemm")
def _gemm(op: Operation, executor: Executor) -> Step:
    attributes = op.attributes
    left, right, target = op.operands
    dot = executor.algebra.dot(left.dtype, right.dtype, target.dtype, attributes["precision"])

    def step(env: Env) -> None:
        a, b, c = (env[value].reshape(env[value].shape[-2:]) for value in op.operands)
        a, b = a.T if attributes["trans_a"] else a, b.T if attributes["trans_b"] else b
        made = dot(a, b, None if attributes["clear"] else c)
        env[op.operands[2]][...] = made.reshape(env[op.operands[2]].shape)

    return step


@meaning("tile.reduce")
def _tile_reduce(op: Operation, executor: Executor) -> Step:
    source, target = op.operands
    kind, axis, clear, propagate_nan = (op.attributes[key] for key in ("kind", "axis", "clear", "propagate_nan"))
    convert = executor.algebra.cast(source.dtype, target.dtype)
    reduce = executor.algebra.reduce(kind, axis, target.dtype, propagate_nan)
    combine = executor.algebra.combine(kind, target.dtype, propagate_nan)

    def step(env: Env) -> None:
        old = env[target]
        made = np.asarray(reduce(convert(env[source]))).reshape(old.shape)
        old[...] = made if clear else combine(old, made)

    return step


@meaning("tile.scan")
def _tile_scan(op: Operation, executor: Executor) -> Step:
    source, target, *factors = op.operands
    convert = executor.algebra.cast(source.dtype, target.dtype)
    compute = scan(op, target.dtype, executor.algebra)

    def step(env: Env) -> None:
        env[target][...] = compute(convert(env[source]), *(env[each] for each in factors))

    return step


@meaning("tile.sort")
def _tile_sort(op: Operation, executor: Executor) -> Step:
    source, target, indices = op.operands
    compute = in_order(executor.algebra, source.dtype, op.attributes["axis"], op.attributes["descending"])

    def step(env: Env) -> None:
        env[target][...], env[indices][...] = compute(env[source])

    return step


# tile: structure


def _has_shared_updates(op: Operation) -> bool:
    """Whether an iteration may combine an element with what another one made of it: not in lanes, then."""
    assert isinstance(op, ParallelOp)
    try:
        return bool(shared_updates(Variance(op)))
    except TileError:
        return True


@meaning("tile.parallel")
def _parallel(op: Operation, executor: Executor) -> Step:
    if op.attributes["lockstep"]:
        return of_threads(op, executor)
    region, args, extents = op.regions[0], op.regions[0].args, op.attributes["extents"]
    ranges = [[np.int32(number) for number in range(extent)] for extent in extents]
    own = _of_each_lane(op)
    of_block = op in executor.of_block
    # A loop in a loop has no place here, and of what a lane has for itself single elements.
    apart = (
        any(inner.name in ("tile.parallel", "tile.print") or _is_one_place(inner, args, own) for inner in region.walk())
        or not of_block
        and any(isinstance(around, ParallelOp) for around in ancestors(op))
        or not all(_is_by_elements(buffer) for buffer in own)
        or _has_shared_updates(op)
    )
    outer = executor.private
    executor.private = outer if apart or not executor.in_lanes else outer | own
    body = executor.block(region)
    executor.private = outer
    lines = index_lines(extents)

    def step(env: Env) -> None:
        if executor.in_lanes and (executor.lanes is None or of_block) and not apart:
            if executor.roles is not None:
                executor.roles.drain(executor)
            outside = executor.lanes, executor.extents, executor.lines
            if outside[0] is not None and not np.any(outside[0]):
                return
            env.update(zip(args, lines, strict=True))
            executor.lanes, executor.extents, executor.lines = np.True_, extents, lines
            env.update((buffer, _for_lanes(executor, buffer)) for buffer in own)
            body(env)
            executor.lanes, executor.extents, executor.lines = outside
            return
        for point in itertools.product(*ranges):
            env.update(zip(args, point, strict=True))
            body(env)

    return step


@meaning("tile.kernel")
def _kernel(op: Operation, executor: Executor) -> Step:
    body, args = executor.block(op.regions[0]), op.regions[0].args
    everyone = programs_of(op)

    def step(env: Env) -> None:
        executor.grid_sizes = tuple(int(env[size]) for size in op.operands)
        for point in executor.grid(executor.grid_sizes):
            everyone(executor, {**env, **dict(zip(args, map(np.int32, point), strict=True))}, body)

    return step


def programs_of(op: Operation) -> Any:
    """How the body of a kernel is run: once, or once for each part of a block's rows and each of its work items."""
    parts = max(
        (inner.attributes["parts"] for inner in op.regions[0].walk() if inner.name == "gluon.warp_group_id"), default=1
    )

    def run_all(executor: Executor, env: Env, body: Any) -> None:
        for executor.part in range(parts):
            executor.turn, executor.turns = 0, 1
            while executor.turn < executor.turns:
                body(dict(env))
                executor.turn += 1

    return run_all


def message_of(op: Operation) -> str:
    """The message of a print or an assertion, as the source has it."""
    message = str(op.attributes["message"])
    return printable(message or "value") if op.name == "tile.print" else message


@meaning("tile.print")
def _print(op: Operation, executor: Executor) -> Step:
    def step(env: Env) -> None:
        executor.said.add(message_of(op))
        if executor.printed is not None:
            executor.printed.append((op.attributes["message"], [np.copy(env[value])[()] for value in op.operands]))

    return step


@meaning("tile.assert", "tile.assume")
def _assert(op: Operation, executor: Executor) -> Step:
    def step(env: Env) -> None:
        if op.name == "tile.assert":
            executor.said.add(message_of(op))
        if not np.all(env[op.operands[0]]):
            raise ExecutorError(f"{op.name} does not hold: {op.attributes.get('message', '')}")

    return step


# triton


@meaning("triton.launch")
def _launch(op: Operation, executor: Executor) -> Step:
    fields, args = fields_of(op), op.regions[0].args
    body = executor.block(op.regions[0])
    everyone = programs_of(op)

    def step(env: Env) -> None:
        inner: Env = {}
        for given, arg in zip(fields["arguments"], args, strict=True):
            value = env[given]
            if isinstance(given.type, BufferType) and arg.dtype.startswith("*"):
                if arg.dtype[1:] != given.dtype:
                    raise ExecutorError(f"{given!r} is passed as {arg.type}")
                value = executor.pointer(value)
            elif given.type != arg.type:
                raise ExecutorError(f"{given!r} is passed as {arg.type}")
            inner[arg] = value
        outer = executor.program_id
        executor.grid_sizes = tuple(int(env[size]) for size in fields["grid"])
        for point in executor.grid(executor.grid_sizes):
            executor.program_id = (*point, 0, 0)[:3]
            everyone(executor, inner, body)
        executor.program_id = outer

    return step


@result_meaning("triton.program_id")
def _program_id(op: Operation, executor: Executor) -> Any:
    return lambda _: np.int32(executor.program_id[op.attributes["axis"]])


@result_meaning("triton.num_programs")
def _num_programs(op: Operation, executor: Executor) -> Any:
    return lambda _: np.int32(executor.grid_sizes[op.attributes["axis"]])


@value_meaning("triton.addptr")
def _addptr(op: Operation, _: Algebra) -> Any:
    return lambda pointer, offset: pointer.map(lambda base: base + np.asarray(offset).astype(np.int64)[()])


@meaning("triton.load")
def _pointer_load(op: Operation, executor: Executor) -> Step:
    fields, out = fields_of(op), op.results[0]
    poison = executor.algebra.poison(out.dtype)

    def step(env: Env) -> None:
        pointer, mask = env[fields["pointer"]], None if fields["mask"] is None else env[fields["mask"]]
        other = poison if fields["other"] is None else env[fields["other"]]
        env[out] = scalar(pointer.memory.read(pointer.offset, mask, other, out.shape))

    return step


@meaning("triton.store", "triton.atomic")
def _pointer_store(op: Operation, executor: Executor) -> Step:
    fields = fields_of(op)

    def step(env: Env) -> None:
        pointer, value = env[fields["pointer"]], env[fields["value"]]
        mask = None if fields["mask"] is None else env[fields["mask"]]
        shape = np.shape(pointer.offset)
        flat = pointer.memory.flat
        if op.name == "triton.store":
            if np.asarray(value).dtype != flat.dtype:
                raise ExecutorError(f"{np.asarray(value).dtype} is stored to {flat.dtype}")
            pointer.memory.write(pointer.offset, mask, value, shape)
        else:
            active, _ = pointer.memory.reached(pointer.offset, mask, shape)
            kind, dtype = op.attributes["kind"], fields["value"].dtype
            compare = None if fields["compare"] is None else env[fields["compare"]]
            made = atomically(executor.algebra, flat, [pointer.offset], active, value, kind, dtype, shape, compare)
            env[op.results[0]] = made

    return step
