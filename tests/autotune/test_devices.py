"""Several GPUs: which process sees which, who measures what, and that times to be compared come from one of them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune.programs import scale_builder, twice
from tiledsl.autotuner.measuring import bench_process, measure
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.run import TuningRun
from tiledsl.autotuner.storage.key import environment
from tiledsl.runtime.target import Target

NOTED = "tests.autotune.fake_timers:each_call_noted"
H200, A100 = "NVIDIA H200", "NVIDIA A100"


@pytest.mark.parametrize(
    ("device", "listed", "seen"),
    [
        ("cpu", "0,1", {}),
        ("1", None, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("1", "3,5", {"CUDA_VISIBLE_DEVICES": "5"}),
        ("0", " 7 , 2", {"CUDA_VISIBLE_DEVICES": "7"}),
        ("1", "GPU-8d2e,MIG-1f", {"CUDA_VISIBLE_DEVICES": "MIG-1f"}),
    ],
)
def test_a_process_sees_its_own_gpu(device: str, listed: str | None, seen: dict[str, str]) -> None:
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert bench_process.visible_devices(device, environ) == seen


def test_the_process_is_started_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is here, so the process ends; what it was started with shows before that."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    worker = bench_process.Worker("1")
    try:
        variables = [b""]
        while variables == [b""] and worker.is_alive:  # as long as it has not become what it is to be
            variables = Path(f"/proc/{worker.process.pid}/environ").read_bytes().split(b"\0")
        arguments = Path(f"/proc/{worker.process.pid}/cmdline").read_bytes().split(b"\0")
    finally:
        worker.close()
    assert b"CUDA_VISIBLE_DEVICES=5" in variables and arguments[-2] == b"cuda"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with these GPUs, of which the second is the current one."""
    names = [A100, H200, H200, A100]
    monkeypatch.setattr(measure, "can_measure", lambda target: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number=1: names[number])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda number: SimpleNamespace(name=names[number], multi_processor_count=132 if names[number] == H200 else 108),
    )
    return names


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["1", "2"]),
        ({"devices": (2,)}, ["2"]),
        ({"devices": (2, 1)}, ["2", "1"]),
        ({"devices": (0, 3)}, ["0", "3"]),
        ({"shape_grouped": True}, ["1"]),
        ({"shape_grouped": True, "devices": (2, 1)}, ["2"]),
    ],
)
def test_which_gpus_measure(gpus: list[str], options: dict[str, Any], expected: list[str]) -> None:
    assert measure.devices(Target("cuda", 90), TuneOptions(**options)) == expected


@pytest.mark.parametrize(
    ("devices", "message"),
    [((0, 4), "names GPU 4; there are 4"), ((0, 1), "different models .*A100, .*H200.*do not compare")],
)
def test_gpus_that_cannot_be_had(gpus: list[str], devices: tuple[int, ...], message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=message):
        measure.devices(Target("cuda", 90), TuneOptions(devices=devices))


def test_the_key_names_the_gpu_that_measures(gpus: list[str]) -> None:
    here, other = (environment(Target("cuda", 90), True, device) for device in (None, 0))
    assert (here["gpu"], here["sm_count"]) == (H200, 132) and (other["gpu"], other["sm_count"]) == (A100, 108)


def notes(file: Path) -> list[tuple[int, ...]]:
    """Process and block of each call of the clock, in order."""
    return [tuple(map(int, line.split())) for line in file.read_text().splitlines()]


def test_the_final_round_is_on_one_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiledsl.autotuner.selection._CLOSE", 100.0)  # all of the best few compete
    file, blocks = tmp_path / "seen", (64, 32, 16, 8)
    configs = [{"block": block, "variant": str(file)} for block in blocks]
    result = tiledsl.autotune(configs=configs, ref_prog=twice, timer=NOTED, cache=False, devices=[0, 1])(
        tiledsl.jit(out_idx=-1)(scale_builder)
    )()
    seen = notes(file)
    assert len({process for process, _ in seen[: len(blocks)]}) == 2
    final = seen[len(blocks) :]
    assert sorted(block for _, block in final) == sorted(blocks) and len({process for process, _ in final}) == 1
    assert all(trial.rounds for trial in result.trials)


def several(folder: Path, endless: tuple[int, ...] = (), **options: Any) -> Any:
    """A tuned function on two devices that notes who timed what in a file for each shape; some never come to an end."""

    def configs(size: Any) -> list[dict[str, Any]]:
        noted = "endless" if size in endless else str(size)
        return [{"block": block, "variant": str(folder / noted)} for block in (64, 32, 16, 8)]

    options = {"ref_prog": twice, "timer": NOTED, "cache": False, "devices": [0, 1], **options}
    return tiledsl.autotune(configs=configs, **options)(tiledsl.jit(out_idx=-1)(scale_builder))


@pytest.mark.parametrize("grouped", [False, True])
def test_several_shapes(grouped: bool, tmp_path: Path) -> None:
    sizes = [64, 128, 192, 256]
    results = several(tmp_path, shape_grouped=grouped).tune_all([{"size": size} for size in sizes])
    assert [result.kernel.params[0].shape for result in results] == [(size,) for size in sizes]
    assert all(result.config["block"] == 64 and len(result.trials) == 4 for result in results)
    processes = [{process for process, _ in notes(tmp_path / str(size))} for size in sizes]
    assert len(set().union(*processes)) == 2  # both devices worked
    assert {len(each) for each in processes} == ({1} if grouped else {2})


def test_a_shape_that_cannot_be_tuned_costs_only_itself(tmp_path: Path) -> None:
    for grouped in (False, True):
        function = several(tmp_path, shape_grouped=grouped, store=tmp_path / f"store-{grouped}", cache=True)
        with pytest.raises(tiledsl.TileError, match=r"1 of 3 calls cannot be tuned \(numbers 1\)") as caught:
            function.tune_all([{"size": 64}, {"size": "none"}, {"size": 128}])
        assert "T.ceildiv needs integers, not str 'none'" in str(caught.value)
        assert "so in all 4 configurations" in str(caught.value)
        assert [function(size=size).from_cache for size in (64, 128)] == ["memory"] * 2


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, also in a background job of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_interrupting_several_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C: what is tuned has its result, what is being tuned the best so far, the rest is left out.

    The last two shapes take longer than any test: on a slow machine, too, something is left.
    """
    started: list[TuningRun] = []
    original = TuningRun.run

    def run(self: TuningRun) -> None:
        started.append(self)
        original(self)

    monkeypatch.setattr(TuningRun, "run", run)

    def press() -> None:
        while not any(trial.ok for run in started[2:] for trial in run.trials):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    with caplog.at_level(logging.WARNING, "tiledsl"):
        function = several(tmp_path, endless=(448, 512), shape_grouped=True)
        results = function.tune_all([{"size": 64 * n} for n in range(1, 9)])
    # the two that ran when the third began: one is whole, one may have had no trial
    assert 2 <= len(results) < 8 and all(result.best.ok for result in results)
    assert f"interrupted; {len(results)} of 8 calls have a result" in caplog.text
