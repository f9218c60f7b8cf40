"""Loads the text of an emitted module with stand-ins for what it imports, and calls its host function."""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np

from tiledsl.certificate.algebra import Algebra, ExecutorError, Unsupported
from tiledsl.certificate.executor.machine import Memory
from tiledsl.certificate.source.gluon import GluonLanguage
from tiledsl.certificate.source.order import EMITTED
from tiledsl.certificate.source.tensor import Tensor, lift
from tiledsl.certificate.source.triton import Descriptor, on_device
from tiledsl.ir.types import ELEMENTS

_CARRIED = "_number_of_a_type"


@functools.lru_cache(maxsize=16)  # a module is run with several sizes, and in several orders
def _code(source: str) -> CodeType:
    return compile(_typed(source), EMITTED, "exec")


def _typed(source: str) -> ast.Module:
    """The syntax tree of a module. A number that is computed, or under a name that is assigned again, as in a loop, has
    a type to Triton."""
    tree = ast.parse(source)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or not function.decorator_list:
            continue
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        stored = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
        again = {name for name, count in stored.items() if count > 1}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign):
                node.value = _typed_value(node.targets[0], node.value, again)
    return ast.fix_missing_locations(tree)


def _typed_value(target: ast.expr, value: ast.expr, again: set[str]) -> ast.expr:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        value.elts = [_typed_value(each, given, again) for each, given in pairs]
    plain = value.operand if isinstance(value, ast.UnaryOp) else value
    carried = isinstance(target, ast.Name) and target.id in again and isinstance(plain, ast.Constant)
    if carried or (isinstance(target, ast.Name) and isinstance(value, ast.BinOp)):
        name = ast.copy_location(ast.Name(_CARRIED, ast.Load()), value)
        return ast.copy_location(ast.Call(name, [value], []), value)
    return value


class _Device:
    type = "cpu"


class HostTensor:
    """A torch tensor to the launcher: an array of an algebra's elements, and an address as tensors have them."""

    is_cuda = False
    device = _Device()

    def __init__(self, array: np.ndarray, dtype: str, is_misaligned: bool = False, address: int | None = None) -> None:
        self.array, self.dtype = array, dtype
        # Elements of an algebra take at least as much memory as real ones: what is apart stays so.
        first = array.__array_interface__["data"][0] // 16 * 16
        self.address = address if address is not None else first + is_misaligned * self.element_size()
        self.shape = array.shape

    def stride(self, axis: int | None = None) -> Any:
        steps = tuple(step // self.array.itemsize for step in self.array.strides)
        return steps if axis is None else steps[axis]

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return ELEMENTS[self.dtype].bits // 8

    def view(self, shape: Any) -> HostTensor:
        if isinstance(shape, str):
            if shape != self.dtype:
                raise Unsupported(f"memory of {self.dtype} is seen as {shape}")
            return self
        return HostTensor(self.array.reshape(shape), self.dtype, address=self.address)

    def as_strided(self, shape: Sequence[int], strides: Sequence[int]) -> HostTensor:
        last = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        if 0 not in shape and last >= self.array.size:
            raise ExecutorError(f"{tuple(shape)} with strides {tuple(strides)} of {self.array.size} elements")
        steps = [step * self.array.itemsize for step in strides]
        made = np.lib.stride_tricks.as_strided(self.array, tuple(shape), steps)
        return HostTensor(made, self.dtype, address=self.address)

    def copy_(self, other: HostTensor) -> HostTensor:
        self.array[...] = other.array
        return self


class _Bytes(HostTensor):
    """Memory that the launcher asked for, of which a part becomes a tensor of another type, without contents."""

    def __init__(self, algebra: Algebra, array: np.ndarray, address: int | None = None) -> None:
        super().__init__(array, "uint8", address=address)
        self.algebra = algebra

    def __getitem__(self, part: slice) -> _Bytes:
        if not 0 <= part.start <= part.stop <= self.array.size or part.step is not None:
            raise ExecutorError(f"{part} of {self.array.size} bytes")
        return _Bytes(self.algebra, self.array[part], self.address + part.start)

    def view(self, shape: Any) -> HostTensor:
        if not isinstance(shape, str) or shape == "uint8":
            return super().view(shape)
        size = ELEMENTS[shape].bits // 8
        if self.address % size or self.array.size % size:
            raise ExecutorError(f"{self.array.size} bytes at {self.address} are seen as {shape}")
        made = np.full(self.array.size // size, self.algebra.poison(shape), self.algebra.dtype(shape))
        return HostTensor(made, shape, address=self.address)


class SourceModule:
    """An emitted module in an algebra. `call` runs a host function; errors name the line of the text and its origin.
    `is_misaligned`: tensors are taken to begin at odd elements."""

    def __init__(self, source: str, algebra: Algebra, is_misaligned: bool = False) -> None:
        self.is_misaligned = is_misaligned
        self.algebra, self.language, self.source = algebra, GluonLanguage(algebra), source
        self.memories: dict[int, tuple[np.ndarray, Memory]] = {}
        own = {"__import__": self._import, "range": self.language.range}  # the loops of kernels count in int32
        self.namespace: dict[str, Any] = {"__builtins__": {**vars(builtins), **own}}
        self.namespace[_CARRIED] = lambda number: lift(algebra, number)
        self.modules = self._modules()
        with np.errstate(all="ignore"):
            try:
                exec(_code(source), self.namespace)
            except ExecutorError as error:
                raise self._placed(error, error) from error
            except Exception as error:
                raise self._placed(error, ExecutorError(f"{type(error).__name__}: {error}")) from error

    def call(self, name: str, arguments: Sequence[Any], dtypes: Sequence[str]) -> None:
        """Call a host function with arrays, which are written in place, and numbers. Raises ExecutorError."""
        given = [
            HostTensor(value, dtype, self.is_misaligned)
            if isinstance(value, np.ndarray)
            else self._number(value, dtype)
            for value, dtype in zip(arguments, dtypes, strict=True)
        ]
        with np.errstate(all="ignore"):
            try:
                self.namespace[name](*given)
            except ExecutorError as error:
                raise self._placed(error, error) from error
            except Exception as error:
                # A name that the stand-ins lack says nothing about the source.
                kind = Unsupported if "SimpleNamespace" in str(error) else ExecutorError
                raise self._placed(error, kind(f"{type(error).__name__}: {error}")) from error

    def _number(self, value: Any, dtype: str) -> Any:
        """A scalar argument: integers as Python has them; floats, which keep their fingerprints, as kernels do."""
        if ELEMENTS[dtype].kind == "float":
            return Tensor(self.algebra, value, "float64" if dtype == "float64" else "float32")
        return bool(value) if dtype == "bool" else int(value)

    def _placed(self, raised: BaseException, error: ExecutorError) -> ExecutorError:
        trace, line = raised.__traceback__, 0
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == EMITTED:
                line = trace.tb_lineno
            trace = trace.tb_next
        return SourceError(error.args[0], line, self.origin(line), isinstance(error, Unsupported))

    def origin(self, line: int) -> str:
        """The place in the user's file that a line of the text stems from, "" if it does not say."""
        for text in reversed(self.source.splitlines()[:line]):
            found = re.fullmatch(r"\s*# (.+:\d+)", text)
            if found or text.startswith(("def ", "@")):
                return found[1] if found else ""
        return ""

    def _import(self, name: str, _g: Any = None, _l: Any = None, names: Any = (), _level: int = 0) -> Any:
        found = self.modules.get(name if names else name.partition(".")[0])
        if found is None:
            raise Unsupported(f"the source imports {name}")
        return found

    def _modules(self) -> dict[str, Any]:
        language = self.language.module()
        torch = SimpleNamespace(
            empty=self._empty, empty_strided=self._empty_strided, is_tensor=lambda x: isinstance(x, HostTensor),
            cuda=SimpleNamespace(device_of=on_device, is_available=lambda: False), **{name: name for name in ELEMENTS},
        )  # fmt: skip
        described = SimpleNamespace(TensorDescriptor=self._descriptor)
        triton = SimpleNamespace(jit=self._jit, cdiv=lambda a, b: -(-a // b), language=language)
        gluon = SimpleNamespace(jit=self._jit, language=language)
        return {
            "triton.experimental": SimpleNamespace(gluon=gluon), "triton.experimental.gluon": gluon,
            "triton.experimental.gluon.language.nvidia.ampere": self.language.ampere(),
            "triton.experimental.gluon.language.nvidia.hopper": self.language.hopper(),
            "triton.experimental.gluon.nvidia.hopper": described,
            "torch": torch, "functools": functools, "triton": triton, "triton.language": language,
            "triton.tools.tensor_descriptor": described,
            "triton.language.extra": SimpleNamespace(libdevice=self.language.libdevice()),
            "triton.language.extra.cuda": SimpleNamespace(
                gdc_wait=self.language.gdc_wait, gdc_launch_dependents=self.language.gdc_launch_dependents
            ),
        }  # fmt: skip

    # torch

    def _empty(self, shape: Sequence[int] | int, dtype: str, device: Any = None) -> HostTensor:
        extents = tuple(map(int, shape)) if isinstance(shape, Sequence) else (int(shape),)
        made = np.full(extents, self.algebra.poison(dtype), self.algebra.dtype(dtype))
        return _Bytes(self.algebra, made) if dtype == "uint8" and len(extents) == 1 else HostTensor(made, dtype)

    def _empty_strided(self, shape: Sequence[int], strides: Sequence[int], dtype: str, device: Any) -> HostTensor:
        last = sum((dim - 1) * step for dim, step in zip(shape, strides, strict=True))
        flat = self._empty((last + 1,), dtype).array
        steps = [step * flat.itemsize for step in strides]
        return HostTensor(np.lib.stride_tricks.as_strided(flat, tuple(shape), steps), dtype)

    def _descriptor(self, base: Any, shape: Any, strides: Any, block: Any, *layout: Any) -> Descriptor:
        flat = self._memory(base.array).flat
        last = sum((dim - 1) * step for dim, step in zip(shape, strides, strict=True))
        if last >= len(flat) or strides[-1] != 1:
            raise ExecutorError(f"a descriptor of {tuple(shape)} with strides {tuple(strides)}")
        if base.data_ptr() % 16:
            raise ExecutorError("a descriptor of a tensor that does not begin at a multiple of 16 bytes")
        if any(step * (ELEMENTS[base.dtype].bits // 8) % 16 for step in strides[:-1]):
            raise ExecutorError(f"a descriptor with strides {tuple(strides)} of {base.dtype}")
        steps = [step * flat.itemsize for step in strides]
        array = np.lib.stride_tricks.as_strided(flat, tuple(shape), steps)
        return Descriptor(self.language, base.dtype, array, block, *layout)

    def _memory(self, array: np.ndarray) -> Memory:
        if id(array) not in self.memories:
            self.memories[id(array)] = (array, Memory(array))
        return self.memories[id(array)][1]

    # Kernels

    def _jit(self, function: Any = None, **options: Any) -> Any:
        if function is None:
            return lambda given: self._jit(given, **options)
        return Jitted(self, function, options.get("do_not_specialize", ()))

    def argument(self, value: Any, specialized: bool) -> Any:
        """What a kernel has of an argument: an integer that is 1 is a Python number to it."""
        if isinstance(value, HostTensor):
            return Tensor(self.algebra, np.int64(0), "*" + value.dtype, self._memory(value.array))
        if isinstance(value, (Descriptor, Tensor)) or (value is True or value is False):
            return lift(self.algebra, value) if isinstance(value, bool) else value
        return 1 if specialized and isinstance(value, int) and value == 1 else lift(self.algebra, value)


class SourceError(ExecutorError):
    """An error in emitted source. `line` counts from 1; `origin` is the place in the user's file, or "". `is_unknown`:
    the stand-ins lack something."""

    def __init__(self, message: str, line: int, origin: str, is_unknown: bool) -> None:
        super().__init__(message)
        self.line, self.origin, self.is_unknown = line, origin, is_unknown


class Jitted:
    """A function under @triton.jit or @gluon.jit."""

    def __init__(self, module: SourceModule, function: Callable[..., Any], unspecialized: Sequence[str]) -> None:
        self.module, self.function, self.unspecialized = module, function, unspecialized

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            names = self.function.__code__.co_varnames
            values = [
                self.module.argument(value, name not in self.unspecialized)
                for name, value in zip(names, arguments, strict=False)
            ]
            language = self.module.language
            language.grid = (*map(int, grid), 1, 1)[:3]
            language.launch()
            for point in itertools.product(*(range(size) for size in reversed(language.grid))):
                language.program = tuple(reversed(point))
                language.num_warps = int(options.get("num_warps", 4))
                language.must_wait = bool(options.get("launch_pdl"))
                self.function(*values)

        return launch
