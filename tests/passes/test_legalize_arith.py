"""legalize-arith: what becomes of each type, and of tiledsl.passes.legalize_arith.compare_and_swap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.ir_cases import after, filecheck, program
from tests.support import executor
from tests.support.executor import run
from tests.support.programs import check_pass, inputs_for, programs
from tiledsl.dialects import arith, tile
from tiledsl.dialects.arith import constant_of
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.canonicalize import Canonicalize
from tiledsl.passes.dce import Dce
from tiledsl.passes.legalize_arith import LegalizeArith
from tiledsl.passes.legalize_arith.dtypes import question
from tiledsl.runtime.target import Target

INTERPRET = Target("interpret")


def check(body: str, tolerance: float = 0.0, target: Target | None = None) -> None:
    made = program(body, target=target)
    check_pass(LegalizeArith(), made.root, inputs_for(made.root, 1), tolerance=tolerance, target=target)


def test_division_of_what_is_positive_truncates() -> None:
    body = "%q = arith.floordiv %bx, %m : int32\n%r = arith.floormod %bx, %c3 : int32\ntile.store %q, %N[%r]"
    filecheck(
        after(LegalizeArith(), body),
        """
        %q = arith.truncdiv %bx, %m : int32
        %r = arith.truncmod %bx, %c3 : int32
        tile.store %q, %N[%r]
        """,
    )


@pytest.mark.parametrize(("number", "amount"), [(1, 0), (2, 1), (8, 3), (1 << 30, 30)])
def test_division_by_powers_of_two_shifts_and_masks(number: int, amount: int) -> None:
    body = f"%q = arith.floordiv %s, %c{number} : int32\n%r = arith.floormod %s, %c{number} : int32\n"
    filecheck(
        after(LegalizeArith(), body + "tile.store %q, %N[%r]"),
        f"""
        %q = arith.shr %s, %c{amount} : int32
        %r = arith.and %s, %c{number - 1} : int32
        tile.store %q, %N[%r]
        """,
    )


def test_division_by_a_positive_number_corrects_negative_remainders() -> None:
    filecheck(
        after(LegalizeArith(), "%r = arith.floormod %s, %c7 : int32\ntile.store %r, %N[%bx]"),
        """
        %0 = arith.truncmod %s, %c7 : int32
        %1 = arith.cmp %0, %c0 {predicate = "lt"} : bool
        %2 = arith.add %0, %c7 : int32
        %r = arith.select %1, %2, %0 : int32
        tile.store %r, %N[%bx]
        """,
    )


@pytest.mark.parametrize("divisor", ["%c7", "%c-7", "%c8", "%c-8", "%c1", "%t"])
@pytest.mark.parametrize("operation", ["floordiv", "floormod"])
@pytest.mark.parametrize("first", ["%c-32", "%c0"])
def test_division_of_all_signs(divisor: str, operation: str, first: str) -> None:
    check(f"""
    %n = tensor.iota {{axis = 0}} : tensor<64xint32>
    %x = arith.add %n, {first} : tensor<64xint32>
    %z = arith.cmp %bx, %c3 {{predicate = "le"}} : bool
    %u = arith.sub %bx, %c4 : int32
    %t = arith.select %z, %u, %bx : int32
    %y = arith.{operation} %x, {divisor} : tensor<64xint32>
    %o = arith.mul %bx, %c64 : int32
    %p = arith.add %o, %n : tensor<64xint32>
    tile.store %y, %N[%p]""")


@pytest.mark.parametrize(("least", "both_signs"), [(0, False), (1, True)])
def test_signs_of_divisors_are_compared_where_they_may_be_negative(least: int, both_signs: bool) -> None:
    body = f"""
    %d = arith.and %s, %c7 : int32
    %e = arith.sub %d, %c{least} : int32
    %r = arith.floormod %s, %e : int32
    tile.store %r, %N[%bx]"""
    assert any("arith.xor" in line for line in after([Canonicalize(), LegalizeArith()], body)) is both_signs


def test_sixteen_bit_functions_and_divisions_are_computed_in_float32() -> None:
    body = """
    %h = arith.cast %f : float16
    %e = arith.math [%h] {function = "exp"} : float16
    %d = arith.div %e, %h : float16
    %a = arith.add %d, %h : float16
    %r = arith.cast %a : float32
    tile.store %r, %A[%bx, %bx]"""
    filecheck(
        after(LegalizeArith(), body),
        """
        %h = arith.cast %f : float16
        %0 = arith.cast %h : float32
        %1 = arith.math [%0] {function = "exp"} : float32
        %e = arith.cast %1 : float16
        %2 = arith.cast %e : float32
        %3 = arith.cast %h : float32
        %4 = arith.div %2, %3 : float32
        %d = arith.cast %4 : float16
        %a = arith.add %d, %h : float16
        %r = arith.cast %a : float32
        tile.store %r, %A[%bx, %bx]
        """,
    )


@pytest.mark.parametrize("function", ["exp", "exp2"])
def test_exponents_are_subtracted_before_they_are_scaled(function: str) -> None:
    body = f"""
    %c = arith.constant {{value = 0.5}} : float32
    %x = tile.load %A[%bx, %bx] : float32
    %a = arith.mul %x, %c : float32
    %b = arith.mul %f, %c : float32
    %d = arith.sub %a, %b : float32
    %e = arith.math [%d] {{function = "{function}"}} : float32
    tile.store %e, %A[%bx, %bx]"""
    lines = after([LegalizeArith(), Dce()], body)
    assert lines[-4:] == [
        "%0 = arith.sub %x, %f : float32",
        "%1 = arith.mul %0, %c0p5 : float32",
        f'%e = arith.math [%1] {{function = "{function}"}} : float32',
        "tile.store %e, %A[%bx, %bx]",
    ]
    one_factor_is_a_tile = """
    %c = arith.constant {value = 0.5} : float32
    %t = arith.constant {value = 0.5} : tensor<4xfloat32>
    %i = tensor.iota {axis = 0} : tensor<4xint32>
    %a = arith.mul %f, %c : float32
    %b = arith.mul %f, %t : tensor<4xfloat32>
    %d = arith.sub %a, %b : tensor<4xfloat32>
    %e = arith.math [%d] {function = "exp"} : tensor<4xfloat32>
    tile.store %e, %A[%bx, %i]"""
    assert "%d = arith.sub %a, %b : tensor<4xfloat32>" in after([LegalizeArith(), Dce()], one_factor_is_a_tile)
    a_row_is_scaled_once = """
    %c = arith.constant {value = 0.5} : float32
    %i = tensor.iota {axis = 0} : tensor<4xint32>
    %x = tile.load %A[%bx, %i] : tensor<4xfloat32>
    %a = arith.mul %x, %c : tensor<4xfloat32>
    %b = arith.mul %f, %c : float32
    %d = arith.sub %a, %b : tensor<4xfloat32>
    %e = arith.math [%d] {function = "exp"} : tensor<4xfloat32>
    tile.store %e, %A[%bx, %i]"""
    for text in (a_row_is_scaled_once, a_row_is_scaled_once.replace("%a, %b", "%b, %a")):
        assert "%b = arith.mul %f, %c0p5 : float32" in after([LegalizeArith(), Dce()], text)
    other = body.replace("%f, %c :", "%f, %x :")  # another factor, of one or of both no number
    for each in (other, other.replace("%x, %c :", "%x, %f :")):
        assert "%d = arith.sub %a, %b : float32" in after([LegalizeArith(), Dce()], each)


def test_bfloat16_sums_stay_on_a_gpu_and_are_widened_in_the_interpreter() -> None:
    body = """
    %h = arith.cast %f : bfloat16
    %a = arith.add %h, %h : bfloat16
    %r = arith.cast %a : float32
    tile.store %r, %A[%bx, %bx]"""
    assert "%a = arith.add %h, %h : bfloat16" in after(LegalizeArith(), body)
    lines = after(LegalizeArith(), body, target=INTERPRET)
    assert not any("arith.add" in line and "bfloat16" in line for line in lines)
    check(body, target=INTERPRET)


def test_eight_bit_floats_are_never_computed_in() -> None:
    body = """
    %h = arith.cast %s : float8_e4m3fn
    %a = arith.mul %h, %h : float8_e4m3fn
    %c = arith.cmp %a, %h {predicate = "lt"} : bool
    %r = arith.cast %a : float32
    %g = arith.select %c, %r, %f : float32
    tile.store %g, %A[%bx, %bx]"""
    lines = after(LegalizeArith(), body)
    filecheck(
        lines[:2],
        """
        %0 = arith.cast %s : float32
        %h = arith.cast %0 : float8_e4m3fn
        """,
    )
    assert not any(("arith.mul" in line or "arith.cmp" in line) and "float8" in line for line in lines)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "abssum", "absmax"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "float32", "int32"])
def test_reductions_of_narrow_types_are_made_in_32_bits(kind: str, dtype: str) -> None:
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x8xint32>
    %x = tile.load %A[%i, %j] : tensor<4x8xfloat32>
    %h = arith.cast %x : tensor<4x8x{dtype}>
    %y = tensor.reduce %h {{kind = "{kind}", axis = 1}} : tensor<4x{dtype}>
    %r = arith.cast %y : tensor<4xfloat32>
    %o = tensor.iota {{axis = 0}} : tensor<4xint32>
    tile.store %r, %A[%o, %bx]"""
    (line,) = [line for line in after(LegalizeArith(), body) if "tensor.reduce" in line]
    assert "abs" not in line and line.endswith("32>")
    check(body)


@pytest.mark.parametrize("propagate", ["", ", propagate_nan = true"])
def test_maxima_of_absolute_values_keep_nan_where_they_should(propagate: str) -> None:
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<4xint32>
    %x = tile.load %A[%bx, %i] : tensor<4xfloat32>
    %y = tensor.reduce %x {{kind = "absmax", axis = 0{propagate}}} : float32
    tile.store %y, %A[%bx, %bx]"""
    lines = after(LegalizeArith(), body)
    assert any(f'{{kind = "max", axis = 0{propagate}}}' in line for line in lines), lines


@pytest.mark.parametrize("kind", ["and", "or", "xor", "max", "min"])
def test_reductions_of_bools(kind: str) -> None:
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<8xint32>
    %x = tile.load %N[%i] : tensor<8xint32>
    %c = arith.cmp %x, %c0 {{predicate = "gt"}} : tensor<8xbool>
    %y = tensor.reduce %c {{kind = "{kind}", axis = 0}} : bool
    %r = arith.cast %y : int32
    tile.store %r, %N[%bx]"""
    assert any("tensor.reduce" in line and line.endswith("int32") for line in after(LegalizeArith(), body))
    check(body)


def test_extrema_and_comparisons_of_bools() -> None:
    body = """
    %c = arith.cmp %s, %bx {predicate = "lt"} : bool
    %x = arith.max %c, %b : bool
    %y = arith.min %x, %c : bool
    %z = arith.cmp %y, %b {predicate = "le"} : bool
    %u = arith.cast %s : bool
    %v = arith.and %z, %u : bool
    %r = arith.cast %v : int32
    tile.store %r, %N[%bx]"""
    lines = after(LegalizeArith(), body)
    assert "%x = arith.or %c, %b : bool" in lines and "%y = arith.and %x, %c : bool" in lines
    assert '%u = arith.cmp %s, %c0 {predicate = "ne"} : bool' in lines
    check(body)


@pytest.mark.parametrize("function", ["sigmoid", "isnan", "isinf", "isfinite"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("number", [0.5, math.inf, -math.inf, math.nan])
def test_functions_are_spelt_out(function: str, dtype: str, number: float) -> None:
    out = dtype if function == "sigmoid" else "bool"
    body = f"""
    %n = arith.constant {{value = {number!r}}} : float32
    %x = arith.cast %n : {dtype}
    %y = arith.math [%x] {{function = "{function}"}} : {out}
    %r = arith.cast %y : float32
    tile.store %r, %A[%bx, %bx]"""
    assert not any(f'"{function}"' in line for line in after(LegalizeArith(), body))
    check(body, tolerance=1e-3)


@pytest.mark.parametrize(
    ("dtype", "shifts"), [("int32", [1, 2, 4, 8, 16, 1, 2, 4, 24]), ("uint64", [1, 2, 4, 8, 16, 32, 1, 2, 4, 56])]
)
def test_bits_are_counted_by_as_few_shifts_as_there_are(dtype: str, shifts: list[int]) -> None:
    """On a target that has no function for it."""
    amd = Target.parse("hip:gfx942")
    body = f"""
    %a = arith.cast %s : {dtype}
    %x = arith.math [%a] {{function = "clz"}} : {dtype}
    %y = arith.cast %x : int32
    tile.store %y, %N[%bx]"""
    lines = after(LegalizeArith(), body, target=amd)
    assert [int(line.partition(", %c")[2].partition(" ")[0]) for line in lines if " arith.shr " in line] == shifts
    check(body, target=amd)


def test_clamp_works_on_integers_too() -> None:
    body = """
    %y = arith.math [%s, %c2, %c5] {function = "clamp"} : int32
    tile.store %y, %N[%bx]"""
    filecheck(
        after(LegalizeArith(), body),
        """
        %0 = arith.max %s, %c2 : int32
        %y = arith.min %0, %c5 : int32
        tile.store %y, %N[%bx]
        """,
    )


def _dot(a: str, b: str, c: str, precision: str = "") -> str:
    return f"""
    %i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
    %xf = tile.load %A[%i, %j] : tensor<16x16xfloat32>
    %x = arith.cast %xf : tensor<16x16x{a}>
    %y = arith.cast %xf : tensor<16x16x{b}>
    %whole = arith.cast %xf : tensor<16x16xint32>
    %z = arith.cast %whole : tensor<16x16x{c}>
    %d = tensor.dot %x, %y, %z {precision} : tensor<16x16x{c}>
    %r = arith.cast %d : tensor<16x16xfloat32>
    tile.store %r, %B[%i, %j]"""


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("float16", "float16", "float32"), ("float16", "float32")),
        (("float16", "float16", "float16"), ("float16", "float16")),
        (("bfloat16", "bfloat16", "bfloat16"), ("bfloat16", "float32")),
        (("bfloat16", "bfloat16", "float16"), ("bfloat16", "float32")),
        (("float16", "bfloat16", "float32"), ("float32", "float32")),
        (("float8_e4m3fn", "float8_e5m2", "float32"), ("float16", "float32")),
        (("float16", "float8_e5m2", "float32"), ("float16", "float32")),
        (("int8", "int8", "int32"), ("int8", "int32")),
        (("int8", "int8", "float32"), ("int8", "int32")),
        (("float16", "float16", "int32"), ("float16", "float32")),
    ],
)
def test_dots_get_types_that_triton_has(types: tuple[str, str, str], expected: tuple[str, str]) -> None:
    made = program(_dot(*types))
    LegalizeArith().run(made)
    (dot,) = [op for op in made.root.walk() if op.name == "tensor.dot"]
    assert (dot.operands[0].dtype, dot.operands[1].dtype, dot.result.dtype) == (expected[0], *expected)
    if types[2] != "int32" or expected[1] == "int32":
        check(_dot(*types), tolerance=1e-2)


def test_dots_in_the_interpreter_are_float32() -> None:
    lines = after(LegalizeArith(), _dot("bfloat16", "bfloat16", "float32"), target=INTERPRET)
    (line,) = [line for line in lines if "tensor.dot" in line]
    assert 'precision = "ieee"' in line
    check(_dot("bfloat16", "bfloat16", "float32"), target=INTERPRET)


@settings(max_examples=40)
@given(programs(), st.integers(0, 99))
def test_meaning_stays(func, seed) -> None:  # type: ignore[no-untyped-def]
    check_pass(LegalizeArith(), func, inputs_for(func, seed), tolerance=1e-3)


@pytest.mark.parametrize(("operation", "number"), [("floordiv", 8), ("floormod", 8), ("shr", 40)])
def test_a_scalar_beside_a_constant_tensor_gives_a_tensor(operation: str, number: int) -> None:
    body = f"""%t = arith.constant {{value = {number}}} : tensor<4xint32>
    %r = arith.{operation} %s, %t : tensor<4xint32>
    %y = arith.neg %r : tensor<4xint32>
    %i = tensor.iota {{axis = 0}} : tensor<4xint32>
    tile.store %y, %N[%i]"""
    check(body)


def product_of(a: str, b: str, inner: int, out: str) -> Program:
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<16x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
    %k = tensor.iota {{axis = 1}} : tensor<1x{inner}xint32>
    %l = tensor.iota {{axis = 0}} : tensor<{inner}x1xint32>
    %x = tile.load %X[%i, %k] : tensor<16x{inner}x{a}>
    %y = tile.load %Y[%l, %j] : tensor<{inner}x16x{b}>
    %z = tile.load %Z[%i, %j] : tensor<16x16x{out}>
    %d = tensor.dot %x, %y, %z : tensor<16x16x{out}>
    tile.store %d, %Z[%i, %j]"""
    return program(body, parameters=f"X: 16*{inner}*{a}, Y: {inner}*16*{b}, Z: 16*16*{out}", grid=(1,))


@pytest.mark.parametrize("out", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize(
    ("a", "b", "inner"),
    [
        ("int32", "int32", 16),
        ("uint8", "int8", 16),
        ("int16", "int8", 1024),
        ("int16", "uint16", 16),
        ("uint32", "int8", 16),
    ],
)
def test_products_of_parts_are_those_of_whole_integers(a: str, b: str, inner: int, out: str) -> None:
    """Of numbers up to the ends of their types: integers wrap, and floats round the exact sum."""
    made = product_of(a, b, inner, out)
    LegalizeArith().run(made)
    generator = np.random.default_rng(3)
    inputs = []
    for dtype, shape in ((a, (16, inner)), (b, (inner, 16))):
        info = np.iinfo(dtype)
        numbers = generator.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
        numbers[0], numbers[:, 0] = info.min, info.min
        inputs.append(numbers)
    expected = inputs[0].astype(object) @ inputs[1].astype(object) + 3
    inputs.append(np.full((16, 16), 3, out))
    run(made.root, inputs)
    if out.startswith("int"):
        bits = np.iinfo(out).bits
        assert (inputs[2] == (expected + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)).all()  # wrapped
    else:
        np.testing.assert_allclose(inputs[2], expected.astype(np.float64), rtol=1e-6 if out == "float32" else 1e-14)


@pytest.mark.parametrize("types", [("float32", "float32", "float16"), ("float32", "float32", "float64")])
def test_a_dot_keeps_its_precision(types: tuple[str, str, str]) -> None:
    lines = after(LegalizeArith(), _dot(*types, precision='{precision = "ieee"}'))
    filecheck(lines, 'CHECK: tensor.dot {{.*}} {precision = "ieee"}')


@pytest.mark.parametrize(
    ("kind", "scope", "shape", "dtype", "expected"),
    [
        ("exchange", "global", "tensor<8x{}>", "int32", ("atomic.exchange.tile", ("int32",))),
        ("exchange", "global", "tensor<8x{}>", "float64", ("atomic.exchange.tile", ("float64",))),
        ("exchange", "global", "tensor<8x{}>", "float16", ("atomic.exchange.release", ("float16",))),
        ("exchange", "global", "{}", "int32", ("atomic.exchange.release", ("int32",))),
        ("store", "global", "tensor<8x{}>", "int32", ("atomic.store.tile", ("int32",))),
        ("add", "global", "tensor<8x{}>", "int32", ("atomic.add.release", ("int32",))),
        ("add", "shared", "tensor<8x{}>", "int32", None),
    ],
)
def test_what_atomics_ask_of_the_table(kind: str, scope: str, shape: str, dtype: str, expected: object) -> None:
    value = shape.format(dtype)
    index = "%i = tensor.iota {axis = 0} : tensor<8xint32>" if "tensor" in shape else "%i = arith.add %s, %s : int32"
    body = f"""%X = tile.alloc : buffer<8*{dtype}, {scope}>
    {index}
    %v = arith.constant {{value = {1 if "int" in dtype else 1.0}}} : {value}
    %o = tile.atomic %v, %X[%i] {{kind = "{kind}", semantics = "release"}} : {value}"""
    (atomic,) = [op for op in program(body).root.walk() if isinstance(op, tile.AtomicOp)]
    assert question(atomic) == expected


@pytest.mark.parametrize("number", [32, 40])
def test_shifts_by_the_width_and_more_are_those_that_wrapping_gives(number: int) -> None:
    body = f"""
    %left = arith.shl %s, %c{number} : int32
    %right = arith.shr %s, %c{number} : int32
    %u = arith.cast %s : uint32
    %k = arith.constant {{value = {number}}} : uint32
    %unsigned = arith.shr %u, %k : uint32
    %most = arith.shl %s, %c31 : int32
    tile.print [%left, %right, %unsigned, %most]"""
    filecheck(
        after(LegalizeArith(), body),
        """
        %right = arith.shr %s, %c31 : int32
        %u = arith.cast %s : uint32
        %most = arith.shl %s, %c31 : int32
        tile.print [%c0, %right, %c0, %most]
        """,
    )


@pytest.mark.parametrize(("number", "bits"), [("inf", 0x7C), ("-inf", 0xFC)])
def test_infinities_of_float8_are_made_of_bits(number: str, bits: int) -> None:
    body = f"%x = arith.constant {{value = {number}}} : tensor<4xfloat8_e5m2>\ntile.print [%x]"
    filecheck(
        after(LegalizeArith(), body),
        f"""
        %x = arith.bitcast %c{bits} : tensor<4xfloat8_e5m2>
        tile.print [%x]
        """,
    )


@pytest.mark.parametrize(("asked", "made"), [("default", "ieee"), ("tf32", "tf32"), ("ieee", "ieee")])
def test_narrow_operands_that_become_float32_keep_the_precision_that_was_asked_for(asked: str, made: str) -> None:
    lines = after(LegalizeArith(), _dot("float16", "bfloat16", "float32", f'{{precision = "{asked}"}}'))
    (line,) = [line for line in lines if "tensor.dot" in line]
    assert line.endswith(f'{{precision = "{made}"}} : tensor<16x16xfloat32>')


@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (4, 1), (1, 4, 1), (1, 1)])
def test_a_masked_cas_asks_once_whether_any_element_takes_part(shape: tuple[int, ...]) -> None:
    type = f"tensor<{'x'.join(map(str, shape))}x{{}}>" if shape else "{}"
    ramp = f"tensor.iota {{axis = {shape.index(max(shape))}}} : {type.format('int32')}" if max(shape, default=0) else ""
    body = f"""
    {f"%i = {ramp}" if shape else ""} %n = arith.add {"%i" if shape else "%s"}, %s : {type.format("int32")}
    %mask = arith.cmp %n, %c2 {{predicate = "lt"}} : {type.format("bool")}
    %x = arith.constant {{value = 7}} : {type.format("int32")}
    %c = arith.constant {{value = 3}} : {type.format("int32")}
    %old = tile.atomic %x, %N[%n] mask=%mask compare=%c {{kind = "cas"}} : {type.format("int32")}
    tile.store %old, %N[%n]"""
    lines = after(LegalizeArith(), body)
    asked = next(line for line in lines if line.startswith("scf.if") or " = scf.if" in line)
    condition = asked.partition("scf.if ")[2].split()[0]
    assert sum("tensor.reduce" in line for line in lines) == sum(size > 1 for size in shape)
    (made,) = [line for line in lines if line.startswith(f"{condition} = ")]
    assert made.endswith(" : bool")
    assert not any("mask=" in line for line in lines if "tile.atomic" in line)


@pytest.mark.parametrize("shapes", [("4", "4"), ("4", "1"), ("1", "4")])
def test_a_cas_without_a_mask_compares_tiles_of_its_shape(shapes: tuple[str, str]) -> None:
    values, compared = shapes
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<4xint32>
    %x = arith.constant {{value = 7}} : tensor<{values}xint32>
    %c = arith.constant {{value = 3}} : tensor<{compared}xint32>
    %old = tile.atomic %x, %N[%i] compare=%c {{kind = "cas"}} : tensor<4xint32>
    tile.store %old, %N[%i]"""
    made = program(body)
    LegalizeArith().run(made)
    (cas,) = [op for op in made.root.walk() if isinstance(op, tile.AtomicOp)]
    assert cas.compare is not None
    assert cas.value.shape == cas.compare.shape == (4,)


def test_halves_of_a_sum_need_no_more_bits_than_a_float_has() -> None:
    made = product_of("int32", "int32", 2048, "float64")
    LegalizeArith().run(made)
    x, y, total = np.zeros((16, 2048), np.int32), np.ones((2048, 16), np.int32), np.zeros((16, 16))
    x[:, :1023], x[:, 1023:2046], x[:, 2046], y[:2046] = 2**28 - 1, 1 - 2**28, 1, 2**28 - 1
    run(made.root, [x, y, total])
    assert (total == 1).all()


def test_products_of_parts_are_added_to_what_there_is() -> None:
    """By the product itself, where nothing is shifted; those of two parts and one take one addition."""
    made = product_of("uint8", "int8", 16, "int32")
    LegalizeArith().run(made)
    assert sum(isinstance(op, arith.AddOp) for op in made.root.walk()) == 1


@pytest.mark.parametrize(
    ("a", "b", "out", "products", "total"),
    [
        ("uint8", "int8", "int32", 2, "int32"), ("int32", "int32", "int32", 15, "int32"),
        ("int32", "int32", "int64", 25, "int64"), ("uint8", "int8", "float32", 2, "int32"),
        ("int16", "int8", "float32", 3, "int64"), ("bool", "int16", "float32", 3, "int64"),
        ("bool", "uint8", "float32", 2, "int32"),
    ],
)  # fmt: skip
def test_what_wraps_away_is_not_multiplied_and_sums_are_as_narrow_as_they_fit(
    a: str, b: str, out: str, products: int, total: str
) -> None:
    made = product_of(a, b, 16, out)
    LegalizeArith().run(made)
    assert sum(op.name == "tensor.dot" for op in made.root.walk()) == products
    shifted = [op.result.dtype for op in made.root.walk() if isinstance(op, arith.ShlOp)]
    assert shifted and set(shifted) == {total}


@pytest.mark.parametrize(
    ("a", "b", "out", "halves"),
    [
        ("uint8", "int32", "float64", 1),
        ("int16", "int32", "float64", 1),
        ("int32", "int32", "float64", 2),
        ("int32", "int32", "int64", 1),
    ],
)
def test_sums_that_an_integer_holds_are_one_sum(a: str, b: str, out: str, halves: int) -> None:
    made = product_of(a, b, 16, out)
    LegalizeArith().run(made)
    factors = [op.rhs for op in made.root.walk() if isinstance(op, arith.MulOp) and op.result.dtype == "float64"]
    assert [constant_of(each) for each in factors] == [2.0**28] * (halves - 1)


@pytest.mark.parametrize(("dtype", "bits"), [("float8_e4m3fn", 3), ("float8_e5m2", 2)])
def test_float64_is_rounded_once(dtype: str, bits: int) -> None:
    """Numbers beside the middle of two neighbours, which float32 has not, are rounded to the nearer one."""
    middles = [1 + (2 * n + 1) * 2.0 ** -(bits + 1) for n in range(3)]
    numbers = np.array([sign * (m + d) for m in middles for d in (-(2.0**-40), 0, 2.0**-40) for sign in (1, -1)])
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<18xint32>
    %x = tile.load %X[%i] : tensor<18xfloat64>
    %y = arith.cast %x : tensor<18x{dtype}>
    tile.store %y, %Y[%i]"""
    made = program(body, parameters=f"X: 18*float64, Y: 18*{dtype}", grid=(1,), target=Target("cuda", 90))
    LegalizeArith().run(made)
    found = np.zeros(18, inputs_for(made.root, 0)[1].dtype)
    executor.run(made.root, [numbers, found])
    np.testing.assert_array_equal(found.astype(np.float64), np.round(numbers * 2**bits) / 2**bits)


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ("", set()),
        ("%x = arith.sub %f, %g : float32", set()),
        ("%b = arith.mul %g, %c0.5 : float32\n%x = arith.sub %a, %b : float32", {"reassociation"}),
        ("%b = arith.mul %g, %f : float32\n%x = arith.sub %a, %b : float32", set()),
        ("%b = arith.mul %g, %c0.25 : float32\n%x = arith.sub %a, %b : float32", set()),
        ("%b = arith.mul %g, %c0.5 : float32\n%x = arith.add %a, %b : float32", set()),
        ("%x = arith.sub %a, %g : float32", set()),
    ],
)
@pytest.mark.parametrize(("function", "base"), [("exp2", True), ("exp", True), ("sin", False)])
def test_the_other_exponents_are_named(made: str, named: set[str], function: str, base: bool) -> None:
    text = f'%a = arith.mul %f, %c0.5 : float32\n%e = arith.math [%a] {{function = "exp2"}} : float32\n{made}'
    text += f'\n%y = arith.math [%x] {{function = "{function}"}} : float32' if made else ""
    found = program(text, parameters="f: float32, g: float32")
    assert LegalizeArith().allowances(found) == (named if base else set())


@pytest.mark.parametrize("function", ["sqrt", "exp2"])
@pytest.mark.parametrize(("value", "dtype"), [("%s", "int32"), ("%l", "int64")])
def test_what_the_language_converts_is_refused_as_it_is(function: str, value: str, dtype: str) -> None:
    with pytest.raises(TileError) as caught:
        LegalizeArith().run(program(f'%x = arith.math [{value}] {{function = "{function}"}} : {dtype}'))
    assert caught.value.message == f"arith.math ({function}) of {dtype}: convert to float32 first"
