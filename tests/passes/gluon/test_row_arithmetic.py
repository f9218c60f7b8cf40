"""Cheaper forms of row-wise arithmetic: what is rewritten, what stays, and that the meaning does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.passes.ir_cases import body_lines, kernel_of, program
from tests.support import executor
from tiledsl.dialects import arith
from tiledsl.ir.verifier import verify
from tiledsl.passes.dce import erase_unused, is_removable
from tiledsl.passes.gluon.row_arithmetic import (
    compare_columns,
    divide_rows_once,
    mask_after_products,
    merge_limits,
    multiply_rows_once,
)

START = """
%i = tensor.iota {axis = 0} : tensor<8x1xint32>
%j = tensor.iota {axis = 1} : tensor<1x16xint32>
%i16 = tensor.iota {axis = 0} : tensor<16x1xint32>
%x = tile.load %A[%i, %j] : tensor<8x16xfloat32>
%row = tile.load %A[%i, %c20] : tensor<8x1xfloat32>
%other = tile.load %A[%i, %c21] : tensor<8x1xfloat32>
%column = tile.load %A[%c9, %j] : tensor<1x16xfloat32>
%square = tile.load %A[%i16, %j] : tensor<16x16xfloat32>
%half = arith.cast %x : tensor<8x16xfloat16>
%halfrow = arith.cast %row : tensor<8x1xfloat16>
%one = arith.constant {value = 1.0} : float32
%low = arith.constant {value = -inf} : float32
%nought = arith.constant {value = 0.0} : float32
"""
TILE, MASK = "tensor<8x16xfloat32>", "tensor<8x16xbool>"
STORE = "\ntile.store %y, %B[%i, %j]"


def rewritten(rewrite: Callable[..., None], body: str, s: int = 3) -> bool:
    """Whether the program is another one now; it means the same."""
    program_after = program(START + body, grid=(1,))
    arrays = lambda: [
        np.random.default_rng(0).uniform(0.5, 2, (64, 96)).astype(np.float32), np.zeros((64, 96), np.float32),
        np.arange(1000, dtype=np.int32), np.ones(5, np.float32), s, 1.0, True, 1,
    ]  # fmt: skip
    expected, found = arrays(), arrays()
    before = body_lines(program_after)
    executor.run(program_after.root, expected)
    rewrite(list(kernel_of(program_after).walk()))
    verify(program_after.root)
    executor.run(program_after.root, found)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)  # type: ignore[arg-type]
    return body_lines(program_after) != before


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (f"%y = arith.div %x, %row : {TILE}", True),
        (f"%r = tensor.broadcast %row : {TILE}\n%y = arith.div %x, %r : {TILE}", True),
        (f"%y = arith.div %x, %column : {TILE}", False), (f"%y = arith.div %x, %f : {TILE}", False),
        (f"%y = arith.div %one, %x : {TILE}", False), (f"%y = arith.div %column, %row : {TILE}", False),
        (f"%y = arith.div %x, %x : {TILE}", False),
        (f"%ones = arith.constant {{value = 1.0}} : {TILE}\n%y = arith.div %ones, %row : {TILE}", False),
        (f"%h = arith.div %half, %halfrow : tensor<8x16xfloat16>\n%y = arith.cast %h : {TILE}", False),
    ],
)  # fmt: skip
def test_division_by_rows(body: str, changes: bool) -> None:
    assert rewritten(divide_rows_once, body + STORE) is changes


@pytest.mark.parametrize(
    ("body", "changes"),
    [
        (f"%p = arith.mul %x, %row : {TILE}\n%y = arith.mul %p, %other : {TILE}", True),
        (
            f"%p = arith.mul %x, %row : {TILE}\n%q = arith.mul %p, %other : {TILE}\n%y = arith.add %p, %q : {TILE}",
            False,
        ),
        (f"%p = arith.mul %x, %row : {TILE}\n%y = arith.mul %p, %column : {TILE}", False),
        (f"%p = arith.mul %x, %column : {TILE}\n%y = arith.mul %p, %other : {TILE}", False),
        (f"%p = arith.mul %x, %row : {TILE}\n%y = arith.mul %p, %x : {TILE}", False),
        (f"%p = arith.mul %x, %x : {TILE}\n%y = arith.mul %p, %row : {TILE}", False),
        (f"%p = arith.mul %column, %row : {TILE}\n%y = arith.mul %p, %other : {TILE}", False),
        (f"%p = arith.add %x, %row : {TILE}\n%y = arith.mul %p, %other : {TILE}", False),
        (f"%p = arith.mul %x, %f : {TILE}\n%y = arith.mul %p, %f : {TILE}", False),
    ],
)
def test_products_with_rows(body: str, changes: bool) -> None:
    assert rewritten(multiply_rows_once, body + STORE) is changes


@pytest.mark.parametrize(
    ("sides", "after", "changes"),
    [
        ("%nought, %low", "", True), ("%low, %nought", "", True), ("%nought, %one", "", False),
        ("%one, %low", "", False),
        ("%nought, %nought", "", False), ("%x, %low", "", False),
    ],
)  # fmt: skip
def test_masks_of_products(sides: str, after: str, changes: bool) -> None:
    body = f"""
    %seen = arith.cmp %i, %j {{predicate = "ge"}} : {MASK}
    %m = arith.select %seen, {sides} : {TILE}
    %d = tensor.dot %x, %square, %m {{precision = "ieee"}} : {TILE}
    %y = arith.max %d, %f : {TILE}"""
    assert rewritten(mask_after_products, body + STORE) is changes


@pytest.mark.parametrize("predicate", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize(
    ("lhs", "rhs", "changes"),
    [
        ("%p", "%q", True), ("%q", "%p", True), ("%p", "%i", True), ("%q", "%j", True), ("%j", "%i", False),
        ("%j", "%s", False), ("%twice", "%i", False), ("%p", "%s", False), ("%wild", "%q", False),
        ("%q", "%wild", False), ("%near", "%q", True), ("%far", "%q", True), ("%farther", "%q", True),
        ("%farthest", "%q", False),
        ("%all", "%bx", False), ("%bx", "%all", False), ("%wp", "%wq", False), ("%mixed", "%q", False),
    ],
)  # fmt: skip
def test_comparisons_of_columns(lhs: str, rhs: str, changes: bool, predicate: str) -> None:
    body = f"""
    %p = arith.add %j, %bx : tensor<1x16xint32>
    %wild = arith.add %j, %s : tensor<1x16xint32>
    %few = arith.and %s, %c255 : int32
    %near = arith.add %j, %few : tensor<1x16xint32>
    %much = arith.mul %few, %c1052688 : int32
    %far = arith.add %j, %much : tensor<1x16xint32>
    %more = arith.mul %few, %c1052689 : int32
    %farther = arith.add %j, %more : tensor<1x16xint32>
    %least = arith.and %s, %c7 : int32
    %most = arith.mul %least, %c300000000 : int32
    %farthest = arith.add %farther, %most : tensor<1x16xint32>
    %q = arith.add %i, %c7 : tensor<8x1xint32>
    %all = tensor.broadcast %p : tensor<8x16xint32>
    %wp = arith.cast %p : tensor<1x16xint64>
    %wq = arith.cast %q : tensor<8x1xint64>
    %twice = arith.mul %j, %c2 : tensor<1x16xint32>
    %v = tile.load %N[%j] : tensor<1x16xint32>
    %low = arith.and %v, %c255 : tensor<1x16xint32>
    %mixed = arith.add %j, %low : tensor<1x16xint32>
    %c = arith.cmp {lhs}, {rhs} {{predicate = "{predicate}"}} : {MASK if rhs != "%s" else "tensor<1x16xbool>"}
    %y = arith.select %c, %x, %f : {TILE}"""
    if rhs != "%s" or changes:
        assert rewritten(compare_columns, body + STORE) is changes
    else:
        rewritten(compare_columns, body + STORE)


@pytest.mark.parametrize(("rows", "changes"), [(1, True), (8, False)])
def test_columns_are_compared_by_themselves_where_there_is_one_row(rows: int, changes: bool) -> None:
    """Where several rows differ in nothing, a sum for all of them is as cheap."""
    value, place = ("%column", "%c0") if rows == 1 else ("%x", "%i")
    body = f"""%at = arith.add %j, %bx : tensor<1x16xint32>
    %here = tensor.broadcast %at : tensor<{rows}x16xint32>
    %seen = arith.cmp {"%at" if rows == 1 else "%here"}, %c9 {{predicate = "lt"}} : tensor<{rows}x16xbool>
    %y = arith.select %seen, {value}, %nought : tensor<{rows}x16xfloat32>
    tile.store %y, %B[{place}, %j]"""
    assert rewritten(compare_columns, body) is changes


LIMITS = """
%p = arith.add %j, %bx : tensor<1x16xint32>
%a = arith.add %i, %s : tensor<8x1xint32>
%wild = arith.add %j, %s : tensor<1x16xint32>
%above = arith.cmp %a, %p {predicate = "lt"} : tensor<8x16xbool>
%under = arith.cmp %p, %a {predicate = "le"} : tensor<8x16xbool>
%behind = arith.cmp %p, %s {predicate = "ge"} : tensor<1x16xbool>
%before = arith.cmp %p, %s {predicate = "lt"} : tensor<1x16xbool>
%row_out = arith.cmp %i, %s {predicate = "ge"} : tensor<8x1xbool>
%row_in = arith.cmp %i, %s {predicate = "lt"} : tensor<8x1xbool>
%far = arith.cmp %wild, %i {predicate = "gt"} : tensor<8x16xbool>
%hidden = arith.cmp %x, %half32 {predicate = "lt"} : tensor<8x16xbool>
"""


@pytest.mark.parametrize("s", [3, 0, 20, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize(
    ("kind", "sides", "compared"),
    [
        ("or", ("%above", "%behind"), 1), ("or", ("%above", "%row_out", "%behind"), 1),
        ("or", ("%row_out", "%behind"), 1),
        ("or", ("%above", "%b"), 1), ("and", ("%under", "%before"), 1), ("and", ("%row_in", "%under", "%before"), 1),
        ("and", ("%b", "%under"), 1), ("or", ("%above", "%behind", "%hidden"), 2), ("or", ("%under", "%before"), None),
        ("and", ("%above", "%behind"), None), ("or", ("%far", "%row_out"), None), ("or", ("%above", "%hidden"), None),
    ],
)  # fmt: skip
def test_limits_of_columns_become_one(kind: str, sides: tuple[str, ...], compared: int | None, s: int) -> None:
    first, *others = sides
    chain = "".join(
        f"\n%o{number + 1} = arith.{kind} {first if number == 0 else f'%o{number}'}, {each} : {MASK}"
        for number, each in enumerate(others)
    )
    half = "%half32 = arith.constant {value = 1.2} : float32\n"
    body = f"{half}{LIMITS}{chain}\n%y = arith.select %o{len(others)}, %x, %nought : {TILE}"
    assert rewritten(merge_limits, body + STORE, s) is (compared is not None)
    if compared is not None:
        changed = program(START + body + STORE, grid=(1,))
        merge_limits(list(kernel_of(changed).walk()))
        erase_unused(kernel_of(changed).body, is_removable)
        wide = [op for op in kernel_of(changed).walk() if isinstance(op, arith.CmpOp) and op.out.shape == (8, 16)]
        assert len(wide) == compared
