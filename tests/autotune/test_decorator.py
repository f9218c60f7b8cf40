"""The decorator and AutoTuner: arguments, both styles, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import SIZE, eager_scale, scale_builder, twice
from tiledsl.autotuner import AutoTuner, AutotuneResult, set_autotune_inputs
from tiledsl.autotuner.other_names import CompileArgs, from_tilelang

BLOCKS = [{"block": 64}, {"block": 32}, {"block": 16}]
scale_jit = tiledsl.jit(out_idx=-1)(scale_builder)


def tuned(configs: Any = BLOCKS, **options: Any) -> Any:
    return tiledsl.autotune(configs=configs, **{"ref_prog": twice, **options})(scale_jit)


def test_a_lazy_builder_returns_a_result_that_is_a_kernel() -> None:
    result = tuned()()
    assert isinstance(result, tiledsl.AutotuneResult)
    A = torch.randn(SIZE)
    torch.testing.assert_close(result(A), A * 2)
    assert result.config in BLOCKS and result.kernel.config == result.config
    assert result.latency is not None and result.latency == result.kernel.latency and result.latency_kind == "estimated"
    assert result.ref_latency is None and result.from_cache == ""
    assert result.source == result.kernel.source == result.get_kernel_source() == result.libcode == result.best.source
    assert [param.name for param in result.params] == ["A", "B"]
    assert result.ir("cse") == result.kernel.ir("cse") and "tile.copy" in result.trials[1].ir()
    result.get_profiler().assert_allclose(twice)
    assert [trial.config for trial in result.trials] == BLOCKS
    assert all(trial.ok and trial.verified and trial.max_error == 0 for trial in result.trials)
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        result.nothing_of_this_name


def test_a_builder_that_takes_anything_gets_its_configuration() -> None:
    def scale(size: int, **config: Any) -> Any:
        return scale_builder(size=size, **config)

    function = tiledsl.autotune(configs=[{"block": 32}, {"block": 16}], ref_prog=twice)(tiledsl.jit(out_idx=-1)(scale))
    assert [trial.status for trial in function(64).trials] == ["ok", "ok"]
    passed = function(64, variant="right")
    assert [(trial.config, trial.status) for trial in passed.trials] == [({"block": 32}, "ok"), ({"block": 16}, "ok")]
    torch.testing.assert_close(passed(torch.ones(64)), torch.full((64,), 2.0))
    assert [trial.config for trial in function(64, block=16).trials] == [{"block": 16}]
    with pytest.raises(tiledsl.TileError, match="nonfinite: 2"):
        function(64, variant="half")
    assert function.jit(64, block=8, factor=3.0)(torch.ones(64))[0] == 3.0


def test_the_table_names_every_configuration() -> None:
    result = tuned([*BLOCKS, {"block": 64, "variant": "unwritten"}])()
    lines = result.table().splitlines()
    assert [line.split("ok")[0].split() for line in lines if line.startswith("*")] == [
        ["*", "1", str(result.best.index), f"block={result.config['block']}"]
    ]
    assert sum(" ok " in line for line in lines) == 3
    assert any(line.split()[:5] == ["-", "3", "block=64", "variant=unwritten", "nonfinite"] for line in lines)
    assert "not written" in lines[-1]


def test_a_tunable_given_by_the_call_is_fixed() -> None:
    function = tuned([{"block": b, "factor": f} for b in (16, 32) for f in (2.0, 2.001)])
    result = function(block=64)
    assert [trial.config for trial in result.trials] == [{"block": 64, "factor": 2.0}, {"block": 64, "factor": 2.001}]
    assert len(function(16, 2.0).trials) == 1
    assert len(function(block=None).trials) == 4


@pytest.mark.parametrize(
    "configs",
    [
        lambda block=None, factor=2.0, variant="right", size=0: [{"block": size // 2}],
        lambda size: [{"block": size // 2}],
        lambda *args, **kwargs: [{"block": kwargs["size"] // 2}],
    ],
)
def test_a_configs_function_gets_the_call(configs: Any) -> None:
    assert tuned(configs)(size=32).config == {"block": 16}


def test_pass_configs_are_tunable() -> None:
    configs = [{"block": 32, "pass_configs": {"unroll-loops.limit": limit}} for limit in ("nonsense",)]
    with pytest.raises(tiledsl.TileError, match="unroll-loops"):
        tuned(configs)()


def test_eager_style_tunes_on_the_call_and_runs() -> None:
    scale = tiledsl.autotune(configs=BLOCKS[1:], ref_prog=twice)(eager_scale)
    A = torch.randn(48)
    kept = A.clone()
    torch.testing.assert_close(scale(A), kept * 2)
    assert torch.equal(A, kept)
    result = scale.compile(A)
    assert result.from_cache == "memory" and [trial.status for trial in result.trials] == ["ok", "ok"]
    assert scale.compile(torch.randn(96)).from_cache == ""


def test_calls_like_an_earlier_one_bind_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = tuned()
    first = lazy(32)
    eager = tiledsl.autotune(configs=BLOCKS, ref_prog=twice)(eager_scale)
    A, other = torch.randn(SIZE), torch.randn(SIZE)
    torch.testing.assert_close(eager(A), A * 2)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("bound again")

    with monkeypatch.context() as patch:
        patch.setattr(type(eager.jit), "_bind", refuse)
        again = lazy(32)
        assert again.kernel is lazy(32).kernel and again.config == first.config and again.from_cache == "memory"
        torch.testing.assert_close(eager(other), other * 2)
        for call in (lambda: lazy(16), lambda: eager(torch.randn(2 * SIZE)), lambda: eager(A=A)):
            with pytest.raises(AssertionError, match="bound again"):
                call()
        with set_autotune_inputs(A), pytest.raises(AssertionError, match="bound again"):
            eager(A)
        with tiledsl.settings(always_tune=True), pytest.raises(AssertionError, match="bound again"):
            lazy(32)
    with tiledsl.settings(always_tune=True):
        assert lazy(32).from_cache == lazy(32).from_cache == ""
    assert lazy(32).kernel is again.kernel


def test_a_mistake_in_an_eager_programs_text_is_told_at_once() -> None:
    @tiledsl.autotune(configs=[{"block": 16}, {"block": 32}])
    @tiledsl.jit
    def scale(A, block=None):
        with T.Kernel(1, threads=128) as bx:
            try:
                bx = bx + 1
            finally:
                pass

    with pytest.raises(tiledsl.TileError, match="error: 'try' is not part of the tile language"):
        scale(torch.randn(48))


def test_auto_tuner_as_an_object() -> None:
    tuner = AutoTuner.from_kernel(kernel=scale_builder, configs=BLOCKS)
    result = (
        tuner.set_compile_args(out_idx=[-1], target="interpret").set_profile_args(ref_prog=twice).run(warmup=3, rep=5)
    )
    assert isinstance(result, AutotuneResult) and result.config in BLOCKS
    assert AutoTuner(scale_jit, BLOCKS).set_profile_args(ref_prog=twice, backend="event").run().kernel.outputs == (1,)
    with pytest.raises(tiledsl.TileError, match="no option 'ref_progg'"):
        tuner.set_profile_args(ref_progg=twice)


def test_auto_tuner_has_tunables_only() -> None:
    def sized(size: int, block: int = 16) -> Any:
        return scale_builder(size, block)

    with pytest.raises(tiledsl.TileError) as caught:
        AutoTuner.from_kernel(sized, BLOCKS).run()
    assert "AutoTuner: sized needs size, and run() passes tunables only" in str(caught.value)
    assert "`def sized(block): return sized(size=..., block=block)`" in str(caught.value)


def test_set_autotune_inputs() -> None:
    seen = []

    def reference(A: Any) -> Any:
        seen.append(A.clone())
        return A * 2

    given = torch.full((SIZE,), 3.0)
    with set_autotune_inputs([given]):
        tuned(ref_prog=reference)()
    assert torch.equal(seen[0], given)
    with (
        set_autotune_inputs(given, given),
        pytest.raises(tiledsl.TileError, match="set_autotune_inputs gives 2 inputs"),
    ):
        tuned()()
    with pytest.raises(tiledsl.TileError, match="supply_prog gives 2 inputs; scale takes 1"):
        tuned(supply_prog=lambda params: [given] * 2)()
    assert tuned(supply_prog=lambda params: [torch.ones(p.shape) for p in params])().best.verified


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([], "there is no configuration to try"),
        ([{"block": 16}, 32], "configuration 1 is 32, not a dict"),
        ([{"blok": 16}], "sets 'blok', which is not a parameter\n  note: did you mean 'block'"),
        ([{"block": 16}, {"block": 16}], "configurations 0 and 1 are the same: block=16"),
        ({"block": 16}, "configs is {'block': 16}\n  note: it must be a list of dicts"),
        (None, "write @tiledsl.autotune"),
    ],
)
def test_bad_configs(configs: Any, message: str) -> None:
    with pytest.raises(tiledsl.TileError) as caught:
        tuned(configs)
    assert message in str(caught.value)


def test_bad_decorations_and_calls() -> None:
    with pytest.raises(tiledsl.TileError, match=r"needs configurations: write @tiledsl.autotune\(configs="):
        tiledsl.autotune(scale_jit)
    with pytest.raises(tiledsl.TileError, match=r"stands above @tiledsl.jit; scale_builder is not jitted"):
        tiledsl.autotune(configs=BLOCKS)(scale_builder)
    with pytest.raises(tiledsl.TileError, match="'nothing', which is not a parameter"):
        tuned(do_not_specialize=["nothing"])
    with pytest.raises(tiledsl.TileError, match="has no parameter 'sise'"):
        tuned()(sise=3)
    with pytest.raises(tiledsl.TileError, match="rep is -1"):
        tuned(rep=-1)
    with pytest.raises(tiledsl.TileError, match="configs wants an argument 'other'"):
        tuned(lambda other: BLOCKS)()
    with pytest.raises(tiledsl.TileError, match="unknown tensor supply 'fibonacci'"):
        tuned(supply_type="fibonacci")
    with pytest.raises(tiledsl.TileError, match="configs raises KeyError: 'none'"):
        tuned(lambda: {}["none"])()
    with pytest.raises(tiledsl.TileError, match="key raises TypeError") as caught:
        tuned(key=lambda other: other)()
    assert "it is given the arguments by name: block, factor, variant, size" in str(caught.value)
    with pytest.raises(tiledsl.TileError, match=r"test_decorator.py:\d+:\d+: error: scale_builder: too many"):
        tuned()(*range(20))


@pytest.mark.parametrize("calls", [3, None, "abc", (64, 64), [3], ["abc"], {"size": 3}])
def test_calls_that_are_none(calls: Any) -> None:
    with pytest.raises(tiledsl.TileError, match="tune_all of scale_builder: ") as caught:
        tuned().tune_all(calls)
    assert "write a list, [(arguments of a call), (of another), ...]" in str(caught.value)


def test_the_first_configuration_without_tuning(cache_dir: Path) -> None:
    function = tiledsl.autotune(configs=BLOCKS, ref_prog=twice)(tiledsl.jit(out_idx=-1)(scale_builder))
    kernel = function.untuned()
    assert kernel.config == BLOCKS[0]
    A = torch.randn(SIZE)
    torch.testing.assert_close(kernel(A), A * 2)
    assert not (cache_dir / "autotune").exists()


def test_tilelangs_names(tmp_path: Path) -> None:
    """Of AutoTuner.run, and of the folders of results."""
    tuner = AutoTuner.from_kernel(scale_builder, BLOCKS).set_compile_args(out_idx=-1).set_profile_args(ref_prog=twice)
    result = tuner.run(
        use_pipeline=True, enable_grouped_compile=True, group_compile_size=4, benchmark_multi_gpu=True,
        benchmark_devices=[0], early_stop=True, early_stop_factor=3.0,
    )  # fmt: skip
    result.save_to_disk(tmp_path / "kept" / "scale", verbose=True)
    again = AutotuneResult.load_from_disk(tmp_path / "kept" / "scale", CompileArgs(target="interpret"))
    assert again is not None and (again.config, again.latency) == (result.config, result.latency)
    A = torch.randn(SIZE)
    assert torch.equal(again(A), A * 2)
    assert AutotuneResult.load_from_disk(tmp_path / "nothing", CompileArgs()) is None
    assert from_tilelang({"backend": "cupti", "benchmark_devices": [1, 2], "benchmark_multi_gpu": True, "rep": 5}) == {
        "devices": [1, 2], "rep": 5,
    }  # fmt: skip
    assert from_tilelang({"benchmark_devices": [1], "benchmark_multi_gpu": False}) == {}


def build_doubled(N, rows=4, block=32):
    @T.prim_func
    def doubled(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block)) as bx:
            for i in T.Parallel(block):
                B[bx * block + i] = A[bx * block + i] * 2

    return doubled


def test_an_estimate_names_its_gpu(cache_dir: Path) -> None:
    tuned = tiledsl.autotune(configs=[{"block": 32}], target="cuda:90", skip_check=True)
    result = tuned(tiledsl.jit(out_idx=-1)(build_doubled))(64)
    assert result.estimated_for == "H200" and " ms estimated for H200, 1 trials>" in repr(result)


@pytest.mark.parametrize("target", ["interpret", "cuda:90"])
def test_long_checks_suggest_a_smaller_size(
    target: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def function(**options: Any) -> Any:
        jit = tiledsl.jit(out_idx=-1)(build_doubled)
        configs = [{"block": 256}, {"block": 512}]
        return tiledsl.autotune(configs=configs, target=target, ref_prog=lambda a: a * 2, **options)(jit)

    quick = function(verify_at={"N": 256} if target == "cuda:90" else None)
    quick(1024)
    assert "the interpreter takes" not in caplog.text
    monkeypatch.setattr("tiledsl.autotuner.run._LONG", 0.0)
    function()(2048)
    (said,) = [each.getMessage() for each in caplog.records if "the interpreter takes" in each.getMessage()]
    way_out = "verify_at={'N': 256} checks them at a smaller size"
    expected = f"for a GPU, as with target='cuda:90', {way_out}" if target == "interpret" else way_out
    assert said.startswith("autotune: build_doubled: the interpreter takes ") and said.endswith(f"left; {expected}")
