"""Proposed configurations: what tunables are found to be for, what is left out, and that the tuner takes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from benchmarks.programs import gemm
from tests.autotune.programs import scale_builder
from tests.support.example_modules import load_example
from tiledsl.autotuner.left_out import prune_and_order
from tiledsl.autotuner.spaces import for_program
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target


def builder(sides: tuple[str, str, str] = ("x", "y", "z")) -> Any:
    """A product whose tunables' names say nothing."""

    @tiledsl.jit(out_idx=-1)
    def product(M, N, K, x=None, y=None, z=None, deep=2, wide=128, high=4, dtype="float16"):
        @T.prim_func
        def product(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
            with T.Kernel(T.ceildiv(N, y), T.ceildiv(M, x), threads=wide) as (bx, by):
                a = T.alloc_shared((x, z), dtype)
                b = T.alloc_shared((y, z), dtype)
                total = T.alloc_fragment((x, y), "float32")
                T.use_swizzle(high)
                T.clear(total)
                for k in T.Pipelined(T.ceildiv(K, z), num_stages=deep):
                    T.copy(A[by * x, k * z], a)
                    T.copy(B[bx * y, k * z], b)
                    T.gemm(a, b, total, transpose_B=True)
                T.copy(total, C[by * x, bx * y])

        return product

    return product


def test_tunables_are_recognised_by_what_they_change() -> None:
    configs = for_program(builder(), 4096, 4096, 4096, target="cuda:90")
    assert {"x": 128, "y": 256, "z": 64, "deep": 3, "wide": 256, "high": 8} in configs[:6]
    accesses = [config.get("pass_configs", {}).get("select-access.mode", "auto") for config in configs]
    assert set(accesses) == {"auto", "pointer", "tma"} and len(configs) <= 40
    assert not any("split-k.splits" in config.get("pass_configs", {}) for config in configs)


def test_what_the_call_says_stays() -> None:
    configs = for_program(builder(), 4096, 4096, 4096, y=64, target="cuda:90")
    assert configs and not any("y" in config for config in configs)


def test_few_rows_are_split_along_k_and_have_no_high_tiles() -> None:
    configs = for_program(builder(), 16, 4096, 8192, target="cuda:90")
    assert {config["x"] for config in configs} == {16}
    assert {config.get("pass_configs", {}).get("split-k.splits", 1) for config in configs} == {1, 2, 4, 8}


def streams(*sizes: int) -> dict[int, dict[str, Any]]:
    """The proposals whose programs share all blocks, by their place in the order."""
    configs = for_program(builder(), *sizes, target="cuda:90")
    return {at: each for at, each in enumerate(configs) if "split-k.streams" in each.get("pass_configs", {})}


def test_a_bad_last_wave_is_shared() -> None:
    found = streams(3072, 3072, 8192)  # 288 blocks of 128 x 256 on 132 multiprocessors; 576 of 128 x 128
    assert {(each["x"], each["y"], each["pass_configs"]["split-k.streams"]) for each in found.values()} == {
        (128, 256, -1),
        (256, 128, -1),
    }
    assert 0 not in found
    assert 1 <= len(streams(1536, 1536, 8192)) <= 4 and 0 not in streams(1536, 1536, 8192)
    assert not streams(4096, 4096, 4096)  # 512 blocks are 3.9 waves
    assert not streams(2048, 2048, 16384)  # 128 blocks fill one wave
    assert not streams(16, 4096, 8192)  # too few: parts along K instead


def test_few_blocks_of_a_last_wave_are_cut_along_k() -> None:
    def cut(*sizes: int) -> set[tuple[int, int]]:
        configs = for_program(builder(), *sizes, target="cuda:90")
        return {
            (each["x"], each["y"]) for each in configs if "split-last-wave.programs" in each.get("pass_configs", {})
        }

    # left are 8 of 800 blocks, 16 of 1600, and 24 of 1080
    assert cut(5120, 5120, 5120) == {(128, 256), (128, 128), (192, 128)}
    assert cut(4096, 4096, 4096) == {(192, 128)}  # 44 of 704; of others 116 of 512 and 100 of 1024
    assert cut(2048, 4096, 4096) == set()  # 124 of 256, 116 of 512, and 88 of 352
    assert cut(2048, 2048, 4096) == {(192, 128)}  # 44 of 176; of others no wave is whole, or 124 are left


H200 = Target("cuda", 90)


def in_gluon(configs: Sequence[dict[str, Any]], rows: str) -> set[int]:
    """The rows of tiles that are proposed in Gluon."""
    return {each[rows] for each in configs if each.get("pass_configs", {}).get("select-emitter.backend") == "gluon"}


def test_gluon_is_proposed_where_the_compiler_can_write_it(caplog: pytest.LogCaptureFixture) -> None:
    configs = for_program(builder(), 3072, 3072, 3072, target="cuda:90")
    assert in_gluon(configs, "x") == {64, 128, 192}
    assert in_gluon(for_program(builder(), 64, 4096, 4096, target="cuda:90", limit=200), "x") == {64}
    with caplog.at_level("WARNING"):
        grouped = for_program(
            load_example("grouped_gemm").grouped_matmul, 64, 16384, 2048, 2048, dtype="bfloat16", target="cuda:90"
        )
    assert grouped and not in_gluon(grouped, "block_M")
    assert len([each for each in caplog.records if "tensor.scan" in each.getMessage()]) == 1


def test_other_targets_and_elements() -> None:
    for target in ("cuda:80", "hip:gfx942"):
        configs = for_program(builder(), 4096, 4096, 4096, target=target)
        assert configs and not any("pass_configs" in config for config in configs)
    wide = for_program(builder(), 4096, 4096, 4096, dtype="float8_e4m3fn", target="cuda:90")
    assert wide[0]["z"] == 128


def test_attention_and_programs_without_products() -> None:
    attention = load_example("attention").attention
    configs = for_program(attention, 2, 8, 8, 1024, 1024, 64, target="cuda:90", limit=5)
    assert len(configs) == 5 and all({"block_M", "block_N", "threads", "num_stages"} <= set(c) for c in configs)
    hopper = {"auto", "gluon", "triton", "triton, all", "triton, off"}
    for target, proposed in (("cuda:90", hopper), ("cuda:80", {"auto", "auto, all", "auto, off"})):
        emitters = set()
        for config in for_program(attention, 2, 8, 8, 1024, 1024, 64, target=target, limit=60):
            passes = config.get("pass_configs", {})
            backend = passes.get("select-emitter.backend", "auto")
            emitters.add(", ".join([backend, *([passes["peel-loops.mode"]] if "peel-loops.mode" in passes else [])]))
        assert emitters == proposed
    for dim, target, three in ((64, "cuda:90", True), (128, "cuda:90", False), (64, "cuda:80", False)):
        proposals = for_program(attention, 2, 8, 8, 1024, 1024, dim, target=target)
        assert any(config["block_M"] == 192 for config in proposals) == three  # rows of three consumers, in Gluon
    rows = for_program(load_example("softmax").softmax, 1024, 4096, target="cuda:90")
    assert {config["threads"] for config in rows} >= {128, 256} and len({config["block_M"] for config in rows}) > 1


def test_the_best_schedules_of_loops_in_gluon_are_proposed() -> None:
    """Eight that differ from each other and from what the compiler chooses; none where it writes no Gluon."""
    attention = load_example("attention").attention
    jitted = attention.jit if hasattr(attention, "jit") else attention
    sizes = {"batch": 2, "heads": 8, "kv_heads": 8, "queries": 1024, "keys": 1024, "dim": 128, "causal": False}
    configs = for_program(attention, *sizes.values(), target="cuda:90", limit=60)
    asked = [each for each in configs if len(each.get("pass_configs", {})) > 1 and "peel" not in str(each)]
    assert len(asked) == 8
    assert {name for each in asked for name in each["pass_configs"]} >= {"schedule-loops.skew", "select-emitter.stages"}
    texts = [jitted.kernel_for(sizes, each, H200).source for each in asked]
    assert len({*texts}) == 8 and all("@gluon.jit" in each for each in texts)
    for each, text in zip(asked, texts):
        chosen = {**each, "pass_configs": {"select-emitter.backend": "gluon"}}
        assert jitted.kernel_for(sizes, chosen, H200).source != text
    others = for_program(attention, *sizes.values(), target="cuda:80")
    assert all("peel" in str(each) for each in others if len(each.get("pass_configs", {})) > 1)


def test_groups_that_run_apart_are_proposed_where_one_group_runs_the_loops() -> None:
    def apart(function: object, dim: int) -> list[dict[str, object]]:
        configs = for_program(function, 1, 2, 2, 1024, 1024, dim, target="cuda:90", limit=60)
        return [each for each in configs if each.get("pass_configs", {}).get("select-emitter.consumers") == "apart"]

    gradients = apart(load_example("attention_backward").gradients_at_once, 64)
    assert gradients and all(each["threads"] == 256 for each in gradients)
    assert not apart(load_example("attention").attention, 64)


def test_none_may_be_a_value_like_others() -> None:
    @tiledsl.jit
    def matmul(M, N, K, block_M=None, block_N=None, block_K=32, dtype="float16", out_dtype=None, scale=None):
        out_dtype = dtype if out_dtype is None else out_dtype

        @T.prim_func
        def matmul(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), out_dtype)):
            with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
                a = T.alloc_shared((block_M, block_K), dtype)
                b = T.alloc_shared((block_K, block_N), dtype)
                c = T.alloc_fragment((block_M, block_N), "float32")
                T.clear(c)
                for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                    T.copy(A[by * block_M, k * block_K], a)
                    T.copy(B[k * block_K, bx * block_N], b)
                    T.gemm(a, b, c)
                if scale is not None:
                    for i, j in T.Parallel(block_M, block_N):
                        c[i, j] *= scale
                T.copy(c, C[by * block_M, bx * block_N])

        return matmul

    configs = for_program(matmul, 1024, 1024, 1024, target="cuda:90")
    assert configs and all({"block_M", "block_N", "block_K"} <= set(config) for config in configs)
    assert not any({"out_dtype", "scale"} & set(config) for config in configs)


def test_a_program_that_can_cut_along_k_itself() -> None:
    """`splits` makes another kernel, without panels: it is none, and keeps its default."""
    for rows in (16, 4096):
        configs = for_program(gemm.matmul, rows, 4096, 4096, target="cuda:90")
        assert all(config.get("launch_pdl", False) == (rows == 16) for config in configs)  # of short launches
        assert {config["panel"] for config in configs} == {8} and not any("splits" in config for config in configs)
        access = {config.get("pass_configs", {}).get("select-access.mode") for config in configs}
        assert {None, "tma"} <= access


@tiledsl.jit(out_idx=-1)
def added(M, N, rows, columns, threads=128):
    @T.prim_func
    def added(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=threads) as (bx, by):
            a, b = T.alloc_shared((rows, columns), "float32"), T.alloc_shared((rows, columns), "float32")
            T.copy(A[by * rows, bx * columns], a)
            T.copy(B[by * rows, bx * columns], b)
            for i, j in T.Parallel(rows, columns):
                a[i, j] += b[i, j]
            T.copy(a, C[by * rows, bx * columns])

    return added


@tiledsl.jit(out_idx=-1)
def doubled_in_place(N=4096, block=192, threads=96, deep=2):
    @T.prim_func
    def doubled(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * 2

    return doubled


def test_elementwise_programs_have_several_sizes() -> None:
    configs = for_program(added, 1024, 1000, target="cuda:90")
    assert len({config["rows"] for config in configs}) > 2 and len({config["columns"] for config in configs}) > 2
    without_tiles = for_program(doubled_in_place, target="cuda:90")
    assert len({config["block"] for config in without_tiles}) > 2
    # what the tensors are is no choice, and what changes nothing stays as it is
    assert {*without_tiles[0]} == {"block", "threads"}


@pytest.mark.parametrize("limit", [1, 3, 40])
def test_the_programs_own_configuration_is_a_candidate(limit: int) -> None:
    configs = for_program(doubled_in_place, target="cuda:90", limit=limit)
    assert configs.count({"block": 192, "threads": 96}) == 1 and len(configs) <= limit
    # an argument is no default to be changed, and without defaults for all there is none
    assert {"threads": 96} in for_program(doubled_in_place, block=64, target="cuda:90", limit=limit)
    assert len(for_program(added, 1024, 1024, target="cuda:90", limit=limit)) == min(limit, 40)


def test_the_tuner_tries_the_programs_own_configuration_first() -> None:
    tuned = tiledsl.autotune(configs=tiledsl.spaces.for_program, target="cuda:90")(doubled_in_place)
    problem = tuned._problem(tuned._call((), {}))
    assert list(problem.options.seed_configs) == [{"block": 192, "threads": 96}]
    trials = [Trial(index, config) for index, config in enumerate(problem.configs)]
    assert trials[prune_and_order(trials, problem)[0]].config == {"block": 192, "threads": 96}


def test_what_cannot_be_seen() -> None:
    @tiledsl.jit(out_idx=-1)
    def scaled(N, block=64, factor=None):
        @T.prim_func
        def scaled(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
                for i in T.Parallel(block):
                    Y[bx * block + i] = X[bx * block + i] * factor

        return scaled

    with pytest.raises(TileError, match="what factor of scaled is for cannot be seen"):
        for_program(scaled, 1000, target="cuda:90")
    with pytest.raises(TileError, match=r"is not a function under @tiledsl\.jit"):
        for_program(3)


def test_the_tuner_takes_the_function_itself() -> None:
    tuned = tiledsl.autotune(configs=tiledsl.spaces.for_program, target="cuda:90")(builder())
    kernel = tuned.untuned(1024, 1024, 512)
    assert kernel.config == for_program(builder(), 1024, 1024, 512, target="cuda:90")[0]


def test_a_builder_that_ends_the_process_is_named() -> None:
    @tiledsl.jit(out_idx=-1)
    def ends(N, block=None):
        if block != 64:
            os._exit(3)
        return scale_builder(block, size=N)

    with pytest.raises(tiledsl.TileError, match="trying values of its tunables, ends does not return") as caught:
        tiledsl.spaces.for_program(ends, 256)
    assert "building it ended the process with exit status 3" in str(caught.value)
