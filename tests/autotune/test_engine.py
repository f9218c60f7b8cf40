"""A tuning run: who wins, what is recorded, what cannot end it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import scale_block, scale_builder, twice
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.measuring import bench, measure
from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.verifying.compare import difference
from tiledsl.autotuner.verifying.reference import Reference

scale_jit = tiledsl.jit(out_idx=-1)(scale_builder)


def tuned(*configs: dict[str, Any], **options: Any) -> Any:
    return tiledsl.autotune(configs=configs, **{"ref_prog": twice, **options})(scale_jit)


def test_the_fastest_right_configuration_wins(timer: Any) -> None:
    times = {16: 3.0, 32: 1.0, 64: 2.0}
    timed = timer(lambda config: times[config["block"]])
    result = tuned(*({"block": block} for block in times))()
    assert (result.config, result.latency, result.ref_latency, result.latency_kind) == (
        {"block": 32},
        1.0,
        7.0,
        "measured",
    )
    assert (result.kernel.latency, result.kernel.ref_latency) == (1.0, 7.0)
    assert sorted(config["block"] for config in timed) == [16, 32, 64]


def test_of_equals_the_first_by_its_values_wins(timer: Any) -> None:
    timer(lambda config: 1.0)
    assert tuned({"block": 32}, {"block": 16})().config == {"block": 16}


@pytest.mark.parametrize(
    ("wrong", "status", "message"),
    [
        ({"factor": 2.5}, "mismatch", r"wrong in \d+ of 64 elements"),
        ({"variant": "unwritten"}, "nonfinite", "not written; wrong in 64 of 64"),
        ({"variant": "half"}, "nonfinite", "not written; wrong in 32 of 64"),
    ],
)
def test_a_wrong_configuration_never_wins(timer: Any, wrong: dict[str, Any], status: str, message: str) -> None:
    timed = timer(lambda config: 0.001 if config["block"] == 32 else 1.0)
    result = tuned({"block": 32, **wrong}, {"block": 16})()
    assert result.config == {"block": 16} and len(timed) == 1
    failed = result.trials[0]
    assert (failed.status, failed.latency, failed.verified) == (status, None, False)
    assert re.search(message, failed.message)


def test_failing_configurations_are_recorded() -> None:
    configs = [{"block": 16, "variant": "raises"}, {"block": 16, "variant": "refused"}, {"block": None}, {"block": 32}]
    result = tuned(*configs)()
    assert [trial.status for trial in result.trials] == ["compile_error"] * 3 + ["ok"]
    messages = [trial.message for trial in result.trials]
    assert messages[0] == "ValueError: no block of 16" and "ZeroDivisionError" in messages[1]
    assert "programs.py:" in messages[2] and "^" in messages[2]
    assert result.config == {"block": 32}


def test_if_none_works_the_error_is_a_table() -> None:
    configs = [{"block": 16, "variant": "raises"}, {"block": 32, "variant": "raises"}, {"block": 16, "factor": 3.0}]
    with pytest.raises(tiledsl.TileError) as caught:
        tuned(*configs)()
    text = str(caught.value)
    assert "none of 3 configurations of scale_builder works on interpret" in text
    assert "compile_error: 2; first, block=16 variant=raises:\n    ValueError: no block of 16" in text
    assert "mismatch: 1; first, block=16 factor=3.0:" in text


def test_a_launch_that_fails_costs_only_itself(timer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timer(lambda config: 1.0)
    original = bench.Bench._call

    def call(self: Any, job: Any, *arguments: Any) -> Any:
        if job.config["block"] == 16:
            raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
        return original(self, job, *arguments)

    monkeypatch.setattr(bench.Bench, "_call", call)
    result = tuned({"block": 16}, {"block": 32})()
    assert [trial.status for trial in result.trials] == ["crash", "ok"]
    assert "illegal memory access" in result.trials[0].message


def test_a_timer_that_fails_costs_only_its_configuration(timer: Any) -> None:
    timer(lambda config: 1.0 if config["block"] == 32 else 1 // 0)
    assert [trial.status for trial in tuned({"block": 16}, {"block": 32})().trials] == ["launch_error", "ok"]


def test_hopeless_configurations_are_screened(timer: Any) -> None:
    timer(lambda config: float(config["block"]))
    result = tuned({"block": 16}, {"block": 64}, {"block": 32}, early_stop=True, early_stop_factor=3.0)()
    assert [trial.status for trial in result.trials] == ["ok", "screened", "ok"]


def test_identical_sources_are_run_once(stages: Counter[str]) -> None:
    configs = [{"block": 32}, {"block": 32, "variant": "also right"}, {"block": 16}]
    result = tuned(*configs)()
    assert stages["verify"] == 2
    first, second, _ = result.trials
    assert second.same_as == 0 and second.ok and second.verified and second.latency == first.latency
    assert "(as 0)" in result.table()


def test_identical_sources_share_what_the_final_round_found(timer: Any) -> None:
    timer(lambda config: 1.0)
    first, second, _ = tuned({"block": 32}, {"block": 32, "variant": "also right"}, {"block": 16})().trials
    assert first.rounds > 0 and second.rounds == first.rounds and second.latency == first.latency


def test_a_reference_that_raises_is_an_error_at_once() -> None:
    with pytest.raises(tiledsl.TileError, match="ref_prog raises ZeroDivisionError"):
        tuned({"block": 16}, ref_prog=lambda A: A * (1 // 0))()


def test_the_reference_runs_four_times_however_many_configurations() -> None:
    dtypes = []

    def reference(A: Any) -> Any:
        dtypes.append(A.dtype)
        return A * 2

    tuned({"block": 16}, {"block": 32}, {"block": 64}, ref_prog=reference)()
    once = [torch.float32, torch.float64]  # as written, and in higher precision
    assert dtypes == once + once  # the second time for inputs that cancel


def test_manual_check() -> None:
    def check(outputs: Any, expected: Any) -> None:
        assert isinstance(outputs, list) and isinstance(expected, list)  # also where there is one
        (output,), (wanted,) = outputs, expected
        assert torch.allclose(output, wanted), "not close"

    result = tuned({"block": 16, "factor": 2.001}, {"block": 32}, manual_check_prog=check)()
    assert [trial.status for trial in result.trials] == ["mismatch", "ok"]
    assert "not close" in result.trials[0].message
    assert tuned({"block": 16, "factor": 3.0}, skip_check=True)().best.verified is False


def test_kernels_that_write_into_their_inputs() -> None:
    def builder(block: int = 32, factor: float = 2.0) -> Any:
        @T.prim_func
        def scale_in_place(A: T.Tensor((64,), "float32")):
            with T.Kernel(64 // block, threads=128) as bx:
                scale_block(A, A, bx, block, factor)

        return scale_in_place

    configs = [{"block": 64, "factor": 4.0}, {"block": 32}, {"block": 16}]
    for reference in (lambda A: A.mul_(2), lambda A: [A.mul_(2), None][1]):
        result = tiledsl.autotune(configs=configs, ref_prog=reference)(tiledsl.jit(builder))()
        assert [trial.status for trial in result.trials] == ["mismatch", "ok", "ok"]


def test_which_tiles_of_which_output_are_wrong() -> None:
    def builder(block: int = 16, wrong: int = 0) -> Any:
        @T.prim_func
        def two_outputs(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
            with T.Kernel(64 // block, threads=128) as bx:
                x = T.alloc_fragment((block,), "float32")
                T.copy(A[bx * block], x)
                T.copy(x, B[bx * block])
                for i in T.Parallel(block):
                    x[i] = x[i] * T.if_then_else(bx == wrong, 3.0, 2.0)
                T.copy(x, C[bx * block])

        return two_outputs

    configs = [{"block": 16, "wrong": 1}, {"block": 32, "wrong": -1}]
    result = tiledsl.autotune(configs=configs, ref_prog=lambda A: (A, A * 2))(tiledsl.jit(out_idx=[1, 2])(builder))()
    wrong, right = result.trials
    assert right.ok and wrong.message.startswith("output 1 is wrong in 16 of 64 elements")
    assert wrong.message.endswith("; both in tile [1] of 16")


def test_blocks_of_one_element_are_no_tiles() -> None:
    def builder(wrong: float = 2.0, threads: int = 32) -> Any:
        @T.prim_func
        def doubled(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32")):
            with T.Kernel(8, threads=threads) as bx:
                B[bx] = A[bx] * wrong

        return doubled

    configs = [{"wrong": 3.0}, {"threads": 64}]
    result = tiledsl.autotune(configs=configs, ref_prog=lambda A: A * 2)(tiledsl.jit(out_idx=[1])(builder))()
    assert result.trials[1].ok and "8 of 8 elements" in result.trials[0].message
    assert "tile" not in result.trials[0].message


def test_what_lies_beyond_the_cap() -> None:
    """Its two numbers count for themselves: a share of each element, and of the root mean square."""
    want = torch.tensor([1.0, 100.0, 0.0])
    got = torch.tensor([1.5, 150.0, 0.0])
    assert [difference(got, want, 1e-3, 1e-3, (share, 0.0)).beyond for share in (0.6, 0.5, 0.4)] == [0, 0, 2]
    got = torch.tensor([1.0, 100.0, 0.2])  # the root mean square is 58
    assert [difference(got, want, 1e-9, 1e-9, (0.5, share)).beyond for share in (0.01, 0.001)] == [0, 1]


def test_comparison_scales_with_the_reference() -> None:
    small = torch.full((100,), 1e-6)
    assert difference(torch.zeros(100), small, 1e-2, 1e-2).mismatched == 100
    large = torch.randn(1000) * 1e4
    large[0] = 0.0
    close = large.clone()
    close[0] = 3.0
    assert difference(close, large, 1e-2, 1e-2).mismatched == 0
    both = torch.tensor([float("nan"), float("inf"), 1.0])
    assert difference(both, both, 0, 0).mismatched == 0
    assert not difference(torch.tensor([float("nan")]), torch.tensor([1.0]), 0, 0).finite


def test_a_reference_that_depends_on_dtypes_counts_as_written() -> None:
    def reference(A: Any) -> Any:
        return A * 2 if A.dtype is torch.float32 else A * 5

    assert tuned({"block": 32}, ref_prog=reference)().best.verified

    def casting(A: Any) -> Any:
        return torch.ones(1, 1) @ A[None]  # float32 and float64 do not multiply

    candidates = Reference(casting, [torch.randn(4)]).candidates
    assert [list(each.returned[0].shape) for each in candidates] == [[1, 4]]


def test_seeds_come_first_and_belong_to_the_space(timer: Any) -> None:
    timed = timer(lambda config: 1.0 / config["block"])
    configs = [{"block": 64}, {"block": 4}, {"block": 8}]
    result = tuned(*configs, seed_configs=[{"block": 16}, {"block": 8}], max_trials=2)()
    assert [trial.config["block"] for trial in result.trials] == [64, 4, 8, 16]
    assert sorted(config["block"] for config in timed) == [8, 16, 64]
    assert result.trials[1].message == "not tried: the search chose others"


def test_a_store_and_a_key_of_ones_own(tmp_path: Any) -> None:
    wanted = ["a"]
    function = tuned({"block": 32}, store=tmp_path / "here", key=lambda **arguments: wanted[0])
    assert [function().from_cache, function().from_cache] == ["", "memory"]
    assert len(list((tmp_path / "here").rglob("best.json"))) == 1
    wanted[0] = "b"
    assert function().from_cache == ""
    assert len(list((tmp_path / "here").rglob("best.json"))) == 2


def test_a_large_space_is_searched_by_successive_halving(timer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the whole engine: few of many are tried, the better ones are timed again and not checked again."""
    monkeypatch.setattr("tiledsl.autotuner.search.EXHAUSTIVE_UP_TO", 30)
    monkeypatch.setattr("tiledsl.autotuner.search._LEAST_TRIALS", 40)
    jobs: list[Any] = []
    backend = measure.InProcess
    submit = backend.submit
    monkeypatch.setattr(backend, "submit", lambda self, job, place: (jobs.append(job), submit(self, job, place)))
    timer(lambda config: 1.0 + 0.001 * abs(config["block"] - 77))
    configs = [{"block": block} for block in range(1, 129)]
    result = tiledsl.autotune(configs=configs, ref_prog=twice, prune=False)(tiledsl.jit(out_idx=-1)(scale_builder))()
    tried = [trial for trial in result.trials if trial.ok]
    assert len(tried) in (40, 41)  # the default is always among them
    assert all(trial.verified for trial in tried) and result.best.rounds
    again = [job for job in jobs if job.checked]
    assert len(again) == 10 and {job.share for job in again} == {0.25}
    assert {job.share for job in jobs if not job.checked} <= {1 / 16, 0.25}
    assert {job.index for job in again} >= {result.best.index}
    others = {trial.message for trial in result.trials if trial.status == "pruned"}
    assert others == {"not tried: the search chose others"}


@pytest.mark.parametrize("search", ["exhaustive", "model", "random"])
def test_a_budget_of_trials_holds_for_every_search(search: str, timer: Any) -> None:
    timed = timer(lambda config: 1.0 / config["block"])
    configs = [{"block": block} for block in range(1, 33)]
    options: dict[str, Any] = {"search": search, "max_trials": 8, "ref_prog": twice}
    result = tiledsl.autotune(configs=configs, **options)(tiledsl.jit(out_idx=-1)(scale_builder))()
    assert len(timed) in (8, 9) and sum(trial.ok for trial in result.trials) == len(timed)


def test_a_run_says_what_it_does() -> None:
    seen: list[Any] = []
    function = tuned({"block": 16}, {"block": 32}, {"block": 64})
    problem = replace(function._problem(function._call((), {})), started=seen.append)
    trials = problem.restore(None, {})
    run = problem.begin(trials, None, lambda trial: None, Alone())
    assert seen == [run] and run.phase() == "lowering"  # whoever holds it may interrupt it
    run._compiling, run._running = {0, 1}, {2}
    assert run.phase() == "2 to compile, 1 to check"
    run._compiling = set()
    assert run.phase() == "1 to check"


@pytest.mark.parametrize("complete", [True, False])
def test_a_result_says_whether_all_was_tried(complete: bool) -> None:
    function = tuned({"block": 16})
    problem = function._problem(function._call((), {}))
    (trial,) = problem.restore(None, {})
    trial.status, trial.latency = "ok", 1.0
    result = problem.result(CachedResult([trial], "measured", None, 0), complete)
    assert result.complete is complete and problem.chosen(result) is result  # which is shown at the end


def test_interrupting_before_any_result_raises(timer: Any) -> None:
    def interrupt(config: dict[str, Any]) -> float:
        raise KeyboardInterrupt

    timer(interrupt)
    with pytest.raises(KeyboardInterrupt):
        tuned({"block": 32}, {"block": 64}, isolate=False)()


def test_a_builder_that_returns_no_program_is_refused_once() -> None:
    called: list[int] = []

    @tiledsl.autotune(configs=[{"block": 16}, {"block": 32}, {"block": 64}])
    @tiledsl.jit
    def forgotten(block=None):
        called.append(block)

    with pytest.raises(tiledsl.TileError) as caught:
        forgotten()
    assert caught.value.message == "forgotten returns nothing, not a program" and called == []
    assert len(caught.value.notes) == 1

    @tiledsl.autotune(configs=[{"block": 16}, {"block": 32}])
    @tiledsl.jit
    def number(block=None):
        return 3

    with pytest.raises(tiledsl.TileError) as caught:
        number()
    assert caught.value.message == "number returns int, not a program"


def test_a_builder_that_returns_no_program_for_one_configuration_costs_that_one_only(timer: Any) -> None:
    timer(lambda config: 1.0)

    def sometimes(block=None):
        return scale_builder(block) if block < 64 else None

    configs = [{"block": 64}, {"block": 16}]
    result = tiledsl.autotune(configs=configs)(tiledsl.jit(out_idx=-1)(sometimes))()
    assert [trial.status for trial in result.trials] == ["compile_error", "ok"]
    assert "sometimes returns NoneType, not a program" in result.trials[0].message
