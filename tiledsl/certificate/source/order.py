"""What is before what among partitions that wait for one another: one run speaks for every order of the partitions.

Each thread of execution has a vector clock: what it knows to have happened, of threads (how many steps) and of barriers
(how many phases). It learns by waiting for a barrier's phase what all knew who arrived. Two accesses of shared memory,
of which one writes, must be in order by what is known, not by chance. Where that holds, and every wait means one phase
of its barrier whatever the order, every order of the partitions does the same: a run that ends proves that all end, and
with the same results. (Mattern 1989, virtual time; Flanagan and Freund 2009, FastTrack.)

Copies and products take from when they are issued until somebody knows that they are done: one that reads a place must
be known to be done before another may write there. A partition's warpgroups know of their own products only, until they
wait for each other, as they do to arrive. Their own loads and stores need no such wait: the compiler puts one between.
Between a load or a store of threads and a copy or a product that writes or reads there, the threads must have a fence:
these go another way to shared memory (PTX: async proxy), and a copy was seen to overwrite what a load had yet to read.
What threads copy row by row is done later than they are: who has waited for it has the fence, or hears of one.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np

from tiledsl.certificate.algebra import ExecutorError

EMITTED = "<emitted>"  # the name of the file that emitted text is compiled under


class Clock(dict[Hashable, int]):
    """How many steps of each thread, and phases of each barrier, are known to be over."""

    def learn(self, other: Clock) -> None:
        for who, time in other.items():
            if self.get(who, 0) < time:
                self[who] = time


@dataclass
class Access:
    """What reads or writes shared memory. `ends`: when it is over, by thread or barrier; empty while it is on its way
    and nobody has waited for it. `fenced`: the same of each fence behind it, with the partition that had it."""

    what: str
    array: np.ndarray
    writes: bool
    is_async: bool
    owner: int  # the partition
    line: int
    ends: dict[Hashable, int] = field(default_factory=dict)
    fenced: list[tuple[int, dict[Hashable, int]]] = field(default_factory=list)
    by_threads: bool = True  # also copies that threads ask for one by one; boxes and products go another way

    def __str__(self) -> str:
        return f"the {self.what} of line {self.line}"


class Warps:
    """The warpgroups of a partition: what each knows, and what they have read and written without a fence."""

    def __init__(self, number: int, groups: int) -> None:
        self.number = number
        self.clocks = {(number, group): Clock() for group in range(groups)}
        self.unfenced: list[Access] = []
        self._step()

    def _step(self) -> None:
        for group, clock in self.clocks.items():
            clock[group] = clock.get(group, 0) + 1

    def now(self) -> dict[Hashable, int]:
        """The moment that is now, after which something else is."""
        moment: dict[Hashable, int] = {group: clock[group] for group, clock in self.clocks.items()}
        self._step()
        return moment

    def learn(self, other: Clock) -> None:
        for clock in self.clocks.values():
            clock.learn(other)

    def meet(self) -> Clock:
        """All warps wait for each other. What all of them know then."""
        known = Clock()
        for clock in self.clocks.values():
            known.learn(clock)
        self.now()
        self.learn(known)
        return known

    def knows(self, ends: dict[Hashable, int]) -> bool:
        """Whether every warpgroup knows something to be over."""
        return all(clock.get(who, 0) >= time for clock in self.clocks.values() for who, time in ends.items())

    def fence(self) -> None:
        """Copies and products that are issued later see what has been written, and do not overtake what reads."""
        moment = self.now()
        for each in self.unfenced:
            each.fenced.append((self.number, moment))
        self.unfenced.clear()


class Places:
    """Who has read and written shared memory, as far as something later may be in conflict with it."""

    def __init__(self) -> None:
        self.accesses: dict[int, list[Access]] = {}

    def begin(
        self,
        what: str,
        array: np.ndarray,
        warps: Warps,
        *,
        writes: bool = False,
        is_async: bool = False,
        by_threads: bool = True,
    ) -> Access:
        """An access by a partition. Raises ExecutorError if it may come before one that is to come first."""
        made = Access(what, array, writes, is_async, warps.number, emitted_line(), by_threads=by_threads)
        base = array if array.base is None else array.base
        before = self.accesses.setdefault(id(base), [])
        over = [each for each in before if _overlap(each.array, array)]
        if not writes and not any(each.writes for each in over):
            raise ExecutorError(f"a {what} reads shared memory that nobody has written")
        for each in over:
            own = each.owner == made.owner and not each.is_async
            if (each.writes or writes) and not own and not (each.ends and warps.knows(each.ends)):
                raise ExecutorError(_race(made, each))
            if own and each.writes and is_async:
                warps.meet()
            is_between = each.by_threads and not by_threads and (each.writes or writes)
            if is_between and not any(fence == warps.number or warps.knows(moment) for fence, moment in each.fenced):
                done = "takes what was written" if each.writes else "overwrites what was read"
                raise ExecutorError(f"a {what} {done} in shared memory, without a fence between (line {each.line})")
        covered = {id(each) for each in over if writes and _covers(array, each.array)}
        before[:] = [each for each in before if id(each) not in covered]
        before.append(made)
        return made

    def fence(self, warps: Warps) -> None:
        """A partition has a fence, which is also behind copies by threads that it knows to be done."""
        moment = warps.now()
        for each in (each for accesses in self.accesses.values() for each in accesses):
            if each.is_async and each.by_threads and each.ends and warps.knows(each.ends):
                each.fenced.append((warps.number, moment))

    def forget(self, array: np.ndarray) -> None:
        """New memory, which may be where other memory was."""
        self.accesses.pop(id(array), None)

    def ended(self, known: Clock) -> None:
        """Nobody does more, and so much is known."""
        for each in (each for accesses in self.accesses.values() for each in accesses):
            if each.is_async and each.writes and any(known.get(who, 0) < time for who, time in each.ends.items()):
                raise ExecutorError(f"nobody waits for {each}")
        self.accesses.clear()

    def now(self, what: str, array: np.ndarray, warps: Warps, *, writes: bool = False) -> None:
        """An access by threads, over when it returns."""
        made = self.begin(what, array, warps, writes=writes)
        made.ends = warps.now()
        warps.unfenced.append(made)


def _race(late: Access, early: Access) -> str:
    if not late.writes:
        return f"a {late.what} may read before {early} is done"
    return f"a {late.what} may overwrite what {early} {'writes' if early.writes else 'still reads'}"


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.may_share_memory(a, b)) and bool(np.shares_memory(a, b))


def _covers(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether all of b is in a; not, if one of them has gaps."""
    (low, high), (first, last) = _bytes(a), _bytes(b)
    return a.flags.c_contiguous and b.flags.c_contiguous and low <= first and last <= high


def _bytes(array: np.ndarray) -> tuple[int, int]:
    start = array.__array_interface__["data"][0]
    return start, start + array.nbytes


def emitted_line() -> int:
    """The line of the text that runs."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != EMITTED:
        frame = frame.f_back  # type: ignore[assignment]
    return 0 if frame is None else frame.f_lineno


def known_to(warps: Iterable[Warps]) -> Clock:
    """What any of these knows."""
    known = Clock()
    for each in warps:
        for clock in each.clocks.values():
            known.learn(clock)
    return known
