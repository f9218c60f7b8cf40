"""merge-roles: in which order steps, guards and loops of roles become one program, and versions of tiles; exact IR."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of
from tests.passes.role_programs import (
    ALLOCS,
    ARRIVE,
    GIVE,
    IF,
    S_TO_Y,
    STAGES,
    TAKE,
    TWO_BARRIERS,
    UNLESS_P,
    WAIT,
    X_TO_S,
    ZERO,
    S,
    branch,
    check,
    lines_of,
    loop,
    made,
    merged,
    part,
    refused,
    ring,
    split,
    turns,
    versions_ring,
)
from tiledsl.dialects import scf, tile
from tiledsl.ir.types import BufferType
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.merge_roles.emit import _only_loop, _touches
from tiledsl.passes.merge_roles.order import Fused, Item, _stores, region_of
from tiledsl.passes.merge_roles.roles import Loop, Step
from tiledsl.runtime.target import Target

# Guards

LOAD = "%l = tile.load %N[%c3] : int32\n%m = arith.add %l, %c5 : int32\n%f = arith.cast %m : float32\ntile.fill %f, %s"


def test_guards_of_both_roles_become_one_branch() -> None:
    """What is computed from a value that was read in it stands in it."""
    check(split(branch("%p", f"{LOAD}\n{ARRIVE}"), branch("%p", TAKE)), S + IF.format("%p", f"{LOAD}\n{S_TO_Y}"))
    body = split(branch("%p", "", f"{LOAD}\n{ARRIVE}"), branch("%p", "", TAKE))
    check(body, S + UNLESS_P.format(f"{LOAD}\n{S_TO_Y}"))


@pytest.mark.parametrize(
    ("text", "stores"),
    [
        ("tile.store %c1, %v", True),
        (branch("%p", "tile.store %c1, %v\ntile.store %c2, %N[%c0]"), True),
        (branch("%p", "%l = tile.load %v : int32\ntile.store %l, %N[%c0]"), False),
        (branch("%p", "tile.store %c2, %N[%c0]"), False),
        (loop("%n", "%l = tile.load %v : int32\ntile.store %l, %N[%c0]\ntile.store %c1, %v"), True),
    ],
)
def test_steps_that_may_change_a_variable(text: str, stores: bool) -> None:
    found = made(text)
    (op,) = [each for each in region_of(kernel_of(found)) if each.name in ("tile.store", "scf.if", "scf.for")]
    (variable,) = [each.out for each in found.root.walk() if isinstance(each, tile.AllocOp) and each.out.name == "v"]
    step = Step(op, [0], 64, ())
    assert _stores(step, variable) is stores
    if isinstance(op, scf.ForOp):
        inside = Loop(op, 0, (), [Step(each, [0], 64, ()) for each in op.body])
        assert _stores(Fused([inside]), variable) is stores


@pytest.mark.parametrize(
    ("text", "touches"),
    [
        ("tile.store %tx, %N[%c0]", True),
        ("tile.store %c1, %N[%tx]", True),
        ("%m = arith.add %tx, %c1 : int32\ntile.store %m, %N[%c0]", True),
        ("tile.store %c1, %N[%c0]", False),
        (branch("%p", "tile.store %tx, %N[%c0]"), True),
        ("tile.store %tx, %v\n%l = tile.load %v : int32\ntile.store %l, %N[%c0]", True),  # a variable that was given it
        ("tile.store %c1, %v\n%l = tile.load %v : int32\ntile.store %l, %N[%c0]", False),
        (
            "%l = tile.load %v : int32\n%m = arith.add %l, %c1 : int32\ntile.store %m, %v\ntile.store %l, %N[%c0]",
            False,
        ),
        # An element of a tile is the same for all.
        ("%f = arith.cast %tx : float32\ntile.store %f, %s[%c0]\n%l = tile.load %s[%c0] : float32\n"
         "tile.store %l, %Y[%c0]", False),
    ],
)  # fmt: skip
def test_steps_that_differ_from_thread_to_thread(text: str, touches: bool) -> None:
    region = region_of(kernel_of(made(text)))
    *_, op = [each for each in region if each.name in ("tile.store", "scf.if")]
    assert _touches(op, region.args[0]) is touches


def test_guards_in_guards() -> None:
    body = split(branch("%p", branch("%q", LOAD) + GIVE), branch("%p", TAKE))
    nested = IF.format("%p", IF.format("%q", LOAD) + f"{X_TO_S}\n{S_TO_Y}")
    check(body, S + nested)
    load, *uses = LOAD.split("\n")  # a value of the outer one may be used in the inner one
    body = split(branch("%p", f"{load}\n" + branch("%q", "\n".join(uses)) + GIVE), branch("%p", TAKE))
    check(body, S + IF.format("%p", f"{load}\n" + IF.format("%q", "\n".join(uses)) + f"{X_TO_S}\n{S_TO_Y}"))


def test_the_other_side_of_a_branch_in_a_branch() -> None:
    stores = "tile.store %c1, %N[%c1]\ntile.store %c2, %N[%c2]\n"
    body = split(branch("%p", branch("%q", "", stores) + GIVE), branch("%p", TAKE))
    check(body, S + IF.format("%p", UNLESS_P.replace("%p", "%q").format(stores) + f"{X_TO_S}\n{S_TO_Y}"))


def test_guards_that_differ() -> None:
    one, two = "tile.store %c1, %N[%c1]", "tile.store %c2, %N[%c2]"
    body = split(branch("%p", GIVE) + branch("%q", one), branch("%p", TAKE) + branch("%q", two))
    order = (("%p", X_TO_S), ("%q", one), ("%p", S_TO_Y), ("%q", two))
    check(body, S + "".join(IF.format(*each) for each in order))


def test_a_loop_under_a_guard() -> None:
    body = split(branch("%p", loop("%n", X_TO_S)) + ARRIVE, WAIT)
    inner = f"scf.for %c0, %n, %c1 (%k: int32) {{\n{X_TO_S}\nscf.yield\n}}"
    check(body, S + IF.format("%p", inner))


# Loops


MOVED = f"{X_TO_S}\n{S_TO_Y}"


def test_loops_of_two_roles_become_one() -> None:
    check(ring(X_TO_S, S_TO_Y), turns("%n", MOVED))


@pytest.mark.parametrize(("elements", "attributes"), [(57980, STAGES), (57981, "")])
def test_copies_that_are_started_run_a_turn_ahead_where_there_is_room(elements: int, attributes: str) -> None:
    """232448 bytes, less two tiles of 64 floats and two barriers."""
    big = f"%big = tile.alloc : buffer<{elements}*float32, shared>\n"
    check(ring(X_TO_S, S_TO_Y, start=True), turns("%n", MOVED, attributes), allocs=ALLOCS + big)


@pytest.mark.parametrize(
    ("target", "room"), [(Target("cuda", 80), 166912), (Target("cuda", 90), 232448), (Target("interpret"), 232448)]
)
def test_room_is_that_of_the_target(target: Target, room: int) -> None:
    """Or Hopper's, where it has no limit."""
    ours = (64 + 64) * 4 + 2 * 8  # a second version of `s`, and barriers
    for size, fits in ((room - ours, True), (room - ours + 8, False)):
        found = made(ring(X_TO_S, S_TO_Y, start=True))
        found.target = target
        big = tile.AllocOp(result_types=[BufferType((size // 4,), "float32", "shared")])
        kernel_of(found).regions[0].insert(big, kernel_of(found).regions[0].first)
        MergeRoles().run(found)
        assert ("num_stages" in "\n".join(lines_of(found))) is fits


READ_BOUNDS = "%{0} = tile.load %N[%c0] : int32\n"


def test_loops_whose_bounds_are_loaded_alike() -> None:
    """From a buffer that the kernel does not change."""
    ringed = ring(X_TO_S, S_TO_Y, "%a", "%b").replace("scf.for %c0, %a", READ_BOUNDS.format("a") + "scf.for %c0, %a")
    ringed = ringed.replace("scf.for %c0, %b", READ_BOUNDS.format("b") + "scf.for %c0, %b")
    check(ringed, S + READ_BOUNDS.format("a") + READ_BOUNDS.format("b") + turns("%a", MOVED, head=""))
    changed = ringed.replace(S_TO_Y, f"{S_TO_Y}\ntile.store %c1, %N[%k]")
    assert refused(changed)[0].startswith("this wait is not implied")


def test_turns_of_an_inner_loop_of_a_number_become_turns() -> None:
    ringed = ring(X_TO_S, S_TO_Y, "%c4").replace("%k", "%t").replace(S_TO_Y, f"{S_TO_Y}\ntile.store %i, %N[%k]")
    outer = "scf.for %c0, %n, %c1 (%k: int32) {\nscf.for %c0, %c4, %c1 (%i: int32) {\n"
    outer += "%u = arith.mul %k, %c4 : int32\n%t = arith.add %u, %i : int32"
    ringed = ringed.replace("scf.for %c0, %c4, %c1 (%t: int32) {", outer)
    ringed = ringed.replace("scf.yield\n}\n\nscf.yield", "scf.yield\n}\nscf.yield\n}\nscf.yield")
    body = f"""%1 = arith.floormod %k, %c4 : int32
        %2 = arith.floordiv %k, %c4 : int32
        {MOVED}
        tile.store %1, %N[%2]"""
    check(ringed, S + "%0 = arith.mul %n, %c4 : int32\n" + turns("%0", body, head=""))


NESTED = """scf.for %c0, %n, %c1 (%k: int32) {
%m = arith.mul %k, %c4 : int32
scf.for %c0, %c4, %c1 (%i: int32) {
tile.store %z, %Y[%i]
scf.yield
}
scf.yield
}
"""


def fused(text: str, roles: tuple[int, int] = (1, 1), guarded: bool = False) -> tuple[Fused, Fused]:
    """The outer and the inner loop of a nest, of so many roles each."""
    outer, inner = (op for op in made(ZERO + text).root.walk() if isinstance(op, scf.ForOp))
    guards = ((outer.index, True),) if guarded else ()
    found = Fused([Loop(inner, role, guards) for role in range(roles[1])])
    body: list[Item] = [Step(op, [0], 64, ()) for op in outer.body if not op.is_terminator and op is not inner]
    return Fused([Loop(outer, role, ()) for role in range(roles[0])], [*body, found]), found


def test_a_loop_that_is_all_that_a_loop_does() -> None:
    outer, inner = fused(NESTED)
    assert _only_loop(outer) is inner
    outer, inner = fused(NESTED, (2, 2))
    assert _only_loop(outer) is inner
    again = Fused(outer.loops, [*outer.body, inner])
    assert _only_loop(again) is None and _only_loop(Fused(outer.loops, outer.body[:-1])) is None


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ("for %c0, %n,", "for %c1, %n,", {}),
        ("%n, %c1", "%n, %c2", {}),
        ("for %c0, %c4,", "for %c1, %c4,", {}),
        ("%c4, %c1", "%c4, %c2", {}),
        ("%c4, %c1", "%n, %c1", {}),
        ("for %c0, %c4, %c1 (%i: int32)", "for %l0, %l4, %l1 (%i: int64)", {}),
        ("for %c0, %n, %c1 (%k: int32)", "for %l0, %l4, %l1 (%k: int64)", {}),
        ("%m = arith.mul %k, %c4 : int32", "tile.store %z, %Y[%c0]", {}),
        ("%z", "%z", {"roles": (2, 1)}),
        ("%z", "%z", {"guarded": True}),
    ],
)
def test_loops_in_loops_that_stay(before: str, after: str, options: dict[str, Any]) -> None:
    assert before in NESTED
    text = NESTED.replace(before, after)
    if "int64" in text:
        text = text.replace("%m = arith.mul %k, %c4 : int32\n", "").replace("%Y[%i]", "%Y[%c1]")
    wide = "".join(f"%l{each} = arith.constant {{value = {each}}} : int64\n" for each in (0, 1, 4))
    assert _only_loop(fused(wide + text, **options)[0]) is None


# Versions of a tile

VERSIONS = TWO_BARRIERS + "%two = tile.alloc : buffer<2*64*float32, shared>\n"
INTO, FROM = part("%X[%c0]", "%two[%st, %c0]"), part("%two[%st, %c0]", "%Y[%c0]")
STAGE = "%st = arith.floormod %k, %c2 : int32\n"
STAGE_1 = STAGE.replace("%st", "%st_1")
ONE_TILE = "%two = tile.alloc : buffer<64*float32, shared>\n"


def one_by_one(there: str, back: str) -> str:
    return turns("%n", f"{STAGE}{there}\n{STAGE_1}{back}", STAGES, ONE_TILE)


def both(there: str, back: str) -> str:
    head = "%two = tile.alloc : buffer<2*64*float32, shared>\n"
    return turns("%n", f"{STAGE}{there}\n{STAGE_1}{back.replace('%st', '%st_1')}", "", head)


def test_versions_that_take_turns_become_one_tile() -> None:
    one = part("%X[%c0]", "%two[%c0]").replace("(1,)", "(0,)"), part("%two[%c0]", "%Y[%c0]").replace("(1,)", "(0,)")
    check(versions_ring(INTO, FROM), one_by_one(*one), allocs=VERSIONS)


def test_versions_that_elements_are_written_to_one_by_one() -> None:
    """In a T.Parallel over all of them; under a mask of some, they stay."""
    parallel = "tile.parallel {extents = (64,)} (%i: int32) {\n%e = tile.load %X[%i] : float32\n"
    there = f"{parallel}tile.store %e, %two[%st, %i]\n}}"
    back = part("%two[%c0]", "%Y[%c0]").replace("(1,)", "(0,)")
    check(versions_ring(there, FROM), one_by_one(there.replace("%st, ", ""), back), allocs=VERSIONS)
    some = f"{parallel}{branch('%p', 'tile.store %e, %two[%st, %i]')}}}"
    assert "%two = tile.alloc : buffer<2*64*float32, shared>" in merged(versions_ring(some, FROM), allocs=VERSIONS)


@pytest.mark.parametrize(
    ("there", "back"),
    [
        ("%o = tile.load %X[%k] : float32\ntile.store %o, %two[%st, %c0]", FROM),
        (part("%X[%c0]", "%two[%st, %c0]", 32), FROM),
        (part("%X[%c0]", "%two[%st, %c32]", 32), FROM),
        (INTO + "\n" + part("%X[%c1]", "%two[%st, %c0]", 32), FROM),
    ],
)
def test_versions_that_are_not_written_whole_stay(there: str, back: str) -> None:
    check(versions_ring(there, back), both(there, back), allocs=VERSIONS)


def test_a_part_of_a_version_may_be_read() -> None:
    there = part("%X[%c0]", "%two[%c0]").replace("(1,)", "(0,)")
    back = part("%two[%c0]", "%Y[%c0]", 32).replace("(1,)", "(0,)")
    check(versions_ring(INTO, part("%two[%st, %c0]", "%Y[%c0]", 32)), one_by_one(there, back), allocs=VERSIONS)


@pytest.mark.parametrize("offsets", [("%c0", "%c32"), ("%c32", "%c0")])
def test_versions_that_are_written_and_read_in_halves_take_turns(offsets: tuple[str, str]) -> None:
    there = "\n".join(part(f"%X[{each}]", f"%two[%st, {each}]", 32) for each in offsets)
    back = "\n".join(part(f"%two[%st, {each}]", f"%Y[{each}]", 32) for each in offsets)
    text = "\n".join(merged(versions_ring(there, back), allocs=VERSIONS))
    assert "buffer<2*64*float32" not in text
    assert "scf.for %c0, %n, %c1 {num_stages = 2} (%k: int32) {" in text


def test_versions_with_numbers_become_a_tile_each() -> None:
    there = f"{part('%X[%c0]', '%two[%c0, %c0]')}\n{part('%X[%n]', '%two[%c1, %c0]')}\n"
    back = f"{part('%two[%c0, %c0]', '%Y[%c0]')}\n%g = tile.load %two[%c1, %n] : float32\ntile.store %g, %Y[%c1]"
    check(
        split(there + ARRIVE, f"{WAIT}\n{back}"),
        ONE_TILE
        + ONE_TILE.replace("%two", "%two_1")
        + (there + back)
        .replace("(1,)", "(0,)")
        .replace("%two[%c0, %c0]", "%two[%c0]")
        .replace("%two[%c1, ", "%two_1["),
        allocs=VERSIONS.replace("2*uint64", "1*uint64"),
    )


def test_versions_of_which_one_is_not_known_stay() -> None:
    there = f"{part('%X[%c0]', '%two[%c0, %c0]')}\n{part('%X[%n]', '%two[%c1, %c0]')}\n"
    back = f"{part('%two[%c0, %c0]', '%Y[%c0]')}\n%g = tile.load %two[%n, %c2] : float32\ntile.store %g, %Y[%c1]"
    found = merged(split(there + ARRIVE, f"{WAIT}\n{back}"), allocs=VERSIONS.replace("2*uint64", "1*uint64"))
    assert "%two = tile.alloc : buffer<2*64*float32, shared>" in found
    assert "%g = tile.load %two[%n, %c2] : float32" in found


def test_versions_in_a_branch_that_the_run_does_not_take_stay() -> None:
    ringed = versions_ring(INTO, FROM)
    start, end = "scf.for %c0, %n, %c1 (%k: int32) {", "scf.yield\n}\n\nscf.yield"
    close = "scf.yield\n}\nscf.yield\n}"
    assert ringed.count(start) == ringed.count(end) == 2
    taken = ringed.replace(start, f"scf.if %p {{\n{start}").replace(end, f"{close} {{\nscf.yield\n}}\nscf.yield")
    other = ringed.replace(start, f"scf.if %p {{\nscf.yield\n}} {{\n{start}").replace(end, f"{close}\nscf.yield")
    kept = ["buffer<2*64*float32" in "\n".join(merged(each, allocs=VERSIONS)) for each in (taken, other)]
    assert sorted(kept) == [False, True]
