"""TileLang as a candidate: what it is given, how its configurations are compiled, what is said of those that fail."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import tilelang as peer
from benchmarks.row import Context, Ready, Unavailable
from benchmarks.rows import all_rows
from tests.benchmarks.suite_fakes import doubling

SPEED = {1: 3.0, 2: 1.0, 4: 2.0}  # milliseconds of a kernel with so many stages


def building(compile: Callable[..., Any]) -> Any:
    return SimpleNamespace(compile=compile)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Put a stand-in for TileLang in place, whose programs are compiled by a function."""

    def install(compile: Callable[..., Any]) -> None:
        monkeypatch.setitem(sys.modules, "tilelang", ModuleType("tilelang"))
        monkeypatch.setattr(peer, "translated", lambda program: SimpleNamespace(build=building(compile)))
        monkeypatch.setattr(peer, "_timed", lambda call: SPEED[call()])

    return install


def prepare(*stages: int, tune: bool = True, seconds: float | None = None) -> Ready:
    configs = [{"num_stages": each} for each in stages]
    candidate = peer.tilelang_candidate("a program", "build", {"M": 8}, configs)
    return candidate.prepare(Context("cpu", tune=tune, seconds=seconds), doubling(), ())


def kernel(M: int, num_stages: int) -> Callable[[], int]:
    if num_stages > 4:
        raise RuntimeError(f"{num_stages} stages do not fit\nand more")
    return lambda: num_stages


def test_the_fastest_configuration_is_taken_and_failures_are_named(installed: Any) -> None:
    installed(kernel)
    ready = prepare(1, 8, 2, 4)
    assert ready.config == {"num_stages": 2} and ready.own_outputs and ready.bind((), ())() == 2
    assert [each["config"]["num_stages"] for each in ready.rivals] == [2, 4, 1, 8]
    assert [each.get("ms") for each in ready.rivals] == [1.0, 2.0, 3.0, None]
    assert ready.rivals[-1]["why"] == "RuntimeError: 8 stages do not fit"


def test_without_tuning_only_the_first_is_compiled(installed: Any) -> None:
    asked = []
    installed(lambda M, num_stages: asked.append(num_stages) or kernel(M, num_stages))
    assert prepare(4, 2, tune=False).config == {"num_stages": 4} and asked == [4]


def test_where_none_works_the_row_has_no_time(installed: Any) -> None:
    installed(kernel)
    with pytest.raises(Unavailable, match="no configuration works: RuntimeError: 8 stages do not fit"):
        prepare(8, 16)


def test_configurations_are_compiled_at_the_same_time() -> None:
    together = threading.Barrier(4, timeout=20)

    def compile(number: int) -> int:
        together.wait()
        return number

    assert peer.compiled(building(compile), {}, [{"number": n} for n in range(4)], 30) == [0, 1, 2, 3]


def test_a_compilation_that_hangs_is_reported_and_not_waited_for(installed: Any) -> None:
    release = threading.Event()

    def compile(M: int, num_stages: int) -> Any:
        if num_stages == 1:
            release.wait(60)
        return kernel(M, num_stages)

    installed(compile)
    try:
        ready = prepare(1, 2, seconds=0.2)
    finally:
        release.set()
    assert ready.config == {"num_stages": 2}
    assert ready.rivals[-1] == {
        "config": {"num_stages": 1}, "status": "failed", "why": "TimeoutError: not compiled after 0.2 s"
    }  # fmt: skip


def test_programs_are_translated_with_annotations_that_are_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """TileLang evaluates texts among the names that the body of a program mentions; others are missing."""
    stand_in, language = ModuleType("tilelang"), ModuleType("tilelang.language")
    stand_in.__dict__.update(jit=lambda **options: lambda function: function, language=language)
    monkeypatch.setitem(sys.modules, "tilelang", stand_in)
    monkeypatch.setitem(sys.modules, "tilelang.language", language)
    peer.translated.cache_clear()
    try:
        for program, function in (("tilelang_style", "staged_matmul"), ("gemm", "matmul")):
            module = peer.translated(f"benchmarks.programs.{program}")
            assert module.tiledsl is stand_in and module.T is language and hasattr(module, function)
            assert "annotations" not in vars(module)
    finally:
        peer.translated.cache_clear()


def test_few_configurations_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, set[int]] = {}

    def count(builder: Any, arguments: Any, configs: Any, seconds: float) -> list[Any]:
        counts.setdefault(row.family, set()).add(len(configs))
        return [RuntimeError("not here") for _ in configs]

    monkeypatch.setitem(sys.modules, "tilelang", ModuleType("tilelang"))
    programs = SimpleNamespace(matmul=None, staged_matmul=None, one_loop_attention=None)
    monkeypatch.setattr(peer, "translated", lambda program: programs)
    monkeypatch.setattr(peer, "compiled", count)
    for row in all_rows():
        for each in row.candidates:
            if each.kind == "tilelang":
                with pytest.raises(Unavailable, match="not here"):
                    each.prepare(Context(), row, ())
    assert set(counts) == {"gemm", "attention"} and set().union(*counts.values()) == {3, 4}
