"""The copies of a tile that a pipelined loop fills in turn, in the text of Triton's GPU dialect. Part of hazards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_RESULT = re.compile(r"\s*(%[\w$.-]+)(?::\d+)? = (.*)")
_VALUE = re.compile(r"%[\w$.#-]+")
_VIEW = re.compile(r"ttg\.memdesc_(?:trans|reshape|reinterpret|subslice)")
_COPY_OF = re.compile(r"ttg\.memdesc_index (%[\w$.#-]+)\[.*?\] : !ttg\.memdesc<(\d+)x")
_PRODUCT = re.compile(r"ttng\.warp_group_dot (%[\w$.#-]+), (%[\w$.#-]+), .*isAsync = true")
_WAIT = re.compile(r"ttng\.warp_group_dot_wait .*pendings = (\d+)")
_FILLED = re.compile(
    r"async_copy_global_to_local %[\w$.#-]+, (%[\w$.#-]+)|async_tma_copy_global_to_local .*?\] (%[\w$.#-]+),"
)


@dataclass(frozen=True)
class Overwritten:
    """A tile that a loop keeps `copies` of and loads `ahead` iterations before its use."""

    tile: str
    copies: int
    ahead: int


def overwritten_tiles(ttgir: str) -> Iterator[Overwritten]:
    """Tiles that an asynchronous product may still read while a later one is copied to the same place.

    A loop loads as many iterations ahead as there are copies before it, and in its iteration i fills the copy
    i + ahead, modulo their number, while products that nothing has waited for read that of their own iteration.
    """
    if "isAsync = true" not in ttgir:
        return
    for function in ttgir.split("tt.func ")[1:]:
        yield from _of_function(function.splitlines())


def _of_function(lines: Sequence[str]) -> Iterator[Overwritten]:
    for begin, line in enumerate(lines):
        if " scf.for " in line:
            end = next(at for at in range(begin + 1, len(lines)) if _indent(lines[at]) <= _indent(line))
            inside = lines[begin + 1 : end]
            if not any(" scf.for " in each for each in inside):
                yield from _of_loop(list(_seen_from(lines[: begin + 1])), inside)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _seen_from(lines: Sequence[str]) -> Iterator[str]:
    """The lines before the last one in the regions around it, backwards: other regions use the same names again."""
    outermost = _indent(lines[-1])
    for line in reversed(lines[:-1]):
        if _indent(line) <= outermost:
            outermost = _indent(line)
            yield line


def _of_loop(around: Sequence[str], inside: Sequence[str]) -> Iterator[Overwritten]:
    made = {found[1]: found[2] for found in map(_RESULT.match, (*around, *inside)) if found}

    def ring(value: str) -> tuple[str, int]:
        """The copies that a value is one of, and their number; 0 if it is not."""
        while value in made and _VIEW.match(made[value]):
            value = _VALUE.search(made[value])[0]  # type: ignore[index]
        copy = _COPY_OF.match(made.get(value, ""))
        return (copy[1], int(copy[2])) if copy else (value, 0)

    def filled(line: str) -> tuple[str, int] | None:
        found = _FILLED.search(line)
        return ring(found[1] or found[2]) if found else None

    before = [filled(line) for line in around]
    running: list[tuple[str, str, int]] = []  # products that nothing has waited for, and in which of two iterations
    for turn in (0, 1):
        for line in inside:
            if product := _PRODUCT.search(line):
                running.append((product[1], product[2], turn))
            elif wait := _WAIT.search(line):
                running = running[len(running) - int(wait[1]) :] if int(wait[1]) else []
            elif target := filled(line):
                tile, copies = target
                ahead = sum(each == target for each in before)
                for left, right, started in running if turn else ():
                    if copies and target in (ring(left), ring(right)) and (turn + ahead - started) % copies == 0:
                        yield Overwritten(tile, copies, ahead)
                        break
