"""What a program's host function does for tensors of one signature: which kernels it launches, with which arguments.

The function of the emitted module runs once with stand-ins for tensors and scalars and with recorders for the jitted
functions, which compile but do not launch. What it did is then replayed at every call with that signature.
"""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tiledsl.runtime import launch_stored


class Untraceable(Exception):
    """The host function does something that a replay would not repeat; it is to be called as it is."""


@dataclass(frozen=True)
class Allocation:
    """A workspace or output that the host function makes: `function` of torch ("empty_strided", "zeros", ...) with
    `arguments`; "empty" has become "empty_strided"."""

    function: str
    arguments: tuple[Any, ...]
    dtype: Any


@dataclass(frozen=True)
class Pointer:
    """The address of an argument ("A") or of what the host function made ("made0")."""

    of: str


@dataclass(frozen=True)
class Scalar:
    """An argument that is a number, handed on as it is."""

    name: str


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor, the kernel's `number`-th, of memory at a pointer. `described` is Triton's or Gluon's, with a
    stand-in for the tensor."""

    pointer: Pointer
    number: int
    described: Any

    def at(self, address: int) -> Any:
        """The descriptor of the memory at an address."""
        of = self.described
        return replace(of, base=_Tensor("", of.base.dtype, None, of.shape, of.strides, address))


@dataclass(frozen=True)
class TracedLaunch:
    """One kernel: Triton's compiled kernel, the grid's three sizes, and an argument for each parameter."""

    compiled: Any
    grid: tuple[int, int, int]
    arguments: tuple[Pointer | Scalar | Descriptor | int | float | bool, ...]


@dataclass
class Trace:
    """`read` has the scalars whose values the host function looked at, so that the trace holds for these alone.
    `returned` has the names of what it returned, in the form in which it did: one, a tuple, a list or None."""

    allocations: list[Allocation] = field(default_factory=list)
    launches: list[TracedLaunch] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    returned: str | tuple[str, ...] | list[str] | None = None


def trace(module: types.ModuleType, function: str, names: Sequence[str], arguments: Sequence[Any]) -> Trace:
    """Trace `module.function(*arguments)`; `names` are the parameters'. The tensors' device must be current.

    Raises Untraceable, and what Triton raises when it compiles.
    """
    result = Trace()
    scope = dict(module.__dict__)
    scope["torch"] = _Torch(result, arguments)
    for name, value in module.__dict__.items():
        if hasattr(value, "device_caches"):  # Triton's JITFunction
            scope[name] = _Recorder(result, value)
        elif name == "_descriptor":  # which keeps descriptors by address, as plans do
            scope[name] = functools.partial(_descriptor, module.TensorDescriptor)
        elif isinstance(value, types.FunctionType) and value.__globals__ is module.__dict__:
            scope[name] = types.FunctionType(value.__code__, scope, value.__name__, value.__defaults__)
    stand_ins = [_stand_in(result, name, value) for name, value in zip(names, arguments, strict=True)]
    result.returned = _names(scope[function](*stand_ins))
    return result


def _descriptor(cls: type, base: Any, shape: Any, strides: Any, block: Any, *layout: Any) -> Any:
    """As the function in emitted modules; Gluon's class has a layout. None of an empty tensor: the function makes
    memory for it, which a trace cannot tell."""
    if 0 in map(int, shape):
        return None
    return cls(base, *(list(_plain(sizes)) for sizes in (shape, strides, block)), *layout)


def _names(returned: Any) -> Any:
    if isinstance(returned, (list, tuple)):
        return type(returned)(map(_names, returned))
    if returned is not None and not isinstance(returned, _Tensor):
        raise Untraceable(f"it returns a {type(returned).__name__}")
    return None if returned is None else returned.of


class _Tensor:
    """Stands for a tensor: its shape, strides, dtype and device can be asked for, and kernels take it."""

    def __init__(
        self, of: str, dtype: Any, device: Any, shape: Sequence[int], strides: Sequence[int], ptr: int
    ) -> None:
        self.of, self.dtype, self.device, self.shape = of, dtype, device, tuple(shape)
        self._strides, self._ptr = tuple(strides), ptr

    def stride(self, axis: int) -> int:
        return self._strides[axis]

    def data_ptr(self) -> int:
        return self._ptr

    def view(self, to: Any) -> _Tensor:
        """Flat (-1), as another dtype of that width, or, if it is flat, of another width."""
        if to == -1:
            return _Tensor(self.of, self.dtype, self.device, (math.prod(self.shape),), (1,), self._ptr)
        shape, width = self.shape, getattr(to, "itemsize", None)
        if width != self.dtype.itemsize:
            if width is None or len(shape) != 1:
                raise Untraceable(f"{self.of}.view({to})")
            shape = (shape[0] * self.dtype.itemsize // width,)
        return _Tensor(self.of, to, self.device, shape, self._strides, self._ptr)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Untraceable(f"{self.of}.{name}")


class _Int(int):
    """Stands for an integer argument."""

    of: str
    trace: Trace

    def unread(self) -> int:
        return int.__pos__(self)


class _Float(float):
    """Stands for a floating-point argument."""

    of: str
    trace: Trace

    def unread(self) -> float:
        return float.__pos__(self)


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    def noting(self: Any, *arguments: Any) -> Any:
        self.trace.read.add(self.of)
        return method(self, *arguments)

    return noting


for _kind in (_Int, _Float):
    for _name in (
        "add sub mul truediv floordiv mod divmod pow and or xor lshift rshift radd rsub rmul rtruediv rfloordiv rmod "
        "rdivmod rpow rand ror rxor rlshift rrshift lt le eq ne gt ge neg pos abs invert bool int float index hash "
        "trunc round floor ceil str repr format"
    ).split():
        if hasattr(_kind, f"__{_name}__"):
            setattr(_kind, f"__{_name}__", _noting(getattr(_kind.__mro__[1], f"__{_name}__")))


def _stand_in(trace: Trace, name: str, value: Any) -> Any:
    if hasattr(value, "data_ptr"):
        return _Tensor(name, value.dtype, value.device, value.shape, value.stride(), value.data_ptr())
    if isinstance(value, bool):  # which no class can be derived from
        trace.read.add(name)
        return value
    number: Any = (_Float if isinstance(value, float) else _Int)(value)
    number.of, number.trace = name, trace
    return number


def _plain(value: Any) -> Any:
    """The number that a stand-in among arguments stands for, noted as read."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return int(value) if type(value) is _Int else float(value) if type(value) is _Float else value


class _Torch:
    """Stands for the name `torch`: what host functions use of it."""

    def __init__(self, trace: Trace, arguments: Sequence[Any]) -> None:
        import torch

        self._torch, self._trace = torch, trace
        self._device = next((each.device for each in arguments if hasattr(each, "data_ptr")), None)
        self.cuda = types.SimpleNamespace(
            device_of=lambda tensor: contextlib.nullcontext(),
            is_available=torch.cuda.is_available,
            current_device=torch.cuda.current_device,
            get_device_properties=torch.cuda.get_device_properties,
        )

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._torch, name)
        if not isinstance(value, self._torch.dtype):
            raise Untraceable(f"torch.{name}")
        return value

    def empty(self, shape: Sequence[int], *, dtype: Any, device: Any) -> _Tensor:
        return self._make("empty_strided", (_plain(shape), row_major(_plain(shape))), dtype, device)

    def empty_strided(self, shape: Sequence[int], strides: Sequence[int], *, dtype: Any, device: Any) -> _Tensor:
        return self._make("empty_strided", (_plain(shape), _plain(strides)), dtype, device)

    def zeros(self, shape: Sequence[int], *, dtype: Any, device: Any) -> _Tensor:
        return self._make("zeros", (_plain(shape),), dtype, device)

    def _make(self, function: str, arguments: tuple[Any, ...], dtype: Any, device: Any) -> _Tensor:
        if device != self._device:
            raise Untraceable(f"a tensor on {device}, beside arguments on {self._device}")
        name, shape = f"made{len(self._trace.allocations)}", arguments[0]
        self._trace.allocations.append(Allocation(function, arguments, dtype))
        strides = arguments[1] if len(arguments) > 1 else row_major(shape)
        return _Tensor(name, dtype, device, shape, strides, 0)  # what torch allocates is aligned, as 0 is


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


class _Recorder:
    """Stands for a jitted function: `f[grid](...)` compiles it for the arguments and notes the launch."""

    def __init__(self, trace: Trace, function: Any) -> None:
        self._trace, self._function = trace, function

    def __getitem__(self, grid: Sequence[Any]) -> Callable[..., None]:
        sizes = (*_plain(grid), 1, 1)[:3]

        def record(*arguments: Any, **options: Any) -> None:
            noted = [_argument(each, arguments[:number]) for number, each in enumerate(arguments)]
            given = [each.unread() if isinstance(each, (_Int, _Float)) else each for each in arguments]
            compiled = launch_stored.find(self._function, given, options)
            if compiled is None:
                compiled = self._function.run(*given, grid=sizes, warmup=True, **options)
                compiled = compiled.result() if hasattr(compiled, "result") else compiled
            if compiled is None:
                raise Untraceable("a hook keeps Triton from compiling")
            self._trace.launches.append(TracedLaunch(compiled, sizes, tuple(noted)))

        return record


def _argument(value: Any, before: Sequence[Any]) -> Pointer | Scalar | Descriptor | int | float | bool:
    if isinstance(value, _Tensor):
        return Pointer(value.of)
    if type(value) in (_Int, _Float):
        return Scalar(value.of)
    if isinstance(value, (int, float)):
        return value
    if type(value).__name__ == "TensorDescriptor" and isinstance(value.base, _Tensor):
        return Descriptor(Pointer(value.base.of), sum(type(each) is type(value) for each in before), value)
    if value is None:
        raise Untraceable("a kernel takes the descriptor of an empty tensor")
    raise Untraceable(f"a kernel's argument is a {type(value).__name__}")
