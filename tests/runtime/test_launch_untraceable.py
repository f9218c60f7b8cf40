"""Host functions that do something which a plan would not repeat are called as they are, with a reason."""

from __future__ import annotations

import dataclasses
import math
import operator
import types
from typing import Any

import pytest
import torch

from tests.runtime.fake_gpu import Driver, Jitted, tensor
from tiledsl.runtime import launch_trace
from tiledsl.runtime.launch_trace import Allocation, Pointer, Scalar, Trace, Untraceable, row_major, trace


def traced(body: str, *arguments: Any, jitted: Any = None) -> Trace:
    """The trace of `def host(x, n, s)` with this body, for a tensor of (6, 4), 3 and 0.5."""
    module = types.ModuleType("pretended")
    module.__dict__["kernel"] = jitted or Jitted(Driver(), "kernel", "3.6")
    module.__dict__["torch"] = torch
    lines = "\n".join("    " + line for line in body.split("\n"))
    exec(f"def host(x, n, s):\n{lines}\n\ndef helper(n):\n    return n + 1", module.__dict__)
    return trace(module, "host", ["x", "n", "s"], arguments or (tensor(6, 4), 3, 0.5))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 3", "it returns a int"),
        ("return x, 'text'", "it returns a str"),
        ("x.view(3, 8)", None),
        ("x.view((3, 8))", r"x.view\(\(3, 8\)\)"),
        ("x.view(torch.float16)", "x.view"),
        ("x.sum()", "x.sum"),
        ("x.T", "x.T"),
        ("torch.sin(x)", "torch.sin"),
        ("torch.empty((3,), dtype=torch.float32, device='cpu')", "a tensor on cpu, beside arguments on cuda:0"),
        ("kernel[(1,)]('text')", "a kernel's argument is a str"),
        ("kernel[(1,)]([x])", "a kernel's argument is a list"),
    ],
)
def test_what_no_plan_repeats(body: str, reason: str | None) -> None:
    with pytest.raises(Untraceable if reason else TypeError, match=reason):
        traced(body)


def test_a_hook_that_keeps_triton_from_compiling() -> None:
    class Hooked(Jitted):
        def run(self, *arguments: Any, **options: Any) -> None:
            return None

    with pytest.raises(Untraceable, match="a hook keeps Triton from compiling"):
        traced("kernel[(1,)](x)", jitted=Hooked(Driver(), "kernel", "3.6"))


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("kernel[(4,)](x, n, s)", set()), ("kernel[(n,)](x)", {"n"}), ("kernel[(4,)](x, n + 1)", {"n"}),
        ("if n:\n    kernel[(4,)](x)", {"n"}), ("if s > 0:\n    kernel[(4,)](x)", {"s"}), ("helper(n)", {"n"}),
        ("kernel[(-n,)](x)", {"n"}), ("n == 3", {"n"}), ("max(n, 2)", {"n"}), ("x.shape[0] + 1", set()),
        ("f'{s}'", {"s"}), ("2 * s", {"s"}), ("hash(n)", {"n"}),
    ],
)  # fmt: skip
def test_which_numbers_are_looked_at(body: str, read: set[str]) -> None:
    assert traced(body).read == read


def test_a_bool_is_always_looked_at() -> None:
    assert traced("kernel[(4,)](x, n)", tensor(6, 4), True, 0.5).read == {"n"}


def test_what_a_launch_takes() -> None:
    found = traced("kernel[(n, 2)](x, n, s, 7, 0.25, True, n + 1)\nkernel[(5,)](x.view(-1))\nreturn [x, (x,)]")
    first, second = found.launches
    assert first.grid == (3, 2, 1) and second.grid == (5, 1, 1)
    assert first.arguments == (Pointer("x"), Scalar("n"), Scalar("s"), 7, 0.25, True, 4)
    assert second.arguments == (Pointer("x"),) and found.returned == ["x", ("x",)]


def test_views_and_workspaces() -> None:
    body = """
a = torch.empty((n, 4), dtype=torch.float16, device=x.device)
b = torch.zeros((5,), dtype=torch.int32, device=x.device)
c = torch.empty_strided((2, n), (1, 2), dtype=torch.float32, device=x.device)
flat = x.view(-1)
half = flat.view(torch.float16)
kernel[(half.shape[0], flat.stride(0), x.view(torch.int32).shape[1])](a, b, c, half, flat)
kernel[(a.stride(0), c.stride(0), c.stride(1))](x)
return c"""
    trace = traced(body.strip("\n"))
    assert trace.allocations == [
        Allocation("empty_strided", ((3, 4), (4, 1)), torch.float16),
        Allocation("zeros", ((5,),), torch.int32),
        Allocation("empty_strided", ((2, 3), (1, 2)), torch.float32),
    ]
    one, two = trace.launches
    assert one.grid == (48, 1, 4) and two.grid == (4, 1, 2)
    assert one.arguments == tuple(map(Pointer, ("made0", "made1", "made2", "x", "x")))
    assert trace.returned == "made2"


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 0, 4), (1, 1), (0,)])
def test_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    assert row_major(shape) == torch.empty(shape).stride()


def test_a_descriptor_of_a_real_tensor_is_no_argument_that_is_known() -> None:
    class TensorDescriptor:
        base = torch.empty(4)

    with pytest.raises(Untraceable, match="a kernel's argument is a TensorDescriptor"):
        launch_trace._argument(TensorDescriptor(), ())


def test_a_descriptor_at_another_address() -> None:
    @dataclasses.dataclass
    class Described:
        base: Any
        shape: list[int]
        strides: list[int]

    described = Described(torch.empty(2, 3, dtype=torch.float16), [2, 3], [8, 1])
    base = launch_trace.Descriptor(Pointer("A"), 0, described).at(64).base
    assert (base.shape, base.stride(0), base.dtype, base.data_ptr()) == ((2, 3), 8, torch.float16, 64)


def test_a_stand_in_is_what_it_stands_for() -> None:
    number = launch_trace._stand_in(Trace(), "n", 3)
    assert isinstance(number, int) and number.unread() == 3 and number.trace.read == set()
    real = launch_trace._stand_in(Trace(), "s", 0.5)
    assert isinstance(real, float) and real.unread() == 0.5 and real.trace.read == set()
    with pytest.raises(AttributeError):
        _ = launch_trace._stand_in(Trace(), "x", tensor(2, 2)).__len__


BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift", "lt", "le",
    "eq", "ne", "gt", "ge",
)  # fmt: skip
UNARY: tuple[Any, ...] = (
    operator.neg, operator.pos, abs, operator.invert, bool, int, float, hash, math.trunc, round, math.floor, math.ceil,
    str, repr, format, lambda n: f"{n:>5}", lambda n: divmod(n, 2),
    lambda n: divmod(7, n), lambda n: {n: 1}, lambda n: 1 if n else 0,
)  # fmt: skip


@pytest.mark.parametrize("value", [3, 0.5])
def test_whatever_is_computed_of_a_number_looks_at_it(value: Any) -> None:
    calls = [*UNARY]
    for name in BINARY:
        function = getattr(operator, name)
        calls += [lambda n, f=function: f(n, 2), lambda n, f=function: f(2, n)]
    asked = 0
    for call in calls:
        try:
            expected = call(value)
        except TypeError:  # of floats
            continue
        made = Trace()
        found = call(launch_trace._stand_in(made, "n", value))
        assert found == expected and made.read == {"n"} and type(found) is type(expected)
        asked += 1
    assert asked == (len(calls) if type(value) is int else 45)


def test_numbers_among_sizes_are_plain_and_looked_at() -> None:
    made = Trace()
    numbers = [launch_trace._stand_in(made, name, value) for name, value in (("n", 3), ("s", 0.5), ("b", True))]
    assert made.read == {"b"}
    found = launch_trace._plain([numbers[0], (numbers[1], 7), numbers[2]])
    assert found == (3, (0.5, 7), True) and made.read == {"b", "n", "s"}
    assert [type(each) for each in (found[0], found[1][0])] == [int, float]


def test_what_a_host_function_has_of_torch() -> None:
    x = tensor(6, 4)
    made = launch_trace._Torch(Trace(), [3, x])
    assert made.float16 is torch.float16
    for name in ("is_available", "current_device", "get_device_properties"):
        assert getattr(made.cuda, name) is getattr(torch.cuda, name)
    with made.cuda.device_of(x):
        pass
    made.zeros((2, 3), dtype=torch.int32, device=x.device)
    found = made.empty((2, 3), dtype=torch.int32, device=x.device)
    assert (found.of, found.shape, found.stride(0), found.data_ptr(), found.device) == ("made1", (2, 3), 3, 0, x.device)
    with pytest.raises(Untraceable, match=r"torch\.sin"):
        made.sin
    with pytest.raises(Untraceable, match="a tensor on cpu, beside arguments on None"):
        launch_trace._Torch(Trace(), [3]).zeros((2,), dtype=torch.int32, device="cpu")
