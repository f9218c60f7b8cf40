"""Tracebacks of users' mistakes end at the user's line: in scripts, in notebooks, under pytest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import torch

import tiledsl
from tests.support import forked
from tiledsl.errors import TileError, ends_tracebacks
from tiledsl.tracebacks import ends_in_users_code

PROGRAM = """\
import tiledsl
import tiledsl.language as T


@tiledsl.jit(out_idx=-1, target="interpret")
def build(N):
    size = 64 // N

    @T.prim_func
    def main(A: T.Tensor((N, 32), "float32"), C: T.Tensor((N, N), "float32")):
        with T.Kernel(1):
            a = T.alloc_shared((32, size), "float32")
            c = T.alloc_fragment((32, 32), "float32")
            T.gemm(a, a, c)

    return main


@T.prim_func
def copied(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
    with T.Kernel(1):
        T.copy(A, B)


@tiledsl.autotune(configs=[{"block": 32}, {"block": 0}], target="interpret")
@tiledsl.jit
def eager(A, block=32):
    A: T.Tensor((32,), "float32")
    B = T.empty((block,), "float64x")
    with T.Kernel(1):
        T.copy(A, B)
    return B


def twice():
    import torch

    kernel = tiledsl.compile(copied, target="interpret")
    kernel(torch.zeros(64), torch.zeros(64))
    return kernel
"""
# A statement of the user's, and the lines that its traceback names.
MISTAKES = {
    "build(1)": [],
    "build(0)": ["size = 64 // N"],
    "tiledsl.compile(copied, passes=3)": [],
    "tiledsl.compile(copied, target='cuba')": [],
    "tiledsl.compile(copied, target='interpret')(torch.zeros(3), torch.zeros(64))": [],
    "twice()(torch.zeros(3), torch.zeros(64))": [],
    "twice()(torch.zeros(64), nope=torch.zeros(64))": [],
    "twice()(*[torch.zeros(64)] * 5)": [],
    "twice().bind(torch.zeros(3), torch.zeros(64))": [],
    "tiledsl.compile(copied, target='hip:gfx942')(torch.zeros(64), torch.zeros(64))": [],
    "tiledsl.compile(copied, target='interpret').asm": [],
    "tiledsl.compile(copied, target='interpret').ir(after='nothing')": [],
    "copied(1)": [],
    "eager(torch.zeros(32))": [],
    "tiledsl.space(block=[1, 1])": [],
    "tiledsl.resume('tile.func', after='dce')": [],
    "tiledsl.parse('nothing')": [],
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    return folder


def script(program: Path, mistake: str, **environment: str) -> list[str]:
    """What Python prints of a mistake in a script, from the traceback on."""
    (program / "script.py").write_text(f"from program import *\n\n{mistake}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=program, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr.split("Traceback (most recent call last):\n", 1)[1].splitlines()


@pytest.mark.parametrize("mistake", ["build(1)", "build(0)"])
def test_scripts(program: Path, mistake: str) -> None:
    lines = script(program, mistake)
    expected = [f'  File "{program}/script.py", line 3, in <module>']
    expected += [f'  File "{program}/program.py", line 7, in build'] * bool(MISTAKES[mistake])
    assert [line for line in lines if line.startswith('  File "')] == expected and len(lines) < 12
    own = r"tiledsl\.errors\.TileError: program\.py:\d+:\d+: error: T\.gemm"
    error = "ZeroDivisionError: " if mistake == "build(0)" else own
    assert len([line for line in lines if re.match(error, line)]) == 1


def test_all_frames_on_request(program: Path) -> None:
    lines = script(program, "build(1)", TILEDSL_FULL_TRACEBACKS="1")
    assert len([line for line in lines if line.startswith('  File "') and "/tiledsl/" in line]) > 10


def test_pytest(program: Path) -> None:
    tests = "\n".join(f"def test_{number}():\n    {mistake}" for number, mistake in enumerate(MISTAKES))
    (program / "test_users.py").write_text(f"import torch\nfrom program import *\n{tests}\n", encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "--show-capture=no", "test_users.py"]
    done = forked.run(["-m", "pytest", *options], cwd=program)
    assert f"{len(MISTAKES)} failed" in done.stdout, done.stdout + done.stderr
    sections = re.split(r"^_+ test_\d+ _+$", done.stdout.split("short test summary")[0], flags=re.MULTILINE)[1:]
    for section, (mistake, lines) in zip(sections, MISTAKES.items(), strict=True):
        marked = [line[1:].strip() for line in section.splitlines() if line.startswith(">")]
        assert marked == [mistake, *lines], section
        places = re.findall(r"^(\S+?):\d+: ", section, re.MULTILINE)
        assert set(places) <= {"test_users.py", "program.py"}, section


def test_notebooks() -> None:
    code = compile("def cell(fail):\n    fail()\n", "/tmp/ipykernel_1/2.py", "exec")
    scope: dict[str, object] = {}
    exec(code, scope)
    with pytest.raises(TileError) as caught:
        scope["cell"](lambda: tiledsl.compile(1))  # type: ignore[operator]
    shown = caught.value._render_traceback_()
    assert shown[0] == "Traceback (most recent call last):"
    assert [line.split('"')[1] for line in shown if line.startswith("  File")] == [
        __file__, "/tmp/ipykernel_1/2.py", __file__
    ]  # fmt: skip
    assert shown[-1] == "tiledsl.errors.TileError: tiledsl.compile takes a @T.prim_func or a parsed program, not int"


def test_what_an_error_came_from_is_short_too() -> None:
    @ends_tracebacks
    def outer() -> None:
        try:
            tiledsl.compile(1)
        except TileError as error:
            raise TileError("outer") from error

    with pytest.raises(TileError, match="outer") as caught:
        outer()
    cause = caught.value.__cause__
    assert isinstance(cause, TileError)
    assert [frame.f_code.co_name for frame, _ in traceback.walk_tb(cause.__traceback__)] == ["outer"]


def test_our_own_mistakes_stay_as_they_are() -> None:
    with pytest.raises(AttributeError) as broken:
        ends_tracebacks(tiledsl.Kernel.check)(None, [], [])  # type: ignore[arg-type]
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(broken.value.__traceback__)]
    assert names[0] == sys._getframe().f_code.co_name and names[-1] == "check"
    with pytest.raises(TypeError) as users:
        torch.zeros("no")  # type: ignore[call-overload]
    assert not ends_in_users_code(users.value.__traceback__)
