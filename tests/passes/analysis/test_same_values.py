"""Whether values that are computed twice are the same."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.analysis.same_values import same_place, same_value
from tiledsl.dialects import tile
from tiledsl.ir.core import Value

TILES = """
%t = tile.alloc : buffer<8*int32, shared>
%u = tile.alloc : buffer<8*int32, shared>
"""


def named(body: str) -> dict[str, Value]:
    parameters = "N: 1000*int32, B: 1000*int32, s: int32, b: bool"
    made = kernel_of(program(TILES + body, parameters=parameters))
    return {value.name: value for op in made.walk() for value in op.results}


@pytest.mark.parametrize(
    ("between", "same"),
    [
        ("", True),
        ("tile.store %s, %u[%c0]", True),  # another buffer on the chip
        ("tile.store %s, %t[%c0]", False),
        ("tile.store %s, %B[%c0]", True),
        ("scf.if %b { tile.store %s, %t[%c0] scf.yield } { scf.yield }", False),
    ],
)
def test_elements_are_the_same_while_nothing_writes_them(between: str, same: bool) -> None:
    held = named(f"""
    %x = tile.load %t[%s] : int32
    %p = arith.add %x, %c5 : int32
    {between}
    %y = tile.load %t[%s] : int32
    %q = arith.add %c5, %y : int32""")
    assert same_value(held["p"], held["q"]) is same and same_value(held["q"], held["p"]) is same


def test_global_tensors_may_overlap() -> None:
    held = named("%x = tile.load %N[%s] : int32\ntile.store %s, %B[%s]\n%y = tile.load %N[%s] : int32")
    assert not same_value(held["x"], held["y"])


def test_what_differs_is_not_the_same() -> None:
    held = named("""
    %x = tile.load %t[%s] : int32
    %y = tile.load %u[%s] : int32
    %z = tile.load %t[%c5] : int32
    %p = arith.sub %x, %c5 : int32
    %q = arith.sub %c5, %x : int32
    %r = arith.add %x, %c5 : int32""")
    pairs = [("x", "y"), ("x", "z"), ("p", "q"), ("p", "r")]
    assert [same_value(held[one], held[other]) for one, other in pairs] == [False] * 4


@pytest.mark.parametrize("name", ["add", "mul", "and", "or", "xor", "max", "min", "sub", "floordiv", "floormod"])
def test_the_order_of_operands(name: str) -> None:
    """In one order everything is the same; in the other one what commutes is."""
    held = named("".join(f"%{each} = arith.{name} {operands} : int32\n" for each, operands in (
        ("p", "%s, %c5"), ("q", "%s, %c5"), ("r", "%c5, %s"), ("w", "%c5, %c5"),
    )))  # fmt: skip
    commutes = name not in ("sub", "floordiv", "floormod")
    assert same_value(held["p"], held["q"])
    assert same_value(held["p"], held["r"]) is commutes and same_value(held["r"], held["p"]) is commutes
    assert not any(same_value(held[each], held["w"]) or same_value(held["w"], held[each]) for each in "pqr")


@pytest.mark.parametrize("stores", ["u", "t"])
def test_reads_inside_of_a_branch_or_loop(stores: str) -> None:
    """A loop may come back to the second read after a later write."""
    held = named(f"""
    %x = tile.load %t[%s] : int32
    scf.for %c0, %c5, %c1 (%k: int32) {{
      %y = tile.load %t[%s] : int32
      tile.store %y, %{stores}[%k]
      scf.yield
    }}
    scf.if %b {{
      %z = tile.load %t[%s] : int32
      scf.yield
    }} {{
      %w = tile.load %t[%s] : int32
      scf.yield
    }}""")
    assert same_value(held["x"], held["y"]) is (stores == "u")
    assert same_value(held["x"], held["z"]) is (stores == "u")
    assert not same_value(held["z"], held["w"])


def test_operations_of_other_forms() -> None:
    """Branches are not compared, nor results of which there are several; a mask is an operand more."""
    body = """
    %m = tile.load %t[%s] mask=%b : int32
    %n = tile.load %t[%s] mask=%b : int32
    %x = tile.load %t[%s] : int32"""
    for one, number in (("p", 3), ("q", 4)):
        body += f"""
        %{one} = scf.if %b : int32 {{ scf.yield [%c{number}] }} {{ scf.yield [%s] }}
        %{one}1, %{one}2 = scf.if %b : int32, int32 {{ scf.yield [%s, %c5] }} {{ scf.yield [%c5, %s] }}
        %{one}v = tensor.iota {{axis = 0}} : tensor<8xint32>
        %{one}3, %{one}4 = tensor.scatter %{one}v, %{one}v, %{one}v {{kind = "add"}} : tensor<8xint32>, tensor<8xint32>
        """
    held = named(body)
    assert same_value(held["m"], held["n"]) and same_value(held["pv"], held["qv"])
    for pair in (("m", "x"), ("x", "m"), ("p", "q"), ("p1", "p2"), ("p1", "q2"), ("p3", "p4"), ("p3", "q4")):
        assert not same_value(*(held[each] for each in pair)), pair


def test_places_of_accesses() -> None:
    """The same buffer, and in every dimension the same value or the same number."""
    places = ["%m[%s, %c5]", "%n[%s, %c5]", "%m[%s, %five]", "%m[%p, %c5]", "%m[%q, %c5]", "%m[%s, %c4]", "%m[%s, %w]"]
    held = named("""
    %m = tile.alloc : buffer<8*8*int32, shared>
    %n = tile.alloc : buffer<8*8*int32, shared>
    %five = arith.constant {value = 5} : int32
    %w = arith.constant {value = 5} : int64
    %p = arith.sub %s, %c5 : int32
    %q = arith.sub %s, %five : int32
    """ + "".join(f"%x{number} = tile.load {place} : int32\n" for number, place in enumerate(places)))  # fmt: skip
    loads = [held[f"x{number}"].op for number in range(len(places))]
    same = {(a, b) for a, one in enumerate(loads) for b, other in enumerate(loads) if is_same(one, other)}
    assert same == {(a, a) for a in range(len(places))} | {
        (a, b) for each in ({0, 2, 6}, {3, 4}) for a in each for b in each
    }


def is_same(one: object, other: object) -> bool:
    assert isinstance(one, tile.LoadOp) and isinstance(other, tile.LoadOp)
    return same_place(one, other)
