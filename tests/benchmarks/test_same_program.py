"""TileLang's examples under both compilers: which scripts are run, and how."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from benchmarks import same_program
from tests.conformance.scripts import SCRIPTS
from tiledsl.commands.beside import Plan


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    request: dict[str, Any] = {}

    def run(jobs: Any, plan: Plan, file: Path | None, seconds: float | None) -> Any:
        request.update(jobs=jobs, plan=plan, file=file, seconds=seconds)
        return []

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "einops" else name)
    monkeypatch.setattr(same_program, "run_jobs", run)
    return request


def test_the_listed_scripts_whose_packages_are_there(
    tmp_path: Path, asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [each for each in SCRIPTS if each.entry or each.path == "quickstart.py" or each.needs == ("einops",)]
    for each in [*(each.path for each in wanted), "new/other.py"]:
        (tmp_path / "examples" / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "examples" / each).write_text("import tilelang\n")
    out = tmp_path / "same.json"
    words = [str(tmp_path), "--seconds", "400", "--workers", "14", "--out", str(out)]
    assert same_program.main(words) == 0
    assert (asked["plan"], asked["file"], asked["seconds"]) == (Plan(14, 150.0), out, 400.0)
    jobs = {job.name: job for job in asked["jobs"]}
    assert jobs["quickstart.py"].script == tmp_path / "examples" / "quickstart.py" and not jobs["quickstart.py"].entry
    for each in wanted:
        there = "einops" not in each.needs and not any("<" in need for need in each.needs)
        assert not there or jobs[each.path].entry == (each.entry or None)
        assert there or "einops" not in each.needs or each.path not in jobs
    assert "deepseek_mla/experimental/example_mla_decode_kv_fp8.py needs einops" in capsys.readouterr().err
    assert Path(jobs["quickstart.py"].paths[0], "checks.py").is_file()
    assert "new/other.py" not in jobs
    same_program.main([*words, "--all", "--only", "^new/"])
    assert [job.name for job in asked["jobs"]] == ["new/other.py"]


def test_without_tilelang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert same_program.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("tilelang is not installed here")
