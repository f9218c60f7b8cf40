"""Ranges in profiles around calls: what they are called, when they begin and end, and that without them nothing is
written into calls."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as T
from tests.runtime.fake_gpu import Driver, pretend, tensor
from tiledsl.errors import TileError
from tiledsl.runtime import ranges
from tiledsl.settings import settings


def doubled(block: int = 32) -> Any:
    @T.prim_func
    def doubled(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(T.ceildiv(64, block), threads=32) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * 2.0

    return doubled


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What fake modules in place of torch's NVTX and of Proton are told."""
    labels: list[str] = []

    def module(name: str, begin: str, end: str) -> None:
        made: Any = types.ModuleType(name)
        setattr(made, begin, lambda label: labels.append(f"{name} {label}"))
        setattr(made, end, lambda: labels.append("end"))
        monkeypatch.setitem(sys.modules, name, made)

    module("torch.cuda.nvtx", "range_push", "range_pop")
    module("triton.profiler", "enter_scope", "exit_scope")
    return labels


@pytest.mark.parametrize(("kind", "module"), [("nvtx", "torch.cuda.nvtx"), ("proton", "triton.profiler")])
def test_each_call_is_in_a_range(kind: str, module: str, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    kernel = pretend(tiledsl.compile(doubled(), target="cuda:90"), driver, monkeypatch)
    kernel.config = {"block": 32, "stages": 2}
    x, y = tensor(64), tensor(64)
    monkeypatch.setattr(driver, "launches", Noting(seen))
    with settings(ranges=kind):
        kernel(x, y)
        bound = kernel.bind(x, y)
    del seen[: seen.index("launch") - 1]
    once = [f"{module} doubled block=32 stages=2", "launch", "end"]
    assert seen == once
    for run in (lambda: kernel(x, y), lambda: kernel(x, tensor(64)), bound):  # warm, and from what is written once
        run()
    assert seen == once * 4
    assert kernel.launch_source.count("range_begin(range_label)") == kernel.launch_source.count("range_end()") == 2


class Noting(list[Any]):
    """The launches of a driver, which are noted among the ranges."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def append(self, launch: Any) -> None:
        super().append(launch)
        self.seen.append("launch")


def test_without_the_setting_nothing_is_written(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pretend(tiledsl.compile(doubled(), target="cuda:90"), Driver(), monkeypatch)
    x, y = tensor(64), tensor(64)
    kernel(x, y)
    with settings(ranges="nvtx"):  # a kernel that was called stays as it is
        kernel(x, y)
        kernel.bind(x, y)()
    caller = kernel.caller(2)
    assert "range" not in kernel.launch_source and "try:" not in kernel.launch_source and not seen
    assert caller.range is None and caller.host is getattr(caller.module, caller.function)


def test_a_range_ends_where_a_launch_fails(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with settings(ranges="proton"):
        kernel = pretend(tiledsl.compile(doubled(), target="cuda:90"), Driver(), monkeypatch)
        x, y = tensor(64), tensor(64)
        kernel(x, y)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("no launch")

    kernel.call_scope["launch"] = fail
    del seen[:]
    with pytest.raises(RuntimeError, match="no launch"):
        kernel(x, y)
    assert seen == ["triton.profiler doubled", "end"]


def test_interpreted_kernels_have_ranges_too(seen: list[str]) -> None:
    x, y = torch.arange(64, dtype=torch.float32), torch.zeros(64)
    with settings(ranges="proton"):
        tiledsl.compile(doubled(16), target="interpret")(x, y)
    assert torch.equal(y, x * 2) and seen == ["triton.profiler doubled", "end"]


def test_long_names_are_cut(seen: list[str]) -> None:
    with settings(ranges="proton"):
        made = ranges.range_of("k", {"a": "b" * 300})
    assert made is not None and made.label == f"k a={'b' * 193}..." and len(made.label) == 200


def test_what_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def stub(label: str) -> None:
        raise RuntimeError("NVTX functions not installed")

    made: Any = types.ModuleType("torch.cuda.nvtx")
    made.range_push = stub
    monkeypatch.setitem(sys.modules, "torch.cuda.nvtx", made)
    monkeypatch.setitem(sys.modules, "triton.profiler", None)
    with (
        settings(ranges="nvtx"),
        pytest.raises(TileError, match="this torch has no NVTX: NVTX functions not installed"),
    ):
        ranges.range_of("k", None)
    with settings(ranges="proton"), pytest.raises(TileError, match=r"ranges='proton' needs triton\.profiler"):
        ranges.range_of("k", None)
    assert ranges.range_of("k", None) is None
