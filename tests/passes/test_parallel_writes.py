"""Which points of a T.Parallel address different elements, against all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.passes.ir_cases import kernel_of, program
from tiledsl.dialects import tile
from tiledsl.ir.core import Value
from tiledsl.passes.vectorize_parallel.threads import threads_where
from tiledsl.passes.vectorize_parallel.updates import updates_alone
from tiledsl.passes.vectorize_parallel.writes import _multiples, _one_to_one, keeps_element, place

ROWS, COLUMNS = 3, 4


def index(outer: int, inner: int, offset: str = "%c0", rows: int = ROWS) -> Value:
    """%i * outer + %j * inner + offset over 3 x 4 points; a factor of 0 leaves the index out."""
    terms = []
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<{rows}x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x{COLUMNS}xint32>
    """
    if outer:
        terms.append((f"{rows}x1", "%a"))
        body += f"%a = arith.mul %i, %c{outer} : tensor<{rows}x1xint32>\n"
    if inner:
        terms.append((f"1x{COLUMNS}", "%b"))
        body += f"%b = arith.mul %j, %c{inner} : tensor<1x{COLUMNS}xint32>\n"
    if len(terms) == 2:
        body += f"%t = arith.add %a, %b : tensor<{rows}x{COLUMNS}xint32>\n"
        terms = [(f"{rows}x{COLUMNS}", "%t")]
    ((shape, name),) = terms
    body += f"%x = arith.add {name}, {offset} : tensor<{shape}xint32>"
    return {value.name: value for op in kernel_of(program(body)).walk() for value in op.results}["x"]


def elements(outer: int, inner: int, rows: int = ROWS) -> np.ndarray:
    return np.arange(rows)[:, None] * outer + np.arange(COLUMNS)[None, :] * inner


def test_points_that_one_index_tells_apart() -> None:
    for rows, outer, inner in itertools.product((2, 3), range(-6, 7), range(-6, 7)):
        if not outer and not inner:
            continue
        made = index(outer, inner, rows=rows)
        shared = place([made], 2)
        apart = np.unique(elements(outer, inner, rows)).size == np.prod(shared)
        known = _one_to_one([made], shared)
        assert not known or apart, (outer, inner)
        # Found wherever one index moves by more than the other one reaches.
        a, b = abs(outer) * (rows - 1), abs(inner) * (COLUMNS - 1)
        far = not outer or not inner or abs(outer) > b or abs(inner) > a
        assert known is far, (outer, inner)


def test_points_that_two_indices_tell_apart() -> None:
    for (a, b), (c, d) in itertools.product(itertools.product((0, 1, 2), (0, 1, 3)), repeat=2):
        if not (a or b) or not (c or d):
            continue
        indices = [index(a, b), index(c, d)]
        shared = place(indices, 2)
        pairs = np.stack(np.broadcast_arrays(elements(a, b), elements(c, d)), -1).reshape(-1, 2)
        if _one_to_one(indices, shared):
            assert len(np.unique(pairs, axis=0)) == np.prod(shared), (a, b, c, d)
        if (b, c) == (0, 0) or (a, d) == (0, 0):
            assert _one_to_one(indices, shared)
        if a and b and (c == 0 or d == 0):  # where one index tells one place, the other one tells the other
            assert _one_to_one(indices, shared) and _one_to_one(indices[::-1], shared)


def test_what_is_no_sum_of_multiples_tells_nothing() -> None:
    assert _multiples(index(2, 3)) == {0: 2, 1: 3} and _multiples(index(2, 3, "%s")) == {0: 2, 1: 3}
    assert _multiples(index(2, 0)) == {0: 2}
    body = """
    %i = tensor.iota {axis = 0} : tensor<4x1xint32>
    %d = arith.floordiv %i, %c2 : tensor<4x1xint32>
    %m = arith.mul %i, %i : tensor<4x1xint32>
    %k = arith.add %i, %i : tensor<4x1xint32>
    %n = arith.add %i, %bx : tensor<4x1xint32>
    %q = arith.mul %n, %bx : tensor<4x1xint32>"""
    named = {value.name: value for op in kernel_of(program(body)).walk() for value in op.results}
    assert _multiples(named["d"]) is None and _multiples(named["m"]) is None and _multiples(named["k"]) == {0: 2}
    assert _multiples(named["n"]) == {0: 1} and _multiples(named["q"]) is None  # %bx may be 0
    assert not _one_to_one([named["d"]], (4, 1)) and _one_to_one([named["k"]], (4, 1))
    assert _one_to_one([], (1, 1))


@pytest.mark.parametrize(
    ("mask", "count"),
    [
        ('%m = arith.cmp %i, %j {predicate = "lt"} : tensor<3x4xbool>', 3 + 2 + 1),
        ('%m = arith.cmp %u, %i {predicate = "eq"} : tensor<3x1xbool>', 1),  # %u is 0 wherever it is looked at
        ('%m = arith.cmp %w, %i {predicate = "lt"} : tensor<3x4xbool>', 8),
        ('%d = arith.mul %i, %j : tensor<3x4xint32>\n%m = arith.cmp %d, %c3 {predicate = "ge"} : tensor<3x4xbool>', 3),
        ('%m = arith.cmp %i, %bx {predicate = "lt"} : tensor<3x1xbool>', None),
    ],
)  # fmt: skip
def test_in_how_many_points_a_mask_holds(mask: str, count: int | None) -> None:
    body = f"""
    %i = tensor.iota {{axis = 0}} : tensor<3x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x4xint32>
    %u = tensor.iota {{axis = 0}} : tensor<1x1xint32>
    %w = tensor.broadcast %u : tensor<3x4xint32>
    {mask}"""
    named = {value.name: value for op in kernel_of(program(body)).walk() for value in op.results}
    assert threads_where(named["m"]) == count


@pytest.mark.parametrize(
    ("between", "store", "keeps"),
    [
        ("", "%x, %t[%bx, %c2]", True),
        ("%y = arith.add %bx, %c1 : int32", "%x, %t[%bx, %c2]", True),
        ("%y = tile.load %t[%c0, %c1] : float32", "%x, %t[%bx, %c2]", True),
        ("%two = arith.constant {value = 2} : int32", "%x, %t[%bx, %two]", True),
        ("%two = arith.constant {value = 1} : int32", "%x, %t[%bx, %two]", False),
        ("", "%x, %t[%c2, %bx]", False),
        ("", "%x, %t[%s, %c2]", False),
        ("", "%x, %u[%bx, %c2]", False),
        ("%y = arith.neg %x : float32", "%y, %t[%bx, %c2]", False),
        ("tile.store %f, %t[%c0, %c0]", "%x, %t[%bx, %c2]", False),
        ("tile.store %f, %t[%c0, %c0] %y = arith.add %bx, %c1 : int32", "%x, %t[%bx, %c2]", False),
        ("%x2 = tile.load %A[%bx, %c2] : float32", "%x2, %A[%bx, %c2]", False),  # in memory others may write
        ("%x2 = tile.load %t[%bx, %c2] mask=%b : float32", "%x2, %t[%bx, %c2]", False),
        ("scf.if %b {", "%x, %t[%bx, %c2] scf.yield } { scf.yield }", False),
    ],
)
def test_stores_that_put_back_what_was_just_read(between: str, store: str, keeps: bool) -> None:
    body = f"""%t = tile.alloc : buffer<4*4*float32, shared> %u = tile.alloc : buffer<4*4*float32, shared>
        %x = tile.load %t[%bx, %c2] : float32 {between} tile.store {store}"""
    stores = [op for op in kernel_of(program(body)).walk() if isinstance(op, tile.StoreOp)]
    assert keeps_element(stores[-1]) is keeps


ADD = "%o = tile.load %r[%bx] : float32 %n = arith.add %o, %f : float32 tile.store %n, %r[%bx]"
ADD_NARROW = """%w = arith.cast %s : int64 %o = tile.load %h[%bx] : int16 %t = arith.cast %o : int64
    %u = arith.add %t, %w : int64 %n = arith.cast %u : int16 tile.store %n, %h[%bx]"""
MORE = ADD.replace("%o", "%p").replace("%n", "%q").replace("%bx", "%s")
ATOMIC = '%a = tile.atomic %f, %r[%c1] {kind = "add"} : float32'


@pytest.mark.parametrize(
    ("body", "terms"),
    [
        (ADD, ["f"]),
        (ADD.replace("%o, %f", "%f, %o"), ["f"]),
        (ADD.replace("arith.add", "arith.sub"), ["-f"]),
        (ADD.replace("arith.add %o, %f", "arith.sub %f, %o"), None),
        (ADD.replace("arith.add", "arith.max"), ["f"]),
        (ADD.replace("arith.add", "arith.mul"), None),
        (ADD.replace("%n =", "%t = arith.add %f, %f : float32 %n =").replace("%o, %f", "%o, %t"), ["t"]),
        (ADD.replace("%n = arith.add %o, %f", "%t = arith.sub %o, %g : float32 %n = arith.add %t, %f"), ["-g", "f"]),
        (ADD.replace("%n = arith.add %o, %f", "%t = arith.max %o, %g : float32 %n = arith.add %t, %f"), None),
        (ADD.replace("%n = arith.add %o, %f", "%t = arith.cast %o : float64 %u = arith.cast %f : float64 "
                     "%v = arith.add %t, %u : float64 %n = arith.cast %v"), ["u"]),
        (ADD.replace("%r[%bx] :", "%r[%bx] mask=%b :"), None),
        (ADD.replace("tile.store %n, %r[%bx]", "tile.store %n, %r[%s]"), None),
        (ADD.replace("%n = arith.add %o, %f", "%t = arith.add %o, %g : float32 tile.store %t, %D[%c1] "
                     "%n = arith.add %t, %f"), None),
        # Whole numbers wrap in either type, and the largest of them is another one then.
        (ADD_NARROW, ["w"]),
        (ADD_NARROW.replace("arith.add", "arith.max"), None),
        (f"{ADD} {MORE}", ["f", "f"]),
        (f"{ADD} {MORE.replace('add', 'sub')}", ["f", "-f"]),
        (f"{ADD} {MORE.replace('add', 'min')}", None),
        (f"{ADD} tile.store %f, %r[%c1]", None),
        (f"{ADD} %p = tile.load %r[%c1] : float32", None),
        (f"{ADD} tile.store %o, %D[%c1]", None),
        (f"{ADD} tile.store %n, %D[%c1]", None),
        (f"{ADD} {ATOMIC}", ["f"]),
        (f"{ADD} {ATOMIC} tile.store %a, %D[%c1]", None),
        (f"{ADD} {ATOMIC.replace('add', 'max')}", None),
        (ATOMIC, []),
        (f"{ATOMIC} {ATOMIC.replace('%a', '%b2')}", []),
    ],
)  # fmt: skip
def test_accesses_that_only_update(body: str, terms: list[str] | None) -> None:
    allocs = "%r = tile.alloc : buffer<4*float32, shared> %h = tile.alloc : buffer<4*int16, shared>"
    text = f"{allocs} %g = arith.neg %f : float32 {body}"
    ops = list(kernel_of(program(text)).walk())
    (buffer,) = [op.out for op in ops if isinstance(op, tile.AllocOp) and op.out.uses]
    found = updates_alone([op for op in ops if buffer in op.operands])
    assert (found and [("-" if minus else "") + term.name for each in found for term, minus in each.terms]) == terms
