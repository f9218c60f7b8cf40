"""One side in a process of its own: runs a script under one compiler, then times its kernels when it is asked to.

`python -m tiledsl.commands.beside.side REQUEST`, where REQUEST is JSON: side, script, arguments, entry, verify. When
the script has ended, a line of JSON on stdout says what was recorded; then each line of stdin is answered by one on
stdout. What the script prints goes to stderr.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from tiledsl.child_processes import pipes_apart
from tiledsl.commands.beside import tensors
from tiledsl.commands.beside.hooks import watch
from tiledsl.commands.beside.recording import Call, Recorder, first_line, synchronize
from tiledsl.commands.run import run_script
from tiledsl.commands.schedule import why_triton
from tiledsl.errors import TileError
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.timing import Prepared, clock

_SEED = 0
_PACKAGES = ("torch", "triton", "tilelang")


class Measuring:
    """Answers to requests about the calls that a script has made."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls
        self._inputs: dict[int, list[Any]] = {}  # the other side's, where this one's were others
        self._ready: tuple[Prepared, float] | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what `do` names; what went wrong is in `error`."""
        methods: dict[str, Callable[..., dict[str, Any]]] = {
            "save": self.save, "compare": self.compare, "prepare": self.prepare, "sample": self.sample,
        }  # fmt: skip
        given = dict(request)
        try:
            return methods[given.pop("do")](**given)
        except Exception as error:
            return {"error": first_line(error)}

    def save(self, call: int, file: str, inputs: bool) -> dict[str, Any]:
        """Write what a call returned and changed to a file, and its inputs where they are wanted."""
        import torch

        found = self._calls[call]
        kept = {"inputs": found.arguments if inputs else None, "returned": found.returned, "changed": found.changed}
        torch.save(kept, file)
        return {}

    def compare(self, call: int, file: str) -> dict[str, Any]:
        """How this side's outputs differ from those in a file, on the inputs that are there, if any are."""
        import torch

        recorded = self._calls[call]
        device = next((each.device for each in recorded.arguments if tensors.is_tensor(each)), None)
        saved = torch.load(file, map_location=device, weights_only=True)
        returned, changed, inputs = recorded.returned, recorded.changed, recorded.arguments
        if saved["inputs"] is not None:
            inputs = self._inputs[call] = saved["inputs"]
            returned, changed = recorded.again(inputs)
        if len(returned) != len(saved["returned"]):
            return {"difference": f"{len(saved['returned'])} and {len(returned)} outputs"}
        pairs = {f"output {at}": pair for at, pair in enumerate(zip(saved["returned"], returned))}
        for at in sorted({*changed, *saved["changed"]}):  # what one side has not changed is its input
            pairs[f"argument {at}"] = saved["changed"].get(at, inputs[at]), changed.get(at, inputs[at])
        differences = {what: tensors.difference(ours, theirs) for what, (ours, theirs) in pairs.items()}
        return {"difference": "; ".join(f"{what}: {text}" for what, text in differences.items() if text)}

    def prepare(self, call: int, warmup: float, backend: str | None) -> dict[str, Any]:
        """Make a call ready to be timed; how it will be, and about how many milliseconds it takes."""
        import torch

        recorded = self._calls[call]
        inputs = self._inputs.get(call, recorded.arguments)
        run = recorded.run
        assert run is not None
        self._ready = None  # gives the memory back

        def calls(count: int) -> list[Callable[[], Any]]:
            return [functools.partial(run, *tensors.copied(inputs)) for _ in range(count)]

        watch = clock(None, backend, on_gpu=torch.cuda.is_available())
        nbytes = sum(each.nbytes for each in [*inputs, *recorded.returned] if tensors.is_tensor(each))
        quick = watch.quick(calls(1)[0])
        prepared = watch.prepare(calls, nbytes, quick)
        prepared.warm(warmup)
        self._ready = prepared, quick
        return {"method": prepared.method, "milliseconds": quick}

    def sample(self, milliseconds: float) -> dict[str, Any]:
        """Times of the call that was prepared."""
        assert self._ready is not None
        prepared, quick = self._ready
        return {"samples": prepared.sample(milliseconds, quick)}


def _report(status: int, calls: list[Call], verify: bool) -> dict[str, Any]:
    """What the other process is told of the calls."""
    return {
        "status": status,
        "about": _about(),
        "calls": [
            {
                "name": call.name,
                "shapes": tensors.described(call.arguments),
                "digest": tensors.digest(call.arguments),
                "spans": call.spans,
                "remarks": _remarks(call),
                "certificate": _certificate(call) if verify else None,
                "error": call.error,
            }
            for call in calls
        ],
    }


def _remarks(call: Call) -> list[str]:
    """What a kernel of ours says of itself, and why Triton orders its loops, if it does."""
    if not isinstance(call.kernel, Kernel):
        return [str(text) for text in getattr(call.kernel, "remarks", ())]
    try:
        return [*map(str, call.kernel.remarks), *why_triton(call.kernel)]
    except TileError as error:  # the script could not be lowered, and its line says so
        return [first_line(error)]


def _certificate(call: Call) -> dict[str, Any] | None:
    """What the certificate of a call's kernel says, in short; None for a call without a kernel of ours."""
    if not isinstance(call.kernel, Kernel):
        return None
    try:
        made = call.kernel.verify()
    except Exception as error:  # a script's kernels are others' programs
        return {"summary": "", "failed": first_line(error), "unknown": [], "seconds": None}
    unknown = [f"{check.place}: {check.subject}: {check.detail}" for check in made.of("unknown")]
    return {"summary": made.summary, "failed": made.reason, "unknown": unknown, "seconds": made.seconds}


def _about() -> dict[str, str]:
    """The device and the versions of what runs here."""
    import torch

    found = {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@contextmanager
def _zeros_for_empty() -> Iterator[None]:
    """`torch.empty` and its like give zeros: what no kernel writes is then the same on both sides."""
    import torch

    def filled(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def zeros(*arguments: Any, **keywords: Any) -> Any:
            made = function(*arguments, **keywords)
            with suppress(RuntimeError):  # of a type that cannot be filled
                made.zero_()
            return made

        return zeros

    places = [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]
    kept = [getattr(owner, name) for owner, name in places]
    for (owner, name), function in zip(places, kept):
        setattr(owner, name, filled(function))
    try:
        yield
    finally:
        for (owner, name), function in zip(places, kept):
            setattr(owner, name, function)


def _seeded() -> None:
    import torch

    random.seed(_SEED)
    torch.manual_seed(_SEED)
    with suppress(ImportError):
        importlib.import_module("numpy").random.seed(_SEED)


def work(request: Mapping[str, Any], commands: TextIO, replies: TextIO) -> None:
    """Run the script, say what was recorded, and answer until there are no more commands."""

    def reply(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    recorder = Recorder()
    try:
        watch(request["side"], recorder)
    except Exception as error:  # its libraries do not load
        reply({"status": 1, "about": {}, "calls": [], "error": first_line(error)})
        return
    _seeded()
    with _zeros_for_empty():
        status = run_script(
            Path(request["script"]), request["arguments"], entry=request["entry"], stand_in=request["side"] == "tiledsl"
        )
    recorder.active = False
    sys.stderr.flush()
    measuring = Measuring(recorder.calls)
    try:
        synchronize()
        reply(_report(status, recorder.calls, request["verify"]))
    except Exception as error:  # a kernel has broken the device
        reply({"status": status or 1, "about": {}, "calls": [], "error": first_line(error)})
        return
    for line in commands:
        reply(measuring.answer(json.loads(line)))


def main() -> None:
    commands, replies = pipes_apart()
    work(json.loads(sys.argv[1]), commands, replies)
    replies.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of the script's may still run


if __name__ == "__main__":
    main()
