"""Targets: the forms accepted, and the limits."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tiledsl.errors import TileError
from tiledsl.runtime import target as target_module
from tiledsl.runtime.target import Target


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "_live_gpu", lambda: None)


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("cuda", Target("cuda", 90)),
        ("cuda:90", Target("cuda", 90)),
        ("cuda:sm_90a", Target("cuda", 90)),
        ("CUDA:100", Target("cuda", 100)),
        ("cuda -arch=sm_80", Target("cuda", 80)),
        ({"kind": "cuda", "arch": "sm_90a"}, Target("cuda", 90)),
        ({"kind": "cuda", "arch": 89}, Target("cuda", 89)),
        ("hip:gfx942", Target("hip", "gfx942")),
        ("hip", Target("hip", "gfx942")),
        ("interpret", Target("interpret")),
        (Target("cuda", 80), Target("cuda", 80)),
    ],
)
def test_forms(spec: Any, wanted: Target) -> None:
    assert Target.parse(spec) == wanted
    assert Target.parse(str(wanted)) == wanted


@pytest.mark.parametrize(
    "spec", ["opencl", "", "cuda:banana", "cuda:", "interpret:3", "auto:90", "hip:sm_90", {"arch": "sm_90"}]
)
def test_unknown_forms(spec: Any) -> None:
    with pytest.raises(TileError) as caught:
        Target.parse(spec)
    assert "hip:gfx942" in str(caught.value) and "interpret" in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "number"), [("cuda:91", 9.1), ("cuda:sm_130a", 13.0), ({"kind": "cuda", "arch": 85}, 8.5)]
)
def test_capabilities_that_no_gpu_has(spec: Any, number: float) -> None:
    with pytest.raises(TileError, match=f"no GPU of compute capability {number} is known") as caught:
        Target.parse(spec)
    assert "cuda:90, cuda:100" in str(caught.value)


def test_a_gpu_that_is_here_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "_live_gpu", lambda: ("cuda", 130, 200))
    assert Target.parse("cuda") == Target.parse("cuda:130") == Target("cuda", 130)


def test_auto_without_gpu_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    target_module._auto_target.cache_clear()
    with caplog.at_level("WARNING", "tiledsl"):
        assert Target.parse("auto") == Target.parse("auto") == Target("interpret")
    assert len(caplog.records) == 1 and "interpreter" in caplog.text
    target_module._auto_target.cache_clear()


def test_live_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "_live_gpu", lambda: ("cuda", 80, 98))
    monkeypatch.setitem(sys.modules, "torch", sys)  # only that it was loaded counts
    assert Target.parse("cuda") == Target("cuda", 80)
    assert Target("cuda", 80).sm_count == 98 and Target("cuda", 90).sm_count == 132
    assert Target("cuda", 80).runs_here and not Target("cuda", 90).runs_here


def test_limits() -> None:
    shared = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 120: 99}
    for arch, kib in shared.items():
        assert Target("cuda", arch).max_shared_bytes == kib * 1024
    assert Target("cuda", 90).max_warps_per_sm == 64 and Target("cuda", 89).max_warps_per_sm == 48
    assert Target("hip", "gfx950").max_shared_bytes == 160 * 1024 and Target("hip", "gfx942").warp_size == 64
    assert [Target("cuda", a).sm_count for a in (80, 90, 100)] == [108, 132, 148]


def test_dtypes() -> None:
    assert not Target("cuda", 80).supports("float8_e4m3fn") and Target("cuda", 80).supports("bfloat16")
    assert Target("cuda", 89).supports("float8_e4m3fn") and not Target("cuda", 75).supports("bfloat16")
    assert Target("hip", "gfx942").supports("float8_e4m3fnuz") and Target("hip", "gfx942").supports("float8_e5m2")
    assert not Target("hip", "gfx90a").supports("float8_e5m2")
    assert Target("interpret").supports("float8_e5m2fnuz")


def test_triton_target() -> None:
    gpu = Target("hip", "gfx942").triton_target()
    assert (gpu.backend, gpu.arch, gpu.warp_size) == ("hip", "gfx942", 64)


def test_imports_load_neither_torch_nor_triton() -> None:
    names = "target module compile interpreter profiler supply resources private_triton interpreter_ops"
    names += " interpreter_libdevice interpreter_speed"
    code = f"import sys\nfor n in {names.split()}: __import__('tiledsl.runtime.' + n)\n"
    code += "assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
