"""Run Triton source on the CPU, in a process that also compiles: the same text, loaded against a private Triton.

`load_module(name, text, interpret=True)` gives a module whose kernels are launched as on a GPU, `kernel[grid](...)`;
the launches come here. One launch runs at a time, its programs one after the other.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
import linecache
import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.errors import TileError
from tiledsl.runtime.private_triton import private_builtins, private_triton

_lock = threading.RLock()
_running = threading.local()


class InterpretError(TileError):
    """A kernel failed in the interpreter; the notes name the program of the grid and the line of Triton source."""


def module_builtins() -> dict[str, Any]:
    """Builtins for interpreted kernels: `triton` is the private copy, and a kernel's `range` counts in int32."""
    interpreting_triton()
    return private_builtins(range=_range)


@functools.cache
def interpreting_triton() -> types.ModuleType:
    """The private copy of Triton with this module's launcher, operations and library functions in place."""
    from tiledsl.runtime import interpreter_libdevice, interpreter_ops, interpreter_speed

    package: Any = private_triton()
    interpreter, language = package.runtime.interpreter, package.language
    interpreter_speed.install(package)
    builder = interpreter.interpreter_builder
    # Integer overflow checks cost two int64 operations an addition and report nothing unless debug is on.
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    builder.__class__ = interpreter_ops.builder_class(interpreter, language)
    # The copy only ever interprets: patch its language once, not at every launch and every device function call.
    interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    interpreter._patch_lang = lambda fn: types.SimpleNamespace(restore=lambda: None)
    reduce, scan = interpreter_ops.reduction(interpreter, language)
    for module in (language, language.core):
        module.reduce, module.associative_scan = reduce, scan
        module.range = _range
    # NumPy 2.4 no longer turns a (1,) array into a scalar, which Triton 3.6 relies on.
    language.tensor.__index__ = language.tensor.__int__ = lambda self: int(self.handle.data.item())
    interpreter._implicit_cvt = _argument_converter(interpreter, language)
    interpreter.GridExecutor = _Launch
    interpreter_libdevice.install(package)
    return private_triton()


def _range(*args: Any, **hints: Any) -> Iterable[Any]:
    """`range` and `tl.range` in a kernel: the counter is a scalar tensor, int32 or as wide as a bound, as on a GPU."""
    if not getattr(_running, "kernel", False):
        return builtins.range(*args)
    return _device_range(*args, *([hints["step"]] if hints.get("step") is not None else []))


def _device_range(*args: Any) -> Iterable[Any]:
    import numpy as np

    triton: Any = interpreting_triton()
    language, handle = triton.language, triton.runtime.interpreter.TensorHandle
    values = [getattr(arg, "value", arg) for arg in args]
    wide = any(
        value.dtype.primitive_bitwidth == 64
        if isinstance(value, language.tensor)
        else not -(2**31) <= int(value) < 2**31
        for value in values
    )
    scalar, np_dtype = (language.int64, np.int64) if wide else (language.int32, np.int32)
    for index in builtins.range(*[int(value) for value in values]):
        yield language.tensor(handle(np.array([index], dtype=np_dtype), scalar), scalar)


class _Launch:
    """`kernel[grid](*args, **kwargs)` of an interpreted kernel; Triton constructs it as its own executor."""

    def __init__(
        self, fn: Callable[..., Any], arg_names: Sequence[str], grid: Any, pre_run_hooks: Sequence[Any] = ()
    ) -> None:
        self.fn = fn
        self.arg_names = list(arg_names)
        self.grid = grid
        self.hooks = pre_run_hooks

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        import numpy as np

        signature = inspect.signature(self.fn)
        bound = signature.bind(*args, **{name: value for name, value in kwargs.items() if name in self.arg_names})
        bound.apply_defaults()
        values = dict(bound.arguments)
        grid = self.grid({**kwargs, **values}) if callable(self.grid) else self.grid
        grid = tuple(int(size) for size in (grid if isinstance(grid, (tuple, list)) else (grid,)))
        assert len(grid) <= 3, f"a grid has at most 3 dimensions, not {len(grid)}"
        with _lock, np.errstate(all="ignore"):
            memory = _Memory()
            values = {name: memory.to_host(value) for name, value in values.items()}
            for hook in self.hooks:
                hook(**values)
            self._run(values, grid + (1,) * (3 - len(grid)), memory.regions, bool(kwargs.get("debug")), signature)
            memory.copy_back()

    def _run(
        self,
        values: dict[str, Any],
        grid: tuple[int, ...],
        regions: list[tuple[int, int]],
        debug: bool,
        signature: inspect.Signature,
    ) -> None:
        interpreter: Any = interpreting_triton().runtime.interpreter
        builder = interpreter.interpreter_builder
        saved = builder.options, builder.regions, getattr(_running, "kernel", False)
        builder.options = dataclasses.replace(builder.options, debug=debug)
        builder.regions = regions
        _running.kernel = True
        program = (0, 0, 0)
        try:
            constexprs = {n for n, p in signature.parameters.items() if "constexpr" in str(p.annotation)}
            arguments = {n: v if n in constexprs else interpreter._implicit_cvt(v) for n, v in values.items()}
            builder.set_grid_dim(*grid)
            for x in builtins.range(grid[0]):
                for y in builtins.range(grid[1]):
                    for z in builtins.range(grid[2]):
                        program = (x, y, z)
                        builder.set_grid_idx(x, y, z)
                        self.fn(**arguments)
        except Exception as error:
            raise _explain(error, self.fn, program) from error
        finally:
            builder.options, builder.regions, _running.kernel = saved


# torch's dtype name -> Triton's
_POINTEES = {name: text.removeprefix("tl.") for name, text in TRITON_TYPES.items()}


def _argument_converter(interpreter: Any, language: Any) -> Callable[[Any], Any]:
    """What a kernel sees of an argument: tensors are pointers, numbers scalars of the type a compiled kernel has."""
    import numpy as np

    of_triton = interpreter._implicit_cvt

    def scalar(value: Any, dtype: Any) -> Any:
        data = np.array([value], dtype=interpreter._get_np_dtype(dtype))
        return language.tensor(interpreter.TensorHandle(data, dtype), dtype)

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            return scalar(value, language.int1)
        if isinstance(value, int):
            if -(2**31) <= value < 2**31:
                return scalar(value, language.int32)
            return scalar(value, language.int64 if value < 2**63 else language.uint64)
        if isinstance(value, float):
            return scalar(value, language.float32)
        if hasattr(value, "data_ptr"):
            dtype = value.dtype
            if not isinstance(dtype, language.dtype):
                dtype = getattr(language, _POINTEES[str(dtype).removeprefix("torch.")])
            return scalar(value.data_ptr(), language.pointer_type(dtype))
        return of_triton(value)  # tuples, tensor descriptors, None, constexpr

    return convert


class _Memory:
    """The arguments' storages: their addresses on the host, and where device tensors are copied back to."""

    def __init__(self) -> None:
        self.regions: list[tuple[int, int]] = []
        self._copies: dict[int, tuple[Any, Any]] = {}

    def to_host(self, value: Any) -> Any:
        """`value` with every tensor in it on the CPU; storages that overlap stay one."""
        if isinstance(value, tuple):
            moved = [self.to_host(item) for item in value]
            return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
        if hasattr(value, "block_shape") and hasattr(value, "base"):  # a tensor descriptor
            return dataclasses.replace(value, base=self.to_host(value.base))
        if not hasattr(value, "data_ptr"):
            return value
        if hasattr(value, "base") and hasattr(value, "dtype") and not hasattr(value, "untyped_storage"):
            return type(value)(self.to_host(value.base), value.dtype)  # triton.reinterpret's wrapper
        storage = value.untyped_storage()
        if storage.device.type != "cpu":
            key = storage.data_ptr()
            if key not in self._copies:
                self._copies[key] = (storage, storage.cpu())
            host = self._copies[key][1]
            value = value.new_empty(0, device="cpu").set_(host, value.storage_offset(), value.size(), value.stride())
            storage = host
        region = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        if region not in self.regions:
            self.regions.append(region)
        return value

    def copy_back(self) -> None:
        """Bring what the kernel wrote back to the device tensors."""
        for device, host in self._copies.values():
            device.copy_(host)


def _explain(error: Exception, fn: Callable[..., Any], program: tuple[int, ...]) -> InterpretError:
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    file = fn.__code__.co_filename
    line = 0
    current: BaseException | None = error
    while current is not None:  # the innermost line of the kernel's file, across re-raised exceptions
        trace = current.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == file:
                line = trace.tb_lineno
            trace = trace.tb_next
        current = current.__cause__
    notes = [f"program {program} of the grid"]
    if line:
        notes.append(f"{file}:{line}: {linecache.getline(file, line).strip()}")
    text = str(root).strip() or "no message"
    if isinstance(root, InterpretError):
        return root
    return InterpretError(f"{fn.__name__} failed in the interpreter: {type(root).__name__}: {text}", notes=notes)
