"""What `tiledsl doctor` says of machines that lack something: each finding has its way out."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import namedtuple
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_cli import tiledsl
from tiledsl.commands import findings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def test_the_oldest_versions_are_those_that_pip_knows() -> None:
    needs = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    bounds = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups() for each in needs if ";" not in each)  # type: ignore[union-attr]
    assert {name: ".".join(map(str, least)) for name, least in findings.LEAST.items()} == bounds


def test_the_extras_are_those_that_pip_knows() -> None:
    optional = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    known = {
        extra: [f"{name}>={'.'.join(map(str, least))}" for name, least in needs.items()]
        for extra, (needs, _) in findings.EXTRAS.items()
    }
    assert known == {extra: needs for extra, needs in optional.items() if extra not in ("dev", "docs")}


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Pretend that exactly these distributions are there; torch's wants Triton 3.6.0."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: ['triton==3.6.0; platform_system == "Linux"'])


ALL = {
    "click": "8.1.0", "filelock": "3.12.0", "joblib": "1.4.0", "lark": "1.1.7", "networkx": "3.1", "numpy": "2.4.6",
    "platformdirs": "4.0.0", "rich": "13.0.0", "torch": "2.10.0+cu128", "triton": "3.6.0",
}  # fmt: skip


def test_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, **ALL)
    assert [(each.what, each.good, each.do) for each in findings.packages()] == [
        ("torch", True, ""), ("triton", True, ""), ("other packages", True, ""),
    ]  # fmt: skip
    installed(monkeypatch, **{**ALL, "joblib": "1.3.2", "triton": "3.7.0", "torch": "2.9.1"})
    torch, triton, joblib = findings.packages()
    assert (torch.good, torch.detail, torch.do) == (False, "2.9.1, older than 2.10", "pip install 'torch>=2.10'")
    assert (triton.good, triton.detail) == (True, "3.7.0; torch comes with 3.6.0") and "triton==3.6.0" in triton.do
    assert (joblib.what, joblib.good, joblib.do) == ("joblib", False, "pip install 'joblib>=1.4'")
    installed(monkeypatch, **{name: version for name, version in ALL.items() if name != "torch"})
    torch = next(findings.packages())
    assert (torch.good, torch.detail, torch.do) == (False, "missing", findings.CPU_TORCH)


def test_extras_say_what_they_give_and_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, **{"z3-solver": "4.13.0", "jinja2": "3.1.4"})
    verify, report = findings.extras()
    assert verify == findings.Finding("extra: verify", True, "z3-solver 4.13.0: proofs in certificates")
    assert report == findings.Finding(
        "extra: report", None, "jinja2 3.1.4, plotly missing: pages of HTML",
        "pip install 'tiledsl[report]', if you want them",
    )  # fmt: skip
    installed(monkeypatch, **{"z3-solver": "4.11"})
    old = next(findings.extras())
    assert (old.good, old.detail) == (None, "z3-solver 4.11, older than 4.12: proofs in certificates")


def test_known_mistakes_are_those_of_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [findings.concerns(text, "triton", "3.7.1") for text in ("3.6, 3.7", "3.6", "all", "ptxas 3.7")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert [findings.concerns("ptxas up to 13.4", "ptxas", each) for each in ("12.9", "13.4", "13.5")] == [
        True, True, False,
    ]  # fmt: skip
    monkeypatch.setattr(findings, "triton_version", lambda: "3.6.0")
    monkeypatch.setattr(findings, "ptxas_version", lambda: "13.5")
    (only,) = findings.mistakes()
    assert only.good and "float8-number" in only.detail and only.do == ""  # nothing is wrong here
    assert only.detail.startswith("kernels keep away from those of triton 3.6.0, or are refused with a message: ")
    assert only.detail.endswith("; Triton 3.9 has fewer")
    assert "float8-pair-twice" not in only.detail


def test_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = findings.folder_state("cache", tmp_path / "file" / "cache", "TILEDSL_CACHE_DIR")
    assert state.good is False and "cannot be written" in state.detail
    assert state.do == "set TILEDSL_CACHE_DIR to a folder of yours"
    assert findings.folder_state("cache", tmp_path, "X") == findings.Finding("cache", True, str(tmp_path))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(1 << 40, 1 << 40, 5 << 20))
    full = findings.folder_state("cache", tmp_path, "TILEDSL_CACHE_DIR")
    assert full.good is False and "5 MiB left" in full.detail and full.do.startswith("tiledsl cache clear")
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert (
        str(tmp_path / ".triton" / "cache") in next(each for each in findings.folders() if "Triton" in each.what).detail
    )


def test_without_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "ptxas_version", lambda: "")
    assert findings.ptxas(True).good is False and "TRITON_PTXAS_PATH" in findings.ptxas(True).do
    assert findings.ptxas(False).good is None


@pytest.mark.parametrize(
    ("driver", "toolkit", "wrong"),
    [("12.4", "12.8", False), ("12.8", "13.0", True), ("13.0", "12.8", False), ("", "13.0", False)],
)
def test_a_driver_that_is_older_than_torch(driver: str, toolkit: str, wrong: bool) -> None:
    state = findings.driver_state(driver, toolkit)
    assert (state is not None) == wrong
    if state is not None:
        assert state.good is False and state.detail == "the driver is of CUDA 12.8, older than torch's CUDA 13.0"
        assert state.do == "update the driver, or install torch for CUDA 12"


def test_why_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = ModuleType("torch")
    torch.__version__, torch.version = "2.13.0+cpu", ModuleType("version")  # type: ignore[attr-defined]
    torch.version.cuda = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(findings, "NVIDIA", tmp_path / "version")
    assert findings.missing_gpu().good is None
    (tmp_path / "version").write_text("")
    assert "torch 2.13.0+cpu has no CUDA" in findings.missing_gpu().detail
    assert "install torch with CUDA" in findings.missing_gpu().do
    torch.version.cuda = "13.0"  # type: ignore[attr-defined]
    monkeypatch.setattr(findings, "driver_cuda", lambda: "12.8")
    assert "older than torch's CUDA 13.0" in findings.missing_gpu().detail
    monkeypatch.setattr(findings, "driver_cuda", lambda: "13.1")
    assert findings.missing_gpu().detail == "NVIDIA's driver is loaded, but torch finds no GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert findings.missing_gpu().do == "unset CUDA_VISIBLE_DEVICES"


def test_the_clock() -> None:
    steady = findings.clock(lambda: (1900, 1980), lambda: None)
    assert (steady.good, steady.detail, steady.do) == (True, "1900 to 1900 MHz under load, of 1980 at most", "")
    clocks = iter([(1980, 1980)] * 10 + [(1400, 1980)] * 10)
    falling = findings.clock(lambda: next(clocks), lambda: None)
    assert falling.good is None and "1400 to 1980 MHz" in falling.detail and "nvidia-smi -lgc" in falling.do
    assert findings.clock(None, lambda: None).good is None


def test_the_report_shows_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is run where torch is missing, and everything else is still said."""
    installed(monkeypatch, **{name: version for name, version in ALL.items() if name != "torch"})
    monkeypatch.setenv("TILEDSL_CACHE_DIR", os.devnull + "/x")
    result = tiledsl("doctor")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    torch = next(number for number, line in enumerate(lines) if line.startswith("torch"))
    assert lines[torch].split()[1:] == ["FAILED", "missing"] and lines[torch + 1].strip() == "-> " + findings.CPU_TORCH
    assert any("set TILEDSL_CACHE_DIR to a folder of yours" in line for line in lines)
    assert lines[-1].startswith("kernels") and lines[-1].endswith("not tried: torch is missing")
