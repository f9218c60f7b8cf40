"""Which starts of blocks are known to be aligned, and which masks are no more than a buffer's bounds."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import after, filecheck, kernel_of, program
from tiledsl.analysis.affine import divisor
from tiledsl.analysis.block_access import NoBlock, block_of
from tiledsl.dialects import tile
from tiledsl.passes.select_access import SelectAccess

# What is a multiple of 8 for all numbers, and what is not.
BODY = """
%eights = arith.mul %s, %c8 : int32
%eights_left = arith.mul %c8, %s : int32
%fours = arith.mul %s, %c4 : int32
%eights_of_fours = arith.mul %fours, %c2 : int32
%twelves = arith.mul %s, %c12 : int32
%eights_of_both = arith.mul %eights, %s : int32
%unknown = arith.mul %s, %bx : int32
%eights_of_floats = arith.mul %f, %c8.0 : float32
%rounded = arith.cast %eights_of_floats : int32
%eights_wide = arith.cast %eights : int64
%eights_select = arith.select %b, %eights, %c16 : int32
%first_select = arith.select %b, %fours, %c16 : int32
%second_select = arith.select %b, %eights, %c4 : int32
scf.for %c0, %s, %c8 (%eights_k: int32) { scf.yield }
scf.for %eights, %s, %c16 (%eights_i: int32) { scf.yield }
scf.for %c4, %s, %c8 (%late_k: int32) { scf.yield }
scf.for %c0, %s, %c4 (%often_k: int32) { scf.yield }
%r = scf.for %c0, %s, %c8[%c8] : int32 (%eights_j: int32, %carried: int32) { scf.yield [%s] }
"""
SUMS = [f"%{{}}_{op} = arith.{op} %{{}}, %{{}} : int32" for op in ("add", "sub", "min", "max")]


def test_multiples() -> None:
    body = BODY
    for name, lhs, rhs in (("eights", "eights", "c16"), ("left", "fours", "eights"), ("right", "eights", "fours")):
        body += "".join(each.format(name, lhs, rhs) + "\n" for each in SUMS)
    kernel = kernel_of(program(body))
    values = [value for op in kernel.walk() for value in op.results]
    values += [arg for op in kernel.walk() for region in op.regions for arg in region.args]
    named = {value.name: value for value in values if not value.name.startswith("c")}
    found = {name for name, value in named.items() if divisor(value) % 8 == 0}
    assert found == {name for name in named if name.startswith("eights")} and len(found) == 14
    constants = program("%x = arith.add %c-8, %c4 : int32 %y = arith.add %c0, %c12 : int32").root.walk()
    numbers = {op.attributes["value"]: divisor(op.result) % 8 == 0 for op in constants if "value" in op.attributes}
    assert {number for number, known in numbers.items() if known} == {-8, 0, 8}


BLOCK = """
%i = tensor.iota {axis = 0} : tensor<16x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%o = arith.mul %bx, %c16 : int32
%p = arith.add %o, %i : tensor<16x1xint32>
"""


@pytest.mark.parametrize(
    ("index", "predicate", "number", "is_bound"),
    [
        ("p", "lt", 64, True), ("p", "le", 63, True), ("p", "ge", 0, True), ("p", "gt", -1, True),
        ("p", "lt", 63, False), ("p", "lt", 65, False), ("p", "le", 64, False), ("p", "le", 62, False),
        ("p", "ge", 1, False), ("p", "gt", 0, False), ("p", "ge", -1, False), ("p", "ne", 64, False),
        ("j", "lt", 96, True), ("j", "lt", 64, False), ("i", "lt", 64, False), ("p", "lt", 96, False),
    ],
)  # fmt: skip
def test_masks_that_are_the_bounds(index: str, predicate: str, number: int, is_bound: bool) -> None:
    rows = 1 if index == "j" else 16
    columns = 16 if index == "j" else 1
    body = f"""{BLOCK}
    %m = arith.cmp %{index}, %c{number} {{predicate = "{predicate}"}} : tensor<{rows}x{columns}xbool>
    %w = tensor.broadcast %m : tensor<16x16xbool>
    %x = tile.load %A[%p, %j] mask=%w {{guarded = true}} : tensor<16x16xfloat32>
    tile.store %x, %B[%p, %j] {{guarded = true}}"""
    block = "CHECK: tile.load_block %A[%o, {{.*}}]\nCHECK-NOT: tile.load "
    filecheck(after(SelectAccess(mode="tma"), body), block if is_bound else "CHECK: tile.load %A[%p, %j] mask=%w")


@pytest.mark.parametrize("index", ["p", "wide"])
@pytest.mark.parametrize("compared", ["p", "wide"])
def test_bounds_are_those_of_an_index_whether_it_is_broadcast_or_not(index: str, compared: str) -> None:
    shape = "16x1" if compared == "p" else "16x16"
    body = f"""{BLOCK}
    %wide = tensor.broadcast %p : tensor<16x16xint32>
    %m = arith.cmp %{compared}, %c64 {{predicate = "lt"}} : tensor<{shape}xbool>
    %w = tensor.broadcast %m : tensor<16x16xbool>
    %x = tile.load %A[%{index}, %j] mask=%w {{guarded = true}} : tensor<16x16xfloat32>"""
    filecheck(after(SelectAccess(mode="tma"), body), "CHECK: tile.load_block %A[%o, {{.*}}]\nCHECK-NOT: tile.load ")


def test_a_start_that_is_a_difference() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<16x1xint32>
    %j = tensor.iota {axis = 1} : tensor<1x16xint32>
    %n = arith.sub %i, %s : tensor<16x1xint32>
    %q = arith.mul %bx, %c16 : int32
    %o = arith.sub %j, %q : tensor<1x16xint32>
    %p = arith.add %o, %c32 : tensor<1x16xint32>
    %x = tile.load %A[%n, %p] {guarded = true} : tensor<16x16xfloat32>"""
    filecheck(
        after(SelectAccess(mode="tma"), body),
        """
        %q = arith.mul %bx, %c16 : int32
        %0 = arith.mul %s, %cm1 : int32
        %1 = arith.sub %c32, %q : int32
        %x = tile.load_block %A[%0, %1] {axes = (0, 1)} : tensor<16x16xfloat32>
        """,
    )


def test_a_default_that_is_not_zero_and_an_alternative_are_no_bounds() -> None:
    mask = '%m = arith.cmp %p, %c64 {predicate = "lt"} : tensor<16x1xbool>'
    load = "%x = tile.load %A[%p, %j] mask=%w OTHER {guarded = true} : tensor<16x16xfloat32>"
    for combined, other, is_bound in (
        ("tensor.broadcast %m", "", True),
        ("tensor.broadcast %m", "other=%c0.0", True),
        ("tensor.broadcast %m", "other=%c1.0", False),
        ("tensor.broadcast %m", "other=%f", False),
        ("arith.and %m, %n", "", True),
        ("arith.or %m, %n", "", False),
    ):
        body = f"""{BLOCK} {mask} %n = arith.cmp %j, %c96 {{predicate = "lt"}} : tensor<1x16xbool>
        %w = {combined} : tensor<16x16xbool>
        {load.replace("OTHER", other)}"""
        expected = "CHECK: tile.load_block" if is_bound else "CHECK-NOT: tile.load_block"
        filecheck(after(SelectAccess(mode="tma"), body), expected)


def block(text: str, parameters: str) -> tuple[int, ...] | str:
    """The axes of the block of the only access, or why it moves none."""
    root = program(BLOCK + text, parameters=parameters).root
    (access,) = [op for op in root.walk() if isinstance(op, (tile.LoadOp, tile.StoreOp))]
    assert isinstance(root, tile.FuncOp)
    try:
        found = block_of(access, root)
    except NoBlock as error:
        return str(error)
    assert found.shape == tile.access_shape(access) and len(found.starts) == len(access.indices)
    return found.axes


SQUARE = "tensor<16x16xfloat32>"
ROWS = "%r = tensor.iota {{axis = 0}} : tensor<{0}x1xint32> %x = tile.load %A[%r, %j] : tensor<{0}x16xfloat32>"
COLUMNS = "%r = tensor.iota {{axis = 1}} : tensor<1x{0}xint32> %x = tile.load %A[%p, %r] : tensor<16x{0}xfloat32>"
REPEATED = "%r = tensor.broadcast %o : tensor<{0}x1xint32> %x = tile.load %A[%r, %j] : tensor<{0}x16xfloat32>"
MOVED = (
    "%t = arith.mul %bx, %c{0} : int32 %r = arith.add %j, %t : tensor<1x16xint32> %x = tile.load %A[%p, %r] : " + SQUARE
)


@pytest.mark.parametrize(
    ("text", "parameters", "found"),
    [
        (f"%x = tile.load %A[%p, %j] : {SQUARE}", "A: 64*96*float32", (0, 1)),
        (f"%x = tile.load %A[%j, %i] : {SQUARE}", "A: 64*96*float32", (1, 0)),
        (f"%t = tensor.broadcast %f : {SQUARE} tile.store %t, %A[%p, %j]", "f: float32, A: 64*96*float32", (0, 1)),
        ("%x = tile.load %A[%o, %j] : tensor<1x16xfloat32>", "A: 64*96*float32", (-1, 1)),
        ("%x = tile.load %A[%o, %o] : float32", "A: 64*96*float32", "it is accessed one element at a time"),
        ("%k = tensor.iota {axis = 0} : tensor<16xint32> %x = tile.load %A[%o, %k] : tensor<16xfloat32>",
         "A: 64*96*float32", "rows are as fast through pointers"),
        ("%x = tile.load %A[%p, %i] : tensor<16x1xfloat32>", "A: 64*96*float32",
         "one dimension of the tile walks along two of the buffer"),
        (REPEATED.format(1), "A: 64*96*float32", (-1, 1)),
        (REPEATED.format(2), "A: 64*96*float32", "the tile repeats elements of the buffer"),
        ("%r = tensor.reshape %o : tensor<1x1xint32> %q = arith.add %r, %i : tensor<16x1xint32> "
         f"%x = tile.load %A[%q, %j] : {SQUARE}", "A: 64*96*float32", (0, 1)),
        (f"%r = tensor.reshape %j : tensor<16x1xint32> %x = tile.load %A[%r, %j] : {SQUARE}", "A: 64*96*float32",
         "its elements are not neighbours in memory"),
        (ROWS.format(256), "A: 512*96*float32", (0, 1)),
        (ROWS.format(512), "A: 512*96*float32", "its block is 512 long, and a descriptor's at most 256"),
        (COLUMNS.format(512), "A: 64*512*float32", (0, 1)),
        (COLUMNS.format(4), "A: 64*96*float32", (0, 1)),
        (COLUMNS.format(2), "A: 64*96*float32", "its blocks are 2 elements wide, less than 16 bytes"),
        (MOVED.format(4), "A: 64*96*float32", (0, 1)),
        (MOVED.format(2), "A: 64*96*float32", "its blocks may begin at other columns than multiples of 4"),
        ("%x = tile.load %A[%j] : tensor<1x16xfloat32>", "A: 64*float32",
         "it has 1 dimension, and a descriptor 2 to 5"),
        (f"%x = tile.load %A[%c0, %c0, %c0, %p, %j] : {SQUARE}", "A: 4*4*4*64*96*float32", (3, 4)),
        (f"%x = tile.load %A[%c0, %c0, %c0, %c0, %p, %j] : {SQUARE}", "A: 4*4*4*4*64*96*float32",
         "it has 6 dimensions, and a descriptor 2 to 5"),
        ("%x = tile.load %A[%p, %j] : tensor<16x16xfloat64>", "A: 64*96*float64",
         "descriptors of float64 are not used"),
        ("%x = tile.load %A[%p, %j] : tensor<16x16xbool>", "A: 64*96*bool", "descriptors of bool are not used"),
        (f"%x = tile.load %A[%p, %j] : {SQUARE}", "A: 64*100*float32", (0, 1)),
        (f"%x = tile.load %A[%p, %j] : {SQUARE}", "A: 64*98*float32",
         "its stride in dimension 0 is 392 bytes, not a multiple of 16"),
        (f"%x = tile.load %A[%c0, %p, %j] : {SQUARE}", "D: m*float32, A: 4*m*96*float32",
         "its stride in dimension 0 is known only at run time"),
        (f"%x = tile.load %A[%c0, %c0, %p, %j] : {SQUARE}", "D: m*float32, A: 4*8*m*96*float32",
         "its stride in dimension 0 is known only at run time"),
        (f"%x = tile.load %A[%p, %c0, %j] : {SQUARE}", "A: m*4*96*float32", (0, 2)),
    ],
)  # fmt: skip
def test_blocks_and_why_an_access_moves_none(text: str, parameters: str, found: tuple[int, ...] | str) -> None:
    assert block(text, parameters) == found
