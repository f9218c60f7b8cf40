"""Matrix products in Gluon: the structure of the text, and what Triton makes of it for cuda:90, without a GPU."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from benchmarks.programs.gemm import matmul
from tests.support.example_modules import load_example
from tests.support.gluon_kernels import compile_kernels, part_of


def compiled(function: Any, **sizes: Any) -> tiledsl.Kernel:
    return tiledsl.jit(function, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"}).compile(**sizes)


def product(**options: Any) -> tiledsl.Kernel:
    tiles = {"block_M": 128, "block_N": 64, "block_K": 64, "num_stages": 6, "dtype": "bfloat16"}
    return compiled(matmul.function, **{"M": 1024, "N": 1024, "K": 1024, **tiles, **options})


def scaled(**options: Any) -> tiledsl.Kernel:
    tiles = {"block_M": 128, "block_N": 128, "num_stages": 6}
    function = load_example("gemm_fp8_blockscale").matmul_blockscale.function
    return compiled(function, **{"M": 1024, "N": 1024, "K": 2048, **tiles, **options})


def in_order(text: str, steps: list[str]) -> bool:
    return sorted(steps, key=text.index) == steps


def test_one_producer_fills_a_deep_ring() -> None:
    source = product().source
    producer, consumer = part_of(source, "producer"), part_of(source, "consumer")
    assert in_order(producer, ["mbarrier.wait(empty", "mbarrier.expect(full.index(stage), 24576)", "_load_box(B_tiles",
                               "gl.static_range(2)", "_load_box(A_tiles", "_advance(stage, phase, 6)"])  # fmt: skip
    assert "warpgroup_mma" not in producer and "_load_box" not in consumer
    assert "A_tile_ring = gl.allocate_shared_memory(gl.bfloat16, [12, 64, 64]" in source
    assert "B_tile_ring = gl.allocate_shared_memory(gl.bfloat16, [6, 64, 64]" in source
    assert "full = _barriers(6, 1)" in source and "empty = _barriers(6, 2)" in source
    entry = source[source.index("gl.warp_specialize(") :]
    assert in_order(entry, ["_consumer, (0,", "_consumer, (1,", "_producer, (", "[4, 1]", "[240, 24]"])


def test_the_first_line_names_the_languages() -> None:
    first = "# {}: {} source written by tiledsl."
    assert product().source.splitlines()[0] == first.format("matmul", "Gluon")

    @T.prim_func
    def cleared_product(A: T.Tensor((64, 512), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128) as _:
            T.clear(C)
        with T.Kernel(1, threads=128) as _:
            tile = T.alloc_shared((64, 64), "float16")
            other = T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((64, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[0, k * 64], tile)
                T.copy(A[0, 448 - k * 64], other)
                T.gemm(tile, other, total, transpose_B=True)
            T.copy(total, C)

    triton = tiledsl.compile(cleared_product, target="cuda:90")
    assert triton.source.splitlines()[0] == first.format("cleared_product", "Triton")
    both = tiledsl.compile(cleared_product, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    assert both.source.splitlines()[0] == first.format("cleared_product", "Gluon and Triton"), both.remarks


def test_one_product_stays_in_flight() -> None:
    """Tiles are released when the product that follows theirs has been issued, the last ones after the loop."""
    consumer = part_of(product().source, "consumer")
    loop = consumer[consumer.index("for k in range(") :]
    assert in_order(loop, ["mbarrier.wait(full", "warpgroup_mma(A_tile_ring.index(stage * 2 + consumer), "
                           "B_tile_ring.index(stage).permute((1, 0)), total, is_async=True)",
                           "total = warpgroup_mma_wait(1", "empty.index(stage_before), count=1, pred=k > 0)",
                           "stage_before = stage", "_advance(", "total = warpgroup_mma_wait(0",
                           "empty.index(stage_before), count=1)", "C_buffer.index(consumer).store("])  # fmt: skip


def steps_of(text: str) -> str:
    """What happens to products: scales are loaded (s), a product is issued (i), awaited while so many are on their way
    (w0, w1), its place freed (f), and used (u), each with its number."""
    found = re.findall(
        r"(product(?:_\d)?) = warpgroup_mma(_wait\(\d)?|total = total \+ (product\w*)|(empty\.index)|(w_scale\w*) = gl",
        text,
    )
    said = []
    for issued, awaited, used, freed, loaded in found:
        what = "f" if freed else "s" if loaded else "u" if used else f"w{awaited[-1]}:" if awaited else "i"
        number = (issued or used or loaded).rpartition("_")[2]
        said.append(what + ("" if freed else number if number.isdigit() else "0"))
    return " ".join(said)


def test_one_of_two_products_from_zero_is_used_while_the_other_is_computed() -> None:
    """Fifteen steps by fours: three turns, and three steps."""
    consumer = part_of(scaled(K=1920).source, "consumer")
    loop, rest = consumer[consumer.index("for four in range(3):") :].split("kb = 15 - 3")
    assert steps_of(loop) == "s0 i0 s1 i1 s2 w1:0 f u0 i2 s3 w1:1 f u1 i3 w1:2 f u2 w0:3 f u3"
    assert steps_of(rest) == "s0 i0 s1 i1 s2 w1:0 f u0 i2 w1:1 f u1 w0:2 f u2"
    assert loop.count("total = _pinned(total)") == loop.count("use_acc=False") == 4
    assert loop.count("product, use_acc=False") == loop.count("product_1, use_acc=False") == 1
    assert loop.count("gl.load(") == 8 and "mask=" not in consumer
    assert loop.count("stage_before = stage") == loop.count("empty.index(stage_before)") == 3
    assert "mask=" in part_of(scaled(M=1000).source, "consumer")


def test_scales_are_loaded_a_step_ahead_where_registers_allow_one_product() -> None:
    consumer = part_of(scaled(block_M=192).source, "consumer")
    before, loop = consumer[: consumer.index("for kb in range(")], consumer[consumer.index("for kb in range(") :]
    assert before.count("gl.load(") == loop.count("gl.load(") == 2
    assert in_order(loop, ["product = warpgroup_mma(", "use_acc=False", "ahead = gl.minimum(kb + 1, 15)", "gl.load(",
                           "product = warpgroup_mma_wait(0", "empty.index(stage), count=1)",
                           "total = total + product * scales[:, None]"])  # fmt: skip


def test_a_loop_that_may_not_run_releases_nothing() -> None:
    @T.prim_func
    def program(
        A: T.Tensor((128, 1024), "float16"),
        B: T.Tensor((64, 1024), "float16"),
        C: T.Tensor((128, 64), "float32"),
        steps: T.int32,
    ):
        with T.Kernel(1, threads=256) as _:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            total = T.alloc_fragment((128, 64), "float32")
            T.clear(total)
            for k in T.Pipelined(steps, num_stages=3):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, total, transpose_B=True)
            T.copy(total, C)

    kernel = tiledsl.compile(program, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    assert "count=1, pred=0 < steps)" in part_of(kernel.source, "consumer")


def test_dynamic_rows() -> None:
    function = load_example("gemm_dynamic").linear_silu.function
    source = compiled(function, N=512, K=512, block_M=128, block_N=64, block_K=64).source
    assert "@gluon.jit" in source and "_store_box(Y_tiles" in source


@pytest.mark.parametrize(("block_M", "block_N"), [(128, 128), (64, 128), (128, 256)])
def test_epilogues_in_the_layout_of_the_sums(block_M: int, block_N: int) -> None:
    linear = load_example("gemm_epilogue").linear
    source = compiled(linear.function, M=512, N=512, K=512, block_M=block_M, block_N=block_N).source
    consumer = part_of(source, "consumer")
    assert (
        f"bias + bias_R_start + gl.arange(0, {block_N}, layout=gl.SliceLayout(0, TILE_64_{block_N}))[None, :]"
        in consumer
    )
    assert in_order(consumer, ["warpgroup_mma_wait(0", "bias_tile = ", "gl.exp(", "R_tile = ", "Y_buffer.index(",
                               "_store_box(Y_tiles"])  # fmt: skip


def test_parts_along_k_and_the_kernel_that_adds_them() -> None:
    """The second kernel is Triton's, through pointers, also where descriptors are asked for."""
    function = matmul.function
    options = {"select-emitter.backend": "gluon", "select-access.mode": "tma"}
    sizes = {"M": 128, "N": 512, "K": 1024, "block_M": 128, "block_N": 64, "block_K": 64, "splits": 4}
    source = tiledsl.jit(function, target="cuda:90", pass_configs=options).compile(**sizes).source
    assert source.count("@gluon.jit") == 5 and source.count("@triton.jit") == 1
    assert source.count("= _descriptor(") == source.count("gl.NVMMASharedLayout(") == 3


KERNELS: dict[str, Callable[[], tiledsl.Kernel]] = {
    "scaled": scaled,
    "odd": lambda: scaled(K=1920),
    "three": lambda: scaled(M=1000, block_M=192, num_stages=4),
    "few_rows": lambda: product(M=128, block_K=128, num_stages=4),
    "wide": lambda: product(block_N=256, num_stages=3),
    "alone": lambda: product(block_M=64, K=1000),
    "epilogue": lambda: compiled(
        load_example("gemm_epilogue").linear.function, M=1000, N=776, K=520, block_M=128, block_N=128
    ),
}


# ptxas takes seconds for each: that of 3.6, which GPU machines have, takes all, and some outside of the slow tests.
@pytest.mark.parametrize(
    ("version", "names"),
    [
        pytest.param("installed", "scaled epilogue", marks=pytest.mark.slow),
        ("3.6", "wide epilogue"),
        pytest.param("3.6", "scaled odd three few_rows alone", marks=pytest.mark.slow),
    ],
)
def test_compiles_without_spills_or_products_in_line(
    version: str, names: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    python = request.getfixturevalue("triton36") if version == "3.6" else sys.executable
    kernels = {name: KERNELS[name]() for name in names.split()}
    for name, result in compile_kernels(kernels, python, tmp_path).items():
        assert not re.search(r"\(C7[56]\d\d\)", result["ptxas"]), (name, result["ptxas"])
        assert set(re.findall(r"(\d+) bytes spill stores", result["ptxas"])) == {"0"}, (name, result["ptxas"])
        assert "wgmma.mma_async" in result["ptx"]
        assert 64 * 1024 < result["shared"] <= 227 * 1024


@T.prim_func
def less_than_nothing(
    A: T.Tensor((128, 512), "float16"), B: T.Tensor((64, 512), "float16"), C: T.Tensor((128, 64), "float32")
):
    with T.Kernel(1, threads=256) as _:
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        total = T.alloc_fragment((128, 64), "float32")
        T.clear(total)
        for k in T.Pipelined(8, num_stages=3):
            T.copy(A[0, k * 64], a)
            T.copy(B[0, k * 64], b)
            T.gemm(a, b, total, transpose_B=True)
        for i, j in T.Parallel(128, 64):
            total[i, j] = T.if_then_else(total[i, j] > 0, total[i, j], -0.0)
        T.copy(total, C)


@pytest.mark.parametrize("version", [pytest.param("installed", marks=pytest.mark.slow), "3.6"])
def test_the_sign_of_zero_is_kept(version: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A -0.0 in the text is a 0.0 in Triton 3.6."""
    python = request.getfixturevalue("triton36") if version == "3.6" else sys.executable
    kernel = tiledsl.compile(less_than_nothing, target="cuda:90", pass_configs={"select-emitter.backend": "gluon"})
    assert "@gluon.jit" in kernel.source
    ptx = compile_kernels({"zero": kernel}, python, tmp_path)["zero"]["ptx"]
    assert re.search(r"0f80000000|0x80000000|-2147483648", ptx)
