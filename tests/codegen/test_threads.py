"""Code for one thread: what is emitted, and that both Tritons compile it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tiledsl
from tests.support.thread_programs import Program


@pytest.mark.parametrize("version", ["newest", "3.6"])
def test_both_tritons_compile_random_programs(
    compile_modules: Callable[..., Any], version: str, request: pytest.FixtureRequest
) -> None:
    options = {"python": request.getfixturevalue("triton36")} if version == "3.6" else {}
    programs = {f"seed{seed}": tiledsl.parse(Program(seed).source) for seed in (2, 5, 11, 14, 21)}
    modules = {name: tiledsl.compile(program, target="cuda:90").module for name, program in programs.items()}
    failed = [(name, error) for name, error, _ in compile_modules(modules, full=False, **options) if error]
    assert not failed, "\n".join(f"{name}: {error}\n{modules[name].source}" for name, error in failed)
