"""TileLang's environment variables and cache switches, as tiledsl's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import forked
from tiledsl.compat.environment import Environment
from tiledsl.settings import current


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    for name in (*os.environ, "TRITON_CACHE_DIR"):
        if name.startswith(("TILELANG_", "TILEDSL_", "TRITON_CACHE")):
            monkeypatch.delenv(name, raising=False)
    saved = dict(os.environ)
    yield Environment()
    os.environ.clear()
    os.environ.update(saved)


def test_the_folder_of_caches(env: Environment, tmp_path: Path) -> None:
    assert str(current().cache_dir) == env.TILELANG_CACHE_DIR
    os.environ["TILELANG_CACHE_DIR"] = str(tmp_path / "a")
    env.apply()
    assert current().cache_dir == tmp_path / "a" and str(tmp_path / "a") == env.TILELANG_CACHE_DIR
    env.TILELANG_CACHE_DIR = tmp_path / "b"
    assert current().cache_dir == tmp_path / "b"


def test_a_setting_of_the_users_wins(env: Environment, tmp_path: Path) -> None:
    os.environ["TILEDSL_CACHE_DIR"] = str(tmp_path / "own")
    os.environ["TILELANG_CACHE_DIR"] = str(tmp_path / "other")
    env.apply()
    assert current().cache_dir == tmp_path / "own"


@pytest.mark.parametrize("way", ["call", "variable", "tuner"])
def test_caches_that_are_off(env: Environment, way: str) -> None:
    if way == "call":
        env.disable_cache()
    else:
        os.environ["TILELANG_DISABLE_CACHE" if way == "variable" else "TILELANG_AUTO_TUNING_DISABLE_CACHE"] = "True"
        env.apply()
    assert current().always_tune
    assert env.is_cache_enabled() == (way == "tuner") and env.is_autotune_cache_disabled() == (way == "tuner")
    assert ("TRITON_CACHE_DIR" in os.environ) == (way != "tuner")
    for name in ("TILELANG_DISABLE_CACHE", "TILELANG_AUTO_TUNING_DISABLE_CACHE"):
        os.environ.pop(name, None)
    env.enable_cache()
    assert not current().always_tune and "TRITON_CACHE_DIR" not in os.environ


def test_processes_and_log_level(env: Environment) -> None:
    os.environ.update({"TILELANG_AUTO_TUNING_CPU_COUNTS": "-1", "TILELANG_AUTO_TUNING_MAX_CPU_COUNT": "3"})
    os.environ["TILELANG_VERBOSE"] = "1"
    env.apply()
    assert (current().jobs, current().log_level) == (3, "info")
    assert ("0", os.environ.get("CUDA_HOME")) == (env.TILELANG_TMP_DIR, env.CUDA_HOME)
    with pytest.raises(AttributeError, match=r"tilelang\.env has no 'teleport'"):
        env.teleport


def test_a_script_that_sets_them_before_its_first_kernel(env: Environment, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        f"os.environ['TILELANG_CACHE_DIR'] = {str(tmp_path / 'cache')!r}\n"
        "import torch, tilelang, tilelang.language as T\n"
        "from tilelang import env\n"
        "tilelang.disable_cache()\n"
        "@tilelang.jit(out_idx=[1])\n"
        "def double():\n"
        "    @T.prim_func\n"
        "    def main(A: T.Tensor((8,), 'float32'), B: T.Tensor((8,), 'float32')):\n"
        "        with T.Kernel(1, threads=32):\n"
        "            for i in T.Parallel(8):\n"
        "                B[i] = A[i] * 2\n"
        "    return main\n"
        "assert double()(torch.ones(8)).tolist() == [2.0] * 8\n"
        "print(env.TILELANG_CACHE_DIR, tilelang.is_cache_enabled(), os.environ['TILEDSL_ALWAYS_TUNE'])\n"
    )
    done = forked.run(["-m", "tiledsl", "run", script])
    assert (done.stdout, done.returncode) == (f"{tmp_path / 'cache'} False 1\n", 0), done.stderr
    assert list((tmp_path / "cache" / "modules").iterdir())
