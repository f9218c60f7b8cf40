"""What the texts of all Gluon kernels have in common: functions for a producer and for consumers, boxes, barriers."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tiledsl.analysis.gluon.plan import CONSUMER_REGISTERS, GATHER_REGISTERS, GATHER_WARPS, PRODUCER_REGISTERS
from tiledsl.analysis.gluon.slices import dependents, only_for_loads
from tiledsl.analysis.gluon.words import in_fours
from tiledsl.codegen.expressions import ADD
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.gluon import api
from tiledsl.codegen.gluon.expressions import GluonExpressions, Layouts
from tiledsl.codegen.kernels import KernelWriter
from tiledsl.codegen.names import LAUNCH_NAMES, PythonNames
from tiledsl.codegen.variables import Variables
from tiledsl.dialects import gluon, scf, tensor, triton
from tiledsl.ir.core import Operation, Value
from tiledsl.ir.types import ELEMENTS


class SpecializedWriter(KernelWriter, ABC):
    """Writes a prepared triton.launch as a Gluon function for the producer, one for the consumers, and an entry.

    What its loops are is for the subclass: it makes layouts and variables, claims names, and writes the three
    functions' bodies.
    """

    expressions: GluonExpressions

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.launch = launch
        self.item = next((op for op in launch.body if isinstance(op, (gluon.WorkItemOp, gluon.LongestFirstOp))), None)
        group = next((op for op in launch.body if isinstance(op, gluon.WarpGroupIdOp)), None)
        self.warp_groups = launch.groups if group is None else int(group.parts)
        self.constants: dict[str, str] = {}
        self.out_buffers: dict[triton.StoreBlockOp, str] = {}
        self.out_places: dict[str, str] = {}  # where the next box is stored, of several places
        self.layouts = self.make_layouts(module_names)
        self.names = PythonNames(module_names | LAUNCH_NAMES)
        self.variables = self.make_variables()
        self.expressions = GluonExpressions(self.variables, self.layouts)
        self.lines: list[str] = []
        self.indent = "    "
        self._origin = ""
        self.produced = only_for_loads(launch.body.walk())
        self.gathered = [op for op in launch.body.walk() if gluon.gathers(op)]
        outside = dict(zip(launch.body.args, launch.arguments, strict=True))
        described = {value for value in launch.body.args if isinstance(outside[value].op, triton.DescriptorOp)}
        self.arguments = [value for value in launch.body.args if value not in described]
        claim = self.names.claim
        self.group = "" if group is None else self.variables.name(group.out)
        self.consumer, self.turn = claim("consumer"), claim("turn")
        if isinstance(self.item, gluon.LongestFirstOp):
            self.helpers = (*self.helpers, api.BALANCED)
            self.unpaired, self.rows, self.row = claim("unpaired"), claim("rows"), claim("row")
            self.first, self.second = claim("first"), claim("second")
            self.count, self.half = claim("count"), claim("half")
        self.claim_names()

    # What the subclass knows

    @abstractmethod
    def make_layouts(self, module_names: set[str]) -> Layouts: ...

    @abstractmethod
    def make_variables(self) -> Variables: ...

    @abstractmethod
    def claim_names(self) -> None: ...

    @abstractmethod
    def producer(self, name: str) -> list[str]: ...

    @abstractmethod
    def consumers(self, name: str) -> list[str]: ...

    @abstractmethod
    def entry(self, name: str) -> list[str]: ...

    @abstractmethod
    def loaded(self) -> list[str]:
        """Descriptors that boxes are loaded through."""

    @abstractmethod
    def shared(self) -> list[str]:
        """All tiles and barriers that the producer and the consumers share."""

    @abstractmethod
    def store_buffer(self, op: triton.StoreBlockOp) -> str:
        """Shared memory that a stored box passes through: a place for each consumer, its own or an operand's."""

    @abstractmethod
    def tile_buffer(self, op: gluon.TileLoad) -> str:
        """Shared memory that a block is loaded to."""

    def box_stores(self) -> list[triton.StoreBlockOp]:
        """Boxes that consumers store."""
        return [op for op in self.launch.body.walk() if isinstance(op, triton.StoreBlockOp)]

    # Names

    def define(self, module_names: set[str], wanted: str, text: str) -> str:
        """A constant of the module."""
        name, number = wanted, 1
        while name in module_names:
            name, number = f"{wanted}_{number}", number + 1
        module_names.add(name)
        self.constants[name] = text
        return name

    def claim_out_buffers(self) -> None:
        """Places for stored boxes, where they do not take those of an operand."""
        for op in self.box_stores():
            if op.ring == "results":
                name = self.descriptor(op).removesuffix("_tiles")
                alike = (each for each in self.out_buffers if op.add and self._are_alike(op, each))
                known = next(alike, None)
                self.out_buffers[op] = self.out_buffers[known] if known else self.names.claim(f"{name}_buffer")
        for op, buffer in self.out_buffers.items():
            if op.places > 1 and buffer not in self.out_places:
                self.out_places[buffer] = self.names.claim(f"{buffer}_place")

    def _are_alike(self, op: triton.StoreBlockOp, other: triton.StoreBlockOp) -> bool:
        """Whether a box that is added has the place of one of another loop."""
        same = gluon.box(op) == gluon.box(other) and op.descriptor is other.descriptor
        return same and other.add and op.parent is not other.parent

    def descriptor(self, op: triton.LoadBlockOp | triton.StoreBlockOp) -> str:
        """The name of the descriptor that a box is seen through."""
        return self.name(op.descriptor)

    def stored(self) -> list[str]:
        """Descriptors that boxes are stored through."""
        return list(dict.fromkeys(self.descriptor(op) for op in self.box_stores()))

    # Lines

    def line(self, text: str) -> None:
        super().line(re.sub(r"\btl\.", "gl.", text))

    @contextmanager
    def under(self, head: str) -> Iterator[None]:
        """What is written inside stands under a line, one step further right."""
        self.line(head)
        self.indent += "    "
        yield
        self.indent = self.indent[:-4]

    def range_of(self, loop: scf.ForOp) -> AbstractContextManager[None]:
        """What is written inside is the body of a loop."""
        bounds = ", ".join(self.expressions.text(value) for value in loop.operands[:2])
        self.origin(loop)
        return self.under(f"for {self.name(loop.index)} in range({bounds}):")

    def write(self) -> list[str]:
        """The lines of all functions and constants of the kernel."""
        lines = [f"{name} = gl.constexpr({text})" for name, text in self.constants.items()]
        name = self.launch.sym_name
        return [*lines, "", "", *self.producer(f"{name}_producer"), "", "", *self.consumers(f"{name}_consumer"), "",
                "", *self.entry(name)]  # fmt: skip

    def function(self, name: str, arguments: Iterable[str]) -> list[str]:
        return ["@gluon.jit", f"def {name}({', '.join(arguments)}):", *self.take()]

    def producer_function(self, name: str) -> list[str]:
        """The producer, whose body has been written."""
        return self.function(name, [*map(self.argument, self.arguments), *self.loaded(), *self.shared()])

    def consumer_function(self, name: str) -> list[str]:
        """The consumers, whose body has been written; boxes that they store may still be on their way."""
        self.indent = "    "
        if self.out_buffers:
            self.line("tma.store_wait(0)")
        arguments = [f"{self.consumer}: gl.constexpr", *map(self.argument, self.arguments), *self.stored()]
        return self.function(name, [*arguments, *dict.fromkeys(self.out_buffers.values()), *self.shared()])

    def take(self) -> list[str]:
        lines, self.lines, self.indent, self._origin = self.lines, [], "    ", ""
        return lines

    def ops(self, ops: Iterable[Operation]) -> None:
        """Statements for operations; those written inside others, and those for the producer alone, are left out."""
        for op in ops:
            if op not in self.variables.inlined and op not in self.produced:
                self.statement(op)

    def statement(self, op: Operation) -> None:
        if isinstance(op, gluon.ScheduleOp):
            pass
        elif isinstance(op, gluon.WarpGroupIdOp):
            self.line(f"{self.group} = gl.to_tensor({self.consumer})")
        elif isinstance(op, (gluon.WorkItemOp, gluon.LongestFirstOp)):
            pass  # the loops around count them
        elif isinstance(op, triton.StoreBlockOp):
            self.send_box(op)
        elif isinstance(op, (triton.LoadOp, triton.StoreOp, triton.AtomicOp)):  # a mask may have one column
            with self.expressions.operands_of(op):
                super().statement(op)
        else:
            super().statement(op)

    def items(self) -> None:
        """The loops over a program's work items; what follows is their body."""
        if isinstance(self.item, gluon.WorkItemOp):
            items = self.expressions.text(self.item.items)
            self.line(f"for {self.name(self.item.out)} in range(gl.program_id(0), {items}, gl.num_programs(0)):")
            self.indent += "    "
        elif self.item is not None:
            self._balanced_items(self.item)

    def _balanced_items(self, op: gluon.LongestFirstOp) -> None:
        """The loops over rows of programs, and over a pair's blocks. The longer one comes first."""
        grid = f"{self.expressions.text(op.extent)}, {self.expressions.text(op.others)}"
        self.line(f"{self.unpaired}, {self.rows} = _unpaired({grid}, gl.num_programs(0))")
        self.line(f"for {self.row} in range(0, {self.rows}):")
        self.indent += "    "
        taken = f"{self.first}, {self.second}, {self.name(op.rest)}, {self.count}"
        self.line(f"{taken} = _balanced({self.row}, {grid}, {self.unpaired})")
        self.line(f"for {self.half} in range(0, {self.count}):")
        self.indent += "    "
        self.line(f"{self.name(op.index)} = gl.where({self.half} == 0, {self.first}, {self.second})")

    # Pieces

    def by_group(self, needed: set[Operation]) -> set[Operation]:
        """Of the operations needed for loads, those that differ from consumer to consumer."""
        return dependents([op for op in self.launch.body if isinstance(op, gluon.WarpGroupIdOp)], needed)

    def needed_ops(self, ops: Iterable[Operation], needed: set[Operation]) -> None:
        for op in ops:
            if op in needed and op not in self.variables.inlined:
                self.statement(op)

    def matrix(self, ring: str, index: str, op: gluon.TileLoad | triton.StoreBlockOp) -> str:
        """A place of a ring as a matrix, without the box's dimensions of 1."""
        shape = gluon.piece(op)
        text = f"{ring}.index({index})"
        return text if len(placed(op)) == 2 else f"{text}.reshape([{shape[0]}, {shape[1]}])"

    def operand(self, value: Value, place: str) -> str:
        """What lies at a place of a ring as an operand of a product: a loaded tile, or one that is transposed."""
        if isinstance(value.op, tensor.TransposeOp):
            return f"{self.operand(value.op.source, place)}.permute({value.op.permutation})"
        assert gluon.loads_tile(value.op), f"{value.op!r} is not in shared memory"
        return self.matrix(self.tile_buffer(value.op), place, value.op)

    def zeros(self, value: Value) -> str:
        """What a product that is not added to anything starts with."""
        return f"gl.zeros({self.layouts.shape_text(value.shape)}, gl.float32, {self.layouts.of(value.shape)})"

    def fence(self) -> None:
        """Copies and products that are issued later see what threads have stored, and do not overtake their loads."""
        self.line("fence_async_shared()")

    def send_box(self, op: triton.StoreBlockOp) -> None:
        self.origin(op)
        buffer = self.store_buffer(op)
        offsets = ", ".join(self.starts_of(op))
        if op.ring == "results":
            self.line(f"tma.store_wait({op.places - 1})")
        at = self.result_at()
        if op.places > 1:
            at = f"{self.consumer} * {op.places} + {self.out_places[buffer]}"
        place, value = self.matrix(buffer, at, op), op.value
        if isinstance(value.op, tensor.TransposeOp):
            place, value = f"{place}.permute({value.op.permutation})", value.op.source
        self.line(f"{place}.store({self.expressions.text(value)})")
        self.fence()
        name = self.descriptor(op)
        send = "_add_box" if op.add else "_store_box"
        if op.add:
            self.helpers = tuple(dict.fromkeys((*self.helpers, api.ADD_BOX)))
        self.line(f"{send}({name}, [{offsets}], {buffer}.index({at}))")
        if op.places > 1:
            self.line(f"{self.out_places[buffer]} ^= 1")

    def result_at(self) -> str:
        """The place of a box that is stored: each consumer has one."""
        return self.consumer

    def starts_of(self, op: triton.StoreBlockOp) -> list[str]:
        """Where a box begins, or a consumer's piece of it."""
        texts = []
        for axis, start in enumerate(op.starts):
            own = op.pieces and axis in op.axes and op.pieces[op.axes.index(axis)] > 1
            text = self.expressions.value(start)
            texts.append(f"{text.at(ADD)} + {self.consumer} * {gluon.box(op)[axis]}" if own else text.text)
        return texts

    def allocate_results(self) -> None:
        """Shared memory for the boxes that consumers store."""
        for buffer, store in {buffer: store for store, buffer in self.out_buffers.items()}.items():
            self.allocate(buffer, store, self.warp_groups * store.places)

    def allocate(self, name: str, op: gluon.TileLoad | triton.StoreBlockOp, places: int) -> None:
        shape = ", ".join(map(str, (places, *placed(op))))
        dtype = op.value.dtype if isinstance(op, triton.StoreBlockOp) else op.out.dtype
        layout = api.shared_layout(placed(op), dtype)
        if isinstance(op, (triton.LoadBlockOp, triton.StoreBlockOp)):
            layout = f"{self.descriptor(op)}.layout"
        self.line(f"{name} = gl.allocate_shared_memory({TRITON_TYPES[dtype]}, [{shape}], {layout})")

    def start(self, name: str) -> None:
        """Start the consumers and the producer."""
        plain = [self.name(value) for value in self.arguments]
        stored = [*plain, *self.stored(), *dict.fromkeys(self.out_buffers.values()), *self.shared()]
        loaded = [*plain, *self.loaded(), *self.shared()]
        self.overlap()
        self.line("gl.warp_specialize(")
        self.line("    [")
        for number in range(self.warp_groups):
            self.line(f"        ({name}_consumer, ({', '.join([str(number), *stored])})),")
        self.line(f"        ({name}_producer, ({', '.join(loaded)})),")
        self.line("    ],")
        registers = CONSUMER_REGISTERS[self.warp_groups]
        warps, of_producer = (GATHER_WARPS, GATHER_REGISTERS) if self.gathered else (1, PRODUCER_REGISTERS)
        self.line(f"    {[4] * (self.warp_groups - 1) + [warps]},")
        self.line(f"    {[registers] * (self.warp_groups - 1) + [of_producer]},")
        self.line(")")


def placed(op: gluon.TileLoad | triton.StoreBlockOp) -> tuple[int, ...]:
    """The extents of a box in shared memory."""
    extents = gluon.box(op)
    return in_fours(extents) if isinstance(op, triton.LoadBlockOp) and op.in_fours else extents


def box_bytes(op: gluon.TileLoad) -> int:
    """Bytes of a box; none of rows that are gathered, which no barrier counts."""
    return 0 if gluon.gathers(op) else math.prod(gluon.box(op)) * ELEMENTS[op.out.dtype].bits // 8


def accumulator_layout(columns: int, dtype: str, warps: tuple[int, int] = (4, 1)) -> str:
    """The layout of products of operands of this type, as an expression: so many columns in an instruction, and warps
    that the rows and the columns are divided among."""
    shape = [16, columns, 256 // ELEMENTS[dtype].bits]
    return f"gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta={list(warps)}, instr_shape={shape})"
