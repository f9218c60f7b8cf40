"""peel-loops by mode, on products and attention: which loops are divided, what they compute, and what is emitted."""

from __future__ import annotations

import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton

import tiledsl
import tiledsl.language as T
from benchmarks.programs.tilelang_style import one_loop_attention
from tests.codegen.test_block_modules import gemm as product
from tests.passes.test_block_programs import count, lowered
from tests.passes.test_peel_loops import PEEL, POINTERS, before_peeling, check, loops_of, masks_in, remarks
from tests.support.example_modules import load_example
from tests.support.programs import attention, check_pass, gemm, inputs_for
from tiledsl.dialects import tensor
from tiledsl.passes.peel_loops import MODES

# Modes


def modes_of(program: T.PrimFunc, target: str = "cuda:90", **options: Any) -> tuple[dict[str, str], list[str]]:
    """The source of each mode, and what "auto" remarks on."""
    kernels = {
        mode: tiledsl.compile(
            program, out_idx=-1, target=target, pass_configs={**POINTERS, "peel-loops.mode": mode, **options}
        )
        for mode in MODES
    }
    return {mode: kernel.source for mode, kernel in kernels.items()}, [*kernels["auto"].remarks]


def test_masks_that_compare_rows_with_columns_are_peeled_by_default() -> None:
    sources, remarks = modes_of(forward(4000, 64, 128, 64, 256))
    assert sources["auto"] == sources["causal"] == sources["all"] != sources["off"] and not remarks
    assert "mask=" in bodies(sources["off"])[0] and "mask=" not in bodies(sources["auto"])[0]
    plain = tiledsl.compile(forward(4000, 64, 128, 64, 256), out_idx=-1, target="cuda:90", pass_configs=POINTERS)
    assert plain.source == sources["auto"]


@pytest.mark.parametrize("target", ["cuda:80", "interpret"])
def test_targets_without_measurements_keep_their_loops(target: str) -> None:
    sources, remarks = modes_of(forward(4096, 64, 128, 64, 256), target)
    assert sources["auto"] == sources["off"] != sources["causal"] and not remarks


def test_bounds_alone_are_not_peeled_by_default() -> None:
    sources, remarks = modes_of(product(256, 256, 4100, 128, 128, 64))
    assert sources["auto"] == sources["causal"] == sources["off"] != sources["all"] and not remarks


@pytest.mark.parametrize(("iterations", "peeled"), [(3, False), (4, True)])
def test_loops_of_few_iterations_are_not_peeled_by_default(iterations: int, peeled: bool) -> None:
    text = """
@T.prim_func
def main(A: T.Tensor((256, 64), "float16"), B: T.Tensor((256, 64), "float16"), C: T.Tensor((256, 64), "float32")):
    with T.Kernel(4, threads=128) as bx:
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        s, c = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        T.copy(A[bx * 64, 0], a)
        T.clear(c)
        for k in T.Pipelined(ITERATIONS, num_stages=2):
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, s, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(64, 64):
                c[i, j] += T.if_then_else(bx * 64 + i >= k * 64 + j, s[i, j], 0)
        T.copy(c, C[bx * 64, 0])
"""
    func = tiledsl.parse(text.replace("ITERATIONS", str(iterations)))
    sources = {
        mode: tiledsl.compile(func, target="cuda:90", pass_configs={**POINTERS, "peel-loops.mode": mode}).source
        for mode in ("auto", "causal", "off")
    }
    assert sources["auto"] == sources["causal" if peeled else "off"] and sources["causal"] != sources["off"]


def test_narrow_windows_leave_no_tile_without_a_mask() -> None:
    root = before_peeling(seen("window", 128, 64, 32).func)
    assert ["a window leaves too few iterations" in each for each in remarks(root)] == [True]


@pytest.mark.parametrize(("block_N", "peeled"), [(32, False), (16, False), (8, True)])
def test_windows_are_peeled_by_default_for_four_tiles_without_masks(block_N: int, peeled: bool) -> None:
    """Of 73 keys that 16 rows see, 57 are seen by all of them."""
    program = seen("window", 256, 16, block_N)
    sources, remarks = modes_of(program)
    assert sources["causal"] == sources["all"] != sources["off"]
    assert sources["auto"] == sources["causal" if peeled else "off"]
    assert any("a window leaves too few iterations" in each for each in remarks) is not peeled


# Matrix products


@pytest.mark.parametrize(("depth", "loops"), [(1, 0), (16, 0), (17, 0), (40, 1), (43, 1), (64, 1)])
def test_ragged_depth(depth: int, loops: int) -> None:
    """What runs once is not a loop: the last tile, and the others where there is one."""
    found = check(gemm(37, 24, depth, 16, 16, 16))
    assert [masks_in(loop) for loop in found] == [4] * loops  # of rows and columns, the same in every iteration


def test_depth_known_at_run_time() -> None:
    func = gemm(bm=16, bn=16, bk=16, dynamic=True)
    for depth in (1, 16, 40, 48):
        main, rest = check(func, {"M": 20, "N": 24, "K": depth})
        assert (masks_in(main), masks_in(rest)) == (4, 6)
        assert (main.num_stages, rest.num_stages) == (2, 2)


@pytest.mark.parametrize("splits", [2, 3])
def test_parts_along_k(splits: int) -> None:
    func, options = gemm(37, 24, 100, 16, 16, 16), {"split-k.splits": splits}
    main, rest, _ = check(func, **options)
    assert masks_in(main) < masks_in(rest)
    assert remarks(before_peeling(func, options)) == []


@pytest.mark.parametrize("persistent", [0, 1])
@pytest.mark.parametrize("parts", [{}, {"split-k.splits": 3}, {"split-k.streams": 5}], ids=str)
@pytest.mark.parametrize("sizes", [(37, 24, 100), (16, 48, 43)], ids=str)
def test_whole_pipeline(sizes: tuple[int, int, int], parts: dict[str, int], persistent: int) -> None:
    func = gemm(*sizes, 16, 16, 16)
    options = {**POINTERS, **parts, "peel-loops.mode": "all", "map-grid.persistent": persistent}
    made, plain = (lowered(func, {**options, **more}, inputs_for(func, 0)) for more in ({}, {"peel-loops.mode": "off"}))
    assert count(made, tensor.DotOp) == 2 * count(plain, tensor.DotOp)
    assert not any("peel" in each for op in made.root.walk() for each in op.attributes.get("remarks", ()))


def test_block_copies_have_no_masks() -> None:
    root = before_peeling(gemm(64, 64, 104, 64, 64, 32, num_stages=3), {"select-access.mode": "tma"})
    assert ["no mask in it" in each for each in remarks(root)] == [True]


# Attention


@pytest.mark.parametrize("tiles", [(16, 16), (16, 32), (32, 16), (16, 12)], ids=str)
@pytest.mark.parametrize("length", [7, 40, 45, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(length: int, tiles: tuple[int, int], causal: bool) -> None:
    loops = check(attention(length, 16, *tiles, causal=causal))
    if length > 32 and causal:
        main, rest = loops
        assert masks_in(main) < masks_in(rest)
        assert masks_in(main) == (2 if tiles[1] == 12 else 0)  # 12 rows are padded to 16


def seen(kind: str, length: int, block_M: int, block_N: int) -> T.PrimFunc:
    """Row sums of a masked product of Q and K: the masks of attention, written in several ways."""
    window = 72

    @T.prim_func
    def seen(
        Q: T.Tensor((length, 16), "float16"), K: T.Tensor((length, 16), "float16"), O: T.Tensor((length,), "float32")
    ):
        with T.Kernel(T.ceildiv(length, block_M), threads=128) as bx:
            q = T.alloc_shared((block_M, 16), "float16")
            k = T.alloc_shared((block_N, 16), "float16")
            scores = T.alloc_fragment((block_M, block_N), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[bx * block_M, 0], q)
            T.clear(total)
            first = T.max(0, bx * block_M - window) // block_N if kind == "window" else 0
            for tile in T.Pipelined(first, T.ceildiv(length, block_N), num_stages=2):
                T.copy(K[tile * block_N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    row, column = bx * block_M + i, tile * block_N + j
                    if kind == "window":
                        inside = T.And(column > row - window, row >= column)
                        scores[i, j] = T.if_then_else(inside, scores[i, j], 0)
                    elif kind == "hidden":
                        scores[i, j] = T.if_then_else(row < column, 0, scores[i, j])
                    elif kind == "either":
                        scores[i, j] = T.if_then_else(T.Or(row < column, row >= column + window), 0, scores[i, j])
                    elif kind == "branch":
                        if (tile + 1) * block_N > bx * block_M:
                            scores[i, j] = T.if_then_else(row >= column, scores[i, j], 0)
                    elif kind == "outside":
                        scores[i, j] = T.if_then_else(column < row, 0, scores[i, j])
                T.reduce_sum(scores, total, dim=1, clear=False)
            T.copy(total, O[bx * block_M])

    return seen


@pytest.mark.parametrize("tiles", [(16, 16), (32, 16), (16, 32)], ids=str)
@pytest.mark.parametrize("length", [16, 37, 128])
@pytest.mark.parametrize(
    ("kind", "masked"),
    [("hidden", "01"), ("window", "101"), ("either", "101"), ("branch", "01"), ("outside", "10")],
)
def test_masks(kind: str, masked: str, length: int, tiles: tuple[int, int]) -> None:
    loops = check(seen(kind, length, *tiles).func)
    if length == 128:
        assert "".join(str(int(masks_in(loop) > 0)) for loop in loops) == masked


def of_lengths(kind: str) -> T.PrimFunc:
    """Sums of what each row of a product may see, where that depends on a number in memory, or on dynamic sizes."""
    queries, keys = T.dynamic("queries, keys")

    @T.prim_func
    def of_lengths(
        Q: T.Tensor((queries, 16), "float16"),
        K: T.Tensor((keys, 16), "float16"),
        lengths: T.Tensor((1,), "int32"),
        O: T.Tensor((queries,), "float32"),
    ):
        with T.Kernel(T.ceildiv(queries, 16), threads=128) as bx:
            q = T.alloc_shared((16, 16), "float16")
            k = T.alloc_shared((16, 16), "float16")
            scores = T.alloc_fragment((16, 16), "float32")
            total = T.alloc_fragment((16,), "float32")
            T.copy(Q[bx * 16, 0], q)
            T.clear(total)
            length = lengths[0] if kind == "memory" else keys
            for tile in T.Pipelined(T.ceildiv(length, 16), num_stages=2):
                T.copy(K[tile * 16, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(16, 16):
                    column = tile * 16 + j
                    if kind == "memory":
                        scores[i, j] = T.if_then_else(column < length, scores[i, j], 0)
                    else:
                        seen = column <= bx * 16 + i + (keys - queries)
                        scores[i, j] = T.if_then_else(seen, scores[i, j], 0)
                T.reduce_sum(scores, total, dim=1, clear=False)
            T.copy(total, O[bx * 16])

    return of_lengths


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 70), (40, 64), (33, 20)])
@pytest.mark.parametrize("kind", ["memory", "causal"])
def test_lengths_known_at_run_time(kind: str, queries: int, keys: int) -> None:
    root = before_peeling(of_lengths(kind).func)
    inputs = inputs_for(root, 0, {"queries": queries, "keys": keys})
    for length in (0, 15, 16, keys):
        inputs[2][:] = length
        main, rest = loops_of(check_pass(PEEL, root, inputs, uninitialised="zero"))
        assert masks_in(main) == 0 < masks_in(rest)


# What is emitted


def forward(length: int, dim: int, block_M: int, block_N: int, threads: int = 128, **options: int) -> T.PrimFunc:
    """Causal attention of one head that masks every tile. With a window, rows of a block may see nothing of its first
    tile: their maximum is still the -1e30 that it began as."""
    tiles = {"block_M": block_M, "block_N": block_N, "threads": threads}
    return one_loop_attention.function(1, 1, 1, length, length, dim, True, **tiles, **options)  # type: ignore[no-any-return]


def run_head(kernel: tiledsl.Kernel, *inputs: torch.Tensor) -> torch.Tensor:
    """What the kernel of `forward` gives for Q, K and V of (length, dim)."""
    out: torch.Tensor = kernel(*(each[None, None] for each in inputs))
    return out[0, 0]


def compiled(func: T.PrimFunc, target: str, **options: Any) -> tiledsl.Kernel:
    return tiledsl.compile(
        func, out_idx=-1, target=target, pass_configs={**POINTERS, "peel-loops.mode": "all", **options}
    )


def bodies(source: str) -> list[str]:
    """The text of each loop."""
    return re.findall(r"^    for .*\n((?:        .*\n)+)", source, re.MULTILINE)


@pytest.mark.parametrize("tiles", [(16, 16), (32, 16), (16, 32)], ids=str)
@pytest.mark.parametrize("length", [16, 50, 96])
def test_causal_attention(length: int, tiles: tuple[int, int]) -> None:
    kernel = compiled(forward(length, 16, *tiles), "interpret")
    if length == 96:
        main, rest = bodies(kernel.source)
        assert "tl.where" not in main and "mask=" not in main and "tl.where" in rest
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(length, 16, generator=generator).half() for _ in range(3))
    expected = F.scaled_dot_product_attention(*(each[None].float() for each in (q, k, v)), is_causal=True)[0]
    torch.testing.assert_close(run_head(kernel, q, k, v).float(), expected, rtol=1e-2, atol=2e-3)


def in_window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Attention of (length, dim) in float32."""
    age = torch.arange(len(q), device=q.device)[:, None] - torch.arange(len(k), device=q.device)
    scores = (q.float() @ k.float().T / math.sqrt(q.shape[1])).masked_fill((age < 0) | (age >= window), -math.inf)
    return scores.softmax(dim=-1) @ v.float()


@pytest.mark.parametrize("mode", ["off", "causal"])
def test_windows(mode: str) -> None:
    kernel = compiled(forward(200, 64, 32, 16, window=72), "interpret", **{"peel-loops.mode": mode})
    assert len(bodies(kernel.source)) == (3 if mode == "causal" else 1)
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(200, 64, generator=generator).half() for _ in range(3))
    torch.testing.assert_close(run_head(kernel, q, k, v).float(), in_window(q, k, v, 72), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize(
    ("tiles", "threads"),
    [((128, 128), 256), ((64, 64), 128), pytest.param((128, 64), 128, marks=pytest.mark.slow)],
    ids=str,
)
def test_nothing_is_serialised(tiles: tuple[int, int], threads: int, tmp_path: Path) -> None:
    """The diagonal loop of square tiles runs once; if ptxas saw that, it would serialise its products."""
    kernel = compiled(forward(4096, 64, *tiles, threads), "cuda:90")
    main, rest = bodies(kernel.source)
    assert "tl.where" not in main and "tl.where" in rest
    said = assembled(kernel.asm["ptx"], tmp_path)
    assert "Compiling entry function" in said and "C7515" not in said


def assembled(ptx: str, folder: Path) -> str:
    """What the newest ptxas that comes with Triton says."""
    (folder / "kernel.ptx").write_text(ptx, encoding="utf-8")
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for name in ("ptxas-blackwell", "ptxas"):
        command = [str(tools / name), "-arch=sm_90a", "-v", str(folder / "kernel.ptx"), "-o", os.devnull]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            break
    return done.stderr


def test_ragged_depth_compiles() -> None:
    kernel = compiled(product(256, 256, 4100, 128, 128, 64), "cuda:90")
    (main,) = bodies(kernel.source)
    assert "mask" not in main and kernel.source.count("mask=") == 2
    assert kernel.asm["ptx"].count("wgmma.mma_async") > 0


def test_loops_that_the_program_divides_stay() -> None:
    function = load_example("attention").attention.function
    for window in (0, 300):
        sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "queries": 1000, "keys": 1000, "dim": 64, "window": window}
        kernels = []
        for mode in ("off", "all"):
            options = {**POINTERS, "peel-loops.mode": mode}
            kernels.append(tiledsl.jit(function, target="cuda:90", pass_configs=options).compile(**sizes, causal=True))
        assert kernels[0].source == kernels[1].source
        reasons = [each for each in kernels[1].remarks if "peeled, because the program has divided it itself" in each]
        assert len(reasons) == (3 if window else 2)


def test_kernels_for_gluon_stay() -> None:
    options = {"select-emitter.backend": "gluon", "peel-loops.mode": "all"}
    kernel = tiledsl.compile(forward(512, 64, 128, 128, 256), out_idx=-1, target="cuda:90", pass_configs=options)
    plain = {"select-emitter.backend": "gluon"}
    other = tiledsl.compile(forward(512, 64, 128, 128, 256), out_idx=-1, target="cuda:90", pass_configs=plain)
    assert "@gluon.jit" in kernel.source and kernel.source == other.source
    (remark,) = kernel.remarks
    assert remark.startswith("peel-loops.mode='all' has no effect in Gluon")
