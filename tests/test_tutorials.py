"""The tutorials, and the pages for who comes from elsewhere, done in a fresh folder each.

Their files are written, and their commands print what the page says.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support import forked
from tiledsl.cli import main
from tiledsl.ir.pass_manager import PASSES
from tiledsl.passes.user_passes import own_passes

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs/tutorials").glob("*.md")), *sorted((ROOT / "docs").glob("from-*.md"))]
BLOCK = re.compile(r'^```(?:python title="([^"\n]+)"|(console))\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """The files (">" and the name, the text) and the commands ("$" and the command, what it prints) of a page."""
    for name, _, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if name:
            yield f"> {name}", text
        else:
            yield from re.findall(r"^(\$ .+)\n((?:[^$\n].*\n|\n)*)", text, re.MULTILINE)


def printed(command: str, folder: Path) -> str:
    """What a command prints in a folder, in the order in which a terminal shows it. Each is a process of its own, or
    as good as one: it knows no pass that another command loaded."""
    words = shlex.split(command)
    env = {
        "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TILEDSL_CACHE_DIR": str(folder / ".cache"),
        "TRITON_CACHE_DIR": str(folder / ".triton"), "COLUMNS": "100",
    }  # fmt: skip
    if words[0] == "tiledsl" and words[1] not in ("run", "tune", "tuned"):  # these run a module
        known = own_passes()
        output = CliRunner().invoke(main, words[1:], env=env, prog_name="tiledsl").output
        for name in own_passes().keys() - known.keys():
            del PASSES[name]
        return output
    if words[0] in ("python", "tiledsl"):
        arguments = words[1:] if words[0] == "python" else ["-m", "tiledsl.cli", *words[1:]]
        return forked.Process(arguments, folder, {**os.environ, **env}, together=True).communicate(200)[0]
    done = subprocess.run(command, shell=True, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout


def without_times(text: str, folder: Path) -> str:
    """A text without what differs from run to run, and from version to version of Triton. What takes ten seconds on a
    busy machine says how far it is."""
    text = re.sub(r"^tuning \w+: \d+ of .*\n  .*\n", "", text, flags=re.M)
    text = text.replace(f"{folder}/", "/home/you/tutorial/")
    text = re.sub(r"\d{4}-\d\d-\d\d(T[\d:]+\+00:00)?", "DATE", re.sub(r"\b\d+\.\d+ s\b", "TIME", text))
    return re.sub(r"\b[0-9a-f]{16}\b", "HASH", re.sub(r"Triton\s+\d[\w.+]*", "Triton", text))


@pytest.fixture(autouse=True)
def own_modules(tmp_path: Path) -> Iterator[None]:
    """A tutorial's softmax.py is nobody else's."""
    yield
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page.stem == "inference-engineer")) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_the_tutorial_is_as_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(steps(page))
    assert any(step.startswith("$ tiledsl") for step, _ in found)
    for step, text in found:
        if step.startswith("> "):
            (tmp_path / step[2:]).write_text(text, encoding="utf-8")
            continue
        assert without_times(printed(step[2:], tmp_path), tmp_path) == without_times(text, tmp_path), step
