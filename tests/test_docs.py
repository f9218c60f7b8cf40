"""What the README and the manual show works as it stands there."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forked

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
# In the order in which their snippets run, as one script: each goes on from those before it.
PAGES = [
    README,
    *(ROOT / "docs" / f"{name}.md" for name in "language launching torch tuning offline passes hopper levels".split()),
]
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/results/README.md"]
ALONE = ROOT / "docs" / "distributed.md"
EXTENDING = ROOT / "docs" / "extending.md"  # which test_extending.py runs

CHECKS = {
    "README.md": """
torch.testing.assert_close(c, torch.relu(a @ b.T), rtol=2e-3, atol=2e-2)
exported = open("matmul_relu.py").read()
assert "import triton" in exported and "tiledsl" not in exported.split("\\n", 1)[1]
if device == "cpu":  # on a GPU the tuner may choose another configuration, and the compiler TMA
    assert PRINTED in result.source
""",
    "docs/launching.md": """
torch.testing.assert_close(op(a, b), c)
""",
    "docs/torch.md": """
torch.testing.assert_close(swiglu(x, x + 1), torch.nn.functional.silu(x) * (x + 1))
torch.testing.assert_close(x.grad, torch.func.grad(lambda x: (torch.nn.functional.silu(x) * (x + 1)).sum())(x.detach()))
""",
    "docs/tuning.md": """
assert again.config == result.config and product.untuned(a, b.T).shape == c.shape
""",
    "docs/offline.md": """
torch.testing.assert_close(d, torch.relu(a[:50] @ b.T), rtol=2e-3, atol=2e-2)
assert report.summary().startswith("configs/") and ": 3 tuned" in report.summary()
assert "(tuned for M=64, the nearest at or above 50" in str(shipped.tuned_for(50, 64, 72))
""",
    "docs/passes.md": """
torch.testing.assert_close(negative(a, b), torch.clamp(a @ b.T, max=0), rtol=2e-3, atol=2e-2)
assert [careful.ir(after="reciprocal").count(f"arith.{each} ") for each in ("mul", "div")] == [1, 1]
x, y = torch.randn(256), torch.zeros(256)
tiledsl.compile(saturated, target="interpret")(x, y)
torch.testing.assert_close(y, torch.clamp(x * 2, 0, 1))
assert careful.verify().ok and "reciprocal{exact=false}" in careless.verify().reason
""",
    "docs/levels.md": """
assert "doubled_kernel.ttgir (edited)" in str(squared.remarks)
assert "FMUL" in squared.asm["sass"] and "FADD" in kernel.asm["sass"]
assert fast.asm["cubin"] == bare.asm["cubin"]
""",
}


def snippets(page: Path) -> list[str]:
    """The blocks of Python on a page that run: all without a comment `<!-- not run: why -->` above them."""
    found = re.findall(r"(<!-- not run: [^\n]+ -->\n)?```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for _, code in found:
        ast.parse(code)
    return [code for skipped, code in found if not skipped]


def test_the_snippets_run(tmp_path: Path) -> None:
    printed = re.search(r"```\n(@triton.jit\n.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert printed is not None
    script = ""
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        assert snippets(page)
        script += "\n".join(snippets(page)) + CHECKS.get(name, "").replace("PRINTED", repr(printed[1].strip()))
        script += f"\nprint('checked {name}')\n"
    file = tmp_path / "matmul.py"  # the README's name for its program
    file.write_text(script, encoding="utf-8")
    done = forked.run([file], cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("checked docs/levels.md\n")
    assert "through pointers, because its stride in dimension 0 is 8200 bytes, not a multiple of 16" in done.stdout


def test_the_readme_takes_its_program_from_itself() -> None:
    command = re.search(r"^(sed .+) > matmul.py$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert command is not None
    assert (
        subprocess.run(command[1], shell=True, cwd=ROOT, capture_output=True, text=True).stdout == snippets(README)[0]
    )


def test_every_page_with_snippets_runs() -> None:
    assert {page for page in TEXTS if snippets(page)} == {*PAGES, ALONE, EXTENDING}


def test_tuning_together_runs(tmp_path: Path, cache_dir: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = tmp_path / "together.py"
    script.write_text("\n".join(snippets(ALONE)).replace("29517", port), encoding="utf-8")
    done = forked.run([script], cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "parts=4" in done.stdout and done.stdout.endswith("torch.Size([64, 32])\n")


def test_the_commands_exist() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in TEXTS)
    commands = set(re.findall(r"^(?:\.venv/bin/)?tiledsl (\w+)", text, re.MULTILINE))
    shown = subprocess.run([sys.executable, "-m", "tiledsl.cli", "--help"], capture_output=True, text=True).stdout
    assert len(commands) > 5 and all(command in shown for command in commands), (commands, shown)
    targets = set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) | set(re.findall(r"`make ([a-z-]+)", text))
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert len(targets) > 5 and targets <= known, targets - known


def slug(heading: str) -> str:
    """What GitHub makes of a heading: lower case, hyphens for spaces, no punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return set(map(slug, re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)))


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) <= 8192


def test_pre_commit_runs_what_make_lint_runs() -> None:
    rule = (ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]
    hooks = re.findall(r"entry: \.venv/bin/python (.+)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert hooks == re.findall(r"@\$\(RUN\) (.+)", rule) != []
