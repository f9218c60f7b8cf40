"""Passes of users in the tuner: chosen between, part of keys, refused where their code cannot be told."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tiledsl
import tiledsl.language as T
from tests.support.pass_of_a_user import Nothing, Subtract
from tiledsl.autotuner.decorator import AutotunedFunction
from tiledsl.autotuner.space import check_configs, config_key
from tiledsl.autotuner.tuned.arguments import in_file
from tiledsl.errors import TileError
from tiledsl.ir.pass_manager import PASSES
from tiledsl.passes.user_passes import normalised

PLACE = "after:promote-buffers"


def tuned(configs: Any, passes: Any = None, **options: Any) -> AutotunedFunction:
    @tiledsl.autotune(configs=configs, target="interpret", ref_prog=lambda a, b: a + b, **options)
    @tiledsl.jit(out_idx=-1, passes=passes)
    def add(N, block=32):
        @T.prim_func
        def add(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, block)) as bx:
                for i in T.Parallel(block):
                    C[bx * block + i] = A[bx * block + i] + B[bx * block + i]

        return add

    return add


def unknown_pass() -> Any:
    @dataclass(frozen=True)
    class Local(Nothing):
        name = "users-local"

    del PASSES["users-local"]
    return Local()


def test_a_configuration_chooses_passes(cache_dir: Path) -> None:
    space = tiledsl.space(block=[32], passes=[{PLACE: [Subtract()]}, {PLACE: [Nothing()]}])
    result = tuned(space, {"before:dce": Nothing("first")})(64)
    assert [trial.status for trial in result.trials] == ["mismatch", "ok"] and result.from_cache == ""
    assert result.config == {"block": 32, "pass_configs": normalised({}, {PLACE: [Nothing()]})}
    assert [stage.spec for stage in result.kernel.stages if stage.name == "users-nothing"] == [
        "users-nothing",
        'users-nothing{note="first"}',
    ]
    again = tuned(space, {"before:dce": Nothing("first")})(64)
    assert again.from_cache == "disk" and again.config == result.config
    assert again.kernel.verify().ok and again.kernel.pass_configs == result.kernel.pass_configs
    other = tuned(space, {"before:dce": Nothing("second")})(64)
    assert other.from_cache == ""


def test_verification_disproves_it_by_its_name(cache_dir: Path) -> None:
    function = tuned([{"block": 32, "passes": {PLACE: [Subtract()]}}], verify=True).with_options(ref_prog=None)
    with pytest.raises(TileError, match=r"disproved: 1; .*\n.*users-subtract"):
        function(64)


def test_passes_are_in_the_key() -> None:
    keys = [tuned([{"block": 32}], passes).key(64) for passes in (None, {PLACE: Nothing()}, {PLACE: Nothing("x")})]
    assert len({key.digest for key in keys}) == 3
    assert tuned([{"block": 32}], {PLACE: Nothing()}).key(64) == keys[1]
    assert tuned([{"block": 32}], {PLACE: unknown_pass()}).key(64) is None


def test_configurations_are_texts() -> None:
    signature = inspect.signature(lambda N, block: None)
    given = {"block": 1, "pass_configs": {"cse.loads": False}, "passes": {PLACE: Nothing(times=2)}}
    (checked,) = check_configs([given], signature, "f")
    assert checked == {"block": 1, "pass_configs": normalised({"cse.loads": False}, {PLACE: Nothing(times=2)})}
    assert check_configs([checked], signature, "f") == [checked]
    with pytest.raises(TileError, match="configurations 0 and 1 are the same"):
        check_configs([given, checked], signature, "f")
    with pytest.raises(TileError, match="of f: configuration 0 names passes wrongly: passes: 'dce' is no place"):
        check_configs([{"passes": {"dce": Nothing()}}], signature, "f")
    own = inspect.signature(lambda passes: None)
    assert check_configs([{"passes": 3}], own, "f") == [{"passes": 3}]
    (unknown,) = check_configs([{"passes": {PLACE: unknown_pass()}}], signature, "f")
    assert "opaque:" in config_key(unknown)
    with pytest.raises(TileError, match="the code of the pass users-local cannot be told: it cannot be in a file"):
        in_file(unknown, [])
    assert in_file(checked, []) == checked
