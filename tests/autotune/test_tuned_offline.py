"""Tuning many calls into a file: what is skipped, replaced and kept, what fails, and what survives a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import scale_program, twice
from tests.support import forked
from tiledsl.autotuner.decorator import AutotunedFunction
from tiledsl.autotuner.tuned import trials
from tiledsl.autotuner.tuned.compare import compare_problem, verdicts
from tiledsl.autotuner.tuned.file import BY_HAND, TunedFile, change, dump, read, trials_path
from tiledsl.autotuner.tuned.report import TuneReport
from tiledsl.errors import TileError

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [{"block": 64}, {"block": 32}, {"block": 16}]


def scale(size: int, block: int | None = None, tag: int = 0, dtype: Any = "float32") -> Any:
    if size == 13:
        raise ValueError("no 13")
    return scale_program(size, block, dtype)


def tuned(configs: Any = BLOCKS, **options: Any) -> Any:
    """isolate=False: in this process, where the clock is replaced."""
    given = {"configs": configs, "ref_prog": twice, "isolate": False, "progress": False, **options}
    return tiledsl.autotune(**given)(tiledsl.jit(out_idx=-1)(scale))


def statuses(report: TuneReport) -> list[str]:
    return [each.status for each in report.outcomes]


def blocks(path: Path) -> dict[Any, Any]:
    return {each.arguments["size"]: each.config["block"] for each in read(path).entries}


@pytest.fixture
def clock(timer: Any) -> dict[Any, float]:
    """Milliseconds by block; the default is 1. Of equals the smallest block wins."""
    times: dict[Any, float] = {}
    timer(lambda config: times.get(config["block"], 1.0))
    return times


def test_calls_are_tuned_into_a_file(tmp_path: Path, clock: dict[Any, float]) -> None:
    clock[32] = 0.5
    lines: list[str] = []
    report = tuned().tune_into(tmp_path, [(64,), {"size": 128}, (64,)], report=lines.append)
    assert statuses(report) == ["tuned", "tuned", "skipped"] and not report.failed and not report.interrupted
    assert report.path == tmp_path / "scale-interpret.json"
    first = read(report.path).entries[0]
    assert (first.arguments, first.config, first.latency_ms) == ({"size": 64}, {"block": 32}, 0.5)
    assert first.latency_kind == "measured" and first.reference_ms == 7.0 and first.gb_per_s == pytest.approx(0.001024)
    assert first.versions["tiledsl"] == tiledsl.__version__ and first.gpu == ""
    assert len(lines) == 3 and lines[0].startswith("[1/3] size=64: skipped, it is given twice")
    assert "size=128: tuned, block=32, 0.5 ms measured, 14.00x the reference, 0.002048 GB/s" in lines[2]
    assert report.summary() == f"{report.path}: 2 tuned, 1 skipped"
    assert [tried.latencies for tried in trials.read(trials_path(report.path)).values()] == [
        {'{"block": 64}': 1.0, '{"block": 32}': 0.5, '{"block": 16}': 1.0}
    ] * 2


def test_what_is_tuned_is_skipped(tmp_path: Path, clock: dict[Any, float], stages: Any) -> None:
    path = tuned().tune_into(tmp_path, [(64,)]).path
    before = path.read_bytes()
    assert statuses(tuned(cache=False).tune_into(tmp_path, [(64,), (128,)], dry_run=True)) == ["skipped", "planned"]
    assert stages["run"] == 1
    assert statuses(tuned().tune_into(tmp_path, [(64,)])) == ["skipped"] and path.read_bytes() == before
    assert statuses(tuned().tune_into(tmp_path, [(64,), (128,)])) == ["skipped", "tuned"]
    assert statuses(tuned().tune_into(tmp_path, [{"size": 64, "dtype": T.float16}])) == ["tuned"]
    assert [each.arguments for each in read(path).entries][1] == {"size": 64, "dtype": "float16"}
    assert tuned(tuned=tmp_path).tuned_for(64, dtype="float16").kind == "exact"


def test_what_the_option_key_returns_counts(tmp_path: Path, clock: dict[Any, float]) -> None:
    threads = 4
    function = tuned(key=lambda **values: threads)
    path = function.tune_into(tmp_path, [(64,)]).path
    assert read(path).entries[0].arguments == {"size": 64, "(key)": 4}
    assert [each.verdict for each in compare_problem(function, read(path))] == ["ok"]
    shipped = function.with_options(tuned=tmp_path, nearest=False)
    assert shipped.tuned_for(64).kind == "exact"
    threads = 8
    assert shipped.tuned_for(64).kind == "none" and statuses(function.tune_into(tmp_path, [(64,)])) == ["tuned"]


def test_a_failing_call_costs_only_itself(tmp_path: Path, clock: dict[Any, float]) -> None:
    calls = [(64,), (13,), {"length": 3}, {"size": object()}, (32,)]
    report = tuned().tune_into(tmp_path, calls)
    assert statuses(report) == ["tuned", "failed", "failed", "failed", "tuned"]
    assert [each.call for each in report.failed][:2] == ["size=13", "length=3"]
    summary = report.summary().splitlines()
    assert summary[0].endswith("2 tuned, 3 failed") and len(summary) == 4
    assert "size=13: failed, autotune: none of 3 configurations of scale works on interpret" in summary[1]
    assert blocks(report.path) == {32: 16, 64: 16}


def test_several_gpus_take_a_call_each(
    tmp_path: Path, clock: dict[Any, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU the numbers stand for threads."""
    seen: list[Any] = []
    compile_ = AutotunedFunction._compile

    def noted(self: Any, arguments: Any, keywords: Any, options: Any, *rest: Any) -> Any:
        seen.append((options.devices, threading.current_thread().name))
        return compile_(self, arguments, keywords, options, *rest)

    monkeypatch.setattr(AutotunedFunction, "_compile", noted)
    report = tuned().tune_into(tmp_path, [(size,) for size in (64, 13, 128, 256, 512)], devices=[0, 1])
    assert statuses(report) == ["tuned", "failed", "tuned", "tuned", "tuned"]
    assert blocks(report.path) == {64: 16, 128: 16, 256: 16, 512: 16}
    assert {devices for devices, _ in seen} == {(0,), (1,)} and len({thread for _, thread in seen}) == 2
    seen.clear()
    assert statuses(tuned().tune_into(tmp_path, [(1024,)], devices=[0, 1])) == ["tuned"]
    assert [devices for devices, _ in seen] == [(0, 1)]  # a single call is for all


def test_an_entry_is_replaced_only_by_what_is_faster_by_the_margin(tmp_path: Path, clock: dict[Any, float]) -> None:
    clock[32] = 0.9
    path = tuned().tune_into(tmp_path, [(64,)]).path
    before = path.read_bytes()
    clock[16] = 0.88  # by 2.2%
    (outcome,) = tuned().tune_into(tmp_path, [(64,)], retune=True).outcomes
    assert outcome.status == "kept" and path.read_bytes() == before
    assert outcome.message == "block=16 would save 2.2%, less than 3.0%"
    (outcome,) = tuned().tune_into(tmp_path, [(64,)], retune=True, min_improvement=0.02).outcomes
    assert (outcome.status, outcome.message) == ("replaced", "was block=32") and blocks(path) == {64: 16}
    clock.update({16: 2.0, 64: 1.99})  # the old one, too, is slower than the file says
    assert statuses(tuned().tune_into(tmp_path, [(64,)], retune=True)) == ["replaced"] and blocks(path) == {64: 32}
    clock[32] = 0.8
    assert statuses(tuned().tune_into(tmp_path, [(64,)], retune=True)) == ["tuned"]  # the same, its time anew
    assert read(path).entries[0].latency_ms == 0.8


def test_an_entry_that_does_not_work_any_more_is_replaced(tmp_path: Path, clock: dict[Any, float]) -> None:
    clock[32] = 0.5
    path = tuned().tune_into(tmp_path, [(64,)]).path

    without = [{"block": 64}, {"block": 16}]
    assert statuses(tuned(without).tune_into(tmp_path, [(64,)])) == ["skipped"]  # it still works
    clock[64] = 0.49
    assert statuses(tuned(without).tune_into(tmp_path, [(64,)], retune=True)) == ["kept"]  # it was measured, too
    data = json.loads(path.read_text())
    data["entries"][0]["config"] = {"block": 32, "tag": 1, "blocks": 3}
    path.write_text(json.dumps(data))
    (outcome,) = tuned().tune_into(tmp_path, [(64,)]).outcomes
    assert outcome.status == "replaced" and blocks(path) == {64: 64}


def test_another_source_and_estimates_are_tuned_again(tmp_path: Path, clock: dict[Any, float]) -> None:
    path = tuned().tune_into(tmp_path, [(64,)]).path
    file = read(path)
    stale = replace(file.entries[0], source="0" * 16, latency_ms=1e-9)
    path.write_bytes(dump(TunedFile("scale", "interpret", (stale,))))
    (planned,) = tuned().tune_into(tmp_path, [(64,)], dry_run=True).outcomes
    assert planned.status == "planned" and "scale has changed since (source 00000000" in planned.message
    assert statuses(tuned().tune_into(tmp_path, [(64,)])) == ["tuned"]
    assert read(path).entries[0].source == file.entries[0].source and len(read(path).entries) == 1
    guessed = replace(file.entries[0], latency_kind="estimated", config={"block": 32}, latency_ms=1e-9)
    path.write_bytes(dump(TunedFile("scale", "interpret", (guessed,))))
    assert statuses(tuned().tune_into(tmp_path, [(64,)])) == ["replaced"]
    assert [each.latency_kind for each in read(path).entries] == ["measured"]


def test_without_a_gpu_entries_are_estimates(tmp_path: Path) -> None:
    for target in ("interpret", "cuda:90"):
        report = tuned(BLOCKS[:1], target=target).tune_into(tmp_path, [(64,)])
        (entry,) = read(report.path).entries
        assert entry.latency_kind == "estimated" and entry.reference_ms is None and entry.latency_ms > 0
        assert statuses(tuned(BLOCKS[:1]).tune_into(tmp_path, [(64,)], target=target)) == ["skipped"]
    assert report.path.name == "scale-sm_90.json"
    assert tuned(tuned=tmp_path, target="cuda:90")(64).source.count("@triton.jit") == 1


def test_the_default_is_the_most_robust_configuration(tmp_path: Path, timer: Any) -> None:
    """64 wins twice, but is bad otherwise; 32 is good everywhere."""
    times = {1: (1.0, 1.2, 1.3), 2: (1.0, 1.1, 1.5), 3: (9.0, 1.0, 2.0), 4: (9.0, 1.2, 1.0)}
    timer(lambda config: times[config["tag"]][(64, 32, 16).index(config["block"])])
    function = tuned(lambda size: [{**each, "tag": size // 64} for each in BLOCKS])
    path = function.tune_into(tmp_path, [(64 * n,) for n in times]).path
    # A tag is of one size, so that no configuration is known for another entry: that of the largest size.
    assert read(path).default is not None and read(path).default.config == {"block": 16, "tag": 4}  # type: ignore[union-attr]
    now: tuple[float, ...] = ()
    plain = tuned()
    timer(lambda config: now[(64, 32, 16).index(config["block"])])
    for number, latencies in times.items():
        now = latencies
        path = plain.tune_into(tmp_path / "plain", [(64 * number,)]).path
    file = read(path)
    assert blocks(path) == {64: 64, 128: 64, 192: 32, 256: 16}
    assert file.default is not None and file.default.config == {"block": 32}
    assert file.default.why == "works for 4 of 4 entries, 1.122 of the best's time in geometric mean"
    table = trials.compared(file, trials.read(trials_path(path)))
    assert table.problems == ("size=64", "size=128", "size=192", "size=256")
    assert [row.config["block"] for row in table.rows] == [32, 16, 64]
    assert table.rows[0].slowdowns == pytest.approx((1.2, 1.1, 1.0, 1.2)) and table.rows[2].worst == 9.0
    assert table.as_csv(["mean"], lambda row: [row.worst]).splitlines()[::3] == ["block,mean", "64,9.0"]
    change(path, "scale", "interpret", lambda f: replace(f, default=replace(f.default, why=BY_HAND)))
    now = (1.0, 1.0, 0.1)
    assert statuses(plain.tune_into(tmp_path / "plain", [(512,)])) == ["tuned"]
    assert read(path).default == replace(file.default, why=BY_HAND)
    assert [row.known for row in trials.compared(file, {}).rows] == [2, 1, 1]


def test_ctrl_c_ends_the_run_and_the_next_goes_on(tmp_path: Path, timer: Any) -> None:
    measured: Counter[int] = Counter()

    def milliseconds(config: dict[str, Any]) -> float:
        measured[config["tag"]] += 1
        if config["tag"] == 128 and config["block"] == 32 and measured[128] < 6:
            raise KeyboardInterrupt
        return 64 / config["block"]

    timer(milliseconds)
    function = tuned(lambda size: [{**each, "tag": size} for each in BLOCKS], prune=False)
    calls = [(64,), (128,), (256,)]
    report = function.tune_into(tmp_path, calls)
    assert report.interrupted and statuses(report) == ["tuned", "left", "left"]
    assert "interrupted; the same again goes on from here" in report.summary()
    assert blocks(report.path) == {64: 64}
    first = measured[64]
    measured[128] = 6
    report = function.tune_into(tmp_path, calls)
    assert not report.interrupted and statuses(report) == ["skipped", "tuned", "tuned"] and measured[64] == first


def test_nothing_is_written_where_it_cannot_be(tmp_path: Path, clock: dict[Any, float]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TileError, match="cannot be read: Not a directory"):
        tuned().tune_into(tmp_path / "file", [(64,)])
    with pytest.raises(TileError, match="cannot be written"):
        change(Path("/proc/none/scale-interpret.json"), "scale", "interpret", lambda file: file)
    path = tmp_path / "scale-interpret.json"
    path.write_text("{")
    with pytest.raises(TileError, match="makes no sense"):
        tuned().tune_into(tmp_path, [(64,)])
    assert path.read_text() == "{"
    with pytest.raises(TileError, match=r"call 0 is 64, no tuple or dict"):
        tuned().tune_into(tmp_path, [64])
    with pytest.raises(TileError, match="min_improvement is 3"):
        tuned().tune_into(tmp_path, [], min_improvement=3)


def test_values_that_json_has_not(tmp_path: Path, clock: dict[Any, float]) -> None:
    """They are found again in the function's list of configurations."""
    listed = [{"block": 64, "tag": (1, 2)}, {"block": 32, "tag": T.float16}]
    clock[32] = 0.5
    path = tuned(listed).tune_into(tmp_path, [(64,)]).path
    assert read(path).entries[0].config == {"block": 32, "tag": "float16"}
    assert tuned(listed, tuned=tmp_path)(64).config == listed[1]
    clock[32] = 2.0
    assert statuses(tuned(listed).tune_into(tmp_path, [(64,)], retune=True)) == ["replaced"]
    assert tuned(listed, tuned=tmp_path)(64).config == listed[0]
    objects = [{"block": 64, "tag": frozenset([1])}]
    report = tuned(lambda size: objects).tune_into(tmp_path / "other", [(64,)])
    assert statuses(report) == ["failed"] and "cannot be in a file" in report.failed[0].message


def test_stated_latencies_are_compared_with_measured_ones(tmp_path: Path, clock: dict[Any, float]) -> None:
    clock[32] = 0.5
    function = tuned()
    path = function.tune_into(tmp_path, [(64,), (128,)]).path

    def compared(file: TunedFile, **limits: float) -> tuple[list[str], bool]:
        found = list(compare_problem(function, file, **limits))
        return [each.verdict for each in found], verdicts(found)[1]

    file = read(path)
    assert compared(file) == (["ok", "ok"], True)
    for latency, verdict in ((0.549, "ok"), (0.551, "slower"), (0.58, "regressed"), (0.1, "ok")):
        clock[32] = latency
        assert compared(file) == ([verdict] * 2, verdict != "regressed")
    clock[32] = 0.6
    assert compared(file, warn=1.3, fail=1.3) == (["ok", "ok"], True)
    assert "geometric mean 1.200" in verdicts(list(compare_problem(function, file)))[0]
    elsewhere = replace(file, entries=tuple(replace(each, gpu="NVIDIA H200") for each in file.entries))
    assert compared(elsewhere) == (["not compared"] * 2, False)
    estimated = replace(file, entries=(replace(file.entries[0], latency_kind="estimated"), file.entries[1]))
    assert compared(estimated, fail=2.0) == (["not compared", "slower"], True)
    broken = replace(file, entries=(replace(file.entries[0], config={"block": 32, "no": 1}), file.entries[1]))
    assert compared(broken, fail=2.0) == (["broken", "slower"], False)
    with pytest.raises(TileError, match="does not compare with scale on interpret"):
        compare_problem(function, replace(file, target="sm_90"))
    with pytest.raises(TileError, match="1 <= warn <= fail"):
        compare_problem(function, file, warn=1.2, fail=1.1)


def command(folder: Path, cache: Path, *more: str) -> tuple[list[str], dict[str, str]]:
    arguments = ["-m", "tiledsl.cli", "tune", str(ROOT / "tests/autotune/offline_program.py:scale"), "--into"]
    environment = {**os.environ, "TILEDSL_TEST_NOTES": str(cache / "notes"), "PYTHONPATH": str(ROOT)}
    return [*arguments, str(folder), *more], environment


def notes(cache: Path) -> list[list[str]]:
    """Process, size and block of what was measured."""
    path = cache / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_killed_run_goes_on_without_repeating_work(tmp_path: Path, cache_dir: Path) -> None:
    path = tmp_path / "scale-interpret.json"
    arguments, environment = command(tmp_path, cache_dir, "-D", "size=32:256:x2")
    process = forked.Process(arguments, env=environment)
    wait_for(lambda: path.exists() and len({size for _, size, _ in notes(cache_dir)}) > 1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(60)
    before, entries = notes(cache_dir), read(path).entries
    assert 1 <= len(entries) < 4
    done = forked.run(arguments, env=environment)
    assert done.returncode == 0, done.stderr
    assert blocks(path) == {32: 64, 64: 64, 128: 64, 256: 64} and all(e in read(path).entries for e in entries)
    skipped = [line for line in done.stdout.splitlines() if "skipped, tuned before" in line]
    assert len(skipped) == len(entries)
    saved = {str(each.arguments["size"]) for each in entries}
    again = notes(cache_dir)[len(before) :]
    assert not saved & {size for _, size, _ in again} and {size for _, size, _ in again} <= {"64", "128", "256"}


def test_of_two_processes_at_once_one_tunes_each_call(tmp_path: Path, cache_dir: Path) -> None:
    """And the other one waits for it and takes what it found: at a miss, and offline."""
    code = f"""
from tests.autotune.offline_program import scale
result = scale(64)
assert result.config == {{"block": 64, "tag": 64}} and scale.tuned_for(64).kind == "none", result
report = scale.tune_into({str(tmp_path)!r}, [(32,), (64,), (128,)])
assert not report.failed, report.summary()
assert scale.tuned_for(64).kind == "exact"
"""
    _, environment = command(tmp_path, cache_dir)
    environment["TILEDSL_TEST_TUNED"] = str(tmp_path)
    children = [subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT) for _ in range(2)]
    assert [child.wait(120) for child in children] == [0, 0]
    assert blocks(tmp_path / "scale-interpret.json") == {32: 64, 64: 64, 128: 64}
    processes = {size: {pid for pid, other, _ in notes(cache_dir) if other == size} for size in ("32", "64", "128")}
    assert all(len(pids) == 1 for pids in processes.values()), processes


def test_calls_that_make_no_sense(tmp_path: Path, clock: dict[Any, float]) -> None:
    for folder, calls, options, message in (
        (tmp_path, None, {}, "the calls are None"),
        (tmp_path, {"size": 64}, {}, "write a list"),
        (None, [], {}, "the folder is None"),
        (tmp_path, [], {"min_improvement": "3%"}, "min_improvement is '3%'; it is a share, such as 0.03"),
    ):
        with pytest.raises(TileError, match=message):
            tuned().tune_into(folder, calls, **options)
    report = tuned().tune_into(tmp_path, [(64,), {"size": "64"}, {"size": 128, "block": 32}])
    assert statuses(report) == ["tuned", "failed", "failed"] and blocks(report.path) == {64: 16}
    assert "block is a tunable, which is chosen for the other arguments: leave it out" in report.outcomes[2].message
