"""legalize-layouts: gathers of one dimension, scans without ones, relaid tiles, and what stays as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import kernel_of, program
from tests.support import executor
from tests.support.hazard_programs import PROGRAMS
from tiledsl.dialects import scf, tensor, triton
from tiledsl.ir.core import Operation
from tiledsl.ir.parser import parse_op
from tiledsl.ir.pass_manager import Program, parse_program
from tiledsl.ir.printer import print_op
from tiledsl.ir.verifier import verify
from tiledsl.passes.legalize_layouts import (
    LegalizeLayouts,
    _fits_into,
    _is_loaded_narrow,
    _meets_larger,
    _reshaped_before,
    _splits,
)


def lowered(program: Any, **options: Any) -> list[Operation]:
    kernel = tiledsl.compile(program, target="cuda:90", pass_configs=options)
    return list(parse_op(kernel.ir("legalize-layouts")).walk())


def of(ops: list[Operation], kind: type[Operation]) -> list[Any]:
    return [op for op in ops if isinstance(op, kind)]


@pytest.mark.parametrize("name", ["gather_columns", "gather_rows", "gather_in_loop"])
def test_gathers_with_fewer_elements_than_threads_have_one_dimension(name: str) -> None:
    gathers = of(lowered(PROGRAMS[name].program), tensor.GatherOp)
    assert gathers and all(len(op.source.shape) == 1 for op in gathers)


def test_gathers_with_more_elements_keep_their_dimensions() -> None:
    @T.prim_func
    def columns(A: T.Tensor((64, 8), "float32"), O: T.Tensor((64, 16), "float32")):
        with T.Kernel(1, threads=128):
            t = T.alloc_fragment((64, 8), "float32")
            T.copy(A, t)
            for i, j in T.Parallel(64, 16):
                O[i, j] = t[i, (j * 5 + 1) % 8]

    (gather,) = of(lowered(columns), tensor.GatherOp)
    assert gather.source.shape == (64, 8)
    (gather,) = of(lowered(columns, **{"lower-to-triton.num_warps": 16}), tensor.GatherOp)  # one for each thread
    assert gather.source.shape == (64, 8)
    (gather,) = of(lowered(columns, **{"lower-to-triton.num_warps": 32}), tensor.GatherOp)
    assert gather.source.shape == (512,)


@pytest.mark.parametrize(
    "name, shape, relaid",
    [
        ("scan_column", (4,), False), ("scan_plane", (4, 4), True), ("scan_corner", (16, 4), True),
        ("scan_row_of_product", (32,), False), ("scan_rows_reversed", (16, 16), False),
    ],
)  # fmt: skip
def test_scans(name: str, shape: tuple[int, ...], relaid: bool) -> None:
    (scan,) = of(lowered(PROGRAMS[name].program), tensor.ScanOp)
    assert (scan.source.shape, scan.relaid, scan.reverse) == (shape, relaid, False)


def test_a_scan_of_what_is_gathered_from_a_larger_tile_is_relaid() -> None:
    @T.prim_func
    def part(O: T.Tensor((8, 8), "int32")):
        with T.Kernel(1, threads=32):
            t = T.alloc_shared((8, 8), "int32")
            T.fill(t, 3)
            T.cumsum(t[:, 3:6], dim=0)
            T.copy(t, O)

    (scan,) = of(lowered(part), tensor.ScanOp)
    assert (scan.source.shape, scan.relaid) == ((8, 4), True)


def test_a_scan_of_what_is_loaded_and_stored_as_it_is_stays() -> None:
    @T.prim_func
    def rows(A: T.Tensor((64, 32), "float32"), O: T.Tensor((64, 32), "float32")):
        with T.Kernel(1, threads=128):
            t = T.alloc_fragment((64, 32), "float32")
            T.copy(A, t)
            T.cumsum(t, dim=1)
            T.copy(t, O)

    kernel = tiledsl.compile(rows, target="cuda:90")
    assert "t = tl.cumsum(t, axis=1)" in kernel.source and "_second" not in kernel.source


def test_dimensions_of_one_element_come_and_go_without_another_layout() -> None:
    body = """
    %x = arith.constant {value = 0.5} : tensor<4x1x8xfloat32>
    %squeezed = tensor.reshape %x : tensor<4x8xfloat32>
    %wide = tensor.reshape %squeezed : tensor<1x4x8x1xfloat32>
    %other = tensor.reshape %squeezed : tensor<8x4xfloat32>"""
    named = {value.name: value for op in kernel_of(program(body)).walk() for value in op.results}
    assert _reshaped_before(named["squeezed"]) == _reshaped_before(named["wide"]) == []
    assert _reshaped_before(named["other"]) == [named["other"].op]


def test_parts_that_become_one_dimension_again_have_not_moved() -> None:
    body = """
    %x = arith.constant {value = 0.5} : tensor<4x4xfloat32>
    %i = tensor.iota {axis = 1} : tensor<1x4xfloat32>
    %k = tensor.iota {axis = 0} : tensor<4x1x1xint32>
    %l = tensor.iota {axis = 1} : tensor<1x2x1xint32>
    %m = tensor.iota {axis = 2} : tensor<1x1x2xint32>
    %parts = tensor.reshape %x : tensor<4x2x2xfloat32>
    %numbers = tensor.reshape %i : tensor<1x2x2xfloat32>
    %sums = arith.add %parts, %numbers : tensor<4x2x2xfloat32>
    %joined = tensor.reshape %sums : tensor<4x4xfloat32>
    %turned = tensor.transpose %sums {permutation = (0, 2, 1)} : tensor<4x2x2xfloat32>
    %moved = tensor.reshape %turned : tensor<4x4xfloat32>
    %rows = tensor.reshape %sums : tensor<8x2xfloat32>
    %own = tile.load %A[%k, %l, %m] {guarded = true} : tensor<4x2x2xfloat32>
    %both = arith.add %sums, %own : tensor<4x2x2xfloat32>
    %loaded = tensor.reshape %both : tensor<4x4xfloat32>"""
    made = kernel_of(program(body, parameters="A: 4*2*2*float32"))
    named = {value.name: value for op in made.walk() for value in op.results}
    splits = {named["parts"].op, named["numbers"].op}
    assert set(_reshaped_before(named["joined"])) == splits
    for name in ("moved", "rows", "loaded"):
        assert set(_reshaped_before(named[name])) == {*splits, named[name].op}


def test_what_a_while_computes_has_the_layout_of_its_result() -> None:
    column = "tensor<4x1xfloat32>"
    body = f"""
    %x = arith.constant {{value = 0.5}} : {column}
    %y = arith.constant {{value = 0.5}} : {column}
    %r, %s = scf.while [%x] : {column}, {column} (%a: {column}) {{
      %v = arith.neg %y : {column}
      scf.condition %t0[%v, %a]
    }} (%b: {column}, %c: {column}) {{
      scf.yield [%c]
    }}
    %large = tensor.broadcast %{{0}} : tensor<4x8xfloat32>"""
    meeting = {}
    for result in "rs":
        made = program(body.replace("{0}", result), parameters="A: 4*float32, t0: bool")
        ops = list(kernel_of(made).walk())
        carried = [value for op in ops for region in op.regions for value in region.args if value.shape]
        meeting[result] = "".join(value.name for value in carried if _meets_larger(value))
    assert meeting == {"r": "abc", "s": "ac"}


SPLIT = "%s = tensor.reshape %x : tensor<4x2x4xfloat32>\n"


@pytest.mark.parametrize(
    ("between", "joins"),
    [
        (f"{SPLIT}%y = arith.neg %s : tensor<4x2x4xfloat32>", True),
        (f"{SPLIT}%t = arith.neg %s : tensor<4x2x4xfloat32>\n"
         '%y = tensor.scan %t {kind = "sum", axis = 2} : tensor<4x2x4xfloat32>', False),
        (f"{SPLIT}%y = arith.add %s, %split : tensor<4x2x4xfloat32>", True),  # where all are divided so
        (f"{SPLIT}%u = tensor.reshape %wide : tensor<4x2x4xfloat32>\n"
         "%y = arith.add %s, %u : tensor<4x2x4xfloat32>", False),
        ("%y = tensor.reshape %flat : tensor<4x2x4xfloat32>", False),
        ("%h = tensor.reshape %row : tensor<1x2x4xfloat32>\n%y = tensor.broadcast %h : tensor<4x2x4xfloat32>", True),
        ("%y = arith.neg %split : tensor<4x2x4xfloat32>", False),  # nothing was divided
        ("%h = tensor.reshape %x : tensor<4x4x2xfloat32>\n"
         '%r = tensor.reduce %h {kind = "sum", axis = 2} : tensor<4x4xfloat32>\n'
         "%w = tensor.reshape %r : tensor<4x1x4xfloat32>\n%y = tensor.broadcast %w : tensor<4x2x4xfloat32>", False),
    ],
)  # fmt: skip
def test_which_parts_become_one_dimension_again(between: str, joins: bool) -> None:
    """Where what divides them, and all that is computed in between, leaves lanes where they are."""
    shapes = {"x": "4x8", "split": "4x2x4", "wide": "2x16", "flat": "32", "row": "1x8"}
    given = [f"%{name} = arith.constant {{value = 0.5}} : tensor<{shape}xfloat32>" for name, shape in shapes.items()]
    body = "\n".join([*given, between, "%joined = tensor.reshape %y : tensor<4x8xfloat32>"])
    named = {value.name: value for op in kernel_of(program(body)).walk() for value in op.results}
    assert (named["joined"].op in _reshaped_before(named["joined"])) is not joins


@pytest.mark.parametrize("name", ["reduce_reshaped", "reduce_part"])
def test_reductions_behind_a_reshape_are_relaid(name: str) -> None:
    ops = lowered(PROGRAMS[name].program)
    assert any(op.relaid for op in of(ops, tensor.ReduceOp))


def parts(target: str) -> tiledsl.Kernel:
    """Of each row of a product, the sums of its two halves."""

    @T.prim_func
    def main(A: T.Tensor((256, 64), "float16"), B: T.Tensor((64, 128), "float16"), O: T.Tensor((256, 2), "float32")):
        with T.Kernel(1, threads=512):
            a, b = T.alloc_shared((256, 64), "float16"), T.alloc_shared((64, 128), "float16")
            c, s = T.alloc_fragment((256, 128), "float32"), T.alloc_fragment((256, 2), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            T.reduce_sum(T.reshape(c, (256, 2, 64)), s, dim=2)
            T.copy(s, O)

    return tiledsl.compile(main, target=target)


def test_parts_of_a_dimension_are_reduced_where_they_lie() -> None:
    """To lay the product out anew would take all of 128 KiB of shared memory."""
    kernel = parts("cuda:90")
    assert "_second" not in kernel.source
    assert kernel.resources.shared_bytes < 128 << 10
    a, b, sums = torch.randn(256, 64).half(), torch.randn(64, 128).half(), torch.zeros(256, 2)
    parts("interpret")(a, b, sums)
    torch.testing.assert_close(sums, (a.float() @ b.float()).view(256, 2, 64).sum(2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("before", "after", "splits"),
    [
        ((8, 4), (8, 2, 2), True),
        ((8, 4), (2, 4, 4), True),
        ((32,), (2, 4, 4), True),
        ((1, 8), (2, 4), True),
        ((8, 1), (2, 4), True),
        ((8, 4), (8, 4, 1), True),
        ((8, 4), (4, 8), False),
        ((8, 4), (2, 16), False),
        ((8, 4), (32,), False),
        ((2, 4, 4), (8, 2, 2), False),
    ],
)
def test_which_reshapes_split(before: tuple[int, ...], after: tuple[int, ...], splits: bool) -> None:
    shapes = ["x".join(map(str, shape)) for shape in (before, after)]
    body = f"""
    %x = arith.constant {{value = 0.5}} : tensor<{shapes[0]}xfloat32>
    %y = tensor.reshape %x : tensor<{shapes[1]}xfloat32>"""
    (op,) = of(list(kernel_of(program(body)).walk()), tensor.ReshapeOp)
    assert _splits(op) is splits


def picking(place: str, dtype: str = "float32", rows: int = 2, expression: str = "") -> Any:
    picked = expression or f"t[{place}]"
    text = f"""
@T.prim_func
def main(A: T.Tensor(({rows * 32},), {dtype!r}), N: T.Tensor((4,), "int32"), O: T.Tensor((64,), {dtype!r})):
    with T.Kernel(1, threads=32):
        flat = T.alloc_shared(({rows * 32},), {dtype!r})
        T.copy(A, flat)
        t = T.reshape(flat, ({rows}, 4, 8))
        for k in T.serial(2):
            for i, j in T.Parallel(2, 4):
                O[k * 32 + i * 4 + j] = {picked}
"""
    return tiledsl.parse(text)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("place", ["i, 1, j", "i, k + 1, j", "1, j, i", "k, j, 6", "i, j, k * 5"])
def test_one_place_of_an_axis_is_gathered(place: str, dtype: str) -> None:
    made = lowered(picking(place, dtype))
    assert of(made, tensor.GatherOp) and not of(made, tensor.ReduceOp)
    given = torch.arange(64).to(getattr(torch, dtype))
    out = torch.zeros(64).to(given.dtype)
    tiledsl.compile(picking(place, dtype), target="interpret")(given, torch.zeros(4, dtype=torch.int32), out)
    tile, expected = given.float().view(2, 4, 8), torch.zeros(64)
    for k in range(2):
        for i in range(2):
            for j in range(4):
                expected[k * 32 + i * 4 + j] = tile[eval(place, {"i": i, "j": j, "k": k})]
    assert torch.equal(out.float(), expected)


def test_places_that_may_lie_outside_and_large_tiles_are_searched() -> None:
    assert of(lowered(picking("i, N[k], j")), tensor.ReduceOp)
    assert of(lowered(picking("i, 1, j", rows=512)), tensor.ReduceOp)
    guarded = "T.if_then_else(k + {0} < 4, t[i, k + {0}, j], 0)"
    for start, searched in ((2, False), (3, True)):  # 4 is one too many
        program = picking("", expression=guarded.format(start))
        assert bool(of(lowered(program), tensor.ReduceOp)) is searched
    for rows, dtype, searched in ((256, "float32", False), (512, "float16", False), (512, "float64", True)):
        reductions = of(lowered(picking("i, 1, j", dtype, rows)), tensor.ReduceOp)
        assert bool(reductions) is searched


@pytest.mark.parametrize(
    ("shape", "limit", "fits"),
    [
        ((4, 8), (4, 8), True), ((4, 8), (8, 8), True), ((8, 8), (4, 8), False), ((4, 8), (8, 4), False),
        ((4, 1, 8), (32, 2), True), ((4, 2, 8), (32, 2), False), ((4,), (1, 8), True), ((4, 2), (8,), False),
        ((1, 1), (1,), True), ((1, 4), (1, 1, 1), False),
    ],
)  # fmt: skip
def test_a_layout_has_a_thread_for_each_element(shape: tuple[int, ...], limit: tuple[int, ...], fits: bool) -> None:
    assert _fits_into(shape, limit) is fits


def test_products_of_float64_are_cut_off_from_narrow_numbers() -> None:
    for name, cuts in (("float64_of_float16", [True, False]), ("float64_masked_by_int8", [True, True])):
        (dot,) = of(lowered(PROGRAMS[name].program), tensor.DotOp)
        sums = [isinstance(value.op, tensor.ReduceOp) and value.op.source.shape[-1] == 1 for value in (dot.a, dot.b)]
        assert sums == cuts


WHILE = """
tile.func {{sym_name = "test", parameters = ("A", "n", "f")}} (%A: buffer<8*int32, global>, %n: int32, %f: float32) {{
  %c1 = arith.constant {{value = 1}} : int32
  triton.launch [%c1], [%A, %n, %f] {{sym_name = "k"}} (%a: *int32, %m: int32, %g: float32) {{
    %c0 = arith.constant {{value = 0}} : int32
    %x = triton.load %a : int32
    %r, %s = scf.while [%c0, {start}] : int32, int32 (%i: int32, %j: int32) {{
      {test}
      %yes = arith.cmp %i, %t {{predicate = "lt"}} : bool
      scf.condition %yes[%i, %t]
    }} (%k: int32, %l: int32) {{
      %next = arith.add %k, %l : int32
      scf.yield [%next, %l]
    }}
    triton.store %a, %r
    triton.store %a, %s
  }}
  scf.yield
}}"""


@pytest.mark.parametrize(
    ("start", "test", "guarded"),
    [
        ("%m", "%t = arith.add %j, %j : int32", True),
        ("%c0", "%t = arith.mul %x, %m : int32", True),
        ("%x", "%t = arith.add %j, %j : int32", False),  # what is loaded is not known
        ("%x", "%t = arith.cast %g : int32", False),  # nor is a float
        ("%m", "%t = triton.load %a : int32", False),  # whose test is not run twice
        ("%m", "%q = triton.load %a : int32 %t = arith.add %j, %q : int32", False),
    ],
)
def test_whiles_that_a_launch_may_show_never_to_run_are_guarded(start: str, test: str, guarded: bool) -> None:
    root = parse_program(WHILE.format(start=start, test=test)).root
    before = print_op(root)
    LegalizeLayouts().run(Program(root))
    verify(root)
    if not guarded:
        assert print_op(root) == before
        return
    (branch,) = of(list(root.walk()), scf.IfOp)
    (loop,) = of(list(root.walk()), scf.WhileOp)
    assert loop.parent is branch.then and [op.name for op in branch.then] == ["scf.while", "scf.yield"]
    assert branch.then.terminator.operands == loop.results
    assert [op.operands[1] for op in of(list(root.walk()), triton.StoreOp)] == branch.results
    otherwise = branch.orelse.terminator.operands
    assert otherwise[0] is loop.inits[0] and otherwise[1].op is branch.condition.op.operands[1].op
    assert branch.condition.op.operands[0] is loop.inits[0] and otherwise[1].op.name == test.split()[2]


def rewritten(body: str, size: int = 64, warps: int = 4) -> list[Operation]:
    """What becomes of a kernel that computes the elements %y of %x, 64 of them in memory; it still means the same."""
    text = f"""tile.func {{sym_name = "test", parameters = ("A", "O")}}
      (%A: buffer<64*int32, global>, %O: buffer<{size}*int32, global>) {{
      %c1 = arith.constant {{value = 1}} : int32
      triton.launch [%c1], [%A, %O] {{sym_name = "k", options = (("num_warps", {warps}),)}} (%a: *int32, %o: *int32) {{
        %n = tensor.iota {{axis = 0}} : tensor<64xint32>
        %p = triton.addptr %a, %n : tensor<64x*int32>
        %x = triton.load %p : tensor<64xint32>
        %i = tensor.iota {{axis = 0}} : tensor<4x1xint32>
        %j = tensor.iota {{axis = 1}} : tensor<1x16xint32>
        %c3 = arith.constant {{value = 3}} : int32
        {body}
        %q = tensor.iota {{axis = 0}} : tensor<{size}xint32>
        %r = triton.addptr %o, %q : tensor<{size}x*int32>
        triton.store %r, %y
      }}
      scf.yield
    }}"""
    made = parse_program(text)
    numbers = np.random.default_rng(3).permutation(64).astype(np.int32)
    expected, found = ([numbers.copy(), np.zeros(size, np.int32)] for _ in range(2))
    executor.run(made.root, expected)
    LegalizeLayouts().run(made)
    verify(made.root)
    executor.run(made.root, found)
    assert found[1].tolist() == expected[1].tolist()
    return list(made.root.walk())


GATHER = """%t = tensor.reshape %x : tensor<{0}xint32>
%g = tensor.gather %t, %d {{axis = {1}}} : tensor<{0}xint32>
%y = tensor.reshape %g : tensor<64xint32>"""
PLACES = """%s = arith.mul %j, %c3 : tensor<1x16xint32>
%e = arith.add %i, %s : tensor<4x16xint32>
%m = arith.constant {{value = {}}} : int32
%d = arith.and %e, %m : tensor<4x16xint32>
"""
LOADED = "%m = arith.constant {value = 3} : int32\n%f = arith.and %x, %m : tensor<64xint32>\n"
PLANES = "%d = tensor.reshape %f : tensor<2x4x8xint32>\n"
ONE = "%d = arith.constant {value = 0} : tensor<4x1x16xint32>\n"


@pytest.mark.parametrize(
    ("body", "warps", "flat"),
    [
        (PLACES.format(15) + GATHER.format("4x16", 1), 4, True), (PLACES.format(3) + GATHER.format("4x16", 0), 4, True),
        (PLACES.format(15) + GATHER.format("4x16", 1), 2, False),
        (PLACES.format(15) + GATHER.format("4x16", 1), 1, False),
        (LOADED + "%d = tensor.reshape %f : tensor<4x16xint32>\n" + GATHER.format("4x16", 1), 4, True),
        (LOADED + PLANES + GATHER.format("2x4x8", 1), 4, True), (LOADED + PLANES + GATHER.format("2x4x8", 2), 4, True),
        (ONE + GATHER.format("4x1x16", 1), 4, True), (LOADED.replace("%f", "%d") + GATHER.format("64", 0), 4, True),
    ],
)  # fmt: skip
def test_gathers_of_fewer_elements_than_threads(body: str, warps: int, flat: bool) -> None:
    (gather,) = of(rewritten(body, warps=warps), tensor.GatherOp)
    assert (len(gather.source.shape) == 1) is flat


FLAT = "%y = tensor.reshape %d : tensor<64xint32>"


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        (PLACES.format(15) + FLAT, False), ("%d = tensor.broadcast %j : tensor<4x16xint32>\n" + FLAT, False),
        ("%e = arith.add %i, %c3 : tensor<4x1xint32>\n%d = tensor.broadcast %e : tensor<4x16xint32>\n" + FLAT, False),
        ("%k = tensor.iota {axis = 1} : tensor<1x4x1xint32>\n%l = arith.constant {value = 5} : tensor<2x4x8xint32>\n"
         "%d = arith.mul %k, %l : tensor<2x4x8xint32>\n" + FLAT, False),
        ("%t = tensor.reshape %x : tensor<4x16xint32>\n%d = arith.add %t, %i : tensor<4x16xint32>\n" + FLAT, True),
        ("%d = tensor.reshape %x : tensor<4x16xint32>\n" + FLAT, True),
    ],
)  # fmt: skip
def test_what_depends_on_indices_alone_is_computed_in_one_dimension(body: str, stays: bool) -> None:
    assert bool(of(rewritten(body), tensor.ReshapeOp)) is stays


SCAN = """%t = tensor.reshape %x : tensor<{0}xint32>
%c = tensor.scan %t {{kind = "sum", axis = {1}}} : tensor<{0}xint32>
%y = tensor.reshape %c : tensor<64xint32>"""
REVERSED = SCAN.replace('"sum", ', '"sum", reverse = true, ')


@pytest.mark.parametrize(
    ("body", "shape", "relaid"),
    [
        (SCAN.format("64", 0), (64,), False), (SCAN.format("64x1", 0), (64,), False),
        (SCAN.format("1x64x1", 1), (64,), False), (SCAN.format("4x16", 0), (4, 16), True),
        (SCAN.format("4x1x16", 2), (4, 16), True), (SCAN.format("4x1x16", 0), (4, 16), True),
        (REVERSED.format("64", 0), (64,), False), (REVERSED.format("4x1x16", 0), (4, 16), True),
        (REVERSED.format("4x16", 1), (4, 16), True), (REVERSED.format("2x4x8", 1), (2, 4, 8), True),
        (SCAN.format("4x1x16", 1), None, False), (REVERSED.format("4x1x16", 1), None, False),
    ],
)  # fmt: skip
def test_scans_lose_dimensions_of_one_and_walk_forwards(body: str, shape: tuple[int, ...] | None, relaid: bool) -> None:
    scans = of(rewritten(body), tensor.ScanOp)
    assert [(scan.source.shape, scan.relaid, scan.reverse) for scan in scans] == (
        [(shape, relaid, False)] if shape else []
    )


PICK = """%t = tensor.reshape %x : tensor<2x4x8xint32>
%k = tensor.iota {{axis = 1}} : tensor<1x4x1xint32>
{0}
%h = arith.cmp %k, %at {{predicate = "eq"}} : tensor<1x4x1xbool>
%nothing = arith.constant {{value = 0}} : int32
%w = arith.select %h, %t, %nothing : tensor<2x4x8xint32>
%s = tensor.reduce %w {{kind = "{1}", axis = 1}} : tensor<2x8xint32>
%y = tensor.reshape %s : tensor<16xint32>"""


@pytest.mark.parametrize(
    ("place", "kind", "gathered"),
    [
        ("%at = arith.constant {value = 3} : int32", "sum", True),
        ("%at = arith.constant {value = 0} : int32", "sum", True),
        ("%at = arith.constant {value = 3} : int32", "or", False),
        ("%at = arith.constant {value = 4} : int32", "sum", False),
        ("%b = triton.program_id {axis = 0} : int32\n%at = arith.and %b, %c3 : int32", "sum", True),
        ("%b = triton.program_id {axis = 0} : int32\n%at = arith.sub %b, %b : int32", "sum", True),
        ("%at = triton.load %a : int32", "sum", False),
    ],
)  # fmt: skip
def test_which_places_are_picked_by_a_gather(place: str, kind: str, gathered: bool) -> None:
    assert bool(of(rewritten(PICK.format(place, kind), size=16), tensor.GatherOp)) is gathered


@pytest.mark.parametrize(
    ("dtype", "through", "cut"),
    [("int8", "int32", True), ("int16", "int16", True), ("int32", "int32", False), ("int64", "int64", False)],
)
def test_what_is_computed_from_numbers_of_less_than_32_bits_in_memory(dtype: str, through: str, cut: bool) -> None:
    text = f"""tile.func {{sym_name = "test", parameters = ("A",)}} (%A: buffer<64*{dtype}, global>) {{
      %c1 = arith.constant {{value = 1}} : int32
      triton.launch [%c1], [%A] {{sym_name = "k"}} (%a: *{dtype}) {{
        %n = tensor.iota {{axis = 0}} : tensor<64xint32>
        %p = triton.addptr %a, %n : tensor<64x*{dtype}>
        %x = triton.load %p : tensor<64x{dtype}>
        %w = arith.cast %x : tensor<64x{through}>
        %y = arith.cast %w : tensor<64xfloat64>
        tile.print [%y] {{message = ""}}
      }}
      scf.yield
    }}"""
    (shown,) = (op for op in parse_program(text).root.walk() if op.name == "tile.print")
    assert _is_loaded_narrow(shown.operands[0]) is cut
