"""Trials as lines of a file: what is written is read, and nothing else."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.children import start
from tiledsl import strict_json
from tiledsl.autotuner.space import config_key
from tiledsl.autotuner.storage import journal
from tiledsl.autotuner.trial import Trial
from tiledsl.files import read_file

FULL = Trial(0, {"block": 64, "kind": None}, "ok", "said \u00e4 and \n", latency=0.5, verified=True, max_error=1e-3)
FULL.resources = {"registers": 32, "occupancy_limit": (3, "warps"), "spills": None}
FULL.source_hash = "0123"


def trials(count: int) -> list[Trial]:
    return [Trial(i, {"block": i}, "ok", latency=float(i + 1)) for i in range(count)]


def written(path: Path, count: int = 5) -> bytes:
    for trial in trials(count):
        journal.append(path, journal.line_of(journal.encode(trial)))
    return path.read_bytes()


CONTENT = b"".join(journal.line_of({**journal.encode(trial), "time": 1e9}) for trial in trials(5))


def test_a_trial_survives() -> None:
    line = journal.line_of(journal.encode(FULL))
    assert line.isascii() and line.count(b"\n") == 1
    again = journal.decode(0, FULL.config, strict_json.parse(line))
    assert again.resources == {"registers": 32, "occupancy_limit": [3, "warps"], "spills": None}
    again.resources = FULL.resources
    assert again == FULL


def test_numbers_that_json_does_not_have_become_null() -> None:
    trial = Trial(0, {"factor": math.inf, "thing": object}, "nonfinite", max_error=math.nan)
    trial.resources = {"x": [math.inf, {"deep": math.nan}], 3: object}
    record = json.loads(journal.line_of(journal.encode(trial)), parse_constant=pytest.fail)
    assert record["max_error"] is None and record["resources"]["x"] == [None, {"deep": None}]
    assert record["config"] == {"factor": "inf", "thing": "<class 'object'>"}
    assert journal.decode(0, trial.config, record).status == "nonfinite"


def test_long_messages_are_cut() -> None:
    trial = Trial(0, {}, "crash", "x" * 10_000_000)
    assert journal.encode(trial)["message"] == "x" * 20_000


@given(st.data())
@settings(max_examples=60)
def test_a_journal_cut_anywhere_keeps_what_is_whole(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trials.jsonl")
        cut = data.draw(st.integers(0, len(CONTENT)))
        path.write_bytes(CONTENT[:cut])
        records, wrong = journal.read_journal(path)
        whole = sum(1 for end, byte in enumerate(CONTENT) if byte == 10 and end <= cut)
        assert wrong == 0 and list(records) == [config_key({"block": i}) for i in range(whole)]
        journal.append(path, journal.line_of(journal.encode(FULL)))  # the torn line harms none that follows
        records, wrong = journal.read_journal(path)
        assert len(records) == whole + 1 and config_key(FULL.config) in records and wrong <= 1


@given(st.data())
@settings(max_examples=60)
def test_damage_costs_only_the_lines_it_hits(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trials.jsonl")
        start = data.draw(st.integers(0, len(CONTENT) - 1))
        length = data.draw(st.integers(0, 40))
        path.write_bytes(CONTENT[:start] + data.draw(st.binary(max_size=40)) + CONTENT[start + length :])
        records, _ = journal.read_journal(path)
        before = CONTENT[:start].count(b"\n")
        after = CONTENT[start + length :].count(b"\n") - 1
        assert len(records) >= max(before, after, 0)
        for record in records.values():
            journal.decode(0, {}, record)


WRONG = {
    "nan": '"latency":1.0', "infinite": '"latency":1.0', "negative": '"latency":1.0', "type": '"latency":1.0',
    "boolean": '"latency":1.0', "huge": '"latency":1.0', "missing": '"latency":1.0', "status": '"status":"ok"',
    "new": '"status":"ok"', "unknown": '"schema":2', "count": '"rounds":0', "time": '"time":', "key": '"key":"',
}  # fmt: skip
REPLACED = {
    "nan": '"latency":NaN', "infinite": '"latency":1e999', "negative": '"latency":-1.0', "type": '"latency":{}',
    "boolean": '"latency":true', "huge": '"latency":1' + "0" * 400, "missing": '"latency":null',
    "status": '"status":"__import__"', "new": '"status":"new"', "unknown": '"schema":99',
    "count": '"rounds":1' + "0" * 4000, "time": '"time":"now","x":', "key": '"key":[],"y":"',
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_lines_that_make_no_sense_are_left_out(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    lines = written(path, 3).decode().splitlines()
    assert WRONG[kind] in lines[1] or WRONG[kind].replace(":1.0", ":2.0") in lines[1]
    lines[1] = lines[1].replace(":2.0", ":1.0").replace(WRONG[kind], REPLACED[kind])
    path.write_text("\n".join(lines) + "\n")
    records, wrong = journal.read_journal(path)
    assert (len(records), wrong) == (2, 1)


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"a":' * 50_000, "[]", "null", "{}", "\xff\x00", "9" * 5000, "x" * (2 << 20)]
)
def test_foreign_lines_are_left_out(line: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    written(path, 2)
    path.write_bytes(line.encode("latin-1") + b"\n" + path.read_bytes() + line.encode("latin-1") + b"\n")
    records, wrong = journal.read_journal(path)
    assert (len(records), wrong) == (2, 2)


def test_the_last_of_repeated_configurations_counts(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    for latency in (3.0, 1.0, 2.0):
        journal.append(path, journal.line_of(journal.encode(Trial(0, {"block": 1}, "ok", latency=latency))))
    (record,) = journal.read_journal(path)[0].values()
    assert record["latency"] == 2.0


def test_files_that_are_no_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises((ValueError, OSError)):
            read_file(path)
    link = tmp_path / "link"
    link.symlink_to("/dev/full")
    for path in (pipe, tmp_path, link, Path("/dev/full")):
        with pytest.raises(OSError):
            journal.append(path, b"{}\n")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(10 << 30)  # takes no space
    with pytest.raises(ValueError, match="too large"):
        read_file(large)


def test_writers_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    path, lines = tmp_path / "trials.jsonl", 100

    def write(number: int) -> None:
        for index in range(lines):
            trial = Trial(0, {"writer": number, "index": index}, "crash", "x" * random.randrange(5000))
            journal.append(path, journal.line_of(journal.encode(trial)))

    children = [start(partial(write, number)) for number in range(8)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    records, wrong = journal.read_journal(path)
    assert (len(records), wrong) == (8 * lines, 0)


def test_a_disk_that_fills_up_tears_one_line(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    size = len(written(path, 3))

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))  # the system writes 100 bytes of the line
        for _ in range(2):
            try:
                journal.append(path, journal.line_of(journal.encode(FULL)))
            except OSError:
                continue
            os._exit(2)

    assert os.waitpid(start(fill), 0)[1] == 0 and path.stat().st_size == size + 100
    assert len(journal.read_journal(path)[0]) == 3
    journal.append(path, journal.line_of(journal.encode(FULL)))
    assert len(journal.read_journal(path)[0]) == 4


def test_files_are_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "best.json"
    journal.write_json(path, {"a": 1})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError):
        journal.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1} and os.listdir(tmp_path) == ["best.json"]
    with pytest.raises(ValueError):
        journal.write_json(path, {"a": math.inf})


@pytest.mark.parametrize("value", ["text", 5, 2.5, True, [1], {"a": 1}, 1 << 63, -(1 << 63)])
@pytest.mark.parametrize(
    "name", ["message", "timing", "rounds", "verified", "by_rank", "resources", "max_error", "doubts"]
)
def test_a_field_of_another_type_makes_no_trial(name: str, value: Any) -> None:
    fits = {
        "message": [str], "timing": [str], "rounds": [int], "verified": [bool], "by_rank": [list],
        "resources": [dict], "max_error": [int, float], "doubts": [dict],
    }[name]  # fmt: skip
    record = {**journal.encode(FULL), name: value}
    large = type(value) is int and abs(value) >= 1 << 63 and name != "max_error"
    if type(value) in fits and not large and not (name == "max_error" and value < 0):
        assert getattr(journal.decode(0, FULL.config, record), name) == value
    else:
        with pytest.raises(ValueError):
            journal.decode(0, FULL.config, record)
