"""`tilelang.testing`: marks for tests, seeds, comparison. Works with and without pytest."""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
import unittest
from collections.abc import Callable
from typing import Any

from tiledsl.compat.arch import determine_target, get_target_compute_version, parse_compute_version
from tiledsl.compat.tensors import torch_assert_close

__all__ = [
    "main", "process_func", "regression", "requires_cdna", "requires_cuda", "requires_cuda_compute_version",
    "requires_cuda_compute_version_eq", "requires_cuda_compute_version_ge", "requires_cuda_compute_version_gt",
    "requires_cuda_compute_version_le", "requires_cuda_compute_version_lt", "requires_gfx950", "requires_llvm",
    "requires_metal", "requires_package", "requires_rocm", "set_random_seed", "torch_assert_close",
]  # fmt: skip

Test = Callable[..., Any]


def _skipped(reason: str) -> Callable[[Test], Test]:
    if importlib.util.find_spec("pytest") is not None:
        import pytest

        return pytest.mark.skip(reason=reason)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def skip(*_: Any, **__: Any) -> None:
            raise unittest.SkipTest(reason)

        return skip

    return decorate


def _requirement(holds: Callable[[], bool], reason: str) -> Callable[..., Any]:
    """A decorator usable as `@requires_x` and `@requires_x()`."""

    def mark(test: Test | None = None) -> Any:
        decorate: Callable[[Test], Test] = (lambda inner: inner) if holds() else _skipped(reason)
        return decorate if test is None else decorate(test)

    return mark


def _kind() -> str:
    return str(determine_target())


def _capability() -> tuple[int, int]:
    return parse_compute_version(get_target_compute_version()) if _kind() != "hip" else (0, 0)


requires_cuda = _requirement(lambda: _kind() in ("cuda", "interpret"), "needs an NVIDIA GPU")
requires_rocm = _requirement(lambda: _kind() == "hip", "needs an AMD GPU")
requires_cdna = requires_gfx950 = requires_rocm
requires_metal = _requirement(lambda: False, "needs Metal")
requires_llvm = _requirement(lambda: False, "needs a build with LLVM")


def _compare(relation: Callable[[tuple[int, int], tuple[int, int]], bool], sign: str) -> Callable[..., Any]:
    def require(major: int, minor: int = 0) -> Callable[[Test], Test]:
        needed = (major, minor)
        if relation(_capability(), needed):
            return lambda test: test
        return _skipped(f"needs compute capability {sign} {major}.{minor}")

    return require


requires_cuda_compute_version_ge = _compare(lambda have, want: have >= want, ">=")
requires_cuda_compute_version_gt = _compare(lambda have, want: have > want, ">")
requires_cuda_compute_version_le = _compare(lambda have, want: have <= want, "<=")
requires_cuda_compute_version_lt = _compare(lambda have, want: have < want, "<")
requires_cuda_compute_version_eq = _compare(lambda have, want: have == want, "==")


def requires_cuda_compute_version(major: int, minor: int = 0, mode: str = "ge") -> Any:
    """A decorator: skip unless the compute capability compares as `mode` says (ge, gt, le, lt, eq)."""
    return globals()[f"requires_cuda_compute_version_{mode}"](major, minor)


def requires_package(name: str, *_: Any, **__: Any) -> Callable[[Test], Test]:
    """A decorator: skip unless the package can be imported."""
    if importlib.util.find_spec(name) is not None:
        return lambda test: test
    return _skipped(f"needs the package {name}")


def set_random_seed(seed: int = 42) -> None:
    """Seed Python's, NumPy's and torch's generators."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def process_func(func: Callable[..., float], name: str | None = None, /, **arguments: Any) -> float:
    """Print and return what a measuring function returns, in milliseconds."""
    latency = func(**arguments)
    print(f"{name or getattr(func, '__name__', 'latency')}: {latency} ms")
    return latency


def regression(prefixes: tuple[str, ...] = ("regression_",)) -> None:
    """Run the caller's functions whose names start with `regression_`."""
    for name, value in list(sys._getframe(1).f_globals.items()):
        if callable(value) and name.startswith(tuple(prefixes)):
            value()


def main() -> None:
    """Run the calling file's tests with pytest, in this process, and exit with its status."""
    import pytest

    sys.exit(pytest.main([sys._getframe(1).f_code.co_filename, "-p", "no:cacheprovider", *sys.argv[1:]]))
