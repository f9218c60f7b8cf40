"""Which configurations round alike: a static signature of everything that decides the bits of a result.

Two configurations of one program compute the same sums; their bits differ where they add in another order, round to
another type, or leave that to other instructions. `program_class` reads the first two from the program, once its tiles
are values and before anything depends on the emitter; `hardware_orders.py` reads the third from what Triton
made of it.

What is taken to be equal is little, and is the following.
- Elements of a tile that no sum runs over are independent: how they are spread over tiles, blocks and threads, in which
  order blocks run, and how deep loads are pipelined does not count.
- A product that a loop adds up in place (acc = dot(a, b, acc)) is one chain of instructions in ascending order of K,
  each of a K that the instruction has: the tile's K does not count. That such chains agree is measured, for each
  instruction: `python -m benchmarks.tuning numerics`.
- Zeros that pad a ragged end are added exactly. Maxima and minima are exact.
Everything else, such as the extent of a reduced tile, how it lies in threads and warps, trip counts of loops that carry
sums, the parts of split-K, casts, kinds of products, or options that this module does not know, makes another class.
Classes are never merged because results looked equal: a confirmation on a device only takes configurations out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiledsl.analysis.dependence import handed_on, operands_of, reached
from tiledsl.dialects import arith, scf, tensor, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.digests import short_digest
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.pass_manager import PassManager, Program
from tiledsl.ir.types import ELEMENTS, BufferType

if TYPE_CHECKING:
    from tiledsl.kernels.kernel import Kernel

# Options of passes that choose among ways to move the same values: no bit of a result depends on them.
_HARMLESS = (
    "map-grid.", "pipeline-loops.", "limit-registers.", "select-access.", "peel-loops.", "guard-accesses.",
    "simplify-ranges.", "carry-loads.", "lower-to-triton.index_bits", "lower-to-triton.num_stages",
    "lower-to-triton.maxnreg", "lower-to-triton.launch_pdl", "lower-to-triton.num_warps",
)  # fmt: skip
_WARPS = "lower-to-triton.num_warps"
_EXACT = ("max", "min", "absmax", "and", "or", "xor")  # reductions whose order does not show
_EXACT_ATOMICS = ("max", "min", "and", "or", "xor", "exchange", "load", "store")
_ADD_UP = (tensor.DotOp, tensor.ReduceOp, tensor.ScanOp, tile.AtomicOp, scf.ForOp, scf.WhileOp)
_INT = ("int",)  # the form of whole numbers that no float went into: they are exact, whatever computes them
_TURNING = (("loop",), ("carried",))  # indices that another iteration has another value of
_MOST_FORMS = 20_000

Form = tuple[Any, ...] | str


@dataclass(frozen=True)
class BitClass:
    """signature: equal for configurations that round alike, as far as a program says. varies: why its bits change from
    run to run; "" if they do not. by_rows: why they may depend on how many rows there are."""

    signature: str
    varies: str = ""
    by_rows: str = ""


def program_class(kernel: Kernel) -> BitClass:
    """The class of a kernel's program, options and target. Lowers the program in part, in under a millisecond or so."""
    root, target = values_of(kernel), kernel.target
    options = {
        name: str(value)
        for name, value in sorted(kernel.pass_configs.items(), key=lambda pair: str(pair[0]))
        if not str(getattr(name, "value", name)).startswith(_HARMLESS)
    }
    parts: list[Any] = [str(target), options]
    by_rows = ""
    streams = kernel.pass_configs.get("split-k.streams", 0) or kernel.pass_configs.get("split-last-wave.programs", 0)
    if int(kernel.pass_configs.get("split-k.splits", 1)) > 1 or streams:
        parts.append(_extents(root, all_of_them=bool(streams)))
    if streams:
        by_rows = "sums are split where the number of blocks says"
        parts += [[constant_of(each) for each in op.grid] for op in root.walk() if isinstance(op, tile.KernelOp)]
    reader = _Reader(is_simulated=target.kind == "interpret")
    varies = ""
    for op in root.body:
        if isinstance(op, tile.KernelOp):
            parts.append(reader.kernel(op))
            varies = varies or reader.varies
    if reader.ordered and target.kind == "hip":  # no layouts are read from what Triton makes for it
        parts.append(("warps", kernel.pass_configs.get(_WARPS), _threads(root)))
    return BitClass(short_digest(repr(parts)), varies, by_rows)


def values_of(kernel: Kernel) -> tile.FuncOp:
    """A kernel's program once its tiles are values, before anything depends on the emitter."""
    from tiledsl.passes import default_pipeline

    root = kernel._build()
    passes = default_pipeline(kernel.pass_configs)
    names = [each.name for each in passes]
    PassManager(passes[: names.index("split-last-wave")], verify_each=False).run(Program(root, kernel.target))
    return root


def _threads(root: Operation) -> list[Any]:
    return [(op.threads, op.option("num_warps")) for op in root.walk() if isinstance(op, tile.KernelOp)]


def _extents(root: Operation, all_of_them: bool) -> list[Any]:
    """Where sums are cut: the K of products, and how often loops run; with `all_of_them` whole tiles."""
    extents: list[Any] = []
    for op in root.walk():
        if isinstance(op, tensor.DotOp):
            extents.append((op.a.shape, op.b.shape) if all_of_them else op.a.shape[1])
        elif isinstance(op, scf.ForOp):
            extents.append(_bounds(op))
    return extents


@dataclass
class _Reader:
    """Reads how the values that a kernel stores come about, as nested tuples; `varies` is set by what has no order."""

    is_simulated: bool  # NumPy computes: products depend on whole tiles
    varies: str = ""
    ordered: bool = False  # something adds up
    stored: dict[str, Form] = field(default_factory=dict)  # by buffer
    _forms: dict[Value, Form] = field(default_factory=dict)
    _names: dict[Value, str] = field(default_factory=dict)
    _depth: int = 0  # in loops
    _index: dict[Value, Form] = field(default_factory=dict)
    _exact: dict[Value, Form] = field(default_factory=dict)

    def kernel(self, kernel: tile.KernelOp) -> Any:
        self._forms, self._index, self._exact, self.varies = {}, {}, {}, ""
        self.ordered = self.ordered or any(isinstance(op, _ADD_UP) for op in kernel.walk())
        for number, arg in enumerate(kernel.body.args):
            self._forms[arg] = _INT
            self._index[arg] = ("block",)
            self._exact[arg] = ("block", number)
        stores: list[Any] = []
        self._region(kernel.body, stores)
        return stores

    def _region(self, region: Region, stores: list[Any]) -> None:
        for op in region:
            self._op(op, stores)

    def _op(self, op: Operation, stores: list[Any]) -> None:
        match op:
            case tile.StoreOp() | tile.StoreBlockOp():
                name = self._buffer(op.buffer)
                value = short_digest(repr(self.form(op.value)))
                self.stored[name] = (self.stored.get(name, ()), value)
                stores.append((name, value, *map(self.form, filter(None, [getattr(op, "mask", None)]))))
            case tile.AtomicOp():
                name, is_float = self._buffer(op.buffer), ELEMENTS[op.value.dtype].kind == "float"
                if is_float and op.kind not in _EXACT_ATOMICS:
                    self.varies = f"atomic {op.kind} of {op.value.dtype} into {name}: blocks come in any order"
                form = ("atomic", op.kind, self.form(op.value))
                self.stored[name] = (self.stored.get(name, ()), form)
                stores.append((name, form))
                self._forms[op.out] = form if is_float else _INT
            case scf.ForOp():
                self._loop(op, stores)
            case scf.IfOp():
                yielded = []
                for inner in op.regions:
                    self._region(inner, stores)
                    yielded.append([self.form(each) for each in inner.terminator.operands])
                condition = self.form(op.condition)
                for result, *forms in zip(op.results, *yielded):
                    self._forms[result] = ("if", condition, *forms)
            case scf.WhileOp():
                inits = [self.form(each) for each in op.inits]
                for number, arg in enumerate([*op.before.args, *op.after.args]):
                    self._forms[arg] = ("carried", self._depth, number, *inits)
                    self._index[arg] = ("carried", self._depth, number)
                self._depth += 1
                for inner in op.regions:
                    self._region(inner, stores)
                self._depth -= 1
                whole = [[self.form(each) for each in inner.terminator.operands] for inner in op.regions]
                steps = self._steps(op, [*op.before.args, *op.after.args])
                for number, result in enumerate(op.results):
                    self._forms[result] = self._small(("while", number, inits, whole, _shapes(op), *steps))
            case _:
                for inner in op.regions:
                    self._region(inner, stores)
                for result in op.results:
                    self._forms[result] = self._small(self._value(op, result))

    def _loop(self, op: scf.ForOp, stores: list[Any]) -> None:
        inits = [self.form(each) for each in op.inits]
        self._forms[op.index] = _INT
        self._index[op.index] = ("loop", self._depth)
        for number, arg in enumerate(op.iter_args):
            is_whole = ELEMENTS.get(arg.dtype) is not None and ELEMENTS[arg.dtype].kind != "float"
            self._forms[arg] = _INT if is_whole and inits[number] == _INT else ("carried", self._depth, number)
            self._index[arg] = ("carried", self._depth, number)
        self._depth += 1
        self._region(op.body, stores)
        self._depth -= 1
        yields = op.yielded
        forms = [self.form(each) for each in yields]
        rest = self._small(("loop", _bounds(op), inits, forms, _shapes(op), *self._steps(op, op.iter_args)))
        for number, result in enumerate(op.results):
            chain = None if self.is_simulated else self._chain(op, number, yields[number])
            if forms[number] == _INT and inits[number] == _INT:
                self._forms[result] = _INT
            elif chain is not None:
                self._forms[result] = self._small(("chain", inits[number], *chain))
            else:
                self._forms[result] = (number, rest)

    def _steps(self, loop: Operation, carried: Sequence[Value]) -> list[Form]:
        """How a loop moves on what it carries from one place to load from to the next."""
        loads = [op for op in loop.walk() if isinstance(op, (tile.LoadOp, tile.LoadBlockOp))]
        sources = set(reached([place for op in loads for place in _places(op)], _sources))
        moved = [(number, arg) for number, arg in enumerate(carried) if arg in sources]
        return [("moves", number, *map(self.exactly, handed_on(arg))) for number, arg in moved]

    def _chain(self, loop: scf.ForOp, number: int, last: Value) -> Form | None:
        """How a loop adds products to one carried tile and does nothing else with it, in ascending order of K; None if
        it does anything else."""
        arg, op = loop.body.args[number + 1], last.op
        if not isinstance(op, tensor.DotOp) or op.accumulator is not arg or arg.uses != {op: 1}:
            return None
        if op.parent is not loop.body or constant_of(loop.lower) != 0 or constant_of(loop.step) != 1:
            return None
        extent, trips = op.a.shape[1], constant_of(loop.upper)
        if not all(self._ascends(side, loop, extent) for side in (op.a, op.b)):
            return None
        sides = [_strip(self.form(side)) for side in (op.a, op.b)]  # their elements come in order, as was seen
        length = None if trips is None else int(trips) * extent
        known = [size for side in (op.a, op.b) for size in self._sizes_along(side, loop.index)]
        if length is not None and known and all(isinstance(size, int) for size in known):
            length = min(length, *known)
        return ("dot", op.precision, op.accumulator.dtype, *sides, length)

    def _loads(self, value: Value) -> list[tile.LoadOp]:
        """What a value is computed from, elementwise or by moving elements, of global memory."""
        values = reached([value], lambda each: [] if isinstance(each.op, tile.LoadOp) else operands_of(each))
        return [each.op for each in values if isinstance(each.op, tile.LoadOp)]

    def _ascends(self, side: Value, loop: scf.ForOp, extent: int) -> bool:
        """Whether iteration k has the elements from k * extent on, in order, of each operand that the loop loads."""
        for load in self._loads(side):
            moving = [each for each in load.indices if _moves(each, loop.body.args)]
            if len(moving) > 1 or (moving and _advance(moving[0], loop.index) != (extent, extent)):
                return False
        return True

    def _sizes_along(self, side: Value, index: Value) -> list[Any]:
        sizes = []
        for load in self._loads(side):
            assert isinstance(load.buffer.type, BufferType)
            sizes += [load.buffer.type.shape[n] for n, each in enumerate(load.indices) if _moves(each, [index])]
        return sizes

    def form(self, value: Value) -> Form:
        form = self._forms.get(value)
        if form is None:  # of the host: a size, an argument of the function, or what is computed of them
            is_whole = value.dtype in ELEMENTS and ELEMENTS[value.dtype].kind != "float"
            argument = _INT if is_whole else ("host", value.dtype)
            form = argument if value.op is None else self._small(self._value(value.op, value))
            self._forms[value] = form
        return form

    def _value(self, op: Operation, result: Value) -> Form:
        is_float = result.dtype in ELEMENTS and ELEMENTS[result.dtype].kind == "float"
        match op:
            case arith.ConstantOp():
                return ("constant", repr(op.value), result.dtype) if is_float else _INT
            case tile.LoadOp() | tile.LoadBlockOp():
                name = self._buffer(op.buffer)
                before = self.stored.get(name, ())
                if not is_float and before in ((), _INT):
                    return _INT
                places: tuple[Form, ...] = ()
                if self.ordered:
                    places = tuple("tile" if _is_start(form) else form for form in map(self.index, _places(op)))
                return ("load", name, result.dtype, before, ("at", *places))
            case tensor.BroadcastOp() | tensor.ReshapeOp() | tensor.TransposeOp():
                return self.form(op.operands[0])
            case tensor.IotaOp():
                return _INT
            case tensor.GatherOp():
                forms = [self.form(each) for each in op.operands]
                return _INT if all(each == _INT for each in forms) else ("gather", op.axis, *forms)
            case tensor.DotOp():
                forms = [self.form(each) for each in op.operands]
                if not is_float and all(each == _INT for each in forms):
                    return _INT
                shapes = (op.a.shape, op.b.shape) if self.is_simulated else (op.a.shape[1],)
                return ("dot", op.precision, result.dtype, shapes, *forms)
            case tensor.ReduceOp() | tensor.ScanOp():
                sources = [self.form(each) for each in op.operands]
                if all(each == _INT for each in sources):
                    return _INT
                exact = isinstance(op, tensor.ReduceOp) and op.kind in _EXACT
                is_last = op.axis == len(op.source.shape) - 1  # NumPy adds up each line by itself
                whole = self.is_simulated and not exact and not is_last
                shape: Any = op.source.shape if whole else op.source.shape[op.axis]
                attributes = tuple(sorted((n, repr(value)) for n, value in op.attributes.items() if n != "axis"))
                return (op.name, attributes, shape, *sources)
        forms = [self.form(each) for each in op.operands]
        if not is_float and all(each == _INT for each in forms):
            return _INT
        attributes = tuple(sorted((name, repr(value)) for name, value in op.attributes.items()))
        return (op.name, attributes, result.dtype, *forms)

    def index(self, value: Value) -> Form:
        """Which elements an index takes, but for where the tile begins: "block" if it depends on the block and on sizes
        alone, "tile" if it counts from there; that sums run over so many of them is written where they do."""
        known = self._index.get(value)
        if known is not None:
            return known
        op = value.op
        number = constant_of(value)
        if number is not None:
            form: Form = repr(number)
        elif isinstance(op, tensor.IotaOp):
            form = ("tile",)
        elif isinstance(op, (tensor.BroadcastOp, tensor.ReshapeOp, arith.CastOp)):
            form = self.index(op.operands[0])
        elif isinstance(op, arith.AddOp):
            forms = list(map(self.index, op.operands))
            terms = [each for each in forms if not _is_start(each)]
            start = ("tile",) if ("tile",) in forms else ("block",)
            form = ("add", *sorted(terms, key=repr)) if len(terms) > 1 else terms[0] if terms else start
        elif op is None or not op.operands:
            form = ("host",)
        else:
            parts = [*op.operands, *handed_on(value)]
            forms = [self.index(each) for each in parts]
            fixed = [_is_start(each) and each != ("tile",) for each in forms]
            if all(fixed):
                form = ("block",)
            elif isinstance(op, arith.SubOp) or (isinstance(op, arith.MulOp) and any(fixed)) or not self._turns(value):
                form = (op.name, *forms)
            else:
                form = self.exactly(value)
        self._index[value] = form = self._small(form)
        return form

    def _turns(self, value: Value) -> bool:
        """Whether an index depends on what a loop counts or carries."""
        args = (each for each in reached([value], _sources) if each.op is None)
        return any(self._index.get(each, ())[:1] in _TURNING for each in args)

    def exactly(self, value: Value) -> Form:
        """Which whole number: where it begins counts, too."""
        known = self._exact.get(value)
        if known is None:
            op, number = value.op, constant_of(value)
            if number is not None:
                known = repr(number)
            elif op is None:
                known = self._index.get(value, ())
                known = known if known[:1] in _TURNING else ("host", value.name)
            else:
                attributes = tuple(sorted((name, repr(each)) for name, each in op.attributes.items()))
                known = (op.name, attributes, *map(self.exactly, (*op.operands, *handed_on(value))))
            self._exact[value] = known = self._small(known)
        return known

    def _buffer(self, value: Value) -> str:
        if value not in self._names:
            self._names[value] = f"{value.name if value.op is None else ''}#{len(self._names)}"
        return self._names[value]

    def _small(self, form: Form) -> Form:
        """A long form as its hash: forms of forms grow without bound otherwise."""
        text = repr(form)
        if len(text) <= 400 or _marks(form):
            return form if len(text) <= _MOST_FORMS else ("hash", short_digest(text), *_marks(form))
        return ("hash", short_digest(text))


def _marks(form: Form) -> tuple[Form, ...]:
    """The places in a form that a chain may leave out; such a form is kept as it is, if it is not too long."""
    return (("at",),) if "('at'" in repr(form) else ()


def _strip(form: Form) -> Form:
    if isinstance(form, tuple):
        return ("at",) if form[:1] == ("at",) else tuple(_strip(each) for each in form)
    return form


def _is_start(form: Form) -> bool:
    """Whether an index says where a tile begins, or counts from there."""
    return isinstance(form, str) or form in (("block",), ("host",), ("tile",))


def _places(load: tile.LoadOp | tile.LoadBlockOp) -> Sequence[Value]:
    return load.indices if isinstance(load, tile.LoadOp) else load.starts


def _sources(value: Value) -> list[Value]:
    """What a value is computed from, by branches and loops too."""
    return [*operands_of(value), *handed_on(value)]


def _moves(value: Value, args: Collection[Value]) -> bool:
    return any(each in args for each in reached([value], _sources))


def _bounds(op: scf.ForOp) -> list[Any]:
    """Where a loop begins and ends, and its step; None for what only a call knows."""
    return [constant_of(each) for each in (op.lower, op.upper, op.step)]


def _shapes(op: Operation) -> list[Any]:
    """Along what extents a loop's tiles are reduced or multiplied."""
    shapes: list[Any] = []
    for each in op.walk():
        if isinstance(each, tensor.DotOp):
            shapes.append(each.a.shape[1])
        elif isinstance(each, (tensor.ReduceOp, tensor.ScanOp)):
            shapes.append(each.source.shape[each.axis])
    return shapes


def _advance(value: Value, index: Value) -> tuple[int, int] | None:
    """(step, extent) of an index that is step * k + 0, 1, 2, ..., extent - 1 + something that does not move; None for
    any other."""
    op, body = value.op, index.owner
    assert isinstance(body, Region)
    if isinstance(op, (tensor.BroadcastOp, tensor.ReshapeOp, arith.CastOp)):
        return _advance(op.operands[0], index)
    if value is index:
        return 1, 1
    if isinstance(op, tensor.IotaOp):
        return 0, op.extent
    if value.shape == () and not _moves(value, body.args):
        return 0, 1
    if isinstance(op, arith.MulOp):
        for one, other in (op.operands, op.operands[::-1]):
            factor, inner = constant_of(other), _advance(one, index)
            if factor is not None and inner is not None and inner[1] == 1:
                return int(factor) * inner[0], 1
    if isinstance(op, arith.AddOp):
        found = [_advance(each, index) for each in op.operands]
        if None in found:
            return None
        (a, m), (b, n) = found  # type: ignore[misc]
        return (a + b, max(m, n)) if 1 in (m, n) and 0 in (a, b) else None
    return None
