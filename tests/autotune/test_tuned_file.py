"""Tuned-config files: what is written reads back, nonsense is found, several writers lose nothing."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.test_resume import start
from tests.autotune.tuned_entries import entry, file_of
from tiledsl import strict_json
from tiledsl.autotuner.tuned import file as files
from tiledsl.autotuner.tuned.check import check
from tiledsl.autotuner.tuned.entry import TunedEntry
from tiledsl.autotuner.tuned.file import Default, TunedFile, architecture, change, dump, merged, parse, path_of, read
from tiledsl.errors import TileError
from tiledsl.runtime.target import Target

FULL = TunedEntry(
    {"M": 16, "dtype": "float16", "shape": [1, 2]}, {"block": 64, "pass_configs": {"unroll-loops.limit": 4}}, 0.25,
    "measured", "ab" * 8, "2026-01-02T03:04:05Z", 0.5, 12.5, 300.0, "NVIDIA H200", 132, {"triton": "3.6.0"},
)  # fmt: skip


def test_what_is_written_reads_back() -> None:
    file = TunedFile("scale", "sm_90", (FULL, entry(M=32)), Default({"block": 64}, "ab" * 8, "most common"))
    assert parse(dump(file)) == file
    data = json.loads(dump(file), parse_constant=lambda name: pytest.fail(name))
    assert data["schema"] == 1 and [each["arguments"]["M"] for each in data["entries"]] == [16, 32]
    assert "gpu" not in data["entries"][1] and "tflops" not in data["entries"][1]
    assert parse(dump(TunedFile("scale", "sm_90"))) == TunedFile("scale", "sm_90")


def test_entries_are_sorted_by_number_and_a_change_is_a_small_difference() -> None:
    entries = [entry(M=m, N=n) for m in (1000, 16, 200) for n in (64, 8)]
    before = dump(file_of(*entries)).decode().splitlines()
    shown = [json.loads(line.split(": ", 1)[1].rstrip(",")) for line in before if '"arguments"' in line]
    assert [(each["M"], each["N"]) for each in shown] == [(m, n) for m in (16, 200, 1000) for n in (8, 64)]
    assert dump(file_of(*reversed(entries))).decode().splitlines() == before
    after = dump(file_of(*[replace(e, latency_ms=0.5) if e.arguments == {"M": 16, "N": 64} else e for e in entries]))
    changed = [(one, other) for one, other in zip(before, after.decode().splitlines()) if one != other]
    assert changed == [('   "latency_ms": 1.0,', '   "latency_ms": 0.5,')]


@pytest.mark.parametrize(
    ("target", "name"),
    [("cuda:90", "scale-sm_90.json"), ("hip:gfx942", "scale-gfx942.json"), ("interpret", "scale-interpret.json")],
)
def test_names(target: str, name: str) -> None:
    assert path_of(Path("x"), "scale", Target.parse(target)) == Path("x", name)
    assert TunedFile("scale", architecture(Target.parse(target))).name == name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"latency_ms": "NaN"}, "latency_ms is 'NaN'; it is a number above 0"),
        ({"latency_ms": 0}, "latency_ms is '0'"),
        ({"latency_ms": None}, "latency_ms is null"),
        ({"latency_ms": True}, "latency_ms is 'True'"),
        ({"reference_ms": -1}, "reference_ms"),
        ({"latency_kind": "guessed"}, "latency_kind is 'guessed'; it is measured or estimated"),
        ({"config": []}, "config is no object"),
        ({"arguments": 3}, "arguments is no object"),
        ({"sm_count": 0}, "sm_count"),
        ({"versions": {"triton": 3}}, "versions are texts"),
        ({"latency": 1}, "'latency' is no field of an entry"),
        ({"source": None}, "source is no text"),
    ],
)
def test_an_entry_of_nonsense_is_told_and_left_out(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = json.loads(dump(file_of(FULL, entry(M=32))))
    data["entries"][0].update(wrong)
    file = parse(json.dumps(data).encode())
    assert len(file.entries) == 1 and len(file.problems) == 1
    assert file.problems[0].startswith("entry 1: ") and message in file.problems[0]
    path = tmp_path / "scale-interpret.json"
    path.write_text(json.dumps(data))
    assert [p.severity for p in check(path) if message in p.message] == ["error"]
    with pytest.raises(TileError, match="makes no sense: entry 1"):  # it is not written over
        change(path, "scale", "interpret", lambda file: file.with_entry(entry(M=1)))
    assert json.loads(path.read_text()) == data


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'{"schema": 2}',
        b'{"schema": 1, "function": "f", "target": "sm_90", "entries": [], "x": NaN}',
        b'{"schema": 1, "function": "f", "target": "sm_90"}', b"\xff\xfe", b"[" * 100_000,
        b'{"schema": 1, "function": "", "target": "", "entries": []}',
    ],
)  # fmt: skip
def test_a_file_of_nonsense_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        parse(content)
    path = tmp_path / "f-sm_90.json"
    path.write_bytes(content)
    assert [problem.severity for problem in check(path)] == ["error"]
    with pytest.raises(TileError, match="makes no sense"):
        files.read_or_new(path, "f", "sm_90")


def messages(path: Path) -> dict[str, str]:
    return {problem.message: problem.severity for problem in check(path)}


def test_check_finds_what_run_time_would_stumble_over(tmp_path: Path) -> None:
    path = tmp_path / "scale-interpret.json"
    good = file_of(entry(M=16), entry(M=32))
    path.write_bytes(dump(good))
    assert messages(path) == {}
    path.write_bytes(dump(file_of(entry(M=16), entry(32, M=16), entry(M=32))))
    assert messages(path) == {"2 entries are for M=16": "error"}
    path.write_bytes(dump(replace(good, default=None)))
    assert messages(path) == {"there is no default": "error"}
    path.write_bytes(dump(TunedFile("scale", "interpret")))
    assert messages(path) == {"there are no entries": "error"}
    path.write_bytes(dump(good).replace(b'"latency_ms": 1.0,', b'"latency_ms": 1.0, "latency_ms": 2.0,', 1))
    assert messages(path) == {"the name 'latency_ms' comes twice in one object": "error"}
    path.write_bytes(dump(good).replace(b'"latency_ms": 1.0,', b'"latency_ms": Infinity,', 1))
    assert list(messages(path).values()) == ["error"] and "Infinity in a file" in next(iter(messages(path)))
    other = path.with_name("other.json")
    other.write_bytes(dump(good))
    assert messages(other) == {"the file should be named scale-interpret.json, or it is not found": "error"}
    path.write_bytes(dump(replace(good, default=replace(good.default, config={"block": 128}))))  # type: ignore[type-var]
    assert messages(path) == {"the default is no entry's configuration": "warning"}
    data = json.loads(dump(good))
    data["entries"].reverse()
    path.write_text(json.dumps(data))
    assert messages(path) == {"the entries are not sorted; tiledsl tuned merge writes them so": "warning"}
    assert check(tmp_path / "none.json")[0].severity == "error"


def test_writers_at_once_lose_no_entry(tmp_path: Path) -> None:
    path = tmp_path / "configs" / "scale-interpret.json"

    def write(first: int) -> None:
        for m in range(first, first + 10):
            change(path, "scale", "interpret", lambda file, m=m: file.with_entry(entry(M=m)))

    children = [start(lambda first=first: write(first)) for first in (0, 10, 20, 30)]
    assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
    assert [each.arguments["M"] for each in read(path).entries] == list(range(40))
    assert path.stat().st_mode & 0o777 == 0o644
    assert sorted(each.name for each in path.parent.iterdir()) == [".scale-interpret.lock", path.name]


def test_an_unchanged_file_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "scale-interpret.json"
    change(path, "scale", "interpret", lambda file: file.with_entry(entry(M=1)))
    before = path.stat()
    change(path, "scale", "interpret", lambda file: file)
    assert path.stat() == before
    with pytest.raises(TileError, match=r"is of scale on interpret, not of other on interpret"):
        change(path, "other", "interpret", lambda file: file)


def test_merging_keeps_the_best_of_each() -> None:
    gpu = replace(entry(16, latency=5.0, M=16), gpu="NVIDIA H200", sm_count=132)
    one = file_of(entry(64, 2.0, M=16), entry(64, 1.0, "estimated", M=32), gpu)
    other = file_of(entry(32, 1.0, M=16), entry(32, 9.0, M=32), entry(32, M=64))
    result = merged([one, other])
    assert [(each.arguments["M"], each.gpu, each.config["block"]) for each in result.entries] == [
        (16, "", 32), (16, "NVIDIA H200", 16), (32, "", 32), (64, "", 32)
    ]  # fmt: skip
    assert result == replace(merged([other, one]), default=result.default)
    assert result.default is not None and result.default.config == {"block": 32}
    newer = replace(entry(8, 99.0, M=16), source="f" * 16, tuned_at="2027-01-01T00:00:00Z")
    assert [each.config["block"] for each in merged([other, file_of(newer)]).entries] == [8, 32, 32]
    by_hand = replace(one, default=Default({"block": 1}, "0", files.BY_HAND))
    assert merged([by_hand, other]).default == by_hand.default
    with pytest.raises(TileError, match="do not merge"):
        merged([one, file_of(name="gemm")])
    assert strict_json.parse(dump(result))["default"]["why"] == "most common, of 3 of 4 entries"
