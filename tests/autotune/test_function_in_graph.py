"""Functions under tune_function in torch's graphs: they run with what is known, and nothing is tuned there."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tests.autotune import fake_timers
from tests.support.torch_functions import swiglu
from tiledsl.autotuner import function_in_graph, tune_function
from tiledsl.errors import TileError

BY_FIXTURE = f"{fake_timers.__name__}:by_fixture"


@pytest.fixture(autouse=True)
def _nothing_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(function_in_graph, "_told", set())
    monkeypatch.setattr(fake_timers, "installed", [lambda config: 1.0 / config["block"]])


def make(**options: Any) -> Any:
    """Shows with which block it has run: the larger, the faster."""

    @tune_function([{"block": 16}, {"block": 32}], timer=BY_FIXTURE, rtol=1e3, atol=1e3, **options)
    def numbered(x: Any, y: Any, block: int = 0, sign: int = 1) -> Any:
        return swiglu(x, y, block) * 0 + sign * block

    return numbered


def shown(run: Any, *arguments: Any) -> float:
    (value,) = run(*arguments).unique().tolist()
    return value


def test_a_graph_has_the_configuration_that_is_known(caplog: pytest.LogCaptureFixture) -> None:
    function, x = make(), torch.ones(3, 8)
    call = lambda x, y: function(x, y=y)
    with caplog.at_level(logging.WARNING, "tiledsl"):
        for backend in ("eager", "aot_eager"):
            torch._dynamo.reset()
            assert shown(torch.compile(call, fullgraph=True, backend=backend), x, x) == 16
    told = [each.getMessage() for each in caplog.records]
    assert told == ["autotune: numbered is not tuned for a call in a graph and runs with block=16"]
    assert function._results == {}
    assert function.tune(x, x).config == {"block": 32}
    torch._dynamo.reset()
    graph = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    assert [shown(graph, torch.ones(n, 8), torch.ones(n, 8)) for n in (3, 4, 3)] == [32, 16, 32]
    assert shown(torch.compile(lambda x: function(x, x, autotune=False), fullgraph=True, backend="eager"), x) == 16
    assert shown(torch.compile(lambda x: function(x, x, sign=-1), fullgraph=True, backend="eager"), x) == -16


def test_a_graph_reads_what_was_tuned_before_from_disk() -> None:
    x = torch.ones(5, 8)
    assert make().tune(x, x).config == {"block": 32}
    again = make()
    assert shown(torch.compile(lambda x: again(x, x), fullgraph=True, backend="eager"), x) == 32
    (result,) = again._results.values()
    assert (result.config, len(result.trials)) == ({"block": 32}, 2)
    forgetful = make(cache=False)
    assert shown(torch.compile(lambda x: forgetful(x, x), fullgraph=True, backend="eager"), x) == 16


def test_exports_meta_tensors_and_batches_tune_nothing() -> None:
    function, x = make(), torch.ones(3, 8)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x, x)

    for strict in (False, True):
        assert shown(torch.export.export(Module(), (x,), strict=strict).module(), x) == 16
    assert function(x.to("meta"), x.to("meta")).shape == (3, 8)
    assert shown(torch.vmap(function), x[None], x[None]) == 16
    assert function._results == {}


def test_nothing_is_tuned_while_a_cuda_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(TileError, match="numbered is not tuned for this call, and a CUDA graph is being captured"):
        make()(torch.ones(3, 8), torch.ones(3, 8))
