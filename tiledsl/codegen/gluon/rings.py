"""The source of a kernel whose loop keeps loaded tiles in rings of shared memory (passes/hold_tiles.py).

A function for each ring loads the tile of any turn to a place. The first tiles are asked for before the loop, and each
turn asks for one more before it waits for its own:

    for ahead in gl.static_range(3):
        kernel_load_x(..., ahead, ahead < turns, x.index(ahead))
        async_copy.commit_group()
    for turn in range(turns):
        kernel_load_x(..., turn + 3, turn + 3 < turns, x.index((turn + 3) % 6))
        async_copy.commit_group()
        ...
        async_copy.wait_group(3)
        new = x.index(turn % 6).load(layout)
        old = x.index((turn + 4) % 6).load(layout)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from math import prod

from tiledsl.analysis.gluon.slices import needed_for
from tiledsl.codegen.expressions import ADD, ATOM, Expression, Expressions
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import GluonExpressions, Layouts
from tiledsl.codegen.kernels import KernelWriter
from tiledsl.dialects import arith, scf, tensor, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, Shape

# LLVM takes the upper of two neighbours out of their register before it shifts it.
WIDENED = '''@triton.jit
def _widened(x):
    """The same numbers as float32: bfloat16 is their upper half."""
    return tl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], dtype=tl.float32, is_pure=True, pack=2,
    )'''


class RingExpressions(GluonExpressions):
    """Of tiles of one or two dimensions. What a row or a column has one of lies as the largest tile of so many does.

    columns: as many as the tiles of rings have, of which a thread has neighbours."""

    columns: Collection[int] = ()

    def operation(self, op: Operation) -> Expression:
        if self.widens_neighbours(op):
            self.field_functions["_widened"] = WIDENED
            return Expression(f"_widened({self.text(op.operands[0])})")
        if isinstance(op, tensor.ScanOp):
            return self.combined("gl.associative_scan", "_add", f"{self.text(op.source)}, {op.axis}")
        if isinstance(op, tensor.ReduceOp):
            text = Expressions.reduce(self, op).text
            return Expression(self.moved(text, op))
        if isinstance(op, tensor.ReshapeOp):
            if len(op.out.shape) == 2 and op.out.shape[0] == 1:
                return Expression(f"{self.value(op.source).at(ATOM)}[None, :]")
            if not op.out.shape:
                return Expressions.reshape(self, op)
            if not op.source.shape:
                return self.full((1,), self.text(op.source), op.out.dtype)
        return super().operation(op)

    def widens_neighbours(self, op: Operation) -> bool:
        if not isinstance(op, arith.CastOp) or (op.source.dtype, op.out.dtype) != ("bfloat16", "float32"):
            return False
        return any(columns in self.columns for columns in op.source.shape[-1:])

    def moved(self, text: str, op: tensor.ReduceOp) -> str:
        """What is left of a tile, in the layout of so many elements."""
        if not op.out.shape:
            return text
        wanted = self.layouts.of(op.out.shape)
        given = f"gl.SliceLayout({op.axis}, {self.layouts.of(op.source.shape)})"
        return text if wanted == given else f"gl.convert_layout({text}, {wanted})"


def _pairs(region: Region, inlined: Collection[Operation]) -> Iterator[tuple[tensor.ReduceOp, tensor.ReduceOp]]:
    """Sums, and others before them that are reduced with them: of tiles of the same shape along the same axis, with
    nothing but elementwise operations between, none of which takes the first sum. Threads exchange both at once."""
    first: tensor.ReduceOp | None = None
    for op in region:
        for each in op.regions:
            yield from _pairs(each, inlined)
        if isinstance(op, tensor.ReduceOp) and op.kind == "sum" and op not in inlined:
            if first and (first.source.type, first.axis) == (op.source.type, op.axis) and op.source.dtype == "float32":
                yield op, first
                first = None
            else:
                first = op
        elif first and (not isinstance(op, arith.Elementwise) or first.out in op.operands):
            first = None


class RingWriter(KernelWriter):
    """Writes a triton.launch that hold-tiles has marked as Gluon functions."""

    helpers = (api.LOAD_AHEAD,)
    expressions: RingExpressions

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        super().__init__(launch, module_names)
        self.loads = [op for op in launch.body.walk() if isinstance(op, triton.LoadOp) and op.ring]
        self.own = {op.ring: op for op in self.loads if not op.behind}
        self.names_of = {ring: self.names.claim(f"{ring}_ring") for ring in self.own}
        self.loop = next(loop for loop in self._loops() if any(op.parent is loop.body for op in self.loads))
        self.ahead = self.loop.num_stages - 1
        shapes = {value.shape for op in launch.body.walk() for value in (*op.operands, *op.results)}
        whole = sorted((shape for shape in shapes if len(shape) == 2 and 1 not in shape), key=prod, reverse=True)
        rows = {shape[0]: f"gl.SliceLayout(1, {self._name(shape)})" for shape in reversed(whole)}
        rows |= {shape[1]: f"gl.SliceLayout(0, {self._name(shape)})" for shape in reversed(whole)}
        self.named = [*whole, *sorted(shape for shape in shapes if len(shape) == 1 and shape[0] not in rows)]
        rows |= {shape[0]: self._name(shape) for shape in self.named if len(shape) == 1}
        self.layouts = Layouts({shape: self._name(shape) for shape in whole}, rows, {}, {})
        self.expressions = RingExpressions(self.variables, self.layouts)
        self.expressions.columns = {op.out.shape[-1] for op in self.own.values()}
        self.awaited = False
        self.pairs = dict(_pairs(launch.body, self.variables.inlined))
        self.terms = {first: self.names.claim(f"{first.out.name or 'total'}_terms") for first in self.pairs.values()}

    @property
    def is_along_rows(self) -> bool:
        return bool(dict(self.launch.options).get("along"))

    def _loops(self) -> list[scf.ForOp]:
        return [op for op in self.launch.body.walk() if isinstance(op, scf.ForOp)]

    def _places(self, ring: str) -> int:
        return 1 + self.ahead + max(op.behind for op in self.loads if op.ring == ring)

    def _name(self, shape: Shape) -> str:
        return f"{self.launch.sym_name}_of_{'x'.join(map(str, shape))}"

    def _layout(self, shape: Shape) -> str:
        """As many neighbours in a thread as it copies at once. Of what is loaded otherwise each warp has all, or each
        thread elements of its own: other blocks may write them meanwhile, and two threads see two values. Along rows,
        each warp has all of its rows; rows that fewer threads hold lie below each other in a warp."""
        bits = [ELEMENTS[op.out.dtype].bits for op in self.own.values() if op.out.shape == shape]
        warps = self.launch.warps
        held = api.VECTOR * 8 // min(bits) if bits else 0
        lanes = min(32, max(1, shape[-1] // held)) if held else 32
        down = warps if lanes < 32 or self.is_along_rows and shape[0] % warps == 0 else 1
        across = warps // down
        if not held:
            held = max(1, shape[-1] // 32) if shape[-1] < 32 * across else 1
        if len(shape) == 1:
            return f"gl.BlockedLayout([{held}], [32], [{warps}], [0])"
        rows = 1 if bits else shape[0] // down
        return f"gl.BlockedLayout([{rows}, {held}], [{32 // lanes}, {lanes}], [{down}, {across}], [1, 0])"

    def line(self, text: str) -> None:
        super().line(re.sub(r"\btl\.", "gl.", text))

    def decorator(self) -> str:
        return re.sub(r"^@triton", "@gluon", super().decorator())

    def write(self) -> list[str]:
        lines = [f"{self._name(shape)} = gl.constexpr({self._layout(shape)})" for shape in self.named]
        for ring in self.own:
            lines += ["", "", *self._load_function(ring)]
        self.lines, self._origin = [], ""
        return [*lines, "", "", *super().write()]

    # The functions that load

    def _function(self, ring: str) -> str:
        return f"{self.launch.sym_name}_load_{ring}"

    def _slice(self, ring: str) -> list[Operation]:
        """What computes the place of a tile in each turn, in order."""
        op = self.own[ring]
        needed = needed_for([op.pointer, *([] if op.mask is None else [op.mask])])
        return [each for each in self.loop.body if each in needed]

    def _given(self, ring: str) -> list[Value]:
        """What that takes from outside of the loop, but for the turn."""
        inside, op = set(self._slice(ring)), self.own[ring]
        found: dict[Value, None] = {}

        def visit(value: Value) -> None:
            if value.op in inside or value.op in self.variables.inlined:
                for each in () if value.op is None else value.op.operands:
                    visit(each)
            elif value is not self.loop.index:
                found[value] = None

        for value in (op.pointer, *([] if op.mask is None else [op.mask])):
            visit(value)
        return list(found)

    def _load_function(self, ring: str) -> list[str]:
        op, inside = self.own[ring], self._slice(ring)
        self.lines, self._origin = [], ""
        for each in inside:
            if each not in self.variables.inlined:
                self.statement(each)
        with self.expressions.operands_of(op):
            mask = "more" if op.mask is None else f"{self.expressions.value(op.mask).at(ADD)} & more"
            self.line(f"_load_ahead(place, {self.expressions.text(op.pointer)}, mask={mask})")
        given = ", ".join([*map(self.name, self._given(ring)), self.name(self.loop.index), "more", "place"])
        return ["@gluon.jit", f"def {self._function(ring)}({given}):", *self.lines]

    # The loop

    def statement(self, op: Operation) -> None:
        if op is self.loop:
            self.origin(op)
            self.ring_loop(self.loop)
        elif isinstance(op, triton.LoadOp) and op.ring:
            self.origin(op)
            self.held(op)
        elif isinstance(op, tensor.ReduceOp) and op in self.terms:
            self.line(f"{self.terms[op]} = {self.expressions.text(op.source)}")
        elif isinstance(op, tensor.ReduceOp) and op in self.pairs:
            self.origin(op)
            self.two_sums(self.pairs[op], op)
        else:
            super().statement(op)

    def two_sums(self, first: tensor.ReduceOp, second: tensor.ReduceOp) -> None:
        given = f"({self.terms[first]}, {self.expressions.text(second.source)}), {second.axis}"
        text = self.expressions.combined("gl.reduce", "_add_two", given).text
        self.line(f"{self.name(first.out)}, {self.name(second.out)} = {text}")
        for op in (first, second):
            name = self.name(op.out)
            if (laid_out := self.expressions.moved(name, op)) != name:
                self.line(f"{name} = {laid_out}")

    def atomic_load(self, op: triton.AtomicOp, pointer: str, mask: str) -> str:
        """A load, which Gluon makes once: a warp has all of it, or each thread elements of its own (_layout)."""
        if op.semantics != "relaxed":
            return super().atomic_load(op, pointer, mask)
        return self.volatile_load(pointer, mask)

    def ring_loop(self, op: scf.ForOp) -> None:
        self.assign(op.iter_args, op.inits, self.own_values(op))
        for ring, load in self.own.items():
            shape, dtype = [self._places(ring), *load.out.shape], TRITON_TYPES[load.out.dtype]
            layout = f"gl.SwizzledSharedLayout(1, 1, 1, order={[1, 0][2 - len(load.out.shape) :]})"
            self.line(f"{self.names_of[ring]} = gl.allocate_shared_memory({dtype}, {shape}, {layout})")
        turns, turn = self.expressions.text(op.upper), self.name(op.index)
        self.line(f"for ahead in gl.static_range({self.ahead}):")
        self.ask("ahead", turns, lambda places: "ahead")
        if self.awaits_late:
            self.overlap()
        self.line(f"for {turn} in range({turns}):")
        self.ask(f"{turn} + {self.ahead}", turns, lambda places: f"({turn} + {self.ahead}) % {places}")
        self.awaited = False
        self.nested(op.body, lambda: self.assign(op.iter_args, op.yielded))

    def ask(self, turn: str, turns: str, place: Callable[[int], str]) -> None:
        """Begin to load the tiles of a turn, if there is one."""
        self.indent += "    "
        for ring, name in self.names_of.items():
            given = [*map(self.name, self._given(ring)), turn, f"{turn} < {turns}"]
            self.line(f"{self._function(ring)}({', '.join(given)}, {name}.index({place(self._places(ring))}))")
        self.line("async_copy.commit_group()")
        self.indent = self.indent[:-4]

    def held(self, op: triton.LoadOp) -> None:
        """A tile of a ring. The first of a turn waits until those of the turn are there."""
        if not self.awaited:
            self.line(f"async_copy.wait_group({self.ahead})")
            self.awaited = True
        turn, places = self.name(self.loop.index), self._places(op.ring)
        back = f"({turn} + {places - op.behind}) % {places}" if op.behind else f"{turn} % {places}"
        tile = f"{self.names_of[op.ring]}.index({back}).load({self.layouts.of(op.out.shape)})"
        if op.mask is not None and not op.whole and (op.behind or op.other is not None and constant_of(op.other) != 0):
            with self.expressions.operands_of(op):
                other = "0.0" if op.other is None else self.other(op.other, op.out.dtype)
                tile = f"gl.where({self.expressions.text(op.mask)}, {tile}, {other})"
        self.line(f"{self.name(op.out)} = {tile}")
