"""Names and forms that programs written for TileLang use now and then."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError

F, I = "float32", "int32"


@pytest.mark.parametrize(("factor", "plus"), [(4, 0), (3, 1), (2, -3), (1, 2)])
def test_a_dynamic_dimension_that_only_arithmetic_tells(factor: int, plus: int) -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n * factor + plus,), I), B: T.Tensor((n * 4 + 8, 2), I)):
        with T.Kernel(n) as i:
            A[i] = n
            B[i, 0] = i

    kernel = tiledsl.compile(main, target="interpret")
    a, b = torch.zeros(5 * factor + plus, dtype=torch.int32), torch.zeros(28, 2, dtype=torch.int32)
    kernel(a, b)
    assert a[:5].tolist() == [5] * min(5, len(a)) and b[:5, 0].tolist() == [0, 1, 2, 3, 4] and not b[5:].any()
    if factor > 1:
        with pytest.raises(ValueError, match=rf"A.shape\[0\].* is \d+, no multiple of {factor}"):
            kernel(a.new_zeros(len(a) + 1), b)


def test_a_dimension_by_itself_is_preferred() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n * 2,), I), B: T.Tensor((n,), I)):
        with T.Kernel(n) as i:
            B[i] = A[2 * i + 1]

    b = torch.zeros(3, dtype=torch.int32)
    tiledsl.compile(main, target="interpret")(torch.arange(6, dtype=torch.int32), b)
    assert b.tolist() == [1, 3, 5]


def test_constants_that_are_strides() -> None:
    @tiledsl.jit(target="interpret")
    def copy(A, B):
        M, N, rows, columns = T.const("M, N, rows, columns")
        K = T.dynamic("K")
        A: T.StridedTensor[[M, N], [rows, columns], T.float32]
        B: T.StridedTensor((M, N), (K, 1), T.float32)
        with T.Kernel(M, threads=32) as row:
            for column in T.Parallel(N):
                B[row, column] = A[row, column]

    a, b = torch.randn(5, 2, 6, 2), torch.zeros(5, 8)
    copy(a[:, 0, :, 1], b[:, :6])
    assert torch.equal(b[:, :6], a[:, 0, :, 1]) and not b[:, 6:].any()
    copy(a[:, 0, :, 0].contiguous(), b[:, 1:7])  # other strides are another program, another K is not
    assert torch.equal(b[:, 1:7], a[:, 0, :, 0])
    assert len(copy._kernels) == 2


def test_sizes_of_an_eager_function_from_a_declaration() -> None:
    @tiledsl.jit(target="interpret")
    def double(A):
        N = T.const("N")
        A: T.Tensor[[N], T.float32]
        B = T.empty((N,), T.float32)
        with T.Kernel(1):
            for i in T.Parallel(N):
                B[i] = A[i] * 2
        return B

    program = double.get_tir(T.Tensor((16,), F))
    assert repr(program) == "<tile program double>"
    assert [each.name for each in program.params] == ["A", "B"] and "tile.kernel" in program.script()
    assert program.buffer_map[program.params[0]].shape == (16,)
    a = torch.randn(16)
    assert torch.equal(tiledsl.compile(program, target="interpret")(a), a * 2)
    with pytest.raises(TileError, match="out_idx belongs to the lazy style"):
        tiledsl.compile(program, out_idx=[0], target="interpret")


@T.macro
def doubled(A, B):
    M, N = A.shape[0], B.shape[0]
    assert M == N, f"{M} and {N}"
    with T.Kernel(A.shape[0]):
        for i in T.Parallel(A.shape[0]):
            B[i] = A[i] * 2


def test_an_eager_function_that_only_its_parameters_tell() -> None:
    @tiledsl.jit(target="interpret")
    def double(A: T.Tensor((16,), F), B: T.Tensor((16,), F)):
        doubled(A, B)

    @tiledsl.jit(target="interpret")
    def dynamic(A, B):
        n = T.dynamic("n")
        A: T.Tensor((n,), F)
        B: T.Tensor((n,), F)
        doubled(A, B)

    a = torch.randn(16)
    for function in (double, dynamic):
        b = torch.zeros(16)
        function(a, b)
        assert torch.equal(b, a * 2)


def test_align_up(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((4,), I), B: T.Tensor((4,), I)):
        with T.Kernel(1):
            for i in T.Parallel(4):
                B[i] = T.align_up(A[i], 32) if T.likely(A[i] < 1000) else -1

    assert run(main, torch.tensor([128, 1, -1, 1000], dtype=torch.int32)).tolist() == [128, 32, 0, -1]
    assert T.align_up(33, 32) == 64


def test_variables_without_a_value(run: Any) -> None:
    n = T.int32()

    @T.prim_func
    def main(A: T.Tensor((n, 2), I)):
        with T.Kernel(n) as i:
            twice = T.int32()
            T.let(twice, i * 2)
            A[i, 0] = twice
            twice = twice + 1
            A[i, 1] = twice

    a = torch.zeros(3, 2, dtype=torch.int32)
    run(main, a, out_idx=())
    assert a.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert isinstance(n, T.Var) and isinstance(T.dynamic("m"), T.Var) and not isinstance(4, T.Var)
    with pytest.raises(TileError, match="takes one value"):
        T.float16(1, 2)


@T.macro
def increase(x: T.Var, by):
    x += by


def test_parameters_by_reference(run: Any) -> None:
    @T.prim_func
    def main(A: T.Tensor((2,), I)):
        with T.Kernel(1):
            x = T.alloc_var(I, 3)
            increase(x, 4)
            A[0] = x
            increase(A[1], 5)

    a = torch.tensor([0, 1], dtype=torch.int32)
    run(main, a, out_idx=())
    assert a.tolist() == [7, 6]

    @T.prim_func
    def wrong(A: T.Tensor((2,), I)):
        with T.Kernel(1):
            x = 1
            increase(x, 4)
            A[0] = x

    with pytest.raises(TileError, match="x is passed by reference, so it is a variable or a place, not int 1"):
        run(wrong, a, out_idx=())


def test_a_program_s_text_and_parameters() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n, 8), "float16"), scale: T.float32, B: T.Tensor((n, 8), I)):
        with T.Kernel(n) as i:
            for j in T.Parallel(8):
                B[i, j] = A[i, j] * scale

    assert "tile.parallel" in main.script()
    assert [(each.name, each.dtype) for each in main.params] == [("A", "float16"), ("scale", "float32"), ("B", "int32")]
    buffers = {parameter.name: buffer for parameter, buffer in main.buffer_map.items()}
    assert list(buffers) == ["A", "B"] and buffers["A"].dtype == "float16" and buffers["A"].shape[1] == 8
    assert main.buffer_map.get(main.params[1]) is None


@pytest.mark.parametrize("name", ["__exp", "__log", "__log2", "__sin", "__cos", "__tan", "__exp10", "__log10"])
def test_fast_functions(run: Any, name: str) -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), F), B: T.Tensor((8,), F)):
        with T.Kernel(1):
            for i in T.Parallel(8):
                B[i] = getattr(T, name)(A[i])

    a = torch.rand(8) + 0.5
    want = 10**a if name == "__exp10" else getattr(torch, name[2:])(a)
    torch.testing.assert_close(run(main, a), want)


def test_strings_and_names_of_types() -> None:
    assert T.long == T.int64 and T.short == T.int16 and isinstance(T, types.ModuleType)


@pytest.mark.parametrize("size", [0, 1, 13, 64, 200])
def test_parallel_extents_known_at_run_time(run: Any, size: int) -> None:
    """Bounded by an expression, so one tile with a mask; `continue` and names of the loop work as in any other."""

    @T.prim_func
    def main(A: T.Tensor((64, 6), F), B: T.Tensor((64, 6), F), S: T.Tensor((64,), F), n: T.int32):
        with T.Kernel(1):
            s = T.alloc_fragment((64,), F)
            T.fill(s, -1)
            rows = T.min(n, 64)
            for i, j in T.Parallel(rows, T.max(n % 6, 1)):
                if i % 2 == 1:
                    continue
                B[i, j] = A[i, j] + i
            for i in T.Parallel(rows):
                s[i] = A[i, 0]
            T.copy(s, S)

    a, b, s = torch.randn(64, 6), torch.zeros(64, 6), torch.zeros(64)
    run(main, a, b, s, size, out_idx=())
    rows, columns = min(size, 64), max(size % 6, 1)
    want = torch.zeros(64, 6)
    want[:rows:2, :columns] = a[:rows:2, :columns] + torch.arange(0, rows, 2)[:, None]
    assert torch.equal(b, want)
    assert torch.equal(s[:rows], a[:rows, 0]) and bool((s[rows:] == -1).all())


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (70, 130), (1, 5000)])
def test_parallel_extents_without_a_bound(rows: int, columns: int) -> None:
    """Tile after tile, as many as it takes."""
    m, n = T.dynamic("m, n")

    @T.prim_func
    def main(A: T.Tensor((m, n), F), B: T.Tensor((n, m), F), C: T.Tensor((n,), F)):
        with T.Kernel(1):
            row = T.alloc_fragment((16,), F)
            T.clear(row)
            for i, j in T.Parallel(m, n):
                B[j, i] = A[i, j] * 2
            for j, k in T.Parallel(n, 16):
                if k == 0:
                    C[j] = A[0, j] + row[k]

    a, b, c = torch.randn(rows, columns), torch.zeros(columns, rows), torch.zeros(columns)
    tiledsl.compile(main, target="interpret")(a, b, c)
    assert torch.equal(b, a.t() * 2) and torch.equal(c, a[0])


def test_a_star_import_leaves_python_usable(capsys: pytest.CaptureFixture[str]) -> None:
    """It hides print, max, all and the like, as TileLang's hides some; on Python's values they do what Python's do."""
    own: dict[str, Any] = {}
    exec("from tiledsl.language import *", own)
    assert own["print"] is T.print and own["max"]([3, 4]) == 4
    own["print"]("a", 1, sep="-", end=";")
    own["print"](2, msg="b")
    assert capsys.readouterr().out == "a-1;b 2\n"
    assert own["all"]([1, True]) and not own["all"]([True, False]) and own["all"](each for each in ())
    assert own["any"]({0, 2}) and not own["any"]([]) and not own["any"](False, 0)

    @T.prim_func
    def flags(A: T.Tensor((4,), I)):
        with T.Kernel(4, threads=32) as bx:
            if T.all([bx > 0, bx < 3]):
                A[bx] = 1
            if T.any(bx == 0, T.all(bx == 3)):
                A[bx] = 2

    result = torch.zeros(4, dtype=torch.int32)
    tiledsl.compile(flags, target="interpret")(result)
    assert result.tolist() == [2, 1, 1, 2]

    @T.prim_func
    def main(A: T.Tensor((4,), I)):
        with T.Kernel(1) as bx:
            T.print(bx, sep="-")
            A[0] = 1

    with pytest.raises(TileError, match=r"T\.print has no argument 'sep'; it has msg"):
        tiledsl.compile(main, target="interpret")


def test_dyn_takes_names() -> None:
    assert [str(each) for each in T.dyn["M", "N"]] == ["M", "N"] and str(T.dyn["K"]) == "K"
    with pytest.raises(TileError, match="a symbol needs a name, not int 3"):
        T.dyn[3]
