"""Indexed accesses to on-chip buffers: every kind of index in every place, by brute force."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.passes.ir_cases import TO_VALUES, after, body_lines, kernel, to_values
from tiledsl.ir.pass_manager import parse_program
from tiledsl.passes.promote_buffers.access import _splits

# Name -> (extent of %i, size of the dimension, operations that make the index %k from %i).
WALKS = {
    "identity": (4, 4, "%k = arith.add %i, %c0 : int32"),
    "aligned": (2, 4, "%k = arith.add %i, %c2 : int32"),
    "prefix": (3, 4, "%k = arith.add %i, %c0 : int32"),
    "shifted": (3, 7, "%k = arith.add %c2, %i : int32"),
    "dynamic": (3, 7, "%k = arith.add %i, %bx : int32"),
    "strided": (4, 8, "%d = arith.mul %i, %c2 : int32 %k = arith.add %d, %c1 : int32"),
    "sparse": (2, 9, "%k = arith.mul %i, %c3 : int32"),
    "repeated": (8, 4, "%k = arith.floordiv %i, %c2 : int32"),
    "wrapped": (8, 4, "%k = arith.floormod %i, %c4 : int32"),
    "reversed": (5, 5, "%k = arith.sub %c4, %i : int32"),
    "backwards": (3, 7, "%k = arith.sub %c5, %i : int32"),
    "backwards_strided": (4, 8, "%d = arith.mul %i, %c2 : int32 %k = arith.sub %c7, %d : int32"),
    "backwards_dynamic": (3, 7, "%d = arith.add %bx, %c2 : int32 %k = arith.sub %d, %i : int32"),
    "computed": (6, 5, "%n = tile.load %I[%i] : int32 %k = arith.floormod %n, %c5 : int32"),
    "scalar": (1, 3, "%k = arith.add %bx, %c1 : int32"),
    "second": (1, 2, "%k = arith.add %c0, %c1 : int32"),
    "one": (1, 1, "%k = arith.add %c0, %c0 : int32"),
}
# The same in parts that padding splits: their sizes are no powers of two.
UNEVEN = {
    "aligned": (3, 9, "%k = arith.add %i, %c3 : int32"),
    "strided": (3, 9, "%d = arith.mul %i, %c3 : int32 %k = arith.add %d, %c2 : int32"),
    "first strided": (3, 9, "%k = arith.mul %i, %c3 : int32"),
    "repeated": (9, 3, "%k = arith.floordiv %i, %c3 : int32"),
    "wrapped": (6, 3, "%k = arith.floormod %i, %c3 : int32"),
}
ALL_WALKS = {**WALKS, **{f"{name} unevenly": walk for name, walk in UNEVEN.items()}}


def rename(text: str, by: str) -> str:
    return text.replace("%i", f"%i{by}").replace("%k", f"%k{by}").replace("%d", f"%d{by}").replace("%n", f"%n{by}")


def access(first: str, second: str, body: str) -> str:
    (e0, d0, make0), (e1, d1, make1) = ALL_WALKS[first], ALL_WALKS[second]
    func = kernel(
        f"X: {d0}*{d1}*float32, Y: {e0}*{e1}*float32, Z: {e1}*{e0}*float32, I: 16*int32",
        f"""%t = tile.alloc : buffer<{d0}*{d1}*float32, shared>
            tile.copy %X, %t {{shape = ({d0}, {d1}), source_axes = (0, 1), target_axes = (0, 1)}}
            tile.parallel {{extents = ({e0}, {e1})}} (%i0: int32, %i1: int32) {{
              {rename(make0, "0")} {rename(make1, "1")} {body} }}
            tile.copy %t, %X {{shape = ({d0}, {d1}), source_axes = (0, 1), target_axes = (0, 1)}}""",
    )
    return to_values(func)


@pytest.mark.parametrize("second", WALKS)
@pytest.mark.parametrize("first", WALKS)
def test_reads(first: str, second: str) -> None:
    access(
        first,
        second,
        """%x = tile.load %t[%k0, %k1] : float32 tile.store %x, %Y[%i0, %i1]
           %c = arith.cmp %i0, %i1 {predicate = "lt"} : bool
           scf.if %c { tile.store %x, %Z[%i1, %i0] scf.yield } { scf.yield }""",
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("second", WALKS)
@pytest.mark.parametrize("first", WALKS)
def test_writes(first: str, second: str, masked: bool) -> None:
    body = "%x = tile.load %Y[%i0, %i1] : float32 "
    if masked:
        body += """%s = arith.add %i0, %i1 : int32 %b = arith.floormod %s, %c2 : int32
                   %c = arith.cmp %b, %c0 {predicate = "eq"} : bool
                   scf.if %c { tile.store %x, %t[%k0, %k1] scf.yield } { scf.yield }"""
    else:
        body += "tile.store %x, %t[%k0, %k1]"
    access(first, second, body)


@pytest.mark.parametrize("second", WALKS)
def test_writes_of_what_is_the_same_for_all_indices(second: str) -> None:
    """Nothing has to be taken from the last point that writes an element."""
    access("computed", second, "tile.store %c1.0, %t[%k0, %k1]")
    text = access("computed", second, "%x = tile.load %Y[%c0, %i1] : float32 tile.store %x, %t[%k0, %k1]")
    if second == "identity":
        assert "tensor.gather" not in text


SAME = [pair for pair in itertools.product(WALKS, repeat=2) if WALKS[pair[0]][0] == WALKS[pair[1]][0] > 1]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_diagonals(first: str, second: str) -> None:
    """Two indices that move with one place."""
    (extent, d0, make0), (_, d1, make1) = WALKS[first], WALKS[second]
    make = (rename(make0, "0") + rename(make1, "1")).replace("%i0", "%i").replace("%i1", "%i")
    whole = f"{{shape = ({d0}, {d1}), source_axes = (0, 1), target_axes = (0, 1)}}"
    to_values(
        kernel(
            f"X: {d0}*{d1}*float32, Y: {extent}*float32, Z: {extent}*float32, I: 16*int32",
            f"""%t = tile.alloc : buffer<{d0}*{d1}*float32, shared> tile.copy %X, %t {whole}
                tile.parallel {{extents = ({extent},)}} (%i: int32) {{
                  {make} %x = tile.load %t[%k0, %k1] : float32 tile.store %x, %Y[%i] }}
                tile.parallel {{extents = ({extent},)}} (%i: int32) {{
                  {make} %y = tile.load %Z[%i] : float32 tile.store %y, %t[%k0, %k1] }}
                tile.copy %t, %X {whole}""",
        )
    )


@pytest.mark.parametrize("name", UNEVEN)
def test_no_dimension_is_seen_as_two_that_are_padded_each(name: str) -> None:
    walk, read = f"{name} unevenly", "%x = tile.load %t[%k0, %k1] : float32 tile.store %x, %Y[%i0, %i1]"
    write = "%x = tile.load %Y[%i0, %i1] : float32 tile.store %x, %t[%k0, %k1]"
    for body in (read, write):
        access(walk, walk, body)
        access("computed", walk, body)
        text = access(walk, "identity", body)
        many_write_one = body == write and name in ("repeated", "wrapped")
        assert many_write_one or not re.search(r"tensor<\d+x\d+x\d+x", text)


# Extents of %i0 and %i1, the size of the buffer, and the sum of multiples that addresses it.
DIGITS = [
    ((3, 4), 12, (4, 1, 0)), ((3, 4), 12, (1, 3, 0)), ((2, 4), 24, (8, 2, 0)), ((2, 4), 24, (8, 2, 1)),
    ((2, 4), 24, (8, 2, 9)), ((2, 2), 24, (8, 2, 12)), ((2, 2), 24, (8, 2, 13)), ((3, 2), 24, (8, 4, 3)),
    ((2, 3), 20, (10, 2, 4)), ((3, 4), 13, (4, 1, 1)), ((3, 4), 11, (4, 1, -1)),
]  # fmt: skip


@pytest.mark.parametrize(("extents", "size", "factors"), DIGITS)
def test_one_index_made_of_two(extents: tuple[int, int], size: int, factors: tuple[int, int, int]) -> None:
    e0, e1 = extents
    a, b, c = factors
    to_values(
        kernel(
            f"X: {size}*float32, Y: {e0}*{e1}*float32, V: {size}*float32, W: {e0}*{e1}*float32",
            f"""%t = tile.alloc : buffer<{size}*float32, shared> %u = tile.alloc : buffer<{size}*float32, shared>
                tile.copy %X, %t {{shape = ({size},), source_axes = (0,), target_axes = (0,)}}
                tile.fill %c0.0, %u
                tile.parallel {{extents = ({e0}, {e1})}} (%i: int32, %j: int32) {{
                  %p = arith.mul %i, %c{a} : int32 %q = arith.mul %j, %c{b} : int32
                  %r = arith.add %p, %q : int32 %k = arith.add %r, %c{c} : int32
                  %l = arith.cmp %k, %c0 {{predicate = "ge"}} : bool
                  %h = arith.cmp %k, %c{size} {{predicate = "lt"}} : bool
                  %in = arith.and %l, %h : bool
                  scf.if %in {{
                    %x = tile.load %t[%k] : float32 tile.store %x, %W[%i, %j]
                    %y = tile.load %Y[%i, %j] : float32 tile.store %y, %u[%k] scf.yield
                  }} {{ scf.yield }} }}
                tile.copy %u, %V {{shape = ({size},), source_axes = (0,), target_axes = (0,)}}""",
        )
    )


REGULAR = ["strided", "aligned", "shifted", "reversed", "backwards", "backwards_strided", "backwards_dynamic"]
AGAIN = ["identity", "repeated", "wrapped"]  # of several places that write one element, the last one is known


@pytest.mark.parametrize(
    ("first", "second"), [*itertools.product(REGULAR, repeat=2), *itertools.product(AGAIN, repeat=2)]
)
def test_regular_walks_are_not_compared_one_by_one(first: str, second: str) -> None:
    text = access(first, second, "%x = tile.load %Y[%i0, %i1] : float32 tile.store %x, %t[%k0, %k1]")
    assert 'kind = "max"' not in text


def test_a_strided_read_does_not_gather() -> None:
    text = access("strided", "repeated", "%x = tile.load %t[%k0, %k1] : float32 tile.store %x, %Y[%i0, %i1]")
    assert "tensor.gather" not in text


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "float16", "bfloat16", "float8_e4m3fn", "int64"])
def test_every_element_type(dtype: str) -> None:
    to_values(
        kernel(
            f"X: 4*6*{dtype}, Y: 4*6*{dtype}, V: 4*{dtype}",
            f"""%t = tile.alloc : buffer<4*6*{dtype}, shared> %u = tile.alloc : buffer<4*6*{dtype}, fragment>
                tile.copy %X, %t {{shape = (4, 6), source_axes = (0, 1), target_axes = (0, 1)}}
                tile.copy %X, %u {{shape = (4, 6), source_axes = (0, 1), target_axes = (0, 1)}}
                tile.parallel {{extents = (4, 6)}} (%i: int32, %j: int32) {{
                  %r = arith.sub %c5, %j : int32 %x = tile.load %t[%i, %r] : {dtype}
                  tile.store %x, %u[%i, %j]
                  %c = arith.cmp %j, %bx {{predicate = "eq"}} : bool
                  scf.if %c {{ tile.store %x, %V[%i] scf.yield }} {{ scf.yield }} }}
                %y = tile.load %t[%bx, %c3] : {dtype} tile.store %y, %u[%c2, %bx]
                tile.copy %u, %Y {{shape = (4, 6), source_axes = (0, 1), target_axes = (0, 1)}}""",
        )
    )


# A buffer and another array, how many points, what each does, and the operations that come of that.
LINES = {
    "a read in bounds": (
        "30*float32", "6*float32", 6,
        """%k = arith.mul %i, %i : int32 %x = tile.load %t[%k] : float32 tile.store %x, %Y[%i]""",
        """
        %k = arith.mul %i, %i : tensor<6xint32>
        %x = tensor.gather %t, %k {axis = 0} : tensor<6xfloat32>
        tile.store %x, %Y[%i]
        """,
    ),
    "a read out of bounds": (
        "30*float32", "7*float32", 7,
        """%k = arith.mul %i, %i : int32 %c = arith.cmp %i, %c6 {predicate = "lt"} : bool
           scf.if %c { %x = tile.load %t[%k] : float32 tile.store %x, %Y[%i] scf.yield } { scf.yield }""",
        """
        %k = arith.mul %i, %i : tensor<7xint32>
        %c = arith.cmp %i, %c6 {predicate = "lt"} : tensor<7xbool>
        %1 = arith.min %k, %c29 : tensor<7xint32>
        %2 = arith.max %1, %c0 : tensor<7xint32>
        %x = tensor.gather %t, %2 {axis = 0} : tensor<7xfloat32>
        tile.store %x, %Y[%i] mask=%c
        """,
    ),
    "a read of a slice": (
        "8*float32", "4*float32", 4,
        """%k = arith.add %i, %c4 : int32 %x = tile.load %t[%k] : float32 tile.store %x, %Y[%i]""",
        """
        %k = arith.add %i, %c4 : tensor<4xint32>
        %t_1 = tensor.reshape %t : tensor<2x4xfloat32>
        %1 = tensor.iota {axis = 0} : tensor<2x1xint32>
        %2 = arith.cmp %1, %c1 {predicate = "eq"} : tensor<2x1xbool>
        %3 = arith.select %2, %t_1, %cm0p0 : tensor<2x4xfloat32>
        %4 = tensor.reduce %3 {kind = "sum", axis = 0} : tensor<4xfloat32>
        %5 = tensor.reshape %4 : tensor<1x4xfloat32>
        %x = tensor.reshape %5 : tensor<4xfloat32>
        tile.store %x, %Y[%i]
        """,
    ),
    "a read of a prefix": (
        "8*float32", "4*float32", 4,
        """%k = arith.add %i, %c0 : int32 %x = tile.load %t[%k] : float32 tile.store %x, %Y[%i]""",
        """
        %k = arith.add %i, %c0 : tensor<4xint32>
        %t_1 = tensor.reshape %t : tensor<2x4xfloat32>
        %1 = tensor.iota {axis = 0} : tensor<2x1xint32>
        %2 = arith.cmp %1, %c0 {predicate = "eq"} : tensor<2x1xbool>
        %3 = arith.select %2, %t_1, %cm0p0 : tensor<2x4xfloat32>
        %4 = tensor.reduce %3 {kind = "sum", axis = 0} : tensor<4xfloat32>
        %5 = tensor.reshape %4 : tensor<1x4xfloat32>
        %x = tensor.reshape %5 : tensor<4xfloat32>
        tile.store %x, %Y[%i]
        """,
    ),
    "a read between": (
        "8*float32", "4*float32", 4,
        """%k = arith.add %i, %c2 : int32 %x = tile.load %t[%k] : float32 tile.store %x, %Y[%i]""",
        """
        %k = arith.add %i, %c2 : tensor<4xint32>
        %1 = tensor.iota {axis = 0} : tensor<4xint32>
        %2 = arith.add %1, %c2 : tensor<4xint32>
        %x = tensor.gather %t, %2 {axis = 0} : tensor<4xfloat32>
        tile.store %x, %Y[%i]
        """,
    ),
    "a read beyond the end": (
        "8*float32", "4*float32", 4,
        """%c = arith.cmp %i, %c2 {predicate = "lt"} : bool
           scf.if %c { %k = arith.add %i, %c6 : int32 %x = tile.load %t[%k] : float32
           tile.store %x, %Y[%i] scf.yield } { scf.yield }""",
        """
        %c = arith.cmp %i, %c2 {predicate = "lt"} : tensor<4xbool>
        %k = arith.add %i, %c6 : tensor<4xint32>
        %1 = tensor.iota {axis = 0} : tensor<4xint32>
        %2 = arith.add %1, %c6 : tensor<4xint32>
        %3 = arith.min %2, %c7 : tensor<4xint32>
        %4 = arith.max %3, %c0 : tensor<4xint32>
        %x = tensor.gather %t, %4 {axis = 0} : tensor<4xfloat32>
        tile.store %x, %Y[%i] mask=%c
        """,
    ),
    "a read before the start": (
        "8*float32", "4*float32", 4,
        """%c = arith.cmp %i, %c1 {predicate = "ge"} : bool
           scf.if %c { %k = arith.add %i, %c-1 : int32 %x = tile.load %t[%k] : float32
           tile.store %x, %Y[%i] scf.yield } { scf.yield }""",
        """
        %c = arith.cmp %i, %c1 {predicate = "ge"} : tensor<4xbool>
        %k = arith.add %i, %cm1 : tensor<4xint32>
        %1 = tensor.iota {axis = 0} : tensor<4xint32>
        %2 = arith.add %1, %cm1 : tensor<4xint32>
        %3 = arith.min %2, %c7 : tensor<4xint32>
        %4 = arith.max %3, %c0 : tensor<4xint32>
        %x = tensor.gather %t, %4 {axis = 0} : tensor<4xfloat32>
        tile.store %x, %Y[%i] mask=%c
        """,
    ),
    "a read by digits": (
        "8*float32", "8*float32", 8,
        """%m = arith.floormod %i, %c4 : int32 %d = arith.mul %m, %c2 : int32
           %q = arith.floordiv %i, %c4 : int32 %k = arith.add %d, %q : int32
           %x = tile.load %t[%k] : float32 tile.store %x, %Y[%i]""",
        """
        %m = arith.floormod %i, %c4 : tensor<8xint32>
        %d = arith.mul %m, %c2 : tensor<8xint32>
        %q = arith.floordiv %i, %c4 : tensor<8xint32>
        %k = arith.add %d, %q : tensor<8xint32>
        %1 = tensor.iota {axis = 1} : tensor<1x4xint32>
        %2 = tensor.iota {axis = 0} : tensor<2x1xint32>
        %3 = arith.mul %1, %c2 : tensor<1x4xint32>
        %4 = arith.add %3, %2 : tensor<2x4xint32>
        %t_1 = tensor.reshape %t : tensor<4x2xfloat32>
        %t_t = tensor.transpose %t_1 {permutation = (1, 0)} : tensor<2x4xfloat32>
        %t_t_1 = tensor.reshape %t_t : tensor<8xfloat32>
        tile.store %t_t_1, %Y[%i]
        """,
    ),
    "a read by a product of digits": (
        "8*float32", "8*float32", 8,
        """%m = arith.floormod %i, %c4 : int32 %d = arith.mul %m, %c2 : int32
           %q = arith.floordiv %i, %c4 : int32 %k = arith.mul %d, %q : int32
           %x = tile.load %t[%k] : float32 tile.store %x, %Y[%i]""",
        """
        %m = arith.floormod %i, %c4 : tensor<8xint32>
        %d = arith.mul %m, %c2 : tensor<8xint32>
        %q = arith.floordiv %i, %c4 : tensor<8xint32>
        %k = arith.mul %d, %q : tensor<8xint32>
        %x = tensor.gather %t, %k {axis = 0} : tensor<8xfloat32>
        tile.store %x, %Y[%i]
        """,
    ),
    "a write by digits": (
        "8*float32", "8*float32", 8,
        """%m = arith.floormod %i, %c4 : int32 %d = arith.mul %m, %c2 : int32
           %q = arith.floordiv %i, %c4 : int32 %k = arith.add %d, %q : int32
           %x = tile.load %Y[%i] : float32 tile.store %x, %t[%k]""",
        """
        %m = arith.floormod %i, %c4 : tensor<8xint32>
        %d = arith.mul %m, %c2 : tensor<8xint32>
        %q = arith.floordiv %i, %c4 : tensor<8xint32>
        %k = arith.add %d, %q : tensor<8xint32>
        %x = tile.load %Y[%i] : tensor<8xfloat32>
        %1 = tensor.iota {axis = 1} : tensor<1x4xint32>
        %2 = tensor.iota {axis = 0} : tensor<2x1xint32>
        %3 = arith.mul %1, %c2 : tensor<1x4xint32>
        %4 = arith.add %3, %2 : tensor<2x4xint32>
        %x_1 = tensor.reshape %x : tensor<2x4xfloat32>
        %t_1 = tensor.reshape %t : tensor<4x2xfloat32>
        %x_t = tensor.transpose %x_1 {permutation = (1, 0)} : tensor<4x2xfloat32>
        %x_t_1 = tensor.reshape %x_t : tensor<8xfloat32>
        """,
    ),
    "an aligned slice": (
        "8*float32", "4*float32", 4,
        """%k = arith.add %i, %c4 : int32 %x = tile.load %Y[%i] : float32 tile.store %x, %t[%k]""",
        """
        %k = arith.add %i, %c4 : tensor<4xint32>
        %x = tile.load %Y[%i] : tensor<4xfloat32>
        %1 = tensor.iota {axis = 0} : tensor<8xint32>
        %2 = arith.cmp %1, %c4 {predicate = "ge"} : tensor<8xbool>
        %x_1 = tensor.reshape %x : tensor<1x4xfloat32>
        %x_2 = tensor.broadcast %x_1 : tensor<2x4xfloat32>
        %x_3 = tensor.reshape %x_2 : tensor<8xfloat32>
        %t_1 = arith.select %2, %x_3, %t : tensor<8xfloat32>
        """,
    ),
    "a slice": (
        "8*float32", "5*float32", 5,
        """%k = arith.add %i, %c2 : int32 %x = tile.load %Y[%i] : float32 tile.store %x, %t[%k]""",
        """
        %k = arith.add %i, %c2 : tensor<5xint32>
        %x = tile.load %Y[%i] : tensor<5xfloat32>
        %1 = tensor.iota {axis = 0} : tensor<8xint32>
        %2 = arith.cmp %1, %c2 {predicate = "ge"} : tensor<8xbool>
        %3 = arith.cmp %1, %c7 {predicate = "lt"} : tensor<8xbool>
        %4 = arith.and %2, %3 : tensor<8xbool>
        %5 = tensor.iota {axis = 0} : tensor<8xint32>
        %6 = arith.sub %5, %c2 : tensor<8xint32>
        %7 = arith.min %6, %c4 : tensor<8xint32>
        %8 = arith.max %7, %c0 : tensor<8xint32>
        %9 = tensor.gather %x, %8 {axis = 0} : tensor<8xfloat32>
        %t_1 = arith.select %4, %9, %t : tensor<8xfloat32>
        """,
    ),
    "a prefix": (
        "9*float32", "5*float32", 5,
        """%x = tile.load %Y[%i] : float32 tile.store %x, %t[%i]""",
        """
        %x = tile.load %Y[%i] : tensor<5xfloat32>
        %1 = tensor.iota {axis = 0} : tensor<9xint32>
        %2 = arith.cmp %1, %c5 {predicate = "lt"} : tensor<9xbool>
        %3 = tensor.iota {axis = 0} : tensor<9xint32>
        %4 = arith.min %3, %c4 : tensor<9xint32>
        %5 = arith.max %4, %c0 : tensor<9xint32>
        %6 = tensor.gather %x, %5 {axis = 0} : tensor<9xfloat32>
        %t_1 = arith.select %2, %6, %t : tensor<9xfloat32>
        """,
    ),
    "a strided walk": (
        "8*float32", "4*float32", 4,
        """%d = arith.mul %i, %c2 : int32 %k = arith.add %d, %c1 : int32
           %x = tile.load %Y[%i] : float32 tile.store %x, %t[%k]""",
        """
        %d = arith.mul %i, %c2 : tensor<4xint32>
        %k = arith.add %d, %c1 : tensor<4xint32>
        %x = tile.load %Y[%i] : tensor<4xfloat32>
        %1 = tensor.iota {axis = 0} : tensor<8xint32>
        %2 = arith.floormod %1, %c2 : tensor<8xint32>
        %3 = arith.cmp %2, %c1 {predicate = "eq"} : tensor<8xbool>
        %x_1 = tensor.reshape %x : tensor<4x1xfloat32>
        %x_2 = tensor.broadcast %x_1 : tensor<4x2xfloat32>
        %x_3 = tensor.reshape %x_2 : tensor<8xfloat32>
        %t_1 = arith.select %3, %x_3, %t : tensor<8xfloat32>
        """,
    ),
    "computed places": (
        "8*float32", "4*float32", 4,
        """%n = tile.load %I[%i] : int32 %k = arith.floormod %n, %c8 : int32
           %x = tile.load %Y[%i] : float32 tile.store %x, %t[%k]""",
        """
        %n = tile.load %I[%i] : tensor<4xint32>
        %k = arith.floormod %n, %c8 : tensor<4xint32>
        %x = tile.load %Y[%i] : tensor<4xfloat32>
        %1 = tensor.iota {axis = 0} : tensor<8x1xint32>
        %k_1 = tensor.reshape %k : tensor<1x4xint32>
        %2 = arith.cmp %1, %k_1 {predicate = "eq"} : tensor<8x4xbool>
        %3 = tensor.iota {axis = 1} : tensor<1x4xint32>
        %4 = arith.select %2, %3, %cm1 : tensor<8x4xint32>
        %5 = tensor.reduce %4 {kind = "max", axis = 1} : tensor<8xint32>
        %6 = arith.cmp %5, %c0 {predicate = "ge"} : tensor<8xbool>
        %x_1 = tensor.reshape %x : tensor<1x4xfloat32>
        %x_2 = tensor.reshape %x_1 : tensor<4xfloat32>
        %7 = arith.min %5, %c3 : tensor<8xint32>
        %8 = arith.max %7, %c0 : tensor<8xint32>
        %9 = tensor.gather %x_2, %8 {axis = 0} : tensor<8xfloat32>
        %t_1 = arith.select %6, %9, %t : tensor<8xfloat32>
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_what_accesses_become(name: str) -> None:
    buffer, other, extent, body, expected = LINES[name]
    size = buffer.partition("*")[0]
    whole = f"{{shape = ({size},), source_axes = (0,), target_axes = (0,)}}"
    text = to_values(
        kernel(
            f"X: {buffer}, Y: {other}, I: 16*int32",
            f"""%t = tile.alloc : buffer<{buffer}, shared> tile.copy %X, %t {whole}
                tile.parallel {{extents = ({extent},)}} (%i: int32) {{ {body} }} tile.copy %t, %X {whole}""",
        )
    )
    assert body_lines(parse_program(text))[3:-1] == [line.strip() for line in expected.strip().splitlines()]


def test_columns_at_computed_places_of_all_rows() -> None:
    whole = "{shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}"
    text = to_values(
        kernel(
            "X: 4*8*float32, Y: 4*3*float32, I: 16*int32",
            f"""%t = tile.alloc : buffer<4*8*float32, shared> tile.copy %X, %t {whole}
                tile.parallel {{extents = (4, 3)}} (%i: int32, %j: int32) {{
                  %n = tile.load %I[%j] : int32 %k = arith.floormod %n, %c8 : int32
                  %x = tile.load %Y[%i, %j] : float32 tile.store %x, %t[%i, %k] }} tile.copy %t, %X {whole}""",
        )
    )
    assert body_lines(parse_program(text))[8:-1] == [
        "%2 = tensor.iota {axis = 1} : tensor<1x8x1xint32>",
        "%k_1 = tensor.reshape %k : tensor<1x1x3xint32>",
        '%3 = arith.cmp %2, %k_1 {predicate = "eq"} : tensor<1x8x3xbool>',
        "%4 = tensor.iota {axis = 2} : tensor<1x1x3xint32>",
        "%5 = arith.select %3, %4, %cm1 : tensor<1x8x3xint32>",
        '%6 = tensor.reduce %5 {kind = "max", axis = 2} : tensor<1x8xint32>',
        '%7 = arith.cmp %6, %c0 {predicate = "ge"} : tensor<1x8xbool>',
        "%8 = tensor.broadcast %7 : tensor<4x8xbool>",
        "%x_1 = tensor.reshape %x : tensor<4x1x3xfloat32>",
        "%x_2 = tensor.reshape %x_1 : tensor<4x3xfloat32>",
        "%9 = arith.min %6, %c2 : tensor<1x8xint32>",
        "%10 = arith.max %9, %c0 : tensor<1x8xint32>",
        "%11 = tensor.broadcast %10 : tensor<4x8xint32>",
        "%12 = tensor.gather %x_2, %11 {axis = 1} : tensor<4x8xfloat32>",
        "%t_1 = arith.select %8, %12, %t : tensor<4x8xfloat32>",
    ]


@pytest.mark.parametrize(
    ("rows", "columns", "points", "value", "condition", "by_place"),
    [
        (64, 64, 64, "%i, %j", "%j", False),
        (64, 64, 65, "%i, %j", "%j", True),
        # what is written does not depend on the row: the points of one are compared
        (3, 512, 512, "%c0, %j", "%j", False),
        (3, 512, 513, "%c0, %j", "%j", True),
        # but whether it is written does: those of 64
        (64, 64, 64, "%c0, %j", "%i", False),
        (64, 64, 65, "%c0, %j", "%i", True),
    ],
)
def test_up_to_so_many_points_are_compared_with_the_elements(
    rows: int, columns: int, points: int, value: str, condition: str, by_place: bool
) -> None:
    whole = f"{{shape = ({rows}, {columns}), source_axes = (0, 1), target_axes = (0, 1)}}"
    text = f"""%t = tile.alloc : buffer<{rows}*{columns}*float32, shared> tile.copy %X, %t {whole}
    tile.parallel {{extents = ({rows}, {points})}} (%i: int32, %j: int32) {{
      %n = tile.load %I[%j] : int32 %k = arith.floormod %n, %c{columns} : int32
      %x = tile.load %Y[{value}] : float32 %c = arith.cmp {condition}, %bx {{predicate = "gt"}} : bool
      scf.if %c {{ tile.store %x, %t[%i, %k] scf.yield }} {{ scf.yield }} }}
    tile.copy %t, %X {whole}"""
    lines = after(TO_VALUES, text, parameters=f"X: {rows}*{columns}*float32, Y: 512*1024*float32, I: 1024*int32")
    assert any("tensor.scatter" in line for line in lines) == by_place


@pytest.mark.parametrize(("value", "gathers"), [("%i, %c0", False), ("%c0, %j", True)])
def test_what_is_the_same_for_all_points_is_not_gathered(value: str, gathers: bool) -> None:
    whole = "{shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}"
    func = kernel(
        "X: 4*8*float32, Y: 4*3*float32, I: 16*int32",
        f"""%t = tile.alloc : buffer<4*8*float32, shared> tile.copy %X, %t {whole}
            tile.parallel {{extents = (4, 3)}} (%i: int32, %j: int32) {{
              %n = tile.load %I[%j] : int32 %k = arith.floormod %n, %c8 : int32
              %x = tile.load %Y[{value}] : float32 tile.store %x, %t[%i, %k] }} tile.copy %t, %X {whole}""",
    )
    assert ("tensor.gather" in to_values(func)) is gathers


def test_dimensions_are_seen_as_two_where_the_inner_one_is_a_power_of_two() -> None:
    assert [size for size in range(1, 34) if _splits(size)] == [1, 2, 4, 8, 16, 32]
