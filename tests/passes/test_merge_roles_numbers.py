"""merge-roles: what is known of numbers, and which values are computed alike."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import program
from tests.passes.role_programs import (
    branch,
    lines_of,
    loop,
    made,
)
from tiledsl.dialects.arith import constant_of
from tiledsl.ir.core import Value
from tiledsl.ir.rewrite import Builder
from tiledsl.passes.merge_roles.numbers import number_of
from tiledsl.passes.merge_roles.order import Keys, resolved
from tiledsl.passes.merge_roles.turns import _copied, _is_or_follows, _says

# Numbers


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("arith.add %a, %b : int32", 10),
        ("arith.sub %a, %b : int32", 4),
        ("arith.mul %a, %a : int32", 49),
        ("arith.floordiv %a, %b : int32", 2),
        ("arith.floormod %a, %b : int32", 1),
        ("arith.floordiv %a, %o : int32", None),
        ("arith.add %a, %u : int32", None),
        ("arith.shl %big, %b : int32", -8),
        ("arith.not %a : int32", -8),
        ("arith.not %t : bool", False),
        ("arith.cast %a : float32", 7.0),
        ("arith.cast %a : bool", True),
        ('arith.cmp %a, %b {predicate = "lt"} : bool', False),
        ('arith.cmp %a, %b {predicate = "ge"} : bool', True),
        ("arith.select %t, %a, %u : int32", 7),
        ("arith.select %f, %u, %b : int32", 3),
        ("arith.select %y, %a, %b : int32", None),
        ("arith.select %f, %a, %u : int32", None),
        ("tile.load %N[%a] : int32", None),
        ("arith.neg %a : int32", None),
    ],
)
def test_numbers(text: str, number: object) -> None:
    """Of what is known, with a dtype's wrapping; None where one is not, and of what has no number."""
    found = program(
        f"""%a = arith.constant {{value = 7}} : int32
        %b = arith.constant {{value = 3}} : int32
        %o = arith.constant {{value = 0}} : int32
        %big = arith.constant {{value = 2147483647}} : int32
        %t = arith.constant {{value = true}} : bool
        %f = arith.constant {{value = false}} : bool
        %x = {text}""",
        parameters="N: 64*int32, u: int32, y: bool",
    )
    value = next(op for op in found.root.walk() if op.results and op.results[0].name == "x").results[0]
    computed = number_of(value, lambda _: None)
    assert (computed, type(computed)) == (number, type(number))


def test_numbers_that_are_given() -> None:
    found = program("%x = arith.add %u, %c2 : int32\n%l = tile.load %N[%x] : int32", parameters="N: 64*int32, u: int32")
    values = {value.name: value for op in found.root.walk() for value in op.results}
    known = {values["x"].op.operands[0]: 5, values["l"]: 9}  # type: ignore[union-attr]
    assert number_of(values["x"], known.get) == 7
    assert number_of(values["l"], known.get) == 9
    assert number_of(values["x"], {values["x"]: 0}.get) == 0


# Names of values


def test_values_that_are_computed_alike() -> None:
    found = made("""
        %a = tile.load %N[%c3] : int32
        %b = tile.load %N[%c3] : int32
        %c = tile.load %N[%c2] : int32
        %d = arith.add %a, %c : int32
        %e = arith.add %b, %c : int32
        %f = arith.sub %b, %c : int32
        tile.store %d, %v
        %g = tile.load %v : int32
        %h = tile.load %v : int32""")
    value = {each.name: each for op in found.root.walk() for each in op.results}
    buffer = value["a"].op.operands[0]  # type: ignore[union-attr]
    keys, changed = Keys(set()), Keys({buffer})
    for one, other in ("ab", "de", "gh", "dg"):
        assert keys.of(value[one]) == keys.of(value[other])
    for one, other in ("ac", "df", "ad"):
        assert keys.of(value[one]) != keys.of(value[other])
    assert changed.of(value["a"]) is value["a"] and changed.of(value["a"]) != changed.of(value["b"])
    assert changed.of(value["d"]) != changed.of(value["e"])
    assert resolved(value["g"]) is value["d"] and resolved(value["a"]) is value["a"]
    fused = Keys(set())
    fused.same[value["a"]] = value["c"]  # indices of loops that have become one
    assert fused.of(value["a"]) is value["c"] and fused.of(value["b"]) is not value["c"]


def named(body: str) -> dict[str | None, Value]:
    return {each.name: each for op in made(body).root.walk() for each in op.results}


@pytest.mark.parametrize(
    ("n", "u", "follows"),
    [
        *((f"%x + {n}", f"%x + {u}", n - u in (0, 1)) for n, u in ((3, 3), (4, 3), (5, 3), (3, 4))),
        *(
            (f"%a + {n} // {by}", f"%b + {u} // {of}", follows)
            for n, u, by, of, follows in (
                (3, 3, 4, 4, True), (4, 3, 4, 4, True), (7, 3, 4, 4, True), (8, 3, 4, 4, False), (2, 3, 4, 4, False),
                (4, 3, 4, 5, False),
            )
        ),
        ("%x + 3", "%y + 3", False),
        ("%x + 3 // 4", "%y + 3 // 4", False),
        ("%x + 3 // 4", "%x + 3", False),
        ("%x + 3", "%x + 3 // 4", False),
    ],
)  # fmt: skip
def test_numbers_that_are_the_same_or_follow_each_other(n: str, u: str, follows: bool) -> None:
    """%a and %b are the same, which only their sums tell."""
    lines = ["%x = tile.load %N[%c3] : int32", "%y = tile.load %N[%c4] : int32"]
    for name, sides in (("a", "%x, %y"), ("b", "%y, %x")):
        lines += [f"%{name}_y = arith.add {sides} : int32", f"%{name} = arith.sub %{name}_y, %y : int32"]
    for name, text in (("n", n), ("u", u)):
        total, _, by = text.partition(" // ")
        lines.append(f"%{name} = arith.add {total.replace(' + ', ', %c')} : int32")
        if by:
            lines.append(f"%{name}_part = arith.floordiv %{name}, %c{by} : int32")
    value = named("\n".join(lines))
    one, other = (value.get(f"{name}_part") or value[name] for name in "nu")
    assert _is_or_follows(one, other, Keys(set())) is follows


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ('arith.cmp %u, %n {predicate = "lt"}', True),
        ('arith.cmp %n, %u {predicate = "gt"}', True),
        ('arith.cmp %n, %u {predicate = "lt"}', False),
        ('arith.cmp %u, %n {predicate = "le"}', False),
        ('arith.cmp %c0, %n {predicate = "lt"}', True),
        ('arith.cmp %n, %c0 {predicate = "gt"}', True),
        ('arith.cmp %c1, %n {predicate = "lt"}', False),
        ('arith.cmp %c0, %u {predicate = "lt"}', False),
        ('arith.cmp %c0, %m {predicate = "lt"}', False),
        ('arith.cmp %u, %m {predicate = "lt"}', False),
    ],
)
def test_conditions_that_say_whether_there_is_a_turn(condition: str, says: bool) -> None:
    """Of u turns, and one more: n is u + 1, and m is u + 2."""
    value = named(f"""
        %u = tile.load %N[%c3] : int32
        %n = arith.add %u, %c1 : int32
        %m = arith.add %u, %c2 : int32
        %b = {condition} : bool""")
    assert _says(value["b"], value["u"], value["n"], Keys(set())) is says
    if "%c0" in condition:
        assert not _says(value["b"], value["u"], value["m"], Keys(set()))


def test_a_number_is_computed_anew_of_variables() -> None:
    found = made("""
        %h = tile.load %N[%c0] : int32
        %g = tile.load %v : int32
        %d = arith.mul %g, %h : int32
        %e = arith.add %d, %g : int32
        thread.barrier""")
    value = {each.name: each for op in found.root.walk() for each in op.results}
    (barrier,) = [op for op in found.root.walk() if op.name == "thread.barrier"]
    _copied(value["e"], Builder.at(barrier))
    assert [line for line in lines_of(found) if line.startswith("%")][-4:] == [
        "%g_1 = tile.load %v : int32",
        "%d_1 = arith.mul %g_1, %h : int32",
        "%g_2 = tile.load %v : int32",
        "%e_1 = arith.add %d_1, %g_2 : int32",
    ]


@pytest.mark.parametrize(
    ("body", "is_known"),
    [
        ("tile.store %c7, %v\n%g = tile.load %v : int32", True),
        ("tile.store %c5, %v\ntile.store %c7, %v\n%g = tile.load %v : int32", True),
        ("tile.store %c7, %v\n" + loop("%n", "%g = tile.load %v : int32"), True),
        ("%g = tile.load %v : int32\ntile.store %c7, %v", False),
        ("tile.store %c7, %v\ntile.fill %c7, %v\n%g = tile.load %v : int32", False),
        ('tile.store %c7, %v\n%o = tile.atomic %c7, %v {kind = "max"} : int32\n%g = tile.load %v : int32', False),
        ("%g = tile.load %v : int32", False),
        (branch("%p", "tile.store %c7, %v") + "%g = tile.load %v : int32", False),
        ("tile.store %c7, %v\n" + branch("%p", "tile.store %c5, %v") + "%g = tile.load %v : int32", False),
        ("tile.store %c7, %v\n" + loop("%n", "%g = tile.load %v : int32\ntile.store %c5, %v"), False),
        ("tile.store %c7, %N[%c0]\n%g = tile.load %N[%c0] : int32", False),
    ],
)
def test_what_a_variable_was_given_last(body: str, is_known: bool) -> None:
    found = made(body)
    value = next(each for op in found.root.walk() for each in op.results if each.name == "g")
    assert constant_of(resolved(value)) == (7 if is_known else None)
