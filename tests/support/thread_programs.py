"""Random programs for one thread, and an oracle that runs the threads of a block one after the other.

A program is one text that is read twice: by tiledsl, and as a Python generator that each thread runs. What threads do
together (`Together` below) is a `yield` there: every thread comes to it before any goes on. Values are small integers.
Between two barriers a shared buffer is either written, by each thread in a place of its own, or read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

BLOCKS, ROWS = 2, 3
SIZES: tuple[tuple[int, ...], ...] = ((32,), (64,), (8,), (16, 4), (96,), (4, 2, 8), (33,))
_TOGETHER = re.compile(r"T\.(sync_threads|shfl_\w+|warp_reduce_\w+|\w+_sync|ballot|syncthreads_\w+)\(")


class Program:
    """One program: `source` for tiledsl, `outputs` of the oracle for an input of shape (BLOCKS, threads)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.extents = self.pick(SIZES)
        self.threads = int(np.prod(self.extents))
        self.lines: list[str] = []
        self.depth = 0
        self.names = ["tx"]
        self.readable = {"s": False, "r": False}  # shared buffers
        self.count = 0
        self._write()

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randrange(len(options))]

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # Text

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def place(self) -> str:
        """An index that differs from thread to thread, below their number."""
        n = self.threads
        forms = ["tx", f"{n - 1} - tx", f"(tx + {self.rng.randrange(n)}) % {n}"]
        if n & (n - 1) == 0:
            forms += [f"tx ^ {self.rng.randrange(n)}", f"(tx * {2 * self.rng.randrange(8) + 1}) % {n}"]
        return str(self.pick(forms))

    def value(self, depth: int = 2) -> str:
        """An integer expression of a small size."""
        if depth == 0 or self.chance(0.2):
            return str(self.rng.randrange(10)) if self.chance(0.3) else str(self.pick(self.names))
        kind = self.rng.randrange(9)
        if kind < 3:
            return f"({self.value(depth - 1)} {self.pick('+-*')} {self.value(depth - 1)})"
        if kind == 3:
            return f"({self.value(depth - 1)} {self.pick(['//', '%'])} {self.rng.randrange(2, 7)})"
        if kind == 4:
            return f"T.{self.pick(['max', 'min'])}({self.value(depth - 1)}, {self.value(depth - 1)})"
        if kind == 5:
            return f"T.if_then_else({self.condition()}, {self.value(depth - 1)}, {self.value(depth - 1)})"
        if kind == 6:
            return f"own[({self.value(depth - 1)}) % 4]"
        shared = [name for name, ready in self.readable.items() if ready]
        if kind == 7 and shared:
            return f"{self.pick(shared)}[({self.value(depth - 1)}) % {self.threads}]"
        return f"A[p, ({self.value(depth - 1)}) % {self.threads}]"

    def condition(self) -> str:
        left = self.pick(["tx % 3", "tx // 4", "tx", "a", "b", "p", "own[tx % 4]"])
        return f"{left} {self.pick(['<', '==', '>='])} {self.rng.randrange(6)}"

    def block(self, emit: Callable[[], None]) -> None:
        self.depth += 1
        emit()
        self.depth -= 1

    def _write(self) -> None:
        self.line("a = T.alloc_var('int32', 0)")
        self.line("b = T.alloc_var('int32', tx * 3 + p)")
        self.line("own = T.alloc_local((4,), 'int32')")
        self.line("for i in T.serial(4):")
        self.block(lambda: self.line("own[i] = tx + i"))
        for name in ("s", "r"):
            self.line(f"{name} = T.alloc_shared(({self.threads},), 'int32')")
            self.line(f"{name}[tx] = tx % 7")
        self.line("counter = T.alloc_shared((2,), 'int32')")
        self.line("if tx < 2:")
        self.block(lambda: self.line("counter[tx] = 0"))
        self.names += ["a", "b", "p"]
        self.line("T.sync_threads()")
        self.readable = dict.fromkeys(self.readable, True)
        for _ in range(self.rng.randrange(3, 8)):
            self.statement(2, even=True)
        self.line("T.sync_threads()")
        for row, value in enumerate((f"a + counter[{self.rng.randrange(2)}]", "b", "s[tx] + own[tx % 4]")):
            self.line(f"B[p, {row}, {self.place()}] = ({value}) % 1000")

    # Statements; `even` where all threads of the block come

    def statement(self, depth: int, even: bool) -> None:
        alone = [self.assign, self.assign, self.store_own, self.add]
        nested = [self.branch, self.loop, self.uneven_loop] if depth else []
        together = [self.exchange, self.shuffle, self.reduce, self.share, self.even_loop] if even else []
        if not depth:
            together = together[:-1]
        kind = self.pick([*alone, *nested, *together, *together])
        kind(depth) if kind in (self.branch, self.loop, self.uneven_loop, self.even_loop) else kind()

    def assign(self) -> None:
        self.line(f"{self.pick('ab')} {self.pick(['=', '+='])} ({self.value()}) % 97")

    def store_own(self) -> None:
        self.line(f"own[({self.value(1)}) % 4] = ({self.value()}) % 97")

    def add(self) -> None:
        self.line(f"T.atomic_add(counter[{self.rng.randrange(2)}], ({self.value(1)}) % 5)")

    def branch(self, depth: int) -> None:
        self.line(f"if {self.condition()}:")
        self.block(lambda: self.body(depth))
        if self.chance(0.5):
            self.line("else:")
            self.block(lambda: self.body(depth))

    def body(self, depth: int) -> None:
        for _ in range(self.rng.randrange(1, 3)):
            self.statement(depth - 1, even=False)

    def loop(self, depth: int) -> None:
        """A loop of as many turns as the thread's values say."""
        self.count += 1
        index = f"k{self.count}"
        self.line(f"for {index} in T.serial(({self.value(1)}) % 5):")
        self.depth += 1
        if self.chance(0.5):
            self.line(f"if ({index} + tx) % 4 == {self.rng.randrange(4)}:")
            self.block(lambda: self.line(self.pick(["break", "continue"])))
        self.names.append(index)
        self.body(depth)
        self.names.remove(index)
        self.depth -= 1

    def uneven_loop(self, depth: int) -> None:
        self.count += 1
        left = f"n{self.count}"
        self.line(f"{left} = T.alloc_var('int32', ({self.value(1)}) % 40)")
        self.line(f"while {left} > {self.rng.randrange(3, 9)}:")
        self.depth += 1
        self.line(f"{left} = {left} // 2")
        self.body(depth)
        self.depth -= 1

    def even_loop(self, depth: int) -> None:
        self.count += 1
        index = f"k{self.count}"
        self.line(f"for {index} in T.serial({self.rng.randrange(1, 4)}):")
        self.depth += 1
        self.names.append(index)
        self.line("T.sync_threads()")
        ready = dict(self.readable)
        for _ in range(self.rng.randrange(1, 3)):
            self.statement(depth - 1, even=True)
        self.line("T.sync_threads()")
        self.readable = ready
        self.names.remove(index)
        self.depth -= 1

    def exchange(self) -> None:
        """Every thread writes a place of a shared buffer, and after a barrier all read it."""
        name = self.pick(["s", "r"])
        self.readable[name] = False
        value, place = self.value(), self.place()
        self.line("T.sync_threads()")
        if self.chance(0.3):
            self.line(f"if {self.condition()}:")
            self.block(lambda: self.line(f"{name}[{place}] = ({value}) % 97"))
        else:
            self.line(f"{name}[{place}] = ({value}) % 97")
        self.line("T.sync_threads()")
        self.readable[name] = True

    def share(self) -> None:
        """One thread writes what all read, or a statement of the whole block does."""
        self.line("T.sync_threads()")
        if self.chance(0.5):
            self.line(f"if tx == {self.rng.randrange(self.threads)}:")
            self.block(lambda: self.line(f"r[{self.rng.randrange(self.threads)}] = ({self.value()}) % 97"))
        else:
            self.line(f"T.fill(r, {self.rng.randrange(9)})")
        self.line("T.sync_threads()")
        self.line(f"{self.pick('ab')} += r[{self.rng.randrange(self.threads)}]")

    def shuffle(self) -> None:
        if self.threads > 32 and self.threads % 32:
            return self.assign()
        target, value = self.pick("ab"), self.pick(["a", "b", "tx", "own[1]"])
        kind, width = self.pick(["xor", "down", "up", "sync"]), self.pick([32, 32, 8, 4])
        by = self.rng.randrange(8) if self.chance(0.7) or kind == "xor" else f"tx % {self.rng.randrange(1, 5)}"
        self.line(f"{target} = T.shfl_{kind}({value}, {by}, {min(width, self.threads)}) % 97")
        return None

    def reduce(self) -> None:
        names = ["syncthreads_count", "syncthreads_and", "syncthreads_or"]
        if self.threads <= 32 or self.threads % 32 == 0:
            names += ["warp_reduce_sum", "warp_reduce_max", "warp_reduce_min", "any_sync", "all_sync"]
        self.line(f"{self.pick('ab')} = T.{self.pick(names)}({self.pick(['a', 'b', 'tx', 'tx % 3'])}) % 97")

    # As text and as a generator

    @property
    def source(self) -> str:
        indices = [f"T.get_thread_binding({axis})" for axis in range(len(self.extents))]
        number = indices[-1]
        for axis in reversed(range(len(self.extents) - 1)):
            number = f"({number}) * {self.extents[axis]} + {indices[axis]}"
        head = f"""@T.prim_func
def main(A: T.Tensor(({BLOCKS}, {self.threads}), "int32"), B: T.Tensor(({BLOCKS}, {ROWS}, {self.threads}), "int32")):
    with T.Kernel({BLOCKS}, threads={self.extents}) as p:
        tx = {number}
"""
        return head + "".join(f"        {line}\n" for line in self.lines)

    def outputs(self, given: np.ndarray) -> np.ndarray:
        text = "def thread(T, A, B, p, tx):\n    yield ('begin',)\n"
        text += "".join(f"    {_as_generator(line)}\n" for line in self.lines)
        space: dict[str, Any] = {}
        exec(text, space)
        made = np.zeros((BLOCKS, ROWS, self.threads), np.int64)
        for block in range(BLOCKS):
            _run_block(space["thread"], given.astype(object), made, block, self.threads)
        return made.astype(np.int32)


def _as_generator(line: str) -> str:
    """A line with what threads do together as a yield."""
    line = re.sub(r"T\.atomic_add\((\w+\[\d\]), (.*)\)$", r"\1 += \2", line)
    found = _TOGETHER.search(line)
    if found is None:
        return line
    start = found.end()
    end, open_ = start, 1
    while open_:
        open_ += {"(": 1, ")": -1}.get(line[end], 0)
        end += 1
    return f"{line[: found.start()]}(yield ('{found[1]}', {line[start : end - 1]})){line[end:]}"


class _Stand:
    """What `T` is for the generator."""

    max, min, serial = max, min, range

    def __init__(self) -> None:
        self.shared: dict[int, list[int]] = {}
        self.buffers = 0  # shared buffers by this thread, whose number says which one it is

    @staticmethod
    def if_then_else(condition: bool, one: int, other: int) -> int:
        return one if condition else other

    @staticmethod
    def alloc_var(_: str, value: int) -> int:
        return value

    @staticmethod
    def alloc_local(shape: tuple[int], _: str) -> list[int]:
        return [0] * shape[0]

    def alloc_shared(self, shape: tuple[int], _: str) -> list[int]:
        self.buffers += 1
        return self.shared.setdefault(self.buffers, [0] * shape[0])

    @staticmethod
    def fill(buffer: list[int], value: int) -> None:
        buffer[:] = [value] * len(buffer)


Thread = Generator[tuple[Any, ...], int, None]


def _run_block(thread: Callable[..., Thread], given: np.ndarray, made: np.ndarray, block: int, count: int) -> None:
    shared: dict[int, list[int]] = {}
    threads = []
    for number in range(count):
        stand = _Stand()
        stand.shared = shared
        threads.append(thread(stand, given, made, block, number))
    asked = [next(each) for each in threads]
    while True:
        (kind,) = {each[0] for each in asked}  # all come to the same statement
        answers = [_answer(kind, number, asked) for number in range(count)]
        asked = []
        for each, answer in zip(threads, answers, strict=True):
            try:
                asked.append(each.send(answer))
            except StopIteration:
                continue
        if not asked:
            return
        assert len(asked) == count, "some threads end before others"


def _answer(kind: str, number: int, asked: list[tuple[Any, ...]]) -> int:
    size = min(32, len(asked))
    warp = [each[1] if len(each) > 1 else 0 for each in asked[number // size * size :][:size]]
    everyone = [each[1] if len(each) > 1 else 0 for each in asked]
    lane = number % size
    if kind.startswith("shfl"):
        _, _, by, width = asked[number]
        first = lane // width * width
        source = {"xor": lane ^ by, "down": lane + by, "up": lane - by, "sync": first + by % width}[kind[5:]]
        inside = source < first + width and (source >= first or kind == "shfl_xor")
        return int(warp[source if inside else lane])
    answers: dict[str, Callable[[], int]] = {
        "warp_reduce_sum": lambda: sum(warp),
        "warp_reduce_max": lambda: max(warp),
        "warp_reduce_min": lambda: min(warp),
        "any_sync": lambda: any(warp),
        "all_sync": lambda: all(warp),
        "syncthreads_count": lambda: sum(each != 0 for each in everyone),
        "syncthreads_and": lambda: all(everyone),
        "syncthreads_or": lambda: any(everyone),
    }
    return int(answers[kind]()) if kind in answers else 0
