"""What a result shows, and that it survives a file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune import kernels
from tests.autotune.programs import SIZE, scale_builder, twice
from tests.support import forked
from tiledsl.autotuner import AutotuneResult, Trial

BLOCKS = [{"block": block} for block in (16, 32, 64)]
GEMM = {"threads": 256, "block_K": 64}


def tuned() -> AutotuneResult:
    configs = [*BLOCKS, {"block": 64, "variant": "unwritten"}]
    result = tiledsl.autotune(configs=configs, ref_prog=twice)(tiledsl.jit(out_idx=-1)(scale_builder))()
    assert isinstance(result, AutotuneResult)
    return result


def gemm_result(*latencies: float | None, size: int = 1024) -> AutotuneResult:
    """Three configurations of a GEMM for cuda:90, as if they had been measured."""
    configs = [
        {"block_M": 64, "block_N": 64, "num_stages": 2},
        {"block_M": 128, "block_N": 128, "num_stages": 4},
        {"block_M": 128, "block_N": 256, "num_stages": 5},
    ]
    sizes = {"M": size, "N": size, "K": size, **GEMM}
    build: Callable[[dict[str, Any]], Any] = lambda config: kernels.gemm.kernel_for(sizes, config)
    limits = [(3, "registers"), (1, "shared memory"), (1, "shared memory")]
    trials = []
    for index, (config, latency, limit) in enumerate(zip(configs, latencies, limits)):
        status: Any = "ok" if latency is not None else "pruned"
        trial = Trial(index, config, status, build=lambda config=config: build(config))
        if latency is not None:
            trial.latency = latency
            trial.resources = {
                "shared_bytes": 32768 * (index + 1),
                "registers": 64 + 32 * index,
                "spills": 0,
                "occupancy_limit": limit,
            }
        else:
            trial.message = "needs at least 245760 bytes of shared memory"
        trials.append(trial)
    working = [trial for trial in trials if trial.latency is not None]
    best = min(working, key=lambda trial: trial.latency or 0.0)
    return AutotuneResult(best.kernel, best.config, best.latency, 0.5, tuple(trials), "measured")


def test_the_table_has_rates_and_resources() -> None:
    lines = gemm_result(0.02, 0.01, None).table().splitlines()
    heads = "rank trial configuration status measured ms TFLOPS GB/s shared registers spills max error"
    assert lines[0].split() == heads.split()
    config = "block_M=128 block_N=128 num_stages=4"
    assert lines[1].split() == f"* 1 1 {config} ok 0.0100 214.7 629 65536 96 0 -".split()
    assert lines[2].split()[:2] == ["2", "0"] and " 107.4 " in lines[2]
    assert lines[3].split()[0] == "-" and "pruned" in lines[3]
    assert lines[4].strip().endswith("num_stages=5: needs at least 245760 bytes of shared memory")


def test_the_table_counts_what_was_not_tried() -> None:
    result = gemm_result(0.02, 0.01, None)
    for trial in result.trials[2:]:
        trial.message = "not tried: the search chose others"
    assert [line.split()[:2] for line in result.table().splitlines()[1:3]] == [["*", "1"], ["2", "0"]]
    assert result.table().splitlines()[3:] == ["  1 more: not tried: the search chose others"]
    assert len(result.to_csv().splitlines()) == 4


def test_the_table_is_sorted_by_any_column() -> None:
    result = gemm_result(0.02, 0.01, None)

    def order(sort: str) -> list[str]:
        rows = result.table(sort=sort).splitlines()[1:4]
        return [row.replace("*", " ").split()[1] for row in rows]

    assert order("latency") == order("tflops") == order("rank") == ["1", "0", "2"]
    assert order("index") == order("registers") == order("shared_bytes") == ["0", "1", "2"]
    with pytest.raises(tiledsl.TileError, match="no column 'speed'; it has rank, index"):
        result.table(sort="speed")


def test_csv(tmp_path: Path) -> None:
    text = gemm_result(0.02, 0.01, None).to_csv(tmp_path / "trials.csv")
    assert (tmp_path / "trials.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["block_N"] for row in rows] == ["64", "128", "256"]
    assert [row["latency"] for row in rows] == ["0.02", "0.01", ""]
    assert rows[2]["status"] == "pruned" and rows[2]["message"].startswith("needs at least")
    assert float(rows[1]["tflops"]) == pytest.approx(214.7, abs=0.1)


def test_differences_at_every_stage() -> None:
    result = gemm_result(0.02, 0.01, None)
    with pytest.raises(tiledsl.TileError, match="there is no trial 3; there are 0 to 2"):
        result.diff(0, 3)
    source = result.diff(0, 1)
    assert source.splitlines()[:2] == [
        "--- trial 0: block_M=64 block_N=64 num_stages=2",
        "+++ trial 1: block_M=128 block_N=128 num_stages=4",
    ]
    assert (
        "-    for k in tl.range(16, num_stages=3):" in source and "+    for k in tl.range(16, num_stages=4):" in source
    )
    assert result.diff(0, 1, stage="source") == source
    assert "tensor<128x128xfloat32>" in result.diff(0, 1, stage="promote-buffers")
    ttgir = result.diff(0, 1, stage="ttgir")
    assert "+" in ttgir and "#loc" not in ttgir
    assert result.diff(1, 1, stage="ttgir") == ""
    with pytest.raises(tiledsl.TileError, match="the pipeline has no pass 'nonsense'"):
        result.diff(0, 1, stage="nonsense")
    with pytest.raises(tiledsl.TileError, match=r"has no amdgcn; it has .*ttgir"):
        result.diff(0, 1, stage="amdgcn")


def test_trials_that_were_not_compiled_can_be_looked_at() -> None:
    trial = gemm_result(0.02, 0.01, None).trials[2]
    assert trial.resources is None and "num_stages=5" in trial.source and "tile.gemm" in trial.ir()
    with pytest.raises(tiledsl.TileError, match=r"needs 245\d{3} bytes of shared memory"):
        _ = trial.kernel.resources
    first = gemm_result(0.02, 0.01, None).trials[0]
    assert first.kernel.resources.shared_bytes >= 32768  # the tiles; barriers beside
    assert ".target sm_90a" in first.asm["ptx"]


def test_why_the_winner_won() -> None:
    text = gemm_result(0.02, 0.01, None).explain()
    for part in (
        "block_M=128 block_N=128 num_stages=4 takes 0.0100 ms, measured.",
        "Next is block_M=64 block_N=64 num_stages=2 with 0.0200 ms, 100.0% more.",
        "They differ in block_M, block_N, num_stages.",
        "65536 bytes of shared memory a block against 32768; 96 registers a thread against 64",
        "1 block a multiprocessor (bounded by shared memory) against 3 blocks a multiprocessor (bounded by registers)",
        "Waves: 64 blocks in 1 of 132, 48% full; the other 256 blocks in 1 of 396, 65% full.",
        "Blocks ask for 35.7 MB in all, the other's for 69.2 MB.",
        "Loads run 3 iterations ahead, the other's 1.",
        "Of 3 configurations, 1 do not work or were left out.",
    ):
        assert part in text
    assert "nothing to compare it with" in gemm_result(0.02, None, None).explain()
    assert "slowest takes 0.0300 ms; 0 do not work" in gemm_result(0.02, 0.01, 0.03).explain()


def test_a_result_survives_a_file(tmp_path: Path) -> None:
    result = tuned()
    path = result.save(tmp_path / "scale.json")
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["scale.json"]
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    loaded = AutotuneResult.load(path)
    assert (loaded.config, loaded.latency, loaded.latency_kind) == (result.config, result.latency, result.latency_kind)
    assert loaded.from_cache == "file" and loaded.kernel.latency == result.latency
    assert loaded.source == result.source and loaded.table() == result.table() and loaded.to_csv() == result.to_csv()
    A = torch.randn(SIZE)
    assert torch.equal(loaded(A), result(A)) and torch.equal(loaded(A), A * 2)
    assert loaded.ir() == result.ir() and loaded.ir("cse") == result.ir("cse")
    assert [stage.name for stage in loaded.stages] == [stage.name for stage in result.stages]
    assert [repr(param) for param in loaded.params] == [repr(param) for param in result.params]
    assert loaded.explain() and loaded.best.source == result.source
    other = next(trial for trial in loaded.trials if trial.config != loaded.config)
    with pytest.raises(tiledsl.TileError, match="the winner's program only"):
        other.source
    assert AutotuneResult.load(loaded.save(tmp_path / "again.json")).source == result.source


def test_a_loaded_kernel_for_a_gpu_compiles_to_the_same(tmp_path: Path) -> None:
    result = gemm_result(0.02, 0.01, None, size=256)
    loaded = AutotuneResult.load(result.save(tmp_path / "gemm.json"))
    assert loaded.resources == result.resources and loaded.table() == result.table()
    assert (loaded.flops, loaded.bytes_moved) == (2 * 256**3, 3 * 2 * 256**2)
    here = AutotuneResult.load(tmp_path / "gemm.json", target="interpret")
    A, B = torch.randn(256, 256).half(), torch.randn(256, 256).half()
    torch.testing.assert_close(here(A, B).float(), A.float() @ B.float(), atol=0.1, rtol=0.01)


def test_a_loaded_result_needs_no_builder(tmp_path: Path) -> None:
    path = tuned().save(tmp_path / "scale.json")
    script = (
        "import sys, torch; from tiledsl import AutotuneResult\n"
        "result = AutotuneResult.load(sys.argv[1]); print(result(torch.ones(64)).sum().item(), result.config)"
    )
    done = forked.run(["-c", script, path])
    assert done.stdout.startswith("128.0 {'block':"), done.stderr


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.clear(),
        lambda data: data.update(schema=99),
        lambda data: data["kernel"].update(name="../../evil"),
        lambda data: data["kernel"].update(entry="__import__('os')"),
        lambda data: data["kernel"].update(outputs=[7]),
        lambda data: data["kernel"].update(source=7),
        lambda data: data["kernel"]["params"][0].update(dtype="float17"),
        lambda data: data["kernel"]["params"][0].update(shape=[-1]),
        lambda data: data.update(latency="fast"),
        lambda data: data.update(latency_kind="guessed"),
        lambda data: data["trials"][0].update(status="excellent"),
        lambda data: data["trials"][0].update(index=3),
        lambda data: data["trials"][1].update(same_as=1),
    ],
)
def test_files_that_make_no_sense_are_refused(change: Callable[[Any], None], tmp_path: Path) -> None:
    path = tuned_once(tmp_path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(tiledsl.TileError, match="is not a saved result"):
        AutotuneResult.load(path)


_text: list[str] = []


def tuned_once(folder: Path) -> Path:
    if not _text:
        _text.append(tuned().save(folder / "scale.json").read_text())
    (folder / "scale.json").write_text(_text[0])
    return folder / "scale.json"


def test_missing_and_broken_files(tmp_path: Path) -> None:
    for text in ("", "{", '{"schema": NaN}', "[" * 10000):
        (tmp_path / "broken.json").write_text(text)
        with pytest.raises(tiledsl.TileError, match="is not a saved result"):
            AutotuneResult.load(tmp_path / "broken.json")
    with pytest.raises(tiledsl.TileError, match="is not a saved result: FileNotFoundError"):
        AutotuneResult.load(tmp_path / "missing.json")
