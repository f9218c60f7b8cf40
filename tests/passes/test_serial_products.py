"""parallelize-loops: serial loops that add outer products become matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.passes.ir_cases import body_lines, filecheck, kernel
from tests.support.programs import check_pass, inputs_for
from tiledsl.ir.pass_manager import Program
from tiledsl.passes.parallelize_loops import ParallelizeLoops

ROWS, COLUMNS, DEPTH = 16, 32, 17


def lines(
    a: str = "%i, %k", b: str = "%k, %j", inputs: str = "float16", target: str = "%i, %j", product: str = "mul",
    sum: str = "add", wide: str = "float32", depth: int = DEPTH, bounds: Sequence[int] = (0, DEPTH, 1), extra: str = "",
    around: bool = False, runs: bool = True, columns: int = COLUMNS,
) -> list[str]:  # fmt: skip
    """The loop c += a @ b after the pass; `runs`: which keeps what the program computes."""
    shapes = {"%i": ROWS, "%j": columns, "%k": depth}
    sizes = [[shapes[each] for each in access.split(", ")] for access in (a, b, target)]
    parameters = ", ".join(
        f"{name}: {m}*{n}*{dtype}" for name, (m, n), dtype in zip("ABC", sizes, (inputs, inputs, wide), strict=True)
    )
    widen = f"%x = arith.cast %p : {wide} %y = arith.cast %q : {wide}" if inputs != wide else ""
    factors = "%x, %y" if inputs != wide else "%p, %q"
    body = f"""
        %p = tile.load %a[{a}] : {inputs} %q = tile.load %b[{b}] : {inputs} {widen}
        %z = arith.{product} {factors} : {wide} %o = tile.load %c[{target}] : {wide}
        %n = arith.{sum} %o, %z : {wide} tile.store %n, %c[{target}] {extra}"""
    points = f"tile.parallel {{extents = ({ROWS}, {columns})}} (%i: int32, %j: int32) {{"
    lower, upper, step = bounds
    loop = f"scf.for %c{lower}, %c{upper}, %c{step} (%k: int32) {{"
    nest = f"{points} {loop} {body} scf.yield }} }}" if around else f"{loop} {points} {body} }} scf.yield }}"
    (am, an), (bm, bn), (cm, cn) = sizes
    text = f"""
        %a = tile.alloc : buffer<{am}*{an}*{inputs}, shared> %b = tile.alloc : buffer<{bm}*{bn}*{inputs}, shared>
        %c = tile.alloc : buffer<{cm}*{cn}*{wide}, fragment>
        tile.copy %A, %a {{shape = ({am}, {an}), source_axes = (0, 1), target_axes = (0, 1)}}
        tile.copy %B, %b {{shape = ({bm}, {bn}), source_axes = (0, 1), target_axes = (0, 1)}}
        {nest}
        tile.copy %c, %C {{shape = ({cm}, {cn}), source_axes = (0, 1), target_axes = (0, 1)}}"""
    func = kernel(parameters, text)
    named = ParallelizeLoops().allowances(Program(func))
    made = check_pass(ParallelizeLoops(), func, inputs_for(func)) if runs else func
    if not runs:
        ParallelizeLoops().run(Program(func))
    found = [line for line in body_lines(Program(made)) if "arith.constant" not in line][5:-1]
    if any("tile.gemm" in line for line in found):  # floats are added up in another order
        assert named == ({"reassociation"} if wide == "float32" else set())
    return found


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, "tile.gemm %a, %b, %c"),
        ({"around": True}, "tile.gemm %a, %b, %c"),
        ({"a": "%k, %i"}, "tile.gemm %a, %b, %c {trans_a = true}"),
        ({"b": "%j, %k"}, "tile.gemm %a, %b, %c {trans_b = true}"),
        ({"target": "%j, %i"}, "tile.gemm %b, %a, %c {trans_a = true, trans_b = true}"),
        ({"bounds": (DEPTH - 1, -1, -1)}, "tile.gemm %a, %b, %c"),
        ({"inputs": "bfloat16"}, "tile.gemm %a, %b, %c"),
        ({"inputs": "float32"}, 'tile.gemm %a, %b, %c {precision = "ieee"}'),
        ({"inputs": "int8", "wide": "int32"}, "tile.gemm %a, %b, %c"),
        ({"depth": 512, "bounds": (0, 512, 1), "runs": False}, "tile.gemm %a, %b, %c"),
        ({"depth": 16, "bounds": (0, 16, 1)}, "tile.gemm %a, %b, %c"),
        (
            {"inputs": "float32", "depth": 256, "bounds": (0, 256, 1), "runs": False},
            'tile.gemm %a, %b, %c {precision = "ieee"}',
        ),
    ],
)
def test_outer_products(how: dict[str, Any], expected: str) -> None:
    filecheck(lines(**how), expected)


@pytest.mark.parametrize(
    "how",
    [
        {"inputs": "float8_e4m3fn"},  # whose sums Hopper's tensor cores round
        {"inputs": "float16", "wide": "float16"},
        {"inputs": "float64", "wide": "float64"},
        {"product": "add"},
        {"sum": "sub"},
        {"sum": "max"},
        {"bounds": (0, DEPTH - 1, 1)},
        {"bounds": (0, DEPTH, 2)},
        {"bounds": (1, DEPTH, 1)},
        {"depth": 15, "bounds": (0, 15, 1)},
        {"inputs": "float32", "depth": 257, "bounds": (0, 257, 1)},  # whose code would be too long
        {"inputs": "float32", "depth": 205, "bounds": (0, 205, 1), "columns": 40},  # the same: 1025 steps of a thread
        {"extra": "tile.store %o, %C[%i, %j]"},
    ],
)
def test_what_is_no_product(how: dict[str, Any]) -> None:
    assert not any("tile.gemm" in line for line in lines(**how, runs=False))


POINT = """%x = tile.load %a[%i, %k] : float32 %y = tile.load %b[%k, %j] : float32 %z = arith.mul %x, %y : float32
           %o = tile.load %c[%i, %j] : float32 %n = arith.add %o, %z : float32 tile.store %n, %c[%i, %j]"""
LOW = '%q = arith.cmp %i, %c3 {predicate = "lt"} : bool '
IN_OTHERS = (
    POINT.replace("%z = arith.mul %x, %y : float32", """%u = arith.cast %x : TYPE %v = arith.cast %y : TYPE
                  %z = arith.mul %u, %v : TYPE""")
    .replace("%o = tile.load %c[%i, %j] : float32", "%p = tile.load %c[%i, %j] : float32 %o = arith.cast %p : TYPE")
    .replace("%n = arith.add %o, %z : float32", "%m = arith.add %o, %z : TYPE %n = arith.cast %m : float32")
)  # fmt: skip
POINTS = "tile.parallel {extents = (16, 16)} (%i: int32, %j: int32) {"
LOOP = "scf.for %c0, %c16, %c1 (%k: int32) {"


def square(body: str, nest: str = f"{LOOP} {POINTS} BODY }} scf.yield }}") -> list[str]:
    """What becomes of a loop over tiles of 16 x 16."""
    axes = "{shape = (16, 16), source_axes = (0, 1), target_axes = (0, 1)}"
    tiles = " ".join(
        f"%{name} = tile.alloc : buffer<16*16*float32, shared> tile.copy %{name.upper()}, %{name} {axes}"
        for name in "abc"
    )
    func = kernel(
        "A: 16*16*float32, B: 16*16*float32, C: 16*16*float32",
        f"""{tiles} %h = tile.alloc : buffer<16*16*float16, shared> tile.copy %B, %h {axes}
            %d = tile.alloc : buffer<16*16*1*float32, fragment> {nest.replace("BODY", body)} tile.copy %c, %C {axes}""",
    )
    program = Program(func)
    ParallelizeLoops().run(program)
    return body_lines(program)


OTHERS = {
    "a mask of one factor": LOW + POINT.replace("%a[%i, %k]", "%a[%i, %k] mask=%q other=%c2.0"),
    "a mask of the other one": LOW + POINT.replace("%b[%k, %j]", "%b[%k, %j] mask=%q other=%c2.0"),
    "a mask of the store": LOW + POINT.replace("%n, %c[%i, %j]", "%n, %c[%i, %j] mask=%q"),
    "a factor in memory": POINT.replace("%a[", "%A["),
    "in memory": POINT.replace("%c[", "%C["),
    "what is multiplied is what is added to": POINT.replace("%b[", "%c["),
    "from the left": POINT.replace("%a[", "%c["),
    "a diagonal": POINT.replace("%c[%i, %j]", "%c[%i, %i]").replace("%b[%k, %j]", "%b[%k, %i]"),
    "rows of no step": POINT.replace("%a[%i, %k]", "%a[%i, %j]"),
    "columns by rows": POINT.replace("%b[%k, %j]", "%b[%i, %k]"),
    "computed in more bits": IN_OTHERS.replace("TYPE", "float64"),
    "computed in fewer bits": IN_OTHERS.replace("TYPE", "float16"),
    "two terms": POINT.replace("%n = arith.add %o, %z", "%r = arith.add %o, %z : float32 %n = arith.add %r, %x"),
    "a factor of no tile": POINT.replace("%y = tile.load %b[%k, %j] : float32", "%y = arith.cast %j : float32"),
    "three dimensions": POINT.replace("%c[%i, %j]", "%d[%i, %j, %c0]"),
    "factors of two types": POINT.replace(
        "%y = tile.load %b[%k, %j] : float32", "%g = tile.load %h[%k, %j] : float16 %y = arith.cast %g : float32"
    ),
}


@pytest.mark.parametrize("why", OTHERS)
def test_what_is_nearly_a_product(why: str) -> None:
    assert not any("tile.gemm" in line for line in square(OTHERS[why]))


@pytest.mark.parametrize(
    ("nest", "is_product"),
    [
        (f"{LOOP} {POINTS} BODY }} scf.yield }}", True),
        (f"{LOOP} {POINTS.replace(')}', '), lockstep = true}')} BODY }} scf.yield }}", False),
        # once for each point of another T.Parallel
        (f"{LOOP} tile.parallel {{extents = (2,)}} (%e: int32) {{ {POINTS} BODY }} }} scf.yield }}", False),
        (f"tile.parallel {{extents = (2,)}} (%e: int32) {{ {LOOP} {POINTS} BODY }} scf.yield }} }}", False),
    ],
    ids=["plain", "threads", "inside", "around"],
)
def test_where_a_product_stands(nest: str, is_product: bool) -> None:
    assert any("tile.gemm" in line for line in square(POINT, nest)) is is_product


def outer_products(dtype: str) -> Any:
    @T.prim_func
    def main(A: T.Tensor((64, 128), dtype), B: T.Tensor((128, 32), dtype), C: T.Tensor((64, 32), "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((64, 32), dtype), T.alloc_shared((32, 32), dtype)
            c = T.alloc_fragment((64, 32), "float32")
            T.clear(c)
            for step in T.serial(4):
                T.copy(A[0, step * 32], a)
                T.copy(B[step * 32, 0], b)
                for k in T.serial(32):
                    for i, j in T.Parallel(64, 32):
                        c[i, j] += T.cast(a[i, k], "float32") * T.cast(b[k, j], "float32")
            T.copy(c, C)

    return main


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_results(dtype: str) -> None:
    main = outer_products(dtype)
    torch.manual_seed(0)
    a, b = (torch.randn(shape).to(getattr(torch, dtype)) for shape in ((64, 128), (128, 32)))
    made = tiledsl.compile(main, target="interpret", out_idx=-1)(a, b)
    torch.testing.assert_close(made, a.float() @ b.float(), rtol=1e-5, atol=1e-4)
    compiled = tiledsl.compile(main, target="cuda:90")
    assert "tl.dot(" in compiled.source and "for k " not in compiled.source
    assert ('input_precision="ieee"' in compiled.source) == (dtype == "float32")
    certificate = compiled.verify()
    assert certificate.ok and "parallelize-loops: equal but for reassociation" in " ".join(str(certificate).split())


def test_products_can_be_left_alone() -> None:
    made = tiledsl.compile(
        outer_products("float16"), target="cuda:90", pass_configs={"parallelize-loops.reductions": False}
    )
    assert "for k in range(32)" in made.source and "tl.dot(" not in made.source
