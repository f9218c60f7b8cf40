"""Indexed accesses to on-chip buffers: every kind of index in every place, by brute force."""

from __future__ import annotations

import itertools

import pytest

from tests.passes.ir_cases import kernel, to_values

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
    "one": (1, 1, "%k = arith.add %c0, %c0 : int32"),
}


def rename(text: str, by: str) -> str:
    return text.replace("%i", f"%i{by}").replace("%k", f"%k{by}").replace("%d", f"%d{by}").replace("%n", f"%n{by}")


def access(first: str, second: str, body: str) -> str:
    (e0, d0, make0), (e1, d1, make1) = WALKS[first], WALKS[second]
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


@pytest.mark.parametrize(("first", "second"), list(itertools.product(REGULAR, repeat=2)))
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
