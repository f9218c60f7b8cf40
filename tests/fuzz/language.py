"""The tile language's names for the oracle: `T` of a program that plain Python executes, element by element.

What a program writes as statements (`with T.Kernel`, `and`, assignments to variables) is rewritten by `oracle`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fuzz import dtypes, functions, memory, numbers, orders, threads
from tests.fuzz.dtypes import BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, Discard, Dtype, dtype_of, half_unit, rounded, wrap
from tests.fuzz.memory import INNER, Buffer, Memory, Region, Var
from tests.fuzz.numbers import Number, cast, number
from tests.fuzz.regions import lines, pairs, put_values, region, values_of


class TensorSpec:
    """The declaration of a tensor: a shape and strides of ints and Symbols."""

    def __init__(self, shape: Any, dtype: Any = "float32", strides: Any = None) -> None:
        self.shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        self.dtype, self.strides = dtype_of(dtype), strides


class Symbol:
    """A dynamic dimension, or arithmetic on one."""

    def __init__(self, evaluate: Callable[[dict[str, int]], int], name: str = "") -> None:
        self.evaluate, self.name = evaluate, name

    def _with(self, other: Any, function: Callable[[int, int], int]) -> Symbol:
        return Symbol(lambda sizes: function(self.evaluate(sizes), size_of(other, sizes)))

    def __add__(self, other: Any) -> Symbol:
        return self._with(other, lambda a, b: a + b)

    def __mul__(self, other: Any) -> Symbol:
        return self._with(other, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__


def size_of(dim: Any, sizes: dict[str, int]) -> int:
    return dim.evaluate(sizes) if isinstance(dim, Symbol) else int(dim)


class Frame:
    """What `with` statements and annotations name."""

    def __init__(self, kind: str, *values: Any, threads: int = 128) -> None:
        self.kind, self.values, self.threads = kind, values, threads


# Loops


def serial(start: Any, stop: Any = None, step: Any = 1, **_: Any) -> Iterator[Number]:
    if stop is None:
        start, stop = 0, start
    for value in range(_bound(start), _bound(stop), _bound(step)):
        memory.machine.step()
        yield Number(INT32, value)


def _bound(x: Any) -> int:
    return x.__index__() if isinstance(x, Number) else int(x)


def pipelined(start: Any, stop: Any = None, num_stages: int = 0, **_: Any) -> Iterator[Number]:
    return serial(start, stop)


def grid(*extents: Any) -> Iterator[tuple[Number, ...]]:
    for point in itertools.product(*(range(_bound(extent)) for extent in extents)):
        memory.machine.step()
        yield tuple(Number(INT32, value) for value in point)


def parallel(*extents: Any, **_: Any) -> Iterator[Any]:
    sizes = [_bound(extent) for extent in extents]
    for point in memory.machine.iterations(itertools.product(*map(range, sizes))):
        made = tuple(Number(INT32, value) for value in point)
        yield made if len(made) > 1 else made[0]


def persistent(domain: Sequence[Any], wave_size: Any, index: Any, group_size: Any = 8) -> Iterator[Any]:
    """Block `index` of `wave_size` takes the tiles index, index + wave_size, ... of the domain, which is walked in
    groups of `group_size` along its last dimension but one."""
    sizes = [_bound(size) for size in domain]
    *outer, rows, columns = [1, *sizes] if len(sizes) == 1 else sizes
    group_size = _bound(group_size)
    for tile in range(_bound(index), math.prod(sizes), _bound(wave_size)):
        rest, place = divmod(tile, rows * columns)
        group, inner = divmod(place, group_size * columns)
        height = min(rows - group * group_size, group_size)
        point = [group * group_size + inner % height, inner // height]
        for size in reversed(outer):
            point.insert(0, rest % size)
            rest //= size
        made = tuple(Number(INT32, value) for value in point[-len(sizes) :])
        memory.machine.step()
        yield made if len(made) > 1 else made[0]


def blocks(frame: Frame) -> Iterator[Any]:
    sizes = [_bound(extent) for extent in frame.values] or [1]
    for point in memory.machine.blocks(sizes):
        made = tuple(Number(INT32, value) for value in point)
        yield made if len(made) > 1 else made[0]


# Allocation and views


def _alloc(shape: Any, dtype: Any, scope: str) -> Buffer:
    dims = tuple(map(_bound, shape if isinstance(shape, (tuple, list)) else (shape,)))
    made = dtype_of(dtype)

    def make() -> Buffer:
        return Buffer(Memory([Number(made, None)] * math.prod(dims), scope == "global"), dims, made, scope)

    block = memory.machine.threads
    return make() if block is None or scope == "local" else block.allocation(make)


def alloc_var(dtype: Any, *args: Any, init: Any = None, **_: Any) -> Var:
    var = Var(dtype_of(dtype))
    init = args[0] if args and init is None else init
    if init is not None:
        var.store(init)
    return var


def view(source: Buffer, shape: Any = None, dtype: Any = None) -> Buffer:
    to = dtype_of(dtype) if dtype is not None else source.dtype
    if source.strides != memory.contiguous(source.dims) or to.bits != source.stored.bits:
        raise Discard("a view of what is not contiguous, or as another width")
    dims = source.dims if shape is None else tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if math.prod(map(_bound, dims)) != math.prod(source.dims):
        raise Discard("a view of another size")
    seen = Buffer(source.memory, [_bound(dim) for dim in dims], to, source.scope, source.offset, None, source.stored)
    seen.shape = tuple(dims)
    seen.made_in, seen.name = source.made_in, source.name
    return seen


# Copies


def copy(src: Any, dst: Any, **_: Any) -> None:
    if isinstance(src, Var) or isinstance(dst, Var):
        value = src.load() if isinstance(src, Var) else src.buffer.load(src.starts)
        dst.store(value) if isinstance(dst, Var) else dst.buffer.store(dst.starts, value)
        return
    (a, _), (b, _) = region(src), region(dst)
    for at, to in pairs(src, dst):
        b.buffer.store(to, a.buffer.load(at))


def fill(buffer: Any, value: Any, **_: Any) -> None:
    if isinstance(buffer, Var):
        buffer.store(value)
        return
    place, _ = region(buffer)
    axes = [axis for axis, extent in enumerate(place.extents) if extent is not None]
    sizes = [place.extents[axis] or 0 for axis in axes]
    for point in memory.machine.iterations(itertools.product(*map(range, sizes))):
        place.buffer.store(place.at(dict(zip(axes, point))), value)


def clear(buffer: Any, **_: Any) -> None:
    fill(buffer, 0)


# Reductions, scans, products


def total(terms: Sequence[Number], dtype: Dtype, digits: int = 0, exact: bool = True) -> Number:
    """The sum of terms in `dtype`. It has no error where every association gives the same bits: all terms are
    multiples of one unit, and their magnitudes add up to less than 2**digits of them."""
    if any(term.value is None for term in terms):
        return Number(dtype, None)
    if dtype.kind != "f":
        return Number(dtype, wrap(sum(term.value for term in terms), dtype))
    digits = digits or dtype.digits
    numbers_, errors = [term.value for term in terms], sum(term.error for term in terms)
    special = [value for value in numbers_ if value - value != 0.0]
    if special:
        signs = {value for value in special if value == value}
        return Number(dtype, special[0] if len(signs) == len(set(map(repr, special))) == 1 else math.nan)
    size = math.fsum(map(abs, numbers_))
    if size > dtype.high:
        return Number(dtype, None)
    made = math.fsum(numbers_)
    if exact and not errors:
        ratios = [value.as_integer_ratio() for value in numbers_ if value]
        scale = max((below for _, below in ratios), default=1)
        whole = [above * (scale // below) for above, below in ratios]
        unit = math.gcd(*whole) or 1
        unit &= -unit
        if sum(map(abs, whole)) <= unit << digits and rounded(made, dtype) == made:
            return Number(dtype, made)
    slack = 2.0 * len(terms) * size * math.ldexp(1.0, -digits)
    return Number(dtype, rounded(made, dtype), errors * 1.01 + slack + half_unit(size, dtype))


def _combine(kind: str, values: Sequence[Number], dtype: Dtype, propagate: bool = False) -> Number:
    values = [cast(value, dtype) for value in values]
    if kind in ("abssum", "absmax"):
        values = [numbers.absolute(value) for value in values]
    if kind in ("sum", "abssum"):
        return total(values, dtype)
    if any(value.value is None for value in values):
        return Number(dtype, None)
    if propagate and any(value.value != value.value for value in values):
        return Number(dtype, math.nan)
    functions = {
        "max": numbers.maximum, "absmax": numbers.maximum, "min": numbers.minimum, "bitand": numbers.bit_and,
        "bitor": numbers.bit_or, "bitxor": numbers.bit_xor, "and": numbers.bit_and, "or": numbers.bit_or,
    }  # fmt: skip
    result = values[0]
    for value in values[1:]:
        result = functions[kind](result, value)
    return result


def reduce(
    buffer: Any, out: Any, reduce_type: str, dim: int = -1, clear: bool = True, batch: int = 1,
    nan_propagate: bool = False, **_: Any,
) -> None:  # fmt: skip
    if isinstance(out, Var):
        part = _alloc((1,), out.dtype, "fragment")
        if not clear:
            part.store((0,), out.load())
        reduce(buffer, part, reduce_type, dim, clear, batch, nan_propagate)
        out.store(part.load((0,)))
        return
    shape, held = values_of(buffer)
    axis = dim % len(shape)
    target, _ = region(out)
    old = [] if clear else values_of(out)[1]
    dtype = target.buffer.dtype
    made = []
    for number_, line in enumerate(lines(shape, axis)):
        terms = [cast(held[place], dtype) for place in line]
        if not clear:
            terms.append(old[number_])
        # What was there takes part as it is: only the tile's own elements become absolute.
        if reduce_type.startswith("abs"):
            terms = [*(numbers.absolute(term) for term in terms[: len(line)]), *terms[len(line) :]]
        found = _combine(reduce_type.removeprefix("abs"), terms, dtype, nan_propagate)
        made.append(_of_numbers(found, "" if nan_propagate else reduce_type))
    put_values(out, made)


def _of_numbers(found: Number, kind: str) -> Number:
    """The greatest of nothing but NaN that is dropped is NaN or, where a tile is padded, what max begins with."""
    dropped = kind in ("max", "min", "absmax") and found.value != found.value
    return Number(found.dtype, None) if dropped else found


def _named(kind: str) -> Callable[..., None]:
    def named(buffer: Any, out: Any, dim: int = -1, clear: bool = True, batch: int = 1, **rest: Any) -> None:
        reduce(buffer, out, kind, dim, clear, batch, **rest)

    return named


def _scan(kind: str) -> Callable[..., None]:
    def scan(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False, **_: Any) -> None:
        shape, held = values_of(src)
        dtype = held[0].dtype
        made = list(held)
        for line in lines(shape, dim % len(shape)):
            line = line[::-1] if reverse else line
            for end in range(len(line)):
                found = _combine(kind, [held[place] for place in line[: end + 1]], dtype)
                made[line[end]] = _of_numbers(found, kind)
        put_values(src if dst is None else dst, made)

    return scan


def transpose(src: Any, dst: Any) -> None:
    (rows, columns), held = values_of(src, drop=True)
    put_values(dst, [held[row * columns + column] for column in range(columns) for row in range(rows)])


def _matrix(x: Any) -> tuple[list[int], list[Number]]:
    place, _ = region(x)
    shape, held = values_of(x, drop=any(extent not in (None, 1) for extent in place.extents[:-2]))
    if len(shape) < 2 or any(size != 1 for size in shape[:-2]):
        raise Discard("a product of what is no matrix")
    return shape[-2:], held


def gemm(
    A: Any, B: Any, C: Any, transpose_A: bool = False, transpose_B: bool = False, policy: Any = None,
    clear_accum: Any = False, **_: Any,
) -> None:  # fmt: skip
    (m, k), a = _matrix(A)
    (k2, n), b = _matrix(B)
    m, k, at_a = (k, m, (1, k)) if transpose_A else (m, k, (k, 1))
    k2, n, at_b = (n, k2, (1, n)) if transpose_B else (k2, n, (n, 1))
    place, _ = region(C)
    dtype = place.buffer.dtype
    keeps = not (clear_accum if not isinstance(clear_accum, Number) else numbers.truth(clear_accum))
    shape = [extent for extent in place.extents if extent is not None]
    old = values_of(C)[1] if keeps or isinstance(clear_accum, Number) else []
    if k != k2 or math.prod(shape) != m * n:
        raise Discard("a product of shapes that do not fit")
    digits = dtype.digits
    if dtype.kind == "f":  # what tensor cores keep while they add
        digits = 13 if a[0].dtype.bits == 8 or b[0].dtype.bits == 8 else min(digits, 22) if digits < 53 else 53
    made = []
    for row, column in itertools.product(range(m), range(n)):
        terms = [_term(a[row * at_a[0] + i * at_a[1]], b[i * at_b[0] + column * at_b[1]], dtype) for i in range(k)]
        if keeps:
            terms.append(old[row * n + column])
        made.append(total(terms, dtype, digits))
    put_values(C, made)


def _term(a: Number, b: Number, dtype: Dtype) -> Number:
    """A product as T.gemm makes it: float32 has the significand of tf32."""
    if a.value is None or b.value is None:
        return Number(dtype, None)
    if dtype.kind != "f":
        return Number(dtype, wrap(a.value * b.value, dtype))
    if dtype is not FLOAT64:
        a, b = (
            Number(each.dtype, each.value, each.error + abs(each.value) * 2.0**-10)
            if each.dtype is FLOAT32 and each.value - each.value == 0 and not _fits(each.value, 11)
            else each
            for each in (a, b)
        )
    made = numbers.mul(Number(FLOAT64, a.value, a.error), Number(FLOAT64, b.value, b.error))
    return Number(dtype, made.value, made.error)


def _fits(value: float, digits: int) -> bool:
    scaled = math.ldexp(math.frexp(value)[0], digits)
    return scaled == int(scaled)


# Atomics


def _atomic(kind: str) -> Callable[..., Any]:
    combine: dict[str, Callable[[Any, Any], Any]] = {
        "add": numbers.add, "max": numbers.maximum, "min": numbers.minimum, "or": numbers.bit_or,
    }  # fmt: skip

    def element(buffer: Buffer, indices: Sequence[Any], value: Any, returns: bool, site: int = 0) -> Any:
        at = buffer.position(indices, site)
        if at is None:
            raise Discard("an atomic operation at an undefined index")
        if at < 0:
            return Number(buffer.dtype, None)
        if returns and memory.machine.tracking and buffer.scope == "global":
            buffer.memory.note_read(at)
        old = buffer.memory.cells[at]
        ordered = buffer.scope != "global"  # one iteration after the other, whatever they return
        buffer.write(at, combine[kind](old, cast(value, buffer.dtype)), "" if returns and not ordered else kind)
        return old

    def atomic(dst: Any, value: Any, memory_order: Any = None, return_prev: bool = False, **_: Any) -> Any:
        place, _ = region(dst)
        scalar = not isinstance(value, (Buffer, Region))
        if scalar and place.is_element:
            memory.machine.step()
            old = element(place.buffer, place.starts, value, return_prev, place.site)
            return old if return_prev else None
        if scalar:
            axes = [axis for axis, extent in enumerate(place.extents) if extent is not None]
            sizes = [int(place.extents[axis] or 0) for axis in axes]
            for point in memory.machine.iterations(itertools.product(*map(range, sizes))):
                element(place.buffer, place.at(dict(zip(axes, point))), value, False)
            return None
        source, _ = region(value)
        for at, to in pairs(value, dst):
            element(place.buffer, to, source.buffer.load(at), False)
        return None

    return atomic


# Reducers

_NEUTRAL: dict[str, Callable[[Dtype], Any]] = {
    "sum": lambda dtype: 0,
    "max": lambda dtype: -math.inf if dtype.kind == "f" else dtype.low,
    "min": lambda dtype: math.inf if dtype.kind == "f" else dtype.high,
    "bitand": lambda dtype: -1, "bitor": lambda dtype: 0, "bitxor": lambda dtype: 0,
}  # fmt: skip


def alloc_reducer(shape: Any, dtype: Any, op: str = "sum", **_: Any) -> Buffer:
    made = _alloc(shape, dtype, "fragment")
    made.op = op
    return made


def reducer_init(reducer: Buffer, init: Any = None) -> None:
    if isinstance(init, (Buffer, Region)):
        copy(init, reducer)
    else:
        fill(reducer, _NEUTRAL[reducer.op](reducer.dtype) if init is None else init)


def reducer_update(target: Region, value: Any) -> None:
    buffer = target.buffer
    at = buffer.position(target.starts, target.site)
    if at is None or at < 0:
        raise Discard("a contribution outside of a reducer")
    old = buffer.memory.cells[at]
    terms = [old, cast(value, buffer.dtype)]
    buffer.write(at, _combine(buffer.op, terms, buffer.dtype), buffer.op)


def finalize_reducer(reducer: Buffer, dst: Any = None, **_: Any) -> None:
    if dst is not None:
        copy(reducer, dst)


# Functions


def ceildiv(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return numbers.floordiv(numbers.sub(numbers.add(a, b), 1), b)


def div(a: Any, b: Any) -> Any:
    floats = any(isinstance(x, float) or (isinstance(x, Number) and x.dtype.kind == "f") for x in (a, b))
    return numbers.divide(a, b) if floats else numbers.truncdiv(a, b)


def _flags(every: bool) -> Callable[[Any], Number]:
    def flag(x: Any) -> Number:
        held = [numbers.as_bool(value) for value in values_of(x)[1]]
        return numbers.logical_and(*held) if every else numbers.logical_or(*held)

    return flag


def assume(condition: Any) -> None:
    if not numbers.truth(condition):
        raise Discard("an assumption does not hold")


def annotate_safe_value(values: dict[Buffer, Any]) -> None:
    for buffer, value in values.items():
        memory.machine.safe[id(buffer.memory)] = cast(value, buffer.dtype)


def _nothing(*_: Any, **__: Any) -> None:
    """A hint."""


class Ref:
    """Annotation of a parameter that a macro may assign to."""


def _tensor(shape: Any, dtype: Any = "float32", data: Any = None) -> Any:
    return TensorSpec(shape, dtype) if data is None else view(data, shape, dtype)


class Language:
    """`T`."""

    def __init__(self) -> None:
        self.__dict__.update(_NAMES)


_REDUCTIONS = ("sum", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor")
_NAMES: dict[str, Any] = {
    **dtypes.DTYPES,
    **{name: functions.function(name) for name in functions.UNITS},
    **{f"reduce_{kind}": _named(kind) for kind in _REDUCTIONS},
    **{f"atomic_{kind}": _atomic(kind) for kind in ("add", "max", "min", "or")},
    **{f"alloc_{scope}": (lambda shape, dtype, _scope=scope, **_: _alloc(shape, dtype, _scope)) for scope in INNER},
    "float": FLOAT32, "int": INT32, "half": FLOAT16, "double": FLOAT64, "bool": BOOL,
    "prim_func": lambda function: function, "macro": lambda function: function, "Ref": Ref,
    "Tensor": _tensor, "Buffer": _tensor,
    "StridedTensor": lambda shape, strides, dtype="float32": TensorSpec(shape, dtype, strides),
    "dynamic": lambda name, dtype=None: Symbol(lambda sizes: sizes[name], name),
    "Kernel": lambda *extents, threads=128, **_: Frame("kernel", *extents, threads=threads),
    "serial": serial, "Serial": serial, "unroll": serial, "Unroll": serial, "Pipelined": pipelined, "grid": grid,
    "Parallel": parallel, "parallel": parallel, "vectorized": serial, "Vectorized": serial, "Persistent": persistent,
    "alloc_var": alloc_var, "view": view, "reshape": view, "copy": copy, "fill": fill, "clear": clear,
    "reduce": reduce, "cumsum": _scan("sum"), "cummax": _scan("max"), "transpose": transpose, "gemm": gemm,
    "alloc_reducer": alloc_reducer, "reducer_init": reducer_init, "reducer_update": reducer_update,
    "finalize_reducer": finalize_reducer, **orders.NAMES, **threads.NAMES,
    "max": numbers.maximum, "min": numbers.minimum, "abs": numbers.absolute, "clamp": numbers.clamp,
    "floor": numbers.floor, "ceil": numbers.ceil, "trunc": numbers.trunc, "rint": numbers.rint,
    "nearbyint": numbers.rint,
    "round": lambda x, mode="ties-to-even": numbers.rint(x) if mode == "ties-to-even" else numbers.half_away(x),
    "isnan": functions.isnan, "isinf": functions.isinf, "isfinite": functions.isfinite, "fmod": numbers.fmod,
    "fma": functions.fma, "copysign": functions.copysign, "popcount": functions.popcount, "clz": functions.clz,
    "reinterpret": functions.reinterpret, "pow": numbers.power, "power": numbers.power,
    "cast": lambda value, dtype, **_: cast(value, dtype_of(dtype)),
    "Cast": lambda dtype, value: cast(value, dtype_of(dtype)),
    "ceildiv": ceildiv, "cdiv": ceildiv, "align_up": lambda a, b: ceildiv(a, b) * b,
    "floordiv": numbers.floordiv, "floormod": numbers.floormod, "truncdiv": numbers.truncdiv,
    "truncmod": numbers.truncmod, "div": div,
    "shift_left": numbers.shl, "shift_right": numbers.shr, "bitwise_and": numbers.bit_and,
    "bitwise_or": numbers.bit_or, "bitwise_xor": numbers.bit_xor, "bitwise_not": lambda x: ~x,
    "if_then_else": numbers.select, "Select": numbers.select, "likely": lambda condition: condition,
    "And": numbers.logical_and, "Or": numbers.logical_or, "Not": numbers.logical_not,
    "any_of": _flags(False), "all_of": _flags(True), "infinity": lambda dtype="float32": math.inf,
    "max_value": lambda dtype: dtype_of(dtype).high, "min_value": lambda dtype: dtype_of(dtype).low,
    "assume": assume, "annotate_safe_value": annotate_safe_value, "use_swizzle": _nothing,
    "annotate_layout": _nothing, "no_set_max_nreg": _nothing, "number": number,
}  # fmt: skip
