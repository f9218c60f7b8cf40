"""Both styles, outputs, dynamic shapes, macros, helpers, several kernels in one program."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.frontend import syntax
from tiledsl.frontend.elaborate import elaborate_tree
from tiledsl.frontend.parser import parse_module

F, I = "float32", "int32"
GLOBAL_SCALE = 3.0


def twice(x: Any) -> Any:
    """A host helper that returns an expression."""
    return x * 2.0 if isinstance(x, float) else x + x


@T.macro
def store(B, i, value):
    B[i] = value


@T.macro
def bump(counter: T.Ref, by):
    counter += by
    by = by + 100  # the caller's value stays
    return by


@T.macro
def pair(x, y=2.0):
    total = x + y
    return total, x * y


@T.macro
def outer(B, i, x):
    a, b = pair(x)
    store(B, i, a + b)


def test_macros(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), F), B: T.Tensor((4,), F), C: T.Tensor((3,), I)):
        with T.Kernel(4) as bx:
            outer(B, bx, A[bx])
            count, step = T.alloc_var(I, 1), T.alloc_var(I, 5)
            result = bump(count, step)
            bump(count, by=step)
            if bx == 0:
                C[0], C[1], C[2] = count, step, result

    a = torch.randn(4)
    b, c = run(main, a, out_idx=(1, 2))
    torch.testing.assert_close(b, a + 2 + a * 2)
    assert c.tolist() == [11, 5, 105]


def test_helpers_closures_globals_and_nested_functions(run: Any) -> None:
    shift, table = 1.5, {"low": 0.25}
    lanes = math.gcd(8, 12)

    @T.prim_func
    def main(A: T.Tensor((lanes * 2,), F), B: T.Tensor((lanes * 2,), F)):
        with T.Kernel(T.ceildiv(lanes * 2, lanes)) as bx:

            def nested(x, scale=GLOBAL_SCALE):
                return twice(x) * scale + shift

            half = lambda x: x * 0.5

            for i in T.Parallel(lanes):
                B[bx * lanes + i] = half(nested(A[bx * lanes + i])) + table["low"] + max(1, 2) + twice(1.0)

    a = torch.randn(8)
    torch.testing.assert_close(run(main, a), (a * 2 * 3 + 1.5) * 0.5 + 0.25 + 2 + 2)


def test_kernels_run_in_order_with_a_workspace(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((6, 8), F), B: T.Tensor((8,), F)):
        parts = T.alloc_global((3, 8), F)
        with T.Kernel(3, threads=64) as bx:
            x, s = T.alloc_fragment((2, 8), F), T.alloc_fragment((8,), F)
            T.copy(A[bx * 2, 0], x)
            T.reduce_sum(x, s, dim=0)
            T.copy(s, parts[bx, 0])
        with T.Kernel(1) as bx:
            y, s = T.alloc_fragment((3, 8), F), T.alloc_fragment((8,), F)
            T.copy(parts, y)
            T.reduce_sum(y, s, dim=0)
            T.copy(s, B)

    a = torch.randn(6, 8)
    torch.testing.assert_close(run(main, a), a.sum(0))


def test_one_kernel_for_many_shapes() -> None:
    M, N = T.dynamic("M, N")

    @T.prim_func
    def main(A: T.Tensor((M, N), F), B: T.Tensor((N, M), F), C: T.Tensor((M,), F)):
        with T.Kernel(T.ceildiv(M, 4), T.ceildiv(N, 4)) as (bx, by):
            x = T.alloc_shared((4, 4), F)
            T.copy(A[bx * 4, by * 4], x)
            for i, j in T.Parallel(4, 4):
                B[by * 4 + j, bx * 4 + i] = x[i, j]
            if by == 0:
                for i in T.Parallel(4):
                    C[bx * 4 + i] = T.cast(M * 100 + N, F)

    kernel = tiledsl.compile(main, out_idx=[1, -1], target="interpret")
    for rows, columns in ((3, 5), (8, 4), (1, 9)):
        a = torch.randn(rows, columns)
        b, c = kernel(a)
        assert torch.equal(b, a.t()) and c.tolist() == [rows * 100 + columns] * rows


@pytest.mark.parametrize(("out_idx", "count"), [(1, 1), (-1, 1), ([1], 1), ([-2, -1], 2), ([2, 1], 2), (None, 0)])
def test_forms_of_out_idx(out_idx: Any, count: int) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), F), B: T.Tensor((4,), F), C: T.Tensor((4,), F)):
        with T.Kernel(1):
            for i in T.Parallel(4):
                B[i] = A[i] + 1.0
                C[i] = A[i] + 2.0

    kernel = tiledsl.compile(main, out_idx=out_idx, target="interpret")
    a = torch.randn(4)
    want = [a, a + 1, a + 2]
    if count == 0:
        b, c = torch.zeros(4), torch.zeros(4)
        assert kernel(a, b, c) is None
        assert torch.equal(b, want[1]) and torch.equal(c, want[2])
        return
    positions = [each % 3 for each in (out_idx if isinstance(out_idx, list) else [out_idx])]
    others = [torch.zeros(4) for each in (1, 2) if each not in positions]
    result = kernel(a, *others)
    assert isinstance(result, torch.Tensor) == (count == 1)
    for position, got in zip(positions, [result] if count == 1 else result):
        assert torch.equal(got, want[position])


def test_lazy_builders_compile_once_for_each_choice() -> None:
    built = []

    @tiledsl.jit(out_idx=[-1], target="interpret")
    def scale(n, factor=2.0, dtype=F):
        built.append((n, factor))

        @T.prim_func
        def main(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
            with T.Kernel(1):
                for i in T.Parallel(n):
                    B[i] = A[i] * factor

        return main

    a = torch.randn(5)
    assert torch.equal(scale(5)(a), a * 2) and torch.equal(scale(5, 2.0)(a), a * 2)
    assert torch.equal(scale(5, factor=3.0)(a), a * 3)
    assert built == [(5, 2.0), (5, 3.0)]


def test_eager_functions_specialise_on_constants_and_not_on_dynamic_dimensions() -> None:
    @tiledsl.jit(target="interpret")
    def add(A, B, block: int = 4):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), F)
        B: T.Tensor((N,), F)
        C = T.empty((M, N), F)
        S = T.empty((M,), F)
        with T.Kernel(T.ceildiv(M, block)) as bx:
            x, s = T.alloc_fragment((block, N), F), T.alloc_fragment((block,), F)
            T.copy(A[bx * block, 0], x)
            for i, j in T.Parallel(block, N):
                x[i, j] += B[j]
            T.copy(x, C[bx * block, 0])
            T.reduce_sum(x, s, dim=1)
            T.copy(s, S[bx * block])
        return C, S

    for rows, columns in ((3, 5), (9, 2), (3, 5)):
        a, b = torch.randn(rows, columns), torch.randn(columns)
        c, s = add(a, b)
        torch.testing.assert_close(c, a + b)
        torch.testing.assert_close(s, (a + b).sum(1))
    assert len(add._kernels) == 2
    assert add.compile(M=3, N=5).params[0].shape == (3, 5)

    @tiledsl.jit(target="interpret")
    def negate(A):
        M = T.dynamic("M")
        A: T.Tensor((M,), F)
        with T.Kernel(T.ceildiv(M, 4)) as bx:
            for i in T.Parallel(4):
                A[bx * 4 + i] = -A[bx * 4 + i]

    for rows in (3, 8):
        a = torch.randn(rows)
        want = -a
        assert negate(a) is None and torch.equal(a, want)
    assert len(negate._kernels) == 1


def test_scalars_as_parameters(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), F), n: T.int32, x: T.float32, big: T.int64, B: T.Tensor((4,), F)):
        with T.Kernel(1):
            for i in T.Parallel(4):
                B[i] = T.if_then_else(i < n, A[i] * x, T.cast(big // 1000000007, F))

    a = torch.randn(4)
    want = torch.tensor([a[0] * 0.5, a[1] * 0.5, 11.0, 11.0])
    torch.testing.assert_close(run(main, a, 2, 0.5, 11 * 1000000007), want)


def test_printing_and_assertions(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), F)):
        with T.Kernel(1) as bx:
            T.print(bx, msg="block")
            T.device_assert(bx >= 0, "the block index is not negative")
            assert bx < 5, "few blocks"
            T.assume(bx < 7)
            A[bx] = 1.0

    a = torch.zeros(4)
    run(main, a, out_idx=())
    assert a[0] == 1


def test_strided_parameters(run: Any) -> None:
    @T.prim_func
    def main(A: T.StridedTensor((4, 3), (1, 4), F), B: T.Tensor((4, 3), F)):
        with T.Kernel(1):
            x = T.alloc_fragment((4, 3), F)
            T.copy(A, x)
            T.copy(x, B)

    a = torch.randn(3, 4).t()
    assert torch.equal(run(main, a), a)


def test_a_local_variable_that_both_branches_write(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            v = T.alloc_local((1,), "float32")
            for i in T.Parallel(8):
                if A[i] > 3:
                    v[0] = 1.0
                else:
                    v[0] = A[i]
                B[i] = v[0] * 2

    assert run(main, torch.arange(8.0)).tolist() == [0, 2, 4, 6, 2, 2, 2, 2]


def test_a_program_is_one_wherever_it_is_found() -> None:
    class Found:
        @T.prim_func
        def main(A: T.Tensor((4,), "int32")):
            with T.Kernel(1):
                A[0] = 1

    program = Found.main
    assert isinstance(program, T.PrimFunc) and Found().main is program and program.with_attr("x", 1) is program
    with pytest.raises(tiledsl.TileError, match="main is a tile program and cannot be called directly"):
        program(torch.zeros(4, dtype=torch.int32))


def test_print_shows_what_is_known_while_the_program_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    shown: Any = [3, None]

    @T.prim_func
    def main(A: T.Tensor((4,), "int32")):
        with T.Kernel(1) as bx:
            print("values", *shown)
            A[bx] = 1

    main.build(())
    assert capsys.readouterr().out == "values 3 None\n"
    for value in ("A", "A[0]", "bx", "bx + 1"):
        text = f"def main(A: T.Tensor((4,), 'int32')):\n    with T.Kernel(1) as bx:\n        print(1, {value})\n"
        (tree,) = parse_module(text).body
        assert isinstance(tree, syntax.Function)
        with pytest.raises(tiledsl.TileError, match=r"print shows values while the program is built; use T\.print"):
            elaborate_tree(tree, {"T": T, "print": print}.__getitem__)
