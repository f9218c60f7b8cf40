"""What becomes of measurements: the file, means and targets, the report, the picture, the command line."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import picture, records, report
from benchmarks.__main__ import main, work
from benchmarks.ceilings import roofline
from benchmarks.rows import all_rows, select
from benchmarks.targets import TARGETS, Target, best_ratio, family_means, outcome, over_best_bfloat16
from benchmarks.timing import ratios, summary
from tests.benchmarks.suite_fakes import FakeClock, candidate, doubling
from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = {regime: {"copy": 4e12, "fp16": 640e12, "fp8": 1300e12} for regime in ("steady", "burst")}
ABOUT = {"gpu": "NVIDIA H200", "date": "2026-01-02", "versions": {"torch": "2.11", "triton": "3.6.0"}, "ceilings": CEILINGS}  # fmt: skip # noqa: E501


def row(family: str, case: str, times: dict[str, float | str], tags: tuple[str, ...] = ()) -> dict[str, Any]:
    """A measured row; a text in place of milliseconds is a status."""
    candidates = []
    for kind, value in times.items():
        entry: dict[str, Any] = {"kind": kind, "name": kind}
        if isinstance(value, str):
            entry |= {"status": value, "why": f"{kind} says why <here>"}
        else:
            entry |= {"status": "ok", "config": {"block_M": 64}, "tuning_seconds": 2.0}
            entry |= {regime: summary([value, value * 1.1, value * 0.9]) for regime in ("steady", "burst")}
        candidates.append(entry)
    regimes: dict[str, Any] = {}
    if isinstance(times.get("tiledsl"), float):
        mine = times["tiledsl"]
        for regime in ("steady", "burst"):
            regimes[regime] = {
                k: ratios([mine], [v]) for k, v in times.items() if isinstance(v, float) and k != "tiledsl"
            }
    return {
        "family": family, "case": case, "tags": list(tags), "unit": "fp16", "operations": 1e12, "bytes": 1e9,
        "date": "2026-01-02", "candidates": candidates, "ratios": regimes, "run": "one",
    }  # fmt: skip


ROWS = [
    row("gemm", "bf16 4x4x4", {"tiledsl": 2.0, "library": 1.9, "triton": 2.2, "tilelang": "missing"}),
    row("gemm", "fp16 8x8x8", {"tiledsl": 2.0, "library": 2.1, "triton": 2.0}),
    row("softmax", "fp16 9x9", {"tiledsl": 1.0, "library": 1.1, "copy": 0.95, "triton": "wrong"}),
]


def data(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": records.SCHEMA, "runs": {"one": ABOUT}, "rows": rows}


# The file


def test_results_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "suite.json"
    assert records.load(path) == records.empty()
    records.save(path, data(ROWS))
    assert records.load(path) == data(ROWS)
    assert [each.name for each in path.parent.iterdir()] == ["suite.json"]


def test_a_measured_row_replaces_its_predecessor() -> None:
    stored = data(ROWS)
    again = row("gemm", "fp16 8x8x8", {"tiledsl": 1.0, "library": 2.1})
    new = row("attention", "full", {"tiledsl": 1.0})
    records.merge(stored, "two", {**ABOUT, "date": "later"}, [again, new])
    assert [records.name_of(each) for each in stored["rows"]] == [records.name_of(each) for each in [*ROWS, new]]
    assert stored["rows"][1]["candidates"][0]["steady"]["median"] == 1.0
    assert {each["run"] for each in stored["rows"]} == {"one", "two"} == set(stored["runs"])
    records.merge(stored, "three", ABOUT, [*ROWS, new])
    assert set(stored["runs"]) == {"three"}
    records.validate(stored)


def test_files_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("all.json", "one.json", "other.json")]
    records.save(paths[1], data(ROWS[:2]))
    records.save(paths[2], {"schema": records.SCHEMA, "runs": {"two": ABOUT}, "rows": [{**ROWS[2], "run": "two"}]})
    assert main(["--report", "--json", str(paths[0]), "--merge", str(paths[1]), str(paths[2])]) == 0
    merged = records.load(paths[0])
    assert [records.name_of(each) for each in merged["rows"]] == [records.name_of(each) for each in ROWS]
    assert set(merged["runs"]) == {"one", "two"}
    with pytest.raises(FileNotFoundError, match="absent"):
        main(["--report", "--json", str(paths[0]), "--merge", str(tmp_path / "absent.json")])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: d.update(schema=99), "not results of schema"),
        (lambda d: d["rows"][0].pop("operations"), "no proper 'operations'"),
        (lambda d: d["rows"][0].update(run="other"), "not described"),
        (lambda d: d["rows"][0]["candidates"][0].update(status="fine"), "without status"),
        (lambda d: d["rows"][0]["candidates"][0].update(status="wrong"), "is wrong and has times"),
        (lambda d: d["rows"][0]["candidates"][0]["steady"].update(min=0), "impossible times"),
    ],
)
def test_bad_results_are_refused(spoil: Any, message: str, tmp_path: Path) -> None:
    spoiled = json.loads(json.dumps(data(ROWS)))
    spoil(spoiled)
    path = tmp_path / "suite.json"
    path.write_text(json.dumps(spoiled))
    with pytest.raises(records.BadResults, match=message):
        records.load(path)


def test_a_file_for_each_gpu() -> None:
    assert records.path_for("NVIDIA H200") == ROOT / "benchmarks" / "results" / "suite-nvidia-h200.json"


def test_committed_results_are_valid() -> None:
    for path in sorted((ROOT / "benchmarks" / "results").glob("suite-*.json")):
        assert records.load(path)["rows"]


# Means and targets


def test_means_are_geometric_and_by_family() -> None:
    means = family_means(ROWS, "steady")
    assert means["gemm"]["library"] == pytest.approx((1.9 / 2.0 * 2.1 / 2.0) ** 0.5)
    assert means["gemm"]["triton"] == pytest.approx((2.2 / 2.0) ** 0.5)
    assert means["softmax"] == {"library": pytest.approx(1.1), "copy": pytest.approx(0.95)}


def test_the_best_peer_counts() -> None:
    assert best_ratio(ROWS[0], ROWS, ("library", "triton"), "steady") == pytest.approx(0.95)
    assert best_ratio(ROWS[0], ROWS, ("tilelang",), "steady") is None


def test_a_target_has_mean_and_floor() -> None:
    target = Target("gemm", ("gemm",), ("library",), 0.99, floor=0.96)
    found = outcome(target, ROWS)
    assert found.mean == pytest.approx((0.95 * 1.05) ** 0.5) and found.count == 2
    assert found.least == pytest.approx(0.95) and found.least_row == "gemm: bf16 4x4x4"
    assert found.reached is False  # by the floor
    assert outcome(Target("gemm", ("gemm",), ("library",), 0.99), ROWS).reached is True
    assert outcome(Target("gemm", ("gemm",), ("library",), 1.0), ROWS).reached is False
    assert outcome(Target("fp8", ("fp8 gemm",), ("library",), 1.0), ROWS).reached is None


def test_a_row_in_which_only_tiledsl_fails_is_not_left_out() -> None:
    failed = row("gemm", "fp16 9x9x9", {"tiledsl": "wrong", "library": 1.0})
    found = outcome(Target("gemm", ("gemm",), ("library",), 0.5), [*ROWS, failed])
    assert found.without == 1 and found.reached is False
    assert outcome(Target("gemm", ("gemm",), ("library",), 0.5), [failed]).reached is False


def test_tags_choose_rows() -> None:
    causal = row("attention", "causal", {"tiledsl": 1.0, "library": 1.2}, ("plain", "causal"))
    full = row("attention", "full", {"tiledsl": 1.0, "library": 0.9}, ("plain", "full"))
    by_title = {target.title: outcome(target, [causal, full]) for target in TARGETS}
    assert by_title["attention causal, to cuDNN"].mean == pytest.approx(1.2)
    assert by_title["attention full, to cuDNN"].mean == pytest.approx(0.9)


def test_block_scaled_is_compared_with_the_best_bfloat16() -> None:
    scaled = row("block-scaled fp8 gemm", "e4m3 4x4x4", {"tiledsl": 1.0, "bf16": 1.5}, ("deep",))
    assert over_best_bfloat16(scaled, [scaled], ("bf16",), "steady") == pytest.approx(1.5)
    faster = row("gemm", "bf16 4x4x4", {"tiledsl": 1.8, "library": 2.0})
    assert over_best_bfloat16(scaled, [scaled, faster], ("bf16",), "steady") == pytest.approx(1.5 * 0.9)


def test_roofline_is_the_longer_of_memory_and_arithmetic() -> None:
    product = row("gemm", "x", {})
    assert roofline(product, CEILINGS, "steady") == pytest.approx(1e12 / 640e12 * 1e3)
    assert roofline({**product, "operations": 1e6}, CEILINGS, "steady") == pytest.approx(1e9 / 4e12 * 1e3)
    assert roofline({**product, "family": "softmax"}, CEILINGS, "steady") == pytest.approx(0.25)
    assert roofline(product, {}, "steady") is None


# Text and picture


def test_a_row_in_text_says_all() -> None:
    text = report.row_text(ROWS[0], CEILINGS)
    assert "gemm: bf16 4x4x4  (TFLOP/s)" in text and "tiledsl 500.0" in text
    assert "library 526.3 0.950x [0.950-0.950]" in text and "78% of the roofline" in text
    assert "tilelang missing: tilelang says why <here>" in text
    assert "tiledsl: block_M=64 (tuned in 2.0 s)" in text
    assert "triton wrong" in report.row_text(ROWS[2], CEILINGS) and "TB/s" in report.row_text(ROWS[2], {})


def test_the_summary_has_means_and_targets() -> None:
    text = report.summary(ROWS)
    assert "gemm                     steady" in text
    assert "reached      GEMM, to cuBLAS: at least 0.95; 0.999 over 2 rows, least 0.950" in text
    assert "NOT reached  GEMM, to the best of" not in text
    assert "not measured attention full, to cuDNN: at least 1.05" in text
    assert "tiledsl 2.0 s a row in the middle" in text


def test_the_table_has_a_line_for_each_row() -> None:
    lines = report.markdown(ROWS).splitlines()
    assert len(lines) == 2 + len(ROWS) and len({line.count("|") for line in lines}) == 1
    assert lines[2].endswith("| 0.950 |")


def test_the_picture_is_svg_with_a_dot_for_each_time() -> None:
    root = ElementTree.fromstring(picture.svg(ROWS, {"one": ABOUT}))
    name = "{http://www.w3.org/2000/svg}"
    dots = root.findall(f"{name}circle")
    assert len(dots) == 4 + 3 + 3 + 2  # the legend, and of each row the kinds it shows
    texts = [each.text for each in root.findall(f"{name}text")]
    assert "NVIDIA H200, torch 2.11, Triton 3.6.0, 2026-01-02" in texts and "bf16 4x4x4" in texts
    width = float(root.attrib["width"])
    assert all(0 < float(dot.attrib["cx"]) < width for dot in dots)


def test_a_picture_of_nothing_is_still_one() -> None:
    assert ElementTree.fromstring(picture.svg([], {})).tag.endswith("svg")


# The command line


def test_reports_again_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "suite.json"
    records.save(path, data(ROWS))
    table = tmp_path / "table.md"
    assert main(["--report", "--json", str(path), "--markdown", str(table)]) == 0
    assert "geometric means" in capsys.readouterr().out
    assert path.with_suffix(".svg").read_text().startswith("<svg") and "softmax" in table.read_text()


def test_lists_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "softmax", "ragged"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 4 and all("softmax" in line or "ragged" in line for line in lines)


def test_runs_as_a_module_and_says_what_it_needs() -> None:
    environment = {"PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "HOME": str(Path.home())}
    done = forked.run(["-m", "benchmarks"], cwd=ROOT, env=environment)
    assert done.returncode == 2 and "needs a CUDA device" in done.stdout


FAKE_WORKER = """
import json, sys
names, to, answers = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
with open(to, "a") as file:
    for message in [{"about": answers["about"]}] + [{"row": answers[name]} for name in names if name in answers]:
        file.write(json.dumps(message) + "\\n")
sys.exit(0 if all(name in answers for name in names) else 1)
"""


def test_measures_prints_and_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [each.name for each in select(all_rows(), ["softmax"], False)]
    answers: dict[str, Any] = {"about": {**ABOUT, "driver": "580"}}
    for name in names[:-1]:
        family, _, case = name.partition(": ")
        answers[name] = {**row(family, case, {"tiledsl": 1.0, "library": 1.1, "copy": 0.9}), "seconds": 3.0}

    def command(options: Any) -> Any:
        return lambda left, to: [sys.executable, "-c", FAKE_WORKER, json.dumps(left), str(to), json.dumps(answers)]

    monkeypatch.setattr("benchmarks.__main__.worker_command", command)
    monkeypatch.setattr("benchmarks.__main__.gpu_name", lambda: "NVIDIA H200")
    for variable in ("TRITON_CACHE_DIR", "TILEDSL_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TILELANG_CACHE_DIR"):
        monkeypatch.setenv(variable, "set back afterwards")
    path = tmp_path / "suite.json"
    options = ["--only", "softmax", "--json", str(path), "--markdown", str(tmp_path / "table.md")]
    assert main(options) == 1  # the last row is lost
    printed = capsys.readouterr().out
    assert "NVIDIA H200, driver 580; torch 2.11" in printed and "ceilings, steady: copy 4.00 TB/s" in printed
    assert "failed: its process ended with status 1" in printed and "softmax, norms, elementwise, to a copy" in printed
    kept = records.load(path)
    assert [records.name_of(each) for each in kept["rows"]] == names
    assert path.with_suffix(".svg").exists()
    # Once more with --resume: only the row without a result is tried again.
    family, _, case = names[-1].partition(": ")
    answers[names[-1]] = row(family, case, {"tiledsl": 1.0, "library": 1.2})
    assert main([*options, "--resume"]) == 0
    assert len(records.load(path)["rows"]) == len(names)
    assert f"{names[0]}  (TB/s)" not in capsys.readouterr().out


def test_a_worker_writes_a_line_for_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    rows = [doubling(candidate(clock, "tiledsl", 1.0), candidate(clock, "library", 2.0), case=name) for name in "ab"]
    monkeypatch.setattr("benchmarks.rows.all_rows", lambda: rows)
    monkeypatch.setattr("benchmarks.gpu.CudaClock", lambda: clock)
    monkeypatch.setattr("benchmarks.gpu.describe", lambda: {"gpu": "none"})
    monkeypatch.setattr("tiledsl.runtime.timing.cache_bytes", lambda: 0)
    monkeypatch.setattr("benchmarks.ceilings.ceilings", lambda clock, plan: CEILINGS)
    to = tmp_path / "results.jsonl"
    assert work(["gemm: b", "gemm: a"], to, quick=True, device="cpu") == 0
    about, first, second = [json.loads(line) for line in to.read_text().splitlines()]
    assert about["about"] == {"gpu": "none", "quick": True, "ceilings": CEILINGS}
    assert [first["row"]["case"], second["row"]["case"]] == ["b", "a"]
    assert first["row"]["ratios"]["steady"]["library"]["median"] == pytest.approx(2.0)
