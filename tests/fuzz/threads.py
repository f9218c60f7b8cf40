"""Code for one thread: what each thread of a block does, up to where threads wait for or hear of each other.

The oracle makes the body of such a kernel a generator function, in which barriers, shuffles, votes and reductions are
`yield`s; here one generator runs for each thread. Threads that touch one element between two barriers race.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from tests.fuzz import memory, numbers
from tests.fuzz.dtypes import INT32, UINT64, Discard
from tests.fuzz.numbers import Number, cast, number

WARP = 32
Replies = list[Any]


def _index(x: Any) -> int:
    return x.__index__() if isinstance(x, Number) else int(x)


def _shuffle(source: Callable[[int, int, int, int], int]) -> Callable[..., Replies]:
    """`source` gives the lane whose value a lane gets, from its lane, its group's first and size, and the delta."""

    def shuffle(size: int, *given: Sequence[Any]) -> Replies:
        replies: Replies = []
        for thread, (value, delta, *rest) in enumerate(given):
            warp, lane = divmod(thread, size)
            width = min(_index(rest[0]) if rest else WARP, size)
            there = source(lane, lane - lane % width, width, _index(delta))
            replies.append(number(given[warp * size + there][0]) if 0 <= there < size else None)
            if replies[-1] is None:
                raise Discard("a lane that is none")
            assert number(value).dtype is replies[-1].dtype, "threads differ in the type of a value"
        return replies

    return shuffle


def _of_warp(combine: Callable[[Sequence[Number]], Any]) -> Callable[..., Replies]:
    def reduction(size: int, *given: Sequence[Any]) -> Replies:
        warps = [given[first : first + size] for first in range(0, len(given), size)]
        made = [combine([number(value) for value, *_ in warp]) for warp in warps]
        return [made[thread // size] for thread in range(len(given))]

    return reduction


def _folded(function: Callable[[Any, Any], Any]) -> Callable[[Sequence[Number]], Number]:
    def fold(values: Sequence[Number]) -> Number:
        total = values[0]
        for value in values[1:]:
            total = cast(function(total, value), total.dtype)
        return total

    return fold


def _sum(values: Sequence[Number]) -> Number:
    from tests.fuzz.language import total  # which builds on this module

    return total(values, values[0].dtype)


def _holds(values: Sequence[Number]) -> list[bool]:
    return [numbers.truth(value) for value in values]


# Width of a group, then what each thread gives; what each thread gets.
EXCHANGES: dict[str, Callable[..., Replies]] = {
    "shfl_sync": _shuffle(lambda lane, first, width, delta: first + delta % width),
    "shfl_xor": _shuffle(lambda lane, first, width, delta: lane ^ delta if lane ^ delta < first + width else lane),
    "shfl_down": _shuffle(lambda lane, first, width, delta: lane + delta if lane + delta < first + width else lane),
    "shfl_up": _shuffle(lambda lane, first, width, delta: lane - delta if lane - delta >= first else lane),
    "warp_reduce_sum": _of_warp(_sum),
    "warp_reduce_max": _of_warp(_folded(numbers.maximum)), "warp_reduce_min": _of_warp(_folded(numbers.minimum)),
    "warp_reduce_bitand": _of_warp(_folded(numbers.bit_and)), "warp_reduce_bitor": _of_warp(_folded(numbers.bit_or)),
    "any_sync": _of_warp(lambda values: Number(INT32, int(any(_holds(values))))),
    "all_sync": _of_warp(lambda values: Number(INT32, int(all(_holds(values))))),
    "ballot": _of_warp(lambda values: Number(UINT64, sum(holds << lane for lane, holds in enumerate(_holds(values))))),
}  # fmt: skip
BARRIER = "sync_threads"


def blocks(body: Callable[..., Generator[Any, Any, None]], frame: Any) -> None:
    """All blocks of a kernel, each by as many runs of its body as it has threads."""
    sizes = [_index(extent) for extent in frame.values] or [1]
    for point in memory.machine.blocks(sizes):
        given = tuple(Number(INT32, value) for value in point)
        _Block([body(*given) for _ in range(frame.threads)]).run()


class _Block:
    """The threads of one block: `current` is the one that runs, `shared` what they have allocated together."""

    def __init__(self, runs: Sequence[Generator[Any, Any, None]]) -> None:
        self.runs, self.size, self.current = runs, min(WARP, len(runs)), 0
        self.shared: list[Any] = []
        self.allocated, self.iterations = [0] * len(runs), [0] * len(runs)

    def run(self) -> None:
        now = memory.machine
        replies: Replies = [None] * len(self.runs)
        self.meet()
        now.threads = self
        try:
            while True:
                wanted: Replies = [None] * len(self.runs)
                for number in now.ordered(range(len(self.runs))):
                    self.current, now.iteration = number, self.iterations[number]
                    now.step()
                    wanted[number] = _sent(self.runs[number], replies[number])
                kinds = {each and each[0] for each in wanted}
                if len(kinds) != 1:
                    raise Discard("threads wait at different places")
                kind = kinds.pop()
                if kind is None:
                    return
                replies = [None] * len(self.runs)
                if kind == BARRIER:
                    self.meet()
                else:
                    replies = EXCHANGES[kind](self.size, *(each[1:] for each in wanted))
        finally:
            now.threads, now.loop_start, now.iteration = None, 0, now.number()

    def meet(self) -> None:
        """What threads did before is done, for all of them."""
        now = memory.machine
        now.loop_start = now.number()
        self.iterations = [now.number() for _ in self.runs]

    def allocation(self, make: Callable[[], Any]) -> Any:
        """What all threads get where each of them stands before the same allocation."""
        number = self.allocated[self.current]
        self.allocated[self.current] += 1
        if number == len(self.shared):
            self.shared.append(make())
        return self.shared[number]


def _sent(run: Generator[Any, Any, None], reply: Any) -> Any:
    try:
        return run.send(reply)
    except StopIteration:
        return None


def thread() -> int:
    if memory.machine.threads is None:
        raise Discard("no thread")
    return int(memory.machine.threads.current)


NAMES: dict[str, Callable[..., Any]] = {
    "get_thread_binding": lambda dim=0: Number(INT32, thread()),
    "get_lane_idx": lambda: Number(INT32, thread() % WARP),
    "get_warp_idx": lambda: Number(INT32, thread() // WARP),
}
