"""A new process that recalls a kernel runs what was kept: it lowers nothing, compiles nothing, hashes nothing."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.autotune.recalled import tuned
from tests.support import forked
from tiledsl.autotuner.storage.journal import write_json

ROOT = Path(__file__).resolve().parents[2]


def called(*name: str) -> dict[str, Any]:
    """What a new process did to call a kernel twice; see recalled.call."""
    run = forked.run(["-m", "tests.autotune.recalled", *name], cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return dict(json.loads(run.stdout.splitlines()[-1]))


def launch_file(cache_dir: Path) -> Path:
    (found,) = cache_dir.rglob("launch.json")
    return found


@pytest.mark.parametrize(
    ("name", "kernel", "grid"),
    [
        ("product", "gemm_kernel", [4, 4, 1]),
        ("scaled", "scaled_kernel", [4, 1, 1]),
        pytest.param("attention", "attention_forward_kernel", [4, 1, 1], marks=pytest.mark.slow),
        ("eager", "eager_kernel", [4, 1, 1]),
    ],
)
def test_a_call_takes_what_was_kept(name: str, kernel: str, grid: list[int], cache_dir: Path) -> None:
    assert tuned(name).from_cache == ""
    found = called(name)
    assert found["failure"] == "" and found["compiled"] == [] and found["hashed"] == 0
    assert found["from_cache"] == "disk" and found["plans"] and found["loaded"] == [kernel]
    assert found["launches"] == [[kernel, grid]] * 2
    assert found["modules"] == []
    assert found["program"].startswith("tile.func {")  # which is lowered when it is asked for


def test_what_was_not_kept_is_compiled_and_kept(cache_dir: Path) -> None:
    tuned("dynamic")  # compiled for a number of rows of which nothing is known; called with a multiple of 16
    assert called("dynamic")["failure"] == "a compiler was started"
    first, second = called("dynamic", "compiles"), called("dynamic")
    assert first["compiled"] == ["scaled_kernel"] and len(first["launches"]) == 2
    assert second["compiled"] == [] and second["hashed"] == 0 and second["launches"] == first["launches"]
    assert len(list(cache_dir.rglob("scaled_kernel.*.kept.json"))) == 2


def test_another_triton_compiles(cache_dir: Path) -> None:
    tuned("scaled")
    (path,) = cache_dir.rglob("scaled_kernel.*.kept.json")
    kept = json.loads(path.read_text())
    kept["asked"]["triton"] = "1.0"
    write_json(path, kept)
    found = called("scaled")
    assert found["compiled"] == ["scaled_kernel"] and found["loaded"] == []


def test_a_binary_that_was_changed_is_not_loaded(cache_dir: Path) -> None:
    tuned("scaled")
    (path,) = cache_dir.rglob("scaled_kernel.*.kept.cubin")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = called("scaled")
    assert found["compiled"] == ["scaled_kernel"] and found["loaded"] == []


def test_a_cache_that_cannot_be_written_costs_only_time(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.runtime import kernel_files

    def full(path: Path, data: bytes) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(kernel_files, "write_file", full)
    assert tuned("scaled").from_cache == ""
    monkeypatch.undo()
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(cache_dir))
    assert tuned("scaled").kernel.source.count("def scaled_kernel") == 1


def scaled_trial(cache: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEDSL_CACHE_DIR", str(cache))
        return tuned("scaled").best


SPOILT: dict[str, Any] = {
    "nothing": "",
    "list": "[]",
    "schema": lambda text: text.replace('"schema": 1', '"schema": 2'),
    "source": lambda text: text.replace("def scaled_kernel", "import os; def scaled_kernel"),
    "configuration": lambda text: text.replace("int:64", "int:32"),
    "name": lambda text: text.replace('"name": "scaled_kernel"', '"name": "../scaled_kernel"'),
    "huge": lambda text: text.replace('"num_warps": 4', '"num_warps": 1' + "0" * 400),
    "type": lambda text: text.replace('"outputs": [', '"outputs": {}, "x": ['),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which a kernel has been tuned."""
    folder = tmp_path_factory.mktemp("tuned")
    scaled_trial(folder)
    return folder


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_file_that_makes_no_sense_is_left_alone(spoil: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tiledsl.autotuner.results.unbuilt import UnbuiltKernel
    from tiledsl.autotuner.storage import artifacts

    path = launch_file(cache)
    text = path.read_text()
    trial = scaled_trial(cache)
    assert artifacts.read_artifacts(path.parent, trial) is not None
    change = SPOILT[spoil]
    try:
        path.write_text(change(text) if callable(change) else change)
        assert path.read_text() != text
        with caplog.at_level(logging.INFO, "tiledsl"):
            assert artifacts.read_artifacts(path.parent, trial) is None
        read = functools.partial(artifacts.read_artifacts, path.parent, trial)
        kernel = UnbuiltKernel(lambda: trial.kernel, trial.source_hash, read)
        assert kernel.name == "scaled" and kernel.source == trial.source
    finally:
        path.write_text(text)


def test_a_file_that_others_may_write_is_left_alone(cache: Path) -> None:
    from tiledsl.autotuner.storage import artifacts

    path = launch_file(cache)
    trial = scaled_trial(cache)
    try:
        path.chmod(0o666)
        assert artifacts.read_artifacts(path.parent, trial) is None
    finally:
        path.chmod(0o600)
    assert artifacts.read_artifacts(path.parent, trial) is not None
