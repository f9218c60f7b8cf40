"""Runs emitted Gluon source on the CPU: partitions as threads, barriers with phases, and products done when waited for.

Products read shared memory as late as they may, so that a tile that is released too early shows in the results; to use
a product before it is waited for is an error, and so is waiting for what nobody will do.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

SECONDS = 20.0  # after which a wait is taken for a deadlock


class Tensor(np.ndarray):  # type: ignore[type-arg]
    def to(self, dtype: Any) -> Tensor:
        return self.astype(dtype).view(Tensor)

    def broadcast_to(self, shape: Sequence[int]) -> Tensor:
        return np.broadcast_to(self, shape).view(Tensor)


def _tensor(value: Any) -> Any:
    array = np.asarray(value)
    return array.view(Tensor) if array.shape else array.item()


class Pointer:
    def __init__(self, array: Any, offset: Any = 0) -> None:
        self.array, self.offset = array, offset

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.array, self.offset + offset)


class Shared:
    """A view of shared memory."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def index(self, i: int) -> Shared:
        return Shared(self.array[i])

    def reshape(self, shape: Sequence[int]) -> Shared:
        return Shared(self.array.reshape(shape))

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.array.transpose(order))

    def load(self, layout: Any) -> Tensor:
        return np.array(self.array).view(Tensor)

    def store(self, value: Any) -> None:
        self.array[...] = value


class Barrier:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.pending = self.bytes = self.phase = 0

    def index(self, i: int) -> Barrier:
        assert i == 0
        return self

    def update(self, arrivals: int, size: int) -> None:
        with self.changed:
            self.pending -= arrivals
            self.bytes += size
            assert self.pending >= 0, "more arrivals than the barrier counts"
            if not self.pending and not self.bytes:
                self.phase, self.pending = self.phase ^ 1, self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.phase != parity, SECONDS):
                raise TimeoutError("deadlock")


class Product:
    """A product on its way."""

    def __init__(self, a: Any, b: Shared, acc: Any, use_acc: bool) -> None:
        self.a, self.b, self.acc, self.use_acc = a, b, acc, use_acc
        self.value: Any = None

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a product is used before it is waited for")

    def finish(self) -> None:
        a = self.a.array if isinstance(self.a, Shared) else self.a
        acc = self.acc.value if isinstance(self.acc, Product) else self.acc
        made = np.asarray(a, np.float32) @ np.asarray(self.b.array, np.float32)
        self.value = (made + acc if self.use_acc else made).astype(np.float32).view(Tensor)


class Machine:
    """What the names in an emitted module stand for."""

    def __init__(self) -> None:
        self.local = threading.local()
        self.failures: list[BaseException] = []
        self.grid: tuple[int, ...] = ()
        self.program: tuple[int, ...] = ()

    def namespace(self) -> dict[str, Any]:
        language: dict[str, Any] = {
            "constexpr": lambda value: value, "static_range": range, "to_tensor": lambda value: value,
            "num_programs": lambda axis: self.grid[axis], "program_id": lambda axis: self.program[axis],
            "float16": np.float16, "float32": np.float32, "int32": np.int32, "int64": np.int64,
            "exp2": np.exp2, "log2": np.log2, "abs": np.abs, "maximum": lambda a, b: _tensor(np.fmax(a, b)),
            "minimum": lambda a, b: _tensor(np.fmin(a, b)), "where": lambda c, a, b: _tensor(np.where(c, a, b)),
            "max": lambda x, axis: _tensor(np.max(x, axis)), "sum": lambda x, axis: _tensor(np.sum(x, axis)),
            "zeros": lambda shape, dtype, layout: np.zeros(shape, dtype).view(Tensor),
            "full": lambda shape, value, dtype, layout: np.full(shape, value, dtype).view(Tensor),
            "arange": lambda start, end, layout: np.arange(start, end).view(Tensor),
            "convert_layout": lambda value, layout: value, "reshape": lambda x, shape: _tensor(np.reshape(x, shape)),
            "cast": lambda x, dtype: _tensor(np.asarray(x).astype(dtype)),
            "split": lambda x: (x[..., 0], x[..., 1]), "join": lambda a, b: _tensor(np.stack([a, b], axis=-1)),
            "store": _store, "load": _load,
            "inline_asm_elementwise": _assemble,
            "allocate_shared_memory": _allocate, "warp_specialize": self._specialize,
            **{name: lambda *a, name=name, **k: (name, a, tuple(k.items())) for name in
               ("NVMMADistributedLayout", "SliceLayout", "DotOperandLayout", "NVMMASharedLayout")},
        }  # fmt: skip
        barriers = SimpleNamespace(
            MBarrierLayout=lambda: "barrier", init=_init, wait=lambda barrier, parity: barrier.wait(parity),
            expect=lambda barrier, size: barrier.update(1, size),
            arrive=lambda barrier, count, pred=True: barrier.update(count, 0) if pred else None,
        )  # fmt: skip
        boxes = SimpleNamespace(async_load=_load_box, async_store=_store_box, store_wait=lambda left: None)
        return {
            "gluon": SimpleNamespace(jit=lambda function: _Launched(self, function)), "gl": SimpleNamespace(**language),
            "mbarrier": barriers, "tma": boxes, "fence_async_shared": lambda: None, "TensorDescriptor": _Descriptor,
            "warpgroup_mma": self._multiply, "warpgroup_mma_wait": self._wait,
        }  # fmt: skip

    def _specialize(self, partitions: Any, warps: Sequence[int], registers: Sequence[int]) -> None:
        def run(function: Callable[..., None], arguments: Any) -> None:
            self.local.products = []
            try:
                function(*arguments)
                assert not self.local.products, "a product is never waited for"
            except BaseException as error:
                self.failures.append(error)

        threads = [threading.Thread(target=run, args=each, daemon=True) for each in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise next((each for each in self.failures if not isinstance(each, TimeoutError)), self.failures[0])

    def _multiply(self, a: Any, b: Any, acc: Any, use_acc: bool = True, is_async: bool = False) -> Product:
        assert is_async
        self.local.products.append(Product(a, b, acc, use_acc))
        return self.local.products[-1]  # type: ignore[no-any-return]

    def _wait(self, left: int, deps: Sequence[Any]) -> Any:
        products = self.local.products
        while len(products) > left:
            products.pop(0).finish()
        values = tuple(
            each.value if isinstance(each, Product) and each.value is not None else each for each in deps
        )  # fmt: skip
        return values if len(values) > 1 else values[0]


class _Launched:
    def __init__(self, machine: Machine, function: Callable[..., None]) -> None:
        self.machine, self.function = machine, function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            values = [Pointer(each.numpy().reshape(-1)) if torch.is_tensor(each) else each for each in arguments]
            self.machine.grid = grid
            for self.machine.program in np.ndindex(*grid):
                self.function(*values)

        return launch


class _Descriptor:
    def __init__(self, base: Any, shape: Any, strides: Any, block: Sequence[int], layout: Any) -> None:
        self.array, self.block, self.layout = base.numpy(), tuple(block), layout

    def part(self, starts: Sequence[int]) -> tuple[Any, Any]:
        """Where a box lies in the array, and which part of the box that is."""
        inside = [
            (max(start, 0), min(start + extent, size))
            for start, extent, size in zip(starts, self.block, self.array.shape)
        ]
        return (
            tuple(slice(low, max(low, high)) for low, high in inside),
            tuple(slice(low - start, max(low, high) - start) for (low, high), start in zip(inside, starts)),
        )


def _load_box(descriptor: _Descriptor, starts: Sequence[int], barrier: Barrier, place: Shared) -> None:
    source, into = descriptor.part(starts)
    place.array[...] = 0
    place.array[into] = descriptor.array[source]
    barrier.update(0, -place.array.nbytes)


def _store_box(descriptor: _Descriptor, starts: Sequence[int], place: Shared) -> None:
    into, source = descriptor.part(starts)
    descriptor.array[into] = place.array[source]


def _store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    seen = np.ones(np.shape(value), bool) if mask is None else np.broadcast_to(mask, np.shape(value))
    pointer.array[np.asarray(pointer.offset)[seen]] = np.asarray(value)[seen]


def _load(pointer: Pointer, mask: Any = True, other: Any = 0) -> Any:
    offsets, seen = np.broadcast_arrays(pointer.offset, mask)
    return _tensor(np.where(seen, pointer.array[np.where(seen, offsets, 0)], other))


def _assemble(text: str, constraints: str, args: Sequence[Any], **options: Any) -> Any:
    """Nothing; two halves as one register or one as two; all elements multiplied unless all factors are 1."""
    if text.startswith("mov.b32 $0"):
        halves = [np.ascontiguousarray(each).view(np.uint16).astype(np.uint32) for each in args]
        return _tensor((halves[0] | halves[1] << 16).view(np.int32))
    if text.startswith("mov.b32 {$0"):
        whole = np.ascontiguousarray(args[0]).view(np.uint32)
        parts = [(whole & 0xFFFF).astype(np.uint16), (whole >> 16).astype(np.uint16)]
        return [_tensor(part.view(dtype)) for part, dtype in zip(parts, options["dtype"], strict=True)]
    assert not text or ("mul.f32" in text and len(args) == 2)
    return _tensor(np.multiply(*args)) if text else args[0]


def _allocate(dtype: Any, shape: Sequence[int], layout: Any) -> Any:
    if layout == "barrier":
        barriers = [Barrier() for _ in range(shape[0])]
        return SimpleNamespace(index=lambda i: barriers[i])
    return Shared(np.full(shape, np.nan, dtype))


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.pending = count


def functions(source: str, program: int, programs: int) -> dict[str, Any]:
    """The functions of a text, as one of so many programs calls them."""
    machine = Machine()
    machine.grid, machine.program = (programs,), (program,)
    namespace = machine.namespace()
    exec(compile(source, "emitted", "exec"), namespace)
    return namespace


def run_gluon(source: str, entry: str, *tensors: Any) -> None:
    """Call the host function of an emitted module on CPU tensors; results are written into them."""
    text = re.sub(r"^from triton\.experimental.*?(?:\($.*?^\)$|$)", "", source, flags=re.MULTILINE | re.DOTALL)
    namespace = Machine().namespace()
    exec(compile(text, "emitted", "exec"), namespace)
    namespace["gdc_wait"] = lambda: None  # one kernel after the other
    namespace[entry](*tensors)
