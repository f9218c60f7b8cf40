"""What running other people's programs brought to light, each as a small program of our own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


def sums(with_squares: bool) -> Any:
    @T.prim_func
    def program(X: T.Tensor((8, 16), "float32"), S: T.Tensor((8,), "float32"), Q: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32) as _:
            x = T.alloc_fragment((8, 16), "float32")
            s = T.alloc_fragment((8,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, s, dim=1)
            T.copy(s, S)
            if with_squares:
                for i, j in T.Parallel(8, 16):
                    x[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(x, s, dim=1)
                T.copy(s, Q)

    return program


def test_an_output_that_only_some_configurations_write(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(8, 16)
    total, squares = tiledsl.compile(sums(True), out_idx=[1, 2], target="interpret")(x)
    torch.testing.assert_close(total, x.sum(1))
    torch.testing.assert_close(squares, (x * x).sum(1))
    with caplog.at_level(logging.WARNING, "tiledsl"):
        total, _ = tiledsl.compile(sums(False), out_idx=[1, 2], target="interpret")(x)
    torch.testing.assert_close(total, x.sum(1))
    assert "program: this configuration writes nothing to the output Q" in caplog.text


@pytest.mark.parametrize("strided", [False, True])
def test_an_output_that_is_never_written_is_zeros(strided: bool) -> None:
    rest = T.StridedTensor((8, 8), (16, 1), "float32") if strided else T.Tensor((8, 8), "float32")

    @T.prim_func
    def program(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32"), Q: rest):
        with T.Kernel(1, threads=32):
            T.copy(X, Y)

    x = torch.randn(8)
    kernel = tiledsl.compile(program, out_idx=[1, 2], target="interpret")
    assert ("zero_()" if strided else "torch.zeros((8, 8)") in kernel.source
    given, rest_given = kernel(x)
    assert torch.equal(given, x) and not rest_given.any()
    assert rest_given.stride() == ((16, 1) if strided else (8, 1))
    assert "the output Q of program is never written: it is returned as zeros" in kernel.remarks
    certificate = kernel.verify()
    (check,) = [each for each in certificate.checks if each.subject == "elements of Q"]
    assert certificate.ok and (check.status, check.detail) == ("proved", "nothing writes Q: it is returned as zeros")
    with pytest.raises(TileError, match="the output Q of program is never written"):
        tiledsl.compile(program, out_idx=[2], target="interpret")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "float8_e4m3fn"])
def test_an_element_type_from_torch(name: str) -> None:
    dtype = T.dtype(getattr(torch, name))
    assert dtype == name
    assert dtype.as_torch() is getattr(torch, name)
    assert dtype.bits == torch.empty(0, dtype=getattr(torch, name)).element_size() * 8


def test_a_profilers_kernel_and_inputs() -> None:
    kernel = tiledsl.compile(sums(True), out_idx=[1, 2], target="interpret")
    profiler = kernel.get_profiler()
    inputs = profiler._get_inputs()
    assert [tuple(each.shape) for each in inputs] == [(8, 16)]
    torch.testing.assert_close(profiler.func(*inputs)[0], inputs[0].sum(1))


@pytest.mark.parametrize("value", [7.0, -2.5, 0.0])
def test_the_safe_value_holds_for_single_elements(value: float) -> None:
    @T.prim_func
    def shifted(A: T.Tensor((64,), "float16"), B: T.Tensor((64,), "float16")):
        with T.Kernel(2, threads=32) as bx:
            tile = T.alloc_shared((32,), "float16")
            T.annotate_safe_value({A: value})
            for i in T.Parallel(32):
                tile[i] = A[bx * 32 + i - 10] * 2
            T.copy(tile, B[bx * 32])

    a = torch.randn(64).half()
    expected = torch.cat([torch.full((10,), value).half(), a[:-10]]) * 2
    torch.testing.assert_close(tiledsl.compile(shifted, out_idx=[1], target="interpret")(a), expected)


def test_an_eager_function_whose_kernel_is_in_a_macro() -> None:
    @T.macro
    def doubled(X: Any) -> Any:
        (N,) = X.shape
        Y = T.empty(N, dtype=X.dtype)
        with T.Kernel(T.ceildiv(N, 16), threads=32) as bx:
            for i in T.Parallel(16):
                Y[bx * 16 + i] = X[bx * 16 + i] * 2
        return Y

    @tiledsl.jit(target="interpret")
    def fixed(X):
        X: T.Tensor((40,), "float32")
        return doubled(X)

    @tiledsl.jit(target="interpret")
    def of_any_size(X):
        N = T.const("N")
        X: T.Tensor((N,), "float16")
        return doubled(X)

    x = torch.randn(40)
    torch.testing.assert_close(fixed(x), x * 2)
    torch.testing.assert_close(of_any_size(x[:24].half()), x[:24].half() * 2)


def test_a_launch_without_a_grid_is_one_block(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Buffer((40,), "float32"), Y: T.Buffer(shape=(40,), dtype="float32")):
        with T.Kernel(threads=64):
            for i in T.Parallel(40):
                Y[i] = X[i] * 2

    x = torch.randn(40)
    assert torch.equal(run(program, x), x * 2)


def test_a_buffer_declaration_is_a_tensor() -> None:
    declared = T.Buffer((4, T.dynamic("n")), "float16")
    assert repr(declared) == repr(T.Tensor((4, T.dynamic("n")), "float16")) and declared.dtype == "float16"


@pytest.mark.parametrize("dtype", ["uint32", "int8", "uint64"])
def test_atomics_at_indices_of_any_integer_type(run: Callable[..., Any], dtype: str) -> None:
    @T.prim_func
    def main(Y: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            for i in T.Parallel(6):
                T.atomic_add(Y[T.cast(i, dtype)], i)

    y = torch.zeros(4, dtype=torch.int32)
    run(main, y, out_idx=())
    assert y.tolist() == [0, 1, 2, 3]


def test_atomic_loads_and_stores(run: Callable[..., Any]) -> None:
    """Exchanges of floats too, in the order that C++ has for reads and for writes."""

    @T.prim_func
    def program(X: T.Tensor((6, 10), "float32"), Y: T.Tensor((6, 10), "float32")):
        with T.Kernel(2, threads=32) as bx:
            for i, j in T.Parallel(3, 10):
                T.atomic_store(Y[bx * 3 + i, j], T.atomic_load(X[bx * 3 + i, j], "acquire") + 1, "release")

    x = torch.randn(6, 10)
    assert torch.equal(run(program, x), x + 1)


@pytest.mark.parametrize(("reading", "order"), [(True, "release"), (True, "acq_rel"), (False, "acquire"), (False, "x")])
def test_memory_orders_without_meaning_are_refused(reading: bool, order: str) -> None:
    @T.prim_func
    def program(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                if reading:
                    Y[i] = T.atomic_load(X[i], order)
                else:
                    T.atomic_store(Y[i], X[i], memory_order=order)

    with pytest.raises(TileError, match=f"no memory order '{order}'; there are relaxed"):
        tiledsl.compile(program, out_idx=[1], target="interpret")


def test_conversions_say_how_they_round(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float8_e4m3fn")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = T.cast(X[i], "float8_e4m3fn", round="rn", sat=True)

    x = torch.randn(64) * 400
    assert torch.equal(run(program, x).float(), x.clamp(-448, 448).to(torch.float8_e4m3fn).float())
    for options, message in (
        ({"round": "rs", "rbits": 1}, "round='rs': there are rp, rm, rn, rz, ru, rd, and no random bits"),
        ({"sat": False}, "saturates at its largest value"),
        ({"sat": "no"}, "sat is str 'no'"),
    ):
        with pytest.raises(TileError, match=message):
            T.cast(1.0, "float8_e4m3fn", **options)


def test_run_once(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            T.copy(X, Y)

    kernel = tiledsl.compile(program, out_idx=[1], target="interpret")
    assert kernel.run_once().shape == (16,)
    assert kernel.run_once(lambda *inputs: len(inputs)) == 1


@pytest.mark.parametrize(("old", "new", "shape"), [("float32", "float16", (9, 10)), ("uint8", "int32", (3, 4))])
def test_a_global_view_of_another_width(run: Callable[..., Any], old: str, new: str, shape: tuple[int, int]) -> None:
    """The rows of the tensor are odd: a view of the last dimension alone would not do."""
    have, want = getattr(torch, old), getattr(torch, new)
    size = shape[0] * shape[1] * want.itemsize // have.itemsize // 3

    @T.prim_func
    def program(X: T.Tensor((size, 3), old), Y: T.Tensor(shape, new)):
        with T.Kernel(1, threads=32):
            seen = T.view(X, shape, dtype=new)
            for i, j in T.Parallel(*shape):
                Y[i, j] = seen[i, j]

    x = torch.randint(0, 120, (size, 3)).to(have)
    assert torch.equal(run(program, x), x.flatten().view(want).view(shape))
    source = tiledsl.compile(program, out_idx=[1], target="cuda:90").get_kernel_source()
    assert f"X.view(-1).view(torch.{new})" in source


def test_a_view_of_another_size_is_refused() -> None:
    @T.prim_func
    def program(X: T.Tensor((8, 4), "float32"), Y: T.Tensor((8, 4), "float16")):
        with T.Kernel(1, threads=32):
            T.copy(T.view(X, (8, 4), dtype="float16"), Y)

    with pytest.raises(TileError, match=r"X has 32 elements of 32 bits, the shape \(8, 4\) has 32 of 16 bits"):
        tiledsl.compile(program, out_idx=[1], target="interpret")


def test_halves_round_to_the_even_integer(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((2, 8), "float32"), Y: T.Tensor((2, 8), "float32"), Z: T.Tensor((2, 8), "float32")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(2, 8):
                Y[i, j] = T.round(X[i, j])
                Z[i, j] = T.round(X[i, j], "ties-away-from-zero")

    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.4, -7.6], [1, -3, 3.5, 4.5, 1e9, -1e9, 0.0, 8.25]])
    y, z = run(program, x, out_idx=(1, 2))
    assert torch.equal(y, x.round())
    assert torch.equal(z, torch.sign(x) * (x.abs() + 0.5).floor())
    assert [T.round(number) for number in (0.5, 1.5, -2.5)] == [0, 2, -2]
    assert T.round(2.5, rounding_mode="ties-away-from-zero") == 3
    with pytest.raises(TileError, match="rounding_mode is str 'up'; there are ties-to-even, ties-away-from-zero"):
        T.round(2.5, "up")


def test_a_slice_of_unknown_extent_is_filled(run: Callable[..., Any]) -> None:
    """Of a tensor of unknown size, between bounds that are read at run time; more than one chunk."""
    rows, columns = T.dynamic("rows, columns")

    @T.prim_func
    def program(
        X: T.Tensor((rows, columns), "int32"), L: T.Tensor((rows,), "int32"), M: T.Tensor((columns,), "float16")
    ):
        with T.Kernel(rows, threads=64) as row:
            first = T.alloc_var("int32", init=3)
            last = T.alloc_var("int32")
            last = L[row]
            T.fill(X[row, first:last], -1)
            T.fill(M[last:], 2)
            T.clear(X[first:last, 0:2])

    x, lengths = torch.zeros((4, 700), dtype=torch.int32), torch.tensor([9, 690, 2000, 1], dtype=torch.int32)
    marks = torch.zeros(700, dtype=torch.float16)
    run(program, x, lengths, marks, out_idx=None)
    expected = torch.zeros_like(x)
    for row, last in enumerate(lengths.tolist()):
        expected[row, 3:last] = -1
    assert torch.equal(x, expected)
    assert torch.equal(marks, (torch.arange(700) >= 1).half() * 2)


def test_a_program_that_only_prints(run: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    @T.prim_func
    def program(X: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            T.print(X[2], msg="third")

    run(program, torch.tensor([1.0, 2.0, 31.5, 4.0]), out_idx=None)
    printed = capsys.readouterr().out
    assert "third" in printed and "31.5" in printed


def test_negative_expressions_count_from_the_end(run: Callable[..., Any]) -> None:
    """As negative numbers do: in global memory and on chip, read and written. What may be either stays outside."""
    rows = T.dynamic("rows")

    @T.prim_func
    def program(
        X: T.Tensor((rows, 16), "float32"), Last: T.Tensor((2, 4), "float32"), Y: T.Tensor((16,), "float32"),
        Before: T.Tensor((16,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((16,), "float32")
            for i in T.Parallel(16):
                x[-i - 1] = X[0, i]
            T.copy(x, Y)
            for i in T.serial(2):
                for j in T.Parallel(4):
                    Last[i, -1 - j] = X[-2 + i, j - 4]
            for i in T.Parallel(16):
                Before[i] = X[0, i - 3]

    x = torch.randn(5, 16)
    last, y, before = run(program, x, out_idx=(1, 2, 3))
    assert torch.equal(y, x[0].flip(0))
    assert torch.equal(last, x[-2:, -4:].flip(1))
    assert torch.equal(before, torch.cat([torch.zeros(3), x[0, :13]]))


def test_a_negative_term_counts_from_the_end(run: Callable[..., Any]) -> None:
    @T.prim_func
    def program(X: T.Tensor((5,), "float32"), Y: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.serial(2):
                Y[i] = X[-2 + i]

    x = torch.randn(5)
    assert torch.equal(run(program, x, out_idx=(1,)), x[-2:])


@tiledsl.jit(target="interpret")
def scaled_with_layout(A, B, layout):  # type: ignore[no-untyped-def]
    n = T.const("n")
    A: T.Tensor((n,), "float32")
    B: T.Tensor((n,), "float32")
    with T.Kernel(1, threads=32):
        for i in T.Parallel(n, loop_layout=layout):
            B[i] = A[i] * 2


def test_a_layout_is_an_argument() -> None:
    a, b = torch.randn(64), torch.empty(64)
    layout = T.Fragment((64,), forward_fn=lambda i: (i % 32, i // 32))
    scaled_with_layout(a, b, layout)
    assert torch.equal(b, a * 2)
    assert scaled_with_layout.compile(n=32, layout=layout).params[0].shape == (32,)


def test_an_assumption_before_the_kernel(run: Callable[..., Any]) -> None:
    n = T.dynamic("n")

    @T.prim_func
    def program(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        T.assume(n % 2 == 0)
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            for i in T.Parallel(32):
                Y[bx * 32 + i] = X[bx * 32 + i] + 1

    x = torch.randn(70)
    assert torch.equal(run(program, x), x + 1)


def test_sizes_for_a_profiler() -> None:
    m = T.dynamic("m")

    @T.prim_func
    def program(X: T.Tensor((m, 8), "float32"), Y: T.Tensor((m, 8), "float32")):
        with T.Kernel(m, threads=32) as row:
            for j in T.Parallel(8):
                Y[row, j] = X[row, j]

    profiler = tiledsl.compile(program, out_idx=[1], target="interpret").get_profiler()
    assert [tuple(each.shape) for each in profiler.get_inputs({"m": 5})] == [(5, 8)]
    seen: list[tuple[int, ...]] = []
    profiler.do_bench(lambda x: seen.append(tuple(x.shape)), dynamic_symbolic_constraints={"m": 3}, warmup=1, rep=1)
    assert set(seen) == {(3, 8)}
    with pytest.raises(TileError, match="no size for parameter 'X' of shape"):
        profiler.do_bench(dynamic_symbolic_constraints={"n": 3})


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("size", [8, 6])
def test_a_picked_zero_keeps_its_sign(run: Any, dtype: str, size: int) -> None:
    @T.prim_func
    def picked(A: T.Tensor((size, size), dtype), K: T.Tensor((1,), "int32"), B: T.Tensor((2, size), dtype)):
        with T.Kernel(1, threads=size):
            tile, turned = T.alloc_shared((size, size), dtype), T.alloc_shared((size, size), dtype)
            mine, tx = T.alloc_local((size,), dtype), T.get_thread_binding()
            T.copy(A, tile)
            for j in T.Parallel(size):
                B[0, j] = tile[K[0], j]
            for j in T.serial(size):
                mine[j] = A[tx, j]
            for j in T.unroll(size):
                turned[(j + tx) % size, tx] = mine[(j + tx) % size]
            T.sync_threads()
            B[1, tx] = turned[K[0], tx]

    a = torch.where(torch.rand(size, size) < 0.5, -0.0, 1.0).to(getattr(torch, dtype))
    found = run(picked, a, torch.tensor([3], dtype=torch.int32))
    wanted = torch.stack([a[3], a[:, 3]])
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    assert torch.equal(found.view(kind), wanted.view(kind))


@pytest.mark.parametrize("alone", [True, False])
def test_a_choice_of_a_variable_is_its_value(run: Any, alone: bool) -> None:
    """`T.Select` with a Python condition gives a variable as it is; the name on the left stays the variable it was."""

    @T.macro
    def largest(A: Any, total: T.Ref):
        first, second = T.alloc_var("float32", init=-1.0), T.alloc_var("float32", init=-1.0)
        chosen = T.alloc_var("float32", init=-5.0)
        if T.get_thread_binding() < 4:
            first = A[T.get_thread_binding()]
            second = first * 10
            chosen = T.Select(alone, first, first + second)
            first = 100.0
        total = chosen  # noqa: F841  (a T.Ref)

    @T.prim_func
    def program(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_var("float32")
            largest(A, total)
            B[T.get_thread_binding()] = total

    a = torch.randn(32)
    wanted = torch.full((32,), -5.0)
    wanted[:4] = a[:4] if alone else a[:4] + a[:4] * 10
    torch.testing.assert_close(run(program, a), wanted)
