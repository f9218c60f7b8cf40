"""Let a script written for CUDA run on a machine without a GPU: its "cuda" tensors lie on the CPU.

`emulate()` puts a torch function mode in force that rewrites device arguments, answers questions to `torch.cuda` as an
H100 would, and gives scripts that bring Triton kernels of their own the interpreting copy of Triton. torch, triton,
tiledsl and a true TileLang themselves still get the true answer and the true Triton.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tiledsl.runtime.interpreter import interpreting_triton
from tiledsl.runtime.private_triton import private_import

_active = False
_INSIDE = ("torch", "triton", "tiledsl", "tilelang")  # the last under `tiledsl beside`


def active() -> bool:
    """Whether "cuda" means the CPU now."""
    return _active


def _is_cuda(value: Any) -> bool:
    """Whether a device argument means a CUDA device."""
    import torch

    if isinstance(value, str):
        return value == "cuda" or value.startswith("cuda:")
    return isinstance(value, torch.device) and value.type == "cuda"


def _on_cpu(value: Any) -> Any:
    return "cpu" if _is_cuda(value) else value


def function_mode() -> Any:
    """The torch function mode that moves "cuda" to the CPU in every call of torch."""
    import torch
    from torch.overrides import TorchFunctionMode

    is_cuda, device_of = torch.Tensor.is_cuda.__get__, torch.Tensor.device.__get__

    class CudaOnCpu(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func is torch.Tensor.cuda:
                return args[0]
            if func == is_cuda:
                return True
            if func == device_of:  # scripts compare it with what they asked for
                true = func(*args)
                caller = sys._getframe(1).f_globals.get("__name__", "")
                return true if _is_inside(caller) or true.type != "cpu" else torch.device("cuda", 0)
            device = kwargs.get("device")
            if device is not None and (_is_cuda(device) or isinstance(device, int)):
                kwargs["device"] = "cpu"
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            if func is torch.Tensor.to:
                args = (args[0], *map(_on_cpu, args[1:]))
            return func(*args, **kwargs)

    return CudaOnCpu()


class _Event:
    """torch.cuda.Event on the wall clock."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    wait = synchronize

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _Event) -> float:
        return max((end.at - self.at) * 1e3, 1e-3)


class _Stream:
    """torch.cuda.Stream: work is done when it is asked for."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    wait_event = wait_stream

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record()
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _answers() -> dict[str, Any]:
    """What torch.cuda answers: an H100 SXM (its data sheet; CUDA C++ Programming Guide, compute capability 9.0)."""
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    zero: Callable[..., int] = lambda *_, **__: 0  # noqa: E731
    ignored = ("init", "synchronize", "set_device", "empty_cache", "reset_peak_memory_stats", "ipc_collect")
    properties = SimpleNamespace(
        name="CPU standing in for an H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30,
        warp_size=32, L2_cache_size=50 << 20, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
        shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
        gcnArchName="",
    )  # fmt: skip
    stream = _Stream()
    return {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": zero,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: properties.name,
        "is_bf16_supported": lambda *_, **__: True,
        "is_current_stream_capturing": lambda: False,
        "is_initialized": lambda: True,
        "get_arch_list": lambda: ["sm_90"],
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "stream": lambda given: given or stream,
        "device": contextlib.nullcontext,
        "mem_get_info": lambda *_: (properties.total_memory, properties.total_memory),
        "Event": _Event,
        "Stream": _Stream,
        **dict.fromkeys(ignored, nothing),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), zero),
    }


def _for_scripts(emulated: Any, true: Any) -> Any:
    """A function that answers scripts with one and torch's, triton's and our own code with the other."""

    def answer(*arguments: Any, **keywords: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return (true if _is_inside(caller) else emulated)(*arguments, **keywords)

    return answer


def _is_inside(module: str) -> bool:
    return module.split(".")[0] in _INSIDE or module.startswith("_tiledsl_")  # the latter: generated modules


def _import(true: Any) -> Any:
    """`__import__` under which a script's `triton` is the interpreting copy."""

    def import_(name: str, names: Any = None, locals_: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if level == 0 and name.split(".")[0] == "triton" and not _is_inside((names or {}).get("__name__") or "torch"):
            _without_tuning(interpreting_triton())
            return private_import(name, names, locals_, fromlist, level)
        return true(name, names, locals_, fromlist, level)

    return import_


def _without_tuning(package: Any) -> None:
    """`triton.autotune` takes its first configuration: there is no driver to time with, and nothing to gain."""
    package.runtime.autotuner.Autotuner.do_bench = property(lambda self: lambda *_, **__: [0.0, 0.0, 0.0])


def _generator(true: Any) -> Any:
    """torch.Generator, whose device argument no function mode sees."""

    class Generator(true):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return true(device=_on_cpu(device))

    return Generator


def _custom_op(true: Any) -> Any:
    """torch.library.custom_op, in whose operators "cuda" means the CPU, too: torch suspends function modes there."""
    import torch

    def custom_op(name: str, fn: Any = None, /, **options: Any) -> Any:
        def define(function: Any) -> Any:
            @functools.wraps(function)
            def inside(*arguments: Any, **keywords: Any) -> Any:
                with function_mode() if _active else contextlib.nullcontext():
                    return function(*arguments, **keywords)

            schema = options.pop("schema", None) or torch.library.infer_schema(
                function, mutates_args=options["mutates_args"]
            )
            return true(name, inside, schema=schema, **options)

        return define if fn is None else define(fn)

    return custom_op


@contextlib.contextmanager
def emulate() -> Iterator[None]:
    """Inside the block "cuda" means the CPU, for this process."""
    global _active
    import torch

    # Asked before torch.cuda answers otherwise; the answer is kept.
    importlib.import_module("tiledsl.runtime.target").Target.parse("auto")
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    for name, value in _answers().items():
        true = getattr(torch.cuda, name)
        replace(torch.cuda, name, value if isinstance(value, type) or name == "device" else _for_scripts(value, true))
    replace(torch.nn.Module, "cuda", lambda self, *_: self)
    replace(torch.Tensor, "record_stream", lambda *_: None)
    replace(torch, "Generator", _generator(torch.Generator))
    replace(torch.library, "custom_op", _custom_op(torch.library.custom_op))
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        replace(torch.cuda.nvtx, name, lambda *_, **__: 0)
    replace(builtins, "__import__", _import(builtins.__import__))
    _active = True
    try:
        with function_mode():
            yield
    finally:
        _active = False
        for owner, name, value in reversed(replaced):
            setattr(owner, name, value)


def here(target: Any) -> Any:
    """The target to compile for where a script names `target`: a GPU's is `interpret` on a machine without one."""
    return "interpret" if active() and target not in (None, "auto") else target
