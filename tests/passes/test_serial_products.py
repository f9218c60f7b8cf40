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
    around: bool = False, runs: bool = True,
) -> list[str]:  # fmt: skip
    """The loop c += a @ b after the pass; `runs`: which keeps what the program computes."""
    shapes = {"%i": ROWS, "%j": COLUMNS, "%k": depth}
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
    points = f"tile.parallel {{extents = ({ROWS}, {COLUMNS})}} (%i: int32, %j: int32) {{"
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
    made = check_pass(ParallelizeLoops(), func, inputs_for(func)) if runs else func
    if not runs:
        ParallelizeLoops().run(Program(func))
    return [line for line in body_lines(Program(made)) if "arith.constant" not in line][5:-1]


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
        {"depth": 8, "bounds": (0, 8, 1)},
        {"inputs": "float32", "depth": 1024, "bounds": (0, 1024, 1)},  # whose code would be too long
        {"extra": "tile.store %o, %C[%i, %j]"},
    ],
)
def test_what_is_no_product(how: dict[str, Any]) -> None:
    assert not any("tile.gemm" in line for line in lines(**how, runs=False))


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
