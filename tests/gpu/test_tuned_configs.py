"""Tuning offline on a real GPU, and what a function gets of the file in its next life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune.programs import gemm_builder
from tiledsl.autotuner.tuned import trials
from tiledsl.autotuner.tuned.check import check
from tiledsl.autotuner.tuned.compare import compare_problem, verdicts
from tiledsl.autotuner.tuned.file import read, trials_path
from tiledsl.errors import TileError
from tiledsl.runtime.versions import triton_version

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("tuned_on_gpu")]
GEMMS = [{"block": block, "stages": stages} for block in (64, 32, 128) for stages in (2, 3)]


def gemm(**options: Any) -> Any:
    given = {"configs": GEMMS, "ref_prog": lambda A, B: A @ B, "warmup": 5, "rep": 40, **options}
    return tiledsl.autotune(**given)(tiledsl.jit(out_idx=-1)(gemm_builder))


def test_a_real_round_trip(tmp_path: Path) -> None:
    lines: list[str] = []
    sizes = (512, 1024, 2048)
    report = gemm().tune_into(tmp_path / "configs", [{"size": size} for size in sizes], report=lines.append)
    print(*lines, report.summary(), sep="\n")
    assert [each.status for each in report.outcomes] == ["tuned"] * 3, report.summary()
    file = read(report.path)
    print(report.path.read_text())
    properties = torch.cuda.get_device_properties(0)
    assert report.path.name == f"gemm_builder-sm_{properties.major}{properties.minor}.json"
    for entry, size in zip(file.entries, sizes):
        assert entry.arguments == {"size": size} and entry.latency_kind == "measured"
        assert (entry.gpu, entry.sm_count) == (properties.name, properties.multi_processor_count)
        assert entry.tflops == pytest.approx(2 * size**3 / entry.latency_ms / 1e9, rel=1e-3)
        assert entry.reference_ms is not None and entry.reference_ms > 0 and entry.gb_per_s is not None
        assert entry.versions["triton"] == triton_version()
    function = gemm(tuned=tmp_path / "configs", bucket="size", on_miss="error", cache=False)
    assert check(report.path, function) == []
    print(*trials.compared(file, trials.read(trials_path(report.path))).rows, sep="\n")
    assert function.tune_into(tmp_path / "configs", [{"size": size} for size in sizes]).summary().endswith("3 skipped")
    for size, kind in ((1024, "exact"), (768, "bucket"), (4096, "bucket")):
        result = function(size=size)
        assert function.tuned_for(size=size).kind == kind and result.from_cache == "tuned"
        A, B = (torch.randn(size, size, dtype=torch.float16, device="cuda") for _ in range(2))
        torch.testing.assert_close(result(A, B), A @ B, rtol=1e-2, atol=0.5)
    with pytest.raises(TileError, match="is not tuned"):
        gemm(tuned=tmp_path / "none", on_miss="error")(size=512)
    found = list(compare_problem(gemm(), file))
    print(*((each.entry.arguments, each.verdict, each.ratio, each.message) for each in found), sep="\n")
    assert verdicts(found)[1], [(each.verdict, each.ratio, each.message) for each in found]


def test_every_gpu_takes_shapes(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    sizes = [512, 768, 1024, 1536, 2048, 3072]
    report = gemm(cache=False).tune_into(tmp_path, [{"size": size} for size in sizes], report=print)
    assert [each.status for each in report.outcomes] == ["tuned"] * len(sizes), report.summary()
    assert [each.arguments["size"] for each in read(report.path).entries] == sizes
