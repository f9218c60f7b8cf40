"""tiledsl.space: which configurations there are, and how they reach the compiler."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

import tiledsl
from tests.autotune import kernels
from tests.autotune.programs import scale_builder, twice

scale_jit = tiledsl.jit(out_idx=-1)(scale_builder)
GEMM = {"block_M": 64, "block_N": 64, "block_K": 32, "num_stages": 2, "threads": 128}


def test_all_combinations_in_a_fixed_order() -> None:
    space = tiledsl.space(block_M=[64, 128], block_N=(32, 64), threads=128, stages=range(2, 4))
    assert len(space) == 8
    assert list(space)[:3] == [
        {"block_M": 64, "block_N": 32, "threads": 128, "stages": 2},
        {"block_M": 64, "block_N": 32, "threads": 128, "stages": 3},
        {"block_M": 64, "block_N": 64, "threads": 128, "stages": 2},
    ]
    assert list(space) == list(space) and {"block_M": 128, "block_N": 64, "threads": 128, "stages": 3} in space
    assert list(tiledsl.space(x={"b", "a"})) == [{"x": "a"}, {"x": "b"}]
    assert repr(space).endswith("8 configurations>")


def test_where_sees_values_as_items_and_attributes() -> None:
    space = tiledsl.space(a=[1, 2, 3], b=[1, 2, 3], where=lambda c: c.a < c.b and c["a"] != 2)
    assert list(space) == [{"a": 1, "b": 2}, {"a": 1, "b": 3}]
    assert list(space.where(lambda c: c.b == 3)) == [{"a": 1, "b": 3}]
    with pytest.raises(tiledsl.TileError, match=r"where raises AttributeError: the configuration has no 'c'") as caught:
        list(tiledsl.space(a=[7], where=lambda c: c.c))
    assert "for a=7" in str(caught.value)


def test_unions_keep_each_configuration_once() -> None:
    small, large = tiledsl.space(x=[1, 2]), tiledsl.space(x=[2, 3], y=[0])
    assert list(small | large) == [{"x": 1}, {"x": 2}, {"x": 2, "y": 0}, {"x": 3, "y": 0}]
    more = [{"x": 2}, {"x": 9}]
    assert list(small + more) == [{"x": 1}, {"x": 2}, {"x": 9}]
    assert list(more + small) == [{"x": 2}, {"x": 9}, {"x": 1}]
    assert len(small | small) == 2


def test_iterating_gives_copies() -> None:
    space = tiledsl.space(x=[1])
    next(iter(space))["x"] = 5
    assert list(space) == [{"x": 1}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tiledsl.space(), "there is no tunable"),
        (lambda: tiledsl.space(x=[]), "x has no values"),
        (lambda: tiledsl.space(x=[1, 2, 1]), "x has 1 twice"),
        (lambda: tiledsl.space(x=[1], where=3), "where is 3"),
        (
            lambda: tiledsl.space(x=range(10_000), y=range(10_000)),
            r"100,000,000 combinations \(10000 of x \* 10000 of y\)",
        ),
        (lambda: tiledsl.space(x=[1]) | "ab", "not with 'ab'"),
        (lambda: tiledsl.space(x=[1]) | [2], "2 is none"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=message):
        make()


def test_values_may_come_from_iterators_and_arrays() -> None:
    space = tiledsl.space(x=(2**n for n in range(2)), y=numpy.array([4, 8]), z="ab", w=numpy.int64(3))
    assert [tuple(config.values()) for config in space][:2] == [(1, 4, "ab", 3), (1, 8, "ab", 3)] and len(space) == 4
    assert all(type(config["y"]) is int for config in space)


def test_numbers_of_numpy_are_as_good_as_pythons() -> None:
    configs = [{"block": numpy.int64(16), "num_warps": numpy.int32(1)}]
    result = tiledsl.autotune(configs=configs, ref_prog=twice)(scale_jit)()
    assert result.config == {"block": 16, "num_warps": 1} and type(result.config["block"]) is int


def test_a_space_is_what_autotune_takes() -> None:
    function = tiledsl.autotune(configs=tiledsl.space(block=[16, 32]) | [{"block": 64}], ref_prog=twice)(scale_jit)
    result = function()
    assert [trial.config for trial in result.trials] == [{"block": 16}, {"block": 32}, {"block": 64}]
    assert all(trial.verified for trial in result.trials)


def test_launch_options_reach_the_kernel() -> None:
    config = {**GEMM, "num_warps": 8, "maxnreg": 128, "num_ctas": 2}
    kernel = kernels.gemm.kernel_for({"M": 256, "N": 256, "K": 256}, config)
    (emitted,) = kernel.module.kernels
    assert (emitted.num_warps, emitted.options["maxnreg"], emitted.options["num_ctas"]) == (8, 128, 2)
    assert "num_warps=8, num_stages=1, num_ctas=2, maxnreg=128" in kernel.source
    plain = kernels.gemm.kernel_for({"M": 256, "N": 256, "K": 256}, GEMM)
    assert plain.module.kernels[0].num_warps == 4 and plain is not kernel


def test_pass_options_reach_the_kernel() -> None:
    config = {**GEMM, "pass_configs": {"map-grid.group_m": 4}}
    sizes = {"M": 1024, "N": 1024, "K": 256}
    assert kernels.gemm.kernel_for(sizes, config).source != kernels.gemm.kernel_for(sizes, GEMM).source
    with pytest.raises(tiledsl.TileError, match="gemm: maxnreg is 0; it must be a number from 1 to 255"):
        kernels.gemm.kernel_for(sizes, {**GEMM, "maxnreg": 0})


def test_launch_options_of_the_builder_are_its_own() -> None:
    """A parameter with the name of a launch option goes to the builder."""
    emitted = kernels.gemm.kernel_for({"M": 256, "N": 256, "K": 256}, GEMM).module.kernels[0]
    assert emitted.num_stages == 1  # the loop says how many stages; the launch does not


def test_tuning_over_launch_options() -> None:
    configs = tiledsl.space(block=[16, 32], num_warps=[1, 2])
    result = tiledsl.autotune(configs=configs, ref_prog=twice)(scale_jit)()
    assert len(result.trials) == 4 and all(trial.ok for trial in result.trials)
    assert {f"num_warps={warps}" in trial.source for warps in (1, 2) for trial in result.trials[warps - 1 :: 2]} == {
        True
    }
