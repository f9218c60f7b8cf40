"""The command line on levels: `lower --emit all` and `compile`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiledsl.cli import main

PROGRAM = """
@T.prim_func
def ones(X: T.Tensor((N,), "float32")):
    with T.Kernel(T.ceildiv(N, 16), threads=32) as bx:
        for i in T.Parallel(16):
            X[bx * 16 + i] = 1.0
"""
NAME = "ones_kernel"


def tiledsl(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def printed(*arguments: object) -> str:
    result = tiledsl(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "ones.tile").write_text(PROGRAM)
    lower = ("lower", folder / "ones.tile", "-D", "N=64", "--target", "cuda:90", "--emit")
    assert "name their folder with -o" in tiledsl(*lower, "all").output
    shown = printed(*lower, "all", "-o", folder / "levels").split()
    assert sorted(shown) == sorted(str(each) for each in (folder / "levels").iterdir())
    assert printed(*lower, "ptx") == (folder / "levels" / f"{NAME}.ptx").read_text()
    return folder / "levels"


@pytest.mark.parametrize("level", ["ttir", "ttgir", "llir", "ptx", "cubin"])
def test_compile(saved: Path, tmp_path: Path, level: str) -> None:
    file, out = saved / f"{NAME}.{level}", tmp_path / "out.cubin"
    assert printed("compile", file, "--emit", "cubin", "-o", out) == ""
    assert out.read_bytes() == (saved / f"{NAME}.cubin").read_bytes()
    if level != "cubin":
        assert printed("compile", file, "--emit", "ptx") == (saved / f"{NAME}.ptx").read_text()
    assert "EXIT" in printed("compile", file, "--target", "cuda:90", "--emit", "sass")
    resources = printed("compile", file)
    assert "shared memory  0 bytes" in resources and "warps          1 a block" in resources


def test_compile_in_a_fresh_process(saved: Path, tmp_path: Path) -> None:
    """LLVM's targets are set up by the stage that makes llir, which does not run here."""
    command = [sys.executable, "-m", "tiledsl", "compile", str(saved / f"{NAME}.llir"), "--emit", "ptx"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TILEDSL_CACHE_DIR": str(tmp_path)}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (saved / f"{NAME}.ptx").read_text()


def test_compile_without_a_json_file(saved: Path, tmp_path: Path) -> None:
    for level in ("ttir", "ttgir", "ptx"):
        shutil.copy(saved / f"{NAME}.{level}", tmp_path)
    assert "say --target cuda:90" in tiledsl("compile", tmp_path / f"{NAME}.ttgir").output
    made = printed("compile", tmp_path / f"{NAME}.ttgir", "--target", "cuda:90", "--emit", "ptx")
    assert made == (saved / f"{NAME}.ptx").read_text()
    wider = ("compile", tmp_path / f"{NAME}.ttir", "--target", "cuda:80", "--option", "num_warps=2", "--emit")
    assert ".reqntid 64" in printed(*wider, "ptx") and "2 a block" in printed(*wider, "resources")
    ptx = ("compile", tmp_path / f"{NAME}.ptx", "--target", "cuda:90", "--emit")
    assert "EXIT" in printed(*ptx, "sass")
    assert "does not say how much shared memory it takes" in tiledsl(*ptx, "resources").output


def test_mistakes(saved: Path) -> None:
    ptx = saved / f"{NAME}.ptx"
    for arguments, message in (
        ((ptx, "--target", "cuda:80"), "is for cuda:90, and the kernel for cuda:80"),
        ((ptx, "--target", "interpret"), "the target 'interpret' compiles nothing"),
        ((ptx, "--emit", "ttir"), "has no ttir; it has ptx, cubin, sass"),
        ((ptx, "--emit", "source"), "--emit source: it is one of ttir"),
        ((ptx, "--emit", "cubin"), "a cubin is binary; write it to a file with -o"),
        ((ptx, "--option", "num_warp=3"), "--option num_warp: Triton has no such option for cuda:90"),
        ((saved,), "is a folder"),
        ((saved / "other.ptx",), "there is no file"),
        ((saved / f"{NAME}.json",), "there is no level 'json'"),
    ):
        result = tiledsl("compile", *arguments)
        assert result.exit_code == 1 and message in result.output, result.output
