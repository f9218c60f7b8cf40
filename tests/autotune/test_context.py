"""Kernels tuned where a function calls them: which configuration each launch gets, and what the function returns."""

from __future__ import annotations

import inspect
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner

import tiledsl
from tests.autotune.programs import eager_scale, scale_builder
from tests.support import forked
from tiledsl.autotuner import tune_function, tune_in_context
from tiledsl.autotuner.context.active import active

TIMER = f"{__name__}:clock"
log: list[tuple[str, Any]] = []
times: dict[Any, float] = {}


def clock(config: dict[str, Any], call: Any) -> float:
    (value,) = config.values()
    call()
    return times.get(value.kwargs["BLOCK"] if isinstance(value, triton.Config) else value, 1.0)


@pytest.fixture(autouse=True)
def _forget() -> None:
    log.clear()
    times.clear()


def kernel(name: str, configs: int = 2, fails: tuple[int, ...] = (), **options: Any) -> Any:
    """x += 1, if it does not fail."""

    def add(x: Any, config: int = -1) -> None:
        log.append((name, config))
        if config in fails:
            raise RuntimeError(f"no {config}")
        x.add_(1)

    add.__name__ = name
    return tune_function([{"config": index} for index in range(configs)], cache=False, **options)(add)


def launched(name: str) -> list[Any]:
    return [config for each, config in log if each == name]


def in_context(function: Any, **options: Any) -> Any:
    given = {"n_warmup": 0, "n_repeat": 2, "timer": TIMER, "cache": False, **options}
    return tune_in_context(**given)(function)


def test_the_sequence_of_launches() -> None:
    """As Triton-distributed's documentation has it: two configurations, three configurations, two launches each."""
    first, second = kernel("a", 2), kernel("b", 3)
    times.update({0: 3.0, 1: 2.0, 2: 1.0})

    def step(x: Any) -> int:
        first(x)
        second(x)
        return len(log)

    run = in_context(step)
    value = run(torch.zeros(1))
    assert launched("a") == [0, 0, 1, 1, 1, 1, 1] and launched("b") == [0, 0, 1, 1, 2, 2, 2]
    assert [name for name, _ in log] == ["a", "b"] * 7
    assert value == 14  # of the last run
    run(torch.zeros(1))
    assert log[14:] == [("a", 1), ("b", 2)]
    first(torch.zeros(1))  # what was found counts outside, too
    assert log[16:] == [("a", 1)]


def test_warm_ups_do_not_count() -> None:
    a = kernel("a")
    taken = iter([9.0, 9.0, 1.0, 2.0, 3.0, 0.0, 0.0, 5.0, 5.0, 5.0])  # warm-ups of the second are the fastest
    times.clear()

    class Once:
        def __call__(self, config: Any, call: Any) -> float:
            return next(taken)

    globals()["clock_once"] = Once()
    in_context(lambda x: a(x), n_warmup=2, n_repeat=3, timer=f"{__name__}:clock_once")(torch.zeros(1))
    assert launched("a") == [0] * 5 + [1] * 5 + [0]


def test_two_keys_of_one_kernel() -> None:
    a = kernel("a")
    times.update({0: 1.0, 1: 2.0})

    def step(x: Any, y: Any) -> tuple[float, float]:
        a(x)
        a(y)
        return x.sum().item(), y.sum().item()

    x, y = torch.zeros(1), torch.zeros(2)
    assert in_context(step, n_repeat=1)(x, y) == (3.0, 6.0)  # each call had its own tensor
    assert launched("a") == [0, 0, 1, 1, 0, 0]


def test_one_key_called_twice_takes_two_turns_a_run() -> None:
    a = kernel("a")

    def step(x: Any) -> None:
        a(x)
        a(x)

    in_context(step)(torch.zeros(1))
    assert launched("a") == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        ((0,), [0, 1, 1, 2, 2, 1]),
        ((1,), [0, 0, 1, 2, 2, 0]),
        ((2,), [0, 0, 1, 1, 2, 0, 0]),
        ((1, 2), [0, 0, 1, 2, 0, 0]),
    ],
)
def test_what_raises_costs_only_itself(fails: tuple[int, ...], expected: list[int]) -> None:
    a = kernel("a", 3, fails)
    x = torch.zeros(1)
    in_context(lambda x: a(x))(x)
    assert launched("a") == expected


def test_if_all_fail() -> None:
    a = kernel("a", 2, (0, 1))
    with pytest.raises(tiledsl.TileError, match=r"none of 2 configurations of a works[\s\S]*RuntimeError: no 0"):
        in_context(lambda x: a(x))(torch.zeros(1))
    assert active.get() is None


def test_what_the_function_raises_ends_it() -> None:
    a = kernel("a")

    def step(x: Any) -> None:
        a(x)
        raise KeyError("of the function")

    before = inspect.getattr_static(Autotuner, "run")
    with pytest.raises(KeyError, match="of the function"):
        in_context(step)(torch.zeros(1))
    assert active.get() is None and inspect.getattr_static(Autotuner, "run") is before


def test_inside_one_another() -> None:
    """A function in context inside another one is a part of it; kernels inside a configuration are tuned before it."""
    inner, middle = kernel("inner"), in_context(lambda x: inner(x))
    times.update({0: 2.0, 1: 1.0, "x": 1.0, "y": 2.0})

    @tune_function([{"way": "x"}, {"way": "y"}], cache=False)
    def outer(x: Any, way: str = "") -> None:
        log.append(("outer", way))
        middle(x)

    in_context(lambda x: outer(x))(torch.zeros(1))
    assert launched("inner") == [0, 0, 1, 1, *[1] * 5]
    assert launched("outer") == ["x"] * 4 + ["x"] * 2 + ["y"] * 2 + ["x"]


def test_arguments_are_restored_between_runs() -> None:
    a = kernel("a")

    def step(x: Any, y: Any, z: Any) -> None:
        a(x)
        y.add_(1)
        z.add_(x)

    x, y, z = torch.full((1,), 5.0), torch.zeros(1), torch.full((1,), 7.0)
    in_context(step, restore_value=["x"], reset_to_zero="z")(x, y, z)
    assert (x.item(), y.item(), z.item()) == (6.0, 5.0, 6.0)


def test_a_new_key_in_every_run() -> None:
    a = kernel("a")
    sizes = iter(range(1, 1000))
    with pytest.raises(tiledsl.TileError, match="every run calls a with another key"):
        in_context(lambda: a(torch.zeros(next(sizes))))()


def test_results_are_kept_on_disk(tmp_path: Path, cache_dir: Path) -> None:
    times.update({0: 2.0, 1: 1.0})
    calls = str(tmp_path / "calls")

    def make(repeat: int = 2) -> Any:
        @tune_function([{"config": 0}, {"config": 1}])
        def kept(x: Any, config: int = -1) -> None:
            with open(calls, "a", encoding="utf-8") as file:
                file.write(str(config))

        return in_context(lambda x: kept(x), cache=True, n_repeat=repeat)

    make()(torch.zeros(1))
    assert Path(calls).read_text() == "00111"
    make()(torch.zeros(1))
    assert Path(calls).read_text() == "001111"  # one run
    make(repeat=3)(torch.zeros(1))
    assert Path(calls).read_text() == "001111" + "0001111"
    assert "tuning kept in" in next(cache_dir.rglob("tuning.log")).read_text()


class Compiled:
    """Stands for a jitted function of Triton: adds BLOCK to where `out_ptr` points."""

    arg_names = ["out_ptr", "n", "BLOCK"]

    def __init__(self, fails: int = 0) -> None:
        self.fails = fails
        self.fn = lambda out_ptr, n, BLOCK: None

    def run(self, out_ptr: Any, n: int, BLOCK: int, **options: Any) -> None:
        log.append(("triton", BLOCK))
        if self.fails == BLOCK:
            raise ValueError("no such block")
        out_ptr.add_(BLOCK)


def tritons(fails: int = 0, **hooks: Any) -> Any:
    given = {"reset_to_zero": None, "restore_value": None, **hooks}
    configs = [triton.Config({"BLOCK": block}) for block in (1, 2, 4)]
    return Autotuner(Compiled(fails), Compiled.arg_names, configs, ["n"], **given)


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [({}, 15.0 + 4.0), ({"reset_to_zero": ["out_ptr"]}, 4.0), ({"restore_value": ["out_ptr"]}, 5.0 + 4.0)],
)
def test_kernels_of_triton(hooks: dict[str, Any], expected: float) -> None:
    """They are launched in place, with what their hooks ask for; what a try wrote is undone if it is to be restored."""
    times.update({1: 3.0, 2: 2.0, 4: 1.0})
    autotuned, original = tritons(**hooks), inspect.getattr_static(Autotuner, "run")
    out = torch.full((1,), 5.0)

    def step() -> float:
        autotuned[(1,)](out, 8)
        return float(out)

    assert in_context(step)() == expected + (4.0 if not hooks else 0.0)
    assert launched("triton") == [1, 1, 2, 2, 4, 4, 4]
    assert inspect.getattr_static(Autotuner, "run") is original
    assert [each.kwargs["BLOCK"] for each in autotuned.cache.values()] == [4]
    autotuned[(1,)](out, 8)  # known to Triton from here on
    assert launched("triton")[7:] == [4]


IN_THE_INTERPRETER = """
import sys
sys.path.insert(0, {root!r})
import torch
from tests.gpu.triton_kernels import add_one
from tiledsl.autotuner import tune_in_context

runs, total = [], torch.zeros(5000)

def step(x):
    runs.append(1)
    add_one(total)
    return add_one(x)

for _ in range(2):
    values = tune_in_context(step, n_warmup=1, n_repeat=2)(torch.zeros(300))
    print(len(runs), values.unique().tolist(), total.unique().tolist(), sorted(key[0] for key in add_one.kernel.cache))
    add_one.kernel.cache.clear()
"""


def test_triton_itself(tmp_path: Path, cache_dir: Path) -> None:
    """Two keys of a real kernel that works in place, in Triton's interpreter; the second time from disk."""
    script = tmp_path / "script.py"
    script.write_text(IN_THE_INTERPRETER.format(root=str(Path(__file__).resolve().parents[2])))
    done = forked.run([script], cwd=tmp_path, env={**os.environ, "TRITON_INTERPRET": "1"}, timeout=200)
    assert done.stdout.splitlines() == ["10 [1.0] [1.0] [300, 5000]", "11 [1.0] [2.0] [300, 5000]"], done.stderr


def test_a_block_that_triton_cannot_launch() -> None:
    autotuned = tritons(fails=2)
    in_context(lambda out: autotuned[(1,)](out, 8))(torch.zeros(1))
    assert launched("triton") == [1, 1, 2, 4, 4, 1]


def test_other_threads_and_calls_outside_tune_as_ever() -> None:
    benched: list[str] = []
    autotuned = tritons(do_bench=lambda call, quantiles: benched.append(threading.current_thread().name) or [1.0] * 3)
    inside = kernel("a")

    def step(x: Any) -> None:
        inside(x)
        if not benched:
            thread = threading.Thread(target=lambda: autotuned[(1,)](x, 8), name="other")
            thread.start()
            thread.join()

    in_context(step)(torch.zeros(1))
    assert benched == ["other"] * 3 and launched("triton") == [1]


def test_two_functions_at_once() -> None:
    """When the first of them ends, the kernels of the other one are still tuned in context."""
    autotuned, other, original = tritons(), tritons(), inspect.getattr_static(Autotuner, "run")
    values: list[float] = []

    def step(out: Any) -> float:
        if not values:
            thread = threading.Thread(target=lambda: values.append(in_context(within)(torch.zeros(1))))
            thread.start()
            thread.join()
            log.clear()
        autotuned[(1,)](out, 8)
        return float(out)

    def within(out: Any) -> float:
        other[(1,)](out, 8)
        return float(out)

    assert in_context(step)(torch.zeros(1)) == 2 * (1 + 2 + 4) + 1 and values == [15.0]
    assert launched("triton") == [1, 1, 2, 2, 4, 4, 1]
    assert inspect.getattr_static(Autotuner, "run") is original


def test_what_replaces_tritons_function_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    autotuned, original = tritons(), inspect.getattr_static(Autotuner, "run")
    passed: list[int] = []

    def step(out: Any) -> None:
        if not passed:
            ours = Autotuner.run

            def theirs(self: Any, *arguments: Any, **keywords: Any) -> Any:
                passed.append(1)
                return ours(self, *arguments, **keywords)

            monkeypatch.setattr(Autotuner, "run", theirs)
        autotuned[(1,)](out, 8)

    in_context(step)(torch.zeros(1))
    assert launched("triton") == [1, 1, 2, 2, 4, 4, 1] and len(passed) == 7
    tritons()  # outside
    monkeypatch.undo()
    assert inspect.getattr_static(Autotuner, "run") is not original  # as it was found by who replaced it: it passes on
    Autotuner.run = original
    again = tritons()
    in_context(lambda out: again[(1,)](out, 8))(torch.zeros(1))
    assert launched("triton")[7:] == [1, 1, 2, 2, 4, 4, 1]
    assert inspect.getattr_static(Autotuner, "run") is original


def test_always_tune() -> None:
    a, autotuned = kernel("a"), tritons()

    def step(x: Any) -> None:
        a(x)
        autotuned[(1,)](x, 8)

    for _ in range(2):
        log.clear()
        with tiledsl.settings(always_tune=True):
            in_context(step, n_repeat=1)(torch.zeros(1))
        assert launched("a") == [0, 1, 0, 0] and launched("triton") == [1, 2, 4, 1]


def test_one_configuration_runs_as_it_is() -> None:
    a = kernel("a", 2)
    assert in_context(lambda x: a(x, config=1) or len(log))(torch.zeros(1)) == 1 and launched("a") == [1]


def test_kernels_of_our_own() -> None:
    """Lazy style: the builder's call gives what runs with the configuration whose turn it is."""
    times.update({32: 2.0, 64: 1.0})
    scale = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(tiledsl.jit(out_idx=-1)(scale_builder))
    blocks: list[int] = []

    def step(A: Any) -> Any:
        run = scale(size=64)
        blocks.append(run.params[0].shape[0])
        return run(A)

    A = torch.randn(64)
    run = in_context(step)
    torch.testing.assert_close(run(A), A * 2)
    assert len(blocks) == 5
    result = scale(size=64)
    assert (result.config, result.from_cache, result.latency) == ({"block": 64}, "memory", 1.0)
    torch.testing.assert_close(run(A), A * 2)
    assert len(blocks) == 6


def test_kernels_that_files_serve(tmp_path: Path, cache_dir: Path) -> None:
    plain = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(tiledsl.jit(out_idx=-1)(scale_builder))
    plain.tune_into(tmp_path, [{"size": 64}])
    wanted = plain.with_options(tuned=str(tmp_path))
    runs: list[int] = []

    def step(A: Any) -> Any:
        runs.append(1)
        return wanted(size=64)(A)

    A = torch.randn(64)
    torch.testing.assert_close(in_context(step)(A), A * 2)
    assert len(runs) == 1


def test_eager_kernels() -> None:
    doubled = tiledsl.autotune(configs=[{"block": 32}, {"block": 64}])(eager_scale)
    times.update({32: 2.0, 64: 1.0})
    A = torch.randn(96)
    torch.testing.assert_close(in_context(lambda A: doubled(doubled(A)))(A), A * 4)
    assert doubled.compile(A).config == {"block": 64} and doubled.compile(A).from_cache == "memory"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tune_in_context(n_repeat=0), "n_repeat is 0; it must be a whole number, at least 1"),
        (lambda: tune_in_context(n_warmup=True), "n_warmup is True"),
        (lambda: tune_in_context(3), "stands above a function"),
        (lambda: tune_in_context(restore_value="y")(lambda x: x), "has no parameter 'y'"),
        (lambda: tune_in_context(group="all"), "group is 'all'"),
    ],
)
def test_mistakes(wrong: Any, message: str) -> None:
    with pytest.raises(tiledsl.TileError, match=message):
        wrong()
