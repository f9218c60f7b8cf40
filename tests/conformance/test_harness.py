"""The conformance harness on scripts of our own: what it reports for each kind of ending."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import forked

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import run  # noqa: E402
from scripts import SCRIPTS, Script  # noqa: E402


def test_the_table_lists_every_script_once() -> None:
    paths = [script.path for script in SCRIPTS]
    assert len(set(paths)) == len(paths)
    assert sum(script.list == "A" for script in SCRIPTS) == 61
    assert sum(script.list == "B" for script in SCRIPTS) == 44
    for script in SCRIPTS:
        for pattern, text in script.sizes:
            re.compile(pattern)
            assert isinstance(text, str)


def popen(command: list[str], cwd: Path, env: dict[str, str], **asked: object) -> forked.Process:
    """subprocess.Popen for scripts that find torch imported."""
    assert command[0] == sys.executable and asked == {
        "text": True, "errors": "replace", "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
        "stdin": subprocess.DEVNULL, "start_new_session": True,
    }  # fmt: skip
    return forked.Process(command[1:], cwd, env, together=True)


@pytest.mark.parametrize(
    ("text", "options", "status", "reason"),
    [
        ("print('fine')", {}, "passed", ""),
        ("print('fine')", {"prints_only": True}, "runs", ""),
        ("assert 1 == 2, 'not equal'", {}, "failed", "AssertionError: not equal"),
        ("print('❌ the results differ')", {}, "failed", "it prints: ❌ the results differ"),
        ("import time\ntime.sleep(60)", {}, "timeout", "longer than 2 s"),
        ("", {"needs": ("no_such_package",)}, "needs", "needs no_such_package"),
        ("import no_such_package.part", {}, "needs", "needs no_such_package"),
        ("import tilelang.part; tilelang.part.run()", {}, "failed", "error: tilelang.part.run is not part of tiledsl"),
        ("assert SIZE == 4", {"sizes": ((r"\bSIZE\b", "4"),)}, "passed", ""),
        ("x = 1", {"sizes": (("absent", "4"),)}, "failed", "'absent' is nowhere in the script"),
        ("def main(n):\n    assert n == 3", {"entry": "main(3)"}, "passed", ""),
    ],
)
def test_endings(
    tmp_path: Path,
    text: str,
    options: dict[str, object],
    status: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))
    (tmp_path / "example.py").write_text(text + "\n")
    script = Script("example.py", "A", **options)  # type: ignore[arg-type]
    limit = 2 if status == "timeout" else 60
    outcome = run.run(script, tmp_path, gpu=False, timeout=limit, logs=tmp_path / "logs")
    assert (outcome.status, reason in outcome.reason) == (status, True), outcome


KERNEL = """
import torch
import tilelang
import tilelang.language as T

@tilelang.jit(out_idx=[1])
def twice(N):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as b:
            for i in T.Parallel(32):
                B[b * STEP + i] = A[b * 32 + i] * 2.0
    return main

twice(64)(torch.ones(64, device="cuda"))
"""


@pytest.mark.parametrize(
    ("step", "status", "reason"), [("32", "passed", "1 certificates"), ("0", "failed", "certificate: failed")]
)
def test_certificates(tmp_path: Path, step: str, status: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen}))
    (tmp_path / "example.py").write_text(KERNEL.replace("STEP", step))
    outcome = run.run(Script("example.py", "A"), tmp_path, gpu=False, timeout=60, logs=tmp_path / "logs", verify=True)
    assert (outcome.status, reason in outcome.reason) == (status, True), outcome


def test_the_command(tmp_path: Path) -> None:
    """Scripts that are not in the folder are `missing`, which is no failure."""
    script = next(each for each in SCRIPTS if each.path.startswith("gemm/") and not each.sizes and not each.needs)
    path = tmp_path / "examples" / script.path
    path.parent.mkdir(parents=True)
    path.write_text("def main():\n    print('fine')\n\n\nmain()\n")
    options = ["--only", "^gemm/", "--json", tmp_path / "out.json", "--timeout", "60"]
    done = forked.run([HERE / "run.py", tmp_path, *options])
    assert done.returncode == 0, done.stderr
    assert "missing" in done.stdout
    found = {each["script"]: each["status"] for each in json.loads((tmp_path / "out.json").read_text())}
    assert found.pop(script.path) == "passed" and set(found.values()) == {"missing"}


def test_the_reason_is_the_last_error() -> None:
    printed = (
        "Traceback\nValueError: first\nsome output\nfile.py:3:4: error: T.copy: wrong\n    3 | line\n  note: hint\n"
    )
    assert run.reason_of(printed) == "file.py:3:4: error: T.copy: wrong"
    assert run.reason_of("just text\n") == "just text"
    assert run.reason_of("") == ""


def test_versions_of_needed_packages() -> None:
    assert run.is_missing("no_such_package")
    assert not run.is_missing("torch")
    assert run.is_missing("torch<1.0")
    assert not run.is_missing("torch<99.0")


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ("example.py {folder}/inside.py /site/triton/compiler.py", "{name} other than 1.0"),
        ("example.py {ours}/tiledsl/kernel.py", ""),
        ("example.py {folder}/inside.py {ours}/passes/cse.py /site/triton/compiler.py", ""),
        ("example.py /site/torch/testing.py", ""),
        ("example.py", ""),
    ],
)
def test_packages_that_take_other_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: str, reason: str
) -> None:
    """An error that a needed package raises is its own unless a kernel of ours is below."""
    name, folder = "package_of_a_script", tmp_path / "package_of_a_script"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (tmp_path / "some-1.0.dist-info").mkdir()
    (tmp_path / "some-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: some\nVersion: 1.0\n")
    (tmp_path / "some-1.0.dist-info" / "top_level.txt").write_text(name + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    paths = frames.format(folder=folder, ours=HERE.parent.parent).split()
    head = "Traceback (most recent call last):\n"
    first = f'{head}  File "{HERE.parent.parent}/tiledsl/cli.py", line 1, in run\nValueError: the cause\n\nthen\n\n'
    calls = "".join(f'  File "{path}", line 3, in f\n    call()\n' for path in paths)
    printed = f"{first}{head}{calls}ValueError: n\n"
    assert run.unsuited((name,), printed) == reason.format(name=name)
    assert run.unsuited((), printed) == ""


def test_scripts_that_find_the_gpu_full_run_again_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB"
    endings = {"a.py": ["passed"], "b.py": [full, "passed"], "c.py": [full, full], "d.py": ["ValueError: 1"]}

    def ending(script: Script, *_: object) -> run.Outcome:
        reason = endings[script.path].pop(0)
        return run.Outcome(script.path, "A", *(("passed", 1.0) if reason == "passed" else ("failed", 1.0, reason)))

    monkeypatch.setattr(run, "run", ending)
    monkeypatch.setattr(run, "has_gpu", lambda: True)
    monkeypatch.setattr(run, "SCRIPTS", [Script(path, "A") for path in endings])
    monkeypatch.setattr(sys, "argv", ["run.py", ".", "--jobs", "4"])
    assert run.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:5]] == [
        ["a.py", "passed"], ["d.py", "failed"], ["b.py", "passed"], ["c.py", "failed"],
    ]  # fmt: skip
    assert lines[-1] == "2 passed, 2 failed" and not any(endings.values())


def test_names_that_a_copy_has(tmp_path: Path) -> None:
    """Modules are read, not run: each import and each public name, and the language's list through its parts."""
    package = tmp_path / "tilelang"
    for name, text in {
        "__init__.py": "from .jit import jit\nraise SystemExit('this is not run')\n",
        "jit/__init__.py": "def jit(): ...\n_private = 1\n",
        "jit/_hidden.py": "x = 1\n",
        "new/part.py": "try:\n    class Thing: ...\nexcept ImportError:\n    OTHER = 1\n",
        "language/__init__.py": "from .common import *\nfrom .common import __all__ as __all__\n",
        "language/common.py": (
            "from .more import *\nfrom .more import __all__ as _MORE_ALL\n"
            "__all__ = ['copy', 'tma_gather4', 'float32x4', 'teleport', *_MORE_ALL]\n"
        ),
        "language/more.py": "_all_dtypes = ['float16']\n__all__ = _all_dtypes + ['gem']\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (package / "language" / "loop.py").write_text("def Parallel(): ...\n")
    done = forked.run([HERE / "names.py", tmp_path])
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == (
        "neither works nor is refused: T.gem\nneither works nor is refused: T.teleport\n"
        "7 modules; modules and names that do not import: 0\n"
        "6 names of the language: 2 work, 2 are refused, 2 are unknown\n"
    )
