"""`tiledsl tune` and `tiledsl tuned`: what they write, print and end with."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.autotune.tuned_entries import entry, file_of
from tiledsl.autotuner.tuned.file import dump, read
from tiledsl.cli import main

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = str(ROOT / "tests/autotune/offline_program.py")


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments], catch_exceptions=False)


@pytest.fixture(autouse=True)
def _noted(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_TARGET", "interpret")
    monkeypatch.setenv("TILEDSL_TEST_NOTES", str(cache_dir / "notes"))


def test_a_page_for_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiledsl.report.page._plotting", lambda: "const Plotly = {};")
    options = ("tune", PROGRAM, "-D", "size=13,32", "--into", tmp_path / "configs")
    pages = tmp_path / "some" / "pages"
    assert run(*options, "--reports", pages, "--dry-run").exit_code == 0 and not pages.exists()
    (tmp_path / "file").touch()
    refused = run(*options, "--reports", tmp_path / "file" / "pages")
    assert refused.exit_code == 1 and "cannot be written: Not a directory" in refused.output
    assert not (tmp_path / "configs").exists()  # nothing was tuned
    run(*options, "--reports", pages)
    assert [each.name for each in pages.iterdir()] == ["scale-interpret_size=32.html"]
    assert "<h1>scale: tuning</h1>" in (pages / "scale-interpret_size=32.html").read_text()


def test_from_shapes_to_a_gate(tmp_path: Path, cache_dir: Path) -> None:
    """Tune, list, check, look at the table, compare, tune again and merge, as a user would."""
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("size,factor\n32,2.0\n13,2.0\n64,2.0\n")
    into = ("--into", tmp_path / "configs")
    planned = run("tune", f"{PROGRAM}:scale", "--shapes", shapes, *into, "--dry-run")
    assert planned.exit_code == 0 and not (tmp_path / "configs").exists()
    assert planned.output.splitlines()[0] == "[1/3] size=32: planned, not tuned yet, 3 configurations"
    done = run("tune", PROGRAM, "--shapes", shapes, *into)
    path = tmp_path / "configs" / "scale-interpret.json"
    assert done.exit_code == 1 and f"{path}: 2 tuned, 1 failed" in done.output
    assert (
        "  size=13: failed, autotune: none of 3 configurations of scale works on interpret (compile_error: 3"
        in done.output
    )
    assert "ValueError: no 13)" in done.output
    assert "size=64: tuned, block=64 tag=64, 1 ms measured" in done.output
    again = run("tune", PROGRAM, "-D", "size=32:128:x2", *into)
    assert again.exit_code == 0 and f"{path}: 2 skipped, 1 tuned" in again.output
    assert [each.arguments["size"] for each in read(path).entries] == [32, 64, 128]

    listed = run("tuned", "list", tmp_path / "configs").output.splitlines()
    assert listed[0].split()[:4] == ["function", "on", "arguments", "configuration"] and len(listed) == 4
    assert listed[1].split()[:5] == ["scale", "interpret", "size=32", "block=64", "tag=32"]
    checked = run("tuned", "check", path, "--program", PROGRAM)
    assert (checked.exit_code, checked.output) == (0, "1 files: 0 errors, 0 warnings\n")
    table = run("tuned", "table", path, "--csv", tmp_path / "table.csv").output.splitlines()
    assert table[1].split() == ["configuration", "mean", "worst", "works", "size=32", "size=64", "size=128"]
    assert table[2].split() == ["block=64", "tag=32", "1.000", "1.00", "1/3", "1.00", "-", "-"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert [(row["block"], row["tag"], row["size=64"]) for row in rows][1] == ("64", "64", "1.0") and len(rows) == 3

    gate = run("tuned", "compare", path, "--program", PROGRAM)
    assert gate.exit_code == 0 and f"{path}: 3 ok; geometric mean 1.000" in gate.output
    Path(f"{cache_dir}/notes.reversed").touch()  # small blocks are faster now
    slower = path.with_name("slower.json")
    slower.write_bytes(path.read_bytes().replace(b'"latency_ms": 1.0', b'"latency_ms": 0.8'))
    gate = run("tuned", "compare", slower, "--program", PROGRAM)
    assert gate.exit_code == 1 and "size=64: regressed, stated 0.8 ms, now 1 ms, 1.250" in gate.output
    assert run("tuned", "compare", slower, "--program", PROGRAM, "--fail", "1.3").exit_code == 0
    retuned = run("tune", PROGRAM, "-D", "size=32", *into, "--retune", "--min-improvement", "80%")
    assert "size=32: kept, block=16 tag=32 would save 75.0%, less than 80.0%" in retuned.output
    retuned = run("tune", PROGRAM, "-D", "size=32", *into, "--retune", "--no-trials")
    assert "size=32: replaced, was block=64 tag=32, block=16 tag=32, 0.25 ms measured" in retuned.output

    merged = run("tuned", "merge", tmp_path / "all", slower, path)
    assert merged.output == f"{tmp_path / 'all' / path.name}: 3 of 6 entries of 2 files\n"
    assert [each.latency_ms for each in read(tmp_path / "all" / path.name).entries] == [0.25, 0.8, 0.8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs shapes"),
        (["-D", "size"], "'size' is not name=values"),
        (["-D", "size=1", "-D", "size=2"], "-D names size twice"),
        (["-D", "size=1", "--min-improvement", "3x"], "--min-improvement 3x"),
        (["-D", "size=1", "--min-improvement", "300%"], "--min-improvement 300%"),
        (["-D", "size=1", "--gpus", "all"], "--gpus all"),
        (["-D", "size=1", "--target", "tpu"], "unknown target"),
        (["-D", "size=1", "--budget", "-1"], "budget is -1.0"),
        (["--shapes", "nowhere.csv"], "nowhere.csv cannot be read"),
    ],
)
def test_mistakes_are_told(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = run("tune", PROGRAM, "--into", tmp_path, *arguments)
    assert result.exit_code == 1 and message in result.output and not list(tmp_path.iterdir())


def test_a_name_that_is_no_parameter_is_told_once_at_its_place(tmp_path: Path) -> None:
    shapes, into = tmp_path / "bad.csv", tmp_path / "configs"
    shapes.write_text("# calls\nsize, factors\n16,2.0\n32,2.0\n")
    result = run("tune", PROGRAM, "--shapes", shapes, "--into", into)
    names = "its parameters are size, block, factor, tag\n"
    assert (result.exit_code, result.output) == (
        1,
        f"bad.csv:2:7: error: scale has no parameter 'factors'; {names}"
        "     2 | size, factors\n       |       ^^^^^^^\n  note: did you mean factor?\n",
    )
    shapes = shapes.with_suffix(".json")
    shapes.write_text('[{"size": 16}, {"length": 32}]')
    result = run("tune", PROGRAM, "--shapes", shapes, "--into", into)
    assert result.output == f"{shapes}: scale has no parameter 'length'; {names}"
    result = run("tune", PROGRAM, "-D", "size=16", "-D", "length=3", "--into", into)
    assert (result.exit_code, result.output) == (1, f"scale has no parameter 'length'; {names}")
    assert not into.exists()


def test_failures_of_all_calls_are_told_once(tmp_path: Path) -> None:
    result = run("tune", PROGRAM, "-D", "size=16", "-D", "block=32", "--into", tmp_path)
    assert result.output.count("block is a tunable") == 1 and result.exit_code == 1


def test_no_such_program(tmp_path: Path) -> None:
    result = run("tune", f"{PROGRAM}:none", "--into", tmp_path, "-D", "size=1")
    assert result.exit_code == 1 and "has no autotuned function none" in result.output


def test_check_ends_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "scale-interpret.json"
    path.write_bytes(dump(file_of(entry({"block": 64, "tags": 1}, size=64), entry({"block": 64, "tags": 1}, size=64))))
    result = run("tuned", "check", tmp_path, "--program", PROGRAM)
    assert result.exit_code == 1
    assert f"{path}: error: 2 entries are for size=64" in result.output
    assert "the configuration for size=64 sets 'tags', which is not a parameter; did you mean 'tag'?" in result.output
    stale = "2 of 2 entries are for another source of scale: they are not used"
    assert f"{path}: error: {stale}\n" in result.output
    assert result.output.endswith("1 files: 5 errors, 0 warnings\n")
    path.write_bytes(dump(file_of(entry({"block": 64}, size=64), entry({"block": 32}, size=32))))
    assert run("tuned", "check", tmp_path).output == "1 files: 0 errors, 0 warnings\n"  # nobody says of what
    result = run("tuned", "check", tmp_path, "--program", PROGRAM)
    assert (result.exit_code, result.output) == (1, f"{path}: error: {stale}\n1 files: 1 errors, 0 warnings\n")
    result = run("tuned", "check", tmp_path, "--program", PROGRAM, "--allow-stale")
    assert (result.exit_code, result.output) == (0, f"{path}: warning: {stale}\n1 files: 0 errors, 1 warnings\n")
    path.write_bytes(dump(file_of(entry({"block": 64, "tags": 1}, size=64), entry({"block": 64, "tags": 1}, size=64))))
    assert run("tuned", "check", tmp_path / "none").exit_code == 1
    (tmp_path / "empty").mkdir()
    for command in (("check",), ("list",), ("table",), ("merge", tmp_path / "merged")):
        empty = run("tuned", *command, tmp_path / "empty")
        assert empty.exit_code == 1 and f"there is no tuned-config file in {tmp_path / 'empty'}" in empty.output
    compared = run("tuned", "compare", path, "--program", PROGRAM)
    assert compared.exit_code == 1 and "size=64: broken" in compared.output


def test_names_in_files_are_no_terminal_codes(tmp_path: Path) -> None:
    path = tmp_path / "scale-interpret.json"
    path.write_bytes(dump(file_of(entry({"block": "\x1b[31m"}, size=64))))
    for command in ("list", "table"):
        assert "\x1b" not in run("tuned", command, path).output


def test_files_of_nonsense_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scale-interpret.json"
    path.write_text(json.dumps({"schema": 1, "function": "scale", "target": "interpret", "entries": [3]}))
    for arguments in (["list", path], ["table", path], ["merge", tmp_path / "out", path]):
        result = run("tuned", *arguments)
        assert result.exit_code == 1 and "entry 1: it is no object" in result.output
    result = run("tuned", "compare", tmp_path, "--program", PROGRAM)
    assert result.exit_code == 1 and f"{tmp_path} is a folder; name a file of it" in result.output
