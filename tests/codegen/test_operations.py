"""Every operation's Triton text: run in Triton's interpreter against NumPy, and compiled with both Tritons."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.codegen.triton_source import EmittedModule
from tiledsl.math_functions import MATH_FUNCTIONS

N = 16
INTS = np.array([-7, 5, 0, 3, -1, 2, 9, -128, 127, 1, 4, -3, 6, 11, -20, 8])
UNSIGNED = np.abs(INTS)
FLOATS = np.array([-1.5, 0.25, 2.0, -0.0, 3.5, 0.7, 1.0, -2.5, 4.0, 0.1, -0.9, 8.0, 0.5, 1.25, -3.0, 6.0])


@dataclass
class Case:
    """A body over loaded %x (and %y); `%r` is stored. `expected` works on NumPy arrays."""

    name: str
    dtype: str
    body: str
    expected: Callable[..., Any]
    out: str = ""
    operands: int = 1
    out_size: int = N
    interpret: bool = True

    def text(self) -> str:
        out = self.out or self.dtype
        loads = "\n".join(
            f"    %{name} = tile.load %{name.upper()}[%i] {{guarded = true}} : tensor<{N}x{self.dtype}>"
            for name in ("x", "y")[: self.operands]
        )
        return f"""
tile.func {{sym_name = "program", parameters = ("X", "Y", "OUT"), outputs = (2,)}}
    (%X: buffer<{N}*{self.dtype}, global>, %Y: buffer<{N}*{self.dtype}, global>,
     %OUT: buffer<{self.out_size}*{out}, global>) {{
  %one = arith.constant {{value = 1}} : int32
  tile.kernel [%one] (%bx: int32) {{
    %i = tensor.iota {{axis = 0}} : tensor<{N}xint32>
    %c0 = arith.constant {{value = 0}} : int32
    %c1 = arith.constant {{value = 1}} : int32
    %c3 = arith.constant {{value = 3}} : int32
{loads}
    {self.body}
    %o = tensor.iota {{axis = 0}} : tensor<{self.out_size}xint32>
    tile.store %r, %OUT[%o] {{guarded = true}}
  }}
}}"""

    def inputs(self) -> list[np.ndarray]:
        if self.dtype == "bool":
            return [INTS > 0, FLOATS > 0]
        if self.dtype.startswith("float"):
            return [FLOATS.astype(self.dtype), FLOATS[::-1].astype(self.dtype)]
        x = (UNSIGNED if self.dtype.startswith("uint") else INTS).astype(self.dtype)
        return [x, np.where(x[::-1] == 0, x.dtype.type(1), x[::-1])]


def tensor_of(dtype: str, size: int = N) -> str:
    return f"tensor<{size}x{dtype}>"


def constant(name: str, value: Any, dtype: str) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"%{name} = arith.constant {{value = {text}}} : {dtype}\n    "


def _truncating(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (np.sign(x) * np.sign(y) * (np.abs(x.astype(np.int64)) // np.abs(y.astype(np.int64)))).astype(x.dtype)


CASES: list[Case] = []


def binary(op: str, dtypes: list[str], expected: Callable[..., Any], attributes: str = "", out: str = "") -> None:
    for dtype in dtypes:
        function_name = getattr(expected, "__name__", "").strip("<>")
        body = f"%r = arith.{op} %x, %y{attributes} : {tensor_of(out or dtype)}"
        CASES.append(Case(f"{op}-{function_name}-{dtype}", dtype, body, expected, out, operands=2))


def with_constant(op: str, dtype: str, value: Any, expected: Callable[..., Any]) -> None:
    body = constant("c", value, dtype) + f"%r = arith.{op} %x, %c : {tensor_of(dtype)}"
    CASES.append(Case(f"{op}-{value}-{dtype}", dtype, body, expected))


SIGNED, FLOATING = ["int8", "int16", "int32", "int64"], ["float16", "float32", "float64"]
EVERY = [*SIGNED, "uint8", "uint16", "uint32", "uint64", *FLOATING]
binary("add", EVERY, lambda x, y: x + y)
binary("sub", ["int8", "uint8", "int64", "float16"], lambda x, y: x - y)
binary("mul", ["int8", "uint32", "int64", "float16", "float64"], lambda x, y: x * y)
binary("truncdiv", ["int32", "int64", "uint8"], _truncating)
binary("truncmod", ["int32", "int64"], lambda x, y: x - _truncating(x, y) * y)
binary("div", ["float32"], lambda x, y: x / np.where(y == 0, np.nan, y))
binary("max", EVERY, np.maximum)
binary("min", ["int32", "float16"], np.minimum)
for bit_op, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
    binary(bit_op, ["int32", "uint16", "bool"], function)
binary("max", ["bool"], np.logical_or)
for predicate, function in (("eq", np.equal), ("lt", np.less), ("ge", np.greater_equal)):
    binary("cmp", ["int32", "uint8", "float16", "float32"], function, f' {{predicate = "{predicate}"}}', "bool")
for dtype in ("int8", "uint8", "int64", "float16", "float32", "float64"):
    number: Any = 3.0 if dtype.startswith("float") else 3
    with_constant("add", dtype, number, lambda x: x + x.dtype.type(3))
    with_constant("max", dtype, number, lambda x: np.maximum(x, x.dtype.type(3)))
    with_constant("mul", dtype, number, lambda x: x * x.dtype.type(3))
with_constant("add", "int64", 1 << 40, lambda x: x + (1 << 40))
with_constant("add", "float64", 0.1, lambda x: x + 0.1)
with_constant("mul", "float32", 0.10000000149011612, lambda x: x * np.float32(0.1))
with_constant("shr", "int32", 2, lambda x: x >> 2)
with_constant("shr", "uint8", 2, lambda x: x >> 2)
with_constant("shl", "int32", 2, lambda x: x << 2)
for dtype in ("float16", "float32", "float64"):  # as bits: Triton 3.6 makes -0.0 a 0.0
    bits = dtype.replace("float", "int")
    body = '%m = arith.cmp %i, %c3 {predicate = "lt"} : tensor<16xbool>\n    ' + constant("b", -0.0, dtype)
    body += f"%s = arith.select %m, %x, %b : {tensor_of(dtype)}\n    %r = arith.bitcast %s : {tensor_of(bits)}"
    CASES.append(
        Case(
            f"negative-zero-{dtype}",
            dtype,
            body,
            lambda x, b=bits: np.where(np.arange(N) < 3, x, x.dtype.type(-0.0)).view(b),
            bits,
        )
    )
for dtype in ("float16", "float64", "int64", "uint8", "int32", "float32"):
    one, two = (1.0, 2.5) if dtype.startswith("float") else (1, 2)
    choose = '%m = arith.cmp %i, %c3 {predicate = "lt"} : tensor<16xbool>\n    '
    body = (
        choose
        + constant("a", one, dtype)
        + constant("b", two, dtype)
        + f"%r = arith.select %m, %a, %b : {tensor_of(dtype)}"
    )
    CASES.append(
        Case(f"select-constants-{dtype}", dtype, body, lambda x, a=one, b=two: np.where(np.arange(N) < 3, a, b))
    )
    body = choose + constant("b", two, dtype) + f"%r = arith.select %m, %x, %b : {tensor_of(dtype)}"
    CASES.append(
        Case(
            f"select-{dtype}",
            dtype,
            body,
            lambda x, b=two: np.where(np.arange(N) < 3, x, np.asarray(b).astype(x.dtype)),
        )
    )
for source, target in (
    ("float32", "float16"), ("float32", "int32"), ("int32", "float32"), ("int32", "int64"), ("int64", "int8"),
    ("uint8", "int32"), ("float16", "float64"), ("bool", "int32"), ("bool", "float32"),
):  # fmt: skip
    body = f"%r = arith.cast %x : {tensor_of(target)}"
    CASES.append(Case(f"cast-{source}-{target}", source, body, lambda x, t=target: x.astype(t), target))
for source in ("int32", "float32", "float16"):
    CASES.append(Case(f"cast-{source}-bool", source, "%r = arith.cast %x : tensor<16xbool>", lambda x: x != 0, "bool"))
CASES += [
    Case("bitcast", "float32", "%r = arith.bitcast %x : tensor<16xint32>", lambda x: x.view(np.int32), "int32"),
    Case("neg", "float32", "%r = arith.neg %x : tensor<16xfloat32>", lambda x: -x),
    Case("not-int", "int32", "%r = arith.not %x : tensor<16xint32>", lambda x: ~x),
    Case("not-bool", "bool", "%r = arith.not %x : tensor<16xbool>", lambda x: ~x),
    Case(
        "precedence",
        "int32",
        "%a = arith.sub %x, %y : tensor<16xint32>\n %b = arith.sub %y, %a : tensor<16xint32>\n"
        "%d = arith.mul %b, %c3 : tensor<16xint32>\n %e = arith.neg %d : tensor<16xint32>\n"
        "%r = arith.xor %e, %x : tensor<16xint32>",
        lambda x, y: -((y - (x - y)) * 3) ^ x,
        operands=2,
    ),
]


def _scan(function: np.ufunc, x: np.ndarray, reverse: bool) -> np.ndarray:
    return function.accumulate(x[::-1])[::-1] if reverse else function.accumulate(x)


for kind, ufunc in (("sum", np.add), ("max", np.maximum), ("min", np.minimum), ("prod", np.multiply)):
    for dtype in ("int8", "int32", "float32", "float16"):
        if kind == "prod" and dtype != "float32":
            continue
        attributes = f'{{kind = "{kind}", axis = 0}}'
        body = f"%s = tensor.reduce %x {attributes} : {dtype}\n    %r = tensor.broadcast %s : {tensor_of(dtype)}"
        CASES.append(
            Case(f"reduce-{kind}-{dtype}", dtype, body, lambda x, f=ufunc: np.full_like(x, f.reduce(x, dtype=x.dtype)))
        )
    for reverse in (False, True):
        attributes = f'{{kind = "{kind}", axis = 0, reverse = {str(reverse).lower()}}}'
        body = f"%r = tensor.scan %x {attributes} : tensor<16xfloat32>"
        CASES.append(Case(f"scan-{kind}-{reverse}", "float32", body, lambda x, f=ufunc, r=reverse: _scan(f, x, r)))
for kind, ufunc in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
    body = (
        f'%s = tensor.reduce %x {{kind = "{kind}", axis = 0}} : int32\n    %r = tensor.broadcast %s : tensor<16xint32>'
    )
    CASES.append(Case(f"reduce-{kind}", "int32", body, lambda x, f=ufunc: np.full_like(x, f.reduce(x))))
CASES += [
    Case(
        "reduce-bool", "bool",
        '%s = tensor.reduce %x {kind = "max", axis = 0} : bool\n %r = tensor.broadcast %s : tensor<16xbool>',
        lambda x: np.full_like(x, x.any()),
    ),
    Case(
        "absmax", "float32",
        '%s = tensor.reduce %x {kind = "absmax", axis = 0} : float32\n %r = tensor.broadcast %s : tensor<16xfloat32>',
        lambda x: np.full_like(x, np.abs(x).max()),
    ),
    Case(
        "shapes", "float32",
        "%a = tensor.reshape %x : tensor<16x1xfloat32>\n %b = tensor.reshape %x : tensor<1x16xfloat32>\n"
        "%p = arith.mul %a, %b : tensor<16x16xfloat32>\n"
        "%t = tensor.transpose %p {permutation = (1, 0)} : tensor<16x16xfloat32>\n"
        "%q = tensor.reshape %t : tensor<4x4x16xfloat32>\n"
        "%u = tensor.transpose %q {permutation = (2, 0, 1)} : tensor<16x4x4xfloat32>\n"
        "%r = tensor.reshape %u : tensor<256xfloat32>",
        lambda x: np.outer(x, x).T.reshape(4, 4, 16).transpose(2, 0, 1).reshape(256), out_size=256,
    ),
    Case(
        "one-element", "float16",
        '%s = tensor.reduce %x {kind = "max", axis = 0} : float16\n %a = tensor.reshape %s : tensor<1x1xfloat16>\n'
        "%b = tensor.broadcast %a : tensor<4x4xfloat16>\n %d = tensor.reshape %b : tensor<16xfloat16>\n"
        "%e = tensor.reshape %a : float16\n %r = arith.add %d, %e : tensor<16xfloat16>",
        lambda x: np.full_like(x, x.max() * 2),
    ),
    Case(  # a comparison without a name is written where it is used
        "one-condition", "int32",
        "%a = tensor.reshape %x : tensor<1x16xint32>\n"
        '%s = tensor.reduce %a {kind = "max", axis = 1} : tensor<1xint32>\n'
        "%0 = arith.cast %s : tensor<1xbool>\n %d = tensor.reshape %0 : bool\n"
        "%e = arith.cast %d : int32\n %r = arith.add %x, %e : tensor<16xint32>",
        lambda x: x + 1,
    ),
    Case(
        "gather", "float32",
        "%c15 = arith.constant {value = 15} : int32\n %j = arith.sub %c15, %i : tensor<16xint32>\n"
        "%r = tensor.gather %x, %j {axis = 0} : tensor<16xfloat32>",
        lambda x: x[::-1],
    ),
]  # fmt: skip
for name, function in (
    ("exp", np.exp), ("exp2", np.exp2), ("sin", np.sin), ("cos", np.cos), ("abs", np.abs), ("floor", np.floor),
    ("ceil", np.ceil), ("sigmoid", lambda x: 1 / (1 + np.exp(-x))), ("isfinite", np.isfinite),
):  # fmt: skip
    out = "bool" if name == "isfinite" else ""
    body = f'%r = arith.math [%x] {{function = "{name}"}} : {tensor_of(out or "float32")}'
    CASES.append(Case(f"math-{name}", "float32", body, function, out))
CASES.append(Case("math-abs-int", "int32", '%r = arith.math [%x] {function = "abs"} : tensor<16xint32>', np.abs))
for name in ("log", "log2", "sqrt", "rsqrt"):
    exact = {"log": np.log, "log2": np.log2, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}[name]
    body = (
        '%p = arith.math [%x] {function = "exp"} : tensor<16xfloat32>\n'
        f'    %r = arith.math [%p] {{function = "{name}"}} : tensor<16xfloat32>'
    )
    CASES.append(Case(f"math-{name}", "float32", body, lambda x, f=exact: f(np.exp(x))))
LIBDEVICE = {
    each.name: each for each in MATH_FUNCTIONS.values() if each.spelling.startswith("libdevice.")
    and each.takes in ("floats", "rounding", "test", "wide floats") and each.name != "ldexp"
}  # fmt: skip
for dtype in ("float32", "float64"):
    for name, record in LIBDEVICE.items():
        if dtype == "float64" and record.arity == 1 and name not in ("tanh", "isnan"):
            continue
        out = "bool" if record.takes == "test" else ""
        if dtype == "float64" and name.endswith(("_rz", "_ru", "_rd")):
            continue
        given = ", ".join(["%x", "%y", "%x"][: record.arity])
        body = f'%r = arith.math [{given}] {{function = "{name}"}} : {tensor_of(out or dtype)}'
        operands = min(record.arity, 2)
        CASES.append(Case(f"libdevice-{name}-{dtype}", dtype, body, lambda x, *_: x, out, operands, interpret=False))
for name, count in (("erf", 1), ("fma", 3), ("clamp", 3)):
    body = f'%r = arith.math [{", ".join(["%x"] * count)}] {{function = "{name}"}} : tensor<16xfloat32>'
    CASES.append(Case(f"math-{name}", "float32", body, lambda x: x, interpret=False))
for name in ("popcount", "clz"):
    body = f'%r = arith.math [%x] {{function = "{name}"}} : tensor<16xint32>'
    CASES.append(Case(f"libdevice-{name}", "int32", body, lambda x: x, interpret=False))


@pytest.fixture(scope="module")
def modules(lowered: Callable[..., EmittedModule]) -> dict[str, EmittedModule]:
    return {case.name: lowered(case.text()) for case in CASES}


def test_results(modules: dict[str, EmittedModule], run_modules: Callable[..., Any]) -> None:
    cases = [case for case in CASES if case.interpret]
    jobs = [(modules[case.name], dict(zip(("X", "Y"), case.inputs(), strict=True))) for case in cases]
    failed = []
    for case, got in zip(cases, run_modules(jobs), strict=True):
        with np.errstate(all="ignore"):
            expected = np.asarray(case.expected(*case.inputs()[: case.operands]))
        if isinstance(got, str):
            failed.append(f"{case.name}: {got}\n{modules[case.name].source}")
            continue
        tolerance = 2e-3 if (case.out or case.dtype) == "float16" else 1e-5
        good = (got[0] == expected) | np.isclose(got[0].astype(float), expected.astype(float), tolerance, tolerance)
        good |= np.isnan(expected.astype(float)) | (case.name.startswith("div") & ~np.isfinite(got[0].astype(float)))
        if not good.all():
            failed.append(f"{case.name}: got {got[0]}, expected {expected}\n{modules[case.name].source}")
    assert not failed, "\n".join(failed)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_both_tritons_accept(
    modules: dict[str, EmittedModule], compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    made = compile_modules(modules, full=False, **options)
    failed = [f"{name}: {error}\n{modules[name].source}" for name, error, _ in made if error]
    linked = {
        name: module for name, module in modules.items() if name in ("libdevice-pow-float64", "libdevice-isnan-float32")
    }
    failed += [f"{name}: {error}" for name, error, _ in compile_modules(linked, **options) if error]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_numbers_of_float64_stay_what_they_are(
    compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    """Triton 3.6 makes a float32 of a number in a comparison, a selection or a store, and converts that."""

    @T.prim_func
    def numbers(X: T.Tensor((16,), "float64"), Y: T.Tensor((4, 16), "float64")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                Y[0, i] = T.if_then_else(X[i] > 0.1, X[i], 0.1)
                Y[1, i] = T.if_then_else(X[i] == 0.1, 0.1, 0.7)
                Y[2, i] = T.max(X[i] + 0.1, 0.7) * 0.1
                Y[3, i] = 0.7

    module = tiledsl.compile(numbers, target="cuda:90").module
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    ((_, error, ttgir),) = compile_modules({"numbers": module}, full=False, **options)
    assert not error, error
    assert set(re.findall(r"dense<([\d.e+-]+)> : tensor<16xf64", ttgir)) == {"1.000000e-01", "0.69999999999999996"}
