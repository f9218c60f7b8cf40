"""A stand-in for Gluon on Hopper: partitions that wait for one another, and products done as late as they may be.

Partitions take turns: one runs until it waits for a barrier's phase. If all wait, that is a deadlock and an error. What
of this hangs on the order of the turns is an error as well (certificate/source/order.py): a tile that may be released
or overwritten too early, a wait that may see another phase. So are a product that is used before it is waited for, or
never, whose operand in registers the wait does not name, a copy or a product of shared memory that threads have written
(or a copy to where they have read) without a fence between, and a barrier that is left amid a phase.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiledsl.certificate.algebra import ExecutorError
from tiledsl.certificate.source.order import Access, Clock, Places, Warps, known_to
from tiledsl.certificate.source.tensor import DType, Tensor, lift
from tiledsl.certificate.source.triton import Descriptor, Language
from tiledsl.ir.types import ELEMENTS

_ROUNDING = re.compile(r"cvt\.rn\.satfinite\.(e4m3|e5m2)x2\.f32")
_FLOAT8 = {"e4m3": "e4m3fn", "e5m2": "e5m2"}


class Shared:
    """A view of shared memory. `place`: the same memory, before it was transposed or seen in another shape."""

    def __init__(self, language: GluonLanguage, array: np.ndarray, dtype: str, place: np.ndarray | None = None) -> None:
        self.language, self.array, self.element = language, array, dtype
        self.place = array if place is None else place
        self.in_words = False

    def index(self, i: Any) -> Shared:
        if not 0 <= int(i) < len(self.array):
            raise ExecutorError(f"tile {int(i)} of a ring of {len(self.array)}")
        return Shared(self.language, self.array[int(i)], self.element)

    def reshape(self, shape: Sequence[int]) -> Shared:
        made = self.array.reshape(tuple(shape))
        if not np.shares_memory(made, self.array):
            raise ExecutorError("a reshape that moves shared memory")
        return Shared(self.language, made, self.element, self.place)

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.language, self.array.transpose(order), self.element, self.place)

    def slice(self, start: Any, length: int, dim: int) -> Shared:
        first, end = int(start), int(start) + length
        if not 0 <= first < end <= self.array.shape[dim]:
            raise ExecutorError(f"{first} to {end} of dimension {dim} of shared memory {self.array.shape}")
        return Shared(self.language, self.array[(slice(None),) * dim + (slice(first, end),)], self.element)

    def reinterpret(self, dtype: DType, shape: Sequence[int], layout: Any) -> Shared:
        if dtype.name != "int32" or ELEMENTS[self.element].bits != 8 or math.prod(shape) * 4 != self.array.size:
            raise ExecutorError(f"shared memory {self.array.shape} of {self.element} is no {shape} of {dtype.name}")
        made = Shared(self.language, self.array.reshape(-1, shape[-1], 4), self.element, self.place)
        made.in_words = True
        return made

    def load(self, layout: Any) -> Tensor:
        self.language.places.now("load", self.place, self.language.here().warps)
        if self.in_words:
            parts = [Tensor(self.language.algebra, self.array[..., n].copy(), self.element) for n in range(4)]
            return Words(parts)
        return Tensor(self.language.algebra, self.array.copy(), self.element)

    def store(self, value: Tensor) -> None:
        if value.element != self.element or value.shape != self.array.shape:
            raise ExecutorError(f"{value!r} is stored to shared memory {self.array.shape} of {self.element}")
        self.language.places.now("store", self.place, self.language.here().warps, writes=True)
        self.array[...] = value.array


class Barrier:
    """Counts arrivals and bytes; when none is left to come, a phase is over."""

    def __init__(self, language: GluonLanguage) -> None:
        self.language = language
        self.count = self.pending = self.bytes = self.phases = 0
        self.coming, self.known = Clock(), Clock()  # what the phase's arrivals know so far; what the last one's knew
        self.waited: list[dict[Any, int]] = []  # when waits for the last phase were over

    def index(self, i: int) -> Barrier:
        if int(i) != 0:
            raise ExecutorError("a barrier is one")
        return self

    def update(self, arrivals: int, size: int, known: Clock) -> None:
        if known.get(self, 0) < self.phases:
            raise ExecutorError("an arrival may come before the barrier's last phase is over")
        self.coming.learn(known)
        self.pending -= arrivals
        self.bytes += size
        if self.pending < 0:
            raise ExecutorError("more arrivals than a barrier counts")
        if not self.pending and not self.bytes:
            self.phases, self.pending = self.phases + 1, self.count
            if any(self.coming.get(who, 0) < time for moment in self.waited for who, time in moment.items()):
                raise ExecutorError("a barrier's phase may be over before another partition has seen the one before it")
            self.waited.clear()
            self.coming[self] = self.phases
            self.known = Clock(self.coming)

    def wait(self, parity: Any) -> None:
        warps = self.language.here().warps
        self.language.turns.until(lambda: self.phases % 2 != int(parity))
        if self.phases > 1 and not warps.knows({self: self.phases - 1}):
            raise ExecutorError("a wait may see the phase before the last one, which has the same parity")
        warps.learn(self.known)
        self.waited.append(warps.now())


class Turns:
    """Partitions of which one runs at a time: until it waits, then the last one that can, which is the producer.

    choose: which of those that can go on does so next, at every barrier; negative numbers are copies that arrive."""

    def __init__(self, choose: Callable[[Sequence[int]], int] | None = None) -> None:
        self.choose = choose
        self.changed = threading.Condition()
        self.running = 0
        self.waiting: dict[int, Callable[[], bool]] = {}
        self.alive: list[int] = []
        self.arriving: list[Callable[[], None]] = []
        self.failure: BaseException | None = None
        self.here = threading.local()

    def until(self, holds: Callable[[], bool]) -> None:
        """Go on when a condition holds; until then others do."""
        if holds() and self.choose is None:
            return
        if not self.alive:
            raise ExecutorError("a wait for what nobody does")
        me = self.here.number
        self.waiting[me] = holds
        self._pass_on()
        self._mine(me)
        del self.waiting[me]

    def pause(self) -> None:
        """Let others go on, if one is chosen at every barrier."""
        if self.choose is not None and self.alive:
            self.until(lambda: True)

    def arrives(self, copy: Callable[[], None]) -> None:
        """A copy is done: now, or when it is chosen."""
        if self.choose is None or not self.alive:
            copy()
        else:
            self.arriving.append(copy)

    def _pass_on(self) -> None:
        with self.changed:
            while self.alive:
                able = [each for each in self.alive if each not in self.waiting or self.waiting[each]()]
                able += range(-len(self.arriving), 0)
                if not able:
                    self.failure = self.failure or ExecutorError("deadlock: every partition waits")
                    break
                self.running = able[-1] if self.choose is None else self.choose(able)
                if self.running >= 0:
                    break
                self.arriving.pop(self.running)()
            self.changed.notify_all()

    def _mine(self, me: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.running == me or self.failure is not None)
            if self.failure is not None:
                raise _Stopped

    def run(self, functions: Sequence[Callable[[], None]]) -> None:
        """Run all to their end. Raises what one of them raised first."""
        self.alive, self.waiting, self.running = list(range(len(functions))), {}, len(functions) - 1

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
            if not self.alive:
                while self.arriving:
                    self.arriving.pop()()

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
        self.reads: list[Access] = []

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
    """What a partition knows of others, and what it has begun and not waited for."""

    warps: Warps
    threads: int
    products: list[Product] = field(default_factory=list)
    copies: list[tuple[Access, Callable[[], None]]] = field(default_factory=list)
    asked: list[tuple[Access, Shared, Tensor]] = field(default_factory=list)  # copies by threads, not committed


class Packed(Tensor):
    """Pairs of 16-bit values, as 32-bit integers that are only kept."""

    def __init__(self, even: Tensor, odd: Tensor) -> None:
        super().__init__(even.algebra, np.zeros(even.shape, np.int32), "int32")
        self.halves = even, odd


class Words(Tensor):
    """Fours of 8-bit values, as 32-bit integers that are only kept, or moved together: `array` has their numbers."""

    def __init__(self, parts: Sequence[Tensor], numbers: np.ndarray | None = None, whole: Words | None = None) -> None:
        shape = parts[0].shape
        numbers = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) if numbers is None else numbers
        super().__init__(parts[0].algebra, numbers, "int32")
        self.parts, self.whole = parts, self if whole is None else whole

    def like(self, array: Any) -> Words:
        return Words(self.parts, np.asarray(array), self.whole)

    def exchanged(self) -> Words:
        """Of columns 2t, 2t + 1, 8 + 2t and 9 + 2t of 16 in word t, those from 4t on."""
        rows, words = self.shape
        columns = np.stack([part.array for part in self.parts], axis=-1).reshape(rows, words // 4, 4, 2, 2)
        columns = columns.transpose(0, 1, 3, 2, 4).reshape(rows, words, 4)
        return Words([self.parts[0].like(columns[..., n]) for n in range(4)])

    def __and__(self, other: Any) -> Words:
        return self._bitwise(np.bitwise_and, other)

    def __or__(self, other: Any) -> Words:
        return self._bitwise(np.bitwise_or, other)

    def __xor__(self, other: Any) -> Words:
        return self._bitwise(np.bitwise_xor, other)

    def __lshift__(self, other: Any) -> Words:
        return self._bitwise(np.left_shift, other)

    def __rshift__(self, other: Any) -> Words:
        return self._bitwise(np.right_shift, other)

    def integers(self) -> np.ndarray:
        """The words as int32, of bytes."""
        if self.whole is not self or any(part.element != "uint8" for part in self.parts):
            raise ExecutorError("a word is computed with that does not hold bytes as they were loaded")
        whole: np.ndarray = np.ascontiguousarray(np.stack([part.array for part in self.parts], axis=-1))
        return whole.view("<i4")[..., 0]

    def _bitwise(self, operation: Callable[..., np.ndarray], other: Any) -> Words:
        number = other.integers() if isinstance(other, Words) else int(other)
        if isinstance(number, int) and not -(1 << 31) <= number < 1 << 31:
            raise ExecutorError(f"{number} is no int32")
        made = np.ascontiguousarray(operation(self.integers(), np.int32(number))).view(np.uint8)
        return Words([self.parts[0].like(made[..., n::4]) for n in range(4)])

    def elements(self, dtype: DType) -> OfWords:
        """What words hold that are repeated four times each, side by side."""
        number = self.array.reshape(-1, 4)
        if (number != number[:, :1]).any():
            raise ExecutorError("what is taken out of words is in another order")
        parts = [part.to(dtype, bitcast=True) for part in self.parts]
        found = np.stack([part.array.reshape(-1)[number[:, n]] for n, part in enumerate(parts)], axis=-1)
        made = OfWords(self.algebra, found.reshape(self.shape), dtype.name)
        made.words = self.whole
        return made


class OfWords(Tensor):
    """8-bit values that lie in the registers of `words`."""

    words: Words


class GluonLanguage(Language):
    """The functions of gluon.language and of its part for Hopper."""

    def __init__(self, algebra: Any) -> None:
        super().__init__(algebra)
        self.turns = Turns()
        self.num_warps = 4  # of the launch
        self.places = Places()
        self.barriers: list[Barrier] = []
        self.committed: list[list[tuple[Access, Shared, Tensor]]] = []  # copies by groups
        self.partitions = {-1: self._partition(-1, 4)}

    def _partition(self, number: int, warps: int) -> _Partition:
        return _Partition(Warps(number, -(-warps // 4)), 32 * warps)

    def here(self) -> _Partition:
        """The partition that runs."""
        return self.partitions[getattr(self.turns.here, "number", -1)]

    def module(self) -> SimpleNamespace:
        """What stands for `gl`, and for `tl`."""
        language = super().module()
        layouts = (
            "NVMMADistributedLayout", "SliceLayout", "DotOperandLayout", "NVMMASharedLayout", "BlockedLayout",
            "SwizzledSharedLayout",
        )  # fmt: skip
        for name in layouts:
            setattr(language, name, lambda *a, _name=name, **k: (_name, a, tuple(sorted(k.items()))))
        language.to_tensor = lambda value: lift(self.algebra, value)
        language.convert_layout = lambda value, layout: value
        language.barrier = lambda: self.here().warps.meet()
        language.split, language.join = self._split, self._join
        language.inline_asm_elementwise = self._assemble
        language.allocate_shared_memory = self._allocate
        language.warp_specialize = self._specialize
        language.static_range = range
        language.shared_memory_descriptor = Shared
        return language

    def hopper(self) -> SimpleNamespace:
        """What the module for Hopper has."""
        barriers = SimpleNamespace(
            MBarrierLayout=lambda: "barrier",
            init=_init,
            wait=lambda barrier, parity: barrier.wait(parity),
            expect=lambda barrier, size: barrier.update(1, int(size), self.here().warps.meet()),
            arrive=self._arrive,
        )
        boxes = SimpleNamespace(
            async_load=self._load_box, async_store=self._store_box, async_atomic_add=self._add_box,
            store_wait=self._store_wait,
        )  # fmt: skip
        return SimpleNamespace(
            fence_async_shared=self._fence, mbarrier=barriers, tma=boxes,
            warpgroup_mma=self._multiply, warpgroup_mma_wait=self._wait, warpgroup_mma_init=self._begun,
        )  # fmt: skip

    def ampere(self) -> SimpleNamespace:
        """What the module for Ampere has."""
        copies = SimpleNamespace(
            async_copy_global_to_shared=self._load_ahead, commit_group=self._commit, wait_group=self._arrived,
            mbarrier_arrive=self._arrive_later,
        )  # fmt: skip
        return SimpleNamespace(async_copy=copies)

    def _load_ahead(self, place: Shared, pointer: Tensor, mask: Any = None) -> None:
        """A place may be read when the copy was waited for; where the mask is false, it is 0 then."""
        tile = self.load(pointer, mask, 0)
        if tile.shape != place.array.shape:
            raise ExecutorError(f"{tile!r} is copied to shared memory {place.array.shape}")
        access = self.places.begin("copy", place.place, self.here().warps, writes=True, is_async=True)
        self.here().asked.append((access, place, tile))

    def _commit(self) -> None:
        self.committed.append(self.here().asked)
        self.here().asked = []

    def _arrived(self, left: int) -> None:
        while len(self.committed) > left:
            for access, place, tile in self.committed.pop(0):
                place.array[...] = tile.array
                access.ends = self.here().warps.now()

    def _arrive_later(self, barrier: Barrier, increment_count: bool = True) -> None:
        """Each thread arrives when what it has asked for is there; a barrier that is incremented first counts none."""
        here = self.here()
        copies, here.asked = here.asked, []
        if increment_count:
            raise ExecutorError("copies of which a barrier counts no arrival")
        for access, _, _ in copies:
            access.ends = {barrier: barrier.phases + 1}
        known = Clock()
        for clock in here.warps.clocks.values():
            known.learn(clock)
        here.warps.now()

        def arrive() -> None:
            for _, place, tile in copies:
                place.array[...] = tile.array
            barrier.update(here.threads, 0, known)

        self.turns.arrives(arrive)

    def _specialize(self, partitions: Sequence[Any], warps: Sequence[int], registers: Sequence[int]) -> None:
        def run(function: Callable[..., None], arguments: Any) -> Callable[[], None]:
            def partition() -> None:
                function(*arguments)
                if self.here().products:
                    raise ExecutorError("a product is never waited for")
                if self.here().copies:
                    raise ExecutorError("a copy to global memory is never waited for")
                if self.here().asked:
                    raise ExecutorError("what threads copy to shared memory is never waited for")

            return partition

        counts = [self.num_warps, *warps]
        self.partitions |= {number: self._partition(number, each) for number, each in enumerate(counts)}
        self.turns.run([run(*each) for each in partitions])
        self._ended()

    def _ended(self) -> None:
        """What the partitions left."""
        barriers, self.barriers = self.barriers, []
        for barrier in barriers:
            if barrier.pending != barrier.count or barrier.bytes:
                left = f"{barrier.pending} of {barrier.count} arrivals and {barrier.bytes} bytes"
                raise ExecutorError(f"a barrier is left amid a phase, for want of {left}")
        self.places.ended(known_to(each.warps for each in self.partitions.values()))

    def _arrive(self, barrier: Barrier, count: int = 1, pred: Any = True) -> None:
        known = self.here().warps.meet()
        self.turns.pause()
        if pred:
            barrier.update(int(count), 0, known)
            if barrier.count == count:  # who alone arrives knows that the phase is over
                self.here().warps.learn(Clock({barrier: barrier.phases}))

    def _load_box(self, descriptor: Descriptor, starts: Sequence[Any], barrier: Barrier, place: Shared) -> None:
        warps = self.here().warps
        access = self.places.begin("copy", place.place, warps, writes=True, is_async=True, by_threads=False)
        access.ends = {barrier: barrier.phases + 1}
        size = math.prod(descriptor.block) * ELEMENTS[descriptor.element].bits // 8
        tile, known = descriptor.load(starts), warps.meet()

        def arrive() -> None:
            place.array[...] = tile.array
            barrier.update(0, -size, known)

        self.turns.arrives(arrive)

    def _fence(self) -> None:
        self.here().warps.fence()
        self.places.fence(self.here().warps)

    def _add_box(self, descriptor: Descriptor, starts: Sequence[Any], place: Shared) -> None:
        self._store_box(descriptor, starts, place, add=True)

    def _store_box(self, descriptor: Descriptor, starts: Sequence[Any], place: Shared, add: bool = False) -> None:
        access = self.places.begin("copy", place.place, self.here().warps, is_async=True, by_threads=False)
        tile = Tensor(descriptor.algebra, place.array, place.element)
        self.here().copies.append((access, lambda: descriptor.store(starts, tile, add)))

    def _store_wait(self, left: int) -> None:
        here = self.here()
        while len(here.copies) > left:
            access, store = here.copies.pop(0)
            store()
            access.ends = here.warps.now()
        here.warps.meet()

    def _multiply(self, a: Any, b: Any, acc: Any, use_acc: bool = True, is_async: bool = False, **_: Any) -> Any:
        product = Product(self, a, b, acc, bool(use_acc))
        for each in (a, b):
            if isinstance(each, Shared):
                warps = self.here().warps
                product.reads.append(self.places.begin("product", each.place, warps, is_async=True, by_threads=False))
        self.here().products.append(product)
        return product if is_async else self._wait(0, [product])

    def _begun(self, value: Tensor) -> Product:
        """A sum that no product has been added to."""
        made = Product(self, None, None, value, True)
        made.value = value
        return made

    def _wait(self, left: int, deps: Sequence[Any]) -> Any:
        here = self.here()
        while len(here.products) > left:
            product = here.products.pop(0)
            product.finish()
            for access in product.reads:
                access.ends = here.warps.now()
            held = product.a.words if isinstance(product.a, OfWords) else product.a
            if isinstance(held, Tensor) and not any(each is held for each in deps):
                raise ExecutorError("a wait does not name its product's operand in registers, which may be used again")
        values = tuple(
            each.value if isinstance(each, Product) and each.value is not None else each for each in deps
        )  # fmt: skip
        return values if len(values) > 1 else values[0]

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.like(x.array[..., 0]), x.like(x.array[..., 1])

    def _join(self, a: Tensor, b: Tensor) -> Tensor:
        return a.like(np.stack([a.array, b.array], axis=-1))

    def _assemble(self, text: str, constraints: str, args: Sequence[Any], **options: Any) -> Any:
        """Nothing; 0; two halves as one register or one as two, as four elements of 8 bits; words that lanes exchange;
        all elements multiplied unless all factors are 1."""
        if not text:
            return args[0].elements(options["dtype"]) if isinstance(args[0], Words) else args[0]
        if (rounding := _ROUNDING.search(text)) and len(args) == 4:
            return Words([each.to(DType(f"float8_{_FLOAT8[rounding.group(1)]}")) for each in args])
        if "shfl.sync.idx" in text and isinstance(args[0], Words):
            return args[0].exchanged()
        if not args and text == "mov.b32 $0, 0;":
            return lift(self.algebra, 0)
        if text.startswith("mov.b32 $0"):
            return Packed(*args)
        if text.startswith("mov.b32 {$0"):
            if not isinstance(args[0], Packed) or any(
                each.element != dtype.name for each, dtype in zip(args[0].halves, options["dtype"], strict=True)
            ):
                raise ExecutorError("what is unpacked was not packed")
            return args[0].halves
        if "mul.f32" not in text or len(args) != 2:
            return self.inline_asm_elementwise(text, constraints, args, **options)
        return args[0] * args[1]

    def _allocate(self, dtype: DType, shape: Sequence[int], layout: Any) -> Any:
        if layout == "barrier":
            barriers = [Barrier(self) for _ in range(shape[0])]
            self.barriers += barriers
            return SimpleNamespace(index=lambda i: barriers[int(i)])
        made = np.full(tuple(shape), self.algebra.poison(dtype.name), self.algebra.dtype(dtype.name))
        self.places.forget(made)
        if layout[0] == "SwizzledSharedLayout":  # a ring: what no copy has given is read, and not used
            warps = self.here().warps
            self.places.begin("ring", made, warps, writes=True).ends = warps.now()
            self.committed = []
        return Shared(self, made, dtype.name)


def _init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.pending = int(count)
