from __future__ import annotations

import numpy as np
import pytest

from tests.passes.ir_cases import kernel_of, program
from tests.support import executor
from tiledsl.analysis.ranges import Interval, Ranges, origin
from tiledsl.dialects import arith, tile
from tiledsl.ir.core import Value
from tiledsl.ir.pass_manager import parse_program
from tiledsl.ir.rewrite import Builder
from tiledsl.ir.types import INT32


def ranges_of(body: str, *, grid: tuple[int, ...] = (8,)) -> tuple[Ranges, dict[str, Value]]:
    made = program(body + "\ntile.store %y, %N[%bx]", grid=grid)
    kernel = kernel_of(made)
    named = {value.name: value for op in kernel.walk() for value in op.results}
    named |= {arg.name: arg for op in made.root.walk() for region in op.regions for arg in region.args}
    return Ranges(made.root), named


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%i = tensor.iota {axis = 0} : tensor<128xint32>\n%a = arith.mul %bx, %c128 : int32\n"
         "%y = arith.add %a, %i : tensor<128xint32>", (0, 1023)),
        ("%y = arith.floordiv %bx, %c3 : int32", (0, 2)),
        ("%y = arith.floormod %bx, %c3 : int32", (0, 2)),
        ("%y = arith.floormod %s, %c8 : int32", (0, 7)),
        ("%y = arith.truncmod %s, %c8 : int32", (-7, 7)),
        ("%y = arith.floormod %bx, %c0 : int32", (-(2**31), 2**31 - 1)),
        ("%y = arith.floordiv %bx, %c0 : int32", (-(2**31), 2**31 - 1)),
        ("%y = arith.min %m, %c5 : int32", (0, 5)),
        ("%y = arith.ceildiv %bx, %c4 : int32", (0, 2)),
        ("%a = arith.add %bx, %c5 : int32\n%y = arith.ceildiv %a, %c4 : int32", (2, 3)),
        ("%y = arith.floordiv %bx, %m : int32", (0, 7)),
        ("%a = arith.sub %c0, %m : int32\n%y = arith.truncdiv %bx, %a : int32", (-7, 0)),
        ("%y = arith.truncmod %bx, %m : int32", (0, 7)),
        ("%y = arith.and %s, %c31 : int32", (0, 31)),
        ("%a = arith.and %s, %c31 : int32\n%y = arith.shl %a, %c2 : int32", (0, 124)),
        ("%y = arith.sub %c7, %bx : int32", (0, 7)),
        ("%y = arith.mul %m, %c2 : int32", (-(2**31), 2**31 - 1)),
        ("%y = arith.add %m, %c1 : int32", (-(2**31), 2**31 - 1)),
        ("%a = arith.cast %m : int64\n%z = arith.add %a, %l : int64\n%y = arith.cast %a : int32", (0, 2**31 - 1)),
        ("%y = arith.select %b, %bx, %c-4 : int32", (-4, 7)),
        ("%y = arith.math [%bx] {function = \"abs\"} : int32", (0, 7)),
        ("%i = tensor.iota {axis = 0} : tensor<12xint32>\n"
         "%y = tensor.reduce %i {kind = \"max\", axis = 0} : int32", (0, 11)),
        ("%y = tile.load %N[%bx] : int32", (-(2**31), 2**31 - 1)),
        ("%y = scf.if %b : int32 { scf.yield [%c3] } { scf.yield [%bx] }", (0, 7)),
        ("%y = scf.for %c0, %s, %c1[%c9] : int32 (%i: int32, %x: int32) { scf.yield [%x] }", (9, 9)),
        ("%y = arith.cast %b : int32", (0, 1)),
    ],
)  # fmt: skip
def test_intervals(body: str, expected: tuple[int, int]) -> None:
    ranges, named = ranges_of(body)
    assert ranges.of(named["y"]) == Interval(*expected)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ("%c0, %c10, %c1", (0, 9)),
        ("%c9, %c-1, %c-1", (0, 9)),
        ("%bx, %c10, %c3", (0, 9)),
        ("%c0, %m, %c1", (0, 2**31 - 2)),
        ("%c0, %c10, %s", (-(2**31), 2**31 - 1)),
    ],
)
def test_loop_indices(bounds: str, expected: tuple[int, int]) -> None:
    body = f"%y = arith.add %s, %s : int32\nscf.for {bounds} (%k: int32) {{ tile.store %k, %N[%bx]\nscf.yield }}"
    ranges, named = ranges_of(body)
    assert ranges.of(named["k"]) == Interval(*expected)


def test_a_backward_loop_over_tiles_stays_inside() -> None:
    ranges, named = ranges_of("""
    %y = arith.add %s, %s : int32
    scf.for %c0, %c16, %c1 (%k: int32) {
      %r = arith.sub %c15, %k : int32
      %o = arith.mul %r, %c64 : int32
      %i = tensor.iota {axis = 0} : tensor<64xint32>
      %p = arith.add %o, %i : tensor<64xint32>
      tile.store %p, %N[%p]
      scf.yield
    }""")
    assert ranges.of(named["p"]) == Interval(0, 1023)


@pytest.mark.parametrize(
    ("body", "proven"),
    [
        ("%y = arith.floormod %s, %m : int32", True),
        ("%y = arith.truncmod %s, %m : int32", True),  # but perhaps negative
        ("%a = arith.sub %m, %c1 : int32\n%y = arith.min %s, %a : int32", True),
        ("%a = arith.sub %m, %c1 : int32\n%y = arith.sub %a, %bx : int32", True),
        ("%y = arith.sub %m, %bx : int32", False),
        ("%a = arith.floormod %s, %m : int32\n%b = arith.sub %bx, %c1 : int32\n%y = arith.sub %a, %b : int32", False),
        ("%y = arith.sub %s, %c1 : int32", False),
        ("%y = arith.add %m, %c1 : int32", False),
        ("%a = arith.max %m, %c0 : int32\n%y = arith.sub %a, %c1 : int32", True),
        ("%a = arith.max %m, %c2 : int32\n%y = arith.sub %a, %c1 : int32", False),
        ("%a = arith.floormod %s, %m : int32\n%y = arith.floordiv %a, %c2 : int32", True),
        ("%a = arith.floormod %s, %m : int32\n%y = arith.floordiv %a, %s : int32", True),  # by any divisor
        ("%y = arith.floordiv %m, %c2 : int32", False),
        ("%a = arith.truncmod %s, %m : int32\n%y = arith.truncdiv %a, %s : int32", False),  # -1 over -1
        ("%a = arith.floormod %s, %m : int32\n%y = arith.truncmod %a, %s : int32", True),
        ("%y = arith.truncmod %m, %s : int32", False),
    ],
)
def test_below_a_symbol(body: str, proven: bool) -> None:
    ranges, named = ranges_of(body)
    assert ranges.below(named["y"], named["m"]) is proven


def test_a_difference_of_what_is_ordered_does_not_wrap_but_a_sum_may() -> None:
    ranges, named = ranges_of("""
    %a = arith.floormod %s, %m : int32
    %d = arith.sub %m, %a : int32
    %t = arith.add %m, %a : int32
    %y = arith.add %d, %t : int32""")
    proven = {name: ranges.never_wraps(named[name].op) for name in "dty"}
    assert proven == {"d": True, "t": False, "y": False}


@pytest.mark.parametrize(("least", "proven"), [("%c0", True), ("%c-1", False)])
def test_a_remainder_is_below_a_divisor_that_is_not_negative(least: str, proven: bool) -> None:
    ranges, named = ranges_of(f"%m0 = arith.max %s, {least} : int32\n%y = arith.floormod %s, %m0 : int32")
    assert ranges.below(named["y"], named["m0"]) is proven


@pytest.mark.parametrize(("moved", "proven"), [("transpose %x {permutation = (1, 0)}", False), ("broadcast %x", True)])
def test_below_the_elements_of_a_tile(moved: str, proven: bool) -> None:
    ranges, named = ranges_of(f"""
    %i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
    %j = tensor.iota {{axis = 1}} : tensor<1x4xint32>
    %p = arith.add %i, %j : tensor<4x4xint32>
    %l = tile.load %N[%p] : tensor<4x4xint32>
    %v = arith.max %l, %c1 : tensor<4x4xint32>
    %x = arith.floormod %p, %v : tensor<4x4xint32>
    %z = tensor.{moved} : tensor<4x4xint32>
    %y = arith.add %s, %s : int32""")
    assert ranges.below(named["x"], named["v"]) and ranges.below(named["z"], named["v"]) is proven


@pytest.mark.parametrize(
    ("grid", "least"),
    [
        (("%m",), 1), ((8,), 0), ((8, "%m"), 1), (("%blocks", 8), 1), (("%most",), 1), (("%product",), 1),
        (("%more",), 0), (("%other",), 0),
    ],
)  # fmt: skip
def test_a_size_without_which_nothing_runs(grid: tuple[int | str, ...], least: int) -> None:
    made = program("%y = arith.add %m, %c0 : int32\ntile.store %y, %N[%bx]", grid=("%m",))
    kernel = kernel_of(made)
    symbol, builder = made.root.symbol("m"), Builder.at(kernel)
    eight, s = builder.constant(8, INT32), made.root.body.args[made.root.parameters.index("s")]
    values = {
        "%m": symbol,
        "%blocks": builder.insert(arith.CeilDivOp(symbol, eight)).out,
        "%most": builder.insert(arith.MinOp(symbol, s)).out,
        "%product": builder.insert(arith.MulOp(s, symbol)).out,
        "%more": builder.insert(arith.MaxOp(symbol, s)).out,
        "%other": s,
    }
    kernel.set_field("grid", [values[each] if isinstance(each, str) else eight for each in grid])
    assert Ranges(made.root).of(symbol).lo == least


def test_loops_and_their_reverse_over_a_symbol() -> None:
    ranges, named = ranges_of("""
    %y = arith.add %s, %s : int32
    %last = arith.sub %m, %c1 : int32
    scf.for %c0, %m, %c1 (%k: int32) {
      %r = arith.sub %last, %k : int32
      tile.store %r, %N[%k]
      scf.yield
    }""")
    assert ranges.below(named["k"], named["m"])
    assert ranges.below(named["r"], named["m"])
    assert ranges.is_nonnegative(named["r"])
    assert not ranges.is_nonnegative(named["y"])


def test_assumptions_narrow() -> None:
    ranges, named = ranges_of("""
    %c = arith.cmp %s, %c16 {predicate = "lt"} : bool
    %d = arith.cmp %c0, %s {predicate = "le"} : bool
    %e = arith.and %c, %d : bool
    tile.assume %e
    %y = arith.mul %s, %c2 : int32""")
    assert ranges.of(named["y"]) == Interval(0, 30)


def test_what_shares_blocks_among_programs_counts_from_0() -> None:
    ranges, named = ranges_of("""
    %y, %rest = gluon.longest_first %c4, %c6 : int32, int32
    %item = gluon.work_item_id %c9 : int32
    %part = gluon.warp_group_id {parts = 2} : int32""")
    found = {name: tuple(ranges.of(named[name])) for name in ("y", "rest", "item", "part")}
    assert found == {"y": (0, 5), "rest": (0, 5), "item": (0, 8), "part": (0, 1)}


LOW, HIGH = -(2**31), 2**31 - 1


@pytest.mark.parametrize(
    ("predicate", "expected", "mirrored"),
    [
        ("lt", (LOW, 15), (17, HIGH)),
        ("le", (LOW, 16), (16, HIGH)),
        ("gt", (17, HIGH), (LOW, 15)),
        ("ge", (16, HIGH), (LOW, 16)),
        ("eq", (16, 16), (16, 16)),
        ("ne", (LOW, HIGH), (LOW, HIGH)),
    ],
)
def test_an_assumption_holds_up_to_its_boundary(
    predicate: str, expected: tuple[int, int], mirrored: tuple[int, int]
) -> None:
    for condition, interval in (("%s, %c16", expected), ("%c16, %s", mirrored)):
        ranges, named = ranges_of(f"""
        %c = arith.cmp {condition} {{predicate = "{predicate}"}} : bool
        tile.assume %c
        %y = arith.add %s, %c0 : int32""")
        assert ranges.of(named["y"]) == Interval(*interval)


def test_assumptions_hold_together_and_only_where_they_stand() -> None:
    body = """
    %c = arith.cmp %s, %c16 {predicate = "lt"} : bool
    %d = arith.cmp %s, %c20 {predicate = "le"} : bool
    %e = arith.cmp %s, %c3 {predicate = "gt"} : bool
    %g = arith.cmp %s, %c2 {predicate = "ge"} : bool
    tile.assume %c
    tile.assume %d
    tile.assume %e
    tile.assume %g
    scf.if %b {
      %h = arith.cmp %s, %c9 {predicate = "eq"} : bool
      tile.assume %h
      scf.yield
    } { scf.yield }
    %y = arith.add %s, %c0 : int32"""
    ranges, named = ranges_of(body)
    assert ranges.of(named["y"]) == Interval(4, 15)


def test_launches_are_seen_through() -> None:
    text = """
    tile.func {sym_name = "test", parameters = ("D",), symbols = ("m",), symbol_sources = ("D.0",)}
              (%D: buffer<m*int32, global>, %m: int32) {
      triton.launch [%m], [%D, %m] {sym_name = "k"} (%p: *int32, %n: int32) {
        %b = triton.program_id {axis = 0} : int32
        %q = triton.addptr %p, %b : *int32
        triton.store %q, %n
        scf.yield
      }
      scf.yield
    }"""
    made = parse_program(text)
    launch = next(op for op in made.root.walk() if op.name == "triton.launch")
    block = next(op for op in made.root.walk() if op.name == "triton.program_id").result
    ranges = Ranges(made.root)
    assert ranges.of(launch.regions[0].args[1]) == Interval(1, 2**31 - 1)
    assert ranges.of(block) == Interval(0, 2**31 - 2)
    assert ranges.below(block, launch.regions[0].args[1])


@pytest.mark.parametrize("blocks", [0, 1, 2, 5])
def test_a_grid_of_constant_size(blocks: int) -> None:
    last = max(0, blocks - 1)  # of no blocks, nothing runs
    ranges, named = ranges_of("%y = arith.add %s, %c0 : int32", grid=(blocks, 3))
    assert ranges.of(named["bx"]) == Interval(0, last) and ranges.of(named["by"]) == Interval(0, 2)
    made = parse_program(f"""
    tile.func {{sym_name = "test", parameters = ("p",)}} (%p: *int32) {{
      %n = arith.constant {{value = {blocks}}} : int32
      triton.launch [%n], [%p] {{sym_name = "k"}} (%q: *int32) {{
        %b = triton.program_id {{axis = 0}} : int32
        scf.yield
      }}
      scf.yield
    }}""")
    (block,) = [op.result for op in made.root.walk() if op.name == "triton.program_id"]
    assert Ranges(made.root).of(block) == Interval(0, last)
    assert Ranges().of(block) == Interval(0, last)


def test_casts_that_hold_all_values_are_seen_through() -> None:
    ranges, named = ranges_of("""
    %one = arith.constant {value = 1} : uint8
    %a = arith.cast %s : uint8
    %b = arith.cast %l : uint8
    %n = arith.max %b, %one : uint8
    %r = arith.floormod %a, %n : uint8
    %w = arith.cast %r : uint32
    %v = arith.cast %n : uint32
    %t = arith.cast %n : int8
    %y = arith.add %s, %s : int32""")
    assert ranges.below(named["r"], named["n"]) and ranges.below(named["w"], named["v"])
    assert not ranges.below(named["r"], named["t"])


def test_the_executor_agrees_on_a_kernel() -> None:
    body = """
    %i = tensor.iota {axis = 0} : tensor<12xint32>
    %a = arith.mul %bx, %c12 : int32
    %p = arith.add %a, %i : tensor<12xint32>
    %q = arith.floordiv %p, %c7 : tensor<12xint32>
    %r = arith.floormod %p, %c7 : tensor<12xint32>
    %t = arith.mul %r, %c13 : tensor<12xint32>
    %y = arith.add %t, %q : tensor<12xint32>
    tile.store %y, %N[%p]"""
    made = program(body)
    (store,) = [op for op in made.root.walk() if isinstance(op, tile.StoreOp)]
    low, high = Ranges(made.root).of(store.value)
    arguments = [np.zeros((64, 96), np.float32), np.zeros((64, 96), np.float32), np.zeros(1000, np.int32),
                 np.zeros(5, np.float32), 1, 1.0, True, 1]  # fmt: skip
    executor.run(made.root, arguments)
    stored = arguments[2][:96]  # type: ignore[index]
    assert (low, high) == (0, 6 * 13 + 13)
    assert low <= stored.min() and stored.max() <= high


def test_an_index_may_be_taken_from_the_last_one_and_from_no_earlier_one() -> None:
    body = """
    scf.for %c0, %m, %c1 (%k: int32) {
      %last = arith.sub %m, %c1 : int32
      %earlier = arith.sub %m, %c2 : int32
      %whole = arith.sub %m, %k : int32
      %reversed = arith.sub %last, %k : int32
      %too_far = arith.sub %earlier, %k : int32
      %sign = arith.sub %k, %c3 : int32
      %larger = arith.sub %last, %sign : int32
      scf.yield
    }
    %y = arith.add %bx, %c0 : int32"""
    ranges, named = ranges_of(body)
    names = ("whole", "reversed", "too_far", "larger")
    assert [ranges.is_nonnegative(named[name]) for name in names] == [True, True, False, False]


def test_a_float_is_no_widened_integer() -> None:
    _, named = ranges_of("%y = arith.add %s, %c0 : int32\n%a = arith.cast %y : float64\n%c = arith.cast %y : int64")
    assert origin(named["a"]) is named["a"] and origin(named["c"]) is named["y"]
