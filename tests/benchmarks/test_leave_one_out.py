"""Fitting the cost model's constants to recordings, and judging them by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tuning import leave_one_out
from tiledsl.autotuner.predicting.machines import COSTS

RECORDINGS = Path(__file__).parents[2] / "benchmarks" / "results" / "recordings"


@pytest.fixture(scope="module")
def softmax() -> leave_one_out.Family:
    return leave_one_out.family(RECORDINGS / "recording-softmax.json")


def test_a_fit_explains_what_it_was_fitted_to(softmax: leave_one_out.Family) -> None:
    start = leave_one_out.NEUTRAL
    fitted = leave_one_out.fit([softmax], start, 60)
    assert softmax.error(fitted) < 0.8 * softmax.error(start)
    assert fitted.dram == start.dram and all(getattr(fitted, name) <= 1 for name in leave_one_out.FRACTIONS)
    assert leave_one_out.fit([softmax], start, 60) == fitted  # the same in every run


def test_an_order_is_judged_by_times(softmax: leave_one_out.Family) -> None:
    exact = leave_one_out.Family("exact", softmax.target, [*softmax.rows])
    exact.rows.sort(key=lambda row: row.ms)
    found = softmax.judge(COSTS)
    assert len(softmax.rows) == 20 and found == exact.judge(COSTS)
    assert found["spearman"] >= 0.9 and found["rank_of_best"] <= 2 and found["top1"] == "+0.3%"


def test_the_command_prints_every_fit(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(RECORDINGS / f"recording-{name}.json") for name in ("gemm", "softmax")]
    assert leave_one_out.main([*paths, "--steps", "1"]) == 0
    printed = capsys.readouterr().out
    for expected in ("nothing", "the others", "as shipped", "all but gemm", "all but softmax"):
        assert expected in printed
    with pytest.raises(FileNotFoundError, match=r"there is no recording missing\.json"):
        leave_one_out.main(["missing.json"])
