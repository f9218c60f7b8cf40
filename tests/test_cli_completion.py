"""`tiledsl completion`: shells load what it prints, and are told commands and options."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import click.shell_completion
import pytest

from tests.support import forked
from tests.test_cli import tiledsl
from tiledsl.cli import main

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_loads(shell: str) -> None:
    ended = tiledsl("completion", shell)
    assert ended.exit_code == 0 and f"_TILEDSL_COMPLETE={shell}_complete" in ended.stdout
    if shutil.which(shell) is not None:
        done = subprocess.run([shell, "-n"], input=ended.stdout, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    assert tiledsl("completion", "sh").exit_code == 2


def completed(*words: str) -> list[str]:
    complete = click.shell_completion.BashComplete(main, {}, "tiledsl", "_TILEDSL_COMPLETE")
    return [each.value for each in complete.get_completions(list(words[:-1]), words[-1])]


def test_what_is_completed() -> None:
    assert completed("tun") == ["tune", "tuned"]
    assert completed("tuned", "m") == ["merge"]
    assert "--json" in completed("cache", "list", "--") and completed("tuned", "export", "--format", "aiter") == [
        "aiter", "aiter-csv",
    ]  # fmt: skip


def test_a_shell_asks_the_command() -> None:
    asked = {"_TILEDSL_COMPLETE": "bash_complete", "COMP_WORDS": "tiledsl cache cl", "COMP_CWORD": "2"}
    done = forked.run(
        ["-c", "from tiledsl.cli import main; main(prog_name='tiledsl')"], cwd=ROOT, env={**os.environ, **asked}
    )
    assert (done.stdout, done.returncode) == ("plain,clear\n", 0)
