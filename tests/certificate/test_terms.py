"""Terms mean what the operations of the IR mean: intervals hold, substitution computes, and the solver agrees."""

from __future__ import annotations

import itertools

import pytest

from tiledsl.certificate import elements, terms
from tiledsl.certificate.accesses import Accesses
from tiledsl.certificate.bounds import value_of
from tiledsl.certificate.solver import Solver
from tiledsl.certificate.terms import Term, Variable, compare, constant
from tiledsl.dialects import arith, tile
from tiledsl.ir.core import OPERATIONS
from tiledsl.ir.parser import parse_op
from tiledsl.ir.types import ELEMENTS

OPS = "add sub mul floordiv floormod truncdiv truncmod min max and or xor shl shr".split()
SIGNED, UNSIGNED = (-128, -127, -100, -7, -2, -1, 0, 1, 2, 3, 7, 64, 127), (0, 1, 2, 3, 7, 64, 127, 128, 200, 255)


def term_of(op: str, dtype: str) -> tuple[Term, Variable, Variable]:
    """What an operation on two parameters of a kernel is, as a term over both."""
    func = parse_op(
        f'tile.func {{sym_name = "f", parameters = ("a", "b")}} (%a: {dtype}, %b: {dtype}) {{\n'
        "  %one = arith.constant {value = 1} : int32\n"
        f"  tile.kernel [%one] (%bx: int32) {{\n    %c = arith.{op} %a, %b : {dtype}\n  }}\n}}"
    )
    assert isinstance(func, tile.FuncOp)
    program = Accesses(func)
    (made,) = (each for each in func.walk() if each.name == f"arith.{op}")
    return (program.element(made.results[0], ()), *(program.sizes[arg] for arg in func.body.args))  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("op", OPS)
def test_an_operation_is_what_the_machine_computes(op: str, dtype: str) -> None:
    pytest.importorskip("z3")
    term, x, y = term_of(op, dtype)
    compute = OPERATIONS[f"arith.{op}"].compute  # type: ignore[attr-defined]
    values = UNSIGNED if dtype == "uint8" else SIGNED
    wrong = []
    for a, b in itertools.product(values, values):
        if (op in ("shl", "shr") and not 0 <= b < 8) or (b == 0 and ("div" in op or "mod" in op)):
            continue
        expected = arith.wrap(compute(a, b), dtype)
        assert term.lo <= expected <= term.hi, (a, b)
        assert value_of(term, {x: a, y: b}) == expected, (a, b)
        wrong.append(terms.both(*(compare("eq", *pair) for pair in ((x, constant(a)), (y, constant(b)))),
                                compare("ne", term, constant(expected))))  # fmt: skip
    assert len(wrong) > 40 and Solver(60, 60).find([terms.either(*wrong)]).never


@pytest.mark.parametrize("sizes", [(5, 3), (5, -3), (-5, 3), (1, 4), (4, 1)])
def test_a_quotient_of_a_quotient(sizes: tuple[int, int]) -> None:
    x = Variable("x", "lane", -40, 40)
    first, second = sizes
    term = terms.floor_divide(terms.floor_divide(x, constant(first)), constant(second))
    for value in range(-40, 41):
        assert term.lo <= value_of(term, {x: value}) == value // first // second <= term.hi
    assert (min(sizes) < 1) or term == terms.floor_divide(x, constant(first * second))


@pytest.mark.parametrize(("source", "to"), list(itertools.permutations(["int8", "uint8", "int32", "uint32"], 2)))
def test_a_cast_wraps(source: str, to: str) -> None:
    info = ELEMENTS[source]
    x = Variable("x", "size", int(info.low), int(info.high))
    term = terms.wrap(x, to)
    for value in (int(info.low), int(info.low) + 1, 0, 1, 100, 127, int(info.high) - 1, int(info.high)):
        assert value_of(term, {x: value}) == arith.wrap(value, to)
        assert term.lo <= arith.wrap(value, to) <= term.hi


@pytest.mark.parametrize(
    ("shape", "wanted"), [((4, 6), (24,)), ((24,), (2, 3, 4)), ((4, 1, 6), (4, 6)), ((2, 6), (3, 4))]
)
def test_a_reshape_keeps_the_row_major_order(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    def flat(position: tuple[int, ...], sizes: tuple[int, ...]) -> int:
        total = 0
        for at, size in zip(position, sizes):
            total = total * size + at
        return total

    for position in itertools.product(*map(range, shape)):
        there = elements._reshaped(tuple(map(constant, position)), shape, wanted)
        found = tuple(each.lo for each in there)
        assert all(0 <= at < size for at, size in zip(found, wanted)) and flat(found, wanted) == flat(position, shape)


def test_a_polynomial_is_the_same_number() -> None:
    x, y = Variable("x", "size", 0, 50), Variable("y", "size", 0, 50)
    term = terms.subtract(terms.multiply(terms.add(x, constant(3)), terms.add(y, x)), terms.multiply(constant(2), y))
    again = terms.from_polynomial(terms.polynomial(term))
    for a, b in itertools.product((0, 1, 7, 50), repeat=2):
        assert value_of(again, {x: a, y: b}) == value_of(term, {x: a, y: b}) == (a + 3) * (a + b) - 2 * b


def test_quotients_and_remainders_of_multiples() -> None:
    x, rest = Variable("x", "lane", -9, 9), Variable("rest", "lane", 0, 6)
    made = terms.add(terms.multiply(constant(14), x), rest)
    assert terms.floor_divide(made, constant(7)) == terms.multiply(constant(2), x)
    assert terms.floor_modulo(made, constant(7)) == rest
    for size, number, other in itertools.product((-4, 3, 4, 7), range(-9, 10), range(7)):
        replaced = {x: constant(number), rest: constant(other)}
        for make, meant in ((terms.floor_divide, int.__floordiv__), (terms.floor_modulo, int.__mod__)):
            (found,) = terms.substitute([make(made, constant(size))], replaced)
            assert found.number == meant(14 * number + other, size)
