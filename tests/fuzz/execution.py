"""Run a case by tiledsl, in the interpreter or on a GPU, and compare with what the oracle expects.

Tensors lie in larger allocations whose rest is a pattern: what is written outside changes it, what is read outside
shows in results.
"""

from __future__ import annotations

import contextlib
import linecache
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.fuzz.case import Case, TensorArgument, differences
from tests.fuzz.dtypes import Discard
from tests.fuzz.numbers import Number

GUARD = 512  # bytes before and behind a tensor
PATTERN = 0x5A


@dataclass
class Outcome:
    """What became of a case: `status` is right, wrong, discarded, refused (by tiledsl), triton (an exception of
    Triton's, or wrapped as a CompileError), failed (any other exception) or, from the parent of a worker, crashed or
    hung."""

    status: str
    detail: str = ""

    @property
    def group(self) -> str:
        """The detail without what differs from program to program."""
        line = self.detail.splitlines()[0] if self.detail else ""
        words = ["#" if "main_kernel" in word or any(c.isdigit() for c in word) else word for word in line.split()]
        return " ".join(words)[:160]


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def as_bytes(values: list[Any], dtype: str) -> np.ndarray:
    wide = np.float64 if "float" in dtype else np.dtype(dtype)
    return np.array(values, wide).astype(numpy_dtype(dtype)).view(np.uint8)


class Held:
    """The allocations of a call on a device, filled with a case's inputs."""

    def __init__(self, case: Case, device: str, aligned: bool) -> None:
        import torch

        self.case = case
        self.before: dict[str, np.ndarray] = {}
        self.after: dict[str, Any] = {}
        self.starts: dict[str, int] = {}
        self.tensors: list[Any] = []
        for tensor in case.tensors:
            item = numpy_dtype(tensor.dtype).itemsize
            if not tensor.same_as:
                data = as_bytes(case.inputs[tensor.name], tensor.dtype)
                offset = 0 if aligned else -(-tensor.offset // item) * item
                whole = np.full(2 * GUARD + offset + len(data), PATTERN, np.uint8)
                start = GUARD + offset
                whole[start : start + len(data)] = data
                self.before[tensor.name], self.starts[tensor.name] = whole, start
                self.after[tensor.name] = torch.from_numpy(whole.copy()).to(device)
            owner = tensor.same_as or tensor.name
            start = self.starts[owner]
            flat = self.after[owner][start : start + tensor.span * item].view(getattr(torch, tensor.dtype))
            self.tensors.append(flat.as_strided(tensor.shape, tensor.strides))

    def found(self) -> tuple[dict[str, list[Any]], list[str]]:
        """The elements of each memory, and what was written beside it."""
        results, wrong = {}, []
        for tensor in self.case.tensors:
            if tensor.same_as:
                continue
            whole = self.after[tensor.name].cpu().numpy()
            results[tensor.name] = self.elements(tensor, whole)
            before, start = self.before[tensor.name], self.starts[tensor.name]
            end = start + tensor.span * numpy_dtype(tensor.dtype).itemsize
            for first, last in ((0, start), (end, len(whole))):
                if not np.array_equal(whole[first:last], before[first:last]):
                    wrong.append(f"{tensor.name}: memory beside the tensor was written")
        return results, wrong

    def elements(self, tensor: TensorArgument, whole: np.ndarray) -> list[Any]:
        start = self.starts[tensor.name]
        dtype = numpy_dtype(tensor.dtype)
        held = whole[start : start + tensor.span * dtype.itemsize].view(dtype)
        return list((held.astype(np.float64) if "float" in tensor.dtype else held).tolist())


@contextlib.contextmanager
def program_of(case: Case) -> Iterator[Any]:
    """The text's @T.prim_func."""
    import tiledsl.language as T

    tag = f"<fuzz {case.seed}>"
    linecache.cache[tag] = (len(case.text), None, case.text.splitlines(True), tag)
    space: dict[str, Any] = {"T": T}
    try:
        exec(compile(case.text, tag, "exec", dont_inherit=True), space)
        yield space["main"]
    finally:
        linecache.cache.pop(tag, None)


def outcome_of(error: BaseException) -> Outcome:
    """The status of an exception."""
    from tiledsl.errors import TileError
    from tiledsl.runtime.compile import CompileError
    from tiledsl.runtime.interpreter import InterpretError

    if isinstance(error, CompileError):
        return Outcome("triton", error.message)
    if isinstance(error, InterpretError):
        return Outcome("failed", f"InterpretError: {error.message}")
    if isinstance(error, TileError):
        return Outcome("refused", error.message)
    lines = str(error).strip().splitlines() or [""]
    kind = "triton" if "triton" in type(error).__module__ else "failed"
    return Outcome(kind, f"{type(error).__name__}: {lines[-1] if kind == 'triton' else lines[0]}"[:400])


def attempt(case: Case, device: str = "interpret") -> Outcome:
    """Run a case once, twice where tensors are not aligned (first aligned, as a caller may), and compare.

    What is right in one order of the oracle is right; only of what is not must it be known whether the order matters.
    """
    found = Outcome("discarded")
    for orders in (1, 3):
        try:
            found = _compared(case, case.expected(orders), device)
        except Discard as why:
            return Outcome("discarded", str(why))
        if found.status == "right":
            break
    return found


def _compared(case: Case, wanted: Mapping[str, Sequence[Number]], device: str) -> Outcome:
    try:
        import tiledsl

        with program_of(case) as program:
            kernel = tiledsl.compile(program, target=device, pass_configs=case.options)
            scalars = [value for _, value in case.scalars.values()]
            wrong: list[str] = []
            for aligned in (True, False) if any(each.offset for each in case.tensors) else (True,):
                held = Held(case, "cpu" if device == "interpret" else "cuda", aligned)
                kernel(*held.tensors, *scalars)
                found, stray = held.found()
                wrong += stray + differences(case, wanted, found)
    except Exception as error:
        return outcome_of(error)
    if wrong:
        return Outcome("wrong", "\n".join([f"{len(wrong)} differ: {wrong[0]}", *wrong[1:8]]))
    return Outcome("right")


def counted(case: Case) -> int:
    """The elements of all tensors of a case."""
    return sum(math.prod(each.shape) for each in case.tensors)
