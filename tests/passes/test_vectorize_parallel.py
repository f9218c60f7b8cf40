"""vectorize-parallel, alone for its text; what it refuses, and what it says of orders."""

from __future__ import annotations

import re

import pytest

from tests.passes.ir_cases import TO_VALUES, after, filecheck, to_values
from tests.passes.parallel_bodies import tiles
from tests.support.programs import check_pass
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.dce import Dce
from tiledsl.passes.vectorize_parallel import VectorizeParallel


def test_indices_become_iotas_and_values_keep_minimal_shapes() -> None:
    body = """
    tile.parallel {extents = (4, 8)} (%i: int32, %j: int32) {
      %x = tile.load %S[%i] : float32
      %y = arith.add %x, %c0.5 : float32
      tile.store %y, %Y[%i, %j]
    }"""
    filecheck(
        after(VectorizeParallel(), body, parameters="S: 4*float32, Y: 4*8*float32"),
        """
        %i = tensor.iota {axis = 0} : tensor<4x1xint32>
        %j = tensor.iota {axis = 1} : tensor<1x8xint32>
        %x = tile.load %S[%i] : tensor<4x1xfloat32>
        %y = arith.add %x, %c0p5 : tensor<4x1xfloat32>
        tile.store %y, %Y[%i, %j]
        """,
    )


def test_a_buffer_that_all_points_share_is_read_once() -> None:
    body = """
    %s = tile.alloc : buffer<4*float32, shared>
    tile.parallel {extents = (4, 8)} (%i: int32, %j: int32) {
      %t = tile.read %s : tensor<4xfloat32>
      %x = tile.load %S[%i] : float32
      tile.store %x, %Y[%i, %j]
    }"""
    filecheck(
        after(VectorizeParallel(), body, parameters="S: 4*float32, Y: 4*8*float32"),
        """
        %s = tile.alloc : buffer<4*float32, shared>
        %i = tensor.iota {axis = 0} : tensor<4x1xint32>
        %j = tensor.iota {axis = 1} : tensor<1x8xint32>
        %t = tile.read %s : tensor<4xfloat32>
        %x = tile.load %S[%i] : tensor<4x1xfloat32>
        tile.store %x, %Y[%i, %j]
        """,
    )


def test_what_is_added_to_no_element_is_its_neutral() -> None:
    """At computed places: of a sum -0.0, which leaves an element of -0.0 as it is; of extrema, elements that no point
    has stay masked, since an infinity would replace a NaN."""
    body = """
    %s = tile.alloc : buffer<4*DTYPE, fragment>
    tile.parallel {extents = (3,)} (%i: int32) {
      %n = tile.load %N[%i] : int32 %x = tile.load %X[%i] : DTYPE
      %o = tile.atomic %x, %s[%n] {kind = "KIND"} : DTYPE
    }"""
    for kind, dtype, neutral, masked in (
        ("add", "float32", "%cm0p0", False), ("add", "int32", "%c0", False), ("max", "float32", "%cminf", True),
        ("max", "int32", "%cm2147483648", False), ("min", "float32", "%cinf", True),
    ):  # fmt: skip
        text = body.replace("DTYPE", dtype).replace("KIND", kind)
        lines = after(VectorizeParallel(), text, parameters=f"N: 3*int32, X: 3*{dtype}")
        (select,) = [line for line in lines if "arith.select" in line]
        assert f", {neutral} : " in select
        (store,) = [line for line in lines if "tile.store" in line]
        assert ("mask=" in store) is masked


def test_what_a_point_s_own_place_addresses_is_not_compared() -> None:
    body = """
    %s = tile.alloc : buffer<4*6*float32, fragment>
    tile.parallel {extents = (4, 8)} (%i: int32, %j: int32) {
      %n = tile.load %N[%j] : int32 %x = tile.load %X[%i, %j] : float32
      %o = tile.atomic %x, %s[%i, %n] {kind = "add"} : float32
    }"""
    assert after(VectorizeParallel(), body, parameters="N: 8*int32, X: 4*8*float32")[5:] == [
        "%i_1 = tensor.reshape %i : tensor<4x1x1xint32>",
        "%0 = tensor.iota {axis = 2} : tensor<1x1x6xint32>",
        "%n_1 = tensor.reshape %n : tensor<1x8x1xint32>",
        '%1 = arith.cmp %n_1, %0 {predicate = "eq"} : tensor<1x8x6xbool>',
        "%x_1 = tensor.reshape %x : tensor<4x8x1xfloat32>",
        "%2 = arith.select %1, %x_1, %cm0p0 : tensor<4x8x6xfloat32>",
        '%3 = tensor.reduce %2 {kind = "sum", axis = 1} : tensor<4x6xfloat32>',
        "%4 = tensor.reshape %3 : tensor<4x1x6xfloat32>",
        "%5 = tile.load %s[%i_1, %0] : tensor<4x1x6xfloat32>",
        "%6 = arith.add %5, %4 : tensor<4x1x6xfloat32>",
        "tile.store %6, %s[%i_1, %0]",
    ]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_what_is_added_under_a_condition_leaves_other_elements_alone(dtype: str) -> None:
    """Of floats with a mask; of integers what is neutral changes none."""
    body = f"""
    %s = tile.alloc : buffer<4*{dtype}, fragment>
    tile.parallel {{extents = (4, 8)}} (%i: int32, %j: int32) {{
      %x = tile.load %X[%i, %j] : {dtype} %c = arith.cmp %i, %j {{predicate = "lt"}} : bool
      scf.if %c {{ %o = tile.atomic %x, %s[%i] {{kind = "add"}} : {dtype} scf.yield }} {{ scf.yield }} }}"""
    lines = after(VectorizeParallel(), body, parameters=f"X: 4*8*{dtype}")
    (store,) = [line for line in lines if "tile.store" in line]
    assert ("mask=" in store) is (dtype == "float32")


@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_added_to_one_element_is_summed_before(rows: int) -> None:
    """Along dimensions of more than one point alone, of values and of masks."""
    body = f"""
    tile.parallel {{extents = ({rows}, 8)}} (%i: int32, %j: int32) {{
      %x = tile.load %Y[%i, %j] : float32
      %c = arith.cmp %j, %c3 {{predicate = "lt"}} : bool
      scf.if %c {{ %o = tile.atomic %x, %S[%c0] {{kind = "add"}} : float32 scf.yield }} {{ scf.yield }}
    }}"""
    over_rows = """
        %b = tensor.reduce %a {kind = "sum", axis = 0} : tensor<8xfloat32>
        %d = tensor.reshape %b : tensor<1x8xfloat32>"""
    expected = f"""
        %x = tile.load %Y[{"%i" if rows > 1 else "%c0"}, %j] : tensor<{rows}x8xfloat32>
        %c = arith.cmp %j, %c3 {{predicate = "lt"}} : tensor<1x8xbool>
        %a = arith.select %c, %x, %cm0p0 : tensor<{rows}x8xfloat32>{over_rows if rows > 1 else ""}
        %e = tensor.reduce {"%d" if rows > 1 else "%a"} {{kind = "sum", axis = 1}} : tensor<1xfloat32>
        %f = tensor.reshape %e : tensor<1x1xfloat32>
        %g = tensor.reduce %c {{kind = "or", axis = 1}} : tensor<1xbool>
        %h = tensor.reshape %g : tensor<1x1xbool>
        %k = tensor.reshape %f : float32
        %m = tensor.reshape %h : bool
        %o = tile.atomic %k, %S[%c0] mask=%m {{kind = "add"}} : float32"""
    head = "%i = tensor.iota {axis = 0} : tensor<4x1xint32>\n" if rows > 1 else ""
    made = after(VectorizeParallel(), body, parameters="S: 4*float32, Y: 4*8*float32")
    assert numbered("\n".join(made)) == numbered(f"{head}%j = tensor.iota {{axis = 1}} : tensor<1x8xint32>{expected}")


def numbered(text: str) -> list[str]:
    """Lines whose values are named in the order in which they are made."""
    names: dict[str, str] = {}
    for name in re.findall(r"^\s*(%\w+) =", text, re.MULTILINE):
        names.setdefault(name, f"%value{len(names)}")
    return [re.sub(r"%\w+", lambda match: names.get(match[0], match[0]), each.strip()) for each in text.split("\n")]


def test_what_each_point_adds_to_an_element_of_its_own_stays_as_it_is_written() -> None:
    body = """
    %s = tile.alloc : buffer<4*float32, shared>
    tile.parallel {extents = (4,)} (%i: int32) {
      %x = tile.load %S[%i] : float32
      %y = tile.load %s[%i] : float32
      %z = arith.add %y, %x : float32
      tile.store %z, %s[%i]
    }"""
    filecheck(
        after([VectorizeParallel(), Dce()], body, parameters="S: 4*float32"),
        """
        %s = tile.alloc : buffer<4*float32, shared>
        %i = tensor.iota {axis = 0} : tensor<4xint32>
        %x = tile.load %S[%i] : tensor<4xfloat32>
        %y = tile.load %s[%i] : tensor<4xfloat32>
        %z = arith.add %y, %x : tensor<4xfloat32>
        tile.store %z, %s[%i]
        """,
    )


def test_a_sum_with_what_an_element_was_before_the_points_is_no_update() -> None:
    """Each of them stores another one: the last would stay, not the total."""
    body = """
    %s = tile.alloc : buffer<4*float32, shared>
    %y = tile.load %s[%c0] : float32
    tile.parallel {extents = (4,)} (%i: int32) {
      %x = tile.load %S[%i] : float32
      %z = arith.add %y, %x : float32
      tile.store %z, %s[%c0]
    }"""
    for name, told in (("%s", "s"), ("%0", "one buffer")):
        with pytest.raises(TileError, match=rf"T\.Parallel: iterations write the same element of {told}\n"):
            after(VectorizeParallel(), body.replace("%s", name), parameters="S: 4*float32")


def test_updates_of_groups_and_classes_as_operations() -> None:
    body = """
    %g = tile.alloc : buffer<2*float32, fragment>
    tile.parallel {extents = (6,)} (%i: int32) {
      %k = arith.INDEX : int32
      %x = tile.load %S[%i] : float32
      %y = tile.load %g[%k] : float32
      %z = arith.max %x, %y : float32
      tile.store %z, %g[%k]
    }"""
    filecheck(
        after([VectorizeParallel(), Dce()], body.replace("INDEX", "floordiv %i, %c3"), parameters="S: 6*float32"),
        """
        %g = tile.alloc : buffer<2*float32, fragment>
        %i = tensor.iota {axis = 0} : tensor<6xint32>
        %x = tile.load %S[%i] : tensor<6xfloat32>
        %0 = tensor.iota {axis = 0} : tensor<2x1xint32>
        %x_1 = tensor.reshape %x : tensor<2x3xfloat32>
        %1 = tensor.reduce %x_1 {kind = "max", axis = 1} : tensor<2xfloat32>
        %2 = tensor.reshape %1 : tensor<2x1xfloat32>
        %3 = tile.load %g[%0] : tensor<2x1xfloat32>
        %4 = arith.max %3, %2 : tensor<2x1xfloat32>
        tile.store %4, %g[%0]
        """,
    )
    filecheck(
        after([VectorizeParallel(), Dce()], body.replace("INDEX", "min %i, %c1"), parameters="S: 6*float32"),
        """
        %g = tile.alloc : buffer<2*float32, fragment>
        %i = tensor.iota {axis = 0} : tensor<6xint32>
        %k = arith.min %i, %c1 : tensor<6xint32>
        %x = tile.load %S[%i] : tensor<6xfloat32>
        %0 = tensor.iota {axis = 1} : tensor<1x2xint32>
        %k_1 = tensor.reshape %k : tensor<6x1xint32>
        %1 = arith.cmp %k_1, %0 {predicate = "eq"} : tensor<6x2xbool>
        %x_1 = tensor.reshape %x : tensor<6x1xfloat32>
        %2 = arith.select %1, %x_1, %cminf : tensor<6x2xfloat32>
        %3 = tensor.reduce %2 {kind = "max", axis = 0} : tensor<2xfloat32>
        %4 = tensor.reshape %3 : tensor<1x2xfloat32>
        %5 = tensor.reduce %1 {kind = "or", axis = 0} : tensor<2xbool>
        %6 = tensor.reshape %5 : tensor<1x2xbool>
        %7 = tile.load %g[%0] : tensor<1x2xfloat32>
        %8 = arith.max %7, %4 : tensor<1x2xfloat32>
        tile.store %8, %g[%0] mask=%6
        """,
    )


def test_updates_keep_their_mask_where_an_index_may_be_outside_and_compare_computed_indices_alone() -> None:
    body = """
    %g = tile.alloc : buffer<4*2*int32, fragment>
    tile.parallel {extents = (3, 8)} (%i: int32, %j: int32) {
      %x = arith.mul %i, %j : int32 BODY }"""
    near = """%k = arith.add %j, %bx : int32 %c = arith.cmp %j, %c2 {predicate = "lt"} : bool
      scf.if %c { %o = tile.atomic %x, %g[%c3, %k] {kind = "add"} : int32 scf.yield } { scf.yield }"""
    assert " mask=" in after(VectorizeParallel(), body.replace("BODY", near))[-1]
    least = '%k = arith.min %j, %c1 : int32 %o = tile.atomic %x, %g[%c3, %k] {kind = "add"} : int32'
    made = after(VectorizeParallel(), body.replace("BODY", least))
    assert sum("arith.cmp" in line for line in made) == 1 and "%g[%c3, " in made[-1]


def test_an_assertion_under_a_condition_asks_only_where_that_holds() -> None:
    body = """
    tile.parallel {extents = (4,)} (%i: int32) {
      %c = arith.cmp %i, %s {predicate = "lt"} : bool
      scf.if %c {
        %d = arith.cmp %i, %bx {predicate = "ne"} : bool
        tile.assert %d {message = "no"}
        scf.yield
      } { scf.yield }
    }"""
    filecheck(
        after(VectorizeParallel(), body),
        """
        %i = tensor.iota {axis = 0} : tensor<4xint32>
        %c = arith.cmp %i, %s {predicate = "lt"} : tensor<4xbool>
        %d = arith.cmp %i, %bx {predicate = "ne"} : tensor<4xbool>
        %0 = arith.not %c : tensor<4xbool>
        %1 = arith.or %0, %d : tensor<4xbool>
        tile.assert %1 {message = "no"}
        """,
    )


def test_the_bounds_of_points_that_do_not_take_part_are_not_asked_for() -> None:
    body = """
    tile.parallel {extents = (4,)} (%i: int32) {
      %c = arith.cmp %i, %s {predicate = "lt"} : bool
      scf.if %c {
        %n = tile.load %N[%i] : int32
        scf.for %c0, %n, %c1 (%k: int32) { tile.print [%k] {message = "k"} scf.yield }
        scf.yield
      } { scf.yield }
    }"""
    filecheck(
        after(VectorizeParallel(), body),
        """
        CHECK: %c = arith.cmp %i, %s
        CHECK-NEXT: %n = tile.load %N[%i] mask=%c : tensor<4xint32>
        CHECK-NEXT: [[UPPER:%.+]] = arith.select %c, %n, %c0 : tensor<4xint32>
        CHECK-NEXT: [[END:%.+]] = tensor.reduce [[UPPER]] {kind = "max", axis = 0} : int32
        CHECK-NEXT: scf.for %c0, [[END]], %c1
        """,
    )


@pytest.mark.parametrize(
    ("bounds", "nearest", "lanes"),
    [("%i, %c6, %c1", "min", ("ge", "lt")), ("%i, %c-1, %c-1", "max", ("le", "gt")), ("%c0, %i, %c1", "", ("lt",))],
)
def test_points_at_one_number_at_a_time_compare_it_with_their_bounds(
    bounds: str, nearest: str, lanes: tuple[str, ...]
) -> None:
    made = after(
        VectorizeParallel(),
        f"""tile.parallel {{extents = (4,)}} (%i: int32) {{
              scf.for {bounds} (%k: int32) {{ tile.store %c0.5, %D[%k] scf.yield }} }}""",
    )
    found = [line for line in made if "tensor.reduce" in line or "arith." in line]
    assert [name for line in found for name in re.findall('predicate = "(..)"', line)] == [*lanes]
    assert not nearest or f'kind = "{nearest}"' in found[0]
    assert not any("arith.add" in line or "arith.sub" in line for line in found)
    assert any(re.fullmatch("tile.store %c0p5, %D\\[%k\\] mask=%[0-9]+", line) for line in made), made


UPDATE = """%x = tile.load %b[%i, %j] : float32 %y = tile.load %v[%i] : float32 %z = arith.add %y, %x : float32"""
REFUSED = {
    "race": ("PAR { %x = tile.load %a[%i, %j] : float32 tile.store %x, %v[%i] }", "write the same element of v"),
    "race of what is computed of no element there": (
        "PAR { %x = tile.load %a[%i, %j] : float32 %y = arith.add %x, %c1.0 : float32 tile.store %y, %v[%i] }",
        "write the same element of v",
    ),
    "race along one axis": (
        """PAR { %x = tile.load %a[%i, %j] : float32 %c = arith.cmp %j, %c3 {predicate = "eq"} : bool
           scf.if %c { tile.store %x, %v[%c0] scf.yield } { scf.yield } }""",
        "write the same element of v",
    ),
    "doubled once for each": (
        """PAR { %y = tile.load %v[%i] : float32 %z = arith.mul %y, %c2.0 : float32 tile.store %z, %v[%i] }""",
        "write the same element of v",
    ),
    "two kinds of updates": (
        f"PAR {{ {UPDATE} tile.store %z, %v[%i] %w1 = tile.load %v[%i] : float32 "
        "%m = arith.max %w1, %x : float32 tile.store %m, %v[%i] }",
        "write the same element of v",
    ),
    "an update whose element is read": (
        f"PAR {{ {UPDATE} tile.store %z, %v[%i] tile.store %y, %a[%i, %j] }}",
        "write the same element of v",
    ),
    "an update of the element beside": (
        """PAR { %x = tile.load %a[%i, %j] : float32 %y = tile.load %v[%c1] : float32
           %z = arith.add %x, %y : float32 tile.store %z, %v[%c0] }""",
        "write the same element of v",
    ),
    "what is subtracted from": (
        """PAR { %x = tile.load %a[%i, %j] : float32 %y = tile.load %v[%i] : float32
           %z = arith.sub %x, %y : float32 tile.store %z, %v[%i] }""",
        "T.reduce_sum",
    ),
    "an element that is rounded": (
        """PAR { %y = tile.load %v[%i] : float32 %whole = arith.cast %y : int32 %n = arith.add %whole, %j : int32
           %z = arith.cast %n : float32 tile.store %z, %v[%i] }""",
        "write the same element of v",
    ),
    "an index": ("PAR { %f = arith.cast %i : float32 tile.store %f, %v[%c0] }", "write the same element of v"),
    "the point's own number": (
        "%n = tile.alloc : buffer<2*int32, shared> PAR { tile.store %i, %n[%c0] }",
        "write the same element of n",
    ),
    "accumulated local": (
        """%t = tile.alloc : buffer<float32, local> tile.store %c0.0, %t
           PAR { %x = tile.load %a[%i, %j] : float32 %y = tile.load %t : float32
           %z = arith.add %x, %y : float32 tile.store %z, %t }""",
        "t keeps a value from one iteration to the next",
    ),
    "local that one branch writes": (
        """%t = tile.alloc : buffer<float32, local>
           PAR { %c = arith.cmp %i, %c2 {predicate = "lt"} : bool
           scf.if %c { tile.store %c1.0, %t scf.yield } { scf.yield }
           %y = tile.load %t : float32 tile.store %y, %a[%i, %j] }""",
        "t keeps a value from one iteration to the next",
    ),
    "a local without a name": (
        """%0 = tile.alloc : buffer<float32, local> tile.store %c0.0, %0
           PAR { %x = tile.load %a[%i, %j] : float32 %y = tile.load %0 : float32
           %z = arith.add %x, %y : float32 tile.store %z, %0 }""",
        "a local variable keeps a value from one iteration to the next",
    ),
    "a local without a name read after": (
        """%0 = tile.alloc : buffer<float32, local> PAR { %x = tile.load %a[%i, %j] : float32 tile.store %x, %0 }
           %y = tile.load %0 : float32 tile.store %y, %v[%c0]""",
        "a local variable has a value for each iteration",
    ),
    "local read after": (
        """%t = tile.alloc : buffer<float32, local> PAR { %x = tile.load %a[%i, %j] : float32 tile.store %x, %t }
           %y = tile.load %t : float32 tile.store %y, %v[%c0]""",
        "t has a value for each iteration",
    ),
    "step of point": (
        "PAR { scf.for %c0, %c4, %i (%k: int32) { tile.store %c1.0, %a[%i, %j] scf.yield } }",
        "the loop's step depends on the point of T.Parallel, or is not known: write a number",
    ),
    "while of point": (
        """PAR { %n = scf.while [%i] : int32 (%k: int32) {
             %more = arith.cmp %k, %c0 {predicate = "gt"} : bool scf.condition %more[%k] }
           (%q: int32) { %r = arith.sub %q, %c1 : int32 scf.yield [%r] } }""",
        "a while loop whose condition depends on the point of T.Parallel carries values",
    ),
    "fill under a condition": (
        """PAR { %c = arith.cmp %i, %c2 {predicate = "lt"} : bool
           scf.if %c { tile.fill %c1.0, %w scf.yield } { scf.yield } }""",
        "w is written as a whole inside T.Parallel",
    ),
    "a row of the point": (
        """%r = tensor.iota {axis = 0} : tensor<8xint32> PAR { %x = tile.load %A[%i, %r] : tensor<8xfloat32>
           %m = tensor.reduce %x {kind = "max", axis = 0} : float32 tile.store %m, %a[%i, %j] }""",
        "T.Parallel: an operation on a whole tile depends on the iteration",
    ),
    "a tile of the point": (
        """PAR { %f = arith.cast %i : float32 %t = tensor.broadcast %f : tensor<8xfloat32>
           %m = tensor.reduce %t {kind = "max", axis = 0} : float32 tile.store %m, %a[%i, %j] }""",
        "T.Parallel: an operation on a whole tile depends on the iteration",
    ),
    "a default value of the point": (
        """PAR { %f = arith.cast %i : float32 %p = arith.cmp %j, %c3 {predicate = "lt"} : bool
           %x = tile.load %A[%i, %j] mask=%p other=%f : float32 tile.store %x, %a[%i, %j] }""",
        "a load's default value varies inside T.Parallel",
    ),
    "an array of the point read as a whole": (
        """PAR { %t = tile.alloc : buffer<4*float32, local> %f = arith.cast %i : float32
           scf.for %c0, %c4, %c1 (%k: int32) { tile.store %f, %t[%k] scf.yield } %x = tile.read %t : tensor<4xfloat32>
           %m = tensor.reduce %x {kind = "max", axis = 0} : float32 tile.store %m, %a[%i, %j] }""",
        "t is read as a whole inside T.Parallel",
    ),
    "a local of inner points read behind them": (
        """tile.parallel {extents = (4,)} (%i: int32) { %t = tile.alloc : buffer<float32, local>
           tile.parallel {extents = (8,)} (%j: int32) { %f = arith.cast %j : float32 tile.store %f, %t }
           %y = tile.load %t : float32 tile.store %y, %v[%i] }""",
        "t has a value for each iteration of T.Parallel, so none after it",
    ),
    "a reducer inside": (
        """PAR { %r = tile.alloc : buffer<4*float32, fragment> %x = tile.load %A[%i, %j] : float32
           %o = tile.atomic %x, %r[%i] {kind = "add"} : float32 }""",
        "r is allocated inside T.Parallel; allocate it before",
    ),
    "copy inside": (
        "PAR { tile.copy %A[%i, %j], %w {shape = (8,), source_axes = (1,), target_axes = (0,)} }",
        "T.Parallel",
    ),
}


# What is written is computed from an element of the same buffer.
OF_ITSELF = {
    "doubled once for each", "two kinds of updates", "an update whose element is read",
    "an update of the element beside", "what is subtracted from",
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, message = REFUSED[name]
    with pytest.raises(TileError) as caught:
        check_pass(TO_VALUES, tiles(body), [])
    assert message in str(caught.value)
    assert caught.value.loc is None or caught.value.loc.line > 0
    if "same element" in message:
        assert ("to add up along a dimension" in str(caught.value)) is (name in OF_ITSELF)


def test_what_each_point_may_assume_is_dropped() -> None:
    found = to_values(
        tiles(
            """PAR { %p = arith.cmp %j, %c8 {predicate = "lt"} : bool tile.assume %p
               %x = tile.load %A[%i, %j] : float32 tile.store %x, %a[%i, %j] }"""
        )
    )
    assert "tile.assume" not in found and "tile.store %x, %B" in found


def test_a_while_loop_of_all_points_carries_values() -> None:
    """The same one for all, and one for each point."""
    to_values(
        tiles(
            """PAR { %n, %m = scf.while [%c0, %i] : int32, int32 (%k: int32, %o: int32) {
                 %more = arith.cmp %k, %c3 {predicate = "lt"} : bool %sum = arith.add %o, %k : int32
                 scf.condition %more[%k, %sum] }
               (%q: int32, %w1: int32) { %f = arith.cast %w1 : float32 %x = tile.load %a[%i, %j] : float32
                 %y = arith.add %x, %f : float32 tile.store %y, %a[%i, %j]
                 %r = arith.add %q, %c1 : int32 scf.yield [%r, %w1] }
               %g = arith.cast %m : float32 tile.store %g, %W[%i, %j] }"""
        )
    )


@pytest.mark.parametrize(("extents", "stores"), [("(0, 8)", 0), ("(4, 0)", 0), ("(4, 8)", 1), ("(1, 1)", 1)])
def test_without_points_nothing_is_done(extents: str, stores: int) -> None:
    body = f"tile.parallel {{extents = {extents}}} (%i: int32, %j: int32) {{ tile.store %c1.0, %Y[%i, %j] }}"
    lines = after(VectorizeParallel(), body, parameters="Y: 4*8*float32")
    assert sum("tile.store" in line for line in lines) == stores


@pytest.mark.parametrize(
    ("dtype", "kind", "computed_in"),
    [
        ("int8", "add", "int32"), ("int32", "add", "int32"), ("float32", "add", "float32"),
        ("float16", "add", "float32"), ("bfloat16", "max", "float32"), ("bool", "or", "int32"),
    ],
)  # fmt: skip
def test_elements_at_computed_places_are_combined_in_a_type_that_has_it(
    dtype: str, kind: str, computed_in: str
) -> None:
    body = f"""%t = tile.alloc : buffer<512*{dtype}, shared>
    tile.parallel {{extents = (1024,)}} (%i: int32) {{
      %n = tile.load %N[%i] : int32 %k = arith.floormod %n, %c512 : int32
      %x = tile.load %X[%i] : {dtype} %o = tile.atomic %x, %t[%k] {{kind = "{kind}"}} : {dtype} }}
    tile.copy %t, %Y {{shape = (512,), source_axes = (0,), target_axes = (0,)}}"""
    parameters = f"X: 1024*{dtype}, Y: 512*{dtype}, N: 1024*int32"
    (line,) = (each for each in after(VectorizeParallel(), body, parameters=parameters) if "tensor.scatter" in each)
    assert line.endswith(f": tensor<512x{computed_in}>, tensor<1024x{computed_in}>")


ALONE = '%o = tile.atomic %c2.0, %w[%c3] {kind = "add"} : float32 tile.store %o, %W[%c0, %c0]'


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("", False),
        ("PAR { %x = tile.load %a[%i, %j] : float32 tile.store %x, %a[%i, %j] }", False),
        (f"PAR {{ {UPDATE} tile.store %z, %v[%i] }}", True),
        (f"tile.parallel {{extents = (2,)}} (%o: int32) {{ PAR {{ {UPDATE} tile.store %z, %v[%i] }} }}", True),
        ('PAR { %x = tile.load %a[%i, %j] : float32 %o = tile.atomic %x, %W[%i, %j] {kind = "add"} : float32}', False),
        ('PAR { %x = tile.load %a[%i, %j] : float32 %o = tile.atomic %x, %v[%i] {kind = "add"} : float32}', True),
        (ALONE, True),
        (ALONE + '%q = tile.atomic %c2.0, %W[%c0, %c1] {kind = "add"} : float32', True),
    ],
)  # fmt: skip
def test_another_order_of_what_points_add_is_named(body: str, named: bool) -> None:
    assert VectorizeParallel().allowances(Program(tiles(body))) == ({"reassociation"} if named else set())


def test_an_update_outside_of_every_parallel() -> None:
    """It gives what was there before, and is no atomic operation."""
    found = to_values(tiles(ALONE + "%x = tile.load %w[%c3] : float32 tile.store %x, %W[%c1, %c1]"))
    assert "tile.atomic" not in found
    unused = 'tile.store %c1.0, %v[%c0] %o = tile.atomic %c2.0, %v[%c0] {kind = "max"} : float32'
    assert "tile.atomic" not in to_values(tiles(unused))
    assert "tile.atomic" in to_values(tiles('%o = tile.atomic %c2.0, %W[%c0, %c1] {kind = "add"} : float32'))


def test_what_is_said_of_a_store_stays() -> None:
    found = to_values(tiles("PAR { %x = tile.load %a[%i, %j] : float32 tile.store %x, %W[%i, %j] {guarded = true} }"))
    assert "tile.store %a, %W[%i, %j] {guarded = true}" in found


def test_elements_of_a_diagonal_are_updated() -> None:
    """Both indices are the place along one dimension."""
    to_values(
        tiles(
            """PAR { %x = tile.load %a[%i, %j] : float32 %o = tile.atomic %x, %b[%i, %i] {kind = "add"} : float32 }
               tile.copy %b, %W[%c0, %c0] {shape = (4, 8), source_axes = (0, 1), target_axes = (0, 1)}"""
        )
    )


@pytest.mark.parametrize(
    "body",
    [
        "scf.if %c { %y = tile.load %v[%i] : float32 %z = arith.mul %y, %c2.0 : float32 tile.store %z, %v[%i] "
        "scf.yield } { scf.yield }",
        "%y = tile.load %v[%i] : float32 %z = arith.mul %y, %c2.0 : float32 tile.store %z, %v[%i] mask=%c",
    ],
)
def test_what_one_of_several_points_does_to_an_element(body: str) -> None:
    to_values(tiles(f'PAR {{ %c = arith.cmp %j, %c3 {{predicate = "eq"}} : bool {body} }}'))


@pytest.mark.parametrize(("index", "compared"), [("%c0", 0), ("%n", 1), ("%c1", 1)])
def test_an_index_of_a_dimension_of_one_is_0(index: str, compared: int) -> None:
    """Elsewhere an update takes no part."""
    body = f"""%t = tile.alloc : buffer<1*8*float32, shared> tile.fill %c0.0, %t
    tile.parallel {{extents = (8,)}} (%j: int32) {{
      %x = tile.load %X[%j] : float32 %o = tile.atomic %x, %t[{index}, %j] {{kind = "add"}} : float32 }}
    tile.copy %t, %Y {{shape = (8,), source_axes = (1,), target_axes = (0,)}}"""
    lines = after(VectorizeParallel(), body, parameters="X: 8*float32, Y: 8*float32, n: int32")
    assert sum("arith.cmp" in line for line in lines) == compared


@pytest.mark.parametrize(("points", "sums"), [("(4, 1)", 0), ("(4, 8)", 1)])
def test_what_several_points_add_to_an_element_of_memory_is_summed_before(points: str, sums: int) -> None:
    body = f"""tile.parallel {{extents = {points}}} (%i: int32, %j: int32) {{
      %x = tile.load %X[%i, %j] : float32 %o = tile.atomic %x, %Y[%i] {{kind = "add"}} : float32 }}"""
    lines = after(VectorizeParallel(), body, parameters="X: 4*8*float32, Y: 4*float32")
    assert sum("tensor.reduce" in line for line in lines) == sums
