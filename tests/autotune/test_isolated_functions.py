"""Functions that are tuned in processes of their own: what crashes or hangs there costs only itself."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.autotune.isolated_functions import double, double_into, of_state, state
from tests.support import forked
from tiledsl.autotuner import function_server, tune_function
from tiledsl.autotuner.reachable import Unreachable, packed, place_of, unpacked
from tiledsl.autotuner.trial import Trial
from tiledsl.errors import TileError


@pytest.mark.slow
def test_a_configuration_that_ends_its_process_costs_only_itself() -> None:
    x = torch.randn(64)
    result = double.tune(x)
    assert [trial.status for trial in result.trials] == [
        "ok", "crash", "hang", "launch_error", "mismatch", "crash", "ok",
    ]  # fmt: skip
    assert result.config == {"way": "fast"} and result.latency == 0.5 and result.in_process == ""
    assert "SIGABRT" in result.trials[1].message and result.trials[2].message == "still running after 2 s; killed"
    assert "exit status 3" in result.trials[5].message and result.trials[3].message == "ValueError: not this way"
    assert torch.equal(double(x), x * 2)


def test_arguments_travel_as_they_are() -> None:
    x, y = torch.randn(4, 4), torch.zeros(4, 4).T
    result = double_into.tune(x, y, (1, 2))
    with pytest.raises(TileError, match="object is not subscriptable"):
        double_into.tune(x, y, 3)
    assert result.config == {"way": "fast"} and not y.any() and result.in_process == ""


def test_what_does_not_get_there_stays_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_state.tune(torch.ones(2)).in_process == ""
    monkeypatch.setattr(sys.modules[of_state.function.__module__], "state", [1, 2])
    assert len(state) == 0
    result = of_state.tune(torch.ones(3))
    assert result.in_process == "it, or what it refers to, is not as its file has it"
    assert result.table().splitlines()[-1] == f"configurations ran in this process: {result.in_process}"

    @tune_function([{"a": 1}, {"a": 2}])
    def inner(x: Any, a: int = 0) -> Any:
        return x + 1

    assert inner.tune(torch.ones(2)).in_process == "it is defined inside of another function"
    assert of_state.tune(torch.nn.Parameter(torch.ones(5))).in_process == "x is a Parameter, which does not travel"


def test_a_script_is_loaded_only_if_it_is_guarded(tmp_path: Path) -> None:
    text = """
import torch, tiledsl
from tiledsl.autotuner import function_server, tune_function
print("loaded")
@tune_function([{"n": 1}, {"n": 2}], warmup=1, rep=2, cache=False)
def add(x, n):
    return x + 1
"""
    go = "print(add.tune(torch.ones(4)).in_process or 'apart')\n"
    for guard, said in (('if __name__ == "__main__":\n    ', "apart"), ("", "its script has no `if __name__")):
        script = tmp_path / "script.py"
        script.write_text(text + guard + go)
        done = forked.run([script])
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[0] == "loaded" and done.stdout.splitlines()[-1].startswith(said), done
        assert done.stdout.count("loaded") == 1


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    values = [1, 1.5, "a", None, True, (1, [2, {"a": (3,)}]), torch.float16]
    assert [unpacked(packed(f"v{n}", each, tmp_path)) for n, each in enumerate(values)] == values
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).T
    back = unpacked(packed("t", tensor, tmp_path))
    assert torch.equal(back, tensor) and back.stride() == tensor.stride() and back.dtype is torch.bfloat16
    for value in (float("nan"), object(), [torch.ones(2)], torch.ones(2, requires_grad=True)):
        with pytest.raises(Unreachable, match="which does not travel"):
            packed("v", value, tmp_path)


def test_a_function_of_another_name_is_not_taken() -> None:
    assert place_of(double.function)["name"] == "double"
    with pytest.raises(Unreachable, match="its module has something else as test"):
        changed = type(double.function)(double.function.__code__, double.function.__globals__)
        changed.__qualname__ = "test"
        place_of(changed)


def test_what_loses_its_gpu_ends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other configurations would fail there as well."""
    server = object.__new__(function_server.FunctionServer)
    failing = SimpleNamespace(first=lambda trial: trial.fail("launch_error", "device-side assert"))
    vars(server).update(_trials=[Trial(0, {})], _run=failing, _call=SimpleNamespace(on_gpu=True))
    for alive, status in ((True, "launch_error"), (False, "crash")):
        monkeypatch.setattr(function_server, "is_gpu_alive", lambda alive=alive: alive)
        found = server.first(0)
        assert (found["status"], found["message"]) == (status, "device-side assert")
