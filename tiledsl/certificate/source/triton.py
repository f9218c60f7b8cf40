"""A stand-in for triton.language, in which the kernels of an emitted module are executed one program after another."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from tiledsl.certificate.algebra import Algebra, Arrays, ExecutorError, prefixes
from tiledsl.certificate.executor.blocks import Part, block_part, load_block, store_block
from tiledsl.certificate.executor.machine import Memory
from tiledsl.certificate.executor.memory import atomically
from tiledsl.certificate.executor.values import counted, field, gathered
from tiledsl.certificate.source.tensor import DType, Tensor, common, lift, operands, spread
from tiledsl.codegen.functions import TRITON_TYPES
from tiledsl.ir.types import ELEMENTS, is_float
from tiledsl.math_functions import MATH_FUNCTIONS

_FUNCTIONS = {each.spelling[3:]: name for name, each in MATH_FUNCTIONS.items() if each.spelling.startswith("tl.")}
_FUNCTIONS["sqrt"] = "sqrt"  # of float64
_LIBDEVICE = {each.library_name: name for name, each in MATH_FUNCTIONS.items() if "libdevice." in each.spelling}


class Descriptor:
    """What a kernel has of a host-side descriptor: blocks of a strided view of memory."""

    def __init__(
        self, language: Language, dtype: str, array: np.ndarray, block: Sequence[int], layout: Any = None
    ) -> None:
        self.language, self.element, self.array, self.block = language, dtype, array, tuple(block)
        self.algebra, self.layout = language.algebra, layout

    def part(self, starts: Sequence[Any]) -> tuple[np.ndarray, Part]:
        """See `block_part`."""
        self.language.touch()
        self.language.written = None
        if len(starts) != len(self.block):
            raise ExecutorError(f"{len(starts)} starts for a block {self.block}")
        return block_part(self.array, self.element, starts, self.block, range(len(self.block)), len(self.block))

    def load(self, starts: Sequence[Any]) -> Tensor:
        found = load_block(*self.part(starts), self.block, self.algebra.constant(0, self.element))
        return Tensor(self.algebra, found, self.element)

    def store(self, starts: Sequence[Any], value: Tensor, add: bool = False) -> None:
        elements, inside = self.part(starts)
        if value.shape != self.block:
            raise ExecutorError(f"{value!r} is stored to a block {self.block}")
        combine = self.algebra.atomic("add", self.element) if add else None
        store_block(elements, inside, value.to(DType(self.element)).array, combine)


_WIDENED = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
_LOP3 = re.compile(r"lop3\.b32 \$\d, \S+, (0x[0-9a-f]+), (0x[0-9a-f]+), 0xea;")
_SHR = re.compile(r"shr\.b32 t, \S+, (\d+);")


class Language:
    """The functions of triton.language in an algebra. `program` and `grid` are those of the program that runs."""

    def __init__(self, algebra: Algebra) -> None:
        self.algebra = algebra
        self.program: tuple[int, ...] = ()
        self.grid: tuple[int, ...] = ()
        self.must_wait = False  # the program began while the kernel before may still write
        self.before: set[int] | None = None  # what the kernel before wrote; None if that is not known
        self.written: set[int] | None = None  # what this kernel has written
        self.said: set[str] = set()  # the messages of prints and assertions that were reached

    def module(self) -> SimpleNamespace:
        """What stands for `tl`."""
        types = {text.partition(".")[2]: DType(name) for name, text in TRITON_TYPES.items()}
        own = {
            name: getattr(self, name)
            for name in (
                "program_id num_programs arange zeros full load store dot trans permute reshape broadcast_to cast "
                "where clamp reduce associative_scan gather histogram range device_assert device_print "
                "inline_asm_elementwise"
            ).split()
        }
        own |= {f"{kind}imum": partial(self._extremum, kind) for kind in ("max", "min")}
        own |= {name: partial(self._reduced, name.removesuffix("_sum")) for name in ("sum", "max", "min", "xor_sum")}
        own |= {f"cum{kind}": partial(self._scanned, kind) for kind in ("sum", "prod")}
        functions = {each: self._function(name) for each, name in _FUNCTIONS.items() if each not in own}
        atomics = {
            f"atomic_{each}": self._atomic(each) for each in ("add", "max", "min", "and", "or", "xor", "xchg", "cas")
        }  # fmt: skip
        return SimpleNamespace(
            **types, **functions, **atomics, **own, assume=_assume, debug_barrier=lambda: None, static_range=range,
            constexpr=lambda value: value, PropagateNan=SimpleNamespace(ALL="all", NONE="none"),
        )  # fmt: skip

    def libdevice(self) -> SimpleNamespace:
        return SimpleNamespace(**{each: self._function(name) for each, name in _LIBDEVICE.items()})

    def tensor(self, array: Any, dtype: str) -> Tensor:
        return Tensor(self.algebra, array, dtype)

    def _lift(self, value: Any) -> Tensor:
        return lift(self.algebra, value)

    def _as(self, dtype: str, value: Any) -> Tensor:
        """A tensor, or a Python number, in an element type."""
        return lift(self.algebra, value, dtype).to(DType(dtype))

    def launch(self) -> None:
        """Called before the programs of a kernel run."""
        self.before, self.written = self.written, set()

    def gdc_wait(self) -> None:
        self.must_wait = False

    def gdc_launch_dependents(self) -> None:
        if self.must_wait:
            raise ExecutorError("the next kernel may begin before the kernel before has ended")

    def touch(self) -> None:
        """Called before an access to global memory that the kernel before may have written."""
        if self.must_wait:
            raise ExecutorError("global memory is touched before the kernel before is waited for")

    def device_assert(self, condition: Any, message: str = "") -> None:
        self.said.add(message)
        if not np.all(self._lift(condition).array):
            raise ExecutorError(f"an assertion does not hold: {message}")

    def device_print(self, message: str, *_: Any, **__: Any) -> None:
        self.said.add(message)

    # Making values

    def program_id(self, axis: int) -> Tensor:
        return self.tensor(np.int32(self.program[axis]), "int32")

    def num_programs(self, axis: int) -> Tensor:
        return self.tensor(np.int32(self.grid[axis]), "int32")

    def arange(self, start: int, end: int, layout: Any = None) -> Tensor:
        if (end - start) & (end - start - 1):
            raise ExecutorError(f"arange of {end - start}, not a power of two")
        return self.tensor(np.arange(start, end, dtype=np.int32), "int32")

    def zeros(self, shape: Sequence[int], dtype: DType, layout: Any = None) -> Tensor:
        return self.full(shape, 0, dtype)

    def full(self, shape: Sequence[int], value: Any, dtype: DType, layout: Any = None) -> Tensor:
        if isinstance(value, Tensor):
            array = value.to(dtype).array
        else:
            array = self.algebra.constant(value, dtype.name)
        return self.tensor(np.broadcast_to(array, tuple(shape)), dtype.name)

    def cast(self, x: Any, dtype: DType, bitcast: bool = False) -> Tensor:
        return self._lift(x).to(dtype, bitcast)

    def inline_asm_elementwise(self, text: str, constraints: str, args: Sequence[Any], **options: Any) -> Tensor:
        """Fields of integers, and bfloat16 as the upper half of float32, the only assembly that emitted text has."""
        if text == _WIDENED:
            return self.cast(args[0], options["dtype"])
        found = {each.group(1, 2) for each in _LOP3.finditer(text)}
        shifts = {int(each) for each in _SHR.findall(text)} or {0}
        if len(found) != 1 or len(shifts) != 1:
            raise ExecutorError(f"assembly {text!r}")
        ((mask, bits),), (shift,) = found, shifts
        name = options["dtype"].name
        made = field(self.algebra, name, shift, int(mask, 16) & 0xFFFF, int(bits, 16) & 0xFFFF)
        return Tensor(self.algebra, made(args[0].array), name)

    # Shapes

    def trans(self, x: Tensor) -> Tensor:
        return x.like(np.swapaxes(x.array, -1, -2))

    def permute(self, x: Tensor, *order: Any) -> Tensor:
        return x.like(np.transpose(x.array, order[0] if isinstance(order[0], (tuple, list)) else order))

    def reshape(self, x: Tensor, *shape: Any) -> Tensor:
        return x.like(np.reshape(x.array, shape[0] if isinstance(shape[0], (tuple, list)) else shape))

    def broadcast_to(self, value: Any, *shape: Any) -> Tensor:
        x = self._lift(value)
        return x.like(np.broadcast_to(x.array, shape[0] if isinstance(shape[0], (tuple, list)) else shape))

    # Elementwise

    def where(self, condition: Any, a: Any, b: Any) -> Tensor:
        condition = self._lift(condition)
        if isinstance(a, Tensor) and a.memory is not None:
            return a.like(np.where(condition.array, a.array, b.array))
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            x, y = operands(a, b)
        else:
            x, y = self._lift(a), self._lift(b)
            dtype = DType(common(x.element, y.element))
            x, y = x.to(dtype), y.to(dtype)
        spread([condition, x, y])
        return x.like(np.where(condition.array, x.array, y.array))

    def _extremum(self, name: str, a: Any, b: Any, propagate_nan: Any = None) -> Tensor:
        x, y = operands(a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else (self._lift(a), self._lift(b))
        if x.element == "bfloat16":
            x, y = x.to(DType("float32")), y.to(DType("float32"))
        if x.element.startswith("float8") or x.element == "bool":
            raise ExecutorError(f"tl.{name}imum of {x.element}")
        spread([x, y])
        return x.like(self.algebra.combine(name, x.element, propagate_nan == "all")(x.array, y.array))

    def clamp(self, x: Any, low: Any, high: Any) -> Tensor:
        return self._extremum("min", self._extremum("max", x, low), high)

    def _function(self, name: str) -> Callable[..., Tensor]:
        def call(*given: Any) -> Tensor:
            known = [each.element for each in given if isinstance(each, Tensor)]
            values = [lift(self.algebra, each, known[0] if known else None) for each in given]
            dtype = values[0].element
            spread(values)
            takes = MATH_FUNCTIONS[name].takes
            on_any = name == "abs" or takes in ("bits", "wide ints")
            if not on_any and (not is_float(dtype) or ELEMENTS[dtype].bits < 32):
                raise ExecutorError(f"{name} of {dtype}")
            integral, gives_bool = takes == "bits", takes == "test"
            target = "bool" if gives_bool else dtype
            made = self.algebra.math(name, dtype, target)(*[each.array for each in values])
            if gives_bool or integral:
                return self.tensor(np.asarray(made).astype(np.int32), "int32")
            return self.tensor(made, target)

        return call

    # Combinations

    def _promoted(self, x: Tensor, sums: bool) -> Tensor:
        info = ELEMENTS[x.element]
        if x.element == "bfloat16":
            return x.to(DType("float32"))
        if info.kind in ("int", "uint", "bool") and info.bits < 32:
            return x.to(DType("uint32" if info.kind == "uint" else "int32"))
        return x.to(DType("float32")) if not sums and info.kind == "float" and info.bits < 32 else x

    def _reduced(self, kind: str, x: Tensor, axis: int | None = None, keep_dims: bool = False) -> Tensor:
        x = self._promoted(x, kind == "sum")
        if axis is None:
            x, axis = x.like(np.reshape(x.array, -1)), 0
        made = self.algebra.reduce(kind, axis, x.element)(x.array)
        return x.like(np.expand_dims(made, axis) if keep_dims else made)

    def reduce(self, x: Any, axis: int, combine: Callable[..., Any]) -> Any:
        if isinstance(x, tuple):  # _add_two: Triton's own adds each in the same order
            return tuple(self._reduced("sum", each, axis) for each in x)
        lines = np.moveaxis(x.array, axis, 0)
        total = x.like(lines[0])
        for line in lines[1:]:
            total = combine(total, x.like(line))
        return total

    def associative_scan(self, x: Any, axis: int, combine: Callable[..., Any], reverse: bool = False) -> Any:
        if getattr(getattr(combine, "function", None), "__name__", "") == "_add":
            return self._scanned("sum", x, axis, reverse)  # Triton's own adds in the same order
        given: tuple[Tensor, ...] = x if isinstance(x, tuple) else (x,)
        elements = [each.element for each in given]

        def combined(before: Arrays, here: Arrays) -> Arrays:
            tensors = [each.like(array) for part in (before, here) for each, array in zip(given, part, strict=True)]
            made = combine(*tensors)
            made = made if isinstance(made, tuple) else (made,)
            elements[:] = [each.element for each in made]
            return tuple(each.array for each in made)

        def turned(arrays: Arrays) -> Arrays:
            return tuple(np.flip(each, axis) for each in arrays) if reverse else arrays

        found = turned(prefixes(combined, turned(tuple(each.array for each in given)), axis))
        tensors = tuple(Tensor(self.algebra, *each) for each in zip(found, elements, strict=True))
        return tensors if isinstance(x, tuple) else tensors[0]

    def _scanned(self, kind: str, x: Tensor, axis: int = 0, reverse: bool = False) -> Tensor:
        x = self._promoted(x, True)
        return x.like(self.algebra.scan(kind, axis, reverse, x.element)(x.array))

    def dot(
        self, a: Tensor, b: Tensor, acc: Tensor | None = None, input_precision: str | None = None,
        out_dtype: DType | None = None, allow_tf32: Any = None, max_num_imprecise_acc: Any = None,
    ) -> Tensor:  # fmt: skip
        if a.element != b.element and not (a.element.startswith("float8") and b.element.startswith("float8")):
            raise ExecutorError(f"tl.dot of {a.element} and {b.element}")
        dtype = "int32" if not is_float(a.element) else (out_dtype.name if out_dtype is not None else "float32")
        if acc is not None and acc.element != dtype:
            raise ExecutorError(f"tl.dot adds {dtype} to {acc.element}")
        precision = {None: "default", "tf32": "default"}.get(input_precision, input_precision)
        compute = self.algebra.dot(a.element, b.element, dtype, precision or "default")
        return self.tensor(compute(a.array, b.array, None if acc is None else acc.array), dtype)

    def gather(self, x: Tensor, index: Tensor, axis: int) -> Tensor:
        return x.like(gathered(x.array, index.array, axis))

    def histogram(self, x: Tensor, num_bins: int, mask: Tensor | None = None) -> Tensor:
        return self.tensor(counted(x.array if mask is None else x.array[mask.array], num_bins), "int32")

    # Control flow

    def range(self, *bounds: Any, **_: Any) -> Iterator[Tensor]:
        ends = [lift(self.algebra, each) for each in bounds]
        dtype = ends[0].element
        for end in ends[1:]:
            dtype = common(dtype, end.element)
        for number in range(*map(int, (each.array for each in ends))):
            yield self.tensor(self.algebra.constant(number, dtype), dtype)

    # Memory

    def _memory(self, pointer: Any, is_read: bool = False) -> Memory:
        if not isinstance(pointer, Tensor) or pointer.memory is None:
            raise ExecutorError(f"memory is accessed through {pointer!r}")
        memory = pointer.memory
        if not is_read or self.before is None or id(memory) in self.before:
            self.touch()
        if not is_read and self.written is not None:
            self.written.add(id(memory))
        return memory

    def load(self, pointer: Tensor, mask: Any = None, other: Any = None, **_: Any) -> Tensor:
        mask = None if mask is None else self._lift(mask)
        dtype = pointer.element.removeprefix("*")
        shape = spread([each for each in (pointer, mask) if each is not None])
        if shape != pointer.shape:
            raise ExecutorError(f"{mask!r} masks {pointer!r}")
        memory = self._memory(pointer, is_read=True)
        given = self.algebra.poison(dtype) if other is None else self._as(dtype, other).array
        return self.tensor(memory.read(pointer.array, None if mask is None else mask.array, given, shape), dtype)

    def store(self, pointer: Tensor, value: Any, mask: Any = None, **_: Any) -> None:
        mask = None if mask is None else self._lift(mask)
        dtype = pointer.element.removeprefix("*")
        value = self._as(dtype, value)
        shape = pointer.shape
        if spread([each for each in (pointer, value, mask) if each is not None]) != shape:
            raise ExecutorError(f"{value!r} with {mask!r} is stored to {pointer!r}")
        memory = self._memory(pointer)
        memory.write(pointer.array, None if mask is None else mask.array, value.array, shape)

    def _atomic(self, name: str) -> Callable[..., Tensor]:
        kind = "exchange" if name == "xchg" else name

        def cas(pointer: Tensor, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> Tensor:
            return call(pointer, val, compare=cmp)

        def call(
            pointer: Tensor, value: Any, mask: Any = None, sem: Any = None, scope: Any = None, compare: Any = None
        ) -> Tensor:
            mask = None if mask is None else self._lift(mask)
            dtype = pointer.element.removeprefix("*")
            value = self._as(dtype, value)
            shape = spread([each for each in (pointer, value, mask) if each is not None])
            memory = self._memory(pointer)
            active, offset = memory.reached(pointer.array, None if mask is None else mask.array, shape)
            place = [offset] if shape else [int(offset)]
            wanted = None if compare is None else self._as(dtype, compare).array
            old = atomically(self.algebra, memory.flat, place, active, value.array, kind, dtype, shape, wanted)
            return self.tensor(old, dtype)

        return cas if name == "cas" else call


def _assume(condition: Any) -> None:
    if not condition:
        raise ExecutorError("an assumption does not hold")


@contextlib.contextmanager
def on_device(_: Any) -> Iterator[None]:
    yield
