"""merge-roles: what threads copy each for themselves, parts of tiles, and last turns behind a loop; exact IR."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.passes.ir_cases import body_lines, kernel_of, program
from tiledsl.dialects import scf, tile
from tiledsl.ir.kinds import of_kinds
from tiledsl.ir.pass_manager import Program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.merge_roles.parts import _reaches_beyond, _separate, divide_tiles, multiplies_parts, takes_parts
from tiledsl.passes.merge_roles.roles import Threads
from tiledsl.passes.merge_roles.shares import _digits, _number, _terms, dissolve, fill_together
from tiledsl.passes.merge_roles.turns import take_last_turns

KINDS = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "floormod"}
COMPARED = {"<": "lt", ">": "gt", "==": "eq", "!=": "ne", ">=": "ge"}


def spelled(text: str) -> str:
    """Statements `%x = %a + 3`, `%b = %a < 3`, one a line or separated by `;`, as IR."""
    made = []
    for line in map(str.strip, re.split(r"[;\n]", text)):
        found = re.fullmatch(r"(%\w+) = (%\w+) ([-+*/%<>=!]+) (%?\w+)", line)
        if found:
            name, lhs, kind, rhs = found.groups()
            rhs = rhs if rhs.startswith("%") else f"%c{rhs}"
            if kind in KINDS:
                line = f"{name} = arith.{KINDS[kind]} {lhs}, {rhs} : int32"
            else:
                line = f'{name} = arith.cmp {lhs}, {rhs} {{predicate = "{COMPARED[kind]}"}} : bool'
        made.append(line)
    return "\n".join(made)


def whole(body: str, parameters: str) -> Program:
    made = program(spelled(body), parameters=parameters, grid=(1,))
    end = kernel_of(made).regions[0].last
    assert end is not None
    end.erase()
    return made


def lines_of(made: Program) -> list[str]:
    """The lines of the kernel but for constants, which are named by their value."""
    verify(made.root)
    body_lines(made)  # names constants
    found = [line.strip() for line in print_op(kernel_of(made)).splitlines()[1:-1]]
    return [re.sub(r"%(c\w+?)_\d+\b", r"%\1", line) for line in found if "= arith.constant" not in line]


def allocated(lines: list[str]) -> tuple[list[str], list[str]]:
    """The tiles with their sizes, and the other lines."""
    tiles = [line.replace(" = tile.alloc", "") for line in lines if "tile.alloc" in line]
    return tiles, [line for line in lines if "tile.alloc" not in line]


# Shares of threads


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


def around(*lines: str, threads: int = 32) -> list[str]:
    return [f"tile.parallel {{extents = ({threads},), lockstep = true}} (%t: int32) {{", *lines, "}"]


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


# Parts of tiles


def copy(source: str, target: str, shape: tuple[int, int], more: str = "") -> str:
    return f"tile.copy {source}, {target} {{shape = {shape}, source_axes = (0, 1), target_axes = (0, 1){more}}}"


def columns(at: int, to: int, of: str = "%s") -> str:
    """A copy of columns of a tile to Y."""
    return copy(f"{of}[%c0, %c{at}]", f"%Y[%c0, %c{at}]", (32, to - at))


def rows(at: int, to: int) -> str:
    return copy(f"%s[%c{at}, %c0]", f"%Y[%c{at}, %c0]", (to - at, 64))


def divided(*statements: str, tiles: str = "s: 32*64*float16, p: 32*32*float16") -> tuple[list[str], list[str]]:
    heads = [
        f"%{name} = tile.alloc : buffer<{type}, {'fragment' if 'float32' in type else 'shared'}>"
        for name, type in (each.split(": ") for each in tiles.split(", "))
    ]
    made = whole(";".join([*heads, *statements]), "X: 64*64*float16, Y: 64*64*float16, n: int32, h: float16")
    kernel = kernel_of(made)
    assert isinstance(kernel, tile.KernelOp)
    divide_tiles(kernel)
    sizes, found = allocated(lines_of(made))
    return [re.sub(r"%(\w+) : buffer<(.*)\*float\d+, .*", r"\1 \2", each) for each in sizes], found


IN = copy("%X[%c0, %c0]", "%s[%c0, %c0]", (32, 64))
LEFT = copy("%X[%c0, %c0]", "%s[%c0, %c0]", (32, 32))


def test_parts_of_columns_and_rows_become_tiles() -> None:
    """Parts of different sizes, too; what writes all writes each, at the place where it starts."""
    sizes, found = divided(copy("%X[%n, %c4]", "%s[%c0, %c0]", (32, 64)), columns(0, 24), columns(24, 64))
    assert sizes == ["s 32*24", "s_1 32*40", "p 32*32"]
    assert found == [
        copy("%X[%n, %c4]", "%s[%c0, %c0]", (32, 24)),
        "%0 = arith.add %c4, %c24 : int32",
        copy("%X[%n, %0]", "%s_1[%c0, %c0]", (32, 40)),
        copy("%s[%c0, %c0]", "%Y[%c0, %c0]", (32, 24)),
        copy("%s_1[%c0, %c0]", "%Y[%c0, %c24]", (32, 40)),
    ]
    sizes, found = divided(copy("%X", "%s", (32, 64)), rows(8, 32), rows(0, 8))
    assert sizes == ["s 8*64", "s_1 24*64", "p 32*32"]
    assert found == [
        copy("%X[%c0, %c0]", "%s", (8, 64)),
        "%0 = arith.add %c0, %c8 : int32",
        copy("%X[%0, %c0]", "%s_1", (24, 64)),
        copy("%s_1[%c0, %c0]", "%Y[%c8, %c0]", (24, 64)),
        copy("%s[%c0, %c0]", "%Y[%c0, %c0]", (8, 64)),
    ]


@pytest.mark.parametrize(
    "statements",
    [
        [columns(0, 32)],  # one part
        [columns(0, 32), columns(32, 48)],  # not all
        [columns(16, 32), columns(32, 64)],
        [columns(0, 32), columns(16, 64)],  # parts that overlap
        [columns(0, 24), columns(32, 64)],  # and with a hole
        [columns(0, 32), columns(32, 64), copy("%s", "%Y", (32, 64))],  # all is read
        [columns(0, 32), columns(32, 64).replace("%s[%c0, %c32]", "%s[%c0, %n]")],  # a place that is not known
        [columns(0, 32), columns(32, 64), "%v = tile.load %s[%n, %n] : float16;tile.store %v, %Y[%n, %n]"],
        [columns(0, 32), columns(32, 64), copy("%s[%c0, %c0]", "%s[%c0, %c32]", (32, 32))],  # within the tile
        [
            columns(0, 32),
            columns(32, 64),
            LEFT.replace("32)", "16)"),
            copy("%X[%n, %c16]", "%s[%c0, %c16]", (32, 48)),
        ],  # written in other parts
        [copy("%s[%c0, %c0]", "%Y[%c0, %c0]", (16, 32)), copy("%s[%c8, %c24]", "%Y[%c0, %c0]", (24, 40))],
    ],
)
def test_tiles_that_stay_one(statements: list[str]) -> None:
    sizes, found = divided(IN, *statements)
    assert sizes == ["s 32*64", "p 32*32"]
    assert found == [IN, *";".join(statements).split(";")]


def test_tiles_in_registers_stay_one() -> None:
    sizes, found = divided(IN, columns(0, 32), columns(32, 64), tiles="s: 32*64*float32")
    assert sizes == ["s 32*64"] and found == [IN, columns(0, 32), columns(32, 64)]


def stored(extents: str, more: str = "", value: str = "%v = tile.load %X[%i, %j] : float16") -> str:
    return (
        f"tile.parallel {{extents = ({extents})}} (%i: int32, %j: int32) {{;%z = %i + %j;{value};tile.store %v, "
        f"%s[%i, %j]{more};}}"
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("value", ["%v = tile.load %X[%i, %j] : float16", "%v = arith.cast %AXIS : float16"])
def test_a_loop_that_writes_a_tile_becomes_one_for_each_part(axis: int, value: str) -> None:
    """In which what is computed of the index counts on."""
    size, index = (32, "i") if axis == 0 else (64, "j")
    value = value.replace("AXIS", index)
    reads = [rows(0, 16), rows(16, 32)] if axis == 0 else [columns(0, 32), columns(32, 64)]
    sizes, found = divided(stored("32, 64", value=value), *reads)
    half = size // 2
    part = "16, 64" if axis == 0 else "32, 32"
    first = spelled(stored(part, value=value)).split("\n")
    second = re.sub(r"%([ij])", r"%\1_1", stored(part, value=value)).replace("%v", "%v_1").replace("%z", "%z_1")
    head, z, value, store, end = spelled(second).replace("%s[", "%s_1[").split("\n")
    moved = [line.replace(f"%{index}_1", "%0") for line in (z, value)]
    assert sizes == [*(["s 16*64", "s_1 16*64"] if axis == 0 else ["s 32*32", "s_1 32*32"]), "p 32*32"]
    assert found[:10] == [*first, head, f"%0 = arith.add %{index}_1, %c{half} : int32", *moved, store]
    assert found[10] == end


def test_what_else_is_said_by_the_index_counts_on() -> None:
    """The other index of a diagonal, and a mask."""
    loop = "tile.parallel {extents = (64,)} (%i: int32) {;%m = %i < %n;tile.store %z, %s[%i, %i] mask=%m;}"
    parts = [copy(f"%s[%c0, %c{at}]", f"%Y[%c0, %c{at}]", (64, 32)) for at in (0, 32)]
    _, found = divided("%z = arith.cast %n : float16", loop, *parts, tiles="s: 64*64*float16")
    assert found[1:9] == [
        "tile.parallel {extents = (32,)} (%i: int32) {",
        '%m = arith.cmp %i, %n {predicate = "lt"} : bool',
        "tile.store %z, %s[%i, %i] mask=%m",
        "}",
        "tile.parallel {extents = (32,)} (%i_1: int32) {",
        "%0 = arith.add %i_1, %c32 : int32",
        '%m_1 = arith.cmp %0, %n {predicate = "lt"} : bool',
        "tile.store %z, %s_1[%0, %i_1] mask=%m_1",
    ]
    inside = loop.replace("tile.store", "scf.if %m {;tile.store").replace(" mask=%m;}", ";scf.yield;} {;scf.yield;};}")
    _, found = divided("%z = arith.cast %n : float16", inside, *parts, tiles="s: 64*64*float16")
    assert [line for line in found if "store" in line] == ["tile.store %z, %s[%i, %i]", "tile.store %z, %s_1[%0, %i_1]"]


@pytest.mark.parametrize("axis", [0, 1])
def test_the_index_that_is_written_counts_on_too(axis: int) -> None:
    index, size = "ij"[axis], (32, 64)[axis]
    loop = "tile.parallel {extents = (32, 64)} (%i: int32, %j: int32) {;" + f"tile.store %{index}, %s[%i, %j];}}"
    reads = [rows(0, 16), rows(16, 32)] if axis == 0 else [columns(0, 32), columns(32, 64)]
    _, found = divided(loop, *reads, tiles="s: 32*64*int32")
    extents = "(16, 64)" if axis == 0 else "(32, 32)"
    assert found[:7] == [
        f"tile.parallel {{extents = {extents}}} (%i: int32, %j: int32) {{",
        f"tile.store %{index}, %s[%i, %j]",
        "}",
        f"tile.parallel {{extents = {extents}}} (%i_1: int32, %j_1: int32) {{",
        f"%0 = arith.add %{index}_1, %c{size // 2} : int32",
        "tile.store %0, %s_1[%i_1, %j_1]",
        "}",
    ]


@pytest.mark.parametrize("loop", [stored("32, 60"), stored("32, 64", ";tile.store %v, %Y[%i, %j]")])
def test_a_loop_that_writes_a_part_or_more_divides_no_tile(loop: str) -> None:
    sizes, found = divided(loop, columns(0, 32), columns(32, 64))
    assert sizes == ["s 32*64", "p 32*32"]
    assert found == [*spelled(loop).split("\n"), columns(0, 32), columns(32, 64)]


RIGHT = copy("%X[%c0, %c32]", "%s[%c0, %c32]", (32, 32))
READ = copy("%s[%c0, %c0]", "%Z[%c0, %c0]", (32, 64))  # so that the tile is not divided
OWN = copy("%s[%c0, %c0]", "%p[%c0, %c0]", (32, 32))
ROW_OF = "tile.copy %s[%c{}, %c0], %p[%c0, %c0] {{shape = (32,), source_axes = (1,), target_axes = (1,)}}"


@pytest.mark.parametrize(
    ("second", "between", "joined"),
    [
        (RIGHT, None, True),
        (RIGHT, OWN, True),  # of what the first one has filled
        (RIGHT, "%m = %n + 16", True),
        (RIGHT, "%g = tile.load %X[%n, %n] : float16", True),
        (RIGHT, copy("%X[%c0, %c0]", "%p[%c0, %c0]", (32, 32)), True),  # of another tile
        (RIGHT, copy("%X[%c40, %c40]", "%p[%c0, %c0]", (16, 16)), True),
        (RIGHT, "tile.store %h, %X[%n, %n]", False),
        (RIGHT, ROW_OF.format(31), True),
        (RIGHT, ROW_OF.format(32), False),
        (RIGHT, OWN.replace("%s[%c0, %c0]", "%s[%c0, %c16]"), False),  # more
        (RIGHT, OWN.replace("%s[%c0, %c0]", "%s[%c0, %n]"), False),  # not known
        (RIGHT, copy("%p[%c0, %c0]", "%X[%c0, %c0]", (32, 32)), False),  # something else is written
        (RIGHT, "%h = tile.load %s[%n, %n] : float16", False),
        (RIGHT.replace("%X[%c0, %c32]", "%X[%c0, %c40]"), None, False),
        (RIGHT.replace("%X[%c0, %c32]", "%X[%c1, %c32]"), None, False),
        (RIGHT.replace("%X[%c0, %c32]", "%X[%c0, %n]"), None, False),
        (RIGHT.replace("%s[%c0, %c32]", "%s[%c0, %c31]"), None, False),
        (RIGHT.replace("%X", "%Y"), None, False),
        (RIGHT.replace("%s", "%q"), None, False),
        (RIGHT.replace("(32, 32)", "(31, 32)"), None, False),
        (RIGHT.replace("source_axes = (0, 1)", "source_axes = (1, 0)"), None, False),
        (RIGHT, "tile.fill %h, %q", True),
        (RIGHT.replace("}", ', eviction = "evict_first"}'), None, False),
        (copy("%X", "%s", (32, 64)), None, False),
    ],
)
def test_copies_of_neighbouring_parts_become_one(second: str, between: str | None, joined: bool) -> None:
    whole_read = copy("%s", "%Y", (32, 64))
    middle = [between] if between is not None else []
    tiles = "s: 32*64*float16, p: 32*32*float16, q: 32*64*float16"
    _, found = divided(LEFT, *middle, second, whole_read, tiles=tiles)
    expected = [LEFT.replace("(32, 32)", "(32, 64)"), *middle] if joined else [LEFT, *middle, second]
    assert found == [*spelled(";".join(expected)).split("\n"), whole_read]


@pytest.mark.parametrize(
    ("filled", "read", "beyond"),
    [
        (("%s[%c0, %c0]", (8, 16)), ("%s[%c0, %c0]", (8, 16)), False),
        (("%s[%c0, %c0]", (8, 16)), ("%s[%c0, %c0]", (8, 17)), True),
        (("%s[%c0, %c0]", (8, 16)), ("%s[%c0, %c0]", (9, 16)), True),
        (("%s[%c0, %c0]", (8, 16)), ("%s[%c1, %c2]", (7, 14)), False),
        (("%s[%c0, %c0]", (8, 16)), ("%s[%c1, %c2]", (8, 14)), True),
        (("%s[%c1, %c0]", (8, 16)), ("%s[%c0, %c0]", (8, 16)), True),
        (("%s[%c0, %c1]", (8, 16)), ("%s[%c0, %c0]", (8, 16)), True),
        (("%s[%c0, %n]", (8, 16)), ("%s[%c0, %n]", (8, 16)), True),  # which may be another one
        (("%s", (32, 64)), ("%s[%c31, %c63]", (1, 1)), False),
        (("%s[%c0, %c0]", (32, 64)), ("%s", (32, 64)), False),
        (("%s[%c0, %c0]", (31, 64)), ("%s", (32, 64)), True),
    ],
)
def test_what_is_read_beyond_what_a_copy_has_filled(
    filled: tuple[str, tuple[int, int]], read: tuple[str, tuple[int, int]], beyond: bool
) -> None:
    (target, size), (source, extent) = filled, read
    text = ["%s = tile.alloc : buffer<32*64*float16, shared>", copy("%X", target, size), copy(source, "%Y", extent)]
    first, second = of_kinds(kernel_of(whole(";".join(text), "X: 64*64*float16, Y: 64*64*float16, n: int32")).walk(),
                             tile.CopyOp)  # fmt: skip
    assert _reaches_beyond(second, first) is beyond


@pytest.mark.parametrize("buffers", [("%s", "%s"), ("%X", "%Y")])
def test_copies_within_a_tile_or_beside_tiles_stay_two(buffers: tuple[str, str]) -> None:
    """Of which the second may read what the first one writes."""
    source, target = buffers
    copies = [copy(f"{source}[%c0, %c{at}]", f"{target}[%c0, %c{at + 16}]", (32, 16)) for at in (0, 16)]
    assert divided(*copies)[1] == copies


def test_rows_with_a_number_that_is_not_known_go_on() -> None:
    first, second = copy("%X[%n, %c0]", "%s", (16, 64)), copy("%X[%m, %c0]", "%s[%c16, %c0]", (16, 64))
    whole_read = copy("%s", "%Y", (32, 64))
    _, found = divided(first, "%m = %n + 16", second, whole_read)
    assert found == [copy("%X[%n, %c0]", "%s", (32, 64)), "%m = arith.add %n, %c16 : int32", whole_read]


# Products of parts along K


def products(
    trans_a: bool,
    trans_b: bool,
    *,
    a: tuple[int, int] = (0, 32),
    b: tuple[int, int] = (0, 32),
    target: str = "%c",
    between: str = "",
    more: str = "",
) -> list[str]:
    """Two products of halves of s and u along K, into c and the target; then u and s are not divided."""
    made = [copy("%X", "%s", (64, 32) if trans_a else (32, 64)), copy("%Y", "%u", (48, 64) if trans_b else (64, 48))]
    flags = [name for name, holds in (("trans_a = true", trans_a), ("trans_b = true", trans_b)) if holds]
    for number in (0, 1):
        at = f"%c{a[number]}, %c0" if trans_a else f"%c0, %c{a[number]}"
        made.append(copy(f"%s[{at}]", f"%a{number}", (32, 32)))
        at = f"%c0, %c{b[number]}" if trans_b else f"%c{b[number]}, %c0"
        made.append(copy(f"%u[{at}]", f"%b{number}", (48, 32) if trans_b else (32, 48)))
        attributes = ", ".join([*flags, *([more] if number and more else [])])
        made += [between] if number and between else []
        made.append(
            f"tile.gemm %a{number}, %b{number}, {target if number else '%c'}"
            + (f" {{{attributes}}}" if attributes else "")
        )
    return made


def tiles_of(trans_a: bool, trans_b: bool) -> str:
    b = "48*32*float16" if trans_b else "32*48*float16"
    s, u = "64*32" if trans_a else "32*64", "48*64" if trans_b else "64*48"
    return (
        f"s: {s}*float16, u: {u}*float16, c: 32*48*float32, d: 32*48*float32, a0: 32*32*float16, b0: {b}, "
        f"a1: 32*32*float16, b1: {b}"
    )


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_products_of_neighbouring_parts_become_one(trans_a: bool, trans_b: bool) -> None:
    sizes, found = divided(*products(trans_a, trans_b), tiles=tiles_of(trans_a, trans_b))
    s, u = "64*32" if trans_a else "32*64", "48*64" if trans_b else "64*48"
    statements = products(trans_a, trans_b)
    assert sizes == [f"s {s}", f"u {u}", "c 32*48", "d 32*48", f"a0 {s}", f"b0 {u}"]
    assert found == [
        *statements[:2],
        statements[2].replace("(32, 32)", "(64, 32)" if trans_a else "(32, 64)"),
        statements[3].replace("(48, 32)", "(48, 64)").replace("(32, 48)", "(64, 48)"),
        statements[4],
    ]


def test_a_first_part_may_be_without_offsets() -> None:
    statements = [re.sub(r"(%[su])\[%c0, %c0\]", r"\1", each) for each in products(False, False)]
    assert statements[2].startswith("tile.copy %s, %a0 {")
    _, found = divided(*statements, tiles=tiles_of(False, False))
    assert found == [
        *statements[:2],
        statements[2].replace("(32, 32)", "(32, 64)"),
        statements[3].replace("(32, 48)", "(64, 48)"),
        "tile.gemm %a0, %b0, %c",
    ]


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        {"a": (0, 16)},
        {"b": (0, 16)},
        {"a": (32, 0), "b": (32, 0)},
        {"target": "%d"},
        {"between": "tile.fill %c0.0, %d"},
        {"more": "clear = true"},
        {"more": 'precision = "ieee"'},
    ],
)
def test_products_that_stay_two(trans_a: bool, trans_b: bool, change: Any) -> None:
    sizes, found = divided(*products(trans_a, trans_b, **change), tiles=tiles_of(trans_a, trans_b))
    assert [each for each in found if each.startswith("tile.gemm")] == [
        each for each in products(trans_a, trans_b, **change) if each.startswith("tile.gemm")
    ]
    b = "48*32" if trans_b else "32*48"
    assert [each for each in sizes if each[0] in "ab"] == ["a0 32*32", f"b0 {b}", "a1 32*32", f"b1 {b}"]


PART = copy("%s[%c0, %c0]", "%f", (32, 32))
MORE = ", e: 16*32*float16, f: 32*32*float16, w: 32*48*float16, v: 16*32*float16, g: 16*32*float32, h: 32*float16"


@pytest.mark.parametrize(
    ("more", "joined"),
    [
        ([PART, "tile.gemm %f, %w, %d"], True),  # a third product along K
        ([PART, "tile.gemm %v, %f, %g {trans_b = true}"], True),
        ([PART, "tile.gemm %v, %f, %g"], False),  # K of the second operand are its rows
        ([PART, "tile.gemm %f, %w, %d {trans_a = true}"], False),
        ([copy("%s[%c0, %c0]", "%e", (16, 32)), "tile.gemm %e, %w, %g2"], False),  # not all rows
        ([PART, 'tile.reduce %f, %h {kind = "sum", axis = 1}'], False),
        ([copy("%s[%c0, %c0]", "%Y[%c0, %c0]", (32, 32))], False),
        ([copy("%s[%c0, %c0]", "%s[%c0, %c32]", (32, 32))], False),  # within the tile
        ([copy("%s[%c0, %c0]", "%Y[%c0, %c0]", (32, 64))], True),  # all of it
        (["%z = tile.load %s[%n, %n] : float16", "tile.store %z, %Y[%n, %n]"], True),  # no part
    ],
)
def test_products_join_where_all_other_parts_of_their_tiles_are_along_k(more: list[str], joined: bool) -> None:
    tiles = tiles_of(False, False) + MORE + ", g2: 16*48*float32"
    _, found = divided(*products(False, False), *more, tiles=tiles)
    assert ("tile.gemm %a1, %b1, %c" not in found) is joined


GRAM = "tile.gemm %a0, %a0, %c {trans_b = true}"
A0, A1 = copy("%s[%c0, %c0]", "%a0", (32, 32)), copy("%s[%c0, %c32]", "%a1", (32, 32))
B0, B1 = copy("%u[%c0, %c0]", "%b0", (32, 32)), copy("%u[%c32, %c0]", "%b1", (32, 32))


@pytest.mark.parametrize(
    "statements",
    [
        [A0, GRAM, A1, GRAM.replace("a0", "a1")],  # of a tile with itself
        [A0, B0, "tile.gemm %a0, %b0, %c", A1, GRAM.replace("a0", "a1")],
        [A0, GRAM, A1, B1, "tile.gemm %a1, %b1, %c"],
        ["tile.gemm %a0, %b0, %c", A0, B0, A1, B1, "tile.gemm %a1, %b1, %c"],  # of what was there before
        [A0, B0, "tile.gemm %a0, %b0, %c", A1, B1, "tile.gemm %a1, %b1, %c", "tile.gemm %a1, %w, %c"],  # used again
        [A0, B0, "tile.gemm %a0, %b0, %c", A1, B1, "tile.gemm %a1, %b1, %c", "tile.gemm %a0, %w, %c"],
        [A0.replace("%s", "%X"), B0, "tile.gemm %a0, %b0, %c", A1.replace("%s", "%X"), B1, "tile.gemm %a1, %b1, %c"],
    ],
)
def test_products_whose_operands_are_no_two_parts_stay_two(statements: list[str]) -> None:
    tiles = ["s: 32*64*float16", "u: 64*32*float16", "c: 32*32*float32"]
    tiles += [f"{name}: 32*32*float16" for name in ("a0", "a1", "b0", "b1", "w")]
    _, found = divided(*statements, tiles=", ".join(tiles))
    assert sum(each.startswith("tile.gemm") for each in found) == sum("gemm" in each for each in statements)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%s[%c0, %c32]", "%s[%c0, %n]"),
        ("%s[%c0, %c0]", "%s[%c0, %n]"),
        ("%s[%c0, %c0]", "%s[%n, %c0]"),
        ("%s[%c0, %c32]", "%s[%c1, %c32]"),
        ("%u[%c32, %c0]", "%u[%c32, %n]"),
        ("%s[%c0, %c32]", "%o[%c0, %c32]"),
    ],
)
def test_parts_along_k_are_at_known_places_of_one_tile(before: str, after: str) -> None:
    statements = [copy("%Y[%c0, %c0]", "%o", (32, 64)), *products(False, False)]
    all_tiles = tiles_of(False, False) + ", o: 32*64*float16"
    assert sum(before in each for each in statements) == 1
    changed = [each.replace(before, after) for each in statements]
    _, found = divided(*changed, tiles=all_tiles)
    assert "tile.gemm %a1, %b1, %c" in found
    for part in ("%a0 ", "%a1 ", "%b1 "):
        turned = [
            each.replace("source_axes = (0, 1)", "source_axes = (1, 0)") if part in each else each
            for each in statements
        ]
        assert turned != statements and "tile.gemm %a1, %b1, %c" in divided(*turned, tiles=all_tiles)[1]
    deep = [re.sub(r"%s\[([^]]*)\]", r"%s[\1, %c0]", each) for each in statements]
    assert deep != statements
    assert "tile.gemm %a1, %b1, %c" in divided(*deep, tiles=all_tiles.replace("s: 32*64", "s: 32*64*1"))[1]
    half = [each.replace("(32, 32)", "(32, 16)") if "%a1 " in each else each for each in statements]
    assert half != statements and "tile.gemm %a1, %b1, %c" in divided(*half, tiles=all_tiles)[1]
    assert "tile.gemm %a1, %b1, %c" not in divided(*statements, tiles=all_tiles)[1]


def points(statement: str, extents: str = "32, 32", more: str = "") -> str:
    return f"tile.parallel {{extents = ({extents})}} (%i: int32, %j: int32) {{;{statement}{more};}}"


ZEROS, PRODUCT = "tile.store %c0.0, %c[%i, %j]", "tile.gemm %a, %b, %c"
WHOLE = "{shape = (32, 32), source_axes = (0, 1), target_axes = (0, 1)}"
CLEARED = "c: 32*32*float32, d: 32*32*float32, e: 32*64*float32, a: 32*32*float16, b: 32*32*float16"
UNCHANGED = "%v = tile.load %c[%i, %j] : float32;tile.store %v, %c[%i, %j]"


@pytest.mark.parametrize(
    ("statements", "clears"),
    [
        ([points(ZEROS), PRODUCT], True),
        ([points(f"%z = %i + %j;{ZEROS}"), "%z = %n + 1", f"tile.copy %X, %a {WHOLE}", PRODUCT], True),
        ([points("tile.store %c0.0, %d[%i, %j]"), points(ZEROS), PRODUCT], True),
        ([points(ZEROS), points(UNCHANGED), PRODUCT], True),
        ([points(ZEROS), f"tile.copy %c, %d {WHOLE}", PRODUCT], False),  # what is there is read before
        ([points(ZEROS), f"tile.copy %d, %c {WHOLE}", PRODUCT], False),
        ([points(ZEROS), "tile.fill %c0.0, %d", PRODUCT], False),  # which may be anything
        ([points(ZEROS), "tile.gemm %a, %b, %d", PRODUCT], False),
        ([points(ZEROS), "tile.gemm %a, %b, %d"], False),
        ([points(ZEROS), "tile.gemm %c, %c, %c"], False),  # what is multiplied is there already
        ([points("tile.store %c1.0, %c[%i, %j]"), PRODUCT], False),
        ([points(ZEROS), points("tile.store %c1.0, %c[%i, %j]"), PRODUCT], False),
        ([points("tile.store %c0.0, %c[%j, %i]"), PRODUCT], False),
        ([points("%m = %i < %j;tile.store %c0.0, %c[%i, %j] mask=%m"), PRODUCT], False),
        ([points(ZEROS, "16, 32"), PRODUCT], False),
        ([points(ZEROS, more=";%z = %i + %j;tile.store %c1.0, %e[%i, %z]"), PRODUCT], False),
        ([points("%v = tile.load %e[%i, %j] : float32;tile.store %v, %c[%i, %j]"), PRODUCT], False),
    ],
)
def test_zeros_in_front_of_a_product_are_its_own(statements: list[str], clears: bool) -> None:
    found = [re.sub(r"%([ij])_1\b", r"%\1", line) for line in divided(*statements, tiles=CLEARED)[1]]
    if clears:
        assert found[-1] == f"{PRODUCT} {{clear = true}}" and "tile.store %c0p0, %c[%i, %j]" not in found
    else:
        assert found == spelled(";".join(statements)).replace("0.0", "0p0").replace("1.0", "1p0").split("\n")


@pytest.mark.parametrize(
    ("statement", "stays"), [(UNCHANGED, False), (UNCHANGED.replace("load %c", "load %d"), True),
                             (UNCHANGED.replace("load %c[%i, %j]", "load %c[%j, %i]"), True)],
)  # fmt: skip
def test_a_store_of_what_is_there_goes(statement: str, stays: bool) -> None:
    found = divided(points(statement), PRODUCT, tiles=CLEARED)[1]
    assert found == [*(spelled(points(statement)).split("\n") if stays else []), PRODUCT]


LEFT_PART, RIGHT_PART = copy("%s[%c0, %c0]", "%a", (32, 32)), copy("%u[%c0, %c0]", "%b", (32, 32))


@pytest.mark.parametrize(
    ("s", "u", "left", "right", "flags", "of_parts"),
    [
        ("32*64", "64*32", LEFT_PART, RIGHT_PART, "", True),
        ("32*32", "64*32", LEFT_PART, RIGHT_PART, "", False),
        ("32*64", "32*32", LEFT_PART, RIGHT_PART, "", False),
        ("64*32", "64*32", LEFT_PART, RIGHT_PART, "", False),  # rows of the left operand
        ("32*64", "32*64", LEFT_PART, RIGHT_PART, "", False),
        ("64*32", "64*32", LEFT_PART, RIGHT_PART, "{trans_a = true}", True),
        ("32*64", "64*32", LEFT_PART, RIGHT_PART, "{trans_a = true}", False),
        ("32*64", "32*64", LEFT_PART, RIGHT_PART, "{trans_b = true}", True),
        ("32*64", "64*32", LEFT_PART, RIGHT_PART, "{trans_b = true}", False),
        ("64*32", "64*32", LEFT_PART.replace("source_axes = (0, 1)", "source_axes = (1, 0)"), RIGHT_PART, "", True),
        ("32*64", "64*32", LEFT_PART.replace("%s", "%X"), RIGHT_PART, "", False),  # which is no tile
        ("32*64", "64*32", copy("%a", "%s[%c0, %c0]", (32, 32)), RIGHT_PART, "", False),
        ("32*64", "64*32", ROW_OF.format(0).replace("%p", "%a"), RIGHT_PART, "", False),  # no tile of two dimensions
    ],
)  # fmt: skip
def test_products_of_parts_along_k(s: str, u: str, left: str, right: str, flags: str, of_parts: bool) -> None:
    tiles = {"s": s, "u": u, "a": "32*32", "b": "32*32"}
    text = [f"%{name} = tile.alloc : buffer<{shape}*float16, shared>" for name, shape in tiles.items()]
    text += ["%c = tile.alloc : buffer<32*32*float32, fragment>", left, right, f"tile.gemm %a, %b, %c {flags}"]
    (product,) = of_kinds(kernel_of(whole(";".join(text), "X: 64*64*float16")).walk(), tile.GemmOp)
    assert multiplies_parts(product) is of_parts


@pytest.mark.parametrize(("barrier", "of_parts"), [(True, True), (True, False), (False, True)])
def test_sums_of_parts_are_said_to_be_in_another_order(barrier: bool, of_parts: bool) -> None:
    """Where roles are merged, which is where there are barriers."""
    text = [f"%{name} = tile.alloc : buffer<{shape}*float16, shared>" for name, shape in
            {"s": "32*64" if of_parts else "32*32", "u": "64*32", "a": "32*32", "b": "32*32"}.items()]  # fmt: skip
    text += ["%c = tile.alloc : buffer<32*32*float32, fragment>", "%ready = tile.alloc : buffer<1*uint64, shared>"]
    text += ["thread.init_barriers %ready {counts = (32,)}"] * barrier
    text += [LEFT_PART, RIGHT_PART, "tile.gemm %a, %b, %c", "tile.gemm %b, %b, %c"]
    made = whole(";".join(text), "X: 64*64*float16")
    assert MergeRoles().allowances(made) == ({"reassociation"} if barrier and of_parts else set())


A_HALF, A_OTHER = copy("%s[%c0, %c0]", "%a", (32, 32)), copy("%s[%c0, %c32]", "%a", (32, 32))
TO_C, TO_D = "tile.gemm %a, %b, %c", "tile.gemm %a, %b, %d"


def apart(*statements: str) -> tuple[list[str], list[str]]:
    """The names of tiles and the other lines after `a` has become one for each part, if it has."""
    shapes = {"s": "32*64*float16", "b": "32*32*float16", "a": "32*32*float16"}
    text = [f"%{name} = tile.alloc : buffer<{shape}, shared>" for name, shape in shapes.items()]
    text += [f"%{name} = tile.alloc : buffer<32*32*float32, fragment>" for name in "cd"]
    made = whole(";".join([*text, *statements]), "X: 64*64*float16, Y: 64*64*float16, n: int32")
    _separate(next(op for op in of_kinds(kernel_of(made).walk(), tile.AllocOp) if op.out.name == "a"))
    tiles, found = allocated(lines_of(made))
    return [each.split(" ")[0] for each in tiles], found


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ([A_HALF, TO_C, A_OTHER, TO_D], [A_HALF, TO_C, *(each.replace("%a", "%a_1") for each in (A_OTHER, TO_D))]),
        (
            [A_HALF, "tile.fill %c0.0, %d", TO_C, TO_D, A_OTHER, TO_C],
            [A_HALF, "tile.fill %c0p0, %d", TO_C, TO_D, *(each.replace("%a", "%a_1") for each in (A_OTHER, TO_C))],
        ),
        ([A_HALF, "tile.gemm %b, %a, %c", A_OTHER, TO_D],
         [A_HALF, "tile.gemm %b, %a, %c", *(each.replace("%a", "%a_1") for each in (A_OTHER, TO_D))]),
        ([A_HALF, TO_C], None),  # there is one copy
        ([A_HALF, TO_C, A_OTHER], [A_HALF, TO_C, A_OTHER.replace("%a", "%a_1")]),
        ([TO_C, A_HALF, TO_C, A_OTHER, TO_D], None),  # what it held before
        ([A_HALF, TO_C, A_OTHER.replace("(32, 32)", "(32, 16)"), TO_D], None),  # of which the rest stays
        ([A_HALF, TO_C, A_OTHER.replace("%s", "%X"), TO_D], None),  # no part of a tile
        ([A_HALF, TO_C, A_OTHER, TO_D, copy("%a", "%Y[%c0, %c0]", (32, 32))], None),  # read by something else
        ([A_HALF, TO_C, A_OTHER, TO_D, copy("%a[%c0, %c0]", "%a[%c0, %c0]", (32, 32))], None),
        ([A_HALF, TO_C, A_OTHER, "tile.gemm %b, %b, %a"], None),  # and written
        ([A_HALF, TO_C, f"scf.for %c0, %c4, %c1 (%k: int32) {{;{A_OTHER};{TO_D};scf.yield;}}"], None),  # or elsewhere
        ([], None),
    ],
)  # fmt: skip
def test_a_tile_that_parts_are_copied_to_becomes_one_for_each(
    statements: list[str], expected: list[str] | None
) -> None:
    names, found = apart(*statements)
    assert names == ["%s", "%b", "%a", *(["%a_1"] if expected else []), "%c", "%d"]
    assert found == (expected or [line for each in statements for line in each.split(";")])


@pytest.mark.parametrize(
    ("source", "target", "operand", "takes"),
    [
        ("%s[%k, %c0]", "%a", "%a", True),
        ("%s[%c0, %k]", "%a", "%a", True),
        ("%s[%c0, %m]", "%a", "%a", True),  # which is computed from the index
        ("%s[%c0, %c0]", "%a", "%a", False),
        ("%s[%c0, %n]", "%a", "%a", False),
        ("%s", "%a", "%a", False),
        ("%X[%k, %c0]", "%a", "%a", False),  # of no tile
        ("%s[%k, %c0]", "%b", "%a", False),  # for no product
    ],
)
def test_loops_that_say_which_part_is_an_operand(source: str, target: str, operand: str, takes: bool) -> None:
    text = [f"%{name} = tile.alloc : buffer<64*64*float16, shared>" for name in "sab"]
    text += ["%c = tile.alloc : buffer<64*64*float32, fragment>", "scf.for %c0, %c4, %c1 (%k: int32) {", "%m = %k * 32"]
    text += [copy(source, target, (32, 32)), f"tile.gemm {operand}, {operand}, %c", "scf.yield", "}"]
    (loop,) = of_kinds(kernel_of(whole(";".join(text), "X: 64*64*float16, n: int32")).walk(), scf.ForOp)
    assert takes_parts(loop) is takes


def test_a_version_is_no_part() -> None:
    """The first of three offsets says which one."""
    for offsets, takes in (("%k, %c0, %c0", False), ("%c0, %k, %c0", True), ("%c0, %c0, %k", True)):
        text = ["%s = tile.alloc : buffer<2*64*64*float16, shared>", "%a = tile.alloc : buffer<32*32*float16, shared>"]
        text += ["%c = tile.alloc : buffer<32*32*float32, fragment>", "scf.for %c0, %c4, %c1 (%k: int32) {"]
        text += [copy(f"%s[{offsets}]", "%a", (32, 32)).replace("source_axes = (0, 1)", "source_axes = (1, 2)")]
        text += ["tile.gemm %a, %a, %c", "scf.yield", "}"]
        (loop,) = of_kinds(kernel_of(whole(";".join(text), "n: int32")).walk(), scf.ForOp)
        assert takes_parts(loop) is takes, offsets


# Last turns


def turned(
    own: str,
    last: str,
    other: str,
    *,
    bounds: tuple[str, str] = ("%c0", "%c1"),
    around: tuple[str, str] = ("%c0", "%c1"),
    behind: str = "",
    inner: str = "thread.wait %bar, %c0, %c0",
    swapped: bool = False,
) -> tuple[bool, list[str]]:
    """One role's loop of %u turns and what it does behind, beside another one's of %w; whether it has changed."""
    lower, step = bounds
    mine = f"""{own}
        scf.for {lower}, %u, {step} (%k: int32) {{
        thread.wait %bar, %c0, %k
        scf.yield
        }}
        {behind}
        {last}
        scf.if %b {{
        {inner}
        scf.yield
        }} {{
        scf.yield
        }}"""
    theirs = f"""{other}
        scf.for {around[0]}, %w, {around[1]} (%z: int32) {{
        thread.arrive %bar, %c0
        scf.yield
        }}"""
    one, two = (theirs, mine) if swapped else (mine, theirs)
    made = whole(
        f"""%s = tile.alloc : buffer<16*float32, shared>
        %bar = tile.alloc : buffer<1*uint64, shared>
        %var = tile.alloc : buffer<int32, local>
        tile.parallel {{extents = (64,), lockstep = true}} (%t: int32) {{
        thread.init_barriers %bar {{counts = (32,)}}
        %first = %t < 32
        scf.if %first {{
        {one}
        scf.yield
        }} {{
        {two}
        scf.yield
        }}
        }}""",
        "X: 16*float32, n: int32, m: int32",
    )
    kernel = kernel_of(made)
    kernel.set_attribute("threads", 64)
    (op,) = of_kinds(kernel.walk(), tile.ParallelOp)
    done = take_last_turns(op.body, Threads(op.body, 64))
    return done, allocated(lines_of(made))[1]


QUOTIENTS = ("%u = %n // 16", "%p = %n + 15;%w = %p // 16")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("own", "last", "other"),
    [
        # n is u, u + 1, or one of both; the condition says which
        (QUOTIENTS[0], f"{QUOTIENTS[1]};%b = %u < %w".replace("%w", "%v"), QUOTIENTS[1]),
        (QUOTIENTS[0], f"{QUOTIENTS[1]};%b = %w > %u".replace("%w", "%v"), QUOTIENTS[1]),
        (QUOTIENTS[0], "%p = %n + 16;%v = %p // 16;%b = %u < %v", "%p = %n + 16;%w = %p // 16"),
        ("%u = %n - 1", "%v = %u + 1;%b = %u < %v", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %c0 < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %n > %c0", "%w = %n + 0"),
        ("%u = %n + %m", "%y = %m + %n;%v = %y + 1;%b = %u < %v", "%h = %n + 1;%w = %m + %h"),
    ],
)
def test_a_last_turn_goes_back_into_the_loop(own: str, last: str, other: str, swapped: bool) -> None:
    done, found = turned(own, last, other, swapped=swapped)
    text = "\n".join(found)
    assert done
    loop = re.search(
        r"scf.for %c0, (%\w+), %c1 \(%k: int32\) \{\n(%\w+) = arith.cmp %k, %u \{predicate = \"lt\"\} : bool\n"
        r"scf.if (%\w+) \{\nthread.wait %bar, %c0, %k\nscf.yield\n\} \{\nscf.if %b \{\nthread.wait %bar, %c0, %c0\n"
        r"scf.yield\n\} \{\nscf.yield\n\}\nscf.yield\n\}\nscf.yield\n\}\n",
        text,
    )
    assert loop is not None, text
    assert loop[2] == loop[3] and loop[1] != "%u"
    before = text[: loop.start()]
    assert spelled(last).split("\n")[-1] in before  # the condition comes before the loop
    assert f"{loop[1]} = arith." in before  # and so does the number of turns


@pytest.mark.parametrize(
    ("own", "last", "other"),
    [
        ("%u = %n // 16", "%p = %n + 17;%v = %p // 16;%b = %u < %v", "%p = %n + 17;%w = %p // 16"),  # or two turns more
        ("%u = %n // 16", "%p = %n - 1;%v = %p // 16;%b = %u < %v", "%p = %n - 1;%w = %p // 16"),  # or one less
        ("%u = %n // 16", "%p = %n + 7;%v = %p // 8;%b = %u < %v", "%p = %n + 7;%w = %p // 8"),
        ("%u = %n // 16", "%p = %m + 15;%v = %p // 16;%b = %u < %v", "%p = %m + 15;%w = %p // 16"),
        ("%u = %n // 16", "%p = %n + 15;%v = %p // 16;%b = %c0 < %v", "%p = %n + 15;%w = %p // 16"),
        ("%u = %n // 16", "%p = %n + 15;%v = %p // 16;%b = %u != %v", "%p = %n + 15;%w = %p // 16"),
        ("%u = %n // 16", "%p = %n + 15;%v = %p // 16;%b = %v < %u", "%p = %n + 15;%w = %p // 16"),
        ("%u = %n - 2", "%b = %u < %n", "%w = %n + 0"),
        ("%u = %m + 0", "%b = %u < %n", "%w = %n + 0"),  # or any number of turns more
        ("%u = %n + 1", "%b = %u < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %c1 < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %m < %n", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %u < %m", "%w = %n + 0"),
        ("%u = %n - 1", "%b = %t < %n", "%w = %n + 0"),  # it is not the same for all threads
        ("%u = %n + 0", "%b = %u < %n", "%w = %n + 0"),  # they have as many turns
    ],
)
def test_what_stands_behind_a_loop_is_no_last_turn(own: str, last: str, other: str) -> None:
    done, found = turned(own, last, other)
    assert not done
    assert "scf.for %c0, %u, %c1 (%k: int32) {\nthread.wait %bar, %c0, %k\nscf.yield\n}\n" in "\n".join(found)


@pytest.mark.parametrize(
    "change",
    [
        {"bounds": ("%c1", "%c1")},
        {"bounds": ("%c0", "%c2")},
        {"around": ("%c1", "%c1")},
        {"around": ("%c0", "%c2")},
        {"behind": "tile.fill %c1.0, %s"},
        {"inner": "tile.fill %c1.0, %s"},
    ],
)
def test_loops_and_branches_of_other_forms_have_no_last_turn(change: Any) -> None:
    """A loop that does not count from 0 on, other work between it and the branch, no wait in that."""
    texts = ("%u = %n - 1", "%b = %u < %n", "%w = %n + 0")
    assert turned(*texts)[0] and turned(*texts, behind="%q = tile.load %var : int32")[0]
    assert not turned(*texts, **change)[0]
