"""What calls, plans and bound calls run: their text executed, against a plain rule for which way a call goes."""

from __future__ import annotations

import contextlib
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tiledsl.runtime import launch_source, launch_triton
from tiledsl.runtime.launch_source import _INT_KIND, Writer, int_kind, write_bound, write_call, write_plan
from tiledsl.runtime.launch_trace import Allocation, Descriptor, Pointer, Scalar, Trace, TracedLaunch
from tiledsl.runtime.launch_triton import MISSING, DriverCall

Log = list[tuple[Any, ...]]


class At:
    """A tensor at an address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def data_ptr(self) -> int:
        return self.address


def pretended(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Devices, a driver and a watcher that note what is asked of them."""
    made = SimpleNamespace(log=[], device=0, watched=False, devices=2, as_tuple=False)

    @contextlib.contextmanager
    def on(device: int) -> Any:
        made.log.append(("on", device))
        before, made.device = made.device, device
        yield
        made.device = before

    def driver_call(compiled: Any) -> Any:
        launch = lambda *given: made.log.append((compiled, *given))
        return DriverCall(launch, ("head", None), made.as_tuple, None)

    functions = (lambda: made.device, lambda device: f"stream {device}", on)
    monkeypatch.setattr(launch_triton, "device_functions", lambda: functions)
    monkeypatch.setattr(launch_triton, "has_one_device", lambda: made.devices == 1)
    monkeypatch.setattr(launch_triton, "is_watched", lambda: made.watched)
    monkeypatch.setattr(launch_triton, "knobs", lambda: None)
    monkeypatch.setattr(launch_triton, "driver_call", driver_call)
    monkeypatch.setattr(launch_triton, "tracer_takes_another", lambda: True)
    return made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    return pretended(monkeypatch)


def traced(*launches: TracedLaunch, returned: Any = None, allocations: Any = ()) -> Trace:
    made = Trace()
    made.launches, made.returned, made.allocations = list(launches), returned, list(allocations)
    return made


def launch(name: str, *arguments: Any, grid: Any = (4, 2, 1)) -> TracedLaunch:
    return TracedLaunch(name, grid, arguments)


class Caller:
    """As a Launcher: its parameters (tensors "t", others by type), and what it has seen."""

    def __init__(self, kinds: str, read: set[str], outputs: list[str], log: Log) -> None:
        types = {"i": "int", "f": "float", "b": "bool"}
        self.names = [f"arg_{kind}{number}" for number, kind in enumerate(kinds)]
        self.tensors = [number for number, kind in enumerate(kinds) if kind == "t"]
        self.scalars = {name: types[kind] for name, kind in zip(self.names, kinds) if kind != "t"}
        self.read, self.outputs, self.range = read, outputs, None
        self.first: Any = None
        self.find = lambda *given: log.append(("find", *given)) or "found"

    def kinds(self, given: Any) -> tuple[Any, ...]:
        of = dict(zip(self.names, given))
        names = [name for name, type in self.scalars.items() if name in self.read or type != "float"]
        return tuple(of[name] if name in self.read else int_kind(of[name]) for name in names)


def defined(writer: Writer, callers: list[Caller], recent: dict[int, Any], log: Log) -> Any:
    write_call(writer, callers)  # type: ignore[arg-type]
    writer.scope["cold"] = lambda *given: log.append(("cold", *given)) or "cold"
    for caller in callers:
        count = len(caller.names)
        writer.scope |= {f"find_{count}": caller.find, f"recent_{count}": recent.get(count, ())}
    return writer.define("call", "call of a test")


VALUES = {
    "t": st.sampled_from([16, 32, 40]).map(At), "i": st.sampled_from([0, 1, 5, 16, 2**31, -3, True, 2.0]),
    "f": st.sampled_from([0.5, 2.0, 3]), "b": st.sampled_from([True, False, 1]),
}  # fmt: skip


@given(data=st.data())
def test_which_way_a_call_goes(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        made = pretended(patch)
        made.watched = data.draw(st.sampled_from([False, False, True]))
        made.devices = data.draw(st.sampled_from([1, 2]))
        kinds = data.draw(st.sampled_from(["t", "ti", "tf", "tif", "fttb", "itf"]))
        names = [f"arg_{kind}{number}" for number, kind in enumerate(kinds)]
        read = set(data.draw(st.lists(st.sampled_from(names), max_size=2))) - {
            n for n in names if n.startswith("arg_t")
        }
        tensors = [name for name in names if name.startswith("arg_t")]
        outputs = data.draw(st.sampled_from([[], tensors[:1], tensors]))
        log: Log = []
        caller = Caller(kinds, read, outputs, log)
        known = [data.draw(VALUES[kind]) for kind in kinds]
        given_now = known if data.draw(st.booleans()) else [data.draw(VALUES[kind]) for kind in kinds]
        guard_says = data.draw(st.booleans())

        def guard(*asked: Any) -> bool:
            assert [each.address for each in asked] == [given_now[n].address for n in caller.tensors]
            return guard_says

        def fits(values: Any) -> bool:
            numbers = [value for value, kind in zip(values, kinds) if kind != "t"]
            return [type(number).__name__ for number in numbers] == list(caller.scalars.values())

        plan = lambda *asked: log.append(("plan", *asked)) or "planned"
        recent = [(caller.kinds(known), guard, plan)] if fits(known) else []
        has_first = bool(recent) and data.draw(st.booleans())
        if has_first:
            work = launch("kernel", *(Pointer(name) for name in tensors), *(Scalar(name) for name in caller.scalars))
            signature = SimpleNamespace(kinds=caller.kinds(known), trace=traced(work), device=0)
            caller.first = (guard, signature)
        made.device = data.draw(st.sampled_from([0, 1]))
        call = defined(Writer(), [caller], {len(kinds): tuple(recent)}, log)
        count = data.draw(st.sampled_from([len(kinds), len(kinds), len(kinds), len(kinds) - 1]))
        named = data.draw(st.sampled_from([{}, {}, {}, {"x": 1}]))
        result = call("kernel object", *given_now[:count], **named)

        pointers = [given_now[n].address for n in caller.tensors]
        scalars = [value for value, kind in zip(given_now, kinds) if kind != "t"]
        returned = [given_now[int(name[5:])] for name in outputs]
        returned = None if not returned else returned[0] if len(returned) == 1 else returned
        if named or count < len(kinds):
            missing = (*given_now[:count], *[MISSING] * (len(kinds) - count))
            assert (result, log) == ("cold", [("cold", "kernel object", missing, (), named)])
        elif (
            made.watched or not fits(given_now) or not recent or caller.kinds(known) != caller.kinds(given_now)
            or not guard_says or any(each % 16 for each in pointers)
        ):  # fmt: skip
            assert (result, log) == ("found", [("find", *given_now)])
        elif has_first and (made.devices == 1 or made.device == 0):
            assert log == [] and made.log == [("kernel", 4, 2, 1, "stream 0", "head", None, *pointers, *scalars)]
            assert result == returned
        else:
            assert log == [("plan", *pointers, *scalars)] and result == (returned if outputs else "planned")


def test_a_plan_is_for_integers_that_triton_compiles_alike_for(machine: Any) -> None:
    log: Log = []
    caller = Caller("ti", set(), [], log)
    recent = ((caller.kinds([At(16), 32]), lambda *tensors: True, lambda *asked: "planned"),)
    call = defined(Writer(), [caller], {2: recent}, log)
    ways = {number: call("kernel object", At(16), number) for number in (32, 48, -16, 5, 1, 2**31)}
    assert ways == {32: "planned", 48: "planned", -16: "planned", 5: "found", 1: "found", 2**31: "found"}


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1, (True, False, True)), (0, (False, True, True)), (16, (False, True, True)), (17, (False, False, True)),
        (2**31 - 1, (False, False, True)), (2**31, (False, True, False)),
        (-(2**31), (False, True, True)), (-(2**31) - 1, (False, False, False)),
    ],
)  # fmt: skip
def test_what_is_compiled_for_of_an_integer(number: int, kind: tuple[bool, ...]) -> None:
    assert int_kind(number) == eval(_INT_KIND.format(number)) == kind


def test_calls_with_all_parameters_or_with_inputs_alone(machine: Any) -> None:
    log: Log = []
    whole, inputs = Caller("tti", set(), [], log), Caller("ti", set(), [], log)
    inputs.names = ["arg_t0", "arg_i2"]  # the output is between them
    inputs.scalars = {"arg_i2": "int"}
    plan = lambda name: lambda *given: log.append((name, *given)) or name
    recent = {
        3: (((int_kind(5),), lambda *_: True, plan("whole")),), 2: (((int_kind(5),), lambda *_: True, plan("inputs")),)
    }  # fmt: skip
    a, b = At(16), At(32)
    for order in ([whole, inputs], [inputs, whole]):
        call = defined(Writer(), order, recent, log)
        assert (call("k", a, b, 5), call("k", a, 7)) == ("whole", "inputs") and call("k", a, b, 5, 6) == "cold"
        assert call("k") == "cold" and call("k", a, b, n=5) == "cold"
        assert log == [
            ("whole", 16, 32, 5), ("inputs", 16, 7), ("cold", "k", (a, b, 5), (6,), {}),
            ("cold", "k", (MISSING,) * 3, (), {}), ("cold", "k", (a, b, MISSING), (), {"n": 5}),
        ]  # fmt: skip
        del log[:]


def test_a_tracer_that_does_not_take_another_function_is_asked_for(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_triton, "tracer_takes_another", lambda: False)
    log: Log = []
    call = defined(Writer(), [Caller("t", set(), [], log)], {1: (((), lambda *_: True, lambda *_: "planned"),)}, log)
    assert call("k", At(16)) == "planned"
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    writer = Writer()
    call = defined(writer, [Caller("t", set(), [], log)], {1: (((), lambda *_: True, lambda *_: "planned"),)}, log)
    assert call("k", At(16)) == "cold"


ONE = launch("one", Pointer("A"), Scalar("n"), 3, True)
TWO = launch("two", Pointer("made0"), 0.5, grid=(1, 1, 1))
EMPTY = launch("none", Pointer("A"), grid=(4, 0, 1))


def planned(trace: Trace, around: Any = None) -> Any:
    writer = Writer()
    write_plan(writer, trace, 1, ["A"], ["n"], around)
    return writer.define("plan", "plan of a test"), writer


@pytest.mark.parametrize("as_tuple", [False, True])
def test_a_plan_launches_in_order_on_its_device(as_tuple: bool, machine: Any) -> None:
    machine.as_tuple, machine.device = as_tuple, 1
    plan, _ = planned(traced(ONE, EMPTY, launch("bare")))
    given = lambda *arguments: (arguments,) if as_tuple else arguments
    expected = [
        ("one", 4, 2, 1, "stream 1", "head", None, *given(16, 5, 3, True)),
        ("bare", 4, 2, 1, "stream 1", "head", None, *given()),
    ]
    assert plan(16, 5) is None and machine.log == expected
    del machine.log[:]
    machine.device = 0
    plan(16, 5)
    assert machine.log == [("on", 1), *expected] and machine.device == 0
    machine.devices, machine.log[:] = 1, []
    plan, writer = planned(traced(EMPTY))
    plan(16, 5)
    assert machine.log == [] and "current_device" not in writer.text


def test_a_plan_makes_and_returns_tensors(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.device = 1
    out = At(64)

    def make(writer: Writer, allocation: Any, device: int) -> str:
        writer.scope["out"] = out
        return f"out if {device} == 1 else {allocation}"

    monkeypatch.setattr(launch_source, "make", make)
    for returned, expected in ((None, None), ("made0", out), (("made0", ["made0"]), (out, [out]))):
        plan, _ = planned(traced(TWO, returned=returned, allocations=["allocation"]))
        assert plan(16, 5) == expected
    assert machine.log == [("two", 1, 1, 1, "stream 1", "head", None, 64, 0.5)] * 3


def test_a_range_is_around_the_launches(machine: Any) -> None:
    machine.device = 1
    begin, end = (lambda *label, name=name: machine.log.append((name, *label)) for name in ("begin", "end"))
    around = SimpleNamespace(begin=begin, end=end, label="scale")
    planned(traced(ONE), around)[0](16, 5)
    assert [each[0] for each in machine.log] == ["begin", "one", "end"] and machine.log[0][1] == "scale"
    assert "range" not in planned(traced(EMPTY), around)[1].text and "range" not in planned(traced(ONE))[1].text
    machine.log[:] = []
    plan, _ = planned(traced(ONE), around)
    plan.__globals__["launch"] = lambda *_: 1 // 0
    with pytest.raises(ZeroDivisionError):
        plan(16, 5)
    assert [each[0] for each in machine.log] == ["begin", "end"]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_bound_call_has_its_addresses_and_workspaces(
    devices: int, machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.devices, made = devices, itertools.count(640, 16)

    def make(writer: Writer, allocation: Any, device: int) -> str:
        writer.scope["fresh"] = lambda: At(next(made))
        return "fresh()"

    monkeypatch.setattr(launch_source, "make", make)
    writer = Writer()
    writer.scope |= {"elsewhere": lambda: "elsewhere", "result": "result"}
    values = {"ptr_A": 48, "n": 7}
    write_bound(writer, traced(ONE, TWO, allocations=["a"]), 1, values, "result")
    assert machine.log == [("on", 1)] and values == {"ptr_A": 48, "n": 7}
    bound = writer.define("bound", "bound of a test")
    machine.log[:], machine.device = [], 1
    expected = [
        ("one", 4, 2, 1, "stream 1", "head", None, 48, 7, 3, True),
        ("two", 1, 1, 1, "stream 1", "head", None, 640, 0.5),
    ]  # fmt: skip
    assert bound() == bound() == "result" and machine.log == expected * 2
    machine.device = 0
    assert bound() == ("elsewhere" if devices == 2 else "result")
    machine.device, machine.watched = 1, True
    assert bound() == "elsewhere"


def test_a_descriptor_is_made_once_for_an_address(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def descriptor(self: Any, number: int, described: Any) -> Any:
        asked.append((number, described))
        return described, "shape"

    monkeypatch.setattr(DriverCall, "descriptor", descriptor)
    described = Descriptor(Pointer("A"), 2, None)
    monkeypatch.setattr(Descriptor, "at", lambda self, address: f"at {address}")
    machine.device = 1
    plan, _ = planned(traced(launch("one", described, Scalar("n"))))
    plan(16, 5), plan(16, 6), plan(32, 5)
    assert asked == [(2, "at 16"), (2, "at 32")]
    assert [each[7:] for each in machine.log] == [("at 16", "shape", 5), ("at 16", "shape", 6), ("at 32", "shape", 5)]
    writer = Writer()
    write_bound(writer, traced(launch("one", described)), 1, {"ptr_A": 48}, "None")
    machine.log[:] = []
    writer.define("bound", "bound of a test")()
    assert machine.log[0][7:] == ("at 48", "shape")


def test_how_tensors_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer()
    text = launch_source.make(writer, Allocation("zeros", ((2, 3),), torch.float16), 1).replace("cuda:1", "cpu")
    found = eval(text, writer.scope)
    assert (found.dtype, found.shape, found.any()) == (torch.float16, (2, 3), False)


def test_texts_are_found_by_tracebacks() -> None:
    import inspect

    writer = Writer()
    writer.add("def f():", "    return 1 // given")
    with writer.deeper():
        writer.add("# behind", indent=1)
    writer.scope["given"] = 0
    function = writer.define("f", "a test")
    assert inspect.getsource(function) == writer.text == "def f():\n    return 1 // given\n        # behind\n"
    assert function.__code__.co_filename.endswith("<a test>")
