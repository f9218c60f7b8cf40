"""Code for one thread: what is emitted, and that both Tritons compile it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tiledsl
from tests.support.thread_programs import Program


@pytest.mark.parametrize("version", [pytest.param("newest", marks=pytest.mark.slow), "3.6"])
def test_both_tritons_compile_random_programs(
    compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    programs = {f"seed{seed}": tiledsl.parse(Program(seed).source) for seed in (2, 5, 11, 14, 21)}
    modules = {name: tiledsl.compile(program, target="cuda:90").module for name, program in programs.items()}
    failed = [(name, error) for name, error, _ in compile_modules(modules, full=False, **options) if error]
    assert not failed, "\n".join(f"{name}: {error}\n{modules[name].source}" for name, error in failed)


def test_threads_wait_where_they_exchange_in_global_memory() -> None:
    text = """@T.prim_func
def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32"), C: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        B[tx] = A[tx]
        T.sync_threads()
        C[tx] = {}[63 - tx]
"""
    sources = [tiledsl.compile(tiledsl.parse(text.format(name)), target="cuda:90").source for name in "BA"]
    lines = [line.strip() for line in sources[0].splitlines() if line.strip().startswith(("tl.", "B_tile", "A_tile"))]
    assert lines == [
        "A_tile = tl.load(A + tl.arange(0, 64))",
        "tl.store(B + tl.arange(0, 64), A_tile)",
        "tl.debug_barrier()",
        "B_tile = tl.load(B + 63 + tl.arange(0, 64) * -1)",
        "tl.store(C + tl.arange(0, 64), B_tile)",
    ]
    assert "debug_barrier" not in sources[1]
