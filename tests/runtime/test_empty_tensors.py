"""Calls with tensors that have no elements, as a server launches that has no tokens at the moment."""

from __future__ import annotations

import types
from collections import namedtuple
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.runtime.fake_gpu import Driver, Jitted, tensor
from tiledsl.errors import TileError
from tiledsl.runtime.launch_trace import Untraceable, trace

M, N, K = T.dynamic("M, N, K")


@T.prim_func
def double(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(M, 16), T.ceildiv(N, 16)) as (bx, by):
        for i, j in T.Parallel(16, 16):
            B[bx * 16 + i, by * 16 + j] = A[bx * 16 + i, by * 16 + j] * 2.0


@T.prim_func
def first(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(M) as b:
        B[b] = A[b, 0] + 1.0


@T.macro
def sum_rows(A, B, b, columns):
    """B's 16 sums of block b start with 4."""
    tile = T.alloc_fragment((16, 16), "float32")
    sums, tiles = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16, 16), "float32")
    T.fill(tiles, 0.25)
    for k in T.Pipelined(T.ceildiv(columns, 16)):
        T.copy(A[b * 16, k * 16], tile)
        for i, j in T.Parallel(16, 16):
            tiles[i, j] += tile[i, j]
    T.reduce_sum(tiles, sums, dim=1)
    T.copy(sums, B[b * 16])


@T.prim_func
def summed(A: T.Tensor((M, N), "float32"), B: T.Tensor((M,), "float32")):
    with T.Kernel(T.ceildiv(M, 16)) as b:
        sum_rows(A, B, b, N)


@T.prim_func
def product(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")):
    with T.Kernel(T.ceildiv(M, 32), T.ceildiv(N, 32)) as (bx, by):
        a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[bx * 32, k * 32], a)
            T.copy(B[k * 32, by * 32], b)
            T.gemm(a, b, c)
        T.copy(c, C[bx * 32, by * 32])


@T.prim_func
def top(A: T.Tensor((M, 32), "float32"), B: T.Tensor((16, 32), "float32"), C: T.Tensor((M, 32), "float32")):
    with T.Kernel(2) as b:
        tile = T.alloc_shared((16, 16), "float32")
        T.copy(A[0, b * 16], tile)
        T.copy(tile, B[0, b * 16])
        T.copy(tile, C[0, b * 16])


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def compiled(program: Any, **options: Any) -> Any:
    return tiledsl.compile(program, out_idx=[-1], target="interpret", pass_configs=options)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_nothing_is_launched_over_an_empty_grid(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled(double)
    monkeypatch.setattr(kernel.loaded, "double_kernel", None)
    assert kernel(ones(*shape)).shape == shape
    given = ones(*shape)
    assert kernel(ones(*shape), given) is given
    assert kernel.bind(ones(*shape))().shape == shape


@pytest.mark.parametrize("mode", ["pointer", "tma"])
def test_reductions_of_no_elements_are_what_they_start_with(mode: str) -> None:
    options = {"select-access.mode": mode}
    assert compiled(summed, **options)(ones(5, 0)).tolist() == [4.0] * 5
    assert compiled(summed, **options)(ones(0, 5)).shape == (0,)
    kernel = compiled(product, **options)
    half = torch.float16
    assert torch.equal(kernel(ones(3, 0, dtype=half), ones(0, 5, dtype=half)), torch.zeros(3, 5))
    assert kernel(ones(0, 4, dtype=half), ones(4, 5, dtype=half)).shape == (0, 5)
    assert kernel(ones(3, 4, dtype=half), ones(4, 0, dtype=half)).shape == (3, 0)
    assert torch.equal(kernel(ones(3, 4, dtype=half), ones(4, 5, dtype=half)), torch.full((3, 5), 4.0))


def test_what_is_read_from_an_empty_tensor_lies_outside_of_it() -> None:
    kernel = compiled(first)
    assert "mask=N > 0" in kernel.source
    assert kernel(ones(4, 0)).tolist() == [1.0] * 4


@pytest.mark.parametrize("mode", ["pointer", "tma"])
def test_blocks_of_an_empty_tensor(mode: str) -> None:
    kernel = tiledsl.compile(top, target="interpret", pass_configs={"select-access.mode": mode})
    assert ("_descriptor(A, " in kernel.source, "_descriptor(C, " in kernel.source) == (mode == "tma",) * 2
    made = ones(16, 32)
    kernel(ones(0, 32), made, ones(0, 32))
    assert torch.equal(made, torch.zeros(16, 32))
    kernel(ones(1, 32), made, written := torch.zeros(1, 32))
    assert made.sum() == written.sum() == 32


def test_no_plan_describes_an_empty_tensor() -> None:
    maker = namedtuple("TensorDescriptor", "base, shape, strides, block")
    module = types.ModuleType("pretended")
    text = """
def host(x, n):
    described = _descriptor(x, (n, 32), (32, 1), (16, 16))
    if n + 1 > 0:
        kernel[(n,)](described)
    if n + 2 > 2:
        kernel[(n,)](described)"""
    module.__dict__.update(_descriptor=None, TensorDescriptor=maker, kernel=Jitted(Driver(), "kernel", "3.6"))
    exec(text, module.__dict__)
    with pytest.raises(Untraceable, match="a kernel takes the descriptor of an empty tensor"):
        trace(module, "host", ["x", "n"], (tensor(0, 32), 0))
    exec(text.replace("n + 1 > 0", "n + 1 > 1"), module.__dict__)
    assert trace(module, "host", ["x", "n"], (tensor(0, 32), 0)).launches == []


def test_a_mask_goes_where_the_kernel_does_not_run_without_the_size() -> None:
    @T.prim_func
    def of_rows(A: T.Tensor((M,), "float32"), B: T.Tensor((M,), "float32")):
        with T.Kernel(M) as b:
            B[b] = A[0]

    assert "mask" not in compiled(of_rows).source


@pytest.mark.parametrize("dynamic", [True, False])
def test_under_torch_compile(dynamic: bool) -> None:
    kernel = compiled(summed)
    function = torch.compile(lambda x: kernel(x) + 1, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert [function(ones(*each)).tolist() for each in ((2, 3), (0, 3), (2, 0))] == [[8.0] * 2, [], [5.0] * 2]


def test_a_batch_of_nothing_under_vmap() -> None:
    assert torch.vmap(compiled(summed))(ones(0, 3, 4)).shape == (0, 3)
    assert torch.vmap(compiled(summed), in_dims=2)(ones(3, 4, 0)).shape == (0, 3)
    assert torch.vmap(compiled(summed))(ones(2, 3, 0)).tolist() == [[4.0] * 3] * 2
    kernel = tiledsl.compile(summed, target="interpret")
    assert torch.vmap(kernel, out_dims=None)(ones(0, 3, 4), ones(0, 3)) is None


def test_a_size_below_what_it_is_computed_from() -> None:
    @T.prim_func
    def ends(O: T.Tensor((2 * M + 1,), "int32"), B: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            B[0] = O[0] + M

    kernel = tiledsl.compile(ends, target="interpret")
    kernel(torch.tensor([7], dtype=torch.int32), made := torch.zeros(4, dtype=torch.int32))
    assert made.tolist() == [7, 0, 0, 0]
    with pytest.raises(TileError) as caught:
        kernel(torch.zeros(0, dtype=torch.int32), made)
    assert caught.value.message == "ends: O.shape[0] is 0, but it is (2 * M) + 1, at least 1"


@tiledsl.jit(target="interpret")
def eager(A):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B = T.empty((M,), "float32")
    with T.Kernel(T.ceildiv(M, 16)) as b:
        sum_rows(A, B, b, N)
    return B


@pytest.mark.parametrize(("rows", "columns"), [(0, 5), (5, 0), (0, 0), (2, 3)])
def test_sizes_that_are_compiled_for(rows: int, columns: int) -> None:
    assert eager(ones(rows, columns)).tolist() == [4.0 + columns] * rows
    for target in ("cuda:80", "cuda:90", "hip:gfx942"):
        source = tiledsl.jit(eager.function, target=target).compile(M=rows, N=columns).source
        assert ("# eager_kernel has an empty grid" in source) == (rows == 0)


def test_a_constant_index_into_an_empty_tensor_is_refused() -> None:
    @T.prim_func
    def program(A: T.Tensor((4, 0), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(4) as b:
            B[b] = A[b, 0]

    with pytest.raises(TileError, match="index 0 is outside dimension 1 of A, which has 0"):
        tiledsl.compile(program, target="interpret")


@pytest.mark.parametrize("grid", [(0,), (3, 0)])
def test_a_grid_of_nothing(grid: tuple[int, ...]) -> None:
    @T.prim_func
    def program(B: T.Tensor((4,), "float32")):
        with T.Kernel(*grid):
            B[0] = 2.0

    tiledsl.compile(program, target="interpret")(made := ones(4))
    assert made.tolist() == [1.0] * 4


def test_nothing_is_tuned_for_an_empty_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    @tiledsl.autotune(configs=[{"block": 8}, {"block": 16}], cache=False)
    @tiledsl.jit(target="interpret")
    def tripled(A, block=32):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), "float32")
        B = T.empty((M, N), "float32")
        with T.Kernel(T.ceildiv(M, block)) as b:
            for i, j in T.Parallel(block, 4):
                B[b * block + i, j] = A[b * block + i, j] * 3.0
        return B

    monkeypatch.setattr("tiledsl.autotuner.decorator.tune", None)
    for _ in range(2):
        assert tripled(ones(0, 4)).shape == (0, 4)
    result = tripled.compile(ones(0, 4))
    assert result.config == {"block": 8} and result.latency is None
    with pytest.raises(TypeError, match="NoneType"):
        tripled(ones(1, 4))
