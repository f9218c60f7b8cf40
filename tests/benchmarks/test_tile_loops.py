"""benchmarks/tile_loops.py: which loops count, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import tiledsl
from benchmarks import tile_loops
from tests.support.tile_loops import grouped, summed


def test_loops_that_multiply_tiles_count_where_they_are_written() -> None:
    kernels = [tiledsl.compile(made(), target="cuda:90") for made in (summed, grouped)]
    calls = [*(SimpleNamespace(kernel=kernel, name="f") for kernel in kernels), SimpleNamespace(kernel=None, name="g")]
    for row in tile_loops.of_kernels(calls):
        assert (row["kernel"], row["loops"], row["asked for"]) == ("f", 1, 1) and row["by default"] in (0, 1)
    assert len(tile_loops.of_kernels(calls)) == 2


def test_times_are_those_of_the_first_call_that_was_timed(tmp_path: Path) -> None:
    kernels = [{"kernel": "f", "ratio": ratio} for ratio in (None, 1.5, 3.0)]
    (tmp_path / "results.json").write_text(json.dumps({"scripts": [{"script": "a.py", "kernels": kernels}]}))
    assert tile_loops.ratios(tmp_path / "results.json") == {("a.py", "f"): 1.5}


def test_shares_are_of_loops_and_means_of_kernels() -> None:
    rows = [
        {"loops": 3, "by default": 3, "asked for": 3, "ratio": 4.0},
        {"loops": 1, "by default": 0, "asked for": 1, "ratio": 1.0},
        {"loops": 1, "by default": 0, "asked for": 0, "ratio": None},
    ]
    first, default, asked, everything, chosen, only = tile_loops.summary(rows).splitlines()
    assert (first, default, asked) == (
        "5 loops of tiles in 3 kernels",
        "in Gluon by default: 60.0%",
        "in Gluon asked for: 80.0%",
    )
    assert "of all: 2.00 of 2 timed kernels, least 1.00" in everything
    assert "by default: 4.00 of 1" in chosen and "only if asked for: 1.00 of 1" in only
    assert tile_loops.summary([]).startswith("0 loops")


@pytest.mark.parametrize("missing", [True, False])
def test_scripts_without_their_packages_are_left_out(
    missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tile_loops.SCRIPTS[0]
    (tmp_path / "examples" / script.path).parent.mkdir(parents=True)
    (tmp_path / "examples" / script.path).write_text("")
    monkeypatch.setattr(tile_loops, "is_missing", lambda _: missing)
    monkeypatch.setattr(
        tile_loops, "SCRIPTS", [script if script.needs else SimpleNamespace(path=script.path, needs=("x",))]
    )
    row = {"kernel": "f", "loops": 2, "by default": 0, "asked for": 2}
    monkeypatch.setattr(tile_loops, "of_script", lambda *_: [row])
    assert tile_loops.main([str(tmp_path)]) == 0
    assert ("2 loops of tiles in 1 kernels" in capsys.readouterr().out) == (not missing)
