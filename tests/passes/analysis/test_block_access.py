"""Which starts of blocks are known to be aligned, and which masks are no more than a buffer's bounds."""

from __future__ import annotations

import pytest

from tests.passes.ir_cases import after, filecheck, kernel_of, program
from tiledsl.analysis.affine import divisor
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
