"""What every test gets: caches of its own, no GPU tests without a GPU, steady hypothesis runs."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

ROOT = Path(__file__).resolve().parent.parent

hypothesis_settings.register_profile("dev", deadline=None)
hypothesis_settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis_settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_configure(config: pytest.Config) -> None:
    # Compiled Triton kernels are kept between runs, but in the checkout: ~/.triton may belong to someone's work.
    cache = getattr(config, "cache", None)  # absent under -p no:cacheprovider
    if cache is not None:
        os.environ.setdefault("TRITON_CACHE_DIR", str(cache.mkdir("triton")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """What is imported and collected stays: a third of the time goes to a collector that looks through it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else libraries report what they find alive when Python ends


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    reason = _why_no_gpu() if on_gpu else ""
    if reason:
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_gpu() -> str:
    if importlib.util.find_spec("torch") is None:
        return "needs a CUDA device; torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "needs a CUDA device; torch finds none here"


@pytest.fixture(scope="session", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No TILEDSL_ variable of the user counts in a test, and its cache is a folder of this worker."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("TILEDSL_") and not name.startswith("TILEDSL_TEST_"):
                patch.delenv(name)
        patch.setenv("TILEDSL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def parse_table(_own_settings: None) -> Path:
    """The folder of a cache that has the parser's table, which takes a second to make: to be copied to others."""
    from tiledsl.frontend import parser

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "_machine", None)  # a test before may have had its table elsewhere
        parser.parse_module("x = 1")
    return Path(os.environ["TILEDSL_CACHE_DIR"], "grammar")


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, parse_table: Path) -> Path:
    """A cache for one test, with nothing but the parser's table in it."""
    folder = tmp_path_factory.mktemp("tiledsl-cache")
    shutil.copytree(parse_table, folder / "grammar")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
def triton36() -> str:
    """The interpreter of the environment with Triton 3.6.0 and nothing else (no torch, no numpy), for subprocesses."""
    python = os.environ.get("TILEDSL_TEST_TRITON36", "")
    if not python:
        pytest.skip("needs the environment with Triton 3.6.0, which `make test` makes")
    return python


@pytest.fixture
def fresh_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that torch has traced, or that was cached, in other tests."""
    import torch

    torch._dynamo.reset()
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
