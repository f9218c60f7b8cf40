"""Mistakes in the text of a Gluon kernel: waits, releases, phases, places and depths that are lost, moved or wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ORDER = re.compile(
    r"mbarrier\.|warpgroup_mma_wait|fence_async_shared|_barrier\(\)|store_wait|_load_box|_load_ahead|async_copy|_store_box|_advance\("
    r"|(turn|\w*phase) (\^)?= |_before = |_buffer.*\.store\("
)
_NUMBERS = {
    r"phase = (\d)": lambda n: [1 - n],
    r"turn = (\d)": lambda n: [1 - n],
    r"_advance\(\w+, \w+, (\d+)\)": lambda n: [n - 1, n + 1],
    r"warpgroup_mma_wait\((\d+)": lambda n: [n + 1],
    r"mbarrier\.expect\(.*, (\d+)\)": lambda n: [n // 2, n * 2],
    r"mbarrier\.arrive\(.*count=(\d)": lambda n: [n + 1],
    r"= _barriers\((\d+), \d+\)": lambda n: [n - 1],
    r"= _barriers\(\d+, (\d+)\)": lambda n: [n - 1, n + 1],
    r"= gl\.allocate_shared_memory\(gl\.\w+, \[(\d+)": lambda n: [n - 1],
}
_TEXTS = [
    (r"_full\b", "_empty"),
    (r"\bfull\b", "empty"),
    (r"_empty\b", "_full"),
    (r"\bempty\b", "full"),
    (r"\.index\(\w*stage\b", ".index(0"),
    (r"\.index\(\w*stage_before\b", ".index(stage"),
    (r"\.index\(stage\)", ".index(stage_before)"),
    (r"\.index\(consumer\)", ".index(0)"),
    (r", \w*phase\)", ", 0)"),
    (r", \w*phase\)", ", 1)"),
    (r", turn\)", ", 0)"),
    (r", turn\)", ", 1)"),
    (r", pred=.*\)$", ")"),
    (r"(pred=\w+) > ", r"\1 >= "),
    (r"deps=\[\w+, (\w+)\]", r"deps=[\1]"),
]


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Texts that differ in a line of those that order the partitions, each with what is wrong, and where."""
    lines = [line.split("  #")[0] for line in source.splitlines()]
    kernel = False
    for number, line in enumerate(lines):
        if line.startswith("def "):
            kernel = bool(re.match(r"def \w+_(producer|consumer|kernel)\(", line))
        if not kernel or not line.startswith(" "):
            continue
        for what, new in _changes(lines, number):
            if new != lines[number : number + len(new)]:
                yield f"line {number + 1}: {what}", "\n".join([*lines[:number], *new, *lines[number + len(new) :]])


def _changes(lines: list[str], number: int) -> Iterator[tuple[str, list[str]]]:
    line = lines[number]
    indent = len(line) - len(line.lstrip())
    if _ORDER.search(line):
        yield f"lost: {line.strip()}", [" " * indent + "pass"]
        following = lines[number + 1] if number + 1 < len(lines) else ""
        is_like = len(following) - len(following.lstrip()) == indent and not following.strip().startswith("#")
        if is_like and not line.endswith(":") and not following.endswith((":", ",")):
            yield f"after the next: {line.strip()}", [following, line]
        if re.search(r"arrive|expect|_load_box|_advance|\^=", line):  # others do nothing the second time
            yield f"twice: {line.strip()}", [line + "; " + line.strip()]
        for old, text in [*_TEXTS, *_others(lines, line)]:
            changed = re.sub(old, text, line)
            yield f"{line.strip()} -> {changed.strip()}", [changed]
    for pattern, others in _NUMBERS.items():
        found = re.search(pattern, line)
        for other in others(int(found[1])) if found else []:
            changed = f"{line[: found.start(1)]}{other}{line[found.end(1) :]}"  # type: ignore[union-attr]
            yield f"{line.strip()} -> {changed.strip()}", [changed]


def _others(lines: list[str], line: str) -> Iterator[tuple[str, str]]:
    """Each ring, barrier and counter of a line, and the next one of its kind in the text."""
    for kind in ("ring", "full", "empty", "stage"):
        names = sorted(set(re.findall(rf"\b\w+_{kind}\b", "\n".join(lines))))
        for name in set(re.findall(rf"\b\w+_{kind}\b", line)):
            yield rf"\b{name}\b", names[(names.index(name) + 1) % len(names)]
