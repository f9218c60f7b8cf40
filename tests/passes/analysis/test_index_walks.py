"""How indices move, against all of their values: what is claimed holds, and what holds is found."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.strided_access import Index, backwards, classify, covers_whole, digits
from tiledsl.dialects import arith, tensor
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value

SCALAR = 37  # the value of %s


def values(body: str) -> dict[str, Value]:
    made = program(body, grid=(8, 8))
    return {value.name: value for op in kernel_of(made).walk() for value in op.results}


def evaluate(value: Value) -> Any:
    """Every element of an index, as NumPy has them."""
    op, number = value.op, constant_of(value)
    if number is not None:
        return np.array(number)
    if op is None:
        return np.array(SCALAR)
    if isinstance(op, tensor.IotaOp):
        return np.arange(op.extent).reshape(op.out.shape)
    if isinstance(op, arith.CastOp):
        return evaluate(op.source)
    assert isinstance(op, arith.BinaryOp)
    return {
        arith.AddOp: np.add, arith.SubOp: np.subtract, arith.MulOp: np.multiply, arith.FloorDivOp: np.floor_divide,
        arith.FloorModOp: np.mod,
    }[type(op)](evaluate(op.lhs), evaluate(op.rhs))  # fmt: skip


def index(expression: str, extent: int) -> Value:
    """An index over %i, an iota of this extent."""
    lines = [f"%i = tensor.iota {{axis = 0}} : tensor<{extent}xint32>"]
    for number, each in enumerate(expression.split("; ")):
        name, left, right = each.split()
        operands = f"{left}, {right}".replace("_", "%i" if number == 0 else f"%v{number - 1}")
        lines.append(f"%v{number} = arith.{name} {operands} : tensor<{extent}xint32>")
    return values("\n".join(lines))[f"v{len(expression.split('; ')) - 1}"]


def meant(found: Index, dim: int) -> Any:
    """The elements that a regular index addresses by what it is said to be."""
    steps = np.arange(found.extent)
    offset = found.offset if isinstance(found.offset, int) else int(evaluate(found.offset))
    return {
        "identity": steps, "slice": offset + steps, "strided": offset + found.step * steps,
        "repeated": steps // max(1, found.step), "wrapped": steps % dim,
    }[found.kind]  # fmt: skip


EXPRESSIONS = [
    *(f"{op} _ %c{number}" for op in ("add", "sub", "mul", "floordiv", "floormod") for number in (1, 2, 3, 4)),
    *(f"{op} %c{number} _" for op in ("add", "mul") for number in (1, 2, 3)),
    *(f"mul _ %c{factor}; add _ %c{number}" for factor in (1, 2, 3) for number in (0, 1, 2, 3)),
    *(f"add _ %c{number}; mul _ %c{factor}" for factor in (2, 3) for number in (0, 1)),
    *(f"mul _ %c{factor}; sub _ %c{number}" for factor in (1, 2) for number in (0, 1)),
    "add _ %s", "add %s _", "sub _ %s", "mul _ %s", "add _ %c1; add _ %s", "mul _ %c2; add _ %s", "add _ %s; add _ %c1",
    "add _ %c1; floordiv _ %c2", "mul _ %c2; floormod _ %c4", "add _ %s; floordiv _ %c2", "sub %c3 _", "sub %s _",
]  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_walk_is_what_it_is_said_to_be(expression: str) -> None:
    for extent, dim in itertools.product((1, 2, 3, 4, 6, 8, 12), repeat=2):
        made = index(expression, extent)
        (found,) = classify([made], (dim,))
        actual = np.broadcast_to(evaluate(made), (extent,))
        if found.kind != "general":
            assert found.axis == 0 and found.extent == extent and found.value is made
            assert (meant(found, dim) == actual).all(), (found, extent, dim)
        operation = expression.split()[0]
        simple = "%s" not in expression and ";" not in expression
        if simple and operation in ("add", "sub", "mul") and dim > 1 and np.array_equal(actual, np.arange(dim)):
            assert found.kind == "identity", (found, extent, dim)
        if (
            simple
            and operation == "mul"
            and dim == extent * int(expression[-1] if "_ %" in expression else expression[6])
        ):
            assert found.kind in ("strided", "identity")
        if simple and operation == "floordiv":
            assert (found.kind == "repeated") is (extent == dim * int(expression[-1]))
        if simple and operation == "floormod":
            assert (found.kind == "wrapped") is (dim == int(expression[-1]) and extent % dim == 0)
        if expression in ("add _ %s", "add %s _"):
            assert found.kind == "slice" and found.offset.name == "s"  # type: ignore[union-attr]


def test_a_strided_walk_reaches_the_end() -> None:
    for step, offset, extent, dim in itertools.product((2, 3), range(-1, 4), (2, 4), (4, 6, 8, 12)):
        (found,) = classify([index(f"mul _ %c{step}; add _ %c{offset}", extent)], (dim,))
        assert (found.kind == "strided") is (0 <= offset < step and extent * step == dim)


def test_two_walks_along_one_axis_are_not_both_regular() -> None:
    made = index("add _ %c1", 4)
    assert [each.kind for each in classify([made, made], (8, 8))] == ["slice", "general"]
    assert [each.kind for each in classify([index("floordiv _ %c2", 8)], (4,), writes=True)] == ["general"]
    assert [each.kind for each in classify([index("floormod _ %c4", 8)], (4,), writes=True)] == ["general"]
    scalar = values("%x = arith.add %s, %c1 : int32")["x"]
    assert classify([scalar, made, scalar], (8, 8, 8)) == [
        Index("scalar", scalar, -1, 1, 0, 1), Index("slice", made, 0, 4, 1, 1), Index("scalar", scalar, -1, 1, 0, 1),
    ]  # fmt: skip
    some = index("floordiv _ %s", 4)
    assert classify([some, some, made], (8, 8, 8), writes=True) == [
        Index("general", some, -1, 1, 0, 1), Index("general", some, -1, 1, 0, 1), Index("slice", made, 0, 4, 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "extent", "dim", "expected"),
    [
        ("add _ %c0", 4, 4, ("identity", 0, 4, 0, 1)), ("add _ %c0", 4, 8, ("slice", 0, 4, 0, 1)),
        ("add _ %c1", 8, 8, ("slice", 0, 8, 1, 1)), ("mul _ %c2; sub _ %c-1", 4, 8, ("strided", 0, 4, 1, 2)),
        ("mul %c2 _; sub _ %c1", 4, 8, ("general", -1, 1, 0, 1)), ("floordiv _ %c2", 8, 4, ("repeated", 0, 8, 0, 2)),
        ("floormod _ %c4", 8, 4, ("wrapped", 0, 8, 0, 1)), ("mul _ _; floordiv _ %c2", 4, 2, ("general", -1, 1, 0, 1)),
        ("floormod _ %s", 4, 4, ("general", -1, 1, 0, 1)), ("add _ _", 4, 8, ("strided", 0, 4, 0, 2)),
        ("mul _ %c2; floordiv _ %c2", 4, 2, ("general", -1, 1, 0, 1)),
        ("add _ %c1; floormod _ %c4", 8, 4, ("general", -1, 1, 0, 1)),
    ],
)  # fmt: skip
def test_what_a_walk_is(expression: str, extent: int, dim: int, expected: tuple[str, int, int, int, int]) -> None:
    made = index(expression, extent)
    kind, *rest = expected
    assert classify([made], (dim,)) == [Index(kind, made, *rest)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sub %s _", (1, 0)), ("add _ %c3; sub %s _", (1, 3)), ("mul _ %c2; sub %s _", (2, 0)),
        ("mul _ %c2; add _ %c1; sub %s _", (2, 1)), ("sub _ %c1; sub %c9 _", (1, -1)), ("mul _ %c-1; sub %s _", None),
        ("mul _ %c0; sub %s _", None), ("sub _ %s", None), ("add _ %s; sub %s _", None), ("add _ %c1", None),
        ("sub _ _", None), ("add %s _", None), ("sub _ %c3; add %s _", None),
    ],
)  # fmt: skip
def test_backward_walks(expression: str, expected: tuple[int, int] | None) -> None:
    made = index(expression, 6)
    found = backwards(made)
    if expected is None:
        assert found is None
        return
    assert found is not None
    axis, extent, step, first, offset = found
    assert (axis, extent, step, offset) == (0, 6, *expected)
    assert (evaluate(made) == evaluate(first) - (offset + step * np.arange(6))).all()


def pair(rows: int, columns: int, outer: int, inner: int, offset: int) -> Value:
    """%i * outer + %j * inner + offset over rows x columns."""
    return values(f"""
    %i = tensor.iota {{axis = 0}} : tensor<{rows}x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x{columns}xint32>
    %a = arith.mul %i, %c{outer} : tensor<{rows}x1xint32>
    %b = arith.mul %j, %c{inner} : tensor<1x{columns}xint32>
    %t = arith.add %a, %b : tensor<{rows}x{columns}xint32>
    %x = arith.add %t, %c{offset} : tensor<{rows}x{columns}xint32>""")["x"]


CASES = list(itertools.product((2, 3), (2, 4), (1, 2, 4, 8), (1, 2), (0, 1, 2, 5), (8, 16)))


def test_digits_make_up_the_index() -> None:
    found_some = 0
    for rows, columns, outer, inner, offset, dim in CASES:
        index = pair(rows, columns, outer, inner, offset)
        parts = digits(index, dim)
        if parts is None:
            continue
        found_some += 1
        total: Any = 0
        for part in parts:
            walked = 0 if part.walk is None else evaluate(part.walk)
            assert np.min(part.offset + walked) >= 0 and np.max(part.offset + walked) < part.size, "it carries"
            assert part.walk is None or np.max(walked) == part.extent - 1
            total = total * part.size + part.offset + walked
        assert (np.broadcast_to(total, (rows, columns)) == evaluate(index)).all()
        assert np.prod([part.size for part in parts]) == dim
    assert found_some > 40


def test_digits_are_found_where_nothing_carries() -> None:
    for rows, columns, offset, dim in itertools.product((2, 4), (2, 4), (0, 1, 3), (8, 16, 32)):
        # i * 4 + j + offset: a digit of 4 and one of dim // 4
        low, high = offset % 4, offset // 4
        fits = low + columns <= 4 and high + rows <= dim // 4
        assert (digits(pair(rows, columns, 4, 1, offset), dim) is not None) is fits, (rows, columns, offset, dim)


def sum_of(terms: str) -> Value:
    """Such as 8*i + j + -3, where %i has 4 rows, %j 8 columns, %z one, and %r is a remainder; bx, by are 0 to 7."""
    shapes = {"i": "4x1", "j": "1x8", "z": "1x1", "r": "1x8"}
    lines = [f"%{name} = tensor.iota {{axis = {axis}}} : tensor<{shapes[name]}xint32>" for name, axis in WALKS.items()]
    lines += ["%r = arith.floormod %j, %c4 : tensor<1x8xint32>", "%d = arith.sub %bx, %c3 : int32"]
    total, sizes = "", [1, 1]
    for number, term in enumerate(terms.split(" + ")):
        factor, _, name = term.rpartition("*")
        value = f"%c{name}" if name.lstrip("-").isdigit() else f"%{name}"
        type = f"tensor<{shapes[name]}xint32>" if name in shapes else "int32"
        if factor:
            lines.append(f"%f{number} = arith.mul {value}, %c{factor} : {type}")
            value = f"%f{number}"
        if name in shapes:
            sizes = [max(pair) for pair in zip(sizes, map(int, shapes[name].split("x")))]
        whole = f"tensor<{sizes[0]}x{sizes[1]}xint32>" if any(each in terms for each in "ijzr") else "int32"
        lines.append(f"%s{number} = arith.add {total}, {value} : {whole}" if total else "")
        total = f"%s{number}" if total else value
    return values("\n".join(lines))[total[1:]]


WALKS = {"i": 0, "j": 1, "z": 1}


@pytest.mark.parametrize(
    ("terms", "dim", "expected"),
    [
        ("8*i + j", 32, [(4, "i", 4, 0), (8, "j", 8, 0)]),
        ("j + 8*i", 64, [(8, "i", 4, 0), (8, "j", 8, 0)]),  # longer than what is addressed
        ("16*i + j + 24", 128, [(8, "i", 4, 1), (16, "j", 8, 8)]),
        ("16*i + j + 25", 128, None),  # it carries
        ("16*i + 2*j + 1", 64, [(4, "i", 4, 0), (8, "j", 8, 0), (2, None, 1, 1)]),
        ("16*i + 2*j", 64, [(4, "i", 4, 0), (8, "j", 8, 0), (2, None, 1, 0)]),
        ("8*i + bx", 32, [(4, "i", 4, 0), (8, "bx", 8, 0)]),
        ("8*i + 7*z + j", 32, [(4, "i", 4, 0), (8, "j", 8, 0)]),  # %z is 0
        ("8*bx + by", 64, None),  # a scalar
        ("8*i", 32, None),  # one walk alone
        ("8*i + s", 32, None),  # without bounds
        ("8*i + d", 32, None),  # from -3 to 4
        ("8*i + r", 32, None),  # no walk
        ("8*i + -1*j + 7", 32, None),
        ("7*i + j", 28, None),
        ("8*i + j", 24, None),
        ("8*i + j + -8", 32, None),
        ("8*i + j + 8", 32, None),
        ("8*i + j + 32", 32, None),
    ],
)
def test_digits_exactly(terms: str, dim: int, expected: list[tuple[int, str | None, int, int]] | None) -> None:
    found = digits(sum_of(terms), dim)
    shown = None if found is None else [(each.size, each.walk and each.walk.name, *each[2:]) for each in found]
    assert shown == expected


def test_a_store_covers_what_it_writes() -> None:
    """Whatever is said to be covered is; and a row-major index of all of it is found."""
    for rows, columns, outer, inner, offset, dim in CASES:
        made = pair(rows, columns, outer, inner, offset)
        written = set(np.unique(evaluate(made)))
        if covers_whole([made], None, (dim,)):
            assert written == set(range(dim)), (rows, columns, outer, inner, offset, dim)
        if outer == columns and inner == 1 and offset == 0 and dim == rows * columns:
            assert covers_whole([made], None, (dim,))
            assert not covers_whole([made], made, (dim,))  # a mask may leave elements out


def test_what_covers_a_buffer_of_two_dimensions() -> None:
    named = values("""
    %i = tensor.iota {axis = 0} : tensor<4x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x8xint32>
    %d = tensor.iota {axis = 1} : tensor<1x4xint32>
    %p = tensor.iota {axis = 1} : tensor<1x2xint32>
    %k = arith.add %i, %c0 : tensor<4x1xint32>
    %l = arith.add %i, %c1 : tensor<4x1xint32>
    %h = arith.floordiv %j, %c2 : tensor<1x8xint32>
    %z = arith.mul %j, %c0 : tensor<1x8xint32>
    %o = arith.constant {value = 0} : int32""")
    i, j, d, p, k, shifted, half, o = (named[name] for name in ("i", "j", "d", "p", "k", "l", "h", "o"))
    for indices, shape, covers in [
        ([i, j], (4, 8), True), ([j, i], (8, 4), True), ([k, j], (4, 8), True), ([i, j], (4, 9), False),
        ([i, j], (5, 8), False), ([shifted, j], (4, 8), False), ([d, d], (4, 4), False), ([o, j], (1, 8), True),
        ([o, j], (2, 8), False), ([i, j, o], (4, 8, 1), True), ([half, i], (4, 4), False), ([i], (4,), True),
        ([o], (1,), True), ([p, p], (2, 2), False),
    ]:  # fmt: skip
        assert covers_whole(indices, None, shape) is covers, (shape, [each.name for each in indices])


def test_a_wider_index_is_no_walk_from_a_narrow_start() -> None:
    named = values("""
    %i = tensor.iota {axis = 0} : tensor<4xint32>
    %three = arith.add %i, %c3 : tensor<4xint32>
    %some = arith.add %i, %bx : tensor<4xint32>
    %x = arith.cast %three : tensor<4xint64>
    %y = arith.cast %some : tensor<4xint64>""")
    found, other, narrow = (classify([named[name]], (16,))[0] for name in ("x", "y", "some"))
    assert (found.kind, found.offset, found.extent) == ("slice", 3, 4)
    assert other.kind == "general"
    assert narrow.kind == "slice" and isinstance(narrow.offset, Value) and narrow.offset.name == "bx"
