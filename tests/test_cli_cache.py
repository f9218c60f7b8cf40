"""`tiledsl cache`: what it lists, shows, explains and deletes."""

from __future__ import annotations

import csv
import json
import os
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tiledsl.autotuner.storage.cache import CachedResult
from tiledsl.autotuner.storage.key import Key, environment
from tiledsl.autotuner.storage.store import Store
from tiledsl.autotuner.trial import Trial
from tiledsl.cli import main
from tiledsl.runtime.target import Target


def cache(*arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments], input=answer, catch_exceptions=False)


def keep(root: Path, kernel: str = "matmul", age: float = 0.0, **fields: Any) -> Key:
    """A result under a key of this machine, written `age` days ago."""
    key = Key(kernel, {"arguments": {"M": "int:64"}, **environment(Target("interpret"), False), **fields}, False)
    store = Store(root, key)
    trials = [
        Trial(0, {"block": 64}, "ok", latency=0.25),
        Trial(1, {"block": 32, "kind": "x"}, "ok", latency=0.125),
        Trial(2, {"block": 0}, "compile_error", "no block of 0\nat all"),
    ]
    for trial in trials:
        store.append(trial)
    store.finish(CachedResult(trials, "estimated", None))
    then = time.time() - age * 86400
    for path in store.folder.iterdir():
        os.utime(path, (then, then))
    return key


def test_nothing_is_remembered(cache_dir: Path) -> None:
    assert "nothing is remembered" in cache("list").output
    assert cache("clear").output == "nothing to delete\n"
    result = cache("show", "matmul")
    assert result.exit_code == 1 and "there is nothing" in result.output


def test_list(cache_dir: Path) -> None:
    old, new = keep(cache_dir, age=3, triton="3.0"), keep(cache_dir)
    other = Store(cache_dir, Key("softmax", {"gpu": "one"}, False))
    other.append(Trial(0, {"block": 1}, "crash"))
    head, *rows = cache("list").output.splitlines()
    assert head.split() == ["kernel", "key", "configs", "best", "ms", "date", "size"]
    assert sorted(row.split()[0] for row in rows[:2]) == ["matmul", "softmax"]
    assert rows[2].split()[:3] == ["matmul", old.digest[:12], "3"] and new.digest[:12] in "".join(rows[:2])
    assert "block=32 kind=x  0.1250 (estimated)" in cache("list", "matmul").output
    assert "not finished" in cache("list", "softmax").output and cache("list", "none").exit_code == 1
    assert "there is matmul, softmax" in cache("list", "none").output


def test_show(cache_dir: Path) -> None:
    key = keep(cache_dir)
    for name in ("matmul", f"matmul/{key.digest}", f"matmul/{key.digest[:6]}"):
        text = cache("show", name).output
        assert text.startswith(f"matmul/{key.digest} (estimated)\n{key.folder(cache_dir)}\n  arguments: M=int:64\n")
        rows = [line.split() for line in text.splitlines()[-3:]]
        assert rows[0][:4] == ["*", "block=32", "kind=x", "ok"] and rows[1][:2] == ["block=64", "ok"]
        assert rows[2][:3] == ["block=0", "compile_error", "-"] and "no block of 0" in text and "at all" not in text


def test_names_are_no_paths_and_files_no_terminal_codes(cache_dir: Path, tmp_path: Path) -> None:
    key = keep(cache_dir)
    for name in ("../autotune", f"../{cache_dir.name}/autotune/matmul", "/etc", "", "matmul/../matmul", "matmul/zz"):
        assert cache("show", name).exit_code == 1
        assert cache("clear", "--yes", name).exit_code == 1
    assert key.folder(cache_dir).exists()
    folder = key.folder(cache_dir)
    for name in ("best.json", "key.json"):
        path = folder / name
        path.write_text(
            path.read_text().replace("block", "\\u001b[31mred\\u0007").replace("int:64", "[red]\\u001b]0;x")
        )
    for command in (["show", "matmul"], ["list"], ["explain", "matmul"]):
        output = cache(*command).output
        assert "\x1b" not in output and "\x07" not in output
    assert "\\x1b[31mred" in cache("show", "matmul").output


def test_clear(cache_dir: Path) -> None:
    old, new, other = keep(cache_dir, age=3, triton="3.0"), keep(cache_dir), keep(cache_dir, "softmax", age=9)
    assert "Aborted" in cache("clear", answer="n\n").output and other.folder(cache_dir).exists()
    assert cache("clear", "matmul", "--older-than", "2", "--yes").output == "deleted 1 results\n"
    assert not old.folder(cache_dir).exists() and new.folder(cache_dir).exists()
    assert "deleted 1" in cache("clear", f"matmul/{new.digest[:8]}", answer="y\n").output
    assert not new.folder(cache_dir).parent.exists() and other.folder(cache_dir).exists()
    assert cache("clear", "--older-than", "10", "--yes").output == "nothing to delete\n"
    cache("clear", "--yes")
    assert list((cache_dir / "autotune").iterdir()) == []


def test_explain_a_kernel(cache_dir: Path) -> None:
    keep(cache_dir)
    assert "nothing of this machine keeps it from being used" in cache("explain", "matmul").output
    keep(cache_dir, triton="3.0", age=-1, arguments={"M": "int:65"})
    lines = cache("explain", "matmul").output.splitlines()
    assert lines[0].endswith("the newest") and lines[1].startswith("  triton: 3.0, now ")
    assert [line.strip().split(":")[0] for line in lines[3:]] == ["arguments.M", "triton"]
    Store(cache_dir, Key("softmax", {"gpu": "one"}, False)).append(Trial(0, {"block": 1}, "crash"))
    assert "not finished" in cache("explain", "softmax").output


PROGRAM = """
import tiledsl
import tiledsl.language as T

@tiledsl.autotune(configs=[{"block": 64}, {"block": 32}])
@tiledsl.jit(out_idx=-1)
def scale(N, block=32):
    @T.prim_func
    def scale(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            T.copy(A[bx * block], B[bx * block])
    return scale
"""


def test_explain_a_call(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_TARGET", "interpret")
    path = tmp_path / "prog_scale.py"
    path.write_text(textwrap.dedent(PROGRAM))
    text = cache("explain", f"{path}:scale", "-D", "N=128").output
    assert text.startswith("scale/") and "not stored; nothing is stored for this kernel" in text
    from tiledsl.commands.lower import import_file

    key = import_file(path).scale.key(256)
    store = Store(cache_dir, key)
    store.append(Trial(0, {"block": 64}, "ok", latency=1.0))
    assert f"{key.digest} differs in arguments.N" in cache("explain", str(path), "-D", "N=128").output
    assert "stored: 1 trials, without a result" in cache("explain", str(path), "-D", "N=256").output
    path.write_text(path.read_text().replace("T.copy(A[bx * block]", "T.copy(A[bx *  block]") + "\n# more\n")
    assert json.dumps(dict(import_file(path).scale.key(256).fields)) == json.dumps(dict(key.fields))
    assert cache("explain", f"{path}:none").exit_code == 1 and cache("explain", "none.py").exit_code == 1


def keep_times(root: Path, M: int, times: dict[int, float | None]) -> None:
    """A result for one M; configurations without a time do not work."""
    key = Key("matmul", {"arguments": {"M": f"int:{M}", "N": "int:8"}}, False)
    trials = [Trial(n, {"block": block}, "ok", latency=time) for n, (block, time) in enumerate(times.items())]
    for trial in trials:
        if trial.latency is None:
            trial.fail("crash", "")
    Store(root, key).finish(CachedResult(trials, "measured", None))


def test_table(cache_dir: Path, tmp_path: Path) -> None:
    """The robust configuration comes first: the best nowhere, close to it everywhere."""
    keep_times(cache_dir, 64, {32: 1.0, 64: 1.1, 128: 4.0, 256: None})
    keep_times(cache_dir, 512, {32: 8.0, 64: 2.2, 128: 2.0, 256: 1.0})
    path = tmp_path / "table.csv"
    lines = cache("table", "matmul", "--csv", str(path)).output.splitlines()
    assert sorted(line[3:] for line in lines[:2]) == ["M=512, best 1.0000 ms", "M=64, best 1.0000 ms"]
    order = [1, 2] if lines[0].startswith("1: M=64") else [2, 1]
    assert lines[2].split() == ["configuration", "mean", "worst", "1", "2"]
    rows = [line.split() for line in lines[3:]]
    assert [row[0] for row in rows] == ["block=64", "block=32", "block=128", "block=256"]
    assert rows[0][1:3] == ["1.556", "2.200"] and [rows[0][2 + n] for n in order] == ["1.100", "2.200"]
    assert rows[3][1:3] == ["1.000", "1.000"] and rows[3][2 + order[0]] == "-"
    with path.open() as file:
        first, *others = csv.DictReader(file)
    assert (first["block"], first["mean"], first["ms: M=64"]) == ("64", "1.5556", "1.100000")
    assert len(others) == 3 and others[2]["ms: M=64"] == ""


def test_table_of_one_problem(cache_dir: Path) -> None:
    keep_times(cache_dir, 64, {32: 1.0})
    assert cache("table", "matmul").output.startswith("1: M=64 N=8, best 1.0000 ms\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("int:64", "64"), ("float:0.5", "0.5"), ("str:'a:b'", "'a:b'"), ("bool:True", "True"),
        ("tensor:(64, 32):(32, 1):torch.float16:cuda", "(64, 32)"),
        ("tensor:vague:(8,):(1,):torch.float32:cpu", "(8,)"),
        ("class:" + "a" * 40, "class:" + "a" * 34),
    ],
)  # fmt: skip
def test_how_a_table_names_arguments(cache_dir: Path, text: str, shown: str) -> None:
    key = Key("matmul", {"arguments": {"X": text}}, False)
    Store(cache_dir, key).finish(CachedResult([Trial(0, {"block": 1}, "ok", latency=1.0)], "measured", None))
    assert cache("table", "matmul").output.startswith(f"1: X={shown}, best 1.0000 ms\n")


def test_problems_that_arguments_do_not_tell_apart_have_their_keys(cache_dir: Path) -> None:
    for fields in ({"arguments": {"M": "int:1"}}, {}):
        trials = [Trial(0, {"block": 1}, "ok", latency=1.0)]
        Store(cache_dir, Key("matmul", fields, False)).finish(CachedResult(trials, "measured", None))
    problems = [line.partition(": ")[2].partition(",")[0] for line in cache("table", "matmul").output.splitlines()[:2]]
    digests = {fields.get("arguments", {}).get("M"): Key("matmul", fields, False).digest[:12] for fields in
               ({"arguments": {"M": "int:1"}}, {})}  # fmt: skip
    assert sorted(problems) == sorted([f"M=1 {digests['int:1']}", digests[None]])


def test_table_of_nothing(cache_dir: Path) -> None:
    keep_times(cache_dir, 64, {32: None})
    Store(cache_dir, Key("matmul", {}, False)).append(Trial(0, {"block": 1}, "crash"))
    result = cache("table", "matmul")
    assert result.exit_code == 1 and "no configuration of 'matmul' has a time" in result.output
