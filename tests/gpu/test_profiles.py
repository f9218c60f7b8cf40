"""What a GPU alone shows of profiles, metrics and reports: ranges of Proton and NVTX, energy through NVML, a page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune.programs import gemm_builder
from tests.runtime.test_ranges import doubled
from tests.support.load_file import load_file
from tiledsl.settings import settings

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tuned_on_gpu")]
ROOT = Path(__file__).resolve().parents[2]
LABEL = "doubled block=32 stages=2"


def run_in_ranges(kind: str) -> None:
    """Calls of each kind: the first, warm ones, of a bound kernel, and in a captured graph."""
    with settings(ranges=kind):
        kernel = tiledsl.compile(doubled(), target="cuda")
        kernel.config = {"block": 32, "stages": 2}
        x, y = torch.arange(64, dtype=torch.float32, device="cuda"), torch.zeros(64, device="cuda")
        bound = kernel.bind(x, y)
        for _ in range(3):
            kernel(x, y)
            bound()
    torch.cuda.synchronize()
    assert torch.equal(y, x * 2)


def frames(tree: Any) -> Iterator[Any]:
    """All nodes of what Proton writes."""
    for each in tree if isinstance(tree, list) else [tree]:
        if "frame" in each:
            yield each
            yield from frames(each["children"])


PROTON = """
import triton.profiler as proton
from tests.gpu.test_profiles import run_in_ranges
proton.start({name!r})
run_in_ranges("proton")
proton.finalize()
"""


def test_proton_has_launches_under_kernel_and_configuration(tmp_path: Path) -> None:
    """In a process of its own: a profiler of CUPTI stays with the process that it was started in."""
    name = str(tmp_path / "profile")
    ended = subprocess.run(
        [sys.executable, "-c", PROTON.format(name=name)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    found = [each for each in frames(json.loads(Path(f"{name}.hatchet").read_text())) if each["frame"]["name"] == LABEL]
    assert len(found) == 1
    launches = [each for each in frames(found[0]["children"]) if "doubled_kernel" in each["frame"]["name"]]
    assert sum(each["metrics"]["count"] for each in launches) == 6
    assert all(value > 0 for each in launches for key, value in each["metrics"].items() if key.startswith("time"))


def test_nvtx_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's own functions: what a profiler makes of it is the profiler's."""
    told = []
    push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda label: (told.append(label), push(label)))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: (told.append("end"), pop()))
    run_in_ranges("nvtx")
    assert told[-12:] == [LABEL, "end"] * 6


@pytest.fixture
def energy() -> Any:
    """The example that minimises energy; skips where the GPU has no counter."""
    example = load_file(ROOT / "examples" / "tuning" / "nvml_energy.py")
    try:
        example.Counter().read()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no energy counter: {error}")
    return example


def test_energy_is_what_wins(energy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "tuning"))  # the process that measures imports nvml_energy
    result = energy.matmul.with_options(progress=False)(4096, 4096, 4096)
    assert result.minimised == "energy" and all(each.ok for each in result.trials), result.table()
    spent = [(each.metrics or {})["energy"] for each in result.trials]
    assert result.metrics["energy"] == min(spent) > 0
    watts = [joules / each.latency for joules, each in zip(spent, result.trials, strict=True)]  # mJ / ms
    assert all(30 < each < 1500 for each in watts), watts
    assert "energy" in result.table(sort="energy").splitlines()[0].split()


def test_a_page_of_measured_times(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("plotly")
    configs = [{"block": block, "stages": stages} for block in (32, 64, 128) for stages in (2, 3)]
    tuned = tiledsl.autotune(configs=configs, ref_prog=lambda A, B: A @ B, warmup=5, rep=20, progress=False)
    result = tuned(tiledsl.jit(out_idx=-1)(gemm_builder))(size=2048)
    page = tmp_path / "tuning.html"
    result.report(page)
    text = page.read_text()
    for wanted in (
        f"6 configurations, measured on {result.kernel.target}",
        "bounded by",
        "roofline",
        "of the winner&#39;s",
    ):
        assert wanted in text
    if os.environ.get("OUT"):  # to be looked at
        shutil.copy(page, Path(os.environ["OUT"]) / "tuning.html")
