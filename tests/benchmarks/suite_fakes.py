"""A device that only counts, and rows whose candidates are a line of torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.row import Candidate, Context, Ready, Row, Unavailable


@dataclass
class FakeRunner:
    launch: Callable[[], Any]
    calls: int
    how: str = "graph"


@dataclass
class FakeClock:
    """Calls add to `now` by themselves (see `takes`); a throttled device is slower when it has not idled."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)
    rested: bool = False
    slowdown: float = 1.0

    def takes(self, name: str, milliseconds: float) -> Callable[[], None]:
        def call() -> None:
            self.log.append(name)
            self.now += milliseconds * (1.0 if self.rested else self.slowdown)

        return call

    def elapsed(self, launch: Callable[[], Any], times: int) -> float:
        before = self.now
        for _ in range(times):
            launch()
        self.rested = False
        return self.now - before

    def idle(self, seconds: float) -> None:
        self.log.append("idle")
        self.rested = True

    def runner(self, calls: Sequence[Callable[[], Any]], count: int, graph: bool) -> FakeRunner:
        rounds = -(-count // len(calls))

        def launch() -> None:
            for _ in range(rounds):
                for call in calls:
                    call()

        return FakeRunner(launch, rounds * len(calls))


def candidate(
    clock: FakeClock, kind: str, milliseconds: float, function: Callable[..., Any] = lambda x: x * 2, **options: Any
) -> Candidate:
    """Writes function(x) into the output, in some milliseconds of the fake device."""
    tick = clock.takes(kind, milliseconds)

    def prepare(context: Context, row: Row, inputs: Sequence[Any]) -> Ready:
        def bind(given: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], Any]:
            def call() -> Any:
                tick()
                if options.get("own_outputs"):
                    return function(given[0])
                value = function(given[0])
                if value is not None:
                    outputs[0].copy_(value)
                return None

            return call

        return Ready(bind, {"block": 1}, 1.5, **options)

    return Candidate(kind, kind, prepare)


def refusing(kind: str, error: BaseException | None = None) -> Candidate:
    """Cannot be prepared."""

    def prepare(context: Context, row: Row, inputs: Sequence[Any]) -> Ready:
        raise error or Unavailable("not here")

    return Candidate(kind, kind, prepare)


def sleeping(kind: str) -> Candidate:
    """Is never ready."""

    def prepare(context: Context, row: Row, inputs: Sequence[Any]) -> Ready:
        time.sleep(60)
        raise AssertionError("slept on")

    return Candidate(kind, kind, prepare)


def doubling(*candidates: Candidate, family: str = "gemm", case: str = "fp16 4x4x4") -> Row:
    """y = 2 x for eight numbers."""
    return Row(
        family=family,
        case=case,
        inputs=lambda device: [torch.arange(1.0, 9.0, device=device)],
        reference=lambda x: [x.double() * 2],
        outputs=(((8,), torch.float32),),
        candidates=candidates,
        operations=1e9,
        bytes_moved=1e6,
        tags=frozenset({"plain"}),
    )
