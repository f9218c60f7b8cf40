"""What is remembered, in memory and on disk, and what is not."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune.programs import scale_builder, twice

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = [{"block": 64}, {"block": 32}]


def tuned(configs: Any = BLOCKS, builder: Any = scale_builder, **options: Any) -> Any:
    """A new function each time: nothing in memory, as in a new process."""
    return tiledsl.autotune(configs=configs, **{"ref_prog": twice, **options})(tiledsl.jit(out_idx=-1)(builder))


def files(cache_dir: Path) -> list[Path]:
    return sorted((cache_dir / "autotune").rglob("best.json"))


def test_the_second_call_comes_from_memory(stages: Counter[str]) -> None:
    function = tuned()
    first, second = function(), function()
    assert (first.from_cache, second.from_cache) == ("", "memory")
    assert second.kernel is first.kernel and function() is second
    assert function(size=32).from_cache == "" and function(factor=2.0).from_cache == "disk"
    assert stages["run"] == 2


def test_a_new_function_loads_from_disk_and_builds_one_kernel(
    stages: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tuned()()
    before = dict(stages)
    from tiledsl.runtime.jit import JitFunction

    built = []
    original = JitFunction.build
    monkeypatch.setattr(JitFunction, "build", lambda self, values: built.append(values) or original(self, values))
    again = tuned()()
    assert again.from_cache == "disk" and dict(stages) == before
    assert len(built) == 1
    assert (again.config, again.latency, again.latency_kind) == (first.config, first.latency, first.latency_kind)
    assert again.trials == first.trials and again.kernel.config == first.config
    A = torch.randn(64)
    torch.testing.assert_close(again(A), A * 2)


def test_the_files_are_plain_json(cache_dir: Path) -> None:
    tuned([{"block": 64}, {"block": 32, "factor": float("inf")}])()
    (best,) = files(cache_dir)
    data = json.loads(best.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert data["schema"] == 1 and [each["status"] for each in data["trials"]] == ["ok", "nonfinite"]
    key = json.loads((best.parent / "key.json").read_text())
    assert key["kernel"] == "scale_builder" and key["target"] == "interpret" and key["arguments"]["size"] == "int:64"
    assert best.parent.parent.name == "scale_builder"
    assert sorted(each.name for each in best.parent.iterdir()) == ["best.json", "key.json"]


def test_the_list_of_configurations_is_not_in_the_key(cache_dir: Path, stages: Counter[str], timer: Any) -> None:
    timer(lambda config: 1.0 / config["block"])
    assert tuned([*BLOCKS, {"block": 16}])().config == {"block": 64}
    assert stages["run"] == 1
    fewer = tuned([{"block": 16}, {"block": 32}])()
    assert (fewer.from_cache, fewer.config, stages["run"]) == ("disk", {"block": 32}, 1)
    assert tuned([*BLOCKS, {"block": 8}])().from_cache == "" and stages["run"] == 2
    assert len(files(cache_dir)) == 1


@pytest.mark.parametrize("change", [{"rtol": 0.5}, {"rep": 7}, {"ref_prog": lambda A: A + A}, {"skip_check": True}])
def test_what_is_in_the_key(change: dict[str, Any], stages: Counter[str]) -> None:
    tuned()()
    assert tuned(**change)().from_cache == "" and stages["run"] == 2


def make_builder(factor: float, helper: Any = None) -> Any:
    def builder(block: int = 32) -> Any:
        return scale_builder(block, helper(factor) if helper else factor)

    return builder


def test_closures_count() -> None:
    assert tuned(builder=make_builder(2.0))().from_cache == ""
    assert tuned(builder=make_builder(2.0))().from_cache == "disk"
    assert tuned(builder=make_builder(2.0, lambda x: x))().from_cache == ""
    assert tuned(builder=make_builder(2.0, lambda x: x))().from_cache == "disk"
    assert tuned(builder=make_builder(2.001))().from_cache == ""
    assert tuned(builder=make_builder(1.0, lambda x: 2 * x))().from_cache == ""


class Doubling:
    def __init__(self, factor: float) -> None:
        self.factor = factor


def test_what_the_key_does_not_see_shows_in_the_source() -> None:
    def with_object(thing: Doubling) -> Any:
        def builder(block: int = 32) -> Any:
            return scale_builder(block, thing.factor)

        return builder

    assert tuned(builder=with_object(Doubling(2.0)))().from_cache == ""
    assert tuned(builder=with_object(Doubling(2.0)))().from_cache == "disk"
    assert tuned(builder=with_object(Doubling(2.001)))().from_cache == ""


def test_arguments_without_a_text_are_not_kept_on_disk(cache_dir: Path) -> None:
    def builder(thing: Any, block: int = 32) -> Any:
        return scale_builder(block, thing.factor)

    function = tuned(builder=builder)
    thing = Doubling(2.0)
    assert function(thing).from_cache == "" and function(thing).from_cache == "memory"
    assert function(Doubling(2.001)).from_cache == "" and files(cache_dir) == []


def test_a_shared_configuration_builds_for_the_values_at_hand(stages: Counter[str]) -> None:
    function = tuned(do_not_specialize=["size"])
    assert function(size=64).params[0].shape == (64,)
    other = function(size=128)
    assert other.from_cache == "memory" and other.params[0].shape == (128,) and stages["run"] == 1
    assert tuned(do_not_specialize=["size"])(size=256).params[0].shape == (256,)
    assert stages["run"] == 1


def test_always_tune_and_cache_off(stages: Counter[str], cache_dir: Path) -> None:
    function = tuned(cache=False)
    function()
    assert files(cache_dir) == [] and stages["run"] == 1
    function = tuned()
    function()
    with tiledsl.settings(always_tune=True):
        assert function().from_cache == "" and stages["run"] == 3


def test_failures_are_not_remembered(cache_dir: Path) -> None:
    with pytest.raises(tiledsl.TileError):
        tuned([{"block": 32, "factor": 3.0}])()
    assert files(cache_dir) == []


GARBAGE = {
    "empty": "",
    "cut": lambda text: text[: len(text) // 2],
    "list": "[]",
    "schema": lambda text: text.replace('"schema": 1', '"schema": 99'),
    "nan": lambda text: text.replace('"latency": ', '"latency": NaN, "x": ', 1),
    "huge": lambda text: text.replace('"latency": ', '"latency": 1e999, "x": ', 1),
    "negative": lambda text: text.replace('"latency": ', '"latency": -', 1),
    "type": lambda text: text.replace('"latency": ', '"latency": {}, "x": ', 1),
    "status": lambda text: text.replace('"status": "ok"', '"status": "__import__"'),
    "deep": "[" * 100_000,
    "bytes": b"\xff\xfe\x00",
    "folder": None,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_file_that_makes_no_sense_is_a_miss(kind: str, cache_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    tuned()()
    (best,) = files(cache_dir)
    text, damage = best.read_text(), GARBAGE[kind]
    if damage is None:
        best.unlink()
        best.mkdir()
    elif isinstance(damage, bytes):
        best.write_bytes(damage)
    else:
        best.write_text(damage(text) if callable(damage) else damage)
    with caplog.at_level(logging.WARNING, "tiledsl"):
        assert tuned()().from_cache == ""
    assert "tuning again" in caplog.text
    if damage is not None:
        assert tuned()().from_cache == "disk"
        assert set(json.loads(best.read_text())) == set(json.loads(text))


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    with tiledsl.settings(cache_dir=blocked), caplog.at_level(logging.WARNING, "tiledsl"):
        assert tuned()().config in BLOCKS
    assert "cannot be kept" in caplog.text


SCRIPT = """
import logging, sys
import tiledsl
from tests.autotune.programs import scale_builder, twice
logging.basicConfig()
configs = [{"block": b} for b in (64, 32, 16)]
f = tiledsl.autotune(configs=configs, ref_prog=twice)(tiledsl.jit(out_idx=-1)(scale_builder))
print(f().from_cache or "tuned", f().from_cache)
"""


def test_processes_at_the_same_time_leave_one_valid_file(cache_dir: Path) -> None:
    def start() -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    both = [start(), start()]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert all(out.split()[1] == "memory" and not err for out, err in outputs)
    (best,) = files(cache_dir)
    assert len(json.loads(best.read_text())["trials"]) == 3
    assert sorted(each.name for each in best.parent.iterdir()) == ["best.json", "key.json"]
    third = start()
    assert third.communicate(timeout=120)[0].split() == ["disk", "memory"]
