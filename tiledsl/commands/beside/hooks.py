"""Where each compiler makes kernels and runs them: what is put around these places, for a Recorder to see them."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from tiledsl.commands.beside.recording import Recorder, name_of
from tiledsl.compat import install
from tiledsl.frontend.parser import parse_module
from tiledsl.kernels.jit import JitFunction
from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime.launch import Launcher

# Loaded before the script runs: with TileLang its whole compiler is, too.
_COMPILER = ("triton", "tiledsl.runtime.lowering", "tiledsl.runtime.compile", "tiledsl.language.names")


def watch(side: str, recorder: Recorder) -> None:
    """Let a recorder see the kernels of "tiledsl" or "tilelang" in this process. Raises ImportError where TileLang is
    missing."""
    (_watch_tiledsl if side == "tiledsl" else _watch_tilelang)(recorder)
    _tune_less(recorder)


def _tune_less(recorder: Recorder) -> None:
    package, tuner = importlib.import_module("tilelang"), importlib.import_module("tilelang.autotuner")
    for module in (package, tuner):
        module.autotune = without_tuning  # type: ignore[attr-defined]
    owner = getattr(tuner, "AutoTuner", None)
    if owner is None:
        return
    run = owner.run

    @functools.wraps(run)
    def once(self: Any, *arguments: Any, **keywords: Any) -> Any:
        self.configs = _first(self.configs)
        recorder.tuning += 1
        try:
            return run(self, *arguments, **keywords)
        finally:
            recorder.tuning -= 1

    owner.run = once


def without_tuning(func: Any = None, *, configs: Any = (), **options: Any) -> Any:
    """In place of `tilelang.autotune`: kernels have the first configuration, where a call does not say another one."""
    return lambda function: _Untuned(function, configs)


def _first(configs: Any) -> Any:
    if callable(configs):
        return functools.wraps(configs)(lambda *given, **named: _first(configs(*given, **named)))
    return list(configs)[:1] if isinstance(configs, (list, tuple)) else configs


class _Untuned:
    """A function under both decorators; what it is asked for is the inner one's."""

    def __init__(self, function: Any, configs: Any) -> None:
        self._function, self._configs = function, configs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._with(self._function, arguments, keywords)

    def compile(self, *arguments: Any, **keywords: Any) -> Any:
        return self._with(self._function.compile, arguments, keywords)

    def _with(self, call: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        configs = self._configs(*arguments, **keywords) if callable(self._configs) else self._configs
        config = dict(next(iter(configs), {}))
        passes = config.pop("pass_configs", None)
        if passes:  # TileLang's decorated functions have them as an attribute, ours among their options
            kept = getattr(self._function, "options", None) or vars(self._function)
            kept["pass_configs"] = {**(kept.get("pass_configs") or {}), **passes}
        given = {*self._function.signature.bind_partial(*arguments).arguments, *keywords}
        chosen = {name: value for name, value in config.items() if name not in given}
        made = call(*arguments, **keywords, **chosen)
        if getattr(made, "latency", 0.0) is None:  # scripts print what a tuner found
            made.config, made.latency, made.ref_latency = config, 1.0, 1.0
        return made


def _named(recorder: Recorder, owner: Any, method: str) -> None:
    """While a method of a decorated function runs, kernels have the name of that function."""
    inner = getattr(owner, method)

    @functools.wraps(inner)
    def within(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with recorder.function(name_of(self)):
            return inner(self, *arguments, **keywords)

    setattr(owner, method, within)


def _built(recorder: Recorder, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns a kernel, seen."""

    @functools.wraps(function)
    def build(*arguments: Any, **keywords: Any) -> Any:
        with recorder.building() as made:
            kernel = function(*arguments, **keywords)
            made.append(kernel)
        return kernel

    return build


def _watch_tiledsl(recorder: Recorder) -> None:
    install()
    for name in _COMPILER:
        importlib.import_module(name)
    parse_module("x = 1")  # makes the parser's table
    for method in ("__call__", "compile", "kernel_for"):
        _named(recorder, JitFunction, method)
    make, find = Kernel.__init__, Launcher.find

    @functools.wraps(make)
    def made(self: Kernel, *arguments: Any, **keywords: Any) -> None:
        with recorder.building() as kernels:
            make(self, *arguments, **keywords)
            kernels.append(self)

    @functools.wraps(find)
    def found(self: Launcher, *arguments: Any) -> Any:  # every first call with a signature comes here
        kernel = self.kernel
        run = functools.partial(find, self)
        return recorder.called(kernel, kernel.name, lambda: kernel.source, run, arguments, kernel)

    Kernel.__init__ = made  # type: ignore[method-assign]
    Launcher.find = found  # type: ignore[method-assign]


def _watch_tilelang(recorder: Recorder) -> None:
    package = importlib.import_module("tilelang")
    jit = sys.modules["tilelang.jit"]  # the package has a function of this name
    kernels = importlib.import_module("tilelang.jit.kernel")
    package.compile = jit.compile = _built(recorder, jit.compile)  # type: ignore[attr-defined]
    jit.JITImpl.compile = _built(recorder, jit.JITImpl.compile)
    for method in ("__call__", "compile"):
        _named(recorder, jit.JITImpl, method)
    make, stored = kernels.JITKernel.__init__, kernels.JITKernel.from_database

    @functools.wraps(make)
    def made(self: Any, *arguments: Any, **keywords: Any) -> None:
        make(self, *arguments, **keywords)
        _seen(recorder, self)

    @functools.wraps(stored)
    def loaded(*arguments: Any, **keywords: Any) -> Any:
        kernel = stored(*arguments, **keywords)
        _seen(recorder, kernel)
        return kernel

    kernels.JITKernel.__init__ = made
    kernels.JITKernel.from_database = loaded


def _seen(recorder: Recorder, kernel: Any) -> None:
    """Let a recorder see the calls of a kernel of TileLang's, its profiler's among them."""
    run = getattr(kernel, "torch_function", None)
    if run is None:  # not complete yet
        return

    def called(*arguments: Any, **keywords: Any) -> Any:
        if keywords:
            return run(*arguments, **keywords)
        return recorder.called(kernel, _symbol(kernel), lambda: str(kernel.get_kernel_source()), run, arguments)

    kernel.torch_function = kernel.adapter.func = called


def _symbol(kernel: Any) -> str:
    """The name of a kernel's program."""
    attributes = getattr(kernel.prim_func, "attrs", None) or {}
    return str(attributes["global_symbol"]) if "global_symbol" in attributes else "main"
