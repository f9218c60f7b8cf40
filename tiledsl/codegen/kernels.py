"""The source of one jitted kernel: statements, loops and branches."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from functools import cache

from tiledsl.codegen.expressions import ATOM, Expressions
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.codegen.names import LAUNCH_NAMES, PythonNames, comment, printable, quoted
from tiledsl.codegen.variables import Variables, is_free
from tiledsl.dialects import arith, scf, thread, tile, triton
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Operation, Region, Value
from tiledsl.ir.types import ELEMENTS, is_float
from tiledsl.location import UNKNOWN

ATOMICS = {"add": "add", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}
AWAIT = "gdc_wait()  # from here on there is what earlier kernels wrote"
TRIGGER = "gdc_launch_dependents()  # the next kernel's blocks may come, and wait"


@cache
def _file_name(path: str) -> str:
    return comment(os.path.basename(path))


class KernelWriter:
    """Writes the body of a triton.launch as a Triton function. `helpers` are functions that the module must define."""

    helpers: tuple[str, ...] = ()

    def __init__(self, launch: triton.LaunchOp, module_names: set[str]) -> None:
        self.launch = launch
        self.names = PythonNames(module_names | LAUNCH_NAMES)
        self.variables = Variables(launch.body, self.names)
        self.expressions = Expressions(self.variables)
        self.lines: list[str] = []
        self.indent = "    "
        self._origin = ""

    def write(self) -> list[str]:
        """The lines of the function, decorator included."""
        arguments = ", ".join(self.argument(value) for value in self.launch.body.args)
        for value in self.launch.body.args:
            if self.is_annotated(value) and value.dtype != "bool":
                # Triton's own interpreter goes by the number's size and not by the annotation.
                self.line(f"{self.name(value)} = tl.cast({self.name(value)}, {TRITON_TYPES[value.dtype]})")
        if not self.awaits_late:
            self.overlap()
        self.block(self.launch.body)
        return [self.decorator(), f"def {self.launch.sym_name}({arguments}):", *(self.lines or ["    pass"])]

    def overlap(self) -> None:
        """Wait for the kernel before, and then let the next one come: else kernels would come one upon the other, and
        take the room of those that run."""
        for line in self.overlapping:
            self.line(line)

    @property
    def awaits_late(self) -> bool:
        """Whether the kernel waits for the one before at a place of its own."""
        return "awaits" in dict(self.launch.options)

    @property
    def overlapping(self) -> list[str]:
        """What a kernel says that begins while the one before ends, or lets the next one do so."""
        options = dict(self.launch.options)
        return [line for name, line in (("launch_pdl", AWAIT), ("triggers", TRIGGER)) if options.get(name)]

    def decorator(self) -> str:
        """Triton compiles anew for integers that are 1 or multiples of 16. What the host makes of the number of
        multiprocessors is the same on a device and gains nothing by that."""
        names = [quoted(self.name(self.launch.body.args[number])) for number in self.launch.unspecialized]
        return f"@triton.jit(do_not_specialize=[{', '.join(names)}])" if names else "@triton.jit"

    def argument(self, value: Value) -> str:
        name = self.name(value)
        return f"{name}: {TRITON_TYPES[value.dtype]}" if self.is_annotated(value) else name

    def is_annotated(self, value: Value) -> bool:
        """Whether Triton would take a Python number for another type than this argument's."""
        return not value.dtype.startswith("*") and value.dtype not in ("int32", "float32")

    # Lines

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def origin(self, op: Operation) -> None:
        """A comment with the place in the user's file, where it differs from that of the line before."""
        loc = op.loc
        if loc is UNKNOWN:
            return
        origin = f"# {_file_name(loc.file)}:{loc.line}"
        if origin != self._origin:
            self._origin = origin
            self.line(origin)

    def block(self, region: Region) -> None:
        for op in region:
            if op not in self.variables.inlined and not op.is_terminator:
                self.statement(op)

    def nested(self, region: Region, ending: Callable[[], None]) -> None:
        """A region one step further right; `ending` writes what its terminator does."""
        self.indent += "    "
        before = len(self.lines)
        self.block(region)
        ending()
        if not any(not line.lstrip().startswith("#") for line in self.lines[before:]):
            self.line("pass")
        self.indent = self.indent[:-4]

    def statement(self, op: Operation) -> None:
        self.origin(op)
        handler = _STATEMENTS.get(type(op))
        if handler is not None:
            handler(self, op)
            return
        assert len(op.results) == 1, f"no Triton statement for {op!r}"
        self.line(f"{self.name(op.result)} = {self.expressions.operation(op).text}")

    # Assignments

    def name(self, value: Value) -> str:
        return self.variables.name(value)

    def assign(self, targets: Sequence[Value], sources: Sequence[Value], apart: Set[Value] = frozenset()) -> None:
        """All assignments at once: no source is read after it was overwritten. `apart`: targets for which Triton must
        see a value of their own, that of no other variable."""
        pending = [(t, s) for t, s in zip(targets, sources, strict=True) if is_free(s) or not self.variables.same(t, s)]
        while pending:
            free = [
                (t, s)
                for t, s in pending
                if not any(self.variables.same(t, other) for x, other in pending if x is not t)
            ]
            if not free:
                names = ", ".join(self.name(t) for t, _ in pending)
                self.line(f"{names} = {', '.join(self.expressions.text(s) for _, s in pending)}")
                return
            for pair in free:
                text = self.expressions.copied(pair[1]) if pair[0] in apart else self.expressions.text(pair[1])
                self.line(f"{self.name(pair[0])} = {text}")
                pending.remove(pair)

    # Control flow

    def for_loop(self, op: scf.ForOp) -> None:
        self.assign(op.iter_args, op.inits, self.own_values(op))
        bounds = [self.expressions.text(each) for each in (op.lower, op.upper, op.step)]
        step = constant_of(op.step)
        if step == 1:
            bounds.pop()
            if constant_of(op.lower) == 0:
                bounds.pop(0)
        options = []
        if op.num_stages:
            options.append(f"num_stages={op.num_stages}")
        if op.unroll:
            options.append(f"loop_unroll_factor={_unroll_factor(op)}")
        if op.flatten:
            options.append("flatten=True")
        function = "tl.range" if options else "range"
        self.line(f"for {self.name(op.index)} in {function}({', '.join(bounds + options)}):")
        self.nested(op.body, lambda: self.assign(op.iter_args, op.yielded))

    def own_values(self, op: scf.ForOp | scf.WhileOp) -> set[Value]:
        """The carried values for which Triton must see a value of their own: all of a group that is alike but one."""
        own: set[Value] = set()
        for group in op.alike:
            values = [op.iter_args[number] for number in group]
            first = next((each for each in values if self.variables.same(each, op.inits[group[0]])), values[0])
            own.update(each for each in values if each is not first)
        return own

    def condition(self, value: Value) -> str:
        op = value.op
        if isinstance(op, arith.NotOp) and op in self.expressions.variables.inlined:
            return f"not {self.expressions.value(op.source).at(ATOM)}"
        return self.expressions.text(value)

    def branch(self, op: scf.IfOp) -> None:
        used = [
            number for number, value in enumerate(op.results) if value.uses or len(self.variables.members(value)) > 1
        ]
        results = [op.results[number] for number in used]

        def ending(region: Region) -> Callable[[], None]:
            return lambda: self.assign(results, [region.terminator.operands[number] for number in used])

        condition = self.condition(op.condition)
        then, orelse = (self._text_of(region, ending(region)) for region in op.regions)
        if then or not orelse:
            self.line(f"if {condition}:")
            self.lines.extend(then or [self.indent + "    pass"])
            if orelse:
                self.line("else:")
                self.lines.extend(orelse)
        else:
            self.line(f"if not ({condition}):")
            self.lines.extend(orelse)
        self._origin = ""

    def _text_of(self, region: Region, ending: Callable[[], None]) -> list[str]:
        """The lines of a branch; none where it does nothing."""
        kept, self.lines, self._origin = self.lines, [], ""
        self.nested(region, ending)
        lines, self.lines = self.lines, kept
        return [] if lines[-1].strip() == "pass" else lines

    def while_loop(self, op: scf.WhileOp) -> None:
        """What the condition is computed from may be used by nothing else. Triton up to 3.6 takes the carried tiles for
        others behind a value that the loop's body does not get, so that a loop that carries tiles tests a flag, which
        is assigned, and so carried, last."""
        condition = op.before.terminator
        assert isinstance(condition, scf.ConditionOp)
        handed_on = any(not self.variables.same(t, s) for t, s in zip(op.after.args, condition.values))
        carries_tiles = any(value.shape for value in (*op.before.args, *op.after.args))
        if not handed_on and self._is_assigned_last(condition):
            carries_tiles = False  # the condition is such a flag itself
        flag = self.names.claim("going_on") if handed_on or carries_tiles else ""

        def test() -> None:
            self.block(op.before)
            text = self.expressions.text(condition.condition)
            if handed_on:
                last = self.names.claim("goes_on") if carries_tiles else flag
                self.line(f"{last} = {text}")
                text = last
            self.assign(op.after.args, condition.values)
            if carries_tiles:
                self.line(f"{flag} = {text}")

        def ending() -> None:
            self.assign(op.iter_args, op.yielded)
            test()

        self.assign(op.iter_args, op.inits, self.own_values(op))
        test()
        self.line(f"while {flag or self.condition(condition.condition)}:")
        self.nested(op.after, ending)

    def _is_assigned_last(self, condition: scf.ConditionOp) -> bool:
        """Whether the condition has a variable of its own, assigned behind all others."""
        value = condition.condition
        alone = value.op not in self.variables.inlined and len(self.variables.members(value)) == 1
        return alone and value.op is not None and value.op.next is condition

    # Memory

    def load(self, op: triton.LoadOp) -> None:
        self.line(f"{self.name(op.out)} = {self.load_text(op)}")

    def load_text(self, op: triton.LoadOp) -> str:
        arguments = [self.expressions.text(op.pointer)]
        if op.mask is not None:
            arguments.append(f"mask={self.expressions.text(op.mask)}")
            if op.other is not None:
                arguments.append(f"other={self.other(op.other, op.out.dtype)}")
        return f"tl.load({', '.join(arguments + _cache_options(op.cache, op.eviction))})"

    def other(self, value: Value, dtype: str) -> str:
        """What masked-off elements give; tl.load converts it, so a number may stand bare."""
        number = constant_of(value)
        if number is None or value.shape or dtype == "bool":
            return "0" if number is False else "1" if number is True else self.expressions.text(value)
        return self.expressions.converted_number(number, dtype).text

    def store(self, op: triton.StoreOp) -> None:
        number = constant_of(op.value)
        value = (
            self.expressions.text(op.value)
            if number is None
            else self.expressions.converted_number(number, op.value.dtype).text
        )
        arguments = [self.expressions.text(op.pointer), value]
        if op.mask is not None:
            arguments.append(f"mask={self.expressions.text(op.mask)}")
        self.line(f"tl.store({', '.join(arguments + _cache_options(op.cache, op.eviction))})")

    def load_block(self, op: triton.LoadBlockOp) -> None:
        assert not op.axes, f"only Gluon leaves out dimensions of {op!r}"
        self.line(f"{self.name(op.out)} = {self.expressions.text(op.descriptor)}.load([{self.starts_text(op)}])")

    def store_block(self, op: triton.StoreBlockOp) -> None:
        value = self.expressions.text(op.value)
        self.line(f"{self.expressions.text(op.descriptor)}.store([{self.starts_text(op)}], {value})")

    def starts_text(self, op: triton.LoadBlockOp | triton.StoreBlockOp) -> str:
        return ", ".join(self.expressions.text(each) for each in op.starts)

    def atomic(self, op: triton.AtomicOp) -> None:
        text = self.atomic_text(op)
        self.line(f"{self.name(op.out)} = {text}" if op.out.uses else text)

    def atomic_text(self, op: triton.AtomicOp) -> str:
        pointer, value = self.expressions.text(op.pointer), self.expressions.text(op.value)
        mask = "" if op.mask is None else self.expressions.text(op.mask)
        if op.mask is not None and self.expressions.may_be_python(op.mask):
            mask = f"tl.cast({mask}, tl.int1)"  # atomics take no bool of Python's
        mask = f", mask={mask}" if mask else ""
        dtype, kind, bits = op.value.dtype, op.kind, ELEMENTS[op.value.dtype].bits
        if kind == "load":
            return self.atomic_load(op, pointer, mask)
        if kind == "store":
            if bits not in (32, 64):
                return f"tl.store({pointer}, {value}{mask})"
            kind = "exchange"
        if op.compare is not None:
            assert op.mask is None, "legalize-arith leaves no mask of a cas"
            compare = self.expressions.text(op.compare)
            if is_float(dtype):  # LLVM has it for AMD only as integers
                pointer = f"tl.cast({pointer}, tl.pointer_type(tl.int{bits}), bitcast=True)"
                compare, value = (f"tl.cast({each}, tl.int{bits}, bitcast=True)" for each in (compare, value))
            text = f"tl.atomic_cas({pointer}, {compare}, {value}, sem={quoted(op.semantics)})"
            return f"{text}.to({TRITON_TYPES[dtype]}, bitcast=True)" if is_float(dtype) and op.out.uses else text
        if kind == "exchange" and dtype == "float64":  # of tiles, LLVM has it for AMD only as integers
            pointer = f"tl.cast({pointer}, tl.pointer_type(tl.int64), bitcast=True)"
            value = f"tl.cast({value}, tl.int64, bitcast=True)"
            text = f"tl.atomic_xchg({pointer}, {value}{mask}, sem={quoted(op.semantics)})"
            return f"{text}.to(tl.float64, bitcast=True)" if op.out.uses else text
        return f"tl.atomic_{ATOMICS[kind]}({pointer}, {value}{mask}, sem={quoted(op.semantics)})"

    def atomic_load(self, op: triton.AtomicOp, pointer: str, mask: str) -> str:
        """One thread reads and tells the others, and changes nothing. Of a load, even a volatile one, Triton makes
        several: for each layout, ahead in a pipelined loop, for each warp. They may see different values, and a
        condition speaks of one while another is used behind it."""
        dtype, bits = op.value.dtype, ELEMENTS[op.value.dtype].bits
        if bits in (32, 64):
            word = f"tl.int{bits}"
            pointer = f"tl.cast({pointer}, tl.pointer_type({word}), bitcast=True)" if is_float(dtype) else pointer
            zero = self.expressions.full((), "0", f"int{bits}" if is_float(dtype) else dtype).text
            text = f"tl.atomic_or({pointer}, {zero}{mask}, sem={quoted(op.semantics)})"
            text = f"{text}.to({TRITON_TYPES[dtype]}, bitcast=True)" if is_float(dtype) else text
        elif op.semantics == "relaxed":  # there is no atomic of so few bits
            return self.volatile_load(pointer, mask)
        else:
            zero = self.expressions.full((), "-0.0", dtype).text  # 0.0 would change -0.0
            text = f"tl.atomic_add({pointer}, {zero}{mask}, sem={quoted(op.semantics)})"
        return f"tl.where({mask.removeprefix(', mask=')}, {text}, 0)" if mask else text

    def volatile_load(self, pointer: str, mask: str) -> str:
        return f"tl.load({pointer}{f'{mask}, other=0' if mask else ''}, volatile=True)"

    # Others

    def print(self, op: tile.PrintOp) -> None:
        message = quoted(printable(op.message or "value"))
        self.line(f"tl.device_print({', '.join([message, *map(self.expressions.text, op.values)])})")

    def check(self, op: tile.AssertOp) -> None:
        self.line(f"tl.device_assert({self.expressions.text(op.condition)}, {quoted(op.message)})")

    def barrier(self, _: thread.BarrierOp) -> None:
        self.line("tl.debug_barrier()")

    def assume(self, op: tile.AssumeOp) -> None:
        if constant_of(op.condition) is not True:
            self.line(f"tl.assume({self.condition(op.condition)})")


def _cache_options(cache: str, eviction: str) -> list[str]:
    options = [f"cache_modifier={quoted(cache)}"] if cache else []
    return options + ([f"eviction_policy={quoted(eviction)}"] if eviction else [])


def _unroll_factor(op: scf.ForOp) -> int:
    if op.unroll > 1:
        return int(op.unroll)
    lower, upper, step = (constant_of(each) for each in (op.lower, op.upper, op.step))
    if lower is None or upper is None or step is None:
        return 1  # a hint, which cannot be followed for bounds known only at run time
    return max(1, len(range(int(lower), int(upper), int(step))))


_STATEMENTS: dict[type[Operation], Callable[..., None]] = {
    scf.ForOp: KernelWriter.for_loop,
    scf.IfOp: KernelWriter.branch,
    scf.WhileOp: KernelWriter.while_loop,
    triton.LoadOp: KernelWriter.load,
    triton.StoreOp: KernelWriter.store,
    triton.LoadBlockOp: KernelWriter.load_block,
    triton.StoreBlockOp: KernelWriter.store_block,
    triton.AtomicOp: KernelWriter.atomic,
    tile.PrintOp: KernelWriter.print,
    tile.AssertOp: KernelWriter.check,
    tile.AssumeOp: KernelWriter.assume,
    thread.BarrierOp: KernelWriter.barrier,
}
