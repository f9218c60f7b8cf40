"""Builds the wheel and the sdist, installs the wheel into a fresh environment, and uses it there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support import forked

ROOT = Path(__file__).resolve().parent.parent.parent

# TileLang's quickstart, small, with only the package's name changed. It goes to a file: the front-end reads source.
GEMM_SCRIPT = """
import torch

import tiledsl
import tiledsl.language as T


@tiledsl.jit(out_idx=[-1], target="interpret")
def matmul(M, N, K, block_M, block_N, block_K, dtype="float16", accum_dtype="float"):
    @T.prim_func
    def gemm(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)
            T.clear(C_local)
            for ko in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, ko * block_K], A_shared)
                T.copy(B[ko * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = T.max(C_local[i, j], 0)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return gemm


kernel = matmul(64, 64, 64, 32, 32, 32)
torch.manual_seed(0)
a = torch.randn(64, 64, dtype=torch.float16)
b = torch.randn(64, 64, dtype=torch.float16)
torch.testing.assert_close(kernel(a, b), torch.relu(a @ b), rtol=1e-2, atol=1e-2)
print("matches torch")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """The standard output of a command that must succeed. It finds tiledsl only where it is installed."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    shown = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0, f"{command}\n{shown.stdout}\n{shown.stderr}"
    return shown.stdout


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def build(source: Path, kind: str, out: Path) -> Path:
    run(sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", out, source, cwd=out.parent)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distribution")


@pytest.fixture(scope="module")
def checkout(folder: Path) -> Path:
    """A copy of the checkout, so that building leaves nothing in it and takes no stale build/ from it."""
    source = folder / "checkout"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "tiledsl", "passes", "autotune", "tests", "examples"):
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(folder: Path, checkout: Path) -> Path:
    (folder / "wheel").mkdir()
    return build(checkout, "wheel", folder / "wheel")


@pytest.fixture(scope="module")
def sdist(folder: Path, checkout: Path) -> Path:
    (folder / "sdist").mkdir()
    return build(checkout, "sdist", folder / "sdist")


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path, parse_table: Path) -> Path:
    """The interpreter of a fresh environment with the wheel; dependencies are those of the running environment."""
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    # A line in a .pth file adds a folder but runs none of that folder's own .pth files: no editable tiledsl comes in.
    shared = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    site_packages(python).joinpath("dependencies.pth").write_text("\n".join(shared) + "\n")
    return python


def site_packages(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python*/site-packages"))


def test_the_wheel_holds_tiledsl_and_nothing_else(wheel: Path) -> None:
    names = names_in(wheel)
    assert {name.split("/")[0] for name in names} == {"tiledsl", "tiledsl-0.1.0.dist-info"}
    assert {
        "tiledsl/py.typed",
        "tiledsl/frontend/grammar.lark",
        "tiledsl/passes/__init__.py",
        "tiledsl/autotuner/__init__.py",
    } <= names


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    names = names_in(wheel)
    for installed_as, where in (
        ("tiledsl/passes", "passes"),
        ("tiledsl/autotuner", "autotune"),
        ("tiledsl", "tiledsl"),
    ):
        for pattern in ("*.py", "*.lark", "*.tile"):
            for file in (ROOT / where).rglob(pattern):
                assert f"{installed_as}/{file.relative_to(ROOT / where).as_posix()}" in names


def test_the_sdist_builds_the_same_wheel(folder: Path, sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    (folder / "wheel-from-sdist").mkdir()
    again = build(source, "wheel", folder / "wheel-from-sdist")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert set(first.namelist()) == set(second.namelist())
        for name in first.namelist():
            if not name.endswith("RECORD"):
                assert first.read(name) == second.read(name), name


def test_site_packages_has_no_top_level_passes_autotune_or_tests(installed: Path) -> None:
    names = {path.name for path in site_packages(installed).iterdir()}
    assert names == {"tiledsl", "tiledsl-0.1.0.dist-info", "dependencies.pth"}


def test_it_imports_from_the_wheel(folder: Path, installed: Path) -> None:
    program = "import tiledsl, tiledsl.passes, tiledsl.autotuner as a; print(tiledsl.__file__, a.__name__)"
    file, name = run(installed, "-c", program, cwd=folder).split()
    assert Path(file).is_relative_to(site_packages(installed))
    assert name == "tiledsl.autotuner"


@pytest.mark.parametrize("bare", ["passes", "autotune"])
def test_the_bare_names_stay_free(folder: Path, installed: Path, bare: str) -> None:
    program = f"import importlib.util; print(importlib.util.find_spec({bare!r}))"
    assert run(installed, "-c", program, cwd=folder).strip() == "None"


def test_a_gemm_runs_from_the_wheel(folder: Path, installed: Path) -> None:
    script = folder / "quickstart.py"
    script.write_text(GEMM_SCRIPT)
    assert run(installed, script, cwd=folder).splitlines()[-1] == "matches torch"


def test_a_gemm_runs_from_the_wheel_as_it_is(folder: Path, wheel: Path, parse_table: Path) -> None:
    """A wheel is a zip file, from which Python imports without an installation."""
    script = folder / "zipped.py"
    head = f"import sys\nsys.path.insert(0, {str(wheel)!r})\n"
    script.write_text(f"{head}{GEMM_SCRIPT}print(tiledsl.__file__)\n")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    shown = forked.run([script], cwd=folder, env=environment)
    assert shown.returncode == 0, shown.stderr
    assert "matches torch" in shown.stdout and str(wheel) in shown.stdout


def test_the_command_is_installed(folder: Path, installed: Path) -> None:
    assert "lower" in run(installed.with_name("tiledsl"), "--help", cwd=folder)
