"""What is shown while tuning."""

from __future__ import annotations

import io
import logging
import re
import time
from pathlib import Path

import pytest

from tiledsl.autotuner.progress import Progress
from tiledsl.autotuner.trial import Trial

TRIALS = [
    Trial(0, {"block": 16}, "ok", latency=2.0, compile_seconds=1.5),
    Trial(1, {"block": 32}, "mismatch", "wrong in 3 of 64 elements\nand more"),
    Trial(2, {"block": 64}, "ok", latency=1.0),
    Trial(3, {"block": 128}, "out_of_resources", "needs 245760 bytes"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_counts_and_best() -> None:
    progress = Progress(4, enabled=False)
    assert progress.state() == "nothing yet"
    progress.update(Trial(0, {"block": 16}))  # has not ended
    for trial in TRIALS:
        progress.update(trial)
    progress.update(TRIALS[0])  # again: counts once
    assert progress.state() == "2 ok, 1 out of resources, 1 mismatch; best 1.0000 ms: block=64"


def test_it_is_quiet_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tiledsl"):
        progress = Progress(4, title="scale")
        progress.update(TRIALS[0])
        line = progress.close(Path("result"))
    assert not progress.enabled and capsys.readouterr() == ("", "")
    assert line.startswith("scale: 1 ok; best 2.0000 ms: block=16; ") and line.endswith(f"chosen {Path('result')!r}")
    assert line in caplog.text


def test_on_a_terminal_there_is_a_bar_and_one_line_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with Progress(4, title="scale") as progress:
        assert progress.enabled
        for trial in TRIALS:
            progress.update(trial)
        shown = terminal.getvalue()
        line = progress.close()
    assert "scale" in shown
    assert terminal.getvalue().endswith(line + "\n") and terminal.getvalue().count("2 ok, 1 out of resources") >= 1


class Clock:
    """time.monotonic, and seconds that have passed beside it."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("tiledsl.autotuner.progress.time.monotonic", found.monotonic)
    return found


def test_what_is_left(clock: Clock) -> None:
    progress = Progress(10, enabled=False)
    progress.phase = lambda: "3 to compile"
    assert progress.line() == "0 of 10; 3 to compile; 0:00"
    clock.now += 5
    for index in range(4):  # known from before, or pruned
        progress.update(Trial(index, {}, "pruned"))
    progress.begin()
    assert progress.line() == "4 of 10; 3 to compile; 0:05"
    clock.now += 60
    progress.update(Trial(4, {}, "ok", latency=1.0))
    progress.update(Trial(5, {}, "ok", latency=1.0))
    assert progress.line() == "6 of 10; 3 to compile; 1:05, about 2:00 left"
    clock.now += 7200
    for index in range(6, 10):
        progress.update(Trial(index, {}, "ok", latency=1.0))
    progress.phase = lambda: ""
    assert progress.line() == "10 of 10; 2:01:05"


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(4, title="scale", beats=(0.05, 0.05)) as progress:
        progress.update(TRIALS[0])
        while not (shown := capsys.readouterr().err):
            time.sleep(0.02)
        progress.close()
        time.sleep(0.15)
        capsys.readouterr()
        time.sleep(0.15)
        assert capsys.readouterr().err == ""
    first, second = shown.splitlines()[:2]
    assert first.startswith("scale: 1 of 4; 0:0") and second == "  1 ok; best 2.0000 ms: block=16"
    with Progress(4, enabled=False, beats=(0.01, 0.01)):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", [40, 60])
def test_a_narrow_terminal_shows_all_that_counts(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    with Progress(40, title="tuning a_kernel_with_a_name_that_goes_on_and_on") as progress:
        progress.phase = lambda: "3 to compile"
        config = {f"block_{name}": 128 for name in "MNKLO"}
        progress.update(Trial(0, config, "ok", latency=2.0))
        lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in rendered(progress, columns)]
    assert len(lines) == 3 and all(len(line) <= columns for line in lines)
    assert lines[0].startswith("tuning a_kernel_with_a_name...") and "\u2501" in lines[0]
    assert lines[1].startswith("  1 of 40; 3 to compile; 0:0")
    assert lines[2].startswith("  1 ok; best 2.0000 ms: block_M=128") and lines[2].rstrip().endswith("\u2026")


def rendered(progress: Progress, columns: int) -> list[str]:
    from rich.console import Console, Group

    console = Console(width=columns, file=io.StringIO(), force_terminal=True)
    with console.capture() as capture:
        console.print(Group(*progress._bar.get_renderables()))
    return [line for line in capture.get().splitlines() if line.strip()]


def test_each_trial_is_a_line_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "tuning.log"
    with Progress(4, enabled=False, log=path, title="scale") as progress:
        for trial in TRIALS:
            progress.update(trial)
        progress.close()
    lines = [line.split(" ", 2)[2] for line in path.read_text().splitlines()]
    assert lines[:5] == [
        "start: scale, 4 configurations",
        "0 ok; block=16; 2.0000 ms; compiled in 1.5 s",
        "1 mismatch; block=32; wrong in 3 of 64 elements",
        "2 ok; block=64; 1.0000 ms",
        "3 out_of_resources; block=128; needs 245760 bytes",
    ]
    assert lines[5].startswith("scale: 2 ok")


def test_a_full_disk_costs_the_log(tmp_path: Path) -> None:
    (tmp_path / "tuning.log").symlink_to("/dev/full")
    with Progress(1, enabled=False, log=tmp_path / "tuning.log") as progress:
        progress.update(TRIALS[0])
        assert "1 ok" in progress.close()


def test_a_log_that_cannot_be_written_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    progress = Progress(1, enabled=False, log=tmp_path / "file" / "tuning.log")
    progress.update(TRIALS[0])
    progress.close()
    assert "no log is kept" in caplog.text
