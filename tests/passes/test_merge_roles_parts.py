"""merge-roles: parts of tiles, and products of parts along K; exact IR."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.passes.ir_cases import kernel_of
from tests.passes.short_ir import allocated, lines_of, spelled, whole
from tiledsl.dialects import scf, tile
from tiledsl.ir.kinds import of_kinds
from tiledsl.passes.merge_roles import MergeRoles
from tiledsl.passes.merge_roles.parts import _reaches_beyond, _separate, divide_tiles, multiplies_parts, takes_parts

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
