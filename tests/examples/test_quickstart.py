"""`make demo` shows the life of a kernel, and fails when a check does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support import forked

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "quickstart.py"


def run(script: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return forked.run([script], env=environment, timeout=180)


def test_the_demo_prints_every_stage_in_order() -> None:
    done = run(DEMO)
    assert done.returncode == 0, done.stderr
    marks = [
        "quickstart.py:",
        "elaborate ",
        "lower-to-triton ",
        "@triton.jit",
        "tl.dot(",
        "Compiled for cuda:",
        "registers a thread, 0 bytes spilled",
        "Run ",
        "largest error against torch",
        "Tuned over 4 configurations",
        "*     1  ",
        "chosen: {'block_M': ",
        "called again: from memory",
        "in another process: from disk",
        "all checks passed",
    ]
    places = [done.stdout.find(mark) for mark in marks]
    assert -1 not in places and places == sorted(places), done.stdout
    assert "\033" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_the_demo_fails_when_a_check_does(tmp_path: Path) -> None:
    text = DEMO.read_text().replace("T.gemm(A_tile, B_tile, total)", "T.fill(total, 1.0)")
    assert text != DEMO.read_text()
    script = tmp_path / "quickstart.py"
    script.write_text(text)
    done = run(script)
    assert done.returncode != 0
    assert "all checks passed" not in done.stdout and "Tensor-likes are not close" in done.stderr
