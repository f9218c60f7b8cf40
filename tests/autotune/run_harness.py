"""A tuning run with stand-ins for what it talks to: pools, kernels, the search."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tiledsl.autotuner import run as module
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.options import TuneOptions
from tiledsl.autotuner.run import TuningRun
from tiledsl.autotuner.trial import Trial
from tiledsl.runtime.parameter import Parameter
from tiledsl.runtime.target import Target

Log = list[tuple[Any, ...]]


class Recorder:
    """Notes its calls; `answers` has what they return by name."""

    def __init__(self, log: Log, **answers: Any) -> None:
        self._log, self._answers = log, answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._log.append((name, *arguments, *named.values()))
            answer = self._answers.get(name)
            return answer(*arguments) if callable(answer) else answer

        return call


class Harness:
    """A run of some configurations whose kernels, pools and clock are stand-ins."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int = 3, target: str = "cuda:90", **options: Any) -> None:
        self.log: Log = []
        self.ended: list[int] = []

        def kernel(number: int) -> Any:
            def check(params: Any, given: Any) -> None:
                self.log.append(("check", number, params[0].name, len(params), given))

            params = [Parameter("A", "float32", False, (4,)), Parameter("B", "float32", True, (4,))]
            source = f"source {number}"
            return SimpleNamespace(name="scale", source=source, params=params, outputs=[1], check=check)

        self.kernels = [kernel(number) for number in range(count)]
        configs = [{"block": n} for n in range(count)]
        self.problem: Any = SimpleNamespace(
            options=TuneOptions(cache=False, **options), target=Target.parse(target), configs=configs, name="scale",
            started=None, program=None, values={}, call_inputs=None,
        )  # fmt: skip
        self.trials = [Trial(n, config, build=lambda n=n: self.kernels[n]) for n, config in enumerate(configs)]  # type: ignore[misc]
        job = SimpleNamespace(of=lambda *given, **named: (*given, *sorted(named.items())))
        patch.setattr(module, "Job", job)
        patch.setattr(module, "runner", lambda problem, trial, kernel: kernel)
        patch.setattr(module, "task_for", lambda index, kernel, timeout, launcher: ("task", index, timeout, launcher))
        patch.setattr(module.measure, "is_measured", lambda target, options: target.kind == "cuda")
        patch.setattr(module.measure, "can_measure", lambda target: True)
        patch.setattr(TuningRun, "_needs_launcher", lambda self, kernel: False)
        self.patch = patch

    def run(self, store: Any = None, ranks: Any = None, rig: bool = True, compiler: bool = True) -> TuningRun:
        made = TuningRun(
            self.problem, self.trials, store, lambda trial: self.ended.append(trial.index), ranks or Alone()
        )
        if rig:
            pool = Recorder(self.log, cancel=lambda: [1])
            pool.best = None  # type: ignore[attr-defined]
            made._rig = Recorder(self.log, outputs=lambda described, device: ["outputs", described, device])  # type: ignore[assignment]
            made._rig.pool = pool  # type: ignore[union-attr]
        if compiler:
            made._compiler = Recorder(self.log, skip=lambda index: True)  # type: ignore[assignment]
        made._given = SimpleNamespace(stand_ins="stand-ins", device="cpu", ref_latency=3.0)
        made.kernels = dict(enumerate(self.kernels))  # type: ignore[arg-type]
        made._places = {index: index for index in range(len(self.trials))}
        return made

    def steps(self, run: TuningRun, *names: str) -> None:
        """Have methods of a run note that they are called, and do nothing else."""
        for name in names:
            self.patch.setattr(run, name, getattr(Recorder(self.log), name))

    def choose(self, run: TuningRun, **options: Any) -> None:
        """Have a run other options."""
        self.problem.options = run.options = replace(run.options, **options)

    def taken(self) -> Log:
        """What was noted since."""
        log, self.log[:] = list(self.log), []
        return log


def ok(trial: Trial, latency: float = 1.0, **fields: Any) -> Trial:
    trial.update({"status": "ok", "latency": latency, "spread": 0.0, **fields})
    return trial


def events(run: TuningRun) -> list[Any]:
    found = []
    while not run._events.empty():
        found.append(run._events.get())
    return found


class Asked:
    """A search that is asked for these, one list after the other."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers, self.told, self.sizes = list(answers), [], []  # type: ignore[var-annotated]

    @property
    def done(self) -> bool:
        return not self.answers

    def ask(self, n: int) -> list[int]:
        self.sizes.append(n)
        return self.answers.pop(0)

    def share(self, index: int) -> float:
        return 0.5 + index

    def tell(self, index: int, cost: float | None) -> None:
        self.told.append((index, cost))
