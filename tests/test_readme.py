"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from tests.support import forked
from tiledsl.passes import PIPELINE

README = Path(__file__).resolve().parents[1] / "README.md"


def example(name: str) -> str:
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```\n<!-- /{name} -->", text, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_examples_run(tmp_path: Path) -> None:
    """The first one, and tuning offline, which goes on from it."""
    check = "\ntorch.testing.assert_close(c, torch.relu(a @ b.T), rtol=2e-3, atol=2e-2)\nprint('checked')\n"
    offline = "\ntorch.testing.assert_close(d, torch.relu(a[:50] @ b.T), rtol=2e-3, atol=2e-2)\nprint('checked, too')\n"
    script = tmp_path / "readme.py"
    script.write_text(example("example") + check + example("offline") + offline, encoding="utf-8")
    done = forked.run([script], cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "tl.dot" in done.stdout and "\nchecked\n" in done.stdout and done.stdout.endswith("checked, too\n")
    said = [line for line in done.stdout.splitlines() if line.startswith(("configs/", "bucket: "))]
    assert len(said) == 2 and said[0].endswith(": 3 tuned") and "(tuned for M=64, the nearest at or above 50" in said[1]
    exported = (tmp_path / "matmul_relu.py").read_text()
    assert "import triton" in exported and "tiledsl" not in exported.split("\n", 1)[1]


LEVELS = """
from pathlib import Path

import triton
import triton.language as tl

import tiledsl
import tiledsl.language as T


@T.prim_func
def doubled(X: T.Tensor((1024,), "float32"), Y: T.Tensor((1024,), "float32")):
    with T.Kernel(8, threads=128) as block:
        for i in T.Parallel(128):
            Y[block * 128 + i] = X[block * 128 + i] + X[block * 128 + i]


@triton.jit
def scale(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)


"""


def test_the_example_of_levels_runs(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- levels -->\n```python\n(.*?)```\n<!-- /levels -->", text, re.DOTALL)
    assert found is not None
    check = "\nassert 'FMUL' in squared.asm['sass'] and 'FADD' in kernel.asm['sass']\n"
    check += "assert fast.asm['cubin'] == bare.asm['cubin']\nprint('checked')\n"
    script = tmp_path / "levels.py"
    script.write_text(LEVELS + found[1] + check, encoding="utf-8")
    done = forked.run([script], cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "doubled_kernel.ttgir (edited)" in done.stdout and done.stdout.endswith("checked\n")


def test_tuning_together_runs(tmp_path: Path, cache_dir: Path) -> None:
    found = re.search(
        r"<!-- together -->\n```python\n(.*?)```\n<!-- /together -->", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = tmp_path / "together.py"
    script.write_text(found[1].replace("29517", port), encoding="utf-8")
    done = forked.run([script], cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "parts=4" in done.stdout and done.stdout.endswith("torch.Size([64, 32])\n")


def test_the_commands_exist() -> None:
    text = README.read_text(encoding="utf-8")
    commands = set(re.findall(r"^tiledsl (\w+)", text, re.MULTILINE))
    shown = subprocess.run([sys.executable, "-m", "tiledsl.cli", "--help"], capture_output=True, text=True).stdout
    assert commands and all(command in shown for command in commands), (commands, shown)


def test_the_table_of_passes_is_the_pipeline() -> None:
    text = README.read_text(encoding="utf-8").split("<!-- passes -->")[1].split("<!-- /passes -->")[0]
    rows = [line.strip("|").split("|") for line in text.strip().splitlines()[2:]]
    shown = {row[0].strip(" `"): row[2].replace("`", "").strip() for row in rows}
    options = {
        each.name: ", ".join(f"{option.name}={option.default!r}" for option in fields(each)) for each in PIPELINE
    }
    assert list(shown.items()) == list(options.items())
