"""Work on other streams, and results that are kept, of functions of a GPU's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tiledsl.autotuner import tune_function

pytestmark = pytest.mark.gpu


def trials_of(cheat: Callable[..., Any], size: int = 4096) -> Any:
    """An honest product beside a function; the first must win."""

    @tune_function([{"way": "honest"}, {"way": "cheat"}], ref_prog=torch.matmul, cache=False, warmup=5, rep=20)
    def product(A: Any, B: Any, way: str) -> Any:
        return A @ B if way == "honest" else cheat(A, B)

    A, B = (torch.rand(size, size, device="cuda") - 0.5 for _ in range(2))
    result = product.tune(A, B)
    assert result.config == {"way": "honest"}, result.table()
    return result.trials[1]


def test_a_stream_of_its_own() -> None:
    stream = torch.cuda.Stream()

    def cheat(A: Any, B: Any) -> Any:
        out = torch.empty_like(A)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.matmul(A, B, out=out)
        return out

    trial = trials_of(cheat)
    assert "changes its results after it has returned" in trial.message or "not written" in trial.message or "another stream" in trial.message  # fmt: skip # noqa: E501


def test_a_stream_that_is_waited_for_is_fine() -> None:
    stream = torch.cuda.Stream()

    @tune_function([{"n": 0}, {"n": 1}], ref_prog=torch.matmul, cache=False, warmup=5, rep=20)
    def product(A: Any, B: Any, n: int) -> Any:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = A @ B
        torch.cuda.current_stream().wait_stream(stream)
        return out

    A, B = (torch.rand(2048, 2048, device="cuda") - 0.5 for _ in range(2))
    assert [trial.status for trial in product.tune(A, B).trials] == ["ok", "ok"]


@pytest.mark.parametrize("key", ["address", "shape"])
def test_results_that_are_kept(key: str) -> None:
    kept: dict[Any, Any] = {}

    def cheat(A: Any, B: Any) -> Any:
        found = (A.data_ptr(), B.data_ptr()) if key == "address" else A.shape
        if found not in kept:
            kept[found] = A @ B
        return kept[found]

    assert not trials_of(cheat).ok


def test_memory_that_held_the_result() -> None:
    assert not trials_of(lambda A, B: torch.empty_like(A)).ok


@pytest.mark.parametrize("name", ["elapsed_time", "record", "synchronize"])
def test_events_of_its_own(name: str) -> None:
    original = getattr(torch.cuda.Event, name)

    def cheat(A: Any, B: Any) -> Any:
        setattr(torch.cuda.Event, name, lambda *_: 1e-6)
        return A @ B

    assert f"replaces Event.{name}" in trials_of(cheat).message
    assert getattr(torch.cuda.Event, name) is original


def test_bfloat16_in_place_of_float32() -> None:
    assert "wrong in" in trials_of(lambda A, B: (A.bfloat16() @ B.bfloat16()).float()).message
