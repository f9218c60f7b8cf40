"""What is emitted compiles for each GPU target, without a GPU."""

from __future__ import annotations

import pytest

import tiledsl
import tiledsl.language as T


def softmax(rows: int, columns: int):
    @T.prim_func
    def softmax(X: T.Tensor((rows, columns), "bfloat16"), Y: T.Tensor((rows, columns), "bfloat16")):
        with T.Kernel(rows, threads=128) as row:
            x = T.alloc_fragment((1, columns), "float32")
            highest = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(X[row, 0], x)
            for j in T.Parallel(columns):
                x[0, j] = T.if_then_else(j < columns, x[0, j], -T.infinity("float32"))
            T.reduce_max(x, highest, dim=1)
            for j in T.Parallel(columns):
                x[0, j] = T.exp(x[0, j] - highest[0])
            T.reduce_sum(x, total, dim=1)
            for j in T.Parallel(columns):
                x[0, j] = x[0, j] / total[0]
            T.copy(x, Y[row, 0])

    return softmax


def gemm(dtype: str, accumulate: str, M: int = 100, N: int = 128, K: int = 192):
    @T.prim_func
    def gemm(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), accumulate)):
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            a = T.alloc_shared((64, 64), dtype)
            b = T.alloc_shared((64, 64), dtype)
            c = T.alloc_fragment((64, 64), accumulate)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
                T.copy(A[by * 64, k * 64], a)
                T.copy(B[bx * 64, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * 64, bx * 64])

    return gemm


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100", "hip:gfx942"])
@pytest.mark.parametrize(
    "program",
    [softmax(8, 229), gemm("float16", "float32"), gemm("int8", "int32")],
    ids=["softmax", "gemm", "gemm_int8"],
)
def test_compiles(program: T.PrimFunc, target: str) -> None:
    kernel = tiledsl.compile(program, out_idx=-1, target=target)
    assembly = kernel.asm["amdgcn" if target.startswith("hip") else "ptx"]
    assert f"{program.name}_kernel" in assembly
    fewer = program.name == "softmax" and kernel.target.kind == "cuda"  # 512 bytes of a tile are for one warp
    assert kernel.resources.num_warps == (2 if fewer else 128 // kernel.target.warp_size)


@pytest.mark.parametrize("target", ["cuda:90", "cuda:100"])
def test_fp8_compiles_where_it_exists(target: str) -> None:
    kernel = tiledsl.compile(gemm("float8_e4m3fn", "float32"), out_idx=-1, target=target)
    assert any(name in kernel.asm["ptx"] for name in ("e4m3", "f8f6f4"))


def test_masks_only_where_shapes_need_them() -> None:
    options = {"out_idx": -1, "target": "cuda:90", "pass_configs": {"select-access.mode": "pointer"}}
    full = tiledsl.compile(gemm("float16", "float32", 128, 128, 192), **options).source
    ragged = tiledsl.compile(gemm("float16", "float32", 100, 128, 192), **options).source
    assert "mask" not in full
    # M is ragged: the loads of A and the store of C are masked, the loads of B are not.
    loads = [line for line in ragged.splitlines() if "tl.load(A" in line or "tl.load(B" in line]
    assert ["mask" in line for line in loads] == [True, False]
    assert all("mask" in line for line in ragged.splitlines() if "tl.store(C" in line)


def test_offsets_past_two_to_the_31() -> None:
    @T.prim_func
    def last_rows(X: T.Tensor((70000, 40000), "int8"), Y: T.Tensor((70000, 40000), "int8")):
        with T.Kernel(T.ceildiv(70000, 16), threads=128) as bx:
            tile = T.alloc_shared((16, 128), "int8")
            T.copy(X[bx * 16, 0], tile)
            T.copy(tile, Y[bx * 16, 0])

    kernel = tiledsl.compile(last_rows, out_idx=-1, target="cuda:90")
    moved = [line for line in kernel.source.splitlines() if "40000" in line and "arange" not in line]
    assert moved and "int64" in kernel.source, kernel.source
    assert "mul.wide" in kernel.asm["ptx"] or "mul.lo.s64" in kernel.asm["ptx"] or "mad.wide" in kernel.asm["ptx"]
