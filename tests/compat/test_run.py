"""Scripts under `run_script`: what they see, and what comes of their errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tiledsl.commands.run import run_script
from tiledsl.errors import TileError


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "the_script.py"


def test_a_script_sees_itself_as_main(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(
        "import sys\nprint(__name__, sys.argv[1:], __file__)\nassert sys.modules['__main__'].sys is sys\n"
    )
    arguments, main = list(sys.argv), sys.modules["__main__"]
    assert run_script(script, ["a", "--b"]) == 0
    assert capsys.readouterr().out == f"__main__ ['a', '--b'] {script}\n"
    assert sys.argv == arguments
    assert sys.modules["__main__"] is main


def test_exit_statuses(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, status, message in (
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no input')", 1, "no input\n"),
    ):
        script.write_text(text + "\n")
        assert run_script(script) == status
        assert capsys.readouterr().err == message


def test_an_error_shows_the_scripts_frames_only(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("def fail():\n    assert False, 'here'\n\nfail()\n")
    assert run_script(script) == 1
    error = capsys.readouterr().err
    assert error.count('  File "') == 2
    assert error.endswith("AssertionError: here\n")


def test_a_script_that_is_no_python_shows_its_own_line_only(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("x = 1\ndef f(:\n")
    assert run_script(script) == 1
    shown = capsys.readouterr().err
    assert f'File "{script}", line 2' in shown and shown.endswith("SyntaxError: invalid syntax\n")
    assert shown.count("File ") == 1 and "Traceback" not in shown  # as Python shows it


def test_a_tile_error_has_no_traceback(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(
        "import tilelang\nimport tilelang.language as T\n\n"
        "@T.prim_func\ndef wrong(A: T.Tensor((4,), 'float32')):\n    with T.Kernel(1) as _:\n        T.claer(A)\n\n"
        "tilelang.compile(wrong)\n"
    )
    assert run_script(script) == 1
    error = capsys.readouterr().err
    assert "the_script.py:7:9: error: T.claer is not part of the tile language; did you mean T.clear?" in error
    assert "Traceback" not in error


def test_text_and_entry_replace_what_runs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("def double(x):\n    return x\n\nif __name__ == '__main__':\n    print('main')\n")
    changed = script.read_text().replace("return x", "return 2 * x")
    assert run_script(script, text=changed, entry="print(double(21), __name__)") == 0
    assert capsys.readouterr().out == "42 the_script\n"


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TileError, match="there is no script"):
        run_script(tmp_path / "absent.py")
