"""A tuner called as Triton-distributed's is, and what its callers may do with what they get."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

import tiledsl
from tests.autotune.programs import scale_builder, twice
from tiledsl.autotuner import tune_function
from tiledsl.autotuner.call_flags import by_call
from tiledsl.errors import TileError

TIMER = "tests.autotune.fake_timers:by_block"


def make(**options: Any) -> Any:
    used: list[Any] = []

    @tune_function([{"block": 32}, {"block": 64}, {"block": 16}], **{"timer": TIMER, "cache": False, **options})
    def scale(A: Any, B: Any = None, block: int = 0) -> Any:
        used.append(block)
        return A * 2

    return scale, used


def test_the_seeds_calls_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    scale, used = make()
    assert torch.equal(scale(torch.ones(2), autotune=False), torch.full((2,), 2.0)) and used == [32]
    scale(torch.ones(2), autotune_verbose=True)
    assert used[-1] == 64 and "block=64" in capsys.readouterr().err
    scale(torch.ones(3))
    assert capsys.readouterr().err == "" and not logging.getLogger("tiledsl").isEnabledFor(logging.INFO)
    with pytest.raises(TileError, match="scale is called with 'block', which is a tunable"):
        scale(torch.ones(2), block=16, autotune_allow_arg_overwrite=False)
    scale(torch.ones(2), block=16, autotune_allow_arg_overwrite=True)
    assert used[-1] == 16
    with pytest.raises(TileError, match="is for processes of torch"):
        scale(torch.ones(7), autotune_pg=True)

    @tune_function([{"block": 32}], timer=TIMER)
    def own(A: Any, autotune: bool, block: int) -> Any:
        return A if autotune else A * 0

    assert not own(torch.ones(2), autotune=False).any()


def test_a_kernel_takes_them_too() -> None:
    kernel = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}], ref_prog=twice, timer=TIMER)(
        tiledsl.jit(out_idx=-1)(scale_builder)
    )
    assert kernel(autotune=False).config == {"block": 32}
    assert kernel(autotune_verbose=True).config == {"block": 64}
    with pytest.raises(TileError, match="scale_builder is called with 'block', which is a tunable"):
        kernel(block=16, autotune_allow_arg_overwrite=False)


def test_each_sense_of_pruning_has_its_name() -> None:
    keep, _ = make(prune_fn=lambda config, *given, **named: config["block"] < 64)
    assert keep.tune(torch.ones(2)).config == {"block": 32}
    named, _ = make(prune_fn=lambda config, A: config["block"] <= A.numel())
    assert named.tune(torch.ones(16)).config == {"block": 16}
    other, _ = make(prune_fn=lambda config, x, y: config["block"] <= x.numel() + y)
    assert other.tune(torch.ones(16), 16).config == {"block": 32}
    assert other.tune(torch.ones(16), 16).trials[1].message == "left out by prune_fn"
    wrong, _ = make(prune=lambda config: config["block"] < 64)
    with pytest.raises(TileError, match="prune returns True for block=32, which might mean either"):
        wrong.tune(torch.ones(2))
    with pytest.raises(TileError, match="prune_fn raises KeyError"):
        make(prune_fn=lambda config: config["blok"])[0].tune(torch.ones(2))
    kernel = tiledsl.autotune(
        configs=[{"block": 32}, {"block": 64}], timer=TIMER, prune_fn=lambda config, size: config["block"] < size
    )(tiledsl.jit(out_idx=-1)(scale_builder))
    assert kernel(size=64).config == {"block": 32}


def test_key_fn_takes_the_arguments_as_the_function_does() -> None:
    scale, used = make(key_fn=lambda x, *rest: x.dim())
    scale(torch.ones(2), 1)
    count = len(used)
    scale(torch.ones(5), 2)
    assert len(used) == count + 1
    scale(torch.ones(5, 1), 2)
    assert len(used) > count + 2
    with pytest.raises(TileError, match="key and key_fn say the same in two ways"):
        make(key_fn=len, key=len)
    assert by_call(lambda a, b=3, **more: (a, b, more), {"a": 1, "c": 2}) == (1, 3, {"c": 2})
    assert by_call(lambda x, y: (x, y), {"a": 1, "c": 2}) == (1, 2)
    assert by_call(lambda config, *given: given, {"a": 1, "c": 2}, {}) == (1, 2)


def test_config_callback_changes_what_is_tried() -> None:
    def half(config: dict[str, Any]) -> Any:
        config["block"] //= 2
        return {"block": 8} if config["block"] == 16 else None

    scale, used = make(config_callback=half)
    result = scale.tune(torch.ones(2))
    assert sorted(trial.config["block"] for trial in result.trials) == [8, 32] and 64 not in used
    with pytest.raises(TileError, match="config_callback returns 3 for block=32, not a dict or None"):
        make(config_callback=lambda config: 3)[0].tune(torch.ones(2))
    with pytest.raises(TileError, match="config_callback raises ZeroDivisionError"):
        make(config_callback=lambda config: 1 / 0)[0].tune(torch.ones(2))


def test_what_is_returned_may_be_changed() -> None:
    scale, _ = make()
    for _ in range(2):
        result = scale.tune(torch.ones(2))
        assert result.config == {"block": 64} == result.best.config
        result.config["block"] = result.trials[1].config["block"] = 99
    kernel = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}], ref_prog=twice, timer=TIMER)(
        tiledsl.jit(out_idx=-1)(scale_builder)
    )
    for get in (kernel, kernel, kernel, kernel.compile, kernel.compile):
        result = get()
        assert result.config == {"block": 64}
        result.config["block"] = 99
    result = kernel.compile()
    result.trials[1].config["block"] = 99
    assert kernel.compile().best.config == {"block": 64}


def test_hits_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fresh() -> Any:
        return tiledsl.autotune(configs=[{"block": 32}, {"block": 64}], ref_prog=twice, timer=TIMER)(
            tiledsl.jit(out_idx=-1)(scale_builder)
        )

    kernel = fresh()
    kernel.compile()
    with caplog.at_level(logging.INFO, "tiledsl"):
        kernel.compile()
        assert caplog.messages == ["autotune: scale_builder runs with block=64, from memory"]
        caplog.clear()
        fresh().compile()
    assert any(each.startswith("autotune: scale_builder runs with block=64, from /") for each in caplog.messages)
