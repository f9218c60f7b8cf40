"""merge-roles: what threads copy each for themselves; exact IR."""

from __future__ import annotations

import re

import pytest

from tests.passes.ir_cases import kernel_of
from tests.passes.short_ir import allocated, around, lines_of, spelled, whole
from tiledsl.dialects import tile
from tiledsl.ir.kinds import of_kinds
from tiledsl.passes.merge_roles.shares import _digits, _number, _terms, dissolve, fill_together


def filled(body: str, threads: int = 32) -> list[str]:
    """What the pass makes of the body of a T.Parallel over threads %t, with tiles, and a variable x of each thread."""
    made = whole(
        f"""%s = tile.alloc : buffer<16*32*float32, shared>
        %r = tile.alloc : buffer<32*float32, shared>
        %tile = tile.alloc : buffer<16*32*float32, shared>
        tile.parallel {{extents = ({threads},), lockstep = true}} (%t: int32) {{
        %x = tile.alloc : buffer<int32, local>
        {body}
        }}""",
        "X: 64*32*float32, I: 64*int32, V: 512*float32, n: int32",
    )
    (op,) = [each for each in of_kinds(kernel_of(made).walk(), tile.ParallelOp) if each.lockstep]
    fill_together(op)
    dissolve(op)
    return allocated(lines_of(made))[1]


def over(extents: str, text: str) -> list[str]:
    """A T.Parallel with these lines."""
    names = ", ".join(f"%{name}: int32" for name, _ in zip("ij", extents.split(","), strict=False))
    extents = f"({extents})" if "," in extents else f"({extents},)"
    return [f"tile.parallel {{extents = {extents}}} ({names}) {{", *spelled(text).split("\n"), "}"]


LOAD = "%v = tile.load %V[%t] : float32"
PUT = f"{LOAD};tile.store %v, %r[%t]"
ROW = f"{LOAD};tile.store %v, %s[%k, %t]"
TURNS = "scf.for %c0, %c4, %c1 (%k: int32) {"
END = "scf.yield;}"
ITEM = "%0 = %i % 32;%v = tile.load %V[%0] : float32;tile.store %v, %r[%i]"
VARIABLE = (
    "%a = tile.load %I[%k] : int32;tile.store %a, %x[];%b = tile.load %x[] : int32;%v = tile.load %V[%b] : float32"
)


def branch(text: str, condition: str = "%b") -> str:
    return f"scf.if {condition} {{;{text};scf.yield;}} {{;scf.yield;}}"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Rows of 4 threads, of which each has 8 columns
        (
            "%i = %t // 4;%j = %t % 4;%c = %j * 8;scf.for %c0, %c8, %c1 (%e: int32) {;%a = %c + %e;"
            f"%v = tile.load %X[%i, %a] : float32;tile.store %v, %s[%i, %a];{END}",
            ("8, 32", "%0 = %i % 8;%1 = %c0 + %j;%v = tile.load %X[%0, %1] : float32;tile.store %v, %s[%i, %j]"),
        ),
        (
            f"{TURNS};{ROW};{END}",
            ("4, 32", "%0 = %j % 32;%v = tile.load %V[%0] : float32;tile.store %v, %s[%i, %j]"),
        ),
        # A sum that counts as the row does is the row, with what else it has
        (
            "scf.for %c0, %c2, %c1 (%k: int32) {;%a = %k * 8;%b = %t // 4;%i = %a + %b;%j = %t % 4;%w = %n + %a;"
            f"%y = %w + %b;%v = tile.load %X[%y, %j] : float32;tile.store %v, %s[%i, %j];{END}",
            (
                "16, 4",
                "%0 = %c0 + %n;%1 = %0 + %i;%2 = %j % 4;%v = tile.load %X[%1, %2] : float32;tile.store %v, %s[%i, %j]",
            ),
        ),
        # A variable has what was stored in it just before
        (
            f"{TURNS};{VARIABLE};tile.store %v, %s[%k, %t];{END}",
            (
                "4, 32",
                "%0 = %i % 4;%a = tile.load %I[%0] : int32;%v = tile.load %V[%a] : float32;tile.store %v, %s[%i, %j]",
            ),
        ),
        (f"%b = %n < 8;{branch(PUT)}", ("32", branch(ITEM))),
    ],
)
def test_shares_of_threads_become_a_loop_over_the_tile(body: str, expected: tuple[str, str]) -> None:
    found = filled(body)
    assert [line for line in found if not re.fullmatch("%b = .*n, %c8 .*", line)] == over(*expected)


def test_conditions_and_other_loads_are_said_by_the_place() -> None:
    """What each thread loads for itself stays, as it may be used elsewhere."""
    for body, kept, expected in (
        (PUT, [LOAD], ("32", ITEM)),
        (
            f"%b = %t < 8;{LOAD};{branch('tile.store %v, %r[%t]')}",
            [LOAD],
            ("32", "%0 = %i % 32;%b = %0 < 8;" + branch(ITEM.partition(";")[2])),
        ),
        (
            f"%b = %t < 8;{LOAD};scf.if %b {{;scf.yield;}} {{;tile.store %v, %r[%t];scf.yield;}}",
            [LOAD],
            ("32", "%0 = %i % 32;%b = %0 < 8;%1 = arith.not %b : bool;" + branch(ITEM.partition(";")[2], "%1")),
        ),
        (
            "%h = %t // 0;%v = tile.load %V[%h] : float32;tile.store %v, %r[%t]",
            spelled("%h = %t // 0;%v = tile.load %V[%h] : float32").split("\n"),
            ("32", "%0 = %i % 32;%h = %0 // 0;%v = tile.load %V[%h] : float32;tile.store %v, %r[%i]"),
        ),
        (
            "%h = %t % 1;%v = tile.load %V[%h] : float32;tile.store %v, %r[%t]",
            spelled("%h = %t % 1;%v = tile.load %V[%h] : float32").split("\n"),
            ("32", "%v = tile.load %V[%c0] : float32;tile.store %v, %r[%i]"),
        ),
        (ROW.replace("%k", "%n"), [LOAD], ("32", ITEM.replace("%r[", "%s[%n, "))),
        (ROW.replace("%k", "%c3"), [LOAD], ("32", ITEM.replace("%r[", "%s[%c3, "))),
        (
            "%q = %t * 4;%h = %q + 3;%z = %h + %n;%v = tile.load %V[%z] : float32;tile.store %v, %r[%t]",
            spelled("%q = %t * 4;%h = %q + 3;%z = %h + %n;%v = tile.load %V[%z] : float32").split("\n"),
            (
                "32",
                "%0 = %i % 32;%q = %0 * 4;%h = %q + 3;%z = %h + %n;"
                "%v = tile.load %V[%z] : float32;tile.store %v, %r[%i]",
            ),
        ),
        (
            "%q = %t // 8;%o = %q * 64;%p = %t % 8;%y = %o + %p;%v = tile.load %V[%y] : float32;tile.store %v, %r[%t]",
            spelled("%q = %t // 8;%o = %q * 64;%p = %t % 8;%y = %o + %p;%v = tile.load %V[%y] : float32").split("\n"),
            (
                "32",
                "%0 = %i // 8;%1 = %0 % 4;%o = %1 * 64;%2 = %i % 8;%y = %o + %2;"
                "%v = tile.load %V[%y] : float32;tile.store %v, %r[%i]",
            ),
        ),
        (
            "%z = %t + %n;%h = %z // 4;%v = tile.load %V[%h] : float32;tile.store %v, %r[%t]",
            spelled("%z = %t + %n;%h = %z // 4;%v = tile.load %V[%h] : float32").split("\n"),
            ("32", "%0 = %i % 32;%z = %0 + %n;%h = %z // 4;%v = tile.load %V[%h] : float32;tile.store %v, %r[%i]"),
        ),
        (
            "%h = %t // %n;%v = tile.load %V[%h] : float32;tile.store %v, %r[%t]",
            spelled("%h = %t // %n;%v = tile.load %V[%h] : float32").split("\n"),
            ("32", "%0 = %i % 32;%h = %0 // %n;%v = tile.load %V[%h] : float32;tile.store %v, %r[%i]"),
        ),
        (
            "%h = %t % 3;%v = tile.load %V[%h] : float32;tile.store %v, %r[%t]",
            spelled("%h = %t % 3;%v = tile.load %V[%h] : float32").split("\n"),
            ("32", "%0 = %i % 32;%h = %0 % 3;%v = tile.load %V[%h] : float32;tile.store %v, %r[%i]"),
        ),
        (
            "%g = %t // 4;%h = %t % 4;%q = %t // 2;%v = tile.load %V[%q] : float32;tile.store %v, %s[%g, %h]",
            spelled("%q = %t // 2;%v = tile.load %V[%q] : float32").split("\n"),
            (
                "8, 4",
                "%0 = %j // 2;%1 = %0 % 2;%2 = %i % 8;%3 = %2 * 2;%4 = %1 + %3;"
                "%v = tile.load %V[%4] : float32;tile.store %v, %s[%i, %j]",
            ),
        ),
        (
            "%h = %t // 2;%v = tile.load %V[%h] : float32;tile.store %v, %r[%h]",
            spelled("%h = %t // 2;%v = tile.load %V[%h] : float32").split("\n"),
            ("16", "%0 = %i % 16;%v = tile.load %V[%0] : float32;tile.store %v, %r[%i]"),
        ),
    ):
        found = [re.sub(r"%([a-z])_1\b", r"%\1", line) for line in filled(body)]
        assert found == around(*kept, *over(*expected)), body


@pytest.mark.parametrize(
    "body",
    [
        f"%h = %t + 1;{LOAD};tile.store %v, %r[%h]",  # not from the first element on
        f"%h = %t * 2;{LOAD};tile.store %v, %r[%h]",  # with holes
        "%j = arith.xor %t, %c1 : int32;%v = tile.load %V[%j] : float32;tile.store %v, %r[%j]",  # no sum of digits
        f"%h = %t // 2;{LOAD};tile.store %v, %r[%h]",  # two threads write different values
        f"{LOAD};tile.store %v, %s[%t, %t]",  # a diagonal
        "%v = tile.load %s[%c0, %t] : float32;tile.store %v, %s[%c0, %t]",  # in place
        "%i = %t // 4;%j = %t % 4;%c = %j * 8;scf.for %c0, %c8, %c1 (%e: int32) {;%a = %c + %e;"
        f"%v = tile.load %X[%i, %a] : float32;tile.store %v, %s[%i, %a];tile.store %v, %s[%i, %a];{END}",  # twice
        f"%h = %t // %n;{LOAD};tile.store %v, %s[%h, %t]",  # which is not known
        f"{LOAD};tile.store %v, %X[%c0, %t]",  # not a tile
        f"{TURNS};{VARIABLE};tile.store %v, %s[%k, %t];{END};%z = tile.load %x[] : int32;tile.store %z, %x[]",
        f"%b = %n < 8;{TURNS};%a = tile.load %I[%k] : int32;{branch('tile.store %a, %x[]')};"
        f"%d = tile.load %x[] : int32;%v = tile.load %V[%d] : float32;tile.store %v, %s[%k, %t];{END}",
        "tile.store %t, %x[];%b = tile.load %x[] : int32;%v = tile.load %V[%b] : float32;tile.store %v, %r[%t]",
        f"{TURNS};%b = tile.load %x[] : int32;tile.store %k, %x[];%v = tile.load %V[%b] : float32;"
        f"tile.store %v, %s[%k, %t];{END}",  # what the turn before has stored
        f"{LOAD};tile.store %v, %r[%n];thread.barrier",
    ],
)
def test_shares_that_stay(body: str) -> None:
    assert filled(body) == around(*spelled(body).replace("[]", "").split("\n"))


def test_sums_are_tried_at_so_many_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum of both indices of a place: it is said by them, or each of what it adds up is."""
    body = f"{TURNS};%a = %k * 32;%b = %a + %t;%v = tile.load %V[%b] : float32;tile.store %v, %s[%k, %t];{END}"
    by_place = "%0 = %c0 + %j;%1 = %i * 32;%2 = %0 + %1;%v = tile.load %V[%2] : float32;tile.store %v, %s[%i, %j]"
    by_parts = (
        "%0 = %i % 4;%a = %0 * 32;%1 = %j % 32;%b = %a + %1;%v = tile.load %V[%b] : float32;tile.store %v, %s[%i, %j]"
    )
    for points, expected in ((1 << 20, by_place), (128, by_place), (127, by_parts), (32, by_parts)):
        monkeypatch.setattr("tiledsl.passes.merge_roles.shares._MOST_POINTS", points)
        assert filled(body) == over("4, 32", expected)
    monkeypatch.setattr("tiledsl.passes.merge_roles.shares._MOST_POINTS", 31)
    assert filled(body) == around(*spelled(body).split("\n"))


def test_terms_of_sums_and_digits_of_variables() -> None:
    made = whole("%a = %n * 3;%b = %n // 3;%c = %n - %a;%d = %b - %c;%e = %d - %n;%f = %n - %e", "n: int32")
    values = {value.name: value for op in kernel_of(made).walk() for value in op.results}
    assert [(term.name, sign) for term, sign in _terms(values["f"], 1)] == [
        ("n", 1), ("b", -1), ("n", 1), ("a", -1), ("n", 1),
    ]  # fmt: skip
    for size, digits in (
        (1, []),
        (2, [(1, 2)]),
        (3, [(1, 3)]),
        (8, [(1, 2), (2, 2), (4, 2)]),
        (12, [(1, 2), (2, 2), (4, 3)]),
    ):
        assert [(digit.weight, digit.size) for digit in _digits(values["a"], size)] == digits


def test_numbers_at_a_point() -> None:
    text = "%a = %n * 3;%b = %a - 4;%q = %b // %n;%w = tile.load %I[%n] : int32;%s = %b + %w"
    made = whole(text, "n: int32, I: 64*int32")
    values = {value.name: value for op in kernel_of(made).walk() for value in op.results}
    n = next(value for value in values["a"].op.operands if value.name == "n")  # type: ignore[union-attr]
    assert _number(values["b"], {n: 5}) == 11 and _number(values["q"], {n: 5}) == 2
    assert _number(values["b"], {}) is None and _number(values["q"], {n: 0}) is None  # a division by 0
    assert _number(values["s"], {n: 5}) is None and _number(values["s"], {n: 5, values["w"]: 2}) == 13


def test_threads_of_which_a_number_is_no_power_of_two() -> None:
    body = f"%i = %t // 12;%j = %t % 12;{LOAD};tile.store %v, %s[%i, %j]"
    assert filled(body, threads=24) == around(*spelled(body).split("\n"), threads=24)
    assert filled(PUT, threads=24) == around(
        LOAD, *over("24", ITEM.replace("% 32", "% 24").replace("%v", "%v_1")), threads=24
    )


@pytest.mark.parametrize("bounds", ["%c0, %n, %c1", "%c1, %c2, %c1", "%c0, %c4, %c2", "%c0, %c0, %c1"])
def test_a_loop_that_is_not_counted_from_0_on_stays_around_its_row(bounds: str) -> None:
    head = f"scf.for {bounds} (%k: int32) {{"
    row = ITEM.replace("%r[", "%s[%k, ").replace("%v", "%v_1")
    assert filled(f"{head};{ROW};{END}") == around(head, LOAD, *over("32", row), "scf.yield", "}")


@pytest.mark.parametrize(
    "other",
    [
        f"scf.for %c0, %n, %c1 (%e: int32) {{;tile.store %n, %x[];{END}",
        f"scf.for %c1, %c3, %c1 (%e: int32) {{;tile.store %n, %x[];{END}",
        "%e = scf.for %c0, %c2, %c1[%n] : int32 (%g: int32, %h: int32) {;scf.yield [%h];}",
        "%e = scf.if %b : int32 {;scf.yield [%n];} {;scf.yield [%t];}",
        "thread.barrier",
        f"scf.if %b {{;thread.barrier;{END} {{;{END}",
        f"scf.if %b {{;{END} {{;thread.barrier;{END}",
        f"scf.for %c0, %c2, %c1 (%e: int32) {{;thread.barrier;{END}",
        "tile.parallel {extents = (2,)} (%e: int32) {;thread.barrier;}",
    ],
)
def test_a_loop_that_does_more_stays_around_its_row(other: str) -> None:
    """A loop of another form, or of results, a branch with some, and what threads do together."""
    head = [*spelled("%b = %n < 8").split("\n"), TURNS]
    row = over("32", ITEM.replace("%r[", "%s[%k, ").replace("%v", "%v_1"))
    found = filled(f"%b = %n < 8;{TURNS};{ROW};{other};{END}")
    assert found[1 : 4 + len(row)] == [*head, LOAD, *row]
    assert filled(f"%b = %n < 8;{TURNS};{ROW};{END}")[1].startswith("tile.parallel {extents = (4, 32)}")


SAME = "%w = tile.load %s[%k, {}] : float32;tile.store %w, %tile[%k, %t]"


@pytest.mark.parametrize("place", ["%t", "%b"])
def test_what_was_just_stored_in_a_tile_is_what_is_loaded(place: str) -> None:
    """Of the same place, or one that is computed alike."""
    store = ROW if place == "%t" else f"%a = %t % 32;%b = %t % 32;{LOAD};tile.store %v, %s[%k, %a]"
    found = filled(f"{TURNS};{store};{SAME.format(place)};{END}")
    text = "%0 = %j % 32;%v = tile.load %V[%0] : float32;tile.store %v, %s[%i, %j]"
    again = "%1 = %j_1 % 32;%v_1 = tile.load %V[%1] : float32;tile.store %v_1, %tile[%i_1, %j_1]"
    assert found == [*over("4, 32", text), *[line.replace("(%i:", "(%i_1:").replace(", %j:", ", %j_1:") for line in
                                             over("4, 32", again)]]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        f"{TURNS};{ROW};{SAME.format('%c3')};{END}",  # another place
        f"{TURNS};%a = %t + 1;{ROW};{SAME.format('%a')};{END}",
        f"{TURNS};{SAME.format('%t')};{ROW};{END}",  # what was there before
        f"{TURNS};{ROW};{ROW.replace('%v', '%u')};{SAME.format('%t')};{END}",  # one of two
    ],
)
def test_what_else_is_loaded_of_a_tile_stays(body: str) -> None:
    assert any("tile.load %s[" in line for line in filled(body))
    assert filled(body)[0].startswith("tile.parallel {extents = (32,), lockstep = true}")


OTHER = "%w = tile.load %r[%t] : float32"
OLD = "tile.store %w, %tile[%c0, %t]"


@pytest.mark.parametrize(
    ("body", "moves"),
    [
        (f"{OTHER};{OLD}", True),
        (f"{OTHER};tile.fill %c0.0, %r;{OLD}", False),
        (f"{OTHER};tile.fill %c0.0, %s;{OLD}", True),
        (f"tile.fill %c0.0, %r;{OTHER};{OLD}", True),
        (f"{OTHER};{OLD};tile.fill %c0.0, %r", True),
        (f"{OTHER};{TURNS};{OLD};tile.fill %c0.0, %r;{END}", False),  # in the turn before
        (f"{TURNS};{OTHER};{OLD};tile.fill %c0.0, %r;{END}", True),
        (f"{LOAD};tile.store %n, %I[%c0];tile.store %v, %r[%t]", False),  # which may be V
        (f"{LOAD};tile.copy %X[%c0, %c0], %r {{shape = (32,), source_axes = (1,), target_axes = (0,)}};"
         "tile.store %v, %tile[%c0, %t]", True),
        (f"{OTHER};tile.copy %r, %V[%c0] {{shape = (32,), source_axes = (0,), target_axes = (0,)}};{OLD}", True),
    ],
)  # fmt: skip
def test_loads_that_give_the_same_where_the_tile_is_filled(body: str, moves: bool) -> None:
    """What was loaded before a write is not loaded behind it."""
    found = filled(body)
    assert any(re.fullmatch(r"tile.store %[vw], %(r|tile)\[(%c0, )?%t\]", line) for line in found) is not moves, found


def test_what_does_not_differ_from_thread_to_thread_is_done_once() -> None:
    once = "%v = tile.load %V[%n] : float32;tile.store %v, %r[%n]"
    for dead in ("%q = %t * 4;%p = %q + 1", "%q = %t * 4;%p = %q + 1;%w = %q + %p", "%q = %t * 4;%p = %q + %q"):
        assert filled(f"{dead};{once}") == once.split(";")
