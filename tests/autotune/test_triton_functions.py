"""Kernels of Triton under @tiledsl.autotune: tuned in the same processes, kept in the same places as ours."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from click.testing import CliRunner
from triton.tools.tensor_descriptor import TensorDescriptor

import tiledsl
from tests.autotune.programs import scale_builder
from tests.autotune.triton_programs import TIMER, grid, scale, scale_rows, scaled, tuned, vectors
from tiledsl.autotuner.predicting.prune import is_at_least
from tiledsl.cli import main
from tiledsl.errors import TileError
from tiledsl.kernels.named import suffix
from tiledsl.kernels.triton_text import standalone


def tuner(configs: Any, function: Any = scale, **options: Any) -> Any:
    return tiledsl.autotune(configs=configs, **{"grid": grid, "ref_prog": scaled, "timer": TIMER, **options})(function)


@pytest.mark.slow
def test_the_fastest_configuration_that_is_right_runs(stages: Counter[str]) -> None:
    """One that ends its process, one that does not compile and one that is wrong cost only themselves."""
    configs = [
        {"BLOCK": 32, "num_warps": 2}, {"BLOCK": 1024, "num_stages": 7}, {"BLOCK": 512, "WRONG": True},
        {"BLOCK": 48}, {"BLOCK": 64},
    ]  # fmt: skip
    kernel, x, out = tuner(configs), torch.randn(1000), torch.zeros(1000)
    assert kernel(x, out, 1000) is None and torch.equal(out, x * 3)
    result = kernel.compile(x, out, 1000)
    assert [trial.status for trial in result.trials] == ["ok", "crash", "mismatch", "launch_error", "ok"]
    assert result.config == {"BLOCK": 64} and result.latency == 1.0 and stages["run"] == 1
    out.zero_()
    kernel[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out=out, n=1000)
    assert torch.equal(out, x * 3) and stages["run"] == 2  # another grid may be another kernel
    kernel(x, out, n=1000)
    kernel.compile(x[:999], out[:999], 999)
    assert stages["run"] == 3


def test_the_result_is_kept_on_disk_and_in_files(stages: Counter[str], tmp_path: Path) -> None:
    tuner([{"BLOCK": 32}, {"BLOCK": 64}]).compile(**vectors(100), n=100)
    result = tuner([{"BLOCK": 32}, {"BLOCK": 64}]).compile(**vectors(100), n=100)
    assert (result.from_cache, result.config, stages["run"]) == ("disk", {"BLOCK": 64}, 1)
    out = torch.zeros(100)
    result.kernel(torch.ones(100), out)
    assert out.unique().tolist() == [3.0]
    other = tuner([{"BLOCK": 32}, {"BLOCK": 64}], grid=(4,)).compile(**vectors(100), n=100)
    assert other.from_cache == "" and stages["run"] == 2

    program = f"{Path(__file__).with_name('triton_programs.py')}:tuned"
    done = CliRunner().invoke(main, ["tune", program, "-D", "n=100,1000", "--into", str(tmp_path)])
    assert done.exit_code == 0, done.output
    found = tuned.with_options(tuned=str(tmp_path), on_miss="error")
    assert found.compile(**vectors(1000), n=1000).from_cache == "tuned"
    match = found.tuned_for(**vectors(500), n=500)
    assert (match.kind, match.config, match.entry.arguments) == (
        "bucket", {"BLOCK": 128}, {"x": "float32", "out": "float32", "n": 1000, "WRONG": False},
    ) or match.entry.arguments == {"x": "float32", "out": "float32", "n": 1000}  # fmt: skip


def test_its_source_stands_alone() -> None:
    kernel = tuner([{"BLOCK": 64, "num_warps": 2}]).untuned(**vectors(100), n=100)
    assert (
        kernel.source
        == '''\
import torch
import triton as _triton
import triton.language as _tl
import triton.language as tl
THREE = _tl.constexpr(3.0)


@_triton.jit
def times(x, factor):
    return x * factor


@_triton.jit
def scale(x, out, n, BLOCK: tl.constexpr, WRONG: tl.constexpr = False):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = times(tl.load(x + at, at < n), THREE)
    if WRONG:
        value += 1.0
    tl.store(out + at, value, at < n)


def launch(x, out):
    """Runs the kernel on these tensors."""
    with torch.cuda.device_of(x):
        scale[(2,)](x, out, 100, 64, False, enable_fp_fusion=True, num_warps=2)
'''
    )
    with pytest.raises(TileError, match="scale is a kernel of Triton: there is no IR of tiles"):
        kernel.ir()


@triton.jit
def half(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 3, at < n // 2)


def test_what_an_output_holds_before_proves_nothing() -> None:
    """It may be right from an earlier call; it is forgotten, unless the kernel adds to it."""
    x = torch.randn(64)
    right = x * 3
    with pytest.raises(TileError, match=r"nonfinite: 1; first, BLOCK=32:\n *out, which it writes into, is NaN"):
        tuner([{"BLOCK": 32}], half).compile(x, right, 64)
    assert torch.equal(right, x * 3)

    def first_half(x: torch.Tensor, out: torch.Tensor) -> None:
        out[:32] = x[:32] * 3

    result = tuner([{"BLOCK": 32}], half, ref_prog=first_half).compile(x, torch.zeros(64), 64)
    assert result.best.verified


def closure(factor: Any) -> Any:
    @triton.jit
    def inside(x, out, n, BLOCK: tl.constexpr):
        tl.store(out, tl.load(x) * factor)

    return inside


def test_what_no_text_can_have_is_refused() -> None:
    assert "factor = _tl.constexpr(2)\n" in standalone(closure(tl.constexpr(2)))
    with pytest.raises(TileError, match="inside cannot be tuned as it is: it refers to factor, a object"):
        tuner([{"BLOCK": 32}], closure(object())).untuned(**vectors(8), n=8)
    with pytest.raises(TileError, match="n is a object, which a kernel cannot be tuned with"):
        tuner([{"BLOCK": 32}], grid=(1,)).untuned(**vectors(8), n=object())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tuner([{"BLOCK": 32}], grid=None).compile(**vectors(8), n=8), "scale has no grid"),
        (lambda: tuner([{"BLOCK": 32}], grid=lambda m: m["m"]).compile(**vectors(8), n=8), "grid raises KeyError"),
        (lambda: tuner([{"BLOCK": 32}], grid=(1, 1, 1, 1)).compile(**vectors(8), n=8), "it must be one to three sizes"),
        (lambda: tuner([{"BLOCK": 32}]).compile(**vectors(8)), "is called without 'n', which is not a tunable"),
        (lambda: tuner([{"BLOCK": 32}]).compile(**vectors(8), n=8, num_warps=4), "scale has no parameter 'num_warps'"),
        (lambda: tuner([{"BLOK": 32}]), "sets 'BLOK', which is not a parameter"),
        (lambda: tuner([{"BLOCK": 32}], numerics="same-bits"), "numerics needs the IR of a program of tiles"),
        (lambda: tuner([{"BLOCK": 32}], bucket="m"), "bucket names 'm', which is not a parameter"),
        (lambda: tuner([], triton.autotune([triton.Config({})], key=[])(scale)), "two would tune it"),
        (lambda: tiledsl.autotune(configs=[{}])(print), "print is not jitted"),
    ],
)  # fmt: skip
def test_mistakes_are_told(call: Any, message: str) -> None:
    with pytest.raises(TileError, match=message):
        call()


def test_heuristics_and_tritons_own_configurations_will_do() -> None:
    function = triton.heuristics({"WRONG": lambda given: given["BLOCK"] > 64})(scale)
    configs = [triton.Config({"BLOCK": block}, num_warps=2) for block in (32, 64, 128)]
    result = tuner(configs, function).compile(**vectors(100), n=100)
    assert [trial.status for trial in result.trials] == ["ok", "ok", "mismatch"]
    assert result.config == {"BLOCK": 64, "num_warps": 2, "num_ctas": 1, "num_stages": 3}


def test_tritons_configurations_will_do_above_tiledsls_jit_too() -> None:
    configs = [triton.Config({"block": block}, num_warps=2) for block in (32, 64)]
    numbers = {"num_warps": 2, "num_ctas": 1, "num_stages": 3}
    for given in (configs, lambda size: configs):
        tuned = tiledsl.autotune(configs=given, target="cuda:90", skip_check=True)(
            tiledsl.jit(out_idx=-1)(scale_builder)
        )
        result = tuned(size=64)
        assert [trial.config for trial in result.trials] == [{"block": block, **numbers} for block in (32, 64)]
        assert [each.num_warps for each in result.kernel.module.kernels] == [2]
    with pytest.raises(TileError, match="has a pre_hook"):
        tiledsl.autotune(configs=[triton.Config({"block": 32}, pre_hook=print)])(tiledsl.jit(scale_builder))


def test_what_needs_no_less_than_one_that_needed_too_much_is_left_out() -> None:
    failed = {"BLOCK": 128, "num_stages": 3, "num_warps": 4, "op": "a"}
    assert is_at_least({**failed, "num_stages": 4}, failed) and is_at_least({**failed, "BLOCK": 256}, failed)
    for other in ({"BLOCK": 64}, {"num_warps": 8}, {"op": "b"}, {"more": 1}):
        assert not is_at_least({**failed, **other}, failed)


def test_for_a_gpu_it_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    """In processes, for a GPU that is not here; checked in the interpreter."""
    with caplog.at_level(logging.INFO, "tiledsl"):
        result = tuner([{"BLOCK": 64}, {"BLOCK": 128, "num_warps": 1}], target="cuda:90").compile(**vectors(256), n=256)
    assert result.config == {"BLOCK": 128, "num_warps": 1} and all(trial.verified for trial in result.trials)
    assert [trial.resources["num_warps"] for trial in result.trials] == [4, 1]
    assert ".target sm_90a" in result.kernel.asm["ptx"] and result.kernel.resources.spills == 0


def test_names_carry_the_configuration() -> None:
    x, out = torch.randn(100), torch.zeros(100)
    kernel = tuner([{"BLOCK": 64, "num_warps": 2}, {"BLOCK": 32}], named_by_config=True)
    result = kernel.compile(x, out, 100)
    assert "def scale_BLOCK_64_num_warps_2(x" in result.kernel.source and "scale[" not in result.kernel.source
    kernel(x, out, 100)
    assert torch.equal(out, x * 3)
    ours = tiledsl.autotune(configs=[{"block": 64}], named_by_config=True)(tiledsl.jit(out_idx=-1)(scale_builder))
    compiled = ours.with_options(target="cuda:90").untuned()
    assert (
        list(compiled.compiled) == ["scale_kernel_block_64"] and ".entry scale_kernel_block_64(" in compiled.asm["ptx"]
    )
    assert torch.equal(ours()(torch.ones(64)), torch.full((64,), 2.0))
    plain = tiledsl.autotune(configs=[{"block": 64}])(ours.jit).untuned()
    assert "def scale_kernel(A, B):" in plain.source
    long = suffix({f"tunable_{n}": n for n in range(30)})
    assert len(long) == 120 and long.isidentifier() and long != suffix({f"tunable_{n}": n for n in range(31)})


def test_binaries_are_configurations_too(tmp_path: Path) -> None:
    """Of any level, beside sources; constants and options are those that they were compiled with."""
    for block, warps in ((64, 1), (128, 2)):
        types = {"x": "*fp32:16", "out": "*fp32:16", "n": "i32:16", "WRONG": False}
        tiledsl.triton_kernel(scale).save_levels(
            tmp_path / f"{block}", BLOCK=block, num_warps=warps, target="cuda:90", **types
        )
    configs = [{"BLOCK": 32}, *({"from_level": ("cubin", tmp_path / name)} for name in ("64", "128", "none"))]
    kernel = tuner(configs, target="cuda:90")
    problem = kernel.with_options(cache=False)
    call = problem._call((), {**vectors(256), "n": 256})
    kernels = [problem._problem(call).build(config, call.target) for config in problem.configs[1:3]]
    assert [each.compiled["scale"].metadata["num_warps"] for each in kernels] == [1, 2]
    assert [re.search(r"scale\[(.*?)\]\((.*?)\)", each.source)[2] for each in kernels] == [  # type: ignore[index]
        f"x, out, 256, {block}, False, enable_fp_fusion=True, num_warps={warps}, num_stages=3"
        for block, warps in ((64, 1), (128, 2))
    ]
    assert [re.search(r"scale\[(.*?)\]", each.source)[1] for each in kernels] == ["(4,)", "(2,)"]  # type: ignore[index]
    with pytest.raises(TileError):
        problem._problem(call).build(problem.configs[3], call.target)
    with pytest.raises(TileError, match="scale has BLOCK=32, and it has BLOCK=64"):
        problem.jit.kernel_for(call.values, {"BLOCK": 32, "from_level": configs[1]["from_level"]}, call.target)


BLOCKS = {"a": ("BM", "BN"), "out": ("BM", "BN")}


def row_tuner(configs: Any, descriptors: Any = BLOCKS, **options: Any) -> Any:
    by_rows = lambda meta: (triton.cdiv(meta["M"], meta["BM"]),)
    chosen = {"grid": by_rows, "ref_prog": scaled, "descriptors": descriptors, **options}
    return tiledsl.autotune(configs=configs, **chosen)(scale_rows)


def test_descriptors_have_the_blocks_of_a_configuration(stages: Counter[str]) -> None:
    kernel, a, out = row_tuner([{"BM": 16, "BN": 32}, {"BM": 32, "BN": 16}]), torch.randn(50, 40), torch.empty(50, 40)
    kernel(a, out, 3.0, 50, 40)
    assert torch.equal(out, a * 3)
    result = kernel.compile(a, out, 3.0, 50, 40)
    assert [trial.status for trial in result.trials] == ["ok", "ok"] and stages["run"] == 1
    out.zero_()
    described = (TensorDescriptor.from_tensor(each, [8, 8]) for each in (a, out))
    kernel(*described, 3.0, 50, 40)
    assert torch.equal(out, a * 3) and stages["run"] == 1  # the same call
    source = row_tuner([{"BM": 32, "BN": 16}]).untuned(a, out, 3.0, 50, 40).source
    assert source.startswith("from triton.tools.tensor_descriptor import TensorDescriptor\n")
    assert source.endswith("""
        a = _descriptor(a, (50, 40), (40, 1), (32, 16))
        out = _descriptor(out, (50, 40), (40, 1), (32, 16))
        scale_rows[(2,)](a, out, 3.0, 50, 40, 32, 16, enable_fp_fusion=True)
""")


@pytest.mark.parametrize(
    ("descriptors", "changed", "told"),
    [
        (
            {"b": (16,)},
            {},
            "no argument 'b', which descriptors names\n.*it has a, out, factor, M, N, BM, BN",
        ),
        ({"a": (16, "BK")}, {}, "scale_rows has no argument 'BK'"),
        ({"a": ("BM",)}, {}, r"a is of 2 dimensions; its descriptor has 1: \(16,\)"),
        ({"a": (16, "factor")}, {}, "factor is 3.0, no size of the blocks of a"),
        (
            BLOCKS,
            {"a": torch.empty(50, 41)},
            r"a has strides \(41, 1\) and elements of 4 bytes; .* 16 bytes",
        ),
        (BLOCKS, {"a": torch.empty(40, 50).t()}, r"a has strides \(1, 50\)"),
        (BLOCKS, {"a": 3}, "a is a int; its descriptor has 2"),
        (
            {"out": ("BM", "BN")},
            {"a": TensorDescriptor.from_tensor(torch.empty(50, 40), [16, 32])},
            r'a is a tensor descriptor with blocks of \(16, 32\)\n.*descriptors=\{"a": \(16, 32,\)\}',
        ),
        (
            BLOCKS,
            {"a": TensorDescriptor(torch.empty(50, 40), [20, 40], [40, 1], [16, 32])},
            r"a describes \[20, 40\] elements with strides \[40, 1\] of a tensor of \[50, 40\]",
        ),
    ],
)
def test_descriptors_that_cannot_be(descriptors: Any, changed: Any, told: str) -> None:
    given = {"a": torch.empty(50, 40), "out": torch.empty(50, 40), "factor": 3.0, "M": 50, "N": 40, **changed}
    with pytest.raises(TileError, match=f"(?s){told}"):
        row_tuner([{"BM": 16, "BN": 32}], descriptors).untuned(**given)


def test_a_hook_that_sets_blocks_says_what_to_write() -> None:
    hooked = triton.Config({"BM": 16, "BN": 32}, pre_hook=lambda given: None)
    with pytest.raises(TileError, match=r"(?s)has a pre_hook.*say descriptors="):
        row_tuner([hooked])
