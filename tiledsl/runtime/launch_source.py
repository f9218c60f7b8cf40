"""Python text for warm launches: what a call must compare, and what a plan hands to the driver.

The texts are executed once and can be read: `kernel.launch_source`.
"""

from __future__ import annotations

import contextlib
import linecache
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiledsl.runtime import launch_triton
from tiledsl.runtime.launch_trace import Allocation, Descriptor, Pointer, Scalar, Trace, TracedLaunch

if TYPE_CHECKING:
    from tiledsl.runtime.launch import Launcher
    from tiledsl.runtime.ranges import Range

_INT_KIND = "({0} == 1, {0} & 15 == 0, -0x80000000 <= {0} < 0x80000000)"
"""What Triton compiles for of an integer; its value is handed on."""


class Writer:
    """Lines of functions, and the objects that they use under names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self._indent = 0  # of all lines that are added

    def name(self, hint: str, value: Any) -> str:
        """A name for an object; text for a number."""
        if value is None or isinstance(value, (bool, int, float)):
            return repr(value)
        number = sum(name.rstrip("0123456789") == hint for name in self.scope)
        name = f"{hint}{number or ''}"
        self.scope[name] = value
        return name

    def add(self, *lines: str, indent: int = 0) -> None:
        self.lines += ["    " * (self._indent + indent) + line for line in lines]

    @contextlib.contextmanager
    def deeper(self, indent: int = 1) -> Iterator[None]:
        """Lines that are added inside stand further to the right."""
        self._indent += indent
        yield
        self._indent -= indent

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    def define(self, function: str, title: str) -> Any:
        """Execute the lines; the function of that name. Its text is where tracebacks and `inspect` look for it."""
        file = os.path.join(os.path.dirname(__file__), f"<{title}>")
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(True), file)
        exec(compile(self.text, file, "exec", dont_inherit=True), self.scope)
        return self.scope[function]


def quiet_condition(writer: Writer) -> str:
    """An expression that is true if nobody watches launches: `launch_triton.is_watched`, which is asked if a knob is
    set."""
    knobs = launch_triton.knobs()
    watched = f"{writer.name('is_watched', launch_triton.is_watched)}()"
    hooks = [] if knobs is None else [knobs[0].launch_enter_hook, knobs[0].launch_exit_hook]
    if knobs is None or not all(isinstance(getattr(hook, "calls", None), list) for hook in hooks):
        return f"not {watched}"
    writer.scope |= {"runtime_set": vars(knobs[0]), "compilation_set": vars(knobs[1])}
    writer.scope |= {"enter_hooks": hooks[0].calls, "exit_hooks": hooks[1].calls}
    return f"(not (runtime_set or compilation_set or enter_hooks or exit_hooks) or not {watched})"


def int_kind(value: int) -> tuple[bool, ...]:
    """What a plan depends on of an integer that is only handed on."""
    return value == 1, value & 15 == 0, -0x80000000 <= value < 0x80000000


def pointer(name: str) -> str:
    """The name of the address of a tensor."""
    return f"ptr_{name}"


def write_call(writer: Writer, callers: Sequence[Launcher]) -> None:
    """`call`: what a kernel's `__call__` is, for as many arguments as these callers take; `cold` for everything else.

    With tensors like those of the caller's first plan it launches, after guards; with others seen lately it runs their
    plan; else `find_<number of arguments>`.
    """
    callers = sorted(callers, key=lambda caller: -len(caller.names))
    places = callers[0].names
    writer.scope["missing"] = launch_triton.MISSING
    writer.add(f"def call(self, {', '.join(f'{each}=missing' for each in places)}, /, *rest, **named):")
    writer.add("__tracebackhide__ = True", indent=1)  # from pytest, as in Kernel.call
    otherwise = f"return cold(self, ({', '.join(places)},), rest, named)"
    writer.add("if rest or named:", f"    {otherwise}", indent=1)
    if not launch_triton.tracer_takes_another():
        import torch

        writer.scope["compiling"] = torch.compiler.is_compiling
        writer.add("if compiling():", f"    {otherwise}", indent=1)
    quiet = quiet_condition(writer)
    for caller in callers:
        count = len(caller.names)
        conditions = [f"{places[count - 1]} is not missing", *(f"{each} is missing" for each in places[count:][:1])]
        writer.add(f"if {' and '.join(conditions)}:", indent=1)
        if places[:count] != caller.names:
            writer.add(f"{', '.join(caller.names)}, = {', '.join(places[:count])},", indent=2)
        _write_known(writer, caller, quiet)
        writer.add(f"return find_{count}({', '.join(caller.names)})", indent=2)
    writer.add(otherwise, indent=1)


def _write_known(writer: Writer, caller: Launcher, quiet: str) -> None:
    """The way of a call with a signature that was seen before."""
    tensors = [caller.names[number] for number in caller.tensors]
    scalars, read, count = caller.scalars, caller.read, len(caller.names)
    conditions = [quiet, *(f"type({scalar}) is {type}" for scalar, type in scalars.items())]
    kinds = [s if s in read else _INT_KIND.format(s) for s, type in scalars.items() if type != "float" or s in read]
    writer.add(f"if {' and '.join(conditions)}:", indent=2)
    if kinds:
        writer.add(f"kinds = ({', '.join(kinds)},)", indent=3)
    same_kinds = "known == kinds and " if kinds else ""
    guard, signature = caller.first or (None, None)
    if signature is not None and signature.trace is not None:
        writer.scope |= {f"guard_{count}": guard, f"known_{count}": signature.kinds}
        here = ""
        if not launch_triton.has_one_device():
            writer.scope["current_device"] = launch_triton.device_functions()[0]
            here = f" and current_device() == {signature.device}"
        writer.add(
            f"if {same_kinds.replace('known', f'known_{count}')}guard_{count}({', '.join(tensors)}){here}:", indent=3
        )
        writer.add(*(f"{pointer(tensor)} = {tensor}.data_ptr()" for tensor in tensors), indent=4)
        writer.add(f"if not ({' | '.join(map(pointer, tensors))}) & 15:", indent=4)
        with writer.deeper(5):
            _write_work(writer, signature.trace, signature.device, caller.outputs, caller.range)
    writer.add(f"for known, guard, plan in recent_{count}:", indent=3)
    writer.add(f"if {same_kinds}guard({', '.join(tensors)}):", indent=4)
    writer.add(*(f"{pointer(tensor)} = {tensor}.data_ptr()" for tensor in tensors), indent=5)
    writer.add(f"if ({' | '.join(map(pointer, tensors))}) & 15:", "    break", indent=5)
    call = f"plan({', '.join([*map(pointer, tensors), *scalars])})"
    writer.add(*([call, f"return {_outputs(caller.outputs)}"] if caller.outputs else [f"return {call}"]), indent=5)


def _outputs(names: Sequence[str]) -> str:
    """Of all parameters, those that a call returns."""
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def write_plan(
    writer: Writer,
    trace: Trace,
    device: int,
    tensors: Sequence[str],
    scalars: Sequence[str],
    around: Range | None = None,
) -> None:
    """`plan(ptr_A, ..., n, ...)`: launch what was traced on the current stream, and return what it returned.

    around: a range in profiles for the launches; without one, nothing of it is in the text.
    """
    listed = ", ".join([*map(pointer, tensors), *scalars])
    writer.add(f"def plan({listed}):")
    if not launch_triton.has_one_device():
        current_device, _, on_device = launch_triton.device_functions()
        writer.scope |= {"current_device": current_device, "on_device": on_device}
        writer.add(f"if current_device() != {device}:", indent=1)
        writer.add(f"with on_device({device}):", f"    return plan({listed})", indent=2)
    with writer.deeper():
        _write_work(writer, trace, device, (), around)


def _write_work(writer: Writer, trace: Trace, device: int, outputs: Sequence[str], around: Range | None) -> None:
    """What was traced, for tensors at the addresses that have names, on a device that is current."""
    writer.scope["current_stream"] = launch_triton.device_functions()[1]
    for number, allocation in enumerate(trace.allocations):
        writer.add(f"made{number} = {make(writer, allocation, device)}")
        writer.add(f"{pointer(f'made{number}')} = made{number}.data_ptr()")
    write_launches(writer, trace, device, {}, around)
    if outputs:
        writer.add(f"return {_outputs(outputs)}")
    else:
        writer.add("return" if trace.returned is None else f"return {_returned(trace.returned)}")


def write_bound(
    writer: Writer, trace: Trace, device: int, values: Mapping[str, Any], result: str, around: Range | None = None
) -> None:
    """`bound()`: the same with these addresses and numbers. Workspaces, which nothing fills, are made once."""
    quiet = quiet_condition(writer)
    current_device, current_stream, _ = launch_triton.device_functions()
    writer.scope |= {"current_device": current_device, "current_stream": current_stream}
    literals = dict(values)
    writer.add("def bound():")
    elsewhere = "" if launch_triton.has_one_device() else f"current_device() != {device} or "
    writer.add(f"if {elsewhere}not {quiet}:", "    return elsewhere()", indent=1)
    for number, allocation in enumerate(trace.allocations):
        with launch_triton.device_functions()[2](device):
            kept = writer.scope[f"kept_made{number}"] = eval(make(writer, allocation, device), writer.scope)
        literals[pointer(f"made{number}")] = kept.data_ptr()
    with writer.deeper():
        write_launches(writer, trace, device, literals, around)
        writer.add(f"return {result}")


def make(writer: Writer, allocation: Allocation, device: int) -> str:
    """An expression that makes a tensor on the current device."""
    dtype = writer.name(str(allocation.dtype).removeprefix("torch."), allocation.dtype)
    if allocation.function == "empty_strided":
        ways = {"empty": launch_triton.fast_empty(), "torch_empty": launch_triton.torch_empty}
        writer.scope |= {**ways, "is_deterministic": launch_triton.determinism()}
        arguments = f"{allocation.arguments[0]}, {allocation.arguments[1]}, {dtype}"
        return f"(torch_empty if is_deterministic() else empty)({arguments})"
    import torch

    function = writer.name(allocation.function, getattr(torch, allocation.function))
    return f'{function}({", ".join(map(repr, allocation.arguments))}, dtype={dtype}, device="cuda:{device}")'


def write_launches(
    writer: Writer, trace: Trace, device: int, literals: Mapping[str, Any], around: Range | None = None
) -> None:
    """A call of the driver for each kernel. `literals` has values that stand in the text in place of names."""
    launches = [launch for launch in trace.launches if min(launch.grid) > 0]
    if around is None or not launches:
        _write_calls(writer, launches, device, literals)
        return
    writer.scope |= {"range_begin": around.begin, "range_end": around.end, "range_label": around.label}
    writer.add("range_begin(range_label)", "try:")
    with writer.deeper():
        _write_calls(writer, launches, device, literals)
    writer.add("finally:", "    range_end()")


def _write_calls(writer: Writer, launches: Sequence[TracedLaunch], device: int, literals: Mapping[str, Any]) -> None:
    if launches:
        writer.add(f"stream = current_stream({device})")
    for launch in launches:
        call = launch_triton.driver_call(launch.compiled)
        arguments = ", ".join(_argument(writer, call, argument, literals) for argument in launch.arguments)
        if call.as_tuple:
            arguments = f"({arguments},)" if arguments else "()"
        kernel = writer.name("launch", call.call)
        head = [*map(str, launch.grid), "stream", *(writer.name("head", value) for value in call.head)]
        writer.add(f"{kernel}({', '.join(head)}{', ' * bool(arguments)}{arguments})")


def _argument(writer: Writer, call: launch_triton.DriverCall, argument: Any, given: Mapping[str, Any]) -> str:
    if isinstance(argument, Pointer):
        name = pointer(argument.of)
        return str(given.get(name, name))
    if isinstance(argument, Scalar):
        return repr(given[argument.name]) if argument.name in given else argument.name
    if isinstance(argument, Descriptor):
        name = pointer(argument.pointer.of)
        maps = writer.name("maps", _Maps(call, argument))
        return f"*{maps}[{given.get(name, name)}]"
    return repr(argument)


class _Maps(dict[int, tuple[Any, ...]]):
    """A descriptor's arguments by the address of its memory. To make them takes longer than a launch."""

    def __init__(self, call: launch_triton.DriverCall, described: Descriptor) -> None:
        super().__init__()
        self.call, self.described = call, described

    def __missing__(self, address: int) -> tuple[Any, ...]:
        if len(self) >= 1024:
            self.clear()
        made = self[address] = self.call.descriptor(self.described.number, self.described.at(address))
        return made


def _returned(names: Any) -> str:
    if isinstance(names, str):
        return names
    parts = ", ".join(map(_returned, names))
    return f"[{parts}]" if isinstance(names, list) else f"({parts},)"
