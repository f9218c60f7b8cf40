"""What a script's kernels are called with and give, under the compiler that runs it.

Of each kernel the first call with tensors of some types and sizes is kept: its arguments as they were, what it
returned and changed, and how long building the kernel and that call took. All other calls go through.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tiledsl.commands.beside import tensors

Interval = tuple[float, float]  # of time.monotonic, which all processes share


@dataclass
class Call:
    """A kernel's first call of its kind. `run` takes the arguments; `returned` is what it returned, and `changed` has
    the arguments that it changed, by position, as they were then. `spans`: when it was built and first run, where that
    was seen. `error` says why there is none of these."""

    name: str
    arguments: list[Any] = field(default_factory=list)
    run: Callable[..., Any] | None = None
    returned: list[Any] = field(default_factory=list)
    changed: dict[int, Any] = field(default_factory=dict)
    spans: list[Interval] = field(default_factory=list)
    kernel: Any = None
    error: str = ""

    def again(self, arguments: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
        """What it returns for other values of these arguments, which stay as they are, and what it changes then."""
        assert self.run is not None
        given = tensors.copied(arguments)
        returned = _listed(self.run(*given))
        synchronize()
        return returned, _changed(arguments, given)


def _changed(before: Sequence[Any], after: Sequence[Any]) -> dict[int, Any]:
    """The tensors that are not what they were, by position."""
    pairs = enumerate(zip(before, after))
    return {at: b for at, (a, b) in pairs if tensors.is_tensor(a) and not tensors.same_bits(a, b)}


def _listed(returned: Any) -> list[Any]:
    """What a call returned, as a list."""
    return [] if returned is None else list(returned) if isinstance(returned, (list, tuple)) else [returned]


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Recorder:
    """Keeps the calls of one process, in `calls`. Nothing is kept while `active` is false."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.active = True
        self.tuning = 0  # tuners at work: what they build meanwhile has no time of its own
        self._within = threading.local()
        self._built: dict[int, tuple[Any, str, Interval | None]] = {}
        self._seen: set[Any] = set()

    @contextmanager
    def function(self, name: str) -> Iterator[None]:
        """Kernels that are built meanwhile in this thread have the name of this function."""
        before = getattr(self._within, "name", "")
        self._within.name = name or before
        try:
            yield
        finally:
            self._within.name = before

    @contextmanager
    def building(self) -> Iterator[list[Any]]:
        """Around what builds a kernel, which is to be put into the list. A failure is kept as a call without outputs.
        What is built within belongs to the outermost."""
        kernels: list[Any] = []
        start = time.monotonic()
        depth = self._within.depth = getattr(self._within, "depth", 0) + 1
        try:
            yield kernels
        except Exception as error:
            if depth == 1:
                self.failed(getattr(self._within, "name", ""), error)
            raise
        finally:
            self._within.depth -= 1
        for kernel in kernels:
            if depth == 1 or id(kernel) not in self._built:
                name = getattr(self._within, "name", "") or self._name_of(id(kernel))
                self._built[id(kernel)] = kernel, name, None if self.tuning else (start, time.monotonic())

    def _name_of(self, number: int) -> str:
        return self._built[number][1] if number in self._built else ""

    def failed(self, name: str, error: BaseException) -> None:
        """Keep a failure, the same one once."""
        text = first_line(error)
        if self.active and ("failed", name, text) not in self._seen:
            self._seen.add(("failed", name, text))
            self.calls.append(Call(name, error=text))

    def called(
        self,
        kernel: Any,
        own_name: str,
        source: Callable[[], str],
        run: Callable[..., Any],
        arguments: Sequence[Any],
        later: Callable[..., Any] | None = None,
    ) -> Any:
        """Run a kernel, and keep the call if it is the first of its kind; its value. `later`: what runs it in further
        calls, if not `run`."""
        if not self.active or getattr(self._within, "running", False):
            return run(*arguments)
        kind = tensors.signature(arguments)
        if (id(kernel), kind) in self._seen:
            return run(*arguments)
        _, name, span = self._built.get(id(kernel), (None, "", None))
        self._built.setdefault(id(kernel), (kernel, name, None))  # nothing else gets this id
        self._seen.add((id(kernel), kind))
        name = name or own_name
        text = (name, source(), kind)  # scripts may build one program several times
        if text in self._seen:
            return run(*arguments)
        self._seen.add(text)
        before = tensors.copied(arguments)
        call = Call(name, before, later or run, kernel=kernel)
        synchronize()
        start = time.monotonic()
        self._within.running = True
        try:
            returned = run(*arguments)
            synchronize()
        except Exception as error:
            self.failed(name, error)
            raise
        finally:
            self._within.running = False
        call.spans = [] if span is None else [span, (start, time.monotonic())]
        changed = _changed(before, arguments)
        call.returned = tensors.copied(_listed(returned))
        call.changed = dict(zip(changed, tensors.copied(list(changed.values()))))
        self.calls.append(call)
        return returned


def name_of(function: Any) -> str:
    """The name of a function under a decorator of either side."""
    inner = getattr(function, "func", None)
    for each in (function, getattr(inner, "orig_func", None), inner):
        if isinstance(name := getattr(each, "__name__", None), str):
            return name
    return ""


def first_line(error: BaseException) -> str:
    """An error as one line: that of the message, after the type where it is none of ours."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error).__name__
    text = lines[0] if lines else ""
    return (text if kind.endswith("TileError") else f"{kind}: {text}" if text else kind)[:400]
