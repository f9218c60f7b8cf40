"""`--json` of every command: one object of the documented schema, for what works and for what does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.autotune.tuned_entries import entry, file_of
from tests.support import forked
from tests.test_cli import PROGRAMS, tiledsl
from tiledsl.autotuner.tuned.file import dump
from tiledsl.cli import main
from tiledsl.commands import report

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
PLACE = ("file", "line", "column", "end_line", "end_column")


def leaves(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    for word, each in command.commands.items():
        yield from leaves(each, f"{name} {word}".strip())


COMMANDS = dict(leaves(main))


def of(*words: object, status: int = 0) -> dict[str, Any]:
    """The object of a command, which ends with this status."""
    ended = tiledsl(*words)
    lines = ended.stdout.splitlines()
    assert len(lines) == 1, ended
    answer: dict[str, Any] = json.loads(lines[0])
    assert list(answer) == ["schema", "command", "status", "error", "data"]
    assert (answer["schema"], answer["status"], ended.exit_code) == (1, status, status), answer
    assert set(answer["data"]) == set(report.fields_of(COMMANDS.get(answer["command"], main)))
    if answer["error"] is not None:
        assert list(answer["error"]) == ["kind", "code", "message", *PLACE, "notes", "text"]
    return answer


def data(*words: object, status: int = 0) -> dict[str, Any]:
    found = of(*words, "--json", status=status)
    assert found["error"] is None
    return found["data"]  # type: ignore[no-any-return]


def wrong(*words: object, status: int = 1) -> dict[str, Any]:
    return of(*words, "--json", status=status)["error"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("programs") / "programs_for_json.py"
    file.write_text(PROGRAMS)
    return file


def test_every_command_has_it_and_is_documented() -> None:
    rows = dict(re.findall(r"^\| `([\w ]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert set(rows) == set(COMMANDS), "docs/cli.md: the table of --json has a row for each command"
    for name, command in COMMANDS.items():
        options = [option for each in command.params for option in each.opts]
        assert options.count("--json") == 1, name
        missing = [field for field in report.fields_of(command) if f"`{field}`" not in rows[name]]
        assert not missing, f"docs/cli.md: the row of {name} says nothing of {missing}"
    assert f"`schema`: {report.SCHEMA}." in PAGE.read_text()


def test_lower(programs: Path, tmp_path: Path) -> None:
    words = ["lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16", "--target", "cuda:90"]
    found = data(*words)
    assert "@triton.jit" in found["text"] and found["text"] == tiledsl(*words).stdout
    assert (found["function"], found["target"], found["emit"], found["files"]) == ("scaled", "cuda:90", "source", None)
    assert found["remarks"] == []
    out = tmp_path / "out.py"
    assert data(*words, "-o", out)["files"] == [str(out)] and out.read_text() == found["text"]


def test_a_mistake_has_its_place(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(
        "import tiledsl.language as T\n\n\n@T.prim_func\ndef f(X: T.Tensor((32,), 'float32')):\n"
        "    with T.Kernel(1, threads=32) as _:\n        for i in T.Parallel(32):\n            X[i] = Y[i]\n"
    )
    error = wrong("lower", file)
    assert (error["kind"], error["file"], error["line"], error["column"]) == ("mistake", str(file), 8, 20)
    assert error["message"] == "Y is not defined" and error["text"].startswith(f"{file.name}:8:20: error: Y is not")
    assert error["text"] == tiledsl("lower", file).stderr.rstrip("\n")


def test_mistakes_without_a_place(programs: Path) -> None:
    error = wrong("lower", f"{programs}:scaled", "-D", "M=32")
    assert (error["message"], error["line"]) == ("scaled needs N", None)
    assert [note["message"] for note in error["notes"]] == ["give them: -D N=..."]
    assert wrong("tuned", "list", "/nowhere")["kind"] == "mistake"


def test_mistakes_in_options_are_objects_too() -> None:
    error = wrong("lower", "--nonsense", status=2)
    assert error["kind"] == "usage" and "--nonsense" in error["message"]
    assert of("tuned", "--json", status=2)["command"] == "tuned"
    assert wrong("nonsense", status=2)["message"].startswith("No such command")


def test_passes_and_opt(programs: Path, tmp_path: Path) -> None:
    (one,) = data("passes", "cse")["passes"]
    assert one["name"] == "cse" and one["places"] and one["text"] and len(data("passes")["passes"]) > 20
    level = tmp_path / "scale.mlir"
    level.write_text(tiledsl("lower", f"{programs}:scaled", "-D", "M=32", "-D", "N=16", "--emit", "tile").stdout)
    found = data("opt", level, "-p", "canonicalize")
    assert found["text"].startswith("tile.func") and list(found["milliseconds"]) == ["canonicalize"]


def test_tuned_files(tmp_path: Path) -> None:
    file = tmp_path / "scale-sm_90.json"
    file.write_bytes(
        dump(file_of(entry(32, 0.5, size=64), entry(16, float("inf"), "unknown", size=32), target="sm_90"))
    )
    first, second = data("tuned", "list", file)["entries"]
    assert (first["file"], first["function"], first["target"]) == (str(file), "scale", "sm_90")
    assert sorted([(e["arguments"]["size"], e["latency_ms"], e["config"]["block"]) for e in (first, second)]) == [
        (32, None, 16), (64, 0.5, 32),
    ]  # fmt: skip
    merged = data("tuned", "merge", tmp_path / "all.json", file, file)
    assert merged == {"file": str(tmp_path / "all.json"), "entries": 2, "read": 4}
    file.write_bytes(dump(file_of(entry(32, 0.5, size=64), target="sm_90")))
    (table,) = data("tuned", "table", file)["tables"]
    assert table["rows"][0]["config"] == {"block": 32} and table["rows"][0]["mean"] == 1.0
    assert data("tuned", "check", file) == {"files": [str(file)], "problems": []}
    file.write_text("{}")
    found = of("tuned", "check", file, "--json", status=1)
    assert found["error"] is None and found["data"]["problems"][0]["severity"] == "error"


def test_cache_and_doctor(cache_dir: Path) -> None:
    assert data("cache", "list") == {"entries": None}
    assert data("cache", "clear", "--yes") == {"deleted": 0}
    assert wrong("cache", "show", "nothing")["message"] == "nothing is remembered for 'nothing'"


def test_nothing_is_asked(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.commands import cache

    class Entry:
        modified, size = 0.0, staticmethod(lambda: 0)

    monkeypatch.setattr(cache, "_entries", lambda kernel: [Entry()])
    assert wrong("cache", "clear")["message"] == "--json asks nothing: add --yes to delete"


def test_a_script_keeps_its_options_and_what_it_prints(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint('said')\nos.write(1, b'written')\nsys.exit(sys.argv.count('--json') + 2)\n"
    )
    ended = forked.run(["-m", "tiledsl.cli", "run", "--json", script, "--json"], cwd=PAGE.parents[1])
    assert json.loads(ended.stdout) == {
        "schema": 1, "command": "run", "status": 3, "error": None, "data": {"script": str(script)},
    }  # fmt: skip
    assert "said" in ended.stderr and "written" in ended.stderr and ended.returncode == 3
    assert tiledsl("run", script, "--json").stdout.splitlines()[0] == "said"


def test_a_command_that_says_nothing_of_its_own_has_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    @click.argument("word")
    def echoed(word: str) -> None:
        click.echo(word * 2)

    group = type(main)("group", commands={"echoed": echoed})
    echoed.params.append(click.Option(["--json"], is_flag=True, expose_value=False))
    assert report.wants_json(group, ["echoed", "--", "--json"]) == (False, "echoed", ("text",))
    with pytest.raises(SystemExit):
        group.main(["echoed", "ab", "--json"])
    assert json.loads(capsys.readouterr().out)["data"] == {"text": "abab\n"}


def test_what_a_command_gives_is_named_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.run_in_json(lambda: report.give(a=1, b=2), "x", ("a",)) == 1
    assert "x gives 'b': name it in @gives of the command, and in docs/cli.md" in capsys.readouterr().out


def test_what_is_no_number_is_null() -> None:
    values = {"a": float("nan"), "b": [float("-inf"), 1.5, True], "c": Path("x"), 3: (None,)}
    assert report.plain(values) == {"a": None, "b": [None, 1.5, True], "c": "x", "3": [None]}
