"""Configurations of a Python function in a benchmark process: what is asked of it, and answered."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tiledsl.autotuner.function_options import FunctionOptions
from tiledsl.autotuner.function_run import Call, FunctionRun
from tiledsl.autotuner.group.ranks import Alone
from tiledsl.autotuner.measuring.bench import is_gpu_alive
from tiledsl.autotuner.measuring.inputs import changed, copies
from tiledsl.autotuner.measuring.wire import Channel
from tiledsl.autotuner.reachable import Unreachable, function_at, packed, unpacked
from tiledsl.autotuner.trial import OUTCOME, Trial
from tiledsl.errors import TileError
from tiledsl.runtime.profiler import tensors

OPTIONS = (
    "warmup", "rep", "wait_for_clock", "rtol", "atol", "max_mismatched_ratio", "timer", "numerics", "reference_config",
)  # fmt: skip


class FunctionServer:
    """A function and one call of it. Its reference runs in the tuner's process, where the function cannot reach it."""

    def __init__(self, message: Mapping[str, Any], channel: Channel) -> None:
        """message: place, values, configs, options, folder, cwd, threads. Raises Unreachable."""
        import torch

        os.chdir(message["cwd"])
        torch.set_num_threads(message["threads"])
        self._channel, self._folder, self._count = channel, Path(message["folder"]), 0
        function = function_at(message["place"])
        values = {name: unpacked(each) for name, each in message["values"].items()}
        self._trials = [
            Trial(index, {name: unpacked(each) for name, each in config.items()})
            for index, config in enumerate(message["configs"])
        ]
        chosen = {name: unpacked(each) for name, each in message["options"].items()}
        ref_prog = self._reference if message["has_reference"] else None
        self._call, self._options = Call(function, values), FunctionOptions(ref_prog=ref_prog, **chosen)
        self._run: FunctionRun | None = None

    @property
    def run(self) -> FunctionRun:
        if self._run is None:
            self._run = FunctionRun(self._call, self._trials, self._options, Alone())
        return self._run

    def first(self, index: int) -> dict[str, Any]:
        """Check and time a configuration: the fields of its trial."""
        trial = self._trials[index]
        self.run.first(trial)
        if self._call.on_gpu and trial.status == "launch_error" and not is_gpu_alive():
            trial.fail("crash", trial.message)  # this process has lost its GPU: another one goes on
        return _outcome(trial)

    def final(self, outcomes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The final round of the configurations whose trials are known: their fields, by index."""
        for index, fields in outcomes.items():
            self._trials[int(index)].update(fields)
        self.run.final()
        return {index: _outcome(self._trials[int(index)]) for index in outcomes}

    def _reference(self, *inputs: Any) -> Any:
        """Have the tuner's process run ref_prog; what it changes is changed here."""
        self._count += 1
        stem = f"asked-{os.getpid()}-{self._count}"
        sent = [packed(f"{stem}-{number}", each, self._folder) for number, each in enumerate(inputs)]
        self._channel.send({"reference": sent, "stem": stem})
        answer = self._channel.receive()
        assert answer is not None, "the tuner's process is gone"
        if "failure" in answer:
            raise TileError(answer["failure"])
        for number, each in answer["changed"].items():
            inputs[int(number)].copy_(unpacked(each))
        returned = [inputs[each["same"]] if "same" in each else unpacked(each) for each in answer["returned"]]
        for read in self._folder.glob(f"{stem}-*"):
            read.unlink()
        return returned


def _outcome(trial: Trial) -> dict[str, Any]:
    return {name: getattr(trial, name) for name in OUTCOME}


def serve(message: Mapping[str, Any], channel: Channel, server: FunctionServer | None) -> FunctionServer | None:
    """Answer a message about functions; what serves the next ones."""
    match message["do"]:
        case "begin function":
            try:
                server = FunctionServer(message, channel)
            except Unreachable as reason:
                channel.send({"failure": str(reason)})
                return None
            channel.send({})
        case "run function":
            assert server is not None
            try:
                _ = server.run
            except TileError as error:  # of ref_prog: it is nothing that a configuration did
                channel.send({"fatal": error.message})
                return server
            outcome = server.first(message["index"])
            channel.send({"outcome": outcome, "sticky": outcome["status"] == "crash"})
        case "final function":
            assert server is not None
            channel.send({"outcome": server.final(message["known"])})
    return server


def answered(ref_prog: Callable[..., Any], asked: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What ref_prog gives for what a server asks, in the tuner's process."""
    stem = asked["stem"]
    try:
        inputs = [unpacked(each) for each in asked["reference"]]
        before = copies(inputs)
        found = tensors(ref_prog(*inputs))
        returned: list[dict[str, Any]] = []
        for number, each in enumerate(found):
            same = next((at for at, item in enumerate(inputs) if item is each), None)
            answer = packed(f"{stem}-r{number}", each.detach(), folder) if same is None else {"same": same}
            returned.append(answer)
        differing = [at for at, (now, old) in enumerate(zip(inputs, before)) if changed(now, old)]
        return {
            "returned": returned,
            "changed": {at: packed(f"{stem}-c{at}", inputs[at], folder) for at in differing},
        }
    except (Exception, SystemExit) as error:
        return {"failure": str(error) if isinstance(error, TileError) else f"{type(error).__name__}: {error}"}
