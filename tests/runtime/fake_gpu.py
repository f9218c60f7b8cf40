"""A stand-in for CUDA devices and for Triton's compiled kernels, to test what launches hand to the driver."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tiledsl.kernels.kernel import Kernel
from tiledsl.runtime import launch_triton
from tiledsl.runtime.launch_trace import _Tensor


class OnDevice0(torch.Tensor):
    """A tensor that says it lies on cuda:0."""

    index = 0

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index)

    def get_device(self) -> int:
        return self.index


class OnDevice1(OnDevice0):
    index = 1


def tensor(*shape: int, dtype: torch.dtype = torch.float32, index: int = 0) -> Any:
    """A contiguous tensor on a pretended device."""
    return torch.zeros(shape, dtype=dtype).as_subclass(OnDevice1 if index else OnDevice0)


def misaligned(given: Any) -> Any:
    """The same tensor, beginning at no multiple of 16 bytes."""
    longer = torch.zeros(given.numel() + 1, dtype=given.dtype).as_subclass(type(given))
    return longer[1:].view(given.shape)


class Driver:
    """What was compiled and launched. `launches` has (kernel, grid, stream, arguments) of each."""

    def __init__(self) -> None:
        self.device = 0
        self.stream = 7
        self.entered: list[int] = []
        self.compiled: list[tuple[str, Any]] = []
        self.launches: list[tuple[str, tuple[int, ...], int, tuple[Any, ...]]] = []
        self.promised: list[Any] = []  # of each launch, what its kernel was compiled for
        self.ordinary: list[str] = []
        self.scratch = 0
        self.spills = 0  # registers that each kernel spills

    @contextlib.contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        before, self.device = self.device, device
        self.entered.append(device)
        yield
        self.device = before


class Jitted:
    """Stands for Triton's JITFunction: specialises on alignment and on integers, as Triton does."""

    device_caches: dict[int, Any] = {}

    def __init__(self, driver: Driver, name: str, convention: str) -> None:
        self.driver, self.name, self.convention = driver, name, convention

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: self.driver.ordinary.append(self.name)

    def run(self, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        assert warmup and all(isinstance(each, (_Tensor, int, float)) for each in arguments)
        kinds = tuple(
            ("pointer", each.data_ptr() % 16 == 0)
            if isinstance(each, _Tensor)
            else (type(each), each == 1, each % 16 == 0)
            for each in arguments
        )
        self.driver.compiled.append((self.name, kinds))
        metadata = types.SimpleNamespace(name=self.name)
        return types.SimpleNamespace(
            run=Launcher(self, kinds),
            function=99,
            packed_metadata=(4, 1, 0),
            metadata=metadata,
            n_spills=self.driver.spills,
        )


class Launcher:
    """Stands for Triton's CudaLauncher."""

    profile_scratch_size = 0
    launch_cooperative_grid = launch_pdl = False
    arg_annotations, kernel_signature = ["annotations"], b"signature"

    def __init__(self, jitted: Jitted, kinds: Any) -> None:
        self.jitted, self.kinds = jitted, kinds
        self.global_scratch_size = jitted.driver.scratch

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, packed: Any, *rest: Any) -> None:
        assert function == 99 and packed == (4, 1, 0) and rest[:3] == (None, None, None)
        self.jitted.driver.launches.append((self.jitted.name + " by run", (x, y, z), stream, rest[3:]))

    def launch(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        assert function == 99 and rest[:2] == (False, False)
        if self.jitted.convention == "3.6":
            assert rest[2:8] == (None, None, (4, 1, 0), None, None, None)
            arguments = rest[8:]
        else:
            assert rest[2:8] == ((4, 1, 0), None, None, None, None, None) and rest[8:10] == (
                ["annotations"],
                b"signature",
            )
            (arguments,) = rest[10:]
        self.jitted.driver.promised.append(self.kinds)
        self.jitted.driver.launches.append((self.jitted.name, (x, y, z), stream, arguments))


def pretend(kernel: Kernel, driver: Driver, monkeypatch: pytest.MonkeyPatch, convention: str = "3.6") -> Kernel:
    """Have a kernel compiled for cuda:90 run on the pretended devices."""
    from tiledsl.runtime.module import load_module

    module = types.ModuleType("pretended")
    module.__dict__.update(load_module(kernel.name, kernel.source, interpret=False).__dict__)
    functions = {name: value for name, value in module.__dict__.items() if isinstance(value, types.FunctionType)}
    for name, value in functions.items():
        if value.__module__ is not None and value.__code__.co_filename == module.__file__:
            setattr(module, name, types.FunctionType(value.__code__, module.__dict__, name, value.__defaults__))
    for each in kernel.module.kernels:
        setattr(module, each.name, Jitted(driver, each.name, convention))
    allocate = lambda shape, dtype, device: tensor(*shape, dtype=dtype, index=device.index)
    module.__dict__["torch"] = types.SimpleNamespace(**{**vars(torch), "empty": allocate})
    kernel.__dict__["loaded"] = module
    monkeypatch.setattr(launch_triton, "_triton_version", lambda: convention)
    launch_triton.knobs.cache_clear()
    monkeypatch.setattr(
        launch_triton,
        "device_functions",
        lambda: (lambda: driver.device, lambda device: driver.stream + device, driver.on_device),
    )
    made = lambda shape, strides, dtype: tensor(*shape, dtype=dtype, index=driver.device)
    monkeypatch.setattr(launch_triton, "fast_empty", lambda: made)
    monkeypatch.setattr(launch_triton, "has_one_device", lambda: False)
    return kernel
