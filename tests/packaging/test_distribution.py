"""Builds the wheel and the sdist, installs the wheel into a fresh environment, and uses it there."""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging import dist
from tests.support import forked

EPOCH = "1700000000"

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distribution")


@pytest.fixture(scope="module")
def checkout(folder: Path) -> Path:
    return dist.copy_checkout(folder / "checkout")


@pytest.fixture(scope="module")
def wheel(folder: Path, checkout: Path) -> Path:
    return dist.build(checkout, "wheel", folder / "wheel", EPOCH)


@pytest.fixture(scope="module")
def source(folder: Path, checkout: Path) -> Path:
    """What is in the sdist."""
    return dist.unpacked(dist.build(checkout, "sdist", folder / "sdist", EPOCH), folder / "unpacked")


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path, parse_table: Path) -> Path:
    """The interpreter of a fresh environment with the wheel; dependencies are those of the running environment."""
    dist.run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    dist.run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    # A line in a .pth file adds a folder but runs none of that folder's own .pth files: no editable tiledsl comes in.
    shared = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    site_packages(python).joinpath("dependencies.pth").write_text("\n".join(shared) + "\n")
    return python


def site_packages(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python*/site-packages"))


def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    dist.check_wheel(wheel)
    assert {
        "tiledsl/py.typed", "tiledsl/frontend/grammar.lark", "tiledsl/passes/__init__.py",
        "tiledsl/autotuner/__init__.py", "tiledsl/passes/gluon/__init__.py", "tiledsl/autotuner/search/__init__.py",
    } <= dist.wanted_in_wheel()  # fmt: skip


def test_a_wheel_that_lacks_a_file_is_noticed(folder: Path, wheel: Path) -> None:
    for name, added in (("tiledsl/py.typed", ""), ("tiledsl/frontend/grammar.lark", ""), ("", "tests/test_cli.py")):
        damaged = folder / "damaged.whl"
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(damaged, "w") as new:
            for each in old.namelist():
                if each != name:
                    new.writestr(each, old.read(each))
            if added:
                new.writestr(added, "")
        with pytest.raises((AssertionError, ValueError)):
            dist.check_wheel(damaged)


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(folder: Path, source: Path, wheel: Path) -> None:
    dist.check_sdist(source)
    assert dist.build(source, "wheel", folder / "wheel-from-sdist", EPOCH).read_bytes() == wheel.read_bytes()


def test_the_sdist_is_the_same_each_time(folder: Path) -> None:
    """Whatever the times, rights, order and owners of the files."""
    archives = []
    for number, names in enumerate((["a", "b"], ["b", "a"])):
        (folder / str(number)).mkdir()
        for name in names:
            (folder / str(number) / name).write_text(name)
            (folder / str(number) / name).chmod(0o600 + number)
        archives.append(folder / f"{number}.tar.gz")
        with tarfile.open(archives[-1], "w:gz") as archive:
            for name in names:
                archive.add(folder / str(number) / name, f"top/{name}")
        dist.same_each_time(archives[-1], 10**9 + 5)
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as archive:
        found = [(each.name, each.mtime, each.mode, archive.extractfile(each).read()) for each in archive]  # type: ignore[union-attr]
    assert found == [("top/a", 10**9 + 5, 0o644, b"a"), ("top/b", 10**9 + 5, 0o644, b"b")]


def test_site_packages_has_no_top_level_passes_autotune_or_tests(installed: Path) -> None:
    names = {path.name for path in site_packages(installed).iterdir()}
    assert names == {"tiledsl", "tiledsl-0.1.0.dist-info", "dependencies.pth"}


def test_it_imports_from_the_wheel(folder: Path, installed: Path) -> None:
    program = "import tiledsl, tiledsl.passes, tiledsl.autotuner as a; print(tiledsl.__file__, a.__name__)"
    file, name = dist.run(installed, "-c", program, cwd=folder).split()
    assert Path(file).is_relative_to(site_packages(installed))
    assert name == "tiledsl.autotuner"


@pytest.mark.parametrize("bare", ["passes", "autotune"])
def test_the_bare_names_stay_free(folder: Path, installed: Path, bare: str) -> None:
    program = f"import importlib.util; print(importlib.util.find_spec({bare!r}))"
    assert dist.run(installed, "-c", program, cwd=folder).strip() == "None"


def test_a_gemm_runs_from_the_wheel(folder: Path, installed: Path) -> None:
    script = folder / "quickstart.py"
    script.write_text(GEMM_SCRIPT)
    assert dist.run(installed, script, cwd=folder).splitlines()[-1] == "matches torch"


@pytest.mark.slow
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
    assert "lower" in dist.run(installed.with_name("tiledsl"), "--help", cwd=folder)
