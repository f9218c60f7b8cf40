"""A stand-in for Gluon on Hopper: partitions that wait for one another, and products done as late as they may be.

Partitions take turns: one runs until it waits for a barrier's phase. If all wait, that is a deadlock and an error. A
product, and a copy to global memory, read shared memory when they are waited for, so that a tile that is released or
overwritten too early shows in the results; to use a product before, or never to wait, is an error too. So is a copy or
a product of shared memory that threads have written, without a fence between.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiledsl.certificate.algebra import ExecutorError
from tiledsl.certificate.source.tensor import DType, Tensor, lift
from tiledsl.certificate.source.triton import Descriptor, Language
from tiledsl.ir.types import ELEMENTS


class Shared:
    """A view of shared memory."""

    def __init__(self, language: GluonLanguage, array: np.ndarray, dtype: str) -> None:
        self.language, self.array, self.element = language, array, dtype

    def _like(self, array: np.ndarray) -> Shared:
        return Shared(self.language, array, self.element)

    def index(self, i: Any) -> Shared:
        if not 0 <= int(i) < len(self.array):
            raise ExecutorError(f"tile {int(i)} of a ring of {len(self.array)}")
        return self._like(self.array[int(i)])

    def reshape(self, shape: Sequence[int]) -> Shared:
        made = self.array.reshape(tuple(shape))
        if not np.shares_memory(made, self.array):
            raise ExecutorError("a reshape that moves shared memory")
        return self._like(made)

    def permute(self, order: Sequence[int]) -> Shared:
        return self._like(self.array.transpose(order))

    def load(self, layout: Any) -> Tensor:
        return Tensor(self.language.algebra, self.array.copy(), self.element)

    def store(self, value: Tensor) -> None:
        if value.element != self.element or value.shape != self.array.shape:
            raise ExecutorError(f"{value!r} is stored to shared memory {self.array.shape} of {self.element}")
        self.array[...] = value.array
        self.language.here().unfenced.add(self._allocation)

    @property
    def _allocation(self) -> int:
        return id(self.array if self.array.base is None else self.array.base)

    def must_be_fenced(self) -> None:
        if self._allocation in self.language.here().unfenced:
            raise ExecutorError("hardware reads shared memory that was written without a fence")


class Barrier:
    """Counts arrivals and bytes; when none is left to come, its phase changes."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.count = self.pending = self.bytes = self.phase = 0

    def index(self, i: int) -> Barrier:
        if int(i) != 0:
            raise ExecutorError("a barrier is one")
        return self

    def update(self, arrivals: int, size: int) -> None:
        self.pending -= arrivals
        self.bytes += size
        if self.pending < 0:
            raise ExecutorError("more arrivals than a barrier counts")
        if not self.pending and not self.bytes:
            self.phase, self.pending = self.phase ^ 1, self.count
            self.turns.step_back()

    def wait(self, parity: Any) -> None:
        self.turns.until(lambda: self.phase != int(parity))


class Turns:
    """Partitions of which one runs at a time."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.running = 0
        self.waiting: dict[int, Callable[[], bool]] = {}
        self.alive: list[int] = []
        self.failure: BaseException | None = None
        self.here = threading.local()

    def until(self, holds: Callable[[], bool]) -> None:
        """Go on when a condition holds; until then others do."""
        if holds():
            return
        if not self.alive:
            raise ExecutorError("a wait for what nobody does")
        self._step_back(holds)

    def step_back(self) -> None:
        """Let others go on first: whoever waited for this overwrites what was released too early."""
        if self.alive:
            self._step_back(lambda: True)

    def _step_back(self, holds: Callable[[], bool]) -> None:
        me = self.here.number
        self.waiting[me] = holds
        self._pass_on()
        self._mine(me)
        del self.waiting[me]

    def _pass_on(self) -> None:
        """Let the last one run that can, which is the producer: it overwrites tiles as early as it may."""
        with self.changed:
            for each in reversed(self.alive):
                if each not in self.waiting or self.waiting[each]():
                    self.running = each
                    break
            else:
                if self.alive:
                    self.failure = self.failure or ExecutorError("deadlock: every partition waits")
            self.changed.notify_all()

    def _mine(self, me: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.running == me or self.failure is not None)
            if self.failure is not None:
                raise _Stopped

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run all to their end. Raises what one of them raised first."""
        self.alive, self.running = list(range(len(functions))), len(functions) - 1

        def partition(number: int, function: Callable[[], None]) -> None:
            self.here.number = number
            try:
                self._mine(number)
                with np.errstate(all="ignore"):
                    function()
            except _Stopped:
                return
            except BaseException as error:
                with self.changed:
                    self.failure = self.failure or error
                    self.changed.notify_all()
                return
            self.alive.remove(number)
            self._pass_on()

        threads = [threading.Thread(target=partition, args=each, daemon=True) for each in enumerate(functions)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.alive = []
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


class _Stopped(Exception):
    """Another partition failed."""


class Product:
    """A product on its way. Only a wait, or another product, may take it."""

    def __init__(self, language: GluonLanguage, a: Any, b: Any, acc: Any, use_acc: bool) -> None:
        self.language, self.a, self.b, self.acc, self.use_acc = language, a, b, acc, use_acc
        self.value: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        raise ExecutorError("a product is used before it is waited for")

    def finish(self) -> None:
        acc: Any = self.acc.value if isinstance(self.acc, Product) else self.acc
        algebra = self.language.algebra
        compute = algebra.dot(self.a.element, self.b.element, acc.element)
        self.value = Tensor(
            algebra, compute(self.a.array, self.b.array, acc.array if self.use_acc else None), acc.element
        )


@dataclass
class _Partition:
    """What a partition has begun and not waited for."""

    products: list[Product] = field(default_factory=list)
    copies: list[Callable[[], None]] = field(default_factory=list)
    unfenced: set[int] = field(default_factory=set)  # allocations that its threads wrote since the last fence


class Packed(Tensor):
    """Pairs of 16-bit values, as 32-bit integers that are only kept."""

    def __init__(self, even: Tensor, odd: Tensor) -> None:
        super().__init__(even.algebra, np.zeros(even.shape, np.int32), "int32")
        self.halves = even, odd


class GluonLanguage(Language):
    """The functions of gluon.language and of its part for Hopper."""

    def __init__(self, algebra: Any) -> None:
        super().__init__(algebra)
        self.turns = Turns()
        self.partitions: dict[int, _Partition] = {}

    def here(self) -> _Partition:
        """The partition that runs."""
        return self.partitions.setdefault(getattr(self.turns.here, "number", -1), _Partition())

    def module(self) -> SimpleNamespace:
        """What stands for `gl`, and for `tl`."""
        language = super().module()
        layouts = ("NVMMADistributedLayout", "SliceLayout", "DotOperandLayout", "NVMMASharedLayout", "BlockedLayout")
        for name in layouts:
            setattr(language, name, lambda *a, _name=name, **k: (_name, a, tuple(sorted(k.items()))))
        language.to_tensor = lambda value: lift(self.algebra, value)
        language.convert_layout = lambda value, layout: value
        language.barrier = lambda: None
        language.split, language.join = self._split, self._join
        language.inline_asm_elementwise = self._assemble
        language.allocate_shared_memory = self._allocate
        language.warp_specialize = self._specialize
        language.static_range = range
        return language

    def hopper(self) -> SimpleNamespace:
        """What the module for Hopper has."""
        barriers = SimpleNamespace(
            MBarrierLayout=lambda: "barrier",
            init=_init,
            wait=lambda barrier, parity: barrier.wait(parity),
            expect=lambda barrier, size: barrier.update(1, int(size)),
            arrive=lambda barrier, count=1, pred=True: barrier.update(int(count), 0) if pred else None,
        )
        boxes = SimpleNamespace(async_load=_load_box, async_store=self._store_box, store_wait=self._store_wait)
        return SimpleNamespace(
            fence_async_shared=lambda: self.here().unfenced.clear(), mbarrier=barriers, tma=boxes,
            warpgroup_mma=self._multiply, warpgroup_mma_wait=self._wait, warpgroup_mma_init=self._begun,
        )  # fmt: skip

    def _specialize(self, partitions: Sequence[Any], warps: Sequence[int], registers: Sequence[int]) -> None:
        def run(function: Callable[..., None], arguments: Any) -> Callable[[], None]:
            def partition() -> None:
                function(*arguments)
                if self.here().products:
                    raise ExecutorError("a product is never waited for")
                if self.here().copies:
                    raise ExecutorError("a copy to global memory is never waited for")

            return partition

        self.partitions = {}
        self.turns.run([run(*each) for each in partitions])

    def _store_box(self, descriptor: Descriptor, starts: Sequence[Any], place: Shared) -> None:
        place.must_be_fenced()
        tile = Tensor(descriptor.algebra, place.array, place.element)
        self.here().copies.append(lambda: descriptor.store(starts, tile))

    def _store_wait(self, left: int) -> None:
        copies = self.here().copies
        while len(copies) > left:
            copies.pop(0)()

    def _multiply(self, a: Any, b: Any, acc: Any, use_acc: bool = True, is_async: bool = False, **_: Any) -> Any:
        for each in (a, b):
            if isinstance(each, Shared):
                each.must_be_fenced()
        product = Product(self, a, b, acc, bool(use_acc))
        self.here().products.append(product)
        return product if is_async else self._wait(0, [product])

    def _begun(self, value: Tensor) -> Product:
        """A sum that no product has been added to."""
        made = Product(self, None, None, value, True)
        made.value = value
        return made

    def _wait(self, left: int, deps: Sequence[Any]) -> Any:
        pending = self.here().products
        while len(pending) > left:
            pending.pop(0).finish()
        values = tuple(
            each.value if isinstance(each, Product) and each.value is not None else each for each in deps
        )  # fmt: skip
        return values if len(values) > 1 else values[0]

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.like(x.array[..., 0]), x.like(x.array[..., 1])

    def _join(self, a: Tensor, b: Tensor) -> Tensor:
        return a.like(np.stack([a.array, b.array], axis=-1))

    def _assemble(self, text: str, constraints: str, args: Sequence[Any], **options: Any) -> Any:
        """Nothing; two halves as one register or one as two; all elements multiplied unless all factors are 1."""
        if not text:
            return args[0]
        if text.startswith("mov.b32 $0"):
            return Packed(*args)
        if text.startswith("mov.b32 {$0"):
            if not isinstance(args[0], Packed) or any(
                each.element != dtype.name for each, dtype in zip(args[0].halves, options["dtype"], strict=True)
            ):
                raise ExecutorError("what is unpacked was not packed")
            return args[0].halves
        if "mul.f32" not in text or len(args) != 2:
            raise ExecutorError(f"assembly {text!r}")
        return args[0] * args[1]

    def _allocate(self, dtype: DType, shape: Sequence[int], layout: Any) -> Any:
        if layout == "barrier":
            barriers = [Barrier(self.turns) for _ in range(shape[0])]
            return SimpleNamespace(index=lambda i: barriers[int(i)])
        made = np.full(tuple(shape), self.algebra.poison(dtype.name), self.algebra.dtype(dtype.name))
        return Shared(self, made, dtype.name)


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.pending = int(count)


def _load_box(descriptor: Descriptor, starts: Sequence[Any], barrier: Barrier, place: Shared) -> None:
    found = descriptor.load(starts)
    place.array[...] = found.array
    barrier.update(0, -math.prod(descriptor.block) * ELEMENTS[descriptor.element].bits // 8)
