"""Schedules for Gluon as somebody may edit them: a number, a ring, a cluster or a stage that is another one."""

from __future__ import annotations

import re
from collections.abc import Iterator

_CLUSTER = "gluon.cluster"


def edits(ir: str) -> Iterator[tuple[str, str]]:
    """Texts that differ in one place of those that say what is issued when, each with what has changed."""
    lines = ir.splitlines()
    for number, line in enumerate(lines):
        for new in dict.fromkeys(_changes(line, ir)):
            if new != line:
                yield f"{line.strip()} -> {new.strip() or 'nothing'}", _with(lines, number, [new])
        if line.strip().startswith(_CLUSTER):
            following = next((n for n in range(number + 1, len(lines)) if _ends(lines[n])), len(lines))
            if lines[following].strip().startswith(_CLUSTER):  # a cluster in the place of the next
                end = next(n for n in range(following + 1, len(lines)) if _ends(lines[n]))
                both = [*lines[following:end], *lines[number:following]]
                yield f"after the next: {line.strip()}, line {number}", _with(lines, number, both)
            for moved in (lines[number - 1], lines[number + 1]):  # its border one operation earlier or later
                if not moved.strip().startswith((_CLUSTER, "}")) and not moved.strip().endswith("{"):
                    pair = [line, moved] if moved is lines[number - 1] else [moved, line]
                    start = number - 1 if moved is lines[number - 1] else number
                    yield f"border of {line.strip()} over {moved.strip()[:40]}", _with(lines, start, pair)
        elif "triton.load_block" in line and not _ends(lines[number + 1]):
            yield f"later: {line.strip()[:50]}", _with(lines, number, [lines[number + 1], line])


def _with(lines: list[str], start: int, new: list[str]) -> str:
    return "\n".join([*lines[:start], *new, *lines[start + len(new) :]])


def _ends(line: str) -> bool:
    return line.strip().startswith((_CLUSTER, "scf.yield"))


def _changes(line: str, ir: str) -> Iterator[str]:
    if line.strip().startswith(_CLUSTER):
        yield ""
        found = {name: int(value) for name, value in re.findall(r"(stage|slot) = (\d+)", line)}
        indent = line[: len(line) - len(line.lstrip())]
        for stage in (0, 1):
            for slot in range(4):
                if (stage, slot) != (found.get("stage", 0), found.get("slot", 0)):
                    yield f"{indent}{_CLUSTER} {{stage = {stage}, slot = {slot}}}"
    if "gluon.schedule" in line:
        for position in [found.span() for found in re.finditer(r"\b(true|false)\b", line)]:
            value = "false" if line[slice(*position)] == "true" else "true"
            yield line[: position[0]] + value + line[position[1] :]
        yield re.sub(r"runs = \((.*?),?\)", r"runs = (\1, true)", line)
        if "in_flight" in line:
            yield re.sub(r", in_flight = \((?:[^()]|\([^()]*\))*\)", "", line)
        for numbers in ("((),)", "((0,),)", "((1,),)", "((2,),)", "((9,),)"):
            plain = re.sub(r", in_flight = \((?:[^()]|\([^()]*\))*\)", "", line)
            yield plain.replace("}", f", in_flight = {numbers}}}")
    if "alternate" in line:
        for sums in ("((3,), (2,))", "((2, 3), ())", "((2,), (2,))", "((0,), (3,))", "((2,), (9,))", "()"):
            yield re.sub(r"alternate = \(\(.*?\)\)", f"alternate = {sums}", line)
    depth = re.search(r"num_stages = (\d+)", line)
    if depth and "scf.for" in line:
        for other in {1, 2, 3, 4, 0} - {int(depth[1])}:
            yield f"{line[: depth.start(1)]}{other}{line[depth.end(1) :]}"
        if "unroll" not in line:
            yield line.replace("num_stages", "unroll = 4, num_stages")
            yield line.replace("num_stages", "unroll = 2, num_stages")
        yield line.replace("unroll = 2", "unroll = 4")
        yield re.sub(r", unroll = \d", "", line)
    ring = re.search(r'ring = "(\w+)"', line)
    if ring:
        for other in sorted({*re.findall(r'ring = "(\w+)"', ir), "other"} - {ring[1]}):
            yield f"{line[: ring.start(1)]}{other}{line[ring.end(1) :]}"
        yield re.sub(r', ring = "\w+"', "", line)
