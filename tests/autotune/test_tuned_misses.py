"""Calls that no tuned-config file serves: which ones are collected, that they can be tuned from there, and that
nothing about the file ends or delays a call."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledsl
import tiledsl.language as T
from tests.autotune.programs import scale_program, twice
from tests.autotune.tuned_entries import entry, file_of
from tiledsl import logs
from tiledsl.autotuner.tuned import misses, recall
from tiledsl.autotuner.tuned.file import dump
from tiledsl.autotuner.tuned.shapes import product, read_shapes
from tiledsl.settings import current, settings

BLOCKS = [{"block": 32}, {"block": 16}]
NAME = "scale-interpret.csv"


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_noted", set())
    monkeypatch.setattr(recall, "_read", {})
    monkeypatch.setattr(misses, "_seen", {})


def scale(size: int, block: int | None = None, dtype: Any = "float32") -> Any:
    return scale_program(size, block, dtype)


def function(**options: Any) -> Any:
    given = {"configs": BLOCKS, "ref_prog": twice, "progress": False, "on_miss": "first", **options}
    return tiledsl.autotune(**given)(tiledsl.jit(out_idx=-1)(scale))


def shipped(folder: Path, *sizes: int) -> Path:
    """A tuned-config file of the function for these sizes."""
    source = function().tuned_configs.source(frozenset({"block"}))
    entries = [replace(entry(32, size=size), source=source) for size in sizes]
    (folder / "scale-interpret.json").write_bytes(dump(file_of(*entries)))
    return folder


def test_calls_without_an_entry_are_collected_and_can_be_tuned(tmp_path: Path) -> None:
    tuned = function(tuned=shipped(tmp_path, 64), nearest=False)
    with settings(tuned_configs=[tmp_path / "new" / "misses" / "*.csv"]):
        for size in (64, 80, 80, 96):
            tuned(size)
        tuned(96, dtype=T.float16)
        function(tuned=tmp_path, nearest=False)(80)
    path = tmp_path / "new" / "misses" / NAME
    assert path.read_text() == "size,dtype\n80,\n96,\n96,float16\n"
    calls = product(read_shapes(path), {})
    assert calls == [{"size": 80}, {"size": 96}, {"size": 96, "dtype": "float16"}]
    report = function().tune_into(tmp_path, calls, dry_run=True)
    assert [each.status for each in report.outcomes] == ["planned"] * 3


def test_what_the_nearest_entry_serves_is_collected_and_what_the_bucket_serves_is_not(tmp_path: Path) -> None:
    folder = shipped(tmp_path, 64)
    with settings(tuned_configs=[tmp_path / "*.csv"]):
        function(tuned=folder, bucket="size")(48)
        assert not (tmp_path / NAME).exists()
        function(tuned=folder)(48)
    assert (tmp_path / NAME).read_text() == "size,dtype\n48,\n"


def test_without_any_file_all_calls_are_collected(tmp_path: Path, timer: Any) -> None:
    timer(lambda config: 1.0)
    tuned = function(on_miss="tune", isolate=False)
    with settings(tuned_configs=[tmp_path / "*.csv"]):
        tuned(32)
        with settings(always_tune=True):
            tuned(48)
    tuned(64)
    assert (tmp_path / NAME).read_text() == "size,dtype\n32,\n"


def test_only_the_first_call_of_a_kind_reaches_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(misses.os, "open", lambda path, *rest: opened.append(path) or real(path, *rest))
    tuned = function(tuned=tmp_path, on_miss="error")
    with settings(tuned_configs=[tmp_path / "*.csv"]):
        for size in (16, 16, 32, 16):
            with pytest.raises(tiledsl.TileError, match="is not tuned for"):
                tuned(size)
    assert [each for each in opened if str(each).endswith(".csv")] == [tmp_path / NAME] * 2


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@given(st.lists(st.tuples(values, values), min_size=1, max_size=4))
def test_every_value_is_read_as_it_was(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any]]) -> None:
    path = tmp_path_factory.mktemp("misses") / "f.csv"
    for a, b in rows:
        misses.add(path, {"a": a, "b": b}, {"b": 7})
    wanted = [{"a": a, "b": b} if (type(b), b) != (int, 7) else {"a": a} for a, b in rows]
    assert list(map(repr, read_shapes(path))) == list(dict.fromkeys(map(repr, wanted)))


def test_tuning_offline_collects_nothing(tmp_path: Path, timer: Any) -> None:
    timer(lambda config: 1.0)
    with settings(tuned_configs=[tmp_path / "*.csv"]):
        report = function(isolate=False).tune_into(tmp_path / "configs", [(64,)])
    assert [each.status for each in report.outcomes] == ["tuned"] and not (tmp_path / NAME).exists()


def test_the_setting_has_folders_to_look_into_and_one_to_collect_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_TUNED_CONFIGS", os.pathsep.join(["a", "b/*.csv", "c", "d/*.csv"]))
    assert current().tuned_folders == (Path("a"), Path("c")) and current().tuned_misses == Path("b")
    with settings(tuned_configs="a"):
        assert current().tuned_misses is None and current().tuned_folders == (Path("a"),)


def _collect(path: Path, numbers: range) -> None:
    for number in numbers:
        misses.add(path, {"M": number}, {})


def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_collect, args=(path, range(60))) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    names, *rows = path.read_text().splitlines()
    assert names == "M" and sorted(map(int, rows)) == list(range(60))


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("# by hand\nM, N\n16,32\n48,6")
    misses.add(path, {"M": 16, "N": 32}, {})
    misses.add(path, {"M": 80, "N": 96}, {})
    assert path.read_text() == "# by hand\nM, N\n16,32\n48,6\n80,96\n"


def test_a_file_that_was_taken_away_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    misses.add(path, {"M": 16}, {})
    path.unlink()
    misses.add(path, {"M": 32}, {})
    assert path.read_text() == "M\n32\n"


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.csv"
    misses.add(path, {"M": 1616}, {})
    real = os.write
    monkeypatch.setattr(misses.os, "write", lambda to, data: real(to, data[:2]))
    with pytest.raises(OSError, match="the disk is full"):
        misses.add(path, {"M": 3232}, {})
    assert path.read_text() == "M\n1616\n"


def _other_names(path: Path) -> None:
    path.write_text("K,size\n1,2\n")


def _a_folder(path: Path) -> None:
    path.mkdir()


def _a_pipe(path: Path) -> None:
    os.mkfifo(path)


def _too_large(path: Path) -> None:
    path.write_bytes(b"size,dtype\n")
    os.truncate(path, 9 << 20)


def _binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00\x00")


def _no_folder(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("")


@pytest.mark.parametrize("spoil", [_other_names, _a_folder, _a_pipe, _too_large, _binary, _no_folder])
def test_a_wrong_file_ends_no_call(spoil: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "misses" / NAME
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    tuned = function(tuned=tmp_path)
    with settings(tuned_configs=[path.parent / "*.csv"]):
        assert tuned(16).config == tuned(32).config == {"block": 32}
    assert before is None or path.read_bytes() == before
    told = [each for each in caplog.messages if "does not get the calls that are not tuned" in each]
    assert len(told) == 1 and str(path) in told[0]


def test_a_lock_that_another_process_keeps_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    misses.add(path, {"M": 16}, {})
    with open(path) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.monotonic()
        misses.add(path, {"M": 32}, {})
    assert path.read_text() == "M\n16\n32\n" and time.monotonic() - started < 5


def test_what_a_function_of_the_users_raises_ends_no_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, timer: Any
) -> None:
    timer(lambda config: 1.0)
    tuned = function(on_miss="tune", isolate=False, key=lambda **values: object())
    with settings(tuned_configs=[tmp_path / "*.csv"]):
        assert tuned(16).config["block"] in (16, 32)
    assert not (tmp_path / NAME).exists()
    assert any("has no text that tells one from another" in each for each in caplog.messages)
