"""What compiled kernels answer under TileLang's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tiledsl.errors import TileError


@T.prim_func
def double(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            Y[i] = X[i] * 2


@pytest.fixture(scope="module")
def kernel() -> Any:
    return tiledsl.compile(double, out_idx=-1, target="interpret")


def test_sources(kernel: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kernel.kernel_source == kernel.host_source == kernel.get_host_source() == kernel.source
    assert kernel.out_idx == [1]
    kernel.show_source("both")
    kernel.print_source_code()
    assert capsys.readouterr().out == 2 * f"{kernel.source}\n"
    kernel.print_source_code(file=str(tmp_path / "new" / "kernel.py"))
    kernel.export_sources(host_path=str(tmp_path / "host.py"))
    assert (tmp_path / "new" / "kernel.py").read_text() == (tmp_path / "host.py").read_text() == kernel.source
    with pytest.raises(TileError, match="export_sources needs kernel_path or host_path"):
        kernel.export_sources()


def test_assembly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiled = tiledsl.compile(double, out_idx=-1, target="cuda:90")
    compiled.export_ptx(str(tmp_path / "kernel.ptx"))
    compiled.show_ptx()
    assert (tmp_path / "kernel.ptx").read_text() + "\n" == capsys.readouterr().out
    assert ".target sm_90a" in (tmp_path / "kernel.ptx").read_text()
    assert (compiled.n_regs, compiled.n_spills) == (compiled.resources.registers, 0)


def test_what_the_interpreter_has_not(kernel: Any) -> None:
    assert kernel.n_regs is None and kernel.n_spills is None
    with pytest.raises(TileError):
        kernel.show_ptx()


def test_the_tuners_result(kernel: Any) -> None:
    with pytest.raises(TileError, match="was not tuned"):
        kernel.get_tuner_result()
    assert kernel.update_tuner_result(0.5, {"block": 4}, 1.0) is kernel
    assert kernel.get_tuner_result() == {"latency": 0.5, "config": {"block": 4}, "ref_latency": 1.0}
