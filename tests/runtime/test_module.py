"""Source text becomes a module, once, whatever else writes there."""

from __future__ import annotations

import inspect
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tiledsl.runtime import module as module_loader
from tiledsl.runtime.module import load_module

TEXT = "import triton\nimport triton.language as tl\n\n@triton.jit\ndef kernel(x):\n    tl.store(x, 1)\n\nVALUE = 3\n"


def test_same_text_same_module(tmp_path: Path) -> None:
    first: Any = load_module("one", TEXT, False, tmp_path)
    assert load_module("one", TEXT, False, tmp_path) is first and first.VALUE == 3
    assert load_module("one", TEXT + "\n", False, tmp_path) is not first
    assert load_module("one", TEXT, True, tmp_path) is not first
    path = Path(str(first.__file__))
    assert path.parent.parent == tmp_path / "modules" and path.name == "one.py" and path.read_text() == TEXT
    assert "tl.store(x, 1)" in inspect.getsource(first.kernel.fn)


def test_a_broken_file_is_replaced(tmp_path: Path) -> None:
    text = TEXT + "# broken\n"
    path = Path(str(load_module("two", text, False, tmp_path).__file__))
    path.write_text("half a fi")
    module_loader._modules.clear()
    assert load_module("two", text, False, tmp_path) and path.read_text() == text
    assert os.listdir(path.parent) == ["two.py"]


def test_unwritable_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_loader, "_private_folder", None)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING, "tiledsl"):
        first: Any = load_module("three", TEXT + "# 3\n", False, blocked)
        load_module("four", TEXT + "# 4\n", False, blocked)
    assert first.VALUE == 3 and Path(first.__file__).exists()
    assert len(caplog.records) == 1


def test_a_folder_for_other_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_loader, "_private_folder", None)
    assert module_loader.writable_folder(tmp_path / "new") == tmp_path / "new"
    assert os.listdir(tmp_path / "new" / "modules") == []
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING, "tiledsl"):
        private = module_loader.writable_folder(blocked)
        loaded: Any = load_module("seven", TEXT + "# 7\n", False, private)
    assert len(caplog.records) == 1 and Path(loaded.__file__).is_relative_to(private)


def test_private_folders_go_with_their_process(tmp_path: Path) -> None:
    code = "from pathlib import Path; from tiledsl.runtime import module; import logging; logging.disable()\n"
    code += "print(module.writable_folder(Path('/dev/null')))"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    told = subprocess.check_output([sys.executable, "-c", code], env=environment)
    assert told.decode().startswith(f"{tmp_path}/tiledsl-modules-") and os.listdir(tmp_path) == []


def test_a_failing_module_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        load_module("five", "1 / 0\n", False, tmp_path)
    assert set(sys.modules) == before


def test_processes_race(tmp_path: Path) -> None:
    code = "from tiledsl.runtime.module import load_module\n"
    code += f"assert load_module('six', 'VALUE = 6', False, {str(tmp_path)!r}).VALUE == 6"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [process.wait() for process in running] == [0] * 4
